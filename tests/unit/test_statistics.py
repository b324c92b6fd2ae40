"""`Redlock.statistics`: what a manager does at one moment."""

import asyncio
import dataclasses

import pytest

from redlock_aio import MasterStatistics, Redlock, Statistics
from redlock_aio.testing import FakeMaster

from .kit import KIND, Kind


def idle(masters: list[FakeMaster]) -> Statistics:
    up = [MasterStatistics(str(m), True, True, "", 0, 0) for m in masters]
    return Statistics(tuple(up), rounds=0, leases=0, waiters=0)


async def test_a_manager_that_is_not_open_has_masters_and_does_nothing(
    masters: list[FakeMaster],
) -> None:
    redlock = Redlock(masters, restart_guard="off")
    away = tuple(MasterStatistics(str(m), False, False, "not used yet", 0, 0) for m in masters)
    assert redlock.statistics() == Statistics(away, rounds=0, leases=0, waiters=0)
    async with redlock:
        assert redlock.statistics() == idle(masters)
    assert {master.reason for master in redlock.statistics().masters} == {"closed"}
    assert not any(master.up or master.votes for master in redlock.statistics().masters)


async def test_leases_are_counted_until_they_end(
    masters: list[FakeMaster],
) -> None:
    async with Redlock(masters, restart_guard="off") as redlock:
        async with redlock.lock("a"), redlock.lock("b"):
            assert redlock.statistics().leases == 2
        await asyncio.sleep(0.01)  # a release is over with a majority
        assert redlock.statistics() == idle(masters)


@KIND
async def test_a_task_that_waits_is_a_waiter_wherever_it_waits(
    masters: list[FakeMaster], kind: Kind
) -> None:
    async with (
        Redlock(masters, restart_guard="off") as redlock,
        Redlock(masters, restart_guard="off") as other,
    ):
        lease = await other.lock("r").acquire()
        tasks = [asyncio.create_task(redlock.lock("r", **kind).acquire()) for _ in range(3)]
        await asyncio.sleep(0.1)
        assert redlock.statistics().waiters == 3
        assert other.statistics().waiters == 0
        await lease.release()
        for task in tasks:
            await (await task).release()
        assert redlock.statistics().waiters == 0


async def test_one_that_waits_for_several_is_one_waiter(masters: list[FakeMaster]) -> None:
    async with Redlock(masters, restart_guard="off") as redlock:
        lease = await redlock.lock("a").acquire()
        tasks = [asyncio.create_task(redlock.lock("a", "b", "c").acquire()) for _ in range(2)]
        await asyncio.sleep(0.1)
        assert redlock.statistics().waiters == 2
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        assert redlock.statistics().waiters == 0
        await lease.release()


async def test_a_round_is_underway_until_all_masters_have_answered_or_are_too_late(
    masters: list[FakeMaster],
) -> None:
    async with Redlock(masters, restart_guard="off", master_timeout=100) as redlock:
        masters[0].hang()
        lease = await redlock.lock("r").acquire()
        said = redlock.statistics()
        assert said.rounds == 1
        assert said.masters[0].pending > 0
        assert said.masters[1].pending == 0
        await asyncio.sleep(0.2)
        assert redlock.statistics().rounds == 0
        masters[0].resume()
        await lease.release()


async def test_a_release_that_a_master_has_not_confirmed_is_a_debt_until_it_has(
    masters: list[FakeMaster],
) -> None:
    async with Redlock(masters, restart_guard="off", master_timeout=100) as redlock:
        lease = await redlock.lock("r").acquire()
        masters[0].kill()
        await lease.release()
        said = redlock.statistics()
        assert said.debts == said.masters[0].debts == 1
        assert not said.masters[0].up
        assert said.masters[0].reason
        masters[0].restart()
        await asyncio.sleep(5)
        assert redlock.statistics() == idle(masters)


async def test_it_can_not_be_changed(masters: list[FakeMaster]) -> None:
    async with Redlock(masters, restart_guard="off") as redlock:
        said = redlock.statistics()
        with pytest.raises(dataclasses.FrozenInstanceError):
            said.leases = 3  # type: ignore[misc]
        with pytest.raises(dataclasses.FrozenInstanceError):
            said.masters[0].up = False  # type: ignore[misc]


async def test_a_quarantined_master_is_up_without_a_vote_and_says_why(
    masters: list[FakeMaster],
) -> None:
    async with Redlock(masters) as redlock, redlock.lock("r"):
        masters[0].restart()
        await asyncio.sleep(2)
        said = redlock.statistics().masters[0]
        assert said.up
        assert not said.votes
        assert "vote" in said.reason
