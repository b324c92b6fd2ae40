"""The effects of single replies on rounds, with masters that only record requests."""

import asyncio
import time
from types import SimpleNamespace
from typing import cast

import pytest
from redis.exceptions import ResponseError

from redlock_aio import Answer
from redlock_aio._engine.claim import Claim
from redlock_aio._engine.fenced import FencedAttempt
from redlock_aio._engine.hold.held_lease import HeldLease
from redlock_aio._engine.hold.renewal import Renewal
from redlock_aio._engine.masters import ACQUIRE, MasterSet, Round
from redlock_aio._engine.options import LockOptions, LockSpec
from redlock_aio._engine.session import readiness
from redlock_aio._engine.wait.fair_queue import FairQueue
from redlock_aio._engine.wait.fair_waiter import NO_PROPOSAL, PROPOSAL_LASTS, FairWaiter
from redlock_aio._engine.wait.gate import Gate
from redlock_aio._engine.wait.local_queue import LocalQueues
from redlock_aio._engine.wait.wakeup import Watch
from redlock_aio._protocol import commands, replies
from redlock_aio._protocol.primitives import FencingCounter, Mutex
from redlock_aio._rules.fair_ticket import Position
from redlock_aio._rules.quorum import OK
from redlock_aio._rules.retry import Retry
from redlock_aio._rules.timing import RoundTrips
from redlock_aio._transport.master import Master

from .kit import now
from .test_rounds import Link

KEY = Mutex(b"r")
COUNTER = FencingCounter((b"r",), lead=8_000_000)


@pytest.fixture
async def links() -> list[Link]:
    return [Link(f"m{i}") for i in range(3)]


@pytest.fixture
async def master_set(links: list[Link]) -> MasterSet:
    return MasterSet(links, asyncio.get_running_loop(), trips=RoundTrips(3, 50))


def time_of(microseconds: int) -> list[bytes]:
    """Return the reply to TIME of a master with this clock."""
    return [b"%d" % part for part in divmod(microseconds, 1_000_000)]


# Extensions


@pytest.mark.parametrize(
    ("reply", "checked"),
    [(0, 1), (replies.OTHERS, 1), (12_345, 0), (ResponseError("OOM"), 0), (OK, 0)],
    ids=["gone", "of another", "overtaken", "error", "extended"],
)
async def test_a_key_that_an_extension_does_not_find_is_checked_soon(
    master_set: MasterSet, reply: object, checked: int
) -> None:
    """The lock may have been released by force, so the holder checks before its next extension."""
    checks: list[int] = []
    hold = SimpleNamespace(
        claim=SimpleNamespace(extension=lambda _ttl: b""),
        begin_extension=lambda _now, _ttl: 0,
        extension=None,
        recheck_soon=lambda: checks.append(1),
    )
    renewal = Renewal(master_set, cast("HeldLease", hold), 1000, 0.0, lambda _: None)
    renewal.on_reply(0, reply)
    assert len(checks) == checked


# Fair queues


def fair_queue(master_set: MasterSet) -> FairQueue:
    return FairQueue(
        master_set, LocalQueues(), Gate(master_set), max_waiters=100, clock_lead=8_000_000
    )


class NotedWaiter:
    """A waiter that notes what it is told."""

    def __init__(self) -> None:
        self.calls: list[int] = []
        self.losses: list[int] = []

    def called(self, master: int, _permit: bytes) -> None:
        self.calls.append(master)

    def forgotten(self, master: int) -> None:
        self.losses.append(master)

    def wake(self) -> None:
        pass


def fair_waiter(master_set: MasterSet, *counters: int, fencing: bool = True) -> FairWaiter:
    """Return a waiter that was granted the lock with *counters* by the first masters."""
    options = LockOptions(
        ttl=10_000,
        validity=9.9,
        wait=None,
        auto_extend=False,
        max_hold=None,
        hold_at_least=0,
        fair=True,
        fencing=fencing,
        permits=0,
        reentrant=False,
        on_lost="cancel",
        retry=Retry(),
    )
    lock = LockSpec(("r",), KEY, options, None, b"")
    waiter = FairWaiter(fair_queue(master_set), lock, KEY, patient=True)
    waiter._proposed = NO_PROPOSAL
    for master, counter in enumerate(counters):
        number = waiter.ticket.ask(master, now())
        waiter.ticket.on_reply(master, number, Position.GRANTED, counter)
    return waiter


