"""
The statements about speed that are checked in each of ten runs, and the README's sentence.

`beside.py` makes the runs and keeps them in `results-go.json`. A statement compares a figure of
this library with that of another one within the same run, so a busy machine slows both. The README
says only what every run shows; `publish.py` writes it, and a test compares it with the runs.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from contenders import FAIR, PLAIN, POTTERY, REDIS_PY

NODE = "node-redlock on five"
REDSYNC, FAIL_FAST = "redsync (Go) on five", "redsync (Go) on five with failFast"
RUEIDISLOCK = "rueidislock (Go) on one"
OTHERS = (REDIS_PY, POTTERY, NODE, REDSYNC, FAIL_FAST, RUEIDISLOCK)

Figures = dict[str, Any]
"""What one contestant took in one measurement; None where it made no pair."""

Run = dict[str, dict[str, dict[str, Figures]]]
"""The figures by what is measured, number of tasks, and contestant."""


@dataclass(frozen=True, slots=True)
class Statement:
    """That one of ours is better than others in a figure."""

    text: str
    ours: str
    what: str
    tasks: int
    figure: str
    more: bool = False
    """Whether more is better."""

    def ratios(self, runs: Sequence[Run], other: str) -> list[float]:
        """Return by how much ours is better, in each run that has both: above 1 it is."""
        ratios = []
        for run in runs:
            found = run[self.what].get(str(self.tasks), {})
            ours, theirs = (found.get(who, {}).get(self.figure) for who in (self.ours, other))
            if ours and theirs:
                ratios.append(ours / theirs if self.more else theirs / ours)
        return ratios

    def better(self, runs: Sequence[Run], other: str) -> int:
        """Return in how many of the runs ours is better."""
        return sum(ratio > 1 for ratio in self.ratios(runs, other))

    def worse(self, runs: Sequence[Run], other: str) -> int:
        return sum(ratio < 1 for ratio in self.ratios(runs, other))


CPU = Statement("less CPU time of the client per pair, 100 tasks", PLAIN, "pairs", 100, "cpu")
ALONE = Statement("less latency of a pair (median), 1 task", PLAIN, "pairs", 1, "p50")
WAIT = Statement("a shorter longest wait, 100 waiters, fair", FAIR, "waiters", 100, "wait")
STATEMENTS = (
    CPU,
    Statement("less CPU time of the client per pair, 1 task", PLAIN, "pairs", 1, "cpu"),
    Statement("less CPU time of the servers per pair, 100 tasks", PLAIN, "pairs", 100, "servers"),
    ALONE,
    Statement("more pairs/s, 100 tasks", PLAIN, "pairs", 100, "rate", more=True),
    Statement("more pairs/s, 1,000 tasks", PLAIN, "pairs", 1_000, "rate", more=True),
    Statement("less latency of a pair (p99), 1,000 tasks", PLAIN, "pairs", 1_000, "p99"),
    Statement("a faster hand-over (median), 100 waiters", PLAIN, "waiters", 100, "handover"),
    Statement("more turns/s, 100 waiters", PLAIN, "waiters", 100, "rate", more=True),
    WAIT,
)

RUNS = 10
"""How many runs there are at least behind what the README says."""

COUNTS = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")
SHARES = ("a half", "a third", "a quarter", "a fifth", "a sixth", "a seventh", "an eighth",
          "a ninth", "a tenth")  # fmt: skip


def sentence(runs: Sequence[Run]) -> str:
    """
    Return what the README says about speed: only what every one of the *runs* shows.

    Its claims are `CPU`, `ALONE` and `WAIT`, and their contraries. Those who are worse, or better,
    in each of the runs are named, and nobody else is.

    Raises:
        ValueError: Nobody is worse in each of the runs: there is nothing to say.
    """
    if not any(always(runs, each) for each in (CPU, ALONE, WAIT)):
        raise ValueError(f"no claim about speed holds in each of the {len(runs)} runs")
    pair = "a pair of acquire and release on five servers costs the client {} CPU time than with"
    said = [
        compared(runs, CPU, pair),
        share(runs),
        compared(runs, ALONE, "Alone it takes {} time than with"),
        compared(runs, WAIT, "With `fair=True` the longest of 100 waiters waits {} than with"),
    ]
    number = COUNTS[len(runs)] if len(runs) < len(COUNTS) else f"{len(runs):,}"
    text = " ".join(filter(None, said))
    return f"Each of {number} runs on one machine shows this: {text}"


def compared(runs: Sequence[Run], statement: Statement, text: str) -> str:
    """Return *text* with all that are worse, and all that are better, in each of the *runs*."""
    worse, better = always(runs, statement), always(runs, statement, better=True)
    if worse and better:
        return f"{text.format('less')} {listed(worse)}, and more than with {listed(better)}."
    if worse or better:
        return f"{text.format('less' if worse else 'more')} {listed(worse or better)}."
    return ""


def always(runs: Sequence[Run], statement: Statement, *, better: bool = False) -> list[str]:
    """Return those who are worse than we are, or *better*, in each of the *runs*."""
    count = statement.worse if better else statement.better
    return [name for name in OTHERS if count(runs, name) == len(runs)]


def listed(names: Sequence[str]) -> str:
    """Return the *names*, with the number of servers once for all that have the same."""
    if set(names) == set(OTHERS):
        return f"any of the {COUNTS[len(OTHERS)]} others"
    places: dict[str, list[str]] = {}
    for name in names:
        if name == FAIL_FAST and REDSYNC in names:
            continue  # the same library with another setting
        who, _, place = name.partition(" on ")
        places.setdefault(place, []).append(who)
    groups = [f"{joined(who)} on {place}" for place, who in places.items()]
    return ", and ".join(filter(None, [", ".join(groups[:-1]), groups[-1]]))


def joined(words: Sequence[str]) -> str:
    return " and ".join(filter(None, [", ".join(words[:-1]), words[-1]]))


def share(runs: Sequence[Run]) -> str:
    """Say what part of redis-py's CPU time ours is in each of the *runs*; "" above a half."""
    least = int(min(CPU.ratios(runs, REDIS_PY), default=0))
    return f"That is at most {SHARES[min(least, 10) - 2]} of redis-py's." if least >= 2 else ""
