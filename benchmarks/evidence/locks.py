"""
The kinds of locks that are tried, behind one interface, so that others can be tried alike.

A `Contestant` opens a `Locks`, which is one client of the masters in one process. Its `acquire`
returns a `Held`. Errors of a library become `NotAcquired` and `NotHeld`; any other error is a
defect of the run.
"""

import asyncio
import contextlib
import itertools
import os
import secrets
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Literal, Protocol
from urllib.parse import urlsplit

import redis.asyncio
from redis.asyncio.sentinel import Sentinel

from redlock_aio import (
    Lease,
    LockLostError,
    Redlock,
    RedlockError,
)

MS = 1_000_000
"""Nanoseconds in a millisecond."""

Ability = Literal["check", "extend", "auto_extend", "notify", "adopt", "force_release", "sentinel"]
"""
"check": `Held.ensure_valid` tells something. "extend": `Held.extend`.
"auto_extend": a lease outlives its ttl while it is held. "notify": `Held.wait_lost` returns by
itself. "adopt": `Held.export` and `Locks.adopt`. "force_release": `Locks.force_release`.
"sentinel": takes URLs such as ``sentinel://host:port,host:port/service``.
"""


class NotAcquired(Exception):  # noqa: N818 - not an error of the program, but a result
    """The lock was not acquired: nothing is held."""


class NotHeld(Exception):  # noqa: N818 - not an error of the program, but a result
    """The lease is over, or could not be extended or released."""


class Held(Protocol):
    """A lease. All instants are nanoseconds on CLOCK_BOOTTIME."""

    @property
    def id(self) -> str:
        """A text that no other lease has, of any process."""

    @property
    def token(self) -> int | None:
        """The fencing token, or None."""

    @property
    def until(self) -> int:
        """The instant up to which the library promises the lease, as known now; 0 if it is over."""

    def ensure_valid(self) -> None:
        """Return if the lease is valid now; raise `NotHeld` if not."""

    async def wait_lost(self) -> str:
        """Return why the lease was lost, as soon as the library says so; else wait for ever."""

    async def extend(self, ttl: int) -> None:
        """Extend the lease to *ttl* ms from now; raise `NotHeld` if that failed."""

    async def release(self) -> None:
        """Release the lease; raise `NotHeld` if it was over before."""

    def export(self) -> str:
        """End the lease here, and return a text by which another process adopts it."""


class Locks(Protocol):
    """One client of the masters."""

    async def acquire(self, keys: Sequence[str], ttl: int, wait: int, *, auto_extend: bool) -> Held:
        """
        Wait *wait* ms at most for the lock on all *keys*; raise `NotAcquired` after that.

        Args:
            auto_extend: Whether the lease is extended until it is released. It is ignored
                by a library without that ability.
        """

    async def adopt(self, exported: str) -> Held:
        """Continue a lease of another process; raise `NotAcquired` if that failed."""

    async def force_release(self, key: str) -> None:
        """Release *key* for its holder; raise `NotAcquired` if too few masters answered."""


@dataclass(frozen=True, slots=True)
class Setting:
    """What all clients of a run have in common."""

    max_ttl: int = 1_000
    """The longest ttl in ms that is used."""

    guard: Literal["auto", "off"] = "auto"
    """Whether a master that has restarted is kept from voting until its locks are over."""

    name: str = ""
    """The name of the client, where a library shows one to others."""


class Contestant(Protocol):
    """
    A library with one kind of its locks.

    Attributes:
        name: Its name on the command line and in tables.

        several: How many keys one lock has.

        fair: Whether waiters are served in order.

        fencing: Whether leases have fencing tokens.

        abilities: What `Locks` and `Held` can do besides acquiring and releasing.

        distribution: The package that has it.

        masters: How many of the masters it uses, the first ones.

        command: The words before JOB and NAME of a program that works in the place of
            `worker.py`, for other languages; empty for `worker.py`.
    """

    @property
    def name(self) -> str: ...
    @property
    def several(self) -> int: ...
    @property
    def fair(self) -> bool: ...
    @property
    def fencing(self) -> bool: ...
    @property
    def abilities(self) -> frozenset[Ability]: ...
    @property
    def distribution(self) -> str: ...
    @property
    def masters(self) -> int: ...
    @property
    def command(self) -> tuple[str, ...]: ...
    def versions(self) -> dict[str, str]:
        """Return the versions of the packages that matter."""

    def open(
        self, urls: Sequence[str], setting: Setting
    ) -> contextlib.AbstractAsyncContextManager[Locks]:
        """Open a client of the masters at *urls*."""


ALL_ABILITIES: frozenset[Ability] = frozenset(
    ("check", "extend", "auto_extend", "notify", "adopt", "force_release", "sentinel")
)

_numbers = itertools.count()


