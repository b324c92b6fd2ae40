"""
Re-entrant locks: a second acquisition by the same owner shares the lease that it holds.

A lease belongs to the *owner* of its lock, or without one to the task that has acquired
or entered it. A share needs no request to the masters; the last release releases the lock.
An acquisition that would wait for its own holder for ever raises an error. So does one that
wants a lock which its own holder reads: two readers that waited for that would wait for each
other; and one that waits for a permit while its own task holds all of them.
"""

import asyncio
import math
from collections.abc import Coroutine
from typing import TypeVar

from redlock_aio._engine.hold.held_lease import HeldLease
from redlock_aio._engine.masters import MasterSet
from redlock_aio._engine.options import LockSpec
from redlock_aio._engine.wait.local_queue import LocalQueues
from redlock_aio._protocol.primitives import Permit, Permits
from redlock_aio._rules import lock_value, membership
from redlock_aio._rules.quorum import is_forbidden
from redlock_aio._rules.validation import quoted
from redlock_aio.errors import LockNotAcquiredError, QuorumUnavailableError, RedlockError

T = TypeVar("T")

MORE = (
    "wait for longer (wait=), allow more of them (permits=), or see who holds them:"
    " Semaphore.inspect()"
)
"""What to do if no permit is free."""


def find_shared(
    masters: MasterSet, queues: LocalQueues, lock: LockSpec, *, waits: bool
) -> HeldLease | None:
    """
    Return the lease that this task or *owner* holds on all the lock's keys, or ``None``.

    Raises:
        RedlockError: This task or owner holds the lock or a part of it, so that it would
            wait for itself for ever; or it holds the lock without a fencing token, and
            wants one; or it reads what it wants for itself; or it holds all permits.
    """
    now, task = masters.clock(), asyncio.current_task(masters.loop)
    # A fair wait does not count attempts.
    for_ever = (
        waits
        and lock.options.wait is None
        and (lock.options.fair or lock.options.retry.attempts is None)
    )
    if for_ever and isinstance(lock.key, Permits) and _holds_all(queues, lock.key, lock, task, now):
        who = _whose(lock.owner is None)
        raise RedlockError(
            f"{quoted(lock.resources)} would never be free: {who} holds all its permits;"
            " release one first, or set wait= if another task will release one",
            "own-permits",
        )
    for hold in _holds(queues, lock, now):
        here = hold.is_of(task)
        same = here if lock.owner is None else _is_owner(hold, lock.owner)
        if (here or same) and _is_upgrade(hold, lock):
            raise RedlockError(
                f"{quoted(lock.resources)} can't be acquired:"
                f" {_whose(here)} reads {quoted(hold.resources)}; {_how(hold, lock, same=same)}",
                "read-to-write",
            )
        if same and lock.options.reentrant and _has_all(hold, lock):
            if lock.options.fencing and not hold.claim.fence:
                raise RedlockError(
                    f"{quoted(lock.resources)} can't be acquired again with fencing=True:"
                    " it is held without a fencing token",
                    "reentrant-fencing",
                )
            return hold
        if (here or same) and for_ever and _never_ends(hold):
            raise _would_wait_for_itself(hold, lock, _whose(here), _how(hold, lock, same=same))
    return None


def _holds(queues: LocalQueues, lock: LockSpec, now: float) -> list[HeldLease]:
    """Return the valid leases of this process on keys of *lock*."""
    found = dict.fromkeys(party for key in lock.key.each for party in queues.held(key))
    return [hold for hold in found if isinstance(hold, HeldLease) and hold.valid(now)]


def _own_permit(
    queues: LocalQueues, key: Permit, lock: LockSpec, task: asyncio.Task[object] | None, now: float
) -> HeldLease | None:
    """Return the valid lease of *task*, or of the owner, on the permit *key*, if there is one."""
    for hold in queues.held(key):
        if not isinstance(hold, HeldLease) or not hold.valid(now):
            continue
        # Semaphores have no owners, but in `redlock_aio.sync` the thread is one.
        if hold.is_of(task) if lock.owner is None else _is_owner(hold, lock.owner):
            return hold
    return None


def _holds_all(
    queues: LocalQueues,
    permits: Permits,
    lock: LockSpec,
    task: asyncio.Task[object] | None,
    now: float,
) -> bool:
    """Return whether *task*, or the owner, holds all *permits*, and none ends by itself."""
    for number in range(permits.number):  # most often the first is another one's
        hold = _own_permit(queues, permits.permit(number), lock, task, now)
        if hold is None or not _never_ends(hold):
            return False
    return True


