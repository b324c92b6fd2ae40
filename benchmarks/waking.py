"""
How a waiter should be woken: by `PUBLISH`, by client tracking, or not at all.

It decides by measuring. With `PUBLISH` the release script sends a message on the
key's channel, to which waiters are subscribed. With tracking each connection
says `CLIENT TRACKING ON OPTIN NOLOOP` once; whoever waits sends `CLIENT CACHING
YES` before the script that takes its failed attempt back, which reads the key,
and is told of the next change. The third does nothing, and is measured twice:
what lies between the two is what this machine can't tell apart.

All are the floor (see `floor.py`) with another release script, or with tracking
turned on, on five masters and in RESP3; they run in turn, each time in another
order, and every ratio is the median of the ratios within one turn.

    python benchmarks/waking.py [--quick]

The tables go to `results-waking.md`.
"""

import asyncio
import random
import statistics
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from hashlib import sha1
from typing import cast
from urllib.parse import urlsplit

import hiredis
import measuring
import redis
from floor import RELEASE, TOKEN, Floor, pack
from measuring import Rate, median, median_ratio, percentile
from redis.lock import Lock

from redlock_aio.testing import embedded_masters

PUBLISHING = b"""if redis.call("GET", KEYS[1]) == ARGV[1] then
  redis.call("DEL", KEYS[1])
  redis.call("PUBLISH", "wake:" .. KEYS[1], "")
  return 1
end
return 0"""
ANOTHER_LIBRARYS = Lock.LUA_RELEASE_SCRIPT.encode()

HELLO = pack(b"HELLO", b"3")
TRACKING_ON = pack(b"CLIENT", b"TRACKING", b"ON", b"OPTIN", b"NOLOOP")
CACHING = pack(b"CLIENT", b"CACHING", b"YES")

KEY = b"benchmark:waking"
WAITERS = (1, 10, 50)
PX = 100
"""Milliseconds until the key expires whose expiry is waited for."""

SETTLED = 0.02
"""Seconds after which no more pushes of one release come."""

PATIENCE, SURELY = 0.3, 10.0
"""Seconds to wait for a push that need not come, and for one that must."""

_NOTHING = object()


@dataclass(frozen=True, slots=True)
class Plan:
    """How long to measure, in seconds, and how often."""

    times: int
    rate: float
    latency: float
    wakes: int
    releases: int
    events: int

    @classmethod
    def of(cls, *, quick: bool) -> "Plan":
        if quick:
            return cls(3, 0.2, 0.1, 50, 2, 2)
        return cls(16, 0.5, 0.3, 300, 10, 9)


@dataclass(frozen=True, slots=True)
class Way:
    """One way to wake."""

    name: str
    release: bytes = RELEASE
    tracking: bool = False

    def arm(self, key: bytes) -> tuple[bytes, ...]:
        """Return what a waiter says to be told of the next change of *key*."""
        if self.tracking:
            return CACHING, script(RELEASE, key, b"not" + TOKEN)
        return (pack(b"SUBSCRIBE", b"wake:" + key),)


PUBLISH = Way("`PUBLISH`", PUBLISHING)
TRACKING = Way("tracking", tracking=True)
NOTHING, AGAIN = Way("nothing"), Way("nothing, again")
COSTS = (NOTHING, AGAIN, PUBLISH, TRACKING)
WAKES = (PUBLISH, TRACKING)


def script(text: bytes, key: bytes, token: bytes) -> bytes:
    sha = sha1(text, usedforsecurity=False).hexdigest().encode()
    return pack(b"EVALSHA", sha, b"1", key, token)


class Contestant(Floor):
    """The floor that wakes in one way, while nobody waits."""

    def __init__(self, urls: Sequence[str], way: Way) -> None:
        super().__init__(urls, way.release)
        self._tracking = way.tracking

    async def open(self, names: Iterable[str]) -> None:
        await super().open(names)
        self._ask(HELLO)  # the reply is no yes, and not waited for
        if self._tracking:
            await self._ask(TRACKING_ON)


