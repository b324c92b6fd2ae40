"""A lock that is kept for a while after its holder has released it."""

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from redlock_aio import LockLostError, LockNotAcquiredError, LockNotHeldError, Redlock
from redlock_aio.testing import FakeMaster

from .kit import KINDS, LATENCY, delete, hang, keys, now, remaining_keys, resume, slow, values

OPTIONS = [*KINDS, {"auto_extend": False}, {"metadata": {"job": "x"}}]


def pttls(masters: list[FakeMaster], name: str = "r") -> list[int]:
    return [master.pttl(name) for master in masters]


async def run(redlock: Redlock, *names: str, keep: Any, **options: Any) -> float:
    """Hold a lock for 10 ms; return when it was acquired."""
    async with redlock.lock(*(names or ("r",)), hold_at_least=keep, **options) as lease:
        at = now()
        await asyncio.sleep(0.01)
        token = lease.token
    assert not lease.valid
    assert repr(lease).endswith("released>")
    assert token
    return at


@pytest.mark.spread(1)
@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("keep", [50, 5_000, 70_000, timedelta(days=1)])
async def test_it_is_kept_from_its_acquisition_on_to_the_ms(
    redlock: Redlock, masters: list[FakeMaster], keep: int | timedelta, options: dict[str, Any]
) -> None:
    """Shorter than the ttl, longer, and longer than max_ttl."""
    acquired_at = await run(redlock, keep=keep, **options)
    seconds = keep / timedelta(seconds=1) if isinstance(keep, timedelta) else keep / 1000
    ends = acquired_at + seconds
    assert now() == pytest.approx(acquired_at + 0.01 + LATENCY)
    left_ms = (ends - now()) * 1000
    assert pttls(masters) == [pytest.approx(left_ms + 0.5, abs=1.6)] * 5
    await asyncio.sleep(ends - now() - 0.001)
    assert all(master.keys["r"] for master in masters)
    assert "0 leases" in repr(redlock)
    await asyncio.sleep(0.003)
    assert ["r" in master.keys for master in masters] == [False] * 5
    if "fair" in options:
        await asyncio.sleep(4)
        assert not any(b"queue" in key or b"live" in key for key in remaining_keys(masters))


async def test_it_counts_from_when_the_lock_was_had(
    redlock: Redlock, masters: list[FakeMaster]
) -> None:
    """Not from when it was asked for; and not from when it was released."""
    slow(masters, 0.04)
    acquired_at = await run(redlock, keep=1000)
    assert now() == pytest.approx(acquired_at + 0.05)
    ends = [now() + ttl / 1000 for ttl in pttls(masters)]
    assert ends == [pytest.approx(acquired_at + 1 + 0.02, abs=0.0015)] * 5  # heard after 20 ms


@pytest.mark.parametrize("keep", [0, 5, timedelta(0)])
@pytest.mark.parametrize("can_free", [True, False])
async def test_when_the_time_is_over_it_is_released_as_ever(
    masters: list[FakeMaster], keep: int | timedelta, *, can_free: bool
) -> None:
    for master in masters:
        master.forbid = set() if can_free else {"DELIFEQ"}
    async with Redlock(masters) as redlock:
        await run(redlock, keep=keep)
        said = {master.commands[-1][0] for master in masters}
        assert said == {b"DELIFEQ" if can_free else b"EVALSHA"}
        assert keys(masters) == [{}] * 5


@pytest.mark.spread(2)
@pytest.mark.parametrize("fair", [False, True])
@pytest.mark.parametrize("here", [False, True])
@pytest.mark.parametrize("holder", OPTIONS, ids=str)
async def test_who_waits_gets_it_when_that_is_over_and_not_before(
    redlock: Redlock, masters: list[FakeMaster], holder: dict[str, Any], *, here: bool, fair: bool
) -> None:
    async with Redlock(masters, restart_guard="off") as other:
        waits = redlock if here else other
        got: list[float] = []

        async def wait() -> None:
            async with waits.lock("r", fair=fair):
                got.append(now())

        lock = redlock.lock("r", hold_at_least=700, **holder)
        async with lock:
            ends = now() + 0.7
            tasks = [asyncio.create_task(wait()) for _ in range(2)]
            await asyncio.sleep(0.1)
        late = asyncio.create_task(wait())
        await asyncio.wait([*tasks, late])
        # A fair waiter is woken by the end of the key; the next is called by its release.
        assert ends <= got[0] < ends + (0.02 if fair or here else 0.1)
        assert got[2] < ends + 0.3
    await asyncio.sleep(4)


