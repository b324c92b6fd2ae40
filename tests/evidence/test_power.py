"""Defects in the library, and the cells in which the matrix should see them."""

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from evidence import power, provenance
from evidence.cell import Cell
from evidence.contestants import contestants
from evidence.faults import ROWS
from evidence.power import (
    ELSEWHERE,
    FAILED,
    JUDGED,
    MISSED,
    NEVER,
    SEEN,
    Defect,
    Try,
    defects,
    following,
    main,
    masked,
    report,
    seconds,
    verdict,
)  # fmt: skip
from evidence.results import read_log

from redlock_aio.testing._processes import start
from tests.mutants import draw
from tests.mutants.table import PLANTED, read

ROOT = Path(__file__).parents[2]
MEASURED = {"commit": "aaaa", "clean": True, "load": 0.5, "library": "1234", "judge": "5678"}
FACTS: dict[str, object] = {
    "machine": "a machine",
    "server": "valkey 9",
    "date": "2026-01-01",
    "versions": {},
    **MEASURED,
}
EVERY = defects()


def made(defect: Defect = EVERY[0], row: str = "", **facts: object) -> Try:
    what = defect.mutant
    found = Try(what.id, what.digest, row or defect.row, defect.column, seed=1, facts=FACTS)
    return replace(found, **facts)  # type: ignore[arg-type]


def possible(*rows: str, columns: Sequence[str] = ("plain",)) -> dict[tuple[str, str], Cell]:
    return {
        (row.name, column): Cell(row, contestants()[column], seed=0, binary="")
        for row in ROWS
        for column in columns
        if row.name in rows
    }


# ------------------------------------------------------------------------ the defects


@pytest.mark.parametrize("defect", EVERY, ids=lambda defect: defect.id)
def test_each_defect_applies_to_the_code(defect: Defect) -> None:
    text = (ROOT / defect.mutant.file).read_text()
    changed = defect.mutant.apply(text)
    assert changed != text
    assert draw.LANGUAGES[Path(defect.mutant.file).suffix][1](changed)
    assert defect.mutant.defect.endswith(".")


def test_no_two_defects_are_the_same() -> None:
    assert len({each.id for each in EVERY}) == len({each.mutant.digest for each in EVERY})
    assert len({each.id for each in EVERY}) == len(EVERY)


def test_each_promise_that_the_matrix_judges_has_ten_defects_and_the_others_a_reason() -> None:
    counts = Counter(each.promise for each in EVERY)
    assert set(counts) == set(JUDGED)
    assert all(number >= 10 for number in counts.values()), counts
    assert set(JUDGED) | set(ELSEWHERE) == {f"S{number}" for number in range(1, 11)}
    assert not set(JUDGED) & set(ELSEWHERE)


def test_each_defect_should_be_seen_in_a_cell_of_the_matrix() -> None:
    rows = {row.name: row for row in ROWS}
    for defect in EVERY:
        ability = rows[defect.row].ability
        assert ability is None or ability in contestants()[defect.column].abilities, defect.id


def test_what_no_cell_shows_is_planted_elsewhere_and_not_tried() -> None:
    planted = {mutant.id: mutant.defect for mutant in read(PLANTED)}
    assert masked().keys() <= planted.keys()
    assert not masked().keys() & {each.id for each in EVERY}
    page = report(EVERY, [])
    for name, why in masked().items():
        assert f"| {planted[name]} `{name}` | {why} |" in page


def test_a_defect_without_a_text_has_to_be_a_planted_mutant(tmp_path: Path) -> None:
    path = tmp_path / "power.toml"
    path.write_text('[[defect]]\nid = "x"\npromise = "S1"\nrow = "no fault"\ncolumn = "plain"\n')
    with pytest.raises(ValueError, match=r"power\.toml: no planted mutant has the id x"):
        defects(path)


# ------------------------------------------------------------------------ one run


def test_a_run_imports_the_copy_with_the_defect() -> None:
    defect = next(each for each in EVERY if each.id == "majority-minority")
    code = "import redlock_aio._rules.quorum as q; print(q.majority(5), q.__file__)"
    with power.copy(defect.mutant) as folder:
        done = subprocess.run(
            [sys.executable, "-c", code], cwd=folder, check=True, capture_output=True, text=True,
            env=os.environ | {"PYTHONPATH": str(folder)},
        )  # fmt: skip
        number, file = done.stdout.split()
        assert number == "2"
        assert Path(file).is_relative_to(folder)
        assert (folder / "benchmarks/evidence/worker.py").exists()
    assert not folder.exists()


