"""
A master in memory, which speaks the masters' protocol.

It is reached through the same connection as a real one, so that all of the
library runs in a test but the dialling. What it answers is checked against real
servers by this project's tests.
"""

import asyncio
import itertools
from collections import deque
from collections.abc import Callable

import hiredis

from redlock_aio._rules.protocol import EXTEND, RELEASE, SCRIPTS

_numbers = itertools.count()
_NOT_ENOUGH = object()


class _Error(Exception):
    """Answered as an error."""


class _FakeTransport(asyncio.Transport):
    """One connection to a fake master."""

    def __init__(self, master: "FakeMaster") -> None:
        super().__init__()
        self._master = master
        self._protocol: asyncio.Protocol | None = None
        self._closing = False
        self.reader = hiredis.Reader(notEnoughData=_NOT_ENOUGH)

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

    def deliver(self, data: bytes) -> None:
        if not self._closing and self._protocol is not None:
            self._protocol.data_received(data)

    def abort(self) -> None:
        self.close()

    def close(self) -> None:
        self.lose(None)

    def lose(self, error: Exception | None) -> None:
        if not self._closing:
            self._closing = True
            self._master.forget(self)
            if self._protocol is not None:
                asyncio.get_running_loop().call_soon(self._protocol.connection_lost, error)


