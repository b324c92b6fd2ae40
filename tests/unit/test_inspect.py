"""Reading the state of a lock on five masters in memory, in virtual time."""

import asyncio

import pytest

from redlock_aio import Answer, LockState, QuorumUnavailableError, Redlock, RedlockError
from redlock_aio._protocol import commands, scripts
from redlock_aio._rules.lock_value import named
from redlock_aio.testing import FakeMaster, cancelled_at

from .kit import (
    LATENCY,
    commands_received,
    execute,
    fence,
    hang,
    in_coroutine,
    keys,
    kill,
    now,
    occupy,
    ran,
    restart,
    resume,
    slow,
)

TIMEOUT = 0.05


def fill(masters: list[FakeMaster], value: str, ttl: int | None = None) -> None:
    for master in masters:
        master.set("r", value, ttl)


def answers(state: LockState) -> list[Answer]:
    return [view.answer for view in state.views]


# The state


async def test_a_lock_that_is_free(redlock: Redlock, masters: list[FakeMaster]) -> None:
    for master in masters:
        master.commands.clear()
    began = now()
    state = await redlock.inspect("r")
    assert not await redlock.is_locked("r")

    assert now() - began == pytest.approx(2 * LATENCY)
    assert commands_received(masters) == [2] * 5  # one look from each call
    assert [ran(master, scripts.INSPECT) for master in masters] == [1] * 5
    assert not state.locked
    assert state.certain
    assert (state.holder, state.remaining, state.fencing_counter) == (None, None, None)
    assert state.waiters == 0
    assert answers(state) == [Answer.FREE] * 5
    # The request does not track the key: that would cost the masters memory.
    assert [master._pushes.remembered for master in masters] == [[]] * 5


async def test_a_lock_that_this_process_holds(redlock: Redlock) -> None:
    async with redlock.lock("r", ttl=10_000, fencing=True) as lease:
        state = await redlock.inspect("r")
        assert state.holder is not None
        assert state.holder.fingerprint == lease.fingerprint
        assert state.remaining == pytest.approx(9_998, abs=2)
        assert state.fencing_counter == lease.fencing_token
        assert [view.master for view in state.views] == [f"m{i}" for i in range(5)]
        assert lease.token not in repr(state) + str(state)
        assert await redlock.is_locked("r")
    assert not await redlock.is_locked("r")
    assert (await redlock.inspect("r")).fencing_counter == lease.fencing_token


async def test_a_lock_that_others_hold(masters: list[FakeMaster]) -> None:
    """The state has the holder's name and metadata; a key prefix is part of the key."""
    holder = named("web-1:42").decode() + '{"job":"nightly"}'
    for number, master in enumerate(masters):
        master.set("app:r", ("a" if number else "b") * 28 + holder, None if number else 5_000)
    async with Redlock(masters, key_prefix="app:", restart_guard="off") as redlock:
        state = await redlock.inspect("r")
        assert (state.resource, state.locked, state.remaining) == ("r", True, None)
        assert [view.master for view in state.orphaned] == ["m0"]
        assert state.holder is not None
        assert (state.holder.name, state.holder.metadata) == ("web-1:42", {"job": "nightly"})
        assert "a" * 28 not in repr(state) + str(state)
        assert await redlock.is_locked("r")
        assert not await redlock.is_locked("app:r")


@pytest.mark.parametrize(
    "values", ["aaa--", "--aaa", "aa---", "-----", "ab---", "aabb-", "aabbc", "abcde", "aaabb"]
)
async def test_it_is_locked_with_one_value_on_a_majority_and_never_without(
    redlock: Redlock, masters: list[FakeMaster], values: str
) -> None:
    for master, value in zip(masters, values, strict=True):
        if value != "-":
            master.set("r", value)
    state = await redlock.inspect("r")

    held = values.count("a") >= 3
    assert await redlock.is_locked("r") is state.locked is held
    assert state.certain
    kept = values.replace("-", "")
    assert state.split == (not held and len(set(kept)) > 1)
    assert len(state.orphaned) == len(kept.replace("a", "") if held else kept)


