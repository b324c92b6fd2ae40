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
import heapq
import itertools
import math
import random
from collections.abc import Callable, Collection
from operator import attrgetter

from anyio import CancelScope

from redlock_aio._engine.claim import Claim
from redlock_aio._engine.hold.held_lease import HeldLease, Sharer, task_ref
from redlock_aio._engine.hold.renewal import KeyCheck, Renewal, keep, send_together
from redlock_aio._engine.masters import MasterSet, Query
from redlock_aio._engine.wait.local_queue import LocalQueue, LocalQueues
from redlock_aio._protocol import replies
from redlock_aio._protocol.primitives import Mutex
from redlock_aio._rules import lock_value, timing
from redlock_aio._rules.causes import Loss, LossCause
from redlock_aio._rules.lease_state import (
    HELD,
    NEVER_STALLED,
    NOTHING_DUE,
    RELEASED,
    STEP,
    State,
    retry_pause,
)
from redlock_aio._rules.quorum import LOST, OPEN, WON, majority
from redlock_aio.errors import LockLostError

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

CHECK_INTERVAL = 0.02
"""
The shortest time in seconds between two checks of a key that is changed repeatedly, and from an
extension that failed to its repetition because a master is back, perhaps again and again.
"""

GONE = (LossCause.FORCED, LossCause.KEY_GONE)
"""Causes for which the masters may have ended the shares of all readers."""

IN_ADVANCE = (LossCause.LOOP_STALLED, LossCause.MAX_HOLD, LossCause.NOT_EXTENDED)
"""Causes that are told a little before the deadline, see `lease_state.MARGIN`."""

_deadline: Callable[[HeldLease], float] = attrgetter("deadline")


class Agenda:
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
        # Any thread may ask, see `Session.statistics`. The list is made in one step; a page that
        # the loop adds between two byte codes would end an iteration of the dict itself.
        return sum(map(len, list(self._pages.values())))

    def leases(self) -> list[HeldLease]:
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
            # A page that comes after the instant of the timer needs no timer of its own: `_tick`
            # arms the next one. Within `_tick` the instant is -inf, so that the pages which are
            # made there arm none.
            if at < self._armed_for:
                self._arm(now)
        page[hold] = None
        hold.page = page

    def remove(self, hold: HeldLease) -> None:
        hold.page.pop(hold, None)

    def clear(self) -> None:
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
        due: list[HeldLease] = []
        try:
            if due := self._take_due(now):
                self._attend(due, now)
        except BaseException:
            # A Ctrl-C has come between, and the loop may be run again, as by IPython. A lease that
            # is on no page would never be extended, and never be lost.
            for hold in due:
                if hold.state is HELD:
                    self.put(hold, now)
            raise
        finally:
            self._arm(now)

    def _take_due(self, now: float) -> list[HeldLease]:
        """Remove the leases from each page whose instant has come; return those that are due."""
        due: list[HeldLease] = []
        instants = self._instants
        left = BATCH
        while left and instants and instants[0] <= now:
            page = self._pages[instants[0]]
            while left and page:
                # The lease is on no page from here on. Every branch below and in `_attend` puts it
                # on one again, or ends it: a lease on no page would never be extended, and never
                # be lost.
                hold, _ = page.popitem()
                left -= 1
                if hold.due <= now or hold.check_at <= now:
                    due.append(hold)
                else:
                    # On a page after *now*, so the one that is emptied here stays the first of the
                    # heap.
                    self.put(hold, now)
            if not page:
                del self._pages[heapq.heappop(instants)]
        return due


def may_be_extended(hold: HeldLease) -> bool:
    """Return whether no extension of *hold* is underway that a new one would only follow."""
    last = hold.extension
    return not isinstance(last, Renewal) or last.is_worth_repeating()


