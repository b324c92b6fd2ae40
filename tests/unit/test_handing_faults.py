"""A lease that is handed over, and what can go wrong on the way, in virtual time."""

import asyncio
import dataclasses
from typing import Any

import pytest

from redlock_aio import Answer, LockLostError, Redlock
from redlock_aio._engine.acquire.adopt import NOT_THERE, OVER_BEFORE, TOO_FAR_AHEAD, TOO_FEW
from redlock_aio._engine.hold.held_lease import OVERTAKEN
from redlock_aio._protocol.commands import NEVER
from redlock_aio._protocol.lease_export import exported as text_of, imported
from redlock_aio._protocol.scripts import ADOPT
from redlock_aio.testing import FakeMaster

from .kit import (
    KEYS,
    KIND,
    LATENCY,
    before,
    count_up,
    counter,
    delete,
    fence,
    hang,
    keys,
    locks_of_each,
    loop,
    now,
    ran,
    resume,
    settle,
    values,
)


@pytest.mark.promise("S7")
@pytest.mark.parametrize("several", [False, True])
@pytest.mark.parametrize("ahead", [9, 3_600, 2**53])
async def test_a_text_with_a_high_fencing_token_does_not_use_up_the_numbers(
    redlock: Redlock, there: Redlock, masters: list[FakeMaster], ahead: int, *, several: bool
) -> None:
    """It is bounded by the masters' time plus the lead; the text was tampered with."""
    names = ("r", "s") if several else ("r",)
    lease = await redlock.lock(*names, ttl=3_000, fencing=True).acquire()
    token = lease.fencing_token
    tampered = dataclasses.replace(
        imported(lease.export()), fence=min(token + ahead * 1_000_000, NEVER - 2)
    )
    with pytest.raises(LockLostError, match=f"{TOO_FAR_AHEAD} .*ahead of its clock"):
        await there.adopt(text_of(tampered))
    await settle(masters, 0.5)
    assert locks_of_each(masters) == [{}] * 5
    assert {counter(master) for master in masters} == {token}
    async with redlock.lock(*names, fencing=True, wait=0) as later:
        assert token < later.fencing_token < token + 10_000_000


@pytest.mark.promise("S7")
async def test_a_high_fencing_token_that_a_majority_has_counted_is_adopted(
    redlock: Redlock, there: Redlock, masters: list[FakeMaster]
) -> None:
    """As after a clock that was wrong; a master that has forgotten it does not count at first."""
    async with redlock.lock("r", fencing=True):
        pass
    for master in masters:
        count_up(master, 10**12)
    lease = await redlock.lock("r", ttl=3_000, fencing=True).acquire()
    exported = lease.export()
    masters[0].delete(fence("r"))
    adopted = await there.adopt(exported)
    assert adopted.fencing_token == lease.fencing_token
    assert masters[0].keys["r"] != adopted.token
    await adopted.extend()
    await adopted.extend()
    await adopted.release()


@pytest.mark.promise("S4")
@pytest.mark.parametrize("suspended", [False, True])
async def test_what_is_over_is_refused_at_once(
    redlock: Redlock, there: Redlock, masters: list[FakeMaster], *, suspended: bool
) -> None:
    """On the clock that also counts the time for which the machine was suspended."""
    lease = await redlock.lock("r", ttl=1_000).acquire()
    left = lease.remaining
    exported = lease.export()
    (loop().suspend if suspended else loop().stall)(left / 1000)
    assert all("r" in master.keys for master in masters)
    began = now()
    with pytest.raises(LockLostError, match=f"^'r' lost: {OVER_BEFORE}$"):
        await there.adopt(exported)
    assert now() == began
    assert not any(ran(master, ADOPT) for master in masters)
    await asyncio.sleep(0.01)
    assert locks_of_each(masters) == [{}] * 5  # nobody waits for what nobody holds


