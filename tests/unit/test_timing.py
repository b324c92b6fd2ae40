"""Durations, drift, deadlines, and the delays between attempts."""

from datetime import timedelta
from typing import Any

import pytest
from hypothesis import example, given, strategies as st

from redlock_aio import Retry
from redlock_aio._rules import retry, timing

ttls = st.integers(1, 10**7)
factors = st.floats(0, 0.5)


@pytest.mark.parametrize(
    ("wrong", "error", "text"),
    [
        (1.5, TypeError, "ttl must be an int"),
        (True, TypeError, "ttl must be an int"),
        (None, TypeError, "ttl must be an int"),
        (0, ValueError, "ttl must be positive"),
        (-1, ValueError, "ttl must be positive"),
        (timedelta(0), ValueError, "ttl must be positive"),
        (2**53 + 1, ValueError, "ttl must be at most"),
        (timedelta(microseconds=1500), ValueError, "ttl must be whole milliseconds"),
    ],
)
def test_a_duration_is_whole_milliseconds(wrong: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        timing.milliseconds(wrong, name="ttl")
    assert timing.milliseconds(2**53, name="ttl") == 2**53
    assert timing.milliseconds(0, name="wait", zero=True) == 0
    assert timing.milliseconds(timedelta(seconds=2), name="wait", zero=True) == 2000


@given(ttl=ttls, began=st.floats(0, 10**6), elapsed=st.floats(0, 10**4), factor=factors)
def test_a_lease_ends_before_the_masters_release_it(
    ttl: int, began: float, elapsed: float, factor: float
) -> None:
    until = timing.deadline(began, ttl, factor=factor)
    left = timing.remaining(until, began + elapsed)

    # The rounding of floats is far below the 2 ms of the drift.
    assert left <= max(0, ttl - elapsed * 1000 - ttl * factor - 2 + 0.001)


def test_the_remaining_time_is_in_whole_milliseconds() -> None:
    lefts = [timing.remaining(until, 1.0) for until in (2.0, 1.0019, 1.0, 0.0)]
    assert lefts == [1000, 1, 0, 0]


def test_the_drift_is_one_percent_and_two_milliseconds() -> None:
    assert timing.drift(10_000, factor=timing.DRIFT_FACTOR) == 102
    assert timing.drift(1, factor=timing.DRIFT_FACTOR) == 3
    assert timing.drift(timing.SHORTEST_TTL, factor=0.5) < timing.SHORTEST_TTL


@pytest.mark.parametrize("ttl", [1, 10, 49])
def test_a_ttl_that_was_meant_in_seconds_is_refused(ttl: int) -> None:
    with pytest.raises(ValueError, match="ttl must be at least 50 ms"):
        timing.at_least(ttl)
    assert timing.at_least(50) == 50


@pytest.mark.parametrize(
    ("wrong", "error"),
    [
        (-0.1, ValueError),
        (0.6, ValueError),
        (float("nan"), ValueError),
        ("0.1", TypeError),
        (None, TypeError),
        (True, TypeError),
    ],
)
def test_a_drift_factor_is_a_number_up_to_a_half(wrong: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match="drift_factor"):
        timing.drift_factor(wrong)
    assert [timing.drift_factor(factor) for factor in (0, 0.5)] == [0.0, 0.5]


@given(
    shortest=st.integers(1, 1000),
    more=st.integers(0, 1000),
    attempt=st.integers(1, 10**6),
    chance=st.floats(0, 1, exclude_max=True),
)
def test_each_delay_is_between_the_shortest_and_the_longest(
    shortest: int, more: int, attempt: int, chance: float
) -> None:
    delay = Retry(min_delay=shortest, max_delay=shortest + more).delay(attempt, chance)

    assert shortest <= delay <= shortest + more


def test_delays_grow_from_attempt_to_attempt() -> None:
    retry = Retry(min_delay=10, max_delay=100)
    almost = 1 - 2**-53

    assert [round(retry.delay(n, almost)) for n in (1, 2, 3, 4, 99)] == [20, 40, 80, 100, 100]


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"min_delay": 0}, ValueError),
        ({"min_delay": 20, "max_delay": 10}, ValueError),
        ({"max_delay": 1.5}, TypeError),
        ({"attempts": 0}, ValueError),
        ({"attempts": 1.0}, TypeError),
        ({"attempts": True}, TypeError),
    ],
)
def test_a_retry_checks_its_arguments(arguments: dict[str, int], error: type[Exception]) -> None:
    with pytest.raises(error, match=next(iter(arguments)).partition("_")[0]):
        Retry(**arguments)


@given(
    delay=st.floats(1, 1000),
    wait=st.integers(1, 10**6),
    waited=st.floats(0, 10**6),
    reserve=st.floats(1, 1000),
)
@example(delay=2.0, wait=2, waited=0.12, reserve=1.0)
def test_no_pause_lasts_longer_than_the_wait(
    delay: float, wait: int, waited: float, reserve: float
) -> None:
    pause = retry.pause(delay, wait=wait, waited=waited, reserve=reserve)

    if pause is None:
        assert waited >= wait * 0.9 or waited >= wait - reserve
    else:
        assert 0 < pause <= delay
        # Not `waited + pause <= ...`: the sum is rounded, and 0.12 + 1.68 is more than 1.8.
        assert pause <= wait - min(reserve, wait / 10) - waited


def test_one_attempt_is_enough_and_all_delays_may_be_the_same() -> None:
    retry = Retry(min_delay=20, max_delay=20, attempts=1)
    assert retry.delay(1, 0.9) == 20


@pytest.mark.parametrize(("wait", "last"), [(100, 90), (10_000, 9_950)])
def test_the_last_attempt_comes_before_the_end_of_the_wait(wait: int, last: int) -> None:
    assert retry.pause(10**6, wait=wait, waited=0, reserve=50) == last


def test_a_rounding_error_is_no_pause() -> None:
    assert retry.pause(9, wait=100, waited=90 - 1e-12, reserve=50) is None


def test_without_a_limit_every_pause_is_the_delay() -> None:
    assert retry.pause(123, wait=None, waited=10**9, reserve=50) == 123
