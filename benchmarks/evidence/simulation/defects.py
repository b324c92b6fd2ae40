"""
Shows what the simulation sees: defects are put into a copy of the library, and seeds are run.

    python -m benchmarks.evidence.simulation.defects [--seeds N] [--defects ID...]
                                                     [--jobs N] [--output FOLDER | --publish]

The defects are some of `tests/mutants/planted.toml`. Of each the seeds run in their order, from 0,
until one fails, or until there were `--seeds` of them. `results-simulation-defects.md`, in
`build/evidence`, or in `benchmarks` with `--publish`, says which seed was the first, and what it
broke. The exit code is 1 if a defect was not seen.
"""

import argparse
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ..provenance import ROOT, measured, said
from ..results import add_output
from ..stopping import stop_cleanly
from ..tables import table
from .log import LOG, read

if importlib.util.find_spec("tests") is None:  # as where only `benchmarks` is on the path
    sys.path.append(str(ROOT))

from tests.mutants.table import CHECKER, PACKAGE, PLANTED, Mutant, read as read_mutants

PAGE: Final = "results-simulation-defects.md"
SEEDS: Final = 2_000
CHUNK: Final = 5
"""How many seeds run before it is known whether one has failed: most defects need few."""

DEFECTS: Final = (
    "majority-minority",
    "validity-from-answers",
    "validity-from-answers-extension",
    "body-not-cancelled",
    "release-any",
    "release-not-owed",
    "debts-not-sent",
    "counter-compared-with-le",
    "reader-beside-writer",
    "reader-of-others-removed",
    "shares-end-early",
    "leaving-reader-stays-queued",
    "quarantined-grant-counts",
    "guard-new-run-id",
    "expired-lease-revived",
    "share-not-given-back",
    "hold-at-least-ignored",
)
"""What is tried: defects of each promise that the simulation judges."""


@dataclass(frozen=True, slots=True)
class Found:
    """What came of one defect."""

    mutant: Mutant
    seeds: int
    """How many seeds were run."""
    seed: int | None = None
    """The first one that failed."""
    broken: tuple[str, ...] = ()


def planted(names: Sequence[str] = DEFECTS) -> list[Mutant]:
    """Return the defects with these names."""
    known = {mutant.id: mutant for mutant in read_mutants(PLANTED)}
    return [known[name] for name in names]


@contextmanager
def copy(mutant: Mutant) -> Iterator[Path]:
    """Yield a folder with links to the library and the evidence, and with one file changed."""
    with tempfile.TemporaryDirectory(prefix="defect-") as scratch:
        folder = Path(scratch)
        # Compiled files are linked, too: that of the changed one is out of date, and replaced here.
        without = shutil.ignore_patterns("node_modules")
        for package in (PACKAGE, CHECKER, "tests/mutants"):
            shutil.copytree(
                ROOT / package, folder / package, copy_function=os.symlink, ignore=without
            )
        text = (folder / mutant.file).read_text()
        (folder / mutant.file).unlink()
        (folder / mutant.file).write_text(mutant.apply(text))
        yield folder


def find(mutant: Mutant, seeds: int, jobs: int = 1) -> Found:
    """Run seeds with a defect until one fails."""
    with copy(mutant) as folder:
        command = [sys.executable, "-m", "benchmarks.evidence.simulation", "--no-shrink"]
        command += ["--seeds", f"0-{seeds - 1}", "--chunk", str(CHUNK), "--jobs", str(jobs)]
        environment = {**os.environ, "PYTHONPATH": str(folder)}
        done = subprocess.run(  # noqa: S603 - our own program
            [*command, "--output", str(folder / "out")], cwd=folder, env=environment,
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        chunks = read(folder / "out" / LOG)
        if done.returncode not in {0, 1} or not chunks:
            raise RuntimeError(f"{mutant.id}: {done.stdout[-500:]}{done.stderr[-1500:]}")
        for chunk in chunks:
            for seed, broken in chunk.failed.items():
                return Found(mutant, int(seed) + 1, int(seed), tuple(broken))
        return Found(mutant, sum(chunk.seeds for chunk in chunks))


def report(found: Sequence[Found], facts: dict[str, object]) -> str:
    """Return the page about all defects."""
    seen = [each for each in found if each.seed is not None]
    rows = [
        [
            each.mutant.defect,
            each.mutant.promise,
            f"not in {each.seeds:,} seeds" if each.seed is None else f"{each.seed:,}",
            ", ".join(each.broken),
        ]
        for each in found
    ]
    text = [
        "# What the simulation sees",
        (
            f"**{len(seen)} of {len(found)} defects were seen**: each was put into a copy of the"
            " library, and the seeds were run from 0 on until one failed."
        ),
        table(["defect", "promise", "first seed that fails", "what it broke"], rows),
        said([facts]),
    ]
    return "\n\n".join(part for part in text if part) + "\n"


def main(arguments: Sequence[str] | None = None) -> int:
    """Try defects; return 1 if one was not seen."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.evidence.simulation.defects", description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    add = parser.add_argument
    add("--seeds", type=int, default=SEEDS, help="of each defect at most (default: %(default)s)")
    add("--defects", nargs="+", choices=[each.id for each in read_mutants(PLANTED)],
        default=list(DEFECTS), metavar="ID")  # fmt: skip
    add("--jobs", type=int, default=os.cpu_count() or 1, help="how many processes")
    add_output(parser)
    options = parser.parse_args(arguments)
    if options.seeds < 1 or options.jobs < 1:
        parser.error("--seeds and --jobs are positive numbers")
    facts = measured()
    found = []
    for mutant in planted(options.defects):
        found.append(find(mutant, options.seeds, options.jobs))
        seed = found[-1].seed
        says = f"seed {seed}: {', '.join(found[-1].broken)}" if seed is not None else "not seen"
        print(f"{mutant.id}: {says} ({found[-1].seeds} seeds)", flush=True)
    options.output.mkdir(parents=True, exist_ok=True)
    if options.defects == list(DEFECTS):
        (options.output / PAGE).write_text(report(found, facts))
    return int(any(each.seed is None for each in found))


if __name__ == "__main__":
    stop_cleanly()
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
