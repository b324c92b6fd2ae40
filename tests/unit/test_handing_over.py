"""A lease that one process exports and another adopts, in virtual time."""

import asyncio
import gc
from datetime import timedelta
from typing import Any

import pytest

from redlock_aio import (
    Answer,
    Lease,
    LockLostError,
    LockNotAcquiredError,
    LockNotHeldError,
    Redlock,
    RedlockError,
)
from redlock_aio._protocol.scripts import EXTEND
from redlock_aio.testing import FakeMaster

from .kit import (
    KEYS,
    KINDS_AND_KEYS,
    LATENCY,
    Kind,
    check_freed,
    delete,
    fence,
    locks_of_each,
    loop,
    now,
    ran,
    refused,
)

# The adopted lease


@pytest.mark.usefixtures("all_freed")
@KINDS_AND_KEYS
async def test_the_resources_stay_locked_during_an_adoption(
    redlock: Redlock, there: Redlock, masters: list[FakeMaster], names: tuple[str, ...],
    options: Kind,
) -> None:  # fmt: skip
    lease = await redlock.lock(*names, ttl=5_000, **options).acquire()
    old, token = lease.token, lease.fencing_token if "fencing" in options else None
    exported = lease.export()
    assert all(master.keys[name] == old for master in masters for name in names)
    await asyncio.sleep(2)
    began = now()
    adopted = await there.adopt(exported)

    assert now() - began == pytest.approx(LATENCY)
    assert (adopted.resources, adopted.ttl) == (names, 5_000)
    assert adopted.validity == adopted.remaining == 5_000 - 1 - 52
    assert adopted.token != old
    assert adopted.token.endswith("@there")
    assert [vote.answer for vote in adopted.votes] == [Answer.GRANTED] * 5
    if token is not None:
        assert adopted.fencing_token == token
        assert {master.keys[fence("r")] for master in masters} == {f"{token:016}"}
    await asyncio.sleep(30)  # it is extended like any other lease
    assert adopted.valid
    assert all(master.keys[name] == adopted.token for master in masters for name in names)
    assert await redlock.lock(*names).try_acquire() is None
    await adopted.release()


@pytest.mark.usefixtures("all_freed")
async def test_an_adopted_lease_can_be_exported_again(
    redlock: Redlock, there: Redlock, masters: list[FakeMaster]
) -> None:
    lease: Lease = await redlock.lock("r", fencing=True, fair=True, metadata={"a": 1}).acquire()
    token = lease.fencing_token
    for manager in (there, redlock, there):
        lease = await manager.adopt(lease.export())
    assert lease.fencing_token == token
    assert lease.token.endswith('@there{"a":1}')
    assert locks_of_each(masters) == [{"r": lease.token}] * 5
    await lease.release()


@pytest.mark.usefixtures("all_freed")
async def test_a_permit_is_handed_over_with_its_number(redlock: Redlock, there: Redlock) -> None:
    """Also to a manager that has used no semaphore, and while others wait for a permit."""
    semaphore = redlock.semaphore("r", permits=2, ttl=5_000, fencing=True)
    first: Lease = await semaphore.acquire()
    second = await asyncio.create_task(semaphore.acquire())
    waiter = asyncio.create_task(semaphore.acquire())
    await asyncio.sleep(0.1)
    number, token = second.permit, second.fencing_token
    for manager in (there, redlock):
        second = await manager.adopt(second.export())
        assert (second.permit, second.fencing_token) == (number, token)
        assert (second.resources, second.mode) == (("r",), "permit")
    await asyncio.sleep(6)  # it is extended like any other lease
    assert second.valid
    assert not waiter.done()
    began = now()
    await second.release()
    third = await waiter
    assert now() - began < 0.2
    assert (third.permit, third.fencing_token > token) == (number, True)
    await third.release()
    await first.release()


async def test_others_see_the_adopter_and_its_metadata(redlock: Redlock, there: Redlock) -> None:
    for given, seen in ((None, {"job": "x"}), ({"b": 2}, {"b": 2}), ({}, {})):
        lease = await redlock.lock("r", metadata={"job": "x"}).acquire()
        lease = await there.adopt(lease.export(), metadata=given)
        holder = (await refused(redlock)).holder
        assert holder is not None
        assert (holder.name, dict(holder.metadata)) == ("there", seen)
        assert holder.fingerprint == lease.fingerprint
        await lease.release()


