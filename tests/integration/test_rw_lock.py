"""Readers and writers on real servers: many processes, other clients, and failures."""

import asyncio
import contextlib
import random
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from redlock_aio import Answer, Lease, LockLostError, LockNotAcquiredError, LossCause, Redlock
from redlock_aio._rules.lock_value import SHARED

from .helpers import (
    AT_ONCE,
    RealMaster,
    Stopwatch,
    call,
    connected,
    listens,
    nothing_is_left,
    queued,
    until,
    values,
    waiting,
)
from .recipes import Place, Program, running

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("quick_unsubscribe")]

READS: dict[str, Any] = {"shared": True}
WRITES: dict[str, Any] = {"fair": True}
EXCLUSIVE = pytest.mark.parametrize("options", [{}, {"fencing": True}], ids=["plain", "fenced"])
"""The locks of programs that know nothing of readers."""

PATIENCE = 30_000

READER = """
import asyncio, os, sys
from redlock_aio import LockLostError, Redlock

async def main(ttl):
    masters = os.environ["REDLOCK_MASTERS"].split(",")
    async with Redlock(masters, master_timeout=1_500, restart_guard="off") as redlock:
        try:
            async with redlock.lock("doc", ttl=int(ttl), shared=True):
                print("reads", flush=True)
                await asyncio.sleep(60)
        except LockLostError as error:
            print("lost:", error.cause.name, flush=True)

asyncio.run(main(*sys.argv[1:]))
"""

RELEASE = """
import asyncio, os
from redlock_aio import Redlock

async def main():
    async with Redlock(os.environ["REDLOCK_MASTERS"].split(","), restart_guard="off") as redlock:
        print("released:", await redlock.force_release("doc"), flush=True)

asyncio.run(main())
"""


@pytest.fixture
async def third(masters: list[RealMaster]) -> AsyncIterator[Redlock]:
    """Open one more manager, as another program has it."""
    async with connected(masters) as redlock:
        yield redlock


@contextlib.asynccontextmanager
async def reader(at: Place, ttl: int) -> AsyncIterator[Program]:
    """Run a process that reads for a minute."""
    async with running("-P", "-c", READER, str(ttl), at=at) as program:
        await program.says("reads")
        yield program


async def readers(redlock: Redlock) -> int:
    """Return how many read on a majority."""
    return len((await redlock.inspect("doc")).readers)


async def refused(redlock: Redlock, **options: Any) -> LockNotAcquiredError:
    """Return the error of a holder that does not get the lock, and waits for a moment."""
    with pytest.raises(LockNotAcquiredError) as caught:
        await redlock.lock("doc", wait=200, **options).acquire()
    return caught.value


# A reader that stands still, and readers that come and go.


@pytest.mark.promise("S2")
async def test_a_reader_that_was_stopped_past_its_ttl_finds_its_lease_lost(
    redlock: Redlock, masters: list[RealMaster], tmp_path: Path
) -> None:
    async with reader(Place(masters, tmp_path), ttl=1_000) as stopped:
        stopped.send(signal.SIGSTOP)
        async with redlock.lock("doc", wait=PATIENCE, **WRITES) as writer:
            assert "lost" not in stopped.output
            stopped.send(signal.SIGCONT)
            await stopped.says("lost: ")
            assert await stopped.ends() == 0
            # Also on masters where the lock of the readers ended later than on a majority.
            await writer.extend()
            await until(lambda: values(masters, "doc") == [writer.token] * 5)
    await nothing_is_left(masters)


@pytest.mark.promise("S8")
async def test_a_writer_gets_in_among_readers_that_come_and_go(
    redlock: Redlock, other: Redlock, third: Redlock, masters: list[RealMaster]
) -> None:
    """At each moment somebody reads: a writer that waits for none of them would wait for ever."""
    shuffled, reads = random.Random(1), 0

    async def read_for_ever(manager: Redlock) -> None:
        nonlocal reads
        while True:
            async with manager.lock("doc", wait=PATIENCE, **READS):
                reads += 1
                await asyncio.sleep(shuffled.uniform(0.02, 0.2))

    async with asyncio.TaskGroup() as group:
        stream = [
            group.create_task(read_for_ever(manager))
            for manager in (redlock, other, third)
            for _ in range(10)
        ]
        await until(lambda: reads > 60)
        waits = []
        for _ in range(4):
            watch = Stopwatch()
            async with other.lock("doc", wait=PATIENCE, **WRITES):
                waits.append(watch.ms)
            seen = reads
            await until(lambda seen=seen: reads > seen + 30)  # type: ignore[misc]
        for task in stream:
            task.cancel()
    assert max(waits) < 4_000  # measured: 150 to 170 ms, on two busy cores
    await nothing_is_left(masters)


# Masters that fail while somebody reads.


def _share(master: RealMaster, *leases: Lease) -> bool:
    """Return whether a master has the shares of these readers."""
    tokens = set(call(master, "ZRANGE", "redlock_aio:shares:{doc}", 0, -1))
    return values([master], "doc") == [SHARED.decode()] and {it.token for it in leases} <= tokens


