"""Leases whose extensions fail while a majority is away, and what happens when it is back."""

import asyncio
import itertools
import os
import random
from collections.abc import Iterator
from typing import Any

import pytest

from redlock_aio import Lease, Redlock
from redlock_aio._engine.hold import watchdog
from redlock_aio._engine.hold.held_lease import HeldLease
from redlock_aio._engine.hold.watchdog import BATCH
from redlock_aio._protocol.replies import EVERYTHING_CHANGED
from redlock_aio._protocol.scripts import EXTEND
from redlock_aio.events import Extended, Lost
from redlock_aio.testing import FakeMaster

from . import kit
from .diary import Diary
from .kit import (
    KIND,
    Kind,
    Masters,
    fail,
    guarded,
    hang,
    kill,
    now,
    ran,
    restart,
    resume,
    slow,
    until,
)

pytestmark = pytest.mark.promise("S4")

TTL = 9_000
RETRIES = TTL / 1000 / 12
"""Seconds between two tries to extend a lease whose deadline is not near."""


@pytest.fixture(autouse=True)
def until_closed() -> Iterator[None]:
    """Keep the leases until their manager is closed."""
    yield
    _kept.clear()


_kept: list[Lease] = []


async def hold(redlock: Redlock, number: int, *, over: float = 0.0, **options: Any) -> list[Lease]:
    """Return so many leases, acquired at random instants within *over* seconds."""

    async def acquire(name: str, after: float) -> Lease:
        await asyncio.sleep(after)
        chosen: Kind = {"ttl": TTL, "on_lost": "flag"} | options
        return await redlock.lock(name, **chosen).acquire()

    instants = [random.uniform(0, over) for _ in range(number)]
    leases = await asyncio.gather(*(acquire(f"r{i}", at) for i, at in enumerate(instants)))
    _kept.extend(leases)
    return leases


async def away(masters: Masters) -> None:
    """Hang three of five *masters* until all leases have failed, and their connections ended."""
    hang(masters[:3])
    await asyncio.sleep(TTL / 1000 * 0.5)


def ends(diary: Diary) -> list[float]:
    """Return the instants at which leases were lost."""
    each = zip(diary.times, diary.events, strict=True)
    return [at for at, event in each if isinstance(event, Lost)]


@pytest.mark.spread(0)
@pytest.mark.parametrize("ttl", [10_000, pytest.param(30_000, marks=pytest.mark.full)])
@pytest.mark.parametrize("options", [{}, {"master_timeout": 1000}], ids=["again", "late"])
async def test_no_lease_is_lost_after_a_majority_is_back(
    masters: Masters, diary: Diary, ttl: int, options: dict[str, Any]
) -> None:
    """The masters are connected again, or with a long timeout reply late to earlier requests."""
    seconds = ttl / 1000
    async with Redlock(masters, listener=diary, restart_guard="off", **options) as redlock:
        await hold(redlock, 100, over=seconds, ttl=ttl)
        await asyncio.sleep(seconds)
        hang(masters[:3])
        await asyncio.sleep(0.7 * seconds)
        resume(masters)
        back = now()
        await asyncio.sleep(seconds)
        assert len(ends(diary)) < 10  # their validity was over before
        assert [at - back for at in ends(diary) if at > back + 0.1] == []


@pytest.mark.parametrize("back", [1, 3])
@KIND
async def test_leases_of_each_kind_are_extended_when_a_majority_is_back(
    masters: Masters, kind: Kind, back: int
) -> None:
    """One of the three that were away is enough."""
    async with guarded(masters) as redlock:
        leases = await hold(redlock, 20, **kind)
        await away(masters)
        resume(masters[:back])
        await asyncio.sleep(0.1)
        assert [lease.remaining > TTL - 500 for lease in leases] == [True] * 20
        resume(masters)


async def test_masters_that_refuse_for_a_while_and_stay_connected(
    redlock: Redlock, masters: Masters
) -> None:
    """No vote returns. The first extension that succeeds again leads to the others."""
    leases = await hold(redlock, 50, over=2.0)
    fail(masters[:3], "BUSY Redis is busy running a script")
    await asyncio.sleep(4)
    fail(masters[:3], "")
    await until(lambda: any(lease.remaining > TTL - 500 for lease in leases))
    await asyncio.sleep(0.05)
    assert [lease.remaining > TTL - 500 for lease in leases] == [True] * 50


async def next_extension(master: FakeMaster) -> None:
    """Wait until the next extension has been sent to *master*."""
    before = ran(master, EXTEND)
    await until(lambda: ran(master, EXTEND) > before)


async def votes_again(redlock: Redlock) -> None:
    """Wait until the first master votes."""
    await until(lambda: redlock.statistics().masters[0].votes)


async def test_the_return_of_a_minority_extends_nothing(redlock: Redlock, masters: Masters) -> None:
    await hold(redlock, 1)
    kill(masters[:4])
    await next_extension(masters[4])
    restart(masters[:1])
    failed = now()
    await votes_again(redlock)
    asked = ran(masters[4], EXTEND)
    await asyncio.sleep(failed + RETRIES - 0.1 - now())
    assert ran(masters[4], EXTEND) == asked == 1


async def test_an_extension_that_was_underway_when_a_master_came_back_is_repeated(
    masters: Masters,
) -> None:
    """It counted that master as away, and fails by another one that hangs."""
    async with Redlock(masters, restart_guard="off", master_timeout=200) as redlock:
        (lease,) = await hold(redlock, 1)
        hang(masters[:2])
        await redlock.is_locked("x")
        await until(lambda: not redlock.statistics().masters[0].up)
        hang(masters[2:3])
        await next_extension(masters[4])
        sent = now()
        resume(masters[:2])
        await votes_again(redlock)
        assert now() < sent + 0.15  # this extension times out later
        assert lease.remaining < TTL - 2000
        await asyncio.sleep(0.25)
        assert lease.remaining > TTL - 500


