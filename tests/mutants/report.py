"""The report on the mutants, `tests/mutants.md`, and the comparison of two runs."""

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime

from .run import CAUGHT, STALE, SURVIVES, UNREACHED, Result
from .table import HERE, Mutant

REPORT = HERE.parent / "mutants.md"

HEAD = """\
# Mutants

Defects were put into the package, or into the checker of histories (`benchmarks/evidence`), one
at a time, and the unit tests and those of the checker were run. `python -m tests.mutants report`
has written this on {date}: it is not measured anew after each change of the code.

Those that are planted are in `tests/mutants`. The drawn ones are small random changes of
operators, constants and statements in all of the package, and are drawn anew for each run.
"""

WORDS = {
    SURVIVES: "all tests passed",
    UNREACHED: "no test runs the line",
    STALE: "the line is not there any more",
}


def write(
    planted: Sequence[Mutant], checker: Sequence[Mutant], results: Mapping[str, Result]
) -> str:
    """Return the report, in Markdown; what is in neither table was drawn."""
    groups = {
        "planted": [results[m.digest] for m in planted if m.digest in results],
        "the checker": [results[m.digest] for m in checker if m.digest in results],
    }
    by_hand = {mutant.digest for mutant in (*planted, *checker)}
    groups["drawn"] = [result for digest, result in results.items() if digest not in by_hand]
    reasons = {mutant.digest: mutant.equivalent for mutant in checker if mutant.equivalent}
    parts = [HEAD.format(date=datetime.now(UTC).date()), "\n".join(_summary(groups, reasons))]
    left = []
    for result in results.values():
        if result.status not in CAUGHT:
            untried = f" ({result.untried} were not tried, for lack of time)" * bool(result.untried)
            why = reasons.get(result.digest, "**open**")
            left.append(f"- `{result.id}` {WORDS[result.status]}{untried}: {why}")
            left.append(f"  `{result.change}`")
    parts += ["## Not caught", "\n".join(left) or "None."]
    return "\n\n".join(part.rstrip() for part in parts) + "\n"


def _summary(groups: Mapping[str, Sequence[Result]], reasons: Mapping[str, str]) -> Iterator[str]:
    yield "| | tried | caught | equivalent | open |"
    yield "|---|---|---|---|---|"
    for name, group in groups.items():
        alive = [result for result in group if result.status not in CAUGHT]
        same = sum(result.digest in reasons for result in alive)
        caught = len(group) - len(alive)
        yield f"| {name} | {len(group)} | {caught} | {same} | {len(alive) - same} |"


def compare(before: Mapping[str, Result], after: Mapping[str, Result]) -> list[str]:
    """Return a line for each mutant that was caught in one run, but not in a later one."""
    return [
        f"{result.id}: was {result.status} by {result.killers[0]}, {now.status or 'is not run'}"
        for digest, result in before.items()
        for now in [after.get(digest, Result("", ""))]
        if result.status in CAUGHT and now.status not in CAUGHT
    ]
