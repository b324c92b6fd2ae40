"""Releasing a lock that another client holds, on masters in memory, in virtual time."""

import asyncio
import contextlib
import functools
import itertools
import random

import pytest

from redlock_aio import (
    Answer,
    LockLostError,
    LockNotHeldError,
    LossCause,
    QuorumUnavailableError,
    Redlock,
    RedlockError,
    Retry,
)
from redlock_aio._engine.hold.watchdog import CHECK_AFTER
from redlock_aio._protocol import commands, scripts
from redlock_aio._protocol.commands import REVOKED
from redlock_aio.testing import FakeMaster, cancelled_at

from . import kit
from .cancelling import When
from .kit import (
    LATENCY,
    before,
    commands_received,
    delete,
    fence,
    hang,
    in_coroutine,
    loop,
    now,
    occupy,
    ran,
    resume,
    slow,
    values,
)

TIMEOUT = 0.05
GRACE = 0.1 + 0.02 + 2 * TIMEOUT
LIVES = GRACE + 2 * TIMEOUT


def queues(masters: list[FakeMaster]) -> list[bytes]:
    names = commands.queue_keys(b"r")
    return [name for master in masters for name in names if master._data.find(name)[0] is not None]


class Holder:
    """A task that holds the lock until it is lost, or `end` is called."""

    def __init__(self, redlock: Redlock, **options: object) -> None:
        self.entered = asyncio.Event()
        self.at = 0.0
        self.left_at = 0.0
        self.fence = 0
        self.go = asyncio.Event()
        self.lock = redlock.lock("r", **options)  # type: ignore[arg-type]
        self.task = asyncio.create_task(self._hold())

    async def _hold(self) -> None:
        async with self.lock as lease:
            self.at = now()
            self.fence = lease._hold.claim.fence
            self.entered.set()
            try:
                await self.go.wait()
            finally:
                self.left_at = now()

    async def why(self) -> LossCause:
        await asyncio.wait([self.task], timeout=20)
        error = self.task.exception()
        assert isinstance(error, LockLostError)
        return error.cause

    async def end(self) -> None:
        self.go.set()
        await self.task


async def holding(redlock: Redlock, **options: object) -> Holder:
    holder = Holder(redlock, **options)
    await holder.entered.wait()
    return holder


async def test_a_lock_that_is_free_is_not_released(
    redlock: Redlock, masters: list[FakeMaster]
) -> None:
    masters[4].set("x", "theirs")
    for master in masters:
        master.commands.clear()
    began = now()

    assert not await redlock.force_release("r")
    assert now() - began == pytest.approx(LATENCY)
    assert commands_received(masters) == [1] * 5
    hang(masters[:3])
    with pytest.raises(QuorumUnavailableError, match="m4: held by nobody"):
        await redlock.force_release("r")
    assert not any(ran(master, scripts.REVOKE) for master in masters)


@pytest.mark.spread(2)
@pytest.mark.parametrize("age", [0.0, 0.05, 0.099, 5.0])
@pytest.mark.parametrize("own", [True, False])
@pytest.mark.parametrize("fair", [True, False])
@pytest.mark.promise("S1")
async def test_the_holder_leaves_before_a_waiter_acquires(
    redlock: Redlock, other: Redlock, masters: list[FakeMaster], age: float, own: bool, fair: bool
) -> None:
    manager = redlock if own else other
    holder = await holding(manager, fair=fair)
    await asyncio.sleep(age)
    began = now()
    waiters = [Holder(redlock, fair=fair), Holder(other, fair=fair)]
    assert await redlock.force_release("r")
    ended = now()

    assert await holder.why() == LossCause.FORCED
    if own:
        assert holder.left_at - began == pytest.approx(2 * LATENCY)
    else:
        late = max(CHECK_AFTER - age, 0.0) + 0.02
        assert holder.left_at - began < late + 4 * LATENCY
    assert ended - began == pytest.approx(GRACE + 3 * LATENCY)
    await asyncio.sleep(0.01)
    first = next(waiter for waiter in waiters if waiter.entered.is_set())
    assert first.at > holder.left_at
    assert first.at - began > GRACE
    assert first.at - began < GRACE + 10 * LATENCY, "it is woken"
    for waiter in sorted(waiters, key=lambda waiter: waiter.at or 9e9):
        async with asyncio.timeout(2):
            await waiter.entered.wait()
            await waiter.end()
    await asyncio.sleep(4)
    assert values(masters) == [None] * 5
    assert not queues(masters)


