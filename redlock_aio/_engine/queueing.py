"""From the wish to have a lock in turn to a majority of the masters."""

import math

from redlock_aio._engine.claim import Claim
from redlock_aio._engine.clocks import know_the_time
from redlock_aio._engine.queues import Queues
from redlock_aio._engine.rounds import Fleet
from redlock_aio._engine.waiter import Waiter
from redlock_aio._engine.waiting import time_to_answer
from redlock_aio._rules.fairness import ASKED
from redlock_aio._rules.fencing import Counter
from redlock_aio._rules.keys import Key, Keys
from redlock_aio.errors import RedlockError

TIMER_SLACK = 0.001
"""Seconds by which a wait may end early rather than be looked at once more."""


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
    if fleet.closed:
        raise RedlockError(fleet.why_closed)
    # A timer may fire a little early.
    ends = began + wait / 1000 - TIMER_SLACK if wait else math.inf
    line = fleet.line(key)
    waiter = Waiter(queues, line, key, ttl, factor, stamp, most, counter, patient=wait != 0)
    try:
        waiter.begin()
        while True:
            await waiter.wait(ends - fleet.clock() if wait else None)
            if await waiter.win():
                return waiter.claim
            over = fleet.clock() >= ends
            unheard = waiter.ticket.count(ASKED) > len(fleet.links) - waiter.ticket.needed
            least = began + fleet.trips.at_least / 1000 - TIMER_SLACK
            if over and unheard and ends < least:
                # The wait was too short for an answer. One is waited for, as it is
                # with a wait of 0: no answer is not the same as masters that are away.
                waiter._patient = False
                ends = least
                continue
            waiter.check(resources, began, over=over)
    except BaseException:
        waiter.leave()
        raise
