"""Fair waiting while masters, connections and clocks fail, and while tokens are agreed upon."""

import asyncio

import pytest

from redlock_aio import Lock, NoVoteCause, Redlock, Semaphore
from redlock_aio._engine.wait.fair_queue import AGAIN, IDLE
from redlock_aio._engine.wait.fair_waiter import FairWaiter
from redlock_aio._protocol import commands, scripts
from redlock_aio._rules.fair_ticket import HEARTBEAT, LIVES
from redlock_aio._transport.debts import DEBT_INTERVAL
from redlock_aio.testing import FakeMaster

from . import kit
from .kit import (
    LATENCY,
    NEVER,
    before,
    count_up,
    delete,
    execute,
    fail,
    fair_acquired_at,
    hang,
    loop,
    now,
    occupy,
    queued,
    remaining_keys,
    resume,
    values,
    waiting_fair,
)

pytestmark = pytest.mark.promise("S8")


# Faults of masters and of clocks


@pytest.mark.promise("S6")
async def test_a_hung_or_dead_minority_costs_nothing(
    redlock: Redlock, other: Redlock, masters: list[FakeMaster]
) -> None:
    await fair_acquired_at(redlock)
    await fair_acquired_at(other)
    masters[0].hang()
    masters[1].kill()
    began = now()
    holder = await redlock.lock("r", fair=True).acquire()
    assert now() - began == pytest.approx(LATENCY)
    waiter = waiting_fair(other)
    await asyncio.sleep(0.3)
    released = now()
    await holder.release()
    assert await waiter - released == pytest.approx(2 * LATENCY)


@pytest.mark.promise("S3")
@pytest.mark.parametrize("lasts", [0.05, 1.0, 2.5])
async def test_a_place_is_left_also_if_the_release_is_refused_for_longer_than_the_ttl(
    redlock: Redlock, other: Redlock, masters: list[FakeMaster], lasts: float
) -> None:
    holder = await other.lock("r", fair=True).acquire()
    waiting = asyncio.create_task(redlock.lock("r", fair=True, ttl=300).acquire())
    await asyncio.sleep(0.2)
    await holder.release()
    lease = await waiting
    fail(masters[:2], "BUSY Redis is busy running a script.")
    await lease.release()
    assert all(map(queued, masters[:2]))
    await asyncio.sleep(lasts)
    fail(masters[:2], "")
    await asyncio.sleep(DEBT_INTERVAL + 2 * LATENCY)
    assert not any(map(queued, masters))


@pytest.mark.promise("S6")
async def test_a_heartbeat_does_not_lengthen_a_master_timeout(
    masters: list[FakeMaster],
) -> None:
    async with Redlock(masters[:3], master_timeout=1_500, restart_guard="off") as redlock:
        await fair_acquired_at(redlock)
        hang(masters[:2])
        began = now()
        assert await redlock.lock("r", fair=True, ttl=1_000).try_acquire() is None
        assert now() - began < 3.5
        resume(masters)
        await asyncio.sleep(LIVES / 1000)
        assert not remaining_keys(masters)


async def test_answers_that_take_longer_than_a_heartbeat_count() -> None:
    masters = [FakeMaster(latency=0.4) for _ in range(3)]
    async with Redlock(masters, master_timeout=2_000) as redlock:
        holder = await redlock.lock("r", fair=True, ttl=5_000).acquire()
        waiter = waiting_fair(redlock, ttl=900)
        await asyncio.sleep(3)
        await holder.release()
        released = now()
        assert await waiter - released < 2


@pytest.mark.parametrize("how", ["restart", "flush", "cut", "forget"])
async def test_waiters_enter_the_queues_again_that_have_lost_them(
    redlock: Redlock, other: Redlock, masters: list[FakeMaster], how: str
) -> None:
    holder = await redlock.lock("r").acquire()
    waiters = [waiting_fair(manager) for manager in (other, redlock)]
    await asyncio.sleep(0.1)
    for master in masters[:3] if how == "cut" else masters[:2]:
        if how == "forget":
            master.execute([b"SCRIPT", b"FLUSH"])
        else:
            getattr(master, how)()
    await asyncio.sleep(0.1)  # earlier than any heartbeat
    assert [len(queued(master)) for master in masters] == [2] * 5
    released = now()
    await holder.release()
    first, second = await asyncio.gather(*waiters)
    # They are woken over the new connections as well.
    assert first - released <= 3 * LATENCY + 1e-9
    assert second - first < 0.01


@pytest.mark.promise("S9")
@pytest.mark.parametrize("back", range(3))
async def test_the_master_that_makes_a_majority_again_is_enough(
    redlock: Redlock, masters: list[FakeMaster], back: int
) -> None:
    """The two others have granted the lock long ago, and got these grants back."""
    await fair_acquired_at(redlock)
    for master in masters[:3]:
        master.kill()
    waiter = waiting_fair(redlock)
    await asyncio.sleep(0.1)
    masters[back].restart()
    while not redlock.statistics().masters[back].votes:  # noqa: ASYNC110 - at that very moment
        await asyncio.sleep(LATENCY / 10)
    voted = now()
    assert voted < HEARTBEAT / 2
    assert await waiter - voted < 5 * LATENCY


