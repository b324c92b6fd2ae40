"""
The cost of a lock: redlock_aio compared with the floor and with other libraries.

It claims that `async with redlock.lock(key, ttl=10_000)` on five masters makes
at least half as many pairs as the floor (see `floor.py`) and takes alone at most
one and a half times as long, that with ``fencing=True`` it makes at least two
fifths of them, and that with one or two hung masters of five a pair takes less
than one and a half times as long; with three, `QuorumUnavailableError`
is raised when the master timeout is over.

The floor releases by a script, as any server runs it. A second table compares like
for like, with floors that send the very commands of redlock_aio: DELIFEQ where the
masters have it (Valkey 9), and the script that gives out fencing tokens.

All contestants run in one process, in turn, again and again; every ratio is the
median of the ratios within one turn, so a busy machine slows both sides.
Each pair makes a lock object of its own, as a program would, and each task has
its own key, so no task waits for another.

    python benchmarks/compare.py [--quick] [--uvloop] [--containers | --server redis]
    python benchmarks/compare.py --go [--go-sources FOLDER] [--runs N] [--quick]

With `--go` the locks of Go are beside them, and node-redlock where Node has it; see `beside.py`.

The tables go to `results.md` and `results.svg`; with `--containers` (five Redis
containers, through testcontainers) to `results-containers.md`, and with
`--server redis` (the `redis-server` of the PATH) to `results-redis.md`.
"""

import asyncio
import contextlib
import logging
import sys
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import masters
import measuring
import redis.asyncio
from contenders import connect
from floor import FencedFloor, Floor, has_delifeq
from measuring import Pair, Rate, Server, bar, median, median_ratio, percentile
from picture import Bar, draw
from pottery import AIORedlock

from redlock_aio import Answer, QuorumUnavailableError, Redlock

FLOOR, OURS, OURS_ON_ONE = "the floor", "redlock_aio on five", "redlock_aio on one"
FENCED = "redlock_aio on five, fencing"
REDIS_PY, POTTERY = "redis-py's Lock on one", "pottery's AIORedlock on five"
OWN_FLOOR, FENCED_FLOOR = "the floor of its own commands", "the floor of its own, fencing"
EVERYBODY = (FLOOR, OWN_FLOOR, FENCED_FLOOR, OURS, FENCED, OURS_ON_ONE, REDIS_PY, POTTERY)
ON_UVLOOP = (FLOOR, OWN_FLOOR, FENCED_FLOOR, OURS, FENCED)

LIKE_FOR_LIKE = {OURS: OWN_FLOOR, FENCED: FENCED_FLOOR}
"""The floor that sends the same commands as a contestant."""

LEAST_RATE = {OURS: 0.5, FENCED: 0.4}
MOST_LATENCY, MOST_HUNG_LATENCY = 1.5, 1.5
MASTER_TIMEOUT = 50
MOST_TIMEOUT = 1.2
"""The most time until the error without a quorum, in master timeouts."""

HANG_KNOWN_AFTER = 2.0
"""Seconds after which a hung master has certainly been noticed."""


@dataclass(frozen=True, slots=True)
class Plan:
    """The seconds and the number of the measurements."""

    times: int
    rate: float
    latency: float
    hangs: int
    hung: float

    @classmethod
    def of(cls, *, quick: bool) -> "Plan":
        return cls(2, 0.1, 0.1, 1, 0.2) if quick else cls(9, 1.0, 0.7, 3, 0.8)


@dataclass(slots=True)
class Taken:
    """The measurements of one contestant, one for each repetition."""

    rates: list[Rate] = field(default_factory=list)
    p50: list[float] = field(default_factory=list)
    p99: list[float] = field(default_factory=list)

    @property
    def pairs(self) -> list[float]:
        return [rate.pairs_per_second for rate in self.rates]

    @property
    def cpu(self) -> list[float]:
        return [rate.cpu_us for rate in self.rates]


def redlock_pair(redlock: Redlock, *, fencing: bool = False) -> Pair:
    async def pair(name: str) -> None:
        async with redlock.lock(name, ttl=measuring.TTL, fencing=fencing):
            pass

    return pair


