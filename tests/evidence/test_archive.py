"""The archive of the histories of a whole run: what comes back of it, and the kept one."""

import itertools
import json
from pathlib import Path
from typing import Any

import pytest
from evidence import archive, rejudge
from evidence.archive import histories, lines, packed, restore, tables
from evidence.checker import check
from evidence.results import PUBLISHED, Entry, Results, pack
from hypothesis import given, strategies as st

from .kit import Script

KEPT = PUBLISHED / "matrix-histories.tar.xz"
NEEDS_IT = pytest.mark.skipif(not KEPT.exists(), reason="the repository has it, and no sdist")
PARTS = 20
"""The short run judges one of them, which takes two seconds of processor time."""

values = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()


@st.composite
def events(draw: st.DrawFn) -> list[dict[str, Any]]:
    """Lines as processes write them, and some that they do not."""
    instants = st.integers(0, 1 << 62).map(lambda us: us // 1000 * 1000)
    names = st.sampled_from(["lease-0", "lease-1", "lease-2"])
    line = st.fixed_dictionaries(
        {"at": instants},
        optional={
            "client": st.sampled_from(["w0/0", "w0/1", "w1/0"]), "what": st.text(max_size=3),
            "how": st.sampled_from(["invoke", "ok"]), "until": instants, "lease": names | st.none(),
            "from": names, "token": st.none() | st.integers(), "keys": st.lists(st.text()),
            "valid": st.booleans(), "another": values,
        },
    )  # fmt: skip
    found = draw(st.lists(line, max_size=20))
    return [dict(draw(st.permutations(list(each.items())))) for each in found]


@given(files=st.lists(events(), max_size=3))
def test_lines_come_back_with_their_fields_in_order(files: list[list[dict[str, Any]]]) -> None:
    """Save the names of leases, which are as different from each other as before."""
    numbers: dict[str, int] = {}
    names: dict[str, str] = {}
    for found in files:
        again = list(lines(json.loads(packed(tables(found, numbers)))))
        for event in found:
            for field, value in event.items():
                if field in ("lease", "from") and value is not None:
                    event[field] = names.setdefault(value, f"lease-{len(names)}")
        assert [list(each.items()) for each in again] == [list(each.items()) for each in found]


def test_instants_come_back_in_whole_microseconds() -> None:
    found = [{"at": 5_999, "until": 7_001}, {"at": 6_000}, {"at": 2_500, "until": 0}]
    again = list(lines(tables(found, {})))
    assert again == [{"at": 5_000, "until": 7_000}, {"at": 6_000}, {"at": 2_000, "until": 0}]


def two_holders(script: Script) -> Path:
    lease = script.acquire("w0/0", 1, 2, until=50)
    script.acquire("w1/0", 3, 4, until=60)
    script.release("w0/0", 40, 41, lease=lease)
    return script.save()


def judged(folder: Path) -> Path:
    (folder / "verdict.json").write_text(check(folder).as_json())
    return folder


def test_a_history_comes_back_with_its_verdict(
    script: Script, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = judged(two_holders(script))
    with (folder / "w0.jsonl").open("a") as torn:
        torn.write('{"at":12,"cli')  # by a process that was killed
    before = check(folder)
    assert before.checks["exclusion"].broken
    pack(folder, "cell", tmp_path)
    file = tmp_path / "all.tar.xz"
    assert archive.main([str(file), "--of", str(tmp_path / "histories")]) == 0
    assert archive.main([str(file), "--into", str(tmp_path / "out")]) == 0
    again = tmp_path / "out" / "cell"
    assert (again / "w0.jsonl").read_text().endswith('\n{"at":12,"cli')
    renamed = json.loads(before.as_json().replace("lease-2", "lease-1"))
    assert json.loads(check(again).as_json())["checks"] == renamed["checks"]
    capsys.readouterr()
    assert rejudge.main([str(tmp_path / "out")]) == 0
    assert "cell: the same: exclusion: 1" in capsys.readouterr().out
    written = file.read_bytes()
    assert archive.main([str(file), "--of", str(again)]) == 0
    assert archive.main([str(tmp_path / "b"), "--of", str(tmp_path / "histories")]) == 0
    assert (tmp_path / "b").read_bytes() == written == file.read_bytes()


def test_nothing_is_written_if_a_verdict_is_another(
    script: Script, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Such as one that needs the nanoseconds."""
    folder = judged(two_holders(script))
    verdict = json.loads((folder / "verdict.json").read_text())
    verdict["checks"]["exclusion"]["times"] = 0
    (folder / "verdict.json").write_text(json.dumps(verdict))
    assert archive.main([str(tmp_path / "all.tar.xz"), "--of", str(folder)]) == 1
    told = capsys.readouterr()
    assert "CHANGED from nothing to exclusion: 1" in told.err
    assert "1 of 1 verdicts changed: nothing is written" in told.out
    assert not list(tmp_path.glob("all*"))


def test_a_folder_without_histories_is_an_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        archive.main([str(tmp_path / "all.tar.xz"), "--of", str(tmp_path)])
    assert f"there is no history in the folder {tmp_path}" in capsys.readouterr().err


@NEEDS_IT
def test_the_kept_one_has_each_cell_of_the_matrix_once_and_all_of_one_commit() -> None:
    found, commits = [], set()
    for name, files in histories(KEPT):
        meta = json.loads(files["meta.json"])
        assert meta["clean"], name
        lines_of = [each for each in files if each.startswith("w") and each.endswith(".jsonl")]
        assert len(lines_of) >= meta["workers"], name
        found.append((meta["row"], meta["column"]))
        commits.add(meta["commit"])
    results = Results(PUBLISHED / "results-faults.json")
    cells = [(entry.row, entry.column) for entry in results.of(control=False) if not entry.skipped]
    assert sorted(found) == sorted(cells)
    assert len(found) == len(set(found)) > 400
    assert len(commits) == 1


@NEEDS_IT
@pytest.mark.spread(0)
@pytest.mark.parametrize("part", range(PARTS))
def test_the_verdicts_on_the_kept_ones_are_the_same_and_as_expected(
    tmp_path: Path, part: int
) -> None:
    for name, files in itertools.islice(histories(KEPT), part, None, PARTS):
        restore(files, tmp_path / name)
        verdict = check(tmp_path / name)
        says, differs = rejudge.compared(rejudge.kept(tmp_path / name), rejudge.counts(verdict))
        assert not differs, f"{name}: {says}"
        assert Entry.of(verdict, "", []).is_as_expected, name
