"""Servers that exist in tests only: too old, broken, or replying with nonsense."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable

import hiredis

Answer = Callable[[list[bytes]], bytes]

HELLO = b"%1\r\n$5\r\nproto\r\n:3\r\n"


def bulk(text: bytes) -> bytes:
    """Return *text* as a reply."""
    return b"$%d\r\n%b\r\n" % (len(text), text)


def old_redis(command: list[bytes]) -> bytes:
    """
    Reply as Redis 5 does, which knows no HELLO and repeats unknown commands.

    As in its source, the arguments are printed until there are 128 characters.
    """
    if command[0].upper() == b"PING":
        return b"+PONG\r\n"
    printed = b""
    for argument in command[1:]:
        if len(printed) < 128:
            printed += b"`%b`, " % argument[: 128 - len(printed)]
    error = b"-ERR unknown command `%b`, with args beginning with: %b" % (command[0], printed)
    return error.replace(b"\r", b" ").replace(b"\n", b" ") + b"\r\n"


def healthy(run_id: bytes = b"f" * 40) -> Answer:
    """Return a function that replies as a server does that grants everything and stores nothing."""

    def answer(command: list[bytes]) -> bytes:
        replies = {
            b"HELLO": HELLO,
            b"INFO": bulk(b"redis_version:7.0.0\r\nrole:master\r\nrun_id:%b\r\n" % run_id),
            b"PING": b"+PONG\r\n",
            b"SCRIPT": bulk(b"0" * 40),
            b"EVALSHA": b"+OK\r\n",
        }
        return replies.get(command[0].upper(), b"+OK\r\n")

    return answer


@contextlib.asynccontextmanager
async def speaker(answer: Answer) -> AsyncIterator[str]:
    """Run a server that replies to each command with *answer*; yield its URL without a scheme."""
    writers = set()
    closed = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.add(writer)
        commands = hiredis.Reader()
        # A client may also try whether this port uses TLS.
        with contextlib.suppress(OSError, hiredis.ProtocolError):
            while data := await reader.read(65_536):
                commands.feed(data)
                while command := commands.gets():
                    writer.write(answer(command))
        writer.close()
        # Clients are expected to reset connections here.
        with contextlib.suppress(OSError):
            await writer.wait_closed()
        writers.discard(writer)
        if not writers:
            closed.set()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        server.close()
        for writer in list(writers):
            writer.transport.abort()
        if writers:
            closed.clear()
            await closed.wait()
