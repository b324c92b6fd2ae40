"""
All interleavings of a few clients that want permits of one semaphore; see `semaphore_model`.

A search that is cut off at `SOME` states proves nothing about the others. Two clients on three
masters, and four on one master with pushes, are searched completely.
"""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import Phase, find, given, settings, strategies as st

from redlock_aio._protocol import commands
from redlock_aio._protocol.primitives import Mutex, Permits
from redlock_aio._protocol.scripts import (
    DROP_PERMITS,
    ENQUEUE_PERMIT,
    EXTEND,
    LEAVE_PERMIT,
    TAKE_PERMIT,
)

from .masters import MasterKeys, words
from .search import Model, Searched
from .semaphore_model import SHIPPED, Acquiring, Design, Serving, planted, zset

MOST = 300_000
"""The limit of searched states."""

SOME = 30_000
"""The same, for settings that have far more."""

LONG = 12_000
"""Settings with more states belong to the full run."""

pytestmark = [pytest.mark.promise("S1"), pytest.mark.timeout(600)]

# Clients on three masters: each with the number of permits that it knows.
SETTINGS: dict[str, tuple[Acquiring, int]] = {
    "one permit": (Acquiring((1, 1)), 3_000),
    "one permit, losses, tokens": (Acquiring((1, 1), fenced=True, losses=True), 11_000),
    "one permit, an extension": (Acquiring((1, 1), extends=(0,)), 8_900),
    "one permit, two extensions": (Acquiring((1, 1), extends=(0, 0)), 21_000),
    "one permit, a master forgets": (Acquiring((1, 1), forgets=True), 10_000),
    "one permit, a master forgets, an extension": (
        Acquiring((1, 1), extends=(0,), forgets=True),
        34_000,
    ),
    "one permit, and a wait": (Acquiring((1, 1), claims=2, calm=True), 27_000),
    "one permit of one master, and two waits, losses": (
        Acquiring((1, 1), claims=3, losses=True, masters=1),
        38_500,
    ),
    "programs with one and two permits on one master, and a wait, losses, calm": (
        Acquiring((1, 1, 2), claims=2, losses=True, calm=True, masters=1),
        60_000,
    ),
    "two permits, losses, tokens": (Acquiring((2, 2), fenced=True, losses=True), 28_000),
    "two permits, clean, losses": (Acquiring((2, 2), clean=True, losses=True), 17_000),
}

CUT_OFF: dict[str, Acquiring] = {
    "one permit, and a wait, losses": Acquiring((1, 1), claims=2, losses=True),
    "one permit, and a wait, tokens": Acquiring((1, 1), claims=2, fenced=True),
    "two permits, and a wait, clean": Acquiring((2, 2), claims=2, clean=True),
    "two permits, one follows": Acquiring((2, 2), claims=3, calm=True),
    "two permits of one master, three clients, and a wait, tokens": Acquiring(
        (2, 2, 2), claims=2, fenced=True, masters=1
    ),
    "two permits, three clients": Acquiring((2, 2, 2)),
    "two permits, three clients, calm": Acquiring((2, 2, 2), calm=True),
    "programs with one and two permits": Acquiring((1, 1, 2), calm=True),
}


def rows(
    settings: dict[str, tuple[Acquiring, int]] | dict[str, tuple[Serving, int]],
) -> list[object]:
    """Return the parameters of a test: the names, of which long ones belong to the full run."""
    return [
        pytest.param(name, marks=[pytest.mark.full] if least > LONG else [])
        for name, (_, least) in settings.items()
    ]


@pytest.mark.promise("S3")
@pytest.mark.promise("S4")
@pytest.mark.promise("S7")
@pytest.mark.parametrize("name", rows(SETTINGS))
def test_no_property_is_broken(searched: Searched, name: str) -> None:
    model, least = SETTINGS[name]
    found = searched(model, MOST)
    assert not found.broken, str(found)
    assert found.complete
    assert found.states >= least


@pytest.mark.full
@pytest.mark.parametrize("name", CUT_OFF)
def test_no_property_is_broken_as_far_as_the_search_goes(searched: Searched, name: str) -> None:
    found = searched(CUT_OFF[name], SOME)
    assert not found.broken, str(found)
    assert found.states >= SOME


# The clients of one master, with pushes.

