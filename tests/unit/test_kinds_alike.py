"""What is promised of a lock is promised of each kind of lock, however its lease was won."""

import asyncio
import contextlib
from collections.abc import Callable, Iterable

import pytest

from redlock_aio import Answer, Lease, Lock, Redlock, RedlockError, Semaphore
from redlock_aio._protocol.primitives import Mutex, Permits
from redlock_aio.testing import FakeMaster

from .kit import (
    Masters,
    hang,
    kill,
    occupy,
    remaining_keys,
    restart,
    resume,
    settle,
    slow,
)
from .links import links_to

ONE_PERMIT = Permits(Mutex(b"r"), 1).permit(0).decode()

KINDS: dict[str, Callable[..., Lock | Semaphore]] = {
    "plain": lambda redlock, **options: redlock.lock("r", **options),
    "fencing": lambda redlock, **options: redlock.lock("r", fencing=True, **options),
    "fair": lambda redlock, **options: redlock.lock("r", fair=True, **options),
    "fair and fencing": lambda redlock, **options: redlock.lock(
        "r", fair=True, fencing=True, **options
    ),
    "reader": lambda redlock, **options: redlock.lock("r", shared=True, **options),
    "two names": lambda redlock, **options: redlock.lock("q", "r", **options),
    "two names, fair": lambda redlock, **options: redlock.lock("q", "r", fair=True, **options),
    "permit": lambda redlock, **options: redlock.semaphore("r", permits=1, **options),
    "permit, fencing": lambda redlock, **options: redlock.semaphore(
        "r", permits=1, fencing=True, **options
    ),
}
ALIKE = pytest.mark.parametrize("kind", KINDS)


def key_of(kind: str) -> str:
    return ONE_PERMIT if "permit" in kind else "r"


async def force(redlock: Redlock, kind: str) -> bool:
    if "permit" in kind:
        return await redlock.semaphore("r", permits=1).force_release(0)
    return await redlock.force_release("r")


async def warm(redlock: Redlock) -> None:
    """Let it learn the clocks of the masters, so that the next request is the first one."""
    async with redlock.lock("w", fair=True, fencing=True):
        pass


async def outlast(
    fault: Callable[[Iterable[FakeMaster]], None], masters: list[FakeMaster], lease: Lease
) -> None:
    """Have *fault* on the first master for longer than *lease* would last, and release it."""
    fault(masters[:1])
    await asyncio.sleep(12)
    assert lease.valid
    resume(masters)
    masters[0]._alive = True
    await lease.release()


def answers(lease: Lease) -> list[Answer]:
    return [vote.answer for vote in lease.votes]


# The votes of a lease.


@pytest.mark.spread(1)
@ALIKE
@pytest.mark.parametrize(
    ("late", "answer"),
    [("grants", Answer.GRANTED), ("is held", Answer.HELD), ("fails", Answer.ERROR)],
)
async def test_votes_that_come_late_are_added(
    redlock: Redlock, masters: list[FakeMaster], kind: str, late: str, answer: Answer
) -> None:
    await warm(redlock)
    masters[4].latency = 0.02
    if late == "is held":
        occupy(masters[4:], key_of(kind))
    masters[4].error = "OOM command not allowed" if late == "fails" else ""
    async with KINDS[kind](redlock) as lease:
        assert answers(lease) == [Answer.GRANTED] * 4 + [Answer.TIMED_OUT]
        await asyncio.sleep(0.03)
        assert answers(lease) == [Answer.GRANTED] * 4 + [answer]
        masters[4].error = ""


@ALIKE
async def test_a_grant_that_was_given_back_is_no_vote(
    redlock: Redlock, masters: list[FakeMaster], kind: str
) -> None:
    await warm(redlock)
    occupy(masters[2:], key_of(kind), 900)
    waiting = asyncio.create_task(KINDS[kind](redlock).acquire())
    await asyncio.sleep(0.5)
    hang(masters[:1])
    lease = await waiting
    assert lease.token not in masters[0].keys.get(key_of(kind), "")
    assert answers(lease)[0] is not Answer.GRANTED
    resume(masters[:1])
    await lease.release()


# A release by force.


@pytest.mark.promise("S1")
@pytest.mark.parametrize("how", ["late", "after the timeout", "after a restart"])
@pytest.mark.parametrize("kind", [*KINDS, "adopted", "adopted, fair"])
@pytest.mark.spread(1)
async def test_one_master_that_got_the_key_later_is_enough_to_notice_a_forced_release(
    other: Redlock, masters: list[FakeMaster], kind: str, how: str
) -> None:
    """Else the holder would go on for the rest of its ttl, while others have the lock."""
    links = links_to(masters)
    async with Redlock(links, restart_guard="off") as redlock:
        await warm(redlock)
        text = ""
        if kind.startswith("adopted"):
            text = (await other.lock("r", fair="fair" in kind, ttl=60_000).acquire()).export()
        match how:
            case "late":
                slow(masters[3:], 0.02)
            case "after the timeout":
                slow(masters[3:], 0.07)
            case _:
                kill(masters[3:])
                await asyncio.sleep(0.1)
        if text:
            lease = await redlock.adopt(text, on_lost="flag")
        else:
            lease = await KINDS[kind](redlock, ttl=60_000, on_lost="flag").acquire()
        if how == "after a restart":
            restart(masters[3:])
            await asyncio.sleep(0.5)
            await lease.extend()  # which restores the key
        await asyncio.sleep(0.5)
        slow(masters[3:], 0.001)
        for link in links[:3]:
            link.cut()
        assert await force(other, kind)
        assert not lease.valid
        for link in links[:3]:
            link.mend()


