"""The shortest program with a lock."""

import asyncio
import os

from redlock_aio import Redlock

MASTERS = os.environ.get("REDLOCK_MASTERS", "redis://localhost:6379").split(",")


async def main() -> None:
    async with Redlock(MASTERS, key_prefix="lock:") as redlock:
        async with redlock.lock("invoice:42", ttl=10_000) as lease:
            print("nobody else sends invoice 42 meanwhile, in any process on any host")
            lease.ensure_valid()  # before each write: LockLostError if it is too late


asyncio.run(main())
