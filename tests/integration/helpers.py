"""What the tests ask of real masters, and how they wait for it."""

import asyncio
import contextlib
import inspect
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from typing import Any, Protocol

import redis

from redlock_aio import Redlock

TIMEOUT = 500
"""A master time-out, in ms, that a healthy master on a busy machine keeps to."""


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


def urls(masters: Iterable[RealMaster]) -> list[str]:
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
    return sum(master.up for master in redlock._masters)


def detail(redlock: Redlock, number: int) -> str:
    """Return why one master has no vote."""
    master = redlock._masters[number]
    return "" if master.up else f"{master._silence.answer.name} {master._silence.detail}"


class Stopwatch:
    """Milliseconds since it was made."""

    def __init__(self) -> None:
        self._began = time.monotonic()

    @property
    def ms(self) -> float:
        """How many there are by now."""
        return (time.monotonic() - self._began) * 1000


@contextlib.asynccontextmanager
async def connected(masters: Iterable[RealMaster], **options: Any) -> AsyncIterator[Redlock]:
    """Have a manager that is connected to all *masters*, with patience for a busy machine."""
    options.setdefault("master_timeout", TIMEOUT)
    wanted = urls(masters)
    async with Redlock(wanted, **options) as redlock:
        await until(lambda: up(redlock) == len(wanted), what="all masters are up")
        yield redlock
