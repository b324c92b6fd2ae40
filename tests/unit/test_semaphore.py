"""Semaphores: who holds, who waits, and what happens when holders, waiters and masters fail."""

import asyncio
import contextlib
import itertools
import random
from collections.abc import Callable, Iterable
from contextlib import AsyncExitStack
from typing import Any

import pytest

from redlock_aio import (
    Lease,
    LockLostError,
    LockNotAcquiredError,
    LockNotHeldError,
    QuorumUnavailableError,
    Redlock,
    RedlockError,
)
from redlock_aio._engine.wait import permit as engine
from redlock_aio._engine.wait.fair_queue import FairQueue
from redlock_aio._engine.wait.fair_waiter import FairWaiter
from redlock_aio._protocol import scripts
from redlock_aio._protocol.primitives import Mutex, Permits
from redlock_aio.testing import FakeMaster, cancelled_at

from . import kit
from .cancelling import When, run_next
from .diary import Diary
from .kit import (
    LATENCY,
    Masters,
    fail,
    hang,
    kill,
    now,
    ran,
    remaining_keys,
    restart,
    resume,
    settle,
    slow,
)
from .links import links_to
from .permits import View, enter, queue_of
from .test_waiting import drop_idle_queues

HEARTBEAT, LIVES = 1.0, 3.0
FIRST_OF_TWO = Permits(Mutex(b"r"), 2).permit(0)


def view(master: FakeMaster, permits: int = 2, name: bytes = b"r") -> View:
    return View(lambda request: kit.execute(master, request), Permits(Mutex(name), permits))


def queues(masters: Masters, permits: int = 2) -> list[dict[int, list[bytes]]]:
    """Return who is in the queues of each master."""
    return [view(master, permits).queues for master in masters]


def left(masters: Iterable[FakeMaster]) -> list[bytes]:
    return remaining_keys(masters, counters=False)


async def taken(
    redlock: Redlock, number: int, permits: int | None = None, **options: Any
) -> list[Lease]:
    """Acquire so many permits."""
    semaphore = redlock.semaphore("r", permits=permits or number, **options)
    return [await semaphore.acquire() for _ in range(number)]


async def released(*leases: Lease) -> None:
    for lease in leases:
        await lease.release()


async def test_a_permit_that_was_waited_for_can_be_handed_over(
    redlock: Redlock, other: Redlock
) -> None:
    (held,) = await taken(redlock, 1)
    waiter = asyncio.create_task(redlock.semaphore("r", permits=1).acquire())
    await asyncio.sleep(0.1)
    await held.release()
    adopted = await other.adopt((await waiter).export())
    assert adopted.permit == 0
    await released(adopted)


def held_by(leases: list[Lease], number: int) -> Lease:
    (found,) = [lease for lease in leases if lease.permit == number]
    return found


async def permit_at(
    redlock: Redlock, permits: int = 2, *, hold: float = 0.0, **options: Any
) -> float:
    """Acquire a permit, hold it for *hold* seconds, and return when it was acquired."""
    async with redlock.semaphore("r", permits=permits, **options):
        acquired = now()
        await asyncio.sleep(hold)
        return acquired


def waiting(redlock: Redlock, permits: int = 2, **options: Any) -> asyncio.Task[float]:
    return asyncio.create_task(permit_at(redlock, permits, **options))


