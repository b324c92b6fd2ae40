"""The scripts of semaphores, on one master: what they grant, whom they call, what they leave."""

import asyncio
import random
import time
from typing import cast

import pytest

from redlock_aio._protocol import commands, replies, scripts
from redlock_aio._protocol.commands import NO_MEMBER, decline
from redlock_aio._protocol.primitives import Mutex, Permits
from redlock_aio._protocol.request import pack
from redlock_aio.testing import FakeMaster
from redlock_aio.testing._fake_lua import Error
from redlock_aio.testing._fake_pushes import Push, PushReceiver

from . import kit
from .permits import (
    API,
    FIVE,
    INDEX,
    LIVES,
    TTL,
    View,
    Walk,
    drop,
    enter,
    free,
    leave,
    permit,
    queue_of,
    take,
)

A, B, C, D, E = MEMBERS = [b"a/1p5", b"b/1p5", b"c/1p5", b"d/1p5", b"e/1p5"]


class One(FakeMaster):
    """One master, and what its scripts have pushed."""

    def __init__(self) -> None:
        super().__init__()
        self.pushed: list[tuple[bytes, int]] = []
        self.raw: list[bytes] = []
        self.view = View(self.send)
        for script in scripts.SCRIPTS:
            self.send(script.load)
        self._listener = PushReceiver(self._note)
        for client in (b"a", b"b", b"c", b"d", b"e"):
            self.execute([b"SUBSCRIBE", commands.CHANNEL + client], self._listener)

    def _note(self, push: Push) -> None:
        member, key = replies.called(list(push))
        self.pushed.append((member, int(key.rpartition(b"#")[2])))
        self.raw.append(member + b" " + key)

    def send(self, request: bytes) -> object:
        return kit.execute(self, request)

    def codes(self, *requests: bytes) -> list[object]:
        """Send requests; return the first elements of their replies, `None` for a first grant."""
        heads = [
            reply[0] if isinstance(reply, list) else reply for reply in map(self.send, requests)
        ]
        return [None if isinstance(head, int) and head > 10**15 else head for head in heads]

    def took(self, request: bytes) -> tuple[int, int]:
        """Return the code and the number in the reply to a `take`."""
        reply = cast("list[int]", self.send(request))
        return reply[0], reply[1]

    def woken(self) -> list[bytes]:
        pushes, self.raw = self.raw, []
        return pushes

    @property
    def now(self) -> int:
        """The us of its clock."""
        return self._clock()

    def take_all(self, permits: Permits = FIVE) -> None:
        for number in range(permits.number):
            assert self.took(take(b"t%d" % number, number, permits=permits)) == (0, number)


@pytest.fixture
async def one() -> One:
    return One()


# take_permit


@pytest.mark.promise("S1")
async def test_takes_get_different_permits_and_then_none(one: One) -> None:
    got = [one.took(take(b"t%d" % n, 3, 2)) for n in range(6)]
    assert got[:5] == [(0, 3), (0, 0), (0, 2), (0, 4), (0, 1)]
    assert got[5][0] == 1
    assert one.view.holders == {3: b"t0", 0: b"t1", 2: b"t2", 4: b"t3", 1: b"t4"}
    assert one.pttl(permit(3).decode()) == TTL


async def test_a_refused_take_names_the_permit_for_which_the_fewest_wait(one: One) -> None:
    one.take_all()
    one.codes(
        enter(A, one.now, 0), enter(B, one.now, 1), enter(C, one.now, 3), enter(D, one.now, 4)
    )
    code, number, _, _, left, holder = cast("list[object]", one.send(take(b"x", 4)))
    assert (code, number, left, holder) == (1, 2, TTL, b"t2")


@pytest.mark.promise("S8")
async def test_nothing_is_taken_while_somebody_waits(one: One) -> None:
    one.take_all()
    one.codes(enter(A, one.now, 0), enter(B, one.now, 1))
    one.delete(permit(4).decode())
    assert one.took(take(b"x", 4)) == (1, 4)
    assert 4 not in one.view.holders


