"""The timer of a task that waits for several instants, of which the earliest comes first."""

import asyncio
import math
from collections.abc import Callable


class Alarm:
    """
    One timer of the event loop, for the earliest of several instants.

    Args:
        ring: Called at that instant, or a little before it. It has to `arm` the alarm again.

    Attributes:
        beat_at: The instant of the next heartbeat.

        wake_at: The instant at which to wake the task; infinite after that.
    """

    __slots__ = ("_armed_for", "_clock", "_loop", "_ring", "_timer", "beat_at", "wake_at")

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        clock: Callable[[], float],
        ring: Callable[[], None],
        beat_at: float,
        wake_at: float,
    ) -> None:
        self._loop = loop
        self._clock = clock
        self._ring = ring
        self.beat_at = beat_at
        self.wake_at = wake_at
        self._armed_for = math.inf
        self._timer: asyncio.TimerHandle | None = None

    def __repr__(self) -> str:
        return f"<Alarm for {self._armed_for}>"

    def arm(self, due: float) -> None:
        """Ring at *due*, or at one of the alarm's own instants if that is earlier."""
        due = min(due, self.beat_at, self.wake_at)
        # If it has become later, the timer fires too early, and is armed again then.
        if due < self._armed_for:
            self.stop()
            self._armed_for = due
            self._timer = self._loop.call_later(max(due - self._clock(), 0.0), self._fire)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _fire(self) -> None:
        self._armed_for = math.inf
        self._ring()
