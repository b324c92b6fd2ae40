"""
Attempts with a fencing token, on which the masters that grant the lock have to agree.

Each master has a counter, and the token is a value that a majority of the counters has reached.
If those of the masters that granted the lock differ, another round raises them.
"""

from redlock_aio._engine.claim import Claim
from redlock_aio._engine.masters import ACQUIRE, MasterSet, Query, Round
from redlock_aio._protocol import commands, replies
from redlock_aio._protocol.primitives import FencingCounter
from redlock_aio._protocol.request import GOT_LATE, NoReply, QuarantineRule
from redlock_aio._rules import fencing
from redlock_aio._rules.quorum import LOST, NOT_YET, OK, SPLIT, WON, Answer, majority

TOO_LATE = 1.0
"""Seconds after which a request is too late: a master that hung meanwhile refuses it."""


class FencedAttempt(Round):
    """An attempt that is won when a majority grants the lock and the same fencing token."""

    __slots__ = ("_counter", "_curable", "claim", "counters", "proposal")

    def __init__(self, masters: MasterSet, claim: Claim, counter: FencingCounter) -> None:
        clocks = masters.clocks
        proposal = clocks.new_time(masters.clock())
        patience = max(2 * TOO_LATE, masters.master_timeout / 500) + clocks.spread
        patience_us = int(patience * 1_000_000)
        payload = counter.acquire(claim.token, claim.ttl, proposal, patience_us)
        Round.__init__(self, masters, payload, ACQUIRE, claim)
        self.claim: Claim = claim
        claim.begin(self.replies, masters.clock())
        self.proposal = proposal
        self.counters: list[int] = []
        self._curable = 0
        self._counter = counter

    def on_reply(self, master: int, reply: object, /) -> None:
        replies = self.replies
        # The master was counted before, by a timeout. If this is a late grant of a failed attempt,
        # the release that follows the request on the connection deletes it.
        if replies[master] is not NOT_YET:
            return
        counter = counter_in(reply, self.proposal)
        if not counter:
            replies[master] = self.refused(master, reply)
            self.to_lose = to_lose = self.to_lose - 1
            if not to_lose:
                self.verdict = LOST
                self.on_verdict()
            return
        replies[master] = OK
        # Also after the verdict: when the task resumes to `agree`, it begins with the highest of
        # the counters that are known by then, and may need fewer rounds.
        self.counters.append(counter)
        self.to_win = to_win = self.to_win - 1
        if not to_win:
            # The other masters are not awaited: they may be slow, and if the counters differ
            # now, another round is most likely needed in any case.
            self.claim.fence = fence = fencing.agreed(self.counters, majority(len(replies)))
            self.verdict = WON if fence else SPLIT
            self.on_verdict()

    @property
    def is_curable(self) -> bool:
        """Whether only NOSCRIPT replies or refusals by a master's clock prevented a majority."""
        return self.verdict is LOST and self._curable >= self.to_win

    async def agree(self, at_most: float | None) -> None:
        """Make the masters that granted the lock agree on a fencing token."""
        if await agree(self.masters, self._counter, self.claim, self.counters, at_most):
            self.verdict = WON

    def refused(self, master: int, reply: object) -> object:
        """Return *reply* as counted; a refusal with the master's time also updates `Clocks`."""
        time = replies.time(reply)
        if time is None:
            self._curable += replies.has_no_script(reply)
            return reply
        self._curable += 1
        now = self.masters.clock()
        self.masters.clocks.learn(master, time, self.claim.began, now)
        ahead = (time - self.proposal) / 1_000_000
        ahead -= min(max(ahead, 0.0), now - self.claim.began)
        if abs(ahead) < TOO_LATE:
            return GOT_LATE
        way = "ahead of" if ahead > 0 else "behind"
        return NoReply(Answer.ERROR, f"its clock is {abs(ahead):.1f} s {way} the others'")


def counter_in(reply: object, proposal: int) -> int:
    """Return the value of the counter in a *reply* that grants; 0 in any other reply."""
    if reply == 1:  # nearly always: the counter has the proposed value
        return proposal
    # Beyond NEVER x + 1 may be x.
    return reply if type(reply) is int and 1 < reply < commands.NEVER else 0


async def agree(
    masters: MasterSet,
    counter: FencingCounter,
    claim: Claim,
    counters: list[int],
    at_most: float | None = None,
) -> bool:
    """
    Make a majority that granted the lock agree on one of its *counters*, the fencing token.

    Returns:
        Whether they agree; not if too few masters keep the lock, other clients raised the
        counters in each of `MOST_RAISES` rounds, or the manager was closed.
    """
    # Another client may raise a counter between the attempt and this round, or between two rounds.
    # So each round raises to the highest value that was found before it.
    for _ in range(fencing.MOST_RAISES):
        if masters.closed:  # its last releases may have left before this task gives the lock back
            return False
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
    """Raise the counters to *proposal* where the lock has the token; return those of a majority."""
    found: list[int] = []

    def note(master: int, reply: object) -> object:
        value = counter_in(reply, proposal)
        if not value:
            return reply
        # A master is counted once: two replies of one are not the counters of a majority.
        if raising.replies[master] is NOT_YET:
            found.append(value)
        return OK

    payload, rule = counter.raise_to(proposal, claim.token), QuarantineRule.COUNT_REFUSALS
    raising = Query(masters, payload, in_quarantine=rule, count=note)
    await masters.ask(raising, at_most)
    return found if raising.verdict is WON else []
