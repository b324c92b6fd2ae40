"""Waiting: wake-ups by masters, turns within the process, and holders that lose their key."""

import asyncio
import gc
import itertools
import random
from contextlib import suppress
from typing import Any

import pytest

from redlock_aio import (
    Lease,
    LockLostError,
    LockNotAcquiredError,
    QuorumUnavailableError,
    Redlock,
    RedlockError,
    Retry,
)
from redlock_aio._engine.claim import Claim
from redlock_aio._engine.hold.watchdog import CHECK_AFTER
from redlock_aio._engine.wait.local_queue import (
    ALONE,
    IDLE_QUEUES,
    LONGEST_TENURE,
    LocalQueue,
)
from redlock_aio._engine.wait.wakeup import WaitBudget, hold_back
from redlock_aio._protocol.primitives import Mutex
from redlock_aio._protocol.scripts import LOOK
from redlock_aio._rules.retry import LONGEST_SPREAD
from redlock_aio.testing import FakeMaster
from redlock_aio.testing._fake_pushes import Pushes

from . import kit
from .diary import Diary
from .kit import (
    LATENCY,
    NEVER,
    acquired_at,
    delete,
    fail,
    hang,
    kill,
    now,
    occupy,
    ran,
    refused,
    resume,
)


def queue(redlock: Redlock) -> LocalQueue:
    """Return the local queue of `r`."""
    return kit.session(redlock).local_queues.of(Mutex(b"r"))


# Wake-ups by masters


@pytest.mark.promise("S9")
async def test_a_release_wakes_a_waiter_of_another_program(
    redlock: Redlock, other: Redlock
) -> None:
    lease = await other.lock("r").acquire()
    waiter = asyncio.create_task(acquired_at(redlock))
    await asyncio.sleep(1)
    released = now()
    await lease.release()
    # Half a latency for the release, half for the push, one for the attempt.
    assert await waiter - released == pytest.approx(2 * LATENCY)


@pytest.mark.promise("S9")
@pytest.mark.parametrize("how", ["delete", "flush", "restart", "cut", "expiry"])
async def test_a_waiter_is_woken_however_a_majority_loses_the_key(
    redlock: Redlock, masters: list[FakeMaster], how: str
) -> None:
    occupy(masters)
    waiter = asyncio.create_task(acquired_at(redlock))
    await asyncio.sleep(1)
    delete(masters[:2])
    await asyncio.sleep(1)
    assert not waiter.done()  # the loss on a minority is not enough
    gone = now()
    if how == "cut":  # the key is deleted while there is no connection for the push
        masters[2].cut()
        masters[2].delete("r")
    elif how == "delete":
        masters[2].delete("r")
    elif how == "expiry":
        gone += 0.5
        occupy(masters[2:], ttl=500)
    else:
        getattr(masters[2], how)()
    assert gone < await waiter < gone + (0.1 if how in {"restart", "cut"} else 0.01)


async def test_a_master_that_comes_back_wakes_waiters_without_a_majority(
    redlock: Redlock, masters: list[FakeMaster]
) -> None:
    kill(masters[:3])
    waiter = asyncio.create_task(acquired_at(redlock))
    await asyncio.sleep(5)
    assert not waiter.done()
    masters[0].restart()
    back = now()
    assert await waiter - back < 0.6  # the delay between two dials


async def test_a_late_reply_still_gives_the_remaining_time_of_the_key(
    masters: list[FakeMaster],
) -> None:
    async with Redlock(masters, master_timeout=50) as redlock:
        hang(masters[:3])
        occupy(masters[:3], ttl=400)
        waiter = asyncio.create_task(acquired_at(redlock))
        await asyncio.sleep(0.3)
        resume(masters)
        assert await waiter == pytest.approx(0.4, abs=0.05)


async def test_a_waiter_without_pushes_retries(masters: list[FakeMaster]) -> None:
    occupy(masters)
    for master in masters:
        master.forbid = {"CLIENT"}
    async with Redlock(masters) as redlock:
        retry = Retry(min_delay=20, max_delay=20)
        waiter = asyncio.create_task(acquired_at(redlock, retry=retry))
        await asyncio.sleep(1)
        delete(masters)
        deleted = now()
        assert 0 < await waiter - deleted < 0.03


# The error


