"""The state of a semaphore: computed from replies, and read from masters in memory."""

import asyncio
import pickle
from typing import Any

import pytest
from hypothesis import given, strategies as st

from redlock_aio import (
    Answer,
    Lease,
    LockLostError,
    LossCause,
    Redlock,
    RedlockError,
    SemaphoreState,
    SemaphoreView,
)
from redlock_aio._protocol import commands, scripts
from redlock_aio._protocol.lock_state import MasterReply
from redlock_aio._protocol.request import NoReply
from redlock_aio._protocol.semaphore_state import semaphore_state, view
from redlock_aio._rules.lock_value import fingerprint, named
from redlock_aio.testing import FakeMaster

from .kit import LATENCY, commands_received, hang, now, ran

TIMEOUT = 0.05
GRACE = 0.1 + 0.02 + 2 * TIMEOUT

A, B = b"a" * 28 + named("web-1:7") + b'{"job":"nightly"}', b"b" * 28 + named("web-2:8")
C = b"c" * 28 + named("web-3:9")
AWAY = NoReply(Answer.TIMED_OUT)


def key(number: int) -> str:
    return f"redlock_aio:permit:{{api}}#{number}"


def state(*replies: object, out: tuple[int, ...] = (), age: int = 0) -> SemaphoreState:
    given = [
        MasterReply(f"m{i}", reply, age, "has restarted" if i in out else "")
        for i, reply in enumerate(replies)
    ]
    return semaphore_state("api", 5, given)


def name(value: bytes) -> str:
    return fingerprint(value)


# The state, computed


def test_a_permit_is_held_if_a_majority_keeps_one_value() -> None:
    found = state([4, 0, A, 900, 3, B, 500], [2, 0, A, 800, 3, A, 700], [0, 0, A, 700, 3, B, 400])
    assert {number: one.fingerprint for number, one in found.holders.items()} == {
        0: name(A),
        3: name(B),
    }
    assert found.remaining == {0: 800, 3: 400}
    assert (found.claimed, found.available, found.waiters) == (2, 3, 4)
    assert found.certain


def test_grants_of_different_permits_do_not_add_up() -> None:
    found = state([0, 0, A, 900], [0, 1, A, 900], [0, 2, A, 900])
    assert (found.claimed, found.available, found.certain) == (0, 5, True)


def test_permits_beyond_those_of_the_caller_show_a_slip() -> None:
    """Another program says 50: the caller's five permits are free, and yet many hold the name."""
    replies = [0, 2, A, 900, 30, B, 900, 49, B, 900]
    found = state(replies, replies, replies)
    assert sorted(found.holders) == [2, 30, 49]
    assert (found.claimed, found.available) == (3, 4)
    assert str(found).splitlines()[0] == (
        "'api' has 1 of 5 permits held, 2 more beyond them, by programs that say more"
    )


@pytest.mark.parametrize(
    ("replies", "out", "certain", "claimed"),
    [
        ([[0], [0], [0]], (), True, 0),
        ([[0], [0], AWAY], (), True, 0),
        ([[0], AWAY, AWAY], (), False, 0),
        ([[0, 0, A, 9], [0], AWAY], (), False, 0),
        ([[0, 0, A, 9], [0, 1, B, 9], AWAY], (), False, 0),
        ([[0, 0, A, 9], [0, 0, A, 9], AWAY], (), True, 1),
        ([[0, 0, A, 9, 1, B, 9], [0, 0, A, 9], AWAY], (), False, 1),
        ([[0, 0, A, 9], [0, 0, A, 9], [0]], (0,), False, 0),
    ],
)
def test_whether_it_is_certain(
    replies: list[object], out: tuple[int, ...], certain: bool, claimed: int
) -> None:
    found = state(*replies, out=out)
    assert (found.certain, found.claimed) == (certain, claimed)


def test_a_quarantined_master_is_shown_and_does_not_count() -> None:
    found = state([0, 0, A, 900], [0, 0, A, 900], [0], out=(1,))
    assert found.holders == {}
    assert found.views[1].answer is Answer.QUARANTINED
    assert found.views[1].holders[0].fingerprint == name(A)
    assert str(found.views[1]) == (
        "m1: quarantined, has restarted; 1 permit held, which does not count"
    )


def test_the_age_of_a_reply_is_subtracted_from_the_remaining_time() -> None:
    found = state([0, 0, A, 900, 1, B, 10], [0, 0, A, 900, 1, B, 10], age=30)
    assert found.remaining == {0: 870, 1: 0}


