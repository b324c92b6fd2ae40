"""
Find out who holds a lock that does not come free, and release it by force.

docs/how-to/who-holds-it.md explains it.
"""

import asyncio
import os

from redlock_aio import LockLostError, LockNotAcquiredError, Redlock

MASTERS = os.environ.get("REDLOCK_MASTERS", "redis://localhost:6379").split(",")


async def stuck_job(redlock: Redlock, has_it: asyncio.Event) -> None:
    """Hold the lock for ever; its lease is extended for as long as the process lives."""
    try:
        async with redlock.lock("report:nightly", fencing=True):
            has_it.set()
            await asyncio.sleep(3600)  # your work
    except LockLostError as error:
        print("the holder:", error)


async def operator(redlock: Redlock) -> None:
    """Print who holds it, on which masters, and release it by force."""
    try:
        await redlock.lock("report:nightly", wait=0).acquire()
    except LockNotAcquiredError as error:
        print("not free, held by", error.holder)
    state = await redlock.inspect("report:nightly")
    print(state)
    if state.locked and not state.orphaned:
        # The holder is notified, and nobody gets in meanwhile. Then the next waiter gets it.
        await redlock.force_release("report:nightly")
    print("held by somebody:", await redlock.is_locked("report:nightly"))
    async with redlock.lock("report:nightly", fencing=True) as lease:
        # If the old holder still writes, a fence refuses that: this token is higher.
        print("a higher token:", lease.fencing_token > (state.fencing_counter or 0))


async def main() -> None:
    # Two managers stand for two programs.
    async with (
        Redlock(MASTERS, key_prefix="lock:") as theirs,
        Redlock(MASTERS, key_prefix="lock:") as ours,
    ):
        has_it = asyncio.Event()
        job = asyncio.create_task(stuck_job(theirs, has_it))
        await has_it.wait()
        await operator(ours)
        await job


asyncio.run(main())
