"""What a review of waiting found, in virtual time: each was wrong once."""

import asyncio
import gc

import pytest

from redlock_aio import LockNotAcquiredError, QuorumUnavailableError, Redlock, RedlockError, Retry
from redlock_aio._engine.attempt import Attempt
from redlock_aio._engine.wait.local_queue import IDLE_QUEUES, LONGEST_SPREAD
from redlock_aio._protocol import commands, replies
from redlock_aio._protocol.primitives import Mutex
from redlock_aio._rules.fair_ticket import LIVES
from redlock_aio.testing import FakeMaster, VirtualTimeLoop

from .kit import NEVER, delete, hang, now, occupy, remaining_keys, resume


@pytest.mark.parametrize("number", range(20))
async def test_spreading_attempts_does_not_use_up_the_wait(
    redlock: Redlock, other: Redlock, number: int
) -> None:
    """Else the last attempt has no time, and a held lock looks like masters that are away."""
    async with other.lock("r"):
        redlock._opener.session().local_queues.of(Mutex(b"r")).spread = LONGEST_SPREAD
        began = now()
        with pytest.raises(LockNotAcquiredError) as caught:
            await redlock.lock("r", wait=100 + number).acquire()
        assert type(caught.value) is LockNotAcquiredError
        assert now() - began <= (100 + number) / 1000 + 0.002


async def test_masters_that_are_away_are_no_split_vote(
    redlock: Redlock, masters: list[FakeMaster]
) -> None:
    hang(masters[:3])
    with pytest.raises(QuorumUnavailableError):
        await redlock.lock("r", wait=500).acquire()
    assert redlock._opener.session().local_queues.of(Mutex(b"r")).spread == 0
    resume(masters)
    await asyncio.sleep(2)


async def test_a_master_that_refuses_for_another_reason_is_not_taken_to_be_free(
    redlock: Redlock, masters: list[FakeMaster]
) -> None:
    for master in masters:
        master.forbid = {"SET"}
    with pytest.raises(QuorumUnavailableError) as caught:
        lock = redlock.lock("r", wait=20_000, retry=Retry(min_delay=1_000, max_delay=1_000))
        await lock.acquire()
    assert caught.value.attempts <= 22
    await redlock.aclose()


async def test_a_key_that_is_no_string_is_no_debt(
    redlock: Redlock, masters: list[FakeMaster]
) -> None:
    for master in masters:
        master._data.zadd(b"r", 1.0, b"member")
    for _ in range(10):
        assert await redlock.lock("r").try_acquire() is None
    await asyncio.sleep(0.01)
    assert [len(master.debts) for master in redlock._opener.session().links] == [0] * 5


async def test_failed_attempts_are_freed_at_once(redlock: Redlock, other: Redlock) -> None:
    async with other.lock("r"):
        gc.collect()
        before = [thing for thing in gc.get_objects() if isinstance(thing, Attempt)]
        gc.disable()
        try:
            for _ in range(10):
                assert await redlock.lock("r").try_acquire() is None
                with pytest.raises(LockNotAcquiredError):
                    await redlock.lock("r", wait=30).acquire()
            await asyncio.sleep(1)
            alive = [thing for thing in gc.get_objects() if isinstance(thing, Attempt)]
            assert len(alive) - len(before) < 3, "but the last one, which an error keeps"
        finally:
            gc.enable()


async def test_closing_wakes_who_waits_for_a_foreign_holder(masters: list[FakeMaster]) -> None:
    occupy(masters)
    redlock = Redlock(masters)
    waiting = [
        asyncio.create_task(redlock.lock("r", retry=NEVER).acquire()),
        asyncio.create_task(redlock.lock("r", retry=NEVER, fair=True).acquire()),
    ]
    await asyncio.sleep(1)
    closed = now()
    await redlock.aclose()
    done = await asyncio.gather(*waiting, return_exceptions=True)
    assert [type(error) for error in done] == [RedlockError] * 2
    assert now() - closed < 0.01


async def test_two_leases_out_of_turn_wake_who_waits(
    redlock: Redlock, masters: list[FakeMaster]
) -> None:
    """The first has lost its key and does not know it; the second is not the line's holder."""
    first = await redlock.lock("r").acquire()
    waiter = asyncio.create_task(redlock.lock("r", retry=NEVER).acquire())
    await asyncio.sleep(0.01)
    delete(masters)
    second = await redlock.lock("r").try_acquire()
    assert second is not None
    await first.lost.wait()
    await asyncio.sleep(0.1)
    assert not waiter.done()
    released = now()
    await second.release()
    lease = await waiter
    assert now() - released < 0.01
    await lease.release()


async def test_a_line_is_not_forgotten_while_somebody_asks_for_the_time(
    redlock: Redlock,
) -> None:
    task = asyncio.create_task(redlock.lock("r", fair=True).acquire())
    await asyncio.sleep(0)
    for number in range(2 * IDLE_QUEUES):
        redlock._opener.session().local_queues.of(Mutex(b"%d" % number))
    lease = await task
    assert redlock._opener.session().local_queues.by_key[b"r"].holder is lease._hold
    await lease.release()


# In the masters' queues.


@pytest.mark.promise("S6")
async def test_a_master_is_given_up_though_a_heartbeat_comes_before_its_time_out(
    masters: list[FakeMaster],
) -> None:
    async with Redlock(masters[:3], master_timeout=1_500, restart_guard="off") as redlock:
        async with redlock.lock("r", fair=True):
            pass
        hang(masters[:2])
        began = now()
        assert await redlock.lock("r", fair=True, ttl=1_000).try_acquire() is None
        assert now() - began < 3.5
        resume(masters)
        await asyncio.sleep(LIVES / 1000)
        assert not remaining_keys(masters)


