"""
One attempt to acquire a lock, plain or with a fencing token.

An attempt is one round with a token of its own. With fencing the masters reply with
their counters; if those of a majority differ, another round raises them to one value.
"""

from typing import ClassVar

from redlock_aio._engine.claim import Claim
from redlock_aio._engine.masters import MasterSet, Query, Release, Round
from redlock_aio._protocol import commands, replies
from redlock_aio._protocol.primitives import FencingCounter
from redlock_aio._protocol.request import NoReply, QuarantineRule, Request
from redlock_aio._rules import fencing
from redlock_aio._rules.quorum import (
    GRANTED,
    LOST,
    NOT_YET,
    SPLIT,
    WON,
    Answer,
    majority,
)

EXPIRY_SLACK = 0.001
"""Seconds to add to a ttl: a master expires a key in the millisecond after its ttl."""

TOO_LATE = 1.0
"""Seconds after which a request is too late: a master that hung meanwhile refuses it."""


class Attempt(Round):
    """
    One round that tries to acquire a lock.

    The token is new for each attempt. If two attempts shared a token, a late release of
    the first would delete the lock that the second has won.
    """

    __slots__ = ("claim",)
    in_quarantine = QuarantineRule.REFUSE

    def __init__(self, masters: MasterSet, claim: Claim, payload: bytes) -> None:
        Round.__init__(self, masters.links, payload)
        self.claim: Claim = claim
        """What it acquires: the token, and later the replies and the end of the validity."""
        claim.replies = self.replies
        claim.began = masters.clock()

    def not_sent(self, master: int, no_reply: NoReply) -> None:
        """Count *no_reply* for a master that never gets the request."""
        self.claim.unsent |= 1 << master
        self.on_reply(master, no_reply)

    @property
    def is_curable(self) -> bool:
        """Whether only NOSCRIPT replies prevented a majority: a repetition may succeed."""
        forgotten = sum(map(replies.has_no_script, self.replies))
        return self.verdict is LOST and forgotten >= self.to_win

    async def agree(self, masters: MasterSet, at_most: float | None) -> None:
        """
        Make the masters that granted the lock agree on a fencing token, if they differ.

        Args:
            at_most: The limit of a round in ms, if it is less than the master timeout.

        Cancellation:
            Counters may stay raised, which only skips numbers.
        """


class FencedAttempt(Attempt):
    """An attempt that is won when a majority grants the lock and the same fencing token."""

    __slots__ = ("_counter", "_curable", "_masters", "counters", "proposal")

    def __init__(self, masters: MasterSet, claim: Claim, counter: FencingCounter) -> None:
        clocks = masters.clocks
        proposal = clocks.new_time(masters.clock())
        patience = max(2 * TOO_LATE, masters.master_timeout / 500) + clocks.spread
        patience_us = int(patience * 1_000_000)
        payload = counter.acquire(claim.token, claim.ttl, proposal, patience_us)
        Attempt.__init__(self, masters, claim, payload)
        self.proposal = proposal
        self.counters: list[int] = []
        self._curable = 0
        self._counter = counter
        self._masters = masters

    def on_reply(self, master: int, reply: object, /) -> None:
        """Count the value of a counter as a grant, any other reply as a refusal."""
        replies = self.replies
        if replies[master] is not NOT_YET:
            return
        counter = counter_in(reply, self.proposal)
        if not counter:
            replies[master] = self.read(master, reply)
            self.to_lose = to_lose = self.to_lose - 1
            if not to_lose:
                self.verdict = LOST
                self.settled()
            return
        replies[master] = GRANTED
        self.counters.append(counter)
        self.to_win = to_win = self.to_win - 1
        if not to_win:
            # The other masters are not awaited: they may be slow, and if the counters differ
            # now, another round is most likely needed in any case.
            self.claim.fence = fence = fencing.agreed(self.counters, majority(len(replies)))
            self.verdict = WON if fence else SPLIT
            self.settled()

    @property
    def is_curable(self) -> bool:
        """Whether only NOSCRIPT replies or refusals by a master's clock prevented a majority."""
        return self.verdict is LOST and self._curable >= self.to_win

    async def agree(self, masters: MasterSet, at_most: float | None) -> None:
        """Make the masters agree on the fencing token; see `Attempt.agree`."""
        if await agree(masters, self._counter, self.claim, self.counters, at_most):
            self.verdict = WON

    def read(self, master: int, reply: object) -> object:
        """Return *reply* as counted; a refusal with the master's time also updates `Clocks`."""
        time = replies.time(reply)
        if time is None:
            self._curable += replies.has_no_script(reply)
            return reply
        self._curable += 1
        now = self._masters.clock()
        self._masters.clocks.learn(master, time, self.claim.began, now)
        ahead = (time - self.proposal) / 1_000_000
        ahead -= min(max(ahead, 0.0), now - self.claim.began)
        if abs(ahead) < TOO_LATE:
            return NoReply(Answer.ERROR, "it got the request too late")
        way = "ahead of" if ahead > 0 else "behind"
        return NoReply(Answer.ERROR, f"its clock is {abs(ahead):.1f} s {way} the others'")


