"""The locks of redlock_aio, behind the interface of `locks`."""

import asyncio
import contextlib
import functools
import itertools
import sys
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

import redis.asyncio
from redis.asyncio.sentinel import Sentinel

from redlock_aio import Lease, Lock, LockLostError, Redlock, RedlockError, sync
from redlock_aio.events import Event, Extended

from .clocks import own_rate
from .locks import (
    ALL_ABILITIES,
    MS,
    Ability,
    Contestant,
    Held,
    Locks,
    NotAcquired,
    NotHeld,
    Setting,
    unique,
)
from .recorder import now

LOOK = 0.002
"""Seconds between two looks of a thread whether its lease is lost."""


class OurLease(Held):
    """A lease of redlock_aio."""

    def __init__(
        self,
        lease: Lease,
        *,
        fencing: bool,
        leave: Callable[[], Awaitable[None]] | None = None,
        lock: Lock | None = None,
    ) -> None:
        # The fingerprint alone, of 32 bits, comes twice in one of ten parts of a soak.
        self.id = unique(f"{lease.fingerprint}-")
        self.lease = lease
        self._leave = leave or lease.release
        self._lock = lock
        self.permit = lease.permit
        # What a reader has is recorded, too: it should be none.
        self.token = getattr(lease, "fencing_token", None) if fencing else None

    @property
    def until(self) -> int:  # type: ignore[override]
        # The clock is read first, and `remaining` is rounded down: what is recorded may be shorter
        # than the promise, by a millisecond, and is never longer. If the process is stopped
        # between the two, it would be shorter by that time, and the next promise a revival.
        # On a clock that runs too fast the lease ends earlier than on that of the histories.
        while True:
            at = now()
            left = self.lease.remaining
            if now() - at < MS:
                return at + int(left * MS / (1 + own_rate())) if left else 0

    def ensure_valid(self) -> None:
        with _not_held():
            self.lease.ensure_valid()

    async def wait_lost(self) -> str:
        await self.lease.lost.wait()
        return self._why_lost()

    def _why_lost(self) -> str:
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

    @contextlib.asynccontextmanager
    async def guard(self) -> AsyncIterator[None]:
        with _not_held():
            async with self.lease:
                yield

    @contextlib.asynccontextmanager
    async def again(self) -> AsyncIterator["OurLease"]:
        if self._lock is None:
            raise NotHeld("it was adopted")
        with _not_held():
            async with self._lock as inner:
                # If the outer lease is over, this is a new one, which nobody has recorded.
                if inner.hold_count < 2 and self.lease.valid:
                    raise RuntimeError(f"{inner!r} does not share {self.lease!r}")
                self.lease.ensure_valid()
                yield OurLease(inner, fencing=False, lock=self._lock)

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

    def __init__(
        self, redlock: Redlock, kind: "Ours", held: "Extensions", setting: Setting
    ) -> None:
        self._redlock = redlock
        self._kind = kind
        self._held = held
        self._varied = setting.varied
        self._keeps = 0 if setting.misuse else kind.keeps
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
            hold_at_least=self._keeps,
            reentrant="again" in kind.abilities,
            on_lost="cancel" if "guard" in kind.abilities else "flag",
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
        held = OurLease(lease, fencing=self._kind.fencing, leave=leave, lock=lock)
        return self._held.add(held)

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


class OurThreadLease(OurLease):
    """A lease of `redlock_aio.sync`. Its calls block the thread of the task."""

    def __init__(self, lease: sync.Lease, *, fencing: bool) -> None:
        super().__init__(lease, fencing=fencing)  # type: ignore[arg-type] # it has the same names
        self._in_thread = lease

    async def wait_lost(self) -> str:
        while not self._in_thread.lost.is_set():  # noqa: ASYNC110 - of another thread
            await asyncio.sleep(LOOK)
        return self._why_lost()

    async def extend(self, ttl: int) -> None:
        with _not_held():
            self._in_thread.extend(ttl)

    async def release(self) -> None:
        with _not_held():
            self._in_thread.release()