async def test_answers_that_take_longer_than_a_heartbeat_still_count() -> None:
    slow = [FakeMaster(latency=0.4) for _ in range(3)]
    async with Redlock(slow, master_timeout=2_000) as redlock:
        holder = await redlock.lock("r", fair=True, ttl=5_000).acquire()
        waiter = asyncio.create_task(redlock.lock("r", fair=True, ttl=900).acquire())
        await asyncio.sleep(3)
        await holder.release()
        released = now()
        lease = await waiter
        assert now() - released < 2
        await lease.release()


async def test_one_attempt_ends_though_all_grants_come_too_late() -> None:
    slow = [FakeMaster(latency=0.08) for _ in range(3)]
    async with Redlock(slow, master_timeout=500) as redlock:
        began = now()
        with pytest.raises(LockNotAcquiredError, match="too late for the ttl"):
            await redlock.lock("r", fair=True, ttl=60, wait=0).acquire()
        assert now() - began < 0.3
        before = len(slow[0].commands)
        with pytest.raises(LockNotAcquiredError):
            await redlock.lock("r", fair=True, ttl=60, wait=1_000).acquire()
        assert len(slow[0].commands) - before < 75


@pytest.mark.parametrize("stalled", [0.9, 5.0])
async def test_a_time_that_is_read_late_is_not_believed(
    redlock: Redlock, masters: list[FakeMaster], stalled: float
) -> None:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualTimeLoop)
    async with redlock.lock("r", fair=True):
        pass
    master_set = redlock._opener.session().masters
    before = [master_set.clocks.offset(number) for number in range(5)]
    loop.call_later(0.0004, loop.stall, stalled)  # between a question and its answer
    began = now()
    lease = await redlock.lock("r", fair=True).acquire()
    # What comes too late is asked again at once, by the time that the answer has told.
    assert now() - began < stalled + 0.01
    await lease.release()
    after = [master_set.clocks.offset(number) for number in range(5)]
    for old, new in zip(before, after, strict=True):
        assert old is not None
        assert new == pytest.approx(old, abs=0.002)
    await redlock.aclose()
    assert not remaining_keys(masters)


async def test_one_attempt_survives_that_all_clocks_were_thought_to_be_behind(
    redlock: Redlock,
) -> None:
    async with redlock.lock("r", fair=True):
        pass
    clocks = redlock._opener.session().masters.clocks
    for bounds in (clocks._least, clocks._most):
        bounds[:] = [bound - 5 for bound in bounds]
    lease = await redlock.lock("r", fair=True).try_acquire()
    assert lease is not None
    await lease.release()


@pytest.mark.promise("S1")
async def test_a_grant_of_a_master_that_went_away_does_not_count(
    redlock: Redlock, other: Redlock, masters: list[FakeMaster]
) -> None:
    """It may come back empty, and grant the lock to somebody else, before we hear of it."""
    occupy(masters[2:])
    waiter = asyncio.create_task(redlock.lock("r", fair=True, retry=NEVER).acquire())
    await asyncio.sleep(0.1)
    assert all(masters[number].keys["r"] for number in range(2))
    for connection in [master._connection for master in redlock._opener.session().links[:2]]:
        assert connection is not None
        connection.condemn("cut")
    for master in masters[:2]:
        master._data.keys.clear()
    masters[3].delete("r")
    thief = await other.lock("r", wait=0).acquire()
    masters[2].delete("r")  # the third that the waiter needs
    await asyncio.sleep(0.005)
    assert thief.valid
    assert not waiter.done()
    await thief.release()
    delete(masters)
    await (await waiter).release()


def test_names_with_braces_have_queues_of_their_own() -> None:
    names = [b"x", b"{x}", b"={x}", b"a{x}", b"{}x", b"x}", b"{x", b"{x}{y}", b"=x", b"{{x}}"]
    keys = {key for name in names for key in commands.queue_keys(name)}
    assert len(keys) == 2 * len(names)
    for name in names:
        tag = name.partition(b"{")[2].partition(b"}")
        if tag[1] and tag[0]:  # it has a part that decides its slot
            assert commands.queue_keys(name)[0].partition(b"{")[2].partition(b"}")[0] == tag[0]


@pytest.mark.parametrize(
    "reply",
    [
        [],
        [0, 1, 2],
        [9, 1, 2, None],
        [-1, 1, 2, None],
        ["0", 1, 2, None],
        [0, 1, 2**70, None],
        [0, 2**70, 1, None],
        [0, -9, 1, None],
        [True, 1, 1, None],
        b"OK",
        None,
    ],
)
def test_an_answer_that_makes_no_sense_is_no_answer(reply: object) -> None:
    assert replies.queued(reply) is None
    assert replies.held(reply) is None or reply == [0, 1]
    assert replies.time(reply) is None


@pytest.mark.parametrize(
    "reply", [[b"1", b"x"], [b"9" * 5000, b"1"], [b"1"], [1, 2], [b"-1", b"1"], {}, 7]
)
def test_a_time_that_makes_no_sense_is_none(reply: object) -> None:
    assert replies.time(reply) is None


@pytest.mark.parametrize(
    "push",
    [[], [b"invalidate"], [b"invalidate", 7], [b"invalidate", [7, [b"r"]]], [b"message", b"c", 7]],
)
async def test_what_is_said_unasked_and_makes_no_sense_changes_nothing(
    redlock: Redlock, push: object
) -> None:
    async with redlock.lock("r"), redlock.lock("q", fair=True):
        redlock._opener.session()._on_push(0, push)
