"""The scripts of locks on one master, in cases that tests of clients do not reach."""

import asyncio

import pytest

from redlock_aio._protocol import commands, request, scripts
from redlock_aio._protocol.primitives import FencingCounter, JointMutex, Mutex
from redlock_aio._rules import fencing
from redlock_aio.testing import FakeMaster
from redlock_aio.testing._fake_commands import EPOCH
from redlock_aio.testing._fake_lua import Error

from .kit import execute

OURS, THEIRS = b"our token", b"their token"
TTL = 10_000
NOW = EPOCH * 1_000_000
"""The clock of a new fake master, in us."""


class Redis60(FakeMaster):
    """A master whose SET has no option GET, as that of Redis 6.0."""

    def _do_set(self, key: bytes, value: bytes, *options: bytes) -> object:
        if b"GET" in options:
            raise Error("ERR syntax error")
        return super()._do_set(key, value, *options)


class Client:
    """A client of one master that has loaded the scripts."""

    def __init__(self, master: FakeMaster | None = None) -> None:
        self.master = master or FakeMaster()
        for script in scripts.SCRIPTS:
            self.send(script.load)

    def send(self, request: bytes) -> object:
        return execute(self.master, request)

    def code(self, request: bytes) -> object:
        """Return the first element of the reply."""
        reply = self.send(request)
        assert isinstance(reply, list)
        return reply[0]


@pytest.fixture
async def client() -> Client:
    return Client()


@pytest.mark.promise("S5")
async def test_an_own_token_is_granted_again_with_the_value_of_its_counter(client: Client) -> None:
    """If the reply was lost, the repeated request gets the same fencing token."""
    counter = FencingCounter((b"r",), lead=8_000_000)
    acquire = counter.acquire(OURS, TTL, NOW, 1_000_000)
    assert client.send(acquire) == 1
    assert client.send(acquire) == NOW
    assert client.send(counter.acquire(THEIRS, TTL, NOW, 1_000_000)) == 0


@pytest.mark.promise("S1")
async def test_a_restoration_leaves_the_lock_of_another_holder(client: Client) -> None:
    """This holds also if one of several keys is missing and could be restored."""
    several = JointMutex([Mutex(b"r"), Mutex(b"s")])
    assert client.send(Mutex(b"r").acquire(THEIRS, TTL)) == b"OK"
    assert client.send(several.restore(OURS, TTL)) == -1
    assert client.master.keys == {"r": THEIRS.decode()}


@pytest.mark.promise("S7")
@pytest.mark.parametrize(
    "counter",
    [None, NOW - 1, NOW, NOW + 5, f"{NOW + 5}.0000{NOW - 9:016d}", 7, 10**15 - 1, "no number", []],
)
async def test_redis_6_0_grants_the_same_fencing_tokens(counter: object) -> None:
    """Its SET can't return the old counter, so the script reads it first."""
    replies, counters = [], []
    for master in (FakeMaster(), Redis60()):
        client = Client(master)
        if isinstance(counter, list):
            client.send(request.pack(b"ZADD", b"redlock_aio:fence:{r}", b"1", b"member"))
        elif counter is not None:
            master.set("redlock_aio:fence:{r}", str(counter))
        acquire = FencingCounter((b"r",), lead=8_000_000).acquire(OURS, TTL, NOW, 1_000_000)
        reply = client.send(acquire)
        replies.append(str(reply) if isinstance(reply, Exception) else reply)
        counters.append((master.keys.get("redlock_aio:fence:{r}"), master.pttl("r")))
    assert replies[0] == replies[1]
    if not isinstance(replies[0], str):
        assert counters[0] == counters[1]
        least = int(float(str(counter or 0))) + 1
        assert counters[0] == (f"{max(NOW, least):016d}", TTL)
        assert replies[0] == (1 if least <= NOW else least)


# Queues


A, B, C, D = MEMBERS = b"a/1", b"b/1", b"c/1", b"d/1"
TOKEN = {member: b"token of " + member for member in MEMBERS}
ONE, BOTH = Mutex(b"r"), JointMutex([Mutex(b"q"), Mutex(b"r")])
COUNTER = "redlock_aio:fence:{r}"
LEAD = 8_000_000


