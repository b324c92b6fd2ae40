"""A release is one command on servers that have it, and a script on all others."""

import asyncio
from collections.abc import Callable

import pytest

from redlock_aio import LockNotHeldError, Redlock
from redlock_aio._protocol.scripts import RELEASE
from redlock_aio.testing import FakeMaster

from .kit import delete, hang, keys

pytestmark = pytest.mark.promise("S3")

COMMAND = "DELIFEQ"


def releases(master: FakeMaster) -> list[str]:
    """Return by what *master* was asked to free a lock."""
    said = []
    for name, *arguments in master.commands:
        if name == COMMAND.encode() and arguments[0] == b"r":
            said.append("command")
        elif name == b"EVALSHA" and arguments[0] == RELEASE.sha:
            said.append("script")
    return said


async def test_where_all_have_it_the_command_is_used(
    redlock: Redlock, masters: list[FakeMaster]
) -> None:
    for fencing in (False, True):
        lease = await redlock.lock("r", fencing=fencing).acquire()
        await lease.release()
    assert [releases(master) for master in masters] == [["command"] * 2] * 5
    assert not any("r" in master.keys for master in masters)


@pytest.mark.parametrize("without", [1, 5])
async def test_one_that_lacks_it_is_reason_enough_for_the_script(
    masters: list[FakeMaster], without: int
) -> None:
    for master in masters[:without]:
        master.forbid.add(COMMAND)
    async with Redlock(masters) as redlock:
        async with redlock.lock("r"):
            pass
        assert [releases(master) for master in masters] == [["script"]] * 5
        assert not any(master.keys for master in masters)


async def test_a_server_that_comes_back_without_it_is_noticed(
    redlock: Redlock, masters: list[FakeMaster]
) -> None:
    masters[0].kill()
    await asyncio.sleep(0.1)
    async with redlock.lock("r"):
        pass  # whoever is away does not matter
    assert [releases(master) for master in masters] == [[], *[["command"]] * 4]
    masters[0].forbid.add(COMMAND)
    masters[0].restart()
    await asyncio.sleep(2)
    async with redlock.lock("r"):
        pass
    assert [releases(master)[-1] for master in masters] == ["script"] * 5


async def test_a_command_that_is_withdrawn_costs_one_answer_and_is_not_used_again(
    redlock: Redlock, masters: list[FakeMaster]
) -> None:
    """Its script follows at once, and the release waits for that, as it would for the command."""
    leases = [await redlock.lock(name, ttl=60_000).acquire() for name in ("r", "s")]
    for master in masters[:3]:
        master.forbid.add(COMMAND)
    clock = asyncio.get_running_loop().time
    began = clock()
    await leases[0].release()
    assert keys(masters[:3]) == [{"s": leases[1].token}] * 3
    assert clock() - began == pytest.approx(0.002, abs=0.0005)  # two round trips
    await leases[1].release()
    assert clock() - began == pytest.approx(0.003, abs=0.0005)
    await asyncio.sleep(0.01)
    assert [releases(master) for master in masters[:3]] == [["command", "script", "script"]] * 3
    assert not any(command[:2] == [COMMAND.encode(), b"s"] for command in masters[0].commands)
    assert keys(masters) == [{}] * 5
    assert all("0 debts" in repr(master) for master in redlock._opener.session().links)


async def test_a_lock_that_was_lost_is_told_by_the_script_as_well(
    redlock: Redlock, masters: list[FakeMaster]
) -> None:
    lease = await redlock.lock("r", auto_extend=False).acquire()
    for master in masters[:3]:
        master.forbid.add(COMMAND)
        master.set("r", "theirs")
    with pytest.raises(LockNotHeldError, match="no longer has its key"):
        await lease.release()


def refuse(master: FakeMaster) -> None:
    """Let it forget that it allowed the command."""
    master.forbid.add(COMMAND)


def hang_for_a_while(master: FakeMaster) -> None:
    """Make *master* hang on this connection until another has been made."""
    master.hang()
    asyncio.get_running_loop().call_later(3, master.resume)


@pytest.mark.parametrize("happens", [refuse, hang_for_a_while])
async def test_a_command_that_is_not_confirmed_is_repeated_as_a_script(
    redlock: Redlock, masters: list[FakeMaster], happens: Callable[[FakeMaster], None]
) -> None:
    """By then the server may be one that does not have it."""
    lease = await redlock.lock("r", ttl=60_000).acquire()
    happens(masters[0])
    await lease.release()
    await asyncio.sleep(5)
    assert releases(masters[0])[-1] == "script"
    assert keys(masters) == [{}] * 5
    assert "0 debts" in repr(redlock._opener.session().links[0])


@pytest.mark.parametrize("gone", [2, 3])
async def test_it_tells_as_well_who_has_lost_the_lock_before(
    redlock: Redlock, masters: list[FakeMaster], gone: int
) -> None:
    lease = await redlock.lock("r", auto_extend=False).acquire()
    delete(masters[:gone])
    if gone < 3:
        await lease.release()
    else:
        with pytest.raises(LockNotHeldError, match="no longer has its key"):
            await lease.release()


async def test_masters_that_are_silent_do_not_say_that_it_was_lost(
    redlock: Redlock, masters: list[FakeMaster]
) -> None:
    """Two have freed it, one had lost it: that is no majority without it."""
    lease = await redlock.lock("r", auto_extend=False).acquire()
    masters[0].delete("r")
    hang(masters[3:])
    await lease.release()


async def test_another_value_is_not_touched(redlock: Redlock, masters: list[FakeMaster]) -> None:
    lease = await redlock.lock("r", auto_extend=False).acquire()
    masters[0].set("r", "theirs")
    await lease.release()
    await asyncio.sleep(0.1)
    assert masters[0].keys == {"r": "theirs"}
