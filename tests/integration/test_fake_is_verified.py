"""The fake master of `redlock_aio.testing` answers as real servers do, and keeps the same keys."""

import asyncio
import contextlib
from collections.abc import Iterator
from dataclasses import dataclass

import hiredis
import pytest
import redis
from hypothesis import HealthCheck, given, settings, strategies as st

from redlock_aio._rules import protocol
from redlock_aio._rules.protocol import pack
from redlock_aio.testing import EmbeddedMaster, FakeMaster
from redlock_aio.testing._fake_commands import encode

from .servers import process

pytestmark = pytest.mark.integration

TOKENS = [b"a" * 40, b"b" * 40]
NAMES = [b"r", b'it\'s {x} "y"', "ключ🔒".encode(), b"\\n", b"%s%n", b"x" * 512, b"\xff\x00\r\n"]
TOLERANCE = 250
"""How many ms the two may differ in what a key has left, on a busy machine."""

keys = st.sampled_from(NAMES)
tokens = st.sampled_from(TOKENS)
ttls = st.integers(min_value=2_000, max_value=2**40)
requests = st.one_of(
    st.builds(protocol.acquire, keys, tokens, ttls),
    st.builds(protocol.acquire, keys, tokens, ttls),
    st.builds(protocol.extend, keys, tokens, ttls),
    st.builds(protocol.release, keys, tokens),
    st.sampled_from([script.load for script in protocol.SCRIPTS]),
    st.just(pack(b"SCRIPT", b"FLUSH")),
    st.builds(pack, st.just(b"GET"), keys),
    st.just(protocol.PING),
)


@dataclass(frozen=True, slots=True)
class Pair:
    """A fake and a real server, that are told the same."""

    fake: FakeMaster
    real: redis.Connection

    def ask(self, request: bytes) -> tuple[object, object]:
        """Return what each of them answers."""
        reader = hiredis.Reader()
        reader.feed(request)
        said = hiredis.Reader()
        said.feed(encode(self.fake.execute(reader.gets())))
        self.real.send_packed_command([request])
        try:
            answer: object = self.real.read_response()
        except redis.RedisError as error:
            answer = error
        return plain(said.gets()), plain(answer)

    def check_keys(self) -> None:
        """Compare values and what is left of them."""
        for key in NAMES:
            assert len(set(self.ask(pack(b"GET", key)))) == 1
            left, real_left = self.ask(pack(b"PTTL", key))
            assert isinstance(left, int)
            assert isinstance(real_left, int)
            assert (left < 0) == (real_left < 0)
            assert abs(left - real_left) < TOLERANCE


def plain(answer: object) -> object:
    """Return an answer so that those of two readers can be compared."""
    if isinstance(answer, Exception):
        # redis-py makes a class of the code, hiredis a text.
        text = str(answer).removeprefix("NOSCRIPT ")
        return "error", text.rstrip(".").split(".")[0]
    return b"OK" if answer is True else answer


@pytest.fixture(scope="module")
def server(kind: str) -> Iterator[EmbeddedMaster]:
    with process(kind) as master:
        yield master


@contextlib.contextmanager
def connection_to(server: EmbeddedMaster) -> Iterator[redis.Connection]:
    """Lend a connection to an empty server."""
    connection = redis.Connection(host="127.0.0.1", port=server.port, protocol=3)
    try:
        for request in (pack(b"FLUSHALL"), pack(b"SCRIPT", b"FLUSH")):
            connection.send_packed_command([request])
            connection.read_response()
        yield connection
    finally:
        connection.disconnect()


@given(story=st.lists(requests, min_size=1, max_size=30))
@settings(
    max_examples=200,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
def test_the_fake_master_answers_as_a_real_one(server: EmbeddedMaster, story: list[bytes]) -> None:
    """After each request the answers, the values and the times left are the same."""

    async def tell() -> None:
        with connection_to(server) as connection:
            pair = Pair(FakeMaster(), connection)
            for request in story:
                fake, real = pair.ask(request)
                assert fake == real, request
                pair.check_keys()

    asyncio.run(tell())


def test_a_fake_that_lies_is_found_out(server: EmbeddedMaster) -> None:
    """The comparison can fail: by an answer, by a value, by a time."""

    async def tell() -> None:
        with connection_to(server) as connection:
            pair = Pair(FakeMaster(), connection)
            assert len(set(pair.ask(pack(b"SCRIPT", b"FLUSH")))) == 1
            pair.fake.set("r", "somebody else")
            with pytest.raises(AssertionError):
                pair.check_keys()
            pair.fake.delete("r")
            pair.check_keys()
            assert len(set(pair.ask(protocol.acquire(b"r", TOKENS[0], 60_000)))) == 1
            pair.check_keys()
            pair.fake.set("r", TOKENS[0].decode(), 61_000)
            with pytest.raises(AssertionError):
                pair.check_keys()
            assert len(set(pair.ask(protocol.release(b"x", TOKENS[0])))) == 1

    asyncio.run(tell())
