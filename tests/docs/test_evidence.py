"""The figures of the page "How it is tested" and of the README are those of the results."""

import json
import re
import tomllib
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from evidence import power, seeds
from evidence.faults import ROWS
from evidence.ours import COLUMNS
from evidence.results import read_log
from evidence.soak import MODES

WORDS = [
    "none",
    "one",
    "two",
    "three",
    "four",
    "five",
    "six",
    "seven",
    "eight",
    "nine",
    "ten",
    "eleven",
    "twelve",
]


def number(many: int) -> str:
    """Return a number as the page writes it."""
    return WORDS[many] if many < len(WORDS) else f"{many:,}"


@pytest.fixture
def page(root: Path) -> str:
    return (root / "docs/explanation/testing.md").read_text()


@pytest.fixture
def cells(root: Path) -> list[dict[str, Any]]:
    """The cells of the matrix, without controls."""
    results = json.loads((root / "benchmarks/results-faults.json").read_text())
    return [each for each in results["cells"] if not each["control"]]


@pytest.fixture
def parts(root: Path) -> list[dict[str, Any]]:
    """The parts of the soak."""
    lines = (root / "benchmarks/results-soak.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def broken(cells: list[dict[str, Any]]) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return the cells that broke a promise, and those in which two held a lock without one."""
    found = [each for each in cells if set(each["broken"]) - {"losses"}]
    permitted = [each for each in found if each["expected"] == "may overlap"]
    return [each for each in found if each not in permitted], permitted


def test_the_cells_of_the_matrix(page: str, cells: list[dict[str, Any]]) -> None:
    assert not [each["row"] for each in cells if each["wrong"] or each["skipped"]]
    found, permitted = broken(cells)
    assert f"Of {len(cells)} cells {number(len(found))} broke a promise" in page
    if permitted:
        assert f"in {number(len(permitted))} cells two held a lock where no promise is made" in page


def test_the_text_of_the_picture_is_its_title(page: str, root: Path) -> None:
    picture = (root / "benchmarks/results-faults.svg").read_text()
    title = picture.partition("<title")[2].partition(">")[2].partition("<")[0]
    assert f"![{title}](../../benchmarks/results-faults.svg)" in page


def test_the_page_of_guarantees_says_what_is_promised_in_each_row_with_a_replica(
    root: Path,
) -> None:
    page = (root / "docs/explanation/guarantees.md").read_text()
    section = page.partition("\n## Masters with replicas\n")[2].partition("\n## ")[0]
    found = {}
    for line in section.splitlines():
        if line.startswith("| ") and not line.startswith("| what"):
            _, alone, one_of_several, tried = (each.strip() for each in line[1:-1].split("|"))
            for name in re.findall(r"\*([^*]+)\*", tried):
                found[name] = alone, one_of_several
    rows = {row.name: row for row in ROWS if row.endpoint}
    assert set(found) == set(rows)
    for name, (alone, one_of_several) in found.items():
        says = alone if rows[name].masters == 1 else one_of_several
        assert says.startswith("not promised" if rows[name].assumption else "**promised**"), name


@pytest.mark.parametrize(
    ("fair", "words"),
    [(False, "The longest gap of locks that are not fair was"), (True, "That of fair locks was")],
)
def test_the_longest_gaps(page: str, cells: list[dict[str, Any]], fair: bool, words: str) -> None:
    kinds = {kind.name for kind in COLUMNS if kind.name != "command" and kind.fair == fair}
    longest = max(each["gap"] for each in cells if each["column"] in kinds)
    assert f"{words} {longest:.1f} s" in page


def test_the_cells_in_the_readme(readme: str, cells: list[dict[str, Any]]) -> None:
    kinds, faults = {each["column"] for each in cells}, {each["row"] for each in cells}
    faults.remove("no fault")
    assert f"{number(len(kinds)).capitalize()} kinds of locks were tried" in readme
    assert f"under {number(len(faults))} faults" in readme
    found, permitted = broken(cells)
    assert f"{number(len(found)).capitalize()} of {len(cells)} runs broke" in readme
    if permitted:
        assert f"in {number(len(permitted))} of them two held a lock" in readme


def test_the_soak(page: str, readme: str, parts: list[dict[str, Any]]) -> None:
    assert all(not each["wrong"] and not set(each["broken"]) - {"losses"} for each in parts)
    sections = sum(each["sections"] for each in parts)
    faults = sum(sum(each["faults"].values()) for each in parts)
    late = sum(each["late_updates"] for each in parts)
    minutes = sum(each["seconds"] for each in parts) / 60
    assert sections >= 1_000_000
    assert minutes >= 60
    assert f"In {sections:,} critical sections under {faults:,} faults" in page
    assert f"{late:,} updates were lost to a write that came after" in page
    modes = Counter(each.get("mode", MODES[0].name) for each in parts)
    one, two, swarm = (modes[mode.name] for mode in MODES)
    together = sum(sum(each.get("together", {}).values()) for each in parts)
    assert (
        f"In {one} parts one fault followed another, in {two} two came at a time, and in {swarm}"
        f" they came as a swarm; {together:,} faults began while another one lasted" in page
    )
    assert f"The soak ran for {minutes:.0f} minutes" in page
    assert f"with {sections / 1e6:.1f} million critical sections" in readme


def test_what_the_matrix_would_see(root: Path, page: str) -> None:
    every = power.defects()
    log = read_log(root / "benchmarks/results-power.jsonl")
    tries = power.valid(every, (power.Try(**each) for each in log))
    assert power.sentence(every, tries) in page
    *names, last = power.JUDGED
    assert f"each promise that the matrix judges: {', '.join(names)} and {last}." in page
    report = (root / "benchmarks/results-power.md").read_text()
    assert report == power.report(every, tries), "run: evidence.power --report --publish"


def test_the_seeds(root: Path, page: str) -> None:
    log = read_log(root / "benchmarks/results-seeds.jsonl")
    runs = [*seeds.earlier(), *(seeds.Run(**each) for each in log)]
    assert seeds.sentence(runs) in page
    report = (root / "benchmarks/results-seeds.md").read_text()
    assert report == seeds.report(runs), "run: evidence.seeds --report --publish"


def test_the_mutants(root: Path, page: str) -> None:
    report = (root / "tests/mutants.md").read_text()
    cells = [line[1:-1].split("|") for line in report.splitlines() if line.startswith("|")]
    table = {
        name.strip(): dict(
            zip(("tried", "caught", "equivalent", "open"), map(int, counts), strict=True)
        )
        for name, *counts in cells
        if counts[0].strip().isdigit()
    }
    planted, checker, drawn = (table[name] for name in ("planted", "the checker", "drawn"))
    date = re.search(r"written this on (.{10}):", report)
    assert date is not None
    assert f"has the run of {date[1]}" in page
    for name, tried in (("planted", planted), ("checker", checker)):
        rows = tomllib.loads((root / f"tests/mutants/{name}.toml").read_text())["mutant"]
        assert len(rows) >= tried["tried"] > 100, "more than a hundred of each kind"
    assert planted["caught"] == planted["tried"]
    assert f"All {planted['tried']} that were planted in the library were caught" in page
    assert not checker["open"]
    alive = number(checker["equivalent"])
    assert f"Of {checker['tried']} in the checker {alive} were not caught" in page
    alive = number(drawn["tried"] - drawn["caught"])
    assert f"Of {drawn['tried']} drawn ones {alive} were not caught" in page
