"""The fewest permissions with which several resources are locked at once."""

import asyncio
import contextlib
import logging

import pytest

from redlock_aio import Answer, LockLostError, LockNotAcquiredError, Redlock
from redlock_aio._engine.hold.restoration import Restoration
from redlock_aio.testing import EmbeddedMaster

from .helpers import SELDOM, TIMEOUT, call, gone, put, until
from .test_acl import (
    COUNTERS,
    FAIR,
    GUARD,
    LONG,
    NEEDED,
    OWN,
    SHORT,
    allowed,
    as_dict,
    server,
)

__all__ = ["server"]  # a fixture

pytestmark = pytest.mark.integration

BOTH = ("app:a", "app:b")


async def several_work(url: str, master: EmbeddedMaster, *, fencing: bool = False) -> bool:
    """Acquire, extend, set again, be refused, release; return whether all went."""
    redlock = Redlock([url], master_timeout=TIMEOUT, fencing=fencing)
    try:
        async with redlock.lock(*BOTH, ttl=5_000, wait=0) as lease:
            renewal = redlock._opener.session().watchdog.renew(
                lease._hold, 60_000, redlock._opener.session().masters.clock()
            )
            await until(lambda: renewal.complete)
            if renewal.votes()[0].answer is not Answer.GRANTED:
                return False
            call(master, "DEL", BOTH[1])
            Restoration(redlock._opener.session().masters, lease._hold).send_to(0)
            await until(lambda: call(master, "GET", BOTH[1]) == lease.token, within=SHORT)
            refused = await asyncio.create_task(error_of(redlock))
            if refused.holder is None or refused.holder.fingerprint != lease.fingerprint:
                return False
        return all(gone([master], name) for name in BOTH)
    except (AssertionError, LockNotAcquiredError):
        return False
    finally:
        await redlock.aclose()


async def error_of(redlock: Redlock) -> LockNotAcquiredError:
    """Return why both can't be had."""
    with pytest.raises(LockNotAcquiredError) as refused:
        await redlock.lock(*BOTH, wait=0).acquire()
    return refused.value


async def holder_is_told(url: str, master: EmbeddedMaster, patience: float) -> bool:
    """Return whether a holder hears at once that one of the keys is gone."""
    async with Redlock([url], master_timeout=TIMEOUT) as redlock:
        lease = await redlock.lock(*BOTH, ttl=60_000).acquire()
        await asyncio.sleep(0.2)
        call(master, "DEL", BOTH[0])
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(lease.lost.wait(), patience)
        told = not lease.valid
        with contextlib.suppress(LockLostError, Exception):
            await lease.release()
        return told


async def waiter_is_woken(url: str, master: EmbeddedMaster, patience: float) -> bool:
    """Return whether who waits in the queues is woken by a stranger's DEL."""
    put([master], BOTH[0], 60_000)
    async with Redlock([url], master_timeout=TIMEOUT) as redlock:
        lock = redlock.lock(*BOTH, fair=True, retry=SELDOM)
        waiter = asyncio.create_task(lock.acquire())
        await asyncio.sleep(0.1)
        call(master, "DEL", BOTH[0])
        await asyncio.wait([waiter], timeout=patience)
        woken = waiter.done()
        await (await waiter).release()
        return woken


@pytest.mark.promise("S10")
@pytest.mark.parametrize("fencing", [False, True])
async def test_the_permissions_for_one_are_enough_for_several(
    server: EmbeddedMaster, caplog: pytest.LogCaptureFixture, *, fencing: bool
) -> None:
    own = (*GUARD, *COUNTERS) if fencing else GUARD
    with allowed(server, *NEEDED, own=own) as url, caplog.at_level(logging.INFO):
        assert await several_work(url, server, fencing=fencing)
        assert not caplog.text
        refused = {entry["object"] for entry in map(as_dict, call(server, "ACL", "LOG"))}
        assert refused <= {"client|setinfo", "delifeq"}  # tried once, and not needed


@pytest.mark.parametrize("missing", ["evalsha", "script|load", "get", "set", "del", "pexpire"])
async def test_each_is_needed_for_several(server: EmbeddedMaster, missing: str) -> None:
    with allowed(server, *(command for command in NEEDED if command != missing)) as url:
        assert not await several_work(url, server)


async def test_who_has_or_waits_for_several_is_told_of_changes(server: EmbeddedMaster) -> None:
    """A waiter in the queues that is not told asks again after a heartbeat, at most 1 s later."""
    with allowed(server, *NEEDED) as url:
        assert await holder_is_told(url, server, LONG)
    with allowed(server, *NEEDED, *FAIR, own=OWN) as url:
        assert await waiter_is_woken(url, server, LONG)
