"""Locks on one master: redis-py's and python-redis-lock's. They use the first one alone."""

import asyncio
import contextlib
import math
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import redis
import redis.asyncio.lock
from redis.exceptions import RedisError

from .locks import MS, Contestant, Held, Locks, NotAcquired, NotHeld, Setting, unique
from .peers_base import quiet, why
from .recorder import now

THREADS = 64
"""More than there are tasks in a process: each has a thread while it acquires or releases."""

# --------------------------------------------------------------------------- redis-py


class _NotedLock(redis.asyncio.lock.Lock):
    """Notes when it sent the SET that acquired it."""

    asked_at = 0

    async def do_acquire(self, token: str | bytes) -> bool:
        self.asked_at = now()
        return await super().do_acquire(token)


class _RedisPyLease(Held):
    def __init__(self, lock: _NotedLock, ttl: int) -> None:
        self.id = unique()
        self._lock = lock
        self.until = lock.asked_at + ttl * MS

    async def extend(self, ttl: int) -> None:
        asked_at = now()
        try:
            await self._lock.extend(ttl / 1000, replace_ttl=True)
        except RedisError as error:
            raise NotHeld(why(error)) from error
        self.until = asked_at + ttl * MS

    async def release(self) -> None:
        try:
            await self._lock.release()
        except RedisError as error:
            raise NotHeld(why(error)) from error


class _RedisPyLocks(Locks):
    def __init__(self, client: redis.asyncio.Redis) -> None:
        self._client = client

    async def acquire(
        self, keys: Sequence[str], ttl: int, wait: int, *, auto_extend: bool
    ) -> _RedisPyLease:
        # One Lock for each acquisition, so that no two tasks share one: its token is kept per
        # thread. It polls every 0.1 s, its default. Its documentation extends nothing in the
        # background, so a body must end within the ttl.
        del auto_extend
        (key,) = keys
        lock = _NotedLock(self._client, key, timeout=ttl / 1000, blocking_timeout=wait / 1000)
        try:
            acquired = await lock.acquire()
        except RedisError as error:
            raise NotAcquired(why(error)) from error
        if not acquired:
            raise NotAcquired("acquire() returned False")
        return _RedisPyLease(lock, ttl)


class RedisPy(Contestant):
    """The asyncio Lock of redis-py."""

    name = "redis-py"
    abilities = frozenset(("extend",))
    distribution = "redis"
    masters = 1

    @contextlib.asynccontextmanager
    async def open(self, urls: Sequence[str], setting: Setting) -> AsyncIterator[Locks]:
        """Open a client by its defaults: a socket timeout of 5 s, and no retries."""
        del setting
        with quiet():
            async with redis.asyncio.Redis.from_url(urls[0]) as client:
                yield _RedisPyLocks(client)


# ------------------------------------------------------------------ python-redis-lock


class _NotedClient(redis.Redis):
    """Notes when it sent its last SET. Each lease has its own, on shared connections."""

    asked_at = 0

    def set(self, *args: Any, **options: Any) -> Any:
        self.asked_at = now()
        return super().set(*args, **options)


class _ThreadedLease(Held):
    def __init__(
        self, lock: Any, client: _NotedClient, ttl: int, threads: ThreadPoolExecutor
    ) -> None:
        self.id = unique()
        self._lock = lock
        self._client = client
        self._ttl = ttl
        self._threads = threads

    @property
    def until(self) -> int:  # type: ignore[override]
        asked_at = max(self._client.asked_at, self._lock.extended_at)
        return int(asked_at + self._ttl * MS)

    def acquire(self) -> None:
        # Without a timeout, as `with` does: it waits in BLPOP for a ttl at a time. With one
        # it would do so for all of it, and miss that a lock expires.
        self._lock.acquire()

    async def extend(self, ttl: int) -> None:
        await self._in_a_thread(lambda: self._lock.extend(math.ceil(ttl / 1000)))

    async def release(self) -> None:
        # It waits for an extension that is underway.
        await self._in_a_thread(self._lock.release)

    def release_late(self, acquired: "Future[None]") -> None:
        """Release what was acquired for a task that was cancelled meanwhile."""
        if not acquired.cancelled() and acquired.exception() is None:
            with contextlib.suppress(RedisError, RuntimeError):
                self._lock.release()

    async def _in_a_thread(self, function: Callable[[], None]) -> None:
        try:
            await asyncio.get_running_loop().run_in_executor(self._threads, function)
        except (RedisError, RuntimeError) as error:  # its own errors are RuntimeErrors
            raise NotHeld(why(error)) from error


def _noted_lock(client: redis.Redis) -> type[Any]:
    from redis_lock import Lock

    # Else the first lock of a process registers them with its class alone, and other classes,
    # such as that of the library itself, have none.
    Lock.register_scripts(client)

    class NotedLock(Lock):  # type: ignore[misc]
        """Notes when it sent its last extension that succeeded."""

        extended_at = 0

        def extend(self, expire: int | None = None) -> None:
            asked_at = now()
            super().extend(expire)
            self.extended_at = asked_at

    return NotedLock


class _ThreadedLocks(Locks):
    def __init__(self, pool: redis.ConnectionPool, threads: ThreadPoolExecutor) -> None:
        self._pool = pool
        self._threads = threads
        self._lock = _noted_lock(redis.Redis(connection_pool=pool))

    async def acquire(
        self, keys: Sequence[str], ttl: int, wait: int, *, auto_extend: bool
    ) -> _ThreadedLease:
        del wait
        (key,) = keys
        seconds = math.ceil(ttl / 1000)  # it takes whole ones
        client = _NotedClient(connection_pool=self._pool)
        lock = self._lock(client, key, expire=seconds, auto_renewal=auto_extend)
        lease = _ThreadedLease(lock, client, seconds * 1000, self._threads)
        acquiring = self._threads.submit(lease.acquire)
        try:
            await asyncio.wrap_future(acquiring)
        except asyncio.CancelledError:
            acquiring.add_done_callback(lease.release_late)
            raise
        except (RedisError, RuntimeError) as error:
            raise NotAcquired(why(error)) from error
        return lease


class PythonRedisLock(Contestant):
    """The Lock of python-redis-lock, which is for threads."""

    name = "python-redis-lock"
    abilities = frozenset(("extend", "auto_extend"))
    distribution = "python-redis-lock"
    masters = 1

    @contextlib.asynccontextmanager
    async def open(self, urls: Sequence[str], setting: Setting) -> AsyncIterator[Locks]:
        """Open a client by the defaults of redis-py."""
        del setting
        pool = redis.ConnectionPool.from_url(urls[0])
        threads = ThreadPoolExecutor(THREADS)
        try:
            with quiet():
                yield _ThreadedLocks(pool, threads)
        finally:
            threads.shutdown(wait=False, cancel_futures=True)
            pool.disconnect()
