"""The server that a majority of the Sentinels confirms: tables, and random failovers."""

import itertools
import math
import os
import random
from collections.abc import Sequence

import pytest

from redlock_aio._protocol.confirmation import (
    CONFIRMED_FOR,
    Configuration,
    Confirmation,
    Statement,
    is_switch,
    questions,
    read_answer,
)

from .kit import interrupted

OLD, NEW = Configuration("10.0.0.1", 6379, 3), Configuration("10.0.0.2", 6379, 4)
LATER = Configuration(OLD.host, OLD.port, OLD.epoch + 2)
NAMES = ["s0", "s1", "s2", "s3", "s4"]


def confirmation(
    answers: Sequence[tuple[Configuration | None, float]], ids: str = ""
) -> Confirmation:
    """Return the confirmation by these answers, each with the instant of its request."""
    made = Confirmation(NAMES[: len(answers)])
    for number, (configuration, asked_at) in enumerate(answers):
        sentinel = ids[number] if ids else ""
        answer = Statement(configuration, "", sentinel, len(answers), asked_at)
        made.on_answer(number, answer)
    return made


@pytest.mark.parametrize(
    ("answers", "ids", "until"),
    [
        ([(OLD, 1)], "", 1),
        ([(None, 1)], "", None),
        ([(OLD, 1), (OLD, 5)], "", 1),
        ([(OLD, 1), (None, 5)], "", None),
        ([(OLD, 1), (OLD, 5), (None, 9)], "", 1),
        ([(OLD, 1), (OLD, 5), (OLD, 9)], "", 5),
        ([(OLD, 1), (NEW, 5), (OLD, 9)], "", 1),
        ([(OLD, 1), (NEW, 5), (NEW, 9)], "", None),
        ([(OLD, 1), (LATER, 1), (None, 1)], "", None),  # another epoch is another configuration
        ([(OLD, 1), (OLD, 2), (OLD, 3), (OLD, 4)], "", 2),
        ([(OLD, 1), (OLD, 2), (None, 3), (None, 4)], "", None),
        ([(OLD, 5), (OLD, 2), (OLD, 3), (OLD, 4), (OLD, 1)], "", 3),
        # A Sentinel that was named twice counts once.
        ([(OLD, 1), (OLD, 1), (None, 1)], "xxy", None),
        ([(OLD, 1), (OLD, 2), (OLD, 1)], "xxy", 1),
    ],
)
def test_a_confirmation_lasts_as_long_as_the_answers_of_a_majority(
    answers: list[tuple[Configuration | None, float]], ids: str, until: float | None
) -> None:
    known = confirmation(answers, ids)
    expected = -math.inf if until is None else until + CONFIRMED_FOR
    assert known.until(OLD) == expected
    assert ("lead to the same Sentinel" in known.caution) == bool(ids)
    if until is not None:
        assert known.current(expected) == OLD
        assert known.current(expected + 0.001) is None


def test_a_new_answer_replaces_the_last_one() -> None:
    known = confirmation([(OLD, 1), (OLD, 1), (OLD, 1)])
    known.on_answer(0, Statement(NEW, "", "", 3, 2))
    assert known.current(2) == OLD
    known.on_answer(1, Statement(None, "knows no master of that name", "", 3, 2))
    assert known.current(2) is None
    known.on_answer(1, Statement(NEW, "", "", 3, 2))
    assert known.current(2) == NEW


def test_the_last_answer_of_a_sentinel_that_fails_counts_as_long_as_before() -> None:
    known = confirmation([(OLD, 1), (OLD, 1), (None, 1)])
    known.failed(0, "connection refused")
    assert known.until(OLD) == 1 + CONFIRMED_FOR
    assert "s0" not in known.describe(OLD, 1)
    assert "s0 (connection refused)" in known.describe(OLD, 2 + CONFIRMED_FOR)


