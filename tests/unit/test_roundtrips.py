"""The adaptive master timeout, computed from round trips."""

import asyncio
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given, strategies as st

from redlock_aio import Answer, LockNotAcquiredError, QuorumUnavailableError, Redlock
from redlock_aio._rules.timing import FAR, LONGEST_TIMEOUT, SHORTEST_TIMEOUT, RoundTrips
from redlock_aio.testing import FakeMaster

from .kit import hang, loop, now, resume, slow


def learned(*samples: float | list[float]) -> RoundTrips:
    """Return the round trips after these samples of each master, in ms."""
    trips = RoundTrips(len(samples))
    for master, sample in enumerate(samples):
        first, *others = sample if isinstance(sample, list) else [sample]
        trips.begin(master, first)
        for other in others:
            trips.learn(master, other)
    return trips


def learn(trips: RoundTrips, ms: float, times: int = 1) -> int:
    """Add samples of each of three masters; return the timeout."""
    for _ in range(times):
        for master in range(3):
            trips.learn(master, ms)
    return trips.timeout


# The rules.


@pytest.mark.parametrize(
    ("samples", "timeout"),
    [
        ([], SHORTEST_TIMEOUT),
        ([0.3] * 3, SHORTEST_TIMEOUT),
        ([25.0] * 3, SHORTEST_TIMEOUT),
        ([40.0] * 5, 80),
        ([[40.0] * 50] * 3, 80),
        ([80.0] * 3, 160),
        ([80.0], 160),
        ([700.0] * 3, LONGEST_TIMEOUT),
        ([1.0, 1.0, 80.0], 160),  # if one of the near masters hangs, the far one is needed
        ([1.0, 1.0, 900.0], FAR * SHORTEST_TIMEOUT),
        ([1.0, 1.0, 1.0, 900.0, 900.0], FAR * SHORTEST_TIMEOUT),
        ([1.0, 900.0, 900.0], LONGEST_TIMEOUT),
        ([60.0, 60.0, 900.0], FAR * 120),
    ],
)
def test_the_timeout_is_twice_a_majoritys_time_and_more_for_others_within_reason(
    samples: list[float], timeout: int
) -> None:
    assert learned(*samples).timeout == timeout


def test_replies_that_vary_get_more_time() -> None:
    assert 120 < learned(*[[40.0, 40.0, 80.0, 80.0] * 12] * 3).timeout < 250


def test_a_single_slow_reply_does_not_count_and_two_do_until_quick_ones_follow() -> None:
    trips = learned(*[[1.0] * 10] * 3)
    assert learn(trips, 600.0) == SHORTEST_TIMEOUT
    assert 600 < learn(trips, 600.0) < LONGEST_TIMEOUT
    assert learn(trips, 600.0, 10) == LONGEST_TIMEOUT
    assert learn(trips, 1.0, 40) == SHORTEST_TIMEOUT


def test_a_master_that_is_gone_does_not_count() -> None:
    trips = learned(80.0, 80.0, 400.0)
    assert trips.timeout == 640
    trips.forget(2)
    assert trips.timeout == 160
    trips.learn(2, 400.0)  # a reply that was still underway
    assert trips.timeout == 160
    trips.begin(2, 1.0)  # a reconnect begins anew, as with another machine
    assert trips.timeout == 160


def test_a_fixed_timeout_stays() -> None:
    trips = RoundTrips(3, fixed=30)
    for master in range(3):
        trips.begin(master, 80.0)
    assert trips.timeout == 30
    assert trips.too_slow(0) == "its answers take 80 ms, master_timeout is 30 ms"
    assert learned(80.0, 80.0, 80.0).too_slow(0) == ""
    assert RoundTrips(3, fixed=30).too_slow(0) == ""


@given(st.lists(st.lists(st.floats(0, 1e5), min_size=1, max_size=20), min_size=1, max_size=7))
def test_the_timeout_is_always_within_its_bounds(samples: list[list[float]]) -> None:
    assert SHORTEST_TIMEOUT <= learned(*samples).timeout <= LONGEST_TIMEOUT


# End to end.


def far(latency: float, masters: int = 3) -> list[FakeMaster]:
    return [FakeMaster(latency=latency) for _ in range(masters)]


@pytest.mark.parametrize("latency", [0.04, 0.3])
@pytest.mark.parametrize("kind", [{}, {"fencing": True}, {"fair": True}], ids=str)
async def test_masters_that_are_far_away_grant_locks(latency: float, kind: dict[str, Any]) -> None:
    async with Redlock(far(latency)) as redlock:
        assert redlock.master_timeout == pytest.approx(2000 * latency, abs=2)
        for name in ("a", "b"):
            began = now()
            async with redlock.lock(name, wait=0, **kind) as lease:
                rounds = (
                    1 if not kind or name == "b" else 2
                )  # the first acquisition asks for the time
                assert now() - began <= rounds * latency + 0.001
                await lease.extend()
                await asyncio.sleep(5)
                assert lease.valid
        assert f", master_timeout {redlock.master_timeout} ms>" in repr(redlock)


