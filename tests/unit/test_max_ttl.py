"""Programs with different max_ttl on the same masters: all quarantine by the longest one."""

import asyncio
import logging

import pytest

from redlock_aio import Redlock
from redlock_aio._protocol.commands import MARKER
from redlock_aio._rules import timing
from redlock_aio.testing import FakeMaster

from .kit import answers, gets_lock, now, restart
from .links import Link

pytestmark = [pytest.mark.promise("S1")]

LONG, SHORT = 20_000, 1_000
FOR_MONTHS = 150 * 24 * 3_600_000


def lasts(max_ttl: int) -> float:
    return timing.forgetting(max_ttl, factor=timing.DRIFT_FACTOR)


@pytest.fixture(autouse=True)
def everything_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "redlock_aio")


@pytest.mark.spread(0)
@pytest.mark.parametrize("tracking", [True, False])
@pytest.mark.parametrize("order", ["short first", "long first", "short after the restart"])
async def test_a_program_with_a_short_max_ttl_waits_for_the_leases_of_one_with_a_long(
    masters: list[FakeMaster], order: str, tracking: bool
) -> None:
    """A majority restarts empty; no lock is granted while the old lease is valid."""
    for master in masters:
        if not tracking:
            master.forbid.add("CLIENT")
    short, long = Redlock(masters, max_ttl=SHORT), Redlock(masters, max_ttl=LONG)
    first, second = (long, short) if order == "long first" else (short, long)
    if order == "short after the restart":
        first, second = long, long
    async with first, second:
        lease = await long.lock("r", ttl=LONG, auto_extend=False, on_lost="flag").acquire()
        await asyncio.sleep(lasts(SHORT) / 3)
        if order == "short after the restart":
            await short.aclose()
            short = Redlock(masters, max_ttl=SHORT)
        restart(masters[:3])
        restarted = now()
        async with short:
            while lease.valid:
                assert not await gets_lock(short)
                await asyncio.sleep(0.25)
            assert now() > restarted + lasts(SHORT)
            await asyncio.sleep(restarted + lasts(LONG) + 1.1 - now())
            assert await gets_lock(short)


async def test_the_log_tells_once_that_the_longer_one_counts(
    masters: list[FakeMaster], caplog: pytest.LogCaptureFixture
) -> None:
    async with Redlock(masters, max_ttl=SHORT), Redlock(masters, max_ttl=LONG):
        await asyncio.sleep(1)
    (line,) = [text for text in caplog.messages if "max_ttl" in text]
    assert line.startswith("a master that may have forgotten locks waits for 21.2 s now")


@pytest.mark.parametrize("first", [SHORT, LONG])
async def test_a_new_set_costs_no_wait_in_either_order(
    masters: list[FakeMaster], first: int
) -> None:
    for master in masters:
        master.uptime = 0
    async with Redlock(masters, max_ttl=first) as one:
        assert await answers(one) == "GGGGG"
        async with Redlock(masters, max_ttl=LONG + SHORT - first) as other:
            assert await answers(other) == "GGGGG"
            await asyncio.sleep(1)
            assert await answers(one) == "GGGGG"
    assert all(master.marker.split()[3] == "21200" for master in masters if master.marker)


@pytest.mark.parametrize("tracking", [True, False])
@pytest.mark.parametrize("first", [SHORT, LONG])
async def test_programs_that_mark_a_new_set_together_mark_it_with_the_longer_one(
    masters: list[FakeMaster], first: int, *, tracking: bool
) -> None:
    """The program with the longer one may find the other's marker instead of its own."""
    for master in masters:
        master.uptime = 0
        if not tracking:
            master.forbid.add("CLIENT")
    both = [Redlock(masters, max_ttl=max_ttl) for max_ttl in (first, LONG + SHORT - first)]
    await asyncio.gather(*(redlock.__aenter__() for redlock in both))
    assert now() < 0.01
    assert [await answers(redlock) for redlock in both] == ["GGGGG"] * 2
    assert {master.marker.split()[3] for master in masters if master.marker} == {"21200"}
    for redlock in both:
        await redlock.aclose()


async def test_a_longer_one_is_known_as_soon_as_a_new_set_votes(masters: list[FakeMaster]) -> None:
    """All masters are flushed, and the program that has the longer one is gone."""
    for master in masters:
        master.uptime = 0
        master.forbid.add("CLIENT")  # so no change of a marker is pushed
    long, short = (Redlock(masters, max_ttl=max_ttl) for max_ttl in (LONG, SHORT))
    await asyncio.gather(long.__aenter__(), short.__aenter__())
    await long.aclose()
    for master in masters:
        master.flush()
    await asyncio.sleep(lasts(LONG) - 1)
    assert await answers(short) == "QQQQQ"
    await short.aclose()


