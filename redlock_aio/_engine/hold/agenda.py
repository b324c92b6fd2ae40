"""
When each lease needs attention: pages of leases that are due together, and one timer.

    add, put ─► the page of an instant ─► its instant comes ─┬─ due ────────► attend
                        ▲                                    └─ due later ─┐
                        └──────────────────────────────────────────────────┘

A lease is on one page at a time, and a page is a dict: to enter a lease, to move it and to
remove it takes the same short time for any number of leases. Leases share the pages at
multiples of `STEP`, up to `HORIZON` from now, so that there are few pages, and nothing of a
lease that has ended stays for long. Only what is due before the next multiple has a page at
its exact instant.
"""

import asyncio
import heapq
import math
import random
from collections.abc import Callable

from redlock_aio._engine.hold.held_lease import HeldLease
from redlock_aio._rules.lease_state import NEVER_STALLED, NOTHING_DUE, STEP

BATCH = 200
"""The most leases handled in one turn of the loop, so that other callbacks run in between."""

HORIZON = 16.0
"""Seconds for which pages are made in advance. A lease that is due later moves to a new page."""

LONGEST_SLEEP = 0.5
"""
The longest time in seconds for which the timer is armed: it does not count the time
that the machine was suspended, the clock of leases does.
"""

CHECK_AFTER = 0.1
"""
Seconds after which the key of a lease is checked and tracked, or up to a `STEP` less: most
leases are shorter.
"""

SURELY_LATER = 4 * CHECK_AFTER
"""A lease that is valid for so many seconds needs no attention in the first `CHECK_AFTER`."""

STALL = 0.02
"""Seconds by which the timer must be late for the error of a lost lease to mention a stall."""


class Agenda:
    """
    The instants at which leases need attention.

    Args:
        loop: The event loop of the leases.

        clock: The clock of leases.

        attend: Called with the leases for which something is due, and the present instant.
    """

    __slots__ = (
        "_armed_for", "_attend", "_clock", "_instants", "_loop", "_pages", "_stalled", "_timer",
    )  # fmt: skip

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        clock: Callable[[], float],
        attend: Callable[[list[HeldLease], float], None],
    ) -> None:
        self._loop = loop
        self._clock = clock
        self._attend = attend
        self._pages: dict[float, dict[HeldLease, None]] = {}
        self._instants: list[float] = []  # a heap of the keys of `_pages`
        self._timer: asyncio.TimerHandle | None = None
        self._armed_for = math.inf
        self._stalled = NEVER_STALLED

    def __repr__(self) -> str:
        return f"<Agenda of {len(self)} leases>"

    def __len__(self) -> int:
        return sum(map(len, self._pages.values()))

    def leases(self) -> list[HeldLease]:
        """Return all leases that are held."""
        return [hold for page in self._pages.values() for hold in page]

    def add(self, hold: HeldLease, now: float) -> None:
        """Attend to *hold*, which was acquired now, until it is removed."""
        if hold.deadline - now > SURELY_LATER:
            # Most leases are released before this check: `put` schedules the extension after it.
            at = now + CHECK_AFTER
            hold.check_at = at = at - at % STEP
        else:
            hold.schedule_renewal(now, random.random())  # noqa: S311 - no secret
            at = hold.due
            if at > now + CHECK_AFTER:
                hold.check_at = at = now + CHECK_AFTER
        self._enter(hold, at, now)

    def put(self, hold: HeldLease, now: float) -> None:
        """Attend to *hold* at `HeldLease.due` or `HeldLease.check_at`, and not as before."""
        if hold.due == NOTHING_DUE:
            hold.schedule_renewal(hold.held_since, random.random())  # noqa: S311 - no secret
        hold.page.pop(hold, None)
        at = min(hold.due, hold.check_at, now + HORIZON)
        # The lease shares a page that comes a little early, and moves to its exact instant then.
        shared = at - at % STEP
        self._enter(hold, shared if shared > now else at, now)

    def _enter(self, hold: HeldLease, at: float, now: float) -> None:
        page = self._pages.get(at)
        if page is None:
            self._pages[at] = page = {}
            heapq.heappush(self._instants, at)
            if at < self._armed_for:
                self._arm(now)
        page[hold] = None
        hold.page = page

    def remove(self, hold: HeldLease) -> None:
        """Forget *hold*, which has ended."""
        hold.page.pop(hold, None)

    def clear(self) -> None:
        """Forget all leases, and stop the timer."""
        self._pages.clear()
        self._instants.clear()
        self._armed_for = math.inf
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def stall(self, now: float) -> tuple[float, float]:
        """Return the begin and end of the last stall of the event loop."""
        # The timer is never armed for later than `LONGEST_SLEEP`. If it is overdue, a callback
        # has blocked the loop until now, and this call runs before the timer does.
        due = self._armed_for
        overdue = math.isfinite(due) and now - due >= STALL
        return (due, now) if overdue else self._stalled

    def _arm(self, now: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._armed_for = math.inf
        if self._instants:
            delay = min(max(self._instants[0] - now, 0.0), LONGEST_SLEEP)
            self._armed_for = now + delay
            self._timer = self._loop.call_later(delay, self._tick)

    def _tick(self) -> None:
        """Attend to the leases that are due, at most `BATCH` of them; the rest follow at once."""
        self._timer = None
        now = self._clock()
        if now - self._armed_for >= STALL:
            self._stalled = (self._armed_for, now)
        self._armed_for = -math.inf  # no `put` from here on arms the timer; the end does
        if due := self._take_due(now):
            self._attend(due, now)
        self._arm(now)

    def _take_due(self, now: float) -> list[HeldLease]:
        """Remove the leases from each page whose instant has come; return those that are due."""
        due: list[HeldLease] = []
        instants = self._instants
        left = BATCH
        while left and instants and instants[0] <= now:
            page = self._pages[instants[0]]
            while left and page:
                hold, _ = page.popitem()
                left -= 1
                if hold.due <= now or hold.check_at <= now:
                    due.append(hold)
                else:
                    self.put(hold, now)
            if not page:
                del self._pages[heapq.heappop(instants)]
        return due
