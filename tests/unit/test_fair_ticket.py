"""The state of one fair waiter that follows from the replies of all masters."""

import math

import pytest
from hypothesis import given, strategies as st

from redlock_aio._rules.fair_ticket import (
    ASIDE,
    ASKED,
    BEHIND,
    FAILED,
    FULL,
    GRANTED,
    NEXT,
    SILENT,
    UNASKED,
    UNREACHED,
    Move,
    Position,
    Ticket,
)

VALID = 0.988
"""Seconds: a ttl of 1 s without the drift."""


def ticket(*standings: Position) -> Ticket:
    """Return the ticket of a waiter after these replies."""
    new = Ticket(len(standings), VALID)
    for master, standing in enumerate(standings):
        number = new.ask(master, 0.0)
        if standing is not ASKED:
            new.on_reply(master, number, standing)
    return new


def test_a_majority_of_grants_is_valid_for_as_long_as_its_oldest() -> None:
    waiter = Ticket(5, VALID)
    for master, sent in enumerate((3.0, 1.0, 2.0)):
        assert waiter.until() == 0.0
        waiter.on_reply(master, waiter.ask(master, sent), GRANTED)
    assert waiter.until() == pytest.approx(1.0 + VALID)
    waiter.on_reply(3, waiter.ask(3, 2.5), GRANTED)  # would complete a majority of later grants
    assert waiter.until() == pytest.approx(2.0 + VALID)


@pytest.mark.promise("S1")
def test_grants_make_a_majority_only_if_they_were_given_within_a_short_time() -> None:
    """Between an early and a late one the lock may have been released by force."""
    waiter = Ticket(3, VALID)
    for master, sent in ((0, 1.0), (1, 5.0)):
        number = waiter.ask(master, sent)
        waiter.on_reply(master, number, GRANTED, done=sent + 0.01)
    assert waiter.until(within=1.0) == 0.0
    waiter.on_reply(2, waiter.ask(2, 5.1), GRANTED, done=5.11)
    assert waiter.until(within=1.0) == pytest.approx(5.0 + VALID)


@pytest.mark.promise("S1")
def test_a_grant_counts_from_the_request_that_was_answered() -> None:
    waiter = Ticket(1, VALID)
    waiter.on_reply(0, waiter.ask(0, 1.0), GRANTED)
    waiter.ask(0, 1.9)  # a renewal without a reply yet
    assert waiter.until() == pytest.approx(1.0 + VALID)
    assert waiter.standings == [GRANTED]


@pytest.mark.promise("S1")
def test_replies_to_requests_before_a_give_back_are_void() -> None:
    waiter = ticket(GRANTED, GRANTED, BEHIND, BEHIND, ASKED)
    assert not waiter.must_yield
    waiter.on_reply(4, waiter.ask(4, 0.0), BEHIND)
    assert waiter.must_yield
    renewal = waiter.ask(0, 0.1)
    waiter.give_back()
    assert not waiter.on_reply(0, renewal, GRANTED)
    assert waiter.until() == 0.0
    assert waiter.standings == [UNASKED, UNASKED, BEHIND, BEHIND, BEHIND]
    assert not waiter.must_yield


def test_a_reply_to_an_older_request_is_void() -> None:
    waiter = Ticket(3, VALID)
    old, new = waiter.ask(0, 0.0), waiter.ask(0, 0.1)
    assert not waiter.on_reply(0, old, GRANTED)
    assert waiter.on_reply(0, new, BEHIND)
    assert waiter.standings[0] is BEHIND


def test_grants_of_a_master_that_may_have_lost_its_memory_are_void() -> None:
    waiter = ticket(GRANTED, GRANTED, GRANTED)
    renewal = waiter.ask(0, 1.0)
    waiter.forget(0)
    waiter.forget(1)
    assert waiter.until() == 0.0
    assert not waiter.on_reply(0, renewal, GRANTED)


