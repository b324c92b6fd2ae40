"""
The floor: the least work that asyncio can do for a pair on N masters.

It has no claims about redlock_aio; all contestants are compared with it. It has
one raw `asyncio.Protocol` and one `hiredis.Reader` for each master, commands that
are packed before the clock starts except for the token, which is new for each pair,
one future and one counter for each round, and one `write` to each master for all
requests of one turn of the loop. It has no timeouts, no errors and no lease, so it
must not be used as a lock. It waits for a majority of grants, for ever if need be.

There are three of them. `Floor` releases by a script, as any server runs it; with
*native* by DELIFEQ, as redlock_aio does where the masters have it (Valkey 9).
`FencedFloor` also acquires by the library's script for fencing tokens. Like for
like is the floor that sends the same commands as the library.

    python benchmarks/floor.py [--quick] [--uvloop] [--masters N]
"""

import asyncio
from binascii import hexlify
from collections import deque
from collections.abc import Iterable, Sequence
from hashlib import sha1
from os import urandom
from time import time
from typing import cast
from urllib.parse import urlsplit

import hiredis
import redis
from measuring import TTL, arguments, latencies, median, names, percentile, rate, run

from redlock_aio._protocol.primitives import FencingCounter
from redlock_aio._protocol.scripts import ACQUIRE
from redlock_aio.testing import embedded_masters

RELEASE = b"""if redis.call("GET", KEYS[1]) == ARGV[1] then return redis.call("DEL", KEYS[1]) end
return 0"""
TOKEN = b"a" * 40
PROPOSAL, WHENEVER = 10**15, 10**16
"""A place for the time in µs, and a limit of time that lies beyond all times."""
_NOTHING = object()


class Round:
    """One request to all masters: the number of missing grants, and the future of the round."""

    __slots__ = ("future", "missing")

    def __init__(self, future: asyncio.Future[None], missing: int) -> None:
        self.future = future
        self.missing = missing


class Wire(asyncio.Protocol):
    """One connection; replies arrive in the order of the rounds."""

    def __init__(self) -> None:
        self.pending: deque[Round] = deque()
        self._reader = hiredis.Reader(notEnoughData=_NOTHING)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        reader = self._reader
        reader.feed(data)
        gets, next_round = reader.gets, self.pending.popleft
        while (reply := gets()) is not _NOTHING:
            round = next_round()
            if reply == b"OK" or reply == 1:  # noqa: PLR1714 - a tuple of both takes longer
                round.missing -= 1
                if not round.missing:
                    round.future.set_result(None)


