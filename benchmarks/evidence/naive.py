"""
Read-write locks as one would write them at first: controls, in which the checks must find overlaps.

Both ask each master, as Redlock does, and count a majority as the lock. Readers and writers have
keys of their own on each master, and a majority of readers and one of a writer share a master. So
there is no overlap, it seems.
"""

import asyncio
import contextlib
import random
import time
from abc import abstractmethod
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass

import redis.asyncio
from redis.exceptions import RedisError

from .locks import MS, Contestant, Held, Locks, NotAcquired, NotHeld, Setting, unique
from .recorder import now

_RELEASE_WRITER = """
if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end
return 0
"""


class _Lease(Held):
    """A lease of one key, with its own ttl."""

    def __init__(self, locks: "_Naive", key: str, ttl: int, *, shared: bool) -> None:
        self.id = unique("naive-")
        self.until = now() + ttl * MS
        self.key = key
        self.shared = shared
        self._locks = locks

    def ensure_valid(self) -> None:
        if now() > self.until:
            raise NotHeld("LeaseOver: its ttl is over")

    async def extend(self, ttl: int) -> None:
        raise NotHeld(f"no such feature: {ttl}")

    async def release(self) -> None:
        await self._locks.leave(self)


class _Naive(Locks):
    """What both have in common: the key of a writer, majorities, and attempts until the end."""

    def __init__(self, masters: Sequence[redis.asyncio.Redis]) -> None:
        self._masters = masters

    async def acquire(
        self, keys: Sequence[str], ttl: int, wait: int, *, auto_extend: bool
    ) -> _Lease:
        del auto_extend
        return await self._acquire(keys, ttl, wait, shared=False)

    async def acquire_shared(
        self, keys: Sequence[str], ttl: int, wait: int, *, auto_extend: bool
    ) -> _Lease:
        del auto_extend
        return await self._acquire(keys, ttl, wait, shared=True)

    async def _acquire(self, keys: Sequence[str], ttl: int, wait: int, *, shared: bool) -> _Lease:
        (key,) = keys
        ends = time.monotonic() + wait / 1000
        while True:
            lease = _Lease(self, key, ttl, shared=shared)
            if await (self.read(lease, ttl) if shared else self.write(lease, ttl)):
                return lease
            await self.leave(lease)
            if time.monotonic() > ends:
                raise NotAcquired("it is held by others")
            await asyncio.sleep(random.uniform(0.001, 0.02))

    async def _majority(self, *command: object) -> bool:
        """Send a command to all masters, and return whether a majority says yes."""
        sent = (master.execute_command(*command) for master in self._masters)
        answers = await asyncio.gather(*sent, return_exceptions=True)
        for answer in answers:
            if isinstance(answer, BaseException) and not isinstance(answer, RedisError):
                raise answer
        yes = sum(1 for each in answers if each and not isinstance(each, BaseException))
        return yes > len(self._masters) // 2

    async def leave(self, lease: _Lease) -> None:
        """Release a lease, or what an attempt has left, on all masters."""
        if lease.shared:
            await self.stop_reading(lease)
        else:
            await self._majority("EVAL", _RELEASE_WRITER, 1, lease.key, lease.id)

    @abstractmethod
    async def read(self, lease: _Lease, ttl: int) -> bool:
        """Try once to acquire the lease of a reader."""

    @abstractmethod
    async def write(self, lease: _Lease, ttl: int) -> bool:
        """Try once to acquire the lease of a writer."""

    @abstractmethod
    async def stop_reading(self, lease: _Lease) -> None:
        """Release the lease of a reader."""


_NOBODY_WRITES = "return 1 - redis.call('EXISTS', KEYS[1])"
_NOBODY_READS = """
local time = redis.call('TIME')
redis.call('ZREMRANGEBYSCORE', KEYS[1], 0, time[1] * 1000 + math.floor(time[2] / 1000))
return 1 - redis.call('EXISTS', KEYS[1])
"""
_ENTER = """
local time = redis.call('TIME')
redis.call('ZADD', KEYS[1], time[1] * 1000 + math.floor(time[2] / 1000) + ARGV[2], ARGV[1])
redis.call('PEXPIRE', KEYS[1], ARGV[2])
return 1
"""


class _CheckThenRegister(_Naive):
    """
    A reader looks for a writer, and then enters the set of readers; a writer does the reverse.

    The writer may set its key, and see an empty set, between the two steps of the reader.
    """

    async def read(self, lease: _Lease, ttl: int) -> bool:
        readers = f"{lease.key}:readers"
        if not await self._majority("EVAL", _NOBODY_WRITES, 1, lease.key):
            return False
        return await self._majority("EVAL", _ENTER, 1, readers, lease.id, ttl)

    async def write(self, lease: _Lease, ttl: int) -> bool:
        if not await self._majority("SET", lease.key, lease.id, "NX", "PX", ttl):
            return False
        return await self._majority("EVAL", _NOBODY_READS, 1, f"{lease.key}:readers")

    async def stop_reading(self, lease: _Lease) -> None:
        await self._majority("ZREM", f"{lease.key}:readers", lease.id)


_COUNT_READER = """
if redis.call('EXISTS', KEYS[1]) == 1 then return 0 end
redis.call('INCR', KEYS[2])
redis.call('PEXPIRE', KEYS[2], ARGV[1])
return 1
"""
_UNCOUNT_READER = """
if tonumber(redis.call('GET', KEYS[1]) or 0) > 1 then return redis.call('DECR', KEYS[1]) end
return redis.call('DEL', KEYS[1])
"""
_WRITE_IF_NONE_COUNTED = """
if redis.call('EXISTS', KEYS[2]) == 1 then return 0 end
return redis.call('SET', KEYS[1], ARGV[1], 'NX', 'PX', ARGV[2])
"""


class _ReadersCounted(_Naive):
    """
    Each master counts its readers, and lets nobody write until there are none.

    As a reader releases on all masters, it takes back on some what it has never had there: a
    master that it did not reach in time, or that refused it, counts another reader less then.
    """

    async def read(self, lease: _Lease, ttl: int) -> bool:
        keys = lease.key, f"{lease.key}:readers"
        return await self._majority("EVAL", _COUNT_READER, 2, *keys, ttl)

    async def write(self, lease: _Lease, ttl: int) -> bool:
        keys = lease.key, f"{lease.key}:readers"
        return await self._majority("EVAL", _WRITE_IF_NONE_COUNTED, 2, *keys, lease.id, ttl)

    async def stop_reading(self, lease: _Lease) -> None:
        await self._majority("EVAL", _UNCOUNT_READER, 1, f"{lease.key}:readers")


@dataclass(frozen=True)
class Naive(Contestant):
    """A read-write lock that excludes too little."""

    name: str
    locks: type[_Naive]
    reads: float = 0.7
    distribution = "redlock-aio"
    clients: tuple[str, ...] = ("redis", "hiredis")

    @contextlib.asynccontextmanager
    async def open(self, urls: Sequence[str], setting: Setting) -> AsyncIterator[Locks]:
        """Open a client of each master."""
        del setting
        async with contextlib.AsyncExitStack() as stack:
            masters = [redis.asyncio.Redis.from_url(url) for url in urls]
            for master in masters:
                stack.push_async_callback(master.aclose)
            yield self.locks(masters)


NAIVE = (
    Naive("check then register", _CheckThenRegister),
    Naive("readers counted", _ReadersCounted),
)
