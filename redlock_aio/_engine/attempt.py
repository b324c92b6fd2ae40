"""
One try to get a lock, plain or with a fencing token.

An attempt is one round with a token of its own. With fencing the masters answer
with their counters; if those of a majority differ, a second round makes them agree.
"""

from typing import ClassVar

from redlock_aio._engine.masters import Fleet
from redlock_aio._engine.round import Release, Round
from redlock_aio._protocol import commands, replies
from redlock_aio._protocol.primitives import Counter, Key, Keys
from redlock_aio._protocol.request import Request, Silence, Trust
from redlock_aio._rules import fencing
from redlock_aio._rules.quorum import GRANTED, LOST, NOT_YET, OPEN, SPLIT, WON, Answer

EXPIRY_SLACK = 0.001
"""Seconds: a master lets a key expire in the millisecond after its ttl."""

TOO_LATE = 1.0
"""After how many seconds a request is too late: a master that was hung refuses it."""


class Attempt(Round):
    """
    One round for a lock.

    The token is new for each attempt. If two attempts shared one, a release of
    the first that comes late would delete the lock that the second has won.
    """

    __slots__ = ("began", "counter", "fence", "key", "stamp", "token", "ttl", "until")
    trust = Trust.NONE

    def __init__(
        self,
        fleet: Fleet,
        key: Key | Keys,
        ttl: int,
        stamp: bytes = b"",
        counter: Counter | None = None,
    ) -> None:
        self.counter: Counter | None = counter
        """What is said about the resource's counter, if there is to be a fencing token."""
        self.fence: int = 0
        """The fencing token, when there is one."""
        self.key: Key | Keys = key
        self.ttl: int = ttl
        self.stamp: bytes = stamp
        self.token: bytes = fleet.token() + stamp
        """The value that the masters keep: what nobody can guess, and who we are."""
        self.until: float = 0.0
        """Until when the lock may be believed; 0 if it was not won, or too late."""
        Round.__init__(self, fleet.links, self._request(fleet))
        self.began: float = fleet.clock()

    def _request(self, _fleet: Fleet) -> bytes:
        return self.key.acquire(self.token, self.ttl)

    @property
    def is_curable(self) -> bool:
        """Whether it was lost because too many masters had forgotten the script."""
        forgotten = sum(map(replies.has_no_script, self.replies))
        return self.verdict is LOST and self.granted + forgotten >= self.won_at

    async def agree(self, fleet: Fleet, at_most: float | None) -> None:
        """
        Have the masters that have granted it agree on a fencing token, if they do not.

        Args:
            at_most: How many ms a round may take, if less than the master time-out.

        Cancellation:
            Counters may have been raised, which costs nothing but numbers.
        """

    def release(self) -> bytes:
        """Return the command that takes it back."""
        return self.key.release(self.token)

    def only_leave(self) -> bytes:
        """Return the command that leaves the queue and takes nothing back; empty without one."""
        return b""

    @property
    def member(self) -> bytes:
        """By which name it was waited for in the masters' queues; empty if it was not."""
        return b""

    @property
    def can_free(self) -> bool:
        """Whether a release has nothing to do but to delete one key."""
        return self.key.can_free

    def extension(self, ttl: int) -> bytes:
        """Return the command that lets the lock live for *ttl* ms more, where it is ours."""
        if self.counter is None:
            return self.key.extend(self.token, ttl)
        return self.counter.extend(self.token, ttl, self.fence)

    def restoration(self, ttl: int, ceiling: int = 0) -> bytes:
        """
        Return the command that sets the lock again for *ttl* ms, where nobody has it.

        Args:
            ceiling: Up to where a majority has lifted its counters; see `Counter.lift`.
        """
        if self.counter is None:
            return self.key.restore(self.token, ttl)
        return self.counter.restore(self.token, ttl, self.fence, ceiling)


def _count(self: "FencedAttempt | Raising", master: int, reply: object, /) -> None:
    """Count a counter's value as a grant, anything else as a refusal."""
    replies = self.replies
    if replies[master] is not NOT_YET:
        return
    if type(reply) is int and 0 < reply < commands.NEVER:  # beyond that, x + 1 may be x
        replies[master] = GRANTED
        self.counters.append(self.proposal if reply == 1 else reply)
        self.granted = granted = self.granted + 1
        if granted >= self.won_at and self.verdict is OPEN:
            # The others may be slow; and if the counters differ now, it takes
            # another round most likely.
            self.fence = fence = fencing.agreed(self.counters, self.won_at)
            self.verdict = WON if fence else SPLIT
            self.settled()
        return
    replies[master] = self.read(master, reply)
    self.against = against = self.against + 1
    if against == self.lost_at:
        self.verdict = LOST
        self.settled()


