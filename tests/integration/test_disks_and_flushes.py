"""Masters that come back with an old disk or with none, or that are flushed, under a live lease."""

import asyncio
import contextlib
import functools
import logging
from collections.abc import Callable, Iterator, Sequence
from time import monotonic

import pytest
import redis

from redlock_aio import Answer, LockNotAcquiredError, QuorumUnavailableError
from redlock_aio.testing import EmbeddedMaster

from .forgetful import (
    FLUSHED,
    LASTS,
    MARKED,
    MAX_TTL,
    RESTARTED,
    UNPROVEN,
    check_log,
    guarded,
    hold,
    kept_out,
    marked,
    marker,
    restart_all,
    run_id,
)
from .helpers import call, until, urls, values
from .proxy import proxied
from .servers import process

pytestmark = [pytest.mark.integration, pytest.mark.promise("S1")]

EARLY = 1.05
"""Seconds by which a master votes earlier by its uptime, which is whole seconds."""

New = Callable[[int], list[EmbeddedMaster]]


@pytest.fixture
def new(kind: str) -> Iterator[New]:
    """Start so many masters that nobody has used."""
    with contextlib.ExitStack() as stack:
        yield lambda number: [stack.enter_context(process(kind)) for _ in range(number)]


@pytest.fixture(autouse=True)
def everything_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "redlock_aio")


# What a disk brings back.


@pytest.mark.full
async def test_masters_that_come_back_with_what_was_saved_earlier_have_no_vote(
    new: New, caplog: pytest.LogCaptureFixture
) -> None:
    """A majority of five; the lock is younger than their disks. For a witness and a newcomer."""
    witnessed, unseen = new(5), new(5)
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(a_witness_is_kept_out_of_restored_masters(witnessed))
        tasks.create_task(a_newcomer_is_kept_out_of_restored_masters(unseen))
    for masters in (witnessed, unseen):
        check_log(caplog, masters[:3], RESTARTED)


async def a_witness_is_kept_out_of_restored_masters(masters: list[EmbeddedMaster]) -> None:
    """It counts from when it sees another server where one was."""
    async with guarded(masters) as holder, guarded(masters) as witness:
        save(masters)
        held = await hold(holder)
        restarted = restore_from_disk(masters[:3])
        held.check()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(held.is_believed_to_its_end())
            kept = await kept_out(witness, held)
        assert kept.at - restarted >= LASTS
        kept.check([0, 1, 2], RESTARTED)


async def a_newcomer_is_kept_out_of_restored_masters(masters: list[EmbeddedMaster]) -> None:
    """It goes by the marker from the disk, and by the uptime: nobody else has been there."""
    async with proxied(urls(masters)) as ways, guarded(ways) as holder:
        save(masters)
        held = await hold(holder)
        for way in ways:
            way.stall()
        restarted = restore_from_disk(masters[:3])
        held.check()
        async with guarded(masters) as newcomer, asyncio.TaskGroup() as tasks:
            assert marked(masters[:3], rejoining=True)
            assert marked(masters[3:], rejoining=False)
            tasks.create_task(held.is_believed_to_its_end())
            kept = await kept_out(newcomer, held)
        assert kept.at - restarted >= LASTS - EARLY
        kept.check([0, 1, 2], RESTARTED)
        for way in ways:
            way.flow()


def save(masters: Sequence[EmbeddedMaster]) -> None:
    """Write to disk what is there: markers, and no lock."""
    assert marked(masters, rejoining=False)
    for master in masters:
        call(master, "SAVE")


def restore_from_disk(masters: Sequence[EmbeddedMaster]) -> float:
    """Restart *masters* with what they have on their disks; return when that began."""
    before = [marker(master) for master in masters]
    began = restart_all(masters)
    assert [marker(master) for master in masters] == before
    now = [run_id(master) for master in masters]
    assert all(found is not None and found.run_id not in now for found in before)
    assert values(masters, "r") == [None] * len(masters)
    return began


# What comes back empty.


async def test_masters_that_come_back_empty_have_no_vote(
    new: New, caplog: pytest.LogCaptureFixture
) -> None:
    """A majority, all at once, and all one after the other, each time with a newcomer."""
    some, at_once, in_turn = new(5), new(3), new(3)
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(a_majority_comes_back_empty(some))
        tasks.create_task(all_come_back_empty_at_once(at_once))
        tasks.create_task(all_come_back_empty_in_turn(in_turn))
    for masters in (some[:3], at_once, in_turn):
        check_log(caplog, masters, RESTARTED)


async def a_majority_comes_back_empty(masters: list[EmbeddedMaster]) -> None:
    """The newcomer is the first to see it: that two are members tells that this is no new set."""
    async with proxied(urls(masters)) as ways, guarded(ways) as holder:
        held = await hold(holder)
        for way in ways:
            way.stall()
        restarted = restart_all(masters[:3])
        held.check()
        assert [marker(master) for master in masters[:3]] == [None] * 3
        async with guarded(masters) as newcomer, asyncio.TaskGroup() as tasks:
            tasks.create_task(held.is_believed_to_its_end())
            kept = await kept_out(newcomer, held)
        assert kept.at - restarted >= LASTS - EARLY
        kept.check([0, 1, 2], UNPROVEN, RESTARTED)
        for way in ways:
            way.flow()


