"""The faults of a fake master whose manager is in another thread, as a test causes them."""

import time
from collections.abc import Callable

import pytest

from redlock_aio import LockLostError, LockNotAcquiredError
from redlock_aio.sync import Redlock
from redlock_aio.testing import FakeMaster

FAULTS: dict[str, Callable[[FakeMaster], None]] = {
    "kill": FakeMaster.kill,
    "restart": FakeMaster.restart,
    "flush": FakeMaster.flush,
    "delete": lambda master: master.delete("r"),
    "set": lambda master: master.set("r", "another", ttl=60_000),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_lock_is_lost_by_a_fault(redlock: Redlock, masters: list[FakeMaster], fault: str) -> None:
    with pytest.raises(LockLostError), redlock.lock("r", ttl=2_000) as lease:
        for master in masters:
            FAULTS[fault](master)
        while lease.valid:
            time.sleep(0.01)
        lease.ensure_valid()


def test_a_lock_outlives_faults_that_end(redlock: Redlock, masters: list[FakeMaster]) -> None:
    with redlock.lock("r", ttl=2_000) as lease:
        for master in masters:
            master.cut()
        lease.extend()
        masters[0].hang()
        lease.extend()
        masters[0].resume()
        lease.extend()


def test_the_keys_can_be_looked_at(redlock: Redlock, masters: list[FakeMaster]) -> None:
    with redlock.lock("r"):
        assert sum("r" in master.keys for master in masters) >= 2
        assert max(master.pttl("r") for master in masters) > 0
        assert [master.marker for master in masters] == [None] * 3
    for master in masters:
        master.set("r", "another")
    with pytest.raises(LockNotAcquiredError), redlock.lock("r", wait=0):
        pass


def test_a_master_that_no_loop_has_used_has_no_keys() -> None:
    master = FakeMaster()
    master.set("r", "another")
    assert master.keys == {"r": "another"}
    master.kill()
    assert master.keys == {}