async def unless_shared(
    queues: LocalQueues, lock: LockSpec, asking: Coroutine[object, object, T]
) -> T | None:
    """
    Await *asking*; ``None`` if another task of the same owner has acquired the lock meanwhile.

    Two tasks of one owner may ask for the lock at the same time, and neither holds it yet.
    When the first one acquires it, the second must share it and not wait for it: the
    first may wait for the second before it releases. So *asking* is cancelled in the
    second, which takes its requests back, and the caller looks for the lease again.

    Cancellation:
        Passed on to *asking*. A cancellation by the program wins, also if it comes in the
        same turn of the loop as the one by this function.
    """
    task = asyncio.current_task()
    before = 0 if task is None else task.cancelling()
    shared = False

    def on_acquired(hold: object) -> None:
        nonlocal shared
        if task is None or shared or not isinstance(hold, HeldLease) or not _has_all(hold, lock):
            return
        try:
            shared = _is_owner(hold, lock.owner)
        except Exception:  # noqa: BLE001 - the owners are objects of the user
            # The task that has acquired the lock must not get this error: its lease would be
            # extended for ever. The waiting task does when it resumes, and compares once more.
            shared = True
        if shared:
            task.cancel("others of the same owner have it")

    queues.owner_waiters[on_acquired] = None
    try:
        return await asking
    except asyncio.CancelledError:
        # As in `asyncio.timeout`: further cancellations come from the program.
        if task is None or not shared or task.uncancel() > before:
            raise
        return None
    finally:
        del queues.owner_waiters[on_acquired]


def _is_owner(hold: HeldLease, owner: object) -> bool:
    # An owner need not be comparable with None.
    return hold.owner is not None and owner is not None and bool(hold.owner == owner)


def _is_upgrade(hold: HeldLease, lock: LockSpec) -> bool:
    return hold.claim.key.is_share and not lock.key.is_share


def _whose(here: bool) -> str:
    return "this task itself" if here else "its owner"


def _has_all(hold: HeldLease, lock: LockSpec) -> bool:
    return set(lock.key.each) <= set(hold.claim.key.each)


def _never_ends(hold: HeldLease) -> bool:
    # The lease is extended for ever, or its end would cancel the body that waits.
    return bool(hold.guards) or (hold.renewed and hold.ends == math.inf)


def add_hint(masters: MasterSet, queues: LocalQueues, lock: LockSpec, error: BaseException) -> None:
    """Set the hint of *error* if its own holder holds the lock, or an operator has to act."""
    if not isinstance(error, LockNotAcquiredError):
        return
    now, task = masters.clock(), asyncio.current_task(masters.loop)
    if any(is_forbidden(vote.detail) for vote in error.votes):
        each = lock.key.each if not isinstance(lock.key, Permits) else (lock.key.permit(0),)
        keys = ", ".join(repr(key.decode(errors="replace")) for key in each)
        error.hint = (
            f"the masters' user lacks a permission that a lock with the key {keys} needs: see the"
            " page reference/acl of the documentation"
        )
        return
    if any(membership.is_refusal(vote.detail) for vote in error.votes):
        error.hint = membership.ADVICE
        return
    if lock.key.is_share and error.holder is lock_value.READERS:
        error.hint = "readers have it, and a writer that came earlier comes first"
    if isinstance(lock.key, Permits) and not isinstance(error, QuorumUnavailableError):
        numbers = range(lock.key.number)
        own = [n for n in numbers if _own_permit(queues, lock.key.permit(n), lock, task, now)]
        who = _whose(lock.owner is None)
        error.hint = f"{who} holds {len(own)} of them; {MORE}" if own else MORE
    for hold in _holds(queues, lock, now):
        here = hold.is_of(task)
        same = here if lock.owner is None else _is_owner(hold, lock.owner)
        if here or same:
            how = _how(hold, lock, same=same)
            error.hint = f"{_whose(here)} holds {quoted(hold.resources)}; {how}"


def _would_wait_for_itself(hold: HeldLease, lock: LockSpec, who: str, how: str) -> RedlockError:
    if hold.claim.key.is_share:
        return RedlockError(
            f"{quoted(lock.resources)} might never be free: {who} reads it, and a writer that"
            f" waits for that comes first; {how}, or set wait=",
            "own-read",
        )
    return RedlockError(
        f"{quoted(lock.resources)} would never be free: {who} holds {quoted(hold.resources)};"
        f" {how}, or set wait= if another task will release it",
        "own-lock",
    )


def _how(hold: HeldLease, lock: LockSpec, *, same: bool) -> str:
    """
    Return what to do instead of waiting for *hold*.

    Args:
        same: Whether the owner of *hold* is that of *lock*, or without one this task.
    """
    if _is_upgrade(hold, lock):
        return "release it first, or acquire the lock of a writer from the beginning"
    # `reentrant=True` comes last: in the other cases it would only lead to the next error.
    if not _has_all(hold, lock):
        return "a lease can't get more resources; acquire all at once"
    if not same:
        return "only the owner that acquired it can acquire it again"
    return "reentrant=True acquires it again"
