"""The end of a wait: its time, its effects, and the error of the acquisition."""

import asyncio
import math
from datetime import timedelta
from typing import Any

import pytest

from redlock_aio import (
    Answer,
    LockNotAcquiredError,
    QuorumUnavailableError,
    Redlock,
    RedlockError,
)
from redlock_aio._engine.masters import CUT_SHORT, Query
from redlock_aio._engine.wait.wakeup import WaitBudget
from redlock_aio._protocol import commands
from redlock_aio.testing import FakeMaster

from . import kit
from .kit import (
    KIND,
    NEVER,
    Kind,
    fail,
    hang,
    kill,
    loop,
    now,
    occupy,
    refused,
    restart,
    resume,
    slow,
)


class BusyMaster(FakeMaster):
    """A master that needs some time for each write, as a loaded server does."""

    takes = 0.0002
    _busy_until = 0.0

    def receive(self, transport: Any, data: bytes) -> None:
        writes = data.count(b"EVALSHA") + data.count(b"SET")
        arrives = max(now() + self.latency / 2, self._busy_until)
        self._busy_until = arrives + writes * self.takes
        queue = self._inbox[loop()]
        queue.append((self._busy_until, transport, data))
        loop().call_at(self._busy_until, self._arrive, queue)


async def refused_after(
    redlock: Redlock, wait: int | timedelta, **options: Any
) -> tuple[LockNotAcquiredError, int]:
    """Return the error of an acquisition that fails, and the ms that it took."""
    began = now()
    error = await refused(redlock, wait=wait, **options)
    return error, round((now() - began) * 1000)


def fingerprint(error: LockNotAcquiredError) -> str:
    """Return the fingerprint of the holder that *error* names."""
    assert type(error) is LockNotAcquiredError
    assert error.holder is not None
    return error.holder.fingerprint


async def test_tasks_that_give_up_together_all_learn_who_holds_the_lock() -> None:
    masters = [BusyMaster() for _ in range(5)]
    async with Redlock(masters) as redlock, Redlock(masters) as other:
        lease = await other.lock("r", ttl=60_000).acquire()
        waits = [refused_after(redlock, 300) for _ in range(40)]
        for error, _ in await asyncio.gather(*waits):
            assert fingerprint(error) == lease.fingerprint
            assert error.retry_after is not None
            assert 59_000 < error.retry_after < 60_000
        await lease.release()


@pytest.mark.parametrize("own", [False, True], ids=["others", "own"])
async def test_tasks_that_wait_for_their_turn_ask_nobody(own: bool) -> None:
    """Thousands that end together would take seconds for it, and then blame the masters."""
    masters = [BusyMaster() for _ in range(5)]
    async with Redlock(masters) as redlock, Redlock(masters, name="other") as other:
        holder = redlock if own else other
        lease = await holder.lock("r", ttl=60_000).acquire()
        first = asyncio.create_task(redlock.lock("r").acquire())
        await asyncio.sleep(0.1)
        masters[0].commands.clear()
        for error, took in await asyncio.gather(*(refused_after(redlock, 300) for _ in range(40))):
            assert fingerprint(error) == lease.fingerprint
            assert error.attempts == 0
            assert error.elapsed == took == 300
            assert error.retry_after is not None
            assert 59_000 < error.retry_after < 60_000
        assert sum(command[0] == b"SET" for command in masters[0].commands) < 3  # of the first task
        await lease.release()
        await (await first).release()


async def test_votes_for_a_lease_of_this_process_are_not_those_of_its_acquisition(
    redlock: Redlock, masters: list[FakeMaster]
) -> None:
    await redlock.check()
    hang(masters[:2])
    async with redlock.lock("r", ttl=10_000) as lease:
        await asyncio.sleep(0.1)  # both time out
        resume(masters[:1])  # the lease is set there, and on the other one it never is
        kill(masters[1:2])
        await asyncio.sleep(5)
        error, _ = await refused_after(redlock, 300)
        assert fingerprint(error) == lease.fingerprint
        given = [vote.answer for vote in error.votes]
        assert given == [Answer.HELD, Answer.UNREACHABLE, *[Answer.HELD] * 3]
    restart(masters[1:2])
    await asyncio.sleep(2)


