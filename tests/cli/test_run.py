"""``redlock run``: exit codes, signals, losses, and what is left behind."""

import asyncio
import contextlib
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from redlock_aio import Answer, Holder, Lease, LockNotAcquiredError, Retry, Vote
from redlock_aio.cli import app, run, supervision
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
    # As it is in a folder that this user may not enter; tests may run as root, who may.
    assert app.main(["run", *never, "/" + "a" * 300]) == Exit.CANNOT_RUN
    assert capsys.readouterr().err.endswith("can't be executed: File name too long\n")
    assert app.main(["run", "--json", *never, "no-such-command"]) == Exit.NOT_FOUND
    facts = json.loads(capsys.readouterr().err)
    assert (facts["error"], facts["exit_code"]) == ("not_found", 127)


@pytest.mark.full
def test_the_name_of_a_command_may_be_no_text(redlock: Start, key: str, tmp_path: Path) -> None:
    program = tmp_path / os.fsdecode(b"job\xff")
    program.write_text("#!/bin/sh\nexit 4\n")
    program.chmod(0o755)
    assert ended(redlock("run", key, "--", str(program))) == (4, "", "")


def test_a_script_is_run_as_by_a_shell(redlock: Start, key: str, tmp_path: Path) -> None:
    script = tmp_path / "script"
    script.write_text("echo $1; exit 4\n")
    script.chmod(0o755)
    assert ended(redlock("run", key, str(script), "hello")) == (4, "hello\n", "")
    script.write_text("#!/bin/sh\r\n")  # as some editors end a line
    code, _, err = ended(redlock("run", key, str(script)))
    assert (code, err) == (
        Exit.CANNOT_RUN,
        f"redlock: {str(script)!r} can't be executed: its interpreter does not exist\n",
    )


@pytest.mark.full
@pytest.mark.parametrize("locale", [{}, {"LC_CTYPE": "C"}, {"LC_CTYPE": "C.UTF-8"}])
def test_python_adds_no_locale_to_the_environment(
    redlock: Start, masters: Masters, key: str, locale: dict[str, str]
) -> None:
    given = {n: v for n, v in masters.environment.items() if n != "LANG" and n[:3] != "LC_"}
    environment = given | locale
    code, out, _ = ended(redlock("run", key, "--", "/usr/bin/env", "-0", env=environment))
    assert code == 0
    assert dict(entry.split("=", 1) for entry in out.split("\0")[:-1]) == environment


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

    retry = Retry(min_delay=1, max_delay=1)

    def __init__(self, times: int) -> None:
        self.times = times

    async def acquire(self) -> str:
        """Return a lease after some attempts that failed."""
        self.times -= 1
        if self.times >= 0:
            votes = [Vote(name, Answer.HELD) for name in "abc"]
            raise LockNotAcquiredError(["k"], attempts=1, elapsed=1, votes=votes)
        return "a lease"


class HeldByOthers:
    """A lock that a known holder has."""

    retry = Retry(min_delay=1, max_delay=1)
    attempts = 0

    async def acquire(self) -> str:
        """Fail, and count that."""
        self.attempts += 1
        votes = [Vote(name, Answer.HELD) for name in "abc"]
        raise LockNotAcquiredError(
            ["k"], attempts=1, elapsed=1, votes=votes, holder=Holder("1a2b", "host:1")
        )


@pytest.mark.parametrize("skip", [False, True])
def test_a_lock_with_a_holder_is_not_tried_again(skip: bool) -> None:
    lock: Any = HeldByOthers()
    with pytest.raises(Failure) as caught:
        asyncio.run(run.acquired(lock, "k", skip_if_locked=skip))
    assert caught.value.code == Exit.HELD_BY_OTHERS
    assert lock.attempts == 1


def test_hosts_that_split_the_votes_do_not_all_skip() -> None:
    for times in (0, 1, 9):
        lock: Any = Split(times)
        lease: object = asyncio.run(run.acquired(lock, "k", skip_if_locked=True))
        assert lease == "a lease"
    for times, skip in ((1, False), (10, True)):
        lock = Split(times)
        with pytest.raises(Failure) as caught:
            asyncio.run(run.acquired(lock, "k", skip_if_locked=skip))
        assert caught.value.code == Exit.HELD_BY_OTHERS
        assert lock.times == 0