def redis_py_pair(client: redis.asyncio.Redis) -> Pair:
    async def pair(name: str) -> None:
        async with client.lock(name, timeout=measuring.TTL / 1000):
            pass

    return pair


def pottery_pair(clients: Sequence[redis.asyncio.Redis]) -> Pair:
    theirs = frozenset(clients)

    async def pair(name: str) -> None:
        async with AIORedlock(key=name, masters=theirs, auto_release_time=measuring.TTL / 1000):
            pass

    return pair


@contextlib.asynccontextmanager
async def contestants(
    urls: Sequence[str],
    who: Sequence[str],
    tasks: int = measuring.TASKS,
    master_timeout: int | None = MASTER_TIMEOUT,
) -> AsyncIterator[dict[str, Pair]]:
    """Open all contestants, and make their first pairs; at most *tasks* will make them at once."""
    async with contextlib.AsyncExitStack() as stack:
        native = has_delifeq(urls[0])
        floors = {
            FLOOR: Floor(urls),
            OWN_FLOOR: Floor(urls, native=native),
            FENCED_FLOOR: FencedFloor(urls, native=native),
        }
        for floor in floors.values():
            await floor.open(measuring.names())
            stack.push_async_callback(floor.aclose)
        five = await stack.enter_async_context(Redlock(urls, master_timeout=master_timeout))
        # With a prefix of its own: programs with different masters may not share their keys.
        one = await stack.enter_async_context(
            Redlock(urls[:1], key_prefix="one:", master_timeout=master_timeout)
        )
        clients = [redis.asyncio.Redis.from_url(url, max_connections=2 * tasks) for url in urls]
        for client in clients:
            stack.push_async_callback(client.aclose)
            await connect(client, tasks)
        everybody = {
            **{name: floor.pair for name, floor in floors.items()},
            OURS: redlock_pair(five),
            FENCED: redlock_pair(five, fencing=True),
            OURS_ON_ONE: redlock_pair(one),
            REDIS_PY: redis_py_pair(clients[0]),
            POTTERY: pottery_pair(clients),
        }
        for name in who:  # connections are made on demand; their cost is not part of a pair
            await measuring.rate(everybody[name], seconds=0.1)
        yield {name: everybody[name] for name in who}


async def costs(urls: Sequence[str], who: Sequence[str], plan: Plan) -> dict[str, Taken]:
    """Measure each contestant in turn, *plan.times* times."""
    taken = {name: Taken() for name in who}
    async with contestants(urls, who) as pairs:
        for _ in range(plan.times):
            for name, pair in pairs.items():
                taken[name].rates.append(await measuring.rate(pair, seconds=plan.rate))
            for name, pair in pairs.items():
                alone = await measuring.latencies(pair, seconds=plan.latency)
                taken[name].p50.append(percentile(alone, 0.5))
                taken[name].p99.append(percentile(alone, 0.99))
    return taken


def cost_rows(taken: dict[str, Taken], loop: str = "") -> Iterator[list[str]]:
    floor = taken[FLOOR]
    for name, figures in taken.items():
        if name in LIKE_FOR_LIKE.values():
            continue
        share = median_ratio(figures.pairs, floor.pairs)
        slower = median_ratio(figures.p50, floor.p50)
        bars = []
        if name in LEAST_RATE:
            least = LEAST_RATE[name]
            bars.append(bar(f"rate >= {least}", passed=share >= least))
        if name == OURS:
            bars.append(bar(f"latency <= {MOST_LATENCY}", passed=slower <= MOST_LATENCY))
        yield [
            f"**{name}**{loop}" if name in LEAST_RATE else name + loop,
            f"{median(figures.pairs):,.0f}",
            f"{share:.2f}",
            f"{median(figures.p50):,.0f} µs",
            f"{slower:.2f}",
            f"{median(figures.p99):,.0f} µs",
            f"{median(figures.cpu):,.1f} µs",
            f"{median_ratio(figures.cpu, floor.cpu):,.1f}",
            ", ".join(bars),
        ]


