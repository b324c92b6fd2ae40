"""Results say what they measured, and kept histories are judged again."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from evidence import peers_tables, provenance, rejudge, soak, tables
from evidence.cell import Cell
from evidence.checker import check
from evidence.export import histories_in
from evidence.faults import ROWS
from evidence.matrix import run as run_cell
from evidence.provenance import CHECKER, FACTS, UNKNOWN, judged_by, measured, said
from evidence.results import PUBLISHED, Entry, Results, pack

from .kit import Script

ROOT = Path(__file__).parents[2]
A = {"commit": "aaaa", "clean": True, "load": 0.5}
B = {"commit": "bbbb", "clean": False, "load": 2.0}
PARTS = 12
"""The short run judges one of them, which takes a second of processor time."""


# ------------------------------------------------------------------------ what is measured


@pytest.mark.parametrize(
    ("facts", "text"),
    [
        ([], ""),
        ([{"date": "2026-01-01"}], "The result names no commit."),
        ([{"date": "2026-01-01"}, {}], "The results name no commit."),
        ([A], "At commit aaaa; the machine's load average was 0.5 before."),
        ([A, A | {"load": 1.25}, {}],
         ("At commit aaaa; the machine's load average was 0.5 to 1.25 before."
          " 1 of 3 results name no commit.")),
        ([A | {"library": "1234"}],
         "At commit aaaa, library 1234; the machine's load average was 0.5 before."),
        ([A, B], ("At commit aaaa and commit bbbb with changes that are in no commit;"
                  " the machine's load average was 0.5 to 2 before.")),
        ([A | {"commit": UNKNOWN, "clean": False}],
         "At an unknown commit; the machine's load average was 0.5 before."),
    ],
)  # fmt: skip
def test_results_say_what_they_measured(facts: list[dict[str, Any]], text: str) -> None:
    assert said(facts) == text


def test_results_say_who_judged_them() -> None:
    assert judged_by(["", ""]) == ""
    assert judged_by(["", "aa", "aa", "bb+"]) == " The checker is that of commit aa and bb+."


def git(folder: Path, *words: str) -> str:
    if shutil.which("git") is None:
        pytest.skip("there is no git in the PATH")
    who = {
        f"GIT_{one}_{what}": "x" for one in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")
    }
    no_settings = {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_SYSTEM": os.devnull}
    done = subprocess.run(
        ["git", *words], cwd=folder, env=os.environ | who | no_settings, check=True,
        capture_output=True, text=True,
    )  # fmt: skip
    return done.stdout.strip()


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository with a library, a checker and a published result."""
    for name in ("redlock_aio/__init__.py", *CHECKER, "benchmarks/results.md", "README.md"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("1\n")
    git(tmp_path, "init", "-q")
    git(tmp_path, "add", "-A")
    git(tmp_path, "commit", "-qm", "one")
    monkeypatch.setattr(provenance, "ROOT", tmp_path)
    monkeypatch.setattr(provenance, "_is_ours", lambda: True)
    return tmp_path


def test_a_result_is_clean_if_what_it_depends_on_is_that_of_the_commit(repository: Path) -> None:
    head = git(repository, "rev-parse", "HEAD")
    assert head.startswith(measured()["commit"])
    assert measured()["clean"]
    # What a run writes, and what it does not depend on, changes nothing.
    (repository / "benchmarks/results.md").write_text("2\n")
    (repository / "benchmarks/histories").mkdir()
    (repository / "benchmarks/histories/new.tar.xz").touch()
    (repository / "README.md").write_text("2\n")
    assert measured()["clean"]
    (repository / "redlock_aio/new.py").touch()
    assert not measured()["clean"]
    (repository / "redlock_aio/new.py").unlink()
    (repository / "benchmarks/evidence/checker.py").write_text("2\n")
    assert not measured()["clean"]
    assert isinstance(measured()["load"], float)
    assert tuple(measured()) == FACTS == soak.FACTS[-len(FACTS) :]


def test_the_checker_is_known_by_the_last_commit_that_changed_it(repository: Path) -> None:
    first = provenance.checker()
    assert git(repository, "rev-parse", "HEAD").startswith(first)
    (repository / "redlock_aio/__init__.py").write_text("2\n")
    git(repository, "commit", "-qam", "two")
    assert provenance.checker() == first
    (repository / CHECKER[-1]).write_text("2\n")
    assert provenance.checker() == f"{first}+"
    git(repository, "commit", "-qam", "three")
    assert git(repository, "rev-parse", "HEAD").startswith(provenance.checker())


def test_without_a_repository_the_commit_is_unknown(repository: Path) -> None:
    shutil.rmtree(repository / ".git")
    assert (measured()["commit"], measured()["clean"]) == (UNKNOWN, False)
    assert provenance.checker() == UNKNOWN


def test_a_library_from_elsewhere_is_not_that_of_the_commit(
    repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()
    monkeypatch.setattr(provenance, "ROOT", repository)
    assert (measured()["commit"], measured()["clean"]) == (UNKNOWN, False)


def test_the_checker_is_all_that_it_imports() -> None:
    """So that a change of any part of it is seen."""
    known = {Path(name).stem for name in CHECKER}
    for name in CHECKER:
        text = (ROOT / name).read_text()
        assert set(re.findall(r"^from \.(\w+) import", text, re.MULTILINE)) <= known | {"recorder"}


def test_the_pages_of_the_evidence_name_commits_load_and_checker(tmp_path: Path) -> None:
    facts = {
        "machine": "m", "server": "s", "date": "d", "versions": {}, "seed": 1, "tasks": 1,
        "ttl": 1_000, "what": "",
    }  # fmt: skip
    says = said([A]) + " The checker is that of commit cc"
    for known in (True, False):
        more = A if known else {}
        checker = "cc" if known else ""
        results = Results(tmp_path / f"{known}.json")
        results.add(Entry("no fault", "plain", acquired=1, facts=facts | more, checker=checker))
        part = soak.Part(0, 1, "plain", facts=facts | more | ({"checker": "cc"} if known else {}))
        for page in (tables.report(results), peers_tables.report(results), soak.report([part])):
            assert (says in page) is known, page


def test_the_pages_about_speed_name_the_commit() -> None:
    code = "import measuring; print(measuring.command())"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT / "benchmarks", check=True,
        capture_output=True, text=True,
    )  # fmt: skip
    assert re.search(r"`\. At (an unknown commit|commit \w{10}).*; the machine's load", done.stdout)


@pytest.mark.parametrize("path", sorted((ROOT / "benchmarks").glob("*.py")), ids=lambda x: x.stem)
def test_each_program_that_keeps_a_measurement_says_what_it_measured(path: Path) -> None:
    text = path.read_text()
    keeps = "write_text(" in text and re.search(
        r"^import measuring|^from measuring", text, re.MULTILINE
    )
    assert "measuring.command()" in text or not keeps


# ------------------------------------------------------------------------ judged again


@pytest.fixture
def cell() -> Cell:
    from evidence.contestants import contestants

    return Cell(ROWS[0], contestants()["plain"], seed=1, binary="")


def overlap(script: Script) -> None:
    script.meta |= {"row": "no fault", "column": "plain"}
    script.section("w0/0", 10, 20)
    script.section("w1/0", 15, 25)


def test_all_histories_of_a_run_can_be_kept_and_judged_again(
    script: Script, tmp_path: Path, cell: Cell, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    """Also those of cells that hold."""
    script.meta |= {"row": "no fault", "column": "plain"}
    script.section("w0/0", 10, 20)

    def recorded(_: Cell, folder: Path) -> list[str]:
        script.folder = folder
        script.save()
        return []

    monkeypatch.setattr("evidence.cell.run", recorded)
    entry = run_cell("", cell, tmp_path / "output", tmp_path / "kept")
    assert (entry.history, entry.checker) == ("", provenance.checker())
    assert rejudge.main([str(tmp_path / "kept" / "histories")]) == 0
    said = capsys.readouterr().out
    assert "no-fault-plain.tar.xz: the same: nothing" in said
    assert "0 of 1 verdicts changed; the checker is of commit" in said


@pytest.mark.parametrize(
    ("before", "after", "says"),
    [
        (None, {"exclusion": 1, "updates": 0}, "judged for the first time: exclusion: 1"),
        ({"exclusion": 1, "updates": 0}, {"exclusion": 1, "updates": 0}, "the same: exclusion: 1"),
        ({"exclusion": 1}, {"exclusion": 1, "expiry": 2},
         "the same: exclusion: 1; not judged before: expiry: 2"),
        ({"exclusion": 1, "expiry": 0}, {"exclusion": 1, "expiry": 2},
         "CHANGED from exclusion: 1 to exclusion: 1, expiry: 2"),
        ({"exclusion": 2}, {"exclusion": 1}, "CHANGED from exclusion: 2 to exclusion: 1"),
        ({"exclusion": 0, "losses": 3}, {"exclusion": 0, "losses": 3, "expiry": 1},
         "CHANGED from losses: 3 to expiry: 1, losses: 3"),
    ],
)  # fmt: skip
def test_a_verdict_that_has_changed_is_named(
    before: dict[str, int] | None, after: dict[str, int], says: str
) -> None:
    assert rejudge.compared(before, after) == (says, says.startswith("CHANGED"))


def test_a_changed_verdict_ends_the_command_with_an_error(
    script: Script, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    overlap(script)
    folder = script.save()
    verdict = json.loads(check(folder).as_json())
    verdict["checks"]["exclusion"]["times"] = 7
    (folder / "verdict.json").write_text(json.dumps(verdict))
    assert rejudge.main([str(tmp_path / pack(folder, "cell", tmp_path))]) == 1
    assert "CHANGED from exclusion: 7 to exclusion: 1" in capsys.readouterr().out
    (folder / "verdict.json").unlink()
    assert rejudge.main([str(tmp_path / pack(folder, "cell", tmp_path))]) == 0


def test_a_folder_without_histories_is_an_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        rejudge.main([str(tmp_path)])
    assert f"there is no history in the folder {tmp_path}" in capsys.readouterr().err


@pytest.mark.spread(0)
@pytest.mark.parametrize("part", range(PARTS))
def test_no_verdict_on_a_kept_history_has_changed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, part: int
) -> None:
    histories = histories_in(PUBLISHED / "histories")[part::PARTS]
    (tmp_path / "histories").mkdir()
    for path in histories:
        (tmp_path / "histories" / path.name).symlink_to(path)
    monkeypatch.setattr(rejudge, "PUBLISHED", tmp_path)
    assert rejudge.main([]) == 0, capsys.readouterr().out
    assert capsys.readouterr().out.count(": the same") == len(histories) > 0
