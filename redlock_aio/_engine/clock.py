"""The identifier of the machine's boot, from which the clock of leases counts."""

import asyncio
import contextlib
import functools
import os
import time
from pathlib import Path

from redlock_aio._protocol.lease_export import boot


def boot_of(loop: asyncio.AbstractEventLoop) -> str:
    """
    Return an identifier that all processes with the same `links.clock_of` clock share.

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
