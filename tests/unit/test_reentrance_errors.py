"""Whoever would wait for itself for ever is told so; nobody else is."""

import asyncio
import re
from datetime import timedelta
from typing import Any

import pytest

from redlock_aio import Lease, LockLostError, LockNotAcquiredError, Redlock, RedlockError, Retry
from redlock_aio.testing import FakeMaster

from .kit import delete, occupy

WOULD_NEVER_COME = (
    "'r' would never come: this task itself holds 'r'; reentrant=True takes it again, and if"
    " another task is to release it, give a wait"
)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"fair": True},
        {"fencing": True},
        {"fair": True, "fencing": True},
        {"fair": True, "retry": Retry(attempts=3)},
        {"ttl": 500},
        {"on_lost": "flag"},
    ],
    ids=str,
)
async def test_whoever_waits_for_itself_is_told_at_once(
    redlock: Redlock, masters: list[FakeMaster], options: dict[str, Any]
) -> None:
    async with redlock.lock("r"):
        await asyncio.sleep(0.01)
        before = [len(master.commands) for master in masters]
        for _ in range(2):
            with pytest.raises(RedlockError, match=re.escape(WOULD_NEVER_COME)) as caught:
                async with redlock.lock("r", **options):
                    pytest.fail("it got it")
            assert type(caught.value) is RedlockError
        assert [len(master.commands) for master in masters] == before
    async with redlock.lock("r"):
        pass


@pytest.mark.parametrize(
    "options",
    [
        {"wait": 0},
        {"wait": 100},
        {"wait": timedelta(milliseconds=100)},
        {"retry": Retry(min_delay=10, max_delay=10, attempts=3)},
        {"wait": 100, "fair": True},
        {"wait": 0, "reentrant": True, "owner": "x"},
    ],
    ids=str,
)
async def test_whoever_does_not_wait_for_ever_is_refused_as_by_others(
    redlock: Redlock, options: dict[str, Any]
) -> None:
    async with redlock.lock("r") as lease:
        with pytest.raises(LockNotAcquiredError) as caught:
            await redlock.lock("r", **options).acquire()
        assert caught.value.holder is not None
        assert caught.value.holder.fingerprint == lease.fingerprint


@pytest.mark.parametrize("wait", [None, 0, 100])
@pytest.mark.parametrize("options", [{}, {"fair": True}, {"reentrant": True, "owner": "x"}])
@pytest.mark.parametrize("names", [("r",), ("r", "s")])
async def test_whoever_tries_once_fails_as_others_do(
    redlock: Redlock, names: tuple[str, ...], options: dict[str, Any], wait: int | None
) -> None:
    async with redlock.lock("r"):
        assert await redlock.lock(*names, wait=wait, **options).try_acquire() is None


async def test_more_than_is_held_is_not_had_in_this_way(redlock: Redlock) -> None:
    async with redlock.lock("a", "b"):
        for names in (("b", "c"), ("c", "b", "a")):
            with pytest.raises(RedlockError, match="holds 'a', 'b'; a part of what is wanted"):
                await redlock.lock(*names, reentrant=True).acquire()
            assert await redlock.lock(*names, reentrant=True).try_acquire() is None
            with pytest.raises(RedlockError, match="holds 'a', 'b'; reentrant=True takes it again"):
                await redlock.lock(*names).acquire()
        for some in (("a",), ("b",), ("b", "a")):
            async with redlock.lock(*some, reentrant=True) as lease:
                assert lease.hold_count == 2
                assert lease.resources == ("a", "b")
    async with redlock.lock("a"), redlock.lock("b"):
        with pytest.raises(RedlockError, match="'a', 'b' would never come"):
            await redlock.lock("a", "b", reentrant=True).acquire()


async def test_another_owner_in_one_task_is_told_too(redlock: Redlock) -> None:
    only = "this task itself holds 'r'; only the owner that has acquired it takes it again"
    for first in ({"reentrant": True, "owner": "x"}, {}):
        async with redlock.lock("r", **first):  # type: ignore[arg-type]
            with pytest.raises(RedlockError, match=only):
                await redlock.lock("r", reentrant=True, owner="y").acquire()


async def test_an_owner_that_wants_more_than_another_task_of_it_has_is_told(
    redlock: Redlock,
) -> None:
    async with redlock.lock("a", reentrant=True, owner="x"):
        more = asyncio.create_task(redlock.lock("a", "b", reentrant=True, owner="x").acquire())
        await asyncio.wait([more])
        assert "its owner holds 'a'; a part of what is wanted" in str(more.exception())


