"""
Whether a manager is open: the masters it is connected to, in one event loop of one process.

It connects on first use and belongs to the event loop of that use. From there
it owns the masters' connections, the rounds and the watchdog, and ends all of
them when it is closed.
"""

import asyncio
import logging
import os
import socket
from collections.abc import Sequence
from threading import get_ident
from types import TracebackType
from typing import Literal, Self

from redlock_aio._engine.emitter import Emitter
from redlock_aio._engine.links import clock_of
from redlock_aio._engine.readiness import readiness
from redlock_aio._engine.rounds import Fleet
from redlock_aio._engine.watchdog import Watchdog
from redlock_aio._rules import holders, timing
from redlock_aio._rules.quorum import Vote
from redlock_aio._rules.restarts import Seen
from redlock_aio._rules.roundtrips import SHORTEST, RoundTrips
from redlock_aio._transport.address import AnyDialler, ServiceDialler
from redlock_aio._transport.master import TASK_NAME, Master
from redlock_aio._transport.set_guard import Guard
from redlock_aio.errors import RedlockError

RestartGuard = Literal["auto", "strict", "fsync-always", "off"]
"""Who sees to it that a master that has forgotten its locks stays out of votes."""

CANCELLED = (
    "the tasks of this Redlock were cancelled, as at the end of a program; 'async with' opens it"
    " again"
)
TASKS_CANCELLED = "the tasks of the Redlock that keeps it were cancelled"
LOOP_CLOSED = "the event loop in which it was acquired was closed"

LOOK_INTERVAL = 0.02
"""Seconds between two looks whether leases are held, when all tasks were cancelled."""

_log = logging.getLogger("redlock_aio")
_forks = 0


def _count_fork() -> None:
    global _forks  # noqa: PLW0603 - it is a fact of the process
    _forks += 1


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_count_fork)