@pytest.fixture
def in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make each claim try the permits from 0 on."""
    monkeypatch.setattr(engine, "_order", lambda _permits: (0, 1))


# Waiters that a master has moved, and that are gone, or have another name, when it says so


def die(masters: Masters, number: int, seconds: float) -> None:
    """Let a holder that has died have a permit for so long."""
    for master in masters:
        master.set(f"redlock_aio:permit:{{r}}#{number}", "dead", int(seconds * 1000))


async def until_moved(master: FakeMaster, number: int) -> None:
    """Wait until *master* has moved a waiter to the queue of this permit."""
    queue = queue_of(number, Permits(Mutex(b"r"), 2))
    while queue not in master._keys:  # noqa: ASYNC110 - to act at that very moment
        await asyncio.sleep(LATENCY / 4)


@pytest.mark.usefixtures("in_order")
@pytest.mark.promise("S3")
@pytest.mark.parametrize("end", ["cancelled", "wins"])
@pytest.mark.parametrize("holder", ["a dead program", "this program"])
async def test_a_waiter_that_has_ended_declines_where_its_heartbeat_has_moved_it(
    redlock: Redlock, other: Redlock, masters: Masters, end: str, holder: str
) -> None:
    """A master moves it in reply to its heartbeat, which pushes nothing."""
    lease = await other.semaphore("r", permits=1).acquire()
    ours = []
    if holder == "this program":
        ours.append(await redlock.semaphore("r", permits=2, ttl=60_000).acquire())
    else:
        die(masters, 1, 1.3)
    waiter = waiting(redlock)
    await asyncio.sleep(0.1)
    assert 0 in view(masters[0]).queues
    if ours:
        masters[4].delete("redlock_aio:permit:{r}#1")
    await until_moved(masters[4], 1)
    if end == "cancelled":
        waiter.cancel()
    else:
        await lease.release()
    await asyncio.wait([waiter])
    await asyncio.sleep(0.01)
    assert queues(masters) == [{}] * 5
    if end != "wins":
        await lease.release()
    await released(*ours)


async def offered_after_giving_back(
    redlock: Redlock, other: Redlock, masters: Masters
) -> asyncio.Task[float]:
    """
    Return a waiter that has given back one permit, and to which another one is offered now.

    A waiter that is cut off comes before it on two masters, and a third one hangs. These two offer
    it the other permit. The others do not: they have called it for the first one.
    """
    both = await taken(other, 2)
    waiter = waiting(redlock)
    await asyncio.sleep(0.1)
    for master in masters[:2]:
        kit.execute(master, enter(b"far/1p2", 1, 0, permits=FIRST_OF_TWO.of))
    hang(masters[4:])
    await held_by(both, 0).release()
    await asyncio.sleep(0.3)
    assert not waiter.done()
    assert not view(masters[2]).holders.keys() - {1}, "it has given back what it could not use"
    await held_by(both, 1).release()
    return waiter


@pytest.mark.usefixtures("in_order")
@pytest.mark.promise("S8")
async def test_a_waiter_that_has_given_back_one_permit_follows_to_another_at_once(
    redlock: Redlock, other: Redlock, masters: Masters
) -> None:
    waiter = await offered_after_giving_back(redlock, other, masters)
    began = now()
    assert await waiter - began < 0.02, "it does not wait for its next heartbeat"
    resume(masters)


@pytest.mark.spread(0)
@pytest.mark.usefixtures("in_order")
@pytest.mark.promise("S3")
@pytest.mark.parametrize("after", range(10))
async def test_a_waiter_that_is_cancelled_while_it_follows_leaves_nothing(
    redlock: Redlock, other: Redlock, masters: Masters, after: int
) -> None:
    waiter = await offered_after_giving_back(redlock, other, masters)
    await asyncio.sleep(after * LATENCY / 4)
    waiter.cancel()
    await asyncio.wait([waiter])
    await settle(masters, 0.1)
    for master in masters:
        kit.execute(master, FIRST_OF_TWO.leave(b"far", b"far/1p2"))
    assert left(masters) == []


@pytest.mark.usefixtures("in_order")
@pytest.mark.promise("S3")
async def test_a_waiter_that_is_about_to_follow_asks_for_nothing_after_the_close(
    other: Redlock, masters: Masters, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise it could be granted the permit when its manager can't give it back any more."""
    redlock = Redlock(masters, restart_guard="off")
    closing: list[asyncio.Task[None]] = []
    wake = FairWaiter.wake

    def wake_and_close(waiter: FairWaiter) -> None:
        wake(waiter)
        if waiter.offers and not waiter.ticket.may_win_soon and not closing:
            die(masters, 1, 0.5)  # another client gets the permit that was offered
            resume(masters)
            closing.append(run_next(redlock.aclose()))

    monkeypatch.setattr(FairWaiter, "wake", wake_and_close)
    waiter = await offered_after_giving_back(redlock, other, masters)
    with pytest.raises(RedlockError, match="closed"):
        await waiter
    await asyncio.wait(closing)
    await asyncio.sleep(0.6)
    for master in masters:
        kit.execute(master, FIRST_OF_TWO.leave(b"far", b"far/1p2"))
    assert left(masters) == []


async def test_a_waiter_hears_of_a_free_permit_whatever_names_are_used_meanwhile(
    redlock: Redlock, masters: Masters
) -> None:
    async with redlock.lock("other", fair=True):  # it knows the masters' time from now on
        die(masters, 0, 20)
    waiter = waiting(redlock, 1)
    await asyncio.sleep(0)
    drop_idle_queues(redlock, left=1)  # that of its permit is the last but one
    await asyncio.sleep(0.5)
    began = now()
    for master in masters:
        master.delete("redlock_aio:permit:{r}#0")
    assert await waiter - began < 0.1


async def keep_using(
    redlock: Redlock, permits: int, hold: float, ends: float, turns: list[float], **options: Any
) -> None:
    while now() < ends:
        began = now()
        await permit_at(redlock, permits, hold=hold, **options)
        turns.append(now() - hold - began)


@pytest.mark.full
@pytest.mark.usefixtures("in_order")
@pytest.mark.promise("S8")
async def test_a_waiter_of_a_smaller_program_keeps_its_place(
    redlock: Redlock, other: Redlock
) -> None:
    """While five permits become ten, the old programs are moved to permits they do not know."""
    async with asyncio.TaskGroup() as group:
        turns: list[float] = []
        for _ in range(12):
            group.create_task(keep_using(other, 6, 0.05, now() + 1.7, turns))
        await asyncio.sleep(0.2)
        waits: list[float] = []
        group.create_task(keep_using(redlock, 1, 0.05, now() + 1.2, waits))
    assert max(waits) < 0.4, "twice as long as others, and a little"


