"""Whose clock it is by which a process lives: which run of which machine."""

import asyncio
import contextlib
import functools
import os
import time
from pathlib import Path

from redlock_aio._protocol.lease_export import boot


def boot_of(loop: asyncio.AbstractEventLoop) -> str:
    """
    Return what the processes have in common that share the clock of `round.clock_of`.

    It is empty if that can't be told. A loop that makes its own time shares it with
    nobody.
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
    # Containers of one machine have one boot_id, but may have clocks of their own; a
    # system without this file has none such.
    with contextlib.suppress(OSError):
        machine += str(Path("/proc/self/ns/time").readlink())
    return boot(machine)
