"""Waiters and holders are notified of changes of their keys by real servers."""

import asyncio
import contextlib
from typing import Any

import pytest

from redlock_aio import Lease, LockLostError, Redlock

from .helpers import (
    AT_ONCE,
    KIND,
    RealMaster,
    Stopwatch,
    call,
    line,
    nothing_is_left,
    put,
    replied,
    subscribed,
    until,
    up,
    values,
    waiting,
)

pytestmark = [
    pytest.mark.integration,
    pytest.mark.usefixtures("quick_unsubscribe", "rare_heartbeats"),
]

TTL = 60_000

LOSSES = {
    "DEL": ("DEL", "r"),
    "UNLINK": ("UNLINK", "r"),
    "expired": ("PEXPIRE", "r", "0"),
    "expires": ("PEXPIRE", "r", "10"),
    "FLUSHALL": ("FLUSHALL",),
    "script": ("EVAL", "return redis.call('DEL', KEYS[1])", "1", "r"),
}
"""Commands of other clients that end a key."""

ENDS = pytest.mark.parametrize("command", LOSSES.values(), ids=LOSSES)
CHANGES = pytest.mark.parametrize(
    "command",
    [*LOSSES.values(), ("SET", "r", "somebody else", "PX", "60000")],
    ids=[*LOSSES, "overwritten"],
)


def execute(masters: list[RealMaster], *command: str) -> None:
    """Execute *command* on some masters, as another client."""
    for master in masters:
        call(master, *command)


# Waiters


@KIND
@pytest.mark.promise("S9")
async def test_a_release_notifies_waiters_of_other_programs(
    redlock: Redlock, other: Redlock, masters: list[RealMaster], options: dict[str, Any]
) -> None:
    fair = "fair" in options
    for _ in range(3):
        lease = await other.lock("r", **options).acquire()
        async with waiting(redlock, **options) as waiter:
            await subscribed(redlock, masters, fair=fair)
            async with asyncio.timeout(AT_ONCE):
                await lease.release()
                await waiter
    await nothing_is_left(masters)


@KIND
@ENDS
@pytest.mark.promise("S9")
@pytest.mark.spread(1)
async def test_any_end_of_a_foreign_key_notifies_waiters(
    redlock: Redlock, masters: list[RealMaster], options: dict[str, Any], command: tuple[str, ...]
) -> None:
    """They are notified when the key is gone on a majority; for a minority they do not retry."""
    put(masters, "r", TTL)
    async with waiting(redlock, **options) as waiter:
        await subscribed(redlock, masters, fair="fair" in options)
        if not options:
            execute(masters, "CONFIG", "RESETSTAT")
        execute(masters[:2], *command)
        await asyncio.wait([waiter], timeout=0.2)
        assert not waiter.done()
        if not options:
            for master in masters[2:]:
                assert "cmdstat_set" not in call(master, "INFO", "commandstats")
        async with asyncio.timeout(AT_ONCE):
            execute(masters[2:3], *command)
            await waiter


@pytest.mark.promise("S9")
@pytest.mark.parametrize("missed", [False, True], ids=["in time", "too late"])
async def test_a_waiter_subscribes_again_on_new_connections(
    redlock: Redlock, masters: list[RealMaster], *, missed: bool
) -> None:
    """A change during the outage of a connection is noticed when it is connected again."""
    put(masters, "r", TTL)
    async with waiting(redlock) as waiter:
        await subscribed(redlock, masters)
        before = line(redlock).watcher
        for master in masters:  # nothing else runs in this loop meanwhile
            master.cut()
            if missed:
                call(master, "DEL", "r")
        if not missed:
            await until(lambda: up(redlock) == 5 and line(redlock).watcher is not before)
            await subscribed(redlock, masters)
            assert not waiter.done()
            execute(masters, "DEL", "r")
        async with asyncio.timeout(AT_ONCE):
            await waiter


@pytest.mark.spread(0)
@KIND
@pytest.mark.promise("S9")
@pytest.mark.parametrize("fault", ["kill", "pause"])
async def test_masters_that_come_back_notify_waiters(
    redlock: Redlock, masters: list[RealMaster], options: dict[str, Any], fault: str
) -> None:
    """A majority is down at the first attempt, and for some time after it."""
    for master in masters[:3]:
        getattr(master, fault)()
    async with waiting(redlock, **options) as waiter:
        await asyncio.wait([waiter], timeout=0.6)
        assert not waiter.done()
        for master in masters[:3]:
            (master.start if fault == "kill" else master.resume)()
        async with asyncio.timeout(AT_ONCE):
            await waiter


