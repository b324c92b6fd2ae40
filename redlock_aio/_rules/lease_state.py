"""
One lease from its acquisition to its end, as a state machine.

    HELD ──┬─ release ──────────────────► RELEASED
      │    └─ hand over ────────────────► HANDED_OVER
      │
      └─ the deadline passes, or masters
         reply that the key is gone ────► LOST ── (for good: nothing revives it)

Nothing here waits, reads a clock or opens a socket: the caller passes the present
instant. Instants are seconds on the clock of the acquisition.

Two rules keep the validity from outlasting the keys on the masters:

- An extension moves the deadline only if its majority has answered before the old
  deadline, and only if no later extension promises less: the masters end up with
  the ttl of the later one.
- An extension that promises less than the deadline moves the deadline when it is
  sent, because any master may have executed it from then on.
"""

import enum
import math

from redlock_aio._rules import timing
from redlock_aio._rules.causes import Loss, LossCause


class State(enum.Enum):
    HELD = "held"
    LOST = "lost"
    RELEASED = "released"
    HANDED_OVER = "exported"


HELD, LOST, RELEASED, HANDED_OVER = State.HELD, State.LOST, State.RELEASED, State.HANDED_OVER

RENEW_SHARE = 1 / 3
"""The share of the ttl after which a lease is extended."""

RENEW_SPREAD = 0.13
"""The largest share by which that time is shortened at random, to spread the extensions."""

STEP, STEP_SHARE = 1 / 64, 1 / 200
"""
Extensions are due at multiples of this step: the smaller of `STEP` seconds and `STEP_SHARE` of
the ttl. Extensions that are due at one step are sent together, which costs a fraction of the CPU.
"""

RETRY_SHARE = 1 / 12
"""The share of the ttl after which a failed extension is repeated."""

MARGIN = 0.003
"""Seconds before the deadline at which the loss is reported: timers are late, never early."""

NEVER_STALLED = (math.inf, math.inf)
"""The begin and end of a stall of the event loop if there was none."""

NOTHING_DUE = math.inf

MARGIN_SHARE = 1 / 4
"""The largest share of a short ttl that the margin may take."""


def retry_pause(ttl: int, master_timeout: int) -> float:
    """Return the seconds after which a failed request about a lease is repeated for its task."""
    return min(ttl * RETRY_SHARE, master_timeout) / 1000


