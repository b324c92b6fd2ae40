"""What those who share a lease meet when it is lost, and when they are cancelled."""

import asyncio
import contextlib
from typing import Any, Literal

import anyio
import pytest

from redlock_aio import LockLostError, Redlock
from redlock_aio.testing import FakeMaster

from .cancelling import When, every_place
from .kit import delete, hang, keys, resume

pytestmark = pytest.mark.promise("S2")

OnLost = Literal["cancel", "flag"]
LOST = "'r' lost: a majority of the masters no longer has its key"


def cancelling() -> int:
    task = asyncio.current_task()
    assert task is not None
    return task.cancelling()


async def clean(redlock: Redlock, masters: list[FakeMaster]) -> None:
    await asyncio.sleep(1)
    assert keys(masters) == [{}] * 5
    assert "0 leases" in repr(redlock)


async def test_each_body_is_cancelled_and_each_level_says_why(
    redlock: Redlock, masters: list[FakeMaster]
) -> None:
    met: list[str] = []
    lock = redlock.lock("r", reentrant=True)

    async def nest(depth: int) -> None:
        try:
            async with lock:
                try:
                    if depth:
                        await nest(depth - 1)
                    await asyncio.sleep(0.2)
                    delete(masters)
                    await asyncio.sleep(9)
                except asyncio.CancelledError:
                    met.append("cancelled")
                    raise
        except LockLostError as error:
            met.append(str(error))
            met.extend(getattr(error, "__notes__", []))
            raise

    with pytest.raises(LockLostError):
        await nest(2)
    assert met == ["cancelled", LOST, LOST, LOST]
    assert cancelling() == 0
    await clean(redlock, masters)


async def test_a_level_that_lives_with_the_loss_is_cancelled_by_the_next(
    redlock: Redlock, masters: list[FakeMaster]
) -> None:
    lock = redlock.lock("r", reentrant=True)
    steps = []
    with pytest.raises(LockLostError):
        async with lock:
            with pytest.raises(LockLostError):
                async with lock:
                    await asyncio.sleep(0.2)
                    delete(masters)
                    await asyncio.sleep(9)
            steps.append("after the inner body")
            await asyncio.sleep(0.01)
            steps.append("never")
    assert steps == ["after the inner body"]
    assert cancelling() == 0


async def test_the_inner_body_s_own_error_comes_out_with_a_note(
    redlock: Redlock, masters: list[FakeMaster]
) -> None:
    lock = redlock.lock("r", reentrant=True)
    with pytest.raises(KeyError) as caught:
        async with lock, lock:
            await asyncio.sleep(0.2)
            delete(masters)
            try:
                await asyncio.sleep(9)
            finally:
                raise KeyError("mine")
    assert set(caught.value.__notes__) == {LOST}
    with pytest.raises(KeyError) as caught:
        async with lock, lock:
            raise KeyError("mine")
    assert not hasattr(caught.value, "__notes__")
    assert cancelling() == 0
    await clean(redlock, masters)


@pytest.mark.parametrize("outer", ["cancel", "flag"])
async def test_on_lost_is_each_one_s_own(
    redlock: Redlock, masters: list[FakeMaster], outer: OnLost
) -> None:
    inner: OnLost = "flag" if outer == "cancel" else "cancel"
    went_on = []
    with contextlib.ExitStack() as stack:
        if outer == "cancel":
            stack.enter_context(pytest.raises(LockLostError))
        async with redlock.lock("r", on_lost=outer) as first:
            with contextlib.nullcontext() if outer == "cancel" else pytest.raises(LockLostError):
                async with redlock.lock("r", reentrant=True, on_lost=inner) as second:
                    await asyncio.sleep(0.2)
                    delete(masters)
                    try:
                        await first.lost.wait()
                    finally:
                        assert second.lost.is_set()
                        assert (first.valid, second.valid) == (False, False)
                    went_on.append("inner")
                    await asyncio.sleep(0.01)
            await asyncio.sleep(0.01)
            went_on.append("outer")
    assert ("outer" in went_on) == (outer == "flag")
    assert cancelling() == 0
    await clean(redlock, masters)


async def test_bodies_of_other_tasks_of_the_owner_are_cancelled_too(
    redlock: Redlock, masters: list[FakeMaster]
) -> None:
    lock = redlock.lock("r", reentrant=True, owner="x")

    async def child() -> None:
        async with lock:
            await asyncio.sleep(9)

    with pytest.raises(LockLostError):
        async with lock:
            children = [asyncio.create_task(child()) for _ in range(3)]
            await asyncio.sleep(0.2)
            delete(masters)
            await asyncio.sleep(9)
    await asyncio.wait(children)
    assert [str(task.exception()) for task in children] == [LOST] * 3
    await clean(redlock, masters)


