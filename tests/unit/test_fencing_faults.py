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
from redlock_aio._engine.claim import Claim
from redlock_aio._engine.fenced import agree
from redlock_aio._engine.masters import MasterSet, Round
from redlock_aio._protocol.commands import NEVER
from redlock_aio._protocol.primitives import FencingCounter, Mutex
from redlock_aio._protocol.scripts import ACQUIRE, ENQUEUE, LEAVE, RAISE
from redlock_aio._rules.fencing import MOST_RAISES
from redlock_aio.testing import FakeMaster, cancelled_at

from . import kit
from .kit import (
    before,
    count_other_holder,
    count_up,
    fence,
    hang,
    in_coroutine,
    loop,
    now,
    occupy,
    ran,
    resume,
    values,
)

pytestmark = pytest.mark.promise("S7")

FENCE = fence("r")
AHEAD = 60_000_000
"""Microseconds by which a counter is ahead of the others: more than clocks differ."""
FAIR = pytest.mark.parametrize("fair", [False, True])


@pytest.fixture
async def redlock(masters: list[FakeMaster]) -> AsyncIterator[Redlock]:
    """Open a manager that knows the masters' time and has had the lock: there are counters."""
    async with Redlock(masters, restart_guard="off", fencing=True) as redlock:
        async with redlock.lock("r"):
            pass
        await asyncio.sleep(0.01)
        yield redlock


# Counters that differ


@FAIR
async def test_counters_that_differ_are_raised(
    redlock: Redlock, masters: list[FakeMaster], *, fair: bool
) -> None:
    """They are raised on all masters, so each master counts when the lease is extended."""
    ahead = count_up(masters[0], AHEAD)
    began = now()
    async with redlock.lock("r", fair=fair) as lease:
        assert now() - began == pytest.approx(0.002)
        assert lease.fencing_token == ahead + 1
        assert {vote.answer for vote in lease.votes} == {Answer.GRANTED}
        await asyncio.sleep(0.01)
        assert {master.keys[FENCE] for master in masters} == {str(ahead + 1)}
        await lease.extend()
    assert [ran(master, RAISE) for master in masters] == [1] * 5


@FAIR
@pytest.mark.parametrize("times", [1, 2])
async def test_counters_that_others_raise_meanwhile_are_raised_again(
    redlock: Redlock, masters: list[FakeMaster], times: int, *, fair: bool
) -> None:
    ahead = count_up(masters[0], AHEAD) + 1
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


