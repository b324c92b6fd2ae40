"""Keys that have a lock's name and are no lock: they cost their own name, and nothing else."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest

from redlock_aio import (
    Answer,
    Lease,
    LockLostError,
    LockNotAcquiredError,
    Redlock,
    RedlockError,
)
from redlock_aio._protocol import commands

from .helpers import RealMaster, call, connected, heard, line, until

pytestmark = pytest.mark.integration

HUGE = 2 << 20
"""Bytes of a value that no lock has."""


@contextlib.asynccontextmanager
async def unrelated(redlock: Redlock) -> AsyncIterator[list[Lease]]:
    """Hold 20 other locks of the same manager, none of which may be lost meanwhile."""
    leases = [await redlock.lock(f"other:{number}").acquire() for number in range(20)]
    connections = [master._connection for master in redlock._opener.session().links]
    yield leases
    assert [master._connection for master in redlock._opener.session().links] == connections
    assert all(lease.valid for lease in leases)
    for lease in leases:
        await lease.release()


def sent(masters: list[RealMaster]) -> int:
    """Return how many bytes the masters have sent to anybody."""
    return sum(call(master, "INFO", "stats")["total_net_output_bytes"] for master in masters)


@pytest.mark.parametrize("names", [("r",), ("q", "r")], ids=["one", "several"])
@pytest.mark.parametrize("options", [{}, {"fencing": True}, {"fair": True}], ids=str)
async def test_a_huge_value_under_the_name_of_a_lock_ends_no_connection(
    redlock: Redlock, masters: list[RealMaster], names: tuple[str, ...], options: Any
) -> None:
    for master in masters:
        call(master, "SET", "r", "x" * HUGE, "PX", 60_000)
    async with unrelated(redlock):
        before = sent(masters)
        for wait in (0, 300):
            with pytest.raises(LockNotAcquiredError) as refused:
                await redlock.lock(*names, wait=wait, **options).acquire()
            assert {vote.answer for vote in refused.value.votes} <= {Answer.HELD, Answer.TIMED_OUT}
        await heard(redlock)
        assert sent(masters) - before < HUGE / 2


async def test_a_huge_value_is_inspected_and_looked_at_in_part(
    redlock: Redlock, masters: list[RealMaster]
) -> None:
    for master in masters:
        call(master, "SET", "r", "x" * HUGE, "PX", 60_000)
    async with unrelated(redlock):
        before = sent(masters)
        state = await redlock.inspect("r")
        assert state.locked
        assert state.holder is not None
        assert state.holder.name is None
        assert await redlock.is_locked("r")
        with contextlib.suppress(RedlockError):
            await redlock.force_release("r")
        assert sent(masters) - before < HUGE / 2


@pytest.mark.parametrize("names", [("r",), ("q", "r")], ids=["one", "several"])
async def test_a_holder_whose_key_is_overwritten_by_a_huge_value_is_told(
    redlock: Redlock, masters: list[RealMaster], names: tuple[str, ...]
) -> None:
    async with unrelated(redlock):
        with pytest.raises(LockLostError):
            async with redlock.lock(*names, ttl=60_000) as lease:
                await until(lambda: lease._hold.checked_at > 0)
                await heard(redlock)
                before = sent(masters)
                for master in masters:
                    call(master, "SET", "r", "x" * HUGE)
                await until(lambda: not lease.valid)
                lease.ensure_valid()
        assert sent(masters) - before < HUGE / 2


async def test_a_huge_marker_is_read_in_part(masters: list[RealMaster]) -> None:
    """It is nobody's marker, and is written anew."""
    name = commands.MARKER.decode()
    try:
        call(masters[0], "SET", name, "x" * HUGE)
        before = sent(masters)
        async with connected(masters, restart_guard="auto") as redlock:
            await until(lambda: call(masters[0], "STRLEN", name) < HUGE)
            await heard(redlock)
            assert sent(masters) - before < HUGE / 2
    finally:
        for master in masters:
            call(master, "DEL", name)


