"""The claims of the README and of the pages that it links are true."""

import importlib
import re
from pathlib import Path

import pytest


def section(text: str, title: str) -> str:
    """Return the text below a heading, up to the next one."""
    match = re.search(rf"^#+ {re.escape(title)}$(.*?)(?=^#+ |\Z)", text, re.MULTILINE | re.DOTALL)
    assert match, f"no heading {title!r}"
    return match[1]


def between(text: str, marker: str) -> str:
    begin, end = f"<!-- {marker}:begin -->", f"<!-- {marker}:end -->"
    assert text.count(begin) == text.count(end) == 1
    return text.split(begin)[1].split(end, maxsplit=1)[0].strip()


def cells(text: str) -> list[list[str]]:
    """Return the cells of all tables, with heads and rules."""
    lines = [line for line in text.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line[1:-1].split("|")] for line in lines]


def rows(text: str) -> list[list[str]]:
    """Return the cells of a table without its head."""
    return cells(text)[2:]


def test_it_is_short_enough_to_be_read(readme: str) -> None:
    assert len(readme.splitlines()) <= 120


def test_its_python_is_an_example_to_the_letter(readme: str, root: Path) -> None:
    examples = [path.read_text() for path in (root / "examples").glob("*.py")]
    blocks = re.findall(r"^```python\n(.*?)^```$", readme, re.MULTILINE | re.DOTALL)
    assert blocks
    for block in blocks:
        assert any(block in example for example in examples), block


def test_every_file_that_it_names_exists(readme: str, root: Path) -> None:
    named = set(re.findall(r"\]\((?!https?:)([^)#]+)[^)]*\)", readme))
    named |= set(re.findall(r"`((?:examples|tests|benchmarks|docs|\.ci)/[\w./-]*)`", readme))
    assert len(named) > 20
    assert not [name for name in sorted(named) if not (root / name).exists()]


def test_every_example_is_in_the_table_of_features(readme: str, root: Path) -> None:
    table = section(readme, "What it can do")
    named = set(re.findall(r"\]\(examples/(\w+\.py)\)", table))
    named |= set(re.findall(r"\]\(examples/(\w+\.py)\)", readme.partition("## Install")[0]))
    assert named == {path.name for path in (root / "examples").glob("*.py")}
    assert all("](examples/" in more for *_, more in rows(table)), "every row has its example"


def test_every_promise_has_a_row_and_a_test(root: Path) -> None:
    page = (root / "docs" / "explanation" / "guarantees.md").read_text()
    promised = {row[0] for row in rows(page.partition("## The assumptions")[0])}
    shown = set()
    for path in (root / "tests").rglob("test_*.py"):
        shown |= set(re.findall(r"\.promise\(\"(S\d+)\"", path.read_text()))
    assert promised == {f"S{number}" for number in range(1, 11)}
    assert shown == promised


def columns(head: list[str], titles: list[str]) -> list[int]:
    """Return where *titles* are in the *head* of a table, in their order; empty if not all are."""
    where: list[int] = []
    for title in titles:
        first = where[-1] + 1 if where else 0
        if title not in head[first:]:
            return []
        where.append(head.index(title, first))
    return where


@pytest.mark.parametrize(
    ("marker", "results"),
    [
        ("benchmarks", "results.md"),
        ("like", "results.md"),
        ("contention", "results-contention.md"),
        ("scale", "results-scale.md"),
        ("handover", "results-handover.md"),
        ("regions", "results-regions.md"),
        ("keys", "results-keys.md"),
        ("memory", "results-keys.md"),
    ],
)
def test_the_tables_about_speed_are_those_that_were_measured(
    root: Path, marker: str, results: str
) -> None:
    """The page may leave out columns and rows, such as those for maintainers."""
    page = between((root / "docs" / "explanation" / "speed.md").read_text(), marker)
    head, rule, *shown = cells(page)
    measured = [cells(part) for part in (root / "benchmarks" / results).read_text().split("\n\n")]
    found = [(table, where) for table in measured if table and (where := columns(table[0], head))]
    assert found, f"no table in {results} has these columns: {head}"
    chosen = [[row[i] for i in where] for table, where in found for row in table[2:]]
    assert len(shown) > 1
    assert len(rule) == len(head)
    assert [row for row in shown if row not in chosen] == []


def test_publishing_the_measured_figures_again_changes_nothing(
    readme: str, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(root / "benchmarks"))
    publish = importlib.import_module("publish")
    page = (root / "docs" / "explanation" / "speed.md").read_text()
    assert publish.published(page) == page
    assert publish.sentence(readme) == readme


def test_its_sentence_about_speed_is_what_was_measured(readme: str, root: Path) -> None:
    measured = {
        row[0].strip("*"): row for row in rows((root / "benchmarks/results.md").read_text())
    }
    ours, theirs = measured["redlock_aio on five"], measured["redis-py's Lock on one"]
    assert between(readme, "speed") == (
        f"A pair of acquire and release on five servers takes {ours[3]} if nothing else runs. In a"
        f" program with many tasks it costs {ours[6]} of CPU time. With redis-py's lock on one"
        f" server it takes {theirs[3]} and costs {theirs[6]}."
    )
