"""Inspecting and releasing by force on real servers, with holders in other managers."""

import asyncio
import time

import pytest

from redlock_aio import Answer, LockLostError, QuorumUnavailableError, Redlock
from redlock_aio._protocol.revocation import BY_FORCE

from .helpers import (
    AT_ONCE,
    TIMEOUT,
    RealMaster,
    Stopwatch,
    call,
    connected,
    gone,
    own_keys,
    put,
    queued,
    until,
    values,
)

pytestmark = pytest.mark.integration

SOON = 600
"""A master time-out, in ms."""

GRACE = 120 + 2 * SOON
"""Ms for which nobody gets in then."""


class Holder:
    """A task that holds the lock until it is told."""

    def __init__(self, redlock: Redlock, *, fair: bool = False) -> None:
        self.entered = asyncio.Event()
        self.entered_at = self.told_at = 0.0
        self.reason = ""
        self.fence = 0
        self.lock = redlock.lock("r", fair=fair, fencing=True, ttl=60_000)
        self.task = asyncio.create_task(self._hold())

    async def _hold(self) -> None:
        try:
            async with self.lock as lease:
                self.fence = lease.fencing_token
                self.entered_at = time.monotonic()
                self.entered.set()
                try:
                    await asyncio.sleep(60)
                finally:
                    self.told_at = time.monotonic()
        except LockLostError as error:
            self.reason = error.reason


async def nobody_waits(redlock: Redlock) -> bool:
    return not (await redlock.inspect("r")).waiters


async def test_what_is_seen_of_a_lock(
    redlock: Redlock, other: Redlock, masters: list[RealMaster]
) -> None:
    """Free, held, waited for, split, and where the key is something else."""
    assert [view.answer for view in (await redlock.inspect("r")).views] == [Answer.FREE] * 5
    async with other.lock("r", fencing=True, fair=True, ttl=20_000) as lease:
        waiter = asyncio.create_task(other.lock("r", fair=True, fencing=True).acquire())
        await until(lambda: queued(masters) == [2] * 5)
        await until(lambda: None not in values(masters, "r"))
        state = await redlock.inspect("r")
        assert state.locked
        assert state.certain
        assert state.holder is not None
        assert state.holder.fingerprint == lease.fingerprint
        assert state.fencing_counter == lease.fencing_token
        assert state.waiters == 1
        assert state.remaining is not None
        assert 10_000 < state.remaining <= 20_000
        assert lease.token not in repr(state) + str(state)
        assert await redlock.is_locked("r")
    async with await waiter:
        await until(lambda: nobody_waits(redlock))  # some masters are a little later
    await until(lambda: gone(masters, "r"))
    call(masters[0], "LPUSH", "r", "x")
    for master, value in zip(masters[1:], "aabb", strict=True):
        call(master, "SET", "r", value)
    state = await redlock.inspect("r")
    assert state.split
    assert state.remaining is None
    assert state.views[0].answer is Answer.ERROR
    assert state.views[0].detail.startswith("WRONGTYPE")
    with pytest.raises(QuorumUnavailableError, match="WRONGTYPE"):
        await redlock.is_locked("r")  # for all it says the list's master could keep either


async def test_hung_and_dead_masters_are_said_to_be(
    redlock: Redlock, masters: list[RealMaster]
) -> None:
    put(masters, "r", 3_600_000)
    masters[0].pause()
    masters[1].kill()
    await until(lambda: "4 up" in repr(redlock))
    watch = Stopwatch()
    assert await redlock.is_locked("r")
    assert watch.ms < TIMEOUT
    state = await redlock.inspect("r")
    assert [view.answer for view in state.views[:3]] == [
        Answer.TIMED_OUT,
        Answer.UNREACHABLE,
        Answer.HELD,
    ]
    assert state.locked


async def test_forgotten_scripts_are_sent_again(
    redlock: Redlock, masters: list[RealMaster]
) -> None:
    put(masters, "r", 3_600_000)
    for master in masters:
        call(master, "SCRIPT", "FLUSH")
    assert (await redlock.inspect("r")).locked
    for master in masters:
        call(master, "SCRIPT", "FLUSH")
    async with connected(masters, master_timeout=SOON) as quick:
        for master in masters:
            call(master, "SCRIPT", "FLUSH")
        assert await quick.force_release("r")
    assert gone(masters, "r")


@pytest.mark.promise("S1")
@pytest.mark.parametrize("fair", [True, False])
async def test_the_holder_is_told_before_the_next_gets_in(
    masters: list[RealMaster], *, fair: bool
) -> None:
    """It has had the lock for less than the time after which it looks for the first time."""
    async with (
        connected(masters, master_timeout=SOON) as redlock,
        connected(masters, master_timeout=SOON) as other,
    ):
        holder = Holder(other, fair=fair)
        await holder.entered.wait()
        waiter = Holder(redlock, fair=fair)
        watch = Stopwatch()
        assert await redlock.force_release("r")
        assert GRACE < watch.ms < GRACE + 1000 * AT_ONCE
        await asyncio.wait([holder.task], timeout=AT_ONCE)
        assert holder.reason == BY_FORCE
        async with asyncio.timeout(AT_ONCE):
            await waiter.entered.wait()
        assert holder.told_at < waiter.entered_at
        assert waiter.fence > holder.fence
        waiter.task.cancel()
        await asyncio.wait([waiter.task])
    assert gone(masters, "r")


@pytest.mark.usefixtures("soon_deaf")
async def test_the_fair_are_served_when_a_stranger_s_lock_is_revoked(
    masters: list[RealMaster],
) -> None:
    """And a master that was hung is cleaned; what was set there meanwhile stays."""
    put(masters, "r", 3_600_000)
    async with (
        connected(masters, master_timeout=SOON) as redlock,
        connected(masters, master_timeout=SOON) as other,
    ):
        waiters = []
        for number in range(2):
            waiters.append(asyncio.create_task(other.lock("r", fair=True).acquire()))
            await until(lambda number=number: queued(masters) == [number + 1] * 5)  # type: ignore[misc]
        masters[0].pause()
        assert await redlock.force_release("r")
        for waiter in waiters:
            async with asyncio.timeout(AT_ONCE):
                await (await waiter).release()
        masters[0].resume()
        await until(lambda: gone(masters, "r"))
    await until(lambda: not own_keys(masters))
