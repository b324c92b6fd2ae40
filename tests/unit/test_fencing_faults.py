"""Fencing tokens among faults: counters that differ, hung masters, clocks, lost scripts."""

import asyncio
import itertools
import math
from collections.abc import AsyncIterator, Callable

import pytest

from redlock_aio import (
    Answer,
    LockNotAcquiredError,
    QuorumUnavailableError,
    Redlock,
    RedlockError,
    Retry,
)
from redlock_aio._protocol.commands import NEVER
from redlock_aio._protocol.scripts import ACQUIRE, ENQUEUE, LEAVE, RAISE
from redlock_aio._rules.fencing import MOST_RAISES
from redlock_aio.testing import FakeMaster, VirtualTimeLoop, cancelled_at

from .kit import (
    before,
    count_up,
    fence,
    had_it,
    hang,
    in_coroutine,
    now,
    occupy,
    ran,
    resume,
    values,
)

pytestmark = pytest.mark.promise("S7")

FENCE = fence("r")
BOTH = pytest.mark.parametrize("fair", [False, True])


@pytest.fixture
async def redlock(masters: list[FakeMaster]) -> AsyncIterator[Redlock]:
    """One that knows the masters' time, and has had the lock, so that there are counters."""
    async with Redlock(masters, restart_guard="off", fencing=True) as redlock:
        async with redlock.lock("r"):
            pass
        await asyncio.sleep(0.01)
        yield redlock


# Counters that differ.


@BOTH
async def test_counters_that_differ_are_made_to_agree(
    redlock: Redlock, masters: list[FakeMaster], *, fair: bool
) -> None:
    """On all masters, so that none of them has to be left out when the lease is extended."""
    ahead = count_up(masters[0], 60_000_000)
    began = now()
    async with redlock.lock("r", fair=fair) as lease:
        assert now() - began == pytest.approx(0.002)
        assert lease.fencing_token == ahead + 1
        assert {vote.answer for vote in lease.votes} == {Answer.GRANTED}
        await asyncio.sleep(0.01)
        assert {master.keys[FENCE] for master in masters} == {str(ahead + 1)}
        await lease.extend()
    assert [ran(master, RAISE) for master in masters] == [1] * 5


@BOTH
@pytest.mark.parametrize("times", [1, 2])
async def test_counters_that_are_raised_by_others_meanwhile_are_raised_again(
    redlock: Redlock, masters: list[FakeMaster], times: int, *, fair: bool
) -> None:
    ahead = count_up(masters[0], 60_000_000) + 1
    left = [times]

    def others() -> None:
        if left[0]:
            left[0] -= 1
            count_up(masters[1], 70_000_000)

    before(masters[1], RAISE, others)
    async with redlock.lock("r", fair=fair) as lease:
        assert lease.fencing_token > ahead
        await asyncio.sleep(0.01)
        assert {master.keys[FENCE] for master in masters} == {str(lease.fencing_token)}
    assert ran(masters[2], RAISE) == times + 1


@BOTH
@pytest.mark.promise("S3")
async def test_whoever_is_outrun_all_the_time_gives_up_and_leaves_nothing(
    redlock: Redlock, masters: list[FakeMaster], *, fair: bool
) -> None:
    count_up(masters[0], 60_000_000)
    others = [True]
    for number, master in enumerate(masters):
        before(
            master,
            RAISE,
            lambda master=master, by=number: others and count_up(master, 10**6 + by),  # type: ignore[misc]
        )
    with pytest.raises(LockNotAcquiredError):
        await redlock.lock("r", wait=40 if fair else 0, fair=fair).acquire()
    await asyncio.sleep(0.01)
    assert values(masters) == [None] * 5
    rounds = ran(masters[2], RAISE)
    assert rounds > MOST_RAISES if fair else rounds == MOST_RAISES
    others.clear()
    async with redlock.lock("r", wait=0, fair=fair) as lease:
        assert lease.fencing_token > 0


@pytest.mark.promise("S1")
@BOTH
async def test_a_lock_that_is_gone_when_its_counters_are_raised_is_not_won(
    redlock: Redlock, masters: list[FakeMaster], *, fair: bool
) -> None:
    count_up(masters[0], 60_000_000)
    for master in masters[:3]:
        before(master, RAISE, lambda master=master: master.delete("r"))  # type: ignore[misc]
    lease = await redlock.lock("r", fair=fair).try_acquire()
    await asyncio.sleep(0.01)
    if fair:  # it has asked again
        assert lease is not None
        assert values(masters) == [lease.token] * 5
        await lease.release()
    else:
        assert lease is None
        assert values(masters) == [None] * 5


