"""The script that keeps what programs write about their masters, on one master."""

import asyncio
from typing import Any

import pytest

from redlock_aio._protocol import commands, replies
from redlock_aio._protocol.commands import SetLine, declare
from redlock_aio._protocol.request import pack
from redlock_aio._protocol.scripts import DECLARE
from redlock_aio._rules.membership import Place, write, write_set
from redlock_aio.testing import FakeMaster
from redlock_aio.testing._fake_commands import EPOCH

from .kit import execute

pytestmark = pytest.mark.promise("S1")

KEY = commands.DECLARED_SETS + b"app:"
ONE = write_set(("a", "b"))
OTHER = write_set(("a", "c"))
THIRD = write(Place("a", "x" * 40))
LASTS = 60_000
NOW = EPOCH * 1000


class Declarations:
    """One master, and the lines that programs write there."""

    def __init__(self) -> None:
        self.master = FakeMaster()
        self.send(DECLARE.load)

    def send(self, request: bytes) -> object:
        return execute(self.master, request)

    def declare(self, *texts: SetLine) -> list[Any]:
        """Return how many of the texts were there, and the texts and their times in order."""
        reply = self.send(declare(KEY, texts))
        assert isinstance(reply, list)
        return reply

    def write(self, *texts: bytes, lasts: int = LASTS, since: int = 0) -> int:
        """Return how many of the texts were there."""
        found = self.declare(*[SetLine(text, lasts, since=since) for text in texts])[0]
        assert isinstance(found, int)
        return found

    def lines(self) -> dict[object, list[int]]:
        """Return the lines in order: since, and the ms for which each counts."""
        _, *rest = self.declare()
        return {text: times[:2] for text, times in zip(rest[::2], rest[1::2], strict=True)}

    def kept(self) -> list[object]:
        return list(self.lines())


@pytest.fixture
async def sets() -> Declarations:
    return Declarations()


async def test_lines_stand_in_the_order_in_which_they_came(sets: Declarations) -> None:
    assert sets.write(OTHER) == 0
    await asyncio.sleep(0.5)
    assert sets.write(ONE, THIRD) == 0
    await asyncio.sleep(0.25)
    assert sets.write(THIRD, OTHER) == 2
    assert sets.lines() == {
        OTHER: [NOW, LASTS],
        ONE: [NOW + 500, LASTS - 250],
        THIRD: [NOW + 501, LASTS],
    }
    assert sets.declare()[0] == 0
    assert sets.send(pack(b"PTTL", KEY)) == LASTS


async def test_the_reply_to_a_write_has_all_lines(sets: Declarations) -> None:
    sets.write(ONE)
    found, *rest = sets.declare(SetLine(OTHER, LASTS), SetLine(ONE, LASTS))
    assert found == 1
    assert rest[::2] == [ONE, OTHER]
    answer = replies.declared([found, *rest], 5.0)
    assert answer is not None
    assert [(line.names, line.since, line.until) for line in answer.lines] == [
        (("a", "b"), NOW, 65.0),
        (("a", "c"), NOW + 1, 65.0),
    ]


async def test_no_two_lines_came_at_the_same_time(sets: Declarations) -> None:
    texts = [b"%d" % number for number in range(10)]
    sets.write(*texts)
    assert sets.kept() == texts
    assert list(sets.lines().values()) == [[NOW + n, LASTS] for n in range(10)]


async def test_a_line_that_was_deleted_gets_its_place_again(sets: Declarations) -> None:
    sets.write(ONE)
    await asyncio.sleep(1)
    sets.write(OTHER)
    sets.send(pack(b"DEL", KEY))
    assert sets.write(OTHER) == 0
    assert sets.write(ONE, since=NOW) == 0
    assert sets.kept() == [ONE, OTHER]
    assert sets.lines()[ONE] == [NOW, LASTS]
    # What is there keeps its place, whatever a program remembers.
    assert sets.write(OTHER, since=NOW - 5_000) == 1
    assert sets.kept() == [ONE, OTHER]


