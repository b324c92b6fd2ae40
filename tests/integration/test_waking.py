"""Who waits is woken by the masters, whatever has ended the lock, and needs no luck."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from redlock_aio import Redlock

from .helpers import (
    AT_ONCE,
    SELDOM,
    RealMaster,
    Stopwatch,
    call,
    heard,
    line,
    listens,
    pttls,
    put,
    until,
    up,
    values,
    waiting,
)

pytestmark = pytest.mark.integration

AT_LAST = 1000 * AT_ONCE
"""Ms in which whoever is woken has the lock; without being woken it would be 20 000."""


async def woken(times: int, once: Callable[[], Awaitable[float]]) -> None:
    """Check that no run is as late as without being woken."""
    took = [await once() for _ in range(times)]
    assert max(took) < AT_LAST, took


def end(masters: list[RealMaster], *command: str) -> None:
    """Have a stranger do this at some masters."""
    for master in masters:
        call(master, *command)


@pytest.mark.promise("S8")
async def test_a_release_wakes_who_waits_in_another_manager(
    redlock: Redlock, other: Redlock
) -> None:
    """25, 26: within a few ms, though the next attempt is 20 s away."""

    async def once() -> float:
        lease = await other.lock("r").acquire()
        async with waiting(redlock) as waiter:
            await until(lambda: listens(redlock))
            watch = Stopwatch()
            await lease.release()
            await waiter
            return watch.ms

    await woken(7, once)


@pytest.mark.promise("S8")
async def test_an_expiry_wakes_who_waits(redlock: Redlock, masters: list[RealMaster]) -> None:
    """25: of a key that nobody releases; not before a majority of its keys has gone."""

    async def once() -> float:
        put(masters, "r", 1_000)
        async with waiting(redlock) as waiter:
            await until(lambda: listens(redlock))
            lower = Stopwatch()  # reading what is left takes time itself
            left = sorted(pttls(masters, "r"))[2]
            upper = Stopwatch()
            await waiter
            assert left - 2 < lower.ms
            return upper.ms - left

    await woken(5, once)


@pytest.mark.promise("S8")
@pytest.mark.parametrize("number", [5, 3])
@pytest.mark.parametrize(
    "command",
    [
        ("DEL", "r"),
        ("UNLINK", "r"),
        ("PEXPIRE", "r", "0"),
        ("PEXPIRE", "r", "10"),
        ("FLUSHALL",),
        ("EVAL", "return redis.call('DEL', KEYS[1])", "1", "r"),
    ],
    ids=lambda command: "-".join(command[:1] + command[2:3]).lower()[:12],
)
async def test_whatever_ends_the_key_on_a_majority_wakes_who_waits(
    redlock: Redlock, masters: list[RealMaster], command: tuple[str, ...], number: int
) -> None:
    """44, 59: an operator's DEL, another library's script, a FLUSHALL."""

    async def once() -> float:
        put(masters, "r", 60_000)
        async with waiting(redlock) as waiter:
            await until(lambda: listens(redlock))
            watch = Stopwatch()
            end(masters[:number], *command)
            await waiter
            took = watch.ms
        end(masters, "DEL", "r")
        await heard(redlock)
        return took

    await woken(3, once)


async def test_a_minority_that_is_free_wakes_nobody(
    redlock: Redlock, masters: list[RealMaster]
) -> None:
    """2: two of five are no reason for an attempt; the third is."""
    put(masters, "r", 60_000)
    async with waiting(redlock) as waiter:
        await until(lambda: listens(redlock))
        end(masters, "CONFIG", "RESETSTAT")
        end(masters[:2], "DEL", "r")
        await asyncio.wait([waiter], timeout=0.3)
        assert not waiter.done()
        for master in masters[2:]:
            assert "cmdstat_set" not in call(master, "INFO", "commandstats")
        watch = Stopwatch()
        end(masters[4:], "DEL", "r")
        await waiter
        assert watch.ms < AT_LAST


async def test_a_lock_that_passes_from_one_stranger_to_the_next_is_watched_on(
    redlock: Redlock, masters: list[RealMaster]
) -> None:
    """25: who was woken in vain listens again, ten times."""
    put(masters, "r", 60_000)
    async with waiting(redlock) as waiter:
        for _ in range(10):
            await until(lambda: listens(redlock))
            await heard(redlock)
            for master in masters:
                call(master, "SET", "r", "the next stranger", "PX", "60000")
            await asyncio.wait([waiter], timeout=0.05)
            assert not waiter.done()
        await until(lambda: listens(redlock))
        await heard(redlock)
        watch = Stopwatch()
        end(masters, "DEL", "r")
        await waiter
        assert watch.ms < AT_LAST


@pytest.mark.promise("S5")
async def test_who_waits_listens_again_on_new_connections(
    redlock: Redlock, masters: list[RealMaster]
) -> None:
    """25: all of them were cut, and what they had asked for is forgotten."""
    put(masters, "r", 60_000)
    async with waiting(redlock) as waiter:
        await until(lambda: listens(redlock))
        before = line(redlock).watcher
        for master in masters:
            master.cut()
        await until(lambda: up(redlock) == 5 and line(redlock).watcher is not before)
        await until(lambda: listens(redlock))
        await heard(redlock)
        assert not waiter.done()
        watch = Stopwatch()
        end(masters, "DEL", "r")
        await waiter
        assert watch.ms < AT_LAST


@pytest.mark.promise("S5")
async def test_what_happens_while_a_connection_is_cut_is_not_missed(
    redlock: Redlock, masters: list[RealMaster]
) -> None:
    """25: nobody can tell that the lock ended, but a new connection is a reason to look."""
    put(masters, "r", 60_000)
    async with waiting(redlock) as waiter:
        await until(lambda: listens(redlock))
        for master in masters:  # nothing else runs in this loop meanwhile
            master.cut()
            call(master, "DEL", "r")
        watch = Stopwatch()
        await waiter
        assert watch.ms < AT_LAST


@pytest.mark.promise("S5")
@pytest.mark.parametrize("how", ["dead", "hung"])
async def test_masters_that_come_back_wake_who_waits_for_them(
    redlock: Redlock, masters: list[RealMaster], how: str
) -> None:
    """42: a majority is away when the first attempt is made, and for some time after."""
    for master in masters[:3]:
        (master.kill if how == "dead" else master.pause)()
    if how == "dead":
        await until(lambda: up(redlock) == 2)
    async with waiting(redlock) as waiter:
        await until(lambda: listens(redlock))
        await asyncio.wait([waiter], timeout=0.5)
        assert not waiter.done()
        for master in masters[:3]:
            (master.start if how == "dead" else master.resume)()
        watch = Stopwatch()
        await waiter
        assert watch.ms < AT_LAST


async def test_masters_that_forget_their_scripts_wake_all_the_same(
    redlock: Redlock, other: Redlock, masters: list[RealMaster]
) -> None:
    """60: SCRIPT FLUSH while somebody waits; the release sends its script again."""
    lease = await other.lock("r").acquire()
    async with waiting(redlock) as waiter:
        await until(lambda: listens(redlock))
        end(masters, "SCRIPT", "FLUSH")
        watch = Stopwatch()
        await lease.release()
        await waiter
        assert watch.ms < AT_LAST


async def test_masters_that_forgot_their_scripts_before_the_attempt_tell_as_well(
    redlock: Redlock, other: Redlock, masters: list[RealMaster]
) -> None:
    """60: the look at what is in the way is such a script."""
    async with other.lock("r") as lease:
        end(masters, "SCRIPT", "FLUSH")
        async with waiting(redlock) as waiter:
            # Not `listens`: that they were asked is enough, the answers come later.
            await until(lambda: line(redlock).watcher is not None)
            await heard(redlock)
            await heard(redlock)
            await until(lambda: values(masters, "r") == [lease.token] * 5)
            watch = Stopwatch()
            await lease.release()
            await waiter
            assert watch.ms < AT_LAST


@pytest.mark.promise("S9")
async def test_many_waiters_of_as_many_keys_are_woken_each_by_its_own(
    redlock: Redlock, other: Redlock
) -> None:
    """20, 25: a hundred, released in another order."""
    leases = [await other.lock(f"r{number}").acquire() for number in range(100)]
    async with asyncio.TaskGroup() as group:
        locks = [redlock.lock(f"r{number}", retry=SELDOM) for number in range(100)]
        waiters = [group.create_task(lock.acquire()) for lock in locks]
        for number in range(100):
            await until(lambda number=number: listens(redlock, f"r{number}"))  # type: ignore[misc]
        watch = Stopwatch()
        for lease, waiter in reversed(list(zip(leases, waiters, strict=True))):
            await lease.release()
            await waiter
        assert watch.ms < AT_LAST
        for waiter in waiters:
            group.create_task(waiter.result().release())
