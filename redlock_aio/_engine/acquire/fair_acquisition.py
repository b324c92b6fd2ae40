"""One call of `Lock.acquire` with *fair*: the wait in the queues of the masters."""

import math

from redlock_aio._engine.local_queue import Line
from redlock_aio._engine.options import LockSpec
from redlock_aio._engine.session import Session
from redlock_aio._engine.wait.fair_claim import Claim, Wanted
from redlock_aio._engine.wait.fair_waiter import Waiter
from redlock_aio._engine.wait_budget import WaitBudget
from redlock_aio._rules.fair_ticket import ASKED
from redlock_aio._rules.quorum import NOT_YET, is_final

TIMER_SLACK = 0.001
"""Seconds by which a wait may end early, because a timer may fire a little early."""

LOOK_INTERVAL = 1.0
"""Seconds between two looks at the votes of a waiter that nothing wakes, after the first."""


async def acquire(lock: LockSpec, session: Session, budget: WaitBudget, line: Line) -> Claim:
    """
    Wait in the queues of the masters until *lock* is ours.

    Args:
        line: The local queue of the resource.

    Raises:
        LockNotAcquiredError: Others held it to the end, or too many wait.

        QuorumUnavailableError: Too few masters answered.

        RedlockError: The manager was closed.

    Cancellation:
        It did not happen: no key stays, and no place in a queue.
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
                # The wait was too short for an answer. One is waited for, as with a wait
                # of 0: no answer is not the same as masters that are away.
                waiter.patient = False
                ends = least
                continue
            waiter.claim.replies = list(waiter.replies)
            votes = waiter.claim.votes()
            waiter.check(lock.resources, budget.began, over=over or is_final(votes))
            missing = [i for i, reply in enumerate(waiter.replies) if reply is NOT_YET]
            met, look = fleet.outages.note(lock.resources, votes, missing, met), LOOK_INTERVAL
    except BaseException:
        # The release gives back what a majority may have granted while this task was being
        # cancelled, and wakes the next waiter; the masters execute it after every request.
        waiter.leave()
        raise


def _waiter(lock: LockSpec, session: Session, budget: WaitBudget, line: Line) -> Waiter:
    fleet = session.masters
    wanted = Wanted(
        lock.key,
        lock.options.ttl,
        fleet.stamp + lock.metadata,
        line.counter_of(lock.key, session.clock_lead) if lock.options.fencing else None,
        session.drift_factor,
        session.max_waiters,
    )
    return Waiter(session.fair_queue, line, wanted, patient=budget.wait != 0)
