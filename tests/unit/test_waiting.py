"""Waking, standing in line, and the holder who is told, in virtual time."""

import asyncio

import pytest

from redlock_aio import (
    Lease,
    LockLostError,
    LockNotAcquiredError,
    QuorumUnavailableError,
    Redlock,
    RedlockError,
    Retry,
)
from redlock_aio._engine.hold.watchdog import CHECK_AFTER
from redlock_aio._engine.wait.local_queue import ALONE, IDLE_QUEUES, LONGEST_TENURE, TENURE
from redlock_aio._protocol.scripts import LOOK
from redlock_aio.testing import FakeMaster

from .kit import LATENCY, NEVER, delete, got, kill, now, occupy, resume


@pytest.mark.promise("S9")
async def test_a_release_wakes_a_waiter_of_another_program(
    redlock: Redlock, other: Redlock
) -> None:
    lease = await other.lock("r").acquire()
    waiter = asyncio.create_task(got(redlock))
    await asyncio.sleep(1)
    released = now()
    await lease.release()
    # Half a latency for the release, as much for the news, one for the attempt.
    assert await waiter - released == pytest.approx(2 * LATENCY)


@pytest.mark.promise("S9")
async def test_the_end_of_a_ttl_wakes_a_waiter(redlock: Redlock, masters: list[FakeMaster]) -> None:
    occupy(masters[:3], ttl=500)
    expires = now() + 0.5
    assert await got(redlock) - expires == pytest.approx(2 * LATENCY, abs=LATENCY)


@pytest.mark.promise("S9")
@pytest.mark.parametrize("how", ["delete", "flush", "restart", "cut"])
async def test_a_waiter_wakes_however_the_key_goes(
    redlock: Redlock, masters: list[FakeMaster], how: str
) -> None:
    occupy(masters)
    waiter = asyncio.create_task(got(redlock))
    await asyncio.sleep(1)
    delete(masters[:2])
    await asyncio.sleep(1)
    assert not waiter.done()  # a minority is not enough
    went = now()
    if how == "cut":  # it goes while nobody is there to be told
        masters[2].cut()
        masters[2].delete("r")
    elif how == "delete":
        masters[2].delete("r")
    else:
        getattr(masters[2], how)()
    assert await waiter - went < 0.1


async def test_a_master_that_comes_back_wakes_who_could_not_have_a_majority(
    redlock: Redlock, masters: list[FakeMaster]
) -> None:
    kill(masters[:3])
    waiter = asyncio.create_task(got(redlock))
    await asyncio.sleep(5)
    assert not waiter.done()
    masters[0].restart()
    back = now()
    assert await waiter - back < 0.6  # the delay between two dials


async def test_an_answer_that_comes_late_still_says_who_stands_in_the_way(
    masters: list[FakeMaster],
) -> None:
    async with Redlock(masters, master_timeout=50) as redlock:
        for master in masters[:3]:
            master.hang()
            master.set("r", "theirs", ttl=400)
        waiter = asyncio.create_task(got(redlock))
        await asyncio.sleep(0.3)
        resume(masters)
        assert await waiter == pytest.approx(0.4, abs=0.05)


async def test_a_waiter_whom_nothing_wakes_tries_again(masters: list[FakeMaster]) -> None:
    for master in masters:
        master.forbid = {"CLIENT"}
        master.set("r", "theirs")
    async with Redlock(masters) as redlock:
        lock = redlock.lock("r", retry=Retry(min_delay=20, max_delay=20))
        waiter = asyncio.create_task(lock.acquire())
        await asyncio.sleep(1)
        delete(masters)
        went = now()
        lease = await waiter
        assert 0 < now() - went < 0.03
        await lease.release()