def test_the_description_has_the_answer_of_each_sentinel() -> None:
    known = confirmation([(OLD, 1), (NEW, 1), (None, 1)])
    known.failed(2, "silent for 1000 ms")
    assert known.describe(OLD, 1) == (
        "1 of 3 Sentinels confirm 10.0.0.1:6379 (epoch 3), 2 must:"
        " s1 names 10.0.0.2:6379 (epoch 4), s2 (silent for 1000 ms)"
    )
    assert known.describe(None, 1).startswith("0 of 3 Sentinels confirm the master, 2 must: s0 nam")
    assert "s0 (no answer for 2 s)" in known.describe(OLD, 1.001 + CONFIRMED_FOR)


def test_the_description_has_the_sentinels_that_count_once() -> None:
    """Their configuration was copied, or several addresses lead to one."""
    known = Confirmation(["s0", "s1", "s2"])
    for number in range(3):
        known.on_answer(number, Statement(OLD, "", "one", 3, 1.0))
    assert known.until(OLD) == -math.inf
    text = "s1 (has the same MYID as s0), s2 (has the same MYID as s0)"
    assert known.describe(OLD, 1) == f"1 of 3 Sentinels confirm {OLD}, 2 must: {text}"
    assert known.describe(None, 1) == (
        f"0 of 3 Sentinels confirm the master, 2 must: s0 names {OLD}, {text}"
    )
    known.on_answer(0, Statement(NEW, "", "one", 3, 1.0))
    assert known.describe(OLD, 1).endswith(f"2 must: s0 names {NEW}, s2 (has the same MYID as s1)")


DETAILS = {b"config-epoch": b"7", b"num-other-sentinels": b"4", b"ip": b"elsewhere"}


@pytest.mark.parametrize(
    "details", [DETAILS, [part for pair in DETAILS.items() for part in pair]], ids=["map", "list"]
)
def test_an_answer_is_the_address_with_the_epoch(details: object) -> None:
    answer = read_answer([[b"10.0.0.9", b"6380"], details, b"abc"], 12.5)
    assert answer == Statement(Configuration("10.0.0.9", 6380, 7), "", "abc", 5, 12.5)
    unnamed = read_answer([[b"::1", b"6380"], details, Exception("ERR unknown")], 1.0)
    assert (str(unnamed.configuration), unnamed.by) == ("[::1]:6380 (epoch 7)", "")


@pytest.mark.parametrize(
    ("address", "details", "reason"),
    [
        (None, Exception("ERR No such master with that name"), "knows no master of that name"),
        (Exception("NOPERM this user"), DETAILS, "NOPERM this user"),
        ([b"h", b"1"], Exception("NOPERM it"), "NOPERM it"),
        ([b"h", b"1"], {}, "malformed reply"),
        ([b"h", b"-1"], DETAILS, "malformed reply"),
        ([b"h"], DETAILS, "malformed reply"),
        ([b"", b"1"], DETAILS, "malformed reply"),
        ([b"a\nb", b"1"], DETAILS, "malformed reply"),
        ([b"a b", b"1"], DETAILS, "malformed reply"),
        ([b"h" * 256, b"1"], DETAILS, "malformed reply"),
        ([b"h", b"0"], DETAILS, "malformed reply"),
        ([b"h", b"65536"], DETAILS, "malformed reply"),
        ([b"h", 1], DETAILS, "malformed reply"),
        (b"h:1", DETAILS, "malformed reply"),
        ([b"h", b"1"], [b"config-epoch"], "malformed reply"),
        ([b"h", b"1"], 5, "malformed reply"),
        ([b"h", b"1"], [[b"config-epoch"], [b"7"]], "malformed reply"),
    ],
)
def test_errors_and_malformed_replies_confirm_no_server(
    address: object, details: object, reason: str
) -> None:
    answer = read_answer([address, details, b"abc"], 1.0)
    assert answer.configuration is None
    assert reason in answer.reason


@pytest.mark.parametrize(
    ("push", "expected"),
    [
        ([b"message", b"+switch-master", b"mine 10.0.0.1 6379 10.0.0.2 6379"], True),
        ([b"message", b"+switch-master", b"mine2 10.0.0.1 6379 10.0.0.2 6379"], False),
        ([b"message", b"+switch-master", 5], False),
        ([b"subscribe", b"+switch-master", 1], False),
        (None, False),
    ],
)
def test_only_a_switch_of_its_own_master_counts(push: object, expected: bool) -> None:
    assert is_switch(push, "mine") is expected


