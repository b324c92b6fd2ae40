"""Real masters that restart or are flushed: nobody gets in while a lease may be believed."""

import asyncio
import contextlib
import logging
from collections.abc import Iterator, Sequence
from time import monotonic
from typing import Any

import pytest

from redlock_aio import Answer, QuorumUnavailableError, Redlock
from redlock_aio._rules.timing import DRIFT_FACTOR, forgetting
from redlock_aio.testing import EmbeddedMaster

from .forgetful import restart_all
from .helpers import MARKER, TIMEOUT, Stopwatch, call, connected, until, up, urls
from .servers import process

MAX_TTL = 3_000
LASTS = forgetting(MAX_TTL, factor=DRIFT_FACTOR)
LATE = 10.0
"""Seconds by which a master may vote later: uptimes are whole seconds, and a machine is slow."""

EARLY = 1.5
"""Seconds by which it may vote earlier than so long after its start: the same, and rounding."""

pytestmark = [pytest.mark.integration, pytest.mark.promise("S1")]


@pytest.fixture
def fresh(kind: str) -> Iterator[list[EmbeddedMaster]]:
    """Five masters that nobody has used."""
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(process(kind)) for _ in range(5)]


def guarded(masters: Sequence[EmbeddedMaster], **options: Any) -> Any:
    options = {"restart_guard": "auto", "max_ttl": MAX_TTL, **options}
    return connected(masters, **options)


async def in_use(masters: Sequence[EmbeddedMaster]) -> None:
    """Let the masters be a set that is not new any more."""
    async with guarded(masters) as redlock, redlock.lock("r", ttl=MAX_TTL):
        await until(lambda: states(masters) == ["member"] * 5)


def states(masters: Sequence[EmbeddedMaster]) -> list[str]:
    return [(call(master, "GET", MARKER) or "- none").split()[1] for master in masters]


def votes(redlock: Redlock) -> list[bool]:
    return [master.votes for master in redlock.statistics().masters]


async def gets_in(masters: Sequence[EmbeddedMaster]) -> bool:
    """Return whether a program that knows nothing gets the lock at once."""
    async with Redlock(urls(masters), max_ttl=MAX_TTL, master_timeout=TIMEOUT) as newcomer:
        lease = await newcomer.lock("r", ttl=MAX_TTL, wait=0).try_acquire()
        if lease is not None:
            await lease.release()
        return lease is not None


@pytest.mark.parametrize("managers", [1, 3])
async def test_a_new_set_is_usable_at_once(fresh: list[EmbeddedMaster], managers: int) -> None:
    async def first_use(number: int) -> None:
        redlock = Redlock(urls(fresh), master_timeout=TIMEOUT)
        async with redlock, redlock.lock(f"r{number}", wait=0):
            pass

    await asyncio.gather(*map(first_use, range(managers)))
    assert states(fresh) == ["member"] * 5


async def test_a_majority_that_restarted_empty_lets_nobody_in_before_the_deadline(
    fresh: list[EmbeddedMaster],
) -> None:
    await in_use(fresh)
    async with guarded(fresh) as redlock:
        lease = await redlock.lock("r", ttl=MAX_TTL).acquire()
        since = Stopwatch()
        restart_all(fresh[:3])
        while lease.valid:
            got = await gets_in(fresh)
            assert not (got and lease.valid)
            await asyncio.sleep(0.05)
        assert since.ms > 500
        while not await gets_in(fresh):
            assert since.ms < 1000 * (LASTS + LATE)
            await asyncio.sleep(0.05)
        # Its time counts from the start of the server, in whole seconds.
        assert since.ms > 1000 * (LASTS - EARLY)


