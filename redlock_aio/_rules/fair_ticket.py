"""
The standing of one waiter in the fair queues, of which each master has its own.

Every waiter has a place: an instant that it gets once and that is the same on all
masters. A master grants only to the first in its queue, and replies to the others
whether they are next. Where the queue is empty, the first request of a waiter is granted
without an entry; `fair_entry` describes what follows from that. This file is one waiter's
side of it:

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
makes progress. Nothing here waits, reads a clock or opens a socket.
"""

import enum
import math

from redlock_aio._rules import timing
from redlock_aio._rules.quorum import majority


class Position(enum.Enum):
    """The standing of a waiter at one master."""

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
        masters: The number of masters.
    """

    __slots__ = (
        "_asked", "_counters", "_done", "_helped", "_numbers", "_sent", "needed", "standings",
    )  # fmt: skip

    def __init__(self, masters: int) -> None:
        self.standings = [UNASKED] * masters
        self.needed = majority(masters)
        self._numbers = [0] * masters
        self._asked = [0.0] * masters  # the instant of the last question
        self._sent = [0.0] * masters  # the instant of the last granted question
        self._done = [0.0] * masters  # the latest instant of its execution
        self._counters = [0] * masters  # the counter in that grant
        self._helped = [-math.inf] * masters  # that of the last one with a HELPFUL answer

    def __repr__(self) -> str:
        return f"<Ticket {', '.join(standing.name for standing in self.standings)}>"

    def ask(self, master: int, now: float) -> int:
        """Record that a question is sent to *master*; return its number."""
        if self.standings[master] is not GRANTED:
            self.standings[master] = ASKED
        self._numbers[master] += 1
        self._asked[master] = now
        return self._numbers[master]

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
        if standing in HELPFUL:
            self._helped[master] = self._asked[master]
        if standing is GRANTED:
            self._sent[master] = self._asked[master]
            self._done[master] = done
            self._counters[master] = counter
        return True

    def asked_at(self, master: int) -> float:
        """Return the instant at which the last question to *master* was sent."""
        return self._asked[master]

    def counters(self, now: float, ttl: int, *, factor: float) -> list[int]:
        """Return the counters of the masters whose grants are still valid."""
        grants = zip(self._counters, self._sent, self.standings, strict=True)
        return [
            counter
            for counter, sent, standing in grants
            if standing is GRANTED and now < timing.deadline(sent, ttl, factor=factor)
        ]

    def until(self, ttl: int, *, factor: float, within: float = math.inf) -> float:
        """
        Return the end of the validity that a majority has granted; 0 if none has.

        Args:
            within: The seconds within which the masters must have granted the lock, see `FRESH`.
        """
        if self.count(GRANTED) < self.needed:
            return 0.0
        grants = [
            (sent, done)
            for sent, done, standing in zip(self._sent, self._done, self.standings, strict=True)
            if standing is GRANTED
        ]
        begins = [
            first
            for first, _ in grants
            if sum(sent >= first and done <= first + within for sent, done in grants) >= self.needed
        ]
        return timing.deadline(max(begins), ttl, factor=factor) if begins else 0.0

    def stale_at(self, within: float) -> float:
        """
        Return the instant at which to give back all (possible) grants; infinite if there are none.

        They are kept while an answer is outstanding that may complete a majority.

        Args:
            within: The seconds within which a majority must grant the lock, see `FRESH`.
        """
        if ASKED in self.standings:
            return math.inf
        oldest = math.inf
        for sent, asked, standing in zip(self._sent, self._asked, self.standings, strict=True):
            if standing in (GRANTED, SILENT):
                oldest = min(oldest, sent if standing is GRANTED else asked)
        return oldest + within

    @property
    def reached(self) -> float:
        """The last instant since which a majority got questions that had HELPFUL answers."""
        return sorted(self._helped, reverse=True)[self.needed - 1]

    def count(self, *standings: Position) -> int:
        """Return the number of masters at which the waiter has one of *standings*."""
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
        """Whether an acquisition that does not wait has failed."""
        return self.count(*AGAINST, NEXT, SILENT) > len(self.standings) - self.needed

    @property
    def refused(self) -> bool:
        """Whether so many queues are full that waiting can't lead to a majority."""
        return self.count(FULL) > len(self.standings) - self.needed

    @property
    def must_yield(self) -> bool:
        """Whether to give back grants that can't become a majority: other waiters may need them."""
        return self.hopeless and (GRANTED in self.standings or SILENT in self.standings)

    def give_back(self) -> None:
        """Drop all grants, and void the answers to questions that are underway."""
        for master, standing in enumerate(self.standings):
            if standing in (GRANTED, ASKED, SILENT, FAILED):
                self.standings[master] = UNASKED
            self._numbers[master] += 1

    def start_over(self) -> None:
        """Reset all standings: the waiter has a new name, which is in no queue yet."""
        for master in range(len(self.standings)):
            self.forget(master)

    def forget(self, master: int) -> None:
        """Reset the standing at *master*, which may have lost it, and void its answers underway."""
        self.standings[master] = UNASKED
        self._numbers[master] += 1
