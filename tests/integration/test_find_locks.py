"""Which locks are held, found on real masters, and by the fake as by them."""

import pytest

from redlock_aio import Redlock
from redlock_aio.testing import FakeMaster

from .helpers import RealMaster, call, connected, put

NAMES = ["a", "a*", "a*b", "ab", "a?", "[a]", "a\\", "a\\*", "^a", "ключ🔒", "a b"]
PREFIXES = ["", "a", "a*", "a?", "[", "[a]", "a\\", "a\\*", "^", "ключ", "a ", "b", "*"]


@pytest.mark.integration
async def test_the_locks_with_a_prefix(masters: list[RealMaster], redlock: Redlock) -> None:
    fakes = [FakeMaster() for _ in range(3)]
    for name in NAMES:
        put(masters, name, 60_000)
        for fake in fakes:
            fake.set(name, "somebody else", 60_000)
    for master in masters:
        call(master, "HSET", "a hash", "field", "value")  # no string, and so no lock
    async with Redlock(fakes, restart_guard="off") as in_memory:
        for prefix in PREFIXES:
            wanted = sorted(name for name in NAMES if name.startswith(prefix))
            for manager in (redlock, in_memory):
                found = await manager.find_locks(prefix)
                assert sorted(state.resource for state in found.states) == wanted, prefix
                assert all(state.locked for state in found.states)
                assert found.complete


@pytest.mark.integration
async def test_many_keys_of_others(masters: list[RealMaster]) -> None:
    for master in masters:
        with master.client() as client:
            client.mset({f"other:{number}": "x" for number in range(5_000)})
    async with (
        connected(masters, key_prefix="app:") as redlock,
        redlock.lock("r", fair=True, fencing=True),
    ):
        found = await redlock.find_locks()
        assert [state.resource for state in found.states] == ["r"]
        assert found.complete
