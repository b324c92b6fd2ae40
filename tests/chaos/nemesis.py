"""
The nemesis, in Jepsen's sense: it injects faults into the masters, on a schedule from a seed.

At most a minority of the masters is without a vote at a time. After a master has come
back, its clients get a moment to connect to it before the next fault.

A killed master restarts soon, without its data. The restart guard keeps it from granting
a lock that it had granted before; until it votes again it counts as one of the minority.
"""

import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from redlock_aio.testing import EmbeddedMaster

RECONNECT = 0.7
"""Seconds in which clients reconnect to a master that is back: they dial every half second."""

PAUSES = (0.05, 1.8)
DOWNTIME = 0.2
"""Seconds for which a killed master is down: as long as a restart takes."""

INTERVALS = (0.1, 0.6)
"""The shortest and the longest time between two faults, in seconds."""


@dataclass(frozen=True, slots=True, order=True)
class Fault:
    """One action on one master, *at* seconds after the start."""

    at: float
    master: int
    kind: str  # pause, resume, kill, start, cut


def schedule(
    chance: random.Random,
    *,
    masters: int,
    seconds: float,
    kinds: Sequence[str],
    quarantine: float = 0.0,
    downtime: float = DOWNTIME,
) -> list[Fault]:
    """
    Return the faults in their order; all masters are back at the end.

    Args:
        chance: The seeded source of random numbers.

        masters: The number of masters.

        seconds: The time by which the last master is back.

        kinds: The faults to choose from: "pause", "kill" and "cut".

        quarantine: The seconds for which a restarted master has no vote.

        downtime: The seconds for which a killed master is down.
    """
    minority = (masters - 1) // 2
    faults: list[Fault] = []
    busy_until = [0.0] * masters
    now = chance.uniform(*INTERVALS)
    while now < seconds:
        free = [number for number, until in enumerate(busy_until) if until <= now]
        master = chance.choice(free)
        kind = chance.choice(kinds)
        gone = {"pause": chance.uniform(*PAUSES), "kill": downtime, "cut": 0.0}[kind]
        if masters - len(free) < minority and now + gone < seconds:
            faults.append(Fault(now, master, kind))
            if kind != "cut":
                faults.append(Fault(now + gone, master, {"pause": "resume", "kill": "start"}[kind]))
            busy_until[master] = now + gone + RECONNECT + (quarantine if kind == "kill" else 0.0)
        now += chance.uniform(*INTERVALS)
    return sorted(faults)


def inject(faults: Sequence[Fault], masters: Sequence[EmbeddedMaster]) -> dict[str, int]:
    """Inject *faults* at their times; return how often each kind was injected."""
    began = time.monotonic()
    injected: dict[str, int] = {}
    for fault in faults:
        master = masters[fault.master]
        actions: dict[str, Callable[[], None]] = {
            "pause": master.pause, "resume": master.resume, "kill": master.kill,
            "start": master.start, "cut": master.cut,
        }  # fmt: skip
        time.sleep(max(0.0, began + fault.at - time.monotonic()))
        actions[fault.kind]()
        injected[fault.kind] = injected.get(fault.kind, 0) + 1
    return injected
