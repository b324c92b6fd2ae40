"""How long a release is repeated: for as long as the key may live on the master."""

import asyncio
from collections.abc import Sequence

import pytest

from redlock_aio import Redlock
from redlock_aio._protocol.request import NoReply, Sender
from redlock_aio._protocol.scripts import REVOKE
from redlock_aio._rules.quorum import OK
from redlock_aio._transport.debts import Debts
from redlock_aio.testing._fake_lua import Error
from redlock_aio.testing._fake_pushes import PushReceiver

from .kit import Masters, fail, now, occupy, values

pytestmark = pytest.mark.promise("S3")

BUSY = "BUSY Redis is busy running a script"


async def test_the_release_of_an_extended_lease_is_repeated_for_the_longer_ttl(
    redlock: Redlock, masters: Masters
) -> None:
    lease = await redlock.lock("r", ttl=1_000, auto_extend=False).acquire()
    await lease.extend(20_000)
    fail(masters[:2], BUSY)
    await lease.release()
    await asyncio.sleep(5)
    fail(masters[:2], "")
    await asyncio.sleep(0.5)
    assert values(masters) == [None] * 5


async def test_a_key_that_was_to_be_kept_for_less_is_released_for_as_long_as_it_may_live(
    redlock: Redlock, masters: Masters
) -> None:
    """These masters refuse to shorten its ttl."""
    lease = await redlock.lock("r", ttl=20_000, hold_at_least=500).acquire()
    fail(masters[:2], BUSY)
    await lease.release()
    await asyncio.sleep(5)
    fail(masters[:2], "")
    await asyncio.sleep(0.5)
    assert values(masters) == [None] * 5


async def test_a_revocation_is_repeated_for_as_long_as_an_extended_lock_may_live(
    masters: Masters,
) -> None:
    """Its holder has extended it after the operator had read how long it lives."""
    occupy(masters, ttl=1_000)
    execute = masters[0].execute

    def executing(command: list[bytes], listener: PushReceiver | None = None) -> object:
        if REVOKE.sha in command and now() < 5:
            occupy(masters[:1], ttl=30_000)
            return Error(BUSY)
        return execute(command, listener)

    vars(masters[0])["execute"] = executing
    async with Redlock(masters, restart_guard="off", max_ttl=30_000) as operator:
        assert await operator.force_release("r")
        await asyncio.sleep(8)
        assert values(masters) == [None] * 5


async def test_a_release_that_is_underway_when_its_key_is_over_is_sent_again() -> None:
    """A master that hung may execute the acquisition before it only now, with its full ttl."""
    sent: list[list[Sender]] = []

    def send(_payload: bytes, senders: Sequence[Sender]) -> NoReply | None:
        sent.append(list(senders))
        return None

    debts = Debts(asyncio.get_running_loop(), overdue=lambda: None, warn=pytest.fail)
    debts.connected(send)
    debts.add_debt(b"release", 1_000)
    await asyncio.sleep(5)
    assert len(sent) == len(debts) == 1
    debts.lost()
    debts.connected(send)
    assert [[sender.payload for sender in each] for each in sent] == [[b"release"]] * 2
    sent[-1][0].on_reply(0, OK)
    assert len(debts) == 0
    debts.close()
