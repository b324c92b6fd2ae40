"""One lease as the engine sees it, and what is asked of the masters about it."""

import asyncio
import contextlib
import math
import weakref
from typing import Protocol, TypeAlias

from anyio import CancelScope

from redlock_aio._engine.attempts import Attempt
from redlock_aio._engine.line import Line
from redlock_aio._engine.rounds import Fleet, Round
from redlock_aio._rules import protocol, timing
from redlock_aio._rules.handing import Handed
from redlock_aio._rules.lifetime import HELD, LOST, Lifetime
from redlock_aio._rules.protocol import OTHERS, Silence
from redlock_aio._rules.quorum import GRANTED, WON, Answer
from redlock_aio._rules.revocation import BY_FORCE, is_revocation

REPEATS = 3
"""How often an extension repeats to set a key again where somebody else has it at that moment."""

KEY_GONE = "a majority of the masters no longer has its key"
OVERTAKEN = "somebody else has had the lock on a majority of the masters since"


Sharer: TypeAlias = "weakref.ref[asyncio.Task[object]] | None"
"""A task; remembered so that neither it nor what is in its frames is kept alive."""


class Keeper(Protocol):
    """Whoever watches over leases."""

    fleet: Fleet

    def doubt(self, hold: "Hold") -> None:
        """Look soon whether the masters still have its key."""

    def judge(self, renewal: "Renewal") -> bool:
        """Draw the consequences of an extension that is settled; return whether it holds."""

    def lose(self, hold: "Hold", reason: str) -> None:
        """End it against its holder's will."""

    def restore(self, hold: "Hold", master: int, ceiling: int = 0, tries: int = 0) -> None:
        """Set the key of *hold* again on a master that has lost it, or does not count for it."""

    def lift(self, hold: "Hold", master: int, ceiling: int) -> None:
        """Lift the counters of a majority, so that *master* can count again."""


class Hold(Lifetime):
    """One lease as the engine sees it: its life, its key, and whom to tell when it is lost."""

    __slots__ = (
        "_lost", "_watchdog", "at", "attempt", "count", "guarded", "inner", "keep_until", "line",
        "look_at", "looked_at", "others", "owner", "released", "resources", "scope", "task",
        "told", "wanted",
    )  # fmt: skip

    def __init__(
        self,
        watchdog: Keeper,
        line: Line,
        resources: tuple[str, ...],
        attempt: Attempt,
        now: float,
        factor: float,
        renewed: bool,
        max_hold: int | None,
    ) -> None:
        ends = math.inf if max_hold is None else now + max_hold / 1000
        super().__init__(now, attempt.until, attempt.ttl, factor, renewed, ends)
        self.resources: tuple[str, ...] = resources
        self.attempt: Attempt = attempt
        self.count: int = 1
        """How many share it, all of one owner; 0 if the last one was dropped without a release."""
        self.owner: object = None
        """Whose it is, if not the task's that has acquired it."""
        self.task: Sharer = None
        """Who has it: the task that has acquired it, or has entered it since."""
        self.others: tuple[Sharer, ...] = ()
        """The tasks of those who share it, but for the first."""
        self.told: int = attempt.ttl
        """What the masters were told last, whether they have heard it or not."""
        self.wanted: int = 0
        """The longest ttl that was wanted, if no extension has told it the masters yet."""
        self.keep_until: float = 0.0
        """Until when the masters are to keep the key after it has ended well."""
        self.released: Round | None = None
        self.scope: CancelScope | None = None
        self.guarded: Sharer = None
        """Whose body `scope` cancels."""
        self.inner: tuple[tuple[CancelScope, Sharer], ...] = ()
        """The same of those who were entered later, in that order."""
        self.line: Line = line
        self.at: float = 0.0
        """When the watchdog attends to it."""
        self.look_at: float = math.inf
        """When to look whether the masters still have its key."""
        self.looked_at: float = -math.inf
        self._watchdog = watchdog
        self._lost: asyncio.Event | None = None

    @property
    def lost(self) -> asyncio.Event:
        """Set when the lease is lost; made when somebody asks for it."""
        if self._lost is None:
            self._lost = asyncio.Event()
            self.tell()
        return self._lost

    def handed(self, now: float, boot: str) -> Handed:
        """
        Return what another process has to know that goes on with the lease.

        Args:
            boot: Whose clock this is, see `boots.boot_of`.
        """
        attempt = self.attempt
        return Handed(
            self.resources,
            attempt.token,
            self.ttl,
            now,
            timing.remaining(self.deadline, now),
            boot,
            fence=attempt.fence,
            member=attempt.member,
            max_hold=None if self.ends == math.inf else timing.remaining(self.ends, now),
            keep=math.ceil(max(self.keep_until - now, 0.0) * 1000),
        )

    def found_gone(self) -> None:
        """Hear from the answers to a release that the lease had been lost before."""
        self.state = LOST
        self.reason = KEY_GONE
        self.tell()

    def tell(self) -> None:
        """Tell whoever watches that the lease is lost, if it is."""
        if self.state is not LOST:
            return
        if self._lost is not None:
            self._lost.set()
        # Of bodies within each other only the innermost is cancelled, and the next when
        # that has ended: a scope lets pass what the ones around it are cancelled by.
        told: list[Sharer] = []
        for scope, task in reversed(((self.scope, self.guarded), *self.inner)):
            if scope is not None and task not in told:
                told.append(task)
                scope.cancel(f"lock lost: {self.reason}")

    def is_of(self, task: asyncio.Task[object] | None) -> bool:
        """Return whether *task* has it, alone or with others."""
        shares = (self.task, *self.others)
        return task is not None and any(ref is not None and ref() is task for ref in shares)

    def abandon(self, reason: str) -> None:
        """End the lease of an event loop that was closed: no task of it can be notified."""
        if self.state is HELD:
            self.lose(reason)
            if self._lost is not None:
                with contextlib.suppress(RuntimeError):  # Its waiters are in that loop.
                    self._lost.set()

    def joined(self, task: Sharer) -> None:
        """Count one more who shares it."""
        if self.count:
            self.others = (*self.others, task)
        else:
            self.task = task
        self.count += 1

    def left(self, task: Sharer) -> None:
        """Count one less."""
        self.count -= 1
        others = list(self.others)
        if task in others:
            others.remove(task)
        elif others:
            self.task = others.pop()
        self.others = tuple(others)

    def guard(self, scope: CancelScope, task: Sharer) -> None:
        """Cancel one more body when it is lost."""
        self.inner = (*self.inner, (scope, task))

    def unguard(self, scope: CancelScope | None) -> None:
        """Do not cancel a body any more."""
        if self.scope is scope:
            self.scope = None
        self.inner = tuple(inner for inner in self.inner if inner[0] is not scope)

    def changed(self, _master: int) -> None:
        """Hear that others may have changed its key on a master."""
        self._watchdog.doubt(self)

    def nudge(self) -> None:
        """Hear that another lock of this process has ended; that changes nothing here."""


