"""Waiters in the masters' queues, and what must be left of them."""

import asyncio
import itertools

from redlock_aio import Redlock
from redlock_aio._rules import fair_ticket

from .helpers import RealMaster, gone, own_keys, queued, until

PATIENCE = 30_000

SLACK = 0.04
"""
Seconds by which one may come before another that has asked earlier in another manager.

Each knows the masters' time as well as it has read their answers in time, which
is late on a busy machine; the longest stalls that are measured come on top. Within a manager the
order is exact.
"""


class Stalls:
    """Measures by how many seconds at most the loop runs what is due later than it is due."""

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


class Row:
    """Waiters of several managers, and the order in which they were served."""

    def __init__(self, *managers: Redlock) -> None:
        self._managers = managers
        self.order: list[int] = []
        self.tasks: list[asyncio.Task[None]] = []
        self._asked_at: list[float] = []
        self._stalls = Stalls()

    async def _one(self, number: int, ttl: int) -> None:
        manager = self._managers[number % len(self._managers)]
        async with manager.lock("r", fair=True, wait=PATIENCE, ttl=ttl):
            self.order.append(number)
            await asyncio.sleep(0.002)

    async def join(self, number: int, *, apart: float = 0.03, ttl: int = 10_000) -> None:
        """Let so many more ask, one after the other."""
        for _ in range(number):
            self._asked_at.append(asyncio.get_running_loop().time())
            self.tasks.append(asyncio.create_task(self._one(len(self.tasks), ttl)))
            await asyncio.sleep(apart)

    async def served(self) -> None:
        """Wait until all have had it, and fail if one has failed."""
        await asyncio.gather(*self.tasks)
        self._stalls.stop()
        # One stall of each: of this process, and of a server, which has the same processors.
        between = SLACK + 2 * self._stalls.longest
        assert sorted(self.order) == list(range(len(self.tasks)))
        for before, after in itertools.combinations(self.order, 2):
            of_one = (after - before) % len(self._managers) == 0
            slack = 0 if of_one else between
            assert self._asked_at[before] <= self._asked_at[after] + slack, self.order


async def nothing_is_left(masters: list[RealMaster]) -> None:
    """
    See all queues go before they would expire, and the channels when nobody has waited for long.

    With `seldom_beats` that is a long time.
    """
    await until(lambda: gone(masters, "r"))
    await until(lambda: not any(queued(masters)), within=min(fair_ticket.LIVES / 1000 - 1, 20))
    await until(lambda: not own_keys(masters), within=20)