async def test_a_wait_that_ends_as_the_manager_is_closed_blames_nobody(redlock: Redlock) -> None:
    lease = await redlock.lock("r").acquire()
    waits = [asyncio.create_task(redlock.lock("r", wait=300).acquire()) for _ in range(3)]
    await asyncio.sleep(0.299_995)  # less than the shortest pause is left
    await redlock.aclose()
    for error in await asyncio.gather(*waits, return_exceptions=True):
        assert isinstance(error, RedlockError)
        assert error.code == "redlock-closed"
    assert lease.lost.is_set()


@pytest.mark.parametrize("wait", [1, 3, 10, 50, 100, timedelta(seconds=1), 10_000])
@pytest.mark.parametrize("own", [False, True])
async def test_a_wait_ends_in_time(
    redlock: Redlock, other: Redlock, own: bool, wait: int | timedelta
) -> None:
    ms = wait if isinstance(wait, int) else 1000
    async with (redlock if own else other).lock("r") as lease:
        waits = [refused_after(redlock, wait, **given) for given in ({}, {}, {"retry": NEVER})]
        for error, took in await asyncio.gather(*waits):
            assert fingerprint(error) == lease.fingerprint
            assert error.elapsed == took
            # If a tenth of the wait is shorter than two rounds, it ends with the replies.
            assert ms <= took <= ms + (2 if ms < 20 else 1)


@pytest.mark.parametrize("fault", [hang, kill])
@pytest.mark.parametrize("wait", [1, 100, 1_000])
async def test_a_wait_without_a_majority_ends_in_time(
    redlock: Redlock, masters: list[FakeMaster], wait: int, fault: Any
) -> None:
    fault(masters[:3])
    error, took = await refused_after(redlock, wait)
    assert type(error) is QuorumUnavailableError
    assert wait <= took <= max(wait, 50) + 1
    assert error.attempts == 1 or wait == 1  # no majority could answer another one
    resume(masters)
    await asyncio.sleep(2)


@pytest.mark.parametrize("wait", [1, 30, 300])
async def test_a_wait_may_be_shorter_than_the_master_timeout(
    masters: list[FakeMaster], wait: int
) -> None:
    async with Redlock(masters, master_timeout=5_000) as redlock:
        hang(masters[:3])
        waits = [refused_after(redlock, wait, **given) for given in ({}, {}, {"fair": True})]
        for error, took in await asyncio.gather(*waits):
            assert type(error) is QuorumUnavailableError
            assert wait <= took <= wait + 51
        resume(masters)
        await asyncio.sleep(2)


@pytest.mark.parametrize("fixed", [None, 2_000])
@pytest.mark.parametrize(
    ("options", "most"),
    [
        ({}, 1), ({"fencing": True}, 2), ({"fair": True}, 2), ({"shared": True}, 2),
        ({"permits": 2}, 2),
    ],
)  # fmt: skip
async def test_one_attempt_gets_all_of_the_master_timeout(
    masters: list[FakeMaster], fixed: int | None, options: dict[str, Any], most: int
) -> None:
    """It is no short wait: who asks once wants to know."""
    async with Redlock(masters, master_timeout=fixed) as redlock:
        await redlock.check()
        hang(masters[:3])
        error, took = await refused_after(redlock, 0, **options)
        assert type(error) is QuorumUnavailableError
        assert took == pytest.approx(most * redlock.master_timeout, abs=3)
        resume(masters)
        await asyncio.sleep(2)


async def test_the_first_connections_are_part_of_the_wait(masters: list[FakeMaster]) -> None:
    hang(masters[:3])
    redlock = Redlock(masters)
    error, took = await refused_after(redlock, 200)
    assert type(error) is QuorumUnavailableError
    assert "connecting" in str(error)
    assert took == pytest.approx(200, rel=0.1)
    await redlock.aclose()


@pytest.mark.parametrize("stalls_at", [65, 70])
@KIND
async def test_masters_may_answer_though_connecting_took_the_whole_wait(
    stalls_at: int, kind: Kind
) -> None:
    """The loop stands still while they connect; they are up after that, and none is slow."""
    masters = [FakeMaster(latency=0.02) for _ in range(3)]
    async with Redlock(masters) as other, other.lock("r", ttl=60_000, auto_extend=False) as lease:
        redlock = Redlock(masters)
        loop().call_later(stalls_at / 1000, loop().stall, 0.3)
        error, took = await refused_after(redlock, 100, **kind)
        assert fingerprint(error) == lease.fingerprint
        # A fenced or fair lock asks for the masters' time before; each question has 50 ms.
        assert took <= 300 + stalls_at + 100
        await redlock.aclose()