class FencedAttempt(Attempt):
    """An attempt that is won when a majority grants the lock and the same fencing token."""

    __slots__ = ("_counter", "_curable", "_fleet", "counters", "proposal")

    def __init__(
        self, fleet: Fleet, counter: Counter, key: Key | Keys, ttl: int, stamp: bytes = b""
    ) -> None:
        self.counters: list[int] = []
        self._curable = 0
        self._counter = counter
        self._fleet = fleet
        Attempt.__init__(self, fleet, key, ttl, stamp, counter)

    answered = _count

    def _request(self, fleet: Fleet) -> bytes:
        clocks = fleet.clocks
        self.proposal = proposal = clocks.new_time(fleet.clock())
        patience = max(2 * TOO_LATE, fleet.master_timeout / 500) + clocks.spread
        return self._counter.acquire(self.token, self.ttl, proposal, int(patience * 1_000_000))

    @property
    def is_curable(self) -> bool:
        """Whether too many masters had forgotten the script, or had another time."""
        return self.verdict is LOST and self.granted + self._curable >= self.won_at

    async def agree(self, fleet: Fleet, at_most: float | None) -> None:
        """Have the masters agree; see `Attempt.agree`."""
        self.fence = await agree(fleet, self._counter, self.token, self.counters, at_most)
        if self.fence:
            self.verdict = WON

    def read(self, master: int, reply: object) -> object:
        """Learn the time from a master that says the proposal makes no sense at it."""
        time = replies.time(reply)
        if time is None:
            self._curable += replies.has_no_script(reply)
            return reply
        self._curable += 1
        now = self._fleet.clock()
        self._fleet.clocks.learn(master, time, self.began, now)
        ahead = (time - self.proposal) / 1_000_000
        ahead -= min(max(ahead, 0.0), now - self.began)
        if abs(ahead) < TOO_LATE:
            return Silence(Answer.ERROR, "it got the request too late")
        way = "ahead of" if ahead > 0 else "behind"
        return Silence(Answer.ERROR, f"its clock is {abs(ahead):.1f} s {way} the others'")


class Raising(Round):
    """The demand that all counters that differ are raised to the highest."""

    __slots__ = ("counters", "fence", "proposal")

    def __init__(self, fleet: Fleet, counter: Counter, token: bytes, value: int) -> None:
        self.counters: list[int] = []
        self.fence = 0
        self.proposal = value
        super().__init__(fleet.links, counter.raise_to(value, token))

    answered = _count

    def read(self, _master: int, reply: object) -> object:
        """Return what stands for a reply that grants nothing."""
        return reply


class Freeing(Release):
    """
    The release of a lock by the command that some servers have for it.

    It tells less than the script of all others, and takes a third of its time.
    """

    __slots__ = ("_attempt", "_fleet")

    yes: ClassVar[object] = 1

    def __init__(self, fleet: Fleet, attempt: Attempt, ttl: int) -> None:
        Release.__init__(self, fleet.links, attempt.key.free(attempt.token), ttl, attempt)
        self._attempt = attempt
        self._fleet = fleet

    @property
    def debt(self) -> bytes:
        """The script: by the time that it is repeated the server may be another one."""
        return self._attempt.release()

    def instead(self, master: int) -> Request:
        """
        Return what to send to a master that has refused the command.

        The command is used no more, until that master has been asked for it on a new
        connection: each release would cost another round trip.
        """
        self._links[master].can_free = self._fleet.can_free = False
        return Request(
            self.debt,
            self._by_script,
            debt_ttl=self.debt_ttl,
            needless=self.needless,
            trust=self.trust,
        )

    def _by_script(self, master: int, reply: object) -> None:
        """Count the reply to the script as that to the command."""
        self.answered(master, Freeing.yes if reply == GRANTED else reply)


async def agree(
    fleet: Fleet,
    counter: Counter,
    token: bytes,
    counters: list[int],
    at_most: float | None = None,
) -> int:
    """
    Make a majority agree that has granted the lock to *token* with different *counters*.

    Args:
        at_most: How many ms a round may take, if that is less than the master time-out.

    Returns:
        The fencing token; 0 if too few keep the lock, or others raise the
        counters all the time.

    Cancellation:
        Counters may have been raised, which costs nothing but numbers.
    """
    for _ in range(fencing.MOST_RAISES):
        raising = Raising(fleet, counter, token, max(counters))
        await fleet.ask(raising, at_most)
        if raising.verdict is not SPLIT:
            return raising.fence
        counters = raising.counters
    return 0


def take_back(fleet: Fleet, attempt: Attempt, ttl: int) -> Release:
    """Ask all masters to forget *attempt*, whose key may live *ttl* ms; nothing is awaited."""
    if fleet.can_free and attempt.can_free:
        freeing = Freeing(fleet, attempt, ttl)
        fleet.send(freeing)
        return freeing
    return fleet.release(attempt.release(), ttl, attempt)
