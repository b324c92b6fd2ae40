"""Whom a majority of the Sentinels confirms, as tables, and over random failovers."""

import math
import os
import random
from collections.abc import Sequence

import pytest

from redlock_aio._protocol.confirmation import (
    CONFIRMED_FOR,
    Configuration,
    Confirmation,
    SentinelAnswer,
    is_switch,
    questions,
    read_answer,
)

OLD, NEW = Configuration("10.0.0.1", 6379, 3), Configuration("10.0.0.2", 6379, 4)
NAMES = ["s0", "s1", "s2", "s3", "s4"]


def confirmation(
    answers: Sequence[tuple[Configuration | None, float]], ids: str = ""
) -> Confirmation:
    """Return what is known after each Sentinel has named a server, when it was asked then."""
    made = Confirmation(NAMES[: len(answers)])
    for number, (configuration, asked_at) in enumerate(answers):
        sentinel = ids[number] if ids else ""
        answer = SentinelAnswer(configuration, "", sentinel, len(answers), asked_at)
        made.on_answer(number, answer)
    return made


@pytest.mark.parametrize(
    ("answers", "until"),
    [
        ([(OLD, 1)], 1),
        ([(None, 1)], None),
        ([(OLD, 1), (OLD, 5)], 1),
        ([(OLD, 1), (None, 5)], None),
        ([(OLD, 1), (OLD, 5), (None, 9)], 1),
        ([(OLD, 1), (OLD, 5), (OLD, 9)], 5),
        ([(OLD, 1), (NEW, 5), (OLD, 9)], 1),
        ([(OLD, 1), (NEW, 5), (NEW, 9)], None),
        ([(OLD, 1), (OLD, 2), (OLD, 3), (OLD, 4)], 2),
        ([(OLD, 1), (OLD, 2), (None, 3), (None, 4)], None),
        ([(OLD, 5), (OLD, 2), (OLD, 3), (OLD, 4), (OLD, 1)], 3),
    ],
)
def test_it_lasts_as_long_as_the_answers_of_a_majority(
    answers: list[tuple[Configuration | None, float]], until: float | None
) -> None:
    known = confirmation(answers)
    expected = -math.inf if until is None else until + CONFIRMED_FOR
    assert known.until(OLD) == expected
    if until is not None:
        assert known.current(expected) == OLD
        assert known.current(expected + 0.001) is None


def test_a_new_answer_takes_the_place_of_the_last_one() -> None:
    known = confirmation([(OLD, 1), (OLD, 1), (OLD, 1)])
    known.on_answer(0, SentinelAnswer(NEW, "", "", 3, 2))
    assert known.current(2) == OLD
    known.on_answer(1, SentinelAnswer(None, "knows no master of that name", "", 3, 2))
    assert known.current(2) is None
    known.on_answer(1, SentinelAnswer(NEW, "", "", 3, 2))
    assert known.current(2) == NEW


def test_the_last_answer_of_one_that_fails_counts_as_long_as_before() -> None:
    known = confirmation([(OLD, 1), (OLD, 1), (None, 1)])
    known.failed(0, "connection refused")
    assert known.until(OLD) == 1 + CONFIRMED_FOR
    assert "s0" not in known.describe(OLD, 1)
    assert "s0 (connection refused)" in known.describe(OLD, 2 + CONFIRMED_FOR)


def test_another_epoch_is_another_configuration() -> None:
    later = Configuration(OLD.host, OLD.port, OLD.epoch + 2)
    assert confirmation([(OLD, 1), (later, 1), (None, 1)]).current(1) is None


def test_one_that_is_named_twice_counts_once() -> None:
    assert confirmation([(OLD, 1), (OLD, 1), (None, 1)], "xxy").current(1) is None
    assert confirmation([(OLD, 1), (OLD, 2), (OLD, 1)], "xxy").until(OLD) == 1 + CONFIRMED_FOR
    assert "lead to the same one" in confirmation([(OLD, 1), (OLD, 1)], "xx").caution


def test_it_says_who_says_what() -> None:
    known = confirmation([(OLD, 1), (NEW, 1), (None, 1)])
    known.failed(2, "silent for 1000 ms")
    assert known.describe(OLD, 1) == (
        "1 of 3 Sentinels confirm 10.0.0.1:6379 (epoch 3), 2 must:"
        " s1 names 10.0.0.2:6379 (epoch 4), s2 (silent for 1000 ms)"
    )
    assert known.describe(None, 1).startswith("0 of 3 Sentinels confirm the master, 2 must: s0 nam")
    assert "s0 (no answer for 2 s)" in known.describe(OLD, 1.001 + CONFIRMED_FOR)


