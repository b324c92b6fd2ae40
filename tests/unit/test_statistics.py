"""`Redlock.statistics`: masters, rounds, leases, waiters and debts at one moment."""

import asyncio
import contextlib
import dataclasses
import itertools
import math
from typing import Any

import pytest

from redlock_aio import LockLostError, MasterStatistics, Redlock, Statistics
from redlock_aio._engine import masters as masters_module
from redlock_aio.testing import FakeMaster, VirtualTimeLoop

from .kit import KINDS_AND_KEYS, LATENCY, Kind, hang, interrupted


def idle(masters: list[FakeMaster]) -> Statistics:
    up = [MasterStatistics(str(m), True, True, "", 0, 0) for m in masters]
    return Statistics(tuple(up), rounds=0, leases=0, waiters=0, is_open=True)


async def test_a_manager_that_is_not_open_is_idle(
    masters: list[FakeMaster],
) -> None:
    redlock = Redlock(masters, restart_guard="off")
    away = tuple(MasterStatistics(str(m), False, False, "not used yet", 0, 0) for m in masters)
    closed = Statistics(away, rounds=0, leases=0, waiters=0, is_open=False)
    assert redlock.statistics() == closed
    async with redlock:
        statistics = redlock.statistics()
        assert statistics == idle(masters)
        with pytest.raises(dataclasses.FrozenInstanceError):
            statistics.leases = 3  # type: ignore[misc]
        with pytest.raises(dataclasses.FrozenInstanceError):
            statistics.masters[0].up = False  # type: ignore[misc]
    assert {master.reason for master in redlock.statistics().masters} == {"closed"}
    assert not any(master.up or master.votes for master in redlock.statistics().masters)
    assert not redlock.statistics().is_open


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


@pytest.mark.full
def test_another_thread_may_ask_at_any_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Between any two byte codes, the loop in its own thread may run and change everything."""
    # A probe of the round trip that leaves with a round would be a second one underway.
    monkeypatch.setattr(masters_module, "PROBE_EVERY", math.inf)
    monkeypatch.setattr(masters_module, "PROBE_SOON", math.inf)
    master = FakeMaster()
    redlock = Redlock([master], restart_guard="off")
    names = map(str, itertools.count())

    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        tasks: set[asyncio.Task[Any]] = set()

        async def begin_a_round() -> None:
            tasks.add(asyncio.create_task(hold(redlock, next(names))))
            await asyncio.sleep(LATENCY / 2)

        async def be_busy() -> None:
            name = next(names)
            tasks.update(asyncio.create_task(hold(redlock, name)) for _ in range(2))
            await asyncio.sleep(5 * LATENCY)
            await begin_a_round()

        async def go_on() -> None:
            await begin_a_round()
            master.kill()
            await asyncio.sleep(LATENCY)

        async def end() -> None:
            master.restart()
            await asyncio.wait(tasks)
            tasks.clear()

        runner.run(redlock.__aenter__())
        more, place = True, 0
        while more:
            runner.run(be_busy())
            seen = redlock.statistics()
            assert (seen.rounds, seen.leases, seen.waiters) == (1, 1, 1)
            more = interrupted(redlock.statistics, place, lambda: runner.run(go_on()))
            runner.run(end())
            place += 1
        assert place > 50
        runner.run(redlock.aclose())


@pytest.mark.full
def test_another_thread_may_ask_while_it_is_closed() -> None:
    redlock = Redlock([FakeMaster()])
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        more, place = True, 0
        while more:
            runner.run(redlock.__aenter__())
            more = interrupted(redlock.statistics, place, lambda: runner.run(redlock.aclose()))
            place += 1
        assert place > 50
        runner.run(redlock.aclose())


async def hold(redlock: Redlock, name: str) -> None:
    """Hold a lock for a while, whether or not its master is away in between."""
    with contextlib.suppress(LockLostError):
        async with redlock.lock(name, ttl=1000):
            await asyncio.sleep(0.1)


async def test_tasks_that_wait_for_a_majority_are_waiters(
    redlock: Redlock, masters: list[FakeMaster]
) -> None:
    await redlock.check()
    hang(masters)
    waiting = [
        asyncio.create_task(redlock.lock(f"r{number % 7}").acquire()) for number in range(10)
    ]
    for _ in range(3):
        await asyncio.sleep(0.5)
        assert redlock.statistics().waiters == 10
    for task in waiting:
        task.cancel()
    await asyncio.wait(waiting)
    assert redlock.statistics().waiters == 0
