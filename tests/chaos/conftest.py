"""
Seeds, lengths and servers of the chaos tests.

``REDLOCK_AIO_SEED`` repeats a run as far as what is done to whom and when goes;
what the machine makes of it is its own. ``REDLOCK_AIO_CHAOS_SECONDS`` is the
length of a run of the counter, from which the others follow.
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
    Return a port that nobody else is given while its master is dead.

    The ports that the system gives away begin above: a client, or a test that
    runs at the same time, could be sitting on ours when its master comes back.
    """
    while True:
        port = 15_000 + secrets.randbelow(EPHEMERAL - 15_000)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


@pytest.fixture
def seconds() -> float:
    """How long a run is."""
    return float(os.environ.get("REDLOCK_AIO_CHAOS_SECONDS", LONG if FULL else SHORT))


@pytest.fixture
def chance(request: pytest.FixtureRequest, seconds: float) -> random.Random:
    """Everything that is left to chance in a test; the line that repeats it is printed."""
    seed = int(os.environ.get("REDLOCK_AIO_SEED") or secrets.randbelow(10**9))
    sys.stdout.write(
        f"REDLOCK_AIO_SEED={seed} REDLOCK_AIO_CHAOS_SECONDS={seconds:g}"
        f" pytest '{request.node.nodeid}'\n"
    )
    return random.Random(seed)


@pytest.fixture(params=["valkey", pytest.param("redis", marks=pytest.mark.full)])
def binary(request: pytest.FixtureRequest) -> str:
    """Which server the masters are."""
    if request.param == "valkey":
        return server_binary()
    found = shutil.which("redis-server")
    if found is None:
        pytest.skip("no redis-server in the PATH")
    return found


@pytest.fixture
def masters(binary: str) -> Iterator[list[EmbeddedMaster]]:
    """Five masters that no other test has touched."""
    with contextlib.ExitStack() as stack:
        five = []
        for _ in range(5):
            master = EmbeddedMaster(binary)
            master.port = quiet_port()
            five.append(stack.enter_context(master))
        yield five
