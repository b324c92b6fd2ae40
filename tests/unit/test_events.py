"""The events of leases, acquisitions and masters: once each, in order, with exact times."""

import asyncio
import contextlib
import gc
import itertools
import logging
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from redlock_aio import (
    Answer,
    Lease,
    Lock,
    LockLostError,
    LockNotAcquiredError,
    LockNotHeldError,
    LossCause,
    NoVoteCause,
    QuorumUnavailableError,
    Redlock,
    RedlockError,
    Retry,
    Vote,
)
from redlock_aio.events import (
    Acquired,
    Cancelled,
    Extended,
    Lost,
    MajorityBack,
    MajorityLost,
    MasterBack,
    MasterLost,
    Missed,
    Mode,
    Released,
    Waiting,
)
from redlock_aio.testing import FakeMaster, cancelled_at

from . import kit
from .cancelling import USES, Use
from .diary import Diary
from .kit import (
    KIND,
    Kind,
    delete,
    hang,
    in_coroutine,
    keys,
    kill,
    loop,
    now,
    occupy,
    restart,
    resume,
    settle,
    until,
)

STALLED = f"{LossCause.LOOP_STALLED.text}: the event loop did not run for 1.9 s"
RESET = "unreachable, connection reset by peer"
AWAY = Vote("m1", Answer.UNREACHABLE, "connection reset by peer")
FAIR = pytest.mark.parametrize("fair", [False, True])
LONG = 60
"""Seconds after which clients have connected to a master again, or noticed its restart."""


@pytest.fixture
async def redlock(masters: list[FakeMaster], diary: Diary) -> AsyncIterator[Redlock]:
    """Open a manager with a listener, and forget that all masters vote."""
    async with Redlock(masters, restart_guard="off", listener=diary) as redlock:
        assert diary.events == []  # a master that votes from the start is no news
        yield redlock
    assert redlock._opener.emitter is not None
    assert repr(redlock._opener.emitter) == "<Emitter, 0 acquiring, 0 events underway>"


def votes(**others: Vote) -> tuple[Vote, ...]:
    """Return the votes of five masters, all of which vote except *others*."""
    names = [f"m{i}" for i in range(5)]
    return tuple(others.get(name, Vote(name, Answer.GRANTED)) for name in names)


# One lease


@KIND
async def test_each_way_to_hold_emits_a_begin_and_an_end(
    redlock: Redlock, diary: Diary, kind: Kind
) -> None:
    async with redlock.lock("first", **kind):
        pass  # the masters are asked for the time here, and not again below
    lock = redlock.lock("r", **kind)
    for obtain in (None, lock.acquire, lock.try_acquire):
        diary.events.clear()
        diary.times.clear()
        began = now()
        if obtain is None:
            async with lock as lease:
                assert len(diary.events) == 1, "it is emitted before the block is entered"
                assert repr(kit.session(redlock).watchdog) == "<Watchdog of 1 leases>"
                await asyncio.sleep(0.25)
        else:
            acquired = await obtain()
            assert acquired is not None
            async with acquired as lease:
                await asyncio.sleep(0.25)
        token = lease.fencing_token if "fencing" in kind else None
        waited = round((diary.times[0] - began) * 1000, 3)
        assert diary.events == [
            Acquired(("r",), lease.fingerprint, waited, token),
            Released(("r",), lease.fingerprint, 250.0),
        ]
        if obtain is None:  # the second when a majority has confirmed the release
            assert diary.times == pytest.approx([began + 0.001, began + 0.252])
        with pytest.raises(LockNotHeldError):
            await lease.release()
        assert len(diary.events) == 2


async def test_the_wait_includes_connecting(masters: list[FakeMaster], diary: Diary) -> None:
    redlock = Redlock(masters, restart_guard="off", listener=diary)
    async with redlock.lock("r"):
        assert diary.of(Acquired)[0].waited_ms == round(now() * 1000, 3) > 2  # type: ignore[union-attr]
    await redlock.aclose()
    assert [type(event) for event in diary.events] == [Acquired, Released]


async def test_held_ms_includes_the_time_of_a_suspension(redlock: Redlock, diary: Diary) -> None:
    async with redlock.lock("r"):
        loop().suspend(2)
    assert diary.events[-1].held_ms == 2000  # type: ignore[union-attr]


