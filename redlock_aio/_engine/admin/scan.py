"""
The locks whose names begin with a prefix, found by SCAN on each master.

    scan each master ──► names that any of them has ──► inspect each name ──► those that are locks
    (step by step)                                      (in batches)

A SCAN blocks its master for one small step at a time, and each step awaits its reply. The
number of steps and of names is limited, because a master may have many other keys.
"""

import asyncio
from collections.abc import Callable
from typing import NamedTuple

from redlock_aio._engine.admin.survey import Inspection
from redlock_aio._engine.masters import MasterSet
from redlock_aio._protocol import commands, lock_state, replies
from redlock_aio._protocol.lock_state import FoundLocks, LockState
from redlock_aio._protocol.request import Request
from redlock_aio._rules.quorum import Answer, Vote, majority

PER_STEP = 1_000
"""The keys that a master looks at in one step."""

MOST_STEPS = 1_000
"""The most steps on one master: with a million keys the answer is incomplete, and says so."""

AT_ONCE = 100
"""The locks that are inspected together."""


class Scanned(NamedTuple):
    """What one master has, and how its scan ended."""

    names: dict[bytes, str]
    """Each key that a lock may have, and the name of the lock."""
    vote: Vote
    whole: bool
    """Whether the scan has reached its end, and the master has forgotten no lock."""


async def find_locks(
    masters: MasterSet, prefix: bytes, limit: int, resource_of: Callable[[bytes], str | None]
) -> FoundLocks:
    """Return the locks whose keys begin with *prefix*, at most *limit* of them."""
    scanned = await asyncio.gather(
        *(
            _scan(masters, number, prefix, limit, resource_of)
            for number in range(len(masters.links))
        )
    )
    masters.check_open()
    names = sorted({(name, key) for each in scanned for key, name in each.names.items()})
    votes, hidden = tuple(each.vote for each in scanned), False
    found: list[LockState] = []
    for begin in range(0, min(len(names), limit), AT_ONCE):
        batch = names[begin : min(begin + AT_ONCE, limit)]
        asked = [(name, Inspection(masters, key)) for name, key in batch]
        await asyncio.gather(*(inspection.run() for _, inspection in asked))
        states = [lock_state.lock_state(name, each.master_replies()) for name, each in asked]
        for state in states:
            if any(view.kept_by for view in state.views):
                found.append(state)
            elif not state.certain:
                # The masters with the key do not answer now, or forbid to inspect it: that takes
                # more permissions than the scan. It is not known to be free.
                votes, hidden = _with_refusals(votes, state), True
    # A lock is on a majority, and so at least on one of so many masters.
    needed = len(scanned) - majority(len(scanned)) + 1
    whole = sum(each.whole for each in scanned) >= needed and len(names) <= limit
    return FoundLocks(tuple(found), whole and not hidden, votes)


def _with_refusals(votes: tuple[Vote, ...], state: LockState) -> tuple[Vote, ...]:
    """Return *votes* with the reason of each master that was scanned and has shown no *state*."""
    return tuple(
        view.vote if vote.answer in (Answer.HELD, Answer.FREE) and not view.counts else vote
        for vote, view in zip(votes, state.views, strict=True)
    )


async def _scan(
    masters: MasterSet,
    number: int,
    prefix: bytes,
    limit: int,
    resource_of: Callable[[bytes], str | None],
) -> Scanned:
    link, names, cursor = masters.links[number], dict[bytes, str](), b"0"
    for _ in range(MOST_STEPS):
        reply = await _asked(masters, number, commands.scan(cursor, prefix, PER_STEP))
        step = replies.scanned(reply)
        if step is None:
            return Scanned(names, replies.vote(link.name, reply, replies.classify), whole=False)
        cursor, keys = step
        names |= {key: name for key in keys if (name := resource_of(key)) is not None}
        if cursor == b"0" or len(names) > limit:
            break
    if link.quarantine:  # it may have forgotten the keys that it does not name
        return Scanned(names, Vote(link.name, Answer.QUARANTINED, link.quarantine), whole=False)
    answer = Answer.HELD if names else Answer.FREE
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
