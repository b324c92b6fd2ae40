"""
All interleavings of readers and writers of one lock; see `rw_model`.

A search that is cut off at `MOST` states proves nothing about the others. Three clients on one
master, and two on three masters, are searched completely.
"""

from dataclasses import replace

import pytest

from redlock_aio._protocol.scripts import ENQUEUE_SHARED, EXTEND, LEAVE, LEAVE_SHARED, REVOKE

from .rw_model import (
    SHIPPED,
    Design,
    Sharing,
    Waking,
    checks_first,
    counts,
    looks_only,
    planted,
)
from .search import Searched, search

MOST = 450_000
"""The limit of searched states."""

SOME = 100_000
"""The same, for settings that have far more."""

LONG = 25_000
"""Settings with more states belong to the full run."""

pytestmark = [pytest.mark.promise("S1"), pytest.mark.timeout(600)]

# A master that forgets a waiting writer, and no lease, has no quarantine in this model. So a reader
# that was late may come first there (X5), which a real quarantine prevents.
FORGETTING = ("X1", "X3", "X4")

SETTINGS: dict[str, tuple[Sharing, int]] = {
    "r and w": (Sharing("rw"), 8_000),
    "r and w, an extension": (Sharing("rw", extends=(0,)), 25_000),
    "r and w, two extensions": (Sharing("rw", extends=(0, 0)), 80_000),
    "r and w, two extensions, calm": (Sharing("rw", extends=(0, 0), calm=True), 4_000),
    "r and w, two extensions, losses": (Sharing("rw", extends=(0, 0), losses=True), 200_000),
    "r and w, both extend": (Sharing("rw", extends=(0, 1)), 70_000),
    "r and w, a master forgets": (
        Sharing("rw", forgets=True, looked_for=FORGETTING),
        30_000,
    ),
    "r and w, a master forgets, an extension, calm": (
        Sharing("rw", extends=(0,), forgets=True, calm=True, looked_for=FORGETTING),
        16_000,
    ),
    "r and w, a master forgets, the reader extends": (
        Sharing("rw", extends=(0,), forgets=True, looked_for=FORGETTING),
        120_000,
    ),
    "r and w, a master forgets, the writer extends": (
        Sharing("rw", extends=(1,), forgets=True, looked_for=FORGETTING),
        120_000,
    ),
    "r and w, forced release, calm": (
        Sharing("rw", extends=(0,), forced=True, calm=True),
        8_000,
    ),
    "r and w, forced release": (Sharing("rw", extends=(0,), forced=True), 70_000),
    "r and w, forced release, both extend, calm": (
        Sharing("rw", extends=(0, 1), forced=True, calm=True),
        35_000,
    ),
    "r and w, clean": (Sharing("rw", extends=(0,), clean=True), 9_000),
    "r and w, clean, losses": (Sharing("rw", extends=(0,), clean=True, losses=True), 30_000),
    "r, r and w on one master": (
        Sharing("rrw", extends=(0, 1), losses=True, masters=1),
        10_000,
    ),
    "r, r and w on one master, forced release": (
        Sharing("rrw", extends=(0, 1), forced=True, masters=1),
        30_000,
    ),
    "r, w and w on one master, forced release": (
        Sharing("rww", extends=(0, 1), forced=True, masters=1),
        14_000,
    ),
    "r, r and w, calm": (Sharing("rrw", calm=True), 200_000),
    "r, w and w, calm": (Sharing("rww", calm=True), 190_000),
}

CUT_OFF: dict[str, Sharing] = {
    "r, r and w": Sharing("rrw"),
    "r, r and w, clean": Sharing("rrw", clean=True),
    "r, r and w, forced release, calm": Sharing("rrw", extends=(0,), forced=True, calm=True),
}


@pytest.mark.spread(0)
@pytest.mark.promise("S3")
@pytest.mark.promise("S4")
@pytest.mark.promise("S8")
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.full] if least > LONG else [])
        for name, (_, least) in SETTINGS.items()
    ],
)
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


