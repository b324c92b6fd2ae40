"""
Where the client's processor time goes: pairs without sockets and without servers.

Each master is an object of this process that answers in the loop's next turn, with
replies that it makes once for all masters. What is left is the client's own Python,
and a share of the masters that is the same for everybody. Ratios to the floor are
those of the client alone, and lie higher than with sockets, where both sides wait
for the same kernel.

    python benchmarks/socketless.py [--quick]
    python benchmarks/socketless.py --only plain --pairs 3000   # for a profiler

For example ``valgrind --tool=callgrind python benchmarks/socketless.py --only plain
--pairs 3000`` counts instructions, which no neighbour of the machine can change.
"""

import asyncio
import contextlib
import itertools
import re
from collections.abc import AsyncIterator
from typing import cast

import measuring
from floor import FencedFloor, Floor, Wire
from measuring import TTL, Pair, Rate, median, median_ratio

from redlock_aio import Redlock
from redlock_aio._protocol.scripts import ACQUIRE, ENQUEUE, ENQUEUE_SHARED, TAKE_PERMIT
from redlock_aio.events import Event

MASTERS = 5

_COMMAND = re.compile(rb"\*\d+\r\n\$\d+\r\n([A-Z]+)\r\n(?:\$\d+\r\n([^\r]*))?")


_QUICK = b"*2\r\n:1700000000000000\r\n:0\r\n"  # granted without a place in the queue
_GRANTS = {
    ACQUIRE.sha: b":1\r\n",  # the proposed fencing token is granted
    ENQUEUE.sha: _QUICK,
    ENQUEUE_SHARED.sha: _QUICK,
    TAKE_PERMIT.sha: b"*6\r\n:0\r\n:0\r\n:1700000000000000\r\n:0\r\n:-2\r\n_\r\n",
}


class Replies:
    """The replies to what the masters were sent last, which is most often the same for all."""

    def __init__(self) -> None:
        self._asked = self._replies = b""
        self._run_ids = itertools.count()

    def to(self, commands: bytes) -> bytes:
        if commands is not self._asked:
            self._asked = commands
            self._replies = b"".join(self._reply(*each) for each in _COMMAND.findall(commands))
        return self._replies

    def _reply(self, command: bytes, argument: bytes) -> bytes:
        if command == b"DELIFEQ":  # the library's probe for it has a key that is not there
            return b":%d\r\n" % (argument != b"redlock_aio:marker")
        if command == b"EVALSHA":
            return _GRANTS.get(argument, b"+OK\r\n")
        if command == b"TIME":
            return b"*2\r\n$10\r\n1700000000\r\n$6\r\n000000\r\n"
        if command == b"INFO":
            info = b"role:master\r\nrun_id:%d\r\n" % next(self._run_ids)
            return b"$%d\r\n%b\r\n" % (len(info), info)
        return b"+OK\r\n"


class Master(asyncio.Transport):
    """A connection to a master that grants everything, and dials itself."""

    secrets = ()

    def __init__(self, number: int, replies: Replies) -> None:
        super().__init__()
        self._number = number
        self._replies = replies
        self._loop = asyncio.get_running_loop()

    def __str__(self) -> str:
        return f"master {self._number}"

    async def dial(self) -> tuple[asyncio.Transport, object]:
        return self, self

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self._receive = cast("asyncio.Protocol", protocol).data_received

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self._loop.call_soon(self._receive, self._replies.to(cast("bytes", data)))

    def get_write_buffer_size(self) -> int:
        return 0

    def is_closing(self) -> bool:
        return False

    def close(self) -> None:
        pass


class _Connected(Floor):
    """A floor whose masters are objects."""

    def __init__(self, masters: list[Master]) -> None:
        super().__init__([str(master) for master in masters], native=True)
        self._masters = iter(masters)

    async def _connect(self, _url: str) -> Wire:
        master, wire = next(self._masters), Wire()
        master.set_protocol(wire)
        wire.connection_made(master)
        return wire


