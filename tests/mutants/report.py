"""The report on the mutants, `tests/mutants.md`, and the comparison of two runs."""

import itertools
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from .draw import SEED
from .run import CAUGHT, DIES, HANGS, KILLED, STALE, SURVIVES, UNREACHED, Result
from .table import CHECKER, HERE, PACKAGE, Mutant

REPORT = HERE.parent / "mutants.md"

HEAD = """\
# Mutants

Each row is a defect that was put into the package, or into the checker of histories
(`benchmarks/evidence`), and the first test that failed by it. The table is made by
`python -m tests.mutants report`; see `tests/mutants/__main__.py` for how to repeat it. Planted
mutants and those of the checker are written by hand; drawn mutants are small random changes of
operators, constants and statements (seed {seed}), in proportion to the lines of each file.

{summary}
"""

WORDS = {
    KILLED: "a test failed",
    HANGS: "a test did not end",
    DIES: "the process of the tests ended",
    SURVIVES: "all tests passed",
    UNREACHED: "no test runs the line",
    STALE: "the line is not there any more",
    "": "not run",
}


def write(mutants: Sequence[Mutant], results: Mapping[str, Result]) -> str:
    """Return the report, in Markdown."""
    planted = [mutant for mutant in mutants if mutant.defect]
    checker = [mutant for mutant in mutants if mutant.file.startswith(CHECKER)]
    drawn = [mutant for mutant in mutants if not mutant.defect and mutant not in checker]
    alive = [mutant for mutant in mutants if _status(mutant, results) not in CAUGHT]
    groups = {"planted": planted, "the checker": checker, "drawn": drawn}
    parts = [HEAD.format(seed=SEED, summary="\n".join(_summary(groups, results)))]
    head = ["mutant", "change", "test", "s"]
    parts += ["## Planted", _table(["defect", *head], planted, results)]
    parts += ["## The checker", _table(head, checker, results)]
    parts += ["## Drawn", _table(head, drawn, results)]
    left = [
        f"- `{mutant.id}` {change(mutant)} ({WORDS[_status(mutant, results)]}):"
        f" {mutant.equivalent or '**open**'}"
        for mutant in alive
    ]
    parts += ["## Not caught", "\n".join(left) or "None."]
    return "\n\n".join(part.rstrip() for part in parts) + "\n"


def _status(mutant: Mutant, results: Mapping[str, Result]) -> str:
    result = results.get(mutant.id)
    return result.status if result is not None and result.digest == mutant.digest else ""


def _summary(
    groups: Mapping[str, Sequence[Mutant]], results: Mapping[str, Result]
) -> Iterator[str]:
    yield "| | mutants | caught | equivalent | open |"
    yield "|---|---|---|---|---|"
    for name, mutants in groups.items():
        alive = [mutant for mutant in mutants if _status(mutant, results) not in CAUGHT]
        same = sum(bool(mutant.equivalent) for mutant in alive)
        caught = len(mutants) - len(alive)
        yield f"| {name} | {len(mutants)} | {caught} | {same} | {len(alive) - same} |"
    every = Counter(_status(mutant, results) for mutants in groups.values() for mutant in mutants)
    yield ""
    yield "; ".join(f"{WORDS[status]}: {count}" for status, count in every.most_common()) + "."


def _table(head: Sequence[str], mutants: Sequence[Mutant], results: Mapping[str, Result]) -> str:
    """Return one table of the mutants that were caught."""
    rows = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    for mutant in mutants:
        if _status(mutant, results) in CAUGHT:
            result = results[mutant.id]
            killer = f"`{result.killer.removeprefix('tests/')}`".replace("|", "\\|")
            if result.status != KILLED:
                killer += f" ({WORDS[result.status]})"
            cells = [f"`{mutant.id}`", change(mutant), killer, f"{result.seconds:.1f}"]
            if mutant.defect:
                cells.insert(0, mutant.defect + (f" ({mutant.promise})" if mutant.promise else ""))
            rows.append(f"| {' | '.join(cells)} |")
    return "\n".join(rows)


def change(mutant: Mutant) -> str:
    """Return the change of *mutant*, in one line."""
    old, new = " ".join(mutant.old.split()), " ".join(mutant.new.split())
    where = mutant.inside or mutant.file.removeprefix(f"{PACKAGE}/").removeprefix(f"{CHECKER}/")
    before = _common(old, new)
    after = _common(old[before:][::-1], new[before:][::-1])
    while before and (old[before - 1].isalnum() or old[before - 1] in "_<>=~!"):
        before -= 1
    while after and (old[-after].isalnum() or old[-after] in "_<>=~!"):
        after -= 1
    was, now = old[before : len(old) - after], new[before : len(new) - after]
    text = f"{where}: `{old}`"
    if was != old:
        text += f": `{was.strip()}`"
    text += f" becomes `{now.strip()}`" if now.strip() else " is dropped"
    return text.replace("|", "\\|")


def _common(one: str, other: str) -> int:
    """Return the length of the common prefix of two texts."""
    pairs = zip(one, other, strict=False)
    return sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))


def compare(before: Mapping[str, Result], after: Mapping[str, Result]) -> list[str]:
    """Return a line for each mutant that was caught in one run, but not in a later one."""
    lines = []
    for name, result in before.items():
        now = after.get(name)
        if result.status not in CAUGHT:
            continue
        if now is None or now.digest != result.digest:
            lines.append(f"{name}: was {result.status} by {result.killer}, is not run")
        elif now.status not in CAUGHT:
            lines.append(f"{name}: was {result.status} by {result.killer}, {now.status}")
    return lines