@pytest.mark.promise("S8")
@pytest.mark.parametrize("release_at", [0.018, 0.02, 0.022, 0.024, 0.026, 0.028, 0.03])
async def test_a_release_while_a_process_subscribes_is_heard_by_all_its_waiters(
    masters: Masters, redlock: Redlock, other: Redlock, release_at: float
) -> None:
    """
    A master that calls a waiter in vain forgets that it waits.

    Before, only the waiter that began to subscribe asked once more. One of another semaphore was
    passed by newcomers until its heartbeat, a second later.
    """
    slow(masters, 0.01)
    held = [await other.semaphore(name, permits=2).acquire() for name in "qqrr"]
    waiting = [asyncio.create_task(redlock.semaphore(n, permits=2).acquire()) for n in "qr"]
    await asyncio.sleep(release_at)
    await held.pop().release()
    released = now()
    leases = [await waiting[1]]
    assert now() - released < 0.03
    await held.pop(0).release()
    leases.append(await waiting[0])
    for lease in (*held, *leases):
        await lease.release()


@pytest.mark.full
@pytest.mark.promise("S8")
async def test_a_client_that_reaches_a_minority_leaves_the_queues(
    other: Redlock, masters: Masters
) -> None:
    """It is the oldest waiter of two masters, which call it for each permit that is released."""
    links = links_to(masters)
    async with Redlock(links, restart_guard="off") as cut_off:
        await permit_at(cut_off)
        async with asyncio.TaskGroup() as group:
            turns: list[float] = []
            for _ in range(6):
                group.create_task(keep_using(other, 2, 0.05, now() + 6, turns))
            await asyncio.sleep(0.02)
            waiter = waiting(cut_off)
            await asyncio.sleep(0.01)
            for link in links[2:]:
                link.cut()
            before = len(turns)
            (mine,) = kit.session(cut_off).fair_queue.waiters
            client = mine.partition(b"/")[0]
            await asyncio.sleep(4)
            assert not waiter.done()
            assert len(turns) - before > 0.45 * 2 * 4 / 0.054, "one of the two permits is used"
            before = len(turns)
            for _ in range(5):
                await asyncio.sleep(0.3)
                assert not [
                    member
                    for lines in queues(masters)
                    for line in lines.values()
                    for member in line
                    if member.startswith(client)
                ]
            assert len(turns) - before > 0.95 * 2 * 1.5 / 0.054
        waiter.cancel()
        await asyncio.wait([waiter])


@pytest.mark.full
async def test_no_wait_is_longer_than_asked_for(redlock: Redlock, other: Redlock) -> None:
    async with asyncio.TaskGroup() as group:
        turns: list[float] = []
        for _ in range(12):
            group.create_task(keep_using(other, 3, 0.03, now() + 2, turns))
        await asyncio.sleep(0.1)
        late = []
        for wait in [20, 40, 60, 80, 90, 100, 110] * 3:
            began = now()
            try:
                await permit_at(redlock, 3, wait=wait)
            except LockNotAcquiredError:
                late.append((now() - began) * 1000 - wait)
    assert late
    assert max(late) < 2 * LATENCY * 1000


@pytest.mark.usefixtures("in_order")
@pytest.mark.promise("S3")
async def test_a_master_that_lacked_the_script_keeps_no_permit_for_a_failed_claim(
    redlock: Redlock, masters: Masters
) -> None:
    """Its refusal arrives late. A repetition would come behind the release."""
    await permit_at(redlock)
    for number in range(2):
        die(masters[:4], number, 60)
    masters[4]._scripts.clear()
    masters[4].latency = 0.02
    loaded = masters[4]._scripts.add
    asyncio.get_running_loop().call_later(0.0101, loaded, scripts.DROP_PERMITS.sha)
    with pytest.raises(LockNotAcquiredError):
        await permit_at(redlock, wait=0)
    await asyncio.sleep(0.2)
    assert view(masters[4]).holders == {}


@pytest.mark.promise("S3")
@pytest.mark.parametrize("free", [False, True], ids=["refused", "won"])
async def test_a_master_whose_connection_ends_first_keeps_no_permit(
    redlock: Redlock, masters: Masters, free: bool
) -> None:
    """It executes the request all the same, after the others have decided."""
    await permit_at(redlock, 40)
    for number in range(0 if free else 40):
        die(masters[:4], number, 60)
    slow(masters[:4], 0.04)
    hang(masters[4:])
    claims = []
    for _ in range(38):  # the connection ends after a second without a reply
        claims.append(waiting(redlock, 40, wait=0, hold=0.3))
        await asyncio.sleep(0.03)
    await asyncio.wait(claims)
    assert all((claim.exception() is None) == free for claim in claims)
    resume(masters)
    await asyncio.sleep(1.5)
    assert view(masters[4], 40).holders == {}


# The first request


@pytest.mark.promise("S1")
@pytest.mark.parametrize("options", [{}, {"fencing": True}], ids=["plain", "fenced"])
async def test_a_free_permit_takes_one_round_trip(
    redlock: Redlock, masters: Masters, options: dict[str, Any]
) -> None:
    await permit_at(redlock, **options)
    before = [len(master.commands) for master in masters]
    began = now()
    lease = await redlock.semaphore("r", permits=2, **options).acquire()
    assert now() - began == pytest.approx(LATENCY)
    assert [len(m.commands) - b for m, b in zip(masters, before, strict=True)] == [1] * 5
    assert lease.mode == "permit"
    began = now()
    await lease.release()
    assert now() - began == pytest.approx(LATENCY)


