"""
A periodic job that runs on one of many hosts: start this from cron on all of them.

The masters keep the lock for a while after the job has ended. Otherwise a host whose
clock is a little late would find the lock free, and run the job a second time.

docs/how-to/one-of-many.md explains it.
"""

import asyncio
import os
import socket
import sys

from redlock_aio import LockNotAcquiredError, Redlock

MASTERS = os.environ.get("REDLOCK_MASTERS", "redis://localhost:6379").split(",")

# More than WAIT and what your hosts' clocks may differ, less than the time between two runs.
KEEP = int(os.environ.get("KEEP_MS", "30000"))
WAIT = 1_000  # all hosts ask at once, and may all get a minority: they try again


async def clean_up() -> None:
    print("cleaning up")


async def main() -> int:
    host = os.environ.get("HOST_NAME", socket.gethostname())
    async with Redlock(MASTERS, key_prefix="lock:", name=host) as redlock:
        about = {"pid": os.getpid()}
        lock = redlock.lock("cron:clean-up", wait=WAIT, hold_at_least=KEEP, metadata=about)
        try:
            async with lock:  # extended for as long as the job takes, cancelled if it is lost
                await clean_up()
        except LockNotAcquiredError as error:
            if error.holder is None:  # too few masters answered to tell
                print(error, file=sys.stderr)
                return 1
            pid = error.holder.metadata.get("pid")
            print(f"it runs or has run on {error.holder.name}, as process {pid}")
    return 0


sys.exit(asyncio.run(main()))
