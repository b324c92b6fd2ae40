"""The time limit of one acquisition, and its remaining time."""

import math
from collections.abc import Callable

from redlock_aio._rules import retry


class WaitBudget:
    """
    The *wait* of one acquisition, counted from the start of the acquisition.

    Args:
        clock: The clock of leases, in seconds.

        wait: In milliseconds; ``None`` for no limit, 0 for a single attempt.

        began: The start of the acquisition, on the clock of leases.
    """

    __slots__ = ("began", "clock", "wait")

    def __init__(self, clock: Callable[[], float], wait: int | None, began: float) -> None:
        self.clock = clock
        self.wait = wait
        self.began = began

    def __repr__(self) -> str:
        return f"<WaitBudget {self.wait} ms, {self.left():.0f} left>"

    def left(self) -> float:
        """Return the remaining ms: infinite without a limit, 0 or less when the budget is over."""
        wait = self.wait
        return math.inf if wait is None else wait - (self.clock() - self.began) * 1000

    @property
    def is_over(self) -> bool:
        """Whether the remaining time is at most a rounding error."""
        return self.left() <= retry.SHORTEST_PAUSE

    def until_last_attempt(self, reserve: float) -> float | None:
        """
        Return the ms until the last attempt is due, ``None`` if that instant has passed.

        The last attempt is due so early that its replies can arrive before the budget is over.
        The result is infinite without a limit.

        Args:
            reserve: The ms that an attempt may take.
        """
        waited = (self.clock() - self.began) * 1000
        return retry.pause(math.inf, wait=self.wait, waited=waited, reserve=reserve)

    def attempt_limit(self) -> float | None:
        """
        Return the limit of an attempt in ms, ``None`` for no limit.

        A wait of 0 is a single attempt, which is limited only by the master timeout.
        """
        return max(self.left(), 1.0) if self.wait else None