def counter_in(reply: object, proposal: int) -> int:
    """Return the value of the counter in a *reply* that grants; 0 in any other reply."""
    if reply == 1:  # nearly always: the counter has the proposed value
        return proposal
    # Beyond NEVER x + 1 may be x.
    return reply if type(reply) is int and 1 < reply < commands.NEVER else 0


class NativeRelease(Release):
    """
    The release of a lock by ``DELIFEQ``, a command that few servers have.

    Its reply has fewer facts than that of the script, but it takes a third of the time.
    """

    __slots__ = ("_freed", "_masters")

    yes: ClassVar[object] = 1

    def __init__(self, masters: MasterSet, claim: Claim, ttl: int) -> None:
        Release.__init__(self, masters.links, claim.key.free(claim.token), ttl, claim)
        self._freed = claim
        self._masters = masters

    def classify(self, reply: object) -> NoReply:
        """Return the vote in *reply*; 0 is that of a missing key and of another holder's."""
        return NoReply(Answer.HELD, "or free") if reply == 0 else super().classify(reply)

    @property
    def debt(self) -> bytes:
        """The script: another server may be at the address when the debt is repeated."""
        return self._freed.release()

    def instead(self, master: int) -> Request:
        """
        Return the request to send to *master*, which has refused the command.

        Also stop using the command until that master has been asked for it on a new
        connection: otherwise each release would cost another round trip.
        """
        self._links[master].can_free = self._masters.can_free = False
        return Request(
            self.debt,
            self._by_script,
            debt_ttl=self.debt_ttl,
            needless=self.needless,
            in_quarantine=self.in_quarantine,
        )

    def _by_script(self, master: int, reply: object) -> None:
        """Count the reply to the script like one to the command."""
        self.on_reply(master, NativeRelease.yes if reply == GRANTED else reply)


async def agree(
    masters: MasterSet,
    counter: FencingCounter,
    claim: Claim,
    counters: list[int],
    at_most: float | None = None,
) -> bool:
    """
    Make a majority that granted the lock agree on one of its *counters*, the fencing token.

    Args:
        claim: Gets the fencing token.

        at_most: The limit of a round in ms, if it is less than the master timeout.

    Returns:
        Whether they agree; not if too few masters keep the lock, or other clients raised
        the counters in each of `MOST_RAISES` rounds.

    Cancellation:
        Counters may stay raised, which only skips numbers.
    """
    for _ in range(fencing.MOST_RAISES):
        counters = await _raised(masters, counter, claim, max(counters), at_most)
        if not counters:
            return False
        claim.fence = fencing.agreed(counters, majority(len(masters.links)))
        if claim.fence:
            return True
    return False


async def _raised(
    masters: MasterSet,
    counter: FencingCounter,
    claim: Claim,
    proposal: int,
    at_most: float | None,
) -> list[int]:
    """
    Raise the counters to *proposal* where the lock has the token; return those of a majority.

    Cancellation:
        Counters may stay raised, which only skips numbers.
    """
    found: list[int] = []

    def note(_master: int, reply: object) -> object:
        value = counter_in(reply, proposal)
        if not value:
            return reply
        found.append(value)
        return GRANTED

    payload, rule = counter.raise_to(proposal, claim.token), QuarantineRule.COUNT_REFUSALS
    raising = Query(masters.links, payload, in_quarantine=rule, count=note)
    await masters.ask(raising, at_most)
    return found if raising.verdict is WON else []


def take_back(masters: MasterSet, claim: Claim, ttl: int) -> Release:
    """Release *claim*, whose key may live *ttl* ms, on all masters; nothing is awaited."""
    if masters.can_free and claim.can_free:
        freeing = NativeRelease(masters, claim, ttl)
        masters.send(freeing)
        return freeing
    return masters.release(claim.release(), ttl, claim)