@pytest.mark.parametrize(
    ("standings", "yields"),
    [
        ((GRANTED, GRANTED, BEHIND, BEHIND, BEHIND), True),
        ((GRANTED, GRANTED, FULL, BEHIND, FAILED), True),
        ((GRANTED, GRANTED, BEHIND, BEHIND, NEXT), False),  # the lock may become free there
        ((GRANTED, GRANTED, BEHIND, BEHIND, ASKED), False),
        ((GRANTED, GRANTED, NEXT, NEXT, NEXT), False),  # no other waiter needs its grants
        ((SILENT, GRANTED, BEHIND, BEHIND, BEHIND), True),
        ((SILENT, NEXT, BEHIND, BEHIND, BEHIND), True),  # that master may have granted the lock
        ((BEHIND, BEHIND, BEHIND, BEHIND, BEHIND), False),  # there is nothing to give back
        ((GRANTED, BEHIND), True),
        ((GRANTED, GRANTED, BEHIND, BEHIND), True),
    ],
)
def test_grants_that_cannot_become_a_majority_are_given_back(
    standings: tuple[Position, ...], yields: bool
) -> None:
    assert ticket(*standings).must_yield is yields


def test_it_is_known_when_no_wait_can_help() -> None:
    assert ticket(FULL, FULL, FULL, GRANTED, ASKED).refused
    assert not ticket(FULL, FULL, BEHIND, BEHIND, BEHIND).refused
    assert ticket(NEXT, NEXT, BEHIND, ASKED, ASKED).lost
    assert not ticket(NEXT, BEHIND, GRANTED, ASKED, ASKED).lost
    assert ticket(NEXT, BEHIND, GRANTED, ASKED, ASKED).may_win_soon
    assert not ticket(UNASKED, BEHIND, GRANTED, ASKED, BEHIND).may_win_soon, "it has given back"


@pytest.mark.promise("S7")
def test_only_counters_of_valid_grants_are_used() -> None:
    """A master that has lost its memory has a lower counter."""
    waiter = Ticket(3, VALID)

    def counters(now: float = 1.5) -> list[int]:
        return waiter.counters(now)

    for master, counter in ((0, 9), (1, 7)):
        assert waiter.on_reply(master, waiter.ask(master, 1.0), GRANTED, counter)
    assert counters() == [9, 7]
    assert counters(1.0 + VALID) == []
    waiter.forget(0)
    assert counters() == [7]
    assert waiter.on_reply(0, waiter.ask(0, 1.2), GRANTED, 5)
    assert counters() == [5, 7]
    assert counters(2.1) == [5]
    waiter.give_back()
    assert counters() == []


def granted_at(*grants: tuple[float, float]) -> Ticket:
    """Return the ticket of a waiter whose grants were sent and executed at these times."""
    new = Ticket(3, VALID)
    for master, (sent, done) in enumerate(grants):
        new.on_reply(master, new.ask(master, sent), GRANTED, done=done)
    return new


@pytest.mark.promise("S1")
@pytest.mark.parametrize(
    ("grants", "valid"),
    [
        ([(1.0, 1.0), (1.05, 1.1)], True),
        ([(1.0, 1.0), (1.05, 1.11)], False),  # before and after a forced release, perhaps
        ([(1.0, 1.0), (1.05, 1.11), (1.06, 1.12)], True),
        ([(1.0, 1.05)], False),
    ],
)
def test_only_grants_of_nearly_the_same_time_are_added_up(
    grants: list[tuple[float, float]], valid: bool
) -> None:
    assert bool(granted_at(*grants).until(within=0.1)) is valid


def test_grants_and_silence_are_stale_after_a_time() -> None:
    waiter = ticket(BEHIND, NEXT, FAILED)
    assert waiter.stale_at(0.1) == math.inf
    waiter.on_reply(0, waiter.ask(0, 3.0), GRANTED)
    waiter.on_reply(1, waiter.ask(1, 2.0), SILENT)
    assert waiter.stale_at(0.1) == pytest.approx(2.1)
    waiter.ask(0, 4.0)  # the grant counts from the request that was answered
    waiter.on_reply(1, waiter.ask(1, 5.0), BEHIND)
    assert waiter.stale_at(0.1) == pytest.approx(3.1)
    waiter.ask(2, 5.0)  # its reply may complete a majority
    assert waiter.stale_at(0.1) == math.inf


