"""Servers end with the process that has started them, however that ends."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from redlock_aio.testing import _processes

from .servers import binary_of

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells a process of its parent"),
]
ROOT = Path(__file__).parents[2]
PATIENCE = 60.0

START = """
import os, signal, threading, time
from redlock_aio.testing import EmbeddedMaster
signal.alarm(120)  # if it hangs
masters = [EmbeddedMaster() for _ in range(2)]
def start(master):
    master.start()
    print(master._process.pid, flush=True)
"""


def wait_until(condition: Callable[[], bool], what: str) -> None:
    ends = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < ends, what
        time.sleep(0.01)


def runs(pid: int) -> bool:
    """Return whether there is such a process, and it is no zombie that its parent has to reap."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.fixture(autouse=True)
def server() -> None:
    binary_of("valkey")


Program = Callable[[str], tuple[subprocess.Popen[str], list[int]]]


@pytest.fixture
def program(tmp_path: Path) -> Iterator[Program]:
    """Return a function that runs a program, and reads the two pids that it writes."""
    started: list[subprocess.Popen[str]] = []
    pids: list[int] = []

    def start(text: str) -> tuple[subprocess.Popen[str], list[int]]:
        process = subprocess.Popen(
            [sys.executable, "-c", START + text],
            cwd=ROOT,
            env=dict(os.environ) | {"TMPDIR": str(tmp_path)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        assert process.stdout is not None
        found = [int(process.stdout.readline()) for _ in range(2)]
        pids.extend(found)
        assert all(map(runs, found))
        return process, found

    yield start
    for process in started:
        process.kill()
        process.communicate()
    for pid in filter(runs, pids):
        os.kill(pid, signal.SIGKILL)


@pytest.mark.spread(0)
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_servers_end_with_a_process_that_is_killed(
    program: Program, number: signal.Signals
) -> None:
    process, pids = program("for master in masters: start(master)\nmasters[0].pause()\ninput()")
    process.send_signal(number)
    process.wait(PATIENCE)
    wait_until(lambda: not any(map(runs, pids)), "the servers have outlived their parent")


def test_servers_outlive_the_thread_that_has_started_them(program: Program) -> None:
    process, pids = program("""
for master in masters:
    thread = threading.Thread(target=start, args=(master,))
    thread.start()
    thread.join()
assert all(master.client().ping() for master in masters)
print("answered", flush=True)
input()
""")
    assert process.stdout is not None
    assert process.stdout.readline() == "answered\n"
    # Their signal would have come when the threads ended, so long before the answers.
    assert all(map(runs, pids))
    process.kill()
    process.wait(PATIENCE)
    wait_until(lambda: not any(map(runs, pids)), "the servers have outlived their parent")


def test_a_forked_child_starts_servers_of_its_own(program: Program) -> None:
    """In it there is no thread that starts processes for other threads."""
    process, pids = program("""
def in_a_thread(master):
    thread = threading.Thread(target=start, args=(master,))
    thread.start()
    thread.join()
in_a_thread(masters[0])
child = os.fork()
if child == 0:
    signal.alarm(120)
    in_a_thread(masters[1])
    time.sleep(600)
input()
os.kill(child, 9)
os.waitpid(child, 0)
print("killed", flush=True)
input()
""")
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write("\n")
    process.stdin.flush()
    assert process.stdout.readline() == "killed\n"
    wait_until(lambda: not runs(pids[1]), "the server of the child has outlived it")
    assert runs(pids[0])


def test_a_forked_child_leaves_the_servers_of_its_parent_alone(program: Program) -> None:
    """It leaves the block in which they were started, as by `sys.exit` or a failed test."""
    process, pids = program("""
import sys
for master in masters: start(master)
def refused(call):
    try:
        call()
    except RuntimeError as error:
        return "was started by another process" in str(error)
if os.fork() == 0:
    with masters[0]:
        calls = masters[0].kill, masters[0].restart, masters[0].pause, masters[0].resume
        done = masters[0].state == "running" and all(map(refused, calls))
        sys.exit(not done)
assert os.waitstatus_to_exitcode(os.wait()[1]) == 0
assert masters[0].state == "running"
masters[0].cut()
assert masters[0]._answers()  # at the socket in its folder
print("answers", flush=True)
input()
""")
    assert process.stdout is not None
    assert process.stdout.readline() == "answers\n"
    assert all(map(runs, pids))


def test_a_server_whose_parent_has_ended_before_it_asks_for_the_signal_does_not_run() -> None:
    """The launcher is started as by a process that is gone: its parent is another one."""
    done = subprocess.run(
        [sys.executable, "-ISc", _processes.LAUNCHER, "1", "/bin/echo", "echo", "runs"],
        check=False,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1
    assert done.stdout == ""
    assert "the parent has ended already" in done.stderr


def test_a_process_gets_the_usual_actions_of_signals_and_its_own_name() -> None:
    command = ["sh", "-c", "grep SigIgn /proc/self/status; tr '\\0' ' ' < /proc/$$/cmdline"]
    with _processes.start(command, stdout=subprocess.PIPE) as process:
        found, _ = process.communicate()
    with subprocess.Popen(command, stdout=subprocess.PIPE) as usual:
        assert found == usual.communicate()[0]


def test_a_program_that_is_missing_is_named() -> None:
    with pytest.raises(FileNotFoundError, match="no-such-server"):
        _processes.start(["no-such-server"])


def test_a_program_that_is_no_interpreter_starts_processes_without_a_launcher(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A program of PyInstaller would start itself instead, perhaps again and again."""
    monkeypatch.setattr(sys, "frozen", True, raising=False)
    monkeypatch.setattr(sys, "executable", "/bin/false")
    assert _processes.start(["sh", "-c", "exit 0"]).wait() == 0
