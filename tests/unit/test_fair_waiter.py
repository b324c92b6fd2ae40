"""Waiting in the masters' fair queues, in virtual time."""

import asyncio
import contextlib
import functools
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from redlock_aio import Answer, Redlock
from redlock_aio._engine.wait import fair_waiter
from redlock_aio._protocol import commands, replies, scripts
from redlock_aio._rules.fair_ticket import HEARTBEAT, LIVES
from redlock_aio._transport.debts import DEBT_INTERVAL
from redlock_aio.testing import FakeMaster

from . import kit
from .kit import (
    LATENCY,
    delete,
    execute,
    fail,
    fair_acquired_at,
    hang,
    kill,
    loop,
    now,
    occupy,
    queued,
    ran,
    refused,
    remaining_keys,
    resume,
    runs_of,
    slow,
    values,
    waiting_fair,
)
from .links import Link

pytestmark = pytest.mark.promise("S8")

GRANTED, IS_NEXT, NOT_YET, FULL, TOO_LATE = 0, 1, 2, 3, 4
OUTSIDE = "granted outside of the queue"


@pytest.fixture
def master(masters: list[FakeMaster]) -> FakeMaster:
    """Return a master that has the scripts, for requests without a program."""
    for script in scripts.SCRIPTS:
        masters[0].execute([b"SCRIPT", b"LOAD", script.text])
    return masters[0]


def enqueue(
    master: FakeMaster,
    *,
    ttl: int = 10_000,
    not_after: int = 2**53,
    member: bytes = b"theirs/1",
    place: int = 1,
    most: int = 100,
    first: bool = False,
) -> object:
    """Enter a waiter in the queue of `r` that never comes back; return its standing."""
    entry = commands.QueueEntry(
        member=member, priority=place, lives=LIVES, most=most, not_after=not_after, first=first
    )
    keys = (b"r", *commands.queue_keys(b"r"))
    reply = execute(master, commands.enqueue(keys, b"of " + member, ttl, entry))
    assert isinstance(reply, list)
    return OUTSIDE if replies.granted_outside_queue(reply) is not None else reply[0]


# One after the other


async def test_alone_it_is_one_round_and_leaves_nothing(
    redlock: Redlock, masters: list[FakeMaster]
) -> None:
    await fair_acquired_at(redlock)  # the masters are asked for the time once in 30 s
    began = now()
    async with redlock.lock("r", fair=True) as lease:
        assert now() - began == pytest.approx(LATENCY)
        assert values(masters) == [lease.token] * 5
        assert remaining_keys(masters) == [b"r"] * 5  # no queue
        assert [str(vote).split(": ")[1] for vote in lease.votes] == ["granted"] * 5
    assert not remaining_keys(masters)
    assert not [command for command in masters[0].commands if command[0] == b"SUBSCRIBE"]


async def test_an_attempt_without_a_wait_awaits_late_votes_as_long_as_it_has_existed(
    redlock: Redlock, masters: list[FakeMaster]
) -> None:
    """The refusals come after 10, 10, 10 and 15 ms, and after 50 ms, which is too late."""
    await fair_acquired_at(redlock)
    occupy(masters)
    slow(masters[:3], 0.010)
    slow(masters[3:4], 0.015)
    slow(masters[4:], 0.050)
    began = now()
    error = await refused(redlock, "r", fair=True, wait=0)
    assert now() - began == pytest.approx(0.020)  # twice the 10 ms, although a vote came at 15
    assert [vote.answer for vote in error.votes] == [Answer.HELD] * 4 + [Answer.TIMED_OUT]
    slow(masters[4:], 0.017)
    await asyncio.sleep(0.1)
    began = now()
    error = await refused(redlock, "r", fair=True, wait=0)
    assert now() - began == pytest.approx(0.017)  # all have answered
    assert [vote.answer for vote in error.votes] == [Answer.HELD] * 5


