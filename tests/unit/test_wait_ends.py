"""When a wait ends, what may still happen in its last moments, and what its error says."""

import asyncio
from typing import Any

import pytest

from redlock_aio import Lease, LockNotAcquiredError, QuorumUnavailableError, Redlock
from redlock_aio.testing import FakeMaster

from .kit import KIND, LATENCY, NEVER, hang, now, refused, resume, slow


class BusyMaster(FakeMaster):
    """A master that takes some time for each write that it gets, as a loaded server does."""

    def __init__(self, *, latency: float = LATENCY, takes: float = 0.0002) -> None:
        super().__init__(latency=latency)
        self._takes = takes
        self._busy_until = 0.0

    def receive(self, transport: Any, data: bytes) -> None:
        self._inbox.append((transport, data))
        commands = data.count(b"EVALSHA") + data.count(b"SET")
        arrives = max(now() + self.latency / 2, self._busy_until)
        self._busy_until = arrives + commands * self._takes
        asyncio.get_running_loop().call_later(self._busy_until - now(), self._arrive)


async def refused_after(
    redlock: Redlock, wait: int, **options: Any
) -> tuple[LockNotAcquiredError, int]:
    """Return the error of an acquisition that fails, and after how many ms it came."""
    began = now()
    error = await refused(redlock, wait=wait, **options)
    return error, round((now() - began) * 1000)


async def test_tasks_that_give_up_together_all_learn_who_holds_the_lock() -> None:
    masters = [BusyMaster() for _ in range(5)]
    async with Redlock(masters) as redlock, Redlock(masters) as other:
        lease = await other.lock("r", ttl=60_000).acquire()
        tasks = [asyncio.create_task(refused_after(redlock, 300)) for _ in range(40)]
        for error, _ in await asyncio.gather(*tasks):
            assert type(error) is LockNotAcquiredError
            assert error.holder is not None
            assert error.holder.fingerprint == lease.fingerprint
            assert error.retry_after is not None
            assert 59_000 < error.retry_after < 60_000
        await lease.release()


@pytest.mark.parametrize("wait", [1, 3, 10, 50, 100, 1_000, 10_000])
@pytest.mark.parametrize("whose", ["other", "own"])
async def test_a_wait_ends_when_it_says(
    redlock: Redlock, other: Redlock, whose: str, wait: int
) -> None:
    lease = await (other if whose == "other" else redlock).lock("r").acquire()
    waiting = [
        refused_after(redlock, wait),
        refused_after(redlock, wait),
        refused_after(redlock, wait, retry=NEVER),
    ]
    for error, took in await asyncio.gather(*waiting):
        assert type(error) is LockNotAcquiredError
        assert error.holder is not None
        assert error.holder.fingerprint == lease.fingerprint
        assert error.elapsed == took
        # If a tenth of it is shorter than two rounds, it ends with the answers.
        assert wait <= took <= wait + (2 if wait < 20 else 1)
    await lease.release()


@pytest.mark.parametrize("how", ["hang", "kill"])
@pytest.mark.parametrize("wait", [1, 100, 300, 1_000])
async def test_a_wait_ends_when_it_says_though_masters_are_away(
    redlock: Redlock, masters: list[FakeMaster], wait: int, how: str
) -> None:
    for master in masters[:3]:
        getattr(master, how)()
    error, took = await refused_after(redlock, wait)
    assert type(error) is QuorumUnavailableError
    assert wait <= took <= max(wait, 50) + 1
    for master in masters[:3]:
        master.resume() if how == "hang" else master.restart()
    await asyncio.sleep(2)


@pytest.mark.parametrize("wait", [1, 30, 100, 300])
async def test_a_wait_ends_when_it_says_though_the_master_time_out_is_longer(
    masters: list[FakeMaster], wait: int
) -> None:
    async with Redlock(masters, master_timeout=5_000) as redlock:
        hang(masters[:3])
        tasks = [
            refused_after(redlock, wait),
            refused_after(redlock, wait),
            refused_after(redlock, wait, fair=True),
        ]
        for error, took in await asyncio.gather(*tasks):
            assert type(error) is QuorumUnavailableError
            assert wait <= took <= wait + 51
        resume(masters)
        await asyncio.sleep(2)


