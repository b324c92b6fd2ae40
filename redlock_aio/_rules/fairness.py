"""
Whose turn is it, when each master has a queue of its own?

Every waiter has a place, a moment that it is given once and that is the same on
all masters. A master grants only to the first in its queue, and tells the others
whether they are next. This file is one waiter's side of it:

    UNASKED ─► ASKED ─┬─► GRANTED    the master keeps the lock for us
                      ├─► NEXT       somebody has it, and we come after
                      ├─► BEHIND     others come before us
                      └─► FAILED     no answer, or none that helps

- A majority that has granted is a win, but only for as long as the grants last,
  which counts from when the questions left that were answered.
- Whoever can't have a majority, because too many masters have others before us,
  must give back what it has: the others may be waiting for just that. It keeps
  its place.
- Whoever is called by one master will be called by the others, if nobody else
  comes before it there. Until then their old answers are no reason to give back.
- What was asked before giving back must not count when it is answered after it:
  the master has taken that grant back. So every question has a number.

The first in all queues is never told to give back, so there is always somebody
who gets on. Nothing here waits, reads a clock or opens a socket.
"""

import enum

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


UNASKED, ASKED, GRANTED, NEXT = Standing.UNASKED, Standing.ASKED, Standing.GRANTED, Standing.NEXT
BEHIND, AWAITED = Standing.BEHIND, Standing.AWAITED
FULL, FAILED = Standing.FULL, Standing.FAILED

AGAINST = (BEHIND, FULL, FAILED)


LIVES = 3_000
"""For how many ms a waiter is believed to live without another word."""

HEARTBEAT = LIVES / 3000
"""Seconds between two words of a waiter that hears nothing."""

SHORTEST_BEAT = 0.02
"""Seconds between two words of a waiter with some grants, however short its ttl."""

FRESH = 0.1
"""
Seconds beside a master time-out after which grants are too old to make a majority, and are
given back for new ones: those from before and after a forced release must not be added up.
"""


class Ticket:
    """
    One waiter's standing with each of *masters*.

    Args:
        masters: How many there are.
    """

    __slots__ = ("_asked", "_counters", "_numbers", "_sent", "needed", "standings")

    def __init__(self, masters: int) -> None:
        self.standings = [UNASKED] * masters
        self.needed = majority(masters)
        self._numbers = [0] * masters
        self._asked = [0.0] * masters  # when the last question left
        self._sent = [0.0] * masters  # when the question left that was granted last
        self._counters = [0] * masters  # what was said with that

    def __repr__(self) -> str:
        return f"<Ticket {', '.join(standing.name for standing in self.standings)}>"

    def ask(self, master: int, now: float) -> int:
        """Note that *master* is being asked; return the number of the question."""
        if self.standings[master] is not GRANTED:
            self.standings[master] = ASKED
        self._numbers[master] += 1
        self._asked[master] = now
        return self._numbers[master]

    def answered(self, master: int, number: int, standing: Standing, counter: int = 0) -> bool:
        """Count the answer to question *number*; return whether it still counts."""
        if number != self._numbers[master]:
            return False
        self.standings[master] = standing
        if standing is GRANTED:
            self._sent[master] = self._asked[master]
            self._counters[master] = counter
        return True

    def counters(self, now: float, ttl: int, *, factor: float) -> list[int]:
        """Return what those masters' counters say that have granted the lock, and still do."""
        grants = zip(self._counters, self._sent, self.standings, strict=True)
        return [
            counter
            for counter, sent, standing in grants
            if standing is GRANTED and now < timing.deadline(sent, ttl, factor=factor)
        ]

    def waits_for(self, master: int, number: int) -> bool:
        """Return whether question *number* is not answered yet, and the answer would count."""
        return number == self._numbers[master] and self.standings[master] is ASKED

    def until(self, ttl: int, *, factor: float) -> float:
        """Return until when a majority has granted the lock; 0 if none has."""
        sent = sorted(
            (at for at, said in zip(self._sent, self.standings, strict=True) if said is GRANTED),
            reverse=True,
        )
        if len(sent) < self.needed:
            return 0.0
        return timing.deadline(sent[self.needed - 1], ttl, factor=factor)

    def is_fresh(self, since: float) -> bool:
        """Return whether a majority has granted the lock to questions from *since* on."""
        grants = zip(self._sent, self.standings, strict=True)
        return sum(said is GRANTED and sent >= since for sent, said in grants) >= self.needed

    def count(self, *standings: Standing) -> int:
        """Return how many masters stand like that."""
        return sum(standing in standings for standing in self.standings)

    @property
    def hopeless(self) -> bool:
        """Whether no majority can come together as things stand."""
        return self.count(*AGAINST) > len(self.standings) - self.needed

    @property
    def lost(self) -> bool:
        """Whether whoever does not want to wait has failed."""
        return self.count(*AGAINST, NEXT) > len(self.standings) - self.needed

    @property
    def refused(self) -> bool:
        """Whether so many queues are full that there is no sense in waiting."""
        return self.count(FULL) > len(self.standings) - self.needed

    @property
    def must_yield(self) -> bool:
        """Whether others may wait for what we have and can't use."""
        return GRANTED in self.standings and self.hopeless

    def give_back(self) -> None:
        """Note that every grant is being given back, those that are on their way too."""
        for master, standing in enumerate(self.standings):
            if standing in (GRANTED, ASKED, FAILED):
                self.standings[master] = UNASKED
            self._numbers[master] += 1

    def called(self) -> None:
        """Note that it is our turn on some master: that others come first is old news."""
        for master, standing in enumerate(self.standings):
            if standing is BEHIND:
                self.standings[master] = AWAITED

    def forget(self, master: int) -> None:
        """Note that *master* may have forgotten what it said."""
        self.standings[master] = UNASKED
        self._numbers[master] += 1
