"""
The life of one token: the attempt that asks for it, what it holds, and its release.

    Attempt ──► Claim, which the lease keeps ──► take_back ──► a Release, and debts until
       │          ▲                                            each master has confirmed it
       └─ agree ──┘ on one fencing token, if the counters of a majority differ

An attempt is one round with a token of its own: if two attempts shared a token, a late release
of the first would delete the lock that the second has won.
"""

from collections.abc import Callable, Sequence

from redlock_aio._engine.masters import MasterSet, Query, Round
from redlock_aio._protocol import commands, replies
from redlock_aio._protocol.commands import Extension
from redlock_aio._protocol.primitives import FencingCounter, LockKey
from redlock_aio._protocol.request import GOT_LATE, NoReply, QuarantineRule, Request
from redlock_aio._rules import fair_ticket, fencing
from redlock_aio._rules.quorum import LOST, NOT_YET, OK, SPLIT, WON, Answer, majority
from redlock_aio._rules.validation import quoted

EXPIRY_SLACK = 0.001
"""Seconds to add to a ttl: a master expires a key in the millisecond after its ttl."""

TOO_LATE = 1.0
"""Seconds after which a request is too late: a master that hung meanwhile refuses it."""


class Claim:
    """
    What one token may hold on the masters.

    An attempt, a waiter or an adoption makes it; the lease keeps it until its end.

    Args:
        token: The value that the masters keep: a random part, and a stamp that names the holder.

        ttl: The ttl in ms with which the lock was requested.

        member: The name of the waiter in the masters' queues; empty without a queue.

        unsent: A bit for each master to which no request for the lock was ever sent.

    Attributes:
        fence: The fencing token; 0 until there is one.

        replies: The reply of each master to the request, as the round counts them.

        until: The end of the validity; 0 if the lock was not won, or won too late.
    """

    __slots__ = (
        "began", "counter", "fence", "key", "member", "replies", "token", "ttl", "unsent", "until",
    )  # fmt: skip

    def __init__(
        self,
        key: LockKey,
        token: bytes,
        ttl: int,
        counter: FencingCounter | None = None,
        member: bytes = b"",
        unsent: int = 0,
    ) -> None:
        self.key: LockKey = key
        self.token: bytes = token
        self.ttl: int = ttl
        self.counter: FencingCounter | None = counter
        self.member: bytes = member
        self.unsent: int = unsent
        self.fence: int = 0
        self.replies: Sequence[object] = ()
        self.began: float = 0.0
        self.until: float = 0.0

    def __repr__(self) -> str:
        return f"<{type(self).__name__} on {quoted(self.key.each)}>"

    def release(self) -> bytes:
        if not self.member:
            return self.key.release(self.token)
        return self.key.leave(self.token, self.member)

    def leave(self) -> bytes:
        """Return the command that leaves the queue and keeps the lock; empty without a queue."""
        if not self.member:
            return b""
        return self.key.leave(self.token, self.member, keep_key=True)

    def extension(self, ttl: int) -> Extension:
        if self.counter is None:
            return self.key.extension(self.token, ttl)
        return self.counter.extension(self.token, ttl, self.fence)

    def restoration(self, ttl: int, ceiling: int = 0) -> bytes:
        """
        Return the command that sets the lock again for *ttl* ms, where its key is gone.

        Args:
            ceiling: The value to which a majority has lifted its counters; see
                `FencingCounter.lift`.
        """
        if self.counter is None:
            return self.key.restore(self.token, ttl)
        return self.counter.restore(self.token, ttl, self.fence, ceiling)


