"""The lines that everybody copies."""

import asyncio
import os

from redlock_aio import Redlock

MASTERS = os.environ.get("REDLOCK_MASTERS", "redis://localhost:6379").split(",")


async def main() -> None:
    async with Redlock(MASTERS) as redlock:
        async with redlock.lock("invoice:42", ttl=10_000) as lease:
            print("nobody else has invoice 42 now; it is extended for as long as this block runs")
            await asyncio.sleep(0.1)  # your work; cancelled if the lock is ever lost
            lease.ensure_valid()  # before each write: raises LockLostError if it is too late
            print("written; the lock would have lived for", lease.remaining, "ms more")


asyncio.run(main())
