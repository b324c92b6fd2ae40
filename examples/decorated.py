"""
Functions that run under a lock, whose name is filled from their arguments.

docs/how-to/one-of-many.md explains it.
"""

import asyncio
import os

from redlock_aio import Redlock

MASTERS = os.environ.get("REDLOCK_MASTERS", "redis://localhost:6379").split(",")

redlock = Redlock(MASTERS, key_prefix="lock:")  # at module level: it connects on first use


@redlock.locked("invoice:{invoice_id}", ttl=10_000)
async def send(invoice_id: int) -> None:
    print(f"invoice {invoice_id} is being sent")
    await asyncio.sleep(0.1)
    print(f"invoice {invoice_id} is sent")


class Account:
    def __init__(self, name: str) -> None:
        self.name = name
        self.balance = 0

    @redlock.locked("account:{self.name}", wait=5_000)
    async def deposit(self, amount: int) -> None:
        balance = self.balance
        await asyncio.sleep(0.01)  # nobody else changes it meanwhile
        self.balance = balance + amount


@redlock.locked("job:clean-up", skip_if_locked=True)
async def clean_up() -> str:
    await asyncio.sleep(0.5)
    return "cleaned up"


async def main() -> None:
    async with redlock:
        await asyncio.gather(send(42), send(42))
        account = Account("ada")
        await asyncio.gather(*(account.deposit(10) for _ in range(5)))
        print(f"{account.name} has {account.balance}")
        first, second = await asyncio.gather(clean_up(), clean_up())
        print(f"{first}; the second call returned {second}")


asyncio.run(main())
