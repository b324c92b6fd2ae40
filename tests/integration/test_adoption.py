"""Leases that another process adopts, on real masters."""

import asyncio
import json
import signal
import sys
from collections.abc import AsyncIterator
from typing import Any

import pytest

from redlock_aio import LockLostError, LockNotHeldError, Redlock
from redlock_aio._protocol.lease_export import imported

from .helpers import RealMaster, call, gone, nothing_is_left, pttls, until, urls, values

pytestmark = pytest.mark.integration

WORKER = """
import asyncio, json, sys
from redlock_aio import LockLostError, Redlock

async def main(masters):
    options = {"master_timeout": 1_500, "restart_guard": "off", "name": "worker"}
    async with Redlock(masters, **options) as redlock:
        print("ready", flush=True)
        exported = await asyncio.to_thread(sys.stdin.readline)
        try:
            lease = await redlock.adopt(exported.strip())
        except LockLostError as lost:
            print(json.dumps([None, lost.reason]), flush=True)
            return
        async with lease:
            fence = lease._hold.claim.fence
            print(json.dumps([lease.token, fence]), flush=True)
            await asyncio.to_thread(sys.stdin.readline)

asyncio.run(main(sys.argv[1:]))
"""


class Worker:
    """
    A process that adopts a lease from its input, and releases it at the next line.

    It is ready before the lease is acquired: the start of an interpreter on a busy machine must
    not use up the ttl.
    """

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self.process, self._stdin, self._stdout = process, process.stdin, process.stdout

    async def is_ready(self) -> None:
        """Wait until the process reads its input."""
        assert await self._stdout.readline() == b"ready\n"

    async def adopt(self, exported: str) -> tuple[str | None, Any]:
        """Return the token and the fencing token of its lease, or ``None`` and the error."""
        self._stdin.write(exported.encode() + b"\n")
        token, rest = json.loads(await self._stdout.readline())
        return token, rest

    async def end(self) -> None:
        """Make the worker release the lease, and wait until the process has ended."""
        self._stdin.write(b"\n")
        assert await self.process.wait() == 0


@pytest.fixture
async def worker(masters: list[RealMaster]) -> AsyncIterator[Worker]:
    """Run a process that is ready to adopt a lease, and end it after the test."""
    pipe = asyncio.subprocess.PIPE
    command = (sys.executable, "-P", "-W", "error", "-c", WORKER, *urls(masters))
    process = await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe)
    worker = Worker(process)
    await worker.is_ready()
    yield worker
    if process.returncode is None:
        process.kill()
    await process.communicate()


@pytest.mark.promise("S7")
@pytest.mark.promise("S9")
@pytest.mark.parametrize(
    "killed", [False, pytest.param(True, marks=pytest.mark.full)], ids=["released", "killed"]
)
async def test_another_process_keeps_the_lock_beyond_the_ttl(
    redlock: Redlock, masters: list[RealMaster], worker: Worker, *, killed: bool
) -> None:
    """The next waiter acquires it when the worker releases it, or dies."""
    names = ("r",) if killed else ("r", "s")
    options: Any = {"fencing": True, "fair": killed}
    lease = await redlock.lock(*names, ttl=3_000, **options).acquire()
    exported = lease.export()
    token, fence = await worker.adopt(exported)
    assert token is not None
    assert token.endswith("@worker")
    assert fence == lease.fencing_token
    with pytest.raises(LockLostError, match="another process has adopted it"):
        await redlock.adopt(exported)
    with pytest.raises(LockNotHeldError, match="it was handed over"):
        await lease.extend()
    await asyncio.sleep(3.1)
    for name in names:
        await until(lambda name=name: values(masters, name) == [token] * 5)  # type: ignore[misc]
    waiter = asyncio.create_task(redlock.lock(*names, wait=20_000, **options).acquire())
    if killed:
        worker.process.send_signal(signal.SIGKILL)
        await worker.process.wait()
        assert all(-1 != left <= 3_000 for left in pttls(masters, "r"))
    else:
        await worker.end()
    async with await waiter as after:
        assert after.fencing_token > fence
    await nothing_is_left(masters)


async def test_a_worker_that_starts_too_late_knows_the_deadline(
    redlock: Redlock, masters: list[RealMaster], worker: Worker
) -> None:
    """The worker is on the same machine, and refuses although the keys have no ttl."""
    lease = await redlock.lock("r", ttl=1_000, auto_extend=False).acquire()
    exported = lease.export()
    assert imported(exported).boot
    for master in masters:
        call(master, "PERSIST", "r")
    await asyncio.sleep(1.0)
    token, why = await worker.adopt(exported)
    assert (token, why) == (
        None,
        "it was handed over, and its validity was over before it was adopted",
    )
    await until(lambda: gone(masters, "r"))
