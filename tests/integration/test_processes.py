"""Processes that are killed or interrupted while they hold a lock."""

import asyncio
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from redlock_aio import Redlock

from .helpers import AT_ONCE, RealMaster, Stopwatch, gone, pttls, until, urls, values

pytestmark = pytest.mark.integration

HOLDER = """
import asyncio, sys
from redlock_aio import Redlock

async def main(*masters):
    async with Redlock(masters, master_timeout=1_500, restart_guard="off") as redlock:
        async with redlock.lock("r", ttl=1_500):
            print("held", flush=True)
            await asyncio.sleep(60)

asyncio.run(main(*sys.argv[1:]))
"""


Start = Callable[..., Awaitable[asyncio.subprocess.Process]]


@pytest.fixture
async def run() -> AsyncIterator[Start]:
    """Return a function that starts a process; kill all of them after the test."""
    started = []

    async def start(script: str, *arguments: str) -> asyncio.subprocess.Process:
        command = (sys.executable, "-P", "-W", "error", "-c", script, *arguments)
        pipe = asyncio.subprocess.PIPE
        started.append(await asyncio.create_subprocess_exec(*command, stdout=pipe, stderr=pipe))
        return started[-1]

    yield start
    for process in started:
        if process.returncode is None:
            process.kill()
            await process.communicate()


@pytest.mark.promise("S9")
@pytest.mark.full
async def test_the_lock_of_a_killed_process_is_free_after_its_ttl_and_not_before(
    redlock: Redlock, masters: list[RealMaster], run: Start
) -> None:
    """The masters keep its keys for their whole ttl."""
    holder = await run(HOLDER, *urls(masters))
    assert holder.stdout is not None
    assert await holder.stdout.readline() == b"held\n"
    await until(lambda: all(values(masters, "r")))
    holder.send_signal(signal.SIGKILL)
    await holder.communicate()
    watch = Stopwatch()  # taken before the ttls are read, which takes time itself
    left = sorted(pttls(masters, "r"))[2]  # until then a majority has the key
    async with redlock.lock("r", wait=20_000):
        assert left - 2 < watch.ms < left + 1000 * AT_ONCE


@pytest.mark.usefixtures("sigint_is_not_ignored")
@pytest.mark.full
async def test_a_process_that_is_interrupted_releases_its_lock(
    redlock: Redlock, masters: list[RealMaster], run: Start
) -> None:
    """Ctrl-C cancels the body; no master has the lock when the process has ended."""
    holder = await run(HOLDER, *urls(masters))
    assert holder.stdout is not None
    assert await holder.stdout.readline() == b"held\n"
    holder.send_signal(signal.SIGINT)
    _, errors = await holder.communicate()
    assert errors.decode().splitlines()[-1] == "KeyboardInterrupt"
    assert "Warning" not in errors.decode()
    assert values(masters, "r").count(None) >= 3
    await until(lambda: gone(masters, "r"))
    async with redlock.lock("r", wait=0):
        pass
