"""
A master in memory, which speaks the masters' protocol.

Clients use it through the same connection class as a real one, so a test runs all
of the library except the dialling. This project's tests compare its replies and
pushes with those of real servers.
"""

import asyncio
import contextlib
import functools
import itertools
from collections import defaultdict, deque
from collections.abc import Callable
from typing import TypeAlias

import hiredis

from redlock_aio._protocol.request import pack
from redlock_aio.testing._fake_commands import Commands, encode, in_its_loop, running
from redlock_aio.testing._fake_pushes import Push, PushReceiver

_numbers = itertools.count()
_NOT_ENOUGH = object()

_LONG = 50_000
"""A size in bytes that only the write exceeds with which a client loads its scripts."""

_begin: tuple[bytes, list[list[bytes]]] = (b"", [])
"""
The first write of the last connection that loaded scripts, and its commands.

The next connection most often begins with the same. To parse and to keep all the texts anew would
take a quarter of the time for which a program connects to its masters.
"""


class _FakeTransport(asyncio.Transport):
    """
    One connection to a fake master.

    Attributes:
        loop: The event loop of its client.
    """

    loop: asyncio.AbstractEventLoop | None = None

    def __init__(self, master: "FakeMaster") -> None:
        super().__init__()
        self._master = master
        self._protocol: asyncio.Protocol | None = None
        self._closing = False
        self._has_begun = False
        self.reader: hiredis.Reader = hiredis.Reader(notEnoughData=_NOT_ENOUGH)
        self.listener: PushReceiver = PushReceiver(functools.partial(master.push, self))

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        if not isinstance(protocol, asyncio.Protocol):
            raise TypeError("a streaming protocol is wanted")
        self._protocol = protocol

    def is_closing(self) -> bool:
        return self._closing

    def get_write_buffer_size(self) -> int:
        return 0

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if not self._closing:
            self._master.receive(self, bytes(data))

    def commands(self, data: bytes) -> list[list[bytes]]:
        """Return the commands that *data* completes."""
        global _begin  # noqa: PLW0603 - of the process: each master would have its own texts
        first, self._has_begun = not self._has_begun, True
        before, known = _begin  # read once: a master in another thread may set it
        if first and data == before:
            return known
        self.reader.feed(data)
        commands = list(iter(self.reader.gets, _NOT_ENOUGH))
        if first and len(data) > _LONG and data == b"".join(pack(*each) for each in commands):
            _begin = data, commands
        return commands

    def deliver(self, data: bytes) -> None:
        if self._closing or self._protocol is None:
            return
        if self.loop is None or self.loop is asyncio.get_running_loop():
            self._protocol.data_received(data)
        else:
            self._in_client(self.deliver, data)

    def _in_client(self, call: Callable[..., None], argument: object) -> None:
        """Call *call* in the client's event loop, soon; one that is closed has no client left."""
        loop = self.loop or asyncio.get_running_loop()
        if loop is running():
            loop.call_soon(call, argument)
        else:
            _elsewhere(loop, call, argument)

    def abort(self) -> None:
        self.close()

    def close(self) -> None:
        self.lose(None)

    def lose(self, error: Exception | None) -> None:
        if not self._closing:
            self._closing = True
            self._master.forget(self)
            if self._protocol is not None:
                self._in_client(self._protocol.connection_lost, error)


_Queue: TypeAlias = deque[tuple[float, _FakeTransport, bytes]]
"""What is underway in one direction, with the time at which it arrives, by the loop's clock."""