@pytest.mark.promise("S1")
@pytest.mark.parametrize("wait", [0, 30])
async def test_at_most_so_many_hold(redlock: Redlock, other: Redlock, wait: int) -> None:
    leases = await taken(redlock, 3) + await taken(other, 2, 5)
    assert sorted(lease.permit or 0 for lease in leases) == [0, 1, 2, 3, 4]
    semaphore, began = other.semaphore("r", permits=5, wait=wait), now()
    with pytest.raises(LockNotAcquiredError, match="held"):
        await semaphore.acquire()
    with pytest.raises(LockNotAcquiredError, match="held"):
        await semaphore.acquire()
    assert 2 * wait / 1000 <= now() - began < 2 * wait / 1000 + 0.01
    assert await semaphore.try_acquire() is None
    await released(leases.pop())
    lease = await semaphore.try_acquire()
    assert lease is not None
    await released(*leases, lease)


@pytest.mark.promise("S8")
@pytest.mark.spread(0)
@pytest.mark.parametrize("fencing", [False, True])
@pytest.mark.parametrize(
    ("clients", "permits"),
    [
        (10, 5),
        (5, 5),
        pytest.param(12, 3, marks=pytest.mark.full),
        pytest.param(30, 10, marks=pytest.mark.full),
    ],
)
@pytest.mark.seeds(1, full=5)
async def test_clients_that_come_at_once_get_all_free_permits_soon(
    clients: int, permits: int, seed: int, fencing: bool
) -> None:
    """Their requests reach the masters in different orders, so they may get a minority each."""
    random.seed(seed)
    masters = [Busy(f"m{number}") for number in range(5)]
    async with AsyncExitStack() as stack:
        programs = [await stack.enter_async_context(Redlock(masters)) for _ in range(clients)]
        for program in programs:
            await permit_at(program, 1, fencing=fencing)
        began = now()
        tasks = [
            waiting(program, permits, hold=5, ttl=60_000, fencing=fencing) for program in programs
        ]
        await asyncio.sleep(4)
        assert held(masters[0], permits) == permits
        await asyncio.sleep(1.2)
        first = sorted(task.result() - began for task in tasks if task.done())
        assert len(first) == permits
        assert first[-1] < 0.02, "a few round trips"
        await asyncio.wait(tasks)
    await settle(masters, 0.1)
    assert left(masters) == []


class Busy(FakeMaster):
    """A master whose replies take a random time."""

    @property
    def latency(self) -> float:
        return random.uniform(0.0005, 0.002)

    @latency.setter
    def latency(self, _latency: float) -> None:
        pass


def held(master: FakeMaster, permits: int) -> int:
    return len(view(master, permits).holders)


async def test_a_task_that_comes_behind_some_that_wait_enters_a_short_queue_at_once(
    redlock: Redlock, other: Redlock, masters: Masters
) -> None:
    """No master would grant it anything, as those before it were told by a majority."""
    leases = await taken(other, 4)
    waits = await some_waiting(redlock, 4)
    before = ran(masters[0], scripts.TAKE_PERMIT)
    waits += [waiting(redlock, 4) for _ in range(3)]
    await asyncio.sleep(0)
    waits.append(waiting(redlock, 4))
    await asyncio.sleep(2 * LATENCY)
    assert [ran(master, scripts.TAKE_PERMIT) for master in masters] == [before] * 5
    for queues_there in queues(masters, 4):
        assert [len(queue) for queue in queues_there.values()] == [2] * 4
    assert await redlock.semaphore("r", permits=4).try_acquire() is None
    assert ran(masters[0], scripts.TAKE_PERMIT) == before + 1, "it does not wait, so it asks"
    await released(*leases)
    await asyncio.gather(*waits)


async def some_waiting(redlock: Redlock, permits: int) -> list[asyncio.Task[float]]:
    """Let so many tasks wait for a permit that the next one knows of them: one after the other."""
    waits = []
    for _ in range(engine.DRAWN):
        waits.append(waiting(redlock, permits))
        await asyncio.sleep(0.1)
    return waits


async def test_a_task_behind_few_of_its_process_asks_which_queue_is_short(
    redlock: Redlock, other: Redlock, masters: Masters
) -> None:
    """Those of other programs may be longer, of which this process knows nothing."""
    leases = await taken(other, 2)
    before = ran(masters[0], scripts.TAKE_PERMIT)
    waits = [*await some_waiting(redlock, 2), *await some_waiting(other, 2)]
    assert ran(masters[0], scripts.TAKE_PERMIT) == before + 2 * engine.DRAWN
    await released(*leases)
    await asyncio.gather(*waits)


