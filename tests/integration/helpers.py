"""What integration tests share: kinds of locks, requests to real masters, and waiting."""

import asyncio
import contextlib
import inspect
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from typing import Any, Protocol

import pytest
import redis

from redlock_aio import Lease, Redlock, Retry
from redlock_aio._engine.wait.local_queue import LocalQueue
from redlock_aio._engine.wait.wakeup import Watch
from redlock_aio._protocol.primitives import Mutex
from redlock_aio._protocol.request import pack
from redlock_aio._protocol.scripts import SCRIPTS
from redlock_aio.testing import EmbeddedMaster
from tests.unit import kit

TIMEOUT = 1_500
"""
A master timeout, in ms, within which a healthy master on a busy machine replies.

A test with one attempt needs all its healthy masters to answer within it. Tests in which hung
masters cost their timeout pass a smaller one.
"""

AT_ONCE = 8.0
"""
Seconds within which a notification arrives and is acted on, on the slowest machine.

A test that asserts it makes everything but the notification much slower: by `SELDOM`, or by
the fixture `rare_heartbeats`.
"""

SELDOM = Retry(min_delay=20_000, max_delay=20_000)
"""A waiter with this policy that acquires soon was notified; it retries only every 20 s."""

KINDS: list[dict[str, Any]] = [
    {}, {"fencing": True}, {"fair": True}, {"fair": True, "fencing": True},
]  # fmt: skip
KIND = pytest.mark.parametrize(
    "options",
    [
        pytest.param(KINDS[0], id="plain"),
        pytest.param(KINDS[1], id="fenced", marks=pytest.mark.full),
        pytest.param(KINDS[2], id="fair", marks=pytest.mark.full),
        pytest.param(KINDS[3], id="fair and fenced"),
    ],
)
"""Each kind of lock; without `--full` a plain one, and one that is all at once."""


class RealMaster(Protocol):
    """A server that a test can pause, kill or cut off: a process or a container."""

    @property
    def url(self) -> str: ...
    @property
    def state(self) -> str: ...
    def client(self) -> redis.Redis: ...
    def pause(self) -> None: ...
    def resume(self) -> None: ...
    def kill(self) -> None: ...
    def start(self) -> None: ...
    def restart(self) -> None: ...
    def cut(self) -> None: ...


class Reachable(Protocol):
    """A server, or a proxy in front of it."""

    @property
    def url(self) -> str: ...


def urls(masters: Iterable[Reachable]) -> list[str]:
    """Return the URLs of the masters."""
    return [master.url for master in masters]


def call(master: RealMaster, *command: object) -> Any:
    """Return the reply of one master to *command*, on a connection of its own."""
    with contextlib.closing(master.client()) as client:
        return client.execute_command(*command)


class ScriptClient:
    """A connection to a server, which it has emptied and which has the scripts."""

    def __init__(self, server: EmbeddedMaster) -> None:
        self.connection = redis.Connection(host="127.0.0.1", port=server.port, protocol=3)
        self.ask(pack(b"FLUSHALL"))
        for script in SCRIPTS:
            self.ask(script.load)

    def ask(self, request: bytes) -> object:
        """Return the reply to a packed request, an error too."""
        self.connection.send_packed_command([request])
        try:
            return self.connection.read_response()
        except redis.ResponseError as error:
            return error


def values(masters: Iterable[RealMaster], key: str) -> list[str | None]:
    """Return the value of *key* on each master."""
    return [call(master, "GET", key) for master in masters]


def pttls(masters: Iterable[RealMaster], key: str) -> list[int]:
    """Return the ttl of *key* on each master, in ms; -1 for no ttl, -2 for no key."""
    return [call(master, "PTTL", key) for master in masters]


def gone(masters: Iterable[RealMaster], key: str) -> bool:
    """Return whether no master has *key*."""
    return not any(values(masters, key))


def put(masters: Iterable[RealMaster], key: str, ttl: int | None = None) -> None:
    """Lock *key* on the masters for another client."""
    for master in masters:
        call(master, "SET", key, "somebody else", *(("PX", ttl) if ttl else ()))


