"""
Taking up a lease that another process has handed over.

All masters are asked to give the lock a new value where it still has the old one. A
majority that has done so is counted as an extension is: from before it was asked,
and before the lease was over. What a master has not answered can be said again, for
as long as anything of the lock can be left.

Whoever fails to adopt a lease frees it, under the new value and under the old, so
that nobody waits for what nobody holds. What if somebody else has adopted it?

- His value is one that only he knows. What is freed is the old value, where he has
  not come yet: on a minority, if he has a majority already, or will have one.
- On these a stranger may take the lock then, who finds no majority; and the next
  extension sets it again there.
- If he has no majority yet, he finds the lock gone, and fails: he believed nothing.
"""

import asyncio
import math
from collections.abc import Mapping
from datetime import timedelta
from typing import Protocol

from redlock_aio._engine.attempts import Attempt
from redlock_aio._engine.boots import boot_of
from redlock_aio._engine.hold import KEY_GONE, OVERTAKEN, Hold
from redlock_aio._engine.lease import Lease, OnLost
from redlock_aio._engine.reentrance import known
from redlock_aio._engine.rounds import Fleet, Round
from redlock_aio._engine.telling import milliseconds
from redlock_aio._engine.watchdog import Engine
from redlock_aio._rules import handing, holders, protocol, timing
from redlock_aio._rules.arguments import of_type, one_of
from redlock_aio._rules.fencing import Counter
from redlock_aio._rules.handing import Handed
from redlock_aio._rules.keys import Key, Keys
from redlock_aio._rules.lifetime import RETRY_SHARE
from redlock_aio._rules.protocol import Silence, Trust
from redlock_aio._rules.quorum import WON, Answer, Vote
from redlock_aio.errors import LockLostError, RedlockError
from redlock_aio.events import Acquired

TOO_LATE = "it was handed over, and its validity was over before it was adopted"
NOT_THERE = f"{KEY_GONE}: it has ended, or somebody else has adopted it"
HELD_TOO_LONG = "it was held for as long as max_hold allows"
TOO_FEW = "too few masters answered before its validity was over"


class Handing(Engine, Protocol):
    """What an adoption needs of its manager."""

    _lease_kind: type[Lease]
    _max_ttl: int

    def _key(self, resource: str) -> Key:
        """Return the key of a resource."""

    def _keys(self, resources: tuple[str, ...]) -> Keys:
        """Return the keys of several."""


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
        return freeing(self.key, self.member, b"") if self.member else b""

    def votes(self) -> tuple[Vote, ...]:
        """Return what each master has said so far."""
        return tuple(
            Vote(vote.master, Answer.HELD, "or by nobody" if reply == 0 else "or was since")
            if reply.__class__ is int
            else vote
            for vote, reply in zip(super().votes(), self.replies, strict=True)
        )


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
        """Hear that the key may have been changed; that is found out soon enough."""

    def nudge(self) -> None:
        """Hear that it is to be looked what has become of it."""
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
                raise RedlockError("this Redlock was closed")
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
                beyond = any(reply.__class__ is int and reply for reply in last.replies)
                raise self._lost(OVERTAKEN if beyond else NOT_THERE)
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


async def adopt(
    redlock: Handing,
    /,
    exported: str,
    *,
    auto_extend: bool = True,
    max_hold: int | timedelta | None = None,
    on_lost: OnLost = "cancel",
    metadata: Mapping[str, object] | None = None,
) -> Lease:
    """
    Go on with a lease that another process has handed over by `Lease.export`.

    It gets a token of its own, so that one of several who adopt it has it at most,
    and *exported* is of no use any more. Its resources, ttl and fencing token stay
    the same, and what remains of *max_hold* and *hold_at_least*. The manager must
    have the same masters and *key_prefix*.

    Masters that do not answer are asked again for as long as the lease can last.

    Args:
        exported: What `Lease.export` has returned.

        auto_extend: As for `Redlock.lock` (default yes).

        max_hold: As for `Redlock.lock`, from the adoption on (default: what remains
            of the exporter's).

        on_lost: As for `Redlock.lock` (default ``"cancel"``).

        metadata: As for `Redlock.lock` (default: that of the exporter).

    Raises:
        TypeError: An argument is of another type.

        ValueError: *exported* is damaged, or its ttl is longer than the manager's
            *max_ttl*.

        LockLostError: The lease is over, somebody else has adopted it, or too few
            masters have answered. Whatever was left of it is freed.

        RedlockError: The manager is closed, or belongs to another event loop or
            process.

    Cancellation:
        The lock is released. A master that does not answer now is told as soon as
        it answers again.
    """
    handed = handing.imported(exported)
    key = _key(redlock, handed)
    timing.at_least(timing.at_most(handed.ttl, redlock._max_ttl))
    of_type(auto_extend, bool, name="auto_extend")
    one_of(on_lost, ("cancel", "flag"), name="on_lost")
    at_most = None if max_hold is None else timing.milliseconds(max_hold, name="max_hold")
    said = handed.metadata if metadata is None else holders.packed(metadata)
    ready = redlock._is_ready()
    fleet = redlock._fleet
    began = fleet.clock()
    counter = key.counter(redlock._clock_lead) if handed.fence else None
    adoption = Adoption(fleet, key, handed, counter, redlock._drift_factor, fleet.stamp + said)
    try:
        if not ready:
            await redlock._get_ready(handed.ttl)
        won = await adoption.win()
        hold = _hold(redlock, adoption, won, at_most, renewed=auto_extend)
    except BaseException:
        adoption.forgo(redlock._max_ttl)
        raise
    adoption.sweep(redlock._max_ttl)
    lease = redlock._lease_kind(redlock._watchdog, hold, fleet.clock(), on_lost)
    waited = milliseconds(fleet.clock() - began)
    fence = handed.fence or None
    fleet.teller.tell_soon(Acquired(lease.resources, lease.fingerprint, waited, fence))
    return lease


def _key(redlock: Handing, handed: Handed) -> Key | Keys:
    """Return the key of what was handed over, as this manager makes it."""
    names = handed.resources
    try:
        return redlock._key(names[0]) if len(names) == 1 else redlock._keys(names)
    except ValueError:
        pass
    raise ValueError("exported names a resource that can't be locked here, with this key_prefix")


def _hold(
    redlock: Handing, adoption: Adoption, won: Adopted, max_hold: int | None, *, renewed: bool
) -> Hold:
    """
    Watch over what was adopted.

    Raises:
        LockLostError: It has been held for as long as it may.
    """
    handed, fleet = adoption.handed, redlock._fleet
    now = fleet.clock()
    if handed.max_hold is not None:
        left = timing.remaining(adoption.since + handed.max_hold / 1000, now)
        if not left:
            raise LockLostError(handed.resources, HELD_TOO_LONG)
        max_hold = left if max_hold is None else min(left, max_hold)
    line = fleet.line(won.key)
    hold = Hold(
        redlock._watchdog,
        line,
        handed.resources,
        won,
        now,
        redlock._drift_factor,
        renewed,
        max_hold,
    )
    hold.task = known(asyncio.current_task(fleet.loop))
    hold.keep_until = adoption.since + handed.keep / 1000 if handed.keep else 0.0
    redlock._watchdog.add(hold, now)
    line.keep(hold)
    return hold
