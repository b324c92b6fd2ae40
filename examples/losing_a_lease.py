"""
What happens in a program that loses its lock, with on_lost="cancel" and with "flag".

This example starts masters of its own, because it kills them. The extra ``testing`` brings a
server for that.

docs/tutorial/losing-it.md explains it.
"""

import asyncio

from redlock_aio import LockLostError, Redlock
from redlock_aio.testing import EmbeddedMaster, embedded_masters


async def cancelled(redlock: Redlock, masters: list[EmbeddedMaster]) -> None:
    """By default the body is cancelled, and LockLostError comes out of the block."""
    try:
        async with redlock.lock("report", ttl=1_000):
            for master in masters[:2]:  # two of three: no majority is left
                master.kill()
            try:
                await asyncio.sleep(60)  # your work
            finally:
                print("the body was cancelled: clean-up runs as in any cancelled task")
    except LockLostError as error:
        print("after the block:", error)


async def flagged(redlock: Redlock, masters: list[EmbeddedMaster]) -> None:
    """With on_lost="flag" nothing is interrupted: ask before each write."""
    written = 0
    try:
        async with redlock.lock("ledger", ttl=1_000, on_lost="flag") as lease:
            for master in masters[:2]:
                master.kill()
            while True:
                await asyncio.sleep(0.1)  # your work, which must not stop half-way
                lease.ensure_valid()
                written += 1
    except LockLostError as error:
        print(f"{written} writes, then ensure_valid() raised:", error)


async def main() -> None:
    for holder in (cancelled, flagged):
        with embedded_masters(3) as masters:
            async with Redlock([master.url for master in masters]) as redlock:
                await holder(redlock, masters)


asyncio.run(main())