def ask(
    member: bytes,
    place: int,
    *,
    lock: Mutex | JointMutex = ONE,
    lives: int = 1_000,
    most: int = 100,
    not_after: int = NOW + 10**8,
    first: bool = False,
    proposal: int = 0,
) -> bytes:
    """Return the request of a member for the lock; with a *proposal* for its counters."""
    entry = commands.QueueEntry(member, place, lives, most, not_after, first)
    counter = lock.counter(LEAD) if proposal else None
    return lock.enqueue(TOKEN[member], TTL, entry, counter, proposal)


QUEUE = commands.queue_keys(b"r")[0]


def queue(client: Client) -> list[bytes]:
    members = client.master._data.zall(QUEUE)
    return [member for member in members if not member.startswith(b"~")]


async def test_members_get_the_lock_in_their_order(client: Client) -> None:
    assert client.send(ask(A, 5, first=True)) == [NOW, 0]
    assert client.master.keys == {"r": TOKEN[A].decode()}
    assert client.master.pttl("r") == TTL
    held = [TTL, NOW, TOKEN[A], 0]
    assert client.send(ask(C, 3, first=True)) == [1, *held]
    assert client.send(ask(B, 2)) == [1, *held]
    assert client.send(ask(C, 3)) == [2, *held]
    assert queue(client) == [B, C]
    assert client.send(ONE.leave(TOKEN[A], A)) == b"OK"
    assert client.send(ask(C, 3)) == [2, -2, NOW, None, 0]
    assert client.send(ask(D, 4, first=True)) == [2, -2, NOW, None, 0]
    for _ in range(2):  # the reply may have been lost
        assert client.send(ask(B, 2)) == [0, TTL, NOW, TOKEN[B], 0]
    assert client.send(ask(C, 3)) == [2, TTL, NOW, TOKEN[B], 0]
    assert client.send(ONE.leave(TOKEN[B], B)) == b"OK"
    assert client.send(ask(C, 3)) == [0, TTL, NOW, TOKEN[C], 0]


async def test_a_full_queue_refuses_further_members_and_keeps_its_own(client: Client) -> None:
    client.master.set("r", "theirs", TTL)
    full = [3, TTL, NOW, b"theirs", 0]
    assert client.send(ask(B, 2, most=2)) == [1, *full[1:]]
    assert client.send(ask(C, 3, most=2)) == [2, *full[1:]]
    assert client.send(ask(D, 4, most=2)) == full
    assert queue(client) == [B, C]
    assert client.send(ask(A, 1, most=2)) == [1, *full[1:]], "it comes back to its place"
    assert client.send(ask(C, 3, most=2)) == [2, *full[1:]]
    assert client.send(ask(D, 4, most=2)) == full
    assert queue(client) == [A, B, C]


async def test_a_request_that_comes_too_late_enters_no_queue(client: Client) -> None:
    assert client.send(ask(A, 1, not_after=NOW - 1)) == [4, -2, NOW, None, 0]
    for proposal in (NOW - LEAD - 1, NOW + LEAD + 1):
        assert client.send(ask(A, 1, proposal=proposal)) == [4, -2, NOW, None, 0]
    assert not client.master._keys
    assert client.code(ask(A, 1, not_after=NOW, proposal=NOW + LEAD)) == 0


async def test_dead_members_do_not_keep_the_lock_from_others(client: Client) -> None:
    client.master.set("r", "theirs", 50)
    client.send(ask(A, 1, lives=100))
    client.send(ask(B, 2))
    await asyncio.sleep(0.1)
    assert client.code(ask(C, 3)) == 2
    await asyncio.sleep(0.001)
    assert client.code(ask(C, 3)) == 2, "the second member is the first one now"
    assert client.code(ask(B, 2)) == 0
    assert queue(client) == [B, C]


async def test_a_queue_ends_soon_after_its_members(client: Client) -> None:
    client.master.set("r", "theirs", TTL)
    for _ in range(2):
        client.send(ask(A, 1, lives=700))
        assert client.master.pttl(QUEUE.decode()) == 800
        await asyncio.sleep(0.5)
    client.master.delete("r")
    client.send(ask(A, 1, lives=700))
    assert client.master.pttl(QUEUE.decode()) == 300, "a holder waits no more"


