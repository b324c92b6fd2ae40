"""Locks that the masters keep for a while after the release: *hold_at_least*."""

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from redlock_aio import LockLostError, LockNotHeldError, Redlock

from .kit import (
    KINDS,
    LATENCY,
    Masters,
    count_up,
    delete,
    fail,
    hang,
    has_lock,
    keys,
    now,
    occupy,
    refused,
    remaining_keys,
    resume,
    slow,
    values,
)

OPTIONS = [*KINDS, {"auto_extend": False}, {"metadata": {"job": "x"}}]
ALL_KINDS = pytest.mark.parametrize("options", OPTIONS, ids=str)


def pttls(masters: Masters, name: str = "r") -> list[int]:
    return [master.pttl(name) for master in masters]


async def use(redlock: Redlock, *names: str, keep: Any, **options: Any) -> float:
    """Hold a lock for 10 ms; return when it was acquired."""
    async with redlock.lock(*(names or ("r",)), hold_at_least=keep, **options) as lease:
        acquired = now()
        await asyncio.sleep(0.01)
    assert not lease.valid
    assert repr(lease).endswith("released>")
    return acquired


@pytest.mark.spread(1)
@ALL_KINDS
@pytest.mark.parametrize("keep", [50, 5_000, 70_000, timedelta(days=1)])
async def test_the_key_is_kept_from_the_acquisition_on(
    redlock: Redlock, masters: Masters, keep: int | timedelta, options: dict[str, Any]
) -> None:
    """Its end is exact: shorter than the ttl, longer, and longer than max_ttl."""
    acquired = await use(redlock, keep=keep, **options)
    seconds = keep / timedelta(seconds=1) if isinstance(keep, timedelta) else keep / 1000
    ends = acquired + seconds
    assert now() == pytest.approx(acquired + 0.01 + LATENCY)
    assert pttls(masters) == [pytest.approx((ends - now()) * 1000 + 0.5, abs=1.6)] * 5
    await asyncio.sleep(ends - now() - 0.001)
    assert None not in values(masters)
    assert redlock.statistics().leases == 0
    await asyncio.sleep(0.003)
    assert values(masters) == [None] * 5
    if "fair" in options:
        await asyncio.sleep(4)
        assert not remaining_keys(masters, counters=False)


async def test_the_time_of_the_acquisition_does_not_count(
    redlock: Redlock, masters: Masters
) -> None:
    slow(masters, 0.04)
    acquired = await use(redlock, keep=1000)
    assert now() == pytest.approx(acquired + 0.05)
    ends = [now() + ttl / 1000 for ttl in pttls(masters)]
    assert (
        ends == [pytest.approx(acquired + 1 + 0.02, abs=0.0015)] * 5
    )  # the masters execute it after 20 ms


@pytest.mark.promise("S3")
@ALL_KINDS
async def test_a_master_that_answers_the_release_with_an_error_keeps_it_no_longer(
    redlock: Redlock, masters: Masters, options: dict[str, Any]
) -> None:
    """Its key would otherwise stay for the whole ttl of the lease."""
    async with redlock.lock("r", ttl=20_000, hold_at_least=1_000, **options) as lease:
        await asyncio.sleep(0.01)
        fail(masters[3:], "BUSY a script is running")
    fail(masters[3:], "")
    assert has_lock(masters, lease) == [True] * 5
    await asyncio.sleep(1.3)  # a release that is repeated leaves within 0.2 s
    assert values(masters) == [None] * 5


@pytest.mark.promise("S3")
@pytest.mark.parametrize("fair", [False, True])
async def test_a_master_whose_counter_is_beyond_the_token_keeps_it_no_longer(
    redlock: Redlock, masters: Masters, *, fair: bool
) -> None:
    """It refuses the last extension, and would keep the key for the whole ttl of the lease."""
    options = {"fair": fair, "fencing": True, "ttl": 20_000, "hold_at_least": 1_000}
    async with redlock.lock("r", **options) as lease:  # type: ignore[arg-type]
        await asyncio.sleep(0.01)
        for master in masters[3:]:
            count_up(master)
    assert has_lock(masters, lease) == [True] * 5
    await asyncio.sleep(1.3)  # a release that is repeated leaves within 0.2 s
    assert values(masters) == [None] * 5


@pytest.mark.parametrize("keep", [0, 5, timedelta(0)])
@pytest.mark.parametrize("can_free", [True, False])
async def test_after_that_time_the_lock_is_released_as_usual(
    masters: Masters, keep: int | timedelta, *, can_free: bool
) -> None:
    for master in masters:
        master.forbid = set() if can_free else {"DELIFEQ"}
    async with Redlock(masters) as redlock:
        await use(redlock, keep=keep)
        last = {master.commands[-1][0] for master in masters}
        assert last == {b"DELIFEQ" if can_free else b"EVALSHA"}
        assert keys(masters) == [{}] * 5


