"""A lease with several sharers: its ttl, its deadline, its release and its loss."""

import asyncio
import contextlib
import gc
from typing import Literal

import anyio
import pytest

from redlock_aio import LockLostError, LockNotHeldError, Redlock
from redlock_aio._protocol.scripts import EXTEND

from .kit import (
    LATENCY,
    Masters,
    before,
    cancelling,
    check_no_keys,
    delete,
    fail,
    keys,
    loop,
    now,
    ran,
)

OnLost = Literal["cancel", "flag"]
LOST = "'r' lost: a majority of the masters no longer has its key"


def extensions(masters: Masters) -> list[int]:
    """Return the number of extensions that each master was asked for."""
    return [ran(master, EXTEND) for master in masters]


async def lose(masters: Masters) -> None:
    """Delete the key once it is tracked, and wait for the cancellation."""
    await asyncio.sleep(0.2)
    delete(masters)
    await asyncio.sleep(9)


# The ttl and the deadline


async def test_a_longer_ttl_is_requested_at_once(redlock: Redlock, masters: Masters) -> None:
    async with redlock.lock("r", ttl=1000) as outer:
        began = now()
        async with redlock.lock("r", ttl=20_000, reentrant=True) as inner:
            assert now() == began
            await asyncio.sleep(0.001)
            assert (outer.ttl, inner.ttl) == (20_000, 20_000)
            assert inner.remaining == outer.remaining == pytest.approx(20_000 - 202, abs=2)
            await asyncio.sleep(5)
            assert extensions(masters) == [1] * 5
        await asyncio.sleep(40)
        assert outer.ttl == 20_000  # the watchdog continues with the longer ttl
        assert all(number <= 9 for number in extensions(masters))


@pytest.mark.parametrize("ttl", [100, 10_000])
async def test_a_ttl_that_is_not_longer_changes_nothing(
    redlock: Redlock, masters: Masters, ttl: int
) -> None:
    async with redlock.lock("r", ttl=10_000) as outer:
        await asyncio.sleep(1)
        async with redlock.lock("r", ttl=ttl, reentrant=True) as inner:
            assert (inner.ttl, inner.remaining) == (10_000, outer.remaining)
            await asyncio.sleep(1)
        assert extensions(masters) == [0] * 5


async def test_the_validity_is_that_of_the_moment_of_sharing(redlock: Redlock) -> None:
    async with redlock.lock("r", ttl=1000) as outer:
        await asyncio.sleep(5.123)
        async with redlock.lock("r", ttl=1000, reentrant=True) as inner:
            assert inner.validity == inner.remaining == outer.remaining > 600
        assert outer.validity == 1000 - 12 - 1


async def test_a_longer_ttl_is_requested_until_it_is_granted(
    redlock: Redlock, masters: Masters
) -> None:
    async with redlock.lock("r", ttl=1000) as lease:
        fail(masters)
        async with redlock.lock("r", ttl=9_000, reentrant=True):
            async with redlock.lock("r", ttl=100, reentrant=True):
                await asyncio.sleep(0.1)
            assert lease.ttl == 1000
            fail(masters, "")
            await asyncio.sleep(0.3)
            assert lease.ttl == 9_000
            await lease.extend()
            assert lease.ttl == 9_000
        await lease.extend(500)  # the longer ttl is sent last
        await asyncio.sleep(2)
        assert lease.ttl == 500


async def test_an_extension_without_a_ttl_takes_the_longest_one(
    redlock: Redlock, masters: Masters
) -> None:
    async with redlock.lock("r", ttl=1000) as lease:
        fail(masters)
        async with redlock.lock("r", ttl=9_000, reentrant=True):
            await asyncio.sleep(0.01)
            fail(masters, "")
            await lease.extend()
            assert lease.ttl == 9_000


async def test_an_explicit_extension_counts(redlock: Redlock, masters: Masters) -> None:
    async with redlock.lock("r", ttl=1000) as lease:
        await lease.extend(9_000)
        await asyncio.sleep(2)
        async with redlock.lock("r", ttl=8_000, reentrant=True):
            await asyncio.sleep(0.01)
        assert extensions(masters) == [1] * 5
        shorter = asyncio.create_task(lease.extend(500))
        await asyncio.sleep(0)
        async with redlock.lock("r", ttl=8_000, reentrant=True):
            await shorter
            await asyncio.sleep(0.01)
            assert lease.remaining > 7_000


