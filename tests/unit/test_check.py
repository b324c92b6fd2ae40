"""`Redlock.check`: a majority votes, or an error says what each master says."""

import asyncio
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from redlock_aio import QuorumUnavailableError, Redlock, RedlockError
from redlock_aio.testing import FakeMaster, cancelled_at
from redlock_aio.testing._fake_lua import Error
from redlock_aio.testing._fake_pushes import PushReceiver

from .kit import (
    LATENCY,
    QUARANTINE,
    Masters,
    commands_received,
    guarded,
    hang,
    in_coroutine,
    keys,
    kill,
    loop,
    now,
    occupy,
    restart,
    resume,
)


async def error_of(redlock: Redlock, **options: Any) -> QuorumUnavailableError:
    with pytest.raises(QuorumUnavailableError) as caught:
        await redlock.check(**options)
    return caught.value


def refuse_ping(master: FakeMaster, error: str) -> None:
    execute = master.execute

    def refusing(command: list[bytes], listener: PushReceiver | None = None) -> object:
        return Error(error) if command == [b"PING"] else execute(command, listener)

    vars(master)["execute"] = refusing


def votes_in(error: QuorumUnavailableError) -> list[str]:
    return [str(vote).partition(": ")[2] for vote in error.votes]


async def test_it_costs_one_round_trip_and_touches_no_key(
    redlock: Redlock, masters: list[FakeMaster]
) -> None:
    occupy(masters)  # whether a lock is free does not matter
    before, began = commands_received(masters), now()
    contents = keys(masters)
    await redlock.check()
    assert now() - began == pytest.approx(LATENCY)
    await asyncio.sleep(0.01)
    assert commands_received(masters) == [count + 1 for count in before]
    assert {master.commands[-1][0] for master in masters} == {b"PING"}
    assert keys(masters) == contents


async def test_several_programs_check_every_second_and_wait_for_none_of_each_other(
    masters: list[FakeMaster],
) -> None:
    async def probes() -> None:
        async with Redlock(masters) as redlock:
            for _ in range(10):
                began = now()
                await redlock.check(wait=50)
                assert now() - began == pytest.approx(LATENCY)
                await asyncio.sleep(1)

    await asyncio.gather(*(probes() for _ in range(3)))


@pytest.mark.parametrize("away", [hang, kill, restart])
async def test_a_minority_neither_fails_nor_delays_it(
    masters: list[FakeMaster], away: Callable[[Masters], None]
) -> None:
    async with guarded(masters) as redlock:
        away(masters[3:])
        for _ in range(3):
            began = now()
            await redlock.check()
            assert now() - began == pytest.approx(LATENCY)
            await asyncio.sleep(1)


@pytest.mark.parametrize("away", [hang, kill])
async def test_a_minority_does_not_delay_the_first_check(
    masters: list[FakeMaster], away: Callable[[Masters], None]
) -> None:
    async with guarded(masters):
        pass  # the masters are marked
    away(masters[3:])
    redlock = guarded(masters)
    began = now()
    await redlock.check()
    assert now() - began <= 10 * LATENCY  # some round trips to connect
    await redlock.aclose()


async def test_the_error_has_the_vote_of_each_master(masters: list[FakeMaster]) -> None:
    async with guarded(masters) as redlock:
        masters[0].restart()
        await asyncio.sleep(1)
        masters[1].kill()
        await asyncio.sleep(1)
        refuse_ping(masters[2], "MISCONF it can't write")
        masters[3].hang()
        began = now()
        error = await error_of(redlock)
        assert (error.resources, error.attempts) == ((), 0)
        assert error.elapsed == round((now() - began) * 1000) == redlock.master_timeout
        quarantined, refused, misconf, hung, granted = votes_in(error)
        assert quarantined.startswith("quarantined, it restarted")
        assert refused == "unreachable, connection refused"
        assert misconf == "error, MISCONF it can't write"
        assert (hung, granted) == ("timed out", "granted")
        assert str(error) == (
            f"too few masters answered in {error.elapsed} ms ({'; '.join(map(str, error.votes))})"
            " [too-few-masters]"
        )


async def test_a_majority_that_refuses_for_good_is_told_as_that(
    redlock: Redlock, masters: list[FakeMaster]
) -> None:
    for master in masters[:3]:
        refuse_ping(master, "NOPERM this user has no permissions")
    error = await error_of(redlock)
    assert error.code == "masters-refuse"
    votes = "; ".join(map(str, error.votes))
    because = "the masters refuse permanently, so waiting does not help"
    assert str(error) == f"{because} ({votes}) [masters-refuse]"


async def test_without_a_connection_it_fails_at_once(
    redlock: Redlock, masters: list[FakeMaster]
) -> None:
    kill(masters[:3])
    await asyncio.sleep(1)
    began = now()
    votes = votes_in(await error_of(redlock))
    assert votes == ["unreachable, connection refused"] * 3 + ["granted"] * 2
    assert now() - began == pytest.approx(LATENCY)


async def test_a_quarantined_majority_does_not_count(masters: list[FakeMaster]) -> None:
    async with guarded(masters) as redlock:
        restart(masters[:3])
        await asyncio.sleep(1)
        votes = votes_in(await error_of(redlock))
        assert [vote.partition(",")[0] for vote in votes] == ["quarantined"] * 3 + ["granted"] * 2
        await asyncio.sleep(QUARANTINE)
        await redlock.check()


