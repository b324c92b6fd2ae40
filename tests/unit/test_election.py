"""Elections and watches: who leads, in which order, and who is told of it."""

import asyncio
from typing import Any

import pytest

from redlock_aio import (
    Election,
    LockLostError,
    LockNotAcquiredError,
    LockState,
    Redlock,
    RedlockError,
    Term,
)
from redlock_aio._engine.admin.watch import INTERVAL, SETTLES
from redlock_aio._protocol.scripts import EXTEND, INSPECT, LOOK

from . import kit
from .cancelling import When, every_place
from .kit import Masters, hang, now, settle

SOON = SETTLES + 0.02
pytestmark = pytest.mark.usefixtures("nothing_stays")


async def terms(election: Election, number: int, seconds: float = 1.0) -> list[tuple[float, int]]:
    """Lead for so many terms; return when each began, and its number."""
    led: list[tuple[float, int]] = []
    async for term in election:
        async with term:
            led.append((now(), term.number))
            await asyncio.sleep(seconds)
        if len(led) == number:
            break
    return led


# Terms.


async def test_candidates_lead_in_turn_and_terms_rise(redlock: Redlock, other: Redlock) -> None:
    first = asyncio.create_task(terms(redlock.election("r"), 3))
    await asyncio.sleep(0.01)
    second = asyncio.create_task(terms(other.election("r"), 3))
    led = sorted(await first + await second)
    assert led == sorted(led, key=lambda term: term[1])
    assert [at for at, _ in await first] == pytest.approx([0, 2, 4], abs=0.1)
    assert [at for at, _ in await second] == pytest.approx([1, 3, 5], abs=0.1)


async def test_leading_is_true_while_the_term_is_valid(redlock: Redlock) -> None:
    election = redlock.election("r", ttl=1_000)
    assert (election.resource, election.leading) == ("r", False)
    async for term in election:
        async with term as entered:
            assert entered is term
            assert election.leading
            assert term.lease.ttl == 1_000
            term.ensure_valid()
        assert not election.leading
        break
    assert repr(election) == "<Election 'r', does not lead>"


async def test_a_loss_ends_the_block_and_the_loop_campaigns_again(
    redlock: Redlock, masters: Masters
) -> None:
    led: list[int] = []
    async for term in redlock.election("r"):
        async with term:
            led.append(term.number)
            if len(led) == 2:
                break
            kit.delete(masters)
            await asyncio.sleep(9)
            led.append(-1)
    assert led == sorted(led)
    assert now() < 1


async def test_a_body_that_notices_the_loss_itself_ends_its_block_only(
    redlock: Redlock, masters: Masters
) -> None:
    turns = 0
    async for term in redlock.election("r", ttl=500):
        async with term:
            turns += 1
            if turns == 2:
                break
            hang(masters)
            kit.loop().stall(1)
            term.ensure_valid()
        assert turns == 1
        kit.resume(masters)
    assert turns == 2


@pytest.mark.parametrize("works", [True, False])
async def test_a_task_of_the_body_that_notices_the_loss_ends_its_block_only(
    redlock: Redlock, works: bool
) -> None:
    """Unless another task of the group has failed, which would be hidden."""

    async def work(term: Term) -> None:
        await asyncio.sleep(0.01)
        kit.loop().stall(1)
        term.ensure_valid()

    async def fail() -> None:
        try:
            await asyncio.sleep(9)
        finally:
            raise KeyError

    async def campaign() -> int:
        turns = 0
        async for term in redlock.election("r", ttl=500):
            async with term:
                turns += 1
                if turns == 2:
                    break
                async with asyncio.TaskGroup() as group:
                    group.create_task(work(term))
                    if not works:
                        group.create_task(fail())
        return turns

    if works:
        assert await campaign() == 2
    else:
        with pytest.raises(ExceptionGroup) as raised:
            await campaign()
        assert {type(error) for error in raised.value.exceptions} == {LockLostError, KeyError}


async def test_a_candidate_too_many_is_told(redlock: Redlock, masters: Masters) -> None:
    async with Redlock(masters, max_waiters=1) as late, redlock.lock("r", fair=True):
        waiter = asyncio.create_task(terms(redlock.election("r"), 1))
        await asyncio.sleep(0.1)
        with pytest.raises(LockNotAcquiredError, match="queue is full"):
            await anext(late.election("r"))
        waiter.cancel()


