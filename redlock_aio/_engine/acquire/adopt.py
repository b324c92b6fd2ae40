"""
The rounds in which an exported lease gets the value of its new holder.

    exported value on the masters ─► round 1: new value ─┬─ a majority, in time ──► adopted
                                       │                 ├─ a majority refuses ───► lost
                                       └─ neither: pause, round 2: the same value ...

`_api.adoption` runs them, and explains why a failed adoption is harmless.
"""

import asyncio
import math

from redlock_aio._engine.attempt import Attempt
from redlock_aio._engine.clock import boot_of
from redlock_aio._engine.masters import MasterSet
from redlock_aio._engine.round import Round
from redlock_aio._engine.session import Session
from redlock_aio._engine.wait.local_queue import LocalQueue
from redlock_aio._protocol import commands, lease_export
from redlock_aio._protocol.lease_export import ExportedLease
from redlock_aio._protocol.primitives import FencingCounter, JointMutex, Mutex
from redlock_aio._protocol.request import NoReply, QuarantineRule
from redlock_aio._rules import timing
from redlock_aio._rules.causes import LossCause
from redlock_aio._rules.lease_state import retry_pause
from redlock_aio._rules.quorum import WON, Answer, Vote
from redlock_aio.errors import LockLostError

ENDED = "the lease has ended, or another process has adopted it"


class AdoptionRound(Attempt):
    """
    One round that gives the lock a new value; the attempt of the adopted lease once it is won.

    Args:
        before: The previous round; ``None`` for the first. The new round repeats its value:
            a master that executed the first round, and whose reply was lost, then grants
            the second. The replies are counted anew: validity counts from when a round was
            sent, and a reply to an earlier round proves nothing about the time after it.
    """

    __slots__ = ("_handed", "_never_sent", "_value")
    in_quarantine = QuarantineRule.COUNT_REFUSALS

    def __init__(
        self,
        masters: MasterSet,
        key: Mutex | JointMutex,
        handed: ExportedLease,
        stamp: bytes,
        counter: FencingCounter | None,
        before: "AdoptionRound | None",
    ) -> None:
        self._handed = handed
        self._value = b"" if before is None else before.token
        self._never_sent = -1 if before is None else before.unsent
        super().__init__(masters, key, handed.ttl, stamp, counter)
        self.fence = handed.fence

    def _request(self, _masters: MasterSet) -> bytes:
        self.token = self._value or self.token
        return lease_export.adoption(self.key, self.counter, self._handed, self.token)

    def is_refusal(self, reply: object) -> bool:
        """Return whether *reply* proves that another client has held the lock since."""
        return isinstance(reply, int) and reply > 0

    def not_sent(self, master: int, no_reply: NoReply) -> None:
        """Count *no_reply*; the master stays marked as unsent only if no round was sent to it."""
        super().not_sent(master, no_reply)
        self.unsent &= self._never_sent

    @property
    def member(self) -> bytes:
        """The queue name of the waiter that acquired the lock; empty without a fair queue."""
        return self._handed.member

    @property
    def can_free(self) -> bool:
        """Whether a release only has to delete one key."""
        return not self.member and self.key.can_free

    def release(self) -> bytes:
        """Return the command that releases the lock, and wakes the next waiter of a fair queue."""
        return release_of(self.key, self.member, self.token)

    def only_leave(self) -> bytes:
        """Return the command that leaves the queue and keeps the lock; empty without a queue."""
        if not self.member:
            return b""
        names = (*self.key.each, *commands.queue_keys(*self.key.each))
        return commands.leave(names, self.token, self.member, keep_place=False, keep_key=True)

    def why_refused(self) -> tuple[LossCause, str]:
        """Return the cause of the refusals, and more about it."""
        if any(reply.__class__ is int and reply for reply in self.replies):
            return LossCause.OVERTAKEN, ""
        ahead = any(reply.__class__ is list for reply in self.replies)
        return (LossCause.FENCING_AHEAD, "") if ahead else (LossCause.KEY_GONE, ENDED)

    def votes(self) -> tuple[Vote, ...]:
        """Return the vote of each master so far."""
        return tuple(map(_vote, super().votes(), self.replies))


def _vote(vote: Vote, reply: object) -> Vote:
    """Return the vote for a *reply* that refuses an adoption; *vote* for any other reply."""
    if reply.__class__ is int:
        return Vote(vote.master, Answer.HELD, "now or earlier" if reply else "or free")
    if reply.__class__ is list:
        return Vote(vote.master, Answer.ERROR, "the fencing token is too far ahead of its clock")
    return vote


def release_of(key: Mutex | JointMutex, member: bytes, value: bytes) -> bytes:
    """Return the command that releases the lock if it has *value*, and leaves the queue."""
    if not member:
        return key.release(value)
    names = (*key.each, *commands.queue_keys(*key.each))
    return commands.leave(names, value, member, keep_place=False)


