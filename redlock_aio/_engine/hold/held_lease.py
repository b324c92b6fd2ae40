"""
One lease as the engine keeps it: its state, key and sharers, and the bodies that it guards.

A `HeldLease` knows neither the watchdog nor the locks above it. It reports by one
callback (`on_recheck`), and by the scopes and the event that are registered with it.
"""

import asyncio
import contextlib
import math
import weakref
from collections.abc import Callable, Coroutine
from typing import Any, TypeAlias

from anyio import CancelScope

from redlock_aio._engine.claim import Claim
from redlock_aio._engine.emitter import Emitter, event_ms
from redlock_aio._engine.masters import MasterSet, Round, votes
from redlock_aio._engine.wait.local_queue import LocalQueue
from redlock_aio._protocol.lease_export import ExportedLease
from redlock_aio._protocol.primitives import Permit
from redlock_aio._rules import lock_value, timing
from redlock_aio._rules.blockers import Blockers
from redlock_aio._rules.causes import Loss, LossCause
from redlock_aio._rules.lease_state import (
    HANDED_OVER,
    NEVER_STALLED,
    NOTHING_DUE,
    LeaseState,
)
from redlock_aio._rules.mistakes import EventIsNoBool
from redlock_aio._rules.quorum import LOST, Answer, Vote
from redlock_aio._rules.validation import quoted
from redlock_aio.errors import LockLostError, LockNotHeldError, RedlockError
from redlock_aio.events import Extended, Lost, Mode, Released

Sharer: TypeAlias = "weakref.ref[asyncio.Task[object]] | None"
"""A task that shares a lease; a weak reference, which does not keep its frames alive."""


def task_ref(task: asyncio.Task[object] | None) -> Sharer:
    return None if task is None else weakref.ref(task)


class LossEvent(EventIsNoBool, asyncio.Event):
    """The event of a lost lease. Without `EventIsNoBool` it would be true before the loss too."""


