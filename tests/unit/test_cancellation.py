"""A cancellation at every suspension of every call, mechanically: nothing of ours stays."""

import asyncio

import anyio
import pytest

from redlock_aio import LockLostError, Redlock
from redlock_aio.testing import FakeMaster

from .cancelling import USES, Use, When, every_place, with_block
from .kit import hang, keys, now, resume

pytestmark = [pytest.mark.promise("S3")]


@pytest.mark.spread(2)
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
    hang(masters[:hung])
    task = asyncio.create_task(with_block(redlock))
    await asyncio.sleep(0.0001)
    task.cancel()
    await asyncio.wait([task])
    await asyncio.sleep(60)  # long enough for the connections to be given up
    resume(masters)
    await asyncio.sleep(1)

    assert keys(masters) == [{}] * 5


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
    assert keys(masters) == [{}] * 5


async def test_a_cancelled_body_leaves_as_cancelled_and_promptly(
    redlock: Redlock, masters: list[FakeMaster]
) -> None:
    task = asyncio.create_task(with_block(redlock))
    await asyncio.sleep(0.005)
    task.cancel()
    began = now()
    await asyncio.wait([task])

    assert task.cancelled()
    assert now() == began
    await asyncio.sleep(0.01)
    assert keys(masters) == [{}] * 5


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
    assert keys(masters) == [{}] * 5