@dataclass(frozen=True, slots=True)
class Usage:
    """What one server has used until now: seconds of CPU, releases, us in their script."""

    cpu: float
    releases: int
    script_us: float

    @classmethod
    def of(cls, client: redis.Redis) -> "Usage":
        cpu, commands = client.info("cpu"), client.info("commandstats")
        release = commands["cmdstat_evalsha"]
        used = cpu["used_cpu_user"] + cpu["used_cpu_sys"]
        return cls(used, release["calls"], release["usec"])


@dataclass(slots=True)
class Taken:
    """What was measured of one way, a figure for each repetition."""

    rates: list[Rate] = field(default_factory=list)
    p50: list[float] = field(default_factory=list)
    server_cpu: list[float] = field(default_factory=list)
    """us of all masters for one pair."""
    script: list[float] = field(default_factory=list)
    """us of one master in one release script."""

    @property
    def pairs(self) -> list[float]:
        return [rate.pairs_per_second for rate in self.rates]

    def used(self, before: Sequence[Usage], after: Sequence[Usage]) -> None:
        both = list(zip(before, after, strict=True))
        pairs = [new.releases - old.releases for old, new in both]
        cpu = [(new.cpu - old.cpu) * 1e6 for old, new in both]
        inside = [new.script_us - old.script_us for old, new in both]
        self.server_cpu.append(sum(c / p for c, p in zip(cpu, pairs, strict=True)))
        self.script.append(statistics.mean(i / p for i, p in zip(inside, pairs, strict=True)))


async def costs(urls: Sequence[str], plan: Plan) -> dict[Way, Taken]:
    """Measure pairs that nobody waits for, each way in turn."""
    taken = {way: Taken() for way in COSTS}
    async with AsyncExitStack() as stack:
        floors = {way: Contestant(urls, way) for way in COSTS}
        for floor in floors.values():
            await floor.open(measuring.names())
            stack.push_async_callback(floor.aclose)
            await measuring.rate(floor.pair, seconds=0.1)
        clients = [stack.enter_context(redis.Redis.from_url(url)) for url in urls]
        turn = list(COSTS)
        for _ in range(plan.times):
            for way in turn:
                before = [Usage.of(client) for client in clients]
                taken[way].rates.append(await measuring.rate(floors[way].pair, seconds=plan.rate))
                taken[way].used(before, [Usage.of(client) for client in clients])
            for way in turn:
                alone = await measuring.latencies(floors[way].pair, seconds=plan.latency)
                taken[way].p50.append(percentile(alone, 0.5))
            turn.append(turn.pop(0))
    return taken


class Ear:
    """When what was said unasked came, on any of the lines that share it, and how many bytes."""

    def __init__(self) -> None:
        self._enough: asyncio.Future[None] | None = None
        self.clear()

    def clear(self) -> None:
        self.times: list[float] = []
        self.bytes = 0

    def take(self) -> None:
        self.times.append(time.perf_counter())
        if self._enough and len(self.times) >= self._number and not self._enough.done():
            self._enough.set_result(None)

    async def hear(self, number: int, within: float) -> list[float]:
        """Return when pushes came, as soon as there are so many or when the time is over."""
        if len(self.times) < number:
            self._number = number
            self._enough = asyncio.get_running_loop().create_future()
            with suppress(TimeoutError):
                await asyncio.wait_for(self._enough, within)
            self._enough = None
        return self.times


class Line(asyncio.Protocol):
    """One connection to one master, that of a holder or of a waiter."""

    def __init__(self, ear: Ear) -> None:
        self._ear = ear
        self._pending: deque[asyncio.Future[object]] = deque()
        self._reader = hiredis.Reader(notEnoughData=_NOTHING)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        self._ear.bytes += len(data)
        self._reader.feed(data)
        while (reply := self._reader.gets()) is not _NOTHING:
            if isinstance(reply, hiredis.ReplyError):
                raise reply
            if isinstance(reply, hiredis.PushNotification) and reply[0] != b"subscribe":
                self._ear.take()
            else:
                self._pending.popleft().set_result(reply)

    def send(self, *commands: bytes) -> list[asyncio.Future[object]]:
        loop = asyncio.get_running_loop()
        replies: list[asyncio.Future[object]] = [loop.create_future() for _ in commands]
        self._pending.extend(replies)
        self.transport.write(b"".join(commands))
        return replies


