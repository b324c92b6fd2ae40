"""
How to wait for a lock, and how not to wait.

docs/tutorial/waiting.md explains it.
"""

import asyncio
import os
from datetime import timedelta

from redlock_aio import LockNotAcquiredError, QuorumUnavailableError, Redlock, Retry

MASTERS = os.environ.get("REDLOCK_MASTERS", "redis://localhost:6379").split(",")


async def one_attempt(redlock: Redlock) -> None:
    """Acquire the lock if it is free, and go on without it if it is not."""
    lease = await redlock.lock("invoice:42").try_acquire()
    if lease is None:
        print("not now: others hold it, or too few masters answer")
        return
    async with lease:
        print("it was free")


async def bounded_wait(redlock: Redlock) -> None:
    """Wait for two seconds at most, and print why the lock was not acquired."""
    try:
        async with redlock.lock("invoice:42", wait=timedelta(seconds=2)):
            print("it was released in time")
    except QuorumUnavailableError as error:  # a LockNotAcquiredError too, so it comes first
        print("too few masters answer:", error)
    except LockNotAcquiredError as error:
        print(f"{error.holder} holds it, for {error.retry_after} ms more:", error)


async def few_attempts(redlock: Redlock) -> None:
    """Make three attempts with long pauses between them, however long they take."""
    patient = Retry(min_delay=100, max_delay=500, attempts=3)
    try:
        async with redlock.lock("invoice:42", retry=patient):
            print("it was released between two attempts")
    except LockNotAcquiredError as error:
        print(f"gave up after {error.attempts} attempts and {error.elapsed} ms")


async def in_order(redlock: Redlock) -> None:
    """Acquire the lock in the order in which the tasks asked for it, also among programs."""

    async def wait(number: int) -> None:
        async with redlock.lock("counter:1", fair=True):
            print(f"number {number} is served")

    async with asyncio.TaskGroup() as tasks:
        for number in range(1, 4):
            tasks.create_task(wait(number))
            await asyncio.sleep(0.01)


async def main() -> None:
    async with Redlock(MASTERS, key_prefix="lock:") as redlock:
        await one_attempt(redlock)
        async with redlock.lock("invoice:42"):
            await one_attempt(redlock)
            await few_attempts(redlock)
            waiter = asyncio.create_task(bounded_wait(redlock))
            await asyncio.sleep(0.2)
        await waiter
        await in_order(redlock)


asyncio.run(main())
