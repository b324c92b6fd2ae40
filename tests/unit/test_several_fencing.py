"""One fencing token for several resources, in virtual time."""

import asyncio
import random

import pytest

from redlock_aio import LockLostError, LossCause, Redlock
from redlock_aio._protocol.scripts import ACQUIRE_ALL, ENQUEUE, RAISE
from redlock_aio.testing import FakeMaster

from .kit import LATENCY, before, count_up, fence, kill, locks, now, ran

pytestmark = pytest.mark.promise("S7")
FAIR = pytest.mark.parametrize("fair", [False, True])


def counters(masters: list[FakeMaster], name: str) -> list[int]:
    return [int(master.keys.get(fence(name), "0")) for master in masters]


@pytest.mark.full
@pytest.mark.seeds(1, full=6)
async def test_tokens_rise_for_each_resource_in_every_mix(
    redlock: Redlock, other: Redlock, masters: list[FakeMaster], seed: int
) -> None:
    chance = random.Random(seed)
    tokens: dict[str, list[int]] = {name: [] for name in "abc"}
    for number, master in enumerate(masters):
        master.clock_offset = number * 0.03
        master.latency = 0.001 * (1 + number)

    async def work(manager: Redlock) -> None:
        for _ in range(15):
            names = chance.sample("abc", chance.randint(1, 3))
            fair = chance.random() < 0.4
            async with manager.lock(*names, fair=fair, fencing=True, ttl=500) as lease:
                for name in names:
                    tokens[name].append(lease.fencing_token)
                await asyncio.sleep(chance.random() * 0.02)

    async with asyncio.timeout(60):
        await asyncio.gather(*(work(manager) for manager in (redlock, other) * 3))
    assert all(given == sorted(set(given)) for given in tokens.values())
    assert sum(map(len, tokens.values())) > 90


@FAIR
async def test_a_token_is_higher_than_all_earlier_ones_of_each_resource(
    redlock: Redlock, masters: list[FakeMaster], *, fair: bool
) -> None:
    async with redlock.lock("a", fencing=True) as lease:
        pass
    for master in masters:
        count_up(master, by=3_000_000, name="a")
    began = now()
    async with redlock.lock("b", "a", fair=fair, fencing=True) as both:
        assert both.fencing_token == lease.fencing_token + 3_000_001
        await asyncio.sleep(LATENCY)
        assert counters(masters, "a") == counters(masters, "b") == [both.fencing_token] * 5
    assert now() - began == pytest.approx(3 * LATENCY)  # no second round
    for name in "ab":
        async with redlock.lock(name, fencing=True) as later:
            assert later.fencing_token > both.fencing_token


@FAIR
async def test_counters_that_differ_are_raised_to_the_highest_of_all(
    redlock: Redlock, masters: list[FakeMaster], *, fair: bool
) -> None:
    async with redlock.lock("a", fencing=True), redlock.lock("b", fencing=True):
        await asyncio.sleep(LATENCY)
    for number, master in enumerate(masters):
        count_up(master, by=5_000_000 * number, name="ab"[number % 2])
    async with redlock.lock("a", "b", fair=fair, fencing=True) as lease:
        await asyncio.sleep(0.01)
        own = lease.fencing_token
        for name in "ab":
            assert sum(counter == own for counter in counters(masters, name)) >= 3
        assert max(ran(master, RAISE) for master in masters) == 1
        await lease.extend()
        assert [vote.answer.name for vote in lease.votes].count("GRANTED") >= 3


@pytest.mark.parametrize("script", [ACQUIRE_ALL, RAISE])
async def test_a_key_that_is_lost_between_two_rounds_is_no_grant(
    redlock: Redlock, masters: list[FakeMaster], script: object
) -> None:
    async with redlock.lock("a", "b", fencing=True):
        pass
    for number, master in enumerate(masters):
        count_up(master, by=5_000_000 * number, name="a")

        def intercept(master: FakeMaster = master) -> None:
            master.set("b", "theirs", ttl=50)

        before(master, script, intercept)  # type: ignore[arg-type]
    assert await redlock.lock("a", "b", fencing=True).try_acquire() is None
    await asyncio.sleep(0.06)
    assert not locks(masters)


@FAIR
@pytest.mark.parametrize("name", "ab")
async def test_a_counter_beyond_the_token_is_a_loss(
    redlock: Redlock, masters: list[FakeMaster], name: str, *, fair: bool
) -> None:
    """It is one although all keys have the holder's value: another client had them in between."""
    with pytest.raises(LockLostError) as caught:
        async with redlock.lock("a", "b", fair=fair, fencing=True, ttl=900):
            await asyncio.sleep(0.01)
            count_up(masters[0], name=name)
            await asyncio.sleep(1)  # on a minority it is no loss
            for master in masters[:3]:
                count_up(master, name=name)
            await asyncio.sleep(1)
    assert LossCause.OVERTAKEN.text in str(caught.value)


@pytest.mark.promise("S6")
@FAIR
@pytest.mark.parametrize("gone", ["", "a", "ab"])
async def test_masters_whose_counters_others_have_raised_count_after_the_next_extension(
    redlock: Redlock, masters: list[FakeMaster], gone: str, *, fair: bool
) -> None:
    """After that two other masters may fail."""
    async with redlock.lock("a", "b", fair=fair, fencing=True, auto_extend=False) as lease:
        await asyncio.sleep(0.01)
        count_up(masters[0], name="a")
        count_up(masters[1], 5, name="b")
        for master in masters[:2]:
            for name in gone:
                master.delete(name)
        await lease.extend()
        await asyncio.sleep(0.01)
        kill(masters[3:])
        await lease.extend()
        assert all(master.keys[name] == lease.token for master in masters[:3] for name in "ab")


async def test_an_extension_raises_and_keeps_the_counters_of_all(
    redlock: Redlock, masters: list[FakeMaster]
) -> None:
    async with redlock.lock("a", "b", fencing=True) as lease:
        await asyncio.sleep(0.01)
        masters[0].delete(fence("a"))
        masters[1].set(fence("b"), "7", ttl=9)
        await lease.extend()
        await asyncio.sleep(0.01)
        for master in masters:
            assert [int(master.keys[fence(name)]) for name in "ab"] == [lease.fencing_token] * 2
            assert all(master.pttl(fence(name)) > 6 * 24 * 3_600_000 for name in "ab")


async def test_a_counter_that_is_no_number_is_a_vote_against(
    redlock: Redlock, masters: list[FakeMaster]
) -> None:
    for fair in (False, True):
        for master in masters[:2]:
            master.set(fence("b"), "junk")
        async with redlock.lock("a", "b", fencing=True, fair=fair) as lease:
            await asyncio.sleep(0.01)
            assert not locks(masters[:2]) or fair
            assert lease.fencing_token > 0
        await asyncio.sleep(0.01)
        assert not locks(masters)
    assert ran(masters[0], ENQUEUE) > 0
