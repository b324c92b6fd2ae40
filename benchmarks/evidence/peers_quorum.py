"""Locks on a majority of masters, in asyncio: pottery's and aioredlock's."""

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Any

from redis.asyncio import Redis
from redis.exceptions import RedisError

from .locks import MS, Contestant, Held, Locks, NotAcquired, NotHeld, Setting, unique
from .peers_base import quiet, why
from .recorder import now

MASTER_TIMEOUT = 0.2
"""
Seconds for the reply of one master, where a client takes such an option. No documentation
recommends any, and with redis-py's default of 5 s one master that hangs would stop everybody
for several ttls. That of redlock_aio is learned, from 50 ms to 1 s. This is between.
"""

# ---------------------------------------------------------------------------- pottery


class _PotteryLease(Held):
    def __init__(self, lock: Any) -> None:
        self.id = unique()
        self._lock = lock

    async def ask(self) -> None:
        """Ask for how long the lock is valid: this is what pottery promises to its users."""
        left = await self._lock.locked()
        self.until = now() + int(left * 1000 * MS)

    async def extend(self, ttl: int) -> None:
        """Extend the lease to its first ttl, at most three times."""
        del ttl
        with _pottery_errors(NotHeld):
            await self._lock.extend()
            await self.ask()

    async def release(self) -> None:
        with _pottery_errors(NotHeld):
            await self._lock.release()


@contextlib.contextmanager
def _pottery_errors(instead: type[Exception]) -> Iterator[None]:
    from pottery.exceptions import PrimitiveError

    try:
        yield
    except (PrimitiveError, RedisError) as error:
        raise instead(why(error)) from error


class _PotteryLocks(Locks):
    def __init__(self, masters: Sequence[Redis]) -> None:
        self._masters = masters

    async def acquire(
        self, keys: Sequence[str], ttl: int, wait: int, *, auto_extend: bool
    ) -> _PotteryLease:
        # One AIORedlock for each acquisition, as its documentation advises. It retries within
        # 0.2 s, which is no option. It extends nothing by itself: its documentation wants a
        # critical section to be done well within the ttl.
        from pottery import AIORedlock

        del auto_extend
        (key,) = keys
        lock = AIORedlock(key=key, masters=self._masters, auto_release_time=ttl / 1000)
        with _pottery_errors(NotAcquired):
            if not await lock.acquire(timeout=wait / 1000):
                raise NotAcquired("acquire() returned False")
            lease = _PotteryLease(lock)
            await lease.ask()
        return lease


class Pottery(Contestant):
    """The AIORedlock of pottery."""

    name = "pottery"
    abilities = frozenset(("extend",))
    distribution = "pottery"

    @contextlib.asynccontextmanager
    async def open(self, urls: Sequence[str], setting: Setting) -> AsyncIterator[Locks]:
        """Open a client of each master."""
        del setting
        async with contextlib.AsyncExitStack() as stack:
            stack.enter_context(quiet())
            clients = [
                Redis.from_url(
                    url, socket_timeout=MASTER_TIMEOUT, socket_connect_timeout=MASTER_TIMEOUT
                )
                for url in urls
            ]
            yield _PotteryLocks([await stack.enter_async_context(each) for each in clients])


# ------------------------------------------------------------------------- aioredlock

RETRY_DELAY = 0.1, 0.3
"""Seconds between its attempts: its defaults."""


class _AioredlockLease(Held):
    def __init__(self, lock: Any, promises: dict[str, int]) -> None:
        self.id = unique()
        self._lock = lock
        self._promises = promises

    @property
    def until(self) -> int:  # type: ignore[override]
        return self._promises.get(self._lock.id, 0) if self._lock.valid else 0

    def ensure_valid(self) -> None:
        """Ask the attribute that its documentation shows."""
        if not self._lock.valid:
            raise NotHeld("lock.valid is False")

    async def extend(self, ttl: int) -> None:
        from aioredlock import LockError

        try:
            await self._lock.lock_manager.extend(self._lock, lock_timeout=ttl / 1000)
        except (LockError, RuntimeError) as error:
            raise NotHeld(why(error)) from error

    async def release(self) -> None:
        from aioredlock import LockError

        try:
            await self._lock.release()
        except LockError as error:
            raise NotHeld(why(error)) from error
        finally:
            self._promises.pop(self._lock.id, None)


class _AioredlockLocks(Locks):
    def __init__(self, manager: Any, promises: dict[str, int]) -> None:
        self._manager = manager
        self._promises = promises

    async def acquire(
        self, keys: Sequence[str], ttl: int, wait: int, *, auto_extend: bool
    ) -> _AioredlockLease:
        # A call makes three attempts, its default. More would also be made for an extension,
        # long after the lease has expired, so calls are repeated instead.
        from aioredlock import LockError

        (key,) = keys
        ends = now() + wait * MS
        while True:
            try:
                # Without a lock_timeout it extends the lock every 0.6 ttl.
                lock = await self._manager.lock(
                    key, lock_timeout=None if auto_extend else ttl / 1000
                )
                return _AioredlockLease(lock, self._promises)
            except LockError as error:
                if now() > ends:
                    raise NotAcquired(why(error)) from error
            await asyncio.sleep(random.uniform(*RETRY_DELAY))


def _noted_masters(urls: Sequence[str], promises: dict[str, int]) -> Any:
    from aioredlock.redis import Redis as Masters

    class NotedMasters(Masters):  # type: ignore[misc]
        """
        Notes what each SET promises: it sets a lease with this identifier, or extends it.

        The library calls a lock valid until its timeout is reached, and reckons with a drift
        of 1 % of it and 2 ms.
        """

        async def set_lock(self, resource: str, identifier: str, lease_time: float) -> float:
            asked_at = now()
            elapsed: float = await super().set_lock(resource, identifier, lease_time)
            promises[identifier] = asked_at + int(lease_time * 990 - 2) * MS
            return elapsed

    return NotedMasters(urls)


class Aioredlock(Contestant):
    """The manager of aioredlock."""

    name = "aioredlock"
    abilities = frozenset(("check", "extend", "auto_extend"))
    distribution = "aioredlock"
    clients: tuple[str, ...] = ("aioredis",)

    @contextlib.asynccontextmanager
    async def open(self, urls: Sequence[str], setting: Setting) -> AsyncIterator[Locks]:
        """Open a manager. Neither it nor its client has an option for how long a reply may take."""
        from aioredlock import Aioredlock as Manager

        promises: dict[str, int] = {}
        least, most = RETRY_DELAY
        manager = Manager(
            list(urls),
            retry_delay_min=least,
            retry_delay_max=most,
            internal_lock_timeout=setting.max_ttl / 1000,  # of locks that it extends
        )
        manager.redis = _noted_masters(urls, promises)
        with quiet():
            try:
                yield _AioredlockLocks(manager, promises)
            finally:
                await manager.destroy()
