"""
The soak: an hour and a million critical sections under faults, in parts that add up.

    python -m benchmarks.evidence.soak [--sections N] [--minutes N] [--seconds N] [--seed N]
                                       [--rest N] [--output FOLDER | --publish]

A part runs for a minute, with one kind of lock and a seed of its own, and then the checker reads
its history. What it has shown becomes one line of `results-soak.jsonl`, in `build/evidence`, or in
`benchmarks` with `--publish`. A soak that was ended, by anything, continues behind its last line
when it is started again, with the seed of the first one.

It ends with the part in which there are a million sections and an hour in all, or what `--sections`
and `--minutes` say: one of them alone sets no limit of the other kind. Then `results-soak.md` sums
the parts up.

In each part faults are chosen by the seed. The parts of a kind of lock take turns in how faults
come: one after another; two at a time, the second of which begins while the first one lasts; and as
a swarm, in which the seed switches each kind of fault on or off for the part, and up to three
overlap. Half of the parts of each have a network in which packets are lost, and half have servers
with disks that get full instead of old snapshots.

A section is one update that a client made under a lease: a number that it added to a counter, or a
write that the fence has accepted. What readers do is checked, but not counted. The soak ends at the
first part that breaks a promise or fails, and keeps its history.
"""

import argparse
import contextlib
import json
import random
import secrets
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from redis.exceptions import RedisError

from redlock_aio.testing import server_binary

from . import cell as cells, networks, provenance
from .cell import Cell
from .checker import NEEDLESS, Verdict, check
from .clocks import why_no_clocks
from .faults import NETWORK, Row
from .history import Fault, read
from .ours import OURS
from .provenance import checker, judged_by, said
from .results import NOBODY, add_output, pack, parse_seconds
from .servers import why_no_disks
from .stopping import stop_cleanly
from .tables import broken, table
from .world import QUARANTINE, World

SECTIONS = 1_000_000
MINUTES = 60.0
SECONDS = 60.0

LAST_FAULT = QUARANTINE + 4
"""Seconds before the end of a part after which no fault begins: everything is back by then."""

JOB: dict[str, object] = {
    "keys": tuple("abcdefgh"), "tasks": 8, "body": (0.0, 0.002), "long": 0.002, "extend": 0.02,
    "handover": 0.004, "force": 0.05,
}  # fmt: skip
"""Short bodies, so that there are a million of them in an hour on two cores."""

FACTS = ("server", "machine", "date", "versions", *provenance.FACTS)
"""What a line of the log has of the facts about its part."""


# ------------------------------------------------------------------------------ faults


@dataclass(frozen=True, slots=True)
class Targets:
    """What a fault has for itself while it lasts: no other one acts on it meanwhile."""

    masters: tuple[int, ...] = ()
    client: str = ""
    """A client process that runs, and is ready."""
    link: str = ""
    """A client process; the packets between it and the masters are meant."""
    start: bool = False
    """Whether no client may start meanwhile."""

    @property
    def names(self) -> str:
        """The names of the masters."""
        return ", ".join(f"m{number}" for number in self.masters)

    def meets(self, other: "Targets") -> bool:
        """Return whether the two have something in common."""
        return bool(
            set(self.masters) & set(other.masters)
            or (self.client and self.client == other.client)
            or (self.link and self.link == other.link)
            or (self.start and other.start)
        )


@dataclass(frozen=True, slots=True)
class Kind:
    """
    A kind of fault, and what it needs so that the promises hold while others last.

    Attributes:
        name: Its name in the log.

        what: What happens, in a sentence.

        act: Makes it begin, and end when it is closed.

        lasts: The shortest and longest time in seconds for which it lasts.

        masters: How few and how many masters it has for itself.

        most_away: How many masters may be away with it, at most.

        client, link, start: Whether it has for itself a client, its link, or the start of clients.

        needs: What it needs besides servers: see `Row.needs`.

        often: How much more often than others it is chosen.
    """

    name: str
    what: str
    act: "Act"
    lasts: tuple[float, float] = (0.0, 0.0)
    masters: tuple[int, int] = (0, 0)
    most_away: int = 5
    client: bool = False
    link: bool = False
    start: bool = False
    needs: frozenset[str] = frozenset()
    often: int = 1


