"""``redlock run --permits``."""

import json
import subprocess
from collections.abc import Callable

import pytest

from redlock_aio.cli import app
from redlock_aio.cli.exits import Exit
from redlock_aio.cli.run import PERMIT, TOKEN

from .conftest import Masters
from .test_run import LOOP, ended, first_line

Start = Callable[..., subprocess.Popen[str]]

SHOW = f"echo permit ${PERMIT}; "


@pytest.fixture(autouse=True)
def environment(masters: Masters, monkeypatch: pytest.MonkeyPatch) -> None:
    """Name the masters in the environment of this process."""
    monkeypatch.setenv("REDLOCK_MASTERS", masters.environment["REDLOCK_MASTERS"])


@pytest.mark.full
def test_as_many_commands_run_at_once_as_there_are_permits(redlock: Start, key: str) -> None:
    """A third one waits, or skips; one without permits has a lock of its own."""
    running = {}
    for _ in range(2):
        process = redlock("run", key, "--permits", "2", "--", "/bin/sh", "-c", SHOW + LOOP)
        running[first_line(process)] = process
    assert set(running) == {"permit 0", "permit 1"}

    full = redlock("run", key, "--permits", "2", "--wait", "0", "--", "/bin/echo", "no")
    skips = redlock("run", key, "--permits=2", "--skip-if-locked", "--json", "/bin/echo", "no")
    plain = redlock("run", key, "--wait", "0", "--", "/bin/sh", "-c", SHOW)
    code, out, err = ended(full)
    assert (code, out) == (Exit.HELD_BY_OTHERS, "")
    assert err.startswith(f"redlock: {key!r} has no free permit; one is held by ")
    assert " running sh, " in err
    code, out, err = ended(skips)
    assert (code, out) == (Exit.DONE, "")
    facts = json.loads(err)
    assert (facts["error"], facts["exit_code"]) == ("held_by_others", Exit.DONE)
    assert facts["holder"]["metadata"] == {"command": "sh"}
    assert ended(plain) == (0, "permit\n", "")

    # Not before: while it enters the queues, masters may name the holders of different permits.
    script = f"{SHOW} echo token ${TOKEN}"
    later = redlock(
        "run", key, "--permits", "2", "--fencing", "--wait", "1m", "--", "/bin/sh", "-c", script
    )
    with pytest.raises(subprocess.TimeoutExpired):
        later.wait(0.5)

    running["permit 1"].terminate()
    code, out, err = ended(later)
    assert (code, err) == (0, "")
    assert out.splitlines()[0] == "permit 1"
    assert int(out.splitlines()[1].removeprefix("token ")) > 0
    assert running["permit 0"].poll() is None


def test_a_command_ends_when_its_permit_is_lost(redlock: Start, masters: Masters, key: str) -> None:
    process = redlock("run", key, "--permits", "1", "--", "/bin/sh", "-c", SHOW + LOOP)
    assert first_line(process) == "permit 0"
    assert masters.ask(lambda redlock: redlock.semaphore(key, permits=1).force_release(0))
    code, _, err = ended(process)
    assert code == Exit.LOST
    assert "lost" in err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["--permits", "5", "--shared"],
            "--shared can't be used with --permits: a semaphore has no readers",
        ),
        (["--permits", "0"], "permits must be from 1 to 1000, not 0"),
        (["--permits=-1"], "permits must be from 1 to 1000, not -1"),
        (["--permits", "1001"], "permits must be from 1 to 1000, not 1001"),
    ],
    ids=" ".join,
)
def test_permits_that_are_refused(
    words: list[str], message: str, key: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert app.main(["run", key, *words, "/bin/echo"]) == Exit.USAGE
    assert capsys.readouterr().err == f"redlock: {message}\n"


@pytest.mark.parametrize("word", ["five", "2.5", ""])
def test_permits_are_a_number(word: str, key: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert app.main(["run", key, "--permits", word, "/bin/echo"]) == Exit.USAGE
    assert "--permits" in capsys.readouterr().err