@pytest.mark.spread(0)
@pytest.mark.promise("S1")
@pytest.mark.parametrize("failure", ["restart", "flush", "hang"])
async def test_readers_outlast_the_failure_of_a_minority(
    redlock: Redlock, other: Redlock, third: Redlock, masters: list[RealMaster], failure: str
) -> None:
    """Nobody writes meanwhile, and others may begin to read."""
    async with (
        redlock.lock("doc", ttl=1_500, **READS) as one,
        other.lock("doc", ttl=1_500, **READS) as two,
    ):
        for master in masters[:2]:
            if failure == "restart":
                master.restart()
            elif failure == "flush":
                call(master, "FLUSHALL")
            else:
                master.pause()
        watch = Stopwatch()
        assert await third.lock("doc").try_acquire() is None
        if failure != "hang":  # before others read, who would set the lock again
            await until(lambda: all(_share(each, one, two) for each in masters[:2]))
        while watch.ms < 2_500:  # for longer than the ttl
            for options in ({}, WRITES):
                assert await third.lock("doc", **options).try_acquire() is None
            async with third.lock("doc", wait=PATIENCE, **READS):
                assert {one.lost.is_set(), two.lost.is_set()} == {False}
        assert one.valid
        assert two.valid
    for master in masters:
        master.resume()
    async with third.lock("doc", wait=PATIENCE, **WRITES):
        pass
    await nothing_is_left(masters)


# Others that end a share, or know nothing of readers.


@pytest.mark.promise("S2")
async def test_readers_hear_soon_of_a_forced_release_by_another_process(
    redlock: Redlock, other: Redlock, masters: list[RealMaster], tmp_path: Path
) -> None:
    """By their ttl they would ask the masters 20 s later."""
    options = {"ttl": 60_000, "on_lost": "flag", **READS}
    leases = [
        await asyncio.create_task(manager.lock("doc", **options).acquire())
        for manager in (redlock, other)
        for _ in range(2)
    ]
    async with running("-P", "-c", RELEASE, at=Place(masters, tmp_path)) as program:
        await program.says("released: True")
        async with asyncio.timeout(AT_ONCE):
            for lease in leases:
                await lease.lost.wait()
        assert await program.ends() == 0
    for lease in leases:
        with pytest.raises(LockLostError) as caught:
            lease.ensure_valid()
        assert caught.value.cause is LossCause.FORCED
    async with redlock.lock("doc", wait=PATIENCE, **WRITES):
        pass
    # Their shares stay until their own end, but count no more.
    async with redlock.lock("doc", wait=PATIENCE, **READS):
        assert await readers(other) == 1


@pytest.mark.promise("S1")
@pytest.mark.usefixtures("rare_heartbeats")
async def test_a_client_of_another_library_excludes_readers_and_is_excluded(
    redlock: Redlock, other: Redlock, masters: list[RealMaster]
) -> None:
    command = ("SET", "doc", "x", "NX", "PX", 60_000)
    async with redlock.lock("doc", **READS), other.lock("doc", **READS):
        assert [call(master, *command) for master in masters] == [None] * 5
    await until(lambda: values(masters, "doc") == [None] * 5)
    assert [call(master, *command) for master in masters] == [True] * 5
    error = await refused(redlock, **READS)
    assert [vote.answer for vote in error.votes].count(Answer.HELD) >= 3
    assert values(masters, "doc") == ["x"] * 5
    async with waiting(redlock, "doc", retry=None, **READS) as reads:
        await until(lambda: min(queued(masters, "doc")) == 1)
        for master in masters:
            call(master, "DEL", "doc")
        async with asyncio.timeout(AT_ONCE):
            await reads
    await nothing_is_left(masters)


@pytest.mark.promise("S1")
@pytest.mark.usefixtures("rare_heartbeats")
@EXCLUSIVE
async def test_a_program_that_knows_nothing_of_readers_excludes_them_and_is_excluded(
    redlock: Redlock, other: Redlock, masters: list[RealMaster], options: dict[str, Any]
) -> None:
    """The one that waits is woken by the other one's release, and not by an earlier one."""
    first, last = [
        await asyncio.create_task(redlock.lock("doc", ttl=60_000, **READS).acquire())
        for _ in range(2)
    ]
    assert (await refused(other, **options)).holder is not None
    async with waiting(other, "doc", **options) as writing:
        await until(lambda: listens(other, "doc"))
        await first.release()
        await asyncio.sleep(0.3)
        assert not writing.done()
        assert await readers(redlock) == 1
        await last.release()
        async with asyncio.timeout(AT_ONCE):
            await writing
        assert (await refused(redlock, **READS)).holder is not None
    async with (
        other.lock("doc", **options) as lease,
        waiting(redlock, "doc", retry=None, **READS) as reading,
    ):
        await until(lambda: min(queued(masters, "doc")) == 1)
        await lease.release()
        async with asyncio.timeout(AT_ONCE):
            await reading
    await nothing_is_left(masters)