@pytest.mark.parametrize("keep", [500, 2_900, 3_100, 6_000])
async def test_a_fair_queue_does_not_stall_beyond_it(
    redlock: Redlock, masters: list[FakeMaster], keep: int
) -> None:
    """Shorter and longer than a place in the queue is believed to live, with a master hung."""
    async with Redlock(masters, restart_guard="off") as other:
        order: list[str] = []
        got: list[float] = []

        async def work(name: str) -> None:
            async with other.lock("r", fair=True):
                order.append(name)
                got.append(now())

        async with redlock.lock("r", fair=True, hold_at_least=keep):
            ends = now() + keep / 1000
            tasks = [asyncio.create_task(work("first"))]
            await asyncio.sleep(0.05)
            tasks.append(asyncio.create_task(work("second")))
            await asyncio.sleep(0.05)
            masters[0].hang()
        await asyncio.wait(tasks)
        assert order == ["first", "second"]
        assert ends <= got[0] < ends + 0.02
        assert got[1] < ends + 0.05
        masters[0].resume()
    await asyncio.sleep(5)
    assert not remaining_keys(masters, counters=False)


@pytest.mark.spread(1)
@pytest.mark.parametrize("held", range(3_000, 4_200, 100))
@pytest.mark.parametrize("here", [False, True])
async def test_a_fair_waiter_hears_when_it_ends_though_its_holder_was_long_taken_off_the_queue(
    redlock: Redlock, masters: list[FakeMaster], held: int, *, here: bool
) -> None:
    """The first waiter has asked before that, the second after it; the key had a longer ttl."""
    async with Redlock(masters, restart_guard="off") as other:
        got: list[float] = []

        async def work(waits: Redlock) -> None:
            async with waits.lock("r", fair=True):
                got.append(now())

        async with redlock.lock("r", fair=True, hold_at_least=held + 200):
            ends = now() + (held + 200) / 1000
            tasks = [asyncio.create_task(work(redlock if here else other))]
            await asyncio.sleep(0.37)
            tasks.append(asyncio.create_task(work(other)))
            await asyncio.sleep(held / 1000 - 0.37)
        await asyncio.wait(tasks)
        assert ends <= got[0] < ends + 0.02
        assert got[1] < ends + 0.05


@pytest.mark.parametrize("how", ["fails", "is cancelled", "releases itself"])
async def test_however_the_body_ends_it_is_kept(
    redlock: Redlock, masters: list[FakeMaster], how: str
) -> None:
    async def work() -> None:
        async with redlock.lock("r", hold_at_least=5_000) as lease:
            if how == "fails":
                raise KeyError
            if how == "releases itself":
                await lease.release()
            await asyncio.sleep(9)

    task = asyncio.create_task(work())
    await asyncio.sleep(0.05)
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled() or isinstance(task.exception(), KeyError)
    await asyncio.sleep(0.01)
    assert all(4_900 < ttl <= 5_000 for ttl in pttls(masters))
    await asyncio.sleep(5)
    assert keys(masters) == [{}] * 5


@pytest.mark.parametrize("options", OPTIONS, ids=str)
async def test_masters_that_have_forgotten_the_scripts_keep_it_too(
    redlock: Redlock, masters: list[FakeMaster], options: dict[str, Any]
) -> None:
    async with redlock.lock("r", hold_at_least=60_000, **options):
        for master in masters:
            master.execute([b"SCRIPT", b"FLUSH"])
    await asyncio.sleep(1)
    assert all(58_000 < ttl < 59_010 for ttl in pttls(masters))
    if "fair" in options:
        assert not any(b"live" in key for key in remaining_keys(masters))


async def test_a_hung_minority_does_not_matter(redlock: Redlock, masters: list[FakeMaster]) -> None:
    masters[0].hang()
    async with redlock.lock("r", hold_at_least=5_000):
        masters[1].hang()
        await asyncio.sleep(0.01)
        began = now()
    assert now() - began == pytest.approx(LATENCY)
    await asyncio.sleep(3)
    resume(masters)
    with pytest.raises(LockNotAcquiredError):
        await redlock.lock("r", wait=0).acquire()
    await asyncio.sleep(1)
    assert ["r" in master.keys for master in masters] == [True] * 5
    await asyncio.sleep(1.3)  # what they have executed late is taken back
    assert keys(masters) == [{}] * 5
    assert all("0 debts" in repr(master) for master in redlock._opener.session().links)


async def test_without_a_majority_it_ends_with_its_ttl(
    redlock: Redlock, masters: list[FakeMaster]
) -> None:
    async with redlock.lock("r", ttl=1000, hold_at_least=5_000):
        hang(masters[:3])
        began = now()
    assert now() - began == pytest.approx(0.05)
    await asyncio.sleep(1)
    resume(masters)
    await asyncio.sleep(0.2)
    assert [len(master.keys) for master in masters] == [0] * 3 + [1] * 2
    async with redlock.lock("r", wait=1000):
        pass


