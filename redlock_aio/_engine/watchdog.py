"""
One watchdog for all leases of a manager.

It keeps the leases in the order in which they want to be looked at, on one
timer. What is due together is extended together: the commands of all leases
that are due in one turn of the loop leave in one write per master. Whether an
extension holds is judged by quorum for each lease. A lease whose deadline comes
is lost by the timer, whatever an extension that is underway would still say.

A lease that is held for longer than a moment has the masters tell when others
change its key. Then it is looked at on all of them, so that a holder hears at
once that its key is gone.
"""

import asyncio
import heapq
import itertools
import math
import random
from typing import Protocol

from anyio import CancelScope

from redlock_aio._engine.hold import Hold, Look, Renewal, Sharer
from redlock_aio._engine.origin import Origin
from redlock_aio._engine.restoring import Keeping, Leaving, Lifting, Restoring
from redlock_aio._engine.rounds import Fleet
from redlock_aio._engine.waiting import take_back
from redlock_aio._rules import timing
from redlock_aio._rules.lifetime import HELD, NEVER_STALLED, RELEASED, RETRY_SHARE
from redlock_aio._rules.protocol import NEVER
from redlock_aio._rules.quorum import LOST as LOST_ROUND, OPEN, WON
from redlock_aio.errors import LockLostError, LockNotHeldError, RedlockError

BATCH = 200
"""How many leases are extended in one turn of the loop, so that others get their turn."""

LONGEST_SLEEP = 0.5
"""
Seconds between two looks at the clock while anything is held: a timer does not
count the time that the machine was suspended, the clock does.
"""

LOOK_AFTER = 0.1
"""After how many seconds the masters are asked to tell of changes: most leases are shorter."""

LOOK_INTERVAL = 0.02
"""Seconds between two looks at a key that others change again and again, at least."""

STALL = 0.02
"""Seconds: a timer that is later than that is worth a word if a lease was lost meanwhile."""

CLOSED = "the Redlock that keeps it was closed"


