"""Real masters hang, die and restart: a minority costs no time, and no key is left behind."""

import asyncio
import contextlib
import random
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from redlock_aio import (
    Lease,
    LockLostError,
    LockNotAcquiredError,
    QuorumUnavailableError,
    Redlock,
    RedlockError,
)
from redlock_aio._transport import connection, debts
from redlock_aio.events import Event, Lost, MajorityBack, MajorityLost, MasterBack, MasterLost

from .helpers import (
    AT_ONCE,
    KIND,
    RealMaster,
    Stopwatch,
    call,
    connected,
    gone,
    nothing_is_left,
    queued,
    subscribed,
    until,
    up,
    urls,
    values,
)

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("quick_unsubscribe")]

PATIENT = 20_000
"""A master timeout, in ms, that is far longer than any test: nothing may wait for it."""

QUICK = 200
"""A master timeout, in ms, after which hung masters are given up soon."""


LATE = 0.5
"""Seconds within which a busy machine extends two hundred leases; a retry may be 2.5 s away."""


def pause(masters: list[RealMaster]) -> None:
    """Freeze the processes of *masters*; the fixture resumes them after the test."""
    for master in masters:
        master.pause()


def resume(masters: list[RealMaster]) -> None:
    """Resume *masters*; they execute the commands that have arrived meanwhile."""
    for master in masters:
        master.resume()


# A minority costs no time


@KIND
@pytest.mark.promise("S6")
@pytest.mark.parametrize("fault", ["pause", "kill"])
@pytest.mark.spread(1)
async def test_a_hung_or_dead_minority_costs_no_time(
    masters: list[RealMaster], options: dict[str, Any], fault: str
) -> None:
    """Checked are acquiring, waiting, extending, releasing, and opening a manager."""
    async with connected(masters, master_timeout=PATIENT) as redlock:
        for master in masters[:2]:
            getattr(master, fault)()
        async with asyncio.timeout(PATIENT / 2_000):
            lock = redlock.lock("r", **options)
            for _ in range(5):
                async with lock as lease:
                    await lease.extend()
                    waiter = asyncio.create_task(lock.acquire())
                    await asyncio.sleep(0)
                await (await waiter).release()
            # A new manager waits for the hung masters once, for its master timeout.
            async with (
                Redlock(urls(masters), master_timeout=QUICK, restart_guard="off") as newcomer,
                newcomer.lock("r", **options),
            ):
                pass
        for master in masters[:2]:
            (master.start if fault == "kill" else master.resume)()
        await nothing_is_left(masters)


@pytest.mark.promise("S6")
async def test_a_lease_outlives_its_ttl_and_the_restart_of_a_minority(
    masters: list[RealMaster],
) -> None:
    """Other acquisitions are refused all the time."""
    three = masters[:3]
    async with connected(three) as redlock, connected(three) as other:
        async with redlock.lock("r", ttl=1_500) as lease:
            watch = Stopwatch()
            # In a thread, because the start of a server must not delay the extensions.
            restarting = asyncio.create_task(asyncio.to_thread(three[0].restart))
            while watch.ms < 3_400:
                assert await other.lock("r").try_acquire() is None
                assert lease.valid
                await asyncio.sleep(0.05)
            await restarting
            await until(lambda: values(three, "r") == [lease.token] * 3)
        async with other.lock("r", wait=5_000):
            pass


# Masters that hang are cleaned when they answer again

Hang = Callable[[Redlock, list[RealMaster], dict[str, Any]], Awaitable[None]]


async def failed(redlock: Redlock, masters: list[RealMaster], options: dict[str, Any]) -> None:
    """Fail twice to acquire."""
    pause(masters[:3])
    for _ in range(2):
        with pytest.raises(QuorumUnavailableError):
            await redlock.lock("r", ttl=60_000, wait=0, **options).acquire()


async def cancelled(redlock: Redlock, masters: list[RealMaster], options: dict[str, Any]) -> None:
    """Cancel an acquisition, by a timeout of the caller."""
    pause(masters[:3])
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(redlock.lock("r", ttl=60_000, **options).acquire(), 0.15)