Act = Callable[[World, Targets], contextlib.AbstractContextManager[None]]


@contextlib.contextmanager
def _paused(world: World, on: Targets) -> Iterator[None]:
    with world.fault("paused", on.names), world.down(*on.masters):
        for number in on.masters:
            world.servers[number].pause()
        yield
        for number in on.masters:
            world.servers[number].resume()


def _restarted(world: World, on: Targets) -> contextlib.AbstractContextManager[None]:
    return world.restarting(*on.masters)


@contextlib.contextmanager
def _restored(world: World, on: Targets) -> Iterator[None]:
    for number in on.masters:
        world.servers[number].save()
    yield
    world.restart(*on.masters)
    for number in on.masters:
        world.servers[number].forget()


@contextlib.contextmanager
def _flushed(world: World, on: Targets) -> Iterator[None]:
    world.flush(*on.masters)
    yield


@contextlib.contextmanager
def _full_disk(world: World, on: Targets) -> Iterator[None]:
    with world.full_disks(*on.masters):
        yield


@contextlib.contextmanager
def _clocks(world: World, on: Targets) -> Iterator[None]:
    with world.rates({f"m{number}": world.chance.choice(RATES) for number in on.masters}):
        yield


@contextlib.contextmanager
def _stalled(world: World, on: Targets) -> Iterator[None]:
    with world.fault("stall", "its event loop is blocked", client=on.client):
        world.crew.signal(on.client, signal.SIGUSR1)
        yield


@contextlib.contextmanager
def _killed(world: World, on: Targets) -> Iterator[None]:
    with world.fault(f"{on.client} killed"):
        world.crew.kill(on.client)
        world.note()
        yield
        world.crew.start_one()
        world.note()


def _cut(world: World, on: Targets) -> contextlib.AbstractContextManager[None]:
    chosen = world.chance.sample(range(world.masters), world.chance.randint(1, 4))
    requests, replies = world.chance.choice([(True, True), (True, False), (False, True)])
    return world.cut(on.link, chosen, requests=requests, replies=replies)


def _of_client(name: str) -> Act:
    """Return what is done to a client by the method of `World` with this name."""
    return lambda world, on: getattr(world, name)(on.client or on.link)


SOME, MAJORITY = (1, 2), (3, 3)
MOST_AWAY = 2
"""How many of five masters may be away at a time, unless a majority restarts."""

WITNESSED = 0.5
"""
Seconds for which a client has to run and to be connected after a flush. The masters tell clients of
it, and one that was told keeps the flushed master from voting, for all. If none could be told, one
that starts and has not seen the master before would not notice that it has lost its keys.
"""

PAUSE = Kind(
    "paused", "One or two masters are stopped.", _paused, (0.05, 1.8), SOME, MOST_AWAY, often=2
)
RESTART = Kind("restart", "One or two masters are killed, and come back empty.", _restarted,
               (0.0, 1.0), SOME, MOST_AWAY)  # fmt: skip
FLUSH = Kind("flush", "One or two masters are flushed.", _flushed, (WITNESSED, WITNESSED), SOME,
             MOST_AWAY, client=True, link=True, start=True)  # fmt: skip
RESTART_MAJORITY = Kind("majority restart", "Three masters are killed, and come back empty.",
                        _restarted, (0.0, 1.0), MAJORITY)  # fmt: skip
RESTORE = Kind("old snapshot", "One or two masters restart with the keys of a moment before.",
               _restored, (0.1, 0.8), SOME, MOST_AWAY)  # fmt: skip
FULL_DISK = Kind("full disk", "The disks of one or two masters are full, and they refuse writes.",
                 _full_disk, (0.2, 2.0), SOME, MOST_AWAY, needs=frozenset({"logs"}))  # fmt: skip
