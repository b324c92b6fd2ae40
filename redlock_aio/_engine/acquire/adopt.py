"""
The adoption of a lease that another process has exported.

    exported value on the masters ─► round 1: new value ─┬─ a majority, in time ──► adopted
                                       │                 ├─ a majority refuses ───► lost
                                       └─ neither: pause, round 2: the same value ...

All masters are asked to give the lock a new value where it still has the old one. A
majority counts as for an extension: the validity begins when the round is sent, and the
lease must not have been over by then. A round with too few replies is repeated for as
long as any key can be left.

A failed adoption releases the lock, under the new value and under the old one, so that no
acquisition waits for a lock without a holder. If two processes, A and B, adopt the same
text, and A fails and releases while B goes on, this is harmless:

- A does not know B's value. It releases the old value, which is left only on masters
  that B has not reached yet: a minority, if B has a majority or is to get one.
- On those masters others can take the lock then. They get no majority, and B's next
  extension has its key set again there.
- If B has no majority yet, and can't get one now, it finds the key gone and fails. It
  has not returned a lease before.
"""

import asyncio
import math

from redlock_aio._engine.claim import Claim
from redlock_aio._engine.clock import boot_of
from redlock_aio._engine.hold.held_lease import HeldLease
from redlock_aio._engine.masters import Query
from redlock_aio._engine.session import Session
from redlock_aio._engine.wait.local_queue import LocalQueue
from redlock_aio._protocol import lease_export
from redlock_aio._protocol.lease_export import ExportedLease
from redlock_aio._protocol.primitives import JointMutex, Mutex
from redlock_aio._protocol.request import NoReply, QuarantineRule
from redlock_aio._rules import timing
from redlock_aio._rules.causes import LossCause
from redlock_aio._rules.lease_state import retry_pause
from redlock_aio._rules.quorum import NOT_YET, WON, Answer
from redlock_aio._rules.validation import quoted
from redlock_aio.errors import LockLostError

ENDED = "the lease has ended, or another process has adopted it"


async def adopt(  # noqa: PLR0913 - the options of an adoption
    session: Session,
    key: Mutex | JointMutex,
    handed: ExportedLease,
    metadata: bytes,
    *,
    renewed: bool,
    max_hold: int | None,
    owner: object,
) -> HeldLease:
    """
    Adopt the lease *handed*; see `Redlock.adopt`.

    Args:
        max_hold: In ms from now; ``None`` for the rest of the exporter's.

    Cancellation:
        The lock is released, under its new value and under the old one.
    """
    adoption = Adoption(session, key, handed, metadata)
    try:
        if not session.ready:
            await session.get_ready(handed.ttl)
        won = await adoption.win()
        now = session.masters.clock()
        hold = session.watchdog.hold(
            won,
            handed.resources,
            now,
            renewed=renewed,
            ends=adoption.ends(max_hold, now),
            keep_until=adoption.since + handed.keep / 1000 if handed.keep else 0.0,
            owner=owner,
        )
    except BaseException:
        # A cancellation too: masters may have given the lock the new value, which only
        # this call knows.
        adoption.abandon(session.max_ttl)
        raise
    # Nothing waits from here on: after a cancellation nothing would release the lease.
    adoption.release_old(session.max_ttl)
    return hold