async def test_the_lock_is_held_by_a_revocation_until_it_is_free(
    redlock: Redlock, other: Redlock, masters: list[FakeMaster]
) -> None:
    occupy(masters, ttl=3_600_000)
    task = asyncio.create_task(redlock.force_release("r"))
    await asyncio.sleep(GRACE - 0.01)
    assert all(value is not None and value.endswith(REVOKED.decode()) for value in values(masters))
    left = (LIVES - GRACE + 0.01) * 1000
    assert [master.pttl("r") for master in masters] == [pytest.approx(left, abs=5)] * 5
    state = await other.inspect("r")
    assert str(state.holder).startswith("released by force (")
    assert await other.lock("r").try_acquire() is None
    assert await task
    assert values(masters) == [None] * 5
    async with other.lock("r", wait=0):
        pass


async def test_different_values_of_masters_are_all_released(
    redlock: Redlock, masters: list[FakeMaster]
) -> None:
    """A value that only a minority has is released as well."""
    for master, value in zip(masters, ("a", "b", "b", "c"), strict=False):
        master.set("r", value, 5_000)
        master.set("x", value)
    assert await redlock.force_release("r")
    assert values(masters) == [None] * 5
    assert values(masters, "x") == ["a", "b", "b", "c", None]


@pytest.mark.promise("S7")
async def test_the_next_fencing_token_is_higher(
    redlock: Redlock, other: Redlock, masters: list[FakeMaster]
) -> None:
    holder = await holding(other, fencing=True)
    assert await redlock.force_release("r")
    assert await holder.why() == LossCause.FORCED
    async with redlock.lock("r", fencing=True) as lease:
        assert lease.fencing_token > holder.fence > 0
        assert (await redlock.inspect("r")).fencing_counter == lease.fencing_token
    assert all(fence() in master.keys for master in masters)


async def test_an_extension_and_a_release_are_refused_at_once(
    redlock: Redlock, other: Redlock
) -> None:
    lease = await other.lock("r", on_lost="flag").acquire()
    task = asyncio.create_task(redlock.force_release("r"))
    await asyncio.sleep(2.6 * LATENCY)
    with pytest.raises(LockLostError, match=LossCause.KEY_GONE.text):
        await lease.extend()
    with pytest.raises(LockNotHeldError):
        await lease.release()
    assert await task


async def test_a_holder_without_client_tracking_learns_of_the_loss_by_its_extension(
    redlock: Redlock, masters: list[FakeMaster]
) -> None:
    for master in masters:
        master.forbid.add("CLIENT")
    async with Redlock(masters, restart_guard="off") as deaf:
        holder = await holding(deaf, ttl=3_000)
        await asyncio.sleep(0.2)
        began = now()
        assert await redlock.force_release("r")
        assert await holder.why() == LossCause.KEY_GONE
        assert holder.left_at - began < 1.0
    for master in masters:
        master.forbid.clear()


async def test_other_leases_of_the_process_stay_valid(
    redlock: Redlock,
) -> None:
    holder, bystander = await holding(redlock), redlock.lock("x")
    async with bystander as lease:
        assert await redlock.force_release("r")
        assert await holder.why() == LossCause.FORCED
        assert lease.valid
        await lease.extend()


async def test_a_lock_that_is_just_being_acquired_here_is_lost_too(
    redlock: Redlock, masters: list[FakeMaster]
) -> None:
    """The replies are late: there is no lease yet when its key is revoked."""
    slow(masters[2:], 0.04)
    holder = Holder(redlock)
    await asyncio.sleep(0.025)
    assert await redlock.force_release("r")
    assert await holder.why() == LossCause.FORCED


