"""The servers of a run: processes that are paused, killed and restored, with clocks to set."""

import contextlib
import os
import shutil
import signal
import struct
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, cast

import redis

from redlock_aio.testing._embedded import free_port
from redlock_aio.testing._processes import start

from .networks import PORT, Network

SHIM = Path(__file__).with_name("clock_shim.c")
START_TIMEOUT = 20.0
SERVICE = "mine"
"""The name of the master that the Sentinels watch."""


def why_no_clocks() -> str:
    """Return why servers have no clocks of their own here; empty if they can."""
    if sys.platform != "linux":
        return "only on Linux a library can be preloaded like this"
    if not (shutil.which("cc") or shutil.which("gcc")):
        return "there is no C compiler in the PATH"
    return ""


def compiled(folder: Path) -> Path:
    """
    Compile the library that gives a server a clock of its own.

    Raises:
        OSError: There is no C compiler.
    """
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        raise OSError("there is no C compiler in the PATH")
    library = folder / "clock_shim.so"
    command = [compiler, "-shared", "-fPIC", "-O2", "-o", str(library), str(SHIM)]
    subprocess.run(command, check=True)  # noqa: S603 - the compiler of this machine
    return library


@dataclass(frozen=True, slots=True)
class Place:
    """
    Where and how servers run.

    Args:
        binary: The path of the server.

        folder: A folder for their files.

        network: Where each server is a node; None for the loopback interface.

        shim: The library that gives each a clock of its own; None for the machine's clock.
    """

    binary: str
    folder: Path
    network: Network | None = None
    shim: Path | None = None


class Master(Protocol):
    """A server that a row can act on: a process, or a container."""

    @property
    def name(self) -> str: ...
    @property
    def url(self) -> str: ...
    @property
    def runs(self) -> bool: ...
    def client(self) -> redis.Redis: ...
    def start(self) -> None: ...
    def kill(self) -> None: ...
    def pause(self) -> None: ...
    def resume(self) -> None: ...
    def flush(self) -> None: ...
    def cut(self) -> None: ...
    def save(self) -> None: ...
    def set_clock(self, ahead: float) -> None: ...


class Server:
    """One server, without persistence unless it is asked to save."""

    def __init__(self, place: Place, name: str, *options: str) -> None:
        self.name = name
        self._place = place
        self._folder = place.folder / name
        self._folder.mkdir()
        self._socket = str(self._folder / "socket")
        self._clock = self._folder / "clock"
        self._clock.write_bytes(bytes(8))
        self._options = options
        self._process: subprocess.Popen[bytes] | None = None
        self._port = PORT if place.network else free_port()

    def __repr__(self) -> str:
        return f"<Server {self.url}>"

    @property
    def url(self) -> str:
        """The URL for clients."""
        if self._place.network is not None:
            return self._place.network.url(self.name)
        return f"redis://127.0.0.1:{self._port}"

    @property
    def unix_url(self) -> str:
        """A URL that no partition affects."""
        return f"unix://{self._socket}"

    def client(self) -> redis.Redis:
        """Return a client that no partition affects."""
        return redis.Redis(unix_socket_path=self._socket, decode_responses=True, socket_timeout=5)

    def start(self) -> None:
        """Start the server, and wait until it answers."""
        place, environment = self._place, dict(os.environ)
        if place.shim is not None:
            environment |= {"LD_PRELOAD": str(place.shim), "CLOCK_SHIM": str(self._clock)}
        Path(self._socket).unlink(missing_ok=True)
        with (self._folder / "log").open("ab") as log:
            self._process = start(
                [
                    *(place.network.within(self.name) if place.network else ()),
                    *(place.binary, "--port", str(self._port), "--protected-mode", "no"),
                    *("--bind", "0.0.0.0" if place.network else "127.0.0.1"),  # noqa: S104 - a node
                    *("--unixsocket", self._socket, "--dir", str(self._folder)),
                    *("--save", "", "--appendonly", "no", *self._options),
                ],
                stdout=log,
                stderr=log,
                env=environment,
                start_new_session=True,
            )
        ends = time.monotonic() + START_TIMEOUT
        while not self._answers():
            if self._process.poll() is not None or time.monotonic() > ends:
                raise OSError(f"{place.binary} did not start: see {self._folder}/log")
            time.sleep(0.005)

    def _answers(self) -> bool:
        with contextlib.closing(self.client()) as client, contextlib.suppress(redis.RedisError):
            return bool(client.ping())
        return False

    @property
    def runs(self) -> bool:
        """Whether it was started, and not killed since."""
        return self._process is not None and self._process.poll() is None

    def pause(self) -> None:
        """Stop the process: its connections stay, nothing is answered."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Continue a paused process."""
        self._signal(signal.SIGCONT)

    def _signal(self, number: int) -> None:
        if self._process is not None:
            self._process.send_signal(number)

    def kill(self) -> None:
        """Kill the process; keys that were not saved are lost."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def flush(self) -> None:
        """Delete all keys."""
        with contextlib.closing(self.client()) as client:
            client.flushall()

    def cut(self) -> None:
        """Close the connections of all its clients."""
        with contextlib.closing(self.client()) as client:
            client.client_kill_filter(_type="normal", skipme=True)

    def save(self) -> None:
        """Write all keys to a file, from which the server starts next time."""
        with contextlib.closing(self.client()) as client:
            client.save()

    def set_clock(self, ahead: float) -> None:
        """Set the server's clock to *ahead* seconds after the machine's."""
        # Written in place: the server must not find the file empty.
        file = os.open(self._clock, os.O_WRONLY)
        try:
            os.pwrite(file, struct.pack("=q", round(ahead * 1_000_000)), 0)
        finally:
            os.close(file)


class SentinelProcess:
    """One Sentinel on a node of a network; its configuration outlives a kill."""

    def __init__(self, place: Place, name: str, master: str) -> None:
        if place.network is None:
            raise ValueError("place needs a network")
        self.name = name
        self._network = place.network
        self._binary = place.binary
        self._config = place.folder / f"{name}.conf"
        self._socket = str(place.folder / f"{name}.socket")
        address = place.network.address(master)
        lines = [
            f"port {PORT}",
            "bind 0.0.0.0",
            "protected-mode no",
            f"dir {place.folder}",
            f"unixsocket {self._socket}",
            f"sentinel monitor {SERVICE} {address} {PORT} 2",
            f"sentinel down-after-milliseconds {SERVICE} 600",
            f"sentinel failover-timeout {SERVICE} 4000",
        ]
        self._config.write_text("\n".join(lines) + "\n")
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        """Its host and port."""
        return f"{self._network.address(self.name)}:{PORT}"

    def start(self) -> None:
        """Start it."""
        self._process = start(
            [*self._network.within(self.name), self._binary, str(self._config), "--sentinel"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def kill(self) -> None:
        """Kill it."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def knows_all(self) -> bool:
        """Return whether it knows the two other Sentinels and the replica."""
        found = self.state()
        return (found.get("num-slaves"), found.get("num-other-sentinels")) == (1, 2)

    def state(self) -> dict[str, object]:
        """Return what it knows of the master; empty if it does not answer."""
        client = redis.Redis(unix_socket_path=self._socket, decode_responses=True, socket_timeout=2)
        with contextlib.closing(client), contextlib.suppress(redis.RedisError):
            return dict(cast("dict[str, object]", client.sentinel_master(SERVICE)))
        return {}