@pytest.mark.spread(0)
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
@pytest.mark.spread(0)
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
def test_a_process_that_ignores_a_stop_is_stopped_before_the_lock_is_free(
    redlock: Start, key: str
) -> None:
    script = "trap '' TSTP; sleep 600 & trap - TSTP; echo $!; kill -TSTP $$; wait"
    words = ("run", key, "--ttl", "2s", "--", "/bin/sh", "-c", script)
    process = redlock(*words, process_group=0)
    worker = int(first_line(process))
    until(lambda: state(process.pid) == "T")
    until(lambda: state(worker) == "T")  # by the guardian
    process.send_signal(signal.SIGCONT)
    assert process.wait(60) == Exit.LOST
    until(lambda: not Path(f"/proc/{worker}").exists() or state(worker) == "Z")


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
@pytest.mark.parametrize("number", [signal.SIGUSR1, signal.SIGWINCH])
def test_a_user_signal_goes_to_the_command_alone(
    redlock: Start, key: str, number: signal.Signals
) -> None:
    # A group that got SIGUSR1 would end: the background process does not expect it.
    script = f"trap 'kill $! && exit 6' {number.name[3:]}; sleep 600 >/dev/null 2>&1 & "
    script += f"echo ready; {LOOP}"
    process = redlock("run", key, "--", "/bin/sh", "-c", script)
    assert first_line(process) == "ready"
    process.send_signal(number)
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


def test_after_a_loss_none_of_the_group_goes_on_after_its_leader(
    redlock: Start, masters: Masters, key: str
) -> None:
    script = f"(trap '' TERM; echo $$; {LOOP}) & wait"
    words = ("--leader-only", "--grace", "300ms", "--", "/bin/sh", "-c", script)
    process = redlock("run", key, *words)
    group = int(first_line(process))
    assert masters.ask(lambda redlock: redlock.force_release(key))
    assert process.wait(60) == Exit.LOST
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
    assert process.wait(60) == Exit.LOST  # nor `redlock`: still nobody has read
    os.close(reader)


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


def test_a_command_that_is_stopped_sees_sigterm_after_a_loss(
    redlock: Start, masters: Masters, key: str
) -> None:
    # Not a loop: a shell could wait for the `exec` of a stopped child, and would not stop.
    script = f"trap 'echo cleaned up; exit 0' TERM; {GROUP}read line"
    words = ("--grace", "15s", "--", "/bin/sh", "-c", script)
    process = redlock("run", key, *words, stdin=subprocess.PIPE)
    group = int(first_line(process))
    os.killpg(group, signal.SIGSTOP)
    until(lambda: state(group) == "T")
    assert masters.ask(lambda redlock: redlock.force_release(key))
    code, out, _ = ended(process)
    assert (code, out) == (Exit.LOST, "cleaned up\n")


WORKER = """
import signal, sys, time
log = sys.argv[1]

def work(*_):
    with open(log, "a") as file:
        file.write("got SIGTERM\\n")
    time.sleep(1.5)
    with open(log, "a") as file:
        file.write("done\\n")
    raise SystemExit

signal.signal(signal.SIGTERM, work)
print("ready", flush=True)
while True:
    time.sleep(0.05)
"""


def test_a_sigterm_keeps_the_lock_until_the_group_is_empty(
    redlock: Start, key: str, tmp_path: Path
) -> None:
    # A shell that runs a pipeline ends at once of SIGTERM; its worker does not.
    log, worker = tmp_path / "log", tmp_path / "worker.py"
    worker.write_text(WORKER)
    pipeline = shlex.join([sys.executable, str(worker), str(log)]) + " | cat"
    first = redlock("run", key, "--", "/bin/sh", "-c", pipeline)
    assert first_line(first) == "ready"
    second = redlock("run", key, "--", "/bin/sh", "-c", f"echo next >>{shlex.quote(str(log))}")
    first.terminate()
    assert first.wait(60) == 128 + signal.SIGTERM
    assert second.wait(60) == 0
    assert log.read_text() == "got SIGTERM\ndone\nnext\n"


