"""A holder is told at once when others have taken its key away, and only then."""

import asyncio
from collections.abc import Callable

import pytest

from redlock_aio import Lease, LockLostError, LockNotHeldError, Redlock

from .helpers import RealMaster, Stopwatch, call, heard, put, until, values

pytestmark = [pytest.mark.integration, pytest.mark.promise("S4")]

TTL = 60_000
SOON = 15_000
"""Ms in which a holder is told, on a busy machine; its next extension would be after 18 000."""

Harm = Callable[[list[RealMaster]], None]


def delete(masters: list[RealMaster]) -> None:
    """Delete the key."""
    for master in masters:
        call(master, "DEL", "r")


def flush(masters: list[RealMaster]) -> None:
    """Delete everything."""
    for master in masters:
        call(master, "FLUSHALL")


def overwrite(masters: list[RealMaster]) -> None:
    """Let somebody else have it."""
    put(masters, "r", 60_000)


def expire(masters: list[RealMaster]) -> None:
    """Shorten its ttl."""
    for master in masters:
        call(master, "PEXPIRE", "r", 10)


HARMS = [delete, flush, overwrite, expire]


async def watched(redlock: Redlock, lease: Lease) -> None:
    """Wait until the masters will tell of changes."""
    await until(lambda: lease._hold.checked_at > 0)
    await heard(redlock)


@pytest.mark.parametrize("harm", HARMS)
@pytest.mark.parametrize("number", [5, 3])
async def test_a_holder_whose_key_a_majority_lost_is_told_at_once(
    redlock: Redlock, masters: list[RealMaster], harm: Harm, number: int
) -> None:
    """44: the body is cancelled, though the next extension is 18 s away."""
    watch = Stopwatch()
    with pytest.raises(LockLostError, match="majority"):
        async with redlock.lock("r", ttl=TTL) as lease:
            await watched(redlock, lease)
            watch = Stopwatch()
            harm(masters[:number])
            await asyncio.sleep(20)
    assert watch.ms < SOON
    assert lease.lost.is_set()


@pytest.mark.parametrize("harm", HARMS)
async def test_a_holder_whose_key_a_minority_lost_holds_on(
    redlock: Redlock, masters: list[RealMaster], harm: Harm
) -> None:
    """2, 44: two of five; the third makes the difference."""
    async with redlock.lock("r", ttl=TTL, on_lost="flag") as lease:
        await watched(redlock, lease)
        harm(masters[:2])
        await asyncio.sleep(0.3)
        await heard(redlock)
        assert lease.valid
        assert not lease.lost.is_set()
        watch = Stopwatch()
        harm(masters[2:3])
        await asyncio.wait_for(lease.lost.wait(), 20)
        assert watch.ms < SOON
        assert not lease.valid


async def test_a_holder_that_does_not_extend_is_told_as_well(
    redlock: Redlock, masters: list[RealMaster]
) -> None:
    """41, 44: by the flag, if that is what it wants."""
    async with redlock.lock("r", ttl=TTL, auto_extend=False, on_lost="flag") as lease:
        await watched(redlock, lease)
        watch = Stopwatch()
        delete(masters[2:])
        await asyncio.wait_for(lease.lost.wait(), 20)
        assert watch.ms < SOON
    with pytest.raises(LockNotHeldError):
        await lease.release()


async def test_a_fair_holder_is_told_as_well(redlock: Redlock, masters: list[RealMaster]) -> None:
    """44: however it came by the lock."""
    watch = Stopwatch()
    with pytest.raises(LockLostError):
        async with redlock.lock("r", ttl=TTL, fair=True) as lease:
            await watched(redlock, lease)
            watch = Stopwatch()
            delete(masters[2:])
            await asyncio.sleep(20)
    assert watch.ms < SOON