class Attempt(Round):
    """One round that tries to acquire a lock with a new token."""

    __slots__ = ("claim",)
    in_quarantine = QuarantineRule.REFUSE

    def __init__(self, masters: MasterSet, claim: Claim, payload: bytes) -> None:
        Round.__init__(self, masters.links, payload)
        self.claim: Claim = claim
        # The list itself, not a copy: a master that answers after the verdict is still counted in
        # it.
        claim.replies = self.replies
        # Now, and the request leaves in a later turn of the loop: the validity must not begin after
        # the ttl does on any master.
        claim.began = masters.clock()

    def not_sent(self, master: int, no_reply: NoReply) -> None:
        # The key can't be on this master, so the release leaves no debt there (`Release.needless`).
        # Otherwise a master that is down would get a debt for each attempt.
        self.claim.unsent |= 1 << master
        self.on_reply(master, no_reply)

    @property
    def is_curable(self) -> bool:
        """Whether only NOSCRIPT replies prevented a majority: a repetition may succeed."""
        forgotten = sum(map(replies.has_no_script, self.replies))
        return self.verdict is LOST and forgotten >= self.to_win

    async def agree(self, masters: MasterSet, at_most: float | None) -> None:
        """Make the masters that granted the lock agree on a fencing token, if they differ."""


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

    async def agree(self, masters: MasterSet, at_most: float | None) -> None:
        if await agree(masters, self._counter, self.claim, self.counters, at_most):
            self.verdict = WON

    def refused(self, master: int, reply: object) -> object:
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
        Whether they agree; not if too few masters keep the lock, or other clients raised
        the counters in each of `MOST_RAISES` rounds.
    """
    # Another client may raise a counter between the attempt and this round, or between two rounds.
    # So each round raises to the highest value that was found before it.
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
    raising = Query(masters.links, payload, in_quarantine=rule, count=note)
    await masters.ask(raising, at_most)
    return found if raising.verdict is WON else []


class Release(Round):
    """
    The request to release a lock, repeated as a debt until each master has confirmed it.

    Args:
        ttl: The longest time in ms for which the key may live without the release.
    """

    __slots__ = ("_claim", "_masters", "debt_ttl")
    in_quarantine = QuarantineRule.COUNT_IF_FOUND
    classify: Callable[[object], NoReply] = staticmethod(replies.classify_kept)

    def __init__(
        self, masters: MasterSet, claim: Claim, payload: bytes, ttl: int, yes: object = OK
    ) -> None:
        Round.__init__(self, masters.links, payload, yes)
        self.debt_ttl: int = ttl
        self._masters = masters
        self._claim = claim

    @property
    def debt(self) -> bytes:
        """The command that is repeated until a master has confirmed it."""
        return self.payload

    @property
    def needless(self) -> int:
        """A bit for each master without the key, because the request was never sent to it."""
        # Read when it is asked for: the request may leave in the same turn of the loop as this.
        return self._claim.unsent

    def not_sent(self, master: int, no_reply: NoReply) -> None:
        super().not_sent(master, no_reply)
        if not replies.is_unsettled(no_reply):  # otherwise `declined` has added the debt
            self._add_debt(master)

    def declined(self, master: int, reply: object) -> None:
        # A timeout is not final: the release is on the connection, behind the request. Either its
        # reply still comes, to `late`, or the connection ends, and `late` gets that as the reply.
        # Errors and that end make a debt. A debt at each timeout would repeat releases that are
        # only late.
        if replies.is_unsettled(reply):
            self._add_debt(master)

    late = declined  # a late reply is not counted, but the key is still on the master

    def _add_debt(self, master: int) -> None:
        if not self.needless >> master & 1:
            self._links[master].add_debt(self.debt, self.debt_ttl)


FREED = 1
"""The reply of ``DELIFEQ`` that it has deleted the key."""


class NativeRelease(Release):
    """
    The release of a lock by ``DELIFEQ``, a command that few servers have.

    Its reply has fewer facts than that of the script, but it takes a third of the time.
    """

    __slots__ = ()

    classify: Callable[[object], NoReply] = staticmethod(replies.classify_freed)

    @property
    def debt(self) -> bytes:
        """The script: another server may be at the address when the debt is repeated."""
        return self._claim.release()

    def instead(self, master: int) -> Request:
        """
        Return the request to send to *master*, which has refused the command.

        Also stop using the command until that master has been asked for it on a new
        connection: otherwise each release would cost another round trip.
        """
        # Both: the next push would compute the manager's flag from those of the links.
        self._links[master].can_free = self._masters.can_free = False
        # The connection sends this behind all that was sent since, and the master is counted by the
        # reply to it, or by the timeout of the round. If the connection ends first, `_by_script`
        # gets that as the reply, and the debt is added as for the command.
        return Request(
            self.debt,
            self._by_script,
            debt_ttl=self.debt_ttl,
            needless=self.needless,
            in_quarantine=self.in_quarantine,
        )

    def _by_script(self, master: int, reply: object) -> None:
        # Without the translation, a release by the script would not count as a grant.
        self.on_reply(master, FREED if reply == OK else reply)


def take_back(masters: MasterSet, claim: Claim, ttl: int) -> Release:
    """Release *claim*, whose key may live *ttl* ms, on all masters; nothing is awaited."""
    # A server without the command refuses it, and has the script sent instead (`instead`). So a
    # flag that is out of date costs a round trip and leaves no key behind.
    if masters.can_free and not claim.member and (free := claim.key.free) is not None:
        freeing = NativeRelease(masters, claim, free(claim.token), ttl, FREED)
        masters.send(freeing)
        return freeing
    # The place in the queue may outlive the key. A master that refuses the release at first would
    # keep it, and the next waiters would wait for it there.
    longest = max(ttl, fair_ticket.LIVES) if claim.member else ttl
    return release_by(masters, claim, claim.release(), longest)


def release_by(masters: MasterSet, claim: Claim, payload: bytes, ttl: int) -> Release:
    """
    Release *claim* by *payload*, on each master as soon as it can be reached; nothing is awaited.

    The release uses the same connections, and therefore cannot arrive before the request that
    it undoes.
    """
    release = Release(masters, claim, payload, ttl)
    masters.send(release)
    return release
