"""The ports of embedded masters; the servers themselves are tried in `tests/integration`."""

import contextlib
import secrets
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from redlock_aio.testing import EmbeddedMaster, _embedded
from redlock_aio.testing._embedded import CLAIMS, FIRST_EPHEMERAL_PORT, FIRST_PORT, free_port


def test_a_port_is_returned_once_and_never_one_that_the_system_gives_away() -> None:
    ports = [free_port() for _ in range(200)]
    assert len(set(ports)) == 200
    assert all(FIRST_PORT <= port < FIRST_EPHEMERAL_PORT for port in ports)


def draw(monkeypatch: pytest.MonkeyPatch, *ports: int) -> None:
    """Let these ports be drawn first."""
    first, randbelow = iter(ports), secrets.randbelow

    def drawn(limit: int) -> int:
        port = next(first, None)
        return randbelow(limit) if port is None else port - FIRST_PORT

    monkeypatch.setattr(secrets, "randbelow", drawn)


def test_a_port_that_is_in_use_or_was_returned_before_is_not_returned(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before = free_port()
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        used = taken.getsockname()[1]
        draw(monkeypatch, used, before)
        assert free_port() not in {used, before}


@pytest.mark.full
def test_programs_that_start_servers_at_the_same_moment_get_different_ports(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    code = "from redlock_aio.testing._embedded import free_port; print(free_port()); input()"
    command = [sys.executable, "-u", "-c", code]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        theirs = int(other.stdout.readline())
        draw(monkeypatch, theirs)
        assert free_port() != theirs
        other.communicate(b"\n")


def is_claimed(port: int) -> bool:
    """Return whether another program would find the port claimed, though nobody listens on it."""
    with socket.socket() as tcp, socket.socket(type=socket.SOCK_DGRAM) as udp:
        tcp.bind(("127.0.0.1", port))
        try:
            udp.bind(("127.0.0.1", port))
        except OSError:
            return True
    return False


def draw_many() -> None:
    for _ in range(CLAIMS + 1):
        free_port()


def test_the_port_of_a_dead_master_is_kept_as_long_as_it_may_start_again() -> None:
    """Its clients dial: they would take a server of another program for it."""
    master = EmbeddedMaster("a server that is never started")
    draw_many()
    assert is_claimed(master.port)
    master.kill()
    draw_many()
    assert is_claimed(master.port)
    master.stop()
    assert is_claimed(master.port)  # its clients may not have ended yet
    draw_many()
    assert not is_claimed(master.port)


def test_a_master_that_nobody_uses_any_more_keeps_no_port() -> None:
    master = EmbeddedMaster("a server that is never started")
    port = master.port
    del master
    draw_many()
    assert not is_claimed(port)


def test_few_claims_are_open_at_a_time() -> None:
    for _ in range(3 * CLAIMS):
        free_port()
    assert len(_embedded._claims) == CLAIMS


def test_a_machine_without_a_loopback_interface_gets_an_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def bind(_socket: socket.socket, _address: object) -> None:
        raise OSError("cannot assign the address")

    monkeypatch.setattr(socket.socket, "bind", bind)
    with pytest.raises(OSError, match=r"no port of 127\.0\.0\.1 from 15000 to 32767 can be bound"):
        free_port()


@pytest.mark.integration
def test_a_server_that_does_not_start_says_why() -> None:
    with (
        pytest.raises(RuntimeError, match=r"did not start at redis://.*: .*'no-such-option"),
        EmbeddedMaster(options=["--no-such-option", "x"]),
    ):
        pass
    with pytest.raises(RuntimeError, match=r"did not start at .*: it said nothing"):
        EmbeddedMaster("true").start()


@pytest.mark.integration
def test_connections_of_a_server_that_does_not_run_are_cut_without_a_wait() -> None:
    """A paused one would not answer, and the test would wait for ever."""
    with EmbeddedMaster() as master:
        master.pause()
        with pytest.raises(RuntimeError, match="paused> can't close connections: resume or kill"):
            master.cut()
        master.resume()
        with contextlib.closing(master.client()) as client:
            number = client.client_id()
            master.cut()
            assert client.client_id() > number + 1  # the one between has cut
        master.kill()
        master.cut()


@pytest.mark.integration
def test_a_folder_with_a_name_too_long_for_a_socket_is_an_error_that_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / ("x" * 100)
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    with pytest.raises(RuntimeError, match="path too long"), EmbeddedMaster():
        pass
    assert not list(folder.iterdir())
