"""
Many waiters for one lock: the share of the time in which it is used, and its fairness.

Each waiter acquires the lock, works for 1 ms under it, and acquires it again at once.
The ideal is a lock that loses two pairs of the floor (see `floor.py`) from one turn
to the next. The benchmark claims that redlock_aio on five masters makes at least half as
many turns as the ideal with all waiters in one process, and 0.4 with five processes;
with `fair=True` at least 0.35 with any number of them; and that the waiter with the
fewest turns has at most 20 % fewer than the one with the most. No two turns overlap.

It also claims that a waiter in another manager has the lock within 4 round trips
after a release (the median; one is for the push, one for the attempt), and within
50 ms after an expiry or a foreign `DEL` (the longest); `waking.py` measures that. The
round trips are those of the floor after a pause as long as the waiter's.

Every process of a setting is an operating system process that runs `contenders.py`. All
start at one instant; the longest wait and the turns are those within the time, and a
wait that has not ended counts with its length so far.

    python benchmarks/contention.py [--quick] [--seconds S] [--containers | --server redis]

The tables go to `results-contention.md`, the rates to `results-contention.svg`;
with `--containers` (five Redis containers, through testcontainers) to
`results-contention-containers.md`, with `--server redis` to `results-contention-redis.md`.
"""

import asyncio
import itertools
import json
import logging
import sys
import time
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import cast

import masters
import measuring
import redis
import redis.asyncio
import waking
from contenders import EVERYBODY, FAIR, PLAIN, REDIS_PY, WORK, Load, Turns
from floor import floor_latency
from measuring import bar, median, percentile
from picture import Rates, draw_rates
from waking import Woken

LEAST_PLAIN = {1: 0.5, 5: 0.4}
"""The least share of the ideal, by the number of processes."""
LEAST_FAIR = 0.35
MOST_APART = 0.2
"""The largest difference of the fewest to the most turns, once a waiter has `ENOUGH_TURNS`."""
ENOUGH_TURNS = 20

PYTHON = (sys.executable, str(measuring.HERE / "contenders.py"))
"""The program of a client process, unless the contestant has another one."""

HEAD_START = 0.2
"""Seconds between the message with the start time and the start."""

OURS = (PLAIN, FAIR)
ON_ONE = (REDIS_PY,)


@dataclass(frozen=True, slots=True, order=True)
class Setting:
    """The number of processes, and of waiters in all of them together."""

    processes: int
    waiters: int

    def __str__(self) -> str:
        return f"{self.processes} x {self.waiters // self.processes}"


FOR_US = [
    Setting(*each)
    for each in (
        *((1, 1), (1, 10), (1, 50), (2, 10), (5, 5)),
        *((5, 10), (5, 50), (10, 10), (10, 50), (20, 40)),
    )
]
FOR_ALL = [Setting(1, 10), Setting(5, 10), Setting(10, 50)]
FOR_QUICK = [Setting(1, 10), Setting(2, 10)]


@dataclass(frozen=True, slots=True)
class Taken:
    """The measurements of one contestant in one setting."""

    contestant: str
    setting: Setting
    start: float
    seconds: float
    turns: Sequence[Turns]
    failed: int
    commands: float
    """The commands on each master, including those of scripts."""
    client_cpu: float
    """Seconds of the processor that the processes used."""
    servers_cpu: float

    @property
    def merged(self) -> Turns:
        return sorted(turn for mine in self.turns for turn in mine)

    @property
    def rate(self) -> float:
        return sum(self.counts) / self.seconds

    @property
    def counts(self) -> list[int]:
        return [len(mine) for mine in self.turns]

    @property
    def apart(self) -> float:
        return 1 - min(self.counts) / max(1, *self.counts)

    @property
    def longest_wait(self) -> float:
        """The longest time from the end of a waiter's turn to the begin of its next one, in ms."""
        over = self.start + self.seconds
        waits = (
            began - ended
            for mine in self.turns
            for (_, ended), (began, _) in itertools.pairwise(
                [(0.0, self.start), *mine, (over, over)]
            )
        )
        return max(waits) * 1000

    @property
    def gaps(self) -> list[float]:
        """The times from the end of each turn to the begin of the next waiter's, in ms, sorted."""
        gaps = [(new[0] - old[1]) * 1000 for old, new in itertools.pairwise(self.merged)]
        return sorted(gaps) or [self.seconds * 1000]

    @property
    def overlaps(self) -> int:
        merged = self.merged
        ends = itertools.accumulate((ended for _, ended in merged), max)
        return sum(new[0] < ended for ended, new in zip(ends, merged[1:], strict=False))


