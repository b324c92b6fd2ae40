"""
One call of `Lock.acquire`: attempts, and the waits between them.

An attempt is one round with a token of its own. An attempt that fails, comes too late or is
cancelled is released on every master that may have granted it, before anything else happens:

    run ─► turn in the local queue ─► attempt ──────────────────────► won
                                        ▲  │ failed
                                        │  ▼
                                        └─ wait until a majority may be free (`Watch`), or a
                                           random time; give up at the end of the budget

With *fair* the masters keep the queue: see `fair_waiter`.
"""

import asyncio
import random
from collections.abc import Sequence
from typing import TYPE_CHECKING

from redlock_aio._engine.claim import Claim
from redlock_aio._engine.fenced import FencedAttempt
from redlock_aio._engine.hold.held_lease import HeldLease
from redlock_aio._engine.masters import ACQUIRE, Link, Round, votes
from redlock_aio._engine.options import LockSpec
from redlock_aio._engine.outages import Observer
from redlock_aio._engine.session import Session
from redlock_aio._engine.wait import fair_waiter, permit
from redlock_aio._engine.wait.local_queue import LocalPlace, LocalQueue
from redlock_aio._engine.wait.wakeup import LONGEST_LOOK, WaitBudget, Watch, hold_back, is_cut_short
from redlock_aio._protocol import request
from redlock_aio._protocol.primitives import JointMutex, Mutex, Permits
from redlock_aio._rules.absence import Absence
from redlock_aio._rules.blockers import Blockers
from redlock_aio._rules.quorum import SPLIT, WON, Vote, is_contended, is_final
from redlock_aio._rules.retry import SHORTEST_PAUSE
from redlock_aio._rules.timing import Pace, milliseconds
from redlock_aio.errors import LockNotAcquiredError, refusal