@pytest.mark.spread(1)
@pytest.mark.promise("S4")
@pytest.mark.parametrize("gone", range(2**5))
@KIND
async def test_what_is_gone_is_not_set_again_and_does_not_count(
    redlock: Redlock, there: Redlock, masters: list[FakeMaster], kind: dict[str, Any], gone: int
) -> None:
    lease = await redlock.lock("r", ttl=3_000, **kind).acquire()
    exported = lease.export()
    without = [master for i, master in enumerate(masters) if gone & 1 << i]
    delete(without)
    if len(without) >= 3:
        with pytest.raises(LockLostError) as caught:
            await there.adopt(exported)
        assert caught.value.reason.startswith(NOT_THERE)
        await settle(masters, 0.5)
        assert locks_of_each(masters) == [{}] * 5
        return
    adopted = await there.adopt(exported)
    await asyncio.sleep(0.01)
    assert [vote.answer for vote in adopted.votes] == [
        Answer.HELD if master in without else Answer.GRANTED for master in masters
    ]
    assert values(masters) == [None if master in without else adopted.token for master in masters]
    await asyncio.sleep(1.5)  # an extension sets it again
    assert values(masters) == [adopted.token] * 5
    await adopted.release()


@pytest.mark.promise("S4")
@pytest.mark.parametrize("fencing", [False, True])
async def test_of_several_all_must_be_there(
    redlock: Redlock, there: Redlock, masters: list[FakeMaster], *, fencing: bool
) -> None:
    """One that is gone, or somebody else's, is as bad as all; what is his stays."""
    lease = await redlock.lock("r", "s", fencing=fencing).acquire()
    exported = lease.export()
    masters[0].delete("s")
    masters[1].set("r", "theirs")
    lease = await there.adopt(exported)
    exported = lease.export()
    await asyncio.sleep(0.01)
    assert [vote.answer for vote in lease.votes] == [Answer.HELD] * 2 + [Answer.GRANTED] * 3
    masters[2].set("s", "theirs")
    with pytest.raises(LockLostError, match="no longer has its key"):
        await there.adopt(exported)
    await settle(masters, 0.5)
    assert locks_of_each(masters) == [{}, {"r": "theirs"}, {"s": "theirs"}, {}, {}]


@pytest.mark.promise("S7")
@KEYS
async def test_one_that_was_overtaken_is_refused(
    redlock: Redlock, there: Redlock, masters: list[FakeMaster], names: tuple[str, ...]
) -> None:
    lease = await redlock.lock(*names, fencing=True).acquire()
    exported = lease.export()
    for master in masters[:2]:
        count_up(master, name=names[-1])
    lease = await there.adopt(exported)
    exported = lease.export()
    await asyncio.sleep(0.01)
    assert [vote.answer for vote in lease.votes] == [Answer.HELD] * 2 + [Answer.GRANTED] * 3
    count_up(masters[2], name=names[-1])
    with pytest.raises(LockLostError, match=OVERTAKEN):
        await there.adopt(exported)
    await settle(masters, 0.5)
    assert locks_of_each(masters) == [{}] * 5


async def test_a_counter_that_is_lower_is_raised(
    redlock: Redlock, there: Redlock, masters: list[FakeMaster]
) -> None:
    lease = await redlock.lock("r", fencing=True).acquire()
    exported = lease.export()
    masters[0].delete(fence("r"))
    masters[1].set(fence("r"), "7", 1_000)
    adopted = await there.adopt(exported)
    token = adopted.fencing_token
    assert {master.keys[fence("r")] for master in masters} == {f"{token:016}"}
    assert all(master.pttl(fence("r")) > 600_000 for master in masters)
    await adopted.release()


@pytest.mark.parametrize("hung", range(6))
async def test_masters_that_do_not_answer_are_asked_again(
    redlock: Redlock, there: Redlock, masters: list[FakeMaster], hung: int
) -> None:
    """For as long as the lease can last; who comes back in time is enough."""
    lease = await redlock.lock("r", ttl=1_000).acquire()
    exported = lease.export()
    hang(masters[:hung])
    began = now()
    if hung <= 2:
        adopted = await there.adopt(exported)
        assert now() - began == pytest.approx(LATENCY)
    else:
        task = asyncio.create_task(there.adopt(exported))
        await asyncio.sleep(0.7)
        resume(masters[: hung - 2])
        adopted = await task
        assert now() - began == pytest.approx(0.8, abs=0.11)
        # It is counted from the round that was won, and that is a late one.
        assert 880 < adopted.remaining < 990
    assert adopted.token.endswith("@there")
    await settle(masters, 0.5)
    assert locks_of_each(masters) == [{"r": adopted.token}] * 5
    await adopted.release()
    await settle(masters, 0.5)
    assert locks_of_each(masters) == [{}] * 5