def test_a_permit_without_a_ttl_does_not_end() -> None:
    found = state([0, 0, A, -1], [0, 0, A, -1], [0, 0, A, 50])
    assert found.remaining == {0: None}
    assert "without an end" in str(found)


@pytest.mark.parametrize("malformed", [1, [], [b"x"], [0, b"0", A, 9], [0, 0, None, 9], None, A])
def test_a_malformed_reply_is_an_error_that_holds_no_token(malformed: object) -> None:
    its = view(MasterReply("m0", malformed))
    assert its.answer is Answer.ERROR
    assert "malformed" in its.detail
    assert "aaaa" not in repr(its)


def test_the_text_names_permits_and_views() -> None:
    found = state([3, 0, A, 900, 2, B, 500], [0, 0, A, 800, 2, B, 500], AWAY)
    assert str(found).splitlines() == [
        "'api' has 2 of 5 permits held, 3 wait",
        f"  permit 0: held by web-1:7 ({name(A)}), 800 ms left",
        f"  permit 2: held by web-2:8 ({name(B)}), 500 ms left",
        "  m0: 2 permits held",
        "  m1: 2 permits held",
        "  m2: timed out",
    ]


def test_the_text_of_many_permits_is_short() -> None:
    many = [0, *(part for number in range(25) for part in (number, A, 900))]
    lines = str(state(many, many, many)).splitlines()
    assert lines[0].startswith("'api' has 5 of 5 permits held, 20 more beyond them")
    assert lines[11] == "  15 more permits"
    assert len(lines) == 1 + 10 + 1 + 3


def test_names_of_others_stay_on_one_line() -> None:
    evil = b"a" * 28 + b"@x\ny\x1b[2J"
    assert len(str(state([0, 0, evil, 9], [0, 0, evil, 9])).splitlines()) == 4
    assert "\x1b" not in str(state([0, 0, evil, 9], [0, 0, evil, 9]))


def test_an_uncertain_state_says_so() -> None:
    assert str(state([0], AWAY, AWAY)).splitlines()[0] == (
        "'api' has 0 of 5 permits held or more: too few masters have answered to tell"
    )


def test_it_is_a_value_without_tokens() -> None:
    found = state([0, 0, A, 900], [0, 0, A, 900])
    assert pickle.loads(pickle.dumps(found)) == found
    assert "aaaa" not in repr(found) + str(found)
    assert hash(found) == hash(state([0, 0, A, 900], [0, 0, A, 900]))
    assert isinstance(found.views[0], SemaphoreView)


REPLIES = st.lists(
    st.one_of(
        st.just(AWAY),
        st.dictionaries(st.integers(0, 3), st.sampled_from([A, B]), max_size=4).map(
            lambda held: [0, *(part for number in held for part in (number, held[number], 900))]
        ),
    ),
    min_size=1,
    max_size=5,
)


@given(REPLIES)
def test_it_is_certain_exactly_if_no_further_reply_could_change_the_holders(
    replies: list[Any],
) -> None:
    """The masters that are away may all keep one value for any permit, or none."""
    found = state(*replies)
    possible = []
    for number in range(5):
        for value in (A, B, C):
            instead = [0, number, value, 900]
            seen = state(*(instead if each is AWAY else each for each in replies))
            possible.append({n: holder.fingerprint for n, holder in seen.holders.items()})
    none = state(*([0] if each is AWAY else each for each in replies))
    assert none.holders == found.holders
    now = {number: holder.fingerprint for number, holder in found.holders.items()}
    assert found.certain == all(each == now for each in possible)
    assert found.claimed + found.available >= found.permits
    for text in (repr(found), str(found)):
        assert "aaaa" not in text
        assert "bbbb" not in text


# The state, read


async def test_a_semaphore_that_nobody_uses(redlock: Redlock, masters: list[FakeMaster]) -> None:
    for master in masters:
        master.commands.clear()
    began = now()
    found = await redlock.semaphore("api", permits=5).inspect()
    assert now() - began == pytest.approx(LATENCY)
    assert commands_received(masters) == [1] * 5
    assert [ran(master, scripts.INSPECT_PERMITS) for master in masters] == [1] * 5
    assert (found.claimed, found.available, found.waiters) == (0, 5, 0)
    assert found.certain
    assert [view.answer for view in found.views] == [Answer.FREE] * 5
    # The request tracks no key: 1,000 of them would cost the masters memory.
    assert [master._pushes.remembered for master in masters] == [[]] * 5


