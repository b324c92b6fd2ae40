"""
Checks of the order in which fair waiters are served.

They take parts of the history and return one sentence for each violation, as in `history`.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable

from .history import Wait

SLACK = 0.05
"""
Seconds by which a waiter may have asked earlier than another and be served later.

A waiter's place is the masters' time, which its process knows to within half a round trip.
It is taken a moment after the waiter recorded that it asks, and its request may arrive after
one that was sent later. The longest part is the time for which the machine ran other
processes instead; it is measured, and callers add it.
"""


def overtakings(waits: Iterable[Wait], *, slack: float = SLACK) -> list[str]:
    """
    Return each waiter that was overtaken by one that asked more than *slack* seconds later.

    A waiter that gave up was overtaken by those that were served before it gave up. A
    waiter that was killed while it waited does not count.
    """
    wrong = []
    resources: dict[str, list[Wait]] = defaultdict(list)
    for wait in waits:
        if wait.acquired_at or wait.missed_at:
            resources[wait.resource].append(wait)
    for group in resources.values():
        latest = None
        for wait in sorted(group, key=lambda wait: wait.acquired_at or wait.missed_at):
            if latest is not None and wait.asked_at + slack * 1e9 < latest.asked_at:
                wrong.append(f"{wait} was overtaken by {latest}")
            if wait.acquired_at and (latest is None or wait.asked_at > latest.asked_at):
                latest = wait
    return wrong


def worst_inversion(waits: Iterable[Wait]) -> float:
    """Return the longest time by which a waiter asked earlier and was served later, in s."""
    waits = list(waits)
    slack = 0.0
    while len(overtakings(waits, slack=slack)) > 0:
        slack = 2 * slack or 0.0005
    return slack


FEWEST_TO_MOST = 0.8
"""The least ratio of the fewest turns of a task to the most turns of a task."""


def are_even(had: Counter[tuple[str, int]]) -> bool:
    """
    Return whether all tasks had about the same number of turns.

    A difference of two turns is allowed, because processes begin one after the other, and all
    of them end in the middle of a cycle.
    """
    return min(had.values()) >= FEWEST_TO_MOST * max(had.values()) - 2


def turns(waits: Iterable[Wait]) -> Counter[tuple[str, int]]:
    """Return how often each task held the lock; 0 for tasks that only waited."""
    result: Counter[tuple[str, int]] = Counter()
    for wait in waits:
        result[wait.worker, wait.task] += bool(wait.acquired_at)
    return result
