"""
The wait of one fair acquisition, in the queue that each master keeps.

    enter all queues ─► ask each master ─┬─ a majority grants ─────────────► won
                          ▲              ├─ refused for good, or wait=0 ───► leave
                          │              └─ others come first, or hold it ─► wait
                          └─ a master wakes it, the key expires, a heartbeat ◄──┘

A waiter has the same place in the queues of all masters. It asks a master for the lock
when it begins, when a master wakes it because it is next, when the key there expires,
and by heartbeats, which also keep its place. `_rules.fair_ticket` describes what the
replies mean, and when a waiter leaves the queues for a while.

A release wakes only the next waiter. A holder that does not use the queue wakes no waiter,
therefore the next one tracks the key, and the master pushes its change (`FairWaiter._watch`).

Grants of a minority do not help their waiter and block the others: two waiters with the
grants of two of four masters each would wait for each other for ever. Therefore a waiter
gives its grants back if it can't get a majority now, or if the grants are too old.
"""

import asyncio
import functools
import math
import random
from collections.abc import Callable, Sequence
from typing import NamedTuple

from redlock_aio._engine.claim import EXPIRY_SLACK, TOO_LATE
from redlock_aio._engine.masters import votes
from redlock_aio._engine.wait.fair_claim import MEANS, FairClaim
from redlock_aio._engine.wait.fair_queue import Callbacks, FairQueue
from redlock_aio._protocol import commands, replies
from redlock_aio._protocol.request import QuarantineRule, Request
from redlock_aio._rules import fair_ticket
from redlock_aio._rules.blockers import Blockers
from redlock_aio._rules.fair_ticket import (
    ASIDE,
    ASKED,
    BEHIND,
    FAILED,
    FULL,
    GRANTED,
    NEXT,
    SILENT,
    UNASKED,
    Ticket,
)  # fmt: skip
from redlock_aio._rules.quorum import NOT_YET, Vote
from redlock_aio.errors import refusal

MOST_REPEATS = 3
"""The most repetitions in a row after NOSCRIPT or a refusal by a master's clock."""


class QueueRequest(Request):
    """
    One request of a waiter to one master, which may grant the lock and enter the queue.

    Args:
        on_reply: Called with the number of the master and its reply.

        on_sent: Called with the number of the master when the request was sent.
    """

    __slots__ = ("_on_sent",)

    def __init__(
        self,
        payload: bytes,
        on_reply: Callable[[int, object], None],
        on_sent: Callable[[int], None],
    ) -> None:
        super().__init__(payload, on_reply, in_quarantine=QuarantineRule.REFUSE)
        self._on_sent = on_sent

    def was_sent(self, master: int) -> None:
        """Called when the request was sent to *master*."""
        self._on_sent(master)


class Entry(NamedTuple):
    """The first request of a waiter, which is the same for all masters."""

    claim: FairClaim
    place: int
    """The place in the queues."""
    received: Sequence[int]
    """How many chunks each connection had received when it was sent."""


