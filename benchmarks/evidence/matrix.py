"""
The fault matrix: each kind of lock under each fault, with a check of what the clients saw.

    python -m benchmarks.evidence.matrix [--rows ...] [--columns ...] [--seconds N] [--seed N]
                                         [--rest N] [--output FOLDER | --publish]

For each cell five masters and three client processes are started. The clients acquire, hold,
extend, hand over and release locks, and write to a store under them, while the row's fault
happens. Afterwards the checker reads their history. The results of all cells are kept in
`build/evidence/results-faults.json`; cells that are run again replace the older ones. The tables
are in `results-faults.md`, the picture in `results-faults.svg`, and the raw histories of cells
that broke a promise in `histories/`. `--output` names another folder, and `--publish` is
`benchmarks`, whose results the pages show.

`--containers` does what can be done to masters in containers, and keeps the results of that in
`results-faults-containers.json` and `.md`.

The controls must fail: they show that the faults happen and that the checks see them. The exit
code is 1 if a cell is not as expected, which for a control means that it holds.
"""

import argparse
import secrets
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from redis.exceptions import RedisError

from redlock_aio.testing import server_binary

from . import cell as cells, containers, networks, tables
from .cell import Cell
from .checker import check
from .clocks import why_no_clocks
from .clusters import why_no_cluster
from .contestants import contestants
from .controls import CONTROLS, Control
from .drawing import draw
from .faults import ROWS, Row
from .ours import COLUMNS
from .results import PUBLISHED, Entry, Results, add_output, pack, parse_seconds, unexpected
from .servers import why_no_disks
from .stopping import stop_cleanly

QUICK_ROWS, QUICK_COLUMNS = ("restarted empty", "holder stopped"), ("fenced", "read-write")
QUICK_SECONDS = 6.0
QUICK_CONTROL = "no lock"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run cells; return 1 if one is not as expected."""
    options = parse(arguments)
    with tempfile.TemporaryDirectory(prefix="evidence-") as scratch:
        output = Path(scratch) if options.quick else options.output
        output.mkdir(parents=True, exist_ok=True)
        stem = "results-faults-containers" if options.containers else "results-faults"
        results = Results(output / f"{stem}.json")
        entries = []
        for name, cell, why_not in () if options.report else plan(options):
            if why_not:
                entry = Entry(cell.row.name, cell.contestant.name, name, skipped=why_not)
            else:
                entry = run(name, cell, output, options.keep)
            entries.append(entry)
            if not cells.cannot(cell.contestant, cell.row):
                results.add(entry)
            print(tables.line(entry), flush=True)
        page = tables.report(results, containers=options.containers)
        (output / f"{stem}.md").write_text(page)
        if not options.containers:
            draw(results.of(control=False), output / f"{stem}.svg")
    wrong = unexpected(entries)
    for entry in wrong:
        print(f"NOT AS EXPECTED: {tables.line(entry)}", file=sys.stderr)
    return int(bool(wrong))


def plan(options: argparse.Namespace) -> Iterator[tuple[str, Cell, str]]:
    """Yield the name of each control, its cell, and why it can't be run; "" for other cells."""
    everybody = contestants()
    reasons = missing(options)
    only = options.rows or options.columns
    rows = [
        row
        for row in ROWS
        if (row.name in options.rows or not options.rows)
        and (row.containers or not options.containers)
    ]
    if options.controls and not only:
        rows = rows if options.all else []
    columns: Sequence[str] = options.columns or [each.name for each in COLUMNS]
    for row in rows:
        for column in columns:
            contestant = everybody[column]
            why_not = next((reasons[need] for need in sorted(row.needs) if reasons[need]), "")
            if options.containers:
                why_not = reasons["containers"]
            why_not = cells.cannot(contestant, row) or why_not
            yield "", make(options, row, column), why_not
    for control in CONTROLS:
        if control.name in options.controls:
            cell = make(options, control.row, control.column, control)
            yield control.name, cell, ""


