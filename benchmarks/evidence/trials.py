"""
Cells beside the matrix, which mix faults or have limits of time; `tests/evidence` runs them.

    python -m benchmarks.evidence.trials [--rows ...] [--columns ...] [--seconds N] [--seed N]
                                         [--server valkey|redis]

They have no published results. What the checker says of each is printed; the exit code is 1 if one
is not as expected. Each history has the command that repeats its run.
"""

import argparse
import contextlib
import secrets
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from redlock_aio.testing import server_binary

from . import cell as cells, networks, soak
from .cell import EXPIRY, Cell
from .checker import check
from .contestants import contestants
from .faults import LONG_BODIES, NETWORK, Row, nothing, stopped, suspended
from .results import parse_seconds
from .soak import MOST_AWAY, PAUSE, Kind, Targets, happen
from .stopping import stop_cleanly
from .world import World

CALM = 1.5
"""Seconds without faults at the end of a run, in which all masters get the missed releases."""

HEARTBEAT = 1.0
"""Seconds between two heartbeats of a fair waiter that gets no wake-up."""

REGISTRATION = 3.0
"""Seconds for which a master keeps a fair waiter in its queue without a heartbeat."""

QUEUES_OF_PERMITS = 5.0
"""Seconds after their last change for which a master keeps the queues and the index of permits."""

TTL = 1.0
"""The ttl in seconds, unless a row has another one."""


@dataclass(frozen=True, slots=True)
class Trial:
    """
    A row, the kinds of locks that are tried there, and what the checker holds them to.

    Attributes:
        limits: See `Cell.limits`.

        clean_within: See `Cell.clean_within`.
    """

    row: Row
    columns: tuple[str, ...] = ("plain",)
    limits: Mapping[str, float] = field(default_factory=dict)
    clean_within: float = EXPIRY
    expected: str = "holds"

    def cell(self, column: str, seed: int, binary: str, seconds: float = 0.0) -> Cell:
        """Return the cell of one kind of lock."""
        return Cell(
            row=self.row,
            contestant=contestants()[column],
            seed=seed,
            binary=binary,
            seconds=seconds,
            expected=self.expected,
            program="trials",
            limits=self.limits,
            clean_within=self.clean_within,
        )


# ---------------------------------------------------------------------------- faults


@contextlib.contextmanager
def _dropped(world: World, on: Targets) -> Iterator[None]:
    world.drop(*on.masters)
    yield


# As fast as possible.
KILL, RESTART = (replace(kind, lasts=(0.0, 0.0)) for kind in (soak.KILL, soak.RESTART))
DROP = Kind("dropped", "A master closes the connections of all clients.", _dropped,
            masters=(1, 1), most_away=MOST_AWAY)  # fmt: skip


def until_calm(*kinds: Kind) -> Callable[[World], None]:
    """Return what lets faults of *kinds* follow one another, until all is calm at the end."""

    def act(world: World) -> None:
        world.wait(world.chance.uniform(0.1, 0.6))
        while world.crew.time_left() > CALM + 1.8:  # the longest pause
            happen(world, world.chance.choice(kinds), calm=CALM + 1.8)
            world.wait(world.chance.uniform(0.1, 0.6))
        world.until(1)

    return act


def clients_killed(world: World) -> None:
    """Kill one client after another at any point of its work, while masters come and go."""
    world.wait(0.5)
    while world.crew.time_left() > REGISTRATION + HEARTBEAT + TTL + 0.5:
        name = world.chance.choice(world.crew.living())
        with world.fault(f"{name} killed"):
            world.crew.kill(name)
            world.crew.start_one()
            world.note()
        # Waiters behind a dead one wait for 4 s. A kill before that would begin it anew.
        ends = world.crew.time_left() - 4.5
        while world.crew.time_left() > max(ends, CALM + 1.8):
            happen(world, world.chance.choice((PAUSE, DROP, DROP, RESTART)), calm=CALM + 1.8)
            world.wait(world.chance.uniform(0.1, 0.6))
        world.wait(world.crew.time_left() - ends)
    world.until(1)


def all_killed(world: World) -> None:
    """Kill all clients while one of them holds a lock."""
    world.until(0.5)
    name = world.crew.holder(world.crew.names)
    with world.fault("all killed"):
        # Stopped first: else the others would go on, and might release what they hold.
        for each in (name, *world.crew.names):
            world.crew.signal(each, signal.SIGSTOP)
        for each in world.crew.names:
            world.crew.kill(each)
        world.note()


def minority_dead(world: World) -> None:
    """Kill two of five masters at once, for good."""
    with world.fault("m0 and m1 killed"), world.down(0, 1):
        for number in (0, 1):
            world.servers[number].kill()
        world.until(1)


def hung(number: int) -> Callable[[World], None]:
    """Return what stops *number* masters from the beginning until all is calm at the end."""

    def act(world: World) -> None:
        chosen = range(number)
        with world.fault("paused", f"{number} masters"), world.down(*chosen):
            for each in chosen:
                world.servers[each].pause()
            world.wait(world.crew.time_left() - CALM)
            for each in chosen:
                world.servers[each].resume()
        world.until(1)

    return act


