"""The claims of the README and of the pages that it links are true."""

import importlib
import json
import re
import textwrap
import tomllib
from pathlib import Path

import claims
import pytest

FOR_DEVELOPERS = {"arq", "bench", "docs", "lint", "mutants", "peers", "recipes", "test"}
"""The extras for work on the library itself, and for recipes, whose page names them."""


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
        # A part of an example may begin further to the left than it does there.
        parts = [textwrap.indent(block, " " * by) for by in range(0, 20, 4)]
        assert any(part in example for example in examples for part in parts), block


def test_every_file_that_it_names_exists(readme: str, root: Path) -> None:
    named = set(re.findall(r"\]\((?!https?:)([^)#]+)[^)]*\)", readme))
    named |= set(re.findall(r"`((?:examples|tests|benchmarks|docs|\.ci)/[\w./-]*)`", readme))
    assert len(named) > 20
    assert not [name for name in sorted(named) if not (root / name).exists()]


def test_every_example_is_in_the_table_of_features(root: Path) -> None:
    table = (root / "docs" / "what-it-can-do.md").read_text()
    named = set(re.findall(r"\]\(\.\./examples/(\w+\.py)\)", table))
    named |= set(re.findall(r"`examples/(\w+\.py)`", table))
    assert named == {path.name for path in (root / "examples").glob("*.py")}
    assert len(rows(table)) > 15
    assert all("examples/" in more for *_, more in rows(table)), "every row has its example"


def test_it_names_each_extra_that_is_for_users(readme: str, root: Path) -> None:
    extras = (
        set(
            tomllib.loads((root / "pyproject.toml").read_text())["project"]["optional-dependencies"]
        )
        - FOR_DEVELOPERS
    )
    table = section(readme, "Install")
    assert set(re.findall(r"`pip install '\.\[(\w+)\]'`", table)) == extras
    assert "redlock-aio" not in re.findall(r"pip install [^\n`]*", readme)


def test_no_text_for_users_names_a_package_that_is_on_no_index(root: Path) -> None:
    """Nothing is published, and anybody could register the name."""
    files = [root / "README.md", *(root / "docs").rglob("*.md"), *(root / "examples").glob("*.*")]
    files += [*(root / "redlock_aio").rglob("*.py"), *(root / "pytest_redlock_aio").rglob("*.py")]
    for path in files:
        found = re.findall(r"install[^\n]{0,40}redlock[-_]aio\b(?!\.)[^\n]*", path.read_text())
        assert [line for line in found if "clone" not in line and "python -m" not in line] == [], (
            path
        )


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
        ("opening", "results.md"),
        ("benchmarks", "results.md"),
        ("like", "results.md"),
        ("contention", "results-contention.md"),
        ("scale", "results-scale.md"),
        ("handover", "results-handover.md"),
        ("regions", "results-regions.md"),
        ("keys", "results-keys.md"),
        ("memory", "results-keys.md"),
        ("go", "results-go.md"),
        ("go-waiters", "results-go.md"),
        ("go-statements", "results-go.md"),
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


def test_the_speed_page_opens_with_hand_overs_that_were_measured(root: Path) -> None:
    page = (root / "docs" / "explanation" / "speed.md").read_text()
    measured = {
        row[0].strip("*"): float(row[2].removesuffix(" ms"))
        for row in rows(between(page, "handover"))
    }
    ours = measured["redlock_aio on five"]
    least, most = sorted(round(measured[name]) for name in measured if "redlock_aio" not in name)
    assert f"{ours:.1f} ms after its release in the median, where locks" in page
    assert f"locks that ask again and again need {least} to {most} ms." in page


def test_its_sentence_about_speed_holds_in_each_of_ten_runs(readme: str, root: Path) -> None:
    runs = json.loads((root / "benchmarks" / "results-go.json").read_text())["runs"]
    if len(runs) < claims.RUNS:
        pytest.skip(f"results-go.json has {len(runs)} runs: they say nothing for the README")
    assert between(readme, "speed") == claims.sentence(runs)


def test_the_results_beside_other_languages_are_those_of_the_runs(root: Path) -> None:
    pytest.importorskip("pottery", reason="the extra `bench` is not installed")
    beside = importlib.import_module("beside")
    results = root / "benchmarks" / "results-go.md"
    found = json.loads(results.with_suffix(".json").read_text())
    assert results.read_text() == f"{beside.report(found)}\n"


def test_the_speed_page_opens_with_the_share_that_was_measured(root: Path) -> None:
    measured = {
        row[0].strip("*"): row for row in rows((root / "benchmarks/results.md").read_text())
    }
    ours, theirs = measured["redlock_aio on five"], measured["redis-py's Lock on one"]
    (our_cpu, our_time), (their_cpu, their_time) = (
        [float(row[column].split()[0].replace(",", "")) for column in (6, 3)]
        for row in (ours, theirs)
    )
    assert 5.5 < their_cpu / our_cpu < 6.5
    page = (root / "docs" / "explanation" / "speed.md").read_text()
    assert "costs your program a sixth of the CPU time" in page.partition("<div")[0]
    assert 2 / 3 < our_time / their_time < 3 / 2