X3, X4, X5, X6, X7, AT_ONCE = ("X3",), ("X4",), ("X5",), ("X6",), ("X7",), ("X4", "W1", "X6", "X7")

SERVED: dict[str, tuple[Serving, int]] = {
    "one permit": (Serving((1, 1, 1)), 240),
    "two permits, three clients": (Serving((2, 2, 2)), 520),
    "two permits, all may die": (Serving((2, 2, 2), dies=(0, 1, 2)), 2_880),
    "two permits, one gives back": (Serving((2, 2, 2), yields=(1,)), 4_400),
    "two permits, four clients": (Serving((2, 2, 2, 2)), 21_000),
    "two permits, two go elsewhere": (Serving((2, 2, 2, 2), elsewhere=(1, 3)), 29_000),
    "two permits, two may die": (Serving((2, 2, 2, 2), dies=(0, 2)), 62_000),
    "three permits": (Serving((3, 3, 3, 3)), 12_000),
    "programs with one and two permits, two may die": (Serving((1, 2, 2), dies=(0, 1)), 830),
    "programs with one and two permits, four clients": (Serving((1, 2, 1, 2)), 2_800),
    "programs with one and two permits, three know two": (Serving((1, 2, 2, 2)), 8_800),
    "programs with one, two and three permits": (Serving((1, 2, 3, 3)), 3_400),
    "all listen, programs with one and two permits": (
        Serving((1, 2, 2, 2), deaf=False, looked_for=AT_ONCE),
        6_000,
    ),
    "all listen": (Serving((2, 2, 2, 2), deaf=False, looked_for=AT_ONCE), 16_000),
    "all listen, two go elsewhere": (
        Serving((2, 2, 2, 2), deaf=False, elsewhere=(1, 3), looked_for=AT_ONCE),
        23_000,
    ),
    "all listen, three permits": (Serving((3, 3, 3, 3), deaf=False, looked_for=AT_ONCE), 11_000),
    "all listen, one may die": (
        Serving((2, 2, 2, 2), deaf=False, dies=(2,), looked_for=X7),
        29_000,
    ),
    "all listen, two may die": (
        Serving((2, 2, 2, 2), deaf=False, dies=(0, 2), looked_for=X7),
        50_000,
    ),
    "all listen, programs with one and two permits, two may die": (
        Serving((1, 2, 2, 2), deaf=False, dies=(1, 2), looked_for=X7),
        10_000,
    ),
}


@pytest.mark.spread(0)
@pytest.mark.promise("S8")
@pytest.mark.promise("S9")
@pytest.mark.parametrize("name", rows(SERVED))
def test_no_free_permit_is_forgotten(searched: Searched, name: str) -> None:
    model, least = SERVED[name]
    found = searched(model, MOST)
    assert not found.broken, str(found)
    assert found.complete
    assert found.states >= least


@pytest.mark.full
def test_nobody_who_has_just_come_overtakes_as_far_as_the_search_goes(searched: Searched) -> None:
    found = searched(Serving((2,) * 5, deaf=False, looked_for=X6), 2 * SOME)
    assert not found.broken, str(found)
    assert found.states >= 2 * SOME


# Defects.

PERMITS = (TAKE_PERMIT, ENQUEUE_PERMIT, LEAVE_PERMIT, DROP_PERMITS)

ADDS_UP = replace(SHIPPED, adds_up=True)
ZSET = replace(SHIPPED, naive=zset)
NO_DROPS = replace(SHIPPED, drops=False)
COUNTS_OLD = replace(SHIPPED, counts_old=True)
SAME_TOKEN = replace(SHIPPED, new_tokens=False)
NO_QUARANTINE = replace(SHIPPED, quarantines=False)
NO_DECLINES = replace(SHIPPED, declines=False)
NO_DECLINED_REPLIES = replace(SHIPPED, declines_replies=False)

ANY_TOKEN = planted({b"local mine = holder == ARGV[1]": b"local mine = holder"}, LEAVE_PERMIT)
"""A client that leaves deletes the permit, whoever has it."""

ANY_HOLDER = planted({b"elseif holder ~= token then": b"elseif false then"}, EXTEND)
"""An extension does not look whose permit it is."""

IGNORES_HOLDER = planted(
    {b"elseif not has and clean(lines .. number, ms)": b"elseif clean(lines .. number, ms)"},
    TAKE_PERMIT,
)
"""A first request takes a permit that is held."""

