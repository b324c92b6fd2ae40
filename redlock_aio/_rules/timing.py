"""
How long a lock is valid, how fast an acquisition may repeat, how long a reply may take.

Durations of locks are whole milliseconds, round trips are milliseconds with
fractions, pauses are seconds, instants are seconds on a clock that only moves forward.
Every rounding of a duration is against the holder, so a lease is never valid for
longer than a master keeps the lock. Nothing here waits, reads a clock or draws a
random number.
"""

import math
from datetime import timedelta

from redlock_aio._rules.quorum import majority
from redlock_aio._rules.validation import described

DRIFT_FACTOR = 0.01
"""The share of a ttl by which the clocks of client and master may drift apart during it."""

LONGEST = 2**53
"""The longest duration in milliseconds: beyond it floats can't count, and masters can't add."""

MAX_TTL = 60_000
"""The longest ttl that a lock may have, in milliseconds."""

SHORTEST_TTL = 50
"""The shortest ttl in ms: a shorter lease may not outlast one late reply or timer."""

TTL = 10_000
"""The default ttl in milliseconds, unless *max_ttl* is shorter."""


def milliseconds(duration: int | timedelta, *, name: str, zero: bool = False) -> int:
    """
    Return *duration* as whole milliseconds.

    Raises:
        TypeError: It is neither an `int` nor a `timedelta`; a `float` or a
            `bool` is most often a mistake of unit.

        ValueError: It is negative, 0 where that is not allowed, or not a whole number
            of milliseconds.
    """
    if isinstance(duration, timedelta):
        whole, rest = divmod(duration, timedelta(milliseconds=1))
        if rest:
            raise ValueError(f"{name} must be whole milliseconds, not {duration}")
    elif isinstance(duration, int) and not isinstance(duration, bool):
        whole = duration
    else:
        raise TypeError(
            f"{name} must be an int (milliseconds) or a timedelta, not {described(duration)}"
        )
    if whole < 0 or (whole == 0 and not zero):
        raise ValueError(f"{name} must be {'0 or more' if zero else 'positive'}, not {whole} ms")
    if whole > LONGEST:
        raise ValueError(f"{name} must be at most {LONGEST} ms, about 285,000 years")
    return whole


def drift(ttl: int, *, factor: float) -> int:
    """
    Return the most ms by which client and master may disagree about the end of *ttl*.

    drift = ttl * factor, rounded up, + 2 ms: *factor* for clocks that run at different
    rates, 1 ms for the precision of a master's expiry and 1 ms more, as on the Redlock page.
    """
    return math.ceil(ttl * factor) + 2


def deadline(began: float, ttl: int, *, factor: float) -> float:
    """
    Return the end of the validity of a lock whose requests were sent after *began*.

    deadline = began + ttl - drift. That is the same as ``ttl - elapsed - drift`` from now.
    *began* must lie before the first byte that was sent.
    """
    return began + validity(ttl, factor=factor)


def validity(ttl: int, *, factor: float) -> float:
    """Return for how many seconds a *ttl* is valid, from before its first request is sent."""
    return (ttl - drift(ttl, factor=factor)) / 1000


def remaining(until: float, now: float) -> int:
    """Return the whole milliseconds from *now* to *until*, 0 when it is over."""
    return max(0, math.floor((until - now) * 1000))


def drift_factor(factor: float) -> float:
    if isinstance(factor, bool) or not isinstance(factor, int | float):
        raise TypeError(f"drift_factor must be a number, not {described(factor)}")
    if not 0 <= factor <= 0.5:  # a NaN fails this too
        raise ValueError(f"drift_factor must be from 0 to 0.5, not {factor}")
    return float(factor)


def forgetting(max_ttl: int, *, factor: float) -> float:
    """
    Return the quarantine in seconds: the longest validity of a lease that a master has lost.

    In the worst case the lease was extended just before, with the longest ttl, and its
    holder's clock is slower. 1 s is added because uptimes are whole seconds.
    """
    return max_ttl * (1 + factor) / 1000 + 1


