"""Five masters in memory, in virtual time: an hour passes at once, durations are exact."""

import asyncio
import gc
import random
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from typing import Any

import pytest
from pytest_asyncio import is_async_test

from redlock_aio import Redlock
from redlock_aio.testing import FakeMaster, VirtualTimeLoop

from .diary import Diary
from .kit import check_freed, check_nothing_stays


def pytest_asyncio_loop_factories(
    config: pytest.Config,  # noqa: ARG001 - the hook's signature
    item: pytest.Item,  # noqa: ARG001
) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    return {"virtual": VirtualTimeLoop}


@pytest.fixture
def masters() -> list[FakeMaster]:
    return [FakeMaster(f"m{i}") for i in range(5)]


@pytest.fixture
async def redlock(masters: list[FakeMaster]) -> AsyncIterator[Redlock]:
    """Open a manager without a restart guard: restarted masters vote at once."""
    async with Redlock(masters, restart_guard="off") as redlock:
        yield redlock


@pytest.fixture
async def other(masters: list[FakeMaster]) -> AsyncIterator[Redlock]:
    """Open the manager of another program."""
    async with Redlock(masters, restart_guard="off") as other:
        yield other


@pytest.fixture
async def there(masters: list[FakeMaster]) -> AsyncIterator[Redlock]:
    """Open the manager of a program that adopts leases of others."""
    async with Redlock(masters, restart_guard="off", name="there") as there:
        yield there


@pytest.fixture
def young(masters: list[FakeMaster]) -> list[FakeMaster]:
    """Return five masters that have just been started for the first time."""
    for master in masters:
        master.uptime = 0
    return masters


@pytest.fixture
async def nothing_stays(
    redlock: Redlock, other: Redlock, masters: list[FakeMaster]
) -> AsyncIterator[None]:
    """Check after the test that no lock of either manager is left, and no waiter."""
    yield
    await check_nothing_stays([redlock, other], masters)


@pytest.fixture
async def all_freed(
    redlock: Redlock,  # noqa: ARG001 - it is closed after the check
    there: Redlock,  # noqa: ARG001
    masters: list[FakeMaster],
) -> AsyncIterator[None]:
    """Check after the test that no lock is left on any master."""
    yield
    await check_freed(masters)


@pytest.fixture
def diary() -> Diary:
    """Return a listener that records the events of a manager."""
    return Diary()


REPORTED = pytest.StashKey[list[dict[str, Any]]]()
"""What the event loop of a test has reported."""


# Hooks instead of fixtures for each test, because a fixture takes longer than they do.


def pytest_itemcollected(item: pytest.Item) -> None:
    names = getattr(item, "fixturenames", [])
    if is_async_test(item) and "nothing_is_left" not in names:  # others need no loop
        names.insert(0, "nothing_is_left")


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    random.seed(0)  # the delays between attempts are the same in each run
    gc.freeze()  # the collection after the test skips objects from before it
    item.stash[REPORTED] = []


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item) -> Iterator[None]:
    """Check that the event loop reports no exception, also when the test's objects end."""
    yield
    # The loop is closed. What is not collected now is frozen with the next test: the tasks of
    # thousands of tests would slow down each `asyncio.all_tasks`, and fill the memory.
    getattr(item, "funcargs", {}).clear()
    gc.collect()  # a task or future whose exception was never retrieved reports it now
    assert not item.stash[REPORTED]


@pytest.fixture
async def nothing_is_left(request: pytest.FixtureRequest) -> AsyncIterator[None]:
    """Check that no task outlives a test, and note what the loop reports."""
    reported = request.node.stash[REPORTED]
    asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context))
    before = asyncio.all_tasks()
    yield
    assert not asyncio.all_tasks() - before - {asyncio.current_task()}
