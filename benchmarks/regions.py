"""
What distance costs: masters in several regions, each behind a proxy that adds its round trip.

The ideal of an acquisition, a release or an extension is one round trip to the third nearest
of five masters, which makes the majority. The ideal of a wake-up is two: after one a majority
of the masters has released the key and has pushed that, and after the other one the waiter's
attempt is granted.

The proxies (see `distance.py`) and a busy machine add a little to each round trip. So the
benchmark compares with the floor (see `floor.py`) behind the same proxies, and claims for plain,
fenced and fair locks at every distance: an acquisition and an extension take at most
`MOST_TO_FLOOR` times half of its pair, a pair at most as many times the whole, and a wake-up at
most `MOST_WAKING` times. 100 tasks make at least `LEAST_RATE` of its pairs where the third nearest
master is at `RATE_FROM` ms or more; nearer ones are limited by the processor.

The waiter has connections of its own and retries after a minute, so only a wake-up explains
an earlier acquisition.

    python benchmarks/regions.py [--quick] [--containers | --server redis]

The table goes to `results-regions.md`, its figures to `results-regions.svg`.
"""

import asyncio
import contextlib
import logging
import random
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import masters
import measuring
import redis.asyncio
from compare import pottery_pair
from distance import at_distance
from floor import Floor
from measuring import Pair, bar, median
from picture import Grouped, draw_grouped

from redlock_aio import Lock, Redlock, Retry

MOST_TO_FLOOR, MOST_WAKING = 1.25, 1.5
LEAST_RATE, RATE_FROM = 0.75, 20.0
NEVER = 60_000
"""Milliseconds between two attempts of a waiter that is to be woken earlier."""
GIVEN_UP = 10.0
"""Seconds; a waiter that was not woken counts with this time."""

FLOOR, POTTERY = "the floor", "pottery's AIORedlock"
PLAIN, FENCED, FAIR = "redlock_aio", "redlock_aio, fencing", "redlock_aio, fair"
OURS = (PLAIN, FENCED, FAIR)


