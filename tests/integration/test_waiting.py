"""How long somebody waits, and what is left when nobody waits any more."""

import asyncio
import time

import pytest

from redlock_aio import LockNotAcquiredError, Redlock, Retry

from .helpers import (
    AT_ONCE,
    SELDOM,
    TIMEOUT,
    RealMaster,
    Stopwatch,
    call,
    connected,
    gone,
    put,
    until,
    values,
)

pytestmark = pytest.mark.integration


async def test_one_attempt_on_a_held_lock_fails_at_once_and_names_the_masters(
    redlock: Redlock, other: Redlock, masters: list[RealMaster]
) -> None:
    """22: by wait=0 with an error, by try_acquire with nothing."""
    async with other.lock("r"):
        watch = Stopwatch()
        with pytest.raises(LockNotAcquiredError) as caught:
            await redlock.lock("r", wait=0).acquire()
        assert await redlock.lock("r").try_acquire() is None
        assert watch.ms < 2 * TIMEOUT
        assert caught.value.attempts == 1
        for master in masters:
            assert master.url.split("//")[1] in str(caught.value)


async def test_a_wait_that_is_no_time_is_refused(redlock: Redlock) -> None:
    """23: one attempt is wait=0, so there is no way to ask for two things at once."""
    with pytest.raises(ValueError, match="wait"):
        redlock.lock("r", wait=-1)
    with pytest.raises(TypeError, match="wait"):
        redlock.lock("r", wait=0.5)  # type: ignore[arg-type]


@pytest.mark.parametrize("wait", [200, 1_000])
async def test_the_wait_is_kept_to(redlock: Redlock, masters: list[RealMaster], wait: int) -> None:
    """24: within a tenth before its end, and not after it but for the answers of the last."""
    put(masters, "r")
    watch = Stopwatch()
    with pytest.raises(LockNotAcquiredError) as caught:
        await redlock.lock("r", wait=wait).acquire()
    # A healthy master on a busy machine may use up its time-out for the last answers.
    assert 0.85 * wait < watch.ms < wait + 4 * TIMEOUT
    assert 0.85 * wait < caught.value.elapsed <= watch.ms + 1


async def test_the_wait_is_kept_to_with_hung_masters(masters: list[RealMaster]) -> None:
    """24, 8: even a wait that is shorter than the master time-out."""
    async with connected(masters, master_timeout=20_000) as redlock:
        for master in masters[:3]:
            master.pause()
        async with asyncio.timeout(AT_ONCE):
            with pytest.raises(LockNotAcquiredError):
                await redlock.lock("r", wait=300).acquire()
        for master in masters[:3]:
            master.resume()


async def test_no_delay_is_longer_than_what_is_left_of_the_wait(
    redlock: Redlock, masters: list[RealMaster]
) -> None:
    """24: the last attempt is made before the end, however long the delay would be."""
    put(masters, "r")
    minute = Retry(min_delay=60_000, max_delay=60_000)
    watch = Stopwatch()
    with pytest.raises(LockNotAcquiredError) as caught:
        await redlock.lock("r", wait=300, retry=minute).acquire()
    assert watch.ms < 300 + 4 * TIMEOUT
    assert caught.value.attempts == 2


async def test_the_delays_are_those_that_were_asked_for(
    redlock: Redlock, masters: list[RealMaster]
) -> None:
    """26: four attempts are three delays."""
    put(masters, "r")
    watch = Stopwatch()
    with pytest.raises(LockNotAcquiredError) as caught:
        await redlock.lock("r", retry=Retry(min_delay=100, max_delay=100, attempts=4)).acquire()
    assert caught.value.attempts == 4
    assert 298 < watch.ms < 300 + 4 * TIMEOUT


async def test_one_retry_is_enough_when_the_lock_is_free_by_then(
    redlock: Redlock, other: Redlock
) -> None:
    """27: and none is not."""
    lease = await other.lock("r").acquire()
    once = redlock.lock("r", retry=Retry(min_delay=500, max_delay=500, attempts=1))
    with pytest.raises(LockNotAcquiredError):
        await once.acquire()
    twice = redlock.lock("r", retry=Retry(min_delay=500, max_delay=500, attempts=2))
    waiting = asyncio.create_task(twice.acquire())
    await asyncio.wait([waiting], timeout=0.1)  # it has made its first attempt
    await lease.release()
    async with await waiting:
        pass


@pytest.mark.promise("S3")
async def test_who_is_cancelled_while_waiting_leaves_nothing(
    redlock: Redlock, other: Redlock, masters: list[RealMaster]
) -> None:
    """28: at twenty different instants, and the lock is free for others after its holder."""
    lease = await other.lock("r").acquire()
    for number in range(20):
        waiting = asyncio.create_task(redlock.lock("r", ttl=60_000).acquire())
        await asyncio.wait([waiting], timeout=number / 1_000)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
    await until(lambda: values(masters, "r") == [lease.token] * 5)
    await lease.release()
    await until(lambda: gone(masters, "r"))


@pytest.mark.promise("S3")
async def test_who_is_cancelled_in_flight_leaves_nothing(
    redlock: Redlock, masters: list[RealMaster]
) -> None:
    """28, P1, P5: at any turn of the loop between the first byte and the lease."""
    for turns in range(30):
        waiting = asyncio.create_task(redlock.lock(f"r{turns}", ttl=60_000).acquire())
        for _ in range(turns):
            await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.wait([waiting])
        if not waiting.cancelled():
            await waiting.result().release()
    await until(lambda: all(not master.pending for master in redlock._opener.session().links))
    assert all(call(master, "DBSIZE") == 0 for master in masters)


@pytest.mark.promise("S1")
async def test_a_counter_that_many_tasks_change_is_exact(redlock: Redlock, other: Redlock) -> None:
    """31: read, give others their turn, write; in two managers."""
    counter = 0

    async def worker(manager: Redlock) -> None:
        nonlocal counter
        for _ in range(5):
            async with manager.lock("r"):
                read = counter
                await asyncio.sleep(0)
                counter = read + 1

    await asyncio.gather(*(worker(manager) for manager in (redlock, other) * 4))
    assert counter == 40


async def test_contenders_in_step_without_any_chance_in_their_delays_get_on(
    masters: list[RealMaster],
) -> None:
    """71: three managers that retry at the same fixed interval all get the lock in the end."""
    fixed = Retry(min_delay=20, max_delay=20)
    async with (
        connected(masters, retry=fixed) as a,
        connected(masters, retry=fixed) as b,
        connected(masters, retry=fixed) as c,
    ):

        async def contender(manager: Redlock) -> None:
            for _ in range(4):
                async with manager.lock("r", wait=40_000):
                    await asyncio.sleep(0)

        await asyncio.gather(*map(contender, (a, b, c)))


async def test_a_lock_that_expires_is_given_to_who_waits(
    redlock: Redlock, masters: list[RealMaster]
) -> None:
    """25: not before the ttl of a holder that does not extend, and soon after."""
    began = time.monotonic()
    put(masters, "r", 500)
    async with redlock.lock("r", retry=SELDOM):
        assert 0.48 < time.monotonic() - began < AT_ONCE