async def test_it_can_be_told_who_holds_it_and_for_how_long(
    redlock: Redlock, other: Redlock, masters: list[FakeMaster]
) -> None:
    async with other.lock("r", ttl=8_000) as lease:
        for wait in (0, 200):
            with pytest.raises(LockNotAcquiredError) as caught:
                await redlock.lock("r", wait=wait).acquire()
            error = caught.value
            assert error.holder is not None
            assert error.holder.fingerprint == lease.fingerprint
            assert error.retry_after is not None
            assert 7_700 < error.retry_after <= 8_000
            assert f"held by others, now by {error.holder}" in str(error)
            assert f"({lease.fingerprint})" in str(error.holder)
            assert str(error).count("ms left") == 5
            assert lease.token not in str(error) + repr(error.__reduce__())
    masters[0].set("r", "a")
    masters[1].set("r", "b")
    masters[2].set("r", "c", ttl=500)
    with pytest.raises(LockNotAcquiredError) as caught:
        await redlock.lock("r", wait=0).acquire()
    assert caught.value.holder is None
    assert caught.value.retry_after is not None
    assert 490 <= caught.value.retry_after <= 500
    masters[2].hang()
    masters[3].hang()
    masters[4].hang()
    with pytest.raises(QuorumUnavailableError) as caught:
        await redlock.lock("r", wait=0).acquire()
    assert caught.value.holder is None
    assert caught.value.retry_after is None


@pytest.mark.parametrize(
    ("ttls", "silent", "retry_after"),
    [
        ((None, 500, 10_000), {0}, 500),
        ((None, 0, 10_000), {0}, 10_000),  # the silent one has most likely what the last has
        ((None, 500, 500), {0}, 500),
        ((None, None, 500), {0, 1}, None),
        ((None, 500, 10_000), {0, "killed"}, 10_000),
        ((None, None, 500, 700, 900), {0, 1}, 500),
        ((None, 0, 0, 10_000, 10_000), {0}, 10_000),
        ((0, 500, 10_000), set(), 500),
    ],
)
async def test_a_silent_master_does_not_lengthen_retry_after(
    ttls: tuple[int | None, ...], silent: set[object], retry_after: int | None
) -> None:
    masters = [FakeMaster() for _ in ttls]
    for number, (master, ttl) in enumerate(zip(masters, ttls, strict=True)):
        if ttl:
            master.set("r", f"theirs {number}", ttl=ttl)
    async with Redlock(masters, restart_guard="off") as redlock:
        for number, master in enumerate(masters):
            if number in silent and "killed" in silent:
                master.kill()
            elif number in silent:
                master.hang()
        await asyncio.sleep(0)
        with pytest.raises(LockNotAcquiredError) as caught:
            await redlock.lock("r", wait=0).acquire()
        if retry_after is None:
            assert caught.value.retry_after is None
        else:
            assert caught.value.retry_after is not None
            passed = 110 if silent else 10  # the attempt, and the wait for who holds it
            assert retry_after - passed <= caught.value.retry_after <= retry_after
        resume(masters)
        await asyncio.sleep(0.1)


# In the process.


async def test_tasks_get_the_lock_in_the_order_in_which_they_came(redlock: Redlock) -> None:
    served: list[int] = []

    async def work(number: int) -> None:
        options = {"ttl": 1_000 + number, "on_lost": "flag" if number % 2 else "cancel"}
        async with redlock.lock("r", **options):  # type: ignore[arg-type]
            served.append(number)
            await asyncio.sleep(0.01)

    async with asyncio.TaskGroup() as tasks:
        for number in range(20):
            tasks.create_task(work(number))
    assert served == list(range(20))


async def test_one_of_them_talks_to_the_masters(
    redlock: Redlock, other: Redlock, masters: list[FakeMaster]
) -> None:
    lease = await other.lock("r").acquire()
    waiters = [asyncio.create_task(got(redlock)) for _ in range(10)]
    await asyncio.sleep(1)
    before = [command[0] for command in masters[0].commands].count(b"SET")
    assert before == 2  # the holder's, and one attempt
    await lease.release()
    times = await asyncio.gather(*waiters)
    assert list(times) == sorted(times)
    # One after another, and one latency each: an attempt travels behind the release.
    assert times[-1] - times[0] == pytest.approx(9 * LATENCY, rel=0.2)


