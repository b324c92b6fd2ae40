"""A quarantine that becomes longer because another program has a longer max_ttl."""

import asyncio

import pytest

from redlock_aio import Redlock
from redlock_aio.testing import FakeMaster

from . import kit
from .kit import MAX_TTL, QUARANTINE, answers, restart


@pytest.mark.promise("S1")
@pytest.mark.parametrize(("factor", "votes"), [(1.1, True), (6, False)], ids=["over", "not over"])
async def test_a_master_stops_voting_at_once_when_its_longer_quarantine_is_not_over(
    masters: list[FakeMaster], factor: float, votes: bool
) -> None:
    """
    The master may have lost a lock of the program with the longer max_ttl.

    A master that already has that max_ttl in its marker can vote. Together the two could
    grant this lock before the next examination of the first one.
    """
    async with Redlock(masters, max_ttl=MAX_TTL) as redlock:
        assert await answers(redlock) == "GGGGG"
        restart(masters[:1])
        await asyncio.sleep(2)
        assert await answers(redlock) == "QGGGG"
        await asyncio.sleep(1.5 * QUARANTINE)
        assert await answers(redlock) == "GGGGG"
        links = kit.session(redlock).links
        sentry = links[0]._sentry
        assert sentry is not None
        sentry._guard.learn(factor * QUARANTINE)
        assert [link.votes for link in links] == [votes, True, True, True, True]


@pytest.mark.promise("S1")
@pytest.mark.parametrize("fault", ["restart", "flush"])
async def test_a_quarantine_that_is_underway_becomes_longer(
    masters: list[FakeMaster], fault: str
) -> None:
    """A flush leaves no new run_id, by which the declared sets would refuse the vote as well."""
    async with Redlock(masters, max_ttl=MAX_TTL) as redlock:
        getattr(masters[0], fault)()
        await asyncio.sleep(2)
        sentry = kit.session(redlock).links[0]._sentry
        assert sentry is not None
        sentry._guard.learn(1.5 * QUARANTINE)
        for part, expected in ((0.7, "Q"), (0.5, "Q"), (0.3, "G")):
            await asyncio.sleep(part * QUARANTINE)
            assert await answers(redlock) == expected + "GGGG"


async def test_a_quarantine_is_as_long_for_a_program_that_closes_and_opens_its_manager(
    masters: list[FakeMaster],
) -> None:
    """A script may do so for each of its jobs, and an app for each request."""
    async with Redlock(masters, max_ttl=3 * MAX_TTL) as other:
        assert await answers(other) == "GGGGG"
        redlock = Redlock(masters, max_ttl=MAX_TTL)
        async with redlock:
            assert await answers(redlock) == "GGGGG"
        restart(masters[:1])
        await asyncio.sleep(1)
        for _ in range(10):
            async with redlock:
                assert await answers(redlock) == "QGGGG"
        await asyncio.sleep(3 * QUARANTINE)
        async with redlock:
            assert await answers(redlock) == "GGGGG"