def like_rows(taken: dict[str, Taken], loop: str = "") -> Iterator[list[str]]:
    for name, other in LIKE_FOR_LIKE.items():
        figures, floor = taken[name], taken[other]
        yield [
            f"{name}, like for like{loop}",
            f"{median(floor.pairs):,.0f}",
            f"{median_ratio(figures.pairs, floor.pairs):.2f}",
            f"{median(floor.p50):,.0f} µs",
            f"{median_ratio(figures.p50, floor.p50):.2f}",
            f"{median(floor.cpu):,.1f} µs",
            f"{median_ratio(figures.cpu, floor.cpu):,.1f}",
            "",
        ]


@contextlib.contextmanager
def hanging(servers: Sequence[Server]) -> Iterator[None]:
    try:
        for server in servers:
            server.pause()
        yield
    finally:
        for server in servers:
            server.resume()


async def recovered(redlock: Redlock) -> None:
    """Wait until all masters vote again."""
    async with asyncio.timeout(30):
        while True:
            async with redlock.lock("benchmark:recovered", ttl=measuring.TTL) as lease:
                await asyncio.sleep(0.02)
                if all(vote.answer is Answer.GRANTED for vote in lease.votes):
                    return


async def time_to_error(redlock: Redlock, seconds: float) -> list[float]:
    """Attempt for *seconds*; return the µs that each attempt took until its error."""
    clock = time.perf_counter
    took = []
    ends = clock() + seconds
    while clock() < ends:
        began = clock()
        try:
            await redlock.lock("benchmark:0", ttl=measuring.TTL, wait=0).acquire()
        except QuorumUnavailableError:
            took.append((clock() - began) * 1e6)
    return sorted(took)


@dataclass(frozen=True, slots=True)
class Hang:
    """The latency of a pair while masters hang, in µs: at first, and after that was noticed."""

    healthy: list[float]
    fresh: list[float]
    known: list[float]


async def hang(redlock: Redlock, servers: Sequence[Server], number: int, plan: Plan) -> Hang:
    """Measure just before *number* of the *servers* hang, and while they hang."""
    pair = redlock_pair(redlock)
    majority_left = len(servers) - number > len(servers) // 2

    async def measure() -> list[float]:
        if majority_left:
            return await measuring.latencies(pair, seconds=plan.hung)
        return await time_to_error(redlock, plan.hung)

    healthy = await measuring.latencies(pair, seconds=plan.hung)
    with hanging(servers[:number]):
        began = time.perf_counter()
        fresh = await measure()
        await asyncio.sleep(HANG_KNOWN_AFTER - (time.perf_counter() - began))
        known = await measure()
    await recovered(redlock)
    return Hang(healthy, fresh, known)


async def hangs(servers: Sequence[Server], plan: Plan) -> dict[int, list[Hang]]:
    """Measure with one, two and three hung masters in turn; the hung masters vary."""
    found: dict[int, list[Hang]] = {1: [], 2: [], 3: []}
    turn = list(servers)
    urls = [server.url for server in servers]
    async with Redlock(urls, master_timeout=MASTER_TIMEOUT) as redlock:
        for _ in range(plan.hangs):
            for number, taken in found.items():
                taken.append(await hang(redlock, turn, number, plan))
                turn.append(turn.pop(0))
    return found


def hang_rows(found: dict[int, list[Hang]]) -> Iterator[list[str]]:
    for number, taken in found.items():
        healthy = [percentile(each.healthy, 0.5) for each in taken]
        for when in ("fresh", "known"):
            figures: list[list[float]] = [getattr(each, when) for each in taken]
            p50 = [percentile(each, 0.5) for each in figures]
            p99 = median(percentile(each, 0.99) for each in figures)
            what = f"{number} of five, {'at once' if when == 'fresh' else 'after 2 s'}"
            if number < 3:
                ratio = median_ratio(p50, healthy)
                yield [
                    what, f"{median(p50):,.0f} µs", f"{p99:,.0f} µs", f"{ratio:.2f}",
                    bar(f"< {MOST_HUNG_LATENCY} x healthy", passed=ratio < MOST_HUNG_LATENCY),
                ]  # fmt: skip
            else:
                ratio = median(p50) / MASTER_TIMEOUT / 1000
                yield [
                    f"{what}: `QuorumUnavailableError`",
                    f"{median(p50) / 1000:,.1f} ms", f"{p99 / 1000:,.1f} ms", f"{ratio:.2f}",
                    bar(f"<= {MOST_TIMEOUT} x master_timeout", passed=ratio <= MOST_TIMEOUT),
                ]  # fmt: skip


