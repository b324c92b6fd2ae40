"""The TIME round, which measures the offsets of the masters' clocks."""

import math

from redlock_aio._engine.masters import MasterSet, Query
from redlock_aio._protocol import commands, replies
from redlock_aio._rules.quorum import GRANTED, WON, Outcome


async def know_the_time(masters: MasterSet, at_most: float | None) -> bool:
    """
    Send a TIME round to the masters if one is due.

    Only the first round is awaited. Later rounds run in the background, because the known
    offsets are good enough until the replies arrive.

    Returns:
        Whether a round was awaited, and a majority answered.

    Args:
        at_most: The limit of the round in ms, if it is less than the master timeout.

    Cancellation:
        Replies that arrive later are still used.
    """
    due_at = masters.clocks.due_at
    if masters.clock() < due_at:
        return False
    began = masters.clock()

    def learn(master: int, reply: object) -> object:
        now = replies.time(reply)
        if now is None:
            return reply
        masters.clocks.learn(master, now, began, masters.clock())
        return GRANTED

    def ask_later(verdict: Outcome) -> None:
        if verdict is WON:
            masters.clocks.ask_later(masters.clock())

    times = Query(masters.links, commands.TIME, count=learn, then=ask_later)
    masters.send(times, at_most)
    if due_at > -math.inf:
        return False
    await masters.wait_for(times)
    # If too few masters have answered, the attempt fails for that reason, not for lack of the time.
    # A wrong proposal is corrected by the masters that refuse it: they reply with their time.
    masters.clocks.due_at = max(masters.clocks.due_at, masters.clock())
    return times.verdict is WON