class Look(Round):
    """The question whether the key of a lease still has its value."""

    __slots__ = ("_watchdog", "hold", "why")

    def __init__(self, watchdog: Keeper, hold: Hold) -> None:
        super().__init__(watchdog.fleet.links, hold.attempt.key.look())
        self._watchdog = watchdog
        self.hold = hold
        self.why = KEY_GONE

    def is_refusal(self, reply: object) -> bool:
        """Return whether *reply* says that somebody else has the lock, or one of several."""
        values = reply if isinstance(reply, list) else [reply]
        ours = self.hold.attempt.token
        foreign = any(isinstance(value, bytes) and value != ours for value in values)
        return foreign or protocol.is_of_another_type(reply)

    def answered(self, master: int, reply: object, /) -> None:
        """Count our own value as a grant, any other or none as a refusal."""
        ours = self.hold.attempt
        if (values := protocol.looked(reply, len(ours.key.each))) is not None:
            if any(value and is_revocation(value) for value in values):
                self._revoked(master)
            reply = GRANTED if ours.key.is_kept(reply, ours.token) else 0
        elif protocol.is_of_another_type(reply):
            reply = 0
        elif protocol.has_no_script(reply):
            # Nothing was read, so changes are not told either: look again, behind the
            # scripts that are on their way.
            self._watchdog.doubt(self.hold)
        super().answered(master, reply)

    def _revoked(self, master: int) -> None:
        """
        Hear that a lock was released by force where the holder may have it.

        One that had granted it is enough, also if the others can't be reached or it
        says so late: others are let in on all of them after a moment.
        """
        self.why = BY_FORCE
        said = protocol.read(self.hold.attempt.replies[master])
        if said.answer is Answer.GRANTED:
            self._watchdog.lose(self.hold, BY_FORCE)

    def settled(self) -> None:
        """Tell the holder if the key is gone."""
        if self.refused_by_a_majority(self.hold.attempt.unsent):
            self._watchdog.lose(self.hold, self.why)


class Renewal(Round):
    """One extension of one lease."""

    __slots__ = ("_watchdog", "began", "epoch", "hold", "ttl")

    def __init__(self, watchdog: Keeper, hold: Hold, ttl: int, now: float) -> None:
        super().__init__(watchdog.fleet.links, hold.attempt.extension(ttl))
        self._watchdog = watchdog
        self.hold: Hold = hold
        self.ttl: int = ttl
        self.began: float = now
        self.epoch: int = hold.begin_extension(now, ttl)

    def settled(self) -> None:
        """Judge it, then wake whoever waits."""
        self._watchdog.judge(self)
        super().settled()

    def is_refusal(self, reply: object) -> bool:
        """Return whether *reply* says that somebody else has, or has had, the lock."""
        return reply.__class__ is int and reply != 0

    def may_lack_key(self, reply: object) -> bool:
        """
        Return whether the master that has answered *reply* may be without the key.

        One that is quarantined does not say so, because its answer does not count; one
        whose counter is beyond the fencing token does not look.
        """
        if isinstance(reply, Silence):
            return reply.answer is Answer.QUARANTINED
        return reply.__class__ is int

    def declined(self, master: int, reply: object) -> None:
        """Set the key again on a master that refuses, once the extension holds."""
        if isinstance(reply, int) and reply in {0, OTHERS}:
            self._watchdog.doubt(self.hold)  # it may have been released by force
        if self.verdict is WON and self.may_lack_key(reply):
            self.restore(master)

    def restore(self, master: int) -> None:
        """Set the key again on *master*; one that is quarantined may have it already."""
        tries = REPEATS if self.replies[master].__class__ is int else 0
        self._watchdog.restore(self.hold, master, tries=tries)

    def why_refused(self) -> str:
        """Return what those say that refuse it."""
        beyond = [reply for reply in self.replies if isinstance(reply, int) and reply > 0]
        return OVERTAKEN if beyond else KEY_GONE
