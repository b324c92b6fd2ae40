"""
One command that extends several leases does the same as one command for each of them, in turn.

The other proofs extend one lease at a time. By this one they hold for several as well: for each
lease a command for many is one of the interleavings that they search.

Runs what is shipped: `extend.lua`, and the bytes that `commands.extend` packs for it.

Models itself: one master, whose keys are in every state that the script tells apart.
"""

import functools
import itertools
import math
from typing import NamedTuple

import pytest

from redlock_aio._protocol import commands
from redlock_aio._protocol.commands import Extension
from redlock_aio._protocol.primitives import FencingCounter, JointMutex, Mutex
from redlock_aio._protocol.scripts import EXTEND
from redlock_aio.testing._fake_lua import Error, lua

from .masters import MasterKeys, words

pytestmark = [pytest.mark.promise("S1"), pytest.mark.promise("S4"), pytest.mark.promise("S7")]

OURS, THEIRS = b"ours", b"theirs"
"""What a lock's key may hold: the token of its lease, or another one."""

FENCE, BEFORE, TTL = 7, 500, 1000
OTHER_TYPE = None
"""Stands for a key that holds a sorted set."""

LOCKS = (b"", OURS, THEIRS, OTHER_TYPE)
"""The same; empty if there is no key."""

LOWER, EQUAL, BEYOND = b"%016d" % 6, b"%016d" % FENCE, b"%016d" % 8
MARKED, MARKED_BY_OTHERS = BEYOND + b".0000" + EQUAL, BEYOND + b".0000" + LOWER
COUNTERS = (b"", LOWER, EQUAL, BEYOND, MARKED, MARKED_BY_OTHERS, b"junk", OTHER_TYPE)


class Lease(NamedTuple):
    """One lease as one master knows it: what its keys hold, and its counters if it has a token."""

    locks: tuple[bytes | None, ...]
    counters: tuple[bytes | None, ...] = ()


PLAIN = [Lease((lock,)) for lock in LOCKS]
FENCED = [Lease((lock,), (counter,)) for lock in LOCKS for counter in COUNTERS]
JOINT = [Lease(two) for two in itertools.product(LOCKS, repeat=2)]
JOINT_FENCED = [
    Lease(locks, counters)
    for locks in itertools.product(LOCKS[:3], repeat=2)
    for counters in itertools.product((b"", LOWER, BEYOND, MARKED), repeat=2)
]
SINGLE = [*PLAIN, *FENCED]
EVERY = [*SINGLE, *JOINT, *JOINT_FENCED]


def extension(number: int, lease: Lease) -> Extension:
    """Return the part of the command about the lease with this *number*."""
    names = [Mutex(b"%d.%d" % (number, i)) for i in range(len(lease.locks))]
    token, ttl = token_of(number), TTL + number
    if lease.counters:
        return FencingCounter(names, 0).extension(token, ttl, FENCE)
    return (JointMutex(names) if len(names) > 1 else names[0]).extension(token, ttl)


def token_of(number: int) -> bytes:
    """Return the token of the lease with this *number*."""
    return b"%b %d" % (OURS, number)


def keys_of(number: int, lease: Lease) -> dict[bytes, bytes | None]:
    """Return what the keys of the lease with this *number* hold."""
    names = [b"%d.%d" % (number, i) for i in range(len(lease.locks))]
    counters = FencingCounter(names, 0).keys[: len(lease.counters)]
    values = [token_of(number) if value == OURS else value for value in lease.locks]
    return dict(zip((*names, *counters), (*values, *lease.counters), strict=True))


BEGAN = 1.0 + BEFORE / 1000
"""When the keys end before any extension, in seconds on the master's clock."""

Executed = tuple[object, dict[bytes, tuple[object, float]]]
"""A master's reply, and its keys afterwards, each with its value and its end."""


def executed(leases: dict[int, Lease], sha: bytes = EXTEND.sha) -> Executed:
    """Extend all *leases* by one command, on a master in the state that they describe."""
    master = MasterKeys(1.0)
    for number, lease in leases.items():
        for key, value in keys_of(number, lease).items():
            if value is OTHER_TYPE:
                master.data.zadd(key, 1.0, b"member")
            elif value:
                master.data.set(key, value, BEFORE)
    command = words(commands.extend(*[extension(*lease) for lease in leases.items()]))
    command[1] = sha
    try:
        reply = master.run(command)
    except Error as error:
        reply = error
    return plain(reply), dict(master.data.keys)


def plain(reply: object) -> object:
    """Return *reply* so that equal errors are equal."""
    if isinstance(reply, list):
        return [plain(each) for each in reply]
    return str(reply) if isinstance(reply, Error) else reply


@functools.cache
def alone(number: int, lease: Lease) -> Executed:
    """Execute a command that extends only this lease."""
    return executed({number: lease})


def differs(*leases: Lease, sha: bytes = EXTEND.sha) -> bool:
    """Return whether one command for all *leases* does not do the same as one for each."""
    reply, keys = executed(dict(enumerate(leases)), sha)
    each = list(itertools.starmap(alone, enumerate(leases)))
    expected = {key: value for _, after in each for key, value in after.items()}
    return reply != [reply for reply, _ in each] or keys != expected


def test_what_is_extended_alone_is_extended_as_it_should_be() -> None:
    """The comparison is with the right results: a lease with another value is never changed."""
    for lease in EVERY:
        reply, keys = alone(0, lease)
        extended = [until for _, until in keys.values() if until not in (BEGAN, math.inf)]
        assert (reply == b"OK") == bool(extended), lease
        assert reply != b"OK" or set(lease.locks) == {OURS}, lease
        assert reply != b"OK" or BEYOND not in lease.counters, lease


@pytest.mark.parametrize(
    ("leases", "others"),
    [(EVERY, PLAIN), ([*SINGLE, *JOINT], FENCED)],
    ids=["any and a plain one", "any and a fenced one"],
)
def test_two_leases_are_extended_as_by_two_commands(
    leases: list[Lease], others: list[Lease]
) -> None:
    for one, other in itertools.product(leases, others):
        assert not differs(one, other), (one, other)
        assert not differs(other, one), (other, one)


@pytest.mark.full
def test_any_two_leases_are_extended_as_by_two_commands() -> None:
    for two in itertools.product(EVERY, repeat=2):
        assert not differs(*two), two


def test_three_leases_are_extended_as_by_three_commands() -> None:
    for three in itertools.product(PLAIN, FENCED, PLAIN):
        assert not differs(*three), three


DEFECTS = {
    "the first refusal is that of all": (
        b"    first = first + (fence",
        b"    if replies[#replies] == 0 then break end\n    first = first + (fence",
    ),
    "counters are taken for locks": (b"locks or 2 * locks", b"locks or locks"),
    "one token for all": (b"locks, ARGV[i + 1], ARGV[i + 2]", b"locks, ARGV[4], ARGV[i + 2]"),
    "an error ends the script": (
        b'holder = redis.pcall("GET", KEYS[i])', b'holder = redis.call("GET", KEYS[i])',
    ),
    "a counter's error ends the script": (
        b'counter = redis.pcall("GET"', b'counter = redis.call("GET"',
    ),
    "the first fencing token counts for all": (b"ARGV[i + 3]", b"ARGV[6]"),
}  # fmt: skip


@pytest.mark.parametrize("name", DEFECTS)
def test_a_defect_is_found(name: str) -> None:
    right, wrong = DEFECTS[name]
    assert EXTEND.text.count(right) == 1
    sha = lua().load(EXTEND.text.replace(right, wrong))
    assert any(differs(*two, sha=sha) for two in itertools.product(SINGLE, repeat=2))