@pytest.mark.spread(0)
@pytest.mark.parametrize("fair", [False, True])
@pytest.mark.parametrize("here", [False, True])
@ALL_KINDS
async def test_waiters_acquire_when_that_time_is_over(
    redlock: Redlock, other: Redlock, options: dict[str, Any], *, here: bool, fair: bool
) -> None:
    got: list[float] = []

    async def wait() -> None:
        async with (redlock if here else other).lock("r", fair=fair):
            got.append(now())

    async with redlock.lock("r", hold_at_least=700, **options):
        ends = now() + 0.7
        tasks = [asyncio.create_task(wait()) for _ in range(2)]
        await asyncio.sleep(0.1)
    await asyncio.wait([*tasks, asyncio.create_task(wait())])
    # The end of the key wakes the first fair waiter; its release wakes the next one.
    assert ends <= got[0] < ends + (0.02 if fair or here else 0.1)
    assert got[2] < ends + 0.3
    await asyncio.sleep(4)


@pytest.mark.spread(0)
@pytest.mark.parametrize("held", [50, 500, *range(3_000, 4_200, 100)])
@pytest.mark.parametrize("hung", [0, 1])
@pytest.mark.parametrize("here", [False, True])
async def test_fair_waiters_acquire_in_order_when_that_time_is_over(
    redlock: Redlock, other: Redlock, masters: Masters, held: int, hung: int, *, here: bool
) -> None:
    """
    The time is shorter or longer than the registration of a waiter in the queue.

    When the registration is over, the holder is removed from the queue. The first waiter asks
    before that, the second one after it, and the key had a longer ttl than is left.
    """
    order: list[str] = []
    got: list[float] = []

    async def wait(manager: Redlock, name: str) -> None:
        async with manager.lock("r", fair=True):
            order.append(name)
            got.append(now())

    async with redlock.lock("r", fair=True, hold_at_least=held + 600):
        ends = now() + (held + 600) / 1000
        tasks = [asyncio.create_task(wait(redlock if here else other, "first"))]
        await asyncio.sleep(0.37)
        tasks.append(asyncio.create_task(wait(other, "second")))
        await asyncio.sleep(0.05)
        hang(masters[:hung])
        await asyncio.sleep(max(held / 1000 - 0.42, 0))
    await asyncio.wait(tasks)
    assert order == ["first", "second"]
    assert ends <= got[0] < ends + 0.02
    assert got[1] < ends + 0.05
    resume(masters)
    await asyncio.sleep(5)
    assert not remaining_keys(masters, counters=False)


@pytest.mark.parametrize("how", ["fails", "is cancelled", "releases"])
async def test_the_key_is_kept_however_the_body_ends(
    redlock: Redlock, masters: Masters, how: str
) -> None:
    async def work() -> None:
        async with redlock.lock("r", hold_at_least=5_000) as lease:
            if how == "fails":
                raise KeyError
            if how == "releases":
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


@pytest.mark.parametrize("options", [{}, {"fair": True}], ids=str)
async def test_masters_without_the_scripts_keep_the_lock(
    redlock: Redlock, masters: Masters, options: dict[str, Any]
) -> None:
    async with redlock.lock("r", hold_at_least=60_000, **options):
        for master in masters:
            master.execute([b"SCRIPT", b"FLUSH"])
    await asyncio.sleep(1)
    assert all(58_000 < ttl < 59_010 for ttl in pttls(masters))
    assert not any(b"queue" in key for key in remaining_keys(masters))


def lose_scripts(masters: Masters) -> None:
    for master in masters:
        master.execute([b"SCRIPT", b"FLUSH"])


@pytest.mark.promise("S3")
async def test_a_master_that_gets_the_request_again_in_time_needs_no_release(
    redlock: Redlock, masters: Masters
) -> None:
    """It had lost its scripts. Its key ends by itself, a round trip after those of the others."""
    async with redlock.lock("r", ttl=20_000, hold_at_least=1_000) as lease:
        ends = now() + 1
        lose_scripts(masters[3:])
    await asyncio.sleep(ends - now() - 0.001)
    assert has_lock(masters, lease) == [True] * 5
    sent = [len(master.commands) for master in masters[3:]]
    await asyncio.sleep(0.001 + 4 * LATENCY)
    assert values(masters) == [None] * 5
    assert [len(master.commands) for master in masters[3:]] == sent
    assert redlock.statistics().debts == 0


@pytest.mark.promise("S3")
async def test_a_master_that_executes_the_repeated_request_late_keeps_it_no_longer(
    redlock: Redlock, masters: Masters
) -> None:
    """It hangs when the repetition arrives, and would keep the key for the full time from then."""
    lease = await redlock.lock("r", ttl=20_000, hold_at_least=1_000).acquire()
    ends = now() + 1
    lose_scripts(masters[3:])
    task = asyncio.create_task(lease.release())
    await asyncio.sleep(1.25 * LATENCY)  # NOSCRIPT has arrived, the repetition has not
    hang(masters[3:])
    await task
    await asyncio.sleep(0.8)
    resume(masters)
    await asyncio.sleep(ends - now() - 0.05)
    assert has_lock(masters, lease) == [True] * 5
    await asyncio.sleep(0.35)  # a release that is repeated leaves within 0.2 s
    assert values(masters) == [None] * 5


