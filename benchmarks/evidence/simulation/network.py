"""
Virtual time for several programs: a loop for each, one clock, and a network between them.

Each program has an event loop of its own, so that one can stand still, sleep or die while the
others go on. The masters are `FakeMaster`, in one more loop. Messages take their time, and keep
their order on each connection.
"""

import asyncio
import contextlib
import random
import selectors
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

from redlock_aio.testing import FakeMaster
from redlock_aio.testing._fake import _FakeTransport

FOREVER = float("inf")
TURN = 1e-9
"""How long a turn of a loop takes, in seconds."""


class _NoSelector(selectors.SelectSelector):
    """A selector that never waits, and never looks: there are no sockets."""

    def select(self, timeout: float | None = None) -> list[Any]:  # noqa: ARG002 - an override
        return []


class Clock:
    """The time that all loops share, in seconds."""

    def __init__(self) -> None:
        self.now = 0.0
        self.loops: list[Loop] = []

    def run(self, until: Callable[[], bool], latest: float) -> bool:
        """
        Run all loops until *until* is true; return false if it is not by *latest*.

        In each instant the loops run in their order, until all of them wait.
        """
        while not until():
            ran = False
            for loop in self.loops:
                while loop.is_due():
                    loop.step()
                    # A turn takes time. If it took none, a timer that is early by less than the
                    # resolution of a clock would be set again for the same instant, for ever.
                    self.now += TURN
                    ran = True
            if not ran:
                due = min(loop.next_timer() for loop in self.loops)
                if due > latest:
                    self.now = max(self.now, latest)
                    return until()
                self.now = max(self.now, due)
        return True


class Loop(asyncio.SelectorEventLoop):
    """The event loop of a program, or that of all masters."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.asleep = 0.0
        """For how long its machine has been suspended."""
        self.still_until = 0.0
        """Until when it does not run; for ever once its process has died."""
        self._runs = False
        super().__init__(_NoSelector())
        clock.loops.append(self)

    def is_running(self) -> bool:
        """Return whether it is the loop whose turn it is."""
        return self._runs

    def time(self) -> float:
        """Return the time that timers count, which stands still while the machine is suspended."""
        return self._clock.now - self.asleep

    def boottime(self) -> float:
        """Return the time that leases count."""
        return self._clock.now

    # What follows uses the parts of `asyncio.BaseEventLoop` that run one turn. They are not
    # public, and have been as they are since Python 3.4.

    def is_due(self) -> bool:
        """Return whether something can run now."""
        if self._clock.now < self.still_until:
            return False
        if self._ready:  # type: ignore[attr-defined]
            return True
        timers = self._scheduled  # type: ignore[attr-defined]
        return bool(timers) and timers[0].when() <= self.time() + TURN

    def next_timer(self) -> float:
        """Return when it has something to do next, on the shared clock."""
        timers = self._scheduled  # type: ignore[attr-defined]
        if self._ready:  # type: ignore[attr-defined]
            return self.still_until
        return max(timers[0].when() + self.asleep, self.still_until) if timers else FOREVER

    def step(self) -> None:
        """Run one turn."""
        asyncio._set_running_loop(self)
        self._runs = True
        try:
            self._run_once()  # type: ignore[attr-defined]
        finally:
            self._runs = False
            asyncio._set_running_loop(None)

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Make this the running loop."""
        asyncio._set_running_loop(self)
        self._runs = True
        try:
            yield
        finally:
            self._runs = False
            asyncio._set_running_loop(None)


class Transport(_FakeTransport):
    """A connection of a program to a master; each direction keeps its order."""

    def __init__(self, master: "Master", link: "Link") -> None:
        super().__init__(master)
        self.link = link
        self.requests: deque[bytes] = deque()
        self.replies: deque[bytes] = deque()
        self.request_by = self.reply_by = 0.0
        """When the last message that was sent arrives."""
        self.was_reset = False

    def lose(self, error: Exception | None) -> None:
        """End it; its protocol is told so in the loop of its program."""
        if not self._closing:
            self._closing = True
            self.was_reset = error is not None
            self._master.forget(self)
            if self._protocol is not None and not self.link.dead:
                self.link.loop.call_soon(self._protocol.connection_lost, error)


class Link:
    """The way from one program to one master."""

    def __init__(self, loop: Loop, latency: float, chance: random.Random | None) -> None:
        self.loop = loop
        self._latency = latency
        self._chance = chance
        self.requests_from = self.replies_from = 0.0
        """Nothing arrives before: what is sent earlier is late."""
        self.dead = False
        """Whether the program has died."""

    def delay(self) -> float:
        """Return how long a message takes."""
        half = self._latency / 2
        return half if self._chance is None else half * (0.5 + self._chance.random())


class Master(FakeMaster):
    """A master that is reached by *links*, one for each program."""

    def __init__(self, name: str, number: int, net: Loop) -> None:
        with net.running():
            super().__init__(name)
        self.run_id = self.replid = f"{number:040x}"
        self.net = net
        self.keeps_commands = False

    def receive(self, transport: _FakeTransport, data: bytes) -> None:
        """Send *data* to the master."""
        assert isinstance(transport, Transport)
        link = transport.link
        by = max(transport.request_by, self.net.time() + link.delay(), link.requests_from)
        transport.request_by = by
        transport.requests.append(data)
        self.net.call_at(by, self._request_arrives, transport)

    def _request_arrives(self, transport: Transport) -> None:
        data = transport.requests.popleft()
        if transport.was_reset:
            return
        self._arrived.append((transport, data))
        self._serve_arrived()

    def _say(self, transport: _FakeTransport, data: bytes) -> None:
        assert isinstance(transport, Transport)
        link = transport.link
        if not data or link.dead:
            return
        by = max(transport.reply_by, self.net.time() + link.delay(), link.replies_from)
        transport.reply_by = by
        transport.replies.append(data)
        self.net.call_at(by, self._reply_arrives, transport)

    @staticmethod
    def _reply_arrives(transport: Transport) -> None:
        data = transport.replies.popleft()
        if not transport.link.dead:
            transport.link.loop.call_soon(transport.deliver, data)

    def execute(self, command: list[bytes], listener: Any = None) -> object:
        """Execute *command*; it is not kept."""
        reply = super().execute(command, listener)
        self.commands.clear()
        return reply

    def leave(self, link: Link) -> None:
        """End the connections of a program that has died. What it has sent is still executed."""
        link.dead = True
        for transport in list(self._connections):
            if isinstance(transport, Transport) and transport.link is link:
                transport.lose(None)


class Endpoint:
    """A master as one program dials it: what `Redlock` takes in the place of a URL."""

    secrets: tuple[str, ...] = ()

    def __init__(self, master: Master, link: Link) -> None:
        self.master = master
        self.link = link
        self.name = master.name

    def __str__(self) -> str:
        return self.name

    async def dial(self) -> tuple[asyncio.Transport, object]:
        """
        Return a new connection.

        Cancellation:
            No connection is made.
        """
        link, master = self.link, self.master
        await asyncio.sleep(link.delay() * 2)
        while not link.dead and (  # noqa: ASYNC110 - an event would belong to one loop
            master._hung or link.loop.boottime() < max(link.requests_from, link.replies_from)
        ):
            await asyncio.sleep(0.05)
        if not master._alive or link.dead:
            raise ConnectionRefusedError("connection refused")
        transport = Transport(master, link)
        master._connections[transport] = None
        return transport, self
