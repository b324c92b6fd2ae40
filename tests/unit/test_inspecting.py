"""Asking five masters in memory who holds a lock, in virtual time."""

import asyncio

import pytest

from redlock_aio import Answer, LockState, QuorumUnavailableError, Redlock, RedlockError
from redlock_aio._protocol import commands, scripts
from redlock_aio._rules.lock_value import named
from redlock_aio.testing import FakeMaster, cancelled_at

from .kit import LATENCY, fence, hang, in_coroutine, keys, kill, now, occupy, ran, resume, slow

TIMEOUT = 0.05


async def fill(masters: list[FakeMaster], value: str = "theirs", ttl: int | None = None) -> None:
    for master in masters:
        master.set("r", value, ttl)


def answers(state: LockState) -> list[Answer]:
    return [view.answer for view in state.views]


async def test_what_nobody_holds(redlock: Redlock) -> None:
    state = await redlock.inspect("r")

    assert not state.locked
    assert state.certain
    assert (state.holder, state.remaining, state.fencing_counter) == (None, None, None)
    assert state.waiters == 0
    assert answers(state) == [Answer.FREE] * 5
    assert not await redlock.is_locked("r")


async def test_what_one_ofthis_process_holds(redlock: Redlock) -> None:
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


async def test_what_another_library_holds(redlock: Redlock, masters: list[FakeMaster]) -> None:
    await fill(masters[:3])
    await fill(masters[3:4], "mine")
    state = await redlock.inspect("r")

    assert state.locked
    assert state.remaining is None
    assert [view.master for view in state.orphaned] == ["m3"]
    assert "theirs" not in repr(state)
    assert await redlock.is_locked("r")


async def test_the_name_and_the_metadata_are_told(
    redlock: Redlock, masters: list[FakeMaster]
) -> None:
    await fill(masters, "a" * 28 + named("web-1:42").decode() + '{"job":"nightly"}', 5_000)
    state = await redlock.inspect("r")

    assert state.holder is not None
    assert state.holder.name == "web-1:42"
    assert state.holder.metadata == {"job": "nightly"}
    assert "a" * 40 not in repr(state) + str(state)


async def test_a_key_prefix_is_part_of_the_key(masters: list[FakeMaster]) -> None:
    occupy(masters, "app:r")
    async with Redlock(masters, key_prefix="app:", restart_guard="off") as redlock:
        state = await redlock.inspect("r")
        assert state.resource == "r"
        assert state.locked
        assert await redlock.is_locked("r")
        assert not await redlock.is_locked("app:r")


async def test_each_asks_every_master_once(redlock: Redlock, masters: list[FakeMaster]) -> None:
    for master in masters:
        master.commands.clear()
    began = now()
    await redlock.inspect("r")
    assert now() - began == pytest.approx(LATENCY)
    assert [len(master.commands) for master in masters] == [1] * 5
    assert all(ran(master, scripts.INSPECT) == 1 for master in masters)
    began = now()
    await redlock.is_locked("r")
    assert now() - began == pytest.approx(LATENCY)
    assert [len(master.commands) for master in masters] == [2] * 5


@pytest.mark.parametrize("hung", range(6))
async def test_an_inspection_waits_one_time_out_for_masters_that_hang(
    redlock: Redlock, masters: list[FakeMaster], hung: int
) -> None:
    await fill(masters)
    hang(masters[:hung])
    began = now()
    state = await redlock.inspect("r")

    assert now() - began == pytest.approx(TIMEOUT if hung else LATENCY)
    assert answers(state) == [Answer.TIMED_OUT] * hung + [Answer.HELD] * (5 - hung)
    assert state.locked == (hung < 3)
    assert state.certain == (hung < 3)


@pytest.mark.promise("S6")
@pytest.mark.parametrize("hung", [1, 2])
@pytest.mark.parametrize("held", [True, False])
async def test_a_hung_minority_does_not_hold_up_what_is_certain(
    redlock: Redlock, masters: list[FakeMaster], hung: int, held: bool
) -> None:
    if held:
        await fill(masters)
    hang(masters[:hung])
    began = now()

    assert await redlock.is_locked("r") is held
    assert now() - began == pytest.approx(LATENCY)


@pytest.mark.parametrize("clogged", range(2**5))
async def test_it_is_locked_with_any_majority_and_never_without(
    redlock: Redlock, masters: list[FakeMaster], clogged: int
) -> None:
    await fill([master for i, master in enumerate(masters) if clogged & 1 << i])
    held = clogged.bit_count() >= 3

    assert await redlock.is_locked("r") is held
    assert (await redlock.inspect("r")).locked is held


