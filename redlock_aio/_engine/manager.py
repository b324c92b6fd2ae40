"""
The manager of one set of masters: what is valid for all locks on them.

It connects on first use and belongs to the event loop of that use. From there
it owns the masters' connections, the rounds and the watchdog, and ends all of
them when it is closed.
"""

import asyncio
import logging
import os
from collections.abc import Iterable
from datetime import timedelta
from threading import get_ident
from types import TracebackType
from typing import Literal, Self

from redis.asyncio import Redis

from redlock_aio._engine.lease import OnLost
from redlock_aio._engine.lock import Lock
from redlock_aio._engine.readiness import readiness
from redlock_aio._engine.rounds import Fleet, clock_of
from redlock_aio._engine.watchdog import Watchdog
from redlock_aio._rules import restarts, timing
from redlock_aio._rules.arguments import of_type, one_of, text
from redlock_aio._rules.fencing import LEAD_SHARE
from redlock_aio._rules.restarts import Seen
from redlock_aio._rules.timing import Retry
from redlock_aio._transport.address import Dialler, addresses
from redlock_aio._transport.guard import Guard
from redlock_aio._transport.master import Master
from redlock_aio.errors import RedlockError

RESERVED = b"redlock_aio:"
"""How the keys begin that are ours beside the locks."""

MAX_WAITERS = 1_000
"""How many may wait in the queue of one resource."""

RestartGuard = Literal["auto", "strict", "fsync-always", "off"]
"""Who sees to it that a master that has forgotten its locks stays out of votes."""


_log = logging.getLogger("redlock_aio")
_forks = 0


def _count_fork() -> None:
    global _forks  # noqa: PLW0603 - it is a fact of the process
    _forks += 1


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_count_fork)


