"""
The questions of one fair waiter to the masters, and their answers.

Each master is asked by itself, one question at a time. A question enters the
waiter in the master's queue or renews its place there, and is granted the lock if
it is the waiter's turn. What follows from all answers together is decided in `fair_waiter`.
"""

import abc
import functools
import math

from redlock_aio._engine.attempt import EXPIRY_SLACK, TOO_LATE
from redlock_aio._engine.wait.fair_claim import MEANS, Claim, Wanted
from redlock_aio._engine.wait.fair_queue import Queues
from redlock_aio._protocol import commands, replies
from redlock_aio._protocol.request import Request, Trust
from redlock_aio._rules import fair_ticket
from redlock_aio._rules.blockers import View
from redlock_aio._rules.fair_ticket import ASIDE, ASKED, FAILED, FULL, NEXT, SILENT, Ticket
from redlock_aio._rules.quorum import NOT_YET

MOST_REPEATS = 3
"""How often in a row a question is repeated to a master without the scripts, or far ahead."""


class Inquiry(abc.ABC):
    """
    The questions of one waiter to all masters.

    Args:
        queues: The queues of its process.

        wanted: The lock and what it is asked for with.

        patient: Whether it stays when it can't have the lock at once.
    """

    def __init__(self, queues: Queues, wanted: Wanted, *, patient: bool) -> None:
        masters = len(queues.fleet.links)
        self.queues = queues
        self.fleet = queues.fleet
        self.member, self.place = b"", 0
        queues.enter(self)
        self.ticket = Ticket(masters)
        self.claim = Claim(self.fleet, wanted, self.member)
        self.patient = patient
        """Whether it stays when it can't have the lock at once."""
        self.replies: list[object] = [NOT_YET] * masters
        """The last reply of each master, as votes are made of it."""
        self._wanted = wanted
        self._aside = False
        """Whether it stands in no queue, and only asks whether a majority answers again."""
        self._never_asked = (1 << masters) - 1
        """A bit for each master that has never been asked under the present name."""
        self._repeats = [0] * masters
        self._view = View(masters)
        self._due = [math.inf] * masters
        """When to ask each master again, or to count it as silent."""
        self._unanswered = [0] * masters
        """How many questions each master has not answered yet, also if no answer counts."""
        self._received = [0] * masters
        """How many chunks each connection had received when its master was asked."""

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.ticket!r}>"

    @abc.abstractmethod
    def on_answer(self, number: int, sent: float, master: int, reply: object) -> None:
        """Called with the answer of *master* to question *number*, which left at *sent*."""

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
    def ring(self) -> None:
        """Wake the task, which then checks whether it has won."""

    @property
    def _fresh_for(self) -> float:
        """Seconds after its question for which a grant can be part of a majority."""
        return fair_ticket.FRESH + self.fleet.master_timeout / 1000

    def _ask(self, master: int) -> None:
        self.fleet.flush()  # behind all that was asked before
        now = self.fleet.clock()
        number = self.ticket.ask(master, now)
        most = 0 if self._aside else self._wanted.most
        payload = self.claim.question(master, now, self._counters(), place=self.place, most=most)
        link = self.fleet.links[master]
        self._due[master] = now + self.fleet.master_timeout / 1000
        self._received[master] = link.received
        on_answer = functools.partial(self.on_answer, number, now)
        silence = link.send(payload, (Request(payload, on_answer, trust=Trust.NONE),))
        if silence is not None:
            self._apply(master, number, now, silence)
            return
        self._unanswered[master] += 1
        if not self._aside:
            self.claim.unsent &= ~(1 << master)
            self._never_asked &= ~(1 << master)

    def _await_longer(self, master: int, now: float) -> None:
        """
        Count a master as silent if it has answered nothing at all for a master time-out.

        If it has answered earlier requests meanwhile, the delay is in this program: the
        answer waits to be read. Counted as silence, it would make the waiter give back its
        other grants, and wait for the next heartbeat (seen with 300 busy tasks). After
        `TOO_LATE` the master refuses the question in any case.
        """
        link = self.fleet.links[master]
        silence = link.overdue()
        if self.ticket.standings[master] is not ASKED:
            return
        if (
            link.received != self._received[master]
            and now < self.ticket.asked_at(master) + TOO_LATE
        ):
            self._received[master] = link.received
            self._due[master] = now + self.fleet.master_timeout / 1000
        else:
            self.ticket.standings[master] = SILENT
            self.replies[master] = silence

    def _apply(self, master: int, number: int, sent: float, reply: object) -> None:
        """Apply the answer of *master* to question *number*, which left at *sent*."""
        answer = replies.queued(reply)
        standing = FAILED if answer is None else answer.standing
        counter, done = 0, 0.0
        if answer is not None:
            self.fleet.clocks.learn(master, answer.now, sent, self.fleet.clock())
            counter, done = answer.counter, self.fleet.clocks.latest(master, answer.now)
        if self._aside and standing is FULL:  # as with 0 places any queue is
            standing = ASIDE
        if not self.ticket.answered(master, number, standing, counter, done):
            # The answer is void: since the question we have given back all grants, and the
            # release follows the question on the same connection. The master was slow and
            # answers now, so it is asked at once: the next heartbeat may be a second away.
            if self.patient and self.ticket.may_win(master):
                self._ask(master)
            return
        self._due[master] = math.inf
        if answer is None:
            self.replies[master] = silence = replies.read(reply)
            if "NOSCRIPT" in silence.detail and self._repeats[master] < MOST_REPEATS:
                self._repeats[master] += 1
                self._ask(master)  # behind the scripts, which are on their way
            return
        self.replies[master] = MEANS[standing]
        if standing is FAILED and self._repeats[master] < MOST_REPEATS:
            self._repeats[master] += 1
            self.claim.propose_anew()
            self._ask(master)  # with the time of the master, from this answer
            return
        self._repeats[master] = 0
        if answer.holder is None:
            self._view.may_be_free(master)
            return
        ends = self.fleet.clock() + answer.left
        self._view.held(master, answer.holder, ends)
        if standing is NEXT:
            self._watch(master, ends + EXPIRY_SLACK)

    def _watch(self, master: int, ends: float) -> None:
        """
        Make *master* push the next change of the key, and ask again when its ttl is over.

        A holder that knows nothing of the queue wakes nobody by its release. The key may
        have been released between the answer and this request: then no push comes, but
        the reply to this request shows that the key is free.
        """
        self._due[master] = ends
        caching = Request(commands.CACHING)
        look = Request(self.claim.key.look(), self._on_look)
        self.fleet.flush()
        self.fleet.links[master].send(caching.payload + look.payload, (caching, look))

    def _on_look(self, master: int, reply: object) -> None:
        if self.claim.key.is_free(reply):
            self.changed(master)

    def _give_back(self) -> None:
        """
        Give back what masters have granted, and stay in the queues.

        First the ticket voids all questions that are underway, by new numbers; then the
        release follows them on each connection. A grant that is still on its way is taken
        back by that release, and must not count when it arrives.
        """
        given, self.claim = self.claim, self.claim.with_new_token(self.member)
        self.ticket.give_back()
        given.send_release(self._wanted.ttl, stay=True)

    def _start_over(self) -> None:
        """Start anew under a name with which no master has been asked yet."""
        # A new name each time: a master that we have left, but that has not executed that
        # yet, still has the old name in its queue, at the old place.
        self.queues.enter(self)
        self.claim = self.claim.with_new_token(self.member)
        self._never_asked = (1 << len(self.fleet.links)) - 1
        self.ticket.start_over()

    def _until(self) -> float:
        """Return until when a majority has granted the lock, 0 if none has."""
        wanted = self._wanted
        return self.ticket.until(wanted.ttl, factor=wanted.factor, within=self._fresh_for)

    def _counters(self) -> list[int]:
        """Return the counters of the masters whose grants are still valid."""
        wanted = self._wanted
        return self.ticket.counters(self.fleet.clock(), wanted.ttl, factor=wanted.factor)
