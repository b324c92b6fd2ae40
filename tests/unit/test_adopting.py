"""Adoptions that fail: lost keys, masters without replies, rivals, cancellations."""

import asyncio
import dataclasses
import random

import pytest

from redlock_aio import Answer, Lease, LockLostError, LossCause, NoVoteCause, Redlock, Retry
from redlock_aio._protocol.commands import NEVER
from redlock_aio._protocol.lease_export import exported as text_of, imported
from redlock_aio._protocol.scripts import ADOPT
from redlock_aio.testing import FakeMaster

from . import kit
from .kit import (
    KEYS,
    KIND,
    KINDS_AND_KEYS,
    LATENCY,
    Kind,
    before,
    check_freed,
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
    slow,
    values,
)

Names = tuple[str, ...]


def break_connection(redlock: Redlock, master: int) -> None:
    """Break the connection of a manager to a master; the manager connects again."""
    connection = kit.session(redlock).links[master]._connection
    assert connection is not None
    connection.condemn(NoVoteCause.CLOSED, "as if it were cut")


# Fencing tokens


@pytest.mark.promise("S7")
@pytest.mark.usefixtures("all_freed")
@pytest.mark.parametrize("ahead", [9, 2**53])
@KEYS
async def test_a_forged_fencing_token_ahead_of_the_masters_clocks_is_refused(
    redlock: Redlock, there: Redlock, masters: list[FakeMaster], names: Names, ahead: int
) -> None:
    """Otherwise a manipulated text could use up all tokens."""
    lease = await redlock.lock(*names, ttl=3_000, fencing=True).acquire()
    token = lease.fencing_token
    forged = min(token + ahead * 1_000_000, NEVER - 2)
    tampered = dataclasses.replace(imported(lease.export()), fence=forged)
    with pytest.raises(LockLostError, match=f"{LossCause.FENCING_AHEAD.text} .*ahead of its clock"):
        await there.adopt(text_of(tampered))
    await check_freed(masters)
    assert {counter(master) for master in masters} == {token}
    async with redlock.lock(*names, fencing=True, wait=0) as later:
        assert token < later.fencing_token < token + 10_000_000


@pytest.mark.promise("S7")
async def test_a_high_fencing_token_that_a_majority_has_counted_is_adopted(
    redlock: Redlock, there: Redlock, masters: list[FakeMaster]
) -> None:
    """A wrong clock may cause such a token; a master without the counter refuses at first."""
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


@pytest.mark.promise("S7")
@pytest.mark.usefixtures("all_freed")
@KEYS
async def test_a_lease_whose_token_was_overtaken_is_not_adopted(
    redlock: Redlock, there: Redlock, masters: list[FakeMaster], names: Names
) -> None:
    exported = (await redlock.lock(*names, fencing=True).acquire()).export()
    for master in masters[:2]:
        count_up(master, name=names[-1])
    lease = await there.adopt(exported)
    exported = lease.export()
    await asyncio.sleep(0.01)
    assert [vote.answer for vote in lease.votes] == [Answer.HELD] * 2 + [Answer.GRANTED] * 3
    count_up(masters[2], name=names[-1])
    with pytest.raises(LockLostError, match=LossCause.OVERTAKEN.text):
        await there.adopt(exported)


async def test_an_adoption_raises_lower_counters(
    redlock: Redlock, there: Redlock, masters: list[FakeMaster]
) -> None:
    exported = (await redlock.lock("r", fencing=True).acquire()).export()
    masters[0].delete(fence("r"))
    masters[1].set(fence("r"), "7", 1_000)
    async with await there.adopt(exported) as adopted:
        token = adopted.fencing_token
        assert {master.keys[fence("r")] for master in masters} == {f"{token:016}"}
        assert all(master.pttl(fence("r")) > 600_000 for master in masters)