def now() -> int:
    """Return the time on the clock of histories, in ns."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)


def installed(*distributions: str) -> dict[str, str]:
    """Return the versions of packages, those that are installed."""
    found = {}
    for name in distributions:
        with contextlib.suppress(PackageNotFoundError):
            found[name] = version(name)
    return found


def unique(stem: str = "") -> str:
    """Return an identifier that no other lease has, of any process, also of a forked one."""
    return f"{stem}{os.getpid()}-{next(_numbers)}-{secrets.token_hex(4)}"


# ----------------------------------------------------------------------- redlock_aio


class OurLease:
    """A `Held` of redlock_aio."""

    def __init__(self, lease: Lease, *, fencing: bool) -> None:
        # Not the lease's token, which is a secret. An adopted lease has another fingerprint.
        self.id = lease.fingerprint
        self.lease = lease
        self.token = lease.fencing_token if fencing else None

    @property
    def until(self) -> int:
        # The clock is read first, and `remaining` is rounded down: the promise is not shorter.
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
            await self.lease.release()

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


class OurLocks:
    """A `Locks` of redlock_aio."""

    def __init__(self, redlock: Redlock, kind: "Ours") -> None:
        self._redlock = redlock
        self._kind = kind

    async def acquire(
        self, keys: Sequence[str], ttl: int, wait: int, *, auto_extend: bool
    ) -> OurLease:
        kind = self._kind
        lock = self._redlock.lock(
            *keys,
            ttl=ttl,
            wait=wait,
            auto_extend=auto_extend,
            fair=kind.fair,
            fencing=kind.fencing,
            on_lost="flag",
        )
        try:
            lease = await lock.acquire()
        except RedlockError as error:
            raise NotAcquired(reason(error)) from error
        return OurLease(lease, fencing=kind.fencing)

    async def adopt(self, exported: str) -> OurLease:
        try:
            lease = await self._redlock.adopt(exported, on_lost="flag")
        except RedlockError as error:
            raise NotAcquired(reason(error)) from error
        return OurLease(lease, fencing=self._kind.fencing)

    async def force_release(self, key: str) -> None:
        try:
            await self._redlock.force_release(key)
        except RedlockError as error:
            raise NotAcquired(reason(error)) from error


@dataclass(frozen=True, slots=True)
class Ours:
    """One kind of lock of redlock_aio; see `Contestant`."""

    name: str
    several: int = 1
    fair: bool = False
    fencing: bool = False
    abilities: frozenset[Ability] = ALL_ABILITIES
    distribution: str = "redlock-aio"
    masters: int = 5
    command: tuple[str, ...] = ()

    def versions(self) -> dict[str, str]:
        """Return the versions of the library and its client."""
        return installed(self.distribution, "redis", "hiredis")

    @contextlib.asynccontextmanager
    async def open(self, urls: Sequence[str], setting: Setting) -> AsyncIterator[Locks]:
        """Open a manager; a URL with the scheme ``sentinel`` is a master behind Sentinels."""
        async with contextlib.AsyncExitStack() as stack:
            masters = [_master(url, stack) for url in urls]
            redlock = await stack.enter_async_context(
                Redlock(
                    masters,
                    max_ttl=setting.max_ttl,
                    restart_guard=setting.guard,
                    name=setting.name or None,
                )
            )
            yield OurLocks(redlock, self)


def _master(url: str, stack: contextlib.AsyncExitStack) -> str | redis.asyncio.Redis:
    """Return the URL, or the client of a master behind Sentinels, closed by *stack*."""
    where = urlsplit(url)
    if where.scheme != "sentinel":
        return url
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
)


# --------------------------------------------------------------------------- no lock


class Nothing:
    """A `Held` and its `Locks` that exclude nobody: the checks must find that."""

    def __init__(self, ttl: int = 0) -> None:
        self.id = unique("none-")
        self.token = None
        self.until = now() + ttl * MS

    def ensure_valid(self) -> None:
        """Return always."""

    async def wait_lost(self) -> str:
        """Wait for ever."""
        await asyncio.get_running_loop().create_future()
        return ""

    async def extend(self, ttl: int) -> None:
        """Claim the lease for *ttl* ms."""
        self.until = now() + ttl * MS

    async def release(self) -> None:
        """Return at once."""

    def export(self) -> str:
        """Fail: it is never asked for."""
        raise NotHeld("no lock")

    async def acquire(
        self, keys: Sequence[str], ttl: int, wait: int, *, auto_extend: bool
    ) -> "Nothing":
        """Return at once, also if others have done so."""
        del keys, wait, auto_extend
        await asyncio.sleep(0)
        return Nothing(ttl)

    async def adopt(self, exported: str) -> "Nothing":
        """Fail: it is never asked for."""
        raise NotAcquired(exported)

    async def force_release(self, key: str) -> None:
        """Fail: it is never asked for."""
        raise NotAcquired(key)


@dataclass(frozen=True, slots=True)
class NoLock:
    """The `Contestant` without any lock: a control that must fail."""

    name: str = "no lock"
    several: int = 1
    fair: bool = False
    fencing: bool = False
    abilities: frozenset[Ability] = frozenset(("check", "extend", "auto_extend", "sentinel"))
    distribution: str = "redlock-aio"
    masters: int = 5
    command: tuple[str, ...] = ()

    def versions(self) -> dict[str, str]:
        """Return the versions of the library and its client."""
        return installed(self.distribution, "redis", "hiredis")

    @contextlib.asynccontextmanager
    async def open(self, urls: Sequence[str], setting: Setting) -> AsyncIterator[Locks]:
        """Open nothing."""
        del urls, setting
        yield Nothing()


def contestants() -> dict[str, Contestant]:
    """Return all contestants by their names: ours, the peers whose packages exist, no lock."""
    from .peers import peers  # they import this module

    everybody: list[Contestant] = [*OURS, *peers(), NoLock()]
    return {each.name: each for each in everybody}
