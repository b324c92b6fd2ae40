"""Many processes that want one lock: few of them ask at a time, and all get it."""

import asyncio
import itertools
import random
from contextlib import AsyncExitStack
from typing import Any

import pytest

from redlock_aio import LockNotAcquiredError, LockNotHeldError, Redlock, Retry
from redlock_aio._engine.wait.local_queue import LocalQueue
from redlock_aio._protocol.primitives import Mutex
from redlock_aio._protocol.scripts import RELEASE
from redlock_aio._rules.absence import ALLOWANCE, LONGEST_ABSENCE, LONGEST_LEASE, Absence
from redlock_aio.testing import FakeMaster

from . import kit
from .kit import (
    LATENCY,
    NEVER,
    acquired_at,
    delete,
    kill,
    now,
    occupy,
    ran,
    refused,
)

WORK = 0.001
WARM_UP = 0.4
SECONDS = 0.6
MOST_COMMANDS = 20
"""For a turn, of ten processes; about 50 if each release woke all of them."""


class Busy(FakeMaster):
    """A master whose replies take a random time, and which counts the commands of scripts too."""

    executed = 0

    @property
    def latency(self) -> float:
        return random.uniform(0.0002, 0.0005)

    @latency.setter
    def latency(self, _latency: float) -> None:
        pass

    def execute(self, command, listener=None):  # type: ignore[no-untyped-def]
        reply = super().execute(command, listener)
        self.executed += 1
        if command[:2] == [b"EVALSHA", RELEASE.sha]:
            self.executed += 2 if isinstance(reply, list) else 1
        return reply


Turns = list[tuple[float, float]]


async def contend(masters: list[Busy], processes: int) -> list[Turns]:
    """Run so many processes that contend for a lock; return the turns of each, after `WARM_UP`."""
    async with AsyncExitStack() as stack:
        managers = [
            await stack.enter_async_context(Redlock(masters, name=f"host:{number}"))
            for number in range(processes)
        ]

        async def work(manager: Redlock, turns: Turns) -> None:
            while True:
                async with manager.lock("r"):
                    began = now()
                    await asyncio.sleep(WORK)
                    turns.append((began, now()))

        turns: list[Turns] = [[] for _ in managers]
        tasks = [asyncio.create_task(work(*each)) for each in zip(managers, turns, strict=True)]
        await asyncio.sleep(WARM_UP)
        for master in masters:
            master.executed = 0
        began = now()
        for mine in turns:
            mine[:] = [(began, began)]
        await asyncio.wait(tasks, timeout=SECONDS)
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        return [[*mine, (now(), now())] for mine in turns]


def longest_wait(turns: list[Turns]) -> float:
    return max(new[0] - old[1] for mine in turns for old, new in itertools.pairwise(mine))


@pytest.mark.full
async def test_a_turn_costs_little_although_many_wait_and_all_get_turns() -> None:
    random.seed(1)
    masters = [Busy(f"m{number}") for number in range(3)]
    turns = await contend(masters, 10)
    number = [len(mine) - 2 for mine in turns]
    assert masters[0].executed / sum(number) <= MOST_COMMANDS
    assert sum(number) >= 0.6 * SECONDS / (WORK + 0.0004)
    assert min(number) >= sum(number) / len(number) / 5
    assert longest_wait(turns) <= 0.3
    merged = sorted(turn for mine in turns for turn in mine[1:-1])
    assert all(new[0] >= old[1] for old, new in itertools.pairwise(merged))


# One process that is absent


def queue(redlock: Redlock) -> LocalQueue:
    """Return the local queue of `r`."""
    return kit.session(redlock).local_queues.of(Mutex(b"r"))


def make_absent(redlock: Redlock) -> None:
    """Make the process of *redlock* absent from now on, for as long as possible."""
    queue(redlock).absence = absence = Absence(b"host:own")
    for other in range(50):
        absence.on_lost(b"%028d@host:%d" % (other, other), 1.0)
    absence.on_acquired()
    absence.on_lease_ended(now())


def caching(master: FakeMaster) -> int:
    """Return how often *master* was asked for pushes."""
    return [command[:2] for command in master.commands].count([b"CLIENT", b"CACHING"])


