"""What rounds need from outside: masters and a clock."""

import asyncio
import functools
import time
from collections.abc import Callable, Sequence
from typing import Protocol

from redlock_aio._protocol.request import Asker, Silence


class Link(Protocol):
    """What a round needs of a master."""

    @property
    def name(self) -> str: ...

    can_free: bool

    @property
    def clustered(self) -> bool: ...
    @property
    def quarantine(self) -> str: ...
    @property
    def received(self) -> int: ...
    @property
    def send(self) -> Callable[[bytes, Sequence[Asker]], Silence | None]: ...
    def overdue(self) -> Silence: ...
    def owe(self, payload: bytes, ttl: int) -> None: ...


def clock_of(loop: asyncio.AbstractEventLoop) -> Callable[[], float]:
    """
    Return the clock that leases live by, in seconds.

    It also counts the time that the machine was suspended, where the system has
    such a clock. A loop that makes its own time (see `redlock_aio.testing`)
    is asked for it.
    """
    own: Callable[[], float] | None = getattr(loop, "boottime", None)
    if own is not None:
        return own
    clock = getattr(time, "CLOCK_BOOTTIME", None)
    return time.monotonic if clock is None else functools.partial(time.clock_gettime, clock)
