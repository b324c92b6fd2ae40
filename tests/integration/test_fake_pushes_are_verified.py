"""What the fake master says unasked, of changed keys and on channels, is what real servers say."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field

import hiredis
import pytest

from redlock_aio._protocol import commands, scripts
from redlock_aio._protocol.commands import CACHING, TRACKING
from redlock_aio._protocol.primitives import FencingCounter
from redlock_aio._protocol.scripts import pack
from redlock_aio.testing import EmbeddedMaster, FakeMaster

from .servers import process

pytestmark = pytest.mark.integration

LONG = 60_000
TOKEN, OTHERS = b"a" * 40, b"b" * 40
KEYS = (b"k", *commands.queue_keys(b"k"))
QUEUE, LIVE = KEYS[1:]
SHORT = 250
"""Ms that a key lives which is to end: not before the next has been said, on a busy machine."""
MISSED = 0.75
"""Seconds after which a server has noticed that a key has ended, on a busy machine."""


def subscribe(client: bytes) -> bytes:
    return commands.subscription(client, begins=True)


def unsubscribe(client: bytes) -> bytes:
    return commands.subscription(client, begins=False)


DESK = commands.CHANNEL + b"me"

Heard = list[list[object]]


def gone(*keys: bytes) -> Heard:
    """Return what is heard when these keys change, one after the other."""
    return [[b"invalidate", [key]] for key in keys]


def words(text: str) -> bytes:
    return pack(*text.encode().split())


def enqueue(token: bytes, member: bytes, *, most: int = 9, lives: int = LONG) -> bytes:
    return commands.enqueue(
        KEYS,
        token,
        LONG,
        commands.QueueEntry(member=member, priority=5, lives=lives, most=most, not_after=2**52),
    )


def leave(token: bytes, member: bytes, *, keep_place: bool = False) -> bytes:
    return commands.leave(KEYS, token, member, keep_place=keep_place)


LOOK = CACHING + commands.look(b"k")
EXTEND = commands.extend(b"k", TOKEN, LONG)
MINE = commands.acquire(b"k", TOKEN, LONG)
THEIRS = commands.acquire(b"k", OTHERS, LONG)
COUNTER = FencingCounter((b"k",), 2**53)
FENCE = 2**51
MY_FENCED = COUNTER.acquire(TOKEN, LONG, FENCE, 2**52)
COUNT = pack(b"SET", COUNTER.keys[0], b"7")
SET, DEL, PEXPIRE = words("SET k v"), words("DEL k"), words("PEXPIRE k 50000")


@dataclass(frozen=True, slots=True)
class Story:
    """Who says what in which order, and what I hear of it unasked."""

    name: str
    said: list[tuple[str, bytes] | float]
    heard: Heard = field(default_factory=list)
    tracks: bool = True
    before_7_2: Heard | None = None
    """What is heard from older servers, where a script's every read counts for all of its keys."""

    def __str__(self) -> str:
        return self.name.replace(" ", "-")


