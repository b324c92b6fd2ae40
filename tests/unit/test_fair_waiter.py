"""Waiting in order, in virtual time."""

import asyncio

import hiredis
import pytest

from redlock_aio import LockNotAcquiredError, QuorumUnavailableError, Redlock, RedlockError
from redlock_aio._engine.wait.fair_queue import IDLE
from redlock_aio._protocol import commands, scripts
from redlock_aio._rules.fair_ticket import HEARTBEAT, LIVES
from redlock_aio.testing import FakeMaster

from .kit import (
    LATENCY,
    delete,
    got_fair,
    hang,
    kill,
    now,
    occupy,
    queued,
    remaining_keys,
    resume,
    runs_of,
    values,
)

QUEUE, LIVE = commands.queue_keys(b"r")

pytestmark = pytest.mark.promise("S8")


def asked(master: FakeMaster) -> list[list[bytes]]:
    return runs_of(master, scripts.ENQUEUE)


async def test_alone_it_is_one_round_and_leaves_nothing(
    redlock: Redlock, masters: list[FakeMaster]
) -> None:
    await got_fair(redlock)  # once in half a minute the masters are asked for the time
    began = now()
    async with redlock.lock("r", fair=True) as lease:
        assert now() - began == pytest.approx(LATENCY)
        assert values(masters) == [lease.token] * 5
        assert [str(vote).split(": ")[1] for vote in lease.votes] == ["granted"] * 5
    assert not remaining_keys(masters)
    assert not [said for said in masters[0].commands if said[0] == b"SUBSCRIBE"]


async def test_programs_are_served_as_they_came(redlock: Redlock, other: Redlock) -> None:
    served: list[int] = []

    async def work(number: int) -> None:
        async with (redlock, other)[number % 2].lock("r", fair=True):
            served.append(number)
            await asyncio.sleep(0.005)

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(got_fair(redlock, hold=0.1))
        for number in range(20):
            await asyncio.sleep(0.003)
            tasks.create_task(work(number))
    assert served == list(range(20))


async def test_only_the_next_is_woken(
    redlock: Redlock, other: Redlock, masters: list[FakeMaster]
) -> None:
    holder = await redlock.lock("r", fair=True).acquire()
    waiters = []
    for manager in (other, redlock, other, redlock):
        waiters.append(asyncio.create_task(got_fair(manager, hold=0.1)))
        await asyncio.sleep(0.01)
    await asyncio.sleep(0.2)
    before = len(asked(masters[0]))
    await holder.release()
    await asyncio.sleep(0.05)
    assert len(asked(masters[0])[before:]) == 1
    await asyncio.gather(*waiters)


async def test_a_release_wakes_the_next_in_two_latencies(redlock: Redlock, other: Redlock) -> None:
    holder = await redlock.lock("r", fair=True).acquire()
    waiter = asyncio.create_task(got_fair(other))
    await asyncio.sleep(0.25)  # far from a heartbeat
    released = now()
    await holder.release()
    assert await waiter - released == pytest.approx(2 * LATENCY)


@pytest.mark.parametrize("who", ["plain", "other plain", "foreign", "expiry"])
async def test_the_next_is_woken_by_holders_who_know_nothing_of_the_queue(
    redlock: Redlock, other: Redlock, masters: list[FakeMaster], who: str
) -> None:
    lease = None
    if who in {"plain", "other plain"}:
        lease = await (redlock if who == "plain" else other).lock("r").acquire()
    else:
        occupy(masters, ttl=250 if who == "expiry" else None)
    waiter = asyncio.create_task(got_fair(redlock))
    await asyncio.sleep(0.24)
    went = now()
    if lease is not None:
        await lease.release()
    elif who == "foreign":
        delete(masters[1:4])
    assert await waiter - went < 0.015


async def test_a_dead_waiter_is_waited_for_no_longer_than_it_is_registered(
    redlock: Redlock, masters: list[FakeMaster]
) -> None:
    holder = await redlock.lock("r", fair=True).acquire()
    for master in masters:
        assert enqueue(master, b"theirs/1", place=1)[0] == BEHIND_OR_NEXT
    died = now()
    waiter = asyncio.create_task(got_fair(redlock))
    await asyncio.sleep(0.1)
    await holder.release()
    assert LIVES / 1000 <= await waiter - died <= LIVES / 1000 + HEARTBEAT + 0.01


