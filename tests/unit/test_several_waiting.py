"""Waiters for several resources and for one of them, in virtual time."""

import asyncio
import random
from contextlib import AsyncExitStack

import pytest

from redlock_aio import (
    LockNotAcquiredError,
    Redlock,
    RedlockError,
)
from redlock_aio._engine.wait.local_queue import IDLE_QUEUES
from redlock_aio._protocol import commands
from redlock_aio._rules.fair_ticket import LIVES
from redlock_aio.testing import FakeMaster

from . import kit
from .kit import KIND, KINDS, LATENCY, Kind, acquired_at, delete, execute, now, occupy, slow

pytestmark = pytest.mark.usefixtures("nothing_stays")

SETS = [("ab", "ab"), ("ab", "b"), ("b", "ab"), ("ab", "bc")]


@pytest.mark.spread(1)
@KIND
@pytest.mark.promise("S9")
@pytest.mark.parametrize("same", [True, False], ids=["same", "other"])
@pytest.mark.parametrize(("held", "wanted"), SETS)
async def test_a_release_notifies_waiters_at_once(
    redlock: Redlock,
    other: Redlock,
    kind: Kind,
    held: str,
    wanted: str,
    *,
    same: bool,
) -> None:
    lease = await (redlock if same else other).lock(*held, **kind).acquire()
    waiter = asyncio.create_task(acquired_at(redlock, *wanted, **kind))
    await asyncio.sleep(1.5)
    released = now()
    await lease.release()
    # Half a latency for the release, half for the push, one for the attempt; and a pause if
    # the process has to let other processes go first.
    assert 0.9 * LATENCY < await waiter - released < 4 * LATENCY


@KIND
@pytest.mark.promise("S9")
async def test_a_waiter_is_notified_when_the_last_key_expires_or_is_deleted(
    redlock: Redlock, masters: list[FakeMaster], kind: Kind
) -> None:
    for names in (("a", "b"), ("b", "a")):
        for master in masters:
            master.set(names[0], "theirs", ttl=300)
            master.set(names[1], "also theirs", ttl=900)
        expires = now() + 0.9
        waited = await acquired_at(redlock, *names, **kind) - expires
        assert waited == pytest.approx(2 * LATENCY, abs=2 * LATENCY)
    occupy(masters, "a")
    occupy(masters, "b")
    waiter = asyncio.create_task(acquired_at(redlock, "a", "b", **kind))
    deleted = 0.0
    for name in "ba":
        await asyncio.sleep(0.9)
        assert not waiter.done()
        deleted = now()
        delete(masters, name)
    assert await waiter - deleted == pytest.approx(2 * LATENCY, abs=2 * LATENCY)


@pytest.mark.promise("S9")
@pytest.mark.parametrize("kind", KINDS[:2], ids=["plain", "fenced"])
@pytest.mark.parametrize("how", ["cancelled", "cancelled in a queue", "lost"])
async def test_a_failed_attempt_of_this_process_notifies_waiters_that_it_refused(
    redlock: Redlock, masters: list[FakeMaster], kind: Kind, how: str
) -> None:
    """Masters push a change to all connections except the one that made it."""
    async with redlock.lock("x", **kind):
        pass
    masters[2].set("b", "theirs", ttl=4)
    slow(masters[3:], 0.02)
    if how == "lost":
        masters[3].set("b", "theirs")
        masters[4].set("b", "theirs", ttl=30)
    options = kind | ({"fair": True} if how == "cancelled in a queue" else {"wait": 0})
    first = asyncio.create_task(redlock.lock("b", **options).acquire())
    await asyncio.sleep(0)
    waiter = asyncio.create_task(acquired_at(redlock, "a", "b", **kind))
    await asyncio.sleep(0.1 if how == "lost" else 0.005)
    first.cancel()
    await asyncio.wait([first])
    assert first.cancelled() == (how != "lost")
    async with asyncio.timeout(1):
        await waiter


