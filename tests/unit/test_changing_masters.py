"""A master is replaced as the page says, while programs hold locks and contend for them."""

import asyncio
import itertools
import random

import pytest

from redlock_aio import Lease, QuorumUnavailableError, Redlock
from redlock_aio._rules import timing
from redlock_aio._rules.quorum import majority
from redlock_aio._transport.declarations import LIVES
from redlock_aio.testing import FakeMaster

from .kit import now

MAX_TTL = 5_000
LASTS = timing.forgetting(MAX_TTL, factor=timing.DRIFT_FACTOR)

pytestmark = [pytest.mark.promise("S1")]


@pytest.mark.parametrize("masters", range(1, 9))
def test_majorities_of_neighbours_overlap_and_those_after_a_swap_may_not(masters: int) -> None:
    def overlap(one: set[int], other: set[int]) -> bool:
        return all(
            set(x) & set(y)
            for x in itertools.combinations(one, majority(len(one)))
            for y in itertools.combinations(other, majority(len(other)))
        )

    ours = set(range(masters))
    assert overlap(ours, {*ours, 99})
    if masters % 2:
        assert not overlap(ours, {*ours, 99} - {0})
        assert not overlap(ours, {*ours, 98, 99})


class Program:
    """
    One of several programs, which is started anew with another list of masters.

    It works under a lock that all want, and counts how often it has had it.
    """

    def __init__(self, inside: list["Program"]) -> None:
        self.worked = 0
        self._inside = inside
        self._redlock: Redlock | None = None
        self._task: asyncio.Task[None] | None = None

    @property
    def redlock(self) -> Redlock:
        assert self._redlock is not None
        return self._redlock

    async def start(self, masters: list[FakeMaster]) -> None:
        self._redlock = Redlock(masters, max_ttl=MAX_TTL, fencing=True)
        await self._redlock.__aenter__()
        self._task = asyncio.create_task(self._work(self._redlock))

    async def stop(self) -> None:
        assert self._task is not None
        self._task.cancel()
        await asyncio.wait([self._task])
        assert self._task.cancelled(), self._task.exception()
        await self.redlock.aclose()

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


@pytest.mark.parametrize("size", [3, pytest.param(5, marks=pytest.mark.full)])
@pytest.mark.parametrize("uptime", [0.0, 1e6])
async def test_a_master_is_replaced_in_two_steps_under_held_and_contended_locks(
    masters: list[FakeMaster], size: int, uptime: float
) -> None:
    """Removed from all programs, one after the other; then the new one is added to all."""
    old, fresh = masters[:size], FakeMaster("fresh")
    fresh.uptime = uptime
    inside: list[Program] = []
    programs = [Program(inside) for _ in range(4)]
    for program in programs:
        await program.start(old)
    await asyncio.sleep(2 * LASTS)
    for step in (old[:-1], [*old[:-1], fresh]):
        held: Lease = await programs[-1].redlock.lock("held", ttl=2000, on_lost="flag").acquire()
        for program in programs:
            if program is programs[-1]:
                assert held.valid, "extended all the time, while the others changed"
                await held.release()
            await program.stop()
            await program.start(step)
            before = program.worked
            await asyncio.sleep(1.5)
            assert program.worked > before, "it gets the lock as the others do"
            if program is not programs[-1]:
                newcomer = program.redlock.lock("held", wait=0, ttl=500)
                assert await newcomer.try_acquire() is None
                assert held.valid
        await asyncio.sleep(LIVES * LASTS + 1)  # until the leases by the old list are over
    async with programs[0].redlock.lock("probe", ttl=1000) as lease:
        await asyncio.sleep(0.05)
        assert [vote.answer.name for vote in lease.votes] == ["GRANTED"] * size
    for program in programs:
        await program.stop()


@pytest.mark.parametrize("size", [3, pytest.param(5, marks=pytest.mark.full)])
async def test_a_swap_in_one_step_is_refused_until_the_last_old_program_has_ended(
    masters: list[FakeMaster], size: int
) -> None:
    """Two never hold the lock, the error names both lists, and the old programs work on."""
    old, fresh = masters[:size], FakeMaster("fresh")
    inside: list[Program] = []
    programs = [Program(inside) for _ in range(4)]
    for program in programs:
        await program.start(old)
    await asyncio.sleep(2 * LASTS)
    for number, program in enumerate(programs):
        await program.stop()
        await program.start([*old[:-1], fresh])
        await asyncio.sleep(LASTS)
        left = programs[number + 1 :]
        if left:
            before = [each.worked for each in programs]
            with pytest.raises(QuorumUnavailableError) as refused:
                await program.redlock.lock("busy", wait=0).acquire()
            for named in (old, [*old[:-1], fresh]):
                assert ", ".join(sorted(map(str, named))) in str(refused.value)
            await asyncio.sleep(1)
            worked = [each.worked for each in programs]
            assert worked[: number + 1] == before[: number + 1], "they are refused"
            assert all(
                x > y for x, y in zip(worked[number + 1 :], before[number + 1 :], strict=True)
            )
    await asyncio.sleep(LIVES * LASTS)
    before = [each.worked for each in programs]
    await asyncio.sleep(2)
    assert all(each.worked > count for each, count in zip(programs, before, strict=True))
    for program in programs:
        await program.stop()


async def test_the_next_step_may_follow_at_once_and_waits_by_itself(
    masters: list[FakeMaster],
) -> None:
    """Locks are had all the time by programs with the list of the step before."""
    old, fresh = masters[:3], FakeMaster("fresh")
    inside: list[Program] = []
    programs = [Program(inside) for _ in range(3)]
    for program in programs:
        await program.start(old)
    await asyncio.sleep(LASTS)
    for program in programs:
        await program.stop()
        await program.start(old[:-1])
    ended = now()
    await programs[0].stop()
    await programs[0].start([*old[:-1], fresh])
    until_now = programs[0].worked
    for _ in range(100):
        before = [each.worked for each in programs[1:]]
        await asyncio.sleep(0.5)
        assert all(x.worked > y for x, y in zip(programs[1:], before, strict=True))
        if programs[0].worked > until_now:
            break
    took = now() - ended
    assert LASTS < took < LIVES * LASTS + 3
    for program in programs:
        await program.stop()