async def test_a_master_that_replies_twice_is_counted_once_when_counters_are_raised(
    redlock: Redlock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two of five counters are higher in each round, one of them twice: that is no majority."""
    session, higher = kit.session(redlock), itertools.count(7)

    async def ask(_masters: MasterSet, round: Round, _at_most: float | None) -> None:
        counter = next(higher)
        for master, reply in [(0, counter), (0, counter), (1, counter), (2, 1)]:
            round.on_reply(master, reply)

    monkeypatch.setattr(MasterSet, "ask", ask)
    claim = Claim(Mutex(b"r"), b"token", 1_000)
    counter = FencingCounter((Mutex(b"r"),), 0)
    assert not await agree(session.masters, counter, claim, [5])
    assert not claim.fence


@FAIR
@pytest.mark.promise("S3")
async def test_an_acquisition_that_others_outrun_gives_up_and_leaves_no_key(
    redlock: Redlock, masters: list[FakeMaster], *, fair: bool
) -> None:
    count_up(masters[0], AHEAD)
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
@FAIR
async def test_a_key_that_is_gone_when_its_counter_is_raised_is_no_grant(
    redlock: Redlock, masters: list[FakeMaster], *, fair: bool
) -> None:
    count_up(masters[0], AHEAD)
    for master in masters[:3]:
        before(master, RAISE, lambda master=master: master.delete("r"))  # type: ignore[misc]
    lease = await redlock.lock("r", fair=fair).try_acquire()
    await asyncio.sleep(0.01)
    if fair:  # the waiter asks again
        assert lease is not None
        assert values(masters) == [lease.token] * 5
        await lease.release()
    else:
        assert lease is None
        assert values(masters) == [None] * 5


@pytest.mark.spread(0)
@FAIR
@pytest.mark.parametrize("at", range(1, 60, 2))
async def test_a_token_is_higher_than_those_granted_in_a_stall(
    redlock: Redlock, masters: list[FakeMaster], at: int, *, fair: bool
) -> None:
    """The process stalls, its grants expire, and other clients have the lock."""
    running = loop()
    theirs: list[int] = []

    def stall() -> None:
        running.stall(0.2)
        theirs.append(count_other_holder(masters))

    count_up(masters[0], AHEAD)
    running.call_later(at * 0.00005, stall)
    async with redlock.lock("r", ttl=100, fair=fair, on_lost="flag") as lease:
        assert lease.fencing_token > max(theirs, default=0)
        if theirs and theirs[0]:
            await lease.extend()


async def test_an_old_token_is_not_won_by_grants_after_another_holder(
    masters: list[FakeMaster],
) -> None:
    """
    One master's reply to RAISE is late. Meanwhile most others lose the lock to another
    client and grant it again, so a majority has granted when the reply comes.
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


@FAIR
async def test_masters_without_tokens_are_not_asked_again_at_once(
    redlock: Redlock, masters: list[FakeMaster], *, fair: bool
) -> None:
    """The key is set and released there each time, which wakes no waiter."""
    for master in masters:
        master.set(FENCE, str(NEVER - 1))
    asked = len(masters[0].commands)
    with pytest.raises(QuorumUnavailableError, match="malformed reply") as caught:
        await redlock.lock("r", wait=2_000, fair=fair, retry=Retry(100, 200)).acquire()
    assert caught.value.attempts <= 21
    assert len(masters[0].commands) - asked <= 4 * 21
    await asyncio.sleep(0.01)
    assert values(masters) == [None] * 5


# Masters that hang


@FAIR
@pytest.mark.promise("S6")
async def test_a_hung_minority_costs_no_time(
    redlock: Redlock, masters: list[FakeMaster], *, fair: bool
) -> None:
    hang(masters[::3])
    began = now()
    async with redlock.lock("r", fair=fair):
        assert now() - began == pytest.approx(0.001)
    count_up(masters[1], AHEAD)
    began = now()
    async with redlock.lock("r", fair=fair):
        assert now() - began == pytest.approx(0.002)
    resume(masters)
    await asyncio.sleep(1)
    count_up(masters[0], AHEAD)
    for master in masters[1:3]:
        before(master, RAISE, master.hang)  # between the two rounds
    began = now()
    lease = await redlock.lock("r", fair=fair).acquire()
    # These two have replied to RAISE, and hang after that.
    assert now() - began == pytest.approx(0.002)
    resume(masters)
    await lease.release()


@FAIR
@pytest.mark.promise("S3")
async def test_a_majority_that_hangs_between_the_rounds_keeps_no_key(
    redlock: Redlock, masters: list[FakeMaster], *, fair: bool
) -> None:
    count_up(masters[0], AHEAD)
    for master in masters[:3]:
        loop().call_later(0.0012, master.hang)
    with pytest.raises(RedlockError):
        await redlock.lock("r", wait=60, fair=fair).acquire()
    assert ran(masters[4], RAISE) == 1
    resume(masters)
    await asyncio.sleep(1)
    assert values(masters) == [None] * 5


@pytest.mark.promise("S3")
@FAIR
@pytest.mark.parametrize(("asleep", "ahead"), [(2.5, 0), (9.0, 3600)])
async def test_a_master_refuses_a_request_that_is_late(
    redlock: Redlock, masters: list[FakeMaster], asleep: float, ahead: float, *, fair: bool
) -> None:
    """Otherwise it would grant the lock to a client that has given up, for the whole ttl."""
    masters[0].clock_offset = ahead  # one wrong clock does not change that much
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


# Cancellations


@pytest.mark.spread(2)
@pytest.mark.promise("S3")
@FAIR
@pytest.mark.parametrize("when", ["waiting", "answered"])
@pytest.mark.parametrize("hung", range(3))
@pytest.mark.parametrize("first", [False, True])
async def test_wherever_it_is_cancelled_no_key_is_left(
    masters: list[FakeMaster], hung: int, when: str, *, fair: bool, first: bool
) -> None:
    """Cancelled also between the rounds, and while the masters' time is awaited."""
    raised = 0
    async with Redlock(masters, restart_guard="off", fencing=True) as redlock:
        for place in itertools.count(1):
            async with redlock.lock("r", fair=fair):
                pass
            await asyncio.sleep(0.1)
            count_up(masters[4], AHEAD)
            if first:
                kit.session(redlock).masters.clocks.due_at = -math.inf
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


# Clocks


@FAIR
@pytest.mark.parametrize("apart", [1.0, 5.0, -5.0])
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
    """The vote has the difference; two such masters of five do no harm."""
    masters[0].clock_offset = masters[1].clock_offset = offset
    async with Redlock(masters, restart_guard="off", fencing=True) as redlock:
        async with redlock.lock("r", wait=0) as lease:
            await asyncio.sleep(0.01)
            given = [vote.answer for vote in lease.votes]
            assert given == [Answer.ERROR] * 2 + [Answer.GRANTED] * 3
            assert str(lease.votes[0]) == f"m0: error, its clock is {text} the others'"
        async with redlock.lock("r", wait=0, fair=True) as lease:
            pass
        async with redlock.lock("p", wait=0, fencing=False) as lease:
            await asyncio.sleep(0.01)
            assert {vote.answer for vote in lease.votes} == {Answer.GRANTED}, "it can do without"


@FAIR
async def test_without_a_majority_of_equal_clocks_there_is_no_token(
    masters: list[FakeMaster], *, fair: bool
) -> None:
    for number, master in enumerate(masters):
        master.clock_offset = 20.0 * number
    async with Redlock(masters, restart_guard="off", fencing=True) as redlock:
        with pytest.raises(QuorumUnavailableError, match=r"its clock is 20\.0 s|too late"):
            await redlock.lock("r", wait=50, fair=fair).acquire()
        await asyncio.sleep(0.01)
        assert values(masters) == [None] * 5


@FAIR
@pytest.mark.promise("S6")
async def test_a_clock_in_another_century_breaks_no_other_master(
    masters: list[FakeMaster], *, fair: bool
) -> None:
    """The clock is in the year 2286, and its times have one digit more."""
    masters[0].clock_offset = 1e10
    async with (
        Redlock(masters, restart_guard="off") as redlock,
        redlock.lock("r", fencing=True, fair=fair) as lease,
    ):
        assert lease.fencing_token < 2**53


@FAIR
@pytest.mark.parametrize("jump", [3600.0, -3600.0])
async def test_after_all_clocks_jump_the_next_attempt_works(
    redlock: Redlock, masters: list[FakeMaster], jump: float, *, fair: bool
) -> None:
    last = int(masters[0].keys[FENCE])
    for master in masters:
        master.clock_offset = jump
    began = now()
    async with redlock.lock("r", wait=0, fair=fair) as lease:
        assert now() - began < 0.006
        assert lease.fencing_token > last


@FAIR
@pytest.mark.parametrize("mad", [2**53 - 1, 2**53, 2**60])
async def test_a_counter_beyond_2_to_the_53_costs_one_vote(
    redlock: Redlock, masters: list[FakeMaster], mad: int, *, fair: bool
) -> None:
    """It is not copied to the other masters, where it would be the token of all later leases."""
    masters[0].set(FENCE, str(mad))
    tokens = []
    for _ in range(3):
        async with redlock.lock("r", fair=fair) as lease:
            await asyncio.sleep(0.01)
            tokens.append(lease.fencing_token)
            assert "malformed reply" in lease.votes[0].detail
    assert tokens == sorted(set(tokens))
    assert max(tokens) < 2**52


# Lost scripts


def flush(masters: list[FakeMaster]) -> None:
    for master in masters:
        assert master.execute([b"SCRIPT", b"FLUSH"]) == b"OK"


@FAIR
@pytest.mark.parametrize("number", [1, 3, 5])
@pytest.mark.parametrize("wait", [None, 0])
async def test_lost_scripts_are_loaded_again_within_the_attempt(
    redlock: Redlock, masters: list[FakeMaster], number: int, wait: int | None, *, fair: bool
) -> None:
    flush(masters[:number])
    began = now()
    async with redlock.lock("r", wait=wait, fair=fair) as lease:
        assert now() - began < (0.05 if wait is None else 0.006)
        assert lease.fencing_token > 0
    flush(masters[:number])
    tried = await redlock.lock("r", fair=fair).try_acquire()
    assert tried is not None
    await tried.release()
    await asyncio.sleep(0.3)
    assert values(masters) == [None] * 5


async def test_one_try_asks_once_where_others_hold_the_lock(
    redlock: Redlock, masters: list[FakeMaster]
) -> None:
    """One master has lost its scripts, and the clock of another is far off."""
    flush(masters[:1])
    masters[1].clock_offset = 60.0
    occupy(masters[2:])
    asked = ran(masters[4], ACQUIRE)
    assert await redlock.lock("r").try_acquire() is None
    await asyncio.sleep(0.01)
    assert ran(masters[4], ACQUIRE) == asked + 1


@FAIR
async def test_scripts_that_are_lost_between_the_rounds_are_loaded_again(
    redlock: Redlock, masters: list[FakeMaster], *, fair: bool
) -> None:
    count_up(masters[0], AHEAD)
    flushes: list[Callable[[], None]] = [lambda: flush(masters)]
    before(masters[0], RAISE, lambda: flushes.pop()() if flushes else None)
    async with redlock.lock("r", fair=fair) as lease:
        assert lease.fencing_token > AHEAD
    await asyncio.sleep(0.3)
    assert values(masters) == [None] * 5
    assert ran(masters[0], LEAVE) <= 4


async def test_only_the_first_attempt_in_an_outage_waits_for_the_time(
    masters: list[FakeMaster],
) -> None:
    async with Redlock(masters, restart_guard="off", fencing=True, master_timeout=50) as redlock:
        hang(masters[:3])
        for most in (0.11, 0.06, 0.06):
            began = now()
            assert await redlock.lock("r").try_acquire() is None
            assert now() - began < most