def parted(
    masters: Sequence[int], *, requests: bool = True, replies: bool = True, down: bool = False
) -> Callable[[World], None]:
    """Return what cuts one client off from *masters*; if *down*, the last master hangs for all."""

    def act(world: World) -> None:
        world.wait(1.0)
        hangs = [4] if down else []
        with world.down(*hangs):
            for number in hangs:
                world.servers[number].pause()
            with world.cut("w0", masters, requests=requests, replies=replies):
                world.wait(world.crew.time_left() - 3.0)
                for number in hangs:
                    world.servers[number].resume()
        world.until(1)

    return act


# ------------------------------------------------------------------------------ rows

CANCELLED: Mapping[str, object] = {
    "cancel": 1.0, "ttl": 60_000, "guard": "off", "tasks": 16, "keys": tuple("abcdef"),
    "body": (0.0, 0.003), "long": 0.0, "extend": 0.3, "handover": 0.0, "pace": 0.12,
}  # fmt: skip
"""
Turns that are cancelled. The ttl is so long that no key expires: what a turn has left stays. The
guard is off, so that a master votes as soon as it has restarted: two may hold a lock then. At this
pace there are up to 800 turns a second, and processors are left for others; with so few keys most
turns still find others that want theirs.
"""

ALL_FAIR: Mapping[str, object] = {
    "keys": ("red",), "tasks": 8, "wait": 10_000, "long": 0.0, "extend": 0.0, "handover": 0.0,
    "body": (0.0, 0.003),
}  # fmt: skip

PARTITIONS = tuple(
    Trial(
        Row(
            f"cut off: {name}", "One client loses packets to or from some masters.",
            act, seconds=13.0, needs=NETWORK,
            job={"wait": 20_000, "body": (0.0, 0.04), "rest": 1.0},
        ),
        ("plain", "read-write", "semaphore"),  # the writers and the permits are fair and fenced
        # A client that is cut off may delay the others until its registration in a queue has
        # expired and a heartbeat has noticed that, and until its lock has expired; and 2 s.
        {"longest_gap": REGISTRATION + HEARTBEAT + TTL + 2.0},
    )
    for name, act in {
        "minority, one master down": parted((0, 1), down=True),
        "majority": parted((0, 1, 2)),
        "requests to a minority": parted((0, 1), replies=False),
        "requests to a majority, one master down": parted((0, 1, 2), replies=False, down=True),
        "replies of a minority, one master down": parted((0, 1), requests=False, down=True),
        "replies of a majority": parted((0, 1, 2), requests=False),
    }.items()
)  # fmt: skip

CANCELLATIONS = (
    *(
        Trial(
            Row(
                f"cancelled, {number} hung", f"Most turns are cancelled; {number} masters hang.",
                hung(number), seconds=5.0 if number else 3.0, job=CANCELLED,
            ),
            ("plain", "fair", "several", "read-write", "semaphore"),
            clean_within=2.0,
        )
        for number in range(3)
    ),
    Trial(
        Row(
            "cancelled, masters come and go", "Most turns are cancelled; masters come and go.",
            until_calm(PAUSE, DROP, DROP, RESTART), seconds=6.0, job=CANCELLED,
        ),
        ("plain", "fair", "read-write", "semaphore"),
        clean_within=2.0, expected="may overlap",
    ),
)  # fmt: skip

COME_AND_GO = Trial(
    Row(
        "masters come and go", "Masters are stopped, dropped and restarted, two at a time at most.",
        until_calm(PAUSE, PAUSE, DROP, DROP, RESTART), seconds=10.0,
        job={**LONG_BODIES, "tasks": 9},
    ),
    ("plain",),
    {"longest_gap": 5.0},
)  # fmt: skip

KILLED = tuple(
    Trial(
        Row(
            "clients killed, masters come and go", "Any client is killed, one every 4.5 s.",
            clients_killed, seconds=16.0, job={**LONG_BODIES, "wait": 10_000},
        ),
        columns,
        {"longest_gap": gap},
    )
    for columns, gap in (
        # The lock of a killed holder expires with its ttl. Waiters are notified then, or retry
        # within the longest back-off, and masters may hang at that moment.
        (("plain",), TTL + 2.0),
        # Until the registration of a killed waiter expires, no waiter behind it is served. The next
        # one learns of that by its next heartbeat. If the killed one had been granted the lock on
        # some masters, or votes have to be collected again, another ttl may pass.
        (("fair", "mixed", "semaphore"), REGISTRATION + HEARTBEAT + TTL),
    )
)  # fmt: skip

ALL_KILLED = Trial(
    Row(
        "all clients killed", "All clients are killed at once, and nobody is left to clean up.",
        # With this ttl the key of a lock lives for as long as a registration in a fair queue.
        all_killed, seconds=3.0, job={"ttl": round(REGISTRATION * 1000), "body": (0.02, 0.05)},
    ),
    ("plain", "fair", "read-write"),
    clean_within=REGISTRATION + 1.0,
)  # fmt: skip

