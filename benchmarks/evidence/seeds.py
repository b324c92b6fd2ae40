"""
Runs the cells of the fault matrix with more seeds, over days if need be, in a log that grows.

    python -m benchmarks.evidence.seeds [--minutes N] [--rows ...] [--columns ...]
                                        [--keep FOLDER] [--output FOLDER | --publish]

One run of a cell is a sample: a defect that shows in one of ten runs is mostly missed by it. Here
each run takes the cell with the fewest runs so far and a new seed, and adds a line to
`results-seeds.jsonl`, in `build/evidence`, or in `benchmarks` with `--publish`. In one of six
runs the locks are wanted all the time, as in the matrix; in the others each task rests for up to a
second after a turn, so that a lock is often free when it is asked for. No run begins after
`--minutes`. Started again, it continues. `results-seeds.md` has the runs and sections of each cell,
and how rare a failure may be that they would have shown. `--report` writes that page again.

The published matrix, `benchmarks/results-faults.json`, counts as the first run of its cells. A
section is an acquired lease. A cell with fewer than 200 in all is marked, and comes before the
others. The history of a run that broke a promise, or failed, is kept in the folder `histories`.
`--keep` keeps that of the last run of each cell, whatever it has shown, to judge it again
(`python -m benchmarks.evidence.rejudge`). The exit code is 1 if a new run broke a promise or
failed.
"""

import argparse
import secrets
import shutil
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from . import matrix, provenance
from .cell import Cell
from .faults import ROWS
from .ours import COLUMNS
from .provenance import where
from .results import PUBLISHED, Entry, Results, add_output, append, read_log
from .stopping import stop_cleanly
from .tables import broken, in_order, table

MINUTES = 60.0
FEWEST = 200
"""A cell with fewer sections says little."""

MANY = 30
"""The runs after which a cell with so few sections comes no more before the others."""

RESTS = 0.0, 1.0, 1.0, 1.0, 1.0, 1.0
"""The longest rest of a task after a turn, in seconds, one of which is drawn for each run."""

MISSED = 0.05
"""The probability of a run of luck that is left: what "seen with 95 %" means."""

FACTS = ("server", "machine", "date", "versions", "rest", *provenance.FACTS)
"""What a line of the log has of the facts about its run."""


