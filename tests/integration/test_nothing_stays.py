"""After thousands of contended locks there is nothing left of them, here or on the masters."""

import asyncio

import pytest

from redlock_aio import Redlock
from redlock_aio._engine.wait.local_queue import IDLE_QUEUES

from .helpers import RealMaster, call, connected, own_keys, until

pytestmark = pytest.mark.integration


@pytest.mark.promise("S9")
@pytest.mark.parametrize("keys", [1, 20])
@pytest.mark.full
async def test_contended_locks_leave_nothing(masters: list[RealMaster], keys: int) -> None:
    """32: 2,500 plain and fair ones, of three managers; twice that with both numbers of keys."""
    left = iter(range(2_500))

    async def worker(manager: Redlock, *, fair: bool) -> None:
        for number in left:
            async with manager.lock(f"r{number % keys}", fair=fair):
                await asyncio.sleep(0)

    async with connected(masters) as a, connected(masters) as b, connected(masters) as c:
        managers = (a, b, c)
        before = asyncio.all_tasks()
        await asyncio.gather(
            *(worker(manager, fair=fair) for manager in managers for fair in (True, False) * 2)
        )
        await until(lambda: not own_keys(masters), within=5)
        await until(lambda: [call(master, "DBSIZE") for master in masters] == [0] * 5)
        assert asyncio.all_tasks() == before
        for manager in managers:
            # A release is over with a majority; the others answer a little later.
            session = manager._opener.session()
            await until(lambda links=session.links: not any(each.pending for each in links))  # type: ignore[misc]
            await until(lambda links=session.links: not any(each.debts for each in links))  # type: ignore[misc]
            assert len(session.local_queues.by_key) == keys
            assert all(line.idle for line in session.local_queues.by_key.values())
            assert not any(line._queue for line in session.local_queues.by_key.values())
            assert session.watchdog.held == 0
            assert len(manager._opener.session().watchdog._heap) <= 256


async def test_names_that_are_used_once_are_forgotten(redlock: Redlock) -> None:
    """48: who wanted them is remembered for some of them, however many there are."""
    for number in range(5 * IDLE_QUEUES):
        async with redlock.lock(f"r{number}", fair=number % 5 == 0):
            pass
        assert len(redlock._opener.session().local_queues.by_key) <= 2 * IDLE_QUEUES
