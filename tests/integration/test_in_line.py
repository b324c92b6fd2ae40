"""The tasks of one manager that want one resource: in order, without gaps, and fair to others."""

import asyncio

import pytest

from redlock_aio import Answer, Lease, LockNotAcquiredError, Redlock, RedlockError, Retry

from .helpers import (
    AT_ONCE,
    SELDOM,
    TIMEOUT,
    RealMaster,
    Stopwatch,
    call,
    connected,
    gone,
    line,
    put,
    until,
)

pytestmark = pytest.mark.integration

AT_LAST = 15_000
"""Ms in which everything here is done; a turn that is not passed on takes 20 000."""


class Crowd:
    """Tasks of one manager that want the same resource, and the order in which they get it."""

    def __init__(self, redlock: Redlock) -> None:
        self._redlock = redlock
        self.order: list[int] = []
        self.tasks: list[asyncio.Task[None]] = []

    async def _one(self, number: int, **options: object) -> None:
        async with self._redlock.lock("r", **{"retry": SELDOM, **options}):  # type: ignore[arg-type]
            self.order.append(number)
            await asyncio.sleep(0)

    async def join(self, **options: object) -> asyncio.Task[None]:
        """Let one more ask, behind all others."""
        task = asyncio.create_task(self._one(len(self.tasks), **options))
        self.tasks.append(task)
        await asyncio.sleep(0)
        return task

    async def done(self) -> None:
        """Wait until all have had it, or failed."""
        async with asyncio.timeout(AT_LAST / 1000):
            await asyncio.wait(self.tasks)


@pytest.mark.promise("S9")
async def test_tasks_get_the_lock_in_the_order_in_which_they_asked(redlock: Redlock) -> None:
    """68: twenty, the first of which has it at once."""
    crowd = Crowd(redlock)
    for _ in range(20):
        await crowd.join()
    await crowd.done()
    assert crowd.order == list(range(20))


@pytest.mark.promise("S9")
async def test_tasks_get_the_lock_in_order_after_a_stranger(
    redlock: Redlock, masters: list[RealMaster]
) -> None:
    """68: the first is woken, the others follow."""
    put(masters, "r", 60_000)
    crowd = Crowd(redlock)
    for _ in range(20):
        await crowd.join()
    await asyncio.sleep(0.2)
    assert not crowd.order
    for master in masters:
        call(master, "DEL", "r")
    await crowd.done()
    assert crowd.order == list(range(20))


@pytest.mark.promise("S9")
async def test_whoever_leaves_the_line_leaves_no_gap(redlock: Redlock) -> None:
    """28: by a cancellation in the middle, at the head and at the end, and by a time-out."""
    crowd = Crowd(redlock)
    async with redlock.lock("r"):
        for number in range(12):
            await crowd.join(**({"wait": 100} if number in {2, 3, 7} else {}))
        for number in (0, 5, 6, 11):
            crowd.tasks[number].cancel()
        await asyncio.wait([crowd.tasks[number] for number in (2, 3, 7)])
    await crowd.done()
    assert crowd.order == [1, 4, 8, 9, 10]
    for number in (2, 3, 7):
        assert isinstance(crowd.tasks[number].exception(), LockNotAcquiredError)


async def test_other_options_are_no_other_line(redlock: Redlock) -> None:
    """53: it is the resource that counts, not the object or what it was made with."""
    crowd = Crowd(redlock)
    options: list[dict[str, object]] = [
        {"ttl": 5_000},
        {"wait": 60_000},
        {"auto_extend": False},
        {"on_lost": "flag"},
        {"max_hold": 20_000},
        {"retry": Retry(min_delay=1, max_delay=1)},
    ]
    async with redlock.lock("r"):
        for number in range(12):
            await crowd.join(**options[number % 6])
    await crowd.done()
    assert crowd.order == list(range(12))


async def test_other_resources_are_other_lines(redlock: Redlock) -> None:
    """20: nobody waits for whom it does not concern."""
    async with redlock.lock("r"):
        waiter = asyncio.create_task(redlock.lock("r").acquire())
        await asyncio.sleep(0)
        async with redlock.lock("R", wait=0), redlock.lock("r ", wait=0):
            assert not waiter.done()
    await (await waiter).release()


async def test_whoever_tries_only_once_does_not_stand_in_line(redlock: Redlock) -> None:
    """22: behind ten who wait, and answered by the masters at once."""
    crowd = Crowd(redlock)
    async with redlock.lock("r"):
        for _ in range(10):
            await crowd.join()
        async with asyncio.timeout(AT_ONCE):
            assert await redlock.lock("r").try_acquire() is None
            with pytest.raises(LockNotAcquiredError) as caught:
                await redlock.lock("r", wait=0).acquire()
        assert caught.value.attempts == 1
        assert len(line(redlock)._queue or ()) == 10
    await crowd.done()
    assert crowd.order == list(range(10))


@pytest.mark.promise("S3")
@pytest.mark.parametrize("turns", range(4))
async def test_who_is_cancelled_when_its_turn_comes_passes_it_on(
    redlock: Redlock, masters: list[RealMaster], turns: int
) -> None:
    """28: before it runs, and while it asks the masters; five in a row."""
    crowd = Crowd(redlock)
    lease = await redlock.lock("r").acquire()
    for _ in range(7):
        await crowd.join()
    releasing = asyncio.create_task(lease.release())
    await asyncio.sleep(0)
    assert not lease.valid
    assert not crowd.order  # the head has the turn by now
    for task in crowd.tasks[:5]:
        for _ in range(turns):
            await asyncio.sleep(0)
        task.cancel()
    await crowd.done()
    await releasing
    assert crowd.order[-2:] == [5, 6]
    assert all(task.cancelled() or not task.exception() for task in crowd.tasks)
    await until(lambda: gone(masters, "r"))


