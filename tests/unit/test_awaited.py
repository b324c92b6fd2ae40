"""What a fair waiter awaits from one master, without I/O and without a clock."""

import math

from redlock_aio._rules.fair_ticket import MOST_REPEATS, Awaited


def test_each_request_is_owed_a_reply_also_when_a_later_one_has_replaced_it() -> None:
    awaited = Awaited(1.0, received=0)
    awaited.ask(2.0, received=0)
    assert (awaited.requests, awaited.due) == (2, 2.0)


def test_a_wait_is_prolonged_only_if_something_has_arrived_since_it_began() -> None:
    awaited = Awaited(1.0, received=7)
    assert not awaited.prolong(2.0, received=7)
    assert awaited.due == 1.0
    assert awaited.prolong(2.0, received=8)
    assert awaited.due == 2.0
    assert not awaited.prolong(3.0, received=8), "nothing has arrived since it was prolonged"
    awaited.ask(4.0, received=9)
    assert not awaited.prolong(5.0, received=9), "nothing has arrived since the last request"


def test_a_reply_that_needs_no_repetition_is_the_end_of_the_wait() -> None:
    awaited = Awaited(1.0, received=0)
    awaited.settle()
    assert awaited.due == math.inf


def test_only_repetitions_in_a_row_are_limited() -> None:
    awaited = Awaited(1.0, received=0)
    for _ in range(2):
        assert [awaited.may_repeat() for _ in range(MOST_REPEATS + 1)] == [
            *[True] * MOST_REPEATS,
            False,
        ]
        awaited.settle()
