"""The fake master does to several locks at once what real servers do, and tells the same."""

import asyncio
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from redlock_aio._rules import protocol
from redlock_aio._rules.fencing import Counter
from redlock_aio._rules.keys import Key, Keys
from redlock_aio._rules.protocol import CACHING
from redlock_aio._rules.scripts import pack
from redlock_aio.testing import EmbeddedMaster

from . import test_fake_is_verified as one, test_fake_pushes_are_verified as pushes
from .servers import process
from .test_fake_pushes_are_verified import Story, gone, words

pytestmark = pytest.mark.integration

NAMES = one.QUEUED
BOTH = Keys(Key(name) for name in NAMES)
STRANGE = [b"7", b"007", b"%020d" % 2**50, b"%d" % 2**53, b"junk", b""]
keys = st.sampled_from(NAMES)


@pytest.fixture(scope="module")
def server(kind: str) -> Iterator[EmbeddedMaster]:
    with process(kind) as master:
        yield master


def zadd(key: bytes) -> bytes:
    """Let somebody make a sorted set of a lock: by the one script that makes any, in the fake."""
    names = (b"elsewhere", key, b"elsewhere too")
    return protocol.enqueue(
        names, b"?", 60_000, member=b"me/1", priority=1, lives=60_000, most=9,
        not_after=one.AT_ANY_TIME,
    )  # fmt: skip


def plain_requests() -> st.SearchStrategy[bytes]:
    """Build what is said about both, and about one of them, without tokens and queues."""
    tokens, ttls = one.tokens, one.ttls
    return st.one_of(
        st.builds(BOTH.acquire, tokens, ttls),
        st.builds(BOTH.acquire, tokens, ttls),
        st.builds(BOTH.extend, tokens, ttls),
        st.builds(BOTH.restore, tokens, ttls),
        st.builds(BOTH.release, tokens),
        st.just(BOTH.look()),
        st.builds(protocol.acquire, keys, tokens, ttls),
        st.builds(protocol.release, keys, tokens),
        st.builds(pack, st.just(b"DEL"), keys),
    )


def fenced_requests() -> st.SearchStrategy[bytes]:
    """Build what is said about both with a counter for each."""
    numbers = st.sampled_from(one.NUMBERS)
    times = st.sampled_from([one.AT_ANY_TIME] * 4 + [one.AT_NO_TIME])
    leads = st.sampled_from([one.ANY_LEAD] * 9 + [7_000_000])
    counters = st.builds(lambda lead: Counter(BOTH, lead), leads)
    tokens, ttls = one.tokens, one.ttls
    return st.one_of(
        st.builds(Counter.acquire, counters, tokens, ttls, numbers, times),
        st.builds(Counter.acquire, counters, tokens, ttls, numbers, times),
        st.builds(Counter.raise_to, counters, numbers, tokens),
        st.builds(Counter.extend, counters, tokens, ttls, numbers),
        st.builds(Counter.lift, counters, tokens, numbers, numbers),
        st.builds(Counter.restore, counters, tokens, ttls, numbers, numbers),
        st.builds(one.set_counter, keys, st.sampled_from(STRANGE)),
        one.fenced_requests(NAMES),
        plain_requests(),
    )


def queue_requests() -> st.SearchStrategy[bytes]:
    """Build what is said about both, by those who wait in their queues."""
    names = (*NAMES, *protocol.queue_keys(*NAMES))
    counter = Counter(BOTH, one.ANY_LEAD)
    tokens, ttls, members = one.tokens, one.ttls, one.members
    enqueues = st.builds(
        lambda token, ttl, member, place, most, fence: protocol.enqueue(
            names + (counter.keys if fence else ()), token, ttl,
            member=member, priority=place, lives=60_000, most=most, not_after=one.AT_ANY_TIME,
            fence=counter.proposed(fence) if fence else (),
        ),
        tokens, ttls, members, st.sampled_from([1, 2, 2**51]), st.integers(1, 4),
        st.sampled_from([0, 1_700_000_000_000_001]),
    )  # fmt: skip
    either = st.booleans()
    leaves = st.builds(protocol.leave, st.just(names), tokens, members, stay=either, keep=either)
    return st.one_of(
        enqueues, enqueues, leaves, st.builds(zadd, keys), one.queue_requests(NAMES),
        plain_requests(),
    )  # fmt: skip


