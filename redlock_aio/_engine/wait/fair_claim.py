"""The grants of one fair waiter under one token, and the commands for them."""

import math
from typing import NamedTuple

from redlock_aio._engine.claim import TOO_LATE, Claim, agree, release_by, with_queues
from redlock_aio._engine.masters import MasterSet
from redlock_aio._protocol import commands
from redlock_aio._protocol.primitives import FencingCounter, JointMutex, Mutex
from redlock_aio._protocol.request import NoReply
from redlock_aio._rules import fair_ticket, fencing
from redlock_aio._rules.fair_ticket import ASIDE, BEHIND, FAILED, FULL, GRANTED, NEXT
from redlock_aio._rules.quorum import Answer

PROPOSAL_LASTS = 0.01
"""Seconds for which the same fencing token is proposed to masters that are asked one by one."""

MEANS = {
    GRANTED: NoReply(Answer.GRANTED),
    NEXT: NoReply(Answer.HELD, "this waiter is next"),
    BEHIND: NoReply(Answer.HELD, "others come first"),
    FULL: NoReply(Answer.HELD, "its queue is full"),
    FAILED: NoReply(Answer.ERROR, "it got the request too late"),
    ASIDE: NoReply(Answer.FREE, "too few others answer"),
}
"""The vote for each kind of reply to a request of a waiter."""


class FairOptions(NamedTuple):
    """The lock and the options of a fair acquisition; the same under each of its tokens."""

    key: Mutex | JointMutex
    ttl: int
    """In milliseconds."""
    stamp: bytes
    """The suffix of the token, which identifies the holder."""
    counter: FencingCounter | None
    """The commands for a fencing token; ``None`` without fencing."""
    factor: float
    """The drift factor."""
    most: int
    """The limit of waiters in one queue; a further one is refused."""


class FairClaim(Claim):
    """
    The grants of one waiter under one token.

    Each time a waiter has given back its grants, a claim with a new token follows.
    Under the old token, a release that a slow master executes late would delete a key
    that the same master has granted since.

    Args:
        wanted: The lock, and the options of the acquisition.

        member: The name of the waiter in the queues.
    """

    __slots__ = ("_keys", "_masters", "_proposal", "_proposed_at", "wanted")

    def __init__(self, masters: MasterSet, wanted: FairOptions, member: bytes) -> None:
        token = masters.token() + wanted.stamp
        nobody = (1 << len(masters.links)) - 1
        super().__init__(wanted.key, token, wanted.ttl, wanted.counter, member, unsent=nobody)
        self.began = masters.clock()
        self.wanted: FairOptions = wanted
        """The lock, and the options of the acquisition."""
        self._masters = masters
        self._proposal = 0
        self._proposed_at = -math.inf
        self._keys = with_queues(wanted.key)

    def with_new_token(self, member: bytes) -> "FairClaim":
        """Return the claim that follows this one after its grants were given back."""
        return FairClaim(self._masters, self.wanted, member)

    def give_back(self) -> bytes:
        """Return the command that releases the lock and keeps the place in the queue."""
        return commands.leave(self._keys, self.token, self.member, keep_place=True)

    def send_release(self, ttl: int, *, keep_place: bool) -> None:
        """
        Release the lock on all masters that may have granted it; nothing is awaited.

        Args:
            ttl: The ms for which a master may keep the key, or the place, without the release.

            keep_place: Whether the place in the queues is kept.
        """
        payload = self.give_back() if keep_place else self.release()
        release_by(self._masters, self, payload, ttl)

    def question(
        self, master: int, now: float, counters: list[int], *, place: int, most: int
    ) -> bytes:
        """
        Return the command that asks *master* for the lock and enters its queue.

        Args:
            counters: The counters of the masters that have granted the lock.

            place: The priority in the queue.

            most: The greatest number of waiters; with 0 no queue is entered.
        """
        offset = self._masters.clocks.offset(master)
        late = commands.NEVER if offset is None else int((now + offset + TOO_LATE) * 1_000_000)
        entry = commands.QueueEntry(self.member, place, fair_ticket.LIVES, most, late)
        return self._enqueue(entry, self._proposal_at(now, counters))

    def first_question(self, place: int) -> bytes:
        """Return the first command, the same for all masters, which grants without an entry."""
        late = place + int((TOO_LATE + self._masters.clocks.spread) * 1_000_000)
        entry = commands.QueueEntry(self.member, place, fair_ticket.LIVES, self.wanted.most, late)
        return self._enqueue(entry, self._proposal_at(self.began, []), first=True)

    def _enqueue(
        self, entry: commands.QueueEntry, fence: tuple[bytes, ...], *, first: bool = False
    ) -> bytes:
        keys = self._keys if self.counter is None else (*self._keys, *self.counter.keys)
        return commands.enqueue(keys, self.token, self.ttl, entry, fence, first=first)

    def _proposal_at(self, now: float, counters: list[int]) -> tuple[bytes, ...]:
        """
        Return the arguments that propose a fencing token; none without fencing.

        Masters that are asked one by one within `PROPOSAL_LASTS` get the same proposal.

        Args:
            counters: The counters of the masters that have granted the lock.
        """
        if self.counter is None:
            return ()
        if now > self._proposed_at + PROPOSAL_LASTS:
            time = self._masters.clocks.new_time(now)
            # With the value that the first masters granted, all agree without another round.
            # But the other masters may refuse a value that is far from their time.
            known = max(counters, default=0)
            self._proposal = known if abs(time - known) < TOO_LATE * 1_000_000 else time
            self._proposed_at = now
        return self.counter.proposed(self._proposal)

    def propose_anew(self) -> None:
        """Make the next request propose another value, because a master refused this one."""
        self._proposed_at = -math.inf

    async def settle_on(self, counters: list[int], needed: int) -> bool:
        """
        Make *needed* masters agree on a fencing token; return whether they do.

        Args:
            counters: The counters of the masters that have granted the lock.

        Cancellation:
            Counters may stay raised, which only skips numbers.
        """
        if self.counter is not None and len(counters) >= needed:
            self.fence = fencing.agreed(counters, needed)
            if not self.fence:
                await agree(self._masters, self.counter, self, counters)
        return self.fence > 0