async def test_a_queue_waits_for_a_dead_holder_no_longer_than_for_its_lock(client: Client) -> None:
    client.master.set("r", "theirs", 50)
    client.send(ask(A, 1, lives=10 * TTL))
    client.send(ask(B, 2, lives=10 * TTL))
    await asyncio.sleep(0.1)
    assert client.code(ask(A, 1, lives=10 * TTL)) == 0
    await asyncio.sleep(TTL / 1000)
    assert client.code(ask(B, 2)) == 2
    await asyncio.sleep(0.001)
    assert client.code(ask(B, 2)) == 0


@pytest.mark.parametrize(
    ("ttls", "named", "left"),
    [
        ((500, 900), b"r", 900),
        ((900, 500), b"q", 900),
        ((None, 900), b"q", -1),
        ((900, None), b"r", -1),
    ],
)
async def test_of_several_holders_the_one_that_lasts_longest_is_named(
    client: Client, ttls: tuple[int | None, ...], named: bytes, left: int
) -> None:
    for name, ttl in zip("qr", ttls, strict=True):
        client.master.set(name, name * 3_000, ttl or None)
    value = named * 2_049
    assert client.send(ask(A, 1, lock=BOTH)) == [1, left, NOW, value, 0]
    assert client.send(BOTH.release(OURS)) == [value, left]
    assert client.send(BOTH.leave(OURS, A)) == [value, left]


@pytest.mark.promise("S7")
@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize(
    ("counter", "token"),
    [(None, NOW + 3), (NOW + 2, NOW + 3), (NOW + 3, NOW + 4), (NOW + 9, NOW + 10)],
)
async def test_a_token_of_a_member_is_beyond_all_counters(
    client: Client, counter: int | None, token: int, *, first: bool
) -> None:
    if counter is not None:
        client.master.set(COUNTER, f"{counter:016d}")
    request = ask(A, 1, lock=BOTH, first=first, proposal=NOW + 3)
    granted = [0, TTL, NOW, TOKEN[A], token]
    assert client.send(request) == ([NOW, token] if first else granted)
    assert {client.master.keys[f"redlock_aio:fence:{{{name}}}"] for name in "qr"} == {f"{token}"}
    assert client.send(request) == granted, "a request that is repeated gets the same token"
    client.master.delete(COUNTER)
    client.master.delete("redlock_aio:fence:{q}")
    assert client.send(request) == [*granted[:-1], NOW + 3]


async def test_nothing_is_granted_beside_a_key_that_is_no_lock(client: Client) -> None:
    client.send(request.pack(b"ZADD", b"r", b"1", b"member"))
    extend = commands.extend(BOTH.extension(OURS, TTL))
    asked = [ask(A, 1, lock=BOTH, first=first) for first in (True, False)]
    for command in (*asked, BOTH.acquire(OURS, TTL), extend):
        assert "WRONGTYPE" in str(client.send(command))
    assert client.master._keys.keys() == {b"r"}


# Extensions


LONG = 30_000
"""A ttl that is longer than the one that is asked for, in ms."""
Lock = tuple[str, int]
"""Whose a lock is, and for how many ms more."""
MINE, LASTS, ANEW, OTHERS = ("ours", 9), ("ours", LONG), ("ours", TTL), ("theirs", 9)
GONE = ("nobody's", -2)
VALUES = {"ours": OURS.decode(), "theirs": THEIRS.decode()}


def put(client: Client, *locks: Lock) -> None:
    """Set the locks *q* and *r*."""
    for name, (whose, ttl) in zip("qr", locks, strict=True):
        if whose != GONE[0]:
            client.master.set(name, VALUES[whose], ttl)


def found(client: Client) -> list[Lock]:
    """Return the states of both locks."""
    whose = {value: name for name, value in VALUES.items()}
    keys, left = client.master.keys, client.master.pttl
    return [(whose[keys[name]] if name in keys else GONE[0], left(name)) for name in "qr"]


