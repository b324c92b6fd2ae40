"""What a listener is told, in virtual time: each thing once, in order, to the millisecond."""

import asyncio
import contextlib
import gc
import itertools
import logging
from collections.abc import AsyncIterator
from typing import Any

import pytest

from redlock_aio import (
    Lease,
    Lock,
    LockLostError,
    LockNotAcquiredError,
    LockNotHeldError,
    QuorumUnavailableError,
    Redlock,
    RedlockError,
    Retry,
)
from redlock_aio._engine.hold.held_lease import KEY_GONE
from redlock_aio._engine.hold.watchdog import CLOSED
from redlock_aio.events import (
    Acquired,
    Extended,
    Lost,
    MasterBack,
    MasterLost,
    Missed,
    Released,
    Waiting,
)
from redlock_aio.testing import FakeMaster, cancelled_at

from .cancelling import USES, Use
from .diary import Diary
from .kit import delete, hang, in_coroutine, loop, now, occupy, settle

EXPIRED = "it was not extended before its validity was over"


@pytest.fixture
async def redlock(masters: list[FakeMaster], diary: Diary) -> AsyncIterator[Redlock]:
    """A manager that is listened to."""
    async with Redlock(masters, restart_guard="off", listener=diary) as redlock:
        yield redlock
    assert redlock._opener.emitter is not None
    assert redlock._opener.emitter.is_idle


# One lease.


@pytest.mark.parametrize("fair", [False, True])
@pytest.mark.parametrize("fencing", [False, True])
async def test_a_block_is_acquired_and_released(
    redlock: Redlock, diary: Diary, *, fair: bool, fencing: bool
) -> None:
    async with redlock.lock("first", fair=fair, fencing=fencing):
        pass  # once in half a minute the masters are asked for the time
    diary.events.clear()
    diary.times.clear()
    began = now()
    async with redlock.lock("r", fair=fair, fencing=fencing) as lease:
        assert len(diary.events) == 1, "it is told before the block is entered"
        await asyncio.sleep(0.25)
    token = lease.fencing_token if fencing else None
    assert diary.events == [
        Acquired(("r",), lease.fingerprint, 1, token),
        Released(("r",), lease.fingerprint, 250),
    ]
    # The second when the masters have said that it was there.
    assert diary.times == pytest.approx([began + 0.001, began + 0.252])


@pytest.mark.parametrize("fair", [False, True])
async def test_a_lease_is_acquired_and_released(
    redlock: Redlock, diary: Diary, *, fair: bool
) -> None:
    lock = redlock.lock("r", fair=fair)
    for obtain in (lock.acquire, lock.try_acquire):
        diary.events.clear()
        lease = await obtain()
        assert lease is not None
        await asyncio.sleep(0.1)
        await lease.release()
        assert diary.events[1:] == [Released(("r",), lease.fingerprint, 100)]
        assert isinstance(diary.events[0], Acquired)
        assert diary.events[0].fingerprint == lease.fingerprint
        with pytest.raises(LockNotHeldError):
            await lease.release()
    diary.check()
    assert len(diary.events) == 2


async def test_a_block_around_a_lease_tells_its_end(redlock: Redlock, diary: Diary) -> None:
    async with await redlock.lock("r").acquire() as lease:
        await asyncio.sleep(0.1)
    assert diary.events[1:] == [Released(("r",), lease.fingerprint, 100)]


async def test_to_connect_is_part_of_the_wait(masters: list[FakeMaster], diary: Diary) -> None:
    redlock = Redlock(masters, restart_guard="off", listener=diary)
    async with redlock.lock("r"):
        assert diary.of(Acquired)[0].waited_ms == round(now() * 1000) > 2  # type: ignore[union-attr]
    await redlock.aclose()
    assert len(diary.events) == 2


async def test_a_suspended_machine_s_time_is_held_too(redlock: Redlock, diary: Diary) -> None:
    async with redlock.lock("r"):
        loop().suspend(2)
    assert diary.events[-1].held_ms == 2000  # type: ignore[union-attr]


@pytest.mark.parametrize("cause", ["body", "cancelled"])
async def test_a_holder_that_is_not_held_up_has_released_it_at_once(
    redlock: Redlock, masters: list[FakeMaster], diary: Diary, cause: str
) -> None:
    async def work() -> None:
        async with redlock.lock("r"):
            hang(masters)
            await asyncio.sleep(0.1)
            raise KeyError

    task = asyncio.create_task(work())
    await asyncio.sleep(0.05)
    if cause == "cancelled":
        task.cancel()
    await asyncio.wait([task])
    ended = now()
    assert task.cancelled() or isinstance(task.exception(), KeyError)
    assert isinstance(diary.events[-1], Released)
    assert diary.times[-1] == ended
    await settle(masters)
    diary.check()


