"""
Copies figures from the results files into the pages about speed and the README.

Each table of the page about speed stands between two comments, such as ``<!-- scale:begin -->``.
It has chosen rows and columns of a table in a results file: its head names the columns, and its
first cells name the rows. This program replaces all other cells. It does not touch the prose around
the tables, so read that afterwards. The page "How far it goes" has whole tables of its results
between such comments, and an example that is calculated from them.

    python benchmarks/publish.py
"""

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from capacity import Costs

import claims

HERE = Path(__file__).parent
PAGE = HERE.parent / "docs" / "explanation" / "speed.md"
FAR = PAGE.with_name("how-far-it-goes.md")
README = HERE.parent / "README.md"

TABLES = {
    "opening": ("results.md", 1),
    "benchmarks": ("results.md", 1),
    "like": ("results.md", 1),
    "contention": ("results-contention.md", 2),
    "scale": ("results-scale.md", 2),
    "handover": ("results-handover.md", 1),
    "regions": ("results-regions.md", 2),
    "keys": ("results-keys.md", 2),
    "memory": ("results-keys.md", 1),
    "go": ("results-go.md", 2),
    "go-waiters": ("results-go.md", 2),
    "go-statements": ("results-go.md", 1),
}
"""The results file of each table, and the number of cells that name a row."""

CAPACITY = HERE / "results-capacity.md"

TABLES_OF_FAR = {
    "pairs": (
        "a pair, nobody waits", "processes", "commands", "bytes in", "bytes out",
        "processor time", "pairs/s of a full core", "what is full",
    ),
    "leases": (
        "held", "processes", "extensions/s", "by the rule", "processor time of one", "lost",
        "what is full",
    ),
    "waiters": (
        "waiting", "processes", "commands/s each", "processor time of each in 1 s", "what is full",
    ),
    "mixed": (
        "processes", "fair pairs/s", "extensions/s", "forecast of a master's core", "measured",
        "to the forecast", "busiest client", "what is full",
    ),
    "full": (
        "processes", "forecast, at a rate", "forecast, as fast as they can", "pairs/s",
        "busiest master", "busiest client", "what is full",
    ),
    "idle": (
        "idle", "connections to a master", "bytes of a master each", "commands/s each",
        "a master's core",
    ),
    "memory": ("of",),
}  # fmt: skip
"""The columns of each table of `CAPACITY` that the page "How far it goes" shows."""

NOT_MEASURED = (
    "*Not measured yet: `python benchmarks/capacity.py` measures it, and "
    "`python benchmarks/publish.py` puts it here.*"
)

Table = list[list[str]]


def cells(text: str) -> Table:
    """Return the cells of all rows of tables in *text*."""
    lines = [line for line in text.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line[1:-1].split("|")] for line in lines]


def places(head: Sequence[str], titles: Sequence[str]) -> list[int]:
    """Return where *titles* are in *head*, in their order; some titles occur twice."""
    where: list[int] = []
    for title in titles:
        where.append(head.index(title, where[-1] + 1 if where else 0))
    return where


def measured(results: str, titles: Sequence[str]) -> Table:
    """Return the columns *titles* of the table that has them."""
    for part in results.split("\n\n"):
        if table := cells(part):
            try:
                where = places(table[0], titles)
            except ValueError:
                continue
            return [[row[place] for place in where] for row in table[2:]]
    sys.exit(f"no table has these columns: {titles}")


def filled(shown: Table, results: str, keys: int) -> Table:
    """Return the table *shown* with the figures of *results*."""
    head, rule, *rows = shown
    found = {tuple(row[:keys]): row for row in measured(results, head)}
    if missing := [row[:keys] for row in rows if tuple(row[:keys]) not in found]:
        sys.exit(f"these rows were not measured: {missing}")
    return [head, rule, *(found[tuple(row[:keys])] for row in rows)]


def between(text: str, marker: str) -> tuple[str, str, str]:
    """Return what is before, between and after the comments of this *marker*."""
    before, begin, rest = text.partition(f"<!-- {marker}:begin -->\n")
    inside, end, after = rest.partition(f"\n<!-- {marker}:end -->")
    if not begin or not end:
        sys.exit(f"no comments {marker}:begin and {marker}:end")
    return before + begin, inside, end + after


