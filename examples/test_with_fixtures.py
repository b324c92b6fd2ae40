"""
How to test a program that uses locks, with the fixtures of the pytest plugin.

docs/tutorial/testing.md explains it.
"""

import asyncio

import pytest

from redlock_aio import LockLostError, LockNotAcquiredError, Redlock
from redlock_aio.testing import EmbeddedMaster, FakeMaster, VirtualTime


async def send_invoice(redlock: Redlock, *, lasts: float) -> str:
    """Send an invoice under a lock; your code is here instead."""
    async with redlock.lock("invoice:42", ttl=500, wait=200) as lease:
        await asyncio.sleep(lasts)
        lease.ensure_valid()
        return "sent"


@pytest.mark.asyncio
async def test_an_invoice_is_not_sent_by_two(redlock: Redlock) -> None:
    async with redlock.lock("invoice:42"):
        with pytest.raises(LockNotAcquiredError):
            await send_invoice(redlock, lasts=0)


@pytest.mark.asyncio
async def test_a_hung_master_is_no_obstacle(
    redlock: Redlock, redlock_masters: list[EmbeddedMaster]
) -> None:
    redlock_masters[0].pause()  # the fixture resumes it for the next test
    assert await send_invoice(redlock, lasts=0) == "sent"  # noqa: S101 - it is a test


@pytest.mark.asyncio
async def test_an_invoice_that_takes_ten_minutes(
    redlock: Redlock, virtual_time: VirtualTime, fake_masters: list[FakeMaster]
) -> None:
    sending = asyncio.create_task(send_invoice(redlock, lasts=600))
    await asyncio.sleep(300)
    assert "invoice:42" in fake_masters[0].keys  # noqa: S101 - extended all the time
    virtual_time.stall(60)  # the machine stands still for a minute
    with pytest.raises(LockLostError):
        await sending


@pytest.mark.asyncio
@pytest.mark.usefixtures("virtual_time")
async def test_another_program_holds_the_lock(
    redlock: Redlock, fake_masters: list[FakeMaster]
) -> None:
    async with Redlock(fake_masters) as other, other.lock("invoice:42"):
        with pytest.raises(LockNotAcquiredError):
            await send_invoice(redlock, lasts=0)
