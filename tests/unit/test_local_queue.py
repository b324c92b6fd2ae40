"""The local queue: the order of turns in this process, and pauses for other processes."""

import asyncio

import pytest

from redlock_aio._engine.wait.local_queue import (
    ALONE,
    LONGEST_TENURE,
    SEEN,
    TENURE,
    YIELD_TIME,
    LocalPlace,
    LocalQueue,
)
from redlock_aio._rules.absence import CROWDED_TENURE, Absence
from redlock_aio._rules.retry import LONGEST_SPREAD

from .kit import LATENCY


class Listener:
    """A lease, a watcher or a guest, which records its notifications."""

    member = b""

    def __init__(self) -> None:
        self.notified: list[int | str] = []

    def changed(self, master: int) -> None:
        self.notified.append(master)

    def on_local_release(self) -> None:
        self.notified.append("released")


def taken(since: float = 0.0) -> tuple[LocalQueue, Listener]:
    """Return the queue of a lock that was acquired at *since*, and its lease."""
    queue, lease = LocalQueue(), Listener()
    queue.contending = True
    queue.on_acquired(lease, since - LATENCY, since)
    return queue, lease


def joined(queue: LocalQueue, number: int) -> list[LocalPlace]:
    places = [LocalPlace() for _ in range(number)]
    for place in places:
        queue.join(place)
    return places


async def test_turns_come_in_order_and_one_at_a_time() -> None:
    queue, lease = taken()
    first, second, third = joined(queue, 3)
    queue.on_lease_ended(Listener(), 1.0)  # another lease
    assert queue.holder is lease
    assert not first.has_turn
    queue.on_lease_ended(lease, 1.0)
    assert first.has_turn
    assert queue.contending
    assert repr(queue) == "<LocalQueue, taken, 2 wait>"
    queue.on_acquired(lease, 1.0, 1.001)
    assert not second.has_turn
    queue.on_lease_ended(lease, 2.0)
    assert second.has_turn
    queue.give_up()
    assert third.has_turn
    queue.give_up()
    assert queue.idle


async def test_a_place_that_is_left_leaves_no_gap() -> None:
    queue, lease = taken()
    first, second, third, fourth, fifth = joined(queue, 5)
    queue.leave(first)
    waiting = asyncio.create_task(second.wait(asyncio.get_running_loop()))
    await asyncio.sleep(0)
    waiting.cancel()
    queue.on_lease_ended(lease, 1.0)
    assert third.has_turn
    queue.leave(fourth)  # its wait has ended without a turn
    assert not fifth.has_turn
    queue.leave(third)  # cancelled at the moment when its turn came
    assert fifth.has_turn
    await asyncio.wait([waiting])
    assert not second.has_turn


async def test_a_change_notifies_holder_watcher_and_guests() -> None:
    queue, lease = taken()
    watcher, guest = Listener(), Listener()
    queue.subscribe(watcher, mine=True)
    (place,) = joined(queue, 1)
    queue.contending = True  # the watcher has the turn, and the lease was acquired without one
    queue.on_lease_ended(lease, 1.0)
    assert watcher.notified == ["released"]
    assert not place.has_turn
    queue.set_holder(lease)
    queue.subscribe(guest, mine=False)
    queue.changed(3)
    assert lease.notified == guest.notified == [3]
    assert watcher.notified == ["released", 3]
    queue.unsubscribe(watcher)
    queue.on_lease_ended(lease, 2.0)
    assert watcher.notified == ["released", 3]
    assert guest.notified == [3, "released"]
    queue.leave(place)
    queue.give_up()
    assert not queue.idle  # the guest is still there
    queue.unsubscribe(guest)
    assert queue.idle


# Pauses for other processes.


@pytest.mark.parametrize(("others", "pauses"), [(2, False), (3, True)])
def test_where_several_processes_wait_a_tenure_is_shorter(others: int, pauses: bool) -> None:
    queue, lease = taken(since=10.0)
    queue.on_yield_result(by_others=True)
    queue.absence = Absence(b"host:own")
    for other in range(others - 1):
        queue.absence.on_lost(b"%028d@host:%d" % (other, other), 1.0)
    queue.absence.on_acquired()
    now = 10.0 + CROWDED_TENURE + LATENCY
    assert now < 10.0 + TENURE
    queue.on_lease_ended(lease, now)
    assert (queue.yield_delay(now) > 0) is pauses
    assert (queue.absence.left(now) > 0) is pauses


