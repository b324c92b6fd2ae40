"""What a listener is told of real masters."""

import asyncio

import pytest

from redlock_aio import LockLostError, LockNotAcquiredError, Redlock
from redlock_aio.events import (
    Acquired,
    Event,
    Extended,
    Lost,
    MasterBack,
    MasterLost,
    Missed,
    Released,
    Waiting,
)

from .helpers import RealMaster, Stopwatch, call, connected, until

pytestmark = pytest.mark.integration


@pytest.mark.parametrize("fair", [False, True])
async def test_two_programs_that_contend_are_told_their_turns(
    masters: list[RealMaster], *, fair: bool
) -> None:
    told: list[Event] = []

    async def work(redlock: Redlock, number: int) -> None:
        for _ in range(5):
            async with redlock.lock("r", fair=fair, fencing=True) as lease:
                assert lease.fencing_token
                await asyncio.sleep(0.005 * number)

    watch = Stopwatch()
    async with (
        connected(masters, listener=told.append) as one,
        connected(masters, listener=told.append) as two,
    ):
        await asyncio.gather(*(work(redlock, n) for redlock in (one, two) for n in (0, 1)))
    took = watch.ms
    acquired = [event for event in told if isinstance(event, Acquired)]
    released = [event for event in told if isinstance(event, Released)]
    assert len(acquired) == len(released) == 20
    assert {event.fingerprint for event in acquired} == {event.fingerprint for event in released}
    tokens = [event.fencing_token or 0 for event in acquired]
    assert sorted(set(tokens)) == tokens
    assert sum(event.held_ms for event in released) <= took
    assert max(event.waited_ms for event in acquired) >= 5
    assert 1 <= sum(isinstance(event, Waiting) for event in told) <= 20
    assert len(told) <= 60


async def test_who_gives_up_is_told_why(redlock: Redlock, masters: list[RealMaster]) -> None:
    told: list[Event] = []
    async with connected(masters, listener=told.append) as other, redlock.lock("r") as lease:
        with pytest.raises(LockNotAcquiredError) as caught:
            await other.lock("r", wait=100).acquire()
        assert await other.lock("r").try_acquire() is None
    waiting, missed, tried = told
    assert waiting == Waiting(("r",))
    assert isinstance(missed, Missed)
    assert missed.error is caught.value
    assert missed.error.holder is not None
    assert missed.error.holder.fingerprint == lease.fingerprint
    assert isinstance(tried, Missed)
    assert type(tried.error) is LockNotAcquiredError


async def test_a_master_that_is_killed_is_told_lost_and_back(masters: list[RealMaster]) -> None:
    told: list[Event] = []
    async with connected(masters, listener=told.append) as redlock:
        name = redlock._opener.session().links[0].name
        masters[0].kill()
        await until(lambda: bool(told))
        masters[0].start()
        await until(lambda: len(told) > 1)
        await asyncio.sleep(0.1)
    lost, back = told
    assert isinstance(lost, MasterLost)
    assert lost.master == name
    assert lost.reason.startswith("unreachable, ")
    assert back == MasterBack(name)


async def test_a_lease_whose_keys_are_deleted_is_told_lost(masters: list[RealMaster]) -> None:
    told: list[Event] = []
    async with connected(masters, listener=told.append) as redlock:
        with pytest.raises(LockLostError) as caught:
            async with redlock.lock("r", ttl=30_000) as lease:
                await lease.extend()
                for master in masters[:3]:
                    call(master, "DEL", "r")
                await asyncio.sleep(60)
    acquired, extended, lost = told
    assert isinstance(acquired, Acquired)
    assert isinstance(extended, Extended)
    assert 20_000 < extended.margin_ms <= 29_698
    assert isinstance(lost, Lost)
    assert acquired.fingerprint == extended.fingerprint == lost.fingerprint == lease.fingerprint
    assert lost.reason == caught.value.reason
    assert lost.held_ms < 20_000