async def test_the_error_names_the_holder_and_when_to_retry(
    redlock: Redlock, other: Redlock, masters: list[FakeMaster]
) -> None:
    async with other.lock("r", ttl=8_000) as lease:
        for wait in (0, 200):
            error = await refused(redlock, wait=wait)
            assert error.holder is not None
            assert error.holder.fingerprint == lease.fingerprint
            assert error.retry_after is not None
            assert 7_700 < error.retry_after <= 8_000
            assert f"held by others, now by {error.holder}" in str(error)
            assert f"({lease.fingerprint})" in str(error.holder)
            assert str(error).count("ms left") == 5
            assert lease.token not in str(error) + repr(error.__reduce__())
    for master, value in zip(masters, "ab", strict=False):
        master.set("r", value)
    masters[2].set("r", "c", ttl=500)
    error = await refused(redlock)
    assert error.holder is None
    assert error.retry_after is not None
    assert 490 <= error.retry_after <= 500
    hang(masters[2:])
    error = await refused(redlock)
    assert type(error) is QuorumUnavailableError
    assert error.holder is None
    assert error.retry_after is None


@pytest.mark.parametrize(
    ("ttls", "silent", "retry_after"),
    [
        ((None, 500, 10_000), [0], 500),
        (
            (None, 0, 10_000),
            [0],
            10_000,
        ),  # the silent master most likely has the key of the last one
        ((None, 500, 500), [0], 500),
        ((None, None, 500), [0, 1], None),
        ((None, None, 500, 700, 900), [0, 1], 500),
        ((None, 0, 0, 10_000, 10_000), [0], 10_000),
        ((0, 500, 10_000), [], 500),
        ((300, 500, 10_000), [], 500),
    ],
)
async def test_a_silent_master_does_not_lengthen_retry_after(
    ttls: tuple[int | None, ...], silent: list[int], retry_after: int | None
) -> None:
    masters = [FakeMaster() for _ in ttls]
    for number, (master, ttl) in enumerate(zip(masters, ttls, strict=True)):
        if ttl:
            master.set("r", f"theirs {number}", ttl=ttl)
    async with Redlock(masters, restart_guard="off") as redlock:
        hang(masters[number] for number in silent)
        error = await refused(redlock)
        if retry_after is None:
            assert error.retry_after is None
        else:
            assert error.retry_after is not None
            passed = 110 if silent else 10  # the attempt, and the wait for the holder's name
            assert retry_after - passed <= error.retry_after <= retry_after
        resume(masters)
        await asyncio.sleep(0.1)


async def test_a_refusal_for_another_reason_does_not_look_like_a_free_lock(
    redlock: Redlock, masters: list[FakeMaster]
) -> None:
    for master in masters:
        master.forbid = {"SET"}
    retry = Retry(min_delay=1_000, max_delay=1_000)
    error = await refused(redlock, wait=20_000, retry=retry)
    assert type(error) is QuorumUnavailableError
    assert error.attempts <= 22


async def test_a_key_that_is_no_string_leaves_no_debts(
    redlock: Redlock, masters: list[FakeMaster]
) -> None:
    for master in masters:
        master._data.zadd(b"r", 1.0, b"member")
    for _ in range(10):
        assert await redlock.lock("r").try_acquire() is None
    await asyncio.sleep(0.01)
    assert redlock.statistics().debts == 0


@pytest.mark.parametrize("listened", [False, True])
async def test_failed_attempts_are_freed_at_once(
    masters: list[FakeMaster], other: Redlock, diary: Diary, listened: bool
) -> None:
    """Also with a listener, which gets the error of each."""
    listener = diary if listened else None
    redlock = Redlock(masters, restart_guard="off", listener=listener)
    async with redlock, other.lock("r"):
        gc.collect()
        before = [thing for thing in gc.get_objects() if isinstance(thing, Claim)]
        gc.disable()
        try:
            for _ in range(10):
                assert await redlock.lock("r").try_acquire() is None
                with suppress(LockNotAcquiredError):
                    await redlock.lock("r", wait=30).acquire()
            assert len(diary.events) >= (20 if listened else 0)
            diary.events.clear()  # each `Missed` has an error
            await asyncio.sleep(1)
            alive = [thing for thing in gc.get_objects() if isinstance(thing, Claim)]
            assert len(alive) - len(before) < 3, "but the last one, which an error keeps"
        finally:
            gc.enable()


# The jitter of attempts