async def test_the_longest_ttl_stays_when_a_shorter_one_ends_later(redlock: Redlock) -> None:
    async with redlock.lock("r", ttl=1000, auto_extend=False) as outer:
        await asyncio.sleep(0.8)
        async with redlock.lock("r", ttl=500, reentrant=True):
            await asyncio.sleep(0.01)
            assert outer.ttl == 1000
            assert outer.remaining > 950


@pytest.mark.parametrize("ttl", [100, 300, 1000])
async def test_one_sharer_that_extends_is_enough(redlock: Redlock, ttl: int) -> None:
    """This holds also if no extension is needed at that moment."""
    async with redlock.lock("r", ttl=1000, auto_extend=False) as outer:
        await asyncio.sleep(0.5)
        async with redlock.lock("r", ttl=ttl, reentrant=True):
            await asyncio.sleep(3)
        assert outer.valid


async def test_a_sharer_that_does_not_extend_gets_its_whole_ttl(
    redlock: Redlock, masters: Masters
) -> None:
    lock = redlock.lock("r", ttl=1000, auto_extend=False, reentrant=True)
    with pytest.raises(LockLostError):
        async with lock:
            await asyncio.sleep(0.6)
            with pytest.raises(LockLostError):
                async with lock:
                    began = now()
                    await asyncio.sleep(9)
            assert now() - began == pytest.approx(1 - 0.012 - 0.003)
            assert extensions(masters) == [1] * 5
            await asyncio.sleep(9)


async def test_max_hold_is_that_of_the_first(redlock: Redlock, masters: Masters) -> None:
    with pytest.raises(LockLostError, match="max_hold"):
        async with redlock.lock("r", ttl=1000, max_hold=800):
            lock = redlock.lock("r", ttl=9_000, max_hold=60_000, reentrant=True)
            async with lock as inner:
                assert inner.validity == 800
                await asyncio.sleep(0.01)
                assert extensions(masters) == [0] * 5
                await asyncio.sleep(9)
    assert now() == pytest.approx(0.8, abs=0.01)


async def test_a_lease_is_shared_while_it_is_extended(redlock: Redlock, masters: Masters) -> None:
    async with redlock.lock("r", ttl=1000) as outer:
        for ttl in (2_000, None, 700, 3_000):
            task = asyncio.create_task(outer.extend(ttl))
            await asyncio.sleep(0)
            async with redlock.lock("r", ttl=5_000, reentrant=True) as inner:
                await task
                await asyncio.sleep(0.01)
                assert (inner.ttl, inner.hold_count) == (5_000, 2)
                await asyncio.sleep(7)
                assert inner.valid
    assert keys(masters) == [{}] * 5


@pytest.mark.promise("S4")
async def test_an_expired_lease_is_not_shared(redlock: Redlock, masters: Masters) -> None:
    """Its end has not been noticed yet, because the loop was stalled."""
    lock = redlock.lock("r", ttl=300, reentrant=True)
    lease = await lock.acquire()
    loop().stall(1)
    async with lock as again:
        assert again.token != lease.token
        assert (again.hold_count, lease.valid) == (1, False)
        assert all(master.keys == {"r": again.token} for master in masters)
    assert lease.lost.is_set()


# The release


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 0, 2), (1, 2, 0)], ids=str)
async def test_the_last_release_in_any_order_releases(
    redlock: Redlock, masters: Masters, order: tuple[int, ...]
) -> None:
    lock = redlock.lock("r", reentrant=True)
    leases = [await lock.acquire() for _ in range(3)]
    for left, number in zip((2, 1, 0), order, strict=True):
        assert all(len(held) == 1 for held in keys(masters))
        began = now()
        await leases[number].release()
        assert now() == began + (0 if left else LATENCY)
        assert [lease.hold_count for lease in leases if lease.valid] == [left] * left
    assert keys(masters) == [{}] * 5


async def test_a_released_share_is_over_for_itself_only(redlock: Redlock, masters: Masters) -> None:
    lock = redlock.lock("r", reentrant=True)
    outer, inner = await lock.acquire(), await lock.acquire()
    await outer.release()
    for _ in range(2):
        with pytest.raises(LockNotHeldError, match="it has been released before"):
            await outer.release()
        with pytest.raises(LockNotHeldError, match="it has been released"):
            await outer.extend()
        with pytest.raises(LockNotHeldError, match="it has been released"):
            outer.ensure_valid()
    with pytest.raises(LockNotHeldError):
        async with outer:
            pytest.fail("the body ran")
    assert (outer.valid, outer.remaining, outer.hold_count) == (False, 0, 0)
    assert repr(outer) == "<Lease 'r', released>"
    assert (inner.valid, inner.hold_count) == (True, 1)
    await inner.extend(5_000)
    assert inner.ttl == 5_000
    inner.ensure_valid()
    assert all(held == {"r": inner.token} for held in keys(masters))
    await inner.release()
    await check_no_keys(masters)


