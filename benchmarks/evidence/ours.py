"""The locks of redlock_aio, behind the interface of `locks`."""

import contextlib
import functools
import itertools
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

import redis.asyncio
from redis.asyncio.sentinel import Sentinel

from redlock_aio import Lease, Lock, LockLostError, Redlock, RedlockError
from redlock_aio.events import Event, Extended

from .locks import (
    ALL_ABILITIES,
    MS,
    Contestant,
    Held,
    Locks,
    NotAcquired,
    NotHeld,
    Setting,
    unique,
)
from .recorder import now


class OurLease(Held):
    """A lease of redlock_aio."""

    def __init__(
        self, lease: Lease, *, fencing: bool, leave: Callable[[], Awaitable[None]] | None = None
    ) -> None:
        # The fingerprint alone, of 32 bits, comes twice in one of ten parts of a soak.
        self.id = unique(f"{lease.fingerprint}-")
        self.lease = lease
        self._leave = leave or lease.release
        self.permit = lease.permit
        # What a reader has is recorded, too: it should be none.
        self.token = getattr(lease, "fencing_token", None) if fencing else None

    @property
    def until(self) -> int:  # type: ignore[override]
        # The clock is read first, and `remaining` is rounded down: what is recorded may be shorter
        # than the promise, by a millisecond, and is never longer.
        at = now()
        left = self.lease.remaining
        return at + left * MS if left else 0

    def ensure_valid(self) -> None:
        with _not_held():
            self.lease.ensure_valid()

    async def wait_lost(self) -> str:
        await self.lease.lost.wait()
        try:
            self.lease.ensure_valid()
        except RedlockError as error:
            return reason(error)
        return ""

    async def extend(self, ttl: int) -> None:
        with _not_held():
            await self.lease.extend(ttl)

    async def release(self) -> None:
        with _not_held():
            await self._leave()

    def export(self) -> str:
        with _not_held():
            return self.lease.export()


@contextlib.contextmanager
def _not_held() -> Iterator[None]:
    try:
        yield
    except RedlockError as error:
        raise NotHeld(reason(error)) from error


def reason(error: RedlockError) -> str:
    """Return the class of an error and its text, which names each master and its vote."""
    cause = f" {error.cause.value}" if isinstance(error, LockLostError) else ""
    return f"{type(error).__name__}{cause}: {error}"


class OurLocks(Locks):
    """A manager of redlock_aio."""

    def __init__(self, redlock: Redlock, kind: "Ours", held: "Extensions", *, varied: bool) -> None:
        self._redlock = redlock
        self._kind = kind
        self._held = held
        self._varied = varied
        self._turns = itertools.count()

    async def acquire(
        self, keys: Sequence[str], ttl: int, wait: int, *, auto_extend: bool
    ) -> OurLease:
        kind, turn = self._kind, next(self._turns)
        if kind.permits:
            (key,) = keys
            semaphore = self._redlock.semaphore(
                key,
                permits=kind.permits,
                ttl=ttl,
                wait=wait,
                auto_extend=auto_extend,
                fencing=kind.fencing,
                on_lost="flag",
            )
            return await self._acquire(semaphore, wait, turn)
        lock = self._redlock.lock(
            *keys,
            ttl=ttl,
            wait=wait,
            auto_extend=auto_extend,
            fair=kind.fair or (kind.mixed and turn % 2 == 0),
            fencing=kind.fencing,
            on_lost="flag",
        )
        return await self._acquire(lock, wait, turn)

    async def acquire_shared(
        self, keys: Sequence[str], ttl: int, wait: int, *, auto_extend: bool
    ) -> OurLease:
        (key,) = keys
        lock = self._redlock.rw_lock(
            key, ttl=ttl, wait=wait, auto_extend=auto_extend, on_lost="flag"
        )
        return await self._acquire(lock.read(), wait, next(self._turns))

    async def _acquire(self, lock: Lock, wait: int, turn: int) -> OurLease:
        leave = None
        try:
            if not wait:
                lease = await lock.try_acquire()
            elif self._varied and turn % 3 == 0:
                lease = await lock.__aenter__()
                leave = functools.partial(lock.__aexit__, None, None, None)
            else:
                lease = await lock.acquire()
        except RedlockError as error:
            raise NotAcquired(reason(error)) from error
        if lease is None:
            raise NotAcquired("it is held by another")
        return self._held.add(OurLease(lease, fencing=self._kind.fencing, leave=leave))

    def leases(self) -> int:
        return self._redlock.statistics().leases

    async def adopt(self, exported: str) -> OurLease:
        try:
            lease = await self._redlock.adopt(exported, on_lost="flag")
        except RedlockError as error:
            raise NotAcquired(reason(error)) from error
        return self._held.add(OurLease(lease, fencing=self._kind.fencing))

    async def force_release(self, key: str, permit: int | None = None) -> None:
        try:
            if permit is None:
                await self._redlock.force_release(key)
            else:
                await self._redlock.semaphore(key, permits=permit + 1).force_release(permit)
        except RedlockError as error:
            raise NotAcquired(reason(error)) from error


