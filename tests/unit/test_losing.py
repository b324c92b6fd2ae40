"""What a holder meets when its lease is lost, in virtual time."""

import asyncio
import contextlib
import gc
import math

import anyio
import pytest

from redlock_aio import LockLostError, LockNotHeldError, Redlock, RedlockError
from redlock_aio._engine.hold.watchdog import BATCH
from redlock_aio.testing import FakeMaster

from .kit import hang, keys, loop, now, resume, settle

pytestmark = pytest.mark.promise("S2")


async def test_the_body_is_cancelled_no_later_than_the_deadline(
    redlock: Redlock, masters: list[FakeMaster]
) -> None:
    ended = math.inf
    with pytest.raises(LockLostError) as caught:
        async with redlock.lock("r", ttl=1000) as lease:
            hang(masters[:3])
            deadline = now() + lease.remaining / 1000
            try:
                await asyncio.sleep(9)
            finally:
                ended = now()
                assert not lease.valid

    assert deadline - 0.005 <= ended <= deadline - 0.002  # a real loop's timers are late
    assert caught.value.resources == ("r",)
    assert str(caught.value) == "'r' lost: it was not extended before its validity was over"
    await settle(masters)
    assert keys(masters) == [{}] * 5
    task = asyncio.current_task()
    assert task is not None
    assert not task.cancelling()


async def test_a_body_that_swallows_the_cancellation_is_cancelled_again(
    redlock: Redlock, masters: list[FakeMaster]
) -> None:
    cancelled = 0
    with pytest.raises(LockLostError):
        async with redlock.lock("r", ttl=1000):
            hang(masters[:3])
            for _ in range(3):
                try:
                    await asyncio.sleep(9)
                except asyncio.CancelledError:
                    cancelled += 1
    assert cancelled == 3


async def test_a_lease_that_entered_by_itself_is_guarded_too(
    redlock: Redlock, masters: list[FakeMaster]
) -> None:
    lease = await redlock.lock("r", ttl=1000).acquire()
    hang(masters[:3])
    with pytest.raises(LockLostError):
        async with lease:
            await asyncio.sleep(9)
    with pytest.raises(RuntimeError, match="only once"):
        await lease.__aenter__()


async def test_a_lost_lease_can_not_be_entered(redlock: Redlock) -> None:
    lease = await redlock.lock("r", ttl=100, auto_extend=False).acquire()
    loop().stall(1)

    with pytest.raises(LockLostError):
        async with lease:
            pytest.fail("the body ran")


@pytest.mark.parametrize("stalled", ["stall", "suspend"])
async def test_after_a_stall_nothing_is_believed(redlock: Redlock, stalled: str) -> None:
    with pytest.raises(LockLostError):
        async with redlock.lock("r", ttl=1000) as lease:
            getattr(loop(), stalled)(2)
            assert not lease.valid
            assert lease.remaining == 0
            with pytest.raises(LockLostError):
                lease.ensure_valid()
            assert lease.lost.is_set()


async def test_a_stall_is_named_for_every_lease_that_it_ended(redlock: Redlock) -> None:
    """Also for those that are looked at in a later turn of the loop."""
    leases = [await redlock.lock(f"r{n}", ttl=1000).acquire() for n in range(BATCH + 5)]
    loop().stall(2)
    await asyncio.sleep(0.1)
    for lease in leases:
        with pytest.raises(LockLostError, match=r"the event loop did not run for (1\.[89]|2\.0) s"):
            lease.ensure_valid()


async def test_a_stall_that_is_no_reason_is_not_named(masters: list[FakeMaster]) -> None:
    """Neither a short one, nor one that was over before masters did not answer."""
    for stalled in (0.5, 0.04):
        async with Redlock(masters, restart_guard="off") as redlock:
            lease = await redlock.lock("r", ttl=1000).acquire()
            await asyncio.sleep(0.3)
            loop().stall(stalled)
            await asyncio.sleep(0.2)
            hang(masters[:3])
            await lease.lost.wait()
            with pytest.raises(LockLostError, match=r"its validity was over$"):
                lease.ensure_valid()
            resume(masters)