async def test_a_term_that_was_lost_before_its_block_cancels_the_body(
    redlock: Redlock, masters: Masters
) -> None:
    turns: list[str] = []
    async for term in redlock.election("r"):
        if not turns:
            kit.delete(masters)
            await asyncio.sleep(1)
            assert not term.lease.valid
        async with term:
            turns.append("began")
            await asyncio.sleep(0.01)
            turns.append("led")
        if len(turns) > 1:
            break
    assert turns == ["began", "began", "led"]


@pytest.mark.parametrize("lost", [False, True])
async def test_an_error_of_the_body_ends_the_loop(
    redlock: Redlock, masters: Masters, lost: bool
) -> None:
    with pytest.raises(KeyError):
        async for term in redlock.election("r"):
            async with term:
                if lost:
                    kit.delete(masters)
                    try:
                        await asyncio.sleep(9)
                    finally:
                        raise KeyError
                raise KeyError
    await settle(masters, 0.1)


async def test_the_loss_of_another_lock_in_the_body_is_an_error(
    redlock: Redlock, masters: Masters
) -> None:
    with pytest.raises(LockLostError, match="'s' lost"):
        async for term in redlock.election("r"):
            async with term, redlock.lock("s"):
                kit.delete(masters, "s")
                await asyncio.sleep(9)


@pytest.mark.parametrize("first", ["cancelled", "lost"])
@pytest.mark.parametrize("grouped", [False, True])
async def test_a_cancellation_is_not_taken_for_the_loss_that_the_body_finds(
    redlock: Redlock, masters: Masters, first: str, grouped: bool
) -> None:
    """SIGTERM comes, and the body notices in its clean-up that the term is lost, too."""
    turns = 0

    async def work(term: Term) -> None:
        try:
            await asyncio.sleep(9)
        finally:
            hang(masters)
            kit.loop().stall(11)
            term.ensure_valid()

    async def lead() -> None:
        nonlocal turns
        async for term in redlock.election("r"):
            turns += 1
            async with term:
                if grouped:
                    async with asyncio.TaskGroup() as group:
                        group.create_task(work(term))
                else:
                    await work(term)

    task = asyncio.create_task(lead())
    await asyncio.sleep(1)
    if first == "lost":
        kit.delete(masters)
    task.cancel()
    await asyncio.wait([task], timeout=60)
    kit.resume(masters)
    assert task.cancelled()
    assert turns == 1
    await settle(masters, 12)


async def test_a_turn_without_its_block_stands_down(redlock: Redlock, other: Redlock) -> None:
    election, turns = redlock.election("r"), 0
    rival = asyncio.create_task(terms(other.election("r"), 1, seconds=0.5))
    await asyncio.sleep(0.1)
    async for term in election:
        turns += 1
        if turns == 2:
            await term.lease.release()
            break
    assert turns == 2
    await rival


async def test_max_hold_ends_a_term(redlock: Redlock) -> None:
    led = await asyncio.wait_for(terms(redlock.election("r", max_hold=300), 3, seconds=9), 2)
    assert [at for at, _ in led] == pytest.approx([0, 0.3, 0.6], abs=0.05)


async def test_a_candidate_that_is_cancelled_leads_no_more(
    redlock: Redlock, other: Redlock
) -> None:
    leader = asyncio.create_task(terms(redlock.election("r"), 9, seconds=99))
    await asyncio.sleep(1)
    leader.cancel()
    began = now()
    await terms(other.election("r"), 1, seconds=0)
    assert now() - began < 0.01


@pytest.mark.spread(2)
@pytest.mark.parametrize("when", ["waiting", "answered"])
@pytest.mark.parametrize("hung", range(3))
async def test_a_cancellation_anywhere_leaves_nothing(
    redlock: Redlock, masters: Masters, hung: int, when: When
) -> None:
    async def use() -> None:
        assert len(await terms(redlock.election("r"), 2, seconds=0.01)) == 2

    await every_place(masters, when, hung, use)
    assert redlock.statistics().leases == 0


async def test_options_are_checked_when_it_is_made(redlock: Redlock) -> None:
    with pytest.raises(ValueError, match="ttl must be at least 50"):
        redlock.election("r", ttl=1)
    with pytest.raises(ValueError, match="resource"):
        redlock.watch("")


# Watches.


async def watching(redlock: Redlock, seen: list[tuple[float, str]]) -> None:
    async for state in redlock.watch("r"):
        who = str(state.holder and state.holder.name)
        seen.append((now(), f"{len(state.readers)} read" if state.shared else who))


