"""The wish to have a lock, and how it becomes a lease."""

import asyncio
from collections.abc import Coroutine
from types import TracebackType
from typing import Protocol

from redlock_aio._engine import queueing, waiting
from redlock_aio._engine.attempts import Attempt
from redlock_aio._engine.clocks import know_the_time
from redlock_aio._engine.lease import Lease, OnLost
from redlock_aio._engine.line import Line
from redlock_aio._engine.rounds import Fleet
from redlock_aio._engine.watchdog import Hold, Watchdog
from redlock_aio._rules.fencing import Counter
from redlock_aio._rules.timing import Retry
from redlock_aio.errors import LockNotAcquiredError


class Engine(Protocol):
    """What a lock needs of its manager."""

    _clock_lead: int
    _drift_factor: float
    _fleet: Fleet
    _max_waiters: int
    _watchdog: Watchdog

    def _is_ready(self) -> bool:
        """Bind to the running loop; return whether the masters' states are known."""

    async def _get_ready(self, wait: int | None) -> None:
        """Wait until they are, at most *wait* ms."""


class Lock:
    """
    The wish to hold a resource with certain options.

    Made by `Redlock.lock`. It holds no ownership itself: it can be used again,
    and by several tasks at once, and each acquisition is a `Lease` of its own.

    ``async with lock as lease:`` acquires, guards the body, and releases.
    """

    __slots__ = (
        "_auto_extend", "_engine", "_entered", "_fair", "_fenced", "_key", "_max_hold", "_on_lost",
        "_resources", "_retry", "_ttl", "_wait",
    )  # fmt: skip

    def __init__(
        self,
        engine: Engine,
        resource: str,
        key: bytes,
        *,
        ttl: int,
        wait: int | None,
        auto_extend: bool,
        max_hold: int | None,
        fair: bool,
        fenced: bool,
        retry: Retry,
        on_lost: OnLost,
    ) -> None:
        self._engine = engine
        self._resources = (resource,)
        self._key = key
        self._ttl = ttl
        self._wait = wait
        self._auto_extend = auto_extend
        self._max_hold = max_hold
        self._retry = retry
        self._on_lost = on_lost
        self._fair = fair
        self._fenced = fenced
        # The leases of blocks that are entered now, with their tasks; the first
        # needs none, for whoever is not among the others is its task.
        self._entered: list[tuple[asyncio.Task[object] | None, Lease]] = []

    def __repr__(self) -> str:
        return f"<Lock {', '.join(map(repr, self._resources))}, ttl {self._ttl} ms>"

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

            QuorumUnavailableError: Too few masters answered to tell.

            RedlockError: The manager is closed, or belongs to another event
                loop or process.

        Cancellation:
            It did not happen. No master keeps a key of ours; one that does not
            answer now is cleaned as soon as it answers again.
        """
        return await self._obtain(entering=False)

    async def _obtain(self, *, entering: bool) -> Lease:
        engine = self._engine
        ready = engine._is_ready()
        fleet = engine._fleet
        began = fleet.clock()
        if not ready:
            await engine._get_ready(self._wait)
        if self._fenced and began >= fleet.clocks.due_at:
            await know_the_time(fleet, waiting.time_left(fleet, began, self._wait))
        line = fleet.lines.get(self._key) or fleet.line(self._key)
        counter = self._counter(line) if self._fenced else None
        if self._fair or line.contending or line.holder is not None or began < line.open_at:
            won, mine = await self._in_turn(fleet, line, counter, began)
        else:
            line.contending = mine = True
            wait = self._wait
            at_most = waiting.time_left(fleet, began, wait) if wait else None
            try:
                won = await waiting.attempt(
                    fleet,
                    self._key,
                    self._ttl,
                    engine._drift_factor,
                    at_most,
                    counter=counter,
                    watched=wait != 0,
                )
                if not won.until:
                    won = await self._persist(fleet, won, line, began, mine=True)
            except BaseException:
                line.give_up()
                raise
        lease = self._lease(won, line, mine)
        if entering:
            # Nothing is awaited from here on: whoever is cancelled now meets it
            # in the body, and leaves it through the release.
            entered = self._entered
            entered.append((asyncio.current_task() if entered else None, lease))
            lease._enter()
        return lease

    def _counter(self, line: Line) -> Counter | None:
        """Return what gives a fencing token, if there is to be one."""
        if not self._fenced:
            return None
        if line.counter is None:
            line.counter = Counter(self._key, self._engine._clock_lead)
        return line.counter

    def _attempt(
        self, fleet: Fleet, counter: Counter | None, at_most: float | None, *, watched: bool
    ) -> Coroutine[object, object, Attempt]:
        return waiting.attempt(
            fleet,
            self._key,
            self._ttl,
            self._engine._drift_factor,
            at_most,
            counter=counter,
            watched=watched,
        )

    def _persist(
        self, fleet: Fleet, failed: Attempt, line: Line, began: float, *, mine: bool
    ) -> Coroutine[object, object, Attempt]:
        return waiting.persist(
            fleet,
            self._resources,
            failed,
            line,
            mine=mine,
            factor=self._engine._drift_factor,
            began=began,
            wait=self._wait,
            retry=self._retry,
        )

    def _queue(
        self, fleet: Fleet, counter: Counter | None, began: float, wait: int | None
    ) -> Coroutine[object, object, Attempt]:
        engine = self._engine
        return queueing.acquire(
            fleet,
            self._resources,
            self._key,
            self._ttl,
            engine._drift_factor,
            most=engine._max_waiters,
            counter=counter,
            began=began,
            wait=wait,
        )

    async def _in_turn(
        self, fleet: Fleet, line: Line, counter: Counter | None, began: float
    ) -> tuple[Attempt, bool]:
        """
        Win the lock behind others of this process, or of all.

        Returns:
            What has won it, and whether it was in the turn that *line* gave.
        """
        wait = self._wait
        if self._fair:
            return await self._queue(fleet, counter, began, wait), False
        if not line.taken:
            line.contending = mine = True
        else:
            # Whoever counts attempts makes them out of turn, as if alone.
            stands = wait != 0 and self._retry.attempts is None
            mine = stands and await waiting.turn(fleet, line, began, wait)
        try:
            polite = line.courtesy(fleet.clock()) if mine and wait != 0 else 0.0
            if polite:
                pause = waiting.pause(fleet, polite * 1000, began, wait)
                await asyncio.sleep((pause or 0) / 1000)
            at_most = waiting.time_left(fleet, began, wait) if wait else None
            won = await self._attempt(fleet, counter, at_most, watched=wait != 0)
            if polite:
                line.used(by_others=not won.until)
            if not won.until:
                won = await self._persist(fleet, won, line, began, mine=mine)
        except BaseException:
            if mine:
                line.give_up()
            raise
        return won, mine

    async def try_acquire(self) -> Lease | None:
        """
        Try once to obtain the lock, whatever *wait* says.

        Returns:
            A lease, or ``None`` if others hold the lock or too few masters
            answered.

        Cancellation:
            As for `acquire`.
        """
        engine = self._engine
        if not engine._is_ready():
            await engine._get_ready(0)
        fleet = engine._fleet
        if self._fenced:
            await know_the_time(fleet, None)
        line = fleet.line(self._key)
        counter = self._counter(line)
        if self._fair:
            try:
                won = await self._queue(fleet, counter, fleet.clock(), 0)
            except LockNotAcquiredError:
                return None
            return self._lease(won, line, mine=False)
        mine = not line.taken
        if mine:
            line.contending = True
        tried = None
        try:
            tried = await self._attempt(fleet, counter, None, watched=False)
        finally:
            if mine and (tried is None or not tried.until):
                line.give_up()
        tried.watch = None  # they know each other
        return self._lease(tried, line, mine) if tried.until else None

    def _lease(self, won: Attempt, line: Line, mine: bool) -> Lease:
        engine = self._engine
        now = engine._fleet.clock()
        if not mine:  # it may have been forgotten meanwhile
            line = engine._fleet.line(self._key)
        watchdog = engine._watchdog
        hold = Hold(
            watchdog,
            line,
            self._resources,
            won,
            now,
            engine._drift_factor,
            self._auto_extend,
            self._max_hold,
        )
        watchdog.add(hold, now)
        if mine:
            line.won(hold, won.began, now)
        elif line.holder is None:  # out of turn
            line.holder = hold
        return Lease(watchdog, hold, now, self._on_lost)

    def __aenter__(self) -> Coroutine[object, object, Lease]:
        """
        Acquire the lock and guard the body; see `acquire` and `Lease`.

        Cancellation:
            As for `acquire`.
        """
        return self._obtain(entering=True)

    def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> Coroutine[object, object, None]:
        """
        Release what this task has acquired last; see `Lease.__aexit__`.

        Raises:
            LockLostError: The lease was lost, and the body has no exception of
                its own.

        Cancellation:
            The lock is released all the same.
        """
        entered = self._entered
        mine = len(entered) - 1
        if mine or entered[0][0] is not None:
            task = asyncio.current_task()
            while mine >= 0 and entered[mine][0] not in (task, None):
                mine -= 1
            if mine < 0:
                raise RuntimeError(f"{self!r} must be left by the task that entered it")
        return entered.pop(mine)[1].__aexit__(kind, error, trace)
