"""``redlock run``: exit codes, signals, losses, and what is left behind."""

import asyncio
import contextlib
import json
import os
import random
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from redlock_aio import Answer, LockNotAcquiredError, Vote
from redlock_aio.cli import app, run
from redlock_aio.cli.exits import Exit, Failure
from redlock_aio.cli.run import TOKEN

from .conftest import Masters, fill, processes_of, state, until

Start = Callable[..., subprocess.Popen[str]]

GROUP = "echo $$; "
"""The begin of a shell script that writes its process id, which is that of its group, too."""

LOOP = "while :; do sleep 0.05; done"


def ended(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    """Return the exit code, stdout and stderr of a process."""
    out, err = process.communicate(timeout=120)
    return process.returncode, out, err


def first_line(process: subprocess.Popen[str]) -> str:
    """Return the first line that a process writes."""
    assert process.stdout is not None
    return process.stdout.readline().strip()


def test_the_exit_code_and_the_streams_are_those_of_the_command(redlock: Start, key: str) -> None:
    script = "read line; echo $line; echo said >&2; exit 7"
    process = redlock("run", key, "--", "/bin/sh", "-c", script, stdin=subprocess.PIPE)
    out, err = process.communicate("hello\nworld\n", timeout=120)
    assert (process.returncode, out, err) == (7, "hello\n", "said\n")


def test_a_command_that_a_signal_has_ended(redlock: Start, key: str) -> None:
    assert ended(redlock("run", key, "--", "/bin/sh", "-c", "kill -9 $$")) == (137, "", "")


@pytest.mark.usefixtures("masters")
def test_a_command_that_does_not_exist_waits_for_no_lock(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "data"
    file.write_text("no program")
    never = ["-m", "redis://127.0.0.1:1", "k", "--"]  # would wait for ever
    assert app.main(["run", *never, "no-such-command"]) == Exit.NOT_FOUND
    assert capsys.readouterr().err == "redlock: there is no command 'no-such-command'\n"
    assert app.main(["run", *never, str(file)]) == Exit.CANNOT_RUN
    assert "can't be executed" in capsys.readouterr().err
    assert app.main(["run", "--json", *never, "no-such-command"]) == Exit.NOT_FOUND
    facts = json.loads(capsys.readouterr().err)
    assert (facts["error"], facts["exit_code"]) == ("not_found", 127)


@pytest.mark.full
def test_the_name_of_a_command_may_be_no_text(redlock: Start, key: str, tmp_path: Path) -> None:
    program = tmp_path / os.fsdecode(b"job\xff")
    program.write_text("#!/bin/sh\nexit 4\n")
    program.chmod(0o755)
    assert ended(redlock("run", key, "--", str(program))) == (4, "", "")


def test_options_that_contradict_each_other(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["run", "k", "-m", "redis://a", "--skip-if-locked", "--wait", "1s", "--", "true"]
    assert app.main(arguments) == Exit.USAGE
    assert capsys.readouterr().err == "redlock: --wait must be 0 with --skip-if-locked, not 1 s\n"


def test_a_lock_that_others_hold(redlock: Start, masters: Masters, key: str) -> None:
    holder = redlock("run", key, "--", "/bin/sh", "-c", f"echo ready; {LOOP}")
    assert first_line(holder) == "ready"
    assert masters.is_locked(key)
    code, out, err = ended(redlock("run", key, "--wait", "0", "--", "/bin/echo", "no"))
    assert (code, out) == (Exit.HELD_BY_OTHERS, "")
    assert err.startswith(f"redlock: {key!r} is held by ")
    assert f":{holder.pid} (" in err
    assert "running sh, " in err
    code, out, err = ended(
        redlock("run", key, "--json", "--wait", "100ms", "--", "/bin/echo", "no")
    )
    assert (code, out) == (Exit.HELD_BY_OTHERS, "")
    facts = json.loads(err)
    assert facts["error"] == "held_by_others"
    assert facts["holder"]["metadata"] == {"command": "sh"}
    code, out, err = ended(redlock("run", key, "--skip-if-locked", "--", "/bin/echo", "no"))
    assert (code, out) == (Exit.DONE, "")
    assert err.endswith(": skipped\n")
    code, _, err = ended(redlock("run", key, "--json", "--skip-if-locked", "--", "/bin/echo", "no"))
    assert code == Exit.DONE
    facts = json.loads(err)
    assert (facts["error"], facts["exit_code"]) == ("held_by_others", 0)
    assert facts["holder"]["metadata"] == {"command": "sh"}


class Split:
    """A lock for which several hosts ask at the same moment, so that nobody gets it."""

    def __init__(self, times: int) -> None:
        self.times = times

    async def acquire(self) -> str:
        """Return a lease after some attempts that failed."""
        self.times -= 1
        if self.times >= 0:
            votes = [Vote(name, Answer.HELD) for name in "abc"]
            raise LockNotAcquiredError(["k"], attempts=1, elapsed=1, votes=votes)
        return "a lease"


def test_hosts_that_split_the_votes_do_not_all_skip(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(random, "uniform", lambda *_: 0)
    for times in (0, 1, 9):
        lock: Any = Split(times)
        lease: object = asyncio.run(run.acquired(lock, "k", run.MOST_SPLITS))
        assert lease == "a lease"
    for times, attempts in ((1, 1), (10, run.MOST_SPLITS)):
        lock = Split(times)
        with pytest.raises(Failure) as caught:
            asyncio.run(run.acquired(lock, "k", attempts))
        assert caught.value.code == Exit.HELD_BY_OTHERS
        assert lock.times == 0


@pytest.mark.parametrize(
    "number",
    [
        signal.SIGTERM,
        signal.SIGINT,
        pytest.param(signal.SIGHUP, marks=pytest.mark.full),
        pytest.param(signal.SIGQUIT, marks=pytest.mark.full),
    ],
)
def test_a_signal_is_forwarded_and_the_lock_released(
    redlock: Start, masters: Masters, key: str, number: int
) -> None:
    name = signal.Signals(number).name.removeprefix("SIG")
    script = f"trap 'echo got; exit 5' {name}; echo ready; {LOOP}"
    process = redlock("run", key, "--", "/bin/sh", "-c", script)
    assert first_line(process) == "ready"
    process.send_signal(number)
    code, out, err = ended(process)
    assert (code, out) == (5, "got\n")
    assert "redlock" not in err  # the shell may name the signal
    assert not masters.is_locked(key)


# A script around it goes on after an interrupt, unless `redlock` dies of that.
@pytest.mark.parametrize(
    ("number", "code"),
    [(signal.SIGTERM, 128 + signal.SIGTERM), (signal.SIGINT, -signal.SIGINT)],
)
def test_a_signal_while_it_waits_for_the_lock(
    redlock: Start, masters: Masters, key: str, number: int, code: int
) -> None:
    holder = redlock("run", key, "--", "/bin/sh", "-c", f"echo ready; {LOOP}")
    assert first_line(holder) == "ready"
    waiter = redlock("run", key, "--fair", "--", "/bin/echo", "no")
    until(lambda: masters.ask(lambda redlock: redlock.inspect(key)).waiters > 0)
    waiter.send_signal(number)
    assert ended(waiter) == (code, "", "")


@pytest.mark.full
def test_a_stop_from_outside_stops_both(redlock: Start, key: str) -> None:
    # A shell in a loop could wait for the `exec` of a stopped child, and would not stop itself.
    script = f"{GROUP}exec sleep 600"
    process = redlock("run", key, "--", "/bin/sh", "-c", script, process_group=0)
    group = int(first_line(process))
    process.send_signal(signal.SIGTSTP)
    until(lambda: state(process.pid) == state(group) == "T")
    process.send_signal(signal.SIGCONT)
    until(lambda: state(group) != "T")
    process.terminate()
    assert process.wait(60) == 128 + signal.SIGTERM


@pytest.mark.full
def test_where_nobody_could_continue_it_a_stop_is_ignored(redlock: Start, key: str) -> None:
    script = "import time\nwhile True: print('works'); time.sleep(0.05)"
    command = (sys.executable, "-u", "-c", script)
    process = redlock("run", key, "--", *command, start_new_session=True)
    first_line(process)
    process.send_signal(signal.SIGTSTP)
    assert process.stderr is not None
    assert process.stderr.readline().startswith("redlock: stopped; ")
    for _ in range(50):
        assert first_line(process) == "works"
    process.terminate()
    assert process.wait(60) == 128 + signal.SIGTERM


@pytest.mark.full
def test_a_signal_that_is_ignored_stays_ignored(redlock: Start, key: str) -> None:
    def ignore() -> None:
        signal.signal(signal.SIGHUP, signal.SIG_IGN)

    script = "echo ready; read line; exit 3"
    process = redlock(
        "run", key, "--", "/bin/sh", "-c", script, preexec_fn=ignore, stdin=subprocess.PIPE
    )
    assert first_line(process) == "ready"
    process.send_signal(signal.SIGHUP)
    process.communicate("\n", timeout=120)
    assert process.returncode == 3


@pytest.mark.full
def test_a_user_signal_goes_to_the_command_alone(redlock: Start, key: str) -> None:
    # A group that got it would end: the background process does not expect it.
    script = f"trap 'kill $! && exit 6' USR1; sleep 600 >/dev/null 2>&1 & echo ready; {LOOP}"
    process = redlock("run", key, "--", "/bin/sh", "-c", script)
    assert first_line(process) == "ready"
    process.send_signal(signal.SIGUSR1)
    process.wait(120)
    assert process.returncode == 6


STUBBORN = "trap '' TERM; "


def test_after_a_loss_the_whole_group_is_ended(redlock: Start, masters: Masters, key: str) -> None:
    script = f"{STUBBORN}({LOOP}) & {GROUP}{LOOP}"
    process = redlock("run", key, "--grace", "300ms", "--", "/bin/sh", "-c", script)
    group = int(first_line(process))
    assert len(processes_of(group)) >= 2
    assert masters.ask(lambda redlock: redlock.force_release(key))
    code, _, err = ended(process)
    assert code == Exit.LOST
    assert "the lock was lost: it was released by force; the command has ended with 137" in err
    assert processes_of(group) == []


@pytest.mark.full
def test_after_a_loss_a_command_may_clean_up(redlock: Start, masters: Masters, key: str) -> None:
    script = f"trap 'echo cleaned up; exit 0' TERM; echo ready; {LOOP}"
    process = redlock("run", key, "--json", "--", "/bin/sh", "-c", script)
    assert first_line(process) == "ready"
    assert masters.ask(lambda redlock: redlock.force_release(key))
    code, out, err = ended(process)
    assert (code, out) == (Exit.LOST, "cleaned up\n")
    facts = json.loads(err.splitlines()[-1])
    assert (facts["error"], facts["exit_code"], facts["command_exit_code"]) == ("lost", 79, 0)
    assert facts["cause"] == "forced"
    assert isinstance(facts["masters"], list)


@pytest.mark.full
def test_messages_that_nobody_reads_do_not_keep_the_command_alive(
    redlock: Start, masters: Masters, key: str
) -> None:
    reader, writer = os.pipe()
    fill(writer)
    process = redlock("run", key, "--", "/bin/sh", "-c", f"{GROUP}{LOOP}", stderr=writer)
    os.close(writer)
    group = int(first_line(process))
    assert masters.ask(lambda redlock: redlock.force_release(key))
    until(lambda: processes_of(group) == [])
    os.close(reader)
    assert process.wait(60) == Exit.LOST


@pytest.mark.full
def test_the_end_is_seen_if_sigchld_was_blocked(redlock: Start, key: str) -> None:
    def block() -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGCHLD])

    # Longer than the start: an end before the first look at the command is seen in any case.
    script = "sleep 0.5; echo done"
    process = redlock("run", key, "--", "/bin/sh", "-c", script, preexec_fn=block)
    assert ended(process) == (0, "done\n", "")


@pytest.mark.full
def test_a_command_that_is_stopped_is_ended_after_a_loss(
    redlock: Start, masters: Masters, key: str
) -> None:
    process = redlock("run", key, "--", "/bin/sh", "-c", f"{GROUP}{LOOP}")
    group = int(first_line(process))
    os.killpg(group, signal.SIGSTOP)
    assert masters.ask(lambda redlock: redlock.force_release(key))
    assert ended(process)[0] == Exit.LOST
    assert processes_of(group) == []


@pytest.mark.parametrize(
    "words",
    [
        ["/bin/echo", "-h", "db1", "shop"],
        ["/bin/echo", "--help"],
        ["/bin/echo", "--name", "foo"],
        ["/bin/echo", "--fencing", "a", "--wait", "5s", "b"],
        ["/bin/echo", "hi", "--ttl", "5s"],
        ["/bin/echo", "--json", "PATH"],
        ["/bin/echo", "-m", "redis://127.0.0.1:7101"],
        ["/bin/echo", "a", "--", "-x"],
        ["/bin/echo", "--", "a"],
    ],
    ids=" ".join,
)
@pytest.mark.parametrize("dashes", [False, pytest.param(True, marks=pytest.mark.full)])
def test_the_options_of_the_command_are_its_own(
    redlock: Start, key: str, words: list[str], dashes: bool
) -> None:
    before = ["--"] if dashes else []
    done = ended(redlock("run", "--wait=9s", key, "--ttl", "5s", *before, *words))
    alone = subprocess.run(words, capture_output=True, text=True, check=True)
    assert done == (0, alone.stdout, "")


@pytest.mark.parametrize(
    ("words", "own"),
    [
        (["k", "cmd", "--ttl", "5s"], 1),
        (["--ttl", "5s", "k", "cmd"], 3),
        (["k", "--ttl", "5s", "cmd", "-h"], 3),
        (["--ttl=5s", "k", "--fair", "cmd", "-h"], 3),
        (["-mredis://a", "k", "-m", "b", "cmd"], 4),
        (["-m", "--", "k", "--name", "--", "cmd", "--"], 5),
        (["k", "--", "cmd", "-h"], 1),
        (["--", "k", "cmd"], 0),
        (["k", "-", "x"], 1),
        (["k", "--no-such", "cmd"], 2),
        (["k"], 1),
        (["k", "--ttl"], 2),
        ([], 0),
    ],
)
def test_where_the_options_of_redlock_end(words: list[str], own: int) -> None:
    program: Any = get_command(app.app)
    assert program.commands["run"].count_own(words) == own


def test_help_is_shown_before_the_command_only(capsys: pytest.CaptureFixture[str]) -> None:
    for words in (["--help"], ["k", "-h"], ["-h", "k", "true"], ["k", "-h", "true"]):
        assert app.main(["run", *words]) == 0
        assert "Usage: redlock run" in capsys.readouterr().out
    # Neither is JSON asked for by an option of the command.
    assert app.main(["run", "-m", "redis://a", "k", "no-such-command", "--json"]) == Exit.NOT_FOUND
    assert capsys.readouterr().err == "redlock: there is no command 'no-such-command'\n"


def test_a_sigkill_of_redlock_ends_the_command(redlock: Start, key: str) -> None:
    process = redlock(
        "run", key, "--grace", "1s", "--", "/bin/sh", "-c", f"{STUBBORN}{GROUP}{LOOP}"
    )
    group = int(first_line(process))
    process.kill()
    until(lambda: processes_of(group) == [])


@pytest.mark.full
def test_the_guardian_ends_with_the_command(redlock: Start, key: str) -> None:
    process = redlock(
        "run", key, "--", "/bin/sh", "-c", "echo ready; read line", stdin=subprocess.PIPE
    )
    assert first_line(process) == "ready"
    guardians = children_of(process.pid, "redlock-guardian")
    assert len(guardians) == 1
    process.communicate("\n", timeout=120)
    assert not Path(f"/proc/{guardians[0]}").exists()


def children_of(parent: int, word: str) -> list[int]:
    """Return the children of a process that have *word* in their command line."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            its_parent = int(path.read_text().rpartition(") ")[2].split()[1])
            if its_parent == parent and word in path.with_name("cmdline").read_text():
                found.append(int(path.parent.name))
    return found


@pytest.mark.full
def test_fencing_tokens_rise(redlock: Start, key: str) -> None:
    words = ("run", key, "--fencing", "--", "/bin/sh", "-c", f"echo ${TOKEN}")
    first, second = ended(redlock(*words)), ended(redlock(*words))
    assert first[0] == second[0] == 0
    assert 0 < int(first[1]) < int(second[1])


@pytest.mark.full
def test_the_lock_is_held_at_least_so_long(redlock: Start, masters: Masters, key: str) -> None:
    words = ("run", key, "--hold-at-least", "20s", "--skip-if-locked", "--", "/bin/echo", "done")
    assert ended(redlock(*words)) == (0, "done\n", "")
    assert masters.is_locked(key)
    assert ended(redlock(*words))[:2] == (0, "")


@pytest.mark.full
def test_files_that_are_inherited_stay_open(redlock: Start, key: str, tmp_path: Path) -> None:
    with (tmp_path / "file").open("w") as file:
        number = os.dup(file.fileno())
        process = redlock(
            "run", key, "--", "/bin/sh", "-c", f"echo hello >/dev/fd/{number}", pass_fds=[number]
        )
        assert ended(process) == (0, "", "")
        os.close(number)
    assert (tmp_path / "file").read_text() == "hello\n"


@pytest.mark.full
def test_a_process_of_the_command_may_stay(redlock: Start, key: str, masters: Masters) -> None:
    # As with any wrapper, what the command leaves behind goes on, now without the lock.
    script = f"{GROUP}sleep 600 >/dev/null 2>&1 & exit 0"
    process = redlock("run", key, "--", "/bin/sh", "-c", script)
    group = int(first_line(process))
    assert ended(process)[0] == 0
    assert not masters.is_locked(key)
    assert processes_of(group)
    os.killpg(group, signal.SIGKILL)


class Session:
    """An interactive shell with job control, on a terminal of its own."""

    def __init__(self, environment: dict[str, str]) -> None:
        self._shown = ""
        import pty

        self.pid, self._terminal = pty.fork()
        if self.pid == 0:
            for number in (signal.SIGINT, signal.SIGQUIT):
                signal.signal(number, signal.SIG_DFL)
            os.execvpe(
                "bash", ["bash", "--norc", "--noprofile", "-i"], {**environment, "PS1": "@ "}
            )

    def type(self, text: str) -> None:
        """Press keys."""
        os.write(self._terminal, text.encode())

    def shows(self, text: str) -> None:
        """Wait until the terminal shows *text*, and forget what it has shown up to there."""
        import select

        def found() -> bool:
            if select.select([self._terminal], [], [], 0)[0]:
                self._shown += os.read(self._terminal, 4096).decode(errors="replace")
            return text in self._shown

        try:
            until(found)
        except AssertionError:
            raise AssertionError(f"{text!r} is not in {self._shown!r}") from None
        self._shown = self._shown.partition(text)[2]

    def close(self) -> None:
        """End the shell, and all processes that it has started."""
        for pid in processes_of(self.pid, kind="session"):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        os.close(self._terminal)


@pytest.fixture
def session(masters: Masters) -> Iterator[Session]:
    """Return an interactive shell that knows ``redlock``."""
    if shutil.which("bash") is None:
        pytest.skip("no bash")
    shell = Session({**masters.environment, "PYTHONPATH": str(Path(__file__).parents[2])})
    shell.type(f"redlock() {{ {sys.executable} -m redlock_aio \"$@\"; }}; echo be''gin\n")
    shell.shows("begin\r\n")
    yield shell
    shell.close()


def test_a_command_reads_from_the_terminal(session: Session, key: str) -> None:
    session.type(f"redlock run {key} -- sh -c 'echo re''ady; read x; echo got $x'\n")
    session.shows("ready\r\n")
    session.type("keys\n")
    session.shows("got keys\r\n")
    session.type("echo code $?\n")
    session.shows("code 0\r\n")


def test_an_interrupt_from_the_keyboard(session: Session, masters: Masters, key: str) -> None:
    # Not a shell: an interrupt at the moment in which it starts a program may be lost.
    session.type(f"redlock run {key} -- cat\n")
    until(lambda: masters.is_locked(key))
    session.type("hello\n")
    session.shows("hello\r\nhello\r\n")
    session.type("\x03")
    session.type("\necho code $?\n")
    session.shows("code 130\r\n")
    assert not masters.is_locked(key)


@pytest.mark.full
def test_an_interrupt_ends_a_script_around_it(session: Session, masters: Masters, key: str) -> None:
    session.type(f"(while :; do redlock run {key} -- cat; done)\n")
    until(lambda: masters.is_locked(key))
    session.type("hello\n")
    session.shows("hello\r\nhello\r\n")
    session.type("\x03")
    session.type("\necho en''ded\n")
    session.shows("ended\r\n")


def test_stop_and_continue(session: Session, masters: Masters, key: str) -> None:
    session.type(f"redlock run {key} -- sh -c 'echo re''ady; read x; echo got $x'\n")
    session.shows("ready\r\n")
    session.type("\x1a")
    session.shows("stopped; the lock is lost if that takes longer than ")
    session.shows("Stopped")
    assert masters.is_locked(key)
    session.type("fg\n")
    session.shows("redlock")
    session.type("keys\n")
    session.shows("got keys\r\n")


@pytest.mark.full
def test_a_command_that_was_stopped_for_too_long_does_not_go_on(
    session: Session, masters: Masters, key: str
) -> None:
    script = "echo re''ady; read x; echo went on"
    session.type(f"redlock run {key} --ttl 1s -- sh -c '{script}'\n")
    session.shows("ready\r\n")
    session.type("\x1a")
    session.shows("Stopped")
    until(lambda: not masters.is_locked(key))
    session.type("fg\n")
    session.shows("the lock was lost: ")
    session.type("\necho code $?\n")
    session.shows("code 79\r\n")


@pytest.mark.full
def test_a_pipeline_keeps_the_terminal(session: Session, key: str) -> None:
    reader = "sh -c 'cat; read x </dev/tty; echo got $x'"
    session.type(f"redlock run {key} -- sh -c 'echo re''ady' | {reader}\n")
    session.shows("ready\r\n")
    session.type("keys\n")
    session.shows("got keys\r\n")


@pytest.mark.full
def test_a_command_in_a_pipeline_gets_the_terminal_when_it_reads(
    session: Session, masters: Masters, key: str
) -> None:
    session.type(f"redlock run {key} -- sh -c 'read x; echo got $x' | cat\n")
    until(lambda: masters.is_locked(key))
    session.type("keys\n")
    session.shows("got keys\r\n")


@pytest.mark.full
def test_a_terminal_that_stops_writers_in_the_background(
    session: Session, masters: Masters, key: str
) -> None:
    session.type("stty tostop\n")
    session.type(f"redlock run {key} -- cat\n")
    until(lambda: masters.is_locked(key))
    session.type("hello\n")
    session.shows("hello\r\nhello\r\n")
    assert masters.ask(lambda redlock: redlock.force_release(key))
    session.shows("the lock is lost; ")
    session.shows("the lock was lost: ")
    session.type("\necho code $?\n")
    session.shows("code 79\r\n")


@pytest.mark.full
def test_a_command_that_can_not_begin_leaves_the_terminal_to_the_script(
    session: Session, key: str, tmp_path: Path
) -> None:
    program = tmp_path / "data"
    program.write_text("no program")
    program.chmod(0o755)
    session.type(f"(redlock run {key} -- {shlex.quote(str(program))}; read x; echo got $x)\n")
    session.shows("can't be executed: ")
    session.type("keys\n")
    session.shows("got keys\r\n")
