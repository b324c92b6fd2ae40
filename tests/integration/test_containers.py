"""
The most important promises on masters in containers.

They need a Docker engine, and are skipped where there is none, unless
``REDLOCK_AIO_CONTAINERS=required`` makes that a failure. The tests run on processes
too: a test that fails in one case only shows a difference between the two.
"""

import pytest

from redlock_aio import Answer, LockLostError, LockNotAcquiredError, QuorumUnavailableError, Redlock

from .helpers import RealMaster, Stopwatch, call, connected, gone, pttls, put, until, up, values

pytestmark = pytest.mark.integration


@pytest.fixture(
    scope="session",
    params=["valkey", pytest.param("containers", marks=pytest.mark.containers)],
)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.mark.promise("S1")
async def test_a_lock_is_held_by_one(
    redlock: Redlock, other: Redlock, masters: list[RealMaster]
) -> None:
    async with redlock.lock("r", ttl=10_000) as lease:
        await until(lambda: values(masters, "r") == [lease.token] * 5)
        await until(lambda: all(vote.answer is Answer.GRANTED for vote in lease.votes))
        assert all(5_000 < left <= 10_000 for left in pttls(masters, "r"))
        assert await other.lock("r").try_acquire() is None
        await lease.extend(60_000)
        await until(lambda: all(left > 50_000 for left in pttls(masters, "r")))
    await until(lambda: gone(masters, "r"))
    put(masters[:3], "held")
    with pytest.raises(LockNotAcquiredError, match="held by others"):
        await redlock.lock("held", wait=0).acquire()
    await until(lambda: gone(masters[3:], "held"))


@pytest.mark.promise("S6")
async def test_a_paused_minority_costs_no_time(masters: list[RealMaster]) -> None:
    async with connected(masters, master_timeout=20_000) as redlock:
        for master in masters[:2]:
            master.pause()
        watch = Stopwatch()
        for _ in range(5):
            async with redlock.lock("r", ttl=60_000, wait=0) as lease:
                await lease.extend()
        assert watch.ms < 5_000
        for master in masters[:2]:
            master.resume()
        await until(lambda: gone(masters, "r"))


@pytest.mark.promise("S3")
async def test_a_paused_majority_ends_a_lease_and_keeps_no_key(masters: list[RealMaster]) -> None:
    async with connected(masters) as redlock:
        with pytest.raises(LockLostError):
            async with redlock.lock("r", ttl=1_500) as lease:
                await until(lambda: all(values(masters, "r")))
                for master in masters[:3]:
                    master.pause()
                await lease.lost.wait()
        with pytest.raises(QuorumUnavailableError):
            await redlock.lock("r", ttl=60_000, wait=0).acquire()
        for master in masters[:3]:
            master.resume()
        await until(lambda: up(redlock) == 5)
        await until(lambda: gone(masters, "r"))


@pytest.mark.spread(0)
async def test_masters_that_were_stopped_come_back(masters: list[RealMaster]) -> None:
    async with connected(masters) as redlock:
        async with redlock.lock("r", ttl=60_000) as lease:
            await until(lambda: all(values(masters, "r")))
            for master in masters[:2]:
                master.kill()
            await lease.extend()
        masters[2].kill()
        with pytest.raises(QuorumUnavailableError):
            await redlock.lock("r", wait=0).acquire()
        for master in masters[:3]:
            master.start()
        async with redlock.lock("r", wait=10_000):
            pass
        await until(lambda: up(redlock) == 5)


@pytest.mark.promise("S9")
async def test_a_key_of_a_plain_client_excludes_until_it_expires(
    redlock: Redlock, masters: list[RealMaster]
) -> None:
    for master in masters:
        assert call(master, "SET", "r", master.url, "NX", "PX", "1200")
    watch = Stopwatch()
    left = sorted(pttls(masters, "r"))[2]  # until then a majority has the key
    async with redlock.lock("r", wait=10_000):
        assert left > 0
        assert watch.ms > left - 2
