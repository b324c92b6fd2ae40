"""
A job of APScheduler on one of many hosts: start this on all of them.

The schedulers of all hosts start the job at the same moment. One host gets the lock, and the
others skip it. `hold_at_least` keeps the lock for hosts whose clocks are late.

docs/how-to/recipes.md explains it.
"""

import asyncio
import logging
import os
import signal

from apscheduler.schedulers.asyncio import AsyncIOScheduler

from redlock_aio import Redlock

MASTERS = os.environ.get("REDLOCK_MASTERS", "redis://localhost:6379").split(",")
EVERY = float(os.environ.get("EVERY", "60"))  # seconds
# More than your hosts' clocks may differ, less than the time between two runs.
KEEP = int(os.environ.get("KEEP_MS", "30000"))

redlock = Redlock(MASTERS, key_prefix="lock:")


@redlock.locked("job:clean-up", skip_if_locked=True, hold_at_least=KEEP)
async def clean_up() -> None:
    print("cleaning up", flush=True)


async def main() -> None:
    logging.basicConfig(level=logging.INFO)  # the scheduler logs each run
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    scheduler = AsyncIOScheduler()
    # Late runs are merged or skipped, and this process never makes two at once.
    scheduler.add_job(clean_up, "interval", seconds=EVERY, max_instances=1, coalesce=True)
    scheduler.start()
    await stop.wait()
    scheduler.shutdown()  # cancels a job that runs


asyncio.run(main())  # waits until that job has cleaned up, which releases its lock