@pytest.mark.parametrize("requests", [plain_requests, fenced_requests, queue_requests])
def test_the_fake_master_does_to_several_as_a_real_one(
    server: EmbeddedMaster, requests: object
) -> None:
    """After each request the answers, the values and the times left are the same."""

    @given(story=st.lists(requests(), min_size=5, max_size=25))  # type: ignore[operator]
    @settings(max_examples=30, suppress_health_check=[HealthCheck.too_slow])
    def tell(story: list[bytes]) -> None:
        asyncio.run(one.tell_both(server, story))

    tell()


@pytest.mark.promise("S7")
def test_the_counters_of_several_are_those_of_a_real_one(server: EmbeddedMaster) -> None:
    """One beyond the highest, whichever that is; a lock of one in between; a part that is gone."""
    mine, theirs = one.TOKENS
    both, strict = Counter(BOTH, one.ANY_LEAD), Counter(BOTH, 7_000_000)
    at, low = one.AT_ANY_TIME, 1_700_000_000_000_001
    story = [
        both.acquire(mine, 60_000, 5, one.AT_NO_TIME),
        strict.acquire(mine, 60_000, 5, at),
        strict.acquire(mine, 60_000, 2**53 - 1, at),
    ]
    for name, other in (NAMES, NAMES[::-1]):
        single = Counter((name,), one.ANY_LEAD)
        story += [
            pack(b"SET", single.keys[0], b"%d" % (low + 70)),
            both.acquire(mine, 60_000, low, at),
            both.acquire(mine, 60_000, low, at),
            single.acquire(theirs, 60_000, low, at),
            both.extend(mine, 70_000, low + 70),
            both.extend(mine, 70_000, low + 71),
            both.raise_to(low + 80, theirs),
            both.raise_to(low + 80, mine),
            both.raise_to(low + 75, mine),
            pack(b"SET", single.keys[0], b"%d" % (low + 90)),
            both.raise_to(low + 85, mine),
            both.extend(mine, 70_000, low + 85),
            pack(b"DEL", other),
            both.acquire(mine, 60_000, low, at),
            both.raise_to(low + 99, mine),
            both.extend(mine, 70_000, low + 99),
            both.restore(mine, 70_000, low + 99),
            pack(b"DEL", single.keys[0]),
            both.extend(mine, 70_000, low + 99),
            both.lift(mine, low + 99, low + 110),
            both.extend(mine, 70_000, low + 99),
            both.extend(mine, 70_000, low + 100),
            pack(b"SET", single.keys[0], b"%d" % (low + 120)),
            pack(b"DEL", name),
            both.lift(mine, low + 99, low + 120),
            both.restore(mine, 70_000, low + 99, low + 119),
            both.lift(mine, low + 99, low + 120),
            both.extend(mine, 70_000, low + 99),
            both.restore(mine, 70_000, low + 99, low + 120),
            both.extend(mine, 70_000, low + 99),
            both.raise_to(low + 119, mine),
            single.extend(mine, 70_000, low + 99),
            single.acquire(mine, 70_000, low + 99, at),
            pack(b"DEL", name),
            BOTH.release(mine),
            both.acquire(mine, 60_000, low, at),
            BOTH.release(mine),
            pack(b"FLUSHALL"),
        ]
    asyncio.run(one.tell_both(server, story))


