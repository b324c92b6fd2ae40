"""What stops work under a lock, and what does not: SIGTERM, a loss, a cancellation."""

import ast
import asyncio
import contextlib
import importlib.util
import os
import signal
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from redlock_aio import LockLostError, Redlock

from .helpers import RealMaster, gone, pttls, until, urls, values
from .recipes import EXAMPLES, PATIENCE, Place, running
from .servers import Sets

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("members")]

HANDLER = "    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, this.cancel)\n"


@pytest.fixture(scope="session")
def kind() -> str:
    return "valkey"  # what a recipe does depends on no kind of server


@pytest.fixture(scope="module")
def sets() -> Iterator[Sets]:
    """
    Return servers of this module's own.

    The recipe has the default `max_ttl`: a master that another module has restarted would have no
    vote for a minute, and a line about it in the output.
    """
    with contextlib.ExitStack() as stack:
        yield Sets(stack)


async def test_sigterm_releases_the_lock(masters: list[RealMaster], tmp_path: Path) -> None:
    program = str(EXAMPLES / "sigterm.py")
    at = Place(masters, tmp_path)
    async with running(program, at=at, WORK_SECONDS="600") as job:
        await job.says("at work")
        await until(lambda: all(values(masters, "lock:job")))  # at work from a majority on
        assert await job.ends(signal.SIGTERM) == 143, job.output
    assert job.output == "at work\nstopped; the lock is released\n"
    await until(lambda: gone(masters, "lock:job"))


async def test_sigterm_is_tried_as_the_docstring_says(
    masters: list[RealMaster], tmp_path: Path
) -> None:
    docstring = ast.get_docstring(ast.parse((EXAMPLES / "sigterm.py").read_text())) or ""
    command = docstring.partition("Try it: ")[2]
    assert "python sigterm.py" in command
    # `sleep 2` hopes that the work has begun; a machine that is busy needs a fact.
    log = tmp_path / "log"
    begun = f"until grep -q work {log}; do sleep 0.05; done"
    python = f"{sys.executable} {EXAMPLES}/sigterm.py > {log}"
    command = command.replace("sleep 2", begun).replace("python sigterm.py", python)
    shell = await asyncio.create_subprocess_exec(
        *("bash", "-m", "-c", command),
        env={**os.environ, "REDLOCK_MASTERS": ",".join(urls(masters))},
        stdout=asyncio.subprocess.PIPE,
    )
    output, _ = await asyncio.wait_for(shell.communicate(), PATIENCE)
    assert output.decode().splitlines()[-1] == "143"
    assert log.read_text() == "at work\nstopped; the lock is released\n"
    await until(lambda: gone(masters, "lock:job"))


async def test_without_a_handler_the_lock_stays_for_its_ttl(
    masters: list[RealMaster], tmp_path: Path
) -> None:
    program = (EXAMPLES / "sigterm.py").read_text()
    assert HANDLER in program
    at = Place(masters, tmp_path)
    async with running("-c", program.replace(HANDLER, ""), at=at, WORK_SECONDS="600") as job:
        await job.says("at work")
        assert await job.ends(signal.SIGTERM) == -signal.SIGTERM
    assert job.output == "at work\n"
    assert min(pttls(masters, "lock:job")) > 10_000


CUT_OFF = """
import asyncio, os, time
from fastapi import FastAPI
import redlock_aio, redlock_aio.sync
from redlock_aio.contrib.fastapi import lifespan

masters = os.environ["REDLOCK_MASTERS"].split(",")
redlock = redlock_aio.Redlock(masters, key_prefix="lock:")
threads = redlock_aio.sync.Redlock(masters, key_prefix="lock:")
app = FastAPI(lifespan=lifespan(redlock))

@app.get("/task")
async def task():
    async with redlock.lock("job", ttl=60_000):
        print("at work")
        await asyncio.sleep(600)

@app.get("/thread")
def thread():
    with threads.lock("job", ttl=60_000):
        print("at work")
        time.sleep(600)
"""


