"""
A function that a service starts for each event, such as AWS Lambda, and may freeze in between.

Each call has a `Redlock` of its own, so no connection is frozen. Nothing is extended: the ttl
is longer than the service lets a call run.

docs/how-to/managed-redis.md explains it.
"""

import asyncio
import os
from typing import Any

from redlock_aio import LockNotAcquiredError, Redlock

MASTERS = os.environ.get("REDLOCK_MASTERS", "redis://localhost:6379").split(",")


async def charge(invoice: str) -> str:
    async with Redlock(MASTERS, key_prefix="lock:") as redlock:
        lock = redlock.lock(f"invoice:{invoice}", ttl=30_000, auto_extend=False, wait=2_000)
        try:
            async with lock as lease:
                await asyncio.sleep(0.1)  # a request to somewhere, in which a freeze may come
                lease.ensure_valid()  # before the write: LockLostError if the thaw was too late
                return f"invoice {invoice} is charged"
        except LockNotAcquiredError as error:
            return f"try later: {error}"


def handler(event: dict[str, Any], _context: object = None) -> str:
    return asyncio.run(charge(event["invoice"]))


if __name__ == "__main__":
    print(handler({"invoice": "42"}))
