"""What the tests ask of real masters, and how they wait for it."""

import asyncio
import contextlib
import inspect
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from typing import Any, Protocol

import redis

from redlock_aio import Lease, Redlock, Retry
from redlock_aio._engine.wait.local_queue import LocalQueue
from redlock_aio._engine.wait.wakeup import Watch
from redlock_aio._protocol.primitives import Mutex

TIMEOUT = 1_500
"""
A master time-out, in ms, that a healthy master on a busy machine keeps to.

A test with one attempt needs all its healthy masters to answer within it. Tests in which hung
masters cost their time-out pass a smaller one.
"""

AT_ONCE = 8.0
"""
Seconds within which something happens that is not waited for, on the slowest machine.

A test that asserts it makes what would happen without the wake-up, the reply or the call much
slower than that: by `SELDOM`, or by the fixture `seldom_beats`.
"""

SELDOM = Retry(min_delay=20_000, max_delay=20_000)
"""Who waits like this and is soon done has been woken."""


class RealMaster(Protocol):
    """A server that a test can hurt: a process or a container."""

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
    """What has an address."""

    @property
    def url(self) -> str: ...


def urls(masters: Iterable[Reachable]) -> list[str]:
    """Return where the masters are."""
    return [master.url for master in masters]


def call(master: RealMaster, *command: object) -> Any:
    """Return what one master answers to *command*, as a stranger would ask it."""
    with contextlib.closing(master.client()) as client:
        return client.execute_command(*command)


def values(masters: Iterable[RealMaster], key: str) -> list[str | None]:
    """Return what each master has under *key*."""
    return [call(master, "GET", key) for master in masters]


def pttls(masters: Iterable[RealMaster], key: str) -> list[int]:
    """Return how many ms *key* has left on each master; -1 for ever, -2 if it is not there."""
    return [call(master, "PTTL", key) for master in masters]


def gone(masters: Iterable[RealMaster], key: str) -> bool:
    """Return whether no master has *key*."""
    return not any(values(masters, key))


def put(masters: Iterable[RealMaster], key: str, ttl: int | None = None) -> None:
    """Let somebody else have *key* on the masters."""
    for master in masters:
        call(master, "SET", key, "somebody else", *(("PX", ttl) if ttl else ()))


async def until(
    condition: Callable[[], bool | Awaitable[bool]], within: float = 8.0, what: str = ""
) -> None:
    """Wait until *condition* holds, and fail if it does not do so *within* these seconds."""
    ends = time.monotonic() + within
    while True:
        met = condition()
        if inspect.isawaitable(met):
            met = await met
        if met:
            return
        assert time.monotonic() < ends, f"not in {within} s: {what or inspect.getsource(condition)}"
        await asyncio.sleep(0.005)


def up(redlock: Redlock) -> int:
    """Return how many masters are connected."""
    return sum(master.up for master in redlock.statistics().masters)


def detail(redlock: Redlock, number: int) -> str:
    """Return why one master has no vote."""
    master = redlock._opener.session().links[number]
    return "" if master.up else f"{master._no_reply.answer.name} {master._no_reply.detail}"


def line(redlock: Redlock, name: str = "r") -> LocalQueue:
    """Return who wants *name* in a manager that has been used."""
    return redlock._opener.session().local_queues.of(Mutex(name.encode()))


def listens(redlock: Redlock, name: str = "r") -> bool:
    """Return whether a task waits for *name*, and all masters have said what is in its way."""
    watch = line(redlock, name).watcher
    return isinstance(watch, Watch) and watch.complete


def queued(masters: Iterable[RealMaster], name: str = "r") -> list[int]:
    """Return how many wait in the queue for *name* on each master."""
    return [call(master, "ZCARD", f"redlock_aio:queue:{{{name}}}") for master in masters]


MARKER = "redlock_aio:marker"


def own_keys(masters: Iterable[RealMaster]) -> list[str]:
    """Return what there is on any master besides locks: queues, and channels to be woken on."""
    found = []
    for master in masters:
        keys = call(master, "KEYS", "redlock_aio:*")
        found += [key for key in keys if not key.startswith((MARKER, "redlock_aio:masters:"))]
        found += call(master, "PUBSUB", "CHANNELS", "*")
    return found


async def heard(redlock: Redlock) -> None:
    """Wait until the masters have answered all that was sent so far."""
    redlock._opener.session().masters.flush()
    answers = [answer for master in redlock._opener.session().links if (answer := master.drained())]
    async with asyncio.timeout(5):
        await asyncio.gather(*answers)


@contextlib.asynccontextmanager
async def waiting(
    redlock: Redlock, name: str = "r", **options: Any
) -> AsyncIterator[asyncio.Task[Lease]]:
    """Have a task that waits, and that tries again only if it is woken; end what it gets."""
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
    """Milliseconds since it was made."""

    def __init__(self) -> None:
        self._began = time.monotonic()

    @property
    def ms(self) -> float:
        """How many there are by now."""
        return (time.monotonic() - self._began) * 1000


@contextlib.asynccontextmanager
async def connected(masters: Iterable[Reachable], **options: Any) -> AsyncIterator[Redlock]:
    """Have a manager that is connected to all *masters*, with patience for a busy machine."""
    options.setdefault("master_timeout", TIMEOUT)
    options.setdefault("restart_guard", "off")  # others restart and flush these servers
    wanted = urls(masters)
    async with Redlock(wanted, **options) as redlock:
        await until(lambda: up(redlock) == len(wanted), what="all masters are up")
        yield redlock