class LeaseState:
    __slots__ = (
        "_epoch", "_promised", "deadline", "due", "ends", "factor", "longest_ttl", "loss",
        "renewed", "state", "ttl",
    )  # fmt: skip

    def __init__(self, deadline: float, ttl: int, factor: float, renewed: bool) -> None:
        self.ttl: int = ttl
        """The ttl in ms of the last successful extension, or of the acquisition."""
        self.longest_ttl: int = ttl
        """The longest ttl in ms that was sent to any master."""
        self.state: State = HELD
        self.loss: Loss | None = None
        self.deadline: float = deadline
        self.ends: float = math.inf
        """The end that no extension moves; see `limit`."""
        self.renewed: bool = renewed
        self.factor: float = factor
        self._promised = deadline
        self._epoch = 0  # counts the extensions that promised less than the one before
        self.due: float = NOTHING_DUE
        """The instant of the next action: an extension, or the report of the loss."""

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.state.value}, until {self.deadline:.3f}>"

    def limit(self, ends: float) -> None:
        """End the lease at the instant *ends* at the latest; to be called before any extension."""
        self.ends = ends
        self._promised = self.deadline = min(self.deadline, ends)

    def valid(self, now: float) -> bool:
        return self.state is HELD and now < self.deadline

    def schedule_renewal(self, now: float, chance: float, took: float = 0.0) -> None:
        """
        Set `due` after a success: early enough for several repetitions of the extension.

        That is after a third of the ttl, up to 13 % earlier by *chance* (0 to 1) and by
        less than a `STEP` more, and never later than half of the remaining validity, or of that
        until the last moment for an extension whose answer takes as long again.

        Args:
            took: The seconds until the extension was answered. The next one is not repeated while
                it is underway, so a lease with slow masters lives only if that one leaves in time.
        """
        last = self._loss_at()
        due = now + self.ttl * (RENEW_SHARE / 1000) * (1 - RENEW_SPREAD * chance)
        # With a very short ttl, or after slow answers, little more than a third is left.
        middle = max((now + last - took) / 2, now)
        if due > middle:  # noqa: PLR1730 - faster
            due = middle
        step = self.ttl * (STEP_SHARE / 1000)
        if step > STEP:  # noqa: PLR1730 - faster
            step = STEP
        # Rounded down: an extension may come early, and must not come late.
        due -= due % step
        self.due = due if self._can_be_renewed() else last

    def schedule_retry(self, now: float) -> None:
        """
        Set `due` after an extension that failed: after `RETRY_SHARE` of the ttl.

        Near the deadline that is after half of the time left, so that a majority that answers
        again shortly before the deadline is asked in time.
        """
        last = self._loss_at()
        soonest = min(self.ttl * (STEP_SHARE / 1000), STEP)
        pause = min(self.ttl * (RETRY_SHARE / 1000), max((last - now) / 2, soonest))
        self.due = min(now + pause, last) if self._can_be_renewed() else last

    def retry_at(self, instant: float) -> None:
        """Set `due` to *instant* after an extension that failed, if another one can help."""
        if self._can_be_renewed():
            self.due = min(instant, self._loss_at())

    def _loss_at(self) -> float:
        margin = self.ttl * (MARGIN_SHARE / 1000)
        return self.deadline - (margin if margin < MARGIN else MARGIN)  # noqa: FURB136 - faster

    def _can_be_renewed(self) -> bool:
        # An extension can't move the end of a lease whose *ends* is reached first.
        return self.renewed and self.deadline < self.ends

    def begin_extension(self, now: float, ttl: int) -> int:
        """Account for an extension to *ttl* that is sent now; return its epoch for `extended`."""
        promised = timing.deadline(now, ttl, factor=self.factor)
        if promised < self._promised:
            self._epoch += 1
        self._promised = promised
        self.longest_ttl = max(ttl, self.longest_ttl)
        self.deadline = min(promised, self.deadline)
        self.due = self._loss_at()
        return self._epoch

    def extended(self, epoch: int, began: float, ttl: int, now: float) -> bool:
        """
        Move the deadline after a majority granted an extension, if that extension is valid.

        Returns:
            Whether the extension is valid: the lease was, and no later extension promised less.
        """
        if epoch != self._epoch or not self.valid(now):
            return False
        promised = min(self.ends, timing.deadline(began, ttl, factor=self.factor))
        if promised >= self.deadline:  # else the replies to a later extension came first
            self.deadline = promised
            self.ttl = ttl
        return self.valid(now)

    def expired(self, now: float) -> bool:
        """Return whether the lease is still held, but its loss is due to be reported."""
        return self.state is HELD and now >= self._loss_at()

    def lose(self, loss: Loss) -> None:
        if self.state is HELD:
            self.state = LOST
            self.loss = loss

    def release(self, now: float) -> bool:
        """Return whether the lease was still valid; an expired one counts as lost."""
        if self.state is HELD and now < self.deadline:
            self.state = RELEASED
            return True
        self.lose(self.why_expired())
        return False

    def hand_over(self) -> None:
        self.state = HANDED_OVER

    @property
    def is_given_up(self) -> bool:
        return self.state is RELEASED or self.state is HANDED_OVER

    def why_expired(self, stalled: tuple[float, float] = NEVER_STALLED) -> Loss:
        if self.deadline >= self.ends:
            return Loss(LossCause.MAX_HOLD)
        began, ended = stalled
        # A shorter stall is no reason: a failed extension is repeated after such a time.
        if began < self._loss_at() <= ended and ended - began >= self.ttl * (RETRY_SHARE / 1000):
            lasted = f"the event loop did not run for {max(ended - began, 0.1):.1f} s"
            return Loss(LossCause.LOOP_STALLED, lasted)
        return Loss(LossCause.NOT_EXTENDED)
