"""
The queues of all masters, as one process stands in them.

Here is what its waiters share: the masters' time, from which each gets its place,
and the channel on which a master wakes who is next. A process listens to its own
channel for as long as any of its tasks waits.
"""

import asyncio
import math
from secrets import token_hex
from time import time
from typing import Protocol

from redlock_aio._engine.rounds import Fleet, Round
from redlock_aio._rules import fairness, protocol
from redlock_aio._rules.quorum import GRANTED, WON

CLOCKS_LAST = 30.0
"""After how many seconds the masters are asked for their time again."""

IDLE = 1.0
"""For how many seconds a process goes on listening when none of its tasks waits."""


class Member(Protocol):
    """One task that waits."""

    member: bytes

    def called(self, master: int) -> None:
        """Hear from a master that it is our turn there."""

    def forgotten(self, master: int) -> None:
        """Hear that a master may have forgotten us."""

    def ring(self) -> None:
        """Let the task look what has become of it."""


class Clocks(Round):
    """The question what time it is."""

    __slots__ = ("_began", "_queues")

    def __init__(self, queues: "Queues") -> None:
        super().__init__(queues.fleet.links, protocol.TIME)
        self._queues = queues
        self._began = queues.fleet.clock()

    def answered(self, master: int, reply: object, /) -> None:
        """Note the time; the round is settled when a majority has told it."""
        now = protocol.time(reply)
        if now is not None:
            self._queues.learn(master, now, self._began)
            reply = GRANTED
        super().answered(master, reply)


class Queues:
    """
    The queues of all masters, as one process stands in them.

    Args:
        fleet: The masters.
    """

    def __init__(self, fleet: Fleet) -> None:
        self.fleet = fleet
        self.client = token_hex(8).encode()
        self.waiters: dict[bytes, Member] = {}
        self._offsets: list[float | None] = [None] * len(fleet.links)
        self._known_at = -math.inf
        self._last_place = 0
        self._members = 0
        self._listening = False
        self._idle: asyncio.TimerHandle | None = None

    def __repr__(self) -> str:
        return f"<Queues, {len(self.waiters)} waiters>"

    # What time it is there.

    async def know_the_time(self) -> None:
        """
        Ask the masters for their time unless that was done lately.

        Cancellation:
            Answers that come later are used later.
        """
        if self.fleet.clock() - self._known_at < CLOCKS_LAST:
            return
        round = Clocks(self)
        self.fleet.ask(round)
        round.waiter = self.fleet.loop.create_future()
        await round.waiter
        if round.verdict is WON:
            self._known_at = self.fleet.clock()

    def learn(self, master: int, time: int, sent: float) -> None:
        """Note that it was *time*, in us, at *master*, some time since *sent*."""
        least, most = time / 1_000_000 - self.fleet.clock(), time / 1_000_000 - sent
        known = self._offsets[master]
        if known is None or most - least < self.fleet.master_timeout / 1000:
            self._offsets[master] = (least + most) / 2
        else:  # an answer that was read late says little, but is not to be contradicted
            self._offsets[master] = min(max(known, least), most)

    def offset(self, master: int) -> float | None:
        """Return what a master's clock is ahead of ours, in seconds, if that is known."""
        return self._offsets[master]

    def new_place(self) -> tuple[bytes, int]:
        """Return a name for a new waiter, and its place behind all others of this process."""
        now = self.fleet.clock()
        # If no master has told its time, none can be asked for a place either; by
        # the time that one can, our own clock's is better than none.
        known = [offset for offset in self._offsets if offset is not None] or [time() - now]
        self._last_place = fairness.place(now, known, self._last_place)
        self._members += 1
        return b"%b/%d" % (self.client, self._members), self._last_place

    # Being woken.

    def listen(self) -> bool:
        """Have the masters wake us; return whether that is new."""
        if self._idle is not None:
            self._idle.cancel()
            self._idle = None
        if self._listening:
            return False
        self._listening = True
        self.fleet.flush()
        for master in range(len(self.fleet.links)):
            self._subscribe(master, begins=True)
        return True

    def _subscribe(self, master: int, *, begins: bool) -> None:
        subscription = protocol.Subscription(self.client, begins=begins)
        self.fleet.links[master].send(subscription.payload, (subscription,))

    def left(self, waiter: Member) -> None:
        """Forget a waiter; some time after the last one, listen no more."""
        del self.waiters[waiter.member]
        if self._listening and not self.waiters and self._idle is None:
            self._idle = self.fleet.loop.call_later(IDLE, self._listen_no_more)

    def _listen_no_more(self) -> None:
        self._idle = None
        if not self.waiters:
            self._listening = False
            for master in range(len(self.fleet.links)):
                self._subscribe(master, begins=False)

    def heard(self, master: int, push: object) -> None:
        """Wake whom a master calls; when it goes or comes back, tell all."""
        back, gone = push == protocol.EVERYTHING_CHANGED, push == protocol.GONE
        if back or gone:
            if back and self._listening:
                self._subscribe(master, begins=True)
            for waiter in list(self.waiters.values()):
                waiter.forgotten(master)
            return
        called = self.waiters.get(protocol.called(push))
        if called is not None:
            called.called(master)

    def close(self) -> None:
        """Let everybody who waits find out that it is over."""
        self._listening = False
        if self._idle is not None:
            self._idle.cancel()
        for waiter in self.waiters.values():
            waiter.ring()