@pytest.mark.spread(1)
@BOTH
@pytest.mark.parametrize("at", range(1, 60, 2))
async def test_a_token_is_not_lower_than_that_of_others_in_a_long_pause(
    redlock: Redlock, masters: list[FakeMaster], at: int, *, fair: bool
) -> None:
    """The process is stopped at any moment, the grants run out, and others come and go."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualTimeLoop)
    theirs: list[int] = []

    def stall() -> None:
        loop.stall(0.2)
        theirs.append(had_it(masters))

    count_up(masters[0], 60_000_000)
    loop.call_later(at * 0.00005, stall)
    async with redlock.lock("r", ttl=100, fair=fair, on_lost="flag") as lease:
        assert lease.fencing_token > max(theirs, default=0)
        if theirs and theirs[0]:
            await lease.extend()


async def test_grants_that_others_came_between_do_not_make_an_older_token_good(
    masters: list[FakeMaster],
) -> None:
    """
    One master's word to the RAISE is late. Meanwhile most others lose the lock to
    somebody and grant it anew, so that a majority has granted when the word comes.
    """
    ahead = 2 * 10**15
    masters[0].set(FENCE, str(ahead))
    for master in masters[3:]:
        master.set("r", "somebody")

    def late() -> None:
        masters[2].latency = 4.0

    before(masters[2], RAISE, late)
    async with Redlock(masters, fencing=True, master_timeout=5000) as patient:
        async with patient.lock("s"):
            pass
        acquiring = asyncio.create_task(patient.lock("r", ttl=1000, fair=True).acquire())
        await asyncio.sleep(0.003)
        assert ran(masters[2], RAISE) == 1
        for master in (*masters[:2], *masters[3:]):
            master.delete("r")
            master.set(FENCE, str(ahead + 1000))
        await asyncio.sleep(1.2)
        assert not acquiring.done()
        assert all(values([*masters[:2], *masters[3:]]))
        lease = await acquiring
        assert lease.fencing_token > ahead + 1000
        masters[2].latency = 0.001
        await lease.release()


@BOTH
async def test_where_there_are_no_tokens_left_the_masters_are_not_asked_again_at_once(
    redlock: Redlock, masters: list[FakeMaster], *, fair: bool
) -> None:
    """The key is set there and taken back each time, but nobody is woken by that."""
    for master in masters:
        master.set(FENCE, str(NEVER - 1))
    asked = len(masters[0].commands)
    with pytest.raises(QuorumUnavailableError, match="makes no sense") as caught:
        await redlock.lock("r", wait=2_000, fair=fair, retry=Retry(100, 200)).acquire()
    assert caught.value.attempts <= 21
    assert len(masters[0].commands) - asked <= 4 * 21
    await asyncio.sleep(0.01)
    assert values(masters) == [None] * 5


# Masters that do not answer.


@BOTH
@pytest.mark.promise("S6")
async def test_a_hung_minority_costs_no_time(
    redlock: Redlock, masters: list[FakeMaster], *, fair: bool
) -> None:
    masters[0].hang()
    masters[3].hang()
    began = now()
    async with redlock.lock("r", fair=fair):
        assert now() - began == pytest.approx(0.001)
    count_up(masters[1], 60_000_000)
    began = now()
    async with redlock.lock("r", fair=fair):
        assert now() - began == pytest.approx(0.002)


@BOTH
@pytest.mark.promise("S6")
async def test_a_minority_that_hangs_between_the_rounds_costs_no_time(
    redlock: Redlock, masters: list[FakeMaster], *, fair: bool
) -> None:
    count_up(masters[0], 60_000_000)
    for master in masters[1:3]:
        before(master, RAISE, master.hang)
    began = now()
    lease = await redlock.lock("r", fair=fair).acquire()
    # Those that hang have answered with the word after which they hang.
    assert now() - began == pytest.approx(0.002)
    masters[1].resume()
    masters[2].resume()
    await lease.release()


@BOTH
@pytest.mark.promise("S3")
async def test_a_majority_that_hangs_between_the_rounds_keeps_nothing(
    redlock: Redlock, masters: list[FakeMaster], *, fair: bool
) -> None:
    count_up(masters[0], 60_000_000)
    loop = asyncio.get_running_loop()
    for master in masters[:3]:
        loop.call_later(0.0012, master.hang)
    with pytest.raises(RedlockError):
        await redlock.lock("r", wait=60, fair=fair).acquire()
    assert ran(masters[4], RAISE) == 1
    resume(masters)
    await asyncio.sleep(1)
    assert values(masters) == [None] * 5


@pytest.mark.promise("S3")
@BOTH
@pytest.mark.parametrize(("asleep", "ahead"), [(2.5, 0), (9.0, 3600)])
async def test_a_master_that_gets_a_request_late_does_not_grant_it(
    redlock: Redlock, masters: list[FakeMaster], asleep: float, ahead: float, *, fair: bool
) -> None:
    """It would be the lock of somebody who has gone, for all of its ttl."""
    masters[0].clock_offset = ahead  # this makes nobody much more patient
    async with redlock.lock("r", fair=fair):
        pass
    await asyncio.sleep(0.01)
    token, served = masters[4].keys[FENCE], ran(masters[4], ENQUEUE if fair else ACQUIRE)
    masters[4].hang()
    async with redlock.lock("r", fair=fair):
        pass
    await asyncio.sleep(asleep)
    masters[4].resume()
    assert ran(masters[4], ENQUEUE if fair else ACQUIRE) > served
    assert masters[4].keys[FENCE] == token


# Cancellations.


@pytest.mark.spread(2)
@pytest.mark.promise("S3")
@BOTH
@pytest.mark.parametrize("when", ["waiting", "answered"])
@pytest.mark.parametrize("hung", range(3))
@pytest.mark.parametrize("first", [False, True])
async def test_nothing_stays_wherever_it_is_cancelled(
    masters: list[FakeMaster], hung: int, when: str, *, fair: bool, first: bool
) -> None:
    """Also between the rounds, and while the masters are asked for their time."""
    raised = 0
    async with Redlock(masters, restart_guard="off", fencing=True) as redlock:
        for place in itertools.count(1):
            async with redlock.lock("r", fair=fair):
                pass
            await asyncio.sleep(0.1)
            count_up(masters[4], 60_000_000)
            if first:
                redlock._opener.session().masters.clocks.due_at = -math.inf
            hang(masters[:hung])

            async def use() -> None:
                async with redlock.lock("r", fair=fair):
                    await asyncio.sleep(0.01)

            step = cancelled_at(place, use(), when=when)  # type: ignore[arg-type]
            task = asyncio.ensure_future(in_coroutine(step))
            await asyncio.wait([task])
            resume(masters)
            await asyncio.sleep(1)
            left = {key for master in masters for key in master._keys} - {FENCE.encode()}
            assert not left, f"suspension {place}"
            if not task.cancelled():
                assert task.exception() is None
                assert place > 3
                break
            raised = ran(masters[4], RAISE)
        assert raised > 0
        assert "0 leases" in repr(redlock)


# Clocks.


@BOTH
@pytest.mark.parametrize("apart", [1.0, -1.0, 5.0, -5.0])
async def test_clocks_that_differ_a_little_do_not_matter(
    masters: list[FakeMaster], apart: float, *, fair: bool
) -> None:
    masters[0].clock_offset = apart
    masters[1].clock_offset = apart * 0.9
    async with Redlock(masters, restart_guard="off", fencing=True) as redlock:
        for _ in range(3):
            async with redlock.lock("r", fair=fair) as lease:
                await asyncio.sleep(0.01)
                assert {vote.answer for vote in lease.votes} == {Answer.GRANTED}
    assert ran(masters[2], RAISE) == 0


@pytest.mark.parametrize(
    ("offset", "text"),
    [(9.0, "9.0 s ahead of"), (-9.0, "9.0 s behind"), (3600.0, "3600.0 s ahead of")],
)
async def test_a_master_whose_clock_is_far_off_has_no_vote(
    masters: list[FakeMaster], offset: float, text: str
) -> None:
    """And says by how much; two of five do no harm."""
    masters[0].clock_offset = masters[1].clock_offset = offset
    async with Redlock(masters, restart_guard="off", fencing=True) as redlock:
        async with redlock.lock("r", wait=0) as lease:
            await asyncio.sleep(0.01)
            said = [vote.answer for vote in lease.votes]
            assert said == [Answer.ERROR] * 2 + [Answer.GRANTED] * 3
            assert str(lease.votes[0]) == f"m0: error, its clock is {text} the others'"
        async with redlock.lock("r", wait=0, fair=True) as lease:
            pass
        async with redlock.lock("p", wait=0, fencing=False) as lease:
            await asyncio.sleep(0.01)
            assert {vote.answer for vote in lease.votes} == {Answer.GRANTED}, "it can do without"


@BOTH
async def test_clocks_of_which_none_has_a_majority_with_it_give_no_token(
    masters: list[FakeMaster], *, fair: bool
) -> None:
    for number, master in enumerate(masters):
        master.clock_offset = 20.0 * number
    async with Redlock(masters, restart_guard="off", fencing=True) as redlock:
        with pytest.raises(QuorumUnavailableError, match=r"its clock is 20\.0 s|too late"):
            await redlock.lock("r", wait=50, fair=fair).acquire()
        await asyncio.sleep(0.01)
        assert values(masters) == [None] * 5


@BOTH
@pytest.mark.promise("S6")
async def test_a_mad_clock_makes_nothing_unreadable_for_the_others(
    masters: list[FakeMaster], *, fair: bool
) -> None:
    """It is in the year 2286, by which numbers have a digit more."""
    masters[0].clock_offset = 1e10
    async with (
        Redlock(masters, restart_guard="off") as redlock,
        redlock.lock("r", fencing=True, fair=fair) as lease,
    ):
        assert lease.fencing_token < 2**53


@BOTH
@pytest.mark.parametrize("jump", [3600.0, -3600.0])
async def test_when_all_clocks_have_jumped_the_next_attempt_works(
    redlock: Redlock, masters: list[FakeMaster], jump: float, *, fair: bool
) -> None:
    last = int(masters[0].keys[FENCE])
    for master in masters:
        master.clock_offset = jump
    began = now()
    async with redlock.lock("r", wait=0, fair=fair) as lease:
        assert now() - began < 0.006
        assert lease.fencing_token > last


@BOTH
@pytest.mark.parametrize("mad", [2**53 - 1, 2**53, 2**60])
async def test_a_counter_beyond_what_scripts_can_count_is_that_masters_vote(
    redlock: Redlock, masters: list[FakeMaster], mad: int, *, fair: bool
) -> None:
    """It is not spread to the others, where it would be the token of all to come."""
    masters[0].set(FENCE, str(mad))
    tokens = []
    for _ in range(3):
        async with redlock.lock("r", fair=fair) as lease:
            await asyncio.sleep(0.01)
            tokens.append(lease.fencing_token)
            assert "makes no sense" in lease.votes[0].detail
    assert tokens == sorted(set(tokens))
    assert max(tokens) < 2**52


# Scripts that are gone.


def flush(masters: list[FakeMaster]) -> None:
    for master in masters:
        assert master.execute([b"SCRIPT", b"FLUSH"]) == b"OK"


@BOTH
@pytest.mark.parametrize("number", [1, 2, 3, 5])
async def test_masters_that_have_forgotten_their_scripts_are_given_them(
    redlock: Redlock, masters: list[FakeMaster], number: int, *, fair: bool
) -> None:
    flush(masters[:number])
    began = now()
    async with redlock.lock("r", fair=fair) as lease:
        assert now() - began < 0.05
        assert lease.fencing_token > 0
    flush(masters[:number])
    async with redlock.lock("r", fair=fair) as lease:
        pass
    await asyncio.sleep(0.3)
    assert values(masters) == [None] * 5


@BOTH
@pytest.mark.parametrize("number", [3, 5])
async def test_whoever_tries_but_once_does_not_fail_by_lost_scripts(
    redlock: Redlock, masters: list[FakeMaster], number: int, *, fair: bool
) -> None:
    flush(masters[:number])
    began = now()
    async with redlock.lock("r", wait=0, fair=fair):
        assert now() - began < 0.006
    flush(masters[:number])
    lease = await redlock.lock("r", fair=fair).try_acquire()
    assert lease is not None
    await lease.release()
    await asyncio.sleep(0.3)
    assert values(masters) == [None] * 5


async def test_whoever_tries_but_once_tries_once_where_others_hold_the_lock(
    redlock: Redlock, masters: list[FakeMaster]
) -> None:
    """Though one master has forgotten its scripts, and the clock of another is far off."""
    flush(masters[:1])
    masters[1].clock_offset = 60.0
    occupy(masters[2:])
    asked = ran(masters[4], ACQUIRE)
    assert await redlock.lock("r").try_acquire() is None
    await asyncio.sleep(0.01)
    assert ran(masters[4], ACQUIRE) == asked + 1


@BOTH
async def test_scripts_that_are_gone_between_the_rounds(
    redlock: Redlock, masters: list[FakeMaster], *, fair: bool
) -> None:
    count_up(masters[0], 60_000_000)
    flushes: list[Callable[[], None]] = [lambda: flush(masters)]
    before(masters[0], RAISE, lambda: flushes.pop()() if flushes else None)
    async with redlock.lock("r", fair=fair) as lease:
        assert lease.fencing_token > 60_000_000
    await asyncio.sleep(0.3)
    assert values(masters) == [None] * 5
    assert ran(masters[0], LEAVE) <= 4


async def test_only_the_first_attempt_of_an_outage_waits_for_the_time(
    masters: list[FakeMaster],
) -> None:
    async with Redlock(masters, restart_guard="off", fencing=True, master_timeout=50) as redlock:
        hang(masters[:3])
        for most in (0.11, 0.06, 0.06):
            began = now()
            assert await redlock.lock("r").try_acquire() is None
            assert now() - began < most
