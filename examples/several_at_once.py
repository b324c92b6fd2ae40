"""
Lock two accounts together, named in any order.

docs/how-to/several.md explains it.
"""

import asyncio
import os

from redlock_aio import LockNotAcquiredError, Redlock

MASTERS = os.environ.get("REDLOCK_MASTERS", "redis://localhost:6379").split(",")

balances = {"ada": 100, "bob": 100}


async def transfer(redlock: Redlock, giver: str, taker: str, amount: int) -> None:
    """
    Move money while nobody else touches either account.

    One lock inside the other would be a trap: of two transfers in opposite directions
    each could hold the account that the other one waits for. Named together, both locks
    or none are acquired, in one round trip, and the order of the names does not matter.
    """
    async with redlock.lock(f"account:{giver}", f"account:{taker}") as lease:
        before = balances[giver], balances[taker]
        await asyncio.sleep(0.01)  # your work
        lease.ensure_valid()
        balances[giver], balances[taker] = before[0] - amount, before[1] + amount


async def main() -> None:
    async with Redlock(MASTERS, key_prefix="lock:") as redlock:
        async with asyncio.TaskGroup() as tasks:
            for _ in range(10):
                tasks.create_task(transfer(redlock, "ada", "bob", 3))
                tasks.create_task(transfer(redlock, "bob", "ada", 1))
        print(balances)

        async with redlock.lock("account:bob"):  # while one is held, both together are not free
            try:
                async with redlock.lock("account:ada", "account:bob", wait=100):
                    pass
            except LockNotAcquiredError as error:
                print("not both:", ", ".join(error.resources))


asyncio.run(main())