DETAILS = {b"config-epoch": b"7", b"num-other-sentinels": b"4", b"ip": b"elsewhere"}


@pytest.mark.parametrize(
    "details", [DETAILS, [part for pair in DETAILS.items() for part in pair]], ids=["map", "list"]
)
def test_an_answer_is_the_address_with_the_epoch(details: object) -> None:
    answer = read_answer([[b"10.0.0.9", b"6380"], details, b"abc"], 12.5)
    assert answer == SentinelAnswer(Configuration("10.0.0.9", 6380, 7), "", "abc", 5, 12.5)
    unnamed = read_answer([[b"::1", b"6380"], details, Exception("ERR unknown")], 1.0)
    assert (str(unnamed.configuration), unnamed.sentinel) == ("[::1]:6380 (epoch 7)", "")


@pytest.mark.parametrize(
    ("address", "details", "reason"),
    [
        (None, Exception("ERR No such master with that name"), "knows no master of that name"),
        (Exception("NOPERM this user"), DETAILS, "NOPERM this user"),
        ([b"h", b"1"], Exception("NOPERM it"), "NOPERM it"),
        ([b"h", b"1"], {}, "makes no sense"),
        ([b"h", b"-1"], DETAILS, "makes no sense"),
        ([b"h"], DETAILS, "makes no sense"),
        ([b"", b"1"], DETAILS, "makes no sense"),
        ([b"h", 1], DETAILS, "makes no sense"),
        (b"h:1", DETAILS, "makes no sense"),
        ([b"h", b"1"], [b"config-epoch"], "makes no sense"),
        ([b"h", b"1"], 5, "makes no sense"),
    ],
)
def test_what_makes_no_sense_confirms_nobody(address: object, details: object, reason: str) -> None:
    answer = read_answer([address, details, b"abc"], 1.0)
    assert answer.configuration is None
    assert reason in answer.reason


def test_only_its_own_switch_is_a_switch() -> None:
    channel = b"+switch-master"
    assert is_switch([b"message", channel, b"mine 10.0.0.1 6379 10.0.0.2 6379"], "mine")
    assert not is_switch([b"message", channel, b"mine2 10.0.0.1 6379 10.0.0.2 6379"], "mine")
    assert not is_switch([b"message", channel, 5], "mine")
    assert not is_switch([b"subscribe", channel, 1], "mine")
    assert not is_switch(None, "mine")


def test_a_name_is_data() -> None:
    assert all(b"$9\r\nmi\r\nne me\r\n" in command for command in questions("mi\r\nne me")[:2])


@pytest.mark.promise("S1")
@pytest.mark.parametrize("sentinels", [1, 2, 3, 4, 5])
def test_no_server_is_confirmed_longer_than_the_bound_after_a_later_one(sentinels: int) -> None:
    """
    Sentinels learn of failovers at random, clients ask at random, answers take their time.

    Each Sentinel goes to later epochs only. Whatever a client believes of an epoch ends
    no later than the bound after any client was told of a later one.
    """
    for seed in range(60 if "REDLOCK_AIO_FULL" in os.environ else 15):
        chance = random.Random(seed)
        knows = [0] * sentinels
        newest = 0
        clients = [Confirmation(NAMES[:sentinels]) for _ in range(3)]
        underway: list[tuple[float, int, int, SentinelAnswer]] = []
        first_confirmed: dict[int, float] = {}
        now = 0.0
        for _ in range(300):
            now += chance.expovariate(10)
            if chance.random() < 0.05:
                newest += 1
            number = chance.randrange(sentinels)
            if chance.random() < 0.2:
                knows[number] = newest
            # The question is answered now; it was asked before, and the answer comes later.
            host = f"h{knows[number] % 2}"
            said = Configuration(host, 6379, knows[number])
            answer = SentinelAnswer(said, "", "", sentinels, now - chance.expovariate(5))
            arrives = now + chance.expovariate(5)
            underway.append((arrives, chance.randrange(3), number, answer))
            for entry in sorted(underway, key=lambda entry: entry[0]):
                arrived, client, which, heard = entry
                if arrived <= now:
                    underway.remove(entry)
                    clients[client].on_answer(which, heard)
            for client_knows in clients:
                current = client_knows.current(now)
                if current is None:
                    continue
                first_confirmed.setdefault(current.epoch, now)
                later = [at for epoch, at in first_confirmed.items() if epoch > current.epoch]
                assert now <= min(later, default=math.inf) + CONFIRMED_FOR, (seed, current)