class Pause:
    """The wait before the next round, which ends early when the manager is closed."""

    __slots__ = ("_over",)

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._over = loop.create_future()

    def changed(self, master: int) -> None:
        """Called when the key may have changed; ignored, because the next round reads it."""

    def on_local_release(self) -> None:
        """End the wait: called by its timer, and when the manager is closed."""
        if not self._over.done():
            self._over.set_result(None)

    async def wait(self, queue: LocalQueue, seconds: float) -> None:
        """
        Wait for *seconds*, or until the manager is closed.

        Cancellation:
            There is nothing to undo.
        """
        timer = self._over.get_loop().call_later(seconds, self.on_local_release)
        queue.subscribe(self, mine=False)
        try:
            await self._over
        finally:
            queue.unsubscribe(self)
            timer.cancel()


class Adoption:
    """
    The adoption of one lease.

    Args:
        session: The masters and the settings of the manager.

        key: The key or keys of the lock.

        handed: The exported lease.

        counter: The commands for its fencing token; ``None`` without one.

        stamp: The suffix of the new value, which identifies the new holder.
    """

    def __init__(
        self,
        session: Session,
        key: Mutex | JointMutex,
        handed: ExportedLease,
        counter: FencingCounter | None,
        stamp: bytes,
    ) -> None:
        self.handed = handed
        self._masters = masters = session.masters
        self._local_queues = session.local_queues
        self._key = key
        self._counter = counter
        self.factor = session.drift_factor
        """The drift factor."""
        self._stamp = stamp
        self._last: AdoptionRound | None = None
        began = masters.clock()
        same_clock = handed.on(boot_of(masters.loop))
        self.since = handed.at if same_clock else began
        """The instant from which the remaining times of the lease count."""
        # The exporter's deadline, if the export was made in this boot of this machine. The
        # clock of another machine can't be compared; then only the masters know the end.
        self._deadline = handed.at + handed.left / 1000 if same_clock else math.inf
        # Without an extension no key lives longer, wherever the export was made.
        self._ends = min(began + handed.ttl / 1000, self._deadline)
        self._pause = retry_pause(handed.ttl, masters.master_timeout)

    def __repr__(self) -> str:
        return f"<Adoption of {', '.join(map(repr, self.handed.resources))}, {self._last!r}>"

    async def win(self) -> AdoptionRound:
        """
        Repeat rounds until a majority has given the lock the new value.

        Raises:
            LockLostError: The lease has ended, or another client holds the lock.

            RedlockError: The manager was closed.

        Cancellation:
            Some masters may have given the lock the new value; see `abandon`.
        """
        masters = self._masters
        while True:
            masters.check_open()
            now = masters.clock()
            if now >= self._ends:
                late = self._last is None  # no round was sent
                raise self._lost(LossCause.ADOPTED_LATE if late else LossCause.NOT_ADOPTED)
            self._last = last = AdoptionRound(
                masters, self._key, self.handed, self._stamp, self._counter, self._last
            )
            await masters.ask(last, (self._ends - now) * 1000)
            if masters.closed:
                continue  # `check_open` raises, so `abandon` is sent before the connections end
            if last.verdict is WON:
                # The clock is read after the task has resumed, however long that took. The
                # exporter's deadline counts as well: a lease whose validity is over is never
                # revived, not even if a majority of the masters still has its key.
                until = timing.deadline(last.began, last.ttl, factor=self.factor)
                if masters.clock() < min(until, self._deadline):
                    last.until = until
                    return last
            elif last.refused_by_a_majority():
                raise self._lost(*last.why_refused())
            # A round that was cut short is not won, and its votes prove nothing about the masters.
            left = self._ends - self._pause / 2 - masters.clock()
            if left <= 0:
                raise self._lost(LossCause.NOT_ADOPTED)
            await Pause(masters.loop).wait(self._local_queues.of(self._key), min(self._pause, left))

    def _lost(self, cause: LossCause, detail: str = "") -> LockLostError:
        votes = () if self._last is None else self._last.votes()
        return LockLostError(self.handed.resources, cause, detail, votes)

    def abandon(self, max_ttl: int) -> None:
        """
        Release the lock on all masters, now or when they answer again; nothing is awaited.

        The release of the new value goes first: a slow master may still have to execute a
        round of this adoption, and executes both in the order in which they were sent. The
        release of the old value follows, for the masters that no round has reached.
        """
        if self._last is not None:
            self._masters.release(self._last.release(), self.handed.ttl, self._last)
        self._release_old(self.handed.member, max_ttl)

    def release_old(self, max_ttl: int) -> None:
        """
        Release the old value after an adoption, where a minority of masters still has it.

        A master that hung during the adoption still has the old value, or gets it late, and
        the exporter no longer releases it. There it would block other clients until its ttl
        is over, and the new value could not be restored.
        """
        self._release_old(b"", max_ttl)

    def _release_old(self, member: bytes, max_ttl: int) -> None:
        # The value may be on every master, also on those that no round has reached.
        everywhere = Round(self._masters.links, b"")
        self._masters.release(release_of(self._key, member, self.handed.value), max_ttl, everywhere)