async def test_a_release_that_is_cancelled_is_told_once(
    redlock: Redlock, masters: list[FakeMaster], diary: Diary
) -> None:
    lease = await redlock.lock("r").acquire()
    delete(masters[:3])
    releasing = asyncio.create_task(lease.release())
    await asyncio.sleep(0)
    releasing.cancel()
    await asyncio.wait([releasing])
    assert diary.events[1:] == [Released(("r",), lease.fingerprint, 0)]
    with pytest.raises(LockNotHeldError, match="no longer has its key"):
        await lease.release()
    assert len(diary.events) == 2


async def test_a_second_release_tells_nothing_before_the_first_has_its_answers(
    redlock: Redlock, masters: list[FakeMaster], diary: Diary
) -> None:
    lease = await redlock.lock("r").acquire()
    delete(masters[:3])
    releasing = asyncio.create_task(lease.release())
    await asyncio.sleep(0)
    with pytest.raises(LockNotHeldError, match="released before"):
        await lease.release()
    async with contextlib.AsyncExitStack() as stack:
        stack.push_async_exit(lease)
    assert len(diary.events) == 1
    with pytest.raises(LockNotHeldError, match="no longer has its key"):
        await releasing
    assert diary.events[1:] == [Lost(("r",), lease.fingerprint, KEY_GONE, 0)]


# Extensions.


async def test_an_extension_tells_what_was_left_without_it(redlock: Redlock, diary: Diary) -> None:
    async with redlock.lock("r", ttl=1000) as lease:  # believed for 988 ms from the question
        await asyncio.sleep(0.1)
        await lease.extend(5000)
        assert diary.events[1:] == [Extended(("r",), lease.fingerprint, 5000, 988 - 102)]
        assert diary.times[1] == now()
    diary.check()


async def test_the_watchdog_s_extensions_are_told(redlock: Redlock, diary: Diary) -> None:
    async with redlock.lock("r", ttl=300) as lease:
        deadline = lease._hold.deadline
        for number in range(1, 20):
            while len(diary.events) == number:  # noqa: ASYNC110 - its times are random
                await asyncio.sleep(0.01)
            left = int((deadline - diary.times[-1]) * 1000)
            assert diary.events[-1] == Extended(("r",), lease.fingerprint, 300, left)
            assert 190 < left < 210
            deadline = lease._hold.deadline
    diary.check()


async def test_only_an_extension_that_holds_is_told(
    redlock: Redlock, masters: list[FakeMaster], diary: Diary
) -> None:
    lease = await redlock.lock("r", ttl=1000).acquire()
    # The shorter one comes later, and is what the masters obey in the end.
    await asyncio.gather(lease.extend(5000), lease.extend(500))
    assert [(e.ttl, e.margin_ms) for e in diary.of(Extended)] == [(500, 492)]  # type: ignore[union-attr]
    hang(masters[:3])
    with pytest.raises(LockLostError):
        await lease.extend()
    await settle(masters)
    assert len(diary.of(Extended)) == 1
    diary.check()


# Losses.


async def stalled(_redlock: Redlock, _masters: list[FakeMaster], _lease: Lease) -> None:
    loop().stall(2)


async def unreachable(_redlock: Redlock, masters: list[FakeMaster], _lease: Lease) -> None:
    hang(masters[:3])
    await asyncio.sleep(2)


async def deleted(_redlock: Redlock, masters: list[FakeMaster], _lease: Lease) -> None:
    await asyncio.sleep(0.15)  # by now the masters tell
    delete(masters[:3])
    await asyncio.sleep(0.01)


async def refused(_redlock: Redlock, masters: list[FakeMaster], lease: Lease) -> None:
    delete(masters[:3])
    with pytest.raises(LockLostError):
        await lease.extend()


async def noticed(_redlock: Redlock, _masters: list[FakeMaster], lease: Lease) -> None:
    loop().stall(2)
    with pytest.raises(LockLostError):
        lease.ensure_valid()


async def closed(redlock: Redlock, _masters: list[FakeMaster], _lease: Lease) -> None:
    await redlock.aclose()


async def found_gone(_redlock: Redlock, masters: list[FakeMaster], _lease: Lease) -> None:
    delete(masters[:3])


