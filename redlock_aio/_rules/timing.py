"""
Durations in milliseconds, drift, deadlines, and the limits of a ttl.

Durations are whole milliseconds, instants are seconds on a clock that only
moves forward. Every rounding is against the holder, so a lease is never valid for
longer than a master keeps the lock. Nothing here waits, reads a clock or draws a
random number.
"""

import math
from datetime import timedelta

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
