"""A TCP proxy in front of a master, which fails as only a network can."""

import asyncio
import contextlib
import socket
import struct
from collections import deque
from collections.abc import AsyncIterator
from typing import Self
from urllib.parse import urlsplit

_NO_LINGER = struct.pack("ii", 1, 0)


class Proxy:
    """
    Forwards bytes between its clients and the server at *url*.

    Attributes:
        requests: Set while requests are forwarded.

        replies: Set while replies are forwarded.

        dropping: Whether replies are thrown away.

        piece: The number of bytes that are forwarded at a time.

        delay: The delay in each direction in seconds, as of a distant server.

        hides: Words that neither side sees, as of a service that lacks some commands and
            leaves out fields of INFO: the last letter of each becomes an X.
    """

    def __init__(self, url: str) -> None:
        where = urlsplit(url)
        self._host, self._port = where.hostname or "", where.port or 0
        self.requests = asyncio.Event()
        self.replies = asyncio.Event()
        self.requests.set()
        self.replies.set()
        self.dropping = False
        self.dropped = 0
        self.piece = 1 << 16
        self.delay = 0.0
        self.hides: tuple[bytes, ...] = ()
        self.port = 0
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None

    @property
    def url(self) -> str:
        """The URL of the proxy, for `redlock_aio.Redlock`."""
        return f"redis://127.0.0.1:{self.port}"

    @property
    def connections(self) -> int:
        """The number of connected clients."""
        return len(self._tasks)

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._server is not None:
            self._server.close()
        self.reset()
        while self._tasks:
            await asyncio.wait(list(self._tasks))

    def stall(self) -> None:
        """Forward nothing in either direction; connections stay open."""
        self.requests.clear()
        self.replies.clear()

    def resume(self) -> None:
        """Forward everything again, including what arrived meanwhile."""
        self.dropping = False
        self.requests.set()
        self.replies.set()

    def cut(self) -> None:
        """Close all connections gracefully, as a load balancer does that is stopped."""
        for writer in list(self._writers):
            writer.close()

    def reset(self) -> None:
        """Reset all connections; bytes that are underway are lost."""
        for writer in list(self._writers):
            raw = writer.get_extra_info("socket")
            with contextlib.suppress(OSError):
                raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _NO_LINGER)
            writer.transport.abort()
        for task in list(self._tasks):
            task.cancel()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self._writers.add(writer)
        try:
            # An error that ends a forwarded connection is no error of the proxy.
            with contextlib.suppress(OSError, asyncio.CancelledError):
                await self._join(reader, writer)
        finally:
            writer.transport.abort()
            self._writers.discard(writer)
            self._tasks.discard(task)

    async def _join(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        up_reader, up_writer = await asyncio.open_connection(self._host, self._port)
        self._writers.add(up_writer)
        try:
            sides = [
                asyncio.create_task(self._forward(reader, up_writer, self.requests)),
                asyncio.create_task(self._forward(up_reader, writer, self.replies)),
            ]
            try:
                await asyncio.wait(sides, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for side in sides:
                    side.cancel()
                await asyncio.gather(*sides, return_exceptions=True)
        finally:
            self._writers.discard(up_writer)
            up_writer.transport.abort()

    async def _forward(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, flowing: asyncio.Event
    ) -> None:
        late: deque[bytes] = deque()  # timers of equal deadlines fire in any order
        loop = asyncio.get_running_loop()
        while data := await reader.read(65_536):
            await flowing.wait()
            for word in self.hides:
                data = data.replace(word, word[:-1] + b"X")
            if self.delay:
                late.append(data)
                loop.call_later(self.delay, lambda: writer.write(late.popleft()))
                continue
            if self.dropping and flowing is self.replies:
                self.dropped += len(data)
                continue
            for start in range(0, len(data), self.piece):
                writer.write(data[start : start + self.piece])
                await writer.drain()
                await asyncio.sleep(0)


@contextlib.asynccontextmanager
async def proxied(urls: list[str]) -> AsyncIterator[list[Proxy]]:
    """Run a proxy in front of each server."""
    async with contextlib.AsyncExitStack() as stack:
        yield [await stack.enter_async_context(Proxy(url)) for url in urls]
