"""Thousands of contended locks leave nothing behind, in this process or on the masters."""

import asyncio

import pytest

from redlock_aio import Redlock
from tests.unit import kit

from .helpers import RealMaster, call, connected, leftovers, until

pytestmark = pytest.mark.integration


@pytest.mark.promise("S9")
@pytest.mark.parametrize("keys", [1, 20])
@pytest.mark.full
async def test_contended_locks_leave_nothing(masters: list[RealMaster], keys: int) -> None:
    """Lock 2,500 times, plain and fair, by three managers."""
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
        await until(lambda: not leftovers(masters), within=5)
        await until(lambda: [call(master, "DBSIZE") for master in masters] == [0] * 5)
        assert asyncio.all_tasks() == before
        for manager in managers:
            # A release ends with the replies of a majority; the others reply a little later.
            await until(lambda manager=manager: is_idle(manager))  # type: ignore[misc]
            session = kit.session(manager)
            assert len(session.local_queues.by_key) == keys
            assert all(queue.idle for queue in session.local_queues.by_key.values())
            assert not session.watchdog._agenda.leases()


def is_idle(redlock: Redlock) -> bool:
    """Return whether no round is underway and no debt is left."""
    state = redlock.statistics()
    pending = any(master.pending for master in state.masters)
    return not (state.rounds or state.leases or state.waiters or state.debts or pending)
