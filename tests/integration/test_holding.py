"""A lease that is extended, by hand and by the watchdog, and one that is lost."""

import asyncio
import gc
import time

import pytest

from redlock_aio import LockLostError, LockNotHeldError, Redlock

from .helpers import (
    AT_ONCE,
    RealMaster,
    Stopwatch,
    call,
    connected,
    gone,
    pttls,
    put,
    until,
    up,
    values,
)

pytestmark = pytest.mark.integration


async def test_an_extension_gives_every_key_the_new_ttl(
    redlock: Redlock, masters: list[RealMaster]
) -> None:
    """33: all of them grow, and the lease knows it."""
    async with redlock.lock("r", ttl=5_000, auto_extend=False) as lease:
        await until(lambda: all(values(masters, "r")))
        await lease.extend(60_000)
        await until(lambda: all(left > 50_000 for left in pttls(masters, "r")))
        assert 50_000 < lease.remaining < 60_000 * 0.99
        assert lease.ttl == 60_000
        await lease.extend(2_000)
        await until(lambda: all(left <= 2_000 for left in pttls(masters, "r")))
        assert lease.remaining < 2_000


async def test_an_extension_after_the_end_fails(
    redlock: Redlock, masters: list[RealMaster]
) -> None:
    """35: and one after the release."""
    expired = await redlock.lock("r", ttl=200, auto_extend=False).acquire()
    await until(lambda: gone(masters, "r"))
    with pytest.raises(LockLostError):
        await expired.extend()
    released = await redlock.lock("r").acquire()
    await released.release()
    with pytest.raises(LockNotHeldError):
        await released.extend()
    await until(lambda: gone(masters, "r"))


@pytest.mark.promise("S4")
async def test_an_extension_never_takes_a_lock_back_that_somebody_else_had(
    redlock: Redlock, other: Redlock, masters: list[RealMaster]
) -> None:
    """36, P7: others locked and unlocked in between; now nobody holds it, and it stays so."""
    lease = await redlock.lock("r", ttl=300, auto_extend=False, on_lost="flag").acquire()
    async with other.lock("r", wait=10_000):
        assert not lease.valid
    await until(lambda: gone(masters, "r"))
    with pytest.raises(LockLostError):
        await lease.extend()
    assert not lease.valid
    assert gone(masters, "r")


@pytest.mark.promise("S4")
async def test_an_extension_sets_no_key_that_is_gone(
    redlock: Redlock, masters: list[RealMaster]
) -> None:
    """36: deleted everywhere while the lease still believes, it is lost, not set again."""
    lease = await redlock.lock("r", ttl=60_000, auto_extend=False).acquire()
    await until(lambda: all(values(masters, "r")))
    for master in masters:
        call(master, "DEL", "r")
    with pytest.raises(LockLostError):
        async with asyncio.timeout(AT_ONCE):
            await lease.extend()
    assert gone(masters, "r")


async def test_an_extension_fails_when_another_took_the_lock_in_between(
    redlock: Redlock, masters: list[RealMaster]
) -> None:
    """38, 35: and the other's value and ttl are left alone."""
    lease = await redlock.lock("r", ttl=60_000, auto_extend=False).acquire()
    await until(lambda: all(values(masters, "r")))
    put(masters, "r", 20_000)
    with pytest.raises(LockLostError):
        async with asyncio.timeout(AT_ONCE):
            await lease.extend()
    assert values(masters, "r") == ["somebody else"] * 5
    assert all(0 < left <= 20_000 for left in pttls(masters, "r"))


async def test_a_held_lock_outlives_its_ttl_many_times(
    redlock: Redlock, other: Redlock, masters: list[RealMaster]
) -> None:
    """40: others stay out all the while, and get it afterwards."""
    async with redlock.lock("r", ttl=1_500) as lease:
        watch = Stopwatch()
        while watch.ms < 3_400:
            assert await other.lock("r").try_acquire() is None
            assert lease.valid
            await asyncio.sleep(0.02)
    async with other.lock("r", wait=5_000):
        assert all(value != lease.token for value in values(masters, "r"))


async def test_without_extensions_the_ttl_only_falls(
    redlock: Redlock, masters: list[RealMaster]
) -> None:
    """41: and the body is cancelled when it is over."""
    with pytest.raises(LockLostError):
        async with redlock.lock("r", ttl=600, auto_extend=False):
            await until(lambda: all(values(masters, "r")))
            before = pttls(masters, "r")
            while True:
                after = pttls(masters, "r")
                assert all(map(int.__le__, after, before))
                before = after
                await asyncio.sleep(0.02)


async def test_after_the_release_no_extension_is_sent(
    redlock: Redlock, masters: list[RealMaster]
) -> None:
    """41: the masters hear nothing more, for longer than the lease would have been due."""
    async with redlock.lock("r", ttl=1_000):
        await until(lambda: all(values(masters, "r")))
    await until(lambda: all(not master.pending for master in redlock._opener.session().links))
    before = [call(master, "INFO", "commandstats").get("cmdstat_evalsha") for master in masters]
    await asyncio.sleep(1.1)
    after = [call(master, "INFO", "commandstats").get("cmdstat_evalsha") for master in masters]
    assert before == after


@pytest.mark.promise("S6")
async def test_a_restarted_master_of_three_does_not_end_the_lease(
    masters: list[RealMaster],
) -> None:
    """42: nor does a hung one."""
    three = masters[:3]
    async with connected(three) as redlock, redlock.lock("r", ttl=2_000) as lease:
        # In a thread: how long a server takes to start must not hold up the extensions.
        await asyncio.to_thread(three[0].restart)
        await asyncio.sleep(2.2)
        await until(lambda: up(redlock) == 3)
        three[1].pause()
        three[1].resume()
        assert lease.valid


