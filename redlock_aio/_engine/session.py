"""
The session: all objects that exist between open and close of a manager, in one event loop.

A session owns the masters' connections, the rounds, the watchdog and the queues, and
ends all of them when it is closed. A manager has one session or none. Its `Opener` makes
the session on first use, for the event loop of that use; ``async with`` opens a closed
manager again. Observations about restarts and round trips of the masters outlive a session.
"""

import asyncio
import math
import os
import socket
import warnings
from collections.abc import Sequence
from threading import get_ident
from typing import Literal, NamedTuple

from redlock_aio._engine.clock import clock_of
from redlock_aio._engine.emitter import Emitter
from redlock_aio._engine.hold.watchdog import Watchdog
from redlock_aio._engine.master_events import MasterEvents
from redlock_aio._engine.masters import MasterSet
from redlock_aio._engine.wait.fair_queue import FairQueue
from redlock_aio._engine.wait.gate import Gate
from redlock_aio._engine.wait.local_queue import LocalQueues
from redlock_aio._log import log
from redlock_aio._protocol import commands
from redlock_aio._protocol.request import ignore
from redlock_aio._rules import lock_value, timing
from redlock_aio._rules.causes import LossCause
from redlock_aio._rules.fencing import LEAD_SHARE
from redlock_aio._rules.quarantine import Seen
from redlock_aio._rules.quorum import majority
from redlock_aio._rules.statistics import MasterStatistics, Statistics
from redlock_aio._transport.address import AnyDialler, ClusterMaster, ServiceDialler
from redlock_aio._transport.guard import Guard
from redlock_aio._transport.master import TASK_NAME, Master, MasterContext
from redlock_aio.errors import ErrorCode, RedlockError

RestartGuard = Literal["auto", "strict", "fsync-always", "off"]
"""The way in which masters that may have lost their locks are quarantined."""

CANCELLED: tuple[str, ErrorCode] = (
    (
        "the tasks of this Redlock were cancelled, as at the end of a program; 'async with' opens"
        " it again"
    ),
    "redlock-cancelled",
)

CHECK_INTERVAL = 0.02
"""Seconds between two checks for held leases, after all tasks were cancelled."""


_forks = 0


def _count_fork() -> None:
    global _forks  # noqa: PLW0603 - the count belongs to the process
    _forks += 1


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_count_fork)


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


def running_loop() -> asyncio.AbstractEventLoop:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        raise RedlockError(
            "no event loop of asyncio runs here: redlock_aio needs one, also under anyio; trio has"
            " none, a forked child has to start its own, and other programs use redlock_aio.sync",
            "no-event-loop",
        ) from None


class Origin:
    """The loop, thread and process in which an object was made; it can be used only there."""

    __slots__ = ("_forks", "_loop", "_thread")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._thread = get_ident()
        self._forks = _forks

    def is_here(self) -> bool:
        """Return whether the caller runs in this loop; needs no system call."""
        return self._thread == get_ident() and self._forks == _forks and self._loop.is_running()

    def is_of_this_process(self) -> bool:
        """Return whether this process is the original one, and not a forked child of it."""
        return self._forks == _forks

    def whose(self) -> str:
        if self._forks != _forks:
            return "the parent process; export() it there, and adopt() it here"
        if self._loop.is_closed():
            return "an event loop that is closed"
        if self._thread != get_ident():
            return "another thread's event loop: use asyncio.run_coroutine_threadsafe()"
        return "another event loop"