def test_who_waits_for_several_is_answered_as_by_a_real_one(server: EmbeddedMaster) -> None:
    """First in one queue only, a part that is ours or somebody else's, counters that differ."""
    mine, theirs = one.TOKENS
    counters = Counter(BOTH, one.ANY_LEAD)

    def ask(
        token: bytes, member: bytes, *names: bytes, most: int = 9, fenced: bool = True
    ) -> bytes:
        counter = Counter(names, one.ANY_LEAD)
        keys = (*names, *protocol.queue_keys(*names), *(counter.keys if fenced else ()))
        return protocol.enqueue(
            keys, token, 60_000, member=member, priority=5, lives=60_000, most=most,
            not_after=one.AT_ANY_TIME, fence=counter.proposed(5) if fenced else (),
        )  # fmt: skip

    story = []
    for name, other in (NAMES, NAMES[::-1]):
        leave = protocol.leave((*NAMES, *protocol.queue_keys(*NAMES)), mine, b"me/1", stay=False)
        story += [
            ask(theirs, b"a/1", name),
            ask(mine, b"me/1", *NAMES),
            pack(b"DEL", name),
            ask(mine, b"me/1", *NAMES),
            protocol.leave((name, *protocol.queue_keys(name)), theirs, b"a/1", stay=False),
            pack(b"SET", counters.keys[0], b"1800000000000007"),
            pack(b"SET", counters.keys[1], b"1800000000000001"),
            ask(mine, b"me/1", *NAMES),
            ask(mine, b"me/1", *NAMES),
            pack(b"DEL", name),
            ask(mine, b"me/1", *NAMES, fenced=False),
            pack(b"SET", other, theirs, b"PX", b"60000"),
            ask(mine, b"me/1", *NAMES),
            pack(b"SET", name, theirs),
            ask(mine, b"me/1", *NAMES),
            ask(b"?", b"you/1", name, most=1),
            ask(b"?", b"you/1", name, most=2),
            ask(b"?", b"you/2", *NAMES, most=2),
            leave,
            leave,
            pack(b"FLUSHALL"),
        ]
    asyncio.run(one.tell_both(server, story))


def test_what_stays_for_longest_is_told_as_by_a_real_one(server: EmbeddedMaster) -> None:
    mine, theirs = one.TOKENS
    names = (*NAMES, *protocol.queue_keys(*NAMES))
    looks = [
        BOTH.acquire(mine, 60_000),
        BOTH.release(mine),
        protocol.enqueue(
            names, mine, 60_000, member=b"me/1", priority=1, lives=60_000, most=9,
            not_after=one.AT_ANY_TIME,
        ),
        protocol.leave(names, mine, b"me/1", stay=False),
    ]  # fmt: skip
    story = []
    for name, other in (NAMES, NAMES[::-1]):
        for ttl in ([], [b"PX", b"50000"]):
            story += [
                pack(b"SET", name, theirs, *ttl),
                pack(b"SET", other, b"c" * 40, b"PX", b"10000"),
                *looks,
            ]
    asyncio.run(one.tell_both(server, story))


def test_what_is_no_lock_does_not_keep_the_others_from_being_freed(server: EmbeddedMaster) -> None:
    token, other = one.TOKENS
    names = (*NAMES, *protocol.queue_keys(*NAMES))
    story = []
    for name in NAMES:
        story += [
            BOTH.acquire(token, 60_000), pack(b"DEL", name), zadd(name),
            BOTH.look(), BOTH.acquire(other, 60_000), BOTH.extend(token, 70_000),
            Counter(BOTH, 0).raise_to(5, token), BOTH.restore(token, 70_000),
            BOTH.release(token), pack(b"FLUSHALL"),
            BOTH.acquire(token, 60_000), pack(b"DEL", name), zadd(name),
            protocol.leave(names, token, b"me/1", stay=False), pack(b"FLUSHALL"),
        ]  # fmt: skip
    asyncio.run(one.tell_both(server, story))


JOINT_QUEUED = (b"j", b"k", *protocol.queue_keys(b"j", b"k"))
JOINT = Keys((Key(b"j"), Key(b"k")))
TOKEN, OTHERS, LONG = pushes.TOKEN, pushes.OTHERS, pushes.LONG
MINE, THEIRS = JOINT.acquire(TOKEN, LONG), JOINT.acquire(OTHERS, LONG)
LOOK = CACHING + JOINT.look()
FREE = CACHING + JOINT.release(TOKEN)
COUNTER = Counter(JOINT, 2**53)
MY_FENCED = COUNTER.acquire(TOKEN, LONG, pushes.FENCE, 2**52)