@pytest.mark.parametrize("since", [NOW + 1, NOW + 10**9, 10**15])
async def test_a_place_in_the_future_is_the_present(sets: Declarations, since: int) -> None:
    sets.write(ONE, since=since)
    assert sets.lines() == {ONE: [NOW, LASTS]}


async def test_two_lines_with_the_same_place_stand_one_behind_the_other(
    sets: Declarations,
) -> None:
    await asyncio.sleep(1)
    sets.write(ONE, since=NOW)
    sets.write(OTHER, since=NOW)
    assert sets.lines() == {ONE: [NOW, LASTS], OTHER: [NOW + 1, LASTS]}


async def test_a_line_counts_for_a_time_after_it_was_written_last(sets: Declarations) -> None:
    sets.write(ONE, lasts=250)
    sets.write(OTHER)
    await asyncio.sleep(0.249)
    assert sets.kept() == [ONE, OTHER]
    await asyncio.sleep(0.001)
    assert sets.kept() == [OTHER]
    assert sets.write(ONE, lasts=100) == 0
    assert sets.kept() == [OTHER, ONE], "it came again"
    assert sets.send(pack(b"PTTL", KEY)) == LASTS - 250
    await asyncio.sleep(LASTS / 1000)
    assert sets.kept() == []
    assert sets.send(pack(b"PTTL", KEY)) == -2


async def test_a_program_with_a_shorter_max_ttl_does_not_shorten_a_line(sets: Declarations) -> None:
    sets.write(ONE, lasts=500)
    assert sets.write(ONE, lasts=250) == 1
    assert sets.lines() == {ONE: [NOW, 500]}
    await asyncio.sleep(0.3)
    assert sets.write(ONE, lasts=250) == 1
    assert sets.lines() == {ONE: [NOW, 250]}


async def test_reading_changes_nothing(sets: Declarations) -> None:
    assert sets.declare() == [0]
    assert sets.send(pack(b"GET", KEY)) is None
    sets.write(ONE)
    before = sets.send(pack(b"GET", KEY))
    await asyncio.sleep(1)
    sets.declare()
    assert sets.send(pack(b"GET", KEY)) == before
    assert sets.send(pack(b"PTTL", KEY)) == LASTS - 1_000


async def test_a_line_beyond_256_comes_when_others_have_run_out(sets: Declarations) -> None:
    texts = [b"%d" % number for number in range(256)]
    sets.write(*texts[:200], lasts=250)
    sets.write(*texts[200:])
    assert sets.write(ONE) == 0
    assert sets.kept() == texts
    assert sets.write(ONE, texts[5], lasts=250) == 1, "what is there is written again"
    await asyncio.sleep(0.25)
    assert sets.write(ONE) == 0
    assert sets.kept() == [*texts[200:], ONE]


@pytest.mark.parametrize(
    "value",
    [
        b"nonsense", b"1 2 3 x\n", b"9" * 400 + b" " + b"9" * 400 + b" 60000 x\n", b"",
        b"1 %d 9999999999999 x\n" % NOW, b"%d %d 60000 x\n" % (NOW + 9_000_000, NOW),
        b"1 %d 60000 x\n" % (NOW + 9_000_000), b"1 %d 60000 x\n" % NOW * 20_000,
    ],
    ids=range(8),
)  # fmt: skip
async def test_a_value_that_makes_no_sense_is_replaced(sets: Declarations, value: bytes) -> None:
    sets.send(pack(b"SET", KEY, value))
    assert sets.kept() == []
    sets.write(ONE)
    assert sets.kept() == [ONE]
    assert str(sets.send(pack(b"GET", KEY))).count("\\n") == 1


async def test_a_text_that_is_there_twice_is_kept_once(sets: Declarations) -> None:
    sets.send(pack(b"SET", KEY, b"1 %d 60000 x\n2 %d 60000 x\n" % (NOW, NOW)))
    assert sets.lines() == {b"x": [1, LASTS]}


async def test_a_value_of_another_type_is_replaced(sets: Declarations) -> None:
    sets.master._data.zadd(KEY, 1.0, b"a")
    assert sets.kept() == []
    sets.write(ONE)
    assert sets.kept() == [ONE]
