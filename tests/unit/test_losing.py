"""The loss of a lease and its effects on the holder, in virtual time."""

import asyncio
import gc
import math
from typing import Any

import anyio
import pytest

from redlock_aio import LockLostError, LockNotHeldError, Redlock
from redlock_aio._engine.hold.held_lease import HeldLease
from redlock_aio._engine.hold.watchdog import BATCH
from redlock_aio._protocol.scripts import EXTEND

from .kit import (
    Masters,
    cancelling,
    delete,
    hang,
    keys,
    loop,
    now,
    occupy,
    ran,
    resume,
    settle,
)  # fmt: skip

pytestmark = pytest.mark.promise("S2")

TOO_LATE = "'r' lost: it was not extended before its validity was over"
VOTES = "m0: timed out; m1: timed out; m2: timed out; m3: granted; m4: granted"
HUNG = f"{TOO_LATE} ({VOTES}) [not-extended]"


async def test_the_body_is_cancelled_before_the_deadline(
    redlock: Redlock, masters: Masters
) -> None:
    ended = math.inf
    with pytest.raises(LockLostError) as caught:
        async with redlock.lock("r", ttl=1000) as lease:
            hang(masters[:3])
            deadline = now() + lease.remaining / 1000
            try:
                await asyncio.sleep(9)
            finally:
                ended = now()
                assert not lease.valid
    assert deadline - 0.005 <= ended <= deadline - 0.002  # a real loop's timers are late
    assert caught.value.resources == ("r",)
    assert str(caught.value) == HUNG
    assert not cancelling()
    await settle(masters)
    assert keys(masters) == [{}] * 5


ENDINGS: dict[str, dict[str, Any]] = {
    "not extended": {"ttl": 1000, "auto_extend": False},
    "max_hold": {"ttl": 1000, "max_hold": 1500},
    "a reader": {"ttl": 1000, "auto_extend": False, "shared": True},
    "a permit": {"ttl": 1000, "auto_extend": False, "permits": 1},
}


@pytest.mark.promise("S1")
@pytest.mark.parametrize("name", ENDINGS)
async def test_nobody_gets_the_lock_before_the_deadline_that_the_lease_has_named(
    redlock: Redlock, other: Redlock, name: str
) -> None:
    """The loss is told in advance, and what the body still does counts on that time."""
    options = ENDINGS[name]
    kind = {key: options[key] for key in ("permits",) if key in options}
    lease = await redlock.lock("r", on_lost="flag", **options).acquire()
    deadline = 0.0
    taker = asyncio.create_task(other.lock("r", fair=not kind or None, **kind).acquire())
    while lease.valid:
        deadline = now() + lease.remaining / 1000
        await asyncio.sleep(0.0005)
    assert now() < deadline
    taken = await taker
    assert deadline <= now() < deadline + 0.01
    await taken.release()


async def test_closing_releases_what_is_about_to_end(redlock: Redlock, masters: Masters) -> None:
    lease = await redlock.lock("r", ttl=1000, auto_extend=False, on_lost="flag").acquire()
    await lease.lost.wait()
    assert keys(masters) != [{}] * 5
    await redlock.aclose()
    await settle(masters)
    assert keys(masters) == [{}] * 5


async def test_a_body_that_swallows_cancellations_gets_more(
    redlock: Redlock, masters: Masters
) -> None:
    cancelled = 0
    with pytest.raises(LockLostError):
        async with redlock.lock("r", ttl=1000):
            hang(masters[:3])
            for _ in range(3):
                try:
                    await asyncio.sleep(9)
                except asyncio.CancelledError:
                    cancelled += 1
    assert cancelled == 3


async def test_a_lease_that_is_entered_later_is_guarded(redlock: Redlock, masters: Masters) -> None:
    lease = await redlock.lock("r", ttl=1000).acquire()
    hang(masters[:3])
    with pytest.raises(LockLostError):
        async with lease:
            await asyncio.sleep(9)
    with pytest.raises(RuntimeError, match="only once"):
        await lease.__aenter__()


