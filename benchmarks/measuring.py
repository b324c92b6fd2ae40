"""
The parts that all benchmarks share: measurements and tables.

A *pair* is one acquisition and one release, with nothing in between. It is
measured in two ways: as a rate, with many tasks that each have a key of their
own, and as a latency, with one task alone. The garbage collector runs as it
does in any program, but starts each measurement with nothing to collect.
"""

import argparse
import asyncio
import gc
import os
import platform
import statistics
import sys
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Protocol, TypeVar

import redis
from evidence.provenance import measured, said

TTL = 10_000
"""The ttl of every contestant's locks, in milliseconds."""

TASKS = 100

MOST_LATE = 5.0
"""Seconds after the measured ones in which pairs that have begun may be done."""

HERE = Path(__file__).parent

MEASURED = measured()
"""What is measured, and how busy the machine was before."""

LIBRARIES = {"redis": "redis-py"}
"""The usual names of packages that have another one."""

Pair = Callable[[str], Awaitable[None]]
"""Acquires and releases the lock with this name."""

T = TypeVar("T")


class Server(Protocol):
    """A master that can be made to hang."""

    @property
    def url(self) -> str: ...
    def pause(self) -> None: ...
    def resume(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Rate:
    """The rate of many tasks at once, and the processor time of the client's process."""

    pairs_per_second: float
    cpu_us: float


@dataclass(frozen=True, slots=True)
class Took:
    """What pairs in many tasks at once took; a client in another language says the same."""

    pairs: int
    failed: int
    """How many attempts had an error."""
    took: float
    """Seconds until the last pair was done."""
    cpu: float
    """Seconds of the processor that the client used."""
    p50: float
    p99: float
    """Latencies of a pair, in µs."""


def names(tasks: int = TASKS) -> list[str]:
    """Return the keys that a measurement uses, one for each task."""
    return [f"benchmark:{number}" for number in range(tasks)]


async def rate(pair: Pair, *, seconds: float, tasks: int = TASKS) -> Rate:
    """Make pairs in *tasks* tasks for *seconds*, in each task one after another."""
    going = True

    def stop() -> None:
        nonlocal going
        going = False

    async def work(name: str) -> int:
        done = 0
        while going:
            await pair(name)
            done += 1
        return done

    gc.collect()
    asyncio.get_running_loop().call_later(seconds, stop)
    began, cpu_began = time.perf_counter(), time.process_time()
    done = sum(await asyncio.gather(*(work(name) for name in names(tasks))))
    elapsed, cpu = time.perf_counter() - began, time.process_time() - cpu_began
    return Rate(done / elapsed, cpu / done * 1e6)


async def latencies(pair: Pair, *, seconds: float) -> list[float]:
    """Make pairs in one task for *seconds*; return their latencies in µs, sorted."""
    (name,) = names(1)
    clock = time.perf_counter
    took = []
    gc.collect()
    before = clock()
    ends = before + seconds
    while before < ends:
        await pair(name)
        after = clock()
        took.append((after - before) * 1e6)
        before = after
    return sorted(took)


async def took(
    pair: Pair, tasks: int, seconds: float, failures: tuple[type[Exception], ...] = ()
) -> Took:
    """
    Make pairs in *tasks* tasks for *seconds*, and take the time of each.

    A pair that is not done `MOST_LATE` later is cancelled, and counts as failed.

    Args:
        failures: The errors of this lock when it was not acquired, which are counted.
    """
    clock = time.perf_counter
    latencies: list[float] = []
    failed = 0

    async def work(name: str) -> None:
        nonlocal failed
        before = clock()
        while before < ends:
            try:
                await pair(name)
            except failures:
                failed += 1
                before = clock()
                continue
            after = clock()
            latencies.append((after - before) * 1e6)
            before = after

    gc.collect()
    began, cpu = clock(), time.process_time()
    ends = began + seconds
    working = [asyncio.create_task(work(name)) for name in names(tasks)]
    done, undone = await asyncio.wait(working, timeout=seconds + MOST_LATE)
    elapsed, used = clock() - began, time.process_time() - cpu
    for task in undone:
        task.cancel()
    if undone:  # some do not end when they are cancelled
        await asyncio.wait(undone, timeout=MOST_LATE)
    for task in done:
        task.result()
    failed += len(undone)
    latencies.sort()
    middle, late = [percentile(latencies, share) if latencies else 0.0 for share in (0.5, 0.99)]
    return Took(len(latencies), failed, elapsed, used, middle, late)


def servers_cpu(urls: Sequence[str]) -> float:
    """Return the seconds of the processor that the masters have used so far."""
    total = 0.0
    for url in urls:
        with redis.Redis.from_url(url) as client:
            used = client.info("cpu")
        total += used["used_cpu_user"] + used["used_cpu_sys"]
    return total


def percentile(ordered: Sequence[float], share: float) -> float:
    """Return the value below which *share* of the *ordered* values lie."""
    return ordered[min(int(len(ordered) * share), len(ordered) - 1)]


def median(values: Iterable[float]) -> float:
    return statistics.median(values)


def median_ratio(values: Iterable[float], to: Iterable[float]) -> float:
    """
    Return the median of the ratios of two measurements in the same repetition.

    Another process that uses the processor for a while slows both sides of a
    ratio, but not both of two medians.
    """
    return median(value / other for value, other in zip(values, to, strict=True))


async def beside_fair(
    pairs: dict[str, Pair], most: float, times: int, seconds: float
) -> list[list[str]]:
    """
    Measure uncontended pairs of each kind in turn; return the rows of a table.

    Args:
        pairs: One of the kinds is "fair and fenced", to which the others are compared.

        most: How many times as much as that the first kind may take, of the client's processor
            time and in latency.
    """
    rates: dict[str, list[Rate]] = {kind: [] for kind in pairs}
    lags: dict[str, list[float]] = {kind: [] for kind in pairs}
    for turn in range(times + 1):
        for kind, pair in pairs.items():
            taken = await rate(pair, seconds=seconds)
            lag = median(await latencies(pair, seconds=seconds))
            if turn:  # the first turn fills caches
                rates[kind].append(taken)
                lags[kind].append(lag)
    cpu = {kind: [one.cpu_us for one in rates[kind]] for kind in pairs}
    rows = []
    for number, kind in enumerate(pairs):
        by_cpu = median_ratio(cpu[kind], cpu["fair and fenced"])
        by_lag = median_ratio(lags[kind], lags["fair and fenced"])
        holds = bar(f"both <= {most}", passed=max(by_cpu, by_lag) <= most)
        rows.append([
            kind,
            f"{median(cpu[kind]):.1f} µs",
            f"{by_cpu:.2f}",
            f"{median(lags[kind]):.0f} µs",
            f"{by_lag:.2f}",
            "" if number else holds,
        ])  # fmt: skip
    return rows


def run(main: Coroutine[object, object, T], *, uvloop: bool = False) -> T:
    """Run *main* to its end, on asyncio's own loop or on uvloop."""
    factory: Callable[[], asyncio.AbstractEventLoop] | None = None
    if uvloop:
        import uvloop as other

        factory = other.new_event_loop
    with asyncio.Runner(loop_factory=factory) as runner:
        return runner.run(main)


def arguments(what: str | None) -> argparse.ArgumentParser:
    """Return a parser with the options that all benchmarks have."""
    parser = argparse.ArgumentParser(
        description=what, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="short and rough; keeps no results")
    return parser


def command() -> str:
    """Return one line about the command that measures, the date, the commit and the load before."""
    what = " ".join([f"python benchmarks/{Path(sys.argv[0]).name}", *sys.argv[1:]])
    return f"Measured on {datetime.now(UTC).date()} by `{what}`. {said([MEASURED])}"


def cores_time() -> tuple[int, int]:
    """Return for how many ticks all cores have worked, and for how many they had nothing to do."""
    user, nice, system, idle, waiting, *more = map(int, Path("/proc/stat").read_text().split()[1:9])
    return user + nice + system + sum(more), idle + waiting


def machine(url: str, *packages: str) -> str:
    """Return one line about the machine and the versions, without the host's name."""
    info = redis.Redis.from_url(url).info("server")
    server = info.get("server_name", "redis")
    number = info.get(f"{server}_version", info["redis_version"])
    return ", ".join(
        [
            _cpu_model(),
            f"{os.cpu_count()} cores",
            f"{platform.system()} {platform.release().partition('-')[0]}",
            f"{platform.python_implementation()} {platform.python_version()}",
            f"{server} {number}",
            *(f"{LIBRARIES.get(p, p)} {version(p)}" for p in packages),
        ]
    )


def _cpu_model() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    for line in cpuinfo.read_text().splitlines() if cpuinfo.exists() else ():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table; all columns but the first and the last are numbers."""
    rule = ["---", *["---:"] * (len(head) - 2), "---"]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in (head, rule, *rows))


def bar(label: str, *, passed: bool) -> str:
    """Return the text for a claim that was met or missed."""
    return f"{'PASS' if passed else 'miss'} ({label})"