def bars(taken: dict[str, Taken]) -> list[Bar]:
    return [
        Bar(name, median(each.pairs), median(each.p50), ours=name in (OURS, FENCED, OURS_ON_ONE))
        for name, each in taken.items()
        if name not in LIKE_FOR_LIKE.values()
    ]


def spread(taken: dict[str, Taken]) -> str:
    """Return the range of the most important ratio over the repetitions."""
    ours, floor = taken[OURS].pairs, taken[FLOOR].pairs
    ratios = [one / other for one, other in zip(ours, floor, strict=True)]
    return f"{min(ratios):.2f} to {max(ratios):.2f} of the floor's ({len(ratios)} of them)"


def report(
    taken: dict[str, Taken],
    on_uvloop: dict[str, Taken],
    found: dict[int, list[Hang]],
    where: str,
    url: str,
) -> str:
    cost_head = [
        "a pair: acquire and release", f"pairs/s, {measuring.TASKS} tasks", "to the floor's",
        "median latency, 1 task", "to the floor's", "p99", "CPU per pair", "to the floor's", "bars",
    ]  # fmt: skip
    like_head = [
        "to a floor that sends the same commands", "that floor: pairs/s", "ratio",
        "that floor: median latency", "ratio", "that floor: CPU per pair", "ratio", "bars",
    ]  # fmt: skip
    hang_head = ["hung masters", "latency (median)", "p99", "ratio", "bars"]
    machine = measuring.machine(url, "redlock_aio", "redis", "hiredis", "pottery")
    hung = (
        "And when masters hang (their connections stay, nothing is answered). The ratio is to the"
        f" healthy latency just before; for three, to the master timeout of {MASTER_TIMEOUT} ms."
    )
    loops = {"": taken} | ({", uvloop": on_uvloop} if on_uvloop else {})
    rows = [row for loop, figures in loops.items() for row in cost_rows(figures, loop)]
    alike = [row for loop, figures in loops.items() for row in like_rows(figures, loop)]
    return "\n\n".join(
        [
            "# What a lock costs",
            f"Five masters {where}, and the client, on one machine: {machine}.",
            measuring.command(),
            f"From one repetition to the next redlock_aio's rate was {spread(taken)}.",
            measuring.table(cost_head, rows),
            "Like for like: these floors send the same commands as redlock_aio on these masters.",
            measuring.table(like_head, alike),
            hung,
            measuring.table(hang_head, hang_rows(found)),
        ]
    )


def main() -> None:
    parser = measuring.arguments(__doc__)
    parser.add_argument("--uvloop", action="store_true", help="rows on uvloop, too")
    masters.add_options(parser)
    parser.add_argument("--go", action="store_true", help="with the locks of Go and Node beside")
    parser.add_argument(
        "--go-sources",
        type=Path,
        metavar="FOLDER",
        help="where the Go module proxy is not to be had",
    )
    parser.add_argument("--runs", type=int, help="how often --go measures all (default: 10)")
    options = parser.parse_args()
    if options.go:
        import beside

        sys.exit(beside.main(options))
    if options.go_sources is not None or options.runs is not None:
        parser.error("--go-sources and --runs belong to --go")
    plan = Plan.of(quick=options.quick)
    # The log lines about masters that go down and come back are expected here.
    logging.getLogger("redlock_aio").setLevel(logging.ERROR)
    with masters.running(options) as servers:
        urls = [server.url for server in servers]
        taken = measuring.run(costs(urls, EVERYBODY, plan))
        on_uvloop = (
            measuring.run(costs(urls, ON_UVLOOP, plan), uvloop=True) if options.uvloop else {}
        )
        found = measuring.run(hangs(servers, plan))
        text = report(taken, on_uvloop, found, masters.where(options), urls[0])
    print(text)
    if not options.quick:
        masters.results(options, "results").write_text(f"{text}\n")
        if masters.drawn(options):
            draw(bars(taken), measuring.HERE / "results.svg")


if __name__ == "__main__":
    main()
