"""One call of `Lock.acquire` with ``fair=True``: the wait in the queues of the masters."""

import math

from redlock_aio._engine.options import LockSpec
from redlock_aio._engine.session import Session
from redlock_aio._engine.wait.fair_claim import FairClaim, FairOptions
from redlock_aio._engine.wait.fair_entry import FirstRequest
from redlock_aio._engine.wait.wakeup import WaitBudget
from redlock_aio._rules.fair_ticket import ASKED
from redlock_aio._rules.quorum import NOT_YET, is_final

TIMER_SLACK = 0.001
"""Seconds before its end at which a wait counts as over: a timer may fire a little early."""

LOOK_INTERVAL = 1.0
"""Seconds between two checks of the votes of a waiter without a wake-up, after the first."""


async def acquire(
    lock: LockSpec, session: Session, budget: WaitBudget, asking_since: float
) -> FairClaim:
    """
    Wait in the queues of the masters until *lock* is acquired.

    Args:
        asking_since: The instant from which the masters have the time for an answer, however
            short the wait is.

    Raises:
        LockNotAcquiredError: Others held the lock to the end, or too many wait.

        QuorumUnavailableError: Too few masters answered.

        RedlockError: The manager was closed.

    Cancellation:
        No key of the acquisition is left, and no place in a queue.
    """
    masters = session.masters
    masters.check_open()
    ends = budget.began + budget.wait / 1000 - TIMER_SLACK if budget.wait else math.inf
    in_outage, look = False, masters.master_timeout / 1000
    first = FirstRequest(session.fair_queue, _wanted(lock, session), patient=budget.wait != 0)
    try:
        await masters.ask(first, budget.attempt_limit())
        waiter = first.win()
        if waiter is None:
            return first.claim
        while True:
            await waiter.wait(min(ends - masters.clock(), look))
            if await waiter.win():
                if in_outage:
                    masters.outages.over()
                return waiter.claim
            over = masters.clock() >= ends
            unheard = waiter.ticket.count(ASKED) > len(masters.links) - waiter.ticket.needed
            least = asking_since + masters.trips.at_least / 1000 - TIMER_SLACK
            if over and unheard and ends < least:
                # The wait was too short for any reply. Wait for replies as with a wait of 0:
                # masters without time to answer must not be reported as unreachable.
                waiter.patient = False
                ends = least
                continue
            votes = waiter.votes()
            waiter.check(lock.resources, budget.began, over=over or is_final(votes))
            missing = [i for i, reply in enumerate(waiter.replies) if reply is NOT_YET]
            in_outage, look = (
                masters.outages.record(lock.resources, votes, missing, in_outage),
                LOOK_INTERVAL,
            )
    except BaseException:
        # A majority may have granted the lock while this task was being cancelled. The release
        # deletes those grants and wakes the next waiter. It follows every request of this
        # waiter on each connection, and the masters execute them in that order.
        first.leave()
        raise


def _wanted(lock: LockSpec, session: Session) -> FairOptions:
    masters, queue = session.masters, session.local_queues.of(lock.key)
    return FairOptions(
        lock.key,
        lock.options.ttl,
        masters.stamp + lock.metadata,
        queue.counter_of(lock.key, session.clock_lead) if lock.options.fencing else None,
        session.drift_factor,
        session.max_waiters,
    )
