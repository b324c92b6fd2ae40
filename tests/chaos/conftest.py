"""
Seeds, lengths and servers of the chaos tests.

``REDLOCK_AIO_SEED`` repeats the faults of a run: their kinds, masters and times. How the
machine schedules the processes differs from run to run. ``REDLOCK_AIO_CHAOS_SECONDS`` is
the length of the run in `test_counter`; the lengths of the other runs are shares of it.
"""

import contextlib
import os
import random
import secrets
import shutil
import sys
from collections.abc import Iterator

import pytest

from redlock_aio.testing import EmbeddedMaster, server_binary

FULL = "REDLOCK_AIO_FULL" in os.environ
LONG, SHORT = "10", "5"


@pytest.fixture
def seconds() -> float:
    """Return the length of a run in seconds."""
    return float(os.environ.get("REDLOCK_AIO_CHAOS_SECONDS", LONG if FULL else SHORT))


@pytest.fixture
def chance(request: pytest.FixtureRequest, seconds: float) -> random.Random:
    """Return the seeded source of random numbers, and print the command that repeats the run."""
    seed = int(os.environ.get("REDLOCK_AIO_SEED") or secrets.randbelow(10**9))
    sys.stdout.write(
        f"REDLOCK_AIO_SEED={seed} REDLOCK_AIO_CHAOS_SECONDS={seconds:g}"
        f" pytest '{request.node.nodeid}'\n"
    )
    return random.Random(seed)


@pytest.fixture(params=["valkey", pytest.param("redis", marks=pytest.mark.full)])
def binary(request: pytest.FixtureRequest) -> str:
    """Return the path of the masters' server."""
    if request.param == "valkey":
        return server_binary()
    found = shutil.which("redis-server")
    if found is None:
        pytest.skip("no redis-server in the PATH")
    return found


@pytest.fixture
def masters(binary: str) -> Iterator[list[EmbeddedMaster]]:
    """Run five masters for one test."""
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(EmbeddedMaster(binary)) for _ in range(5)]