ZOMBIE = """
import os, time
group = os.getpgrp()
reader, writer = os.pipe()
if os.fork() == 0:
    os.setpgid(0, 0)  # outside of the group, with a child inside that it never reaps
    child = os.fork()
    if child == 0:
        os.setpgid(0, group)
        os._exit(0)
    os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)
    print(os.getpid(), flush=True)
    os.write(writer, b"!")
    for file in (0, 1, 2):
        os.close(file)
    time.sleep(600)
os.read(reader, 1)
"""


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="no /proc")
def test_zombies_do_not_keep_the_lock(redlock: Start, masters: Masters, key: str) -> None:
    process = redlock("run", key, "--", sys.executable, "-c", ZOMBIE)
    parent = int(first_line(process))
    try:
        assert process.wait(60) == 0
        assert not masters.is_locked(key)
        group = [int(path.name) for path in Path("/proc").glob("[0-9]*") if is_child(path, parent)]
        assert len(group) == 1
        assert state(group[0]) == "Z"
    finally:
        os.kill(parent, signal.SIGKILL)


def is_child(path: Path, parent: int) -> bool:
    """Return whether the process with this folder in ``/proc`` is a child of *parent*."""
    with contextlib.suppress(OSError):
        return (path / "stat").read_text().rpartition(") ")[2].split()[1] == str(parent)
    return False


def test_what_a_command_leaves_behind_keeps_the_lock(
    redlock: Start, masters: Masters, key: str
) -> None:
    script = f"{GROUP}sleep 600 >/dev/null 2>&1 & exit 4"
    process = redlock("run", key, "--", "/bin/sh", "-c", script)
    group = int(first_line(process))
    assert process.stderr is not None
    wanted = f"has ended with 4; the other processes of group {group} keep the lock"
    assert wanted in process.stderr.readline()
    assert masters.is_locked(key)
    process.terminate()
    assert process.wait(60) == 4
    assert processes_of(group) == []
    assert not masters.is_locked(key)


def test_a_command_is_gone_before_others_get_a_lock_that_masters_do_not_extend(
    redlock: Start, masters: Masters, key: str, tmp_path: Path
) -> None:
    log, worker = tmp_path / "log", tmp_path / "worker.py"
    worker.write_text(WORKER)  # needs longer than the grace, which is half a second
    command = (sys.executable, str(worker), str(log))
    first = redlock("run", key, "--ttl", "2s", "--", *command)
    assert first_line(first) == "ready"
    second = redlock("run", key, "--", "/bin/sh", "-c", "echo it")
    for server in masters.servers[:2]:
        server.pause()
    try:
        assert first.wait(60) == Exit.LOST
        assert second.poll() is None
    finally:
        for server in masters.servers[:2]:
            server.resume()
    assert ended(second)[:2] == (0, "it\n")
    assert log.read_text() == "got SIGTERM\n"
    assert first.stderr is not None
    shown = first.stderr.read()
    assert "the lock was not extended in time; ending " in shown
    assert "the command has ended with 137" in shown


