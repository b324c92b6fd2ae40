"""
The floor: the least work that asyncio can do for a pair on N masters.

It claims nothing for redlock_aio; it is what everything else is measured
against. One raw `asyncio.Protocol` and one `hiredis.Reader` for each master,
commands that were packed before the clock started but for the token, which is
new for each pair, one future and one counter for each round, one `write` to
each master for all that is asked in one turn of the loop. There are no
time-outs, no errors, no lease: it is not a lock that anybody should use. It
does check that a majority said yes, and waits for ever if not.

    python benchmarks/floor.py [--quick] [--uvloop] [--masters N]
"""

import asyncio
from binascii import hexlify
from collections import deque
from collections.abc import Iterable, Sequence
from hashlib import sha1
from os import urandom
from typing import cast
from urllib.parse import urlsplit

import hiredis
from measuring import TTL, arguments, latencies, median, names, percentile, rate, run

from redlock_aio.testing import embedded_masters

RELEASE = b"""if redis.call("GET", KEYS[1]) == ARGV[1] then return redis.call("DEL", KEYS[1]) end
return 0"""
TOKEN = b"a" * 40
_NOTHING = object()


class Round:
    """One question to all masters: how many must still say yes, and who waits for it."""

    __slots__ = ("future", "missing")

    def __init__(self, future: asyncio.Future[None], missing: int) -> None:
        self.future = future
        self.missing = missing


class Wire(asyncio.Protocol):
    """One connection; replies come in the order of the rounds."""

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
    """A lock without anything that makes a lock safe."""

    def __init__(self, urls: Sequence[str], release: bytes = RELEASE) -> None:
        self._urls = urls
        self._release = release
        self._majority = len(urls) // 2 + 1
        self._wires: list[Wire] = []
        self._rounds: list[Round] = []
        self._payloads: list[bytes] = []
        self._commands: dict[str, tuple[bytes, bytes, bytes]] = {}

    async def open(self, names: Iterable[str]) -> None:
        """Connect, and pack the commands for the keys with these *names*."""
        self._loop = loop = asyncio.get_running_loop()
        for url in self._urls:
            where = urlsplit(url)
            _, wire = await loop.create_connection(Wire, where.hostname or "", where.port or 6379)
            self._wires.append(wire)
        sha = sha1(self._release, usedforsecurity=False).hexdigest().encode()
        for name in names:
            key = name.encode()
            acquire, seconds = pack(b"SET", key, TOKEN, b"NX", b"PX", b"%d" % TTL).split(TOKEN)
            release, _ = pack(b"EVALSHA", sha, b"1", key, TOKEN).split(TOKEN)
            self._commands[name] = acquire, seconds, release
        # The reply to SCRIPT LOAD is no yes, so EVAL is what loads it: 1 for a key that is there.
        await self._ask(pack(b"SET", b"benchmark", TOKEN, b"NX", b"PX", b"%d" % TTL))
        await self._ask(pack(b"EVAL", self._release, b"1", b"benchmark", TOKEN))

    async def pair(self, name: str) -> None:
        # A value that nobody has used before is what makes it a lock at all.
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
        # All masters are asked the same, so that it is joined once for all of them.
        data = b"".join(self._payloads)
        for wire in self._wires:
            wire.pending.extend(self._rounds)
            wire.transport.write(data)
        self._rounds.clear()
        self._payloads.clear()

    async def aclose(self) -> None:
        for wire in self._wires:
            wire.transport.close()


def pack(*arguments: bytes) -> bytes:
    head = b"*%d\r\n" % len(arguments)
    return head + b"".join(b"$%d\r\n%b\r\n" % (len(a), a) for a in arguments)


async def measure(urls: Sequence[str], *, quick: bool) -> None:
    seconds, times = (0.3, 3) if quick else (1.0, 7)
    floor = Floor(urls)
    await floor.open(names())
    rates, alone = [], []
    for _ in range(times):
        rates.append(await rate(floor.pair, seconds=seconds))
        alone.append(await latencies(floor.pair, seconds=seconds))
    await floor.aclose()
    print(
        f"the floor on {len(urls)} masters: "
        f"{median(r.pairs_per_second for r in rates):,.0f} pairs/s with {len(names())} tasks, "
        f"{median(r.cpu_us for r in rates):.1f} us of CPU each; alone a pair takes "
        f"{median(percentile(a, 0.5) for a in alone):.0f} us (median), "
        f"{median(percentile(a, 0.99) for a in alone):.0f} us (p99)"
    )


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--uvloop", action="store_true", help="on uvloop")
    parser.add_argument("--masters", type=int, default=5)
    options = parser.parse_args()
    with embedded_masters(options.masters) as servers:
        urls = [server.url for server in servers]
        run(measure(urls, quick=options.quick), uvloop=options.uvloop)


if __name__ == "__main__":
    main()