class OurThreadLocks(Locks):
    """A manager of `redlock_aio.sync`, which all threads of the process use."""

    def __init__(self, redlock: sync.Redlock, held: "Extensions") -> None:
        self._redlock = redlock
        self._held = held

    async def acquire(
        self, keys: Sequence[str], ttl: int, wait: int, *, auto_extend: bool
    ) -> OurLease:
        lock = self._redlock.lock(*keys, ttl=ttl, wait=wait, auto_extend=auto_extend)
        try:
            lease = lock.acquire() if wait else lock.try_acquire()
        except RedlockError as error:
            raise NotAcquired(reason(error)) from error
        if lease is None:
            raise NotAcquired("it is held by another")
        return self._held.add(OurThreadLease(lease, fencing=False))

    async def adopt(self, exported: str) -> OurLease:
        try:
            lease = self._redlock.adopt(exported)
        except RedlockError as error:
            raise NotAcquired(reason(error)) from error
        return self._held.add(OurThreadLease(lease, fencing=False))

    async def force_release(self, key: str, permit: int | None = None) -> None:
        if permit is not None:
            raise NotAcquired("these are no permits")
        try:
            self._redlock.force_release(key)
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
    keeps: int = 0
    abilities: frozenset[Ability] = ALL_ABILITIES
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
            yield OurLocks(redlock, self, extensions, setting)


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


class InThreads(Contestant):
    """Plain locks of `redlock_aio.sync`, each task in a thread of its own."""

    name = "sync"
    distribution = "redlock-aio"
    clients: tuple[str, ...] = ("redis", "hiredis")
    abilities = ALL_ABILITIES
    event_loop = False  # that of the manager is in a thread of the library
    threads = True

    @contextlib.asynccontextmanager
    async def open(self, urls: Sequence[str], setting: Setting) -> AsyncIterator[Locks]:
        """Open a manager."""
        extensions = Extensions()
        with sync.Redlock(
            [of_library(url) for url in urls],
            max_ttl=setting.max_ttl,
            restart_guard=setting.guard,
            name=setting.name or None,
            listener=extensions,
        ) as redlock:
            yield OurThreadLocks(redlock, extensions)


class Commands(Contestant):
    """Programs under ``redlock run``; `commands` is the worker that starts them."""

    name = "command"
    distribution = "redlock-aio"
    clients: tuple[str, ...] = ("redis", "hiredis")
    abilities = frozenset({"check", "auto_extend", "notify", "sentinel", "cluster"})
    fencing = True
    event_loop = False
    forks = False
    command: tuple[str, ...] = (sys.executable, "-m", "benchmarks.evidence.commands")

    def open(
        self, urls: Sequence[str], setting: Setting
    ) -> contextlib.AbstractAsyncContextManager[Locks]:
        """Raise a `TypeError`: each turn is a process."""
        raise TypeError(f"no client of {urls} is opened in this process, with {setting}")


def of_library(url: str) -> str:
    """Return a URL as the library takes it in a text, also of a master behind Sentinels."""
    return f"redis+{url}" if url.startswith("sentinel://") else url


OURS = (
    Ours("plain"),
    Ours("fenced", fencing=True),
    Ours("fair", fair=True),
    Ours("fair and fenced", fair=True, fencing=True),
    Ours("several", several=2),
    Ours("read-write", fair=True, fencing=True, reads=0.7),
    Ours("semaphore", fair=True, fencing=True, permits=2),
)
"""The kinds of locks."""

WAYS: tuple[Contestant, ...] = (
    Ours("cancelled", abilities=ALL_ABILITIES | {"guard"}),
    Ours("reentrant", abilities=ALL_ABILITIES | {"again"}),
    Ours("kept", keeps=600),
    InThreads(),
    Commands(),
)
"""Other ways to use a lock."""

COLUMNS = (*OURS, *WAYS)
"""The columns of the matrix."""

MIXED = Ours("mixed", mixed=True)
"""Fair and plain waiters for the same keys; a column of trials only."""

BESIDE_PLAIN = Ours("readers and plain", fencing=True, reads=0.5)
"""
Readers and plain locks; a column of trials only. Nobody is in the queue for a plain lock, so that
only the lock's key keeps readers out.
"""
