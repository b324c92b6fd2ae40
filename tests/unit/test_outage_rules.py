"""The votes that are an outage, and the outages that are logged: rules without masters."""

import logging

import pytest

from redlock_aio import Answer, Vote
from redlock_aio._engine.outages import AGAIN, Observer, Outages


class Clock:
    """A clock that a test sets."""

    def __init__(self) -> None:
        self.time = 1000.0

    def __call__(self) -> float:
        return self.time


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def outages(clock: Clock, caplog: pytest.LogCaptureFixture) -> Outages:
    caplog.set_level(logging.WARNING, "redlock_aio")
    return Outages(clock)


@pytest.fixture
def observer(outages: Outages) -> Observer:
    return Observer(outages, ["r"])


def votes(*answers: Answer, detail: str = "") -> list[Vote]:
    """Return a vote for each of *answers*; *detail* is that of the errors."""
    return [
        Vote(f"m{number}", answer, detail if answer is Answer.ERROR else "")
        for number, answer in enumerate(answers)
    ]


def test_a_majority_that_replies_is_no_outage(
    observer: Observer, caplog: pytest.LogCaptureFixture
) -> None:
    """A waiter for a held lock logs nothing, also while a minority is down."""
    for answer in (Answer.GRANTED, Answer.HELD, Answer.FREE):
        for third in (answer, Answer.UNREACHABLE, Answer.TIMED_OUT, Answer.ERROR):
            observer.record(votes(answer, answer, third))
            assert not observer.in_outage
    assert not caplog.records


def test_a_master_that_may_still_reply_counts_as_one_that_does(
    observer: Observer, caplog: pytest.LogCaptureFixture
) -> None:
    seen = votes(Answer.HELD, Answer.TIMED_OUT, Answer.UNREACHABLE)
    observer.record(seen, {1})
    assert not observer.in_outage
    assert not caplog.records
    observer.record(seen)
    assert observer.in_outage
    assert len(caplog.records) == 1


def test_each_kind_of_error_is_a_reason_of_its_own(
    observer: Observer, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    """The error's code is compared. The words after it may differ each time."""
    refusal = (Answer.ERROR, Answer.ERROR, Answer.HELD)
    for detail, logged in [
        ("OOM command not allowed", 1),
        ("OOM 4096 bytes are missing", 1),
        ("READONLY You can't write against a read only replica", 2),
        ("LOADING Redis is loading the dataset in memory", 3),
        ("a malformed reply: a dict", 4),
        ("a malformed reply: a float", 4),
    ]:
        clock.time += AGAIN / 100
        observer.record(votes(*refusal, detail=detail))
        assert observer.in_outage
        assert len(caplog.records) == logged, detail


def test_only_an_acquisition_that_saw_the_outage_logs_its_end(
    outages: Outages, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    away, back = votes(*[Answer.UNREACHABLE] * 3), votes(*[Answer.HELD] * 3)
    caplog.set_level(logging.INFO, "redlock_aio")
    first, second = Observer(outages, ["r"]), Observer(outages, ["r"])
    first.record(away)
    clock.time += 5
    second.record(back)
    second.on_majority()
    assert len(caplog.records) == 1
    first.record(back)
    first.record(back)
    first.on_majority()
    [begin, end] = caplog.records
    assert (begin.levelno, end.levelno) == (logging.WARNING, logging.INFO)
    assert end.getMessage() == "a majority of the masters answers again, after 5.0 s"
