"""
One acquisition of a permit of a semaphore.

    ask all masters for any permit ─┬─ a majority grants the same one ────────► won
                                    └─ else give back, and wait for one permit
                                       (`fair_waiter`), or for another one to whose
                                       queue a master moves this waiter

The first request is left out while tasks of this process wait in vain: see `_queue_to_join`.

Each permit is a lock with a fair queue of its own, so nothing new has to be proven about a
permit that is held or handed over. What the masters have in common with a single queue is that
they move the waiter that has waited for longest to a permit that becomes free; see permits.lua.
"""

import asyncio
import functools
import itertools
import math
import random
from collections.abc import Callable

from redlock_aio._engine.claim import Claim
from redlock_aio._engine.fenced import TOO_LATE, agree
from redlock_aio._engine.masters import Query, Round
from redlock_aio._engine.options import LockSpec
from redlock_aio._engine.wait import fair_waiter
from redlock_aio._engine.wait.fair_queue import FairQueue
from redlock_aio._engine.wait.wakeup import WaitBudget
from redlock_aio._protocol import replies
from redlock_aio._protocol.primitives import Permit, Permits
from redlock_aio._protocol.replies import Taken
from redlock_aio._protocol.request import NoReply, QuarantineRule, Request
from redlock_aio._rules import fencing
from redlock_aio._rules.blockers import Blockers
from redlock_aio._rules.fair_ticket import Position
from redlock_aio._rules.quorum import COMPLETE, NOT_YET, OK, Answer, majority, may_be_contended
from redlock_aio.errors import LockNotAcquiredError, refusal

TAKEN = NoReply(Answer.HELD, "all permits are held, or waited for")
OTHER = NoReply(Answer.HELD, "it has granted another permit")

DRAWN = 4
"""The permits of which one is chosen to wait for, as in `take_permit.lua`."""

MOST_EXAMINED = 20
"""The waiting tasks of this process that are examined, of more the first ones."""


class Drop(Request):
    """
    The release of grants on one master, which is repeated as a debt as that of a lease is.

    Args:
        owe: Called with the master and the payload if it has to be repeated.

        ttl: How long, in ms, the grants may live without it.
    """

    __slots__ = ("_owe",)

    def __init__(self, owe: Callable[[int, bytes], None], payload: bytes, ttl: int) -> None:
        rule = QuarantineRule.COUNT_IF_FOUND
        super().__init__(payload, self._apply, debt_ttl=ttl, in_quarantine=rule)
        self._owe = owe

    def not_sent(self, master: int, no_reply: NoReply) -> None:
        del no_reply
        self._owe(master, self.payload)

    def _apply(self, master: int, reply: object, /) -> None:
        if replies.is_unsettled(reply):
            self._owe(master, self.payload)