class _ConnectedFenced(_Connected, FencedFloor):
    """The same with a fencing token."""


def ignore(_event: Event) -> None:
    """Do nothing, as a listener."""


def entering(redlock: Redlock, *, fencing: bool = False, fair: bool = False) -> Pair:
    async def pair(name: str) -> None:
        async with redlock.lock(name, ttl=TTL, fencing=fencing, fair=fair):
            pass

    return pair


def once(redlock: Redlock) -> Pair:
    """Lock a name of its own in each pair, such as ``invoice:42``: what is kept by name is new."""
    number = itertools.count()

    async def pair(name: str) -> None:
        async with redlock.lock(f"{name}:{next(number)}", ttl=TTL):
            pass

    return pair


def reading(redlock: Redlock) -> Pair:
    async def pair(name: str) -> None:
        async with redlock.lock(name, ttl=TTL, shared=True):
            pass

    return pair


def permitted(redlock: Redlock) -> Pair:
    async def pair(name: str) -> None:
        async with redlock.semaphore(name, permits=5, ttl=TTL):
            pass

    return pair


def acquiring(redlock: Redlock) -> Pair:
    async def pair(name: str) -> None:
        lease = await redlock.lock(name, ttl=TTL).acquire()
        await lease.release()

    return pair


@contextlib.asynccontextmanager
async def contestants() -> AsyncIterator[dict[str, Pair]]:
    """Open all contestants."""

    def masters() -> list[Master]:
        replies = Replies()
        return [Master(number, replies) for number in range(MASTERS)]

    floor, fenced_floor = _Connected(masters()), _ConnectedFenced(masters())
    await floor.open(measuring.names())
    await fenced_floor.open(measuring.names())
    async with (
        Redlock(masters(), restart_guard="off") as redlock,
        Redlock(masters(), restart_guard="off", listener=ignore) as listened,
    ):
        yield {
            "floor": floor.pair,
            "plain": entering(redlock),
            "once": once(redlock),
            "acquire": acquiring(redlock),
            "listener": entering(listened),
            "fenced floor": fenced_floor.pair,
            "fenced": entering(redlock, fencing=True),
            "fair": entering(redlock, fair=True),
            "read": reading(redlock),
            "permit": permitted(redlock),
        }


TO = {"fenced": "fenced floor"}
"""The floor of those who do not compare with the first one."""


async def compare(*, quick: bool) -> str:
    times, seconds = (2, 0.2) if quick else (15, 0.4)
    async with contestants() as pairs:
        taken: dict[str, list[Rate]] = {name: [] for name in pairs}
        for _ in range(times + 1):  # the first one fills caches
            for name, pair in pairs.items():
                taken[name].append(await measuring.rate(pair, seconds=seconds))
    cpu = {name: [rate.cpu_us for rate in rates[1:]] for name, rates in taken.items()}
    rows = [
        [
            name,
            f"{median(cpu[name]):.1f} µs",
            f"{median_ratio(cpu[name], cpu[TO.get(name, 'floor')]):.2f}",
            f"{median_ratio(cpu[name], cpu['plain']):.2f}",
            "",
        ]
        for name in pairs
    ]
    head = ["a pair without sockets, 100 tasks", "CPU", "to its floor's", "to plain's", ""]
    return measuring.table(head, rows)


async def repeat(name: str, number: int) -> None:
    """Make *number* pairs of one contestant, and nothing else."""
    async with contestants() as pairs:
        pair = pairs[name]

        async def work(key: str) -> None:
            for _ in range(number // measuring.TASKS):
                await pair(key)

        await asyncio.gather(*map(work, measuring.names()))


def main() -> None:
    parser = measuring.arguments(__doc__)
    parser.add_argument("--only", help="make pairs of this contestant, and measure nothing")
    parser.add_argument("--pairs", type=int, default=3_000, help="how many")
    options = parser.parse_args()
    if options.only:
        measuring.run(repeat(options.only, options.pairs))
    else:
        print(measuring.run(compare(quick=options.quick)))


if __name__ == "__main__":
    main()
