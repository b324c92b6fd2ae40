"""Servers whose clocks are set, while a lock is held there and right after a restart."""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from time import monotonic

import pytest

from redlock_aio import Answer, Lease, Redlock

from .clocked import ClockedMaster, compiled
from .forgetful import (
    ABSURD,
    LASTS,
    MARKED,
    MAX_TTL,
    RESTARTED,
    check_log,
    guarded,
    hold,
    kept_out,
    marked,
    marker,
)
from .helpers import Stopwatch, gone, heard, pttls, until, urls, values
from .proxy import proxied

pytestmark = pytest.mark.integration

SOON = 8_000
"""Ms in which a holder is told, on a busy machine; without being told it would be 9 000 or more."""

FENCE = "redlock_aio:fence:{r}"
HOUR = 3600.0
AGES = 40 * 365 * 24 * HOUR

New = Callable[[int], list[ClockedMaster]]


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What is preloaded into servers so that their clocks can be set."""
    return compiled(tmp_path_factory.mktemp("clock"))


@pytest.fixture
def new(kind: str, library: Path, tmp_path: Path) -> Iterator[New]:
    """Start so many masters that nobody has used, with clocks that are right."""
    with contextlib.ExitStack() as stack:

        def start(number: int) -> list[ClockedMaster]:
            there = len(list(tmp_path.iterdir()))
            folders = [tmp_path / str(there + i) for i in range(number)]
            return [stack.enter_context(ClockedMaster(kind, library, f)) for f in folders]

        yield start


@pytest.fixture(autouse=True)
def everything_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "redlock_aio")


# Right after a restart.


@pytest.mark.promise("S1")
@pytest.mark.full
async def test_a_clock_that_is_set_does_not_bring_a_vote_back(
    new: New, caplog: pytest.LogCaptureFixture
) -> None:
    """It makes an uptime long, or senseless."""
    older, senseless = new(5), new(5)
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(masters_that_look_old_are_kept_out(older))
        tasks.create_task(masters_that_make_no_sense_are_kept_out(senseless))
    check_log(caplog, older[:3], RESTARTED, MARKED)
    check_log(caplog, senseless[:3], ABSURD)


async def masters_that_look_old_are_kept_out(masters: list[ClockedMaster]) -> None:
    """By who saw the server that was there before, and by its mark for who did not."""
    async with guarded(masters) as holder, guarded(masters) as witness:
        held = await hold(holder)
        restarted = monotonic()
        for master in masters[:3]:
            master.restart_and_set_clock(60)
        assert all(master.uptime > 50 for master in masters[:3])
        assert [marker(master) for master in masters[:3]] == [None] * 3
        await until(lambda: marked(masters[:3], rejoining=True))
        held.check()
        async with guarded(masters) as newcomer, asyncio.TaskGroup() as tasks:
            tasks.create_task(held.is_believed_to_its_end())
            later = tasks.create_task(kept_out(newcomer, held))
            kept = await kept_out(witness, held)
        assert kept.at - restarted >= LASTS
        assert later.result().at - restarted >= LASTS
        # The holder may have been the first to see it, and to mark them.
        kept.check([0, 1, 2], RESTARTED, MARKED)


async def masters_that_make_no_sense_are_kept_out(masters: list[ClockedMaster]) -> None:
    """For all of the time from now on, by who has not been there before."""
    async with proxied(urls(masters)) as ways, guarded(ways) as holder:
        held = await hold(holder)
        for way in ways:
            way.stall()
        for master, ahead in zip(masters, (-HOUR, -HOUR, AGES), strict=False):
            master.restart_and_set_clock(ahead)
        assert [master.uptime < 0 for master in masters[:3]] == [True, True, False]
        held.check()
        met = monotonic()
        async with guarded(masters) as newcomer, asyncio.TaskGroup() as tasks:
            assert marked(masters[:3], rejoining=True)
            tasks.create_task(held.is_believed_to_its_end())
            kept = await kept_out(newcomer, held)
        assert kept.at - met >= LASTS
        kept.check([0, 1, 2], ABSURD)
        for way in ways:
            way.flow()


# While a lock is held.


async def watched(redlock: Redlock, lease: Lease) -> None:
    """Wait until the masters will tell of changes."""
    await until(lambda: lease._hold.checked_at > 0)
    await heard(redlock)


@pytest.mark.promise("S4")
async def test_a_clock_that_is_set_forward_ends_a_key_early(new: New) -> None:
    """On a minority that is nothing; it is set again. On a majority the holder is told at once."""
    masters = new(5)
    async with guarded(masters, max_ttl=60_000) as redlock:
        async with redlock.lock("r", ttl=30_000, auto_extend=False, on_lost="flag") as lease:
            token = lease.token
            await watched(redlock, lease)
            for master in masters[:2]:
                master.set_clock(60)
            await until(lambda: values(masters, "r") == [None] * 2 + [token] * 3)
            await asyncio.sleep(0.3)
            assert lease.valid
            await lease.extend()
            await until(lambda: values(masters, "r") == [token] * 5)
            assert all(20_000 < left <= 30_000 for left in pttls(masters, "r"))
            await lease.extend()
            await heard(redlock)  # an extension that comes late sets the key again
            for master in masters[2:4]:
                master.set_clock(60)
            await until(lambda: values(masters, "r")[2:4] == [None] * 2)
            await asyncio.sleep(0.3)
            assert lease.valid, "those that were set again keep it"
            watch = Stopwatch()
            masters[4].set_clock(60)
            await asyncio.wait_for(lease.lost.wait(), 20)
            assert watch.ms < SOON
            assert not lease.valid
        assert all(master.votes for master in redlock.statistics().masters)
        await until(lambda: gone(masters, "r"))
        async with redlock.lock("r", wait=0):
            pass


@pytest.mark.promise("S7")
async def test_fencing_tokens_rise_whatever_clocks_do(new: New) -> None:
    """A minority whose clock is far off does not vote, and says by how much."""
    masters = new(5)
    async with (
        guarded(masters, max_ttl=60_000, fencing=True) as first,
        guarded(masters, max_ttl=60_000, fencing=True) as second,
    ):
        lease = await first.lock("r", ttl=30_000, on_lost="flag").acquire()
        tokens = [lease.fencing_token]
        await watched(first, lease)
        for master in masters[:3]:
            master.set_clock(60)
        await asyncio.wait_for(lease.lost.wait(), SOON / 1000)
        await next_tokens(tokens, second, first, far_off=(3, 4), told="60.0 s behind")
        masters[0].set_clock(0)
        await next_tokens(tokens, second, first, far_off=(1, 2), told="60.0 s ahead of")
        for master in masters[:3]:
            master.set_clock(0)
        await next_tokens(tokens, second, first, far_off=(), told="")
        assert tokens == sorted(set(tokens))


async def next_tokens(
    tokens: list[int], *redlocks: Redlock, far_off: tuple[int, ...], told: str
) -> None:
    """Add those of the next holders, and check the votes of masters that are *far_off*."""
    for redlock in redlocks:
        async with redlock.lock("r", ttl=30_000, wait=20_000) as lease:
            tokens.append(lease.fencing_token)
            await heard(redlock)
            for number, vote in enumerate(lease.votes):
                if number in far_off:
                    said = (vote.answer, vote.detail)
                    assert said == (Answer.ERROR, f"its clock is {told} the others'")
                else:
                    assert vote.answer is Answer.GRANTED


@pytest.mark.promise("S3")
@pytest.mark.parametrize("number", [2, 3])
async def test_a_clock_that_is_set_back_leaves_no_key(new: New, number: int) -> None:
    """The key would live for an hour more: it is gone with the release, and with the loss."""
    masters = new(5)
    async with guarded(masters) as redlock, guarded(masters) as other:
        lease = await redlock.lock("r", ttl=MAX_TTL).acquire()
        await heard(redlock)
        for master in masters[:number]:
            master.set_clock(-HOUR)
        assert all(left > 3_000_000 for left in pttls(masters[:number], "r"))
        await lease.extend()
        assert lease.valid
        await until(lambda: all(0 < left <= MAX_TTL for left in pttls(masters, "r")))
        await lease.release()
        await until(lambda: gone(masters, "r"))
        for master in masters[:number]:
            master.set_clock(0)
        held = await hold(redlock)
        await heard(redlock)
        for master in masters[:number]:
            master.set_clock(-HOUR)
        await held.is_believed_to_its_end()
        await until(lambda: gone(masters, "r"))
        async with other.lock("r", ttl=MAX_TTL, wait=0) as lease:
            await until(lambda: {vote.answer for vote in lease.votes} == {Answer.GRANTED})
        assert marked(masters, rejoining=False)
