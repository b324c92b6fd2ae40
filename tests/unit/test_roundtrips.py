"""How long masters' answers are waited for, learned from how long they take."""

import asyncio
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given, strategies as st

from redlock_aio import Answer, LockNotAcquiredError, QuorumUnavailableError, Redlock
from redlock_aio._rules.roundtrips import FAR, LONGEST, SHORTEST, RoundTrips
from redlock_aio.testing import FakeMaster

from .kit import hang, loop, now, resume, slow


def learned(*samples: float | list[float]) -> RoundTrips:
    """Return what is known after some round trips to each master."""
    trips = RoundTrips(len(samples))
    for master, sample in enumerate(samples):
        first, *others = sample if isinstance(sample, list) else [sample]
        trips.begin(master, first)
        for other in others:
            trips.learn(master, other)
    return trips


# The rule.


@pytest.mark.parametrize(
    ("samples", "timeout"),
    [
        ([], SHORTEST),
        ([0.3] * 3, SHORTEST),
        ([25.0] * 3, SHORTEST),
        ([40.0] * 5, 80),
        ([80.0] * 3, 160),
        ([80.0], 160),
        ([700.0] * 3, LONGEST),
        ([1.0, 1.0, 80.0], 160),  # if one of the first hangs, the last is needed
        ([1.0, 1.0, 900.0], FAR * SHORTEST),
        ([1.0, 1.0, 1.0, 900.0, 900.0], FAR * SHORTEST),
        ([1.0, 900.0, 900.0], LONGEST),
        ([60.0, 60.0, 900.0], FAR * 120),
    ],
)
def test_the_time_out_is_twice_what_a_majority_takes_and_more_for_others_within_reason(
    samples: list[float], timeout: int
) -> None:
    assert learned(*samples).timeout == timeout


def test_answers_that_vary_get_more_time() -> None:
    steady = learned(*[[40.0] * 50] * 3)
    varying = learned(*[[40.0, 40.0, 80.0, 80.0] * 12] * 3)
    assert steady.timeout == 80
    assert 120 < varying.timeout < 250


def test_a_single_slow_answer_says_nothing_and_two_do() -> None:
    trips = learned(*[[1.0] * 10] * 3)
    for master in range(3):
        trips.learn(master, 600.0)
    assert trips.timeout == SHORTEST
    for master in range(3):
        trips.learn(master, 600.0)
    assert trips.timeout > 600


def test_what_was_slow_once_is_forgotten() -> None:
    trips = learned(*[[600.0] * 10] * 3)
    assert trips.timeout == LONGEST
    for _ in range(40):
        for master in range(3):
            trips.learn(master, 1.0)
    assert trips.timeout == SHORTEST


def test_a_master_that_is_gone_does_not_count() -> None:
    trips = learned(80.0, 80.0, 400.0)
    assert trips.timeout == 640
    trips.forget(2)
    assert trips.timeout == 160
    trips.learn(2, 400.0)  # an answer that was still on its way
    assert trips.timeout == 160
    trips.begin(2, 1.0)  # it is another machine now
    assert trips.timeout == 160


def test_a_time_out_that_was_asked_for_stays() -> None:
    trips = RoundTrips(3, fixed=30)
    for master in range(3):
        trips.begin(master, 80.0)
    assert trips.timeout == 30
    assert trips.too_slow(0) == "its answers take 80 ms, master_timeout is 30 ms"
    assert learned(80.0, 80.0, 80.0).too_slow(0) == ""
    assert RoundTrips(3, fixed=30).too_slow(0) == ""


@given(st.lists(st.lists(st.floats(0, 1e5), min_size=1, max_size=20), min_size=1, max_size=7))
def test_the_time_out_is_always_within_its_bounds(samples: list[list[float]]) -> None:
    assert SHORTEST <= learned(*samples).timeout <= LONGEST


# What follows from it.


async def far(latency: float, masters: int = 3) -> list[FakeMaster]:
    return [FakeMaster(latency=latency) for _ in range(masters)]


@pytest.mark.parametrize("latency", [0.04, 0.08, 0.15, 0.3])
@pytest.mark.parametrize("kind", [{}, {"fencing": True}, {"fair": True}], ids=str)
async def test_masters_that_are_far_away_grant_locks(latency: float, kind: dict[str, Any]) -> None:
    masters = await far(latency)
    async with Redlock(masters) as redlock:
        assert redlock.master_timeout == pytest.approx(2000 * latency, abs=2)
        for name in ("a", "b"):
            began = now()
            async with redlock.lock(name, wait=0, **kind) as lease:
                rounds = 1 if not kind or name == "b" else 2  # the first asks for the time
                assert now() - began <= rounds * latency + 0.001
                await lease.extend()
                await asyncio.sleep(5)
                assert lease.valid
        assert f", master_timeout {redlock.master_timeout} ms>" in repr(redlock)


async def test_masters_that_are_near_have_the_shortest_time_out(redlock: Redlock) -> None:
    assert redlock.master_timeout == 50
    assert repr(redlock) == "<Redlock 5 masters, 5 up, 0 leases>"


