"""Runs that show whether faults happen and checks see them: those without protection must fail."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from .faults import LONG_BODIES, ROWS, Row
from .world import World


@dataclass(frozen=True, slots=True)
class Control:
    """
    A run that shows whether faults happen and checks see them.

    Attributes:
        name: Its name in the table and on the command line.

        what: What it shows, in a sentence.

        column: The kind of lock.

        expected: "fails" or "holds".

        job: What is different in the clients' job.
    """

    name: str
    what: str
    row: Row
    column: str
    expected: str
    seconds: float = 0.0
    job: Mapping[str, object] = field(default_factory=dict)


def majority_restarted_often(world: World) -> None:
    """Restart three of five masters empty at once, three times."""
    for share in (0.15, 0.45, 0.75):
        world.until(share)
        world.restart(0, 1, 2)
    world.until(1)


def row(name: str) -> Row:
    """Return the row with this name."""
    return next(each for each in ROWS if each.name == name)


FORGETFUL: Mapping[str, object] = {
    "body": (0.4, 0.9), "auto_extend": False, "extend": 0.0, "handover": 0.0,
}  # fmt: skip
"""Holders for whom a restart is too short to notice: they ask no master before they release."""

BLIND: Mapping[str, object] = {
    "body": (0.05, 0.4), "auto_extend": False, "extend": 0.0, "handover": 0.0, "checks": False,
}  # fmt: skip
"""Holders that do not look whether their lease is valid before they write."""

CROWDED: Mapping[str, object] = {"keys": ("red",), "body": (0.0, 0.005)}
"""All want one key: only requests that cross split the grants of the masters in three."""

OFTEN = Row(
    "majority restarted often", "Three masters restart empty, three times.",
    majority_restarted_often,
)  # fmt: skip

CONTROLS = (
    Control(
        "no lock", "Clients work without a lock.", row("no fault"), "no lock", "fails",
        seconds=3.0,
    ),
    Control(
        "restart guard off", "Three masters restart empty, three times, and vote at once.",
        OFTEN, "plain", "fails",
        job={**FORGETFUL, "guard": "off"},
    ),
    Control(
        "restart guard off, usual holders", "The same with the holders of the rows.",
        OFTEN, "plain", "fails", job={**LONG_BODIES, "guard": "off"},
    ),
    Control(
        "restart guard on", "The first of these two with the guard.",
        OFTEN, "plain", "holds", job=FORGETFUL,
    ),
    *(
        Control(
            f"{name}, guard off", "The row without the restart guard.",
            row(name), "plain", "fails", job={"guard": "off"},
        )
        for name in (
            "promoted", "there and back", "endpoint moves, the old one lives",
            "one of three endpoints moves unseen",
        )
    ),
    Control(
        "Cluster, restart guard off",
        "Two replicas of a Cluster lose all locks, are promoted, and vote at once.",
        row("Cluster, failover"), "plain", "fails",
        job={**FORGETFUL, "guard": "off"},
    ),
    Control(
        "plain lock, holder stopped",
        "Holders are stopped for longer than the ttl, and write without a look at the lease.",
        row("holder stopped"), "plain", "fails", job=BLIND,
    ),
    Control(
        "fenced lock, holder stopped", "The same, and the store checks the fencing token.",
        row("holder stopped"), "fenced", "holds", job=BLIND,
    ),
    Control(
        "check then register",
        "A reader looks for a writer, and then registers; a writer does the reverse.",
        row("no fault"), "check then register", "fails",
        seconds=3.0,
    ),
    Control(
        "readers counted",
        "Each master counts its readers; each release counts down on all of them.",
        row("no fault"), "readers counted", "fails",
        seconds=3.0,
    ),
    Control(
        "holders counted",
        "Each master counts the holders of a semaphore, up to the number of its permits.",
        row("no fault"), "holders counted", "fails",
        seconds=3.0, job=CROWDED,
    ),
    Control(
        "slots added up",
        "Each master grants any free permit; grants of different permits count together.",
        row("no fault"), "slots added up", "fails",
        seconds=3.0, job=CROWDED,
    ),
)  # fmt: skip