async def ask(lines: Iterable[Line], *commands: bytes) -> None:
    """Send the same to all of the *lines* and wait for all replies."""
    async with asyncio.timeout(10):
        await asyncio.gather(*(reply for line in lines for reply in line.send(*commands)))


@asynccontextmanager
async def dialled(urls: Iterable[str], ear: Ear, *hello: bytes) -> AsyncIterator[list[Line]]:
    """Open a line to each of the *urls*."""
    loop = asyncio.get_running_loop()
    lines: list[Line] = []
    try:
        for url in urls:
            where = urlsplit(url)
            _, line = await loop.create_connection(
                lambda: Line(ear), where.hostname or "", where.port or 6379
            )
            lines.append(line)
        await ask(lines, HELLO, *hello)
        yield lines
    finally:
        for line in lines:
            line.transport.close()


@asynccontextmanager
async def waiters(urls: Iterable[str], way: Way) -> AsyncIterator[tuple[list[Line], Ear]]:
    """Open the lines of those who wait in this *way*, and the ear that they share."""
    ear = Ear()
    async with dialled(urls, ear, *([TRACKING_ON] if way.tracking else [])) as lines:
        yield lines, ear


@asynccontextmanager
async def holder(urls: Iterable[str]) -> AsyncIterator[list[Line]]:
    """Open the lines of somebody who holds locks; the masters know all scripts then."""
    loads = (pack(b"SCRIPT", b"LOAD", s) for s in (RELEASE, PUBLISHING, ANOTHER_LIBRARYS))
    async with dialled(urls, Ear(), *loads) as lines:
        yield lines


async def held(holders: Sequence[Line], waiting: Sequence[Line], way: Way, ttl: int) -> float:
    """Have the key held and waited for; return when that it be held was asked for."""
    began = time.perf_counter()
    await ask(holders, pack(b"SET", KEY, TOKEN, b"PX", b"%d" % ttl))
    await ask(waiting, *way.arm(KEY))
    return began


@dataclass(slots=True)
class Woken:
    """How many us after a release was sent a waiter was told by one master, and by a majority."""

    first: list[float] = field(default_factory=list)
    majority: list[float] = field(default_factory=list)


