"""
Thousands of tasks that lock, extend and release, and are cancelled at random moments.

Afterwards nothing is left of them: no key on any master, no task, no debt, no
socket, no complaint. The ttl is so long that no key can end by itself meanwhile.
"""

import asyncio
import contextlib
import gc
import os
import random
import sys
import time
import warnings
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field

import anyio
import pytest

from redlock_aio import Lock, Redlock
from redlock_aio.testing import EmbeddedMaster

from . import nemesis
from .keys import left_behind

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(600)]

TTL = 60_000
AT_ONCE = 16
EACH = 5_000
"""How many cancellations each test makes in a default run, at least."""

CONDEMNED = 1.5
"""Seconds after which a hung master's connection has been given up, and another been tried."""

CLEAN_WITHIN = 2.0
SHARED = ("one", "two", "three")
LONGEST = 0.003


@dataclass
class Storm:
    """Tasks on a few resources, each cancelled once or twice."""

    redlock: Redlock
    chance: random.Random
    outcomes: Counter[str] = field(default_factory=Counter)
    shared: Lock = field(init=False)
    took: float = 0.0

    def __post_init__(self) -> None:
        self.shared = self.redlock.lock("one", ttl=TTL)

    def moment(self) -> float:
        return self.chance.uniform(0, LONGEST)

    def lock(self) -> Lock:
        """Return a lock on a resource that others want, or on one's own."""
        if self.chance.random() < 0.1:
            return self.shared
        mine = f"mine {self.chance.getrandbits(64)}"
        return self.redlock.lock(self.chance.choice((*SHARED, mine, mine, mine)), ttl=TTL)

    async def hold(self) -> None:
        async with self.lock():
            await asyncio.sleep(self.moment())

    async def extend(self) -> None:
        async with self.lock() as lease:
            await lease.extend(TTL)
            await asyncio.sleep(self.moment())
            await lease.extend()

    async def by_hand(self) -> None:
        lease = await self.lock().acquire()
        try:
            await lease.extend()
            await asyncio.sleep(self.moment())
        finally:
            await lease.release()

    async def try_it(self) -> None:
        lease = await self.lock().try_acquire()
        if lease is not None:
            async with lease:
                await asyncio.sleep(self.moment())

    async def inside_and_out(self) -> None:
        """Hold two at once; whoever can't have the second gives up the first."""
        async with self.lock():
            inner = await self.redlock.lock(self.chance.choice(SHARED), ttl=TTL).try_acquire()
            if inner is not None:
                async with inner:
                    await asyncio.sleep(self.moment())

    async def cut_short(self, what: Callable[[], Awaitable[None]]) -> None:
        """Do *what* within one of the time limits that people put around things."""
        match self.chance.randrange(4):
            case 0:
                async with asyncio.timeout(self.moment()):
                    await what()
            case 1:
                with anyio.move_on_after(self.moment()):
                    await what()
            case 2:
                await asyncio.wait_for(what(), self.moment())
            case _:
                await what()

    async def one(self) -> None:
        """Start one task and cancel it, perhaps before it has begun, perhaps twice."""
        kinds = (self.hold, self.extend, self.by_hand, self.try_it, self.inside_and_out)
        task = asyncio.create_task(self.cut_short(self.chance.choice(kinds)))
        for _ in range(self.chance.choice((1, 1, 1, 2))):
            match self.chance.randrange(6):
                case 0:
                    pass  # in the same turn of the loop
                case 1:
                    await asyncio.sleep(0)
                case _:
                    await asyncio.sleep(self.moment())
            task.cancel()
        (outcome,) = await asyncio.gather(task, return_exceptions=True)
        if outcome is not None and not isinstance(outcome, asyncio.CancelledError | TimeoutError):
            raise outcome
        self.outcomes[type(outcome).__name__] += 1

    def report(self, what: str) -> None:
        sys.stdout.write(f"{what}: {dict(self.outcomes)} in {self.took:.1f} s\n")

    async def rage(self, times: int, seconds: float) -> None:
        """Do it at least so often and at least so long, several at once."""
        began = time.monotonic()

        async def several() -> None:
            while self.outcomes.total() < times or time.monotonic() < began + seconds:
                await self.one()

        async with asyncio.TaskGroup() as tasks:
            for _ in range(AT_ONCE):
                tasks.create_task(several())
        self.took = time.monotonic() - began


