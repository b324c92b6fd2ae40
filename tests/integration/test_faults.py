"""A few masters hang, die or come back: nobody waits for them, and nothing stays on them."""

import asyncio
import contextlib

import pytest

from redlock_aio import LockLostError, LockNotAcquiredError, QuorumUnavailableError, Redlock, Retry
from redlock_aio._transport import connection, debts

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

PATIENT = 20_000
"""A master time-out that shows who waits for it: in ms, far longer than any test."""


@pytest.mark.promise("S6")
@pytest.mark.parametrize("hung", [1, 2])
async def test_a_hung_minority_costs_no_time(masters: list[RealMaster], hung: int) -> None:
    """9, P3, P8b: not when acquiring, not when extending, not when releasing."""
    async with connected(masters, master_timeout=PATIENT) as redlock:
        for master in masters[:hung]:
            master.pause()
        watch = Stopwatch()
        for _ in range(5):
            async with redlock.lock("r", wait=0) as lease:
                await lease.extend()
        assert watch.ms < PATIENT / 2
        for master in masters[:hung]:
            master.resume()
        await until(lambda: gone(masters, "r"))


@pytest.mark.promise("S6")
async def test_a_dead_minority_costs_no_time(masters: list[RealMaster]) -> None:
    """9, C1: whatever redis-py's own retries and time-outs would make of it."""
    async with connected(masters, master_timeout=PATIENT) as redlock:
        masters[0].kill()
        masters[1].kill()
        watch = Stopwatch()
        for _ in range(5):
            async with redlock.lock("r", wait=0) as lease:
                await lease.extend()
        assert watch.ms < PATIENT / 2


@pytest.mark.promise("S6")
async def test_the_first_lock_does_not_wait_for_a_hung_minority(masters: list[RealMaster]) -> None:
    """9: a manager that has never met them connects to the others and goes on."""
    for master in masters[:2]:
        master.pause()
    async with Redlock(
        [m.url for m in masters], master_timeout=100, restart_guard="off"
    ) as redlock:
        watch = Stopwatch()
        async with redlock.lock("r", wait=20_000):
            assert watch.ms < 1000 * AT_ONCE
        for master in masters[:2]:
            master.resume()
        await until(lambda: up(redlock) == 5)


async def test_a_hung_majority_fails_within_the_master_time_out(
    masters: list[RealMaster],
) -> None:
    """8: one attempt takes one time-out, and the error says that nobody knows."""
    async with connected(masters, master_timeout=300) as redlock:
        for master in masters[:3]:
            master.pause()
        watch = Stopwatch()
        with pytest.raises(QuorumUnavailableError, match="timed out"):
            await redlock.lock("r", wait=0).acquire()
        assert 290 < watch.ms < 1000 * AT_ONCE
        for master in masters[:3]:
            master.resume()
        await until(lambda: gone(masters, "r"))


@pytest.mark.promise("S3")
async def test_hung_masters_of_a_failed_attempt_are_cleaned_when_they_answer(
    masters: list[RealMaster],
) -> None:
    """12, N6: what the SET does there that lay in wait, the release behind it undoes."""
    async with connected(masters, master_timeout=100) as redlock:
        for master in masters[:3]:
            master.pause()
        for _ in range(3):
            with pytest.raises(QuorumUnavailableError):
                await redlock.lock("r", ttl=60_000, wait=0).acquire()
        for master in masters[:3]:
            master.resume()
        await until(lambda: gone(masters, "r"))
        async with redlock.lock("r", wait=5_000):
            pass


@pytest.mark.promise("S3")
@pytest.mark.full
async def test_no_key_stays_on_a_master_that_hung_under_load(
    masters: list[RealMaster], monkeypatch: pytest.MonkeyPatch
) -> None:
    """2,000 tasks lock while it hangs for 3.5 s: far more than may be unanswered at once."""
    # So that a slow machine overruns it, too. Each task has a release besides.
    monkeypatch.setattr(connection, "MAX_PENDING", 1_000)
    monkeypatch.setattr(debts, "MAX_DEBTS", 3_500)
    working = True

    async def work(redlock: Redlock, number: int) -> None:
        while working:
            with contextlib.suppress(LockNotAcquiredError, LockLostError):
                async with redlock.lock(f"r{number}", ttl=60_000, wait=0):
                    pass

    async with connected(masters[:3], master_timeout=50) as redlock:
        tasks = [asyncio.create_task(work(redlock, number)) for number in range(2_000)]
        await asyncio.sleep(0.5)
        masters[0].pause()
        await asyncio.sleep(3.5)
        masters[0].resume()
        await asyncio.sleep(1)
        working = False
        await asyncio.gather(*tasks)
        await until(lambda: up(redlock) == 3)
        await until(lambda: not any(call(m, "DBSIZE") for m in masters[:3]), what="no key is left")
        await until(lambda: not any(master.debts for master in redlock._opener.session().links))


@pytest.mark.promise("S3")
async def test_condemned_masters_are_cleaned_when_they_answer(masters: list[RealMaster]) -> None:
    """12: also when their connections were given up long before."""
    async with connected(masters, master_timeout=50) as redlock:
        async with redlock.lock("r", ttl=60_000):
            await until(lambda: all(values(masters, "r")))
            masters[0].pause()
            masters[1].pause()
        # Nobody asks them anything now but to forget the lock.
        await until(lambda: up(redlock) == 3, what="both are given up")
        masters[0].resume()
        masters[1].resume()
        await until(lambda: gone(masters, "r"))