class FakeMaster(Commands):
    """
    One master in memory, with a master's ways of failing.

    Requests are served in order, half of *latency* after they were sent, and
    answered as much later. Time is the running event loop's. Any thread may cause its
    faults, look at its keys and change them, such as a test of a program that runs in
    the event loop of another thread.

    Args:
        name: Its name in votes; generated if left out.

        latency: Seconds from a request to its reply.

    Attributes:
        error: If set, the text of the error with which it answers all commands
            about locks.

        forbid: The commands, in capitals, that its access list does not allow.
            The commands of a script are not checked.

        uptime: For how many seconds it has been running: ten days at first, 0 after
            `restart`; can be set.

        replica_before: Whether it was a replica, and became a master within an hour or so.

        replid: Its replication id, which is new with each promotion.

        fed: The bytes that it has received as a replica.

        replicas: The number of replicas that are connected to it.

        clock_offset: By how many seconds its clock is ahead of those of other
            fake masters. It changes only the reported time; no key ends earlier.
    """

    secrets: tuple[str, ...] = ()

    def __init__(self, name: str = "", *, latency: float = 0.001) -> None:
        number = next(_numbers)
        super().__init__(f"{number:040x}")
        self.name: str = name or f"fake-{number}"
        self.latency = latency
        # A dict, because the order of a set changes from run to run.
        self._connections: dict[_FakeTransport, None] = {}
        # What is underway from and to the clients in each loop, which has a timer for each of them.
        # The loops of several threads, or of virtual time, have nothing to wait for in each other.
        self._inbox = defaultdict[asyncio.AbstractEventLoop, _Queue](deque)
        self._outbox = defaultdict[asyncio.AbstractEventLoop, _Queue](deque)
        self._arrived: deque[tuple[_FakeTransport, bytes]] = deque()
        """The requests that are to be served, when it does not hang."""
        self._held: list[tuple[_FakeTransport, bytes]] = []
        self._serves: _FakeTransport | None = None
        self._behind = bytearray()
        self._hung = False
        self._diallers: list[asyncio.Future[None]] = []
        """Those that wait for a connection to the hung master, each in its own loop."""
        self._alive = True
        self._restarts = 0

    def __str__(self) -> str:
        return self.name

    def __repr__(self) -> str:
        state = "dead" if not self._alive else "hung" if self._hung else "up"
        return f"<FakeMaster {self.name}, {state}, {len(self._keys)} keys>"

    # Faults for tests.

    def hang(self) -> None:
        """Accept requests and answer none, as a stopped process does."""
        self._hung = self._alive  # one that has ended can't be stopped

    @in_its_loop
    def resume(self) -> None:
        """Serve the requests that have arrived since `hang`, late but in order."""
        self._awake()
        for transport, data in self._held:
            self._say(transport, data)
        self._held.clear()
        self._serve_arrived()
        for key in self._pushes.remembered:
            self._notice(key)

    def _awake(self) -> None:
        self._hung = False
        while self._diallers:  # another thread may add to it
            dialler = self._diallers.pop(0)
            loop = dialler.get_loop()
            if loop is running():
                _end(dialler)
            else:
                _elsewhere(loop, _end, dialler)

    @in_its_loop
    def cut(self) -> None:
        """Reset all connections; requests underway are lost, new connections work."""
        for queue in list(self._inbox.values()):  # another thread may add one
            queue.clear()
        self._arrived.clear()
        for connection in list(self._connections):
            connection.lose(ConnectionResetError("connection reset by peer"))

    @in_its_loop
    def kill(self) -> None:
        """End the process: connections break, keys are lost, new connections are refused."""
        self._alive = False
        self._awake()
        self.cut()
        self._held.clear()
        self._forget_everything()

    @in_its_loop
    def restart(self, *, uptime: float = 0.0) -> None:
        """Start it again, empty, as a process that has been running for *uptime* seconds."""
        self.kill()
        self._restarts += 1
        self.run_id: str = f"{self._restarts:08x}" + self.run_id[8:]
        self.uptime = uptime
        # Only a disk would remember that it was a replica.
        self.replid: str = self.run_id
        self.replica_before = False
        self.fed = 0
        self._alive = True

    # Connections.

    async def dial(self) -> tuple[asyncio.Transport, object]:
        """
        Return a new connection to the master.

        Cancellation:
            No connection is made.
        """
        await asyncio.sleep(self.latency)
        while self._hung:
            resumed = asyncio.get_running_loop().create_future()
            # First added, then tested: `_awake`, in another thread, does both in the other order.
            self._diallers.append(resumed)
            if self._hung:
                await resumed
        transport = _FakeTransport(self)
        with self._alone:
            if not self._alive:
                raise ConnectionRefusedError("connection refused")
            self._go_on()
            self._loop = self._timed_by = transport.loop = asyncio.get_running_loop()
            self._connections[transport] = None
            self._outlive()
            self._serve_arrived()
        return transport, self

    def forget(self, transport: _FakeTransport) -> None:
        """Remove a connection that has ended; its requests underway are still executed."""
        with self._alone:
            self._connections.pop(transport, None)
            self._pushes.forget(transport.listener)

    def receive(self, transport: _FakeTransport, data: bytes) -> None:
        """Queue *data*, which arrives half a latency from now."""
        with self._alone:
            self._send(self._inbox, asyncio.get_running_loop(), transport, data, self._arrive)

    def _send(
        self,
        way: defaultdict[asyncio.AbstractEventLoop, _Queue],
        loop: asyncio.AbstractEventLoop,
        transport: _FakeTransport,
        data: bytes,
        arrive: Callable[[_Queue], None],
    ) -> None:
        # A queue keeps the order: asyncio's timers of equal deadlines fire in any order.
        queue = way[loop]
        at = loop.time() + self.latency / 2
        if queue:
            at = max(at, queue[-1][0])  # not before those sent when the latency was longer
        queue.append((at, transport, data))
        loop.call_at(at, arrive, queue)

    def _arrive(self, queue: _Queue) -> None:
        with self._alone:
            if len(self._inbox) > 1:
                self._outlive()
            if queue:  # else `cut` has dropped the request
                self._arrived.append(queue.popleft()[1:])
                self._serve_arrived()

    def _outlive(self) -> None:
        """Let what clients in closed loops have sent arrive: its timers are gone."""
        for loop in [loop for loop in list(self._inbox) if loop.is_closed()]:
            self._arrived += [sent[1:] for sent in self._inbox.pop(loop, ())]
            self._outbox.pop(loop, None)

    def _serve_arrived(self) -> None:
        # First added, then served: `resume`, in another thread, may come between the two.
        while self._arrived and not self._hung:
            self._serve(*self._arrived.popleft())

    def _serve(self, transport: _FakeTransport, data: bytes) -> None:
        replies = bytearray()
        self._serves = transport
        for command in transport.commands(data):
            replies += encode(self.execute(command, transport.listener))
            replies += self._behind
            self._behind.clear()
        self._serves = None
        self._say(transport, bytes(replies))

    def push(self, transport: _FakeTransport, push: Push) -> None:
        """Send a push over a connection, behind the reply to the command that caused it."""
        if transport is self._serves:
            self._behind += encode(push)
        elif self._hung:
            self._held.append((transport, encode(push)))
        else:
            self._say(transport, encode(push))

    def _notice(self, key: bytes) -> None:
        if not self._hung:  # else the end of the key is noticed on resuming
            super()._notice(key)

    def _say(self, transport: _FakeTransport, data: bytes) -> None:
        loop = transport.loop
        if loop is None or loop is not running():
            if loop is None or loop.is_closed():
                return  # nor is there anybody to hear it
            if loop.is_running():
                _elsewhere(loop, self._say, transport, data)
                return
        self._send(self._outbox, loop, transport, data, self._answer)

    @staticmethod
    def _answer(queue: _Queue) -> None:
        _, transport, data = queue.popleft()
        transport.deliver(data)


def _elsewhere(loop: asyncio.AbstractEventLoop, call: Callable[..., None], *args: object) -> None:
    """Call *call* in the loop of another thread, soon; never, if that is closed."""
    with contextlib.suppress(RuntimeError):
        loop.call_soon_threadsafe(call, *args)


def _end(waiting: asyncio.Future[None]) -> None:
    if not waiting.done():
        waiting.set_result(None)
