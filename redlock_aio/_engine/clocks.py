"""Asking the masters what time it is."""

from redlock_aio._engine.rounds import Fleet, Round
from redlock_aio._rules import protocol
from redlock_aio._rules.quorum import GRANTED, WON

LAST = 30.0
"""After how many seconds the masters are asked for their time again."""


class Times(Round):
    """The question what time it is."""

    __slots__ = ("_began", "_fleet")

    def __init__(self, fleet: Fleet) -> None:
        super().__init__(fleet.links, protocol.TIME)
        self._fleet = fleet
        self._began = fleet.clock()

    def answered(self, master: int, reply: object, /) -> None:
        """Note the time; the round is settled when a majority has told it."""
        now = protocol.time(reply)
        if now is not None:
            fleet = self._fleet
            fleet.clocks.learn(master, now, self._began, fleet.clock())
            reply = GRANTED
        super().answered(master, reply)

    def settled(self) -> None:
        """Note when the time was known."""
        if self.verdict is WON:
            self._fleet.time_known_at = self._fleet.clock()
        super().settled()


async def know_the_time(fleet: Fleet) -> None:
    """
    Ask the masters for their time unless that was done lately.

    It is waited for the first time only; after that what is known will do until
    the answers come.

    Cancellation:
        Answers that come later are used later.
    """
    age = fleet.clock() - fleet.time_known_at
    if age < LAST:
        return
    times = Times(fleet)
    fleet.ask(times)
    if age < 2 * LAST:
        return
    times.waiter = fleet.loop.create_future()
    await times.waiter