async def test_holders_and_waiters(redlock: Redlock, other: Redlock) -> None:
    ours = redlock.semaphore("api", permits=2, ttl=10_000, metadata={"job": 7})
    first, second = await ours.acquire(), await ours.acquire()
    tasks = [
        asyncio.create_task(manager.semaphore("api", permits=2).acquire())
        for manager in (redlock, other, other)
    ]
    await asyncio.sleep(0.2)
    found = await other.semaphore("api", permits=2).inspect()
    assert {number: holder.fingerprint for number, holder in found.holders.items()} == {
        first.permit: first.fingerprint,
        second.permit: second.fingerprint,
    }
    assert found.holders[0].metadata == {"job": 7}
    assert all(ms is not None and 9_700 < ms < 10_000 for ms in found.remaining.values())
    assert (found.claimed, found.available, found.waiters) == (2, 0, 3)
    assert first.token not in repr(found) + str(found)
    await first.release()
    await asyncio.sleep(0.1)
    found = await ours.inspect()
    assert (found.claimed, found.waiters) == (2, 2)  # a holder granted in the queue waits no more
    await second.release()
    await asyncio.sleep(0.1)
    for task in tasks:
        task.cancel()
    for lease in await asyncio.gather(*tasks, return_exceptions=True):
        if isinstance(lease, Lease):
            await lease.release()
    await asyncio.sleep(0.1)
    found = await ours.inspect()
    assert (found.claimed, found.waiters) == (0, 0)


async def test_holders_of_a_larger_number_are_found(redlock: Redlock, other: Redlock) -> None:
    leases = [await other.semaphore("api", permits=1000).acquire() for _ in range(8)]
    found = await redlock.semaphore("api", permits=5).inspect()
    assert sorted(found.holders) == sorted(lease.permit or 0 for lease in leases)
    assert found.claimed == 8
    assert found.available == 5 - sum((lease.permit or 0) < 5 for lease in leases)
    for lease in leases:
        await lease.release()


async def test_names_with_digits_and_braces(redlock: Redlock) -> None:
    for resource in ("api", "api#3", "a{b}c", "}{", "7"):
        async with redlock.semaphore(resource, permits=3) as lease:
            found = await redlock.semaphore(resource, permits=3).inspect()
            assert [*found.holders] == [lease.permit]
        assert (await redlock.semaphore(resource, permits=3).inspect()).claimed == 0


async def test_a_lock_of_the_same_name_is_another_thing(redlock: Redlock) -> None:
    async with redlock.lock("api"):
        assert (await redlock.semaphore("api", permits=5).inspect()).claimed == 0
    async with redlock.semaphore("api", permits=5):
        assert not (await redlock.inspect("api")).locked


async def test_masters_that_hang_or_have_other_data(
    redlock: Redlock, masters: list[FakeMaster]
) -> None:
    async with redlock.semaphore("api", permits=1):
        hang(masters[:1])
        execute = masters[1].execute
        execute([b"ZADD", key(7).encode(), b"1", b"x"])
        began = now()
        found = await redlock.semaphore("api", permits=1).inspect()
        assert now() - began >= TIMEOUT
    assert found.views[0].answer is Answer.TIMED_OUT
    assert found.views[1].answer is Answer.ERROR
    assert "zset" in found.views[1].detail
    assert (found.claimed, found.certain) == (1, True)  # two can't make a majority


async def test_dead_members_do_not_count(redlock: Redlock, masters: list[FakeMaster]) -> None:
    async with redlock.semaphore("api", permits=1) as lease:
        queue = commands.permit_keys(key(0).encode())[1]
        assert lease.permit == 0
        for master in masters:
            master.execute([b"ZADD", queue, b"1", b"x/1", b"3999999999999999", b"~x/1"])
        assert (await redlock.semaphore("api", permits=1).inspect()).waiters == 0