@pytest.mark.parametrize("ttl", [500, 5_000])
async def test_a_dead_holder_is_waited_for_until_its_ttl_and_a_heartbeat(
    redlock: Redlock, masters: list[FakeMaster], ttl: int
) -> None:
    for master in masters:
        assert enqueue(master, b"theirs/1", place=1, ttl=ttl)[0] == 0
    died = now()
    assert ttl / 1000 <= await got_fair(redlock) - died <= ttl / 1000 + HEARTBEAT + 0.01


@pytest.mark.promise("S1")
async def test_who_gets_a_minority_gives_it_back_and_keeps_its_place(
    redlock: Redlock, other: Redlock, masters: list[FakeMaster]
) -> None:
    """Two at once, whose requests reach the masters in different orders: one of them yields."""
    await asyncio.gather(got_fair(redlock), got_fair(other))  # the time is known
    for master in masters:
        master.commands.clear()
    for number in range(5):
        # Each reaches two of them at once, and the others later.
        for manager, slow in ((redlock, (0, 1, 2)), (other, (2, 3, 4))):
            delay(manager, number, 0.004 if number in slow else 0.0)
    first = asyncio.create_task(got_fair(redlock, hold=0.05))
    await asyncio.sleep(0.0001)
    second = asyncio.create_task(got_fair(other))
    times = await asyncio.gather(first, second)
    assert times[0] + 0.05 <= times[1] or times[1] < times[0]
    for number in range(5):
        delay(redlock, number, 0.0)
        delay(other, number, 0.0)
    leaves = [said for master in masters for said in runs_of(master, scripts.LEAVE)]
    back = {(said[7], said[6]) for said in leaves if said[8] == b"stay"}
    gone = {(said[7], said[6]) for said in leaves if said[8] == b"go"}
    assert back, "nobody had to yield"
    members = {member for member, _ in back}
    assert members < {member for member, _ in gone}
    assert not back & gone, "a token was used again after it was given back"


def delay(redlock: Redlock, number: int, seconds: float) -> None:
    """Let what *redlock* sends to a master arrive so much later."""
    fake = redlock._opener.settings.diallers[number]
    connection = redlock._opener.session().links[number]._connection
    assert isinstance(fake, FakeMaster)
    assert connection is not None
    transport = connection._transport
    assert transport is not None
    if not seconds:
        transport.__dict__.pop("write", None)
        return
    loop = asyncio.get_running_loop()
    transport.write = lambda data: loop.call_later(  # type: ignore[method-assign,assignment]
        seconds, type(transport).write, transport, data
    )


async def test_a_queue_that_is_full_refuses_at_once(masters: list[FakeMaster]) -> None:
    async with Redlock(masters, max_waiters=3, restart_guard="off") as redlock:
        holder = await redlock.lock("r", fair=True).acquire()
        waiters = [asyncio.create_task(got_fair(redlock)) for _ in range(2)]
        await asyncio.sleep(0.1)
        began = now()
        with pytest.raises(LockNotAcquiredError, match="its queue is full") as caught:
            await redlock.lock("r", fair=True, wait=9_000).acquire()
        assert type(caught.value) is LockNotAcquiredError
        assert now() - began < 0.01
        await holder.release()
        await asyncio.gather(*waiters)
    assert not remaining_keys(masters)


@pytest.mark.parametrize("few", [0, -1, True])
def test_max_waiters_must_be_positive(few: int) -> None:
    with pytest.raises(ValueError, match="max_waiters must be positive"):
        Redlock(["redis://a"], max_waiters=few)
    with pytest.raises(TypeError, match="max_waiters must be a int"):
        Redlock(["redis://a"], max_waiters="9")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="fair must be a bool"):
        Redlock(["redis://a"]).lock("r", fair=1)  # type: ignore[arg-type]


async def test_who_gives_up_says_why_and_leaves_the_queues(
    redlock: Redlock, other: Redlock, masters: list[FakeMaster]
) -> None:
    holder = await other.lock("r", fair=True).acquire()
    began = now()
    with pytest.raises(LockNotAcquiredError, match=r"others come first, \d+ ms left") as caught:
        await redlock.lock("r", fair=True, wait=300).acquire()
    assert now() - began == pytest.approx(0.3, abs=0.01)
    said = caught.value.holder
    assert said is not None
    assert said.fingerprint == holder.fingerprint
    assert caught.value.retry_after is not None
    began = now()
    assert await redlock.lock("r", fair=True).try_acquire() is None
    with pytest.raises(LockNotAcquiredError):
        await redlock.lock("r", fair=True, wait=0).acquire()
    assert now() - began < 0.01
    await asyncio.sleep(0.01)
    assert [len(queued(master)) for master in masters] == [1] * 5
    await holder.release()
    assert not remaining_keys(masters)


