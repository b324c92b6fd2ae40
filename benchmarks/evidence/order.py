"""
The order in which fair waiters are served, and the losses of which holders are told.

Both are promises of time: `meta.json` says how late is too late.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence

from .history import NEVER, Fault, History, Operation
from .leases import Leases, Tenure

MS = 1_000_000
"""Nanoseconds in a millisecond."""

FEWEST_TO_MOST = 0.8
"""The least ratio of the fewest turns of a client to the most turns of a client."""


def waits(history: History) -> dict[tuple[str, ...], list[Operation]]:
    """Return the acquisitions of each set of keys whose end is known, in the order of their end."""
    result: dict[tuple[str, ...], list[Operation]] = defaultdict(list)
    for one in sorted(history.operations, key=lambda one: one.ended_at):
        if one.what == "acquire" and one.end != "info":
            keys = tuple(sorted(one.keys))
            result[("a permit of", *keys) if one.permits else keys].append(one)
    return result


def overtakings(group: Sequence[Operation], slack: int) -> Iterator[tuple[Operation, Operation]]:
    """
    Yield each waiter that was overtaken, and by whom. Readers may overtake each other.

    A waiter's place is the masters' time, which its process knows to within half a round trip, and
    it is taken a moment after the waiter began to wait. So one may have asked up to *slack* ns
    earlier than another and be served later. A waiter that gave up was overtaken by those
    that asked later and were served before it gave up.

    Args:
        group: The acquisitions of one set of keys, in the order of their end.
    """
    latest: dict[bool, Operation] = {}  # of the readers that were served, and of the others
    for one in group:
        rivals = [other for shared, other in latest.items() if not (shared and one.shared)]
        rival = max(rivals, key=lambda other: other.invoked_at, default=None)
        if rival is not None and one.invoked_at + slack < rival.invoked_at:
            yield one, rival
        mine = latest.get(one.shared)
        if one.end == "ok" and (mine is None or one.invoked_at > mine.invoked_at):
            latest[one.shared] = one


def passed(group: Sequence[Operation], slack: int) -> Iterator[tuple[Operation, Operation]]:
    """
    Yield each waiter for a permit that one passed which had waited for less than half as long.

    Waiters of a semaphore are in one queue for each permit. That is what is promised of one that
    waits for another permit than the one that becomes free.

    Args:
        group: The acquisitions of one semaphore, in the order of their end.

        slack: By how many ns the longer wait may be more than twice the other one.
    """
    oldest: Operation | None = None  # of those that waited for longer
    for one in reversed(group):
        if oldest is not None and one.end == "ok":
            waited, longer = one.ended_at - one.invoked_at, one.ended_at - oldest.invoked_at
            if longer > 2 * waited + slack:
                yield oldest, one
        if oldest is None or one.invoked_at < oldest.invoked_at:
            oldest = one


def turns(group: Sequence[Operation]) -> Counter[str]:
    """Return how often each client had the lock; 0 for one that only waited."""
    result: Counter[str] = Counter()
    for one in group:
        result[one.client] += one.end == "ok"
    return result


def are_even(had: Counter[str]) -> bool:
    """
    Return whether all clients had about the same number of turns.

    A difference of two is allowed: processes begin one after the other, and all end in a cycle.
    """
    return min(had.values()) >= FEWEST_TO_MOST * max(had.values()) - 2


def stopped(history: History, leases: Leases) -> Iterator[tuple[Tenure, Fault, int]]:
    """
    Yield the leases that expired while their process was stopped, the stop, and when they expired.

    Left out are leases that were handed over: nobody is told of their end.
    """
    for fault in history.faults:
        if fault.name != "stall":
            continue
        for tenure in leases.all.values():
            asked = [ttl for at, ttl in tenure.ttls if at < fault.began_at]
            if tenure.origin.process != fault.client or tenure.handed_over != NEVER or not asked:
                continue
            over = fault.began_at + max(asked) * MS
            ended = min([*tenure.ends, *tenure.forced], default=NEVER)
            # What its process did up to `over` it did before it was stopped.
            if tenure.began_at < fault.began_at and over < fault.ended_at and ended > over:
                yield tenure, fault, over


def told_at(tenure: Tenure, since: int) -> int:
    """Return when the holder was told that its lease is over, after *since*; `NEVER` if not."""
    losses = (at for at, _ in tenure.losses)
    refusals = (at for _, at, _ in tenure.refusals)
    return min((at for at in (*losses, *refusals) if at >= since), default=NEVER)
