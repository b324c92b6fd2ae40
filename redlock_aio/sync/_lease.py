"""
One acquisition of a lock by a thread, and how the thread learns that it was lost.

A loss is noticed in the event loop, by a task of the lease that waits for it. The task sets
`Lease.lost`, and starts a thread for *on_lost*: in the loop a callback that blocks would keep
all other leases from being extended. The task knows the lease by a weak reference only, so
that a lease which is dropped without a release is not extended any more, and ends.
"""

import asyncio
import logging
import threading
import weakref
from collections.abc import Callable, Coroutine
from datetime import timedelta
from types import TracebackType
from typing import Any, Self, TypeVar

import redlock_aio
from redlock_aio import LockLostError, LockNotHeldError, LossCause, RedlockError, Vote
from redlock_aio.events import Mode
from redlock_aio.sync._callbacks import OnLostCall
from redlock_aio.sync._mistakes import OnlyForThreads, SyncLossEvent
from redlock_aio.sync._portal import Portal, PortalOpener

T = TypeVar("T")

_log = logging.getLogger("redlock_aio")


class Lease(OnlyForThreads):
    """
    One acquisition of a lock. It can be extended and released, and it can be lost.

    Made by a `redlock_aio.sync.Lock`, or by `redlock_aio.sync.Redlock.adopt`. ``with lease:``
    releases it at the end. All threads of the process may use it. A lease that is dropped
    without a release is not extended any more, warns with a `ResourceWarning`, and ends
    with its ttl.
    """

    __slots__ = (
        "__weakref__", "_entered", "_lease", "_lost", "_opener", "_portal", "_released",
        "_watching",
    )  # fmt: skip

    def __init__(
        self,
        opener: PortalOpener,
        portal: Portal,
        lease: redlock_aio.Lease,
        on_lost: OnLostCall | None,
        *,
        entered: bool = False,
    ) -> None:
        # Made in the event loop, in the turn in which the lock was acquired.
        self._opener = opener  # kept: a manager that is dropped is closed
        self._portal = portal
        self._lease = lease
        self._lost = SyncLossEvent()
        self._entered = entered
        self._released = False
        watching = _watch(weakref.ref(self), lease.resources, lease.lost, self._lost, on_lost)
        self._watching = asyncio.create_task(watching)
        # If another lease of the same lock is released after this one was dropped, no loss can come
        # any more, and the watch is garbage: asyncio would log that as an error.
        self._watching._log_destroy_pending = False  # type: ignore[attr-defined]  # noqa: SLF001 - as `asyncio.gather` does

    def __repr__(self) -> str:
        return repr(self._lease)

    @property
    def resources(self) -> tuple[str, ...]:
        """The names that are locked."""
        return self._lease.resources

    @property
    def token(self) -> str:
        """The value that the masters keep for this lease. It is a secret: it releases the lock."""
        return self._lease.token

    @property
    def fencing_token(self) -> int:
        """
        A number that is higher than the fencing token of every earlier holder.

        See `redlock_aio.Lease.fencing_token`.

        Raises:
            RedlockError, AttributeError: The lock was made without ``fencing=True``.
        """
        return self._lease.fencing_token

    @property
    def shared(self) -> bool:
        """Whether other readers may hold the resource at the same time; see *shared*."""
        return self._lease.shared

    @property
    def mode(self) -> Mode:
        """How it has the resource: ``"exclusive"``, ``"shared"`` or ``"permit"``."""
        return self._lease.mode

    @property
    def permit(self) -> int | None:
        """
        The number of its permit of a semaphore, from 0 on; ``None`` for other locks.

        See `redlock_aio.Lease.permit`.
        """
        return self._lease.permit

    @property
    def fingerprint(self) -> str:
        """The *holder* in the errors of other clients: a hash that does not reveal the token."""
        return self._lease.fingerprint

    @property
    def ttl(self) -> int:
        """The ms without an extension after which the key expires on the masters."""
        return self._lease.ttl

    @property
    def validity(self) -> int:
        """The validity in ms at the acquisition: the ttl, less the drift and the time it took."""
        return self._lease.validity

    @property
    def remaining(self) -> int:
        """The ms from now to the end of its validity without an extension; 0 when it is over."""
        return self._lease.remaining

    @property
    def valid(self) -> bool:
        """Whether the lock is held now, by the clock; always false in a forked child."""
        return self._lease.valid

    @property
    def hold_count(self) -> int:
        """The number of leases that share the lock, with this one; 0 when this one is over."""
        return self._lease.hold_count

    @property
    def votes(self) -> tuple[Vote, ...]:
        """The vote of each master on the acquisition; late ones are added until the timeout."""
        return self._lease.votes

    @property
    def lost(self) -> threading.Event:
        """
        An event that is set when the lease is lost; ``lease.lost.wait()``.

        It is set by the event loop, so it may be set a moment after `valid` has become false,
        or late if that loop can't run. Before a write call `ensure_valid`.

        It has no truth value: ``if lease.lost`` raises a `TypeError`, see `redlock_aio.Lease.lost`.
        """
        return self._lost

    def ensure_valid(self) -> None:
        """
        Raise unless the lock is held now; meant for the line before each write.

        Nothing is sent, and the event loop is not asked: this only looks at the clock, and is
        right also when that loop could not run.

        Raises:
            LockLostError: The lease is lost, or its deadline has passed.

            LockNotHeldError: It has been released.

            RedlockError: This process is a forked child of the one that holds it.
        """
        self._lease.ensure_valid()

    def extend(self, ttl: int | timedelta | None = None) -> None:
        """
        Extend the lease to *ttl* from now.

        See `redlock_aio.Lease.extend`. It is not needed with *auto_extend*.

        Raises:
            TypeError: *ttl* is of another type.

            ValueError: *ttl* is longer than the manager's *max_ttl*, or shorter than 50.

            LockLostError: The lease was lost before a majority had granted it.

            LockNotHeldError: It has been released.

            RedlockError: This process is a forked child of the one that holds it.
        """
        self._call(self._lease.extend, ttl)

    def release(self) -> None:
        """
        Release the lock, and wait until a majority of the masters has confirmed it.

        See `redlock_aio.Lease.release`. If the wait is interrupted, such as by a
        KeyboardInterrupt, the lock is released anyway.

        Raises:
            LockNotHeldError: The lock was not held any more, or has been
                released before. The key of a later holder is not touched.

            RedlockError: This process is a forked child of the one that holds it.
        """
        try:
            self._call(self._release)
        except BaseException as error:
            self._give_up(error)
            if isinstance(error, LockLostError) and self._is_told_by(error):  # by a closed manager
                raise LockNotHeldError(error.resources, error.reason, error.code) from None
            raise

    def export(self) -> str:
        """
        End the lease here, and return a text by which another process can `Redlock.adopt` it.

        See `redlock_aio.Lease.export`. The other process may use
        `redlock_aio.Redlock.adopt` as well. If the call is interrupted, such as by a
        KeyboardInterrupt, the lock is released: nobody has got the text.

        Raises:
            LockLostError: The lease is lost, or its deadline has passed.

            LockNotHeldError: It has been released, or handed over.

            RedlockError: Other leases share the lock, see *reentrant*; or it is the lease of a
                reader; or this process is a forked child of the one that holds it.
        """
        exported: list[str] = []
        try:
            refused = self._call(self._export, exported)
            if refused is None:
                return exported[0]
        except BaseException as stop:
            self._portal.give_back(self._take_back, exported, stop)
            raise
        try:
            raise refused
        finally:
            del refused  # breaks the cycle of error and frame

    def __enter__(self) -> Self:
        """
        Return the lease, which the end of the block releases.

        A lease can be entered once: the end of an inner block would release it, and the rest
        of the outer block would run without the lock.

        Raises:
            LockLostError: The lease is over; the body does not run.

            LockNotHeldError: It has been released.

            RuntimeError: It was entered before.

            RedlockError: This process is a forked child of the one that holds it.
        """
        try:
            self.ensure_valid()
            self._enter()  # last: an interrupt finds it entered by others only
        except BaseException as stop:
            if not self._entered and not self._is_told_by(stop):
                self._give_up(stop)
            raise
        return self

    def _enter(self) -> None:
        """Begin the block; raise `RuntimeError` if it was entered before."""
        if self._entered:
            raise RuntimeError("a lease can be entered only once")
        self._entered = True

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """
        Release the lock; see `release`.

        An exception of the body is raised unchanged and at once, with a note if the
        lock was lost as well; the release is sent and not awaited.

        Raises:
            LockLostError: The lease was lost, and the body has no exception of
                its own.

            RedlockError: This process is a forked child of the one that holds the lock.
        """
        if self._released:  # by the body, which has got the error of a loss there
            return
        try:
            if isinstance(error, GeneratorExit) and self._portal.is_here:
                # A generator that was left in the block is collected as garbage, which may
                # happen in any thread. Nothing is awaited, as after any error.
                self._portal.start(self._leave, kind, error, trace)
            else:
                self._call(self._leave, kind, error, trace)
        except BaseException as why:
            self._give_up(why)
            if error is None or not isinstance(why, RedlockError):
                raise
            error.add_note(str(why))

    def _call(self, function: Callable[..., Coroutine[Any, Any, T]], *args: object) -> T:
        """
        Run a coroutine function in the event loop.

        Raises:
            LockLostError, LockNotHeldError: The manager was closed, so that the lease is over.

            RedlockError: This process is a forked child of the one that holds it.
        """
        try:
            return self._portal.call(function, *args)
        except RedlockError:
            if self._portal.ended:
                self._lease.ensure_valid()  # says what it is
            raise

    def _is_told_by(self, error: BaseException) -> bool:
        """Return whether *error* says that this lease is over, and not another one of its name."""
        if not isinstance(error, LockLostError | LockNotHeldError):
            return False
        return error.resources == self.resources and not self.valid

    def _give_up(self, stop: BaseException) -> None:
        """
        Release the lock of a thread that was interrupted by *stop* where its block begins or ends.

        As after a body that has failed, nothing is awaited. A release that has begun goes on. The
        type of *stop* says nothing: what a signal handler raises may be a `RedlockError`, such as
        the loss of another lease.
        """
        if not self._released:
            self._portal.give_back(self._leave, type(stop), stop, stop.__traceback__)

    async def _release(self) -> None:
        self._end()
        await self._lease.release()

    async def _leave(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._end()
        await self._lease.__aexit__(kind, error, trace)

    async def _export(self, exported: list[str]) -> RedlockError | None:
        """Return why it is refused: what `_call` raises is then an interrupt, or in vain."""
        try:
            exported.append(self._lease.export())
        except RedlockError as refused:
            return refused
        self._end()
        return None

    async def _take_back(self, exported: list[str], stop: BaseException) -> None:
        """Release the lock of a thread that *stop* has interrupted, also if it was *exported*."""
        await self._leave(type(stop), stop, stop.__traceback__)
        while exported:  # once: a thread that is interrupted twice may do this twice
            # The thread does not wait: as long as masters are away, an adoption goes on.
            self._portal.start(self._release_exported, exported.pop())

    async def _release_exported(self, text: str) -> None:
        lease = await self._portal.redlock.adopt(text, auto_extend=False)
        await lease.release()

    def _end(self) -> None:
        """End the watch: a loss that the release finds is reported by its error only."""
        self._released = True
        self._watching.cancel()


async def _watch(
    ref: "weakref.ref[Lease]",
    resources: tuple[str, ...],
    loss: asyncio.Event,
    lost: threading.Event,
    on_lost: OnLostCall | None,
) -> None:
    """
    Wait for the loss of a lease, set *lost*, and start a thread for *on_lost*.

    Cancellation:
        Nothing is reported.
    """
    await loss.wait()
    lost.set()
    if on_lost is None:
        return
    error = LockLostError(resources, LossCause.NOT_EXTENDED, "it was dropped without a release")
    if (lease := ref()) is not None:
        try:
            lease.ensure_valid()
        except LockLostError as why:
            error = why.with_traceback(None)
    try:
        threading.Thread(
            target=_call_back, args=(on_lost, error), name="redlock_aio on_lost", daemon=True
        ).start()
    except RuntimeError:  # the interpreter exits, or there are too many threads
        _log.exception("no thread for on_lost could be started: %s", error)


def _call_back(on_lost: OnLostCall, error: LockLostError) -> None:
    try:
        on_lost(error)
    except BaseException:  # noqa: BLE001 - the user's code; a thread hides a SystemExit
        _log.exception("on_lost raised an error: %s", error)