@pytest.mark.parametrize("here", [True, False])
async def test_each_change_of_the_holder_is_told_once(
    redlock: Redlock, there: Redlock, here: bool
) -> None:
    """Also changes by the own process, which masters do not push."""
    seen: list[tuple[float, str]] = []
    task = asyncio.create_task(watching(there if here else redlock, seen))
    await asyncio.sleep(0.5)
    for _ in range(2):
        async with there.lock("r"):
            await asyncio.sleep(1)
        await asyncio.sleep(1)
    task.cancel()
    assert [who for _, who in seen] == ["None", "there", "None", "there", "None"]
    assert [at for at, _ in seen[1:]] == pytest.approx([0.5, 1.5, 2.5, 3.5], abs=SOON + 0.02)


async def test_the_present_holder_is_told_at_once(redlock: Redlock, there: Redlock) -> None:
    async with there.lock("r"):
        began = now()
        state = await anext(redlock.watch("r"))
        assert now() - began < 0.01
        assert state.holder is not None
        assert state.holder.name == "there"


async def test_a_hand_over_is_one_change(redlock: Redlock, other: Redlock, there: Redlock) -> None:
    seen: list[tuple[float, str]] = []
    first = asyncio.create_task(terms(other.election("r"), 1))
    await asyncio.sleep(0.1)
    second = asyncio.create_task(terms(there.election("r"), 1))
    task = asyncio.create_task(watching(redlock, seen))
    await asyncio.gather(first, second)
    await asyncio.sleep(1)
    task.cancel()
    assert len(seen) == 3
    assert seen[1][1] == "there"


async def test_a_watch_follows_masters_that_fail_and_come_back(
    redlock: Redlock, there: Redlock, masters: Masters
) -> None:
    seen: list[tuple[float, str]] = []
    task = asyncio.create_task(watching(redlock, seen))
    await asyncio.sleep(0.1)
    kit.kill(masters[:2])
    await asyncio.sleep(3)
    kit.restart(masters[:2])
    await asyncio.sleep(3)
    async with there.lock("r"):
        began = now()
        await asyncio.sleep(2)
    task.cancel()
    assert "there" in {who for at, who in seen if at <= began + SOON + 0.02}


async def test_readers_are_told_after_the_interval_at_most(
    redlock: Redlock, there: Redlock
) -> None:
    seen: list[tuple[float, str]] = []
    async with there.lock("r", ttl=3_000, shared=True):  # its extensions are pushed meanwhile
        task = asyncio.create_task(watching(redlock, seen))
        await asyncio.sleep(1)
        second = asyncio.create_task(kit.acquired_at(there, shared=True, retry=None, hold=30))
        await asyncio.sleep(INTERVAL + 1)
        assert [who for _, who in seen] == ["1 read", "2 read"]
        await second
    task.cancel()


async def test_a_watch_is_no_waiter_and_keeps_its_queue(redlock: Redlock) -> None:
    seen: list[tuple[float, str]] = []
    task = asyncio.create_task(watching(redlock, seen))
    await asyncio.sleep(1)
    assert redlock.statistics().waiters == 0
    queues = kit.session(redlock).local_queues
    assert not queues.by_key[b"r"].idle
    task.cancel()
    await asyncio.wait([task])
    assert queues.by_key[b"r"].idle


async def test_closing_the_manager_ends_a_watch(masters: Masters) -> None:
    redlock = Redlock(masters)
    seen: list[tuple[float, str]] = []
    async with redlock:
        task = asyncio.create_task(watching(redlock, seen))
        await asyncio.sleep(1)
    with pytest.raises(RedlockError, match="closed"):
        await task


async def test_states_compare_by_who_has_the_lock(redlock: Redlock) -> None:
    def facts(state: LockState) -> Any:
        return state.facts

    async with redlock.lock("r"):
        one = await redlock.inspect("r")
        await asyncio.sleep(1)
        two = await redlock.inspect("r")
    assert one != two
    assert facts(one) == facts(two)
    assert facts(await redlock.inspect("r")) != facts(one)


async def test_an_extension_costs_a_watch_one_look(
    redlock: Redlock, there: Redlock, masters: Masters
) -> None:
    """Its push does not tell an extension from another holder."""
    seen: list[tuple[float, str]] = []
    async with there.lock("r", ttl=1_000):
        task = asyncio.create_task(watching(redlock, seen))
        await asyncio.sleep(1)
        before = [(kit.ran(masters[0], script)) for script in (LOOK, INSPECT, EXTEND)]
        await asyncio.sleep(5)
        after = [(kit.ran(masters[0], script)) for script in (LOOK, INSPECT, EXTEND)]
        looks, inspections, extensions = (b - a for a, b in zip(before, after, strict=True))
        assert extensions > 10
        assert (inspections, len(seen)) == (0, 1)
        assert looks <= 2 * extensions  # that of the holder, which checks its key, too
    task.cancel()