CLOCKS = Kind("clock rates", "The clocks of one to five masters run 0.45 % too fast or slow.",
              _clocks, (0.5, 4.0), (1, 5), needs=frozenset({"clocks"}))  # fmt: skip
STOP = Kind("stop", "A client is stopped, mostly for longer than the ttl.", _of_client("stopped"),
            (0.5, 2.0), client=True)  # fmt: skip
STALL = Kind("stall", "The event loop of a client is blocked for longer than the ttl.", _stalled,
             (2.0, 2.0), client=True)  # fmt: skip
SUSPEND = Kind("suspend", "A client's machine is suspended.", _of_client("suspended"), (0.5, 2.0),
               client=True, link=True, needs=frozenset({"clocks", "network"}))  # fmt: skip
KILL = Kind("killed", "A client is killed, and another one starts.", _killed, (0.0, 0.5),
            client=True, start=True, often=2)  # fmt: skip
CUT = Kind("cut", "Packets between a client and one to four masters are lost.", _cut, (0.2, 4.0),
           link=True, needs=NETWORK, often=3)  # fmt: skip
LINK_DOWN = Kind("link down", "All packets of a client are lost.", _of_client("link_down"),
                 (0.2, 3.0), link=True, needs=NETWORK)  # fmt: skip

KINDS = (PAUSE, RESTART, FLUSH, RESTART_MAJORITY, RESTORE, FULL_DISK, CLOCKS, STOP, STALL, SUSPEND,
         KILL, CUT, LINK_DOWN)  # fmt: skip
"""
All kinds of faults, and the rule by which they come together: what one of them has for itself no
other one has meanwhile. All of them keep the library's assumptions alone, so what may break one
together must be in this table.

- A master that has lost its keys must not vote before all its locks are over. After a restart its
  uptime says so to everybody. Of a flush a client must be told: it has one that runs, and its link,
  for itself, and no other one starts meanwhile.
- The clocks of two machines drift apart by less than 1 %: no two of `RATES` differ by more.
- More masters than a minority may be away at a time; then nobody gets a lock. `most_away` makes
  that rare, so that there are locks to lose.
"""

RATES = (-0.0045, 0.0045)
"""Each two of these clocks drift apart by less than 1 %."""


def targets(world: World, kind: Kind, active: Sequence[Targets]) -> Targets | None:
    """Return what a fault of this kind may act on beside the *active* ones; None if nothing."""
    away = world.away()
    fewest, most = kind.masters
    # One that is away already can restart once more, as part of a majority.
    spared = away if kind.most_away < world.masters else set()
    had = {number for each in active for number in each.masters}
    free = [number for number in range(world.masters) if number not in had | spared]
    most = min(most, len(free), max(0, kind.most_away - len(spared)))
    clients = ready(world)
    if len(clients) < len(world.crew.living()) and kind.start:
        return None  # one starts
    if most < fewest:
        return None
    world.chance.shuffle(clients)
    masters = tuple(world.chance.sample(free, world.chance.randint(fewest, most)))
    for name in clients if kind.client or kind.link else [""]:
        mine, link = (name if each else "" for each in (kind.client, kind.link))
        found = Targets(masters, mine, link, kind.start)
        # One that was cut off until a moment ago is not connected to all of them yet.
        connected = not link or world.away(name).isdisjoint(masters)
        if connected and not any(found.meets(each) for each in active):
            return found
    return None


def ready(world: World) -> list[str]:
    """Return the processes that were not killed, and are ready: one that starts has no handlers."""
    folder = Path(world.crew.job.folder)
    return [name for name in world.crew.living() if (folder / f"{name}.ready").exists()]