async def test_who_leaves_the_line_leaves_no_gap(redlock: Redlock) -> None:
    async with redlock.lock("r"):
        first = asyncio.create_task(got(redlock))
        second = asyncio.create_task(got(redlock, wait=100))
        third = asyncio.create_task(got(redlock))
        fourth = asyncio.create_task(got(redlock))
        await asyncio.sleep(0.2)
        third.cancel()
        with pytest.raises(LockNotAcquiredError) as caught:
            await second
        assert caught.value.attempts == 1  # out of turn, to say why
        assert caught.value.holder is not None
        line = redlock._opener.session().local_queues.by_key[b"r"]
        assert line._queue is not None
        await asyncio.sleep(0)
        assert len(line._queue) == 2
    released = now()
    assert await first - released < 0.01
    assert await fourth - released < 0.01


@pytest.mark.parametrize("turns", range(6))
async def test_a_turn_that_comes_to_somebody_who_is_cancelled_is_passed_on(
    redlock: Redlock, turns: int
) -> None:
    lease = await redlock.lock("r").acquire()
    first = asyncio.create_task(got(redlock))
    second = asyncio.create_task(got(redlock))
    await asyncio.sleep(0.1)
    released = asyncio.create_task(lease.release())
    for _ in range(turns):
        await asyncio.sleep(0)
    first.cancel()
    assert await second - now() < 0.01
    await released
    await asyncio.wait([first])


async def test_one_attempt_is_made_out_of_turn(redlock: Redlock, masters: list[FakeMaster]) -> None:
    occupy(masters)
    waiter = asyncio.create_task(got(redlock))
    await asyncio.sleep(0.1)
    began = now()
    assert await redlock.lock("r").try_acquire() is None
    with pytest.raises(LockNotAcquiredError):
        await redlock.lock("r", wait=0).acquire()
    assert now() - began < 0.01
    # It may even win, and whoever has the turn hears of its end.
    for master in masters:
        master.forbid = set()
        master._data.keys.clear()  # unnoticed by whoever waits
    lease = await redlock.lock("r").try_acquire()
    assert isinstance(lease, Lease)
    await asyncio.sleep(0.1)
    assert not waiter.done()
    await lease.release()
    assert now() - await waiter < 0.01


async def test_whoever_counts_attempts_makes_them_though_others_stand_in_line(
    redlock: Redlock,
) -> None:
    few = Retry(min_delay=30, max_delay=30, attempts=3)
    async with redlock.lock("r"):
        began = now()
        with pytest.raises(LockNotAcquiredError) as caught:
            await redlock.lock("r", retry=few).acquire()
        assert caught.value.attempts == 3
        assert now() - began == pytest.approx(0.06, abs=0.01)
        waiter = asyncio.create_task(redlock.lock("r", retry=few).acquire())
        await asyncio.sleep(0.01)
    lease = await waiter  # a release in the same process wakes it as well
    assert now() - began < 0.1
    await lease.release()


async def test_closing_sends_everybody_in_line_away(masters: list[FakeMaster]) -> None:
    redlock = Redlock(masters)
    async with redlock.lock("r", on_lost="flag"):
        waiters = [asyncio.create_task(got(redlock)) for _ in range(5)]
        waiters += [asyncio.create_task(got(redlock, fair=True)) for _ in range(5)]
        await asyncio.sleep(0.1)
        await redlock.aclose()
        done = await asyncio.gather(*waiters, return_exceptions=True)
    assert [type(error) for error in done] == [RedlockError] * 10
    assert "closed" in str(done[0])


async def test_a_process_that_passes_the_lock_on_lets_others_go_first(
    redlock: Redlock, other: Redlock
) -> None:
    ends = now() + 1.5
    turns = {"greedy": 0, "lonely": 0}

    async def work(manager: Redlock, name: str) -> None:
        while now() < ends:
            async with manager.lock("r", retry=NEVER):
                turns[name] += 1
                await asyncio.sleep(0.001)

    greedy = [work(redlock, "greedy") for _ in range(5)]
    await asyncio.gather(*greedy, work(other, "lonely"))
    # Whoever is alone loses the turn when it lets go; but it gets one again and again.
    assert turns["lonely"] > 0.1 * turns["greedy"]
    assert turns["greedy"] > 0.1 * turns["lonely"]


