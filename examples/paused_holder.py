"""
A holder is stopped past its ttl, and writes when it goes on. A fence refuses that write.

This file runs in three processes: two acquire the lock, one after the other. The third one
stops the first of them with SIGSTOP until the second has written. It starts masters of its
own unless REDLOCK_MASTERS names some; the extra ``testing`` brings a server for it.

docs/explanation/fencing.md explains it.
"""

import asyncio
import contextlib
import os
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator

from redis.asyncio import Redis

from redlock_aio import Redlock
from redlock_aio.fencing import RedisFence, StaleTokenError
from redlock_aio.testing import embedded_masters

RESOURCE = "ledger:paused"
UNGUARDED = "ledger:paused:unguarded"
GUARDED = "ledger:paused:guarded"


async def hold(who: str, masters: list[str]) -> None:
    """Acquire the lock, and write when stdin has a line, without a check of the clock."""
    async with Redlock(masters) as redlock, Redis.from_url(masters[0]) as redis:
        # "flag", because with "cancel" the body is cancelled before the write is sent. In real
        # life a process may be stopped between the last check and the write, too.
        lock = redlock.lock(RESOURCE, ttl=500, fencing=True, on_lost="flag")
        async with lock as lease:
            token = lease.fencing_token
            print(f"{who}: has the lock, with token {token}", flush=True)
            sys.stdin.readline()
            await redis.set(UNGUARDED, who)
            try:
                await RedisFence(redis, RESOURCE).write(("SET", GUARDED, who), token=token)
                print(f"{who}: has written", flush=True)
            except StaleTokenError as error:
                print(f"{who}: {error}", flush=True)


class Holder:
    """Another process that acquires the lock."""

    def __init__(self, process: Process) -> None:
        assert process.stdin is not None  # noqa: S101 - for the type checker
        assert process.stdout is not None  # noqa: S101
        self.process, self._stdin, self._stdout = process, process.stdin, process.stdout

    async def says(self) -> None:
        """Print the next line of its output."""
        print((await self._stdout.readline()).decode(), end="")

    def may_write(self) -> None:
        self._stdin.write(b"\n")


@contextlib.asynccontextmanager
async def holder(who: str, masters: list[str]) -> AsyncIterator[Holder]:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, __file__, who),
        env={**os.environ, "REDLOCK_MASTERS": ",".join(masters)},
        stdin=PIPE,
        stdout=PIPE,
    )
    try:
        yield Holder(process)
        await process.wait()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def watch(masters: list[str]) -> None:
    async with holder("first", masters) as first:
        await first.says()
        first.process.send_signal(signal.SIGSTOP)
        print("first: is stopped")
        async with holder("second", masters) as second:
            await second.says()  # when the ttl of the first is over
            second.may_write()
            await second.says()
        first.process.send_signal(signal.SIGCONT)
        print("first: goes on and writes")
        first.may_write()
        await first.says()
    async with Redis.from_url(masters[0], decode_responses=True) as redis:
        print("the last to write without the fence:", await redis.get(UNGUARDED))
        print("the last to write through the fence:", await redis.get(GUARDED))


def main() -> None:
    named = os.environ.get("REDLOCK_MASTERS", "")
    if sys.argv[1:]:
        asyncio.run(hold(sys.argv[1], named.split(",")))
    elif named:
        asyncio.run(watch(named.split(",")))
    else:
        with embedded_masters(3) as servers:
            asyncio.run(watch([server.url for server in servers]))


main()