@pytest.mark.parametrize(
    ("first", "second", "lasts"),
    [(1_000, None, 1.0), (None, 1_000, 1.5), (1_000, 200, 0.7), (1_000, 800, 1.0), (800, 800, 0.8)],
)
async def test_max_hold_counts_from_the_first_acquisition(
    redlock: Redlock, there: Redlock, first: int | None, second: int | None, lasts: float
) -> None:
    """The remainder of the exporter's *max_hold* counts, or the adopter's own if it is shorter."""
    began = now()
    lease = await redlock.lock("r", ttl=3_000, max_hold=first).acquire()
    exported = lease.export()
    await asyncio.sleep(0.5)
    until = None if second is None else timedelta(milliseconds=second)
    with pytest.raises(LockLostError, match="for as long as max_hold allows"):
        async with await there.adopt(exported, max_hold=until):
            await asyncio.sleep(9)
    assert now() - began == pytest.approx(lasts, abs=0.01)


async def test_hold_at_least_counts_from_the_first_acquisition(
    redlock: Redlock, there: Redlock, masters: list[FakeMaster]
) -> None:
    lease = await redlock.lock("r", ttl=3_000, hold_at_least=2_000).acquire()
    exported = lease.export()
    await asyncio.sleep(0.5)
    async with await there.adopt(exported):
        pass
    assert all(1_490 < master.pttl("r") <= 1_500 for master in masters)
    lease = await redlock.lock("s", hold_at_least=100).acquire()
    await asyncio.sleep(0.2)
    async with await there.adopt(lease.export()):
        pass
    assert not any("s" in master.keys for master in masters)


@pytest.mark.usefixtures("all_freed")
async def test_an_adopted_lease_is_lost_as_any_other(
    redlock: Redlock, there: Redlock, masters: list[FakeMaster]
) -> None:
    exported = (await redlock.lock("r").acquire()).export()
    with pytest.raises(LockLostError, match="no longer has its key"):
        async with await there.adopt(exported) as lease:
            await asyncio.sleep(1)
            delete(masters[:3])
            await asyncio.sleep(1)
    assert lease.lost.is_set()
    await check_freed(masters)
    exported = (await redlock.lock("r").acquire()).export()
    async with await there.adopt(exported, on_lost="flag", auto_extend=False) as lease:
        await asyncio.sleep(11)
        assert not lease.valid
    exported = (await redlock.lock("r").acquire()).export()
    with pytest.warns(ResourceWarning, match="never released"):
        await there.adopt(exported)
        gc.collect()
    await asyncio.sleep(11)


# The exporter


@pytest.mark.usefixtures("all_freed")
async def test_the_exporter_can_do_nothing_more_with_its_lease(
    redlock: Redlock, masters: list[FakeMaster]
) -> None:
    lease = await redlock.lock("r", ttl=1_000).acquire()
    extension = asyncio.create_task(lease.extend())
    await asyncio.sleep(0)
    lease.export()
    received = len(masters[0].commands)
    assert (lease.valid, lease.remaining, lease.hold_count) == (False, 0, 0)
    assert not lease.lost.is_set()
    assert redlock.statistics().leases == 0
    for call in (lease.ensure_valid, lease.export):
        with pytest.raises(LockNotHeldError, match="'r' not held: it was handed over"):
            call()
    for coroutine in (extension, lease.extend(), lease.release(), lease.release()):
        with pytest.raises(LockNotHeldError, match="'r' not held: it was handed over"):
            await coroutine
    await asyncio.sleep(0.9)
    # Only the extension that was underway is sent.
    assert [command[0] for command in masters[0].commands[received:]] == [b"CLIENT", b"EVALSHA"]
    assert ran(masters[0], EXTEND) == 1
    del lease
    gc.collect()  # no ResourceWarning
    await asyncio.sleep(0.2)


@pytest.mark.parametrize("on_lost", ["cancel", "flag"])
async def test_a_with_block_continues_after_an_export(
    redlock: Redlock, masters: list[FakeMaster], on_lost: Any
) -> None:
    async with redlock.lock("r", ttl=1_000, on_lost=on_lost) as lease:
        lease.export()
        await asyncio.sleep(3)  # the block is not cancelled when the ttl has passed
        masters[0].set("r", "theirs")
    with pytest.raises(KeyError):
        async with redlock.lock("s") as lease:
            exported = lease.export()
            raise KeyError
    await asyncio.sleep(0.1)
    assert all("s" in master.keys for master in masters)
    assert masters[0].keys["r"] == "theirs"
    async with await redlock.adopt(exported):  # the exporter may adopt the lease itself
        pass


async def test_a_closed_exporter_leaves_the_lock_as_it_is(
    there: Redlock, masters: list[FakeMaster]
) -> None:
    async with Redlock(masters, restart_guard="off") as here:
        exported = (await here.lock("r", ttl=1_000).acquire()).export()
    async with await there.adopt(exported):
        await asyncio.sleep(3)


