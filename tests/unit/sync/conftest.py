"""Three masters in memory, and a manager for threads. Its loop runs in a thread, in real time."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from redlock_aio.sync import Redlock
from redlock_aio.testing import FakeMaster


@pytest.fixture
def masters() -> list[FakeMaster]:
    return [FakeMaster(f"m{i}") for i in range(3)]


@pytest.fixture
def redlock(masters: list[FakeMaster]) -> Iterator[Redlock]:
    # A busy machine may not let the thread of the loop run for longer than the usual timeout.
    with Redlock(masters, restart_guard="off", master_timeout=200) as redlock:
        yield redlock


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(8) as pool:
        yield pool
