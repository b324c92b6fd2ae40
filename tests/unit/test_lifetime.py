import math

import pytest
from hypothesis import given, settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from redlock_aio._rules import timing
from redlock_aio._rules.lease_state import HELD, LOST, MARGIN, RELEASED, LeaseState

FACTOR = 0.01


def lifetime(ttl: int = 1000, *, renewed: bool = True, ends: float = math.inf) -> LeaseState:
    deadline = timing.deadline(0.0, ttl, factor=FACTOR)
    life = LeaseState(0.0, deadline, ttl, FACTOR, renewed)
    life.limit(ends)
    return life


def test_it_is_valid_until_its_deadline_and_not_at_it() -> None:
    life = lifetime()

    assert life.valid(life.deadline - 1e-9)
    assert not life.valid(life.deadline)
    assert life.expired(life.deadline - MARGIN)
    assert not life.expired(life.deadline - 2 * MARGIN)


@given(chance=st.floats(0, 1, exclude_max=True), ttl=st.integers(5, 10**7))
def test_a_renewal_leaves_time_for_several_more(chance: float, ttl: int) -> None:
    life = lifetime(ttl)
    life.schedule_renewal(0.0, chance)

    assert 0 < life.due <= ttl / 1000 / 3 + 1e-9
    assert life.due >= ttl / 1000 * 0.28 or life.due < life.deadline / 2


def test_the_margin_leaves_most_of_a_short_ttl() -> None:
    life = lifetime(5)

    assert life.deadline == 0.002
    assert not life.expired(0.0007)
    assert life.expired(0.0008)


def test_without_renewal_only_the_deadline_is_due() -> None:
    life = lifetime(renewed=False)
    life.schedule_renewal(0.0, 0.5)

    assert life.due == pytest.approx(life.deadline - MARGIN)


def test_an_extension_that_is_granted_in_time_moves_the_deadline() -> None:
    life = lifetime()
    number = life.begin_extension(0.5, 1000)

    assert life.extended(number, 0.5, 1000, 0.6)
    assert life.deadline == timing.deadline(0.5, 1000, factor=FACTOR)


@pytest.mark.promise("S4")
def test_an_extension_that_is_granted_too_late_revives_nothing() -> None:
    life = lifetime()
    number = life.begin_extension(0.5, 1000)

    assert not life.extended(number, 0.5, 1000, life.deadline)
    assert not life.valid(life.deadline)


def test_an_extension_to_less_counts_from_the_moment_it_is_sent() -> None:
    life = lifetime(10_000)
    life.begin_extension(1.0, 100)

    assert life.deadline == timing.deadline(1.0, 100, factor=FACTOR)
    assert life.longest_ttl == 10_000


def test_an_extension_does_not_count_that_a_shorter_one_followed() -> None:
    life = lifetime(10_000)
    first = life.begin_extension(1.0, 10_000)
    second = life.begin_extension(1.1, 100)

    assert not life.extended(first, 1.0, 10_000, 1.15)
    assert life.deadline == timing.deadline(1.1, 100, factor=FACTOR)
    assert life.extended(second, 1.1, 100, 1.15)
    assert life.ttl == 100


def test_an_extension_counts_that_one_of_no_less_followed() -> None:
    life = lifetime(1000)
    first = life.begin_extension(0.5, 1000)
    second = life.begin_extension(0.6, 2000)

    assert life.extended(first, 0.5, 1000, 0.7)
    assert life.deadline == timing.deadline(0.5, 1000, factor=FACTOR)
    assert life.extended(second, 0.6, 2000, 0.8)
    assert life.extended(first, 0.5, 1000, 0.9)
    assert life.deadline == timing.deadline(0.6, 2000, factor=FACTOR)
    assert life.ttl == 2000


def test_max_hold_ends_it_whatever_is_extended() -> None:
    life = lifetime(1000, ends=1.5)
    number = life.begin_extension(0.9, 1000)
    assert life.extended(number, 0.9, 1000, 0.95)

    assert life.deadline == 1.5
    life.schedule_renewal(0.95, 0.0)
    assert life.due == pytest.approx(1.5 - MARGIN)
    assert "max_hold" in life.why_expired()


def test_what_is_lost_is_lost_for_good() -> None:
    life = lifetime()
    life.lose("gone")
    life.lose("again")

    assert (life.state, life.reason) == (LOST, "gone")
    assert not life.release(0.1)
    assert not life.extended(life.begin_extension(0.1, 1000), 0.1, 1000, 0.2)


def test_a_release_after_the_deadline_is_a_loss() -> None:
    life = lifetime()

    assert not life.release(life.deadline)
    assert life.state is LOST
    assert repr(life).startswith("<LeaseState lost")


class MastersObey(RuleBasedStateMachine):
    """A holder against masters that obey whatever they were sent, each at any later moment."""

    @initialize(ttl=st.integers(10, 20_000))
    def acquire(self, ttl: int) -> None:
        self.now = 0.0
        self.life = lifetime(ttl)
        # Until when a majority is known to keep the key. Each command that was
        # sent may have been obeyed by any master, so what has been agreed to is
        # worth no more than the least that was promised since.
        self.key_ends = ttl / 1000
        self.sent: list[tuple[int, float, int]] = []
        self.underway: list[int] = []

    @rule(seconds=st.floats(0, 3))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds

    @rule(ttl=st.integers(10, 20_000))
    def an_extension_is_sent(self, ttl: int) -> None:
        if self.life.state is HELD:
            epoch = self.life.begin_extension(self.now, ttl)
            self.underway.append(len(self.sent))
            self.sent.append((epoch, self.now, ttl))
            self.key_ends = min(self.key_ends, self.now + ttl / 1000)

    @precondition(lambda self: self.underway)
    @rule(data=st.data())
    def an_extension_is_answered(self, data: st.DataObject) -> None:
        number = data.draw(st.sampled_from(self.underway))
        self.underway.remove(number)
        epoch, began, ttl = self.sent[number]
        promised = min(sent + ttl / 1000 for _, sent, ttl in self.sent[number:])
        self.key_ends = max(self.key_ends, promised)
        if self.life.extended(epoch, began, ttl, self.now):
            assert self.life.valid(self.now)

    @rule()
    def it_is_released(self) -> None:
        was_valid = self.life.valid(self.now)
        assert self.life.release(self.now) == was_valid

    @invariant()
    def nobody_believes_longer_than_the_masters(self) -> None:
        if self.life.valid(self.now):
            assert self.now < self.key_ends
            assert self.life.deadline <= self.key_ends
        if self.life.state is RELEASED:
            assert not self.life.valid(self.now)


MastersObey.TestCase.settings = settings(stateful_step_count=20, deadline=None)
test_a_holder_never_believes_longer_than_its_masters = MastersObey.TestCase