async def released(redlock: Redlock, masters: list[RealMaster], options: dict[str, Any]) -> None:
    """Release; the release ends although a majority does not reply."""
    async with redlock.lock("r", ttl=60_000, **options) as lease:
        await until(lambda: values(masters, "r") == [lease.token] * 5)
        pause(masters[:3])


async def release_cancelled(
    redlock: Redlock, masters: list[RealMaster], options: dict[str, Any]
) -> None:
    """Cancel a release."""
    lease = await redlock.lock("r", ttl=60_000, **options).acquire()
    await until(lambda: values(masters, "r") == [lease.token] * 5)
    pause(masters[:3])
    releasing = asyncio.create_task(lease.release())
    await until(lambda: gone(masters[3:], "r"))
    releasing.cancel()
    await asyncio.wait([releasing])


async def given_up(redlock: Redlock, masters: list[RealMaster], options: dict[str, Any]) -> None:
    """Release after the connections to the hung masters were closed."""
    async with redlock.lock("r", ttl=60_000, **options) as lease:
        await until(lambda: values(masters, "r") == [lease.token] * 5)
        pause(masters[:2])
        with contextlib.suppress(LockNotAcquiredError):
            await lease.extend()
        await until(lambda: up(redlock) == 3, within=20)


async def hung_before(redlock: Redlock, masters: list[RealMaster], options: dict[str, Any]) -> None:
    """Acquire and release while they hang; the requests wait in their sockets."""
    pause(masters[:2])
    async with redlock.lock("r", ttl=60_000, wait=5_000, **options):
        await until(lambda: up(redlock) == 3, within=20)


WAYS: list[Hang] = [failed, cancelled, released, release_cancelled, given_up, hung_before]


@KIND
@pytest.mark.promise("S3")
@pytest.mark.parametrize("way", WAYS, ids=[way.__name__ for way in WAYS])
@pytest.mark.spread(1)
async def test_hung_masters_are_cleaned_when_they_answer_again(
    masters: list[RealMaster], options: dict[str, Any], way: Hang
) -> None:
    async with connected(masters, master_timeout=QUICK) as redlock:
        async with asyncio.timeout(30):
            await way(redlock, masters, options)
        resume(masters)
        await until(lambda: up(redlock) == 5)
        await nothing_is_left(masters)
        async with redlock.lock("r", wait=5_000, **options):
            pass


@pytest.mark.promise("S3")
@pytest.mark.full
async def test_no_key_stays_on_a_master_that_hung_under_load(
    masters: list[RealMaster], monkeypatch: pytest.MonkeyPatch
) -> None:
    """2,000 tasks lock while it hangs for 3.5 s: more requests than may be pending at once."""
    # A limit that a slow machine exceeds, too. Each task also sends a release.
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
        await nothing_is_left(masters[:3])
        await until(lambda: not any(master.debts for master in redlock.statistics().masters))


@KIND
@pytest.mark.promise("S3")
async def test_closing_ends_leases_and_waits_although_masters_hang(
    masters: list[RealMaster], options: dict[str, Any]
) -> None:
    """The body is cancelled, waiters fail, and no socket or lock is left."""
    entered = asyncio.Event()

    async def hold(redlock: Redlock) -> None:
        async with redlock.lock("r", ttl=60_000, **options):
            entered.set()
            await asyncio.sleep(60)

    async with asyncio.timeout(20):
        async with connected(masters, master_timeout=QUICK) as redlock:
            holder = asyncio.create_task(hold(redlock))
            await entered.wait()
            lock = redlock.lock("r", **options)
            waiters = [asyncio.create_task(lock.acquire()) for _ in range(5)]
            await asyncio.sleep(0.05)
            pause(masters[:2])
        with pytest.raises(LockLostError, match="closed"):
            await holder
        await asyncio.wait(waiters)
    for waiter in waiters:
        assert type(waiter.exception()) is RedlockError
        assert "closed" in str(waiter.exception())
    resume(masters)
    await nothing_is_left(masters)
    await until(lambda: all(len(call(master, "CLIENT LIST")) == 1 for master in masters))


