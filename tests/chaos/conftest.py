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
import socket
import sys
from collections.abc import Iterator

import pytest

from redlock_aio.testing import EmbeddedMaster, server_binary

EPHEMERAL = 32_768
FULL = "REDLOCK_AIO_FULL" in os.environ
LONG, SHORT = "10", "5"


def quiet_port() -> int:
    """
    Return a port below the range from which the system chooses ports.

    While a master is dead, the system could give a port of that range to a client or to
    another test, and the master could not bind it again.
    """
    while True:
        port = 15_000 + secrets.randbelow(EPHEMERAL - 15_000)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


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
        five = []
        for _ in range(5):
            master = EmbeddedMaster(binary)
            master.port = quiet_port()
            five.append(stack.enter_context(master))
        yield five