FIRST_GETS = planted(
    {b"if not (mine or rank == 0 and not holder) then": b"if rank > 0 then"}, ENQUEUE_PERMIT
)
"""The first in a queue is granted its permit, though another one holds it."""

SAME_COUNTER = planted(
    {b'value = math.max(tonumber(redis.call("GET", counter) or 0) + 1, asked)': b"value = asked"},
    TAKE_PERMIT,
)
"""A permit that nobody waits for has the token that is proposed."""

NO_HAND_OVER = planted({b"hand_over(lock, queue, index, now, ARGV[4])": b""}, LEAVE_PERMIT)
"""A release calls nobody."""

NO_INDEX = planted(
    {b'redis.call("ZADD", index, string.format("%.0f", place), number)': b""}, *PERMITS
)
"""The index knows of nobody."""

KEEPS_INDEX = planted({b'redis.call("ZREM", index, number)': b""}, *PERMITS)
"""Nothing is removed from the index."""

ONLY_HELD = planted(
    {b"return first, place, member, tonumber(members[i + 1])": b"return first, place"}, *PERMITS
)
"""The second waiter of a free permit is not in the index, behind the first."""

FORGETS_THE_FREE = planted({b"(held or place == noted)": b"held"}, *PERMITS)
"""The first waiter of a permit that nobody has released counts as called."""

FORGETS_BY_OTHERS = planted(
    {b"not holder and tonumber(score(index, number))": b"nil"}, ENQUEUE_PERMIT
)
"""The same after a heartbeat of another one in its queue."""

CALLS_NO_FORGOTTEN = planted({b"if forgotten and prefix and": b"if false and"}, *PERMITS)
"""The first waiter of such a permit is called by no release."""

MOVES_THE_DEAF = planted(
    {b"elseif call(lock, prefix, other) then": b"elseif call(lock, prefix, other) or true then"},
    LEAVE_PERMIT,
    DROP_PERMITS,
)
"""A member is moved though its client does not listen."""

LOOKS_AT_THE_DEAD = planted(
    {
        b"= oldest(index, lock, queue, ms, permits - 1)": (
            b'= redis.call("ZRANGE", index, 0, 0)[1], member, place'
        )
    },
    ENQUEUE_PERMIT,
)
"""A member that has waited for longest compares itself with the dead."""

FEWER_BLOCK = planted(
    {b"oldest(index, lock, queue, ms, permits - 1)": b"oldest(index, lock, queue, ms, 0)"},
    ENQUEUE_PERMIT,
)
"""A member waits until one has a permit that has come before, and knows fewer."""

FIRST_BLOCKS = planted(
    {b"not number or can_take(member, number)": b"true"},
    *PERMITS,
)
"""The next member of a queue counts, though it knows fewer permits."""

