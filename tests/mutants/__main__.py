"""
Measures the power of the tests: defects are put into the package, and into the checker of
histories, and tests must fail.

    python -m tests.mutants draw                             writes drawn.toml, by a fixed seed
    python -m tests.mutants map MAP                          runs the tests once, and writes MAP
    python -m tests.mutants check MAP                        runs them as `run` does, unchanged
    python -m tests.mutants run --map MAP --results RESULTS  tries the mutants that RESULTS lack
    python -m tests.mutants run ... --again                  tries again those that were not caught
    python -m tests.mutants compare BEFORE AFTER             fails if BEFORE caught more mutants
    python -m tests.mutants report RESULTS                   writes tests/mutants.md

MAP and RESULTS are files that are not committed. A map is for one state of the tests and
the package: make it anew after a change of either. Needs `pip install -e '.[test,mutants]'`,
and a system with fork.
"""

import argparse
import time
from dataclasses import replace
from pathlib import Path

from .table import CHECKED, DRAWN, PLANTED, ROOT, Mutant, read, write

DRAWN_HEAD = """\
Mutants that were drawn by `python -m tests.mutants draw`. Only `equivalent` is written by
hand; it is kept when the same change is drawn again."""


def main() -> None:
    """Run the command of the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.mutants",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(required=True)
    command = commands.add_parser("draw")
    command.set_defaults(do=_draw)
    command = commands.add_parser("map")
    command.set_defaults(do=_map)
    command.add_argument("map", type=Path)
    command.add_argument("--tests", nargs="+", default=["tests/unit", "tests/evidence"])
    command = commands.add_parser("check")
    command.set_defaults(do=_check)
    command.add_argument("map", type=Path)
    command = commands.add_parser("run")
    command.set_defaults(do=_run)
    command.add_argument("--map", type=Path, required=True)
    command.add_argument("--results", type=Path, required=True)
    command.add_argument("--jobs", type=int, default=2)
    command.add_argument("--budget", type=float, default=60.0, help="seconds of tests per mutant")
    command.add_argument("--again", action="store_true", help="try what was not caught")
    command.add_argument("--only", nargs="+", default=[], help="begins of ids")
    command = commands.add_parser("compare")
    command.set_defaults(do=_compare)
    command.add_argument("before", type=Path)
    command.add_argument("after", type=Path)
    command = commands.add_parser("report")
    command.set_defaults(do=_report)
    command.add_argument("results", type=Path)
    arguments = parser.parse_args()
    arguments.do(arguments)


def _mutants() -> list[Mutant]:
    return [*read(PLANTED), *read(CHECKED), *read(DRAWN)]


def _draw(_arguments: argparse.Namespace) -> None:
    from .draw import draw

    reasons = {mutant.digest: mutant.equivalent for mutant in read(DRAWN)}
    drawn = [replace(m, equivalent=reasons.get(m.digest, "")) for m in draw(ROOT)]
    write(DRAWN, DRAWN_HEAD, drawn)
    print(f"{len(drawn)} mutants")


def _map(arguments: argparse.Namespace) -> None:
    from .reach import make

    reach = make(arguments.tests)
    reach.save(arguments.map)
    print(f"{len(reach.seconds)} tests, {sum(reach.seconds.values()):.0f} s")


def _check(arguments: argparse.Namespace) -> None:
    from .reach import Reach
    from .run import SURVIVES, trials

    (result,) = trials([None], Reach.load(arguments.map), jobs=1, budget=0)
    print(f"{result.tests} tests, {result.seconds:.0f} s  {result.killer}")
    raise SystemExit(result.status != SURVIVES)


def _run(arguments: argparse.Namespace) -> None:
    from .reach import Reach
    from .run import CAUGHT, append, load, trials

    known = {
        result.digest
        for result in load(arguments.results).values()
        if result.status in CAUGHT or not arguments.again
    }
    wanted = tuple(arguments.only) or ""
    chosen = [m for m in _mutants() if m.digest not in known and m.id.startswith(wanted)]
    began = time.monotonic()
    reach = Reach.load(arguments.map)
    caught = 0
    for result in trials(chosen, reach, jobs=arguments.jobs, budget=arguments.budget):
        append(arguments.results, result)
        caught += result.status in CAUGHT
        print(
            f"{result.seconds:6.1f} s  {result.status:9}  {result.id}  {result.killer}", flush=True
        )
    print(f"{caught} of {len(chosen)} caught, {time.monotonic() - began:.0f} s")


def _compare(arguments: argparse.Namespace) -> None:
    from .report import compare
    from .run import load

    lines = compare(load(arguments.before), load(arguments.after))
    print("\n".join(lines) or "nothing that was caught survives")
    raise SystemExit(bool(lines))


def _report(arguments: argparse.Namespace) -> None:
    from .report import REPORT, write as text
    from .run import load

    REPORT.write_text(text(_mutants(), load(arguments.results)))
    print(REPORT)


if __name__ == "__main__":
    main()
