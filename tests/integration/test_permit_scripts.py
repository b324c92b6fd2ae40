"""The scripts of semaphores on real servers, compared with the fake master in random stories."""

import asyncio
import contextlib
import random
from collections.abc import Iterator
from typing import cast

import hiredis
import pytest
import redis

from redlock_aio._protocol import commands, scripts
from redlock_aio._protocol.request import pack
from redlock_aio.testing import EmbeddedMaster, FakeMaster
from redlock_aio.testing._fake_commands import EPOCH, encode
from redlock_aio.testing._fake_pushes import Push, PushReceiver
from tests.unit.permits import View, Walk, enter, free, leave, permit, take

from .helpers import ScriptClient
from .servers import process

pytestmark = pytest.mark.integration

CLIENT = b"c"
A, B = b"c/1p5", b"c/2p5"


@pytest.fixture(scope="module")
def server(kind: str) -> Iterator[EmbeddedMaster]:
    with process(kind) as master:
        yield master


class Real(ScriptClient):
    """An empty server that has the scripts, and what they push."""

    def __init__(self, server: EmbeddedMaster) -> None:
        super().__init__(server)
        where = {"host": "127.0.0.1", "port": server.port}
        self._pushes = redis.Redis(**where).pubsub(ignore_subscribe_messages=True)  # type: ignore[arg-type]
        self._pushes.subscribe(commands.CHANNEL + CLIENT)
        while not self._pushes.subscribed or self.ask(
            pack(b"PUBSUB", b"NUMSUB", commands.CHANNEL + CLIENT)
        ) not in ([commands.CHANNEL + CLIENT, 1], {commands.CHANNEL + CLIENT: 1}):
            self._pushes.get_message(timeout=0.01)
        self.view = View(self.ask)

    def woken(self, number: int = 0) -> list[bytes]:
        """Return the pushes so far; wait for at least *number*."""
        found: list[bytes] = []
        for _ in range(200):
            message = self._pushes.get_message(timeout=0.0 if len(found) >= number else 0.05)
            if message is not None:
                found.append(message["data"])
            elif len(found) >= number:
                break
        return found

    def close(self) -> None:
        self.connection.disconnect()
        self._pushes.close()


@pytest.fixture
def real(server: EmbeddedMaster) -> Iterator[Real]:
    with contextlib.closing(Real(server)) as real:
        yield real


class Both:
    """A fake and a real server that get the same requests."""

    def __init__(self, real: Real) -> None:
        self.real = real
        self.fake = FakeMaster()
        self._pushed: list[bytes] = []
        for script in scripts.SCRIPTS:
            self._send(script.load)
        self.fake.execute([b"SUBSCRIBE", commands.CHANNEL + CLIENT], PushReceiver(self._note))
        self.fake_view = View(self._send)

    def _note(self, push: Push) -> None:
        self._pushed.append(cast("bytes", push[2]))

    def _send(self, request: bytes) -> object:
        reader, reply = hiredis.Reader(), hiredis.Reader()
        reader.feed(request)
        reply.feed(encode(self.fake.execute(reader.gets())))
        return reply.gets()

    def ask(self, request: bytes) -> object:
        fake, real = self._send(request), self.real.ask(request)
        assert self._timeless(fake) == self._timeless(real), (request, fake, real)
        return fake

    @staticmethod
    def _timeless(reply: object) -> object:
        """Leave out the master's time, and what is left of a ttl."""
        if not isinstance(reply, list):
            return reply if not isinstance(reply, Exception) else str(reply)
        if len(reply) == 2:  # the time and a counter, or a holder and what is left
            return reply[0] if isinstance(reply[0], bytes) else reply[1]
        return [item for item in reply if not (isinstance(item, int) and item > 1_000)]

    def woken(self) -> list[bytes]:
        pushed, self._pushed = self._pushed, []
        assert self.real.woken(len(pushed)) == pushed
        return pushed

    def check(self) -> None:
        assert self.fake_view.all == self.real.view.all
        self.real.view.check()


@pytest.mark.promise("S1", "S8")
@pytest.mark.seeds(1, full=8)
def test_a_real_server_does_what_the_fake_does(real: Real, seed: int) -> None:
    """Each reply, each push, who holds and who waits are the same after each request."""

    async def compare() -> None:
        both, rng = Both(real), random.Random(seed)
        seconds, us = cast("list[bytes]", real.ask(pack(b"TIME")))
        ahead = int(seconds) + int(us) / 1e6 - EPOCH - asyncio.get_running_loop().time()
        both.fake.clock_offset = ahead
        story = Walk(both.ask, both.woken, both.check, both.fake._clock(), rng)
        await story.run(200, asyncio.sleep)
        assert story.granted > 15
        assert story.moved

    asyncio.run(compare())


@pytest.fixture
def full(real: Real) -> Iterator[Real]:
    """A server on which all permits are held, and that has no memory left for more."""
    for number in range(5):
        real.ask(take(b"t%d" % number, number))
    place = 1_000_000
    assert real.ask(enter(A, place, 0)) != []
    assert real.ask(enter(B, place + 1, 1)) != []
    real.ask(pack(b"CONFIG", b"SET", b"maxmemory", b"1"))
    yield real
    real.ask(pack(b"CONFIG", b"SET", b"maxmemory", b"0"))


def test_a_release_needs_no_memory(full: Real) -> None:
    """A master that refuses to take more must still free what a holder releases, and say so."""
    more = full.ask(enter(A, 2_000_000, 2))
    assert isinstance(more, redis.ResponseError), "it has no memory"
    assert full.ask(free(b"t0", 0)) == b"OK"
    assert full.woken(1) == [b"%b %b" % (A, permit(0))]
    assert full.ask(free(b"t4", 4)) == b"OK"
    assert full.woken(1) == [b"%b %b" % (B, permit(4))]
    assert full.ask(leave(A, 0)) == full.ask(leave(B, 4)) == 0
    assert full.view.holders == {1: b"t1", 2: b"t2", 3: b"t3"}
    assert full.view.queues == {}
