"""
What time the masters have, as one process knows it.

Instants are seconds on the process' own clock, times are microseconds as the
masters count them. Nothing here asks a master or reads a clock.
"""

import math
from statistics import median

LONGEST_LEAD = 1_000_000
"""By how many us the last time given out may lie ahead to be taken seriously."""

DRIFT = 1e-4
"""By how many seconds a clock may part from ours in each second."""

FIRST_INTERVAL, LONGEST_INTERVAL = 0.05, 30.0
"""
Seconds between two questions for the time, at first and at last: the first answers are
as slow as a program's start.
"""


class Clocks:
    """
    The clocks of *masters*, by what they are ahead of our own.

    An answer that says a master's time says no more than that it was this time at
    some instant while we waited. So each is known between two bounds, which a
    quick answer brings close together, and which a slow one leaves as they are.

    Args:
        masters: How many there are.

        ahead: What they are believed to be ahead of ours, in seconds, until one
            has told its time.
    """

    __slots__ = ("_ahead", "_interval", "_known", "_last", "_least", "_most", "due_at", "spread")

    def __init__(self, masters: int, ahead: float) -> None:
        self._known = [-math.inf] * masters  # since when
        self._least = [-math.inf] * masters
        self._most = [math.inf] * masters
        self._ahead = ahead
        self._last = 0
        self._interval = FIRST_INTERVAL
        self.due_at: float = -math.inf
        """When the masters are to be asked for their time, once they have told it."""
        self.spread: float = 0.0
        """By how many seconds the fastest clock is ahead of the one in the middle."""

    def __repr__(self) -> str:
        return f"<Clocks {self._ahead:+.6f} s>"

    def learn(self, master: int, time: int, sent: float, now: float) -> None:
        """Note that it was *time* at *master* at some instant from *sent* to *now*."""
        least, most = time / 1_000_000 - now, time / 1_000_000 - sent
        parted = (now - self._known[master]) * DRIFT
        at_least = max(least, self._least[master] - parted)
        at_most = min(most, self._most[master] + parted)
        if at_least > at_most:  # its clock has been set
            at_least, at_most = least, most
        self._known[master], self._least[master], self._most[master] = now, at_least, at_most
        told = [ahead for ahead in map(self.offset, range(len(self._known))) if ahead is not None]
        self._ahead = median(told)
        self.spread = max(told) - self._ahead

    def ask_later(self, now: float) -> None:
        """Note that a majority has told its time: the next question can wait."""
        self.due_at = now + self._interval
        self._interval = min(2 * self._interval, LONGEST_INTERVAL)

    def offset(self, master: int) -> float | None:
        """Return what a master's clock is ahead of ours, in seconds, if that is known."""
        if self._known[master] == -math.inf:
            return None
        return (self._least[master] + self._most[master]) / 2

    def latest(self, master: int, time: int) -> float:
        """Return the last instant on our clock at which it can have been *time* at *master*."""
        return time / 1_000_000 - self._least[master]

    def new_time(self, now: float) -> int:
        """
        Return the time that the masters have, later than any that was returned before.

        It is the median of their clocks, so that all programs share it whatever
        their own clocks say.
        """
        time = int((now + self._ahead) * 1_000_000)
        last = self._last
        # One that lies far ahead was given out by a clock that was wrong.
        if time <= last < time + LONGEST_LEAD:
            time = last + 1
        self._last = time
        return time
