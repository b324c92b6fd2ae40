"""
What the workers did, and whether a lock was there.

Nothing here runs or waits: diaries go in, sentences about what is wrong come
out, none if all is well. Two checks, both without a doubt about what they say:

- Counters. A section reads a counter and writes one more. As long as sections
  exclude each other, the values written are 1, 2, 3 ... N, each once, and N is
  what the counter has at the end. A lost update writes a value for the second
  time. A section whose worker was killed between "writes" and "wrote" may or
  may not have written: its value may be there, or be written by another.
- Intervals. A section lasts at least from "acquired", noted after the lease was
  there, to the last instant at which the lease was seen to be valid, noted
  before the release was sent. Two of one resource that overlap are two holders.
"""

import itertools
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

MARGIN_NS = 2_000_000
"""A loss is told up to 1 ms before the deadline, and validity is cut to whole ms."""


@dataclass(slots=True)
class Section:
    """One critical section of one task."""

    worker: str
    number: int
    resource: str
    acquired_at: int
    validity: int
    token: int = 0
    """The fencing token, 0 if it has none."""
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
        """Until when nobody else may have had the resource."""
        if self.ended:
            return max(self.proved_at, self.acquired_at)
        # Its holder was killed, so it was never released and lived to its end: that
        # which it knew when it was last seen to be valid.
        return max(self.acquired_at, self.valid_until - MARGIN_NS)

    def valid(self, at: int, validity: int) -> None:
        """Note that it was valid at an instant, and for how many ms more."""
        self.valid_until = max(self.valid_until, at + validity * 1_000_000)


@dataclass(slots=True)
class Wait:
    """The wish of one task to have a resource, and what has become of it."""

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
    """All sections of one worker, and what it has waited for."""

    sections: list[Section]
    waits: list[Wait]
    late: int = 0
    """Ns by which its loop ran something later than it was due, at most, if it came to its end."""

    @classmethod
    def read(cls, path: Path) -> "Diary":
        """Read what a worker has written so far."""
        found: dict[int, Section] = {}
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
                section.valid(int(at), int(validity))
                found[number] = section
                waits[number].acquired_at = int(at)
            else:
                _take(found[number], kind, rest)
        return cls(list(found.values()), list(waits.values()), late)

    def open_sections(self) -> list[Section]:
        """Return the sections that had begun and not ended."""
        return [section for section in self.sections if not section.ended]


def _take(section: Section, kind: str, rest: list[str]) -> None:
    match kind:
        case "valid":
            section.valid(int(rest[0]), int(rest[1]))
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
            raise ValueError(f"a diary does not say {kind!r}")


def by_resource(sections: Iterable[Section]) -> dict[str, list[Section]]:
    """Return the sections of each resource, in the order in which they were acquired."""
    found: dict[str, list[Section]] = defaultdict(list)
    for section in sorted(sections, key=lambda section: section.acquired_at):
        found[section.resource].append(section)
    return found


def lost_updates(sections: Iterable[Section], counters: Path) -> list[str]:
    """Return what is wrong with the counters; see above."""
    wrong = []
    for resource, those in by_resource(sections).items():
        at_the_end = int((counters / resource).read_text() or "0")
        written = Counter(section.value for section in those if section.wrote)
        in_doubt = {section.value for section in those if section.value and not section.wrote}
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
            wrong.append(f"{resource!r}: {max(written)} was written, {at_the_end} is there")
    return wrong


def overlaps(sections: Iterable[Section]) -> list[str]:
    """Return who had what another still had."""
    wrong = []
    for those in by_resource(sections).values():
        longest = None
        for section in those:
            if longest is not None and section.acquired_at < longest.until:
                wrong.append(f"{section} while {longest} had it until {longest.until}")
            if longest is None or section.until > longest.until:
                longest = section
    return wrong


def tokens_that_do_not_rise(sections: Iterable[Section]) -> list[str]:
    """Return which sections have no higher fencing token than one that was over before them."""
    wrong = []
    for those in by_resource(sections).values():
        for before, after in itertools.pairwise(one for one in those if one.token):
            if before.until <= after.acquired_at and before.token >= after.token:
                wrong.append(f"{after} has {after.token}, after {before} had {before.token}")
    return wrong


def longest_gap(sections: Iterable[Section], others: Iterable[int] = ()) -> float:
    """
    Return the longest time between two acquisitions of one resource, in seconds.

    Args:
        others: Instants from which it counts anew: whoever may wait until what was
            killed is forgotten may do so after each that is killed.
    """
    instants = sorted([*(section.acquired_at for section in sections), *others])
    pairs = itertools.pairwise(instants)
    return max(((after - before) / 1e9 for before, after in pairs), default=0.0)