async def owed(redlock: Redlock, *, within: float) -> list[str]:
    """Return the masters that still have debts, or are not back, after *within* seconds."""
    ends = time.monotonic() + within
    while True:
        states = [repr(master) for master in redlock._opener.session().links]
        left = [state for state in states if not state.endswith(", up, 0 debts>")]
        if not left or time.monotonic() > ends:
            return left
        await asyncio.sleep(0.01)


def other_tasks() -> list[str]:
    """Return the names of all tasks but the running one."""
    return sorted(task.get_name() for task in asyncio.all_tasks() - {asyncio.current_task()})


def files() -> int:
    """Return how many files this process has open."""
    return len(os.listdir("/proc/self/fd"))  # noqa: PTH208 - counted, not used as paths


@dataclass
class Scene:
    """What surrounds a storm, to see what it leaves behind."""

    masters: list[EmbeddedMaster]
    complaints: list[str] = field(default_factory=list)

    @contextlib.asynccontextmanager
    async def redlock(self) -> AsyncIterator[Redlock]:
        """Give a manager for a storm, then look what the storm has left behind."""
        asyncio.get_running_loop().set_exception_handler(
            lambda _loop, context: self.complaints.append(str(context))
        )
        before = files()
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            # A master that restarts is to take part again at once: it has what can stay.
            urls = [master.url for master in self.masters]
            async with Redlock(urls, restart_guard="off") as redlock:
                tasks = other_tasks()
                yield redlock
                await self.look(redlock, tasks)
            assert other_tasks() == []
            await asyncio.sleep(0)  # transports close themselves in the next turn
            gc.collect()
        assert [str(warning.message) for warning in warned] == []
        assert self.complaints == []
        assert files() <= before

    async def look(self, redlock: Redlock, tasks: list[str]) -> None:
        """Look at what is left while the manager is open, after all masters have come back."""
        ends = time.monotonic() + CLEAN_WITHIN
        assert await owed(redlock, within=CLEAN_WITHIN) == []
        assert left_behind(self.masters, within=max(0.0, ends - time.monotonic())) == {}
        assert other_tasks() == tasks
        assert redlock.statistics().leases == 0


@pytest.mark.promise("S3")
@pytest.mark.parametrize(
    "hung",
    [pytest.param(0, marks=pytest.mark.full), 1, pytest.param(2, marks=pytest.mark.full)],
)
async def test_nothing_is_left_of_thousands_of_cancellations(
    masters: list[EmbeddedMaster], chance: random.Random, seconds: float, hung: int
) -> None:
    async with Scene(masters).redlock() as redlock:
        for master in masters[:hung]:
            master.pause()
        storm = Storm(redlock, chance)
        await storm.rage(round(EACH * max(1.0, seconds / 10)), CONDEMNED if hung else 0)
        for master in masters[:hung]:
            master.resume()
    storm.report(f"{hung} hung")
    assert storm.outcomes["CancelledError"] > storm.outcomes.total() / 2


@pytest.mark.promise("S3")
@pytest.mark.full
async def test_nothing_is_left_where_masters_come_and_go_meanwhile(
    masters: list[EmbeddedMaster], chance: random.Random, seconds: float
) -> None:
    deeds = nemesis.schedule(
        chance, masters=5, seconds=seconds / 5, what=("pause", "cut", "cut", "kill")
    )
    async with Scene(masters).redlock() as redlock:
        storm = Storm(redlock, chance)
        raging = asyncio.create_task(storm.rage(EACH, seconds / 5))
        done = await asyncio.to_thread(nemesis.perform, deeds, masters)
        await raging
    storm.report(str(done))
