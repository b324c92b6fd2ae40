"""
What befalls the masters, from a seed.

Never more than a minority is away at a time, and a master that comes back is
given a moment before the next one goes, in which its clients find it.

A killed master comes back soon, without its memory. That it does not grant what it
had granted before its death is the restart guard's doing. Until it votes again it
counts as away.
"""

import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from redlock_aio.testing import EmbeddedMaster

FOUND_AGAIN = 0.7
"""Seconds that clients may take to find a master that is back: half a second between two dials."""

PAUSES = (0.05, 1.8)
AWAY = 0.2
"""For how many seconds a killed master is not there: as long as a restart takes."""

STEPS = (0.1, 0.6)
"""Seconds between two deeds, from and to."""


@dataclass(frozen=True, slots=True, order=True)
class Deed:
    """What is done to one master, at how many seconds after the start."""

    at: float
    master: int
    what: str  # pause, resume, kill, start, cut


def schedule(
    chance: random.Random,
    *,
    masters: int,
    seconds: float,
    what: Sequence[str],
    out: float = 0.0,
    away: float = AWAY,
) -> list[Deed]:
    """
    Return what is to be done, in order; all masters are back at the end.

    Args:
        chance: Where the seed comes in.

        masters: How many there are.

        seconds: When the last master has to be back.

        what: Which of "pause", "kill" and "cut" may happen.

        out: For how many seconds a master has no vote that is back.

        away: For how many seconds a killed master is not there.
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
            busy_until[master] = now + gone + FOUND_AGAIN + (out if deed == "kill" else 0.0)
        now += chance.uniform(*STEPS)
    return sorted(deeds)


def perform(deeds: Sequence[Deed], masters: Sequence[EmbeddedMaster]) -> dict[str, int]:
    """Do it, and return how often what was done; the masters are all up afterwards."""
    began = time.monotonic()
    done: dict[str, int] = {}
    for deed in deeds:
        master = masters[deed.master]
        acts: dict[str, Callable[[], None]] = {
            "pause": master.pause, "resume": master.resume, "kill": master.kill,
            "start": master.start, "cut": master.cut,
        }  # fmt: skip
        time.sleep(max(0.0, began + deed.at - time.monotonic()))
        acts[deed.what]()
        done[deed.what] = done.get(deed.what, 0) + 1
    return done
