"""
How long a lock stays unused after a release while a waiter in another process wants it.

One process holds the lock, and another one waits for it. The time is from just before the
release until the waiter has the lock. The holder has it for a random time, so that libraries
that ask again and again are released at any moment between two of their requests.

The benchmark claims that of redlock_aio, plain, fenced and fair, the median is at most
`MOST_TO_FLOOR` times a pair of the floor after a pause of the same length (see `floor.py`), and
99 of 100 are done within `MOST_MS` ms. A pair is two round trips, and so is the least that a
wake-up takes: one for the release and its push, one for the attempt.

    python benchmarks/handover.py [--quick] [--containers | --server redis]

The table goes to `results-handover.md`. `contention.py` measures many waiters at once.
"""

import asyncio
import json
import logging
import os
import random
import sys
import time
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import cast

import masters
import measuring
from contenders import FAIR, FENCED, PLAIN, POTTERY, REDIS_PY, Load, contestant
from floor import Floor
from measuring import bar, median, percentile

OURS = (PLAIN, FENCED, FAIR)
EVERYBODY = (*OURS, REDIS_PY, POTTERY)

MOST_TO_FLOOR = 3
MOST_MS = 50

LEAST_HELD, MOST_HELD = 0.05, 0.25
"""Seconds for which the holder has the lock: some libraries ask ten times in a second or less."""


@dataclass(slots=True)
class Taken:
    """The times of one contestant until the waiter had the lock, and pairs of the floor, in ms."""

    took: list[float] = field(default_factory=list)
    floor: list[float] = field(default_factory=list)


async def wait_on_request(load: Load) -> None:
    """Do the work of the waiter: acquire when a line comes, and print when it was acquired."""
    opening, failures = contestant(load)
    async with opening as take:
        async with take(f"warm:{os.getpid()}"):
            pass
        print("ready", flush=True)
        while await asyncio.to_thread(sys.stdin.readline):
            acquired = 0.0
            while not acquired:
                try:
                    async with take(load.key):
                        acquired = time.monotonic()
                except failures:
                    continue  # some libraries give up after a while
            print(acquired, flush=True)


@asynccontextmanager
async def waiter(load: Load) -> AsyncIterator[Process]:
    """Run the waiter in a process of its own."""
    arguments = (sys.executable, __file__, "--waiter", load.dump())
    process = await asyncio.create_subprocess_exec(*arguments, stdin=PIPE, stdout=PIPE)
    try:
        if await line_of(process) != "ready":
            raise RuntimeError("the waiter did not start")
        yield process
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def line_of(process: Process) -> str:
    """Return the next line that the waiter prints."""
    line = await cast("asyncio.StreamReader", process.stdout).readline()
    return line.decode().strip()


async def measure(urls: Sequence[str], who: str, times: int) -> Taken:
    """Release the lock *times* times while the waiter wants it, and measure until it has it."""
    taken = Taken()
    load = Load(who, urls[:1] if who == REDIS_PY else urls, f"handover:{who}", 1, 0.0)
    opening, _ = contestant(load)
    async with asyncio.timeout(60 + times), AsyncExitStack() as stack:
        floor = Floor(urls)
        await floor.open(measuring.names(1))
        stack.push_async_callback(floor.aclose)
        other = await stack.enter_async_context(waiter(load))
        take = await stack.enter_async_context(opening)
        for _ in range(times + 1):
            async with take(load.key):
                cast("asyncio.StreamWriter", other.stdin).write(b"wait\n")
                await asyncio.sleep(random.uniform(LEAST_HELD, MOST_HELD))
                began = time.monotonic()
            acquired = float(await line_of(other))
            taken.took.append((acquired - began) * 1000)
            await asyncio.sleep(random.uniform(0.03, 0.08))
            began = time.monotonic()
            await floor.pair("benchmark:0")
            taken.floor.append((time.monotonic() - began) * 1000)
    return Taken(taken.took[1:], taken.floor[1:])  # without the first ones, which connect


def rows(found: dict[str, Taken]) -> Iterator[list[str]]:
    for who, taken in found.items():
        took = sorted(taken.took)
        ratio = measuring.median_ratio(taken.took, taken.floor)
        late = percentile(took, 0.99)
        bars = [
            bar(f"ratio <= {MOST_TO_FLOOR}", passed=ratio <= MOST_TO_FLOOR),
            bar(f"p99 <= {MOST_MS} ms", passed=late <= MOST_MS),
        ]
        yield [
            f"**{who}**" if who in OURS else who,
            f"{len(took):,}",
            f"{median(took):.2f} ms",
            f"{ratio:.1f}",
            f"{late:.1f} ms",
            f"{took[-1]:.1f} ms",
            ", ".join(bars if who in OURS else ()),
        ]


def report(found: dict[str, Taken], where: str, url: str) -> str:
    head = [
        "from a release until a waiter in another process has the lock", "releases", "median",
        "to the floor's pair", "p99", "longest", "bars",
    ]  # fmt: skip
    machine = measuring.machine(url, "redlock_aio", "redis", "hiredis", "pottery")
    floor = median(pair for taken in found.values() for pair in taken.floor)
    about = (
        f"A pair of the floor's took {floor:.2f} ms after a pause such as the waiter's: a machine"
        " that has slept is slower, whoever wakes it."
    )
    return "\n\n".join(
        [
            "# How soon the next one has the lock",
            f"Five masters {where}, and both clients, on one machine: {machine}.",
            measuring.command(),
            about,
            measuring.table(head, rows(found)),
        ]
    )


def main() -> None:
    logging.getLogger("redlock_aio").setLevel(logging.ERROR)
    if sys.argv[1:2] == ["--waiter"]:
        asyncio.run(wait_on_request(Load(**json.loads(sys.argv[2]))))
        return
    parser = measuring.arguments(__doc__)
    masters.add_options(parser)
    options = parser.parse_args()
    found = {}
    with masters.running(options) as servers:
        urls = [server.url for server in servers]
        for who in EVERYBODY:
            times = 5 if options.quick else 150 if who in OURS else 60
            found[who] = measuring.run(measure(urls, who, times))
        text = report(found, masters.where(options), urls[0])
    print(text)
    if not options.quick:
        masters.results(options, "results-handover").write_text(f"{text}\n")


if __name__ == "__main__":
    main()