JOINS, ALL_SETS = (ENQUEUE_SHARED, EXTEND), (ENQUEUE_SHARED, EXTEND, LEAVE_SHARED)
ONLY_KEPT = b"if not again and not (holder and lasts(set, token, ms)) then"
OTHERS_REFUSE = b"elseif holder and holder ~= SHARED then\n    return -1"

# Other protocols, and this one without its quarantine.
CHECKS_FIRST = Design(naive=checks_first, looks_first=True)
LOOKS_ONLY = Design(naive=looks_only)
COUNTS = Design(naive=counts)
NO_QUARANTINE = replace(SHIPPED, quarantines=False)

NO_EPOCHS = replace(
    SHIPPED,
    planted=(
        *planted({b'    redis.call("DEL", set)\n': b""}, *JOINS).planted,
        *planted({b'  redis.call("DEL", KEYS[3])\n': b""}, REVOKE).planted,
    ),
)
"""Neither a forced release nor the first reader of a free lock empties the set of shares."""

NO_GATE = planted(
    {
        b'-1) ~= "r" then\n        return true': b'-1) ~= "r" then\n        return false',
    },
    ENQUEUE_SHARED,
)
"""A writer in the queue keeps no reader out."""

ANY_HOLDER = planted({OTHERS_REFUSE: b"elseif false then\n    return -1"}, EXTEND)
"""An extension, also one that sets a share again, does not look whose lock it is."""

ANY_LOCK = planted(
    {OTHERS_REFUSE: b"elseif false then\n    return -1", ONLY_KEPT: b"if false then"}, EXTEND
)
"""An extension sets a share whatever the lock is."""

SETS_AGAIN = planted({ONLY_KEPT: b"if false then"}, EXTEND)
"""An extension sets a share again that is gone, and counts it at once."""

ENDS_EARLY = planted(
    {b"lock, left + slack)": b"lock, left - slack)", b"ttl + math.": b"ttl - math."}, *ALL_SETS
)
"""The lock ends before the last deadline of its readers."""

NEVER_LATER = planted({b"if ends < left or most and": b"if most and"}, *ALL_SETS)
"""A deadline that is later does not move the end of the lock."""

FIRST_DEADLINE = planted(
    {b'"ZRANGE", set, -1, -1, "WITHSCORES")': b'"ZRANGE", set, 0, 0, "WITHSCORES")'}, *ALL_SETS
)
"""The lock ends with the first deadline of its readers."""

LAST_OF_ALL = planted({b"  if not last or last < ms then": b"  if true then"}, LEAVE_SHARED)
"""A reader that leaves deletes the lock, though others have a share."""

FIRST_STAYS = planted({b'redis.call("ZREM", set, ARGV[1])': b""}, LEAVE_SHARED)
"""A reader that leaves keeps its share."""

KEEPS_ENTRY = planted({b'redis.call("ZREM", queue, ARGV[2], "~" .. ARGV[2])': b""}, LEAVE_SHARED)
"""A reader that leaves keeps its entry in the queue."""

X1 = ("X1",)

DEFECTS: dict[str, tuple[Sharing, str]] = {
    "checks first": (Sharing("rw", CHECKS_FIRST, calm=True, looked_for=X1), "X1"),
    "looks only": (Sharing("rw", LOOKS_ONLY, looked_for=X1), "X1"),
    "counts": (Sharing("rrw", COUNTS, calm=True, losses=True, looked_for=X1), "X1"),
    "no quarantine": (Sharing("rw", NO_QUARANTINE, forgets=True), "X1"),
    "no epochs": (Sharing("rrw", NO_EPOCHS, extends=(0,), forced=True, calm=True), "X3"),
    "no epochs, one master": (
        Sharing("rrw", NO_EPOCHS, extends=(0,), forced=True, calm=True, masters=1),
        "X3",
    ),
    "no gate": (Sharing("rrw", NO_GATE, calm=True), "X5"),
    "any holder": (Sharing("rw", ANY_HOLDER, extends=(0, 0)), "X1"),
    "any lock": (Sharing("rw", ANY_LOCK, extends=(0,)), "X1"),
    "sets again": (Sharing("rw", SETS_AGAIN, extends=(0,), forced=True), "X3"),
    "ends early": (Sharing("rw", ENDS_EARLY), "X1"),
    "never later": (Sharing("rw", NEVER_LATER, extends=(0,)), "X1"),
    "first deadline": (Sharing("rrw", FIRST_DEADLINE, masters=1), "X1"),
    "last of all": (Sharing("rrw", LAST_OF_ALL, masters=1), "X1"),
    "first stays": (Sharing("rw", FIRST_STAYS, clean=True), "X4"),
    "keeps entry": (Sharing("rw", KEEPS_ENTRY, clean=True), "X4"),
}
"""The model with the defect, and the property that is broken."""


