"""Time limits that masters of the usual speed never reach, and the facts in errors and votes."""

import asyncio

import pytest

from redlock_aio import Answer, QuorumUnavailableError, Redlock, RedlockError
from redlock_aio._protocol.scripts import ENQUEUE
from redlock_aio.testing import FakeMaster

from . import kit
from .kit import hang, now, occupy, ran, resume, slow, waiting_fair


async def connect(redlock: Redlock) -> None:
    """Connect to the masters."""
    async with redlock.lock("other"):
        pass


async def test_a_forced_release_without_a_majority_tells_how_long_it_has_taken(
    redlock: Redlock, masters: list[FakeMaster]
) -> None:
    await connect(redlock)
    await asyncio.sleep(1000)
    hang(masters)
    began = now()
    with pytest.raises(QuorumUnavailableError) as caught:
        await redlock.force_release("r")
    assert 0 < caught.value.elapsed == pytest.approx((now() - began) * 1000, abs=1)
    resume(masters)


async def test_closing_waits_a_whole_master_timeout_for_masters_that_hang(
    masters: list[FakeMaster],
) -> None:
    redlock = Redlock(masters, restart_guard="off", master_timeout=400)
    await connect(redlock)
    await asyncio.sleep(1)
    lease = await redlock.lock("r").acquire()
    hang(masters)
    await lease.release()
    began = now()
    await redlock.aclose()
    assert now() - began == pytest.approx(0.4, abs=0.01)
    resume(masters)
    await asyncio.sleep(1)


async def test_a_session_that_was_closed_waits_for_no_master(masters: list[FakeMaster]) -> None:
    hang(masters)
    async with Redlock(masters, restart_guard="off") as redlock:
        session = kit.session(redlock)
    began = now()
    with pytest.raises(RedlockError, match="closed"):
        await session.get_ready(0)
    assert now() == began


async def test_a_fair_waiter_asks_once_when_the_key_of_another_client_expires(
    redlock: Redlock, masters: list[FakeMaster]
) -> None:
    slow(masters, 0.0002)  # a request that is sent too early arrives too early
    occupy(masters, ttl=300)
    waiting = waiting_fair(redlock)
    await asyncio.sleep(0.2)  # before its next heartbeat
    before = [ran(master, ENQUEUE) for master in masters]
    began = now()
    assert await waiting - began < 0.11
    assert [ran(master, ENQUEUE) for master in masters] == [asked + 1 for asked in before]


async def test_a_key_of_another_type_on_a_minority_is_an_error_in_the_votes_of_a_lease(
    redlock: Redlock, masters: list[FakeMaster]
) -> None:
    """Such a key is not a lock of another client, which would expire."""
    masters[0]._data.zadd(b"r", 1, b"theirs")
    async with redlock.lock("r", fencing=True) as lease:
        await asyncio.sleep(0.01)
        first, *others = lease.votes
    assert (first.answer, first.permanent) == (Answer.ERROR, True)
    assert {vote.answer for vote in others} == {Answer.GRANTED}