def test_a_redlock_that_is_stopped_does_not_let_two_commands_run(
    redlock: Start, key: str, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    # What outlives SIGTERM, too, is gone before the next holder begins.
    first = redlock("run", key, "--ttl", "2s", "--", "/bin/sh", "-c", f"{STUBBORN}{GROUP}{LOOP}")
    group = int(first_line(first))
    first.send_signal(signal.SIGSTOP)
    second = redlock("run", key, "--", "/bin/sh", "-c", f"ps -o stat= -g {group} >{log}; echo it")
    assert ended(second)[:2] == (0, "it\n")
    assert {line.strip()[0] for line in log.read_text().splitlines()} <= {"Z"}
    assert processes_of(group) == []
    first.send_signal(signal.SIGCONT)
    code, _, err = ended(first)
    assert code == Exit.LOST
    assert "redlock did not run in time; the guardian has sent SIGTERM to" in err


@pytest.mark.full
def test_a_stop_of_redlock_after_which_the_lock_is_held_is_a_loss_as_well(
    redlock: Start, masters: Masters, key: str
) -> None:
    # The guardian has ended the command: its exit code says nothing.
    script = f"trap 'exit 0' TERM; {GROUP}{LOOP}"
    words = ("--ttl", "16s", "--grace", "8s", "--", "/bin/sh", "-c", script)
    process = redlock("run", key, *words)
    group = int(first_line(process))
    process.send_signal(signal.SIGSTOP)
    until(lambda: processes_of(group) == [])
    assert masters.is_locked(key)
    process.send_signal(signal.SIGCONT)
    code, _, err = ended(process)
    assert code == Exit.LOST
    assert "the lock was not extended in time; the command has ended with 0" in err


def test_a_guardian_that_is_killed_is_replaced(redlock: Start, key: str) -> None:
    process = redlock("run", key, "--", "/bin/sh", "-c", f"{GROUP}{LOOP}")
    group = int(first_line(process))
    [guardian] = children_of(process.pid, "redlock-guardian")
    # A guardian that ends at once is not replaced; this one has lived for long enough.
    until(lambda: age(guardian) > 1.5)
    os.kill(guardian, signal.SIGKILL)
    until(lambda: children_of(process.pid, "redlock-guardian") not in ([], [guardian]))
    assert process.stderr is not None
    message = "redlock: the guardian was killed; another one watches the command\n"
    assert process.stderr.readline() == message
    process.kill()
    until(lambda: processes_of(group) == [])


def age(pid: int) -> float:
    """Return for how many seconds a process exists."""
    began = int(Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()[19])
    return float(Path("/proc/uptime").read_text().split()[0]) - began / os.sysconf("SC_CLK_TCK")


def test_a_guardian_outlives_a_sigterm_for_all(redlock: Start, key: str) -> None:
    # As of a service manager, while the command still cleans up.
    words = ("--grace", "300ms", "--", "/bin/sh", "-c", f"{STUBBORN}{GROUP}{LOOP}")
    process = redlock("run", key, *words)
    group = int(first_line(process))
    [guardian] = children_of(process.pid, "redlock-guardian")
    # Its handlers are there when it reads; it reads when it has begun.
    until(lambda: state(guardian) == "S" and ignores(guardian, signal.SIGTERM))
    os.kill(guardian, signal.SIGTERM)
    process.kill()
    until(lambda: processes_of(group) == [])


def ignores(pid: int, number: int) -> bool:
    """Return whether a process ignores a signal."""
    status = Path(f"/proc/{pid}/status").read_text()
    mask = next(line for line in status.splitlines() if line.startswith("SigIgn:"))
    return bool(int(mask.split()[1], 16) >> (number - 1) & 1)


@pytest.mark.spread(0)
@pytest.mark.parametrize("delay", [0.02, 0.1, 0.3, 0.5])
def test_a_sigterm_during_the_start(
    redlock: Start, masters: Masters, key: str, delay: float
) -> None:
    process = redlock("run", key, "--", "/bin/sleep", "600")
    time.sleep(delay)  # any instant is right: the start is not observable
    process.terminate()
    assert process.wait(60) in {-signal.SIGTERM, 128 + signal.SIGTERM}
    assert not masters.is_locked(key)


@pytest.mark.full
def test_another_exit_code_if_others_hold_the_lock(redlock: Start, key: str) -> None:
    holder = redlock("run", key, "--", "/bin/sh", "-c", f"echo ready; {LOOP}")
    assert first_line(holder) == "ready"
    words = ("run", "-E", "42", "--json", key, "--wait", "0", "--", "/bin/echo", "no")
    code, out, err = ended(redlock(*words))
    assert (code, out) == (42, "")
    facts = json.loads(err)
    assert (facts["error"], facts["exit_code"]) == ("held_by_others", 42)
    assert facts["holder"]["metadata"] == {"command": "sh"}


def test_a_command_that_takes_too_long(redlock: Start, masters: Masters, key: str) -> None:
    words = ("--timeout", "200ms", "--grace", "300ms", "--", "/bin/sh", "-c", f"{STUBBORN}{LOOP}")
    code, _, err = ended(redlock("run", key, *words))
    assert code == Exit.TIMED_OUT
    assert "the timeout of 200 ms is over; ending " in err
    assert "the command has ended with 137 after its timeout of 200 ms" in err
    assert not masters.is_locked(key)


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        (["--grace", "6s", "--ttl", "10s"], "--grace must be at most 5000 ms, half of the ttl of"),
        (["--skip-if-locked", "-E", "3"], "--conflict-exit-code must be 0 with --skip-if-locked"),
        (["--timeout", "0"], "--timeout must be longer than 0"),
        (["-E", "256"], "--conflict-exit-code must be from 0 to 255, not 256"),
    ],
)
def test_limits_that_do_not_fit(
    words: list[str], wanted: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert app.main(["run", "k", "-m", "redis://a", *words, "true"]) == Exit.USAGE
    assert wanted in capsys.readouterr().err


@pytest.mark.parametrize("dashes", [False, True])
@pytest.mark.parametrize(
    "words",
    [
        ["-h", "db1", "shop"],
        ["--help"],
        ["--name", "foo"],
        ["--fencing", "a", "--wait", "5s", "b"],
        ["hi", "--ttl", "5s"],
        ["--json", "PATH"],
        ["-m", "redis://127.0.0.1:7101"],
        ["a", "--", "-x"],
        ["--", "a"],
    ],
    ids=" ".join,
)
def test_redlock_takes_no_option_of_the_command(
    masters: Masters, key: str, words: list[str], dashes: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    got: list[tuple[int, list[str]]] = []

    class Supervised:
        def __init__(self, _frame: object, lease: Lease, *_: object) -> None:
            self.lease = lease

        async def run(self, words: list[str], _environment: object) -> int:
            got.append((self.lease.ttl, words))
            await self.lease.release()
            return Exit.DONE

    monkeypatch.setattr(supervision, "Supervision", Supervised)
    monkeypatch.setenv("REDLOCK_MASTERS", masters.environment["REDLOCK_MASTERS"])
    words = ["/bin/echo", *words]
    before = ["--"] if dashes else []
    assert app.main(["run", "--wait=9s", key, "--ttl", "5s", *before, *words]) == Exit.DONE
    assert got == [(5_000, words)]


@pytest.mark.spread(0)
@pytest.mark.parametrize(
    ("before", "words"),
    [
        ([], ["/bin/echo", "--fencing", "a", "--wait", "5s", "b"]),
        ([], ["/bin/echo", "a", "--", "-x"]),
        (["--"], ["/bin/echo", "-h", "db1", "shop"]),
    ],
)
def test_the_options_of_the_command_are_its_own(
    redlock: Start, key: str, before: list[str], words: list[str]
) -> None:
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
        (["-mredis://a", "k", "-E", "3", "cmd"], 4),
        (["-E3", "k", "cmd"], 2),
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
def test_a_command_below_two_locks_ends_when_the_outer_one_is_lost(
    redlock: Start, masters: Masters, key: str
) -> None:
    script = f"{STUBBORN}{GROUP}{LOOP}"
    inner = ("--ttl", "60s", "--grace", "30s", "--", "/bin/sh", "-c", script)
    words = ("--grace", "1s", "--", sys.executable, "-m", "redlock_aio", "run", f"{key}:inner")
    process = redlock("run", key, *words, *inner)
    group = int(first_line(process))
    assert masters.ask(lambda redlock: redlock.force_release(key))
    assert process.wait(60) == Exit.LOST
    until(lambda: processes_of(group) == [], within=15)  # sooner than the grace of the inner one


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
    process = redlock("run", key, "--leader-only", "--", "/bin/sh", "-c", script)
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


def test_a_command_that_is_ended_leaves_the_terminal_as_it_was(
    session: Session, redlock: Start, key: str
) -> None:
    """An editor in a script that handles SIGTERM: the script's exit code does not tell it."""
    script = "trap 'exit 7' TERM; stty raw -echo; echo re''ady; while :; do sleep 0.05; done"
    session.type(f'redlock run {key} -- sh -c "{script}"\n')
    session.shows("ready")
    assert ended(redlock("release", key, "--force"))[0] == 0
    session.shows("the command has ended with 7")
    session.type("stty -a | grep -q -e -icanon && echo ra''w || echo as it w''as\n")
    session.shows("as it was\r\n")


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
def test_a_shell_or_editor_that_suspends_itself(session: Session, key: str) -> None:
    script = "echo re''ady; kill -STOP $$; read x; echo got $x"
    session.type(f"redlock run {key} -- sh -c {shlex.quote(script)}\n")
    session.shows("ready\r\n")
    session.shows("Stopped")
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
    program.write_bytes(b"no program\0")
    program.chmod(0o755)
    session.type(f"(redlock run {key} -- {shlex.quote(str(program))}; read x; echo got $x)\n")
    session.shows("can't be executed: ")
    session.type("keys\n")
    session.shows("got keys\r\n")
