"""Networks that drop, stall and cut connections, by a proxy in front of each master."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest

from redlock_aio import LockLostError, QuorumUnavailableError, Redlock, Retry
from tests.unit import kit

from .helpers import (
    RealMaster,
    Stopwatch,
    call,
    connected,
    gone,
    put,
    until,
    up,
    urls,
    values,
)
from .proxy import Proxy, proxied

pytestmark = pytest.mark.integration


@pytest.fixture
async def proxies(masters: list[RealMaster]) -> AsyncIterator[list[Proxy]]:
    async with proxied(urls(masters)) as proxies:
        yield proxies


@pytest.fixture
async def redlock(proxies: list[Proxy]) -> AsyncIterator[Redlock]:
    async with Redlock(
        [proxy.url for proxy in proxies], master_timeout=100, restart_guard="off"
    ) as redlock:
        await until(lambda: up(redlock) == 5)
        yield redlock


@pytest.mark.promise("S3")
async def test_a_connection_that_stays_silent_is_given_up_and_its_master_cleaned(
    redlock: Redlock, proxies: list[Proxy], masters: list[RealMaster]
) -> None:
    """Nothing passes in either direction; the master votes again when the network is back."""
    async with redlock.lock("r", ttl=60_000):
        await until(lambda: all(values(masters, "r")))
        proxies[0].stall()
    await until(lambda: up(redlock) == 4, what="it is given up")
    await until(lambda: gone(masters[1:], "r"))
    assert values(masters[:1], "r") != [None]
    proxies[0].resume()
    await until(lambda: gone(masters, "r"))
    await until(lambda: up(redlock) == 5)


@pytest.mark.promise("S5")
async def test_a_set_whose_reply_is_lost_leaves_nothing(
    redlock: Redlock, proxies: list[Proxy], masters: list[RealMaster]
) -> None:
    """The SET was executed; the client does not learn that, and releases the key nevertheless."""
    for proxy in proxies[:3]:
        proxy.dropping = True
    with pytest.raises(QuorumUnavailableError):
        await redlock.lock("r", ttl=60_000, wait=0).acquire()
    await until(lambda: all(proxy.dropped for proxy in proxies[:3]))
    await until(lambda: gone(masters, "r"))
    # The lost replies leave these connections out of step: no later reply may be taken for them.
    put(masters[:3], "r")
    for proxy in proxies[:3]:
        proxy.resume()
    assert await redlock.lock("r").try_acquire() is None
    await until(lambda: up(redlock) == 5)
    assert await redlock.lock("r").try_acquire() is None


@pytest.mark.promise("S1")
async def test_replies_that_come_late_are_never_taken_for_others(
    redlock: Redlock, proxies: list[Proxy], masters: list[RealMaster]
) -> None:
    """
    One resource is held, one is free, and replies arrive after their attempt has ended.

    If a late "OK" for the free resource counted for the held one, the held one would
    have two holders.
    """
    put(masters[:3], "held")
    for proxy in proxies[:3]:
        proxy.replies.clear()
    with pytest.raises(QuorumUnavailableError):
        await redlock.lock("free", wait=0).acquire()
    waiting = asyncio.create_task(redlock.lock("held", wait=0).acquire())
    await asyncio.sleep(0)
    for proxy in proxies[:3]:
        proxy.resume()
    with pytest.raises(Exception, match="held"):
        await waiting
    await until(lambda: values(masters, "held") == ["somebody else"] * 3 + [None] * 2)


@pytest.mark.promise("S3")
@pytest.mark.parametrize("how", ["cut", "reset"])
async def test_connections_that_end_under_an_attempt_leave_nothing(
    redlock: Redlock, proxies: list[Proxy], masters: list[RealMaster], how: str
) -> None:
    """The SET was executed, and no connection is left for the release: it becomes a debt."""
    for proxy in proxies[:3]:
        proxy.replies.clear()
    attempt = redlock.lock("r", ttl=60_000, retry=Retry(attempts=1)).acquire()
    waiting = asyncio.create_task(attempt)
    await until(lambda: all(values(masters, "r")))
    for proxy in proxies[:3]:
        getattr(proxy, how)()
    with pytest.raises(QuorumUnavailableError):
        await waiting
    for proxy in proxies[:3]:
        proxy.resume()
    await until(lambda: gone(masters, "r"))
    await until(lambda: up(redlock) == 5)


@pytest.mark.promise("S2")
async def test_a_holder_that_is_cut_off_is_cancelled_in_time(
    redlock: Redlock, proxies: list[Proxy], masters: list[RealMaster]
) -> None:
    """It is cancelled before a key of its lease expires, by its own clock only."""
    with pytest.raises(LockLostError):
        async with redlock.lock("r", ttl=1_000) as lease:
            await until(lambda: all(values(masters, "r")))
            for proxy in proxies:
                proxy.stall()
            # The best of five upper bounds of each key's end: its ttl was read before the clock.
            clock = kit.session(redlock).masters.clock
            ends = [
                min(call(master, "PTTL", "r") / 1000 + clock() for _ in range(5))
                for master in masters
            ]
            try:
                await asyncio.sleep(20)
            finally:
                assert not lease.valid or lease.remaining <= 2
                # A busy machine runs timers late, so the time when it was due is compared.
                assert lease._hold.deadline < sorted(ends)[2]
                assert clock() < lease._hold.deadline + 1
    for proxy in proxies:
        proxy.resume()
    await until(lambda: gone(masters, "r"))


async def test_replies_that_come_in_pieces_are_understood(
    proxies: list[Proxy], masters: list[RealMaster]
) -> None:
    """Fifty replies arrive in pieces of three bytes: an incomplete reply waits for its rest."""
    async with connected(proxies, master_timeout=5_000) as redlock:
        for proxy in proxies:
            proxy.replies.clear()
        leases = [asyncio.create_task(redlock.lock(f"r{n}").acquire()) for n in range(50)]
        await until(lambda: all(call(master, "DBSIZE") == 50 for master in masters))
        for proxy in proxies:
            proxy.piece = 3
            proxy.resume()
        won = await asyncio.gather(*leases)
        await asyncio.gather(*(lease.release() for lease in won))
        await until(lambda: all(call(master, "DBSIZE") == 0 for master in masters))


@pytest.mark.promise("S6")
@pytest.mark.parametrize("fair", [pytest.param(False, marks=pytest.mark.full), True])
async def test_masters_that_are_far_away_grant_locks_with_default_options(
    proxies: list[Proxy], masters: list[RealMaster], *, fair: bool
) -> None:
    """The timeout adapts to the delay, also under load, and a hung minority costs no more time."""
    for proxy in proxies:
        proxy.delay = 0.04
    async with granted_at_once(proxies, fair=fair) as redlock:
        assert 160 <= redlock.master_timeout <= 1_000

        async def work(number: int) -> None:
            for _ in range(3):
                async with redlock.lock(f"r{number}", fair=fair):
                    pass

        await asyncio.gather(*map(work, range(100)))
        for master in masters[:2]:
            master.pause()
        watch = Stopwatch()
        await work(0)
        assert watch.ms < 5_000


@contextlib.asynccontextmanager
async def granted_at_once(proxies: list[Proxy], *, fair: bool) -> AsyncIterator[Redlock]:
    """Open a manager whose first attempt wins: one of five, because the proxies may pause."""
    pauses = 0
    while True:
        async with Redlock(urls(proxies), restart_guard="off") as redlock:
            try:
                async with redlock.lock("r", wait=0, fair=fair) as lease:
                    await lease.extend()
            except QuorumUnavailableError:
                # They run in this process. If it stands still for 80 ms, all answers are late.
                pauses += 1
                if pauses == 5:
                    raise
            else:
                yield redlock
                return