class FakeMaster:
    """
    One master in memory, with a master's ways of failing.

    Requests are served in order, half of *latency* after they were sent, and
    answered as much later. Time is the running event loop's.

    Args:
        name: How it is called in votes; made up if left out.

        latency: Seconds from a request to its reply.

    Attributes:
        error: If set, the text of the error with which it answers everything
            that a lock is made of.
    """

    secrets = ()

    def __init__(self, name: str = "", *, latency: float = 0.001) -> None:
        number = next(_numbers)
        self.name = name or f"fake-{number}"
        self.latency = latency
        self.error = ""
        self.run_id = f"{number:040x}"
        self.role = "master"
        self.commands: list[list[bytes]] = []
        self._keys: dict[bytes, tuple[bytes, float]] = {}
        self._scripts: set[bytes] = set()
        # A dict, because the order of a set changes from run to run.
        self._connections: dict[_FakeTransport, None] = {}
        self._inbox: deque[tuple[_FakeTransport, bytes]] = deque()
        self._outbox: deque[tuple[_FakeTransport, bytes]] = deque()
        self._due = 0
        self._hung = False
        self._alive = True
        self._restarts = 0

    def __str__(self) -> str:
        return self.name

    def __repr__(self) -> str:
        state = "dead" if not self._alive else "hung" if self._hung else "up"
        return f"<FakeMaster {self.name}, {state}, {len(self._keys)} keys>"

    # What a test does to it.

    def hang(self) -> None:
        """Take requests and answer none, as a stopped process does."""
        self._hung = True

    def resume(self) -> None:
        """Serve what has come in since `hang`, late but in order."""
        self._hung = False
        for _ in range(self._due):
            self._serve_next()
        self._due = 0

    def cut(self) -> None:
        """Reset all connections; what is underway is lost, new connections work."""
        self._inbox.clear()
        self._due = 0
        for connection in list(self._connections):
            connection.lose(ConnectionResetError("connection reset by peer"))

    def kill(self) -> None:
        """End the process: connections break, keys are forgotten, nobody gets in."""
        self._alive = False
        self._hung = False
        self.cut()
        self._keys.clear()
        self._scripts.clear()

    def restart(self) -> None:
        """Let it come back, empty."""
        self.kill()
        self._restarts += 1
        self.run_id = f"{self._restarts:08x}" + self.run_id[8:]
        self._alive = True

    def set(self, key: str, value: str, ttl: int | None = None) -> None:
        """Set a key as another client would, to live *ttl* ms."""
        self._keys[key.encode()] = (value.encode(), self._expiry(ttl))

    def delete(self, key: str) -> None:
        """Delete a key as another client would."""
        self._keys.pop(key.encode(), None)

    @property
    def keys(self) -> dict[str, str]:
        """The keys that have not expired, with their values."""
        now = asyncio.get_running_loop().time()
        return {k.decode(): v.decode() for k, (v, until) in self._keys.items() if now < until}

    def pttl(self, key: str) -> int:
        """Return the ms that *key* has left, -1 if it does not end, -2 if there is none."""
        return self._pttl(key.encode())

    # How it is reached.

    async def dial(self) -> tuple[asyncio.Transport, object]:
        """
        Return a new connection to it.

        Cancellation:
            There is none.
        """
        await asyncio.sleep(self.latency)
        while self._hung:  # noqa: ASYNC110 - an event would belong to one loop
            await asyncio.sleep(0.05)
        if not self._alive:
            raise ConnectionRefusedError("connection refused")
        transport = _FakeTransport(self)
        self._connections[transport] = None
        return transport, self

    def forget(self, transport: _FakeTransport) -> None:
        """Hear that a connection has ended; what it has sent is executed all the same."""
        self._connections.pop(transport, None)

    def receive(self, transport: _FakeTransport, data: bytes) -> None:
        """Take what arrives half a latency from now."""
        # Queues of our own: asyncio's timers of equal deadlines fire in any order.
        self._inbox.append((transport, data))
        asyncio.get_running_loop().call_later(self.latency / 2, self._arrive)

    def _arrive(self) -> None:
        if self._hung:
            self._due += 1
        else:
            self._serve_next()

    def _serve_next(self) -> None:
        if not self._inbox:
            return  # a cut has taken it
        transport, data = self._inbox.popleft()
        transport.reader.feed(data)
        said = bytearray()
        while (command := transport.reader.gets()) is not _NOT_ENOUGH:
            said += _encode(self.execute(command))
        self._outbox.append((transport, bytes(said)))
        asyncio.get_running_loop().call_later(self.latency / 2, self._answer_next)

    def _answer_next(self) -> None:
        transport, data = self._outbox.popleft()
        transport.deliver(data)

    # What it does.

    def execute(self, command: list[bytes]) -> object:
        """Return the answer to *command*: bytes, an int, ``None``, ``True`` for OK, or an error."""
        self.commands.append(command)
        name = command[0].decode().lower()
        handler: Callable[..., object] | None = getattr(self, f"_do_{name}", None)
        if handler is None:
            return _Error(f"ERR unknown command '{name}'")
        if self.error and name in ("set", "evalsha"):
            return _Error(self.error)
        try:
            return handler(*command[1:])
        except _Error as error:
            return error

    def _expiry(self, ttl: int | None) -> float:
        if ttl is None:
            return float("inf")
        return asyncio.get_running_loop().time() + ttl / 1000

    def _get(self, key: bytes) -> bytes | None:
        value, until = self._keys.get(key, (None, 0.0))
        if value is not None and asyncio.get_running_loop().time() >= until:
            del self._keys[key]
            return None
        return value

    def _pttl(self, key: bytes) -> int:
        if self._get(key) is None:
            return -2
        until = self._keys[key][1]
        if until == float("inf"):
            return -1
        return round((until - asyncio.get_running_loop().time()) * 1000)

    def _do_ping(self) -> object:
        return b"PONG"

    def _do_info(self) -> object:
        said = {"redis_version": "7.0.0", "run_id": self.run_id, "role": self.role}
        return "".join(f"{key}:{value}\r\n" for key, value in said.items()).encode()

    def _do_get(self, key: bytes) -> object:
        return self._get(key)

    def _do_pttl(self, key: bytes) -> object:
        return self._pttl(key)

    def _do_script(self, verb: bytes, text: bytes = b"") -> object:
        if verb.lower() == b"flush":
            self._scripts.clear()
            return True
        script = next(script for script in SCRIPTS if script.text == text)
        self._scripts.add(script.sha)
        return script.sha

    def _do_set(self, key: bytes, value: bytes, nx: bytes, px: bytes, ttl: bytes) -> object:
        if (nx, px) != (b"NX", b"PX"):
            return _Error("ERR syntax error")
        if self._get(key) is not None:
            return None
        self._keys[key] = (value, self._expiry(int(ttl)))
        return True

    def _do_evalsha(self, sha: bytes, keys: bytes, key: bytes, *arguments: bytes) -> object:
        if keys != b"1":
            return _Error("ERR wrong number of keys")
        if sha not in self._scripts:
            return _Error("NOSCRIPT No matching script.")
        mine = self._get(key) == arguments[0]
        if sha == RELEASE.sha and mine:
            del self._keys[key]
        elif sha == EXTEND.sha and mine:
            self._keys[key] = (arguments[0], self._expiry(int(arguments[1])))
        return True if mine else 0


def _encode(reply: object) -> bytes:
    if reply is True:
        return b"+OK\r\n"
    if reply is None:
        return b"_\r\n"
    if isinstance(reply, int):
        return b":%d\r\n" % reply
    if isinstance(reply, bytes):
        return b"$%d\r\n%b\r\n" % (len(reply), reply)
    return b"-%b\r\n" % str(reply).encode()
