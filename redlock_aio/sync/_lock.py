"""A lock that threads can acquire, and the lease that each acquisition returns."""

import contextlib
import inspect
import threading
from collections.abc import Callable, Coroutine, Mapping
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Any, Never, TypeAlias, cast

import redlock_aio
from redlock_aio import RedlockError, Retry
from redlock_aio._api.faces import OwnThread
from redlock_aio._api.lock import GENERATORS, Site, caller_of, left_by, place_of
from redlock_aio._rules.mistakes import OF_A_LEASE
from redlock_aio.sync._acquisition import Entered, ThreadAcquisition
from redlock_aio.sync._callbacks import OnLostCall
from redlock_aio.sync._lease import Lease
from redlock_aio.sync._mistakes import OnlyForThreads
from redlock_aio.sync._portal import PortalOpener

SUSPENDED = inspect.CO_COROUTINE | GENERATORS
"""The flags of functions of which several may be in a block in one thread, or leave in another."""

Acquire: TypeAlias = Callable[[redlock_aio.Lock], Coroutine[Any, Any, redlock_aio.Lease]]


class Lock(OnlyForThreads):
    """
    A lock on one or several resources, with its options; made by `redlock_aio.sync.Redlock.lock`.

    The `Lock` itself is never held. It can be used again, and by several threads at
    once, and each acquisition is a `redlock_aio.sync.Lease` of its own.

    ``with lock as lease:`` acquires, runs the body, and releases.
    """

    __slots__ = (
        "_acquire",
        "_checked",
        "_entered",
        "_on_lost",
        "_opener",
        "_options",
        "_resources",
    )

    def __init__(
        self,
        opener: PortalOpener,
        resources: tuple[str, ...],
        options: Mapping[str, Any],
        on_lost: OnLostCall | None,
        acquire: Acquire = redlock_aio.Lock.acquire,
    ) -> None:
        self._opener = opener
        self._resources = resources
        self._options = options
        self._on_lost = on_lost
        self._acquire = acquire
        self._checked = self._of(opener.redlock, None)
        # As it is now: each acquisition reads it, and the caller may change the mapping.
        self._options = {**options, "metadata": self._checked.metadata}
        self._entered: list[Entered] = []

    def __repr__(self) -> str:
        return repr(self._checked)

    @property
    def resources(self) -> tuple[str, ...]:
        """The names that it locks, all or none."""
        return self._resources

    @property
    def owner(self) -> object:
        """Its option *owner*; ``None`` without one."""
        return self._options.get("owner")

    @property
    def metadata(self) -> dict[str, object] | None:
        """A copy of its option *metadata*, as others see it; ``None`` without one."""
        return self._checked.metadata

    @property
    def retry(self) -> Retry:
        """How it waits between attempts: its option *retry*, or that of the manager."""
        return self._checked.retry

    def _of(self, redlock: redlock_aio.Redlock, owner: threading.Thread | None) -> redlock_aio.Lock:
        """Return the lock of a manager, for *owner* unless the options have one."""
        # In a forked child the manager is another one than that of `_checked`.
        options = self._options
        if owner is not None and options.get("owner") is None:
            # A semaphore takes no other owner: a thread may have several permits.
            is_semaphore = options.get("permits") is not None
            options = {**options, "owner": OwnThread(owner) if is_semaphore else owner}
        return redlock.lock(*self._resources, **options)

    def acquire(self) -> Lease:
        """
        Wait for the lock and return a lease on it.

        See `redlock_aio.Lock.acquire`. The threads of a process take turns in the order in
        which they came. If the wait is interrupted, such as by a KeyboardInterrupt, the
        lock is not acquired.

        Returns:
            A lease that is extended automatically, unless *auto_extend* is off.

        Raises:
            LockNotAcquiredError: Others held it to the end.

            QuorumUnavailableError: Too few masters answered to decide, or so many refuse
                permanently that waiting is useless.

            RedlockError: The manager is closed; or this thread, or its *owner*, holds the lock
                already and would wait for itself.
        """
        acquire = cast("Callable[[], Lease]", self._acquisition().run)
        return acquire()

    def _acquisition(
        self, entered: list[Entered] | None = None, place: Site | None = None
    ) -> ThreadAcquisition:
        owner = threading.current_thread()
        return ThreadAcquisition(
            self._opener,
            lambda redlock: self._acquire(self._of(redlock, owner)),
            self._on_lost,
            entered,
            place,
        )

    def try_acquire(self) -> Lease | None:
        """
        Try once to acquire the lock, whatever *wait* is.

        Returns:
            A lease, or ``None`` if others hold the lock or too few masters answered.

        Raises:
            QuorumUnavailableError: Too many masters have 10,000 unanswered requests of
                this process.

            RedlockError: The manager is closed; or this thread, or its *owner*, reads what it
                wants for itself.
        """
        owner = threading.current_thread()
        return ThreadAcquisition(
            self._opener, lambda redlock: self._of(redlock, owner).try_acquire(), self._on_lost
        ).run()

    def __enter__(self) -> Lease:
        """
        Acquire the lock; see `acquire`.

        If the lease is lost while the body runs, the body goes on: see `Lease.ensure_valid`
        and *on_lost*.
        """
        place = place_of(caller_of(inspect.currentframe()), SUSPENDED)
        acquisition = self._acquisition(self._entered, place)
        enter = cast("Callable[[], Lease]", acquisition.run)
        return enter()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """
        Release the lease that was entered where the block began; see `Lease.__exit__`.

        Raises:
            LockLostError: The lease was lost, and the body has no exception of its own.
        """
        entered: Entered | None = None
        try:
            entered = self._left(caller_of(inspect.currentframe()))
            if entered is not None:
                self._entered.remove(entered)
                entered.lease.__exit__(kind, error, trace)
        except BaseException as stop:
            # Interrupted, perhaps before the lease was found: nobody else would release it.
            entered = entered or self._left(caller_of(inspect.currentframe()))
            if entered is not None:
                with contextlib.suppress(ValueError):
                    self._entered.remove(entered)
                entered.lease._give_up(stop)  # noqa: SLF001 - of this package
            raise
        if entered is None:  # raised here: behind an error, the block of another thread is not left
            raise RedlockError(
                f"{self!r} is left by a thread that has not entered it: make a lock for each"
                " block, or use 'with lock.acquire() as lease'",
                "left-by-another-thread",
            )

    def _left(self, frame: FrameType | None) -> Entered | None:
        """
        Return the block that *frame* leaves.

        If this thread has entered none, it is the only one; ``None`` if there are others.
        """
        entered = list(self._entered)
        here = place_of(frame, SUSPENDED), threading.get_ident()
        blocks = {number: block for number, (block, _) in enumerate(entered)}
        if (number := left_by(frame, here, blocks)) is not None:
            return entered[number]
        return entered[0] if len(entered) == 1 else None

    if not TYPE_CHECKING:  # with these methods, type checkers would accept their uses

        def __await__(self) -> Never:
            raise TypeError(
                "a Lock of redlock_aio.sync can't be awaited: use 'with lock' or 'lock.acquire()'"
                " in a thread, or redlock_aio.Redlock for asyncio"
            )

        def __getattr__(self, name: str) -> Never:
            what = f"{type(self).__name__!r} object has no attribute {name!r}"
            if name in OF_A_LEASE or (not name.startswith("_") and hasattr(Lease, name)):
                what += (
                    ": a Lock holds nothing; use the lease, which acquire() returns and"
                    " 'with lock as lease' names, as in 'lease.release()'"
                )
            elif name in {"locked", "is_locked"}:
                what += ": use 'redlock.is_locked(name)'"
            raise AttributeError(what, name=name, obj=self)
