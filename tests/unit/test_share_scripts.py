"""The scripts of locks that readers share, on one master: its rules, its queue, its wake-ups."""

import asyncio
from collections.abc import Callable

import pytest

from redlock_aio._protocol import commands, lock_state, scripts
from redlock_aio._protocol.primitives import FencingCounter, Mutex
from redlock_aio._protocol.request import pack
from redlock_aio._rules.lock_value import SHARED
from redlock_aio.testing import FakeMaster
from redlock_aio.testing._fake_commands import EPOCH
from redlock_aio.testing._fake_lua import Error
from redlock_aio.testing._fake_pushes import Push, PushReceiver

from . import kit
from .shares import (
    DOC,
    LIVES,
    QUEUE,
    SET,
    SHARE,
    TTL,
    Model,
    extend,
    read,
    reader,
    stop_reading,
    stop_writing,
    walk,
    write,
    writer,
)

A, B, C, D, E = CLIENTS = [b"a", b"b", b"c", b"d", b"e"]
W, X = WRITERS = [b"w", b"x"]


class One(FakeMaster):
    """One master, and the names of the members that its scripts have woken."""

    def __init__(self) -> None:
        super().__init__()
        self.woken: list[bytes] = []
        for script in scripts.SCRIPTS:
            self.send(script.load)
        listener = PushReceiver(self._note)
        for client in (*CLIENTS, *WRITERS):
            self.execute([b"SUBSCRIBE", commands.CHANNEL + client], listener)

    def _note(self, push: Push) -> None:
        _, channel, member = push
        assert isinstance(channel, bytes)
        assert isinstance(member, bytes)
        assert channel.endswith(b":" + member.split(b"/")[0]), "told to another client"
        self.woken.append(member)

    def send(self, request: bytes) -> object:
        return kit.execute(self, request)

    def all(self, *requests: bytes) -> list[object]:
        """Send requests; return the first elements of their replies, `None` for a first grant."""
        replies = map(self.send, requests)
        heads = [reply[0] if isinstance(reply, list) else reply for reply in replies]
        return [None if isinstance(head, int) and head > 10**15 else head for head in heads]

    @property
    def now(self) -> int:
        """The ms of its clock."""
        return self._clock() // 1000

    @property
    def names(self) -> set[bytes]:
        """The keys that exist."""
        return {key for key in [*self._data.keys] if self._data.find(key)[0] is not None}

    @property
    def shares(self) -> dict[bytes, int]:
        """The readers in the set, with the ms until their deadlines."""
        return {token: int(end) - self.now for token, end in self._data.zall(SET).items()}

    @property
    def queue(self) -> list[bytes]:
        """The members of the queue, in their order."""
        return [member for member in self._data.zall(QUEUE) if not member.startswith(b"~")]

    def is_marked(self, member: bytes) -> bool:
        """Return whether a member of the queue counts as granted."""
        return self._data.zall(QUEUE)[b"~" + member] % 1 > 0

    @property
    def left(self) -> int:
        """For how many ms more the lock exists."""
        return self.pttl("doc")


@pytest.fixture
async def one() -> One:
    return One()


# The rules of one master


@pytest.mark.promise("S1")
@pytest.mark.seeds(3, full=60)
async def test_the_rules_hold_after_each_of_many_requests(one: One, seed: int) -> None:
    """R1 to R4, the order of the queue, and who is granted: see `shares.Model`."""
    model = Model(one.send, lambda: one.now)
    await walk(model, seed, 400, [905, 1_505, 4_005], asyncio.sleep)


@pytest.mark.promise("S1")
async def test_a_lock_lasts_as_long_as_its_last_reader(one: One) -> None:
    """Whatever the order in which readers with long and short ttls come (R1)."""
    one.all(read(A, 8_000), read(B, 1_000), extend(B, 1_000))
    assert (one.left, one.pttl(SET.decode())) == (9_000, 9_000)
    await asyncio.sleep(7.999)
    assert one.all(SHARE.look(A), write(W), extend(A)) == [A, 1, b"OK"]