class FairWaiter:
    """
    One task that waits in the queues.

    Args:
        queues: The fair queues of all masters, shared by the waiters of this process.

        entry: The first request, which all masters have been sent.

        patient: Whether it waits if the lock can't be acquired at once.

        task: The task that waits, for the listener.
    """

    def __init__(
        self,
        queues: FairQueue,
        entry: Entry,
        *,
        patient: bool,
        task: asyncio.Task[object] | None = None,
    ) -> None:
        claim = entry.claim
        masters = len(queues.masters.links)
        self.queues = queues
        self.masters = queues.masters
        self.claim = claim
        self.member, self.place = claim.member, entry.place
        queues.waiters[claim.member] = Callbacks(self.called, self.forgotten, self.on_wakeup)
        self.ticket = Ticket(masters)
        for master in range(masters):
            self.ticket.ask(master, claim.began)
        self.patient = patient
        """Whether it waits if the lock can't be acquired at once."""
        self.replies: list[object] = [NOT_YET] * masters
        """The last reply of each master, in the form from which votes are made."""
        self._wanted = claim.wanted
        self._over = False
        self._aside = False
        """Whether the waiter is in no queue, and only checks whether a majority answers again."""
        self._never_asked = claim.unsent
        """A bit for each master that was never asked to enter the present name in its queue."""
        self._outside = (1 << masters) - 1
        """A bit for each master that may have granted the lock without an entry in its queue."""
        self._repeats = [0] * masters
        self._view = Blockers(masters)
        self._due = [claim.began + self.masters.master_timeout / 1000] * masters
        """The instants at which to ask each master again, or to count it as silent."""
        self._unanswered = [1] * masters
        """The number of unanswered requests per master, including those that are void by now."""
        self._received = list(entry.received)
        """The number of chunks that each connection had received when the wait for it began."""
        self._queue = queues.local_queues.of(self.claim.key)
        self._beats = 1
        self._task = task
        self._armed_for = math.inf
        self._timer: asyncio.TimerHandle | None = None
        self._bell: asyncio.Future[None] | None = None
        self._began = self._unreached_since = self.claim.began
        self._beat_at = self._began + _until_next_beat()
        # The end of the grace for late replies: None before the grace, infinite after it.
        self._stragglers_until: float | None = None

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.ticket!r}>"

    # Requests.

    def begin(self, replies: Sequence[object]) -> None:
        """Begin to wait, with the *replies* to the first request so far."""
        self._queue.subscribe(self, mine=False)
        for master, reply in enumerate(replies):
            if reply is not NOT_YET:
                self._unanswered[master] -= 1
                self._apply(master, 1, self._began, reply)
        self._reevaluate()
        self._arm()

    def ask_all(self, *, again: bool = False) -> None:
        """
        Ask every master for the lock, which also keeps the place in its queue.

        Args:
            again: Whether to ask also masters that have not replied to the last request yet.
        """
        self._beats += 1
        now = self.masters.clock()
        self._beat_at = now + _until_next_beat()
        if self.ticket.reached >= self._unreached_since:
            self._unreached_since = now
        for master, unanswered in enumerate(self._unanswered):
            # A new request before the reply to the last one would make that reply void. And
            # where replies do not get through, each request could acquire the lock once
            # more, until the connection is given up and no release arrives there.
            if again or not unanswered:
                self._ask(master)
        self._arm()

    def _arm(self) -> None:
        due = min(
            *self._due,
            self._beat_at,
            self._stragglers_until or math.inf,
            self._leaves_at,
            # A waiter outside the queues has no grants to give back, and a majority is not
            # given back for its age. An instant at which nothing is to be done would make the
            # timer fire again and again.
            math.inf if self._aside or self._until() else self.ticket.stale_at(self._fresh_for),
        )
        if due < self._armed_for:  # a timer that fires too early is armed again
            if self._timer is not None:
                self._timer.cancel()
            self._armed_for = due
            delay = max(due - self.masters.clock(), 0.0)
            self._timer = self.masters.loop.call_later(delay, self._tick)

    @property
    def _leaves_at(self) -> float:
        """The instant at which to leave the queues if no majority has answered by then."""
        if self._aside or self.ticket.reached >= self._unreached_since:
            return math.inf
        return self._unreached_since + fair_ticket.UNREACHED

    def _tick(self) -> None:
        """Called by the timer: count silent masters, ask where a key expired, send heartbeats."""
        self._armed_for = math.inf
        now = self.masters.clock()
        for master, due in enumerate(self._due):
            if due > now:
                continue
            self._due[master] = math.inf
            standing = self.ticket.standings[master]
            if standing in (NEXT, UNASKED):
                self._ask(master)
            elif standing in (ASKED, GRANTED):
                self._await_longer(master, now)
        if self._stragglers_until is not None and now >= self._stragglers_until:
            self._stragglers_until = math.inf
        if now >= self._leaves_at:
            self._step_aside()
        elif now >= self._beat_at:
            self.ask_all()
        self._reevaluate()
        self._arm()

    # One master: a request, its reply, and the end of the wait for it.

    @property
    def _fresh_for(self) -> float:
        """The seconds from the request for which a grant may count for a majority."""
        return fair_ticket.FRESH + self.masters.master_timeout / 1000

    def _ask(self, master: int) -> None:
        now = self.masters.clock()
        number = self.ticket.ask(master, now)
        most = 0 if self._aside else self._wanted.most
        payload = self.claim.question(master, now, self._counters(), place=self.place, most=most)
        self._due[master] = now + self.masters.master_timeout / 1000
        self._received[master] = self.masters.links[master].received
        self._unanswered[master] += 1
        on_answer = functools.partial(self.on_answer, number, now)
        if self._aside:
            request = Request(payload, on_answer, in_quarantine=QuarantineRule.REFUSE)
        else:
            request = QueueRequest(payload, on_answer, functools.partial(self._on_sent, self.claim))
        self.masters.send_to(master, request)

    def _on_sent(self, claim: FairClaim, master: int) -> None:
        """Called when a request under *claim* was sent to *master*, which may grant the lock."""
        sent = ~(1 << master)
        claim.unsent &= sent
        if claim.member == self.member:
            self._never_asked &= sent
            if self._over:
                # The waiter has ended in the turn of the loop in which it asked. Its last
                # release has to delete the place, under whichever claim it asked for it.
                self.claim.unsent &= sent

    def _await_longer(self, master: int, now: float) -> None:
        """
        Count a master as silent if nothing has arrived from it for a master timeout.

        If replies to earlier requests have arrived meanwhile, the delay is in this program:
        the reply waits to be read. If it counted as missing, the waiter would give back its
        other grants, and wait for the next heartbeat (seen with 300 busy tasks). After
        `TOO_LATE` the master refuses the request in any case.
        """
        link = self.masters.links[master]
        no_reply = link.overdue()
        if self.ticket.standings[master] is not ASKED:
            return
        if (
            link.received != self._received[master]
            and now < self.ticket.asked_at(master) + TOO_LATE
        ):
            self._received[master] = link.received
            self._due[master] = now + self.masters.master_timeout / 1000
        else:
            self.ticket.standings[master] = SILENT
            self.replies[master] = no_reply

    def _apply(self, master: int, number: int, sent: float, reply: object) -> None:
        """Apply the reply of *master* to request *number*, which was sent at *sent*."""
        answer = replies.queued(reply)
        standing = FAILED if answer is None else answer.standing
        counter, done = 0, 0.0
        if answer is not None:
            self.masters.clocks.learn(master, answer.now, sent, self.masters.clock())
            counter, done = answer.counter, self.masters.clocks.latest(master, answer.now)
        if self._aside and standing is FULL:  # a limit of 0 waiters makes every queue full
            standing = ASIDE
        if not self.ticket.on_reply(master, number, standing, counter, done):
            # The reply is void: since its request was sent, this waiter has given back all
            # grants, and that release follows the request on the same connection. The master
            # was slow and replies again now. It is asked at once, because the next heartbeat
            # may be a second away.
            if self.patient and self.ticket.may_win(master):
                self._ask(master)
            return
        self._due[master] = math.inf
        if answer is None:
            self.replies[master] = no_reply = replies.read(reply)
            if "NOSCRIPT" in no_reply.detail and self._repeats[master] < MOST_REPEATS:
                self._repeats[master] += 1
                self._ask(master)  # follows the scripts, which the connection sends again
            return
        self.replies[master] = MEANS[standing]
        if standing is FAILED and self._repeats[master] < MOST_REPEATS:
            self._repeats[master] += 1
            self.claim.propose_anew()
            self._ask(master)  # by the master's clock, whose time this reply contains
            return
        self._repeats[master] = 0
        self._outside &= ~(answer.in_queue << master)
        if answer.holder is None:
            self._view.may_be_free(master)
            return
        ends = self.masters.clock() + answer.left
        self._view.held(master, answer.holder, ends)
        if standing is NEXT:
            self._watch(master, ends + EXPIRY_SLACK)

    def _watch(self, master: int, ends: float) -> None:
        """
        Track the key on *master*, and schedule the next request for when its ttl is over.

        Tracking makes the master push the next change of the key. It is needed because a
        holder that does not use the queue wakes no waiter by its release. If the key was
        released before this request arrived, no push comes, but the reply to this request
        shows that the key is free.
        """
        self._due[master] = ends
        caching = Request(commands.CACHING)
        look = Request(self.claim.key.look(), self._on_look)
        self.masters.send_to(master, caching)  # the next command on the connection is this read
        self.masters.send_to(master, look)

    def _on_look(self, master: int, reply: object) -> None:
        if self.claim.key.is_free(reply):
            self.changed(master)

    def _give_back(self) -> None:
        """
        Release all grants, and keep the place in the queues.

        First the ticket voids all requests that are underway, by new numbers; then the
        release follows them on each connection. A grant that is still on its way is undone
        by that release, and must not count when it arrives.
        """
        for master, standing in enumerate(self.ticket.standings):
            if self._outside >> master & 1 and standing in (GRANTED, ASKED, SILENT):
                # The master may have granted the lock without an entry in its queue. This
                # request, which comes before the release, makes the entry. Otherwise a waiter
                # that comes later might find the lock free there, and nobody in the queue.
                self._ask(master)
        self._outside = 0
        given, self.claim = self.claim, self.claim.with_new_token(self.member)
        self.ticket.give_back()
        self._release(given, self._wanted.ttl, keep_place=True)

    def _release(self, claim: FairClaim, ttl: int, *, keep_place: bool) -> None:
        """Send the release of *claim*, and notify the waiters of this process."""
        claim.send_release(ttl, keep_place=keep_place)
        self.queues.local_queues.notify_released(claim.key)

    def _start_over(self) -> None:
        """Start again under a member name that no master has seen yet."""
        # The name is new each time: a master that has not executed the request to leave
        # yet still has the old name in its queue, at the old place.
        self.member, self.place = self.queues.enter_again(self.member)
        self.claim = self.claim.with_new_token(self.member)
        self._outside = 0
        self._never_asked = (1 << len(self.masters.links)) - 1
        self.ticket.start_over()

    def _until(self) -> float:
        """Return the end of the validity of a majority's grants, 0 if there is no majority."""
        wanted = self._wanted
        return self.ticket.until(wanted.ttl, factor=wanted.factor, within=self._fresh_for)

    def _counters(self) -> list[int]:
        """Return the counters of the masters whose grants are still valid."""
        wanted = self._wanted
        return self.ticket.counters(self.masters.clock(), wanted.ttl, factor=wanted.factor)

    # Answers and pushes.

    def on_answer(self, number: int, sent: float, master: int, reply: object) -> None:
        """Apply a reply, then re-evaluate: win, wait on, or give up."""
        if not self._over:
            self._unanswered[master] -= 1
            self._apply(master, number, sent, reply)
            self._reevaluate()
            self._arm()

    def _reevaluate(self) -> None:
        """After a reply: wake the task, give back grants, or enter the queues again."""
        ticket = self.ticket
        if self._over:
            return
        if self._until_when() > self.masters.clock() or ticket.refused:
            self.on_wakeup()
            return
        if self._aside:
            if ticket.count(ASIDE) >= ticket.needed:
                self._enter_again()
            return
        lost = ticket.lost
        if self._has_failed:
            self._wait_for_stragglers()  # `leave` gives back all grants then
            return
        if lost and self.masters.emitter is not None:
            self.masters.emitter.on_waiting(self._task)
        if lost and self._has_grants_outside:
            self._enter_queues()
        elif ticket.must_yield or ticket.stale_at(self._fresh_for) <= self.masters.clock():
            self._give_back()
        if lost and self.queues.listen():
            # A master may have published the wake-up before it executed the subscription. No
            # other push comes then, and without these requests this waiter would wait until
            # the next heartbeat.
            self.ask_all(again=True)

    @property
    def _has_grants_outside(self) -> bool:
        """Whether a master has granted the lock without an entry in its queue."""
        return any(
            standing is GRANTED and self._outside >> master & 1
            for master, standing in enumerate(self.ticket.standings)
        )

    def _enter_queues(self) -> None:
        """Enter the queues where the lock was granted without an entry; give the grants back."""
        granted = [i for i, standing in enumerate(self.ticket.standings) if standing is GRANTED]
        self._give_back()
        for master in granted:
            self._ask(master)

    def _step_aside(self) -> None:
        """Withdraw from all queues, and ask until a majority answers; see `_rules.fair_ticket`."""
        left = self.claim
        left.unsent &= self._never_asked
        self._aside = True
        self._unreached_since = self.masters.clock()
        self._start_over()
        # The new name comes first: the release notifies the waiters of this process, also this
        # one, which may ask at once. Under the old name its request would follow the request
        # to leave, and enter the old name in the queue again.
        self._release(left, max(self._wanted.ttl, fair_ticket.LIVES), keep_place=False)
        self.ask_all(again=True)

    def _enter_again(self) -> None:
        self._aside = False
        self._unreached_since = self.masters.clock()
        self._start_over()
        self.ask_all(again=True)

    @property
    def _has_failed(self) -> bool:
        """Whether a non-blocking acquisition has failed: refused, or its grants are too old."""
        return not self.patient and (self.ticket.lost or ASKED not in self.ticket.standings)

    def _wait_for_stragglers(self) -> None:
        """
        End the wait when all masters have replied, or after a grace.

        The outcome is certain, but with the late votes the error is more precise. The grace is as
        long as the waiter has existed by then, and at least 1 ms.
        """
        if self._stragglers_until is None:
            now = self.masters.clock()
            self._stragglers_until = now + max(now - self._began, 0.001)
        if ASKED not in self.ticket.standings or self._stragglers_until == math.inf:
            self.on_wakeup()

    def called(self, master: int) -> None:
        """
        Called when *master* pushes that it is this waiter's turn there.

        Ask that master, and all at which others came first: a release is sent to all masters in
        one turn of the loop, so they have it by now, if they work, and this waiter does not
        await the push of each. A master that gets the release later than this request refuses,
        and its push makes this waiter ask again. Such refusals may have made the waiter give
        back its grants. So the masters to which it gave them back are asked now as well, if a
        majority is possible again.
        """
        if self._over:
            return
        if self.ticket.standings[master] is GRANTED:
            self._give_back()  # the grant was revoked on that master; see revoke.lua
        for number, standing in enumerate(self.ticket.standings):
            # A push that comes before the reply to a request was sent before the master executes
            # that request, because both come over one connection. That reply will be up to date.
            if standing is BEHIND or (number == master and standing is not ASKED):
                self._ask(number)
        for number in range(len(self.ticket.standings)):
            if self.ticket.may_win(number):
                self._ask(number)
        self._arm()

    def changed(self, master: int) -> None:
        """Called when others have changed the key on *master*; ask it if this waiter is next."""
        if not self._over and self.ticket.standings[master] is NEXT:
            self._ask(master)
            self._arm()

    def on_local_release(self) -> None:
        """Called when a lease of this process was released, or when the manager is closed."""
        if self.masters.closed:
            return
        for master in range(len(self.masters.links)):
            self.changed(master)

    def forgotten(self, master: int) -> None:
        """Called when *master* may have forgotten this waiter; ask it."""
        if not self._over:
            self.ticket.forget(master)
            self._ask(master)
            self._arm()

    # The end.

    def on_wakeup(self) -> None:
        """Wake the waiting task, which then checks whether the lock is acquired."""
        if self._bell is not None and not self._bell.done():
            self._bell.set_result(None)

    async def wait(self, seconds: float | None) -> None:
        """
        Wait until the outcome may be certain, for at most *seconds* (``None``: no limit).

        Cancellation:
            The place in the queues is kept; `leave` gives it up.
        """
        self._bell = bell = self.masters.loop.create_future()
        self._reevaluate()
        timer = None
        if seconds is not None:
            timer = self.masters.loop.call_later(max(seconds, 0.0), self.on_wakeup)
        try:
            await bell
        finally:
            if timer is not None:
                timer.cancel()

    async def win(self) -> bool:
        """
        Return whether the lock is acquired: still valid by the clock, with its fencing token.

        The waiter has ended when this returns True.

        Cancellation:
            The place in the queues is kept; `leave` gives it up.
        """
        ticket, claim, masters = self.ticket, self.claim, self.masters
        until = self._until_when()
        if until <= masters.clock():
            return False
        if claim.counter is not None:
            # The fencing token belongs to the grants of *claim*. While the masters agree on
            # it, these grants may get too old and be given back, another client may hold the
            # lock meanwhile, and new grants may arrive under the next claim. The token would
            # then be lower than the other client's.
            agreed = await claim.settle_on(self._counters(), ticket.needed)
            if claim is not self.claim:
                return False
            if not agreed or until <= masters.clock():
                self._start_anew()
                return False
        if masters.closed:  # the lease would be neither extended nor notified of a loss
            return False
        claim.until = until
        self._end()
        return True

    def _until_when(self) -> float:
        """Return the end of a majority's validity, else 0; ask again where grants are stale."""
        until = self._until()
        if not until and self.ticket.count(GRANTED) >= self.ticket.needed:
            self._start_anew()
        return until

    def _start_anew(self) -> None:
        """Give back all grants, and ask all masters for new ones."""
        # Where the lock was granted without an entry, `_give_back` sends a request that makes one.
        # Its reply is void, and must not keep `ask_all` from asking that master again.
        again = self._outside != 0
        self._give_back()
        self.ask_all(again=again)

    def leave(self) -> None:
        """Release all grants, and leave the queues of all masters."""
        self._end()
        self._release(self.claim, max(self._wanted.ttl, fair_ticket.LIVES), keep_place=False)

    def _end(self) -> None:
        self._over = True
        self.claim.unsent &= self._never_asked
        self.claim.replies = list(self.replies)
        if self._timer is not None:
            self._timer.cancel()
        self._queue.unsubscribe(self)
        self.queues.left(self.member)

    def votes(self) -> tuple[Vote, ...]:
        """Return the vote of each master so far."""
        return votes(self.masters.links, self.replies)

    def check(self, resources: tuple[str, ...], began: float, *, over: bool) -> None:
        """Raise the error with the reason of the failure, if the wait has ended."""
        self.masters.check_open()
        if not (over or self.ticket.refused or self._has_failed):
            return
        raise refusal(
            resources,
            self.votes(),
            self._view,
            attempts=self._beats,
            began=began,
            now=self.masters.clock(),
        )


def _until_next_beat() -> float:
    """Return in how many seconds to send the next heartbeat, a little different each time."""
    return fair_ticket.HEARTBEAT * random.uniform(0.9, 1)  # noqa: S311 - no secret
