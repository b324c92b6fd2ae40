"""
Whose turn is it, when each master has a queue of its own?

Every waiter has a place, a moment that it is given once and that is the same on
all masters. A master grants only to the first in its queue, and tells the others
whether they are next. This file is one waiter's side of it:

    UNASKED ─► ASKED ─┬─► GRANTED    the master keeps the lock for us
                      ├─► NEXT       somebody has it, and we come after
                      ├─► BEHIND     others come before us
                      ├─► SILENT     no answer in time: it may be a grant
                      └─► FAILED     an answer that does not help, or the question never left

- A majority that has granted is a win, but only for as long as the grants last,
  which counts from when the questions left that were answered.
- Whoever can't have a majority, because too many masters have others before us,
  must give back what it has: the others may be waiting for just that. It keeps
  its place.
- Whoever is called by one master will be called by the others, if nobody else
  comes before it there. Until then their old answers are no reason to give back.
- What was asked before giving back must not count when it is answered after it:
  the master has taken that grant back. So every question has a number.
- Grants that no majority can be made of any more (see `FRESH`) are given back too,
  and so is what a silent master may have granted. A waiter that is cut off from a
  majority would keep them for as long as it waits.
- A waiter that no majority has answered for as long as a registration lives leaves
  all queues: it can't win, and would hold up others where it is the first. It goes on
  asking without a registration (its standing is then ASIDE), and when a majority
  answers, it enters the queues again at a new place. At the old place it would hold
  up the same others again whenever its links come and go.

The first in all queues keeps its place there and asks on, so there is always somebody
who gets on. Nothing here waits, reads a clock or opens a socket.
"""

import enum
import math

from redlock_aio._rules import timing
from redlock_aio._rules.quorum import majority


class Standing(enum.Enum):
    """How a waiter stands with one master."""

    UNASKED = "not asked yet"
    ASKED = "asked"
    GRANTED = "granted"
    NEXT = "held, and we are next"
    BEHIND = "others come first"
    AWAITED = "others came first, and we are called elsewhere"
    FULL = "its queue is full"
    FAILED = "no answer that helps"
    SILENT = "no answer in time"
    ASIDE = "it answers, and we stand in no queue"


UNASKED, ASKED, GRANTED, NEXT = Standing.UNASKED, Standing.ASKED, Standing.GRANTED, Standing.NEXT
BEHIND, AWAITED = Standing.BEHIND, Standing.AWAITED
FULL, FAILED, SILENT = Standing.FULL, Standing.FAILED, Standing.SILENT
ASIDE = Standing.ASIDE

AGAINST = (BEHIND, FULL, FAILED)
HELPFUL = (GRANTED, NEXT, BEHIND)
"""What a master says that would grant the lock to this waiter, now or in its turn."""


LIVES = 3_000
"""For how many ms a waiter is believed to live without another word."""

HEARTBEAT = LIVES / 3000
"""Seconds between two words of a waiter that hears nothing."""

UNREACHED = LIVES / 1000 - HEARTBEAT
"""
Seconds after the first word that no majority has answered until a waiter leaves the queues.

The word before it was answered, so this is `LIVES` after the last one that was.
"""

FRESH = 0.1
"""
Seconds beside a master time-out within which a majority must have granted the lock: grants
from before and after a forced release must not be added up. It counts from when the first
of their questions left to when the last one was executed, by that master's clock, so how
long an answer then waits for us does not matter. Partial grants are given back after it.
"""


