"""Locks that are taken again, kept after the release, and say who has them, on real masters."""

import asyncio
import time
from typing import Any

import pytest
from redis.asyncio import Redis

from redlock_aio import Holder, LockLostError, LockNotAcquiredError, Redlock, RedlockError

from .helpers import (
    AT_ONCE,
    RealMaster,
    Stopwatch,
    call,
    connected,
    gone,
    heard,
    pttls,
    queued,
    until,
    values,
)

pytestmark = pytest.mark.integration


def calls(masters: list[RealMaster], command: str) -> list[int]:
    """How often each master was asked for something."""
    said = [call(master, "INFO", "commandstats") for master in masters]
    return [stats.get(f"cmdstat_{command}", {"calls": 0})["calls"] for stats in said]


async def everywhere(redlock: Redlock, masters: list[RealMaster], *names: str) -> None:
    await heard(redlock)
    await until(lambda: all(None not in values(masters, name) for name in names))


async def test_taking_it_again_sends_nothing_and_the_last_release_frees_it(
    redlock: Redlock, other: Redlock, masters: list[RealMaster]
) -> None:
    lock = redlock.lock("r", reentrant=True)
    async with lock as outer:
        await everywhere(redlock, masters, "r")
        before = calls(masters, "set"), calls(masters, "evalsha")
        leases = [await lock.acquire() for _ in range(50)]
        assert leases[-1].hold_count == 51
        await outer.release()
        for lease in leases[1:]:
            await lease.release()
        assert (calls(masters, "set"), calls(masters, "evalsha")) == before
        assert await other.lock("r").try_acquire() is None
        await everywhere(redlock, masters, "r")
        await leases[0].release()
        await until(lambda: gone(masters, "r"))


async def test_a_longer_ttl_is_told_the_masters(
    redlock: Redlock, masters: list[RealMaster]
) -> None:
    async with redlock.lock("r", ttl=2_000) as outer:
        await everywhere(redlock, masters, "r")
        async with redlock.lock("r", ttl=30_000, reentrant=True) as inner:
            await until(lambda: min(pttls(masters, "r")) > 28_000)
            await until(lambda: inner.ttl == 30_000)
            assert outer.remaining > 28_000
        await asyncio.sleep(2.1)
        assert outer.valid


async def test_tasks_of_one_owner_share_a_joint_lock_and_its_loss(
    redlock: Redlock, masters: list[RealMaster]
) -> None:
    counts: list[int] = []

    async def part(name: str) -> None:
        async with redlock.lock(name, reentrant=True, owner="request 7") as lease:
            counts.append(lease.hold_count)
            await asyncio.sleep(20)

    with pytest.raises(LockLostError, match="no longer has its key"):
        async with redlock.lock("a", "b", reentrant=True, owner="request 7"):
            await everywhere(redlock, masters, "a", "b")
            parts = [asyncio.create_task(part(name)) for name in "ab"]
            await until(lambda: len(counts) == 2)
            await asyncio.sleep(0.15)  # by then the masters tell of changes
            for master in masters[:3]:
                call(master, "DEL", "b")
            await asyncio.sleep(20)
    await asyncio.wait(parts)
    assert counts == [2, 3]
    assert all(isinstance(task.exception(), LockLostError) for task in parts)
    await until(lambda: gone(masters, "a") and gone(masters, "b"))


async def test_whoever_would_wait_for_itself_is_told(redlock: Redlock, other: Redlock) -> None:
    async with redlock.lock("r", fencing=True):
        kinds: list[dict[str, Any]] = [{}, {"fair": True}, {"fencing": True}]
        for options in kinds:
            with pytest.raises(RedlockError, match="'r' would never come"):
                await redlock.lock("r", **options).acquire()
        with pytest.raises(LockNotAcquiredError):
            await other.lock("r", wait=50, reentrant=True).acquire()


async def test_a_thread_asks_in_another_task(redlock: Redlock) -> None:
    loop = asyncio.get_running_loop()
    lock = redlock.lock("r", reentrant=True, wait=50)

    def ask() -> None:
        asyncio.run_coroutine_threadsafe(lock.acquire(), loop).result(10)

    async with lock as lease:
        with pytest.raises(LockNotAcquiredError):
            await asyncio.to_thread(ask)
        assert lease.hold_count == 1


@pytest.mark.parametrize("fair", [False, True])
async def test_it_is_kept_to_the_time_and_then_comes_to_who_waits(
    redlock: Redlock, other: Redlock, masters: list[RealMaster], *, fair: bool
) -> None:
    """Behind a release that is as quick as ever; in the queue, the place is given up at once."""
    asked_at = time.monotonic()
    async with redlock.lock("r", ttl=20_000, hold_at_least=3_000, fair=fair) as lease:
        kept_from = time.monotonic()
        await everywhere(redlock, masters, "r")
        waits = asyncio.create_task(other.lock("r", fair=fair).acquire())
        if fair:
            await until(lambda: queued(masters) == [2] * 5)
        left_at = time.monotonic()
    assert time.monotonic() < asked_at + 3, "nobody waits for that"
    assert not lease.valid
    await heard(redlock)
    # The masters are told how long the lock is kept yet, and hear it a little later.
    until_then = kept_from + 3 + time.monotonic() - left_at
    most = (until_then - time.monotonic()) * 1000
    left = pttls(masters, "r")
    least = (asked_at + 3 - time.monotonic()) * 1000
    assert all(least - 50 < pttl <= most + 50 for pttl in left)
    if fair:
        assert queued(masters) == [1] * 5
    got = await waits
    late = time.monotonic() - asked_at - 3
    assert -0.01 < late < AT_ONCE
    await got.release()


async def test_it_is_kept_by_masters_that_have_forgotten_the_scripts(
    redlock: Redlock, masters: list[RealMaster]
) -> None:
    async with redlock.lock("r", ttl=2_000, hold_at_least=60_000):
        await everywhere(redlock, masters, "r")
        for master in masters:
            call(master, "SCRIPT", "FLUSH")
    await until(lambda: min(pttls(masters, "r")) > 50_000)


async def test_what_a_hung_master_hears_late_it_forgets_when_the_time_is_over(
    redlock: Redlock, masters: list[RealMaster]
) -> None:
    async with redlock.lock("r", ttl=20_000, hold_at_least=3_000):
        await everywhere(redlock, masters, "r")
        watch = Stopwatch()
        masters[0].pause()
    await until(lambda: watch.ms > 2_700)
    masters[0].resume()
    await until(lambda: gone(masters, "r"))
    assert watch.ms < 5_500  # not when it would have ended there, at 5 700


async def test_others_see_who_has_it_and_it_excludes_other_libraries(
    masters: list[RealMaster], other: Redlock
) -> None:
    about: dict[str, object] = {"job": "nightly", "wörker": [1, None]}
    async with connected(masters, name="web-1") as redlock:
        kinds: list[dict[str, Any]] = [{}, {"fair": True}, {"fencing": True}]
        for kind in kinds:
            async with redlock.lock("r", metadata=about, **kind) as lease:
                await everywhere(redlock, masters, "r")
                assert set(values(masters, "r")) == {lease.token}
                for fair in (False, True):
                    with pytest.raises(LockNotAcquiredError, match=r"now by web-1 \(") as caught:
                        await other.lock("r", wait=0, fair=fair).acquire()
                    assert caught.value.holder == Holder(lease.fingerprint, "web-1", about)
                async with Redis.from_url(masters[0].url) as client:
                    theirs = client.lock("r", timeout=5, blocking=False)
                    assert not await theirs.acquire()
            await until(lambda: gone(masters, "r"))
