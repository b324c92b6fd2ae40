"""
Ten thousand leases at once, and a hundred thousand: their cost for one process.

The benchmark claims that one process keeps 10,000 leases with a ttl of 10 s for any time,
with less than a quarter of a core (the goal is a tenth), and 100,000 leases of 30 s; that an
extension costs at most twice the processor time of the floor; that no turn of the event loop
takes 20 ms, or 50 ms with 100,000 leases; and that leases with a very short ttl are extended
about three times in a ttl and at most six times.

100,000 leases and five masters use half of a machine with two cores; on a slower one, with the
masters in containers behind Docker's proxy of their ports, nine tenths of it. If other programs
need so much of it that leases are lost, that says something about the machine only. The command
then says how full the machine was, ends with 1, and keeps no results.

A lease is alive if `lease.valid` is true and its key has a ttl on the masters. The floor of an
extension is one short script for each lease and master, twenty of them in a turn of the loop,
see `floor.py`; this library extends many leases by one command. A turn of the loop takes long
because of this process's work, or because another process has the processor: the processor
time of a turn is what other processes can't increase.

The garbage collector runs as in any program while 10,000 leases are held. A full collection
takes longer the more objects there are. So `gc.freeze()` is called when 100,000 leases have
been acquired, as the page about speed advises, and one collection is measured before it.

    python benchmarks/leases.py [--quick] [--containers | --server redis]

The table goes to `results-leases.md`; with `--containers` (five Redis containers, through
testcontainers) to `results-leases-containers.md`, with `--server redis` to
`results-leases-redis.md`.
"""

import asyncio
import gc
import os
import selectors
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha1

import masters
import measuring
import redis
from floor import TOKEN, Floor, pack
from measuring import bar, cores_time

from redlock_aio import Lease, LockNotHeldError, Redlock

SHORT_LEASES, SHORT_TTL = 10, 100

MOST_CPU, CPU_GOAL = 0.25, 0.10
MOST_TO_FLOOR = 2
MOST_EXTENSIONS = 6
FULL = 0.95
"""The share of the time of all cores from which on the machine counts as full."""

GONE = -2
"""The reply to PTTL for a missing key."""

AT_ONCE = 200
"""The number of leases that are acquired or released at a time."""

EXTEND = b"""if redis.call("GET", KEYS[1]) ~= ARGV[1] then return 0 end
redis.call("PEXPIRE", KEYS[1], ARGV[2])
return redis.status_reply("OK")"""
FLOOR_KEYS, FLOOR_AT_ONCE, FLOOR_PAUSE = 10_000, 20, 0.004


class Turns(selectors.DefaultSelector):
    """
    A selector that measures each turn of its event loop, in ms.

    Attributes:
        longest: The time of the longest turn.

        most_cpu: The processor time of the loop's thread in the turn that needed most.
    """

    def __init__(self) -> None:
        super().__init__()
        self.forget()

    def forget(self) -> None:
        """Forget all turns before this one, and this one."""
        self.longest = self.most_cpu = 0.0
        self._began = self._cpu_began = float("inf")

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        self.longest = max(self.longest, (time.perf_counter() - self._began) * 1000)
        self.most_cpu = max(self.most_cpu, (time.thread_time() - self._cpu_began) * 1000)
        events: list[tuple[selectors.SelectorKey, int]] = super().select(timeout)
        self._began, self._cpu_began = time.perf_counter(), time.thread_time()
        return events


class ExtensionFloor(Floor):
    """The least work that asyncio can do for an extension on each of N masters."""

    async def cost(self, seconds: float) -> float:
        """Return the processor time in µs of one extension."""
        await self.open([])
        self._load(EXTEND)
        sha = sha1(EXTEND, usedforsecurity=False).hexdigest().encode()
        keys = [b"floor:%d" % number for number in range(FLOOR_KEYS)]
        for first in range(0, FLOOR_KEYS, AT_ONCE):
            some = keys[first : first + AT_ONCE]
            await asyncio.gather(
                *[self._ask(pack(b"SET", k, TOKEN, b"PX", b"60000")) for k in some]
            )
        commands = [pack(b"EVALSHA", sha, b"1", key, TOKEN, b"60000") for key in keys]
        done, ends = 0, time.perf_counter() + seconds
        began = time.process_time()
        while time.perf_counter() < ends:
            first = done % FLOOR_KEYS
            asked = [self._ask(command) for command in commands[first : first + FLOOR_AT_ONCE]]
            for each in asked:
                await each
            done += FLOOR_AT_ONCE
            await asyncio.sleep(FLOOR_PAUSE)
        used = time.process_time() - began
        await self.aclose()
        return used / done * 1e6


@dataclass(frozen=True, slots=True)
class Load:
    """
    Leases that are held at the same time, and how long the benchmark holds them.

    Attributes:
        most_ms: The limit for the processor time of a turn of the loop.

        frozen: Whether `gc.freeze()` is called when all are acquired.
    """

    leases: int
    ttl: int
    seconds: float
    most_ms: int
    frozen: bool = False