class Counters:
    """Counts the commands that the masters have executed, including those of scripts."""

    def __init__(self, urls: Sequence[str]) -> None:
        self._clients = [redis.Redis.from_url(url) for url in urls]

    def read(self) -> int:
        output = [client.info("stats") for client in self._clients]
        return sum(int(each["total_commands_processed"]) for each in output)

    def close(self) -> None:
        for client in self._clients:
            client.close()


async def ready(client: Process) -> None:
    if await cast("asyncio.StreamReader", client.stdout).readline() != b"ready\n":
        raise RuntimeError("a client process did not start")


async def start_at(client: Process, instant: float) -> None:
    line = cast("asyncio.StreamWriter", client.stdin)
    line.write(f"{instant!r}\n".encode())
    await line.drain()


async def result(client: Process) -> tuple[list[Turns], int, float]:
    output, _ = await client.communicate()
    if client.returncode:
        raise RuntimeError(f"a client process ended with {client.returncode}")
    parsed = json.loads(output)
    turns = [[(began, ended) for began, ended in mine] for mine in parsed["turns"]]
    return turns, parsed["failed"], parsed["cpu"]


@asynccontextmanager
async def client_processes(
    program: Sequence[str], load: Load, number: int
) -> AsyncIterator[list[Process]]:
    clients: list[Process] = []
    arguments = (*program, load.dump())
    try:
        for _ in range(number):
            clients.append(  # noqa: PERF401 - processes that have started are ended in any case
                await asyncio.create_subprocess_exec(*arguments, stdin=PIPE, stdout=PIPE)
            )
        yield clients
    finally:
        for client in clients:
            if client.returncode is None:
                client.kill()
                await client.wait()


async def contend(
    urls: Sequence[str],
    contestant: str,
    setting: Setting,
    seconds: float,
    program: Sequence[str] = PYTHON,
) -> Taken:
    """Run the processes of one contestant, which contend for a new key."""
    each = setting.waiters // setting.processes
    used = urls[:1] if contestant in ON_ONE else urls
    load = Load(contestant, used, f"hot:{time.monotonic_ns()}", each, seconds)
    counters = Counters(load.urls)
    async with (
        asyncio.timeout(seconds + 120),
        client_processes(program, load, setting.processes) as clients,
    ):
        await asyncio.gather(*map(ready, clients))
        before = counters.read()
        servers_before = measuring.servers_cpu(used)
        start = time.monotonic() + HEAD_START
        await asyncio.gather(*(start_at(client, start) for client in clients))
        await asyncio.sleep(start + seconds - time.monotonic())
        commands = (
            counters.read() - before - len(used)
        )  # the first request for the counters is counted, too
        by_servers = measuring.servers_cpu(used) - servers_before
        output = await asyncio.gather(*map(result, clients))
    counters.close()
    turns = [
        [turn for turn in mine if turn[1] <= start + seconds]
        for their, *_ in output
        for mine in their
    ]
    failed = sum(number for _, number, _ in output)
    by_clients = sum(used for *_, used in output)
    return Taken(
        contestant, setting, start, seconds, turns, failed, commands / len(used),
        by_clients, by_servers,
    )  # fmt: skip


@dataclass(slots=True)
class Found:
    """All measurements."""

    floors: list[float] = field(default_factory=list)
    taken: list[Taken] = field(default_factory=list)
    waking: dict[str, Woken] = field(default_factory=dict)

    @property
    def floor(self) -> float:
        """The latency of one pair, in µs."""
        return median(self.floors)

    @property
    def ideal(self) -> float:
        return 1 / (WORK + 2 * self.floor / 1e6)


async def measure(urls: Sequence[str], seconds: float, *, quick: bool) -> Found:
    found = Found()
    for contestant in EVERYBODY:
        settings = FOR_QUICK if quick else FOR_US if contestant in OURS else FOR_ALL
        for setting in settings:
            found.floors.append(await floor_latency(urls, 0.2))
            found.taken.append(await contend(urls, contestant, setting, seconds))
    found.floors.append(await floor_latency(urls, 0.2))
    found.waking = await waking.measure(urls, 8 if quick else 40)
    return found