@pytest.mark.usefixtures("in_order")
async def test_a_task_whose_queue_is_full_of_others_enters_a_shorter_one(
    masters: Masters, other: Redlock
) -> None:
    """It chooses by what its own process knows, and then by what the masters know."""
    leases = await taken(other, 2)
    async with Redlock(masters, max_waiters=5, restart_guard="off") as redlock:
        waits = await some_waiting(redlock, 2)
        [first, *_] = queues(masters, 2)
        assert [len(queue) for queue in first.values()] == [2, 2]
        waits += [waiting(other, 2) for _ in range(3)]
        await asyncio.sleep(0.1)
        [first, *_] = queues(masters, 2)
        room = 10 - sum(len(queue) for queue in first.values())
        waits += [waiting(redlock, 2) for _ in range(room)]
        await asyncio.sleep(0.1)
        [first, *_] = queues(masters, 2)
        assert [len(queue) for queue in first.values()] == [5, 5]
        await released(*leases)
        await asyncio.gather(*waits)


async def test_a_task_that_asks_first_is_not_passed_by_a_later_one_that_enters_at_once(
    redlock: Redlock, other: Redlock, masters: Masters
) -> None:
    """While its first request is underway, the task of another program enters the queue."""
    (lease,) = await taken(other, 1)
    waits = await some_waiting(redlock, 1)
    before = ran(masters[0], scripts.ENQUEUE_PERMIT)
    first = waiting(other, 1)
    await asyncio.sleep(LATENCY / 4)
    second = waiting(redlock, 1)
    await asyncio.sleep(LATENCY)
    assert ran(masters[0], scripts.ENQUEUE_PERMIT) == before + 1, "the second one was faster"
    await asyncio.sleep(0.1)
    await released(lease)
    await asyncio.gather(*waits)
    assert await first < await second


@pytest.mark.promise("S9")
async def test_a_task_asks_for_any_permit_if_only_a_minority_has_told_the_others_to_wait(
    redlock: Redlock, other: Redlock, masters: Masters
) -> None:
    """The other masters may grant one, whatever the minority says."""
    (lease,) = await taken(other, 1)
    fail(masters[2:])
    waits = await some_waiting(redlock, 1)
    before = ran(masters[0], scripts.TAKE_PERMIT)
    waits.append(waiting(redlock, 1))
    await asyncio.sleep(5 * LATENCY)
    assert ran(masters[0], scripts.TAKE_PERMIT) == before + 1
    for master in masters[2:]:
        master.error = ""
    await released(lease)
    await asyncio.gather(*waits)


# The order


@pytest.mark.promise("S8")
async def test_waiters_of_one_permit_get_it_in_their_order(
    redlock: Redlock, other: Redlock
) -> None:
    lease = await redlock.semaphore("r", permits=1).acquire()
    waits = []
    for number in range(8):
        waits.append(waiting([redlock, other][number % 2], 1, hold=0.01))
        await asyncio.sleep(0.002)
    await lease.release()
    times = [await wait for wait in waits]
    assert times == sorted(times)
    assert times[-1] - times[0] < 7 * 0.0125


@pytest.mark.full
@pytest.mark.promise("S8")
async def test_nobody_is_passed_by_one_that_has_waited_less_than_half_as_long(
    redlock: Redlock, other: Redlock
) -> None:
    """One holder keeps its permit a hundred times as long as others."""
    turns: list[tuple[float, float]] = []

    async def use(program: Redlock, hold: float, ends: float) -> None:
        while now() < ends:
            began = now()
            await permit_at(program, 4, hold=hold)
            turns.append((began, now() - hold - LATENCY))

    async with asyncio.TaskGroup() as group:
        group.create_task(use(redlock, 2.0, now() + 1))
        for number in range(16):
            group.create_task(use([redlock, other][number % 2], 0.02, now() + 2))
    assert len(turns) > 3 * 2 / 0.024 * 0.9
    for began, got in turns:
        passed = [b for b, g in turns if b > began + 0.005 and g < got - 0.005]
        assert all(got - b >= (got - began) / 2 - 0.05 for b in passed)
    assert max(got - began for began, got in turns) < 0.3


@pytest.mark.promise("S8")
async def test_a_released_permit_goes_to_a_waiter_of_another_one(
    redlock: Redlock, other: Redlock, masters: Masters
) -> None:
    leases = await taken(redlock, 2)
    waiter = waiting(other)
    await asyncio.sleep(0.1)
    (number,) = view(masters[0]).queues
    began = now()
    await held_by(leases, 1 - number).release()
    assert await waiter - began < 3 * LATENCY
    await held_by(leases, number).release()
    await asyncio.sleep(0.01)
    assert left(masters) == []


# Deaths


@pytest.mark.promise("S4")
async def test_a_permit_is_used_after_its_holder_has_died(
    redlock: Redlock, other: Redlock, masters: Masters
) -> None:
    """At once by those who wait for it, else within the time of a heartbeat."""
    die(masters, 0, 1.5)
    lease = await redlock.semaphore("r", permits=2, ttl=60_000).acquire()
    began = now()
    first = waiting(other, hold=9)
    second = waiting(other)
    await asyncio.sleep(0.1)
    assert {n for line in queues(masters) for n in line} == {0, 1}
    assert min(await second, await first) - began < 1.51
    assert max(first.result(), second.result()) - began < 12
    await lease.release()


