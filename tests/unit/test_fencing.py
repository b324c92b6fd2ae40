"""Fencing tokens: counters agree on a token, and tokens rise from holder to holder."""

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import pytest
from hypothesis import given, strategies as st

from redlock_aio import Redlock, RedlockError
from redlock_aio._protocol.commands import NEVER, TIME
from redlock_aio._protocol.primitives import FencingCounter
from redlock_aio._protocol.replies import queued, time
from redlock_aio._protocol.scripts import ACQUIRE, ENQUEUE, EXTEND, RAISE
from redlock_aio._rules import fencing
from redlock_aio._rules.clock_offsets import Clocks
from redlock_aio._rules.fencing import KEPT
from redlock_aio.testing import FakeMaster

from . import kit
from .kit import LATENCY, LEAD, count_up, fence, hang, keys, loop, now, ran, runs_of

pytestmark = pytest.mark.promise("S7")

FENCE = fence("r")
FAIR = pytest.mark.parametrize("fair", [False, True])


@pytest.fixture
async def other(masters: list[FakeMaster]) -> AsyncIterator[Redlock]:
    async with Redlock(masters) as other:
        yield other


@given(st.lists(st.integers(1, 4), min_size=1, max_size=7), st.integers(1, 4))
def test_counters_agree_if_enough_equal_the_highest(counters: list[int], needed: int) -> None:
    token = fencing.agreed(counters, needed)
    highest = max(counters)
    assert token == (highest if sum(c == highest for c in counters) >= needed else 0)


