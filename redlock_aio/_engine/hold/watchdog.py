"""
One watchdog for all leases of a manager.

    add ─► Agenda ─► one timer ─┬─ deadline is near ──► lose
             ▲                  ├─ key may be gone ───► KeyCheck ─► lose
             │                  └─ extension is due ──► Renewal ──► apply_result
             └──────────────────────────────────────────────────────────┘

Leases that are due in one turn of the loop are extended together, many in one command
and all in one write per master. Each extension holds or fails by its own quorum.
The timer ends a lease at its deadline, even if an extension is underway.

Leases whose last extension failed do not wait for their next try when a majority is back.
They are extended at once when the vote of a master returns and a majority votes, and when
the extension of one lease succeeds again: masters that refused for a while push nothing.

A lease that is held for longer than `CHECK_AFTER` has the masters push changes of
its key (client tracking). After a push its key is checked on all masters, so that
its holder is cancelled at once when the key is gone, not at the next extension.
"""

import asyncio
import itertools
import math
import random
from collections.abc import Callable, Collection
from operator import attrgetter

from anyio import CancelScope

from redlock_aio._engine.claim import take_back
from redlock_aio._engine.hold.agenda import BATCH, Agenda
from redlock_aio._engine.hold.held_lease import HeldLease, Sharer
from redlock_aio._engine.hold.renewal import KeyCheck, Renewal, send_together
from redlock_aio._engine.hold.restoration import Keeping
from redlock_aio._engine.masters import MasterSet, Query
from redlock_aio._protocol import replies
from redlock_aio._rules import timing
from redlock_aio._rules.causes import Loss, LossCause
from redlock_aio._rules.lease_state import HELD, RELEASED, retry_pause
from redlock_aio._rules.quorum import LOST as LOST_ROUND, OPEN, WON, majority
from redlock_aio.errors import LockLostError, LockNotHeldError

CHECK_INTERVAL = 0.02
"""
The shortest time in seconds between two checks of a key that is changed repeatedly, and from an
extension that failed to its repetition because a master is back, perhaps again and again.
"""

_deadline: Callable[[HeldLease], float] = attrgetter("deadline")