# Outages and restarts


async def test_a_lock_waits_through_an_outage_of_a_majority(masters: list[RealMaster]) -> None:
    """The wait covers the outage; masters that are back vote as before."""
    events: list[Event] = []
    async with connected(masters, master_timeout=QUICK, listener=events.append) as redlock:
        for master in masters[:3]:
            master.kill()
        waiter = asyncio.create_task(redlock.lock("r", wait=30_000).acquire())
        with pytest.raises(QuorumUnavailableError):
            await redlock.lock("other", wait=200).acquire()
        assert not waiter.done()
        for master in masters[:3]:
            master.start()
        await (await waiter).release()
        await until(lambda: up(redlock) == 5)
        async with redlock.lock("r", wait=5_000) as lease:
            await until(lambda: values(masters, "r") == [lease.token] * 5)
    lost = {event.master for event in events if isinstance(event, MasterLost)}
    back = {e.master for e in events if isinstance(e, MasterBack)}
    assert lost == back == {url.removeprefix("redis://") for url in urls(masters[:3])}
    majority = [type(event) for event in events if isinstance(event, MajorityLost | MajorityBack)]
    assert majority == [MajorityLost, MajorityBack]


@KIND
@pytest.mark.usefixtures("rare_heartbeats")
async def test_scripts_that_masters_forgot_are_sent_again(
    redlock: Redlock, other: Redlock, masters: list[RealMaster], options: dict[str, Any]
) -> None:
    """Checked are acquiring, waiting, extending, passing on, keeping and releasing a lock."""

    def forget() -> None:
        for master in masters:
            call(master, "SCRIPT", "FLUSH")

    forget()
    async with redlock.lock("r", ttl=60_000, **options) as lease:
        # A master that replied after the lock was won is not asked again.
        await until(lambda: values(masters, "r").count(lease.token) >= 3)
        forget()
        waiter = asyncio.create_task(other.lock("r", hold_at_least=800, **options).acquire())
        if "fair" in options:
            await until(lambda: sorted(queued(masters))[2] == 1)
        else:
            await subscribed(other, masters)
        forget()
        async with asyncio.timeout(AT_ONCE):
            await lease.extend(30_000)
            forget()
            assert (await other.inspect("r")).locked
        forget()
    async with asyncio.timeout(AT_ONCE):
        theirs = await waiter
        await until(lambda: values(masters, "r").count(theirs.token) >= 3)
        forget()
        await theirs.release()
    await nothing_is_left(masters)


@pytest.mark.full
@pytest.mark.promise("S4")
async def test_no_lease_is_lost_after_a_majority_continues(masters: list[RealMaster]) -> None:
    """A majority is stopped for 70 % of the ttl; each lease that is valid then stays so."""
    ttl, number = 30_000, 200
    lost: list[float] = []
    loop = asyncio.get_running_loop()

    def listen(event: Event) -> None:
        if isinstance(event, Lost):
            lost.append(loop.time())

    async def hold(redlock: Redlock, number: int) -> Lease:
        await asyncio.sleep(random.uniform(0, ttl / 3000))
        return await redlock.lock(f"r{number}", ttl=ttl, on_lost="flag").acquire()

    async with connected(masters, listener=listen) as redlock:
        leases = await asyncio.gather(*(hold(redlock, i) for i in range(number)))
        pause(masters[:3])
        await asyncio.sleep(0.7 * ttl / 1000)
        resume(masters)
        continued = loop.time()
        await until(lambda: all(lease.remaining > ttl / 2 or not lease.valid for lease in leases))
        await asyncio.sleep(0.2)
        assert len(lost) < number / 2  # their validity was over before
        assert [at - continued for at in lost if at > continued + LATE] == []
        await asyncio.gather(*(lease.release() for lease in leases if lease.valid))
    await nothing_is_left(masters)