@pytest.mark.promise("S1")
@pytest.mark.parametrize(
    ("before", "reply", "after"),
    [
        ((GONE, GONE), b"OK", [ANEW, ANEW]),
        ((MINE, LASTS), b"OK", [MINE, LASTS]),
        ((MINE, GONE), 0, [MINE, GONE]),
        ((GONE, OTHERS), 0, [GONE, OTHERS]),
        ((OTHERS, GONE), 0, [OTHERS, GONE]),
        ((MINE, OTHERS), 0, [MINE, OTHERS]),
    ],
)
async def test_several_locks_are_granted_together_or_none(
    client: Client, before: tuple[Lock, Lock], reply: object, after: object
) -> None:
    put(client, *before)
    assert client.send(BOTH.acquire(OURS, TTL)) == reply
    assert found(client) == after


@pytest.mark.promise("S7")
async def test_locks_that_are_granted_together_get_one_token(client: Client) -> None:
    client.master.set(COUNTER, f"{NOW + 5:016d}")
    for _ in range(2):  # the reply may have been lost
        assert client.send(BOTH.counter(LEAD).acquire(OURS, TTL, NOW, 1_000_000)) == NOW + 6
        for counter in (COUNTER, "redlock_aio:fence:{q}"):
            assert client.master.keys[counter] == f"{NOW + 6:016d}"
            assert client.master.pttl(counter) == fencing.KEPT
    assert client.send(BOTH.counter(LEAD).acquire(THEIRS, TTL, NOW, 1_000_000)) == 0


@pytest.mark.promise("S7")
@pytest.mark.parametrize("lock", [ONE, BOTH], ids=["one", "both"])
async def test_a_token_is_granted_at_nearly_the_time_that_is_proposed(
    client: Client, lock: Mutex | JointMutex
) -> None:
    def acquire(proposal: int) -> object:
        return client.send(lock.counter(LEAD).acquire(OURS, TTL, proposal, 3_000_000))

    time = [b"%d" % EPOCH, b"0"]
    assert [acquire(NOW - 2_000_001), acquire(NOW + LEAD)] == [time, time]
    assert not client.master._keys
    assert acquire(NOW - 2_000_000) != time
    client.send(lock.release(OURS))
    assert acquire(NOW + LEAD - 1_000_000) != time


@pytest.mark.promise("S1")
@pytest.mark.parametrize(
    ("before", "reply", "after", "again"),
    [
        ((MINE, LASTS), b"OK", [ANEW, ANEW], (b"OK", [ANEW, LASTS])),
        ((MINE, GONE), 0, [MINE, GONE], (b"OK", [ANEW, ANEW])),
        ((GONE, GONE), 0, [GONE, GONE], (b"OK", [ANEW, ANEW])),
        ((MINE, OTHERS), -1, [MINE, OTHERS], (-1, [MINE, OTHERS])),
        ((GONE, OTHERS), -1, [GONE, OTHERS], (-1, [GONE, OTHERS])),
    ],
)
async def test_all_locks_of_a_lease_are_extended_or_none(
    before: tuple[Lock, Lock], reply: object, after: object, again: tuple[object, object]
) -> None:
    client = Client()
    put(client, *before)
    extension = BOTH.extension(OURS, TTL)
    assert client.send(commands.extend(extension)) == reply
    assert found(client) == after
    client = Client()
    put(client, *before)
    assert client.send(commands.extend(extension, again=True)) == again[0]
    assert found(client) == again[1]


FENCE = NOW + 100
OUR_MARK = f".0000{FENCE:016d}"
"""What is behind the value of a counter that was raised in the name of our lease."""
BEYOND = f"{FENCE + 5:016d}"


