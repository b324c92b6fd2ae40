"""
The standing of one waiter in the fair queues, of which each master has its own.

Every waiter has a place: an instant that it gets once and that is the same on all
masters. A master grants only to the first in its queue, and replies to the others
whether they are next. Where the queue is empty, the first request of a waiter is granted
without an entry, and a majority of such grants is a win that touched no queue. Grants
without an entry can't be kept by a waiter: of two waiters with two of four masters each,
both would be the first in the queues of the others, and neither would give way. This file
is one waiter's side of it:

    UNASKED ─► ASKED ─┬─► GRANTED    the master keeps the lock for this waiter
                      ├─► NEXT       another has the lock, and this waiter is next
                      ├─► BEHIND     others come before this waiter
                      ├─► SILENT     no answer in time: it may be a grant
                      └─► FAILED     an error reply, or the question never left

- A majority of grants is a win, but only for as long as the grants last. Their ttl
  counts from the instants at which the granted questions were sent.
- A waiter that can't win a majority, because others come first on too many masters,
  must give back its grants: the others may be waiting for just these. It keeps
  its place.
- A waiter that is woken by one master is next on the others as well, if no other waiter
  comes before it there. It asks them, and their old answers are no reason to give back.
- A question that was sent before a give-back must not count when it is answered after
  it: the master has taken that grant back. Therefore every question has a number.
- Grants that can't become part of a majority any more (see `FRESH`) are given back too,
  and so are possible grants of a silent master. A waiter that is cut off from a
  majority would keep them for as long as it waits.
- A waiter that no majority has answered for as long as a registration lives leaves
  all queues: it can't win, and would delay others where it is the first. It continues
  to ask without a registration (its standing is then ASIDE), and when a majority
  answers, it enters the queues again at a new place. At the old place it would delay
  the same waiters again whenever its links come and go.

The first waiter in all queues keeps its place and continues to ask, so one waiter always
makes progress. `Ticket.move` is the decision that follows from all this. Nothing here waits,
reads a clock or opens a socket.
"""

import enum
import math

from redlock_aio._rules.quorum import majority


class Position(enum.Enum):
    UNASKED = "not asked yet"
    ASKED = "asked"
    GRANTED = "granted"
    NEXT = "held, and this waiter is next"
    BEHIND = "others come first"
    FULL = "its queue is full"
    FAILED = "no answer that helps"
    SILENT = "no answer in time"
    ASIDE = "it answers, and has no place for this waiter"


UNASKED, ASKED, GRANTED, NEXT = Position.UNASKED, Position.ASKED, Position.GRANTED, Position.NEXT
BEHIND = Position.BEHIND
FULL, FAILED, SILENT = Position.FULL, Position.FAILED, Position.SILENT
ASIDE = Position.ASIDE

AGAINST = (BEHIND, FULL, FAILED)
HELPFUL = (GRANTED, NEXT, BEHIND)
"""The standings at a master that grants the lock to this waiter, now or in its turn."""


class Move(enum.Enum):
    """What a waiter does next; see `Ticket.move`."""

    WAIT = "nothing, until a reply, a push or the timer"
    WIN = "wake the task: a majority has granted the lock"
    REFUSE = "wake the task: so many queues are full that waiting can't help"
    FAIL = "wake the task when the stragglers have had their time: it does not wait for others"
    ASK_ANEW = "give back all grants, and ask all masters for new ones"
    GIVE_BACK = "give back all grants"
    YIELD = "give back all grants, and wait for the turn"
    YIELD_AND_ENTER = "the same, and enter the queues where the lock was granted without an entry"
    QUEUE = "wait for the turn"
    STEP_ASIDE = "leave all queues until a majority answers"
    RETURN = "enter all queues again, at a new place"


LIVES = 3_000
"""The ms for which a waiter counts as alive after its last request."""

HEARTBEAT = LIVES / 3000
"""Seconds between two requests of a waiter that gets no push."""

UNREACHED = LIVES / 1000 - HEARTBEAT
"""
Seconds from the first request that no majority has answered until a waiter leaves the queues.

The request before it was answered, so this is `LIVES` after the last answered request.
"""

FRESH = 0.1
"""
Seconds besides a master timeout within which a majority must have granted the lock: grants
from before and after a forced release must not be added up. The time counts from when the
first of their questions was sent to when the last one was executed, by that master's clock,
so the delay of an answer after that does not matter. Partial grants are given back after it.
"""