class Extensions:
    """A listener that tells each lease of its extensions."""

    def __init__(self) -> None:
        self._leases = weakref.WeakValueDictionary[str, OurLease]()

    def add(self, lease: OurLease) -> OurLease:
        """Tell *lease* of its extensions from now on."""
        self._leases[lease.lease.fingerprint] = lease
        return lease

    def __call__(self, event: Event) -> None:
        if isinstance(event, Extended) and (lease := self._leases.get(event.fingerprint)):
            lease.on_extended()


@dataclass(frozen=True)
class Ours(Contestant):
    """
    One kind of lock of redlock_aio.

    Attributes:
        mixed: Whether every second acquisition is fair, and the others are not.
    """

    name: str
    several: int = 1
    mixed: bool = False
    fair: bool = False
    fencing: bool = False
    reads: float = 0.0
    permits: int = 0
    abilities = ALL_ABILITIES
    distribution = "redlock-aio"
    clients: tuple[str, ...] = ("redis", "hiredis")

    @contextlib.asynccontextmanager
    async def open(self, urls: Sequence[str], setting: Setting) -> AsyncIterator[Locks]:
        """Open a manager; a URL with the scheme ``sentinel`` is a master behind Sentinels."""
        async with contextlib.AsyncExitStack() as stack:
            masters = [_master(url, stack) for url in urls]
            extensions = Extensions()
            redlock = await stack.enter_async_context(
                Redlock(
                    masters,
                    max_ttl=setting.max_ttl,
                    restart_guard=setting.guard,
                    name=setting.name or None,
                    listener=extensions,
                )
            )
            yield OurLocks(redlock, self, extensions, varied=setting.varied)


def _master(url: str, stack: contextlib.AsyncExitStack) -> str | redis.asyncio.Redis:
    """Return the URL, or the client of a master behind Sentinels, closed by *stack*."""
    where = urlsplit(url)
    if where.scheme != "sentinel":
        return url  # also one of a Cluster
    addresses = [address.rpartition(":") for address in where.netloc.split(",")]
    manager = Sentinel([(host, int(port)) for host, _, port in addresses])
    client: redis.asyncio.Redis = manager.master_for(where.path.strip("/"))
    for each in (client, *manager.sentinels):
        stack.push_async_callback(each.aclose)
    return client


OURS = (
    Ours("plain"),
    Ours("fenced", fencing=True),
    Ours("fair", fair=True),
    Ours("fair and fenced", fair=True, fencing=True),
    Ours("several", several=2),
    Ours("read-write", fair=True, fencing=True, reads=0.7),
    Ours("semaphore", fair=True, fencing=True, permits=2),
)

MIXED = Ours("mixed", mixed=True)
"""Fair and plain waiters for the same keys; a column of trials only."""

BESIDE_PLAIN = Ours("readers and plain", fencing=True, reads=0.5)
"""
Readers and plain locks; a column of trials only. Nobody is in the queue for a plain lock, so that
only the lock's key keeps readers out.
"""