DEFECTS: dict[str, tuple[Model[Any], str]] = {
    "zset": (Acquiring((2, 2, 2), ZSET, calm=True), "X1"),
    "adds up": (Acquiring((2, 2, 2), ADDS_UP, calm=True), "X1"),
    "counts old": (Acquiring((2, 2), COUNTS_OLD, claims=3, calm=True), "X1"),
    "no quarantine": (Acquiring((1, 1), NO_QUARANTINE, forgets=True), "X1"),
    "same token": (Acquiring((1, 1), SAME_TOKEN, claims=2, losses=True, masters=1), "X1"),
    "any token": (Acquiring((1, 1), ANY_TOKEN, claims=3, calm=True), "X1"),
    "ignores the holder": (Acquiring((1, 1), IGNORES_HOLDER), "X1"),
    "the first gets it": (Acquiring((1, 1), FIRST_GETS, claims=2), "X1"),
    "same counter": (Acquiring((1, 1), SAME_COUNTER, fenced=True), "X2"),
    "any holder": (Acquiring((1, 1), ANY_HOLDER, extends=(0, 0), looked_for=X3), "X3"),
    "no drops": (Acquiring((2, 2), NO_DROPS, clean=True), "X4"),
    "no declines, left": (Serving((2,) * 4, NO_DECLINES, elsewhere=(3,), looked_for=X4), "X4"),
    "no declines": (Serving((2,) * 4, NO_DECLINES, elsewhere=(2,), looked_for=X5), "X5"),
    "no declined replies": (Serving((2,) * 4, NO_DECLINED_REPLIES, looked_for=X5), "X5"),
    "keeps index": (Serving((2,) * 3, KEEPS_INDEX, looked_for=X4), "X4"),
    "no hand-over": (Serving((2,) * 3, NO_HAND_OVER, deaf=False, looked_for=AT_ONCE), "W1"),
    "no index": (Serving((2,) * 3, NO_INDEX, looked_for=X5), "X5"),
    "only held": (Serving((2,) * 4, ONLY_HELD, deaf=False, looked_for=("W1",)), "W1"),
    "only held, order": (Serving((2,) * 5, ONLY_HELD, deaf=False, looked_for=X6), "X6"),
    "forgets the free": (
        Serving((2,) * 4, FORGETS_THE_FREE, deaf=False, dies=(2,), looked_for=X7),
        "X7",
    ),
    "forgets the free by others": (
        Serving((2,) * 4, FORGETS_BY_OTHERS, deaf=False, dies=(0, 2), looked_for=X7),
        "X7",
    ),
    "moves the deaf": (Serving((2,) * 3, MOVES_THE_DEAF), "X5"),
    "looks at the dead": (Serving((2,) * 4, LOOKS_AT_THE_DEAD, dies=(0, 2)), "X5"),
    "fewer block": (Serving((1, 2, 2, 2), FEWER_BLOCK, looked_for=X5), "X5"),
    "the next one blocks": (Serving((1, 1, 2, 2), FIRST_BLOCKS, looked_for=X5), "X5"),
}
"""The model with the defect, and the property that is broken."""

FAR = {
    "counts old", "any token", "the first gets it", "no declines", "no declines, left",
    "only held, order", "looks at the dead",
}  # fmt: skip
"""Those that take long to be found; they belong to the full run."""


@pytest.mark.spread(0)
@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[pytest.mark.full] if name in FAR else []) for name in DEFECTS],
)
def test_a_defect_is_found(searched: Searched, name: str) -> None:
    model, breaks = DEFECTS[name]
    found = searched(model, MOST)
    assert found.broken.startswith(breaks), f"{name}: {found}"


# One hand-over, of all queues and ages.

NOW, LIVES = 1_000, 60_000
"""The time of the master's clock in seconds, and the ms for which a member counts as alive."""

TIME = NOW * 1_000_000

Waiter = tuple[int, bool, bool, bool]
"""For how many us a member has waited; whether it was granted its permit, is dead, is heard."""

Semaphore = list[tuple[bool, list[Waiter]]]
"""For each permit whether it is held, and its queue."""

SEMAPHORES = st.lists(
    st.tuples(
        st.booleans(),
        st.lists(
            st.tuples(st.integers(1, 200), st.booleans(), st.booleans(), st.booleans()),
            max_size=4,
            unique_by=lambda waiter: waiter[0],
        ),
    ),
    min_size=1,
    max_size=4,
).map(
    lambda permits: [
        (
            held or not number,
            sorted([(4 * waiter[0] + number, *waiter[1:]) for waiter in queue])[::-1],
        )
        for number, (held, queue) in enumerate(permits)
    ]
)
"""Permit 0 is held, and will be released. No two members have the same age."""

LOCKS = [commands.permit_keys(Permits(Mutex(b"s"), 4).permit(number)) for number in range(4)]


Call = tuple[int, int]
"""The permit for which a member waits that is called, and its age."""


def noted(permits: Semaphore) -> list[list[int]]:
    """Return the ages of those who wait in vain for each permit, as when nobody had died yet."""
    return [
        [age for age, granted, _, _ in queue if not granted][0 if held else 1 :]
        for held, queue in permits
    ]


