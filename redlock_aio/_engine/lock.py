"""The wish to have a lock, and how it becomes a lease."""

import asyncio
from collections.abc import Coroutine
from types import TracebackType
from typing import Protocol

from redlock_aio._engine import waiting
from redlock_aio._engine.lease import Lease, OnLost
from redlock_aio._engine.rounds import Fleet
from redlock_aio._engine.waiting import Attempt
from redlock_aio._engine.watchdog import Hold, Watchdog
from redlock_aio._rules.timing import Retry


class Engine(Protocol):
    """What a lock needs of its manager."""

    _drift_factor: float
    _fleet: Fleet
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
        "_auto_extend", "_engine", "_entered", "_key", "_max_hold", "_on_lost", "_resources",
        "_retry", "_ttl", "_wait",
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
        # The leases of blocks that are entered now, with their tasks; the first
        # needs none, for whoever is not among the others is its task.
        self._entered: list[tuple[asyncio.Task[object] | None, Lease]] = []

    def __repr__(self) -> str:
        return f"<Lock {', '.join(map(repr, self._resources))}, ttl {self._ttl} ms>"

    async def acquire(self) -> Lease:
        """
        Wait for the lock and return a lease on it.

        Attempts are repeated with random delays for as long as *wait* allows,
        whether others hold the lock or masters are away.

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
        factor, wait = engine._drift_factor, self._wait
        at_most = waiting.time_left(fleet, began, wait) if wait else None
        won = await waiting.attempt(fleet, self._key, self._ttl, factor, at_most)
        if not won.until:
            won = await waiting.persist(
                fleet,
                self._resources,
                won,
                factor=factor,
                began=began,
                wait=wait,
                retry=self._retry,
            )
        lease = self._lease(won)
        if entering:
            # Nothing is awaited from here on: whoever is cancelled now meets it
            # in the body, and leaves it through the release.
            entered = self._entered
            entered.append((asyncio.current_task() if entered else None, lease))
            lease._enter()
        return lease

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
        tried = await waiting.attempt(engine._fleet, self._key, self._ttl, engine._drift_factor)
        return self._lease(tried) if tried.until else None

    def _lease(self, won: Attempt) -> Lease:
        engine = self._engine
        now = engine._fleet.clock()
        hold = Hold(
            self._resources, won, now, engine._drift_factor, self._auto_extend, self._max_hold
        )
        engine._watchdog.add(hold, now)
        return Lease(engine._watchdog, hold, now, self._on_lost)

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