class Redlock:
    """
    The manager of one set of masters.

    It can be made at module level: it connects on first use, belongs to the
    event loop of that use, and closes with ``async with`` or `aclose`.

    Args:
        masters: Independent Redis or Valkey servers, with no replication between
            them: URLs (``redis://``, ``rediss://``, ``unix://``) or
            `redis.asyncio.Redis` clients, of which the connection settings are
            taken over. All who lock the same resources name the same masters.

        master_timeout: How long one master's answer is waited for, in
            milliseconds or as a `timedelta`. A master that is slower does not
            vote.

        drift_factor: The share of a ttl by which the clocks of two machines may
            part while it lasts; what is left of a ttl after it, and 2 ms more,
            is its validity.

        retry: How to wait between attempts, if a lock does not say it.

        key_prefix: Put before each resource's name to make its key.

        fencing: Whether locks have a fencing token, if a lock does not say it.

        max_waiters: How many may wait in the queue of a resource, with
            ``fair=True``; whoever comes then is refused at once.

        max_ttl: The longest ttl that a lock may ask for, in milliseconds (default
            60 000). All programs that use the masters have the same one.

        restart_guard: Who sees to it that a master that has forgotten its locks
            stays out of votes until they are over, *max_ttl* and a little more:
            ``"auto"`` (the default), this library, but for a set of masters that
            is new as a whole; ``"strict"``, the same, also then; ``"fsync-always"``,
            nobody needs to: you vouch for ``appendfsync always``; ``"off"``, nobody.

    Raises:
        TypeError: An argument is of another type.

        ValueError: An argument has no sense: no masters, one named twice, a URL
            that can't be understood, a time that is not positive.
    """

    def __init__(
        self,
        masters: Iterable[str | Redis | Dialler],
        *,
        master_timeout: int | timedelta = timing.MASTER_TIMEOUT,
        drift_factor: float = timing.DRIFT_FACTOR,
        retry: Retry = Retry(),  # noqa: B008 - a frozen value
        key_prefix: str = "",
        fencing: bool = False,
        max_waiters: int = MAX_WAITERS,
        max_ttl: int | timedelta = timing.MAX_TTL,
        restart_guard: RestartGuard = "auto",
    ) -> None:
        self._diallers = addresses(masters)
        self._master_timeout = timing.milliseconds(master_timeout, name="master_timeout")
        self._drift_factor = timing.drift_factor(drift_factor)
        self._retry = of_type(retry, Retry, name="retry")
        self._key_prefix = b"" if key_prefix == "" else text(key_prefix, name="key_prefix")
        self._fencing = of_type(fencing, bool, name="fencing")
        self._max_waiters = of_type(max_waiters, int, name="max_waiters")
        if isinstance(max_waiters, bool) or max_waiters < 1:
            raise ValueError(f"max_waiters must be positive, not {max_waiters}")
        self._max_ttl = timing.milliseconds(max_ttl, name="max_ttl")
        self._lasts = timing.forgetting(self._max_ttl, factor=self._drift_factor)
        self._clock_lead = int(self._lasts * LEAD_SHARE * 1_000_000)
        self._restart_guard = one_of(restart_guard, restarts.GUARDS, name="restart_guard")
        self._seen = [Seen() for _ in self._diallers]
        self._loop: asyncio.AbstractEventLoop | None = None
        self._closed = False
        self._checked_ttl: int | None = None
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
        return f"<Redlock {total} masters, {up} up{quarantined}, {self._watchdog.held} leases>"

    def lock(
        self,
        resource: str,
        /,
        *,
        ttl: int | timedelta = timing.TTL,
        wait: int | timedelta | None = None,
        auto_extend: bool = True,
        max_hold: int | timedelta | None = None,
        fair: bool = False,
        fencing: bool | None = None,
        retry: Retry | None = None,
        on_lost: OnLost = "cancel",
    ) -> Lock:
        """
        Return a lock on *resource*; nothing is sent yet.

        Args:
            resource: The name that is locked, 1 to 512 bytes as UTF-8, without
                control characters. With the manager's *key_prefix* before it,
                it is the key on the masters.

            ttl: After how many milliseconds without an extension the masters
                release the lock by themselves (default 10 000), at most the
                manager's *max_ttl*.

            wait: For how many milliseconds to wait, whether others hold the lock
                or masters are away. ``None`` (the default) waits for ever, 0
                makes one attempt.

            auto_extend: Whether the lease is extended every third of *ttl* for
                as long as it is held (default yes).

            max_hold: After how many milliseconds the lease ends for good,
                whatever extensions say (default: never).

            fair: Whether to wait in order: whoever asked first is served first, also
                among programs (default no). It costs the masters more. Those who
                do not say *fair* do not stand in the queue, and may come first.

            fencing: Whether the lease has a `Lease.fencing_token`, which is higher
                than that of everybody who had the lock before (default: as the
                manager says). It counts only those who say *fencing*, and costs
                the masters more.

            retry: How to wait between attempts (default: as the manager says).
                A fair wait is woken and needs none.

            on_lost: ``"cancel"`` (the default) cancels the body of ``async
                with`` when the lease is lost and raises `LockLostError`;
                ``"flag"`` only tells, by `Lease.valid` and `Lease.lost`.

        Raises:
            TypeError: An argument is of another type, such as a `float` for a
                time.

            ValueError: An argument has no sense.
        """
        if type(ttl) is not int or ttl != self._checked_ttl:
            ttl = timing.milliseconds(ttl, name="ttl")
            ttl = timing.at_most(ttl, self._max_ttl)
            self._checked_ttl = timing.believable(ttl, factor=self._drift_factor)
        if wait is not None:
            wait = timing.milliseconds(wait, name="wait", zero=True)
        if max_hold is not None:
            max_hold = timing.milliseconds(max_hold, name="max_hold")
        one_of(on_lost, ("cancel", "flag"), name="on_lost")
        return Lock(
            self,
            resource,
            self._key(resource),
            ttl=ttl,
            wait=wait,
            auto_extend=of_type(auto_extend, bool, name="auto_extend"),
            max_hold=max_hold,
            fair=of_type(fair, bool, name="fair"),
            fenced=self._fencing if fencing is None else of_type(fencing, bool, name="fencing"),
            retry=self._retry if retry is None else of_type(retry, Retry, name="retry"),
            on_lost=on_lost,
        )

    def _key(self, resource: str) -> bytes:
        name = text(resource, name="resource")
        key = self._key_prefix + name
        if key.startswith(RESERVED):
            raise ValueError(
                f"resource must not make a key that starts with {RESERVED.decode()!r}: such keys"
                " are our own"
            )
        return key

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
        if self._loop is not None:
            what = "another event loop" if self._forks == _forks else "the parent process"
            raise RedlockError(
                f"this Redlock is in use by {what}; make one for each event loop and process"
            )
        self._loop = loop
        self._thread = get_ident()
        self._forks = _forks
        neighbours: dict[str, Master] = {}
        self._guard = self._new_guard(loop)
        self._masters = [
            Master(
                number,
                dialler,
                neighbours=neighbours,
                timeout=self._master_timeout / 1000,
                on_push=self._heard,
                tell=_tell,
                guard=self._guard,
                vouched=self._restart_guard == "fsync-always",
            )
            for number, dialler in enumerate(self._diallers)
        ]
        self._fleet = Fleet(self._masters, loop, master_timeout=self._master_timeout)
        self._watchdog = Watchdog(self._fleet, max_ttl=self._max_ttl)

    def _new_guard(self, loop: asyncio.AbstractEventLoop) -> Guard | None:
        if self._restart_guard not in ("auto", "strict"):
            return None
        return Guard(
            self._seen,
            clock_of(loop),
            lasts=self._lasts,
            strict=self._restart_guard == "strict",
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
        if await readiness(self._masters, wait, self._master_timeout):
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
                await asyncio.wait(heard, timeout=self._master_timeout / 1000)
        finally:
            for master in masters:
                master.close()
            await asyncio.gather(*(master.ended() for master in masters))


def _tell(good: bool, said: str) -> None:
    """Log what a master has to say; the only lines that this library writes."""
    _log.log(logging.INFO if good else logging.WARNING, "%s", said)