@pytest.mark.promise("S4")
async def test_a_share_counts_until_its_own_deadline_though_another_reader_extends(
    one: One,
) -> None:
    """A reader that died does not keep its share by the extensions of others (R2)."""
    one.all(read(A, 1_000), read(B, 1_000))
    await asyncio.sleep(1)
    assert one.all(extend(B, 1_000), SHARE.look(A), SHARE.look(B)) == [b"OK", A, B]
    await asyncio.sleep(0.001)
    assert one.all(SHARE.look(A), extend(A), extend(B, 1_000)) == [None, 0, b"OK"]
    assert one.shares == {B: 1_000}, "the dead reader is removed (R4)"


@pytest.mark.promise("S1")
@pytest.mark.parametrize("end", ["deleted", "revoked", "locked by others"])
@pytest.mark.parametrize("back", [read(B), extend(B, again=True)], ids=["read", "restored"])
async def test_shares_of_before_a_forced_release_do_not_count_later(
    one: One, end: str, back: bytes
) -> None:
    """The lock is shared again later, by others, while the set may still be there (R3)."""
    one.all(read(A))
    if end == "revoked":
        assert one.all(commands.revoke(DOC, SHARED, b"a revocation", 100, [A])) == [b"OK"]
    else:
        one.delete("doc")
    if end == "locked by others":
        one.set("doc", "theirs", 100)
    assert one.all(SHARE.look(A), extend(A))[1] == (0 if end == "deleted" else -1)
    await asyncio.sleep(0.1)
    assert one.all(back) in ([None], [b"OK"])
    assert one.all(SHARE.look(A), extend(A), SHARE.look(B)) == [None, 0, B]
    assert one.shares == {B: TTL}


@pytest.mark.promise("S3")
async def test_nothing_of_a_share_outlasts_it_by_more_than_an_eighth(one: One) -> None:
    one.all(read(A, 8_000))
    assert one.left == one.pttl(SET.decode()) == 9_000
    await asyncio.sleep(9)
    assert one.names == set()


@pytest.mark.promise("S3")
async def test_the_last_reader_that_leaves_deletes_the_lock_and_its_set(one: One) -> None:
    one.all(read(A), read(B))
    assert one.all(stop_reading(A), stop_reading(A)) == [b"OK", 0]
    assert (one.keys, one.shares) == ({"doc": SHARED.decode()}, {B: TTL})
    assert one.all(stop_reading(B), stop_reading(B)) == [b"OK", 0]
    assert one.names == set()


async def test_the_last_reader_that_leaves_frees_the_lock_of_dead_ones(one: One) -> None:
    one.all(read(A, 1_000), read(B))
    await asyncio.sleep(1.001)
    assert one.all(stop_reading(B)) == [b"OK"]
    assert one.names == set()


# When the lock ends


async def test_an_extension_within_the_slack_does_not_change_the_lock(one: One) -> None:
    """A change is pushed to all readers. The end moves only when a deadline is beyond it."""
    one.all(read(A, 8_000), read(B, 8_000))
    ends = set()
    for step in range(8):
        await asyncio.sleep(0.125)
        assert one.all(extend(A, 8_000), extend(B, 8_000)) == [b"OK", b"OK"]
        ends.add(one.left + step * 125)
        assert one.left == one.pttl(SET.decode())
    assert ends == {8_875}
    await asyncio.sleep(0.001)
    assert one.all(extend(A, 8_000)) == [b"OK"]
    assert one.left == 9_000


@pytest.mark.parametrize(
    ("requests", "left"),
    [
        ([read(A, 8_000), extend(A, 800)], 900),  # its own deadline is lowered
        ([read(A, 8_000), read(B, 800), extend(B, 800)], 9_000),
        ([read(A, 8_000), read(B, 8_000), extend(B, 800)], 9_000),  # A is left
        ([read(A, 8_000), read(B, 800), extend(A, 1_600)], 1_800),
        ([read(A, 8_000), read(B, 800), extend(B, 16_000)], 18_000),
        ([read(A, 8_000), read(B, 800), stop_reading(A)], 900),
        ([read(A, 8_000), read(B, 800), stop_reading(B)], 9_000),
        ([read(A, 8_000), read(B, 5_000), stop_reading(A)], 9_000),  # nobody waits
        ([read(A, 8_000), read(B, 5_000), write(W), stop_reading(A)], 5_625),
        ([read(A, 8_000), read(B, 7_999), write(W), stop_reading(A)], 8_998),
        ([read(A, 8_000), read(A, 800)], 900),  # asked again, by a client that lost the reply
    ],
)
async def test_the_end_of_a_lock_follows_its_readers(
    one: One, requests: list[bytes], left: int
) -> None:
    one.all(*requests)
    assert one.left == one.pttl(SET.decode()) == left


