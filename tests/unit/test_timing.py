from datetime import timedelta

import pytest
from hypothesis import given, strategies as st

from redlock_aio import Retry
from redlock_aio._rules import retry, timing

ttls = st.integers(1, 10**7)
factors = st.floats(0, 0.5)


@pytest.mark.parametrize("wrong", [1.5, True, "10", None])
def test_a_duration_of_another_type_is_refused_by_name(wrong: object) -> None:
    with pytest.raises(TypeError, match="ttl must be an int"):
        timing.milliseconds(wrong, name="ttl")  # type: ignore[arg-type]


@pytest.mark.parametrize("wrong", [0, -1, 10**30, timedelta(0), timedelta(microseconds=1500)])
def test_a_duration_that_no_master_can_keep_is_refused(wrong: int | timedelta) -> None:
    with pytest.raises(ValueError, match="ttl must be"):
        timing.milliseconds(wrong, name="ttl")


def test_zero_is_a_duration_where_it_is_allowed() -> None:
    assert timing.milliseconds(0, name="wait", zero=True) == 0
    assert timing.milliseconds(timedelta(seconds=2), name="wait", zero=True) == 2000


@given(ttl=ttls, began=st.floats(0, 10**6), elapsed=st.floats(0, 10**4), factor=factors)
def test_a_holder_never_believes_longer_than_the_masters(
    ttl: int, began: float, elapsed: float, factor: float
) -> None:
    until = timing.deadline(began, ttl, factor=factor)
    left = timing.remaining(until, began + elapsed)

    # A float's last digit is worth far less than the 2 ms of the drift.
    assert left <= max(0, ttl - elapsed * 1000 - ttl * factor - 2 + 0.001)


def test_the_drift_is_one_percent_and_two_milliseconds() -> None:
    assert timing.drift(10_000, factor=timing.DRIFT_FACTOR) == 102
    assert timing.drift(1, factor=timing.DRIFT_FACTOR) == 3


@pytest.mark.parametrize("ttl", [1, 10, 49])
def test_a_ttl_that_was_meant_in_seconds_is_refused(ttl: int) -> None:
    with pytest.raises(ValueError, match="ttl must be at least 50 ms"):
        timing.at_least(ttl)
    assert timing.at_least(50) == 50


def test_something_of_the_shortest_ttl_is_left_after_the_largest_drift() -> None:
    assert timing.drift(timing.SHORTEST_TTL, factor=0.5) < timing.SHORTEST_TTL


@pytest.mark.parametrize("wrong", [-0.1, 0.6, float("nan")])
def test_a_drift_factor_without_sense_is_refused(wrong: float) -> None:
    with pytest.raises(ValueError, match="drift_factor"):
        timing.drift_factor(wrong)


@pytest.mark.parametrize("wrong", ["0.1", None, True])
def test_a_drift_factor_of_another_type_is_refused(wrong: object) -> None:
    with pytest.raises(TypeError, match="drift_factor"):
        timing.drift_factor(wrong)  # type: ignore[arg-type]


@given(
    shortest=st.integers(1, 1000),
    more=st.integers(0, 1000),
    attempt=st.integers(1, 10**6),
    chance=st.floats(0, 1, exclude_max=True),
)
def test_every_delay_lies_between_the_two_that_were_asked_for(
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
def test_a_retry_without_sense_is_refused(
    arguments: dict[str, int], error: type[Exception]
) -> None:
    with pytest.raises(error, match=next(iter(arguments)).partition("_")[0]):
        Retry(**arguments)


@given(
    delay=st.floats(1, 1000),
    wait=st.integers(1, 10**6),
    waited=st.floats(0, 10**6),
    reserve=st.floats(1, 1000),
)
def test_no_pause_lasts_longer_than_the_wait(
    delay: float, wait: int, waited: float, reserve: float
) -> None:
    pause = retry.pause(delay, wait=wait, waited=waited, reserve=reserve)

    if pause is None:
        assert waited >= wait * 0.9 or waited >= wait - reserve
    else:
        assert 0 < pause <= delay
        assert waited + pause <= wait - min(reserve, wait / 10)


def test_a_rounding_error_is_no_pause() -> None:
    assert retry.pause(9, wait=100, waited=90 - 1e-12, reserve=50) is None


def test_without_a_limit_every_pause_is_the_delay() -> None:
    assert retry.pause(123, wait=None, waited=10**9, reserve=50) == 123
