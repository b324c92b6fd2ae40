"""
The simulation in virtual time by numbers: seeds, hours, faults, and the story of one that fails.

    python -m benchmarks.evidence.simulation --seed 4711            one seed, with its story
    python -m benchmarks.evidence.simulation --seeds 0-99999        a range
    python -m benchmarks.evidence.simulation --minutes 10           the next seeds, for ten minutes
                                             [--jobs N] [--chunk N] [--output FOLDER | --publish]

A seed stands for a few programs with two or three kinds of lock, one to five masters, and faults
of both: what they are is in `plan`. The same seed is the same story in every process. What the
programs saw is judged by the checker of the fault matrix, and the masters are looked into.

Each chunk of seeds becomes a line of `results-simulation.jsonl`, in `build/evidence`, or in
`benchmarks` with `--publish`; `results-simulation.md` sums them up. Seeds that the log has already
are left out, so that a run that was ended continues where it was. Without `--seeds` it begins
behind the last one.

A seed that breaks a promise ends the run with its chunk. It is made smaller for as long as it
still breaks the same promise, and what is left is told. The exit code is 1 then.
"""

import argparse
import os
import platform
import re
import sys
import time
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from ..provenance import measured
from ..results import add_output
from ..stopping import stop_cleanly
from .batches import simulated
from .log import LOG, PAGE, missing, read, report
from .plan import draw
from .run import Outcome, run
from .shrink import shrink

ENDLESS = 10**9


def main(arguments: Sequence[str] | None = None) -> int:
    """Run seeds; return 1 if one broke a promise."""
    options = parse(arguments)
    if options.seed is not None:
        outcome = run(draw(options.seed))
        print(outcome.story())
        if outcome.broken and options.shrink:
            print(f"\nThe same, made smaller:\n\n{smallest(outcome).story()}")
        return int(bool(outcome.broken))
    options.output.mkdir(parents=True, exist_ok=True)
    path: Path = options.output / LOG
    chunks = read(path)
    first, last = options.seeds or (max((each.last for each in chunks), default=-1) + 1, ENDLESS)
    ranges = missing(chunks, first, last)
    if not ranges:
        print(f"{path} has all of these seeds; remove it to run them again")
    facts = measured() | {
        "date": time.strftime("%Y-%m-%d"),
        "machine": f"{os.cpu_count()} CPUs, {platform.system()}",
        "python": platform.python_version(),
        "version": version("redlock-aio"),
    }
    ends = time.monotonic() + options.minutes * 60 if options.minutes else None
    failed = None
    for chunk in simulated(ranges, options.jobs, options.chunk, ends):
        chunk.facts = facts
        chunks.append(chunk)
        with path.open("a") as file:
            file.write(chunk.line() + "\n")
        print(
            f"seeds {chunk.first} to {chunk.last}: {len(chunk.failed)} failed;"
            f" {chunk.hours:.2f} virtual hours, {chunk.sections:,} leases,"
            f" {sum(chunk.faults.values()):,} faults, {chunk.cpu / chunk.seeds * 1000:.0f} ms of"
            f" CPU time a seed; {sum(each.seeds for each in chunks):,} seeds in all",
            flush=True,
        )
        if chunk.failed:
            failed = int(next(iter(chunk.failed)))
            break
    if chunks:
        (options.output / PAGE).write_text(report(chunks))
    if failed is None:
        return 0
    outcome = run(draw(failed))
    print(f"\nseed {failed} failed: {', '.join(outcome.promises)}")
    if options.shrink:
        print(f"Made smaller:\n\n{smallest(outcome).story()}")
    return 1


def smallest(outcome: Outcome) -> Outcome:
    """Return what the smallest plan has shown that breaks the same promise first."""
    wanted = outcome.promises[0]
    return run(shrink(outcome.plan, lambda plan: wanted in run(plan).promises))


def seeds(text: str) -> tuple[int, int]:
    """Return the first and the last seed of ``FROM-TO``."""
    found = re.fullmatch(r"(\d+)-(\d+)", text)
    if found is None or int(found[1]) > int(found[2]):
        raise argparse.ArgumentTypeError(f"seeds are FROM-TO, such as 0-99999, not {text!r}")
    return int(found[1]), int(found[2])


def positive(kind: type[Any], what: str) -> Any:
    """Return what reads a positive number."""

    def parsed(text: str) -> Any:
        try:
            number = kind(text)
        except ValueError:
            number = 0
        if number <= 0:
            raise argparse.ArgumentTypeError(f"{what} is a positive number, not {text!r}")
        return number

    return parsed


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.evidence.simulation",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--seed", type=int, help="run one, and tell its story; keeps no result")
    which.add_argument("--seeds", type=seeds, metavar="FROM-TO", help="run these")
    add("--minutes", type=positive(float, "--minutes"), help="end after so long")
    add("--jobs", type=positive(int, "--jobs"), default=os.cpu_count() or 1,
        help="how many processes (default: one a CPU)")  # fmt: skip
    add("--chunk", type=positive(int, "--chunk"), default=1_000, help="seeds a line (1,000)")
    add("--no-shrink", dest="shrink", action="store_false",
        help="tell only the whole story of --seed")  # fmt: skip
    add_output(parser)
    options = parser.parse_args(arguments)
    if options.seed is None and options.seeds is None and options.minutes is None:
        parser.error("one of --seed, --seeds and --minutes says what to run")
    return options


if __name__ == "__main__":
    stop_cleanly()
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
