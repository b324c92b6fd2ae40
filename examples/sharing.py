"""
Three ways to hold a resource: together with others, alone, and a few at a time.

docs/tutorial/sharing.md explains it.
"""

import asyncio
import os

from redlock_aio import Lock, ReadWriteLock, Redlock, Semaphore

MASTERS = os.environ.get("REDLOCK_MASTERS", "redis://localhost:6379").split(",")

at_work: set[str] = set()


async def work(name: str) -> None:
    """Print how many are at work at this moment."""
    at_work.add(name)
    await asyncio.sleep(0.4)  # your work
    print(f"{name}: {len(at_work)} at work")
    await asyncio.sleep(0.1)
    at_work.remove(name)


async def read(page: ReadWriteLock[Lock], number: int) -> None:
    async with page.read():
        await work(f"reader {number}")


async def write(page: ReadWriteLock[Lock]) -> None:
    async with page.write() as lease:
        await work("the writer")
        lease.ensure_valid()  # before each write


async def call(api: Semaphore, number: int) -> None:
    async with api as lease:
        await work(f"call {number} with permit {lease.permit}")


async def main() -> None:
    async with Redlock(MASTERS, key_prefix="lock:") as redlock:
        page = redlock.rw_lock("page:7")
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(read(page, 1))
            tasks.create_task(read(page, 2))
            await asyncio.sleep(0.2)
            tasks.create_task(write(page))  # it comes later than the readers

        api = redlock.semaphore("weather-api", permits=2)
        async with asyncio.TaskGroup() as tasks:
            for number in range(1, 5):
                tasks.create_task(call(api, number))
                await asyncio.sleep(0.05)


asyncio.run(main())
