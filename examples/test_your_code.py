"""
How to test a program that takes locks, with pytest and pytest-asyncio.

``pip install 'redlock-aio[demo]'`` brings a server to run.
"""

from collections.abc import AsyncIterator, Iterator

import pytest
import pytest_asyncio

from redlock_aio import LockLostError, LockNotAcquiredError, Redlock
from redlock_aio.testing import EmbeddedMaster, embedded_masters


@pytest.fixture
def masters() -> Iterator[list[EmbeddedMaster]]:
    with embedded_masters(3) as running:
        yield running


@pytest_asyncio.fixture
async def redlock(masters: list[EmbeddedMaster]) -> AsyncIterator[Redlock]:
    async with Redlock([master.url for master in masters]) as manager:
        yield manager


@pytest.mark.asyncio
async def test_nobody_else_gets_it(redlock: Redlock) -> None:
    async with redlock.lock("invoice:42"):
        with pytest.raises(LockNotAcquiredError):
            await redlock.lock("invoice:42", wait=0).acquire()


@pytest.mark.asyncio
async def test_a_hung_minority_is_no_obstacle(
    redlock: Redlock, masters: list[EmbeddedMaster]
) -> None:
    masters[0].pause()
    async with redlock.lock("invoice:42", wait=1_000) as lease:
        lease.ensure_valid()


@pytest.mark.asyncio
async def test_a_lost_majority_ends_the_body(
    redlock: Redlock, masters: list[EmbeddedMaster]
) -> None:
    with pytest.raises(LockLostError):
        async with redlock.lock("invoice:42", ttl=500) as lease:
            for master in masters[:2]:
                master.kill()
            await lease.lost.wait()
