"""
How to test a program that uses locks, with pytest and pytest-asyncio.

The extra ``testing`` brings a server to run, and Lua for the fake master.

docs/tutorial/testing.md explains it.
"""

import asyncio
from collections.abc import AsyncIterator, Iterator

import pytest
import pytest_asyncio

from redlock_aio import Lease, LockLostError, LockNotAcquiredError, Redlock
from redlock_aio.testing import EmbeddedMaster, embedded_masters


async def send_invoice(redlock: Redlock, *, lasts: float) -> str:
    """Send an invoice under a lock; your code is here instead."""
    async with redlock.lock("invoice:42", ttl=500, wait=200) as lease:
        await asyncio.sleep(lasts)
        lease.ensure_valid()
        return "sent"


@pytest.fixture
def masters() -> Iterator[list[EmbeddedMaster]]:
    with embedded_masters(3) as running:
        yield running


@pytest_asyncio.fixture
async def redlock(masters: list[EmbeddedMaster]) -> AsyncIterator[Redlock]:
    async with Redlock([master.url for master in masters]) as manager:
        yield manager


@pytest.mark.asyncio
async def test_an_invoice_is_not_sent_by_two(redlock: Redlock) -> None:
    async with redlock.lock("invoice:42"):
        with pytest.raises(LockNotAcquiredError):
            await send_invoice(redlock, lasts=0)


@pytest_asyncio.fixture
async def editing(redlock: Redlock) -> AsyncIterator[Lease]:
    # pytest-asyncio ends a fixture in another task than the one that began it, so there is no task
    # to cancel if the lease is lost. With "flag" the test asks the lease itself, see below.
    async with redlock.lock("invoice:42", on_lost="flag") as lease:
        yield lease


@pytest.mark.asyncio
async def test_an_invoice_is_not_sent_while_it_is_edited(redlock: Redlock, editing: Lease) -> None:
    with pytest.raises(LockNotAcquiredError):
        await send_invoice(redlock, lasts=0)
    editing.ensure_valid()


@pytest.mark.asyncio
async def test_a_hung_master_is_no_obstacle(
    redlock: Redlock, masters: list[EmbeddedMaster]
) -> None:
    masters[0].pause()
    assert await send_invoice(redlock, lasts=0) == "sent"  # noqa: S101 - it is a test


@pytest.mark.asyncio
async def test_nothing_is_sent_without_a_majority(
    redlock: Redlock, masters: list[EmbeddedMaster]
) -> None:
    sending = asyncio.create_task(send_invoice(redlock, lasts=60))
    await asyncio.sleep(0.1)
    masters[0].kill()
    masters[1].kill()
    with pytest.raises(LockLostError):
        await sending
