"""The time of the masters: all programs use it, and it rises with each request."""

import math

import pytest
from hypothesis import given, strategies as st

from redlock_aio._rules.clock_offsets import Clocks

SECOND = 1_000_000


def clocks(*ahead: float, now: float = 0.0) -> Clocks:
    """Return the clocks after replies of masters that are ahead by these seconds."""
    known = Clocks(len(ahead), 0.0)
    for master, seconds in enumerate(ahead):
        known.learn(master, round((now + seconds) * SECOND), now, now)
    return known


@given(st.lists(st.floats(0, 1e9), min_size=1, max_size=7), st.floats(0, 1e6))
def test_times_rise_though_clocks_go_back_a_little(ahead: list[float], now: float) -> None:
    known = clocks(*ahead, now=now)
    first = known.new_time(now)
    for master, seconds in enumerate(ahead):
        known.learn(master, round((now + seconds - 0.9) * SECOND), now, now)
    second = known.new_time(now)
    assert second == first + 1
    assert isinstance(second, int)


def test_a_clock_that_was_wrong_once_has_no_lasting_effect() -> None:
    known = clocks(3600.0)
    assert known.new_time(10.0) == 3_610_000_000
    known.learn(0, 11_000_000, 11.0, 11.0)
    assert known.new_time(11.0) == 11_000_000


def test_the_time_is_the_median_of_the_masters() -> None:
    assert clocks(100.0, 101.0, 50.0).new_time(10.0) == 110_000_000
    assert clocks(100.0, 100.0, 100.0, 9e6, 9e6).new_time(10.0) == 110_000_000


def test_the_spread_is_the_lead_of_the_fastest_over_the_median() -> None:
    assert clocks(100.0, 101.0, 50.0).spread == pytest.approx(1.0)
    assert clocks(7.0).spread == 0.0
    assert Clocks(3, 5.0).spread == 0.0


def test_the_clock_of_the_process_counts_until_a_reply() -> None:
    known = Clocks(3, 5.0)
    assert known.offset(1) is None
    assert known.new_time(1.0) == 6_000_000
    known.learn(1, 9_000_000, 1.0, 1.0)
    assert known.offset(1) == pytest.approx(8.0)
    assert known.new_time(2.0) == 10_000_000


@pytest.mark.parametrize("now", [0.0, 1e6])
def test_a_slow_reply_does_not_widen_the_bounds(now: float) -> None:
    known = clocks(100.0, now=now)
    time = round((now + 110) * SECOND)
    known.learn(0, time, now + 5.0, now + 10.0)  # requested 5 s ago, and executed just now
    assert known.offset(0) == pytest.approx(100.0, abs=0.001)


def test_a_clock_that_was_set_begins_anew() -> None:
    known = clocks(100.0)
    known.learn(0, 113_000_000, 9.0, 10.0)
    assert known.offset(0) == pytest.approx(103.5)
    known.learn(0, 50_000_000, 9.0, 10.0)
    assert known.offset(0) == pytest.approx(40.5)


def test_two_slow_replies_know_more_than_each() -> None:
    """The master is 100 s ahead; the first request was slow, and the second reply."""
    known = Clocks(1, 0.0)
    known.learn(0, 101_000_000, 0.0, 1.0)
    assert known.offset(0) == pytest.approx(100.5)
    known.learn(0, 102_000_000, 2.0, 3.0)
    assert known.offset(0) == pytest.approx(100.0, abs=0.001)


DELAYS = st.floats(1e-4, 0.5)
"""Delays above 0: bounds without any width would contradict the next ones by rounding."""


@given(st.lists(st.tuples(DELAYS, DELAYS), min_size=1, max_size=9))
def test_the_offset_is_within_the_bounds_of_each_reply(delays: list[tuple[float, float]]) -> None:
    known, ahead, now = Clocks(1, 0.0), 1234.5, 10.0
    for there, back in delays:
        known.learn(0, round((now + there + ahead) * SECOND), now, now + there + back)
        now += there + back
    shortest = min(there + back for there, back in delays)
    assert known.offset(0) == pytest.approx(ahead, abs=shortest / 2 + now * 1e-4)


def test_the_interval_doubles_up_to_its_longest() -> None:
    known = clocks(1.0)
    assert known.due_at == -math.inf
    now, asked = 0.0, 0
    while now < 3600:
        known.ask_later(now)
        assert now < known.due_at <= now + 30
        now, asked = known.due_at, asked + 1
    assert asked == pytest.approx(3600 / 30 + 10, abs=3)


def test_a_time_was_shown_when_its_reply_came_at_the_latest() -> None:
    known = Clocks(1, 0.0)
    known.learn(0, 10 * SECOND, 1.0, 2.0)
    assert known.latest(0, 10 * SECOND) == pytest.approx(2.0)
    assert known.latest(0, 11 * SECOND) == pytest.approx(3.0)
