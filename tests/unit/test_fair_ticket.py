"""The state of one fair waiter that follows from the replies of all masters."""

import math

import pytest

from redlock_aio._rules.fair_ticket import (
    ASKED,
    BEHIND,
    FAILED,
    FULL,
    GRANTED,
    NEXT,
    SILENT,
    UNASKED,
    Position,
    Ticket,
)

TTL = 1_000
DRIFT = 0.012
FACTOR = 0.01


def ticket(*standings: Position) -> Ticket:
    """Return the ticket of a waiter after these replies."""
    new = Ticket(len(standings))
    for master, standing in enumerate(standings):
        number = new.ask(master, 0.0)
        if standing is not ASKED:
            new.on_reply(master, number, standing)
    return new


def until(ticket: Ticket) -> float:
    return ticket.until(TTL, factor=FACTOR)


def test_a_majority_of_grants_is_valid_for_as_long_as_its_oldest() -> None:
    waiter = Ticket(5)
    for master, sent in enumerate((3.0, 1.0, 2.0)):
        assert until(waiter) == 0.0
        waiter.on_reply(master, waiter.ask(master, sent), GRANTED)
    assert until(waiter) == pytest.approx(1.0 + 1 - DRIFT)
    waiter.on_reply(3, waiter.ask(3, 2.5), GRANTED)  # would complete a majority of later grants
    assert until(waiter) == pytest.approx(2.0 + 1 - DRIFT)


@pytest.mark.promise("S1")
def test_grants_make_a_majority_only_if_they_were_given_within_a_short_time() -> None:
    """Between an early and a late one the lock may have been released by force."""
    waiter = Ticket(3)
    for master, sent in ((0, 1.0), (1, 5.0)):
        number = waiter.ask(master, sent)
        waiter.on_reply(master, number, GRANTED, done=sent + 0.01)
    assert waiter.until(10_000, factor=FACTOR, within=1.0) == 0.0
    waiter.on_reply(2, waiter.ask(2, 5.1), GRANTED, done=5.11)
    assert waiter.until(10_000, factor=FACTOR, within=1.0) == pytest.approx(5.0 + 10 - 0.102)


@pytest.mark.promise("S1")
def test_a_grant_counts_from_the_request_that_was_answered() -> None:
    waiter = Ticket(1)
    waiter.on_reply(0, waiter.ask(0, 1.0), GRANTED)
    waiter.ask(0, 1.9)  # a renewal without a reply yet
    assert until(waiter) == pytest.approx(1.0 + 1 - DRIFT)
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
    assert until(waiter) == 0.0
    assert waiter.standings == [UNASKED, UNASKED, BEHIND, BEHIND, BEHIND]
    assert not waiter.must_yield


def test_a_reply_to_an_older_request_is_void() -> None:
    waiter = Ticket(3)
    old, new = waiter.ask(0, 0.0), waiter.ask(0, 0.1)
    assert not waiter.on_reply(0, old, GRANTED)
    assert waiter.on_reply(0, new, BEHIND)
    assert waiter.standings[0] is BEHIND


def test_grants_of_a_master_that_may_have_lost_its_memory_are_void() -> None:
    waiter = ticket(GRANTED, GRANTED, GRANTED)
    renewal = waiter.ask(0, 1.0)
    waiter.forget(0)
    waiter.forget(1)
    assert until(waiter) == 0.0
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


@pytest.mark.promise("S7")
def test_only_counters_of_valid_grants_are_used() -> None:
    """A master that has lost its memory has a lower counter."""
    waiter = Ticket(3)

    def counters(now: float = 1.5) -> list[int]:
        return waiter.counters(now, TTL, factor=FACTOR)

    for master, counter in ((0, 9), (1, 7)):
        assert waiter.on_reply(master, waiter.ask(master, 1.0), GRANTED, counter)
    assert counters() == [9, 7]
    assert counters(1.0 + 1 - DRIFT) == []
    waiter.forget(0)
    assert counters() == [7]
    assert waiter.on_reply(0, waiter.ask(0, 1.2), GRANTED, 5)
    assert counters() == [5, 7]
    assert counters(2.1) == [5]
    waiter.give_back()
    assert counters() == []


def granted_at(*grants: tuple[float, float]) -> Ticket:
    """Return the ticket of a waiter whose grants were sent and executed at these times."""
    new = Ticket(3)
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
    assert bool(granted_at(*grants).until(TTL, factor=FACTOR, within=0.1)) is valid


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
    waiter = Ticket(3)
    assert waiter.reached == -math.inf
    for master, sent, standing in [(0, 1.0, BEHIND), (1, 2.0, FULL), (2, 3.0, NEXT)]:
        waiter.on_reply(master, waiter.ask(master, sent), standing)
    assert waiter.reached == 1.0
    waiter.on_reply(1, waiter.ask(1, 4.0), GRANTED)
    assert waiter.reached == 3.0


def test_standings_under_a_new_name() -> None:
    waiter = ticket(BEHIND, NEXT, GRANTED, FULL)
    waiter.start_over()
    assert waiter.standings == [UNASKED] * 4
    assert waiter.may_win(0)
    assert not ticket(BEHIND, BEHIND, UNASKED).may_win(2)
