"""The fake master of `redlock_aio.testing` answers as real servers do, and keeps the same keys."""

import asyncio
import contextlib
import time
from collections.abc import Iterator
from dataclasses import dataclass

import hiredis
import pytest
import redis
from hypothesis import HealthCheck, given, settings, strategies as st

from redlock_aio._rules import inspection, protocol, revocation, scripts
from redlock_aio._rules.fencing import Counter
from redlock_aio._rules.scripts import ACQUIRE, EXTEND_FENCED, LIFT, RAISE, RESTORE_FENCED, pack
from redlock_aio._rules.server import ServerInfo
from redlock_aio.testing import EmbeddedMaster, FakeMaster
from redlock_aio.testing._fake_commands import EPOCH, encode

from .servers import process

pytestmark = pytest.mark.integration

TOKENS = [b"a" * 40, b"b" * 40]
NAMES = [b"r", b'it\'s {x} "y"', "ключ🔒".encode(), b"\\n", b"%s%n", b"x" * 512, b"\xff\x00\r\n"]
TOLERANCE = 250
"""How many ms the two may differ in what a key has left, on a busy machine."""
SHORT = 250
"""Ms that something lives which is to end: not before the next has been said, on a busy machine."""
OVER = SHORT / 1000 + 0.04
"""Seconds after which it has ended."""

keys = st.sampled_from(NAMES)
MEMBERS = [b"me/1", b"me/2", b"you/1", b"\xff\x00/1", b"nobody"]
AT_ANY_TIME, AT_NO_TIME = 2**52, 1
"""Times after which an `enqueue` comes too late, in us of a master's clock."""
QUEUED = NAMES[:2]
QUEUES = [key for name in QUEUED for key in protocol.queue_keys(name)]
ANY_LEAD = 2**53
"""By how many us a proposal may be off: no two servers agree on what is near."""
COUNTERS = [Counter((name,), ANY_LEAD).keys[0] for name in QUEUED]
NUMBERS = [0, 1, 999, 1_700_000_000_000_001, 2**52, 2**53 - 2, 2**53 - 1, 2**53]
"""Counters, proposals and tokens; beyond the last a script can't count."""

tokens = st.sampled_from(TOKENS)
members = st.sampled_from(MEMBERS)
ttls = st.integers(min_value=2_000, max_value=2**40)


def queue_requests(names: list[bytes]) -> st.SearchStrategy[bytes]:
    """Build what is said about locks with queues, of these names."""
    keys = st.sampled_from([(name, *protocol.queue_keys(name)) for name in names])
    enqueues = st.builds(
        protocol.enqueue,
        keys,
        tokens,
        ttls,
        member=members,
        priority=st.sampled_from([1, 2, 2**51]),
        lives=st.integers(min_value=2_000, max_value=2**40),
        most=st.integers(min_value=1, max_value=4),
        not_after=st.sampled_from([AT_ANY_TIME] * 9 + [AT_NO_TIME]),
    )
    either = st.booleans()
    leaves = st.builds(protocol.leave, keys, tokens, members, stay=either, keep=either)
    return st.one_of(
        enqueues,
        enqueues,
        leaves,
        st.builds(protocol.release, st.sampled_from(names), tokens),
        operators_requests(names),
    )


def operators_requests(names: list[bytes]) -> st.SearchStrategy[bytes]:
    """Build what is asked, and done by force, about locks of these names."""
    keys = st.sampled_from(names)
    return st.one_of(
        st.builds(inspection.inspect, keys),
        st.builds(revocation.revoke, keys, tokens, tokens, ttls),
        st.builds(mixed_up, keys, st.sampled_from([scripts.INSPECT, scripts.REVOKE])),
    )


def mixed_up(name: bytes, script: scripts.Script) -> bytes:
    """Say something of a lock where the counter is a queue, or the queue a lock."""
    said = {scripts.INSPECT: (), scripts.REVOKE: (TOKENS[0], TOKENS[1], b"60000", b"x")}
    queue, live = protocol.queue_keys(name)
    keys = {scripts.INSPECT: (name, queue, name, live), scripts.REVOKE: (name, name, live)}
    names = keys[script]
    return pack(b"EVALSHA", script.sha, b"%d" % len(names), *names, *said[script])


