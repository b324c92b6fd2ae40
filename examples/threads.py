"""
The lock without asyncio, in a program with threads.

docs/how-to/without-asyncio.md explains it.
"""

import os
from concurrent.futures import ThreadPoolExecutor

from redlock_aio import LockLostError, LockNotAcquiredError
from redlock_aio.sync import Redlock

MASTERS = os.environ.get("REDLOCK_MASTERS", "redis://localhost:6379").split(",")

redlock = Redlock(MASTERS, key_prefix="lock:")  # at module level: it connects on first use


def send(invoice_id: int) -> None:
    with redlock.lock(f"invoice:{invoice_id}", ttl=10_000, wait=5_000) as lease:
        print(f"invoice {invoice_id} is being sent")
        lease.ensure_valid()  # before each write: LockLostError if it is too late
        print(f"invoice {invoice_id} is sent")


@redlock.locked("report:{name}", skip_if_locked=True)
def report(name: str) -> str:
    try:
        with redlock.lock(f"report:{name}", wait=0):
            return "nobody else makes it"
    except LockNotAcquiredError as error:
        return f"it is made by {'this thread' if error.hint else 'another one'}"


def work_until_lost(job: str) -> str:
    try:
        with redlock.lock(job, on_lost=lambda error: print(f"told: {error}")) as lease:
            redlock.force_release(job)  # as an operator does, or as masters that are away
            while not lease.lost.wait(0.01):
                print("the next part of the work")
    except LockLostError:
        return "stopped"
    return "done"


with redlock, ThreadPoolExecutor() as pool:
    list(pool.map(send, [42, 42]))
    print(report("sales"))
    print(work_until_lost("job"))