class Ticket:
    """
    One waiter's standing with each of *masters*.

    Args:
        masters: How many there are.
    """

    __slots__ = (
        "_asked", "_counters", "_done", "_helped", "_numbers", "_sent", "needed", "standings",
    )  # fmt: skip

    def __init__(self, masters: int) -> None:
        self.standings = [UNASKED] * masters
        self.needed = majority(masters)
        self._numbers = [0] * masters
        self._asked = [0.0] * masters  # when the last question left
        self._sent = [0.0] * masters  # when the question left that was granted last
        self._done = [0.0] * masters  # when it had been executed at the latest
        self._counters = [0] * masters  # what was said with that
        self._helped = [-math.inf] * masters  # when the question left whose answer helped

    def __repr__(self) -> str:
        return f"<Ticket {', '.join(standing.name for standing in self.standings)}>"

    def ask(self, master: int, now: float) -> int:
        """Note that *master* is being asked; return the number of the question."""
        if self.standings[master] is not GRANTED:
            self.standings[master] = ASKED
        self._numbers[master] += 1
        self._asked[master] = now
        return self._numbers[master]

    def answered(
        self,
        master: int,
        number: int,
        standing: Standing,
        counter: int = 0,
        done: float = -math.inf,
    ) -> bool:
        """
        Count the answer to question *number*; return whether it still counts.

        Args:
            counter: What the master's counter says, if it grants the lock with one.

            done: When the master had executed the question at the latest.
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
        """Return when the last question to *master* left."""
        return self._asked[master]

    def counters(self, now: float, ttl: int, *, factor: float) -> list[int]:
        """Return what those masters' counters say that have granted the lock, and still do."""
        grants = zip(self._counters, self._sent, self.standings, strict=True)
        return [
            counter
            for counter, sent, standing in grants
            if standing is GRANTED and now < timing.deadline(sent, ttl, factor=factor)
        ]

    def until(self, ttl: int, *, factor: float, within: float = math.inf) -> float:
        """
        Return until when a majority has granted the lock; 0 if none has.

        Args:
            within: In how many seconds they must have granted it, see `FRESH`.
        """
        grants = [
            (sent, done)
            for sent, done, standing in zip(self._sent, self._done, self.standings, strict=True)
            if standing is GRANTED
        ]
        if len(grants) < self.needed:
            return 0.0
        begins = [
            first
            for first, _ in grants
            if sum(sent >= first and done <= first + within for sent, done in grants) >= self.needed
        ]
        return timing.deadline(max(begins), ttl, factor=factor) if begins else 0.0

    def stale_at(self, within: float) -> float:
        """
        Return when to give back what is granted, or may be: infinite if there is nothing.

        While an answer is outstanding that may complete a majority, it is kept.

        Args:
            within: In how many seconds a majority must grant the lock, see `FRESH`.
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
        """When the last questions left that a majority has given a helpful answer to."""
        return sorted(self._helped, reverse=True)[self.needed - 1]

    def count(self, *standings: Standing) -> int:
        """Return how many masters stand like that."""
        return sum(standing in standings for standing in self.standings)

    def may_win(self, master: int) -> bool:
        """Return whether a question to *master* makes sense that was not asked since a yield."""
        return self.standings[master] is UNASKED and not self.hopeless

    @property
    def hopeless(self) -> bool:
        """Whether no majority can come together as things stand."""
        return self.count(*AGAINST) > len(self.standings) - self.needed

    @property
    def lost(self) -> bool:
        """Whether whoever does not want to wait has failed."""
        return self.count(*AGAINST, NEXT, SILENT) > len(self.standings) - self.needed

    @property
    def refused(self) -> bool:
        """Whether so many queues are full that there is no sense in waiting."""
        return self.count(FULL) > len(self.standings) - self.needed

    @property
    def must_yield(self) -> bool:
        """Whether others may wait for what we have and can't use."""
        return self.hopeless and (GRANTED in self.standings or SILENT in self.standings)

    def give_back(self) -> None:
        """Note that every grant is being given back, those that are on their way too."""
        for master, standing in enumerate(self.standings):
            if standing in (GRANTED, ASKED, SILENT, FAILED):
                self.standings[master] = UNASKED
            self._numbers[master] += 1

    def start_over(self) -> None:
        """Forget where we stand: under another name we are in no queue yet."""
        for master in range(len(self.standings)):
            self.forget(master)

    def called(self) -> None:
        """Note that it is our turn on some master: that others come first is old news."""
        for master, standing in enumerate(self.standings):
            if standing is BEHIND:
                self.standings[master] = AWAITED

    def forget(self, master: int) -> None:
        """Note that *master* may have forgotten what it said."""
        self.standings[master] = UNASKED
        self._numbers[master] += 1
