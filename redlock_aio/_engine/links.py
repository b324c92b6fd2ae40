"""The interface of a master as rounds use it, and the clock of leases."""

import asyncio
import functools
import time
from collections.abc import Callable, Sequence
from typing import Protocol

from redlock_aio._protocol.request import NoReply, Sender


class Link(Protocol):
    """The interface of a master as rounds use it: a `Master`, or a fake without a connection."""

    @property
    def name(self) -> str: ...

    can_free: bool

    @property
    def votes(self) -> bool: ...
    @property
    def quarantine(self) -> str: ...
    @property
    def received(self) -> int: ...
    @property
    def send(self) -> Callable[[bytes, Sequence[Sender]], NoReply | None]: ...
    def overdue(self) -> NoReply: ...
    def add_debt(self, payload: bytes, ttl: int) -> None: ...


def clock_of(loop: asyncio.AbstractEventLoop) -> Callable[[], float]:
    """
    Return the clock of leases, in seconds.

    Where the system has such a clock, it also counts the time that the machine was
    suspended. For a loop with virtual time (see `redlock_aio.testing`) it is the
    clock of that loop.
    """
    own: Callable[[], float] | None = getattr(loop, "boottime", None)
    if own is not None:
        return own
    clock = getattr(time, "CLOCK_BOOTTIME", None)
    return time.monotonic if clock is None else functools.partial(time.clock_gettime, clock)
