"""From the wish to have a lock in turn to a majority of the masters."""

import math

from redlock_aio._engine.claim import Claim, Wanted
from redlock_aio._engine.clocks import know_the_time
from redlock_aio._engine.masters import Fleet
from redlock_aio._engine.queues import Queues
from redlock_aio._engine.waiter import Waiter
from redlock_aio._engine.waiting import time_to_answer
from redlock_aio._rules.fairness import ASKED
from redlock_aio._rules.fencing import Counter
from redlock_aio._rules.keys import Key, Keys
from redlock_aio._rules.quorum import NOT_YET, Vote, is_final

TIMER_SLACK = 0.001
"""Seconds by which a wait may end early rather than be looked at once more."""


LOOK = 1.0
"""Seconds between two looks at the votes of a waiter that nothing wakes, after the first."""


def _votes(waiter: Waiter) -> tuple[Vote, ...]:
    """Return the last vote of each master for *waiter*."""
    waiter.claim.replies = list(waiter.replies)
    return waiter.claim.votes()


async def acquire(
    fleet: Fleet,
    resources: tuple[str, ...],
    key: Key | Keys,
    ttl: int,
    factor: float,
    *,
    stamp: bytes,
    most: int,
    counter: Counter | None,
    began: float,
    wait: int | None,
) -> Claim:
    """
    Wait in the queues for *key* until it is ours.

    Args:
        ttl: In milliseconds.

        factor: The drift factor.

        stamp: What follows the token in the value.

        most: How many may wait.

        counter: The one from which it is to have a fencing token, if any.

        began: When the caller began to wait, on the fleet's clock.

        wait: For how many milliseconds from then; ``None`` for ever.

    Raises:
        LockNotAcquiredError: Others held it to the end, or too many wait.

        QuorumUnavailableError: Too few masters answered.

        RedlockError: The manager was closed.

    Cancellation:
        It did not happen: no key stays, and no place in a queue.
    """
    queues = fleet.queues
    if not isinstance(queues, Queues):
        fleet.queues = queues = Queues(fleet)
    if not fleet.closed:
        await know_the_time(fleet, time_to_answer(fleet, began, wait, began))
    fleet.check_open()
    # A timer may fire a little early.
    ends = began + wait / 1000 - TIMER_SLACK if wait else math.inf
    line = fleet.line(key)
    met, look = False, fleet.master_timeout / 1000
    wanted = Wanted(key, ttl, stamp, counter, factor, most)
    waiter = Waiter(queues, line, wanted, patient=wait != 0)
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
            least = began + fleet.trips.at_least / 1000 - TIMER_SLACK
            if over and unheard and ends < least:
                # The wait was too short for an answer. One is waited for, as it is
                # with a wait of 0: no answer is not the same as masters that are away.
                waiter.patient = False
                ends = least
                continue
            votes = _votes(waiter)
            waiter.check(resources, began, over=over or is_final(votes))
            missing = [i for i, said in enumerate(waiter.replies) if said is NOT_YET]
            met, look = fleet.outages.note(resources, votes, missing, met), LOOK
    except BaseException:
        waiter.leave()
        raise