@pytest.mark.promise("S4")
@pytest.mark.parametrize("waiters", [1, 2, 5])
async def test_all_holders_have_died(redlock: Redlock, masters: Masters, waiters: int) -> None:
    for number in range(3):
        die(masters, number, 2)
    began = now()
    times = [await wait for wait in [waiting(redlock, 3) for _ in range(waiters)]]
    assert min(times) - began < 2.01
    assert max(times) - began < 2.03


@pytest.mark.promise("S4", "S8")
async def test_dead_waiters_delay_others_for_a_short_time(
    redlock: Redlock, masters: Masters
) -> None:
    """They do not decline the permits for which they are called."""
    links = links_to(masters)
    async with Redlock(links, restart_guard="off") as dead:
        leases = await taken(redlock, 3, ttl=60_000)
        gone = [waiting(dead, 3) for _ in range(9)]
        await asyncio.sleep(0.1)
        for link in links:
            link.cut()
        waits = [waiting(redlock, 3, hold=0.01) for _ in range(3)]
        await asyncio.sleep(0.1)
        began = now()
        await released(*leases)
        times = [await wait - began for wait in waits]
        assert max(times) < LIVES + HEARTBEAT
        for task in gone:
            task.cancel()
        await asyncio.wait(gone)


# Cancellation


async def use_one(redlock: Redlock, permits: int = 2) -> None:
    async with redlock.semaphore("r", permits=permits, fencing=True):
        await asyncio.sleep(0.01)


@pytest.mark.promise("S3")
@pytest.mark.parametrize("when", ["waiting", "answered"])
@pytest.mark.parametrize("hung", range(3))
@pytest.mark.parametrize(
    "situation",
    ["free", "one died", "all died", "moved", pytest.param("crowd", marks=pytest.mark.full)],
)
@pytest.mark.spread(1)
async def test_a_cancellation_anywhere_leaves_nothing(
    redlock: Redlock, other: Redlock, masters: Masters, situation: str, hung: int, when: When
) -> None:
    for place in itertools.count(1):
        hang(masters[:hung])
        others: list[asyncio.Task[float]] = []
        if situation == "one died":
            die(masters, 0, 0.03)
        elif situation == "all died":
            die(masters, 0, 0.04)
            die(masters, 1, 0.03)
        elif situation == "moved":
            die(masters, 0, 0.5)
            others = [waiting(other, hold=0.03) for _ in range(2)]
            await asyncio.sleep(0.01)
        elif situation == "crowd":
            others = [waiting(other, hold=0.01) for _ in range(6)]
        task = asyncio.create_task(
            kit.in_coroutine(cancelled_at(place, use_one(redlock), when=when))
        )
        await asyncio.wait([task, *others])
        await settle(masters, 2)
        assert left(masters) == [], f"suspension {place}"
        assert not kit.session(redlock).fair_queue.waiters
        if not task.cancelled():
            assert task.exception() is None
            assert place > 1
            return


# Masters that fail


@pytest.mark.full
@pytest.mark.promise("S2")
@pytest.mark.parametrize(
    "fault",
    [
        hang,
        pytest.param(kill, marks=pytest.mark.full),
        pytest.param(restart, marks=pytest.mark.full),
        pytest.param(fail, marks=pytest.mark.full),
    ],
)
async def test_permits_are_used_with_two_masters_of_five_down(
    redlock: Redlock, other: Redlock, masters: Masters, fault: Callable[[Masters], None]
) -> None:
    turns: list[float] = []
    async with asyncio.TaskGroup() as group:
        for number in range(6):
            group.create_task(keep_using([redlock, other][number % 2], 2, 0.05, now() + 3, turns))
        await asyncio.sleep(0.3)
        fault(masters[:2])
        await asyncio.sleep(1)
        before = len(turns)
        await asyncio.sleep(1)
        assert len(turns) - before > 0.9 * 2 * 1 / 0.055
        resume(masters[:2])
        fail(masters[:2], "")
        for master in masters[:2]:
            if fault is kill:
                master.restart()
    await settle(masters, 4)
    assert left(masters) == []


@pytest.mark.promise("S6")
async def test_a_master_that_comes_back_empty_grants_no_permit_twice(masters: Masters) -> None:
    async with kit.guarded(masters) as redlock, kit.guarded(masters) as other:
        leases = await taken(redlock, 2, ttl=9_000)
        restart(masters[:2])
        await asyncio.sleep(0.1)
        for _ in range(3):
            with pytest.raises(LockNotAcquiredError):
                await permit_at(other, wait=500)
        assert all(lease.valid for lease in leases)
        kill(masters[4:])
        with pytest.raises((LockNotAcquiredError, QuorumUnavailableError)):
            await permit_at(other, wait=500)
        masters[4].restart()
        restart(masters[:3])
        with pytest.raises((LockNotAcquiredError, QuorumUnavailableError)):
            await permit_at(other, wait=500)
        await asyncio.sleep(kit.QUARANTINE + 1)
        await permit_at(other, wait=1_000)
        for lease in leases:
            with contextlib.suppress(LockNotHeldError):
                await lease.release()


