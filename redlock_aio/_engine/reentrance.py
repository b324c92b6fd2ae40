"""
Taking again what one holds already, or being told so instead of waiting for oneself.

A lease belongs to the *owner* that its lock was given, or else to the task that has
acquired it. Whoever takes it again shares it: the masters are not asked, and the last
of those who share it releases it.
"""

import asyncio
import math
import weakref
from typing import Protocol

from redlock_aio._engine.hold import Hold
from redlock_aio._engine.rounds import Fleet
from redlock_aio._rules.keys import Key, Keys
from redlock_aio._rules.timing import Retry
from redlock_aio.errors import RedlockError


class Wish(Protocol):
    """What is asked of a lock that is wanted."""

    _fenced: bool
    _key: Key | Keys
    _owner: object
    _reentrant: bool
    _resources: tuple[str, ...]
    _retry: Retry
    _wait: int | None


def known(task: asyncio.Task[object] | None) -> "weakref.ref[asyncio.Task[object]] | None":
    """Return what remembers *task*, but keeps neither it nor what is in its frames alive."""
    return None if task is None else weakref.ref(task)


def shared(fleet: Fleet, wish: Wish, *, patient: bool = True) -> Hold | None:
    """
    Return the lease of our own that gives us what we wish; ``None`` if we have to ask for it.

    Args:
        patient: Whether whoever wishes it would wait for it.

    Raises:
        RedlockError: We hold it, or a part of it, so that we would wait for
            ourselves for ever; or it is held without the fencing token that is
            wished.
    """
    now, task = fleet.clock(), asyncio.current_task(fleet.loop)
    ours: dict[Hold, None] = {}
    for key in wish._key.each:
        line = fleet.lines.get(key)
        hold = None if line is None else line.holder
        if isinstance(hold, Hold) and hold.valid(now) and _is_ours(hold, task, wish._owner):
            ours[hold] = None
    for hold in ours:
        if wish._reentrant and _may_share(hold, task, wish):
            if wish._fenced and not hold.attempt.fence:
                raise RedlockError(
                    f"{_names(wish._resources)} can't be taken again with fencing=True:"
                    " it is held without a fencing token"
                )
            return hold
        if patient and wish._wait is None and wish._retry.attempts is None and _lasts(hold):
            raise RedlockError(_why(hold, wish))
    return None


def _is_ours(hold: Hold, task: asyncio.Task[object] | None, owner: object) -> bool:
    if owner is not None and hold.owner is not None:
        return bool(hold.owner == owner)
    return hold.task is not None and hold.task() is task


def _may_share(hold: Hold, task: asyncio.Task[object] | None, wish: Wish) -> bool:
    if wish._owner is not None and hold.owner is None:
        return False  # it belongs to the task, which is another owner
    return _is_ours(hold, task, wish._owner) and set(wish._key.each) <= set(hold.attempt.key.each)


def _lasts(hold: Hold) -> bool:
    """Whether it does not end by itself while somebody waits, or would end who waits."""
    return hold.scope is not None or (hold.renewed and hold.ends == math.inf)


def _why(hold: Hold, wish: Wish) -> str:
    """Return what to say to whoever would wait for himself, and what he can do."""
    has = _names(hold.resources)
    if not wish._reentrant:
        how = "reentrant=True takes it again"
    elif set(wish._key.each) <= set(hold.attempt.key.each):
        how = "only the owner that has acquired it takes it again"
    else:
        how = "a part of what is wanted can't be added to it; take all at once"
    return (
        f"{_names(wish._resources)} would never come: this task itself holds {has}; {how},"
        " and with a wait it is waited for"
    )


def _names(resources: tuple[str, ...]) -> str:
    return ", ".join(map(repr, resources))