async def test_a_lost_lease_reports_the_loss_at_once(redlock: Redlock, masters: Masters) -> None:
    lease = await redlock.lock("r", ttl=1000).acquire()
    hang(masters[:3])
    await asyncio.sleep(2)
    await lease.lost.wait()
    with pytest.raises(LockNotHeldError):
        await lease.release()
    with pytest.raises(LockLostError):
        async with lease:
            pytest.fail("the body ran")


@pytest.mark.parametrize("stopped", ["stall", "suspend"])
async def test_after_a_stall_nothing_is_valid(redlock: Redlock, stopped: str) -> None:
    with pytest.raises(LockLostError):
        async with redlock.lock("r", ttl=1000) as lease:
            getattr(loop(), stopped)(2)
            assert not lease.valid
            assert lease.remaining == 0
            assert repr(lease) == "<Lease 'r', lost>"
            with pytest.raises(LockLostError):
                lease.ensure_valid()
            assert lease.lost.is_set()


async def test_a_stall_is_named_for_all_leases_that_it_ended(redlock: Redlock) -> None:
    """It is named also for leases that the watchdog handles in a later turn of the loop."""
    leases = [await redlock.lock(f"r{n}", ttl=1000).acquire() for n in range(BATCH + 5)]
    loop().stall(2)
    await asyncio.sleep(0.1)
    for lease in leases:
        with pytest.raises(LockLostError, match=r"the event loop did not run for (1\.[89]|2\.0) s"):
            lease.ensure_valid()


@pytest.mark.parametrize("stalled", [0.5, 0.04])
async def test_a_harmless_stall_is_not_named(
    redlock: Redlock, masters: Masters, stalled: float
) -> None:
    """A short stall is not named, nor one that ended before the masters hung."""
    lease = await redlock.lock("r", ttl=1000).acquire()
    await asyncio.sleep(0.3)
    loop().stall(stalled)
    await asyncio.sleep(0.2)
    hang(masters[:3])
    await lease.lost.wait()
    with pytest.raises(LockLostError, match=r"its validity was over \("):
        lease.ensure_valid()
    resume(masters)


async def test_after_a_stall_the_next_wait_is_cancelled(redlock: Redlock) -> None:
    steps = []
    with pytest.raises(LockLostError):
        async with redlock.lock("r", ttl=1000):
            loop().stall(2)
            await asyncio.sleep(0)  # asyncio runs ready callbacks before timers that are due
            steps.append("what is ready")
            await asyncio.sleep(0.01)
            steps.append("never")
    assert steps == ["what is ready"]


async def test_a_suspension_is_noticed_soon_after_its_end(redlock: Redlock) -> None:
    with pytest.raises(LockLostError):
        async with redlock.lock("r", ttl=60_000):
            await asyncio.sleep(1)
            loop().suspend(3600)
            woke = now()
            await asyncio.sleep(30)
    assert now() - woke <= 0.5


@pytest.mark.parametrize("closes", [False, True])
async def test_a_lease_that_is_lost_when_it_is_to_be_extended_is_not_extended(
    redlock: Redlock, masters: Masters, closes: bool
) -> None:
    """Its loss is told a little before its deadline, when its key is released, or at the close."""
    lease = await redlock.lock("r", ttl=1000).acquire()
    loop().stall(lease.remaining / 1000 - 0.002)
    with pytest.raises(LockLostError):
        await lease.extend()
    assert len(masters[0].keys) == 1
    await (redlock.aclose() if closes else asyncio.sleep(0.01))
    assert ran(masters[0], EXTEND) == 0
    assert keys(masters) == [{}] * 5


async def test_a_body_that_ends_too_late_gets_the_loss(redlock: Redlock) -> None:
    with pytest.raises(LockLostError):
        async with redlock.lock("r", ttl=1000) as lease:
            loop().stall(2)
    with pytest.raises(LockLostError):
        lease.ensure_valid()


