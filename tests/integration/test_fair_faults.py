"""Waiting in order when masters or waiters fail."""

import asyncio

import pytest

from redlock_aio import Redlock

from .helpers import (
    AT_ONCE,
    TIMEOUT,
    RealMaster,
    Stopwatch,
    call,
    connected,
    put,
    queued,
    until,
)
from .rows import PATIENCE, Row, nothing_is_left

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("soon_deaf")]


@pytest.mark.promise("S5")
@pytest.mark.parametrize("how", ["dead", "hung"])
@pytest.mark.parametrize("number", [1, 2])
async def test_a_minority_that_is_away_costs_nothing_but_its_votes(
    masters: list[RealMaster], how: str, number: int
) -> None:
    """9: of five; after the first lock on a master that hangs nobody waits for it."""

    async def locks(manager: Redlock, times: int) -> float:
        took = []
        for _ in range(times):
            watch = Stopwatch()
            async with manager.lock("r", fair=True, wait=PATIENCE):
                pass
            took.append(watch.ms)
        return sorted(took)[times // 2]

    async with connected(masters) as redlock, connected(masters) as other:
        for master in masters[:number]:
            (master.kill if how == "dead" else master.pause)()
        # One that were waited for would cost its time-out.
        assert await locks(redlock, 20) < TIMEOUT / 2
        row = Row(redlock, other)
        async with asyncio.timeout(20):
            async with redlock.lock("r", fair=True):
                await row.join(6)
            await row.served()
        for master in masters[:number]:
            (master.start if how == "dead" else master.resume)()
        await nothing_is_left(masters)


@pytest.mark.promise("S9")
async def test_masters_that_restart_empty_are_queued_at_again_in_the_same_order(
    redlock: Redlock, other: Redlock, masters: list[RealMaster]
) -> None:
    """68, 70: one after the other, while eight wait."""
    row = Row(redlock, other)
    async with redlock.lock("r", fair=True, ttl=60_000) as lease:
        await row.join(8)
        for master in masters[:4]:
            master.restart()
            # Before anybody is connected again: three that grant a forgotten lock are enough.
            call(master, "SET", "r", lease.token, "PX", "60000")
            await until(lambda master=master: queued([master]) >= [8])  # type: ignore[misc]
            await lease.extend()
    await row.served()
    await nothing_is_left(masters)


@pytest.mark.usefixtures("seldom_beats")
async def test_masters_that_forget_their_scripts_are_given_them_again(
    redlock: Redlock, other: Redlock, masters: list[RealMaster]
) -> None:
    """60: before the first question, while they wait, and before they are woken."""
    for _ in range(3):
        for master in masters:
            call(master, "SCRIPT", "FLUSH")
        row = Row(redlock, other)
        async with redlock.lock("r", fair=True):
            await row.join(4)
            for master in masters:
                call(master, "SCRIPT", "FLUSH")
        async with asyncio.timeout(AT_ONCE):
            await row.served()
    await nothing_is_left(masters)


@pytest.mark.promise("S3")
async def test_a_master_that_hangs_with_a_question_forgets_who_has_left(
    redlock: Redlock, other: Redlock, masters: list[RealMaster]
) -> None:
    """12, 28: it executes the question when it goes on, and the leaving behind it."""
    async with other.lock("r"):
        async with redlock.lock("r2", fair=True):
            pass  # the masters' time is known
        masters[0].pause()
        waiter = asyncio.create_task(redlock.lock("r", fair=True, wait=PATIENCE).acquire())
        await until(lambda: queued(masters[1:]) == [1] * 4)
        waiter.cancel()
        await asyncio.wait([waiter])
        await until(lambda: queued(masters[1:]) == [0] * 4)
    masters[0].resume()
    await nothing_is_left(masters)


@pytest.mark.promise("S3")
async def test_a_master_that_hangs_until_its_connection_is_given_up_forgets_who_has_left(
    masters: list[RealMaster],
) -> None:
    """12, 28: the question lies in its socket, the leaving comes over another."""
    async with connected(masters, master_timeout=100) as redlock:
        async with redlock.lock("r", fair=True):
            pass
        masters[0].pause()
        for _ in range(3):
            async with redlock.lock("r", fair=True, wait=PATIENCE):
                await asyncio.sleep(0.01)
        await until(lambda: not redlock.statistics().masters[0].up)
        masters[0].resume()
        await until(lambda: redlock.statistics().masters[0].up)
        await until(lambda: not redlock._opener.session().links[0].debts)
        await nothing_is_left(masters)


@pytest.mark.promise("S9")
@pytest.mark.full
async def test_a_waiter_that_died_delays_the_queue_by_its_registration_at_most(
    redlock: Redlock, masters: list[RealMaster]
) -> None:
    """68, 69: it is believed to live for 3 s, and looked for every second."""
    for master in masters:
        seconds, micros = call(master, "TIME")
        now = int(seconds) * 1_000_000 + int(micros)
        call(master, "ZADD", "redlock_aio:queue:{r}", now, "dead/1")
        call(master, "ZADD", "redlock_aio:live:{r}", now // 1_000 + 3_000, "dead/1")
    watch = Stopwatch()
    async with redlock.lock("r", fair=True, wait=PATIENCE):
        assert 2_500 < watch.ms < 4_000 + 1000 * AT_ONCE
    # A master that was asked for the last time while that one lived keeps it until it expires.
    await until(lambda: not any(queued(masters)))
    await nothing_is_left(masters)


@pytest.mark.promise("S8")
@pytest.mark.usefixtures("seldom_beats")
async def test_a_dead_master_does_not_slow_the_passing_on(
    redlock: Redlock, other: Redlock, masters: list[RealMaster]
) -> None:
    """9, 68: no waiter of six has to wait for a heartbeat."""
    masters[0].kill()
    for _ in range(20):
        async with redlock.lock("r", fair=True):
            pass
    row = Row(redlock, other)
    async with redlock.lock("r", fair=True):
        await row.join(6)
    async with asyncio.timeout(AT_ONCE):
        await row.served()


@pytest.mark.promise("S9")
async def test_a_holder_that_died_delays_the_queue_by_its_ttl_at_most(
    redlock: Redlock, other: Redlock, masters: list[RealMaster]
) -> None:
    """69: it was served in order, is still the first in all queues, and has 1.5 s left."""
    for master in masters:
        seconds, micros = call(master, "TIME")
        now = int(seconds) * 1_000_000 + int(micros)
        call(master, "ZADD", "redlock_aio:queue:{r}", now, "dead/1")
        call(master, "ZADD", "redlock_aio:live:{r}", now // 1_000 + 1_500, "dead/1")
    put(masters, "r", 1_500)
    row = Row(redlock, other)
    watch = Stopwatch()
    await row.join(4)
    await row.served()
    assert 1_300 < watch.ms < 1_500 + 1_000 + 1000 * AT_ONCE
    await nothing_is_left(masters)
