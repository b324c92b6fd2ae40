"""Masters that are busier than their timeout: what they are asked must not keep them so."""

import asyncio
import contextlib
import functools
import math
import random
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from typing import Any

import pytest

from redlock_aio import (
    Answer,
    Lease,
    Lock,
    LockNotAcquiredError,
    QuorumUnavailableError,
    Redlock,
    RedlockError,
    Retry,
)
from redlock_aio._engine.hold.renewal import Renewal
from redlock_aio._engine.masters import MasterSet
from redlock_aio._engine.wait.gate import Gate
from redlock_aio._engine.wait.local_queue import IDLE_QUEUES
from redlock_aio._protocol.primitives import Mutex
from redlock_aio._protocol.request import OVERRUN, Request
from redlock_aio._protocol.scripts import (
    ENQUEUE,
    ENQUEUE_PERMIT,
    ENQUEUE_SHARED,
    EXTEND,
    RELEASE,
    Script,
)
from redlock_aio._transport import connection
from redlock_aio.testing import FakeMaster

from .kit import (
    Masters,
    check_no_keys,
    delete,
    fail,
    guarded,
    hang,
    kill,
    now,
    occupy,
    ran,
    refused,
    restart,
    resume,
    session,
    slow,
    until,
)

TTL = 3000
BUSY = 0.6
"""The share of its time for which a master is busy before it stands still."""


class BusyMaster(FakeMaster):
    """
    A master that takes time to execute requests, one after the other.

    Attributes:
        rate: How many bytes of requests it executes in a second.
    """

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.rate = math.inf
        self.received = 0
        self._free_at = 0.0

    def receive(self, transport: Any, data: bytes) -> None:
        self.received += len(data)
        loop = asyncio.get_running_loop()
        # Not at one instant: the loop does not keep the order of timers that are due together.
        self._free_at = max(self._free_at, loop.time()) + len(data) / self.rate + 1e-9
        loop.call_later(self._free_at - loop.time(), super().receive, transport, data)

    def stand_still(self, seconds: float) -> None:
        """Execute nothing for *seconds*, as while a server forks or writes to a slow disk."""
        self._free_at = max(self._free_at, asyncio.get_running_loop().time()) + seconds


@pytest.fixture
def masters() -> list[FakeMaster]:
    return [BusyMaster(f"m{number}") for number in range(5)]


@pytest.fixture
async def impatient(masters: Masters) -> AsyncIterator[Redlock]:
    """Open a manager whose masters time out after 50 ms."""
    async with Redlock(masters, restart_guard="off", master_timeout=50) as redlock:
        yield redlock


async def fill(
    redlock: Redlock, masters: Masters, monkeypatch: pytest.MonkeyPatch
) -> list[asyncio.Task[Lease | None]]:
    """Hang *masters*, and send them as many requests as may be unanswered; return their tasks."""
    monkeypatch.setattr(connection, "MAX_PENDING", 20)
    await redlock.check()
    hang(masters)
    tries = [redlock.lock(f"n{number}", wait=0).try_acquire() for number in range(20)]
    tasks = [asyncio.create_task(each) for each in tries]
    await asyncio.sleep(0.01)
    return tasks


async def get_busy(masters: Sequence[FakeMaster], share: float = BUSY) -> None:
    """Make *masters* so slow that what they are asked now takes this *share* of their time."""
    busy = [master for master in masters if isinstance(master, BusyMaster)]
    before = [master.received for master in busy]
    await asyncio.sleep(TTL / 1000)
    for master, received in zip(busy, before, strict=True):
        master.rate = (master.received - received) / (TTL / 1000) / share


async def start_for(
    tasks: asyncio.TaskGroup, use: Callable[[int], Coroutine[Any, Any, None]], seconds: float
) -> None:
    """Start *use* with random numbers for some seconds, 100 times a second on average."""
    ends = now() + seconds
    while now() < ends:
        tasks.create_task(use(random.getrandbits(64)))
        await asyncio.sleep(random.expovariate(100))


def received(masters: Masters) -> list[int]:
    return [master.received for master in masters if isinstance(master, BusyMaster)]


async def release(leases: Sequence[Lease]) -> None:
    await asyncio.gather(*(lease.release() for lease in leases))


def plain(redlock: Redlock, name: str) -> Lock:
    return redlock.lock(name, ttl=20_000)


def fair(redlock: Redlock, name: str) -> Lock:
    return redlock.lock(name, ttl=20_000, fair=True)


def permit(redlock: Redlock, name: str) -> Lock:
    return redlock.semaphore(name, permits=2, ttl=20_000)


async def wait_at_the_gate(
    redlock: Redlock, masters: Masters, kind: Callable[[Redlock, str], Lock] = plain
) -> asyncio.Task[Lease]:
    """Hang *masters*; return a task that waits for them, when it has shut the gate."""
    await redlock.check()
    hang(masters)
    task = asyncio.create_task(kind(redlock, "first").acquire())
    await until(lambda: session(redlock).gate.is_shut)
    return task