ALL_OF_PERMITS_KILLED = replace(
    ALL_KILLED, columns=("semaphore",), clean_within=QUEUES_OF_PERMITS + 1.0
)

IN_ORDER = Trial(
    Row("all wait fairly", "Nothing fails; all wait for one key.", nothing, seconds=4.0,
        job=ALL_FAIR),
    ("fair", "read-write"), {"overtaken_within": 0.05}, clean_within=1.0,
)  # fmt: skip

IN_ORDER_OF_PERMITS = Trial(
    # They hold permits for so long that a wait is far longer than a round trip.
    Row("all wait for permits", "Nothing fails; all wait for one of two permits.", nothing,
        seconds=6.0, job={**ALL_FAIR, "body": (0.01, 0.04)}),
    ("semaphore",), {"overtaken_within": 0.1, "longest_gap": HEARTBEAT / 2}, clean_within=1.0,
)  # fmt: skip

NOBODY_WAITS = Trial(
    # With waiters, nearly all permits are handed over. Here each is won by a first request, for
    # which the masters that grant different permits must not be added up.
    Row(
        "nobody waits for permits", "All try at once for two permits, again and again.",
        until_calm(PAUSE, DROP), seconds=6.0,
        job={**ALL_FAIR, "wait": 0, "body": (0.0, 0.02), "pace": 0.1},
    ),
    ("semaphore",), clean_within=2.0,
)  # fmt: skip

BESIDE_PLAIN = Trial(
    Row(
        "readers beside plain locks", "All come and go, or die; those who write do not queue.",
        until_calm(PAUSE, DROP, RESTART, KILL, KILL), seconds=12.0, job=LONG_BODIES,
    ),
    ("readers and plain",),
)  # fmt: skip

MINORITY_DEAD = Trial(
    Row("minority dead", "Two masters are dead.", minority_dead, seconds=3.0, job=ALL_FAIR),
    ("fair", "semaphore"), {"longest_gap": HEARTBEAT / 2},
)  # fmt: skip

STOPPED = Trial(
    Row("holder stopped, and told", "Holders are stopped (SIGSTOP) for 1.7 ttls, one at a time.",
        stopped, late=True, job={"handover": 0.0, "body": (0.02, 0.15)}),
    ("plain", "semaphore"), {"lost_within": 5.0},
)  # fmt: skip

SUSPENDED = Trial(
    Row("client suspended, and told",
        "Machines of holders are suspended for 1.7 ttls; CLOCK_MONOTONIC does not count that.",
        suspended, late=True, needs=frozenset({"network", "clocks"}),
        job={"handover": 0.0, "body": (0.02, 0.3)}),
    # The timer of the library is armed for 0.5 s at most: it does not count the time, either.
    ("plain", "semaphore"), {"lost_within": 5.0},
)  # fmt: skip

TRIALS = (
    COME_AND_GO, *CANCELLATIONS, *KILLED, ALL_KILLED, ALL_OF_PERMITS_KILLED, IN_ORDER,
    IN_ORDER_OF_PERMITS, NOBODY_WAITS, BESIDE_PLAIN, MINORITY_DEAD, STOPPED, SUSPENDED, *PARTITIONS,
)  # fmt: skip


# ------------------------------------------------------------------------ command line


def main(arguments: Sequence[str] | None = None) -> int:
    """Run trials; return 1 if one is not as expected."""
    options = parse(arguments)
    code = 0
    for cell in chosen(options):
        with tempfile.TemporaryDirectory(prefix="evidence-") as folder:
            wrong = cells.run(cell, Path(folder))
            verdict = check(Path(folder))
        print(verdict.as_text(), *wrong, verdict.facts["command"], sep="\n  ", flush=True)
        if wrong or not verdict.is_as_expected:
            code = 1
    return code


def chosen(options: argparse.Namespace) -> Iterator[Cell]:
    """Yield the cells that the command line wants, and that can be run here."""
    reason = networks.why_not()
    for trial in TRIALS:
        if trial.row.name not in (options.rows or [trial.row.name]):
            continue
        if trial.row.needs and reason:
            print(f"{trial.row.name}: not run: {reason}")
            continue
        for column in trial.columns:
            if column in (options.columns or [column]):
                yield trial.cell(column, options.seed, options.binary, options.seconds)


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    columns = (column for each in TRIALS for column in each.columns)
    add("--rows", nargs="+", choices=list(dict.fromkeys(each.row.name for each in TRIALS)))
    add("--columns", nargs="+", choices=list(dict.fromkeys(columns)))
    add(
        "--seconds",
        type=parse_seconds,
        default=0.0,
        help="of each cell (default: as the row needs)",
    )
    add("--seed", type=int, default=secrets.randbelow(10**6))
    add("--server", choices=("valkey", "redis"), default="valkey")
    options = parser.parse_args(arguments)
    options.binary = server_binary() if options.server == "valkey" else shutil.which("redis-server")
    if options.binary is None:
        parser.error("there is no redis-server in the PATH")
    return options


if __name__ == "__main__":
    stop_cleanly()
    sys.exit(main())