def happen(world: World, *kinds: Kind, calm: float = LAST_FAULT) -> Counter[str]:
    """
    Let a fault of each of *kinds* happen, and wait until all are over.

    Each begins while the one before lasts. One that finds nothing to act on, or comes too late, is
    left out.

    Args:
        calm: How many seconds before the end of the run none begins any more.

    Returns:
        How often a fault of a kind began while one of another kind lasted, such as "cut + flush".
    """
    waiting = list(kinds)
    lasting: list[tuple[float, Kind, Targets, contextlib.AbstractContextManager[None]]] = []
    together: Counter[str] = Counter()
    begins = time.monotonic()
    while waiting or lasting:
        now = time.monotonic()
        if waiting and now >= begins:  # first: the one before still lasts, also if both are due
            kind = waiting.pop(0)
            on = targets(world, kind, [on for _, _, on, _ in lasting])
            if on is not None and world.crew.time_left() > calm:
                together.update(" + ".join(sorted((kind.name, each[1].name))) for each in lasting)
                fault = kind.act(world, on)
                fault.__enter__()  # the faults that last do not end in their order
                seconds, began = world.chance.uniform(*kind.lasts), time.monotonic()
                lasting.append((began + seconds, kind, on, fault))
                begins = began + world.chance.uniform(0, seconds)
        for each in [each for each in lasting if each[0] <= now]:
            lasting.remove(each)
            each[-1].__exit__(None, None, None)
        ends = [each[0] for each in lasting]
        due = min([begins, *ends] if waiting else ends, default=0.0)
        world.wait(max(0.0, due - time.monotonic()))
    return together


@dataclass(frozen=True, slots=True)
class Mode:
    """
    How faults come in a part.

    Attributes:
        name: Its name in the log.

        together: How many faults overlap, one of which is drawn each time.

        switched: Whether the seed switches each kind of fault on or off for the part.
    """

    name: str
    together: tuple[int, ...]
    switched: bool = False

    def kinds(self, usable: Sequence[Kind], seed: int) -> list[Kind]:
        """Return the kinds of faults of a part, two at least."""
        chance = random.Random(f"{seed} {self.name}")
        while self.switched:
            on = [kind for kind in usable if chance.random() < ON]
            if len(on) >= LEAST_ON:
                return on
        return list(usable)

    def act(self, kinds: Sequence[Kind], together: Counter[str]) -> Callable[[World], None]:
        """
        Return what lets faults of *kinds* happen, until shortly before the end of the run.

        Args:
            together: Where it counts what `happen` returns.
        """

        def act(world: World) -> None:
            world.wait(world.chance.uniform(0.5, 1.5))
            while world.crew.time_left() > LAST_FAULT:
                number = min(world.chance.choice(self.together), len(kinds))
                together.update(happen(world, *different(world.chance, kinds, number)))
                world.wait(world.chance.uniform(0.2, 1.5))
            world.until(1)

        return act


ONE = Mode("one after another", (1,))
MODES = (ONE, Mode("two at a time", (2,)), Mode("swarm", (1, 2, 3), switched=True))

ON, LEAST_ON = 0.5, 2
"""How likely a kind of fault is on in a swarm, and how many are at least."""


def different(chance: random.Random, kinds: Sequence[Kind], number: int) -> list[Kind]:
    """Draw *number* different kinds, the frequent ones more often."""
    chosen: list[Kind] = []
    while len(chosen) < number:
        left = [kind for kind in kinds if kind not in chosen]
        chosen += chance.choices(left, [kind.often for kind in left])
    return chosen


def usable(*, network: bool, disks: bool) -> list[Kind]:
    """Return the kinds of faults that can happen here, in a part with a network, and with disks."""
    reasons = {
        "network": networks.why_not() if network else "without",
        "clocks": why_no_clocks(),
        "logs": why_no_disks() if disks else "without",
    }
    kinds = [kind for kind in KINDS if not any(reasons[need] for need in kind.needs)]
    # The small disk of a server ends with it, and with the disk its snapshot.
    return [kind for kind in kinds if kind is not RESTORE or FULL_DISK not in kinds]


# ------------------------------------------------------------------------------- parts