async def test_a_master_that_fails_when_it_is_asked_again_keeps_its_grant(
    redlock: Redlock, masters: list[FakeMaster], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The heartbeat is underway there when the others grant the lock."""
    monkeypatch.setattr(fair_waiter, "_until_next_beat", lambda: 1.0)
    await fair_acquired_at(redlock)
    occupy(masters)
    slow(masters[:1], 0.02)
    began = now()
    waiting = asyncio.create_task(redlock.lock("r", fair=True).acquire())
    await asyncio.sleep(0.96)
    delete(masters[:1])
    await asyncio.sleep(began + 1.0005 - now())
    fail(masters[:1])
    delete(masters[1:])
    lease = await waiting
    await asyncio.sleep(0.03)
    assert masters[0].keys["r"] == lease.token
    assert lease.votes[0].answer is Answer.GRANTED
    masters[0].error = ""
    await lease.release()


async def test_a_master_grants_outside_of_the_queue_only_where_nobody_waits(
    master: FakeMaster,
) -> None:
    assert enqueue(master, first=True) == OUTSIDE
    assert queued(master) == []
    assert enqueue(master, first=True, member=b"a/1") == IS_NEXT
    assert enqueue(master, first=True, member=b"b/1", place=2) == NOT_YET
    master.delete("r")
    assert enqueue(master, first=True, member=b"c/1", place=0) == GRANTED
    assert queued(master) == [b"c/1", b"a/1", b"b/1"]
    master.delete("r")
    await asyncio.sleep(LIVES / 1000 + 0.2)
    assert enqueue(master) == GRANTED
    assert queued(master) == [b"theirs/1"]
    master.delete("r")
    await asyncio.sleep(LIVES / 1000 + 0.05)
    assert queued(master) == [b"theirs/1"]  # dead
    assert enqueue(master, first=True, member=b"a/1") == OUTSIDE
    assert queued(master) == []


async def test_a_member_that_leaves_wakes_the_next_one_if_there_is_one(master: FakeMaster) -> None:
    woken = published(master)
    keys = (b"r", *commands.queue_keys(b"r"))
    assert enqueue(master) == GRANTED
    assert enqueue(master, member=b"a/1", place=2) == NOT_YET
    for member in b"theirs/1", b"a/1":
        execute(master, commands.leave(keys, b"of theirs/1", member, keep_place=False))
    assert woken == [b"a/1"]
    assert not remaining_keys([master])


async def test_a_forced_release_removes_only_the_holder_from_the_queue(master: FakeMaster) -> None:
    woken = published(master)
    assert enqueue(master) == GRANTED
    assert enqueue(master, member=b"a/1", place=0) == IS_NEXT
    revoke = commands.revoke(b"r", b"of theirs/1", commands.revocation(b"token"), 100)
    assert execute(master, revoke) == b"OK"
    assert woken == [b"theirs/1"]
    assert queued(master) == [b"a/1"]


async def test_a_holder_outside_of_the_queue_that_asks_again_enters_it(master: FakeMaster) -> None:
    """So a waiter keeps its place when it gives back grants that make no majority."""
    assert enqueue(master, first=True) == OUTSIDE
    assert enqueue(master) == GRANTED
    assert queued(master) == [b"theirs/1"]


async def test_the_first_in_a_queue_stays_alive_by_its_requests(master: FakeMaster) -> None:
    occupy([master])
    assert enqueue(master, first=True) == IS_NEXT
    assert enqueue(master, first=True) == IS_NEXT
    for _ in range(3):
        await asyncio.sleep(LIVES / 1000 - 0.1)
        assert enqueue(master) == IS_NEXT
    await asyncio.sleep(LIVES / 1000 - 0.1)
    assert enqueue(master, member=b"a/1", place=2) == NOT_YET
    await asyncio.sleep(0.2)
    assert enqueue(master, member=b"a/1", place=2) == IS_NEXT
    assert queued(master) == [b"a/1"]


async def test_a_member_that_a_full_queue_refuses_does_not_stay_in_it(master: FakeMaster) -> None:
    occupy([master])
    assert enqueue(master, most=0) == FULL
    assert remaining_keys([master]) == [b"r"]
    assert enqueue(master, most=1) == IS_NEXT
    assert enqueue(master, most=1, member=b"a/1", place=2) == FULL
    assert queued(master) == [b"theirs/1"]
    master.delete("r")
    assert enqueue(master, most=1, member=b"a/1", place=2, first=True) == FULL
    assert enqueue(master, most=1) == GRANTED
    await asyncio.sleep(LIVES / 1000 + 0.01)  # the holder, too, counts as alive for so long
    assert enqueue(master, most=1, member=b"a/1", place=2) == IS_NEXT
    assert queued(master) == [b"a/1"]


async def test_the_requests_of_one_turn_of_the_loop_leave_in_one_write_to_each_master(
    redlock: Redlock, other: Redlock, masters: list[FakeMaster], monkeypatch: pytest.MonkeyPatch
) -> None:
    await fair_acquired_at(redlock)
    holder = await other.lock("0", fair=True).acquire()
    writes = [0] * 5
    receive = FakeMaster.receive

    def counted(master: FakeMaster, transport: Any, data: bytes) -> None:
        writes[masters.index(master)] += 1
        receive(master, transport, data)

    monkeypatch.setattr(FakeMaster, "receive", counted)
    locks = [redlock.lock(str(number), fair=True) for number in range(20)]
    waiting, *acquiring = [asyncio.create_task(lock.acquire()) for lock in locks]
    leases = await asyncio.gather(*acquiring)
    await asyncio.sleep(0.01)
    # One for all first requests, one in which the waiter subscribes to wake-ups and asks again,
    # and one in which it tracks the key.
    assert writes == [3] * 5
    await asyncio.gather(*(lease.release() for lease in leases))
    assert writes == [4] * 5
    waiting.cancel()
    await asyncio.wait([waiting])
    await asyncio.sleep(0.01)
    assert writes == [5] * 5
    await holder.release()
    assert not remaining_keys(masters)


async def test_a_request_that_is_lost_with_its_release_is_released_on_the_next_connection(
    redlock: Redlock, masters: list[FakeMaster]
) -> None:
    """Both are sent in the turn of the loop in which the waiter is cancelled."""
    await fair_acquired_at(redlock)
    waiter = waiting_fair(redlock)
    for _ in range(10):
        await asyncio.sleep(0)
        if kit.session(redlock).fair_queue.waiters:
            break
    waiter.cancel()
    await asyncio.sleep(0.0001)
    for master in masters:
        assert not ran(master, scripts.LEAVE) - 1
        master.cut()
    await asyncio.sleep(0.5)
    assert [ran(master, scripts.LEAVE) for master in masters] == [2] * 5
    assert not remaining_keys(masters)


async def test_a_place_that_is_requested_and_left_in_one_turn_is_left_on_the_next_connection(
    redlock: Redlock, masters: list[FakeMaster]
) -> None:
    """The waiter has begun anew, under a new name, and has given back its grants since."""
    occupy(masters)
    task = waiting_fair(redlock)
    await asyncio.sleep(0.1)
    waiter: Any
    (waiter,) = kit.session(redlock).fair_queue.waiters.values()
    task.cancel()  # it ends behind these calls, and before anything is sent
    waiter._start_over()
    waiter.ask_all(again=True)
    waiter._give_back()
    with pytest.raises(asyncio.CancelledError):
        await task
    for master in masters:
        assert not runs_of(master, scripts.LEAVE)
        master.cut()
    await asyncio.sleep(0.5)
    for master in masters:
        left = {(command[6], command[7]) for command in runs_of(master, scripts.LEAVE)}
        assert (waiter.member, b"go") in left


@pytest.mark.promise("S3")
@pytest.mark.parametrize(
    ("ttl", "held", "refuses"),
    [
        pytest.param(500, True, 1.5, id="as the place lives, after a short ttl"),
        pytest.param(10_000, False, 5, id="as the key lives, after the place"),
    ],
)
async def test_a_waiter_that_left_owes_its_release_as_long_as_the_longer_of_key_and_place(
    redlock: Redlock, masters: list[FakeMaster], ttl: int, held: bool, refuses: float
) -> None:
    await fair_acquired_at(redlock)
    if held:
        occupy(masters, ttl=200)
    waiter = waiting_fair(redlock, ttl=ttl)
    await asyncio.sleep(0.01 if held else 0.75 * LATENCY)  # the key is set before the reply comes
    assert [bool(queued(master)) for master in masters] == [held] * 5
    kit.fail(masters)
    waiter.cancel()
    await asyncio.sleep(refuses)
    kit.fail(masters, "")
    await asyncio.sleep(2 * DEBT_INTERVAL)
    assert not remaining_keys(masters)


@pytest.mark.promise("S3")
async def test_a_waiter_owes_no_release_to_a_master_that_never_got_a_request(
    redlock: Redlock, masters: list[FakeMaster]
) -> None:
    await fair_acquired_at(redlock)
    occupy(masters)
    kill(masters[1:3])
    await asyncio.sleep(0.01)
    waiter = waiting_fair(redlock)
    await asyncio.sleep(2 * HEARTBEAT)
    masters[3].hang()
    waiter.cancel()
    await asyncio.sleep(0.01)
    masters[3].kill()
    await asyncio.sleep(0.01)
    assert [master.debts for master in redlock.statistics().masters] == [0, 0, 0, 1, 0]


async def test_programs_are_served_in_the_order_in_which_they_came(
    redlock: Redlock, other: Redlock
) -> None:
    served: list[int] = []

    async def work(number: int) -> None:
        async with (redlock, other)[number % 2].lock("r", fair=True):
            served.append(number)
            await asyncio.sleep(0.005)

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(fair_acquired_at(redlock, hold=0.1))
        for number in range(20):
            await asyncio.sleep(0.003)
            tasks.create_task(work(number))
    assert served == list(range(20))


async def test_a_release_wakes_the_next_only_and_in_two_latencies(
    redlock: Redlock, other: Redlock, masters: list[FakeMaster]
) -> None:
    holder = await redlock.lock("r", fair=True).acquire()
    waiters = []
    for manager in (other, redlock, other, redlock):
        waiters.append(waiting_fair(manager, hold=0.1))
        await asyncio.sleep(0.01)
    await asyncio.sleep(0.2)  # long before the next heartbeat
    asked = ran(masters[0], scripts.ENQUEUE)
    released = now()
    await holder.release()
    await asyncio.sleep(0.05)
    assert ran(masters[0], scripts.ENQUEUE) == asked + 1
    times = await asyncio.gather(*waiters)
    assert times[0] - released == pytest.approx(2 * LATENCY)


@pytest.mark.parametrize("holder", ["plain", "other plain", "foreign", "expiry"])
async def test_the_next_is_woken_by_holders_that_do_not_use_the_queue(
    redlock: Redlock, other: Redlock, masters: list[FakeMaster], holder: str
) -> None:
    lease = None
    if "plain" in holder:
        lease = await (redlock if holder == "plain" else other).lock("r").acquire()
    else:
        occupy(masters, ttl=250 if holder == "expiry" else None)
    waiter = waiting_fair(redlock)
    await asyncio.sleep(0.24)
    released = now()
    if lease is not None:
        await lease.release()
    elif holder == "foreign":
        delete(masters[1:4])
    assert await waiter - released < 0.015


@pytest.mark.parametrize("ttl", [500, 5_000])
async def test_a_dead_holder_is_waited_for_until_its_ttl_and_a_heartbeat(
    redlock: Redlock, masters: list[FakeMaster], ttl: int
) -> None:
    assert [enqueue(master, ttl=ttl) for master in masters] == [GRANTED] * 5
    died = now()
    assert ttl / 1000 <= await fair_acquired_at(redlock) - died <= ttl / 1000 + HEARTBEAT + 0.01


async def test_the_queue_is_gone_when_its_last_waiter_is_dead(
    redlock: Redlock, masters: list[FakeMaster]
) -> None:
    async with redlock.lock("r"):
        assert [enqueue(master) for master in masters] == [IS_NEXT] * 5
        await asyncio.sleep(LIVES / 1000 + 0.2)
        assert remaining_keys(masters) == [b"r"] * 5


async def test_the_next_is_woken_when_the_first_has_left(redlock: Redlock, other: Redlock) -> None:
    """The holder is a foreign client and does not use the queue."""
    holder = await other.lock("r").acquire()
    first = waiting_fair(redlock)
    await asyncio.sleep(0.03)
    second = waiting_fair(other)
    await asyncio.sleep(0.03)
    first.cancel()
    await asyncio.sleep(0.03)
    released = now()
    await holder.release()
    assert await second - released < 0.01
    await asyncio.wait([first])


# Split votes


class SlowLink(Link):
    """A link with a delay that a test sets, in seconds."""

    delay = 0.0

    def _pass(self, passes: bool, deliver: Callable[[], None]) -> None:
        if self.delay:
            loop().call_later(self.delay, super()._pass, passes, deliver)
        else:
            super()._pass(passes, deliver)


@contextlib.asynccontextmanager
async def slow_programs(
    masters: list[FakeMaster],
) -> AsyncIterator[tuple[Redlock, Redlock, list[list[SlowLink]]]]:
    """Open two programs that know the time of the masters; yield them and their links."""
    links = [[SlowLink(master) for master in masters] for _ in range(2)]
    async with (
        Redlock(links[0], restart_guard="off") as redlock,
        Redlock(links[1], restart_guard="off") as other,
    ):
        await asyncio.gather(fair_acquired_at(redlock), fair_acquired_at(other))
        yield redlock, other, links


@pytest.mark.promise("S1")
async def test_a_minority_of_grants_is_given_back_and_the_place_kept(
    masters: list[FakeMaster],
) -> None:
    """Two requests reach the masters in different orders: one of the waiters yields."""
    async with slow_programs(masters) as (redlock, other, links):
        for number, master in enumerate(masters):
            master.commands.clear()
            # Each waiter reaches two masters at once, and the others later.
            links[0][number].delay = 0.004 if number < 3 else 0.0
            links[1][number].delay = 0.004 if number >= 2 else 0.0
        first = waiting_fair(redlock, hold=0.05)
        await asyncio.sleep(0.0001)
        times = await asyncio.gather(first, waiting_fair(other))
        assert times[0] + 0.05 <= times[1] or times[1] < times[0]
        await asyncio.sleep(0.1)
    leaves = [command for master in masters for command in runs_of(master, scripts.LEAVE)]
    back = {(command[6], command[5]) for command in leaves if command[7] == b"stay"}
    gone = {(command[6], command[5]) for command in leaves if command[7] == b"go"}
    assert back, "nobody had to yield"
    assert {member for member, _ in back} < {member for member, _ in gone}
    assert not back & gone, "a token was used again after it was given back"


@pytest.mark.promise("S1")
async def test_grants_outside_of_the_queues_that_make_no_majority_are_given_back_at_once(
    masters: list[FakeMaster],
) -> None:
    """
    Two at once are granted the lock on two of four masters each, and wait in no queue there.

    Each is the next on the other masters. If neither gave way, both would wait until their
    grants are too old. They enter the queues before they release the lock, so a third client
    that asks at that moment does not come before them.
    """
    masters[4].kill()
    async with slow_programs(masters) as (redlock, other, links):
        for number in range(4):
            links[0][number].delay = 0.004 if number < 2 else 0.0
            links[1][number].delay = 0.004 if number >= 2 else 0.0
        standings = [
            after(master, [scripts.LEAVE.sha, b"stay"], functools.partial(ask_third, master))
            for master in masters[:4]
        ]
        began = now()
        first = waiting_fair(redlock, hold=0.05)
        await asyncio.sleep(0.0001)
        times = await asyncio.gather(first, waiting_fair(other))
        assert times[0] - began < 0.04
        assert times[0] + 0.05 <= times[1] < times[0] + 0.07
        assert any(standings), "nobody had to give way"
        assert {standing for each in standings for standing in each} == {NOT_YET}


async def test_late_grants_outside_of_the_queues_are_given_back_at_once_too(
    redlock: Redlock, masters: list[FakeMaster]
) -> None:
    """The waiter hears of its turn already, and has no majority when the grants come."""
    occupy(masters, "other")
    other = asyncio.create_task(refused(redlock, "other", fair=True, wait=500))
    await asyncio.sleep(0.1)  # now the program listens
    occupy(masters[:3])
    kit.slow(masters[3:], 0.02)
    waiter = asyncio.create_task(refused(redlock, fair=True, wait=300))
    await asyncio.sleep(0.015)
    assert None not in values(masters)
    assert not any(queued(master) for master in masters[3:])
    await asyncio.sleep(0.02)
    assert all(queued(master) for master in masters[3:]), "it enters them before it releases"
    await waiter
    await other


async def test_a_waiter_keeps_its_place_where_it_gives_back_grants_outside_of_the_queues(
    redlock: Redlock, masters: list[FakeMaster]
) -> None:
    """A majority hangs; at the others a client that comes later must not be first."""
    await fair_acquired_at(redlock)
    hang(masters[2:])
    standings = [
        after(master, [scripts.LEAVE.sha, b"stay"], functools.partial(ask_third, master))
        for master in masters[:2]
    ]
    waiter = waiting_fair(redlock)
    await asyncio.sleep(0.2)
    assert standings == [[NOT_YET]] * 2
    resume(masters)
    await waiter


def published(master: FakeMaster) -> list[bytes]:
    """Return the list of messages that *master* publishes from now on."""
    messages: list[bytes] = []

    def publish(_: bytes, message: bytes) -> int:
        messages.append(message)
        return 0

    vars(master._data)["publish"] = publish
    return messages


def ask_third(master: FakeMaster) -> object:
    """Ask *master* for the lock as a client that has come last, and leave."""
    standing = enqueue(master, member=b"third/1", place=2**52, first=True)
    keys = (b"r", *commands.queue_keys(b"r"))
    execute(master, commands.leave(keys, b"of third/1", b"third/1", keep_place=False))
    return standing


def after(master: FakeMaster, words: list[bytes], act: Callable[[], object]) -> list[object]:
    """Call *act* each time after *master* has executed a command with *words*; return results."""
    run, results = master.execute, []

    def acting(command: list[bytes], listener: Any = None) -> object:
        reply = run(command, listener)
        if set(words) <= set(command):
            results.append(act())
        return reply

    vars(master)["execute"] = acting
    return results


async def test_the_first_wakeup_makes_a_waiter_ask_all_masters() -> None:
    """The lock passes in the round trips to the nearest master and to the third of five."""
    masters = [FakeMaster(latency=0.001 * 2**number) for number in range(5)]
    async with (
        Redlock(masters, restart_guard="off") as redlock,
        Redlock(masters, restart_guard="off") as other,
    ):
        await fair_acquired_at(redlock)
        await fair_acquired_at(other)
        holder = await redlock.lock("r", fair=True).acquire()
        waiters = [waiting_fair(other, hold=0.1)]
        await asyncio.sleep(0.1)
        waiters.append(waiting_fair(redlock))
        await asyncio.sleep(0.1)
        await holder.release()
        await asyncio.sleep(0.05)
        for master in masters:
            master.commands.clear()
        began, then = await asyncio.gather(*waiters)
        assert then - began == pytest.approx(0.1 + 0.001 + 0.004)
        await asyncio.sleep(0.1)
        assert [ran(master, scripts.ENQUEUE) for master in masters] == [1] * 5


async def test_a_release_that_reaches_one_master_late_costs_no_more_than_its_delay(
    masters: list[FakeMaster],
) -> None:
    """The late master refuses at first, and the waiter gives back the grant of the other one."""
    three = masters[:3]
    three[2].kill()
    async with slow_programs(three) as (redlock, other, links):
        occupy(three)
        holder = asyncio.create_task(redlock.lock("r", fair=True).acquire())
        await asyncio.sleep(0.1)
        waiter = waiting_fair(other)
        await asyncio.sleep(0.1)
        delete(three)
        lease = await holder  # it is the first in the queues
        await asyncio.sleep(0.1)
        links[0][1].delay = late = 0.005
        released = now()
        await lease.release()
        assert await waiter - released <= late + 0.003


@pytest.mark.parametrize("dead", [0, 2])
async def test_masters_at_different_distances_cause_no_useless_yields(dead: int) -> None:
    """The nearest master replies to a request before the pushes of the others arrive."""
    masters = [FakeMaster(latency=0.001 * 2**number) for number in range(5)]
    async with (
        Redlock(masters, restart_guard="off") as redlock,
        Redlock(masters, restart_guard="off") as other,
    ):
        await fair_acquired_at(redlock)
        await fair_acquired_at(other)
        kill(masters[1 : 1 + dead])
        holder = await redlock.lock("r", fair=True).acquire()
        waiters = []
        for number in range(6):
            waiters.append(waiting_fair((redlock, other)[number % 2]))
            await asyncio.sleep(0.05)
        for master in masters:
            master.commands.clear()
        await holder.release()
        times = await asyncio.gather(*waiters)
        assert list(times) == sorted(times)
        leaves = [command for master in masters for command in runs_of(master, scripts.LEAVE)]
        assert {command[7] for command in leaves} == {b"go"}


# The end of a wait


async def test_a_request_that_a_master_gets_too_late_is_not_granted(
    masters: list[FakeMaster],
) -> None:
    masters[0].execute([b"SCRIPT", b"LOAD", scripts.ENQUEUE.text])
    assert enqueue(masters[0], not_after=1) == TOO_LATE
    assert not remaining_keys(masters)


async def test_a_waiter_that_gives_up_leaves_the_queues_and_names_the_holder(
    redlock: Redlock, other: Redlock, masters: list[FakeMaster]
) -> None:
    holder = await other.lock("r", fair=True).acquire()
    began = now()
    error = await refused(redlock, fair=True, wait=300)
    assert now() - began == pytest.approx(0.3, abs=0.01)
    assert "this waiter is next, " in str(error)
    assert "ms left" in str(error)
    assert error.holder is not None
    assert error.holder.fingerprint == holder.fingerprint
    assert error.retry_after is not None
    began = now()
    assert await redlock.lock("r", fair=True).try_acquire() is None
    await refused(redlock, fair=True)
    assert now() - began < 0.01
    await asyncio.sleep(0.01)
    assert [queued(master) for master in masters] == [[]] * 5
    assert values(masters) == [holder.token] * 5
    await holder.release()
    assert not remaining_keys(masters)


async def test_a_single_attempt_ends_though_all_grants_come_too_late() -> None:
    masters = [FakeMaster(latency=0.08) for _ in range(3)]
    async with Redlock(masters, master_timeout=500) as redlock:
        began = now()
        assert "too late for the ttl" in str(await refused(redlock, fair=True, ttl=60))
        assert now() - began < 0.3
        asked = len(masters[0].commands)
        await refused(redlock, fair=True, ttl=60, wait=1_000)
        assert len(masters[0].commands) - asked < 75


# Names and texts on the wire


def test_names_with_braces_have_queues_of_their_own() -> None:
    names = [b"x", b"{x}", b"={x}", b"a{x}", b"{}x", b"x}", b"{x", b"{x}{y}", b"=x", b"{{x}}"]
    keys = {key for name in names for key in commands.queue_keys(name)}
    assert len(keys) == len(names)
    for name in names:
        tag = name.partition(b"{")[2].partition(b"}")
        if tag[1] and tag[0]:  # a part of the name decides its slot
            assert commands.queue_keys(name)[0].partition(b"{")[2].partition(b"}")[0] == tag[0]


NO_REPLIES: list[Any] = [
    [], [0, 1, 2], [9, 1, 2, None], [-1, 1, 2, None], ["0", 1, 2, None], [0, 1, 2**70, None],
    [0, 2**70, 1, None], [0, -9, 1, None], [True, 1, 1, None], b"OK", None, {}, 7, [1, None],
    [b"1", b"x"], [b"9" * 5000, b"1"], [b"1"], [b"-1", b"1"], [1, True], [-1, 2], [1, 2**53],
]  # fmt: skip


@pytest.mark.parametrize("reply", NO_REPLIES)
def test_a_reply_of_another_form_is_no_reply(reply: object) -> None:
    assert replies.queued(reply) is None
    assert replies.held(reply) is None
    assert replies.time(reply) is None


@pytest.mark.parametrize(
    "push",
    [[], [b"invalidate"], [b"invalidate", 7], [b"invalidate", [7, [b"r"]]], [b"message", b"c", 7]],
)
async def test_a_push_of_another_form_changes_nothing(redlock: Redlock, push: object) -> None:
    async with redlock.lock("r"), redlock.lock("q", fair=True):
        kit.session(redlock)._on_push(0, push)