@pytest.mark.full
async def test_many_leases_are_extended_in_batches_the_most_urgent_first(
    redlock: Redlock, masters: Masters, monkeypatch: pytest.MonkeyPatch
) -> None:
    leases = await hold(redlock, 3 * BATCH, over=3.0)
    await away(masters)
    turns: list[list[float]] = []
    retry_at = HeldLease.retry_at

    def retrying(hold: HeldLease, instant: float) -> None:
        if not turns or not turns[-1]:
            asyncio.get_running_loop().call_soon(turns.append, [])
            turns[-1:] = [[]]
        turns[-1].append(hold.deadline)
        retry_at(hold, instant)

    monkeypatch.setattr(HeldLease, "retry_at", retrying)
    resume(masters)
    await asyncio.sleep(0.3)
    batches = list(filter(None, turns))
    assert max(map(len, batches)) == BATCH
    assert sum(map(len, batches)) >= 2 * BATCH
    for batch, later in itertools.pairwise(batches):
        assert max(batch) <= min(later)
    assert all(lease.remaining > TTL - 1000 for lease in leases)


async def test_an_extension_that_is_underway_is_not_repeated(masters: Masters) -> None:
    """One before it failed, and a master that it counts as away is back."""
    async with Redlock(masters, restart_guard="off", master_timeout=200) as redlock:
        (lease,) = await hold(redlock, 1)
        hang(masters[:2])
        await redlock.is_locked("x")
        await until(lambda: not redlock.statistics().masters[0].up)
        fail(masters[2:3], "OOM command not allowed")
        await next_extension(masters[4])
        fail(masters[2:3], "")
        slow(masters[2:3], 0.19)
        await next_extension(masters[4])
        asked = ran(masters[4], EXTEND)
        resume(masters[:2])
        await votes_again(redlock)
        assert lease.remaining < TTL - 2000
        await asyncio.sleep(0.2)
        assert lease.remaining > TTL - 500
        assert ran(masters[4], EXTEND) == asked


@pytest.mark.parametrize("options", [{"auto_extend": False}, {"max_hold": TTL - 1000}])
async def test_a_lease_that_is_not_extended_stays_so(
    redlock: Redlock, masters: Masters, options: dict[str, Any]
) -> None:
    """Its holder has asked for one extension, and has given up waiting for it."""
    (lease,) = await hold(redlock, 1, **options)
    hang(masters[:3])
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(lease.extend(), 2)
    asked = ran(masters[4], EXTEND)
    resume(masters)
    await asyncio.sleep(TTL / 1000)
    assert ran(masters[4], EXTEND) == asked
    assert not lease.valid


async def test_pushes_without_end_repeat_a_failing_extension_rarely(
    redlock: Redlock, masters: Masters
) -> None:
    """Each flush of another database is such a push: there may be hundreds in a second."""
    await hold(redlock, 1)
    fail(masters[:3], "OOM command not allowed")
    await asyncio.sleep(4)
    asked = ran(masters[4], EXTEND)
    session = kit.session(redlock)
    for _ in range(500):
        session._on_push(0, EVERYTHING_CHANGED)
        await asyncio.sleep(0.002)
    assert ran(masters[4], EXTEND) - asked <= 1 / watchdog.CHECK_INTERVAL + 2


async def test_leases_that_have_ended_are_forgotten(redlock: Redlock, masters: Masters) -> None:
    leases = await hold(redlock, 20)
    dog = kit.session(redlock).watchdog
    await away(masters)
    assert len(dog._failed) == 20
    await asyncio.gather(*(lease.release() for lease in leases[:10]))
    assert len(dog._failed) == 10
    await asyncio.sleep(TTL / 1000)
    assert not dog._failed
    assert not dog._to_retry


async def test_a_master_that_hung_is_connected_again_as_soon_as_it_answers() -> None:
    """However long it hung: there is no pause between two connections that timed out."""
    for tenths in range(15, 90, 1 if "REDLOCK_AIO_FULL" in os.environ else 7):
        master = FakeMaster()
        async with Redlock([master], restart_guard="off") as redlock:
            (lease,) = await hold(redlock, 1, ttl=60_000)
            fail([master])
            await asyncio.sleep(0.1)
            hang([master])
            extending = asyncio.create_task(lease.extend())
            await asyncio.sleep(tenths / 10)
            resume([master])
            await asyncio.sleep(0.1)
            assert redlock.statistics().masters[0].votes, tenths
            fail([master], "")
            await extending


async def test_extensions_are_tried_at_half_of_the_time_that_is_left(
    masters: Masters, diary: Diary
) -> None:
    async with Redlock(masters, listener=diary, restart_guard="off") as redlock:
        (lease,) = await hold(redlock, 1)
        fail(masters, "OOM command not allowed")
        tries: list[int] = []
        asked = ran(masters[0], EXTEND)
        while lease.valid:
            await asyncio.sleep(0.001)
            if ran(masters[0], EXTEND) > asked:
                asked = ran(masters[0], EXTEND)
                tries.append(lease.remaining)
        assert tries[0] > TTL / 2
        steps = [(before, before - after) for before, after in itertools.pairwise(tries)]
        assert all(step < RETRIES * 1000 + 50 for _, step in steps)
        assert all(step < left / 2 + 25 for left, step in steps)
        assert tries[-1] < 35
        assert len(tries) < 20
        assert not diary.of(Extended)
