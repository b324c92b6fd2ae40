"""Functions under a lock, on real masters."""

import asyncio

import pytest

from redlock_aio import Redlock

from .helpers import RealMaster, call, gone, put, until, values

pytestmark = pytest.mark.integration


@pytest.mark.promise("S1")
async def test_calls_of_two_programs_follow_each_other(
    redlock: Redlock, other: Redlock, masters: list[RealMaster]
) -> None:
    inside = most = calls = 0

    async def work(name: str) -> None:
        nonlocal inside, most, calls
        inside += 1
        most = max(most, inside)
        assert not gone(masters, f"r:{name}")
        await asyncio.sleep(0.005)
        inside -= 1
        calls += 1

    here, there = redlock.locked("r:{name}")(work), other.locked("r:{name}")(work)
    await asyncio.gather(*(function("x") for function in (here, there) for _ in range(10)))
    assert (most, calls) == (1, 20)
    await until(lambda: gone(masters, "r:x"))


async def test_a_job_is_skipped_while_others_are_at_it(
    redlock: Redlock, other: Redlock, masters: list[RealMaster]
) -> None:
    started, go_on = asyncio.Event(), asyncio.Event()

    async def job() -> str:
        started.set()
        await go_on.wait()
        return "done"

    here = redlock.locked("job", skip_if_locked=True)(job)
    there = other.locked("job", skip_if_locked=True)(job)
    first = asyncio.create_task(here())
    await started.wait()
    assert [await here(), await there()] == [None, None]
    go_on.set()
    assert await first == "done"
    await until(lambda: gone(masters, "job"))
    assert await there() == "done"
    await until(lambda: gone(masters, "job"))
    put(masters[1:4], "job")
    assert await here() is None
    await until(lambda: values(masters, "job") == [None, *["somebody else"] * 3, None])


async def test_nobody_skips_for_votes_that_are_split(
    redlock: Redlock, masters: list[RealMaster]
) -> None:
    for master, value in zip(masters, "xxyyz", strict=True):
        call(master, "SET", "job", value, "PX", "100")

    @redlock.locked("job", skip_if_locked=True)
    async def job() -> str:
        return "done"

    assert await job() == "done"


@pytest.mark.promise("S3")
async def test_a_cancelled_call_leaves_nothing_behind(
    redlock: Redlock, masters: list[RealMaster]
) -> None:
    started = asyncio.Event()

    @redlock.locked("r:{name}")
    async def work(name: str) -> None:
        started.set()
        await asyncio.sleep(60)
        pytest.fail(f"{name} was not cancelled")

    first, second = asyncio.create_task(work("x")), asyncio.create_task(work("x"))
    await started.wait()
    second.cancel()
    first.cancel()
    await asyncio.wait([first, second])
    assert first.cancelled()
    assert second.cancelled()
    await until(lambda: gone(masters, "r:x"))
