"""
The offsets of the masters' clocks from the clock of this process.

Instants are seconds on the clock of this process, times are microseconds on the clocks
of the masters. Nothing here asks a master or reads a clock.
"""

import math
from statistics import median

LONGEST_LEAD = 1_000_000
"""The most us by which the last returned time may be ahead of the masters; else it is ignored."""

DRIFT = 1e-4
"""The drift between a master's clock and that of this process, in seconds per second."""

FIRST_INTERVAL, LONGEST_INTERVAL = 0.05, 30.0
"""
Seconds between two rounds of TIME, at first and at most: the first answers are slow,
because the program is starting.
"""


class Clocks:
    """
    The clocks of *masters*, as offsets from the clock of this process.

    A reply to TIME proves only that the master's clock showed this time at some instant
    between the question and the reply. Therefore each offset is known between two bounds.
    A quick reply narrows the bounds, a slow one does not change them.

    Args:
        ahead: The assumed offset in seconds until a master has replied.
    """

    __slots__ = ("_agreed", "_interval", "_known", "_last", "_least", "_most", "due_at")

    def __init__(self, masters: int, ahead: float) -> None:
        self._known = [-math.inf] * masters  # the instants from which the bounds hold
        self._least = [-math.inf] * masters
        self._most = [math.inf] * masters
        self._agreed: tuple[float, float] | None = ahead, 0.0
        """What `_agree` returns, until another reply changes it."""
        self._last = 0
        self._interval = FIRST_INTERVAL
        self.due_at: float = -math.inf
        """The instant at which the next TIME round is due; the first one is due at once."""

    def __repr__(self) -> str:
        return f"<Clocks {self._agree()[0]:+.6f} s>"

    @property
    def spread(self) -> float:
        """The seconds by which the fastest clock is ahead of the median."""
        return self._agree()[1]

    def learn(self, master: int, time: int, sent: float, now: float) -> None:
        """Narrow the bounds of *master*, whose clock showed *time* between *sent* and *now*."""
        least, most = time / 1_000_000 - now, time / 1_000_000 - sent
        parted = (now - self._known[master]) * DRIFT
        at_least = max(least, self._least[master] - parted)
        at_most = min(most, self._most[master] + parted)
        if at_least > at_most:  # the clock of the master was set
            at_least, at_most = least, most
        self._known[master], self._least[master], self._most[master] = now, at_least, at_most
        self._agreed = None

    def _agree(self) -> tuple[float, float]:
        """Return by how many seconds the median clock is ahead, and the fastest one of that."""
        # When it is asked for: all masters answer a request, and one place is made for it.
        if self._agreed is None:
            offsets = [
                ahead for ahead in map(self.offset, range(len(self._known))) if ahead is not None
            ]
            ahead = median(offsets)
            self._agreed = ahead, max(offsets) - ahead
        return self._agreed

    def ask_later(self, now: float) -> None:
        self.due_at = now + self._interval
        self._interval = min(2 * self._interval, LONGEST_INTERVAL)

    def offset(self, master: int) -> float | None:
        """Return the seconds by which a master's clock is ahead; ``None`` if that is not known."""
        if self._known[master] == -math.inf:
            return None
        return (self._least[master] + self._most[master]) / 2

    def latest(self, master: int, time: int) -> float:
        """Return the last instant here at which *master*'s clock can have shown *time*."""
        return time / 1_000_000 - self._least[master]

    def new_time(self, now: float) -> int:
        """
        Return the time of the masters, later than any that was returned before.

        It is the median of their clocks, so all programs share it, independent of their
        own clocks.
        """
        time = int((now + self._agree()[0]) * 1_000_000)
        last = self._last
        # The last time was far ahead, because a master's clock was wrong then.
        if time <= last < time + LONGEST_LEAD:
            time = last + 1
        self._last = time
        return time