class Watchdog:
    """Extends leases, and ends those that are lost."""

    __slots__ = (
        "_agenda", "_ending", "_factor", "_failed", "_local_queues", "_on_recheck", "_returned_at",
        "_to_retry", "_unchecked", "masters", "scope",
    )  # fmt: skip

    def __init__(self, masters: MasterSet, local_queues: LocalQueues, factor: float) -> None:
        self.masters: MasterSet = masters
        self._local_queues = local_queues
        self._factor = factor
        self._agenda = Agenda(masters.loop, masters.clock, self._attend)
        self._unchecked: dict[HeldLease, None] = {}  # leases whose keys are to be checked, in order
        self._failed: dict[HeldLease, Renewal] = {}  # leases whose last extension failed, and it
        self._ending: dict[HeldLease, None] = {}  # lost leases that are released at their deadlines
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
        return len(self._agenda)

    def hold(  # noqa: PLR0913, PLR0917 - all facts of a lease; positional, which is faster
        self,
        won: Claim,
        resources: tuple[str, ...],
        now: float,
        renewed: bool,
        turn: LocalQueue | None = None,
        ends: float = math.inf,
        keep_until: float = 0.0,
        owner: object = None,
    ) -> HeldLease:
        """Return the lease on what was *won*, which is extended, checked and ended from now on."""
        # Without a turn the local queue may have become idle, and have been dropped.
        queue = self._local_queues.of(won.key) if turn is None else turn
        hold = HeldLease(won, resources, queue, now, self._factor, renewed)
        hold.task = task_ref(asyncio.current_task(self.masters.loop))
        hold.keep_until = keep_until
        if ends != math.inf:
            hold.limit(ends)
        hold.on_recheck = self._on_recheck
        self._agenda.add(hold, now)
        if turn is not None:
            queue.on_acquired(hold, won.began, now)
        elif won.key.is_share:
            queue.add_reader(hold)
        else:
            queue.set_holder(hold)
        if owner is not None:
            # Before the callbacks, each of which compares it with its own owner. A task that asks
            # for the same lock stops its acquisition, and when it resumes it finds this lease as
            # the holder in the local queue. Otherwise it would wait for a lock that its owner has.
            hold.owner = owner
            for on_acquired in list(self._local_queues.owner_waiters):
                on_acquired(hold)
        return hold

    def recheck_soon(self, hold: HeldLease) -> None:
        """
        Check soon whether the masters still have the key of *hold*.

        Several calls in a short time, one for each master that pushes the change, lead to one
        check; another one follows if the key is changed again after the check was sent.
        """
        now = self.masters.clock()
        # A check that is due within the interval reads the key after this change, and covers it.
        # One that was sent has set `check_at` to infinity: it may have read the key before the
        # change, so another one follows.
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
            # A majority votes, also without this master: an extension that failed may hold now.
            # The instant is for those that are underway, which `apply_result` repeats.
            links = self.masters.links
            if sum(link.votes for link in links) >= majority(len(links)):
                self._returned_at = self.masters.clock()
                self._retry_failed()

    def _recheck_next(self) -> None:
        # Half as many in each turn of the loop as the agenda handles in one: deadlines and
        # extensions come in between, however many leases wait for a check.
        for hold in list(itertools.islice(self._unchecked, BATCH // 2)):
            del self._unchecked[hold]
            # Those that have ended since they were entered here are ignored by it.
            self.recheck_soon(hold)
        if self._unchecked:
            self.masters.loop.call_soon(self._recheck_next)

    def _retry_failed(self) -> None:
        """Extend at once the leases whose last extension failed: a majority is back."""
        # Not those that only wait for slow masters: they stay here until that fails too.
        helped = [hold for hold, last in self._failed.items() if last.is_worth_repeating()]
        if helped:
            idle = not self._to_retry
            for hold in helped:
                del self._failed[hold]
            waiting = dict.fromkeys([*self._to_retry, *helped])
            # With many leases it takes a while until the last one is extended.
            self._to_retry = sorted(waiting, key=_deadline, reverse=True)
            # Else `_retry_next` is scheduled already and takes the new list. A second chain would
            # extend twice as many leases in each turn of the loop, and leave less room for
            # deadlines.
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
            if hold.state is HELD and isinstance(last, Renewal) and last.verdict is LOST:
                self._retry_at_once(last, now)
        if self._to_retry:
            self.masters.loop.call_soon(self._retry_next)

    def _retry_at_once(self, failed: Renewal, now: float) -> None:
        failed.hold.retry_at(max(now, failed.began + CHECK_INTERVAL))
        self._agenda.put(failed.hold, now)

    def _attend(self, due: list[HeldLease], now: float) -> None:
        together: list[Renewal] = []
        for hold in due:
            # The deadline comes first: after a suspension all three may be due at once, and
            # neither a check nor an extension can revive the lease then.
            if hold.expired(now):
                self.lose(hold, self.why_expired(hold, now))
            elif now >= hold.check_at:
                self._check(hold, now)
            elif hold.renewed and not self.masters.closed and may_be_extended(hold):
                together.append(self._begin(hold, max(hold.ttl, hold.pending_ttl), now))
            else:
                # Not extended, or dropped without a release: the lease ends at its deadline. Or
                # the last extension is still underway, and is looked at again in a while.
                hold.schedule_retry(now)
                self._agenda.put(hold, now)
        # `begin_extension` has set `due` of each to the report of its loss. So the timer ends it if
        # no majority replies, and masters that hang delay no loss.
        send_together(self.masters, together)

    def _check(self, hold: HeldLease, now: float) -> None:
        # Set before the check is sent: a change that is pushed from now on needs another check.
        hold.check_at = NOTHING_DUE
        hold.checked_at = now
        self._agenda.put(hold, now)
        self.masters.send_and_watch(KeyCheck(self.masters, hold, self.lose))

    def renew(self, hold: HeldLease, ttl: int, now: float) -> Renewal:
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
        any order, also after the end of the lease.
        """
        # An older extension may be answered last. `extended` ignores it if a later one asked
        # for less: the masters have applied the newer, shorter ttl, and the key ends with that.
        hold = renewal.hold
        now = self.masters.clock()
        # The lease has ended since the extension was sent: no grant revives it, and no refusal
        # ends it a second time.
        if hold.state is not HELD:
            return False
        deadline = hold.deadline  # of before, for the event: `extended` moves it
        if renewal.verdict is WON and hold.extended(renewal.epoch, renewal.began, renewal.ttl, now):
            # If the next extension fails, the loss shows its votes, without those of rounds before
            # this success.
            hold.extension = None
            chance = random.random()  # noqa: S311 - no secret
            hold.schedule_renewal(now, chance, now - renewal.began)
            self._agenda.put(hold, now)
            # After `extended`: a restoration is sent for a valid lease only, for the
            # rest of its new validity.
            renewal.restore_missing()
            # Its neighbours failed when the same masters refused. Masters that refuse push
            # nothing when they stop, so this success is the only sign that a majority is back.
            # If it is the extension that had failed, by late replies, the masters are slow only:
            # the neighbours' replies come late, too.
            failed = self._failed.pop(hold, None)
            if failed is not None and failed is not renewal:
                self._retry_failed()
            if (emitter := self.masters.emitter) is not None:
                emitter.emit_soon(hold.extended_event(renewal.ttl, timing.remaining(deadline, now)))
            return True
        if renewal.refused_by_a_majority(hold.claim.unsent):
            self.lose(hold, renewal.why_refused())
        elif renewal.verdict is LOST:
            # It stays there until it is extended, ends, or is taken by `_retry_failed`. Without
            # this entry it would wait for its next try although a majority is back.
            self._failed[hold] = renewal
            # It was sent before a master's vote returned, and counts that master as away. Nothing
            # else would repeat it soon: `_retry_failed` ran before it was in `_failed`.
            if renewal.began < self._returned_at:
                self._retry_at_once(renewal, now)
            else:
                hold.schedule_retry(now)
                self._agenda.put(hold, now)
        return False

    async def extend(self, hold: HeldLease, ttl: int) -> None:
        """Extend *hold* to *ttl* milliseconds from now, trying until its deadline."""
        sent: list[Renewal] = []
        while True:
            now = self.masters.clock()
            # Read anew in each turn: while this task waits, the watchdog may extend or lose the
            # lease, and another task may release it or close the manager. A lease whose time is
            # over is lost here and not extended, also if the timer of the agenda is late.
            if hold.expired(now):
                self.lose(hold, self.why_expired(hold, now))
            if hold.loss is not None:
                raise LockLostError(hold.resources, *hold.loss)
            if hold.is_given_up:
                raise hold.not_held()
            self.masters.check_open()
            if not sent or sent[-1].is_worth_repeating():
                is_shorter = ttl < hold.ttl
                sent.append(self.renew(hold, ttl, now))
                if is_shorter:
                    self._leave_queue(hold)
            if sent[-1].verdict is OPEN:
                await self.masters.wait_for(sent[-1])
            # Also one that had timed out: a majority may have granted it since.
            if hold.valid(self.masters.clock()) and any(each.verdict is WON for each in sent):
                return
            if hold.state is not HELD:
                continue  # to say how it ended
            # A task waits for the extension, so it is repeated sooner than by the watchdog.
            pause = retry_pause(hold.ttl, self.masters.master_timeout)
            await asyncio.sleep(max(min(pause, hold.deadline - self.masters.clock()), 0))

    def _leave_queue(self, hold: HeldLease) -> None:
        """
        Tell the fair queue of *hold*, if it is in one, to ask when the key expires.

        The queue waits for a holder until the end that its grant had, although the key may end
        earlier now. Readers stay in it: to leave it gives up their share.
        """
        if not hold.claim.key.is_share and (leaving := hold.claim.leave()):
            self.masters.send(Query(self.masters, leaving, repeat=True))

    def why_expired(self, hold: HeldLease, now: float) -> Loss:
        return hold.why_expired(self._agenda.stall(now))

    def lose(self, hold: HeldLease, loss: Loss) -> None:
        """
        Mark *hold* as lost, release its key where it is left, and cancel its bodies.

        In this order: the release is queued for sending before any code of the program
        runs. A body that acquires the lock anew as it is cancelled asks behind it. A loss
        that is told in advance releases nothing before the deadline.
        """
        if hold.state is HELD:
            now = self.masters.clock()
            is_gone = loss.cause in GONE
            loss = self._or_expiry(hold, loss, now)
            hold.lose(loss)  # first: `_end` keeps the key of a released lease, see *hold_at_least*
            if loss.cause in IN_ADVANCE and now < hold.deadline:
                self._forget(hold)
                self._ending[hold] = None
                self._end_at_deadline(hold)
            else:
                self._end(hold, now)
            if is_gone and hold.claim.key.is_share:
                hold.queue.recheck_readers(now)
            hold.notify_lost()
            if (emitter := self.masters.emitter) is not None:
                emitter.emit_soon(hold.end_event(self.masters.clock() - hold.held_since))

    def _or_expiry(self, hold: HeldLease, loss: Loss, now: float) -> Loss:
        """
        Return *loss*, or why the lease has expired, if the key may be gone because of that.

        Requests leave at the end of a turn of the loop. If a callback of that turn blocks the loop
        until the key has expired, the replies say that it is gone, and are read before the timer
        runs that would report the stall. So they do if a release that was sent in time reaches the
        masters late. Those replies, the votes of *loss*, are no cause then: the lease would be
        over also if all masters had kept the key.
        """
        # Not before the deadline: then somebody has deleted the key, stall or not.
        if loss.cause is not LossCause.KEY_GONE or now < hold.deadline:
            return loss
        expired = self.why_expired(hold, now)
        # Of a stall nobody knows whether the last extension failed, or was only read too late.
        return expired._replace(votes=()) if expired.cause is LossCause.LOOP_STALLED else expired

    def lose_values(self, key: Mutex, values: Collection[bytes], cause: LossCause) -> None:
        """Lose the leases on *key* that the masters keep by one of *values*."""
        for hold in self._agenda.leases():
            shared = (
                hold.claim.key.is_share
                and lock_value.SHARED in values
                and key in hold.claim.key.each
            )
            if shared or hold.claim.token in values:
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
        # `HeldLease.reported` emits the end only if this is set. The end of a lease that was lost
        # before has been emitted by `lose`, and this line is not reached for it.
        hold.held_for = now - hold.held_since
        if hold.release(now):
            self._end(hold, now)
            return True
        hold.loss = self.why_expired(hold, now)
        self._end(hold, now)
        hold.notify_lost()
        return False

    def apply_release(self, hold: HeldLease) -> None:
        """Mark *hold* as lost if the replies to its release show that the key was gone."""
        release = hold.released
        if release is None or release.verdict is WON:
            return
        if release.refused_by_a_majority(hold.claim.unsent):
            loss = Loss(LossCause.KEY_GONE, votes=release.votes_so_far())
            hold.state = State.LOST
            hold.loss = self._or_expiry(hold, loss, self.masters.clock())
            hold.notify_lost()

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
        # Both: `ttl` is the last one that a majority has granted. An extension to less may be
        # underway (`requested_ttl`), and masters that have executed it keep the key for less
        # already.
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
            self.masters.take_back(hold.claim, hold.longest_ttl)

    def _end_at_deadline(self, hold: HeldLease) -> None:
        # The grants that are left may be all that another client lacks. It would hold the lock
        # within a round trip, while this program, or a thread of it, still counts on the time
        # that it was promised: bodies need a moment to end.
        if hold not in self._ending:
            return
        now = self.masters.clock()
        if now < hold.deadline:
            self.masters.loop.call_later(hold.deadline - now, self._end_at_deadline, hold)
        else:
            del self._ending[hold]
            self._end(hold, now)

    def _forget(self, hold: HeldLease) -> None:
        hold.page.pop(hold, None)
        if self._failed:
            self._failed.pop(hold, None)
        hold.extension = None  # it refers to the lease, which would stay until a garbage collection

    def _end(self, hold: HeldLease, now: float) -> None:
        self._forget(hold)
        if hold.keep_until > now and hold.state is RELEASED:
            left = math.ceil((hold.keep_until - now) * 1000)
            hold.released = keep(self.masters, hold, left)
            self._leave_queue(hold)
        else:
            hold.released = self.masters.take_back(hold.claim, hold.longest_ttl)
        # Last: it wakes the next task of this process, whose request must follow the release on
        # each connection. Before the release it would find the key of this lease there.
        hold.queue.on_lease_ended(hold, now)
        if hold.queue.contending:
            self.masters.let_next_join()

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

    def close(self, cause: LossCause = LossCause.CLOSED) -> None:
        """Lose all leases: nothing would extend them any more."""
        # Over a copy, which `leases` returns: `lose` takes each lease off its page.
        for hold in self._agenda.leases():
            self.lose(hold, Loss(cause))
        ending, self._ending = self._ending, {}
        for hold in ending:
            self._end(hold, self.masters.clock())
        self._agenda.clear()