class Ticket:
    """
    The standings of one waiter at all *masters*.

    Args:
        validity: The seconds from a question for which its grant is valid.
    """

    __slots__ = (
        "_asked", "_counters", "_done", "_helped", "_numbers", "_sent", "_validity", "aside",
        "needed", "outside", "standings", "unreached_since",
    )  # fmt: skip

    def __init__(self, masters: int, validity: float) -> None:
        self.standings = [UNASKED] * masters
        self.needed = majority(masters)
        self.aside = False
        """Whether the waiter is in no queue, and only checks whether a majority answers again."""
        self.outside = 0
        """A bit for each master that may have granted the lock without an entry in its queue."""
        self.unreached_since = math.inf
        """The first request since the last one that a majority has answered."""
        self._validity = validity
        self._numbers = [0] * masters
        self._asked = [0.0] * masters  # the instant of the last question
        self._sent = [0.0] * masters  # the instant of the last granted question
        self._done = [0.0] * masters  # the latest instant of its execution
        self._counters = [0] * masters  # the counter in that grant
        self._helped = [-math.inf] * masters  # that of the last one with a HELPFUL answer

    def __repr__(self) -> str:
        return f"<Ticket {', '.join(standing.name for standing in self.standings)}>"

    # The decision.

    def move(  # noqa: C901, PLR0911 - an ordered list of rules
        self, now: float, *, patient: bool, within: float
    ) -> Move:
        """
        Return what the waiter does next: the first of these rules that applies.

        Args:
            patient: Whether it waits if the lock can't be acquired at once.

            within: The seconds within which the masters must have granted the lock, see `FRESH`.
        """
        standings = self.standings
        if standings.count(GRANTED) >= self.needed:
            until = self.until(within)
            # Before all else: a waiter that gave back a majority would only delay everybody.
            if until > now:
                return Move.WIN
            # The grants are from before and after something that may have been a forced
            # release. Kept until a heartbeat, they would block the others for nothing.
            if not until:
                return Move.ASK_ANEW
        lost = self.lost
        # Where too many queues are full, no wake-up comes: it would wait for ever.
        if lost and self.refused:
            return Move.REFUSE
        # It has no grants and no place. In the queues again before a majority answers, it would
        # delay the waiters behind it, and win nothing.
        if self.aside:
            return Move.RETURN if standings.count(ASIDE) >= self.needed else Move.WAIT
        # Before any grant is given back: the end of the wait gives back all of them at once.
        if not patient and (lost or ASKED not in standings):
            return Move.FAIL
        # The first in a queue that no majority can hear would hold up all behind it for ever.
        if now >= self.leaves_at:
            return Move.STEP_ASIDE
        stale = now >= self.stale_at(within)
        if lost:
            # Two waiters with such grants would be first in each other's queues, and both would
            # keep what the other one needs.
            if self.outside and any(
                standing is GRANTED and self.outside >> master & 1
                for master, standing in enumerate(standings)
            ):
                return Move.YIELD_AND_ENTER
            # Two waiters with the grants of two of four masters each would wait for each other.
            if stale or self.must_yield:
                return Move.YIELD
            return Move.QUEUE
        # A waiter that is cut off would keep (possible) grants of a minority as long as it waits.
        return Move.GIVE_BACK if stale else Move.WAIT

    def moves_at(self, within: float) -> float:
        """Return the instant at which `move` changes without a reply; infinite if it does not."""
        # A waiter outside the queues has no grants to give back, and a majority is not given
        # back for its age. An instant at which nothing is to be done would make the timer fire
        # again and again.
        if self.aside or self.until(within):
            return self.leaves_at
        return min(self.leaves_at, self.stale_at(within))

    # Questions and answers.

    def ask(self, master: int, now: float) -> int:
        """Record that a question is sent to *master*; return its number."""
        if self.standings[master] is not GRANTED:
            self.standings[master] = ASKED
        self._numbers[master] += 1
        self._asked[master] = now
        return self._numbers[master]

    def ask_first(self, now: float) -> None:
        """Record that the first question, whose number is 1, is sent to all masters."""
        masters = len(self.standings)
        self.standings = [ASKED] * masters
        self._numbers = [1] * masters
        self._asked = [now] * masters
        self.outside = (1 << masters) - 1
        self.unreached_since = now

    def heartbeat(self, now: float) -> None:
        if self.reached >= self.unreached_since:
            self.unreached_since = now

    def on_reply(
        self,
        master: int,
        number: int,
        standing: Position,
        counter: int = 0,
        done: float = -math.inf,
    ) -> bool:
        """
        Count the answer to question *number*; return whether it still counts.

        Args:
            counter: The value of the master's counter, if it grants the lock with one.

            done: The latest instant at which the master can have executed the question.
        """
        if number != self._numbers[master]:
            return False
        self.standings[master] = standing
        if standing is GRANTED:
            self._helped[master] = self._sent[master] = self._asked[master]
            self._done[master] = done
            self._counters[master] = counter
        elif standing in HELPFUL:
            self._helped[master] = self._asked[master]
        return True

    def asked_at(self, master: int) -> float:
        return self._asked[master]

    # Grants.

    def counters(self, now: float) -> list[int]:
        grants = zip(self._counters, self._sent, self.standings, strict=True)
        return [
            counter
            for counter, sent, standing in grants
            if standing is GRANTED and now < sent + self._validity
        ]

    def until(self, within: float = math.inf) -> float:
        """Return the end of the validity that a majority has granted *within*; 0 if none has."""
        if self.standings.count(GRANTED) < self.needed:
            return 0.0
        for first in sorted(set(self._sent), reverse=True):  # most often the first one suffices
            needed = self.needed
            for sent, done, standing in zip(self._sent, self._done, self.standings, strict=True):
                if standing is GRANTED and sent >= first and done <= first + within:
                    needed -= 1
                    if not needed:
                        return first + self._validity
        return 0.0

    def stale_at(self, within: float) -> float:
        """
        Return the instant at which to give back all (possible) grants; infinite if there are none.

        They are kept while an answer is outstanding that may complete a majority.
        """
        if ASKED in self.standings:
            return math.inf
        oldest = math.inf
        for sent, asked, standing in zip(self._sent, self._asked, self.standings, strict=True):
            if standing in (GRANTED, SILENT):
                oldest = min(oldest, sent if standing is GRANTED else asked)
        return oldest + within

    # Facts about the standings.

    @property
    def reached(self) -> float:
        """The last instant since which a majority got questions that had HELPFUL answers."""
        return sorted(self._helped, reverse=True)[self.needed - 1]

    @property
    def leaves_at(self) -> float:
        """The instant at which to leave the queues if no majority has answered by then."""
        if self.aside or self.reached >= self.unreached_since:
            return math.inf
        return self.unreached_since + UNREACHED

    def count(self, *standings: Position) -> int:
        return sum(map(self.standings.count, standings))

    def may_win(self, master: int) -> bool:
        """Return whether to ask *master* again after a give-back: a majority is still possible."""
        return self.standings[master] is UNASKED and not self.hopeless

    @property
    def hopeless(self) -> bool:
        """Whether the current standings exclude a majority."""
        return self.count(*AGAINST) > len(self.standings) - self.needed

    @property
    def lost(self) -> bool:
        """Whether no majority can grant the lock at once."""
        return self.count(*AGAINST, NEXT, SILENT) > len(self.standings) - self.needed

    @property
    def may_win_soon(self) -> bool:
        """Whether a majority has granted the lock, or has to answer whether it does."""
        return self.count(GRANTED, ASKED) >= self.needed

    @property
    def refused(self) -> bool:
        """Whether so many queues are full that waiting can't lead to a majority."""
        return self.count(FULL) > len(self.standings) - self.needed

    @property
    def must_yield(self) -> bool:
        """Whether to give back grants that can't become a majority: other waiters may need them."""
        return self.hopeless and (GRANTED in self.standings or SILENT in self.standings)

    # What ends grants.

    def give_back(self) -> None:
        """Drop all grants, and void the answers to questions that are underway."""
        self.outside = 0
        for master, standing in enumerate(self.standings):
            if standing in (GRANTED, ASKED, SILENT, FAILED):
                self.standings[master] = UNASKED
            self._numbers[master] += 1

    def start_over(self, now: float) -> None:
        """Reset all standings: the waiter has a new name, which is in no queue yet."""
        self.outside = 0
        self.unreached_since = now
        for master in range(len(self.standings)):
            self.forget(master)

    def forget(self, master: int) -> None:
        """Reset the standing at *master*, which may have lost it, and void its answers underway."""
        self.standings[master] = UNASKED
        self._numbers[master] += 1