@pytest.mark.full
@pytest.mark.promise("S1")
@pytest.mark.parametrize("apart", [pytest.param(0.1, marks=pytest.mark.full), 10])
async def test_the_clocks_of_the_masters_differ(apart: float) -> None:
    masters = [FakeMaster(f"m{number}") for number in range(5)]
    for number, master in enumerate(masters):
        master.clock_offset = number * apart / 4
    crew = Crew(2)
    async with Redlock(masters) as one, Redlock(masters) as two, asyncio.TaskGroup() as group:
        for number in range(8):
            group.create_task(crew.work([one, two][number % 2], 0.05, 8))
    assert crew.most == 2
    assert crew.waited < 1.5
    await settle(masters, 0.1)
    assert left(masters) == []


class Crew:
    """Tasks that use a semaphore; checks that each permit has one holder."""

    def __init__(self, permits: int) -> None:
        self.permits = permits
        self.holders: set[int] = set()
        self.most = 0
        self.waited = 0.0

    async def work(self, redlock: Redlock, hold: float, times: int, **options: Any) -> None:
        for _ in range(times):
            began = now()
            async with redlock.semaphore("r", permits=self.permits, **options) as lease:
                self.waited = max(self.waited, now() - began)
                number = lease.permit
                assert number is not None
                assert 0 <= number < self.permits
                assert number not in self.holders
                self.holders.add(number)
                self.most = max(self.most, len(self.holders))
                await asyncio.sleep(hold)
                self.holders.remove(number)


@pytest.mark.full
@pytest.mark.promise("S1", "S8")
async def test_a_hundred_tasks_of_one_process(redlock: Redlock, masters: Masters) -> None:
    crew, began = Crew(10), now()
    async with asyncio.TaskGroup() as group:
        for _ in range(100):
            group.create_task(crew.work(redlock, 0.02, 2))
    assert crew.most == 10
    assert now() - began < 200 * 0.02 / 10 * 1.2
    await settle(masters, 0.1)
    assert left(masters) == []
    assert not kit.session(redlock).fair_queue.waiters
    assert kit.session(redlock).local_queues.waiters == 0


# Options


async def test_a_program_with_fewer_permits_uses_the_first_ones(
    redlock: Redlock, other: Redlock
) -> None:
    many = await taken(redlock, 5)
    waiter = waiting(other, 2)
    await asyncio.sleep(0.05)
    await released(*[lease for lease in many if (lease.permit or 0) > 1])
    await asyncio.sleep(1.5)
    assert not waiter.done()
    began = now()
    await held_by(many, 1).release()
    assert await waiter - began < 5 * LATENCY
    await held_by(many, 0).release()


