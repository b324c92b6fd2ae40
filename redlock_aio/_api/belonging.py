"""Checks that a lease is used in its own event loop, thread, process and task."""

import asyncio
from types import TracebackType
from typing import Any, Never, TypeVar

from anyio import CancelScope

from redlock_aio._engine.hold.held_lease import HeldLease, Sharer
from redlock_aio._engine.masters import MasterSet
from redlock_aio._engine.origin import Origin
from redlock_aio._rules.lease_state import LOST
from redlock_aio.errors import LockLostError, LockNotHeldError, RedlockError

T = TypeVar("T")


def check_here(hold: HeldLease, origin: Origin) -> None:
    """
    Raise an error unless *hold* belongs to this event loop, thread and process, or is lost.

    Raises:
        RedlockError: *hold* belongs to another one. Nothing was done.
    """
    if hold.state is not LOST and not origin.is_here():
        refuse(hold, origin)


def refuse(hold: HeldLease, origin: Origin, error: BaseException | None = None) -> Never:
    """
    Raise the error for a use of *hold* in another event loop, thread or process.

    Args:
        error: The exception of the body whose block is left; it is raised with a note instead.
    """
    names = ", ".join(map(repr, hold.resources))
    why = f"the lease on {names} belongs to {origin.whose()}"
    if error is None or isinstance(error, GeneratorExit):
        raise RedlockError(why)
    error.add_note(why)
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
        if stray is None:
            hold.add_note(rest)  # the other errors of a group that contained the cancellation
            raise
        if error is None or isinstance(error, GeneratorExit):
            raise stray from None
        error.add_note(str(stray))
        return error


def _left_elsewhere(hold: HeldLease, scope: CancelScope, masters: MasterSet) -> RedlockError | None:
    """Return the error if another task than the running one entered the guarded block."""
    if not _stop_cancelling_another(scope, asyncio.current_task(masters.loop)):
        return None
    hold.notify_lost()  # if the lease was lost, the bodies around this one
    if hold.loss is not None:
        return LockLostError(hold.resources, *hold.loss)
    names = ", ".join(map(repr, hold.resources))
    return RedlockError(
        f"{names} released, but not by the task that entered the block, which alone is cancelled"
        " if the lock is lost; where another task leaves the block, as with fixtures, use"
        " on_lost='flag', or acquire() and release()"
    )


def _stop_cancelling_another(scope: CancelScope, task: asyncio.Task[object] | None) -> bool:
    """
    Stop the cancellation of the task that has entered *scope*, if that is not *task*.

    Only the task that has entered an anyio scope can exit it. If the scope was cancelled, anyio
    cancels that task in every turn of the loop until then, and has no public name to end that.
    """
    inner: Any = scope
    host, cancelling = inner._host_task, inner._cancel_handle  # noqa: SLF001 - nothing else ends it
    if host is task:
        return False
    inner._cancel_called = False  # noqa: SLF001 - else an inner scope starts it again
    if cancelling is not None:
        cancelling.cancel()
    return True


def left_by_this_task(entered: dict[T, Sharer], resources: tuple[str, ...]) -> T:
    """
    Return the lease whose block this task leaves.

    That is the last lease that this task has entered. If it has entered none, it is the last
    one whose task has ended: fixtures may enter a block in one task and leave it in another.

    Args:
        entered: The leases whose blocks are entered, with the tasks that have entered them.
    """
    task = asyncio.current_task()
    for leaves in (lambda by: by is task, lambda by: by.done()):
        for lease, ref in reversed(entered.items()):
            by = ref and ref()
            if not by or leaves(by):
                return lease
    raise LockNotHeldError(resources, "this task has not entered its block")