class Acquisition:
    """
    One acquisition of a lock: its place in the local queue, its attempts and its waits.

    An attempt ends as a `Claim`, if it has won, or as the `Watch` that has released it.

    Args:
        wait: The limit in ms; ``None`` for no limit, 0 for a single attempt.

        began: The instant at which *wait* began.

        asking_since: The instant from which the masters have the time for an answer, however
            little is left of *wait*: after *began*, if the first connections took some of it.

    Attributes:
        has_turn: Whether it has the turn in its local queue. A won lease or
            `LocalQueue.give_up` ends the turn.
    """

    __slots__ = (
        "_asking_since", "_began", "_lock", "_made_budget", "_masters", "_wait", "attempts",
        "has_turn", "queue", "session",
    )  # fmt: skip

    def __init__(
        self,
        lock: LockSpec,
        session: Session,
        wait: int | None,
        began: float,
        asking_since: float,
    ) -> None:
        self._lock = lock
        self.session = session
        self._masters = session.masters
        self._wait = wait
        self._began = began
        self._asking_since = asking_since
        self._made_budget: WaitBudget | None = None
        self.attempts = 0
        self.has_turn = False
        self.queue: LocalQueue = session.local_queues.of(lock.key)

    def __repr__(self) -> str:
        return f"<Acquisition of {self._lock!r}, {self.attempts} attempts>"

    @property
    def _budget(self) -> WaitBudget:
        """The budget, made on first use: an acquisition that is won at once needs none."""
        budget = self._made_budget
        if budget is None:
            self._made_budget = budget = WaitBudget(self._masters.clock, self._wait, self._began)
        return budget

    async def run(self) -> Claim:
        """
        Acquire the lock.

        Cancellation:
            No key stays on any master that can be reached, and no place in a queue.
        """
        options, now, wait = self._lock.options, self._began, self._wait
        if self.session.gate.is_shut and wait != 0:
            await self._wait_for_a_majority()
            now = self._masters.clock()
            self._renew_queue()
        if (options.fair or options.fencing) and now >= self._masters.clocks.due_at:
            await self._know_the_time()
        if options.fair:
            return await self._acquire_fairly()
        queue = self.queue
        tried = None
        if queue.take_turn():
            self.has_turn = True
        elif wait != 0 and options.retry.attempts is None:
            # Not with limited attempts, which do not wait for a turn: see `Retry`.
            tried = await self._wait_for_turn()
        # From here on this task may have the turn. Until a lease takes it over, whatever ends
        # the task has to pass it on, or all other tasks of this process wait for ever.
        try:
            if tried is not None and (isinstance(tried, Claim) or not self.has_turn):
                last = tried
            elif tried is None and self.has_turn and queue.open_at > now:
                last = await self._yield_and_attempt()
            else:
                last = await self._attempt(self._answer_limit() if wait else None)
            return last if isinstance(last, Claim) else await self._persist(last)
        except BaseException:
            if self.has_turn:
                queue.give_up()
            raise

    async def try_once(self) -> Claim:
        """
        Make one attempt, also if another task of this process has the turn.

        Returns:
            The claim of the attempt, won or failed.
        """
        options = self._lock.options
        if (options.fair or options.fencing) and self._began >= self._masters.clocks.due_at:
            await self._know_the_time()
        if options.fair:
            return await self._acquire_fairly()
        queue = self.queue
        self.has_turn = queue.take_turn()
        tried = None
        try:
            tried = await self._attempt(None)
        finally:
            if self.has_turn and not isinstance(tried, Claim):
                queue.give_up()
        return tried if isinstance(tried, Claim) else tried.claim

    async def _acquire_fairly(self) -> Claim:
        queues, since = self.session.fair_queue, self._asking_since
        lock, key = self._lock, self._lock.key
        if isinstance(key, Permits):
            return await permit.acquire(queues, lock, key, self._budget, since)
        return await fair_waiter.acquire(queues, lock, key, self._budget, since)

    async def _know_the_time(self) -> None:
        if not (masters := self._masters).closed:
            if await masters.know_the_time(self._answer_limit()):
                self._asking_since = masters.clock()  # the masters may take as long once more
            self._renew_queue()

    def _renew_queue(self) -> None:
        # After a wait without the turn: the idle queue may have been dropped meanwhile, and another
        # task may have a new one for the same key. With two queues both tasks would have the turn,
        # and this one would not hear that the lock was released.
        self.queue = self.session.local_queues.of(self._lock.key)

    # The turn among the tasks of this process.

    async def _wait_for_turn(self) -> Claim | Watch | None:
        """
        Wait for a turn in the queue, for as long as the budget allows.

        The error names who holds the lock, as this process knows it. Only if it does not know that
        shortly before the end of the budget, one attempt is made out of turn. The place in the
        queue is kept meanwhile: a turn that comes in the last moment is used.

        Returns:
            The result of the attempt that was made out of turn, if there was one.

        Raises:
            LockNotAcquiredError: The budget is over, and there was no such attempt.

        Cancellation:
            The turn is passed on to the next in the queue.
        """
        masters, queue, budget = self._masters, self.queue, self._budget
        loop, place = masters.loop, LocalPlace()
        queue.join(place)
        tried, known, has_come = None, None, False
        self._emit_waiting()
        try:
            if budget.wait is None:
                await place.wait(loop)
            else:
                last_attempt = budget.until_last_attempt(masters.master_timeout) or 0
                await place.wait(loop, last_attempt / 1000)
                if not place.has_turn:
                    known = self._known()
                    if known is None:
                        self._asking_since = masters.clock()
                        tried = await self._attempt(self._answer_limit())
                    if not isinstance(tried, Claim):
                        await place.wait(loop, max(budget.left(), 0) / 1000)
            has_come = place.has_turn  # the turn may have come while that attempt was underway
            if (known or isinstance(tried, Watch)) and budget.is_over:
                # Tasks that began together end together: a turn that one of them passes on at
                # that moment comes too late for the others.
                has_come = False
            if known and not has_come:
                raise await self._refusal_behind_others(known)
        finally:
            # A cancellation may come after the turn and before this task runs. The task has the
            # turn then, and the queue stands still if the turn is not passed on.
            if not has_come:
                queue.leave(place)
        self._asking_since = masters.clock()
        self.has_turn = has_come
        return tried

    def _known(self) -> tuple[tuple[Vote, ...], Blockers | None] | None:
        """
        Return the votes for an error of this task, as other tasks of this process know them.

        The holder is a lease of this process, or the task with the turn has asked the masters, or
        no majority can answer. The result is ``None`` while the first attempt is underway.
        """
        queue, gate = self.queue, self.session.gate
        if isinstance(queue.holder, HeldLease):
            return queue.holder.as_seen_by_others(self._masters)
        if queue.known is not None:
            failed, view, _ = queue.known
            given = failed.votes()
            # The task with the turn may wait at the gate since: what it knows is from before.
            return (gate.votes(given) if gate.is_shut else given), view
        return (gate.votes(), None) if gate.is_shut else None

    async def _refusal_behind_others(
        self, known: tuple[tuple[Vote, ...], Blockers | None]
    ) -> LockNotAcquiredError:
        given, view = self._known() or known
        last = self.queue.known
        if last is not None and view is last[1] and view.holder is None and is_contended(given):
            # The masters name the holder in their replies to the release of that attempt, which
            # are still underway if it has just failed. They take as long as those to the attempt.
            await asyncio.sleep(last[2] + 0.001)
            given, view = self._known() or (given, view)
        return self._refused(given, view)

    async def _yield_and_attempt(self) -> Claim | Watch:
        masters, queue, budget = self._masters, self.queue, self._budget
        delay = queue.yield_delay(masters.clock()) if budget.wait != 0 else 0.0
        if not delay:
            return await self._attempt(self._answer_limit())
        last_attempt = budget.until_last_attempt(masters.master_timeout) or 0
        # The turn is kept meanwhile: the pause is for other processes, not for the next task here.
        await asyncio.sleep(min(delay, last_attempt / 1000))
        result = await self._attempt(self._answer_limit())
        queue.on_yield_result(by_others=isinstance(result, Watch))
        return result

    # Attempts.

    def _answer_limit(self) -> float | None:
        """
        Return the limit in ms of an attempt whose votes are to name the holder.

        The limit exceeds a budget that is shorter than the masters may take to answer: otherwise
        healthy masters would seem not to answer.
        """
        limit = self._budget.attempt_limit()
        if limit is None:
            return None
        masters = self._masters
        return max(limit, masters.trips.at_least - (masters.clock() - self._asking_since) * 1000)

    async def _attempt(self, at_most: float | None, *, is_repeated: bool = False) -> Claim | Watch:
        """
        Ask all masters once for the lock, and release it there if a majority did not grant it.

        Cancellation:
            The attempt is released on every master to which it was sent.
        """
        masters, lock = self._masters, self._lock
        if masters.closed:
            masters.check_open()
        key, ttl = lock.key, lock.options.ttl
        if TYPE_CHECKING:
            assert isinstance(key, Mutex | JointMutex)  # semaphores and readers are fair
        if not is_repeated:
            self.attempts += 1
        token = masters.token() + masters.stamp + lock.metadata
        if lock.options.fencing:
            counter = self.queue.counter_of(key, self.session.clock_lead)
            claim = Claim(key, token, ttl, counter)
            round: Round = FencedAttempt(masters, claim, counter)
        else:
            claim = Claim(key, token, ttl)
            round = Round(masters, key.acquire(token, ttl), ACQUIRE, claim)
            claim.begin(round.replies, masters.clock())
        try:
            await masters.ask(round, at_most)
            if round.verdict is SPLIT and isinstance(round, FencedAttempt):
                # The masters that granted the lock have it by now: only their counters differ.
                await round.agree(at_most)
        except BaseException:
            # The release follows the request on each connection and cannot arrive before it.
            # Waiters of this process are notified here, because no master pushes a change to
            # the connection that made it (NOLOOP).
            masters.take_back(claim, ttl)
            self.session.local_queues.notify_released(key)
            raise
        if round.verdict is WON and not masters.closed:
            # The clock is read after the task has resumed, however long that took: an attempt
            # whose validity is over by then has failed.
            until = claim.began + lock.options.validity
            if masters.clock() < until:
                claim.until = until
                return claim
        if round.is_curable and not is_repeated:
            # The cure is on its way: the connection has sent the scripts again, or this refusal
            # has shown the master's clock. So no pause, and no count as another attempt.
            masters.take_back(claim, ttl)
            return await self._attempt(at_most, is_repeated=True)
        absent = self._absence(round) if self.has_turn and self._wait != 0 else 0.0
        watch = Watch(self.session.local_queues, round, claim, absent)
        # The release is also the question who holds the lock. With tracking on, each master
        # pushes the next change after this very reply: no release falls between the two.
        (masters.send if self._wait == 0 or absent else masters.send_and_watch)(watch)
        return watch

    def _absence(self, failed: Round) -> float:
        """Return for how many seconds to be absent after *failed*; 0 to ask for pushes."""
        masters, absence, retry = self._masters, self.queue.absence, self._lock.options.retry
        left = 0.0 if absence is None or retry.attempts else absence.left(masters.clock())
        # A short wait could miss all moments at which the lock is free; after its last attempt
        # only a push helps. Without a majority a release is near, which all absent would miss.
        short = 2000 * left > (self._budget.until_last_attempt(masters.master_timeout) or 0)
        if not left or short or failed.granted or not is_contended(failed.votes()):
            return 0.0
        return min(left, milliseconds(retry.max_delay, name="max_delay") / 1000)

    async def _persist(self, watch: Watch) -> Claim:
        """
        Repeat the attempt that *watch* has released, until the lock is won or the budget is over.

        The last attempt without a wake-up is made so early that its replies arrive before the
        budget is over. From then to the end of the budget, attempts follow only a wake-up: a
        master or a lease of this process has reported that the lock may be free.
        """
        masters, budget, retry = self._masters, self._budget, self._lock.options.retry
        queue, pace = self.queue, Pace()
        observer = Observer(masters.outages, self._lock.resources)
        known = self._made_known(watch)  # the last one for whose replies there was time
        while True:
            failed = watch.failed
            last_attempt = budget.until_last_attempt(masters.master_timeout)
            pause = retry.delay(self.attempts, random.random())  # noqa: S311 - no secret
            if watch.absent:
                pause = watch.absent * 1000
            delay = budget.left() if last_attempt is None else min(pause, last_attempt)
            enough = delay <= SHORTEST_PAUSE or self.attempts == retry.attempts
            if enough or is_final(failed.votes()):
                raise await self._refusal(known)
            limited = retry.attempts is not None
            most = delay if last_attempt is None or limited else last_attempt
            may_be_free = await self._wait_until_free(watch, delay / 1000, most / 1000)
            if may_be_free and self.has_turn:
                queue.absence = queue.absence or Absence(masters.stamp[1:])
                queue.absence.on_lost(watch.view.holder, masters.clock() - watch.claim.began)
            # The votes once more: masters have replied during the wait, and now their replies
            # to the release show who holds the lock, and for how long.
            votes = watch.view.explain(failed.votes(), masters.clock())
            if (last_attempt is None and not may_be_free) or is_final(votes):
                raise await self._refusal(known)
            if masters.closed:  # the rounds were ended, and tell nothing of the masters
                masters.check_open()
            observer.record(votes, failed.missing)
            await self._wait_for_the_masters(watch, observer, known)
            # After the wake-up and before the attempt: without the jitter all waiters that one
            # release wakes would split the votes again, and without the pace masters that
            # contradict themselves would be asked in a busy loop.
            queue.adapt_jitter(watch.is_split, watch.took)
            await hold_back(masters, queue, budget, pace.pause(masters.clock(), watch.view.holder))
            at_most = budget.attempt_limit()
            result = await self._attempt(at_most)
            if isinstance(result, Claim):
                observer.on_majority()
                return result
            watch = result
            if not is_cut_short(watch.failed, at_most, masters.master_timeout):
                known = self._made_known(watch)

    def _made_known(self, watch: Watch) -> Watch:
        """Return *watch*, which this error will tell, and those of tasks that wait for the turn."""
        if self.has_turn:
            self.queue.known = watch.failed, watch.view, watch.took
        return watch

    async def _wait_for_the_masters(self, watch: Watch, observer: Observer, known: Watch) -> None:
        """
        Wait until the masters may grant a repetition of the attempt that *watch* has released.

        Raises:
            LockNotAcquiredError, QuorumUnavailableError: The budget is over.
        """
        # A majority that has answered the attempt can answer another one. That the release is
        # underway says nothing then: a lease of this process may have ended meanwhile.
        answered = is_contended(watch.failed.votes()) or watch.is_worth_repeating()
        if answered and self._lock.options.retry.attempts is None:
            last_attempt = self._budget.until_last_attempt(self._masters.master_timeout) or 0
            await observer.take_turn(last_attempt / 1000)
        if self.session.gate.is_shut or not answered:
            await self._wait_for_a_majority(known)

    async def _wait_for_a_majority(self, known: Watch | None = None) -> None:
        """
        Wait while no majority could answer an attempt, and until the last one is due.

        Args:
            known: The last attempt of this task, if it has made one.

        Raises:
            LockNotAcquiredError, QuorumUnavailableError: The budget is over.
        """
        masters, budget, gate = self._masters, self._budget, self.session.gate
        if self._lock.options.retry.attempts is not None:
            return  # it gives up after so many attempts, also if no master ever answers
        seconds = (budget.until_last_attempt(masters.master_timeout) or 0) / 1000
        if seconds > 0:
            self._emit_waiting()
            if not await gate.wait(seconds, budget.left() / 1000):
                before, view = ((), None) if known is None else (known.failed.votes(), known.view)
                raise self._refused(gate.votes(before), view)
            self._asking_since = masters.clock()

    def _refused(self, given: tuple[Vote, ...], view: Blockers | None) -> LockNotAcquiredError:
        # The votes of rounds that the close has ended would read as a fault of the masters.
        self._masters.check_open()
        return refusal(
            self._lock.resources,
            given,
            view,
            attempts=self.attempts,
            began=self._began,
            now=self._masters.clock(),
            permits=self._lock.options.permits or None,
        )

    async def _wait_until_free(self, watch: Watch, seconds: float, at_most: float) -> bool:
        """
        Wait until the lock may be free, and return whether it may.

        Args:
            seconds: The longest wait for it, if the masters do not report that it is free.

            at_most: The longest wait in any case.
        """
        # A release of this process is not pushed by the masters: the queue reports it. With the
        # turn this waiter is the watcher, otherwise a guest; see `LocalQueue`.
        if not self.has_turn:
            self._renew_queue()
        self.queue.subscribe(watch, mine=self.has_turn)
        self._emit_waiting()
        try:
            free = await watch.wait(seconds)
            look = LONGEST_LOOK * random.uniform(0.5, 1)  # noqa: S311 - no secret
            rest = min(look, at_most) - seconds
            # With many names that others hold, attempts that can only tell what is known would be
            # most of what this process and the masters do.
            return await watch.wait(rest) if rest > 0 and not free and watch.is_reported else free
        finally:
            self.queue.unsubscribe(watch)

    async def _refusal(self, known: Watch) -> LockNotAcquiredError:
        masters, failed = self._masters, known.failed
        masters.check_open()  # no wait for masters whose connections have ended
        if is_contended(failed.votes()) or not failed.complete:
            # Most masters that have not answered are only a little later, and the error should
            # name their votes. Only the error depends on this wait.
            await known.wait_for_stragglers()
        return self._refused(failed.votes(), known.view)

    def _emit_waiting(self) -> None:
        if self._masters.emitter is not None:
            self._masters.emitter.on_waiting()


def is_overload(given: tuple[Vote, ...]) -> bool:
    """Return whether too few masters were asked because of too many unanswered requests."""
    ours = any(vote.detail == request.OVERRUN.detail for vote in given)
    return ours and not is_contended(given)


def check_overload(
    resources: tuple[str, ...],
    links: Sequence[Link],
    why: Claim | LockNotAcquiredError,
    now: float,
    *,
    always: bool = False,
) -> None:
    """Raise the error of a single attempt that failed by overload; of any one with *always*."""
    if isinstance(why, LockNotAcquiredError):
        if always or is_overload(why.votes):
            try:
                raise why
            finally:
                del why
    elif always or request.OVERRUN in why.replies:
        given = votes(links, why.replies)
        if always or is_overload(given):
            raise refusal(resources, given, None, attempts=1, began=why.began, now=now)