async def test_the_first_call_of_a_program_may_be_an_adoption(
    redlock: Redlock, masters: list[FakeMaster]
) -> None:
    """It waits until the masters are connected, as an acquisition does."""
    exported = (await redlock.lock("r").acquire()).export()
    there = Redlock(masters, restart_guard="off")
    began = now()
    await (await there.adopt(exported)).release()
    took = now() - began
    await there.aclose()
    assert took <= 10 * LATENCY  # and not the pause after a round that reached nobody


# Leases that are over, keys that are gone


@pytest.mark.promise("S4")
@pytest.mark.parametrize("suspended", [False, True])
async def test_a_lease_whose_validity_is_over_is_refused_at_once(
    redlock: Redlock, there: Redlock, masters: list[FakeMaster], *, suspended: bool
) -> None:
    """Its end counts on the clock that includes the time of a suspension."""
    lease = await redlock.lock("r", ttl=1_000).acquire()
    left = lease.remaining
    exported = lease.export()
    (loop().suspend if suspended else loop().stall)(left / 1000)
    assert all("r" in master.keys for master in masters)
    began = now()
    with pytest.raises(LockLostError, match=f"^'r' lost: {LossCause.ADOPTED_LATE.text} "):
        await there.adopt(exported)
    assert now() == began
    assert not any(ran(master, ADOPT) for master in masters)
    await asyncio.sleep(0.01)
    assert locks_of_each(masters) == [{}] * 5  # waiters need not wait for the ttl


@pytest.mark.promise("S4")
@pytest.mark.usefixtures("all_freed")
async def test_a_lease_that_ends_while_the_masters_answer_is_not_revived(
    redlock: Redlock, there: Redlock, masters: list[FakeMaster]
) -> None:
    """The machine is suspended meanwhile; the masters still have the key."""
    exported = (await redlock.lock("r", ttl=1_000).acquire()).export()
    await asyncio.sleep(0.5)
    before(masters[4], ADOPT, lambda: loop().suspend(0.6))
    with pytest.raises(LockLostError, match="'r' lost: too few masters answered before"):
        await there.adopt(exported)


@pytest.mark.promise("S4")
@pytest.mark.usefixtures("all_freed")
@pytest.mark.parametrize("gone", ["0", "34", "024"])
@KIND
async def test_a_key_that_is_gone_is_not_set_again_and_does_not_count(
    redlock: Redlock, there: Redlock, masters: list[FakeMaster], kind: Kind, gone: str
) -> None:
    exported = (await redlock.lock("r", ttl=3_000, **kind).acquire()).export()
    without = [masters[int(number)] for number in gone]
    delete(without)
    if len(without) >= 3:
        with pytest.raises(LockLostError) as caught:
            await there.adopt(exported)
        assert caught.value.reason.startswith(LossCause.KEY_GONE.text)
        return
    adopted = await there.adopt(exported)
    await asyncio.sleep(0.01)
    assert [vote.answer for vote in adopted.votes] == [
        Answer.HELD if master in without else Answer.GRANTED for master in masters
    ]
    assert values(masters) == [None if master in without else adopted.token for master in masters]
    await asyncio.sleep(1.5)  # an extension restores it
    assert values(masters) == [adopted.token] * 5
    await adopted.release()


@pytest.mark.promise("S4")
@pytest.mark.parametrize("fencing", [False, True])
async def test_a_master_grants_an_adoption_only_if_it_has_all_keys(
    redlock: Redlock, there: Redlock, masters: list[FakeMaster], *, fencing: bool
) -> None:
    exported = (await redlock.lock("r", "s", fencing=fencing).acquire()).export()
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


