"""The fake master keeps the sets of masters that programs declare as a real server does."""

import asyncio
import itertools
import time
from collections.abc import AsyncIterator, Iterator

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from redlock_aio._protocol import commands, declaration
from redlock_aio._protocol.declaration import declare
from redlock_aio._protocol.scripts import DECLARE, pack
from redlock_aio.testing import EmbeddedMaster

from .servers import process
from .test_fake_is_verified import TOLERANCE, Pair, as_late_as_real, connection_to

pytestmark = pytest.mark.integration

SHORT = 250
"""Ms that something lives which is to end: not before the next has been said, on a busy machine."""
OVER = SHORT / 1000 + 0.04
"""Seconds after which it has ended."""

KEY = declaration.KEY + b"app:"
SETS = [b'[["a"]]', b'[["b","r1"]]', b"x" * 300]
READ = declare(KEY, b"read")


@pytest.fixture(scope="module")
def server(kind: str) -> Iterator[EmbeddedMaster]:
    with process(kind) as master:
        yield master


def alike(one: object, other: object) -> bool:
    """Return whether two replies have the same sets, of ages as near as two servers can be."""
    if not isinstance(one, list) or not isinstance(other, list):
        return one == other
    times = zip(itertools.chain(*one[1::2]), itertools.chain(*other[1::2]), strict=True)
    return one[::2] == other[::2] and all(abs(x - y) < TOLERANCE for x, y in times)


class Both(Pair):
    """A fake and a real server to which sets are declared."""

    def say(self, request: bytes) -> object:
        """Return what both of them answer."""
        fake, real = self.ask(request)
        assert alike(fake, real), (request, fake, real)
        return fake

    def names(self) -> list[object]:
        """Return the sets in use, the one that was declared last at the end."""
        reply = self.say(READ)
        assert isinstance(reply, list)
        return reply[::2]

    def kept(self) -> list[tuple[bytes, ...]]:
        """Return what is written on the real server."""
        value = self.ask(pack(b"GET", KEY))[1]
        assert isinstance(value, bytes)
        return [tuple(line.split(b" ")) for line in value.splitlines()]

    def ages(self) -> list[int]:
        """Return for how many ms the sets have been in use, on the real server."""
        reply = self.ask(READ)[1]
        assert isinstance(reply, list)
        return [age for age, _ in reply[1::2]]


@pytest.fixture
async def both(server: EmbeddedMaster) -> AsyncIterator[Both]:
    with connection_to(server) as connection:
        pair = Both(as_late_as_real(), connection)
        for request in (commands.PING, DECLARE.load):
            pair.ask(request)
        yield pair


async def test_sets_are_kept_in_the_order_in_which_they_were_declared_last(both: Both) -> None:
    one, other, third = SETS
    for text in (one, other, third, one):
        both.say(declare(KEY, b"write", text, lasts=60_000))
    assert both.names() == [other, third, one]
    assert both.names() == [other, third, one], "reading changes nothing"
    left = both.ask(pack(b"PTTL", KEY))[1]
    assert isinstance(left, int)
    assert 50_000 < left <= 60_000


async def test_a_set_is_as_old_as_it_was_anywhere(both: Both) -> None:
    one, other, _ = SETS
    both.say(declare(KEY, b"write", one, lasts=60_000))
    both.say(declare(KEY, b"write", one, lasts=60_000, age=20_000))
    both.say(declare(KEY, b"write", one, lasts=60_000, age=10_000))
    both.say(declare(KEY, b"write", other, lasts=60_000))
    old, new = both.ages()
    assert 20_000 <= old < 20_000 + TOLERANCE
    assert -1 <= new < TOLERANCE


async def test_no_two_sets_are_of_one_age(both: Both) -> None:
    for number in range(40):
        text = b"%d" % number
        both.say(declare(KEY, b"write", text, lasts=60_000, age=10_000 - number))
    both.say(declare(KEY, b"write", b"40", lasts=60_000, age=10_000))
    assert len({line[0] for line in both.kept()}) == 41


async def test_a_former_set_is_dropped(both: Both) -> None:
    one, other, third = SETS
    both.say(declare(KEY, b"write", one, lasts=60_000))
    both.say(declare(KEY, b"read", other, lasts=60_000, former=one))
    both.say(declare(KEY, b"withdraw", other, lasts=60_000, former=one))
    assert both.names() == [one]
    both.say(declare(KEY, b"write", other, lasts=60_000, former=third))
    both.say(declare(KEY, b"write", third, lasts=60_000, former=one))
    assert both.names() == [other, third]


