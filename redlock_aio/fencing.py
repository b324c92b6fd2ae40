"""
Fencing: the storage refuses the writes of a holder whose lock is over.

A lock made with ``fencing=True`` gives each lease a `Lease.fencing_token` that is
higher than the tokens of all earlier leases of that lock. The storage accepts a
write only if its token is not lower than the highest one seen so far, and stores
the token *in one step with the write*:

    token 1 ── is stopped ─────────────────── wakes up ── writes: refused
    token 2 ────────────── writes: 2 is stored

The same token is accepted again, because a holder may write often. Tokens can be
compared only if they are of the same resource: one fence, one lock. A fence refuses
*late* writes only; a holder that dies halfway leaves half of its writes, as without
a lock.

**Redis and Valkey**: `RedisFence`.

**SQL** needs no more than a column ``fence BIGINT NOT NULL DEFAULT 0``. For
PostgreSQL, and SQLite 3.24 or newer:

    UPDATE account SET balance = :balance, fence = :token
    WHERE id = :id AND fence <= :token

    INSERT INTO account (id, balance, fence) VALUES (:id, :balance, :token)
    ON CONFLICT (id) DO UPDATE SET balance = excluded.balance, fence = excluded.fence
    WHERE account.fence <= excluded.fence

Check the number of rows: 0 means that the token is stale (or for ``UPDATE``,
that there is no such row), and that nothing was written. For writes to several
rows or tables, begin the transaction with such a statement on the row that
represents the resource: other transactions can't pass it until you commit. Read
the data that you change under the lock too, or in the same statement. Deleting a
row deletes its token: mark the row as deleted instead.

**Object stores, other services**: use a conditional write, on a version that you
have read together with the token beside it.
"""

from collections.abc import Iterable, Sequence
from importlib import resources
from typing import Any

from redis.asyncio import Redis, RedisCluster
from redis.asyncio.client import Pipeline
from redis.commands.core import AsyncScript
from redis.exceptions import ResponseError

from redlock_aio.errors import ErrorCode, RedlockError

__all__ = ("FENCE_LUA", "RedisFence", "StaleTokenError")

Word = str | bytes | int | float
"""An argument of a Redis command."""

MOST_WORDS = 7_000
"""The most words of a command; Lua can pass on a few more."""


def _lua(name: str) -> str:
    return resources.files("redlock_aio").joinpath("lua", f"{name}.lua").read_text("utf-8")


FENCE_LUA = _lua("fence")
"""
The Lua that `RedisFence.run` puts before a script. Use it where `RedisFence` can't be
used: in other languages, or with a client that is not asynchronous. The last of ``KEYS``
is `RedisFence.key`, the last of ``ARGV`` the token; the reply to a stale token is the
error ``STALETOKEN``, followed by the highest token.
"""

_WRITE = FENCE_LUA + _lua("write")


class StaleTokenError(RedlockError):
    """
    A write was refused, because a later holder has written: nothing was written.

    Attributes:
        name: The name of the fence.

        token: The fencing token of the refused write.

        highest: The highest token that was seen; ``None`` if that is not known.
    """

    def __init__(self, name: str, token: int, highest: int | None = None) -> None:
        self.name: str = name
        self.token: int = token
        self.highest: int | None = highest
        Exception.__init__(self, name, token, highest)

    def _code(self) -> ErrorCode:
        return "stale-token"

    def _text(self) -> str:
        seen = "a higher one" if self.highest is None else self.highest
        return f"{self.name!r} not written: token {self.token} is stale, {seen} has been seen"


class RedisFence:
    """
    Writes to a Redis or Valkey server that are refused if they come too late.

    All writes through fences of one name are guarded, to one key or many. Writes that
    bypass the fence are not guarded. The highest token is stored in a separate key,
    `key`, so it stays when the data expires or is deleted. That key has no ttl. If there
    are ever new names, end each write with ``("PEXPIRE", fence.key, ms)``, for longer
    than a holder can be stopped. A server with limited memory must not evict the key:
    set its ``maxmemory-policy`` to ``noeviction``. In a crash or a failover a server
    loses token and data together: until the next write it accepts the same writes as
    before the lost ones.

    Args:
        client: The client of the server with the data; it is not closed here. The server
            may be one of the lock's masters, but there the resource's name is the key of
            the lock.

        name: The name of the fence, best that of the locked resource. Its part in braces,
            or else the whole name, is the hash tag of `key`. In a Cluster all keys of one
            write must have the same hash tag: the key ``invoice:42`` itself,
            ``lines:{invoice:42}``.
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
        """The key of the highest token: ``redlock_aio:seen:{name}``."""
        _, brace, rest = self._name.partition("{")
        tag, closed, _ = rest.partition("}")
        name = f"={self._name}" if brace and closed and tag else f"{{{self._name}}}"
        return f"redlock_aio:seen:{name}"

    async def write(self, *commands: Sequence[Word], token: int) -> list[Any]:
        """
        Run *commands* if no higher token has been seen, all in one step.

        If a command fails, the later ones are not run and the earlier ones stay, because
        Redis has no rollback; the token is stored anyway. Without *commands*, only
        the token is stored: from then on no earlier holder can write any more.

        Args:
            commands: Each as its words, such as ``("SET", "invoice:42", "sent")``.

            token: The `Lease.fencing_token`.

        Returns:
            The replies, as Redis returns them.

        Raises:
            StaleTokenError: A holder with a higher token has written. None of
                *commands* was run.

            RedlockError: `key` holds no token. Nothing was written.

            redis.RedisError: As for any command.

        Cancellation:
            The write may have happened or not, but not in part. Read the data.
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
        Run a Lua *script* if no higher token has been seen.

        Use it for writes that depend on the present data. Pass names and values as *keys*
        and *args*, so that the script's text is always the same.

        Args:
            script: It sees *keys* as the first of ``KEYS`` and *args* as the first of
                ``ARGV``; one more of each follows, for the fence.

            token: The `Lease.fencing_token`.

        Returns:
            The script's reply.

        Raises:
            StaleTokenError: A holder with a higher token has written. The script
                was not run.

            RedlockError: `key` holds no token. The script was not run.

            redis.RedisError: As for any script.

        Cancellation:
            The write may have happened or not, but not in part. Read the data.
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
                text = f"{self.key!r} holds no token; nothing was written"
                raise RedlockError(text, "bad-token") from None
            raise
