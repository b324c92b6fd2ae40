"""
Several sets of masters: the hash of a lock's name chooses one.

docs/explanation/how-far-it-goes.md explains it.
"""

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from hashlib import sha256
from typing import Any

from redlock_aio import Lease, Redlock

MASTERS = os.environ.get("REDLOCK_MASTERS", "redis://localhost:6379").split(",")

# To try it out, each set has one master here. Have three or five in each.
SETS = {label: [master] for label, master in zip("abcde", MASTERS, strict=False)}

LockOf = Callable[..., AbstractAsyncContextManager[list[Lease]]]


# [start:recipe]
def set_of(name: str, labels: Iterable[str]) -> str:
    """Return the label of the set that has the lock *name*: the same in all programs."""
    return max(labels, key=lambda label: sha256(f"{label} {name}".encode()).digest())


@asynccontextmanager
async def several_sets(
    sets: Mapping[str, Sequence[str]], *layouts: Iterable[str]
) -> AsyncIterator[LockOf]:
    """Yield what locks a name in its set; with two *layouts*, in its set of either."""
    async with AsyncExitStack() as managers:
        enter = managers.enter_async_context
        redlocks = {label: await enter(Redlock(masters)) for label, masters in sets.items()}

        @asynccontextmanager
        async def lock(name: str, **options: Any) -> AsyncIterator[list[Lease]]:
            labels = {set_of(name, layout) for layout in layouts or [sets]}
            async with AsyncExitStack() as locks:
                enter = locks.enter_async_context
                yield [
                    await enter(redlocks[label].lock(name, **options)) for label in sorted(labels)
                ]

        yield lock


# [end:recipe]


async def main() -> None:
    async with several_sets(SETS) as lock:
        for number in range(3):
            name = f"invoice:{number}"
            async with lock(name, ttl=10_000) as leases:
                valid = all(lease.valid for lease in leases)  # your work
                print(name, "is locked in set", set_of(name, SETS), valid)


if __name__ == "__main__":
    asyncio.run(main())
