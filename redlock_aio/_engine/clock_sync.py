"""The TIME round, which measures the offsets of the masters' clocks."""

import math

from redlock_aio._engine.masters import MasterSet
from redlock_aio._engine.round import Round
from redlock_aio._protocol import commands, replies
from redlock_aio._protocol.request import QuarantineRule
from redlock_aio._rules.quorum import GRANTED, WON


class Times(Round):
    """The request for the time of every master."""

    __slots__ = ("_began", "_masters")
    in_quarantine = QuarantineRule.COUNT

    def __init__(self, masters: MasterSet) -> None:
        super().__init__(masters.links, commands.TIME)
        self._masters = masters
        self._began = masters.clock()

    def on_reply(self, master: int, reply: object, /) -> None:
        """Update the clock offset of *master*; the round is won by the times of a majority."""
        now = replies.time(reply)
        if now is not None:
            masters = self._masters
            masters.clocks.learn(master, now, self._began, masters.clock())
            reply = GRANTED
        super().on_reply(master, reply)

    def settled(self) -> None:
        """Schedule the next TIME round if this one was won, and wake the task that awaits it."""
        if self.verdict is WON:
            self._masters.clocks.ask_later(self._masters.clock())
        super().settled()


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
    times = Times(masters)
    masters.send(times, at_most)
    if due_at > -math.inf:
        return False
    await masters.wait_for(times)
    # If too few masters have answered, the attempt fails for that reason, not for lack of the time.
    # A wrong proposal is corrected by the masters that refuse it: they reply with their time.
    masters.clocks.due_at = max(masters.clocks.due_at, masters.clock())
    return times.verdict is WON
