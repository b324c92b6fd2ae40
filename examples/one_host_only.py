"""
A periodic job that runs on one host only: start this from cron on all of them.

The lock is kept for a while after the job. Otherwise a host whose clock is a
little late would find it free again, and run the job a second time.
"""

import asyncio
import os
import sys

from redlock_aio import Redlock

MASTERS = os.environ.get("REDLOCK_MASTERS", "redis://localhost:6379").split(",")

KEEP = float(os.environ.get("KEEP_SECONDS", "30"))  # more than your hosts' clocks may differ


async def clean_up() -> None:
    print("cleaning up")


async def main() -> int:
    async with Redlock(MASTERS) as redlock:
        lease = await redlock.lock("cron:clean-up", ttl=60_000).try_acquire()
        if lease is None:
            print("it runs on another host")
            return 0
        async with lease:  # extended for as long as the job takes, cancelled if it is lost
            await clean_up()
            await asyncio.sleep(KEEP)
    return 0


sys.exit(asyncio.run(main()))
