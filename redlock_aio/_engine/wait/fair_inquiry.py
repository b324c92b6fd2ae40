"""
The requests of one fair waiter to the masters, and their replies.

Each master gets its own requests, one at a time. A request enters the waiter in the
master's queue or renews its place there, and acquires the lock on that master if it is
the waiter's turn. `fair_waiter` decides what follows from the replies of all masters.
"""

import abc
import functools
import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

from redlock_aio._engine.attempt import EXPIRY_SLACK, TOO_LATE
from redlock_aio._engine.wait.fair_claim import MEANS, FairClaim
from redlock_aio._engine.wait.fair_queue import Callbacks, FairQueue
from redlock_aio._protocol import commands, replies
from redlock_aio._protocol.request import QuarantineRule, Request
from redlock_aio._rules import fair_ticket
from redlock_aio._rules.blockers import Blockers
from redlock_aio._rules.fair_ticket import (
    ASIDE,
    ASKED,
    FAILED,
    FULL,
    GRANTED,
    NEXT,
    SILENT,
    Ticket,
)
from redlock_aio._rules.quorum import NOT_YET

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


class Inquiry(abc.ABC):
    """
    The requests of one waiter to all masters.

    Args:
        queues: The fair queues of all masters, shared by the waiters of this process.

        entry: The first request, which all masters have been sent.

        patient: Whether it waits if the lock can't be acquired at once.
    """

    def __init__(self, queues: FairQueue, entry: Entry, *, patient: bool) -> None:
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

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.ticket!r}>"

    @abc.abstractmethod
    def on_answer(self, number: int, sent: float, master: int, reply: object) -> None:
        """Called with the reply of *master* to request *number*, which was sent at *sent*."""

    @abc.abstractmethod
    def changed(self, master: int) -> None:
        """Called when others have changed the key on *master*."""

    @abc.abstractmethod
    def called(self, master: int) -> None:
        """Called when *master* pushes that it is this waiter's turn there."""

    @abc.abstractmethod
    def forgotten(self, master: int) -> None:
        """Called when *master* may have forgotten this waiter."""

    @abc.abstractmethod
    def on_wakeup(self) -> None:
        """Wake the waiting task, which then checks whether the lock is acquired."""

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