def at_most(ttl: int, max_ttl: int) -> int:
    """Return *ttl* if *max_ttl* permits it; after a longer one a master would vote too early."""
    if ttl > max_ttl:
        raise ValueError(f"ttl must be at most max_ttl, which is {max_ttl} ms, not {ttl} ms")
    return ttl


def at_least(ttl: int, *, name: str = "ttl") -> int:
    """Return *ttl* if it is at least `SHORTEST_TTL`; then some validity is left after the drift."""
    if ttl < SHORTEST_TTL:
        raise ValueError(
            f"{name} must be at least {SHORTEST_TTL} ms, not {ttl} ms; times are milliseconds:"
            f" ten seconds are {name}=10_000"
        )
    return ttl


BURST = 20
"""The number of attempts of one acquisition that may follow each other without a pause."""

FLOOR = 0.01
"""The mean seconds between two attempts of one acquisition after that."""

PASSED = 0.1
"""How much an attempt counts that finds another holder than the attempt before."""


class Pace:
    """
    A bound on the rate at which one acquisition asks the masters.

    A waiter that is woken asks at once: `BURST` times, and once more for each *interval*
    that has passed since. Without the bound, masters that contradict themselves, or a key
    that others change all the time without freeing it, would keep this process and the
    masters busy.

    An attempt that finds a new holder counts only as `PASSED` of one. Where a lock passes from
    task to task within a millisecond, each hand-over wakes this waiter. If these attempts
    counted fully, it would reach the bound after `BURST` hand-overs, and would sleep through the
    pauses in which the other process lets it go first.

    The restart guard bounds in the same way how often it examines a master in quarantine.

    Args:
        interval: Seconds between two attempts after the first ones, on average.
    """

    __slots__ = ("_holder", "_interval", "_spent_until")

    def __init__(self, interval: float = FLOOR) -> None:
        self._holder: bytes | None = None
        self._interval = interval
        self._spent_until = -math.inf

    def pause(self, now: float, holder: bytes | None = None) -> float:
        """
        Count an attempt that is requested *now*; return the seconds for which it must wait.

        Args:
            holder: The value of the lock after the last attempt; ``None`` if it is not known.
        """
        cost = interval = self._interval
        if holder is not None and holder != self._holder:
            self._holder = holder
            cost *= PASSED
        self._spent_until = max(self._spent_until, now - BURST * interval) + cost
        return max(self._spent_until - now, 0.0)


SHORTEST_TIMEOUT, LONGEST_TIMEOUT = 50, 1_000
"""The bounds of the adaptive timeout, in ms."""

FAR = 4
"""The largest timeout for a slower minority, as a multiple of the fastest majority's."""

NEW, SPREAD_NEW = 1 / 8, 1 / 4
"""The shares of a new sample in the mean and in the mean deviation."""


class RoundTrip:
    """The round trips of one master, smoothed as in TCP (RFC 6298)."""

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
    """
    The round trip times of the masters in ms, and the timeout for their replies.

    All masters have one timeout. It is long enough for the slowest, because any master may be
    needed for a majority when another one fails. But a minority that is far slower than the
    others raises it to at most `FAR` times the time that the others need, because callers wait
    for the whole timeout when a majority hangs.
    """

    __slots__ = ("_trips", "fixed", "timeout")

    def __init__(self, masters: int, fixed: int | None = None) -> None:
        self._trips: list[RoundTrip | None] = [None] * masters
        self.fixed: bool = fixed is not None
        self.timeout: int = SHORTEST_TIMEOUT if fixed is None else fixed

    def __repr__(self) -> str:
        how = "fixed" if self.fixed else "learned"
        return f"<RoundTrips {self._trips}, timeout {self.timeout} ms, {how}>"

    @property
    def at_least(self) -> int:
        """The least ms for a reply, even if the caller's wait is shorter."""
        return min(self.timeout, SHORTEST_TIMEOUT) if self.fixed else self.timeout

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
        needed = SHORTEST_TIMEOUT
        if needs:
            first = needs[min(majority(len(self._trips)), len(needs)) - 1]
            needed = math.ceil(min(needs[-1], FAR * max(first, SHORTEST_TIMEOUT)))
        self.timeout = min(max(needed, SHORTEST_TIMEOUT), LONGEST_TIMEOUT)
