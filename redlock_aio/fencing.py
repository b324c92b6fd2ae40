"""
What the storage needs to refuse a holder whose lock is over.

A lock made with ``fencing=True`` gives each lease a `Lease.fencing_token` that is
higher than that of all who had the lock before. Whoever stores the data takes a
write only if its token is not lower than the highest one seen so far, and
remembers it, *in one step with the write*:

    one with token 1 ── is stopped ───────────────────────── wakes up ── writes: refused
    another with token 2 ─────────── writes: 2 is remembered

The same token is taken again, because a holder may write often. Tokens can be
compared only if they are of the same resource: one fence, one lock. What is
refused this way is a *late* write; a holder that dies halfway leaves half of its
writes, as without a lock.

**Redis and Valkey**: `RedisFence`.

**SQL** needs no more than a column ``fence BIGINT NOT NULL DEFAULT 0``. For
PostgreSQL, and SQLite 3.24 or newer::

    UPDATE account SET balance = :balance, fence = :token
    WHERE id = :id AND fence <= :token

    INSERT INTO account (id, balance, fence) VALUES (:id, :balance, :token)
    ON CONFLICT (id) DO UPDATE SET balance = excluded.balance, fence = excluded.fence
    WHERE account.fence <= excluded.fence

Look at the number of rows: 0 says that the token is stale (or for ``UPDATE``,
that there is no such row), and then nothing was written. For writes to several
rows or tables let the first statement of the transaction be such a one, of the
row that stands for the resource: others can't pass it until you commit. Read
what you change under the lock too, or in the same statement. A row that is
deleted forgets its token: mark it as deleted instead.

**Object stores, other services**: the same with a conditional write, on a version
that you have read together with the token beside it.
"""

from collections.abc import Iterable, Sequence
from importlib import resources
from typing import Any

from redis.asyncio import Redis, RedisCluster
from redis.asyncio.client import Pipeline
from redis.commands.core import AsyncScript
from redis.exceptions import ResponseError

from redlock_aio.errors import RedlockError

__all__ = ("FENCE_LUA", "RedisFence", "StaleTokenError")

Word = str | bytes | int | float
"""What Redis takes as an argument."""

MOST_WORDS = 7_000
"""How many words a command may have; Lua can pass on a few more."""


def _lua(name: str) -> str:
    return resources.files("redlock_aio").joinpath("lua", f"{name}.lua").read_text("utf-8")


FENCE_LUA = _lua("fence")
"""
What `RedisFence.run` puts before a script, for where that can't be used: clients
in other languages, or that do not wait. The last of ``KEYS`` is `RedisFence.key`,
the last of ``ARGV`` the token; a stale one is answered with the error
``STALETOKEN``, followed by the highest token.
"""

_WRITE = FENCE_LUA + _lua("write")


class StaleTokenError(RedlockError):
    """
    A write was refused, because somebody has had the lock since: nothing was written.

    Attributes:
        name: What is guarded.

        token: The fencing token of whoever wanted to write.

        highest: The highest one that was seen; ``None`` if that is not known.
    """

    def __init__(self, name: str, token: int, highest: int | None = None) -> None:
        self.name = name
        self.token = token
        self.highest = highest
        super().__init__(name, token, highest)

    def __str__(self) -> str:
        seen = "a higher one" if self.highest is None else self.highest
        return f"{self.name!r} not written: token {self.token} is stale, {seen} has been seen"


