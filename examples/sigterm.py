"""
A program that releases its lock when it is stopped by SIGTERM.

Python has no handler for SIGTERM: the process ends at once, no `finally` runs, and the lock stays
locked for the rest of its ttl. Here the signal cancels the program, and that releases the lock.

Try it: WORK_SECONDS=60 python sigterm.py & sleep 2; kill %1; wait %1; echo $?

docs/how-to/stop.md explains it.
"""

import asyncio
import os
import signal
import sys

from redlock_aio import Redlock

MASTERS = os.environ.get("REDLOCK_MASTERS", "redis://localhost:6379").split(",")


async def work() -> None:
    print("at work", flush=True)
    await asyncio.sleep(float(os.environ.get("WORK_SECONDS", "0.1")))
    print("done")


async def main() -> None:
    this = asyncio.current_task()
    assert this is not None  # noqa: S101 - for type checkers
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, this.cancel)
    async with Redlock(MASTERS, key_prefix="lock:") as redlock:
        async with redlock.lock("job", ttl=30_000):
            await work()


try:
    asyncio.run(main())
except asyncio.CancelledError:
    print("stopped; the lock is released")
    sys.exit(128 + signal.SIGTERM)  # the status that a shell reports for a killed process
