"""
The first request of a fair acquisition, which wins an uncontended lock in one round.

Where a lock is free and its queue is empty, a master grants the lock without an entry in the
queue. A majority of such grants is a win, and no queue was touched:

    FirstRequest ─► all masters ─┬─ a majority grants at once ────────────────────► won
                               └─ a queue was entered, no majority, a time-out ─► FairWaiter

Grants without an entry can't be kept by a waiter: of two waiters with two of four masters
each, both would be the first in the queues of the others, and neither would give way.
Therefore a waiter that has not won by its first request enters those queues, too, and then
gives the grants back (see `FairWaiter._give_back`).
"""

import asyncio

from redlock_aio._engine.masters import Round
from redlock_aio._engine.wait.fair_claim import MEANS, FairClaim, FairOptions
from redlock_aio._engine.wait.fair_queue import FairQueue
from redlock_aio._engine.wait.fair_waiter import Entry, FairWaiter
from redlock_aio._protocol import replies
from redlock_aio._protocol.request import NoReply, QuarantineRule
from redlock_aio._rules import fair_ticket, fencing, timing
from redlock_aio._rules.quorum import GRANTED, NOT_YET, OPEN, WON, Tally, majority


class FirstRequest(Round):
    """
    The first request of a fair acquisition, the same for all masters.

    It makes a `FairWaiter` when it can't win as one round, and passes the replies on to it.

    Args:
        queues: The fair queues of all masters, shared by the waiters of this process.

        wanted: The lock, and the options of the acquisition.

        patient: Whether it waits if the lock can't be acquired at once.
    """

    __slots__ = (
        "_counters", "_entry", "_is_over", "_masters", "_patient", "_queues", "_raw", "_task",
        "_waiter", "claim",
    )  # fmt: skip
    in_quarantine = QuarantineRule.REFUSE

    def __init__(self, queues: FairQueue, wanted: FairOptions, *, patient: bool) -> None:
        masters = queues.masters
        member, place = queues.new_place()
        claim = FairClaim(masters, wanted, member)
        Round.__init__(self, masters.links, claim.first_question(place))
        claim.unsent = 0
        claim.replies = self.replies
        self.claim: FairClaim = claim
        """The claim that is won, unless a waiter goes on."""
        self._entry = Entry(claim, place, [link.received for link in masters.links])
        self._masters = masters
        self._queues = queues
        self._patient = patient
        self._counters: list[int] = []
        self._raw: list[object] = [NOT_YET] * len(masters.links)
        self._task = None if masters.emitter is None else asyncio.current_task()
        self._waiter: FairWaiter | None = None
        self._is_over = False

    def not_sent(self, master: int, no_reply: NoReply) -> None:
        """Count *no_reply* for a master that never gets the request."""
        self.claim.unsent |= 1 << master
        self.on_reply(master, no_reply)

    def on_reply(self, master: int, reply: object, /) -> None:
        """Count a grant, or have a `FairWaiter` go on; it gets the replies from then on."""
        if self._waiter is not None:
            self.to_lose -= 1  # the round is complete when all masters have replied
            self._waiter.on_answer(1, self.claim.began, master, reply)
            return
        if self._raw[master] is not NOT_YET:
            return
        self._raw[master] = reply
        counter = replies.granted_outside_queue(reply)
        if counter is not None:
            self._counters.append(counter)
            Tally.on_reply(self, master, GRANTED)
            return
        answer = replies.queued(reply)
        Tally.on_reply(self, master, reply if answer is None else MEANS[answer.standing])
        if answer is not None and self.verdict is OPEN:
            self._hand_over()

    def settled(self) -> None:
        """Called when the verdict is known: wake the task that awaits the round."""
        if self.verdict is not WON:
            self._hand_over()
        Round.settled(self)

    def expire(self) -> None:
        """Make the waiter that waits longer if the round is open, else count missing replies."""
        if self.verdict is not OPEN:
            super().expire()
        elif self._waiter is None:
            self._hand_over()

    def _hand_over(self) -> None:
        """Make the waiter that goes on, with all replies so far, and wake the task."""
        if self._waiter is None and not self._is_over:
            self._waiter = FairWaiter(
                self._queues, self._entry, patient=self._patient, task=self._task
            )
            self._waiter.begin(self._raw)
            Round.settled(self)

    def win(self) -> FairWaiter | None:
        """
        Return ``None`` if the lock is acquired, else the waiter that goes on.

        If the counters differ, the waiter goes on as well: it asks for new grants while the
        masters agree on a fencing token.

        Raises:
            RedlockError: The manager was closed meanwhile.
        """
        masters, claim = self._masters, self.claim
        masters.check_open()  # nothing would extend it, or notify its holder of a loss
        if self._waiter is None:
            until = timing.deadline(claim.began, claim.ttl, factor=claim.wanted.factor)
            fence = 0
            if claim.counter is not None:
                fence = fencing.agreed(self._counters, majority(len(self.replies)))
            if (fence or claim.counter is None) and masters.clock() < until:
                claim.fence = fence
                claim.until = until
                return None
            self._hand_over()
        return self._waiter

    def leave(self) -> None:
        """Release all grants, and leave the queues of all masters."""
        self._is_over = True
        if self._waiter is not None:
            self._waiter.leave()
            return
        claim = self.claim
        claim.send_release(max(claim.ttl, fair_ticket.LIVES), keep_place=False)
        self._queues.local_queues.notify_released(claim.key)