def enqueue(token: bytes, member: bytes) -> bytes:
    return protocol.enqueue(
        JOINT_QUEUED, token, LONG, member=member, priority=5, lives=LONG, most=9, not_after=2**52
    )


BOTH_GO = words("DEL j") + words("DEL k")
STORIES = [
    Story(
        "who is next in both queues is called once",
        [
            ("me", pushes.subscribe(b"me")),
            ("you", enqueue(OTHERS, b"you/1")),
            ("me", enqueue(TOKEN, b"me/1")),
            ("you", protocol.leave(JOINT_QUEUED, OTHERS, b"you/1", stay=False)),
        ],
        [[b"subscribe", pushes.DESK, 1], [b"message", pushes.DESK, b"me/1"]],
    ),
    Story(
        "both are looked at and both change",
        [("you", THEIRS), ("me", LOOK), ("you", BOTH_GO)],
        gone(b"j", b"k"),
    ),
    Story(
        "the second is freed", [("you", THEIRS), ("me", LOOK), ("you", words("DEL k"))], gone(b"k")
    ),
    Story("both are missing and come to be", [("me", LOOK), ("you", THEIRS)], gone(b"j", b"k")),
    Story("both are taken by me", [("me", LOOK + MINE), ("you", BOTH_GO)]),
    Story(
        "a refused joint attempt changes nothing", [("you", THEIRS), ("me", LOOK), ("you", MINE)]
    ),
    Story(
        "a joint attempt is no look",
        [("me", CACHING + MINE), ("you", BOTH_GO)],
    ),
    Story(
        "a release of nothing looks at both",
        [("you", THEIRS), ("me", FREE), ("you", BOTH_GO)],
        gone(b"j", b"k"),
    ),
    Story(
        "a release of nothing sees both come to be",
        [("me", FREE), ("you", THEIRS)],
        gone(b"j", b"k"),
    ),
    Story(
        "a release frees one and looks at the other",
        [
            ("me", protocol.acquire(b"j", TOKEN, LONG)),
            ("you", words("SET k v")),
            ("me", FREE),
            ("you", words("DEL k")),
        ],
        gone(b"k"),
    ),
    Story(
        "you release both",
        [("you", MINE), ("me", LOOK), ("you", JOINT.release(TOKEN))],
        gone(b"j", b"k"),
    ),
    Story(
        "an extension of both goes on being told",
        [
            ("me", MINE + CACHING + JOINT.extend(TOKEN, LONG)),
            ("you", words("DEL k")),
            ("you", words("DEL j")),
        ],
        gone(b"k", b"j"),
    ),
    Story(
        "an extension that is refused looks",
        [("you", THEIRS), ("me", CACHING + JOINT.extend(TOKEN, LONG)), ("you", words("DEL j"))],
        gone(b"j"),
    ),
    Story(
        "a restoration goes on being told",
        [
            ("me", protocol.acquire(b"j", TOKEN, LONG) + CACHING + JOINT.restore(TOKEN, LONG)),
            ("you", BOTH_GO),
        ],
        gone(b"j", b"k"),
    ),
    Story(
        "you extend both",
        [("you", MINE), ("me", LOOK), ("you", JOINT.extend(TOKEN, LONG))],
        gone(b"j", b"k"),
    ),
    Story(
        "a fenced extension goes on being told",
        [
            ("me", MY_FENCED + CACHING + COUNTER.extend(TOKEN, LONG, pushes.FENCE + 1)),
            ("you", BOTH_GO),
        ],
        gone(b"j", b"k"),
    ),
    Story(
        "counters are raised",
        [("you", MY_FENCED), ("me", LOOK), ("you", COUNTER.raise_to(2**52, TOKEN))],
    ),
]


@pytest.fixture(scope="module")
def new(server: EmbeddedMaster) -> bool:
    """Whether the server is, or descends from, Redis 7.2 or a later one."""
    return pushes.is_new(server)


@pytest.mark.parametrize("story", STORIES, ids=str)
async def test_the_fake_master_tells_of_several_what_a_real_one_tells(
    server: EmbeddedMaster, story: Story, *, new: bool
) -> None:
    await pushes.compare(server, story, new=new)
