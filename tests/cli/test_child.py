"""The command of ``redlock run``, in this process: what is hard to provoke from outside."""

import asyncio
import contextlib
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from redlock_aio import Answer, LockLostError, LockNotHeldError, LossCause, Vote
from redlock_aio.cli import child as module, guardian_process, supervision
from redlock_aio.cli.child import Child, start
from redlock_aio.cli.exits import Exit
from redlock_aio.cli.frame import Common, Frame
from redlock_aio.cli.guardian import Guardian
from redlock_aio.cli.impatience import KEPT, Impatience
from redlock_aio.cli.output import Output
from redlock_aio.cli.redaction import Redaction
from redlock_aio.cli.supervision import Limits, Observed, Supervision
from redlock_aio.cli.terminal import Terminal
from redlock_aio.events import Lost

from .conftest import fill, state, until


@contextlib.asynccontextmanager
async def running(script: str, *, may_go_on: Callable[[], bool]) -> AsyncIterator[Child]:
    """Run a shell script as the command; it is killed at the end."""
    child = Child(
        ["/bin/sh", "-c", script],
        os.environ,
        before=lambda: None,
        may_go_on=may_go_on,
        on_stop=lambda: None,
    )
    try:
        async with asyncio.timeout(60):
            yield child
    finally:
        child.signal(signal.SIGKILL)
        await child.gone()
        child.close()


async def stopped(child: Child) -> None:
    """Wait until the command is stopped."""
    while state(child.group) != "T":  # noqa: ASYNC110 - no event tells it
        await asyncio.sleep(0.01)


def test_without_the_lock_a_command_is_not_continued() -> None:
    async def main() -> None:
        allowed: list[bool] = []
        async with running("kill -STOP $$; exit 3", may_go_on=lambda: bool(allowed)) as child:
            await stopped(child)
            child.forward(signal.SIGCONT)
            assert state(child.group) == "T"
            allowed.append(True)
            child.forward(signal.SIGCONT)
            await child.ended
            assert child.status == 3

    asyncio.run(main())


@pytest.fixture
def stops(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """Return the stops of this process and of its group, which do not take place."""
    made: list[tuple[str, int]] = []
    monkeypatch.setattr(module, "_to_the_others", lambda number: made.append(("others", number)))
    monkeypatch.setattr(module, "_stop", lambda number: made.append(("this", number)))
    monkeypatch.setattr(Terminal, "_foreground", lambda _: -1)
    return made


def test_redlock_does_not_stop_while_it_has_a_command_to_end(stops: list[Any]) -> None:
    async def main() -> None:
        async with running("kill -TSTP $$", may_go_on=lambda: False) as child:
            await stopped(child)
            await asyncio.sleep(0.2)

    asyncio.run(main())
    assert stops == []


def test_others_stop_in_a_way_that_another_redlock_forwards(
    stops: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "LATER", 0)

    async def main() -> None:
        async with running("kill -TTIN $$; exit 3", may_go_on=lambda: True) as child:
            await child.ended
            assert child.status == 3

    asyncio.run(main())
    assert stops == [("others", signal.SIGTSTP), ("this", signal.SIGTTIN)]


def test_a_command_that_has_joined_another_group_is_signalled_as_well() -> None:
    """It is not in its own group any more, in which it may have left others or none."""
    program = "import os, time; os.setpgid(0, os.getpgid(os.getppid())); time.sleep(60)"

    async def end(script: str) -> None:
        async with running(script, may_go_on=lambda: True) as child:
            while os.getpgid(child.group) == child.group:  # noqa: ASYNC110 - no event tells it
                await asyncio.sleep(0.01)
            child.terminate()
            await child.gone()
            assert child.status == 128 + signal.SIGTERM
            assert not child.signal(signal.SIGTERM)

    for before in ("", "sleep 60 & "):
        asyncio.run(end(f"{before}exec {sys.executable} -c '{program}'"))


def test_a_signal_that_is_not_permitted_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: int) -> None:
        raise PermissionError

    async def main() -> None:
        async with running("sleep 600", may_go_on=lambda: True) as child:
            with monkeypatch.context() as patched:
                patched.setattr(os, "kill", refuse)
                child.forward(signal.SIGUSR1)
            assert not child.ended.done()

    asyncio.run(main())


