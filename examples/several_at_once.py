"""Locking two accounts together, in whatever order they are named."""

import asyncio
import os

from redlock_aio import LockNotAcquiredError, Redlock

MASTERS = os.environ.get("REDLOCK_MASTERS", "redis://localhost:6379").split(",")

balances = {"ada": 100, "bob": 100}


async def transfer(redlock: Redlock, giver: str, taker: str, amount: int) -> None:
    """
    Move money while nobody else touches either account.

    One lock after the other would be a trap: with two transfers in opposite
    directions each could hold what the other waits for. Together they are taken
    all or none, in one round trip, and the order of the names makes no difference.
    """
    async with redlock.lock(f"account:{giver}", f"account:{taker}") as lease:
        before = balances[giver], balances[taker]
        await asyncio.sleep(0.01)  # whatever it takes
        lease.ensure_valid()
        balances[giver], balances[taker] = before[0] - amount, before[1] + amount


async def main() -> None:
    async with Redlock(MASTERS, key_prefix="lock:") as redlock:
        async with asyncio.TaskGroup() as tasks:
            for _ in range(10):
                tasks.create_task(transfer(redlock, "ada", "bob", 3))
                tasks.create_task(transfer(redlock, "bob", "ada", 1))
        print(balances)

        async with redlock.lock("account:bob"):  # one that is held stands in the way of both
            try:
                async with redlock.lock("account:ada", "account:bob", wait=100):
                    pass
            except LockNotAcquiredError as error:
                print("not both:", ", ".join(error.resources))


asyncio.run(main())
