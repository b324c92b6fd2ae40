"""
The fair queues of all masters, as the waiters of one session share them.

The waiters share the source of their places, which is the masters' time, and the channel
on which a master wakes the next waiter. The session subscribes to its own channel while
any of its tasks waits.
"""

import asyncio
from secrets import token_hex
from typing import Protocol

from redlock_aio._engine.masters import MasterSet
from redlock_aio._engine.wait.gate import Gate
from redlock_aio._engine.wait.local_queue import LocalQueues
from redlock_aio._protocol import commands, replies
from redlock_aio._protocol.primitives import Mutex
from redlock_aio._protocol.request import Request, Subscription

IDLE = 1.0
"""Seconds after the end of the last wait at which the wake-up channel is unsubscribed."""

AGAIN = 10.0
"""Seconds after which a subscription that a master has refused is repeated."""


class Waiter(Protocol):
    """One task that waits in the queues: a `FairWaiter`, or a fake in a test."""

    def called(self, master: int, permit: bytes) -> None:
        """
        Called with the number of a master that pushes that it is the waiter's turn there.

        Args:
            permit: The key of the permit that the waiter may have now; empty without permits.
        """

    def forgotten(self, master: int) -> None:
        """Called with the number of a master that may have forgotten the waiter."""

    def wake(self) -> None:
        """Called to wake the task, which then checks the outcome."""


class FairQueue:
    """The waiters of one session in the queues of all masters, and their wake-ups."""

    def __init__(
        self,
        masters: MasterSet,
        local_queues: LocalQueues,
        gate: Gate,
        *,
        max_waiters: int,
        clock_lead: int,
        key_prefix: bytes = b"",
    ) -> None:
        self.masters = masters
        self.local_queues = local_queues
        self.gate = gate
        self.max_waiters = max_waiters
        self.clock_lead = clock_lead
        self.client: bytes = token_hex(8).encode()
        self._key_prefix = key_prefix
        self.waiters: dict[bytes, Waiter] = {}
        """The tasks that wait, by their names in the queues; each enters itself."""
        self._members = 0
        self.listening: bool = False
        """Whether all masters were asked for wake-ups."""
        self._idle: asyncio.TimerHandle | None = None
        self._refused: set[int] = set()
        self._again: asyncio.TimerHandle | None = None

    def __repr__(self) -> str:
        return f"<FairQueue, {len(self.waiters)} waiters>"

    def new_entry(self, mark: bytes = b"") -> tuple[bytes, int]:
        """
        Return a name that no waiter has had, and a place behind all others of this session.

        Args:
            mark: The end of the name, by which the masters know what the waiter wants.
        """
        self._members += 1
        member = b"%b/%d%b" % (self.client, self._members, mark)
        return member, self.masters.clocks.new_time(self.masters.clock())

    def leave(self, member: bytes) -> None:
        """Remove a waiter; `IDLE` seconds after the last one, unsubscribe from wake-ups."""
        del self.waiters[member]
        if self.listening and not self.waiters and self._idle is None:
            self._idle = self.masters.loop.call_later(IDLE, self._listen_no_more)

    # Wake-ups.

    def listen(self) -> None:
        """Subscribe to wake-ups on all masters, unless that was done before."""
        if self._idle is not None:
            self._idle.cancel()
            self._idle = None
        if not self.listening:
            self.listening = True
            for master in range(len(self.masters.links)):
                self._subscribe(master, begins=True)

    def _subscribe(self, master: int, *, begins: bool) -> None:
        # A master that refuses the subscription wakes no waiter; heartbeats ask it instead.
        key = self._key_prefix
        request = Subscription(commands.subscription(self.client, begins=begins, key=key))
        if commands.is_sharded(key):
            # One that lacks or forbids SSUBSCRIBE gets SUBSCRIBE instead, and `publish.lua` there
            # uses PUBLISH. So the two agree, whatever the version of each server is.
            sharded = commands.subscription(self.client, begins=begins, key=key, sharded=True)
            request = Subscription(sharded, request.payload)
        if begins:
            request.on_reply = self._subscribed
        self.masters.send_to(master, request)

    def _subscribed(self, master: int, reply: object) -> None:
        # Else a permission that was granted too late would count from the next connection on, or
        # from the next time that nobody waits, which a busy program may never have.
        if self.listening and isinstance(reply, Exception):
            self._refused.add(master)
            if self._again is None:
                self._again = self.masters.loop.call_later(AGAIN, self._subscribe_again)

    def _subscribe_again(self) -> None:
        self._again = None
        refused, self._refused = self._refused, set()
        if self.listening:
            for master in refused:
                self._subscribe(master, begins=True)

    def _listen_no_more(self) -> None:
        self._idle = None
        if not self.waiters:
            self.listening = False
            for master in range(len(self.masters.links)):
                self._subscribe(master, begins=False)

    def on_push(self, master: int, push: object) -> None:
        """Notify the waiter that a *push* names, or all when *master* went down or came back."""
        back, gone = push == replies.EVERYTHING_CHANGED, push == replies.GONE
        if back or gone:
            if back and self.listening:
                self._subscribe(master, begins=True)
            for waiter in list(self.waiters.values()):
                waiter.forgotten(master)
            return
        self.call(master, *replies.called(push))

    def call(self, master: int, member: bytes, permit: bytes) -> None:
        """Notify the waiter *member* that it is its turn on *master*, or decline the permit."""
        called = self.waiters.get(member)
        if called is not None:
            called.called(master, permit)
        elif permit:
            # The waiter has left, or has got another permit. One that has got this permit is not
            # found here either, but its lease. That of another waiter of this process says nothing:
            # this master may have lost its key.
            held = self.local_queues.held(Mutex(permit))
            if all(holder.member != member for holder in held):
                self.decline(master, permit, member)

    def decline(self, master: int, permit: bytes, member: bytes) -> None:
        """Leave the queue of a permit to which *master* has moved *member*, for the next one."""
        self.masters.send_to(master, Request(commands.decline(permit, member)))

    def close(self) -> None:
        """Wake all waiting tasks, which then find the session closed."""
        self.listening = False
        for timer in (self._idle, self._again):
            if timer is not None:
                timer.cancel()
        for waiter in self.waiters.values():
            waiter.wake()