@pytest.mark.promise("S9")
@pytest.mark.parametrize("before", [3, 6, 20, 45, 60])
@pytest.mark.parametrize("whose", ["other", "own"])
async def test_a_release_just_before_the_end_of_a_wait_is_not_missed(
    redlock: Redlock, other: Redlock, whose: str, before: int
) -> None:
    lease = await (other if whose == "other" else redlock).lock("r").acquire()
    waiter = asyncio.create_task(redlock.lock("r", wait=1_000, retry=NEVER).acquire())
    await asyncio.sleep(1 - before / 1000)
    await lease.release()
    won = await waiter
    assert isinstance(won, Lease)
    await won.release()


async def test_a_turn_that_comes_while_the_last_attempt_is_underway_is_used(
    redlock: Redlock, masters: list[FakeMaster]
) -> None:
    """The attempt comes before the release on three masters, after it on two."""
    slow(masters[:3], 0.01)
    lease = await redlock.lock("r").acquire()
    waiter = asyncio.create_task(redlock.lock("r", wait=1_000, retry=NEVER).acquire())
    await asyncio.sleep(0.9505)
    await lease.release()
    won = await waiter
    assert won.valid
    assert not redlock._opener.session().local_queues.of(redlock.lock("r").key).contending
    await won.release()


async def test_those_who_gave_up_leave_no_turn_behind(redlock: Redlock, other: Redlock) -> None:
    lease = await other.lock("r").acquire()
    await asyncio.gather(*(refused_after(redlock, 100) for _ in range(3)))
    await lease.release()
    async with redlock.lock("r", wait=100):
        pass
    assert redlock._opener.session().local_queues.of(redlock.lock("r").key).idle


@pytest.mark.spread(2)
@KIND
@pytest.mark.parametrize("wait", [1, 2, 5, 10])
@pytest.mark.parametrize("latency", [0.001, 0.005, 0.02])
async def test_a_short_wait_is_enough_for_a_lock_that_is_free(
    latency: float, wait: int, kind: dict[str, Any]
) -> None:
    masters = [FakeMaster(latency=latency) for _ in range(3)]
    async with Redlock(masters) as redlock, redlock.lock("r", wait=wait, **kind) as lease:
        assert lease.valid


@pytest.mark.spread(2)
@KIND
@pytest.mark.parametrize("wait", [1, 2, 5, 10, 30, 100])
@pytest.mark.parametrize("latency", [0.001, 0.005, 0.02, 0.045])
async def test_a_short_wait_for_a_held_lock_is_no_outage(
    latency: float, wait: int, kind: dict[str, Any]
) -> None:
    masters = [FakeMaster(latency=latency) for _ in range(3)]
    async with Redlock(masters) as redlock, Redlock(masters) as other:
        for holder in (redlock, other):
            async with holder.lock("r", **kind) as lease:
                waiting = [refused_after(redlock, wait, **kind) for _ in range(9)]
                for error, _ in await asyncio.gather(*waiting):
                    assert type(error) is LockNotAcquiredError
                    assert error.holder is not None
                    assert error.holder.fingerprint == lease.fingerprint


async def test_an_attempt_that_is_cut_short_does_not_hide_who_holds_the_lock() -> None:
    masters = [FakeMaster(latency=0.02) for _ in range(3)]
    async with Redlock(masters) as redlock, Redlock(masters) as other:
        first = await other.lock("r").acquire()
        waiter = asyncio.create_task(refused_after(redlock, 100, retry=NEVER))
        await asyncio.sleep(0.07)
        for master in masters:  # it is told at 0.08, and an answer would come at 0.1
            master.set("r", "another")
        error, took = await waiter
        assert type(error) is LockNotAcquiredError
        assert 100 <= took <= 102
        assert error.holder is not None
        assert error.attempts == 2
    del first


@pytest.mark.promise("S6")
async def test_a_hung_minority_does_not_hold_up_a_refusal(
    redlock: Redlock, other: Redlock, masters: list[FakeMaster]
) -> None:
    async with other.lock("r"):
        hang(masters[:2])
        error, took = await refused_after(redlock, 0)
        assert error.holder is not None
        assert took <= 5
        resume(masters)
        await asyncio.sleep(1)