@pytest.mark.promise("S6")
@pytest.mark.parametrize("own", [True, False])
async def test_a_hung_minority_costs_one_timeout_and_is_released_later(
    redlock: Redlock, other: Redlock, masters: list[FakeMaster], own: bool
) -> None:
    holder = await holding(redlock if own else other, ttl=60_000)
    await asyncio.sleep(0.2)
    hang(masters[:2])
    began = now()
    assert await redlock.force_release("r")
    assert now() - began == pytest.approx(TIMEOUT + GRACE + 2 * LATENCY)
    assert await holder.why() == LossCause.FORCED
    async with other.lock("r", ttl=60_000) as lease:
        resume(masters)
        await asyncio.sleep(1)
        assert values(masters)[2:] == [lease.token] * 3
        assert all(value in (None, lease.token) for value in values(masters)[:2])
        assert lease.valid
        await lease.extend()
    await asyncio.sleep(1)
    assert values(masters) == [None] * 5


@pytest.mark.promise("S3")
@pytest.mark.parametrize("away", ["hung", "cut", "condemned", "dead"])
async def test_a_master_that_comes_back_releases_only_the_value_that_was_seen(
    redlock: Redlock, masters: list[FakeMaster], away: str
) -> None:
    """One master comes back with the revoked value, one with the key of a later holder."""
    occupy(masters, ttl=3_600_000)
    late, taken = masters[:2]
    for master in (late, taken):
        if away in ("hung", "condemned"):
            master.hang()
        elif away == "dead":
            master._alive = False
            master.cut()
    task = asyncio.create_task(redlock.force_release("r"))
    await asyncio.sleep(0.06)
    if away == "cut":
        late.cut()
    taken.set("r", "successor's", 3_600_000)
    assert await task
    assert values(masters)[2:] == [None] * 3
    assert late.keys.get("r") == "theirs" or away == "cut"
    if away == "condemned":
        await asyncio.sleep(5)
    late._alive = taken._alive = True
    resume(masters)
    await asyncio.sleep(3)
    assert values(masters) == [None, "successor's", None, None, None]
    assert [len(master.debts) for master in kit.session(redlock).links] == [0] * 5


@pytest.mark.promise("S1")
@pytest.mark.parametrize("hung", [3, 5])
@pytest.mark.parametrize("own", [True, False])
@pytest.mark.parametrize("kind", [{}, {"fair": True}, {"fencing": True}, {"shared": True}])
@pytest.mark.spread(1)
async def test_a_hung_majority_is_an_error_and_releases_the_lock_later(
    redlock: Redlock,
    other: Redlock,
    masters: list[FakeMaster],
    kind: dict[str, bool],
    hung: int,
    own: bool,
) -> None:
    """The masters that are left have granted it later than the majority."""
    for master in masters[3:]:
        master.latency = 0.02
    holder = await holding(redlock if own else other, ttl=60_000, **kind)
    await asyncio.sleep(0.2)
    hang(masters[:hung])
    with pytest.raises(QuorumUnavailableError) as caught:
        await redlock.force_release("r")
    assert [vote.answer for vote in caught.value.votes[:hung]] == [Answer.TIMED_OUT] * hung
    assert caught.value.attempts == 0
    if hung == 5:
        await holder.end()
        resume(masters)
        await asyncio.sleep(1)
    else:
        await asyncio.sleep(0.6)
        assert values(masters)[hung:] == [None] * (5 - hung)
        assert holder.left_at, "one revocation is enough to know"
        rival = Holder(other if own else redlock)
        resume(masters)
        assert await holder.why() == LossCause.FORCED
        await rival.entered.wait()
        assert holder.left_at < rival.at
        await rival.end()
        await asyncio.sleep(1)
    assert values(masters) == [None] * 5


async def test_masters_that_hang_between_two_steps(
    redlock: Redlock, masters: list[FakeMaster]
) -> None:
    """If masters hang after the revocation, the call fails; the revocations expire."""
    occupy(masters, ttl=3_600_000)
    task = asyncio.create_task(redlock.force_release("r"))
    await asyncio.sleep(0.1)
    hang(masters[:3])
    with pytest.raises(QuorumUnavailableError):
        await task
    resume(masters[:3])
    await asyncio.sleep(LIVES)
    assert values(masters) == [None] * 5


