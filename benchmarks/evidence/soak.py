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

In each part one fault follows another, chosen by the seed. Every second part of a kind of lock has
a network in which packets are lost; in the others clients are killed, and others start. A section
is one update that a client made under a lease: a number that it added to a counter, or a write that
the fence has accepted. What readers do is checked, but not counted. The soak ends at the first part
that breaks a promise or fails, and keeps its history.
"""

import argparse
import json
import secrets
import signal
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from redis.exceptions import RedisError

from redlock_aio.testing import server_binary

from . import cell as cells, networks
from .cell import Cell
from .checker import NEEDLESS, Verdict, check
from .faults import Row
from .history import Fault, read
from .ours import OURS
from .provenance import checker, judged_by, said
from .results import NOBODY, add_output, pack
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

FACTS = ("server", "machine", "date", "versions", "commit", "clean", "load")
"""What a line of the log has of the facts about its part."""

MOST_AWAY = 2
"""How many of five masters may be away at a time."""


# ------------------------------------------------------------------------------ faults


def pause(world: World) -> None:
    """Stop one or two masters for a moment."""
    if not (chosen := some(world)):
        return
    with world.fault("paused", names(chosen)), world.down(*chosen):
        for number in chosen:
            world.servers[number].pause()
        world.wait(world.chance.uniform(0.05, 1.8))
        for number in chosen:
            world.servers[number].resume()


def restart(world: World) -> None:
    """Restart one or two masters, which come back empty."""
    if chosen := some(world):
        world.restart(*chosen)


def flush(world: World) -> None:
    """Flush one or two masters."""
    if chosen := some(world):
        world.flush(*chosen)


def restart_majority(world: World) -> None:
    """Restart three masters at once."""
    world.restart(*world.chance.sample(range(world.masters), 3))
    world.wait(QUARANTINE)


def cut(world: World) -> None:
    """Lose the packets between a client and one to four masters, in one direction or in both."""
    chosen = world.chance.sample(range(world.masters), world.chance.randint(1, 4))
    requests, replies = world.chance.choice([(True, True), (True, False), (False, True)])
    with world.cut(client(world), chosen, requests=requests, replies=replies):
        world.wait(world.chance.uniform(0.2, 4))


def link_down(world: World) -> None:
    """Lose all packets of a client."""
    with world.link_down(client(world)):
        world.wait(world.chance.uniform(0.2, 3))


def stop(world: World) -> None:
    """Stop a client, mostly for longer than the ttl."""
    name = client(world)
    with world.fault("stall", "SIGSTOP", client=name):
        world.crew.signal(name, signal.SIGSTOP)
        world.wait(world.chance.uniform(0.5, 2) * world.crew.job.ttl / 1000)
        world.crew.signal(name, signal.SIGCONT)
        world.wait(0.3)


def stall(world: World) -> None:
    """Block the event loop of a client for longer than the ttl."""
    name = client(world)
    with world.fault("stall", "its event loop is blocked", client=name):
        world.crew.signal(name, signal.SIGUSR1)
        world.wait(world.crew.job.stall + 0.3)


def kill(world: World) -> None:
    """Kill a client, and start another one."""
    name = client(world)
    with world.fault(f"{name} killed"):
        world.crew.kill(name)
        world.crew.start_one()
        world.note()


Act = Callable[[World], None]
ALWAYS: tuple[Act, ...] = (pause, pause, restart, flush, restart_majority, stop, stall)
WITH_NETWORK: tuple[Act, ...] = (*ALWAYS, cut, cut, cut, link_down)
WITHOUT: tuple[Act, ...] = (*ALWAYS, kill, kill)


def some(world: World) -> list[int]:
    """Return one or two masters that are not away; perhaps none, if two are."""
    free = [number for number in range(world.masters) if number not in world.away()]
    most = MOST_AWAY - len(world.away())
    return world.chance.sample(free, min(most, world.chance.choice((1, 2)))) if most > 0 else []


def names(masters: Sequence[int]) -> str:
    """Return the names of masters."""
    return ", ".join(f"m{number}" for number in masters)


def client(world: World) -> str:
    """Return a process that was not killed, and is ready: one that starts has no handlers yet."""
    folder = Path(world.crew.job.folder)
    ready = [name for name in world.crew.living() if (folder / f"{name}.ready").exists()]
    return world.chance.choice(ready or world.crew.living())


def one_after_another(acts: Sequence[Act]) -> Act:
    """Return what lets one of the *acts* after another happen, until shortly before the end."""

    def act(world: World) -> None:
        world.wait(world.chance.uniform(0.5, 1.5))
        while world.crew.time_left() > LAST_FAULT:
            world.chance.choice(acts)(world)
            world.wait(world.chance.uniform(0.2, 1.5))
        world.until(1)

    return act


NETWORK = Row(
    "soak, with a network", "One fault after another, also of the network.",
    one_after_another(WITH_NETWORK), needs=frozenset({"network"}),
)  # fmt: skip
PROCESSES = Row(
    "soak", "One fault after another; clients are killed, and others start.",
    one_after_another(WITHOUT),
)  # fmt: skip


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
    faults: dict[str, int] = field(default_factory=dict)
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
    turn, kind = divmod(number, len(OURS))
    # Each kind of lock gets both rows in turn, also if the number of kinds is even.
    row = PROCESSES if (turn + kind) % 2 or networks.why_not() else NETWORK
    cell = Cell(
        row=row,
        contestant=OURS[kind],
        seed=seed + number,
        binary=server_binary(),
        seconds=seconds,
        job={**JOB, "rest": rest},
    )
    part = Part(number, seed, cell.contestant.name)
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
                  LEGEND, times, *_where(whole)]  # fmt: skip
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
            f"part {part.number}, {part.column}: {part.sections:,} sections,"
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
    add("--seconds", type=float, default=SECONDS, help="of each part")
    add(
        "--rest", type=float, default=0.0, help="seconds that a client rests after a lease, at most"
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
