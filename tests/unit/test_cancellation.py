"""A cancellation at every await of every call: no key is left on a master."""

import asyncio

import anyio
import pytest

from redlock_aio import LockLostError, Redlock

from . import kit
from .cancelling import SHARING, USES, Use, When, every_place, with_block
from .kit import Masters, cancelling, check_no_keys, hang, keys, now

pytestmark = [pytest.mark.promise("S3")]


@pytest.mark.spread(1)
@pytest.mark.parametrize("when", ["waiting", "answered"])
@pytest.mark.parametrize("hung", range(3))
@pytest.mark.parametrize("use", [*USES, *SHARING])
async def test_a_cancellation_anywhere_leaves_nothing(
    redlock: Redlock, masters: Masters, use: Use, hung: int, when: When
) -> None:
    queues = kit.session(redlock).local_queues

    async def behind_the_last_one() -> None:
        assert not queues.waiters, "the task that was cancelled last is still told of releases"
        await use(redlock)

    await every_place(masters, when, hung, behind_the_last_one)
    assert redlock.statistics().leases == 0
    assert not queues.owner_waiters


@pytest.mark.spread(1)
@pytest.mark.parametrize("when", ["waiting", "answered"])
@pytest.mark.parametrize("hung", range(3))
async def test_a_cancelled_first_use_leaves_nothing(
    masters: Masters, hung: int, when: When
) -> None:
    async def first_use() -> None:
        async with Redlock(masters) as redlock, redlock.lock("r"):
            await asyncio.sleep(0.01)

    await every_place(masters, when, hung, first_use)


@pytest.mark.parametrize("hung", [2, 3, 5])
async def test_hung_masters_are_cleaned_when_they_answer(
    redlock: Redlock, masters: Masters, hung: int
) -> None:
    hang(masters[:hung])
    task = asyncio.create_task(with_block(redlock))
    await asyncio.sleep(0.0001)
    task.cancel()
    await asyncio.wait([task])
    await asyncio.sleep(60)  # long enough for the connections to be closed
    await check_no_keys(masters)


async def test_a_cancelled_body_ends_at_once(redlock: Redlock, masters: Masters) -> None:
    task = asyncio.create_task(with_block(redlock))
    await asyncio.sleep(0.005)
    task.cancel()
    began = now()
    await asyncio.wait([task])
    assert task.cancelled()
    assert now() == began
    await asyncio.sleep(0.01)
    assert keys(masters) == [{}] * 5


async def test_scopes_and_timeouts_around_locks_stay_in_order(redlock: Redlock) -> None:
    with anyio.move_on_after(0.5) as outer:
        async with redlock.lock("a"):
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.1), redlock.lock("b"):
                    await asyncio.sleep(9)
            await asyncio.sleep(9)
    assert outer.cancelled_caught
    assert not cancelling()


async def test_a_cancellation_and_a_loss_in_one_turn(redlock: Redlock, masters: Masters) -> None:
    async def body() -> None:
        async with redlock.lock("r", ttl=1000, auto_extend=False) as lease:
            asyncio.get_running_loop().call_later(lease.remaining / 1000 - 0.001, task.cancel)
            await asyncio.sleep(9)

    task = asyncio.create_task(body())
    await asyncio.wait([task])
    assert task.cancelled() or isinstance(task.exception(), LockLostError)
    await check_no_keys(masters)
