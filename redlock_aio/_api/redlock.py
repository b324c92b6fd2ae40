"""The manager of one set of masters, with the options that hold for all locks on them."""

import functools
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from datetime import timedelta
from types import TracebackType
from typing import Any, Literal, Self, Unpack, cast, overload

from redis.asyncio import Redis

from redlock_aio._api.decorator import LockArguments, P, T, locked
from redlock_aio._api.election import Election
from redlock_aio._api.faces import (
    AnyCluster,
    ManagerArguments,
    OwnThread,
    ReadArguments,
    cluster_masters,
)
from redlock_aio._api.lease import Lease
from redlock_aio._api.lock import Lock
from redlock_aio._api.reporting import announce
from redlock_aio._api.rw_lock import ReadWriteLock
from redlock_aio._api.semaphore import Semaphore
from redlock_aio._api.watch import LockWatch
from redlock_aio._engine.acquire.adopt import adopt
from redlock_aio._engine.admin import scan, survey
from redlock_aio._engine.admin.force_release import ForcedRelease
from redlock_aio._engine.emitter import Emitter
from redlock_aio._engine.options import LockOptions, LockSpec, OnLost
from redlock_aio._engine.session import Opener, RestartGuard, Settings
from redlock_aio._protocol import lease_export
from redlock_aio._protocol.lock_state import FoundLocks, LockState
from redlock_aio._protocol.primitives import RESERVED, Resources
from redlock_aio._rules import lock_value, mistakes, quarantine, timing
from redlock_aio._rules.mistakes import OnlyForAsyncio
from redlock_aio._rules.retry import Retry
from redlock_aio._rules.statistics import Statistics
from redlock_aio._rules.validation import (
    MOST_PERMITS,
    from_to,
    of_type,
    one_of,
    plain_function,
    positive,
    text,
)
from redlock_aio._transport.address import AnyDialler, ClusterMaster, addresses
from redlock_aio.errors import RedlockError
from redlock_aio.events import Listener

MAX_WAITERS = 1_000

CHECK_WAIT = 1_000
"""The default *wait* of `Redlock.check` in ms, the timeout of a readiness probe of Kubernetes."""

MOST_OPTIONS = 256
"""The number of different sets of options that are cached for one manager."""

MOST_FOUND = 1_000
"""The most locks that `Redlock.find_locks` returns by default."""


