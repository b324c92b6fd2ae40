"""With ``fair=True`` whoever asked first is served first, also among programs."""

import asyncio
import random
import time

import pytest

from redlock_aio import Answer, LockNotAcquiredError, Redlock

from .helpers import (
    AT_ONCE,
    RealMaster,
    Stopwatch,
    call,
    connected,
    put,
    queued,
    until,
    values,
    waiting,
)
from .rows import PATIENCE, Row, nothing_is_left

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("soon_deaf", "seldom_beats")]


@pytest.mark.promise("S9")
@pytest.mark.parametrize("holder", ["fair", "plain", "foreign"])
@pytest.mark.full
async def test_who_waits_in_several_managers_is_served_in_order(
    redlock: Redlock, other: Redlock, masters: list[RealMaster], holder: str
) -> None:
    """68: eight, queued 30 ms apart, three times, behind whoever it is."""
    async with connected(masters) as third:
        for _ in range(3):
            row = Row(redlock, other, third)
            if holder == "foreign":
                put(masters, "r", 60_000)
                await row.join(8)
                for master in masters:
                    call(master, "DEL", "r")
            else:
                async with other.lock("r", fair=holder == "fair"):
                    await row.join(8)
                    await until(lambda: queued(masters) == [8 + (holder == "fair")] * 5)
            await row.served()
    await nothing_is_left(masters)


@pytest.mark.promise("S9")
async def test_nobody_who_comes_later_overtakes(redlock: Redlock, other: Redlock) -> None:
    """68: newcomers come all the time, each right after a release, where chances are best."""
    row = Row(redlock, other)
    async with redlock.lock("r", fair=True):
        # So many that the last of them waits for longer than the slack between managers.
        await row.join(30, apart=0.004)
    for _ in range(30):
        await row.join(1, apart=0.004)
    await row.served()


@pytest.mark.parametrize("apart", [0, 0.3])
async def test_tasks_of_one_manager_are_served_in_order(redlock: Redlock, apart: float) -> None:
    """68: also when they ask in the same ms."""
    row = Row(redlock)
    async with redlock.lock("r", fair=True):
        await row.join(8, apart=apart / 10)
        await asyncio.sleep(0.05)
    await row.served()


@pytest.mark.promise("S8")
@pytest.mark.parametrize("holder", ["this", "other", "foreign", "expiry"])
@pytest.mark.parametrize("fair", [False, True], ids=["plain", "fair"])
@pytest.mark.full
async def test_the_end_of_any_lock_wakes_who_is_next(
    redlock: Redlock, other: Redlock, masters: list[RealMaster], holder: str, *, fair: bool
) -> None:
    """25: of a plain or fair one of this manager or another, and of a foreign library's."""
    took = []
    for _ in range(5):
        lease = None
        if holder == "foreign":
            put(masters, "r", 60_000)
        elif holder == "expiry":
            put(masters, "r", 300)
        else:
            manager = redlock if holder == "this" else other
            lease = await manager.lock("r", fair=fair, ttl=60_000).acquire()
        async with waiting(redlock, fair=True) as waiter:
            await until(lambda: min(queued(masters)) >= 1)
            await asyncio.sleep(0.03)
            left = sorted(call(master, "PTTL", "r") for master in masters)[2]
            watch = Stopwatch()
            if holder == "foreign":
                for master in masters:
                    call(master, "DEL", "r")
            elif lease is not None:
                await lease.release()
            await waiter
            took.append(watch.ms - (left if holder == "expiry" else 0))
    assert max(took) < AT_ONCE * 1000, took


@pytest.mark.promise("S1")
async def test_fair_and_plain_exclude_each_other(redlock: Redlock, other: Redlock) -> None:
    """31: a counter that tasks of both kinds in two managers change."""
    counter = inside = 0

    async def worker(manager: Redlock, *, fair: bool) -> None:
        nonlocal counter, inside
        for _ in range(10):
            async with manager.lock("r", fair=fair, wait=PATIENCE):
                assert inside == 0
                inside += 1
                read = counter
                await asyncio.sleep(random.choice((0, 0, 0.001)))
                counter = read + 1
                inside -= 1

    await asyncio.gather(
        *(worker(manager, fair=fair) for manager in (redlock, other) * 2 for fair in (True, False))
    )
    assert counter == 80


@pytest.mark.promise("S3")
async def test_who_gives_up_leaves_all_queues(
    redlock: Redlock, other: Redlock, masters: list[RealMaster]
) -> None:
    """28, 32, 68: by its time or a cancellation; those behind are served in order."""
    row = Row(redlock, other)
    async with other.lock("r"):
        await row.join(2)
        short = asyncio.create_task(redlock.lock("r", fair=True, wait=1_000).acquire())
        await asyncio.sleep(0.03)
        await row.join(2)
        cancelled = asyncio.create_task(other.lock("r", fair=True).acquire())
        await asyncio.sleep(0.03)
        await row.join(2)
        await until(lambda: queued(masters) == [8] * 5)
        watch = Stopwatch()
        cancelled.cancel()
        with pytest.raises(LockNotAcquiredError) as caught:
            await short
        assert watch.ms < AT_ONCE * 1000
        assert sum(vote.answer is Answer.HELD for vote in caught.value.votes) >= 3
        await until(lambda: queued(masters) == [6] * 5, within=20)
    async with asyncio.timeout(AT_ONCE):  # nobody waits for a heartbeat
        await row.served()
    await nothing_is_left(masters)