@pytest.mark.parametrize("values", ["ab---", "aabb-", "aabbc", "abcde"])
async def test_split_votes_are_no_lock(
    redlock: Redlock, masters: list[FakeMaster], values: str
) -> None:
    for master, value in zip(masters, values, strict=True):
        if value != "-":
            await fill([master], value)
    state = await redlock.inspect("r")

    assert not await redlock.is_locked("r")
    assert not state.locked
    assert state.certain
    assert state.split
    assert len(state.orphaned) == len(values.replace("-", ""))


async def test_too_few_answers_are_no_answer(redlock: Redlock, masters: list[FakeMaster]) -> None:
    await fill(masters[:2])
    hang(masters[3:])
    began = now()
    with pytest.raises(QuorumUnavailableError) as caught:
        await redlock.is_locked("r")

    assert now() - began == pytest.approx(TIMEOUT)
    error = caught.value
    assert error.attempts == 0
    assert [vote.answer for vote in error.votes] == [
        Answer.HELD, Answer.HELD, Answer.FREE, Answer.TIMED_OUT, Answer.TIMED_OUT,
    ]  # fmt: skip
    assert str(error) == (
        "'r': too few masters answered in 50 ms (m0: held by another; m1: held by another;"
        " m2: held by nobody; m3: timed out; m4: timed out)"
    )
    state = await redlock.inspect("r")
    assert not state.locked
    assert not state.certain


@pytest.mark.parametrize("dead", range(6))
async def test_dead_masters_say_at_once_that_they_are(
    redlock: Redlock, masters: list[FakeMaster], dead: int
) -> None:
    await fill(masters)
    kill(masters[:dead])
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


async def test_a_master_that_dies_meanwhile_is_heard_no_more(
    redlock: Redlock, masters: list[FakeMaster]
) -> None:
    slow(masters, 0.02)
    task = asyncio.create_task(redlock.inspect("r"))
    await asyncio.sleep(0.005)
    masters[0].kill()
    state = await task

    assert answers(state) == [Answer.UNREACHABLE] + [Answer.FREE] * 4


async def test_a_slow_master_is_heard_out_and_its_time_counted(
    redlock: Redlock, masters: list[FakeMaster]
) -> None:
    masters[0].latency = 0.04
    await fill(masters, ttl=1_000)
    state = await redlock.inspect("r")

    assert answers(state) == [Answer.HELD] * 5
    assert state.views[1].remaining == pytest.approx(1_000 - 40, abs=1)
    assert state.views[0].remaining == pytest.approx(1_000 - 20, abs=1)
    assert state.remaining == state.views[1].remaining


async def test_another_kind_of_key_is_that_master_s_error(
    redlock: Redlock, masters: list[FakeMaster]
) -> None:
    masters[0]._data.zadd(b"r", 1.0, b"x")
    masters[1]._data.zadd(fence().encode(), 1.0, b"x")
    queue, live = commands.queue_keys(b"r")
    masters[2]._data.set(queue, b"x")
    masters[3]._data.set(live, b"x")
    await fill(masters[1:])
    state = await redlock.inspect("r")

    assert answers(state) == [Answer.ERROR] + [Answer.HELD] * 4
    assert "WRONGTYPE" in state.views[0].detail
    assert await redlock.is_locked("r")


async def test_scripts_that_were_forgotten_are_sent_again(
    redlock: Redlock, masters: list[FakeMaster]
) -> None:
    await fill(masters)
    for master in masters[:4]:
        master.execute([b"SCRIPT", b"FLUSH"])
        master.commands.clear()
    began = now()
    state = await redlock.inspect("r")

    assert answers(state) == [Answer.HELD] * 5
    assert now() - began == pytest.approx(2 * LATENCY)
    assert ran(masters[0], scripts.INSPECT) == 2


async def test_scripts_are_sent_again_only_once(
    redlock: Redlock, masters: list[FakeMaster]
) -> None:
    masters[0].error = "NOSCRIPT No matching script."
    state = await redlock.inspect("r")

    assert answers(state) == [Answer.ERROR] + [Answer.FREE] * 4
    assert ran(masters[0], scripts.INSPECT) == 2


