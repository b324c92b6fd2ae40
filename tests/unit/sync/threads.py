"""What the tests of `redlock_aio.sync` share: waiting for threads, and fake masters in its loop."""

import threading
import time
from collections.abc import Callable
from typing import TypeVar

from redlock_aio.sync import Redlock, _portal
from redlock_aio.testing import FakeMaster

T = TypeVar("T")

SOON = 10.0
"""Seconds within which another thread does its part, on the slowest machine."""


def until(condition: Callable[[], object]) -> None:
    ends = time.monotonic() + SOON
    while not condition():
        assert time.monotonic() < ends
        time.sleep(0.002)


def in_loop(redlock: Redlock, act: Callable[[], T]) -> T:
    """Call *act* in the event loop of a manager, where fake masters live."""

    async def call() -> T:
        return act()

    return redlock._opener.opened().call(call)


def delete(redlock: Redlock, masters: list[FakeMaster], name: str = "r") -> None:
    """Delete the key on all masters, and say nothing: a lease notices it when it is released."""
    for master in masters:
        in_loop(redlock, lambda master=master: vars(master)["_keys"].pop(name.encode(), None))  # type: ignore[misc]


def free(redlock: Redlock, name: str = "r") -> bool:
    """Return whether another thread than this one would get the lock now."""
    lease = redlock.lock(name, owner="another", wait=0).try_acquire()
    if lease is not None:
        lease.release()
    return lease is not None


def lose(redlock: Redlock, name: str = "r") -> None:
    """Lose the lease on *name*: it is released by force."""
    assert redlock.force_release(name)


def portals() -> int:
    """Return the number of threads with the event loop of a manager."""
    return sum(thread.name == _portal.THREAD_NAME for thread in threading.enumerate())