async def test_a_hung_minority_does_not_matter(redlock: Redlock, masters: Masters) -> None:
    masters[0].hang()
    async with redlock.lock("r", hold_at_least=5_000):
        masters[1].hang()
        await asyncio.sleep(0.01)
        began = now()
    assert now() - began == pytest.approx(LATENCY)
    await asyncio.sleep(3)
    resume(masters)
    await refused(redlock)
    await asyncio.sleep(1)
    assert None not in values(masters)
    await asyncio.sleep(1.3)  # requests that they executed late are undone
    assert keys(masters) == [{}] * 5
    assert redlock.statistics().debts == 0


async def test_without_a_majority_the_lock_ends_with_its_ttl(
    redlock: Redlock, masters: Masters
) -> None:
    async with redlock.lock("r", ttl=1000, hold_at_least=5_000):
        hang(masters[:3])
        began = now()
    assert now() - began == pytest.approx(0.05)
    await asyncio.sleep(1)
    resume(masters)
    await asyncio.sleep(0.2)
    assert [len(held) for held in keys(masters)] == [0] * 3 + [1] * 2
    async with redlock.lock("r", wait=1000):
        pass


async def test_a_lost_lease_is_not_kept(redlock: Redlock, masters: Masters) -> None:
    for max_hold, why in ((None, "no longer has its key"), (100, "max_hold")):
        with pytest.raises(LockLostError, match=why):
            async with redlock.lock("r", hold_at_least=5_000, max_hold=max_hold):
                await asyncio.sleep(0.2)
                delete(masters[:3])
                await asyncio.sleep(9)
        await asyncio.sleep(0.1)
        assert keys(masters) == [{}] * 5


async def test_a_key_that_is_gone_at_the_release_is_a_loss(
    redlock: Redlock, masters: Masters
) -> None:
    lease = await redlock.lock("r", hold_at_least=5_000).acquire()
    occupy(masters[:3])
    with pytest.raises(LockNotHeldError, match="no longer has its key"):
        await lease.release()
    assert values(masters[:3]) == ["theirs"] * 3
    assert pttls(masters)[:3] == [-1] * 3


async def test_the_key_outlives_the_manager(masters: Masters) -> None:
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


async def test_a_kept_lock_is_not_shared(redlock: Redlock) -> None:
    lock = redlock.lock("r", hold_at_least=500, reentrant=True, owner="x", fencing=True)
    async with lock as first:
        pass
    assert await lock.try_acquire() is None
    await refused(redlock, reentrant=True, owner="x")
    async with lock as lease:  # an ordinary wait, not a wait of a task for itself
        assert lease.hold_count == 1
        assert 0.49 < now() < 0.6
        assert lease.fencing_token > first.fencing_token


@pytest.mark.parametrize(
    ("first", "second", "kept"),
    [(0, 3_000, 3_100), (3_000, 0, 3_000), (3_000, 1_000, 3_000), (3_000, 2_950, 3_050)],
)
async def test_of_several_sharers_the_last_end_counts(
    redlock: Redlock, masters: Masters, first: int, second: int, kept: int
) -> None:
    async with redlock.lock("r", hold_at_least=first):
        began = now()
        await asyncio.sleep(0.1)
        async with redlock.lock("r", reentrant=True, hold_at_least=second):
            await asyncio.sleep(0.1)
        assert all(ttl > 9_000 for ttl in pttls(masters))  # the lock is still held
    ends = [now() + ttl / 1000 for ttl in pttls(masters)]
    assert ends == [pytest.approx(began + kept / 1000, abs=0.002)] * 5


@ALL_KINDS
async def test_several_are_kept_together(
    redlock: Redlock, masters: Masters, options: dict[str, Any]
) -> None:
    acquired = await use(redlock, "a", "b", keep=2_000, **options)
    left = 2_000 - (now() - acquired) * 1000
    for name in "ab":
        assert pttls(masters, name) == [pytest.approx(left, abs=2)] * 5
    assert await redlock.lock("a").try_acquire() is None
    for fair in (False, True):
        async with redlock.lock("b", fair=fair):
            assert acquired + 2 <= now() < acquired + 2.05
    await asyncio.sleep(4)
    assert not remaining_keys(masters, counters=False)


@pytest.mark.parametrize(
    ("keep", "kind", "match"),
    [
        (-1, ValueError, "must be 0 or more, not -1 ms"),
        (timedelta(seconds=-1), ValueError, "must be 0 or more"),
        (timedelta(microseconds=1), ValueError, "must be whole milliseconds"),
        *[(wrong, TypeError, "must be an int") for wrong in (1.5, 0.0, False, True, None, "5")],
    ],
)
def test_hold_at_least_is_a_duration(keep: Any, kind: type[Exception], match: str) -> None:
    with pytest.raises(kind, match=f"hold_at_least {match}"):
        Redlock(["redis://a"]).lock("r", hold_at_least=keep)