async def wakes(urls: Sequence[str], plan: Plan) -> dict[Way, Woken]:
    """Measure how long it takes from a release to its push on another connection."""
    found = {way: Woken() for way in WAKES}
    async with AsyncExitStack() as stack:
        holders = await stack.enter_async_context(holder(urls))
        ways = {way: await stack.enter_async_context(waiters(urls, way)) for way in WAKES}
        for _ in range(plan.wakes):
            for way, (waiting, ear) in ways.items():
                await held(holders, waiting, way, measuring.TTL)
                ear.clear()
                release = script(way.release, KEY, TOKEN)
                sent = time.perf_counter()
                replies = [line.send(release)[0] for line in holders]
                times = await ear.hear(len(urls), SURELY)
                await asyncio.gather(*replies)
                found[way].first.append((times[0] - sent) * 1e6)
                found[way].majority.append((times[len(urls) // 2] - sent) * 1e6)
    return found


@dataclass(frozen=True, slots=True)
class Messages:
    """What one release makes all masters say to all who wait."""

    pushes: float
    bytes: float
    last: float
    """us until all were told."""


async def messages(urls: Sequence[str], plan: Plan) -> dict[tuple[int, Way], Messages]:
    """Count pushes and their bytes with several clients, each with a line to each master."""
    found = {}
    async with holder(urls) as holders:
        for number in WAITERS:
            for way in WAKES:
                async with waiters([*urls] * number, way) as (waiting, ear):
                    counts, sizes, last = [], [], []
                    for _ in range(plan.releases):
                        await held(holders, waiting, way, measuring.TTL)
                        ear.clear()
                        sent = time.perf_counter()
                        await ask(holders, script(way.release, KEY, TOKEN))
                        await ear.hear(len(waiting), SURELY)
                        await asyncio.sleep(SETTLED)
                        counts.append(len(ear.times))
                        sizes.append(ear.bytes)
                        last.append((max(ear.times) - sent) * 1e6)
                    found[number, way] = Messages(
                        statistics.mean(counts), statistics.mean(sizes), median(last)
                    )
    return found


EXPIRY = f"expiry (`PX {PX}`), after it was due"
EVENTS: dict[str, Callable[[Way], bytes | None]] = {
    "release": lambda way: script(way.release, KEY, TOKEN),
    EXPIRY: lambda _: None,
    "deletion": lambda _: pack(b"DEL", KEY),
    "overwriting": lambda _: pack(b"SET", KEY, b"somebody else"),
    "`FLUSHALL`": lambda _: pack(b"FLUSHALL"),
    "release by another library (redis-py's script)": lambda _: script(
        ANOTHER_LIBRARYS, KEY, TOKEN
    ),
}
"""What may happen to a key, and what is sent for it."""


@dataclass(slots=True)
class Told:
    """Of how many events a waiter was told, and how many us later."""

    events: int = 0
    after: list[float] = field(default_factory=list)

    @property
    def always(self) -> bool:
        return len(self.after) == self.events

    def __str__(self) -> str:
        if not self.after:
            return "no"
        share = "yes" if self.always else f"{len(self.after)} of {self.events} times"
        return f"{share}: {took(median(self.after))}, at most {took(max(self.after))}"


def took(us: float) -> str:
    return f"{us:,.0f} us" if us < 10_000 else f"{us / 1000:,.0f} ms"


async def events(url: str, plan: Plan) -> dict[str, dict[Way, Told]]:
    """Let all happen to a key on one master that may, while somebody else waits for it."""
    found = {what: {way: Told() for way in WAKES} for what in EVENTS}
    async with AsyncExitStack() as stack:
        others = await stack.enter_async_context(holder([url]))
        ways = {way: await stack.enter_async_context(waiters([url], way)) for way in WAKES}
        for _ in range(plan.events):
            for what, payload in EVENTS.items():
                for way, (waiting, ear) in ways.items():
                    # Masters look for what has expired ten times a second: no fixed step with that.
                    await asyncio.sleep(random.uniform(0, 0.1))
                    ttl = PX if what == EXPIRY else measuring.TTL
                    due = await held(others, waiting, way, ttl) + PX / 1000
                    ear.clear()
                    if sent := payload(way):
                        due = time.perf_counter()
                        await ask(others, sent)
                    times = await ear.hear(1, due + PATIENCE - time.perf_counter())
                    found[what][way].events += 1
                    found[what][way].after += [(when - due) * 1e6 for when in times[:1]]
    return found


def cost_rows(taken: dict[Way, Taken]) -> Iterator[list[str]]:
    base = taken[NOTHING]
    for way, figures in taken.items():
        ratios = [a / b for a, b in zip(figures.pairs, base.pairs, strict=True)]
        low, _, high = statistics.quantiles(ratios, n=4)
        yield [
            way.name,
            f"{median(figures.pairs):,.0f}",
            f"{median(ratios):.3f}",
            f"{median(figures.p50):,.0f} us",
            f"{median_ratio(figures.p50, base.p50):.3f}",
            f"{median(figures.server_cpu):,.1f} us",
            f"{median_ratio(figures.server_cpu, base.server_cpu):.3f}",
            f"{median(figures.script):,.2f} us",
            f"{median_ratio(figures.script, base.script):.3f}",
            "" if way is NOTHING else f"{low:.3f} to {high:.3f}",
        ]


def wake_rows(found: dict[Way, Woken]) -> Iterator[list[str]]:
    for way, woken in found.items():
        figures = [sorted(woken.first), sorted(woken.majority)]
        yield [
            way.name,
            *(f"{percentile(each, p):,.0f} us" for each in figures for p in (0.5, 0.99)),
            f"{len(woken.first)}",
        ]


def message_rows(found: dict[tuple[int, Way], Messages]) -> Iterator[list[str]]:
    for (number, way), each in found.items():
        yield [
            f"{number} waiting, {way.name}",
            f"{each.pushes:,.1f}",
            f"{each.bytes:,.0f}",
            f"{each.bytes / each.pushes:,.0f}",
            took(each.last),
        ]


def listed(words: Sequence[str]) -> str:
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)


def conclusion(taken: dict[Way, Taken], told: dict[str, dict[Way, Told]]) -> str:
    """Say in one sentence what the figures say."""
    base = taken[NOTHING]

    def time_more(way: Way) -> str:
        return f"{(median_ratio(base.pairs, taken[way].pairs) - 1) * 100:+.1f} %"

    def cpu_more(way: Way) -> str:
        more = median_ratio(taken[way].server_cpu, base.server_cpu) - 1
        return f"{more * 100:+.1f} %"

    def only(one: Way, other: Way) -> str:
        what = [
            event.partition(" (")[0]
            for event, by in told.items()
            if by[one].always and not by[other].after
        ]
        return f"; only {one.name} tells of {listed(what)}" if what else ""

    return (
        f"A pair that nobody waits for costs {time_more(PUBLISH)} time and {cpu_more(PUBLISH)} of"
        f" the masters' CPU with `PUBLISH`, {time_more(TRACKING)} and {cpu_more(TRACKING)} with"
        f" tracking (the same without either, measured twice: {time_more(AGAIN)} and"
        f" {cpu_more(AGAIN)}){only(TRACKING, PUBLISH)}{only(PUBLISH, TRACKING)}."
    )


def report(
    taken: dict[Way, Taken],
    woken: dict[Way, Woken],
    said: dict[tuple[int, Way], Messages],
    told: dict[str, dict[Way, Told]],
    url: str,
) -> str:
    machine = measuring.machine(url, "redlock_aio", "redis", "hiredis")
    cost_head = [
        "a pair, nobody waits", f"pairs/s, {measuring.TASKS} tasks", "to nothing's",
        "median latency, 1 task", "to nothing's", "CPU of all masters per pair", "to nothing's",
        "of one master in the release script", "to nothing's", "rates' ratios, quartiles",
    ]  # fmt: skip
    wake_head = [
        "from a release to its push", "first master (median)", "p99", "third of five (median)",
        "p99", "releases",
    ]  # fmt: skip
    message_head = ["one release", "pushes", "their bytes", "bytes of one", "until the last came"]
    waiting = (
        "All who wait are told of a release, by each master; each waits on lines of its own."
        f" To be told, `PUBLISH` takes {len(PUBLISH.arm(KEY)[0])} bytes once for this key, tracking"
        f" {len(CACHING)} each time before a script that is sent anyway."
    )
    return "\n\n".join(
        [
            "# How a waiter should be woken",
            f"Five masters as processes, and the client, on one machine: {machine}.",
            measuring.table(cost_head, cost_rows(taken)),
            waiting,
            measuring.table(wake_head, wake_rows(woken)),
            measuring.table(message_head, message_rows(said)),
            "Who is told of what, by one master, and how much later (the median):",
            measuring.table(
                ["what happens", *(way.name for way in WAKES)],
                ([what, *(str(by[way]) for way in WAKES)] for what, by in told.items()),
            ),
            conclusion(taken, told),
        ]
    )


def main() -> None:
    options = measuring.arguments(__doc__).parse_args()
    plan = Plan.of(quick=options.quick)
    with embedded_masters(5) as servers:
        urls = [server.url for server in servers]
        text = report(
            measuring.run(costs(urls, plan)),
            measuring.run(wakes(urls, plan)),
            measuring.run(messages(urls, plan)),
            measuring.run(events(urls[0], plan)),
            urls[0],
        )
    print(text)
    if not options.quick:
        (measuring.HERE / "results-waking.md").write_text(f"{text}\n")


if __name__ == "__main__":
    main()