LOSSES: dict[Any, tuple[str, float]] = {
    stalled: (f"{EXPIRED}: the event loop did not run for 1.9 s", 2000),
    unreachable: (EXPIRED, 984),
    deleted: (KEY_GONE, 151.5),
    refused: (KEY_GONE, 1),
    noticed: (f"{EXPIRED}: the event loop did not run for 1.9 s", 2000),
    closed: (CLOSED, 0),
    found_gone: (KEY_GONE, 0),
}


@pytest.mark.parametrize("lose", LOSSES)
@pytest.mark.parametrize("by", ["block", "release"])
async def test_a_lease_that_is_lost_is_told_lost_and_not_released(
    redlock: Redlock, masters: list[FakeMaster], diary: Diary, lose: Any, by: str
) -> None:
    lock = redlock.lock("r", ttl=1000)
    if by == "block":
        with pytest.raises(LockLostError):
            async with lock as lease:
                await lose(redlock, masters, lease)
    else:
        lease = await lock.acquire()
        await lose(redlock, masters, lease)
        with pytest.raises(LockNotHeldError):
            await lease.release()
    reason, held = LOSSES[lose]
    (lost,) = diary.of(Lost)  # by the time that the holder hears of it
    assert isinstance(lost, Lost)
    assert lost == Lost(("r",), lease.fingerprint, reason, lost.held_ms)
    assert lost.held_ms == pytest.approx(held, abs=0.5)
    with contextlib.suppress(LockNotHeldError):
        await lease.release()
    await settle(masters)
    diary.check()
    assert not diary.of(Released)


async def test_a_lease_that_max_hold_ends_is_lost(redlock: Redlock, diary: Diary) -> None:
    with pytest.raises(LockLostError):
        async with redlock.lock("r", ttl=1000, max_hold=500):
            await asyncio.sleep(1)
    assert diary.of(Lost) == [
        Lost(("r",), diary.events[0].fingerprint, "it was held for as long as max_hold allows", 497)  # type: ignore[union-attr]
    ]


async def test_a_lease_that_is_dropped_is_lost_in_the_end(redlock: Redlock, diary: Diary) -> None:
    with pytest.warns(ResourceWarning):
        await redlock.lock("r", ttl=1000).acquire()
        gc.collect()
    assert len(diary.events) == 1
    await asyncio.sleep(1)
    diary.check()
    assert isinstance(diary.events[1], Lost)


# Waiting, and waiting in vain.


@pytest.mark.parametrize("fair", [False, True])
async def test_who_waits_for_another_program_is_told_once(
    redlock: Redlock, other: Redlock, diary: Diary, *, fair: bool
) -> None:
    async with other.lock("r", fair=fair):
        began = now()
        waiter = asyncio.create_task(redlock.lock("r", fair=fair, ttl=1000).acquire())
        await asyncio.sleep(3)  # several attempts
        assert diary.events == [Waiting(("r",))]
        # A first question is for the time, if it is fair.
        assert diary.times[0] == pytest.approx(began + (0.002 if fair else 0.001))
    lease = await waiter
    waited = round((now() - began) * 1000)
    assert diary.events[1:] == [Acquired(("r",), lease.fingerprint, waited, None)]
    assert waited >= 3001
    await lease.release()
    diary.check()


async def test_who_stands_behind_its_own_is_told_at_once_and_once(
    redlock: Redlock, masters: list[FakeMaster], diary: Diary
) -> None:
    first = await redlock.lock("r", ttl=1000).acquire()
    began = now()
    waiter = asyncio.create_task(redlock.lock("r").acquire())
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert diary.events[1:] == [Waiting(("r",))]
    occupy(masters[:3])  # so that it waits again when its turn comes
    with pytest.raises(LockNotHeldError):
        await first.release()
    await asyncio.sleep(1)
    delete(masters[:3])
    await (await waiter).release()
    waited = diary.of(Acquired)[1].waited_ms  # type: ignore[union-attr]
    assert waited >= 1000
    assert waited == pytest.approx((now() - began - 0.001) * 1000, abs=1)
    assert len(diary.of(Waiting)) == 1
    diary.check()


@pytest.mark.parametrize("fair", [False, True])
async def test_who_does_not_wait_is_told_the_error_that_is_raised(
    redlock: Redlock, other: Redlock, diary: Diary, *, fair: bool
) -> None:
    async with other.lock("r"):
        for wait in (0, 300):
            diary.events.clear()
            began = now()
            with pytest.raises(LockNotAcquiredError) as caught:
                await redlock.lock("r", wait=wait, fair=fair).acquire()
            waited = round((now() - began) * 1000)
            *waiting, missed = diary.events
            assert missed == Missed(("r",), waited, caught.value)
            assert caught.value.elapsed == waited
            assert waiting == [Waiting(("r",))] * (wait > 0)


