"""
The release of a failed attempt, and the wait until the lock may be free.

The failed attempt is released on every master that may have granted it. The replies contain
the holder's value and PTTL, and from then on each master pushes when the key changes. A
waiter therefore tries again when the lock may be free on a majority, by a release, an expiry
or any other change of the key, and otherwise after a random time.
"""

import asyncio
import math
import random
from collections.abc import Callable

from redlock_aio._engine.claim import EXPIRY_SLACK, Claim
from redlock_aio._engine.masters import MasterSet, Policy, Round
from redlock_aio._engine.wait.local_queue import LocalQueue, LocalQueues
from redlock_aio._protocol import replies
from redlock_aio._protocol.request import QuarantineRule
from redlock_aio._rules import lock_value, retry
from redlock_aio._rules.blockers import Blockers
from redlock_aio._rules.quorum import (
    NOT_YET,
    OK,
    TAKING_PART,
    Answer,
    is_contended,
    majority,
    may_be_contended,
)

LONGEST_LOOK = 1.0
"""
Seconds after which a waiter asks again although the masters report each change, or up to a half
less. A report may be lost all the same, as by a proxy.
"""


class WaitBudget:
    """
    The *wait* of one acquisition, counted from the start of the acquisition.

    Args:
        wait: In milliseconds; ``None`` for no limit, 0 for a single attempt.
    """

    __slots__ = ("began", "clock", "wait")

    def __init__(self, clock: Callable[[], float], wait: int | None, began: float) -> None:
        self.clock = clock
        self.wait = wait
        self.began = began

    def __repr__(self) -> str:
        return f"<WaitBudget {self.wait} ms, {self.left():.0f} left>"

    def left(self) -> float:
        """Return the remaining ms: infinite without a limit, 0 or less when the budget is over."""
        wait = self.wait
        return math.inf if wait is None else wait - (self.clock() - self.began) * 1000

    @property
    def is_over(self) -> bool:
        return self.left() <= retry.SHORTEST_PAUSE

    def until_last_attempt(self, reserve: float) -> float | None:
        """
        Return the ms until the last attempt is due, ``None`` if that instant has passed.

        The last attempt is due so early that its replies can arrive before the budget is over.
        The result is infinite without a limit.

        Args:
            reserve: The ms that an attempt may take.
        """
        waited = (self.clock() - self.began) * 1000
        return retry.pause(math.inf, wait=self.wait, waited=waited, reserve=reserve)

    def attempt_limit(self) -> float | None:
        """
        Return the limit of an attempt in ms, ``None`` for no limit.

        A wait of 0 is a single attempt, which is limited only by the master timeout.
        """
        return max(self.left(), 1.0) if self.wait else None


_RELEASE = Policy(QuarantineRule.COUNT, replies.classify_kept)


