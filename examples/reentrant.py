"""
Functions that lock what they work on, and call each other.

A task that holds a lock acquires it again, and the masters are not asked. Tasks of one
request share a lease if they give the same owner; all other tasks wait.

docs/how-to/reentrant.md explains it.
"""

import asyncio
import os

from redlock_aio import Redlock, RedlockError

MASTERS = os.environ.get("REDLOCK_MASTERS", "redis://localhost:6379").split(",")


async def main() -> None:
    async with Redlock(MASTERS, key_prefix="lock:") as redlock:

        async def withdraw(account: str, amount: int) -> None:
            async with redlock.lock(f"account:{account}", reentrant=True) as lease:
                print(f"{amount} from {account}, held {lease.hold_count} times")

        await withdraw("ada", 10)
        async with redlock.lock("account:ada", "account:bob", reentrant=True):
            await withdraw("ada", 20)  # one of two that are held: nothing is sent
            try:
                async with redlock.lock("account:ada"):  # without reentrant=True
                    print("never")
            except RedlockError as error:
                print(str(error).partition(";")[0])

        async def handle(request: str, part: int) -> None:
            async with redlock.lock("cart:7", reentrant=True, owner=request) as lease:
                print(f"{request}, part {part}: {lease.hold_count} of it at work")
                await asyncio.sleep(0.05)

        async with redlock.lock("cart:7", reentrant=True, owner="request 1"):
            second = asyncio.create_task(handle("request 2", 1))
            await asyncio.gather(handle("request 1", 1), handle("request 1", 2))
            print("request 1 is done")
        await second


asyncio.run(main())
