import asyncio

import pytest

from redlock_aio._engine.wait.local_queue import (
    ALONE,
    LONGEST_SPREAD,
    LONGEST_TENURE,
    SEEN,
    TENURE,
    YIELD_TIME,
    LocalQueue,
)

ROUND_TRIP = 0.001


class Somebody:
    """A lease, a watcher or a guest; it keeps what it is told."""

    def __init__(self) -> None:
        self.heard: list[int | str] = []

    def changed(self, master: int) -> None:
        self.heard.append(master)

    def on_local_release(self) -> None:
        self.heard.append("released")


def taken(since: float = 0.0) -> tuple[LocalQueue, Somebody]:
    line = LocalQueue()
    line.contending = True
    holder = Somebody()
    line.on_acquired(holder, since - ROUND_TRIP, since)
    return line, holder


def places(line: LocalQueue, number: int) -> list[asyncio.Future[bool]]:
    loop = asyncio.get_running_loop()
    made = [loop.create_future() for _ in range(number)]
    for place in made:
        line.join(place)
    return made


async def test_turns_come_in_order_and_one_at_a_time() -> None:
    line, holder = taken()
    first, second, third = places(line, 3)
    line.on_lease_ended(holder, 1.0)
    assert first.done()
    assert first.result() is True
    assert not second.done()
    assert line.contending
    line.on_acquired(holder, 1.0, 1.001)
    assert not second.done()
    line.on_lease_ended(holder, 2.0)
    assert second.done()
    line.give_up()
    assert third.result() is True
    line.give_up()
    assert line.idle


async def test_who_leaves_leaves_no_gap() -> None:
    line, holder = taken()
    first, second, third, fourth = places(line, 4)
    line.leave(first)  # before its turn
    second.cancel()
    line.on_lease_ended(holder, 1.0)
    assert third.result() is True
    line.leave(third)  # cancelled in the moment in which its turn came
    assert fourth.result() is True


async def test_a_place_whose_time_is_over_gets_no_turn_and_passes_none_on() -> None:
    line, holder = taken()
    first, second = places(line, 2)
    first.set_result(False)
    line.leave(first)
    assert not second.done()
    line.on_lease_ended(holder, 1.0)
    assert second.result() is True


async def test_a_lease_that_was_had_out_of_turn_wakes_who_has_the_turn() -> None:
    line = LocalQueue()
    line.contending = True
    watcher, holder = Somebody(), Somebody()
    line.watcher = watcher
    line.holder = holder  # by one attempt that did not wait in line
    (waits,) = places(line, 1)
    line.on_lease_ended(holder, 1.0)
    assert watcher.heard == ["released"]
    assert not waits.done()


async def test_the_end_of_another_lease_changes_nothing() -> None:
    line, holder = taken()
    (waits,) = places(line, 1)
    line.on_lease_ended(Somebody(), 1.0)
    assert line.holder is holder
    assert not waits.done()


async def test_everybody_concerned_hears_of_a_change() -> None:
    line, holder = taken()
    watcher, guest = Somebody(), Somebody()
    line.watcher = watcher
    line.guests = {guest: None}
    line.changed(3)
    assert holder.heard == watcher.heard == guest.heard == [3]
    line.watcher = None
    line.on_lease_ended(holder, 1.0)
    assert guest.heard == [3, "released"]
    assert not line.idle  # the guest is still there
    line.guests.clear()
    assert line.idle


async def test_who_waits_for_masters_hears_when_the_manager_closes() -> None:
    line, _ = taken()
    watcher, guest = Somebody(), Somebody()
    line.subscribe(watcher, mine=True)
    line.subscribe(guest, mine=False)
    line.notify_released()
    assert watcher.heard == guest.heard == ["released"]
    line.unsubscribe(watcher)
    line.unsubscribe(guest)
    line.notify_released()
    assert watcher.heard == guest.heard == ["released"]


# Letting other processes go first.


