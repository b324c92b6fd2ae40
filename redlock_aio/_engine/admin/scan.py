"""
The locks and semaphores whose names begin with a prefix, found by SCAN on each master.

    scan each master ──► names that any of them has ──► inspect each name ──► those that are locks
    (step by step)                                      (in batches)

A SCAN blocks its master for one small step at a time, and each step awaits its reply. The
number of steps and of names is limited, because a master may have many other keys.

The keys of permits begin with a prefix of their own, so a scan for a prefix is two.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import NamedTuple

from redlock_aio._engine.admin.survey import Inspection, inspect_permits
from redlock_aio._engine.masters import MasterSet
from redlock_aio._protocol import commands, lock_state, replies
from redlock_aio._protocol.lock_state import FoundLocks, LockState, MasterView
from redlock_aio._protocol.primitives import Mutex, Permits
from redlock_aio._protocol.request import Request
from redlock_aio._protocol.semaphore_state import SemaphoreView
from redlock_aio._rules.quorum import Answer, Vote, majority
from redlock_aio._rules.validation import MOST_PERMITS

PER_STEP = 1_000
"""The keys that a master looks at in one step."""

MOST_STEPS = 1_000
"""The most steps on one master: with a million keys the answer is incomplete, and says so."""

AT_ONCE = 100
"""The locks that are inspected together."""

SEMAPHORES_AT_ONCE = 10
"""The semaphores that are inspected together: each takes a master a millisecond."""


class ScannedNames:
    """
    The names that belong to keys of a master.

    Args:
        prefix: How the keys of the names begin.

        resource_of: Returns the name of a key, ``None`` if it can have none.
    """

    __slots__ = ("_prefix", "_resource_of", "locks", "semaphores")

    def __init__(self, prefix: bytes, resource_of: Callable[[bytes], str | None]) -> None:
        self._prefix = prefix
        self._resource_of = resource_of
        self.locks: dict[bytes, str] = {}
        """Each key that a lock may have, and its name."""
        self.semaphores: dict[bytes, str] = {}
        """Likewise for semaphores; a lock of this name would have the key."""

    def add(self, key: bytes) -> None:
        semaphore = commands.semaphore_of(key)
        if semaphore is not None and not semaphore.startswith(self._prefix):
            return
        name = self._resource_of(key if semaphore is None else semaphore)
        if name is None:
            return
        if semaphore is None:
            self.locks[key] = name
        else:
            self.semaphores[semaphore] = name

    @property
    def most(self) -> int:
        return max(len(self.locks), len(self.semaphores))


class Scanned(NamedTuple):
    """What one master has, and how its scan ended."""

    names: ScannedNames
    vote: Vote
    whole: bool
    """Whether the scan has reached its end, and the master has forgotten no lock."""


async def find_locks(
    masters: MasterSet, prefix: bytes, limit: int, resource_of: Callable[[bytes], str | None]
) -> FoundLocks:
    """Return what has a key that begins with *prefix*: *limit* locks and *limit* semaphores."""
    scanned = await asyncio.gather(
        *(
            _scan(masters, number, prefix, limit, resource_of)
            for number in range(len(masters.links))
        )
    )
    masters.check_open()
    names = sorted({(name, key) for each in scanned for key, name in each.names.locks.items()})
    votes, hidden = tuple(each.vote for each in scanned), False
    found: list[LockState] = []
    for begin in range(0, min(len(names), limit), AT_ONCE):
        batch = names[begin : min(begin + AT_ONCE, limit)]
        asked = [(name, Inspection(masters, lock_state.inspect(key))) for name, key in batch]
        await asyncio.gather(*(inspection.run() for _, inspection in asked))
        states = [lock_state.lock_state(name, each.master_replies()) for name, each in asked]
        for state in states:
            if any(view.kept_by for view in state.views):
                found.append(state)
            elif not state.certain:
                # The masters with the key do not answer now, or forbid to inspect it: that takes
                # more permissions than the scan. It is not known to be free.
                votes, hidden = _with_refusals(votes, state.views), True
    permits = sorted({its for each in scanned for its in each.names.semaphores.items()})
    held: dict[str, int] = {}
    for begin in range(0, min(len(permits), limit), SEMAPHORES_AT_ONCE):
        some = permits[begin : min(begin + SEMAPHORES_AT_ONCE, limit)]
        looks = [
            inspect_permits(masters, name, Permits(Mutex(key), MOST_PERMITS)) for key, name in some
        ]
        for its in await asyncio.gather(*looks):
            if any(view.holders for view in its.views):
                held[its.resource] = its.claimed
            elif not its.certain:
                votes, hidden = _with_refusals(votes, its.views), True
    # A lock is on a majority, and so at least on one of so many masters.
    needed = len(scanned) - majority(len(scanned)) + 1
    few = len(names) <= limit and len(permits) <= limit
    whole = sum(each.whole for each in scanned) >= needed and few
    return FoundLocks(tuple(found), whole and not hidden, votes, held)


def _with_refusals(
    votes: tuple[Vote, ...], views: Sequence[MasterView] | Sequence[SemaphoreView]
) -> tuple[Vote, ...]:
    """Return *votes* with the reason of each master that was scanned and does not count here."""
    reasons = [view.vote if not view.counts else None for view in views]
    return tuple(
        why if vote.answer in (Answer.HELD, Answer.FREE) and why is not None else vote
        for vote, why in zip(votes, reasons, strict=True)
    )


async def _scan(
    masters: MasterSet,
    number: int,
    prefix: bytes,
    limit: int,
    resource_of: Callable[[bytes], str | None],
) -> Scanned:
    link, names, cursor = masters.links[number], ScannedNames(prefix, resource_of), b"0"
    for begin in (prefix, commands.PERMIT) if prefix else (b"",):
        cursor = b"0"
        for _ in range(MOST_STEPS):
            reply = await _asked(masters, number, commands.scan(cursor, begin, PER_STEP))
            step = replies.scanned(reply)
            if step is None:
                vote = replies.vote(link.name, reply, replies.classify)
                return Scanned(names, vote, whole=False)
            cursor, keys = step
            for key in keys:
                names.add(link.known_as(key))
            if cursor == b"0" or names.most > limit:
                break
        if cursor != b"0":
            break
    if link.quarantine:  # it may have forgotten the keys that it does not name
        return Scanned(names, Vote(link.name, Answer.QUARANTINED, link.quarantine), whole=False)
    answer = Answer.HELD if names.most else Answer.FREE
    return Scanned(names, Vote(link.name, answer), whole=cursor == b"0")


async def _asked(masters: MasterSet, number: int, payload: bytes) -> object:
    waiter: asyncio.Future[object] = masters.loop.create_future()

    def on_reply(_master: int, reply: object) -> None:
        if not waiter.done():
            waiter.set_result(reply)

    masters.send_to(number, Request(payload, on_reply))
    timer = masters.loop.call_later(
        masters.master_timeout / 1000,
        lambda: on_reply(number, masters.links[number].overdue()),
    )
    try:
        return await waiter
    finally:
        timer.cancel()