class Opening:
    """
    What a manager is while it is open.

    Args:
        diallers: How its masters are reached.

        master_timeout: In milliseconds; ``None`` if it is learned.

        drift_factor: As `Redlock` has it.

        max_ttl: In milliseconds.

        restart_guard: As `Redlock` has it.

        stamp: What others see of it; if empty, host and pid.

        emitter: Of events to a listener, if there is one.
    """

    def __init__(
        self,
        diallers: Sequence[AnyDialler],
        *,
        master_timeout: int | None,
        drift_factor: float,
        max_ttl: int,
        restart_guard: RestartGuard,
        stamp: bytes,
        emitter: Emitter | None,
    ) -> None:
        self._diallers = tuple(diallers)
        _vouch(self._diallers, restart_guard)
        if (count := len(self._diallers)) % 2 == 0:
            fails = (
                f"{count} masters survive the loss of {count // 2 - 1}, no more than {count - 1} do"
            )
            _tell(False, f"{fails}: use an odd number of masters")
        self._trips = RoundTrips(len(self._diallers), master_timeout)
        self._drift_factor = drift_factor
        self._max_ttl = max_ttl
        self._lasts = timing.forgetting(max_ttl, factor=drift_factor)
        self._restart_guard = restart_guard
        self._stamp = stamp
        self._emitter = emitter
        self._seen = [Seen() for _ in self._diallers]
        self._loop: asyncio.AbstractEventLoop | None = None
        self._closed = False
        self._thread = 0
        self._forks = 0
        self._masters: list[Master] = []

    def __repr__(self) -> str:
        total = len(self._diallers)
        if self._loop is None:
            return f"<Redlock {total} masters, {'closed' if self._closed else 'not used yet'}>"
        up = sum(master.up for master in self._masters)
        out = up - sum(master.votes for master in self._masters)
        quarantined = f", {out} quarantined" if out else ""
        slow = (
            "" if self._trips.timeout == SHORTEST else f", master_timeout {self._trips.timeout} ms"
        )
        return (
            f"<Redlock {total} masters, {up} up{quarantined}, {self._watchdog.held} leases{slow}>"
        )

    @property
    def master_timeout(self) -> int:
        """
        For how many milliseconds one master's answer is waited for at present.

        It is what was asked for, or was learned from how long they take.
        """
        return self._trips.timeout

    def _is_ready(self) -> bool:
        """Bind to the running loop; return whether it is known which masters are up."""
        loop = self._loop
        # A thread runs one loop at a time. Asking for the running one would cost
        # a system call on Python 3.11.
        if (
            loop is None
            or self._thread != get_ident()
            or not loop.is_running()
            or self._forks != _forks
        ):
            self._bind(asyncio.get_running_loop())
        return self._fleet.ready

    def _bind(self, loop: asyncio.AbstractEventLoop) -> None:
        if self._closed:
            raise RedlockError("this Redlock is closed; 'async with' opens it again")
        self._let_go_of_a_closed_loop()
        if self._loop is not None:
            what = "another event loop" if self._forks == _forks else "the parent process"
            raise RedlockError(
                f"this Redlock is in use by {what}; make one for each event loop and process"
            )
        self._loop = loop
        self._thread = get_ident()
        self._forks = _forks
        emitter = self._emitter
        if emitter is not None:
            emitter.loop = loop
        self._guard = self._new_guard(loop)
        self._masters = self._new_masters(loop)
        self._fleet = Fleet(
            self._masters,
            loop,
            trips=self._trips,
            stamp=self._stamp or _this_process(),
            emitter=emitter,
        )
        self._watchdog = Watchdog(self._fleet, max_ttl=self._max_ttl)

    def _new_masters(self, loop: asyncio.AbstractEventLoop) -> list[Master]:
        emitter = self._emitter
        neighbours: dict[str, Master] = {}
        return [
            Master(
                number,
                dialler,
                neighbours=neighbours,
                trips=self._trips,
                on_push=self._heard,
                tell=_tell,
                on_state=_ignore if emitter is None else emitter.on_master_state,
                clock=clock_of(loop),
                cancelled=self._take_leave,
                never_began=self._let_nobody_in,
                guard=self._guard,
                vouched=self._restart_guard == "fsync-always",
            )
            for number, dialler in enumerate(self._diallers)
        ]

    def _let_go_of_a_closed_loop(self) -> None:
        """
        Forget the event loop of the last use if it was closed, so that another can be bound.

        What is known of restarts stays. A loop that is not closed may run again, and stays bound.
        """
        if self._loop is None or not self._loop.is_closed():
            return
        self._watchdog.abandon(LOOP_CLOSED)
        for master in self._masters:
            master.abandon()
        self._masters = []
        self._loop = None

    async def _take_leave(self, master: Master) -> None:
        """
        Wait until the connection to *master* may end, after its task was cancelled.

        At the end of `asyncio.run` all tasks are cancelled at once, and some have locks to
        release yet. From now on nothing is acquired or extended, and waiters get an error.
        The connection stays while a cancelled task holds a lease (which ends by itself at
        its deadline), and for up to one master time-out while there are other tasks at all.
        Leases that are still held then are released.

        Cancellation:
            Leases that are still held are lost at once.
        """
        fleet, watchdog = self._fleet, self._watchdog
        self._let_nobody_in()
        patience = fleet.master_timeout / 1000
        ends = fleet.loop.time() + patience
        try:
            # A release is on the hot path, so it sets no event for this.
            while (  # noqa: ASYNC110
                fleet.loop.time() < ends and _other_tasks(fleet.loop)
            ) or watchdog.is_awaited():
                await asyncio.sleep(min(LOOK_INTERVAL, patience))
        finally:
            watchdog.close(TASKS_CANCELLED)
            fleet.flush()
            if heard := master.heard():
                await asyncio.wait([heard], timeout=patience)

    def _let_nobody_in(self) -> None:
        """Refuse acquisitions from now on, and end those that are underway."""
        fleet = self._fleet
        if not fleet.closed:
            fleet.ready = False
            fleet.why_closed = CANCELLED
            fleet.close()

    def _new_guard(self, loop: asyncio.AbstractEventLoop) -> Guard | None:
        if self._restart_guard not in ("auto", "strict"):
            return None
        return Guard(
            self._seen,
            clock_of(loop),
            lasts=self._lasts,
            strict=self._restart_guard == "strict",
            tell=_tell,
        )

    def _heard(self, master: int, push: object) -> None:
        self._fleet.heard(master, push)

    async def _get_ready(self, wait: int | None) -> None:
        """
        Wait until it is known which masters vote, at most *wait* ms if it is not 0.

        Cancellation:
            Connecting goes on.
        """
        fleet = self._fleet
        if fleet.closed:
            raise RedlockError(fleet.why_closed)
        if await readiness(self._masters, wait, self._trips):
            fleet.ready = True

    async def __aenter__(self) -> Self:
        """
        Connect to the masters, as the first lock would.

        Raises:
            RedlockError: It is in use by another event loop, or by the process
                that this one was forked from.

        Cancellation:
            It is closed.
        """
        if self._loop is asyncio.get_running_loop() and self._fleet.closed:
            await self.aclose()  # Its tasks were cancelled.
        self._closed = False
        try:
            if not self._is_ready():
                await self._get_ready(None)
        except asyncio.CancelledError:
            await self.aclose()
            raise
        if self._loop is None:
            raise RedlockError("this Redlock was closed")
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """
        Close; see `aclose`.

        Cancellation:
            As for `aclose`.
        """
        await self.aclose()

    async def aclose(self) -> None:
        """
        End all leases, tell the masters, and close the connections.

        Leases that are still held are lost: their bodies are cancelled. What
        was sent is waited for as long as one master time-out. Closing twice is
        harmless; ``async with`` opens a closed manager again.

        Raises:
            RedlockError: It is in use by another event loop, or by the process
                that this one was forked from.

        Cancellation:
            Everything is closed, only the wait for the masters is cut short.
        """
        self._let_go_of_a_closed_loop()
        if self._loop is None:
            self._closed = True
            return
        self._is_ready()
        masters, self._masters = self._masters, []
        self._closed = True
        self._loop = None
        self._watchdog.close()
        self._fleet.close()
        try:
            # Attempts that were underway are over now; each takes itself back in
            # its next turn, and that leaves in the turn after it.
            await asyncio.sleep(0)
            self._fleet.flush()
            if heard := [answer for master in masters if (answer := master.heard())]:
                await asyncio.wait(heard, timeout=self._trips.timeout / 1000)
        finally:
            for master in masters:
                master.close()
            await asyncio.gather(*(master.ended() for master in masters))


def _vouch(diallers: Sequence[AnyDialler], restart_guard: RestartGuard) -> None:
    """Raise ValueError for "fsync-always" with Sentinel: a failover loses locks all the same."""
    failing_over = [isinstance(dialler, ServiceDialler) for dialler in diallers]
    if restart_guard == "fsync-always" and any(failing_over):
        raise ValueError(
            f"masters[{failing_over.index(True)}] is found through Sentinel, and a failover loses"
            " locks whatever fsync does: restart_guard must be 'auto' or 'strict'"
        )


def _ignore(_vote: Vote) -> None:
    """Do nothing with the state of a master: there is no listener."""


def _other_tasks(loop: asyncio.AbstractEventLoop) -> bool:
    """Return whether *loop* has tasks other than those of managers."""
    return any(not task.get_name().startswith(TASK_NAME) for task in asyncio.all_tasks(loop))


def _this_process() -> bytes:
    name = f"{socket.gethostname()}:{os.getpid()}"
    return holders.named("".join(c if c.isprintable() and c != "{" else "?" for c in name))


def _tell(good: bool, said: str) -> None:
    """Log what a master has to say."""
    _log.log(logging.INFO if good else logging.WARNING, "%s", said)