def record_passing(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list that gets how many tasks pass the gate each time."""
    at_once: list[int] = []
    let_pass = Gate._let_pass

    def count(gate: Gate, *places: Any) -> None:
        at_once.append(len(places))
        let_pass(gate, *places)

    monkeypatch.setattr(Gate, "_let_pass", count)
    return at_once


@pytest.mark.full
async def test_leases_outlive_a_moment_in_which_all_masters_stand_still(
    impatient: Redlock, masters: list[BusyMaster]
) -> None:
    """
    Replies come late from then on, until the masters have caught up.

    If each timeout led to another request, they would never catch up, and all leases would end.
    """

    async def acquire(number: int) -> Lease:
        await asyncio.sleep(random.random())
        return await impatient.lock(f"r{number}", ttl=TTL, on_lost="flag").acquire()

    leases = await asyncio.gather(*map(acquire, range(100)))
    await asyncio.sleep(TTL / 1000)
    await get_busy(masters)
    for master in masters:
        master.stand_still(0.4)
    await asyncio.sleep(4 * TTL / 1000)
    assert [lease.valid for lease in leases] == [True] * 100
    began = now()
    async with impatient.lock("another"):
        pass
    assert now() - began < 0.05  # they have caught up
    await release(leases)


@pytest.mark.parametrize("others", [None, kill, fail], ids=["slow", "one down", "one refuses"])
async def test_masters_that_are_slow_get_each_extension_once(
    impatient: Redlock, masters: Masters, others: Any
) -> None:
    """They answer in order: a repetition would be answered behind the first one."""
    async with impatient.lock("r", ttl=TTL) as lease:
        slow(masters, 0.6)
        if others is not None:
            others(masters[4:])
        before = ran(masters[0], EXTEND)
        await asyncio.sleep(30)
        assert lease.valid
        # One a cycle: a third of the ttl, or a little less, and then 0.6 s until it counts.
        assert 16 <= ran(masters[0], EXTEND) - before <= 22


async def test_a_lease_lives_on_masters_that_answer_after_nearly_half_of_its_ttl(
    impatient: Redlock, masters: Masters
) -> None:
    """No extension follows another that is underway, so the next must leave in time."""
    async with impatient.lock("r", ttl=1500) as lease:
        slow(masters, 0.46 * 1.5)
        await asyncio.sleep(30)
        assert lease.valid
        assert ran(masters[0], EXTEND) <= 60  # not more than on masters that are quick


async def test_masters_that_are_slow_get_an_explicit_extension_once(
    impatient: Redlock, masters: Masters
) -> None:
    async with impatient.lock("r", ttl=TTL, auto_extend=False) as lease:
        slow(masters, 0.6)
        await lease.extend(2 * TTL)
        assert lease.remaining > 2 * TTL - 1000
        assert ran(masters[0], EXTEND) == 1


async def test_a_late_extension_costs_its_neighbours_nothing(
    impatient: Redlock, masters: Masters, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A late reply shows that masters are slow, not that they are back."""
    leases = await asyncio.gather(
        *(impatient.lock(f"r{number}", ttl=TTL, on_lost="flag").acquire() for number in range(50))
    )
    slow(masters, 0.6)
    looks = 0

    def look(renewal: Renewal, is_worth_it: Any = Renewal.is_worth_repeating) -> bool:
        nonlocal looks
        looks += 1
        return bool(is_worth_it(renewal))

    monkeypatch.setattr(Renewal, "is_worth_repeating", look)
    before = ran(masters[0], EXTEND)
    await asyncio.sleep(TTL / 1000)
    assert all(lease.valid for lease in leases)
    assert ran(masters[0], EXTEND) - before <= 50 * 2
    assert looks <= 50 * 8
    await release(leases)


async def test_an_extension_that_was_lost_with_its_connections_is_repeated(
    impatient: Redlock, masters: Masters
) -> None:
    """It was late, and nothing of it is underway any more."""
    async with impatient.lock("r", ttl=TTL) as lease:
        slow(masters, 0.6)
        await asyncio.sleep(1.2)  # it has left, and has timed out
        asked = ran(masters[0], EXTEND)
        for master in masters:
            master.cut()
        slow(masters, 0.001)
        await asyncio.sleep(0.5)
        assert ran(masters[0], EXTEND) == asked + 1
        assert lease.remaining > TTL - 600


async def test_an_extension_that_waited_for_slow_masters_is_repeated_when_they_are_back(
    impatient: Redlock, masters: list[BusyMaster]
) -> None:
    """The vote of one master that returned before them has not made it forget that it failed."""
    async with impatient.lock("r", ttl=10 * TTL) as lease:
        await asyncio.sleep(1)
        slow(masters, 0.9)
        asked = masters[0].received
        await until(lambda: masters[0].received > asked)
        await asyncio.sleep(0.06)  # it has timed out, and is underway
        for some in (masters[4:], masters[:4]):
            for master in some:
                master.latency = 0.001
                master.cut()
            await asyncio.sleep(0.5)
        # Sooner than the next try after a failure, which comes after a twelfth of the ttl.
        assert lease.remaining > 9 * TTL


async def test_a_majority_that_is_not_slow_gets_a_repetition(
    impatient: Redlock, masters: Masters
) -> None:
    """Three masters refuse for a while. That two others are slow puts nothing off."""
    async with impatient.lock("r", ttl=TTL) as lease:
        slow(masters[3:], 1.5)
        fail(masters[:3])
        await asyncio.sleep(1.2)
        fail(masters[:3], "")
        await asyncio.sleep(TTL / 1000 / 12 + 0.05)
        assert lease.remaining > TTL - 400


# Tasks that wait for a lock


@pytest.mark.full
@pytest.mark.parametrize(
    ("share", "seconds"), [(BUSY, 3), pytest.param(0.9, 15, marks=pytest.mark.full)]
)
async def test_acquisitions_go_on_after_a_moment_in_which_all_masters_stand_still(
    masters: list[BusyMaster], share: float, seconds: float
) -> None:
    """
    Requests come at a constant rate, whatever becomes of those before.

    If those that wait asked again and again, or all at once, the masters would never catch up.
    """
    took: list[float] = []
    async with Redlock(masters, restart_guard="off") as redlock:

        async def use(number: int) -> None:
            began = now()
            async with redlock.lock(f"r{number}", wait=15_000):
                took.append(now() - began)

        async with asyncio.TaskGroup() as tasks:
            come = functools.partial(start_for, tasks, use)
            await asyncio.gather(come(TTL / 1000), get_busy(masters, share))
            await come(1)
            for master in masters:
                master.stand_still(0.4)
            await come(seconds)
            del took[:]
            await come(1)
            assert max(took) < 0.1  # they have caught up


@pytest.mark.parametrize("away", [kill, hang])
async def test_tasks_that_wait_ask_once_a_second_while_no_majority_can_answer(
    masters: list[BusyMaster], away: Any
) -> None:
    """One of them, to see why. All ask as soon as a majority is back."""
    async with Redlock(masters, restart_guard="off") as redlock:
        await redlock.check()
        away(masters[:3])
        before = masters[4].received
        waiting = [
            asyncio.create_task(redlock.lock(f"r{number}", wait=60_000).acquire())
            for number in range(30)
        ]
        await asyncio.sleep(1)
        first = masters[4].received - before
        await asyncio.sleep(20)
        assert masters[4].received - before < 2 * first
        for master in masters[:3]:
            if away is kill:
                master.restart()
            master.resume()
        await until(lambda: sum(each.votes for each in redlock.statistics().masters) >= 3)
        back = now()
        leases = await asyncio.gather(*waiting)
        assert now() - back < 0.1
        await release(leases)


@pytest.mark.spread(0)
@pytest.mark.parametrize("fencing", [False, pytest.param(True, marks=pytest.mark.full)])
async def test_tasks_ask_in_turn_while_most_masters_refuse_to_write(
    redlock: Redlock, masters: Masters, *, fencing: bool
) -> None:
    """All ask as soon as one of them is accepted. Before, each asked ten times a second."""
    await redlock.check()
    fail(masters[:3])
    waiting = [
        asyncio.create_task(redlock.lock(f"r{number}", fencing=fencing).acquire())
        for number in range(100)
    ]
    await asyncio.sleep(5)
    assert redlock.statistics().waiters > 90
    before = ran(masters[4], RELEASE)
    await asyncio.sleep(4)
    assert 200 < ran(masters[4], RELEASE) - before <= 400
    fail(masters[:3], "")
    back = now()
    leases = await asyncio.gather(*waiting)
    assert now() - back < 0.5
    await release(leases)


@pytest.mark.full
async def test_a_wait_for_a_turn_ends_in_time(redlock: Redlock, masters: Masters) -> None:
    await redlock.check()
    fail(masters[:3])
    waiting = [asyncio.create_task(redlock.lock(f"r{i}").acquire()) for i in range(300)]
    await asyncio.sleep(5)
    for retry, attempts, seconds in ((Retry(), 2, 1.0), (Retry(attempts=3), 3, 0.1)):
        began = now()
        with pytest.raises(QuorumUnavailableError, match="m2: error, OOM command") as caught:
            await redlock.lock("r", wait=1_000, retry=retry).acquire()
        assert caught.value.attempts == attempts
        assert now() - began == pytest.approx(seconds, abs=0.1)
    for task in waiting:
        task.cancel()
    await asyncio.wait(waiting)
    assert not session(redlock).masters.outages.line


@pytest.mark.full
async def test_no_turn_of_a_task_that_has_given_up_is_waited_for(
    redlock: Redlock, masters: Masters
) -> None:
    """Before, the last of a thousand asked 10 s later, also if all others were gone."""
    await redlock.check()
    fail(masters[:3])
    waiting = [asyncio.create_task(redlock.lock(f"r{i}").acquire()) for i in range(1_000)]
    line = session(redlock).masters.outages.line
    await until(lambda: len(line) > 800)
    for task in waiting[:-1]:
        task.cancel()
    await asyncio.wait(waiting[:-1])
    waiting[:-1] = [asyncio.create_task(redlock.lock("new").acquire())]
    await asyncio.sleep(0.3)
    fail(masters[:3], "")
    back = now()
    leases = await asyncio.gather(*waiting)
    assert now() - back < 0.3
    await release(leases)


async def test_a_master_that_restarts_again_and_again_lets_nobody_ask(masters: Masters) -> None:
    """It has no vote. But each of its connections tells those who wait that a key may be gone."""
    async with guarded(masters) as redlock:
        await redlock.check()
        kill(masters[2:])
        waiting = [asyncio.create_task(redlock.lock(f"r{i}").acquire()) for i in range(100)]
        await asyncio.sleep(3)
        before = ran(masters[0], RELEASE)
        for _ in range(10):
            masters[2].restart()
            await asyncio.sleep(1)
            masters[2].kill()
        assert 5 <= ran(masters[0], RELEASE) - before <= 15
        for task in waiting:
            task.cancel()
        await asyncio.wait(waiting)


@pytest.mark.spread(0)
@pytest.mark.parametrize("kind", [plain, fair, pytest.param(permit, marks=pytest.mark.full)])
async def test_new_acquisitions_ask_nobody_while_others_wait_for_a_majority(
    redlock: Redlock, masters: Masters, kind: Callable[[Redlock, str], Lock]
) -> None:
    """They pass in the order in which they came, when a majority answers."""
    first = await wait_at_the_gate(redlock, masters, kind)
    before = received(masters)[0]
    acquired: list[int] = []

    async def use(number: int) -> None:
        async with kind(redlock, f"r{number}"):
            acquired.append(number)

    tasks = [asyncio.create_task(use(number)) for number in range(1000)]
    await asyncio.sleep(0.5)
    assert received(masters)[0] - before < 1000  # of the first one
    back = now()
    resume(masters)
    await asyncio.gather(*tasks)
    assert now() - back < 0.2
    assert acquired == list(range(1000))
    await (await first).release()


async def test_tasks_of_one_key_wait_in_one_queue_after_an_outage(
    redlock: Redlock, masters: Masters
) -> None:
    """The queue that was there when a task began has been dropped: nobody was in it."""
    first = await wait_at_the_gate(redlock, masters)
    one = asyncio.create_task(redlock.lock("r").acquire())
    await asyncio.sleep(0.1)
    for number in range(2 * IDLE_QUEUES):
        session(redlock).local_queues.of(Mutex(f"other{number}".encode()))
    resume(masters)
    lease = await one
    asked = len(masters[0].commands)
    another = asyncio.create_task(redlock.lock("r").acquire())
    await asyncio.sleep(0.5)
    assert [c for c in masters[0].commands[asked:] if c[:2] == [b"SET", b"r"]] == []
    await lease.release()
    await release([await first, await another])


async def test_tasks_that_wait_for_a_majority_pass_in_growing_numbers(
    redlock: Redlock, masters: Masters, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All at once would keep the loop from all else for as long as their requests take."""
    at_once = record_passing(monkeypatch)
    first = await wait_at_the_gate(redlock, masters)
    waiting = [redlock.lock(f"r{number}", wait=60_000).acquire() for number in range(2000)]
    tasks = [asyncio.create_task(each) for each in waiting]
    await asyncio.sleep(0.2)
    resume(masters)
    await release(await asyncio.gather(first, *tasks))
    assert at_once[:11] == [1, 2, 4, 8, 16, 32, 64, 128, 256, 500, 500]
    assert sum(at_once) == 2001


async def test_how_many_pass_follows_from_how_many_have_passed(
    redlock: Redlock, masters: Masters, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If few wait for a while, that masters answer them in time says nothing about many."""
    at_once = record_passing(monkeypatch)
    slow(masters, 0.01)
    first = await wait_at_the_gate(redlock, masters)
    resume(masters)
    tasks: list[asyncio.Task[Lease]] = []
    for number in range(400):
        tasks.append(asyncio.create_task(redlock.lock(f"a{number}").acquire()))
        await asyncio.sleep(0.002)
    assert session(redlock).gate.is_shut
    del at_once[:]
    tasks += [asyncio.create_task(redlock.lock(f"b{number}").acquire()) for number in range(400)]
    await release(await asyncio.gather(first, *tasks))
    assert at_once[0] < 20


async def test_nobody_waits_for_a_majority_that_answers(
    redlock: Redlock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Leases of this process end while the release of a failed attempt is underway."""
    waits: list[float] = []

    async def wait(_gate: Gate, seconds: float) -> bool:
        waits.append(seconds)
        return True

    monkeypatch.setattr(Gate, "wait", wait)

    async def use() -> None:
        for _ in range(10):
            async with redlock.lock(*random.sample("abcdef", 2)):
                await asyncio.sleep(random.uniform(0, 0.002))

    await asyncio.gather(*(use() for _ in range(6)))
    assert not waits


async def test_a_cancelled_task_leaves_its_place_to_the_next(
    redlock: Redlock, masters: Masters
) -> None:
    first = await wait_at_the_gate(redlock, masters)
    waiting = [asyncio.create_task(redlock.lock(f"r{i}").acquire()) for i in range(100)]
    await asyncio.sleep(0.1)
    for task in waiting[:99]:
        task.cancel()
    resume(masters)
    back = now()
    await release([await first, await waiting[99]])
    assert now() - back < 0.05
    assert not session(redlock).gate.waiting


@pytest.mark.parametrize("when", ["before", "after"])
async def test_a_task_that_is_cancelled_as_it_passes_holds_nobody_up(
    redlock: Redlock, masters: Masters, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    """In one turn of the loop, before the task has run again: it keeps neither turn nor key."""
    first = await wait_at_the_gate(redlock, masters)
    waiting = [asyncio.create_task(redlock.lock(f"r{i % 10}").acquire()) for i in range(20)]
    await asyncio.sleep(0.1)
    let_pass = Gate._let_pass

    def interfere(gate: Gate, *places: Any, **options: Any) -> None:
        if when == "after":
            let_pass(gate, *places, **options)
        if len(places) > 1:  # not the first task alone
            for task in waiting[:10]:
                task.cancel()
        if when == "before":
            let_pass(gate, *places, **options)

    monkeypatch.setattr(Gate, "_let_pass", interfere)
    resume(masters)
    back = now()
    await release([await first, *await asyncio.gather(*waiting[10:])])
    assert now() - back < 0.2
    assert not session(redlock).gate.waiting
    await asyncio.sleep(0.1)
    await check_no_keys(masters)


@pytest.mark.parametrize("away", [kill, hang])
async def test_all_learn_that_a_majority_refuses_for_good(
    redlock: Redlock, masters: Masters, away: Any
) -> None:
    """Each second one task asks in vain; the others do not have to wait for their turn."""
    await redlock.check()
    away(masters)
    tasks = [asyncio.create_task(redlock.lock(f"r{i}").acquire()) for i in range(50)]
    await asyncio.sleep(5)
    tasks += [asyncio.create_task(redlock.lock(f"n{i}").acquire()) for i in range(50)]
    fail(masters, "NOPERM this user has no permissions")
    (restart if away is kill else resume)(masters)
    back = now()
    results = await asyncio.gather(*tasks, return_exceptions=True)
    assert {type(each) for each in results} == {QuorumUnavailableError}
    # Also of those whose attempts are 0, as another task has asked.
    codes = [each.code for each in results if isinstance(each, QuorumUnavailableError)]
    assert set(codes) == {"masters-refuse"}
    assert now() - back < 3
    fail(masters, "")


@pytest.mark.parametrize(("is_shut", "many"), [(False, 100), (True, 15)])
async def test_masters_that_are_full_of_requests_are_asked_a_second_later(
    redlock: Redlock, masters: Masters, monkeypatch: pytest.MonkeyPatch, is_shut: bool, many: int
) -> None:
    """They do not get the PING either, so no reply tells when they have answered the others."""
    at_once = await fill(redlock, masters, monkeypatch)
    fair = []
    if is_shut:  # by a task that is to enter the masters' queues
        fair.append(asyncio.create_task(redlock.lock("fair", fair=True).acquire()))
        await until(lambda: session(redlock).gate.is_shut)
    waiting = [asyncio.create_task(redlock.lock(f"r{i}").acquire()) for i in range(many)]
    await asyncio.sleep(0.5)
    back = now()
    resume(masters)
    await release(await asyncio.gather(*waiting))
    assert now() - back < 1
    await release(await asyncio.gather(*fair))
    await asyncio.gather(*at_once, return_exceptions=True)


@pytest.mark.parametrize("names", [20, 1 << 64], ids=["20 names", "a name each"])
async def test_masters_that_get_more_than_they_can_do_serve_what_they_can(
    masters: list[BusyMaster], names: int
) -> None:
    """Others give up when their time is over, without another request; also those of one name."""
    served = 0
    async with Redlock(masters, restart_guard="off") as redlock:

        async def use(number: int) -> None:
            nonlocal served
            with contextlib.suppress(LockNotAcquiredError):
                async with redlock.lock(f"r{number % names}", wait=2000):
                    served += 1

        async with asyncio.TaskGroup() as tasks:
            come = functools.partial(start_for, tasks, use)
            await asyncio.gather(come(TTL / 1000), get_busy(masters, 2))
            await come(6)
            served = 0
            await come(10)
            assert served > 0.8 * 50 * 10  # as many as they could in 10 s
            for master in masters:
                master.rate = math.inf


@pytest.mark.parametrize("many", [1, 150])
async def test_nobody_makes_a_last_attempt_while_no_majority_can_answer(
    redlock: Redlock, masters: Masters, many: int
) -> None:
    """With 4 000 such tasks a second a program would have no time to connect again."""
    first = await wait_at_the_gate(redlock, masters[:4])
    waiting = [redlock.lock(f"r{number}", wait=500).acquire() for number in range(many)]
    errors = await asyncio.gather(*waiting, return_exceptions=True)
    text = "; ".join(
        [f"m{number}: timed out" for number in range(4)]
        + ["m4: error, not asked, because no majority could answer"]
    )
    assert {str(error).partition(": ")[2] for error in errors if isinstance(error, Exception)} == {
        f"too few masters answered in 500 ms ({text}) [too-few-masters]"
    }
    assert {error.attempts for error in errors if isinstance(error, QuorumUnavailableError)} == {0}
    resume(masters)
    await release([await first])


async def test_an_error_at_the_gate_names_the_number_of_permits(
    redlock: Redlock, masters: Masters
) -> None:
    first = await wait_at_the_gate(redlock, masters)
    with pytest.raises(QuorumUnavailableError) as caught:
        await redlock.semaphore("r", permits=3, wait=500).acquire()
    assert caught.value.permits == 3
    resume(masters)
    await release([await first])


async def test_a_task_that_has_asked_tells_these_votes_of_masters_that_answer(
    redlock: Redlock, masters: Masters
) -> None:
    await redlock.check()
    hang(masters[:3])
    with pytest.raises(QuorumUnavailableError) as caught:
        await redlock.lock("r", wait=500).acquire()
    assert caught.value.attempts == 1
    assert [str(vote) for vote in caught.value.votes] == [
        *(f"m{number}: timed out" for number in range(3)),
        *(f"m{number}: granted" for number in (3, 4)),
    ]
    resume(masters)
    await asyncio.sleep(2)


async def test_a_task_whose_time_is_nearly_over_does_not_pass(
    redlock: Redlock, masters: Masters, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It waits to the end, and holds up nobody who comes later."""
    passed = record_passing(monkeypatch)
    first = await wait_at_the_gate(redlock, masters)
    late = [asyncio.create_task(redlock.lock(f"r{i}", wait=500).acquire()) for i in range(50)]
    await asyncio.sleep(0.46)  # their last attempts would be due 50 ms before the end
    resume(masters)
    began = now()
    async with redlock.lock("r", wait=500):
        assert now() - began < 0.02
    errors = await asyncio.gather(*late, return_exceptions=True)
    assert {getattr(error, "elapsed", None) for error in errors} == {500}
    await release([await first])
    assert passed == [1, 1]


async def test_the_error_of_a_crowd_names_no_timeout_of_masters_that_answer(
    redlock: Redlock, masters: Masters
) -> None:
    """The last PING has just left then."""
    first = await wait_at_the_gate(redlock, masters)
    slow(masters, 0.01)
    waiting = [
        asyncio.create_task(redlock.lock(f"r{number}", wait=500).acquire()) for number in range(150)
    ]
    await asyncio.sleep(0.44)
    resume(masters)
    results = await asyncio.gather(first, *waiting, return_exceptions=True)
    turned_away = [
        error
        for error in results
        if isinstance(error, QuorumUnavailableError) and not error.attempts
    ]
    assert turned_away
    assert {vote.answer for error in turned_away for vote in error.votes} == {Answer.ERROR}
    await release([each for each in results if isinstance(each, Lease)])


async def test_the_error_of_a_crowd_tells_of_too_many_requests(
    redlock: Redlock, masters: Masters, monkeypatch: pytest.MonkeyPatch
) -> None:
    at_once = await fill(redlock, masters, monkeypatch)
    waiting = [redlock.lock(f"r{number}", wait=500).acquire() for number in range(250)]
    errors = await asyncio.gather(*waiting, return_exceptions=True)
    given = [error for error in errors if isinstance(error, QuorumUnavailableError)]
    assert len(given) == 250
    assert {vote.detail for error in given for vote in error.votes} == {OVERRUN.detail}
    resume(masters)
    await asyncio.gather(*at_once, return_exceptions=True)


@pytest.mark.parametrize("away", [kill, "quarantine"])
async def test_the_error_of_a_crowd_says_why_masters_do_not_vote(
    masters: Masters, away: Any
) -> None:
    async with Redlock(masters, restart_guard="auto" if away != kill else "off") as redlock:
        await redlock.check()
        kill(masters[:3])
        await asyncio.sleep(0.1)
        if away != kill:
            restart(masters[:3])
            await asyncio.sleep(1)
        first = asyncio.create_task(redlock.lock("first", wait=500).acquire())
        await until(lambda: session(redlock).gate.is_shut)
        waiting = [redlock.lock(f"r{number}", wait=3000).acquire() for number in range(150)]
        errors = await asyncio.gather(*waiting, return_exceptions=True)
        with pytest.raises(QuorumUnavailableError):
            await first
    votes = [error.votes for error in errors if isinstance(error, QuorumUnavailableError)]
    wanted = Answer.UNREACHABLE if away is kill else Answer.QUARANTINED
    assert {tuple(vote.answer for vote in each) for each in votes} == {
        (wanted,) * 3 + (Answer.ERROR,) * 2,
        (wanted,) * 3 + (Answer.GRANTED,) * 2,  # of those that have passed to see why
    }
    assert sum(each[4].answer is Answer.GRANTED for each in votes) < 5


async def test_the_end_of_an_outage_is_logged_by_tasks_that_came_in_it(
    redlock: Redlock, masters: Masters, caplog: pytest.LogCaptureFixture
) -> None:
    """Those that have seen it begin were turned away before."""
    caplog.set_level("INFO", "redlock_aio")
    await redlock.check()
    hang(masters[:3])
    tasks: list[asyncio.Task[Lease]] = []
    for number in range(400):
        lock = redlock.lock(f"r{number}", wait=1500)
        tasks.append(asyncio.create_task(lock.acquire()))
        await asyncio.sleep(0.01)
    resume(masters)
    results = await asyncio.gather(*tasks, return_exceptions=True)
    ends = [each for each in caplog.messages if "answers again" in each]
    # From the first attempt that timed out, after 50 ms of the 4 s for which the masters hang.
    assert ends == ["a majority of the masters answers again, after 3.9 s"]
    await release([each for each in results if isinstance(each, Lease)])


async def test_the_end_of_an_outage_is_logged_also_if_all_give_up_in_it(
    redlock: Redlock, masters: Masters, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "redlock_aio")
    await redlock.check()
    hang(masters[:3])
    task = asyncio.create_task(redlock.lock("r", wait=500).acquire())
    await asyncio.sleep(0.46)  # too late for another attempt
    resume(masters)
    with pytest.raises(QuorumUnavailableError):
        await task
    assert caplog.messages[-1] == "a majority of the masters answers again, after 0.4 s"


async def test_a_task_behind_one_that_waits_for_a_majority_says_so_too(
    redlock: Redlock, other: Redlock, masters: Masters
) -> None:
    """Not who had the lock when the other one asked for the last time, before that."""
    retry = Retry(min_delay=200, max_delay=200)
    async with other.lock("r", ttl=60_000, on_lost="flag"):
        waits = [refused(redlock, wait=wait, retry=retry) for wait in (10_000, 9_900)]
        tasks = [asyncio.create_task(wait) for wait in waits]
        await asyncio.sleep(0.01)
        first = [await wait_at_the_gate(redlock, masters)]
        # So many that in the ten seconds none of the tasks above passes to ask again.
        first += [asyncio.create_task(redlock.lock(f"r{i}").acquire()) for i in range(20)]
        errors = await asyncio.gather(*tasks)
        assert [error.attempts for error in errors] == [1, 0]
        for error in errors:
            assert type(error) is QuorumUnavailableError
            assert {vote.answer for vote in error.votes} == {Answer.UNREACHABLE}
        resume(masters)
        await release(await asyncio.gather(*first))


async def test_a_wait_that_no_majority_answers_ends_with_another_attempt(
    redlock: Redlock, masters: Masters
) -> None:
    await redlock.check()
    kill(masters[:3])
    with pytest.raises(QuorumUnavailableError) as caught:
        await redlock.lock("r", wait=10_000).acquire()
    assert 3 <= caught.value.attempts <= 14
    assert 9.8 < now() < 10.2


async def test_limited_attempts_do_not_wait_for_a_majority(
    redlock: Redlock, masters: Masters
) -> None:
    await redlock.check()
    hang(masters)
    with pytest.raises(QuorumUnavailableError) as caught:
        await redlock.lock("r", retry=Retry(attempts=3)).acquire()
    assert caught.value.attempts == 3
    assert now() < 2


async def test_waiters_of_masters_that_push_nothing_ask_again_when_they_go_on(
    masters: Masters,
) -> None:
    """Late replies may show that others hold the locks. Then only another attempt tells more."""
    for master in masters:
        master.forbid = {"CLIENT"}
    names = [f"r{number}" for number in range(10)]
    async with Redlock(masters, restart_guard="off") as redlock:
        for name in names:
            occupy(masters, name)
        waiting = [asyncio.create_task(redlock.lock(name, wait=60_000).acquire()) for name in names]
        await asyncio.sleep(0.9)
        hang(masters)
        await asyncio.sleep(0.4)
        resume(masters)
        await asyncio.sleep(0.1)
        for name in names:
            delete(masters, name)
        free = now()
        leases = await asyncio.gather(*waiting)
        assert now() - free < 0.3  # the longest delay of a retry, and a few round trips
        await release(leases)


@pytest.mark.parametrize("away", [kill, hang])
async def test_a_wait_for_a_majority_ends_at_keys_that_are_no_locks(away: Any) -> None:
    """Its attempt tells of them, when its turn to ask in vain has come."""
    masters = [FakeMaster(f"m{number}", latency=0.002) for number in range(4)]
    async with Redlock(masters, restart_guard="off") as redlock:
        await redlock.check()
        for master in masters[:2]:
            master._data.zadd(b"r", 1, b"theirs")
        away(masters[2:])
        await asyncio.sleep(1)
        # It asks first: the others only wait.
        asks = asyncio.create_task(redlock.lock("another", wait=60_000).acquire())
        await asyncio.sleep(0.15)
        began = now()
        with pytest.raises(QuorumUnavailableError, match="WRONGTYPE"):
            await redlock.lock("r", wait=60_000).acquire()
        assert now() - began < 2.1
        asks.cancel()


@pytest.mark.parametrize("end", ["close", "cancel"])
@pytest.mark.parametrize("away", [kill, pytest.param(fail, marks=pytest.mark.full)])
async def test_a_wait_for_a_majority_ends_at_once(masters: Masters, away: Any, end: str) -> None:
    redlock = await Redlock(masters, restart_guard="off").__aenter__()
    await redlock.check()
    away(masters[:3])
    waiting = [asyncio.create_task(redlock.lock(f"r{i}").acquire()) for i in range(200)]
    await asyncio.sleep(20)
    began = now()
    for task in waiting:
        if end == "cancel":
            task.cancel()
    if end == "close":
        await redlock.aclose()
    await asyncio.wait(waiting, timeout=5)
    assert now() - began < 0.1
    results = await asyncio.gather(*waiting, return_exceptions=True)
    wanted = RedlockError if end == "close" else asyncio.CancelledError
    assert [isinstance(each, wanted) for each in results] == [True] * 200
    await redlock.aclose()


# Tasks that wait in the queues of the masters


def waiting_in_queues(redlock: Redlock, script: Script, tasks: int) -> list[asyncio.Task[Lease]]:
    """Return *tasks* that wait for a lock each, of the kind that enters queues by *script*."""

    def lock(name: str) -> Lock:
        if script is ENQUEUE_SHARED:
            return redlock.rw_lock(name).read()
        if script is ENQUEUE_PERMIT:
            return redlock.semaphore(name, permits=2)
        return redlock.lock(name, fair=True)

    return [asyncio.create_task(lock(f"r{number}").acquire()) for number in range(tasks)]


@pytest.mark.parametrize(
    ("patience", "pause", "most"),
    [
        # The first request, another one that makes an entry before the grant is given back, and one
        # when a reply has come.
        pytest.param(50, 0.6, 3, id="while they wait"),
        # The last one is that of a waiter which has left the queues, and one to enter them again
        # follows.
        pytest.param(250, 2.3, 4, id="until they leave"),
    ],
)
@pytest.mark.parametrize(
    "script", [ENQUEUE, ENQUEUE_PERMIT, ENQUEUE_SHARED], ids=["fair", "semaphore", "readers"]
)
@pytest.mark.spread(0)
async def test_masters_that_stand_still_are_asked_once_more_when_they_answer(
    masters: Masters, script: Script, patience: int, pause: float, most: int
) -> None:
    """Until then, each request would be one more to execute for masters that are behind."""
    async with Redlock(masters, restart_guard="off", master_timeout=patience) as redlock:
        await redlock.check()
        hang(masters)
        waiting = waiting_in_queues(redlock, script, 20)
        await asyncio.sleep(pause)
        resume(masters)
        resumed = now()
        leases = await asyncio.gather(*waiting)
        assert now() - resumed < 0.01
        # One of them asks again when this program has subscribed to wake-ups.
        assert ran(masters[0], script) <= most * 20 + 1
        await release(leases)


async def test_tasks_that_leave_the_queues_of_masters_that_stand_still_do_not_ask_them(
    masters: Masters,
) -> None:
    """They were not heard by a majority for so long. These give up before one answers."""
    async with Redlock(masters, restart_guard="off", master_timeout=250) as redlock:
        await redlock.check()
        hang(masters)
        locks = [redlock.lock(f"r{number}", fair=True, wait=2450) for number in range(20)]
        waiting = [asyncio.create_task(lock.acquire()) for lock in locks]
        await asyncio.wait(waiting)
        resume(masters)
        await asyncio.sleep(0.1)
        assert [type(task.exception()) for task in waiting] == [QuorumUnavailableError] * 20
        assert ran(masters[0], ENQUEUE) <= 2 * 20 + 1


@pytest.mark.spread(0)
@pytest.mark.parametrize(
    "away",
    [pytest.param(kill, marks=pytest.mark.full), hang, restart],
    ids=["down", "hung", "in quarantine"],
)
async def test_tasks_in_queues_do_not_ask_masters_without_a_vote(
    masters: Masters, away: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They ask the others once a second, and those as soon as they vote."""
    asked = [0] * len(masters)

    def count(self: MasterSet, master: int, sent: Request, send: Any = MasterSet.send_to) -> None:
        asked[master] += 1
        send(self, master, sent)

    async with guarded(masters) as redlock:
        await redlock.check()
        away(masters[:3])
        waiting = waiting_in_queues(redlock, ENQUEUE, 10)
        await asyncio.sleep(4)  # they have left the queues
        monkeypatch.setattr(MasterSet, "send_to", count)
        await asyncio.sleep(4)
        assert asked[:3] == [0] * 3
        assert all(4 * 10 <= times <= 5 * 10 for times in asked[3:])
        if away is kill:
            restart(masters[:3])
        resume(masters)
        await until(lambda: sum(each.votes for each in redlock.statistics().masters) >= 3)
        back = now()
        leases = await asyncio.gather(*waiting)
        assert now() - back < 0.01
        await release(leases)
