"""Automatic and explicit extensions, in virtual time."""

import asyncio
import random
from collections.abc import AsyncIterator
from typing import Any

import pytest

from redlock_aio import LockLostError, LockNotHeldError, Redlock
from redlock_aio._engine.hold.held_lease import HeldLease
from redlock_aio._engine.hold.watchdog import BATCH, CHECK_AFTER, Watchdog
from redlock_aio._protocol.replies import EVERYTHING_CHANGED
from redlock_aio._protocol.request import pack
from redlock_aio._protocol.scripts import EXTEND, LOOK
from redlock_aio._rules.lease_state import STEP
from redlock_aio.testing import FakeMaster

from . import kit
from .kit import (
    Masters,
    check_no_keys,
    delete,
    execute,
    fail,
    hang,
    keys,
    kill,
    now,
    ran,
    restart,
    resume,
    runs_of,
    slow,
)

pytestmark = pytest.mark.promise("S4")


# By the watchdog


async def test_a_lease_lives_as_long_as_it_is_held(redlock: Redlock, masters: Masters) -> None:
    async with redlock.lock("r", ttl=1000) as lease:
        for _ in range(500):
            await asyncio.sleep(0.01)
            assert lease.remaining > 600
            assert all(master.pttl("r") > 600 for master in masters)
        assert await redlock.lock("r").try_acquire() is None
    extended = ran(masters[0], EXTEND)
    await asyncio.sleep(10)
    assert ran(masters[0], EXTEND) == extended


@pytest.mark.parametrize("ttl", [50, 10_000])
async def test_a_lease_is_extended_three_or_four_times_per_ttl(ttl: int) -> None:
    master = FakeMaster(latency=0.0001)
    async with Redlock([master]) as redlock, redlock.lock("r", ttl=ttl):
        await asyncio.sleep(ttl / 1000 * 100)
    assert 300 <= ran(master, EXTEND) <= 400


async def test_the_shortest_ttl_is_extended_in_time() -> None:
    # Of 50 ms the drift leaves 23, and a lease must be extended within them.
    master = FakeMaster(latency=0.0001)
    async with Redlock([master], drift_factor=0.5) as redlock, redlock.lock("r", ttl=50):
        await asyncio.sleep(5)
    assert ran(master, EXTEND) < 1300


async def test_a_failing_extension_is_repeated_a_few_times(
    redlock: Redlock, masters: Masters
) -> None:
    async with redlock.lock("r", ttl=1000, on_lost="flag") as lease:
        fail(masters, "BUSY Redis is busy running a script")
        await lease.lost.wait()
        assert 10 <= ran(masters[0], EXTEND) <= 14


async def test_without_auto_extend_the_ttl_only_falls(redlock: Redlock, masters: Masters) -> None:
    with pytest.raises(LockLostError):
        async with redlock.lock("r", ttl=1000, auto_extend=False):
            await asyncio.sleep(9)
    assert ran(masters[0], EXTEND) == 0


async def test_a_restarted_minority_and_a_short_outage_are_survived(
    redlock: Redlock, masters: Masters
) -> None:
    async with redlock.lock("r", ttl=3000) as lease:
        await asyncio.sleep(1)
        restart(masters[:2])
        await asyncio.sleep(3)
        for master in masters:
            master.cut()
            master.hang()
        await asyncio.sleep(1)
        resume(masters)
        await asyncio.sleep(3)
        assert lease.remaining > 1500
        assert [len(held) for held in keys(masters)] == [1] * 5


async def test_a_majority_that_restarts_empty_is_a_loss(redlock: Redlock, masters: Masters) -> None:
    async with redlock.lock("r", ttl=3000, on_lost="flag") as lease:
        restart(masters[:3])
        await lease.lost.wait()
        assert now() < 1.5


async def test_max_hold_ends_a_lease(redlock: Redlock, masters: Masters) -> None:
    with pytest.raises(LockLostError, match="max_hold"):
        async with redlock.lock("r", ttl=1000, max_hold=2500):
            await asyncio.sleep(9)
    assert now() == pytest.approx(2.5, abs=0.01)
    await check_no_keys(masters)


@pytest.mark.promise("S6")
@pytest.mark.parametrize("number", [BATCH + 50, pytest.param(1500, marks=pytest.mark.full)])
async def test_many_leases_are_extended_in_batches(masters: Masters, number: int) -> None:
    async with Redlock(masters) as redlock:
        leases = await asyncio.gather(
            *(redlock.lock(f"r{i}", ttl=1000).acquire() for i in range(number))
        )
        await asyncio.sleep(2)
        assert all(lease.remaining > 500 for lease in leases)
        assert redlock.statistics().leases == number
        await asyncio.gather(*(lease.release() for lease in leases))
        assert keys(masters) == [{}] * 5


