"""The archive of the histories of a whole run: what comes back of it, and the kept one."""

import io
import itertools
import json
import tarfile
from pathlib import Path
from typing import Any

import pytest
from evidence import archive, export, rejudge
from evidence.archive import histories, lines, packed, restore, tables
from evidence.checker import check
from evidence.results import PUBLISHED, Entry, Results, pack
from hypothesis import given, strategies as st

from .kit import Script

KEPT = PUBLISHED / "matrix-histories.tar.xz"
NEEDS_IT = pytest.mark.skipif(not KEPT.exists(), reason="it is not part of the sdist")
PARTS = 20
"""The short run judges one of them, the full run five; each takes 3 s of processor time."""

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
    """The second holder begins 100 ns before the end of the first one's lease."""
    script.acquire("w0/0", 1, 2, until=10.0005)
    script.acquire("w1/0", 8, 10.0004, until=60)
    folder = script.save()
    assert check(folder).checks["exclusion"].broken
    assert archive.main([str(tmp_path / "all.tar.xz"), "--of", str(folder)]) == 1
    told = capsys.readouterr()
    assert "CHANGED from exclusion: 1 to nothing" in told.err
    assert "1 of 1 verdicts changed: nothing is written" in told.out
    assert not list(tmp_path.glob("all*"))


def tar(path: Path, **members: str) -> Path:
    with tarfile.open(path, "w:xz") as archive:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content.encode()))
    return path


@pytest.mark.parametrize(
    "name", ["x/meta.json", "archive/../meta.json", "archive//meta.json", "/archive/x/meta.json",
             "archive/x/..", "archive/x/y/meta.json", "archive"],
)  # fmt: skip
def test_a_tar_with_other_names_is_no_archive(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    """Neither a packed history, nor one that would write outside of the folder."""
    file = tar(tmp_path / "a.tar.xz", **{"archive/good/meta.json": "{}", name: "{}"})
    with pytest.raises(SystemExit):
        archive.main([str(file), "--into", str(tmp_path / "out")])
    assert f"error: {file} is no archive of histories: " in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == [file]


def test_a_part_of_an_archive_gives_nothing(
    script: Script, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = two_holders(script)
    file, out = tmp_path / "all.tar.xz", tmp_path / "out"
    assert archive.main([str(file), "--of", str(folder)]) == 0
    whole = file.read_bytes()
    for content in (whole[: len(whole) // 2], whole[:30], b"broken", b""):
        file.write_bytes(content)
        with pytest.raises(SystemExit):
            archive.main([str(file), "--into", str(out)])
        assert f"error: {file} is no archive of histories: " in capsys.readouterr().err
        assert not list(tmp_path.glob("out*"))
    tar(file)
    with pytest.raises(SystemExit):
        archive.main([str(file), "--into", str(out)])
    assert "is no archive of histories: it is empty" in capsys.readouterr().err


def test_an_archive_is_no_history(
    script: Script, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "all.tar.xz"
    assert archive.main([str(file), "--of", str(two_holders(script))]) == 0
    for program in (rejudge.main, export.main):
        with pytest.raises(SystemExit):
            program([str(file)])
        assert f"{file} is no packed history; `archive --into` unpacks" in capsys.readouterr().err


def test_what_can_not_be_done_is_said_before_all_else(
    script: Script, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = two_holders(script)
    empty = tmp_path / "empty"
    empty.mkdir()
    pack(folder, folder.name, tmp_path)
    packed_one = str(tmp_path / "histories")
    before = sorted(tmp_path.rglob("*"))
    for arguments, why in [
        (["a", "--of", str(empty)], f"there is no history in the folder {empty}"),
        (["a", "--of", str(folder), packed_one], f"several histories are named {folder.name}"),
        ([str(empty), "--of", str(folder)], f"{empty} is a folder"),
        ([str(empty / "b" / "c"), "--of", str(folder)], "there is no folder for"),
        ([str(empty / "b"), "--into", str(tmp_path / "out")], "No such file or directory"),
        ([str(empty / "b"), "--into", packed_one], f"{packed_one} exists already"),
        ([str(empty / "b"), "--into", "."], ". exists already"),
    ]:
        with pytest.raises(SystemExit):
            archive.main(arguments)
        assert why in capsys.readouterr().err
        assert sorted(tmp_path.rglob("*")) == before


def test_a_history_is_named_by_its_folder(
    script: Script, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = two_holders(script)
    (folder / "job.json").write_text("{}")
    monkeypatch.chdir(folder)
    file = tmp_path / "all.tar.xz"
    assert archive.main([str(file), "--of", "."]) == 0
    ((name, files),) = histories(file)
    assert name == folder.name
    assert set(files) == {path.name for path in folder.iterdir()} - {"job.json"}


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
@pytest.mark.seeds(1, full=5)
def test_the_verdicts_on_the_kept_ones_are_the_same_and_as_expected(
    tmp_path: Path, seed: int
) -> None:
    """A quarter of them; after a change of the checker `rejudge` judges all."""
    for name, files in itertools.islice(histories(KEPT), seed, None, PARTS):
        restore(files, tmp_path / name)
        verdict = check(tmp_path / name)
        says, differs = rejudge.compared(rejudge.kept(tmp_path / name), rejudge.counts(verdict))
        assert not differs, f"{name}: {says}"
        assert Entry.of(verdict, "", []).is_as_expected, name