async def test_an_error_of_the_body_gets_the_loss_as_a_note(
    redlock: Redlock, masters: Masters
) -> None:
    with pytest.raises(KeyError) as caught:
        async with redlock.lock("r", ttl=1000):
            loop().stall(2)
            raise KeyError
    (note,) = caught.value.__notes__
    assert note.startswith(f"{TOO_LATE}: the event")
    with pytest.raises(KeyError) as caught:
        async with redlock.lock("r", ttl=1000):
            hang(masters[:3])
            try:
                await asyncio.sleep(9)
            finally:
                raise KeyError
    assert caught.value.__notes__ == [HUNG]


async def test_a_group_of_errors_does_not_contain_the_library_s_cancellation(
    redlock: Redlock, masters: Masters
) -> None:
    async def child() -> None:
        try:
            await anyio.sleep(9)
        finally:
            raise KeyError

    with pytest.raises(ExceptionGroup) as caught:
        async with redlock.lock("r", ttl=1000), anyio.create_task_group() as group:
            hang(masters[:3])
            group.start_soon(child)
    assert [type(error) for error in caught.value.exceptions] == [KeyError]
    assert len(caught.value.__notes__) == 1


async def test_a_group_that_the_body_makes_keeps_only_its_other_errors(
    redlock: Redlock, masters: Masters
) -> None:
    lock = redlock.lock("r", ttl=1000, reentrant=True)
    with pytest.raises(LockLostError):
        async with lock:
            with pytest.raises(ExceptionGroup) as caught:
                async with lock:
                    hang(masters[:3])
                    try:
                        await asyncio.sleep(9)
                    except asyncio.CancelledError as cancelled:
                        raise BaseExceptionGroup("", [cancelled, KeyError()]) from None
            await asyncio.sleep(9)  # the outer body is cancelled, too
    assert [type(error) for error in caught.value.exceptions] == [KeyError]
    assert caught.value.__notes__ == [HUNG]
    assert now() < 1
    assert cancelling() == 0
    await settle(masters)
    assert keys(masters) == [{}] * 5


async def test_an_error_of_the_body_does_not_wait_for_the_release(
    redlock: Redlock, masters: Masters
) -> None:
    with pytest.raises(KeyError):
        async with redlock.lock("r"):
            hang(masters)
            failed_at = now()
            raise KeyError
    assert now() == failed_at
    await settle(masters)
    assert keys(masters) == [{}] * 5


async def test_a_key_that_is_gone_at_the_release_is_a_loss(
    redlock: Redlock, masters: Masters
) -> None:
    with pytest.raises(LockLostError, match="no longer has its key"):
        async with redlock.lock("r") as lease:
            occupy(masters[:3])
    assert lease.lost.is_set()
    assert keys(masters) == [{"r": "theirs"}] * 3 + [{}] * 2


async def test_half_of_an_even_number_of_masters_is_enough_to_lose_a_key(masters: Masters) -> None:
    """No majority is left that could extend it."""
    async with Redlock(masters[:4], restart_guard="off") as redlock:
        lease = await redlock.lock("r", ttl=60_000).acquire()
        await asyncio.sleep(1)
        delete(masters[:2])
        await asyncio.sleep(0.1)
        assert lease.lost.is_set()
        with pytest.raises(LockLostError, match="no longer has its key"):
            lease.ensure_valid()


async def test_a_lost_key_is_noticed_soon_and_its_rest_released(
    redlock: Redlock, masters: Masters
) -> None:
    lease = await redlock.lock("r", ttl=1000).acquire()
    occupy(masters[:3])
    await lease.lost.wait()
    await asyncio.sleep(0.1)
    assert now() < 0.5  # long before the deadline
    assert keys(masters) == [{"r": "theirs"}] * 3 + [{}] * 2