async def test_the_next_starts_without_a_delay(redlock: Redlock) -> None:
    """25: its attempt travels right behind the release."""
    ends: list[float] = []
    begins: list[float] = []
    loop = asyncio.get_running_loop()

    async def worker() -> None:
        async with redlock.lock("r", retry=SELDOM):
            begins.append(loop.time())
            await asyncio.sleep(0.001)
            ends.append(loop.time())

    await asyncio.gather(*(worker() for _ in range(20)))
    gaps = sorted(begin - end for begin, end in zip(begins[1:], ends[:-1], strict=True))
    assert gaps[0] > 0
    assert gaps[10] < 1
    assert gaps[-1] < AT_ONCE


async def test_who_waits_in_line_too_long_is_told_who_holds_the_lock(
    redlock: Redlock, masters: list[RealMaster]
) -> None:
    """24, 62: though it never had its turn, the masters are asked at the end."""
    async with redlock.lock("r", ttl=30_000) as lease:
        crowd = Crowd(redlock)
        await crowd.join()
        errors = []

        async def told() -> bool:
            watch = Stopwatch()
            with pytest.raises(LockNotAcquiredError) as caught:
                await redlock.lock("r", wait=300).acquire()
            assert 250 < watch.ms < 300 + 4 * TIMEOUT
            errors.append(caught.value)
            # A master that is late on a busy machine is not heard out.
            return all(vote.detail.endswith("ms left") for vote in caught.value.votes)

        await until(told)
        error = errors[-1]
        assert error.holder is not None
        assert error.holder.fingerprint == lease.fingerprint
        assert error.retry_after is not None
        assert 0 < error.retry_after <= 30_000
        assert len(error.votes) == len(masters)
        assert all(vote.answer is Answer.HELD for vote in error.votes)
    await crowd.done()


async def test_who_waited_too_long_is_not_remembered(redlock: Redlock) -> None:
    """48: however many come and go while one task has the lock."""
    async with redlock.lock("r"):
        locks = [redlock.lock("r", wait=20) for _ in range(50)]
        tries = [asyncio.create_task(lock.acquire()) for lock in locks]
        await asyncio.wait(tries)
        assert all(isinstance(task.exception(), LockNotAcquiredError) for task in tries)
        assert not line(redlock)._queue


async def test_a_manager_that_is_closed_sends_all_in_line_away(
    masters: list[RealMaster],
) -> None:
    """48: ten, one of whom holds the lock; nothing of it stays."""
    async with connected(masters) as redlock:
        lease = await redlock.lock("r").acquire()
        tasks = [asyncio.create_task(redlock.lock("r").acquire()) for _ in range(10)]
        await asyncio.sleep(0.05)
        assert lease.valid
    async with asyncio.timeout(AT_ONCE):
        await asyncio.wait(tasks)
    for task in tasks:
        error = task.exception()
        assert type(error) is RedlockError
        assert "closed" in str(error)
    await until(lambda: gone(masters, "r"))


async def test_a_manager_that_is_closed_while_a_stranger_holds_the_lock(
    masters: list[RealMaster],
) -> None:
    """48: the one whose turn it is waits for the masters, the others for it."""
    put(masters, "r", 60_000)
    async with connected(masters) as redlock:
        tasks = [asyncio.create_task(redlock.lock("r").acquire()) for _ in range(10)]
        await asyncio.sleep(0.05)
    async with asyncio.timeout(AT_ONCE):
        await asyncio.wait(tasks)
    assert {type(task.exception()) for task in tasks} == {RedlockError}


async def test_a_lock_that_is_lost_passes_the_turn_on(
    redlock: Redlock, masters: list[RealMaster]
) -> None:
    """44, 52: to who waits behind it in the same manager."""
    lease = await redlock.lock("r", ttl=30_000).acquire()
    crowd = Crowd(redlock)
    for _ in range(3):
        await crowd.join()
    await until(lambda: lease._hold.checked_at > 0)
    await asyncio.sleep(0.05)
    for master in masters:
        call(master, "DEL", "r")
    await crowd.done()
    assert crowd.order == [0, 1, 2]
    assert lease.lost.is_set()


@pytest.mark.promise("S9")
async def test_greedy_tasks_of_two_managers_both_get_on(redlock: Redlock, other: Redlock) -> None:
    """31: neither passes the lock from task to task for so long that the other starves."""
    turns = dict.fromkeys((redlock, other), 0)

    async def greedy(manager: Redlock) -> None:
        while min(turns.values()) < 50:
            async with manager.lock("r"):
                turns[manager] += 1
                await asyncio.sleep(0)

    # One that starves never gets there: the other goes on until it does.
    async with asyncio.timeout(30):
        await asyncio.gather(*(greedy(manager) for manager in (redlock, other) for _ in range(4)))


async def test_a_task_that_comes_when_the_line_is_passed_on_goes_behind_it(
    redlock: Redlock,
) -> None:
    """68: at any turn of the loop around the release."""
    for turns in range(12):
        order: list[str] = []

        async def want(name: str, order: list[str] = order) -> Lease:
            lease = await redlock.lock("r", retry=SELDOM).acquire()
            order.append(name)
            return lease

        lease = await redlock.lock("r").acquire()
        first = asyncio.create_task(want("first"))
        await asyncio.sleep(0)
        releasing = asyncio.create_task(lease.release())
        for _ in range(turns):
            await asyncio.sleep(0)
        second = asyncio.create_task(want("second"))
        async with asyncio.timeout(AT_LAST / 1000):
            await releasing
            await (await first).release()
            await (await second).release()
        assert order == ["first", "second"]
