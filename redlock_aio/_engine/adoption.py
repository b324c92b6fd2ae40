"""
The rounds in which a lease that was handed over gets the value of its new holder.

See `handing`, which uses them.
"""

import asyncio
import math

from redlock_aio._engine.attempts import Attempt
from redlock_aio._engine.boots import boot_of
from redlock_aio._engine.hold import KEY_GONE, OVERTAKEN
from redlock_aio._engine.rounds import Fleet, Round
from redlock_aio._rules import handing, protocol, timing
from redlock_aio._rules.fencing import Counter
from redlock_aio._rules.handing import Handed
from redlock_aio._rules.keys import Key, Keys
from redlock_aio._rules.lifetime import RETRY_SHARE
from redlock_aio._rules.protocol import Silence, Trust
from redlock_aio._rules.quorum import WON, Answer, Vote
from redlock_aio.errors import LockLostError, RedlockError

TOO_LATE = "it was handed over, and its validity was over before it was adopted"
NOT_THERE = f"{KEY_GONE}: it has ended, or somebody else has adopted it"
TOO_FAR_AHEAD = "its fencing token is too far ahead of the masters' clocks"
TOO_FEW = "too few masters answered before its validity was over"


class Adopted(Attempt):
    """
    One round in which the lock is to get a new value, and what a lease has of it then.

    Args:
        before: The round before it, whose value it repeats. Each is counted by
            itself: an answer to an earlier one says nothing of a later time.
    """

    __slots__ = ("_given", "_handed", "_never")
    trust = Trust.MUTED

    def __init__(
        self,
        fleet: Fleet,
        key: Key | Keys,
        handed: Handed,
        stamp: bytes,
        counter: Counter | None,
        before: "Adopted | None",
    ) -> None:
        self._handed = handed
        self._given = b"" if before is None else before.token
        self._never = -1 if before is None else before.unsent
        super().__init__(fleet, key, handed.ttl, stamp, counter)
        self.fence = handed.fence

    def _request(self, _fleet: Fleet) -> bytes:
        self.token = self._given or self.token
        return handing.adoption(self.key, self.counter, self._handed, self.token)

    def is_refusal(self, reply: object) -> bool:
        """Return whether *reply* says that somebody else has had the lock since."""
        return isinstance(reply, int) and reply > 0

    def not_sent(self, master: int, silence: Silence) -> None:
        """Count a master that it could not be sent to; an earlier round may have come there."""
        super().not_sent(master, silence)
        self.unsent &= self._never

    @property
    def member(self) -> bytes:
        """By which name the lock was waited for, by whom it was acquired."""
        return self._handed.member

    @property
    def can_free(self) -> bool:
        """Whether a release has nothing to do but to delete one key."""
        return not self.member and self.key.can_free

    def release(self) -> bytes:
        """Return the command that gives the lock back, and wakes who is next in a queue."""
        return freeing(self.key, self.member, self.token)

    def only_leave(self) -> bytes:
        """Return the command that leaves the queue and takes nothing back; empty without one."""
        if not self.member:
            return b""
        names = (*self.key.each, *protocol.queue_keys(*self.key.each))
        return protocol.leave(names, self.token, self.member, stay=False, keep=True)

    def why_refused(self) -> str:
        """Return what those say that refuse it."""
        if any(reply.__class__ is int and reply for reply in self.replies):
            return OVERTAKEN
        ahead = any(reply.__class__ is list for reply in self.replies)
        return TOO_FAR_AHEAD if ahead else NOT_THERE

    def votes(self) -> tuple[Vote, ...]:
        """Return what each master has said so far."""
        return tuple(map(_vote, super().votes(), self.replies))


def _vote(vote: Vote, reply: object) -> Vote:
    """Return what the *reply* of a master that refuses an adoption means, else *vote*."""
    if reply.__class__ is int:
        return Vote(vote.master, Answer.HELD, "or was since" if reply else "or by nobody")
    if reply.__class__ is list:
        return Vote(vote.master, Answer.ERROR, "the fencing token is too far ahead of its clock")
    return vote


