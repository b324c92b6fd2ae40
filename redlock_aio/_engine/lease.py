"""
One acquisition of a lock, as its holder sees it.

This is the only file in which a cancellation is turned into an error.
"""

import asyncio
import functools
import warnings
from datetime import timedelta
from types import CoroutineType, TracebackType
from typing import Any, Self

from anyio import CancelScope

from redlock_aio._engine import reentrance
from redlock_aio._engine.belonging import check_here, left_elsewhere, refuse
from redlock_aio._engine.boots import boot_of
from redlock_aio._engine.hold import HeldLease
from redlock_aio._engine.options import OnLost
from redlock_aio._engine.rounds import Round
from redlock_aio._engine.watchdog import Watchdog
from redlock_aio._rules import handing, holders, timing
from redlock_aio._rules.lifetime import HELD, LOST, RELEASED
from redlock_aio._rules.quorum import OPEN, WON, Vote
from redlock_aio.errors import LockLostError, LockNotHeldError, RedlockError


class Lease:
    """
    One acquisition of a lock: the only thing that can be extended, lost or released.

    Made by a `Lock`, or by `Redlock.adopt`. ``async with lease:`` releases it at
    the end and cancels the body if it is lost. A lease that is dropped without a
    release is not extended any more, warns with a `ResourceWarning`, and ends
    with its ttl. Leases that share the lock, by ``reentrant=True``, are lost
    together, and the last to be released lets go.
    """

    __slots__ = (
        "_acquired_at", "_hold", "_let_go", "_on_lost", "_scope", "_task", "_until", "_watchdog",
    )  # fmt: skip

    def __init__(self, watchdog: Watchdog, hold: HeldLease, now: float, on_lost: OnLost) -> None:
        self._watchdog = watchdog
        self._hold = hold
        self._on_lost = on_lost
        self._acquired_at = now
        self._task = hold.task
        self._until = hold.deadline
        self._scope: CancelScope | None = None
        self._let_go = False

    def __repr__(self) -> str:
        names = ", ".join(map(repr, self.resources))
        state = f"{self.remaining} ms left" if self.valid else self._state()
        return f"<Lease {names}, {state}>"

    def __del__(self) -> None:
        # It may run in another thread, or after the loop has ended. So nothing is sent.
        hold = self._hold
        ours = self._watchdog.origin.is_of_this_process()
        if hold.state is HELD and not self._let_go and ours:
            why = hold.dropped(self._task)
            warnings.warn(f"{self!r} {why}", ResourceWarning, stacklevel=2, source=self)

    def _now(self) -> float:
        return self._watchdog.fleet.clock()

    def _state(self) -> str:
        if self._let_go:
            return RELEASED.value
        return self._hold.state.value if self._hold.state is not HELD else LOST.value

    @property
    def resources(self) -> tuple[str, ...]:
        """The names that are locked."""
        return self._hold.resources

    @property
    def token(self) -> str:
        """The value that the masters keep for this lease. Who knows it can release the lock."""
        return self._hold.attempt.token.decode()

    @property
    def fencing_token(self) -> int:
        """
        The number that is higher than that of everybody who had the lock before.

        Pass it to what you write to, and let that refuse a lower one than it has
        seen; see `redlock_aio.fencing`. It stays the same for as long as the
        lease is held.

        Raises:
            RedlockError: The lock was made without ``fencing=True``.
        """
        fence = self._hold.attempt.fence
        if not fence:
            raise RedlockError("this lease has no fencing token: its lock needs fencing=True")
        return fence

    @property
    def fingerprint(self) -> str:
        """What others see as the *holder* in their errors; it tells nothing of the token."""
        return holders.fingerprint(self._hold.attempt.token)

    @property
    def ttl(self) -> int:
        """After how many ms without an extension the masters release the lock."""
        return self._hold.ttl

    @property
    def validity(self) -> int:
        """For how many ms the lock could be believed when it was acquired."""
        return timing.remaining(self._until, self._acquired_at)

    @property
    def remaining(self) -> int:
        """For how many ms from now it can be believed without an extension; 0 when it is over."""
        return timing.remaining(self._hold.deadline, self._now()) if self.valid else 0

    @property
    def valid(self) -> bool:
        """Whether the lock can be believed now, by the clock; always false in a forked child."""
        ours = not self._let_go and self._watchdog.origin.is_of_this_process()
        return ours and self._hold.valid(self._now())

    @property
    def hold_count(self) -> int:
        """How many leases share the lock, this one among them; 0 when this one is over."""
        return self._hold.count if self.valid else 0

    @property
    def votes(self) -> tuple[Vote, ...]:
        """What each master said to the acquisition; late answers come in until the time-out."""
        return self._hold.attempt.votes()

    @property
    def lost(self) -> asyncio.Event:
        """Set when the lease is lost; ``await lease.lost.wait()``."""
        return self._hold.lost

    def ensure_valid(self) -> None:
        """
        Return if the lock can be believed now; meant for the line before each write.

        It may be called in any thread of the process.

        Raises:
            LockLostError: The lease is lost, or its deadline has passed.

            LockNotHeldError: It has been released.

            RedlockError: This process is a forked child of the one that holds it.
        """
        hold = self._hold
        if self.valid:
            return
        if self._let_go or hold.state is RELEASED:
            raise LockNotHeldError(hold.resources, hold.why_released())
        origin = self._watchdog.origin
        if not origin.is_of_this_process():
            refuse(hold, origin)
        if origin.is_here():
            self._watchdog.lose(hold, self._watchdog.why_expired(hold, self._now()))
        raise LockLostError(hold.resources, hold.reason or hold.why_expired())

    async def extend(self, ttl: int | timedelta | None = None) -> None:
        """
        Let the lock live for *ttl* from now.

        Extensions that fail are repeated until the lease is over. A lease that
        is over is never revived.

        Args:
            ttl: In milliseconds or as a `timedelta`; the present one if it is
                left out. Automatic extensions go on with the new one.

        Raises:
            ValueError: *ttl* is longer than the manager's *max_ttl*, or shorter than 50.

            LockLostError: The lease was lost before a majority had agreed.

            LockNotHeldError: It has been released.

        Cancellation:
            The lease stands as it was, or is extended. If *ttl* is shorter than
            what remained, the lease ends with *ttl*.
        """
        hold = self._hold
        check_here(hold, self._watchdog.origin)
        wanted = max(hold.ttl, hold.pending_ttl)
        new = wanted if ttl is None else timing.milliseconds(ttl, name="ttl")
        timing.at_least(timing.at_most(new, self._watchdog.max_ttl))
        if self._let_go:
            raise LockNotHeldError(hold.resources, hold.why_released())
        hold.pending_ttl = 0
        await self._watchdog.extend(hold, new)

    async def release(self) -> None:
        """
        Let go of the lock, and wait until a majority of the masters has done so.

        A lease that shares the lock with others of its owner ends, and the last of
        them lets go. With *hold_at_least* the masters keep the key until that time
        is over.

        Masters that do not answer are waited for as long as the master
        time-out, and told as soon as they answer again.

        Raises:
            LockNotHeldError: The lock was not held any more, or has been
                released before. The key of whoever came after is not touched.

        Cancellation:
            The lock is released all the same, only the wait ends. The call can
            be repeated.
        """
        emitter = self._watchdog.fleet.emitter
        if emitter is None or self._let_go or not self._watchdog.origin.is_here():
            await self._release()
        else:
            await self._hold.reported(emitter, self._release)

    async def _release(self) -> None:
        hold = self._hold
        check_here(hold, self._watchdog.origin)
        if hold.state is HELD and not self._let_go:
            self._watchdog.leave(hold, self._task)
        if hold.state is LOST:
            raise LockNotHeldError(hold.resources, hold.reason)
        if self._let_go:
            raise LockNotHeldError(hold.resources, hold.reason or "it has been released before")
        self._let_go = True
        hold.unguard(self._scope)
        release = hold.released
        try:
            if release is not None and release.verdict is OPEN:
                release.waiter = self._watchdog.fleet.loop.create_future()
                await release.waiter
        except asyncio.CancelledError:
            self._let_go = False
            raise
        self._judge(release)
        if hold.state is LOST:
            raise LockNotHeldError(hold.resources, hold.reason)

    def export(self) -> str:
        """
        Hand the lease over: return what another process adopts it with, see `Redlock.adopt`.

        Here the lease is over: it is neither extended nor released any more, and a
        body that it guards is not cancelled. The masters keep the lock until it is
        adopted, or for what remains of its ttl. Whoever has the text can take
        the lock: it is a secret, and its repr does not tell it.

        Raises:
            LockLostError: The lease is lost, or its deadline has passed.

            LockNotHeldError: It has been released, or handed over.

            RedlockError: Others share the lock, see *reentrant*.
        """
        check_here(self._hold, self._watchdog.origin)
        self.ensure_valid()
        hold, watchdog = self._hold, self._watchdog
        handed = hold.handover(self._now(), boot_of(watchdog.fleet.loop))
        watchdog.hand_over(hold)
        self._let_go = True
        return handing.exported(handed)

    def _judge(self, release: Round | None) -> None:
        """Draw the consequence if the masters say that the key was gone."""
        if release is None or release.verdict is WON:
            return
        if release.refused_by_a_majority(self._hold.attempt.unsent):
            self._hold.end_as_gone()

    async def __aenter__(self) -> Self:
        """
        Guard the body: it is cancelled if the lease is lost, unless *on_lost* is "flag".

        Raises:
            LockLostError: The lease is over already; the body does not run.

            LockNotHeldError: It has been released.

        Cancellation:
            Nothing is awaited.
        """
        if self._scope is not None:
            raise RuntimeError("a lease can be entered only once")
        check_here(self._hold, self._watchdog.origin)
        self.ensure_valid()
        hold, task = self._hold, reentrance.known(asyncio.current_task(self._watchdog.fleet.loop))
        if task is not self._task:  # it was handed on to this one
            hold.add_share(task)
            hold.remove_share(self._task)
            self._task = task
        self._enter()
        return self

    def _enter(self) -> None:
        """Begin to guard the body of the running task."""
        if self._on_lost == "cancel":
            hold = self._hold
            self._scope = scope = self._watchdog.scope()
            if hold.scope is None and not hold.inner:
                hold.scope = scope
                hold.guarded = self._task
            else:
                hold.guard(scope, self._task)
            scope.__enter__()
            if hold.state is not HELD:
                hold.notify_lost()  # it was lost before there was anything to cancel

    def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> "CoroutineType[Any, Any, None]":  # for pyright, see `Lock.__aenter__`
        """
        Release the lock; see `release`.

        An exception of the body comes out as it is and at once, with a note if
        the lock was lost as well; the release is sent and not waited for.

        Raises:
            LockLostError: The lease was lost, and the body has no exception of
                its own. With *on_lost* "flag" nothing is raised.

            RedlockError: Another task has entered the block, and with *on_lost*
                "cancel" nobody but that one can be cancelled; or it belongs to
                another event loop, thread or process, and nothing was done.

        Cancellation:
            The lock is released all the same.
        """
        if not self._watchdog.origin.is_here():
            refuse(self._hold, self._watchdog.origin, error)
        emitter = self._watchdog.fleet.emitter
        if emitter is None or self._let_go:
            return self._exit(kind, error, trace)  # type: ignore[return-value]  # see above
        leave = functools.partial(self._exit, kind, error, trace)
        return self._hold.reported(emitter, leave)  # type: ignore[return-value]

    async def _exit(  # noqa: C901, PLR0912 - each call would cost
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        hold = self._hold
        scope = self._scope
        if hold.scope is scope:
            hold.scope = None
        else:
            hold.unguard(scope)
        was_over, released_here = self._let_go, False
        if hold.state is HELD and not was_over:
            watchdog = self._watchdog
            released_here = (
                watchdog.release(hold) if hold.count == 1 else watchdog.leave(hold, self._task)
            )
        if scope is not None:
            try:
                if scope.__exit__(kind, error, trace):
                    error = None
            except BaseException as rest:
                stray = left_elsewhere(hold, scope, self._watchdog.fleet)
                if stray is None:
                    self._note(rest)  # what a group holds besides our cancellation
                    raise
                self._let_go = True
                if error is None or isinstance(error, GeneratorExit):
                    raise stray from None
                error.add_note(str(stray))
        if released_here:
            self._let_go = True
            # A body that failed is not held up: the release leaves before all that comes next.
            if error is None:
                release = hold.released
                if release is not None and release.verdict is OPEN:
                    release.waiter = self._watchdog.fleet.loop.create_future()
                    await release.waiter
                self._judge(release)
        if hold.state is LOST and not was_over:
            hold.notify_lost()  # those around it
            self._note(error)
            if error is None and self._on_lost == "cancel":
                raise LockLostError(hold.resources, hold.reason) from None

    def _note(self, error: BaseException | None) -> None:
        if self._hold.state is LOST and isinstance(error, Exception):
            said = str(LockLostError(self._hold.resources, self._hold.reason))
            # It may have come out of one who shares the lease.
            if str(error) != said and said not in getattr(error, "__notes__", ()):
                error.add_note(said)
