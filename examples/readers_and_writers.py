"""
Many tasks search an index at the same time; the task that rebuilds it works alone.

docs/how-to/readers-and-writers.md explains it.
"""

import asyncio
import os

from redlock_aio import Lock, ReadWriteLock, Redlock, RedlockError

MASTERS = os.environ.get("REDLOCK_MASTERS", "redis://localhost:6379").split(",")

index = {"version": 0}


async def search(shop: ReadWriteLock[Lock], number: int) -> None:
    """Read the index together with all others that read it."""
    async with shop.read(wait=10_000):
        print(f"search {number} reads version {index['version']}")
        await asyncio.sleep(0.5)  # your work
        print(f"search {number} is done")


async def rebuild(shop: ReadWriteLock[Lock]) -> None:
    """
    Change the index while nobody else reads or changes it.

    The fencing token is stored with the data: so a reader knows which version it has read.
    """
    async with shop.write(fencing=True) as lease:
        await asyncio.sleep(0.1)  # your work
        lease.ensure_valid()
        index["version"] = lease.fencing_token
        print(f"version {index['version']} is written")


async def search_and_rebuild(shop: ReadWriteLock[Lock]) -> None:
    """Try what can't be: to become the writer while reading."""
    async with shop.read():
        try:
            await rebuild(shop)
        except RedlockError as error:
            print(error)
    await rebuild(shop)  # after the read it is possible


async def main() -> None:
    async with Redlock(MASTERS, key_prefix="lock:") as redlock:
        shop = redlock.rw_lock("index:shop", ttl=10_000)
        async with asyncio.TaskGroup() as tasks:
            for number in (1, 2):
                tasks.create_task(search(shop, number))
            await asyncio.sleep(0.1)
            tasks.create_task(rebuild(shop))
            await asyncio.sleep(0.1)
            tasks.create_task(search(shop, 3))  # comes later than the writer, so it waits
            state = await redlock.inspect("index:shop")
            print(f"{len(state.readers)} read, {state.waiting_writers} waits to write")
        await search_and_rebuild(shop)


asyncio.run(main())
