"""
Measures the power of the tests: defects are put into the package, and into the checker of
histories, and tests must fail.

    python -m tests.mutants map                      runs the tests once, to see what each reaches
    python -m tests.mutants check                    runs them as `run` does, unchanged
    python -m tests.mutants run                      tries the planted mutants that are not tried
    python -m tests.mutants run --draw 100 --seed 3  draws mutants of the package, and tries them
    python -m tests.mutants run ... --again          tries again those that were not caught
    python -m tests.mutants run ... --all-killers    runs all tests, not only until one fails
    python -m tests.mutants cover                    finds tests that catch what others catch, too
    python -m tests.mutants compare BEFORE AFTER     fails if the results BEFORE caught more
    python -m tests.mutants report                   writes tests/mutants.md

The map and the results are files in `build`. A map is for one state of the tests and the package:
make it anew after a change of either. Needs `pip install -e '.[test,mutants]'`, and a system with
fork.

Only lines that run in the process of the tests are known to be reached, and of what is cached,
only those that the first test runs. `cover` is a hint where to look for repetition: a test may go
if others catch the same, and say as much. It knows no more than the mutants that were tried.
"""

import argparse
import time
from pathlib import Path

from .table import CHECKED, PLANTED, ROOT, Mutant, read


def main() -> None:
    """Run the command of the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.mutants",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(required=True)
    files = argparse.ArgumentParser(add_help=False)
    files.add_argument("--map", type=Path, default=ROOT / "build/mutants-map.json")
    files.add_argument("--results", type=Path, default=ROOT / "build/mutants.jsonl")

    command = commands.add_parser("map", parents=[files])
    command.set_defaults(do=_map)
    command.add_argument("--tests", nargs="+", default=["tests/unit", "tests/evidence"])
    command = commands.add_parser("check", parents=[files])
    command.set_defaults(do=_check)
    command = commands.add_parser("run", parents=[files])
    command.set_defaults(do=_run)
    command.add_argument("--jobs", type=int, default=2)
    command.add_argument("--budget", type=float, default=120.0, help="seconds of tests per mutant")
    command.add_argument("--minutes", type=float, default=1e9, help="begin no mutant later")
    command.add_argument("--again", action="store_true", help="try what was not caught")
    command.add_argument("--all-killers", action="store_true", help="record each test that fails")
    command.add_argument("--only", nargs="+", default=[], help="begins of ids, as `sync/`")
    command.add_argument("--draw", type=int, default=0, help="how many to draw, instead of planted")
    command.add_argument("--seed", type=int, default=0, help="of the draw")
    command.add_argument("--per-function", type=int, default=0, help="the most of one function")
    command = commands.add_parser("cover", parents=[files])
    command.set_defaults(do=_cover)
    command = commands.add_parser("compare")
    command.set_defaults(do=_compare)
    command.add_argument("before", type=Path)
    command.add_argument("after", type=Path)
    command = commands.add_parser("report", parents=[files])
    command.set_defaults(do=_report)
    arguments = parser.parse_args()
    arguments.do(arguments)


def _map(arguments: argparse.Namespace) -> None:
    from .reach import make

    reach = make(arguments.tests)
    arguments.map.parent.mkdir(exist_ok=True)
    reach.save(arguments.map)
    print(f"{len(reach.seconds)} tests, {sum(reach.seconds.values()):.0f} s")


def _check(arguments: argparse.Namespace) -> None:
    from .reach import Reach
    from .run import SURVIVES, trials

    (result,) = trials([None], Reach.load(arguments.map), jobs=1, budget=0)
    print(f"{result.tests} tests, {result.seconds:.0f} s  {' '.join(result.killers)}")
    raise SystemExit(result.status != SURVIVES)


def _mutants(arguments: argparse.Namespace) -> list[Mutant]:
    """Return the mutants to try: drawn ones, or those that are written by hand."""
    from .draw import draw

    if not arguments.draw:
        only = tuple(arguments.only) or ""
        return [each for each in [*read(PLANTED), *read(CHECKED)] if each.id.startswith(only)]
    return draw(
        ROOT,
        seed=arguments.seed,
        count=arguments.draw,
        per_function=arguments.per_function,
        only=arguments.only,
    )


def _run(arguments: argparse.Namespace) -> None:
    from .reach import Reach
    from .run import CAUGHT, append, load, trials

    known = {
        digest
        for digest, result in load(arguments.results).items()
        if result.status in CAUGHT or not arguments.again
    }
    began = time.monotonic()
    chosen = (
        mutant
        for mutant in _mutants(arguments)
        if mutant.digest not in known and time.monotonic() < began + 60 * arguments.minutes
    )
    reach = Reach.load(arguments.map)
    caught = count = 0
    for result in trials(
        chosen,
        reach,
        jobs=arguments.jobs,
        budget=arguments.budget,
        every=arguments.all_killers,
    ):
        append(arguments.results, result)
        count += 1
        caught += result.status in CAUGHT
        print(f"{result.seconds:6.1f} s  {result.status:9}  {result.id}", flush=True)
        print(f"          {' '.join(result.killers[:1]) or result.change}", flush=True)
    print(f"{caught} of {count} caught, {time.monotonic() - began:.0f} s")


def _cover(arguments: argparse.Namespace) -> None:
    from .cover import lines
    from .reach import Reach
    from .run import load

    promises = {mutant.digest: mutant.promise for mutant in read(PLANTED) if mutant.promise}
    tests = Reach.load(arguments.map, any_state=True).seconds
    print("\n".join(lines(list(load(arguments.results).values()), tests, promises)))


def _compare(arguments: argparse.Namespace) -> None:
    from .report import compare
    from .run import load

    lines = compare(load(arguments.before), load(arguments.after))
    print("\n".join(lines) or "nothing that was caught survives")
    raise SystemExit(bool(lines))


def _report(arguments: argparse.Namespace) -> None:
    from .report import REPORT, write
    from .run import load

    REPORT.write_text(write(read(PLANTED), read(CHECKED), load(arguments.results)))
    print(REPORT)


if __name__ == "__main__":
    main()