@pytest.mark.promise("S9")
async def test_who_has_or_waits_for_a_lock_is_told_also_when_scripts_are_forgotten(
    redlock: Redlock, masters: list[RealMaster]
) -> None:
    """A look is a script; one that was forgotten has read nothing, and is repeated."""
    with pytest.raises(LockLostError):
        async with redlock.lock("r", ttl=60_000) as lease:
            for master in masters:
                call(master, "SCRIPT", "FLUSH")
            await until(lambda: lease._hold.checked_at > 0)
            first = lease._hold.checked_at
            await until(lambda: lease._hold.checked_at > first, what="it looks again")
            await heard(redlock)
            for master in masters:
                call(master, "DEL", "r")
            await until(lambda: not lease.valid, within=5)
            lease.ensure_valid()
    for master in masters:
        call(master, "SCRIPT", "FLUSH")
    assert not await redlock.is_locked("r")


OTHERS = {
    "hash": ("HSET", "f", "v"),
    "list": ("RPUSH", "v"),
    "set": ("SADD", "v"),
    "zset": ("ZADD", "1", "v"),
    "stream": ("XADD", "*", "f", "v"),
}
"""How a key comes to be of each type that is no string."""


def fill(masters: list[RealMaster], kind: str, name: str = "r") -> None:
    """Let an application have a key of that type."""
    command, *arguments = OTHERS[kind]
    for master in masters:
        call(master, command, name, *arguments)


@pytest.mark.parametrize("other", OTHERS)
async def test_a_vote_names_the_type_of_a_key_that_is_no_lock(
    redlock: Redlock, masters: list[RealMaster], other: str
) -> None:
    fill(masters, other)
    wanted = f"WRONGTYPE the key holds a {other}, not a lock"
    for names in (("r",), ("q", "r")):
        for options in ({}, {"fencing": True}, {"fair": True}):
            made: Any = options
            with pytest.raises(LockNotAcquiredError) as refused:
                await redlock.lock(*names, wait=0, **made).acquire()
            said = [(vote.answer, vote.detail) for vote in refused.value.votes]
            # A master whose answer is late is not waited for. SET refuses without a reason, which
            # only the answer to the second command tells: the minority may still owe that one.
            late = {Answer.TIMED_OUT} if options else {Answer.TIMED_OUT, Answer.HELD}
            assert {answer for answer, _ in said} <= {Answer.ERROR} | late, said
            assert said.count((Answer.ERROR, wanted)) >= 3, (names, options, said)
    state = await redlock.inspect("r")
    assert {view.detail for view in state.views} == {wanted}
    with pytest.raises(RedlockError, match=wanted):
        await redlock.is_locked("r")
    assert [call(master, "TYPE", "r") for master in masters] == [other] * 5
    assert [call(master, "DBSIZE") for master in masters] == [1] * 5


async def test_who_may_not_ask_for_the_type_says_that_it_is_another(
    masters: list[RealMaster],
) -> None:
    fill(masters[:3], "hash")
    for master in masters[:3]:
        call(master, "ACL", "SETUSER", "default", "-type")
    try:
        async with connected(masters[:3]) as redlock:
            with pytest.raises(LockNotAcquiredError, match="holds another type, not a lock"):
                await redlock.lock("r", wait=0).acquire()
    finally:
        for master in masters[:3]:
            call(master, "ACL", "SETUSER", "default", "+@all")


@pytest.mark.parametrize("fair", [False, True])
@pytest.mark.full
async def test_a_key_of_another_type_on_a_minority_is_not_asked_for_again_and_again(
    masters: list[RealMaster], *, fair: bool
) -> None:
    """Nor is the lock lost for good: when the type is gone, who waits has it."""
    async with connected(masters[:3]) as redlock:
        fill(masters[:1], "hash")
        masters[1].kill()
        waiter = asyncio.create_task(redlock.lock("r", wait=20_000, fair=fair).acquire())
        await until(lambda: line(redlock).watcher is not None or bool(line(redlock).guests))
        before = call(masters[2], "INFO", "stats")["total_commands_processed"]
        await asyncio.sleep(2)
        assert call(masters[2], "INFO", "stats")["total_commands_processed"] - before < 500
        call(masters[0], "DEL", "r")
        await (await waiter).release()