async def test_a_share_that_is_extended_to_the_same_deadline_does_not_lower_the_end(
    one: One,
) -> None:
    """Only its own deadline, if it is lowered, ends the lock earlier."""
    one.all(read(A, 8_000), read(B, 800))
    await asyncio.sleep(4)
    one.all(extend(A, 4_001), read(C, 800))
    assert one.left == 5_000, "A's deadline was not lowered"
    one.all(extend(A, 3_000))
    assert one.left == 3_375


# Who is granted a share


@pytest.mark.promise("S8")
@pytest.mark.parametrize(
    ("before", "asked", "code", "queue"),
    [
        ([], read(A), None, []),  # without an entry, in one round trip
        ([read(B)], read(A), None, []),
        ([], read(A, first=False), 0, [reader(A)]),
        ([write(W)], read(A), 1, [reader(A)]),  # W has it without an entry
        ([read(B), write(W, place=3)], read(A, place=5), 2, [writer(W), reader(A)]),
        ([read(B), write(W, place=3)], read(A, place=2), 0, [reader(A), writer(W)]),
        ([read(B), write(W, place=3)], read(A, place=2, first=False), 0, [reader(A), writer(W)]),
        ([write(W), read(B, place=2), write(X, place=3)], read(A, place=4), 2,
         [reader(B), writer(X), reader(A)]),  # the writer is in mid-queue
        ([write(W), read(B, place=2)], read(A, place=3), 1, [reader(B), reader(A)]),
        ([read(B, first=False), read(C, place=2, first=False)], read(A, place=3), None,
         [reader(B), reader(C)]),  # readers don't gate
        ([read(A, first=False), write(W, place=2)], read(A, first=False), 0,
         [reader(A), writer(W)]),  # asked again
        ([read(A), write(W)], read(A, place=2, first=False), 0, [writer(W), reader(A)]),
    ],
)  # fmt: skip
async def test_who_gets_a_share(
    one: One, before: list[bytes], asked: bytes, code: int | None, queue: list[bytes]
) -> None:
    """A reader waits where a writer has the lock, or waits before it."""
    one.all(*before)
    assert one.all(asked) == [code]
    assert one.queue == queue
    granted = code in {None, 0}
    assert (one.send(SHARE.look(A)) == [A]) is granted
    if reader(A) in queue:
        assert one.is_marked(reader(A)) is granted


@pytest.mark.promise("S8")
@pytest.mark.parametrize("count", [99, 100, 101, 250])
async def test_a_writer_behind_many_readers_gates_those_behind_it(one: One, count: int) -> None:
    """It is found wherever it is in a long queue."""
    one.set("doc", "theirs", 100)
    for number in range(count):
        assert one.all(read(b"%d" % number, place=number))[0] == 1
    assert one.all(write(W, place=count), read(A, place=count + 1)) == [2, 2]
    await asyncio.sleep(0.1)
    last = b"%d" % (count - 1)
    assert one.all(read(A, place=count + 1), read(last, place=count - 1, first=False)) == [2, 0]
    assert one.all(stop_writing(W), read(A, place=count + 1, first=False)) == [SHARED, 0]


async def test_a_queue_without_deadlines_does_not_stop_the_master(one: One) -> None:
    """Another program may write into a queue: then the search for a writer ends all the same."""
    for number in range(150):
        one.send(pack(b"ZADD", QUEUE, b"1", b"%d/1r" % number))
    assert one.all(read(A), read(B, place=2, first=False)) == [None, 0]


@pytest.mark.promise("S8")
async def test_a_dead_writer_gates_nobody(one: One) -> None:
    one.all(read(A), write(W, lives=1_000), read(B, place=2))
    await asyncio.sleep(1)
    assert one.all(read(B, place=2, first=False)) == [2]
    await asyncio.sleep(0.001)
    assert one.all(read(B, place=2, first=False)) == [0]
    assert one.queue == [reader(B)]