def test_a_majority_is_reached_with_its_last_helpful_answers() -> None:
    waiter = Ticket(3, VALID)
    assert waiter.reached == -math.inf
    for master, sent, standing in [(0, 1.0, BEHIND), (1, 2.0, FULL), (2, 3.0, NEXT)]:
        waiter.on_reply(master, waiter.ask(master, sent), standing)
    assert waiter.reached == 1.0
    waiter.on_reply(1, waiter.ask(1, 4.0), GRANTED)
    assert waiter.reached == 3.0
    four = ticket(NEXT, NEXT, NEXT, NEXT)
    for master in range(4):
        four.on_reply(master, four.ask(master, master + 1.0), NEXT)
    assert four.reached == 2.0  # three of four are a majority


def test_standings_under_a_new_name() -> None:
    waiter = ticket(BEHIND, NEXT, GRANTED, FULL)
    waiter.outside = 0b1111
    waiter.start_over(7.0)
    assert not waiter.outside
    assert waiter.standings == [UNASKED] * 4
    assert waiter.unreached_since == 7.0
    assert waiter.may_win(0)
    assert not ticket(BEHIND, BEHIND, UNASKED).may_win(2)


def move(waiter: Ticket, now: float = 0.0, *, patient: bool = True) -> Move:
    return waiter.move(now, patient=patient, within=0.1)


@pytest.mark.parametrize(
    ("standings", "expected"),
    [
        ((GRANTED, ASKED, ASKED), Move.WAIT),
        ((NEXT, ASKED, ASKED), Move.WAIT),
        ((NEXT, NEXT, ASKED), Move.QUEUE),
        ((FULL, BEHIND, ASKED), Move.QUEUE),
        ((FULL, FULL, GRANTED), Move.REFUSE),
        ((GRANTED, BEHIND, BEHIND), Move.YIELD),
        ((SILENT, BEHIND, BEHIND), Move.YIELD),
        ((GRANTED, NEXT, NEXT), Move.QUEUE),
        ((GRANTED, GRANTED, BEHIND, NEXT), Move.QUEUE),
    ],
)
def test_the_move_that_follows_from_the_standings(
    standings: tuple[Position, ...], expected: Move
) -> None:
    waiter = ticket(*standings)
    assert move(waiter) is expected
    impatient = {Move.WAIT: Move.WAIT, Move.REFUSE: Move.REFUSE}
    assert move(waiter, patient=False) is impatient.get(expected, Move.FAIL)


@pytest.mark.promise("S1")
def test_the_move_of_a_majority_of_grants_follows_from_their_age() -> None:
    waiter = granted_at((1.0, 1.0), (1.05, 1.1))
    assert move(waiter, 1.1) is Move.WIN
    assert move(waiter, 1.0 + VALID) is Move.GIVE_BACK
    assert move(waiter, 1.0 + VALID, patient=False) is Move.FAIL
    assert move(granted_at((1.0, 1.0), (1.05, 1.11)), 1.2) is Move.ASK_ANEW


def test_grants_that_nobody_asked_for_are_given_back_when_they_are_stale() -> None:
    waiter = granted_at((1.0, 1.0))
    assert move(waiter, 1.09) is Move.WAIT
    assert waiter.moves_at(0.1) == pytest.approx(1.1)
    assert move(waiter, 1.11) is Move.GIVE_BACK
    waiter.on_reply(1, waiter.ask(1, 1.0), NEXT)
    waiter.on_reply(2, waiter.ask(2, 1.0), NEXT)
    assert move(waiter, 1.09) is Move.QUEUE
    assert move(waiter, 1.11) is Move.YIELD


