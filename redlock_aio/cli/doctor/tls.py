"""
Whether only the URL or only the port uses TLS: the one fault that looks like a server that hangs.

A server without TLS waits for the end of a line, and so never answers the first message of
TLS. One with TLS ends a connection that begins with another message. So the other protocol is
tried as soon as a connection fails, or takes long.
"""

import asyncio
import contextlib
import ssl

from redis.asyncio.connection import ConnectionPool, SSLConnection

from redlock_aio.requirements import parse_url


async def mismatch(url: str, patience: float) -> str:
    """
    Return what is wrong with the scheme of *url*; empty if nothing is, or it can't be told.

    Args:
        url: The URL of a server, for redis-py.

        patience: The most seconds that it takes.

    Cancellation:
        The connection is closed.
    """
    pool = ConnectionPool.from_url(parse_url(url).server)
    settings, uses_tls = pool.connection_kwargs, issubclass(pool.connection_class, SSLConnection)
    if "path" in settings:
        return ""
    host, port = str(settings.get("host", "localhost")), int(settings.get("port", 6379))
    try:
        async with asyncio.timeout(patience):
            if uses_tls and await _speaks_without(host, port):
                return "the URL wants TLS, and the port answers without it"
            if not uses_tls and await _speaks_tls(host, port):
                return "the URL is without TLS, and the port speaks TLS"
    except (OSError, TimeoutError):
        pass  # that it can't be reached is another finding
    return ""


async def _speaks_without(host: str, port: int) -> bool:
    reader, writer = await asyncio.open_connection(host, port)
    try:
        writer.write(b"PING\r\n")
        return (await reader.read(1)) in {b"+", b"-"}  # a reply, or an error such as NOAUTH
    finally:
        await _end(writer)


async def _speaks_tls(host: str, port: int) -> bool:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE  # nothing is sent over this connection
    try:
        _, writer = await asyncio.open_connection(host, port, ssl=context)
    except ssl.SSLError as error:
        return "ALERT" in str(error).upper()  # it wants a certificate, or another version of TLS
    await _end(writer)
    return True


async def _end(writer: asyncio.StreamWriter) -> None:
    """End a connection and await its end: asyncio may log an error that is not awaited."""
    with contextlib.suppress(OSError):
        writer.transport.abort()
        await writer.wait_closed()
