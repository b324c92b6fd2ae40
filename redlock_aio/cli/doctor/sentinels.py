"""Asks the Sentinels of a master, each for a limited time, and all at once."""

import asyncio
import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

from redis.asyncio.connection import ConnectionPool
from redis.exceptions import (
    AuthenticationError,
    InvalidResponse,
    RedisError,
    ResponseError,
)

from redlock_aio import requirements
from redlock_aio._transport.address import why_not_connected
from redlock_aio.cli.doctor import tls
from redlock_aio.requirements import MasterUrl, SentinelAnswers


async def asked(master: MasterUrl, patience: float) -> tuple[SentinelAnswers, str]:
    """
    Return what the Sentinels of a master agree on, and what is wrong with the scheme of its URL.

    Args:
        patience: The most seconds for each Sentinel; the scheme may take half of that again.

    Cancellation:
        The connections are closed.
    """
    names = [name_of(url) for url in master.sentinels]
    replies = await asyncio.gather(
        *(
            ask_one(url, requirements.sentinel_questions(master.service), patience)
            for url in master.sentinels
        )
    )
    said = requirements.sentinel_answers(
        {name: reply for name, (reply, _) in zip(names, replies, strict=True)}
    )
    silent = [
        url
        for url, (_, has_answered) in zip(master.sentinels, replies, strict=True)
        if not has_answered
    ]
    if said.host or not silent:
        return said, ""
    # One port tells enough: the scheme is the same for all.
    wrong = await tls.mismatch(silent[0], patience / 2)
    return said, f"Sentinel {name_of(silent[0])}: {wrong}" if wrong else ""


def name_of(url: str) -> str:
    """Return the address in the URL of a Sentinel."""
    settings = ConnectionPool.from_url(url).connection_kwargs
    host = str(settings["host"])
    return f"[{host}]:{settings['port']}" if ":" in host else f"{host}:{settings['port']}"


def pool_of(url: str) -> ConnectionPool:
    """Return a pool of redis-py whose connections log in as those of programs do."""
    pool = ConnectionPool.from_url(url)
    settings = pool.connection_kwargs
    settings.update(protocol=2, decode_responses=False)  # whatever the URL wants
    if settings.get("password"):
        # As HELLO does it: AUTH with a user accepts any password for one that needs none.
        settings["username"] = settings.get("username") or "default"
    return pool


@contextlib.contextmanager
def readable_replies() -> Iterator[None]:
    """
    Turn what redis-py raises besides in the body, for a reply that it can't read, into one kind.

    Raises:
        InvalidResponse: Such a reply has come, for example a map with a list as a key.
    """
    try:
        yield
    except (OSError, RedisError):
        raise
    except Exception as error:
        raise InvalidResponse(f"redis-py can't read its reply: {error}") from error


async def ask_one(
    url: str, questions: Sequence[Sequence[str]], patience: float
) -> tuple[Sequence[object] | str, bool]:
    """
    Return the replies of a server to *questions*, or why there are none, and if it has answered.

    Cancellation:
        The connection is closed.
    """
    connection: Any = pool_of(url).make_connection()
    try:
        async with asyncio.timeout(patience):
            with readable_replies():
                await connection.connect()
            return [await _reply(connection, question) for question in questions], True
    except (AuthenticationError, ResponseError) as error:
        return str(error), True
    except TimeoutError:
        return "no answer", False
    except (OSError, RedisError) as error:
        return why_not_connected(error, (), None).text, False
    finally:
        with contextlib.suppress(OSError, RedisError):
            await connection.disconnect(nowait=True)


async def _reply(connection: Any, words: Sequence[str]) -> object:
    await connection.send_command(*words)
    try:
        with readable_replies():
            reply: object = await connection.read_response()
    except ResponseError as error:
        return error
    return reply
