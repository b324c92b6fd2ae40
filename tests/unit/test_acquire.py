"""Acquisition and release on five masters in memory, in virtual time."""

import asyncio
import random
import re
from datetime import timedelta
from typing import Any

import pytest

from redlock_aio import (
    Answer,
    Lease,
    LockNotAcquiredError,
    LockNotHeldError,
    QuorumUnavailableError,
    Redlock,
    Retry,
)
from redlock_aio._engine.attempt import EXPIRY_SLACK
from redlock_aio._engine.wait_budget import WaitBudget
from redlock_aio._transport import connection
from redlock_aio.testing import FakeMaster

from .kit import LATENCY, delete, hang, keys, now, occupy, settle


async def test_an_uncontended_acquisition_makes_no_budget(
    redlock: Redlock, monkeypatch: pytest.MonkeyPatch
) -> None:
    budgets: list[WaitBudget] = []

    def counted(*args: Any) -> WaitBudget:
        budgets.append(WaitBudget(*args))
        return budgets[-1]

    async with redlock.lock("r", fencing=True):  # the first one asks the masters for their time
        pass
    monkeypatch.setattr("redlock_aio._engine.acquire.acquisition.WaitBudget", counted)
    for fencing in (False, True):
        async with redlock.lock("r", ttl=10_000, fencing=fencing):
            pass
    assert not budgets
    async with redlock.lock("r", ttl=10_000):
        assert await redlock.lock("r").try_acquire() is None
        with pytest.raises(LockNotAcquiredError):
            await redlock.lock("r", wait=100).acquire()
    assert len(budgets) == 1


async def test_all_masters_get_the_same_token_and_ttl(
    redlock: Redlock, masters: list[FakeMaster]
) -> None:
    lease = await redlock.lock("r", ttl=10_000).acquire()

    assert keys(masters) == [{"r": lease.token}] * 5
    assert all(9_990 < master.pttl("r") <= 10_000 for master in masters)
    assert re.fullmatch(r"[A-Za-z0-9+/]{28}@.+:\d+", lease.token)
    await lease.release()
    await settle(masters)
    assert keys(masters) == [{}] * 5


async def test_validity_is_what_elapsed_and_drift_leave_of_the_ttl(redlock: Redlock) -> None:
    async with redlock.lock("r", ttl=10_000) as lease:
        assert lease.validity == 10_000 - 1 - 102
        assert lease.remaining == lease.validity
        await asyncio.sleep(1)
        assert lease.remaining == lease.validity - 1000


async def test_a_pair_takes_two_latencies(redlock: Redlock) -> None:
    began = now()
    async with redlock.lock("r"):
        pass

    assert now() - began == pytest.approx(2 * LATENCY)


@pytest.mark.promise("S6")
@pytest.mark.parametrize("hung", [1, 2])
async def test_a_hung_minority_costs_nothing(
    redlock: Redlock, masters: list[FakeMaster], hung: int
) -> None:
    hang(masters[:hung])
    began = now()
    async with redlock.lock("r"):
        pass

    assert now() - began == pytest.approx(2 * LATENCY)
    await settle(masters)
    assert keys(masters) == [{}] * 5


@pytest.mark.promise("S6")
async def test_a_hung_minority_does_not_hold_up_the_first_lock(masters: list[FakeMaster]) -> None:
    masters[0].hang()
    masters[1].hang()
    async with Redlock(masters) as redlock:
        # One more for the marker, which is written when masters are met for the first time.
        assert now() == pytest.approx(3 * LATENCY + 0.05)
        async with redlock.lock("r") as lease:
            assert [vote.answer for vote in lease.votes[:2]] == [Answer.UNREACHABLE] * 2


async def test_a_hung_majority_fails_within_the_master_timeout(
    redlock: Redlock, masters: list[FakeMaster]
) -> None:
    hang(masters[:3])
    began = now()
    with pytest.raises(QuorumUnavailableError) as caught:
        await redlock.lock("r", wait=0).acquire()

    assert now() - began == pytest.approx(0.05)
    assert [vote.answer for vote in caught.value.votes[:3]] == [Answer.TIMED_OUT] * 3
    await settle(masters)
    assert keys(masters) == [{}] * 5


