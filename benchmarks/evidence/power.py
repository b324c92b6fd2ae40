"""
Shows what the fault matrix would see: defects are put into the library, and cells are run.

    python -m benchmarks.evidence.power [--minutes N] [--defects ...] [--rows ...]
                                        [--output FOLDER | --publish]
    python -m benchmarks.evidence.power --list

A matrix in which nothing breaks says little, unless it sees a library that is broken. So a copy of
the library gets one defect, and runs as the clients of a cell. `power.toml` has ten defects or more
for each promise that the matrix judges; many are those of `tests/mutants`. It also names defects
that no cell should show, because another layer of the library does their work. Each run adds a
line to `results-power.jsonl`, in `build/evidence`, or in `benchmarks` with `--publish`. No run
begins after `--minutes`. Started again, it continues. `results-power.md` says which rows have seen
which defect; `--report` writes that page again.

First each defect is tried in the row where it should be seen, then in *no fault*. Those that were
not seen where they should be are tried there twice more. Then come all other rows that this kind of
lock can be tried in, and after that all again, with new seeds. The runs are shorter than those of
the matrix.
"""

import argparse
import contextlib
import importlib.util
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from redlock_aio.testing._processes import start

from . import matrix, provenance
from .cell import Cell
from .faults import ROWS
from .provenance import ROOT, measured, where
from .results import Entry, Results, add_output, append, read_log
from .stopping import stop_cleanly
from .tables import broken, in_order, table

if importlib.util.find_spec("tests") is None:  # as where only `benchmarks` is on the path
    sys.path.append(str(ROOT))

from tests.mutants.table import PACKAGE, PLANTED, Mutant, read

MINUTES = 60.0
SECONDS = 7.0
"""Of a run whose row lasts for as long as most do; the other rows need their own time."""

AT_FIRST = 3
"""How often a defect is tried at first where it should be seen, until it is."""

PATIENCE = 180.0
"""Seconds that a run may take beyond its own, for starts, ends and the checker."""

DEFECTS = Path(__file__).with_suffix(".toml")

JUDGED = {
    "S1": "Mutual exclusion",
    "S2": "No holder believes for too long that it holds",
    "S3": "Nothing is left behind",
    "S4": "No lease is revived",
    "S7": "Fencing tokens rise",
}
"""The promises that the matrix judges."""

ELSEWHERE = {
    "S5": "a lost reply that is sent again costs a try, and no safety: unit tests with masters in"
    " memory repeat each request",
    "S6": "the latency is measured as the *longest gap*, and a busy machine allows no limit of it:"
    " unit tests in virtual time have exact ones",
    "S8": "the order of waiters is judged in `benchmarks.evidence.trials`, and searched in"
    " `tests/proofs`",
    "S9": "wake-ups have limits in `benchmarks.evidence.trials`, and unit tests in virtual time",
    "S10": "unit tests read each error, event and repr, and the fake counts the scripts",
}
"""The promises for which the matrix is the wrong tool, and what catches these defects instead."""

SEEN, MISSED, FAILED, NEVER = "seen", "not seen", "the run failed", "not run yet"


@dataclass(frozen=True, slots=True)
class Defect:
    """A defect, and where it should be seen."""

    mutant: Mutant
    promise: str
    row: str
    column: str

    @property
    def id(self) -> str:
        """Its name."""
        return self.mutant.id


def defects(path: Path = DEFECTS) -> list[Defect]:
    """
    Return the defects of `power.toml`.

    Raises:
        ValueError: One is not in `tests/mutants`, nor written in full.
    """
    planted = {mutant.id: mutant for mutant in read(PLANTED)}
    found = []
    for facts in tomllib.loads(path.read_text())["defect"]:
        row, column, promise = (facts.pop(name) for name in ("row", "column", "promise"))
        if "old" in facts:
            mutant = Mutant(**facts, promise=promise)
        elif facts["id"] in planted:
            mutant = planted[facts["id"]]
        else:
            raise ValueError(f"{path.name}: no planted mutant has the id {facts['id']}")
        found.append(Defect(mutant, promise, row, column))
    return found


def masked(path: Path = DEFECTS) -> dict[str, str]:
    """Return for some planted mutants why no cell should show them."""
    return {each["id"]: each["why"] for each in tomllib.loads(path.read_text())["masked"]}