async def test_who_has_no_time_to_wait_for_a_second_attempt_has_not_waited(
    redlock: Redlock, other: Redlock, diary: Diary
) -> None:
    async with other.lock("r"):
        with pytest.raises(LockNotAcquiredError):
            await redlock.lock("r", retry=Retry(attempts=1)).acquire()
    assert [type(event) for event in diary.events] == [Missed]


@pytest.mark.parametrize("fair", [False, True])
async def test_one_attempt_that_returns_nothing_is_told_with_the_reason(
    redlock: Redlock, other: Redlock, masters: list[FakeMaster], diary: Diary, *, fair: bool
) -> None:
    lock = redlock.lock("r", fair=fair)
    async with other.lock("r") as lease:
        began = now()
        assert await lock.try_acquire() is None
        (missed,) = diary.events
        assert isinstance(missed, Missed)
        assert missed.waited_ms == round((now() - began) * 1000)
        assert type(missed.error) is LockNotAcquiredError
        assert (missed.error.attempts, missed.error.resources) == (1, ("r",))
        assert [str(vote)[:19] for vote in missed.error.votes[:3]] == [
            f"m{i}: held by another" for i in range(3)
        ]
        if fair:
            assert missed.error.holder is not None
            assert missed.error.holder.fingerprint == lease.fingerprint
    diary.events.clear()
    hang(masters[:3])
    began = now()
    assert await lock.try_acquire() is None
    (missed,) = diary.events
    assert isinstance(missed, Missed)
    assert type(missed.error) is QuorumUnavailableError
    assert missed.waited_ms == round((now() - began) * 1000) >= 50
    await settle(masters)


@pytest.mark.parametrize("fair", [False, True])
async def test_what_ends_otherwise_is_not_told(
    redlock: Redlock, other: Redlock, diary: Diary, *, fair: bool
) -> None:
    async with other.lock("r"):
        lock = redlock.lock("r", fair=fair)
        cancelled, ended = (asyncio.create_task(lock.acquire()) for _ in range(2))
        await asyncio.sleep(0.1)
        cancelled.cancel()
        await asyncio.sleep(0.1)
        await redlock.aclose()
        with pytest.raises(RedlockError, match="closed"):
            await ended
        assert diary.events == [Waiting(("r",))] * 2
        for use in (lock.acquire, lock.try_acquire, lock.__aenter__):
            with pytest.raises(RedlockError, match="closed"):
                await use()
        assert len(diary.events) == 2


@pytest.mark.parametrize("when", ["waiting", "answered"])
@pytest.mark.parametrize("use", USES)
async def test_wherever_it_is_cancelled_each_lease_has_one_end(
    redlock: Redlock, masters: list[FakeMaster], diary: Diary, use: Use, when: Any
) -> None:
    for place in itertools.count(1):
        occupy(masters, "theirs", ttl=1)
        diary.events.clear()
        task = asyncio.create_task(in_coroutine(cancelled_at(place, use(redlock), when=when)))
        await asyncio.wait([task])
        await asyncio.sleep(2)
        diary.check()
        assert not diary.of(Missed)
        assert len(diary.leases()) <= 1
        assert len(diary.of(Waiting)) <= 1
        if not task.cancelled():
            assert len(diary.leases()) == 1
            return


async def test_each_of_many_tasks_with_one_lock_is_told_apart(
    redlock: Redlock, other: Redlock, diary: Diary
) -> None:
    lock = redlock.lock("r", ttl=1000)

    async def work(lock: Lock) -> None:
        for _ in range(5):
            async with lock:
                await asyncio.sleep(0.01)

    rivals = [work(other.lock("r", ttl=1000)) for _ in range(3)]
    await asyncio.gather(*(work(lock) for _ in range(8)), *rivals)
    diary.check()
    assert len(diary.leases()) == 40
    assert 1 <= len(diary.of(Waiting)) <= 40
    ends = [event for event in diary.events if not isinstance(event, Waiting)]
    assert [type(event) for event in ends] == [Acquired, Released] * 40


# Masters.


async def test_a_master_is_told_lost_and_back(
    redlock: Redlock, masters: list[FakeMaster], diary: Diary
) -> None:
    await asyncio.sleep(1)
    assert repr(redlock) == "<Redlock 5 masters, 5 up, 0 leases>"
    assert not diary.events
    masters[1].kill()
    await asyncio.sleep(60)
    assert diary.events == [MasterLost("m1", "unreachable, connection reset by peer")]
    masters[1].restart()
    await asyncio.sleep(60)
    assert diary.events[1:] == [MasterBack("m1")]
    masters[1].kill()
    await asyncio.sleep(60)
    assert diary.events[2:] == diary.events[:1]


