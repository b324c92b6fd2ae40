"""The results of a matrix: one entry a cell, kept as JSON, so that single cells can be repeated."""

import argparse
import json
import math
import tarfile
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final, Self

from .checker import NEEDLESS, OVERLAPS, Verdict
from .provenance import checker

NOBODY: Final = "nobody acquired a lock"

PUBLISHED: Final = Path(__file__).parents[1]
"""The folder of the results that the pages show."""

UNPUBLISHED: Final = PUBLISHED.parent / "build" / "evidence"
"""The folder of all other results; git ignores it."""


def add_output(parser: argparse.ArgumentParser) -> None:
    """Add the options that choose the folder of the results. Only a flag chooses `PUBLISHED`."""
    where = parser.add_mutually_exclusive_group()
    where.add_argument(
        "--output",
        type=Path,
        default=UNPUBLISHED,
        help="where results are kept (default: build/evidence)",
    )
    where.add_argument(
        "--publish",
        dest="output",
        action="store_const",
        const=PUBLISHED,
        help="keep results in benchmarks/, in the place of those that the pages show",
    )


def parse_seconds(text: str) -> float:
    """
    Return the value of an option that takes a time; 0 is most often its default.

    Raises:
        argparse.ArgumentTypeError: It is none.
    """
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value < math.inf:
        raise argparse.ArgumentTypeError(f"takes a number of seconds from 0 on, not {text!r}")
    return value


@dataclass(slots=True)
class Entry:
    """What one cell has shown."""

    row: str
    column: str
    control: str = ""
    """The name of the control that this is; empty for a cell of the matrix."""
    expected: str = "holds"
    skipped: str = ""
    """Why it was not run."""
    wrong: list[str] = field(default_factory=list)
    """What failed in the run itself: the cell says nothing then."""
    broken: dict[str, int] = field(default_factory=dict)
    """How often each promise was broken; "losses" are the needless ones."""
    checked: dict[str, int] = field(default_factory=dict)
    """How much was checked of each promise."""
    late_updates: int = 0
    losses: int = 0
    """The leases that were lost, with need or without."""
    gap: float = 0.0
    """The longest time in seconds in which a lock was wanted by one that could have it."""
    pause: float = 0.0
    """The longest time in seconds in which nobody acquired a lock, for whatever reason."""
    acquired: int = 0
    seconds: float = 0.0
    facts: dict[str, Any] = field(default_factory=dict)
    """`meta.json`."""
    checker: str = ""
    """The commit of the checker that judged it; empty for one from before this was recorded."""
    history: str = ""
    """The file with the raw history, beside the results."""

    @classmethod
    def of(cls, verdict: Verdict, control: str, wrong: list[str]) -> Self:
        """Return the entry of a cell that was run."""
        facts = {name: value for name, value in verdict.facts.items() if name != "keys_left"}
        return cls(
            row=facts["row"],
            column=facts["column"],
            control=control,
            expected=facts["expected"],
            wrong=wrong if verdict.acquired else [*wrong, NOBODY],
            broken={name: len(each.broken) for name, each in verdict.checks.items() if each.broken},
            checked={name: each.checked for name, each in verdict.checks.items()},
            late_updates=len(verdict.late_updates),
            losses=verdict.losses,
            gap=round(verdict.worst_gap, 3),
            pause=round(verdict.pause, 3),
            acquired=verdict.acquired,
            seconds=round(verdict.seconds, 1),
            facts=facts,
            checker=checker(),
        )

    @property
    def key(self) -> tuple[str, str, str]:
        """What two runs of one cell have in common."""
        return self.control, self.row, self.column

    @property
    def needless(self) -> int:
        """The leases that were lost without need."""
        return self.broken.get(NEEDLESS, 0)

    @property
    def holds(self) -> bool:
        """Whether it kept every promise of safety: what a lock is for."""
        return not self.wrong and not set(self.broken) - {NEEDLESS}

    @property
    def is_not_promised(self) -> bool:
        """Whether two held a lock, in a row for which the library promises nothing else."""
        return self.expected == "may overlap" and not self.holds and self.is_as_expected

    @property
    def is_as_expected(self) -> bool:
        """Whether it holds, breaks what its row's fault permits, or is a control that fails."""
        if self.skipped:
            return True
        if self.wrong:
            return False
        if self.expected == "fails":
            return bool(OVERLAPS & set(self.broken)) or self.late_updates > 0
        if self.expected == "may overlap":
            return not set(self.broken) - OVERLAPS - {NEEDLESS}
        return self.holds


class Results:
    """
    All entries, in the order in which they were first run.

    Args:
        path: The JSON file; what it has of other cells is kept.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._entries: dict[tuple[str, str, str], Entry] = {}
        if path.exists():
            for facts in json.loads(path.read_text())["cells"]:
                entry = Entry(**facts)
                self._entries[entry.key] = entry

    def __iter__(self) -> Iterator[Entry]:
        return iter(self._entries.values())

    def add(self, entry: Entry) -> None:
        """
        Put an entry in the place of an older one of its cell, and write the file.

        One of a cell that can't be run here takes the place of none.
        """
        old = self._entries.get(entry.key)
        if old is not None and entry.skipped:
            return
        if old is not None and old.history and old.history != entry.history:
            (self._path.parent / old.history).unlink(missing_ok=True)
        self._entries[entry.key] = entry
        cells = [asdict(each) for each in self]
        self._path.write_text(json.dumps({"cells": cells}, indent=1) + "\n")

    def of(self, *, control: bool) -> list[Entry]:
        """Return the entries of the controls, or those of the matrix."""
        return [each for each in self if bool(each.control) == control]


def pack(folder: Path, name: str, into: Path) -> str:
    """Compress the history in *folder*; return the path of the file, from *into*."""
    target = into / "histories" / f"{name}.tar.xz"
    target.parent.mkdir(exist_ok=True)

    def anonymous(info: tarfile.TarInfo) -> tarfile.TarInfo:
        info.uid = info.gid = 0
        info.uname = info.gname = ""
        return info

    part = target.with_suffix(".part")  # an interrupted run leaves no history without some files
    with tarfile.open(part, "w:xz") as archive:
        for path in parts(folder):
            archive.add(path, f"{name}/{path.name}", filter=anonymous)
    part.replace(target)
    return str(target.relative_to(into))


def parts(folder: Path) -> list[Path]:
    """Return the files of the history in *folder* that are kept."""
    found = [path for path in folder.iterdir() if path.suffix in {".jsonl", ".json", ".log"}]
    return sorted(path for path in found if path.name != "job.json")  # its paths are gone


def read_log(path: Path) -> list[dict[str, Any]]:
    """Read a log of runs; a last line without an end is dropped, because its run was ended."""
    if not path.exists():
        return []
    whole, _, torn = path.read_text().rpartition("\n")
    if torn:
        path.write_text(f"{whole}\n" if whole else "")
    return [json.loads(line) for line in whole.splitlines()]


def append(path: Path, run: dict[str, Any]) -> None:
    """Add a run to a log."""
    with path.open("a") as file:
        file.write(json.dumps(run) + "\n")


def unexpected(entries: Iterable[Entry]) -> list[Entry]:
    """Return the entries that are not as expected."""
    return [each for each in entries if not each.is_as_expected]
