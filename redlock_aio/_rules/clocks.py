"""
What time the masters have, as one process knows it.

Instants are seconds on the process' own clock, times are microseconds as the
masters count them. Nothing here asks a master or reads a clock.
"""

from statistics import median

LONGEST_LEAD = 1_000_000
"""By how many us the last time given out may lie ahead to be taken seriously."""


class Clocks:
    """
    The clocks of *masters*, by what they are ahead of our own.

    Args:
        masters: How many there are.

        ahead: What they are believed to be ahead of ours, in seconds, until one
            has told its time.

        patience: How many seconds an answer may take that says what time it is.
    """

    __slots__ = ("_ahead", "_known", "_last", "_patience", "spread")

    def __init__(self, masters: int, ahead: float, patience: float) -> None:
        self._known: list[float | None] = [None] * masters
        self._ahead = ahead
        self._patience = patience
        self._last = 0
        self.spread = 0.0
        """By how many seconds the fastest clock is ahead of the one in the middle."""

    def __repr__(self) -> str:
        return f"<Clocks {self._ahead:+.6f} s>"

    def learn(self, master: int, time: int, sent: float, now: float) -> None:
        """Note that it was *time* at *master* at some instant from *sent* to *now*."""
        least, most = time / 1_000_000 - now, time / 1_000_000 - sent
        known = self._known[master]
        if known is None or most - least < self._patience:
            self._known[master] = (least + most) / 2
        else:  # an answer that was read late says little, but is not to be contradicted
            self._known[master] = min(max(known, least), most)
        told = [ahead for ahead in self._known if ahead is not None]
        self._ahead = median(told)
        self.spread = max(told) - self._ahead

    def offset(self, master: int) -> float | None:
        """Return what a master's clock is ahead of ours, in seconds, if that is known."""
        return self._known[master]

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