async def test_extensions_that_are_due_within_a_step_leave_together(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    master = FakeMaster()
    async with Redlock([master]) as redlock:
        leases = []
        for number in range(500):
            leases.append(await redlock.lock(f"r{number}", ttl=10_000).acquire())
            await asyncio.sleep(random.uniform(0, 0.02))
        await asyncio.sleep(4)
        sent: list[float] = []
        receive = master.receive

        def receiving(*sending: Any) -> None:
            sent.append(now())
            receive(*sending)

        monkeypatch.setattr(master, "receive", receiving)
        before = ran(master, EXTEND)
        await asyncio.sleep(5)
        assert sum(int(command[2]) for command in runs_of(master, EXTEND)[before:]) > 500
        assert len(sent) <= 5 / STEP + 10
        assert all(lease.remaining > 6000 for lease in leases)


async def test_nothing_stays_of_leases_that_have_ended(redlock: Redlock) -> None:
    async with redlock.lock("kept"):
        watchdog = kit.session(redlock).watchdog
        for held_for in (0, 2 * CHECK_AFTER):
            leases = await asyncio.gather(*(redlock.lock(f"r{i}").acquire() for i in range(400)))
            await asyncio.sleep(held_for)
            assert watchdog.held == 401
            await asyncio.gather(*(lease.release() for lease in leases))
            assert watchdog.held == len(watchdog._agenda.leases()) == 1


@pytest.mark.promise("S2")
async def test_the_loss_of_all_keys_ends_all_leases_at_once(
    redlock: Redlock, masters: Masters
) -> None:
    """A master that is emptied pushes that any key may have changed, whatever their number."""
    locks = [redlock.lock(f"r{i}", ttl=60_000) for i in range(2 * BATCH + 50)]
    leases = await asyncio.gather(*(lock.acquire() for lock in locks))
    await asyncio.sleep(1)
    for master in masters[:3]:
        execute(master, pack(b"FLUSHALL"))
    await asyncio.sleep(0.05)
    assert not any(lease.valid for lease in leases)


@pytest.mark.promise("S2")
@pytest.mark.full
async def test_checks_of_all_leases_hold_up_no_loss(
    redlock: Redlock, masters: Masters, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a reconnection all keys are checked, some in each turn of the loop."""
    locks = [redlock.lock(f"r{i}", ttl=60_000) for i in range(5 * BATCH)]
    leases = await asyncio.gather(*(lock.acquire() for lock in locks))
    await asyncio.sleep(1)
    turns = [0]
    checked: set[HeldLease] = set()
    recheck_soon = Watchdog.recheck_soon

    def rechecking(watchdog: Watchdog, hold: HeldLease) -> None:
        if not turns[-1]:
            asyncio.get_running_loop().call_soon(turns.append, 0)
        turns[-1] += 1
        checked.add(hold)
        recheck_soon(watchdog, hold)

    monkeypatch.setattr(Watchdog, "recheck_soon", rechecking)
    kit.session(redlock)._on_push(0, EVERYTHING_CHANGED)
    await asyncio.sleep(0)
    kit.session(redlock)._on_push(1, EVERYTHING_CHANGED)  # those left are checked first
    await asyncio.sleep(0.1)
    assert set(turns) == {BATCH // 2, 0}
    assert len(checked) == 5 * BATCH
    assert sum(turns) <= 6 * BATCH
    assert ran(masters[0], LOOK) >= 10 * BATCH
    await asyncio.gather(*(lease.release() for lease in leases))


# After the master timeout


@pytest.fixture
async def impatient(masters: Masters) -> AsyncIterator[Redlock]:
    """Open a manager whose masters time out after 50 ms, however slow they are."""
    async with Redlock(masters, restart_guard="off", master_timeout=50) as redlock:
        yield redlock


async def test_masters_that_answer_late_extend_a_lease(
    impatient: Redlock, masters: Masters
) -> None:
    """And get no more extensions than others."""
    async with impatient.lock("r", ttl=3000) as lease:
        slow(masters, 0.2)
        before = ran(masters[0], EXTEND)
        await asyncio.sleep(30)
        assert lease.valid
        assert 24 <= ran(masters[0], EXTEND) - before <= 36


@pytest.mark.parametrize("late", [1, 2, 3])
async def test_late_grants_and_those_in_time_are_added_up(
    impatient: Redlock, masters: Masters, late: int
) -> None:
    kill(masters[3:])
    async with impatient.lock("r", ttl=1000, auto_extend=False) as lease:
        slow(masters[:late], 0.2)
        await lease.extend(5000)
        assert 4500 < lease.remaining < 5000 - 200


async def test_a_late_grant_does_not_revive_a_lease(impatient: Redlock, masters: Masters) -> None:
    lease = await impatient.lock("r", ttl=1000, on_lost="flag").acquire()
    slow(masters[:3], 0.8)
    await asyncio.sleep(0.6)
    assert lease.valid
    await asyncio.sleep(0.9)  # the first extension was sent in time, and is answered now
    assert not lease.valid
    await asyncio.sleep(1)
    await check_no_keys(masters)


async def test_a_late_grant_does_not_outlast_a_shorter_extension(
    impatient: Redlock, masters: Masters
) -> None:
    """All masters get the longer one first: they keep the key for the shorter ttl."""
    lease = await impatient.lock("r", ttl=3000, auto_extend=False, on_lost="flag").acquire()
    slow(masters, 0.2)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(lease.extend(60_000), 0.06)
    extending = asyncio.create_task(lease.extend(1000))
    await asyncio.sleep(0.15)  # the masters have granted the longer one
    assert lease.remaining < 1000 - 150
    await extending
    assert lease.remaining < 1000
    await lease.release()


async def test_a_master_that_lacks_the_key_gets_it_after_a_late_reply(
    impatient: Redlock, masters: Masters
) -> None:
    async with impatient.lock("r", ttl=60_000) as lease:
        slow(masters[:1], 0.2)
        delete(masters[:1])
        await lease.extend()
        await asyncio.sleep(0.5)
        assert [master.keys["r"] for master in masters] == [lease.token] * 5


# By the holder


async def test_an_expired_key_is_not_restored(redlock: Redlock, masters: Masters) -> None:
    lease = await redlock.lock("r", ttl=1000, auto_extend=False).acquire()
    await asyncio.sleep(1.1)
    with pytest.raises(LockLostError):
        await lease.extend()
    assert keys(masters) == [{}] * 5


async def test_an_extension_that_is_executed_too_late_does_not_count(
    redlock: Redlock, masters: Masters
) -> None:
    lease = await redlock.lock("r", ttl=1000, auto_extend=False).acquire()
    hang(masters)
    extending = asyncio.create_task(lease.extend())
    await asyncio.sleep(0.99)
    resume(masters)
    with pytest.raises(LockLostError):
        await extending
    await asyncio.sleep(0.1)
    assert keys(masters) == [{}] * 5


async def test_an_extension_sets_the_new_ttl(redlock: Redlock, masters: Masters) -> None:
    async with redlock.lock("r", ttl=1000) as lease:
        await lease.extend(5000)
        assert lease.ttl == 5000
        assert lease.remaining == 5000 - 52 - 1
        assert all(4990 < master.pttl("r") <= 5000 for master in masters)
        await asyncio.sleep(20)
        assert lease.remaining > 3000


async def test_a_shorter_extension_counts_from_when_it_is_sent(
    redlock: Redlock, masters: Masters
) -> None:
    async with redlock.lock("r", ttl=10_000, on_lost="flag") as lease:
        hang(masters[:3])
        extending = asyncio.create_task(lease.extend(500))
        await asyncio.sleep(0)
        assert lease.remaining <= 493
        with pytest.raises(LockLostError):
            await extending
        assert now() < 0.6


async def test_an_extension_is_repeated_until_it_holds(redlock: Redlock, masters: Masters) -> None:
    async with redlock.lock("r", ttl=3000, auto_extend=False) as lease:
        hang(masters)
        extending = asyncio.create_task(lease.extend())
        await asyncio.sleep(1)
        resume(masters)
        await extending
        assert lease.remaining > 2500


async def test_extensions_of_several_tasks_all_hold(redlock: Redlock, masters: Masters) -> None:
    slow(masters, 0.02)
    async with redlock.lock("r", ttl=1000, auto_extend=False) as lease:

        async def extend(after: float) -> None:
            await asyncio.sleep(after)
            for _ in range(100):
                await lease.extend(1000)
                assert lease.remaining > 900

        await asyncio.gather(extend(0), extend(0.006), extend(0.012))
        await asyncio.gather(lease.extend(2000), lease.extend(3000))
        assert lease.ttl == 3000


async def test_an_extension_reports_a_loss_at_once(redlock: Redlock, masters: Masters) -> None:
    lease = await redlock.lock("r", ttl=60_000, auto_extend=False).acquire()
    delete(masters[:3])
    began = now()
    with pytest.raises(LockLostError):
        await lease.extend()
    assert now() - began < 0.01


async def test_masters_that_never_had_the_key_do_not_hide_a_loss(masters: Masters) -> None:
    kill(masters[:2])
    async with Redlock(masters) as redlock:
        lease = await redlock.lock("r", ttl=60_000, auto_extend=False).acquire()
        masters[2].delete("r")
        with pytest.raises(LockLostError):
            await lease.extend()
        lease = await redlock.lock("s").acquire()
        masters[2].delete("s")
        with pytest.raises(LockNotHeldError, match="no longer has its key"):
            await lease.release()


async def test_a_released_lease_can_not_be_extended(redlock: Redlock) -> None:
    lease = await redlock.lock("r").acquire()
    extending = asyncio.create_task(lease.extend())
    await lease.release()
    with pytest.raises(LockNotHeldError):
        await lease.extend()
    with pytest.raises(LockNotHeldError):
        await extending


async def test_an_extension_needs_a_positive_ttl(redlock: Redlock) -> None:
    async with redlock.lock("r") as lease:
        for wrong in (0, -1, 3):
            with pytest.raises(ValueError, match="ttl"):
                await lease.extend(wrong)
        assert lease.valid
