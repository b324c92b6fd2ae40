"""Fencing tokens and counters of real servers, when scripts, keys or memory are lost."""

import pytest

from redlock_aio import QuorumUnavailableError, Redlock
from redlock_aio._protocol import commands
from redlock_aio._rules.fencing import KEPT

from .helpers import TIMEOUT, RealMaster, call, pttls, replied, until, up, values
from .servers import process

pytestmark = [pytest.mark.integration, pytest.mark.promise("S7")]

FENCE = "redlock_aio:fence:{r}"
BOTH = pytest.mark.parametrize("fair", [False, True])


@BOTH
async def test_counters_agree_also_when_scripts_are_flushed(
    redlock: Redlock, masters: list[RealMaster], *, fair: bool
) -> None:
    """Counters keep their 16 digits; the scripts are flushed before each round."""
    last = 2_000_000_000_000_006
    for master in masters[1:]:
        call(master, "SET", FENCE, last)
    for _ in range(3):
        for master in masters:
            call(master, "SCRIPT", "FLUSH")
        async with redlock.lock("r", wait=2_000, fencing=True, fair=fair) as lease:
            assert last < lease.fencing_token < last + 3
            last = lease.fencing_token
            assert values(masters, FENCE).count(str(last)) >= 3
            for _ in range(2):  # the first attempt may load the scripts, and is not repeated
                await lease.extend()
                await replied(redlock)
            assert lease.fencing_token == last
            assert values(masters, FENCE) == [str(last)] * 5
            assert all(KEPT - 5_000 < left <= KEPT for left in pttls(masters, FENCE))
    await replied(redlock)
    assert values(masters, "r") == [None] * 5


@pytest.mark.promise("S4")
async def test_masters_that_restart_get_the_lock_back(
    redlock: Redlock, masters: list[RealMaster]
) -> None:
    """The next extension restores it; after that two other masters may fail."""
    async with redlock.lock("r", ttl=60_000, fencing=True) as lease:
        for master in masters[:2]:
            master.restart()
        await until(lambda: up(redlock) < 5)
        await until(lambda: up(redlock) == 5)
        await lease.extend()
        await until(lambda: values(masters, "r") == [lease.token] * 5)
        assert all(55_000 < left <= 60_000 for left in pttls(masters, "r"))
        assert values(masters, FENCE) == [str(lease.fencing_token)] * 5
        for master in masters[3:]:
            call(master, "FLUSHALL")
        await lease.extend()
        assert lease.valid
    await replied(redlock)
    assert values(masters, "r") == [None] * 5


@pytest.mark.promise("S4")
async def test_a_lease_is_extended_and_released_where_memory_has_run_out(kind: str) -> None:
    """New acquisitions fail there."""
    with process(kind) as master:
        async with Redlock([master.url], master_timeout=TIMEOUT, fencing=True) as redlock:
            lease = await redlock.lock("r", ttl=60_000).acquire()
            call(master, "CONFIG", "SET", "maxmemory", "1", "maxmemory-policy", "noeviction")
            await lease.extend(50_000)
            assert 45_000 < call(master, "PTTL", "r") <= 50_000
            with pytest.raises(QuorumUnavailableError, match="OOM"):
                await redlock.lock("r2", wait=0).acquire()
            await lease.release()
            assert call(master, "GET", "r") is None


@pytest.mark.promise("S1")
async def test_a_master_without_memory_has_no_vote_until_the_set_stands_there(kind: str) -> None:
    """Otherwise a program with other masters, which comes when there is memory, sees no set."""
    key = commands.DECLARED_SETS.decode()
    with process(kind) as master:
        async with Redlock([master.url], master_timeout=TIMEOUT):
            assert call(master, "DEL", key) == 1
        call(master, "CONFIG", "SET", "maxmemory", "1", "maxmemory-policy", "noeviction")
        async with Redlock([master.url], master_timeout=TIMEOUT) as redlock:
            with pytest.raises(QuorumUnavailableError, match=r"not declared there yet: OOM"):
                await redlock.lock("r", wait=0).acquire()
            assert call(master, "EXISTS", key) == 0
            call(master, "CONFIG", "SET", "maxmemory", "0")
            async with redlock.lock("r", wait=10_000):
                assert call(master, "EXISTS", key) == 1
