"""A published result that is older than the code is found, unless it is explained why it stands."""

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from evidence import freshness, provenance
from evidence.freshness import LEAVES, Explained, Result, published, unexplained, why_not
from evidence.ours import OURS
from evidence.provenance import CHECKER, UNKNOWN, measured, said, tree

from .test_provenance import git, repository

__all__ = ["repository"]

ROOT = Path(__file__).parents[2]
NOTHING = Explained({}, {})


def commit(repository: Path, file: str, subject: str) -> str:
    """Change a file, commit that, and return what the commit is known by."""
    path = repository / file
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"{subject}\n")
    git(repository, "add", "-A")
    git(repository, "commit", "-qm", subject, "--date", "2026-01-02T12:00:00+0000")
    return f"2026-01-02 {subject}"


def missing(results: list[Result], explained: Explained = NOTHING) -> list[str]:
    freshness.states.cache_clear()
    freshness.newer.cache_clear()
    return unexplained(results, explained)


def result(column: str = "plain", *, judged: bool = True) -> Result:
    facts = measured()
    return Result("results.json", column, facts["library"], facts["judge"] if judged else "")


@pytest.fixture(autouse=True)
def _library(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let programs import the library of the repository, if there is one."""
    if "repository" in request.fixturenames:
        folder: Path = request.getfixturevalue("repository")
        found = type("Spec", (), {"origin": str(folder / "redlock_aio/__init__.py")})
        monkeypatch.setattr("importlib.util.find_spec", lambda _: found)


def test_the_hash_of_the_library_is_that_of_git(repository: Path) -> None:
    library = repository / "redlock_aio"
    (library / "lua").mkdir()
    (library / "lua.py").write_text("between lua and lua/\n")
    (library / "lua" / "one.lua").write_text("return 1\n")
    (library / "lua-2").mkdir()
    (library / "lua-2" / "two.lua").write_text("return 2\n")
    (library / "run").write_text("#!/bin/sh\n")
    (library / "run").chmod(0o755)
    (library / "link").symlink_to("run")
    (library / "empty").mkdir()
    git(repository, "add", "-A")
    git(repository, "commit", "-qm", "two")
    (library / "__pycache__").mkdir()
    (library / "__pycache__" / "lua.pyc").write_text("compiled")
    assert tree(library) == git(repository, "rev-parse", "HEAD:redlock_aio")
    assert measured()["library"] == tree(library)[:12]
    (library / "lua" / "one.lua").write_text("return 3\n")
    assert tree(library) != git(repository, "rev-parse", "HEAD:redlock_aio")


def test_a_result_is_older_than_a_commit_that_changes_the_library(repository: Path) -> None:
    old = result()
    assert missing([old]) == []
    commit(repository, "README.md", "a page")
    assert missing([old]) == []
    second = commit(repository, "redlock_aio/lock.py", "two")
    third = commit(repository, "redlock_aio/lock.py", "three")
    says = 'commit = "{}" is newer than results in results.json'
    assert missing([old]) == sorted([says.format(second), says.format(third)])
    some = Explained({second: "It does nothing."}, {})
    assert missing([old], some) == [says.format(third)]
    assert missing([old], Explained({second: "-", third: "-"}, {})) == []
    # Measured again, the result needs no explanation, and what is not needed has to go.
    assert missing([result()]) == []
    assert missing([result()], some) == [
        f'commit = "{second}" is explained, and no result is older'
    ]


def test_a_verdict_is_older_than_a_commit_that_changes_the_checker(repository: Path) -> None:
    verdict, speed = result(), result(judged=False)
    changed = commit(repository, CHECKER[2], "stricter")
    assert missing([verdict]) == [f'commit = "{changed}" is newer than results in results.json']
    assert missing([speed]) == []


@pytest.mark.parametrize("leaf", LEAVES)
def test_parts_that_a_result_does_not_run_matter_to_others_only(
    repository: Path, leaf: str
) -> None:
    each = {column: result(column) for column in ("plain", "sync", "command")}
    commit(repository, f"{leaf}/new.py", "a leaf")
    assert {column for column, one in each.items() if missing([one])} == LEAVES[leaf]


def test_the_columns_that_run_leaves_are_those_of_the_matrix() -> None:
    assert not {each.name for each in OURS} & {"cli", "contrib", "testing"}
    assert all((ROOT / leaf).is_dir() for leaf in LEAVES)


def test_a_history_that_is_written_anew_changes_nothing(repository: Path) -> None:
    old = result()
    known = commit(repository, "redlock_aio/lock.py", "two")
    before = git(repository, "rev-parse", "HEAD")
    git(repository, "commit", "-q", "--amend", "--no-edit", "--author", "somebody <else@x>")
    assert git(repository, "rev-parse", "HEAD") != before
    assert missing([old], Explained({known: "It does nothing."}, {})) == []


def test_files_that_are_in_no_commit_are_never_explained(repository: Path) -> None:
    (repository / "redlock_aio/lock.py").write_text("not committed\n")
    dirty = result()
    (repository / "redlock_aio/lock.py").unlink()
    (says,) = missing([dirty])
    assert says.startswith('commit = "none: no commit has redlock_aio with the hash')


def test_results_without_a_library_are_counted() -> None:
    old = Result("results.md", "", "", "")
    assert missing([old, old]) == ["results.md: results that name no library: 2, explained: 0"]
    assert missing([old, old], Explained({}, {"results.md": 2})) == []
    assert missing([old], Explained({}, {"results.md": 2})) == [
        "results.md: results that name no library: 1, explained: 2"
    ]


def test_all_kinds_of_files_with_results_are_read(tmp_path: Path) -> None:
    facts: dict[str, Any] = measured()
    cells = [
        {"column": "plain", "facts": facts}, {"column": "fair", "facts": {"date": "then"}},
        {"column": "fenced", "facts": {}, "skipped": "no network"},
    ]  # fmt: skip
    (tmp_path / "results-a.json").write_text(json.dumps({"cells": cells}))
    (tmp_path / "results-a.md").write_text("the page of these")
    lines = [{"column": "plain", "facts": facts}, {"column": "plain", "facts": {}}]
    (tmp_path / "results-b.jsonl").write_text("".join(f"{json.dumps(x)}\n" for x in lines))
    (tmp_path / "results-c.md").write_text(f"Measured on a day by `x`. {said([facts])}")
    (tmp_path / "results-d.md").write_text(f"Measured on a day by `x`. {said([{}])}")
    (tmp_path / "results-c.svg").write_text("a picture")
    library, judge = facts["library"], facts["judge"]
    assert list(published(tmp_path)) == [
        Result("results-a.json", "plain", library, judge),
        Result("results-a.json", "fair", "", ""),
        Result("results-b.jsonl", "plain", library, judge),
        Result("results-b.jsonl", "plain", "", ""),
        Result("results-c.md", "", library, ""),
        Result("results-d.md", "", "", ""),
    ]


def test_a_result_that_names_its_commit_alone_is_known_by_that(repository: Path) -> None:
    new = measured()
    old = {name: new[name] for name in ("commit", "clean", "load")}
    lines = [old, old | {"clean": False}, old | {"commit": "1234567890"}, old | {"commit": UNKNOWN}]
    folder = repository / "published"
    folder.mkdir()
    text = "".join(json.dumps({"column": "fair", "facts": each}) + "\n" for each in lines)
    (folder / "results-b.jsonl").write_text(text)
    freshness.at.cache_clear()
    known = Result("results-b.jsonl", "fair", new["library"], new["judge"])
    assert list(published(folder)) == [known] + [Result("results-b.jsonl", "fair", "", "")] * 3
    assert missing([known]) == []


def test_a_reason_is_wanted(tmp_path: Path) -> None:
    path = tmp_path / "explained.toml"
    path.write_text('[[commit]]\ncommit = "2026-01-02 two"\nwhy = ""\n')
    with pytest.raises(ValueError, match=r"explained\.toml: why is missing in .*two"):
        Explained.read(path)


def test_it_needs_the_whole_history(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert why_not() == ""
    commit(repository, "redlock_aio/lock.py", "two")
    git(tmp_path, "clone", "-q", "--depth=1", f"file://{repository}", "shallow")
    monkeypatch.setattr(provenance, "ROOT", tmp_path / "shallow")
    assert why_not() == "the repository has a part of its history only"
    shutil.rmtree(tmp_path / "shallow" / ".git")
    assert why_not() == "there is no git, or no repository"


def test_each_published_result_is_of_the_code_of_today_or_explained() -> None:
    """
    If it fails: name the commit and the reason in benchmarks/explained.toml, or measure again.
    """
    if reason := why_not():
        pytest.skip(reason)
    assert missing(list(published()), Explained.read()) == []


@pytest.mark.full
def test_the_command_says_what_is_not_explained(tmp_path: Path) -> None:
    if reason := why_not():
        pytest.skip(reason)
    code = (
        "import sys; from pathlib import Path; from benchmarks.evidence import freshness as f;"
        "f.Explained.read.__func__.__defaults__ = (Path(sys.argv.pop()),); sys.exit(f.main())"
    )
    (tmp_path / "nothing.toml").touch()
    done = subprocess.run(
        [sys.executable, "-c", code, tmp_path / "nothing.toml"], cwd=ROOT, check=False,
        capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 1, done.stderr
    assert "results-waking.md: results that name no library: 1, explained: 0" in done.stdout