@pytest.mark.parametrize("wanted", [50, timedelta(milliseconds=50)])
async def test_an_error_says_that_answers_take_longer_than_the_time_out_that_was_asked_for(
    wanted: int | timedelta,
) -> None:
    masters = await far(0.08)
    async with Redlock(masters, master_timeout=wanted) as redlock:
        assert redlock.master_timeout == 50
        for wait in (0, 300):
            with pytest.raises(QuorumUnavailableError) as caught:
                await redlock.lock("r", wait=wait).acquire()
            said = "timed out, its answers take 80 ms, master_timeout is 50 ms"
            assert str(caught.value).count(said) >= 3
            # In a queue an answer counts that comes late.
            async with redlock.lock("r", wait=wait, fair=True):
                pass
        await asyncio.sleep(1)
    assert not any(master.keys for master in masters)


async def test_the_time_out_follows_masters_that_become_slower_and_faster() -> None:
    masters = await far(0.001)
    async with Redlock(masters) as redlock:
        slow(masters, 0.2)
        slower = now()
        async with redlock.lock("r", wait=5_000):
            assert now() - slower < 1.5
        assert 200 < redlock.master_timeout < 1_000
        slow(masters, 0.001)
        for _ in range(40):
            await asyncio.sleep(1)
            async with redlock.lock("other"):
                pass
        assert redlock.master_timeout == 50


@pytest.mark.promise("S6")
async def test_a_hung_minority_costs_masters_nothing_that_are_far_away() -> None:
    masters = await far(0.08, 5)
    async with Redlock(masters) as redlock:
        hang(masters[:2])
        for number in range(30):
            began = now()
            async with redlock.lock(f"r{number}"):
                pass
            assert now() - began == pytest.approx(0.16)
        resume(masters)
        await asyncio.sleep(3)


@pytest.mark.promise("S6")
async def test_a_far_master_is_there_at_once_when_a_near_one_hangs() -> None:
    masters = [FakeMaster(latency=latency) for latency in (0.001, 0.001, 0.08)]
    async with Redlock(masters) as redlock:
        await asyncio.sleep(1)
        assert redlock.master_timeout == 160
        began = now()
        async with redlock.lock("near"):
            pass
        assert now() - began < 0.01
        masters[0].hang()
        began = now()
        async with redlock.lock("r", wait=0):
            assert now() - began == pytest.approx(0.08)
        masters[0].resume()
        await asyncio.sleep(2)


@pytest.mark.promise("S6")
async def test_a_hung_majority_of_near_masters_is_found_out_soon_beside_one_that_is_far() -> None:
    masters = [FakeMaster(latency=latency) for latency in (0.001, 0.001, 0.9)]
    async with Redlock(masters) as redlock:
        await asyncio.sleep(2)
        hang(masters[:2])
        began = now()
        with pytest.raises(QuorumUnavailableError):
            await redlock.lock("r", wait=0).acquire()
        assert now() - began <= FAR * SHORTEST / 1000
        resume(masters)
        await asyncio.sleep(3)


async def test_a_loop_that_stood_still_reads_what_came_before_it_counts_time_outs(
    redlock: Redlock,
) -> None:
    for stalled in (0.06, 0.5, 3.0):
        loop().call_later(0.0004, loop().stall, stalled)
        async with redlock.lock("r", wait=0) as lease:
            assert lease.valid
    assert redlock.master_timeout == 50


async def test_a_loop_that_stands_still_now_and_then_learns_nothing_from_it(
    redlock: Redlock,
) -> None:
    for number in range(20):
        await asyncio.sleep(1.001)
        if number % 2:
            loop().call_later(0.0004, loop().stall, 0.3)
        async with redlock.lock("r"):
            pass
        assert redlock.master_timeout == 50


async def test_dialling_masters_that_are_far_away_gets_more_time_from_time_to_time() -> None:
    """A connection takes several round trips: here the dialling alone takes 1.5 s."""
    masters = [SlowToDial(latency=0.2) for _ in range(3)]
    async with Redlock(masters) as redlock:
        async with redlock.lock("r") as lease:
            assert lease.valid
        assert now() < 8


class SlowToDial(FakeMaster):
    """A master that is so far away that connecting to it takes long."""

    async def dial(self) -> tuple[asyncio.Transport, object]:
        await asyncio.sleep(1.5)
        return await super().dial()


async def test_a_short_wait_gives_far_masters_the_time_that_they_need() -> None:
    masters = await far(0.08)
    async with Redlock(masters) as redlock, Redlock(masters) as other:
        lease = await redlock.lock("r", wait=1).acquire()
        with pytest.raises(LockNotAcquiredError) as caught:
            await other.lock("r", wait=10).acquire()
        assert type(caught.value) is LockNotAcquiredError
        assert caught.value.holder is not None
        assert {vote.answer for vote in caught.value.votes} == {Answer.HELD}
        await lease.release()


async def test_nothing_is_asked_of_masters_while_nothing_is_locked(
    redlock: Redlock, masters: list[FakeMaster]
) -> None:
    before = len(masters[0].commands)
    await asyncio.sleep(60)
    assert len(masters[0].commands) == before
    for _ in range(100):
        async with redlock.lock("r"):
            await asyncio.sleep(0.1)
    pings = [command for command in masters[0].commands[before:] if command[0] == b"PING"]
    assert 9 <= len(pings) <= 12
