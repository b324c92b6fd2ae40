"""
How soon a waiter in another manager has a lock that has become free; `contention.py` shows it.

That waiter retries after a minute, so only a wake-up explains an earlier acquisition.
"""

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass

import measuring
import redis.asyncio
from floor import Floor, floor_latency
from measuring import bar, median

from redlock_aio import Redlock, Retry

MOST_ROUND_TRIPS = 4
MOST_WAKING_MS = 50
EXPIRY = 100
"""The ttl of a foreign key, in milliseconds."""
NEVER = 60_000
"""Milliseconds between two attempts of a waiter that is to be woken earlier."""
GIVEN_UP = 10.0
"""Seconds; a waiter that was not woken counts with this time."""


@dataclass(frozen=True, slots=True)
class Woken:
    """The times until a waiter had the lock, and those of pairs of the floor, in ms."""

    took: list[float]
    busy: float
    """The latency of pairs one right after the other, measured just before."""
    idle: list[float]
    """The latencies of pairs after a pause, measured in turn with the waiter's times."""

    @property
    def round_trips(self) -> float:
        return median(self.took) / (self.busy / 2)

    @property
    def idle_round_trips(self) -> float:
        return measuring.median_ratio(self.took, (pair / 2 for pair in self.idle))


class Scene:
    """A holder, a waiter with connections of its own, and plain clients of the masters."""

    KEY = "waking"

    def __init__(
        self,
        holder: Redlock,
        waiter: Redlock,
        others: Sequence[redis.asyncio.Redis],
        floor: Floor,
    ) -> None:
        self._holder = holder
        self._waiter = waiter
        self._others = others
        self._floor = floor

    async def idle_pair(self) -> float:
        """Return the latency of a pair of the floor after a pause."""
        await self._a_while()
        began = time.monotonic()
        await self._floor.pair("benchmark:0")
        return time.monotonic() - began

    async def _wait(self, *, fair: bool) -> float:
        try:
            async with (
                asyncio.timeout(GIVEN_UP),
                self._waiter.lock(self.KEY, ttl=10_000, fair=fair),
            ):
                return time.monotonic()
        except TimeoutError:
            return time.monotonic()

    async def _a_while(self) -> None:
        await asyncio.sleep(random.uniform(0.03, 0.08))

    async def _set(self, ttl: int) -> None:
        await asyncio.gather(*(each.set(self.KEY, "foreign", px=ttl) for each in self._others))

    async def after_release(self, *, fair: bool) -> float:
        lease = await self._holder.lock(self.KEY, ttl=10_000, fair=fair).acquire()
        waiting = asyncio.create_task(self._wait(fair=fair))
        await self._a_while()
        began = time.monotonic()
        await lease.release()
        return await waiting - began

    async def after_expiry(self) -> float:
        began = time.monotonic()  # no key expires earlier than its ttl after this
        await self._set(EXPIRY)
        return await self._wait(fair=False) - began - EXPIRY / 1000

    async def after_delete(self) -> float:
        await self._set(10_000)
        waiting = asyncio.create_task(self._wait(fair=False))
        await self._a_while()
        began = time.monotonic()
        await asyncio.gather(*(each.delete(self.KEY) for each in self._others))
        return await waiting - began


RELEASE, FAIR_RELEASE = "a release", "a release, fair"
EXPIRED, DELETED = "the expiry of a foreign key", "a foreign `DEL` on all masters"


async def measure(urls: Sequence[str], times: int) -> dict[str, Woken]:
    """Measure each way in which a lock becomes free."""
    async with AsyncExitStack() as stack:
        holder = await stack.enter_async_context(Redlock(urls))
        never = Retry(min_delay=NEVER, max_delay=NEVER)
        waiter = await stack.enter_async_context(Redlock(urls, retry=never))
        others = [
            await stack.enter_async_context(redis.asyncio.Redis.from_url(url)) for url in urls
        ]
        floor = Floor(urls)
        await floor.open(measuring.names(1))
        stack.push_async_callback(floor.aclose)
        scene = Scene(holder, waiter, others, floor)
        ways: dict[str, Callable[[], Awaitable[float]]] = {
            RELEASE: lambda: scene.after_release(fair=False),
            FAIR_RELEASE: lambda: scene.after_release(fair=True),
            EXPIRED: scene.after_expiry,
            DELETED: scene.after_delete,
        }
        woken: dict[str, Woken] = {}
        for way, once in ways.items():
            await once()  # connections are made on demand
            busy = await floor_latency(urls, 0.2) / 1000
            took, idle = [], []
            for _ in range(times):
                took.append(await once() * 1000)
                idle.append(await scene.idle_pair() * 1000)
            woken[way] = Woken(took, busy, idle)
        return woken


def rows(found: Mapping[str, Woken]) -> Iterator[list[str]]:
    """Return the rows of the table, one for each way."""
    for way, woken in found.items():
        trips, longest = woken.idle_round_trips, max(woken.took)
        yield [
            way,
            f"{median(woken.took):.2f} ms",
            f"{woken.round_trips:.1f}",
            f"{trips:.1f}",
            f"{longest:.2f} ms",
            bar(f"median <= {MOST_ROUND_TRIPS} idle ones", passed=trips <= MOST_ROUND_TRIPS)
            if way in {RELEASE, FAIR_RELEASE}
            else bar(f"longest <= {MOST_WAKING_MS} ms", passed=longest <= MOST_WAKING_MS),
        ]