@pytest.mark.usefixtures("all_freed")
@pytest.mark.parametrize("boot", ["", "f" * 16])
async def test_the_clock_of_another_machine_is_not_used(
    redlock: Redlock, there: Redlock, masters: list[FakeMaster], boot: str
) -> None:
    """Times count from the adoption, and the ttl bounds the attempts."""
    lease = await redlock.lock("r", ttl=1_000, max_hold=5_000, hold_at_least=3_000).acquire()
    for at in (-1e9, 1e9):
        handed = dataclasses.replace(imported(lease.export()), boot=boot, at=at)
        lease = await there.adopt(text_of(handed))
        assert 4_990 < (lease._hold.ends - loop().boottime()) * 1000 <= 5_000
        assert 2_990 < (lease._hold.keep_until - loop().boottime()) * 1000 <= 3_000
    exported = text_of(dataclasses.replace(imported(lease.export()), boot=boot, at=1e9))
    hang(masters[:3])
    began = now()
    with pytest.raises(LockLostError, match=LossCause.NOT_ADOPTED.text):
        await there.adopt(exported)
    assert 0.97 < now() - began <= 1


async def test_half_of_an_even_number_of_masters_is_enough_to_refuse(
    masters: list[FakeMaster],
) -> None:
    """No majority is left that could grant it: a repetition would be in vain."""
    four = masters[:4]
    async with (
        Redlock(four, restart_guard="off") as redlock,
        Redlock(four, restart_guard="off") as there,
    ):
        exported = (await redlock.lock("r").acquire()).export()
        delete(masters[:2])
        await there.check()
        began = now()
        with pytest.raises(LockLostError, match="another process has adopted it"):
            await there.adopt(exported)
        assert now() - began == pytest.approx(LATENCY)
        await settle(masters, 0.1)


@pytest.mark.usefixtures("all_freed")
async def test_a_lease_whose_max_hold_ends_during_its_adoption_is_not_adopted(
    redlock: Redlock, there: Redlock, masters: list[FakeMaster]
) -> None:
    """On another machine, where only that time has an end that the text tells."""
    lease = await redlock.lock("r", ttl=3_000, max_hold=500).acquire()
    exported = text_of(dataclasses.replace(imported(lease.export()), boot="", at=1e9))
    hang(masters[:3])
    adopting = asyncio.create_task(there.adopt(exported))
    await asyncio.sleep(1)
    resume(masters)
    with pytest.raises(LockLostError) as caught:
        await adopting
    assert caught.value.cause is LossCause.MAX_HOLD


# Masters that fail


@pytest.mark.usefixtures("all_freed")
@pytest.mark.parametrize("hung", [2, 3, 5])
async def test_masters_that_do_not_answer_are_asked_again(
    redlock: Redlock, there: Redlock, masters: list[FakeMaster], hung: int
) -> None:
    """They are asked for as long as the lease may last; a majority is enough."""
    exported = (await redlock.lock("r", ttl=1_000).acquire()).export()
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
        # The validity counts from the round that was won, which is not the first.
        assert 880 < adopted.remaining < 990
    await settle(masters, 0.5)
    assert locks_of_each(masters) == [{"r": adopted.token}] * 5
    await adopted.release()


@pytest.mark.promise("S3")
@pytest.mark.usefixtures("all_freed")
@KIND
async def test_an_adoption_fails_when_the_lease_is_over(
    redlock: Redlock, there: Redlock, masters: list[FakeMaster], kind: Kind
) -> None:
    lease = await redlock.lock("r", ttl=1_000, **kind).acquire()
    left = lease.remaining / 1000
    exported = lease.export()
    hang(masters[:3])
    began = now()
    with pytest.raises(LockLostError) as caught:
        await there.adopt(exported)
    assert left - 0.026 < now() - began <= left
    assert caught.value.reason.startswith(LossCause.NOT_ADOPTED.text)
    assert "m0: timed out" in str(caught.value)
    assert "m4: granted" in str(caught.value)


@pytest.mark.usefixtures("all_freed")
async def test_a_master_that_was_away_is_freed_of_the_old_value(
    redlock: Redlock, there: Redlock, masters: list[FakeMaster]
) -> None:
    """Once the old value is gone, a check of the key sets the new one on that master."""
    exported = (await redlock.lock("r", ttl=60_000).acquire()).export()
    before(
        masters[0], ADOPT, masters[0].cut
    )  # the master executes the request, and its reply is lost
    break_connection(there, 1)
    adopted = await there.adopt(exported, auto_extend=False)
    await asyncio.sleep(1)
    assert keys(masters) == [{"r": adopted.token}] * 5
    await adopted.release()