async def test_what_is_lost_is_released_at_once(
    redlock: Redlock, masters: list[FakeMaster]
) -> None:
    with pytest.raises(LockLostError):
        async with redlock.lock("r", hold_at_least=5_000):
            await asyncio.sleep(0.2)
            delete(masters[:3])
            await asyncio.sleep(9)
    await asyncio.sleep(0.1)
    assert keys(masters) == [{}] * 5
    with pytest.raises(LockLostError, match="max_hold"):
        async with redlock.lock("r", hold_at_least=5_000, max_hold=100):
            await asyncio.sleep(9)
    await asyncio.sleep(0.1)
    assert keys(masters) == [{}] * 5


async def test_whose_key_was_gone_at_the_release_hears_of_it(
    redlock: Redlock, masters: list[FakeMaster]
) -> None:
    lease = await redlock.lock("r", hold_at_least=5_000).acquire()
    for master in masters[:3]:
        master.delete("r")
        master.set("r", "theirs")
    with pytest.raises(LockNotHeldError, match="no longer has its key"):
        await lease.release()
    assert values(masters[:3]) == ["theirs"] * 3
    assert pttls(masters)[:3] == [-1] * 3


async def test_it_outlives_its_manager(masters: list[FakeMaster]) -> None:
    async with Redlock(masters) as redlock:
        lease = await redlock.lock("r", ttl=1000, hold_at_least=5_000).acquire()
        task = asyncio.create_task(lease.release())
        await asyncio.sleep(0)
    await task
    assert all(4_900 < ttl <= 5_001 for ttl in pttls(masters))
    async with Redlock(masters) as redlock:
        began = now()
        async with redlock.lock("r"):
            assert now() - began == pytest.approx(5, abs=0.1)


async def test_nobody_takes_again_what_is_only_kept(redlock: Redlock) -> None:
    lock = redlock.lock("r", hold_at_least=500, reentrant=True, owner="x")
    async with lock:
        pass
    assert await lock.try_acquire() is None
    with pytest.raises(LockNotAcquiredError):
        await redlock.lock("r", reentrant=True, owner="x", wait=0).acquire()
    async with lock as lease:  # it waits, and is not told that it waits for itself
        assert lease.hold_count == 1
        assert 0.49 < now() < 0.6


@pytest.mark.parametrize(
    ("first", "second", "kept"),
    [(0, 3_000, 3_100), (3_000, 0, 3_000), (3_000, 1_000, 3_000), (3_000, 2_950, 3_050)],
)
async def test_of_those_who_share_it_the_last_instant_counts(
    redlock: Redlock, masters: list[FakeMaster], first: int, second: int, kept: int
) -> None:
    async with redlock.lock("r", hold_at_least=first):
        began = now()
        await asyncio.sleep(0.1)
        async with redlock.lock("r", reentrant=True, hold_at_least=second):
            await asyncio.sleep(0.1)
        assert all(ttl > 9_000 for ttl in pttls(masters))  # it is still held
    ends = [now() + ttl / 1000 for ttl in pttls(masters)]
    assert ends == [pytest.approx(began + kept / 1000, abs=0.002)] * 5


@pytest.mark.parametrize("options", OPTIONS, ids=str)
async def test_several_are_kept_together(
    redlock: Redlock, masters: list[FakeMaster], options: dict[str, Any]
) -> None:
    acquired_at = await run(redlock, "a", "b", keep=2_000, **options)
    assert all(
        pttl == pytest.approx(2_000 - (now() - acquired_at) * 1000, abs=2)
        for name in "ab"
        for pttl in pttls(masters, name)
    )
    assert await redlock.lock("a").try_acquire() is None
    for fair in (False, True):
        async with redlock.lock("b", fair=fair):
            assert acquired_at + 2 <= now() < acquired_at + 2.05
    await asyncio.sleep(4)
    assert [m.keys for m in masters if "a" in m.keys or "b" in m.keys] == []


async def test_a_fencing_token_after_it_is_higher(redlock: Redlock) -> None:
    lock = redlock.lock("r", hold_at_least=500, fencing=True)
    async with lock as first:
        pass
    async with lock as second:
        assert second.fencing_token > first.fencing_token
        assert now() >= 0.5


@pytest.mark.parametrize(
    ("keep", "kind", "says"),
    [
        (-1, ValueError, "hold_at_least must be 0 or more, not -1 ms"),
        (timedelta(seconds=-1), ValueError, "hold_at_least must be 0 or more"),
        (timedelta(microseconds=1), ValueError, "hold_at_least must be whole milliseconds"),
        (1.5, TypeError, "hold_at_least must be an int"),
        (0.0, TypeError, "hold_at_least must be an int"),
        (False, TypeError, "hold_at_least must be an int"),
        (True, TypeError, "hold_at_least must be an int"),
        (None, TypeError, "hold_at_least must be an int"),
        ("5", TypeError, "hold_at_least must be an int"),
    ],
)
def test_it_is_a_time(keep: Any, kind: type[Exception], says: str) -> None:
    with pytest.raises(kind, match=says):
        Redlock(["redis://a"]).lock("r", hold_at_least=keep)