async def test_a_take_comes_too_late(one: One) -> None:
    await asyncio.sleep(0.25)  # not at a whole second
    assert one.codes(FIVE.take(b"x", TTL, (0, 1), one.now - 1)) == [4]
    assert one.view.holders == {}


@pytest.mark.promise("S7")
async def test_each_permit_has_a_counter_of_its_own(one: One) -> None:
    lead = permit(0).counter(0).lead
    takes = [FIVE.take(b"t%d" % n, TTL, (n, 1), commands.NEVER, lead, one.now) for n in (3, 4)]
    assert [cast("list[int]", one.send(request))[3] for request in takes] == [one.now] * 2
    one.codes(free(b"t0", 3), drop(b"t3"))
    again = FIVE.take(b"again", TTL, (3, 1), commands.NEVER, lead, one.now)
    assert cast("list[int]", one.send(again))[3] == one.now + 1
    assert {key for key in one.keys if "fence" in key} == {
        permit(n).counter(0).keys[0].decode() for n in (3, 4)
    }


# enqueue_permit and leave_permit


async def test_a_permit_is_handed_over_in_the_order_of_places(one: One) -> None:
    one.take_all()
    assert one.codes(enter(B, one.now + 1, 2), enter(A, one.now, 2)) == [1, 1]
    assert one.codes(enter(B, one.now + 1, 2)) == [2]
    assert one.view.index == {2: one.now}
    assert one.codes(free(b"t2", 2)) == [b"OK"]
    assert one.pushed == [(A, 2)]
    assert one.view.index == {2: one.now + 1}, "B waits on; A is called for the free permit"
    assert one.codes(enter(B, one.now + 1, 2), enter(A, one.now, 2)) == [2, 0]
    assert one.codes(leave(A, 2)) == [b"OK"]
    assert one.pushed == [(A, 2), (B, 2)]


@pytest.mark.promise("S8")
@pytest.mark.parametrize(("waited", "gets"), [(2_000, B), (2_001, A)])
async def test_who_has_waited_more_than_twice_as_long_comes_first(
    one: One, waited: int, gets: bytes
) -> None:
    """A waits for a permit that is held for long, B for one that is released."""
    one.take_all()
    one.codes(enter(A, one.now - waited, 0), enter(B, one.now - 1_000, 1))
    one.send(free(b"t1", 1))
    assert one.pushed == [(gets, 1)]
    one.view.check()
    assert one.view.queues == ({0: [A], 1: [B]} if gets == B else {1: [A, B]})
    assert one.view.index == ({0: one.now - waited} if gets == B else {1: one.now - 1_000})


async def test_a_permit_for_which_nobody_waits_goes_to_the_oldest_of_all(one: One) -> None:
    one.take_all()
    one.codes(enter(A, one.now, 0), enter(B, one.now - 1, 1), enter(C, one.now - 2, 1))
    one.send(free(b"t4", 4))
    assert one.pushed == [(C, 4)]
    assert one.view.queues == {0: [A], 1: [B], 4: [C]}
    assert one.view.index == {0: one.now, 1: one.now - 1}
    assert one.codes(enter(C, one.now - 2, 4)) == [0]


@pytest.mark.promise("S8")
@pytest.mark.parametrize("dead", [1, 3, 30])
async def test_who_waits_behind_dead_members_is_moved_all_the_same(one: One, dead: int) -> None:
    """The dead ones count as alive for some seconds, and do not listen."""
    one.take_all()
    gone = [b"gone/%dp5" % number for number in range(dead)]
    one.codes(*[enter(each, one.now - 5_000 + n, 0) for n, each in enumerate(gone)])
    one.codes(enter(A, one.now - 4_000, 0), enter(B, one.now - 1_000, 1))
    one.send(free(b"t1", 1))
    assert one.pushed == [(A, 1)]
    assert one.view.queues == {0: gone, 1: [A, B]}
    one.send(free(b"t2", 2))
    assert one.pushed == [(A, 1), (B, 2)]
    assert one.view.queues == {0: gone, 1: [A], 2: [B]}