@dataclass(frozen=True, slots=True)
class Part:
    """What one part has shown; a line of the log."""

    number: int
    soak_seed: int
    """The seed of the first part, from which those of all others follow."""
    column: str
    sections: int = 0
    seconds: float = 0.0
    acquired: int = 0
    losses: int = 0
    """The leases that were lost, with need or without."""
    late_updates: int = 0
    """Those that were lost to one after the end of its lease, which only a fence can refuse."""
    pause: float = 0.0
    """The longest time in seconds without an acquisition of a key."""
    mode: str = ONE.name
    kinds: list[str] = field(default_factory=list)
    """The kinds of faults that were on; empty in a line from before these were recorded."""
    faults: dict[str, int] = field(default_factory=dict)
    together: dict[str, int] = field(default_factory=dict)
    """How often a fault of a kind began while one of another kind lasted."""
    broken: dict[str, int] = field(default_factory=dict)
    """How often each promise was broken; "losses" are the needless ones."""
    wrong: list[str] = field(default_factory=list)
    """What failed in the run itself."""
    facts: dict[str, Any] = field(default_factory=dict)

    @property
    def needless(self) -> int:
        """The leases that were lost without need."""
        return self.broken.get(NEEDLESS, 0)

    @property
    def times_broken(self) -> int:
        """How often a promise of safety was broken."""
        return sum(self.broken.values()) - self.needless

    @property
    def holds(self) -> bool:
        """Whether no promise of safety was broken, and the run itself succeeded."""
        return not self.times_broken and not self.wrong