STORIES = [
    Story("nothing happens", [("me", LOOK), ("you", commands.look(b"k"))]),
    # Which changes are told.
    Story("a set", [("you", THEIRS), ("me", LOOK), ("you", SET)], gone(b"k")),
    Story("a deletion", [("you", SET), ("me", LOOK), ("you", DEL)], gone(b"k")),
    Story("a new end", [("you", SET), ("me", LOOK), ("you", PEXPIRE)], gone(b"k")),
    Story(
        "an end in the past",
        [("you", SET), ("me", LOOK), ("you", words("PEXPIRE k 0"))],
        gone(b"k"),
    ),
    Story("a missing key that comes to be", [("me", LOOK), ("you", THEIRS)], gone(b"k")),
    Story("a missing key that stays away", [("me", LOOK), ("you", DEL), ("you", PEXPIRE)]),
    Story("a set that fails", [("you", SET), ("me", LOOK), ("you", THEIRS)]),
    Story("another key", [("me", LOOK), ("you", words("SET other v"))]),
    Story("all is deleted", [("me", LOOK), ("you", words("FLUSHALL"))], [[b"invalidate", None]]),
    Story("all is deleted by me", [("me", words("FLUSHALL"))], [[b"invalidate", None]]),
    Story(
        "all is deleted and a key comes back",
        [("me", LOOK), ("you", words("FLUSHALL")), ("you", SET)],
        [[b"invalidate", None]],
    ),
    Story("all is deleted for who does not track", [("you", words("FLUSHALL"))], tracks=False),
    # How long it is remembered.
    Story("a second change", [("me", LOOK), ("you", SET), ("you", DEL)], gone(b"k")),
    Story("two looks and one change", [("me", LOOK), ("me", LOOK), ("you", SET)], gone(b"k")),
    Story(
        "a change after each of two looks",
        [("me", LOOK), ("you", SET), ("me", LOOK), ("you", DEL)],
        gone(b"k", b"k"),
    ),
    Story("my own change", [("me", LOOK), ("me", SET)]),
    Story("my own change and a second one", [("me", LOOK), ("me", SET), ("you", DEL)]),
    Story("a change by you who also look", [("me", LOOK), ("you", LOOK), ("you", SET)], gone(b"k")),
    Story(
        "a change by me when you look too", [("me", LOOK), ("you", LOOK), ("me", SET), ("you", DEL)]
    ),
    # What is to be remembered at all.
    Story("a look without asking to be told", [("me", commands.look(b"k")), ("you", SET)]),
    Story(
        "asked for one command before",
        [("me", CACHING + commands.PING + commands.look(b"k")), ("you", SET)],
    ),
    Story(
        "asked for before a command that fails",
        [("me", CACHING + words("NONSENSE") + commands.look(b"k")), ("you", SET)],
    ),
    Story(
        "asked for before another CLIENT command",
        [("me", CACHING + TRACKING + commands.look(b"k")), ("you", SET)],
        gone(b"k"),
    ),
    Story("asked for without tracking", [("me", LOOK), ("you", SET)], tracks=False),
    Story("tracking begins after the look", [("me", LOOK + TRACKING), ("you", SET)], tracks=False),
    Story(
        "the time left is looked at", [("me", CACHING + words("PTTL k")), ("you", SET)], gone(b"k")
    ),
    Story("a write is no look", [("me", CACHING + THEIRS), ("you", DEL)]),
    Story("a failed set is no look", [("you", SET), ("me", CACHING + THEIRS), ("you", DEL)]),
    # The end of a key.
    Story(
        "a key ends",
        [("you", commands.acquire(b"k", OTHERS, SHORT)), ("me", LOOK), MISSED],
        gone(b"k"),
    ),
    Story(
        "a key ends and comes back",
        [("you", commands.acquire(b"k", OTHERS, SHORT)), ("me", LOOK), MISSED, ("you", SET)],
        gone(b"k"),
    ),
    Story(
        "a key is extended by me and ends",
        [
            (
                "me",
                commands.acquire(b"k", TOKEN, LONG) + CACHING + commands.extend(b"k", TOKEN, SHORT),
            ),
            MISSED,
        ],
        gone(b"k"),
    ),
    # Scripts.
    Story("a script looks", [("you", THEIRS), ("me", CACHING + EXTEND), ("you", DEL)], gone(b"k")),
    Story("a script looks at a missing key", [("me", CACHING + EXTEND), ("you", SET)], gone(b"k")),
    Story("a script looks without being asked", [("you", THEIRS), ("me", EXTEND), ("you", DEL)]),
    Story(
        "a script extends and looks again",
        [("me", MINE + CACHING + EXTEND), ("you", DEL)],
        gone(b"k"),
    ),
    Story("a script extends without being asked", [("me", MINE + LOOK + EXTEND), ("you", DEL)]),
    Story(
        "whoever enqueues looks at the lock",
        [
            ("you", enqueue(OTHERS, b"you/1")),
            ("me", CACHING + enqueue(TOKEN, b"me/1")),
            ("you", DEL),
        ],
        gone(b"k"),
    ),
    Story(
        "whoever enqueues does not look at the queue",
        [
            ("you", THEIRS),
            ("me", CACHING + enqueue(TOKEN, b"me/1")),
            ("you", enqueue(b"c", b"you/1")),
        ],
    ),
    Story(
        "whoever finds the queue full looks at all of it",
        [
            ("you", THEIRS + enqueue(b"c", b"you/1")),
            ("me", CACHING + enqueue(TOKEN, b"me/1", most=1)),
            ("you", leave(OTHERS, b"you/1")),
        ],
        gone(b"k", QUEUE, LIVE),
    ),
    Story(
        "whoever enqueues and wins does not look",
        [("me", CACHING + enqueue(TOKEN, b"me/1")), ("you", DEL)],
    ),
    Story(
        "whoever acquires with a token does not look",
        [("me", CACHING + MY_FENCED), ("you", COUNT + DEL)],
    ),
    Story(
        "whoever fails to acquire with a token looks",
        [("you", THEIRS), ("me", CACHING + MY_FENCED), ("you", COUNT + DEL)],
        gone(b"k"),
        before_7_2=gone(COUNTER.keys[0], b"k"),
    ),
    # Channels.
    Story(
        "subscribed and published",
        [("me", subscribe(b"me")), ("you", pack(b"PUBLISH", DESK, b"x"))],
        [[b"subscribe", DESK, 1], [b"message", DESK, b"x"]],
    ),
    Story("published and not subscribed", [("you", pack(b"PUBLISH", DESK, b"x"))]),
    Story(
        "subscribed twice, and to another",
        [
            (
                "me",
                subscribe(b"me") + subscribe(b"me") + subscribe(b"2"),
            ),
            ("you", pack(b"PUBLISH", DESK, b"x")),
        ],
        [
            [b"subscribe", DESK, 1],
            [b"subscribe", DESK, 1],
            [b"subscribe", commands.CHANNEL + b"2", 2],
            [b"message", DESK, b"x"],
        ],
    ),
    Story(
        "unsubscribed",
        [
            ("me", subscribe(b"me") + unsubscribe(b"me")),
            ("you", pack(b"PUBLISH", DESK, b"x")),
        ],
        [[b"subscribe", DESK, 1], [b"unsubscribe", DESK, 0]],
    ),
    Story(
        "unsubscribed from nothing",
        [("me", unsubscribe(b"me"))],
        [[b"unsubscribe", DESK, 0]],
    ),
    Story(
        "published by myself",
        [("me", subscribe(b"me") + pack(b"PUBLISH", DESK, b"x"))],
        [[b"subscribe", DESK, 1], [b"message", DESK, b"x"]],
    ),
    Story(
        "who leaves wakes the next",
        [
            ("me", subscribe(b"me")),
            ("you", enqueue(OTHERS, b"you/1")),
            ("me", enqueue(TOKEN, b"me/1")),
            ("you", leave(OTHERS, b"you/1")),
        ],
        [[b"subscribe", DESK, 1], [b"message", DESK, b"me/1"]],
    ),
    Story(
        "a change, then a message",
        [
            ("me", subscribe(b"me") + LOOK),
            ("you", SET + pack(b"PUBLISH", DESK, b"x")),
        ],
        [[b"subscribe", DESK, 1], *gone(b"k"), [b"message", DESK, b"x"]],
    ),
]