@dataclass(frozen=True, slots=True)
class Regions:
    """The round trips to five masters, in ms."""

    title: str
    trips: tuple[float, ...]

    @property
    def majority(self) -> float:
        """The round trip to the third nearest master."""
        return sorted(self.trips)[len(self.trips) // 2]


EVERYWHERE = [
    Regions("5 ms to each", (5,) * 5),
    Regions("20 ms to each", (20,) * 5),
    Regions("40 ms to each", (40,) * 5),
    Regions("three at 1 ms, two at 40 ms", (1, 1, 1, 40, 40)),
    Regions("two at 1 ms, three at 40 ms", (1, 1, 40, 40, 40)),
    Regions("1, 5, 20, 40 and 80 ms", (1, 5, 20, 40, 80)),
]
FOR_QUICK = [EVERYWHERE[0], EVERYWHERE[4]]


@dataclass(frozen=True, slots=True)
class Plan:
    """How often each time is measured, and for how many seconds each rate."""

    times: int
    wakings: int
    seconds: float


@dataclass(slots=True)
class Taken:
    """The measurements of one contestant: times in ms, and pairs per second."""

    acquisitions: list[float] = field(default_factory=list)
    pairs: list[float] = field(default_factory=list)
    extensions: list[float] = field(default_factory=list)
    wakings: list[float] = field(default_factory=list)
    rate: float = 0.0


Found = dict[str, Taken]
"""The measurements of all contestants, at one distance."""


def ms() -> float:
    return time.perf_counter() * 1000


def lock_of(redlock: Redlock, kind: str, name: str) -> Lock:
    return redlock.lock(name, ttl=measuring.TTL, fencing=kind == FENCED, fair=kind == FAIR)


def pair_of(redlock: Redlock, kind: str) -> Pair:
    async def pair(name: str) -> None:
        async with lock_of(redlock, kind, name):
            pass

    return pair


async def alone(redlock: Redlock, kind: str, floor: Floor, times: int) -> tuple[Taken, list[float]]:
    """Measure acquisitions, pairs and extensions of one task, and pairs of the floor in turn."""
    taken, floors = Taken(), []
    await pair_of(redlock, kind)("alone")  # connections are made on demand
    for _ in range(times):
        began = ms()
        await floor.pair("benchmark:0")
        floors.append(ms() - began)
        began = ms()
        lease = await lock_of(redlock, kind, "alone").acquire()
        taken.acquisitions.append(ms() - began)
        await lease.release()
        taken.pairs.append(ms() - began)
    async with lock_of(redlock, kind, "extended") as lease:
        for _ in range(times):
            began = ms()
            await lease.extend()
            taken.extensions.append(ms() - began)
    return taken, floors


async def wakings(holder: Redlock, waiter: Redlock, kind: str, plan: Plan) -> list[float]:
    """Measure from a release until a waiter has the lock that has waited for a while."""
    took = []
    # By now all masters have answered the waiter's first attempt, and have its place.
    settled = 5 * holder.master_timeout / 2000

    async def wait() -> float:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(GIVEN_UP), lock_of(waiter, kind, "waking"):
                return ms()
        return ms()

    for _ in range(plan.wakings + 1):
        lease = await lock_of(holder, kind, "waking").acquire()
        waiting = asyncio.create_task(wait())
        await asyncio.sleep(settled + random.uniform(0, 0.05))
        began = ms()
        await lease.release()
        took.append(await waiting - began)
    return took[1:]  # the first one includes the waiter's connections


async def measure(urls: Sequence[str], plan: Plan) -> Found:
    """Measure all contestants on masters that are far away."""
    found: Found = {}
    async with contextlib.AsyncExitStack() as stack:
        floor = Floor(urls)
        await floor.open(measuring.names())
        stack.push_async_callback(floor.aclose)
        found[FLOOR] = Taken(rate=await rate_of(floor.pair, plan))
        redlock = await stack.enter_async_context(Redlock(urls))
        waiter = await stack.enter_async_context(
            Redlock(urls, retry=Retry(min_delay=NEVER, max_delay=NEVER))
        )
        for kind in OURS:
            found[kind], floors = await alone(redlock, kind, floor, plan.times)
            found[FLOOR].pairs += floors
            found[kind].wakings = await wakings(redlock, waiter, kind, plan)
            found[kind].rate = await rate_of(pair_of(redlock, kind), plan)

        clients = [
            await stack.enter_async_context(redis.asyncio.Redis.from_url(url)) for url in urls
        ]
        pottery = pottery_pair(clients)
        # Alone only: each of its tasks needs connections of its own, too many for the proxies.
        found[POTTERY] = Taken()
        await pottery("alone")
        for _ in range(plan.times):
            began = ms()
            await pottery("alone")
            found[POTTERY].pairs.append(ms() - began)
    return found


async def rate_of(pair: Pair, plan: Plan) -> float:
    await measuring.rate(pair, seconds=plan.seconds / 4)
    return (await measuring.rate(pair, seconds=plan.seconds)).pairs_per_second


def rows(where: Regions, found: Found) -> Iterator[list[str]]:
    trip = where.majority
    ideal_rate = measuring.TASKS / (2 * trip / 1000)
    for name, taken in found.items():
        ours = name in OURS
        times: list[str] = []
        for values, ideal in (
            (taken.acquisitions, trip),
            (taken.pairs, 2 * trip),
            (taken.extensions, trip),
            (taken.wakings, 2 * trip),
        ):
            middle = median(values) if values else 0.0
            times += (f"{middle:.1f} ms", f"{middle / ideal:.2f}") if values else ("", "")
        rate = (f"{taken.rate:,.0f}", f"{taken.rate / ideal_rate:.2f}") if taken.rate else ("", "")
        yield [
            where.title,
            f"**{name}**" if ours else name,
            *times,
            *rate,
            ", ".join(bars(taken, found[FLOOR], trip) if ours else ()),
        ]


def bars(taken: Taken, floor: Taken, trip: float) -> Iterator[str]:
    pair = median(floor.pairs)
    slowest = max(
        2 * median(taken.acquisitions) / pair,
        2 * median(taken.extensions) / pair,
        median(taken.pairs) / pair,
    )
    yield bar(f"times <= {MOST_TO_FLOOR} of the floor's", passed=slowest <= MOST_TO_FLOOR)
    woken = median(taken.wakings) / pair
    yield bar(f"wake-up <= {MOST_WAKING} of its pair", passed=woken <= MOST_WAKING)
    if trip >= RATE_FROM:
        share = taken.rate / floor.rate
        yield bar(f"rate >= {LEAST_RATE} of the floor's", passed=share >= LEAST_RATE)


def report(everywhere: dict[Regions, Found], where: str, url: str) -> str:
    head = [
        "round trips to the five masters", "lock", "acquisition", "to the ideal",
        "pair, 1 task", "to the ideal", "extension", "to the ideal", "wake-up", "to the ideal",
        "pairs/s, 100 tasks", "to the ideal", "bars",
    ]  # fmt: skip
    machine = measuring.machine(url, "redlock_aio", "redis", "hiredis", "pottery")
    about = (
        f"Five masters {where} behind proxies that delay each direction by half of the round trip,"
        f" and the client, on one machine: {machine}."
    )
    ideal = (
        "Times are medians. The ideal of an acquisition and of an extension is one round trip to"
        " the third nearest master; of a pair and of a wake-up it is two. The ideal of 100 tasks"
        " is 100 pairs in the time of one. A wake-up is the time from a release until a waiter has"
        " the lock that would not ask again for a minute."
    )
    table = [row for regions, found in everywhere.items() for row in rows(regions, found)]
    return "\n\n".join(
        [
            "# What distance costs",
            about,
            measuring.command(),
            ideal,
            measuring.table(head, table),
        ]
    )


def panels(everywhere: dict[Regions, Found]) -> list[Grouped]:
    """Return what the picture shows: the ideal and our locks, at each distance."""
    trips = [where.majority for where in everywhere]

    def panel(title: str, attribute: str, round_trips: int) -> Grouped:
        series = {"the ideal": [round_trips * trip for trip in trips]}
        for kind in OURS:
            series[kind] = [
                median(getattr(found[kind], attribute)) for found in everywhere.values()
            ]
        return Grouped(title, series)

    return [
        panel("An acquisition", "acquisitions", 1),
        panel("An extension", "extensions", 1),
        panel("From a release to a waiter", "wakings", 2),
    ]


def main() -> None:
    parser = measuring.arguments(__doc__)
    masters.add_options(parser)
    options = parser.parse_args()
    logging.getLogger("redlock_aio").setLevel(logging.ERROR)
    plan = Plan(5, 2, 0.3) if options.quick else Plan(20, 9, 1.0)
    everywhere: dict[Regions, Found] = {}
    with masters.running(options) as servers:
        urls = [server.url for server in servers]
        for where in FOR_QUICK if options.quick else EVERYWHERE:
            with at_distance(urls, where.trips) as far:
                everywhere[where] = measuring.run(measure(far, plan))
        text = report(everywhere, masters.where(options), urls[0])
    print(text)
    if not options.quick:
        masters.results(options, "results-regions").write_text(f"{text}\n")
        if masters.drawn(options):
            titles = [where.title for where in everywhere]
            draw_grouped(titles, panels(everywhere), measuring.HERE / "results-regions.svg")


if __name__ == "__main__":
    main()