@pytest.mark.promise("S1")
async def test_a_grant_of_a_master_whose_connection_broke_is_void(
    redlock: Redlock, other: Redlock, masters: list[FakeMaster]
) -> None:
    """The master may restart empty and grant the lock to another client before this is noticed."""
    occupy(masters[2:])
    waiter = asyncio.create_task(redlock.lock("r", fair=True, retry=NEVER).acquire())
    await asyncio.sleep(0.1)
    assert all(values(masters[:2]))
    for link, master in zip(kit.session(redlock).links, masters[:2], strict=False):
        assert link._connection is not None
        link._connection.condemn(NoVoteCause.CLOSED, "cut")
        master._data.keys.clear()
    masters[3].delete("r")
    thief = await other.lock("r", wait=0).acquire()
    masters[2].delete("r")  # the third grant that the waiter needs
    await asyncio.sleep(0.005)
    assert thief.valid
    assert not waiter.done()
    await thief.release()
    delete(masters)
    await (await waiter).release()


def subscriptions(masters: list[FakeMaster]) -> int:
    words = [command[0] for master in masters for command in master.commands]
    return words.count(b"SUBSCRIBE") - words.count(b"UNSUBSCRIBE")


async def test_a_program_subscribes_only_while_it_has_waiters(
    redlock: Redlock, other: Redlock, masters: list[FakeMaster]
) -> None:
    for _ in range(2):
        holder = await redlock.lock("r", fair=True).acquire()
        waiter = waiting_fair(other)
        await asyncio.sleep(0.1)
        assert subscriptions(masters) == 5
        await holder.release()
        await waiter
        assert subscriptions(masters) == 5  # the next waiter may come soon
        await asyncio.sleep(IDLE + 0.01)
        assert subscriptions(masters) == 0


async def test_without_pushes_a_waiter_needs_a_heartbeat(masters: list[FakeMaster]) -> None:
    for master in masters:
        master.forbid = {"SUBSCRIBE", "UNSUBSCRIBE"}
    async with (
        Redlock(masters, restart_guard="off") as redlock,
        Redlock(masters, restart_guard="off") as other,
    ):
        holder = await redlock.lock("r", fair=True).acquire()
        first = waiting_fair(other)
        await asyncio.sleep(0.01)
        second = waiting_fair(redlock)
        await asyncio.sleep(0.1)
        released = now()
        await holder.release()
        # The holder was in no queue, so the first one was the next, and tracked the key.
        assert await first - released == pytest.approx(2 * LATENCY)
        assert 0.1 < await second - released <= HEARTBEAT + 0.01
        await asyncio.sleep(2 * IDLE)
        assert "5 up" in repr(other)
    assert not remaining_keys(masters)


async def test_a_subscription_that_was_refused_is_repeated(
    redlock: Redlock, other: Redlock, masters: list[FakeMaster]
) -> None:
    """The permission is granted while the program has waiters, and stays connected."""
    for master in masters:
        master.forbid = {"SUBSCRIBE"}
    elsewhere = await redlock.lock("q", fair=True).acquire()
    always = asyncio.create_task(other.lock("q", fair=True).acquire())
    await asyncio.sleep(2 * AGAIN + 0.1)
    assert subscriptions(masters) == 3 * 5
    for master in masters:
        master.forbid = set()
    await asyncio.sleep(3 * AGAIN)
    assert subscriptions(masters) == 4 * 5, "once they have accepted it"
    holder = await redlock.lock("r", fair=True).acquire()
    waiters = [waiting_fair(other) for _ in range(3)]
    await asyncio.sleep(0.1)
    released = now()
    await holder.release()
    await asyncio.gather(*waiters)
    assert now() - released < 0.1, "no heartbeat was needed"
    always.cancel()
    await elsewhere.release()


async def test_clocks_that_jump_do_not_keep_a_waiter_out(masters: list[FakeMaster]) -> None:
    for number, master in enumerate(masters):
        master.clock_offset = 1000.0 * number
    async with Redlock(masters, restart_guard="off") as redlock:
        await fair_acquired_at(redlock)
        for master in masters[:3]:
            master.clock_offset += 100  # all later than a master accepts a request
        assert await fair_acquired_at(redlock) - now() < 2 * HEARTBEAT
        for master in masters:
            master.clock_offset += 100
        async with redlock.lock("r", fair=True, wait=0):
            pass
    assert not remaining_keys(masters)