async def test_after_a_stall_the_next_await_that_waits_meets_the_loss(redlock: Redlock) -> None:
    steps = []
    with pytest.raises(LockLostError):
        async with redlock.lock("r", ttl=1000):
            loop().stall(2)
            await asyncio.sleep(0)  # asyncio runs what is ready before what is due
            steps.append("what is ready")
            await asyncio.sleep(0.01)
            steps.append("never")
    assert steps == ["what is ready"]


async def test_a_suspended_machine_is_noticed_soon_after_it_wakes(redlock: Redlock) -> None:
    with pytest.raises(LockLostError):
        async with redlock.lock("r", ttl=60_000):
            await asyncio.sleep(1)
            loop().suspend(3600)
            woke = now()
            await asyncio.sleep(30)
    assert now() - woke <= 0.5


async def test_a_body_that_ends_after_its_deadline_without_waiting_hears_of_it(
    redlock: Redlock,
) -> None:
    with pytest.raises(LockLostError):
        async with redlock.lock("r", ttl=1000):
            loop().stall(2)


async def test_the_body_s_own_error_wins_over_the_loss(redlock: Redlock) -> None:
    with pytest.raises(KeyError) as caught:
        async with redlock.lock("r", ttl=1000):
            loop().stall(2)
            raise KeyError("mine")
    (note,) = caught.value.__notes__
    assert note.startswith("'r' lost: it was not extended before its validity was over: the event")


async def test_an_error_raised_while_being_cancelled_wins_too(
    redlock: Redlock, masters: list[FakeMaster]
) -> None:
    with pytest.raises(KeyError) as caught:
        async with redlock.lock("r", ttl=1000):
            hang(masters[:3])
            try:
                await asyncio.sleep(9)
            finally:
                raise KeyError("mine")
    assert len(caught.value.__notes__) == 1


async def test_errors_of_a_group_come_out_without_our_cancellation(
    redlock: Redlock, masters: list[FakeMaster]
) -> None:
    async def child() -> None:
        try:
            await anyio.sleep(9)
        finally:
            raise KeyError("mine")

    with pytest.raises(ExceptionGroup) as caught:
        async with redlock.lock("r", ttl=1000), anyio.create_task_group() as group:
            hang(masters[:3])
            group.start_soon(child)
    assert [type(error) for error in caught.value.exceptions] == [KeyError]
    assert len(caught.value.__notes__) == 1


async def test_the_body_s_error_comes_out_at_once_whatever_the_release_comes_to(
    redlock: Redlock, masters: list[FakeMaster]
) -> None:
    with pytest.raises(KeyError):
        async with redlock.lock("r"):
            hang(masters)
            failed_at = now()
            raise KeyError
    assert now() == failed_at
    await settle(masters)
    assert keys(masters) == [{}] * 5


async def test_a_body_whose_key_was_gone_at_the_end_hears_of_it(
    redlock: Redlock, masters: list[FakeMaster]
) -> None:
    with pytest.raises(LockLostError, match="no longer has its key"):
        async with redlock.lock("r") as lease:
            for master in masters[:3]:
                master.delete("r")
                master.set("r", "theirs")
    assert lease.lost.is_set()
    assert keys(masters) == [{"r": "theirs"}] * 3 + [{}] * 2


async def test_a_worker_whose_turns_fail_can_be_cancelled_at_any_moment(
    redlock: Redlock, masters: list[FakeMaster]
) -> None:
    async def work() -> None:
        while True:
            with contextlib.suppress(KeyError):
                async with redlock.lock("r"):
                    raise KeyError

    for after in range(40):
        task = asyncio.create_task(work())
        await asyncio.sleep(0.001 + after * 0.0001)
        task.cancel()
        await asyncio.wait([task], timeout=1)
        assert task.cancelled()
    await settle(masters)
    assert keys(masters) == [{}] * 5


