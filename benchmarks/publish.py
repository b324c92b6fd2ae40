"""
Copies figures from the results files into the page about speed and the README.

Each table of the page stands between two comments, such as ``<!-- scale:begin -->``. It has
chosen rows and columns of a table in a results file: its head names the columns, and its first
cells name the rows. This program replaces all other cells. It does not touch the prose around
the tables, so read that afterwards.

    python benchmarks/publish.py
"""

import sys
from collections.abc import Sequence
from pathlib import Path

HERE = Path(__file__).parent
PAGE = HERE.parent / "docs" / "explanation" / "speed.md"
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
}
"""The results file of each table, and the number of cells that name a row."""

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


def sentence(readme: str) -> str:
    """
    Return the *readme* with its sentence about speed from the results.

    It says what is the same on a busy machine: processor time, and that as a share. Latencies of
    an idle machine are figures of that machine.
    """
    rows = {row[0].strip("*"): row for row in cells((HERE / "results.md").read_text())}
    ours, theirs = rows["redlock_aio on five"], rows["redis-py's Lock on one"]
    latency = number(ours[3]) / number(theirs[3])
    if not 2 / 3 < latency < 3 / 2:
        sys.exit(f"the latencies are not about the same: {ours[3]} and {theirs[3]}")
    text = (
        f"A pair of acquire and release on five servers costs your program {ours[6]} of CPU time:"
        f" {share(number(ours[6]) / number(theirs[6]))} of what redis-py's lock on one server costs"
        f" ({theirs[6]}). From beginning to end both take about the same time."
    )
    before, _, after = between(readme, "speed")
    return before + text + after


SHARES = "half, a third, a quarter, a fifth, a sixth, a seventh, an eighth, a ninth, a tenth"


def share(ratio: float) -> str:
    """Return a *ratio* in words, such as "a sixth"."""
    words = SHARES.split(", ")
    part = round(1 / ratio)
    if not 2 <= part < 2 + len(words):
        sys.exit(f"{ratio:.2f} is none of these: {SHARES}")
    return words[part - 2]


def number(cell: str) -> float:
    """Return the number in a cell such as ``1,188.4 µs``."""
    return float(cell.split(maxsplit=1)[0].replace(",", ""))


def main() -> None:
    PAGE.write_text(published(PAGE.read_text()))
    README.write_text(sentence(README.read_text()))


if __name__ == "__main__":
    main()
