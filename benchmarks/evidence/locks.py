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
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Literal

MS = 1_000_000
"""Nanoseconds in a millisecond."""

Ability = Literal[
    "check",
    "extend",
    "auto_extend",
    "report",
    "notify",
    "adopt",
    "force_release",
    "sentinel",
    "cluster",
    "guard",
    "again",
]
"""
"check": `Held.ensure_valid` tells something. "extend": `Held.extend`.
"auto_extend": a lease outlives its ttl while it is held. "report": `Held.on_extended` is called
after each extension. "notify": `Held.wait_lost` returns by
itself. "adopt": `Held.export` and `Locks.adopt`. "force_release": `Locks.force_release`.
"sentinel": takes URLs such as ``sentinel://host:port,host:port/service``.
"cluster": takes a URL such as ``redis+cluster://host:port?masters=3``.
"guard": `Held.guard` cancels a body that loses the lease. "again": `Held.again`.
"""


class NotAcquired(Exception):  # noqa: N818 - not an error of the program, but a result
    """The lock was not acquired: nothing is held."""


class NotHeld(Exception):  # noqa: N818 - not an error of the program, but a result
    """The lease is over, or could not be extended or released."""


class Held(ABC):
    """
    A lease. All instants are nanoseconds on CLOCK_BOOTTIME.

    Attributes:
        id: A text that no other lease has, of any process.

        token: The fencing token, or None.

        permit: The number of the permit of a semaphore, from 0 on; None if there is none.

        until: The instant up to which the library promises the lease, as known now; 0 if
            it is over.

        on_extended: What to call soon after each extension, also those by the library itself.
    """

    id: str
    on_extended: Callable[[], None] = staticmethod(lambda: None)
    token: int | None = None
    permit: int | None = None
    until: int = 0

    def ensure_valid(self) -> None:  # noqa: B027 - most libraries have nothing to ask
        """Return if the lease is valid now, or can't be asked; raise `NotHeld` if it is not."""

    async def wait_lost(self) -> str:
        """Return why the lease was lost, as soon as the library says so; else wait for ever."""
        await asyncio.get_running_loop().create_future()
        return ""

    @abstractmethod
    async def extend(self, ttl: int) -> None:
        """Extend the lease to *ttl* ms from now; raise `NotHeld` if that failed."""

    @abstractmethod
    async def release(self) -> None:
        """Release the lease; raise `NotHeld` if it was over before."""

    def guard(self) -> contextlib.AbstractAsyncContextManager[None]:
        """
        Return what cancels a body if the lease is lost, and releases it at the end.

        It raises `NotHeld` at the end if the lease was lost.
        """
        raise NotHeld("no such feature")

    def again(self) -> "contextlib.AbstractAsyncContextManager[Held]":
        """Return what acquires the lock once more for its holder; `NotHeld` if it is over."""
        raise NotHeld("no such feature")

    def export(self) -> str:
        """End the lease here, and return a text by which another process adopts it."""
        raise NotHeld("no such feature")


class Locks(ABC):
    """One client of the masters."""

    @abstractmethod
    async def acquire(self, keys: Sequence[str], ttl: int, wait: int, *, auto_extend: bool) -> Held:
        """
        Wait *wait* ms at most for the lock on all *keys*; raise `NotAcquired` after that.

        With *wait* 0 it tries once.

        Args:
            auto_extend: Whether the lease is extended until it is released. It is ignored
                by a library without that ability.
        """

    async def acquire_shared(
        self, keys: Sequence[str], ttl: int, wait: int, *, auto_extend: bool
    ) -> Held:
        """Acquire the lock of a reader, as `acquire` does that of a writer."""
        raise NotAcquired(f"no such feature: {keys}, {ttl}, {wait}, {auto_extend}")

    def leases(self) -> int:
        """Return how many leases this client believes to have; 0 if it counts none."""
        return 0

    async def adopt(self, exported: str) -> Held:
        """Continue a lease of another process; raise `NotAcquired` if that failed."""
        raise NotAcquired(f"no such feature: {exported}")

    async def force_release(self, key: str, permit: int | None = None) -> None:
        """
        Release *key* for its holder, or its *permit*.

        Raises:
            NotAcquired: Too few masters answered.
        """
        raise NotAcquired(f"no such feature: {key}, {permit}")


@dataclass(frozen=True, slots=True)
class Setting:
    """What all clients of a run have in common."""

    max_ttl: int = 1_000
    """The longest ttl in ms that is used."""

    guard: Literal["auto", "off"] = "auto"
    """Whether a master that has restarted is kept from voting until its locks are over."""

    name: str = ""
    """The name of the client, where a library shows one to others."""

    varied: bool = False
    """Whether a lock is acquired and released in all ways that the library has, in turn."""

    misuse: bool = False
    """See `Job.misuse`."""


class Contestant(ABC):
    """
    A library with one kind of its locks.

    Attributes:
        name: Its name on the command line and in tables.

        distribution: The package that has it.

        clients: The other packages whose versions matter.

        abilities: What `Locks` and `Held` can do besides acquiring and releasing.

        several: How many keys one lock has.

        fair: Whether waiters are served in order.

        fencing: Whether leases have fencing tokens; those of readers have none.

        reads: The share of turns in which a task only reads, by `Locks.acquire_shared`.

        permits: How many may have a permit of a key, which is a semaphore; 0 if it is none.

        keeps: For how many ms a lock is kept from its acquisition, also if it is released earlier.

        masters: How many of the masters it uses, the first ones.

        event_loop: Whether its clients have an event loop that can be blocked.

        threads: Whether its calls block, so that each task has a thread of its own.

        forks: Whether a process may fork while it holds a lock.

        command: The words before JOB and NAME of a program that works in the place of
            `worker.py`, for other languages; empty for `worker.py`.
    """

    name: str
    distribution: str
    clients: tuple[str, ...] = ("redis",)
    abilities: frozenset[Ability] = frozenset()
    several: int = 1
    fair: bool = False
    fencing: bool = False
    reads: float = 0.0
    permits: int = 0
    keeps: int = 0
    masters: int = 5
    event_loop: bool = True
    threads: bool = False
    forks: bool = True
    command: tuple[str, ...] = ()

    def versions(self) -> dict[str, str]:
        """Return the versions of the packages that matter, of those that are installed."""
        found = {}
        # Every second client process runs on uvloop, where it is installed.
        for package in (self.distribution, *self.clients, "uvloop"):
            with contextlib.suppress(PackageNotFoundError):
                found[package] = version(package)
        return found

    @abstractmethod
    def open(
        self, urls: Sequence[str], setting: Setting
    ) -> contextlib.AbstractAsyncContextManager[Locks]:
        """Open a client of the masters at *urls*."""


ALL_ABILITIES: frozenset[Ability] = frozenset(
    (
        "check",
        "extend",
        "auto_extend",
        "report",
        "notify",
        "adopt",
        "force_release",
        "sentinel",
        "cluster",
    )
)

_numbers = itertools.count()


def unique(stem: str = "") -> str:
    """Return an identifier that no other lease has, of any process, also of a forked one."""
    return f"{stem}{os.getpid()}-{next(_numbers)}-{secrets.token_hex(4)}"
