"""What one waiter in the masters' queues holds under one token, and its commands."""

import math
from typing import NamedTuple

from redlock_aio._engine.attempt import TOO_LATE, Attempt, agree
from redlock_aio._engine.masters import Fleet
from redlock_aio._protocol import commands
from redlock_aio._protocol.primitives import Counter, Key, Keys
from redlock_aio._protocol.request import Silence
from redlock_aio._rules import fair_ticket, fencing
from redlock_aio._rules.fair_ticket import ASIDE, BEHIND, FAILED, FULL, GRANTED, NEXT
from redlock_aio._rules.quorum import Answer

CALLS_LAST = 0.01
"""Seconds within which all masters should wake us after the first one; then they are asked."""

MEANS = {
    GRANTED: Silence(Answer.GRANTED),
    NEXT: Silence(Answer.HELD, "we are next"),
    BEHIND: Silence(Answer.HELD, "others come first"),
    FULL: Silence(Answer.HELD, "its queue is full"),
    FAILED: Silence(Answer.ERROR, "it got the request too late"),
    ASIDE: Silence(Answer.FREE, "too few others answer"),
}
"""The vote for each answer to a question of a waiter."""


class Wanted(NamedTuple):
    """What a fair waiter wants to have; the same under each of its tokens."""

    key: Key | Keys
    ttl: int
    """In milliseconds."""
    stamp: bytes
    """What follows the token in the value."""
    counter: Counter | None
    """The commands for a fencing token, if there is to be one."""
    factor: float
    """The drift factor."""
    most: int
    """How many may wait in a queue."""


class Claim(Attempt):
    """
    What a waiter holds of a lock, under one token.

    It gets a new token each time that it has given back what it held. Otherwise the
    command that gives it back, if a slow master executes it late, would take away
    what the same master has granted since.

    Args:
        wanted: What is to be held.

        member: The name of the waiter in the queues.
    """

    __slots__ = ("_fleet", "_keys", "_member", "_proposal", "_proposed_at", "_wanted")

    def __init__(self, fleet: Fleet, wanted: Wanted, member: bytes) -> None:
        self._fleet = fleet
        self._wanted = wanted
        self._proposal = 0
        self._proposed_at = -math.inf
        key = wanted.key
        super().__init__(fleet, key, wanted.ttl, wanted.stamp, wanted.counter)
        self._keys = (*key.each, *commands.queue_keys(*key.each))
        self._member = member
        self.unsent = (1 << len(fleet.links)) - 1

    def with_new_token(self, member: bytes) -> "Claim":
        """Return the claim that follows this one, which was given back."""
        return Claim(self._fleet, self._wanted, member)

    @property
    def member(self) -> bytes:
        """The name of the waiter in the queues."""
        return self._member

    @property
    def can_free(self) -> bool:
        """False: a release has more to do than to delete one key, it leaves the queue."""
        return False

    def release(self) -> bytes:
        """Return the command that releases it and leaves the queue."""
        return commands.leave(self._keys, self.token, self._member, stay=False)

    def only_leave(self) -> bytes:
        """Return the command that leaves the queue and keeps the lock."""
        return commands.leave(self._keys, self.token, self._member, stay=False, keep=True)

    def give_back(self) -> bytes:
        """Return the command that releases it and keeps the place in the queue."""
        return commands.leave(self._keys, self.token, self._member, stay=True)

    def send_release(self, ttl: int, *, stay: bool) -> None:
        """
        Send its release to the masters that may have granted it, and wake waiters here.

        Nothing is awaited.

        Args:
            ttl: For how many ms a master may keep it without the release.

            stay: Whether the place in the queues is kept.
        """
        self._fleet.release(self.give_back() if stay else self.release(), ttl, self)
        self._fleet.freed(self.key)

    def question(
        self, master: int, now: float, counters: list[int], *, place: int, most: int
    ) -> bytes:
        """
        Return the command that asks *master* for the lock and enters its queue.

        Args:
            counters: The counters of the masters that have granted the lock.

            place: The priority in the queue.

            most: How many may wait; with 0 no queue is entered.
        """
        offset = self._fleet.clocks.offset(master)
        late = commands.NEVER if offset is None else int((now + offset + TOO_LATE) * 1_000_000)
        return commands.enqueue(
            self._keys if self.counter is None else (*self._keys, *self.counter.keys),
            self.token,
            self.ttl,
            member=self._member,
            priority=place,
            lives=fair_ticket.LIVES,
            most=most,
            not_after=late,
            fence=self._proposal_at(now, counters),
        )

    def _proposal_at(self, now: float, counters: list[int]) -> tuple[bytes, ...]:
        """
        Return the arguments by which a question proposes a fencing token; none without one.

        Masters that are asked one by one within a short time get the same proposal.

        Args:
            counters: The counters of the masters that have granted the lock.
        """
        if self.counter is None:
            return ()
        if now > self._proposed_at + CALLS_LAST:
            time = self._fleet.clocks.new_time(now)
            # What the first masters have granted suits the others too, unless that is long ago.
            known = max(counters, default=0)
            self._proposal = known if abs(time - known) < TOO_LATE * 1_000_000 else time
            self._proposed_at = now
        return self.counter.proposed(self._proposal)

    def propose_anew(self) -> None:
        """Make the next question propose another time: a master has refused this one."""
        self._proposed_at = -math.inf

    async def settle_on(self, counters: list[int], needed: int) -> bool:
        """
        Make *needed* masters agree on a fencing token; return whether they do.

        Args:
            counters: The counters of the masters that have granted the lock.

        Cancellation:
            Counters may have been raised, which costs nothing but numbers.
        """
        if self.counter is not None and len(counters) >= needed:
            self.fence = fencing.agreed(counters, needed)
            if not self.fence:
                self.fence = await agree(self._fleet, self.counter, self.token, counters)
        return self.fence > 0
