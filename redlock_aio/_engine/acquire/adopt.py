"""
The rounds in which an exported lease gets the value of its new holder.

    exported value on the masters ─► round 1: new value ─┬─ a majority, in time ──► adopted
                                       │                 ├─ a majority refuses ───► lost
                                       └─ neither: pause, round 2: the same value ...

`_api.adoption` runs them, and explains why a failed adoption is harmless.
"""

import asyncio
import math

from redlock_aio._engine.claim import Claim, release_by
from redlock_aio._engine.clock import boot_of
from redlock_aio._engine.masters import MasterSet, Round
from redlock_aio._engine.session import Session
from redlock_aio._engine.wait.local_queue import LocalQueue
from redlock_aio._protocol import lease_export
from redlock_aio._protocol.lease_export import ExportedLease
from redlock_aio._protocol.primitives import FencingCounter, JointMutex, Mutex
from redlock_aio._protocol.request import NoReply, QuarantineRule
from redlock_aio._rules import timing
from redlock_aio._rules.causes import LossCause
from redlock_aio._rules.lease_state import retry_pause
from redlock_aio._rules.quorum import NOT_YET, WON, Answer
from redlock_aio.errors import LockLostError

ENDED = "the lease has ended, or another process has adopted it"


class AdoptionRound(Round):
    """
    One round that gives the lock a new value: the token of *claim*.

    Rounds are repeated under one claim: a master that executed the first one, and whose
    reply was lost, then grants the second. The replies are counted anew: validity counts
    from when a round was sent, and a reply to an earlier round proves nothing about the
    time after it.
    """

    __slots__ = ("_claim", "_never_sent", "reasons")
    in_quarantine = QuarantineRule.COUNT_REFUSALS

    def __init__(self, masters: MasterSet, claim: Claim, handed: ExportedLease) -> None:
        payload = lease_export.adoption(claim.key, claim.counter, handed, claim.token)
        super().__init__(masters.links, payload)
        self._claim = claim
        # A master stays unsent only if no round is sent to it.
        self._never_sent, claim.unsent = claim.unsent, 0
        claim.replies, claim.began = self.replies, masters.clock()
        self.reasons: list[LossCause] = []
        """Why each master that was asked has refused."""

    def is_refusal(self, reply: object) -> bool:
        """Return whether *reply* proves that another client has held the lock since."""
        return isinstance(reply, int) and reply > 0

    def not_sent(self, master: int, no_reply: NoReply) -> None:
        """Count *no_reply* for a master that does not get this round."""
        self._claim.unsent |= 1 << master & self._never_sent
        self.on_reply(master, no_reply)

    def on_reply(self, master: int, reply: object, /) -> None:
        """Count a grant, or a refusal in the words that its vote is to have."""
        if self.replies[master] is NOT_YET and (refused := _refused(reply)) is not None:
            cause, reply = refused
            self.reasons.append(cause)
        super().on_reply(master, reply)

    @property
    def is_refused(self) -> bool:
        """Whether refusals by the masters themselves leave no majority."""
        return len(self.reasons) * 2 >= len(self.replies)

    def why_refused(self) -> tuple[LossCause, str]:
        """Return the cause of the refusals, and more about it."""
        for cause in (LossCause.OVERTAKEN, LossCause.FENCING_AHEAD):
            if cause in self.reasons:
                return cause, ""
        return LossCause.KEY_GONE, ENDED


def _refused(reply: object) -> tuple[LossCause, NoReply] | None:
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
        nobody = (1 << len(masters.links)) - 1
        token = masters.token() + stamp
        self._claim = Claim(key, token, handed.ttl, counter, handed.member, unsent=nobody)
        self._claim.fence = handed.fence
        self.factor = session.drift_factor
        """The drift factor."""
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

    async def win(self) -> Claim:
        """
        Repeat rounds until a majority has given the lock the new value.

        Raises:
            LockLostError: The lease has ended, or another client holds the lock.

            RedlockError: The manager was closed.

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
            self._last = last = AdoptionRound(masters, claim, self.handed)
            await masters.ask(last, (self._ends - now) * 1000)
            if masters.closed:
                continue  # `check_open` raises, so `abandon` is sent before the connections end
            if last.verdict is WON:
                # The clock is read after the task has resumed, however long that took. The
                # exporter's deadline counts as well: a lease whose validity is over is never
                # revived, not even if a majority of the masters still has its key.
                until = timing.deadline(claim.began, claim.ttl, factor=self.factor)
                if masters.clock() < min(until, self._deadline):
                    claim.until = until
                    return claim
            elif last.is_refused:
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
            release_by(self._masters, self._claim, self._claim.release(), self.handed.ttl)
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
        old = Claim(self._key, self.handed.value, max_ttl, member=member)
        release_by(self._masters, old, old.release(), max_ttl)