async def test_a_task_that_holds_a_part_gets_an_error(redlock: Redlock) -> None:
    async with redlock.lock("a"):
        with pytest.raises(RedlockError, match="would never be free"):
            await redlock.lock("a", "b").acquire()
        assert await redlock.lock("a", "b").try_acquire() is None
        assert await redlock.lock("b", "a", reentrant=True).try_acquire() is None
        with pytest.raises(LockNotAcquiredError):
            await redlock.lock("a", "b", wait=10).acquire()
    async with redlock.lock("a", "b", reentrant=True) as both:
        async with redlock.lock("b", reentrant=True) as one:
            assert one.token == both.token
        async with redlock.lock("b", "a", reentrant=True):
            assert both.hold_count == 2
        with pytest.raises(RedlockError, match="acquire all at once"):
            await redlock.lock("b", "c", reentrant=True).acquire()


# Local queues


@pytest.mark.spread(0)
@KIND
async def test_only_idle_local_queues_are_dropped(redlock: Redlock, kind: Kind) -> None:
    async with redlock.lock("a", "b", **kind):
        waiter = asyncio.create_task(acquired_at(redlock, "b", "c", **kind))
        guest = asyncio.create_task(acquired_at(redlock, "b", **kind))
        for begin in range(0, IDLE_QUEUES + 50, 20):  # locks acquired at once cost less
            sets = [(f"r{number}", f"s{number}") for number in range(begin, begin + 20)]
            await asyncio.gather(*(acquired_at(redlock, *names) for names in sets))
        queues = kit.session(redlock).local_queues.by_key
        assert len(queues) <= 2 * IDLE_QUEUES
        assert {b"a", b"b", b"c"} <= queues.keys()
        assert [queue for queue in queues.values() if not queue.idle]
    await asyncio.wait_for(asyncio.gather(waiter, guest), 1)


@KIND
async def test_closing_ends_the_lease_and_all_waits(masters: list[FakeMaster], kind: Kind) -> None:
    async with Redlock(masters, restart_guard="off") as redlock:
        lease = await redlock.lock("a", "b", **kind).acquire()
        sets = [("a", "b"), ("b", "c"), ("b",)]
        waiters = [asyncio.create_task(acquired_at(redlock, *names, **kind)) for names in sets]
        await asyncio.sleep(0.1)
    async with asyncio.timeout(0.1):
        results = await asyncio.gather(*waiters, return_exceptions=True)
    assert [str(error) for error in results] == ["this Redlock was closed [redlock-closed]"] * 3
    assert not lease.valid
    assert lease.lost.is_set()


# Order


@pytest.mark.promise("S8")
@pytest.mark.parametrize("same", [True, False])
async def test_later_waiters_do_not_overtake_on_any_resource(
    redlock: Redlock, other: Redlock, *, same: bool
) -> None:
    """A waiter for a and b that waits for b is not overtaken on a, although a is free."""
    later = redlock if same else other
    lease = await redlock.lock("b", fair=True).acquire()
    both = asyncio.create_task(acquired_at(redlock, "a", "b", fair=True))
    await asyncio.sleep(0.1)
    single = asyncio.create_task(acquired_at(later, "a", fair=True))
    behind = asyncio.create_task(acquired_at(later, "c", "a", fair=True))
    await asyncio.sleep(0.1)
    last = asyncio.create_task(acquired_at(other, "c", fair=True))
    await asyncio.sleep(1)
    assert not any(task.done() for task in (both, single, behind, last))
    released = now()
    await lease.release()
    times = [await both, await single, await behind, await last]
    assert times == sorted(times)
    assert times[-1] - released < 12 * LATENCY