class Watchdog:
    """
    Extends leases, and tells each when it is lost.

    Args:
        fleet: The masters.

        max_ttl: To how many ms a lease may be extended.
    """

    __slots__ = (
        "_armed_for", "_heap", "_held", "_order", "_stalled", "_timer", "fleet", "max_ttl",
        "origin", "scope",
    )  # fmt: skip

    def __init__(self, fleet: Fleet, *, max_ttl: int) -> None:
        self.fleet: Fleet = fleet
        self.origin: Origin = Origin(fleet.loop)
        self.max_ttl: int = max_ttl
        self._heap: list[tuple[float, int, Hold]] = []
        self._held = 0
        self._order = itertools.count()
        self._timer: asyncio.TimerHandle | None = None
        self._armed_for = math.inf
        self._stalled = NEVER_STALLED
        # What anyio makes depends on the library that runs the task, and it finds
        # out each time. A watchdog belongs to one loop, so once is enough.
        self.scope: type[CancelScope] = type(CancelScope())

    def __repr__(self) -> str:
        return f"<Watchdog of {self._held} leases>"

    @property
    def held(self) -> int:
        """How many leases are held."""
        return self._held

    def add(self, hold: Hold, now: float) -> None:
        """Watch over *hold* from now on."""
        self._held += 1
        hold.rest(now, random.random())  # noqa: S311 - no secret
        if hold.due > now + LOOK_AFTER:
            hold.look_at = now + LOOK_AFTER
        self._push(hold, now)

    def doubt(self, hold: Hold) -> None:
        """Look soon whether the masters still have the key of *hold*."""
        now = self.fleet.clock()
        if hold.state is HELD and hold.look_at > now + LOOK_INTERVAL:
            hold.look_at = max(now, hold.looked_at + LOOK_INTERVAL)
            self._push(hold, now)

    def _push(self, hold: Hold, now: float) -> None:
        heap = self._heap
        if len(heap) > 2 * self._held + 128:
            # Entries of leases that have ended, or are due at another time now,
            # are left where they are until they outnumber the others.
            heap[:] = [e for e in heap if e[2].state is HELD and e[0] == e[2].at]
            heapq.heapify(heap)
        at = hold.due
        if hold.look_at < at:  # noqa: PLR1730 - faster
            at = hold.look_at
        hold.at = at
        heapq.heappush(heap, (at, next(self._order), hold))
        if at < self._armed_for:
            self._arm(now)

    def _arm(self, now: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._armed_for = math.inf
        if self._heap:
            delay = min(max(self._heap[0][0] - now, 0.0), LONGEST_SLEEP)
            self._armed_for = now + delay
            self._timer = self.fleet.loop.call_later(delay, self._look)

    def _look(self) -> None:
        """Extend what is due, and end what is over."""
        self._timer = None
        now = self.fleet.clock()
        if now - self._armed_for >= STALL:
            self._stalled = (self._armed_for, now)
        self._armed_for = -math.inf  # what is pushed meanwhile is armed for at the end
        heap = self._heap
        batch = BATCH
        while heap:
            at, _, hold = heap[0]
            if hold.state is not HELD or at != hold.at:
                heapq.heappop(heap)
            elif at > now or not batch:
                break
            else:
                heapq.heappop(heap)
                batch -= 1
                self._attend(hold, now)
        self._arm(now)

    def _attend(self, hold: Hold, now: float) -> None:
        if hold.expired(now):
            self.lose(hold, self.why_expired(hold, now))
        elif now >= hold.look_at:
            hold.look_at = math.inf
            hold.looked_at = now
            self._push(hold, now)
            self.fleet.ask_and_watch(Look(self, hold))
        elif hold.renewed and not self.fleet.closed:
            self._renew(hold, max(hold.ttl, hold.wanted), now)
        else:  # its holder has gone without releasing it
            hold.retry(now)
            self._push(hold, now)

    def _renew(self, hold: Hold, ttl: int, now: float) -> Renewal:
        hold.told = ttl
        renewal = Renewal(self, hold, ttl, now)
        self._push(hold, now)
        self.fleet.ask_and_watch(renewal, (hold.deadline - now) * 1000)
        return renewal

    def judge(self, renewal: Renewal) -> bool:
        """Draw the consequences of an extension that is settled; return whether it holds."""
        hold = renewal.hold
        now = self.fleet.clock()
        if hold.state is not HELD:
            return False
        if renewal.verdict is WON and hold.extended(renewal.epoch, renewal.began, renewal.ttl, now):
            hold.rest(now, random.random())  # noqa: S311 - no secret
            self._push(hold, now)
            for master, reply in enumerate(renewal.replies):
                if renewal.may_lack_key(reply):
                    renewal.restore(master)
            return True
        if renewal.refused_by_a_majority(hold.attempt.unsent):
            self.lose(hold, renewal.why_refused())
        elif renewal.verdict is LOST_ROUND:
            hold.retry(now)
            self._push(hold, now)
        return False

    def restore(self, hold: Hold, master: int, ceiling: int = 0, tries: int = 0) -> None:
        """
        Set the key again on a master that has lost it, so that all of them keep it.

        It counts from the next extension on: by then it has been there all the
        time, while a majority of others was.

        Args:
            ceiling: Up to where a majority has lifted its counters; see `lift`.

            tries: How often it is repeated if somebody else has the key there.
        """
        fleet = self.fleet
        if not hold.valid(fleet.clock()):
            return
        fleet.flush()  # behind all that was asked before
        restoration = Restoring(self, hold, ceiling, tries)
        if fleet.links[master].send(restoration.payload, (restoration,)) is None:
            hold.attempt.unsent &= ~(1 << master)

    def lift(self, hold: Hold, master: int, ceiling: int) -> None:
        """
        Lift the counters of a majority to *ceiling*, so that *master* can count again.

        An attempt of others that failed may have raised its counter beyond the fencing
        token. Without this the lease would stand on the other masters until it ends.
        """
        counter = hold.attempt.counter
        if counter is not None and ceiling < NEVER and hold.valid(self.fleet.clock()):
            self.fleet.ask(Lifting(self, hold, counter, master, ceiling))

    async def extend(self, hold: Hold, ttl: int) -> None:
        """
        Extend *hold* to *ttl* milliseconds from now, trying until its deadline.

        Raises:
            LockLostError: It was lost before a majority had agreed.

            LockNotHeldError: It has been released.

        Cancellation:
            The lease is extended, or it stands as it was.
        """
        while True:
            now = self.fleet.clock()
            if hold.expired(now):
                self.lose(hold, self.why_expired(hold, now))
            if hold.state is RELEASED:
                raise LockNotHeldError(hold.resources, hold.why_released())
            if hold.state is not HELD:
                raise LockLostError(hold.resources, hold.reason)
            if self.fleet.closed:
                raise RedlockError(self.fleet.why_closed)
            renewal = self._renew(hold, ttl, now)
            if renewal.verdict is OPEN:
                renewal.waiter = self.fleet.loop.create_future()
                await renewal.waiter
            if renewal.verdict is WON and hold.valid(self.fleet.clock()):
                return
            if hold.state is not HELD:
                continue  # to say how it ended
            # Somebody waits for it, so it is repeated sooner than the watchdog would.
            pause = min(hold.ttl * RETRY_SHARE, self.fleet.master_timeout) / 1000
            await asyncio.sleep(max(min(pause, hold.deadline - self.fleet.clock()), 0))

    def why_expired(self, hold: Hold, now: float) -> str:
        """Return why the deadline of *hold* has passed, and whether the loop had stalled then."""
        # The timer is never armed for later than `LONGEST_SLEEP`. If it is overdue, somebody
        # has blocked the loop until now, and runs before the timer does.
        due = self._armed_for
        overdue = math.isfinite(due) and now - due >= STALL
        return hold.why_expired((due, now) if overdue else self._stalled)

    def lose(self, hold: Hold, reason: str) -> None:
        """End *hold* against its holder's will, tell it, and clean up."""
        if hold.state is HELD:
            hold.lose(reason)
            self._end(hold, self.fleet.clock())
            hold.tell()

    def release(self, hold: Hold) -> bool:
        """
        End *hold* as its holder wants, and ask the masters to forget it; nothing is awaited.

        Returns:
            Whether it was still to be believed. If not, it is lost.
        """
        if hold.state is HELD:
            now = self.fleet.clock()
            kept = hold.release(now)
            if not kept:
                hold.reason = self.why_expired(hold, now)
            self._end(hold, now)
            hold.tell()
            return kept
        return False

    def share(self, hold: Hold, task: Sharer, ttl: int, *, renewed: bool, at_least: int) -> None:
        """
        Let *hold* be shared by one more, who wants it as if it had just been acquired.

        What that needs is asked of the masters, and not waited for.
        """
        now = self.fleet.clock()
        hold.joined(task)
        if at_least:
            hold.keep_until = max(hold.keep_until, now + at_least / 1000)
        was_renewed, hold.renewed = hold.renewed, hold.renewed or renewed
        is_kept = was_renewed and min(hold.ttl, hold.told) >= ttl
        # It is told again if the masters do not hear of it now.
        hold.wanted = max(hold.wanted, ttl)
        ends = min(hold.ends, timing.deadline(now, ttl, factor=hold.factor))
        if not is_kept and ends > hold.deadline:
            self._renew(hold, max(hold.ttl, hold.wanted), now)
        elif hold.renewed and not was_renewed:
            hold.rest(now, random.random())  # noqa: S311 - no secret
            self._push(hold, now)

    def leave(self, hold: Hold, task: Sharer) -> bool:
        """End one share of *hold*, or all if it is the last one; as `release`."""
        if hold.count <= 1 or not hold.valid(self.fleet.clock()):
            return self.release(hold)
        hold.left(task)
        return True

    def hand_over(self, hold: Hold) -> None:
        """
        End *hold*, and leave its key as it is: another process goes on with it.

        What was sent before may be executed late, by a master that hung, when the
        key is somebody else's or nobody's: to acquire it, or to set it again. That
        was followed by a release if this were one. So the old value is freed when
        its time is over, wherever it is then.
        """
        fleet = self.fleet
        hold.hand_over()
        self._held -= 1
        hold.line.ended(hold, fleet.clock())
        fleet.loop.call_later(hold.longest_ttl / 1000, self._sweep, hold)

    def _sweep(self, hold: Hold) -> None:
        if not self.fleet.closed:
            take_back(self.fleet, hold.attempt, hold.longest_ttl)

    def _end(self, hold: Hold, now: float) -> None:
        self._held -= 1
        if hold.keep_until > now and hold.state is RELEASED:
            left = math.ceil((hold.keep_until - now) * 1000)
            hold.released = keeping = Keeping(self.fleet, hold, left)
            self.fleet.ask(keeping)
            if leaving := hold.attempt.only_leave():
                # Whoever is the next in the queue is called, and comes when the key ends.
                self.fleet.ask(Leaving(self.fleet.links, leaving))
        else:
            hold.released = take_back(self.fleet, hold.attempt, hold.longest_ttl)
        hold.line.ended(hold, now)

    def is_awaited(self) -> bool:
        """Return whether a task that was cancelled, and has not ended yet, holds a lease."""
        held = (hold for _, _, hold in self._heap if hold.state is HELD)
        tasks = (ref() for hold in held for ref in (hold.task, *hold.others) if ref is not None)
        return any(task and task.cancelling() and not task.done() for task in tasks)

    def abandon(self, reason: str) -> None:
        """End all leases in an event loop that was closed: no master is told."""
        for _, _, hold in self._heap:
            hold.abandon(reason)
        self._heap.clear()
        self._held = 0

    def close(self, reason: str = CLOSED) -> None:
        """End all leases: nobody would extend them any more."""
        for _, _, hold in self._heap:
            self.lose(hold, reason)
        self._heap.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


class Engine(Protocol):
    """What locks need of their manager."""

    _clock_lead: int
    _drift_factor: float
    _fleet: Fleet
    _max_waiters: int
    _watchdog: Watchdog

    def _is_ready(self) -> bool:
        """Bind to the running loop; return whether the masters' states are known."""

    async def _get_ready(self, wait: int | None) -> None:
        """Wait until they are, at most *wait* ms."""
