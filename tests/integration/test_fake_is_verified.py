"""
The fake master of `redlock_aio.testing` replies as real servers do, and keeps the same keys.

The fake runs the shipped scripts. Compared here is the rest of it: the commands, the
conversion of values between a script and its master, and what a script may do. Whole
scripts are compared as well, in random order.
"""

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from hashlib import sha1

import hiredis
import pytest
import redis
from hypothesis import HealthCheck, given, settings, strategies as st

from redlock_aio._protocol import commands, lock_state, scripts
from redlock_aio._protocol.commands import SetLine, declare
from redlock_aio._protocol.lease_export import ExportedLease, adoption
from redlock_aio._protocol.primitives import FencingCounter, JointMutex, Mutex, Permits, Share
from redlock_aio._protocol.request import pack
from redlock_aio._rules.lock_value import SHARED
from redlock_aio._rules.server_info import ServerInfo
from redlock_aio.testing import EmbeddedMaster, FakeMaster
from redlock_aio.testing._fake_commands import EPOCH, encode

from .servers import process

pytestmark = pytest.mark.integration

TOLERANCE = 250
"""Milliseconds by which the ttls of a key may differ, besides the time between two requests."""

STRINGS = [b"r", b'it\'s {x} "y"', "ключ🔒".encode(), b"\\n", b"%s%n", b"x" * 512, b"\xff\x00\r\n"]
LOCKS = STRINGS[:2]
QUEUES = commands.queue_keys(*LOCKS)
COUNTERS = FencingCounter(LOCKS, 0).keys
SHARES = [commands.shares_key(key) for key in LOCKS]
KEYS = [*STRINGS, *QUEUES, *COUNTERS, *SHARES]
SEMAPHORE = Permits(Mutex(LOCKS[1]), 3)
PERMITS = [SEMAPHORE.permit(number) for number in range(SEMAPHORE.number)]
PERMIT_KEYS = [
    *{key for permit in PERMITS for key in commands.permit_keys(permit)},
    *(permit.counter(0).keys[0] for permit in PERMITS),
]

TOKENS = [b"a" * 40, b"b" * 40]
MEMBERS = [b"me/1", b"me/2", b"you/1", b"\xff\x00/1", b"nobody"]
READERS = [b"me/3r", b"you/2r", b"you/3r"]
AT_ANY_TIME, AT_NO_TIME = 2**52, 1
"""Times after which an `enqueue` is too late, in us of a master's clock."""
ANY_LEAD = 2**53
"""Microseconds by which a proposal may be off: the clocks of two servers differ."""
NUMBERS = [0, 1, 999, 1_700_000_000_000_001, 2**52, 2**53 - 2, 2**53 - 1, 2**53]
"""Counters, proposals and tokens; a script can't count beyond the last."""
STRANGE = [b"7", b"007", b"%020d" % 2**50, b"%d" % 2**53, b"junk", b"", b"inf", b"1e3"]
"""Values that other clients may write to the key of a counter."""


@dataclass(slots=True)
class Pair:
    """
    A fake and a real server that get the same commands.

    Attributes:
        tolerance: The milliseconds by which ttls may differ. The real server executes a request
            later than the fake does, on a busy machine by as long as the slowest request took.

        keys: The keys that are compared.
    """

    fake: FakeMaster
    real: redis.Connection
    tolerance: float = TOLERANCE
    keys: Sequence[bytes] = tuple(KEYS)

    def ask(self, request: bytes) -> tuple[object, object]:
        """Return the reply of each of them."""
        began = time.monotonic()
        replies = self._ask(request)
        self.tolerance = max(self.tolerance, TOLERANCE + (time.monotonic() - began) * 1000)
        return replies

    def _ask(self, request: bytes) -> tuple[object, object]:
        reader = hiredis.Reader()
        reader.feed(request)
        reply = hiredis.Reader()
        reply.feed(encode(self.fake.execute(reader.gets())))
        self.real.send_packed_command([request])
        try:
            answer: object = self.real.read_response()
        except redis.RedisError as error:
            answer = error
        return plain(reply.gets()), plain(answer)

    def check(self, request: bytes) -> object:
        """Compare the replies to a request, and all keys after it; return the real reply."""
        fake, real = self.ask(request)
        assert alike(fake, real, self.tolerance), (request, fake, real)
        self.check_keys()
        return real

    def check_keys(self) -> None:
        """Compare the types, values and ttls of all keys."""
        for key in self.keys:
            kind, real_kind = self.ask(pack(b"TYPE", key))
            assert kind == real_kind, key
            if kind == b"string":
                fake, real = self.ask(pack(b"GET", key))
                assert fake == real, key
            elif kind == b"zset":
                ours, theirs = self.members(key), self.real_members(key)
                assert ours.keys() == theirs.keys()
                assert all(abs(ours[name] - theirs[name]) < self.tolerance for name in ours)
            left, real_left = self.ask(pack(b"PTTL", key))
            assert isinstance(left, int)
            assert isinstance(real_left, int)
            assert (left < 0) == (real_left < 0)
            assert abs(left - real_left) < self.tolerance

    def members(self, key: bytes) -> dict[bytes, float]:
        """Return a sorted set of the fake."""
        return self.fake._data.zall(key)

    def real_members(self, key: bytes) -> dict[bytes, float]:
        """Return a sorted set of the real server."""
        self.real.send_packed_command([pack(b"ZRANGE", key, b"0", b"-1", b"WITHSCORES")])
        return dict(self.real.read_response())


