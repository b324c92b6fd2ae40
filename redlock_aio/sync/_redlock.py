"""
The manager of one set of masters, for threads.

Each method does in the thread of the manager's event loop what the method of the same name
does in `redlock_aio.Redlock`. A test compares names, parameters, defaults and first sentences.
"""

import functools
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import timedelta
from types import TracebackType
from typing import (
    TYPE_CHECKING,
    Any,
    Literal,
    ParamSpec,
    Self,
    TypeVar,
    Unpack,
    cast,
    overload,
)

from redis.asyncio import Redis

import redlock_aio
from redlock_aio import FoundLocks, LockState, ReadWriteLock, RedlockError, Retry, Statistics
from redlock_aio._api.faces import (
    AnyCluster,
    CommonLockArguments,
    ManagerArguments,
    ReadArguments,
    cluster_masters,
)
from redlock_aio._rules.mistakes import NoOptions
from redlock_aio.events import Listener
from redlock_aio.sync._acquisition import ThreadAcquisition
from redlock_aio.sync._callbacks import OnLostCall, checked_on_lost, contained
from redlock_aio.sync._decorator import FunctionDecorator, SyncLockArguments
from redlock_aio.sync._election import Election, LockWatch
from redlock_aio.sync._lease import Lease
from redlock_aio.sync._lock import Lock
from redlock_aio.sync._mistakes import OnlyForThreads
from redlock_aio.sync._portal import PortalOpener
from redlock_aio.sync._semaphore import Semaphore

if TYPE_CHECKING:
    from redlock_aio.testing import FakeMaster

P = ParamSpec("P")
T = TypeVar("T")


