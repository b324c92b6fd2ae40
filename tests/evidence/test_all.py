"""The command that repeats a sample of the evidence: what it draws, compares and says."""

import json
import random
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from evidence import all as command
from evidence.all import PARTS, Finding, Part, Share, Unfinished, attempt, compared, verdict
from evidence.results import PUBLISHED, Entry

ROOT = Path(__file__).parents[2]


@pytest.fixture
def share(tmp_path: Path) -> Share:
    """Return a share of no time: one thing of each kind is repeated in it."""
    return Share(0.0, random.Random(1), tmp_path)


def only(monkeypatch: pytest.MonkeyPatch, **parts: list[Finding]) -> None:
    """Let there be these parts alone."""

    def part(found: list[Finding]) -> Part:
        return Part(lambda _: iter(found), 0.5)

    monkeypatch.setattr(command, "PARTS", {name: part(found) for name, found in parts.items()})


def test_the_shares_add_up() -> None:
    assert sum(part.share for part in PARTS.values()) == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("facts", "says"),
    [
        ({}, "holds"),
        ({"broken": {"losses": 3}}, "holds"),
        ({"broken": {"tokens": 1, "exclusion": 2, "losses": 1}}, "broke exclusion, tokens"),
        ({"wrong": ["a client failed"]}, "the run failed"),
        ({"expected": "fails", "broken": {"exclusion": 2}}, "fails, as it must"),
        ({"expected": "fails"}, "holds, though it must fail"),
        ({"expected": "may overlap", "broken": {"exclusion": 2}}, "may overlap"),
        ({"expected": "may overlap"}, "may overlap"),
        ({"expected": "may overlap", "broken": {"tokens": 2}}, "broke tokens"),
    ],
)
def test_the_verdict_on_a_cell(facts: dict[str, Any], says: str) -> None:
    assert verdict(Entry("no fault", "plain", **facts)) == says


