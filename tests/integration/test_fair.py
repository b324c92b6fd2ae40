"""With ``fair=True`` the waiters of several programs are served in the order of their requests."""

import asyncio
import itertools

import pytest

from redlock_aio import Answer, LockNotAcquiredError, Redlock

from .helpers import (
    AT_ONCE,
    RealMaster,
    Stopwatch,
    call,
    connected,
    nothing_is_left,
    put,
    queued,
    until,
)

pytestmark = [
    pytest.mark.integration,
    pytest.mark.promise("S8"),
    pytest.mark.usefixtures("quick_unsubscribe"),
]

PATIENCE = 30_000

SLACK = 0.04
"""
Seconds by which a waiter may overtake one that asked earlier in another manager.

A manager knows the masters' time less exactly when it reads replies late, as on a busy machine;
the longest measured stalls are added. Among the waiters of one manager the order is exact.
"""


class Stalls:
    """Measures the longest delay of the event loop's timers, in seconds."""

    def __init__(self) -> None:
        self.longest = 0.0
        self._loop = asyncio.get_running_loop()
        self._tick()

    def _tick(self) -> None:
        self._due = self._loop.time() + 0.005
        self._timer = self._loop.call_at(self._due, self._late)

    def _late(self) -> None:
        self.longest = max(self.longest, self._loop.time() - self._due)
        self._tick()

    def stop(self) -> None:
        self._timer.cancel()


class Waiters:
    """Waiters of several managers, and the order in which they were served."""

    def __init__(self, *managers: Redlock) -> None:
        self._managers = managers
        self.order: list[int] = []
        self.tasks: list[asyncio.Task[None]] = []
        self._asked_at: list[float] = []
        self._stalls = Stalls()

    async def _one(self, number: int) -> None:
        manager = self._managers[number % len(self._managers)]
        async with manager.lock("r", fair=True, wait=PATIENCE):
            self.order.append(number)
            await asyncio.sleep(0.002)

    async def join(self, number: int, *, apart: float = 0.03) -> None:
        """Start *number* more waiters, one after the other."""
        for _ in range(number):
            self._asked_at.append(asyncio.get_running_loop().time())
            self.tasks.append(asyncio.create_task(self._one(len(self.tasks))))
            await asyncio.sleep(apart)

    async def served(self) -> None:
        """Wait until all were served, and check the order."""
        await asyncio.gather(*self.tasks)
        self._stalls.stop()
        # Two stalls may add up: one of this process, and one of a server on the same processors.
        between = SLACK + 2 * self._stalls.longest
        assert sorted(self.order) == list(range(len(self.tasks)))
        for before, after in itertools.combinations(self.order, 2):
            of_one = (after - before) % len(self._managers) == 0
            slack = 0 if of_one else between
            assert self._asked_at[before] <= self._asked_at[after] + slack, self.order


@pytest.mark.usefixtures("rare_heartbeats")
async def test_waiters_of_several_managers_are_served_in_order(
    redlock: Redlock, other: Redlock, masters: list[RealMaster]
) -> None:
    """They wait for a key of a foreign client, which does not use the queue."""
    put(masters, "r", 60_000)
    async with connected(masters) as third:
        waiters = Waiters(redlock, other, third)
        await waiters.join(8)
        for master in masters:
            call(master, "DEL", "r")
        await waiters.served()
    await nothing_is_left(masters)


@pytest.mark.usefixtures("rare_heartbeats")
async def test_newcomers_do_not_overtake(redlock: Redlock, other: Redlock) -> None:
    """They come all the time, each right after a release, when an overtaking is most likely."""
    waiters = Waiters(redlock, other)
    async with redlock.lock("r", fair=True):
        # The last of so many waits for longer than the slack between managers.
        await waiters.join(30, apart=0.004)
    for _ in range(30):
        await waiters.join(1, apart=0.004)
    await waiters.served()


@pytest.mark.usefixtures("rare_heartbeats")
@pytest.mark.promise("S3")
async def test_waiters_that_give_up_leave_all_queues(
    redlock: Redlock, other: Redlock, masters: list[RealMaster]
) -> None:
    """Their wait ends or is cancelled; the waiters behind them do not wait for a heartbeat."""
    waiters = Waiters(redlock, other)
    async with other.lock("r"):
        await waiters.join(2)
        short = asyncio.create_task(redlock.lock("r", fair=True, wait=1_000).acquire())
        await asyncio.sleep(0.03)
        await waiters.join(2)
        cancelled = asyncio.create_task(other.lock("r", fair=True).acquire())
        await asyncio.sleep(0.03)
        await waiters.join(2)
        await until(lambda: queued(masters) == [8] * 5)
        cancelled.cancel()
        async with asyncio.timeout(AT_ONCE):
            with pytest.raises(LockNotAcquiredError) as caught:
                await short
        assert sum(vote.answer is Answer.HELD for vote in caught.value.votes) >= 3
        await until(lambda: queued(masters) == [6] * 5)
    async with asyncio.timeout(AT_ONCE):
        await waiters.served()
    await nothing_is_left(masters)


async def test_waiters_queue_again_in_order_at_masters_that_restarted_empty(
    redlock: Redlock, other: Redlock, masters: list[RealMaster]
) -> None:
    """One master after the other restarts while eight waiters wait."""
    waiters = Waiters(redlock, other)
    async with redlock.lock("r", fair=True, ttl=60_000) as lease:
        await waiters.join(8)
        for master in masters[:4]:
            master.restart()
            # Before any client connects: three masters would grant the lock that they lost.
            call(master, "SET", "r", lease.token, "PX", "60000")
            await until(lambda master=master: queued([master]) >= [8])  # type: ignore[misc]
            await lease.extend()
    await waiters.served()
    await nothing_is_left(masters)


async def test_a_dead_holder_delays_the_queue_by_its_ttl_at_most(
    redlock: Redlock, other: Redlock, masters: list[RealMaster]
) -> None:
    """The dead holder is first in all queues, and is registered there for 1.5 s more."""
    for master in masters:
        seconds, micros = call(master, "TIME")
        now = int(seconds) * 1_000_000 + int(micros)
        deadline = 4 * 10**15 - (now // 1_000 + 1_500)
        call(master, "ZADD", "redlock_aio:queue:{r}", now, "dead/1", deadline, "~dead/1")
    put(masters, "r", 1_500)
    waiters = Waiters(redlock, other)
    watch = Stopwatch()
    await waiters.join(4)
    await waiters.served()
    assert 1_300 < watch.ms < 1_500 + 1_000 + 1000 * AT_ONCE
    await nothing_is_left(masters)