async def test_members_beyond_the_permits_of_the_caller_wait_too(
    redlock: Redlock, masters: list[FakeMaster]
) -> None:
    """Their holder has just gone: the index leads to their queue. The first members are dead."""
    _, queue, index = commands.permit_keys(key(40).encode())
    deadline = b"%d" % (4 * 10**15 - 4 * 10**12)
    for master in masters:
        master.execute([b"ZADD", queue, b"1", b"x/1", b"2", b"y/1"])
        master.execute([b"ZADD", queue, b"3999999999999999", b"~x/1", deadline, b"~y/1"])
        assert (await redlock.semaphore("api", permits=5).inspect()).waiters == 0
    for master in masters:
        master.execute([b"ZADD", index, b"1", b"40", b"2", b"no number"])
    assert (await redlock.semaphore("api", permits=5).inspect()).waiters == 1
    # One that follows to another permit is in two queues for a moment.
    for master in masters:
        other = commands.permit_keys(key(2).encode())[1]
        master.execute([b"ZADD", other, b"2", b"y/1", deadline, b"~y/1"])
    assert (await redlock.semaphore("api", permits=5).inspect()).waiters == 1
    assert (await redlock.semaphore("api", permits=1).inspect()).waiters == 1


async def test_a_closed_manager(masters: list[FakeMaster]) -> None:
    redlock = Redlock(masters, restart_guard="off")
    await redlock.aclose()
    with pytest.raises(RedlockError, match="closed"):
        await redlock.semaphore("api", permits=5).inspect()


# Forced releases


async def test_a_forced_release_cancels_the_body_of_the_holder(
    redlock: Redlock, other: Redlock
) -> None:
    entered, ended = asyncio.Event(), 0.0
    permit: list[int | None] = []

    async def hold() -> None:
        nonlocal ended
        async with redlock.semaphore("api", permits=3, ttl=10_000) as lease:
            permit.append(lease.permit)
            entered.set()
            try:
                await asyncio.sleep(60)
            finally:
                ended = now()

    task = asyncio.create_task(hold())
    await entered.wait()
    (number,) = permit
    assert number is not None
    began = now()
    assert await other.semaphore("api", permits=3).force_release(number)
    assert began < ended < began + GRACE
    with pytest.raises(LockLostError) as error:
        await task
    assert error.value.cause is LossCause.FORCED
    assert (await other.semaphore("api", permits=3).inspect()).claimed == 0


def is_waited_for(master: FakeMaster, number: int) -> bool:
    queue = commands.permit_keys(key(number).encode())[1]
    return bool(master._data.find(queue)[0])


@pytest.mark.parametrize("waits_for", ["it", "another"])
async def test_the_next_waiter_gets_a_permit_released_by_force(
    redlock: Redlock, other: Redlock, masters: list[FakeMaster], waits_for: str
) -> None:
    """Also one that waits in the queue of another permit is called."""
    semaphore = redlock.semaphore("api", permits=2, ttl=60_000, on_lost="flag")
    leases = {lease.permit: lease for lease in [await semaphore.acquire() for _ in range(2)]}
    waiter = asyncio.create_task(other.semaphore("api", permits=2).acquire())
    await asyncio.sleep(0.3)
    (waited,) = [number for number in range(2) if is_waited_for(masters[0], number)]
    number = waited if waits_for == "it" else 1 - waited
    began = now()
    assert await redlock.semaphore("api", permits=2).force_release(number)
    lease = await waiter
    assert now() - began < GRACE + 0.1
    assert lease.permit == number
    assert leases[number].lost.is_set()
    assert not leases[1 - number].lost.is_set()
    await lease.release()
    await leases[1 - number].release()


async def test_a_permit_that_nobody_holds(redlock: Redlock) -> None:
    assert not await redlock.semaphore("api", permits=2).force_release(1)
    for wrong in (-1, 1000):
        with pytest.raises(ValueError, match="permit must be from 0 to 999"):
            await redlock.semaphore("api", permits=2).force_release(wrong)
    with pytest.raises(ValueError, match="permit must be"):
        await redlock.semaphore("api", permits=2).force_release(True)
    with pytest.raises(TypeError, match="permit must be"):
        await redlock.semaphore("api", permits=2).force_release("1")  # type: ignore[arg-type]


async def test_a_forced_release_beyond_the_permits(redlock: Redlock, other: Redlock) -> None:
    """A program that says 50 by mistake is found by `inspect`, and made to let go."""
    semaphore = other.semaphore("api", permits=50, on_lost="flag")
    leases = [await semaphore.acquire() for _ in range(6)]
    found = await redlock.semaphore("api", permits=5).inspect()
    (slip, *_) = [number for number in found.holders if number >= 5]
    assert await redlock.semaphore("api", permits=5).force_release(slip)
    assert [lease.permit for lease in leases if lease.lost.is_set()] == [slip]
    for lease in leases:
        if not lease.lost.is_set():
            await lease.release()