def asked(waiter: FairWaiter, link: Link) -> bytes:
    """Return what the waiter sends to the first master when it asks it again."""
    waiter.masters.flush()
    link.writes.clear()
    waiter._ask(0)
    waiter.masters.flush()
    (written,) = link.writes
    return written


@pytest.mark.promise("S5")
async def test_a_fair_request_proposes_the_highest_counter_that_masters_have_granted(
    master_set: MasterSet, links: list[Link]
) -> None:
    """Then all counters agree without another round; with a lower value they would not."""
    present = master_set.clocks.new_time(now())
    counters = [present + 1000, present + 3000, present + 2000]
    waiter = fair_waiter(master_set, *counters)
    question = asked(waiter, links[0])
    assert b"%d" % max(counters) in question
    assert not any(b"%d" % counter in question for counter in sorted(counters)[:-1])
    waiter.leave()


async def test_a_fair_request_proposes_the_time_where_counters_are_far_from_it(
    master_set: MasterSet, links: list[Link]
) -> None:
    """The masters would refuse a proposal far from their time."""
    far = master_set.clocks.new_time(now()) + 60_000_000
    waiter = fair_waiter(master_set, far)
    assert b"%d" % far not in asked(waiter, links[0])
    waiter.leave()


async def test_masters_that_are_asked_shortly_after_each_other_get_one_proposal(
    master_set: MasterSet, links: list[Link], monkeypatch: pytest.MonkeyPatch
) -> None:
    counter = master_set.clocks.new_time(now()) + 1000
    proposal = b"%d" % counter
    waiter = fair_waiter(master_set, counter)
    began = now()
    monkeypatch.setattr(master_set, "clock", lambda: began)
    assert proposal in asked(waiter, links[0])
    waiter.ticket.give_back()
    monkeypatch.setattr(master_set, "clock", lambda: began + PROPOSAL_LASTS / 2)
    assert proposal in asked(waiter, links[0])
    monkeypatch.setattr(master_set, "clock", lambda: began + 2 * PROPOSAL_LASTS)
    assert proposal not in asked(waiter, links[0])
    waiter.leave()


@pytest.mark.promise("S8")
async def test_a_master_that_went_down_or_came_back_notifies_the_waiters_in_its_queue(
    master_set: MasterSet, links: list[Link]
) -> None:
    """The master may have lost its queue, and a new connection needs a subscription."""
    queue = fair_queue(master_set)
    waiter = NotedWaiter()
    called, forgotten = waiter.calls, waiter.losses
    member, _ = queue.new_entry()
    queue.waiters[member] = waiter
    queue.on_push(2, replies.EVERYTHING_CHANGED)
    assert forgotten == [2]
    assert not links[2].writes  # nobody has subscribed yet
    queue.listen()
    master_set.flush()
    for link in links:
        link.writes.clear()
    queue.on_push(1, replies.GONE)
    assert forgotten == [2, 1]
    assert not links[1].writes  # the connection has ended
    queue.on_push(1, replies.EVERYTHING_CHANGED)
    assert forgotten == [2, 1, 1]
    master_set.flush()
    subscription = commands.subscription(queue.client, begins=True)
    assert [link.writes for link in links] == [[], [subscription], []]
    queue.on_push(0, [b"message", b"a channel", member])
    assert (called, forgotten) == ([0], [2, 1, 1])
    queue.leave(member)
    queue.close()


@pytest.mark.promise("S1")
async def test_a_waiter_whose_grants_are_too_far_apart_gives_them_back_and_asks_again(
    master_set: MasterSet, links: list[Link]
) -> None:
    """It does so before its next heartbeat: until then its grants would block other waiters."""
    waiter = fair_waiter(master_set, fencing=False)
    for master in range(3):
        waiter.on_reply(master, [3, 1, 1, None, 0])
    waiter.ask_all()
    given = waiter.claim
    for master in (0, 1):
        waiter._awaited[master].requests = 0
        waiter.ticket.on_reply(master, 2, Position.GRANTED, done=now() + 60)
    master_set.flush()
    for link in links:
        link.writes.clear()
    assert not await waiter.win()
    waiting = asyncio.ensure_future(waiter.wait(5))
    await asyncio.sleep(0)
    waiting.cancel()
    assert waiter.ticket.count(Position.GRANTED) == 0
    master_set.flush()
    for link in links[:2]:
        (written,) = link.writes
        back = KEY.leave(given.token, given.member, keep_place=True)
        assert written.startswith(back)
        assert waiter.claim.token in written
    waiter.leave()