@pytest.mark.parametrize("wanted", [50, timedelta(milliseconds=50)])
async def test_an_error_tells_that_replies_take_longer_than_the_fixed_timeout(
    wanted: int | timedelta,
) -> None:
    masters = far(0.08)
    async with Redlock(masters, master_timeout=wanted) as redlock:
        assert redlock.master_timeout == 50
        for wait in (0, 300):
            with pytest.raises(QuorumUnavailableError) as caught:
                await redlock.lock("r", wait=wait).acquire()
            reason = "timed out, its answers take 80 ms, master_timeout is 50 ms"
            assert str(caught.value).count(reason) >= 3
            # In a fair queue a late reply counts.
            async with redlock.lock("r", wait=wait, fair=True):
                pass
        await asyncio.sleep(1)
    assert not any(master.keys for master in masters)


async def test_the_timeout_follows_masters_that_become_slower_and_faster() -> None:
    masters = far(0.001)
    async with Redlock(masters) as redlock:
        assert redlock.master_timeout == 50
        assert repr(redlock) == "<Redlock 3 masters, 3 up, 0 leases>"
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
async def test_a_far_master_completes_a_majority_at_once_when_a_near_one_hangs() -> None:
    masters = [*far(0.001, 2), *far(0.08, 1)]
    async with Redlock(masters) as redlock:
        await asyncio.sleep(1)
        assert redlock.master_timeout == 160
        for hung, time in ((False, 0.001), (True, 0.08)):
            if hung:
                masters[0].hang()
            began = now()
            async with redlock.lock(f"r{hung}", wait=0):
                assert now() - began == pytest.approx(time)
        masters[0].resume()
        await asyncio.sleep(2)


@pytest.mark.promise("S6")
async def test_a_hung_majority_of_near_masters_fails_soon_beside_one_that_is_far() -> None:
    masters = [*far(0.001, 2), *far(0.9, 1)]
    async with Redlock(masters) as redlock:
        await asyncio.sleep(2)
        hang(masters[:2])
        began = now()
        with pytest.raises(QuorumUnavailableError):
            await redlock.lock("r", wait=0).acquire()
        assert now() - began <= FAR * SHORTEST_TIMEOUT / 1000
        resume(masters)
        await asyncio.sleep(3)


async def test_a_blocked_event_loop_reads_replies_before_timeouts_and_learns_nothing(
    redlock: Redlock,
) -> None:
    for blocked in (0.06, 0, 0.5, 0, 3.0, *[0, 0.3] * 8):
        await asyncio.sleep(1.001)
        if blocked:
            loop().call_later(0.0004, loop().stall, blocked)
        async with redlock.lock("r", wait=0) as lease:
            assert lease.valid
        assert redlock.master_timeout == 50


async def test_dialling_masters_that_are_far_away_gets_more_time_with_each_try() -> None:
    """A connection needs several round trips: here each dial takes 1.5 s."""

    class SlowToDial(FakeMaster):
        async def dial(self) -> tuple[asyncio.Transport, object]:
            await asyncio.sleep(1.5)
            return await super().dial()

    async with Redlock([SlowToDial(latency=0.2) for _ in range(3)]) as redlock:
        async with redlock.lock("r") as lease:
            assert lease.valid
        assert now() < 8


async def test_a_short_wait_gives_far_masters_the_time_that_they_need() -> None:
    masters = far(0.08)
    async with Redlock(masters) as redlock, Redlock(masters) as other:
        async with redlock.lock("r", wait=1):
            with pytest.raises(LockNotAcquiredError) as caught:
                await other.lock("r", wait=10).acquire()
        assert type(caught.value) is LockNotAcquiredError
        assert caught.value.holder is not None
        assert {vote.answer for vote in caught.value.votes} == {Answer.HELD}


async def test_masters_are_probed_once_a_second_and_only_while_they_are_used(
    redlock: Redlock, masters: list[FakeMaster]
) -> None:
    before = len(masters[0].commands)
    await asyncio.sleep(60)
    assert len(masters[0].commands) == before
    for _ in range(100):
        async with redlock.lock("r"):
            await asyncio.sleep(0.1)
    probes = [command for command in masters[0].commands[before:] if command[0] == b"PING"]
    assert 9 <= len(probes) <= 12