def run(number: int, seed: int, seconds: float, output: Path, rest: float = 0.0) -> Part:
    """
    Run one part, and check its history.

    The history is kept if a promise was broken, or if the part failed.

    Args:
        rest: See `Job.rest`.
    """
    turn, contestant = divmod(number, len(OURS))
    mode = MODES[(turn + contestant) % len(MODES)]
    # Each kind of lock has all modes, and each with a network and without one, and with small disks
    # and without them.
    network = not (turn // len(MODES) + contestant) % 2 and not networks.why_not()
    disks = bool((turn // len(MODES) // 2 + contestant) % 2)
    kinds = mode.kinds(usable(network=network, disks=disks), seed + number)
    together: Counter[str] = Counter()
    row = Row(
        f"soak, {mode.name}", f"Faults come: {mode.name}.", mode.act(kinds, together),
        needs=frozenset().union(NETWORK if network else (), *(kind.needs for kind in kinds)),
    )  # fmt: skip
    cell = Cell(
        row=row,
        contestant=OURS[contestant],
        seed=seed + number,
        binary=server_binary(),
        seconds=seconds,
        job={**JOB, "rest": rest},
    )
    part = Part(
        number, seed, cell.contestant.name, mode=mode.name, kinds=[kind.name for kind in kinds]
    )
    with tempfile.TemporaryDirectory(prefix="soak-") as scratch:
        folder = Path(scratch)
        try:
            part.wrong.extend(cells.run(cell, folder))
            verdict = check(folder)
        except (OSError, RuntimeError, ValueError, RedisError) as error:
            part.wrong.append(str(error))
        else:
            (folder / "verdict.json").write_text(verdict.as_json())
            part = shown(cell, verdict, read(folder).faults, part)
            part = replace(part, together=dict(sorted(together.items())))
        if not part.holds:
            pack(folder, f"soak-{seed}-{number}", output)
    return part


def shown(cell: Cell, verdict: Verdict, faults: Sequence[Fault], part: Part) -> Part:
    """Return *part* with what its run has shown."""
    wrong = part.wrong if verdict.acquired else [*part.wrong, NOBODY]
    return replace(
        part,
        sections=sections(verdict, cell.contestant.several),
        seconds=round(verdict.seconds, 1),
        acquired=verdict.acquired,
        losses=verdict.losses,
        late_updates=len(verdict.late_updates),
        pause=round(verdict.pause, 3),
        faults=counted(faults),
        broken={name: len(each.broken) for name, each in verdict.checks.items() if each.broken},
        wrong=wrong,
        facts={
            **{name: verdict.facts[name] for name in FACTS if name in verdict.facts},
            "checker": checker(),
        },
    )


def sections(verdict: Verdict, several: int) -> int:
    """Return how many updates clients made under leases, each of which has *several* keys."""
    made = (verdict.operations.get(what, {}).get("ok", 0) for what in ("add", "write"))
    return sum(made) // several


def counted(faults: Sequence[Fault]) -> dict[str, int]:
    """Return how often each kind of fault happened."""
    kinds = Counter("killed" if each.name.endswith(" killed") else each.name for each in faults)
    return dict(sorted(kinds.items()))


def log(path: Path) -> list[Part]:
    """Read the parts so far; a last line without an end is dropped, because its part was ended."""
    if not path.exists():
        return []
    whole, _, torn = path.read_text().rpartition("\n")
    if torn:
        path.write_text(f"{whole}\n" if whole else "")
    return [Part(**json.loads(line)) for line in whole.splitlines()]


# ----------------------------------------------------------------------------- results


LEGEND = """*Updates lost to a late write*: the write came when the lease of its writer was over,
and set a counter back by all that others had added meanwhile. No lock prevents that; a
[fencing token](../docs/explanation/fencing.md) does. A lease is *lost* if its holder or a
majority of the masters failed for too long, or if its key was released by force. *Needless
losses* are those of leases whose client ran and reached the same majority during the whole ttl
before, and whose key nobody released by force. The *longest pause* is the longest time without
an acquisition of a key, also while no majority had a vote."""


def report(parts: Sequence[Part]) -> str:
    """Return the page that sums up the parts."""
    whole = [part for part in parts if part.facts]
    rows = [
        [
            column,
            f"{sum(part.sections for part in mine):,}",
            f"{sum(part.times_broken for part in mine):,}",
            f"{sum(part.late_updates for part in mine):,}",
            f"{sum(part.losses for part in mine):,}",
            f"{sum(part.needless for part in mine):,}",
            f"{max(part.pause for part in mine):.1f} s",
        ]
        for column in dict.fromkeys(part.column for part in whole)
        for mine in [[part for part in whole if part.column == column]]
    ]
    head = ["kind of lock", "sections", "broken promises", "updates lost to a late write",
            "lost leases", "needless losses", "longest pause"]  # fmt: skip
    faults = sum((Counter(part.faults) for part in parts), Counter[str]())
    times = table(["fault", "times"], [[name, f"{n:,}"] for name, n in sorted(faults.items())])
    paragraphs = ["# A soak under faults", *_summary(parts, faults.total()), table(head, rows),
                  LEGEND, *_modes(parts), times, *_together(parts), *_where(whole)]  # fmt: skip
    return "\n\n".join(paragraphs) + "\n"


def _summary(parts: Sequence[Part], faults: int) -> Iterator[str]:
    """Yield what the parts have shown, and what failed."""
    total = sum(part.sections for part in parts)
    minutes = sum(part.seconds for part in parts) / 60
    says = broken(sum((Counter(part.broken) for part in parts), Counter[str]()))
    yield (
        f"**{total:,} critical sections, {says or 'no promise broken'}**, in"
        f" {len(parts)} parts and {minutes:.0f} minutes, while five masters, their network and the"
        f" clients failed {faults:,} times."
    )
    if all(part.holds for part in parts):
        yield (
            "The checker has read the history of each part: no two leases of a key were valid at"
            " once, no update under a valid lease was lost, fencing tokens rose, an order explains"
            " the writes through the fence, and no key was left."
        )
    for part in parts:
        if part.wrong:
            yield f"**Part {part.number} failed:** {'; '.join(part.wrong)}"
    if late := sum(part.late_updates for part in parts):
        yield (
            f"{late:,} updates were lost to a write that came after the end of its lease, which"
            " only a fencing token prevents."
        )


def _modes(parts: Sequence[Part]) -> Iterator[str]:
    """Yield what the parts of each mode add up to."""
    rows = [
        [
            mode,
            f"{len(mine):,}",
            f"{sum(part.sections for part in mine):,}",
            f"{sum(sum(part.faults.values()) for part in mine):,}",
            f"{sum(sum(part.together.values()) for part in mine):,}",
            f"{sum(part.times_broken for part in mine):,}",
        ]
        for mode in dict.fromkeys(part.mode for part in parts)
        for mine in [[part for part in parts if part.mode == mode]]
    ]
    head = ["faults come", "parts", "sections", "faults", "begun while another lasted",
            "broken promises"]  # fmt: skip
    yield table(head, rows)


def _together(parts: Sequence[Part]) -> Iterator[str]:
    """Yield how often faults of two kinds came together, if any did."""
    pairs = sum((Counter(part.together) for part in parts), Counter[str]())
    if pairs:
        yield table(["together", "times"], [[name, f"{n:,}"] for name, n in pairs.most_common()])


def _where(parts: Sequence[Part]) -> Iterator[str]:
    """Yield the machine, the date and the command, if a part has them."""
    if not parts:
        return
    machines = dict.fromkeys(f"{p.facts['machine']}; {p.facts['server']}" for p in parts)
    dates = sorted({part.facts["date"] for part in parts})
    when = dates[0] if len(dates) == 1 else f"{dates[0]} to {dates[-1]}"
    if measured := said(part.facts for part in parts):
        when += f". {measured[:-1]}"
    judged = judged_by(part.facts.get("checker", "") for part in parts)
    yield (
        f"On {', and '.join(machines)}; {when}.{judged}"
        f" `python -m benchmarks.evidence.soak --seed {parts[0].soak_seed} --output FOLDER` begins"
        " with the same random numbers, in a folder without a log; which fault comes when also"
        " depends on the timing."
        " [Each part](results-soak.jsonl) is one line."
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Run parts until there are enough; return 1 if a promise was broken, or a part failed."""
    options = parse(arguments)
    options.output.mkdir(parents=True, exist_ok=True)
    path: Path = options.output / "results-soak.jsonl"
    parts = log(path)
    seed = parts[0].soak_seed if parts else options.seed
    if options.seed is not None and parts and options.seed != seed:
        print(f"{path} was begun with the seed {seed}; remove it to begin anew", file=sys.stderr)
        return 2
    if seed is None:
        seed = secrets.randbelow(10**6)
    while not enough(parts, options) and all(part.holds for part in parts):
        part = run(len(parts), seed, options.seconds, options.output, options.rest)
        with path.open("a") as file:
            file.write(json.dumps(asdict(part)) + "\n")
        parts.append(part)
        print(
            f"part {part.number}, {part.column}, {part.mode}: {part.sections:,} sections,"
            f" {part.times_broken} promises broken, {sum(part.faults.values())} faults,"
            f" {part.losses} leases lost, {part.needless} of them without need;"
            f" {sum(each.sections for each in parts):,} sections in all",
            *part.wrong, flush=True,
        )  # fmt: skip
    (options.output / "results-soak.md").write_text(report(parts))
    wrong = [part for part in parts if not part.holds]
    for part in wrong:
        print(f"part {part.number}, seed {seed + part.number}: {part.broken} {part.wrong}",
              file=sys.stderr)  # fmt: skip
    return int(bool(wrong))


def enough(parts: Sequence[Part], options: argparse.Namespace) -> bool:
    """Return whether the parts have as many sections, and as many minutes, as are wanted."""
    sections = sum(part.sections for part in parts)
    minutes = sum(part.seconds for part in parts) / 60
    return sections >= (options.sections or 0) and minutes >= (options.minutes or 0.0)


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--sections", type=int, help="end with the part in which there are so many in all")
    add("--minutes", type=float, help="end when the parts have lasted for so long in all")
    add("--seconds", type=parse_seconds, default=SECONDS, help="of each part")
    add(
        "--rest",
        type=parse_seconds,
        default=0.0,
        help="seconds that a client rests after a lease, at most",
    )
    add("--seed", type=int, help="of all random choices; their timing differs")
    add_output(parser)
    options = parser.parse_args(arguments)
    if options.sections is None and options.minutes is None:
        options.sections, options.minutes = SECTIONS, MINUTES
    return options


if __name__ == "__main__":
    stop_cleanly()
    sys.exit(main())