async def test_a_full_queue_refuses_at_once(masters: list[RealMaster]) -> None:
    """68: and says so; who is in it is served."""
    async with connected(masters, max_waiters=3) as redlock:
        row = Row(redlock)
        async with redlock.lock("r"):
            await row.join(3)
            watch = Stopwatch()
            with pytest.raises(LockNotAcquiredError, match="queue is full") as caught:
                # Of another task: whoever holds it is told that it would wait for itself.
                await asyncio.create_task(redlock.lock("r", fair=True).acquire())
            assert type(caught.value) is LockNotAcquiredError
            with pytest.raises(LockNotAcquiredError, match="queue is full"):
                await redlock.lock("r", fair=True, wait=5_000).acquire()
            assert watch.ms < AT_ONCE * 1000
            await until(lambda: queued(masters) == [3] * 5)
        await row.served()
        await nothing_is_left(masters)


async def test_who_tries_only_once_is_refused_at_once(
    redlock: Redlock, other: Redlock, masters: list[RealMaster]
) -> None:
    """22: and leaves no place, and gets the lock when nobody waits."""
    async with other.lock("r", fair=True):
        watch = Stopwatch()
        assert await redlock.lock("r", fair=True).try_acquire() is None
        with pytest.raises(LockNotAcquiredError):
            await redlock.lock("r", fair=True, wait=0).acquire()
        assert watch.ms < AT_ONCE * 1000  # nobody waited for a heartbeat
        await until(lambda: queued(masters) == [1] * 5, within=20)
    lease = await redlock.lock("r", fair=True).try_acquire()
    assert lease is not None
    await lease.release()
    async with redlock.lock("r", fair=True, wait=0) as lease:
        await until(lambda lease=lease: values(masters, "r") == [lease.token] * 5)  # type: ignore[misc]
    await nothing_is_left(masters)


@pytest.mark.promise("S3")
@pytest.mark.full
async def test_whoever_is_cancelled_at_any_moment_leaves_nothing(
    redlock: Redlock, other: Redlock, masters: list[RealMaster]
) -> None:
    """28: two hundred, in two managers, with somebody who really wants it all the time."""
    chance = random.Random(0)
    stop = False

    async def busy() -> None:
        while not stop:
            async with other.lock("r", fair=True, wait=PATIENCE):
                await asyncio.sleep(0.002)

    working = asyncio.create_task(busy())
    for number in range(100):
        managers = (redlock, other)
        tasks = [asyncio.create_task(m.lock("r", fair=True).acquire()) for m in managers]
        for task in tasks:
            for _ in range(chance.randrange(20)):
                await asyncio.sleep(0)
            if number % 2:
                await asyncio.sleep(chance.random() / 100)
            task.cancel()
        await asyncio.wait(tasks)
        for task in tasks:
            if not task.cancelled():
                await task.result().release()
    stop = True
    await working
    watch = Stopwatch()
    async with redlock.lock("r", fair=True, wait=PATIENCE):
        assert watch.ms < AT_ONCE * 1000
    await nothing_is_left(masters)


@pytest.mark.promise("S9")
async def test_a_manager_that_is_closed_leaves_all_queues(
    redlock: Redlock, masters: list[RealMaster]
) -> None:
    """48: with five who wait, who are told, and those of others are served at once."""
    row = Row(redlock)
    async with redlock.lock("r"):
        async with connected(masters) as other:
            tasks = [asyncio.create_task(other.lock("r", fair=True).acquire()) for _ in range(5)]
            await until(lambda: queued(masters) == [5] * 5)
            await row.join(2)
            began = time.monotonic()
        await asyncio.wait(tasks)
        assert time.monotonic() - began < AT_ONCE
        assert all("closed" in str(task.exception()) for task in tasks)
        await until(lambda: queued(masters) == [2] * 5, within=20)
    async with asyncio.timeout(AT_ONCE):
        await row.served()
    await nothing_is_left(masters)


@pytest.mark.promise("S8")
async def test_who_comes_after_a_head_that_left_is_woken_as_well(
    redlock: Redlock, masters: list[RealMaster]
) -> None:
    """25, 28: behind a holder that knows nothing of the queue."""
    took = []
    for _ in range(5):
        put(masters, "r", 60_000)
        async with waiting(redlock, fair=True) as head:
            await until(lambda: queued(masters) == [1] * 5)
            async with waiting(redlock, fair=True) as second:
                await until(lambda: queued(masters) == [2] * 5)
                head.cancel()
                await until(lambda: queued(masters) == [1] * 5)
                await asyncio.sleep(0.03)
                watch = Stopwatch()
                for master in masters:
                    call(master, "DEL", "r")
                await second
                took.append(watch.ms)
    assert max(took) < AT_ONCE * 1000, took