async def test_waiters_of_a_fair_queue_are_counted_without_the_holder(
    redlock: Redlock, masters: list[FakeMaster]
) -> None:
    async def use(seconds: float) -> None:
        async with redlock.lock("r", fair=True):
            await asyncio.sleep(seconds)

    async def waiters() -> int:
        return (await redlock.inspect("r")).waiters

    tasks = [asyncio.create_task(use(seconds)) for seconds in (0.5, 5, 0, 0)]
    await asyncio.sleep(0.1)
    assert await waiters() == 3
    await asyncio.sleep(0.5)
    assert await waiters() == 2
    await asyncio.sleep(4)
    assert await waiters() == 2, "also when the holder's place in the queue has ended"
    assert await redlock.is_locked("r")
    await asyncio.wait(tasks)
    assert await waiters() == 0
    occupy(masters)
    waiter = asyncio.create_task(redlock.lock("r", fair=True).acquire())
    await asyncio.sleep(0.1)
    assert await waiters() == 1, "behind a holder that was in no queue"
    entry = commands.QueueEntry(b"dead/1", priority=1, lives=50, most=9, not_after=2**53)
    for master in masters:
        execute(master, commands.enqueue((b"r", *commands.queue_keys(b"r")), b"?", 500, entry))
    assert await waiters() == 2
    await asyncio.sleep(0.1)
    assert await waiters() == 1, "the other one is dead"
    waiter.cancel()
    await asyncio.wait([waiter])
    await asyncio.sleep(0.1)
    assert await waiters() == 0


# Masters that fail


@pytest.mark.promise("S6")
@pytest.mark.parametrize("held", [True, False])
@pytest.mark.parametrize("hung", [1, 2, 3, 5])
async def test_masters_that_hang(
    redlock: Redlock, masters: list[FakeMaster], hung: int, *, held: bool
) -> None:
    """An inspection waits one timeout for them, `is_locked` only while the result is open."""
    if held:
        occupy(masters)
    hang(masters[:hung])
    began = now()
    state = await redlock.inspect("r")

    assert now() - began == pytest.approx(TIMEOUT)
    expected = Answer.HELD if held else Answer.FREE
    assert answers(state) == [Answer.TIMED_OUT] * hung + [expected] * (5 - hung)
    assert state.locked == (held and hung < 3)
    assert state.certain == (hung < 3)
    began = now()
    if hung < 3:
        assert await redlock.is_locked("r") is held
        assert now() - began == pytest.approx(LATENCY)
    else:
        with pytest.raises(QuorumUnavailableError):
            await redlock.is_locked("r")
        assert now() - began == pytest.approx(TIMEOUT)


async def test_too_few_answers_are_an_error_that_names_each_vote(
    redlock: Redlock, masters: list[FakeMaster]
) -> None:
    occupy(masters[:2])
    hang(masters[3:])
    with pytest.raises(QuorumUnavailableError) as caught:
        await redlock.is_locked("r")

    error = caught.value
    assert error.attempts == 0
    assert [vote.answer for vote in error.votes] == [
        Answer.HELD, Answer.HELD, Answer.FREE, Answer.TIMED_OUT, Answer.TIMED_OUT,
    ]  # fmt: skip
    assert str(error) == (
        "'r': too few masters answered in 50 ms (m0: held by another; m1: held by another;"
        " m2: held by nobody; m3: timed out; m4: timed out)"
        " [too-few-masters]"
    )


@pytest.mark.parametrize("dead", [1, 3])
async def test_masters_that_are_down_cost_no_time(
    redlock: Redlock, masters: list[FakeMaster], dead: int
) -> None:
    occupy(masters)
    slow(masters, 0.02)
    task = asyncio.create_task(redlock.inspect("r"))
    await asyncio.sleep(0.005)
    kill(masters[:dead])
    assert answers(await task) == [Answer.UNREACHABLE] * dead + [Answer.HELD] * (5 - dead)
    slow(masters, LATENCY)
    await asyncio.sleep(0.1)
    began = now()
    state = await redlock.inspect("r")

    assert now() - began <= LATENCY * 1.01
    assert answers(state) == [Answer.UNREACHABLE] * dead + [Answer.HELD] * (5 - dead)
    if dead < 3:
        assert await redlock.is_locked("r")
    else:
        with pytest.raises(QuorumUnavailableError):
            await redlock.is_locked("r")


async def test_the_remaining_time_counts_from_each_reply(
    redlock: Redlock, masters: list[FakeMaster]
) -> None:
    masters[0].latency = 0.04
    fill(masters, "theirs", ttl=1_000)
    state = await redlock.inspect("r")

    assert answers(state) == [Answer.HELD] * 5
    assert state.views[1].remaining == pytest.approx(1_000 - 40, abs=1)
    assert state.views[0].remaining == pytest.approx(1_000 - 20, abs=1)
    assert state.remaining == state.views[1].remaining


async def test_a_key_of_another_type_is_an_error_of_that_master(
    redlock: Redlock, masters: list[FakeMaster]
) -> None:
    """A counter or a queue of another type counts as missing."""
    masters[0]._data.zadd(b"r", 1.0, b"x")
    masters[1]._data.zadd(fence().encode(), 1.0, b"x")
    masters[2]._data.set(commands.queue_keys(b"r")[0], b"x")
    occupy(masters[1:])
    state = await redlock.inspect("r")

    assert answers(state) == [Answer.ERROR] + [Answer.HELD] * 4
    assert state.views[0].detail == "WRONGTYPE the key holds a zset, not a lock"
    assert await redlock.is_locked("r")


