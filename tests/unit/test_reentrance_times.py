"""What taking a lock again does to its ttl and deadline, and when it is no more ours."""

import asyncio

import pytest

from redlock_aio import LockLostError, LockNotAcquiredError, LockNotHeldError, Redlock
from redlock_aio._protocol.scripts import EXTEND
from redlock_aio.testing import FakeMaster

from .kit import before, keys, loop, now, ran


async def test_a_longer_ttl_is_told_at_once_and_not_waited_for(
    redlock: Redlock, masters: list[FakeMaster]
) -> None:
    async with redlock.lock("r", ttl=1000) as outer:
        began = now()
        async with redlock.lock("r", ttl=20_000, reentrant=True) as inner:
            assert now() == began
            await asyncio.sleep(0.001)
            assert (outer.ttl, inner.ttl) == (20_000, 20_000)
            assert inner.remaining == outer.remaining == pytest.approx(20_000 - 202, abs=2)
            assert [ran(master, EXTEND) for master in masters] == [1] * 5
            await asyncio.sleep(5)
            assert [ran(master, EXTEND) for master in masters] == [1] * 5
        await asyncio.sleep(40)
        assert outer.ttl == 20_000  # the watchdog goes on with it
        assert all(ran(master, EXTEND) <= 9 for master in masters)


@pytest.mark.parametrize("ttl", [100, 10_000])
async def test_a_ttl_that_is_not_longer_changes_nothing(
    redlock: Redlock, masters: list[FakeMaster], ttl: int
) -> None:
    async with redlock.lock("r", ttl=10_000) as outer:
        await asyncio.sleep(1)
        async with redlock.lock("r", ttl=ttl, reentrant=True) as inner:
            assert (inner.ttl, inner.remaining) == (10_000, outer.remaining)
            await asyncio.sleep(1)
        assert [ran(master, EXTEND) for master in masters] == [0] * 5


async def test_validity_is_what_it_had_when_it_was_taken_again(redlock: Redlock) -> None:
    async with redlock.lock("r", ttl=1000) as outer:
        await asyncio.sleep(5.123)
        async with redlock.lock("r", ttl=1000, reentrant=True) as inner:
            assert inner.validity == inner.remaining == outer.remaining > 600
        assert outer.validity == 1000 - 12 - 1


async def test_a_longer_ttl_that_is_not_heard_is_told_again(
    redlock: Redlock, masters: list[FakeMaster]
) -> None:
    async with redlock.lock("r", ttl=1000) as lease:
        for master in masters:
            master.error = "OOM"
        async with redlock.lock("r", ttl=9_000, reentrant=True):
            async with redlock.lock("r", ttl=100, reentrant=True):
                await asyncio.sleep(0.1)
            assert lease.ttl == 1000
            for master in masters:
                master.error = ""
            await asyncio.sleep(0.3)
            assert lease.ttl == 9_000
            await lease.extend()
            assert lease.ttl == 9_000
        await lease.extend(500)  # it is the last word
        await asyncio.sleep(2)
        assert lease.ttl == 500


async def test_the_ttl_of_an_extension_without_one_is_the_longest_that_was_wanted(
    redlock: Redlock, masters: list[FakeMaster]
) -> None:
    async with redlock.lock("r", ttl=1000) as lease:
        for master in masters:
            master.error = "OOM"
        async with redlock.lock("r", ttl=9_000, reentrant=True):
            await asyncio.sleep(0.01)
            for master in masters:
                master.error = ""
            await lease.extend()
            assert lease.ttl == 9_000


@pytest.mark.parametrize("ttl", [100, 300, 1000])
async def test_who_wants_it_extended_gets_it_extended(redlock: Redlock, ttl: int) -> None:
    """Also if there is nothing to be told to the masters now."""
    async with redlock.lock("r", ttl=1000, auto_extend=False) as outer:
        await asyncio.sleep(0.5)
        async with redlock.lock("r", ttl=ttl, reentrant=True):
            await asyncio.sleep(3)
        assert outer.valid


async def test_who_does_not_want_it_extended_gets_all_of_its_ttl(
    redlock: Redlock, masters: list[FakeMaster]
) -> None:
    with pytest.raises(LockLostError):
        async with redlock.lock("r", ttl=1000, auto_extend=False):
            await asyncio.sleep(0.6)
            lock = redlock.lock("r", ttl=1000, auto_extend=False, reentrant=True)
            with pytest.raises(LockLostError):
                async with lock:
                    began = now()
                    await asyncio.sleep(9)
            assert now() - began == pytest.approx(1 - 0.012 - 0.003)
            assert [ran(master, EXTEND) for master in masters] == [1] * 5
            await asyncio.sleep(9)


