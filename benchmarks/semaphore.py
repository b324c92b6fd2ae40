"""
What a permit of a semaphore costs, and how much of the permits' time is used by many tasks.

    python benchmarks/semaphore.py [--quick] [--containers | --server redis]

It claims:

- a pair of acquiring and releasing a permit that is free takes at most `MOST_TO_FAIR` times the
  client's time and the latency of a pair of a fair lock with a fencing token;
- of the time of all permits, tasks that wait for them use at least the share in `CROWDS`, where
  the processor has time for that: *busy* is the share of all cores' time that was used, by the
  clients and the servers;
- no task waits more than `MOST_WAIT` times as long as the longest wait behind a turnstile: a fair
  lock that each task holds while it waits for a permit, which keeps the order strictly. Where a
  turnstile leaves permits idle, that is no high bar; where it does not, it is.

Beside it, on one of the servers, the semaphores of two other libraries, which keep their counts on
a single server: `py-redis-semaphore` and `steindamm`. Those that are not installed are left out.

The tables go to `results-semaphore.md`.
"""

import asyncio
import contextlib
import importlib.util
import itertools
import random
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import dataclass
from typing import TypeAlias

import masters
import measuring
import redis.asyncio
from distance import at_distance
from measuring import TTL, Pair, bar, cores_time, median

from redlock_aio import Redlock

MOST_TO_FAIR = 1.3
MOST_WAIT = 2.0

PROGRAMS = (1, 10)
"""The numbers of managers among which the tasks are divided, each with its own connections."""
KEY = "api"

Enter: TypeAlias = Callable[[int], AbstractAsyncContextManager[object]]
"""Returns what the task with a number enters to hold a permit."""


@dataclass(frozen=True, slots=True)
class Crowd:
    """Tasks that want the same permits again and again."""

    permits: int
    tasks: int
    held: float
    """For how many ms a task holds its permit."""
    trip: float
    """The round trip to each master in ms that a proxy adds; 0 for none."""
    least: float
    """The share of the permits' time that has to be used."""

    def __str__(self) -> str:
        far = f", {self.trip:g} ms away" if self.trip else ""
        return f"{self.permits} permits, {self.tasks} tasks that hold one {self.held:g} ms{far}"


CROWDS = [
    Crowd(5, 20, 20, 0, 0.85),
    Crowd(50, 100, 50, 0, 0.80),
    Crowd(50, 100, 100, 5, 0.70),
]
FOR_QUICK = [(CROWDS[0], 10), (CROWDS[2], 1)]


@dataclass(frozen=True, slots=True)
class Use:
    """How the tasks of a crowd used the permits."""

    share: float
    waits: list[float]
    """In seconds, sorted."""
    most: int
    """The most tasks that held a permit at the same time."""
    busy: float
    """The share of all cores' time that was used."""


async def use_of(crowd: Crowd, enter: Enter, seconds: float) -> Use:
    """Let the tasks of *crowd* hold permits for *seconds*, after as long as three take turns."""
    clock = time.perf_counter
    held, most, used, waits = 0, 0, 0.0, list[float]()
    warm_up = 3 * crowd.held / 1000 * max(crowd.tasks / crowd.permits, 1)
    begins = clock() + warm_up
    ends = begins + seconds

    async def work(number: int) -> None:
        nonlocal held, most, used
        await asyncio.sleep(random.random() * crowd.held / 1000)
        while (asked := clock()) < ends:
            async with enter(number):
                got = clock()
                held, most = held + 1, max(most, held + 1)
                await asyncio.sleep(crowd.held / 1000)
                held -= 1
                left = clock()
            used += max(min(left, ends) - max(got, begins), 0.0)
            if got > begins:
                waits.append(got - asked)

    working, idle = cores_time()
    await asyncio.gather(*map(work, range(crowd.tasks)))
    worked, idled = cores_time()
    busy = (worked - working) / max(worked - working + idled - idle, 1)
    return Use(used / crowd.permits / seconds, sorted(waits), most, busy)


def pair_of(redlock: Redlock, kind: str) -> Pair:
    async def permit(name: str) -> None:
        async with redlock.semaphore(name, permits=5, ttl=TTL):
            pass

    async def fair(name: str) -> None:
        async with redlock.lock(name, ttl=TTL, fair=True, fencing=True):
            pass

    async def plain(name: str) -> None:
        async with redlock.lock(name, ttl=TTL):
            pass

    return {"permit": permit, "fair and fenced": fair, "plain": plain}[kind]


@contextlib.asynccontextmanager
async def ours(
    urls: Sequence[str], permits: int, programs: int
) -> AsyncIterator[tuple[Enter, Enter]]:
    """Yield what enters a permit, and what does so behind a turnstile, in several programs."""
    async with AsyncExitStack() as stack:
        managers = [await stack.enter_async_context(Redlock(urls)) for _ in range(programs)]
        semaphores = [m.semaphore(KEY, permits=permits, ttl=TTL) for m in managers]
        turns = [m.lock("turnstile", fair=True, ttl=TTL) for m in managers]

        @contextlib.asynccontextmanager
        async def behind_a_turnstile(number: int) -> AsyncIterator[None]:
            async with turns[number % programs]:
                lease = await semaphores[number % programs].acquire()
            async with lease:
                yield

        yield lambda number: semaphores[number % programs], behind_a_turnstile


