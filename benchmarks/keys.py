"""
Many different keys: a hundred thousand used in turn, and as many held at once.

100 tasks of one process make a pair on each of up to 100,000 new keys, and hold up to
100,000 locks at once. The benchmark claims that a pair on a new key takes at most
`MOST_SLOWER` times as long as one on a hundred keys; that keys which were used in turn
leave less than `MOST_IDLE_BYTES` each in the client's memory; that keys which were held at once
leave no more than that after as many others have been used; and that plain and fair locks
leave no key on the masters, and fenced ones none without a ttl: their counters stay for a week.

The client's memory is what `tracemalloc` counts, in a run of its own, because counting is slow.

    python benchmarks/keys.py [--quick] [--containers | --server redis]

The tables go to `results-keys.md`.
"""

import asyncio
import gc
import logging
import time
import tracemalloc
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from dataclasses import dataclass

import masters
import measuring
import redis
from contenders import FAIR, FENCED, PLAIN
from measuring import bar

from redlock_aio import Lease, Lock, Redlock

KINDS = (PLAIN, FENCED, FAIR)
AT_ONCE = 100
"""The number of tasks that acquire or release."""
HELD_TTL = 60_000
FOR_EVER = -1
"""The reply to PTTL for a key without a ttl."""

MOST_SLOWER = 1.5
MOST_IDLE_BYTES = 100


@dataclass(frozen=True, slots=True)
class Plan:
    """The numbers of keys; only plain locks are measured with all of them, to save time."""

    numbers: Sequence[int]
    few: int
    """The number of pairs on a hundred keys, to compare with."""
    traced: int
    """The number of keys with which memory is counted."""

    @classmethod
    def of(cls, *, quick: bool) -> "Plan":
        return cls((1_000,), 500, 500) if quick else cls((10_000, 100_000), 10_000, 10_000)


@dataclass(frozen=True, slots=True)
class Used:
    """One number of keys: used once each in turn, and then held at once. Rates per second."""

    kind: str
    keys: int
    pairs: float
    to_few: float
    """The time of a pair, to that of a pair on a hundred keys."""
    acquired: float
    released: float
    on_master: float
    """Bytes of one master for each key that is held."""
    idle_on_master: float
    """Bytes of one master for each key after the release of all."""
    left: float
    """Keys left on one master after the release, for each key that was used."""
    for_ever: int
    """The number of those left without a ttl."""


@dataclass(frozen=True, slots=True)
class Memory:
    """The bytes of the client for each key, in the order in which they are counted."""

    kind: str
    keys: int
    in_turn: float
    """After each key was used once."""
    held: float
    """While as many others are held."""
    released: float
    """After their release."""
    later: float
    """After as many others again were used once each."""


class Client:
    """A manager whose locks are all of one kind, used by many tasks."""

    def __init__(self, redlock: Redlock, kind: str) -> None:
        self._redlock = redlock
        self._kind = kind

    async def use(self, names: Iterable[str]) -> float:
        """Make one pair for each name; return the seconds that it took."""
        left = iter(names)

        async def some() -> None:
            for name in left:
                async with self._lock(name, measuring.TTL):
                    pass

        return await by_tasks(some)

    async def acquire(self, names: Iterable[str], leases: list[Lease]) -> float:
        """Acquire one lock for each name into *leases*; return the seconds that it took."""
        left = iter(names)

        async def some() -> None:
            for name in left:
                lease = await self._lock(name, HELD_TTL).acquire()
                leases.append(lease)

        return await by_tasks(some)

    async def release(self, leases: list[Lease]) -> float:
        """Release all *leases* and forget them; return the seconds that it took."""

        async def some() -> None:
            while leases:
                await leases.pop().release()

        return await by_tasks(some)

    def _lock(self, name: str, ttl: int) -> Lock:
        fencing, fair = self._kind == FENCED, self._kind == FAIR
        return self._redlock.lock(name, ttl=ttl, fencing=fencing, fair=fair)


async def by_tasks(some: Callable[[], Coroutine[None, None, None]]) -> float:
    """Run `AT_ONCE` tasks to their end; return the seconds that they took."""
    gc.collect()
    began = time.perf_counter()
    await asyncio.gather(*(some() for _ in range(AT_ONCE)))
    return time.perf_counter() - began


def names(what: str, number: int) -> Iterator[str]:
    return (f"{what}:{index}" for index in range(number))


class Database:
    """Counts the keys of one master that came after this object, and reads the memory in use."""

    def __init__(self, url: str) -> None:
        self._client = redis.Redis.from_url(url)
        self._before = int(self._client.dbsize())
        self._for_ever = self._without_ttl()

    @property
    def memory(self) -> int:
        return int(self._client.info("memory")["used_memory"])

    @property
    def left(self) -> int:
        return int(self._client.dbsize()) - self._before

    @property
    def for_ever(self) -> int:
        """The number of keys without a ttl that came after this object."""
        return self._without_ttl() - self._for_ever

    def _without_ttl(self) -> int:
        with self._client.pipeline(transaction=False) as pipeline:
            for key in self._client.scan_iter(count=10_000):
                pipeline.pttl(key)
            return sum(ttl == FOR_EVER for ttl in pipeline.execute())