@pytest.mark.parametrize("wait", [100, 107, 119])
async def test_the_jitter_does_not_use_up_the_wait(
    redlock: Redlock, other: Redlock, wait: int
) -> None:
    """Otherwise the last attempt has no time, and a held lock looks like an outage."""
    async with other.lock("r"):
        for _ in range(5):
            queue(redlock).spread = LONGEST_SPREAD
            began = now()
            error = await refused(redlock, wait=wait)
            assert type(error) is LockNotAcquiredError
            assert now() - began <= wait / 1000 + 0.002


async def test_masters_that_are_down_are_no_split_vote(
    redlock: Redlock, masters: list[FakeMaster]
) -> None:
    hang(masters[:3])
    assert type(await refused(redlock, wait=500)) is QuorumUnavailableError
    assert queue(redlock).spread == 0
    resume(masters)
    await asyncio.sleep(2)


# Turns within the process


async def test_tasks_get_the_lock_in_the_order_in_which_they_came(redlock: Redlock) -> None:
    served: list[int] = []

    async def work(number: int) -> None:
        async with redlock.lock("r", ttl=1_000 + number, auto_extend=number % 2 == 0):
            served.append(number)
            await asyncio.sleep(0.01)

    await asyncio.gather(*map(work, range(20)))
    assert served == list(range(20))


@pytest.mark.parametrize("wait", [None, 60_000])
async def test_a_release_and_the_request_of_the_next_task_leave_in_one_write(
    redlock: Redlock, masters: list[FakeMaster], monkeypatch: pytest.MonkeyPatch, wait: int | None
) -> None:
    """Each write is a system call, which takes longer than all else that a lock takes."""
    writes: list[bytes] = []
    receive = FakeMaster.receive

    def record(master: FakeMaster, transport: Any, data: bytes) -> None:
        if master is masters[0]:
            writes.append(data)
        receive(master, transport, data)

    monkeypatch.setattr(FakeMaster, "receive", record)

    async def work() -> None:
        async with redlock.lock("r", wait=wait):
            await asyncio.sleep(0.001)  # no pause for other processes yet

    await asyncio.gather(*(work() for _ in range(10)))
    assert len(writes) == 11  # the first request, nine releases with the next one, the last release