async def all_come_back_empty_at_once(masters: list[EmbeddedMaster]) -> None:
    """The holder marks them, before anybody else can take them for a new set."""
    async with guarded(masters) as holder:
        held = await hold(holder)
        restarted = restart_all(masters)
        await until(lambda: marked(masters, rejoining=True))
        held.check()
        async with guarded(masters) as newcomer, asyncio.TaskGroup() as tasks:
            tasks.create_task(held.is_believed_to_its_end())
            kept = await kept_out(newcomer, held)
        assert kept.at - restarted >= LASTS
        kept.check([0, 1, 2], RESTARTED)


async def all_come_back_empty_in_turn(masters: list[EmbeddedMaster]) -> None:
    """Whoever has seen and marked it is gone when the newcomer comes, and the holder is cut off."""
    async with proxied(urls(masters)) as ways, guarded(ways) as holder:
        restarted = monotonic()
        async with guarded(masters) as witness:
            held = await hold(holder)
            for way in ways:
                way.stall()
            for number, master in enumerate(masters, 1):
                master.restart()
                await until(functools.partial(marked, masters[:number], rejoining=True))
            assert not any(master.votes for master in witness.statistics().masters)
        held.check()
        async with guarded(masters) as newcomer, asyncio.TaskGroup() as tasks:
            tasks.create_task(held.is_believed_to_its_end())
            kept = await kept_out(newcomer, held)
        assert kept.at - restarted >= LASTS
        kept.check([0, 1, 2], RESTARTED)
        for way in ways:
            way.flow()


# What is flushed.


async def test_a_majority_that_is_flushed_has_no_vote(
    new: New, caplog: pytest.LogCaptureFixture
) -> None:
    """Who was there saw it; who comes later finds that they are marked."""
    masters = new(5)
    async with guarded(masters) as holder, guarded(masters) as witness:
        held = await hold(holder)
        flushed = monotonic()
        for master in masters[:3]:
            call(master, "FLUSHALL")
        await until(lambda: marked(masters[:3], rejoining=True))
        held.check()
        async with guarded(masters) as newcomer, asyncio.TaskGroup() as tasks:
            tasks.create_task(held.is_believed_to_its_end())
            later = tasks.create_task(kept_out(newcomer, held))
            kept = await kept_out(witness, held)
        assert kept.at - flushed >= LASTS
        assert later.result().at - flushed >= LASTS
        # The holder may have been the first to see it, and to mark them.
        kept.check([0, 1, 2], FLUSHED, MARKED, RESTARTED)
    check_log(caplog, masters[:3], FLUSHED, MARKED, RESTARTED)


async def test_a_flush_of_another_database_takes_no_vote(
    new: New, caplog: pytest.LogCaptureFixture
) -> None:
    """The lease is extended as ever, and others are told that it is held."""
    masters = new(5)
    async with (
        guarded(masters) as holder,
        guarded(masters) as other,
        holder.lock("r", ttl=MAX_TTL) as lease,
    ):
        for _ in range(3):
            for master in masters:
                with contextlib.closing(redis.Redis.from_url(f"{master.url}/1")) as elsewhere:
                    elsewhere.set("x", "y")
                    elsewhere.flushdb()
            await lease.extend()
            with pytest.raises(LockNotAcquiredError) as caught:
                await other.lock("r", wait=0, ttl=MAX_TTL).acquire()
            answers = {vote.answer for vote in caught.value.votes}
            assert Answer.GRANTED not in answers
            assert Answer.QUARANTINED not in answers
        await until(
            lambda: all(
                m.votes for m in (*holder._opener.session().links, *other._opener.session().links)
            )
        )
        with pytest.raises(LockNotAcquiredError) as caught:
            await other.lock("r", wait=0, ttl=MAX_TTL).acquire()
        await until(lambda: {v.answer for v in caught.value.votes} == {Answer.HELD})
        assert lease.valid
        assert values(masters, "r") == [lease.token] * 5
        assert marked(masters, rejoining=False)
    assert not caplog.records


async def test_the_first_to_see_a_flush_says_that_it_was_one(
    new: New, caplog: pytest.LogCaptureFixture
) -> None:
    """Though it has marked the master since, by which nobody can tell why."""
    [master] = new(1)
    async with guarded([master]) as redlock:
        call(master, "FLUSHALL")
        await until(lambda: any("quarantined" in line.getMessage() for line in caplog.records))
        with pytest.raises(QuorumUnavailableError, match=FLUSHED):
            await redlock.lock("r", wait=0, ttl=MAX_TTL).acquire()
    assert FLUSHED in caplog.text
