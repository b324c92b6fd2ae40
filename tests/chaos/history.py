"""
The history of a run, in Jepsen's sense: what every worker did and when, and checks of it.

Each worker writes its part, its diary, while it runs. A check takes parts of the history
and returns one sentence for each violation, or an empty list. Neither check has false alarms:

- Counters. A section reads a counter and writes one more. As long as sections
  exclude each other, the values written are 1, 2, 3 ... N, each once, and N is
  the counter's value at the end. After a lost update one value is written twice.
  A section whose worker was killed between "writes" and "wrote" may or may not have
  written, so its value may be missing, or be written by another section.
- Intervals. A section lasts at least from "acquired", which is recorded after the lease
  was returned, to the last instant at which the lease was proven valid, which is recorded
  before the release is sent. Two sections of one resource that overlap are two holders.
"""

import itertools
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

MARGIN_NS = 2_000_000
"""A loss is reported up to 1 ms before the deadline, and validity is rounded down to whole ms."""


@dataclass(slots=True)
class Section:
    """One critical section of one task."""

    worker: str
    number: int
    resource: str
    acquired_at: int
    validity: int
    token: int = 0
    """The fencing token; 0 if the lock has none."""
    valid_until: int = 0
    checked: bool = False
    value: int = 0
    wrote: bool = False
    proved_at: int = 0
    ended: str = ""
    ended_at: int = 0
    reason: str = ""

    def __str__(self) -> str:
        return f"{self.worker}/{self.number} on {self.resource!r} at {self.acquired_at}"

    @property
    def until(self) -> int:
        """The instant up to which no other section may have held the resource."""
        if self.ended:
            return max(self.proved_at, self.acquired_at)
        # The holder was killed, so the lock was not released: it lasted for the
        # validity that the holder recorded last.
        return max(self.acquired_at, self.valid_until - MARGIN_NS)

    def record_valid(self, at: int, validity: int) -> None:
        """Record that the lease was valid at the instant *at*, and for *validity* ms more."""
        self.valid_until = max(self.valid_until, at + validity * 1_000_000)


@dataclass(slots=True)
class Wait:
    """One acquisition: the request of a task for a resource, and its result."""

    worker: str
    number: int
    resource: str
    asked_at: int
    task: int
    fair: bool
    acquired_at: int = 0
    missed_at: int = 0
    missed: str = ""

    def __str__(self) -> str:
        return f"{self.worker}/{self.number} for {self.resource!r} since {self.asked_at}"


@dataclass(slots=True)
class Diary:
    """The sections and the acquisitions of one worker."""

    sections: list[Section]
    waits: list[Wait]
    late: int = 0
    """The longest delay of the worker's event loop, in ns; 0 if the worker was killed."""

    @classmethod
    def read(cls, path: Path) -> "Diary":
        """Read the lines that a worker has written so far."""
        result: dict[int, Section] = {}
        waits: dict[int, Wait] = {}
        late = 0
        for line in path.read_text().splitlines() if path.exists() else ():
            kind, word, *rest = line.split(" ")
            number = int(word)
            if kind == "late":
                late = number
            elif kind == "waits":
                resource, at, task, how = rest
                waits[number] = Wait(path.stem, number, resource, int(at), int(task), how == "fair")
            elif kind == "missed":
                _, at, waits[number].missed = rest
                waits[number].missed_at = int(at)
            elif kind == "acquired":
                resource, at, validity, *token = rest
                fence = int(token[0]) if token else 0
                section = Section(path.stem, number, resource, int(at), int(validity), fence)
                section.record_valid(int(at), int(validity))
                result[number] = section
                waits[number].acquired_at = int(at)
            else:
                _apply(result[number], kind, rest)
        return cls(list(result.values()), list(waits.values()), late)

    def open_sections(self) -> list[Section]:
        """Return the sections that have begun and not ended."""
        return [section for section in self.sections if not section.ended]


def _apply(section: Section, kind: str, rest: list[str]) -> None:
    match kind:
        case "valid":
            section.record_valid(int(rest[0]), int(rest[1]))
        case "checks":
            section.checked = True
        case "writes":
            section.value = int(rest[0])
        case "wrote":
            section.wrote = True
        case "ended":
            section.ended, proved_at, ended_at, *reason = rest
            section.proved_at, section.ended_at = int(proved_at), int(ended_at)
            section.reason = " ".join(reason)
        case _:
            raise ValueError(f"unknown kind of line in a diary: {kind!r}")


def by_resource(sections: Iterable[Section]) -> dict[str, list[Section]]:
    """Return the sections of each resource, in the order in which they were acquired."""
    result: dict[str, list[Section]] = defaultdict(list)
    for section in sorted(sections, key=lambda section: section.acquired_at):
        result[section.resource].append(section)
    return result


def lost_updates(sections: Iterable[Section], counters: Path) -> list[str]:
    """Return the values that were written twice or never; see above."""
    wrong = []
    for resource, group in by_resource(sections).items():
        at_the_end = int((counters / resource).read_text() or "0")
        written = Counter(section.value for section in group if section.wrote)
        in_doubt = {section.value for section in group if section.value and not section.wrote}
        wrong += [
            f"{resource!r}: {value} was written {times} times"
            for value, times in sorted(written.items())
            if times > 1
        ]
        wrong += [
            f"{resource!r}: {value} was skipped"
            for value in range(1, at_the_end + 1)
            if value not in written and value not in in_doubt
        ]
        if written and max(written) > at_the_end:
            wrong.append(f"{resource!r}: {max(written)} was written, the counter has {at_the_end}")
    return wrong


def overlaps(sections: Iterable[Section]) -> list[str]:
    """Return each section that began while another one still held the resource."""
    wrong = []
    for group in by_resource(sections).values():
        longest = None
        for section in group:
            if longest is not None and section.acquired_at < longest.until:
                wrong.append(f"{section} while {longest} held it until {longest.until}")
            if longest is None or section.until > longest.until:
                longest = section
    return wrong


def tokens_that_do_not_rise(sections: Iterable[Section]) -> list[str]:
    """Return each section without a higher fencing token than a section that ended before it."""
    wrong = []
    for group in by_resource(sections).values():
        for before, after in itertools.pairwise(one for one in group if one.token):
            if before.until <= after.acquired_at and before.token >= after.token:
                wrong.append(f"{after} has {after.token}, after {before} had {before.token}")
    return wrong


def longest_gap(sections: Iterable[Section], others: Iterable[int] = ()) -> float:
    """
    Return the longest time between two acquisitions of one resource, in seconds.

    Args:
        others: Instants that count like acquisitions, such as those of kills: after each
            of them the waiters may have to wait for the locks of the killed worker.
    """
    instants = sorted([*(section.acquired_at for section in sections), *others])
    pairs = itertools.pairwise(instants)
    return max(((after - before) / 1e9 for before, after in pairs), default=0.0)