@pytest.mark.promise("S9")
@pytest.mark.parametrize(
    ("retry", "after"),
    [(NEVER, LONGEST_ABSENCE), (Retry(), 0.2), (Retry(max_delay=30), 0.12)],
    ids=["no retries", "retries", "quick retries"],
)
@pytest.mark.usefixtures("nothing_stays")
async def test_an_absent_process_looks_by_itself(
    redlock: Redlock, masters: list[FakeMaster], retry: Retry, after: float
) -> None:
    """The lock is free after 0.1 s, and nobody wakes the process."""
    occupy(masters)
    make_absent(redlock)
    began = now()
    waiter = asyncio.create_task(acquired_at(redlock, retry=retry))
    await asyncio.sleep(0.1)
    delete(masters)
    assert await waiter - began == pytest.approx(after, abs=10 * LATENCY)
    assert caching(masters[0]) == 0


@pytest.mark.promise("S9")
@pytest.mark.usefixtures("nothing_stays")
async def test_a_process_gets_pushes_after_an_absence(
    redlock: Redlock, masters: list[FakeMaster]
) -> None:
    occupy(masters)
    make_absent(redlock)
    waiter = asyncio.create_task(acquired_at(redlock))
    await asyncio.sleep(LONGEST_ABSENCE + 0.1)
    assert caching(masters[0]) == 1
    released = now()
    delete(masters)
    assert await waiter - released == pytest.approx(1.5 * LATENCY)


async def test_a_process_that_had_votes_is_not_absent(
    redlock: Redlock, masters: list[FakeMaster]
) -> None:
    """Others had some, too. If all of them stayed away, nobody would have the lock."""
    occupy(masters[:3])
    make_absent(redlock)
    waiter = asyncio.create_task(acquired_at(redlock))
    await asyncio.sleep(0.01)
    assert caching(masters[0]) == 1
    delete(masters)
    await waiter


async def test_an_absent_process_gets_what_another_task_of_it_releases(redlock: Redlock) -> None:
    for fenced in (False, True):
        lease = await redlock.lock("r", fencing=fenced).acquire()
        make_absent(redlock)
        waiter = asyncio.create_task(acquired_at(redlock, fencing=fenced))
        await asyncio.sleep(0.01)
        released = now()
        await lease.release()
        assert await waiter - released < 5 * LATENCY


async def test_the_wait_of_an_absent_process_ends_in_time(redlock: Redlock, other: Redlock) -> None:
    async with other.lock("r"):
        make_absent(redlock)
        began = now()
        error = await refused(redlock, wait=1000)
        assert type(error) is LockNotAcquiredError
        assert error.holder is not None
        assert now() - began == pytest.approx(1.0, abs=0.01)


@pytest.mark.parametrize(
    "options",
    [{"wait": 700}, {"retry": Retry(1000, 1000, attempts=9)}],
    ids=["a short wait", "few attempts"],
)
async def test_a_process_that_could_miss_all_moments_of_a_free_lock_gets_pushes(
    redlock: Redlock, masters: list[FakeMaster], options: dict[str, Any]
) -> None:
    occupy(masters)
    make_absent(redlock)
    waiter = asyncio.create_task(acquired_at(redlock, **options))
    await asyncio.sleep(0.1)
    assert caching(masters[0]) == 1
    released = now()
    delete(masters)
    assert await waiter - released == pytest.approx(1.5 * LATENCY)


class AlmostBack(Absence):
    """The absence of a process whose other tasks have the lock again and again."""

    def left(self, now: float) -> float:  # noqa: ARG002 - the name in the base class
        return 0.01


async def test_after_its_last_attempt_a_process_gets_pushes(
    redlock: Redlock, masters: list[FakeMaster]
) -> None:
    """The last attempt of the wait comes 50 ms before its end, the release 20 ms later."""
    occupy(masters)
    queue(redlock).absence = AlmostBack(b"host:own")
    waiter = asyncio.create_task(acquired_at(redlock, wait=1000))
    await asyncio.sleep(0.9)
    assert caching(masters[0]) == 0
    await asyncio.sleep(0.07)
    released = now()
    delete(masters)
    assert await waiter - released == pytest.approx(1.5 * LATENCY)


async def test_the_lock_of_another_task_of_a_process_is_no_turn_of_another_process(
    redlock: Redlock, masters: list[FakeMaster]
) -> None:
    """Of two processes none is absent, even if a task of one does not wait for its turn."""
    take(masters, 1)
    waiter = asyncio.create_task(acquired_at(redlock, retry=Retry(1000, 1000)))
    await asyncio.sleep(0.01)
    for _ in range(3):
        delete(masters)
        lease = await redlock.lock("r").try_acquire()
        assert lease is not None
        await asyncio.sleep(0.01)
        take(masters, 1)
        with pytest.raises(LockNotHeldError):
            await lease.release()
        await asyncio.sleep(0.01)
    delete(masters)
    await waiter
    absence = queue(redlock).absence
    assert absence is not None
    assert absence.left(now()) == 0


