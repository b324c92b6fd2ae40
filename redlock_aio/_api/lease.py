"""
One acquisition of a lock, as users see it.

    acquired ── body runs ──┬─ it ends ────► release sent ──► majority ──► done
                            └─ lease lost ─► it is cancelled ─► LockLostError

The lease can be lost between any two steps of the body, by the watchdog's timer or a reply.
If that is before the release is sent, or if its replies show a loss, the block ends with a
`LockLostError`. This is the only file in which a cancellation is turned into an error.
"""

import asyncio
import functools
import warnings
from collections.abc import Sequence
from datetime import timedelta
from types import CoroutineType, TracebackType
from typing import Any, Never, Self

from anyio import CancelScope

from redlock_aio._engine.clock import boot_of
from redlock_aio._engine.hold.held_lease import HeldLease, Sharer, task_ref
from redlock_aio._engine.masters import MasterSet, votes
from redlock_aio._engine.options import OnLost
from redlock_aio._engine.session import Origin, Session
from redlock_aio._protocol import lease_export
from redlock_aio._protocol.primitives import Permit
from redlock_aio._rules import timing
from redlock_aio._rules.lease_state import HELD, LOST, RELEASED
from redlock_aio._rules.mistakes import OnlyForAsyncio
from redlock_aio._rules.quorum import OPEN, Vote
from redlock_aio._rules.validation import quoted
from redlock_aio.errors import LockLostError, RedlockError, lost_before
from redlock_aio.events import Mode


class NoFencingTokenError(RedlockError, AttributeError):
    """A lease without a fencing token was asked for it; `hasattr` takes it for an answer."""


