"""
Whether a change has made something faster or slower: the working tree against a commit.

The commit is checked out beside the working tree. Both run in turn, again and again,
each time in a process of its own, on the same five masters. A figure has changed if
13 of 15 comparisons of neighbouring runs agree in the direction: one figure in 130
does so by chance. The range of the comparisons without the two outermost on each side
is shown as the noise that was seen.

    python benchmarks/check.py [COMMIT] [--quick] [--times N]

Without COMMIT, what is not committed is compared with HEAD. It ends with 1 if a figure
is worse. Figures are the rate and the client's processor time of pairs by 100 tasks,
plain, fenced and fair, and the processor time of leases that are extended all the time.
"""

import argparse
import asyncio
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import measuring
from measuring import Pair, median

import redlock_aio
from redlock_aio import Redlock
from redlock_aio.testing import embedded_masters

ROOT = Path(__file__).resolve().parents[1]

TIMES = 15
OUTERMOST = 2 / 15
"""The share of the comparisons that may disagree, and is left out of the range, on each side."""

LEASES, SHORT_TTL = 1_000, 2_000

RATE, CPU = "pairs/s", "µs of CPU"

Figures = dict[str, float]
"""What one run has measured: more of `RATE` is better, and less of `CPU`."""


def pair_of(redlock: Redlock, kind: str) -> Pair:
    async def pair(name: str) -> None:
        async with redlock.lock(
            f"{kind}:{name}", ttl=measuring.TTL, fencing=kind == "fenced", fair=kind == "fair"
        ):
            pass

    return pair


async def measure(urls: Sequence[str], seconds: float) -> Figures:
    """Measure the library that this process imports."""
    figures = {}
    # A busy machine is no reason to lose votes.
    async with Redlock(urls, restart_guard="off", master_timeout=1_000) as redlock:
        for kind in ("plain", "fenced", "fair"):
            pair = pair_of(redlock, kind)
            await measuring.rate(pair, seconds=seconds / 5)
            rate = await measuring.rate(pair, seconds=seconds)
            figures[f"{kind}, {RATE}"] = rate.pairs_per_second
            figures[f"{kind}, {CPU} a pair"] = rate.cpu_us
        figures[f"watched, {CPU} a lease and second"] = await watched(redlock, seconds)
    return figures


async def watched(redlock: Redlock, seconds: float) -> float:
    """Return by how much processor time in µs a lease of a short ttl is kept for a second."""
    locks = [redlock.lock(f"watched:{number}", ttl=SHORT_TTL) for number in range(LEASES)]
    leases = await asyncio.gather(*[lock.acquire() for lock in locks])
    await asyncio.sleep(SHORT_TTL / 3000)  # by now the first ones are extended
    began, cpu_began = time.perf_counter(), time.process_time()
    await asyncio.sleep(2 * seconds)
    elapsed, cpu = time.perf_counter() - began, time.process_time() - cpu_began
    held = [lease for lease in leases if lease.valid]
    await asyncio.gather(*[lease.release() for lease in held])
    return cpu / elapsed / max(len(held), 1) * 1e6


def run_in(tree: Path, urls: Sequence[str], seconds: float) -> Figures:
    """Measure the library in *tree*, in a process of its own."""
    done = subprocess.run(  # noqa: S603 - this very file
        [sys.executable, __file__, "--measure", str(tree), str(seconds), *urls],
        check=True,
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": str(tree), "PYTHONHASHSEED": "0"},
    )
    figures: Figures = json.loads(done.stdout)
    return figures


def print_measured(tree: str, seconds: str, *urls: str) -> None:
    """Do the work of `run_in` in the process that it has started."""
    imported = Path(redlock_aio.__file__).parents[1]
    if imported != Path(tree):
        sys.exit(f"redlock_aio is imported from {imported}, not from {tree}")
    print(json.dumps(measuring.run(measure(urls, float(seconds)))))


@contextlib.contextmanager
def checked_out(commit: str) -> Iterator[Path]:
    """Check *commit* out in a folder of its own for the body."""

    def worktree(*arguments: str) -> None:
        git = ["git", "-C", str(ROOT), "worktree", *arguments]
        subprocess.run(git, check=True)  # noqa: S603 - a commit that the caller names

    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder).resolve() / "tree"
        worktree("add", "--quiet", "--detach", str(tree), commit)
        try:
            yield tree
        finally:
            worktree("remove", "--force", str(tree))


def compare(old: Path, urls: Sequence[str], times: int, seconds: float) -> list[list[str]]:
    """Run the tree *old* and the working tree in turn; return a row for each figure."""
    trees = [old, ROOT]
    runs: dict[Path, list[Figures]] = {tree: [] for tree in trees}
    for _ in range(times):
        for tree in trees:
            runs[tree].append(run_in(tree, urls, seconds))
        trees.reverse()  # a drift of the machine touches both alike
    return [row(name, runs[old], runs[ROOT]) for name in runs[old][0]]


def row(name: str, old: Sequence[Figures], new: Sequence[Figures]) -> list[str]:
    before, after = ([run[name] for run in runs] for runs in (old, new))
    ratios = sorted(b / a for a, b in zip(before, after, strict=True))
    return [
        name,
        f"{median(before):,.1f}",
        f"{median(after):,.1f}",
        f"{median(ratios):.3f}",
        f"{inner(ratios)[0]:.3f} to {inner(ratios)[-1]:.3f}",
        verdict(ratios, more_is_better=RATE in name),
    ]


def inner(ratios: Sequence[float]) -> Sequence[float]:
    """Return the sorted *ratios* without the outermost ones."""
    left_out = int(len(ratios) * OUTERMOST)
    return ratios[left_out : len(ratios) - left_out]


def verdict(ratios: Sequence[float], *, more_is_better: bool) -> str:
    """Return whether the sorted *ratios* of new to old agree, and in what."""
    least, most = inner(ratios)[0], inner(ratios)[-1]
    if least <= 1 <= most:
        return "no change"
    return "better" if (least > 1) == more_is_better else "WORSE"


def main() -> None:
    parser = measuring.arguments(__doc__)
    parser.add_argument("commit", nargs="?", default="HEAD", help="what to compare with")
    parser.add_argument("--times", type=int, default=TIMES, help="how often each one runs")
    parser.add_argument("--measure", nargs="+", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        print_measured(*options.measure)
        return
    times, seconds = (2, 0.2) if options.quick else (options.times, 0.6)
    with embedded_masters(5) as servers, checked_out(options.commit) as tree:
        found = compare(tree, [server.url for server in servers], times, seconds)
    head = ["", options.commit, "working tree", "ratio", "noise", "beyond noise"]
    print(measuring.table(head, found))
    if any(row[-1] == "WORSE" for row in found) and not options.quick:
        sys.exit(1)


if __name__ == "__main__":
    main()
