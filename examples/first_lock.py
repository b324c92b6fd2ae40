"""
Two tasks want the same lock: the second one waits until the first one has released it.

docs/tutorial/first-lock.md explains it.
"""

import asyncio
import os

from redlock_aio import Redlock

MASTERS = os.environ.get("REDLOCK_MASTERS", "redis://localhost:6379").split(",")


async def send_invoice(redlock: Redlock, number: int) -> None:
    async with redlock.lock(f"invoice:{number}", ttl=10_000) as lease:
        await asyncio.sleep(0.1)  # your work: cancelled if the lock is ever lost
        lease.ensure_valid()  # before each write: LockLostError if it is too late
        print(f"invoice {number}: nobody else works on it; {lease.remaining} ms are left")


async def main() -> None:
    async with Redlock(MASTERS, key_prefix="lock:") as redlock:  # one for the whole program
        await asyncio.gather(send_invoice(redlock, 42), send_invoice(redlock, 42))


asyncio.run(main())
