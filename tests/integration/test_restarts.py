"""
Masters that restart, empty or from a disk, or are flushed: no lock is granted under a live lease.

The unit tests check exactly which master has a vote at which time. Here real servers restart,
with real uptimes, run ids, disks and flushes.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterator, Sequence
from time import monotonic

import pytest
import redis

from redlock_aio import Answer, LockNotAcquiredError, QuorumUnavailableError, Redlock
from redlock_aio.testing import EmbeddedMaster
from tests.unit import kit

from .forgetful import (
    FLUSHED,
    MARKED,
    MAX_TTL,
    QUARANTINE,
    RESTARTED,
    UNPROVEN,
    check_log,
    granted_after,
    guarded,
    hold,
    marked,
    marker,
    restart_all,
    run_id,
)
from .helpers import MARKER, TIMEOUT, call, connected, until, up, urls, values
from .proxy import proxied
from .servers import process

pytestmark = [pytest.mark.integration, pytest.mark.promise("S1")]

EARLY = 1.05
"""Seconds by which a master votes earlier by its uptime, which is whole seconds."""

New = Callable[[int], list[EmbeddedMaster]]


@pytest.fixture
def new(kind: str) -> Iterator[New]:
    """Return a function that starts new masters; stop them after the test."""
    with contextlib.ExitStack() as stack:
        yield lambda number: [stack.enter_context(process(kind)) for _ in range(number)]


@pytest.fixture(autouse=True)
def everything_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "redlock_aio")


@pytest.mark.parametrize("managers", [1, 3])
async def test_a_new_set_is_usable_at_once(new: New, managers: int) -> None:
    masters = new(5)

    async def first_use(number: int) -> None:
        redlock = Redlock(urls(masters), master_timeout=TIMEOUT)
        async with redlock, redlock.lock(f"r{number}", wait=0):
            pass

    await asyncio.gather(*map(first_use, range(managers)))
    assert marked(masters, rejoining=False)


async def test_without_a_guard_there_is_no_marker(new: New) -> None:
    masters = new(3)
    async with connected(masters, restart_guard="off") as redlock, redlock.lock("r"):
        assert values(masters, MARKER) == [None] * 3


# Masters that come back with the data on their disks.


@pytest.mark.full
async def test_masters_that_come_back_with_what_was_saved_earlier_have_no_vote(
    new: New, caplog: pytest.LogCaptureFixture
) -> None:
    """
    Three of five restart, with data that was saved before the lock was acquired.

    No client that saw the restart is left: a newcomer decides by the marker and the uptime.
    """
    masters = new(5)
    async with proxied(urls(masters)) as ways, guarded(ways) as holder:
        save(masters)
        held = await hold(holder)
        for way in ways:
            way.stall()
        restarted = restore_from_disk(masters[:3])
        forget_other_names(masters)
        async with guarded(masters) as newcomer:
            assert marked(masters[:3], rejoining=True)
            assert marked(masters[3:], rejoining=False)
            granted = await granted_after(newcomer, held)
        assert granted.at - restarted >= QUARANTINE - EARLY
        granted.check([0, 1, 2], RESTARTED)
        for way in ways:
            way.resume()
    check_log(caplog, masters[:3], RESTARTED)


def forget_other_names(masters: Sequence[EmbeddedMaster]) -> None:
    """
    Delete the list of the holder, which names the masters by their proxies.

    By its names, three of five servers are others after a restart, so the newcomer would wait
    until that list has run out. Usually both have the same names.
    """
    for master in masters:
        call(master, "DEL", "redlock_aio:masters:")


def save(masters: Sequence[EmbeddedMaster]) -> None:
    """Make *masters* save their data: markers, and no lock."""
    assert marked(masters, rejoining=False)
    for master in masters:
        call(master, "SAVE")


def restore_from_disk(masters: Sequence[EmbeddedMaster]) -> float:
    """Restart *masters* with the data on their disks; return when that began."""
    before = [marker(master) for master in masters]
    began = restart_all(masters)
    assert [marker(master) for master in masters] == before
    now = [run_id(master) for master in masters]
    assert all(found is not None and found.run_id not in now for found in before)
    assert values(masters, "r") == [None] * len(masters)
    return began


# Masters that come back empty.


async def test_masters_that_come_back_empty_have_no_vote(
    new: New, caplog: pytest.LogCaptureFixture
) -> None:
    """
    Three of five restart empty; a newcomer is the first client to see it.

    The markers of the other two prove that this set of masters is not new.
    """
    masters = new(5)
    async with proxied(urls(masters)) as ways, guarded(ways) as holder:
        held = await hold(holder)
        for way in ways:
            way.stall()
        restarted = restart_all(masters[:3])
        assert [marker(master) for master in masters[:3]] == [None] * 3
        forget_other_names(masters)
        async with guarded(masters) as newcomer:
            granted = await granted_after(newcomer, held)
        assert granted.at - restarted >= QUARANTINE - EARLY
        granted.check([0, 1, 2], UNPROVEN, RESTARTED)
        for way in ways:
            way.resume()
    check_log(caplog, masters[:3], RESTARTED)


# Masters that are flushed.


@pytest.mark.full
async def test_a_majority_that_is_flushed_has_no_vote(
    new: New, caplog: pytest.LogCaptureFixture
) -> None:
    """A witness sees the flush, a newcomer finds the marks. The flush does not end the lease."""
    masters = new(5)
    async with guarded(masters) as holder, guarded(masters) as witness:
        held = await hold(holder)
        flushed = monotonic()
        for master in masters[:3]:
            call(master, "FLUSHALL")
        await until(lambda: marked(masters[:3], rejoining=True))
        async with guarded(masters) as newcomer, asyncio.TaskGroup() as tasks:
            later = tasks.create_task(granted_after(newcomer, held))
            granted = await granted_after(witness, held)
        assert granted.at - flushed >= QUARANTINE
        assert later.result().at - flushed >= QUARANTINE
        # The holder may have been the first to see the flush, and to mark the masters.
        granted.check([0, 1, 2], FLUSHED, MARKED, RESTARTED)
    check_log(caplog, masters[:3], FLUSHED, MARKED, RESTARTED)


async def test_the_first_program_to_see_a_flush_reports_a_flush(
    new: New, caplog: pytest.LogCaptureFixture
) -> None:
    """It keeps this reason after it has marked the master; the mark has no reason."""
    [master] = new(1)
    async with guarded([master]) as redlock:
        call(master, "FLUSHALL")
        await until(lambda: any("quarantined" in line.getMessage() for line in caplog.records))
        with pytest.raises(QuorumUnavailableError, match=FLUSHED):
            await redlock.lock("r", wait=0, ttl=MAX_TTL).acquire()
    assert FLUSHED in caplog.text


@pytest.mark.full
async def test_a_flush_of_another_database_takes_no_vote(
    new: New, caplog: pytest.LogCaptureFixture
) -> None:
    """Connections stay, the lease stays valid, and other clients are refused."""
    masters = new(5)
    async with (
        guarded(masters) as holder,
        guarded(masters) as other,
        holder.lock("r", ttl=MAX_TTL) as lease,
    ):
        links = [*kit.session(holder).links, *kit.session(other).links]
        before = [link._connection for link in links]
        ends = monotonic() + 2
        while monotonic() < ends:
            for master in masters:
                with contextlib.closing(redis.Redis.from_url(f"{master.url}/1")) as elsewhere:
                    elsewhere.set("x", "y")
                    elsewhere.flushdb()
            await lease.extend()
        assert [link._connection for link in links] == before
        assert up(other) == 5
        assert all(link.votes for link in links)
        with pytest.raises(LockNotAcquiredError) as caught:
            await other.lock("r", wait=0, ttl=MAX_TTL).acquire()
        answers = {vote.answer for vote in caught.value.votes}
        assert answers <= {Answer.HELD, Answer.TIMED_OUT}
        assert lease.valid
        assert values(masters, "r") == [lease.token] * 5
        assert marked(masters, rejoining=False)
    assert not caplog.records
