"""The scripts of locks that readers share, on real servers: what a fake master can't show."""

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterator

import pytest
import redis

from redlock_aio._protocol import commands
from redlock_aio._protocol.request import pack
from redlock_aio._rules.lock_value import SHARED
from redlock_aio.testing import EmbeddedMaster
from tests.unit.shares import (
    DOC,
    QUEUE,
    SET,
    SHARE,
    Model,
    extend,
    read,
    reader,
    stop_reading,
    stop_writing,
    walk,
    write,
)

from .helpers import ScriptClient
from .servers import process

pytestmark = pytest.mark.integration

A, B, C = b"a", b"b", b"c"


@pytest.fixture(scope="module")
def server(kind: str) -> Iterator[EmbeddedMaster]:
    with process(kind) as master:
        yield master


class Client(ScriptClient):
    """A client, and what it sees of the lock."""

    def pttl(self, key: bytes) -> int:
        left = self.ask(pack(b"PTTL", key))
        assert isinstance(left, int)
        return left

    def shares(self) -> list[bytes]:
        members = self.ask(pack(b"ZRANGE", SET, b"0", b"-1"))
        assert isinstance(members, list)
        return members


@pytest.fixture
def client(server: EmbeddedMaster) -> Iterator[Client]:
    client = Client(server)
    try:
        yield client
    finally:
        client.connection.disconnect()


@pytest.fixture
def full(client: Client) -> Callable[[], contextlib.AbstractContextManager[None]]:
    """Return a context in which the server has no memory left."""

    @contextlib.contextmanager
    def full() -> Iterator[None]:
        client.ask(pack(b"CONFIG", b"SET", b"maxmemory-policy", b"noeviction"))
        client.ask(pack(b"CONFIG", b"SET", b"maxmemory", b"1"))
        try:
            assert "used memory" in str(client.ask(pack(b"SET", b"x", b"y")))
            yield
        finally:
            client.ask(pack(b"CONFIG", b"SET", b"maxmemory", b"0"))

    return full


@pytest.mark.promise("S1")
@pytest.mark.seeds(1, full=2)
async def test_the_rules_hold_after_each_of_thousands_of_requests(
    client: Client, seed: int
) -> None:
    """With ttls that outlast the test; the unit tests let shares and members end."""
    model = Model(client.ask, lambda: int(time.time() * 1000), slow=2_000)
    await walk(model, seed, 3_000, [60_005, 90_005, 120_005])


@pytest.mark.promise("S4")
async def test_shares_are_extended_when_memory_is_full(
    client: Client, full: Callable[[], contextlib.AbstractContextManager[None]]
) -> None:
    """Also beyond the end of the lock. They are given back as well."""
    client.ask(read(A, 5_000))
    client.ask(read(B, 9_000))
    with full():
        assert client.ask(extend(A, 5_000)) == b"OK"
        assert 9_000 < client.pttl(DOC) <= 10_125
        assert client.ask(extend(A, 60_000)) == b"OK"
        assert 60_000 < client.pttl(DOC) <= 67_500
        assert client.ask(SHARE.look(A)) == [A]
        assert client.ask(extend(C)) == 0
        assert client.ask(stop_reading(A)) == b"OK"
        assert client.shares() == [B]
        assert client.ask(stop_reading(B)) == b"OK"
    assert client.ask(pack(b"DBSIZE")) == 0


@pytest.mark.spread(0)
@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("others", [[], [B], [B, C]])
async def test_a_new_share_is_refused_when_memory_is_full_and_leaves_nothing(
    client: Client,
    full: Callable[[], contextlib.AbstractContextManager[None]],
    others: list[bytes],
    first: bool,
) -> None:
    for other in others:
        client.ask(read(other))
    with full():
        assert "used memory" in str(client.ask(read(A, first=first)))
    assert client.shares() == others
    assert client.ask(pack(b"EXISTS", QUEUE)) == 0
    assert client.ask(pack(b"GET", DOC)) == (SHARED if others else None)
    assert client.ask(SHARE.look(A)) == [None]


@pytest.mark.promise("S3")
async def test_a_lock_and_its_set_end_by_themselves_together(client: Client) -> None:
    """After the last deadline, an eighth later at most; also after extensions of others."""
    client.ask(read(A, 2_000))
    client.ask(read(B, 400))
    client.ask(extend(B, 400))
    for key in (DOC, SET):
        assert 1_000 < client.pttl(key) <= 2_250
    client.ask(extend(A, 200))
    for key in (DOC, SET):
        assert client.pttl(key) <= 450
    began = time.monotonic()
    while client.ask(pack(b"EXISTS", DOC, SET)):
        assert time.monotonic() < began + 10
        await asyncio.sleep(0.01)
    assert client.ask(pack(b"DBSIZE")) == 0


@pytest.mark.promise("S4")
async def test_a_dead_reader_is_no_reader_though_another_one_extends(client: Client) -> None:
    client.ask(read(A, 300))
    client.ask(read(B, 60_000))
    await asyncio.sleep(0.32)
    assert client.ask(SHARE.look(A)) == [None]
    assert client.ask(extend(A)) == 0
    assert client.ask(extend(B)) == b"OK"
    assert client.shares() == [B]


@pytest.mark.promise("S8")
async def test_a_writer_that_leaves_wakes_all_readers_behind_it(
    server: EmbeddedMaster, client: Client
) -> None:
    with contextlib.closing(redis.Redis.from_url(server.url)) as other, other.pubsub() as pubsub:
        pubsub.subscribe(*[commands.CHANNEL + token for token in (A, B, C)])
        for _ in range(3):
            pubsub.get_message(timeout=10)
        client.ask(write(b"w"))
        client.ask(read(A, place=1))
        client.ask(read(B, place=2))
        client.ask(write(b"x", place=3))
        client.ask(read(C, place=4))
        assert client.ask(stop_writing(b"w")) == b"OK"
        woken = [pubsub.get_message(timeout=10) for _ in range(2)]
        assert [message and message["data"] for message in woken] == [reader(A), reader(B)]
        assert pubsub.get_message(timeout=0.05) is None
