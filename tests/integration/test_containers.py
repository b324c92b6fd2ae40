"""
What matters most, once more with masters in containers.

They need a Docker engine, and are skipped where none answers, unless
``REDLOCK_AIO_CONTAINERS=required`` makes that a failure. The file runs on
processes too, so that a difference is seen as such.
"""

import asyncio

import pytest

from redlock_aio import (
    Answer,
    LockLostError,
    LockNotAcquiredError,
    QuorumUnavailableError,
    Redlock,
)

from .helpers import (
    RealMaster,
    Stopwatch,
    call,
    connected,
    gone,
    pttls,
    put,
    until,
    up,
    urls,
    values,
)

pytestmark = pytest.mark.integration


@pytest.fixture(
    scope="session",
    params=["valkey", pytest.param("containers", marks=pytest.mark.containers)],
)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


async def test_acquire_and_release(redlock: Redlock, masters: list[RealMaster]) -> None:
    """1: one token on all masters, and nothing afterwards."""
    async with redlock.lock("r", ttl=10_000) as lease:
        await until(lambda: values(masters, "r") == [lease.token] * 5)
        await until(lambda: all(vote.answer is Answer.GRANTED for vote in lease.votes))
        assert all(5_000 < left <= 10_000 for left in pttls(masters, "r"))
    await until(lambda: gone(masters, "r"))


@pytest.mark.promise("S1")
async def test_contention(redlock: Redlock, other: Redlock, masters: list[RealMaster]) -> None:
    """31: a counter that tasks of two managers change is exact; held is held."""
    counter = 0

    async def worker(manager: Redlock) -> None:
        nonlocal counter
        for _ in range(3):
            async with manager.lock("r"):
                read = counter
                await asyncio.sleep(0)
                counter = read + 1

    await asyncio.gather(*(worker(manager) for manager in (redlock, other) * 3))
    assert counter == 18
    put(masters[:3], "held")
    with pytest.raises(LockNotAcquiredError, match="held by others"):
        await redlock.lock("held", wait=0).acquire()
    await until(lambda: gone(masters[3:], "held"))


async def test_extension(redlock: Redlock, other: Redlock, masters: list[RealMaster]) -> None:
    """33, 40: by hand and by itself, for much longer than the ttl."""
    async with redlock.lock("r", ttl=800) as lease:
        watch = Stopwatch()
        while watch.ms < 2_000:
            assert await other.lock("r").try_acquire() is None
            await asyncio.sleep(0.05)
        assert lease.valid
        await lease.extend(60_000)
        await until(lambda: all(left > 50_000 for left in pttls(masters, "r")))


@pytest.mark.promise("S6")
async def test_a_paused_minority(masters: list[RealMaster]) -> None:
    """9, 12: costs no time, and is cleaned when it goes on."""
    async with connected(masters, master_timeout=20_000) as redlock:
        masters[0].pause()
        masters[1].pause()
        watch = Stopwatch()
        for _ in range(5):
            async with redlock.lock("r", ttl=60_000, wait=0) as lease:
                await lease.extend()
        assert watch.ms < 5_000
        masters[0].resume()
        masters[1].resume()
        await until(lambda: gone(masters, "r"))


@pytest.mark.promise("S3")
async def test_a_paused_majority(masters: list[RealMaster]) -> None:
    """8, 12, 43: no lock in the meantime, a lost one in time, nothing left afterwards."""
    async with connected(masters) as redlock:
        with pytest.raises(LockLostError):
            async with redlock.lock("r", ttl=1_500):
                await until(lambda: all(values(masters, "r")))
                for master in masters[:3]:
                    master.pause()
                await asyncio.sleep(20)
        with pytest.raises(QuorumUnavailableError):
            await redlock.lock("r", ttl=60_000, wait=0).acquire()
        for master in masters[:3]:
            master.resume()
        await until(lambda: up(redlock) == 5)
        await until(lambda: gone(masters, "r"))
        async with redlock.lock("r", wait=5_000):
            pass


async def test_stop_and_start(masters: list[RealMaster]) -> None:
    """5, 42: a dead minority is no obstacle, a dead majority is; all come back."""
    async with connected(masters) as redlock:
        async with redlock.lock("r", ttl=60_000) as lease:
            await until(lambda: all(values(masters, "r")))
            masters[0].kill()
            masters[1].kill()
            await lease.extend()
            async with redlock.lock("another", wait=2_000):
                pass
        masters[2].kill()
        with pytest.raises(QuorumUnavailableError):
            await redlock.lock("r", wait=0).acquire()
        for master in masters[:3]:
            master.start()
        async with redlock.lock("r", wait=10_000):
            pass
        await until(lambda: up(redlock) == 5)


async def test_other_processes_with_plain_clients_see_the_same(
    redlock: Redlock, masters: list[RealMaster]
) -> None:
    """S9: whoever sets the key in the classic way excludes us, until it expires."""
    for url, master in zip(urls(masters), masters, strict=True):
        assert call(master, "SET", "r", url, "NX", "PX", "1200")
    watch = Stopwatch()
    left = sorted(pttls(masters, "r"))[2]  # until then a majority has it
    async with redlock.lock("r", wait=10_000):
        assert left > 0
        assert watch.ms > left - 2
