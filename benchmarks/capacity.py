"""
How much load one set of masters carries: what a pair, a lease, a waiter and a process cost it.

The benchmark measures the processor time and the memory of the masters, of which the client's
own speed is no part, and says where they end:

- **Costs.** 1, 4 and 16 processes make pairs, hold leases and wait, at a rate that leaves every
  core idle time, and then as fast as they can. A master's processor time for each pair says how
  many pairs a second fill one core, because a master works on one core.
- **The formula.** 1, 4 and 16 processes do all of it at once. What the formula of `share_of_core`
  forecasts from the costs is compared with what a master has used: it claims a difference of at
  most `MOST_APART`.
- **A full master.** 1, 4 and 16 processes send the commands of plain pairs to one master, without
  the library, because a program in Python is full long before a master. It claims that the
  forecast from the costs at a low rate promises no more than that master can do.
- **Connections.** A thousand managers, as those of a thousand processes, are connected and idle.
- **Memory.** What a lock, a counter, a reader, a permit and a waiter take, by `MEMORY USAGE` and by
  the growth of the server, on Valkey and on the `redis-server` of the PATH.

Each row says what was full. A row in which that is the machine or a client is no measure of what a
master can do, but its processor time for each pair is one nevertheless.

    python benchmarks/capacity.py [--quick] [--containers | --server redis]

The tables go to `results-capacity.md`. It takes about four minutes.
"""

import asyncio
import contextlib
import json
import logging
import resource
import shutil
import sys
import time
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import cast

import masters
import measuring
import redis
from capacity_client import LEASE_TTL, Load
from evidence.stopping import stop_cleanly
from measuring import bar, cores_time

from redlock_aio import Lock, Redlock, Semaphore
from redlock_aio.testing import EmbeddedMaster

PROCESSES = (1, 4, 16)
KINDS = {"plain": "plain", "fencing": "`fencing=True`", "fair": "`fair=True`"}
TASKS = 64
"""The tasks that make pairs as fast as they can, in all processes together."""
AT_ONE_MASTER = 512
"""The pairs that are underway at a master that is to be full."""
SLOW_TASKS = 16
"""Those that make them at a rate, so that two rarely share a write."""

EXTENSIONS = 1 / (1 / 3 * (1 - 0.13 / 2))
"""How often a lease is extended in one ttl: after a third of it, up to 13 % earlier."""

FULL = 0.9
"""The share of a core, or of all cores, from which on it counts as full."""
MOST_APART = 0.4
"""The largest share by which a master's load may differ from the forecast."""

AT_ONE, MOST_AT_ONE = ("waiter", "reader", "permit"), 900
"""What shares one name, and of which a name may have a thousand by default."""

SHARES = """Shares are of one core, that of the machine is of all cores. All numbers but the rates
of pairs are those of one master."""

FILES = 16_384
"""Open files that a server with a connection of each manager needs, and more."""

