"""What the error of somebody who did not get the lock says of who has it."""

import asyncio
import copy
import pickle
from functools import partial

import pytest

from redlock_aio import Answer, Lease, LockNotAcquiredError, QuorumUnavailableError, Redlock

from .helpers import (
    AT_ONCE,
    RealMaster,
    Stopwatch,
    connected,
    gone,
    put,
    queued,
    until,
    up,
    values,
)  # fmt: skip

pytestmark = pytest.mark.integration

MODES = pytest.mark.parametrize("fair", [False, True], ids=["plain", "fair"])


async def refused(
    redlock: Redlock, *, wait: int, fair: bool, kind: type[LockNotAcquiredError]
) -> LockNotAcquiredError:
    """Return the error of somebody who tries."""
    with pytest.raises(LockNotAcquiredError) as caught:
        await redlock.lock("r", wait=wait, fair=fair).acquire()
    assert type(caught.value) is kind
    return caught.value


async def refused_by(
    number: int, redlock: Redlock, *, wait: int, fair: bool
) -> LockNotAcquiredError:
    """
    Return the error of somebody who tries until so many masters have said who holds the lock.

    Those that answer later than the first three, by as long again, are not heard
    out. On an idle machine there are none, on a busy one there often are.
    """
    errors = []

    async def told() -> bool:
        errors.append(await refused(redlock, wait=wait, fair=fair, kind=LockNotAcquiredError))
        return sum(vote.detail.endswith("ms left") for vote in errors[-1].votes) >= number

    await until(told)
    return errors[-1]


def everything(error: LockNotAcquiredError) -> str:
    """Return all that could be seen of it."""
    seen = (str(error), repr(error), repr(error.args), repr(error.votes), repr(error.__dict__))
    return " ".join((*seen, repr(pickle.dumps(error)), str(copy.copy(error))))


def has(masters: list[RealMaster], everywhere: list[str]) -> bool:
    """Return whether each master has its value."""
    return values(masters, "r") == everywhere


def names(error: LockNotAcquiredError, lease: Lease) -> bool:
    """Return whether an error says who holds the lock, and for how long at most."""
    return (
        error.holder is not None
        and error.holder.fingerprint == lease.fingerprint
        and error.retry_after is not None
        and 0 < error.retry_after <= lease.ttl
    )


@pytest.mark.parametrize("wait", [5, 300])
async def test_tasks_that_give_up_together_all_learn_who_holds_the_lock(
    redlock: Redlock, other: Redlock, wait: int
) -> None:
    for holder in (other, redlock):
        async with holder.lock("r", ttl=30_000) as lease:
            waiting = [
                refused(redlock, wait=wait, fair=False, kind=LockNotAcquiredError)
                for _ in range(40)
            ]
            errors = await asyncio.gather(*waiting)
            assert sum(names(error, lease) for error in errors) == 40


@MODES
@pytest.mark.parametrize("wait", [0, 300])
@pytest.mark.promise("S9")
async def test_a_refusal_names_the_holder_and_when_the_lock_is_free(
    redlock: Redlock, other: Redlock, masters: list[RealMaster], wait: int, *, fair: bool
) -> None:
    """22, 63: whether the holder is another manager or this one."""
    for holder in (other, redlock):
        async with holder.lock("r", ttl=30_000, fair=fair) as lease:
            # A majority has let it in; the others may not have heard of it yet.
            everywhere = [lease.token] * len(masters)
            await until(partial(has, masters, everywhere))
            error = await refused_by(5, redlock, wait=wait, fair=fair)
            assert names(error, lease)
            assert lease.fingerprint in str(error)
            assert lease.remaining - 1_000 < (error.retry_after or 0)
            assert all(vote.answer is Answer.HELD for vote in error.votes)
        # Nor, by now, that it has gone: the next must not meet its place in a queue.
        await until(lambda: gone(masters, "r") and not any(queued(masters)))


@MODES
@pytest.mark.promise("S10")
async def test_a_refusal_does_not_tell_the_token(
    redlock: Redlock, other: Redlock, *, fair: bool
) -> None:
    """Who could read it there could release the lock."""
    async with other.lock("r", ttl=30_000, fair=fair) as lease:
        for wait in (0, 200):
            error = await refused(redlock, wait=wait, fair=fair, kind=LockNotAcquiredError)
            assert lease.token not in everything(error)
            assert lease.token[:10] not in everything(error)


@MODES
async def test_a_refusal_survives_its_way_to_another_process(
    redlock: Redlock, other: Redlock, *, fair: bool
) -> None:
    """With all that it says."""
    async with other.lock("r", ttl=30_000, fair=fair):
        error = await refused(redlock, wait=0, fair=fair, kind=LockNotAcquiredError)
    back = pickle.loads(pickle.dumps(error))
    assert type(back) is LockNotAcquiredError
    assert str(back) == str(error)
    assert (back.holder, back.retry_after) == (error.holder, error.retry_after)
    assert (back.votes, back.attempts) == (error.votes, error.attempts)


@MODES
async def test_two_holders_of_some_masters_each_are_no_holder(
    redlock: Redlock, masters: list[RealMaster], *, fair: bool
) -> None:
    """3: but a key on a majority is, whoever has set it, also if it has no end."""
    put(masters[:3], "r")
    errors = []

    async def told() -> bool:  # see `refused_by`
        errors.append(await refused(redlock, wait=0, fair=fair, kind=LockNotAcquiredError))
        return errors[-1].holder is not None

    await until(told)
    error = errors[-1]
    assert error.retry_after is None
    assert not any("ms left" in vote.detail for vote in error.votes)


@MODES
@pytest.mark.parametrize("how", ["dead", "hung"])
@pytest.mark.parametrize("wait", [0, 400])
@pytest.mark.full
async def test_too_few_masters_are_no_holder(
    masters: list[RealMaster],
    how: str,
    wait: int,
    *,
    fair: bool,
) -> None:
    """5, 8: the error says that they are missing, and names nobody."""
    async with connected(masters, master_timeout=200) as redlock:
        for master in masters[:3]:
            (master.kill if how == "dead" else master.pause)()
        if how == "dead":
            await until(lambda: up(redlock) == 2)
        watch = Stopwatch()
        error = await refused(redlock, wait=wait, fair=fair, kind=QuorumUnavailableError)
        assert watch.ms < wait + 1000 * AT_ONCE
        assert error.holder is None
        assert error.retry_after is None
        away = {Answer.UNREACHABLE} if how == "dead" else {Answer.TIMED_OUT}
        assert {vote.answer for vote in error.votes[:3]} == away


@MODES
async def test_a_refusal_by_the_masters_that_are_left_names_the_holder(
    redlock: Redlock, other: Redlock, masters: list[RealMaster], *, fair: bool
) -> None:
    """9: two of five are away, the other three know."""
    async with other.lock("r", ttl=30_000, fair=fair) as lease:
        await until(partial(has, masters, [lease.token] * len(masters)))
        for master in masters[:2]:
            master.kill()
        await until(lambda: up(redlock) == 3)
        error = await refused_by(3, redlock, wait=300, fair=fair)
        assert names(error, lease)
        assert [vote.answer for vote in error.votes] == [
            *[Answer.UNREACHABLE] * 2, *[Answer.HELD] * 3,
        ]  # fmt: skip