@pytest.mark.parametrize("stalled", [0.9, 5.0])
async def test_a_time_that_is_read_late_is_not_used(
    redlock: Redlock, masters: list[FakeMaster], stalled: float
) -> None:
    await fair_acquired_at(redlock)
    clocks = kit.session(redlock).masters.clocks
    offsets = [clocks.offset(number) for number in range(5)]
    loop().call_later(0.0004, loop().stall, stalled)  # between a request and its reply
    began = now()
    lease = await redlock.lock("r", fair=True).acquire()
    # A request that arrives too late is repeated at once, with the time from the reply.
    assert now() - began < stalled + 0.01
    await lease.release()
    for number, offset in enumerate(offsets):
        assert offset is not None
        assert clocks.offset(number) == pytest.approx(offset, abs=0.002)
    await redlock.aclose()
    assert not remaining_keys(masters)


@pytest.mark.spread(0)
@pytest.mark.parametrize("kind", ["fair", "semaphore"])
async def test_masters_that_refuse_are_asked_about_once_a_second_by_each_waiter(
    redlock: Redlock, other: Redlock, masters: list[FakeMaster], kind: str
) -> None:
    def lock(manager: Redlock) -> Lock | Semaphore:
        if kind == "fair":
            return manager.lock("r", fair=True, ttl=60_000)
        return manager.semaphore("r", permits=1, ttl=60_000)

    holder = await lock(other).acquire()
    waiters = [asyncio.create_task(lock(redlock).acquire()) for _ in range(10)]
    await asyncio.sleep(0.5)
    fail(masters[:3], "NOREPLICAS Not enough good replicas to write.")
    await holder.release()
    await asyncio.sleep(LIVES / 1000 + HEARTBEAT)
    masters[0].commands.clear()
    await asyncio.sleep(10)
    scripts_run = [command for command in masters[0].commands if command[0] == b"EVALSHA"]
    # Besides, each program repeats one of its releases every `DEBT_INTERVAL`.
    assert len(scripts_run) == pytest.approx(10 * 10 / HEARTBEAT + 2 * 10 / DEBT_INTERVAL, rel=0.1)
    fail(masters[:3], "")
    ended = now()
    for waiter in asyncio.as_completed(waiters):
        lease = await waiter
        assert now() - ended < 1.1 * HEARTBEAT
        await lease.release()


# Fencing tokens that the masters have to agree on


def three_masters() -> list[FakeMaster]:
    """Return three masters: the first is near, the others are far away."""
    return [FakeMaster(f"m{n}", latency=0.001 if n == 0 else 0.02) for n in range(3)]


def make_counters_differ(masters: list[FakeMaster]) -> None:
    for number, master in enumerate(masters):
        count_up(master, 10_000_000 * (number + 1))


@pytest.mark.promise("S1")
@pytest.mark.promise("S7")
async def test_grants_that_are_given_back_while_a_token_is_agreed_on_do_not_count() -> None:
    """
    The counters differ, so the waiter asks the masters to agree.

    Meanwhile the lock is revoked on the nearest master, which wakes the waiter; it gives
    back its grants on all masters. Then the others agree on a token for these grants.
    """
    masters = three_masters()
    async with (
        Redlock(masters, restart_guard="off", fencing=True) as redlock,
        Redlock(masters, restart_guard="off", fencing=True) as other,
    ):
        await fair_acquired_at(redlock)
        async with other.lock("r2", fair=True):
            pass
        holder = await other.lock("r", fair=True).acquire()
        waiter = asyncio.create_task(redlock.lock("r", fair=True).acquire())
        await asyncio.sleep(0.2)  # from now on it is woken when its turn comes
        make_counters_differ(masters)
        revoked: list[object] = []

        def revoke() -> None:
            """Revoke the lock on the nearest master, as a forced release does."""
            if not revoked:
                value = masters[0].keys["r"].encode()
                revocation_of = commands.revocation(b"instead")
                payload = commands.revoke(b"r", value, revocation_of, 300)
                revoked.append(execute(masters[0], payload))

        before(masters[0], scripts.RAISE, revoke)
        await holder.release()
        lease = await waiter
        assert revoked == [b"OK"]
        assert lease.valid
        assert lease.fencing_token > holder.fencing_token
        assert values(masters).count(lease.token) >= 2
        await lease.release()
    await asyncio.sleep(4)
    assert not remaining_keys(masters, counters=False)


@pytest.mark.promise("S1")
@pytest.mark.promise("S7")
async def test_an_old_grant_does_not_make_a_waiter_spin_while_a_token_is_agreed_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """
    The first master grants at once; the others keep a foreign lock for 130 ms.

    When they grant, the first grant is nearly too old, but the others make a majority without
    it. While these agree on a token, which takes 40 ms, the first grant gets too old.
    """
    masters = three_masters()
    ticks = 0
    tick = FairWaiter._tick

    def counted(waiter: FairWaiter) -> None:
        nonlocal ticks
        ticks += 1
        assert ticks < 1_000, "the timer fires again and again in the same instant"
        tick(waiter)

    monkeypatch.setattr(FairWaiter, "_tick", counted)
    async with Redlock(masters, restart_guard="off", fencing=True) as redlock:
        await fair_acquired_at(redlock)
        await asyncio.sleep(0.1)
        make_counters_differ(masters)
        occupy(masters[1:], ttl=130)
        await fair_acquired_at(redlock)
    assert ticks
