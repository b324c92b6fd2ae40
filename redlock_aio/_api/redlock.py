"""The manager of one set of masters: what is valid for all locks on them."""

from collections.abc import Iterable, Mapping
from datetime import timedelta
from types import TracebackType
from typing import Never, Self

from redis.asyncio import Redis

from redlock_aio._api.adoption import Adopting
from redlock_aio._api.decorator import Decorating
from redlock_aio._api.lock import Lock
from redlock_aio._api.opener import Opener
from redlock_aio._engine.admin import inspect
from redlock_aio._engine.admin.force_release import Eviction
from redlock_aio._engine.emitter import Emitter
from redlock_aio._engine.options import GivenOptions, OnLost, OptionsCache
from redlock_aio._engine.session import RestartGuard, Settings
from redlock_aio._protocol.lock_state import LockState
from redlock_aio._protocol.resources import Resources
from redlock_aio._rules import lock_value, mistakes, quarantine, timing
from redlock_aio._rules.retry import Retry
from redlock_aio._rules.roundtrips import SHORTEST
from redlock_aio._rules.statistics import Statistics
from redlock_aio._rules.validation import of_type, one_of, plain_function, positive
from redlock_aio._transport.address import AnyDialler, addresses
from redlock_aio.events import Listener

MAX_WAITERS = 1_000
"""How many may wait in the queue of one resource."""