async def test_quarantined_masters_are_released_and_do_not_count(masters: list[FakeMaster]) -> None:
    async with Redlock(masters) as redlock:
        occupy(masters, ttl=3_600_000)
        for master in masters[:2]:
            master.restart()
            master.set("r", "theirs", 3_600_000)
        await asyncio.sleep(2)
        assert "2 quarantined" in repr(redlock)
        assert await redlock.force_release("r")
        assert values(masters) == [None] * 5
        masters[2].restart()
        await asyncio.sleep(2)
        with pytest.raises(QuorumUnavailableError, match="quarantined"):
            await redlock.force_release("r")


async def test_masters_without_the_scripts_receive_them_again(
    redlock: Redlock, masters: list[FakeMaster]
) -> None:
    for master in masters:
        master.set("r", "theirs", 3_600_000)
        master.execute([b"SCRIPT", b"FLUSH"])
        for script in (scripts.REVOKE, scripts.LEAVE):
            before(master, script, Forgets(master))
    assert await redlock.force_release("r")
    assert values(masters) == [None] * 5


class Forgets:
    """Flushes the scripts of a master, once."""

    def __init__(self, master: FakeMaster) -> None:
        self._master = master
        self._done = False

    def __call__(self) -> None:
        if not self._done:
            self._done = True
            self._master._scripts.clear()


async def test_a_client_that_acquires_meanwhile_keeps_the_lock(
    redlock: Redlock, masters: list[FakeMaster]
) -> None:
    for master in masters:
        master.set("r", "theirs", 3_600_000)
        before(master, scripts.REVOKE, functools.partial(master.set, "r", "successor's"))
    began = now()
    assert not await redlock.force_release("r")
    assert now() - began == pytest.approx(3 * LATENCY)
    assert values(masters) == ["successor's"] * 5


async def test_two_forced_releases_at_once_both_succeed(
    redlock: Redlock, other: Redlock, masters: list[FakeMaster]
) -> None:
    occupy(masters, ttl=3_600_000)
    first = asyncio.create_task(redlock.force_release("r"))
    await asyncio.sleep(0.1)
    assert await other.force_release("r")
    assert await first
    assert values(masters) == [None] * 5


async def test_a_revocation_expires_if_the_manager_is_closed(masters: list[FakeMaster]) -> None:
    occupy(masters, ttl=3_600_000)
    async with Redlock(masters, restart_guard="off") as redlock:
        task = asyncio.create_task(redlock.force_release("r"))
        await asyncio.sleep(0.1)
    await asyncio.wait([task])
    with pytest.raises(RedlockError, match="closed"):
        await task
    await asyncio.sleep(LIVES)
    assert values(masters) == [None] * 5


# Waiters


async def test_fair_waiters_are_served_in_order_when_the_holder_is_dead(
    redlock: Redlock, other: Redlock, masters: list[FakeMaster]
) -> None:
    """The process of the holder has died."""
    gone = Redlock(masters, restart_guard="off")
    lease = await gone.lock("r", ttl=60_000, fair=True, on_lost="flag").acquire()
    lease._hold.renewed = False
    for master in kit.session(gone).links:
        master.close()
    waiters = []
    for manager in (redlock, other, redlock):
        waiters.append(Holder(manager, fair=True))
        await asyncio.sleep(0.02)
    assert (await redlock.inspect("r")).waiters == 3
    began = now()
    assert await other.force_release("r")
    for waiter in waiters:
        async with asyncio.timeout(0.05):
            await waiter.entered.wait()
            await waiter.end()
    assert now() - began < GRACE + 0.05
    await gone.aclose()
    await asyncio.sleep(0.1)
    assert not queues(masters)


