"""
What a read lock costs, and how long readers and writers wait for each other.

    python benchmarks/readers.py [--quick] [--containers | --server redis]

It claims:

- a pair of acquiring and releasing a read lock takes at most `MOST_TO_FAIR` times the client's
  and the masters' time of a pair of a fair lock with a fencing token;
- 1,000 readers of one key, each of them extended by its own manager's watchdog, change the key
  of the lock at most `MOST_CHANGES` times a second: each change is pushed to all of them;
- a writer among 30 streaming readers waits less than `MOST_WAIT` seconds;
- 100 readers that wait for a writer have the lock within `MOST_ENTERING` seconds of its release.

Beside it, on one of the servers and for threads, the read-write lock of another library,
portalocker's `RedisLock`: each of its leases is a subscription with a thread of its own.

The tables go to `results-readers.md`.
"""

import asyncio
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, AsyncExitStack

import masters
import measuring
import portalocker
import redis.asyncio
from measuring import TTL, Pair, bar, median

from redlock_aio import Lease, Redlock, sync

MOST_TO_FAIR = 1.3
MOST_CHANGES = 10
MOST_WAIT = 1.5
MOST_ENTERING = 1.0

READERS = 1_000
MANAGERS = 10
EXTENDED_TTL = 3_000
"""The ttl of the 1,000 readers in ms, each of which is extended once a second."""
KEY = "readers"


def pair_of(redlock: Redlock, kind: str) -> Pair:
    async def read(name: str) -> None:
        async with redlock.lock(name, ttl=TTL, shared=True):
            pass

    async def fair(name: str) -> None:
        async with redlock.lock(name, ttl=TTL, fair=True, fencing=True):
            pass

    async def plain(name: str) -> None:
        async with redlock.lock(name, ttl=TTL):
            pass

    return {"read": read, "fair and fenced": fair, "plain": plain}[kind]


async def thousand_readers(urls: Sequence[str], seconds: float) -> list[str]:
    """Let 1,000 readers of one key be extended; count the changes of the key, and the CPU time."""
    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(redis.asyncio.Redis.from_url(urls[0]))
        managers = [await stack.enter_async_context(Redlock(urls)) for _ in range(MANAGERS)]

        async def acquire(number: int) -> Lease:
            manager = managers[number % MANAGERS]
            return await manager.lock(KEY, ttl=EXTENDED_TTL, on_lost="flag", shared=True).acquire()

        leases = await asyncio.gather(*map(acquire, range(READERS)))
        await asyncio.sleep(1)
        ends, changes = 0, 0
        cpu, began = time.process_time(), time.monotonic()
        while (now := time.monotonic()) < began + seconds:
            left = await client.pttl(KEY)
            changed = int(time.time() * 1000) + left
            # PTTL is rounded, and its reply takes a moment: less is the same end.
            if abs(changed - ends) > 20:
                ends, changes = changed, changes + 1
            await asyncio.sleep(0.005)
        used = (time.process_time() - cpu) / (now - began)
        valid = sum(lease.valid for lease in leases)
        # Those that a busy machine has lost were counted as not valid.
        await asyncio.gather(*(lease.release() for lease in leases), return_exceptions=True)
    rate = changes / seconds
    return [
        f"{READERS:,} readers, ttl {EXTENDED_TTL / 1000:g} s",
        f"{valid:,} of {READERS:,} valid",
        f"{rate:.1f} changes/s, {100 * used:.0f} % of a core",
        bar(f"<= {MOST_CHANGES} changes/s", passed=rate <= MOST_CHANGES and valid == READERS),
    ]


async def writers_among_readers(urls: Sequence[str], times: int) -> list[str]:
    """Let 30 tasks read for 50 ms, again and again; measure the waits of writers."""
    async with Redlock(urls) as readers, Redlock(urls) as writer:

        async def read() -> None:
            while True:
                async with readers.lock(KEY, ttl=TTL, shared=True):
                    await asyncio.sleep(0.05)

        tasks = [asyncio.create_task(read()) for _ in range(30)]
        waits = []
        for _ in range(times):
            await asyncio.sleep(0.1)
            began = time.monotonic()
            async with writer.lock(KEY, ttl=TTL, fair=True, fencing=True):
                waits.append(time.monotonic() - began)
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
    return [
        f"{times} writers among 30 readers that read for 50 ms",
        f"{1000 * median(waits):.0f} ms (median)",
        f"{1000 * max(waits):.0f} ms (longest)",
        bar(f"longest < {MOST_WAIT} s", passed=max(waits) < MOST_WAIT),
    ]


async def readers_after_a_writer(urls: Sequence[str], times: int) -> list[str]:
    """Let 100 readers wait for a writer; measure from its release until the last of them reads."""
    took = []
    async with Redlock(urls) as writer, Redlock(urls) as readers:

        async def read() -> float:
            async with readers.lock(KEY, ttl=TTL, shared=True):
                return time.monotonic()

        for _ in range(times):
            async with writer.lock(KEY, ttl=TTL, fair=True):
                tasks = [asyncio.create_task(read()) for _ in range(100)]
                await asyncio.sleep(0.5)
                released = time.monotonic()
            took.append(max(await asyncio.gather(*tasks)) - released)
    return [
        "100 readers after a writer, until the last of them reads",
        f"{1000 * median(took):.0f} ms (median)",
        f"{1000 * max(took):.0f} ms (longest)",
        bar(f"longest < {MOST_ENTERING} s", passed=max(took) < MOST_ENTERING),
    ]