async def test_who_declines_leaves_the_permit_to_the_next(one: One) -> None:
    one.take_all()
    one.codes(enter(A, one.now, 0), enter(B, one.now + 1, 1))
    one.codes(free(b"t4", 4), decline(permit(4), A))
    assert one.pushed == [(A, 4), (B, 4)]
    one.codes(decline(permit(4), B), decline(permit(4), B))
    assert one.view.queues == {}
    assert one.took(take(b"x", 4)) == (0, 4)


async def test_to_decline_does_not_free_what_another_holds(one: One) -> None:
    one.take_all()
    one.codes(decline(permit(4), A), decline(permit(4), NO_MEMBER))
    assert len(one.view.holders) == 5


async def test_the_oldest_waiter_looks_for_a_permit_whose_holder_has_died(one: One) -> None:
    one.take_all()
    one.codes(enter(A, one.now, 0), enter(B, one.now + 1, 1))
    one.delete(permit(3).decode())
    assert one.codes(enter(B, one.now + 1, 1)) == [1]
    reply = one.send(enter(A, one.now, 0))
    queued = replies.queued(reply)
    assert queued is not None
    assert queued.moved == 3
    assert one.view.queues == {1: [B], 3: [A]}
    assert one.codes(enter(A, one.now, 3)) == [0]


async def test_a_queue_waits_for_a_dead_holder_no_longer_than_for_its_permit(one: One) -> None:
    one.take_all()
    place = one.now
    one.codes(enter(A, place, 0, ttl=1_000), enter(B, place + 1, 0))
    one.delete(permit(0).decode())
    assert one.codes(enter(A, place, 0, ttl=1_000), enter(B, place + 1, 0)) == [0, 2]
    await asyncio.sleep(1.001)
    assert one.codes(enter(B, place + 1, 0)) == [0]


async def test_a_dead_waiter_is_not_taken_for_the_oldest(one: One) -> None:
    """Nobody else waits for its permit, so no request of others removes it from that queue."""
    for number in range(5):
        one.took(take(b"t%d" % number, number, ttl=60_000))
    one.codes(enter(A, one.now, 0))
    place = one.now + 1
    for _ in range(4):
        await asyncio.sleep(1)
        one.codes(enter(B, place, 1))
    one.delete(permit(3).decode())
    assert one.codes(enter(B, place, 1)) == [5], "A is dead since 1 s"
    assert one.view.index == {}


@pytest.mark.promise("S8")
@pytest.mark.parametrize("how", ["its holder", "who was called"])
async def test_a_release_calls_who_waits_for_a_permit_that_nobody_has_released(
    one: One, how: str
) -> None:
    one.take_all()
    dead = b"gone/1p5"
    if how == "who was called":
        one.codes(enter(dead, one.now - 9_000, 0))
    one.codes(enter(A, one.now - 8_000, 0), enter(B, one.now - 1_000, 1))
    if how == "its holder":
        one.delete(permit(0).decode())
    else:
        one.send(free(b"t0", 0))
        one.execute([b"ZADD", queue_of(0), b"4e15", b"~" + dead])
    assert one.pushed == []
    one.send(free(b"t1", 1))
    assert one.pushed == [(A, 0), (B, 1)]
    one.codes(enter(A, one.now - 8_000, 0))
    one.send(free(b"t2", 2))
    assert one.pushed == [(A, 0), (B, 1)], "each is called once"


@pytest.mark.promise("S8")
async def test_a_dead_waiter_for_such_a_permit_keeps_nobody_from_others(one: One) -> None:
    """It had the first permit and waits for the second one; both end with their ttl."""
    one.take_all()
    one.codes(enter(b"gone/1p5", one.now, 1), enter(A, one.now + 1, 2))
    for number in (0, 1):
        one.delete(permit(number).decode())
    assert one.view.index == {1: one.now, 2: one.now + 1}
    assert one.codes(enter(A, one.now + 1, 2)) == [5], "A is moved to the free one"
    assert one.view.queues == {0: [A], 1: [b"gone/1p5"]}
    one.codes(leave(A, 0))
    assert one.took(take(b"x", 1)) == (0, 0)


async def test_a_queue_is_full(one: One) -> None:
    one.take_all()
    assert one.codes(*[enter(m, one.now + i, 0, most=2) for i, m in enumerate(MEMBERS)]) == [
        1, 2, 3, 3, 3,
    ]  # fmt: skip
    assert one.view.queues == {0: [A, B]}


