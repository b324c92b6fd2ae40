"""No lock at all, behind the interface of `locks`: a control, in which the checks must fail."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence

from .locks import MS, Contestant, Held, Locks, Setting, unique
from .recorder import now


class _Nothing(Held):
    """A lease that excludes nobody."""

    def __init__(self, ttl: int) -> None:
        self.id = unique("none-")
        self.until = now() + ttl * MS

    async def extend(self, ttl: int) -> None:
        self.until = now() + ttl * MS

    async def release(self) -> None:
        """Return at once."""


class _Open(Locks):
    async def acquire(
        self, keys: Sequence[str], ttl: int, wait: int, *, auto_extend: bool
    ) -> _Nothing:
        """Return at once, also if others have done so."""
        del keys, wait, auto_extend
        await asyncio.sleep(0)
        return _Nothing(ttl)


class NoLock(Contestant):
    """Everybody gets in at once."""

    name = "no lock"
    distribution = "redlock-aio"
    clients: tuple[str, ...] = ("redis", "hiredis")
    abilities = frozenset(("check", "extend", "auto_extend", "sentinel"))

    @contextlib.asynccontextmanager
    async def open(self, urls: Sequence[str], setting: Setting) -> AsyncIterator[Locks]:
        """Open nothing."""
        del urls, setting
        yield _Open()