@dataclass(frozen=True, slots=True)
class Run:
    """What one run of a cell has shown; a line of the log."""

    row: str
    column: str
    seed: int
    sections: int
    seconds: float
    gap: float
    """The longest time in seconds in which a lock was wanted by one that could have it."""
    broken: dict[str, int] = field(default_factory=dict)
    """How often each promise was broken; "losses" are the needless ones."""
    late_updates: int = 0
    expected: str = "holds"
    wrong: list[str] = field(default_factory=list)
    """What failed in the run itself: it says nothing then."""
    checker: str = ""
    history: str = ""
    facts: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, entry: Entry) -> "Run":
        """Return what a run has shown whose entry this is."""
        facts = {name: entry.facts[name] for name in FACTS if name in entry.facts}
        return cls(
            entry.row, entry.column, entry.facts.get("seed", -1), entry.acquired, entry.seconds,
            entry.gap, entry.broken, entry.late_updates, entry.expected, entry.wrong, entry.checker,
            entry.history, facts,
        )  # fmt: skip

    @property
    def cell(self) -> tuple[str, str]:
        """The row and the column."""
        return self.row, self.column

    @property
    def is_as_expected(self) -> bool:
        """Whether it kept all that is promised in its row."""
        return self.entry().is_as_expected

    def entry(self) -> Entry:
        """Return the part of the entry that decides."""
        return Entry(
            self.row, self.column, expected=self.expected, wrong=self.wrong, broken=self.broken,
            late_updates=self.late_updates,
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Sum:
    """What the runs of a cell, or of several, have shown together."""

    runs: int
    """Those that did not fail themselves."""
    sections: int
    bad: int
    """The runs that broke a promise."""

    @classmethod
    def of(cls, runs: Iterable[Run]) -> "Sum":
        """Add runs up."""
        whole = [run for run in runs if not run.wrong]
        return cls(
            len(whole),
            sum(run.sections for run in whole),
            sum(not run.is_as_expected for run in whole),
        )

    @property
    def seen(self) -> float:
        """See `rate_seen`."""
        return rate_seen(self.runs)


def rate_seen(runs: int) -> float:
    """
    Return the lowest share of failing runs that *runs* of them would have shown with 95 %.

    If each run fails with this probability, all of them succeed with 5 %: the exact form of the
    "rule of three", which says 3 / runs.
    """
    return 1 - MISSED ** (1 / runs) if runs else 1.0


def earlier(path: Path = PUBLISHED / "results-faults.json") -> list[Run]:
    """Return the runs of the published matrix."""
    return [Run.of(each) for each in Results(path).of(control=False) if not each.skipped]


def by_cells(runs: Iterable[Run]) -> Mapping[tuple[str, str], list[Run]]:
    """Return the runs of each cell; none of one that was not run."""
    found: Mapping[tuple[str, str], list[Run]] = defaultdict(list)
    for run in runs:
        found[run.cell].append(run)
    return found


def following(cells: Sequence[Cell], runs: Sequence[Run]) -> Cell:
    """
    Return the cell to run next, with a new seed and a rest that is drawn.

    Those with few sections come first, then those with the fewest runs. A cell whose runs all
    fail is in nobody's way for long.
    """
    mine = by_cells(runs)

    def done(cell: Cell) -> tuple[bool, int, int]:
        each = mine[cell.row.name, cell.contestant.name]
        sections = Sum.of(each).sections
        return sections >= FEWEST or len(each) >= MANY, len(each), sections

    cell = min(cells, key=done)
    used = {run.seed for run in mine[cell.row.name, cell.contestant.name]}
    seed = next(each for each in iter(lambda: secrets.randbelow(10**6), None) if each not in used)
    return replace(cell, seed=seed, job={"rest": secrets.choice(RESTS)})


def perform(cell: Cell, output: Path, keep: Path | None) -> Run:
    """
    Run a cell; keep its history in *output* if it broke a promise or failed.

    Args:
        keep: Where to keep the history of the last run of each cell, whatever it has shown.
    """
    with tempfile.TemporaryDirectory(prefix="seeds-") as scratch:
        run = Run.of(matrix.run("", cell, Path(scratch), keep))
        kept = ""
        # Losses without need break no promise, and updates after the end of a lease only happen.
        if run.history and not run.is_as_expected:
            kept = f"histories/seeds-{cell.name}-{cell.seed}.tar.xz"
            (output / "histories").mkdir(exist_ok=True)
            shutil.copy(Path(scratch) / run.history, output / kept)
        return replace(run, seed=cell.seed, history=kept)


def report(runs: Sequence[Run]) -> str:
    """Return the page about the runs of all cells."""
    columns = in_order({run.column for run in runs}, [ours.name for ours in COLUMNS])
    names = in_order({run.row for run in runs}, [row.name for row in ROWS])
    mine = by_cells(runs)
    sums = {(row, column): Sum.of(mine[row, column]) for row in names for column in columns}
    rows = [[f"**{row}**", *(text(sums[row, column]) for column in columns)] for row in names]
    return "\n\n".join([
        "# Seeds", *summary(runs, sums), LEGEND, table(["fault", *columns], rows), *failures(runs),
        *measured_where(runs),
    ]) + "\n"  # fmt: skip


LEGEND = f"""\
A cell says how many runs it had, how many sections these had in all, and the lowest share of runs
with a failure that they would have shown with 95 %. A section is an acquired lease. *Few* marks
cells with fewer than {FEWEST} sections."""


def text(found: Sum) -> str:
    """Return what the table says of a cell."""
    if not found.runs:
        return "not run yet"
    few = " *few*" if found.sections < FEWEST else ""
    shows = f"**{found.bad} broke a promise**" if found.bad else percent(found.seen)
    return f"{found.runs:,} · {found.sections:,}{few} · {shows}"


def percent(share: float) -> str:
    """Return a share with two digits."""
    return f"{100 * share:.2g} %" if share < 1 else "100 %"


def summary(runs: Sequence[Run], sums: Mapping[tuple[str, str], Sum]) -> Iterator[str]:
    """Yield what all runs have shown."""
    cells = [each for each in sums.values() if each.runs]
    if not cells:
        yield "Nothing has been run."
        return
    fewest = min(each.runs for each in cells)
    yield sentence(runs)
    yield (
        f"Each of these cells was run at least {fewest:,} {'time' if fewest == 1 else 'times'}."
        " A defect that shows more rarely may be there."
    )


def sentence(runs: Sequence[Run]) -> str:
    """Return the sentences that the page of the tests has, too."""
    whole = Sum.of(runs)
    cells = [Sum.of(each) for each in by_cells(runs).values()]
    fewest = min((each.runs for each in cells), default=0)
    few = sum(each.sections < FEWEST for each in cells)
    bad = f"{whole.bad:,} of them" if whole.bad else "none of them"
    return (
        f"In {whole.runs:,} runs of {len(cells)} cells, with {whole.sections:,} sections, {bad}"
        f" broke a promise. With 95 %, a defect that shows in {percent(whole.seen)} of all runs"
        " would have been seen; in one cell alone, only one that shows in"
        f" {percent(rate_seen(fewest))} of its runs. Cells with fewer than {FEWEST} sections:"
        f" {few}."
    )


def failures(runs: Sequence[Run]) -> Iterator[str]:
    """Yield a list of the runs that broke a promise, or failed."""
    lines = []
    for run in runs:
        if not run.is_as_expected:
            says = "; ".join(run.wrong)[:200] if run.wrong else broken(run.broken)
            link = f" ([history]({run.history}))" if run.history else ""
            failed = "the run failed: " if run.wrong else ""
            lines.append(f"- {run.row}, {run.column}, seed {run.seed}: {failed}{says}{link}")
    if lines:
        yield "## Runs that broke a promise, or failed"
        yield "\n".join(lines)


def measured_where(runs: Sequence[Run]) -> Iterator[str]:
    """Yield what was measured, if a run says so."""
    known = [run for run in runs if run.facts]
    if known:
        says = where([run.facts for run in known], [run.checker for run in known])
        yield (
            f"{says} [Each run](results-seeds.jsonl) is a line;"
            " the first one of most cells is that of [the matrix](results-faults.md)."
        )


def main(arguments: Sequence[str] | None = None) -> int:
    """Run cells until the time is over; return 1 if a run broke a promise or failed."""
    options = parse(arguments)
    options.output.mkdir(parents=True, exist_ok=True)
    path = options.output / "results-seeds.jsonl"
    runs = [*earlier(), *(Run(**each) for each in read_log(path))]
    page = options.output / "results-seeds.md"
    cells = [] if options.report else possible(options)
    ends = time.monotonic() + 60 * options.minutes
    wrong = 0
    while cells and time.monotonic() < ends:
        run = perform(following(cells, runs), options.output, options.keep)
        append(path, asdict(run))
        runs.append(run)
        page.write_text(report(runs))
        wrong += not run.is_as_expected
        found = Sum.of(each for each in runs if each.cell == run.cell)
        says = "; ".join(run.wrong)[:2000] or broken(run.broken) or "holds"
        print(
            f"{run.row:32} {run.column:16} seed {run.seed:<6}  {run.sections:,} sections: {says}"
            f"  (run {found.runs}, {found.sections:,} sections in all)", flush=True,
        )  # fmt: skip
    page.write_text(report(runs))
    print(sentence(runs))
    return int(wrong > 0)


def possible(options: argparse.Namespace) -> list[Cell]:
    """Return the cells that can be run here, and name once why others can't."""
    words = ["--controls", "--seed", "0"]
    for name in ("rows", "columns"):
        if chosen := getattr(options, name):
            words += [f"--{name}", *chosen]
    cells, reasons = [], set()
    for _, cell, why_not in matrix.plan(matrix.parse(words)):
        if why_not:
            reasons.add(f"not run: {cell.row.name}: {why_not}")
        else:
            cells.append(cell)
    print(*sorted(reasons), sep="\n" if reasons else "", end="\n" if reasons else "")
    return cells


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--minutes", type=float, default=MINUTES, help="begin no run later (default: %(default)g)")
    add("--rows", nargs="+", choices=[row.name for row in ROWS], default=[], metavar="ROW")
    add("--columns", nargs="+", choices=[x.name for x in COLUMNS], default=[], metavar="COLUMN")
    add("--report", action="store_true", help="write the page again, run nothing")
    add("--keep", type=Path, metavar="FOLDER", help="for the history of each cell's last run")
    add_output(parser)
    return parser.parse_args(arguments)


if __name__ == "__main__":
    stop_cleanly()
    sys.exit(main())
