"""``redlock run --shared``, and what the other commands show of readers."""

import json
import subprocess
from collections.abc import Callable

import pytest

from redlock_aio.cli import app
from redlock_aio.cli.exits import Exit

from .conftest import Masters, until
from .test_run import LOOP, ended, first_line

Start = Callable[..., subprocess.Popen[str]]


@pytest.fixture(autouse=True)
def environment(masters: Masters, monkeypatch: pytest.MonkeyPatch) -> None:
    """Name the masters in the environment of this process."""
    monkeypatch.setenv("REDLOCK_MASTERS", masters.environment["REDLOCK_MASTERS"])


def reads(redlock: Start, key: str, *options: str) -> subprocess.Popen[str]:
    """Start a command that reads until it is ended."""
    options = (*(options or ("--shared",)), "--wait", "20s")
    process = redlock("run", key, *options, "--", "/bin/sh", "-c", f"echo reads; {LOOP}")
    assert first_line(process) == "reads"
    return process


@pytest.mark.full
def test_commands_that_share_a_lock(
    redlock: Start, masters: Masters, key: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two run at once; one that writes waits for both, and one that reads comes after that one."""
    readers = [reads(redlock, key, "-s"), reads(redlock, key, "--shared", "--fair")]
    state = masters.ask(lambda redlock: redlock.inspect(key))
    assert {reader.holder.metadata["command"] for reader in state.readers} == {"sh"}
    code, out, err = ended(redlock("run", key, "--wait", "0", "--", "/bin/echo", "no"))
    assert (code, out) == (Exit.HELD_BY_OTHERS, "")
    assert err.startswith(f"redlock: {key!r} is held by readers")
    writer = redlock("run", key, "--fair", "--", "/bin/sh", "-c", "echo writes; sleep 0.2")
    until(lambda: masters.ask(lambda redlock: redlock.inspect(key)).waiting_writers == 1)
    assert app.main(["inspect", key]) == Exit.DONE
    assert capsys.readouterr().out.splitlines()[0].endswith(" left, 1 wait")
    later = redlock("run", key, "-s", "--skip-if-locked", "--", "/bin/echo", "no")
    assert ended(later)[:2] == (Exit.DONE, "")
    readers[0].terminate()
    readers[0].wait(60)
    assert writer.poll() is None
    readers[1].terminate()
    assert ended(writer) == (0, "writes\n", "")


@pytest.mark.parametrize("words", [["--fencing"], ["--hold-at-least", "1s"]], ids=" ".join)
def test_what_only_writers_may_have(
    words: list[str], key: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert app.main(["run", key, "--shared", *words, "/bin/echo"]) == Exit.USAGE
    wanted = f"redlock: {words[0]} can't be used with --shared: it is for writers\n"
    assert capsys.readouterr().err == wanted


@pytest.mark.full
def test_readers_are_shown_and_released_by_force(
    redlock: Start, key: str, capsys: pytest.CaptureFixture[str]
) -> None:
    watch = redlock("watch", key, "--json", "--interval", "20ms", "--for", "30s")
    assert watch.stdout is not None
    seen = [json.loads(watch.stdout.readline())]
    readers = [reads(redlock, key) for _ in range(2)]
    while len(seen[-1]["readers"]) < 2:
        seen.append(json.loads(watch.stdout.readline()))
    assert {1, 2} <= {len(each["readers"]) for each in seen if each["shared"]}
    assert {each["holder"] for each in seen} == {None}

    assert app.main(["inspect", key]) == Exit.DONE
    first, *others = capsys.readouterr().out.splitlines()
    assert first.startswith(f"{key!r} is read by 2 on 3 of 3 masters, ")
    assert all(f":{reader.pid} (" in first for reader in readers)
    assert [": read by " in line for line in others] == [True] * 3
    assert app.main(["inspect", key, "--json"]) == Exit.DONE
    state = json.loads(capsys.readouterr().out)
    assert (state["locked"], state["shared"], state["holder"]) == (True, True, None)
    assert (state["waiters"], state["waiting_writers"]) == (0, 0)
    assert [each["holder"]["metadata"] for each in state["readers"]] == [{"command": "sh"}] * 2
    assert all(0 < each["remaining_ms"] <= 30_000 for each in state["readers"])
    assert [(each["shared"], len(each["readers"])) for each in state["masters"]] == [(True, 2)] * 3

    assert app.main(["list", key]) == Exit.DONE
    _, row = capsys.readouterr().out.splitlines()
    assert row.split("\t")[:2] == [key, "2 readers"]
    assert row.split("\t")[3:] == ["0", "3/3"]
    assert app.main(["list", key, "--json"]) == Exit.DONE
    listed = json.loads(capsys.readouterr().out)
    assert (listed["shared"], len(listed["readers"])) == (True, 2)

    assert app.main(["watch", key, "--for", "50ms", "--interval", "10ms"]) == Exit.DONE
    (line,) = capsys.readouterr().out.splitlines()
    assert f"{key!r} is read by 2 on 3 of 3 masters, " in line

    assert app.main(["release", key, "--force"]) == Exit.DONE
    assert capsys.readouterr().out == f"{key!r} is released; it was held by readers\n"
    for reader in readers:
        code, _, err = ended(reader)
        assert code == Exit.LOST
        assert "lost" in err