async def test_max_hold_is_the_first_s(redlock: Redlock, masters: list[FakeMaster]) -> None:
    with pytest.raises(LockLostError, match="max_hold"):
        async with redlock.lock("r", ttl=1000, max_hold=800):
            lock = redlock.lock("r", ttl=9_000, max_hold=60_000, reentrant=True)
            async with lock as inner:
                assert inner.validity == 800
                await asyncio.sleep(0.01)
                assert [ran(master, EXTEND) for master in masters] == [0] * 5
                await asyncio.sleep(9)
    assert now() == pytest.approx(0.8, abs=0.01)


@pytest.mark.promise("S4")
async def test_what_is_over_is_not_taken_again(redlock: Redlock, masters: list[FakeMaster]) -> None:
    """Though nobody has noticed: the loop has been stalled."""
    lease = await redlock.lock("r", ttl=300).acquire()
    loop().stall(1)
    lock = redlock.lock("r", ttl=300, reentrant=True)
    async with lock as again:
        assert again.token != lease.token
        assert (again.hold_count, lease.valid) == (1, False)
        assert all(master.keys == {"r": again.token} for master in masters)
    assert lease.lost.is_set()


async def test_it_is_taken_again_while_an_extension_is_underway(
    redlock: Redlock, masters: list[FakeMaster]
) -> None:
    async with redlock.lock("r", ttl=1000) as outer:
        for ttl in (2_000, None, 700, 3_000):
            task = asyncio.create_task(outer.extend(ttl))
            await asyncio.sleep(0)
            async with redlock.lock("r", ttl=5_000, reentrant=True) as inner:
                await task
                await asyncio.sleep(0.01)
                assert (inner.ttl, inner.hold_count) == (5_000, 2)
                await asyncio.sleep(7)
                assert inner.valid
    assert keys(masters) == [{}] * 5


async def test_it_is_not_taken_again_while_it_is_being_released(
    redlock: Redlock, masters: list[FakeMaster]
) -> None:
    lock = redlock.lock("r", reentrant=True)
    lease = await lock.acquire()
    task = asyncio.create_task(lease.release())
    await asyncio.sleep(0)
    async with lock as again:
        assert again.token != lease.token
        await task
        assert all(master.keys == {"r": again.token} for master in masters)
    assert keys(masters) == [{}] * 5


async def test_what_is_lost_is_waited_for_as_what_others_have(
    redlock: Redlock, masters: list[FakeMaster]
) -> None:
    lock = redlock.lock("r", ttl=1000, reentrant=True, wait=20)
    lease = await lock.acquire()
    for master in masters:
        master.delete("r")
        master.set("r", "theirs", ttl=2000)
    await lease.lost.wait()
    with pytest.raises(LockNotAcquiredError):
        await lock.acquire()
    await asyncio.sleep(2)
    async with lock as again:
        assert again.hold_count == 1


async def test_a_loss_while_the_longer_ttl_is_told_ends_all_who_share_it(
    redlock: Redlock, masters: list[FakeMaster]
) -> None:
    for master in masters:
        before(master, EXTEND, lambda master=master: master.delete("r"))  # type: ignore[misc]
    with pytest.raises(LockLostError, match="no longer has its key"):
        async with redlock.lock("r", ttl=1000):
            lease = await redlock.lock("r", ttl=5000, reentrant=True).acquire()
            await asyncio.sleep(0.01)
            pytest.fail(f"{lease} is still held")


async def test_the_longest_ttl_is_kept_when_a_shorter_one_ends_later(redlock: Redlock) -> None:
    async with redlock.lock("r", ttl=1000, auto_extend=False) as outer:
        await asyncio.sleep(0.8)
        async with redlock.lock("r", ttl=500, reentrant=True):
            await asyncio.sleep(0.01)
            assert outer.ttl == 1000
            assert outer.remaining > 950


@pytest.mark.promise("S2")
async def test_a_share_that_is_released_too_late_hears_of_it(redlock: Redlock) -> None:
    """Before anybody else has noticed."""
    lock = redlock.lock("r", ttl=300, reentrant=True)
    first, second = await lock.acquire(), await lock.acquire()
    loop().stall(1)
    for lease in (first, second):
        with pytest.raises(LockNotHeldError, match="validity"):
            await lease.release()
    with pytest.raises(LockLostError, match="validity"):
        async with lock, lock:
            loop().stall(1)


async def test_a_ttl_that_was_extended_counts(redlock: Redlock, masters: list[FakeMaster]) -> None:
    async with redlock.lock("r", ttl=1000) as lease:
        await lease.extend(9_000)
        await asyncio.sleep(2)
        async with redlock.lock("r", ttl=8_000, reentrant=True):
            await asyncio.sleep(0.01)
        assert [ran(master, EXTEND) for master in masters] == [1] * 5
        shorter = asyncio.create_task(lease.extend(500))
        await asyncio.sleep(0)
        async with redlock.lock("r", ttl=8_000, reentrant=True):
            await shorter
            await asyncio.sleep(0.01)
            assert lease.remaining > 7_000
