"""
The masters' round trip times, and the timeout for their replies.

Each master's round trips are smoothed as in TCP (RFC 6298), and all masters have
one timeout. It is long enough for the slowest, because any master may be needed
for a majority when another one fails. But a minority that is far slower than the
others raises it to at most `FAR` times the time that the others need, because
callers wait for the whole timeout when a majority hangs.

Durations are milliseconds. Nothing here asks a master or reads a clock.
"""

import math

from redlock_aio._rules.quorum import majority

SHORTEST, LONGEST = 50, 1_000
"""The bounds of the adaptive timeout, in ms."""

FAR = 4
"""The largest timeout for a slower minority, as a multiple of the fastest majority's."""

NEW, SPREAD_NEW = 1 / 8, 1 / 4
"""The shares of a new sample in the mean and in the mean deviation."""


class RoundTrip:
    __slots__ = ("_before", "_mean", "_spread", "last")

    def __init__(self, ms: float) -> None:
        self._before = self._mean = ms
        self._spread = ms / 4
        self.last = ms
        """The last sample that counted."""

    def __repr__(self) -> str:
        return f"<RoundTrip {self._mean:.1f} ms>"

    def learn(self, ms: float) -> None:
        """
        Add a sample.

        Of two samples in a row the shorter one counts: a pause of the event loop during
        one of them is not the master's delay.
        """
        self.last = sample = min(ms, self._before)
        self._before = ms
        self._spread += SPREAD_NEW * (abs(sample - self._mean) - self._spread)
        self._mean += NEW * (sample - self._mean)

    @property
    def needs(self) -> float:
        """The timeout in ms that this master alone would need."""
        return max(2 * self._mean, self._mean + 4 * self._spread)


class RoundTrips:
    __slots__ = ("_trips", "fixed", "timeout")

    def __init__(self, masters: int, fixed: int | None = None) -> None:
        self._trips: list[RoundTrip | None] = [None] * masters
        self.fixed: bool = fixed is not None
        self.timeout: int = SHORTEST if fixed is None else fixed

    def __repr__(self) -> str:
        how = "fixed" if self.fixed else "learned"
        return f"<RoundTrips {self._trips}, timeout {self.timeout} ms, {how}>"

    @property
    def at_least(self) -> int:
        """The least ms for a reply, even if the caller's wait is shorter."""
        return min(self.timeout, SHORTEST) if self.fixed else self.timeout

    def begin(self, master: int, ms: float) -> None:
        """Start over with the first round trip of a new connection, perhaps to another machine."""
        self._trips[master] = RoundTrip(ms)
        self._judge()

    def learn(self, master: int, ms: float) -> None:
        trip = self._trips[master]
        if trip is not None:
            trip.learn(ms)
            self._judge()

    def forget(self, master: int) -> None:
        self._trips[master] = None
        self._judge()

    def too_slow(self, master: int) -> str:
        """Return the reason for late replies if *master* is usually too slow; else empty."""
        trip = self._trips[master]
        if trip is None or trip.last <= self.timeout:
            return ""
        return f"its answers take {trip.last:.0f} ms, master_timeout is {self.timeout} ms"

    def _judge(self) -> None:
        if self.fixed:
            return
        needs = sorted(trip.needs for trip in self._trips if trip is not None)
        needed = SHORTEST
        if needs:
            first = needs[min(majority(len(self._trips)), len(needs)) - 1]
            needed = math.ceil(min(needs[-1], FAR * max(first, SHORTEST)))
        self.timeout = min(max(needed, SHORTEST), LONGEST)