async def test_a_member_that_gives_back_keeps_its_place_and_is_not_called(one: One) -> None:
    one.take_all()
    one.codes(free(b"t0", 0), enter(A, one.now, 0))
    one.codes(enter(B, one.now + 1, 0), leave(A, 0, stay=True))
    assert 0 not in one.view.holders
    assert (one.pushed, one.view.queues) == ([], {0: [A, B]})
    assert one.codes(free(b"nobody", 0)) == [0]
    assert one.pushed == [(A, 0)], "it waits again, and is called in its turn"
    assert one.codes(enter(A, one.now, 0)) == [0]


async def test_a_permit_is_kept_until_its_end(one: One) -> None:
    one.take_all()
    one.codes(free(b"t0", 0), enter(A, one.now, 0))
    one.codes(enter(B, one.now + 1, 0), enter(C, one.now + 2, 0), leave(A, 0, kept=True))
    assert one.pushed == [(B, 0)], "it asks when the permit ends"
    assert one.view.holders[0] == A
    assert one.view.queues == {0: [B, C]}
    assert one.view.index == {0: one.now + 1}


@pytest.mark.promise("S8")
@pytest.mark.parametrize("ends", [50, 200])
async def test_a_permit_that_is_kept_goes_to_the_oldest_if_that_has_to_wait_for_longer(
    one: One, ends: int
) -> None:
    one.take_all()
    one.codes(enter(A, one.now - 9, 0), enter(B, one.now, 1))
    one.set(permit(0).decode(), "t0", 100)
    one.set(permit(2).decode(), "mine", ends)
    one.send(permit(2).leave(b"mine", NO_MEMBER, keep_key=True))
    assert one.view.holders[2] == b"mine"
    assert one.pushed == ([(A, 2)] if ends == 50 else [])
    assert one.view.index == ({1: one.now, 2: one.now - 9} if ends == 50 else one.view.index)
    one.view.check()


async def test_more_than_ten_granted_members_at_the_head_of_a_queue(one: One) -> None:
    """They were granted the permit, and lost it without a release: it was deleted by others."""
    one.take_all()
    for number in range(23):
        member, place = b"a/%dp5" % number, one.now - 100 + number
        one.send(pack(b"ZADD", queue_of(0), b"%d" % place, member))
        deadline = 4e15 - one.now // 1000 - LIVES - 0.5
        one.send(pack(b"ZADD", queue_of(0), b"%.1f" % deadline, b"~" + member))
    assert one.codes(enter(B, one.now, 0)) == [2]
    assert one.view.waiting(0) == {B: one.now}
    assert one.view.index == {0: one.now}
    one.send(free(b"t0", 0))
    assert one.pushed == [(B, 0)]


@pytest.mark.spread(0)
@pytest.mark.parametrize("dead", [250, 100, 99])
async def test_a_hundred_dead_members_and_more(one: One, dead: int) -> None:
    """Each request removes a hundred, so that none of them takes long."""
    for number in range(5):
        one.took(take(b"t%d" % number, number, ttl=60_000))
    for number in range(dead):
        one.codes(enter(b"a/%dp5" % number, one.now + number, 0))
    await asyncio.sleep(LIVES / 1000 + 0.001)
    place = one.now
    one.codes(enter(B, place, 0))
    for _ in range(2):
        one.codes(enter(B, place, 0))
    assert one.view.queues == {0: [B]}
    one.send(free(b"t4", 4))
    assert one.pushed == [(B, 4)]
    one.view.check()


async def test_the_index_outlives_waiters_that_send_heartbeats(one: One) -> None:
    for number in range(5):
        one.took(take(b"t%d" % number, number, ttl=60_000))
    place = one.now
    for _ in range(12):
        one.codes(enter(A, place, 0), enter(B, place + 1, 0))
        assert one.view.index == {0: place}
        await asyncio.sleep(1)
    one.send(free(b"t3", 3))
    assert one.pushed == [(A, 3)]
    await asyncio.sleep(6)
    assert one.pttl(INDEX.decode()) == -2
    assert one.pttl(queue_of(0).decode()) == -2


