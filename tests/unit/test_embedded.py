"""The ports of embedded masters; the servers themselves are tried in `tests/integration`."""

import secrets
import socket

import pytest

from redlock_aio.testing import _embedded
from redlock_aio.testing._embedded import FIRST_EPHEMERAL_PORT, FIRST_PORT, free_port


def test_a_port_is_returned_once_and_never_one_that_the_system_gives_away() -> None:
    ports = [free_port() for _ in range(200)]
    assert len(set(ports)) == 200
    assert all(FIRST_PORT <= port < FIRST_EPHEMERAL_PORT for port in ports)


def test_a_port_that_is_in_use_or_was_returned_before_is_not_returned(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    free, before = free_port(), free_port()
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        used = taken.getsockname()[1]
        monkeypatch.setattr(_embedded, "_given", {before})
        drawn = iter(port - FIRST_PORT for port in (used, before, free))
        monkeypatch.setattr(secrets, "randbelow", lambda _: next(drawn))
        assert free_port() == free


def test_a_machine_without_a_loopback_interface_gets_an_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def bind(_socket: socket.socket, _address: object) -> None:
        raise OSError("cannot assign the address")

    monkeypatch.setattr(socket.socket, "bind", bind)
    with pytest.raises(OSError, match=r"no port of 127\.0\.0\.1 from 15000 to 32767 can be bound"):
        free_port()