def make(
    options: argparse.Namespace, row: Row, column: str, control: Control | None = None
) -> Cell:
    """Return a cell as the command line wants it."""
    others = {"rest": options.rest} if options.rest else {}
    return Cell(
        row=row,
        contestant=contestants()[column],
        seed=options.seed,
        binary=options.binary,
        seconds=options.seconds or (control.seconds if control is not None else 0.0),
        job=dict(control.job) if control is not None else others,
        expected=control.expected if control is not None else row.expected,
        containers=options.containers,
        control=control.name if control is not None else "",
        limits=cells.promised(row, contestants()[column]),
    )


def missing(options: argparse.Namespace) -> dict[str, str]:
    """Return for each need of a row why it can't be met here; empty if it can."""
    network = networks.why_not()
    why_not = containers.why_not() if options.containers else ""
    return {
        "network": network,
        "sentinels": network,
        "clocks": why_no_clocks(),
        "cluster": why_no_cluster(options.binary),
        "disks": why_no_disks(),
        "logs": why_no_disks(),
        "event loop": "",
        "snapshots": "",
        "fork": "",
        "containers": why_not,
    }


def run(control: str, cell: Cell, output: Path, keep: Path | None) -> Entry:
    """Run one cell and check its history, which is kept in *output* if a promise was broken."""
    with tempfile.TemporaryDirectory(prefix="evidence-") as scratch:
        folder = Path(scratch)
        try:
            wrong = cells.run(cell, folder)
            verdict = check(folder)
        except (OSError, RuntimeError, ValueError, RedisError) as error:
            return Entry(
                cell.row.name, cell.contestant.name, control, cell.expected, wrong=[str(error)]
            )
        entry = Entry.of(verdict, control, wrong)
        entry.facts["rounds"] = round(verdict.rounds, 1)
        (folder / "verdict.json").write_text(verdict.as_json())
        if keep is not None:
            keep.mkdir(parents=True, exist_ok=True)
            pack(folder, cell.name, keep)
        if entry.broken or entry.late_updates or wrong:
            entry.history = pack(folder, cell.name, output)
        return entry


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--rows", nargs="+", choices=[row.name for row in ROWS], default=[], metavar="ROW")
    add("--columns", nargs="+", choices=list(contestants()), default=[], metavar="COLUMN")
    add("--controls", nargs="*", choices=[each.name for each in CONTROLS], metavar="CONTROL")
    add(
        "--seconds",
        type=parse_seconds,
        default=0.0,
        help="of each cell (default: as the row needs)",
    )
    add("--seed", type=int, default=None, help="of all random choices; their timing differs")
    add(
        "--rest",
        type=parse_seconds,
        default=0.0,
        help="seconds that a task rests after a turn, at most",
    )
    add("--server", choices=("valkey", "redis"), default="valkey")
    add("--containers", action="store_true", help="masters in containers, where a row allows it")
    add("--quick", action="store_true", help="five short cells; keeps no results")
    add_output(parser)
    add("--keep", type=Path, help="a folder for the histories of all cells, to judge them again")
    add("--report", action="store_true", help="write tables and picture again, run nothing")
    add("--list", action="store_true", help="print the rows, columns and controls")
    options = parser.parse_args(arguments)
    if options.list:
        print(tables.listing())
        raise SystemExit
    if options.quick and options.output == PUBLISHED:
        parser.error("--quick keeps no results, so there is nothing to publish")
    if options.quick:
        options.rows = options.rows or QUICK_ROWS
        options.columns = options.columns or QUICK_COLUMNS
        options.seconds = options.seconds or QUICK_SECONDS
        options.controls = [QUICK_CONTROL]
    impossible = {row.name for row in ROWS if not row.containers} & set(options.rows)
    if options.containers and impossible:
        parser.error(f"not done to containers: {', '.join(sorted(impossible))}")
    options.all = False
    if options.controls is None:
        # All of them in a complete run; none if only some cells are repeated.
        options.all = not (options.rows or options.columns or options.containers)
        options.controls = [each.name for each in CONTROLS] if options.all else []
    if options.seed is None:
        options.seed = secrets.randbelow(10**6)
    options.binary = server_binary()
    if options.server == "redis":
        found = shutil.which("redis-server")
        if found is None:
            parser.error("there is no redis-server in the PATH")
        options.binary = found
    return options


if __name__ == "__main__":
    stop_cleanly()
    sys.exit(main())