class Redlock(Adopting, Decorating):
    """
    The manager of one set of masters.

    It can be made at module level: it connects on first use, belongs to the
    event loop of that use, and closes with ``async with`` or `aclose`.

    Args:
        masters: Independent Redis or Valkey servers, with no replication between
            them: URLs (``redis://``, ``rediss://``, ``unix://``) or
            `redis.asyncio.Redis` clients, of which the connection settings are
            taken over. All who lock the same resources name the same masters, or
            one more or less; who names others than those who were there before
            has no votes, see `examples/replacing_masters.md`.

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
        one_of(restart_guard, quarantine.GUARDS, name="restart_guard")
        self._resources = Resources(key_prefix)
        settings = Settings(
            tuple(addresses(masters)),
            drift_factor=timing.drift_factor(drift_factor),
            max_ttl=timing.at_least(timing.milliseconds(max_ttl, name="max_ttl"), name="max_ttl"),
            max_waiters=positive(max_waiters, name="max_waiters"),
            restart_guard=restart_guard,
            key_prefix=self._resources.prefix,
            stamp=b"" if name is None else lock_value.named(name),
            emitter=None
            if listener is None
            else Emitter(plain_function(listener, name="listener")),
        )
        if master_timeout is not None:
            master_timeout = timing.milliseconds(master_timeout, name="master_timeout")
        self._opener = Opener(settings, master_timeout)
        self._options = OptionsCache(
            max_ttl=settings.max_ttl,
            fencing=of_type(fencing, bool, name="fencing"),
            retry=of_type(retry, Retry, name="retry"),
        )

    def __repr__(self) -> str:
        total, session = len(self._opener.settings.diallers), self._opener.current
        if session is None:
            return f"<Redlock {total} masters, {self._opener.state}>"
        state, timeout = session.statistics(), self.master_timeout
        up = sum(master.up for master in state.masters)
        out = up - sum(master.votes for master in state.masters)
        quarantined = f", {out} quarantined" if out else ""
        slow = "" if timeout == SHORTEST else f", master_timeout {timeout} ms"
        return f"<Redlock {total} masters, {up} up{quarantined}, {state.leases} leases{slow}>"

    @property
    def master_timeout(self) -> int:
        """
        For how many milliseconds one master's answer is waited for at present.

        It is what was asked for, or was learned from how long they take.
        """
        return self._opener.trips.timeout

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
            ttl, type(ttl), wait, type(wait), max_hold, type(max_hold),
            hold_at_least, type(hold_at_least), auto_extend, type(auto_extend),
            fair, type(fair), fencing, type(fencing), reentrant, type(reentrant),
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
        known = None
        if len(resources) == 1 and type(resources[0]) is str:
            known = self._resources.known.get(resources[0])
        key = known or self._resources.keys(resources)
        packed = b"" if metadata is None else lock_value.packed(metadata)
        return Lock(self._opener, resources, key, options, owner, packed)

    async def inspect(self, resource: str, /) -> LockState:
        """
        Return who holds *resource*, as each master tells it; ``print`` it to read it.

        All masters are asked once and heard out, so that one that hangs costs a master
        time-out. Those that do not answer are views that say so; see
        `LockState.certain`.

        Raises:
            RedlockError: The manager is closed, or belongs to another event loop
                or process.

            TypeError, ValueError: As for `lock`.

        Cancellation:
            Nothing was asked that changes anything.
        """
        key, session = self._resources.key(resource), await self._opener.ready_session()
        return await inspect.inspect(session.masters, resource, key)

    async def is_locked(self, resource: str, /) -> bool:
        """
        Return whether somebody holds *resource*: a majority of the masters keeps one value.

        It is the truth of a moment. Whoever is to do what others must not do meanwhile
        takes the lock, with ``wait=0`` or `Lock.try_acquire`.

        Raises:
            QuorumUnavailableError: Too few masters have answered to tell.

            RedlockError: The manager is closed, or belongs to another event loop
                or process.

            TypeError, ValueError: As for `lock`.

        Cancellation:
            Nothing was asked that changes anything.
        """
        key, session = self._resources.key(resource), await self._opener.ready_session()
        return await inspect.is_locked(session.masters, resource, key)

    async def force_release(self, resource: str, /) -> bool:
        """
        Release *resource* for whoever holds it, also for another library, and wake its waiters.

        Nobody gets the lock for a moment, a little over 0.1 s and two master time-outs of
        this manager. In that time the holder is told, its lease is lost, and its body is
        cancelled: at once if it is of this process, or if one master tells it that the key
        has changed (``client|tracking``), as they do with this library. A holder with a
        longer master time-out, because it is farther away, may be told after others have
        got the lock: give a *master_timeout* here as long as the longest of all programs.
        A holder that can't be told finds out at its next extension, after a third of its
        ttl, or when its validity is over if it is cut off; another library may not find
        out. Only a fencing token refuses what it writes meanwhile: that of the next holder
        is higher. A master that does not answer releases the lock as soon as it does.

        A later holder keeps the lock, but for a library that uses one value for several
        holders. What can't be a lock is never touched: a key of another type, one without a
        ttl (but for a lock of this library whose ttl somebody has taken away), one of more
        than 2 KiB; unless it has the very value of a lock on another master. On a minority
        of the masters it is left as it is, and the lock is released on the others; on a
        majority, or where no master keeps a lock, it is an error.

        Returns:
            Whether there was anything to take, on any master; also what only a
            minority keeps.

        Raises:
            QuorumUnavailableError: Too few masters have answered to find or free it.
                Those that have answered take it away all the same.

            RedlockError: What the masters keep can't be a lock, and nothing was changed;
                or the manager is closed, or belongs to another event loop or process.

            TypeError, ValueError: As for `lock`.

        Cancellation:
            If the masters have not been asked to take it away, nothing has happened.
            Otherwise they do, and the lock is free after a moment; only the wait ends. No
            key of ours stays.
        """
        key, session = self._resources.key(resource), await self._opener.ready_session()
        masters, watchdog = session.masters, session.watchdog
        return await Eviction(masters, watchdog, resource, key, session.max_ttl).run()

    def statistics(self) -> Statistics:
        """
        Return what the manager does at this moment: masters, rounds, leases, waiters, debts.

        Nothing is sent, and a manager that is not open is not opened.
        """
        return self._opener.statistics()

    async def __aenter__(self) -> Self:
        """
        Connect to the masters, as the first lock would.

        Raises:
            RedlockError: It is in use by another event loop, or by the process
                that this one was forked from.

        Cancellation:
            It is closed.
        """
        await self._opener.open()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """
        Close; see `aclose`.

        Cancellation:
            As for `aclose`.
        """
        await self._opener.close()

    async def aclose(self) -> None:
        """
        End all leases, tell the masters, and close the connections.

        Leases that are still held are lost: their bodies are cancelled. What
        was sent is waited for as long as one master time-out. Closing twice is
        harmless; ``async with`` opens a closed manager again.

        Raises:
            RedlockError: It is in use by another event loop, or by the process
                that this one was forked from.

        Cancellation:
            Everything is closed, only the wait for the masters is cut short.
        """
        await self._opener.close()
