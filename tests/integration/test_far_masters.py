"""Masters that are far away: a proxy before each holds back what is said in both directions."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import pytest

from redlock_aio import Answer, QuorumUnavailableError, Redlock

from .helpers import RealMaster, Stopwatch, urls
from .proxy import proxied

pytestmark = pytest.mark.integration
Far = Callable[..., AbstractAsyncContextManager[Redlock]]


@pytest.fixture
def far(masters: list[RealMaster]) -> Far:
    @asynccontextmanager
    async def far(round_trip: float, master_timeout: int | None = None) -> AsyncIterator[Redlock]:
        async with proxied(urls(masters)) as proxies:
            for proxy in proxies:
                proxy.delay = round_trip / 2
            where = [proxy.url for proxy in proxies]
            async with Redlock(
                where, master_timeout=master_timeout, restart_guard="off"
            ) as redlock:
                yield redlock

    return far


@pytest.mark.parametrize("fair", [False, True])
async def test_locks_are_had_over_a_long_way_with_default_options(far: Far, *, fair: bool) -> None:
    async with far(0.08) as redlock:
        assert 160 <= redlock.master_timeout <= 1_000
        for number in range(5):
            async with redlock.lock(f"r{number}", wait=0, fair=fair) as lease:
                await lease.extend()
                assert lease.valid


async def test_attempts_do_not_fail_under_load_over_a_long_way(far: Far) -> None:
    async with far(0.04) as redlock:

        async def work(number: int) -> None:
            for _ in range(5):
                async with redlock.lock(f"r{number}", wait=0):
                    pass

        await asyncio.gather(*(work(number) for number in range(200)))


async def test_an_error_says_that_the_time_out_is_shorter_than_the_way(far: Far) -> None:
    async with far(0.08, master_timeout=50) as redlock:
        with pytest.raises(QuorumUnavailableError) as caught:
            await redlock.lock("r", wait=0).acquire()
        slow = [vote for vote in caught.value.votes if vote.answer is Answer.TIMED_OUT]
        assert len(slow) >= 3
        assert all("its answers take" in vote.detail for vote in slow)
        assert "master_timeout is 50 ms" in str(caught.value)


@pytest.mark.promise("S6")
async def test_masters_that_hang_cost_nothing_more_over_a_long_way(
    far: Far, masters: list[RealMaster]
) -> None:
    async with far(0.08) as redlock:
        for master in masters[:2]:
            master.pause()
        watch = Stopwatch()
        for number in range(10):
            async with redlock.lock(f"r{number}"):
                pass
        assert watch.ms < 5_000
        for master in masters[:2]:
            master.resume()