# drop_permits


async def test_a_drop_frees_all_but_the_permit_that_is_kept(one: One) -> None:
    one.take_all()
    for number in (1, 2, 4):
        one.set(permit(number).decode(), "mine", TTL)
    one.codes(enter(A, one.now, 1), enter(B, one.now + 1, 3))
    assert one.send(drop(b"mine", 2)) == b"OK"
    assert one.view.holders == {0: b"t0", 2: b"mine", 3: b"t3"}
    assert one.pushed == [(A, 1), (B, 4)]
    assert one.send(drop(b"mine")) == b"OK"


# Names, and programs that differ


@pytest.mark.parametrize(
    "name", ["api", "}x", "}", "{", "{}", "{a}b", "a}b{c}", "a#3", "12", "{12}", "=x", "#", "x7#12"]
)
async def test_each_permit_has_keys_of_its_own_whatever_the_name(one: One, name: str) -> None:
    permits = Permits(Mutex(name.encode()), 12)
    keys = [
        key
        for number in range(12)
        for key in (*commands.permit_keys(permits.permit(number))[:2],
                    *permits.permit(number).counter(0).keys)
    ]  # fmt: skip
    assert len(set(keys)) == len(keys)
    assert all(key.rpartition(b"#")[2] in {b"%d" % n for n in range(12)} for key in keys)
    slots = {commands.hash_tag(key) for key in [*keys, commands.permit_keys(permits.permit(0))[2]]}
    assert len(slots) == 1 or name.startswith("}"), "one slot of a Redis Cluster"
    one.take_all(permits)
    ask = [enter(b"a/%dp12" % n, one.now - 900 + n, n, permits=permits) for n in range(12)]
    assert one.codes(*ask) == [1] * 12
    one.send(permits.permit(11).leave(b"t11", NO_MEMBER))
    assert one.pushed == [(b"a/11p12", 11)]
    assert permits.numbered(permits.permit(11)) == permits.permit(11)


# Programs with different numbers of permits.

TWO = Permits(API, 2)
A2, B2 = b"a/1p2", b"b/1p2"


async def test_a_permit_goes_to_the_oldest_whose_program_knows_it(one: One) -> None:
    one.take_all()
    one.codes(enter(A2, one.now - 900, 0, permits=TWO))
    one.codes(enter(B, one.now, 1), enter(C, one.now + 1, 0))
    one.codes(free(b"t4", 4), free(b"t3", 3), free(b"t2", 2))
    assert one.pushed == [(B, 4), (C, 3)], "and nobody for the third"
    assert one.view.queues == {0: [A2], 3: [C], 4: [B]}
    assert one.view.index == {0: one.now - 900}
    one.codes(free(b"t1", 1))
    assert one.pushed[2:] == [(A2, 1)]


async def test_a_first_request_does_not_wait_for_those_that_can_not_have_the_permit(
    one: One,
) -> None:
    one.take_all()
    one.codes(enter(A2, one.now, 0, permits=TWO), free(b"t3", 3))
    assert one.took(take(b"x", 1)) == (0, 3)
    one.delete(permit(1).decode())
    assert one.took(take(b"y", 1))[0] == 1, "the other one can have it"
    one.delete(permit(4).decode())
    one.codes(enter(B, one.now + 1, 2))
    assert one.took(take(b"y", 1))[0] == 1, "this one too"


@pytest.mark.parametrize("number", [0, 2])
async def test_a_waiter_looks_for_a_permit_that_those_before_it_can_not_have(
    one: One, number: int
) -> None:
    """It waits behind one of them, or for another permit."""
    one.take_all()
    one.codes(enter(A2, one.now, 0, permits=TWO), enter(B, one.now + 1, number))
    one.delete(permit(3).decode())
    assert one.codes(enter(A2, one.now, 0, permits=TWO)) == [1]
    assert one.codes(enter(B, one.now + 1, number)) == [5]
    assert one.view.queues == {0: [A2], 3: [B]}
    one.delete(permit(1).decode())
    one.codes(enter(C, one.now + 2, 4))
    assert one.codes(enter(C, one.now + 2, 4)) == [1], "who has waited for longer can have it"
    assert one.codes(enter(A2, one.now, 0, permits=TWO)) == [5]


