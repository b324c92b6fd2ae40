"""How long one acquisition may take, and how much of that is left."""

import math
from collections.abc import Callable

from redlock_aio._rules import retry


class WaitBudget:
    """
    The *wait* of one acquisition, counted from the moment at which that has begun.

    Args:
        clock: The clock of leases, in seconds.

        wait: In milliseconds; ``None`` for no limit, 0 for a single attempt.

        began: The begin, on the clock of leases.
    """

    __slots__ = ("began", "clock", "wait")

    def __init__(self, clock: Callable[[], float], wait: int | None, began: float) -> None:
        self.clock = clock
        self.wait = wait
        self.began = began

    def __repr__(self) -> str:
        return f"<WaitBudget {self.wait} ms, {self.left():.0f} left>"

    def left(self) -> float:
        """Return how many ms are left: infinite without a limit, 0 or less when it is over."""
        wait = self.wait
        return math.inf if wait is None else wait - (self.clock() - self.began) * 1000

    @property
    def is_over(self) -> bool:
        """Whether nothing is left but a rounding error."""
        return self.left() <= retry.SHORTEST_PAUSE

    def until_last_attempt(self, reserve: float) -> float | None:
        """
        Return in how many ms the last attempt is due, ``None`` if that was before.

        It is due so early that its answers can come before the budget is over. It is infinite
        without a limit.

        Args:
            reserve: How many ms an attempt may take.
        """
        waited = (self.clock() - self.began) * 1000
        return retry.pause(math.inf, wait=self.wait, waited=waited, reserve=reserve)

    def attempt_limit(self) -> float | None:
        """
        Return how many ms an attempt may take, ``None`` for no limit.

        A wait of 0 is a single attempt, which may take as long as the masters may.
        """
        return max(self.left(), 1.0) if self.wait else None
