"""Votes and quorum: the count of one round."""

import pytest
from hypothesis import given, strategies as st

from redlock_aio import Answer, Vote
from redlock_aio._rules.quorum import (
    LOST,
    NOT_YET,
    OPEN,
    WON,
    Outcome,
    Tally,
    is_contended,
    majority,
)

ballots = st.lists(st.booleans(), min_size=1, max_size=9)


class Recorded(Tally):
    """A tally that records its calls."""

    def __init__(self, masters: int) -> None:
        super().__init__(masters)
        self.settlements: list[Outcome] = []
        self.refusals: list[tuple[int, object]] = []

    def on_verdict(self) -> None:
        self.settlements.append(self.verdict)

    def declined(self, master: int, reply: object) -> None:
        self.refusals.append((master, reply))


def counted(ballot: list[bool]) -> list[Outcome]:
    tally = Recorded(len(ballot))
    verdicts = []
    for master, granted in enumerate(ballot):
        tally.on_reply(master, b"OK" if granted else "no")
        verdicts.append(tally.verdict)
        assert tally.settlements == ([] if tally.verdict is OPEN else [tally.verdict])
    assert tally.complete
    assert tally.refusals == [(i, "no") for i, granted in enumerate(ballot) if not granted]
    return verdicts


@given(ballots)
def test_a_majority_of_grants_wins_and_nothing_else(ballot: list[bool]) -> None:
    won = ballot.count(True) >= majority(len(ballot))

    assert counted(ballot)[-1] is (WON if won else LOST)


@given(ballots)
def test_a_decided_round_stays_decided(ballot: list[bool]) -> None:
    assert len({verdict for verdict in counted(ballot) if verdict is not OPEN}) == 1


@given(ballots)
def test_a_round_is_open_while_the_rest_can_decide_it(ballot: list[bool]) -> None:
    for given_votes, verdict in enumerate(counted(ballot), start=1):
        rest = len(ballot) - given_votes
        endings = {counted(ballot[:given_votes] + [ending] * rest)[-1] for ending in (True, False)}
        assert (verdict is OPEN) == (len(endings) == 2)


def test_any_two_majorities_share_a_master() -> None:
    assert [majority(n) for n in range(1, 8)] == [1, 2, 2, 3, 3, 4, 4]
    assert all(2 * majority(n) > n for n in range(1, 100))


def test_a_second_reply_of_one_master_changes_nothing() -> None:
    tally = Recorded(3)
    tally.on_reply(0, "no")
    tally.on_reply(0, b"OK")

    assert tally.granted == 0
    assert tally.replies == ["no", NOT_YET, NOT_YET]
    assert tally.missing == [1, 2]
    assert not tally.complete


def test_the_repr_of_a_tally_has_its_score() -> None:
    tally = Tally(3)
    tally.on_reply(1, b"OK")

    assert repr(tally) == "<Tally 1:0 of 3, OPEN>"


@pytest.mark.parametrize(
    ("answers", "contended"),
    [
        ([Answer.HELD, Answer.HELD, Answer.TIMED_OUT], True),
        ([Answer.GRANTED, Answer.HELD, Answer.ERROR], True),
        ([Answer.HELD, Answer.UNREACHABLE, Answer.TIMED_OUT], False),
        ([Answer.GRANTED, Answer.ERROR, Answer.TIMED_OUT], False),
        ([Answer.HELD, Answer.UNREACHABLE], False),
    ],
)
def test_a_majority_that_answers_is_contention_and_no_outage(
    answers: list[Answer], contended: bool
) -> None:
    assert is_contended(Vote("m", answer) for answer in answers) is contended


def test_a_late_grant_takes_the_refusal_back() -> None:
    tally = Recorded(3)
    tally.on_reply(0, "no")
    tally.on_reply(1, "no")
    assert (tally.granted, tally.against, tally.complete) == (0, 2, False)
    assert not tally.recount(0)
    assert (tally.granted, tally.against, tally.complete) == (1, 1, False)
    tally.on_reply(2, "no")
    assert (tally.granted, tally.against, tally.complete) == (1, 2, True)
    assert tally.recount(2)
    assert (tally.granted, tally.against, tally.complete) == (2, 1, True)
    assert tally.verdict is WON