OF_KEYS = {
    "lock": "a lock that is held", "counter": "its fencing counter, for a week",
    "fair": "a fair lock that is held", "waiter": "a waiter of a fair lock",
    "reader": "a reader", "permit": "a permit that is held",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Plan:
    """How much is measured."""

    seconds: float
    rate: float
    """Pairs per second of all processes, where they have a rate."""
    leases: int
    waiters: int
    managers: int
    keys: int
    processes: Sequence[int]

    @classmethod
    def of(cls, *, quick: bool) -> "Plan":
        if quick:
            return cls(0.5, 100, 40, 10, 20, 100, (2,))
        return cls(5.0, 400, 3_200, 160, 1_000, 2_000, PROCESSES)


@dataclass(frozen=True, slots=True)
class Reading:
    """What one master has done so far."""

    cpu: float
    commands: int
    came: int
    sent: int
    extended: int

    @classmethod
    def of(cls, client: redis.Redis) -> "Reading":
        cpu, stats, calls = (client.info(part) for part in ("cpu", "stats", "commandstats"))
        return cls(
            cpu["used_cpu_user"] + cpu["used_cpu_sys"],
            int(stats["total_commands_processed"]),
            int(stats["total_net_input_bytes"]),
            int(stats["total_net_output_bytes"]),
            int(calls.get("cmdstat_pexpire", {"calls": 0})["calls"]),
        )


@dataclass(frozen=True, slots=True)
class Run:
    """What processes have done, and what that has cost the masters. Shares are of one core."""

    processes: int
    seconds: float
    pairs: float
    """Pairs per second of all processes."""
    commands: float
    """Per second and master, as are the next three."""
    came: float
    sent: float
    extended: float
    master: float
    """The share of a core that a master used, on average."""
    busiest: float
    """... and that the busiest one used."""
    client: float
    """... and the busiest process of clients."""
    machine: float
    """The share of all cores that was used by whatever process."""
    lost: int
    """The number of leases that were lost, because the machine was too full."""

    @property
    def full(self) -> str:
        """What limits the rate."""
        if self.busiest >= FULL:
            return "a master"
        if self.client >= FULL:
            return "a client"
        return "the machine" if self.machine >= FULL else "nothing"


@dataclass(frozen=True, slots=True)
class Costs:
    """The processor time of a master, in seconds."""

    pair: float
    extension: float
    """... of the extension of one lease."""
    waiter: float
    """... of a waiter, in each second."""
    process: float = 0.0
    """... of a connection without work, in each second."""


def share_of_core(
    costs: Costs, *, pairs: float, leases: int, ttl: int, waiters: int, processes: int = 0
) -> float:
    """
    Return the share of its core that a master uses.

    Args:
        costs: What each part costs a master.

        pairs: Acquisitions with their releases per second, of all programs.

        leases: The leases that are held long enough to be extended.

        ttl: Their ttl in ms.

        waiters: The waiters that ask the masters.

        processes: The processes that are connected.
    """
    return (
        pairs * costs.pair
        + leases * EXTENSIONS / (ttl / 1000) * costs.extension
        + waiters * costs.waiter
        + processes * costs.process
    )


@dataclass(frozen=True, slots=True)
class Cost:
    """What pairs of one kind have cost."""

    kind: str
    paced: bool
    run: Run

    @property
    def pair(self) -> float:
        """The processor time of a master for one pair, in s."""
        return self.run.master / self.run.pairs


@dataclass(frozen=True, slots=True)
class Mixed:
    """All kinds of work at once, and what the formula says of them."""

    run: Run
    costs: Costs
    forecast: float

    @property
    def ratio(self) -> float:
        """The measured share of a core, to the forecast."""
        return self.run.master / self.forecast


@dataclass(frozen=True, slots=True)
class Connected:
    """Managers that are connected and do nothing."""

    managers: int
    connections: int
    """On one master."""
    bytes: float
    """The memory of a master for each manager."""
    run: Run


@contextlib.asynccontextmanager
async def clients(loads: Sequence[Load]) -> AsyncIterator[list[Process]]:
    """Start one process for each load; end those that have not ended at the end."""
    started: list[Process] = []
    program = str(measuring.HERE / "capacity_client.py")
    try:
        for load in loads:
            started.append(  # noqa: PERF401 - what has started is ended in any case
                await asyncio.create_subprocess_exec(
                    *(sys.executable, program, load.dump()), stdin=PIPE, stdout=PIPE
                )
            )
        yield started
    finally:
        for client in started:
            if client.returncode is None:
                client.kill()
                await client.wait()


class Bench:
    """Processes of clients, and the masters that they use."""

    def __init__(self, urls: Sequence[str], seconds: float) -> None:
        self.urls = urls
        self.seconds = seconds
        self.readers = [redis.Redis.from_url(url) for url in urls]

    async def run(self, processes: int, load: Load, *, idle: float = 0.0) -> Run:
        """Run *load*, which is that of one process, in *processes* processes."""
        loads = [replace(load, number=number) for number in range(processes)]
        async with asyncio.timeout(load.seconds + 300), clients(loads) as running:
            for client in running:
                line = await cast("asyncio.StreamReader", client.stdout).readline()
                if line != b"ready\n":
                    raise RuntimeError("a client process did not start")
            await asyncio.sleep(idle)
            start = time.monotonic() + 0.3
            for client in running:
                cast("asyncio.StreamWriter", client.stdin).write(f"{start!r}\n".encode())
            await asyncio.sleep(start - time.monotonic())
            before, ticks = [Reading.of(reader) for reader in self.readers], cores_time()
            began = time.monotonic()
            await asyncio.sleep(start + load.seconds - time.monotonic())
            after, end_ticks = [Reading.of(reader) for reader in self.readers], cores_time()
            took = time.monotonic() - began
            output = [await client.communicate() for client in running]
        if any(client.returncode for client in running):
            raise RuntimeError("a client process failed")
        found = [json.loads(each) for each, _ in output]
        worked, nothing = (now - then for now, then in zip(end_ticks, ticks, strict=True))

        def rate(value: Callable[[Reading], float]) -> list[float]:
            both = zip(after, before, strict=True)
            return [(value(now) - value(then)) / took for now, then in both]

        def mean(value: Callable[[Reading], float]) -> float:
            return sum(rate(value)) / len(before)

        return Run(
            processes,
            load.seconds,
            sum(each["done"] for each in found) / load.seconds,
            mean(lambda one: one.commands),
            mean(lambda one: one.came),
            mean(lambda one: one.sent),
            mean(lambda one: one.extended),
            mean(lambda one: one.cpu),
            max(rate(lambda one: one.cpu)),
            max(each["cpu"] for each in found) / load.seconds,
            worked / max(1, worked + nothing),
            sum(each["lost"] for each in found),
        )

    def load(
        self,
        kind: str,
        processes: int,
        *,
        tasks: int = 0,
        rate: float = 0.0,
        leases: int = 0,
        waiters: int = 0,
    ) -> Load:
        """Return the part that each of *processes* has in so many tasks, leases and waiters."""
        return Load(
            self.urls,
            kind,
            self.seconds,
            tasks=tasks // processes,
            rate=rate,
            leases=leases // processes,
            waiters=waiters // processes,
        )

    async def pairs(self, kind: str, processes: int, rate: float) -> Cost:
        """Make pairs, *rate* per second in all; 0 for as many as the processes can."""
        tasks = max(processes, SLOW_TASKS) if rate else TASKS
        load = self.load(kind, processes, tasks=tasks, rate=rate / tasks)
        return Cost(kind, rate > 0, await self.run(processes, load))

    async def waiting(self, kind: str, processes: int, waiters: int) -> Run:
        """Let tasks wait for a lock that this process holds."""
        load = self.load(kind, processes, waiters=waiters)
        fair = kind == "fair"
        async with Redlock(self.urls) as redlock, redlock.lock(f"held:{kind}", fair=fair):
            return await self.run(processes, load)


@dataclass(slots=True)
class Found:
    """All measurements."""

    pairs: list[Cost]
    leases: list[Run]
    waiters: list[tuple[str, int, Run]]
    mixed: list[Mixed]
    full: list[Run]
    connected: Connected
    memory: dict[str, dict[str, tuple[float, float]]]


async def measure(urls: Sequence[str], plan: Plan) -> Found:
    bench = Bench(urls, plan.seconds)
    pairs = [
        await bench.pairs(kind, processes, rate)
        for kind in KINDS
        for rate in (plan.rate, 0.0)
        for processes in plan.processes
    ]
    leases = [
        await bench.run(n, bench.load("plain", n, leases=plan.leases)) for n in plan.processes
    ]
    waiters = [
        (kind, plan.waiters, await bench.waiting(kind, n, plan.waiters))
        for kind in ("plain", "fair")
        for n in plan.processes
    ]
    mixed = [await mix(bench, plan, n, pairs, leases, waiters) for n in plan.processes]
    alone = Bench(urls[:1], plan.seconds)
    full = [
        await alone.run(n, replace(alone.load("plain", n, tasks=AT_ONE_MASTER), raw=True))
        for n in plan.processes
    ]
    return Found(pairs, leases, waiters, mixed, full, await connect(bench, plan), {})


async def mix(
    bench: Bench,
    plan: Plan,
    processes: int,
    pairs: Sequence[Cost],
    leases: Sequence[Run],
    waiters: Sequence[tuple[str, int, Run]],
) -> Mixed:
    """Make fair pairs, hold leases and wait, at half of the rates whose costs are known."""
    place = plan.processes.index(processes)
    costs = Costs(
        next(
            each.pair
            for each in pairs
            if each.paced and each.kind == "fair" and each.run.processes == processes
        ),
        leases[place].master / max(1e-9, leases[place].extended),
        next(
            run.master / number
            for kind, number, run in waiters
            if kind == "fair" and run.processes == processes
        ),
    )
    half = replace(plan, leases=plan.leases // 2, waiters=plan.waiters // 2)
    tasks = max(processes, SLOW_TASKS)
    load = bench.load("fair", processes, tasks=tasks, rate=plan.rate / 2 / tasks,
                      leases=half.leases, waiters=half.waiters)  # fmt: skip
    async with Redlock(bench.urls) as redlock, redlock.lock("held:fair", fair=True):
        run = await bench.run(processes, load)
    forecast = share_of_core(
        costs, pairs=run.pairs, leases=half.leases, ttl=LEASE_TTL, waiters=half.waiters
    )
    return Mixed(run, costs, forecast)


async def connect(bench: Bench, plan: Plan) -> Connected:
    """Open managers in a few processes, wait until they are quiet, and look at the masters."""
    processes = min(4, len(plan.processes) + 1)
    each = plan.managers // processes - 1  # and the one that each process has anyway
    reader = bench.readers[0]
    before = int(reader.info("memory")["used_memory"]), len(reader.client_list())
    quiet: list[tuple[int, int]] = []

    async def look() -> None:
        # In the middle of the run: until then they are connected, after it they are gone.
        while True:
            await asyncio.sleep(0.5)
            memory = await asyncio.to_thread(lambda: int(reader.info("memory")["used_memory"]))
            number = int((await asyncio.to_thread(reader.info, "clients"))["connected_clients"])
            quiet.append((number - before[1], memory - before[0]))

    looking = asyncio.create_task(look())
    load = replace(bench.load("plain", processes), managers=each, seconds=2 * plan.seconds)
    run = await bench.run(processes, load, idle=plan.seconds)
    looking.cancel()
    number, memory = max(quiet)
    managers = (each + 1) * processes
    return Connected(managers, number, memory / managers, run)


Seen = tuple[int, int]
"""The bytes of all keys by MEMORY USAGE, and those that the server uses but for connections."""


def seen(client: redis.Redis) -> Seen:
    with client.pipeline(transaction=False) as pipeline:
        for key in client.scan_iter(count=1_000):
            pipeline.execute_command("MEMORY", "USAGE", key, "SAMPLES", "0")
        usage = sum(int(each or 0) for each in pipeline.execute())
    memory = client.info("memory")
    return usage, int(memory["used_memory"]) - int(memory["mem_clients_normal"])


def take(redlock: Redlock, what: str, number: int) -> Callable[[int], Lock | Semaphore]:
    """Return what makes the lock that the task with a number acquires, for a part of `OF_KEYS`."""
    one, ttl = "memory-of-masters-00", 60_000
    match what:
        case "reader":
            return lambda _: redlock.lock(one, ttl=ttl, shared=True)
        case "permit":
            return lambda _: redlock.semaphore(one, permits=number + 1, ttl=ttl)
        case "waiter":
            return lambda _: redlock.lock(one, ttl=ttl, fair=True)
    fencing, fair = what == "counter", what == "fair"
    # The names have 20 bytes.
    return lambda n: redlock.lock(f"invoice:{n:012}", ttl=ttl, fencing=fencing, fair=fair)


async def remember(url: str, what: str, number: int) -> tuple[float, float]:
    """Return the bytes of each of *number* locks, counters, readers, permits or waiters."""
    with redis.Redis.from_url(url) as client:
        async with Redlock([url]) as redlock:
            lock_of = take(redlock, what, number)
            first = await lock_of(number).acquire()
            if what == "counter":
                await first.release()
            before = seen(client)
            left, leases = iter(range(number)), [first]

            async def some() -> None:
                for each in left:
                    leases.append(await lock_of(each).acquire())  # noqa: PERF401 - see `gather`

            at_once = number if what in AT_ONE else 100  # no task reads the same twice
            tasks = [asyncio.create_task(some()) for _ in range(at_once)]
            if what == "waiter":
                await asyncio.sleep(3)
            else:
                await asyncio.gather(*tasks)
                await asyncio.sleep(0.5)  # until all keys are tracked
            if what == "counter":
                for lease in leases[1:]:
                    await lease.release()
            after = seen(client)
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
    usage, used = ((now - then) / number for now, then in zip(after, before, strict=True))
    return usage, used


def memory_of(plan: Plan) -> dict[str, dict[str, tuple[float, float]]]:
    """Return what `remember` finds on each kind of server that is there, each time on a new one."""
    binaries = {"valkey": None, "redis": shutil.which("redis-server")}
    found: dict[str, dict[str, tuple[float, float]]] = {}
    for server, binary in binaries.items():
        if server == "redis" and binary is None:
            continue
        for what in OF_KEYS:
            with EmbeddedMaster(binary) as master:
                called = version_of(master.url)
                number = min(plan.keys, MOST_AT_ONE) if what in AT_ONE else plan.keys
                result = measuring.run(remember(master.url, what, number))
            found.setdefault(called, {})[what] = result
    return found


def version_of(url: str) -> str:
    """Return the name and the version of a server, as in "redis 7.0.15"."""
    with redis.Redis.from_url(url) as client:
        info = client.info("server")
    server = info.get("server_name", "redis")
    return f"{server} {info.get(f'{server}_version', info['redis_version'])}"


def us(seconds: float) -> str:
    return f"{seconds * 1e6:.1f} µs"


def cost_rows(found: Sequence[Cost]) -> Iterator[list[str]]:
    for each in found:
        run = each.run
        yield [
            f"{KINDS[each.kind]}, {'at a rate' if each.paced else 'as fast as they can'}",
            f"{run.processes}",
            f"{run.pairs:,.0f}",
            f"{run.commands / run.pairs:.1f}",
            f"{run.came / run.pairs:,.0f}",
            f"{run.sent / run.pairs:,.0f}",
            us(each.pair),
            f"{1 / each.pair:,.0f}",
            *shares(run),
        ]


def shares(run: Run) -> list[str]:
    return [f"{run.busiest:.1%}", f"{run.client:.1%}", f"{run.machine:.0%}", run.full]


def lease_rows(found: Sequence[Run], leases: int) -> Iterator[list[str]]:
    for run in found:
        rule = leases * EXTENSIONS / (LEASE_TTL / 1000)
        yield [
            f"{leases:,} leases of {LEASE_TTL / 1000:g} s",
            f"{run.processes}",
            f"{run.extended:,.0f}",
            f"{rule:,.0f}",
            us(run.master / max(1e-9, run.extended)),
            f"{run.lost}",
            *shares(run),
        ]


def waiter_rows(found: Sequence[tuple[str, int, Run]]) -> Iterator[list[str]]:
    for kind, number, run in found:
        yield [
            f"{number} waiters, {KINDS[kind]}",
            f"{run.processes}",
            f"{run.commands / number:.2f}",
            us(run.master / number),
            *shares(run),
        ]


def mixed_rows(found: Sequence[Mixed]) -> Iterator[list[str]]:
    for each in found:
        run = each.run
        holds = abs(each.ratio - 1) <= MOST_APART
        yield [
            f"{run.processes}",
            f"{run.pairs:,.0f}",
            f"{run.extended:,.0f}",
            f"{each.forecast:.2%}",
            f"{run.master:.2%}",
            f"{each.ratio:.2f}",
            *shares(run)[1:],
            bar(f"within {MOST_APART:.0%}", passed=holds),
        ]


def full_rows(found: Found) -> Iterator[list[str]]:
    for run in found.full:
        slow, fast = (
            next(
                1 / each.pair
                for each in found.pairs
                if (each.kind, each.paced, each.run.processes) == ("plain", paced, run.processes)
            )
            for paced in (True, False)
        )
        held = "" if run.full != "a master" else bar("no less", passed=run.pairs >= slow)
        yield [
            f"{run.processes}",
            f"{slow:,.0f}",
            f"{fast:,.0f}",
            f"{run.pairs:,.0f}",
            *shares(run),
            held,
        ]


def connected_rows(found: Connected) -> Iterator[list[str]]:
    run = found.run
    yield [
        f"{found.managers:,} managers",
        f"{found.connections:,}",
        f"{found.bytes:,.0f}",
        f"{run.commands / found.managers:.2f}",
        f"{run.master:.2%}",
        f"{run.client:.1%}",
        "",
    ]


def memory_rows(found: Mapping[str, Mapping[str, tuple[float, float]]]) -> Iterator[list[str]]:
    for what, called in OF_KEYS.items():
        numbers = [f"{each:,.0f}" for server in found.values() for each in server[what]]
        yield [called, *numbers, ""]


def report(found: Found, plan: Plan, where: str, url: str) -> str:
    ends = ["busiest master", "busiest client", "machine", "what is full"]
    machine = measuring.machine(url, "redlock_aio", "redis", "hiredis")
    paced = f"{plan.rate:,.0f} pairs a second by {SLOW_TASKS} tasks"
    shared = f"readers, permits and waiters {min(plan.keys, MOST_AT_ONE):,}"
    servers = [f"{server}, {by}" for server in found.memory for by in ("MEMORY USAGE", "growth")]
    return "\n\n".join(
        [
            "# How far one set of masters goes",
            f"Five masters {where}, and all clients, on one machine: {machine}.",
            measuring.command(),
            f"Each row was measured for {plan.seconds:g} s. {SHARES}",
            "## Pairs",
            f"First {paced}, then as many as {TASKS} tasks can make.",
            measuring.table(
                ["a pair, nobody waits", "processes", "pairs/s", "commands", "bytes in",
                 "bytes out", "processor time", "pairs/s of a full core", *ends],
                cost_rows(found.pairs),
            ),
            "## Leases that are extended",
            measuring.table(
                ["held", "processes", "extensions/s", "by the rule", "processor time of one",
                 "lost", *ends],
                lease_rows(found.leases, plan.leases),
            ),
            "## Waiters",
            "All wait for one lock that stays held.",
            measuring.table(
                ["waiting", "processes", "commands/s each", "processor time of each in 1 s", *ends],
                waiter_rows(found.waiters),
            ),
            "## The formula, with all of it at once",
            measuring.table(
                ["processes", "fair pairs/s", "extensions/s", "forecast of a master's core",
                 "measured", "to the forecast", *ends[1:], "bars"],
                mixed_rows(found.mixed),
            ),
            "## A full master",
            "The commands of plain pairs to one master, without the library.",
            measuring.table(
                ["processes", "forecast, at a rate", "forecast, as fast as they can", "pairs/s",
                 *ends, "bars"],
                full_rows(found),
            ),
            "## Connections",
            measuring.table(
                ["idle", "connections to a master", "bytes of a master each",
                 "commands/s each", "a master's core", "busiest client", ""],
                connected_rows(found.connected),
            ),
            "## Memory of a master",
            f"Bytes for each of {plan.keys:,} with names of 20 bytes; of {shared} for one name.",
            measuring.table(["of", *servers, ""], memory_rows(found.memory)),
        ]
    )  # fmt: skip


def main() -> None:
    parser = measuring.arguments(__doc__)
    masters.add_options(parser)
    options = parser.parse_args()
    logging.getLogger("redlock_aio").setLevel(logging.ERROR)
    stop_cleanly()
    plan = Plan.of(quick=options.quick)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < FILES:
        if hard < FILES:
            parser.error(
                f"a thousand connections need {FILES:,} open files (ulimit -n), not {hard}"
            )
        resource.setrlimit(resource.RLIMIT_NOFILE, (FILES, hard))
    with masters.running(options) as servers:
        urls = [server.url for server in servers]
        found = measuring.run(measure(urls, plan))
        found.memory.update(memory_of(plan))
        text = report(found, plan, masters.where(options), urls[0])
    print(text)
    if not options.quick:
        masters.results(options, "results-capacity").write_text(f"{text}\n")


if __name__ == "__main__":
    main()