# Waits


async def test_a_master_that_refuses_for_another_reason_than_a_holder_wakes_nobody(
    master_set: MasterSet,
) -> None:
    """Its free key proves nothing: the attempt would be repeated at once, for ever."""
    for reply, wakes in [(None, True), (ResponseError("OOM command not allowed"), False)]:
        claim = Claim(KEY, b"token", 1000)
        attempt = Round(master_set, KEY.acquire(b"token", 1000), ACQUIRE, claim)
        watch = Watch(LocalQueues(), attempt, claim)
        for number in range(3):
            attempt.on_reply(number, reply)
            watch.on_reply(number, 0)
        began = now()
        assert await watch.wait(5) is wakes
        assert now() - began == pytest.approx(0 if wakes else 5, abs=0.01)


class Dialled:
    """A master that is connected and votes, or one that hangs."""

    def __init__(self, *, up: bool, votes: bool | None = None) -> None:
        self.up = up
        self.votes = up if votes is None else votes
        self.tried = asyncio.get_running_loop().create_future()
        self.reached = asyncio.get_running_loop().create_future()
        if self.up:
            self.reached.set_result(None)
        if self.votes:
            self.decide()

    def decide(self) -> None:
        """Make the master vote."""
        self.votes = True
        self.tried.set_result(None)


async def ready_after(*masters: Dialled, wait: int | None = None) -> tuple[bool, float]:
    """Return the result of `readiness`, and the seconds that it took."""
    began = now()
    async with asyncio.timeout(60):
        dialled = [cast("Master", master) for master in masters]
        known = await readiness(dialled, wait, RoundTrips(len(masters), 50))
    return known, now() - began


async def test_a_minority_that_hangs_delays_the_first_lock_by_one_master_timeout() -> None:
    known, seconds = await ready_after(Dialled(up=True), Dialled(up=True), Dialled(up=False))
    assert known
    assert seconds == pytest.approx(0.05)


async def test_the_wait_for_the_masters_ends_with_the_limit_of_the_caller() -> None:
    known, seconds = await ready_after(
        Dialled(up=True), Dialled(up=False), Dialled(up=False), wait=300
    )
    assert not known
    assert seconds == pytest.approx(0.3)


async def test_the_first_lock_waits_until_it_is_known_whether_masters_that_are_up_vote() -> None:
    masters = [Dialled(up=True, votes=False) for _ in range(3)]
    for master in masters:
        asyncio.get_running_loop().call_later(2, master.decide)
    known, seconds = await ready_after(*masters)
    assert known
    assert seconds == pytest.approx(2)


# Clocks


@pytest.mark.parametrize(
    ("seconds", "detail"),
    [
        (30, "its clock is 29.8 s ahead of the others'"),
        (-30, "its clock is 30.0 s behind the others'"),
        (0.5, "it got the request too late"),
    ],
)
async def test_a_refusal_by_a_clock_tells_how_wrong_that_clock_is(
    master_set: MasterSet, seconds: float, detail: str
) -> None:
    """The delay of the reply does not count as an error of that clock."""
    await asyncio.sleep(1000)  # the clock of leases is far from 0
    attempt = FencedAttempt(master_set, Claim(KEY, b"token", 1000, COUNTER), COUNTER)
    await asyncio.sleep(0.2)
    attempt.on_reply(0, time_of(attempt.proposal + int(seconds * 1_000_000)))
    vote = attempt.votes()[0]
    assert (vote.answer, vote.detail) == (Answer.ERROR, detail)


async def test_before_any_master_is_asked_their_time_is_that_of_this_machine(
    links: list[Link],
) -> None:
    """Otherwise the first proposal of a fencing token would be refused."""
    await asyncio.sleep(100_000)
    masters = MasterSet(links, asyncio.get_running_loop(), trips=RoundTrips(3, 50))
    assert masters.clocks.new_time(masters.clock()) / 1e6 == pytest.approx(time.time(), abs=60)


# Adoptions


@pytest.mark.parametrize("member", [b"", b"client/1"], ids=["plain", "fair"])
def test_only_the_claim_of_a_waiter_leaves_a_queue(member: bytes) -> None:
    claim = Claim(KEY, b"a token", 1000, member=member)
    assert (member in claim.leave() and claim.leave() != b"") is bool(member)
    assert (member in claim.release() and b"a token" in claim.release()) is True