SAME = (
    "wrong kind of value", "user_script", "Error compiling script",
    "arguments must be strings or integers", "nknown", "invalid expire time",
)  # fmt: skip
"""The words that errors of all servers have in common; the other words differ."""


def alike(fake: object, real: object, tolerance: float = TOLERANCE) -> bool:
    """Return whether two replies are the same, except for *tolerance* ms between them."""
    match fake, real:
        case [[*items], [*real_items]]:
            return len(items) == len(real_items) and all(
                alike(item, real_item, tolerance)
                for item, real_item in zip(items, real_items, strict=True)
            )
        case [bytes(text), bytes(real_text)] if len(text) == 10 and text.isdigit():  # of a TIME
            return real_text.isdigit() and abs(int(text) - int(real_text)) <= tolerance / 1000 + 1
        case [bytes(text), bytes(real_text)] if len(text) <= 6 and text.isdigit():
            return real_text.isdigit()
        case [int(number), int(real_number)] if EPOCH <= number // 1_000_000 < 2 * EPOCH:  # in us
            return number == real_number or abs(number - real_number) < tolerance * 1000
        case [int(number), int(real_number)] if 1 < number < 2**41:  # a PTTL
            return abs(number - real_number) < tolerance
    return fake == real


def plain(reply: object) -> object:
    """Return a reply in a form in which those of two RESP readers can be compared."""
    if isinstance(reply, list):
        return [plain(item) for item in reply]
    if isinstance(reply, Exception):
        # redis-py makes a class of the error code, hiredis a text. The script's name is left out.
        text = str(reply).split(" script: ")[0]
        for what in SAME:
            if what in text:
                return "error", what
        for code in ("NOSCRIPT ", "ERR "):
            text = text.removeprefix(code)
        return "error", text.rstrip(".").split(".")[0]
    return b"OK" if reply is True else reply


@pytest.fixture(scope="module")
def server(kind: str) -> Iterator[EmbeddedMaster]:
    with process(kind) as master:
        yield master


@contextlib.contextmanager
def connection_to(server: EmbeddedMaster) -> Iterator[redis.Connection]:
    """Yield a connection to an empty server."""
    connection = redis.Connection(host="127.0.0.1", port=server.port, protocol=3)
    try:
        for request in (pack(b"FLUSHALL"), pack(b"SCRIPT", b"FLUSH")):
            connection.send_packed_command([request])
            connection.read_response()
        yield connection
    finally:
        connection.disconnect()


def as_late_as_real() -> FakeMaster:
    """Return a fake whose clock has the machine's time."""
    fake = FakeMaster()
    fake.clock_offset = time.time() - EPOCH - asyncio.get_running_loop().time()
    return fake


@contextlib.contextmanager
def pair_with(server: EmbeddedMaster) -> Iterator[Pair]:
    """Yield an empty server and a fake."""
    with connection_to(server) as connection:
        yield Pair(as_late_as_real(), connection)