@pytest.mark.parametrize("on_lost", ["cancel", "flag"])
async def test_a_lease_is_entered_once(redlock: Redlock, on_lost: Any) -> None:
    """The end of an inner block would release it, and the outer one would go on without it."""
    lock = redlock.lock("r", on_lost=on_lost)
    async with lock as lease:
        with pytest.raises(RuntimeError, match="a lease can be entered only once"):
            async with lease:
                pass
        assert lease.valid
    async with await lock.acquire() as lease:
        with pytest.raises(RuntimeError, match="a lease can be entered only once"):
            async with lease:
                pass
        assert lease.valid


async def test_with_flag_the_body_is_not_cancelled(redlock: Redlock, masters: Masters) -> None:
    async with redlock.lock("r", ttl=1000, on_lost="flag") as lease:
        hang(masters[:3])
        assert not lease.lost.is_set()
        await lease.lost.wait()
        assert not lease.valid
        await asyncio.sleep(5)
        with pytest.raises(LockLostError):
            lease.ensure_valid()
        with pytest.raises(LockLostError):
            await lease.extend()
        assert repr(lease) == "<Lease 'r', lost>"


async def test_a_release_in_the_body_ends_the_guard(redlock: Redlock, masters: Masters) -> None:
    async with redlock.lock("r", ttl=1000) as lease:
        await lease.release()
        hang(masters[:3])
        await asyncio.sleep(5)
    with pytest.raises(LockNotHeldError, match="released before"):
        await lease.release()


async def test_closing_the_manager_ends_its_leases(redlock: Redlock, masters: Masters) -> None:
    """This includes shared leases, and those with *hold_at_least*, which nothing would release."""
    lock = redlock.lock("r", reentrant=True, owner="x", hold_at_least=5_000)

    async def body() -> None:
        async with lock, lock:
            await asyncio.sleep(9)

    tasks = [asyncio.create_task(body()) for _ in range(2)]
    await asyncio.sleep(0.1)
    await redlock.aclose()
    await asyncio.wait(tasks)
    for task in tasks:
        with pytest.raises(LockLostError, match="'r' lost: its Redlock was closed"):
            task.result()
    assert keys(masters) == [{}] * 5


async def test_a_dropped_lease_warns_and_is_not_extended(
    redlock: Redlock, masters: Masters
) -> None:
    lease = await redlock.lock("r", ttl=1000).acquire()
    await asyncio.sleep(2)
    with pytest.warns(ResourceWarning, match="'r'.*was never released; it is not ext") as warned:
        del lease
        gc.collect()
    assert warned[0].filename == __file__  # which has dropped it
    assert len(masters[0].keys) == 1
    await asyncio.sleep(1.1)
    assert keys(masters) == [{}] * 5
    assert redlock.statistics().leases == 0


@pytest.mark.parametrize("how", ["lost", "released"])
async def test_a_lease_that_ends_after_a_failed_extension_is_freed_at_once(
    redlock: Redlock, masters: Masters, how: str
) -> None:
    """The extension refers to the lease; many leases may be lost when the masters are away."""
    lease = await redlock.lock("r", ttl=1000).acquire()
    gc.collect()
    gc.disable()
    try:
        hang(masters[:3])
        await asyncio.sleep(2 if how == "lost" else 0.5)
        resume(masters)
        if how == "released":
            await lease.release()
        del lease
        await asyncio.sleep(3)
        assert not [thing for thing in gc.get_objects() if isinstance(thing, HeldLease)]
    finally:
        gc.enable()


async def test_a_release_that_comes_too_late_tells_those_who_watch_the_lease(
    redlock: Redlock,
) -> None:
    """The timer that would tell them is late, too."""
    lease = await redlock.lock("r", ttl=1_000, on_lost="flag").acquire()
    lost = lease.lost
    loop().stall(2)
    with pytest.raises(LockNotHeldError):
        await lease.release()
    assert lost.is_set()
