"""
Masters that are far away: TCP proxies that hold back all bytes for a fixed time.

It has no claims of its own. The proxies run in a process of their own, so that the client
does not pay for them. What arrives at one side leaves at the other one half of the round
trip later, in the same order. Its loop uses `select`, which waits for microseconds: `epoll`
rounds each wait up to a whole millisecond. A connection is accepted at once; only what is
sent over it is delayed.
"""

import asyncio
import contextlib
import json
import selectors
import subprocess
import sys
from collections import deque
from collections.abc import Iterator, Sequence
from functools import partial
from typing import IO, cast
from urllib.parse import urlsplit


class Side(asyncio.Protocol):
    """
    One end of a connection through a proxy: what it receives, its peer sends later.

    Args:
        delay: Seconds.

    Attributes:
        peer: The other end; ``None`` until it is connected.
    """

    def __init__(self, delay: float) -> None:
        self.delay = delay
        self.peer: Side | None = None
        self._late: deque[tuple[float, bytes]] = deque()
        self._loop = asyncio.get_running_loop()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        self._hold(data)

    def connection_lost(self, _error: Exception | None) -> None:
        self._hold(b"")  # the end of the connection is as late as its bytes

    def _hold(self, data: bytes) -> None:
        due = self._loop.time() + self.delay
        self._late.append((due, data))
        # One timer for all that is late: timers of equal deadlines fire in any order.
        if len(self._late) == 1:
            self._loop.call_at(due, self._forward)

    def _forward(self) -> None:
        if self.peer is None:
            return
        now = self._loop.time()
        while self._late and self._late[0][0] <= now:
            if data := self._late.popleft()[1]:
                self.peer.transport.write(data)
            else:
                self.peer.transport.close()
        if self._late:
            self._loop.call_at(self._late[0][0], self._forward)


class Near(Side):
    """The end at the client; it connects to the master at *url*."""

    def __init__(self, url: str, delay: float) -> None:
        super().__init__(delay)
        where = urlsplit(url)
        self._host, self._port = where.hostname or "", where.port or 6379

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self.transport.pause_reading()  # until there is a peer that can send it
        self._connecting = self._loop.create_task(self._connect())

    async def _connect(self) -> None:
        far = Side(self.delay)
        far.peer = self
        await self._loop.create_connection(lambda: far, self._host, self._port)
        self.peer = far
        self.transport.resume_reading()


async def serve(masters: Sequence[tuple[str, float]]) -> None:
    """Print the port of a proxy for each URL and round trip (ms), and serve until stdin ends."""
    loop = asyncio.get_running_loop()

    ports = []
    for url, trip in masters:
        server = await loop.create_server(partial(Near, url, trip / 2000), "127.0.0.1", 0)
        ports.append(server.sockets[0].getsockname()[1])
    print(json.dumps(ports), flush=True)
    # A thread of its own: it waits for the end of stdin, and the loop only for bytes.
    await asyncio.to_thread(sys.stdin.read)


@contextlib.contextmanager
def at_distance(urls: Sequence[str], trips: Sequence[float]) -> Iterator[list[str]]:
    """Run a proxy for each of the *urls*, with these round *trips* in ms; yield their URLs."""
    pairs = json.dumps(list(zip(urls, trips, strict=True)))
    with subprocess.Popen(  # noqa: S603 - this very file
        [sys.executable, __file__, pairs], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        stdin, stdout = cast("IO[str]", process.stdin), cast("IO[str]", process.stdout)
        ports: list[int] = json.loads(stdout.readline())
        try:
            yield [f"redis://127.0.0.1:{port}" for port in ports]
        finally:
            stdin.close()


def main() -> None:
    with asyncio.Runner(
        loop_factory=lambda: asyncio.SelectorEventLoop(selectors.SelectSelector())
    ) as runner:
        runner.run(serve([(url, trip) for url, trip in json.loads(sys.argv[1])]))


if __name__ == "__main__":
    main()
