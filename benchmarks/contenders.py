"""
One client process of `contention.py`: several waiters for one lock.

It has no claims of its own. `contention.py` starts one for each process of a setting,
and joins their results. A process makes its connections, prints that it is ready, reads
the instant at which all of them start, and prints the begin and end of each turn of each
waiter, and the processor time that it used. `time.monotonic` is the same clock in all
processes of a machine.

A turn is 1 ms of work under the lock; then its waiter acquires the lock again at once.
At the end the remaining waiters are cancelled.
"""

import asyncio
import contextlib
import gc
import json
import logging
import os
import sys
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import asdict, dataclass

import redis.asyncio
from measuring import TTL
from redis.exceptions import RedisError

PLAIN, FAIR = "redlock_aio on five", "redlock_aio on five, fair"
FENCED = "redlock_aio on five, fencing"
REDIS_PY, POTTERY = "redis-py's Lock on one", "pottery's AIORedlock on five"
EVERYBODY = (PLAIN, FAIR, REDIS_PY, POTTERY)

WORK = 0.001
"""Seconds of work in a turn."""

Take = Callable[[str], AbstractAsyncContextManager[object]]
"""Returns a context that holds the lock with this name."""

CONNECTIONS = 10_000
"""The most connections of a client of redis-py, whose default are too few for many waiters."""

PATIENCE = 2.0
"""Seconds that cancelled waiters may take to end."""

Turns = list[tuple[float, float]]
"""The begin and end of each turn of one waiter, on the monotonic clock."""


@dataclass(frozen=True, slots=True)
class Load:
    """The work of one process."""

    contestant: str
    urls: Sequence[str]
    key: str
    waiters: int
    seconds: float

    def dump(self) -> str:
        return json.dumps(asdict(self))


@contextlib.asynccontextmanager
async def own_locks(urls: Sequence[str], kind: str) -> AsyncIterator[Take]:
    from redlock_aio import Redlock

    async with Redlock(urls, fencing=kind == FENCED) as redlock:
        yield lambda name: redlock.lock(name, ttl=TTL, fair=kind == FAIR)


async def connect(client: redis.asyncio.Redis, number: int) -> None:
    """
    Open so many connections of a client, one after another.

    Hundreds of tasks that each open one at once would exceed its timeout, and try again.
    """
    pool = client.connection_pool
    for each in [await pool.get_connection() for _ in range(number)]:
        await pool.release(each)


@contextlib.asynccontextmanager
async def redis_py(url: str, waiters: int) -> AsyncIterator[Take]:
    async with redis.asyncio.Redis.from_url(url, max_connections=CONNECTIONS) as client:
        await connect(client, waiters)
        yield lambda name: client.lock(name, timeout=TTL / 1000)


@contextlib.asynccontextmanager
async def pottery(urls: Sequence[str], waiters: int) -> AsyncIterator[Take]:
    from pottery import AIORedlock

    async with contextlib.AsyncExitStack() as stack:
        clients = [redis.asyncio.Redis.from_url(url, max_connections=CONNECTIONS) for url in urls]
        for client in clients:
            await connect(client, waiters)
        masters = frozenset([await stack.enter_async_context(client) for client in clients])
        yield lambda name: AIORedlock(key=name, masters=masters, auto_release_time=TTL / 1000)


def contestant(load: Load) -> tuple[AbstractAsyncContextManager[Take], tuple[type[Exception], ...]]:
    """Return the context that opens a contestant, and its errors for a lock not acquired."""
    if load.contestant == REDIS_PY:
        return redis_py(load.urls[0], load.waiters), (RedisError,)
    if load.contestant == POTTERY:
        from pottery.exceptions import PrimitiveError

        return pottery(load.urls, load.waiters), (PrimitiveError,)
    from redlock_aio import RedlockError

    return own_locks(load.urls, load.contestant), (RedlockError,)


async def contend(load: Load) -> None:
    clock = time.monotonic
    turns: list[Turns] = [[] for _ in range(load.waiters)]
    failed = 0
    opening, failures = contestant(load)

    async def pair(name: str) -> None:
        with contextlib.suppress(*failures):  # many at once may be too slow for some
            async with take(name):
                pass

    async def acquire_repeatedly(mine: Turns) -> None:
        nonlocal failed
        while True:
            try:
                async with take(load.key):
                    began = clock()
                    await asyncio.sleep(WORK)
                    mine.append((began, clock()))
            except failures:
                failed += 1

    async with opening as take:
        # Connections are made on demand; their cost is not part of a turn.
        await asyncio.gather(*(pair(f"warm:{os.getpid()}:{n}") for n in range(load.waiters)))
        gc.collect()
        print("ready", flush=True)
        start = float(await asyncio.to_thread(sys.stdin.readline))
        await asyncio.sleep(start - clock())
        cpu = time.process_time()
        waiters = [asyncio.create_task(acquire_repeatedly(mine)) for mine in turns]
        await asyncio.wait(waiters, timeout=start + load.seconds - clock())
        used = time.process_time() - cpu
        for waiter in waiters:
            waiter.cancel()
        await asyncio.wait(waiters, timeout=PATIENCE)
        print(json.dumps({"turns": turns, "failed": failed, "cpu": used}), flush=True)
        os._exit(0)  # some waiters do not end when they are cancelled


if __name__ == "__main__":
    logging.disable()
    asyncio.run(contend(Load(**json.loads(sys.argv[1]))))