class Watch(Round):
    """
    Releases a failed attempt on all masters, and wakes its task when the lock may be free.

    The replies carry the holder's value and PTTL. Invalidations and expiries wake the task
    when a majority may be free.

    Attributes:
        absent: If not 0, the masters push no changes, and the wait is so many seconds at most.

        took: How many seconds the attempt took, until it had failed.
    """

    __slots__ = ("_bell", "_clock", "_local_queues", "absent", "claim", "failed", "took", "view")
    member = b""

    def __init__(
        self, local_queues: LocalQueues, failed: Round, claim: Claim, absent: float = 0.0
    ) -> None:
        masters = failed.masters
        super().__init__(masters, claim.release(), _RELEASE, claim, claim.ttl)
        self.failed: Round = failed
        self.claim: Claim = claim
        self._local_queues = local_queues
        self._clock = masters.clock
        self.took: float = masters.clock() - claim.began
        self.absent: float = absent
        self.view: Blockers = Blockers(len(masters.links))
        self._bell: asyncio.Future[None] | None = None

    @property
    def is_split(self) -> bool:
        """Whether the attempt failed by a split vote: several contenders, none with a majority."""
        several = self.failed.granted > 0 or self.view.parties > 1
        if not several or self.view.holder is not None:
            return False
        return is_contended(self.view.explain(self.failed.votes(), 0.0))

    @property
    def is_reported(self) -> bool:
        """Whether the masters report the end of the lock, so that it needs no attempt to see it."""
        masters, holder = self.masters, self.view.holder
        if self.absent or holder is None:
            return False
        if lock_value.process(holder) == masters.stamp[1:]:
            # Most likely a release that was refused, and is being repeated: masters report no
            # change to the connection that made it (NOLOOP).
            return False
        links, there = masters.links, self.view.held_by_holder
        return sum(links[master].reports for master in there) >= majority(len(links))

    def on_reply(self, master: int, reply: object, /) -> None:
        """Record the state of the key in *reply*, also if it comes too late to be counted."""
        held = replies.held(reply)
        if held is not None:
            value, left = held
            self.view.held(master, value, self._clock() + left)
        elif replies.is_of_another_type(reply):
            # SET NX replies nil for such a key, as for a held lock. If the key
            # counted as released now, the next attempt would follow at once.
            self.view.can_not_be(master, replies.classify(reply).detail)
        elif replies.is_settled(reply) and not self._was_refused(master):
            self.view.may_be_free(master)
        super().on_reply(master, reply)
        self._wake_task()
        # OK: the failed attempt had the key here, where it blocked other waiters of this
        # process. They are not notified if the master refused the attempt for another reason
        # than a holder: that would repeat this attempt at once, again and again.
        if reply == OK and not self._was_refused(master):
            self._local_queues.notify_released(self.claim.key, master)

    def _was_refused(self, master: int) -> bool:
        """Return whether *master* refused for another reason than that another holds the lock."""
        answer = replies.classify(self.failed.replies[master]).answer
        return answer in {Answer.ERROR, Answer.QUARANTINED}

    def late(self, master: int, reply: object) -> None:
        super().late(master, reply)
        self.replies[master] = reply  # the master has no more to answer, see `is_worth_repeating`

    def changed(self, master: int) -> None:
        # Before the reply to the release a push tells of nothing newer than that reply will.
        if self.replies[master] is not NOT_YET:
            self.view.may_be_free(master)
            self._wake_task()

    def on_local_release(self) -> None:
        """Called when this process releases a lease or an attempt, or closes the session."""
        for master in range(len(self.replies)):
            self.view.may_be_free(master)
        self._wake_task()

    def _wake_task(self) -> None:
        if self._bell is not None and not self._bell.done():
            self._bell.set_result(None)

    async def wait(self, seconds: float) -> bool:
        """
        Wait until the lock may be free on a majority, for at most *seconds*; return whether it may.

        The wait also ends when no wait can help: see `Blockers.is_hopeless`.
        """
        ends = self._clock() + seconds
        view = self.view
        # Each reply and push rings the bell, and may move the instant either way: a push frees a
        # master, and a later reply shows the next holder there.
        while (left := min(view.free_from + EXPIRY_SLACK, ends) - self._clock()) > 0:
            if view.is_hopeless:
                break
            await self._listen(left)
        return self.view.free_from + EXPIRY_SLACK <= self._clock()

    async def wait_for_stragglers(self) -> None:
        """
        Wait until all masters have answered, for as long again as the attempt took.

        That time begins when the reason is known: that others hold the lock when a majority has
        answered, and who when so many have answered this release too. A master that is a little
        farther away than those that have decided the attempt would be blamed otherwise. If the
        reason does not get known, the wait ends when an attempt and its release would have been
        answered once more, but the masters have the time that any *wait* promises them.
        """
        now, took = self._clock(), max(self.took, 0.001)
        until = max(now + 2 * took, self.claim.began + self.masters.trips.at_least / 1000)
        while not self.complete:
            if self._knows_the_reason:
                until = min(until, now + took)
            if now >= until:
                return
            await self._listen(until - now)
            now = self._clock()

    @property
    def _knows_the_reason(self) -> bool:
        votes = self.failed.votes()
        if is_contended(votes):
            return len(self.replies) - len(self.missing) >= majority(len(votes))
        return not may_be_contended(votes, self.failed.missing)

    async def _listen(self, seconds: float) -> None:
        self._bell = bell = self.masters.loop.create_future()
        timer = (
            self.masters.loop.call_later(seconds, self._wake_task) if seconds < math.inf else None
        )
        try:
            await bell
        finally:
            if timer is not None:
                timer.cancel()


async def hold_back(
    masters: MasterSet, queue: LocalQueue, budget: WaitBudget, pause: float
) -> None:
    """Wait for the *pause* in seconds, or for the jitter after split votes if that is longer."""
    nap = pause * 1000
    if queue.spread:
        # One release wakes all waiters. If all asked at once, they would split the votes as
        # before; with a random delay one of them comes first on all masters.
        jitter = queue.spread * 1000 * random.random()  # noqa: S311 - no secret
        last_attempt = budget.until_last_attempt(masters.master_timeout) or 0
        nap = max(nap, min(jitter, last_attempt))
    if nap:
        await asyncio.sleep(min(nap, max(budget.left(), 0)) / 1000)


def is_cut_short(failed: Round, at_most: float | None, master_timeout: float) -> bool:
    """
    Return whether *failed* had too little time for the masters to answer.

    The votes of such an attempt prove nothing about the masters. The votes of the attempt
    before it, such as that others hold the lock, remain the best information.

    Args:
        at_most: The time limit of the attempt in ms, ``None`` for a whole *master_timeout*.
    """
    if at_most is None or at_most > master_timeout - 1:
        return False
    votes = failed.votes()
    if is_contended(votes):
        return False
    return sum(vote.answer in TAKING_PART for vote in votes) >= majority(len(votes))