async def test_what_was_declared_again_or_is_old_is_not_withdrawn(both: Both) -> None:
    once, again, old = SETS
    both.say(declare(KEY, b"write", once, lasts=60_000))
    both.say(declare(KEY, b"write", again, lasts=60_000))
    both.say(declare(KEY, b"write", old, lasts=60_000, age=5))
    await asyncio.sleep(0.01)
    both.say(declare(KEY, b"write", again, lasts=60_000))
    for text in SETS:
        both.say(declare(KEY, b"withdraw", text, lasts=60_000))
    assert both.names() == [old, again]


async def test_a_set_is_not_in_use_any_more_when_its_time_is_over(both: Both) -> None:
    one, other, third = SETS
    both.say(declare(KEY, b"write", one, lasts=SHORT))
    both.say(declare(KEY, b"write", other, lasts=60_000))
    await asyncio.sleep(OVER)
    assert both.names() == [other]
    both.say(declare(KEY, b"write", third, lasts=SHORT))
    both.say(declare(KEY, b"withdraw", other, lasts=60_000))
    await asyncio.sleep(OVER)
    assert both.names() == []
    assert both.ask(pack(b"PTTL", KEY)) == (-2, -2)


async def test_no_more_than_64_sets_are_kept(both: Both) -> None:
    for number in range(70):
        both.say(declare(KEY, b"write", b"%d" % number, lasts=60_000))
    assert both.names() == [b"%d" % number for number in range(6, 70)]


@pytest.mark.parametrize(
    "value",
    [
        b"nonsense",
        b"1 2 3 x\n",
        b"9" * 400 + b" " + b"9" * 400 + b" 60000 x\n",
        b"1 %d 9999999999999 x\n" % (time.time() * 1000),
        b"%d %d 60000 x\n" % (time.time() * 1000 + 9_000_000, time.time() * 1000),
        b"1 %d 60000 x\n" % (time.time() * 1000 + 9_000_000),
        b"x" * 300_000,
        b"",
    ],
    ids=range(8),
)
async def test_what_makes_no_sense_is_replaced(both: Both, value: bytes) -> None:
    both.ask(pack(b"SET", KEY, value))
    assert both.names() == []
    both.say(declare(KEY, b"write", SETS[0], lasts=60_000))
    assert both.names() == SETS[:1]
    assert len(both.kept()) == 1


async def test_a_key_of_another_type_is_replaced(both: Both) -> None:
    both.fake._data.zadd(KEY, 1.0, b"a")
    both.real.send_packed_command([pack(b"ZADD", KEY, b"1", b"a")])
    both.real.read_response()
    assert both.names() == []
    both.say(declare(KEY, b"write", SETS[0], lasts=60_000))
    assert both.names() == SETS[:1]


async def test_a_full_server_says_what_is_in_use_all_the_same(server: EmbeddedMaster) -> None:
    with connection_to(server) as connection:
        pair = Both(as_late_as_real(), connection)
        pair.ask(DECLARE.load)
        pair.say(declare(KEY, b"write", SETS[0], lasts=60_000))
        pair.ask(pack(b"CONFIG", b"SET", b"maxmemory", b"1"))
        try:
            reply = pair.ask(declare(KEY, b"write", SETS[1], lasts=60_000))[1]
            assert isinstance(reply, list)
            assert reply[::2] == SETS[:2]
            assert len(pair.kept()) == 1
        finally:
            pair.ask(pack(b"CONFIG", b"SET", b"maxmemory", b"0"))


texts = st.sampled_from(SETS)
requests = st.builds(
    declare,
    st.just(KEY),
    st.sampled_from([b"read", b"write", b"write", b"withdraw"]),
    texts,
    age=st.sampled_from([0, 0, 10_000, 20_000]),
    lasts=st.sampled_from([60_000, 90_000]),
    former=st.sampled_from([b"", *SETS]),
)


@given(story=st.lists(requests, max_size=20))
@settings(
    max_examples=100,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
def test_the_fake_master_declares_as_a_real_one(server: EmbeddedMaster, story: list[bytes]) -> None:
    async def tell_both() -> None:
        with connection_to(server) as connection:
            pair = Both(as_late_as_real(), connection)
            pair.ask(DECLARE.load)
            for request in story:
                pair.say(request)
                await asyncio.sleep(0.002)  # for both it is another ms

    asyncio.run(tell_both())