@pytest.mark.promise("S8")
async def test_the_queue_keeps_a_dead_reader_no_longer_than_its_share(one: One) -> None:
    """Or than it wants to be kept."""
    one.all(read(A, 1_000, first=False), read(B, 1_000, place=2, first=False, lives=500))
    await asyncio.sleep(0.501)
    one.all(write(W, place=3))
    assert one.queue == [reader(A), writer(W)]
    await asyncio.sleep(0.499)
    one.all(write(W, place=3, first=False))
    assert one.queue == [reader(A), writer(W)], "a member that was granted counts to the end"
    await asyncio.sleep(0.001)
    one.all(write(W, place=3))
    assert one.queue == [writer(W)]


@pytest.mark.parametrize("lives", [1_000, 70_000])
async def test_a_queue_ends_soon_after_its_last_member(one: One, lives: int) -> None:
    one.all(write(W), read(A, lives=lives))
    assert one.pttl(QUEUE.decode()) == lives + 100


async def test_a_full_queue_refuses_further_members(one: One) -> None:
    """Those that are in it already, or have a share, are not refused."""
    one.all(read(C), write(W, place=1), write(X, place=2))
    assert one.all(read(A, place=3, most=2), read(A, place=3, first=False, most=2)) == [3, 3]
    assert one.queue == [writer(W), writer(X)]
    assert one.send(SHARE.look(A)) == [None]
    assert one.all(read(A, place=3, most=3)) == [2]
    assert one.all(read(A, place=3, first=False, most=2)) == [2]
    assert one.all(read(C, place=4, first=False, most=2)) == [0]
    reply = one.send(read(B, place=5, most=2))
    assert reply == [3, one.left, EPOCH * 1_000_000, SHARED, 0]


@pytest.mark.promise("S3")
async def test_a_request_that_comes_too_late_changes_nothing(one: One) -> None:
    now = EPOCH * 1_000_000
    for first in (True, False):
        assert one.send(read(A, first=first, not_after=now - 1)) == [4, -2, now, None, 0]
    assert one.names == set()
    assert one.send(read(A, not_after=now)) == [now, 0]


