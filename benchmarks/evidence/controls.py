"""Runs that show whether faults happen and checks see them: those without protection must fail."""

import functools
from collections.abc import Mapping
from dataclasses import dataclass, field

from .faults import (
    GONE,
    LET_EXPIRE,
    LONG_BODIES,
    PROMPT,
    ROWS,
    SUSPENDED,
    Row,
    gone_back,
    majority_restarted,
    rates,
    suspended,
)


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

UNEVEN = Row(
    "clock rates differ by far",
    "The clocks of masters and clients run up to 5 % too fast or too slow, so that two drift apart"
    " by 10 %.",
    rates(0.05), needs=frozenset({"clocks"}), job=LET_EXPIRE, longest_gap=PROMPT,
)  # fmt: skip

UNCOUNTED = Row(
    "client suspended, not counted",
    "Machines of holders are suspended, and no clock of theirs counts the time.",
    functools.partial(suspended, counted=False), late=True,
    needs=frozenset({"network", "clocks"}), job=SUSPENDED, longest_gap=GONE,
)  # fmt: skip

ROLLED_BACK = Row(
    "restored with its memory",
    "Three masters have their memory of 0.4 s before again, as a virtual machine that is restored"
    " from a snapshot: no server restarts, so the guard sees nothing.",
    gone_back, needs=frozenset({"snapshots"}), longest_gap=PROMPT,
)  # fmt: skip

OFTEN = Row(
    "majority restarted often", "Three masters restart empty, three times.",
    majority_restarted, longest_gap=PROMPT,
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
    Control(
        "cancellation ignored", "A body that is cancelled when its lease is lost writes on.",
        row("majority restarted empty"), "cancelled", "fails",
        job={"body": (3.0, 6.0), "misuse": True},
    ),
    Control(
        "threads, holder stopped", "Threads are stopped, and write without a look at the lease.",
        row("holder stopped"), "sync", "fails", job=BLIND,
    ),
    Control(
        "command leaves its group", "`redlock run` takes a command for ended that goes on.",
        row("no fault"), "command", "fails",
        # The first commands are those that leave. They write until the end, so a few are enough.
        seconds=6.0, job={"misuse": True, "rest": 3.0},
    ),
    Control(
        "inner block releases the outer", "Who holds a lock twice releases both inside.",
        row("no fault"), "reentrant", "fails",
        seconds=3.0, job={"misuse": True},
    ),
    Control(
        "lock not kept", "A lock that has to be kept is free as soon as it is released.",
        row("no fault"), "kept", "fails",
        seconds=3.0, job={"misuse": True},
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
        "clock rates differ by far", UNEVEN.what, UNEVEN, "plain", "fails",
    ),
    Control(
        "client suspended, not counted",
        "A holder's machine is suspended, and its CLOCK_BOOTTIME does not count that.",
        UNCOUNTED, "plain", "fails",
    ),
    Control(
        "restored with its memory", ROLLED_BACK.what, ROLLED_BACK, "plain", "fails",
        job=FORGETFUL,
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
