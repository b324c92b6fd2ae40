"""
Whether those who waited in order were served in order.

Diaries in, sentences about what is wrong out, as in `history`.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable

from .history import Wait

SLACK = 0.05
"""
Seconds by which a waiter may have asked earlier and yet come later.

Its place is the time of the masters, as its process knows it, to within half a
round trip; it gets the place a moment after it has noted that it asks; and its
request may arrive after one that left later. What takes longest of that is that
another process is run on its processor meanwhile: how long that was is measured, and comes on top.
"""


def overtakings(waits: Iterable[Wait], *, slack: float = SLACK) -> list[str]:
    """
    Return who was overtaken by whom: by one who had asked later by more than *slack*.

    Whoever gave up was overtaken by those who came before that. Whoever was killed
    while it waited does not count.
    """
    wrong = []
    resources: dict[str, list[Wait]] = defaultdict(list)
    for wait in waits:
        if wait.acquired_at or wait.missed_at:
            resources[wait.resource].append(wait)
    for those in resources.values():
        latest = None
        for wait in sorted(those, key=lambda wait: wait.acquired_at or wait.missed_at):
            if latest is not None and wait.asked_at + slack * 1e9 < latest.asked_at:
                wrong.append(f"{wait} was overtaken by {latest}")
            if wait.acquired_at and (latest is None or wait.asked_at > latest.asked_at):
                latest = wait
    return wrong


def worst_inversion(waits: Iterable[Wait]) -> float:
    """Return by how many seconds at most somebody asked earlier and came later."""
    waits = list(waits)
    slack = 0.0
    while len(overtakings(waits, slack=slack)) > 0:
        slack = 2 * slack or 0.0005
    return slack


FEWEST_TO_MOST = 0.8
"""How many turns the waiter with the fewest has, to those of the one with the most."""


def are_even(had: Counter[tuple[str, int]]) -> bool:
    """
    Return whether all tasks had about as many turns.

    Two turns more or less come of processes that begin one after the other, and all end in the
    middle of a round.
    """
    return min(had.values()) >= FEWEST_TO_MOST * max(had.values()) - 2


def turns(waits: Iterable[Wait]) -> Counter[tuple[str, int]]:
    """Return how often each task had its turn, 0 for those who only waited."""
    found: Counter[tuple[str, int]] = Counter()
    for wait in waits:
        found[wait.worker, wait.task] += bool(wait.acquired_at)
    return found
