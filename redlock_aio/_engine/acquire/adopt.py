"""
The rounds in which a lease that was handed over gets the value of its new holder.

    exported value on the masters ─► round 1: new value ─┬─ a majority, in time ──► adopted
                                       │                 ├─ a majority refuses ───► lost
                                       └─ neither: pause, round 2: the same value ...

`handing` uses them, and tells why failed adoptions harm nobody.
"""

import asyncio
import math

from redlock_aio._engine.attempt import Attempt
from redlock_aio._engine.clock import boot_of
from redlock_aio._engine.hold.held_lease import KEY_GONE, OVERTAKEN
from redlock_aio._engine.masters import Fleet
from redlock_aio._engine.round import Round
from redlock_aio._protocol import commands, lease_export
from redlock_aio._protocol.lease_export import Handed
from redlock_aio._protocol.primitives import Counter, Key, Keys
from redlock_aio._protocol.request import Silence, Trust
from redlock_aio._rules import timing
from redlock_aio._rules.lease_state import retry_pause
from redlock_aio._rules.quorum import WON, Answer, Vote
from redlock_aio.errors import LockLostError

OVER_BEFORE = "it was handed over, and its validity was over before it was adopted"
NOT_THERE = f"{KEY_GONE}: it has ended, or somebody else has adopted it"
TOO_FAR_AHEAD = "its fencing token is too far ahead of the masters' clocks"
TOO_FEW = "too few masters answered before its validity was over"


class AdoptionRound(Attempt):
    """
    One round that gives the lock a new value; the lease keeps it as its attempt when it is won.

    Args:
        before: The round before it, if there was one. The new round repeats its value, so
            that a master that executed the first one, and whose reply was lost, grants the
            second. The replies are counted anew: validity counts from when a round was
            sent, and a reply to the earlier one proves nothing about the time after.
    """

    __slots__ = ("_handed", "_never_sent", "_value")
    trust = Trust.MUTED

    def __init__(
        self,
        fleet: Fleet,
        key: Key | Keys,
        handed: Handed,
        stamp: bytes,
        counter: Counter | None,
        before: "AdoptionRound | None",
    ) -> None:
        self._handed = handed
        self._value = b"" if before is None else before.token
        self._never_sent = -1 if before is None else before.unsent
        super().__init__(fleet, key, handed.ttl, stamp, counter)
        self.fence = handed.fence

    def _request(self, _fleet: Fleet) -> bytes:
        self.token = self._value or self.token
        return lease_export.adoption(self.key, self.counter, self._handed, self.token)

    def is_refusal(self, reply: object) -> bool:
        """Return whether *reply* says that somebody else has had the lock since."""
        return isinstance(reply, int) and reply > 0

    def not_sent(self, master: int, silence: Silence) -> None:
        """Count a master that it could not be sent to, unless an earlier round was sent there."""
        super().not_sent(master, silence)
        self.unsent &= self._never_sent

    @property
    def member(self) -> bytes:
        """The name in the queues of the waiter that has acquired the lock; empty without one."""
        return self._handed.member

    @property
    def can_free(self) -> bool:
        """Whether a release only has to delete one key."""
        return not self.member and self.key.can_free

    def release(self) -> bytes:
        """Return the command that releases the lock, and wakes the next waiter of a queue."""
        return release_of(self.key, self.member, self.token)

    def only_leave(self) -> bytes:
        """Return the command that leaves the queue and keeps the lock; empty without a queue."""
        if not self.member:
            return b""
        names = (*self.key.each, *commands.queue_keys(*self.key.each))
        return commands.leave(names, self.token, self.member, stay=False, keep=True)

    def why_refused(self) -> str:
        """Return the reason that the refusals give."""
        if any(reply.__class__ is int and reply for reply in self.replies):
            return OVERTAKEN
        ahead = any(reply.__class__ is list for reply in self.replies)
        return TOO_FAR_AHEAD if ahead else NOT_THERE

    def votes(self) -> tuple[Vote, ...]:
        """Return the vote of each master so far."""
        return tuple(map(_vote, super().votes(), self.replies))


def _vote(vote: Vote, reply: object) -> Vote:
    """Return the vote of a master whose *reply* refuses an adoption, else *vote*."""
    if reply.__class__ is int:
        return Vote(vote.master, Answer.HELD, "or was since" if reply else "or by nobody")
    if reply.__class__ is list:
        return Vote(vote.master, Answer.ERROR, "the fencing token is too far ahead of its clock")
    return vote


def release_of(key: Key | Keys, member: bytes, value: bytes) -> bytes:
    """Return the command that releases the lock if it has this *value*; see `AdoptionRound`."""
    if not member:
        return key.release(value)
    names = (*key.each, *commands.queue_keys(*key.each))
    return commands.leave(names, value, member, stay=False)