def test_the_name_of_a_master_is_data() -> None:
    name = "mi\r\nne me"
    assert [words[-1] for words in questions(name)[:2]] == [name, name]


@pytest.mark.promise("S1")
@pytest.mark.parametrize("sentinels", [1, pytest.param(3, marks=pytest.mark.full), 4])
def test_no_server_is_confirmed_longer_than_the_bound_after_a_later_one(sentinels: int) -> None:
    """
    Sentinels learn of failovers at random times, clients ask at random times, replies are late.

    A Sentinel's epoch never decreases. The confirmation of an epoch ends no later
    than the bound after the first confirmation of a later epoch by any client.
    """
    for seed in range(60 if "REDLOCK_AIO_FULL" in os.environ else 15):
        chance = random.Random(seed)
        epochs = [0] * sentinels
        newest = 0
        clients = [Confirmation(NAMES[:sentinels]) for _ in range(3)]
        underway: list[tuple[float, int, int, Statement]] = []
        first_confirmed: dict[int, float] = {}
        now = 0.0
        for _ in range(300):
            now += chance.expovariate(10)
            if chance.random() < 0.05:
                newest += 1
            number = chance.randrange(sentinels)
            if chance.random() < 0.2:
                epochs[number] = newest
            # The request is executed now; it was sent before, and the reply arrives later.
            named = Configuration(f"h{epochs[number] % 2}", 6379, epochs[number])
            answer = Statement(named, "", "", sentinels, now - chance.expovariate(5))
            underway.append((now + chance.expovariate(5), chance.randrange(3), number, answer))
            arrived = sorted((e for e in underway if e[0] <= now), key=lambda e: e[0])
            underway = [e for e in underway if e[0] > now]
            for _, client, which, late in arrived:
                clients[client].on_answer(which, late)
            for each in clients:
                current = each.current(now)
                if current is None:
                    continue
                first_confirmed.setdefault(current.epoch, now)
                later = [at for epoch, at in first_confirmed.items() if epoch > current.epoch]
                assert now <= min(later, default=math.inf) + CONFIRMED_FOR, (seed, current)


@pytest.mark.parametrize(
    ("refuse", "silent", "unasked", "hopeless"),
    [
        (3, 0, 0, True),
        (2, 1, 0, True),  # one of three is no majority
        (2, 0, 1, False),  # one that was not asked yet may name others
        (1, 2, 0, False),
        (0, 3, 0, False),
        (3, 3, 0, True),  # a majority of six is four
        (2, 4, 0, False),
        (1, 0, 0, True),
    ],
)
def test_too_many_permanent_refusals_leave_no_majority(
    refuse: int, silent: int, unasked: int, hopeless: bool
) -> None:
    voters = Confirmation([f"v{number}" for number in range(refuse + silent + unasked)])
    for number in range(refuse + silent):
        voters.failed(number, "it says why", permanent=number < refuse)
    assert voters.is_hopeless is hopeless


def test_a_sentinel_that_refuses_the_question_refuses_permanently() -> None:
    refusal = Exception("NOPERM this user has no permissions to run the 'sentinel' command")
    assert read_answer([refusal, refusal, refusal], 1.0).permanent
    assert not read_answer([Exception("LOADING"), {}, b"id"], 1.0).permanent


def test_another_thread_may_ask_while_the_voters_are_replaced() -> None:
    def replaced(place: int) -> bool:
        confirmation = Confirmation(kind="nodes confirm")
        confirmation.set_voters({"a": "A", "b": "B"})
        return interrupted(
            lambda: confirmation.set_voters({"a": "A", "c": "C"}),
            place,
            lambda: confirmation.describe(None, 0.0),
        )

    assert sum(1 for _ in itertools.takewhile(replaced, itertools.count())) > 10
