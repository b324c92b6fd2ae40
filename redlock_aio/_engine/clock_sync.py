"""Asking the masters what time it is."""

import math

from redlock_aio._engine.masters import Fleet
from redlock_aio._engine.round import Round
from redlock_aio._protocol import commands, replies
from redlock_aio._protocol.request import Trust
from redlock_aio._rules.quorum import GRANTED, WON


class Times(Round):
    """The question what time it is."""

    __slots__ = ("_began", "_fleet")
    trust = Trust.FULL

    def __init__(self, fleet: Fleet) -> None:
        super().__init__(fleet.links, commands.TIME)
        self._fleet = fleet
        self._began = fleet.clock()

    def answered(self, master: int, reply: object, /) -> None:
        """Note the time; the round is settled when a majority has told it."""
        now = replies.time(reply)
        if now is not None:
            fleet = self._fleet
            fleet.clocks.learn(master, now, self._began, fleet.clock())
            reply = GRANTED
        super().answered(master, reply)

    def settled(self) -> None:
        """Note when the time is due again."""
        if self.verdict is WON:
            self._fleet.clocks.ask_later(self._fleet.clock())
        super().settled()


async def know_the_time(fleet: Fleet, at_most: float | None) -> None:
    """
    Ask the masters for their time unless that was done lately.

    It is waited for the first time only; after that what is known will do until
    the answers come.

    Args:
        at_most: How many ms it may take, if that is less than the master time-out.

    Cancellation:
        Answers that come later are used later.
    """
    due_at = fleet.clocks.due_at
    if fleet.clock() < due_at:
        return
    times = Times(fleet)
    fleet.send(times, at_most)
    if due_at > -math.inf:
        return
    await fleet.wait_for(times)
    # If too few have answered, their time is not what is missing; a proposal that is
    # wrong is put right by those who refuse it.
    fleet.clocks.due_at = max(fleet.clocks.due_at, fleet.clock())
