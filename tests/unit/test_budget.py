"""How long an acquisition may take, by a clock that the tests set."""

import math

import pytest

from redlock_aio._engine.wait_budget import WaitBudget


class Clock:
    """A clock that stands until it is set."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def test_a_budget_without_a_limit_is_never_over(clock: Clock) -> None:
    budget = WaitBudget(clock, None, clock())
    clock.now += 1e9
    assert budget.left() == math.inf
    assert not budget.is_over
    assert budget.until_last_attempt(50) == math.inf
    assert budget.attempt_limit() is None


def test_what_is_left_is_counted_from_the_begin(clock: Clock) -> None:
    budget = WaitBudget(clock, 1000, clock())
    clock.now += 0.25
    assert budget.left() == pytest.approx(750)
    clock.now += 0.75
    assert budget.left() == pytest.approx(0)
    assert budget.is_over
    clock.now += 1
    assert budget.left() == pytest.approx(-1000)


def test_a_rounding_error_is_nothing_left(clock: Clock) -> None:
    budget = WaitBudget(clock, 10, clock())
    clock.now += 0.009995
    assert 0 < budget.left() < 0.01
    assert budget.is_over


def test_the_last_attempt_is_made_so_early_that_it_can_be_answered(clock: Clock) -> None:
    budget = WaitBudget(clock, 1000, clock())
    assert budget.until_last_attempt(50) == pytest.approx(950)
    assert budget.until_last_attempt(500) == pytest.approx(900)  # a tenth of the wait at most
    clock.now += 0.95
    assert budget.until_last_attempt(50) is None


def test_a_wait_of_0_is_one_attempt_without_a_limit_of_its_own(clock: Clock) -> None:
    budget = WaitBudget(clock, 0, clock())
    assert budget.is_over
    assert budget.until_last_attempt(50) is None
    assert budget.attempt_limit() is None


def test_an_attempt_may_take_what_is_left_but_at_least_1_ms(clock: Clock) -> None:
    budget = WaitBudget(clock, 100, clock())
    assert budget.attempt_limit() == pytest.approx(100)
    clock.now += 0.2
    assert budget.attempt_limit() == pytest.approx(1.0)
    assert repr(budget) == "<WaitBudget 100 ms, -100 left>"
