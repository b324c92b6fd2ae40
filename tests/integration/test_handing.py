"""A lease that goes from one real process to another, over real masters."""

import asyncio
import json
import logging
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from redlock_aio import LockLostError, LockNotHeldError, Redlock
from redlock_aio._rules.handing import imported

from .helpers import RealMaster, Stopwatch, call, gone, own_keys, queued, until, urls, values

pytestmark = pytest.mark.integration

WORKER = """
import asyncio, json, sys
from redlock_aio import LockLostError, Redlock

async def main():
    masters, exported, keep = json.loads(sys.stdin.readline())
    async with Redlock(masters, master_timeout=500, restart_guard="off", name="worker") as redlock:
        try:
            lease = await redlock.adopt(exported)
        except LockLostError as lost:
            print(json.dumps([None, lost.reason]), flush=True)
            return
        async with lease:
            fence = lease._hold.attempt.fence
            print(json.dumps([lease.token, fence]), flush=True)
            await asyncio.sleep(keep)

asyncio.run(main())
"""

Start = Callable[..., Awaitable[asyncio.subprocess.Process]]


@pytest.fixture
async def work() -> AsyncIterator[Start]:
    """Start processes that adopt a lease and keep it; they do not outlive the test."""
    started = []

    async def start(
        masters: list[RealMaster], exported: str, keep: float
    ) -> asyncio.subprocess.Process:
        pipe = asyncio.subprocess.PIPE
        command = (sys.executable, "-P", "-W", "error", "-c", WORKER)
        worker = await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe)
        started.append(worker)
        assert worker.stdin is not None
        worker.stdin.write(json.dumps([urls(masters), exported, keep]).encode() + b"\n")
        return worker

    yield start
    for process in started:
        if process.returncode is None:
            process.kill()
        await process.communicate()


async def said(worker: asyncio.subprocess.Process) -> tuple[str | None, Any]:
    """Return the token and the fencing token of a worker; ``None`` and why it has none."""
    assert worker.stdout is not None
    token, rest = json.loads(await worker.stdout.readline())
    return token, rest


@pytest.mark.parametrize(
    ("names", "how", "keep"),
    [(("r",), {"fair": True}, 0.1), (("r", "s"), {"fencing": True}, 1.3)],
    ids=["fair", "joint+fencing"],
)
async def test_another_process_goes_on(
    redlock: Redlock, masters: list[RealMaster], work: Start, names: Any, how: Any, keep: float
) -> None:
    """It may keep the lock for longer than the ttl, and who waits has it when it ends."""
    lease = await redlock.lock(*names, ttl=1_200, **how).acquire()
    exported = lease.export()
    worker = await work(masters, exported, keep)
    token, fence = await said(worker)
    assert token is not None
    assert token.endswith("@worker")
    for name in names:
        await until(lambda name=name: values(masters, name) == [token] * 5)  # type: ignore[misc]
    if "fencing" in how:
        assert fence == lease.fencing_token
    with pytest.raises(LockLostError, match="somebody else has adopted it"):
        await redlock.adopt(exported)
    with pytest.raises(LockNotHeldError, match="it was handed over"):
        await lease.extend()
    async with redlock.lock(*names, wait=20_000, **how) as after:
        await worker.wait()
        assert worker.returncode == 0
        if "fencing" in how:
            assert after.fencing_token > fence
    await until(lambda: all(gone(masters, name) for name in names))


async def test_the_deadline_is_known_on_the_same_machine(
    redlock: Redlock, masters: list[RealMaster], work: Start
) -> None:
    """A worker that starts too late is told so at once, though a key could be there for ever."""
    lease = await redlock.lock("r", ttl=300, auto_extend=False).acquire()
    exported = lease.export()
    assert imported(exported).boot
    for master in masters:
        call(master, "PERSIST", "r")
    await asyncio.sleep(0.3)
    token, why = await said(await work(masters, exported, 0))
    assert (token, why) == (
        None,
        "it was handed over, and its validity was over before it was adopted",
    )
    await until(lambda: gone(masters, "r"), what="nobody waits for what nobody holds")


@pytest.mark.promise("S9")
async def test_a_worker_that_is_killed_holds_nobody_up_for_longer_than_the_ttl(
    redlock: Redlock, masters: list[RealMaster], work: Start
) -> None:
    lease = await redlock.lock("r", ttl=900).acquire()
    worker = await work(masters, lease.export(), 60)
    await said(worker)
    worker.send_signal(signal.SIGKILL)
    await worker.wait()
    watch = Stopwatch()
    async with redlock.lock("r", wait=10_000):
        assert watch.ms < 1_900


@pytest.mark.promise("S8")
async def test_the_next_in_a_queue_is_called_by_the_adopter(
    redlock: Redlock, other: Redlock, masters: list[RealMaster]
) -> None:
    """Also while the exporter's own place is still believed in."""
    lease = await redlock.lock("r", fair=True).acquire()
    waiter = asyncio.create_task(other.lock("r", fair=True).acquire())
    await until(lambda: queued(masters) == [2] * 5)
    async with Redlock(urls(masters), master_timeout=500, restart_guard="off") as there:
        adopted = await there.adopt(lease.export())
        await until(lambda: values(masters, "r") == [adopted.token] * 5)
        assert not waiter.done()
        await adopted.release()
        watch = Stopwatch()
        next_one = await waiter
        assert watch.ms < 500  # a heartbeat would take a second
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
    shown = [caught.value, caught.value.args, lease, redlock, redlock._masters, exported]
    text = " ".join(map(repr, shown)) + str(caught.value) + caplog.text
    assert old[:28] not in text
    assert str(exported) not in text
    for master in masters:
        call(master, "DEL", "r")