async def until(
    condition: Callable[[], bool | Awaitable[bool]], within: float = 8.0, what: str = ""
) -> None:
    """Wait until *condition* holds; fail if it does not hold *within* these seconds."""
    ends = time.monotonic() + within
    while True:
        holds = condition()
        if inspect.isawaitable(holds):
            holds = await holds
        if holds:
            return
        assert time.monotonic() < ends, f"not in {within} s: {what or inspect.getsource(condition)}"
        await asyncio.sleep(0.005)  # a state that is looked for may be short, such as a restart


def up(redlock: Redlock) -> int:
    """Return the number of connected masters."""
    return sum(master.up for master in redlock.statistics().masters)


def detail(redlock: Redlock, number: int) -> str:
    """Return why one master has no vote; empty if it has one."""
    master = kit.session(redlock).links[number]
    return "" if master.up else f"{master._no_reply.answer.name} {master._no_reply.detail}"


def line(redlock: Redlock, name: str = "r") -> LocalQueue:
    """Return the local queue of *name* in a manager that has been used."""
    return kit.session(redlock).local_queues.of(Mutex(name.encode()))


def listens(redlock: Redlock, name: str = "r") -> bool:
    """Return whether a plain waiter for *name* is subscribed to its key on all masters."""
    watch = line(redlock, name).watcher
    return isinstance(watch, Watch) and watch.complete


def queued(masters: Iterable[RealMaster], name: str = "r") -> list[int]:
    """Return the length of the fair queue of *name* on each master."""
    key = f"redlock_aio:queue:{{{name}}}"
    return [call(master, "ZCARD", key) // 2 for master in masters]


MARKER = "redlock_aio:marker"
PERMANENT = (MARKER, "redlock_aio:masters:", "redlock_aio:fence:")
"""Keys that stay when no lock is held: markers, declared sets of masters, fencing counters."""


def leftovers(masters: Iterable[RealMaster]) -> list[str]:
    """Return the locks, queues and channels of notifications that are on any master."""
    found = []
    for master in masters:
        found += [key for key in call(master, "KEYS", "*") if not key.startswith(PERMANENT)]
        found += call(master, "PUBSUB", "CHANNELS", "*")
    return found


async def nothing_is_left(masters: Iterable[RealMaster], within: float = 20.0) -> None:
    """Wait until no lock, queue or channel is left; fail if one is left until it expires."""
    await until(lambda: not leftovers(masters), within, "nothing is left")


async def replied(redlock: Redlock) -> None:
    """Wait until the masters have replied to all requests sent so far."""
    kit.session(redlock).masters.flush()
    answers = [answer for master in kit.session(redlock).links if (answer := master.drained())]
    async with asyncio.timeout(5):
        await asyncio.gather(*answers)


async def subscribed(
    redlock: Redlock, masters: Iterable[RealMaster], *, fair: bool = False, number: int = 1
) -> None:
    """Wait until the masters will notify the waiter for ``r``, or *number* fair waiters."""
    if fair:
        await until(lambda: min(queued(masters)) >= number)
    else:
        await until(lambda: listens(redlock))
    for _ in range(2):  # the reply to the first request triggers the subscription
        await replied(redlock)


@contextlib.asynccontextmanager
async def waiting(
    redlock: Redlock, name: str = "r", **options: Any
) -> AsyncIterator[asyncio.Task[Lease]]:
    """Run a waiter that retries only if it is notified; at the end, cancel or release it."""
    options.setdefault("retry", SELDOM)
    task = asyncio.create_task(redlock.lock(name, **options).acquire())
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.wait([task])
        if not task.cancelled() and task.exception() is None:
            lease = task.result()
            if lease.valid:
                await lease.release()


class Stopwatch:
    """Measures the milliseconds since it was made."""

    def __init__(self) -> None:
        self._began = time.monotonic()

    @property
    def ms(self) -> float:
        """The milliseconds until now."""
        return (time.monotonic() - self._began) * 1000


@contextlib.asynccontextmanager
async def connected(masters: Iterable[Reachable], **options: Any) -> AsyncIterator[Redlock]:
    """Open a manager that is connected to all *masters*, with a timeout for busy machines."""
    options.setdefault("master_timeout", TIMEOUT)
    options.setdefault("restart_guard", "off")  # these servers are restarted and flushed by tests
    wanted = urls(masters)
    async with Redlock(wanted, **options) as redlock:
        await until(lambda: up(redlock) == len(wanted), what="all masters are up")
        yield redlock
