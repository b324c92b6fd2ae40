"""The delays between the attempts of an acquisition: back-off and jitter."""

from dataclasses import dataclass
from datetime import timedelta

from redlock_aio._rules.timing import milliseconds
from redlock_aio._rules.validation import described


@dataclass(frozen=True, slots=True)
class Retry:
    """
    The random delay between two attempts, which grows from attempt to attempt.

    The delay after attempt number *n* is drawn evenly from *min_delay* to a
    ceiling that starts at twice *min_delay* and doubles with each attempt, up
    to *max_delay*. It ends early when the masters push that the lock may be
    free. While so many masters are to push that the lock ends there that no
    attempt is needed to see it, the delay is at least 0.5 to 1 s, unless
    *attempts* limits it. A shorter one matters where no push comes, such as from
    masters that are down or have no client tracking.

    Args:
        min_delay: The shortest delay, in milliseconds or as a `timedelta`.

        max_delay: The longest delay; if it equals *min_delay*, every delay is
            the same.

        attempts: After how many attempts to give up (default: no limit but the
            lock's *wait*). An acquisition with a limit does not wait in the
            local queue with the other tasks of its process. A lock with *fair*
            ignores it, as it ignores the delays: its place in the queues is one
            attempt, which only *wait* limits.
    """

    min_delay: int | timedelta = 10
    max_delay: int | timedelta = 200
    attempts: int | None = None

    def __post_init__(self) -> None:
        shortest = milliseconds(self.min_delay, name="min_delay")
        longest = milliseconds(self.max_delay, name="max_delay")
        if longest < shortest:
            raise ValueError(
                f"max_delay must be at least min_delay ({shortest} ms), not {longest} ms"
            )
        if self.attempts is not None:
            if isinstance(self.attempts, bool) or not isinstance(self.attempts, int):
                raise TypeError(f"attempts must be an int or None, not {described(self.attempts)}")
            if self.attempts < 1:
                raise ValueError(f"attempts must be positive, not {self.attempts}")

    def delay(self, attempt: int, chance: float) -> float:
        """
        Return for how many milliseconds to wait after an attempt.

        Args:
            attempt: The number of the failed attempt, counted from 1.

            chance: A random number from [0, 1).
        """
        shortest = milliseconds(self.min_delay, name="min_delay")
        longest = milliseconds(self.max_delay, name="max_delay")
        # The exponent is bounded because 2.0**1024 is an OverflowError.
        ceiling = min(longest, shortest * 2.0 ** min(attempt, 64))
        return shortest + chance * (ceiling - shortest)


STEADY = 0.75
"""The factor by which the spread shrinks after each failed attempt that is not split."""

LONGEST_SPREAD = 0.1
"""The greatest spread of attempts in seconds."""

SHORTEST_PAUSE = 0.01
"""In milliseconds; a shorter rest of a wait is a rounding error and no pause."""


def pause(delay: float, *, wait: int | None, waited: float, reserve: float) -> float | None:
    """
    Return for how many milliseconds to wait until the next attempt, ``None`` to give up.

    The last attempt is made so early that its answers can still come within
    *wait*: *reserve* before its end, but never more than a tenth of it.

    Args:
        wait: For how long the caller will wait in all, ``None`` for ever.

        reserve: How long an attempt may take.
    """
    if wait is None:
        return delay
    last = wait - min(reserve, wait / 10) - waited
    return min(delay, last) if last > SHORTEST_PAUSE else None
