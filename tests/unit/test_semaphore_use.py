"""
How much of the permits' time many tasks use, and for how long they wait, in virtual time.

The figures are those of the protocol: the processor costs nothing here. The masters' answers take
half a round trip and more, at random, so masters execute requests in different orders.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from typing import NamedTuple

import pytest

from redlock_aio import Lease, Redlock
from redlock_aio.testing import FakeMaster

from .kit import now

PROGRAMS = 10


class Crowd(NamedTuple):
    """Tasks that want one of some permits again and again; times are in seconds."""

    permits: int
    tasks: int
    held: float
    trip: float
    least: float
    """The share of the permits' time that has to be used."""
    seconds: float


CROWDS = {
    "5 permits of 20 ms": Crowd(5, 20, 0.02, 0.0004, 0.85, 0.4),
    "50 permits of 50 ms": Crowd(50, 100, 0.05, 0.0004, 0.80, 0.5),
    "50 permits of 100 ms, 5 ms away": Crowd(50, 100, 0.1, 0.005, 0.70, 1.0),
    "20 permits of 500 ms, 40 ms away": Crowd(20, 40, 0.5, 0.04, 0.70, 5.0),
}


class Distant(FakeMaster):
    """A master whose round trips take *trip* seconds and exponentially more, half of that."""

    def __init__(self, trip: float, chance: random.Random) -> None:
        self._trip = trip
        self._chance = chance
        super().__init__()

    @property
    def latency(self) -> float:
        return self._trip * (1 + self._chance.expovariate(2))

    @latency.setter
    def latency(self, _seconds: float) -> None:
        pass


async def use_of(crowd: Crowd, *, strictly: bool) -> tuple[float, float]:
    """
    Return the share of the permits' time that is used, and the longest wait.

    Args:
        strictly: Whether each task holds a fair lock while it waits for a permit: a turnstile.
    """
    chance, held, used, longest = random.Random(1), set[int | None](), 0.0, 0.0
    async with AsyncExitStack() as stack:
        masters = [Distant(crowd.trip, chance) for _ in range(5)]
        programs = [await stack.enter_async_context(Redlock(masters)) for _ in range(PROGRAMS)]

        async def behind_a_turnstile(program: Redlock) -> Lease:
            async with program.lock("turnstile", fair=True):
                return await program.semaphore("r", permits=crowd.permits).acquire()

        async def at_once(program: Redlock) -> Lease:
            return await program.semaphore("r", permits=crowd.permits).acquire()

        acquire: Callable[[Redlock], Awaitable[Lease]] = behind_a_turnstile if strictly else at_once

        async def work(number: int) -> None:
            nonlocal used, longest
            while (asked := now()) < ends:
                lease = await acquire(programs[number % PROGRAMS])
                longest = max(longest, now() - asked)
                assert lease.permit not in held
                held.add(lease.permit)
                began = now()
                await asyncio.sleep(crowd.held)
                used += max(min(now(), ends) - max(began, begins), 0.0)
                held.remove(lease.permit)
                await lease.release()

        begins = now() + 2 * crowd.held
        ends = begins + crowd.seconds
        await asyncio.gather(*map(work, range(crowd.tasks)))
    return used / crowd.permits / crowd.seconds, longest


@pytest.mark.full
@pytest.mark.promise("S8")
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.full] if number else [])
        for number, name in enumerate(CROWDS)
    ],
)
async def test_permits_are_used_and_nobody_waits_much_longer_than_in_strict_order(
    name: str,
) -> None:
    crowd = CROWDS[name]
    used, longest = await use_of(crowd, strictly=False)
    _, strictly = await use_of(crowd, strictly=True)
    assert used >= crowd.least
    assert longest <= 2 * strictly
