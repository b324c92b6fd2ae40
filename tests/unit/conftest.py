"""Five masters in memory, in virtual time: an hour passes at once, durations are exact."""

import asyncio
import gc
import random
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

import pytest

from redlock_aio import Redlock
from redlock_aio.testing import FakeMaster, VirtualTimeLoop


def pytest_asyncio_loop_factories(
    config: pytest.Config,  # noqa: ARG001 - the hook's signature
    item: pytest.Item,  # noqa: ARG001
) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    return {"virtual": VirtualTimeLoop}


@pytest.fixture
async def masters() -> list[FakeMaster]:
    return [FakeMaster(f"m{i}") for i in range(5)]


@pytest.fixture
async def redlock(masters: list[FakeMaster]) -> AsyncIterator[Redlock]:
    """A manager that votes with masters at once that have restarted; test_guard has others."""
    async with Redlock(masters, restart_guard="off") as redlock:
        yield redlock


@pytest.fixture(autouse=True)
async def nothing_is_left() -> AsyncIterator[None]:
    """No task outlives a test, and nothing is reported to the loop's exception handler."""
    random.seed(0)  # the delays between attempts are the same in each run
    reported: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context))
    before = asyncio.all_tasks()
    yield
    gc.collect()
    assert not asyncio.all_tasks() - before - {asyncio.current_task()}
    assert not reported
