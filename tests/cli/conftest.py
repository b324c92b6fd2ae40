"""Three real masters with a password, and ``redlock`` as users start it."""

import asyncio
import contextlib
import itertools
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any, Literal, TypeVar

import pytest

from redlock_aio import Redlock
from redlock_aio.testing import EmbeddedMaster

T = TypeVar("T")

PASSWORD = "s3cret/p@ss"
URL = "redis://:s3cret%2Fp%40ss@127.0.0.1:{}"

NUMBERS = itertools.count(1)


class Masters:
    """The masters of the session."""

    def __init__(self, servers: list[EmbeddedMaster]) -> None:
        self.servers = servers
        self.urls = [URL.format(server.port) for server in servers]

    @property
    def environment(self) -> dict[str, str]:
        """The environment in which `redlock` finds them."""
        return {**os.environ, "REDLOCK_MASTERS": ",".join(self.urls), "LINES": "", "COLUMNS": ""}

    def ask(self, question: Callable[[Redlock], Coroutine[Any, Any, T]]) -> T:
        """Return the result of a coroutine function of a manager, in an event loop of its own."""

        async def main() -> T:
            # Not the timeout that is learned: on a busy machine the masters may take longer.
            timeout = 1_000
            async with Redlock(self.urls, restart_guard="off", master_timeout=timeout) as redlock:
                return await question(redlock)

        return asyncio.run(main())

    def is_locked(self, key: str) -> bool:
        """Return whether *key* is locked."""
        return self.ask(lambda redlock: redlock.is_locked(key))


@pytest.fixture(scope="session")
def masters() -> Iterator[Masters]:
    """Return the masters of the session."""
    with contextlib.ExitStack() as stack:
        options = ["--requirepass", PASSWORD]
        yield Masters([stack.enter_context(EmbeddedMaster(options=options)) for _ in range(3)])


@pytest.fixture
def key() -> str:
    """Return a key that no other test uses."""
    return f"job:{next(NUMBERS)}:{os.getpid()}"


@pytest.fixture
def redlock(
    masters: Masters, sigint_is_not_ignored: None
) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Return what starts `redlock` with some arguments; it is killed at the end."""
    del sigint_is_not_ignored
    # A shell that starts the suite in the background ignores SIGQUIT as well, and `nohup` SIGHUP.
    before = {n: signal.signal(n, signal.SIG_DFL) for n in (signal.SIGQUIT, signal.SIGHUP)}
    started: list[subprocess.Popen[str]] = []

    def start(*arguments: str, **options: Any) -> subprocess.Popen[str]:
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        options = {"env": masters.environment, "stdin": subprocess.DEVNULL, **pipes, **options}
        process = subprocess.Popen(
            [sys.executable, "-m", "redlock_aio", *arguments],
            text=True,
            cwd=Path(__file__).parents[2],
            **options,
        )
        started.append(process)
        return process

    yield start
    for number, action in before.items():
        signal.signal(number, action)
    for process in started:
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout, process.stderr):
            if pipe is not None:
                pipe.close()


def until(condition: Callable[[], bool], within: float = 60.0) -> None:
    """Wait until *condition* holds; fail if it does not hold *within* these seconds."""
    ends = time.monotonic() + within
    while not condition():
        assert time.monotonic() < ends, f"not within {within} s"
        time.sleep(0.02)


def fill(pipe: int) -> None:
    """Write to a pipe until it is full; the next write waits for a reader."""
    os.set_blocking(pipe, False)
    with contextlib.suppress(BlockingIOError):
        while True:
            os.write(pipe, b"." * 65_536)
    os.set_blocking(pipe, True)


def state(pid: int) -> str:
    """Return the state of a process: "T" if it is stopped."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0]


def processes_of(group: int, kind: Literal["group", "session"] = "group") -> list[int]:
    """Return the processes of a process group or session that have not ended."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            state, _, its_group, its_session = path.read_text().rpartition(") ")[2].split()[:4]
            number = its_group if kind == "group" else its_session
            if int(number) == group and state not in "ZX":
                found.append(int(path.parent.name))
    return found