class Redlock(OnlyForAsyncio):
    """
    The manager of one set of masters.

    It can be made at module level: it connects on first use, belongs to the event
    loop of that use, and is closed by the end of ``async with`` or by `aclose`.

    Args:
        masters: Independent Redis or Valkey servers, with no replication between
            them: URLs (``redis://``, ``rediss://``, ``valkey://``, ``valkeys://``,
            ``unix://``, or ``redis+sentinel://`` for a master behind Sentinel) or
            `redis.asyncio.Redis` clients, whose connection settings are taken over. A
            single one need not be in a list. All programs that lock the same resources
            name the same masters, or one more or less. Otherwise those that come second
            get fewer votes, or none, see `docs/how-to/replace-a-master.md`.

        master_timeout: How long to wait for the reply of one master, in
            milliseconds or as a `timedelta` (default: learned). A slower master does
            not vote. It is learned from round trips: twice the round trip, from 50 ms
            to 1 s, see `Redlock.master_timeout`.

        drift_factor: The share of a ttl by which the clocks of two machines may
            drift apart during it. It is subtracted from the ttl, as are 2 ms more,
            to get the validity.

        retry: How to wait between attempts, for locks without a *retry*.

        key_prefix: Put before each resource's name to make its key.

        fencing: Whether locks have a fencing token, for locks without *fencing*.

        max_waiters: How many may wait in the fair queue of one resource, with ``fair=True``
            or ``shared=True``. One more gets a `LockNotAcquiredError` at once. All programs
            share the queue. Holders do not count.

        max_ttl: The longest ttl of a lock, in milliseconds (default ``60_000``). All
            programs that use the masters should have the same *max_ttl*. Otherwise all
            use the longest quarantine, and those with a shorter one log it.

        restart_guard: How a master that may have forgotten locks is kept out of
            votes until they are over, for *max_ttl* and a little more. ``"auto"`` (the
            default): by this library, except if the whole set of masters is new;
            ``"strict"``: the same, also then; ``"fsync-always"``: not needed, because
            you vouch for ``appendfsync always``; ``"off"``: not at all.

        listener: Called with each event of its locks and masters, see
            `redlock_aio.events`; it must not block (default: none).

        name: The name of the holder that others see, without a ``{`` (default: this
            host and process). Every command about a lock repeats it, so be brief. It is
            also the name of the connections in ``CLIENT LIST``, unless a client or URL
            has a *client_name*.

    Raises:
        TypeError: An argument is of another type.

        ValueError: An argument is invalid: no masters, one named twice, a URL that
            can't be parsed, a time that is not positive.
    """

    def __init__(  # noqa: PLR0913 - the options of a manager, each with a default
        self,
        masters: str | Redis | AnyDialler | Iterable[str | Redis | AnyDialler],
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
        **unknown: Unpack[mistakes.NoOptions],
    ) -> None:
        if unknown:
            raise mistakes.unknown_options(unknown, called="Redlock()")
        one_of(restart_guard, quarantine.GUARDS, name="restart_guard")
        diallers = tuple(addresses(masters))
        tagged = isinstance(diallers[0], ClusterMaster)
        self._resources = Resources(key_prefix, tagged=tagged)
        if self._resources.prefix.startswith(RESERVED):  # each name would be refused
            raise ValueError(
                f"key_prefix must not start with {RESERVED.decode()!r}: such keys belong to this"
                " library"
            )
        settings = Settings(
            diallers,
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
            drift_factor=settings.drift_factor,
            fencing=of_type(fencing, bool, name="fencing"),
            retry=of_type(retry, Retry, name="retry"),
        )

    @classmethod
    def of_cluster(
        cls,
        cluster: AnyCluster,
        *,
        masters: int | None = None,
        tags: Sequence[str] | None = None,
        **options: Unpack[ManagerArguments],
    ) -> Self:
        """
        Return a manager whose masters are primaries of one Redis Cluster.

        Each master is the primary that owns the slot of a tag, such as ``{0001}``. All keys
        there begin with the tag, or have it as their first braces. All programs that lock
        the same resources use the same *masters* and *tags*, as they name the same masters
        elsewhere. The nodes of one Cluster share their configuration, and a failover costs
        the vote of its master for *max_ttl* and a little more: servers that know nothing of
        each other are the better masters, see `docs/how-to/cluster.md`.

        Args:
            cluster: The URL of a node, or of several with commas between them
                (``redis://``, ``rediss://``, ``valkey://``, ``valkeys://``), or a
                `redis.asyncio.RedisCluster` client, whose connection settings are taken over.
                Login and TLS are used for all nodes. In the URL ``+cluster`` may follow the
                scheme, with ``?masters=`` and ``?tags=``; such a URL can also be given to
                `Redlock`, alone.

            masters: How many primaries are masters: an odd number, at most that of the
                primaries (default 3).

            tags: The tag of each master, four letters or digits each, for a Cluster whose
                slots are shared out unevenly (default: by a fixed rule, for three masters
                ``0001``, ``8209`` and ``8239``).

            options: Those of `Redlock`.

        Raises:
            TypeError: An argument is of another type.

            ValueError: An argument is invalid.
        """
        return cls(cluster_masters(cluster, masters, tags), **options)

    def __repr__(self) -> str:
        total, session = len(self._opener.settings.diallers), self._opener.working
        if session is None:
            return f"<Redlock {total} masters, {self._opener.state}>"
        state, timeout = session.statistics(), self.master_timeout
        up = sum(master.up for master in state.masters)
        out = up - sum(master.votes for master in state.masters)
        quarantined = f", {out} quarantined" if out else ""
        slow = "" if timeout == timing.SHORTEST_TIMEOUT else f", master_timeout {timeout} ms"
        return f"<Redlock {total} masters, {up} up{quarantined}, {state.leases} leases{slow}>"

    @property
    def master_timeout(self) -> int:
        """
        The current timeout for the reply of one master, in milliseconds.

        It is the option *master_timeout*, or learned from round trips.
        """
        return self._opener.trips.timeout

    def lock(  # noqa: PLR0913 - the options of a lock, each with a default
        self,
        *resources: str,
        ttl: int | timedelta | None = None,
        wait: int | timedelta | None = None,
        auto_extend: bool = True,
        max_hold: int | timedelta | None = None,
        hold_at_least: int | timedelta = 0,
        fair: bool | None = None,
        shared: bool = False,
        permits: int | None = None,
        fencing: bool | None = None,
        reentrant: bool = False,
        owner: object = None,
        metadata: Mapping[str, object] | None = None,
        retry: Retry | None = None,
        on_lost: OnLost = "cancel",
        **unknown: Unpack[mistakes.NoOptions],
    ) -> Lock:
        """
        Return a lock on *resources*; nothing is sent yet.

        Args:
            resources: The name that is locked, 1 to 512 bytes as UTF-8, without
                control characters. The manager's *key_prefix* and this name are
                the key on the masters. Several names, up to 100, are locked
                together, all or none.

            ttl: After how many milliseconds without an extension the key of the
                lock expires on the masters, 50 to the manager's *max_ttl*
                (default: ``10_000``, or *max_ttl* if that is shorter).

            wait: For how many milliseconds to wait, whether others hold the lock
                or masters are away (default: for ever). ``None`` waits for ever, 0
                makes one attempt, of up to two master timeouts if a majority hangs.
                Even if another *wait* is shorter, masters get a learned master timeout
                to answer, or at most 50 ms of a fixed one. If too many masters refuse
                permanently, the wait ends at once, see `QuorumUnavailableError`; while
                too few answer, a warning is logged.

            auto_extend: Whether the lease is extended every third of *ttl* for
                as long as it is held (default yes).

            max_hold: After how many milliseconds the lease ends, whether it is
                extended or not (default: never).

            hold_at_least: For how many milliseconds from its acquisition the
                resource stays locked, even if it is released earlier or the body
                fails (default 0). The masters keep the key; no task waits for that.
                A lock that is lost is not kept, a holder that dies keeps it for its
                *ttl* only, and masters that restart may forget it after *max_ttl*.

            fair: Whether to wait in order of arrival, also among programs (default
                no, and always with *shared*). It costs the masters more. Acquisitions
                without *fair* do not enter the fair queue, and may be served first.

            shared: Whether to share the resource with other readers (default no), see
                `rw_lock`. While a reader holds it, nobody gets it without *shared*, not
                even by another library. It takes one resource, and none of *fencing*,
                *hold_at_least*, *retry* and ``fair=False``.

            permits: How many may hold the resource at the same time, 1 to ``1_000``, see
                `semaphore` (default: it is no semaphore). A semaphore and a lock of the same
                name are independent. It takes one resource, and none of *shared*,
                *reentrant*, *owner*, *retry* and ``fair=False``.

            fencing: Whether the lease has a `Lease.fencing_token`, which is higher
                than that of every earlier holder with *fencing* (default: as the
                manager has it). It costs the masters more.

            reentrant: Whether the holder may acquire the lock again (default no).
                A nested acquisition shares the lease, and does not ask the masters.
                The last release releases it. Its ttl and deadline are the longest
                that were requested; an extension for them is not awaited. All other
                options are those of the first acquisition. A task that holds a lock
                and would wait for it for ever gets a `RedlockError` instead.

            owner: The holder, compared by ``==``, such as a request's id (default:
                the task that has acquired the lease, or has entered it with ``async
                with``). A child task is another holder, and so is the task in which
                `asyncio.wait_for` runs a coroutine on Python 3.11. An owner that holds
                a lock and would wait for it for ever gets a `RedlockError`, as a task
                does.

            metadata: Data about the holder for others to see, besides the manager's
                *name*: a mapping of at most 1 KiB as JSON (default: none).

            retry: How to wait between attempts (default: as the manager has it).
                A fair wait is woken and needs none; only *wait* limits it, not the
                *attempts* of a `Retry`.

            on_lost: ``"cancel"`` (the default) cancels the body of ``async with``
                when the lease is lost and raises `LockLostError`; ``"flag"`` only
                sets `Lease.lost`, and `Lease.valid` is false. Work of the body in a
                thread goes on, see `docs/how-to/work-in-threads.md`.

        Raises:
            TypeError: An argument is of another type, such as a `float` for a
                time.

            ValueError: An argument is invalid.
        """
        if unknown:
            raise mistakes.unknown_options(unknown, called="lock()")
        given = (
            ttl, wait, auto_extend, max_hold, hold_at_least, fair, shared, permits, fencing,
            reentrant, on_lost, retry, id(retry),
        )  # fmt: skip
        try:
            options, key = self._options.cached(*given), self._resources.known.get(resources)
        except TypeError:  # an option or a resource is of a wrong type, or not hashable
            options, key = self._options.uncached(*given), None
        key = key or self._resources.keys(resources)
        packed = b"" if metadata is None else lock_value.packed(metadata)
        if permits is not None:
            if owner is not None and not isinstance(owner, OwnThread):
                raise ValueError(
                    f"owner must be None with permits={permits}:"
                    " each acquisition has its own permit"
                )
            all_permits = self._resources.permits(key, permits)
            spec = LockSpec(resources, all_permits, options, owner, packed)
            return Semaphore(self._opener, spec, all_permits)
        held = self._resources.share(key) if shared else key
        return Lock(self._opener, LockSpec(resources, held, options, owner, packed))

    def rw_lock(
        self, resource: str, /, *, on_lost: OnLost = "cancel", **options: Unpack[ReadArguments]
    ) -> ReadWriteLock[Lock]:
        """
        Return a read-write lock on *resource*: many may read at once, or one may write.

        ``async with docs.read():`` and ``async with docs.write(fencing=True) as lease:``
        acquire its two sides. Nothing is sent yet.

        Args:
            resource: The name that is locked, as for `lock`.

            on_lost: As for `lock` (default ``"cancel"``).

            options: Those of both sides, as for `lock`: *ttl*, *wait*, *auto_extend*,
                *max_hold*, *reentrant*, *owner* and *metadata*. Each call of
                `ReadWriteLock.read` and `ReadWriteLock.write` may change them.

        Raises:
            TypeError: An argument is of another type.

            ValueError: An argument is invalid.
        """
        return ReadWriteLock(self.lock, resource, {**options, "on_lost": on_lost})

    def semaphore(  # noqa: PLR0913 - the options of a semaphore, each with a default
        self,
        resource: str,
        /,
        *,
        permits: int,
        ttl: int | timedelta | None = None,
        wait: int | timedelta | None = None,
        auto_extend: bool = True,
        max_hold: int | timedelta | None = None,
        hold_at_least: int | timedelta = 0,
        fencing: bool | None = None,
        metadata: Mapping[str, object] | None = None,
        on_lost: OnLost = "cancel",
        **unknown: Unpack[mistakes.NoOptions],
    ) -> Semaphore:
        """
        Return a semaphore: at most *permits* hold *resource* at the same time.

        ``async with redlock.semaphore("api", permits=5) as lease:`` waits for a permit, whose
        number is `Lease.permit`. Nothing is sent yet.

        Args:
            resource: The name, as for `lock`. A lock of the same name is independent.

            permits: How many may hold it, 1 to ``1_000``. Programs that use different numbers hold
                at most the largest of them together.

            ttl: As for `lock`.

            wait: As for `lock`.

            auto_extend: As for `lock`.

            max_hold: As for `lock`.

            hold_at_least: As for `lock`. With it, a permit is used at most once in this time:
                *permits* calls in each such time.

            fencing: Whether the lease has a `Lease.fencing_token`, which is higher than that of
                every earlier holder of the same permit (default: as the manager has it). Tokens
                of different permits have no order.

            metadata: As for `lock`.

            on_lost: As for `lock`.

        Raises:
            TypeError: An argument is of another type.

            ValueError: An argument is invalid.
        """
        if unknown:
            raise mistakes.unknown_options(unknown, called="semaphore()")
        made = self.lock(
            resource,
            permits=of_type(permits, int, name="permits"),  # `lock` tests the range
            ttl=ttl,
            wait=wait,
            auto_extend=auto_extend,
            max_hold=max_hold,
            hold_at_least=hold_at_least,
            fencing=fencing,
            metadata=metadata,
            on_lost=on_lost,
        )
        return cast("Semaphore", made)

    def election(
        self,
        resource: str,
        /,
        *,
        ttl: int | timedelta | None = None,
        max_hold: int | timedelta | None = None,
        metadata: Mapping[str, object] | None = None,
    ) -> Election:
        """
        Return a candidate for the leadership of *resource*; nothing is sent yet.

        ``async for term in redlock.election("scheduler"):`` with ``async with term:`` in it
        runs its body whenever this host is the leader, see `Election`. The candidates of all
        programs lead in the order in which they came.

        Args:
            resource: The name that the leader locks, as for `lock`.

            ttl: For how many milliseconds nobody leads after a leader has died (default:
                as for `lock`).

            max_hold: After how many milliseconds a term ends, so that another host may
                lead (default: never).

            metadata: Data about the candidate for others to see, as for `lock`.

        Raises:
            TypeError: An argument is of another type.

            ValueError: An argument is invalid.
        """
        options: dict[str, Any] = {"ttl": ttl, "max_hold": max_hold, "metadata": metadata}
        return Election(self.lock(resource, fair=True, fencing=True, **options))

    @overload
    def locked(
        self,
        /,
        *templates: str,
        skip_if_locked: Literal[False] = False,
        **options: Unpack[LockArguments],
    ) -> Callable[[Callable[P, Coroutine[Any, Any, T]]], Callable[P, Coroutine[Any, Any, T]]]: ...

    @overload
    def locked(
        self,
        /,
        *templates: str,
        skip_if_locked: bool,
        **options: Unpack[LockArguments],
    ) -> Callable[
        [Callable[P, Coroutine[Any, Any, T]]], Callable[P, Coroutine[Any, Any, T | None]]
    ]: ...

    def locked(
        self,
        /,
        *templates: str,
        skip_if_locked: bool = False,
        **options: Unpack[LockArguments],
    ) -> Callable[
        [Callable[P, Coroutine[Any, Any, T]]], Callable[P, Coroutine[Any, Any, T | None]]
    ]:
        """
        Return a decorator: each call of an async function or method runs under a lock.

        ``@redlock.locked("invoice:{invoice_id}", ttl=10_000)`` above ``async def
        send(invoice_id)`` is equivalent to ``async with
        redlock.lock(f"invoice:{invoice_id}", ttl=10_000)`` around the body: each
        call acquires a lease of its own, and releases it when the function ends.
        The function keeps its name, docstring and signature. For a class or static
        method, put the decorator below ``@classmethod`` or ``@staticmethod``. A
        function that needs its `Lease` uses ``async with`` instead.

        Args:
            templates: One or several names to lock, as for `str.format`: a field
                begins with the name of a parameter, and may go on to attributes
                and items: ``{order.id}``, ``{items[0]}``, ``{self.name}``,
                ``{kwargs[name]}``, ``{number:04d}``. Default values of parameters
                are used too. A name without any field is the same for all calls.

            skip_if_locked: Whether a call does nothing and returns ``None`` if others
                hold the lock (default no), for jobs of which one at a time is enough.
                No call waits for a holder. Of several calls at the same moment one
                runs, if necessary after a few attempts (10 at most) with the delays
                of *retry*. If too few masters answer, the call raises an error and
                does not skip. With *permits* a call skips if no permit is free.

            options: Those of `Redlock.lock`. With *skip_if_locked*, *wait* can only
                be 0.

        Raises:
            TypeError: There is no template, or it is not a str; the decorated object
                is not an ``async def`` function; an option is unknown or of another
                type. A call raises it when its arguments do not fit the function,
                before anything is sent.

            ValueError: A template is malformed, has a field that is no parameter of
                the function, or nested fields; an option is invalid. A call raises
                it, before anything is sent, when a filled template is not a valid
                name, such as an empty one.

            LockNotAcquiredError: By a call: others held the lock for all of *wait*.

            QuorumUnavailableError: By a call: too few masters answered to decide.

            LockLostError: By a call: the lease was lost, and the function has no
                exception of its own; with *on_lost* "cancel" it was cancelled.

        An exception from filling a template, such as for a missing attribute or item,
        is raised by the call with a note that names the template.

        Cancellation:
            Of a call, as for ``async with``: if it still waits for the lock, it has no
            effect; otherwise the function is cancelled and the lock released.
        """
        return locked(self.lock, templates, options, skip_if_locked)

    async def adopt(
        self,
        /,
        exported: str,
        *,
        auto_extend: bool = True,
        max_hold: int | timedelta | None = None,
        on_lost: OnLost = "cancel",
        metadata: Mapping[str, object] | None = None,
        owner: object = None,
    ) -> Lease:
        """
        Continue a lease that another process has handed over by `Lease.export`.

        The adopted lease gets a new token. Hence at most one of several adoptions
        succeeds, and *exported* can't be used again. The resources, the permit, the ttl, the
        fencing token and the rest of *max_hold* and *hold_at_least* stay the same. The manager
        must have the same masters and *key_prefix*.

        Masters that do not answer are asked again for as long as the lease can last.

        Args:
            exported: The text that `Lease.export` has returned.

            auto_extend: As for `Redlock.lock` (default yes).

            max_hold: As for `Redlock.lock`, from the adoption on (default: the rest of
                the exporter's).

            on_lost: As for `Redlock.lock` (default ``"cancel"``).

            metadata: As for `Redlock.lock` (default: that of the exporter).

            owner: The owner of the lease here: locks with ``reentrant=True`` and an
                equal *owner* share the lease (default: the task that adopts it). The text
                does not contain an owner, which has a meaning in one process only.

        Raises:
            TypeError: An argument is of another type.

            ValueError: *exported* is damaged, or its ttl is longer than the manager's
                *max_ttl*.

            LockLostError: The lease is over, another process has adopted it, or too few
                masters have answered. The keys that were left of it are released.

            RedlockError: The manager is closed, or belongs to another event loop or
                process.

        Cancellation:
            The lock is released. A master that does not answer now gets the release when
            it answers again.
        """
        handed = lease_export.imported(exported)
        try:
            key = self._resources.keys(handed.resources)
            if handed.permit is not None:
                key = self._resources.permits(key, handed.permits).permit(handed.permit)
        except ValueError:
            key = None
        if key is None:  # raised here, so that no error about a name is its context
            raise ValueError(
                "exported names a resource that can't be locked here, with this key_prefix"
            )
        timing.at_least(timing.at_most(handed.ttl, self._opener.settings.max_ttl))
        of_type(auto_extend, bool, name="auto_extend")
        one_of(on_lost, ("cancel", "flag"), name="on_lost")
        at_most = None if max_hold is None else timing.milliseconds(max_hold, name="max_hold")
        packed = handed.metadata if metadata is None else lock_value.packed(metadata)
        session = self._opener.session()
        masters = session.masters
        began = masters.clock()
        hold = await adopt(
            session,
            key,
            handed,
            packed,
            renewed=auto_extend,
            max_hold=at_most,
            owner=owner,
        )
        lease = Lease(session, hold, hold.task, masters.clock(), on_lost)
        if (emitter := session.emitter) is not None:
            await announce(emitter, lease, masters.clock() - began)
        return lease

    async def inspect(self, resource: str, /) -> LockState:
        """
        Return the holder of *resource* as each master reports it; ``print`` it to read it.

        All masters are asked once and all replies awaited, so that one that hangs costs a
        master timeout. The view of a master that does not answer shows that; see
        `LockState.certain`.

        Raises:
            RedlockError: The manager is closed, or belongs to another event loop
                or process.

            TypeError, ValueError: As for `lock`.

        Cancellation:
            Nothing was asked that changes anything.
        """
        key, session = self._resources.key(resource), await self._opener.ready_session()
        return await survey.inspect(session.masters, resource, key)

    def watch(self, resource: str, /) -> LockWatch:
        """
        Return an iterator of states of *resource*: the present one, and then each change.

        ``async for state in redlock.watch("scheduler"): state.holder``. The masters push
        the changes, so each is told a little over 0.1 s after it has happened. If there were
        several meanwhile, only the newest state comes. Where masters can't push, and for the
        readers of a lock with *shared*, a change is told after at most 10 s. All masters
        are asked each time, as by `inspect`. They also push each extension of the holder's
        lease, and are asked for the value of the key then.

        Do not decide by a state whether to write: it may be out of date when it arrives.

        Raises:
            TypeError, ValueError: As for `lock`.
        """
        return LockWatch(self._opener, resource, self._resources.key(resource))

    async def is_locked(self, resource: str, /) -> bool:
        """
        Return whether *resource* is held: a majority of the masters keeps one value.

        The answer may be out of date when it arrives. To exclude others, acquire the
        lock, with ``wait=0`` or `Lock.try_acquire`.

        Raises:
            QuorumUnavailableError: Too few masters have answered to decide.

            RedlockError: The manager is closed, or belongs to another event loop
                or process.

            TypeError, ValueError: As for `lock`.

        Cancellation:
            Nothing was asked that changes anything.
        """
        key, session = self._resources.key(resource), await self._opener.ready_session()
        return await survey.is_locked(session.masters, resource, key)

    async def find_locks(self, prefix: str = "", /, *, limit: int = MOST_FOUND) -> FoundLocks:
        """
        Return the locks whose names begin with *prefix*, as `inspect` shows each of them.

        Semaphores are found too, each with the number of its permits that are held
        (`FoundLocks.semaphores`).

        Each master is scanned in small steps (``SCAN``, never ``KEYS``), which needs one
        permission more than `inspect`: ``+scan``. Without a *key_prefix*, all strings on the
        masters are looked at, also those of other programs. A lock that is acquired or
        released meanwhile may be found or not.

        Args:
            prefix: How the names begin; the special characters of patterns have no meaning
                in it.

            limit: The most names of locks, and of semaphores, to look at; if there are
                more, any of them may be left out, and `FoundLocks.complete` is false.

        Raises:
            RedlockError: The manager is closed, or belongs to another event loop
                or process.

            TypeError, ValueError: An argument is invalid.

        Cancellation:
            Nothing was asked that changes anything.
        """
        begin = text(prefix, name="prefix") if of_type(prefix, str, name="prefix") else b""
        positive(limit, name="limit")
        session = await self._opener.ready_session()
        whole = self._resources.prefix + begin
        return await scan.find_locks(session.masters, whole, limit, self._resources.name_of)

    async def force_release(self, resource: str, /) -> bool:
        """
        Release *resource* for any holder, also of another library, and wake waiters.

        The lock can't be acquired for a moment, a little over 0.1 s and two master timeouts
        of this manager. In that time the holder is notified, its lease is lost, and its body
        is cancelled: at once if it is of this process, or if one master pushes the change of
        the key to it (``client|tracking``), as with this library. A holder with a longer
        master timeout, because it is farther away, may be notified after others have got
        the lock: give a *master_timeout* here as long as the longest of all programs. A
        holder that can't be notified finds out at its next extension, after a third of its
        ttl, or when its validity is over if it is cut off; another library may not find
        out. Only a fencing token refuses its writes meanwhile: that of the next holder is
        higher. A master that does not answer releases the lock as soon as it does.

        A later holder keeps the lock, unless its library uses one value for several holders.
        A key that can't be a lock is never touched: a key of another type, one without a
        ttl (except a lock of this library whose ttl was removed), one of more than 2 KiB;
        unless it has the very value of a lock on another master. On a minority of the
        masters it is left as it is, and the lock is released on the others; on a majority,
        or where no master keeps a lock, it is an error.

        Returns:
            Whether any master, even a minority, kept a lock.

        Raises:
            QuorumUnavailableError: Too few masters have answered to find or release it.
                Those that have answered release it anyway.

            RedlockError: The keys on the masters can't be a lock, and nothing was changed;
                or the manager is closed, or belongs to another event loop or process.

            TypeError, ValueError: As for `lock`.

        Cancellation:
            If the masters have not been asked to release it, nothing has happened.
            Otherwise they do, and the lock is free after a moment; only the wait ends. No
            key of this call stays.
        """
        key, session = self._resources.key(resource), await self._opener.ready_session()
        return await ForcedRelease(session, resource, key).run()

    async def check(self, *, wait: int | timedelta = CHECK_WAIT) -> None:
        """
        Check that a majority of the masters votes; no lock is acquired.

        Each master is asked once, by a command that reads and changes no key, and has the
        master timeout to answer. The call returns with the first majority, so a minority that
        hangs does not delay it. It is meant for readiness probes: any number of programs may
        call it every second. Like all methods it connects on first use. Afterwards methods that
        only look, such as `inspect`, and `force_release`, don't wait any more for connections, or
        for what the restart guard finds out at first: they tell such masters as ``unreachable`` or
        ``quarantined``.

        A master that answers but can't write, for lack of memory, still counts: only an
        acquisition finds that. Do not let a liveness probe call it: to restart the program
        brings no master back.

        Args:
            wait: How long to wait for connections and answers together, in milliseconds or
                as a `timedelta` (default ``1_000``).

        Raises:
            QuorumUnavailableError: No majority votes; the error has the vote of each
                master. Its *resources* are empty, and *attempts* is 0.

            RedlockError: The manager is closed, or belongs to another event loop
                or process.

            TypeError, ValueError: *wait* is not a positive time.

        Cancellation:
            Nothing was asked that changes anything.
        """
        await survey.check(self._opener.session(), timing.milliseconds(wait, name="wait"))

    def statistics(self) -> Statistics:
        """
        Return the present numbers of the manager: masters, rounds, leases, waiters, debts.

        Nothing is sent, a manager that is not open is not opened, and any thread may ask. A
        manager of the parent process, or of an event loop that was closed, is not open.
        """
        return self._opener.statistics()

    async def __aenter__(self) -> Self:
        """
        Connect to the masters, as the first acquisition would.

        Raises:
            RedlockError: It is in use by another event loop, or by the process
                that this one was forked from.

        Cancellation:
            As at the end of the block.
        """
        await self._opener.enter()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """
        Close, at the end of the last block that has entered it; see `aclose`.

        An exception of the body is raised unchanged, also where `aclose` would raise an error:
        that is added to it as a note.

        Raises:
            RedlockError: As for `aclose`, if the body has no exception of its own.

        Cancellation:
            As for `aclose`.
        """
        try:
            await self._opener.leave()
        except RedlockError as refused:
            # Such as SystemExit in a forked child, whose exit status would be another one.
            if error is None or isinstance(error, GeneratorExit):
                raise
            error.add_note(str(refused))

    async def aclose(self) -> None:
        """
        End all leases, release them on the masters, and close the connections.

        Leases that are still held are lost: their bodies are cancelled. Replies
        are awaited for one master timeout at most. A master that can't be reached
        keeps its keys until their ttl is over. Closing twice is harmless;
        ``async with`` opens a closed manager again. Blocks of ``async with redlock:`` may be
        nested, or overlap: the end of the last one closes it, and this method closes it at once.
        Then open it again only when all blocks have ended: the end of one closes it again.

        Raises:
            RedlockError: It is in use by another event loop, or by the process
                that this one was forked from.

        Cancellation:
            Everything is closed, only the wait for the masters is cut short.
        """
        await self._opener.close()