def fenced_requests(names: list[bytes]) -> st.SearchStrategy[bytes]:
    """Build what is said about locks with counters, of these names."""
    keys = st.sampled_from(names)
    numbers = st.sampled_from(NUMBERS)
    times = st.sampled_from([AT_ANY_TIME] * 4 + [AT_NO_TIME])
    leads = st.sampled_from([ANY_LEAD] * 9 + [7_000_000])
    counters = st.builds(lambda key, lead: Counter((key,), lead), keys, leads)
    enqueues = st.builds(
        lambda counter, token, member, ttl, at, proposal: protocol.enqueue(
            (counter._keys[1], *protocol.queue_keys(counter._keys[1]), *counter.keys), token, ttl,
            member=member, priority=1, lives=60_000, most=3, not_after=at,
            fence=counter.proposed(proposal),
        ),
        counters, tokens, members, ttls, times, numbers,
    )  # fmt: skip
    return st.one_of(
        st.builds(Counter.acquire, counters, tokens, ttls, numbers, times),
        st.builds(Counter.acquire, counters, tokens, ttls, numbers, times),
        st.builds(Counter.raise_to, counters, numbers, tokens),
        st.builds(Counter.extend, counters, tokens, ttls, numbers),
        st.builds(Counter.lift, counters, tokens, numbers, numbers),
        st.builds(Counter.restore, counters, tokens, ttls, numbers, numbers),
        enqueues,
        st.builds(set_counter, keys, numbers.map(b"%d".__mod__)),
        st.builds(set_counter, keys, st.sampled_from([b"007", b"%020d" % 2**50, b"junk", b""])),
        st.builds(protocol.release, keys, tokens),
        st.builds(spoilt, keys, tokens, st.sampled_from([*SPOILT])),
        queue_requests(names),
        operators_requests(names),
    )


def set_counter(name: bytes, value: bytes) -> bytes:
    """Let somebody else write to a counter."""
    return pack(b"SET", Counter((name,), 0).keys[0], value, b"NX", b"PX", b"60000")


def spoilt(name: bytes, token: bytes, script: scripts.Script) -> bytes:
    """Say something about a counter that is, or may be, a queue."""
    keys = (name, protocol.queue_keys(name)[0])
    return pack(b"EVALSHA", script.sha, b"2", *keys, token, *SPOILT[script])


SPOILT = {
    ACQUIRE: (b"60000", b"%016d" % 5, b"0" * 16, b"9" * 16, b"60000"),
    RAISE: (b"7", b"60000"),
    EXTEND_FENCED: (b"60000", b"%016d" % 7, b"60000"),
    LIFT: (b"%016d" % 7, b"%016d" % 8, b"60000"),
    RESTORE_FENCED: (b"60000", b"%016d" % 7, b"%016d" % 8, b"60000"),
}


def careful(key: bytes, value: bytes) -> bytes:
    """Return what sets a key that nobody has, as the restart guard does."""
    return pack(b"SET", key, value, b"NX")