@pytest.mark.parametrize(("passed_on", "forgotten"), [(False, True), (True, False)])
def test_a_lock_that_is_passed_on_proves_nothing_about_other_processes(
    passed_on: bool, forgotten: bool
) -> None:
    """They could not be first, so the process does not take them for gone."""
    queue, lease = taken(since=10.0)
    queue.absence = Absence(b"host:own")
    for other in range(3):
        queue.absence.on_lost(b"%028d@host:%d" % (other, other), 0.006)
    queue.absence.on_acquired()
    queue.on_lease_ended(lease, 11.0)
    before = queue.absence.left(11.0)
    began = 11.0 if passed_on else 12.0
    queue.on_acquired(lease, began, began + LATENCY)
    assert (queue.absence.left(11.0) < before) is forgotten


def test_after_a_tenure_other_processes_may_go_first() -> None:
    queue, lease = taken(since=10.0)
    queue.on_yield_result(by_others=True)
    now = 10.0
    while now < 10.0 + TENURE:
        queue.on_lease_ended(lease, now)
        assert queue.yield_delay(now) == 0
        queue.contending = True
        now += LATENCY
        queue.on_acquired(lease, now - LATENCY, now)
    queue.on_lease_ended(lease, now)
    delay = 2 * LATENCY + YIELD_TIME
    assert queue.yield_delay(now) == pytest.approx(delay)
    assert queue.yield_delay(now + 0.001) == pytest.approx(delay - 0.001)
    assert queue.yield_delay(now + delay) == 0


def test_a_pause_that_others_could_use_begins_a_new_tenure() -> None:
    queue, lease = taken(since=10.0)
    queue.on_lease_ended(lease, 11.0)
    queue.contending = True
    queue.on_acquired(lease, 12.0, 12.0 + LATENCY)
    queue.on_lease_ended(lease, 12.001)
    assert queue.yield_delay(12.001) == 0


def yields_after(queue: LocalQueue, held: float, round_trip: float = LATENCY) -> bool:
    """Return whether the process pauses after a tenure of *held* seconds."""
    lease = Listener()
    queue.open_at = 0.0
    queue.contending = True
    queue.on_acquired(lease, 100.0 - round_trip, 100.0)
    queue.since = 100.0
    queue.on_lease_ended(lease, 100.0 + held)
    return queue.yield_delay(100.0 + held) > 0


def test_pauses_that_nobody_uses_become_rare() -> None:
    queue = LocalQueue()
    assert not yields_after(queue, 0.9 * ALONE * LATENCY)
    assert yields_after(queue, 1.1 * ALONE * LATENCY)
    queue.on_yield_result(by_others=True)
    assert yields_after(queue, 1.5 * TENURE)
    queue.on_yield_result(by_others=False)
    assert not yields_after(queue, 1.5 * TENURE)
    for _ in range(20):
        queue.on_yield_result(by_others=False)
    assert yields_after(queue, LONGEST_TENURE)
    assert not yields_after(queue, 0.9 * LONGEST_TENURE)
    queue.on_yield_result(by_others=True)
    assert yields_after(queue, 1.5 * TENURE)


def test_one_pause_that_nobody_used_does_not_make_a_process_alone() -> None:
    queue = LocalQueue()
    queue.on_yield_result(by_others=True)
    for unused in range(1, SEEN + 1):
        queue.on_yield_result(by_others=False)
        assert yields_after(queue, 1.1 * 2**unused * TENURE, round_trip=1.0) == (unused < SEEN)


@pytest.mark.spread(1)
@pytest.mark.parametrize("round_trip", [0.0003, 0.001, 0.01, 0.3])
@pytest.mark.parametrize("seconds", [1, 10, 100])
def test_a_process_that_is_alone_loses_at_most_3_percent(round_trip: float, seconds: int) -> None:
    """A task locks a key again and again: the reply to its release arrives before it retries."""
    queue, lease = taken()
    now = paused = 0.0
    while now < seconds:
        queue.on_lease_ended(lease, now)
        now += round_trip
        pause = queue.yield_delay(now)
        if pause:
            queue.on_yield_result(by_others=False)
        paused += pause
        now += pause + round_trip
        queue.contending = True
        queue.on_acquired(lease, now - round_trip, now)
    assert paused <= 0.03 * now


def test_the_jitter_grows_with_split_votes_and_shrinks_without() -> None:
    queue = LocalQueue()
    queue.adapt_jitter(split=False, took=0.001)
    assert queue.spread == 0
    for expected in (0.004, 0.008):
        queue.adapt_jitter(split=True, took=0.001)
        assert queue.spread == pytest.approx(expected)
    queue.adapt_jitter(split=False, took=0.001)
    assert 0.004 < queue.spread < 0.008
    for _ in range(50):
        queue.adapt_jitter(split=True, took=0.001)
    assert queue.spread == LONGEST_SPREAD