@pytest.mark.promise("S1")
@pytest.mark.parametrize("clogged", range(2**5))
async def test_won_with_any_majority_and_never_without(
    redlock: Redlock, masters: list[FakeMaster], clogged: int
) -> None:
    foreign = [master for i, master in enumerate(masters) if clogged & 1 << i]
    occupy(foreign)

    lease = await redlock.lock("r").try_acquire()
    await asyncio.sleep(0.1)

    assert (lease is not None) == (len(foreign) <= 2)
    assert all(master.keys == {"r": "theirs"} for master in foreign)
    assert all(master.pttl("r") == -1 for master in foreign)
    if lease is not None:
        assert [vote.answer for vote in lease.votes] == [
            Answer.HELD if master in foreign else Answer.GRANTED for master in masters
        ]
        await lease.release()
    await settle(masters)
    assert keys(masters) == [{"r": "theirs"} if m in foreign else {} for m in masters]


@pytest.mark.parametrize("number", range(1, 7))
async def test_one_for_and_one_against_is_settled_at_once(number: int) -> None:
    masters = [FakeMaster() for _ in range(number)]
    occupy(masters[: (number + 1) // 2])
    async with Redlock(masters) as redlock:
        began = now()
        with pytest.raises(LockNotAcquiredError):
            await redlock.lock("r", wait=0).acquire()
        # A round, and the answers to what takes it back, which say who has it.
        assert now() - began == pytest.approx(2 * LATENCY)


async def test_the_error_hears_out_those_who_are_a_little_later(masters: list[FakeMaster]) -> None:
    occupy(masters)
    masters[4].latency *= 1.9
    async with Redlock(masters) as redlock:
        with pytest.raises(LockNotAcquiredError) as caught:
            await redlock.lock("r", wait=0).acquire()
        assert [vote.answer for vote in caught.value.votes] == [Answer.HELD] * 5


async def test_the_error_names_every_master_and_its_vote(
    redlock: Redlock, masters: list[FakeMaster]
) -> None:
    masters[0].set("r", "theirs")
    masters[2].kill()
    masters[3].error = "OOM command not allowed"
    masters[4].hang()
    await asyncio.sleep(0.1)
    with pytest.raises(QuorumUnavailableError) as caught:
        await redlock.lock("r", wait=0).acquire()

    error = caught.value
    assert error.resources == ("r",)
    assert (error.attempts, error.elapsed) == (1, 2)
    assert str(error) == (
        "'r' not acquired in 1 round, 2 ms: too few masters answered (m0: held by another;"
        " m1: granted; m2: unreachable, connection refused; m3: error, OOM command not allowed;"
        " m4: timed out, not answered when the round was decided)"
    )


@pytest.mark.promise("S1")
@pytest.mark.promise("S3")
async def test_an_answer_that_comes_too_late_for_the_ttl_is_no_lock(
    redlock: Redlock, masters: list[FakeMaster]
) -> None:
    loop = asyncio.get_running_loop()
    loop.call_later(LATENCY * 0.75, loop.stall, 0.3)  # type: ignore[attr-defined]

    with pytest.raises(LockNotAcquiredError, match="too late for the ttl"):
        await redlock.lock("r", ttl=300, wait=0).acquire()

    await settle(masters)
    assert keys(masters) == [{}] * 5


async def test_a_failed_attempt_is_taken_back_before_the_next(
    redlock: Redlock, masters: list[FakeMaster]
) -> None:
    occupy(masters[:3], ttl=25)
    retry = Retry(min_delay=20, max_delay=20)

    async with redlock.lock("r", retry=retry) as lease:
        # The second attempt is made after the delay, the third when the key has expired.
        assert now() == pytest.approx(0.025 + EXPIRY_SLACK + 2 * LATENCY, abs=0.003)
        tokens = {c[2] for c in masters[4].commands if c[0] == b"SET"}
        assert len(tokens) == 3  # a new one for each attempt
        assert keys(masters) == [{"r": lease.token}] * 5
    said = [c[0] for c in masters[4].commands]
    assert said[-8:] == [b"SET", b"CLIENT", b"EVALSHA"] * 2 + [b"SET", b"DELIFEQ"]


@pytest.mark.parametrize("wait", [100, 1000, timedelta(seconds=3)])
@pytest.mark.parametrize("outage", [False, True])
async def test_wait_is_kept_within_a_tenth(
    redlock: Redlock, masters: list[FakeMaster], wait: int | timedelta, *, outage: bool
) -> None:
    for master in masters[:3]:
        master.hang() if outage else master.set("r", "theirs")
    began = now()
    with pytest.raises(QuorumUnavailableError if outage else LockNotAcquiredError) as caught:
        await redlock.lock("r", wait=wait).acquire()

    ms = wait if isinstance(wait, int) else wait / timedelta(milliseconds=1)
    assert ms * 0.9 <= (now() - began) * 1000 <= ms * 1.1
    assert caught.value.attempts > 1
    assert caught.value.elapsed == pytest.approx((now() - began) * 1000, abs=1)


async def test_wait_holds_for_the_first_connection_too(masters: list[FakeMaster]) -> None:
    hang(masters[:3])
    redlock = Redlock(masters)
    with pytest.raises(QuorumUnavailableError, match="connecting"):
        await redlock.lock("r", wait=200).acquire()

    assert now() == pytest.approx(0.2, rel=0.1)
    await redlock.aclose()


async def test_attempts_can_be_counted_out(redlock: Redlock, masters: list[FakeMaster]) -> None:
    occupy(masters[:3])
    began = now()
    with pytest.raises(LockNotAcquiredError) as caught:
        await redlock.lock("r", retry=Retry(min_delay=7, max_delay=7, attempts=4)).acquire()

    assert caught.value.attempts == 4
    assert now() - began == pytest.approx(3 * 0.007 + 4 * LATENCY + LATENCY)


async def test_a_waiter_gets_the_lock_when_the_holder_lets_go(redlock: Redlock) -> None:
    async def holder() -> None:
        async with redlock.lock("r"):
            await asyncio.sleep(1)

    holding = asyncio.create_task(holder())
    await asyncio.sleep(0.1)
    async with redlock.lock("r"):
        assert holding.done()
        assert now() < 1.3
    await holding


async def test_a_lock_that_nobody_extends_comes_free_with_its_ttl(redlock: Redlock) -> None:
    lease = await redlock.lock("r", ttl=1000, auto_extend=False).acquire()
    began = now()
    async with redlock.lock("r"):
        assert 0.98 < now() - began < 1.25  # its holder gave it up at its deadline
        assert not lease.valid


@pytest.mark.promise("S5")
async def test_lockstep_clients_with_equal_delays_still_get_on(masters: list[FakeMaster]) -> None:
    retry = Retry(min_delay=10, max_delay=10)
    async with Redlock(masters, retry=retry) as one, Redlock(masters, retry=retry) as two:
        turns: list[Redlock] = []

        async def take(redlock: Redlock) -> None:
            for _ in range(10):
                async with redlock.lock("r"):
                    turns.append(redlock)
                    await asyncio.sleep(0.002)

        async with asyncio.timeout(60):
            await asyncio.gather(take(one), take(two))
        assert len(turns) == 20


async def test_at_most_one_of_many_contenders_wins_at_a_time(masters: list[FakeMaster]) -> None:
    draw = random.Random(4)
    for master in masters:
        master.latency = draw.uniform(0.0005, 0.002)
    async with Redlock(masters) as redlock:
        holders = 0

        async def contend() -> None:
            nonlocal holders
            for _ in range(20):
                await asyncio.sleep(draw.uniform(0, 0.01))
                lease = await redlock.lock("r").try_acquire()
                if lease is not None:
                    holders += 1
                    assert holders == 1
                    await asyncio.sleep(0.001)
                    holders -= 1
                    await lease.release()

        await asyncio.gather(*(contend() for _ in range(10)))


async def test_resources_are_independent(redlock: Redlock) -> None:
    async with redlock.lock("a"), redlock.lock("b"):
        assert await redlock.lock("a").try_acquire() is None


async def test_a_prefix_keeps_names_apart(masters: list[FakeMaster]) -> None:
    async with (
        Redlock(masters, key_prefix="x:") as one,
        Redlock(masters) as two,
        one.lock("r") as lease,
        two.lock("r"),
    ):
        assert set(masters[0].keys) == {"x:r", "r"}
        assert lease.resources == ("r",)


@pytest.mark.promise("S1")
async def test_a_late_release_frees_nobody_else(
    redlock: Redlock, masters: list[FakeMaster]
) -> None:
    first = await redlock.lock("r", ttl=100, auto_extend=False).acquire()
    await asyncio.sleep(0.2)
    async with redlock.lock("r") as second:
        with pytest.raises(LockNotHeldError, match="'r' not held: it was not extended"):
            await first.release()
        await asyncio.sleep(0.1)
        assert keys(masters) == [{"r": second.token}] * 5


async def test_a_lease_is_released_once(redlock: Redlock) -> None:
    lease = await redlock.lock("r").acquire()
    await lease.release()

    with pytest.raises(LockNotHeldError, match="released before"):
        await lease.release()
    with pytest.raises(LockNotHeldError, match="released"):
        lease.ensure_valid()
    with pytest.raises(LockNotHeldError, match="released"):
        await lease.extend()
    assert not lease.valid
    assert lease.remaining == 0
    assert repr(lease) == "<Lease 'r', released>"


async def test_a_release_that_finds_the_key_gone_says_so(
    redlock: Redlock, masters: list[FakeMaster]
) -> None:
    lease = await redlock.lock("r").acquire()
    delete(masters[:3])

    with pytest.raises(LockNotHeldError, match="no longer has its key"):
        await lease.release()
    assert lease.lost.is_set()


async def test_a_release_that_a_hung_majority_does_not_answer_ends_and_is_kept(
    redlock: Redlock, masters: list[FakeMaster]
) -> None:
    lease = await redlock.lock("r").acquire()
    hang(masters[:3])
    began = now()
    await lease.release()

    assert now() - began == pytest.approx(0.05)
    await settle(masters)
    assert keys(masters) == [{}] * 5


async def test_one_lock_object_serves_many_tasks(redlock: Redlock) -> None:
    lock = redlock.lock("r", retry=Retry(min_delay=1, max_delay=5))
    tokens: list[str] = []

    async def use() -> None:
        async with lock as lease:
            tokens.append(lease.token)
            await asyncio.sleep(0.01)

    await asyncio.gather(*(use() for _ in range(5)))
    assert len(set(tokens)) == 5
    assert repr(lock) == "<Lock 'r', ttl 10000 ms>"


async def test_a_second_acquisition_on_a_held_object_harms_nothing(redlock: Redlock) -> None:
    lock = redlock.lock("r")
    first = await lock.acquire()

    assert await lock.try_acquire() is None
    first.ensure_valid()
    await first.release()


async def test_a_lease_can_be_acquired_in_a_child_task(redlock: Redlock) -> None:
    lease: Lease = await asyncio.wait_for(redlock.lock("r").acquire(), 1)

    await lease.release()


@pytest.mark.parametrize("told", [False, True])
@pytest.mark.parametrize("fair", [False, True])
async def test_a_free_lock_is_not_taken_for_held_because_too_much_is_unanswered(
    masters: list[FakeMaster], monkeypatch: pytest.MonkeyPatch, *, told: bool, fair: bool
) -> None:
    """One of more tries at once than masters may leave unanswered says so, and not None."""
    listener = (lambda _: None) if told else None
    async with Redlock(masters, restart_guard="off", listener=listener) as redlock:
        async with redlock.lock("warm", fair=fair):
            pass
        await asyncio.sleep(0.1)
        monkeypatch.setattr(connection, "MAX_PENDING", 20)
        locks = [redlock.lock(f"r{number}", fair=fair, ttl=60_000) for number in range(30)]
        tries = await asyncio.gather(
            *(lock.try_acquire() for lock in locks), return_exceptions=True
        )
        won = [lease for lease in tries if isinstance(lease, Lease)]
        errors = [error for error in tries if isinstance(error, QuorumUnavailableError)]
        assert won
        assert errors
        assert len(won) + len(errors) == 30
        assert "too many requests are unanswered" in str(errors[0])
        # Who waits tries again.
        waited = await asyncio.gather(
            *(redlock.lock(f"w{i}", wait=5_000).acquire() for i in range(30))
        )
        assert len(waited) == 30
        occupy(masters[:3], "held")
        assert await redlock.lock("held", fair=fair).try_acquire() is None
        monkeypatch.setattr(connection, "MAX_PENDING", 10_000)
        await asyncio.gather(*(lease.release() for lease in (*won, *waited)))