# Holders


async def watched(redlock: Redlock, lease: Lease) -> None:
    """Wait until the holder has subscribed to its key."""
    await until(lambda: lease._hold.checked_at > 0)
    await replied(redlock)


async def is_lost(lease: Lease) -> None:
    """Check that the holder loses its lease by a notification: the next extension is in 18 s."""
    async with asyncio.timeout(AT_ONCE):
        await lease.lost.wait()
    assert not lease.valid


@KIND
@CHANGES
@pytest.mark.promise("S2")
@pytest.mark.spread(1)
async def test_a_holder_is_notified_when_a_majority_lost_its_key(
    redlock: Redlock, masters: list[RealMaster], options: dict[str, Any], command: tuple[str, ...]
) -> None:
    """An extension also changes the key and keeps the subscription; a minority is no loss."""
    with pytest.raises(LockLostError, match="majority"):
        async with redlock.lock("r", ttl=TTL, **options) as lease:
            await watched(redlock, lease)
            await lease.extend()
            await replied(redlock)
            execute(masters[:2], *command)
            await asyncio.sleep(0.3)
            await replied(redlock)
            assert lease.valid
            async with asyncio.timeout(AT_ONCE):
                execute(masters[2:3], *command)
                await asyncio.sleep(20)
    assert lease.lost.is_set()


@pytest.mark.promise("S2")
async def test_a_key_that_goes_before_the_subscription_is_a_loss(
    redlock: Redlock, masters: list[RealMaster]
) -> None:
    """The holder subscribes 0.1 s after the acquisition, and finds that the key is gone."""
    async with redlock.lock("r", ttl=TTL, auto_extend=False, on_lost="flag") as lease:
        execute(masters, "DEL", "r")
        assert lease._hold.checked_at < 0
        await is_lost(lease)


@pytest.mark.spread(0)
@pytest.mark.promise("S2")
@pytest.mark.parametrize("fault", ["cut", "cut and deleted", "restart"])
async def test_a_holder_subscribes_again_on_new_connections(
    redlock: Redlock, masters: list[RealMaster], fault: str
) -> None:
    """A key that a majority lost meanwhile is noticed then."""
    async with redlock.lock("r", ttl=TTL, on_lost="flag") as lease:
        await watched(redlock, lease)
        before = lease._hold.checked_at
        for master in masters[:2]:
            (master.restart if fault == "restart" else master.cut)()
        await until(lambda: up(redlock) == 5 and lease._hold.checked_at > before)
        await asyncio.sleep(0.3)
        await replied(redlock)
        assert lease.valid
        for master in masters[2:]:  # nothing else runs in this loop meanwhile
            (master.restart if fault == "restart" else master.cut)()
            if fault == "cut and deleted":
                call(master, "DEL", "r")
        if fault == "cut":
            before = lease._hold.checked_at
            await until(lambda: up(redlock) == 5 and lease._hold.checked_at > before)
            await replied(redlock)
            assert lease.valid
            execute(masters[:3], "DEL", "r")
        await is_lost(lease)


async def test_a_key_that_changes_all_the_time_is_read_at_a_bounded_rate(
    redlock: Redlock, masters: list[RealMaster]
) -> None:
    """A key that changes on one master does not cause constant requests to the others."""
    async with redlock.lock("r", ttl=TTL) as lease:
        await watched(redlock, lease)
        call(masters[4], "CONFIG", "RESETSTAT")
        with contextlib.closing(masters[0].client()) as client:
            watch = Stopwatch()
            while watch.ms < 500:
                client.set("r", f"{watch.ms}", px=TTL)
                await asyncio.sleep(0.001)
        stats = call(masters[4], "INFO", "commandstats")
        gets = stats["cmdstat_get"]["calls"] if "cmdstat_get" in stats else 0
        assert 1 <= gets <= watch.ms / 20 + 2
        assert lease.valid
    await until(lambda: values(masters[1:], "r") == [None] * 4)
