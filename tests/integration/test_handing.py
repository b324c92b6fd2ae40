"""A lease that goes from one real process to another, over real masters."""

import asyncio
import json
import logging
import signal
import sys
from collections.abc import AsyncIterator
from typing import Any

import pytest

from redlock_aio import LockLostError, LockNotHeldError, Redlock
from redlock_aio._protocol.lease_export import imported

from .helpers import (
    AT_ONCE,
    TIMEOUT,
    RealMaster,
    call,
    gone,
    own_keys,
    pttls,
    queued,
    until,
    urls,
    values,
)

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
            fence = lease._hold.attempt.fence
            print(json.dumps([lease.token, fence]), flush=True)
            await asyncio.to_thread(sys.stdin.readline)

asyncio.run(main(sys.argv[1:]))
"""


class Worker:
    """
    A process that adopts a lease when it is given one, and keeps it until it is told to end.

    It is ready before the lease is acquired: how long an interpreter takes to start on a busy
    machine must not use up the ttl.
    """

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self.process, self._stdin, self._stdout = process, process.stdin, process.stdout

    async def is_ready(self) -> None:
        """Wait until it waits for a lease."""
        assert await self._stdout.readline() == b"ready\n"

    async def adopt(self, exported: str) -> tuple[str | None, Any]:
        """Return the token and the fencing token it has; ``None`` and why it has none."""
        self._stdin.write(exported.encode() + b"\n")
        token, rest = json.loads(await self._stdout.readline())
        return token, rest

    async def end(self) -> None:
        """Make the worker release the lease, and wait until the process has ended."""
        self._stdin.write(b"\n")
        assert await self.process.wait() == 0


@pytest.fixture
async def worker(masters: list[RealMaster]) -> AsyncIterator[Worker]:
    """A process that is ready to adopt a lease; it does not outlive the test."""
    pipe = asyncio.subprocess.PIPE
    command = (sys.executable, "-P", "-W", "error", "-c", WORKER, *urls(masters))
    process = await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe)
    worker = Worker(process)
    await worker.is_ready()
    yield worker
    if process.returncode is None:
        process.kill()
    await process.communicate()


@pytest.mark.parametrize(
    ("names", "how", "longer"),
    [(("r",), {"fair": True}, False), (("r", "s"), {"fencing": True}, True)],
    ids=["fair", "joint+fencing"],
)
async def test_another_process_goes_on(
    redlock: Redlock, masters: list[RealMaster], worker: Worker, names: Any, how: Any, longer: bool
) -> None:
    """It may keep the lock for longer than the ttl, and who waits has it when it ends."""
    lease = await redlock.lock(*names, ttl=3_000, **how).acquire()
    exported = lease.export()
    token, fence = await worker.adopt(exported)
    assert token is not None
    assert token.endswith("@worker")
    with pytest.raises(LockLostError, match="somebody else has adopted it"):
        await redlock.adopt(exported)
    if longer:
        await asyncio.sleep(3.1)
    for name in names:
        await until(lambda name=name: values(masters, name) == [token] * 5)  # type: ignore[misc]
    if "fencing" in how:
        assert fence == lease.fencing_token
    with pytest.raises(LockNotHeldError, match="it was handed over"):
        await lease.extend()
    waiter = asyncio.create_task(redlock.lock(*names, wait=20_000, **how).acquire())
    await worker.end()
    async with await waiter as after:
        if "fencing" in how:
            assert after.fencing_token > fence
    await until(lambda: all(gone(masters, name) for name in names))


async def test_the_deadline_is_known_on_the_same_machine(
    redlock: Redlock, masters: list[RealMaster], worker: Worker
) -> None:
    """A worker that starts too late is told so at once, though a key could be there for ever."""
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
    await until(lambda: gone(masters, "r"), what="nobody waits for what nobody holds")


@pytest.mark.promise("S9")
async def test_a_worker_that_is_killed_holds_nobody_up_for_longer_than_the_ttl(
    redlock: Redlock, masters: list[RealMaster], worker: Worker
) -> None:
    lease = await redlock.lock("r", ttl=2_000).acquire()
    token, _ = await worker.adopt(lease.export())
    assert token is not None
    worker.process.send_signal(signal.SIGKILL)
    await worker.process.wait()
    assert all(-1 != left <= 2_000 for left in pttls(masters, "r"))
    async with redlock.lock("r", wait=20_000):
        pass


@pytest.mark.promise("S8")
@pytest.mark.usefixtures("seldom_beats")
async def test_the_next_in_a_queue_is_called_by_the_adopter(
    redlock: Redlock, other: Redlock, masters: list[RealMaster]
) -> None:
    """Also while the exporter's own place is still believed in."""
    lease = await redlock.lock("r", fair=True).acquire()
    waiter = asyncio.create_task(other.lock("r", fair=True).acquire())
    await until(lambda: queued(masters) == [2] * 5)
    async with Redlock(urls(masters), master_timeout=TIMEOUT, restart_guard="off") as there:
        adopted = await there.adopt(lease.export())
        await until(lambda: values(masters, "r") == [adopted.token] * 5)
        assert not waiter.done()
        await adopted.release()
        async with asyncio.timeout(AT_ONCE):
            next_one = await waiter
        await next_one.release()
    await until(lambda: gone(masters, "r"))
    await until(lambda: not [key for key in own_keys(masters) if "queue" in key])


@pytest.mark.promise("S10")
async def test_the_secret_is_in_no_text(
    redlock: Redlock, masters: list[RealMaster], caplog: pytest.LogCaptureFixture
) -> None:
    """Not in what is said of an adoption that fails, by an error of each master."""
    caplog.set_level(logging.DEBUG)
    lease = await redlock.lock("r", ttl=900).acquire()
    old, exported = lease.token, lease.export()
    for master in masters:
        call(master, "DEL", "r")
        call(master, "RPUSH", "r", "x")
    with pytest.raises(LockLostError, match="WRONGTYPE") as caught:
        await redlock.adopt(exported)
    shown = [
        caught.value,
        caught.value.args,
        lease,
        redlock,
        redlock._opener.session().links,
        exported,
    ]
    text = " ".join(map(repr, shown)) + str(caught.value) + caplog.text
    assert old[:28] not in text
    assert str(exported) not in text
    for master in masters:
        call(master, "DEL", "r")