async def test_flag_only_tells(redlock: Redlock, masters: list[FakeMaster]) -> None:
    async with redlock.lock("r", ttl=1000, on_lost="flag") as lease:
        hang(masters[:3])
        assert not lease.lost.is_set()
        await lease.lost.wait()
        assert not lease.valid
        await asyncio.sleep(5)
        with pytest.raises(LockLostError):
            lease.ensure_valid()
        with pytest.raises(LockLostError):
            await lease.extend()
        assert repr(lease) == "<Lease 'r', lost>"


async def test_who_asks_after_the_loss_is_told_at_once(
    redlock: Redlock, masters: list[FakeMaster]
) -> None:
    lease = await redlock.lock("r", ttl=1000).acquire()
    hang(masters[:3])
    await asyncio.sleep(2)

    await lease.lost.wait()
    with pytest.raises(LockNotHeldError):
        await lease.release()


async def test_a_release_inside_the_body_ends_the_guard(
    redlock: Redlock, masters: list[FakeMaster]
) -> None:
    async with redlock.lock("r", ttl=1000) as lease:
        await lease.release()
        hang(masters[:3])
        await asyncio.sleep(5)
    with pytest.raises(LockNotHeldError, match="released before"):
        await lease.release()


async def test_a_lost_lease_is_cleaned_up_and_frees_nobody_else(
    redlock: Redlock, masters: list[FakeMaster]
) -> None:
    lease = await redlock.lock("r", ttl=1000).acquire()
    for master in masters[:3]:
        master.delete("r")
        master.set("r", "theirs")
    await lease.lost.wait()
    await asyncio.sleep(0.1)

    assert now() < 0.5  # at the next extension, long before the deadline
    assert keys(masters) == [{"r": "theirs"}] * 3 + [{}] * 2


async def test_closing_the_manager_ends_its_leases(masters: list[FakeMaster]) -> None:
    redlock = Redlock(masters)

    async def body() -> None:
        async with redlock.lock("r"):
            await asyncio.sleep(9)

    task = asyncio.create_task(body())
    await asyncio.sleep(0.1)
    await redlock.aclose()
    await asyncio.wait([task])

    assert isinstance(task.exception(), LockLostError)
    assert "closed" in str(task.exception())
    assert keys(masters) == [{}] * 5


async def test_a_lease_that_is_dropped_is_not_extended_and_warns(
    redlock: Redlock, masters: list[FakeMaster]
) -> None:
    lease = await redlock.lock("r", ttl=1000).acquire()
    await asyncio.sleep(2)
    with pytest.warns(ResourceWarning, match="'r'.*was never released"):
        del lease
        gc.collect()
    assert len(masters[0].keys) == 1
    await asyncio.sleep(1.1)
    assert keys(masters) == [{}] * 5
    assert "0 leases" in repr(redlock)


async def test_a_block_that_another_task_leaves_is_released_all_the_same(
    redlock: Redlock, masters: list[FakeMaster]
) -> None:
    lock = redlock.lock("r", on_lost="flag")
    await asyncio.create_task(lock.__aenter__())
    await lock.__aexit__(None, None, None)
    assert keys(masters) == [{}] * 5

    async def hold(leave: asyncio.Event) -> None:
        async with redlock_lock:
            await leave.wait()

    redlock_lock, leave = redlock.lock("s"), asyncio.Event()
    task = asyncio.create_task(hold(leave))
    await asyncio.sleep(0.1)
    with pytest.raises(RedlockError, match="not by the task that entered"):
        await redlock_lock.__aexit__(None, None, None)
    await asyncio.sleep(0.1)
    assert keys(masters) == [{}] * 5
    task.cancel()
    await asyncio.wait([task])
