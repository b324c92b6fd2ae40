"""The fake master pushes what real servers push: changed keys, and messages on channels."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Iterator

import hiredis
import pytest

from redlock_aio._protocol import commands, scripts
from redlock_aio._protocol.commands import CACHING, TRACKING
from redlock_aio._protocol.primitives import FencingCounter, Mutex
from redlock_aio._protocol.request import pack
from redlock_aio.testing import EmbeddedMaster, FakeMaster

from .helpers import until
from .servers import process

pytestmark = pytest.mark.integration

LONG = 60_000
TOKEN, OTHERS = b"a" * 40, b"b" * 40
KEYS = (b"k", *commands.queue_keys(b"k"))
QUEUE = KEYS[1]
SHORT = 250
"""Ttl in ms of a key that is to expire after the next request; see `in_time`."""
MISSED = "missed"
"""A step: wait until the server has noticed that the key has expired, and pushed that."""

Pushes = list[list[object]]
Step = tuple[str, bytes] | str


def me(*requests: bytes) -> Step:
    """Return a step: requests of the client whose pushes are compared."""
    return "me", b"".join(requests)


def you(*requests: bytes) -> Step:
    """Return a step: requests of another client."""
    return "you", b"".join(requests)


def gone(*keys: bytes) -> Pushes:
    """Return the pushes for these keys, which change one after the other."""
    return [[b"invalidate", [key]] for key in keys]


def words(text: str) -> bytes:
    return pack(*text.encode().split())


def enqueue(token: bytes, member: bytes, *, most: int = 9) -> bytes:
    entry = commands.QueueEntry(
        member=member, priority=5, lives=LONG, most=most, not_after=2**52
    )  # fmt: skip
    return commands.enqueue(KEYS, token, LONG, entry)


ALL_GONE: Pushes = [[b"invalidate", None]]
FLUSH, SET, DEL = words("FLUSHALL"), words("SET k v"), words("DEL k")
PEXPIRE = words("PEXPIRE k 50000")
ZADD = words("ZADD k 1 x")
GLANCE = commands.look(b"k")
LOOK = CACHING + GLANCE
EXTEND = commands.extend(Mutex(b"k").extension(TOKEN, LONG))
MINE, THEIRS = commands.acquire(b"k", TOKEN, LONG), commands.acquire(b"k", OTHERS, LONG)
ENDS = commands.acquire(b"k", OTHERS, SHORT)
COUNTER = FencingCounter((b"k",), 2**53)
MY_FENCED = COUNTER.acquire(TOKEN, LONG, 2**51, 2**52)
COUNT = pack(b"SET", COUNTER.keys[0], b"7")
CHANNEL = commands.CHANNEL + b"me"
SUBSCRIBE = commands.subscription(b"me", begins=True)
UNSUBSCRIBE = commands.subscription(b"me", begins=False)
PUBLISH = pack(b"PUBLISH", CHANNEL, b"x")
SUBSCRIBED: list[object] = [b"subscribe", CHANNEL, 1]
MESSAGE: list[object] = [b"message", CHANNEL, b"x"]

STORIES: dict[str, tuple[list[Step], Pushes]] = {
    "nothing happens": ([me(LOOK), you(GLANCE)], []),
    # Which changes are pushed.
    "a set": ([you(THEIRS), me(LOOK), you(SET)], gone(b"k")),
    "a deletion": ([you(SET), me(LOOK), you(DEL)], gone(b"k")),
    "a new end": ([you(SET), me(LOOK), you(PEXPIRE)], gone(b"k")),
    "an end in the past": ([you(SET), me(LOOK), you(words("PEXPIRE k 0"))], gone(b"k")),
    "a missing key that comes to be": ([me(LOOK), you(THEIRS)], gone(b"k")),
    "a missing key that stays away": ([me(LOOK), you(DEL, PEXPIRE)], []),
    "a set that fails": ([you(SET), me(LOOK), you(THEIRS)], []),
    "another key": ([me(LOOK), you(words("SET other v"))], []),
    "all is deleted and a key comes back": ([me(LOOK), you(FLUSH), you(SET)], ALL_GONE),
    "all is deleted by me": ([me(FLUSH)], ALL_GONE),
    # For how long a key is tracked.
    "a second change": ([me(LOOK), you(SET), you(DEL)], gone(b"k")),
    "two looks and one change": ([me(LOOK), me(LOOK), you(SET)], gone(b"k")),
    "a change after each of two looks": (
        [me(LOOK), you(SET), me(LOOK), you(DEL)],
        gone(b"k", b"k"),
    ),
    "my own change, then another": ([me(LOOK), me(SET), you(DEL)], []),
    "a change by a client that tracks too": ([me(LOOK), you(LOOK), you(SET)], gone(b"k")),
    "my change of what both track": ([me(LOOK), you(LOOK), me(SET), you(DEL)], []),
    # What is tracked at all.
    "a look without CACHING": ([me(GLANCE), you(SET)], []),
    "CACHING one command before": ([me(CACHING, commands.PING, GLANCE), you(SET)], []),
    "CACHING before a failure": ([me(CACHING, words("NONSENSE"), GLANCE), you(SET)], []),
    "CACHING before another CLIENT": ([me(CACHING, TRACKING, GLANCE), you(SET)], gone(b"k")),
    "the type": ([you(ZADD), me(CACHING, words("TYPE k")), you(SET)], gone(b"k")),
    "a scan": (
        [you(SET), me(CACHING, words("SCAN 0 MATCH * COUNT 9 TYPE string")), you(DEL)],
        [],
    ),
    "the time left": ([me(CACHING, words("PTTL k")), you(SET)], gone(b"k")),
    "a write is no look": ([me(CACHING, THEIRS), you(DEL)], []),
    "a failed set is no look": ([you(SET), me(CACHING, THEIRS), you(DEL)], []),
    # The end of a key.
    "a key ends and comes back": ([you(ENDS), me(LOOK), MISSED, you(SET)], gone(b"k")),
    "a key is extended by me and ends": (
        [me(MINE, CACHING, commands.extend(Mutex(b"k").extension(TOKEN, SHORT))), MISSED],
        gone(b"k"),
    ),
    # Scripts.
    "a script looks": ([you(THEIRS), me(CACHING, EXTEND), you(DEL)], gone(b"k")),
    "a script looks at a missing key": ([me(CACHING, EXTEND), you(SET)], gone(b"k")),
    "a script looks without CACHING": ([you(THEIRS), me(EXTEND), you(DEL)], []),
    "a script writes and looks": ([me(MINE, CACHING, EXTEND), you(DEL)], gone(b"k")),
    # The script reads the queue once more after its last change of it.
    "a script changes and reads a key": (
        [you(THEIRS), me(CACHING, enqueue(TOKEN, b"me/1")), you(enqueue(b"c", b"you/1"))],
        gone(QUEUE),
    ),
    "a script reads all of its keys": (
        [
            you(THEIRS, enqueue(b"c", b"you/1")),
            me(CACHING, enqueue(TOKEN, b"me/1", most=1)),
            you(commands.leave(KEYS, OTHERS, b"you/1", keep_place=False)),
        ],
        gone(b"k", QUEUE),
    ),
    "a script that grants does not look": ([me(CACHING, MY_FENCED), you(COUNT, DEL)], []),
    "a script that refuses looks": (
        [you(THEIRS), me(CACHING, MY_FENCED), you(COUNT, DEL)],
        gone(b"k"),
    ),
    # Channels.
    "a message": ([me(SUBSCRIBE), you(PUBLISH)], [SUBSCRIBED, MESSAGE]),
    "a message without a subscription": ([you(PUBLISH)], []),
    "a message of mine": ([me(SUBSCRIBE, PUBLISH)], [SUBSCRIBED, MESSAGE]),
    "two channels": (
        [me(SUBSCRIBE, SUBSCRIBE, commands.subscription(b"2", begins=True)), you(PUBLISH)],
        [SUBSCRIBED, SUBSCRIBED, [b"subscribe", commands.CHANNEL + b"2", 2], MESSAGE],
    ),
    "unsubscribed": (
        [me(UNSUBSCRIBE), me(SUBSCRIBE, UNSUBSCRIBE), you(PUBLISH)],
        [[b"unsubscribe", CHANNEL, 0], SUBSCRIBED, [b"unsubscribe", CHANNEL, 0]],
    ),
    "a script publishes": (
        [
            me(SUBSCRIBE),
            you(enqueue(OTHERS, b"you/1")),
            me(enqueue(TOKEN, b"me/1")),
            you(commands.leave(KEYS, OTHERS, b"you/1", keep_place=False)),
        ],
        [SUBSCRIBED, [b"message", CHANNEL, b"me/1"]],
    ),
    "a change, then a message": (
        [me(SUBSCRIBE, LOOK), you(SET, PUBLISH)],
        [SUBSCRIBED, *gone(b"k"), MESSAGE],
    ),
}

UNTRACKED: dict[str, tuple[list[Step], Pushes]] = {
    "all is deleted": ([you(FLUSH)], []),
    "a look": ([me(LOOK), you(SET)], []),
    "tracking begins after the look": ([me(LOOK, TRACKING), you(SET)], []),
}

OLDER = {"a script that refuses looks": gone(COUNTER.keys[0], b"k")}
"""Before Redis 7.2 a script that reads one key tracks all of its keys."""


class Client(asyncio.Protocol):
    """A connection with its replies and pushes, without the library."""

    def __init__(self) -> None:
        self.transport: asyncio.Transport | None = None
        self.pushes: Pushes = []
        self.replies: asyncio.Queue[object] = asyncio.Queue()
        self._reader = hiredis.Reader()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self._reader.feed(data)
        while (reply := self._reader.gets()) is not False:
            if isinstance(reply, hiredis.PushNotification):
                self.pushes.append(list(reply))
            else:
                self.replies.put_nowait(reply)

    async def send(self, request: bytes) -> list[object]:
        """Send commands, and return all replies when they have been executed."""
        assert self.transport is not None
        self.transport.write(request + pack(b"PING"))
        replies: list[object] = []
        while (reply := await self.replies.get()) != b"PONG" or self._more(request, replies):
            replies.append(reply)
        return [comparable(reply) for reply in replies]

    @staticmethod
    def _more(request: bytes, replies: list[object]) -> bool:
        return request.count(b"PING") > replies.count(b"PONG")


def comparable(reply: object) -> object:
    """Return the part of a reply that is the same on two servers with different clocks."""
    if isinstance(reply, hiredis.ReplyError):
        return str(reply).split(",")[0].rstrip(".")
    if isinstance(reply, list) and len(reply) == 4:  # what, the ttl, the clock, the value
        return [reply[0], reply[3]]
    if isinstance(reply, list):  # the value, the ttl
        return reply[0]
    return reply > 0 if isinstance(reply, int) and reply > 1 else reply


Open = contextlib.AbstractAsyncContextManager[dict[str, Client]]


@contextlib.asynccontextmanager
async def real(server: EmbeddedMaster) -> AsyncIterator[dict[str, Client]]:
    """Yield two connections to an empty server."""
    loop = asyncio.get_running_loop()
    clients = {}
    for who in ("me", "you"):
        _, clients[who] = await loop.create_connection(Client, "127.0.0.1", server.port)
        await clients[who].send(words("HELLO 3") + words("FLUSHALL"))
    yield clients
    close(clients)


@contextlib.asynccontextmanager
async def fake() -> AsyncIterator[dict[str, Client]]:
    """Yield two connections to a fake."""
    master = FakeMaster()
    clients = {"me": Client(), "you": Client()}
    for client in clients.values():
        client.transport, _ = await master.dial()
        client.transport.set_protocol(client)
    yield clients
    close(clients)


def close(clients: dict[str, Client]) -> None:
    for client in clients.values():
        assert client.transport is not None
        client.transport.close()


def in_time(began: float) -> bool:
    """Return whether no key of a story that *began* then can have expired too early."""
    return time.monotonic() - began < SHORT / 1000


async def live(
    steps: list[Step], opened: Open, *, tracks: bool
) -> tuple[Pushes, list[list[object]]] | None:
    """
    Run a story; return the pushes to the first client, and all replies.

    The result is ``None`` if the machine was so busy that a key may have expired too early.
    """
    async with opened as clients:
        for client in clients.values():
            if tracks:
                await client.send(TRACKING)
            await client.send(b"".join(script.load for script in scripts.SCRIPTS))
        replies = []
        began = time.monotonic()
        for step in steps:
            if isinstance(step, str):
                if not in_time(began):
                    return None
                await until(lambda: bool(clients["me"].pushes), within=60)
            else:
                replies.append(await clients[step[0]].send(step[1]))
        replies.append(await clients["me"].send(b""))
        return clients["me"].pushes, replies


@pytest.fixture(scope="module")
def server(kind: str) -> Iterator[EmbeddedMaster]:
    with process(kind) as master:
        yield master


def is_old(server: EmbeddedMaster) -> bool:
    """Return whether the server is a Redis before 7.2."""
    with contextlib.closing(server.client()) as client:
        version = str(client.info("server")["redis_version"])
    return tuple(map(int, version.split(".")[:2])) < (7, 2)


@pytest.mark.parametrize("tracks", [True, False], ids=["tracks", "does not track"])
async def test_the_fake_master_pushes_what_a_real_one_pushes(
    server: EmbeddedMaster, *, tracks: bool
) -> None:
    older = OLDER if is_old(server) else {}
    for name, (steps, expected) in (STORIES if tracks else UNTRACKED).items():
        ours = theirs = None
        while ours is None or theirs is None:
            ours, theirs = await asyncio.gather(
                live(steps, fake(), tracks=tracks), live(steps, real(server), tracks=tracks)
            )
        (pushes, replies), (really_pushed, real_replies) = ours, theirs
        assert (name, really_pushed) == (name, older.get(name, expected))
        assert (name, pushes) == (name, expected)
        assert (name, replies) == (name, real_replies)


async def test_a_client_that_finds_a_key_ended_gets_no_push_of_it(kind: str) -> None:
    """Without its own search for expired keys: else the server would find the key first."""

    async def look_twice(clients: dict[str, Client]) -> tuple[Pushes, Pushes] | None:
        for client in clients.values():
            await client.send(TRACKING + scripts.LOOK.load)
        began = time.monotonic()
        await clients["you"].send(ENDS)
        await asyncio.gather(*(client.send(LOOK) for client in clients.values()))
        if not in_time(began):
            return None
        await asyncio.sleep(SHORT / 1000 + 0.03)
        await clients["me"].send(LOOK)  # finds it gone, and tracks it again
        await clients["me"].send(b"")
        await clients["you"].send(b"")
        return clients["me"].pushes, clients["you"].pushes

    really_pushed = pushed = None
    with process(kind, "--enable-debug-command", "yes") as server:
        while really_pushed is None or pushed is None:
            async with real(server) as clients, fake() as ours:
                await clients["you"].send(words("DEBUG SET-ACTIVE-EXPIRE 0"))
                really_pushed, pushed = await asyncio.gather(look_twice(clients), look_twice(ours))
    assert really_pushed == pushed == ([], gone(b"k"))