def beside_another(url: str, times: int, threads: int) -> list[list[str]]:
    """
    Measure read-write locks for threads on one server, ours and portalocker's.

    The pairs are uncontended. Then *threads* threads read for 20 ms, again and again, and a writer
    comes *times* times.
    """
    connection = redis.Redis.from_url(url, decode_responses=True)
    connection.flushall()  # also what the five masters keep of each other: this one is alone now

    def theirs(flags: portalocker.LockFlags) -> AbstractContextManager[object]:
        # Its defaults, but that it waits for as long as ours, and interrupts nobody.
        return portalocker.RedisLock(
            KEY, connection=connection, timeout=60, flags=flags, interrupt_on_lost=False
        )

    rows = []
    with sync.Redlock(url) as redlock, connection:
        docs = redlock.rw_lock(KEY, ttl=TTL)
        read: Callable[[], AbstractContextManager[object]]
        write: Callable[[], AbstractContextManager[object]]
        for name, read, write in (
            ("redlock_aio.sync", docs.read, docs.write),
            (
                "portalocker",
                lambda: theirs(portalocker.LockFlags.SHARED),
                lambda: theirs(portalocker.LockFlags.EXCLUSIVE),
            ),
        ):
            pairs = [one_after_another(enter, times) for enter in (read, write)]
            waits = writers_among_threads(read, write, times, threads)
            rows.append([
                name,
                *[f"{1e6 * took:.0f} µs, {1e6 * cpu:.0f} µs" for took, cpu in pairs],
                f"{1000 * median(waits):.0f} / {1000 * max(waits):.0f} ms",
            ])  # fmt: skip
    return rows


def one_after_another(
    enter: Callable[[], AbstractContextManager[object]], times: int
) -> tuple[float, float]:
    """Return the median time of a pair in seconds, and the processor time of one."""
    took, cpu = [], time.process_time()
    for _ in range(times):
        began = time.perf_counter()
        with enter():
            pass
        took.append(time.perf_counter() - began)
    return median(took), (time.process_time() - cpu) / times


def writers_among_threads(
    read: Callable[[], AbstractContextManager[object]],
    write: Callable[[], AbstractContextManager[object]],
    times: int,
    threads: int,
) -> list[float]:
    over = threading.Event()

    def reads() -> None:
        while not over.is_set():
            with read():
                time.sleep(0.02)

    readers = [threading.Thread(target=reads) for _ in range(threads)]
    for reader in readers:
        reader.start()
    waits = []
    try:
        for _ in range(times):
            time.sleep(0.05)
            began = time.perf_counter()
            with write():
                waits.append(time.perf_counter() - began)
    finally:
        over.set()
        for reader in readers:
            reader.join()
    return waits


async def measure(urls: Sequence[str], *, quick: bool) -> tuple[list[list[str]], list[list[str]]]:
    times, seconds = (1, 0.1) if quick else (11, 1.0)
    async with Redlock(urls) as redlock:
        kinds = {kind: pair_of(redlock, kind) for kind in ("read", "fair and fenced", "plain")}
        uncontended = await measuring.beside_fair(kinds, MOST_TO_FAIR, times, seconds)
    together = [
        await thousand_readers(urls, 1 if quick else 20),
        await writers_among_readers(urls, 2 if quick else 40),
        await readers_after_a_writer(urls, 2 if quick else 20),
    ]
    return uncontended, together


def main() -> None:
    parser = measuring.arguments(__doc__)
    masters.add_options(parser)
    options = parser.parse_args()
    with masters.running(options) as servers:
        urls = [server.url for server in servers]
        uncontended, together = measuring.run(measure(urls, quick=options.quick))
        times, threads = (2, 2) if options.quick else (20, 8)
        others = beside_another(urls[0], times, threads)
        machine = measuring.machine(urls[0], "redlock_aio", "redis", "hiredis")
    head = [
        "an uncontended pair",
        "CPU, 100 tasks",
        "to fair's",
        "latency, 1 task",
        "to fair's",
        "bar",
    ]
    text = "\n\n".join([
        "# Readers and writers",
        f"Five masters {masters.where(options)}, and the clients, on one machine: {machine}.",
        measuring.command(),
        measuring.table(head, uncontended),
        measuring.table(["readers and writers together", "", "", "bar"], together),
        "For threads, on one server:",
        measuring.table(
            [
                "", "read: time, CPU", "write: time, CPU",
                f"writer among {threads} readers: median, longest",
            ],
            others,
        ),
    ])  # fmt: skip
    print(text)
    if not options.quick:
        masters.results(options, "results-readers").write_text(f"{text}\n")


if __name__ == "__main__":
    main()