class Lease(OnlyForAsyncio):
    """
    One acquisition of a lock. It can be extended and released, and it can be lost.

    Made by a `Lock`, or by `Redlock.adopt`. ``async with lease:`` releases it at
    the end and cancels the body if it is lost. A lease that is dropped without a
    release is not extended any more, warns with a `ResourceWarning`, and ends
    with its ttl. Leases that share the lock, by ``reentrant=True``, are lost
    together, and the last release releases the lock.
    """

    __slots__ = (
        "_acquired_at", "_entered", "_hold", "_on_lost", "_released", "_scope", "_session", "_task",
        "_until",
    )  # fmt: skip

    def __init__(
        self,
        session: Session,
        hold: HeldLease,
        task: Sharer,
        now: float,
        on_lost: OnLost,
        *,
        entered: bool = False,
    ) -> None:
        self._session = session
        self._hold = hold
        self._on_lost = on_lost
        self._acquired_at = now
        self._task = task
        self._until = hold.deadline
        self._scope: CancelScope | None = None
        self._entered = entered
        self._released = False
        if entered:
            # Nothing was awaited since the acquisition: a cancellation arrives in the body.
            self._guard()

    def __repr__(self) -> str:
        names = quoted(self.resources)
        state = f"{self.remaining} ms left" if self.valid else self._state()
        return f"<Lease {names}, {state}>"

    def __del__(self) -> None:
        # Nothing is sent: this may run in another thread, or after the loop has ended.
        hold = self._hold
        held = hold.state is HELD and not self._released
        if held and self._session.origin.is_of_this_process():
            why = hold.dropped(self._task)
            warnings.warn(f"{self!r} {why}", ResourceWarning, stacklevel=2, source=self)

    def _now(self) -> float:
        return self._session.masters.clock()

    def _state(self) -> str:
        if self._released:
            return RELEASED.value
        return self._hold.state.value if self._hold.state is not HELD else LOST.value

    @property
    def resources(self) -> tuple[str, ...]:
        """The names that are locked."""
        return self._hold.resources

    @property
    def shared(self) -> bool:
        """Whether other readers may hold the resource at the same time; see *shared*."""
        return self._hold.claim.key.is_share

    @property
    def mode(self) -> Mode:
        """How it has the resource: ``"exclusive"``, ``"shared"`` or ``"permit"``."""
        return self._hold.mode

    @property
    def permit(self) -> int | None:
        """
        The number of its permit of a semaphore, from 0 on; ``None`` for other locks.

        Nobody else has this number while the lease is valid, so it may stand for one of
        several equal things: a connection, a graphics card, a port.
        """
        key = self._hold.claim.key
        return key.number if isinstance(key, Permit) else None

    @property
    def token(self) -> str:
        """The value that the masters keep for this lease. It is a secret: it releases the lock."""
        return self._hold.claim.token.decode()

    @property
    def fencing_token(self) -> int:
        """
        A number that is higher than the fencing token of every earlier holder.

        Pass it along with each write, to a store that refuses a number lower than
        the highest one so far; see `redlock_aio.fencing`. It stays the same for as long
        as the lease is held.

        Raises:
            RedlockError, AttributeError: The lock was made without ``fencing=True``. It is
                one error of both kinds, so that `hasattr` is false, and `getattr` can have
                a default; no storage is ever passed a ``None`` that it may take for a token.
        """
        fence = self._hold.claim.fence
        if not fence:
            raise NoFencingTokenError(
                "this lease has no fencing token: its lock needs fencing=True", "no-fencing-token"
            )
        return fence

    @property
    def fingerprint(self) -> str:
        """The *holder* in the errors of other clients: a hash that does not reveal the token."""
        return self._hold.fingerprint

    @property
    def ttl(self) -> int:
        """The ms without an extension after which the key expires on the masters."""
        return self._hold.ttl

    @property
    def validity(self) -> int:
        """The validity in ms at the acquisition: the ttl, less the drift and the time it took."""
        return timing.remaining(self._until, self._acquired_at)

    @property
    def remaining(self) -> int:
        """The ms from now to the end of its validity without an extension; 0 when it is over."""
        return timing.remaining(self._hold.deadline, self._now()) if self.valid else 0

    @property
    def valid(self) -> bool:
        """Whether the lock is held now, by the clock; always false in a forked child."""
        ours = not self._released and self._session.origin.is_of_this_process()
        return ours and self._hold.valid(self._now())

    @property
    def hold_count(self) -> int:
        """The number of leases that share the lock, with this one; 0 when this one is over."""
        return self._hold.count if self.valid else 0

    @property
    def votes(self) -> tuple[Vote, ...]:
        """The vote of each master on the acquisition; late ones are added until the timeout."""
        return votes(self._session.masters.links, self._hold.claim.replies)

    @property
    def lost(self) -> asyncio.Event:
        """
        An event that is set when the lease is lost; ``await lease.lost.wait()``.

        It has no truth value: ``if lease.lost`` raises a `TypeError`, because every other
        event is true, set or not. Use ``lease.lost.is_set()``, or `valid`.
        """
        return self._hold.lost

    def ensure_valid(self) -> None:
        """
        Raise unless the lock is held now; meant for the line before each write.

        It may be called in any thread of the process.

        Raises:
            LockLostError: The lease is lost, or its deadline has passed.

            LockNotHeldError: It has been released.

            RedlockError: This process is a forked child of the one that holds it.
        """
        hold = self._hold
        if self.valid:
            return
        if self._released or hold.is_given_up:
            raise hold.not_held()
        origin = self._session.origin
        if not origin.is_of_this_process():
            refuse(hold, origin)
        if origin.is_here():
            self._session.watchdog.lose(hold, self._session.watchdog.why_expired(hold, self._now()))
        raise LockLostError(hold.resources, *(hold.loss or hold.why_expired()))

    async def extend(self, ttl: int | timedelta | None = None) -> None:
        """
        Extend the lease to *ttl* from now.

        Extensions that fail are repeated until the lease is over. A lease that
        is over is never revived.

        Args:
            ttl: In milliseconds or as a `timedelta` (default: the present ttl).
                Automatic extensions use the new ttl from then on.

        Raises:
            TypeError: *ttl* is of another type.

            ValueError: *ttl* is longer than the manager's *max_ttl*, or shorter than 50.

            LockLostError: The lease was lost before a majority had granted it.

            LockNotHeldError: It has been released.

            RedlockError: It belongs to another event loop, thread or process.

        Cancellation:
            The lease is as it was, or is extended. If *ttl* is shorter than
            what remained, the lease ends after *ttl*.
        """
        hold = self._hold
        check_here(hold, self._session.origin)
        wanted = max(hold.ttl, hold.pending_ttl)
        new = wanted if ttl is None else timing.milliseconds(ttl, name="ttl")
        timing.at_least(timing.at_most(new, self._session.max_ttl))
        if self._released:
            raise hold.not_held()
        hold.pending_ttl = 0
        await self._session.watchdog.extend(hold, new)

    async def release(self) -> None:
        """
        Release the lock, and wait until a majority of the masters has confirmed it.

        If other leases of its owner share the lock, only this lease ends; the last
        release releases the lock. With *hold_at_least* the masters keep the key until
        that time is over.

        The wait for masters that do not answer ends after the master timeout; the
        release is sent again when they answer.

        Raises:
            LockNotHeldError: The lock was not held any more, or has been
                released before. The key of a later holder is not touched.

            RedlockError: It belongs to another event loop, thread or process.

        Cancellation:
            The lock is released anyway; only the wait ends. The call can
            be repeated.
        """
        emitter = self._session.emitter
        if emitter is None or self._released or not self._session.origin.is_here():
            await self._release()
        else:
            await self._hold.reported(emitter, self._release)

    async def _release(self) -> None:
        hold = self._hold
        check_here(hold, self._session.origin)
        if hold.state is HELD and not self._released:
            self._session.watchdog.leave(hold, self._task)
        if (loss := hold.loss) is not None:
            raise lost_before(hold.resources, loss)
        if self._released:
            raise hold.not_held("it has been released before")
        # Set before the wait: a second release of this lease meanwhile, or its `__aexit__`,
        # must not count as the release of another share. Reset if the wait is cancelled,
        # so that the call can be repeated.
        self._released = True
        if self._scope is not None:
            hold.guards.pop(self._scope, None)
        release = hold.released
        try:
            if release is not None and release.verdict is OPEN:
                await self._session.masters.wait_for(release)
        except asyncio.CancelledError:
            self._released = False
            raise
        self._session.watchdog.apply_release(hold)
        if (loss := hold.loss) is not None:
            raise lost_before(hold.resources, loss)

    def export(self) -> str:
        """
        End the lease here, and return a text by which another process can `Redlock.adopt` it.

        This lease is over then: it is neither extended nor released any more, and a
        body that it guards is not cancelled. The masters keep the lock until it is
        adopted, or until its ttl is over. The text is a secret, because a process
        that has it can take the lock; its repr does not show it.

        Raises:
            LockLostError: The lease is lost, or its deadline has passed.

            LockNotHeldError: It has been released, or handed over.

            RedlockError: Other leases share the lock, see *reentrant*; or it is the lease of a
                reader; or it belongs to another event loop, thread or process.
        """
        check_here(self._hold, self._session.origin)
        self.ensure_valid()
        hold, session = self._hold, self._session
        handed = hold.handover(self._now(), boot_of(session.loop))
        session.watchdog.hand_over(hold)
        self._released = True
        return lease_export.exported(handed)

    async def __aenter__(self) -> Self:
        """
        Guard the body: it is cancelled if the lease is lost, unless *on_lost* is "flag".

        A lease can be entered once: the end of an inner block would release it, and the rest
        of the outer block would run without the lock.

        Raises:
            LockLostError: The lease is over; the body does not run.

            LockNotHeldError: It has been released.

            RuntimeError: It was entered before.

            RedlockError: It belongs to another event loop, thread or process.

        Cancellation:
            Nothing is awaited.
        """
        if self._entered:
            raise RuntimeError("a lease can be entered only once")
        check_here(self._hold, self._session.origin)
        self.ensure_valid()
        self._entered = True
        hold = self._hold
        task = task_ref(asyncio.current_task(self._session.loop))
        if task is not self._task:  # another task acquired the lease, and passed it on to this one
            hold.add_share(task)
            hold.remove_share(self._task)
            self._task = task
        self._guard()
        return self

    def _guard(self, before: CancelScope | None = None) -> None:
        """
        Begin to guard the body of the running task, unless *on_lost* is "flag".

        A loss from now on cancels the scope. The lease is held now: the callers have just seen
        that it is valid, and nothing was awaited since.

        Args:
            before: The scope that has guarded the body so far. With one, the lease may be lost:
                the caller notifies it.
        """
        if self._on_lost == "cancel":
            self._scope = scope = self._session.watchdog.scope()
            self._hold.guards[scope] = self._task
            scope.__enter__()
            if before is not None:
                _continue_scope(scope, before)

    def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> "CoroutineType[Any, Any, None]":  # for pyright, see `Lock.__aenter__`
        """
        Release the lock; see `release`.

        An exception of the body is raised unchanged and at once, with a note if the
        lock was lost as well; the release is sent and not awaited.

        Raises:
            LockLostError: The lease was lost, and the body has no exception of
                its own. With *on_lost* "flag" nothing is raised.

            RedlockError: Another task has entered the block, which with *on_lost*
                "cancel" is the only one that can be cancelled; or the lease belongs to
                another event loop, thread or process, and nothing was done.

        Cancellation:
            The lock is released anyway.
        """
        return self._leave((), kind, error, trace)

    def _leave(
        self,
        inside: "Sequence[Lease]",
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> "CoroutineType[Any, Any, None]":
        """
        Leave the block; see `__aexit__`.

        Args:
            inside: The leases of blocks that this task has entered in this one, and that go on,
                in the order of entering.
        """
        if not self._session.origin.is_here():
            refuse(self._hold, self._session.origin, error)
        emitter = self._session.emitter
        if emitter is None or self._released:
            return self._exit(inside, kind, error, trace)  # type: ignore[return-value]  # see above
        leave = functools.partial(self._exit, inside, kind, error, trace)
        return self._hold.reported(emitter, leave)  # type: ignore[return-value]

    def _exit_scope(
        self,
        scope: CancelScope,
        inside: "Sequence[Lease]",
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> BaseException | None:
        """Exit *scope*, see `exit_scope`; blocks *inside* get new scopes behind that."""
        paused: list[tuple[Lease, CancelScope]] = []
        try:
            paused.extend(
                (each, left)
                for each in reversed(inside)
                if (left := each._pause_guard()) is not None  # noqa: SLF001
            )
            return exit_scope(self._hold, scope, self._session.masters, kind, error, trace)
        finally:
            for each, before in reversed(paused):
                each._guard(before)  # noqa: SLF001
            # Behind that: of bodies that share a lock only the innermost is cancelled.
            for each, _ in paused:
                each._hold.notify_lost()  # noqa: SLF001

    def _pause_guard(self) -> CancelScope | None:
        """Leave the scope for a moment, in which nothing is awaited; return it if it guards."""
        scope = self._scope
        if scope is None:
            return None
        scope.__exit__(None, None, None)
        self._scope = None
        # Not after a release in the body.
        return scope if self._hold.guards.pop(scope, self) is not self else None

    async def _exit(
        self,
        inside: "Sequence[Lease]",
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """
        Release the lease and leave the block; see `__aexit__`.

        1. The scope is unregistered: a loss from now on must not cancel later code of the task.
        2. The release is sent, before the scope's exit, which may raise: however the block
           is left, the lock does not stay until its ttl is over.
        3. The scope's exit takes its own cancellation out of *error*. A scope can't be left
           before those in it, so the blocks *inside* that go on get new ones behind that.
        4. Without an error the majority is awaited: it may say that the key was gone.
        5. If the lease is lost, the bodies around this one are cancelled now, see
           `HeldLease.notify_lost`.

        If the body has released the lease itself (*was_over*), a loss was raised there.
        """
        hold, scope = self._hold, self._scope
        if scope is not None:
            hold.guards.pop(scope, None)
        was_over, released_here = self._released, False
        if hold.state is HELD and not was_over:
            self._released = released_here = self._session.watchdog.leave(hold, self._task)
        if inside and scope is not None:
            error = self._exit_scope(scope, inside, kind, error, trace)
        elif scope is not None:
            error = exit_scope(hold, scope, self._session.masters, kind, error, trace)
        # After a failed body nothing is awaited: the release is sent before all later commands.
        if released_here and error is None:
            release = hold.released
            if release is not None and release.verdict is OPEN:
                await self._session.masters.wait_for(release)
            self._session.watchdog.apply_release(hold)
        if hold.loss is not None and not was_over:
            hold.notify_lost()
            hold.add_note(error)
            if error is None and self._on_lost == "cancel":
                raise LockLostError(hold.resources, *hold.loss) from None


def check_here(hold: HeldLease, origin: Origin) -> None:
    """Raise an error unless *hold* belongs to this event loop, thread and process, or is lost."""
    if hold.state is not LOST and not origin.is_here():
        refuse(hold, origin)


def refuse(hold: HeldLease, origin: Origin, error: BaseException | None = None) -> Never:
    """
    Raise the error for a use of *hold* in another event loop, thread or process.

    Args:
        error: The exception of the body whose block is left; it is raised with a note instead.
    """
    names = quoted(hold.resources)
    why = RedlockError(f"the lease on {names} belongs to {origin.whose()}", "lease-elsewhere")
    if error is None or isinstance(error, GeneratorExit):
        raise why
    error.add_note(str(why))
    raise error


def exit_scope(
    hold: HeldLease,
    scope: CancelScope,
    masters: MasterSet,
    kind: type[BaseException] | None,
    error: BaseException | None,
    trace: TracebackType | None,
) -> BaseException | None:
    """
    Exit *scope*, which guards a body that has raised *error*.

    Returns:
        The error, or ``None`` if it was the cancellation by *scope*.

    Raises:
        LockLostError, RedlockError: The block was entered by another task, and the body has
            no error of its own that could carry a note.
    """
    try:
        return None if scope.__exit__(kind, error, trace) else error
    except BaseException as rest:
        stray = _left_elsewhere(hold, scope, masters)
        if stray is None:  # the other errors of a group that contained the cancellation
            hold.notify_lost()  # the bodies around this one
            hold.add_note(rest)
            raise
        if error is None or isinstance(error, GeneratorExit):
            raise stray from None
        error.add_note(str(stray))
        return error


def _left_elsewhere(hold: HeldLease, scope: CancelScope, masters: MasterSet) -> RedlockError | None:
    if not _stop_cancelling_another(scope, asyncio.current_task(masters.loop)):
        return None
    hold.notify_lost()  # if the lease was lost, the bodies around this one
    if hold.loss is not None:
        return LockLostError(hold.resources, *hold.loss)
    names = quoted(hold.resources)
    return RedlockError(
        f"{names} released, but not by the task that entered the block, which alone is cancelled"
        " if the lock is lost; where another task leaves the block, as with fixtures, use"
        " on_lost='flag', or acquire() and release()",
        "left-by-another-task",
    )


def _continue_scope(scope: CancelScope, before: CancelScope) -> None:
    """
    Let *scope* pass the cancellations of its task by others that have come in *before*, too.

    A scope takes its own cancellation out of an exception only if the task was cancelled by nobody
    else since it was entered. anyio has no public name for that number.
    """
    new: Any = scope
    old: Any = before
    new._cancelling_at_enter = min(new._cancelling_at_enter, old._cancelling_at_enter)  # noqa: SLF001


def _stop_cancelling_another(scope: CancelScope, task: asyncio.Task[object] | None) -> bool:
    """
    Stop the cancellation of the task that has entered *scope*, if that is not *task*.

    Only the task that has entered an anyio scope can exit it. If the scope was cancelled, anyio
    cancels that task in every turn of the loop until then, and has no public name to end that.
    """
    inner: Any = scope
    host, cancelling = inner._host_task, inner._cancel_handle  # noqa: SLF001 - nothing else ends it
    if host is task or scope.cancelled_caught:  # its task has left it, and anyio forgets which
        return False
    inner._cancel_called = False  # noqa: SLF001 - else an inner scope starts it again
    if cancelling is not None:
        cancelling.cancel()
    return True