@pytest.mark.promise("S1")
@ALIKE
async def test_a_forced_release_is_noticed_before_the_first_check_of_the_key(
    other: Redlock, masters: list[FakeMaster], kind: str
) -> None:
    """Of the masters that can be reached nobody knows yet that they have got the key."""
    links = links_to(masters)
    async with Redlock(links, restart_guard="off") as redlock:
        await warm(redlock)
        slow(masters[3:], 0.06)
        lease = await KINDS[kind](redlock, ttl=60_000, on_lost="flag").acquire()
        await asyncio.sleep(0.063)
        slow(masters[3:], 0.001)
        for link in links[:3]:
            link.cut()
        assert await force(other, kind)
        assert not lease.valid
        for link in links[:3]:
            link.mend()


@ALIKE
@pytest.mark.parametrize("at", [0.3, 0.7])
@pytest.mark.spread(1)
async def test_a_later_holder_keeps_the_lock(
    redlock: Redlock, other: Redlock, masters: list[FakeMaster], kind: str, at: float
) -> None:
    """A master that had granted it for a moment executes the forced release late."""
    await warm(redlock)
    occupy(masters[2:], key_of(kind), 60_000)
    waiting = asyncio.create_task(KINDS[kind](redlock, ttl=60_000).acquire())
    await asyncio.sleep(at)
    hang(masters[:1])
    assert await force(other, kind)
    lease = await waiting
    await asyncio.sleep(0.25)
    resume(masters[:1])
    await asyncio.sleep(1)
    assert lease.valid
    await lease.release()


# Leases that were won after a wait.


@pytest.mark.spread(1)
@pytest.mark.promise("S6")
@ALIKE
@pytest.mark.parametrize("fault", [kill, hang, restart])
@pytest.mark.parametrize(("after", "more"), [(0.2, 0), (1.0, 0), (0.2, 2)])
async def test_no_lease_that_was_won_after_a_wait_ends_with_a_minority(
    redlock: Redlock,
    other: Redlock,
    masters: list[FakeMaster],
    kind: str,
    fault: Callable[[Iterable[FakeMaster]], None],
    after: float,
    more: int,
) -> None:
    """A waiter wins with the first masters that wake it; farther ones have to get the key, too."""
    before = "plain" if kind == "reader" else kind
    held = await KINDS[before](other).acquire()
    slow(masters[3:], 0.005)
    waiting = asyncio.create_task(KINDS[kind](redlock, ttl=10_000).acquire())
    await asyncio.sleep(0.1)
    behind = [asyncio.create_task(KINDS[before](other).acquire()) for _ in range(more)]
    await asyncio.sleep(0.4)
    await held.release()
    lease = await waiting
    await asyncio.sleep(after)
    await outlast(fault, masters, lease)
    for each in behind:
        await (await each).release()


@pytest.mark.spread(1)
@ALIKE
@pytest.mark.promise("S6")
@pytest.mark.parametrize("fault", [kill, hang, restart])
@pytest.mark.parametrize("why", ["held", "down", "slow"])
async def test_no_lease_of_a_bare_majority_ends_with_one_master_more(
    redlock: Redlock,
    masters: list[FakeMaster],
    kind: str,
    fault: Callable[[Iterable[FakeMaster]], None],
    why: str,
) -> None:
    """The two masters that did not grant it get the key long before the first extension."""
    await warm(redlock)
    if why == "held":
        occupy(masters[3:], key_of(kind), ttl=50)
    elif why == "down":
        kill(masters[3:])
    else:
        slow(masters[3:], 0.2)
    lease = await KINDS[kind](redlock, ttl=10_000).acquire()
    if why == "down":
        restart(masters[3:])
    slow(masters[3:], 0.001)
    await asyncio.sleep(0.3)
    await outlast(fault, masters, lease)
    await settle(masters, 15)
    assert not remaining_keys(masters, counters=False)


