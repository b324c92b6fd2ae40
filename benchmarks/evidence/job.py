"""What the client processes of a run do, in a file that they read."""

import dataclasses
import json
from pathlib import Path
from typing import Any, Literal

LONG = 0.004
"""The share of long bodies, unless the row has another one."""


@dataclasses.dataclass(frozen=True, slots=True)
class Job:
    """The work of all processes of a run."""

    folder: str
    """Where histories are written, and processes hand leases over."""

    contestant: str
    urls: tuple[str, ...]
    store: str
    """The URL of the server that keeps the registers and counters; nothing happens to it."""

    seed: int
    ttl: int = 1_000
    guard: Literal["auto", "off"] = "auto"
    keys: tuple[str, ...] = ("red", "green", "blue")
    tasks: int = 6
    wait: int = 5_000
    """For how many ms an acquisition waits."""

    body: tuple[float, float] = (0.001, 0.02)
    """The shortest and longest time in seconds between acquiring and writing."""

    long: float = LONG
    """The share of bodies that outlast the ttl, by extensions, or take half of it without."""

    extend: float = 0.05
    """The share of bodies with an explicit extension."""

    handover: float = 0.01
    """The share of leases that another process adopts."""

    force: float = 0.0
    """How often in a second each process releases a key by force."""

    auto_extend: bool = True
    checks: bool = True
    """Whether holders look whether their lease is valid before they write."""

    cancel: float = 0.0
    """
    The share of turns, each from an acquisition to its release, that are cancelled at a random
    moment. Then each process checks at its end that nothing of the turns is left in it.
    """

    misuse: bool = False
    """
    Whether the lock is used in the wrong way that its kind tempts to: controls show by it that the
    checks see that. A body ignores that it is cancelled. An inner block releases the outer lease. A
    lock is not kept after its release. A command leaves its process group.
    """

    rest: float = 0.0
    """The longest time in seconds for which a task rests after a turn."""

    pace: float = 0.0
    """
    The longest time in seconds between the begins of two turns of a task, unless the first one
    takes longer: a fast machine has not more to do then than a slow one can.
    """

    stall: float = 1.7
    """Seconds for which SIGUSR1 blocks the event loop."""

    @classmethod
    def read(cls, path: Path) -> "Job":
        """Read a job from a file."""
        facts: dict[str, Any] = json.loads(path.read_text())
        facts |= {name: tuple(each) for name, each in facts.items() if isinstance(each, list)}
        return cls(**facts)

    def write(self, path: Path) -> None:
        """Write the job to a file."""
        path.write_text(json.dumps(dataclasses.asdict(self), indent=1))