async def test_a_key_that_goes_before_the_masters_were_asked_to_tell(
    redlock: Redlock, masters: list[RealMaster]
) -> None:
    """44: is found gone when they are asked, a tenth of a second after the acquisition."""
    watch = Stopwatch()
    with pytest.raises(LockLostError):
        async with redlock.lock("r", ttl=TTL) as lease:
            watch = Stopwatch()
            delete(masters)
            assert lease._hold.checked_at < 0
            await asyncio.sleep(20)
    assert watch.ms < SOON


@pytest.mark.parametrize("ttl", [3_000, 1_200])
async def test_a_holder_is_told_also_after_its_extensions(
    redlock: Redlock, masters: list[RealMaster], ttl: int
) -> None:
    """44: an own change does not end what the masters were asked for."""
    with pytest.raises(LockLostError):
        async with redlock.lock("r", ttl=ttl) as lease:
            for _ in range(2):
                extended = lease.remaining
                await until(lambda before=extended: lease.remaining < before)  # type: ignore[misc]
                await until(lambda: lease.remaining > 0.8 * ttl)
            await lease.extend(TTL)
            await heard(redlock)
            watch = Stopwatch()
            delete(masters[2:])
            await asyncio.sleep(20)
    assert watch.ms < SOON


async def test_a_holder_is_told_over_new_connections(
    redlock: Redlock, masters: list[RealMaster]
) -> None:
    """44: a master that comes back is asked anew, and so is one whose key went meanwhile."""
    async with redlock.lock("r", ttl=TTL, on_lost="flag") as lease:
        await watched(redlock, lease)
        before = lease._hold.checked_at
        for master in masters:
            master.cut()
        await until(lambda: all(master.up for master in redlock.statistics().masters))
        await until(lambda: lease._hold.checked_at > before)
        await asyncio.sleep(0.3)
        await heard(redlock)
        assert lease.valid
        watch = Stopwatch()
        delete(masters[2:])
        await asyncio.wait_for(lease.lost.wait(), 20)
        assert watch.ms < SOON


async def test_a_holder_whose_key_goes_while_its_connections_are_cut_is_told(
    redlock: Redlock, masters: list[RealMaster]
) -> None:
    """44, S5: as soon as they are back."""
    async with redlock.lock("r", ttl=TTL, on_lost="flag") as lease:
        await watched(redlock, lease)
        for master in masters:  # nothing else runs in this loop meanwhile
            master.cut()
            call(master, "DEL", "r")
        watch = Stopwatch()
        await asyncio.wait_for(lease.lost.wait(), 20)
        assert watch.ms < SOON


async def test_masters_that_restart_empty_take_the_lock_with_them(
    redlock: Redlock, masters: list[RealMaster]
) -> None:
    """44, 70: two of five do not, the third does; its holder hears it when they are back."""
    async with redlock.lock("r", ttl=TTL, on_lost="flag") as lease:
        await watched(redlock, lease)
        for master in masters[:2]:
            master.restart()
        await until(lambda: all(master.up for master in redlock.statistics().masters))
        await asyncio.sleep(0.3)
        assert lease.valid
        masters[2].restart()
        watch = Stopwatch()
        await asyncio.wait_for(lease.lost.wait(), 20)
        assert watch.ms < SOON


async def test_a_key_that_others_change_all_the_time_is_looked_at_now_and_then(
    redlock: Redlock, masters: list[RealMaster]
) -> None:
    """47: no storm of questions because of one master's key."""
    async with redlock.lock("r", ttl=TTL) as lease:
        await watched(redlock, lease)
        call(masters[4], "CONFIG", "RESETSTAT")
        watch = Stopwatch()
        while watch.ms < 500:
            call(masters[0], "SET", "r", f"{watch.ms}", "PX", "60000")
            await asyncio.sleep(0.001)
        stats = call(masters[4], "INFO", "commandstats")
        gets = stats["cmdstat_get"]["calls"] if "cmdstat_get" in stats else 0
        assert 1 <= gets <= watch.ms / 20 + 2
        assert lease.valid
    await until(lambda: values(masters[1:], "r") == [None] * 4)