@pytest.mark.parametrize("latency", [0.001, 0.04, 0.08])
@pytest.mark.parametrize("pairs", [10, 30, 200])
async def test_who_is_alone_with_a_key_is_as_fast_as_the_exchange_takes(
    latency: float, pairs: int
) -> None:
    masters = [FakeMaster(latency=latency) for _ in range(3)]
    async with Redlock(masters) as redlock:
        began = now()
        for _ in range(pairs):
            async with redlock.lock("r"):
                pass
        assert now() - began <= 1.03 * pairs * 2 * latency


@pytest.mark.parametrize("latency", [0.001, 0.04])
async def test_others_have_their_turn_also_after_a_process_was_alone_for_long(
    latency: float,
) -> None:
    masters = [FakeMaster(latency=latency) for _ in range(3)]
    async with Redlock(masters) as redlock, Redlock(masters) as other:
        ends = now() + 400 * latency + 8
        turns = {"greedy": 0, "late": 0}

        async def work(manager: Redlock, name: str) -> None:
            while now() < ends:
                async with manager.lock("r", retry=NEVER):
                    turns[name] += 1
                    await asyncio.sleep(latency)

        tasks = [asyncio.create_task(work(redlock, "greedy")) for _ in range(3)]
        await asyncio.sleep(200 * latency + 5)
        before, came = turns["greedy"], now()
        assert await got(other) - came <= max(LONGEST_TENURE, ALONE * latency) + 5 * latency
        await asyncio.gather(work(other, "late"), *tasks)
        assert turns["late"] > 0.1 * (turns["greedy"] - before)


async def test_nobody_is_waited_for_who_does_not_come(redlock: Redlock) -> None:
    pairs = 0
    began = now()
    while now() < began + 20 * TENURE:
        async with redlock.lock("r"):
            pass
        pairs += 1
    # Without any courtesy it would be one in two latencies.
    assert pairs * 2 * LATENCY > 0.9 * (now() - began)


async def test_lines_in_which_nobody_stands_are_forgotten(redlock: Redlock) -> None:
    async with redlock.lock("kept"):
        for number in range(2 * IDLE_QUEUES + 50):
            async with redlock.lock(f"r{number}"):
                pass
        assert len(redlock._opener.session().local_queues.by_key) <= 2 * IDLE_QUEUES
        assert b"kept" in redlock._opener.session().local_queues.by_key


# A holder hears that its key is gone.


@pytest.mark.promise("S2")
@pytest.mark.parametrize("auto_extend", [True, False])
@pytest.mark.parametrize("how", ["deleted", "overwritten", "flushed"])
async def test_a_holder_hears_at_once_that_its_key_is_gone(
    redlock: Redlock, masters: list[FakeMaster], how: str, *, auto_extend: bool
) -> None:
    gone = 0.0
    with pytest.raises(LockLostError, match="no longer has its key"):
        async with redlock.lock("r", ttl=60_000, auto_extend=auto_extend):
            await asyncio.sleep(45 if auto_extend else 1)  # extended twice meanwhile
            for master in masters[:3]:
                if how == "deleted":
                    master.delete("r")
                elif how == "overwritten":
                    master.set("r", "theirs", ttl=100)
                else:
                    master.flush()
            gone = now()
            await asyncio.sleep(30)
    assert now() - gone < 0.05


async def test_a_minority_that_loses_the_key_is_no_loss(
    redlock: Redlock, masters: list[FakeMaster]
) -> None:
    async with redlock.lock("r", ttl=60_000) as lease:
        await asyncio.sleep(1)
        masters[0].delete("r")
        masters[1].set("r", "theirs", ttl=100)
        for _ in range(100):
            await asyncio.sleep(0.01)
            masters[0].set("r", "theirs")
            masters[0].delete("r")
        assert lease.valid
        looks = [command for command in masters[4].commands if command[1:2] == [LOOK.sha]]
        assert 2 <= len(looks) <= 60  # not one for each change


async def test_a_short_lease_costs_nothing_more(
    redlock: Redlock, masters: list[FakeMaster]
) -> None:
    async with redlock.lock("r", ttl=60_000):
        before = len(masters[0].commands)
        await asyncio.sleep(CHECK_AFTER / 2)
    said = [command[0] for command in masters[0].commands[before:]]
    assert said == [b"DELIFEQ"]