class Ear(asyncio.Protocol):
    """A connection as its client sees it, in the raw."""

    def __init__(self) -> None:
        self.transport: asyncio.Transport | None = None
        self.heard: Heard = []
        self.replies: asyncio.Queue[object] = asyncio.Queue()
        self._reader = hiredis.Reader()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self._reader.feed(data)
        while (said := self._reader.gets()) is not False:
            if isinstance(said, hiredis.PushNotification):
                self.heard.append(list(said))
            else:
                self.replies.put_nowait(said)

    async def say(self, request: bytes) -> list[object]:
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
    """Return what of a reply is the same on two servers of different clocks."""
    if isinstance(reply, hiredis.ReplyError):
        return str(reply).split(",")[0].rstrip(".")
    if isinstance(reply, list) and len(reply) == 4:  # what, the ttl, the clock, the value
        return [reply[0], reply[3]]
    if isinstance(reply, list):  # the value, the ttl
        return reply[0]
    return reply > 0 if isinstance(reply, int) and reply > 1 else reply


Open = contextlib.AbstractAsyncContextManager[dict[str, Ear]]


@contextlib.asynccontextmanager
async def real(server: EmbeddedMaster) -> AsyncIterator[dict[str, Ear]]:
    """Give two connections to an empty server."""
    loop = asyncio.get_running_loop()
    ears = {}
    for who in ("me", "you"):
        _, ears[who] = await loop.create_connection(Ear, "127.0.0.1", server.port)
        await ears[who].say(words("HELLO 3") + words("FLUSHALL"))
    yield ears
    close(ears)


