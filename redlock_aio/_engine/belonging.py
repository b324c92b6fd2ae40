"""Whose a lease is, and what to say to anybody else who uses it."""

import asyncio
from typing import Any

from anyio import CancelScope

from redlock_aio._engine.hold import Hold
from redlock_aio._engine.rounds import Fleet
from redlock_aio._rules.lifetime import LOST
from redlock_aio.errors import LockLostError, RedlockError


def left_elsewhere(hold: Hold, scope: CancelScope, fleet: Fleet) -> RedlockError | None:
    """
    Return the error if another task leaves a guarded block than the one that entered it.

    Only the task that has entered an anyio scope can exit it. Until it does, anyio cancels it
    in every turn of the loop, if the scope was cancelled. There is no public way to end that.
    """
    inner: Any = scope
    if inner._host_task is asyncio.current_task(fleet.loop):
        return None
    inner._cancel_called = False
    if inner._cancel_handle is not None:
        inner._cancel_handle.cancel()
        inner._cancel_handle = None
    hold.tell()  # those around it, if it was lost
    if hold.state is LOST:
        return LockLostError(hold.resources, hold.reason)
    names = ", ".join(map(repr, hold.resources))
    return RedlockError(
        f"{names} released, but not by the task that entered the block, which alone is cancelled"
        " if the lock is lost; where another task leaves the block, as with fixtures, use"
        " on_lost='flag', or acquire() and release()"
    )