LOADS = [Load(10_000, 10_000, 26.0, 20), Load(100_000, 30_000, 60.0, 50, frozen=True)]
QUICK = [Load(1_000, 10_000, 11.0, 20)]


@dataclass(frozen=True, slots=True)
class Held:
    """The measurements of many leases that were held for a while."""

    load: Load
    seconds: float
    valid: int
    alive: Sequence[int]
    """The number of keys with a ttl on each master."""
    shortest: int
    """The shortest ttl of a key on any master, in ms."""
    cpu: float
    cpu_of_masters: float
    """The share of one core that one master used, on average."""
    extensions: int
    floor_us: float
    longest_turn: float
    most_cpu: float
    collection: float
    """The time of a full garbage collection with these leases, in ms."""
    left: int
    """The number of keys left on the masters after all leases were released."""
    busy: float
    """The share of the time of all cores that was used, by whatever process."""
    losses: Mapping[str, int]
    """How many leases had been lost when they were released, by the reason."""

    @property
    def own(self) -> float:
        """The share of the time of all cores that this process and the masters used."""
        return (self.cpu + self.masters * self.cpu_of_masters) / (os.cpu_count() or 1)

    @property
    def masters(self) -> int:
        return len(self.alive)

    @property
    def cpu_us(self) -> float:
        """The processor time of this process for each extension."""
        return self.cpu * self.seconds / self.extensions * 1e6


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
    left = iter(range(number))
    leases: list[Lease] = []

    async def some() -> None:
        leases.extend([await redlock.lock(f"lease:{i}", ttl=ttl).acquire() for i in left])

    await asyncio.gather(*(some() for _ in range(AT_ONCE)))
    return leases


async def release(leases: Sequence[Lease]) -> Mapping[str, int]:
    """Release all *leases*; return how many of them had been lost, by the reason."""
    left = iter(leases)
    losses: Counter[str] = Counter()

    async def some() -> None:
        for lease in left:
            try:
                await lease.release()
            except LockNotHeldError as error:
                losses[error.reason] += 1

    await asyncio.gather(*(some() for _ in range(AT_ONCE)))
    return losses


def times_to_live(url: str, number: int) -> list[int]:
    """Return the ttl of each key on one master, in ms; negative for a missing key."""
    with redis.Redis.from_url(url) as client, client.pipeline(transaction=False) as pipeline:
        for index in range(number):
            pipeline.pttl(f"lease:{index}")
        return [int(ttls) for ttls in pipeline.execute()]


def work(urls: Sequence[str]) -> tuple[float, int]:
    """Return the processor time of all masters in s, and the PEXPIRE commands of the first."""
    used, extensions = 0.0, 0
    for url in reversed(urls):
        with redis.Redis.from_url(url) as client:
            cpu = client.info("cpu")
            used += cpu["used_cpu_user"] + cpu["used_cpu_sys"]
            extensions = client.info("commandstats").get("cmdstat_pexpire", {"calls": 0})["calls"]
    return used, int(extensions)


def collect() -> float:
    """Return the processor time in ms of a full garbage collection."""
    began = time.thread_time()
    gc.collect()
    return (time.thread_time() - began) * 1000


async def hold(urls: Sequence[str], load: Load, turns: Turns) -> Held:
    """Hold leases for a while, and read their keys on the masters at the end."""
    number, ttl = load.leases, load.ttl
    floor_us = await ExtensionFloor(urls).cost(load.seconds / 10)
    async with Redlock(urls) as redlock:
        leases = await acquire(redlock, number, ttl)
        collection = collect()
        if load.frozen:
            gc.freeze()
        # The first extensions of the leases that were acquired first are over by now, or soon.
        await asyncio.sleep(1)
        used_before, extensions_before = await asyncio.to_thread(work, urls)
        ticks = cores_time()
        turns.forget()
        began, cpu_began = time.perf_counter(), time.process_time()
        await asyncio.sleep(load.seconds)
        elapsed, cpu = time.perf_counter() - began, time.process_time() - cpu_began
        longest, most_cpu = turns.longest, turns.most_cpu
        worked, idle = (now - then for now, then in zip(cores_time(), ticks, strict=True))
        used, extensions = await asyncio.to_thread(work, urls)
        valid = sum(lease.valid for lease in leases)
        # In a thread: the time of these requests is not a cost of the leases.
        ttls = [await asyncio.to_thread(times_to_live, url, number) for url in urls]
        losses = await release(leases)
    gc.unfreeze()
    floor_us = (floor_us + await ExtensionFloor(urls).cost(load.seconds / 10)) / 2
    return Held(
        load,
        elapsed,
        valid,
        alive=[sum(each > 0 for each in one) for one in ttls],
        shortest=min(map(min, ttls)),
        cpu=cpu / elapsed,
        cpu_of_masters=(used - used_before) / elapsed / len(urls),
        extensions=extensions - extensions_before,
        floor_us=floor_us,
        longest_turn=longest,
        most_cpu=most_cpu,
        collection=collection,
        left=sum(each != GONE for url in urls for each in times_to_live(url, number)),
        busy=worked / max(1, worked + idle),
        losses=losses,
    )


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
        await release(leases)
    calls = int(stats.get("cmdstat_evalsha", {"calls": 0})["calls"])
    return Short(valid, calls / SHORT_LEASES / elapsed)


