"""Redis 6.0, whose INFO does not tell the server's time: the restart guard asks for it."""

import asyncio

import pytest

from redlock_aio import Redlock
from redlock_aio._protocol.scripts import DECLARE
from redlock_aio._rules.quarantine import Marker
from redlock_aio.testing import FakeMaster

from .kit import MAX_TTL, QUARANTINE, answers, before, restart

pytestmark = pytest.mark.promise("S1")


class Redis60(FakeMaster):
    """A master whose ``INFO`` lacks the time."""

    def _do_info(self) -> object:
        lines = bytes(super()._do_info()).split(b"\r\n")  # type: ignore[call-overload]
        return b"\r\n".join(line for line in lines if not line.startswith(b"server_time_usec"))


@pytest.fixture
def masters() -> list[FakeMaster]:
    return [Redis60(f"m{number}") for number in range(5)]


def marker(master: FakeMaster) -> Marker:
    found = Marker.parse((master.marker or "").encode())
    assert found is not None
    return found


async def test_a_marker_has_the_time_of_the_master(masters: list[FakeMaster]) -> None:
    """By it other programs recognise a marker that was written anew after a flush."""
    async with Redlock(masters, max_ttl=MAX_TTL) as redlock:
        assert await answers(redlock) == "GGGGG"
        first = marker(masters[0])
        masters[0].flush()
        await asyncio.sleep(1)
        assert await answers(redlock) == "QGGGG"
        assert marker(masters[0]).rejoining
        assert 0 < first.number < marker(masters[0]).number


async def test_a_program_that_comes_later_waits_for_the_rest_only(
    masters: list[FakeMaster],
) -> None:
    async with Redlock(masters, max_ttl=MAX_TTL) as redlock:
        assert await answers(redlock) == "GGGGG"
        restart(masters[:1])
        await asyncio.sleep(0.9 * QUARANTINE)
    async with Redlock(masters, max_ttl=MAX_TTL) as later:
        assert await answers(later) == "QGGGG"
        await asyncio.sleep(0.2 * QUARANTINE)
        assert await answers(later) == "GGGGG"


async def test_a_longer_quarantine_counts_from_the_restart(masters: list[FakeMaster]) -> None:
    """A program with a longer max_ttl may have lost a lock that lives longer."""
    async with Redlock(masters, max_ttl=MAX_TTL) as redlock:
        assert await answers(redlock) == "GGGGG"
        restart(masters[:1])
        await asyncio.sleep(1.5 * QUARANTINE)
        assert await answers(redlock) == "GGGGG"
    async with Redlock(masters, max_ttl=6 * MAX_TTL) as longer:
        assert (await answers(longer))[0] == "Q"


async def test_a_master_that_goes_away_before_it_tells_the_time_is_dialled_again(
    masters: list[FakeMaster],
) -> None:
    asked = 0
    execute = masters[0].execute

    def dying(command: list[bytes], *args: object) -> object:
        nonlocal asked
        if command == [b"TIME"]:
            asked += 1
            if asked == 1:
                masters[0].cut()
        return execute(command, *args)  # type: ignore[arg-type]

    vars(masters[0])["execute"] = dying
    async with Redlock(masters, max_ttl=MAX_TTL) as redlock:
        await asyncio.sleep(2)
        assert asked > 1
        assert await answers(redlock) == "GGGGG"


@pytest.mark.spread(0)
@pytest.mark.parametrize("slowest", [0.1 + step * 0.008 for step in range(16)])
async def test_a_set_that_is_founded_before_a_master_tells_the_time_ends_no_connection(
    masters: list[FakeMaster], slowest: float
) -> None:
    """
    A new master has no marker when it is examined; the time is asked in a second request.

    Before its reply comes, the marker is written and the master may vote. What was read before
    looks like a flush then.
    """
    for master in masters:
        master.uptime = 0
        master.latency = 0.02
    masters[4].latency = slowest

    def be_fast() -> None:
        masters[4].latency = 0.001

    before(masters[4], DECLARE, be_fast)
    async with Redlock(masters, max_ttl=MAX_TTL) as redlock:
        await asyncio.sleep(2)
        assert await answers(redlock) == "GGGGG"
    for master in masters:
        assert sum(command[:2] == [b"CLIENT", b"SETNAME"] for command in master.commands) == 1