class LostLease:
    """A lease that is lost."""

    valid = False
    remaining = 0
    ttl = 1_000

    def __init__(self, error: LockLostError | None = None) -> None:
        self.lost = asyncio.Event()
        self.lost.set()
        self._error = error
        self.handler: object = None
        """What happens with SIGUSR1 during the release."""

    def ensure_valid(self) -> None:
        """Raise the error, if there is one."""
        if self._error is not None:
            raise self._error

    async def release(self) -> None:
        """Raise the error of a lease that is lost."""
        self.handler = signal.getsignal(signal.SIGUSR1)
        raise LockNotHeldError(["k"], LossCause.FORCED.text, "forced")


def supervised(lease: Any, *words: str) -> int:
    """Run a command under a lease that is lost; return the exit code."""
    votes = (Vote("a:1", Answer.FREE),)
    loss = Lost(("k",), "", LossCause.FORCED.text, 1, LossCause.FORCED, votes)
    observed = Observed()
    observed.on_event(loss)
    frame = Frame(Common(), Output(Redaction([]), as_json=True), "off")

    async def main() -> int:
        watch = Supervision(frame, lease, observed, Limits(0))
        return await watch.run(list(words), dict(os.environ))

    return asyncio.run(main())


def test_a_command_that_can_not_be_ended_is_not_said_to_have_ended(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    children: list[Child] = []

    def refused(child: Child, number: int) -> bool:
        del number
        children.append(child)
        return False  # as for a program of another user

    def no_guardian(*_: object) -> None:
        raise OSError  # it would end the command, at once

    monkeypatch.setattr(Child, "signal", refused)
    monkeypatch.setattr(supervision, "Guardian", no_guardian)
    monkeypatch.setattr(supervision, "KILLED", 0)
    try:
        assert supervised(LostLease(), "/bin/sleep", "600") == Exit.LOST
    finally:
        os.killpg(children[0].group, signal.SIGKILL)
        children[0]._process.wait()
    facts = json.loads(capsys.readouterr().err.splitlines()[-1])
    assert facts.pop("message").endswith("; the command can't be ended, and goes on")
    assert facts == {
        "error": "lost",
        "exit_code": 79,
        "command_exit_code": None,
        "cause": "forced",
        "masters": [{"master": "a:1", "answer": "free", "detail": ""}],
    }


def test_a_signal_for_the_command_does_not_end_redlock_during_the_release() -> None:
    lease = LostLease()
    assert supervised(lease, "/bin/sleep", "600") == Exit.LOST
    assert callable(lease.handler)


def test_a_command_does_not_begin_after_a_loss(tmp_path: Path) -> None:
    lease = LostLease(LockLostError(["k"], LossCause.LOOP_STALLED))
    with pytest.raises(LockLostError):
        supervised(lease, "/bin/sh", "-c", f"echo >{tmp_path}/began")
    assert not (tmp_path / "began").exists()


def test_a_guardian_that_was_killed_does_not_end_the_command(tmp_path: Path) -> None:
    guardian = Guardian(0)
    guardian._process.kill()
    guardian._process.wait()
    script = f"echo >{tmp_path}/began; kill -PIPE $$"
    process = start(["/bin/sh", "-c", script], os.environ, guardian.watch)
    assert process.wait(60) == -signal.SIGPIPE  # which has its default action in the command
    assert (tmp_path / "began").exists()
    guardian.dismiss()


def test_a_program_in_a_single_file_says_that_it_has_no_guardian(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """
    One of PyInstaller, which is no interpreter, takes its time to refuse the guardian's arguments.

    Each guardian would seem to have been killed, and to be replaced by another one.
    """
    packed = Path(guardian_process.__file__).parent / "redlock.zip" / "guardian_process.py"
    monkeypatch.setattr(guardian_process, "__file__", str(packed))
    assert supervised(LostLease(), "/bin/true") == Exit.LOST
    assert "no guardian (its program is packed into a single file): a SIG" in capfd.readouterr().err


def test_messages_that_nobody_reads_are_kept_and_not_awaited(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """On a busy machine the thread that writes the first one may begin late as well."""
    reader, writer = os.pipe()
    fill(writer)
    with os.fdopen(reader, "rb") as file:
        with os.fdopen(writer, "w") as stream:
            monkeypatch.setattr(sys, "stderr", stream)
            messages = Impatience()
            messages.write("first")
            assert messages.is_stuck
            for number in range(KEPT + 1):
                messages.write(str(number))
            assert set(os.read(reader, 65_536)) == {ord(".")}
            until(lambda: not messages.is_stuck)
            messages.write("last")
            monkeypatch.undo()
        kept = map(str, range(1, KEPT + 1))
        assert file.read().decode().lstrip(".").split() == ["first", *kept, "last"]