async def test_a_script_that_masters_have_lost_is_sent_again_once(
    redlock: Redlock, masters: list[FakeMaster]
) -> None:
    occupy(masters)
    for master in masters[:4]:
        master.execute([b"SCRIPT", b"FLUSH"])
    began = now()
    assert answers(await redlock.inspect("r")) == [Answer.HELD] * 5
    assert now() - began == pytest.approx(2 * LATENCY)
    assert ran(masters[0], scripts.INSPECT) == 2

    masters[0].error = "NOSCRIPT No matching script."
    assert answers(await redlock.inspect("r")) == [Answer.ERROR] + [Answer.HELD] * 4
    assert ran(masters[0], scripts.INSPECT) == 4
    masters[0].error = ""

    masters[4].execute([b"SCRIPT", b"FLUSH"])
    task = asyncio.create_task(redlock.inspect("r"))
    await asyncio.sleep(LATENCY * 1.2)
    masters[4].kill()  # before it has replied to the second request
    assert answers(await task) == [Answer.HELD] * 4 + [Answer.UNREACHABLE]


async def test_a_quarantined_master_is_shown_and_does_not_count(masters: list[FakeMaster]) -> None:
    async with Redlock(masters):
        occupy(masters)
    restart(masters[:3])
    occupy(masters[:3])
    async with Redlock(masters) as redlock:
        await asyncio.sleep(2)
        state = await redlock.inspect("r")
        assert answers(state) == [Answer.QUARANTINED] * 3 + [Answer.HELD] * 2
        assert all(view.holder == state.views[4].holder for view in state.views)
        assert all("it votes again in" in view.detail for view in state.views[:3])
        assert not state.locked
        assert not state.certain
        with pytest.raises(QuorumUnavailableError, match=r"m0: quarantined, .*it votes again in"):
            await redlock.is_locked("r")
        await asyncio.sleep(120)
        assert (await redlock.inspect("r")).locked
        assert await redlock.is_locked("r")


# Calls


@pytest.mark.parametrize("call", ["inspect", "is_locked"])
async def test_a_first_call_connects_the_manager(masters: list[FakeMaster], call: str) -> None:
    occupy(masters)
    redlock = Redlock(masters, restart_guard="off")
    state = await getattr(redlock, call)("r")
    assert state is True or answers(state) == [Answer.HELD] * 5
    await redlock.aclose()


@pytest.mark.parametrize("call", ["inspect", "is_locked", "force_release"])
async def test_a_closed_manager_ends_and_refuses_calls(
    masters: list[FakeMaster], call: str
) -> None:
    occupy(masters)
    async with Redlock(masters, restart_guard="off") as redlock:
        hang(masters)
        task = asyncio.ensure_future(getattr(redlock, call)("r"))
        await asyncio.sleep(0.01)
    for ended in (task, getattr(redlock, call)("r")):
        with pytest.raises(RedlockError, match="closed"):
            await ended


@pytest.mark.parametrize("name", ["", "x" * 513, "a\nb", "redlock_aio:x", "\ud800"])
async def test_a_bad_name_is_refused_as_by_a_lock(redlock: Redlock, name: str) -> None:
    with pytest.raises(ValueError, match="resource") as refused:
        redlock.lock(name)
    for call in (redlock.inspect, redlock.is_locked, redlock.force_release):
        with pytest.raises(ValueError, match="resource") as caught:
            await call(name)
        assert str(caught.value) == str(refused.value)
        with pytest.raises(TypeError, match="resource"):
            await call(7)  # type: ignore[arg-type]


@pytest.mark.promise("S3")
@pytest.mark.parametrize("hung", [0, 3])
@pytest.mark.parametrize("call", ["inspect", "is_locked"])
async def test_a_cancellation_changes_nothing(
    redlock: Redlock, masters: list[FakeMaster], call: str, hung: int
) -> None:
    occupy(masters)
    hang(masters[:hung])
    for place in (1, 2, 3):
        asked = getattr(redlock, call)("r")
        task = asyncio.ensure_future(in_coroutine(cancelled_at(place, asked)))
        await asyncio.wait([task])
        if not task.cancelled():
            assert isinstance(task.exception(), QuorumUnavailableError | None)
            break
    assert place == 2
    resume(masters)
    await asyncio.sleep(0.2)
    assert keys(masters) == [{"r": "theirs"}] * 5
    assert (await redlock.inspect("r")).locked
