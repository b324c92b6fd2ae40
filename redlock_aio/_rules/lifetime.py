"""
One lease from its acquisition to its end, as a state machine.

    HELD ──── release, hand over ───────► RELEASED
      │
      └─ the deadline passes, or masters
         say that the key is gone ──────► LOST ── (for good: nothing revives it)

Nothing here waits, reads a clock or opens a socket: whoever asks says what time
it is. Instants are seconds on the clock of the acquisition.

Two rules keep a holder from believing for longer than the masters do:

- An extension moves the deadline only if its majority is there before the old
  deadline, and only if none was sent after it that promises less: the later one
  is what the masters obey in the end.
- An extension that promises less than the deadline moves it the moment it is
  sent, because from then on any master may have obeyed.
"""

import enum
import math

from redlock_aio._rules import timing


class State(enum.Enum):
    """Where a lease stands."""

    HELD = "held"
    LOST = "lost"
    RELEASED = "released"


HELD, LOST, RELEASED = State.HELD, State.LOST, State.RELEASED

RENEW_SHARE = 1 / 3
"""Which part of its ttl a lease may grow old before it is extended."""

RENEW_SPREAD = 0.15
"""By which part of that an extension may come earlier, so that leases do not march in step."""

RETRY_SHARE = 1 / 12
"""Which part of its ttl a lease waits after an extension that failed."""

MARGIN = 0.003
"""Loss is told this much before the deadline, in seconds: timers are late, never early."""

NEVER_STALLED = (math.inf, math.inf)

HANDED_OVER = "it was handed over"

MARGIN_SHARE = 1 / 4
"""Which part of a short ttl the margin may take at most."""


class Lifetime:
    """
    The life of one lease.

    Args:
        now: The present instant, at which a majority has been counted.

        deadline: Until when the lease may be believed.

        ttl: What the masters were told, in milliseconds.

        factor: The drift factor.

        renewed: Whether it is to be extended for as long as it is held.

        ends: The instant at which it ends whatever extensions say.
    """

    __slots__ = (
        "_epoch",
        "_promised",
        "deadline",
        "due",
        "ends",
        "factor",
        "longest_ttl",
        "reason",
        "renewed",
        "state",
        "ttl",
    )  # fmt: skip

    def __init__(
        self, now: float, deadline: float, ttl: int, factor: float, renewed: bool, ends: float
    ) -> None:
        self.ttl: int = ttl
        self.longest_ttl: int = ttl
        """The longest ttl that any master may have been told."""
        self.state: State = HELD
        self.reason: str = ""
        self.deadline: float = deadline if deadline < ends else ends  # noqa: FURB136 - faster
        self.ends: float = ends
        self.renewed: bool = renewed
        self.factor: float = factor
        self._promised = self.deadline
        self._epoch = 0  # counts the extensions that promised less than the one before
        self.due: float = now
        """When it wants to be looked at again: to be extended, or to be told lost."""

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.state.value}, until {self.deadline:.3f}>"

    def valid(self, now: float) -> bool:
        """Return whether the lease may be believed at *now*."""
        return self.state is HELD and now < self.deadline

    def rest(self, now: float, chance: float) -> None:
        """Set `due` after a success, for a renewal early enough to be repeated several times."""
        last = self._last()
        due = now + self.ttl * (RENEW_SHARE / 1000) * (1 - RENEW_SPREAD * chance)
        # Of a very short ttl, or after slow answers, little more than a third is left.
        middle = (now + last) / 2
        if due > middle:  # noqa: PLR1730 - faster
            due = middle
        self.due = due if self._can_be_renewed() else last

    def retry(self, now: float) -> None:
        """Set `due` after an extension that failed."""
        last = self._last()
        due = now + self.ttl * (RETRY_SHARE / 1000)
        self.due = min(due, last) if self._can_be_renewed() else last

    def _last(self) -> float:
        """Return when to tell the loss."""
        margin = self.ttl * (MARGIN_SHARE / 1000)
        return self.deadline - (margin if margin < MARGIN else MARGIN)  # noqa: FURB136 - faster

    def _can_be_renewed(self) -> bool:
        # An extension can't move the end of a lease whose *ends* is reached first.
        return self.renewed and self.deadline < self.ends

    def begin_extension(self, now: float, ttl: int) -> int:
        """Note that an extension to *ttl* is being sent; return what `extended` asks for."""
        promised = timing.deadline(now, ttl, factor=self.factor)
        if promised < self._promised:
            self._epoch += 1
        self._promised = promised
        self.longest_ttl = max(ttl, self.longest_ttl)
        self.deadline = min(promised, self.deadline)
        self.due = self._last()
        return self._epoch

    def extended(self, epoch: int, began: float, ttl: int, now: float) -> bool:
        """
        Count the majority of an extension; return whether it holds.

        Args:
            epoch: What `begin_extension` returned.

            began: When it was sent.
        """
        if epoch != self._epoch or not self.valid(now):
            return False
        promised = min(self.ends, timing.deadline(began, ttl, factor=self.factor))
        if promised >= self.deadline:  # else a later one was answered first
            self.deadline = promised
            self.ttl = ttl
        return self.valid(now)

    def expired(self, now: float) -> bool:
        """Return whether a lease that is still held has to be told lost by now."""
        return self.state is HELD and now >= self._last()

    def lose(self, reason: str) -> None:
        """End the lease against its holder's will."""
        if self.state is HELD:
            self.state = LOST
            self.reason = reason

    def release(self, now: float) -> bool:
        """End the lease as its holder wants; return whether it was still to be believed."""
        if self.valid(now):
            self.state = RELEASED
            return True
        self.lose(self.why_expired())
        return False

    def hand_over(self) -> None:
        """End the lease because somebody else goes on with it."""
        self.state = RELEASED
        self.reason = HANDED_OVER

    def why_released(self) -> str:
        """Return what to tell a holder that has ended the lease itself."""
        handed_over = self.state is RELEASED and self.reason
        return self.reason if handed_over else "it has been released"

    def why_expired(self, stalled: tuple[float, float] = NEVER_STALLED) -> str:
        """
        Return the reason of a loss at the deadline.

        Args:
            stalled: From when to when the event loop did not run, the last time.
        """
        if self.deadline >= self.ends:
            return "it was held for as long as max_hold allows"
        why = "it was not extended before its validity was over"
        began, ended = stalled
        # Shorter ones are no reason: an extension that fails is repeated after such a time.
        if began < self._last() <= ended and ended - began >= self.ttl * (RETRY_SHARE / 1000):
            why += f": the event loop did not run for {max(ended - began, 0.1):.1f} s"
        return why
