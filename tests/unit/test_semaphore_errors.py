"""What the errors of a semaphore say, and a task that would wait for its own permits for ever."""

import asyncio
import pickle
from typing import Any

import pytest

from redlock_aio import (
    Answer,
    LockNotAcquiredError,
    QuorumUnavailableError,
    Redlock,
    RedlockError,
)
from redlock_aio.testing import FakeMaster

from .kit import kill

ADVICE = (
    "wait for longer (wait=), allow more of them (permits=), or see who holds them:"
    " Semaphore.inspect()"
)


async def missed(redlock: Redlock, permits: int, wait: int) -> LockNotAcquiredError:
    with pytest.raises(LockNotAcquiredError) as error:
        await redlock.semaphore("api", permits=permits, wait=wait).acquire()
    return error.value


@pytest.mark.parametrize("wait", [0, 300])
async def test_it_names_the_number_of_permits_and_a_holder(
    redlock: Redlock, other: Redlock, wait: int
) -> None:
    leases = [await other.semaphore("api", permits=3, ttl=10_000).acquire() for _ in range(3)]
    error = await missed(redlock, 3, wait)
    assert error.permits == 3
    assert error.holder is not None
    assert error.holder.fingerprint in {lease.fingerprint for lease in leases}
    assert error.retry_after is not None
    assert 9_000 < error.retry_after <= 10_000
    assert f"all 3 permits are held, or waited for, one of them by {error.holder} (" in str(error)
    assert error.hint == ADVICE
    assert str(error).endswith(f"; {ADVICE} [no-permit]")
    assert not any(lease.token in str(error) for lease in leases)
    for lease in leases:
        await lease.release()


async def test_a_single_attempt_tells_the_votes_of_masters_that_are_a_little_later(
    redlock: Redlock, other: Redlock, masters: list[FakeMaster]
) -> None:
    for master in masters:
        master.latency = 0.010
    masters[0].latency = 0.015
    async with other.semaphore("api", permits=1):
        error = await missed(redlock, 1, 0)
        assert [vote.answer for vote in error.votes] == [Answer.HELD] * 5
        masters[0].latency = 0.1
        error = await missed(redlock, 1, 0)
        assert [vote.answer for vote in error.votes] == [Answer.TIMED_OUT] + [Answer.HELD] * 4
        # A master that hangs holds nobody up for longer than the others have taken once more.
        assert error.elapsed < 22


async def test_the_error_of_a_single_permit(redlock: Redlock, other: Redlock) -> None:
    async with other.semaphore("api", permits=1):
        error = await missed(redlock, 1, 0)
    assert f": the only permit is held, or waited for, now by {error.holder} (" in str(error)


async def test_the_error_of_a_lock_names_no_permits(redlock: Redlock, other: Redlock) -> None:
    async with other.lock("api", fair=True):
        with pytest.raises(LockNotAcquiredError) as error:
            await redlock.lock("api", fair=True, wait=0).acquire()
    assert error.value.permits is None
    assert "permit" not in str(error.value)


async def test_the_error_survives_pickling(redlock: Redlock, other: Redlock) -> None:
    async with other.semaphore("api", permits=1):
        error = await missed(redlock, 1, 0)
    again = pickle.loads(pickle.dumps(error))
    assert (str(again), again.permits, again.hint) == (str(error), 1, error.hint)


async def test_it_says_how_many_the_task_holds_itself(redlock: Redlock, other: Redlock) -> None:
    async with (
        redlock.semaphore("api", permits=3),
        redlock.semaphore("api", permits=3),
        other.semaphore("api", permits=3),
    ):
        error = await missed(redlock, 3, 100)
        assert error.hint == f"this task itself holds 2 of them; {ADVICE}"
        elsewhere = await asyncio.create_task(missed(redlock, 3, 0))
        assert elsewhere.hint == ADVICE


async def test_too_few_masters_are_no_matter_of_permits(
    redlock: Redlock, masters: list[FakeMaster]
) -> None:
    kill(masters[:3])
    await asyncio.sleep(0.1)
    with pytest.raises(QuorumUnavailableError, match="too few masters answered") as error:
        await redlock.semaphore("api", permits=3, wait=0).acquire()
    assert "permits are held" not in str(error.value).partition("(")[0]
    assert error.value.hint == ""


async def test_a_missing_permission_names_a_key_of_the_semaphore(
    redlock: Redlock, masters: list[FakeMaster]
) -> None:
    for master in masters:
        master.error = "NOPERM no permissions to access a key"
    with pytest.raises(QuorumUnavailableError) as error:
        await redlock.semaphore("api", permits=3, wait=0).acquire()
    assert "with the key 'redlock_aio:permit:{api}#0' needs" in error.value.hint


@pytest.mark.parametrize("permits", [1, 3])
async def test_a_task_that_holds_all_permits_does_not_wait_for_ever(
    redlock: Redlock, permits: int
) -> None:
    semaphore = redlock.semaphore("api", permits=permits)
    leases = [await semaphore.acquire() for _ in range(permits)]
    with pytest.raises(RedlockError, match="this task itself holds all its permits") as error:
        await semaphore.acquire()
    assert not isinstance(error.value, LockNotAcquiredError)
    with pytest.raises(RedlockError, match="'api' would never be free"):
        async with semaphore:
            raise AssertionError
    assert await semaphore.try_acquire() is None
    assert isinstance(await missed(redlock, permits, 100), LockNotAcquiredError)
    for lease in leases:
        await lease.release()
    async with semaphore:
        pass


async def test_a_permit_of_another_task_may_become_free(redlock: Redlock) -> None:
    semaphore = redlock.semaphore("api", permits=2)
    holding = await asyncio.create_task(semaphore.acquire())
    async with semaphore:
        waiting = asyncio.create_task(semaphore.acquire())
        asyncio.get_running_loop().call_later(0.2, asyncio.ensure_future, holding.release())
        async with asyncio.timeout(5):
            lease = await semaphore.acquire()
        await lease.release()
        await (await waiting).release()


@pytest.mark.parametrize("options", [{"max_hold": 500}, {"auto_extend": False, "ttl": 500}])
async def test_a_permit_that_ends_by_itself_may_be_waited_for(
    redlock: Redlock, options: dict[str, Any]
) -> None:
    ends = await redlock.semaphore("api", permits=1, on_lost="flag", **options).acquire()
    async with asyncio.timeout(5), redlock.semaphore("api", permits=1):
        assert not ends.valid


async def test_more_permits_than_the_task_holds_are_worth_a_wait(redlock: Redlock) -> None:
    """Another program says more: its number counts, and one of those may be free."""
    async with redlock.semaphore("api", permits=1), redlock.semaphore("api", permits=2) as lease:
        assert lease.permit == 1
