"""Foreign keys under a lock's name: only that lock is refused, and nothing else suffers."""

import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest

from redlock_aio import Answer, Lease, LockLostError, LockNotAcquiredError, Redlock, RedlockError
from redlock_aio._protocol import commands, scripts
from tests.unit import kit

from .helpers import RealMaster, call, connected, replied, until

pytestmark = pytest.mark.integration

HUGE = 2 << 20
"""The length of a value that is no lock's, in bytes."""

NAMES = pytest.mark.parametrize("names", [("r",), ("q", "r")], ids=["one", "several"])


@contextlib.asynccontextmanager
async def others_stay(redlock: Redlock, masters: list[RealMaster]) -> AsyncIterator[None]:
    """
    Hold other locks of the same manager.

    At the end, check that none was lost, no connection was closed and no huge value was sent.
    """
    leases: list[Lease] = [await redlock.lock(f"other:{i}").acquire() for i in range(20)]
    links = kit.session(redlock).links
    connections = [master._connection for master in links]
    before = sent(masters)
    yield
    await replied(redlock)
    assert sent(masters) - before < HUGE / 2
    assert [master._connection for master in links] == connections
    assert all(lease.valid for lease in leases)
    for lease in leases:
        await lease.release()


def sent(masters: list[RealMaster]) -> int:
    """Return the number of bytes that the masters have sent to all clients."""
    return sum(call(master, "INFO", "stats")["total_net_output_bytes"] for master in masters)


def fill(masters: list[RealMaster], name: str = "r") -> None:
    """Set the key *name* to a huge value, as an application that shares the masters may."""
    for master in masters:
        call(master, "SET", name, "x" * HUGE, "PX", 60_000)


@NAMES
@pytest.mark.parametrize("options", [{}, {"fencing": True}, {"fair": True}], ids=str)
async def test_a_huge_value_under_the_name_of_a_lock_ends_no_connection(
    redlock: Redlock, masters: list[RealMaster], names: tuple[str, ...], options: Any
) -> None:
    fill(masters)
    async with others_stay(redlock, masters):
        for wait in (0, 300):
            with pytest.raises(LockNotAcquiredError) as refused:
                await redlock.lock(*names, wait=wait, **options).acquire()
            assert {vote.answer for vote in refused.value.votes} <= {Answer.HELD, Answer.TIMED_OUT}


async def test_a_huge_value_is_inspected_in_part(
    redlock: Redlock, masters: list[RealMaster]
) -> None:
    fill(masters)
    async with others_stay(redlock, masters):
        state = await redlock.inspect("r")
        assert state.locked
        assert state.holder is not None
        assert state.holder.name is None
        assert await redlock.is_locked("r")
        with contextlib.suppress(RedlockError):
            await redlock.force_release("r")


@NAMES
async def test_a_holder_whose_key_is_overwritten_by_a_huge_value_is_cancelled(
    redlock: Redlock, masters: list[RealMaster], names: tuple[str, ...]
) -> None:
    async with others_stay(redlock, masters):
        with pytest.raises(LockLostError):
            async with redlock.lock(*names, ttl=60_000) as lease:
                await until(lambda: lease._hold.checked_at > 0)
                await replied(redlock)
                fill(masters)
                await until(lambda: not lease.valid)
                lease.ensure_valid()


async def test_a_huge_marker_is_read_in_part_and_written_anew(masters: list[RealMaster]) -> None:
    name = commands.MARKER.decode()
    try:
        fill(masters[:1], name)
        before = sent(masters)
        async with connected(masters, restart_guard="auto") as redlock:
            await until(lambda: call(masters[0], "STRLEN", name) < HUGE)
            await replied(redlock)
            assert sent(masters) - before < HUGE / 2
    finally:
        for master in masters:
            call(master, "DEL", name)


@pytest.mark.promise("S9")
async def test_a_holder_is_notified_also_when_scripts_are_flushed(
    redlock: Redlock, masters: list[RealMaster]
) -> None:
    """The holder reads its key by a script; after NOSCRIPT it reads it again."""
    async with redlock.lock("r"):
        pass
    await replied(redlock)  # the masters have all scripts now
    for master in masters:
        call(master, "SCRIPT", "FLUSH")
    look = scripts.LOOK.sha
    with pytest.raises(LockLostError):
        async with redlock.lock("r", ttl=60_000) as lease:
            await until(
                lambda: all(call(master, "SCRIPT", "EXISTS", look)[0] for master in masters),
                what="the key is read again",
            )
            await replied(redlock)
            for master in masters:
                call(master, "DEL", "r")
            await until(lambda: not lease.valid, within=5)
            lease.ensure_valid()


OTHERS = {
    "hash": ("HSET", "r", "f", "v"),
    "list": ("RPUSH", "r", "v"),
    "set": ("SADD", "r", "v"),
    "zset": ("ZADD", "r", "1", "v"),
    "stream": ("XADD", "r", "*", "f", "v"),
}
"""Commands that make a key of each type that is no string."""


@pytest.mark.parametrize("other", OTHERS)
async def test_a_vote_names_the_type_of_a_key_that_is_no_lock(
    redlock: Redlock, masters: list[RealMaster], other: str
) -> None:
    for master in masters:
        call(master, *OTHERS[other])
    wanted = f"WRONGTYPE the key holds a {other}, not a lock"
    for names in (("r",), ("q", "r")):
        for options in ({}, {"fencing": True}, {"fair": True}):
            made: Any = options
            with pytest.raises(LockNotAcquiredError) as refused:
                await redlock.lock(*names, wait=0, **made).acquire()
            votes = [(vote.answer, vote.detail) for vote in refused.value.votes]
            # A late reply is not waited for. The refusal of SET has no reason; the reply to the
            # second command has it, and may still be missing for a minority.
            late = {Answer.TIMED_OUT} if options else {Answer.TIMED_OUT, Answer.HELD}
            assert {answer for answer, _ in votes} <= {Answer.ERROR} | late, votes
            assert votes.count((Answer.ERROR, wanted)) >= 3, (names, options, votes)
    state = await redlock.inspect("r")
    assert {view.detail for view in state.views} == {wanted}
    with pytest.raises(RedlockError, match=wanted):
        await redlock.is_locked("r")
    assert [call(master, "TYPE", "r") for master in masters] == [other] * 5
    assert [call(master, "DBSIZE") for master in masters] == [1] * 5


async def test_a_vote_names_another_type_where_type_is_not_allowed(
    masters: list[RealMaster],
) -> None:
    for master in masters[:3]:
        call(master, *OTHERS["hash"])
        call(master, "ACL", "SETUSER", "default", "-type")
    try:
        async with connected(masters[:3]) as redlock:
            with pytest.raises(LockNotAcquiredError, match="holds another type, not a lock"):
                await redlock.lock("r", wait=0).acquire()
    finally:
        for master in masters[:3]:
            call(master, "ACL", "SETUSER", "default", "+@all")
