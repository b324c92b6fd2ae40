"""The TIME round, by which the offsets of the masters' clocks are learnt."""

import math

from redlock_aio._engine.masters import MasterSet
from redlock_aio._engine.round import Round
from redlock_aio._protocol import commands, replies
from redlock_aio._protocol.request import Trust
from redlock_aio._rules.quorum import GRANTED, WON


class Times(Round):
    """The request for the time of every master."""

    __slots__ = ("_began", "_fleet")
    trust = Trust.FULL

    def __init__(self, fleet: MasterSet) -> None:
        super().__init__(fleet.links, commands.TIME)
        self._fleet = fleet
        self._began = fleet.clock()

    def answered(self, master: int, reply: object, /) -> None:
        """Update the clock offset of *master*; the round is won by the times of a majority."""
        now = replies.time(reply)
        if now is not None:
            fleet = self._fleet
            fleet.clocks.learn(master, now, self._began, fleet.clock())
            reply = GRANTED
        super().answered(master, reply)

    def settled(self) -> None:
        """Schedule the next TIME round if this one was won, and wake the task that awaits it."""
        if self.verdict is WON:
            self._fleet.clocks.ask_later(self._fleet.clock())
        super().settled()


async def know_the_time(fleet: MasterSet, at_most: float | None) -> None:
    """
    Send a TIME round to the masters if one is due.

    Only the first round is awaited. Later rounds run in the background, because the known
    offsets are good enough until the replies arrive.

    Args:
        at_most: How many ms it may take, if that is less than the master time-out.

    Cancellation:
        Replies that arrive later are still used.
    """
    due_at = fleet.clocks.due_at
    if fleet.clock() < due_at:
        return
    times = Times(fleet)
    fleet.send(times, at_most)
    if due_at > -math.inf:
        return
    await fleet.wait_for(times)
    # If too few masters have answered, the attempt fails for that reason and not for the time.
    # A wrong proposal is corrected by the masters that refuse it: they reply with their time.
    fleet.clocks.due_at = max(fleet.clocks.due_at, fleet.clock())
