"""
The session: all objects that exist between open and close of a manager, in one event loop.

A session owns the masters' connections, the rounds, the watchdog and the queues, and
ends all of them when it is closed. A manager has one session or none; `Opener` makes
it on first use.
"""

import asyncio
import logging
import os
import socket
from typing import Literal, NamedTuple

from redlock_aio._engine.clock import clock_of
from redlock_aio._engine.emitter import Emitter
from redlock_aio._engine.hold.watchdog import Watchdog
from redlock_aio._engine.master_events import MasterEvents
from redlock_aio._engine.masters import MasterSet
from redlock_aio._engine.origin import Origin
from redlock_aio._engine.readiness import readiness
from redlock_aio._engine.wait.fair_queue import FairQueue
from redlock_aio._engine.wait.local_queue import LocalQueues
from redlock_aio._protocol import declaration
from redlock_aio._rules import lock_value, timing
from redlock_aio._rules.causes import LossCause
from redlock_aio._rules.fencing import LEAD_SHARE
from redlock_aio._rules.quarantine import Seen
from redlock_aio._rules.roundtrips import RoundTrips
from redlock_aio._rules.statistics import MasterStatistics, Statistics
from redlock_aio._transport.address import AnyDialler, ServiceDialler
from redlock_aio._transport.guard import Guard, GuardSettings
from redlock_aio._transport.master import TASK_NAME, Master, MasterContext

RestartGuard = Literal["auto", "strict", "fsync-always", "off"]
"""The way in which masters that may have lost their locks are quarantined."""

CANCELLED = (
    "the tasks of this Redlock were cancelled, as at the end of a program; 'async with' opens it"
    " again"
)

CHECK_INTERVAL = 0.02
"""Seconds between two checks for held leases, after all tasks were cancelled."""

_log = logging.getLogger("redlock_aio")


class Settings(NamedTuple):
    """The options of a manager that its sessions use, all of them valid."""

    diallers: tuple[AnyDialler, ...]
    drift_factor: float
    max_ttl: int
    max_waiters: int
    restart_guard: RestartGuard
    key_prefix: bytes
    stamp: bytes
    """The suffix of each token, which names the manager; empty for host and pid."""
    emitter: Emitter | None