def freeing(key: Key | Keys, member: bytes, value: bytes) -> bytes:
    """Return the command that frees the lock if it has this *value*; see `Adopted.release`."""
    if not member:
        return key.release(value)
    names = (*key.each, *protocol.queue_keys(*key.each))
    return protocol.leave(names, value, member, stay=False)


class Pause:
    """A moment until the next round; the end of the manager ends it."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._bell = loop.create_future()

    def changed(self, master: int) -> None:
        """Called when the key may have changed. Does nothing: the next round finds that out."""

    def nudge(self) -> None:
        """End the pause: called by its timer, and when the manager ends."""
        if not self._bell.done():
            self._bell.set_result(None)

    async def wait(self, fleet: Fleet, key: Key | Keys, seconds: float) -> None:
        """
        Wait so many *seconds*.

        Cancellation:
            Nothing was waited for that must be taken back.
        """
        line = fleet.line(key)
        timer = fleet.loop.call_later(seconds, self.nudge)
        line.watch(self, mine=False)
        try:
            await self._bell
        finally:
            line.unwatch(self)
            timer.cancel()


class Adoption:
    """
    The adoption of one lease.

    Args:
        fleet: The masters.

        key: What is locked.

        handed: The lease, as it was handed over.

        counter: The one of its fencing token, if it has one.

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
        self._factor = factor
        self._stamp = stamp
        self._last: Adopted | None = None
        began = fleet.clock()
        known = handed.on(boot_of(fleet.loop))
        self.since = handed.at if known else began
        """From when what remained of the lease is counted."""
        self._known = handed.at + handed.left / 1000 if known else math.inf
        # Without an extension no key lives longer, wherever it was handed over.
        self._ends = min(began + handed.ttl / 1000, self._known)
        self._pause = min(handed.ttl * RETRY_SHARE, fleet.master_timeout) / 1000

    def __repr__(self) -> str:
        return f"<Adoption of {', '.join(map(repr, self.handed.resources))}, {self._last!r}>"

    async def win(self) -> Adopted:
        """
        Ask the masters until a majority has given the lock the new value.

        Raises:
            LockLostError: It is over, or somebody else has it.

            RedlockError: The manager was closed.

        Cancellation:
            Masters may have given it the new value; see `forgo`.
        """
        fleet = self._fleet
        while True:
            if fleet.closed:
                raise RedlockError(fleet.why_closed)
            now = fleet.clock()
            if now >= self._ends:
                raise self._lost(TOO_LATE if self._last is None else TOO_FEW)
            self._last = last = Adopted(
                fleet, self._key, self.handed, self._stamp, self._counter, self._last
            )
            fleet.ask(last, (self._ends - now) * 1000)
            last.waiter = fleet.loop.create_future()
            await last.waiter
            if fleet.closed:
                continue  # to take it back before the connections end
            if last.verdict is WON:
                # The clock is read after the task has resumed. A lease that was over
                # by then is not revived, though a majority still had its key.
                until = timing.deadline(last.began, last.ttl, factor=self._factor)
                if fleet.clock() < min(until, self._known):
                    last.until = until
                    return last
            elif last.refused_by_a_majority():
                raise self._lost(last.why_refused())
            # One that is cut short wins nothing, and says nothing of the masters.
            left = self._ends - self._pause / 2 - fleet.clock()
            if left <= 0:
                raise self._lost(TOO_FEW)
            await Pause(fleet.loop).wait(fleet, self._key, min(self._pause, left))

    def _lost(self, why: str) -> LockLostError:
        if self._last is not None:
            why += f" ({'; '.join(map(str, self._last.votes()))})"
        return LockLostError(self.handed.resources, why)

    def forgo(self, max_ttl: int) -> None:
        """Free the lock on all masters, now or when they can; nothing is awaited."""
        if self._last is not None:
            self._fleet.release(self._last.release(), self.handed.ttl, self._last)
        self._free_old(self.handed.member, max_ttl)

    def sweep(self, max_ttl: int) -> None:
        """Free the lock on masters that still have the old value, but for those that it won."""
        self._free_old(b"", max_ttl)

    def _free_old(self, member: bytes, max_ttl: int) -> None:
        # It may be on every master, also on those that we have not reached.
        everywhere = Round(self._fleet.links, b"")
        self._fleet.release(freeing(self._key, member, self.handed.value), max_ttl, everywhere)