async def test_each_level_says_why_also_when_the_first_of_the_owner_has_left(
    redlock: Redlock, masters: list[FakeMaster]
) -> None:
    lock = redlock.lock("r", reentrant=True, owner="x")
    leave = asyncio.Event()
    met: list[str] = []

    async def first() -> None:
        async with lock:
            await leave.wait()

    task = asyncio.create_task(first())
    await asyncio.sleep(0.01)
    with pytest.raises(LockLostError):
        async with lock:
            leave.set()
            await task
            with pytest.raises(LockLostError):
                async with lock:
                    await asyncio.sleep(0.2)
                    delete(masters)
                    await asyncio.sleep(9)
            met.append("it came out of the inner one")
    assert met
    await clean(redlock, masters)


async def test_who_has_left_is_not_cancelled(redlock: Redlock, masters: list[FakeMaster]) -> None:
    lock = redlock.lock("r", reentrant=True)
    share = await lock.acquire()
    async with lock:
        await asyncio.sleep(0.2)
    delete(masters)
    await share.lost.wait()
    await asyncio.sleep(0.1)
    assert not share.valid


async def test_a_deadline_ends_all_levels(redlock: Redlock, masters: list[FakeMaster]) -> None:
    lock = redlock.lock("r", ttl=1000, reentrant=True)
    with pytest.raises(LockLostError, match="validity"):
        async with lock, lock, lock:
            hang(masters[:3])
            await asyncio.sleep(9)
    assert cancelling() == 0
    resume(masters)
    await asyncio.sleep(3)
    assert keys(masters) == [{}] * 5


async def test_the_user_s_own_cancellation_passes_through(
    redlock: Redlock, masters: list[FakeMaster]
) -> None:
    lock = redlock.lock("r", reentrant=True)

    async def body() -> None:
        async with lock, lock, lock:
            await asyncio.sleep(9)

    task = asyncio.create_task(body())
    await asyncio.sleep(0.1)
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled()
    await clean(redlock, masters)
    with anyio.move_on_after(0.1) as scope:
        async with lock:
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.05), lock:
                    await asyncio.sleep(9)
            async with lock as lease:
                assert lease.hold_count == 2
                await asyncio.sleep(9)
    assert scope.cancelled_caught
    assert cancelling() == 0
    await clean(redlock, masters)


async def test_a_manager_that_is_closed_ends_all_levels(
    redlock: Redlock, masters: list[FakeMaster]
) -> None:
    lock = redlock.lock("r", reentrant=True, owner="x", hold_at_least=5_000)
    met: list[str] = []

    async def body() -> None:
        try:
            async with lock, lock:
                await asyncio.sleep(9)
        except LockLostError as error:
            met.append(str(error))
            raise

    tasks = [asyncio.create_task(body()) for _ in range(2)]
    await asyncio.sleep(0.1)
    await redlock.aclose()
    await asyncio.wait(tasks)
    assert all(isinstance(task.exception(), LockLostError) for task in tasks)
    assert met == ["'r' lost: the Redlock that keeps it was closed"] * 2
    assert keys(masters) == [{}] * 5


# A cancellation at every place: the kit of test_cancellation.


async def nested(redlock: Redlock) -> None:
    lock = redlock.lock("r", reentrant=True)
    async with lock:
        await asyncio.sleep(0.01)
        async with lock as lease, redlock.lock("r", ttl=20_000, reentrant=True):
            await lease.extend()
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.01)


async def out_of_order(redlock: Redlock) -> None:
    lock = redlock.lock("r", reentrant=True)
    leases = [await lock.acquire()]
    try:
        leases += [await lock.acquire(), await lock.acquire()]
        await leases[1].extend(5_000)
    finally:
        for lease in leases:
            with contextlib.suppress(asyncio.CancelledError):
                await lease.release()


async def jointly(redlock: Redlock) -> None:
    whole, part = redlock.lock("r", "s", fair=True), redlock.lock("s", reentrant=True)
    async with whole, part as lease:
        assert lease.hold_count == 2
        await asyncio.sleep(0.01)


async def with_kin(redlock: Redlock) -> None:
    lock = redlock.lock("r", reentrant=True, owner="x")

    async def work() -> None:
        async with lock:
            await asyncio.sleep(0.01)

    async with asyncio.TaskGroup() as group:
        group.create_task(work())
        await asyncio.sleep(0)
        async with lock:
            await asyncio.sleep(0.01)


@pytest.mark.spread(2)
@pytest.mark.promise("S3")
@pytest.mark.parametrize("when", ["waiting", "answered"])
@pytest.mark.parametrize("hung", range(3))
@pytest.mark.parametrize("use", [nested, out_of_order, jointly, with_kin])
async def test_nothing_stays_wherever_it_is_cancelled(
    redlock: Redlock, masters: list[FakeMaster], use: Any, hung: int, when: When
) -> None:
    await every_place(masters, when, hung, lambda: use(redlock))
    assert "0 leases" in repr(redlock)
    assert not redlock._opener.session().local_queues.owner_waiters
