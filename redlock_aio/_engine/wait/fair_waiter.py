"""
One fair acquisition: its requests, and its wait in the queue that each master keeps.

    ask all masters ─┬─ a majority grants ──────────────────────────────────► won
           ▲         ├─ refused for good, or wait=0 ────────────────────────► leave
           │         └─ others come first, or hold it ─► wait
           └─ a master wakes it, the key expires, a heartbeat ◄──┘

A waiter has the same place in the queues of all masters. It asks a master for the lock
when it begins, when a master wakes it because it is next, when the key there expires,
and by heartbeats, which also keep its place. `_rules.fair_ticket` describes what the
replies mean, and decides what the waiter does next; this file carries it out.

The first request is the same for all masters, and may be granted without an entry in a
queue. A waiter that gives back such a grant enters the queue first (see `_give_back`).

A release wakes only the next waiter. A holder that does not use the queue wakes no waiter,
therefore the next one tracks the key, and the master pushes its change (`FairWaiter._watch`).

Everything here but `acquire`, `wait` and `win` runs in one step of the loop: a reply, a
push or the timer changes the ticket, and the move that follows is made before the next.
"""

import asyncio
import functools
import math
import random
from collections.abc import Callable, Iterator

from redlock_aio._engine.claim import EXPIRY_SLACK, Claim
from redlock_aio._engine.fenced import TOO_LATE, agree
from redlock_aio._engine.masters import ACQUIRE, Round
from redlock_aio._engine.options import LockSpec
from redlock_aio._engine.outages import Observer
from redlock_aio._engine.wait.fair_queue import FairQueue
from redlock_aio._engine.wait.local_queue import LocalQueue
from redlock_aio._engine.wait.wakeup import WaitBudget
from redlock_aio._protocol import commands, replies
from redlock_aio._protocol.primitives import FencingCounter, LockKey, Permit
from redlock_aio._protocol.request import GOT_LATE, NoReply, QuarantineRule, Request, ignore
from redlock_aio._rules import fair_ticket, fencing
from redlock_aio._rules.blockers import Blockers
from redlock_aio._rules.fair_ticket import (
    ASIDE,
    ASKED,
    BEHIND,
    FAILED,
    FRESH,
    FULL,
    GRANTED,
    NEXT,
    SILENT,
    UNASKED,
    Awaited,
    Move,
    Ticket,
)  # fmt: skip
from redlock_aio._rules.quorum import NOT_YET, Answer, is_final, may_be_contended
from redlock_aio.errors import refusal

PROPOSAL_LASTS = 0.01
"""Seconds for which the same fencing token is proposed to masters that are asked one by one."""

NO_PROPOSAL = 0, -math.inf

TIMER_SLACK = 0.001
"""Seconds before its end at which a wait counts as over: a timer may fire a little early."""

LOOK_INTERVAL = 1.0
"""Seconds between two checks of the votes of a waiter without a wake-up, after the first."""

MEANS = {
    GRANTED: NoReply(Answer.GRANTED),
    NEXT: NoReply(Answer.HELD, "this waiter is next"),
    BEHIND: NoReply(Answer.HELD, "others come first"),
    FULL: NoReply(Answer.HELD, "its queue is full"),
    FAILED: GOT_LATE,
    ASIDE: NoReply(Answer.FREE, "too few others answer"),
}
"""The vote for each kind of reply to a request of a waiter."""

GRANTS = MEANS[GRANTED]


class Alarm:
    """
    One timer of the event loop, for the earliest of several instants.

    Args:
        ring: Called at that instant, or a little before it. It has to `arm` the alarm again.

    Attributes:
        beat_at: The instant of the next heartbeat.

        wake_at: The instant at which to wake the task; infinite after that.
    """

    __slots__ = ("_armed_for", "_clock", "_loop", "_ring", "_timer", "beat_at", "wake_at")

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        clock: Callable[[], float],
        ring: Callable[[], None],
        beat_at: float,
        wake_at: float,
    ) -> None:
        self._loop = loop
        self._clock = clock
        self._ring = ring
        self.beat_at = beat_at
        self.wake_at = wake_at
        self._armed_for = math.inf
        self._timer: asyncio.TimerHandle | None = None

    def __repr__(self) -> str:
        return f"<Alarm for {self._armed_for}>"

    def arm(self, due: float) -> None:
        """Ring at *due*, or at one of the alarm's own instants if that is earlier."""
        due = min(due, self.beat_at, self.wake_at)
        # If it has become later, the timer fires too early, and is armed again then.
        if due < self._armed_for:
            self.stop()
            self._armed_for = due
            self._timer = self._loop.call_later(max(due - self._clock(), 0.0), self._fire)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _fire(self) -> None:
        self._armed_for = math.inf
        self._ring()