@pytest.mark.promise("S7")
@pytest.mark.parametrize(
    ("counter", "reply", "after"),
    [
        (None, b"OK", f"{FENCE:016d}"),
        (f"{FENCE - 1:016d}", b"OK", f"{FENCE:016d}"),
        (f"{FENCE:016d}", b"OK", None),
        (BEYOND, FENCE + 5, None),
        (BEYOND + OUR_MARK, b"OK", None),
        (f"{BEYOND}.0000{FENCE - 1:016d}", FENCE + 5, None),
        ("no number", "ERR the counter is no number", None),
    ],
)
async def test_an_extension_counts_unless_a_counter_is_beyond_its_token(
    client: Client, counter: str | None, reply: object, after: str | None
) -> None:
    """The other counter is that of the token; the highest of several is the reply."""
    put(client, MINE, MINE)
    for name, value in {"r": counter, "q": f"{FENCE:016d}"}.items():
        if value is not None:
            client.master.set(f"redlock_aio:fence:{{{name}}}", value, 99)
    counters = BOTH.counter(LEAD)
    answer = client.send(commands.extend(counters.extension(OURS, TTL, FENCE)))
    assert (str(answer) if isinstance(answer, Exception) else answer) == reply
    assert client.master.keys.get(COUNTER) == (after or counter)
    lasts = fencing.KEPT if reply == b"OK" else 99
    assert client.master.pttl(COUNTER) == lasts
    assert client.master.pttl("r") == (TTL if reply == b"OK" else 9)
    client.master.set("redlock_aio:fence:{q}", f"{FENCE + 7:016d}")
    if not isinstance(answer, Exception):
        assert client.send(commands.extend(counters.extension(OURS, TTL, FENCE))) == FENCE + 7


@pytest.mark.promise("S7")
@pytest.mark.parametrize(
    ("before", "counter", "reply", "after", "raised"),
    [
        ((GONE, GONE), None, b"OK", [ANEW, ANEW], f"{FENCE:016d}"),
        ((MINE, LASTS), None, b"OK", [ANEW, LASTS], f"{FENCE:016d}"),
        ((MINE, OTHERS), None, 0, [MINE, OTHERS], None),
        ((OTHERS, MINE), None, 0, [OTHERS, MINE], None),
        ((GONE, MINE), f"{FENCE:016d}", b"OK", [ANEW, ANEW], f"{FENCE:016d}"),
        ((GONE, MINE), BEYOND, b"OK", [ANEW, ANEW], BEYOND + OUR_MARK),
        ((GONE, MINE), f"{FENCE + 1:016d}", b"OK", [ANEW, ANEW], BEYOND + OUR_MARK),
        ((GONE, MINE), f"{FENCE + 6:016d}", FENCE + 6, [ANEW, ANEW],
         f"{FENCE + 6:016d}"),
        ((GONE, MINE), f"{FENCE + 6:016d}{OUR_MARK}", b"OK", [ANEW, ANEW],
         f"{FENCE + 6:016d}{OUR_MARK}"),
    ],
)  # fmt: skip
async def test_a_lease_with_a_token_is_restored_where_nobody_has_the_lock(
    client: Client,
    before: tuple[Lock, Lock],
    counter: str | None,
    reply: object,
    after: object,
    raised: str | None,
) -> None:
    """A majority has lifted its counters up to `BEYOND`."""
    put(client, *before)
    if counter is not None:
        client.master.set(COUNTER, counter, 99)
    restore = BOTH.counter(LEAD).restore(OURS, TTL, FENCE, FENCE + 5)
    assert client.send(restore) == reply
    assert found(client) == after
    assert client.master.keys.get(COUNTER) == raised
    if reply == b"OK":
        assert client.master.pttl(COUNTER) == fencing.KEPT