async def test_too_few_masters_is_told(redlock: Redlock, masters: list[FakeMaster]) -> None:
    hang(masters[:3])
    began = now()
    with pytest.raises(QuorumUnavailableError, match="timed out"):
        await redlock.lock("r", fair=True, wait=0).acquire()
    assert now() - began < 0.15
    with pytest.raises(QuorumUnavailableError):
        await redlock.lock("r", fair=True, wait=200).acquire()
    resume(masters)
    await asyncio.sleep(0.1)
    assert not remaining_keys(masters)


@pytest.mark.promise("S6")
async def test_a_hung_or_dead_minority_costs_nothing(
    redlock: Redlock, other: Redlock, masters: list[FakeMaster]
) -> None:
    await got_fair(redlock)
    await got_fair(other)
    masters[0].hang()
    masters[1].kill()
    began = now()
    holder = await redlock.lock("r", fair=True).acquire()
    assert now() - began == pytest.approx(LATENCY)
    waiter = asyncio.create_task(got_fair(other))
    await asyncio.sleep(0.3)
    released = now()
    await holder.release()
    assert await waiter - released == pytest.approx(2 * LATENCY)


@pytest.mark.parametrize("dead", range(3))
async def test_masters_that_are_far_from_each_other_do_not_make_anybody_yield_in_vain(
    dead: int,
) -> None:
    """A call of the nearest is answered before the others have called."""
    masters = [FakeMaster(latency=0.001 * 2**number) for number in range(5)]
    async with (
        Redlock(masters, restart_guard="off") as redlock,
        Redlock(masters, restart_guard="off") as other,
    ):
        await got_fair(redlock)
        await got_fair(other)
        kill(masters[1 : 1 + dead])
        holder = await redlock.lock("r", fair=True).acquire()
        waiters = []
        for number in range(6):
            waiters.append(asyncio.create_task(got_fair((redlock, other)[number % 2])))
            await asyncio.sleep(0.05)
        for master in masters:
            master.commands.clear()
        await holder.release()
        times = await asyncio.gather(*waiters)
        assert list(times) == sorted(times)
        left = [said for master in masters for said in runs_of(master, scripts.LEAVE)]
        assert [said[8] for said in left] == [b"go"] * len(left)


async def test_who_comes_next_after_one_who_left_hears_of_it(
    redlock: Redlock, other: Redlock
) -> None:
    """The lock is held by somebody who knows nothing of the queue."""
    holder = await other.lock("r").acquire()
    first = asyncio.create_task(got_fair(redlock))
    await asyncio.sleep(0.03)
    second = asyncio.create_task(got_fair(other))
    await asyncio.sleep(0.03)
    first.cancel()
    await asyncio.sleep(0.03)
    released = now()
    await holder.release()
    assert await second - released < 0.01
    await asyncio.wait([first])


async def test_queues_do_not_outlive_who_stands_in_them(
    redlock: Redlock, masters: list[FakeMaster]
) -> None:
    async with redlock.lock("r"):
        for master in masters:
            enqueue(master, b"theirs/1", place=1)
        await asyncio.sleep(LIVES / 1000 + 0.2)
        assert remaining_keys(masters) == [b"r"] * 5


@pytest.mark.parametrize("how", ["restart", "flush", "cut", "forget"])
async def test_waiters_stand_in_line_again_where_they_were_forgotten(
    redlock: Redlock, other: Redlock, masters: list[FakeMaster], how: str
) -> None:
    holder = await redlock.lock("r").acquire()
    waiters = [asyncio.create_task(got_fair(manager)) for manager in (other, redlock)]
    await asyncio.sleep(0.1)
    for master in masters[:3] if how == "cut" else masters[:2]:
        if how == "forget":
            master.execute([b"SCRIPT", b"FLUSH"])
        else:
            getattr(master, how)()
    await asyncio.sleep(0.1)  # no heartbeat comes so soon
    assert [len(queued(master)) for master in masters] == [2] * 5
    released = now()
    await holder.release()
    first, second = await asyncio.gather(*waiters)
    # They are called on the new connections as well.
    assert first - released <= 3 * LATENCY + 1e-9
    assert second - first < 0.01


async def test_a_call_that_is_lost_costs_a_heartbeat(
    redlock: Redlock, other: Redlock, masters: list[FakeMaster]
) -> None:
    holder = await redlock.lock("r", fair=True).acquire()
    waiter = asyncio.create_task(got_fair(other))
    await asyncio.sleep(0.1)
    for manager in (redlock, other):
        for master in manager._opener.session().links:
            assert master._connection is not None
            master._connection._on_push = lambda *_: None
    released = now()
    await holder.release()
    assert 0.1 < await waiter - released <= HEARTBEAT + 0.01
    assert not remaining_keys(masters)