class RedisFence:
    """
    Writes to a Redis or Valkey server that are refused if they come too late.

    What is guarded is whatever is written through here under one name: one key or
    many. What goes past it is not guarded. The highest token lives in a key of its
    own, `key`, so that it stays when the data expires or is deleted. It has no ttl;
    if names come without end, let each write end with ``("PEXPIRE", fence.key,
    ms)``, for longer than a holder can be stopped. A server with limited memory
    must not evict it: let its ``maxmemory-policy`` be ``noeviction``. What a server
    loses in a crash or a failover is token and data together: until the next write
    it takes again what it would have taken before the last one.

    Args:
        client: Where the data is; not closed here. It may be one of the lock's
            masters, but there the resource's name is the key of the lock.

        name: What is guarded, best by the name of the resource that is locked; if
            that has a ``{part}`` in braces, or else as a whole, it is the hash tag
            of `key`. In a Cluster all that one write touches must have the
            same: the key ``invoice:42`` itself, ``lines:{invoice:42}``.
    """

    __slots__ = ("_client", "_name", "_write")

    def __init__(self, client: Redis | RedisCluster, name: str) -> None:
        if isinstance(client, Pipeline) or not isinstance(client, Redis | RedisCluster):
            kind = f"{type(client).__module__}.{type(client).__name__}"
            raise TypeError(f"client must be a redis.asyncio.Redis or RedisCluster, not a {kind}")
        if not isinstance(name, str):
            raise TypeError(f"name must be a str, not a {type(name).__name__}")
        if not name:
            raise ValueError("name must not be empty")
        self._client = client
        self._name = name
        self._write = client.register_script(_WRITE)

    def __repr__(self) -> str:
        return f"<RedisFence {self._name!r}>"

    @property
    def key(self) -> str:
        """Where the highest token is: ``redlock_aio:seen:{name}``."""
        _, brace, rest = self._name.partition("{")
        tag, closed, _ = rest.partition("}")
        name = f"={self._name}" if brace and closed and tag else f"{{{self._name}}}"
        return f"redlock_aio:seen:{name}"

    async def write(self, *commands: Sequence[Word], token: int) -> list[Any]:
        """
        Run *commands* if no higher token has been seen, all in one step.

        One that fails ends the rest and leaves what is done, as Redis knows no way
        back; the token is remembered all the same. Without *commands*, only the
        token is: from then on nobody before can write any more.

        Args:
            commands: Each as its words, such as ``("SET", "invoice:42", "sent")``.

            token: The `Lease.fencing_token`.

        Returns:
            The replies, as Redis has them.

        Raises:
            StaleTokenError: Somebody with a higher token has written. Nothing of
                *commands* was done.

            RedlockError: `key` holds no token. Nothing was done.

            redis.RedisError: As for any command.

        Cancellation:
            It may have happened or not, but not in part. Ask the data.
        """
        words: list[Word] = []
        for command in commands:
            if isinstance(command, str | bytes) or not isinstance(command, Sequence):
                kind = type(command).__name__
                raise TypeError(f"a command must be a list or tuple of its words, not a {kind}")
            if not 1 <= len(command) <= MOST_WORDS:
                number = len(command)
                raise ValueError(f"a command must have 1 to {MOST_WORDS} words, not {number}")
            words += (len(command), *command)
        replies: list[Any] = await self._guarded(self._write, (), words, token)
        return replies

    async def run(
        self,
        script: str,
        keys: Iterable[str | bytes] = (),
        args: Iterable[Word] = (),
        *,
        token: int,
    ) -> Any:
        """
        Run a Lua *script* of yours if no higher token has been seen.

        For writes that depend on what is there. Names and values belong into *keys*
        and *args*, so that the script's text is always the same.

        Args:
            script: It sees *keys* as the first of ``KEYS`` and *args* as the first of
                ``ARGV``; behind them are one of ours each.

            token: The `Lease.fencing_token`.

        Returns:
            What the script returns.

        Raises:
            StaleTokenError: Somebody with a higher token has written. The script
                has not begun.

            RedlockError: `key` holds no token. The script has not begun.

            redis.RedisError: As for any script.

        Cancellation:
            It may have happened or not, but not in part. Ask the data.
        """
        if not isinstance(script, str):
            raise TypeError(f"script must be a str, not a {type(script).__name__}")
        return await self._guarded(
            self._client.register_script(FENCE_LUA + script), keys, args, token
        )

    async def _guarded(
        self, script: AsyncScript, keys: Iterable[str | bytes], args: Iterable[Word], token: int
    ) -> Any:
        if type(token) is not int:
            raise TypeError(f"token must be an int, not a {type(token).__name__}")
        if not 1 <= token < 2**53:
            raise ValueError(f"token must be from 1 to 2**53 - 1, not {token}")
        try:
            return await script([*keys, self.key], [*args, token])
        except ResponseError as error:
            code, _, rest = str(error).partition(" ")
            if code == "STALETOKEN":
                raise StaleTokenError(self._name, token, int(rest)) from None
            if code == "BADTOKEN":
                raise RedlockError(f"{self.key!r} holds no token; nothing was written") from None
            raise
