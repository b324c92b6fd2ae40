"""Taking again what one holds already: who may, what it costs, and who releases it."""

import asyncio
import contextlib
import gc
import weakref
from typing import Any

import anyio
import pytest

from redlock_aio import (
    Lease,
    LockNotAcquiredError,
    LockNotHeldError,
    Redlock,
    RedlockError,
)
from redlock_aio._engine.hold.held_lease import HeldLease
from redlock_aio.testing import FakeMaster

from .kit import LATENCY, check_no_keys, commands_received, delete, keys, now

# What it costs.


@pytest.mark.parametrize("first", [{}, {"fair": True}, {"reentrant": True}, {"metadata": {"a": 1}}])
@pytest.mark.parametrize("again", [{}, {"fair": True}, {"wait": 0}, {"on_lost": "flag"}])
async def test_what_is_held_is_taken_again_without_a_command(
    redlock: Redlock, masters: list[FakeMaster], first: dict[str, Any], again: dict[str, Any]
) -> None:
    async with redlock.lock("r", **first) as outer:
        await asyncio.sleep(0.01)
        before, began = commands_received(masters), now()
        async with redlock.lock("r", reentrant=True, **again) as inner:
            assert inner is not outer
            assert (inner.token, inner.resources) == (outer.token, ("r",))
            assert (inner.hold_count, outer.hold_count) == (2, 2)
        assert (now(), commands_received(masters)) == (began, before)
        assert (inner.hold_count, outer.hold_count) == (0, 1)
    await check_no_keys(masters)


async def test_a_hundred_times_nested_sends_nothing(
    redlock: Redlock, masters: list[FakeMaster]
) -> None:
    lock = redlock.lock("r", reentrant=True)
    async with contextlib.AsyncExitStack() as stack:
        await stack.enter_async_context(lock)
        await asyncio.sleep(0.01)
        before, began = commands_received(masters), now()
        for count in range(2, 102):
            lease = await stack.enter_async_context(lock)
            assert lease.hold_count == count
        assert (now(), commands_received(masters)) == (began, before)
        await asyncio.sleep(0.01)
        assert commands_received(masters) == before
    assert not lock._entered
    await check_no_keys(masters)


async def test_a_recursive_function_takes_its_lock_again(redlock: Redlock) -> None:
    @redlock.locked("tree:{name}", reentrant=True)
    async def walk(name: str, depth: int) -> int:
        return 1 + await walk(name, depth - 1) if depth else 0

    assert await walk("x", 20) == 20


async def test_with_fencing_the_time_is_not_asked_for(
    redlock: Redlock, masters: list[FakeMaster]
) -> None:
    lock = redlock.lock("r", reentrant=True, fencing=True)
    async with lock as outer:
        redlock._opener.session().masters.clocks.due_at = 0.0
        await asyncio.sleep(0.01)
        before = commands_received(masters)
        tried = await lock.try_acquire()
        assert tried is not None
        async with lock as inner, tried:
            assert inner.fencing_token == tried.fencing_token == outer.fencing_token
            assert commands_received(masters) == before


async def test_what_the_first_did_not_ask_for_the_second_does_not_get(redlock: Redlock) -> None:
    async with redlock.lock("r") as lease:
        for wait in (None, 0, 100):
            with pytest.raises(RedlockError, match="'r' can't be taken again with fencing=True"):
                await redlock.lock("r", reentrant=True, fencing=True, wait=wait).acquire()
        with pytest.raises(RedlockError, match="held without a fencing token"):
            await redlock.lock("r", reentrant=True, fencing=True).try_acquire()
        assert lease.hold_count == 1
        async with redlock.lock("r", reentrant=True, fencing=False, metadata={"a": 1}) as again:
            assert "{" not in again.token


# Who releases it.


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 0, 2), (1, 2, 0)])
async def test_the_last_release_releases_in_whatever_order(
    redlock: Redlock, masters: list[FakeMaster], order: tuple[int, ...]
) -> None:
    lock = redlock.lock("r", reentrant=True)
    leases = [await lock.acquire() for _ in range(3)]
    for left, number in zip((2, 1, 0), order, strict=True):
        assert all(len(held) == 1 for held in keys(masters))
        began = now()
        await leases[number].release()
        assert now() == began + (0 if left else LATENCY)
        assert [lease.hold_count for lease in leases if lease.valid] == [left] * left
    assert keys(masters) == [{}] * 5


async def test_a_share_that_was_released_is_over_for_itself_only(
    redlock: Redlock, masters: list[FakeMaster]
) -> None:
    lock = redlock.lock("r", reentrant=True)
    outer, inner = await lock.acquire(), await lock.acquire()
    await outer.release()
    for _ in range(2):
        with pytest.raises(LockNotHeldError, match="it has been released before"):
            await outer.release()
        with pytest.raises(LockNotHeldError, match="it has been released"):
            await outer.extend()
        with pytest.raises(LockNotHeldError, match="it has been released"):
            outer.ensure_valid()
    with pytest.raises(LockNotHeldError):
        async with outer:
            pytest.fail("the body ran")
    assert (outer.valid, outer.remaining, outer.hold_count) == (False, 0, 0)
    assert repr(outer) == "<Lease 'r', released>"
    assert (inner.valid, inner.hold_count) == (True, 1)
    await inner.extend(5_000)
    assert inner.ttl == 5_000
    inner.ensure_valid()
    assert all(held == {"r": inner.token} for held in keys(masters))
    await inner.release()
    await check_no_keys(masters)


