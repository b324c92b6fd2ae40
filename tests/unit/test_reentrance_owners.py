"""Taking again what others hold who say that they are the same owner."""

import asyncio
import gc
from collections.abc import Callable
from typing import Any

import pytest

from redlock_aio import LockNotAcquiredError, Redlock
from redlock_aio.testing import FakeMaster

from .kit import check_no_keys, commands_received


class Same:
    """Equal to its like, and neither hashable nor the same object."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Same) and other.name == self.name

    __hash__ = None  # type: ignore[assignment]


@pytest.mark.parametrize(
    "owner", [lambda: "request 7", lambda: Same("x"), int, str], ids=["str", "other", "0", "empty"]
)
async def test_tasks_of_one_owner_share_it(
    redlock: Redlock, masters: list[FakeMaster], owner: Callable[[], object]
) -> None:
    def lock(who: object) -> Any:
        return redlock.lock("r", reentrant=True, owner=who, wait=20)

    async def child(who: object) -> int:
        async with lock(who) as lease:
            await asyncio.sleep(0.05)
            return int(lease.hold_count)

    async with lock(owner()) as lease:
        before = commands_received(masters)
        children = [asyncio.create_task(child(owner())) for _ in range(2)]
        assert await asyncio.gather(*children) == [3, 2]
        assert commands_received(masters) == before
        assert lease.hold_count == 1
        with pytest.raises(LockNotAcquiredError):
            await asyncio.create_task(child("another"))
        with pytest.raises(LockNotAcquiredError):
            await asyncio.create_task(child(None))
        with pytest.raises(LockNotAcquiredError):
            await child("another")
        assert await child(None) == 2  # the very task that has it
    await check_no_keys(masters)


async def test_an_owner_does_not_share_what_a_task_has(redlock: Redlock) -> None:
    async with redlock.lock("r"):
        with pytest.raises(LockNotAcquiredError):
            await redlock.lock("r", reentrant=True, owner="x", wait=20).acquire()


async def test_tasks_of_one_owner_that_come_together_share_it_too(
    redlock: Redlock, masters: list[FakeMaster]
) -> None:
    """Who comes second would else wait for the first, which may wait for it."""
    both = asyncio.Barrier(6)

    async def work(*names: str, **options: Any) -> None:
        lock = redlock.lock(*names, reentrant=True, owner="x", **options)
        async with lock, asyncio.timeout(1):
            await both.wait()

    async with asyncio.timeout(1), asyncio.TaskGroup() as group:
        group.create_task(work("a", "b"))
        for names in (("a",), ("b",), ("b", "a")):
            group.create_task(work(*names))
        group.create_task(work("a", fair=True))
        group.create_task(work("b", wait=900))
    assert not redlock._opener.session().local_queues.owner_waiters
    await check_no_keys(masters)


@pytest.mark.parametrize("fair", [False, True])
async def test_who_waits_for_others_hears_that_its_owner_has_it(
    redlock: Redlock, masters: list[FakeMaster], *, fair: bool
) -> None:
    lock = redlock.lock("r", reentrant=True, owner="x", fair=fair)
    async with redlock.lock("r"):
        first, second = asyncio.create_task(lock.acquire()), asyncio.create_task(lock.acquire())
        stranger = asyncio.create_task(redlock.lock("r", reentrant=True, owner="y").acquire())
        await asyncio.sleep(0.1)
    leases = await asyncio.wait_for(asyncio.gather(first, second), 5)
    assert [lease.hold_count for lease in leases] == [2, 2]
    assert not stranger.done()
    for lease in leases:
        await lease.release()
    await (await stranger).release()
    assert not redlock._opener.session().local_queues.owner_waiters
    await check_no_keys(masters)


async def test_who_has_left_has_nothing_though_others_of_its_owner_have(redlock: Redlock) -> None:
    leave = asyncio.Event()
    options: dict[str, Any] = {"reentrant": True, "wait": 20}

    async def other() -> None:
        async with redlock.lock("r", owner="x", **options), redlock.lock("r", **options) as again:
            assert again.hold_count == 3
            await leave.wait()

    async with redlock.lock("r", owner="x", **options):
        task = asyncio.create_task(other())
        await asyncio.sleep(0.01)
        async with redlock.lock("r", **options) as lease:
            assert lease.hold_count == 4
    with pytest.raises(LockNotAcquiredError):
        await redlock.lock("r", **options).acquire()
    leave.set()
    await task


async def test_who_has_dropped_it_has_nothing_though_its_owner_has(redlock: Redlock) -> None:
    options: dict[str, Any] = {"reentrant": True, "wait": 20}
    leave = asyncio.Event()

    async def other() -> None:
        async with redlock.lock("r", owner="x", **options) as again:
            assert again.hold_count == 1
            await leave.wait()

    lease = await redlock.lock("r", owner="x", **options).acquire()
    with pytest.warns(ResourceWarning, match="not extended any more"):
        del lease
        gc.collect()
    task = asyncio.create_task(other())
    await asyncio.sleep(0.01)
    with pytest.raises(LockNotAcquiredError):
        await redlock.lock("r", **options).acquire()
    leave.set()
    await task
