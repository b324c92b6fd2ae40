"""The clock of leases, and the identifier of the machine's boot, from which it counts."""

import asyncio
import contextlib
import functools
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

from redlock_aio._protocol.lease_export import boot


def clock_of(loop: asyncio.AbstractEventLoop) -> Callable[[], float]:
    """
    Return the clock of leases, in seconds.

    Where the system has such a clock, it also counts the time that the machine was
    suspended. For a loop with virtual time (see `redlock_aio.testing`) it is the
    clock of that loop.
    """
    own: Callable[[], float] | None = getattr(loop, "boottime", None)
    return _of_the_machine() if own is None else own


def _of_the_machine() -> Callable[[], float]:
    if sys.platform == "win32":
        # It counts a suspension, as `time.monotonic` does. But that stands still for up to 16 ms
        # before Python 3.13: a holder would believe in a short lease when its key has expired.
        return time.perf_counter
    # `time.monotonic` of macOS does not count a suspension, and this clock of macOS does.
    name = "CLOCK_MONOTONIC_RAW" if sys.platform == "darwin" else "CLOCK_BOOTTIME"
    clock = getattr(time, name, None)
    return time.monotonic if clock is None else functools.partial(time.clock_gettime, clock)


def boot_of(loop: asyncio.AbstractEventLoop) -> str:
    """
    Return an identifier that all processes with the same `clock_of` clock share.

    The identifier is empty if it cannot be determined. A loop with virtual time shares its
    clock with no other process or loop.
    """
    if getattr(loop, "boottime", None) is not None:
        return boot(f"{os.getpid()}:{id(loop)}")
    return _boot()


@functools.cache
def _boot() -> str:
    if not hasattr(time, "CLOCK_BOOTTIME"):
        return ""
    try:
        machine = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii")
    except (OSError, ValueError):
        return ""
    # Containers of one machine have one boot_id, but may have clocks of their own (time
    # namespaces); a system without this file has no time namespaces.
    with contextlib.suppress(OSError):
        machine += str(Path("/proc/self/ns/time").readlink())
    return boot(machine)
