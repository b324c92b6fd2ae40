"""
What one fair waiter asks the masters, and what they have answered.

Each master is asked by itself, one question at a time. A question enters the
waiter in the master's queue, says that it lives, and is granted the lock if it is
its turn. What follows from all answers together is decided in `waiter`.
"""

import abc
import math

from redlock_aio._engine.attempts import EXPIRY_SLACK, TOO_LATE
from redlock_aio._engine.claim import MEANS, Claim, Glance, Question
from redlock_aio._engine.queues import Queues
from redlock_aio._rules import fairness, protocol
from redlock_aio._rules.fairness import ASIDE, ASKED, FAILED, FULL, NEXT, SILENT, Ticket
from redlock_aio._rules.fencing import Counter
from redlock_aio._rules.keys import Key, Keys
from redlock_aio._rules.quorum import NOT_YET
from redlock_aio._rules.view import View

AGAIN = 3
"""How often in a row a master is asked again that has forgotten the scripts, or is ahead."""


class Inquiry(abc.ABC):
    """
    The questions of one waiter to all masters.

    Args:
        queues: The queues of its process.

        key: The lock.

        ttl: In milliseconds.

        factor: The drift factor.

        stamp: What follows the token in the value.

        most: How many may wait.

        counter: The one from which it is to have a fencing token, if any.

        patient: Whether it stays when it can't have the lock at once.
    """

    def __init__(
        self,
        queues: Queues,
        key: Key | Keys,
        ttl: int,
        factor: float,
        stamp: bytes,
        most: int,
        counter: Counter | None,
        *,
        patient: bool,
    ) -> None:
        masters = len(queues.fleet.links)
        self.queues = queues
        self.fleet = queues.fleet
        self.member, self.place = b"", 0
        queues.enter(self)
        self.ticket = Ticket(masters)
        self.claim = Claim(self.fleet, key, self.member, ttl, stamp, counter)
        self._ttl = ttl
        self._factor = factor
        self._most = most
        self._counter = counter
        self._patient = patient
        self._aside = False
        """Whether it stands in no queue, and only asks whether a majority answers again."""
        self._unknown = (1 << masters) - 1
        """A bit for each master that has never been asked under the present name."""
        self._said: list[object] = [NOT_YET] * masters
        self._again = [0] * masters
        self._view = View(masters)
        self._due = [math.inf] * masters
        self._unanswered = [0] * masters
        """How many questions each master has not answered yet, also if no answer counts."""
        self._received = [0] * masters
        """How much each connection had received when its master was asked."""

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.ticket!r}>"

    @abc.abstractmethod
    def answered(self, master: int, number: int, sent: float, reply: object) -> None:
        """Called with the answer to question *number*."""

    @abc.abstractmethod
    def changed(self, master: int) -> None:
        """Called when others have changed the lock on *master*."""

    @abc.abstractmethod
    def called(self, master: int) -> None:
        """Called when *master* says that it is this waiter's turn there."""

    @abc.abstractmethod
    def forgotten(self, master: int) -> None:
        """Called when *master* may have forgotten this waiter."""

    @abc.abstractmethod
    def ring(self) -> None:
        """Wake the task, which then looks whether it has won."""

    @property
    def _fresh_for(self) -> float:
        """For how many seconds after its question left a grant can be part of a majority."""
        return fairness.FRESH + self.fleet.master_timeout / 1000

    def _ask(self, master: int) -> None:
        self.fleet.flush()  # behind all that was asked before
        now = self.fleet.clock()
        number = self.ticket.ask(master, now)
        most = 0 if self._aside else self._most
        payload = self.claim.question(master, now, self._counters(), place=self.place, most=most)
        link = self.fleet.links[master]
        self._due[master] = now + self.fleet.master_timeout / 1000
        self._received[master] = link.received
        silence = link.send(payload, (Question(self, payload, number, now),))
        if silence is not None:
            self._note(master, number, now, silence)
            return
        self._unanswered[master] += 1
        if not self._aside:
            self.claim.unsent &= ~(1 << master)
            self._unknown &= ~(1 << master)

    def _await_longer(self, master: int, now: float) -> None:
        """
        Count a master as silent if it has answered nothing at all for a master time-out.

        If it has answered earlier questions meanwhile, the delay is in this program: the
        answer waits to be read. When that counted as silence, and grants were given back
        for it, some of 300 busy tasks waited for the next heartbeat. After `TOO_LATE`
        the master refuses the question in any case.
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
            self._said[master] = silence

    def _note(self, master: int, number: int, sent: float, reply: object) -> None:
        said = protocol.queued(reply)
        standing = FAILED if said is None else said.standing
        counter, done = 0, 0.0
        if said is not None:
            self.fleet.clocks.learn(master, said.now, sent, self.fleet.clock())
            counter, done = said.counter, self.fleet.clocks.latest(master, said.now)
        if self._aside and standing is FULL:  # as with 0 places any queue is
            standing = ASIDE
        if not self.ticket.answered(master, number, standing, counter, done):
            # It is void, for we have given back what it may have granted. The master
            # was slow, and answers now: the next heartbeat may be a second away.
            if self._patient and self.ticket.may_win(master):
                self._ask(master)
            return
        self._due[master] = math.inf
        if said is None:
            self._said[master] = silence = protocol.read(reply)
            if "NOSCRIPT" in silence.detail and self._again[master] < AGAIN:
                self._again[master] += 1
                self._ask(master)  # behind the scripts, which are on their way
            return
        self._said[master] = MEANS[standing]
        if standing is FAILED and self._again[master] < AGAIN:
            self._again[master] += 1
            self.claim.propose_anew()
            self._ask(master)  # by the time that it has told
            return
        self._again[master] = 0
        if said.holder is None:
            self._view.may_be_free(master)
            return
        ends = self.fleet.clock() + said.left
        self._view.held(master, said.holder, ends)
        if standing is NEXT:
            self._watch(master, ends + EXPIRY_SLACK)

    def _watch(self, master: int, ends: float) -> None:
        """Subscribe to the end of the lock on *master*, and ask again when its ttl is over."""
        self._due[master] = ends
        key = self.claim.key
        glance = Glance(self, key.look(), key)
        caching = Glance(self, protocol.CACHING, key)  # any reply will do
        self.fleet.flush()
        self.fleet.links[master].send(caching.payload + glance.payload, (caching, glance))

    def _give_back(self) -> None:
        """Give back what masters have granted, and stay in the queues."""
        given, self.claim = self.claim, self.claim.anew(self.member)
        self.ticket.give_back()
        given.let_go(self._ttl, stay=True)

    def _start_over(self) -> None:
        """Start anew under a name with which no master has been asked yet."""
        # A new name each time: a master that does not know yet that we have left still
        # has the old name in its queue, at the old place.
        self.queues.enter(self)
        self.claim = self.claim.anew(self.member)
        self._unknown = (1 << len(self.fleet.links)) - 1
        self.ticket.start_over()

    def _until(self) -> float:
        """Return until when a majority has granted the lock, 0 if none has."""
        return self.ticket.until(self._ttl, factor=self._factor, within=self._fresh_for)

    def _counters(self) -> list[int]:
        return self.ticket.counters(self.fleet.clock(), self._ttl, factor=self._factor)