class Pause:
    """The time until the next round, which the end of the manager cuts short."""

    __slots__ = ("_over",)

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._over = loop.create_future()

    def changed(self, master: int) -> None:
        """Called when the key may have changed; the next round will find that out."""

    def on_local_release(self) -> None:
        """End the pause: called by its timer, and when the manager ends."""
        if not self._over.done():
            self._over.set_result(None)

    async def wait(self, fleet: Fleet, key: Key | Keys, seconds: float) -> None:
        """
        Wait so many *seconds*, or until the manager is closed.

        Cancellation:
            Nothing was begun that must be taken back.
        """
        line = fleet.line(key)
        timer = fleet.loop.call_later(seconds, self.on_local_release)
        line.subscribe(self, mine=False)
        try:
            await self._over
        finally:
            line.unsubscribe(self)
            timer.cancel()


class Adoption:
    """
    The adoption of one lease.

    Args:
        fleet: The masters.

        key: The lock.

        handed: The lease, as it was handed over.

        counter: The commands of its fencing token, if it has one.

        factor: The drift factor.

        stamp: What follows the token in the new value.
    """

    def __init__(
        self,
        fleet: Fleet,
        key: Key | Keys,
        handed: Handed,
        counter: Counter | None,
        factor: float,
        stamp: bytes,
    ) -> None:
        self.handed = handed
        self._fleet = fleet
        self._key = key
        self._counter = counter
        self.factor = factor
        """The drift factor."""
        self._stamp = stamp
        self._last: AdoptionRound | None = None
        began = fleet.clock()
        same_clock = handed.on(boot_of(fleet.loop))
        self.since = handed.at if same_clock else began
        """The instant from which the remaining times of the lease count."""
        # The exporter's deadline, if it was exported on this machine since it was booted.
        # Elsewhere its clock means nothing, and only the masters can tell.
        self._deadline = handed.at + handed.left / 1000 if same_clock else math.inf
        # Without an extension no key lives longer, wherever it was handed over.
        self._ends = min(began + handed.ttl / 1000, self._deadline)
        self._pause = retry_pause(handed.ttl, fleet.master_timeout)

    def __repr__(self) -> str:
        return f"<Adoption of {', '.join(map(repr, self.handed.resources))}, {self._last!r}>"

    async def win(self) -> AdoptionRound:
        """
        Ask the masters until a majority has given the lock the new value.

        Raises:
            LockLostError: It is over, or somebody else has it.

            RedlockError: The manager was closed.

        Cancellation:
            Masters may have given it the new value; see `abandon`.
        """
        fleet = self._fleet
        while True:
            fleet.check_open()
            now = fleet.clock()
            if now >= self._ends:
                raise self._lost(OVER_BEFORE if self._last is None else TOO_FEW)
            self._last = last = AdoptionRound(
                fleet, self._key, self.handed, self._stamp, self._counter, self._last
            )
            await fleet.ask(last, (self._ends - now) * 1000)
            if fleet.closed:
                continue  # to raise, so that `abandon` is sent before the connections end
            if last.verdict is WON:
                # The clock is read after the task has resumed, however long that took. The
                # exporter's deadline counts as well: a lease whose validity is over is never
                # revived, not even if a majority of the masters still has its key.
                until = timing.deadline(last.began, last.ttl, factor=self.factor)
                if fleet.clock() < min(until, self._deadline):
                    last.until = until
                    return last
            elif last.refused_by_a_majority():
                raise self._lost(last.why_refused())
            # A round that is cut short wins nothing, and its votes tell nothing of the masters.
            left = self._ends - self._pause / 2 - fleet.clock()
            if left <= 0:
                raise self._lost(TOO_FEW)
            await Pause(fleet.loop).wait(fleet, self._key, min(self._pause, left))

    def _lost(self, why: str) -> LockLostError:
        if self._last is not None:
            why += f" ({'; '.join(map(str, self._last.votes()))})"
        return LockLostError(self.handed.resources, why)

    def abandon(self, max_ttl: int) -> None:
        """
        Release the lock on all masters, now or when they answer again; nothing is awaited.

        Under the new value first: a slow master may still have a round of ours before it,
        and executes both in the order in which they were sent. Under the old value after
        that, for the masters that no round has reached.
        """
        if self._last is not None:
            self._fleet.release(self._last.release(), self.handed.ttl, self._last)
        self._release_old(self.handed.member, max_ttl)

    def release_old(self, max_ttl: int) -> None:
        """
        Release the old value after an adoption, where a minority of masters still has it.

        A master that hung during the adoption still has it, or gets it late: the exporter
        can't take it back any more. There it would block others until its ttl is over, and
        the new value could not be restored.
        """
        self._release_old(b"", max_ttl)

    def _release_old(self, member: bytes, max_ttl: int) -> None:
        # It may be on every master, also on those that we have not reached.
        everywhere = Round(self._fleet.links, b"")
        self._fleet.release(release_of(self._key, member, self.handed.value), max_ttl, everywhere)