@pytest.mark.promise("S7")
async def test_tokens_rise_for_each_permit(redlock: Redlock, masters: Masters) -> None:
    last: dict[int | None, int] = {}
    for turn in range(12):
        leases = await taken(redlock, 2, fencing=True)
        for lease in leases:
            assert lease.fencing_token > last.get(lease.permit, 0)
            last[lease.permit] = lease.fencing_token
        await released(*leases)
        if turn % 4 == 3:
            restart(masters[turn // 4 : turn // 4 + 2])
            await asyncio.sleep(0.05)


async def test_metadata_and_events_of_a_permit(masters: Masters, diary: Diary) -> None:
    async with Redlock(masters, listener=diary) as redlock:
        lease = await redlock.semaphore("r", permits=2, metadata={"job": 7}).acquire()
        assert "job" in view(masters[0]).holders[lease.permit or 0].decode()
        await lease.release()
    assert {event.mode for event in diary.events if hasattr(event, "mode")} == {"permit"}


async def test_max_hold_ends_a_permit(redlock: Redlock) -> None:
    began = now()
    with pytest.raises(LockLostError):
        async with redlock.semaphore("r", permits=2, ttl=500, max_hold=1_000):
            await asyncio.sleep(9)
    assert now() - began <= 1.0


@pytest.mark.full
@pytest.mark.parametrize("clients", [3, pytest.param(12, marks=pytest.mark.full)])
async def test_hold_at_least_limits_the_rate(
    redlock: Redlock, other: Redlock, clients: int
) -> None:
    """Each permit is used once in that time: three times two per 0.1 s."""
    starts: list[float] = []

    async def call(program: Redlock) -> None:
        while now() < ends:
            async with program.semaphore("r", permits=2, hold_at_least=100, ttl=5_000):
                starts.append(now())

    ends = now() + 3
    async with asyncio.TaskGroup() as group:
        for number in range(clients):
            group.create_task(call([redlock, other][number % 2]))
    starts.sort()
    for first, third in zip(starts, starts[2:], strict=False):
        assert third - first >= 0.1 - 2 * LATENCY
    used = len([start for start in starts if start < ends])
    assert used >= (40 if clients == 3 else 54), "of 60"


@pytest.mark.full
@pytest.mark.promise("S8")
async def test_nobody_starves_where_permits_end_by_their_ttl(
    redlock: Redlock, other: Redlock
) -> None:
    """One holder needs its permit for long; nobody releases the others before their time."""
    waits: list[float] = []

    async def call(program: Redlock, seconds: float) -> None:
        while now() < ends:
            began = now()
            async with program.semaphore("r", permits=3, hold_at_least=100, ttl=10_000):
                waits.append(now() - began)
                await asyncio.sleep(seconds)

    ends = now() + 6
    async with asyncio.TaskGroup() as group:
        for number in range(9):
            group.create_task(call([redlock, other][number % 2], 0.01 if number else 3.0))
    assert len(waits) > 2 * 6 / 0.105
    assert max(waits) < 1.1, "not as long as that holder needs"


@pytest.mark.promise("S4")
@pytest.mark.parametrize("on_lost", ["cancel", "flag"])
async def test_a_lost_permit(redlock: Redlock, masters: Masters, on_lost: Any) -> None:
    ended = False
    with pytest.raises(LockLostError):
        async with redlock.semaphore("r", permits=2, ttl=1_000, on_lost=on_lost) as lease:
            hang(masters[:3])
            await asyncio.sleep(1.5)
            assert not lease.valid
            ended = True
            resume(masters)
            lease.ensure_valid()
    assert ended == (on_lost == "flag")
    await settle(masters, 3)
    assert left(masters) == []


async def test_one_command_extends_many_permits(redlock: Redlock, masters: Masters) -> None:
    semaphore = redlock.semaphore("r", permits=50, ttl=3_000)
    leases = await asyncio.gather(*[semaphore.acquire() for _ in range(50)])
    await asyncio.sleep(3)
    assert all(lease.valid for lease in leases)
    extensions = kit.runs_of(masters[0], scripts.EXTEND)
    extended = [word for each in extensions for word in each if b":permit:{r}#" in word]
    assert len(extended) >= 100
    assert len(extensions) < len(extended) / 2
    await asyncio.gather(*[lease.release() for lease in leases])
    await settle(masters, 0.1)
    assert left(masters) == []


@pytest.mark.promise("S3")
@pytest.mark.parametrize("after", [0.0, 0.0005, 0.1, 1.2])
async def test_a_manager_is_closed_while_tasks_wait(
    other: Redlock, masters: Masters, after: float
) -> None:
    leases = await taken(other, 2, ttl=60_000)
    async with Redlock(masters, restart_guard="off") as redlock:
        tasks = [waiting(redlock) for _ in range(3)]
        await asyncio.sleep(0.05)
        await asyncio.sleep(after)
        for lease in leases if after <= 1 else ():
            await lease.release()
    done, _ = await asyncio.wait(tasks, timeout=5)
    assert len(done) == 3
    assert all(isinstance(task.exception(), RedlockError) for task in tasks if task.exception())
    await asyncio.sleep(0.1)
    assert queues(masters) == [{}] * 5
    for lease in leases if after > 1 else ():
        await lease.release()


@pytest.mark.full
async def test_nothing_is_left_when_all_has_ended(
    redlock: Redlock, other: Redlock, masters: Masters
) -> None:
    crew = Crew(3)
    async with asyncio.TaskGroup() as group:
        for number in range(12):
            group.create_task(
                crew.work(
                    [redlock, other][number % 2], random.uniform(0.001, 0.03), 10, fencing=True
                )
            )
    await asyncio.sleep(0.01)
    assert left(masters) == []
    assert all("fence" in key or "marker" in key for master in masters for key in master.keys)
    for program in (redlock, other):
        assert not kit.session(program).fair_queue.waiters


async def test_a_full_queue(masters: Masters) -> None:
    async with Redlock(masters, max_waiters=2) as redlock:
        leases = await taken(redlock, 2)
        tasks = [waiting(redlock) for _ in range(8)]
        await asyncio.wait(tasks, timeout=0.1)
        refused = [task for task in tasks if task.done()]
        assert 0 < len(refused) <= 4
        assert all(isinstance(task.exception(), LockNotAcquiredError) for task in refused)
        await released(*leases)
        await asyncio.wait(tasks)


@pytest.mark.promise("S9")
async def test_waiters_of_a_smaller_program_are_not_moved_to_permits_they_do_not_know(
    redlock: Redlock, other: Redlock, masters: Masters, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They would decline it, and the next of them again."""
    declined = 0
    decline = FairQueue.decline

    def counted(self: FairQueue, master: int, permit: bytes, member: bytes) -> None:
        nonlocal declined
        declined += 1
        decline(self, master, permit, member)

    monkeypatch.setattr(FairQueue, "decline", counted)
    leases = await taken(redlock, 2)
    upper = await other.semaphore("r", permits=3).acquire()
    assert upper.permit == 2
    tasks = [waiting(redlock if number % 2 else other) for number in range(4)]
    await asyncio.sleep(0.5)
    await upper.release()
    await asyncio.sleep(2)
    assert not declined
    more = await other.semaphore("r", permits=3, wait=0).acquire()
    assert more.permit == 2
    await more.release()
    await released(*leases)
    assert max(await asyncio.gather(*tasks)) < now() + 0.2
    assert left(masters) == []
