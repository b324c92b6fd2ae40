"""What one waiter in the masters' queues holds, and what it asks."""

import math
from typing import Protocol

from redlock_aio._engine.attempts import TOO_LATE, Attempt, agree
from redlock_aio._engine.rounds import Fleet
from redlock_aio._rules import fairness, fencing, protocol
from redlock_aio._rules.fairness import ASIDE, BEHIND, FAILED, FULL, GRANTED, NEXT
from redlock_aio._rules.fencing import Counter
from redlock_aio._rules.keys import Key, Keys
from redlock_aio._rules.protocol import Silence, Trust
from redlock_aio._rules.quorum import Answer

CALLS_LAST = 0.01
"""Seconds in which the calls of all masters should come, after the first; then they are asked."""

MEANS = {
    GRANTED: Silence(Answer.GRANTED),
    NEXT: Silence(Answer.HELD, "we are next"),
    BEHIND: Silence(Answer.HELD, "others come first"),
    FULL: Silence(Answer.HELD, "its queue is full"),
    FAILED: Silence(Answer.ERROR, "it got the request too late"),
    ASIDE: Silence(Answer.FREE, "too few others answer"),
}
"""The vote that an answer amounts to."""


class Asking(Protocol):
    """Whoever asks."""

    def answered(self, master: int, number: int, sent: float, reply: object) -> None:
        """Take the answer to a question."""

    def changed(self, master: int) -> None:
        """Hear that the lock may be free on a master."""


class Claim(Attempt):
    """
    What a waiter holds of a lock, under one token.

    The token is new after every time that it has given back what it had.
    """

    __slots__ = ("_fleet", "_keys", "_member", "_proposal", "_proposed_at")

    def __init__(
        self,
        fleet: Fleet,
        key: Key | Keys,
        member: bytes,
        ttl: int,
        stamp: bytes,
        counter: Counter | None,
    ) -> None:
        self._fleet = fleet
        self._proposal = 0
        self._proposed_at = -math.inf
        super().__init__(fleet, key, ttl, stamp, counter)
        self._keys = (*key.each, *protocol.queue_keys(*key.each))
        self._member = member
        self.unsent = (1 << len(fleet.links)) - 1

    def anew(self, member: bytes) -> "Claim":
        """Return one under another token, for after this was given back."""
        return Claim(self._fleet, self.key, member, self.ttl, self.stamp, self.counter)

    @property
    def member(self) -> bytes:
        """By which name it is waited for."""
        return self._member

    @property
    def can_free(self) -> bool:
        """Whether a release has nothing to do but to delete one key: there is a queue."""
        return False

    def release(self) -> bytes:
        """Return the command that takes it back, and leaves the queue."""
        return protocol.leave(self._keys, self.token, self._member, stay=False)

    def only_leave(self) -> bytes:
        """Return the command that leaves the queue, and takes nothing back."""
        return protocol.leave(self._keys, self.token, self._member, stay=False, keep=True)

    def give_back(self) -> bytes:
        """Return the command that takes it back, and keeps the place in the queue."""
        return protocol.leave(self._keys, self.token, self._member, stay=True)

    def let_go(self, ttl: int, *, stay: bool) -> None:
        """
        Take it back where it may live *ttl* ms, and tell who waits here; nothing is awaited.

        Args:
            stay: Whether the place in the queues is kept.
        """
        self._fleet.release(self.give_back() if stay else self.release(), ttl, self)
        self._fleet.freed(self.key)

    def question(
        self, master: int, now: float, counters: list[int], *, place: int, most: int
    ) -> bytes:
        """
        Return what asks *master* for the lock, and enters its queue.

        Args:
            counters: What those say that have granted the lock.

            place: Where in the queue.

            most: How many may wait; with 0 no queue is entered.
        """
        offset = self._fleet.clocks.offset(master)
        late = protocol.NEVER if offset is None else int((now + offset + TOO_LATE) * 1_000_000)
        return protocol.enqueue(
            self._keys if self.counter is None else (*self._keys, *self.counter.keys),
            self.token,
            self.ttl,
            member=self._member,
            priority=place,
            lives=fairness.LIVES,
            most=most,
            not_after=late,
            fence=self._proposal_at(now, counters),
        )

    def _proposal_at(self, now: float, counters: list[int]) -> tuple[bytes, ...]:
        """
        Return what a question says to have a fencing token, nothing if there is to be none.

        It is the same for masters that are asked one by one.

        Args:
            counters: What those say that have granted the lock.
        """
        if self.counter is None:
            return ()
        if now > self._proposed_at + CALLS_LAST:
            time = self._fleet.clocks.new_time(now)
            # What the first have granted suits the others too, unless that is long ago.
            known = max(counters, default=0)
            self._proposal = known if abs(time - known) < TOO_LATE * 1_000_000 else time
            self._proposed_at = now
        return self.counter.proposed(self._proposal)

    def propose_anew(self) -> None:
        """Let the next question propose another time: this one made no sense to a master."""
        self._proposed_at = -math.inf

    async def settle_on(self, counters: list[int], needed: int) -> bool:
        """
        Have *needed* masters agree on a fencing token; return whether they do.

        Args:
            counters: What those say that have granted the lock.

        Cancellation:
            Counters may have been raised, which costs nothing but numbers.
        """
        if self.counter is not None and len(counters) >= needed:
            self.fence = fencing.agreed(counters, needed)
            if not self.fence:
                self.fence = await agree(self._fleet, self.counter, self.token, counters)
        return self.fence > 0


class Question:
    """One request of one waiter to one master."""

    __slots__ = ("_number", "_sent", "_waiter", "debt_ttl", "payload")
    trust = Trust.NONE
    needless = 0

    def __init__(self, waiter: Asking, payload: bytes, number: int, sent: float) -> None:
        self._waiter = waiter
        self._number = number
        self._sent = sent
        self.payload = payload
        self.debt_ttl = 0

    def answered(self, master: int, reply: object, /) -> None:
        """Hand the reply on."""
        self._waiter.answered(master, self._number, self._sent, reply)


class Glance:
    """Whether the lock is still held, by those whom a waiter comes after."""

    __slots__ = ("_key", "_waiter", "debt_ttl", "payload")
    trust = Trust.FULL
    needless = 0

    def __init__(self, waiter: Asking, payload: bytes, key: Key | Keys) -> None:
        self._waiter = waiter
        self._key = key
        self.payload = payload
        self.debt_ttl = 0

    def answered(self, master: int, reply: object, /) -> None:
        """Ask at once if it is not."""
        if self._key.is_free(reply):
            self._waiter.changed(master)