def bars(each: Taken, share: float) -> Iterator[str]:
    fair = each.contestant == FAIR
    least = LEAST_FAIR if fair else LEAST_PLAIN.get(each.setting.processes)
    if least is not None:
        yield bar(f"ratio >= {least}", passed=share >= least)
    if fair and max(each.counts) >= ENOUGH_TURNS:
        yield bar(f"within {MOST_APART:.0%}", passed=each.apart <= MOST_APART)
    yield bar("no overlaps", passed=not each.overlaps)


def rows(found: Found) -> Iterator[list[str]]:
    for each in found.taken:
        ours = each.contestant in OURS
        share = each.rate / found.ideal
        notes = [f"{each.failed} times no lock"] if each.failed else []
        turns = sum(each.counts)
        commands = f"{each.commands / turns:,.1f}" if turns else ""
        yield [
            f"**{each.contestant}**" if ours else each.contestant,
            f"{each.setting}",
            f"{each.rate:,.0f}",
            f"{share:.2f}",
            f"{min(each.counts):,}",
            f"{max(each.counts):,}",
            f"{each.longest_wait:,.0f} ms",
            f"{percentile(each.gaps, 0.5):,.2f} ms",
            f"{percentile(each.gaps, 0.99):,.2f} ms",
            f"{each.overlaps}",
            commands,
            ", ".join([*notes, *(bars(each, share) if ours else ())]),
        ]


def report(found: Found, seconds: float, where: str, url: str) -> str:
    head = [
        "one lock, 1 ms of work in each turn", "processes x waiters in each", "turns/s",
        "to the ideal", "fewest turns", "most turns", "longest wait", "hand-over (median)", "p99",
        "overlaps", "commands per turn and master", "bars",
    ]  # fmt: skip
    waking_head = [
        "from ... until a waiter has it",
        "median",
        "round trips",
        "idle ones",
        "longest",
        "bars",
    ]
    machine = measuring.machine(url, "redlock_aio", "redis", "hiredis", "pottery")
    ideal = (
        f"A pair of the floor's took {found.floor:,.0f} µs (the median), so that the ideal is"
        f" {found.ideal:,.0f} turns/s; each setting was measured for {seconds:g} s."
        " Commands inside of scripts are counted, too."
    )
    woken = (
        "And how long a waiter takes that is in another manager and would not ask again for"
        f" {waking.NEVER // 1000} s. A round trip is half of a pair of the floor's just before, one"
        " right after the other. An idle one is half of a pair after a pause such as the waiter's:"
        " a machine that has slept is slower, whatever wakes it."
    )
    return "\n\n".join(
        [
            "# What a lock is worth when many want it",
            f"Five masters {where}, and the clients, on one machine: {machine}.",
            measuring.command(),
            ideal,
            measuring.table(head, rows(found)),
            woken,
            measuring.table(waking_head, waking.rows(found.waking)),
        ]
    )


def rates(found: Found) -> list[Rates]:
    """Return the panels of the picture, one for each setting of all contestants."""
    by = {(each.setting, each.contestant): each for each in found.taken}
    return [
        Rates(
            f"{setting.processes} process{'es' * (setting.processes > 1)},"
            f" {setting.waiters} waiters",
            [by[setting, contestant].rate for contestant in EVERYBODY],
            [
                (min(by[setting, contestant].counts), max(by[setting, contestant].counts))
                for contestant in EVERYBODY
            ],
        )
        for setting in FOR_ALL
    ]


def main() -> None:
    parser = measuring.arguments(__doc__)
    parser.add_argument("--seconds", type=float, help="how long each setting is measured")
    masters.add_options(parser)
    options = parser.parse_args()
    seconds = options.seconds or (0.3 if options.quick else 3.0)
    logging.getLogger("redlock_aio").setLevel(logging.ERROR)
    with masters.running(options) as servers:
        urls = [server.url for server in servers]
        found = measuring.run(measure(urls, seconds, quick=options.quick))
        text = report(found, seconds, masters.where(options), urls[0])
    print(text)
    if not options.quick:
        masters.results(options, "results-contention").write_text(f"{text}\n")
        if masters.drawn(options):
            draw_rates(
                EVERYBODY, OURS, rates(found), found.ideal,
                measuring.HERE / "results-contention.svg",
            )  # fmt: skip


if __name__ == "__main__":
    main()
