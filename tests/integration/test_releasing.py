"""Whose lock it is, and what a release does and does not do."""

import asyncio

import pytest

from redlock_aio import (
    Lease,
    LockLostError,
    LockNotAcquiredError,
    LockNotHeldError,
    Redlock,
)

from .helpers import AT_ONCE, RealMaster, call, connected, gone, put, until, values

pytestmark = pytest.mark.integration


async def test_a_second_release_is_an_error_and_harms_nobody(
    redlock: Redlock, other: Redlock, masters: list[RealMaster]
) -> None:
    """51: the key of whoever came after stays."""
    lease = await redlock.lock("r").acquire()
    await lease.release()
    async with other.lock("r", wait=5_000) as theirs:
        with pytest.raises(LockNotHeldError):
            await lease.release()
        await until(lambda: values(masters, "r") == [theirs.token] * 5)


async def test_a_release_after_the_end_is_reported_and_harms_nobody(
    redlock: Redlock, other: Redlock, masters: list[RealMaster]
) -> None:
    """52, 53, P6: the next holder's key is not ours to delete."""
    lease = await redlock.lock("r", ttl=200, auto_extend=False).acquire()
    async with other.lock("r", ttl=60_000, wait=5_000) as theirs:
        with pytest.raises(LockNotHeldError):
            await lease.release()
        await until(lambda: values(masters, "r") == [theirs.token] * 5)


async def test_a_release_of_a_stolen_lock_is_reported_and_harms_nobody(
    redlock: Redlock, masters: list[RealMaster]
) -> None:
    """51: when the holder itself has not noticed yet."""
    lease = await redlock.lock("r").acquire()
    await until(lambda: all(values(masters, "r")))
    put(masters, "r")
    with pytest.raises(LockNotHeldError, match="no longer has its key"):
        await lease.release()
    assert values(masters, "r") == ["somebody else"] * 5


@pytest.mark.promise("S1")
async def test_two_tasks_never_share_what_they_hold(
    redlock: Redlock, masters: list[RealMaster]
) -> None:
    """53, P6: one `Lock` object, two tasks; the first one's late release is its own."""
    lock = redlock.lock("r", ttl=800, auto_extend=False)
    first = await lock.acquire()
    second = await asyncio.create_task(lock.acquire())
    assert first.token != second.token
    with pytest.raises(LockNotHeldError):
        await first.release()
    assert second.valid
    assert values(masters, "r").count(second.token) >= 3
    await second.release()


async def test_a_second_acquisition_does_not_disturb_the_first(
    redlock: Redlock, masters: list[RealMaster]
) -> None:
    """53, P2: the lock's object knows no token that could be lost."""
    lock = redlock.lock("r")
    lease = await lock.acquire()
    assert await lock.try_acquire() is None
    assert await lock.try_acquire() is None
    await until(lambda: values(masters, "r") == [lease.token] * 5)
    await lease.release()
    await until(lambda: gone(masters, "r"))


async def test_what_one_task_acquires_another_can_release(
    redlock: Redlock, masters: list[RealMaster]
) -> None:
    """P9: a lease belongs to whoever has it, also through `asyncio.wait_for`."""
    lease = await asyncio.wait_for(redlock.lock("r").acquire(), 5)
    await lease.release()
    lease = await asyncio.create_task(redlock.lock("r").acquire())
    await asyncio.create_task(lease.release())
    await until(lambda: gone(masters, "r"))


async def test_the_block_releases_at_its_end_and_after_an_error(
    redlock: Redlock, masters: list[RealMaster]
) -> None:
    """54: whatever the body does."""
    async with redlock.lock("r"):
        assert any(values(masters, "r"))
    await until(lambda: gone(masters, "r"))
    with pytest.raises(KeyError):
        async with redlock.lock("r"):
            raise KeyError
    await until(lambda: gone(masters, "r"))


async def test_the_body_does_not_run_without_the_lock(redlock: Redlock, other: Redlock) -> None:
    """54, R5: not even with one attempt."""
    ran = False
    async with other.lock("r"):
        with pytest.raises(LockNotAcquiredError):
            async with redlock.lock("r", wait=0):
                ran = True
    assert not ran


