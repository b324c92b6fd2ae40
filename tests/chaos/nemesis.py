"""
What befalls the masters, from a seed.

Never more than a minority is away at a time, and a master that comes back is
given a moment before the next one goes, in which its clients find it.

A killed master comes back without its memory. It must stay away for longer than
the longest ttl that is in use, or it would grant a lock that it had granted
before its death: the delayed restart, an operator's duty for as long as the
library does not guard against it. So the nemesis does as an operator must.
"""

import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from redlock_aio.testing import EmbeddedMaster

FOUND_AGAIN = 0.7
"""Seconds that clients may take to find a master that is back: half a second between two dials."""

PAUSES = (0.05, 1.8)
STEPS = (0.1, 0.6)
"""Seconds between two deeds, from and to."""


@dataclass(frozen=True, slots=True, order=True)
class Deed:
    """What is done to one master, at how many seconds after the start."""

    at: float
    master: int
    what: str  # pause, resume, kill, start, cut


def schedule(
    chance: random.Random, *, masters: int, seconds: float, away: float, what: Sequence[str]
) -> list[Deed]:
    """
    Return what is to be done, in order; all masters are back at the end.

    Args:
        chance: Where the seed comes in.

        masters: How many there are.

        seconds: When the last master has to be back.

        away: For how many seconds a killed master stays away.

        what: Which of "pause", "kill" and "cut" may happen.
    """
    minority = (masters - 1) // 2
    deeds: list[Deed] = []
    busy_until = [0.0] * masters
    now = chance.uniform(*STEPS)
    while now < seconds:
        free = [number for number, until in enumerate(busy_until) if until <= now]
        master = chance.choice(free)
        deed = chance.choice(what)
        gone = {"pause": chance.uniform(*PAUSES), "kill": away, "cut": 0.0}[deed]
        if masters - len(free) < minority and now + gone < seconds:
            deeds.append(Deed(now, master, deed))
            if deed != "cut":
                deeds.append(Deed(now + gone, master, {"pause": "resume", "kill": "start"}[deed]))
            busy_until[master] = now + gone + FOUND_AGAIN
        now += chance.uniform(*STEPS)
    return sorted(deeds)


def perform(
    deeds: Sequence[Deed], masters: Sequence[EmbeddedMaster], *, away: float
) -> dict[str, int]:
    """Do it, and return how often what was done; the masters are all up afterwards."""
    began = time.monotonic()
    killed: dict[int, float] = {}
    done: dict[str, int] = {}
    for deed in deeds:
        master = masters[deed.master]
        acts: dict[str, Callable[[], None]] = {
            "pause": master.pause, "resume": master.resume, "kill": master.kill,
            "start": master.start, "cut": master.cut,
        }  # fmt: skip
        due = began + deed.at
        if deed.what == "start":
            # From its death, not from when that was planned: this must not be short.
            due = max(due, killed[deed.master] + away)
        time.sleep(max(0.0, due - time.monotonic()))
        acts[deed.what]()
        killed[deed.master] = time.monotonic()
        done[deed.what] = done.get(deed.what, 0) + 1
    return done
