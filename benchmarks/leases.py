"""
Ten thousand leases at once: their cost for one process.

The benchmark claims that one process keeps 10,000 leases with a ttl of 10 s for any time,
with less than a quarter of a core (the goal is a tenth) and without a stall of its
event loop of 100 ms, and that leases with a very short ttl are extended about three
times in a ttl and at most six times.

A lease is alive if `lease.valid` is true and its key has a ttl on the masters. The loop
stalls because of this process's work, or because another process has the processor; the
second figure of a stall is the processor time that this process used in the worst turn,
which other processes can't increase.

    python benchmarks/leases.py [--quick]

The table goes to `results-leases.md`.
"""

import asyncio
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import measuring
import redis
from measuring import bar

from redlock_aio import Lease, Redlock
from redlock_aio.testing import embedded_masters

LEASES, TTL = 10_000, 10_000
SHORT_LEASES, SHORT_TTL = 10, 100

MOST_CPU, CPU_GOAL = 0.25, 0.10
MOST_STALL_MS = 100
MOST_EXTENSIONS = 6

GONE = -2
"""The reply to PTTL for a missing key."""

TICK = 0.005
"""Seconds between two measurements of the loop's delay."""

AT_ONCE = 200
"""The number of leases that are acquired or released at a time."""


@dataclass(slots=True)
class Stalls:
    """The longest stall of the event loop in ms, and the processor time of the worst turn."""

    wall: float = 0.0
    cpu: float = 0.0

    async def watch(self) -> None:
        clock, cpu_clock = time.perf_counter, time.process_time
        now, cpu = clock(), cpu_clock()
        while True:
            await asyncio.sleep(TICK)
            before, cpu_before = now, cpu
            now, cpu = clock(), cpu_clock()
            self.wall = max(self.wall, (now - before - TICK) * 1000)
            self.cpu = max(self.cpu, (cpu - cpu_before) * 1000)


@dataclass(frozen=True, slots=True)
class Held:
    """The measurements of many leases that were held for a while."""

    leases: int
    seconds: float
    valid: int
    alive: Sequence[int]
    """The number of keys with a ttl on each master."""
    shortest: int
    """The shortest ttl of a key on any master, in ms."""
    cpu: float
    stalls: Stalls
    left: int
    """The number of keys left on the masters after all leases were released."""


@dataclass(frozen=True, slots=True)
class Short:
    """The measurements of leases with a very short ttl."""

    valid: int
    per_second: float
    """Extensions of one lease on one master."""

    @property
    def per_ttl(self) -> float:
        return self.per_second * SHORT_TTL / 1000


async def acquire(redlock: Redlock, number: int, ttl: int) -> list[Lease]:
    gate = asyncio.Semaphore(AT_ONCE)

    async def one(index: int) -> Lease:
        async with gate:
            return await redlock.lock(f"lease:{index}", ttl=ttl).acquire()

    return list(await asyncio.gather(*map(one, range(number))))


async def release(leases: Sequence[Lease]) -> None:
    gate = asyncio.Semaphore(AT_ONCE)

    async def one(lease: Lease) -> None:
        async with gate:
            await lease.release()

    await asyncio.gather(*map(one, leases))


def times_to_live(url: str, number: int) -> list[int]:
    """Return the ttl of each key on one master, in ms; negative for a missing key."""
    with redis.Redis.from_url(url) as client, client.pipeline(transaction=False) as pipeline:
        for index in range(number):
            pipeline.pttl(f"lease:{index}")
        return [int(ttls) for ttls in pipeline.execute()]


