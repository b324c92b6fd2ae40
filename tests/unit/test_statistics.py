"""`Redlock.statistics`: masters, rounds, leases, waiters and debts at one moment."""

import asyncio
import dataclasses

import pytest

from redlock_aio import MasterStatistics, Redlock, Statistics
from redlock_aio.testing import FakeMaster

from .kit import KINDS_AND_KEYS, Kind


def idle(masters: list[FakeMaster]) -> Statistics:
    up = [MasterStatistics(str(m), True, True, "", 0, 0) for m in masters]
    return Statistics(tuple(up), rounds=0, leases=0, waiters=0)


async def test_a_manager_that_is_not_open_is_idle(
    masters: list[FakeMaster],
) -> None:
    redlock = Redlock(masters, restart_guard="off")
    away = tuple(MasterStatistics(str(m), False, False, "not used yet", 0, 0) for m in masters)
    assert redlock.statistics() == Statistics(away, rounds=0, leases=0, waiters=0)
    async with redlock:
        statistics = redlock.statistics()
        assert statistics == idle(masters)
        with pytest.raises(dataclasses.FrozenInstanceError):
            statistics.leases = 3  # type: ignore[misc]
        with pytest.raises(dataclasses.FrozenInstanceError):
            statistics.masters[0].up = False  # type: ignore[misc]
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


@KINDS_AND_KEYS
async def test_each_waiting_task_is_one_waiter(
    masters: list[FakeMaster], names: tuple[str, ...], options: Kind
) -> None:
    async with (
        Redlock(masters, restart_guard="off") as redlock,
        Redlock(masters, restart_guard="off") as other,
    ):
        lease = await other.lock("r").acquire()
        tasks = [asyncio.create_task(redlock.lock(*names, **options).acquire()) for _ in range(3)]
        await asyncio.sleep(0.1)
        assert redlock.statistics().waiters == 3
        assert other.statistics().waiters == 0
        await lease.release()
        for task in tasks:
            await (await task).release()
        assert redlock.statistics().waiters == 0


async def test_a_round_is_underway_until_all_have_replied_or_timed_out(
    masters: list[FakeMaster],
) -> None:
    async with Redlock(masters, restart_guard="off", master_timeout=100) as redlock:
        masters[0].hang()
        lease = await redlock.lock("r").acquire()
        statistics = redlock.statistics()
        assert statistics.rounds == 1
        assert statistics.masters[0].pending > 0
        assert statistics.masters[1].pending == 0
        await asyncio.sleep(0.2)
        assert redlock.statistics().rounds == 0
        masters[0].resume()
        await lease.release()


async def test_a_release_is_a_debt_until_it_is_confirmed(
    masters: list[FakeMaster],
) -> None:
    async with Redlock(masters, restart_guard="off", master_timeout=100) as redlock:
        lease = await redlock.lock("r").acquire()
        masters[0].kill()
        await lease.release()
        statistics = redlock.statistics()
        assert statistics.debts == statistics.masters[0].debts == 1
        assert not statistics.masters[0].up
        assert statistics.masters[0].reason
        masters[0].restart()
        await asyncio.sleep(5)
        assert redlock.statistics() == idle(masters)


async def test_a_quarantined_master_is_up_without_a_vote(
    masters: list[FakeMaster],
) -> None:
    async with Redlock(masters) as redlock, redlock.lock("r"):
        masters[0].restart()
        await asyncio.sleep(2)
        statistics = redlock.statistics().masters[0]
        assert statistics.up
        assert not statistics.votes
        assert "vote" in statistics.reason