async def test_a_process_that_finds_no_majority_is_not_absent(
    redlock: Redlock, masters: list[FakeMaster]
) -> None:
    """Others may not have the lock either, and all of them be absent."""
    kill(masters[:3])
    occupy(masters[3:])
    make_absent(redlock)
    waiter = asyncio.create_task(acquired_at(redlock))
    await asyncio.sleep(0.1)
    assert caching(masters[3]) == 1
    waiter.cancel()
    await asyncio.wait([waiter])


@pytest.mark.usefixtures("nothing_stays")
async def test_an_absent_process_is_cancelled_at_once(
    redlock: Redlock, other: Redlock, masters: list[FakeMaster]
) -> None:
    async with other.lock("r"):
        make_absent(redlock)
        waiter = asyncio.create_task(acquired_at(redlock))
        await asyncio.sleep(0.1)
        waiter.cancel()
        await asyncio.wait([waiter])
        assert waiter.cancelled()
        assert queue(redlock).idle
        assert ran(masters[0], RELEASE) == 1


# What is known of others


def take(masters: list[FakeMaster], process: int) -> None:
    """Pass the lock to a lease of another process."""
    delete(masters)
    for master in masters:
        master.set("r", f"{process:028}@host:{process}")


async def wait_for(redlock: Redlock, masters: list[FakeMaster], *turns: int) -> float:
    """Wait for processes that have the lock for 10 ms, one after the other; return the absence."""
    waiter = asyncio.create_task(acquired_at(redlock, retry=Retry()))
    for process in turns:
        take(masters, process)
        await asyncio.sleep(LONGEST_LEASE / 2)
    delete(masters)
    await waiter
    absence = queue(redlock).absence
    assert absence is not None
    return absence.left(now())


async def test_a_process_knows_the_others_from_its_waits(
    redlock: Redlock, masters: list[FakeMaster]
) -> None:
    turn = 1.5 * LONGEST_LEASE / 2  # of the processes 2 and 3; that of 1 may have begun before
    absence = await wait_for(redlock, masters, 1, 2, 2, 3)
    assert absence == pytest.approx(ALLOWANCE * 2 * turn, rel=0.2)
    assert await wait_for(redlock, masters, 3, 3) < absence
    assert await wait_for(redlock, masters, 3) == 0


async def test_a_wait_without_pushes_tells_nothing_about_others(
    redlock: Redlock, masters: list[FakeMaster]
) -> None:
    make_absent(redlock)
    absence = queue(redlock).absence
    assert absence is not None
    known = repr(absence)
    waiter = asyncio.create_task(acquired_at(redlock))
    for turn in range(4):
        take(masters, turn)
        await asyncio.sleep(0.05)
    assert caching(masters[0]) == 0
    delete(masters)
    await waiter
    assert repr(absence) == known


async def test_a_waiter_without_the_turn_tells_nothing_and_is_not_absent(
    redlock: Redlock, masters: list[FakeMaster]
) -> None:
    """It has limited attempts, and passes by the tasks that wait in the local queue."""
    occupy(masters)
    make_absent(redlock)
    waiting = asyncio.create_task(acquired_at(redlock))
    await asyncio.sleep(0.01)
    assert caching(masters[0]) == 0
    guest = asyncio.create_task(acquired_at(redlock, retry=Retry(1000, 1000, attempts=9)))
    await asyncio.sleep(0.01)
    assert caching(masters[0]) == 1
    released = now()
    delete(masters)
    await waiting
    assert await guest - released < 10 * LATENCY


async def test_guests_do_not_count_others_again(
    redlock: Redlock, masters: list[FakeMaster]
) -> None:
    retry = Retry(1000, 1000, attempts=9)
    occupy(masters)
    watcher = asyncio.create_task(acquired_at(redlock, retry=Retry(1000, 1000)))
    await asyncio.sleep(0.01)
    guests = [asyncio.create_task(acquired_at(redlock, retry=retry)) for _ in range(9)]
    await asyncio.sleep(0.01)
    for process in (1, 2, 3):
        take(masters, process)
        await asyncio.sleep(LONGEST_LEASE / 2)
    absence = queue(redlock).absence
    assert absence is not None
    assert absence._waited < 2 * LONGEST_LEASE
    for task in (watcher, *guests):
        task.cancel()
    await asyncio.wait([watcher, *guests])