@pytest.mark.promise("S2")
@pytest.mark.parametrize("loss", ["expired", "stolen", "masters dead"])
async def test_the_error_of_the_body_comes_out_whatever_happens_to_the_lock(
    redlock: Redlock, masters: list[RealMaster], loss: str
) -> None:
    """55, 43, P4b, N4: a loss that is known by then is a note on it."""
    with pytest.raises(KeyError) as caught:
        async with redlock.lock("r", ttl=300, auto_extend=False) as lease:
            await until(lambda: all(values(masters, "r")))
            if loss == "expired":
                try:
                    await lease.lost.wait()
                finally:
                    raise KeyError
            elif loss == "stolen":
                put(masters, "r")
            else:
                for master in masters:
                    master.kill()
            raise KeyError
    if loss == "expired":
        assert "lost" in str(getattr(caught.value, "__notes__", ""))


@pytest.mark.promise("S3")
async def test_a_release_that_is_cancelled_is_done_all_the_same(
    masters: list[RealMaster],
) -> None:
    """56: and can be called again, to wait for it."""
    async with connected(masters, master_timeout=20_000) as redlock:
        lease = await redlock.lock("r", ttl=60_000).acquire()
        await until(lambda: all(values(masters, "r")))
        for master in masters[:3]:
            master.pause()
        releasing = asyncio.create_task(lease.release())
        await until(lambda: gone(masters[3:], "r"))
        releasing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await releasing
        for master in masters[:3]:
            master.resume()
        await lease.release()
        await until(lambda: gone(masters, "r"))


@pytest.mark.promise("S3")
@pytest.mark.parametrize("faulting", [2, 3])
async def test_a_release_with_hung_masters_ends_in_time_and_is_done_when_they_answer(
    masters: list[RealMaster], faulting: int
) -> None:
    """57: a release is a promise to forget, so it is no error if it has to be kept later."""
    async with connected(masters, master_timeout=200) as redlock:
        lease = await redlock.lock("r", ttl=60_000).acquire()
        await until(lambda: all(values(masters, "r")))
        for master in masters[:faulting]:
            master.pause()
        await asyncio.wait_for(lease.release(), 5)
        assert gone(masters[faulting:], "r") or faulting < 3
        for master in masters[:faulting]:
            master.resume()
        await until(lambda: gone(masters, "r"))


async def test_scripts_that_a_master_forgot_are_given_to_it_again(
    redlock: Redlock, masters: list[RealMaster]
) -> None:
    """60: nobody notices, neither at the extension nor at the release."""
    async with redlock.lock("r", ttl=60_000) as lease:
        await until(lambda: all(values(masters, "r")))
        for master in masters:
            call(master, "SCRIPT", "FLUSH")
        async with asyncio.timeout(AT_ONCE):
            await lease.extend(30_000)
        for master in masters:
            call(master, "SCRIPT", "FLUSH")
    await until(lambda: gone(masters, "r"))


async def test_closing_the_manager_ends_its_leases_and_tells(masters: list[RealMaster]) -> None:
    """A body that runs is cancelled, the masters forget the lock, nothing stays open."""
    lease: Lease | None = None
    entered = asyncio.Event()

    async def holder(manager: Redlock) -> None:
        nonlocal lease
        async with manager.lock("r", ttl=60_000) as lease:
            entered.set()
            await asyncio.sleep(20)

    async with connected(masters) as redlock:
        task = asyncio.create_task(holder(redlock))
        await entered.wait()
    with pytest.raises(LockLostError, match="closed"):
        await task
    assert lease is not None
    assert not lease.valid
    await until(lambda: gone(masters, "r"))
    await until(lambda: all(len(call(m, "CLIENT LIST")) == 1 for m in masters))


async def test_closing_with_hung_masters_ends_in_time_and_leaves_nothing_open(
    masters: list[RealMaster],
) -> None:
    """One master time-out, whoever hangs; what was sent is executed when they go on."""
    async with asyncio.timeout(10):
        async with connected(masters, master_timeout=200) as redlock:
            lease = await redlock.lock("r", ttl=60_000).acquire()
            await until(lambda: all(values(masters, "r")))
            for master in masters[:2]:
                master.pause()
    assert not lease.valid
    for master in masters[:2]:
        master.resume()
    await until(lambda: gone(masters, "r"))
