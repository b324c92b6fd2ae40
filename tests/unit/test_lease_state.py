"""The states of one lease, without a clock or a master."""

import math

import pytest
from hypothesis import given, settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from redlock_aio._rules import timing
from redlock_aio._rules.causes import Loss, LossCause
from redlock_aio._rules.lease_state import (
    HELD,
    LOST,
    MARGIN,
    RELEASED,
    RENEW_SPREAD,
    STEP,
    STEP_SHARE,
    LeaseState,
)

FACTOR = 0.01


def deadline(began: float, ttl: int) -> float:
    return timing.deadline(began, ttl, factor=FACTOR)


def acquired(ttl: int = 1000, *, renewed: bool = True, ends: float = math.inf) -> LeaseState:
    """Return a lease that was acquired at 0.0."""
    state = LeaseState(deadline(0.0, ttl), ttl, FACTOR, renewed)
    state.limit(ends)
    return state


def test_it_is_valid_until_its_deadline_and_not_at_it() -> None:
    state = acquired()
    assert state.valid(state.deadline - 1e-9)
    assert not state.valid(state.deadline)
    assert state.expired(state.deadline - MARGIN)
    assert not state.expired(state.deadline - 2 * MARGIN)


def test_the_margin_leaves_most_of_a_short_ttl() -> None:
    state = acquired(5)
    assert state.deadline == 0.002
    assert not state.expired(0.0007)
    assert state.expired(0.0008)


@given(chance=st.floats(0, 1, exclude_max=True), ttl=st.integers(5, 10**7))
def test_an_extension_is_due_early_enough_for_more(chance: float, ttl: int) -> None:
    state = acquired(ttl)
    state.schedule_renewal(0.0, chance)
    assert 0 < state.due <= ttl / 1000 / 3 + 1e-9
    assert state.due >= ttl / 1000 * 0.28 or state.due < state.deadline / 2


@given(
    chance=st.floats(0, 1, exclude_max=True),
    ttl=st.integers(50, 10**7),
    now=st.floats(0, 10**6),
)
def test_extensions_that_are_due_within_a_step_are_due_together(
    chance: float, ttl: int, now: float
) -> None:
    state = LeaseState(deadline(now, ttl), ttl, FACTOR, renewed=True)
    state.schedule_renewal(now, chance)
    step = min(STEP, ttl * STEP_SHARE / 1000)
    steps = state.due / step
    assert steps == pytest.approx(round(steps), abs=1e-3)
    # Exactly one step less happens, too: the instants are rounded.
    assert state.due > now + ttl / 1000 / 3 * (1 - RENEW_SPREAD) - step * (1 + 1e-6)


@given(share=st.floats(0, 0.48), ttl=st.integers(1000, 10**7))
def test_an_answer_that_takes_as_long_again_comes_in_time(share: float, ttl: int) -> None:
    state = acquired(ttl)
    took = share * ttl / 1000
    state.schedule_renewal(took, 0.0, took)
    assert state.due + took < state.deadline


def test_without_renewal_only_the_loss_is_due() -> None:
    state = acquired(renewed=False)
    state.schedule_renewal(0.0, 0.5)
    assert state.due == pytest.approx(state.deadline - MARGIN)


@pytest.mark.promise("S4")
def test_an_extension_holds_if_it_is_granted_before_the_deadline() -> None:
    state = acquired()
    epoch = state.begin_extension(0.5, 1000)
    assert state.extended(epoch, 0.5, 1000, 0.6)
    assert state.deadline == deadline(0.5, 1000)
    assert not state.extended(epoch, 0.5, 1000, state.deadline)
    assert not state.valid(state.deadline)


@pytest.mark.promise("S4")
def test_an_extension_that_is_granted_after_the_deadline_revives_nothing() -> None:
    state = acquired()
    over = state.deadline
    epoch = state.begin_extension(0.9, 1000)
    assert not state.extended(epoch, 0.9, 1000, over)
    assert not state.valid(over)


def test_a_shorter_extension_counts_from_when_it_is_sent() -> None:
    state = acquired(10_000)
    first = state.begin_extension(1.0, 10_000)
    second = state.begin_extension(1.1, 100)
    assert state.deadline == deadline(1.1, 100)
    assert state.due == pytest.approx(state.deadline - MARGIN)
    assert state.longest_ttl == 10_000
    assert not state.extended(first, 1.0, 10_000, 1.15), "a shorter one followed it"
    assert state.deadline == deadline(1.1, 100)
    assert state.extended(second, 1.1, 100, 1.15)
    assert state.ttl == 100


def test_an_extension_counts_if_none_that_follows_is_shorter() -> None:
    state = acquired(1000)
    first = state.begin_extension(0.5, 1000)
    second = state.begin_extension(0.6, 2000)
    assert state.extended(first, 0.5, 1000, 0.7)
    assert state.deadline == deadline(0.5, 1000)
    assert state.extended(second, 0.6, 2000, 0.8)
    assert state.extended(first, 0.5, 1000, 0.9)
    assert state.deadline == deadline(0.6, 2000)
    assert state.ttl == 2000
    third = state.begin_extension(0.9, 2000)
    state.begin_extension(0.9, 2000)
    assert state.extended(third, 0.9, 2000, 1.0), "the one that follows is as long"


def test_no_extension_moves_the_end_by_max_hold() -> None:
    state = acquired(1000, ends=1.5)
    epoch = state.begin_extension(0.9, 1000)
    assert state.extended(epoch, 0.9, 1000, 0.95)
    assert state.deadline == 1.5
    state.schedule_renewal(0.95, 0.0)
    assert state.due == pytest.approx(1.5 - MARGIN)
    assert state.why_expired() == Loss(LossCause.MAX_HOLD)