class AnyPermit:
    """
    The first request for a permit, to all masters at once.

    A master grants at most one permit to its token. Only grants of the same permit count together:
    with three masters, three holders could have two grants each of two permits.

    Attributes:
        number: The permit that a majority has granted; -1 if there is none.

        place: The place in the queues that belongs to the instant of this request, in us.
    """

    __slots__ = (
        "_counts", "_lock", "_masters", "_over", "_permits", "_queues", "_taken", "_token",
        "began", "number", "place", "round", "view",
    )  # fmt: skip

    def __init__(self, queues: FairQueue, lock: LockSpec, permits: Permits) -> None:
        self._queues = queues
        self._lock = lock
        self._permits = permits
        self._masters = masters = queues.masters
        self._token = masters.token() + masters.stamp + lock.metadata
        self._taken: list[Taken | None] = [None] * len(masters.links)
        self._counts: dict[int, int] = {}
        self._over = False
        self.number = -1
        self.view = Blockers(len(masters.links))
        self.began = masters.clock()
        self.place = time = masters.clocks.new_time(self.began)
        late = time + int((TOO_LATE + masters.clocks.spread) * 1_000_000)
        lead = queues.clock_lead if lock.options.fencing else None
        order = _order(permits.number)
        self.round = Query(
            masters,
            permits.take(self._token, lock.options.ttl, order, late, lead, time),
            in_quarantine=QuarantineRule.REFUSE,
            count=self._count,
            enough=self._is_decided,
            repeat=True,
        )

    def _count(self, master: int, reply: object) -> object:
        taken = replies.taken(reply)
        vote: object = taken
        if not isinstance(taken, NoReply):
            self._taken[master] = taken
            vote = OK if taken.granted else TAKEN
            if taken.holder is not None:
                self.view.held(master, taken.holder, self._masters.clock() + taken.left)
        if self._over:
            # Now, because the others have not waited for this reply; see `keep` and `give_back`.
            if vote is OK and not self._is_won(master):
                vote = OTHER
            if vote is OTHER or _may_still_come(vote):
                self._drop_on(master)
        elif vote is OK and taken.__class__ is Taken and self.round.replies[master] is NOT_YET:
            self._counts[taken.number] = self._counts.get(taken.number, 0) + 1
        return vote

    def _is_decided(self, round: Round) -> bool:
        counts, needed = self._counts, majority(len(self._taken))
        most = max(counts.values(), default=0)
        if most >= needed and self.number < 0:
            self.number = max(counts, key=counts.__getitem__)
        return most >= needed or most + round.to_win + round.to_lose - COMPLETE < needed

    def _is_won(self, master: int) -> bool:
        """Return whether *master* has granted the permit that is won, and no other one."""
        taken = self._taken[master]
        return taken is not None and taken.granted and taken.number == self.number

    async def hear_stragglers(self) -> None:
        """
        Wait until all masters have answered, for as long again as it took to know the reason.

        While it is not known, the masters have at least the time that any *wait* promises them.
        Only the error depends on this wait: without the answers of masters that are a little
        farther away it would blame these, and one more answer may show who holds a permit.

        Cancellation:
            Nothing is held up: `give_back` comes before this.
        """
        masters, round, began, until = self._masters, self.round, self.began, math.inf
        while not round.complete:
            now = masters.clock()
            ends = now + max(now - began, 0.001)
            if may_be_contended(round.votes(), round.missing):
                ends = max(ends, began + masters.trips.at_least / 1000)
            until = min(until, ends)
            if now >= until:
                return
            await asyncio.wait([masters.wait_for(round)], timeout=until - now)

    async def win(self, at_most: float | None) -> Claim | None:
        """
        Return the claim on the permit that a majority has granted; ``None`` if there is none.

        Cancellation:
            All grants stay; `give_back` has to follow.
        """
        masters, options = self._masters, self._lock.options
        if self.number < 0 or masters.closed:
            return None
        permit, counter = self._permits.permit(self.number), None
        if options.fencing:
            queue = self._queues.local_queues.of(permit)
            counter = queue.counter_of(permit, self._queues.clock_lead)
        claim = Claim(permit, self._token, options.ttl, counter, unsent=self.round.unsent)
        claim.began = self.began
        # The list itself: a master that answers later is still counted in it.
        claim.replies = self.round.replies
        if counter is not None:
            won = [taken for i, taken in enumerate(self._taken) if taken and self._is_won(i)]
            counters = [taken.counter for taken in won]
            claim.fence = fencing.agreed(counters, majority(len(self._taken)))
            if not claim.fence and not await agree(masters, counter, claim, counters, at_most):
                return None
        # The clock is read after the task has resumed, however long that took.
        claim.until = self.began + options.validity
        # It may also have been closed while the masters agreed on a fencing token.
        return claim if masters.clock() < claim.until and not masters.closed else None

    def keep(self) -> None:
        """Release the grants of other permits than the one that is won."""
        self._over = True
        for master, vote in enumerate(self.round.replies):
            if vote is OK and not self._is_won(master):
                self.round.replies[master] = OTHER
                self._drop_on(master)
            elif _may_still_come(vote):
                self._drop_on(master)

    def give_back(self, *, at_once: bool = False) -> None:
        """
        Release all grants.

        Args:
            at_once: Whether masters that have not answered get the release behind the request,
                and not only if their late replies are grants.
        """
        self._over, self.number = True, -1
        for master, taken in enumerate(self._taken):
            unknown = at_once or _may_still_come(self.round.replies[master])
            if taken.granted if taken is not None else unknown:
                self._drop_on(master)

    def _drop_on(self, master: int) -> None:
        """Release each grant of *master* but that of the permit that is won."""
        if self.round.unsent >> master & 1:
            return
        payload = self._permits.drop(self._token, self.number if self.number >= 0 else None)
        self._masters.send_to(master, Drop(self._owe, payload, self._lock.options.ttl))

    def _owe(self, master: int, payload: bytes) -> None:
        if not self.round.unsent >> master & 1:  # it may leave in the same turn of the loop
            self._masters.links[master].add_debt(payload, self._lock.options.ttl)

    def choice(self) -> Permit:
        """Return the permit to wait for: the one that most masters name."""
        told = [taken.number for taken in self._taken if taken is not None]
        number = max(told, key=told.count, default=0)
        return self._permits.permit(number if number < self._permits.number else 0)