def test_a_run_that_does_not_end_is_ended() -> None:
    process = start([sys.executable, "-c", "import time; time.sleep(100)"])
    assert not power.wait(process, 0.1)
    assert process.poll() is not None
    assert power.wait(start([sys.executable, "-c", ""]), 100)


@pytest.mark.parametrize(
    ("facts", "found"),
    [
        ({}, MISSED),
        ({"broken": {"losses": 5}}, MISSED),
        ({"broken": {"keys_left": 1}}, SEEN),
        ({"broken": {"exclusion": 1}}, SEEN),
        ({"broken": {"exclusion": 1}, "expected": "may overlap"}, MISSED),
        ({"broken": {"exclusion": 1}, "wrong": ["w1 ended with 1"]}, FAILED),
    ],
)
def test_a_defect_is_seen_by_what_is_not_expected(facts: dict[str, Any], found: str) -> None:
    assert made(**facts).verdict == found


def test_one_run_that_has_seen_a_defect_is_enough() -> None:
    missed, failed, seen = made(), made(wrong=["x"]), made(broken={"tokens": 1})
    assert verdict([]) == NEVER
    assert verdict([missed]) == MISSED
    assert verdict([missed, failed]) == FAILED
    assert verdict([missed, seen, failed]) == SEEN


def test_an_error_has_no_files_of_this_machine() -> None:
    text = "w0 ended with 1: Traceback:\n  File x\n    y()\nRuntimeError: no"
    assert power.shortened(text) == "w0 ended with 1: Traceback: ... RuntimeError: no"
    assert power.shortened("nobody acquired a lock") == "nobody acquired a lock"
    assert power.shortened("") == ""


# ------------------------------------------------------------------------ the plan


def test_each_defect_is_tried_where_it_should_be_seen_first_and_then_without_a_fault() -> None:
    one = next(each for each in EVERY if (each.row, each.column) == ("holder stopped", "plain"))
    two = next(each for each in EVERY if (each.row, each.column) == ("flushed", "plain"))
    cells = possible("no fault", "flushed", "holder stopped")
    tries: list[Try] = []
    places = []
    for _ in range(9):
        defect, cell = following([one, two], cells, tries)
        places.append((defect.id, cell.row.name))
        # Only the first one is seen, and only where it should be.
        broken = {"exclusion": 1} if places[-1] == (one.id, one.row) else {}
        tries.append(made(defect, cell.row.name, broken=broken))
    assert places == [
        (one.id, "holder stopped"), (two.id, "flushed"),
        (one.id, "no fault"), (two.id, "no fault"),
        (two.id, "flushed"), (two.id, "flushed"),
        (one.id, "flushed"), (two.id, "holder stopped"),
        (one.id, "holder stopped"),
    ]  # fmt: skip


def test_cells_that_cannot_be_run_here_are_left_out() -> None:
    one = next(each for each in EVERY if (each.row, each.column) == ("holder stopped", "plain"))
    defect, cell = following([one], possible("no fault"), [])
    assert (defect, cell.row.name) == (one, "no fault")


def test_only_the_rows_that_are_named_are_tried() -> None:
    some = power.cells(EVERY[:1], ["flushed", "no fault"])
    assert {row for row, _ in some} == {"flushed", "no fault"}
    assert {row for row, _ in power.cells(EVERY[:1])} > {"flushed", "no fault"}


def test_runs_are_short_where_the_row_allows_it() -> None:
    own = {row.name: row.seconds for row in ROWS}
    assert seconds("no fault") == power.SECONDS < own["no fault"]
    assert seconds("Sentinel split") == own["Sentinel split"]
    assert following([EVERY[0]], possible("no fault"), [])[1].seconds == power.SECONDS


# ------------------------------------------------------------------------ log and page


