"""The log of the simulation: a line for each chunk of seeds, and the page that sums them up."""

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from ..provenance import said
from ..tables import table
from .plan import CANCELLED, FAULTS, MASTER_FAULTS
from .run import Outcome

LOG: Final = "results-simulation.jsonl"
PAGE: Final = "results-simulation.md"
WHAT: Final = FAULTS | {CANCELLED: "its task is cancelled at one of its awaits"}


@dataclass(slots=True)
class Chunk:
    """What a range of seeds has shown; a line of the log."""

    first: int
    last: int
    """The last seed, which belongs to it."""
    hours: float = 0.0
    """How much virtual time has passed."""
    sections: int = 0
    """How many leases were granted."""
    faults: dict[str, int] = field(default_factory=dict)
    failed: dict[str, list[str]] = field(default_factory=dict)
    """The seeds that broke a promise, and which."""
    cpu: float = 0.0
    """The seconds of CPU time that it took."""
    facts: dict[str, Any] = field(default_factory=dict)
    """The commit, versions and date."""

    @property
    def seeds(self) -> int:
        """How many seeds there are."""
        return self.last - self.first + 1

    def add(self, outcome: Outcome) -> None:
        """Add what the run of the next seed has shown."""
        self.last = outcome.plan.seed
        self.hours += outcome.seconds / 3600
        self.sections += outcome.sections
        self.faults = dict(sorted((Counter(self.faults) + outcome.faults).items()))
        if outcome.broken:
            self.failed[str(outcome.plan.seed)] = list(outcome.promises)

    def join(self, other: "Chunk") -> None:
        """Add what the seeds behind these have shown."""
        self.last = other.last
        self.hours += other.hours
        self.sections += other.sections
        self.faults = dict(sorted((Counter(self.faults) + Counter(other.faults)).items()))
        self.failed |= other.failed
        self.cpu += other.cpu

    def line(self) -> str:
        """Return its line of the log."""
        facts = asdict(self) | {"hours": round(self.hours, 4), "cpu": round(self.cpu, 1)}
        return json.dumps(facts)


def read(path: Path) -> list[Chunk]:
    """Read the chunks so far; a last line without an end is dropped."""
    if not path.exists():
        return []
    whole, _, torn = path.read_text().rpartition("\n")
    if torn:
        path.write_text(f"{whole}\n" if whole else "")
    return [Chunk(**json.loads(line)) for line in whole.splitlines()]


def missing(chunks: Iterable[Chunk], first: int, last: int) -> list[tuple[int, int]]:
    """Return the ranges of seeds from *first* to *last* that no chunk has."""
    result, at = [], first
    for chunk in sorted(chunks, key=lambda each: each.first):
        if chunk.first > at:
            result.append((at, min(chunk.first - 1, last)))
        at = max(at, chunk.last + 1)
        if at > last:
            break
    if at <= last:
        result.append((at, last))
    return [(begin, end) for begin, end in result if begin <= end]


def summary(chunks: Sequence[Chunk]) -> str:
    """Return what all chunks have shown, in one sentence, as the pages have it."""
    seeds, sections = (
        sum(getattr(each, name) for each in chunks) for name in ("seeds", "sections")
    )
    hours, faults = (
        sum(each.hours for each in chunks),
        sum(sum(each.faults.values()) for each in chunks),
    )
    failed = sum(len(each.failed) for each in chunks)
    says = f"{failed:,} broke a promise" if failed else "none broke a promise"
    return (
        f"**{seeds:,} seeds, {says}**, in {hours:,.1f} hours of virtual time, with {sections:,}"
        f" leases under {faults:,} faults."
    )


def report(chunks: Sequence[Chunk]) -> str:
    """Return the page that sums up the chunks."""
    faults = sum((Counter(each.faults) for each in chunks), Counter[str]())
    failed = {seed: names for each in chunks for seed, names in each.failed.items()}
    paragraphs = ["# The simulation by numbers", summary(chunks)]
    if failed:
        seed, names = list(failed.items())[-1]
        paragraphs.append(
            f"The last one that failed is seed {seed}: {', '.join(names)}."
            f" `python -m benchmarks.evidence.simulation --seed {seed}` tells its story."
        )
    else:
        paragraphs.append("Last failure: none.")
    rows = [
        [name, "a program" if name not in MASTER_FAULTS else "a master", WHAT.get(name, ""),
         f"{times:,}"]
        for name, times in sorted(faults.items(), key=lambda each: -each[1])
    ]  # fmt: skip
    paragraphs.append(table(["fault", "of", "what happens", "times"], rows))
    known = [each.facts for each in chunks if each.facts]
    if known:
        ways = dict.fromkeys(
            f"{facts['machine']}; Python {facts['python']}; redlock_aio {facts['version']}"
            for facts in known
        )
        dates = sorted({facts["date"] for facts in known})
        when = dates[0] if dates[0] == dates[-1] else f"{dates[0]} to {dates[-1]}"
        first, last = min(each.first for each in chunks), max(each.last for each in chunks)
        cpu = sum(each.cpu for each in chunks) / sum(each.seeds for each in chunks) * 1000
        paragraphs.append(
            f"On {', and '.join(ways)}; {when}. {said(known)} {cpu:.0f} ms of CPU time a seed."
            f" `python -m benchmarks.evidence.simulation --seeds {first}-{last}` runs the same"
            " again. [Each chunk](results-simulation.jsonl) is one line."
        )
    return "\n\n".join(paragraphs) + "\n"
