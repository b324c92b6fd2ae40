"""
One attempt to acquire a lock, plain or with a fencing token.

An attempt is one round with a token of its own. With fencing the masters reply with
their counters; if those of a majority differ, another round raises them to one value.
"""

from typing import ClassVar

from redlock_aio._engine.masters import MasterSet
from redlock_aio._engine.round import Release, Round
from redlock_aio._protocol import commands, replies
from redlock_aio._protocol.commands import Extension
from redlock_aio._protocol.primitives import FencingCounter, JointMutex, Mutex
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

    __slots__ = ("began", "counter", "fence", "key", "token", "ttl", "until")
    in_quarantine = QuarantineRule.REFUSE

    def __init__(
        self,
        masters: MasterSet,
        key: Mutex | JointMutex,
        ttl: int,
        stamp: bytes = b"",
        counter: FencingCounter | None = None,
    ) -> None:
        self.counter: FencingCounter | None = counter
        """The commands for a fencing token; ``None`` without fencing."""
        self.fence: int = 0
        """The fencing token; 0 until there is one."""
        self.key: Mutex | JointMutex = key
        self.ttl: int = ttl
        self.token: bytes = masters.token() + stamp
        """The value that the masters keep: a random part, then *stamp*, which names the holder."""
        self.until: float = 0.0
        """The end of the validity; 0 if the lock was not won, or won too late."""
        Round.__init__(self, masters.links, self._request(masters))
        self.began: float = masters.clock()

    def _request(self, _masters: MasterSet) -> bytes:
        return self.key.acquire(self.token, self.ttl)

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

    def release(self) -> bytes:
        """Return the command that releases the lock under this token."""
        return self.key.release(self.token)

    def only_leave(self) -> bytes:
        """Return the command that leaves the fair queue, but keeps the lock; empty without one."""
        return b""

    @property
    def member(self) -> bytes:
        """The name of the waiter in the masters' queues; empty without a queue."""
        return b""

    @property
    def can_free(self) -> bool:
        """Whether a release only has to delete one key."""
        return self.key.can_free

    def extension(self, ttl: int) -> Extension:
        """Return the part of `commands.extend` that sets the ttl to *ttl* ms."""
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


def _count(self: "FencedAttempt | Raising", master: int, reply: object, /) -> None:
    """Count the value of a counter as a grant, any other reply as a refusal."""
    replies = self.replies
    if replies[master] is not NOT_YET:
        return
    if reply == 1:  # nearly always: the counter has the proposed value
        counter = self.proposal
    elif type(reply) is int and 1 < reply < commands.NEVER:  # beyond, x + 1 may be x
        counter = reply
    else:
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
        self.fence = fence = fencing.agreed(self.counters, majority(len(replies)))
        self.verdict = WON if fence else SPLIT
        self.settled()


class FencedAttempt(Attempt):
    """An attempt that is won when a majority grants the lock and the same fencing token."""

    __slots__ = ("_counter", "_curable", "_masters", "counters", "proposal")

    def __init__(
        self,
        masters: MasterSet,
        counter: FencingCounter,
        key: Mutex | JointMutex,
        ttl: int,
        stamp: bytes = b"",
    ) -> None:
        self.counters: list[int] = []
        self._curable = 0
        self._counter = counter
        self._masters = masters
        Attempt.__init__(self, masters, key, ttl, stamp, counter)

    on_reply = _count

    def _request(self, masters: MasterSet) -> bytes:
        clocks = masters.clocks
        self.proposal = proposal = clocks.new_time(masters.clock())
        patience = max(2 * TOO_LATE, masters.master_timeout / 500) + clocks.spread
        return self._counter.acquire(self.token, self.ttl, proposal, int(patience * 1_000_000))

    @property
    def is_curable(self) -> bool:
        """Whether only NOSCRIPT replies or refusals by a master's clock prevented a majority."""
        return self.verdict is LOST and self._curable >= self.to_win

    async def agree(self, masters: MasterSet, at_most: float | None) -> None:
        """Make the masters agree on the fencing token; see `Attempt.agree`."""
        self.fence = await agree(masters, self._counter, self.token, self.counters, at_most)
        if self.fence:
            self.verdict = WON

    def read(self, master: int, reply: object) -> object:
        """Return *reply* as counted; a refusal with the master's time also updates `Clocks`."""
        time = replies.time(reply)
        if time is None:
            self._curable += replies.has_no_script(reply)
            return reply
        self._curable += 1
        now = self._masters.clock()
        self._masters.clocks.learn(master, time, self.began, now)
        ahead = (time - self.proposal) / 1_000_000
        ahead -= min(max(ahead, 0.0), now - self.began)
        if abs(ahead) < TOO_LATE:
            return NoReply(Answer.ERROR, "it got the request too late")
        way = "ahead of" if ahead > 0 else "behind"
        return NoReply(Answer.ERROR, f"its clock is {abs(ahead):.1f} s {way} the others'")


class Raising(Round):
    """The request to raise the counters to the highest one, where the lock has the token."""

    __slots__ = ("counters", "fence", "proposal")

    def __init__(
        self, masters: MasterSet, counter: FencingCounter, token: bytes, value: int
    ) -> None:
        self.counters: list[int] = []
        self.fence = 0
        self.proposal = value
        super().__init__(masters.links, counter.raise_to(value, token))

    on_reply = _count

    def read(self, _master: int, reply: object) -> object:
        """Return the refusal *reply* as it is: every refusal counts the same."""
        return reply


class NativeRelease(Release):
    """
    The release of a lock by ``DELIFEQ``, a command that few servers have.

    Its reply has fewer facts than that of the script, but it takes a third of the time.
    """

    __slots__ = ("_attempt", "_masters")

    yes: ClassVar[object] = 1

    def __init__(self, masters: MasterSet, attempt: Attempt, ttl: int) -> None:
        Release.__init__(self, masters.links, attempt.key.free(attempt.token), ttl, attempt)
        self._attempt = attempt
        self._masters = masters

    def classify(self, reply: object) -> NoReply:
        """Return the vote in *reply*; 0 is that of a missing key and of another holder's."""
        return NoReply(Answer.HELD, "or free") if reply == 0 else super().classify(reply)

    @property
    def debt(self) -> bytes:
        """The script: another server may be at the address when the debt is repeated."""
        return self._attempt.release()

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
    token: bytes,
    counters: list[int],
    at_most: float | None = None,
) -> int:
    """
    Make a majority that granted the lock to *token* agree on one of its *counters*.

    Args:
        at_most: The limit of a round in ms, if it is less than the master timeout.

    Returns:
        The fencing token; 0 if too few masters keep the lock, or other clients raised the
        counters in each of `MOST_RAISES` rounds.

    Cancellation:
        Counters may stay raised, which only skips numbers.
    """
    for _ in range(fencing.MOST_RAISES):
        raising = Raising(masters, counter, token, max(counters))
        await masters.ask(raising, at_most)
        if raising.verdict is not SPLIT:
            return raising.fence
        counters = raising.counters
    return 0


def take_back(masters: MasterSet, attempt: Attempt, ttl: int) -> Release:
    """Release *attempt*, whose key may live *ttl* ms, on all masters; nothing is awaited."""
    if masters.can_free and attempt.can_free:
        freeing = NativeRelease(masters, attempt, ttl)
        masters.send(freeing)
        return freeing
    return masters.release(attempt.release(), ttl, attempt)
