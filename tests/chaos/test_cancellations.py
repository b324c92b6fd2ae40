"""
Thousands of tasks that lock, extend and release, and are cancelled at random moments.

Afterwards nothing of them is left: no key on any master, no task, no debt, no socket, no
error that the event loop reported. The ttl is so long that no key expires during a test.
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

from redlock_aio import Lock, QuorumUnavailableError, Redlock
from redlock_aio._protocol import request
from redlock_aio.testing import EmbeddedMaster
from tests.unit import kit

from . import nemesis
from .keys import left_behind

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(600)]

TTL = 60_000
AT_ONCE = 16
EACH = 5_000
"""The least number of cancellations of a test in the default run."""

RECONNECT = 1.5
"""Seconds in which the connection to a hung master is closed and another one is tried."""

CLEAN_WITHIN = 2.0
SHARED = ("one", "two", "three")
LONGEST = 0.003


def is_overload(error: BaseException) -> bool:
    """
    Return whether a single attempt failed because hung masters have too many requests.

    A fast machine sends 10,000 of them within the second after which a hung master is noticed.
    """
    full = request.OVERRUN.detail
    return isinstance(error, QuorumUnavailableError) and any(v.detail == full for v in error.votes)


@dataclass
class Load:
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
        """Return a lock on a resource that other tasks lock too, or on one of this task only."""
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

    async def acquire_and_release(self) -> None:
        lease = await self.lock().acquire()
        try:
            await lease.extend()
            await asyncio.sleep(self.moment())
        finally:
            await lease.release()

    async def try_to_hold(self) -> None:
        lease = await self.lock().try_acquire()
        if lease is not None:
            async with lease:
                await asyncio.sleep(self.moment())

    async def nested(self) -> None:
        """Hold two locks at once, or release the first if the second is held by another."""
        async with self.lock():
            inner = await self.redlock.lock(self.chance.choice(SHARED), ttl=TTL).try_acquire()
            if inner is not None:
                async with inner:
                    await asyncio.sleep(self.moment())

    async def with_time_limit(self, operation: Callable[[], Awaitable[None]]) -> None:
        """Run *operation* under one of the usual kinds of time limit, or without one."""
        match self.chance.randrange(4):
            case 0:
                async with asyncio.timeout(self.moment()):
                    await operation()
            case 1:
                with anyio.move_on_after(self.moment()):
                    await operation()
            case 2:
                await asyncio.wait_for(operation(), self.moment())
            case _:
                await operation()

    async def run_one(self) -> None:
        """Start one task and cancel it once or twice, perhaps before it has begun."""
        operations = (
            self.hold,
            self.extend,
            self.acquire_and_release,
            self.try_to_hold,
            self.nested,
        )
        task = asyncio.create_task(self.with_time_limit(self.chance.choice(operations)))
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
        expected = isinstance(outcome, asyncio.CancelledError | TimeoutError)
        if outcome is not None and not expected and not is_overload(outcome):
            raise outcome
        self.outcomes[type(outcome).__name__] += 1

    def report(self, label: str) -> None:
        sys.stdout.write(f"{label}: {dict(self.outcomes)} in {self.took:.1f} s\n")

    async def run(self, times: int, seconds: float) -> None:
        """Cancel at least *times* tasks, for at least *seconds*, `AT_ONCE` at the same time."""
        began = time.monotonic()

        async def run_some() -> None:
            while self.outcomes.total() < times or time.monotonic() < began + seconds:
                await self.run_one()

        async with asyncio.TaskGroup() as tasks:
            for _ in range(AT_ONCE):
                tasks.create_task(run_some())
        self.took = time.monotonic() - began


async def unsettled(redlock: Redlock, *, within: float) -> list[str]:
    """Return the masters that are still down or have debts after *within* seconds."""
    ends = time.monotonic() + within
    while True:
        states = [repr(master) for master in kit.session(redlock).links]
        left = [state for state in states if not state.endswith(", up, 0 debts>")]
        if not left or time.monotonic() > ends:
            return left
        await asyncio.sleep(0.01)


def other_tasks() -> list[str]:
    """Return the names of all tasks but the running one."""
    return sorted(task.get_name() for task in asyncio.all_tasks() - {asyncio.current_task()})


def open_files() -> int:
    """Return the number of open files of this process."""
    return len(os.listdir("/proc/self/fd"))  # noqa: PTH208 - counted, not used as paths


@dataclass
class LeakCheck:
    """Checks that a load leaves nothing behind, on the masters and in this process."""

    masters: list[EmbeddedMaster]
    reported: list[str] = field(default_factory=list)

    @contextlib.asynccontextmanager
    async def redlock(self) -> AsyncIterator[Redlock]:
        """Open a manager for a load; at the end, check that the load has left nothing behind."""
        asyncio.get_running_loop().set_exception_handler(
            lambda _loop, context: self.reported.append(str(context))
        )
        before = open_files()
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            # Without the restart guard a master votes as soon as it has restarted. No test
            # here depends on exclusion.
            urls = [master.url for master in self.masters]
            async with Redlock(urls, restart_guard="off") as redlock:
                tasks = other_tasks()
                yield redlock
                await self.check_nothing_left(redlock, tasks)
            assert other_tasks() == []
            await asyncio.sleep(0)  # transports are closed in the next turn of the loop
            gc.collect()
        assert [str(warning.message) for warning in warned] == []
        assert self.reported == []
        assert open_files() <= before

    async def check_nothing_left(self, redlock: Redlock, tasks: list[str]) -> None:
        """Check, while the manager is open and all masters are back, that nothing is left."""
        ends = time.monotonic() + CLEAN_WITHIN
        assert await unsettled(redlock, within=CLEAN_WITHIN) == []
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
    async with LeakCheck(masters).redlock() as redlock:
        for master in masters[:hung]:
            master.pause()
        load = Load(redlock, chance)
        await load.run(round(EACH * max(1.0, seconds / 10)), RECONNECT if hung else 0)
        for master in masters[:hung]:
            master.resume()
    load.report(f"{hung} hung")
    assert load.outcomes["CancelledError"] > load.outcomes.total() / 2


@pytest.mark.promise("S3")
@pytest.mark.full
async def test_nothing_is_left_of_cancellations_while_masters_come_and_go(
    masters: list[EmbeddedMaster], chance: random.Random, seconds: float
) -> None:
    faults = nemesis.schedule(
        chance, masters=5, seconds=seconds / 5, kinds=("pause", "cut", "cut", "kill")
    )
    async with LeakCheck(masters).redlock() as redlock:
        load = Load(redlock, chance)
        running = asyncio.create_task(load.run(EACH, seconds / 5))
        injected = await asyncio.to_thread(nemesis.inject, faults, masters)
        await running
    load.report(str(injected))
