"""
The queues of all masters, as one process stands in them.

Here is what its waiters share: the places that they get from the masters' time,
and the channel on which a master wakes who is next. A process listens to its own
channel for as long as any of its tasks waits.
"""

import asyncio
from secrets import token_hex
from typing import Protocol

from redlock_aio._engine.masters import Fleet
from redlock_aio._protocol import commands, replies
from redlock_aio._protocol.request import Subscription

IDLE = 1.0
"""For how many seconds a process goes on listening when none of its tasks waits."""


class Member(Protocol):
    """One task that waits."""

    member: bytes
    place: int

    def called(self, master: int) -> None:
        """Hear from a master that it is our turn there."""

    def forgotten(self, master: int) -> None:
        """Hear that a master may have forgotten us."""

    def ring(self) -> None:
        """Let the task look what has become of it."""


class Queues:
    """
    The queues of all masters, as one process stands in them.

    Args:
        fleet: The masters.
    """

    def __init__(self, fleet: Fleet) -> None:
        self.fleet = fleet
        self.client: bytes = token_hex(8).encode()
        self.waiters: dict[bytes, Member] = {}
        self._members = 0
        self._listening = False
        self._idle: asyncio.TimerHandle | None = None

    def __repr__(self) -> str:
        return f"<Queues, {len(self.waiters)} waiters>"

    def enter(self, waiter: Member) -> None:
        """Give a waiter a name of its own, and a place behind all others of this process."""
        self.waiters.pop(waiter.member, None)
        self._members += 1
        waiter.member = b"%b/%d" % (self.client, self._members)
        waiter.place = self.fleet.clocks.new_time(self.fleet.clock())
        self.waiters[waiter.member] = waiter

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
        # A master that does not allow it wakes nobody; its waiters ask by their heartbeats.
        request = Subscription(commands.subscription(self.client, begins=begins))
        self.fleet.links[master].send(request.payload, (request,))

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
        back, gone = push == replies.EVERYTHING_CHANGED, push == replies.GONE
        if back or gone:
            if back and self._listening:
                self._subscribe(master, begins=True)
            for waiter in list(self.waiters.values()):
                waiter.forgotten(master)
            return
        called = self.waiters.get(replies.called(push))
        if called is not None:
            called.called(master)

    def close(self) -> None:
        """Let everybody who waits find out that it is over."""
        self._listening = False
        if self._idle is not None:
            self._idle.cancel()
        for waiter in self.waiters.values():
            waiter.ring()