@pytest.mark.spread(0)
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.full] if name in {"counts", "no epochs"} else [])
        for name in DEFECTS
    ],
)
def test_a_defect_is_found(searched: Searched, name: str) -> None:
    model, breaks = DEFECTS[name]
    found = searched(model, MOST)
    assert found.broken.startswith(breaks), f"{name}: {found}"


# Wake-ups.

ORDERS = ("rwr", "wrr", "rrw", "rwrw", "wrwr", "rwwr", "rrww", "wwrr", "wrrw", "rrwr")


@pytest.mark.spread(0)
@pytest.mark.promise("S9")
@pytest.mark.parametrize("kinds", ORDERS)
def test_a_leave_wakes_those_that_can_get_the_lock(searched: Searched, kinds: str) -> None:
    found = searched(Waking(kinds), MOST)
    assert not found.broken, str(found)
    assert found.complete
    assert found.states >= 10 ** (len(kinds) - 1)


@pytest.mark.spread(0)
@pytest.mark.promise("S9")
@pytest.mark.parametrize("kinds", [*ORDERS, "prwr", "rprw", "rwrp", "prrw"])
def test_a_leave_wakes_those_that_are_next(searched: Searched, kinds: str) -> None:
    found = searched(Waking(kinds, looked_for=("W1", "W2", "W3")), MOST)
    assert not found.broken, str(found)
    assert found.complete


ONLY_FIRST = planted({b'"ZRANGE", queue, 0, 99)': b'"ZRANGE", queue, 0, 0)'}, LEAVE, LEAVE_SHARED)
"""Only the first waiter is woken, also if readers follow it."""

SKIPS_NOBODY = planted({b"member ~= skip and ": b""}, LEAVE, LEAVE_SHARED)
"""A reader that gives back its share is woken by that."""

SHARERS_TOO = planted(
    {b' and not (type(live) == "string" and live % 1 > 0)': b""}, LEAVE, LEAVE_SHARED
)
"""Readers that have a share are woken."""

WRITER_IN_BETWEEN = planted({b"left > 0 and first and": b"false and"}, LEAVE)
"""A writer that leaves, and was not the first, does not wake the readers behind it."""

STAYS_MARKED = planted({b"if live and live % 1 > 0 then\n": b"if false then\n"}, LEAVE_SHARED)
"""A reader that gives back its share is still marked as one that has it."""

NEXT_UNTOLD = planted({b"news, first = true, ": b"first = "}, LEAVE)
"""A writer that leaves, and was the first, does not wake the next one while others hold."""

UNWOKEN = {
    "only first": (ONLY_FIRST, "W1"),
    "skips nobody": (SKIPS_NOBODY, "W2"),
    "sharers too": (SHARERS_TOO, "W2"),
    "a writer in between": (WRITER_IN_BETWEEN, "W1"),
    "stays marked": (STAYS_MARKED, "W1"),
    "next untold": (NEXT_UNTOLD, "W3"),
}


@pytest.mark.promise("S9")
@pytest.mark.parametrize("name", UNWOKEN)
def test_a_defect_of_wake_ups_is_found(name: str) -> None:
    wrong, breaks = UNWOKEN[name]
    kinds = "wwrr" if breaks == "W3" else "rwr"
    found = search(Waking(kinds, wrong, looked_for=("W1", "W2", "W3")), MOST)
    assert found.broken.startswith(breaks), str(found)