class Redlock(OnlyForThreads):
    """
    The manager of one set of masters.

    It can be made at module level: it connects on first use, and is closed by the end of
    ``with``, by `close`, or when the interpreter exits. All threads of the process may use it
    at once. In a forked child it connects anew; the leases of the parent stay the parent's.

    The options are those of `redlock_aio.Redlock`. The *listener* is called in the thread of
    the event loop, and must not block.

    Args:
        masters: Independent Redis or Valkey servers: URLs (``redis://``, ``rediss://``,
            ``valkey://``, ``valkeys://``, ``unix://``, or ``redis+sentinel://`` for a master
            behind Sentinel) or `redis.asyncio.Redis` clients, whose connection settings are
            taken over. A single one need not be in a list.

    Raises:
        TypeError: An argument is of another type.

        ValueError: An argument is invalid: no masters, one named twice, a URL that
            can't be parsed, a time that is not positive.
    """

    def __init__(  # noqa: PLR0913 - the options of a manager, each with a default
        self,
        masters: "str | Redis | FakeMaster | Iterable[str | Redis | FakeMaster]",
        *,
        master_timeout: int | timedelta | None = None,
        drift_factor: float = 0.01,
        retry: Retry = Retry(),  # noqa: B008 - a frozen value
        key_prefix: str = "",
        fencing: bool = False,
        max_waiters: int = 1_000,
        max_ttl: int | timedelta = 60_000,
        restart_guard: Literal["auto", "strict", "fsync-always", "off"] = "auto",
        listener: Listener | None = None,
        name: str | None = None,
        **unknown: Unpack[NoOptions],
    ) -> None:
        if isinstance(masters, Iterable) and not isinstance(masters, str | bytes):
            masters = list(masters)  # a forked child reads them again
        self._opener = PortalOpener(
            functools.partial(
                redlock_aio.Redlock,
                masters,
                master_timeout=master_timeout,
                drift_factor=drift_factor,
                retry=retry,
                key_prefix=key_prefix,
                fencing=fencing,
                max_waiters=max_waiters,
                max_ttl=max_ttl,
                restart_guard=restart_guard,
                listener=contained(listener),
                name=name,
                **unknown,
            )
        )
        self._masters = len(self._opener.redlock.statistics().masters)

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

        See `redlock_aio.Redlock.of_cluster`, which has the same parameters.

        Raises:
            TypeError: An argument is of another type.

            ValueError: An argument is invalid.
        """
        found: Any = cluster_masters(cluster, masters, tags)
        return cls(found, **options)

    def __repr__(self) -> str:
        return f"<Redlock {self._masters} masters, {self._opener.state}, in a thread of its own>"

    @property
    def master_timeout(self) -> int:
        """
        The current timeout for the reply of one master, in milliseconds.

        It is the option *master_timeout*, or learned from round trips.
        """
        return self._opener.redlock.master_timeout

    def lock(
        self,
        *resources: str,
        on_lost: OnLostCall | None = None,
        **options: Unpack[CommonLockArguments],
    ) -> Lock:
        """
        Return a lock on *resources*; nothing is sent yet.

        The options and their defaults are those of `redlock_aio.Redlock.lock`, except these:

        Args:
            resources: The names that are locked, all or none.

            on_lost: Called with the `LockLostError` when the lease is lost before it is
                released or the block ends: once, in a new thread, which no other lease
                waits for. What it raises is logged. It can set an event that the work
                looks at, or end the process; it can't stop a thread (default: nothing
                is called).

            options: *ttl*, *wait*, *auto_extend*, *max_hold*, *hold_at_least*, *fair*,
                *shared*, *permits*, *fencing*, *reentrant*, *metadata* and *retry*, as there.
                *owner* is the holder, compared by ``==`` (default: the thread that acquires the
                lease); another thread of the same owner shares it, with *reentrant*.

        Raises:
            TypeError: An argument is of another type, such as a `float` for a
                time.

            ValueError: An argument is invalid.
        """
        kind = Lock if options.get("permits") is None else Semaphore
        return kind(self._opener, resources, {**options}, checked_on_lost(on_lost))

    def rw_lock(
        self,
        resource: str,
        /,
        *,
        on_lost: OnLostCall | None = None,
        **options: Unpack[ReadArguments],
    ) -> ReadWriteLock[Lock]:
        """
        Return a read-write lock on *resource*: many may read at once, or one may write.

        See `redlock_aio.Redlock.rw_lock`.

        Args:
            resource: The name that is locked.

            on_lost: As for `lock`.

            options: Those of both sides, as for `lock`: *ttl*, *wait*, *auto_extend*,
                *max_hold*, *reentrant*, *owner* and *metadata*.

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
        on_lost: OnLostCall | None = None,
        **unknown: Unpack[NoOptions],
    ) -> Semaphore:
        """
        Return a semaphore: at most *permits* hold *resource* at the same time.

        See `redlock_aio.Redlock.semaphore`. ``with redlock.semaphore("api", permits=5) as lease:``
        waits for a permit, whose number is `Lease.permit`.

        Args:
            resource: The name, as for `lock`. A lock of the same name is independent.

            permits: How many may hold it, 1 to ``1_000``.

            ttl: As for `lock`.

            wait: As for `lock`.

            auto_extend: As for `lock`.

            max_hold: As for `lock`.

            hold_at_least: As for `lock`: *permits* calls in each such time.

            fencing: As for `lock`. Tokens of different permits have no order.

            metadata: As for `lock`.

            on_lost: As for `lock`.

        Raises:
            TypeError: An argument is of another type.

            ValueError: An argument is invalid.
        """
        options: dict[str, Any] = {
            "permits": permits,
            "ttl": ttl,
            "wait": wait,
            "auto_extend": auto_extend,
            "max_hold": max_hold,
            "hold_at_least": hold_at_least,
            "fencing": fencing,
            "metadata": metadata,
        }
        self._opener.redlock.semaphore(resource, **options, **unknown)  # raises their errors
        return Semaphore(self._opener, (resource,), options, checked_on_lost(on_lost))

    @overload
    def locked(
        self,
        /,
        *templates: str,
        skip_if_locked: Literal[False] = False,
        **options: Unpack[SyncLockArguments],
    ) -> Callable[[Callable[P, T]], Callable[P, T]]: ...

    @overload
    def locked(
        self, /, *templates: str, skip_if_locked: bool, **options: Unpack[SyncLockArguments]
    ) -> Callable[[Callable[P, T]], Callable[P, T | None]]: ...

    def locked(
        self, /, *templates: str, skip_if_locked: bool = False, **options: Unpack[SyncLockArguments]
    ) -> Callable[[Callable[P, T]], Callable[P, T | None]]:
        """
        Return a decorator: each call of a function or method runs under a lock.

        See `redlock_aio.Redlock.locked`. ``@redlock.locked("invoice:{invoice_id}")`` above
        ``def send(invoice_id)`` is equivalent to ``with redlock.lock(f"invoice:{invoice_id}")``
        around the body.

        Args:
            templates: One or several names to lock, with fields as for `str.format`.

            skip_if_locked: Whether a call does nothing and returns ``None`` if others
                hold the lock (default no).

            options: Those of `Redlock.lock`.

        Raises:
            TypeError, ValueError: The function is not a plain one, or as for
                `redlock_aio.Redlock.locked`.

            LockNotAcquiredError: By a call: others held the lock for all of *wait*.

            QuorumUnavailableError: By a call: too few masters answered to decide.

            LockLostError: By a call: the lease was lost, and the function has no
                exception of its own.
        """
        given: dict[str, Any] = {**options}
        on_lost = checked_on_lost(given.pop("on_lost", None))
        self._opener.redlock.locked(*templates, skip_if_locked=skip_if_locked, **given)  # checks
        return FunctionDecorator(self._opener, templates, given, on_lost, skip_if_locked)

    def adopt(
        self,
        /,
        exported: str,
        *,
        auto_extend: bool = True,
        max_hold: int | timedelta | None = None,
        on_lost: OnLostCall | None = None,
        metadata: Mapping[str, object] | None = None,
        owner: object = None,
    ) -> Lease:
        """
        Continue a lease that another process has handed over by `Lease.export`.

        See `redlock_aio.Redlock.adopt`. The other process may use `redlock_aio.Lease.export`
        as well.

        Args:
            exported: The text that `Lease.export` has returned.

            auto_extend: As for `Redlock.lock` (default yes).

            max_hold: As for `Redlock.lock`, from the adoption on (default: the rest of
                the exporter's).

            on_lost: As for `Redlock.lock`.

            metadata: As for `Redlock.lock` (default: that of the exporter).

            owner: The owner of the lease here (default: this thread).

        Raises:
            TypeError: An argument is of another type.

            ValueError: *exported* is damaged, or its ttl is longer than the manager's
                *max_ttl*.

            LockLostError: The lease is over, another process has adopted it, or too few
                masters have answered. The keys that were left of it are released.

            RedlockError: The manager is closed.
        """
        if owner is None:
            owner = threading.current_thread()
        acquisition = ThreadAcquisition(
            self._opener,
            lambda redlock: redlock.adopt(
                exported,
                auto_extend=auto_extend,
                max_hold=max_hold,
                metadata=metadata,
                owner=owner,
            ),
            checked_on_lost(on_lost),
        )
        adopt = cast("Callable[[], Lease]", acquisition.run)
        return adopt()

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

        See `redlock_aio.Redlock.election`. ``for term in redlock.election("scheduler"):`` with
        ``with term:`` in it runs its body whenever this host is the leader.

        Args:
            resource: The name that the leader locks, as for `lock`.

            ttl: For how many milliseconds nobody leads after a leader has died (default:
                as for `lock`).

            max_hold: After how many milliseconds a term ends (default: never).

            metadata: Data about the candidate for others to see, as for `lock`.

        Raises:
            TypeError: An argument is of another type.

            ValueError: An argument is invalid.
        """
        options: dict[str, Any] = {"ttl": ttl, "max_hold": max_hold, "metadata": metadata}
        return Election(self.lock(resource, fair=True, fencing=True, **options))

    def watch(self, resource: str, /) -> LockWatch:
        """
        Return an iterator of states of *resource*: the present one, and then each change.

        See `redlock_aio.Redlock.watch`.

        Raises:
            TypeError, ValueError: As for `lock`.
        """
        return LockWatch(self._opener, resource)

    def inspect(self, resource: str, /) -> LockState:
        """
        Return the holder of *resource* as each master reports it; ``print`` it to read it.

        See `redlock_aio.Redlock.inspect`.

        Raises:
            RedlockError: The manager is closed.

            TypeError, ValueError: As for `Redlock.lock`.
        """
        portal = self._opener.opened()
        return portal.call(portal.redlock.inspect, resource)

    def is_locked(self, resource: str, /) -> bool:
        """
        Return whether *resource* is held: a majority of the masters keeps one value.

        See `redlock_aio.Redlock.is_locked`.

        Raises:
            QuorumUnavailableError: Too few masters have answered to decide.

            RedlockError: The manager is closed.

            TypeError, ValueError: As for `Redlock.lock`.
        """
        portal = self._opener.opened()
        return portal.call(portal.redlock.is_locked, resource)

    def find_locks(self, prefix: str = "", /, *, limit: int = 1_000) -> FoundLocks:
        """
        Return the locks whose names begin with *prefix*, as `inspect` shows each of them.

        See `redlock_aio.Redlock.find_locks`.

        Raises:
            RedlockError: The manager is closed.

            TypeError, ValueError: An argument is invalid.
        """
        portal = self._opener.opened()
        return portal.call(functools.partial(portal.redlock.find_locks, prefix, limit=limit))

    def force_release(self, resource: str, /) -> bool:
        """
        Release *resource* for any holder, also of another library, and wake waiters.

        See `redlock_aio.Redlock.force_release`. The *on_lost* of a holder that is
        a thread is called, and the thread goes on.

        Returns:
            Whether any master, even a minority, kept a lock.

        Raises:
            QuorumUnavailableError: Too few masters have answered to find or release it.
                Those that have answered release it anyway.

            RedlockError: The keys on the masters can't be a lock, and nothing was changed;
                or the manager is closed.

            TypeError, ValueError: As for `lock`.
        """
        portal = self._opener.opened()
        return portal.call(portal.redlock.force_release, resource)

    def check(self, *, wait: int | timedelta = 1_000) -> None:
        """
        Check that a majority of the masters votes; no lock is acquired.

        See `redlock_aio.Redlock.check`.

        Raises:
            QuorumUnavailableError: No majority votes.

            RedlockError: The manager is closed.

            TypeError, ValueError: *wait* is not a positive time.
        """
        portal = self._opener.opened()
        portal.call(functools.partial(portal.redlock.check, wait=wait))

    def statistics(self) -> Statistics:
        """
        Return the present numbers of the manager: masters, rounds, leases, waiters, debts.

        Nothing is sent, and a manager that is not open is not opened. No call waits for the
        thread of the event loop, so it may also be made there, as by the listener.
        """
        return self._opener.redlock.statistics()

    def __enter__(self) -> Self:
        """
        Connect to the masters, as the first acquisition would.

        A manager that was closed is opened again.
        """
        self._opener.enter()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """
        Close, at the end of the last block that has entered it; see `close`.

        An exception of the body is raised unchanged, also where `close` would raise an error:
        that is added to it as a note.

        Raises:
            RedlockError: As for `close`, if the body has no exception of its own.
        """
        try:
            self._opener.close(block=True)
        except RedlockError as refused:
            # Such as SystemExit in a forked child, whose exit status would be another one.
            if error is None or isinstance(error, GeneratorExit):
                raise
            error.add_note(str(refused))

    def close(self) -> None:
        """
        End all leases, release them on the masters, and close the connections.

        Leases that are still held are lost: their *on_lost* is called. Threads that wait for
        a lock get a `RedlockError`. Replies are awaited for one master timeout at most. A
        master that can't be reached keeps its keys until their ttl is over. Closing twice is
        harmless; ``with`` opens a closed manager again. Blocks of ``with redlock:`` may be
        nested, or overlap: the end of the last one closes it, and this method closes it at once.
        Then open it again only when all blocks have ended: the end of one closes it again.

        Raises:
            RedlockError: It is called in the thread of the event loop, as by the listener.
        """
        self._opener.close()