@pytest.mark.spread(0)
@pytest.mark.parametrize("work", ["task", "thread"])
async def test_uvicorn_cuts_a_request_off(
    work: str, masters: list[RealMaster], tmp_path: Path
) -> None:
    """A task is cancelled, which releases its lock. A thread dies with the process."""
    (tmp_path / "service.py").write_text(CUT_OFF)
    with tempfile.TemporaryDirectory() as folder:
        path = f"{folder}/http"  # a path of pytest's may be too long for a socket
        command = ("-m", "uvicorn", "service:app", "--timeout-graceful-shutdown", "1")
        transport = httpx.AsyncHTTPTransport(uds=path)
        async with (
            running(*command, "--uds", path, at=Place(masters, tmp_path)) as service,
            httpx.AsyncClient(transport=transport, base_url="http://x", timeout=None) as client,
        ):
            await service.says("Uvicorn running")
            request = asyncio.create_task(client.get(f"/{work}"))
            await service.says("at work")
            await until(lambda: all(values(masters, "lock:job")))
            assert await service.ends(signal.SIGTERM) in {0, -signal.SIGTERM}, service.output
            assert (await request).status_code == 500
    if work == "task":
        await until(lambda: gone(masters, "lock:job"))
    else:
        assert min(pttls(masters, "lock:job")) > 10_000


def run_in_thread() -> Callable[..., Any]:
    """Return the pattern of the recipe."""
    spec = importlib.util.spec_from_file_location("recipe", EXAMPLES / "work_in_a_thread.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    pattern: Callable[..., Any] = module.run_in_thread
    return pattern


class Work:
    """Work in a thread, which ends when the check that it gets raises."""

    def __init__(self) -> None:
        self.begun, self.ended = threading.Event(), threading.Event()
        self.may_end = threading.Event()
        self.may_end.set()
        self.error: Exception | None = None

    def __call__(self, check: Callable[[], None], _parts: int = 0) -> None:
        self.begun.set()
        try:
            while not self.ended.wait(0.01):
                check()
        except Exception as error:
            self.error = error
            raise
        finally:
            self.may_end.wait(60)
            self.ended.set()


@pytest.mark.full
async def test_a_loss_does_not_stop_a_thread(redlock: Redlock, other: Redlock) -> None:
    """Without the pattern it works on while somebody else holds the lock."""
    work = Work()
    try:
        with pytest.raises(LockLostError):
            async with redlock.lock("r"):
                thread = asyncio.create_task(asyncio.to_thread(work, lambda: None))
                await until(work.begun.is_set)
                await other.force_release("r")
                await asyncio.shield(thread)
        async with other.lock("r"):
            assert not work.ended.is_set()
    finally:
        work.ended.set()
    await thread


@pytest.mark.parametrize("why", ["lost", "cancelled", "cancelled twice"])
async def test_the_pattern_leaves_the_block_after_the_thread(
    redlock: Redlock, other: Redlock, why: str
) -> None:
    work, held = Work(), asyncio.Event()
    at_the_end: list[bool] = []

    async def body() -> None:
        async with redlock.lock("r") as lease:
            held.set()
            try:
                await run_in_thread()(lease, work, 0)
            finally:
                at_the_end.append(work.ended.is_set())

    task = asyncio.create_task(body())
    await held.wait()
    await until(work.begun.is_set)
    if why == "lost":
        await other.force_release("r")
        with pytest.raises(LockLostError):
            await task
    else:
        if why == "cancelled twice":  # while the thread is in a call that can't be interrupted
            work.may_end.clear()
            for _ in range(2):
                task.cancel()
                await asyncio.sleep(0.05)
            left_early = task.done()
            work.may_end.set()
            assert not left_early
        else:
            task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert str(work.error) == "the task was cancelled"
    assert at_the_end == [True]


def test_the_end_of_the_program_waits_for_the_thread(masters: list[RealMaster]) -> None:
    """`asyncio.run` cancels all tasks that are left, and the thread must be none of them."""
    work = Work()
    at_the_end: list[bool] = []

    async def main() -> None:
        async def body() -> None:
            async with Redlock(urls(masters)) as redlock, redlock.lock("r") as lease:
                try:
                    await run_in_thread()(lease, work, 0)
                finally:
                    at_the_end.append(work.ended.is_set())

        task = asyncio.create_task(body())
        await until(work.begun.is_set)
        work.may_end.clear()
        threading.Timer(0.2, work.may_end.set).start()
        assert not task.done()

    asyncio.run(main())
    assert at_the_end == [True]
