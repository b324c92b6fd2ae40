"""The manager of one set of masters: what is valid for all locks on them."""

from collections.abc import Iterable, Mapping
from datetime import timedelta
from typing import Never

from redis.asyncio import Redis

from redlock_aio._engine.decorator import Decorating
from redlock_aio._engine.emitter import Emitter
from redlock_aio._engine.handing import Adopting
from redlock_aio._engine.lock import Lock
from redlock_aio._engine.opening import Opening, RestartGuard
from redlock_aio._engine.options import GivenOptions, OnLost, OptionsCache
from redlock_aio._engine.oversight import Oversight
from redlock_aio._rules import holders, mistakes, restarts, timing
from redlock_aio._rules.arguments import MOST_RESOURCES, of_type, one_of, plain_function, text
from redlock_aio._rules.fencing import LEAD_SHARE
from redlock_aio._rules.keys import Key, Keys
from redlock_aio._rules.timing import Retry
from redlock_aio._transport.address import AnyDialler, addresses
from redlock_aio.events import Listener

RESERVED = b"redlock_aio:"
"""How the keys begin that are ours beside the locks."""

MAX_WAITERS = 1_000
"""How many may wait in the queue of one resource."""

KNOWN = 1_000
"""How many resources are remembered with their keys, so that a name is looked at once."""