def test_numbers_that_a_script_can_not_count_with_are_malformed_replies() -> None:
    """From 2**53 on a script would grant the same number again and again."""
    granted = [0, 1000, 1, b"t"]
    assert queued([*granted, NEVER - 1]) is not None
    assert queued([*granted, NEVER]) is None
    assert queued([*granted, -1]) is None
    assert time([b"%d" % (2**53 // 10**6), b"0"]) == 9007199254000000
    assert time([b"%d" % 10**10, b"0"]) is None


def test_a_counter_has_the_slot_of_its_resource() -> None:
    assert FencingCounter((b"r",), LEAD).keys[0] == b"redlock_aio:fence:{r}"
    assert FencingCounter((b"{a}b",), LEAD).keys[0] == b"redlock_aio:fence:={a}b"
    assert "fence:{r}" in repr(FencingCounter((b"r",), LEAD))


@FAIR
async def test_tokens_rise_from_holder_to_holder_in_one_round_trip(
    redlock: Redlock, other: Redlock, masters: list[FakeMaster], *, fair: bool
) -> None:
    async with redlock.lock("warm", fencing=True), other.lock("warm 2", fencing=True):
        pass
    last = 0
    for manager in (redlock, other, other, redlock):
        began = now()
        async with manager.lock("r", fencing=True, fair=fair) as lease:
            assert now() - began == pytest.approx(0.001)
            assert lease.fencing_token > last
            last = lease.fencing_token
    taken = [ran(master, ACQUIRE) + ran(master, ENQUEUE) for master in masters]
    assert taken == [2 + 4] * 5
    assert [ran(master, RAISE) for master in masters] == [0] * 5


async def test_a_token_is_the_time_of_the_masters_in_microseconds(
    redlock: Redlock, masters: list[FakeMaster]
) -> None:
    """Therefore a lost counter does no harm, and all counters are usually equal."""
    masters[0].clock_offset, masters[4].clock_offset = -2.0, 2.0
    async with redlock.lock("r", fencing=True) as lease:
        assert lease.fencing_token == pytest.approx(masters[2]._clock(), abs=2_000)
    assert {master.keys.get(FENCE) for master in masters} == {str(lease.fencing_token)}


@pytest.mark.full
@pytest.mark.parametrize(
    ("shares", "twice"), [((0,), 0.05), pytest.param((0, 0.5, 1), 0.3, marks=pytest.mark.full)]
)
async def test_most_contended_acquisitions_need_one_round(
    masters: list[FakeMaster], shares: tuple[float, ...], twice: float
) -> None:
    """Ten programs contend, plain or mixed with fair ones; clocks and latencies differ."""
    for number, master in enumerate(masters):
        master.latency = 0.0005 * (1 + number / 3)
        master.clock_offset = (-0.004, 0.003, 0.0, 0.001, 0.002)[number]
    tokens: list[int] = []

    async def use(redlock: Redlock, share: float) -> None:
        for _ in range(10):
            lock = redlock.lock("r", ttl=1000, fencing=True, fair=random.random() < share)
            async with lock as lease:
                tokens.append(lease.fencing_token)
                await asyncio.sleep(random.random() * 0.003)

    async with AsyncExitStack() as stack:
        users = [await stack.enter_async_context(Redlock(masters)) for _ in range(10)]
        both = zip(users, shares * 10, strict=False)
        await asyncio.gather(*(use(redlock, share) for redlock, share in both))
    assert len(tokens) == 100
    assert tokens == sorted(set(tokens))
    assert max(ran(master, RAISE) for master in masters) < len(tokens) * twice


@pytest.mark.parametrize("names", [("r",), ("r", "s")])
@FAIR
async def test_a_token_that_the_counters_have_reached_is_not_granted_again(
    redlock: Redlock, monkeypatch: pytest.MonkeyPatch, names: tuple[str, ...], *, fair: bool
) -> None:
    """Two programs may propose the same microsecond, one after the other."""
    async with redlock.lock(*names, fencing=True) as lease:
        token = lease.fencing_token
    monkeypatch.setattr(Clocks, "new_time", lambda *_: token)
    for later in range(1, 4):
        async with redlock.lock(*names, fencing=True, fair=fair) as lease:
            assert lease.fencing_token == token + later


async def test_grants_one_after_the_other_need_one_round(
    redlock: Redlock, masters: list[FakeMaster]
) -> None:
    """The later masters are asked for the counter of the first ones, not for a new time."""
    for number, master in enumerate(masters):
        master.set("r", "theirs", ttl=100 + 30 * number)
    async with redlock.lock("r", fencing=True, fair=True) as lease:
        assert lease.fencing_token == int(masters[0].keys[FENCE])
    assert ran(masters[0], RAISE) == 0


@pytest.mark.full
async def test_the_time_is_asked_for_now_and_then_and_awaited_once(
    redlock: Redlock, masters: list[FakeMaster]
) -> None:
    async def took() -> float:
        began = now()
        async with redlock.lock("r", fencing=True):
            return now() - began

    def asked() -> int:
        return sum(command == [b"TIME"] for command in masters[0].commands)

    assert TIME == b"*1\r\n$4\r\nTIME\r\n"
    assert await took() == pytest.approx(0.002)
    assert await took() == pytest.approx(0.001)
    assert asked() == 1
    for number, pause in ((2, 31), (3, 3600)):
        await asyncio.sleep(pause)
        assert await took() == pytest.approx(0.001)
        assert asked() == number
    for _ in range(600):
        await took()
        await asyncio.sleep(1)
    assert 3 + 20 <= asked() <= 3 + 30
    for master in masters:
        master.clock_offset = 0.5
    await asyncio.sleep(31)
    for ahead in (0, 500_000):  # the second uses the times from the replies after the first
        async with redlock.lock("r", fencing=True) as lease:
            expected = masters[0]._clock() - 500_000 + ahead
            assert lease.fencing_token == pytest.approx(expected, abs=5_000)


@pytest.mark.parametrize(
    ("kind", "requests"),
    [({}, 0), ({"fencing": True}, 1), ({"fair": True, "fencing": True}, 1)],
    ids=["plain", "fenced", "fair"],
)
async def test_a_single_try_awaits_the_first_time_that_its_kind_of_lock_needs(
    redlock: Redlock, masters: list[FakeMaster], kind: kit.Kind, requests: int
) -> None:
    """Otherwise its token and its place would be by the clock of this program."""
    for master in masters:
        master.clock_offset = 0.5
    for first, asked, pause in ((True, 1, 0), (False, 1, 31), (False, 2, 0)):
        began = now()
        lease = await redlock.lock("r", wait=0, **kind).try_acquire()
        assert lease is not None
        assert now() - began == pytest.approx((1 + first * requests) * LATENCY)
        if "fencing" in kind:
            assert lease.fencing_token == pytest.approx(masters[0]._clock(), abs=5_000)
        await lease.release()
        assert masters[0].commands.count([b"TIME"]) == asked * requests
        await asyncio.sleep(pause)


@pytest.mark.promise("S6")
@FAIR
async def test_a_request_for_the_time_ends_with_the_wait(
    masters: list[FakeMaster], *, fair: bool
) -> None:
    async with Redlock(masters, master_timeout=200) as redlock:
        async with redlock.lock("s"):
            pass
        hang(masters[:3])
        began = now()
        with pytest.raises(RedlockError):
            await redlock.lock("r", wait=20, fencing=True, fair=fair).acquire()
        # The request for the time and the attempt share 50 ms, the least timeout of a master.
        assert now() - began == pytest.approx(0.05, abs=0.003)


async def test_a_lease_keeps_its_token(redlock: Redlock, masters: list[FakeMaster]) -> None:
    async with redlock.lock("r", ttl=1000, fencing=True) as lease:
        token = lease.fencing_token
        await asyncio.sleep(5)
        await lease.extend(3000)
        assert lease.fencing_token == token
        assert {master.keys[FENCE] for master in masters} == {str(token)}
        extensions = runs_of(masters[0], EXTEND)
        assert len(extensions) > 10
        assert all(FENCE.encode() in command for command in extensions)
    assert lease.fencing_token == token


async def test_a_counter_that_is_used_is_kept(redlock: Redlock, masters: list[FakeMaster]) -> None:
    async with redlock.lock("r", ttl=60_000, fencing=True) as lease:
        assert all(KEPT - 10 < master.pttl(FENCE) <= KEPT for master in masters)
        for master in masters:  # as if the counter had not been used for a week, less a minute
            assert master._data.pexpire(FENCE.encode(), 60_000)
        await asyncio.sleep(65)
        assert lease.valid
        assert all(KEPT - 60_000 < master.pttl(FENCE) <= KEPT for master in masters)
    await asyncio.sleep(KEPT / 1000 - 61)
    assert all(FENCE in master.keys for master in masters)
    await asyncio.sleep(62)
    assert keys(masters) == [{}] * 5
    async with redlock.lock("r", fencing=True) as later:
        assert later.fencing_token > lease.fencing_token


async def test_a_raised_counter_is_kept_as_long(
    redlock: Redlock, masters: list[FakeMaster]
) -> None:
    async with redlock.lock("r", fencing=True):
        pass
    count_up(masters[0], 10_000_000)
    await asyncio.sleep(100)
    masters[0].set(FENCE, str(10**15 * 2))
    async with redlock.lock("r", fencing=True):
        await asyncio.sleep(0.01)
        assert all(KEPT - 20 < master.pttl(FENCE) <= KEPT for master in masters)
    async with redlock.lock("r", fencing=True, fair=True):
        assert all(KEPT - 20 < master.pttl(FENCE) <= KEPT for master in masters)


@FAIR
async def test_each_resource_has_its_own_counter(
    redlock: Redlock, masters: list[FakeMaster], *, fair: bool
) -> None:
    async with redlock.lock("r", fencing=True, fair=fair):
        pass
    for master in masters:
        count_up(master, 10**12)
    async with redlock.lock("r2", fencing=True, fair=fair) as lease:
        assert lease.fencing_token < int(masters[0].keys[FENCE])
        assert masters[0].keys[fence("r2")] == str(lease.fencing_token)


@FAIR
async def test_locks_have_a_token_by_their_own_option_or_the_managers(
    redlock: Redlock, masters: list[FakeMaster], *, fair: bool
) -> None:
    async with redlock.lock("r", fair=fair) as lease:
        with pytest.raises(RedlockError, match="fencing=True"):
            _ = lease.fencing_token
        assert all(FENCE not in master.keys for master in masters)
    async with Redlock(masters, fencing=True) as fencing:
        async with fencing.lock("r", fair=fair, fencing=False) as lease:
            with pytest.raises(RedlockError):
                _ = lease.fencing_token
        tried = await fencing.lock("r", fair=fair).try_acquire()
        assert tried is not None
        async with tried as lease:
            assert lease.fencing_token > 0


@pytest.mark.parametrize("wrong", [1, "yes", b""])
async def test_fencing_must_be_a_bool(masters: list[FakeMaster], wrong: bool) -> None:
    with pytest.raises(TypeError, match="fencing must be a bool"):
        Redlock(masters, fencing=wrong)
    with pytest.raises(TypeError, match="fencing must be a bool"):
        Redlock(masters).lock("r", fencing=wrong)
    with pytest.raises(TypeError, match="fencing must be a bool"):
        Redlock(masters, fencing=None)  # type: ignore[arg-type]


async def test_a_token_belongs_to_the_grants_that_agreed_on_it() -> None:
    """A waiter stalls until its grants have expired and another client has had the lock."""
    masters = [FakeMaster(f"m{i}", latency=0.02) for i in range(3)]
    running = loop()
    async with Redlock(masters) as redlock:
        async with redlock.lock("r", fencing=True) as lease:
            first = lease.fencing_token
        for master, ahead in zip(masters, (0, 1_000, 2_000), strict=True):
            master.set(FENCE, f"{first + 1_000_000 + ahead:016}")  # the counters have to be raised
        theirs = first + 900_000_000

        def stall() -> None:
            running.stall(5)
            for master in masters:  # the other client got the lock, with a higher token
                master.set(FENCE, f"{theirs:016}")

        running.call_later(0.035, stall)  # the replies to RAISE are on their way
        lock = redlock.lock("r", ttl=200, fair=True, fencing=True, on_lost="flag")
        async with lock as lease:
            assert ran(masters[0], RAISE) > 0
            assert lease.fencing_token > theirs