class FairWaiter(Round):
    """
    One fair acquisition, from its first request until it wins or leaves the queues.

    As a `Round` it is its own first request, which `MasterSet.ask` sends. All replies, to this
    and to later requests, come to `on_answer`.

    Args:
        queues: The fair queues of all masters, shared by the waiters of this process.

        lock: The resources to lock, and the options.

        key: What it waits for: the key of *lock*, or one of its permits.

        entry: Its name and its place, if they are those of a waiter that has left for this one, or
            of an earlier request; without it, it gets new ones.

        patient: Whether it waits if the lock can't be acquired at once.

    Attributes:
        replies: The last reply of each master, in the form from which votes are made.

        ticket: What those replies mean for the place of this waiter.

        member, place: Its name and its place in the queues.

        claim: The grants under the present token. A claim with a new token follows each
            give-back: under the old token, a release that a slow master executes late would
            delete a key that the same master has granted since.

        offers: The permits to whose queues masters have moved it, by the number of the master.
    """

    __slots__ = (
        "_alarm", "_awaited", "_beats", "_first_claim", "_never_asked", "_over", "_proposed",
        "_task", "_unheard", "_view", "claim", "key", "lock", "member", "offers", "patient",
        "place", "queues", "ticket",
    )  # fmt: skip

    def __init__(
        self,
        queues: FairQueue,
        lock: LockSpec,
        key: LockKey,
        *,
        patient: bool,
        entry: tuple[bytes, int] | None = None,
    ) -> None:
        self.queues = queues
        self.masters = masters = queues.masters
        self.lock = lock
        self.key = key
        self.patient = patient
        self.offers: dict[int, Permit] = {}
        self.member, self.place = entry or queues.new_entry(key.member_mark)
        queues.waiters[self.member] = self
        asked = self.place if entry is None else masters.clocks.new_time(masters.clock())
        counter = None
        if lock.options.fencing:
            counter = queues.local_queues.of(key).counter_of(key, queues.clock_lead)
        self.claim = self._first_claim = self._new_claim(counter)
        self.claim.unsent = 0  # `not_sent` sets the bits of the masters that never get it
        self._never_asked = 0
        """A bit for each master that was never asked to enter the present name in its queue."""
        late = asked + int((TOO_LATE + masters.clocks.spread) * 1_000_000)
        links = masters.links
        payload = self._question(late, queues.max_waiters, first=True)
        Round.__init__(self, masters, payload, ACQUIRE, self.claim)
        self.claim.replies = self.replies
        began = self.claim.began
        self.ticket = Ticket(len(links), lock.options.validity)
        self.ticket.ask_first(began)
        due = began + masters.master_timeout / 1000
        self._awaited = [Awaited(due, link.received) for link in links]
        self._view = Blockers(len(links))
        self._beats = 1
        self._unheard = 0 if queues.listening else (1 << len(links)) - 1
        """A bit for each master that was asked before it got the subscription to wake-ups."""
        self._alarm: Alarm | None = None
        """Its timer; ``None`` until the waiter has to hear of releases. See `_begin_to_wait`."""
        self._over = False
        self._task = None if masters.emitter is None else asyncio.current_task()
        if isinstance(key, Permit):
            # At once: tasks that come in the same moment are to choose different permits. And a
            # waiter for a permit is seldom granted it at once.
            self._begin_to_wait()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.ticket!r}>"

    # The claim and the commands for it.

    def _new_claim(self, counter: FencingCounter | None) -> Claim:
        masters, lock = self.masters, self.lock
        token = masters.token() + masters.stamp + lock.metadata
        nobody = (1 << len(masters.links)) - 1
        ttl = lock.options.ttl
        claim = Claim(self.key, token, ttl, counter, self.member, unsent=nobody)
        claim.began = masters.clock()
        self._proposed = NO_PROPOSAL
        return claim

    def _question(self, late: int, most: int, *, first: bool = False) -> bytes:
        """
        Return the command that asks a master for the lock and enters its queue.

        Args:
            late: The time by the master's clock from which it refuses the command.

            most: The greatest number of waiters; with 0 no queue is entered.

            first: Whether the lock is granted without an entry where the queue is empty.
        """
        entry = commands.QueueEntry(self.member, self.place, fair_ticket.LIVES, most, late, first)
        claim = self.claim
        proposal = 0 if claim.counter is None else self._propose(first=first)
        return claim.key.enqueue(claim.token, claim.ttl, entry, claim.counter, proposal)

    def _propose(self, *, first: bool) -> int:
        """Return the fencing token to propose."""
        clocks, now = self.masters.clocks, self.masters.clock()
        # Masters that are asked one by one in a short time get one value. With different
        # values their counters would differ, and another round would have to raise them.
        proposal, until = self._proposed
        if now > until:
            time = clocks.new_time(now)
            # With the value that the first masters granted, all agree without another round.
            # But the other masters may refuse a value that is far from their time.
            known = 0 if first else max(self.ticket.counters(now), default=0)
            proposal = known if abs(time - known) < TOO_LATE * 1_000_000 else time
            self._proposed = proposal, now + PROPOSAL_LASTS
        return proposal

    def _release(self, claim: Claim, *, keep_place: bool) -> None:
        """Release *claim* where it may be granted, and notify the waiters of this process."""
        if keep_place:
            payload = claim.key.leave(claim.token, claim.member, keep_place=True)
            self.masters.release_by(claim, payload, claim.ttl)
        else:
            self.masters.take_back(claim, claim.ttl)
        self.queues.local_queues.notify_released(claim.key)

    # The first request, as a round.

    def on_reply(self, master: int, reply: object, /) -> None:
        """Called with each reply to the first request."""
        self.to_lose -= 1  # the round is complete when all masters have replied
        self.on_answer(1, self._first_claim.began, master, reply)

    def not_sent(self, master: int, no_reply: NoReply) -> None:
        """Count *no_reply* for a master that never gets the first request."""
        # The claim that the request was made for: a reply of another master in this step of
        # the loop may have led to the next claim already.
        self._first_claim.unsent |= 1 << master
        self._never_asked |= 1 << master
        self.on_reply(master, no_reply)

    def expire(self) -> None:
        """Called after the master timeout, or the limit of a shorter wait, and on closing."""
        if not self._over:
            self._tick()
            self.wake()

    cut_short = expire  # it counts by itself which masters are late

    # Requests.

    def ask_all(self, *, again: bool = False) -> None:
        """
        Ask every master for the lock, which also keeps the place in its queue.

        A master that has no vote is not asked again: its queue can't be reached, and `forgotten` is
        called when it has one. With thousands of waiters these requests would keep this program so
        busy that it could not connect again.

        Args:
            again: Whether to ask also masters that have not replied to the last request yet.
        """
        self._beats += 1
        now = self.masters.clock()
        self._begin_to_wait().beat_at = now + _until_next_beat()
        self.ticket.heartbeat(now)
        for master, awaited in enumerate(self._awaited):
            no_vote = self.masters.links[master].no_vote
            if no_vote is not None and self.ticket.standings[master] is FAILED:
                self.replies[master] = no_vote  # it may refuse for good by now
                continue
            # A new request before the reply to the last one would make that reply void. And
            # where replies do not get through, each request could acquire the lock once
            # more, until the connection is given up and no release arrives there.
            if again or not awaited.requests:
                self._ask(master)
        self._arm()

    def _ask_unheard(self) -> None:
        """
        Ask the masters that may have called this waiter before they executed the subscription.

        No other push comes then, and the waiter would wait until its next heartbeat. A semaphore
        forgets whom it has called in vain: newcomers would pass the waiter until then.
        """
        for master, awaited in enumerate(self._awaited):
            # One that has not replied yet is asked when it does: it may stand still.
            waits = self.ticket.standings[master] in (NEXT, BEHIND) and not awaited.requests
            if waits and self._unheard >> master & 1:
                self._ask(master)

    def _ask(self, master: int) -> None:
        self._begin_to_wait()
        if self.queues.listening:
            self._unheard &= ~(1 << master)
        masters, now = self.masters, self.masters.clock()
        number = self.ticket.ask(master, now)
        offset = masters.clocks.offset(master)
        late = commands.NEVER if offset is None else int((now + offset + TOO_LATE) * 1_000_000)
        payload = self._question(late, 0 if self.ticket.aside else self.queues.max_waiters)
        due = now + masters.master_timeout / 1000
        self._awaited[master].ask(due, masters.links[master].received)
        on_answer = functools.partial(self.on_answer, number, now)
        # Aside, it can neither get the lock nor enter the queue.
        was_sent = ignore if self.ticket.aside else functools.partial(self._on_sent, self.claim)
        rule = QuarantineRule.REFUSE
        masters.send_to(master, Request(payload, on_answer, was_sent, in_quarantine=rule))

    def _on_sent(self, claim: Claim, master: int) -> None:
        """Called when a request under *claim* was sent to *master*, which may grant the lock."""
        sent = ~(1 << master)
        claim.unsent &= sent
        if claim.member == self.member:
            self._never_asked &= sent
            if self._over:
                # The waiter has ended in the turn of the loop in which it asked. Its last
                # release has to delete the place, under whichever claim it asked for it.
                self.claim.unsent &= sent

    # Time.

    def _begin_to_wait(self) -> Alarm:
        """Subscribe to releases and have a timer from now on; return the timer."""
        # Not before: while all that replied have granted the first request without an entry,
        # it has nothing to hear of, and `MasterSet` calls `expire` if the other replies are late.
        alarm = self._alarm
        if alarm is None:
            masters, began = self.masters, self._first_claim.began
            # The task looks at the votes first after a master timeout.
            look = began + masters.master_timeout / 1000
            beat = began + _until_next_beat()
            self._alarm = alarm = Alarm(masters.loop, masters.clock, self._tick, beat, look)
            for queue in self._local_queues:
                queue.subscribe(self, mine=False)
        return alarm

    @property
    def _local_queues(self) -> Iterator[LocalQueue]:
        """That of its key, and of a permit that of the semaphore, in which all its waiters are."""
        # One after the other: to make the second may drop the first, if this is not its guest yet.
        of, key = self.queues.local_queues.of, self.key
        yield of(key)
        if isinstance(key, Permit):
            yield of(key.of)

    def _arm(self) -> None:
        if self._alarm is not None:
            due = min(awaited.due for awaited in self._awaited)
            self._alarm.arm(min(due, self.ticket.moves_at(self._fresh_for)))

    def _tick(self) -> None:
        """Called by the timer: count silent masters, ask where a key expired, send heartbeats."""
        alarm, now = self._begin_to_wait(), self.masters.clock()
        for master, awaited in enumerate(self._awaited):
            if awaited.due > now:
                continue
            awaited.due = math.inf
            standing = self.ticket.standings[master]
            # A master answers in order: behind what it still owes, another request is only more to
            # do for one that is busy. It is asked when the void reply comes, or by a heartbeat.
            if standing is NEXT or (standing is UNASKED and not awaited.requests):
                self._ask(master)
            elif standing in (ASKED, GRANTED):
                self._await_longer(master, now)
        # The move first: a waiter that steps aside asks under a new name. A heartbeat before
        # that would enter the old name once more, only to leave it.
        self._reevaluate()
        if now >= alarm.beat_at:
            self.ask_all()
        if now >= alarm.wake_at:
            alarm.wake_at = math.inf
            self.wake()
        self._arm()

    @property
    def _fresh_for(self) -> float:
        """The seconds from the request for which a grant may count for a majority."""
        return FRESH + self.masters.trips.timeout / 1000

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
        in_time = now < self.ticket.asked_at(master) + TOO_LATE
        due = now + self.masters.master_timeout / 1000
        if not (in_time and self._awaited[master].prolong(due, link.received)):
            self.ticket.standings[master] = SILENT
            self.replies[master] = no_reply

    # One master: its reply, and the watch of its key.

    def on_answer(self, number: int, sent: float, master: int, reply: object) -> None:
        """Apply a reply, then make the move that follows: win, wait on, or give up."""
        if self._over:
            self._answer_late(number, master, reply)
            return
        awaited = self._awaited[master]
        awaited.requests -= 1
        ticket, now = self.ticket, self.masters.clock()
        counter = replies.granted_outside_queue(reply)
        # The most frequent reply by far, and the least to do. Quick as it was, the grant is fresh
        # whatever the master's clock shows: it was executed before it arrived.
        if (
            counter is not None
            and now <= sent + FRESH
            and ticket.on_reply(master, number, GRANTED, counter, now)
        ):
            self.replies[master] = GRANTS
            awaited.due, awaited.repeats = math.inf, 0  # as `settle` does, without a call
            self._view.may_be_free(master)
            if self._alarm is None and ticket.standings.count(GRANTED) < ticket.needed:
                return  # only grants so far, and no majority: no move follows from that
        else:
            self._apply(master, number, sent, reply)
        self._reevaluate()
        if self._unheard and self.queues.listening and not self._over:
            self._ask_unheard()
        self._arm()

    def _answer_late(self, number: int, master: int, reply: object) -> None:
        answer = replies.queued(reply)
        standing = FAILED if answer is None else answer.standing
        # A master that failed when it was asked once more keeps what it has granted before.
        kept = standing is FAILED and self.replies[master] is GRANTS
        if self.ticket.on_reply(master, number, standing) and not kept:
            # `Lease.votes` shows it; and if one more master keeps the lease, a forced release there
            # ends it, also if no other master can be reached.
            self.replies[master] = replies.classify(reply) if answer is None else MEANS[standing]
        if answer is not None and answer.moved is not None and isinstance(self.key, Permit):
            # The master has moved the member after the request to leave was made, which does not
            # reach the other queue. It has pushed nothing.
            self.queues.call(master, self.member, self.key.of.permit(answer.moved))

    def _apply(  # noqa: C901 - what a reply says, one after the other
        self, master: int, number: int, sent: float, reply: object
    ) -> None:
        """Apply the reply of *master* to request *number*, which was sent at *sent*."""
        answer = replies.queued(reply)
        standing = FAILED if answer is None else answer.standing
        counter = 0 if answer is None else answer.counter
        done = 0.0 if answer is None else self._done_at(master, answer, sent)
        if answer is None or answer.in_queue:
            self._begin_to_wait()
        if answer is not None and answer.moved is not None and isinstance(self.key, Permit):
            self._note_offer(master, self.key.of.permit(answer.moved))
        if self.ticket.aside and standing is FULL:  # a limit of 0 waiters makes every queue full
            standing = ASIDE
        if not self.ticket.on_reply(master, number, standing, counter, done):
            # The reply is void: since its request was sent, this waiter has given back all
            # grants, and that release follows the request on the same connection. The master
            # was slow and replies again now. It is asked at once, because the next heartbeat
            # may be a second away.
            if self.patient and self.ticket.may_win(master):
                self._ask(master)
            return
        awaited = self._awaited[master]
        awaited.due = math.inf
        if answer is None:
            self.replies[master] = no_reply = replies.classify(reply)
            if "NOSCRIPT" in no_reply.detail and awaited.may_repeat():
                self._ask(master)  # follows the scripts, which the connection sends again
            return
        self.replies[master] = MEANS[standing]
        if standing is FAILED and awaited.may_repeat():
            self._proposed = NO_PROPOSAL  # propose another value
            self._ask(master)  # by the master's clock, whose time this reply contains
            return
        awaited.settle()
        self.ticket.outside &= ~(answer.in_queue << master)
        if answer.holder is None:
            self._view.may_be_free(master)
            return
        ends = self.masters.clock() + answer.left
        self._view.held(master, answer.holder, ends)
        if standing is NEXT:
            self._watch(master, ends + EXPIRY_SLACK)

    def _done_at(self, master: int, answer: replies.Queued, sent: float) -> float:
        """Return the latest instant at which *master* can have executed the request."""
        clocks, now = self.masters.clocks, self.masters.clock()
        clocks.learn(master, answer.now, sent, now)
        return clocks.latest(master, answer.now)

    def _watch(self, master: int, ends: float) -> None:
        """
        Track the key on *master*, and schedule the next request for when its ttl is over.

        Tracking makes the master push the next change of the key. It is needed because a
        holder that does not use the queue wakes no waiter by its release. If the key was
        released before this request arrived, no push comes, but the reply to this request
        shows that the key is free.
        """
        self._awaited[master].due = ends
        caching = Request(commands.CACHING)
        look = Request(self.key.look(self.claim.token), self._on_look)
        self.masters.send_to(master, caching)  # the next command on the connection is this read
        self.masters.send_to(master, look)

    def _on_look(self, master: int, reply: object) -> None:
        if self.key.is_free(reply):
            self.changed(master)

    # The moves.

    @property
    def _is_woken(self) -> bool:
        """Whether the task was woken and has not run yet: it decides by itself then."""
        # Between its `win` and its next `wait` there is no future, and the moves go on: while
        # the masters agree on a fencing token, the grants get old.
        return self.waiter is not None and self.waiter.done()

    def _move(self) -> Move:
        return self.ticket.move(self.masters.clock(), patient=self.patient, within=self._fresh_for)

    def _reevaluate(self) -> None:  # noqa: C901 - one case a move
        """Make the move that follows from the present standings."""
        if self._over or self._is_woken:
            return
        move = self._move()
        if move is Move.WAIT:
            # `MasterSet` calls `expire` only while a reply is missing. If all have granted the
            # lock too late for its ttl, nothing else would wake the task: no reply, no push.
            if self.complete:
                self._begin_to_wait()
            # It has given back its grants, because other masters have another one before it. The
            # offer would wait for its next heartbeat, and others would get the other permit.
            if self.offers and not self.ticket.may_win_soon:
                self.wake()
            return
        match move:
            case Move.WIN | Move.REFUSE:
                self.wake()
            case Move.FAIL:
                self._wait_for_stragglers()  # `leave` gives back all grants then
            case Move.ASK_ANEW:
                self._start_anew()
            case Move.GIVE_BACK:
                self._give_back()
            case Move.STEP_ASIDE:
                self._step_aside()
            case Move.RETURN:
                self._return()
            case Move.QUEUE | Move.YIELD | Move.YIELD_AND_ENTER:
                self._wait_for_turn(move)

    def _wait_for_turn(self, move: Move) -> None:
        """Give back the grants as *move* says, and have the masters wake this waiter."""
        if self.offers:
            self.wake()  # `follow` gives back all grants
            return
        if self.masters.emitter is not None:
            self.masters.emitter.on_waiting(self._task)
        if move is not Move.QUEUE:
            standings = self.ticket.standings
            granted = [i for i, standing in enumerate(standings) if standing is GRANTED]
            self._give_back()
            # `_give_back` has entered these queues, by requests whose replies are void. Without
            # another request the waiter would not know its place there until a heartbeat.
            for master in granted if move is Move.YIELD_AND_ENTER else ():
                self._ask(master)
        self.queues.listen()
        self._ask_unheard()

    def _give_back(self) -> None:
        """
        Release all grants, and keep the place in the queues.

        First the ticket voids all requests that are underway, by new numbers; then the
        release follows them on each connection. A grant that is still on its way is undone
        by that release, and must not count when it arrives.
        """
        ticket = self.ticket
        for master, standing in enumerate(ticket.standings):
            if ticket.outside >> master & 1 and standing in (GRANTED, ASKED, SILENT):
                # The master may have granted the lock without an entry in its queue. This
                # request, which comes before the release, makes the entry. Otherwise a waiter
                # that comes later might find the lock free there, and nobody in the queue.
                self._ask(master)
        given = self.claim
        self.claim = self._new_claim(given.counter)
        ticket.give_back()
        self._release(given, keep_place=True)

    def _start_anew(self) -> None:
        """Give back all grants, and ask all masters for new ones."""
        # Where the lock was granted without an entry, `_give_back` sends a request that makes one.
        # Its reply is void, and must not keep `ask_all` from asking that master again.
        again = self.ticket.outside != 0
        self._give_back()
        self.ask_all(again=again)

    def _step_aside(self) -> None:
        """Withdraw from all queues, and ask until a majority answers; see `_rules.fair_ticket`."""
        left = self.claim
        left.unsent &= self._never_asked
        self.ticket.aside = True
        self._start_over()
        # The new name comes first: the release notifies the waiters of this process, also this
        # one, which may ask at once. Under the old name its request would follow the request
        # to leave, and enter the old name in the queue again.
        self._release(left, keep_place=False)
        # Masters that owe a reply are asked when it comes.
        self.ask_all()

    def _return(self) -> None:
        """Enter all queues again, at a new place."""
        self.ticket.aside = False
        self._start_over()
        self.ask_all(again=True)

    def _start_over(self) -> None:
        """Start again under a member name that no master has seen yet."""
        # The name is new each time: a master that has not executed the request to leave
        # yet still has the old name in its queue, at the old place.
        self._decline_offers()
        queues, former = self.queues, self.member
        self.member, self.place = queues.new_entry(self.key.member_mark)
        queues.waiters[self.member] = self
        queues.leave(former)
        self.claim = self._new_claim(self.claim.counter)
        self._never_asked = (1 << len(self.masters.links)) - 1
        self.ticket.start_over(self.masters.clock())

    def _wait_for_stragglers(self) -> None:
        """
        End the wait when all masters have replied, or after a grace.

        The outcome is certain, but with the late votes the error is more precise. The grace is as
        long as the waiter has existed by then, and at least 1 ms. If the late votes decide whether
        others have the lock, it lasts at least until the masters have had the time that any *wait*
        promises them: else those that are farther away would be blamed.
        """
        asked = [i for i, standing in enumerate(self.ticket.standings) if standing is ASKED]
        if not asked:
            self.wake()
            return
        alarm, masters, began = self._begin_to_wait(), self.masters, self._first_claim.began
        now = masters.clock()
        ends = now + max(now - began, 0.001)
        if may_be_contended(self.votes(), asked):
            ends = max(ends, began + masters.trips.at_least / 1000)
        # Of several calls the first one decides, unless a later one knows the reason before: the
        # grace that is counted from a later call ends later.
        alarm.wake_at = min(alarm.wake_at, ends)

    # Pushes.

    def called(self, master: int, permit: bytes = b"") -> None:
        """
        Called when *master* pushes that it is this waiter's turn there.

        Args:
            permit: The key of the permit to whose queue the master has moved this waiter, or
                in whose queue it was before; empty without permits.

        Ask that master, and all at which others came first: a release is sent to all masters in
        one turn of the loop, so they have it by now, if they work, and this waiter does not
        await the push of each. A master that gets the release later than this request refuses,
        and its push makes this waiter ask again. Such refusals may have made the waiter give
        back its grants. So the masters to which it gave them back are asked now as well, if a
        majority is possible again.
        """
        if self._over:
            return
        if permit and permit != self.key:
            self._offered(master, permit)
            return
        if self.ticket.standings[master] is GRANTED:
            self._give_back()  # the grant was revoked on that master; see revoke.lua
        for number, standing in enumerate(self.ticket.standings):
            # A push that comes before the reply to a request was sent before the master executes
            # that request, because both come over one connection. That reply will be up to date.
            if standing is BEHIND or (number == master and standing is not ASKED):
                self._ask(number)
        self._ask_where_it_gave_back()
        self._arm()

    def _ask_where_it_gave_back(self) -> None:
        for number in range(len(self.ticket.standings)):
            if self.ticket.may_win(number):
                self._ask(number)

    @property
    def waits_in_vain(self) -> bool:
        """Whether a majority has answered that others have its permit, and offered it no other."""
        return not self.offers and self.ticket.count(NEXT, BEHIND) >= self.ticket.needed

    def _offered(self, master: int, permit: bytes) -> None:
        """
        Called when *master* has moved this waiter to the queue of another permit.

        The waiter follows when it can't get its present permit at once. Until that is known it
        has both: it may be about to win, or another master may have moved it first.
        """
        offer = self.key.of.numbered(permit) if isinstance(self.key, Permit) else None
        if offer is not None:  # masters know how many permits this program knows
            self._note_offer(master, offer)
            self._reevaluate()
            self._arm()

    def _note_offer(self, master: int, offer: Permit) -> None:
        before = self.offers.get(master)
        if before and before != offer:  # a master may call it twice for one permit
            self.queues.decline(master, before, self.member)
        self.offers[master] = offer

    def follow(self) -> "FairWaiter":
        """
        Leave this permit, and return a waiter for the one to which most masters have moved this.

        It has the same name and place. The masters that have not moved it enter it there, where it
        comes before all that have waited for less long.
        """
        offered = list(self.offers.values())
        key = max(offered, key=offered.count)
        self.offers = {master: other for master, other in self.offers.items() if other != key}
        self.leave()
        entry = self.member, self.place
        return FairWaiter(self.queues, self.lock, key, patient=self.patient, entry=entry)

    def _decline_offers(self) -> None:
        for master, permit in self.offers.items():
            self.queues.decline(master, permit, self.member)
        self.offers = {}

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
        """
        Called when *master* has a vote again, and may have forgotten this waiter; ask it.

        It may be the one that makes a majority with others, whose grants were given back while
        there was none. Without requests to these, the waiter would need all masters that are
        away, within the time for which grants are fresh, or the next heartbeat.
        """
        if not self._over:
            self.ticket.forget(master)
            self._ask(master)
            self._ask_where_it_gave_back()
            self._arm()

    # The task that waits, and the end.

    async def wait(self, seconds: float) -> None:
        """
        Wait until the outcome may be certain, for at most *seconds*.

        Cancellation:
            The place in the queues is kept; `leave` gives it up.
        """
        masters = self.masters
        self.waiter = woken = masters.loop.create_future()
        self._begin_to_wait().wake_at = masters.clock() + max(seconds, 0.0)
        self._reevaluate()  # by replies that came while the task did not wait
        self._arm()
        await woken

    async def win(self) -> bool:
        """
        Return whether the lock is acquired: still valid by the clock, with its fencing token.

        The waiter has ended when this returns True.

        Cancellation:
            The place in the queues is kept; `leave` gives it up.
        """
        self.waiter = None
        ticket, claim, masters = self.ticket, self.claim, self.masters
        # The clock is read after the task has resumed, however long that took.
        until = ticket.until(self._fresh_for)
        if until <= masters.clock() or masters.closed:
            return False
        if claim.counter is not None:
            # The fencing token belongs to the grants of *claim*. While the masters agree on
            # it, these grants may get too old and be given back, another client may hold the
            # lock meanwhile, and new grants may arrive under the next claim. The token would
            # then be lower than the other client's.
            counters = ticket.counters(masters.clock())
            agreed = len(counters) >= ticket.needed
            if agreed:
                claim.fence = fencing.agreed(counters, ticket.needed)
                agreed = claim.fence > 0 or await agree(masters, claim.counter, claim, counters)
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

    def leave(self) -> None:
        """Release all grants, and leave the queues of all masters."""
        self._end()
        self._release(self.claim, keep_place=False)

    def _end(self) -> None:
        self._over = True
        self._decline_offers()
        self.claim.unsent &= self._never_asked
        for master, standing in enumerate(self.ticket.standings):
            if standing is not GRANTED and self.replies[master] is GRANTS:
                self.replies[master] = NOT_YET  # it was given back, and is not granted again so far
        self.claim.replies = self.replies
        if self._alarm is not None:
            self._alarm.stop()
            self._alarm = None  # it calls this waiter: a cycle of references until then
            for queue in self._local_queues:
                queue.unsubscribe(self)
        self.queues.leave(self.member)

    def check(self, began: float, *, over: bool) -> None:
        """Raise the error with the reason of the failure, if the wait has ended."""
        self.masters.check_open()
        if over or self._move() in (Move.REFUSE, Move.FAIL):
            raise refusal(
                self.lock.resources,
                self.votes(),
                self._view,
                attempts=self._beats,
                began=began,
                now=self.masters.clock(),
                permits=self.lock.options.permits or None,
            )