def test_the_lock_is_passed_on_for_a_while_and_then_others_may_go_first() -> None:
    line, holder = taken(since=10.0)
    line.on_yield_result(by_others=True)
    now = 10.0
    while now < 10.0 + TENURE:
        line.on_lease_ended(holder, now)
        assert line.yield_delay(now) == 0
        line.contending = True
        now += ROUND_TRIP
        line.on_acquired(holder, now - ROUND_TRIP, now)
    line.on_lease_ended(holder, now)
    patience = 2 * ROUND_TRIP + YIELD_TIME
    assert line.yield_delay(now) == pytest.approx(patience)
    assert line.yield_delay(now + 0.001) == pytest.approx(patience - 0.001)
    assert line.yield_delay(now + patience) == 0


def test_after_a_pause_that_others_could_use_it_may_be_passed_on_again() -> None:
    line, holder = taken(since=10.0)
    line.on_lease_ended(holder, 11.0)
    line.contending = True
    line.on_acquired(holder, 12.0, 12.0 + ROUND_TRIP)
    line.on_lease_ended(holder, 12.001)
    assert line.yield_delay(12.001) == 0


def test_if_nobody_uses_the_chance_it_is_given_less_often() -> None:
    def courtesy_after(line: LocalQueue, kept: float) -> float:
        holder = Somebody()
        line.open_at = 0.0
        line.contending = True
        line.on_acquired(holder, 100.0 - ROUND_TRIP, 100.0)
        line.since = 100.0
        line.on_lease_ended(holder, 100.0 + kept)
        return line.yield_delay(100.0 + kept)

    line = LocalQueue()
    assert not courtesy_after(line, 0.9 * ALONE * ROUND_TRIP)
    assert courtesy_after(line, 1.1 * ALONE * ROUND_TRIP)
    line.on_yield_result(by_others=True)
    assert courtesy_after(line, 1.5 * TENURE)
    line.on_yield_result(by_others=False)
    assert not courtesy_after(line, 1.5 * TENURE)
    for _ in range(20):
        line.on_yield_result(by_others=False)
    assert courtesy_after(line, LONGEST_TENURE)
    assert not courtesy_after(line, 0.9 * LONGEST_TENURE)
    line.on_yield_result(by_others=True)
    assert courtesy_after(line, 1.5 * TENURE)


@pytest.mark.parametrize("round_trip", [0.0003, 0.001, 0.01, 0.04, 0.08, 0.3])
@pytest.mark.parametrize("seconds", [1, 10, 100])
def test_whoever_is_alone_with_a_key_loses_next_to_nothing(round_trip: float, seconds: int) -> None:
    """A task that locks a key again and again: its release has been answered when it asks."""
    line, holder = taken()
    now = paused = 0.0
    while now < seconds:
        line.on_lease_ended(holder, now)
        now += round_trip
        pause = line.yield_delay(now)
        if pause:
            line.on_yield_result(by_others=False)
        paused += pause
        now += pause + round_trip
        line.contending = True
        line.on_acquired(holder, now - round_trip, now)
    assert paused <= 0.03 * now


def test_one_chance_that_nobody_used_does_not_make_a_process_alone() -> None:
    line, holder = taken()
    line.on_yield_result(by_others=True)
    for unused in range(1, SEEN + 1):
        line.on_yield_result(by_others=False)
        kept = 1.1 * 2**unused * TENURE
        line.round_trip, line.since, line.open_at = 1.0, 100.0, 0.0
        line.holder = holder
        line.on_lease_ended(holder, 100.0 + kept)
        assert (line.yield_delay(100.0 + kept) > 0) == (unused < SEEN)


def test_attempts_are_spread_after_split_votes_and_less_and_less_after_others() -> None:
    line = LocalQueue()
    assert line.spread == 0
    line.adapt_jitter(split=False, took=0.001)
    assert line.spread == 0
    line.adapt_jitter(split=True, took=0.001)
    assert line.spread == pytest.approx(0.004)
    line.adapt_jitter(split=True, took=0.001)
    assert line.spread == pytest.approx(0.008)
    line.adapt_jitter(split=False, took=0.001)
    assert 0.004 < line.spread < 0.008
    for _ in range(50):
        line.adapt_jitter(split=True, took=0.001)
    assert line.spread == LONGEST_SPREAD


def test_it_says_how_it_stands() -> None:
    line, _ = taken()
    assert repr(line) == "<LocalQueue, taken, 0 wait>"