def test_a_verdict_that_differs_is_the_exit_code(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    same = [Finding("a", "holds", "holds"), Finding("b", "", "holds", "not run here: no network")]
    only(monkeypatch, cells=same, soak=[Finding("c", "holds", "holds")])
    assert command.main(["--minutes", "1"]) == 0
    said = capsys.readouterr().out
    assert "| cells | 1 | 1 holds | 1 holds | same | 1 not run here: no network |" in said
    only(monkeypatch, cells=[*same, Finding("d", "broke tokens", "holds")])
    assert command.main(["--minutes", "1"]) == 1
    said = capsys.readouterr().out
    assert "cells: d: broke tokens (published: holds)  <-- DIFFERS" in said
    assert "**1 DIFFER**" in said


def test_without_a_verdict_it_is_no_success(monkeypatch: pytest.MonkeyPatch) -> None:
    only(monkeypatch, cells=[Finding("a", "", "holds", "not run here: no server")])
    assert command.main(["--minutes", "1"]) == 2


def test_what_can_not_be_repeated_says_why(share: Share) -> None:
    def raises(error: Exception) -> Any:
        def repeat() -> str:
            raise error

        return repeat

    (skipped,) = attempt(share, "x", "holds", raises(Unfinished("no network")))
    assert (skipped.why_not, skipped.differs) == ("no network", False)
    (failed,) = attempt(share, "x", "holds", raises(RuntimeError("no server answers")))
    assert failed.differs
    assert share.lines == ["x: no server answers"]


def test_a_program_that_hangs_is_ended(share: Share, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "PATIENCE", 1.0)
    with pytest.raises(Unfinished, match="not done in time"):
        share.run("-c", "import time; time.sleep(600)", module=False)


def test_a_program_is_run_in_this_folder_by_this_python(share: Share) -> None:
    code, said = share.run("-c", "import sys, os; print(sys.executable, os.getcwd())", module=False)
    assert (code, said.split()) == (0, [sys.executable, str(ROOT)])


def test_one_thing_is_repeated_at_least(share: Share) -> None:
    assert len(list(command.in_turn(share, range(100)))) == 1
    plenty = Share(60.0, random.Random(1), share.scratch)
    assert sorted(command.in_turn(plenty, range(100))) == list(range(100))
    again = [next(command.in_turn(Share(0, random.Random(5), share.scratch), range(100)))] * 2
    assert again[0] == again[1]


def test_a_kept_history_is_judged_again(share: Share) -> None:
    (found,) = command.histories(share)
    assert found.what.endswith(".tar.xz")
    assert (found.now, found.published, found.differs) == (*("as kept with it",) * 2, False)


@pytest.mark.full
def test_seeds_of_the_simulation_are_run_and_nothing_is_published(share: Share) -> None:
    before = {path: path.stat().st_mtime_ns for path in PUBLISHED.iterdir() if path.is_file()}
    found = list(command.simulation(share))
    assert found
    assert not any(each.differs or each.why_not for each in found), found
    assert all(each.now == "holds" for each in found)
    assert before == {
        path: path.stat().st_mtime_ns for path in PUBLISHED.iterdir() if path.is_file()
    }


def test_a_failed_seed_differs_from_none(share: Share, monkeypatch: pytest.MonkeyPatch) -> None:
    def run(_: Share, *words: object) -> tuple[int, str]:
        output = Path(str(words[-1]))
        line = {"first": 1, "last": 2, "failed": {"2": ["exclusion"]}}
        (output / "results-simulation.jsonl").write_text(json.dumps(line) + "\n")
        return 1, "seed 2 failed"

    monkeypatch.setattr(Share, "run", run)
    found = list(command.simulation(share))
    assert all(each.now == "1 failed" and each.differs for each in found)


@pytest.mark.full
@pytest.mark.integration
def test_a_cell_of_the_matrix_is_repeated(share: Share, monkeypatch: pytest.MonkeyPatch) -> None:
    known = [Entry("restarted empty", "plain")]
    entries = command.entries

    def published(folder: Path) -> list[Entry]:
        return known if folder == PUBLISHED else entries(folder)

    monkeypatch.setattr(command, "entries", published)
    (found,) = command.matrix(share, control=False)
    assert (found.what, found.published) == ("restarted empty, plain", "holds")
    assert found.now == "holds", share.lines


def test_controls_are_drawn_from_the_published_ones(
    share: Share, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def cell(_: Share, which: list[str], _seed: int, _output: Path) -> str:
        asked.append(which)
        return "holds, though it must fail"

    monkeypatch.setattr(command, "_cell", cell)
    (found,) = command.matrix(share, control=True)
    assert asked == [["--controls", found.what]]
    assert found.differs


def test_porcupine_and_power_need_something(share: Share, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "PUBLISHED", share.scratch)

    def said(found: Iterator[Finding]) -> str:
        (one,) = found
        return one.why_not

    assert "--porcupine names no source" in said(command.porcupine(share))
    assert "no results" in said(command.power(share))


@pytest.mark.parametrize(("luck", "now"), [(0, "seen"), (3, "seen"), (4, "not seen")])
def test_a_defect_that_needs_luck_is_tried_again(
    share: Share, monkeypatch: pytest.MonkeyPatch, luck: int, now: str
) -> None:
    (share.scratch / "results-power.jsonl").write_text(
        json.dumps({"defect": "one", "wrong": [], "broken": {"order": 2}}) + "\n"
    )
    monkeypatch.setattr(command, "PUBLISHED", share.scratch)
    runs: list[tuple[object, ...]] = []

    def run(_: Share, *words: object) -> tuple[int, str]:
        broken = {"order": 1} if len(runs) >= luck else {"losses": 1}
        runs.append(words)
        (Path(str(words[-1])) / "results-power.jsonl").write_text(
            json.dumps({"defect": "one", "wrong": [], "broken": broken}) + "\n"
        )
        return 0, ""

    monkeypatch.setattr(Share, "run", run)
    (found,) = command.power(share)
    assert (found.what, found.now, found.published) == ("one", now, "seen")
    assert len(runs) == min(luck + 1, 4)


def test_the_table_has_a_line_for_each_part() -> None:
    found = {
        "cells": [Finding("a", "holds", "holds")] * 2,
        "speed": [Finding("b", "", "", "told and not judged")],
    }
    *_, cells, speed = compared(found).splitlines()
    assert cells == "| cells | 2 | 2 holds | 2 holds | same |  |"
    assert speed == "| speed | 0 |  |  |  | 1 told and not judged |"


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ([], "one of --hours and --minutes says how long it may take"),
        (["--hours", "0"], "is a positive number, not 0 minutes"),
        (["--minutes", "1", "--porcupine", "/nowhere"], "--porcupine is a folder"),
        (["--minutes", "1", "--only", "matrix"], "invalid choice: 'matrix'"),
    ],
)
def test_a_wrong_command_says_what_is_wanted(
    words: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        command.parse(words)
    assert says in capsys.readouterr().err
