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
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

import redis.asyncio
from redis.exceptions import RedisError

from .locks import MS, Contestant, Held, Locks, NotAcquired, NotHeld, Setting, unique
from .recorder import now

_RELEASE_WRITER = """
if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end
return 0
"""


class NaiveLease(Held):
    """A lease of one key, with its own ttl."""

    def __init__(
        self, leave: Callable[[Any], Awaitable[None]], key: str, ttl: int, *, shared: bool = False
    ) -> None:
        self.id = unique("naive-")
        self.until = now() + ttl * MS
        self.key = key
        self.shared = shared
        self._leave = leave

    def ensure_valid(self) -> None:
        if now() > self.until:
            raise NotHeld("LeaseOver: its ttl is over")

    async def extend(self, ttl: int) -> None:
        raise NotHeld(f"no such feature: {ttl}")

    async def release(self) -> None:
        await self._leave(self)


class AllMasters(Locks):
    """Asks all masters, and lets attempts follow each other until one succeeds."""

    def __init__(self, masters: Sequence[redis.asyncio.Redis]) -> None:
        self._masters = masters

    async def answers(self, *command: object) -> list[Any]:
        """Send a command to all masters, and return what they answer; None for an error."""
        sent = (master.execute_command(*command) for master in self._masters)
        answers = await asyncio.gather(*sent, return_exceptions=True)
        for answer in answers:
            if isinstance(answer, BaseException) and not isinstance(answer, RedisError):
                raise answer
        return [None if isinstance(answer, BaseException) else answer for answer in answers]

    async def majority(self, *command: object) -> bool:
        """Send a command to all masters, and return whether a majority says yes."""
        return self.is_majority(await self.answers(*command))

    def is_majority(self, answers: Sequence[object]) -> bool:
        """Return whether a majority has said yes."""
        return sum(1 for answer in answers if answer) > len(self._masters) // 2

    async def until_acquired(
        self, wait: int, attempt: Callable[[], Awaitable[NaiveLease | None]]
    ) -> NaiveLease:
        """Call *attempt* until it returns a lease; raise `NotAcquired` after *wait* ms."""
        ends = time.monotonic() + wait / 1000
        while (lease := await attempt()) is None:
            if time.monotonic() > ends:
                raise NotAcquired("it is held by others")
            await asyncio.sleep(random.uniform(0.001, 0.02))
        return lease


class _Naive(AllMasters):
    """What both have in common: the key of a writer."""

    async def acquire(
        self, keys: Sequence[str], ttl: int, wait: int, *, auto_extend: bool
    ) -> NaiveLease:
        del auto_extend
        return await self._acquire(keys, ttl, wait, shared=False)

    async def acquire_shared(
        self, keys: Sequence[str], ttl: int, wait: int, *, auto_extend: bool
    ) -> NaiveLease:
        del auto_extend
        return await self._acquire(keys, ttl, wait, shared=True)

    async def _acquire(
        self, keys: Sequence[str], ttl: int, wait: int, *, shared: bool
    ) -> NaiveLease:
        (key,) = keys

        async def attempt() -> NaiveLease | None:
            lease = NaiveLease(self.leave, key, ttl, shared=shared)
            if await (self.read(lease, ttl) if shared else self.write(lease, ttl)):
                return lease
            await self.leave(lease)
            return None

        return await self.until_acquired(wait, attempt)

    async def leave(self, lease: NaiveLease) -> None:
        """Release a lease, or what an attempt has left, on all masters."""
        if lease.shared:
            await self.stop_reading(lease)
        else:
            await self.majority("EVAL", _RELEASE_WRITER, 1, lease.key, lease.id)

    @abstractmethod
    async def read(self, lease: NaiveLease, ttl: int) -> bool:
        """Try once to acquire the lease of a reader."""

    @abstractmethod
    async def write(self, lease: NaiveLease, ttl: int) -> bool:
        """Try once to acquire the lease of a writer."""

    @abstractmethod
    async def stop_reading(self, lease: NaiveLease) -> None:
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

    async def read(self, lease: NaiveLease, ttl: int) -> bool:
        readers = f"{lease.key}:readers"
        if not await self.majority("EVAL", _NOBODY_WRITES, 1, lease.key):
            return False
        return await self.majority("EVAL", _ENTER, 1, readers, lease.id, ttl)

    async def write(self, lease: NaiveLease, ttl: int) -> bool:
        if not await self.majority("SET", lease.key, lease.id, "NX", "PX", ttl):
            return False
        return await self.majority("EVAL", _NOBODY_READS, 1, f"{lease.key}:readers")

    async def stop_reading(self, lease: NaiveLease) -> None:
        await self.majority("ZREM", f"{lease.key}:readers", lease.id)


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

    async def read(self, lease: NaiveLease, ttl: int) -> bool:
        keys = lease.key, f"{lease.key}:readers"
        return await self.majority("EVAL", _COUNT_READER, 2, *keys, ttl)

    async def write(self, lease: NaiveLease, ttl: int) -> bool:
        keys = lease.key, f"{lease.key}:readers"
        return await self.majority("EVAL", _WRITE_IF_NONE_COUNTED, 2, *keys, lease.id, ttl)

    async def stop_reading(self, lease: NaiveLease) -> None:
        await self.majority("EVAL", _UNCOUNT_READER, 1, f"{lease.key}:readers")


@dataclass(frozen=True)
class Naive(Contestant):
    """A read-write lock or a semaphore that excludes too little."""

    name: str
    locks: type[AllMasters]
    reads: float = 0.0
    permits: int = 0
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
    Naive("check then register", _CheckThenRegister, reads=0.7),
    Naive("readers counted", _ReadersCounted, reads=0.7),
)
