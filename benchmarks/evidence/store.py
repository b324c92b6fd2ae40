"""
What the locks protect: registers behind a fence, and counters without one, on one Redis.

The fence is a script of its own, not that of redlock_aio, which is one of the contestants.
"""

from typing import Self

import redis.asyncio

_WRITE = """
local highest = redis.call('HGET', KEYS[1], 'token')
if highest and tonumber(highest) > tonumber(ARGV[1]) then return 0 end
redis.call('HSET', KEYS[1], 'token', ARGV[1], 'value', ARGV[2])
return 1
"""


class Store:
    """One client of the server that nothing happens to."""

    def __init__(self, url: str) -> None:
        self._client = redis.asyncio.Redis.from_url(url, decode_responses=True)
        self._write = self._client.register_script(_WRITE)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._client.aclose()

    async def write(self, key: str, value: int, token: int) -> bool:
        """Write a register; return False if a higher token has written before."""
        return bool(await self._write(keys=[f"register:{key}"], args=[token, value]))

    async def read(self, key: str) -> tuple[int | None, int | None]:
        """Return the value and the token of a register."""
        value, token = await self._client.hmget(f"register:{key}", "value", "token")
        return (None if value is None else int(value)), (None if token is None else int(token))

    async def count(self, key: str) -> int:
        """Return a counter's number."""
        return int(await self._client.get(f"counter:{key}") or 0)

    async def set(self, key: str, value: int) -> None:
        """Set a counter, whatever it was."""
        await self._client.set(f"counter:{key}", value)