async def test_nobody_else_is_told(redlock: Redlock, masters: list[FakeMaster]) -> None:
    async def take() -> None:
        async with redlock.lock("r"):
            pass

    async with redlock.lock("r"):
        others = [asyncio.create_task(take()) for _ in range(3)]
        await asyncio.sleep(0.1)
    await asyncio.gather(*others)
    occupy(masters, ttl=100)
    await take()
    async with redlock.lock("r"), redlock.lock("s"), redlock.lock("t", "u"):
        pass


@pytest.mark.parametrize("options", [{"auto_extend": False}, {"max_hold": 900}], ids=str)
async def test_a_lease_that_ends_by_itself_is_waited_for(
    redlock: Redlock, options: dict[str, Any]
) -> None:
    lease = await redlock.lock("r", ttl=1000, **options).acquire()
    async with redlock.lock("r") as second:
        assert not lease.valid
        assert second.valid


@pytest.mark.parametrize("options", [{"auto_extend": False}, {"max_hold": 900}], ids=str)
async def test_but_not_if_its_end_would_cancel_whoever_waits(
    redlock: Redlock, options: dict[str, Any]
) -> None:
    lock = redlock.lock("r", ttl=1000, reentrant=True, **options)
    lease = await lock.acquire()
    async with lock:
        with pytest.raises(RedlockError, match="would never come"):
            await redlock.lock("r").acquire()
    share = await lock.acquire()
    async with lease:
        pass
    async with share, lock:
        with pytest.raises(RedlockError, match="would never come"):
            await redlock.lock("r").acquire()


async def test_what_was_lost_is_waited_for(redlock: Redlock, masters: list[FakeMaster]) -> None:
    with pytest.raises(LockLostError):
        async with redlock.lock("r", on_lost="cancel"):
            await asyncio.sleep(0.2)
            delete(masters)
            await asyncio.sleep(9)
    async with redlock.lock("r", ttl=300, on_lost="flag") as lease:
        asyncio.get_running_loop().stall(1)  # type: ignore[attr-defined]
        async with redlock.lock("r"):
            assert lease.lost.is_set()


async def test_what_was_handed_on_is_waited_for(redlock: Redlock) -> None:
    """By whoever has acquired it: as for ever if it was entered there, else with a wait."""

    async def enter(lease: Lease) -> None:
        async with lease:
            await asyncio.sleep(0.5)

    async def release(lease: Lease) -> None:
        await asyncio.sleep(0.5)
        await lease.release()

    task = asyncio.create_task(enter(await redlock.lock("r").acquire()))
    await asyncio.sleep(0.01)
    lease = await redlock.lock("r").acquire()
    await task
    task = asyncio.create_task(release(lease))
    with pytest.raises(RedlockError, match="if another task is to release it, give a wait"):
        await redlock.lock("r").acquire()
    async with redlock.lock("r", wait=5_000):
        await task


async def test_an_owner_is_for_reentrant_locks(redlock: Redlock) -> None:
    with pytest.raises(ValueError, match="owner is for reentrant=True"):
        redlock.lock("r", owner="x")
    for owner in (0, ""):
        with pytest.raises(ValueError, match="owner is for reentrant=True"):
            redlock.lock("r", owner=owner)
    with pytest.raises(TypeError, match="reentrant must be a bool, not a int"):
        redlock.lock("r", reentrant=1)  # type: ignore[arg-type]


async def test_a_body_of_whoever_came_later_counts_too(redlock: Redlock) -> None:
    """When the first of an owner has left, the end of the lease would cancel the second."""
    lock = redlock.lock("r", ttl=1000, reentrant=True, owner="x", auto_extend=False)
    leave = asyncio.Event()

    async def first() -> None:
        async with lock:
            await leave.wait()

    task = asyncio.create_task(first())
    await asyncio.sleep(0.01)
    async with lock:
        leave.set()
        await task
        with pytest.raises(RedlockError, match="would never come"):
            await redlock.lock("r").acquire()


async def test_whoever_waits_for_more_than_its_owner_gets_meanwhile_waits_on(
    redlock: Redlock,
) -> None:
    options: dict[str, Any] = {"reentrant": True, "owner": "x"}
    async with redlock.lock("b"):
        both = asyncio.create_task(redlock.lock("a", "b", **options).acquire())
        await asyncio.sleep(0.1)
        async with redlock.lock("a", **options):
            await asyncio.sleep(0.1)
    lease = await both
    assert lease.hold_count == 1
    await lease.release()