@dataclass(frozen=True, slots=True)
class Try:
    """What one run with a defect has shown; a line of the log."""

    defect: str
    digest: str
    """That of the mutant: a line about another text of it does not count."""
    row: str
    column: str
    seed: int
    seconds: float = 0.0
    sections: int = 0
    broken: dict[str, int] = field(default_factory=dict)
    expected: str = "holds"
    wrong: list[str] = field(default_factory=list)
    """What failed in the run itself, such as a client that ended with an error."""
    checker: str = ""
    facts: dict[str, Any] = field(default_factory=dict)

    @property
    def verdict(self) -> str:
        """Whether the defect was seen."""
        if self.wrong:
            return FAILED
        entry = Entry(self.row, self.column, expected=self.expected, broken=self.broken)
        return MISSED if entry.is_as_expected else SEEN


# ------------------------------------------------------------------------ one run


@contextlib.contextmanager
def copy(mutant: Mutant) -> Iterator[Path]:
    """Copy the library, with a defect, and the programs that try it; yield the folder."""
    with tempfile.TemporaryDirectory(prefix="power-") as scratch:
        folder = Path(scratch)
        without = shutil.ignore_patterns("__pycache__", "node_modules", "go", "go_porcupine")
        for package in (PACKAGE, "benchmarks/evidence"):
            shutil.copytree(ROOT / package, folder / package, ignore=without)
        changed = folder / mutant.file
        changed.write_text(mutant.apply(changed.read_text()))
        yield folder


def perform(defect: Defect, cell: Cell) -> Try:
    """Run a cell with a defect in the library."""
    measures = measured()
    with copy(defect.mutant) as folder:
        output, errors = folder / "output", folder / "errors"
        words = ["--rows", cell.row.name, "--columns", cell.contestant.name, "--seed", cell.seed]
        words += ["--seconds", cell.seconds, "--output", output]
        # With -m the folder is the first one from which the run, and its clients, import.
        command = [sys.executable, "-m", "benchmarks.evidence.matrix", *map(str, words)]
        with errors.open("wb") as file:
            process = start(
                command, cwd=folder, stdout=file, stderr=file,
                env=os.environ | {"PYTHONPATH": str(folder)},
            )  # fmt: skip
            ended = wait(process, cell.seconds + PATIENCE)
        path = output / "results-faults.json"
        entries = list(Results(path)) if path.exists() else []
        entry = entries[0] if entries else Entry(cell.row.name, cell.contestant.name)
        wrong = list(entry.wrong)
        if not ended:
            wrong.append(f"it did not end within {cell.seconds + PATIENCE:.0f} s")
        elif not entries:
            wrong.append(errors.read_text(errors="replace")[-2000:])
        facts = {name: entry.facts[name] for name in SHOWN if name in entry.facts}
        return Try(
            defect.id, defect.mutant.digest, cell.row.name, cell.contestant.name, cell.seed,
            entry.seconds, entry.acquired, entry.broken, entry.expected,
            [shortened(each) for each in wrong], provenance.checker(),
            facts | measures,
        )  # fmt: skip


def shortened(error: str) -> str:
    """Return the first and the last line of a text, without a traceback's files in between."""
    first, *others = error.strip().splitlines() or [""]
    return f"{first} ... {others[-1]}" if others else first


SHOWN = ("server", "machine", "date", "versions")
"""What a line has of the facts of its run; what was measured is the library without the defect."""


def wait(process: subprocess.Popen[bytes], seconds: float) -> bool:
    """Wait for a run; end it if it takes longer, or if this program is ended. Return if it did."""
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        return False
    else:
        return True
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)  # it ends its servers and networks
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


# ------------------------------------------------------------------------ the plan


def cells(every: Sequence[Defect], rows: Sequence[str] = ()) -> dict[tuple[str, str], Cell]:
    """Return the cells of *rows*, or of all, that can be run here, by row and column."""
    columns = dict.fromkeys(defect.column for defect in every)
    words = ["--controls", "--seed", "0", "--columns", *columns]
    if rows:
        words += ["--rows", *rows]
    return {
        (cell.row.name, cell.contestant.name): cell
        for _, cell, why_not in matrix.plan(matrix.parse(words))
        if not why_not
    }


def seconds(row: str) -> float:
    """Return how long a run of a row takes."""
    usual = Counter(each.seconds for each in ROWS).most_common(1)[0][0]
    own = next(each.seconds for each in ROWS if each.name == row)
    return SECONDS if own == usual else own


