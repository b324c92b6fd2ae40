"""
Leader election: start this on several hosts, and one of them leads at a time.

To lead is to hold a lease. A host that loses it leads no more, and becomes a candidate again. The
number of the term rises from leader to leader: pass it to what the leader writes to.

docs/how-to/leader.md explains it.
"""

import asyncio
import os
import signal
import socket

from redlock_aio import LockLostError, Redlock, Term

MASTERS = os.environ.get("REDLOCK_MASTERS", "redis://localhost:6379").split(",")
NAME = os.environ.get("HOST_NAME", socket.gethostname())
TTL = int(os.environ.get("TTL_MS", "5000"))  # for so long nobody leads after a leader has died
TURNS = int(os.environ.get("TURNS", "3"))  # the example ends after these; yours goes on


async def lead(term: Term) -> None:
    """Do what one host does for all."""
    for _ in range(TURNS):
        term.ensure_valid()  # before each write
        print(f"{NAME} leads, term {term.number}", flush=True)
        await asyncio.sleep(0.1)


async def main() -> None:
    this = asyncio.current_task()
    assert this is not None  # noqa: S101 - for type checkers
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, this.cancel)
    async with Redlock(MASTERS, key_prefix="lock:", name=NAME) as redlock:
        async for term in redlock.election("leader", ttl=TTL):
            async with term:  # cancels the body if the term is lost, and goes on behind it
                await lead(term)
                return
            try:
                term.ensure_valid()
            except LockLostError as error:  # it says why
                print(f"{NAME} leads no more: {error}", flush=True)


try:
    asyncio.run(main())
except asyncio.CancelledError:  # by SIGTERM: the lease is released, and another leads at once
    print(f"{NAME} is stopped", flush=True)
