"""Waiting in order for a lock with a fencing token, while masters take back what they granted."""

import asyncio

import hiredis
import pytest

from redlock_aio import Redlock
from redlock_aio._engine.wait.fair_waiter import FairWaiter
from redlock_aio._protocol import revocation
from redlock_aio._protocol.scripts import RAISE
from redlock_aio.testing import FakeMaster

from .kit import before, count_up, now, remaining_keys, values

pytestmark = [pytest.mark.promise("S1"), pytest.mark.promise("S7")]


def revoke(master: FakeMaster, ttl: int = 300) -> None:
    """Revoke the lock on *master*, as a forced release does; it calls the one that had it."""
    value = master.keys["r"].encode()
    reader = hiredis.Reader()
    reader.feed(revocation.revoke(b"r", value, revocation.revocation(b"instead"), ttl))
    assert master.execute(reader.gets()) == b"OK"


async def test_a_claim_that_is_given_back_while_a_token_is_agreed_on_does_not_count() -> None:
    """
    The counters differ, so the waiter asks the masters to agree.

    Meanwhile the lock is revoked on the nearest master, which calls the waiter; it gives
    back the claim on all masters. Then the others agree on a token for that claim.
    """
    masters = [FakeMaster(f"m{n}", latency=0.001 if n == 0 else 0.02) for n in range(3)]
    async with (
        Redlock(masters, restart_guard="off", fencing=True) as redlock,
        Redlock(masters, restart_guard="off", fencing=True) as other,
    ):
        async with redlock.lock("r", fair=True), other.lock("r2", fair=True):
            pass
        holder = await other.lock("r", fair=True).acquire()
        waiter = asyncio.create_task(redlock.lock("r", fair=True).acquire())
        await asyncio.sleep(0.2)  # now it is called when it is its turn
        for number, master in enumerate(masters):
            count_up(master, 10_000_000 * (number + 1))
        revoked: list[float] = []

        def meddle() -> None:
            if not revoked:
                revoked.append(now())
                revoke(masters[0])

        before(masters[0], RAISE, meddle)
        await holder.release()
        lease = await waiter
        assert revoked, "the counters were equal"
        assert lease.valid
        assert lease.fencing_token > holder.fencing_token
        assert values(masters).count(lease.token) >= 2
        await lease.release()
    await asyncio.sleep(4)
    assert not [key for key in remaining_keys(masters) if b"fence" not in key]


async def test_a_waiter_does_not_spin_on_an_old_grant_while_a_token_is_agreed_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """
    The first master grants at once; the others keep a foreign lock for 130 ms.

    When they grant, the first grant is nearly too old, but the others make a majority without
    it. While these agree on a token, which takes 40 ms, the first grant gets too old.
    """
    masters = [FakeMaster(f"m{n}", latency=0.001 if n == 0 else 0.02) for n in range(3)]
    ticks = 0
    tick = FairWaiter._tick

    def counted(waiter: FairWaiter) -> None:
        nonlocal ticks
        ticks += 1
        assert ticks < 1_000, "the timer fires again and again in the same instant"
        tick(waiter)

    monkeypatch.setattr(FairWaiter, "_tick", counted)
    async with Redlock(masters, restart_guard="off", fencing=True) as redlock:
        async with redlock.lock("r", fair=True):
            pass
        await asyncio.sleep(0.1)
        for number, master in enumerate(masters):
            count_up(master, 10_000_000 * (number + 1))
        for master in masters[1:]:
            master.set("r", "foreign", 130)
        async with redlock.lock("r", fair=True) as lease:
            assert lease.valid
    assert ticks