@pytest.mark.full
async def test_a_newcomer_after_a_quick_restart_of_all_waits(fresh: list[EmbeddedMaster]) -> None:
    await in_use(fresh)
    async with guarded(fresh) as redlock:
        restarted = []
        for number, master in enumerate(fresh):
            restarted.append(monotonic())
            master.restart()
            await until(lambda: up(redlock) == 5)
            await until(lambda at=number: states(fresh)[at] == "rejoining")  # type: ignore[misc]
        # Unless all that took so long that three of them vote again.
        assert not await gets_in(fresh) or monotonic() > restarted[2] + LASTS - EARLY
        await until(lambda: all(votes(redlock)), within=LASTS + LATE)
        assert await gets_in(fresh)


@pytest.mark.parametrize("flushed", [1, 3, 5])
async def test_a_flush_takes_the_vote_away(fresh: list[EmbeddedMaster], flushed: int) -> None:
    await in_use(fresh)
    async with guarded(fresh) as redlock:
        async with redlock.lock("r", ttl=MAX_TTL, auto_extend=False) as lease:
            for master in fresh[:flushed]:
                call(master, "FLUSHALL")
            gone = Stopwatch()
            await until(lambda: votes(redlock) == [False] * flushed + [True] * (5 - flushed))
            assert gone.ms < 1000 * LASTS
            await until(lambda: states(fresh)[:flushed] == ["rejoining"] * flushed)
            assert lease.valid
            assert not await gets_in(fresh)
        await until(lambda: all(votes(redlock)), within=LASTS + LATE)
        assert await gets_in(fresh)


async def test_a_flush_of_another_database_costs_a_moment(fresh: list[EmbeddedMaster]) -> None:
    await in_use(fresh)
    async with guarded(fresh) as redlock, redlock.lock("r", ttl=MAX_TTL) as lease:
        before = [master._connection for master in redlock._opener.session().links]
        for master in fresh:
            with master.client() as client:
                client.select(1)
                client.flushdb()
        await until(
            lambda: all(
                m._connection not in (None, *before) for m in redlock._opener.session().links
            )
        )
        await until(lambda: all(votes(redlock)))
        assert lease.valid


async def test_a_marker_that_is_deleted_is_missed(fresh: list[EmbeddedMaster]) -> None:
    await in_use(fresh)
    async with guarded(fresh) as redlock:
        call(fresh[0], "DEL", MARKER)
        await until(lambda: states(fresh)[0] == "rejoining", within=LASTS)
        await until(lambda: not votes(redlock)[0])


async def test_the_error_says_why_and_for_how_long(
    fresh: list[EmbeddedMaster], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "redlock_aio")
    await in_use(fresh)
    async with guarded(fresh) as redlock:
        restart_all(fresh[:3])
        await until(lambda: up(redlock) == 5 and votes(redlock) == [False] * 3 + [True] * 2)
        with pytest.raises(QuorumUnavailableError, match="it votes again in") as caught:
            await redlock.lock("r", wait=0, ttl=MAX_TTL).acquire()
        assert [vote.answer for vote in caught.value.votes[:3]] == [Answer.QUARANTINED] * 3
        await until(lambda: all(votes(redlock)), within=LASTS + LATE)
    assert caplog.text.count("quarantined, it restarted") == 3
    assert caplog.text.count("votes again\n") == 3


@pytest.mark.promise("S9")
@pytest.mark.parametrize("fair", [False, True])
@pytest.mark.full
async def test_who_waits_gets_the_lock_when_the_quarantine_ends(
    fresh: list[EmbeddedMaster], fair: bool
) -> None:
    await in_use(fresh)
    async with guarded(fresh) as redlock:
        restarted = Stopwatch()
        restart_all(fresh[:3])
        async with redlock.lock("r", ttl=MAX_TTL, fair=fair, wait=20_000):
            assert 1000 * (LASTS - EARLY) < restarted.ms < 1000 * (LASTS + LATE)


async def test_without_a_guard_there_is_no_marker(fresh: list[EmbeddedMaster]) -> None:
    async with connected(fresh, restart_guard="off") as redlock, redlock.lock("r"):
        assert states(fresh) == ["none"] * 5
