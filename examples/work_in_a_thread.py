"""
Work in a thread under a lock, and the pattern that stops it.

A loss cancels the task, as a timeout does. Neither can stop a thread: it would go on while
somebody else holds the lock. So the thread looks before each write, and the task waits for it.

docs/how-to/work-in-threads.md explains it.
"""

import asyncio
import contextlib
import contextvars
import os
import threading
import time
from collections.abc import Callable

import anyio

from redlock_aio import Lease, LockLostError, Redlock

MASTERS = os.environ.get("REDLOCK_MASTERS", "redis://localhost:6379").split(",")


# [start:pattern]
async def run_in_thread(
    lease: Lease, work: Callable[[Callable[[], None], int], None], parts: int
) -> None:
    """Run *work* in a thread, with a function that raises when the work has to end."""
    cancelled = threading.Event()

    def check() -> None:
        if cancelled.is_set():
            raise InterruptedError("the task was cancelled")
        lease.ensure_valid()  # it only looks at the clock, so any thread may call it

    # A future, and no task as by `asyncio.to_thread`: the end of `asyncio.run` would cancel that,
    # and it would count as done while its thread works on.
    run = contextvars.copy_context().run  # as asyncio.to_thread does it
    thread = asyncio.get_running_loop().run_in_executor(None, run, work, check, parts)
    try:
        await asyncio.shield(thread)
    except asyncio.CancelledError:
        cancelled.set()
        # The block is left, and the lock released, when the thread has ended, and not before: also
        # if the task is cancelled again. After a loss, anyio would cancel the wait in each turn.
        while not thread.done():
            with contextlib.suppress(asyncio.CancelledError), anyio.CancelScope(shield=True):
                await asyncio.wait([thread])
        thread.exception()  # asyncio logs an error that nobody asks for
        raise


# [end:pattern]
def write_parts(check: Callable[[], None], parts: int) -> None:
    for part in range(1, parts + 1):
        time.sleep(0.05)  # your work
        check()  # before each write
        print(f"part {part} is written")


async def force_release(redlock: Redlock) -> None:
    while not await redlock.force_release("report"):  # noqa: ASYNC110 - as an operator does
        await asyncio.sleep(0.1)


async def main() -> None:
    async with Redlock(MASTERS, key_prefix="lock:") as redlock:
        async with redlock.lock("report") as lease:
            await run_in_thread(lease, write_parts, 2)
        operator = asyncio.create_task(force_release(redlock))
        try:
            async with redlock.lock("report") as lease:
                await run_in_thread(lease, write_parts, 1_000)
        except LockLostError as error:
            print(f"the thread has ended: {error}")
        await operator


if __name__ == "__main__":
    asyncio.run(main())
