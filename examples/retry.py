"""
Do not wait for a lock, but come back when it may be free: `retry_after` says when that is.

`wait=` is simpler where a task has nothing else to do. This is for a job that goes back into a
queue, or for a client that is told to ask again.

docs/how-to/worker.md explains it.
"""

import asyncio
import os
import random

from redlock_aio import LockNotAcquiredError, Redlock

MASTERS = os.environ.get("REDLOCK_MASTERS", "redis://localhost:6379").split(",")


async def send_invoice(redlock: Redlock) -> None:
    async with redlock.lock("invoice:42", wait=0) as lease:
        lease.ensure_valid()
        print("sent")


async def with_retries(redlock: Redlock, attempts: int) -> None:
    for attempt in range(1, attempts + 1):
        try:
            await send_invoice(redlock)
        except LockNotAcquiredError as error:
            if attempt == attempts:
                raise
            # None if no majority answers. The holder may extend its lease meanwhile.
            pause = 1_000 if error.retry_after is None else error.retry_after
            print(f"attempt {attempt}: held, again in {pause} ms or a little more")
            # At random, so that all who were refused do not come back at the same moment.
            await asyncio.sleep((pause + random.uniform(0, 100)) / 1_000)  # noqa: S311
        else:
            return


async def somebody_else(redlock: Redlock, has_it: asyncio.Event) -> None:
    async with redlock.lock("invoice:42", ttl=400):
        has_it.set()
        await asyncio.sleep(0.2)


async def main() -> None:
    async with Redlock(MASTERS, key_prefix="lock:") as redlock, asyncio.TaskGroup() as tasks:
        has_it = asyncio.Event()
        tasks.create_task(somebody_else(redlock, has_it))
        await has_it.wait()
        await with_retries(redlock, attempts=5)


asyncio.run(main())
