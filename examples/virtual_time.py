"""
Locks in virtual time: the masters are in memory, and an hour passes at once.

docs/tutorial/testing.md explains it.
"""

import asyncio

from redlock_aio import LockLostError, Redlock
from redlock_aio.testing import FakeMaster, VirtualTimeLoop


async def main() -> None:
    masters = [FakeMaster("a"), FakeMaster("b"), FakeMaster("c")]
    async with Redlock(masters) as redlock:
        async with redlock.lock("report") as lease:
            masters[0].hang()  # one of three: the others extend the lease
            await asyncio.sleep(3_600)  # your code, which works for an hour
            print("valid after an hour:", lease.valid)
        try:
            async with redlock.lock("report"):
                masters[1].hang()  # two of three: no majority is left
                await asyncio.sleep(3_600)
        except LockLostError as error:
            print(error)


with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
    runner.run(main())