@pytest.mark.parametrize("slower", [1, 2, 3, 4, 6, 10])
async def test_a_restarted_master_that_votes_by_the_short_one_loses_its_vote_in_time(
    slower: int,
) -> None:
    """
    The lock is free on the first master, held on the second, and lost by the third.

    A new program examines the third master first, which has no marker and has been up for
    longer than the short quarantine. The markers of the others name the long one at the
    moment when they begin to vote.
    """
    free, keeps, forgets = masters = [FakeMaster(f"m{i}") for i in range(3)]
    links = [Link(master) for master in masters]
    async with Redlock(links, max_ttl=LONG) as long:
        lease = await long.lock("r", ttl=LONG, auto_extend=False, on_lost="flag").acquire()
        await asyncio.sleep(0.05)
        free.delete("r")
        for link in links:
            link.cut()
        forgets.restart()
        await asyncio.sleep(lasts(SHORT) + 1)
        free.latency = keeps.latency = slower / 1000
        async with Redlock(masters, max_ttl=SHORT) as newcomer:
            assert not await gets_lock(newcomer)
            await asyncio.sleep(0.5)
            assert not await gets_lock(newcomer)
        assert lease.valid
        for link in links:
            link.mend()


@pytest.mark.parametrize("first", [SHORT, FOR_MONTHS])
async def test_a_max_ttl_of_months_is_carried_and_agreed_on(
    masters: list[FakeMaster], first: int
) -> None:
    """Otherwise each program would mark the masters anew whenever the other has."""
    for master in masters:
        master.uptime = 0
    one, other, short = (Redlock(masters, max_ttl=ttl) for ttl in (first, FOR_MONTHS, SHORT))
    async with one, other, short:
        await asyncio.sleep(1)
        for master in masters:
            master.commands.clear()
        await asyncio.sleep(1)
        assert not any(MARKER in command for m in masters for command in m.commands)
        masters[0].restart()
        await asyncio.sleep(lasts(SHORT) + 1)
        assert await answers(short) == "QGGGG"


async def test_masters_that_vote_by_a_short_quarantine_wait_when_a_long_one_is_known(
    masters: list[FakeMaster],
) -> None:
    """By the short time, one has no vote yet, and one has voted again for a while."""
    async with Redlock(masters, max_ttl=SHORT) as short:
        masters[0].restart()
        await asyncio.sleep(lasts(SHORT) + 2)
        masters[1].restart()
        await asyncio.sleep(1)
        assert await answers(short) == "GQGGG"
        async with Redlock(masters, max_ttl=LONG) as long:
            assert await answers(long) == "QQGGG"
            await asyncio.sleep(0.5)
            assert await answers(short) == "QQGGG"
            await asyncio.sleep(lasts(LONG) - lasts(SHORT) - 5)
            assert await answers(short) == await answers(long) == "QQGGG"
            await asyncio.sleep(8)
            assert await answers(short) == await answers(long) == "GGGGG"


async def test_a_master_votes_for_a_long_max_ttl_only_when_it_carries_it(
    masters: list[FakeMaster],
) -> None:
    async with Redlock(masters, max_ttl=SHORT):
        masters[0].error = "OOM command not allowed when used memory > 'maxmemory'."
        async with Redlock(masters, max_ttl=LONG) as long:
            assert await answers(long) == "EGGGG"
            assert [len(m.marker.split()[3]) for m in masters if m.marker] == [4, 5, 5, 5, 5]
            masters[0].error = ""
            await asyncio.sleep(0.6)
            assert await answers(long) == "GGGGG"
            assert {m.marker.split()[3] for m in masters if m.marker} == {"21200"}


async def test_a_marker_of_an_older_version_is_understood(masters: list[FakeMaster]) -> None:
    for master in masters:
        master.set("redlock_aio:marker", f"{master.run_id} member {master._clock()}")
    votes_at = masters[0]._clock() + 5_000_000
    masters[0].set("redlock_aio:marker", f"{masters[0].run_id} rejoining {votes_at}")
    async with Redlock(masters, max_ttl=LONG) as redlock:
        assert await answers(redlock) == "QGGGG"
        await asyncio.sleep(5.1)
        assert await answers(redlock) == "GGGGG"
