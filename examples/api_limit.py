"""
Limits on the calls of an API that hold for all hosts: how many at once, how many a second.

docs/how-to/limit-calls.md explains it.
"""

import asyncio
import os

from redlock_aio import LockNotAcquiredError, Redlock, Semaphore

MASTERS = os.environ.get("REDLOCK_MASTERS", "redis://localhost:6379").split(",")

redlock = Redlock(MASTERS, key_prefix="lock:")  # at module level: it connects on first use


@redlock.locked("weather:{city}", permits=5, ttl=5_000, wait=10_000)
async def forecast(city: str) -> str:
    """Ask the API; of all hosts, five ask about one city at the same time."""
    await asyncio.sleep(0.1)  # the call
    return f"sunny in {city}"


async def limited(api: Semaphore) -> None:
    """Call the API; of all hosts, five calls begin in a second."""
    async with api:
        await asyncio.sleep(0.01)  # the call


async def try_once(api: Semaphore) -> None:
    """Refuse at once what would have to wait."""
    lease = await api.try_acquire()
    if lease is None:
        print("busy: answer 429")
        return
    async with lease:
        print("called")


async def main() -> None:
    async with redlock:
        cities = ["Oslo"] * 4 + ["Rome"] * 2
        for answer in sorted(set(await asyncio.gather(*map(forecast, cities)))):
            print(answer)

        a_second = redlock.semaphore("weather:rate", permits=5, hold_at_least=1_000)
        began = asyncio.get_running_loop().time()
        await asyncio.gather(*(limited(a_second) for _ in range(11)))
        seconds = asyncio.get_running_loop().time() - began
        print(f"11 calls, 5 a second, took 2 seconds or more: {seconds > 1.95}")

        reports = redlock.semaphore("weather:reports", permits=1, metadata={"job": "reports"})
        async with reports as lease:
            print(f"permit {lease.permit} is held")
            await try_once(reports)
            other = redlock.semaphore("weather:reports", permits=1, wait=50)
            try:
                await other.acquire()
            except LockNotAcquiredError as error:
                print(f"not in time, held by {error.holder and error.holder.metadata}")
        await try_once(reports)


asyncio.run(main())