async def test_a_share_released_in_its_body_is_not_guarded(
    redlock: Redlock, masters: Masters
) -> None:
    lock = redlock.lock("r", ttl=1000, reentrant=True)
    inner = await lock.acquire()
    async with lock as outer:
        await outer.release()
        delete(masters)
        await inner.lost.wait()
        await asyncio.sleep(1)  # the loss does not cancel this body
    with pytest.raises(LockNotHeldError):
        await inner.release()


async def test_a_last_release_that_was_cancelled_can_be_repeated(
    redlock: Redlock, masters: Masters
) -> None:
    lock = redlock.lock("r", reentrant=True)
    first, last = await lock.acquire(), await lock.acquire()
    await first.release()
    task = asyncio.create_task(last.release())
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled()
    assert repr(last) == "<Lease 'r', released>"
    await last.release()
    with pytest.raises(LockNotHeldError, match="released before"):
        await first.release()
    assert keys(masters) == [{}] * 5


async def test_a_lease_is_not_shared_while_it_is_released(
    redlock: Redlock, masters: Masters
) -> None:
    lock = redlock.lock("r", reentrant=True)
    lease = await lock.acquire()
    task = asyncio.create_task(lease.release())
    await asyncio.sleep(0)
    async with lock as again:
        assert again.token != lease.token
        await task
        assert all(master.keys == {"r": again.token} for master in masters)
    assert keys(masters) == [{}] * 5


@pytest.mark.promise("S2")
async def test_a_share_that_is_released_too_late_is_lost(redlock: Redlock) -> None:
    """The late release itself notices the loss."""
    lock = redlock.lock("r", ttl=300, reentrant=True)
    first, second = await lock.acquire(), await lock.acquire()
    loop().stall(1)
    for lease in (first, second):
        with pytest.raises(LockNotHeldError, match="validity"):
            await lease.release()
    with pytest.raises(LockLostError, match="validity"):
        async with lock, lock:
            loop().stall(1)


async def test_dropped_shares_warn_and_the_rest_is_extended(
    redlock: Redlock, masters: Masters
) -> None:
    lock = redlock.lock("r", ttl=1000, reentrant=True)
    first, second = await lock.acquire(), await lock.acquire()
    with pytest.warns(ResourceWarning, match="'r'.*was never released; 1 more share it"):
        del first
        gc.collect()
    await asyncio.sleep(5)
    assert (second.valid, second.hold_count) == (True, 1)
    with pytest.warns(ResourceWarning, match="it is not extended any more"):
        del second
        gc.collect()
    async with lock as again:  # the lease can still be shared
        assert again.hold_count == 1
        await asyncio.sleep(3)
        assert again.valid  # the lease is extended again
    assert keys(masters) == [{}] * 5
    assert redlock.statistics().leases == 0


# The loss


@pytest.mark.promise("S2")
async def test_each_body_is_cancelled_with_the_same_reason(
    redlock: Redlock, masters: Masters
) -> None:
    seen: list[str] = []
    lock = redlock.lock("r", reentrant=True)

    async def nest(depth: int) -> None:
        try:
            async with lock:
                try:
                    if depth:
                        await nest(depth - 1)
                    await lose(masters)
                except asyncio.CancelledError:
                    seen.append("cancelled")
                    raise
        except LockLostError as error:
            seen.extend([str(error), *getattr(error, "__notes__", [])])
            raise

    with pytest.raises(LockLostError):
        await nest(2)
    cancelled, *losses = seen
    assert cancelled == "cancelled"
    assert len(losses) == 3
    assert len({*losses}) == 1, "they have the same votes"
    assert losses[0].startswith(f"{LOST} (m")
    assert cancelling() == 0
    await check_no_keys(masters)