async def test_an_outage_shorter_than_the_lease_does_not_end_it(
    masters: list[RealMaster],
) -> None:
    """42: no master answers for a third of the ttl, then all do."""
    async with connected(masters) as redlock, redlock.lock("r", ttl=3_000) as lease:
        for master in masters:
            master.pause()
        await asyncio.sleep(1.0)
        for master in masters:
            master.resume()
        await asyncio.sleep(2.2)
        assert lease.valid


@pytest.mark.promise("S2")
@pytest.mark.parametrize("how", ["pause", "kill"])
async def test_a_lost_majority_cancels_the_body_before_any_key_can_end(
    masters: list[RealMaster], how: str
) -> None:
    """43, 45: by the holder's own timer, though no extension is ever answered."""
    cancelled = 0.0
    async with connected(masters) as redlock:
        with pytest.raises(LockLostError, match="validity"):
            async with redlock.lock("r", ttl=700) as lease:
                until_then = time.monotonic() + lease.remaining / 1000
                for master in masters[:3]:
                    getattr(master, how)()
                try:
                    await asyncio.sleep(20)
                finally:
                    cancelled = time.monotonic()
                    assert not lease.valid or lease.remaining <= 2
        # An extension that was answered before the fault may have moved the end once,
        # and a busy machine runs timers late.
        assert cancelled < until_then + 0.7 / 3 + AT_ONCE
        for master in masters[:3]:
            master.resume()


@pytest.mark.parametrize("how", ["DEL", "SET"])
async def test_keys_that_vanish_or_change_are_noticed_at_the_next_extension(
    redlock: Redlock, masters: list[RealMaster], how: str
) -> None:
    """44, P8: a third of the ttl later at the latest; at its end there would be another reason."""
    with pytest.raises(LockLostError, match="no longer has its key"):
        async with redlock.lock("r", ttl=3_000):
            await until(lambda: all(values(masters, "r")))
            for master in masters[:3]:
                call(master, how, "r", *(["somebody else"] if how == "SET" else []))
            await asyncio.sleep(20)
    if how == "SET":
        assert values(masters[:3], "r") == ["somebody else"] * 3
    await until(lambda: gone(masters[3:], "r"))


async def test_a_holder_who_does_not_want_to_be_cancelled_is_told(
    redlock: Redlock, masters: list[RealMaster]
) -> None:
    """44, P8: by the event and by `valid`."""
    async with redlock.lock("r", ttl=900, on_lost="flag") as lease:
        await until(lambda: all(values(masters, "r")))
        for master in masters[:3]:
            call(master, "DEL", "r")
        await asyncio.wait_for(lease.lost.wait(), 20)
        assert not lease.valid


@pytest.mark.promise("S2")
async def test_a_stalled_loop_meets_the_loss_at_its_next_real_wait(
    redlock: Redlock, masters: list[RealMaster]
) -> None:
    """46: and `ensure_valid` tells before that."""
    written = False
    with pytest.raises(LockLostError):
        async with redlock.lock("r", ttl=300) as lease:
            await until(lambda: all(values(masters, "r")))
            time.sleep(0.5)  # noqa: ASYNC251 - the fault: a blocked loop
            assert not lease.valid
            assert lease.remaining == 0
            await asyncio.sleep(0.01)
            written = True
    assert not written
    with pytest.raises(LockLostError):
        async with redlock.lock("r", ttl=300, wait=5_000) as lease:
            time.sleep(0.5)  # noqa: ASYNC251 - the fault
            lease.ensure_valid()


async def test_a_small_ttl_is_no_reason_for_a_storm(
    redlock: Redlock, masters: list[RealMaster]
) -> None:
    """47, N5: in half a second a ttl of 100 ms is extended about 15 times, not a thousand."""
    async with redlock.lock("r", ttl=100, on_lost="flag"):
        watch = Stopwatch()
        await asyncio.sleep(0.5)
    for master in masters:
        calls = call(master, "INFO", "commandstats")["cmdstat_evalsha"]["calls"]
        assert calls < 35 + watch.ms / 33


async def test_a_lease_that_is_dropped_is_not_extended_any_more(
    redlock: Redlock, masters: list[RealMaster]
) -> None:
    """48: it warns, and ends with its ttl."""
    lease = await redlock.lock("r", ttl=2_000).acquire()
    await until(lambda: all(values(masters, "r")))
    with pytest.warns(ResourceWarning, match="never released"):
        del lease
        gc.collect()
    await until(lambda: gone(masters, "r"), within=20)


async def test_after_a_loss_a_new_lease_is_extended_again(
    redlock: Redlock, masters: list[RealMaster]
) -> None:
    """50: what went wrong with one lease is not remembered against the next."""
    with pytest.raises(LockLostError):
        async with redlock.lock("r", ttl=500):
            await until(lambda: all(values(masters, "r")))
            for master in masters:
                call(master, "DEL", "r")
            await asyncio.sleep(20)
    async with redlock.lock("r", ttl=1_500, wait=20_000) as lease:
        await asyncio.sleep(1.7)
        assert lease.valid


async def test_max_hold_ends_a_lease_that_could_be_extended_for_ever(
    redlock: Redlock, masters: list[RealMaster]
) -> None:
    """39: the body is cancelled and the lock is free."""
    watch = Stopwatch()
    with pytest.raises(LockLostError, match="max_hold"):
        async with redlock.lock("r", ttl=1_500, max_hold=2_000):
            await asyncio.sleep(20)
    assert 1_950 < watch.ms < 15_000
    await until(lambda: gone(masters, "r"))