async def test_a_fair_waiter_without_client_tracking_is_notified(
    masters: list[FakeMaster],
) -> None:
    """It is notified by a message in the channel of the queue."""
    for master in masters:
        master.forbid.add("CLIENT")
        master.set("r", "theirs", 3_600_000)
    async with (
        Redlock(masters, restart_guard="off") as redlock,
        Redlock(masters, restart_guard="off") as other,
    ):
        waiter = Holder(other, fair=True)
        await asyncio.sleep(1.3)
        assert await redlock.force_release("r")
        async with asyncio.timeout(0.02):
            await waiter.entered.wait()
        await waiter.end()


async def test_a_waiter_of_this_process_is_notified(
    redlock: Redlock, masters: list[FakeMaster]
) -> None:
    """Masters push no change to the connection that made it."""
    occupy(masters, ttl=3_600_000)
    seldom = Retry(min_delay=20_000, max_delay=20_000)
    waiter = Holder(redlock, retry=seldom)
    await asyncio.sleep(0.5)
    began = now()
    assert await redlock.force_release("r")
    await waiter.entered.wait()
    assert waiter.at - began == pytest.approx(GRACE + 3 * LATENCY)
    await waiter.end()


@pytest.mark.promise("S1")
async def test_masters_where_the_lock_is_free_get_a_revocation_as_well(
    redlock: Redlock, other: Redlock, masters: list[FakeMaster]
) -> None:
    """Otherwise a client could combine new grants there with older ones to a majority."""
    occupy(masters[:2], ttl=3_600_000)
    task = asyncio.create_task(redlock.force_release("r"))
    await asyncio.sleep(0.1)
    assert len(set(values(masters))) == 1
    assert await other.lock("r").try_acquire() is None
    assert await task
    async with other.lock("r", wait=0):
        pass


@pytest.mark.promise("S1")
async def test_a_waiter_does_not_count_grants_that_were_revoked(
    redlock: Redlock, other: Redlock, masters: list[FakeMaster]
) -> None:
    """This holds also while the master that granted the lock hangs."""
    occupy(masters[1:], ttl=3_600_000)
    waiter = Holder(other, fair=True)
    await asyncio.sleep(0.1)
    assert masters[0].keys["r"] != "theirs"
    task = asyncio.create_task(redlock.force_release("r"))
    await asyncio.sleep(2.2 * LATENCY)
    masters[0].hang()
    await asyncio.sleep(0.1)
    for master in masters[3:]:
        master.set("r", "somebody else's", 3_600_000)
    assert await task
    had_two = False
    for _ in range(500):
        await asyncio.sleep(0.001)
        had_two = had_two or None is not values(masters)[1] == values(masters)[2]
    assert had_two, "which it gives back, for they are too few"
    assert not waiter.entered.is_set(), "it has none that hangs"
    masters[0].resume()
    await waiter.entered.wait()
    assert values(masters)[:3] == [values(masters)[1]] * 3
    await waiter.end()


async def test_a_revocation_is_repeated_for_as_long_as_the_lock_may_live(
    redlock: Redlock, masters: list[FakeMaster]
) -> None:
    occupy(masters, ttl=40_000)
    task = asyncio.create_task(redlock.force_release("r"))
    await asyncio.sleep(1.2 * LATENCY)
    masters[0].error = "OOM command not allowed when used memory > 'maxmemory'."
    assert await task
    await asyncio.sleep(20)
    assert values(masters) == ["theirs"] + [None] * 4
    masters[0].error = ""
    await asyncio.sleep(1)
    assert values(masters) == [None] * 5


# Cancellation


async def held(who: str, redlock: Redlock, other: Redlock, masters: list[FakeMaster]) -> Holder:
    """Return a holder; that of a foreign client never releases its key."""
    holder = await holding(redlock if who == "own" else other, ttl=60_000)
    await asyncio.sleep(0.15)
    if who == "stranger's":
        await holder.end()
        occupy(masters, ttl=3_600_000)
    return holder