async def hold(urls: Sequence[str], number: int, seconds: float) -> Held:
    """Hold *number* leases for *seconds*, and read their keys on the masters at the end."""
    stalls = Stalls()
    async with Redlock(urls) as redlock:
        leases = await acquire(redlock, number, TTL)
        watch = asyncio.create_task(stalls.watch())
        began, cpu_began = time.perf_counter(), time.process_time()
        await asyncio.sleep(seconds)
        elapsed, cpu = time.perf_counter() - began, time.process_time() - cpu_began
        watch.cancel()
        valid = sum(lease.valid for lease in leases)
        # In a thread: the time of these requests is not a cost of the leases.
        ttls = [await asyncio.to_thread(times_to_live, url, number) for url in urls]
        await release(leases)
    left = sum(each != GONE for url in urls for each in times_to_live(url, number))
    alive = [sum(each > 0 for each in one) for one in ttls]
    shortest = min(map(min, ttls))
    return Held(number, elapsed, valid, alive, shortest, cpu / elapsed, stalls, left)


async def hold_short(urls: Sequence[str], seconds: float) -> Short:
    """Hold a few leases with a very short ttl, and count their extensions on one master."""
    async with Redlock(urls) as redlock:
        leases = await acquire(redlock, SHORT_LEASES, SHORT_TTL)
        with redis.Redis.from_url(urls[0]) as client:
            client.config_resetstat()
            began = time.perf_counter()
            await asyncio.sleep(seconds)
            stats = client.info("commandstats")
            elapsed = time.perf_counter() - began
        valid = sum(lease.valid for lease in leases)
        await release([lease for lease in leases if lease.valid])
    calls = int(stats.get("cmdstat_evalsha", {"calls": 0})["calls"])
    return Short(valid, calls / SHORT_LEASES / elapsed)


def rows(held: Held, short: Short) -> Iterator[list[str]]:
    n = held.leases
    yield [
        f"{n:,} leases of {TTL / 1000:g} s, valid after {held.seconds:.0f} s",
        f"{held.valid:,}",
        bar("all", passed=held.valid == n),
    ]
    yield ["... keys alive, on the master with the fewest", f"{min(held.alive):,}",
           bar("all", passed=min(held.alive) == n)]  # fmt: skip
    yield ["... least time to live of any key", f"{held.shortest:,} ms", ""]
    yield ["... keys left after the release, on all masters", f"{held.left:,}",
           bar("none", passed=held.left == 0)]  # fmt: skip
    yield [
        "... share of one core",
        f"{held.cpu:.1%}",
        ", ".join(bar(f"< {most:.0%}", passed=held.cpu < most) for most in (MOST_CPU, CPU_GOAL)),
    ]
    yield ["... longest stall of the event loop", f"{held.stalls.wall:.0f} ms",
           bar(f"< {MOST_STALL_MS} ms", passed=held.stalls.wall < MOST_STALL_MS)]  # fmt: skip
    yield ["... most processor time between two ticks", f"{held.stalls.cpu:.0f} ms", ""]
    yield [
        f"{SHORT_LEASES} leases of {SHORT_TTL} ms: still valid",
        f"{short.valid}",
        bar("all", passed=short.valid == SHORT_LEASES),
    ]
    yield ["... extensions of one lease on one master", f"{short.per_second:.1f} / s", ""]
    yield ["... in one ttl", f"{short.per_ttl:.1f}",
           bar(f"< {MOST_EXTENSIONS}", passed=short.per_ttl < MOST_EXTENSIONS)]  # fmt: skip


def main() -> None:
    options = measuring.arguments(__doc__).parse_args()
    number, seconds, short_seconds = (1_000, 11.0, 2.0) if options.quick else (LEASES, 26.0, 5.0)
    with embedded_masters(5) as servers:
        urls = [server.url for server in servers]
        held = measuring.run(hold(urls, number, seconds))
        short = measuring.run(hold_short(urls, short_seconds))
        machine = measuring.machine(urls[0], "redlock_aio", "redis", "hiredis")
    head = ["what one process keeps on five masters", "", "bars"]
    text = "\n\n".join(
        ["# What leases cost while they are held", f"{machine}.",
         measuring.table(head, rows(held, short))]
    )  # fmt: skip
    print(text)
    if not options.quick:
        (measuring.HERE / "results-leases.md").write_text(f"{text}\n")


if __name__ == "__main__":
    main()
