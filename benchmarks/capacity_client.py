"""
One client process of `capacity.py`: a part of the load on the masters.

It has no claims of its own. `capacity.py` starts one for each process of a setting. A process
opens its managers, prints that it is ready, reads the instant at which all of them begin, works
for the time of the setting, and prints what it has done and how much processor time that took.
"""

import asyncio
import contextlib
import gc
import itertools
import json
import os
import random
import select
import socket
import sys
import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from hashlib import sha1
from typing import TypeAlias
from urllib.parse import urlsplit

from redlock_aio import Lock, LockLostError, Redlock
from redlock_aio._protocol.request import pack

TTL = 10_000
LEASE_TTL = 4_000
"""The ttl of the leases that are held, in ms: short, so that each is extended often in a run."""

RELEASE = b"""if redis.call("GET", KEYS[1]) == ARGV[1] then return redis.call("DEL", KEYS[1]) end
return 0"""
TOKEN = b"a" * 40
AT_ONCE = 1_024
"""The bytes of replies that are answered at once: few, so that the master never waits."""

Slot: TypeAlias = Iterator[bytes]
"""Yields the commands of one key for ever: its acquisition, its release, and again."""


@dataclass(frozen=True, slots=True)
class Load:
    """
    The work of one process.

    Attributes:
        kind: "plain", "fencing" or "fair".

        number: The number of this process.

        tasks: The number of tasks that make pairs.

        rate: The pairs per second of each task; 0 for as many as it can.

        leases: The number of leases that are held and extended.

        waiters: The number of tasks that wait for a lock that another process holds.

        managers: The number of managers that are open and do nothing.

        raw: Whether to send the commands of plain pairs to the first master without the library.
    """

    urls: Sequence[str]
    kind: str
    seconds: float
    number: int = 0
    tasks: int = 0
    rate: float = 0.0
    leases: int = 0
    waiters: int = 0
    managers: int = 0
    raw: bool = False

    def dump(self) -> str:
        return json.dumps(asdict(self))


class Client:
    """The tasks of one process, how many pairs they have made, and how many leases they lost."""

    def __init__(self, load: Load, redlock: Redlock) -> None:
        self._load = load
        self._redlock = redlock
        self.done = self.lost = 0

    async def pairs(self, number: int) -> None:
        """Make pairs on a key of this task's own; with a rate at times that are spread evenly."""
        lock = self._lock(self._name("pair", number), TTL)
        rate = self._load.rate
        at = time.monotonic() + random.random() / rate if rate else 0.0
        while True:
            if rate:
                at += 1 / rate
                await asyncio.sleep(at - time.monotonic())
            async with lock:
                pass
            self.done += 1

    async def hold(self, number: int) -> None:
        """Hold a lock for ever, also if the machine is so full that it is lost now and then."""
        lock = self._lock(self._name("lease", number), LEASE_TTL)
        while True:
            try:
                async with lock:
                    await asyncio.sleep(3600)
            except LockLostError:
                self.lost += 1

    async def wait(self) -> None:
        async with self._lock(f"held:{self._load.kind}", TTL):
            pass

    def _lock(self, name: str, ttl: int) -> Lock:
        kind = self._load.kind
        return self._redlock.lock(name, ttl=ttl, fair=kind == "fair", fencing=kind == "fencing")

    def _name(self, what: str, number: int) -> str:
        return f"{what}:{self._load.kind}:{self._load.number}:{number}"


async def use(load: Load) -> None:
    async with contextlib.AsyncExitStack() as stack:
        for _ in range(load.managers):
            await stack.enter_async_context(Redlock(load.urls))
        redlock = await stack.enter_async_context(Redlock(load.urls))
        async with redlock.lock(f"warm:{load.number}"):
            pass
        client = Client(load, redlock)
        tasks = asyncio.TaskGroup()
        async with tasks:
            running = [tasks.create_task(client.hold(n)) for n in range(load.leases)]
            running += [tasks.create_task(client.wait()) for _ in range(load.waiters)]
            if running:
                await asyncio.sleep(LEASE_TTL / 1000)  # the first extensions, and the first waits
            gc.collect()
            print("ready", flush=True)
            start = float(await asyncio.to_thread(sys.stdin.readline))
            running += [tasks.create_task(client.pairs(n)) for n in range(load.tasks)]
            await asyncio.sleep(start - time.monotonic())
            done, cpu = client.done, time.process_time()
            await asyncio.sleep(start + load.seconds - time.monotonic())
            done, cpu = client.done - done, time.process_time() - cpu
            print(json.dumps({"done": done, "cpu": cpu, "lost": client.lost}), flush=True)
            for task in running:
                task.cancel()


def slot(key: bytes, release: Sequence[bytes]) -> Slot:
    acquire = pack(b"SET", key, TOKEN, b"NX", b"PX", b"%d" % TTL)
    return itertools.cycle([acquire, pack(*release, key, TOKEN)])


def use_raw(load: Load) -> None:
    """
    Send the bytes of plain pairs to the first master, as many pairs at once as there are tasks.

    Like the library, it answers all replies that have come in one piece by one write.
    """
    where = urlsplit(load.urls[0])
    with socket.create_connection((where.hostname or "", where.port or 6379)) as wire:
        wire.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        wire.sendall(pack(b"DELIFEQ", b"warm", b""))
        has_delifeq = wire.recv(1024).startswith(b":")
        wire.sendall(pack(b"SCRIPT", b"LOAD", RELEASE))
        wire.recv(1024)
        sha = sha1(RELEASE, usedforsecurity=False).hexdigest().encode()
        release = [b"DELIFEQ"] if has_delifeq else [b"EVALSHA", sha, b"1"]
        slots = deque(slot(b"raw:%d:%d" % (os.getpid(), n), release) for n in range(load.tasks))
        print("ready", flush=True)
        start = float(sys.stdin.readline())
        time.sleep(max(0.0, start - time.monotonic()))
        cpu, ends = time.process_time(), start + load.seconds
        replies = 0
        wire.sendall(b"".join(next(each) for each in slots))
        while (now := time.monotonic()) < ends:
            if not select.select([wire], [], [], ends - now)[0]:
                break
            data = wire.recv(AT_ONCE)
            if b"-" in data or b"_" in data or b":0" in data or not data:
                raise RuntimeError(f"a raw pair has failed: {data!r}")
            came = data.count(b"\n")
            replies += came
            # Replies come in the order of the requests: the first slots are those they belong to.
            wire.sendall(b"".join(next(each) for each in itertools.islice(slots, came)))
            slots.rotate(-came)
        used = time.process_time() - cpu
        print(json.dumps({"done": replies / 2, "cpu": used, "lost": 0}), flush=True)


if __name__ == "__main__":
    given = Load(**json.loads(sys.argv[1]))
    if given.raw:
        use_raw(given)
    else:
        asyncio.run(use(given))