class Redlock(Opening, Oversight, Adopting, Decorating):
    """
    The manager of one set of masters.

    It can be made at module level: it connects on first use, belongs to the
    event loop of that use, and closes with ``async with`` or `aclose`.

    Args:
        masters: Independent Redis or Valkey servers, with no replication between
            them: URLs (``redis://``, ``rediss://``, ``unix://``) or
            `redis.asyncio.Redis` clients, of which the connection settings are
            taken over. All who lock the same resources name the same masters.

        master_timeout: How long one master's answer is waited for, in
            milliseconds or as a `timedelta`. A master that is slower does not
            vote. ``None`` (the default) learns it from how long answers take:
            twice the round trip, from 50 ms to 1 s, see `Redlock.master_timeout`.

        drift_factor: The share of a ttl by which the clocks of two machines may
            part while it lasts; what is left of a ttl after it, and 2 ms more,
            is its validity.

        retry: How to wait between attempts, if a lock does not say it.

        key_prefix: Put before each resource's name to make its key.

        fencing: Whether locks have a fencing token, if a lock does not say it.

        max_waiters: How many may wait in the queue of a resource, with
            ``fair=True``; whoever comes then is refused at once.

        max_ttl: The longest ttl that a lock may ask for, in milliseconds (default
            60 000). All programs that use the masters should have the same one; if not,
            all wait for the longest quarantine, and those with a shorter one log it.

        restart_guard: Who sees to it that a master that has forgotten its locks
            stays out of votes until they are over, *max_ttl* and a little more:
            ``"auto"`` (the default), this library, but for a set of masters that
            is new as a whole; ``"strict"``, the same, also then; ``"fsync-always"``,
            nobody needs to: you vouch for ``appendfsync always``; ``"off"``, nobody.

        listener: Called with each event of its locks and masters, see
            `redlock_aio.events`; it must not block (default: nobody is).

        name: What others see of who holds a lock, without a ``{`` (default: this
            host and process). Every command about a lock repeats it, so be brief.

    Raises:
        TypeError: An argument is of another type.

        ValueError: An argument has no sense: no masters, one named twice, a URL
            that can't be understood, a time that is not positive.
    """

    def __init__(
        self,
        masters: Iterable[str | Redis | AnyDialler],
        *,
        master_timeout: int | timedelta | None = None,
        drift_factor: float = timing.DRIFT_FACTOR,
        retry: Retry = Retry(),  # noqa: B008 - a frozen value
        key_prefix: str = "",
        fencing: bool = False,
        max_waiters: int = MAX_WAITERS,
        max_ttl: int | timedelta = timing.MAX_TTL,
        restart_guard: RestartGuard = "auto",
        listener: Listener | None = None,
        name: str | None = None,
        **unknown: Never,
    ) -> None:
        if unknown:
            raise mistakes.unknown_options(unknown, called="Redlock()")
        one_of(restart_guard, restarts.GUARDS, name="restart_guard")
        super().__init__(
            addresses(masters),
            master_timeout=None
            if master_timeout is None
            else timing.milliseconds(master_timeout, name="master_timeout"),
            drift_factor=timing.drift_factor(drift_factor),
            max_ttl=timing.at_least(timing.milliseconds(max_ttl, name="max_ttl"), name="max_ttl"),
            restart_guard=restart_guard,
            stamp=b"" if name is None else holders.named(name),
            emitter=None
            if listener is None
            else Emitter(plain_function(listener, name="listener")),
        )
        self._options = OptionsCache(
            max_ttl=self._max_ttl,
            fencing=of_type(fencing, bool, name="fencing"),
            retry=of_type(retry, Retry, name="retry"),
        )
        self._key_prefix = b"" if key_prefix == "" else text(key_prefix, name="key_prefix")
        self._max_waiters = of_type(max_waiters, int, name="max_waiters")
        if isinstance(max_waiters, bool) or max_waiters < 1:
            raise ValueError(f"max_waiters must be positive, not {max_waiters}")
        self._clock_lead = int(self._lasts * LEAD_SHARE * 1_000_000)
        self._known: dict[str, Key] = {}

    def lock(
        self,
        *resources: str,
        ttl: int | timedelta | None = None,
        wait: int | timedelta | None = None,
        auto_extend: bool = True,
        max_hold: int | timedelta | None = None,
        hold_at_least: int | timedelta = 0,
        fair: bool = False,
        fencing: bool | None = None,
        reentrant: bool = False,
        owner: object = None,
        metadata: Mapping[str, object] | None = None,
        retry: Retry | None = None,
        on_lost: OnLost = "cancel",
        **unknown: Never,
    ) -> Lock:
        """
        Return a lock on *resources*; nothing is sent yet.

        Args:
            resources: The name that is locked, 1 to 512 bytes as UTF-8, without
                control characters. With the manager's *key_prefix* before it,
                it is the key on the masters. Several, up to 100, are locked
                together, all or none.

            ttl: After how many milliseconds without an extension the masters
                release the lock by themselves, 50 to the manager's *max_ttl*
                (default: 10 000, or *max_ttl* if that is shorter).

            wait: For how many milliseconds to wait, whether others hold the lock
                or masters are away. ``None`` (the default) waits for ever, 0
                makes one attempt. Even if *wait* is shorter, masters get a learned
                master time-out to answer, or at most 50 ms of a fixed one. If too
                many masters refuse for good, it ends at once, see
                `QuorumUnavailableError`; while too few answer, a warning is logged.

            auto_extend: Whether the lease is extended every third of *ttl* for
                as long as it is held (default yes).

            max_hold: After how many milliseconds the lease ends for good,
                whatever extensions say (default: never).

            hold_at_least: For how many milliseconds from its acquisition the
                resource stays locked, also if it is released before, by whatever
                the body ends with (default 0). The masters see to it, and nobody
                waits for them. A lock that is lost is not kept, a holder that dies
                keeps it for its *ttl* only, and masters that restart may forget it
                after *max_ttl*.

            fair: Whether to wait in order: whoever asked first is served first, also
                among programs (default no). It costs the masters more. Those who
                do not say *fair* do not stand in the queue, and may come first.

            fencing: Whether the lease has a `Lease.fencing_token`, which is higher
                than that of everybody who had the lock before (default: as the
                manager says). It counts only those who say *fencing*, and costs
                the masters more.

            reentrant: Whether who holds the lock may take it again (default no):
                that asks the masters nothing, and shares the lease. What is held
                ends with the last release; its ttl and deadline are the longest
                that were asked for, an extension that this needs is not waited
                for; what else was asked is as the first has it. A task that holds
                a lock and waits for it for ever gets a `RedlockError` instead.

            owner: Who that is, by ``==``, such as a request's id (default: the task
                that has acquired the lease, or has entered it with ``async with``).
                A child task is another one, and so is what `asyncio.wait_for`
                runs on Python 3.11.

            metadata: What others are to see of the holder, beside the manager's
                *name*: a mapping of at most 1 KiB as JSON.

            retry: How to wait between attempts (default: as the manager says).
                A fair wait is woken and needs none.

            on_lost: ``"cancel"`` (the default) cancels the body of ``async
                with`` when the lease is lost and raises `LockLostError`;
                ``"flag"`` only tells, by `Lease.valid` and `Lease.lost`.

        Raises:
            TypeError: An argument is of another type, such as a `float` for a
                time.

            ValueError: An argument has no sense.
        """
        if unknown:
            raise mistakes.unknown_options(unknown, called="lock()")
        # The types: see `options`. A retry is compared as an object, because a subclass may hold
        # more than its fields; cached options refer to theirs, so its id stays its own.
        asked = (
            ttl, ttl.__class__, wait, wait.__class__, max_hold, max_hold.__class__,
            hold_at_least, hold_at_least.__class__, auto_extend, auto_extend.__class__,
            fair, fair.__class__, fencing, fencing.__class__, reentrant, reentrant.__class__,
            on_lost, None if retry is None else id(retry),
        )  # fmt: skip
        try:
            options = self._options[asked]
        except (KeyError, TypeError):  # not cached yet, or not hashable
            given = GivenOptions(
                ttl, wait, auto_extend, max_hold, hold_at_least, fair, fencing, reentrant, on_lost,
                retry,
            )  # fmt: skip
            options = self._options.add(asked, given)
        if owner is not None and not options.reentrant:
            raise ValueError("owner is for reentrant=True, and has no meaning without it")
        if len(resources) == 1:
            name = resources[0]
            known = self._known.get(name) if type(name) is str else None
            key: Key | Keys = known or self._key(name)
        else:
            key = self._keys(resources)
        packed = b"" if metadata is None else holders.packed(metadata)
        return Lock(self, resources, key, options, owner, packed)

    def _key(self, resource: str) -> Key:
        """Return the key of a resource that makes sense."""
        if isinstance(resource, list | tuple | set | frozenset):
            kind = type(resource).__name__
            raise TypeError(f"resource must be a str, not a {kind}: write lock(*names) for several")
        name = text(resource, name="resource")
        key = Key(self._key_prefix + name)
        if key.startswith(RESERVED):
            raise ValueError(
                f"resource must not make a key that starts with {RESERVED.decode()!r}: such keys"
                " are our own"
            )
        if len(self._known) >= KNOWN:
            self._known.clear()
        self._known[resource] = key
        return key

    def _keys(self, resources: tuple[str, ...]) -> Keys:
        """Return the keys of several resources that make sense together."""
        if not 1 < len(resources) <= MOST_RESOURCES:
            said = f"at most {MOST_RESOURCES} resources" if resources else "at least one resource"
            raise TypeError(f"lock() wants {said}, not {len(resources)}")
        keys = [self._key(resource) for resource in resources]
        if len(set(keys)) < len(keys):
            twice = next(name for name in resources if resources.count(name) > 1)
            raise ValueError(f"resources must differ: {twice!r} is named twice")
        return Keys(sorted(keys))