async def test_a_release_waits_for_one_turn_of_the_loop_at_most(
    redlock: Redlock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Among many locks one is passed on in each turn: no batch may wait for all of them."""
    lease = await redlock.lock("r").acquire()
    next_one = asyncio.create_task(redlock.lock("r").acquire())
    await asyncio.sleep(0.1)
    masters = kit.session(redlock).masters
    sent: list[object] = []
    send_all = type(masters)._send_all

    def record(given: Any, rounds: Any) -> Any:
        sent.append(rounds)
        return send_all(given, rounds)

    monkeypatch.setattr(type(masters), "_send_all", record)
    release = asyncio.create_task(lease.release())
    for _ in range(3):
        await asyncio.sleep(0)
        masters.let_next_join()
    await asyncio.sleep(0)
    assert sent
    await release
    await (await next_one).release()


async def test_one_waiter_of_a_process_asks_the_masters(
    redlock: Redlock, other: Redlock, masters: list[FakeMaster]
) -> None:
    lease = await other.lock("r").acquire()
    waiters = [asyncio.create_task(acquired_at(redlock)) for _ in range(10)]
    await asyncio.sleep(1)
    attempts = [command[0] for command in masters[0].commands].count(b"SET")
    assert attempts == 2  # the holder's attempt, and one of the waiters
    await lease.release()
    times = await asyncio.gather(*waiters)
    assert list(times) == sorted(times)
    # One after another, one latency each: an attempt is sent right behind the release.
    assert times[-1] - times[0] == pytest.approx(9 * LATENCY, rel=0.2)


async def test_a_queue_in_which_nobody_waits_keeps_no_attempt(
    redlock: Redlock, other: Redlock
) -> None:
    async with other.lock("r"):
        tasks = [asyncio.create_task(acquired_at(redlock)) for _ in range(3)]
        await asyncio.sleep(0.1)
        waited_in = queue(redlock)
        assert waited_in.known is not None
        for task in tasks:  # the first one passes its turn on before the others have left
            task.cancel()
        await asyncio.wait(tasks)
        assert waited_in.idle
        assert waited_in.known is None


async def test_a_task_that_leaves_the_local_queue_leaves_no_gap(redlock: Redlock) -> None:
    async with redlock.lock("r") as lease:
        waits: list[int | None] = [None, 100, None, None]
        first, second, third, fourth = (
            asyncio.create_task(acquired_at(redlock, wait=wait)) for wait in waits
        )
        await asyncio.sleep(0.2)
        third.cancel()
        with pytest.raises(LockNotAcquiredError) as caught:
            await second
        assert caught.value.attempts == 0  # this process has the lock
        assert caught.value.holder is not None
        assert caught.value.holder.fingerprint == lease.fingerprint
        await asyncio.sleep(0)
        assert redlock.statistics().waiters == 2
    released = now()
    assert await first - released < 0.01
    assert await fourth - released < 0.01


@pytest.mark.parametrize("turns", range(6))
async def test_a_turn_that_comes_to_a_cancelled_task_is_passed_on(
    redlock: Redlock, turns: int
) -> None:
    lease = await redlock.lock("r").acquire()
    first = asyncio.create_task(acquired_at(redlock))
    second = asyncio.create_task(acquired_at(redlock))
    await asyncio.sleep(0.1)
    released = asyncio.create_task(lease.release())
    for _ in range(turns):
        await asyncio.sleep(0)
    first.cancel()
    assert await second - now() < 0.01
    await released
    await asyncio.wait([first])


async def test_a_single_attempt_is_made_out_of_turn(
    redlock: Redlock, masters: list[FakeMaster]
) -> None:
    occupy(masters)
    waiter = asyncio.create_task(acquired_at(redlock))
    await asyncio.sleep(0.1)
    began = now()
    assert await redlock.lock("r").try_acquire() is None
    await refused(redlock)
    assert now() - began < 0.01
    # It may even win; then the waiter that has the turn is notified of the lease's end.
    for master in masters:
        master._data.keys.clear()  # without a push
    lease = await redlock.lock("r").try_acquire()
    assert isinstance(lease, Lease)
    await asyncio.sleep(0.1)
    assert not waiter.done()
    await lease.release()
    assert now() - await waiter < 0.01


async def test_a_single_attempt_asks_for_no_reports(
    redlock: Redlock, masters: list[FakeMaster]
) -> None:
    """The masters would report the end of the lock to a program that does not wait for it."""
    occupy(masters)
    for wait in (0, 30):
        for master in masters:
            master.commands.clear()
        await refused(redlock, wait=wait)
        asked = {[b"CLIENT", b"CACHING", b"YES"] in master.commands for master in masters}
        assert asked == {wait > 0}


@pytest.mark.parametrize("own", [True, False])
async def test_a_limited_number_of_attempts_is_made_out_of_turn(
    redlock: Redlock, there: Redlock, own: bool
) -> None:
    """They are not put off, although the masters report the end of another process's lock."""
    few = Retry(min_delay=30, max_delay=30, attempts=3)
    async with (redlock if own else there).lock("r"):
        began = now()
        assert (await refused(redlock, wait=None, retry=few)).attempts == 3
        assert now() - began == pytest.approx(0.06, abs=0.01)
        waiter = asyncio.create_task(acquired_at(redlock, retry=few))
        await asyncio.sleep(0.01)
    assert await waiter - began < 0.1  # a release wakes the waiter, also one in the same process


@pytest.mark.parametrize(
    ("silent", "attempts"), [(0, range(10, 21)), (2, range(10, 21)), (3, range(70, 130))]
)
async def test_a_waiter_asks_once_a_second_if_a_majority_reports_the_end(
    redlock: Redlock, masters: list[FakeMaster], silent: int, attempts: range
) -> None:
    """Otherwise as often as `Retry` says: no report would wake it."""
    for master in masters[:silent]:
        master.forbid = {"CLIENT"}
        master.cut()  # the next connection asks for reports, and is refused
    await asyncio.sleep(1)
    occupy(masters)
    waiter = asyncio.create_task(acquired_at(redlock, retry=Retry()))
    await asyncio.sleep(2)
    before = sum(command[0] == b"SET" for command in masters[4].commands)
    await asyncio.sleep(10)
    assert sum(command[0] == b"SET" for command in masters[4].commands) - before in attempts
    delete(masters)
    freed = now()
    assert await waiter - freed < (0.3 if silent == 3 else 0.01)


@pytest.mark.parametrize(
    ("holders", "split"),
    [("aabb", True), ("aab", True), ("aabbc", True), ("aaab", False), ("aaa", False), ("a", False)],
)
async def test_attempts_are_spread_after_split_votes(
    redlock: Redlock, masters: list[FakeMaster], holders: str, *, split: bool
) -> None:
    """Not after votes that name one holder, nor if too few masters answer to tell."""
    for master, holder in zip(masters, holders, strict=False):
        master.set("r", holder)
    if holders == "a":
        kill(masters[1:3])
        fail(masters[3:])
    await refused(redlock, wait=300, retry=Retry())
    assert bool(queue(redlock).spread) is split


@pytest.mark.parametrize(("pause", "took"), [(0.0, 0.1), (0.05, 0.1), (0.3, 0.3)])
async def test_attempts_wait_for_the_jitter_or_for_a_longer_pause(
    redlock: Redlock, monkeypatch: pytest.MonkeyPatch, pause: float, took: float
) -> None:
    masters = kit.session(redlock).masters
    queue(redlock).spread = 0.2
    monkeypatch.setattr(random, "random", lambda: 0.5)
    began = now()
    await hold_back(masters, queue(redlock), WaitBudget(masters.clock, None, began), pause)
    assert now() - began == pytest.approx(took)


async def test_a_waiter_gets_the_lock_within_a_second_if_no_report_arrives(
    redlock: Redlock, masters: list[FakeMaster], monkeypatch: pytest.MonkeyPatch
) -> None:
    occupy(masters)
    monkeypatch.setattr(Pushes, "was_read", lambda *_: None)
    waiter = asyncio.create_task(acquired_at(redlock, retry=Retry()))
    await asyncio.sleep(5)
    delete(masters)
    freed = now()
    assert await waiter - freed < 1.01


async def test_a_waiter_is_not_late_after_a_refused_release_of_its_own_process(
    redlock: Redlock, masters: list[FakeMaster]
) -> None:
    """It is repeated each 0.2 s, and no master reports its end to the process that repeats it."""
    lease = await redlock.lock("r", ttl=30_000).acquire()
    waiter = asyncio.create_task(acquired_at(redlock, retry=Retry(min_delay=20, max_delay=20)))
    await asyncio.sleep(1)
    fail(masters, "NOREPLICAS Not enough good replicas to write")
    await lease.release()
    await asyncio.sleep(1.02)
    fail(masters, "")
    back = now()
    assert await waiter - back < 0.25


async def test_a_waiter_that_asks_once_a_second_makes_its_last_attempt_in_time(
    redlock: Redlock, masters: list[FakeMaster]
) -> None:
    occupy(masters)
    began = now()
    assert (await refused(redlock, wait=700, retry=Retry())).attempts in (2, 3)
    assert now() - began == pytest.approx(0.7, abs=0.05)


@pytest.mark.parametrize("own", [False, True])
async def test_closing_ends_all_waits(masters: list[FakeMaster], own: bool) -> None:
    redlock, lease = Redlock(masters), None
    if own:
        lease = await redlock.lock("r", on_lost="flag").acquire()
    else:
        occupy(masters)
    waiters = [
        asyncio.create_task(acquired_at(redlock, fair=number % 2 == 0)) for number in range(10)
    ]
    await asyncio.sleep(1)
    closed = now()
    await redlock.aclose()
    errors = await asyncio.gather(*waiters, return_exceptions=True)
    assert [type(error) for error in errors] == [RedlockError] * 10
    assert "closed" in str(errors[0])
    assert now() - closed < 0.01
    assert lease is None or (lease.lost.is_set() and not lease.valid)


async def test_idle_local_queues_are_dropped(redlock: Redlock) -> None:
    async with redlock.lock("kept"):
        for number in range(2 * IDLE_QUEUES + 50):
            async with redlock.lock(f"r{number}"):
                pass
        by_key = kit.session(redlock).local_queues.by_key
        assert len(by_key) <= 2 * IDLE_QUEUES
        assert b"kept" in by_key
        for number in range(10):
            async with redlock.lock(f"n{number}"):
                pass
        # What it knows of a name that was used lately, such as of other processes, stays.
        assert by_key.keys() >= {b"n%d" % number for number in range(10)}


@pytest.mark.parametrize("kind", ["fair", "fencing"])
async def test_a_task_that_awaits_the_masters_time_uses_the_queue_that_exists_afterwards(
    redlock: Redlock, kind: str
) -> None:
    task = asyncio.create_task(redlock.lock("r", fair=kind == "fair", fencing=True).acquire())
    await asyncio.sleep(0)
    for number in range(2 * IDLE_QUEUES):
        kit.session(redlock).local_queues.of(Mutex(b"%d" % number))
    lease = await task
    assert queue(redlock).holder is lease._hold
    await lease.release()


def drop_idle_queues(redlock: Redlock, *, left: int) -> None:
    """Use other names, until so many more would drop the idle queues once more."""
    queues, numbers = kit.session(redlock).local_queues, itertools.count()
    before = queues.by_key
    while queues.by_key is before or len(queues.by_key) < queues._most_queues - left:
        queues.of(Mutex(b"other %d" % next(numbers)))


async def test_a_task_without_a_turn_hears_of_the_release_whatever_names_are_used_meanwhile(
    redlock: Redlock, masters: list[FakeMaster]
) -> None:
    occupy(masters)
    lock = redlock.lock("r", retry=Retry(attempts=2, min_delay=1000, max_delay=1000))
    turn, waiting = [asyncio.create_task(lock.acquire()) for _ in range(2)]
    await asyncio.sleep(0)
    turn.cancel()
    await asyncio.wait([turn])
    drop_idle_queues(redlock, left=0)
    await asyncio.sleep(0.1)
    began = now()
    delete(masters)
    await (await waiting).release()
    assert now() - began < 0.1


# Turns between processes


@pytest.mark.parametrize("latency", [pytest.param(0.005, marks=pytest.mark.full), 0.04])
async def test_a_process_that_passes_the_lock_on_lets_others_go_first(latency: float) -> None:
    """It does so also after it was alone for long."""
    masters = [FakeMaster(latency=latency) for _ in range(3)]
    async with Redlock(masters) as redlock, Redlock(masters) as other:
        ends = now() + 400 * latency + 8
        turns = {"greedy": 0, "late": 0}

        async def work(manager: Redlock, name: str) -> None:
            while now() < ends:
                async with manager.lock("r", retry=NEVER):
                    turns[name] += 1
                    await asyncio.sleep(latency)

        tasks = [asyncio.create_task(work(redlock, "greedy")) for _ in range(3)]
        await asyncio.sleep(200 * latency + 5)
        before, came = turns["greedy"], now()
        assert await acquired_at(other) - came <= max(LONGEST_TENURE, ALONE * latency) + 5 * latency
        await asyncio.gather(work(other, "late"), *tasks)
        greedy = turns["greedy"] - before
        assert greedy > 0.1 * turns["late"]
        assert turns["late"] > 0.1 * greedy


async def test_a_pause_for_others_is_cut_so_that_an_attempt_fits_into_the_wait(
    redlock: Redlock,
) -> None:
    began = now()
    queue(redlock).open_at = began + 60
    async with redlock.lock("r", wait=1_000):
        assert began + 0.9 < now() < began + 1


# A holder is notified that its key is gone.


@pytest.mark.promise("S2")
@pytest.mark.parametrize("auto_extend", [True, False])
@pytest.mark.parametrize("how", ["delete", "overwrite", "flush"])
async def test_a_holder_is_notified_that_a_majority_lost_its_key(
    redlock: Redlock, masters: list[FakeMaster], how: str, *, auto_extend: bool
) -> None:
    gone = 0.0
    with pytest.raises(LockLostError, match="no longer has its key"):
        async with redlock.lock("r", ttl=60_000, auto_extend=auto_extend):
            await asyncio.sleep(45 if auto_extend else 1)  # extended twice meanwhile
            for master in masters[:3]:
                if how == "delete":
                    master.delete("r")
                elif how == "overwrite":
                    master.set("r", "theirs", ttl=100)
                else:
                    master.flush()
            gone = now()
            await asyncio.sleep(30)
    assert now() - gone < 0.05


async def test_a_minority_that_loses_the_key_is_no_loss(
    redlock: Redlock, masters: list[FakeMaster]
) -> None:
    async with redlock.lock("r", ttl=60_000) as lease:
        await asyncio.sleep(1)
        masters[0].delete("r")
        masters[1].set("r", "theirs", ttl=100)
        for _ in range(100):
            await asyncio.sleep(0.01)
            masters[0].set("r", "theirs")
            masters[0].delete("r")
        assert lease.valid
        assert 2 <= ran(masters[4], LOOK) <= 60  # fewer than one for each change


async def test_a_short_lease_sends_nothing_but_its_release(
    redlock: Redlock, masters: list[FakeMaster]
) -> None:
    async with redlock.lock("r", ttl=60_000):
        before = len(masters[0].commands)
        await asyncio.sleep(CHECK_AFTER / 2)
    assert [command[0] for command in masters[0].commands[before:]] == [b"DELIFEQ"]