@pytest.mark.promise("S3")
async def test_an_acquisition_that_is_cancelled_with_hung_masters_leaves_nothing(
    masters: list[RealMaster],
) -> None:
    """28, P1, P5, R6: on the healthy masters at once, on the others when they are back."""
    async with connected(masters, master_timeout=PATIENT) as redlock:
        for master in masters[:3]:
            master.pause()
        waiting = asyncio.create_task(redlock.lock("r", ttl=60_000).acquire())
        await until(lambda: all(values(masters[3:], "r")))
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        await until(lambda: gone(masters[3:], "r"))
        for master in masters[:3]:
            master.resume()
        await until(lambda: all(not m.pending for m in redlock._opener.session().links))
        assert gone(masters, "r")


@pytest.mark.promise("S3")
async def test_a_wait_for_that_runs_out_with_a_hung_majority_leaves_nothing(
    masters: list[RealMaster],
) -> None:
    """28: asyncio's own time-out is a cancellation like any other."""
    async with connected(masters, master_timeout=PATIENT) as redlock:
        for master in masters[:3]:
            master.pause()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(redlock.lock("r", ttl=60_000).acquire(), 0.1)
        for master in masters[:3]:
            master.resume()
        await until(lambda: all(not m.pending for m in redlock._opener.session().links))
        assert gone(masters, "r")


async def test_garbage_of_one_who_goes_is_no_obstacle_the_second_time(
    redlock: Redlock, masters: list[RealMaster]
) -> None:
    """13: a foreign value on a majority that vanishes lets the next attempt win."""
    put(masters[:3], "r")
    waiting = asyncio.create_task(redlock.lock("r", wait=30_000).acquire())
    await until(lambda: any("evalsha" in str(call(m, "INFO", "commandstats")) for m in masters))
    assert not waiting.done()
    call(masters[0], "DEL", "r")
    lease = await waiting
    await lease.release()
    assert values(masters[1:3], "r") == ["somebody else"] * 2


async def test_own_keys_are_no_obstacle_when_others_become_free(
    redlock: Redlock, masters: list[RealMaster]
) -> None:
    """16, N2: of three masters one is free, one becomes free, one stays held."""
    put(masters[2:], "r")
    waiting = asyncio.create_task(redlock.lock("r", wait=30_000).acquire())
    await until(lambda: any("evalsha" in str(call(m, "INFO", "commandstats")) for m in masters[:2]))
    call(masters[2], "DEL", "r")
    lease = await waiting
    await lease.release()
    await until(lambda: values(masters, "r") == [None] * 3 + ["somebody else"] * 2)


@pytest.mark.parametrize("how", ["kill", "cut"])
async def test_a_master_that_was_lost_votes_again(
    redlock: Redlock, masters: list[RealMaster], how: str
) -> None:
    """It is dialled until it answers, and nobody has to do anything."""
    for master in masters[:3]:
        if how == "kill":
            master.restart()
        else:
            master.cut()
    async with redlock.lock("r", wait=30_000):
        pass
    await until(lambda: up(redlock) == 5)
    async with redlock.lock("r", wait=0) as lease:
        await until(lambda: values(masters, "r") == [lease.token] * 5)


async def test_locks_wait_through_an_outage(masters: list[RealMaster]) -> None:
    """5: *wait* covers masters that are away as it covers others that hold the lock."""
    for master in masters[:3]:
        master.kill()
    async with Redlock(
        [m.url for m in masters], master_timeout=200, restart_guard="off"
    ) as redlock:
        waiting = asyncio.create_task(redlock.lock("r", wait=20_000).acquire())
        with pytest.raises(QuorumUnavailableError):
            await redlock.lock("other", wait=200).acquire()
        for master in masters[:3]:
            master.start()
        lease = await waiting
        await lease.release()


@pytest.mark.promise("S3")
async def test_a_master_that_hung_before_the_lock_was_won_is_cleaned_after_its_release(
    masters: list[RealMaster],
) -> None:
    """12: the SET that it finds waiting must not outlive the release that others had long ago."""
    async with connected(masters, master_timeout=50) as redlock:
        masters[0].pause()
        async with redlock.lock("r", ttl=60_000, wait=5_000):
            await until(lambda: up(redlock) == 4, what="it is given up")
        masters[0].resume()
        await until(lambda: up(redlock) == 5)
        await until(lambda: gone(masters, "r"))
        assert pttls(masters[:1], "r") == [-2]


async def test_a_killed_connection_during_the_attempt_is_one_vote_less(
    redlock: Redlock, masters: list[RealMaster]
) -> None:
    """9: with a majority cut off under it an attempt fails, is cleaned, and the next wins."""
    for master in masters[:3]:
        master.pause()
    waiting = asyncio.create_task(redlock.lock("r", ttl=60_000, retry=Retry(attempts=1)).acquire())
    await until(lambda: all(values(masters[3:], "r")))
    for master in masters[:3]:
        master.restart()
    with pytest.raises(LockNotAcquiredError):
        await waiting
    await until(lambda: gone(masters, "r"))
    async with redlock.lock("r", wait=30_000):
        pass