@contextlib.asynccontextmanager
async def fake() -> AsyncIterator[dict[str, Ear]]:
    """Give two connections to a fake."""
    master = FakeMaster()
    ears = {"me": Ear(), "you": Ear()}
    for ear in ears.values():
        ear.transport, _ = await master.dial()
        ear.transport.set_protocol(ear)
    yield ears
    close(ears)


def close(ears: dict[str, Ear]) -> None:
    for ear in ears.values():
        assert ear.transport is not None
        ear.transport.close()


async def live(story: Story, opened: Open) -> tuple[Heard, list[list[object]]]:
    """Return what I hear in the story, and all replies in it."""
    async with opened as ears:
        for ear in ears.values():
            if story.tracks:
                await ear.say(TRACKING)
            await ear.say(b"".join(script.load for script in scripts.SCRIPTS))
        replies = []
        for step in story.said:
            if isinstance(step, float):
                await asyncio.sleep(step)
            else:
                replies.append(await ears[step[0]].say(step[1]))
        replies.append(await ears["me"].say(b""))
        return ears["me"].heard, replies


@pytest.fixture(scope="module")
def server(kind: str) -> Iterator[EmbeddedMaster]:
    with process(kind) as master:
        yield master


def is_new(server: EmbeddedMaster) -> bool:
    """Return whether the server is, or descends from, Redis 7.2 or a later one."""
    with contextlib.closing(server.client()) as client:
        version = str(client.info("server")["redis_version"])
    return tuple(map(int, version.split(".")[:2])) >= (7, 2)


async def compare(server: EmbeddedMaster, story: Story, *, new: bool) -> None:
    """See that the fake and a real server say unasked in a story what it says."""
    (heard, replies), (really_heard, real_replies) = await asyncio.gather(
        live(story, fake()), live(story, real(server))
    )
    assert really_heard == (story.heard if new or story.before_7_2 is None else story.before_7_2)
    assert heard == story.heard
    assert replies == real_replies


@pytest.fixture(scope="module")
def new(server: EmbeddedMaster) -> bool:
    return is_new(server)


@pytest.mark.parametrize("story", STORIES, ids=str)
async def test_the_fake_master_says_unasked_what_a_real_one_says(
    server: EmbeddedMaster, story: Story, *, new: bool
) -> None:
    await compare(server, story, new=new)


async def test_who_finds_by_himself_that_a_key_has_ended_is_not_told(kind: str) -> None:
    """A server that looks for ended keys itself would most often be the first."""

    async def look_twice(ears: dict[str, Ear]) -> tuple[Heard, Heard]:
        for ear in ears.values():
            await ear.say(TRACKING + scripts.LOOK.load)
        await ears["you"].say(commands.acquire(b"k", OTHERS, SHORT))
        await asyncio.gather(*(ear.say(LOOK) for ear in ears.values()))
        await asyncio.sleep(SHORT / 1000 + 0.03)
        await ears["me"].say(LOOK)  # finds it gone, remembers it again
        await ears["me"].say(b"")
        await ears["you"].say(b"")
        return ears["me"].heard, ears["you"].heard

    with process(kind, "--enable-debug-command", "yes") as server:
        async with real(server) as ears, fake() as ours:
            await ears["you"].say(words("DEBUG SET-ACTIVE-EXPIRE 0"))
            really_told, told = await asyncio.gather(look_twice(ears), look_twice(ours))
    assert really_told == told == ([], gone(b"k"))
