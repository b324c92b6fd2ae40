"""
Waiting in order, in a queue that each master keeps.

A waiter is in the queues of all masters at the same place, and asks each of them
for the lock: at first, when the master wakes it because it is next, when the lock
there has expired, and every now and then, by which the masters also see that it
lives. What its answers mean, and when it leaves the queues for a while, is said in
`_rules.fairness`.

A release wakes only who is next. If the lock is held by somebody who knows nothing
of the queue, the one who is next has the master tell when that ends.
"""

import asyncio
import math
import random

from redlock_aio._engine.claim import CALLS_LAST, Wanted
from redlock_aio._engine.inquiry import Inquiry
from redlock_aio._engine.line import Line
from redlock_aio._engine.queues import Queues
from redlock_aio._engine.refusals import refusal
from redlock_aio._rules import fairness
from redlock_aio._rules.fairness import ASIDE, ASKED, AWAITED, GRANTED, NEXT, UNASKED


class Waiter(Inquiry):
    """
    One task that waits in the queues.

    Args:
        queues: The queues of its process.

        line: The other tasks of its process that want the resource.

        wanted: The lock and what it is asked for with.

        patient: Whether it stays when it can't have the lock at once.
    """

    def __init__(self, queues: Queues, line: Line, wanted: Wanted, *, patient: bool) -> None:
        super().__init__(queues, wanted, patient=patient)
        self._line = line
        self._beats = 0
        self._task = asyncio.current_task()
        self._beat_at = math.inf
        self._armed_for = math.inf
        self._timer: asyncio.TimerHandle | None = None
        self._bell: asyncio.Future[None] | None = None
        self._over = False
        self._began = self._unreached_since = self.fleet.clock()
        # When the grace for late answers ends, infinite when it has ended.
        self._heard_out_at: float | None = None

    # Asking.

    def begin(self) -> None:
        """Enter the queues."""
        self._line.watch(self, mine=False)
        self.ask_all()

    def ask_all(self, *, again: bool = False) -> None:
        """
        Ask every master, which also tells it that we live.

        Args:
            again: Also those that have not answered the last question yet.
        """
        self._beats += 1
        now = self.fleet.clock()
        self._beat_at = now + fairness.HEARTBEAT * random.uniform(0.9, 1)  # noqa: S311
        if self.ticket.reached >= self._unreached_since:
            self._unreached_since = now
        for master, unanswered in enumerate(self._unanswered):
            # A question that follows before the answer would make it void. And where
            # answers do not get through, each question could take the lock once more,
            # until the connection is given up and nothing gives the lock back.
            if again or not unanswered:
                self._ask(master)
        self._arm()

    def _arm(self) -> None:
        due = min(
            *self._due,
            self._beat_at,
            self._heard_out_at or math.inf,
            self._leaves_at,
            # Aside there is nothing to give back, and with a majority nothing is given back for
            # age: an instant that nobody attends to would make the timer fire for ever.
            math.inf if self._aside or self._until() else self.ticket.stale_at(self._fresh_for),
        )
        if due < self._armed_for:  # a timer that is too early looks again
            if self._timer is not None:
                self._timer.cancel()
            self._armed_for = due
            delay = max(due - self.fleet.clock(), 0.0)
            self._timer = self.fleet.loop.call_later(delay, self._tick)

    @property
    def _leaves_at(self) -> float:
        """When to leave the queues if no majority answers until then."""
        if self._aside or self.ticket.reached >= self._unreached_since:
            return math.inf
        return self._unreached_since + fairness.UNREACHED

    def _tick(self) -> None:
        """Do what is due: give up on an answer, ask where the lock has expired, be heard."""
        self._armed_for = math.inf
        now = self.fleet.clock()
        for master, due in enumerate(self._due):
            if due > now:
                continue
            self._due[master] = math.inf
            standing = self.ticket.standings[master]
            if standing in (NEXT, AWAITED, UNASKED):
                self._ask(master)
            elif standing in (ASKED, GRANTED):
                self._await_longer(master, now)
        if self._heard_out_at is not None and now >= self._heard_out_at:
            self._heard_out_at = math.inf
        if now >= self._leaves_at:
            self._step_aside()
        elif now >= self._beat_at:
            self.ask_all()
        self._consider()
        self._arm()

    # Hearing.

    def on_answer(self, number: int, sent: float, master: int, reply: object) -> None:
        """Apply an answer, then re-evaluate: win, wait on, or give up."""
        if not self._over:
            self._unanswered[master] -= 1
            self._apply(master, number, sent, reply)
            self._consider()
            self._arm()

    def _consider(self) -> None:
        """Draw the consequences of what is known."""
        ticket = self.ticket
        if self._over:
            return
        if self._until_when() > self.fleet.clock() or ticket.refused:
            self.ring()
            return
        if self._aside:
            if ticket.count(ASIDE) >= ticket.needed:
                self._enter_again()
            return
        lost = ticket.lost
        if self._in_vain:
            self._hear_out()  # leaving gives back what there is
            return
        if lost and self.fleet.emitter is not None:
            self.fleet.emitter.on_waiting(self._task)
        if ticket.must_yield or ticket.stale_at(self._fresh_for) <= self.fleet.clock():
            self._give_back()
        if lost and self.queues.listen():
            self.ask_all(again=True)  # a call may have come before we listened

    def _step_aside(self) -> None:
        """Leave all queues, and ask on until a majority answers: see `_rules.fairness`."""
        left = self.claim
        left.unsent &= self._never_asked
        self._aside = True
        self._unreached_since = self.fleet.clock()
        self._start_over()
        # After that: this nudges the waiters of this process that come next, this one too. A
        # question under the old name would enter the queue again, behind the request to leave.
        left.send_release(max(self._wanted.ttl, fairness.LIVES), stay=False)
        self.ask_all(again=True)

    def _enter_again(self) -> None:
        self._aside = False
        self._unreached_since = self.fleet.clock()
        self._start_over()
        self.ask_all(again=True)

    @property
    def _in_vain(self) -> bool:
        """Whether whoever does not want to wait can't have it; also if the grants are too old."""
        return not self.patient and (self.ticket.lost or ASKED not in self.ticket.standings)

    def _hear_out(self) -> None:
        """End it when all have answered, or as much time again has passed: the error says more."""
        if self._heard_out_at is None:
            now = self.fleet.clock()
            self._heard_out_at = now + max(now - self._began, 0.001)
        if ASKED not in self.ticket.standings or self._heard_out_at == math.inf:
            self.ring()

    def called(self, master: int) -> None:
        """Hear from *master* that it is our turn there."""
        if self._over:
            return
        self.ticket.called()
        if self.ticket.standings[master] is GRANTED:
            self._give_back()  # it was taken from us: see revoke.lua
        soon = self.fleet.clock() + CALLS_LAST
        for number, standing in enumerate(self.ticket.standings):
            if standing in (AWAITED, UNASKED):  # it is its turn to call, or it waits for us
                self._due[number] = min(self._due[number], soon)
        self._ask(master)
        self._arm()

    def changed(self, master: int) -> None:
        """Hear that the lock was changed on *master* by others; ask, if we come after them."""
        if not self._over and self.ticket.standings[master] is NEXT:
            self._ask(master)
            self._arm()

    def nudge(self) -> None:
        """Hear that a lease of this process has ended, or that it is all over."""
        if self.fleet.closed:
            return
        for master in range(len(self.fleet.links)):
            self.changed(master)

    def forgotten(self, master: int) -> None:
        """Hear that *master* may have forgotten us."""
        if not self._over:
            self.ticket.forget(master)
            self._ask(master)
            self._arm()

    # Coming to an end.

    def ring(self) -> None:
        """Let the task look what has become of it."""
        if self._bell is not None and not self._bell.done():
            self._bell.set_result(None)

    async def wait(self, seconds: float | None) -> None:
        """
        Wait until there is something to look at, at most so many *seconds*.

        Cancellation:
            The place in the queues is kept; `leave` gives it up.
        """
        self._bell = bell = self.fleet.loop.create_future()
        self._consider()
        timer = None
        if seconds is not None:
            timer = self.fleet.loop.call_later(max(seconds, 0.0), self.ring)
        try:
            await bell
        finally:
            if timer is not None:
                timer.cancel()

    async def win(self) -> bool:
        """
        Return whether the lock is ours, by the clock, with a fencing token if there is to be one.

        Then it is over.

        Cancellation:
            The place in the queues is kept; `leave` gives it up.
        """
        ticket, claim, fleet = self.ticket, self.claim, self.fleet
        until = self._until_when()
        if until <= fleet.clock():
            return False
        if claim.counter is not None:
            # A token belongs to these very grants: if they have run out meanwhile,
            # somebody else may have had the lock, and we may have been granted it anew.
            agreed = await claim.settle_on(self._counters(), ticket.needed)
            if claim is not self.claim:
                return False
            if not agreed or until <= fleet.clock():
                self._give_back()
                self.ask_all()
                return False
        if fleet.closed:  # nobody would tell its holder that it is lost
            return False
        claim.until = until
        self._end()
        return True

    def _until_when(self) -> float:
        """Return until when we have it; 0 if not, or if it has to be asked for again."""
        until = self._until()
        if not until and self.ticket.count(GRANTED) >= self.ticket.needed:
            self._give_back()
            self.ask_all()
        return until

    def leave(self) -> None:
        """Give back what there is, and leave the queues."""
        self._end()
        self.claim.send_release(max(self._wanted.ttl, fairness.LIVES), stay=False)

    def _end(self) -> None:
        self._over = True
        self.claim.unsent &= self._never_asked
        self.claim.replies = list(self.replies)
        if self._timer is not None:
            self._timer.cancel()
        self._line.unwatch(self)
        self.queues.left(self)

    def check(self, resources: tuple[str, ...], began: float, *, over: bool) -> None:
        """Raise the error that says why the lock was not obtained, if there is no hope."""
        self.fleet.check_open()
        if not (over or self.ticket.refused or self._in_vain):
            return
        self.claim.replies = list(self.replies)
        raise refusal(
            resources,
            self.claim.votes(),
            self._view,
            attempts=self._beats,
            began=began,
            now=self.fleet.clock(),
        )