@pytest.mark.promise("S9")
@pytest.mark.parametrize("before", [3, 20, 45, 60])
@pytest.mark.parametrize("own", [False, True])
async def test_a_release_just_before_the_end_of_a_wait_is_not_missed(
    redlock: Redlock, other: Redlock, own: bool, before: int
) -> None:
    lease = await (redlock if own else other).lock("r").acquire()
    waiter = asyncio.create_task(redlock.lock("r", wait=1_000, retry=NEVER).acquire())
    await asyncio.sleep(1 - before / 1000)
    await lease.release()
    await (await waiter).release()


async def test_a_turn_that_comes_during_the_last_attempt_is_used(
    redlock: Redlock, masters: list[FakeMaster]
) -> None:
    """The attempt arrives before the release on three masters, after it on two."""
    slow(masters[:3], 0.01)
    lease = await redlock.lock("r").acquire()
    waiter = asyncio.create_task(redlock.lock("r", wait=1_000, retry=NEVER).acquire())
    await asyncio.sleep(0.9505)
    await lease.release()
    won = await waiter
    assert won.valid
    assert not kit.session(redlock).local_queues.of(redlock.lock("r")._spec.key).contending
    await won.release()


async def test_a_wait_behind_an_attempt_that_has_just_failed_names_the_holder() -> None:
    """The masters name it in their replies to the release of that attempt, which are underway."""
    masters = [FakeMaster(latency=0.02) for _ in range(3)]
    async with Redlock(masters) as redlock, Redlock(masters) as other, other.lock("r") as lease:
        await redlock.check()
        first = asyncio.create_task(refused_after(redlock, 500))
        await asyncio.sleep(0.025)
        error, took = await refused_after(redlock, 10)
        assert fingerprint(error) == lease.fingerprint
        assert took <= 10 + 22
        await first


@pytest.mark.parametrize("left", [5, 60])
async def test_an_attempt_in_a_turn_that_comes_late_blames_no_master(left: int) -> None:
    """They may take 200 ms for an answer, and take 80 ms."""
    masters = [FakeMaster(latency=0.08) for _ in range(3)]
    async with Redlock(masters, master_timeout=200) as redlock:
        lease = await redlock.lock("r").acquire()
        waiter = asyncio.create_task(refused_after(redlock, 2_000, retry=NEVER))
        await asyncio.sleep(2 - left / 1000)
        await lease.release()
        error, _ = await waiter
        assert {vote.detail for vote in error.votes} == {CUT_SHORT.detail}


@pytest.mark.parametrize(("less", "detail"), [(0.5, ""), (2, CUT_SHORT.detail)])
async def test_a_master_that_had_its_time_has_timed_out(
    redlock: Redlock, masters: list[FakeMaster], less: float, detail: str
) -> None:
    """Computing the limit takes some of it, which is no reason."""
    await redlock.check()
    hang(masters)
    asked = kit.session(redlock).masters
    question = Query(asked, commands.PING)
    await asked.ask(question, asked.master_timeout - less)
    assert {vote.detail for vote in question.votes()} == {detail}
    resume(masters)
    await asyncio.sleep(2)


async def test_a_master_that_is_too_slow_for_its_timeout_is_told_as_such() -> None:
    """Also if the wait leaves less time than that."""
    masters = [FakeMaster(latency=0.08) for _ in range(3)]
    async with Redlock(masters, master_timeout=30) as redlock:
        asked = kit.session(redlock).masters
        await asked.ask(Query(asked, commands.PING))
        await asyncio.sleep(1)
        question = Query(asked, commands.PING)
        await asked.ask(question, asked.master_timeout - 2)
        details = {vote.detail for vote in question.votes()}
        assert details == {"its answers take 80 ms, master_timeout is 30 ms"}


@pytest.mark.parametrize("fair", [False, True])
@pytest.mark.parametrize("behind", ["task", "process", "outage", "refusals"])
async def test_a_wait_that_is_over_leaves_no_timer(
    redlock: Redlock, there: Redlock, masters: list[FakeMaster], behind: str, fair: bool
) -> None:
    """It would stay in memory to the end of the wait."""
    await redlock.check()
    lease = None
    if behind == "outage":
        hang(masters[:3])
    elif behind == "refusals":
        fail(masters[:3])
    else:
        lease = await (redlock if behind == "task" else there).lock("r").acquire()
    waits = [kit.acquired_at(redlock, wait=3_600_000, fair=fair) for _ in range(3)]
    waiting = asyncio.gather(*waits)
    await asyncio.sleep(2)
    resume(masters)
    fail(masters, "")
    if lease is not None:
        await lease.release()
    await waiting
    timers = [timer for timer in loop()._scheduled if not timer.cancelled()]  # type: ignore[attr-defined]
    assert max(timer.when() for timer in timers) < now() + 60