async def serve(rival: Holder, holder: Holder, masters: list[FakeMaster]) -> bool:
    """Wait until *rival* has had the lock; return whether *holder* lost it."""
    revoked = any(ran(master, scripts.REVOKE) for master in masters)
    assert rival.entered.is_set() == revoked
    if not holder.go.is_set():
        if revoked:
            assert await holder.why() == LossCause.FORCED
            assert holder.left_at < rival.at
        else:
            await holder.end()
    elif not revoked:
        delete(masters)
    await rival.entered.wait()
    await rival.end()
    return revoked


@pytest.mark.spread(1)
@pytest.mark.promise("S3")
@pytest.mark.parametrize("when", ["waiting", "answered"])
@pytest.mark.parametrize("hung", [0, 2, 3])
@pytest.mark.parametrize("who", ["own", "other's", "stranger's"])
async def test_a_cancellation_leaves_the_lock_free_or_untouched(
    redlock: Redlock,
    other: Redlock,
    masters: list[FakeMaster],
    who: str,
    hung: int,
    when: When,
) -> None:
    """In either case the holder loses its lease before another client acquires the lock."""
    sent_away = []
    for place in itertools.count(1):
        holder = await held(who, redlock, other, masters)
        hang(masters[:hung])
        call = cancelled_at(place, redlock.force_release("r"), when=when)
        task = asyncio.create_task(in_coroutine(call))
        await asyncio.wait([task])
        rival = Holder(other)
        await asyncio.sleep(0.01)
        resume(masters)
        await asyncio.sleep(1)
        sent_away.append(await serve(rival, holder, masters))
        for master in masters:
            master.commands.clear()
        await asyncio.sleep(1)
        assert values(masters) == [None] * 5, f"suspension {place}"
        if not task.cancelled():
            assert isinstance(task.exception(), QuorumUnavailableError | None)
            break
    assert sent_away == [False] + [True] * (2 if hung == 3 else 4)


# Random schedules


class Schedule:
    """One random schedule: holders, waiters, latencies and forced releases."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.inside = self.most = self.ended = 0
        self.fences: list[int] = []

    async def use(self, redlock: Redlock, delay: float, length: float) -> None:
        ttl, fair = self.chance.choice([300, 2_000, 10_000]), self.chance.random() < 0.4
        await asyncio.sleep(delay)
        with contextlib.suppress(LockLostError):
            async with redlock.lock("r", ttl=ttl, fair=fair, fencing=True) as lease:
                self.inside += 1
                self.most = max(self.most, self.inside)
                self.fences.append(lease.fencing_token)
                try:
                    await asyncio.sleep(length)
                finally:
                    self.inside -= 1
        self.ended += 1

    async def force(self, redlock: Redlock, delay: float) -> None:
        await asyncio.sleep(delay)
        with contextlib.suppress(QuorumUnavailableError):
            await redlock.force_release("r")

    async def run(self) -> None:
        chance = self.chance
        masters = [FakeMaster(f"m{i}", latency=chance.uniform(0.0005, 0.04)) for i in range(5)]
        async with contextlib.AsyncExitStack() as stack:
            managers = [
                await stack.enter_async_context(Redlock(masters, restart_guard="off"))
                for _ in range(3)
            ]
            tasks = [
                self.use(chance.choice(managers), chance.uniform(0, 0.6), chance.uniform(0, 1.5))
                for _ in range(5)
            ]
            tasks += [self.force(chance.choice(managers), chance.uniform(0, 1.2)) for _ in range(3)]
            hurt = chance.choice(masters)
            if chance.random() < 0.5:
                at = chance.uniform(0, 0.8)
                loop().call_later(at, hurt.hang)
                loop().call_later(at + chance.uniform(0.01, 1), hurt.resume)
            elif chance.random() < 0.5:
                loop().call_later(chance.uniform(0, 0.8), hurt.cut)
            await asyncio.gather(*tasks)
            await asyncio.sleep(2)
            assert values(masters) == [None] * 5
            assert not queues(masters)


@pytest.mark.promise("S1")
@pytest.mark.seeds(2, full=80)
async def test_no_two_hold_the_lock_at_once(seed: int) -> None:
    schedule = Schedule(seed)
    await schedule.run()

    assert schedule.most == 1
    assert schedule.ended == 5
    assert schedule.fences == sorted(set(schedule.fences))