@pytest.mark.promise("S7")
@pytest.mark.parametrize(
    ("lock", "counter", "reply", "lifted"),
    [
        (MINE, None, b"OK", BEYOND + OUR_MARK),
        (MINE, f"{FENCE:016d}", b"OK", BEYOND + OUR_MARK),
        (MINE, f"{FENCE + 1:016d}", FENCE + 1, None),
        (MINE, f"{FENCE + 1:016d}{OUR_MARK}", b"OK", BEYOND + OUR_MARK),
        (MINE, f"{FENCE + 6:016d}{OUR_MARK}", b"OK", None),
        (MINE, BEYOND + OUR_MARK, b"OK", None),
        (OTHERS, None, 0, None),
        (GONE, None, 0, None),
    ],
)
async def test_a_counter_is_lifted_in_the_name_of_the_holder(
    lock: Lock, counter: str | None, reply: object, lifted: str | None
) -> None:
    for name, other in ("rq", "qr"):
        client = Client()
        put(client, *[lock if each == name else MINE for each in "qr"])
        if counter is not None:
            client.master.set(f"redlock_aio:fence:{{{name}}}", counter, 99)
        assert client.send(BOTH.counter(LEAD).lift(OURS, FENCE, FENCE + 5)) == reply
        keys = client.master.keys
        assert keys.get(f"redlock_aio:fence:{{{name}}}") == (lifted or counter)
        expected = BEYOND + OUR_MARK if reply == b"OK" else None
        assert keys.get(f"redlock_aio:fence:{{{other}}}") == expected


@pytest.mark.promise("S7")
@pytest.mark.parametrize(
    ("lock", "counter", "reply"),
    [
        (MINE, None, FENCE),
        (MINE, FENCE - 1, FENCE),
        (MINE, FENCE + 9, FENCE + 9),
        (OTHERS, 7, 0),
        (GONE, 7, 0),
    ],
)
async def test_counters_are_raised_to_the_same_value_while_the_lock_is_held(
    lock: Lock, counter: int | None, reply: int
) -> None:
    for name, other in ("rq", "qr"):
        client = Client()
        put(client, *[lock if each == name else MINE for each in "qr"])
        if counter is not None:
            client.master.set(f"redlock_aio:fence:{{{name}}}", f"{counter:016d}")
        assert client.send(BOTH.counter(LEAD).raise_to(FENCE, OURS)) == reply
        counters = [client.master.keys.get(f"redlock_aio:fence:{{{it}}}") for it in (other, name)]
        assert counters == ([f"{reply:016d}"] * 2 if reply else [None, "0000000000000007"])


# Releases


@pytest.mark.parametrize(
    ("before", "reply", "after"),
    [
        ((MINE, MINE), b"OK", [GONE, GONE]),
        ((MINE, GONE), 0, [GONE, GONE]),
        ((MINE, OTHERS), [THEIRS, 9], [GONE, OTHERS]),
        ((GONE, OTHERS), [THEIRS, 9], [GONE, OTHERS]),
    ],
)
async def test_a_release_frees_all_locks_that_it_has(
    before: tuple[Lock, Lock], reply: object, after: object
) -> None:
    for release in (BOTH.release(OURS), BOTH.leave(OURS, A)):
        client = Client()
        put(client, *before)
        assert client.send(release) == reply
        assert found(client) == after


async def test_a_release_frees_the_others_beside_a_key_that_is_no_lock() -> None:
    for release in (BOTH.release(OURS), BOTH.leave(OURS, A)):
        client = Client()
        put(client, MINE, GONE)
        client.send(request.pack(b"ZADD", b"r", b"1", b"member"))
        assert "WRONGTYPE the key holds a zset" in str(client.send(release))
        assert client.master._keys.keys() == {b"r"}


@pytest.mark.promise("S1")
@pytest.mark.parametrize(
    ("value", "reply", "after"),
    [(OURS, b"OK", b"gone"), (None, 0, b"gone"), (THEIRS, 0, THEIRS)],
)
async def test_a_forced_release_replaces_the_value_that_it_has_seen(
    client: Client, value: bytes | None, reply: object, after: bytes
) -> None:
    if value is not None:
        client.master.set("r", value.decode(), TTL)
    assert client.send(commands.revoke(b"r", OURS, b"gone", LONG)) == reply
    assert client.master.keys["r"] == after.decode()
    assert client.master.pttl("r") == (TTL if after == THEIRS else LONG)


async def test_a_forced_release_takes_the_member_that_was_granted_from_the_queue(
    client: Client,
) -> None:
    for member, place in ((A, 2), (B, 1), (B, 1)):
        client.send(ask(member, place))
    client.send(commands.revoke(b"r", TOKEN[A], b"gone", LONG))
    assert queue(client) == [B]
    assert client.send(ask(A, 2)) == [2, LONG, NOW, b"gone", 0]