class Watchdog:
    """Extends leases, and ends those that are lost."""

    __slots__ = (
        "_agenda", "_failed", "_on_recheck", "_returned_at", "_to_retry", "_unchecked", "masters",
        "scope",
    )  # fmt: skip

    def __init__(self, masters: MasterSet) -> None:
        self.masters: MasterSet = masters
        self._agenda = Agenda(masters.loop, masters.clock, self._attend)
        self._unchecked: dict[HeldLease, None] = {}  # leases whose keys are to be checked, in order
        self._failed: dict[HeldLease, None] = {}  # leases whose last extension failed
        self._to_retry: list[HeldLease] = []  # those to extend at once, the most urgent one last
        self._returned_at = -math.inf  # when a master's vote last returned, and a majority voted
        self._on_recheck: Callable[[HeldLease], None] = self.recheck_soon  # one for all leases
        # anyio looks for the running library each time that it makes a scope. A watchdog
        # belongs to one loop, so once is enough.
        self.scope: type[CancelScope] = type(CancelScope())

    def __repr__(self) -> str:
        return f"<Watchdog of {self.held} leases>"

    @property
    def held(self) -> int:
        """The number of leases that are held."""
        return len(self._agenda)

    def add(self, hold: HeldLease, now: float) -> None:
        """Extend *hold*, check its key and end it at its deadline, from now on."""
        hold.on_recheck = self._on_recheck
        self._agenda.add(hold, now)

    def recheck_soon(self, hold: HeldLease) -> None:
        """
        Check soon whether the masters still have the key of *hold*.

        Several calls in a short time, one for each master that pushes the change, lead to one
        check; another one follows if the key is changed again after the check was sent.
        """
        now = self.masters.clock()
        if hold.state is HELD and hold.check_at > now + CHECK_INTERVAL:
            hold.check_at = max(now, hold.checked_at + CHECK_INTERVAL)
            self._agenda.put(hold, now)

    def on_push(self, push: object) -> None:
        """
        Called with each push of a master: if any key may have changed, check all leases.

        A master whose vote returns makes such a push, too.
        """
        if replies.changed(push) is None:
            idle = not self._unchecked
            # Those that wait already stay in front: a master whose connection ends again and
            # again must not keep the others from their checks.
            self._unchecked.update(dict.fromkeys(self._agenda.leases()))
            if idle:
                self._recheck_next()
            links = self.masters.links
            if sum(link.votes for link in links) >= majority(len(links)):
                self._returned_at = self.masters.clock()
                self._retry_failed()

    def _recheck_next(self) -> None:
        # Half as many in each turn of the loop as the agenda handles in one: deadlines and
        # extensions come in between, however many leases wait for a check.
        for hold in list(itertools.islice(self._unchecked, BATCH // 2)):
            del self._unchecked[hold]
            self.recheck_soon(hold)
        if self._unchecked:
            self.masters.loop.call_soon(self._recheck_next)

    def _retry_failed(self) -> None:
        """Extend at once the leases whose last extension failed: a majority is back."""
        if self._failed:
            idle = not self._to_retry
            waiting = dict.fromkeys(self._to_retry) | self._failed
            self._failed = {}
            # With many leases it takes a while until the last one is extended.
            self._to_retry = sorted(waiting, key=_deadline, reverse=True)
            if idle:
                self._retry_next()

    def _retry_next(self) -> None:
        now = self.masters.clock()
        batch = self._to_retry[-BATCH:]
        del self._to_retry[-BATCH:]
        for hold in batch:
            last = hold.extension
            # Meanwhile it may have ended, or a late reply has extended it, or the next extension
            # is underway: if that one counts the master that is back as away, and fails by it,
            # `apply_result` repeats it at once.
            if hold.state is HELD and isinstance(last, Renewal) and last.verdict is LOST_ROUND:
                self._retry_at_once(last, now)
        if self._to_retry:
            self.masters.loop.call_soon(self._retry_next)

    def _retry_at_once(self, failed: Renewal, now: float) -> None:
        failed.hold.retry_at(max(now, failed.began + CHECK_INTERVAL))
        self._agenda.put(failed.hold, now)

    def _attend(self, due: list[HeldLease], now: float) -> None:
        """Handle the leases that are *due*: each is lost, checked or extended."""
        together: list[Renewal] = []
        for hold in due:
            # The deadline comes first: after a suspension all three may be due at once, and
            # neither a check nor an extension can revive the lease then.
            if hold.expired(now):
                self.lose(hold, self.why_expired(hold, now))
            elif now >= hold.check_at:
                self._check(hold, now)
            elif hold.renewed and not self.masters.closed:
                together.append(self._begin(hold, max(hold.ttl, hold.pending_ttl), now))
            else:  # Not extended, or dropped without a release: the lease ends at its deadline.
                hold.schedule_retry(now)
                self._agenda.put(hold, now)
        send_together(self.masters, together)

    def _check(self, hold: HeldLease, now: float) -> None:
        # Set before the check is sent: a change that is pushed from now on needs another check.
        hold.check_at = math.inf
        hold.checked_at = now
        self._agenda.put(hold, now)
        self.masters.send_and_watch(KeyCheck(self.masters, hold, self.lose))

    def renew(self, hold: HeldLease, ttl: int, now: float) -> Renewal:
        """Send one extension of *hold* to *ttl* ms from *now*, and return its round."""
        renewal = self._begin(hold, ttl, now)
        renewal.send_alone()
        return renewal

    def _begin(self, hold: HeldLease, ttl: int, now: float) -> Renewal:
        """
        Return the round of an extension, which the caller sends in this turn of the loop.

        The order matters: making the round moves the deadline back if *ttl* is shorter than
        what remains, and the agenda must see the new one.
        """
        hold.requested_ttl = ttl
        renewal = Renewal(self.masters, hold, ttl, now, self.apply_result)
        self._agenda.put(hold, now)
        return renewal

    def apply_result(self, renewal: Renewal) -> bool:
        """
        Called when the verdict of an extension is final; return whether the extension holds.

        Extensions of one lease may be underway together: the watchdog's, one of
        `Lease.extend`, and one by which a sharer gets a longer ttl. Their verdicts come in
        any order, also after the end of the lease. `extended` sorts that out: without its
        epoch an older one with a longer ttl would move the deadline beyond the time for
        which the masters, which obeyed the later one, keep the key.
        """
        hold = renewal.hold
        now = self.masters.clock()
        if hold.state is not HELD:
            return False
        deadline = hold.deadline
        if renewal.verdict is WON and hold.extended(renewal.epoch, renewal.began, renewal.ttl, now):
            hold.extension = None
            hold.schedule_renewal(now, random.random())  # noqa: S311 - no secret
            self._agenda.put(hold, now)
            renewal.restore_missing()
            if hold in self._failed:
                del self._failed[hold]
                self._retry_failed()
            if (emitter := self.masters.emitter) is not None:
                emitter.emit_soon(hold.extended_event(renewal.ttl, timing.remaining(deadline, now)))
            return True
        if renewal.refused_by_a_majority(hold.claim.unsent):
            self.lose(hold, renewal.why_refused())
        elif renewal.verdict is LOST_ROUND:
            self._failed[hold] = None
            if renewal.began < self._returned_at:
                self._retry_at_once(renewal, now)
            else:
                hold.schedule_retry(now)
                self._agenda.put(hold, now)
        return False

    async def extend(self, hold: HeldLease, ttl: int) -> None:
        """
        Extend *hold* to *ttl* milliseconds from now, trying until its deadline.

        Raises:
            LockLostError: The lease was lost before a majority agreed.

            LockNotHeldError: The lease has been released.

        Cancellation:
            The lease is extended, or unchanged.
        """
        sent: list[Renewal] = []
        while True:
            now = self.masters.clock()
            if hold.expired(now):
                self.lose(hold, self.why_expired(hold, now))
            if hold.loss is not None:
                raise LockLostError(hold.resources, *hold.loss)
            if hold.is_given_up:
                raise LockNotHeldError(hold.resources, hold.why_given_up())
            self.masters.check_open()
            renewal = self.renew(hold, ttl, now)
            sent.append(renewal)
            if renewal.verdict is OPEN:
                await self.masters.wait_for(renewal)
            # Also one that had timed out: a majority may have granted it since.
            if hold.valid(self.masters.clock()) and any(each.verdict is WON for each in sent):
                return
            if hold.state is not HELD:
                continue  # to say how it ended
            # A task waits for the extension, so it is repeated sooner than by the watchdog.
            pause = retry_pause(hold.ttl, self.masters.master_timeout)
            await asyncio.sleep(max(min(pause, hold.deadline - self.masters.clock()), 0))

    def why_expired(self, hold: HeldLease, now: float) -> Loss:
        """Return the loss of *hold* at its deadline, and whether the loop had stalled then."""
        return hold.why_expired(self._agenda.stall(now))

    def lose(self, hold: HeldLease, loss: Loss) -> None:
        """
        Mark *hold* as lost, release its key where it is left, and cancel its bodies.

        In this order: the release is queued for sending before any code of the program
        runs. A body that acquires the lock anew as it is cancelled asks behind it.
        """
        if hold.state is HELD:
            hold.lose(loss)
            self._end(hold, self.masters.clock())
            hold.notify_lost()
            if (emitter := self.masters.emitter) is not None:
                emitter.emit_soon(hold.end_event(self.masters.clock() - hold.held_since))

    def lose_tokens(self, tokens: Collection[bytes], cause: LossCause) -> None:
        """Lose each lease whose token is one of *tokens*."""
        for hold in self._agenda.leases():
            if hold.claim.token in tokens:
                self.lose(hold, Loss(cause))

    def leave(self, hold: HeldLease, task: Sharer) -> bool:
        """
        End the share of *task* in *hold*, which is held; with the last share, *hold* itself.

        The release is sent to the masters, and no reply is awaited.

        Returns:
            Whether the lease was still valid; if not, it is lost.
        """
        now = self.masters.clock()
        if hold.count > 1 and hold.valid(now):
            hold.remove_share(task)
            return True
        hold.held_for = now - hold.held_since
        if hold.release(now):
            self._end(hold, now)
            return True
        hold.loss = self.why_expired(hold, now)
        self._end(hold, now)
        hold.notify_lost()
        return False

    def share(
        self, hold: HeldLease, task: Sharer, ttl: int, *, renewed: bool, at_least: int
    ) -> None:
        """
        Add a share of *task* to *hold*, equivalent to a lease of *ttl* ms acquired now.

        An extension that this needs is sent and not awaited.
        """
        now = self.masters.clock()
        hold.add_share(task)
        if at_least:
            hold.keep_until = max(hold.keep_until, now + at_least / 1000)
        was_renewed, hold.renewed = hold.renewed, hold.renewed or renewed
        is_kept = was_renewed and min(hold.ttl, hold.requested_ttl) >= ttl
        # The next extension requests the ttl again if the masters do not get this one.
        hold.pending_ttl = max(hold.pending_ttl, ttl)
        ends = min(hold.ends, timing.deadline(now, ttl, factor=hold.factor))
        if not is_kept and ends > hold.deadline:
            self.renew(hold, max(hold.ttl, hold.pending_ttl), now)
        elif hold.renewed and not was_renewed:
            hold.schedule_renewal(now, random.random())  # noqa: S311 - no secret
            self._agenda.put(hold, now)

    def hand_over(self, hold: HeldLease) -> None:
        """
        End *hold* without a release: another process continues with its key.

        A master that hung may execute an earlier request late: the acquisition, or a
        restoration. By then the other process has given the key a new value, or the lock
        is free, and the old value would block the lock there for a whole ttl. After a
        normal end the release, which follows on the same connection, deletes the value.
        Here a release of the old value follows when its ttl is over.
        """
        masters = self.masters
        held = masters.clock() - hold.held_since
        hold.hand_over()
        self._agenda.remove(hold)
        self._failed.pop(hold, None)
        hold.queue.on_lease_ended(hold, masters.clock())
        if masters.emitter is not None:
            masters.emitter.emit_soon(hold.end_event(held))
        masters.loop.call_later(hold.longest_ttl / 1000, self._release_old, hold)

    def _release_old(self, hold: HeldLease) -> None:
        if not self.masters.closed:
            take_back(self.masters, hold.claim, hold.longest_ttl)

    def _end(self, hold: HeldLease, now: float) -> None:
        self._agenda.remove(hold)
        if self._failed:
            self._failed.pop(hold, None)
        hold.extension = None  # it refers to the lease, which would stay until a garbage collection
        if hold.keep_until > now and hold.state is RELEASED:
            left = math.ceil((hold.keep_until - now) * 1000)
            hold.released = keeping = Keeping(self.masters, hold, left)
            self.masters.send(keeping)
            if leaving := hold.claim.leave():
                # The next waiter of the fair queue is woken, and asks when the key expires.
                self.masters.send(Query(self.masters.links, leaving, repeat=True))
        else:
            hold.released = take_back(self.masters, hold.claim, hold.longest_ttl)
        hold.queue.on_lease_ended(hold, now)

    def is_awaited(self) -> bool:
        """Return whether a task that was cancelled, and has not ended yet, holds a lease."""
        tasks = (
            ref()
            for hold in self._agenda.leases()
            for ref in (hold.task, *hold.others)
            if ref is not None
        )
        return any(task and task.cancelling() and not task.done() for task in tasks)

    def abandon(self) -> None:
        """Mark all leases of a closed event loop as lost; nothing is sent to the masters."""
        now, emitter = self.masters.clock(), self.masters.emitter
        for hold in self._agenda.leases():
            hold.abandon()
            if emitter is not None:
                emitter.emit_soon(hold.end_event(now - hold.held_since))
        self._agenda.clear()
        self._failed.clear()

    def close(self, cause: LossCause = LossCause.CLOSED) -> None:
        """Lose all leases: nothing would extend them any more."""
        for hold in self._agenda.leases():
            self.lose(hold, Loss(cause))
        self._agenda.clear()