def rows_of(held: Held) -> Iterator[list[str]]:
    load = held.load
    n, to_floor = load.leases, held.cpu_us / held.floor_us
    yield [
        f"{n:,} leases of {load.ttl / 1000:g} s, valid after {held.seconds:.0f} s",
        f"{held.valid:,}",
        bar("all", passed=held.valid == n),
    ]
    yield ["... lost until they were released", f"{sum(held.losses.values()):,}", ""]
    yield ["... keys alive, on the master with the fewest", f"{min(held.alive):,}",
           bar("all", passed=min(held.alive) == n)]  # fmt: skip
    yield ["... least time to live of any key", f"{held.shortest:,} ms", ""]
    yield ["... keys left after the release, on all masters", f"{held.left:,}",
           bar("none", passed=held.left == 0)]  # fmt: skip
    yield ["... extensions", f"{held.extensions / held.seconds:,.0f} / s", ""]
    limits = () if load.frozen else (MOST_CPU, CPU_GOAL)
    yield ["... share of one core", f"{held.cpu:.1%}",
           ", ".join(bar(f"< {most:.0%}", passed=held.cpu < most) for most in limits)]  # fmt: skip
    yield ["... share of one core, each master", f"{held.cpu_of_masters:.1%}", ""]
    yield ["... share of all cores: this process and the masters", f"{held.own:.0%}", ""]
    yield ["... share of all cores: every process of the machine", f"{held.busy:.0%}", ""]
    yield ["... processor time of an extension", f"{held.cpu_us:.1f} µs", ""]
    yield ["... to the floor's", f"{to_floor:.2f}",
           bar(f"<= {MOST_TO_FLOOR}", passed=to_floor <= MOST_TO_FLOOR)]  # fmt: skip
    yield ["... most processor time in one turn of the event loop", f"{held.most_cpu:.1f} ms",
           bar(f"< {load.most_ms} ms", passed=held.most_cpu < load.most_ms)]  # fmt: skip
    yield ["... longest turn, with the work of other processes", f"{held.longest_turn:.0f} ms", ""]
    frozen = ", before `gc.freeze()`" if load.frozen else ""
    yield [f"... a full garbage collection{frozen}", f"{held.collection:.0f} ms", ""]


def why_lost(held: Held) -> str:
    """Return what is to be said of leases that were lost; "" if none was."""
    if not held.losses:
        return ""
    reasons = "; ".join(f"{number:,} because {why}" for why, number in held.losses.items())
    text = (
        f"Of {held.load.leases:,} leases {sum(held.losses.values()):,} were lost: {reasons}. "
        f"All cores were busy for {held.busy:.0%} of the time; this process and the masters used "
        f"{held.own:.0%}."
    )
    if held.busy >= FULL:
        text += " The machine was full, so this says nothing of the library: stop other programs."
    return text


def rows_of_short(short: Short) -> Iterator[list[str]]:
    yield [
        f"{SHORT_LEASES} leases of {SHORT_TTL} ms: still valid",
        f"{short.valid}",
        bar("all", passed=short.valid == SHORT_LEASES),
    ]
    yield ["... extensions of one lease on one master", f"{short.per_second:.1f} / s", ""]
    yield ["... in one ttl", f"{short.per_ttl:.1f}",
           bar(f"< {MOST_EXTENSIONS}", passed=short.per_ttl < MOST_EXTENSIONS)]  # fmt: skip


def run(urls: Sequence[str], load: Load) -> Held:
    turns = Turns()
    with asyncio.Runner(loop_factory=lambda: asyncio.SelectorEventLoop(turns)) as runner:
        return runner.run(hold(urls, load, turns))


def main() -> None:
    parser = measuring.arguments(__doc__)
    masters.add_options(parser)
    options = parser.parse_args()
    with masters.running(options) as servers:
        urls = [server.url for server in servers]
        many = [run(urls, load) for load in (QUICK if options.quick else LOADS)]
        short = measuring.run(hold_short(urls, 2.0 if options.quick else 5.0))
        machine = measuring.machine(urls[0], "redlock_aio", "redis", "hiredis")
    head = ["what one process keeps on five masters", "", "bars"]
    rows = [*(row for held in many for row in rows_of(held)), *rows_of_short(short)]
    text = "\n\n".join(
        [
            "# What leases cost while they are held",
            f"Five masters {masters.where(options)}, and the client, on one machine: {machine}.",
            measuring.command(),
            measuring.table(head, rows),
        ]
    )
    print(text)
    if lost := [said for held in many if (said := why_lost(held))]:
        sys.exit("\n".join(lost))
    if not options.quick:
        masters.results(options, "results-leases").write_text(f"{text}\n")


if __name__ == "__main__":
    main()