@pytest.mark.spread(1)
@ALIKE
@pytest.mark.promise("S1")
@pytest.mark.parametrize("ttl", [10_000, 30_000])
async def test_a_restored_key_lasts_as_long_as_an_extension_that_was_counted(
    other: Redlock, masters: list[FakeMaster], kind: str, ttl: int
) -> None:
    """
    Another client gives back what it has of a lock, and a slow master is restored twice.

    1. The key goes from m3, and 28 ms later from m4. Each change is followed by a check; both
       checks find no key on m3, which is slow, and each sends a restoration there.
    2. Between the two, an extension arrives at m3. With m0 and m4 it has a majority.
    3. The second restoration must not bring the end of the key back to that of before.
    """
    links, call_later = links_to(masters), asyncio.get_running_loop().call_later
    async with Redlock(links, restart_guard="off") as redlock:
        await warm(redlock)
        await asyncio.sleep(0.05)
        occupy(masters[3:], key_of(kind))
        lock = KINDS[kind](redlock, ttl=10_000, auto_extend=False, on_lost="flag")
        lease = await lock.acquire()
        masters[3].latency = 0.04
        call_later(3.0, masters[3].delete, key_of(kind))
        call_later(3.028, masters[4].delete, key_of(kind))
        await asyncio.sleep(3.07)
        for link in links[1:3]:
            link.cut()
        await lease.extend(ttl)
        for link in links:
            link.cut()
        masters[3].latency = 0.001
        rival = KINDS["permit" if "permit" in kind else "plain"](other, wait=0)
        while lease.valid:
            assert await rival.try_acquire() is None
            await asyncio.sleep(0.5)
        for link in links:
            link.mend()


async def after_another(redlock: Redlock, other: Redlock, kind: str) -> Lease:
    """Acquire a lease that waited for *other*, out of the queue if it is fair."""
    first = await KINDS["fair" if kind == "reader" else kind](other).acquire()
    waiting = asyncio.create_task(KINDS[kind](redlock, auto_extend=False).acquire())
    await asyncio.sleep(0.2)
    await first.release()
    return await waiting


@ALIKE
@pytest.mark.promise("S8")
async def test_the_queue_waits_no_longer_for_a_holder_that_has_shortened_its_lease_and_dies(
    other: Redlock, masters: list[FakeMaster], kind: str
) -> None:
    links = links_to(masters)
    async with Redlock(links, restart_guard="off") as redlock:
        lease = await after_another(redlock, other, kind)
        await lease.extend(100)
        for link in links:
            link.cut()
        next_one = KINDS["fair" if kind == "reader" else kind](other)
        async with asyncio.timeout(4.2 if kind == "reader" else 1.2), next_one:
            pass
        for link in links:
            link.mend()


@pytest.mark.spread(1)
@ALIKE
@pytest.mark.promise("S1")
async def test_a_lease_that_was_shortened_is_held_until_then(
    redlock: Redlock, other: Redlock, masters: list[FakeMaster], kind: str
) -> None:
    lease = await after_another(redlock, other, kind)
    await lease.extend(3_000)
    rivals = [KINDS[each](other) for each in ("permit" if "permit" in kind else "fair", kind)]
    waiting = [asyncio.create_task(rival.acquire()) for rival in rivals if kind != "reader"]
    waiting += [asyncio.create_task(KINDS["fair"](other).acquire())] if kind == "reader" else []
    await asyncio.sleep(2)
    assert lease.valid
    assert not any(each.done() for each in waiting)
    await lease.release()
    for each in asyncio.as_completed(waiting):
        async with asyncio.timeout(0.5):
            await (await each).release()
    await settle(masters, 5)
    assert not remaining_keys(masters, counters=False)


@pytest.mark.spread(0)
@ALIKE
async def test_to_close_the_manager_of_a_waiter_logs_no_outage(
    masters: list[FakeMaster], kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def use(redlock: Redlock) -> None:
        with contextlib.suppress(RedlockError):
            while True:
                async with KINDS[kind](redlock):
                    pass

    for moment in range(30):
        redlock = Redlock(masters, restart_guard="off")
        async with redlock:
            await warm(redlock)
            using = asyncio.create_task(use(redlock))
            await asyncio.sleep(moment / 4000)
        await asyncio.wait([using])
    assert not caplog.messages


# A first request that is answered after the timeout.


@pytest.mark.spread(1)
@pytest.mark.promise("S3")
@ALIKE
@pytest.mark.parametrize("wait", [0, 30, 100])
@pytest.mark.parametrize("how", ["slow", "hung"])
async def test_nothing_stays_of_a_timed_out_attempt_of_a_program_that_ends(
    masters: Masters, kind: str, wait: int, how: str
) -> None:
    async with Redlock(masters, restart_guard="off") as redlock:
        await warm(redlock)
        await asyncio.sleep(0.1)
        if how == "slow":
            slow(masters, 0.12)
        else:
            hang(masters)
            asyncio.get_running_loop().call_later(0.12, resume, masters)
        with pytest.raises(RedlockError):
            await KINDS[kind](redlock, wait=wait, ttl=60_000).acquire()
    await settle(masters, 5)
    assert not remaining_keys(masters, counters=False)


@pytest.mark.spread(1)
@pytest.mark.promise("S5")
@ALIKE
@pytest.mark.parametrize("latency", [0.005, 0.02, 0.045])
@pytest.mark.parametrize("wait", [1, 5, 30, 100])
async def test_nobody_waits_for_what_its_own_first_request_was_granted(
    kind: str, latency: float, wait: int
) -> None:
    """The next request follows it on each connection, and needs its release between the two."""
    masters = [FakeMaster(f"m{number}", latency=latency) for number in range(3)]
    async with Redlock(masters) as redlock:
        for _ in range(2):
            async with KINDS[kind](redlock, wait=wait) as lease:
                assert lease.valid