class Adoption:
    def __init__(
        self,
        session: Session,
        key: Mutex | JointMutex,
        handed: ExportedLease,
        metadata: bytes,
    ) -> None:
        self.handed = handed
        self._masters = masters = session.masters
        self._local_queues = session.local_queues
        self._key = key
        # A master stays unsent only if no round is sent to it.
        self._unsent = (1 << len(masters.links)) - 1
        token = masters.token() + masters.stamp + metadata
        counter = key.counter(session.clock_lead) if handed.fence else None
        self._claim = Claim(key, token, handed.ttl, counter, handed.member)
        self._claim.fence = handed.fence
        self._factor = session.drift_factor
        self._last: Query | None = None
        self._reasons: list[LossCause] = []
        """Why each master has refused that was asked in the last round."""
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
        return f"<Adoption of {quoted(self.handed.resources)}, {self._last!r}>"

    async def win(self) -> Claim:
        """
        Repeat rounds until a majority has given the lock the new value.

        Cancellation:
            Some masters may have given the lock the new value; see `abandon`.
        """
        masters, claim = self._masters, self._claim
        while True:
            masters.check_open()
            now = masters.clock()
            if now >= self._ends:
                late = self._last is None  # no round was sent
                raise self._lost(LossCause.ADOPTED_LATE if late else LossCause.NOT_ADOPTED)
            self._last = last = self._round()
            await masters.ask(last, (self._ends - now) * 1000)
            self._unsent = claim.unsent = self._unsent & last.unsent
            if masters.closed:
                continue  # `check_open` raises, so `abandon` is sent before the connections end
            if last.verdict is WON:
                # The clock is read after the task has resumed, however long that took. The
                # exporter's deadline counts as well: a lease whose validity is over is never
                # revived, not even if a majority of the masters still has its key.
                until = timing.deadline(claim.began, claim.ttl, factor=self._factor)
                if masters.clock() < min(until, self._deadline):
                    claim.until = until
                    return claim
            elif len(self._reasons) * 2 >= len(last.replies):
                raise self._refused()
            # A round that was cut short is not won, and its votes prove nothing about the masters.
            left = self._ends - self._pause / 2 - masters.clock()
            if left <= 0:
                raise self._lost(LossCause.NOT_ADOPTED)
            await Pause(masters.loop).wait(self._local_queues.of(self._key), min(self._pause, left))

    def _round(self) -> Query:
        """
        Return a round that gives the lock the new value where it has the old or the new one.

        Rounds are repeated under one claim: a master that executed the first one, and whose
        reply was lost, then grants the second. The replies are counted anew: validity counts
        from when a round was sent, and a reply to an earlier round proves nothing about the
        time after it.
        """
        masters, claim = self._masters, self._claim
        self._reasons = reasons = list[LossCause]()

        def count(master: int, reply: object) -> object:
            if asked.replies[master] is NOT_YET and (refused := _refusal(reply)) is not None:
                cause, reply = refused
                reasons.append(cause)
            return reply

        asked = Query(
            masters,
            lease_export.adoption(claim.key, claim.counter, self.handed, claim.token),
            in_quarantine=QuarantineRule.COUNT_REFUSALS,
            count=count,
            refuses=lambda reply: isinstance(reply, int) and reply > 0,
        )
        claim.unsent = 0  # any master may execute it, until the round says to which it was not sent
        claim.begin(asked.replies, masters.clock())
        return asked

    def _refused(self) -> LockLostError:
        for cause in (LossCause.OVERTAKEN, LossCause.FENCING_AHEAD):
            if cause in self._reasons:
                return self._lost(cause)
        return self._lost(LossCause.KEY_GONE, ENDED)

    def _lost(self, cause: LossCause, detail: str = "") -> LockLostError:
        votes = () if self._last is None else self._last.votes()
        return LockLostError(self.handed.resources, cause, detail, votes)

    def ends(self, max_hold: int | None, now: float) -> float:
        ends = math.inf if max_hold is None else now + max_hold / 1000
        if self.handed.max_hold is not None:
            left = timing.remaining(self.since + self.handed.max_hold / 1000, now)
            if not left:
                raise LockLostError(self.handed.resources, LossCause.MAX_HOLD)
            ends = min(ends, now + left / 1000)
        return ends

    def abandon(self, max_ttl: int) -> None:
        """
        Release the lock on all masters, now or when they answer again; nothing is awaited.

        The release of the new value goes first: a slow master may still have to execute a
        round of this adoption, and executes both in the order in which they were sent. The
        release of the old value follows, for the masters that no round has reached.
        """
        if self._last is not None:
            self._masters.release_by(self._claim, self._claim.release(), self.handed.ttl)
        self._release_old(self.handed.member, max_ttl)
        # No master pushes a change to the connection that made it (NOLOOP).
        self._local_queues.notify_released(self._key)

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
        old = Claim(self._key, self.handed.value, max_ttl, member=member)
        self._masters.release_by(old, old.release(), max_ttl)


def _refusal(reply: object) -> tuple[LossCause, NoReply] | None:
    """Return what a *reply* that refuses an adoption means, and its vote; else ``None``."""
    if reply.__class__ is int:
        if reply:
            return LossCause.OVERTAKEN, NoReply(Answer.HELD, "now or earlier")
        return LossCause.KEY_GONE, NoReply(Answer.HELD, "or free")
    if reply.__class__ is list:
        why = "the fencing token is too far ahead of its clock"
        return LossCause.FENCING_AHEAD, NoReply(Answer.ERROR, why)
    return None


class Pause:
    """The wait before the next round, which ends early when the manager is closed."""

    __slots__ = ("_over",)
    member = b""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._over = loop.create_future()

    def changed(self, master: int) -> None:
        """Called when the key may have changed; ignored, because the next round reads it."""

    def on_local_release(self) -> None:
        """End the wait: called by its timer, and when the manager is closed."""
        if not self._over.done():
            self._over.set_result(None)

    async def wait(self, queue: LocalQueue, seconds: float) -> None:
        timer = self._over.get_loop().call_later(seconds, self.on_local_release)
        queue.subscribe(self, mine=False)
        try:
            await self._over
        finally:
            queue.unsubscribe(self)
            timer.cancel()