MOST_REPEATS = 3
"""The most repetitions in a row after NOSCRIPT or a refusal by a master's clock."""


class Awaited:
    """
    The replies that one master owes to a waiter, from its first request on.

    Args:
        due: The instant at which the waiter gives up the first reply.

        received: The number of chunks that the connection has received by now.

    Attributes:
        due: The instant at which to ask the master again, or to count it as silent; infinite if
            there is nothing to do without a reply or a push.

        requests: The number of unanswered requests, including those that are void by now.

        repeats: The number of repetitions in a row.
    """

    __slots__ = ("_received", "due", "repeats", "requests")

    def __init__(self, due: float, received: int) -> None:
        self.due = due
        self.requests = 1
        self._received = received
        self.repeats = 0

    def __repr__(self) -> str:
        return f"<Awaited, {self.requests} requests, due at {self.due}>"

    def ask(self, due: float, received: int) -> None:
        """Record one more request, whose reply is awaited until *due*."""
        self.due = due
        self.requests += 1
        self._received = received

    def prolong(self, due: float, received: int) -> bool:
        """Await the reply until *due* if the connection is alive; return whether it is."""
        if received == self._received:  # nothing has arrived since the wait began
            return False
        self.due = due
        self._received = received
        return True

    def settle(self) -> None:
        """Record a reply that needs no repetition."""
        self.due = math.inf
        self.repeats = 0

    def may_repeat(self) -> bool:
        """Count one more repetition in a row; return False if there were enough of them."""
        if self.repeats == MOST_REPEATS:
            return False
        self.repeats += 1
        return True