async def test_a_waiter_is_found_behind_many_that_can_not_have_the_permit(one: One) -> None:
    many, fewer = Permits(API, 200), Permits(API, 150)
    one.take_all(many)
    for number in range(120):
        one.codes(enter(b"a/%dp150" % number, one.now, number, permits=fewer))
    last = enter(b"b/1p200", one.now + 1, 140, permits=many)
    one.codes(last)
    one.delete(permit(180, many).decode())
    assert one.took(take(b"x", permits=many))[0] == 1, "it comes after those that wait"
    assert one.codes(last) == [5]


class Counting(One):
    """Counts the commands that its scripts execute."""

    executed = 0

    def _called(self, name: bytes, *arguments: bytes) -> object:
        self.executed += 1
        return super()._called(name, *arguments)


async def test_many_that_know_fewer_permits_make_no_request_expensive() -> None:
    """The oldest looks at each permit, and only where one is free who else could have it."""
    one, many, two = Counting(), Permits(API, 300), Permits(API, 2)
    one.take_all(many)
    for number in range(40):
        enter_small = enter(b"a/%dp2" % number, one.now, number % 2, permits=two)
        assert one.codes(enter_small)[0] in {1, 2}
    last = enter(b"b/1p300", one.now + 1, 0, permits=many)
    one.codes(last)
    one.executed = 0
    assert one.codes(last) == [2]
    assert many.number < one.executed < 2 * many.number


@pytest.mark.full
async def test_a_release_calls_a_hundred_members_at_most() -> None:
    """It looks for the next one each time that it has offered its permit to one that is deaf."""
    one, many = Counting(), Permits(API, 250)
    one.take_all(many)
    for number in range(240):
        deaf = number % 10 == 9
        member = b"%b/%dp250" % (b"gone" if deaf else b"a", number)
        one.codes(enter(member, one.now - 9_000 + number, number, permits=many))
        if not deaf:
            one.delete(permit(number, many).decode())
    calls = []
    for number in range(240, 244):
        one.executed = 0
        one.send(permit(number, many).leave(b"t%d" % number, NO_MEMBER))
        assert one.executed < 5_000
        pushed, one.pushed = one.pushed, []
        calls.append(len(pushed))
    assert calls == [100, 100, 16, 0]


# Keys of other programs, and masters without memory


@pytest.mark.parametrize("what", ["permit", "queue", "index"])
async def test_keys_of_another_type_are_errors_that_leave_nothing(one: One, what: str) -> None:
    key = {"permit": bytes(permit(0)), "queue": queue_of(0), "index": INDEX}[what]
    if what == "permit":
        one.send(pack(b"ZADD", key, b"1", b"x"))
    else:
        one.set(key.decode(), "junk")
    asked = [take(b"x"), enter(A, one.now, 0), enter(A, one.now, 0, first=True)]
    for reply in map(one.send, asked):
        assert isinstance(reply, Error)
        assert str(reply).startswith("WRONGTYPE")
    one.codes(leave(A, 0), drop(b"x"))
    assert one.view.holders == {}


# All together


@pytest.mark.promise("S1", "S8")
@pytest.mark.seeds(1, full=60)
async def test_the_queues_agree_with_the_index_after_each_of_many_requests(
    one: One, seed: int
) -> None:
    story = Walk(one.send, one.woken, one.view.check, one.now, random.Random(seed))
    await story.run(400, asyncio.sleep)
    assert story.granted > 30
    assert story.moved > 3


@pytest.mark.spread(0)
@pytest.mark.parametrize("name", ["1" * 512, "#1" * 256, "x" * 512])
async def test_a_long_name_takes_little_time(one: One, name: str) -> None:
    """A search for the number from the begin of the name took 5 s of a master for 1 000 permits."""
    permits = Permits(Mutex(name.encode()), 1_000)
    one.take_all(permits)
    began = time.process_time()
    assert one.codes(take(b"x", permits=permits)) == [1]
    assert time.process_time() - began < 1
