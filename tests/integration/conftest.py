"""
Five real masters for each test, of each kind of server that is installed.

``REDLOCK_AIO_CONTAINERS=required`` lets tests in containers fail instead of
being skipped where no Docker engine answers.
"""

import asyncio
import contextlib
import gc
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from redlock_aio import Redlock
from redlock_aio._engine.wait import fair_queue
from redlock_aio._rules import fair_ticket

from .helpers import MARKER, RealMaster, connected, until, urls, values
from .servers import Sets, repaired


@pytest.fixture(scope="session")
def sets() -> Iterator[Sets]:
    """Return the servers of the whole session."""
    with contextlib.ExitStack() as stack:
        yield Sets(stack)


@pytest.fixture(scope="session", params=["valkey", pytest.param("redis", marks=pytest.mark.full)])
def kind(request: pytest.FixtureRequest) -> str:
    """Return the kind of the masters' server."""
    return str(request.param)


@pytest.fixture
def masters(sets: Sets, kind: str) -> Iterator[list[RealMaster]]:
    """Return five independent masters, running and empty."""
    with repaired(sets[kind]) as masters:
        yield masters


@pytest.fixture
async def redlock(masters: list[RealMaster]) -> AsyncIterator[Redlock]:
    """Open a manager that is connected to all masters."""
    async with connected(masters) as redlock:
        yield redlock


@pytest.fixture
async def other(masters: list[RealMaster]) -> AsyncIterator[Redlock]:
    """Open a second manager, as another program has it."""
    async with connected(masters) as redlock:
        yield redlock


@pytest.fixture
async def members(masters: list[RealMaster]) -> None:
    """
    Make the masters members of a set, as if they had been used before.

    Else a program with a restart guard has to reach all of them before the first one votes,
    which on a busy machine may take longer than its first acquisition waits.
    """
    async with Redlock(urls(masters)):
        await until(lambda: all(values(masters, MARKER)), within=60)


@pytest.fixture
def quick_unsubscribe(monkeypatch: pytest.MonkeyPatch) -> None:
    """Unsubscribe 0.2 s after the last waiter has left, not 1 s: many tests wait for it."""
    monkeypatch.setattr(fair_queue, "IDLE", 0.2)


@pytest.fixture
def rare_heartbeats(monkeypatch: pytest.MonkeyPatch) -> None:
    """Set heartbeats 20 s apart: a fair waiter that acquires earlier was notified."""
    monkeypatch.setattr(fair_ticket, "HEARTBEAT", 20.0)
    monkeypatch.setattr(fair_ticket, "LIVES", 60_000)
    monkeypatch.setattr(fair_ticket, "UNREACHED", 40.0)


@pytest.fixture(autouse=True)
async def nothing_is_left() -> AsyncIterator[None]:
    """Check that no task outlives a test, and that the event loop reports no exception."""
    reported: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context))
    before = asyncio.all_tasks()
    yield
    gc.collect()
    assert not asyncio.all_tasks() - before - {asyncio.current_task()}
    assert not reported