def test_a_failed_extension_is_repeated_after_half_of_the_time_left() -> None:
    state = acquired(1200)
    last = state.deadline - MARGIN
    for left, pause in [(1.0, 0.1), (0.1, 0.05), (0.011, 0.006), (0.004, 0.004), (-1.0, -1.0)]:
        state.schedule_retry(last - left)
        assert state.due == pytest.approx(last - left + pause)


def test_a_stall_is_the_reason_for_a_loss_that_it_may_have_caused() -> None:
    state = acquired(1200)  # a failed extension is repeated after 0.1 s
    last = state.deadline - MARGIN
    for began, ended, stalled in [
        (last - 0.08, last + 0.01, False),
        (last - 0.08, last + 0.03, True),
        (last - 0.2, last - 0.01, False),
        (last + 0.01, last + 0.2, False),
    ]:
        cause = state.why_expired((began, ended)).cause
        assert cause is (LossCause.LOOP_STALLED if stalled else LossCause.NOT_EXTENDED)


def test_a_lost_lease_stays_lost() -> None:
    state = acquired()
    state.lose(Loss(LossCause.KEY_GONE))
    state.lose(Loss(LossCause.FORCED))
    assert (state.state, state.loss) == (LOST, Loss(LossCause.KEY_GONE))
    assert not state.release(0.1)
    assert not state.extended(state.begin_extension(0.1, 1000), 0.1, 1000, 0.2)


def test_a_release_after_the_deadline_is_a_loss() -> None:
    state = acquired()
    assert not state.release(state.deadline)
    assert state.state is LOST
    assert repr(state).startswith("<LeaseState lost")


class HolderAndMasters(RuleBasedStateMachine):
    """A holder, and masters that execute each of its requests at any later moment."""

    @initialize(ttl=st.integers(10, 20_000))
    def acquire(self, ttl: int) -> None:
        self.now = 0.0
        self.state = acquired(ttl)
        # The time until which a majority certainly keeps the key. Any master may have executed
        # each request that was sent, so after a granted extension the least ttl that was
        # requested since it counts.
        self.key_ends = ttl / 1000
        self.sent: list[tuple[int, float, int]] = []
        self.underway: list[int] = []
        self.was_over = False

    @rule(seconds=st.floats(0, 3))
    def wait(self, seconds: float) -> None:
        self.now += seconds

    @rule()
    def wait_for_the_deadline(self) -> None:
        self.now = max(self.now, self.state.deadline)

    @rule(ttl=st.integers(10, 20_000))
    def send_an_extension(self, ttl: int) -> None:
        if self.state.state is HELD:
            epoch = self.state.begin_extension(self.now, ttl)
            self.underway.append(len(self.sent))
            self.sent.append((epoch, self.now, ttl))
            self.key_ends = min(self.key_ends, self.now + ttl / 1000)

    @precondition(lambda self: self.underway)
    @rule(data=st.data())
    def grant_an_extension(self, data: st.DataObject) -> None:
        number = data.draw(st.sampled_from(self.underway))
        self.underway.remove(number)
        epoch, began, ttl = self.sent[number]
        promised = min(sent + ttl / 1000 for _, sent, ttl in self.sent[number:])
        self.key_ends = max(self.key_ends, promised)
        before = self.state.deadline
        later_promised = min(
            (deadline(sent, other) for _, sent, other in self.sent[number + 1 :]), default=math.inf
        )
        if self.state.extended(epoch, began, ttl, self.now):
            assert self.state.valid(self.now)
            assert before <= self.state.deadline <= max(before, deadline(began, ttl))
            assert self.state.deadline <= max(before, later_promised)
        else:  # too late, or a later extension promised less: it moves nothing
            assert self.state.deadline == before

    @precondition(lambda self: len(self.sent) > 2)  # late: what is over has few further steps
    @rule(cause=st.sampled_from(LossCause))
    def lose(self, cause: LossCause) -> None:
        before = self.state.loss
        self.state.lose(Loss(cause))
        assert before is None or self.state.loss == before

    @precondition(lambda self: len(self.sent) > 2)
    @rule()
    def release(self) -> None:
        was_valid = self.state.valid(self.now)
        assert self.state.release(self.now) == was_valid

    @invariant()
    def what_is_over_is_never_valid_again(self) -> None:
        assert not (self.was_over and self.state.valid(self.now))
        self.was_over = not self.state.valid(self.now)

    @invariant()
    def the_validity_ends_before_the_key(self) -> None:
        if self.state.valid(self.now):
            assert self.now < self.key_ends
            assert self.state.deadline <= self.key_ends
        if self.state.state is RELEASED:
            assert not self.state.valid(self.now)


HolderAndMasters.TestCase.settings = settings(stateful_step_count=20, deadline=None)
test_the_validity_never_outlasts_the_key = pytest.mark.promise("S4")(HolderAndMasters.TestCase)


def test_the_longest_ttl_is_that_of_any_extension_that_was_sent() -> None:
    """A master may have executed each of them, also those that were not granted."""
    state = acquired(1000)
    for ttl in (500, 4000, 2000):
        state.begin_extension(0.1, ttl)
    assert state.longest_ttl == 4000


def test_an_extension_counts_although_one_before_the_last_promised_more() -> None:
    """Only a later one that promises less voids it."""
    state = acquired(1000)
    state.begin_extension(0.1, 10_000)
    shorter = state.begin_extension(0.2, 2000)
    longer = state.begin_extension(0.3, 5000)
    assert state.extended(shorter, 0.2, 2000, 0.4)
    assert state.extended(longer, 0.3, 5000, 0.4)
    assert state.deadline == deadline(0.3, 5000)