async def test_the_replies_name_the_holder_and_its_end(one: One) -> None:
    now = EPOCH * 1_000_000
    one.all(write(b"w" * 3_000, 5_000))
    assert one.send(read(A)) == [1, 5_000, now, b"w" * 2049, 0]
    one.flush()
    one.all(read(B), write(W))
    assert one.send(read(A, place=2)) == [2, TTL + TTL // 8, now, SHARED, 0]
    assert one.send(write(W, first=False)) == [1, TTL + TTL // 8, now, SHARED, 0]
    assert one.send(stop_writing(W)) == [SHARED, TTL + TTL // 8]
    assert one.send(read(A, 700, place=2, first=False)) == [0, 700, now, A, 0]


OF_ANOTHER_TYPE = "WRONGTYPE the key holds a zset, not a lock"


@pytest.mark.parametrize(
    "asked", [read(A), read(A, first=False), stop_reading(A), SHARE.look(A), extend(A)]
)
async def test_a_key_of_another_type_is_no_lock(one: One, asked: bytes) -> None:
    one.send(pack(b"ZADD", DOC, b"1", b"x"))
    reply = one.send(asked)
    assert isinstance(reply, Error)
    assert str(reply).startswith(OF_ANOTHER_TYPE if asked != extend(A) else "WRONGTYPE")
    assert one.names == {DOC}


async def test_a_member_that_gives_up_leaves_its_queue_though_the_key_is_no_lock(one: One) -> None:
    one.all(write(W), read(A), read(B, place=2))
    one.send(pack(b"DEL", DOC))
    one.send(pack(b"ZADD", DOC, b"1", b"x"))
    assert isinstance(one.send(stop_reading(A)), Error)
    assert one.queue == [reader(B)]


@pytest.mark.parametrize("kind", ["a plain lock", "several locks", "a fair lock"])
@pytest.mark.promise("S1")
async def test_who_wants_the_lock_for_itself_is_refused_while_it_is_read(
    one: One, kind: str
) -> None:
    """Also by clients of other libraries, and by those that know nothing of readers."""
    one.all(read(A))
    if kind == "a plain lock":
        assert one.all(DOC.acquire(W, TTL)) == [None]
        assert one.all(DOC.restore(W, TTL)) == [None]
        assert one.all(commands.extend(DOC.extension(W, TTL))) == [-1]
        assert one.all(DOC.release(W)) == [SHARED]
    elif kind == "several locks":
        fence = FencingCounter((DOC,), lead=8_000_000)
        assert one.all(fence.acquire(W, TTL, EPOCH * 1_000_000, 1_000_000)) == [0]
    else:
        assert one.all(write(W)) == [1]
    assert one.all(SHARE.look(A)) == [A]


# Who is woken


@pytest.mark.promise("S8")
@pytest.mark.parametrize(
    ("before", "leaves", "woken"),
    [
        # A writer leaves that has the lock.
        ([write(W), write(X), read(A, place=2)], stop_writing(W), [writer(X)]),
        ([write(W), read(A), read(B, place=2), write(X, place=3), read(C, place=4)],
         stop_writing(W), [reader(A), reader(B)]),
        ([write(W, first=False), read(A, place=2), read(B, place=3)], stop_writing(W),
         [reader(A), reader(B)]),
        # A writer gives up.
        ([read(A), write(W), read(B, place=2), read(C, place=3), write(X, place=4)],
         stop_writing(W), [reader(B), reader(C)]),
        ([read(A, first=False), write(W, place=2), read(B, place=3)],
         stop_writing(W), [reader(B)]),  # in mid-queue
        ([write(X), read(A), write(W, place=2), read(B, place=3)],
         stop_writing(W), [reader(A), reader(B)]),  # B is next now, too
        ([write(X), read(A), write(W, place=2), read(B, place=3)], stop_writing(b"none"), []),
        ([read(A, first=False), write(W, place=2), read(B, place=3)],
         stop_writing(W, b"stay"), []),  # it still waits
        ([read(A), read(B), write(W), write(X, place=2)], stop_writing(W), [writer(X)]),
        ([read(A), write(X), write(W, place=2)], stop_writing(W, b"stay"), []),
        # A reader leaves.
        ([read(A), write(W), read(B, place=2)], stop_reading(A), [writer(W)]),
        ([read(A), read(B), write(W)], stop_reading(A), []),  # the lock is still shared
        ([read(A, first=False), read(B, place=2, first=False), write(W, place=3)],
         stop_reading(A), []),  # B, which is the first now, has a share already
        ([read(A, first=False), read(B, place=2, first=False), write(W, place=3)],
         stop_reading(B), []),
        ([read(A, first=False), write(W, place=2)], stop_reading(A), [writer(W)]),
        ([write(X), read(A), write(W, place=2)], stop_reading(A), [writer(W)]),  # is next
        ([write(X), read(A), read(B, place=2)], stop_reading(A), []),  # B was next before
        ([write(X), read(A), read(B, place=2), read(C, place=3)], stop_reading(B), []),
        ([read(A, first=False)], stop_reading(A), []),
        # A reader gives its share back, but stays.
        ([read(A, first=False), write(W, place=2)], stop_reading(A, b"stay"), []),
        ([read(B), write(W), read(A, place=2)], stop_reading(B, b"stay"), [writer(W)]),
    ],
)  # fmt: skip
async def test_who_is_woken(
    one: One, before: list[bytes], leaves: bytes, woken: list[bytes]
) -> None:
    """Those that may get the lock now, or are next; not those that have it."""
    one.all(*before)
    assert one.woken == []
    one.all(leaves)
    assert one.woken == woken


@pytest.mark.promise("S8")
@pytest.mark.parametrize("stop", [stop_reading, stop_writing])
async def test_readers_of_a_lock_that_has_ended_are_woken_by_a_member_that_leaves(
    one: One, stop: type
) -> None:
    one.set("doc", "theirs", 100)
    one.all(read(A), read(B, place=2), (read if stop is stop_reading else write)(C, place=3))
    await asyncio.sleep(0.1)
    one.all(stop(C))
    assert one.woken == [reader(A), reader(B)]


async def test_a_member_that_stays_does_not_wake_itself(one: One) -> None:
    """It would ask again at once. The others before the first writer are woken."""
    one.set("doc", "theirs", 100)
    one.all(read(A), read(B, place=2), read(C, place=3))
    await asyncio.sleep(0.1)
    one.all(stop_reading(B, b"stay"))
    assert one.woken == [reader(A), reader(C)]
    assert one.queue == [reader(A), reader(B), reader(C)]


@pytest.mark.promise("S8")
async def test_a_reader_that_gives_its_share_back_is_woken_with_the_others(one: One) -> None:
    """It waits again, so its mark is taken away, and it counts as alive for as long as before."""
    one.all(read(A, first=False), read(B, place=2, first=False))
    assert one.all(stop_reading(A, b"stay"), stop_reading(A, b"stay")) == [b"OK", 0]
    assert (one.is_marked(reader(A)), one.is_marked(reader(B))) == (False, True)
    assert 4e15 - one._data.zall(QUEUE)[b"~" + reader(A)] == one.now + TTL + 1
    one.all(stop_reading(B))
    assert one.woken == [reader(A)]
    assert one.queue == [reader(A)]


async def test_at_most_100_readers_are_woken_at_once(one: One) -> None:
    """The others get their shares by their heartbeats."""
    one.all(write(W))
    for number in range(150):
        one.all(read(A + b"/%d" % number, place=number))
    one.all(stop_writing(W))
    assert len(one.woken) == len(set(one.woken)) == 100


# Extensions of shares


@pytest.mark.promise("S4")
@pytest.mark.parametrize(
    ("before", "plain", "again"),
    [
        ([], 0, b"OK"),
        ([read(A)], b"OK", b"OK"),
        ([read(B)], 0, b"OK"),
        ([read(A), stop_reading(A)], 0, b"OK"),
        ([read(A), read(B), stop_reading(A)], 0, b"OK"),
        ([write(W)], -1, -1),
        ([read(B), read(A), write(W)], b"OK", b"OK"),  # a writer that waits stops no extension
    ],
)
async def test_what_the_extension_of_a_share_finds(
    one: One, before: list[bytes], plain: object, again: object
) -> None:
    """What is gone is set again only for a restoration; another holder's lock never is."""
    one.all(*before)
    kept = dict(one._data.keys)
    assert one.all(extend(A, 6_000)) == [plain]
    if plain == b"OK":
        assert one.shares[A] == 6_000
    else:
        assert one._data.keys == kept
    assert one.all(extend(A, 7_000, again=True)) == [again]
    if again == b"OK":
        assert one.shares[A] == 7_000
        assert one.send(SHARE.look(A)) == [A]
        assert one.left >= 7_000


@pytest.mark.promise("S4")
async def test_leases_of_all_kinds_are_extended_in_one_request(one: One) -> None:
    """None of them depends on what is found for another one."""
    fenced = FencingCounter((b"f",), lead=8_000_000)
    now = EPOCH * 1_000_000
    one.all(read(A, 2_000), Mutex(b"m").acquire(B, 2_000), fenced.acquire(C, 2_000, now, 10**6))
    one.set("n", "theirs")
    request = commands.extend(
        SHARE.extension(A, 5_000),
        Mutex(b"n").extension(B, 5_000),
        SHARE.extension(D, 5_000),
        fenced.extension(C, 6_000, now),
        Mutex(b"m").extension(B, 7_000),
        SHARE.extension(A, 8_000),
    )
    assert one.send(request) == [b"OK", -1, 0, b"OK", b"OK", b"OK"]
    assert one.shares == {A: 8_000}
    assert [one.pttl(key) for key in "fm"] == [6_000, 7_000]


# What others see


@pytest.mark.parametrize(
    ("before", "reply"),
    [
        ([], [None]),
        ([read(B)], [None]),  # readers leave room for one more
        ([read(A)], [A]),
        ([write(W)], [W]),
        ([write(b"w" * 3_000)], [b"w" * 2049]),
    ],
)
async def test_a_reader_looks_for_its_share(
    one: One, before: list[bytes], reply: list[object]
) -> None:
    one.all(*before)
    assert one.send(SHARE.look(A)) == reply
    assert SHARE.is_kept(reply, A) is (reply == [A])
    assert SHARE.is_free(reply) is (reply == [None])


async def test_what_an_inspection_shows_of_a_lock_that_is_read(one: One) -> None:
    """Readers in the queue that have a share wait no more. Dead readers are not shown."""
    inspect = lock_state.inspect(DOC)
    assert one.send(inspect) == [None, -2, None, 0, 0]
    one.all(read(A, 8_000, first=False), read(B, 1_000), read(E, 999))
    one.all(write(W, place=2), write(X, place=3), read(C, place=4, lives=2_000))
    await asyncio.sleep(1)
    kept = dict(one._data.keys)
    assert one.send(inspect) == [SHARED, 8_000, None, 3, 2, B, 0, A, 7_000]
    assert one._data.keys == kept
    one.set("doc", "a revocation", 5_000)
    assert one.send(inspect) == [b"a revocation", 5_000, None, 3, 2]
    one.set("doc", SHARED.decode(), 5_000)
    one.set(SET.decode(), "of another type")
    assert one.send(inspect) == [SHARED, 5_000, None, 3, 2]


async def test_an_inspection_shows_the_100_readers_that_last_longest(one: One) -> None:
    for number in range(103):
        one.all(read(b"%d" % number, 5_000 + number))
    reply = one.send(lock_state.inspect(DOC))
    assert isinstance(reply, list)
    assert reply[5::2] == [b"%d" % number for number in range(3, 103)]
    assert reply[6::2] == list(range(5_003, 5_103))


async def test_an_inspection_cuts_the_values_of_readers(one: One) -> None:
    one.all(read(b"a" * 3_000))
    assert one.send(lock_state.inspect(DOC))[5:] == [b"a" * 2049, TTL]  # type: ignore[index]


@pytest.mark.promise("S1")
async def test_a_forced_release_that_comes_late_does_not_end_later_readers(one: One) -> None:
    """A master that could not be reached gets it when other readers have the lock."""
    revoke = commands.revoke(DOC, SHARED, b"a revocation", LIVES, [A])
    one.all(read(A, 1_000), read(B, 5_000))
    await asyncio.sleep(1.001)  # A is dead, and still in the set
    assert one.all(revoke, SHARE.look(B)) == [0, B]
    one.all(read(A, 1_000))
    assert one.all(revoke, SHARE.look(B)) == [b"OK", b"a revocation"]


@pytest.mark.promise("S3")
@pytest.mark.parametrize("forced", [True, False])
async def test_no_set_is_left_when_readers_leave_that_have_lost_their_lock(
    one: One, forced: bool
) -> None:
    one.all(read(A, 60_000), read(B, 60_000))
    if forced:
        one.all(commands.revoke(DOC, SHARED, b"a revocation", 100, [A]))
        assert SET not in one.names
    else:
        one.set("doc", "theirs", 100)
    one.all(stop_reading(A), stop_reading(B))
    await asyncio.sleep(0.1)
    assert one.names == set()


async def test_a_forced_release_of_a_lock_that_nobody_reads_any_more(one: One) -> None:
    """Its last reader died, and the lock lasts for an eighth of its ttl more."""
    revoke = commands.revoke(DOC, SHARED, b"a revocation", LIVES)
    one.all(read(A, 8_000))
    assert one.all(revoke) == [0]
    await asyncio.sleep(8.5)
    assert one.all(revoke) == [b"OK"]
    one.delete("doc")
    one.delete(SET.decode())
    one.set("doc", SHARED.decode(), 5_000)
    assert one.all(revoke) == [b"OK"]


@pytest.mark.parametrize("ask", [read, write])
async def test_readers_that_have_their_shares_do_not_fill_the_queue(
    one: One, ask: Callable[..., bytes]
) -> None:
    one.all(read(A, first=False), read(B, place=2, first=False))
    (first,) = one.all(ask(W, place=3, most=1, first=False))
    (second,) = one.all(ask(X, place=4, most=1, first=False))
    assert (first, second) == ((0, 0) if ask is read else (2, 3))


async def test_a_set_that_was_lost_comes_back_with_an_end(one: One) -> None:
    one.all(read(A, 8_000))
    one.delete(SET.decode())
    one.all(read(B, 1_000))
    assert one.pttl(SET.decode()) == one.left == 9_000


async def test_a_forced_release_wakes_the_readers_that_had_their_shares_in_turn(one: One) -> None:
    """They ask again, and the queue waits for them no more."""
    one.all(read(A, first=False), read(B), write(W, place=2), read(C, place=3))
    assert one.all(commands.revoke(DOC, SHARED, b"a revocation", LIVES, [A, B])) == [b"OK"]
    assert one.woken == [reader(A)]
    assert one.queue == [writer(W), reader(C)]
    assert one.all(extend(A), stop_reading(B), read(A, place=1, first=False)) == [
        -1, b"a revocation", 1,
    ]  # fmt: skip
