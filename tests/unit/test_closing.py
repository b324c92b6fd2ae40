"""A manager that is closed hands out no valid lease, and leaves no key that it can release."""

import asyncio
import functools
import itertools
from collections.abc import Iterator

import pytest

from redlock_aio import Lease, Redlock, RedlockError
from redlock_aio._protocol.scripts import RAISE
from redlock_aio.testing import FakeMaster

from .cancelling import interposed, run_next
from .kit import (
    KINDS_AND_KEYS,
    LATENCY,
    Kind,
    Masters,
    before,
    count_up,
    fail,
    fence,
    hang,
    in_coroutine,
    loop,
    occupy,
    remaining_keys,
    resume,
    settle,
)
from .test_kinds_alike import ALIKE, KINDS, ONE_PERMIT, key_of

pytestmark = [pytest.mark.promise("S2"), pytest.mark.promise("S3")]


async def ended(acquiring: asyncio.Task[Lease]) -> bool:
    """Return whether *acquiring* failed because of the close; else it came to no harm."""
    try:
        lease = await acquiring
    except RedlockError as error:
        assert "closed" in str(error)  # noqa: PT017 - there may be none
        return True
    assert not lease.valid
    return False


@pytest.mark.parametrize("held", [False, True], ids=["free", "held"])
@ALIKE
async def test_no_lease_is_acquired_from_a_manager_that_is_closed_meanwhile(
    masters: Masters, kind: str, *, held: bool
) -> None:
    """
    Also if it is closed in the turn in which the last reply came, before the task resumes.

    The counters of free locks differ: then the masters agree on a fencing token meanwhile.
    """
    failed = 0
    for place in itertools.count(1):
        if held:
            occupy(masters, key_of(kind), ttl=30)
        for number, master in enumerate(() if held else masters):
            for name in ("q", "r", ONE_PERMIT):
                master.set(fence(name), f"{(1 << 51) + place * 100 + number:016}")
        redlock = Redlock(masters, restart_guard="off")
        await redlock.__aenter__()
        closing: list[asyncio.Task[None]] = []
        use = interposed(
            place,
            KINDS[kind](redlock).acquire(),
            lambda redlock=redlock, closing=closing: closing.append(run_next(redlock.aclose())),  # type: ignore[misc]
        )
        acquiring = asyncio.create_task(in_coroutine(use))
        await asyncio.wait([acquiring])
        if not closing:  # the acquisition suspends less often
            await (await acquiring).release()
            await redlock.aclose()
            break
        await asyncio.wait(closing)
        failed += await ended(acquiring)
        await settle(masters, 0.5)
        assert not remaining_keys(masters, counters=False), place
    assert failed


@pytest.mark.parametrize("times", [1, 2])
@pytest.mark.parametrize("kind", [kind for kind in KINDS if "fencing" in kind])
async def test_the_masters_do_not_agree_on_a_token_after_the_close(
    masters: Masters, kind: str, times: int
) -> None:
    """The counters rise so many times, so that this would take a round behind the close."""
    for number, master in enumerate(masters):
        master.set(fence(key_of(kind)), f"{(1 << 51) + number:016}")
        others = iter([number + 1] * times)
        before(master, RAISE, functools.partial(raised_by_another, master, key_of(kind), others))
    redlock = Redlock(masters, restart_guard="off")
    await redlock.__aenter__()
    closing: list[asyncio.Task[None]] = []
    use = interposed(
        1 + times,
        KINDS[kind](redlock).acquire(),
        lambda: closing.append(run_next(redlock.aclose())),
    )
    acquiring = asyncio.create_task(in_coroutine(use))
    await asyncio.wait([acquiring])
    await asyncio.wait(closing)
    assert await ended(acquiring)
    await settle(masters, 0.5)
    assert not remaining_keys(masters, counters=False)


def raised_by_another(master: FakeMaster, key: str, by: Iterator[int]) -> None:
    """Raise the counter of a lock, the first time."""
    for more in itertools.islice(by, 1):
        count_up(master, more, key)


@KINDS_AND_KEYS
async def test_closing_repeats_a_release_that_a_master_has_refused(
    masters: Masters, names: tuple[str, ...], options: Kind
) -> None:
    async with Redlock(masters, restart_guard="off") as redlock:
        lease = await redlock.lock(*names, **options).acquire()
        fail(masters, "BUSY Redis is busy running a script.")
        await lease.release()
        fail(masters, "")
        assert remaining_keys(masters, counters=False)
    assert not remaining_keys(masters, counters=False)


@pytest.mark.parametrize("once", ["acquire", "try_acquire"])
@ALIKE
async def test_a_single_attempt_that_the_close_ends_does_not_blame_the_masters(
    masters: Masters, kind: str, once: str
) -> None:
    redlock = Redlock(masters, restart_guard="off")
    async with redlock.lock("other", fencing=True):
        pass  # the masters' time is known from now on
    hang(masters)
    acquiring = asyncio.create_task(getattr(KINDS[kind](redlock, wait=0), once)())
    await asyncio.sleep(LATENCY)
    await redlock.aclose()
    with pytest.raises(RedlockError) as caught:
        await acquiring
    assert caught.value.code == "redlock-closed"


@pytest.mark.parametrize("fair", [False, True])
@pytest.mark.parametrize("waits_for", ["a holder", "a majority", "acceptance"])
async def test_nothing_is_scheduled_after_the_close(
    masters: Masters, waits_for: str, *, fair: bool
) -> None:
    async with Redlock(masters, restart_guard="off") as redlock:
        occupy(masters, "s", ttl=50)
        async with redlock.lock("s", fair=True):
            pass  # it listens for a while to further calls
        leases = [await redlock.lock(f"r{n}", on_lost="flag").acquire() for n in range(3)]
        if waits_for == "a majority":
            hang(masters[:3])
        elif waits_for == "acceptance":
            fail(masters[:3])
        occupy(masters[3:] if waits_for != "a holder" else masters, ttl=60_000)
        waiters = [asyncio.create_task(redlock.lock("r", fair=fair).acquire()) for _ in range(3)]
        await asyncio.sleep(0.5)
    assert not any(lease.valid for lease in leases)
    assert all([await ended(waiter) for waiter in waiters])
    resume(masters)
    await asyncio.sleep(0.2)  # for a master timeout that was underway
    assert not [timer for timer in loop()._scheduled if not timer.cancelled()]  # type: ignore[attr-defined]
