"""The proxies of `benchmarks/distance.py`: each direction is late, and nothing overtakes."""

import importlib
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from redlock_aio.testing import EmbeddedMaster

TRIP = 60.0
"""The round trip in ms; a master is half of it away."""


@pytest.fixture
def distance(root: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(root / "benchmarks"))
    return importlib.import_module("distance")


@pytest.fixture
def connection(distance: Any) -> Iterator[socket.socket]:
    """Connect to a master that is far away."""
    with EmbeddedMaster() as master, distance.at_distance([master.url], [TRIP]) as (url,):
        where = urlsplit(url)
        with socket.create_connection((where.hostname, where.port), timeout=20) as connected:
            connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            yield connected


def test_each_direction_takes_half_of_the_round_trip(connection: socket.socket) -> None:
    with connection.makefile("rb") as replies:
        for _ in range(3):
            sent = time.time()
            connection.sendall(b"TIME\r\n")
            _, _, seconds, _, micros = (replies.readline().strip() for _ in range(5))
            received = time.time()
            arrived = int(seconds) + int(micros) / 1e6
            # A busy machine makes it later, and only a missing delay earlier.
            assert (arrived - sent) * 1000 > TRIP / 2 - 1
            assert (received - arrived) * 1000 > TRIP / 2 - 1


def test_bytes_arrive_in_the_order_in_which_they_were_sent(connection: socket.socket) -> None:
    for number in range(300):
        connection.sendall(b"ECHO %d\r\n" % number)
        time.sleep(0.0002)  # pieces of their own, of which many are late at a time
    echoes = []
    with connection.makefile("rb") as replies:
        for _ in range(300):
            replies.readline()
            echoes.append(int(replies.readline()))
    assert echoes == list(range(300))


def test_a_connection_ends_for_both_sides(connection: socket.socket) -> None:
    connection.sendall(b"QUIT\r\n")
    began = time.monotonic()
    assert connection.recv(100) == b"+OK\r\n"
    assert connection.recv(100) == b""
    assert (time.monotonic() - began) * 1000 > TRIP - 1
