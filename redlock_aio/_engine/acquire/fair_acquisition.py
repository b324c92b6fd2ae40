"""One call of `Lock.acquire` with ``fair=True``: the wait in the queues of the masters."""

import math

from redlock_aio._engine.options import LockSpec
from redlock_aio._engine.session import Session
from redlock_aio._engine.wait.fair_claim import FairClaim, Wanted
from redlock_aio._engine.wait.fair_waiter import FairWaiter
from redlock_aio._engine.wait.local_queue import LocalQueue
from redlock_aio._engine.wait_budget import WaitBudget
from redlock_aio._rules.fair_ticket import ASKED
from redlock_aio._rules.quorum import NOT_YET, is_final

TIMER_SLACK = 0.001
"""Seconds before its end at which a wait counts as over: a timer may fire a little early."""

LOOK_INTERVAL = 1.0
"""Seconds between two checks of the votes of a waiter without a wake-up, after the first."""


async def acquire(
    lock: LockSpec, session: Session, budget: WaitBudget, line: LocalQueue
) -> FairClaim:
    """
    Wait in the queues of the masters until *lock* is acquired.

    Args:
        line: The local queue of the resource.

    Raises:
        LockNotAcquiredError: Others held it to the end, or too many wait.

        QuorumUnavailableError: Too few masters answered.

        RedlockError: The manager was closed.

    Cancellation:
        The acquisition did not happen: no key stays, and no place in a queue.
    """
    fleet = session.masters
    fleet.check_open()
    ends = budget.began + budget.wait / 1000 - TIMER_SLACK if budget.wait else math.inf
    met, look = False, fleet.master_timeout / 1000
    waiter = _waiter(lock, session, budget, line)
    try:
        waiter.begin()
        while True:
            await waiter.wait(min(ends - fleet.clock(), look))
            if await waiter.win():
                if met:
                    fleet.outages.over()
                return waiter.claim
            over = fleet.clock() >= ends
            unheard = waiter.ticket.count(ASKED) > len(fleet.links) - waiter.ticket.needed
            least = budget.began + fleet.trips.at_least / 1000 - TIMER_SLACK
            if over and unheard and ends < least:
                # The wait was too short for an answer. Wait for one as with a wait of 0:
                # masters without time to answer must not be reported as unreachable.
                waiter.patient = False
                ends = least
                continue
            waiter.claim.replies = list(waiter.replies)
            votes = waiter.claim.votes()
            waiter.check(lock.resources, budget.began, over=over or is_final(votes))
            missing = [i for i, reply in enumerate(waiter.replies) if reply is NOT_YET]
            met, look = fleet.outages.note(lock.resources, votes, missing, met), LOOK_INTERVAL
    except BaseException:
        # A majority may have granted the lock while this task was being cancelled. The release
        # deletes those grants and wakes the next waiter. It follows every request of this
        # waiter on each connection, and the masters execute them in that order.
        waiter.leave()
        raise


def _waiter(lock: LockSpec, session: Session, budget: WaitBudget, line: LocalQueue) -> FairWaiter:
    fleet = session.masters
    wanted = Wanted(
        lock.key,
        lock.options.ttl,
        fleet.stamp + lock.metadata,
        line.counter_of(lock.key, session.clock_lead) if lock.options.fencing else None,
        session.drift_factor,
        session.max_waiters,
    )
    return FairWaiter(session.fair_queue, line, wanted, patient=budget.wait != 0)