class Session:
    """
    All objects that exist between open and close of a manager.

    Args:
        settings: The options of the manager.

        loop: The running event loop, to which the session belongs.

        trips: The round trips of the masters; kept for the next session.

        seen: The known restarts of each master; kept for the next session, too.

    Attributes:
        origin: The loop, thread and process to which the session belongs.

        links: The masters, with their connections.

        masters: Sends rounds to all masters, and knows those that are underway.

        local_queues: The tasks of this process that want a lock, by key.

        fair_queue: The waiters of this session in the masters' queues.

        watchdog: The watchdog of all leases.

        ready: Whether the votes of the masters are known.

        clock_lead: The most by which a fencing token may be ahead of a master's clock, in µs.

        drift_factor, max_ttl, max_waiters, emitter: The options of the manager.
    """

    __slots__ = (
        "clock_lead", "drift_factor", "emitter", "fair_queue", "links", "local_queues", "loop",
        "masters", "max_ttl", "max_waiters", "origin", "ready", "watchdog",
    )  # fmt: skip

    def __init__(
        self,
        settings: Settings,
        loop: asyncio.AbstractEventLoop,
        trips: RoundTrips,
        seen: list[Seen],
    ) -> None:
        self.loop: asyncio.AbstractEventLoop = loop
        self.origin: Origin = Origin(loop)
        self.drift_factor: float = settings.drift_factor
        self.max_ttl: int = settings.max_ttl
        self.max_waiters: int = settings.max_waiters
        lasts = timing.forgetting(settings.max_ttl, factor=settings.drift_factor)
        self.clock_lead: int = int(lasts * LEAD_SHARE * 1_000_000)
        emitter = settings.emitter
        self.emitter: Emitter | None = emitter
        if emitter is not None:
            emitter.loop = loop
        self.ready: bool = False
        guard = None
        if settings.restart_guard in {"auto", "strict"}:
            guarding = GuardSettings(
                lasts=lasts,
                strict=settings.restart_guard == "strict",
                tell=log_state,
                addresses=[address_of(dialler) for dialler in settings.diallers],
                key=declaration.KEY + settings.key_prefix,
            )
            guard = Guard(seen, clock_of(loop), guarding)
        self.links: tuple[Master, ...] = self._connect(settings, guard, trips)
        stamp = settings.stamp or this_process()
        self.masters: MasterSet = MasterSet(
            self.links, loop, trips=trips, stamp=stamp, emitter=emitter
        )
        self.local_queues: LocalQueues = LocalQueues()
        self.fair_queue: FairQueue = FairQueue(self.masters, self.local_queues)
        self.watchdog: Watchdog = Watchdog(self.masters, max_ttl=settings.max_ttl)

    def __repr__(self) -> str:
        return f"<Session of {self.masters!r}>"

    def _connect(
        self, settings: Settings, guard: Guard | None, trips: RoundTrips
    ) -> tuple[Master, ...]:
        emitter, clock = settings.emitter, clock_of(self.loop)
        names = list(map(str, settings.diallers))
        events = None if emitter is None else MasterEvents(emitter, names, clock)
        context = MasterContext(
            trips=trips,
            clock=clock,
            on_push=self._on_push,
            tell=log_state,
            on_vote=_ignore if events is None else events.on_vote,
            on_no_vote=_ignore if events is None else events.on_no_vote,
            cancelled=self._on_cancelled,
            never_began=self._refuse,
            guard=guard,
            vouched=settings.restart_guard == "fsync-always",
            neighbours={},
            client_name=(settings.stamp or this_process())[1:].decode(),
        )
        return tuple(
            Master(number, dialler, context) for number, dialler in enumerate(settings.diallers)
        )

    def _on_push(self, master: int, push: object) -> None:
        # Masters get this method before the queues exist, and call it only later.
        self.fair_queue.on_push(master, push)
        self.masters.on_push(push)
        self.local_queues.on_push(master, push)
        self.watchdog.on_push(push)

    async def get_ready(self, wait: int | None) -> None:
        """
        Wait until it is known which masters vote, for at most *wait* ms unless that is 0.

        Raises:
            RedlockError: The session was closed.

        Cancellation:
            The connecting continues.
        """
        self.masters.check_open()
        if await readiness(self.links, wait, self.masters.trips):
            self.ready = True

    async def _on_cancelled(self, master: Master) -> None:
        """
        Wait until the connection to *master* may end, after its task was cancelled.

        At the end of `asyncio.run` all tasks are cancelled at once, and some of them still
        have locks to release. From now on nothing is acquired or extended, and waiters get an
        error. The connection stays while a cancelled task holds a lease (which ends by itself
        at its deadline), and for up to one master timeout while there are any other tasks.
        Leases that are still held after that are released.

        Cancellation:
            Leases that are still held are lost at once.
        """
        masters, watchdog = self.masters, self.watchdog
        self._refuse()
        patience = masters.master_timeout / 1000
        ends = self.loop.time() + patience
        try:
            # Polled: a release is on the hot path and must not set an event for this.
            while (  # noqa: ASYNC110
                self.loop.time() < ends and _other_tasks(self.loop)
            ) or watchdog.is_awaited():
                await asyncio.sleep(min(CHECK_INTERVAL, patience))
        finally:
            watchdog.close(LossCause.CANCELLED)
            masters.flush()
            if drained := master.drained():
                await asyncio.wait([drained], timeout=patience)

    def _refuse(self) -> None:
        """End the acquisitions that are underway, and refuse new ones."""
        if not self.masters.closed:
            self.ready = False
            self.fair_queue.close()
            self.masters.close(CANCELLED)
            self.local_queues.close()

    def statistics(self) -> Statistics:
        """
        Return the state of the session at this moment.

        Any thread may call this while the loop runs in its own. Therefore what may become
        ``None`` meanwhile is read once, and a container is copied in one step of the
        interpreter before it is iterated; otherwise the loop could change its size meanwhile.
        """
        return Statistics(
            tuple(
                MasterStatistics(
                    link.name, link.up, link.votes, link.reason, link.pending, len(link.debts)
                )
                for link in self.links
            ),
            rounds=self.masters.underway,
            leases=self.watchdog.held,
            waiters=self.local_queues.waiters,
            is_open=True,
        )

    def abandon(self) -> None:
        """
        End the session after its event loop was closed, when nothing can be sent any more.

        Another loop runs; in its next turn the listener gets the losses of the leases.
        """
        if self.emitter is not None:
            self.emitter.loop = asyncio.get_running_loop()
        self.watchdog.abandon()
        for link in self.links:
            link.abandon()

    async def close(self) -> None:
        """
        End all leases, release them, and close the connections.

        Cancellation:
            Everything is closed; only the wait for the masters' replies is cut short.
        """
        masters = self.masters
        self.watchdog.close()
        self.fair_queue.close()
        masters.close()
        self.local_queues.close()
        try:
            # Attempts that were underway have ended. Their tasks resume in the loop's next turn
            # and ask for releases, which this flush sends.
            await asyncio.sleep(0)
            masters.flush()
            if drained := [answer for link in self.links if (answer := link.drained())]:
                await asyncio.wait(drained, timeout=masters.master_timeout / 1000)
        finally:
            for link in self.links:
                link.close()
            await asyncio.gather(*(link.ended() for link in self.links))


def _other_tasks(loop: asyncio.AbstractEventLoop) -> bool:
    """Return whether *loop* has tasks other than those of managers."""
    return any(not task.get_name().startswith(TASK_NAME) for task in asyncio.all_tasks(loop))


def this_process() -> bytes:
    """Return the stamp of a manager without a *name*: host and pid."""
    name = f"{socket.gethostname()}:{os.getpid()}"
    return lock_value.named("".join(c if c.isprintable() and c != "{" else "?" for c in name))


def address_of(dialler: AnyDialler) -> str:
    """Return the name by which other programs know a master: its Sentinel service or address."""
    return dialler.service if isinstance(dialler, ServiceDialler) else str(dialler)


def log_state(good: bool, text: str) -> None:
    """Log a report of a master: *good* ones as information, others as a warning."""
    _log.log(logging.INFO if good else logging.WARNING, "%s", text)


def _ignore(_master: int, *_vote: object) -> None:
    """Ignore the vote of a master: there is no listener."""