def wanted(permits: Semaphore) -> tuple[Call | None, set[Call]]:
    """
    Return who is called for permit 0 when it is released, and who for the permit of its queue.

    The second ones are the first members of free permits that were not first before. Those are
    called that have waited for longer than all to whom the permit 0 was offered.
    """
    alive = [
        [(age, heard) for age, granted, dead, heard in queue if not granted and not dead]
        for _, queue in permits
    ]
    first = alive[0][:1]
    in_vain = [
        (*waiter, number)
        for number, (held, _) in enumerate(permits)
        for waiter in alive[number][0 if held and number else 1 :]
    ]
    offered, taken = 0, None
    for age, heard, number in sorted(in_vain, reverse=True):
        offered = age
        if not number or (first and age <= 2 * first[0][0]):
            break
        if heard:
            taken = number, age
            break
    else:
        offered = 0
    if taken is None and first and first[0][1]:
        taken = 0, first[0][0]
    also = {
        (number, waiting[0][0])
        for number, waiting in enumerate(alive)
        if number and waiting and not permits[number][0] and waiting[0][1]
        if noted(permits)[number][:1] == [waiting[0][0]] and waiting[0][0] > offered
    }
    return taken, also


def handed_over(permits: Semaphore, design: Design = SHIPPED) -> tuple[Call | None, set[Call]]:
    """Release permit 0 on a master; return what `wanted` does."""
    master, called = MasterKeys(NOW), list[bytes]()
    for number, (held, queue) in enumerate(permits):
        lock, line, index = LOCKS[number]
        if held:
            master.data.set(lock, b"holder")
        for age, granted, dead, heard in queue:
            member = b"client/%dp4" % age if heard else b"deaf/%dp4" % age
            ends = NOW * 1_000 + (-1 if dead else LIVES)
            master.data.zadd(line, TIME - age, member)
            master.data.zadd(line, 4e15 - ends - granted / 2, b"~" + member)
        # Nobody has removed the dead from the index.
        if ages := noted(permits)[number]:
            master.data.zadd(index, TIME - ages[0], b"%d" % number)

    def publish(channel: bytes, message: bytes) -> int:
        if channel.endswith(b"deaf"):
            return 0
        called.append(message)
        return 1

    master.data.publish = publish
    packed = words(commands.leave(LOCKS[0], b"holder", b"-", keep_place=False, script=LEAVE_PERMIT))
    packed[1] = dict(design.planted).get(packed[1], packed[1])
    master.run(packed)
    taken, also = None, set[Call]()
    for message in called:
        member, lock = message.split(b" ")
        lines = [number for number, keys in enumerate(LOCKS) if member in master.data.zall(keys[1])]
        assert [LOCKS[number][0] for number in lines] == [lock], "it is in that queue only"
        age = int(member.partition(b"/")[2].removesuffix(b"p4"))
        came_from = next(
            number
            for number, (_, queue) in enumerate(permits)
            if any(waiter[0] == age for waiter in queue)
        )
        if lines == [0]:
            assert taken is None, "one is called for a permit"
            taken = came_from, age
        else:
            also.add((came_from, age))
            assert came_from == lines[0], "others are called for the permit for which they wait"
    return taken, also


@pytest.mark.promise("S8")
@given(SEMAPHORES)
def test_a_permit_is_handed_over_by_the_rule(permits: Semaphore) -> None:
    assert handed_over(permits) == wanted(permits)


UNRULY = {
    "never older": planted({b"now - since > 2 * (now - place)": b"false"}, LEAVE_PERMIT),
    "three times as old": planted({b"2 * (now - place)": b"3 * (now - place)"}, LEAVE_PERMIT),
    "none behind the deaf": planted({b"deaf[other] = true": b"break"}, LEAVE_PERMIT),
    "the deaf": planted({b'type(listen) == "number" and listen > 0': b"true"}, LEAVE_PERMIT),
    "the dead": planted({b" and live <= 4e15 - ms": b""}, LEAVE_PERMIT),
    "only of held permits": ONLY_HELD,
    "not those of free ones": FORGETS_THE_FREE,
    "calls none of free ones": CALLS_NO_FORGOTTEN,
    "stays in its queue": planted({b'redis.call("ZREM", theirs, member, live)': b""}, LEAVE_PERMIT),
    "those that have their permits": planted({b"live % 1 == 0": b"true"}, LEAVE_PERMIT),
}


@pytest.mark.spread(0)
@pytest.mark.parametrize("name", UNRULY)
def test_another_rule_is_found(name: str) -> None:
    def differs(permits: Semaphore) -> bool:
        try:
            return handed_over(permits, UNRULY[name]) != wanted(permits)
        except AssertionError:
            return True

    examples = settings(
        max_examples=2_000, derandomize=True, database=None, phases=[Phase.generate]
    )
    assert find(SEMAPHORES, differs, settings=examples)