def following(
    every: Sequence[Defect], possible: dict[tuple[str, str], Cell], tries: Sequence[Try]
) -> tuple[Defect, Cell]:
    """Return the defect and the cell that are tried next, with a new seed."""
    done = Counter((each.defect, each.row) for each in tries)
    seen = {(each.defect, each.row) for each in tries if each.verdict == SEEN}
    tiers: dict[tuple[int, int], tuple[Defect, str]] = {}
    for number, defect in enumerate(every):
        mine = [row.name for row in ROWS if (row.name, defect.column) in possible]
        for row in mine:
            times = done[defect.id, row]
            if row == defect.row and 0 < times < AT_FIRST and (defect.id, row) not in seen:
                tier = 1 + times
            else:
                place = AT_FIRST + 1 + mine.index(row)
                tier = 0 if row == defect.row else 1 if row == "no fault" else place
                tier += 100 * times
            tiers.setdefault((tier, number), (defect, row))
    defect, row = tiers[min(tiers)]
    cell = possible[row, defect.column]
    return defect, replaced(cell, seconds(row))


def replaced(cell: Cell, length: float) -> Cell:
    """Return a cell with a length and a new seed."""
    return Cell(cell.row, cell.contestant, secrets.randbelow(10**6), cell.binary, length)


# ------------------------------------------------------------------------ results


LEGEND = """*Seen* says that a run broke a promise, by the verdict of the checker, and *the run
failed* that a client ended with an error, or that nobody acquired a lock, which a person would see
as well. A promise is here the one by which the matrix can see the defect."""


def valid(every: Sequence[Defect], tries: Iterable[Try]) -> list[Try]:
    """Return the tries of the defects as they are written now."""
    digests = {each.id: each.mutant.digest for each in every}
    return [each for each in tries if digests.get(each.defect) == each.digest]


def verdict(tries: Sequence[Try]) -> str:
    """Return what the runs of one defect in one row say together."""
    found = {each.verdict for each in tries}
    return next((each for each in (SEEN, FAILED, MISSED) if each in found), NEVER)


def report(every: Sequence[Defect], tries: Sequence[Try]) -> str:
    """Return the page."""
    by: dict[tuple[str, str], list[Try]] = defaultdict(list)
    for each in tries:
        by[each.defect, each.row].append(each)
    verdicts = {place: verdict(mine) for place, mine in by.items()}
    return "\n\n".join([
        "# What the fault matrix would see", *summary(every, verdicts, tries), LEGEND,
        "## Each defect", defect_table(every, by), "## Each row", row_table(every, verdicts),
        "## Promises that the matrix does not judge",
        "\n".join(f"- {name}: {text}." for name, text in ELSEWHERE.items()),
        "## Defects that no cell should show", MASKED, masked_table(), *measured_where(tries),
    ]) + "\n"  # fmt: skip


def summary(
    every: Sequence[Defect], verdicts: dict[tuple[str, str], str], tries: Sequence[Try]
) -> Iterator[str]:
    """Yield how many defects were seen, of each promise and in all."""
    rows = []
    for promise, text in [*JUDGED.items(), ("", "all")]:
        mine = [each for each in every if promise in {"", each.promise}]
        own = [verdicts.get((each.id, each.row), NEVER) for each in mine]
        some = [{v for (name, _), v in verdicts.items() if name == each.id} for each in mine]
        rows.append([
            f"{promise} {text}".strip(), str(len(mine)), str(sum(bool(each) for each in some)),
            str(sum(SEEN in each for each in some)), str(own.count(SEEN)),
            str(sum(FAILED in each and SEEN not in each for each in some)),
        ])  # fmt: skip
    yield sentence(every, tries)
    yield table(["promise", "defects", "tried", "seen", "where they should be", "run failed"], rows)


def sentence(every: Sequence[Defect], tries: Sequence[Try]) -> str:
    """Return the sentence that the page of the tests has, too."""
    tried = {each.defect for each in tries}
    seen = {each.defect for each in tries if each.verdict == SEEN}
    return (
        f"Of {len(every)} defects, {len(tried)} were tried so far, in {len(tries):,} short runs:"
        f" {len(seen)} were seen."
    )


def defect_table(every: Sequence[Defect], by: dict[tuple[str, str], list[Try]]) -> str:
    """Return the table with a line for each defect."""
    rows = []
    for defect in every:
        others = {row: v for (name, row), v in by.items() if name == defect.id}
        others = {row: v for row, v in others.items() if row not in {defect.row, "no fault"}}
        seen = [row for row in in_order(others, ORDER) if verdict(others[row]) == SEEN]
        elsewhere = f"{len(seen)} of {len(others)}" + (f": {', '.join(seen)}" if seen else "")
        quiet = text(by.get((defect.id, "no fault"), ()))
        rows.append([
            defect.promise, f"{defect.mutant.defect} `{defect.id}`", defect.column, defect.row,
            text(by.get((defect.id, defect.row), ())), quiet, elsewhere,
        ])  # fmt: skip
    head = [
        "promise",
        "defect",
        "lock",
        "row",
        "in this row",
        "in *no fault*",
        "seen in other rows",
    ]
    return table(head, sorted(rows, key=lambda row: list(JUDGED).index(row[0])))


