"""The script that stores the sets of masters that programs declare, on one master."""

import asyncio

import hiredis
import pytest

from redlock_aio._protocol import declaration
from redlock_aio._protocol.declaration import declare
from redlock_aio._protocol.scripts import DECLARE, pack
from redlock_aio.testing import FakeMaster
from redlock_aio.testing._fake_commands import EPOCH

pytestmark = pytest.mark.promise("S1")

KEY = declaration.KEY + b"app:"
ONE, OTHER, THIRD = SETS = [b'[["a"]]', b'[["b","r1"]]', b"x" * 300]
LASTS = 60_000
NOW = EPOCH * 1000
Ages = dict[bytes, list[int]]


class Declarations:
    """One master, and the sets that programs declare to it."""

    def __init__(self) -> None:
        self.master = FakeMaster()
        self.send(DECLARE.load)

    def send(self, request: bytes) -> object:
        reader = hiredis.Reader()
        reader.feed(request)
        return self.master.execute(reader.gets())

    def declare(
        self,
        verb: bytes,
        text: bytes = b"",
        *,
        age: int = 0,
        lasts: int = LASTS,
        former: bytes = b"",
    ) -> Ages:
        reply = self.send(declare(KEY, verb, text, age=age, lasts=lasts, former=former))
        assert isinstance(reply, list)
        return dict(zip(reply[::2], reply[1::2], strict=True))

    def write(self, *texts: bytes, age: int = 0, lasts: int = LASTS) -> Ages:
        return [self.declare(b"write", text, age=age, lasts=lasts) for text in texts][-1]

    def kept(self) -> list[bytes]:
        """Return the sets in use; the one that was declared last is at the end."""
        return list(self.declare(b"read"))


@pytest.fixture
async def sets() -> Declarations:
    return Declarations()


async def test_sets_are_kept_in_the_order_of_their_last_declarations(sets: Declarations) -> None:
    sets.write(ONE, OTHER, THIRD, ONE)
    assert sets.kept() == [OTHER, THIRD, ONE]
    assert sets.kept() == [OTHER, THIRD, ONE], "reading changes nothing"
    assert sets.send(pack(b"PTTL", KEY)) == LASTS


async def test_a_set_is_as_old_as_it_was_anywhere(sets: Declarations) -> None:
    sets.write(ONE)
    sets.write(ONE, age=20_000)
    sets.write(ONE, age=10_000)
    sets.write(OTHER)
    await asyncio.sleep(0.5)
    sets.write(OTHER)
    await asyncio.sleep(0.25)
    assert sets.declare(b"read") == {ONE: [20_750, 750], OTHER: [750, 250]}


async def test_no_two_sets_have_the_same_age(sets: Declarations) -> None:
    for number in range(10):
        sets.write(b"%d" % number, age=10_000 - number % 3)
    assert len({age for age, _ in sets.declare(b"read").values()}) == 10


async def test_a_set_replaces_its_former_one(sets: Declarations) -> None:
    sets.write(ONE)
    sets.declare(b"read", OTHER, former=ONE)
    sets.declare(b"withdraw", OTHER, former=ONE)
    assert sets.kept() == [ONE]
    sets.declare(b"write", OTHER, former=THIRD)
    sets.declare(b"write", THIRD, former=ONE)
    assert sets.kept() == [OTHER, THIRD]


async def test_a_set_is_withdrawn_if_it_was_declared_once_and_is_not_old(
    sets: Declarations,
) -> None:
    sets.write(ONE, OTHER)
    sets.write(THIRD, age=5)
    await asyncio.sleep(0.01)
    sets.write(OTHER)
    for text in SETS:
        sets.declare(b"withdraw", text)
    assert sets.kept() == [THIRD, OTHER]


async def test_a_set_is_not_in_use_any_more_when_its_time_is_over(sets: Declarations) -> None:
    sets.write(ONE, lasts=250)
    sets.write(OTHER)
    await asyncio.sleep(0.249)
    assert sets.kept() == [ONE, OTHER]
    await asyncio.sleep(0.001)
    assert sets.kept() == [OTHER]
    sets.write(THIRD, lasts=250)
    assert sets.send(pack(b"PTTL", KEY)) == LASTS - 250
    sets.declare(b"withdraw", OTHER)
    assert sets.send(pack(b"PTTL", KEY)) == 250
    await asyncio.sleep(0.25)
    assert sets.kept() == []
    assert sets.send(pack(b"PTTL", KEY)) == -2


async def test_no_more_than_64_sets_are_kept(sets: Declarations) -> None:
    texts = [b"%d" % number for number in range(70)]
    assert list(sets.write(*texts)) == texts[6:]
    assert sets.kept() == texts[6:]


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
    assert list(sets.write(ONE)) == [ONE]
    assert str(sets.send(pack(b"GET", KEY))).count("\\n") == 1


async def test_a_value_of_another_type_is_replaced(sets: Declarations) -> None:
    sets.master._data.zadd(KEY, 1.0, b"a")
    assert sets.kept() == []
    assert list(sets.write(ONE)) == [ONE]
