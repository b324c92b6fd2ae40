"""
A lease that goes from one process to another: a web process acquires the lock and answers
at once, and a worker that it starts does the work under the same lease.

Nobody else gets the lock in between. The text that goes to the worker is a secret, because
every process that has it can take the lock. Therefore it goes over the worker's standard
input, and not in its arguments, which others can see.

docs/how-to/hand-over.md explains it.
"""

import asyncio
import os
import sys

from redlock_aio import LockNotAcquiredError, Redlock

MASTERS = os.environ.get("REDLOCK_MASTERS", "redis://localhost:6379").split(",")


async def serve(redlock: Redlock, report: str) -> asyncio.subprocess.Process | None:
    """Answer one request, and return the process that does its work."""
    try:
        lease = await redlock.lock(f"report:{report}", wait=0, fencing=True).acquire()
    except LockNotAcquiredError:
        print(f"409 {report} is being made already")
        return None
    async with lease:  # released if no worker can be started
        worker = await asyncio.create_subprocess_exec(
            *(sys.executable, "-u", __file__, "worker", report), stdin=asyncio.subprocess.PIPE
        )
        handed = lease.export()  # the lease is over in this process now
    if worker.stdin is not None:
        worker.stdin.write(handed.encode())
        worker.stdin.close()
    print(f"202 {report} is being made, with token {lease.fencing_token}", flush=True)
    return worker


async def work(redlock: Redlock, report: str, handed: str) -> None:
    """Do the work under the lease. If it is over, or adopted before, `adopt` raises an error."""
    async with await redlock.adopt(handed) as lease:  # extended while the block runs
        await asyncio.sleep(0.5)
        print(f"{report} is made, with token {lease.fencing_token}")


async def main() -> None:
    async with Redlock(MASTERS, key_prefix="lock:") as redlock:
        if sys.argv[1:2] == ["worker"]:
            await work(redlock, sys.argv[2], sys.stdin.read())
            return
        worker = await serve(redlock, "sales")
        await serve(redlock, "sales")
        if worker is not None:
            await worker.wait()
        async with redlock.lock("report:sales"):
            print("and free again")


asyncio.run(main())
