"""Fencing tokens: what the counters amount to, and that tokens rise from holder to holder."""

import asyncio
from collections.abc import AsyncIterator

import pytest
from hypothesis import given, strategies as st

from redlock_aio import Redlock, RedlockError
from redlock_aio._rules import fencing
from redlock_aio._rules.protocol import ACQUIRE, RAISE
from redlock_aio.testing import FakeMaster, VirtualTimeLoop

pytestmark = pytest.mark.promise("S7")

FENCE = "redlock_aio:fence:{r}"


@pytest.fixture
async def other(masters: list[FakeMaster]) -> AsyncIterator[Redlock]:
    async with Redlock(masters) as other:
        yield other


def ran(master: FakeMaster, script: bytes) -> int:
    """Return how often *master* was asked to run a script."""
    return sum(script in command for command in master.commands)


@given(st.lists(st.integers(1, 4), min_size=1, max_size=7), st.integers(1, 4))
def test_counters_agree_if_enough_say_exactly_the_highest(counters: list[int], needed: int) -> None:
    token = fencing.agreed(counters, needed)
    highest = max(counters)
    assert token == (highest if sum(c == highest for c in counters) >= needed else 0)


async def test_tokens_rise_from_holder_to_holder_in_one_round_trip(
    redlock: Redlock, other: Redlock, masters: list[FakeMaster]
) -> None:
    last = 0
    for manager in (redlock, other, other, redlock):
        async with manager.lock("r", fencing=True) as lease:
            assert lease.fencing_token > last
            last = lease.fencing_token
    assert [ran(master, ACQUIRE.sha) for master in masters] == [4] * 5
    assert [ran(master, RAISE.sha) for master in masters] == [0] * 5


async def test_counters_that_differ_are_made_to_agree(
    redlock: Redlock, masters: list[FakeMaster]
) -> None:
    """On all masters, so that none of them has to be left out when the lease is extended."""
    async with redlock.lock("r", fencing=True) as lease:
        ahead = lease.fencing_token + 60_000_000
    masters[0].set(FENCE, str(ahead))
    async with redlock.lock("r", fencing=True) as lease:
        assert lease.fencing_token == ahead + 1
        await asyncio.sleep(0.01)
        assert {master.keys[FENCE] for master in masters} == {str(ahead + 1)}
        await lease.extend()
    assert [ran(master, RAISE.sha) for master in masters] == [1] * 5


async def test_a_lock_without_fencing_has_no_token(redlock: Redlock) -> None:
    async with redlock.lock("r") as lease:
        with pytest.raises(RedlockError, match="fencing=True"):
            _ = lease.fencing_token


async def test_a_token_belongs_to_the_grants_that_it_was_agreed_on() -> None:
    """A waiter stands still until they have run out, and another one has had the lock."""
    masters = [FakeMaster(f"m{i}", latency=0.02) for i in range(3)]
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualTimeLoop)
    async with Redlock(masters) as redlock:
        async with redlock.lock("r", fencing=True) as lease:
            first = lease.fencing_token
        for master, ahead in zip(masters, (0, 1_000, 2_000), strict=True):
            master.set(FENCE, f"{first + 1_000_000 + ahead:016}")  # they have to be raised
        theirs = first + 900_000_000

        def stand_still() -> None:
            loop.stall(5)
            for master in masters:  # the other one got it, with a higher token
                master.set(FENCE, f"{theirs:016}")

        loop.call_later(0.035, stand_still)  # the answers to the raising are on their way
        lock = redlock.lock("r", ttl=200, fair=True, fencing=True, on_lost="flag")
        async with lock as lease:
            assert ran(masters[0], RAISE.sha) > 0
            assert lease.fencing_token > theirs