class OptionsCache:
    """
    The options of `Redlock.lock`: checked once for each set of them, then found in a cache.

    The key of the cache holds the values and their types. Values alone would not do:
    ``10_000 == 10_000.0`` and ``True == 1``, and both hash alike, so a value of a wrong type
    would be found instead of being refused.

    `cached` and `uncached` take the parameters of `_checked`, by position. `cached` also raises
    a TypeError for a value that is not hashable.
    """

    __slots__ = ("_drift_factor", "_fencing", "_max_ttl", "_retry", "cached")

    def __init__(self, *, max_ttl: int, drift_factor: float, fencing: bool, retry: Retry) -> None:
        self._max_ttl = max_ttl
        self._drift_factor = drift_factor
        self._fencing = fencing
        self._retry = retry
        self.cached: Callable[..., LockOptions] = functools.lru_cache(MOST_OPTIONS, typed=True)(
            self._checked
        )

    def uncached(self, *given: Any) -> LockOptions:
        """
        Check the options after `cached` has failed.

        An instance of a subclass of int may be valid and not hashable.
        """
        try:
            return self._checked(*given)
        except (TypeError, ValueError) as error:
            raise error from None  # the error of the cache says the same, or less

    def _checked(  # noqa: PLR0913, PLR0917 - the options of a lock, as a key of the cache
        self,
        ttl: int | timedelta | None,
        wait: int | timedelta | None,
        auto_extend: bool,
        max_hold: int | timedelta | None,
        hold_at_least: int | timedelta,
        fair: bool | None,
        shared: bool,
        permits: int | None,
        fencing: bool | None,
        reentrant: bool,
        on_lost: OnLost,
        retry: Retry | None,
        # A retry is compared by its id as well, because a subclass may hold more than its fields.
        # The cache keeps the retry alive, so the id is not used again.
        _retry_id: int,
    ) -> LockOptions:
        if of_type(shared, bool, name="shared"):
            _check_shared(hold_at_least, fair, fencing, retry)
            fair, fencing = True, False
        if permits is not None:
            from_to(permits, 1, MOST_PERMITS, name="permits")
            _check_permits(permits, fair, shared, reentrant, retry)
            fair = True
        ttl = min(timing.TTL, self._max_ttl) if ttl is None else ttl
        ttl = timing.at_most(timing.milliseconds(ttl, name="ttl"), self._max_ttl)
        return LockOptions(
            ttl=timing.at_least(ttl),
            validity=timing.validity(ttl, factor=self._drift_factor),
            wait=None if wait is None else timing.milliseconds(wait, name="wait", zero=True),
            max_hold=None if max_hold is None else timing.milliseconds(max_hold, name="max_hold"),
            hold_at_least=timing.milliseconds(hold_at_least, name="hold_at_least", zero=True),
            on_lost=one_of(on_lost, ("cancel", "flag"), name="on_lost"),
            auto_extend=of_type(auto_extend, bool, name="auto_extend"),
            fair=fair is not None and of_type(fair, bool, name="fair"),
            permits=int(permits or 0),  # that of a subclass need not be hashable
            reentrant=of_type(reentrant, bool, name="reentrant"),
            fencing=self._fencing if fencing is None else of_type(fencing, bool, name="fencing"),
            retry=self._retry if retry is None else of_type(retry, Retry, name="retry"),
        )