requests = st.one_of(
    st.builds(careful, keys, tokens),
    st.builds(protocol.acquire, keys, tokens, ttls),
    st.builds(protocol.acquire, keys, tokens, ttls),
    st.builds(protocol.extend, keys, tokens, ttls),
    st.builds(protocol.release, keys, tokens),
    queue_requests(QUEUED),
    fenced_requests(QUEUED),
    st.sampled_from([script.load for script in scripts.SCRIPTS]),
    st.just(pack(b"SCRIPT", b"FLUSH")),
    st.builds(pack, st.sampled_from([b"GET", b"PTTL", b"DEL"]), keys),
    st.builds(pack, st.sampled_from([b"GET", b"PTTL", b"DEL"]), st.sampled_from(QUEUES)),
    st.builds(pack, st.just(b"SET"), keys, tokens),
    st.builds(pack, st.just(b"SET"), keys, st.just(b"x" * 5_000)),
    st.builds(protocol.look, keys),
    st.builds(protocol.look, keys, st.sampled_from(QUEUES)),
    st.builds(pack, st.just(b"GETRANGE"), keys, st.just(b"0"), st.sampled_from([b"9", b"4095"])),
    st.builds(pack, st.just(b"PEXPIRE"), keys, st.sampled_from([b"70000", b"0", b"-1"])),
    st.sampled_from([protocol.PING, protocol.TIME, pack(b"FLUSHALL")]),
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

    def check(self, request: bytes) -> None:
        """Compare the answers to a request, and all keys after it."""
        fake, real = self.ask(request)
        assert alike(fake, real), (request, fake, real)
        self.check_keys()

    def check_keys(self) -> None:
        """Compare values and what is left of them."""
        for key in NAMES + QUEUES + COUNTERS:
            if key not in QUEUES:
                assert len(set(self.ask(pack(b"GET", key)))) == 1
            left, real_left = self.ask(pack(b"PTTL", key))
            assert isinstance(left, int)
            assert isinstance(real_left, int)
            assert (left < 0) == (real_left < 0)
            assert abs(left - real_left) < TOLERANCE
        for queue, live in zip(QUEUES[::2], QUEUES[1::2], strict=True):
            assert self.members(queue) == self.real_members(queue)
            ours, theirs = self.members(live), self.real_members(live)
            assert ours.keys() == theirs.keys()
            assert all(abs(ours[member] - theirs[member]) < TOLERANCE for member in ours)

    def members(self, key: bytes) -> dict[bytes, float]:
        """Return a sorted set of the fake."""
        value, _ = self.fake._keys.get(key, ({}, 0.0))
        return value if isinstance(value, dict) else {b"a string": 0.0}

    def real_members(self, key: bytes) -> dict[bytes, float]:
        """Return a sorted set of the real server."""
        self.real.send_packed_command([pack(b"ZRANGE", key, b"0", b"-1", b"WITHSCORES")])
        try:
            return dict(self.real.read_response())
        except redis.ResponseError:
            return {b"a string": 0.0}


def alike(fake: object, real: object) -> bool:
    """Say whether two answers are the same but for what passes between them."""
    match fake, real:
        case [
            [int(what), int(left), int(now), value, counter],
            [real_what, int(real_left), int(real_now), real_value, real_counter],
        ]:
            return (
                (what, value, counter) == (real_what, real_value, real_counter)
                and abs(left - real_left) < TOLERANCE
                and abs(now - real_now) < TOLERANCE * 1000
            )
        case [[value, int(left), *rest], [real_value, int(real_left), *real_rest]]:
            # Of a lock that a release met, or that was inspected.
            return (value, rest) == (real_value, real_rest) and abs(left - real_left) < TOLERANCE
        case [[bytes(seconds), bytes(us)], [bytes(real_seconds), bytes(real_us)]] if us.isdigit():
            apart = (int(seconds) - int(real_seconds)) * 1_000_000 + int(us) - int(real_us)
            return abs(apart) < TOLERANCE * 1000
        case [[int(now)], [int(real_now)]]:
            return abs(now - real_now) < TOLERANCE * 1000
        case [int(number), int(real_number)] if 1 < number < 2**41:  # a PTTL
            return abs(number - real_number) < TOLERANCE
    return fake == real


def plain(answer: object) -> object:
    """Return an answer so that those of two readers can be compared."""
    if isinstance(answer, Exception):
        # redis-py makes a class of the code, hiredis a text.
        text = str(answer).removeprefix("NOSCRIPT ")
        for what in ("wrong kind of value", "user_script"):  # not in which line it was
            if what in text:
                return "error", what
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


def as_late_as_real() -> FakeMaster:
    """Return a fake whose clock says what the machine's says."""
    fake = FakeMaster()
    fake.clock_offset = time.time() - EPOCH - asyncio.get_running_loop().time()
    return fake


async def tell_both(server: EmbeddedMaster, story: list[bytes]) -> None:
    """Compare the fake and the real one after each of these requests."""
    with connection_to(server) as connection:
        pair = Pair(as_late_as_real(), connection)
        for request in [script.load for script in scripts.SCRIPTS] + story:
            pair.check(request)


@given(story=st.lists(requests, min_size=1, max_size=30))
@settings(
    max_examples=200,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
def test_the_fake_master_answers_as_a_real_one(server: EmbeddedMaster, story: list[bytes]) -> None:
    """After each request the answers, the values and the times left are the same."""

    asyncio.run(tell_both(server, story))


@given(story=st.lists(queue_requests(QUEUED[:1]), min_size=5, max_size=30))
@settings(
    max_examples=100,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
def test_the_fake_master_keeps_queues_as_a_real_one(
    server: EmbeddedMaster, story: list[bytes]
) -> None:
    """As above, where all want the same lock."""

    asyncio.run(tell_both(server, story))


@pytest.mark.promise("S7")
@given(story=st.lists(fenced_requests(QUEUED[:1]), min_size=5, max_size=30))
@settings(
    max_examples=100,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
def test_the_fake_master_counts_as_a_real_one(server: EmbeddedMaster, story: list[bytes]) -> None:
    """As above, with fencing tokens; beyond what a script can count with as well."""

    asyncio.run(tell_both(server, story))


@pytest.mark.promise("S7")
def test_the_limits_of_a_counter_are_those_of_a_real_one(server: EmbeddedMaster) -> None:
    """A request too late, a proposal too far off, a token beyond which the counter is by one."""
    counter, strict = Counter((b"r",), ANY_LEAD), Counter((b"r",), 7_000_000)
    mine, theirs = TOKENS

    def says(number: int) -> bytes:
        return pack(b"SET", counter.keys[0], b"%d" % number)

    story = [
        counter.acquire(mine, 60_000, 5, AT_NO_TIME),
        strict.acquire(mine, 60_000, 5, AT_ANY_TIME),
        strict.acquire(mine, 60_000, 2**53 - 1, AT_ANY_TIME),
        counter.acquire(mine, 60_000, 1_700_000_000_000_001, AT_ANY_TIME),
        counter.acquire(mine, 60_000, 1_800_000_000_000_001, AT_ANY_TIME),
        counter.raise_to(1_700_000_000_000_003, theirs),
        counter.raise_to(1_700_000_000_000_003, mine),
        counter.raise_to(1_700_000_000_000_002, mine),
        counter.extend(mine, 70_000, 1_700_000_000_000_002),
        counter.extend(mine, 70_000, 1_700_000_000_000_003),
        protocol.release(b"r", mine),
        counter.extend(mine, 70_000, 1_700_000_000_000_003),
        counter.restore(mine, 70_000, 1_700_000_000_000_002),
        counter.extend(mine, 70_000, 1_700_000_000_000_002),
        counter.restore(mine, 70_000, 1_700_000_000_000_004),
        counter.restore(theirs, 70_000, 1_700_000_000_000_005),
        counter.lift(theirs, 1_700_000_000_000_004, 1_700_000_000_000_009),
        counter.lift(mine, 1_700_000_000_000_003, 1_700_000_000_000_009),
        counter.lift(mine, 1_700_000_000_000_004, 1_700_000_000_000_009),
        counter.lift(mine, 1_700_000_000_000_004, 1_700_000_000_000_008),
        counter.extend(mine, 70_000, 1_700_000_000_000_003),
        counter.extend(mine, 70_000, 1_700_000_000_000_004),
        counter.raise_to(1_700_000_000_000_009, mine),
        counter.raise_to(1_700_000_000_000_010, mine),
        counter.extend(mine, 70_000, 1_700_000_000_000_004),
        counter.restore(mine, 70_000, 1_700_000_000_000_004, 1_700_000_000_000_009),
        counter.restore(mine, 70_000, 1_700_000_000_000_004, 1_700_000_000_000_010),
        counter.extend(mine, 70_000, 1_700_000_000_000_004),
        counter.acquire(mine, 60_000, 1_700_000_000_000_000, AT_ANY_TIME),
        protocol.release(b"r", mine),
        counter.acquire(theirs, 60_000, 1_700_000_000_000_000, AT_ANY_TIME),
        # One that holds the lock, of which the counter is exactly what is proposed.
        protocol.release(b"r", theirs),
        counter.acquire(mine, 60_000, 1_700_000_000_000_011, AT_ANY_TIME),
        protocol.release(b"r", mine),
        counter.acquire(mine, 60_000, 1_700_000_000_000_013, AT_ANY_TIME),
        protocol.release(b"r", mine),
        counter.acquire(theirs, 60_000, 1_700_000_000_000_000, AT_ANY_TIME),
        says(2**53 - 1),
        protocol.release(b"r", theirs),
        counter.acquire(mine, 60_000, 5, AT_ANY_TIME),
        protocol.release(b"r", mine),
        counter.acquire(mine, 60_000, 5, AT_ANY_TIME),
    ]
    asyncio.run(tell_both(server, story))


def test_who_waits_is_counted_as_by_a_real_one(server: EmbeddedMaster) -> None:
    """Not whom the lock was granted to, nor who is dead, nor those whom revoking removes."""
    keys = (b"r", *protocol.queue_keys(b"r"))
    counter = Counter((b"r",), ANY_LEAD)
    look = inspection.inspect(b"r")

    def enqueue(member: bytes, lives: int = 60_000) -> bytes:
        return protocol.enqueue(
            keys, TOKENS[0] + member, 60_000, member=member, priority=int(member[-1:]), lives=lives,
            most=9, not_after=AT_ANY_TIME,
        )  # fmt: skip

    async def tell() -> None:
        with connection_to(server) as connection:
            pair = Pair(as_late_as_real(), connection)

            def waiters() -> object:
                pair.check(look)
                _, real = pair.ask(look)
                assert isinstance(real, list)
                return real[3]

            for script in scripts.SCRIPTS:
                pair.check(script.load)
            pair.check(look)
            for said in (b"%021d" % 7, b"%020d" % 7):
                pair.check(pack(b"SET", counter.keys[0], said))
                pair.check(look)
            for member in (b"me/3", b"me/4"):
                pair.check(enqueue(member))
            assert waiters() == 1, "one of them has it"
            pair.check(enqueue(b"me/1"))
            assert waiters() == 2, "who comes first did not come in time"
            pair.check(enqueue(b"me/5", SHORT))
            assert waiters() == 3
            await asyncio.sleep(OVER)
            assert waiters() == 2, "one is dead"
            pair.check(protocol.leave(keys, TOKENS[0] + b"me/3", b"me/3", stay=True))
            assert waiters() == 3, "nobody has it"
            pair.check(enqueue(b"me/1"))
            assert waiters() == 2, "only one can have it"
            pair.check(revocation.revoke(b"r", TOKENS[0] + b"me/3", b"x", 60_000))
            assert waiters() == 2
            pair.check(revocation.revoke(b"r", TOKENS[0] + b"me/1", b"x", 60_000))
            assert waiters() == 1, "both that had been granted it are gone"
            pair.check(pack(b"DEL", b"r"))
            pair.check(enqueue(b"me/4"))
            assert waiters() == 0

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


def test_the_dead_are_buried_as_by_a_real_one(server: EmbeddedMaster) -> None:
    """By whoever enqueues and whoever leaves; and a queue of nobody ends by itself."""
    keys = (b"r", *protocol.queue_keys(b"r"))

    def enqueue(member: bytes, lives: int, ttl: int = 60_000) -> bytes:
        return protocol.enqueue(
            keys, TOKENS[0] + member, ttl, member=member, priority=int(member[-1:]), lives=lives,
            most=2, not_after=AT_ANY_TIME,
        )  # fmt: skip

    def leave(member: bytes) -> bytes:
        return protocol.leave(keys, TOKENS[0] + member, member, stay=False)

    async def tell() -> None:
        with connection_to(server) as connection:
            pair = Pair(as_late_as_real(), connection)
            for script in scripts.SCRIPTS:
                pair.check(script.load)
            pair.check(pack(b"SET", b"r", b"somebody"))
            for member, lives in ((b"me/1", SHORT), (b"me/2", 60_000), (b"me/3", 60_000)):
                pair.check(enqueue(member, lives))
            assert list(pair.members(keys[1])) == [b"me/1", b"me/2"], "the third finds it full"
            await asyncio.sleep(OVER)
            pair.check(enqueue(b"me/3", SHORT))
            assert list(pair.members(keys[1])) == [b"me/2", b"me/3"]
            pair.check(pack(b"DEL", b"r"))
            await asyncio.sleep(OVER)
            pair.check(leave(b"me/2"))
            assert not pair.members(keys[1])
            pair.check(enqueue(b"me/4", 60_000, ttl=SHORT))
            await asyncio.sleep(OVER)
            pair.check(enqueue(b"me/5", SHORT))
            assert list(pair.members(keys[1])) == [b"me/5"], "who held it has lived no longer"
            await asyncio.sleep(OVER + 0.1)  # the keys last a little longer than their members
            pair.check(protocol.PING)
            assert not pair.real_members(keys[1])

    asyncio.run(tell())


async def test_the_fake_says_of_itself_what_a_real_one_says(server: EmbeddedMaster) -> None:
    """Each field that the restart guard reads, and that it moves on."""
    fake = FakeMaster()
    fake.uptime = 0
    replies = [fake.execute([b"INFO"]), _raw_info(server)]
    ours, theirs = (ServerInfo.parse(reply) for reply in replies if isinstance(reply, bytes))
    for info in (ours, theirs):
        assert len(info.run_id) == 40
        assert info.uptime is not None
        assert 0 <= info.uptime < 10_000
        assert info.time is not None
        assert info.promoted is False
        assert info.appends is False
        assert info.objection == info.caution == ""
    assert theirs.time is not None
    assert abs(theirs.time / 1_000_000 - time.time()) < 10


def _raw_info(server: EmbeddedMaster) -> bytes:
    with redis.Redis.from_url(server.url) as client:
        client.set_response_callback("INFO", lambda reply, **_: reply)
        said = client.execute_command("INFO")
    assert isinstance(said, bytes)
    return said