async def test_only_a_valid_lease_that_is_not_shared_can_be_exported(
    redlock: Redlock, masters: list[FakeMaster]
) -> None:
    released = await redlock.lock("r").acquire()
    await released.release()
    with pytest.raises(LockNotHeldError, match="it has been released"):
        released.export()
    lost = await redlock.lock("r", ttl=100, auto_extend=False, on_lost="flag").acquire()
    await asyncio.sleep(0.2)
    with pytest.raises(LockLostError):
        lost.export()
    stalled = await redlock.lock("r", ttl=1_000).acquire()
    loop().stall(1)
    with pytest.raises(LockLostError, match="before its validity was over"):
        stalled.export()
    async with (
        redlock.lock("s", reentrant=True) as first,
        redlock.lock("s", reentrant=True) as second,
    ):
        for lease in (first, second):
            with pytest.raises(RedlockError, match="'s' can't be handed over: 2 leases share"):
                lease.export()
        await second.release()
        assert first.export()
    await asyncio.sleep(0.1)
    assert all("s" in master.keys for master in masters)


# Waiters


async def test_waiters_in_the_exporting_process_acquire_after_the_adopter(
    redlock: Redlock, there: Redlock
) -> None:
    lease = await redlock.lock("r").acquire()
    waiter = asyncio.create_task(redlock.lock("r").acquire())
    await asyncio.sleep(0.1)
    exported = lease.export()
    await asyncio.sleep(0.1)
    adopted = await there.adopt(exported)
    await asyncio.sleep(1)
    assert not waiter.done()
    await adopted.release()
    await asyncio.sleep(0.01)
    assert waiter.done()
    await waiter.result().release()


@KEYS
@pytest.mark.promise("S8")
async def test_the_next_in_a_fair_queue_acquires_at_once(
    redlock: Redlock, there: Redlock, other: Redlock, names: tuple[str, ...]
) -> None:
    """Also in the first 3 s, in which the exporter's entry in the queue has not expired."""
    for pause in (0.0, 5.0):
        lease = await redlock.lock(*names, fair=True).acquire()
        waiter = asyncio.create_task(other.lock(*names, fair=True).acquire())
        await asyncio.sleep(0.1)
        adopted = await there.adopt(lease.export())
        await asyncio.sleep(0.1 + pause)
        assert not waiter.done()
        began = now()
        await adopted.release()
        next_one = await waiter
        assert now() - began < 0.004
        await next_one.release()


@pytest.mark.promise("S8")
async def test_the_adopter_leaves_the_fair_queue_though_hold_at_least_keeps_the_key(
    redlock: Redlock, there: Redlock, other: Redlock
) -> None:
    lease = await redlock.lock("r", fair=True, hold_at_least=1_000).acquire()
    waiter = asyncio.create_task(other.lock("r", fair=True).acquire())
    await asyncio.sleep(0.1)
    adopted = await there.adopt(lease.export())
    await adopted.release()
    await asyncio.sleep(0.8)
    assert not waiter.done()
    await asyncio.sleep(0.15)
    assert waiter.done()
    await waiter.result().release()


# Owners


async def test_an_adopted_lease_belongs_to_the_owner_that_is_named(
    redlock: Redlock, there: Redlock
) -> None:
    """It is shared in any task, also in one that waits for it already."""

    async def share(owner: str) -> int:
        async with there.lock("r", reentrant=True, owner=owner, wait=500) as same:
            await asyncio.sleep(0.1)
            return same.hold_count

    exported = (await redlock.lock("r").acquire()).export()
    early = asyncio.create_task(share("x"))
    await asyncio.sleep(0.05)
    async with asyncio.timeout(5), await there.adopt(exported, owner="x") as lease:
        late, stranger = asyncio.create_task(share("x")), asyncio.create_task(share("y"))
        assert sorted(await asyncio.gather(early, late)) == [2, 3]
        with pytest.raises(LockNotAcquiredError):
            await stranger
        assert lease.hold_count == 1


async def test_an_adopted_lease_belongs_to_the_task_that_adopts_it(
    redlock: Redlock, there: Redlock
) -> None:
    async with (
        asyncio.timeout(5),
        await there.adopt((await redlock.lock("r").acquire()).export()) as lease,
    ):
        with pytest.raises(RedlockError, match="reentrant=True"):
            await there.lock("r").acquire()
        async with there.lock("r", reentrant=True) as same:
            assert same.token == lease.token
            assert lease.hold_count == 2