async def test_nobody_listens_when_nobody_waits(
    redlock: Redlock, other: Redlock, masters: list[FakeMaster]
) -> None:
    for _ in range(2):
        holder = await redlock.lock("r", fair=True).acquire()
        waiter = asyncio.create_task(got_fair(other))
        await asyncio.sleep(0.1)
        assert listening(masters) == 5
        await holder.release()
        await waiter
        assert listening(masters) == 5  # the next may come soon
        await asyncio.sleep(IDLE + 0.01)
        assert listening(masters) == 0


def listening(masters: list[FakeMaster]) -> int:
    said = [command[0] for master in masters for command in master.commands]
    return said.count(b"SUBSCRIBE") - said.count(b"UNSUBSCRIBE")


async def test_who_may_not_listen_finds_out_by_asking(masters: list[FakeMaster]) -> None:
    for master in masters:
        master.forbid = {"SUBSCRIBE", "UNSUBSCRIBE"}
    async with (
        Redlock(masters, restart_guard="off") as redlock,
        Redlock(masters, restart_guard="off") as other,
    ):
        holder = await redlock.lock("r", fair=True).acquire()
        waiter = asyncio.create_task(got_fair(other))
        await asyncio.sleep(0.1)
        released = now()
        await holder.release()
        assert await waiter - released <= HEARTBEAT + 0.01
        await asyncio.sleep(2 * IDLE)
        assert "5 up" in repr(other)
    assert not remaining_keys(masters)


async def test_clocks_that_go_wrong_do_not_keep_it_out(masters: list[FakeMaster]) -> None:
    for number, master in enumerate(masters):
        master.clock_offset = 1000.0 * number
    async with Redlock(masters, restart_guard="off") as redlock:
        await got_fair(redlock)
        for master in masters[:3]:
            master.clock_offset += 100  # all later than what was asked is allowed to be
        assert await got_fair(redlock) - now() < 2 * HEARTBEAT
    assert not remaining_keys(masters)


async def test_what_comes_too_late_is_not_granted(
    masters: list[FakeMaster],
) -> None:
    masters[0].execute([b"SCRIPT", b"LOAD", scripts.ENQUEUE.text])
    assert enqueue(masters[0], b"theirs/1", place=1, not_after=1)[0] == 4
    assert not remaining_keys(masters)


async def test_plain_and_fair_exclude_each_other(redlock: Redlock, other: Redlock) -> None:
    inside = 0

    async def work(manager: Redlock, fair: bool) -> None:
        nonlocal inside
        for _ in range(10):
            async with manager.lock("r", fair=fair):
                inside += 1
                assert inside == 1
                await asyncio.sleep(0.002)
                inside -= 1

    async with asyncio.TaskGroup() as tasks:
        for manager in (redlock, other):
            for fair in (False, True, True):
                tasks.create_task(work(manager, fair))


BEHIND_OR_NEXT = 1


def enqueue(
    master: FakeMaster, member: bytes, *, place: int, ttl: int = 10_000, not_after: int = 2**53
) -> list[object]:
    """Have somebody stand in line who says it once and never again."""
    reader = hiredis.Reader()
    reader.feed(
        commands.enqueue(
            (b"r", QUEUE, LIVE),
            b"a token",
            ttl,
            commands.QueueEntry(
                member=member, priority=place, lives=LIVES, most=100, not_after=not_after
            ),
        )
    )
    said = master.execute(reader.gets())
    assert isinstance(said, list)
    return said


@pytest.mark.spread(1)
@pytest.mark.promise("S2")
@pytest.mark.parametrize("fencing", [False, True])
@pytest.mark.parametrize("turns", range(1, 25))
async def test_nobody_gets_a_lock_from_a_manager_that_is_closed_meanwhile(
    masters: list[FakeMaster], turns: int, *, fencing: bool
) -> None:
    """Its holder would never be told that it is lost; whenever the answers come."""
    async with Redlock(masters, restart_guard="off", fencing=fencing) as redlock:
        async with redlock.lock("r", fair=True):
            pass
        waiter = asyncio.create_task(redlock.lock("r", fair=True).acquire())
        for _ in range(turns):
            await asyncio.sleep(0)
        await asyncio.sleep(0.0001 * turns)
    try:
        lease = await waiter
    except RedlockError as error:
        assert "closed" in str(error)  # noqa: PT017 - there may be none
    else:
        assert not lease.valid
    assert not any("r" in master.keys for master in masters)
