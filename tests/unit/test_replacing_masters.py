"""A master is replaced as docs/how-to describes, while programs hold and contend for locks."""

import asyncio
import random
from collections.abc import AsyncIterator

import pytest

from redlock_aio import Lease, Redlock
from redlock_aio._rules import timing
from redlock_aio._rules.membership import LIVES
from redlock_aio.testing import FakeMaster

MAX_TTL = 5_000
QUARANTINE = timing.forgetting(MAX_TTL, factor=timing.DRIFT_FACTOR)
"""The length of a quarantine in seconds."""

pytestmark = [pytest.mark.promise("S1")]


class Program:
    """
    One of several programs, which is restarted with another list of masters.

    It works under a lock for which all programs contend, and counts its acquisitions.
    """

    def __init__(self, inside: list["Program"]) -> None:
        self.worked = 0
        self.redlock: Redlock
        self._inside = inside
        self._task: asyncio.Task[None] | None = None

    async def restart(self, masters: list[FakeMaster]) -> None:
        await self.stop()
        self.redlock = Redlock(masters, max_ttl=MAX_TTL, fencing=True)
        await self.redlock.__aenter__()
        self._task = asyncio.create_task(self._work(self.redlock))

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
            assert self._task.cancelled(), self._task.exception()
            await self.redlock.aclose()

    async def works(self) -> bool:
        """Return whether it acquires the lock within some seconds."""
        before = self.worked
        await asyncio.sleep(2)
        return self.worked > before

    async def _work(self, redlock: Redlock) -> None:
        while True:
            async with redlock.lock("busy", ttl=1000) as lease:
                self._inside.append(self)
                assert self._inside == [self], "two hold it"
                try:
                    await asyncio.sleep(0.02)
                    lease.ensure_valid()
                finally:
                    self._inside.remove(self)
                self.worked += 1
            await asyncio.sleep(random.uniform(0, 0.2))


@pytest.fixture
async def programs() -> AsyncIterator[list[Program]]:
    """Return three programs that have not been started; stop them after the test."""
    inside: list[Program] = []
    programs = [Program(inside) for _ in range(3)]
    yield programs
    for program in programs:
        await program.stop()


@pytest.mark.full
@pytest.mark.parametrize("size", [3, pytest.param(5, marks=pytest.mark.full)])
@pytest.mark.parametrize("uptime", [0.0, pytest.param(1e6, marks=pytest.mark.full)])
async def test_a_master_is_replaced_in_two_steps_under_held_and_contended_locks(
    masters: list[FakeMaster], programs: list[Program], size: int, uptime: float
) -> None:
    """All programs drop the old master, one after the other; then all add the new one."""
    old, fresh = masters[:size], FakeMaster("fresh")
    fresh.uptime = uptime
    for program in programs:
        await program.restart(old)
    await asyncio.sleep(2 * QUARANTINE)
    *others, holder = programs
    for step in (old[:-1], [*old[:-1], fresh]):
        held: Lease = await holder.redlock.lock("held", ttl=2000, on_lost="flag").acquire()
        for program in others:
            await program.restart(step)
            assert await program.works(), "it gets the lock as the others do"
            newcomer = program.redlock.lock("held", wait=0, ttl=500)
            assert await newcomer.try_acquire() is None
            assert held.valid, "extended all the time, while the others changed"
        await held.release()
        await holder.restart(step)
        assert await holder.works()
        await asyncio.sleep(LIVES * QUARANTINE + 1)  # until the leases of the old list are over
    async with programs[0].redlock.lock("probe", ttl=1000) as lease:
        await asyncio.sleep(0.05)
        assert [vote.answer.name for vote in lease.votes] == ["GRANTED"] * size