async def test_a_master_in_quarantine_is_not_back(
    masters: list[FakeMaster], diary: Diary, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "redlock_aio")
    async with Redlock(masters, max_ttl=10_000, listener=diary):
        masters[1].restart()
        await asyncio.sleep(60)
    assert diary.events == [
        MasterLost("m1", "unreachable, connection reset by peer"),
        MasterLost(
            "m1",
            "quarantined, it restarted 0 s ago and may have forgotten locks; it votes again in"
            " 12 s",
        ),
        MasterBack("m1"),
    ]
    assert diary.times[2] - diary.times[1] == pytest.approx(11.1, abs=0.2)
    # What is logged is logged all the same.
    assert [record.getMessage() for record in caplog.records] == [
        "m1: unreachable, connection reset by peer",
        "m1: connected again",
        f"m1: {diary.events[1].reason}",  # type: ignore[union-attr]
        "m1: votes again",
    ]


async def test_a_master_that_is_away_at_first_is_told_lost(
    masters: list[FakeMaster], diary: Diary
) -> None:
    masters[0].kill()
    async with Redlock(masters, restart_guard="off", listener=diary) as redlock:
        assert diary.events == [MasterLost("m0", "unreachable, connection refused")]
        await redlock.aclose()
        await asyncio.sleep(1)
        assert len(diary.events) == 1, "who is left by us is not lost"
        masters[0].restart()
        await redlock.__aenter__()
        assert diary.events[1:] == [MasterBack("m0")]


async def test_a_caution_is_no_loss(
    masters: list[FakeMaster], diary: Diary, caplog: pytest.LogCaptureFixture
) -> None:
    async with Redlock(masters[:1], restart_guard="fsync-always", listener=diary):
        await asyncio.sleep(1)
    assert "it keeps nothing" in caplog.text
    assert not diary.events


async def test_an_error_is_another_kind_of_reason(
    redlock: Redlock, masters: list[FakeMaster], diary: Diary
) -> None:
    masters[2].role = "slave"
    masters[2].cut()
    await asyncio.sleep(60)
    assert repr(redlock) == "<Redlock 5 masters, 4 up, 0 leases>"
    assert diary.events == [
        MasterLost("m2", "unreachable, connection reset by peer"),
        MasterLost("m2", "error, not a master but a slave"),
    ]


# All together.


async def test_all_is_told_in_the_order_in_which_it_happened(
    redlock: Redlock, diary: Diary
) -> None:
    first = await redlock.lock("first", ttl=100, auto_extend=False).acquire()
    second = await redlock.lock("second").acquire()
    loop().stall(1)
    with pytest.raises(LockLostError):
        first.ensure_valid()  # is told in the next turn of the loop, unless
    await second.__aexit__(KeyError, KeyError(), None)
    assert [type(event) for event in diary.events] == [Acquired, Acquired, Lost, Released]


async def test_with_one_they_look_the_same(redlock: Redlock) -> None:
    lock = redlock.lock("r", ttl=1000)
    assert isinstance(lock, Lock)
    assert repr(lock) == "<Lock 'r', ttl 1000 ms>"
    async with lock as lease:
        assert repr(lease).startswith("<Lease 'r', ")
        assert repr(redlock._opener.session().watchdog) == "<Watchdog of 1 leases>"
        assert repr(redlock._opener.emitter) == "<Emitter, 0 events underway>"


# A lease that goes from one process to another.


async def test_a_lease_that_is_handed_over_is_released_here_and_acquired_there(
    redlock: Redlock, diary: Diary, masters: list[FakeMaster]
) -> None:
    there = Diary()
    async with Redlock(masters, restart_guard="off", listener=there) as adopter:
        async with redlock.lock("r", fencing=True) as lease:
            await asyncio.sleep(0.5)
            exported = lease.export()
        await asyncio.sleep(0)
        assert diary.events[-1] == Released(("r",), lease.fingerprint, 500)
        adopted = await adopter.adopt(exported)
        await asyncio.sleep(0)
        said = Acquired(("r",), adopted.fingerprint, 1, adopted.fencing_token)
        assert there.events == [said]
        await asyncio.sleep(0.25)
        await adopted.release()
        assert there.events[-1] == Released(("r",), adopted.fingerprint, 250)
    assert sum(isinstance(event, Released | Lost) for event in diary.events) == 1