MASKED = """The library has another layer for what these defects remove, or they need an instant
that no fault makes. So says the code; each was tried at least once where it was most likely to
show, and was not seen. The unit tests fail by each of them (`python -m tests.mutants`)."""


def masked_table() -> str:
    """Return the table of defects that no cell should show."""
    planted = {mutant.id: mutant for mutant in read(PLANTED)}
    rows = [[f"{planted[name].defect} `{name}`", why] for name, why in masked().items()]
    return table(["defect", "why"], rows)


ORDER = [row.name for row in ROWS]
ASSUMPTIONS = {row.name: row.assumption for row in ROWS}


def text(tries: Sequence[Try]) -> str:
    """Return the verdict on some runs, with what was broken."""
    found = verdict(tries)
    if found == NEVER:
        return found
    times = sum(each.verdict == SEEN for each in tries)
    several = f" {times} of {len(tries)} times" if len(tries) > 1 and found == SEEN else ""
    counts: Counter[str] = sum((Counter(each.broken) for each in tries), Counter())
    says = f"{several}: {broken(counts)}" if found == SEEN else ""
    return f"**{found}**{says}" if found == SEEN else found


def row_table(every: Sequence[Defect], verdicts: dict[tuple[str, str], str]) -> str:
    """Return the table with a line for each row: what it has seen, and what nothing else has."""
    rows = []
    seen_in: dict[str, set[str]] = defaultdict(set)
    for (name, row), found in verdicts.items():
        if found == SEEN:
            seen_in[name].add(row)
    for row in ORDER:
        tried = [name for name, where in verdicts if where == row]
        if not tried:
            rows.append([f"**{row}**", "0", "0", "0", NEVER])
            continue
        seen = [name for name in tried if row in seen_in[name]]
        alone = [name for name in seen if seen_in[name] == {row}]
        mine = [each.id for each in every if each.row == row and each.id in tried]
        missed = [name for name in mine if name not in seen]
        says = [f"it should have seen {', '.join(missed)}"] if missed else []
        if not seen:
            says.insert(0, "**sees nothing so far**")
            if ASSUMPTIONS[row]:
                says.insert(
                    1, f"two may hold a lock here, as it is assumed that {ASSUMPTIONS[row]}"
                )
        rows.append([
            f"**{row}**", str(len(tried)), str(len(seen)), str(len(alone)), "; ".join(says),
        ])  # fmt: skip
    return table(["row", "defects tried", "seen", "by no other row", ""], rows)


def measured_where(tries: Sequence[Try]) -> Iterator[str]:
    """Yield what was measured, if a run says so."""
    known = [each for each in tries if "machine" in each.facts]
    if known:
        says = where([each.facts for each in known], [each.checker for each in known])
        yield f"{says} [Each run](results-power.jsonl) is a line."


# ------------------------------------------------------------------------ command line


def main(arguments: Sequence[str] | None = None) -> int:
    """Try defects until the time is over."""
    options = parse(arguments)
    known = defects()
    options.output.mkdir(parents=True, exist_ok=True)
    path = options.output / "results-power.jsonl"
    tries = valid(known, (Try(**each) for each in read_log(path)))
    page = options.output / "results-power.md"
    chosen = [each for each in known if each.id in options.defects or not options.defects]
    possible = {} if options.report else cells(chosen, options.rows)
    ends = time.monotonic() + 60 * options.minutes
    while possible and time.monotonic() < ends:
        made = perform(*following(chosen, possible, tries))
        append(path, asdict(made))
        tries.append(made)
        page.write_text(report(known, tries))
        says = "; ".join(made.wrong)[-500:] or broken(made.broken)
        print(f"{made.defect:32} {made.row:32} {made.column:16} {made.verdict}: {says}", flush=True)
    page.write_text(report(known, tries))
    print(sentence(known, tries))
    return 0


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    known = defects()
    add("--minutes", type=float, default=MINUTES, help="begin no run later (default: %(default)g)")
    add("--defects", nargs="+", choices=[each.id for each in known], default=[], metavar="DEFECT")
    add("--rows", nargs="+", choices=[row.name for row in ROWS], default=[], metavar="ROW")
    add("--report", action="store_true", help="write the page again, run nothing")
    add("--list", action="store_true", help="print the defects")
    add_output(parser)
    options = parser.parse_args(arguments)
    if options.list:
        for each in known:
            print(f"{each.promise:4} {each.id:36} {each.row}, {each.column}: {each.mutant.defect}")
        raise SystemExit
    return options


if __name__ == "__main__":
    stop_cleanly()
    sys.exit(main())