def _until_next_beat() -> float:
    """Return in how many seconds to send the next heartbeat, a little different each time."""
    return fair_ticket.HEARTBEAT * random.uniform(0.9, 1)  # noqa: S311 - no secret


async def acquire(
    queues: FairQueue,
    lock: LockSpec,
    key: LockKey,
    budget: WaitBudget,
    asking_since: float,
    place: int | None = None,
) -> Claim:
    """
    Wait in the queues of the masters until *lock* is acquired.

    Args:
        key: That of the lock, or the permit to wait for first.

        asking_since: The instant from which the masters have the time for an answer, however
            short the wait is.

        place: The place in the queues; by default one behind all others of this process.

    Raises:
        LockNotAcquiredError: Others held the lock to the end, or too many wait.

        QuorumUnavailableError: Too few masters answered.

        RedlockError: The manager was closed.

    Cancellation:
        No key of the acquisition is left, and no place in a queue.
    """
    masters = queues.masters
    masters.check_open()
    ends = budget.began + budget.wait / 1000 - TIMER_SLACK if budget.wait else math.inf
    observer, look = Observer(masters.outages, lock.resources), masters.master_timeout / 1000
    entry = None if place is None else (queues.new_entry(key.member_mark)[0], place)
    waiter = FairWaiter(queues, lock, key, patient=budget.wait != 0, entry=entry)
    try:
        await masters.ask(waiter, budget.attempt_limit())
        while not await waiter.win():
            # Not after the close: its last releases may have left before this task gives back what
            # it would be granted there.
            if waiter.offers and not waiter.ticket.may_win_soon and not masters.closed:
                waiter = waiter.follow()
                await masters.ask(waiter, budget.attempt_limit())
                continue
            over = masters.clock() >= ends
            unheard = waiter.ticket.count(ASKED) > len(masters.links) - waiter.ticket.needed
            least = asking_since + masters.trips.at_least / 1000 - TIMER_SLACK
            if over and unheard and ends < least:
                # The wait was too short for any reply. Wait for replies as with a wait of 0:
                # masters without time to answer must not be reported as unreachable.
                waiter.patient = False
                ends = least
            else:
                votes = waiter.votes()
                waiter.check(budget.began, over=over or is_final(votes))
                observer.record(votes, waiter.missing)
                if observer.in_outage:
                    queues.gate.shut()  # this one keeps its places; new ones wait for a majority
            await waiter.wait(min(ends - masters.clock(), look))
            look = LOOK_INTERVAL
    except BaseException:
        # A majority may have granted the lock while this task was being cancelled. The release
        # deletes those grants and wakes the next waiter. It follows every request of this
        # waiter on each connection, and the masters execute them in that order.
        waiter.leave()
        raise
    observer.on_majority()
    return waiter.claim