async def crowds(
    urls: Sequence[str], seconds: float, settings: Iterable[tuple[Crowd, int]]
) -> list[list[str]]:
    rows = []
    for crowd, programs in settings:
        with at_distance(urls, [crowd.trip] * len(urls)) if crowd.trip else near(urls) as reached:
            async with ours(reached, crowd.permits, programs) as (permit, turn):
                used = await use_of(crowd, permit, seconds)
                strict = await use_of(crowd, turn, seconds)
        longest = used.waits[-1] / strict.waits[-1]
        fits = used.share >= crowd.least and longest <= MOST_WAIT and used.most <= crowd.permits
        rows.append([
            str(crowd),
            f"{programs}",
            f"{100 * used.share:.0f} %",
            f"{100 * used.busy:.0f} %",
            f"{1000 * median(used.waits):.0f} / {1000 * used.waits[-1]:.0f} ms",
            f"{100 * strict.share:.0f} %",
            f"{1000 * median(strict.waits):.0f} / {1000 * strict.waits[-1]:.0f} ms",
            bar(f">= {100 * crowd.least:.0f} %, <= {MOST_WAIT:g} times", passed=fits),
        ])  # fmt: skip
    return rows


@contextlib.contextmanager
def near(urls: Sequence[str]) -> Iterator[list[str]]:
    """Do what `at_distance` does, without proxies."""
    yield list(urls)


def always(entered: AbstractAsyncContextManager[object]) -> Enter:
    return lambda _number: entered


# Others, on one server.


def py_redis_semaphore(client: "redis.asyncio.Redis", permits: int) -> Enter:
    from redis_semaphore import Semaphore, SemaphoreConfig

    config = SemaphoreConfig(name=KEY, limit=permits, lock_timeout=TTL / 1000)
    return lambda _number: Semaphore(client, config)


def steindamm(client: "redis.asyncio.Redis", permits: int) -> Enter:
    from steindamm import AsyncSemaphore

    return lambda _number: AsyncSemaphore.create(
        connection=client, name=KEY, capacity=permits, max_sleep=0, expiry=TTL // 1000
    )


OTHERS: dict[str, tuple[str, Callable[["redis.asyncio.Redis", int], Enter]]] = {
    "py-redis-semaphore": ("redis_semaphore", py_redis_semaphore),
    "steindamm": ("steindamm", steindamm),
}


async def beside_others(url: str, seconds: float) -> list[list[str]]:
    """Let each library serve the same crowd, from one process, on one server."""
    crowd, rows = CROWDS[0], []
    for name in ("redlock_aio", *OTHERS):
        async with AsyncExitStack() as stack:
            client = redis.asyncio.Redis.from_url(url, max_connections=2 * crowd.tasks)
            await stack.enter_async_context(client)
            await client.flushdb()
            if name == "redlock_aio":
                redlock = await stack.enter_async_context(Redlock(url))
                enter = always(redlock.semaphore(KEY, permits=crowd.permits, ttl=TTL))
            else:
                module, make = OTHERS[name]
                if importlib.util.find_spec(module) is None:
                    rows.append([name, "not installed", "", "", ""])
                    continue
                enter = make(client, crowd.permits)
            before, cpu = await client.info("cpu"), time.process_time()
            used = await use_of(crowd, enter, seconds)
            cpu = time.process_time() - cpu
            after = await client.info("cpu")
            servers = sum(after[k] - before[k] for k in ("used_cpu_user", "used_cpu_sys"))
            pairs = len(used.waits)
            rows.append([
                name,
                f"{100 * used.share:.0f} %",
                f"{1000 * median(used.waits):.0f} / {1000 * used.waits[-1]:.0f} ms",
                f"{1e6 * cpu / pairs:.0f} µs / {1e6 * servers / pairs:.0f} µs",
                f"{used.most}",
            ])  # fmt: skip
    return rows


async def measure(
    urls: Sequence[str], *, quick: bool
) -> tuple[list[list[str]], list[list[str]], list[list[str]]]:
    times, seconds = (1, 0.1) if quick else (11, 1.0)
    async with Redlock(urls) as redlock:
        kinds = {kind: pair_of(redlock, kind) for kind in ("permit", "fair and fenced", "plain")}
        uncontended = await measuring.beside_fair(kinds, MOST_TO_FAIR, times, seconds)
    seconds = 0.3 if quick else 10.0
    settings = FOR_QUICK if quick else itertools.product(CROWDS, PROGRAMS)
    together = await crowds(urls, seconds, settings)
    return uncontended, together, await beside_others(urls[0], seconds)


def main() -> None:
    parser = measuring.arguments(__doc__)
    masters.add_options(parser)
    options = parser.parse_args()
    with masters.running(options) as servers:
        urls = [server.url for server in servers]
        uncontended, together, others = measuring.run(measure(urls, quick=options.quick))
        machine = measuring.machine(urls[0], "redlock_aio", "redis", "hiredis")
    pair = ["a free permit", "CPU, 100 tasks", "to fair's", "latency, 1 task", "to fair's", "bar"]
    used = [
        "",
        "programs",
        "used",
        "busy",
        "wait, median / longest",
        "used behind a turnstile",
        "wait there",
        "bar",
    ]
    beside = [
        str(CROWDS[0]),
        "used",
        "wait, median / longest",
        "CPU a permit, client / server",
        "most at once",
    ]
    text = "\n\n".join([
        "# Semaphores",
        f"Five masters {masters.where(options)}, and the clients, on one machine: {machine}.",
        measuring.command(),
        measuring.table(pair, uncontended),
        "Tasks that hold a permit again and again, of one or several programs:",
        measuring.table(used, together),
        "On one server, all tasks in one process:",
        measuring.table(beside, others),
    ])  # fmt: skip
    print(text)
    if not options.quick:
        masters.results(options, "results-semaphore").write_text(f"{text}\n")


if __name__ == "__main__":
    main()
