"""Masters whose clocks are set while they hold a lock."""

import asyncio
import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from redlock_aio import Answer

from .clocked import ClockedMaster, compiled
from .forgetful import MAX_TTL, guarded, hold, marked
from .helpers import Stopwatch, gone, pttls, replied, until, values

pytestmark = pytest.mark.integration

NOTIFIED_WITHIN = 8_000
"""Milliseconds in which a holder is notified on a busy machine; else it takes 9,000 or more."""

HOUR = 3600.0


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the path of the library that is preloaded into servers."""
    return compiled(tmp_path_factory.mktemp("clock"))


@pytest.fixture
def masters(kind: str, library: Path) -> Iterator[list[ClockedMaster]]:
    """Run five new masters with correct clocks."""
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(ClockedMaster(kind, library)) for _ in range(5)]


@pytest.mark.promise("S4")
async def test_a_clock_that_is_set_forward_ends_a_key_early(masters: list[ClockedMaster]) -> None:
    """On a minority the key is restored. On a majority the holder is notified of the loss."""
    async with guarded(masters, max_ttl=60_000) as redlock:
        async with redlock.lock("r", ttl=30_000, auto_extend=False, on_lost="flag") as lease:
            token = lease.token
            await until(lambda: lease._hold.checked_at > 0)
            await replied(redlock)  # now the masters track the key
            for master in masters[:2]:
                master.set_clock(60)
            await until(lambda: values(masters, "r") == [None] * 2 + [token] * 3)
            await asyncio.sleep(0.3)
            assert lease.valid
            await lease.extend()
            await until(lambda: values(masters, "r") == [token] * 5)
            assert all(20_000 < left <= 30_000 for left in pttls(masters, "r"))
            await lease.extend()
            await replied(redlock)  # a late extension restores the key
            for master in masters[2:4]:
                master.set_clock(60)
            await until(lambda: values(masters, "r")[2:4] == [None] * 2)
            await asyncio.sleep(0.3)
            assert lease.valid, "those that were set again keep it"
            watch = Stopwatch()
            masters[4].set_clock(60)
            await asyncio.wait_for(lease.lost.wait(), 20)
            assert watch.ms < NOTIFIED_WITHIN
            assert not lease.valid
        assert all(master.votes for master in redlock.statistics().masters)
        await until(lambda: gone(masters, "r"))
        async with redlock.lock("r", wait=0):
            pass


@pytest.mark.promise("S3")
@pytest.mark.full
async def test_a_clock_that_is_set_back_leaves_no_key(masters: list[ClockedMaster]) -> None:
    """The key would live for an hour more; the release deletes it, and so does the loss."""
    wrong = masters[:3]
    async with guarded(masters) as redlock, guarded(masters) as other:
        lease = await redlock.lock("r", ttl=MAX_TTL).acquire()
        await replied(redlock)
        for master in wrong:
            master.set_clock(-HOUR)
        assert all(left > 3_000_000 for left in pttls(wrong, "r"))
        await lease.extend()
        assert lease.valid
        await until(lambda: all(0 < left <= MAX_TTL for left in pttls(masters, "r")))
        await lease.release()
        await until(lambda: gone(masters, "r"))
        for master in wrong:
            master.set_clock(0)
        held = await hold(redlock)
        await replied(redlock)
        for master in wrong:
            master.set_clock(-HOUR)
        await held.is_valid_to_its_end()
        await until(lambda: gone(masters, "r"))
        async with other.lock("r", ttl=MAX_TTL, wait=0) as lease:
            await until(lambda: {vote.answer for vote in lease.votes} == {Answer.GRANTED})
        assert marked(masters, rejoining=False)