def test_the_page_says_which_rows_have_seen_which_defect() -> None:
    one, two, three = [each for each in EVERY if each.row == "no fault"][:3]
    tries = [
        made(one, broken={"exclusion": 7}), made(one, broken={"exclusion": 1}), made(one),
        made(one, "flushed", broken={"updates": 2}), made(two), made(two, "flushed"),
        made(three, wrong=["x"]),
    ]  # fmt: skip
    page = report(EVERY, tries)
    assert (f"Of {len(EVERY)} defects, 3 were tried so far, in 7 short runs: 1 were seen.") in page
    lines = {each.id: next(x for x in page.splitlines() if f"`{each.id}`" in x) for each in EVERY}
    assert lines[one.id].endswith("| **seen** 2 of 3 times: exclusion: 8 | **seen** 2 of 3 times: "
                                  "exclusion: 8 | 1 of 1: flushed |")  # fmt: skip
    assert lines[two.id].endswith("| not seen | not seen | 0 of 1 |")
    assert lines[three.id].endswith("| the run failed | the run failed | 0 of 0 |")
    assert "| not run yet | not run yet | 0 of 0 |" in lines[EVERY[-1].id]
    rows = {row.name: next(x for x in page.splitlines() if x.startswith(f"| **{row.name}** |"))
            for row in ROWS}  # fmt: skip
    missed = f"it should have seen {two.id}, {three.id}"
    assert rows["no fault"] == f"| **no fault** | 3 | 1 | 0 | {missed} |"
    assert rows["flushed"] == "| **flushed** | 2 | 1 | 0 |  |"
    assert rows["clock set"] == "| **clock set** | 0 | 0 | 0 | not run yet |"
    assert all(f"- {name}: " in page for name in ELSEWHERE)
    assert "At commit aaaa, library 1234" in page


def test_a_row_that_has_seen_nothing_is_named() -> None:
    page = report(EVERY, [made(EVERY[0], "flushed")])
    assert "| **flushed** | 1 | 0 | 0 | **sees nothing so far** |" in page
    assert "two may hold a lock here" not in page


def test_a_row_in_which_two_may_hold_a_lock_says_so() -> None:
    (row,) = [each for each in ROWS if each.name == "endpoint moves unseen"]
    page = report(EVERY, [made(EVERY[0], row.name)])
    why = (
        f"**sees nothing so far**; two may hold a lock here, as it is assumed that {row.assumption}"
    )
    assert f"| **{row.name}** | 1 | 0 | 0 | {why} |" in page


def test_the_log_grows_and_lines_about_another_text_of_a_defect_do_not_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(power, "cells", lambda _, rows: possible(*rows))
    monkeypatch.setattr(power, "perform", lambda defect, cell: made(defect, cell.row.name))
    times = iter(range(100))
    monkeypatch.setattr("evidence.power.time.monotonic", lambda: 20.0 * next(times))
    words = ["--minutes", "1", "--defects", EVERY[0].id, "--rows", "no fault", "--output"]
    words.append(str(tmp_path))
    assert main(words) == 0
    log = tmp_path / "results-power.jsonl"
    assert len(read_log(log)) == 2
    old = json.loads(log.read_text().splitlines()[0]) | {"digest": "another", "row": "flushed"}
    with log.open("a") as file:
        file.write(json.dumps(old) + '\n{"defect": "torn')
    assert main(words) == 0
    assert [each["row"] for each in read_log(log)] == ["no fault"] * 2 + ["flushed"] + [
        "no fault"
    ] * 2
    page = (tmp_path / "results-power.md").read_text()
    assert "in 4 short runs" in page
    assert "| **flushed** | 0 | 0 | 0 | not run yet |" in page


@pytest.mark.integration
@pytest.mark.full
@pytest.mark.long
def test_a_minority_that_is_a_quorum_is_seen() -> None:
    defect = next(each for each in EVERY if each.id == "majority-minority")
    cell = power.cells([defect])["no fault", "plain"]
    found = power.perform(defect, power.replaced(cell, 5.0))
    assert found.verdict == SEEN, found
    assert found.broken["exclusion"]
    assert found.sections > 0
    assert set(found.facts) == {*power.SHOWN, *provenance.FACTS}


@pytest.mark.integration
@pytest.mark.full
def test_a_library_that_can_not_be_imported_is_a_run_that_failed() -> None:
    mutant = replace(
        EVERY[0].mutant, file="redlock_aio/_rules/quorum.py", inside="",
        old="import enum", new="import no_such_module",
    )  # fmt: skip
    defect = replace(EVERY[0], mutant=mutant)
    cell = power.cells([defect])["no fault", "plain"]
    found = power.perform(defect, power.replaced(cell, 1.0))
    assert found.verdict == FAILED
    assert "no_such_module" in found.wrong[0]