@pytest.mark.promise("S3")
@KIND
async def test_it_is_given_up_when_the_lease_is_over(
    redlock: Redlock, there: Redlock, masters: list[FakeMaster], kind: dict[str, Any]
) -> None:
    lease = await redlock.lock("r", ttl=1_000, **kind).acquire()
    left = lease.remaining / 1000
    exported = lease.export()
    hang(masters[:3])
    began = now()
    with pytest.raises(LockLostError) as caught:
        await there.adopt(exported)
    assert left - 0.026 < now() - began <= left
    assert caught.value.reason.startswith(TOO_FEW)
    assert "m0: timed out" in caught.value.reason
    assert "m4: granted" in caught.value.reason
    await settle(masters, 0.5)
    assert locks_of_each(masters) == [{}] * 5


async def test_a_master_that_was_away_is_freed_of_the_old_value(
    redlock: Redlock, there: Redlock, masters: list[FakeMaster]
) -> None:
    """It is not kept from the adopter's value, which the next extension sets."""
    lease = await redlock.lock("r", ttl=60_000).acquire()
    exported = lease.export()
    before(masters[0], ADOPT, masters[0].cut)  # the answer is lost, but it was executed
    connection = there._opener.session().links[1]._connection
    assert connection is not None
    connection.condemn("as if it were cut")
    adopted = await there.adopt(exported, auto_extend=False)
    await asyncio.sleep(1)
    assert masters[0].keys == {"r": adopted.token}
    assert masters[1].keys == {}
    await adopted.extend()
    await asyncio.sleep(0.1)
    assert keys(masters) == [{"r": adopted.token}] * 5
    await adopted.release()
    await settle(masters, 0.5)
    assert locks_of_each(masters) == [{}] * 5


@pytest.mark.promise("S3")
@KIND
async def test_what_the_exporter_has_said_and_comes_late_is_cleaned_up(
    redlock: Redlock, there: Redlock, masters: list[FakeMaster], kind: dict[str, Any]
) -> None:
    """The old value that is set when the lock is free again: not for ever, and not for long."""
    lease = await redlock.lock("r", ttl=1_000, **kind).acquire()
    old = lease.token
    await (await there.adopt(lease.export())).release()
    await settle(masters, 0.5)
    masters[0].set("r", old)
    async with redlock.lock("r", wait=0) as lease:
        assert values(masters) == [old] + [lease.token] * 4
    await asyncio.sleep(0.6)
    assert locks_of_each(masters) == [{}] * 5


async def test_a_closed_exporter_leaves_the_lock_as_it_is(
    there: Redlock, masters: list[FakeMaster]
) -> None:
    async with Redlock(masters, restart_guard="off") as here:
        lease = await here.lock("r", ttl=1_000).acquire()
        exported = lease.export()
    async with await there.adopt(exported):
        await asyncio.sleep(3)


async def test_a_master_without_a_vote_does_as_it_is_told_and_does_not_count(
    masters: list[FakeMaster],
) -> None:
    async with Redlock(masters, max_ttl=5_000) as here, Redlock(masters, max_ttl=5_000) as there:
        lease = await here.lock("r", ttl=5_000).acquire()
        for master in masters[:2]:
            master.restart()
            master.set("r", lease.token, 5_000)
        await asyncio.sleep(0.5)
        adopted = await there.adopt(lease.export())
        await asyncio.sleep(0.01)
        said = [vote.answer for vote in adopted.votes]
        assert said == [Answer.QUARANTINED] * 2 + [Answer.GRANTED] * 3
        assert values(masters) == [adopted.token] * 5
        exported = adopted.export()
        masters[2].restart()
        await asyncio.sleep(0.5)
        masters[2].set("r", adopted.token, 5_000)
        with pytest.raises(LockLostError, match="quarantined"):
            await there.adopt(exported)