async def test_a_master_whose_connection_breaks_at_the_second_time_is_counted(
    redlock: Redlock, masters: list[FakeMaster]
) -> None:
    masters[0].execute([b"SCRIPT", b"FLUSH"])
    task = asyncio.create_task(redlock.inspect("r"))
    await asyncio.sleep(LATENCY * 1.2)
    masters[0].kill()
    state = await task

    assert answers(state) == [Answer.UNREACHABLE] + [Answer.FREE] * 4


async def test_a_master_in_quarantine_is_shown_and_does_not_count(
    masters: list[FakeMaster],
) -> None:
    async with Redlock(masters):
        await fill(masters)
    for master in masters[:3]:
        master.restart()
        await fill([master])
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


async def test_it_waits_until_the_masters_are_known(masters: list[FakeMaster]) -> None:
    await fill(masters)
    redlock = Redlock(masters, restart_guard="off")
    try:
        assert await redlock.is_locked("r")
    finally:
        await redlock.aclose()
    redlock = Redlock(masters, restart_guard="off")
    try:
        assert answers(await redlock.inspect("r")) == [Answer.HELD] * 5
    finally:
        await redlock.aclose()


async def test_a_closed_manager_says_so(redlock: Redlock) -> None:
    await redlock.aclose()
    for call in (redlock.inspect, redlock.is_locked, redlock.force_release):
        with pytest.raises(RedlockError, match="closed"):
            await call("r")


async def test_closing_ends_what_is_underway(masters: list[FakeMaster]) -> None:
    occupy(masters)
    redlock = Redlock(masters, restart_guard="off")
    async with redlock:
        hang(masters)
        calls = [redlock.inspect("r"), redlock.is_locked("r"), redlock.force_release("r")]
        tasks = [asyncio.ensure_future(call) for call in calls]
        await asyncio.sleep(0.01)
    await asyncio.wait(tasks)
    assert all(isinstance(task.exception(), RedlockError) for task in tasks)
    assert all("closed" in str(task.exception()) for task in tasks)


@pytest.mark.parametrize("name", ["", "x" * 513, "a\nb", "redlock_aio:x", "\ud800"])
async def test_a_name_without_sense_is_refused_as_by_a_lock(redlock: Redlock, name: str) -> None:
    with pytest.raises(ValueError, match="resource") as refused:
        redlock.lock(name)
    for call in (redlock.inspect, redlock.is_locked, redlock.force_release):
        with pytest.raises(ValueError, match="resource") as caught:
            await call(name)
        assert str(caught.value) == str(refused.value)
        with pytest.raises(TypeError, match="resource"):
            await call(7)  # type: ignore[arg-type]


async def test_who_waits_is_counted_and_who_holds_is_not(
    redlock: Redlock, masters: list[FakeMaster]
) -> None:
    async def use(seconds: float) -> None:
        async with redlock.lock("r", fair=True):
            await asyncio.sleep(seconds)

    tasks = [asyncio.create_task(use(seconds)) for seconds in (0.5, 5, 0, 0)]
    await asyncio.sleep(0.1)
    assert (await redlock.inspect("r")).waiters == 3
    await asyncio.sleep(0.5)
    assert (await redlock.inspect("r")).waiters == 2
    await asyncio.sleep(4)
    state = await redlock.inspect("r")
    assert state.locked
    assert state.waiters == 2, "also when its holder has not been in the queue for long"
    await asyncio.wait(tasks)
    assert (await redlock.inspect("r")).waiters == 0
    await fill(masters)
    waiter = asyncio.create_task(redlock.lock("r", fair=True).acquire())
    await asyncio.sleep(0.1)
    assert (await redlock.inspect("r")).waiters == 1, "behind somebody who stood in no queue"
    waiter.cancel()
    await asyncio.wait([waiter])
    await asyncio.sleep(0.1)
    assert (await redlock.inspect("r")).waiters == 0


@pytest.mark.promise("S3")
@pytest.mark.parametrize("hung", range(4))
@pytest.mark.parametrize("call", ["inspect", "is_locked"])
async def test_a_cancellation_at_any_place_changes_nothing(
    redlock: Redlock, masters: list[FakeMaster], call: str, hung: int
) -> None:
    await fill(masters)
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


async def test_nobody_is_told_that_it_was_looked_at(
    redlock: Redlock, masters: list[FakeMaster]
) -> None:
    """A look that is no wish to be told costs the masters no memory."""
    await redlock.inspect("r")
    await redlock.is_locked("r")

    assert [master._pushes.remembered for master in masters] == [[]] * 5