async def test_masters_that_answer_again_count_in_the_next_check(
    redlock: Redlock, masters: list[FakeMaster]
) -> None:
    hang(masters[:3])
    await error_of(redlock)
    await asyncio.sleep(10)
    await error_of(redlock)
    resume(masters)
    await asyncio.sleep(1)
    await redlock.check()


@pytest.mark.parametrize("limit", [300, timedelta(milliseconds=300)])
async def test_the_limit_includes_connecting(
    masters: list[FakeMaster], limit: int | timedelta
) -> None:
    hang(masters[:3])
    redlock = Redlock(masters, restart_guard="off")
    began = now()
    votes = votes_in(await error_of(redlock, wait=limit))
    assert now() - began == pytest.approx(0.3, abs=0.01)
    assert votes[:3] == ["unreachable, connecting"] * 3
    resume(masters)
    await asyncio.sleep(2)
    await redlock.check(wait=limit)
    await redlock.aclose()


async def test_a_look_behind_it_waits_for_no_connection_and_a_lock_does(
    masters: list[FakeMaster],
) -> None:
    hang(masters[:3])
    redlock = Redlock(masters, restart_guard="off", master_timeout=1_000)
    await error_of(redlock, wait=300)
    began = now()
    state = await redlock.inspect("r")
    assert now() - began == pytest.approx(LATENCY)
    assert [str(view).partition(": ")[2] for view in state.views] == [
        *["unreachable, connecting"] * 3,
        *["held by nobody"] * 2,
    ]
    loop().call_later(1, resume, masters)
    async with redlock.lock("r", wait=0):
        assert now() - began == pytest.approx(1, abs=0.1)
    await redlock.aclose()


async def test_a_look_behind_it_finds_a_manager_whose_tasks_were_cancelled(
    masters: list[FakeMaster],
) -> None:
    redlock = Redlock(masters, restart_guard="off")
    await redlock.check()
    for task in asyncio.all_tasks() - {asyncio.current_task()}:
        task.cancel()
    await asyncio.sleep(1)
    with pytest.raises(RedlockError, match="the tasks of this Redlock were cancelled"):
        await redlock.inspect("r")
    await redlock.aclose()


async def test_the_limit_is_also_that_of_answers(masters: list[FakeMaster]) -> None:
    async with Redlock(masters, restart_guard="off", master_timeout=5_000) as redlock:
        hang(masters[:3])
        for limit, took in ((20, 0.02), (1_000, 1.0), (60_000, 5.0)):
            began = now()
            await error_of(redlock, wait=limit)
            assert now() - began == pytest.approx(took, abs=0.001)
            resume(masters)
            await asyncio.sleep(1)
            hang(masters[:3])


async def test_it_connects_on_first_use_and_locks_can_follow(masters: list[FakeMaster]) -> None:
    redlock = guarded(masters)
    await redlock.check()
    async with redlock.lock("r") as lease:
        assert lease.valid
    await redlock.aclose()
    with pytest.raises(RedlockError, match="this Redlock is closed"):
        await redlock.check()


@pytest.mark.parametrize("opened", [True, False])
async def test_it_ends_when_the_manager_is_closed(
    masters: list[FakeMaster], *, opened: bool
) -> None:
    redlock = Redlock(masters, restart_guard="off", master_timeout=5_000)
    if opened:
        await redlock.check()
    hang(masters)
    checking = asyncio.create_task(redlock.check(wait=60_000))
    await asyncio.sleep(0.1)
    await redlock.aclose()
    with pytest.raises(RedlockError, match="this Redlock was closed"):
        await checking


@pytest.mark.parametrize("opened", [True, False])
async def test_wherever_it_is_cancelled_nothing_stays(
    masters: list[FakeMaster], *, opened: bool
) -> None:
    for place in range(1, 100):
        redlock = guarded(masters)
        if opened:
            await redlock.__aenter__()
        task = asyncio.create_task(in_coroutine(cancelled_at(place, redlock.check())))
        await asyncio.wait([task])
        await asyncio.sleep(1)
        assert redlock.statistics().rounds == 0
        await redlock.check()
        await redlock.aclose()
        if not task.cancelled():
            assert place > 1
            return
    pytest.fail("it is cancelled at every await, for ever")


async def test_a_stalled_event_loop_does_not_fail_it(
    redlock: Redlock, masters: list[FakeMaster]
) -> None:
    del masters
    checking = asyncio.create_task(redlock.check())
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    loop().stall(0.2)  # the answers arrive meanwhile, and are read late
    await checking


@pytest.mark.parametrize(
    ("limit", "kind", "text"),
    [
        (0, ValueError, "wait must be positive, not 0 ms"),
        (-5, ValueError, "wait must be positive, not -5 ms"),
        (0.5, TypeError, r"wait must be an int \(milliseconds\) or a timedelta, not a float"),
        (None, TypeError, r"wait must be an int \(milliseconds\) or a timedelta, not None"),
    ],
)
async def test_a_wrong_limit_is_named(
    redlock: Redlock, limit: Any, kind: type[Exception], text: str
) -> None:
    with pytest.raises(kind, match=text):
        await redlock.check(wait=limit)