def _check_shared(
    hold_at_least: int | timedelta, fair: bool | None, fencing: bool | None, retry: Retry | None
) -> None:
    """Raise ValueError for an option that a lock with *shared* can't have."""
    if fencing:
        raise ValueError("fencing must not be True with shared=True: only writers get a token")
    if hold_at_least:
        raise ValueError("hold_at_least must be 0 with shared=True: only writers may have it")
    if fair is not None and not fair:
        raise ValueError("fair must not be False with shared=True: readers wait in the fair queue")
    if retry is not None:
        raise ValueError("retry must be None with shared=True: readers wait in the fair queue")


def _check_permits(
    permits: int, fair: bool | None, shared: bool, reentrant: bool, retry: Retry | None
) -> None:
    """Raise ValueError for an option that a semaphore can't have."""
    with_permits = f"with permits={permits}"
    if shared:
        raise ValueError(f"shared must not be True {with_permits}: a semaphore has no readers")
    if fair is not None and not fair:
        raise ValueError(f"fair must not be False {with_permits}: its waiters wait in queues")
    if reentrant:
        raise ValueError(
            f"reentrant must not be True {with_permits}: each acquisition has its own permit"
        )
    if retry is not None:
        raise ValueError(f"retry must be None {with_permits}: its waiters wait in queues")
