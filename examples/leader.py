"""
Leader election: start this on several hosts, and one of them leads at a time.

To lead is to hold a lease. A host that loses it leads no more, and becomes a candidate again. The
fencing token is the number of the term: pass it to what the leader writes to.
"""

import asyncio
import os
import signal
import socket

from redlock_aio import Lease, LockLostError, Redlock

MASTERS = os.environ.get("REDLOCK_MASTERS", "redis://localhost:6379").split(",")
NAME = os.environ.get("HOST_NAME", socket.gethostname())
TTL = int(os.environ.get("TTL_MS", "5000"))  # for so long nobody leads after a leader has died
TURNS = int(os.environ.get("TURNS", "3"))  # the example ends after these; yours goes on


async def lead(lease: Lease) -> None:
    """Do what one host does for all."""
    for _ in range(TURNS):
        lease.ensure_valid()  # before each write
        print(f"{NAME} leads, term {lease.fencing_token}", flush=True)
        await asyncio.sleep(0.1)


async def main() -> None:
    this = asyncio.current_task()
    assert this is not None  # noqa: S101 - for type checkers
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, this.cancel)
    async with Redlock(MASTERS, key_prefix="lock:", name=NAME) as redlock:
        while True:
            try:
                async with redlock.lock("leader", ttl=TTL, fencing=True) as lease:
                    await lead(lease)
            except LockLostError as error:
                print(f"{NAME} leads no more: {error}", flush=True)
            else:
                return


try:
    asyncio.run(main())
except asyncio.CancelledError:  # by SIGTERM: the lease is released, and another leads at once
    print(f"{NAME} is stopped", flush=True)
