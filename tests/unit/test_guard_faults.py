"""Masters that refuse, hang or are flushed in the very moment in which the guard looks at them."""

import asyncio
from collections.abc import Callable

import pytest

from redlock_aio import Redlock
from redlock_aio._protocol.commands import MARKER
from redlock_aio._transport.master import Master
from redlock_aio.testing import FakeMaster
from redlock_aio.testing._fake_lua import Error
from redlock_aio.testing._fake_pushes import PushReceiver

from .kit import now

pytestmark = pytest.mark.promise("S1")


def state(master: Master) -> str:
    """Return how the guard sees a master."""
    sentry = master._sentry
    return sentry.state.name if sentry and sentry.state else ""


def states(redlock: Redlock) -> list[str]:
    return [state(master) for master in redlock._opener.session().links]


def meddle(master: FakeMaster, verb: bytes, act: Callable[[], object], *, before: bool) -> None:
    """Have something happen when *master* is asked about its marker."""
    execute = master.execute

    def meddled(command: list[bytes], listener: PushReceiver | None = None) -> object:
        if command[:2] != [verb, MARKER]:
            return execute(command, listener)
        if before and (answer := act()) is not None:
            return answer
        reply = execute(command, listener)
        if not before:
            act()
        return reply

    vars(master)["execute"] = meddled


@pytest.fixture
async def three() -> list[FakeMaster]:
    masters = [FakeMaster(f"m{i}") for i in range(3)]
    for master in masters:
        master.uptime = 0
    return masters


async def test_one_of_a_new_set_that_is_full_does_not_keep_the_others_from_voting(
    three: list[FakeMaster],
) -> None:
    full = Error("OOM command not allowed when used memory > 'maxmemory'.")
    meddle(three[0], b"SET", lambda: full, before=True)
    async with Redlock(three) as redlock:
        async with redlock.lock("r"):
            assert now() < 2
        assert states(redlock)[1:] == ["MEMBER"] * 2
        assert states(redlock)[0] != "MEMBER"


async def test_one_of_a_new_set_that_hangs_does_not_keep_the_others_from_voting(
    three: list[FakeMaster],
) -> None:
    meddle(three[0], b"SET", three[0].hang, before=True)
    async with Redlock(three) as redlock:
        async with redlock.lock("r"):
            assert now() < 5
        assert states(redlock)[1:] == ["MEMBER"] * 2


async def test_a_new_set_may_have_a_server_that_has_been_up_for_long(
    three: list[FakeMaster],
) -> None:
    three[2].uptime = 1e6
    async with Redlock(three) as redlock, redlock.lock("r", wait=0):
        assert now() < 2


async def test_an_old_set_may_not_have_young_servers(three: list[FakeMaster]) -> None:
    three[2].uptime = 1e6
    async with Redlock(three[2:], key_prefix="another:") as redlock:
        await asyncio.sleep(1)
        assert states(redlock) == ["MEMBER"]
    async with Redlock(three) as redlock:
        await asyncio.sleep(1)
        assert states(redlock) == ["QUARANTINED", "QUARANTINED", "MEMBER"]


async def test_a_flush_right_behind_the_reading_of_the_marker_is_noticed() -> None:
    masters = [FakeMaster(f"m{i}") for i in range(3)]
    async with Redlock(masters) as redlock:
        await asyncio.sleep(0.1)
        assert states(redlock) == ["MEMBER"] * 3
        flushed: list[float] = []

        def flush() -> None:
            if not flushed:
                flushed.append(now())
                masters[0].flush()

        meddle(masters[0], b"GETRANGE", flush, before=False)
        masters[0].cut()
        await asyncio.sleep(1)
        assert flushed
        assert states(redlock) == ["QUARANTINED", "MEMBER", "MEMBER"]


async def test_where_nothing_is_told_of_changes_it_is_said_that_flushes_are_seen_late(
    caplog: pytest.LogCaptureFixture,
) -> None:
    masters = [FakeMaster(f"m{i}") for i in range(3)]
    for master in masters:
        master.forbid.add("CLIENT")
    async with Redlock(masters) as redlock:
        await asyncio.sleep(0.1)
        assert caplog.text.count("a flush is seen late") == 3
        masters[0].flush()
        await asyncio.sleep(17)
        assert states(redlock) == ["QUARANTINED", "MEMBER", "MEMBER"]


async def test_a_server_that_is_back_without_a_vote_is_freed_as_it_was_before() -> None:
    """With a script, as long as it lacks the command."""
    masters = [FakeMaster(f"m{i}") for i in range(3)]
    masters[0].forbid.add("DELIFEQ")
    async with Redlock(masters) as redlock:
        masters[0].kill()
        masters[1].cut()
        await asyncio.sleep(1)
        masters[0].restart()
        await asyncio.sleep(3)
        assert states(redlock) == ["QUARANTINED", "MEMBER", "MEMBER"]
        masters[0].commands.clear()
        async with redlock.lock("r"):
            pass
        assert not [command for command in masters[0].commands if command[0] == b"DELIFEQ"]


async def test_masters_that_come_and_go_do_not_hold_up_a_single_try(
    three: list[FakeMaster],
) -> None:
    three[2].kill()

    async def flap() -> None:
        while True:
            await asyncio.sleep(0.3)
            for master in three[:2]:
                master.cut()

    flapping = asyncio.create_task(flap())
    async with asyncio.timeout(5):
        redlock = Redlock(three)
        assert await redlock.lock("r").try_acquire() is None
    flapping.cancel()
    await redlock.aclose()
