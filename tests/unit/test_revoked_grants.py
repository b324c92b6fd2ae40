"""Grants of a fair waiter that are revoked by force do not count any more."""

import asyncio

import pytest

from redlock_aio import Redlock
from redlock_aio._protocol.commands import revocation, revoke
from redlock_aio._protocol.scripts import LEAVE
from redlock_aio.testing import FakeMaster

from .kit import Masters, delete, execute, hang, now, occupy, ran, resume, values, waiting_fair

pytestmark = pytest.mark.promise("S1")


def force(master: FakeMaster, lasts: int) -> None:
    """Revoke the grant of `r` on *master* for *lasts* ms, as an operator's program does."""
    granted = master.keys["r"].encode()
    execute(master, revoke(b"r", granted, revocation(b"operator"), lasts))


async def test_a_grant_that_was_revoked_on_one_master_is_given_back_on_all(
    redlock: Redlock, masters: Masters
) -> None:
    """The others may be revoked as well, and the push that says so may be late or lost."""
    occupy(masters)
    waiter = waiting_fair(redlock, ttl=60_000)
    await asyncio.sleep(0.1)
    delete(masters[:2])
    hang(masters[2:3])
    await asyncio.sleep(0.01)
    assert not {None, "theirs"} & set(values(masters[:2]))
    before = ran(masters[1], LEAVE)
    revoked_at = now()
    force(masters[0], 1_000)
    await asyncio.sleep(0.01)
    assert ran(masters[1], LEAVE) == before + 1
    delete(masters[2:3])
    resume(masters[2:3])
    assert await waiter >= revoked_at + 1  # two grants and a revocation are no majority
