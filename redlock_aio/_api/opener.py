"""
Opens and closes the session of a manager.

A manager connects on first use and belongs to the event loop of that use, until it is
closed; ``async with`` opens it again. Observations about restarts and round trips of the
masters outlive a session.
"""

import asyncio
import warnings

from redlock_aio._engine.emitter import Emitter
from redlock_aio._engine.origin import running_loop
from redlock_aio._engine.session import Session, Settings, log_state
from redlock_aio._rules.quarantine import Seen
from redlock_aio._rules.roundtrips import RoundTrips
from redlock_aio._rules.statistics import MasterStatistics, Statistics
from redlock_aio._transport.address import ServiceDialler
from redlock_aio.errors import RedlockError


class Opener:
    """
    Opens a session on first use, and closes it.

    Args:
        settings: The options of the manager.

        master_timeout: In milliseconds; ``None`` for one that follows from round trips.

    Raises:
        ValueError: The options contradict each other.

    Attributes:
        current: The session, if there is one.
    """

    __slots__ = ("_closed", "_seen", "current", "emitter", "settings", "trips")

    def __init__(self, settings: Settings, master_timeout: int | None) -> None:
        _check(settings)
        self.settings: Settings = settings
        self.emitter: Emitter | None = settings.emitter
        self.trips: RoundTrips = RoundTrips(len(settings.diallers), master_timeout)
        self.current: Session | None = None
        self._seen = [Seen() for _ in settings.diallers]
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
    def state(self) -> str:
        """The state of a manager without a session, for its repr."""
        return "closed" if self._closed else "not used yet"

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
            session = self._bind(running_loop())
        return session

    async def ready_session(self) -> Session:
        """
        Return the session of the running loop, once the votes of the masters are known.

        Raises:
            RedlockError: As for `session`.

        Cancellation:
            The connecting continues.
        """
        session = self.session()
        if not session.ready:
            await session.get_ready(None)
        return session

    def _bind(self, loop: asyncio.AbstractEventLoop) -> Session:
        if self._closed:
            raise RedlockError("this Redlock is closed; 'async with' opens it again")
        self._abandon_in_closed_loop()
        if self.current is not None:
            here = self.current.origin.is_of_this_process()
            what = "another event loop" if here else "the parent process"
            raise RedlockError(
                f"this Redlock is in use by {what}; make one for each event loop and process"
            )
        self.current = session = Session(self.settings, loop, self.trips, self._seen)
        return session

    def statistics(self) -> Statistics:
        """Return the statistics of the session; without one all masters are down."""
        if (session := self.current) is not None:
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
            self.current.abandon()
            self.current = None

    async def open(self) -> None:
        """
        Open a session and wait until it is ready.

        Raises:
            RedlockError: The session belongs to another event loop or process, or was
                closed meanwhile.

        Cancellation:
            The session is closed.
        """
        session = self.current
        loop = running_loop()
        if session is not None and session.loop is loop and session.masters.closed:
            await self.close()  # the tasks of the session were cancelled
        self._closed = False
        try:
            session = await self.ready_session()
        except asyncio.CancelledError:
            await self.close()
            raise
        if self.current is None:
            session.masters.check_open()

    async def close(self) -> None:
        """
        Close the session, if there is one.

        Raises:
            RedlockError: The session belongs to another event loop, thread or process.

        Cancellation:
            As for `Session.close`.
        """
        self._abandon_in_closed_loop()
        if self.current is None:
            self._closed = True
            return
        session = self.session()
        self._closed = True
        self.current = None
        await session.close()


def _check(settings: Settings) -> None:
    """
    Raise ValueError for "fsync-always" with Sentinels: a failover loses locks nevertheless.

    For an even number of masters only a line is logged.
    """
    failing_over = [isinstance(dialler, ServiceDialler) for dialler in settings.diallers]
    if settings.restart_guard == "fsync-always" and any(failing_over):
        raise ValueError(
            f"masters[{failing_over.index(True)}] is found through Sentinel, and a failover loses"
            " locks even with fsync: restart_guard must be 'auto' or 'strict'"
        )
    if (count := len(settings.diallers)) % 2 == 0:
        fails = f"{count} masters survive the loss of {count // 2 - 1}, as {count - 1} do"
        log_state(False, f"{fails}: use an odd number of masters")