@pytest.mark.promise("S3")
@pytest.mark.usefixtures("all_freed")
async def test_a_master_that_only_an_earlier_round_has_reached_is_released_as_well(
    redlock: Redlock, there: Redlock, masters: list[FakeMaster]
) -> None:
    exported = (await redlock.lock("r", ttl=60_000).acquire()).export()
    hang(masters[1:4])
    adopting = asyncio.create_task(there.adopt(exported))
    await asyncio.sleep(0.098)  # between the first round and the second
    resume(masters[1:4])
    break_connection(there, 0)
    lease = await adopting
    assert lease.votes[0].answer is Answer.UNREACHABLE
    assert values(masters) == [lease.token] * 5
    await lease.release()


@pytest.mark.promise("S1")
@pytest.mark.usefixtures("all_freed")
async def test_a_late_reply_to_an_earlier_round_does_not_count(
    redlock: Redlock, there: Redlock, masters: list[FakeMaster]
) -> None:
    """Three masters grant the first round late: after the second began, that proves nothing."""
    exported = (await redlock.lock("r", ttl=1_000).acquire()).export()
    began = now()
    slow(masters[2:], 0.080)  # the round waits for 50 ms
    lease = asyncio.create_task(there.adopt(exported))
    await asyncio.sleep(0.130)
    slow(masters[2:], LATENCY)
    adopted = await lease
    rounds = ran(masters[0], ADOPT)
    assert rounds >= 2
    asked = began + (rounds - 1) * 0.1
    assert adopted.remaining <= (asked - now()) * 1000 + 1_000 - 12 + 1
    await adopted.release()


@pytest.mark.promise("S3")
@pytest.mark.usefixtures("all_freed")
@KIND
async def test_an_old_value_that_is_set_late_expires(
    redlock: Redlock, there: Redlock, masters: list[FakeMaster], kind: Kind
) -> None:
    """A request of the exporter is executed late, when the lock is free again."""
    lease = await redlock.lock("r", ttl=1_000, **kind).acquire()
    old = lease.token
    await (await there.adopt(lease.export())).release()
    await settle(masters, 0.5)
    masters[0].set("r", old)
    async with redlock.lock("r", wait=0) as lease:
        assert values(masters) == [old] + [lease.token] * 4
    await asyncio.sleep(0.6)
    assert locks_of_each(masters) == [{}] * 5