class Session:
    """
    All objects that exist between open and close of a manager.

    Args:
        longest: The longest quarantine in seconds that a former session has learned of.

    Attributes:
        entered: How many blocks of ``async with`` are in it; the end of the last one closes it.

        ready: Whether the votes of the masters are known.

        checked: Whether `Redlock.check` has waited for the masters, so that who only asks them
            need not.

        clock_lead: The most by which a fencing token may be ahead of a master's clock, in µs.
    """

    __slots__ = (
        "_guard", "checked", "clock_lead", "drift_factor", "emitter", "entered", "fair_queue",
        "gate", "links", "local_queues", "loop", "masters", "max_ttl", "max_waiters", "origin",
        "ready", "watchdog",
    )  # fmt: skip

    def __init__(
        self,
        settings: Settings,
        loop: asyncio.AbstractEventLoop,
        trips: timing.RoundTrips,
        seen: list[Seen],
        longest: float = 0.0,
    ) -> None:
        self.loop: asyncio.AbstractEventLoop = loop
        self.origin: Origin = Origin(loop)
        self.drift_factor: float = settings.drift_factor
        self.max_ttl: int = settings.max_ttl
        self.max_waiters: int = settings.max_waiters
        quarantine = timing.forgetting(settings.max_ttl, factor=settings.drift_factor)
        self.clock_lead: int = int(quarantine * LEAD_SHARE * 1_000_000)
        emitter = settings.emitter
        self.emitter: Emitter | None = emitter
        if emitter is not None:
            emitter.loop = loop
        self.entered: int = 0
        self.ready: bool = False
        self.checked: bool = False
        guard = None
        if settings.restart_guard in {"auto", "strict"}:
            guard = Guard(
                seen,
                clock_of(loop),
                quarantine=max(quarantine, longest),
                strict=settings.restart_guard == "strict",
                addresses=addresses_of(settings.diallers),
                key=commands.DECLARED_SETS + settings.key_prefix,
            )
        self._guard: Guard | None = guard
        self.links: tuple[Master, ...] = self._connect(settings, guard, trips)
        stamp = settings.stamp or this_process()
        self.masters: MasterSet = MasterSet(
            self.links, loop, trips=trips, stamp=stamp, emitter=emitter
        )
        self.gate: Gate = Gate(self.masters)
        self.local_queues: LocalQueues = LocalQueues()
        self.fair_queue: FairQueue = FairQueue(
            self.masters,
            self.local_queues,
            self.gate,
            max_waiters=self.max_waiters,
            clock_lead=self.clock_lead,
            key_prefix=settings.key_prefix,
        )
        self.watchdog: Watchdog = Watchdog(self.masters, self.local_queues, settings.drift_factor)

    def __repr__(self) -> str:
        return f"<Session of {self.masters!r}>"

    @property
    def longest_quarantine(self) -> float:
        """In seconds; 0 without a restart guard."""
        return 0.0 if self._guard is None else self._guard.quarantine

    def _connect(
        self, settings: Settings, guard: Guard | None, trips: timing.RoundTrips
    ) -> tuple[Master, ...]:
        emitter, clock = settings.emitter, clock_of(self.loop)
        names = list(map(str, settings.diallers))
        events = None if emitter is None else MasterEvents(emitter, names, clock)
        context = MasterContext(
            trips=trips,
            clock=clock,
            on_push=self._on_push,
            on_standing=ignore if events is None else events.on_standing,
            on_cancelled=self._refuse,
            last_releases=self._last_releases,
            guard=guard,
            vouched=settings.restart_guard == "fsync-always",
            alone=len(settings.diallers) == 1,
            neighbours={},
            clusters={},
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
        self.gate.open_if_able()  # a vote may have returned

    async def get_ready(self, wait: int | None) -> None:
        """Wait until it is known which masters vote, for at most *wait* ms unless that is 0."""
        self.masters.check_open()
        if await readiness(self.links, wait, self.masters.trips):
            self.ready = True

    async def _last_releases(self, master: Master) -> None:
        """
        Wait until the connection to *master* may end, after its task was cancelled.

        At the end of `asyncio.run` all tasks are cancelled at once, and some of them still
        have locks to release. None of them can acquire once more (`_refuse` came before this),
        and no lease is extended. The connection stays while a cancelled task holds a lease (which
        ends by itself at its deadline), and for up to one master timeout while there are any other
        tasks. Leases that are still held after that are released.

        Cancellation:
            Leases that are still held are lost at once.
        """
        masters, watchdog = self.masters, self.watchdog
        patience = masters.master_timeout / 1000
        ends = self.loop.time() + patience
        try:
            # Polled: a release is on the hot path and must not set an event for this.
            while (  # noqa: ASYNC110
                self.loop.time() < ends and _other_tasks(self.loop)
            ) or watchdog.is_awaited():
                await asyncio.sleep(min(CHECK_INTERVAL, patience))
        finally:
            # Also if this task is cancelled again, as a second Ctrl-C does. In this order: the
            # first line ends the leases and sends their releases, the second one writes them in
            # this turn, and the third one waits for the replies. Then the master's task ends the
            # connection.
            watchdog.close(LossCause.CANCELLED)
            masters.flush()
            if drained := master.drained():
                await asyncio.wait([drained], timeout=patience)

    def _refuse(self) -> None:
        """End the acquisitions that are underway, and refuse new ones."""
        # The task of each master comes here, and only the first one finds anything to do. With
        # `ready` unset, `ready_session` goes to `get_ready`, which raises the reason.
        if not self.masters.closed:
            self.ready = self.checked = False
            self.fair_queue.close()
            self.masters.close(CANCELLED)
            self.local_queues.close()
            self.gate.close()

    def statistics(self) -> Statistics:
        """
        Return the state of the session at this moment.

        Any thread may call this while the loop runs in its own. Therefore what may become
        ``None`` meanwhile is read once, and a container is copied in one step of the
        interpreter before it is iterated; otherwise the loop could change its size meanwhile.
        """
        line = self.masters.outages.line
        return Statistics(
            tuple(
                MasterStatistics(
                    link.name, link.up, link.votes, link.reason, link.pending, len(link.debts)
                )
                for link in self.links
            ),
            rounds=self.masters.underway,
            leases=self.watchdog.held,
            waiters=self.local_queues.waiters + len(self.gate.waiting) + len(line),
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
        # Leases first: `masters.close` sends their releases. The queues of tasks last: those that
        # they wake find the masters closed, and give up.
        self.watchdog.close()
        self.fair_queue.close()
        masters.close()
        self.local_queues.close()
        self.gate.close()
        try:
            # Attempts that were underway have ended. Their tasks resume in the loop's next turn
            # and ask for releases, which this flush sends.
            await asyncio.sleep(0)
            masters.flush()
            if drained := [answer for link in self.links if (answer := link.drained())]:
                await asyncio.wait(drained, timeout=masters.master_timeout / 1000)
        finally:
            # Also if the wait above is cancelled: otherwise the sockets and the tasks of the
            # masters would stay. `Opener.close` has dropped this session before, so no later call
            # could end them.
            for link in self.links:
                link.close()
            await asyncio.gather(*(link.ended() for link in self.links))


async def readiness(masters: Sequence[Master], wait: int | None, trips: timing.RoundTrips) -> bool:
    """
    Wait until it is known which masters vote, for at most *wait* ms unless that is 0.

    Once a majority is up, the other masters get one master timeout more: a minority that
    hangs does not delay the first lock. If no master hangs, but it is not known yet whether
    the masters are a new set, the wait continues until that is known.

    Returns:
        Whether enough is known; if not, a caller with a longer limit waits on.
    """
    loop = asyncio.get_running_loop()
    ends = loop.time() + wait / 1000 if wait else math.inf
    grace = math.inf
    needed = majority(len(masters))
    while trying := [master for master in masters if not master.tried.done()]:
        votes = sum(master.votes for master in masters)
        if votes + len(trying) < needed:
            break  # no majority is possible now
        up = sum(master.up for master in masters)
        dialling = [master.reached for master in trying if not master.up]
        if up < needed or not (dialling or votes >= needed):
            grace = math.inf
        elif grace == math.inf:
            grace = loop.time() + trips.timeout / 1000
        left = min(ends, grace) - loop.time()
        if left <= 0:
            return up >= needed
        await asyncio.wait(
            {master.tried for master in trying}
            | {reached for reached in dialling if not reached.done()},
            timeout=None if left == math.inf else left,
            return_when=asyncio.FIRST_COMPLETED,
        )
    return True


async def majority_is_known(masters: Sequence[Master], wait: int) -> None:
    """
    Wait until a majority votes, or can't vote for now, for at most *wait* ms.

    Unlike `readiness` it gives a minority no extra time.
    """
    loop = asyncio.get_running_loop()
    ends = loop.time() + wait / 1000
    needed = majority(len(masters))
    while trying := [master.tried for master in masters if not master.tried.done()]:
        votes, left = sum(master.votes for master in masters), ends - loop.time()
        if votes >= needed or votes + len(trying) < needed or left <= 0:
            break
        await asyncio.wait(trying, timeout=left, return_when=asyncio.FIRST_COMPLETED)


def _other_tasks(loop: asyncio.AbstractEventLoop) -> bool:
    """Return whether *loop* has tasks other than those of managers."""
    return any(not task.get_name().startswith(TASK_NAME) for task in asyncio.all_tasks(loop))


def this_process() -> bytes:
    """Return the stamp of a manager without a *name*: host and pid."""
    name = f"{socket.gethostname()}:{os.getpid()}"
    return lock_value.named("".join(c if c.isprintable() and c != "{" else "?" for c in name))


def addresses_of(diallers: Sequence[AnyDialler]) -> list[str]:
    """Return the names by which other programs know the masters: service, tag or address."""
    services = [each.service for each in diallers if isinstance(each, ServiceDialler)]
    names = []
    for dialler in diallers:
        if isinstance(dialler, ClusterMaster):
            names.append(dialler.tag.decode())
        elif isinstance(dialler, ServiceDialler):
            # Without the Sentinels, so that all programs have one name for it, whichever of them
            # they name. Of several masters of one name, each is the "mymaster" of its own
            # Sentinels; with that name alone, one would be where another one has moved to.
            name = dialler.service
            if services.count(name) > 1:
                name = " by ".join((name, ", ".join(sorted(map(str, dialler.sentinels)))))
            names.append(name)
        else:
            names.append(str(dialler))
    return names


class Opener:
    """
    Opens a session on first use, and closes it.

    Args:
        master_timeout: In milliseconds; ``None`` for one that follows from round trips.
    """

    __slots__ = ("_closed", "_longest", "_seen", "current", "emitter", "settings", "trips")

    def __init__(self, settings: Settings, master_timeout: int | None) -> None:
        _check(settings)
        self.settings: Settings = settings
        self.emitter: Emitter | None = settings.emitter
        self.trips: timing.RoundTrips = timing.RoundTrips(len(settings.diallers), master_timeout)
        self.current: Session | None = None
        self._seen = [Seen() for _ in settings.diallers]
        # With `_seen`: what that says was counted with this. A session that learned of the longest
        # quarantine anew would lengthen all quarantines once more.
        self._longest = 0.0
        self._closed = False

    def __repr__(self) -> str:
        return f"<Opener, {self.current or self.state}>"

    def __del__(self) -> None:
        # Nothing is closed: this may run in another thread, or after the loop has ended. The end
        # of `asyncio.run` cancels the tasks of a session, which closes it: no warning then, nor
        # while the loop still runs. `run_until_complete` and IPython leave the sockets behind.
        session = getattr(self, "current", None)  # there is none if the settings were refused
        if session is None or session.masters.closed or session.loop.is_running():
            return
        if session.origin.is_of_this_process():
            warnings.warn(
                "a Redlock was dropped without aclose(), so its sockets stay open; use 'async with"
                " redlock', or 'await redlock.aclose()'",
                ResourceWarning,
                stacklevel=2,
                source=self,
            )

    @property
    def working(self) -> Session | None:
        """
        The session, unless it is that of the parent process, or its event loop was closed.

        Such a session stays as it was: nothing ends its leases, or finds that a master is away.
        What it shows would count for as long as this process runs, and in a forked child twice.
        """
        session = self.current  # read once: any thread may ask
        if session is None or session.loop.is_closed():
            return None
        return session if session.origin.is_of_this_process() else None

    @property
    def state(self) -> str:
        """Why there is no session that works."""
        if (session := self.current) is None:
            return "closed" if self._closed else "not used yet"
        here = session.origin.is_of_this_process()
        return "its event loop was closed" if here else "it belongs to the parent process"

    def session(self) -> Session:
        """
        Return the session of the running loop; open one if there is none.

        Raises:
            RedlockError: The manager was closed, or its session belongs to another event
                loop, thread or process.
        """
        session = self.current
        # `is_here` compares threads, because a thread runs one loop at a time: looking up the
        # running loop costs a system call on Python 3.11.
        if session is None or not session.origin.is_here():
            session = self._bind()
        return session

    async def ready_session(self) -> Session:
        session = self.session()
        if not (session.ready or session.checked):
            await session.get_ready(None)
        return session

    def _bind(self) -> Session:
        if self._closed:
            raise RedlockError(
                "this Redlock is closed; 'async with' opens it again", "redlock-closed"
            )
        session = self.current
        if session is not None and not session.loop.is_closed():
            # First of all: in a child that was forked within the loop no loop runs any more, and
            # to say that would hide the reason.
            here = session.origin.is_of_this_process()
            what = "another event loop" if here else "the parent process"
            raise RedlockError(
                f"this Redlock is in use by {what}; make one for each event loop and process",
                "redlock-elsewhere",
            )
        loop = running_loop()
        self._abandon_in_closed_loop()
        # In one step, without an await: two tasks that use the manager first at the same time get
        # the same session.
        self.current = session = Session(self.settings, loop, self.trips, self._seen, self._longest)
        return session

    def statistics(self) -> Statistics:
        """Return the statistics of the session; without one that works all masters are down."""
        if (session := self.working) is not None:
            return session.statistics()
        names = map(str, self.settings.diallers)
        away = [MasterStatistics(name, False, False, self.state, 0, 0) for name in names]
        return Statistics(tuple(away), rounds=0, leases=0, waiters=0, is_open=False)

    def _abandon_in_closed_loop(self) -> None:
        """
        Abandon the session if its event loop was closed, so that another can be opened.

        A loop that is not closed may run again, and the session stays.
        """
        if self.current is not None and self.current.loop.is_closed():
            self._longest = self.current.longest_quarantine
            self.current.abandon()
            self.current = None

    async def enter(self) -> None:
        """
        Open a session for a block of ``async with``, and wait until it is ready.

        Cancellation:
            As at the end of the block.
        """
        session = self.current
        if session is not None and session.origin.is_here() and session.masters.closed:
            await self.close()  # the tasks of the session were cancelled
        self._closed = False
        session = self.session()
        session.entered += 1
        try:
            if not session.ready:
                await session.get_ready(None)
        except asyncio.CancelledError:
            # `__aexit__` does not run when `__aenter__` is cancelled: nobody else would close the
            # session.
            if self.current is session:
                await self.leave()
            raise
        # Another task may have closed the manager while this one waited.
        if self.current is not session:
            session.masters.check_open()

    async def leave(self) -> None:
        # A part of a program that is open for less long, such as one of two apps, must not end the
        # leases of the others.
        session = self.current
        if session is not None and session.entered > 1 and session.origin.is_here():
            session.entered -= 1
        else:
            await self.close()

    async def close(self) -> None:
        self._abandon_in_closed_loop()
        if self.current is None:
            self._closed = True
            return
        session = self.session()
        # Before the wait: whoever opens or closes meanwhile must not get this session.
        self._closed = True
        self.current = None
        self._longest = session.longest_quarantine
        await session.close()


def _check(settings: Settings) -> None:
    """
    Raise ValueError for "fsync-always" with Sentinels: a failover loses locks nevertheless.

    For an even number of masters only a line is logged.
    """
    clustered = any(isinstance(dialler, ClusterMaster) for dialler in settings.diallers)
    if settings.restart_guard == "fsync-always" and clustered:
        raise ValueError(
            "restart_guard must be 'auto' or 'strict' with a Redis Cluster: a failover loses locks"
            " even with fsync"
        )
    if settings.restart_guard == "fsync-always":
        failing_over = [isinstance(dialler, ServiceDialler) for dialler in settings.diallers]
        if any(failing_over):
            raise ValueError(
                f"masters[{failing_over.index(True)}] is found through Sentinel, and a failover"
                " loses locks even with fsync: restart_guard must be 'auto' or 'strict'"
            )
    if (count := len(settings.diallers)) % 2 == 0:
        fails = f"{count} masters survive the loss of {count // 2 - 1}, as {count - 1} do"
        log.warning("%s", f"{fails}: use an odd number of masters")