async def use(urls: Sequence[str], kind: str, plan: Plan) -> list[Used]:
    """Use each number of keys by one manager."""
    found = []
    async with Redlock(urls, key_prefix=f"scale:{kind}:") as redlock:
        client = Client(redlock, kind)
        few = [f"few:{number % AT_ONCE}" for number in range(plan.few)]
        await client.use(few)
        for number in plan.numbers if kind == PLAIN else plan.numbers[-1:]:
            one = Database(urls[0])
            before = one.memory
            to_few = await client.use(few)
            in_turn = await client.use(names(f"turn:{number}", number))
            to_few += await client.use(few)
            idle = one.memory
            leases: list[Lease] = []
            acquired = await client.acquire(names(f"held:{number}", number), leases)
            held = one.memory - idle
            released = await client.release(leases)
            found.append(
                Used(
                    kind,
                    number,
                    pairs=number / in_turn,
                    to_few=in_turn / number / (to_few / 2 / plan.few),
                    acquired=number / acquired,
                    released=number / released,
                    on_master=held / number,
                    idle_on_master=(one.memory - before) / (2 * number),
                    left=one.left / (2 * number),
                    for_ever=one.for_ever,
                )
            )
    return found


async def remember(urls: Sequence[str], kind: str, number: int) -> Memory:
    """Count the memory of the client while and after it uses many keys."""
    async with Redlock(urls, key_prefix=f"memory:{kind}:") as redlock:
        client = Client(redlock, kind)
        await client.use(names("warm", 10 * AT_ONCE))
        leases: list[Lease] = []
        tracemalloc.start()
        before = traced()
        await client.use(names("turn", number))
        in_turn = traced() - before
        await client.acquire(names("held", number), leases)
        held = traced() - before
        await client.release(leases)
        released = traced() - before
        # The library drops idle queues when their number has doubled, and some hundred more.
        await client.use(names("later", number + 512))
        later = traced() - before
        tracemalloc.stop()
    return Memory(kind, number, *(each / number for each in (in_turn, held, released, later)))


def traced() -> int:
    gc.collect()
    return tracemalloc.get_traced_memory()[0]


def key_rows(found: Sequence[Used]) -> Iterator[list[str]]:
    for each in found:
        bars = [
            bar(f"<= {MOST_SLOWER} of a pair", passed=each.to_few <= MOST_SLOWER),
            bar("none for ever", passed=each.for_ever <= 0),
        ]
        if each.kind != FENCED:
            bars.append(bar("none left", passed=each.left * each.keys < 1))
        yield [
            each.kind,
            f"{each.keys:,}",
            f"{each.pairs:,.0f}",
            f"{each.to_few:.2f}",
            f"{each.acquired:,.0f}",
            f"{each.released:,.0f}",
            f"{each.on_master:,.0f}",
            f"{round(each.idle_on_master):,}",
            f"{each.left:.2f}",
            ", ".join(bars),
        ]


def memory_rows(found: Sequence[Memory]) -> Iterator[list[str]]:
    for each in found:
        idle = max(each.in_turn, each.later)
        yield [
            each.kind,
            f"{each.keys:,}",
            f"{each.in_turn:,.0f}",
            f"{each.held:,.0f}",
            f"{each.released:,.0f}",
            f"{each.later:,.0f}",
            bar(f"idle < {MOST_IDLE_BYTES}", passed=idle < MOST_IDLE_BYTES),
        ]


async def measure(urls: Sequence[str], plan: Plan) -> tuple[list[Used], list[Memory]]:
    keys = [used for kind in KINDS for used in await use(urls, kind, plan)]
    return keys, [await remember(urls, kind, plan.traced) for kind in KINDS]


def report(keys: Sequence[Used], memory: Sequence[Memory], where: str, url: str) -> str:
    key_head = [
        "locks on different keys", "keys", "pairs/s in turn", "time, to that on 100 keys",
        "acquisitions/s, held at once", "releases/s", "a master's bytes per key, held",
        "and after the release", "keys left on a master, per key", "bars",
    ]  # fmt: skip
    memory_head = [
        "the client's bytes per key", "keys", "after one use of each", "as many others held",
        "after their release", "after one use of as many again", "bars",
    ]  # fmt: skip
    machine = measuring.machine(url, "redlock_aio", "redis", "hiredis")
    return "\n\n".join(
        [
            "# What many keys cost",
            f"Five masters {where}, and the client, on one machine: {machine}.",
            measuring.command(),
            f"{AT_ONCE} tasks of one process use each key once, and hold as many others at once.",
            measuring.table(key_head, key_rows(keys)),
            "The memory that the client uses beyond that before, divided by the number of keys.",
            measuring.table(memory_head, memory_rows(memory)),
        ]
    )


def main() -> None:
    parser = measuring.arguments(__doc__)
    masters.add_options(parser)
    options = parser.parse_args()
    logging.getLogger("redlock_aio").setLevel(logging.ERROR)
    plan = Plan.of(quick=options.quick)
    with masters.running(options) as servers:
        urls = [server.url for server in servers]
        keys, memory = measuring.run(measure(urls, plan))
        text = report(keys, memory, masters.where(options), urls[0])
    print(text)
    if not options.quick:
        masters.results(options, "results-keys").write_text(f"{text}\n")


if __name__ == "__main__":
    main()