async def test_a_quarantined_master_changes_the_value_and_does_not_count(
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
        answers = [vote.answer for vote in adopted.votes]
        assert answers == [Answer.QUARANTINED] * 2 + [Answer.GRANTED] * 3
        assert values(masters) == [adopted.token] * 5
        exported = adopted.export()
        masters[2].restart()
        await asyncio.sleep(0.5)
        masters[2].set("r", adopted.token, 5_000)
        with pytest.raises(LockLostError, match="quarantined"):
            await there.adopt(exported)


async def test_a_later_token_on_quarantined_masters_ends_an_adoption_at_once(
    masters: list[FakeMaster],
) -> None:
    """That they may have forgotten locks says nothing against it."""
    async with Redlock(masters, max_ttl=5_000) as here, Redlock(masters, max_ttl=5_000) as there:
        lease = await here.lock("r", ttl=5_000, fencing=True).acquire()
        exported, later = lease.export(), f"{(lease.fencing_token or 0) + 1:016}"
        for master in masters[:3]:
            master.restart()
            master.set(fence("r"), later)
        await asyncio.sleep(0.5)
        began = now()
        with pytest.raises(LockLostError) as caught:
            await there.adopt(exported)
        assert caught.value.cause is LossCause.OVERTAKEN
        assert now() - began < 0.1


@pytest.mark.usefixtures("all_freed")
async def test_masters_without_the_script_receive_it_again(
    redlock: Redlock, there: Redlock, masters: list[FakeMaster]
) -> None:
    exported = (await redlock.lock("r").acquire()).export()
    for master in masters:
        master.execute([b"SCRIPT", b"FLUSH"])
    async with await there.adopt(exported):
        pass


@pytest.mark.promise("S8")
@pytest.mark.usefixtures("all_freed")
@pytest.mark.parametrize("cancelled", [False, True])
async def test_the_next_in_a_queue_acquires_at_once_after_a_failed_adoption(
    redlock: Redlock, there: Redlock, masters: list[FakeMaster], *, cancelled: bool
) -> None:
    """It does so even while the exporter's own entry in the queue has not expired."""
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
        assert all("r" in master.keys for master in masters)
        with pytest.raises(LockLostError, match=LossCause.ADOPTED_LATE.text):
            await there.adopt(exported)
    await asyncio.sleep(0.006)
    assert waiter.done()
    await waiter.result().release()


# Rivals


@pytest.mark.promise("S1")
@KINDS_AND_KEYS
async def test_at_most_one_of_several_adoptions_succeeds(
    redlock: Redlock, there: Redlock, masters: list[FakeMaster], names: Names, options: Kind
) -> None:
    for number in range(6):
        random.seed(number)
        exported = (await redlock.lock(*names, **options).acquire()).export()
        for master in masters:
            master.latency = random.choice([0.001, 0.002, 0.004, 0.008])
        tries = [manager.adopt(exported) for manager in random.sample([redlock, there] * 2, 4)]
        leases = await asyncio.gather(*tries, return_exceptions=True)
        held = [lease for lease in leases if isinstance(lease, Lease)]
        assert len(held) <= 1
        assert all(isinstance(lease, Lease | LockLostError) for lease in leases)
        for lease in held:
            await asyncio.sleep(11)  # the releases of the other adopters had no effect on it
            assert lease.valid
            assert values(masters, names[0]) == [lease.token] * 5
            await lease.release()
        await check_freed(masters)


@pytest.mark.promise("S1")
@pytest.mark.usefixtures("all_freed")
@KIND
async def test_a_second_adoption_is_refused_and_leaves_the_first_alone(
    redlock: Redlock, there: Redlock, masters: list[FakeMaster], kind: Kind
) -> None:
    """It releases the old value on masters that the first adoption has not reached."""
    exported = (await redlock.lock("r", **kind).acquire()).export()
    hang(masters[3:])
    lease = await there.adopt(exported)
    for call in (there.adopt, redlock.adopt):
        began = now()
        with pytest.raises(LockLostError, match="or another process has adopted it"):
            await call(exported)
        assert now() - began < 2 * LATENCY
    await lease.extend()
    await settle(masters, 0.5)
    await asyncio.sleep(5)
    assert values(masters) == [lease.token] * 5
    await lease.release()
    async with redlock.lock("r") as later:
        with pytest.raises(LockLostError):
            await there.adopt(exported)
        await asyncio.sleep(0.1)
        assert locks_of_each(masters) == [{"r": later.token}] * 5


@pytest.mark.promise("S9")
async def test_a_cancelled_adoption_wakes_the_waiters_of_its_process(
    redlock: Redlock, masters: list[FakeMaster]
) -> None:
    """The masters push no change to the connection that has made it."""
    async with Redlock(masters, restart_guard="off") as exporter:
        text = (await exporter.lock("r", ttl=20_000).acquire()).export()
        seldom = Retry(min_delay=30_000, max_delay=30_000)
        waiting = asyncio.create_task(redlock.lock("r", retry=seldom).acquire())
        await asyncio.sleep(0.2)
        adopting = asyncio.create_task(redlock.adopt(text))
        await asyncio.sleep(0.0004)
        adopting.cancel()
        async with asyncio.timeout(0.1):
            await (await waiting).release()
        await asyncio.wait([adopting])
        assert adopting.cancelled()