async def compare(server: EmbeddedMaster, story: list[bytes], keys: Sequence[bytes] = KEYS) -> None:
    """Compare the fake with the real server after each of these requests."""
    with pair_with(server) as pair:
        pair.keys = keys
        loads = [script.load for script in scripts.SCRIPTS]
        for request in [*loads, pack(b"SCRIPT", b"LOAD", RELAY), *story]:
            pair.check(request)


def stories(requests: st.SearchStrategy[bytes], size: int) -> st.SearchStrategy[list[bytes]]:
    return st.lists(requests, min_size=size // 4, max_size=size)


# The commands, sent by a client and called by a script.


RELAY = b"return redis.call(unpack(ARGV))"
"""A script that calls one command."""
RELAY_SHA = sha1(RELAY, usedforsecurity=False).hexdigest().encode()

strings, sets = st.sampled_from(STRINGS), st.sampled_from([*QUEUES, *SHARES])
keys = st.one_of(strings, sets)
tokens, members = st.sampled_from(TOKENS), st.sampled_from(MEMBERS)
numbers = st.sampled_from(NUMBERS)
ttls = st.integers(min_value=2_000, max_value=2**40)
scores = st.sampled_from([b"0", b"1", b"-7", b"1.5", b"1700000000123.5", b"2251799813685248"])
bounds = st.one_of(scores, scores.map(b"(%b".__mod__), st.sampled_from([b"-inf", b"+inf", b"junk"]))
places = st.sampled_from([b"0", b"1", b"2", b"-1", b"-2", b"-9", b"9", b"junk"])


def command(name: bytes, *arguments: st.SearchStrategy[bytes] | bytes) -> st.SearchStrategy[bytes]:
    """Build a command that a script calls."""
    each = [st.just(word) if isinstance(word, bytes) else word for word in arguments]
    words = st.tuples(*each)
    return words.map(lambda words: pack(b"EVALSHA", RELAY_SHA, b"0", name, *words))


def digits(numbers: st.SearchStrategy[int]) -> st.SearchStrategy[bytes]:
    return numbers.map(b"%d".__mod__)


any_command = st.one_of(
    command(b"ZADD", keys, scores, members),
    command(b"ZADD", sets, scores, members),
    command(b"ZADD", sets, scores, members),
    command(b"ZADD", sets, scores, members, scores, members),
    command(b"ZADD", sets, scores, members, st.just(b"junk"), members),
    command(b"ZADD", sets, scores, members, scores),
    command(b"ZADD", sets, st.just(b"junk"), members),
    command(b"ZREM", keys, members, members),
    command(b"ZRANK", keys, members),
    command(b"ZCARD", keys),
    command(b"ZSCORE", keys, members),
    command(b"ZRANGE", keys, places, places),
    command(b"ZRANGE", sets, places, places, b"withscores"),
    command(b"ZRANGE", sets, places, places, b"junk"),
    command(b"ZRANGEBYSCORE", sets, bounds, bounds),
    command(b"ZRANGEBYSCORE", keys, bounds, bounds, b"WITHSCORES"),
    command(b"ZRANGEBYSCORE", sets, bounds, bounds, b"LIMIT", places, places),
    command(b"ZRANGEBYSCORE", sets, b"-inf", b"+inf", b"limit", b"1", b"2", b"withscores"),
    command(b"SET", keys, tokens, b"PX", digits(ttls)),
    command(b"SET", keys, tokens, b"NX", b"PX", digits(ttls)),
    command(b"SET", keys, tokens, b"GET", b"PX", digits(ttls)),
    command(b"set", keys, tokens, b"px", st.sampled_from([b"0", b"-1", b"junk"])),
    command(b"SET", keys, tokens, st.sampled_from([b"JUNK", b"PX"])),
    command(b"GET", keys),
    command(b"TYPE", keys),
    command(b"PTTL", keys),
    command(b"DEL", keys),
    command(b"DEL", keys, keys, keys),
    command(b"PEXPIRE", keys, st.sampled_from([b"70000", b"0", b"-1", b"junk"])),
    command(b"PUBLISH", b"nobody", members),
    command(b"TIME"),
    command(b"NONSENSE"),
    # As a client sends them.
    st.builds(Mutex.acquire, strings.map(Mutex), tokens, ttls),
    st.builds(pack, st.just(b"SET"), keys, tokens, st.just(b"NX")),
    st.builds(pack, st.just(b"SET"), keys, st.just(b"x" * 5_000)),
    st.builds(pack, st.sampled_from([b"GET", b"PTTL", b"DEL", b"TYPE"]), keys),
    st.builds(pack, st.just(b"GETRANGE"), keys, st.just(b"0"), st.sampled_from([b"9", b"4095"])),
    st.builds(pack, st.just(b"PEXPIRE"), keys, st.sampled_from([b"70000", b"0", b"-1"])),
    st.sampled_from([script.load for script in scripts.SCRIPTS]),
    st.just(pack(b"EVALSHA", b"0" * 40, b"0")),
    st.sampled_from([commands.PING, commands.TIME, pack(b"FLUSHALL")]),
)


@given(story=stories(any_command, 40))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_the_fake_master_executes_commands_as_a_real_one(
    server: EmbeddedMaster, story: list[bytes]
) -> None:
    """After each command the replies, the values and the times left are the same."""
    asyncio.run(compare(server, story))


# What passes between a script and its master.

SCRIPTS = [
    # Results of scripts.
    "return 1", "return 1.9", "return -1.9", "return 2^53", "return -2^53", "return '1.9'",
    "return nil", "return", "return false", "return true", "return ''", "return '\\0\\255'",
    "return {}", "return {1, 2.9, 'x', -0.5}", "return {1, nil, 3}", "return {1, false, 'x', true}",
    "return {{1, {2, {}}}, 'x'}", "return {x = 1}", "return {ok = 'fine'}", "return {ok = 'OK'}",
    "return {{ok = 'fine'}, {ok = 'OK'}}", "return {err = 'NOT today'}",
    "return {1, 2, ok = 'fine'}", "return redis.status_reply('fine')", "return 'a', 'b'",
    # Results of commands.
    "return redis.call('GET', 'missing')", "return tostring(redis.call('GET', 'missing'))",
    "return redis.call('SET', 'k', 'v')", "return redis.call('SET', 'k', 'v').ok",
    "return {type(redis.call('SET', 'k', 'v')), type(redis.call('DEL', 'k'))}",
    "return {type(redis.call('TIME')), #redis.call('TIME'), type(redis.call('TIME')[1])}",
    "return redis.call('TYPE', 'zset')", "return redis.call('TYPE', 'zset').ok",
    "return redis.call('ZRANGE', 'missing', 0, -1)", "return #redis.call('ZRANGE', 'zset', 0, -1)",
    "return type(redis.call('ZRANK', 'zset', 'a'))", "return redis.call('ZRANK', 'zset', 'b')",
    "return redis.call('ZRANK', 'zset', 'missing')",
    "return redis.call('ZRANGE', 'zset', -1, -1, 'WITHSCORES')",
    "return redis.call('ZRANGEBYSCORE', 'zset', 0, 9, 'WITHSCORES')",
    "return redis.call('DEL', 'missing') + 1", "return redis.call('ZSCORE', 'zset', 'b')",
    "return tostring(redis.call('ZSCORE', 'zset', 'missing'))",
    # Arguments of commands.
    "return redis.call('SET', 'k', 5)", "return redis.call('SET', 'k', -2^53)",
    "return redis.call('SET', 'k', 1.5)", "return redis.call('SET', 'k', 1e15 + 0.5)",
    "return redis.call('SET', 'k', '\\0\\255\\r\\n')", "return redis.call('GET', true)",
    "return redis.call('GET', nil)", "return redis.call('GET', {})",
    "return redis.pcall('GET', {}).err ~= nil",
    # Errors.
    "return redis.call('GET', 'zset')", "return redis.pcall('GET', 'zset')",
    "return type(redis.pcall('GET', 'zset').err)", "return redis.call('NONSENSE')",
    "return type(redis.pcall('NONSENSE'))", "return {redis.pcall('GET', 'zset').ok, 1}",
    "redis.pcall('GET', 'zset') return 'goes on'", "redis.call('GET', 'zset') return 'never'",
    "return pcall(redis.call, 'GET', 'zset')",
    "redis.call('SET', 'k', 'stays') error('x')", "return nil + 1", "error({err = 'MY error'})",
    # Globals that a script finds.
    "return {#KEYS, #ARGV, KEYS[1], ARGV[1], ARGV[2]}", "return tostring(KEYS[2])",
    "return ARGV[2] + 1", "return tonumber('junk')", "return tonumber('0x10')",
    "return tonumber('')", "return tostring(1.7e15)", "return string.format('%016.0f', 1.7e15)",
    "return math.max(2^53 - 1, 5)", "return 5 % 1", "return string.match('a/1', '^[^/]*')",
    # Actions that a script is refused.
    "x = 1", "return x", "function x() end", "return io", "return python", "return require('os')",
    "return print", "this is no Lua",
]  # fmt: skip


async def test_values_pass_between_scripts_and_commands_as_on_a_real_one(
    server: EmbeddedMaster,
) -> None:
    with pair_with(server) as pair:
        for key, score in ((b"a", b"1"), (b"b", b"2.5")):
            pair.check(pack(b"ZADD", b"zset", score, key))
        for text in SCRIPTS:
            request = pack(b"SCRIPT", b"LOAD", text.encode())
            sha = pair.check(request)
            if isinstance(sha, bytes):
                pair.check(pack(b"EVALSHA", sha, b"1", b"k\xff\0", b"", b"41.5"))
                # Nothing of a script is left for the next one.
                fake, real = pair.ask(pack(b"GET", b"k"))
                assert fake == real, text


# Whole scripts.


def queued(keys: tuple[bytes, ...]) -> tuple[bytes, ...]:
    return (*keys, *commands.queue_keys(*keys))


def enqueue(
    counter: FencingCounter,
    keys: tuple[bytes, ...],
    *,
    fenced: bool,
    first: bool,
    at: int,
    proposal: int,
    **how: int,
) -> bytes:
    token, member, ttl = TOKENS[how["token"]], MEMBERS[how["member"]], how["ttl"]
    return commands.enqueue(
        queued(keys) + (counter.keys if fenced else ()), token, ttl,
        commands.QueueEntry(
            member, how["place"], how["lives"], how["most"], not_after=at, first=first
        ),
        fence=counter.proposed(proposal) if fenced else (),
    )  # fmt: skip


def read(lock: bytes, token: bytes, ttl: int, *rest: int, member: bytes, first: bool) -> bytes:
    """Return the request for a share of *lock*; *rest*: the numbers of a `QueueEntry`."""
    head = (b"EVALSHA", scripts.ENQUEUE_SHARED.sha, b"3", *queued((lock,)))
    words = [commands.shares_key(lock), token, b"%d" % ttl, member]
    return pack(*head, *words, *[b"%d" % number for number in rest], b"first" if first else b"")


def handed(value: bytes, ttl: int, fence: int) -> ExportedLease:
    return ExportedLease(("r",), value, ttl, 0.0, ttl, "", fence)


@st.composite
def requests(draw: st.DrawFn) -> bytes:
    """Draw one request about one lock or two, as the library makes it."""
    names = draw(st.sampled_from([(LOCKS[0],), (LOCKS[1],), tuple(LOCKS)]))
    lock = Mutex(names[0]) if len(names) == 1 else JointMutex(map(Mutex, names))
    counter = FencingCounter(names, draw(st.sampled_from([ANY_LEAD] * 9 + [7_000_000])))
    token, other, ttl = draw(tokens), draw(tokens), draw(ttls)
    share, reader = Share(Mutex(names[0])), draw(st.sampled_from(READERS))
    number, ceiling = draw(numbers), draw(numbers)
    at = draw(st.sampled_from([AT_ANY_TIME] * 6 + [AT_NO_TIME]))
    kinds: dict[str, Callable[[], bytes]] = {
        "acquire": lambda: lock.acquire(token, ttl),
        "extend": lambda: commands.extend(lock.extension(token, ttl)),
        "restore": lambda: lock.restore(token, ttl),
        "release": lambda: lock.release(token),
        "look": lambda: lock.look(token),
        "adopt": lambda: adoption(lock, None, handed(token, ttl, 0), other),
        "adopt, fenced": lambda: adoption(lock, counter, handed(token, ttl, number), other),
        "acquire, fenced": lambda: counter.acquire(token, ttl, number, at),
        "raise": lambda: counter.raise_to(number, token),
        "extend, fenced": lambda: commands.extend(counter.extension(token, ttl, number)),
        "extend several": lambda: commands.extend(
            Mutex(LOCKS[0]).extension(token, ttl), counter.extension(other, ttl, number),
            Mutex(LOCKS[1]).extension(token, ttl), share.extension(other, ttl),
        ),
        "lift": lambda: counter.lift(token, number, ceiling),
        "restore, fenced": lambda: counter.restore(token, ttl, number, ceiling),
        "enqueue": lambda: enqueue(
            counter, names, fenced=draw(st.booleans()), first=draw(st.booleans()), at=at,
            proposal=number,
            token=draw(st.integers(0, 1)), member=draw(st.integers(0, 4)), ttl=ttl,
            place=draw(st.sampled_from([1, 2, 2**51])), lives=draw(ttls),
            most=draw(st.integers(1, 4)),
        ),
        "leave": lambda: commands.leave(
            queued(names),
            token,
            draw(members),
            keep_place=draw(st.booleans()),
            keep_key=draw(st.booleans()),
        ),
        "read": lambda: read(
            names[0], token, ttl, draw(st.sampled_from([1, 2, 2**51])), draw(ttls),
            draw(st.integers(1, 4)), at, member=reader, first=draw(st.booleans()),
        ),
        "stop reading": lambda: share.leave(token, reader, keep_place=draw(st.booleans())),
        "extend a share": lambda: commands.extend(share.extension(token, ttl)),
        "restore a share": lambda: share.restore(token, ttl),
        "look for a share": lambda: share.look(token),
        "inspect": lambda: lock_state.inspect(names[0]),
        "revoke": lambda: commands.revoke(
            names[0], draw(st.sampled_from([token, SHARED])), other, ttl
        ),
        "delete": lambda: pack(b"DEL", names[0], *names[1:1]),
        "count": lambda: pack(b"SET", counter.keys[0], draw(st.sampled_from(STRANGE)), b"NX"),
        "spoil": lambda: pack(b"ZADD", draw(st.sampled_from(KEYS)), b"1", b"x"),
    }  # fmt: skip
    # Requests that grant are drawn more often: then there are locks to extend.
    often = ["acquire", "acquire, fenced", "enqueue", "enqueue", "read", "read"]
    return kinds[draw(st.sampled_from([*kinds, *often]))]()


@pytest.mark.promise("S7")
@given(story=stories(requests(), 30))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_the_fake_master_runs_scripts_as_a_real_one(
    server: EmbeddedMaster, story: list[bytes]
) -> None:
    """After each request the replies, the values and the times left are the same."""
    asyncio.run(compare(server, story))


@st.composite
def permit_requests(draw: st.DrawFn) -> bytes:
    """Draw one request about a semaphore or one of its permits, as the library makes it."""
    permit, lead = draw(st.sampled_from(PERMITS)), draw(st.sampled_from([ANY_LEAD] * 9 + [7_000]))
    counter = permit.counter(lead)
    token, member, ttl = draw(tokens), draw(members), draw(ttls)
    number, at = draw(numbers), draw(st.sampled_from([AT_ANY_TIME] * 6 + [AT_NO_TIME]))
    # The waits differ by more than the time between two requests.
    place = draw(st.sampled_from([1, 2 * 10**14, 8 * 10**14, 15 * 10**14, 2**51]))
    entry = commands.QueueEntry(
        member, place, draw(ttls), draw(st.integers(1, 4)), not_after=at, first=draw(st.booleans())
    )
    order, fenced = (draw(st.integers(0, 2)), draw(st.sampled_from([1, 2]))), draw(st.booleans())
    keep = draw(st.sampled_from([None, 0, 1, 2]))
    kinds: dict[str, Callable[[], bytes]] = {
        "take": lambda: SEMAPHORE.take(
            token, ttl, order, at, counter.lead if fenced else 0, number
        ),
        "enqueue": lambda: permit.enqueue(token, ttl, entry, counter if fenced else None, number),
        "leave": lambda: permit.leave(
            token, member, keep_place=draw(st.booleans()), keep_key=draw(st.booleans())
        ),
        "release": lambda: permit.release(token),
        "decline": lambda: commands.decline(permit, member),
        "drop": lambda: SEMAPHORE.drop(token, keep),
        "extend": lambda: commands.extend(permit.extension(token, ttl)),
        "restore": lambda: permit.restore(token, ttl),
        "delete": lambda: pack(b"DEL", permit),
        "spoil": lambda: pack(b"ZADD", draw(st.sampled_from(PERMIT_KEYS)), b"1", b"x"),
    }
    often = ["take", "enqueue", "enqueue", "enqueue", "leave", "leave"]
    return kinds[draw(st.sampled_from([*kinds, *often]))]()


@pytest.mark.promise("S7")
@given(story=stories(permit_requests(), 40))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_the_fake_master_runs_scripts_of_semaphores_as_a_real_one(
    server: EmbeddedMaster, story: list[bytes]
) -> None:
    asyncio.run(compare(server, story, PERMIT_KEYS))


def test_a_fake_that_differs_is_found(server: EmbeddedMaster) -> None:
    """The comparison fails by a reply, by a value, by a ttl."""

    async def tell() -> None:
        with pair_with(server) as pair:
            pair.fake.set("r", "somebody else")
            with pytest.raises(AssertionError):
                pair.check_keys()
            pair.fake.delete("r")
            pair.check_keys()
            assert len(set(pair.ask(commands.acquire(b"r", TOKENS[0], 60_000)))) == 1
            pair.check_keys()
            pair.fake.set("r", TOKENS[0].decode(), 600_000)
            with pytest.raises(AssertionError):
                pair.check_keys()
            pair.fake.error = "ERR not today"
            with pytest.raises(AssertionError):
                pair.check(commands.acquire(b"r", TOKENS[0], 60_000))

    asyncio.run(tell())


async def test_sets_of_masters_are_declared_as_to_a_real_one(server: EmbeddedMaster) -> None:
    """The instants differ by the time between the two; the unit tests compare them exactly."""
    names = [b'["a"]', b'{"b":"r1"}', b"x" * 300]
    texts = [SetLine(name, 60_000) for name in names]
    steps = [texts[:1], texts[:2], [], [SetLine(names[2], 30_000, since=1)], texts, []]
    with pair_with(server) as pair:
        pair.check(scripts.DECLARE.load)
        for step in steps:
            fake, real = pair.ask(declare(b"key", step))
            assert isinstance(fake, list)
            assert isinstance(real, list)
            assert fake[0] == real[0], "how many were there"
            assert fake[1::2] == real[1::2]
            for (_, ours, _), (_, theirs, _) in zip(fake[2::2], real[2::2], strict=True):
                assert abs(ours - theirs) < pair.tolerance
        assert alike(*pair.ask(pack(b"PTTL", b"key")), pair.tolerance)
        # A server without memory refuses the write, and says so.
        pair.ask(pack(b"CONFIG", b"SET", b"maxmemory", b"1"))
        before = pair.ask(pack(b"GET", b"key"))[1]
        reply = pair.ask(declare(b"key", [SetLine(b"new", 60_000)]))[1]
        pair.ask(pack(b"CONFIG", b"SET", b"maxmemory", b"0"))
        assert isinstance(reply, tuple)
        assert reply[0] == "error"
        assert "used memory" in reply[1]
        assert pair.ask(pack(b"GET", b"key"))[1] == before


@pytest.mark.full
async def test_the_fake_has_the_fields_of_info_that_a_real_one_has(server: EmbeddedMaster) -> None:
    """Checked are the fields that the restart guard reads."""
    fake = FakeMaster()
    fake.uptime = 0
    with contextlib.closing(redis.Redis.from_url(server.url)) as client:
        client.set_response_callback("INFO", lambda reply, **_: reply)
        replies = [fake.execute([b"INFO"]), client.execute_command("INFO")]
    ours, theirs = (ServerInfo.parse(reply) for reply in replies if isinstance(reply, bytes))
    for info in (ours, theirs):
        assert len(info.run_id) == 40
        assert info.uptime is not None
        assert 0 <= info.uptime < 10_000
        assert info.time is not None
        assert info.promoted is info.appends is False
        assert not info.objection
        assert not info.caution
        assert not info.caution_alone
    assert theirs.time is not None
    assert abs(theirs.time / 1_000_000 - time.time()) < 10
