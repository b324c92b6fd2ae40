"""
The fault matrix for the locks of other libraries.

    pip install -e '.[peers,bench]'
    npm install --no-package-lock --prefix benchmarks/evidence/node
    go build -C benchmarks/evidence/go -o worker
    python -m benchmarks.evidence.peers_matrix [--rows ...] [--columns ...] [--seed N]
                                               [--output FOLDER | --publish]

It does what `matrix` does, with the rows that concern any lock. Nothing is expected of a cell,
because these libraries promise different things; the tables say what happened. They are in
`build/evidence/results-faults-peers.md`, and all figures in `results-faults-peers.json`.
`--output` names another folder, and `--publish` is `benchmarks`, whose results the pages show.
"""

import argparse
import secrets
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from redis.exceptions import RedisError

from redlock_aio.testing import server_binary

from . import cell as cells, networks, peers_tables
from .cell import Cell
from .checker import OVERLAPS, check
from .clocks import why_no_clocks
from .faults import Row
from .locks import Contestant
from .ours import OURS
from .peers import peers
from .peers_rows import ONE_MASTER_ROWS, QUORUM_ROWS
from .results import Entry, Results, add_output, pack, parse_seconds
from .stopping import stop_cleanly

RESULTS = "results-faults-peers"
COMPARED = OURS[0]
"""The kind of our locks that is in the table beside them: without fencing tokens, as they are."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run cells; return 1 if one could not be run."""
    options = parse(arguments)
    options.output.mkdir(parents=True, exist_ok=True)
    results = Results(options.output / f"{RESULTS}.json")
    failed = False
    for cell, why_not in plan(options):
        if why_not:
            entry = Entry(cell.row.name, cell.contestant.name, skipped=why_not)
        else:
            entry = run(cell, options.output)
        failed |= bool(entry.wrong and not entry.facts)
        results.add(entry)
        print(f"{entry.row:28} {entry.column:18} {peers_tables.words(entry)}", flush=True)
    (options.output / f"{RESULTS}.md").write_text(peers_tables.report(results))
    return int(failed)


def everybody() -> dict[str, Contestant]:
    """Return the contestants of these tables by their names."""
    return {each.name: each for each in (*peers(), COMPARED)}


def rows_of(contestant: Contestant) -> tuple[Row, ...]:
    """Return the rows for a lock on so many masters."""
    return ONE_MASTER_ROWS if contestant.masters == 1 else QUORUM_ROWS


def plan(options: argparse.Namespace) -> Iterator[tuple[Cell, str]]:
    """Yield each cell, and why it can't be run; "" for other cells."""
    reasons = {"network": networks.why_not(), "clocks": why_no_clocks()}
    for name, contestant in everybody().items():
        if options.columns and name not in options.columns:
            continue
        reasons["event loop"] = "" if contestant.event_loop else "it has no event loop"
        for row in rows_of(contestant):
            if not options.rows or row.name in options.rows:
                cell = Cell(
                    row,
                    contestant,
                    options.seed,
                    options.binary,
                    options.seconds,
                    expected=row.expected,
                    program="peers_matrix",
                )
                yield cell, next((reasons[need] for need in row.needs if reasons[need]), "")


def run(cell: Cell, output: Path) -> Entry:
    """Run one cell and check its history, which is kept if an update or a lock was lost."""
    with tempfile.TemporaryDirectory(prefix="evidence-") as scratch:
        folder = Path(scratch)
        try:
            wrong = cells.run(cell, folder)
            verdict = check(folder)
        except (OSError, RuntimeError, ValueError, RedisError) as error:
            return Entry(cell.row.name, cell.contestant.name, wrong=[str(error)])
        entry = Entry.of(verdict, "", wrong)
        if OVERLAPS & set(entry.broken) or entry.late_updates:
            (folder / "verdict.json").write_text(verdict.as_json())
            entry.history = pack(folder, f"peers {cell.name}".replace(" ", "-"), output)
        return entry


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    rows = list(dict.fromkeys(row.name for row in (*QUORUM_ROWS, *ONE_MASTER_ROWS)))
    add = parser.add_argument
    add("--rows", nargs="+", choices=rows, default=[], metavar="ROW")
    add("--columns", nargs="+", choices=list(everybody()), default=[], metavar="COLUMN")
    add(
        "--seconds",
        type=parse_seconds,
        default=0.0,
        help="of each cell (default: as the row needs)",
    )
    add("--seed", type=int, default=None, help="of all random choices; their timing differs")
    add_output(parser)
    options = parser.parse_args(arguments)
    if options.seed is None:
        options.seed = secrets.randbelow(10**6)
    options.binary = server_binary()
    return options


if __name__ == "__main__":
    stop_cleanly()
    sys.exit(main())