class Floor:
    """
    A lock without any of the parts that make a lock safe.

    Args:
        release: The script that releases.

        native: Whether DELIFEQ releases instead, see `has_delifeq`.
    """

    def __init__(
        self, urls: Sequence[str], release: bytes = RELEASE, *, native: bool = False
    ) -> None:
        self._urls = urls
        self._release = release
        self._native = native
        self._majority = len(urls) // 2 + 1
        self._wires: list[Wire] = []
        self._rounds: list[Round] = []
        self._payloads: list[bytes] = []
        self._commands: dict[str, tuple[bytes, ...]] = {}

    async def open(self, names: Iterable[str]) -> None:
        """Connect, and pack the commands for the keys with these *names*."""
        self._loop = asyncio.get_running_loop()
        for url in self._urls:
            self._wires.append(await self._connect(url))
        for name in names:
            self._commands[name] = *self._acquisition(name.encode()), self._end(name.encode())
        self._load(self._release)

    async def _connect(self, url: str) -> Wire:
        where = urlsplit(url)
        _, wire = await self._loop.create_connection(Wire, where.hostname or "", where.port or 6379)
        return wire

    def _load(self, script: bytes) -> None:
        # Not awaited: the reply is no grant, and commands that need the script are sent after it.
        self._ask(pack(b"SCRIPT", b"LOAD", script))

    def _acquisition(self, key: bytes) -> list[bytes]:
        """Return the parts of the command that acquires *key*, between which the token goes."""
        return pack(b"SET", key, TOKEN, b"NX", b"PX", b"%d" % TTL).split(TOKEN)

    def _end(self, key: bytes) -> bytes:
        """Return the command that releases *key*, up to the token."""
        sha = sha1(self._release, usedforsecurity=False).hexdigest().encode()
        how = [b"DELIFEQ"] if self._native else [b"EVALSHA", sha, b"1"]
        return pack(*how, key, TOKEN).split(TOKEN)[0]

    async def pair(self, name: str) -> None:
        # A lock needs a value that was never used before.
        token = hexlify(urandom(len(TOKEN) // 2))
        acquire, seconds, release = self._commands[name]
        await self._ask(acquire + token + seconds)
        await self._ask(release + token + b"\r\n")

    def _ask(self, payload: bytes) -> asyncio.Future[None]:
        future: asyncio.Future[None] = self._loop.create_future()
        rounds = self._rounds
        if not rounds:
            self._loop.call_soon(self._flush)
        rounds.append(Round(future, self._majority))
        self._payloads.append(payload)
        return future

    def _flush(self) -> None:
        # All masters get the same requests, which are joined once for all.
        data = b"".join(self._payloads)
        for wire in self._wires:
            wire.pending.extend(self._rounds)
            wire.transport.write(data)
        self._rounds.clear()
        self._payloads.clear()

    async def aclose(self) -> None:
        for wire in self._wires:
            wire.transport.close()


class FencedFloor(Floor):
    """
    The floor of a lock with a fencing token, by the library's own script.

    The counters of keys that nobody else uses agree; the floor relies on it and does not look.
    """

    async def open(self, names: Iterable[str]) -> None:
        await super().open(names)
        self._load(ACQUIRE.text)

    def _acquisition(self, key: bytes) -> list[bytes]:
        """Return the parts of the command, between which the token and the proposal go."""
        command = FencingCounter((key,), WHENEVER).acquire(TOKEN, TTL, PROPOSAL, WHENEVER)
        acquire, rest = command.split(TOKEN)
        return [acquire, *rest.split(b"%016d" % PROPOSAL)]

    async def pair(self, name: str) -> None:
        token = hexlify(urandom(len(TOKEN) // 2))
        acquire, ttl, limits, release = self._commands[name]
        await self._ask(acquire + token + ttl + b"%016d" % (time() * 1e6) + limits)
        await self._ask(release + token + b"\r\n")


def has_delifeq(url: str) -> bool:
    """Return whether this master has the command DELIFEQ."""
    with redis.Redis.from_url(url) as client:
        try:
            client.execute_command("DELIFEQ", "benchmark", "")
        except redis.ResponseError:
            return False
    return True


def pack(*arguments: bytes) -> bytes:
    head = b"*%d\r\n" % len(arguments)
    return head + b"".join(b"$%d\r\n%b\r\n" % (len(a), a) for a in arguments)


async def measure(floor: Floor, called: str, *, quick: bool) -> None:
    seconds, times = (0.3, 3) if quick else (1.0, 7)
    await floor.open(names())
    rates, alone = [], []
    for _ in range(times):
        rates.append(await rate(floor.pair, seconds=seconds))
        alone.append(await latencies(floor.pair, seconds=seconds))
    await floor.aclose()
    print(
        f"{called}: "
        f"{median(r.pairs_per_second for r in rates):,.0f} pairs/s with {len(names())} tasks, "
        f"{median(r.cpu_us for r in rates):.1f} µs of CPU each; alone a pair takes "
        f"{median(percentile(a, 0.5) for a in alone):.0f} µs (median), "
        f"{median(percentile(a, 0.99) for a in alone):.0f} µs (p99)"
    )


async def floor_latency(urls: Sequence[str], seconds: float) -> float:
    """Return the median latency of a pair of the floor, in µs."""
    floor = Floor(urls)
    await floor.open(names())
    took = await latencies(floor.pair, seconds=seconds)
    await floor.aclose()
    return percentile(took, 0.5)


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--uvloop", action="store_true", help="on uvloop")
    parser.add_argument("--masters", type=int, default=5)
    options = parser.parse_args()
    with embedded_masters(options.masters) as servers:
        urls = [server.url for server in servers]
        native = has_delifeq(urls[0])
        for floor, called in (
            (Floor(urls), "the floor"),
            (Floor(urls, native=native), "releasing as redlock_aio does"),
            (FencedFloor(urls, native=native), "with a fencing token"),
        ):
            run(measure(floor, called, quick=options.quick), uvloop=options.uvloop)


if __name__ == "__main__":
    main()