async def test_waiters_that_gave_up_leave_no_turn_behind(redlock: Redlock, other: Redlock) -> None:
    async with other.lock("r"):
        await asyncio.gather(*(refused_after(redlock, 100) for _ in range(3)))
    async with redlock.lock("r", wait=100):
        pass
    assert kit.session(redlock).local_queues.of(redlock.lock("r")._spec.key).idle


@pytest.mark.spread(1)
@KIND
@pytest.mark.parametrize("wait", [1, 2, 5, 10, 30, 100])
@pytest.mark.parametrize("latency", [0.001, 0.005, 0.02, 0.045])
async def test_a_short_wait_is_enough_to_know_the_state(
    latency: float, wait: int, kind: Kind
) -> None:
    """A free lock is acquired, and a held one is not reported as an outage."""
    masters = [FakeMaster(latency=latency) for _ in range(3)]
    async with Redlock(masters) as redlock, Redlock(masters) as other:
        # The first fenced or fair lock asks for the masters' time before, with a wait of its own.
        async with redlock.lock("free", wait=wait, **kind) as lease:
            assert lease.valid
        for holder in (redlock, other):
            async with holder.lock("r", **kind) as lease:
                waits = [refused_after(redlock, wait, **kind) for _ in range(9)]
                for error, _ in await asyncio.gather(*waits):
                    assert fingerprint(error) == lease.fingerprint


async def test_an_attempt_that_is_cut_short_does_not_hide_the_holder() -> None:
    masters = [FakeMaster(latency=0.02) for _ in range(3)]
    async with Redlock(masters) as redlock, Redlock(masters) as other:
        first = await other.lock("r").acquire()
        waiter = asyncio.create_task(refused_after(redlock, 100, retry=NEVER))
        await asyncio.sleep(0.07)
        occupy(masters)  # the push arrives at 0.08, and a reply would arrive at 0.1
        error, took = await waiter
        assert fingerprint(error)
        assert 100 <= took <= 102
        assert error.attempts == 2
    del first


@pytest.mark.promise("S6")
async def test_a_hung_minority_does_not_delay_a_refusal(
    redlock: Redlock, other: Redlock, masters: list[FakeMaster]
) -> None:
    async with other.lock("r") as lease:
        hang(masters[:2])
        error, took = await refused_after(redlock, 0)
        assert fingerprint(error) == lease.fingerprint
        assert took <= 5
        resume(masters)
        await asyncio.sleep(1)


# The budget alone, with a clock that the tests set.


class Clock:
    """A clock that stands still until it is set."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.mark.parametrize(
    ("wait", "passed", "left", "last_attempt", "limit", "is_over"),
    [
        (None, 1e9, math.inf, math.inf, None, False),
        (1000, 0, 1000, 950, 1000, False),  # the last attempt is early enough for its replies
        (1000, 0.25, 750, 700, 750, False),
        (1000, 0.95, 50, None, 50, False),
        (1000, 1, 0, None, 1, True),  # an attempt gets at least 1 ms
        (1000, 2, -1000, None, 1, True),
        (
            100,
            0,
            100,
            90,
            100,
            False,
        ),  # the last attempt begins at most a tenth of the wait before its end
        (10, 0.009995, 0.005, None, 1, True),  # a rounding error counts as nothing left
        (0, 0, 0, None, None, True),  # one attempt without a limit of its own
    ],
)
def test_the_budget_is_the_remaining_time_of_a_wait(
    wait: int | None,
    passed: float,
    left: float,
    last_attempt: float | None,
    limit: float | None,
    is_over: bool,
) -> None:
    clock = Clock()
    budget = WaitBudget(clock, wait, clock())
    clock.now += passed
    assert budget.left() == pytest.approx(left)
    assert budget.until_last_attempt(50) == (last_attempt and pytest.approx(last_attempt))
    assert budget.attempt_limit() == (limit and pytest.approx(limit))
    assert budget.is_over is is_over
    assert repr(WaitBudget(clock, 100, clock() - 0.2)) == "<WaitBudget 100 ms, -100 left>"
