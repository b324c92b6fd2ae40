"""A cancellation at every suspension of every call, mechanically: nothing of ours stays."""

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Literal

import anyio
import pytest

from redlock_aio import LockLostError, Redlock
from redlock_aio._protocol import declaration
from redlock_aio._protocol.commands import MARKER
from redlock_aio.testing import FakeMaster, cancelled_at

When = Literal["waiting", "answered"]
Use = Callable[[Redlock], Coroutine[Any, Any, None]]

pytestmark = [pytest.mark.promise("S3")]


async def with_block(redlock: Redlock) -> None:
    async with redlock.lock("r"):
        await asyncio.sleep(0.01)


async def acquire_and_release(redlock: Redlock) -> None:
    lease = await redlock.lock("r").acquire()
    try:
        await lease.extend()
    finally:
        await lease.release()


async def try_acquire(redlock: Redlock) -> None:
    lease = await redlock.lock("r").try_acquire()
    if lease is not None:
        async with lease:
            await asyncio.sleep(0.01)


async def wait_for_a_holder(redlock: Redlock) -> None:
    async with redlock.lock("theirs"):
        pass


async def in_a_queue(redlock: Redlock) -> None:
    async with redlock.lock("r", fair=True):
        await asyncio.sleep(0.01)


async def wait_in_a_queue(redlock: Redlock) -> None:
    async with redlock.lock("theirs", fair=True):
        pass


async def several_at_once(redlock: Redlock) -> None:
    async with redlock.lock("r", "s", "t"):
        await asyncio.sleep(0.01)


async def several_with_a_token(redlock: Redlock) -> None:
    async with redlock.lock("r", "s", fencing=True) as lease:
        await lease.extend()


async def wait_for_one_of_several(redlock: Redlock) -> None:
    async with redlock.lock("r", "theirs", fencing=True):
        pass


async def wait_in_queues_for_one_of_several(redlock: Redlock) -> None:
    async with redlock.lock("theirs", "r", fair=True):
        await asyncio.sleep(0.01)


async def fail_in_the_body(redlock: Redlock) -> None:
    try:
        async with redlock.lock("r"):
            await asyncio.sleep(0.01)
            raise KeyError
    except KeyError:
        pass


USES: list[Use] = [
    with_block,
    acquire_and_release,
    try_acquire,
    wait_for_a_holder,
    in_a_queue,
    wait_in_a_queue,
    several_at_once,
    several_with_a_token,
    wait_for_one_of_several,
    wait_in_queues_for_one_of_several,
    fail_in_the_body,
]


def left(master: FakeMaster) -> list[bytes]:
    """All keys of locks, the queues too."""
    now = asyncio.get_running_loop().time()
    keys = [key for key, (_, until) in master._keys.items() if now < until and key != MARKER]
    stay = (b"redlock_aio:fence:", declaration.KEY)
    return [key for key in keys if not key.startswith(stay)]


async def whole(awaitable: Awaitable[None]) -> None:
    await awaitable


async def every_place(
    masters: list[FakeMaster],
    when: When,
    hung: int,
    use: Callable[[], Coroutine[Any, Any, None]],
) -> None:
    for place in itertools.count(1):
        for master in masters[:hung]:
            master.hang()
        for master in masters:
            master.set("theirs", "theirs", ttl=30)
        task = asyncio.create_task(whole(cancelled_at(place, use(), when=when)))
        await asyncio.wait([task])
        for master in masters:
            master.resume()
        await asyncio.sleep(2)
        assert not [left(master) for master in masters if left(master)], f"suspension {place}"
        if not task.cancelled():
            assert task.exception() is None
            assert place > 1
            return


@pytest.mark.parametrize("when", ["waiting", "answered"])
@pytest.mark.parametrize("hung", range(3))
@pytest.mark.parametrize("use", USES)
async def test_nothing_stays_wherever_it_is_cancelled(
    redlock: Redlock, masters: list[FakeMaster], use: Use, hung: int, when: When
) -> None:
    await every_place(masters, when, hung, lambda: use(redlock))
    assert "0 leases" in repr(redlock)


@pytest.mark.parametrize("when", ["waiting", "answered"])
@pytest.mark.parametrize("hung", range(3))
async def test_nothing_stays_of_a_first_use_that_is_cancelled(
    masters: list[FakeMaster], hung: int, when: When
) -> None:
    async def first_use() -> None:
        async with Redlock(masters) as redlock, redlock.lock("r"):
            await asyncio.sleep(0.01)

    await every_place(masters, when, hung, first_use)


@pytest.mark.parametrize("hung", range(6))
async def test_masters_that_were_hung_are_cleaned_when_they_answer_again(
    redlock: Redlock, masters: list[FakeMaster], hung: int
) -> None:
    for master in masters[:hung]:
        master.hang()
    task = asyncio.create_task(with_block(redlock))
    await asyncio.sleep(0.0001)
    task.cancel()
    await asyncio.wait([task])
    await asyncio.sleep(60)  # long enough for the connections to be given up
    for master in masters:
        master.resume()
    await asyncio.sleep(1)

    assert [master.keys for master in masters] == [{}] * 5


async def test_a_release_that_was_cancelled_can_be_repeated(
    redlock: Redlock, masters: list[FakeMaster]
) -> None:
    lease = await redlock.lock("r").acquire()
    task = asyncio.create_task(lease.release())
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait([task])

    assert task.cancelled()
    await lease.release()
    assert [master.keys for master in masters] == [{}] * 5


async def test_a_cancelled_body_leaves_as_cancelled_and_promptly(
    redlock: Redlock, masters: list[FakeMaster]
) -> None:
    task = asyncio.create_task(with_block(redlock))
    await asyncio.sleep(0.005)
    task.cancel()
    began = asyncio.get_running_loop().time()
    await asyncio.wait([task])

    assert task.cancelled()
    assert asyncio.get_running_loop().time() == began
    await asyncio.sleep(0.01)
    assert [master.keys for master in masters] == [{}] * 5


async def test_scopes_and_timeouts_around_a_lock_stay_in_order(redlock: Redlock) -> None:
    with anyio.move_on_after(0.5) as outer:
        async with redlock.lock("a"):
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.1), redlock.lock("b"):
                    await asyncio.sleep(9)
            await asyncio.sleep(9)
    assert outer.cancelled_caught
    task = asyncio.current_task()
    assert task is not None
    assert not task.cancelling()


async def test_a_cancellation_and_a_loss_in_one_turn_are_both_seen(
    redlock: Redlock, masters: list[FakeMaster]
) -> None:
    async def body() -> None:
        async with redlock.lock("r", ttl=1000, auto_extend=False) as lease:
            asyncio.get_running_loop().call_later(lease.remaining / 1000 - 0.001, cancel)
            await asyncio.sleep(9)

    def cancel() -> None:
        task.cancel()

    task = asyncio.create_task(body())
    await asyncio.wait([task])
    assert task.cancelled() or isinstance(task.exception(), LockLostError)
    await asyncio.sleep(1)
    assert [master.keys for master in masters] == [{}] * 5
