"""
How long a process stays away from a lock that several processes want, after its own turn.

The masters push each release to all processes that have asked for that, and all of them then
ask for the lock. One gets it. With 20 processes, most requests would be those of the others. So
a process that has had its turn leaves the lock to the others, until each had one:

    own turn ends ─► absent, without pushes, for a turn of each other process ─► asks for pushes

It knows the others from the values that it finds, and how long they keep the lock from its
waits. It counts one of them less than it knows: of two processes none is ever absent, and of
many a few ask for pushes at a time. All have about the same absence, so none is left behind.

Nothing here reads a clock: instants and durations are seconds on the clock of leases.
"""

import math

from redlock_aio._rules import lock_value

ALLOWANCE = 1.25
"""How much longer an absence is than the turns of the others, because not all of them are known."""

LONGEST_ABSENCE = 0.4
"""The longest absence after an own turn, in seconds."""

SHORTEST_ABSENCE = 0.001
"""Seconds; a shorter absence is not worth a request."""

LONGEST_LEASE = 0.02
"""The seconds of another process's lease that count; with longer ones, few requests are made."""

CROWDED_TENURE = 0.008
"""
Seconds for which a process may pass the lock from task to task while several others wait.

With one other process a tenure is longer. With many of them, all wait for each tenure.
"""

ADAPTION = 0.25
"""By which part of the difference one wait changes the mean of the others' turns."""

FORGOTTEN = 4
"""One of so many others is forgotten when the same process is found in two waits in a row."""

MOST_OTHERS = 50
"""The number of other processes that are remembered; for so many, most absences are the longest."""


class Absence:
    """
    The absences of one process, and what it knows of the others.

    Args:
        own: The name of this process in its values, see `lock_value.process`.
    """

    __slots__ = ("_changes", "_ended", "_found", "_others", "_own", "_turn", "_waited")

    def __init__(self, own: bytes) -> None:
        self._own = own
        self._ended = -math.inf  # the end of the last lease of this process
        self._others: dict[bytes, None] = {}  # the one that had the lock last is the last here
        self._turn = 0.0  # the mean of their turns
        # In the present wait:
        self._found: bytes | None = None  # the process that had the lock last
        self._changes = 0  # how often the lock went from one other process to the next one
        self._waited = 0.0  # from the first change on

    def __repr__(self) -> str:
        return f"<Absence of {self._whole * 1000:.1f} ms>"

    @property
    def _whole(self) -> float:
        return min(ALLOWANCE * (len(self._others) - 1) * self._turn, LONGEST_ABSENCE)

    def on_lost(self, holder: bytes | None, waited: float) -> None:
        """
        Called when another task had acquired the lock, which may be free again.

        Args:
            holder: The value of the lock; ``None`` if no process had a majority.

            waited: For how many seconds this process has waited since its last attempt.
        """
        if holder is None:
            return
        process = lock_value.process(holder)
        if process == self._own:
            return  # a task that does not wait for its turn; this process is none of the others
        if process != self._found:
            self._changes += self._found is not None
            self._found = process
            if next(reversed(self._others), None) == process:
                # The same process as in the wait before: most likely there are fewer than this
                # process knows. It would get the lock rarely if it took long to notice that.
                self._forget((len(self._others) + FORGOTTEN - 1) // FORGOTTEN)
            self._others.pop(process, None)
            self._others[process] = None
            if len(self._others) > MOST_OTHERS:
                self._forget(1)
        if self._changes:  # a turn that had begun before this wait is not measured
            self._waited += min(waited, LONGEST_LEASE)

    def on_acquired(self) -> None:
        """Called when this process has acquired the lock and others could have been first."""
        if self._changes:
            turn = self._waited / self._changes
            self._turn += (ADAPTION if self._turn else 1) * (turn - self._turn)
        elif self._found is None:
            self._forget(1)  # the lock was free: perhaps fewer others want it than before
        self._found = None
        self._changes = 0
        self._waited = 0.0

    def on_lease_ended(self, now: float) -> bool:
        """Called when a lease of this process has ended; return whether several others wait."""
        self._ended = now
        return len(self._others) > 1

    def left(self, now: float) -> float:
        """Return for how many seconds to be absent after a failed attempt; 0 to ask for pushes."""
        left = self._ended + self._whole - now
        return left if left > SHORTEST_ABSENCE else 0.0

    def _forget(self, number: int) -> None:
        """Forget so many of the others, those that were found the longest time ago."""
        for process in list(self._others)[:number]:
            del self._others[process]