class HeldLease(LeaseState):
    __slots__ = (
        "_fingerprint", "_lost", "announced", "check_at", "checked_at", "claim", "count",
        "extension", "guards", "held_for", "held_since", "keep_until", "kept", "on_recheck",
        "others", "owner", "page", "pending_ttl", "queue", "released", "requested_ttl",
        "resources", "task",
    )  # fmt: skip

    page: "dict[HeldLease, None]"
    """The leases that need attention at the same instant; set and used by the agenda."""
    on_recheck: "Callable[[HeldLease], None]"
    """Called with this lease when its key should be checked soon; set by the watchdog."""

    def __init__(
        self,
        claim: Claim,
        resources: tuple[str, ...],
        queue: LocalQueue,
        now: float,
        factor: float,
        renewed: bool,
    ) -> None:
        LeaseState.__init__(self, claim.until, claim.ttl, factor, renewed)
        self.resources: tuple[str, ...] = resources
        self.claim: Claim = claim
        self.count: int = 1
        """The number of sharers; 0 if the last one was dropped without a release."""
        self.owner: object = None
        """The *owner* of the lock; without one the lease belongs to its task."""
        self.task: Sharer = None
        """The task that acquired the lease, or has entered it since."""
        self.others: tuple[Sharer, ...] = ()
        """The tasks that share the lease with the first one."""
        self.requested_ttl: int = claim.ttl
        """The ttl in ms of the last extension that was sent, acknowledged or not."""
        self.pending_ttl: int = 0
        """The longest ttl that a sharer wants and no extension has requested yet; 0 for none."""
        self.keep_until: float = 0.0
        """The instant until which the masters keep the key after a release; see *hold_at_least*."""
        self.released: Round | None = None
        """The round that releases the lock, once the lease has ended."""
        self.guards: dict[CancelScope, Sharer] = {}
        """The scopes that cancel its bodies, with their tasks, in the order of entering."""
        self.held_since: float = now
        self.held_for: float | None = None
        """The seconds for which the lease was held; set between its release and the event."""
        self.announced: bool = False
        """Whether its `Acquired` was emitted."""
        self.queue: LocalQueue = queue
        self.extension: Round | None = None  # the last one, until one succeeds
        self.kept: int = 0
        """A bit for each master that has shown the key since the lease was won, or got it then."""
        self.check_at: float = NOTHING_DUE
        self.checked_at: float = -math.inf
        self._lost: asyncio.Event | None = None
        self._fingerprint = ""

    @property
    def member(self) -> bytes:
        return self.claim.member

    @property
    def lost(self) -> asyncio.Event:
        """An event that is set when the lease is lost; created by the first access."""
        if self._lost is None:
            self._lost = LossEvent()
            self.notify_lost()
        return self._lost

    @property
    def fingerprint(self) -> str:
        """The identity of the lease for others; made by the first access, see `lock_value`."""
        if not self._fingerprint:
            self._fingerprint = lock_value.fingerprint(self.claim.token)
        return self._fingerprint

    def as_seen_by_others(self, masters: MasterSet) -> tuple[tuple[Vote, ...], Blockers] | None:
        """
        Return the votes of the masters, and what blocks them, for another task of this process.

        A master counts as held since it has granted the lease or got its key later, also if it
        has gone away since. The result is ``None`` for a lease that was not acquired here.
        """
        claim = self.claim
        if not claim.replies:
            return None
        view = Blockers(len(masters.links))
        # The masters may keep the key for so much longer than it is valid.
        until = self.deadline + timing.drift(self.ttl, factor=self.factor) / 1000
        given = list(votes(masters.links, claim.replies))
        for master, (link, vote) in enumerate(zip(masters.links, given, strict=True)):
            # A master may have got the key after the acquisition. Of one that has not, the reason
            # may be another by now.
            if vote.answer is Answer.GRANTED or self.kept >> master & 1:
                view.held(master, claim.token, until)
                given[master] = Vote(vote.master, Answer.HELD)
            elif (why := link.no_vote) is not None:
                given[master] = Vote(vote.master, why.answer, why.detail, permanent=why.permanent)
        return tuple(given), view

    def handover(self, now: float, boot: str) -> ExportedLease:
        """Return the values that another process needs to continue the lease."""
        names = quoted(self.resources)
        if self.count > 1:
            raise RedlockError(
                f"{names} can't be handed over: {self.count} leases share the lock",
                "export-of-shared",
            )
        claim = self.claim
        if claim.key.is_share:
            raise RedlockError(
                f"{names} can't be handed over: the lock is shared with readers",
                "export-of-reader",
            )
        key = claim.key
        permit, permits = (key.number, key.of.number) if isinstance(key, Permit) else (None, 0)
        return ExportedLease(
            self.resources,
            claim.token,
            self.ttl,
            now,
            timing.remaining(self.deadline, now),
            boot,
            fence=claim.fence,
            member=claim.member,
            max_hold=None if self.ends == math.inf else timing.remaining(self.ends, now),
            keep=math.ceil(max(self.keep_until - now, 0.0) * 1000),
            permit=permit,
            permits=permits,
        )

    @property
    def mode(self) -> Mode:
        """The mode that its events give."""
        return self.claim.key.mode

    def extended_event(self, ttl: int, before: int) -> Extended:
        """Return the event of an extension to *ttl* that came *before* ms before the loss."""
        return Extended(self.resources, self.fingerprint, ttl, before, self.mode)

    def end_event(self, held: float) -> Released | Lost:
        who, held_ms, mode = self.fingerprint, event_ms(held), self.mode
        if (loss := self.loss) is None:
            release = self.released
            unconfirmed = release.votes() if release and release.verdict is LOST else ()
            return Released(self.resources, who, held_ms, mode, unconfirmed)
        return Lost(self.resources, who, loss.reason, held_ms, loss.cause, loss.votes, mode)

    def not_held(self, released: str = "it has been released") -> LockNotHeldError:
        """Return the error for a use of the lease after its release, or after its export."""
        if self.state is HANDED_OVER:
            return LockNotHeldError(self.resources, "it was handed over", "handed-over")
        return LockNotHeldError(self.resources, released, "released")

    def why_expired(self, stalled: tuple[float, float] = NEVER_STALLED) -> Loss:
        """Return the loss at the deadline, with the votes of the last extension, if it failed."""
        loss, last = super().why_expired(stalled), self.extension
        if last is None or loss.cause is LossCause.MAX_HOLD:
            return loss
        if loss.cause is LossCause.LOOP_STALLED and last.verdict is not LOST:
            # The replies may have come in time, but this program did not read them.
            return loss
        return loss._replace(votes=last.votes())

    async def reported(
        self, emitter: Emitter, end: Callable[[], Coroutine[Any, Any, None]]
    ) -> None:
        """
        Release the lease by awaiting *end*, then emit the event of its end.

        For the first call that releases the lease, which waits for the masters' replies.
        """
        try:
            await end()
        finally:
            held, self.held_for = self.held_for, None
            if held is not None:
                emitter.emit(self.end_event(held))
            else:
                emitter.flush()  # the event of the loss may be due in the next turn

    def notify_lost(self) -> None:
        """
        If the lease is lost, set its event and cancel the bodies that it guards.

        Of nested bodies of one task only the innermost is cancelled here, and the next one
        when that has ended (`Lease` calls this again then). An anyio scope lets a
        cancellation pass if a scope around it is cancelled too: if all were cancelled at
        once, the inner block could not turn its cancellation into a `LockLostError`.
        """
        if (loss := self.loss) is None:
            return
        if self._lost is not None:
            self._lost.set()
        cancelled: list[Sharer] = []
        for scope, task in reversed([*self.guards.items()]):
            if task not in cancelled:
                cancelled.append(task)
                scope.cancel(f"lock lost: {loss.reason}")

    def is_of(self, task: asyncio.Task[object] | None) -> bool:
        shares = (self.task, *self.others)
        return task is not None and any(ref is not None and ref() is task for ref in shares)

    def abandon(self) -> None:
        """Mark the lease of a closed event loop as lost: no task of it can be notified."""
        self.lose(Loss(LossCause.LOOP_CLOSED))
        if self._lost is not None:
            with contextlib.suppress(RuntimeError):  # its waiters are in that loop
                self._lost.set()

    def add_share(self, task: Sharer) -> None:
        if self.count:
            self.others = (*self.others, task)
        else:
            self.task = task
        self.count += 1

    def remove_share(self, task: Sharer) -> None:
        self.count -= 1
        others = list(self.others)
        if task in others:
            others.remove(task)
        elif others:
            self.task = others.pop()
        self.others = tuple(others)

    def dropped(self, task: Sharer) -> str:
        """Remove a share of *task* that was not released; return the text of the warning."""
        self.remove_share(task)
        if self.count:  # the last of the other sharers releases the lock
            return f"was never released; {self.count} more share it"
        self.renewed = False
        return "was never released; it is not extended any more"

    def add_note(self, error: BaseException | None) -> None:
        """If the lease is lost, add the loss to *error* as a note, unless it is in the error."""
        if self.loss is not None and isinstance(error, Exception):
            lost = str(LockLostError(self.resources, *self.loss))
            # The body of another share may have raised this error, or noted the loss.
            if str(error) != lost and lost not in getattr(error, "__notes__", ()):
                error.add_note(lost)

    def recheck_soon(self) -> None:
        self.on_recheck(self)

    def changed(self, _master: int) -> None:
        """Called when a master reports that another client may have changed the key."""
        self.recheck_soon()

    def on_local_release(self) -> None:
        """Called when another lease of this process was released; ignored."""