@pytest.mark.promise("S8")
@pytest.mark.seeds(1, full=5)
async def test_each_queue_is_in_order(redlock: Redlock, other: Redlock, seed: int) -> None:
    """Waiters of several programs for random sets are served in order on each resource."""
    chance = random.Random(seed)
    served: dict[str, list[int]] = {name: [] for name in "abcd"}
    holders: list[str] = []

    async def one(number: int, names: list[str]) -> None:
        manager = chance.choice((redlock, other))
        async with manager.lock(*names, fair=True, fencing=chance.random() < 0.5):
            assert not set(names) & set(holders)
            holders.extend(names)
            for name in names:
                served[name].append(number)
            await asyncio.sleep(chance.random() * 0.02)
            for name in names:
                holders.remove(name)

    async with asyncio.timeout(60), asyncio.TaskGroup() as tasks:
        for number in range(40):
            tasks.create_task(one(number, chance.sample("abcd", chance.randint(1, 3))))
            await asyncio.sleep(0.003)
    assert all(numbers == sorted(numbers) for numbers in served.values())


@pytest.mark.promise("S8")
@pytest.mark.full
async def test_waiters_for_overlapping_sets_do_not_deadlock(masters: list[FakeMaster]) -> None:
    """Each waiter comes first on some masters, so at first none can have all its locks."""
    async with AsyncExitStack() as stack:
        managers = [
            await stack.enter_async_context(Redlock(masters, restart_guard="off")) for _ in range(3)
        ]
        for turn, master in enumerate(masters):
            master.latency = 0.001 * (1 + turn)
        for _ in range(20):
            sets = zip(managers, ("ab", "bc", "ca"), strict=True)
            began = now()
            await asyncio.gather(*(acquired_at(m, *names, fair=True) for m, names in sets))
            assert now() - began < 0.2


@pytest.mark.promise("S8")
async def test_a_waiter_that_dies_blocks_others_only_while_it_is_registered(
    redlock: Redlock, masters: list[FakeMaster]
) -> None:
    await acquired_at(redlock, "a", fair=True)  # the masters have the scripts now
    keys = (b"a", b"b", *commands.queue_keys(b"a", b"b"))
    for master in masters:
        master.set("b", "theirs", ttl=60_000)
        entry = commands.QueueEntry(b"its/1", 1, LIVES, most=9, not_after=2**53)
        answer = execute(master, commands.enqueue(keys, b"?", 10_000, entry))
        assert isinstance(answer, list)
        assert answer[0] == 1  # the waiter that dies is next
    died = now()
    assert LIVES / 1000 <= await acquired_at(redlock, "a", fair=True) - died < LIVES / 1000 + 1.1


async def test_a_full_queue_of_one_refuses_all(masters: list[FakeMaster]) -> None:
    async with Redlock(masters, max_waiters=1) as redlock, redlock.lock("b", fair=True):
        first = asyncio.create_task(acquired_at(redlock, "b", fair=True))
        await asyncio.sleep(0.1)
        with pytest.raises(LockNotAcquiredError, match="its queue is full"):
            await asyncio.create_task(acquired_at(redlock, "a", "b", "c", fair=True))
        await asyncio.sleep(0.1)
        for name in b"a", b"c":
            for key in commands.queue_keys(name):
                assert all(key not in master._keys for master in masters)
        await acquired_at(redlock, "a", "c", fair=True)
        first.cancel()
        await asyncio.wait([first])


async def test_a_holder_that_has_waited_does_not_fill_the_queue(masters: list[FakeMaster]) -> None:
    """It stays in the queue until it releases the lock, and waits no more."""
    async with Redlock(masters, max_waiters=1) as redlock:
        lock = redlock.lock("r", fair=True)

        async def check_full() -> None:
            await asyncio.sleep(0.1)
            with pytest.raises(LockNotAcquiredError, match="its queue is full"):
                await asyncio.create_task(lock.acquire())

        first = await lock.acquire()  # finds the lock free, and enters no queue
        waiter = asyncio.create_task(lock.acquire())
        await check_full()
        await first.release()
        second = await waiter
        waiter = asyncio.create_task(lock.acquire())
        await check_full()
        await second.release()
        await (await waiter).release()