@pytest.mark.parametrize("cause", ["body", "cancelled"])
async def test_a_holder_that_fails_has_released_at_once(
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
    assert task.cancelled() or isinstance(task.exception(), KeyError)
    assert isinstance(diary.events[-1], Released)
    assert diary.times[-1] == now()
    await settle(masters)
    diary.check()


async def test_a_cancelled_release_is_emitted_once(
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


async def test_a_second_release_emits_nothing_before_the_first_has_replies(
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
    (lost,) = diary.events[1:]
    assert isinstance(lost, Lost)
    cause = LossCause.KEY_GONE
    assert lost == Lost(("r",), lease.fingerprint, cause.text, 0, cause, lost.votes)


# Extensions


async def test_an_extension_emits_the_rest_of_the_old_validity(
    redlock: Redlock, diary: Diary
) -> None:
    async with redlock.lock("r", ttl=1000) as lease:  # valid for 988 ms from the request
        await asyncio.sleep(0.1)
        await lease.extend(5000)
        assert diary.events[1:] == [Extended(("r",), lease.fingerprint, 5000, 988 - 102)]
        assert diary.times[1] == now()
    async with redlock.lock("r", ttl=300) as lease:
        diary.events.clear()
        await asyncio.sleep(2)
        by_watchdog = diary.of(Extended)
        assert len(by_watchdog) > 10
        for event in by_watchdog:
            assert isinstance(event, Extended)
            assert (event.fingerprint, event.ttl) == (lease.fingerprint, 300)
            assert 190 < event.margin_ms < 210


async def test_only_an_extension_that_holds_is_emitted(
    redlock: Redlock, masters: list[FakeMaster], diary: Diary
) -> None:
    lease = await redlock.lock("r", ttl=1000).acquire()
    # The masters execute the shorter extension last, so the shorter one counts.
    await asyncio.gather(lease.extend(5000), lease.extend(500))
    assert [(e.ttl, e.margin_ms) for e in diary.of(Extended)] == [(500, 492)]  # type: ignore[union-attr]
    hang(masters[:3])
    with pytest.raises(LockLostError):
        await lease.extend()
    await settle(masters)
    assert len(diary.of(Extended)) == 1
    diary.check()


# Losses


async def stalls(_redlock: Redlock, _masters: list[FakeMaster], _lease: Lease) -> None:
    loop().stall(2)


async def masters_hang(_redlock: Redlock, masters: list[FakeMaster], _lease: Lease) -> None:
    hang(masters[:3])
    await asyncio.sleep(2)


async def masters_push(_redlock: Redlock, masters: list[FakeMaster], _lease: Lease) -> None:
    await asyncio.sleep(0.15)  # the masters track the key now
    delete(masters[:3])
    await asyncio.sleep(0.01)


async def extension_fails(_redlock: Redlock, masters: list[FakeMaster], lease: Lease) -> None:
    delete(masters[:3])
    with pytest.raises(LockLostError):
        await lease.extend()


async def holder_looks(_redlock: Redlock, _masters: list[FakeMaster], lease: Lease) -> None:
    loop().stall(2)
    with pytest.raises(LockLostError):
        lease.ensure_valid()


async def manager_closes(redlock: Redlock, _masters: list[FakeMaster], _lease: Lease) -> None:
    await redlock.aclose()


async def key_is_deleted(_redlock: Redlock, masters: list[FakeMaster], _lease: Lease) -> None:
    delete(masters[:3])


LOSSES: dict[Callable[..., Any], tuple[LossCause, float]] = {
    stalls: (LossCause.LOOP_STALLED, 2000),
    masters_hang: (LossCause.NOT_EXTENDED, 984),
    masters_push: (LossCause.KEY_GONE, 151.5),
    extension_fails: (LossCause.KEY_GONE, 1),
    holder_looks: (LossCause.LOOP_STALLED, 2000),
    manager_closes: (LossCause.CLOSED, 0),
    key_is_deleted: (LossCause.KEY_GONE, 0),
}


@pytest.mark.parametrize("lose", LOSSES)
@pytest.mark.parametrize("by", ["block", "release"])
async def test_a_lost_lease_is_emitted_as_lost_and_not_as_released(
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
    cause, held = LOSSES[lose]
    reason = STALLED if cause is LossCause.LOOP_STALLED else cause.text
    (lost,) = diary.of(Lost)  # emitted before the holder gets the error, or with it
    assert isinstance(lost, Lost)
    assert lost == Lost(("r",), lease.fingerprint, reason, lost.held_ms, cause, lost.votes)
    assert lost.held_ms == pytest.approx(held, abs=0.5)
    with contextlib.suppress(LockNotHeldError):
        await lease.release()
    await settle(masters)
    diary.check()
    assert not diary.of(Released)


async def test_a_lease_that_max_hold_ends_is_lost(redlock: Redlock, diary: Diary) -> None:
    with pytest.raises(LockLostError):
        async with redlock.lock("r", ttl=1000, max_hold=500) as lease:
            await asyncio.sleep(1)
    cause = LossCause.MAX_HOLD
    assert diary.of(Lost) == [Lost(("r",), lease.fingerprint, cause.text, 497, cause)]


async def test_a_lease_without_references_is_lost_at_its_end(
    redlock: Redlock, diary: Diary
) -> None:
    with pytest.warns(ResourceWarning):
        await redlock.lock("r", ttl=1000).acquire()
        gc.collect()
    assert len(diary.events) == 1
    await asyncio.sleep(1)
    diary.check()
    assert isinstance(diary.events[1], Lost)


# Waiting and failing


@FAIR
async def test_an_acquisition_that_waits_emits_it_once(
    redlock: Redlock, other: Redlock, diary: Diary, *, fair: bool
) -> None:
    async with other.lock("r", fair=fair):
        began = now()
        waiter = asyncio.create_task(redlock.lock("r", fair=fair, ttl=1000).acquire())
        await asyncio.sleep(3)  # several attempts
        assert diary.events == [Waiting(("r",))]
        # A fair acquisition first asks for the time.
        assert diary.times[0] == pytest.approx(began + (0.002 if fair else 0.001))
    lease = await waiter
    waited = round((now() - began) * 1000)
    assert diary.events[1:] == [Acquired(("r",), lease.fingerprint, waited, None)]
    assert waited >= 3001
    await lease.release()
    diary.check()


@FAIR
async def test_waiting_for_a_majority_is_emitted_at_once_and_once(
    redlock: Redlock, masters: list[FakeMaster], diary: Diary, *, fair: bool
) -> None:
    """Also by a task that comes when another has found that none answers."""
    await redlock.check()
    hang(masters[:3])
    first = asyncio.create_task(redlock.lock("first").acquire())
    await until(lambda: kit.session(redlock).gate.is_shut)
    waiter = asyncio.create_task(redlock.lock("r", fair=fair).acquire())
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert diary.events == [Waiting(("first",)), Waiting(("r",))]
    resume(masters)
    for task in (first, waiter):
        await (await task).release()
    assert len(diary.of(Waiting)) == 2
    diary.check()


async def test_waiting_in_the_local_queue_is_emitted_at_once_and_once(
    redlock: Redlock, masters: list[FakeMaster], diary: Diary
) -> None:
    first = await redlock.lock("r", ttl=1000).acquire()
    began = now()
    waiter = asyncio.create_task(redlock.lock("r").acquire())
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert diary.events[1:] == [Waiting(("r",))]
    occupy(masters[:3])  # the acquisition waits again when its turn comes
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


@FAIR
async def test_a_failed_acquisition_emits_the_error_that_it_raises(
    redlock: Redlock, other: Redlock, diary: Diary, *, fair: bool
) -> None:
    async with other.lock("r"):
        for wait, attempts in ((0, None), (300, None), (None, 1))[: 2 if fair else 3]:
            diary.events.clear()
            began = now()
            lock = redlock.lock("r", fair=fair, wait=wait, retry=Retry(attempts=attempts))
            with pytest.raises(LockNotAcquiredError) as caught:
                await lock.acquire()
            waited = round((now() - began) * 1000)
            *waiting, missed = diary.events
            assert isinstance(missed, Missed)
            assert missed == Missed(("r",), waited, missed.error)
            assert type(missed.error) is type(caught.value)
            assert vars(missed.error) == vars(caught.value)
            assert str(missed.error) == str(caught.value)
            assert missed.error.args == caught.value.args
            assert caught.value.elapsed == waited
            assert waiting == [Waiting(("r",))] * (wait == 300)


async def test_a_listener_that_keeps_events_keeps_no_variables_of_the_program(
    redlock: Redlock, other: Redlock, masters: list[FakeMaster], diary: Diary
) -> None:
    """Else a lease that was dropped would be extended for as long as the event is kept."""

    async def fail() -> None:
        lease = await redlock.lock("dropped", ttl=1000).acquire()
        assert lease.valid
        await redlock.lock("r", wait=0).acquire()

    async with other.lock("r"):
        with pytest.warns(ResourceWarning, match="never released"):
            with contextlib.suppress(LockNotAcquiredError):
                await fail()
            gc.collect()
        await asyncio.sleep(2)
    assert len(diary.of(Missed)) == 1
    assert not any("dropped" in kept for kept in keys(masters))


@FAIR
async def test_a_try_that_fails_emits_the_reason_that_it_does_not_raise(
    redlock: Redlock, other: Redlock, masters: list[FakeMaster], diary: Diary, *, fair: bool
) -> None:
    lock = redlock.lock("r", fair=fair)
    async with other.lock("r") as lease:
        began = now()
        assert await lock.try_acquire() is None
        (missed,) = diary.events
        assert isinstance(missed, Missed)
        assert missed.waited_ms == round((now() - began) * 1000, 3)
        assert type(missed.error) is LockNotAcquiredError
        assert (missed.error.attempts, missed.error.resources) == (1, ("r",))
        texts = [str(vote)[:19] for vote in missed.error.votes[:3]]
        assert texts == [f"m{i}: held by another" for i in range(3)]
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
    assert missed.waited_ms == round((now() - began) * 1000, 3) >= 50
    await settle(masters)


@FAIR
async def test_an_acquisition_emits_its_cancellation_but_not_a_closing(
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
        events = [*[Waiting(("r",))] * 2, Cancelled(("r",), 100)]
        assert diary.events == events
        for use in (lock.acquire, lock.try_acquire, lock.__aenter__):
            with pytest.raises(RedlockError, match="closed"):
                await use()
        assert diary.events == events


@pytest.mark.spread(0)
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
        assert len(diary.leases()) + len(diary.of(Cancelled)) == 1
        assert len(diary.of(Waiting)) <= 1
        if not task.cancelled():
            assert len(diary.leases()) == 1
            return


async def test_tasks_that_share_one_lock_object_have_events_of_their_own(
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


async def test_events_come_in_the_order_in_which_they_happened(
    redlock: Redlock, diary: Diary
) -> None:
    first = await redlock.lock("first", ttl=100, auto_extend=False).acquire()
    second = await redlock.lock("second").acquire()
    loop().stall(1)
    with pytest.raises(LockLostError):
        first.ensure_valid()  # queues an event for the next turn of the loop
    await second.__aexit__(KeyError, KeyError(), None)  # emits at once, after the queued event
    assert [type(event) for event in diary.events] == [Acquired, Acquired, Lost, Released]


@pytest.mark.parametrize("hung", [2, 3])
async def test_a_release_that_no_majority_confirms_has_the_votes(
    redlock: Redlock, diary: Diary, masters: list[FakeMaster], hung: int
) -> None:
    async with redlock.lock("r"):
        await asyncio.sleep(0.01)
        hang(masters[:hung])
    event = diary.events[-1]
    assert isinstance(event, Released)
    answers = [vote.answer for vote in event.votes]
    assert answers == ([Answer.TIMED_OUT] * 3 + [Answer.GRANTED] * 2 if hung == 3 else [])


async def test_a_release_that_is_not_awaited_has_no_votes(
    redlock: Redlock, diary: Diary, masters: list[FakeMaster]
) -> None:
    with pytest.raises(KeyError):
        async with redlock.lock("r"):
            hang(masters)
            raise KeyError
    event = diary.events[-1]
    assert isinstance(event, Released)
    assert event.votes == ()


async def test_a_lease_handed_over_is_released_here_and_acquired_there(
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
        await asyncio.sleep(0.25)
        await adopted.release()
        assert there.events == [
            Acquired(("r",), adopted.fingerprint, 1, adopted.fencing_token),
            Released(("r",), adopted.fingerprint, 250),
        ]
    assert len(diary.of(Released, Lost)) == 1


# Readers and writers


@pytest.mark.parametrize(
    ("options", "mode"),
    [({"shared": True}, "shared"), ({"fair": True}, "exclusive"), ({}, "exclusive")],
    ids=["reader", "writer", "plain"],
)
async def test_each_event_of_a_lock_has_its_mode(
    redlock: Redlock, other: Redlock, diary: Diary, options: dict[str, Any], mode: Mode
) -> None:
    lock = redlock.lock("r", ttl=1000, **options)
    async with other.lock("r"):
        assert await lock.try_acquire() is None
        waiter = asyncio.create_task(lock.acquire())
        await asyncio.sleep(0.1)
        waiter.cancel()
        await asyncio.wait([waiter])
    async with lock:
        await asyncio.sleep(1)
    with pytest.raises(LockLostError):
        async with redlock.lock("r", ttl=1000, max_hold=100, **options):
            await asyncio.sleep(1)
    diary.check()
    assert {(type(event), event.mode) for event in diary.events} == {  # type: ignore[union-attr]
        (kind, mode) for kind in (Acquired, Cancelled, Extended, Lost, Missed, Released, Waiting)
    }


async def test_a_lease_that_was_dropped_and_is_shared_again_has_one_beginning(
    redlock: Redlock, diary: Diary
) -> None:
    """Its end is that of the share that was not dropped, or its loss."""
    lock = redlock.lock("r", ttl=1_000, reentrant=True)
    lease = await lock.acquire()
    await asyncio.sleep(0.1)
    with pytest.warns(ResourceWarning, match="never released"):
        del lease
        gc.collect()
    async with lock:
        await asyncio.sleep(0.01)
    assert [type(event) for event in diary.events] == [Acquired, Extended, Released]
    diary.check()


async def test_a_share_has_no_beginning_of_its_own_though_the_first_was_dropped(
    redlock: Redlock, diary: Diary
) -> None:
    """Two tasks of one owner wait. The first one acquires the lock, and drops it at once."""
    lock = redlock.lock("r", owner="x", reentrant=True)

    async def drop() -> None:
        await lock.acquire()

    async def share() -> None:
        async with lock:
            await asyncio.sleep(0.01)

    with pytest.warns(ResourceWarning, match="never released"):
        async with redlock.lock("r"):
            tasks = [asyncio.create_task(drop()), asyncio.create_task(share())]
            await asyncio.sleep(0.01)
        await asyncio.gather(*tasks)
    diary.check()
    assert len(diary.of(Acquired)) == len(diary.of(Released)) == 2
    assert len(diary.of(Waiting)) == 2  # which is all that the share emits


async def test_a_reader_that_waits_for_a_writer_of_its_own_process_is_shared(
    redlock: Redlock, diary: Diary
) -> None:
    docs = redlock.rw_lock("r")
    async with docs.write():
        reader = asyncio.create_task(docs.read(wait=200).acquire())
        await asyncio.wait([reader])
    assert isinstance(reader.exception(), LockNotAcquiredError)
    assert [(type(event), event.mode) for event in diary.events] == [  # type: ignore[union-attr]
        (Acquired, "exclusive"),
        (Waiting, "shared"),
        (Missed, "shared"),
        (Released, "exclusive"),
    ]


async def test_a_read_in_the_own_write_has_no_events_of_its_own(
    redlock: Redlock, diary: Diary
) -> None:
    docs = redlock.rw_lock("r", reentrant=True)
    async with docs.write() as lease, docs.read() as inner:
        await inner.extend()
    modes = [(type(event), event.mode) for event in diary.leases()[lease.fingerprint]]
    assert modes == [(kind, "exclusive") for kind in (Acquired, Extended, Released)]
    assert len(diary.events) == 3


# Semaphores


async def test_each_event_of_a_semaphore_has_its_mode_and_the_first_its_permit(
    redlock: Redlock, other: Redlock, diary: Diary
) -> None:
    semaphore = redlock.semaphore("r", permits=1, ttl=1000)
    async with other.semaphore("r", permits=1):
        assert await semaphore.try_acquire() is None
        waiter = asyncio.create_task(semaphore.acquire())
        await asyncio.sleep(0.1)
        waiter.cancel()
        await asyncio.wait([waiter])
    async with semaphore:
        await asyncio.sleep(1)
    with pytest.raises(LockLostError):
        async with redlock.semaphore("r", permits=1, ttl=1000, max_hold=100):
            await asyncio.sleep(1)
    diary.check()
    assert {(type(event), event.mode) for event in diary.events} == {  # type: ignore[union-attr]
        (kind, "permit")
        for kind in (Acquired, Cancelled, Extended, Lost, Missed, Released, Waiting)
    }
    assert [e.permit for e in diary.events if isinstance(e, Acquired)] == [0, 0]


async def test_two_permits_have_two_numbers(redlock: Redlock, diary: Diary) -> None:
    semaphore = redlock.semaphore("r", permits=2)
    async with semaphore as first, semaphore as second, redlock.lock("r"):
        pass
    acquired = [event.permit for event in diary.events if isinstance(event, Acquired)]
    assert acquired == [first.permit, second.permit, None]
    assert set(acquired) == {0, 1, None}


# Masters


@pytest.mark.usefixtures("redlock")
async def test_a_master_is_lost_and_back_and_lost_for_another_reason(
    masters: list[FakeMaster], diary: Diary
) -> None:
    await asyncio.sleep(1)
    assert not diary.events
    masters[1].kill()
    await asyncio.sleep(LONG)
    assert diary.events == [MasterLost("m1", RESET, NoVoteCause.DISCONNECTED, votes(m1=AWAY))]
    masters[1].restart()
    await asyncio.sleep(LONG)
    assert diary.events[1:] == [MasterBack("m1")]
    masters[1].role = "slave"
    masters[1].cut()
    await asyncio.sleep(LONG)
    slave = Vote("m1", Answer.ERROR, "not a master but a slave")
    assert diary.events[2:] == [
        MasterLost("m1", RESET, NoVoteCause.DISCONNECTED, votes(m1=AWAY)),
        MasterLost(
            "m1", "error, not a master but a slave", NoVoteCause.NOT_A_MASTER, votes(m1=slave)
        ),
    ]


async def test_a_quarantined_master_is_not_back(
    masters: list[FakeMaster], diary: Diary, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "redlock_aio")
    async with Redlock(masters, max_ttl=10_000, listener=diary):
        firsts = len(diary.events)
        masters[1].restart()
        await asyncio.sleep(LONG)
    why = "it restarted 0 s ago and may have forgotten locks; it votes again in 12 s"
    reason = f"quarantined, {why}"
    quarantined = votes(m1=Vote("m1", Answer.QUARANTINED, why))
    assert diary.events[firsts:] == [
        MasterLost("m1", RESET, NoVoteCause.DISCONNECTED, votes(m1=AWAY)),
        MasterLost("m1", reason, NoVoteCause.RESTARTED, quarantined),
        MasterBack("m1"),
    ]
    assert diary.times[-1] - diary.times[-2] == pytest.approx(11.1, abs=0.2)
    # The log has the same lines, with or without a listener.
    assert [record.getMessage() for record in caplog.records] == [
        f"m1: {RESET}",
        "m1: connected again",
        f"m1: {reason}",
        "m1: votes again",
    ]


async def test_a_quarantined_master_that_is_connected_again_is_quarantined(
    masters: list[FakeMaster], diary: Diary
) -> None:
    """A listener knows from the last event of a master why that has no vote."""
    async with Redlock(masters, max_ttl=60_000, listener=diary):
        masters[1].restart()
        await asyncio.sleep(5)
        masters[1].cut()
        await asyncio.sleep(5)
        causes = [event.cause for event in diary.events if isinstance(event, MasterLost)]
        assert causes == [NoVoteCause.DISCONNECTED, NoVoteCause.RESTARTED] * 2


@pytest.mark.usefixtures("redlock")
async def test_another_cause_is_emitted_although_the_answer_is_the_same(
    masters: list[FakeMaster], diary: Diary
) -> None:
    masters[1].role = "slave"
    masters[1].cut()
    await asyncio.sleep(5)
    masters[1].forbid = {"INFO"}
    await asyncio.sleep(5)
    lost = [event for event in diary.events if isinstance(event, MasterLost)]
    assert [event.cause for event in lost] == [
        NoVoteCause.DISCONNECTED, NoVoteCause.NOT_A_MASTER, NoVoteCause.FORBIDDEN
    ]  # fmt: skip
    assert [event.votes[1].answer for event in lost[1:]] == [Answer.ERROR] * 2


async def test_a_master_that_is_down_at_first_is_lost(
    masters: list[FakeMaster], diary: Diary
) -> None:
    masters[0].kill()
    async with Redlock(masters, restart_guard="off", listener=diary) as redlock:
        (lost,) = diary.of(MasterLost)
        assert isinstance(lost, MasterLost)
        assert (lost.master, lost.reason) == ("m0", "unreachable, connection refused")
        assert lost.cause is NoVoteCause.NO_CONNECTION
        assert diary.events == [lost]
        await redlock.aclose()
        await asyncio.sleep(1)
        assert diary.events == [lost], "closing loses no master"
        masters[0].restart()
        await redlock.__aenter__()
        assert diary.events == [lost, MasterBack("m0")]


async def test_the_loss_of_the_majority_and_its_return_are_emitted(
    redlock: Redlock, masters: list[FakeMaster], diary: Diary
) -> None:
    masters[0].kill()
    masters[1].kill()
    await asyncio.sleep(1)
    assert [type(event) for event in diary.events] == [MasterLost] * 2
    began = now()
    masters[2].hang()
    with pytest.raises(QuorumUnavailableError):
        await redlock.lock("r", wait=0).acquire()
    await asyncio.sleep(10)
    hung, lost = diary.events[-2:]
    assert isinstance(hung, MasterLost)
    assert isinstance(lost, MajorityLost)
    assert (hung.master, hung.cause) == ("m2", NoVoteCause.SILENT)
    lost_at = diary.times[-1]
    assert began + 1 <= lost_at < began + 2
    answers = [vote.answer for vote in lost.votes]
    assert answers == [Answer.UNREACHABLE] * 3 + [Answer.GRANTED] * 2
    masters[3].kill()  # no further event of the majority
    await asyncio.sleep(10)
    count = len(diary.of(MajorityLost, MajorityBack))
    masters[3].restart()
    await asyncio.sleep(10)
    assert len(diary.of(MajorityLost, MajorityBack)) == count == 1
    masters[2].resume()
    await asyncio.sleep(10)
    (back,) = diary.of(MajorityBack)
    assert back == MajorityBack(round((diary.times[-1] - lost_at) * 1000))
    assert diary.events[-2:] == [MasterBack("m2"), back]


async def test_a_majority_that_is_away_at_first_is_lost_once(
    masters: list[FakeMaster], diary: Diary
) -> None:
    kill(masters[:3])
    async with Redlock(masters, restart_guard="off", listener=diary):
        await asyncio.sleep(5)
        assert [type(event) for event in diary.events].count(MajorityLost) == 1
        (majority_lost,) = diary.of(MajorityLost)
        lost = diary.events.index(majority_lost)
        assert len([e for e in diary.events[:lost] if isinstance(e, MasterLost)]) == 3
        restart(masters[:1])
        await asyncio.sleep(5)
        assert len(diary.of(MajorityBack)) == 1


async def test_a_majority_that_was_lost_is_back_after_the_manager_is_opened_again(
    masters: list[FakeMaster], diary: Diary
) -> None:
    redlock = Redlock(masters, restart_guard="off", listener=diary)
    for _ in range(2):
        kill(masters[:3])
        async with redlock:
            await asyncio.sleep(5)
    assert len(diary.of(MajorityLost, MajorityBack)) == 1
    restart(masters[:3])
    async with redlock:
        await asyncio.sleep(5)
    lost, back = diary.of(MajorityLost, MajorityBack)
    assert isinstance(lost, MajorityLost)
    assert isinstance(back, MajorityBack)
    assert 10_000 < back.lost_ms < 20_000


async def test_a_majority_that_votes_from_the_start_is_not_back(
    masters: list[FakeMaster], diary: Diary
) -> None:
    async with Redlock(masters, listener=diary):
        await asyncio.sleep(1)
    assert diary.events == []


async def test_a_caution_is_no_loss(
    masters: list[FakeMaster], diary: Diary, caplog: pytest.LogCaptureFixture
) -> None:
    async with Redlock(masters[:1], restart_guard="fsync-always", listener=diary):
        await asyncio.sleep(1)
    assert "the server has no append-only file" in caplog.text
    assert diary.events == []