async def test_masters_that_have_forgotten_the_script_are_given_it_again(
    redlock: Redlock, there: Redlock, masters: list[FakeMaster]
) -> None:
    lease = await redlock.lock("r").acquire()
    for master in masters:
        master._scripts.clear()
    async with await there.adopt(lease.export()):
        pass
    await settle(masters, 0.5)
    assert locks_of_each(masters) == [{}] * 5


@pytest.mark.promise("S4")
async def test_one_that_was_over_when_the_majority_was_counted_is_not_revived(
    redlock: Redlock, there: Redlock, masters: list[FakeMaster]
) -> None:
    """The machine sleeps while the masters answer, which still have the key."""
    exported = (await redlock.lock("r", ttl=1_000).acquire()).export()
    await asyncio.sleep(0.5)
    before(masters[4], ADOPT, lambda: loop().suspend(0.6))
    with pytest.raises(LockLostError, match="'r' lost: too few masters answered before"):
        await there.adopt(exported)
    await settle(masters, 0.5)
    assert locks_of_each(masters) == [{}] * 5


@pytest.mark.parametrize("boot", ["", "f" * 16])
async def test_the_instants_of_another_machine_mean_nothing(
    redlock: Redlock, there: Redlock, masters: list[FakeMaster], boot: str
) -> None:
    """What remains counts from the adoption on, and the ttl bounds how long it is tried."""
    lease = await redlock.lock("r", ttl=1_000, max_hold=5_000, hold_at_least=3_000).acquire()
    for at in (-1e9, 1e9):
        handed = dataclasses.replace(imported(lease.export()), boot=boot, at=at)
        lease = await there.adopt(text_of(handed))
        assert 4_990 < (lease._hold.ends - loop().boottime()) * 1000 <= 5_000
        assert 2_990 < (lease._hold.keep_until - loop().boottime()) * 1000 <= 3_000
    exported = text_of(dataclasses.replace(imported(lease.export()), boot=boot, at=1e9))
    hang(masters[:3])
    began = now()
    with pytest.raises(LockLostError, match=TOO_FEW):
        await there.adopt(exported)
    assert 0.97 < now() - began <= 1
    await settle(masters, 0.5)
    assert locks_of_each(masters) == [{}] * 5


@pytest.mark.promise("S3")
async def test_a_master_that_only_an_earlier_round_has_reached_is_cleaned_as_well(
    redlock: Redlock, there: Redlock, masters: list[FakeMaster]
) -> None:
    exported = (await redlock.lock("r", ttl=60_000).acquire()).export()
    hang(masters[1:4])
    adopting = asyncio.create_task(there.adopt(exported))
    await asyncio.sleep(0.098)  # between the first round and the second
    resume(masters[1:4])
    connection = there._opener.session().links[0]._connection
    assert connection is not None
    connection.condemn("as if it were cut")
    lease = await adopting
    assert lease.votes[0].answer is Answer.UNREACHABLE
    assert values(masters) == [lease.token] * 5
    await lease.release()
    await settle(masters, 0.5)
    assert locks_of_each(masters) == [{}] * 5


@pytest.mark.promise("S8")
@pytest.mark.parametrize("cancelled", [False, True])
async def test_the_next_in_a_queue_gets_what_nobody_could_adopt(
    redlock: Redlock, there: Redlock, masters: list[FakeMaster], *, cancelled: bool
) -> None:
    """At once, also while the exporter's own place is still believed in."""
    lease = await redlock.lock("r", fair=True, ttl=2_000).acquire()
    waiter = asyncio.create_task(redlock.lock("r", fair=True).acquire())
    await asyncio.sleep(0.1)
    exported = lease.export()
    if cancelled:
        adopting = asyncio.create_task(there.adopt(exported))
        await asyncio.sleep(0.0003)
        adopting.cancel()
        await asyncio.wait([adopting])
    else:
        loop().suspend(1.95)
        for master in masters:
            assert "r" in master.keys
        with pytest.raises(LockLostError, match=OVER_BEFORE):
            await there.adopt(exported)
    await asyncio.sleep(0.006)
    assert waiter.done()
    await waiter.result().release()
    await settle(masters, 0.5)
    assert locks_of_each(masters) == [{}] * 5