@pytest.mark.promise("S2")
@pytest.mark.parametrize("first_has_left", [False, True])
async def test_a_handled_loss_cancels_the_next_body(
    redlock: Redlock, masters: Masters, *, first_has_left: bool
) -> None:
    lock = redlock.lock("r", reentrant=True, owner="x")
    leave = asyncio.Event()
    steps = []

    async def first() -> None:
        async with lock:
            await leave.wait()

    task = asyncio.create_task(first()) if first_has_left else None
    await asyncio.sleep(0.01)
    with pytest.raises(LockLostError):
        async with lock:
            if task is not None:
                leave.set()
                await task
            with pytest.raises(LockLostError):
                async with lock:
                    await lose(masters)
            steps.append("after the inner body")
            await asyncio.sleep(0.01)
            steps.append("never")
    assert steps == ["after the inner body"]
    assert cancelling() == 0


async def test_an_error_of_the_inner_body_gets_one_note(redlock: Redlock, masters: Masters) -> None:
    lock = redlock.lock("r", reentrant=True)
    with pytest.raises(KeyError) as caught:
        async with lock, lock:
            try:
                await lose(masters)
            finally:
                raise KeyError
    (note,) = set(caught.value.__notes__)
    assert note.startswith(f"{LOST} (m")
    with pytest.raises(KeyError) as caught:
        async with lock, lock:
            raise KeyError
    assert not hasattr(caught.value, "__notes__")
    assert cancelling() == 0
    await check_no_keys(masters)


@pytest.mark.promise("S2")
@pytest.mark.parametrize("outer", ["cancel", "flag"])
async def test_each_share_has_its_own_on_lost(
    redlock: Redlock, masters: Masters, outer: OnLost
) -> None:
    inner: OnLost = "flag" if outer == "cancel" else "cancel"
    went_on = []
    with contextlib.ExitStack() as stack:
        if outer == "cancel":
            stack.enter_context(pytest.raises(LockLostError))
        async with redlock.lock("r", on_lost=outer) as first:
            with contextlib.nullcontext() if outer == "cancel" else pytest.raises(LockLostError):
                async with redlock.lock("r", reentrant=True, on_lost=inner) as second:
                    await asyncio.sleep(0.2)
                    delete(masters)
                    try:
                        await first.lost.wait()
                    finally:
                        assert second.lost.is_set()
                        assert (first.valid, second.valid) == (False, False)
                    await asyncio.sleep(0.01)
            await asyncio.sleep(0.01)
            went_on.append("outer")
    assert bool(went_on) == (outer == "flag")
    assert cancelling() == 0
    await check_no_keys(masters)


@pytest.mark.promise("S2")
async def test_bodies_of_other_tasks_are_cancelled_too(redlock: Redlock, masters: Masters) -> None:
    lock = redlock.lock("r", reentrant=True, owner="x")

    async def child() -> None:
        async with lock:
            await asyncio.sleep(9)

    with pytest.raises(LockLostError):
        async with lock:
            children = [asyncio.create_task(child()) for _ in range(3)]
            await lose(masters)
    await asyncio.wait(children)
    (loss,) = {str(task.exception()) for task in children}
    assert loss.startswith(f"{LOST} (m")
    await check_no_keys(masters)


async def test_a_body_that_has_ended_is_not_cancelled(redlock: Redlock, masters: Masters) -> None:
    lock = redlock.lock("r", reentrant=True)
    share = await lock.acquire()
    async with lock:
        await asyncio.sleep(0.2)
    delete(masters)
    await share.lost.wait()
    await asyncio.sleep(0.1)
    assert not share.valid


async def test_a_loss_during_the_longer_extension_ends_all(
    redlock: Redlock, masters: Masters
) -> None:
    for master in masters:
        before(master, EXTEND, lambda master=master: master.delete("r"))  # type: ignore[misc]
    with pytest.raises(LockLostError, match="no longer has its key"):
        async with redlock.lock("r", ttl=1000):
            lease = await redlock.lock("r", ttl=5000, reentrant=True).acquire()
            await asyncio.sleep(0.01)
            pytest.fail(f"{lease} is still held")


async def test_the_program_s_own_cancellation_passes_through(
    redlock: Redlock, masters: Masters
) -> None:
    lock = redlock.lock("r", reentrant=True)
    with anyio.move_on_after(0.1) as scope:
        async with lock:
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.05), lock:
                    await asyncio.sleep(9)
            async with lock as lease:
                assert lease.hold_count == 2
                await asyncio.sleep(9)
    assert scope.cancelled_caught
    assert cancelling() == 0
    await check_no_keys(masters)
