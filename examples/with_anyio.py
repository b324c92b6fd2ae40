"""
The lock in a program that anyio runs: cancel scopes, task groups and threads.

docs/how-to/recipes.md explains it.
"""

import os
import time

import anyio
import anyio.to_thread

from redlock_aio import Lease, Redlock

MASTERS = os.environ.get("REDLOCK_MASTERS", "redis://localhost:6379").split(",")


async def wait_for_it(redlock: Redlock) -> None:
    with anyio.move_on_after(0.2) as scope:  # wait=200 would raise an error instead
        async with redlock.lock("report"):
            print("not printed: it is held")
    print("gave up waiting:", scope.cancelled_caught)


def in_a_thread(lease: Lease) -> str:
    time.sleep(0.1)  # your work
    lease.ensure_valid()  # before each write
    return "written by a thread"


async def main() -> None:
    async with Redlock(MASTERS, key_prefix="lock:") as redlock:
        # A loss cancels the body, and so the tasks of the group in it.
        async with redlock.lock("report") as lease, anyio.create_task_group() as tasks:
            tasks.start_soon(wait_for_it, redlock)
            print(await anyio.to_thread.run_sync(in_a_thread, lease))


anyio.run(main)  # on asyncio, its default