async def test_a_release_inside_the_body_ends_one_share_and_its_guard(
    redlock: Redlock, masters: list[FakeMaster]
) -> None:
    ended = False
    lock = redlock.lock("r", ttl=1000, reentrant=True)
    inner = await lock.acquire()
    async with lock as outer:
        await outer.release()
        delete(masters)
        await inner.lost.wait()
        await asyncio.sleep(1)  # it is none of this body's business any more
        ended = True
    assert ended
    with pytest.raises(LockNotHeldError):
        await inner.release()


async def test_a_last_release_that_was_cancelled_can_be_repeated(
    redlock: Redlock, masters: list[FakeMaster]
) -> None:
    lock = redlock.lock("r", reentrant=True)
    first, last = await lock.acquire(), await lock.acquire()
    await first.release()
    task = asyncio.create_task(last.release())
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled()
    await last.release()
    with pytest.raises(LockNotHeldError, match="released before"):
        await first.release()
    assert keys(masters) == [{}] * 5


async def test_a_share_that_is_dropped_warns_and_the_others_go_on(
    redlock: Redlock, masters: list[FakeMaster]
) -> None:
    lock = redlock.lock("r", ttl=1000, reentrant=True)
    first, second = await lock.acquire(), await lock.acquire()
    with pytest.warns(ResourceWarning, match="'r'.*was never released; 1 more share it"):
        del first
        gc.collect()
    await asyncio.sleep(5)
    assert (second.valid, second.hold_count) == (True, 1)
    await second.release()
    assert keys(masters) == [{}] * 5


async def test_when_all_are_dropped_it_ends_with_its_ttl(
    redlock: Redlock, masters: list[FakeMaster]
) -> None:
    lock = redlock.lock("r", ttl=1000, reentrant=True)
    leases = [await lock.acquire() for _ in range(3)]
    with pytest.warns(ResourceWarning, match="never released"):
        leases.clear()
        gc.collect()
    await asyncio.sleep(1.1)
    assert keys(masters) == [{}] * 5


async def test_what_was_dropped_can_be_taken_again_and_then_is_released(
    redlock: Redlock, masters: list[FakeMaster]
) -> None:
    lock = redlock.lock("r", ttl=1000, reentrant=True)
    lease = await lock.acquire()
    with pytest.warns(ResourceWarning):
        del lease
        gc.collect()
    async with lock as again:
        assert again.hold_count == 1
        await asyncio.sleep(3)
        assert again.valid  # it is extended again
    assert keys(masters) == [{}] * 5
    assert "0 leases" in repr(redlock)


async def test_a_task_that_dies_does_not_leave_its_leases_held(redlock: Redlock) -> None:
    holds: list[HeldLease] = []

    async def die() -> None:
        lock = redlock.lock("r", ttl=1000, reentrant=True)
        leases = [await lock.acquire(), await lock.acquire()]
        holds.append(leases[0]._hold)
        raise KeyError(len(leases))

    task = asyncio.create_task(die())
    await asyncio.wait([task])
    died = weakref.ref(task)
    assert isinstance(task.exception(), KeyError)
    with pytest.warns(ResourceWarning, match="never released"):
        del task
        gc.collect()
    assert died() is None
    assert not holds.pop().is_of(None)  # whoever is outside of tasks is not that one
    began = now()
    async with redlock.lock("r"):
        assert now() - began < 1.1


# Who may.


async def test_no_other_task_shares_it(redlock: Redlock) -> None:
    lock = redlock.lock("r", reentrant=True, wait=50)

    async def child() -> str:
        try:
            async with lock:
                return "in"
        except LockNotAcquiredError:
            return "waited"

    async with lock as lease:
        assert await child() == "in"
        assert await asyncio.create_task(child()) == "waited"
        async with asyncio.TaskGroup() as group:
            children = [group.create_task(child()) for _ in range(3)]
        assert [task.result() for task in children] == ["waited"] * 3
        said: list[str] = []

        async def say() -> None:
            said.append(await child())

        async with anyio.create_task_group() as nursery:
            nursery.start_soon(say)
        assert said == ["waited"]
        assert await asyncio.create_task(lock.try_acquire()) is None
        again = await lock.try_acquire()
        assert again is not None
        await again.release()
        assert lease.hold_count == 1


async def test_a_new_task_at_the_place_of_an_old_one_is_another(redlock: Redlock) -> None:
    kept: list[Lease] = []

    async def acquire() -> None:
        kept.append(await redlock.lock("r", reentrant=True, wait=10).acquire())

    await asyncio.create_task(acquire())
    for _ in range(50):
        # CPython gives the memory of the old task to the new one, as a rule.
        with pytest.raises(LockNotAcquiredError):
            await asyncio.create_task(acquire())
    await kept.pop().release()


async def test_whoever_enters_a_lease_has_it(redlock: Redlock) -> None:
    """It was acquired by one task, and handed on to another, whose it is from then on."""
    lock = redlock.lock("r", reentrant=True, wait=20)
    leave = asyncio.Event()

    async def work(lease: Lease) -> None:
        async with lease, lock as again:
            assert again.hold_count == 2
            await leave.wait()

    task = asyncio.create_task(work(await lock.acquire()))
    await asyncio.sleep(0.01)
    with pytest.raises(LockNotAcquiredError):
        await lock.acquire()
    leave.set()
    async with redlock.lock("r"):  # which waits, and is no error
        assert task.done()
    await task