def _queue_to_join(queues: FairQueue, permits: Permits) -> Permit | None:
    """
    Return the permit to wait for, without asking the masters; ``None`` if they have to be asked.

    While a task of this process waits in vain, as a majority has answered, a first request is
    granted nothing: it would cost a round trip and a script on each master, only to learn for
    which permit to wait. Of a few permits, the task waits for the one for which the fewest tasks of
    this process do. If that is not the best one, the masters move a waiter, as they do anyhow.
    Fewer tasks than permits that are drawn say too little of where others wait.
    """
    of = queues.local_queues.of
    waiting = of(permits).guests or ()
    if len(waiting) < DRAWN or not any(map(_is_in_vain, itertools.islice(waiting, MOST_EXAMINED))):
        return None
    number, step = _order(permits.number)
    numbers = [(number + i * step) % permits.number for i in range(DRAWN)]
    return min(map(permits.permit, numbers), key=lambda permit: len(of(permit).guests or ()))


def _is_in_vain(party: object) -> bool:
    return isinstance(party, fair_waiter.FairWaiter) and party.waits_in_vain


def _is_queue_full(error: LockNotAcquiredError) -> bool:
    """Return whether so many queues were full that no majority was left for this waiter."""
    votes = error.votes
    full = sum(vote.detail.startswith(Position.FULL.value) for vote in votes)
    return full > len(votes) - majority(len(votes))


def _may_still_come(vote: object) -> bool:
    """Return whether a master with this vote may have granted a permit, or may do so later."""
    # One that has timed out gets the release now: when its reply comes, the program may have ended,
    # or have asked again, behind the request.
    late = isinstance(vote, NoReply) and vote.answer is Answer.TIMED_OUT
    return late or replies.is_unsettled(vote)


def _order(permits: int) -> tuple[int, int]:
    """Return a permit to try first and a step that leads from there to each other one."""
    # Random, so that two clients rarely ask for one permit at the same moment.
    steps = _steps(permits)
    return int(random.random() * permits), steps[int(random.random() * len(steps))]  # noqa: S311 - no secret


@functools.lru_cache(100)
def _steps(permits: int) -> list[int]:
    return [step for step in range(1, permits + 1) if math.gcd(step, permits) == 1]


async def acquire(
    queues: FairQueue, lock: LockSpec, permits: Permits, budget: WaitBudget, asking_since: float
) -> Claim:
    """
    Wait until a permit is acquired.

    Raises:
        LockNotAcquiredError, QuorumUnavailableError, RedlockError: As for `fair_waiter.acquire`.

    Cancellation:
        No permit of the acquisition is left, and no place in a queue.
    """
    masters = queues.masters
    masters.check_open()
    may_wait = queues.waiters and budget.wait != 0
    if may_wait and (chosen := _queue_to_join(queues, permits)) is not None:
        try:
            return await fair_waiter.acquire(queues, lock, chosen, budget, asking_since)
        except LockNotAcquiredError as error:
            # It is full of tasks of other programs. The masters know which queues are shorter.
            if not _is_queue_full(error):
                raise
    attempt = AnyPermit(queues, lock, permits)
    try:
        await masters.ask(attempt.round, budget.attempt_limit())
        claim = await attempt.win(budget.attempt_limit())
    except BaseException:
        attempt.give_back(at_once=True)
        raise
    if claim is not None:
        attempt.keep()
        return claim
    attempt.give_back()
    masters.check_open()  # else the votes of rounds that the close has ended were the reason
    if budget.wait == 0:
        await attempt.hear_stragglers()
        masters.check_open()
        raise refusal(
            lock.resources,
            attempt.round.votes(),
            attempt.view,
            attempts=1,
            began=budget.began,
            now=masters.clock(),
            permits=permits.number,
        )
    # At the place of the first request: a task of another program that has come meanwhile may have
    # left that out, and must not pass this one.
    return await fair_waiter.acquire(
        queues, lock, attempt.choice(), budget, asking_since, attempt.place
    )