@pytest.mark.promise("S8")
def test_a_waiter_with_a_grant_without_an_entry_yields_and_enters() -> None:
    waiter = Ticket(4, VALID)
    waiter.ask_first(0.0)
    waiter.on_reply(0, 1, GRANTED)
    waiter.on_reply(1, 1, NEXT)
    assert move(waiter) is Move.WAIT
    waiter.on_reply(2, 1, NEXT)
    assert move(waiter) is Move.YIELD_AND_ENTER
    waiter.outside = 0b1110  # the grant is that of a member of the queue
    assert move(waiter) is Move.QUEUE
    waiter.give_back()
    assert not waiter.outside


@pytest.mark.promise("S8")
def test_a_waiter_that_no_majority_answers_steps_aside_until_one_does() -> None:
    waiter = Ticket(3, VALID)
    waiter.ask_first(1.0)
    waiter.on_reply(0, 1, BEHIND)
    leaves_at = 1.0 + UNREACHED
    assert waiter.moves_at(0.1) == leaves_at
    assert move(waiter, leaves_at - 0.01) is Move.WAIT
    assert move(waiter, leaves_at) is Move.STEP_ASIDE
    waiter.aside = True
    waiter.start_over(leaves_at)
    assert waiter.moves_at(0.1) == math.inf
    for master in (0, 1):
        assert move(waiter, leaves_at + 100) is Move.WAIT
        waiter.on_reply(master, waiter.ask(master, leaves_at), ASIDE)
    assert move(waiter, leaves_at + 100) is Move.RETURN


def test_a_majority_that_answers_sets_back_the_time_to_leave() -> None:
    waiter = Ticket(3, VALID)
    waiter.ask_first(1.0)
    for master in (0, 1):
        waiter.on_reply(master, 1, BEHIND)
    assert waiter.leaves_at == math.inf
    waiter.heartbeat(2.0)
    assert waiter.leaves_at == 2.0 + UNREACHED
    waiter.heartbeat(3.0)  # nobody has answered the one before
    assert waiter.leaves_at == 2.0 + UNREACHED


reached_standings = st.lists(st.sampled_from(list(Position)), min_size=1, max_size=6)
instants = st.floats(0, 4)


@given(st.data(), reached_standings, st.booleans(), st.booleans())
def test_no_move_breaks_a_rule_of_the_queue(
    data: st.DataObject, reached: list[Position], patient: bool, aside: bool
) -> None:
    """A win needs a fresh majority, and a waiter that can't win keeps no grant."""
    waiter = Ticket(len(reached), VALID)
    waiter.ask_first(0.0)
    waiter.outside &= data.draw(st.integers(0))
    waiter.aside = aside
    for master, standing in enumerate(reached):
        sent = data.draw(instants)
        number = waiter.ask(master, sent)
        if standing is not ASKED:
            waiter.on_reply(master, number, standing, done=sent + data.draw(st.floats(0, 0.2)))
    now = data.draw(instants)
    move = waiter.move(now, patient=patient, within=0.1)
    granted = [i for i, standing in enumerate(reached) if standing is GRANTED]
    if move is Move.WIN:
        begins = waiter.until(0.1) - VALID
        fresh = [i for i in granted if waiter._sent[i] >= begins - 1e-9]
        assert len([i for i in fresh if waiter._done[i] <= begins + 0.1 + 1e-9]) >= waiter.needed
        assert now < begins + VALID
    elif move in (Move.WAIT, Move.QUEUE) and (granted or SILENT in reached) and not aside:
        # The grants may still become a majority, and no other waiter needs them.
        assert not waiter.must_yield
        assert now < waiter.stale_at(0.1)
        assert not (
            waiter.lost and waiter.outside and any(waiter.outside >> i & 1 for i in granted)
        )
    if move in (Move.ASK_ANEW, Move.GIVE_BACK, Move.YIELD, Move.YIELD_AND_ENTER):
        void = list(waiter._numbers)
        waiter.give_back()
        assert GRANTED not in waiter.standings
        assert not any(waiter.on_reply(i, number, GRANTED) for i, number in enumerate(void))
        assert waiter.move(now, patient=True, within=0.1) is not Move.WIN
