"""The fake master hands locks over as real servers do, one or several."""

import asyncio
from collections.abc import Iterator
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from redlock_aio._rules import protocol
from redlock_aio._rules.handing import Handed, adoption
from redlock_aio._rules.keys import Key, Keys
from redlock_aio._rules.scripts import pack
from redlock_aio.testing import EmbeddedMaster

from .servers import process
from .test_fake_is_verified import (
    ANY_LEAD,
    AT_ANY_TIME,
    NUMBERS,
    QUEUED,
    TOKENS,
    fenced_requests,
    tell_both,
    tokens,
    ttls,
)

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def server(kind: str) -> Iterator[EmbeddedMaster]:
    with process(kind) as master:
        yield master


def handing_requests(names: list[bytes]) -> st.SearchStrategy[bytes]:
    """Build what is said about locks, one or several, that go from hand to hand."""
    several = st.lists(st.sampled_from(names), min_size=1, max_size=2, unique=True)
    locks = several.map(lambda names: Key(names[0]) if len(names) == 1 else Keys(map(Key, names)))
    handed = st.builds(
        lambda value, ttl, fence: Handed(("r",), value, ttl, 0.0, ttl, "", fence),
        tokens, ttls, st.sampled_from(NUMBERS),
    )  # fmt: skip
    return st.one_of(
        st.builds(adoption, locks, st.none(), handed, tokens),
        st.builds(
            lambda key, lead, handed, value: adoption(key, key.counter(lead), handed, value),
            locks,
            st.sampled_from([ANY_LEAD] * 9 + [7_000_000]),
            handed,
            tokens,
        ),
        st.builds(protocol.acquire, st.sampled_from(names), tokens, ttls),
        st.builds(pack, st.just(b"DEL"), st.sampled_from(names)),
        fenced_requests(names),
    )


@given(story=st.lists(handing_requests(QUEUED), min_size=5, max_size=30))
@settings(
    max_examples=40,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
def test_the_fake_master_hands_over_as_a_real_one(
    server: EmbeddedMaster, story: list[bytes]
) -> None:
    """As above, where locks go from one value to another."""

    asyncio.run(tell_both(server, story))


@pytest.mark.promise("S7")
def test_several_are_handed_over_as_by_a_real_one(server: EmbeddedMaster) -> None:
    """All or none, again, beyond the counters and not, and a counter that is kept for longer."""
    both = Keys(map(Key, QUEUED))
    counter = both.counter(ANY_LEAD)
    mine, theirs = TOKENS
    fence = 1_700_000_000_000_001
    handed = Handed(("r",), mine, 60_000, 0.0, 60_000, "", fence)

    strict = both.counter(7_000_000)
    far = replace(handed, fence=2**53 - 2)

    def says(number: int, value: int) -> bytes:
        return pack(b"SET", counter.keys[number], b"%d" % value, b"PX", b"60000")

    story = [
        adoption(both, None, handed, theirs),
        both.acquire(mine, 30_000),
        adoption(both, None, handed, theirs),
        adoption(both, None, handed, theirs),
        pack(b"DEL", both[1]),
        adoption(both, None, handed, theirs),
        protocol.acquire(both[1], mine, 30_000),
        adoption(both, None, handed, theirs),
        both.release(theirs),
        counter.acquire(mine, 30_000, fence, AT_ANY_TIME),
        says(0, fence),
        says(1, fence - 1),
        adoption(both, counter, handed, theirs),
        says(1, fence + 1),
        adoption(both, counter, handed, theirs),
        counter.lift(theirs, fence, fence + 1),
        adoption(both, counter, handed, theirs),
        says(1, fence - 1),
        counter.lift(theirs, fence, fence + 1),
        adoption(both, counter, handed, theirs),
        adoption(both, strict, far, theirs),
        says(1, far.fence),
        adoption(both, strict, far, theirs),
        says(0, far.fence),
        adoption(both, strict, far, theirs),
        pack(b"DEL", counter.keys[1]),
        pack(b"DEL", both[0]),
        adoption(both, counter, handed, theirs),
    ]
    asyncio.run(tell_both(server, story))