def published(page: str) -> str:
    """Return the *page* with the figures of the results files."""
    for marker, (name, keys) in TABLES.items():
        results = (HERE / name).read_text()
        before, inside, after = between(page, marker)
        lines = ["| " + " | ".join(row) + " |" for row in filled(cells(inside), results, keys)]
        if marker == "benchmarks":  # its machine, and how much the repetitions differ
            lines[:0] = [*paragraphs(results, "Five masters", "From one repetition"), ""]
        page = before + "\n".join(lines) + after
    return page


def paragraphs(results: str, *beginnings: str) -> list[str]:
    """Return the paragraphs of *results* that begin with these words."""
    return [
        part for words in beginnings for part in results.split("\n\n") if part.startswith(words)
    ]


def published_far(page: str, results: str) -> str:
    """Return the *page* "How far it goes" with these *results*; "" if there are none."""
    inside = {"example": example(results) if results else NOT_MEASURED}
    for name, titles in TABLES_OF_FAR.items():
        inside[name] = whole(results, titles) if results else NOT_MEASURED
    if results:
        facts = paragraphs(results, "Five masters", "Measured on")
        inside["pairs"] = "\n\n".join([*facts, inside["pairs"]])
    for name, text in inside.items():
        before, _, after = between(page, f"far-{name}")
        page = f"{before}\n{text}\n{after}"
    return page


def whole(results: str, titles: Sequence[str]) -> str:
    """Return the columns *titles* of the table that has them; all of them if that is only one."""
    if len(titles) == 1:
        (all_of,) = (part for part in results.split("\n\n") if part.startswith(f"| {titles[0]} |"))
        titles = [title for title in cells(all_of)[0] if title]
    rule = ["---", *["---:"] * (len(titles) - 2), "---"]
    rows = [list(titles), rule, *measured(results, titles)]
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)


def costs(results: str) -> "Costs":
    """Return what each part of a load of 16 processes costs a master."""
    from capacity import Costs

    def of(titles: Sequence[str], *words: str) -> float:
        rows = measured(results, titles)
        found = next(row for row in rows if all(any(w in c for c in row[:-1]) for w in words))
        return number(found[-1]) / 1e6

    (idle,) = measured(results, ["idle", "a master's core"])
    return Costs(
        pair=of(["a pair, nobody waits", "processes", "processor time"], "plain, at a rate", "16"),
        extension=of(["held", "processes", "processor time of one"], "16"),
        waiter=of(["waiting", "processes", "processor time of each in 1 s"], "fair=True", "16"),
        process=float(idle[1].removesuffix("%")) / 100 / number(idle[0]),
    )


def example(results: str) -> str:
    """Return what the formula says of the load of a thousand processes."""
    from capacity import share_of_core

    cost = costs(results)
    parts = {
        "the pairs": share_of_core(cost, pairs=2_000, leases=0, ttl=10_000, waiters=0),
        "the extensions": share_of_core(cost, pairs=0, leases=20_000, ttl=10_000, waiters=0),
        "the waiters": share_of_core(cost, pairs=0, leases=0, ttl=10_000, waiters=500),
        "the connections": 1_000 * cost.process,
    }
    return (
        "For example, 1,000 processes make 2,000 plain pairs a second, hold 20,000 leases of 10 s, "
        "and 500 tasks wait for fair locks. With the costs below, of 16 processes and at a rate, "
        f"each master uses {sum(parts.values()):.0%} of its core: "
        f"{', '.join(f'{share:.1%} for {what}' for what, share in parts.items())}."
    )


def sentence(readme: str) -> str:
    """
    Return the *readme* with its sentence about speed from the runs of `results-go.json`.

    Too few runs say nothing, and leave it as it is.
    """
    runs = json.loads((HERE / "results-go.json").read_text())["runs"]
    if len(runs) < claims.RUNS:
        print(f"results-go.json has {len(runs)} runs, not {claims.RUNS}: the README stays as it is")
        return readme
    before, _, after = between(readme, "speed")
    return before + claims.sentence(runs) + after


def number(cell: str) -> float:
    """Return the number in a cell such as ``1,188.4 µs``."""
    return float(cell.split(maxsplit=1)[0].replace(",", ""))


def main() -> None:
    PAGE.write_text(published(PAGE.read_text()))
    results = CAPACITY.read_text() if CAPACITY.exists() else ""
    FAR.write_text(published_far(FAR.read_text(), results))
    README.write_text(sentence(README.read_text()))


if __name__ == "__main__":
    main()
