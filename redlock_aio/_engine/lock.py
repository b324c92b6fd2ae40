"""The wish to have a lock, and how it becomes a lease."""

import asyncio
import functools
from collections.abc import Coroutine
from types import CoroutineType, TracebackType
from typing import Any

from redlock_aio._engine import queueing, reentrance, refusals, reporting, waiting
from redlock_aio._engine.attempts import Attempt
from redlock_aio._engine.belonging import left_by_this_task
from redlock_aio._engine.clocks import know_the_time
from redlock_aio._engine.hold import HeldLease, Sharer
from redlock_aio._engine.lease import Lease
from redlock_aio._engine.line import Line
from redlock_aio._engine.masters import Fleet
from redlock_aio._engine.opening import Opener
from redlock_aio._engine.options import LockOptions
from redlock_aio._engine.session import Session
from redlock_aio._rules.fencing import Counter
from redlock_aio._rules.keys import Key, Keys
from redlock_aio._rules.mistakes import NotALease
from redlock_aio.errors import LockNotAcquiredError


class Lock(NotALease):
    """
    The wish to hold a resource, or several, with certain options.

    Made by `Redlock.lock`. It holds no ownership itself: it can be used again,
    and by several tasks at once, and each acquisition is a `Lease` of its own.

    ``async with lock as lease:`` acquires, guards the body, and releases.

    Attributes:
        resources: The names that it locks, as they were given.

        key: What the masters call them.

        options: How to acquire and to hold them.

        owner: Who shares a lease of its own, if not the task.

        metadata: What others see of the holder, as the masters keep it.
    """

    __slots__ = ("_entered", "_opener", "key", "metadata", "options", "owner", "resources")

    def __init__(
        self,
        opener: Opener,
        resources: tuple[str, ...],
        key: Key | Keys,
        options: LockOptions,
        owner: object,
        metadata: bytes,
    ) -> None:
        self._opener = opener
        self.resources = resources
        self.key = key
        self.options = options
        self.owner = owner
        self.metadata = metadata
        # The leases of blocks that are entered now, with the tasks that have entered them.
        self._entered: dict[Lease, Sharer] = {}

    def __repr__(self) -> str:
        return f"<Lock {', '.join(map(repr, self.resources))}, ttl {self.options.ttl} ms>"

    async def acquire(self) -> Lease:
        """
        Wait for the lock and return a lease on it.

        Attempts are repeated for as long as *wait* allows, whether others hold
        the lock or masters are away: when the masters tell that it may be free,
        when its time is over there, and after random delays. Tasks of one
        process take turns in the order in which they came, with *fair* all who
        say so, in all processes.

        Returns:
            A lease that is being extended already, unless *auto_extend* is off.

        Raises:
            LockNotAcquiredError: Others held it to the end.

            QuorumUnavailableError: Too few masters answered to tell (see `try_acquire`),
                or so many refuse for good that no waiting mends it.

            RedlockError: The manager is closed, or belongs to another event
                loop or process.

        Cancellation:
            It did not happen. No master keeps a key of ours; one that does not
            answer now is cleaned as soon as it answers again.
        """
        if (emitter := self._opener.emitter) is None:
            return await self._obtain(entering=False)
        obtain = functools.partial(self._obtain, entering=False)
        return await reporting.reported(emitter, self.resources, obtain)

    async def _obtain(self, *, entering: bool) -> Lease:
        session = self._opener.session()
        fleet = session.masters
        began = fleet.clock()
        if not session.ready:
            await session.get_ready(self.options.wait)
        key = self.key
        line = fleet.lines.get(key) or fleet.line(key)
        alone = not (line.contending or line.holder is not None) and began >= line.open_at
        if not alone or self.options.fair or not key.can_free or self.owner is not None:
            return await self._obtain_among_others(session, began, entering=entering)
        counter = None
        if self.options.fencing:
            if began >= fleet.clocks.due_at:
                return await self._obtain_among_others(session, began, entering=entering)
            counter = self._counter(session, line)
        line.contending = True
        try:
            won = await self._attempt(session, counter, began, self.options.wait, began)
            if not won.until:
                won = await self._persist(session, won, line, began, mine=True, attempts=1)
        except BaseException as error:
            line.give_up()
            reentrance.explain(fleet, self, error)
            raise
        return self._lease(session, won, line, mine=True, entering=entering)

    async def _obtain_among_others(
        self, session: Session, began: float, *, entering: bool
    ) -> Lease:
        """Do so where it may be ours already, or others of this process may have it or want it."""
        fleet = session.masters
        while True:
            if (hold := self._shared(fleet, waits=True)) is not None:
                return self._share(session, hold, entering=entering)
            if self.options.fencing and began >= fleet.clocks.due_at:
                await know_the_time(
                    fleet, waiting.time_to_answer(fleet, began, self.options.wait, began)
                )
            line = fleet.line(self.key)
            asking = self._in_turn(session, line, self._counter(session, line), began)
            try:
                won = await (
                    asking if self.owner is None else reentrance.unless_shared(fleet, self, asking)
                )
            except LockNotAcquiredError as error:
                reentrance.explain(fleet, self, error)
                raise
            if won is not None:
                return self._lease(session, won[0], line, mine=won[1], entering=entering)

    def _shared(self, fleet: Fleet, *, waits: bool) -> HeldLease | None:
        """Return the lease of our own that can be taken again, if there is one."""
        if isinstance(self.key, Keys):
            waiting.check_slots(fleet, self.resources, self.key)
        return reentrance.shared(fleet, self, waits=waits)

    def _share(self, session: Session, hold: HeldLease, *, entering: bool) -> Lease:
        """Take a lease again that is our own; the masters are asked for nothing."""
        options, watchdog = self.options, session.watchdog
        task = reentrance.known(asyncio.current_task(session.loop))
        keep = options.hold_at_least
        watchdog.share(hold, task, options.ttl, renewed=options.auto_extend, at_least=keep)
        now, on_lost = session.masters.clock(), options.on_lost
        lease = Lease(watchdog, hold, task, now, on_lost, entered=entering)
        if entering:
            self._entered[lease] = task
        return lease

    def _counter(self, session: Session, line: Line) -> Counter | None:
        """Return what gives a fencing token, if there is to be one."""
        if not self.options.fencing:
            return None
        if line.counter is None:
            line.counter = self.key.counter(session.clock_lead)
        return line.counter

    def _attempt(
        self,
        session: Session,
        counter: Counter | None,
        began: float,
        wait: int | None,
        asked: float,
    ) -> Coroutine[object, object, Attempt]:
        fleet = session.masters
        return waiting.attempt(
            fleet,
            self.key,
            self.options.ttl,
            session.drift_factor,
            waiting.time_to_answer(fleet, began, wait, asked) if wait else None,
            stamp=fleet.stamp + self.metadata,
            counter=counter,
            watched=wait != 0,
        )

    def _persist(
        self,
        session: Session,
        failed: Attempt,
        line: Line,
        began: float,
        *,
        mine: bool,
        attempts: int,
    ) -> Coroutine[object, object, Attempt]:
        return waiting.persist(
            session.masters,
            self.resources,
            failed,
            line,
            mine=mine,
            attempts=attempts,
            factor=session.drift_factor,
            began=began,
            wait=self.options.wait,
            retry=self.options.retry,
        )

    def _queue(
        self, session: Session, counter: Counter | None, began: float, wait: int | None
    ) -> Coroutine[object, object, Attempt]:
        return queueing.acquire(
            session.masters,
            self.resources,
            self.key,
            self.options.ttl,
            session.drift_factor,
            stamp=session.masters.stamp + self.metadata,
            most=session.max_waiters,
            counter=counter,
            began=began,
            wait=wait,
        )

    async def _in_turn(
        self, session: Session, line: Line, counter: Counter | None, began: float
    ) -> tuple[Attempt, bool]:
        """
        Win the lock behind others of this process, or of all.

        Returns:
            What has won it, and whether it was in the turn that *line* gave.
        """
        wait = self.options.wait
        if self.options.fair:
            return await self._queue(session, counter, began, wait), False

        fleet = session.masters
        ask = functools.partial(self._attempt, session, counter, began, wait)
        asked, mine, tried = began, False, None
        if not line.taken:
            line.contending = mine = True
        elif wait != 0 and self.options.retry.attempts is None:  # else attempts are made at once
            mine, tried = await waiting.turn(fleet, line, began, wait, ask)
            asked = fleet.clock()
        won, attempts = tried, 1
        try:
            if won is None:
                now = functools.partial(ask, asked)
                won = await (waiting.politely(fleet, line, began, wait, now) if mine else now())
            elif mine and not won.until:
                won.watch, attempts = None, 2  # the watch and the attempt know each other
                won = await ask(asked)
            if not won.until:
                won = await self._persist(session, won, line, began, mine=mine, attempts=attempts)
        except BaseException:
            if mine:
                line.give_up()
            raise
        return won, mine

    async def try_acquire(self) -> Lease | None:
        """
        Try once to obtain the lock, whatever *wait* says.

        Returns:
            A lease, or ``None`` if others hold the lock or too few masters answered.

        Raises:
            QuorumUnavailableError: Too many masters have 10,000 unanswered requests of ours.

        Cancellation:
            As for `acquire`.
        """
        if (emitter := self._opener.emitter) is None:
            return await self._try_once()
        return await reporting.tried(emitter, self.resources, self._try_once)

    async def _try_once(self) -> Lease | None:
        session = self._opener.session()
        if not session.ready:
            await session.get_ready(0)
        fleet = session.masters
        may_share = self.options.reentrant or not self.key.can_free
        if may_share and (hold := self._shared(fleet, waits=False)) is not None:
            return self._share(session, hold, entering=False)
        if self.options.fencing:
            await know_the_time(fleet, None)
        line = fleet.line(self.key)
        counter = self._counter(session, line)
        if self.options.fair:
            try:
                won = await self._queue(session, counter, fleet.clock(), 0)
            except LockNotAcquiredError as error:
                return self._refused(session, error)
            return self._lease(session, won, line, mine=False, entering=False)
        mine = not line.taken
        if mine:
            line.contending = True
        tried = None
        try:
            tried = await self._attempt(session, counter, 0.0, 0, 0.0)
        finally:
            if mine and (tried is None or not tried.until):
                line.give_up()
        tried.watch = None  # they know each other
        if not tried.until:
            return self._refused(session, tried)
        return self._lease(session, tried, line, mine=mine, entering=False)

    def _refused(self, session: Session, why: Attempt | LockNotAcquiredError) -> Lease | None:
        """Return ``None``; raise if too few masters were asked, or for an event that tells why."""
        always, now = session.emitter is not None, session.masters.clock()
        try:
            refusals.check_overload(self.resources, why, now, always=always)
        finally:
            del why  # An error knows this frame, which would keep both, and the attempt, alive.
        return None

    def _lease(
        self, session: Session, won: Attempt, line: Line, *, mine: bool, entering: bool
    ) -> Lease:
        fleet = session.masters
        now = fleet.clock()
        if not mine:  # it may have been forgotten meanwhile
            line = fleet.line(self.key)
        watchdog = session.watchdog
        hold = HeldLease(
            won, self.resources, line, now, session.drift_factor, self.options.auto_extend
        )
        if self.options.max_hold is not None:
            hold.limit(now + self.options.max_hold / 1000)
        hold.task = reentrance.known(asyncio.current_task(fleet.loop))
        if self.options.hold_at_least:
            hold.keep_until = now + self.options.hold_at_least / 1000
        watchdog.add(hold, now)
        if mine:
            line.won(hold, won.began, now)
        else:  # out of turn
            line.keep(hold)
        if self.owner is not None:
            hold.owner = self.owner
            reentrance.tell(fleet, hold)
        lease = Lease(watchdog, hold, hold.task, now, self.options.on_lost, entered=entering)
        if entering:
            self._entered[lease] = hold.task
        return lease

    # pyright takes an `async def` to return a `CoroutineType`, so only with this annotation is a
    # `Lock` an `AbstractAsyncContextManager` to it; mypy takes it to return a `Coroutine`. Quoted,
    # because `CoroutineType` has no parameters at run time before Python 3.13.
    def __aenter__(self) -> "CoroutineType[Any, Any, Lease]":
        """
        Acquire the lock and guard the body; see `acquire` and `Lease`.

        Cancellation:
            As for `acquire`.
        """
        if (emitter := self._opener.emitter) is None:
            return self._obtain(entering=True)  # type: ignore[return-value]  # see above
        obtain = functools.partial(self._obtain, entering=True)
        return reporting.reported(emitter, self.resources, obtain, self)  # type: ignore[return-value]

    def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> "CoroutineType[Any, Any, None]":
        """
        Release what this task has acquired last; see `Lease.__aexit__`.

        Raises:
            LockLostError: The lease was lost, and the body has no exception of its own.

        Cancellation:
            The lock is released all the same.
        """
        entered = self._entered
        if len(entered) == 1:
            (lease,) = entered
        else:
            lease = left_by_this_task(entered, self.resources)
        left = lease.__aexit__(kind, error, trace)  # raises in another loop than the lease's
        del entered[lease]
        return left
