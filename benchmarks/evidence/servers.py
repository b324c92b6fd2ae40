"""The servers of a run: processes that are paused, killed and restored, with clocks to set."""

import contextlib
import os
import shutil
import struct
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, cast

import redis

from redlock_aio.testing import EmbeddedMaster
from redlock_aio.testing._processes import start

from .networks import PORT, Network

SHIM = Path(__file__).with_name("clock_shim.c")
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
    command = [
        compiler,
        "-shared",
        "-fPIC",
        "-O2",
        "-Wall",
        "-Werror",
        "-o",
        str(library),
        str(SHIM),
    ]
    subprocess.run(command, check=True)  # noqa: S603 - the compiler of this machine
    return library


@dataclass(frozen=True, slots=True)
class Place:
    """
    Where and how servers run.

    Args:
        binary: The path of the server.

        folder: A folder for the files of Sentinels.

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
    def state(self) -> str: ...
    def client(self) -> redis.Redis: ...
    def start(self) -> None: ...
    def kill(self) -> None: ...
    def pause(self) -> None: ...
    def resume(self) -> None: ...
    def flush(self) -> None: ...
    def cut(self) -> None: ...
    def save(self) -> None: ...
    def set_clock(self, ahead: float) -> None: ...


class Server(EmbeddedMaster):
    """
    An embedded master that may be a node of a network, and may have a clock of its own.

    Without persistence, unless it is asked to save. `stop` removes its files.
    """

    def __init__(self, place: Place, name: str, *options: str) -> None:
        node = ("--bind", "0.0.0.0") if place.network else ()  # noqa: S104 - no other network
        super().__init__(place.binary, options=("--protected-mode", "no", *node, *options))
        self.name = name
        self._place = place
        self._clock = Path(self._folder) / "clock"
        self._clock.write_bytes(bytes(8))
        if place.network:
            self.port = PORT

    @property
    def url(self) -> str:
        """The URL for clients."""
        return self._place.network.url(self.name) if self._place.network else super().url

    @property
    def unix_url(self) -> str:
        """A URL that no partition affects."""
        return f"unix://{self._socket}"

    def client(self) -> redis.Redis:
        """Return a client that no partition affects."""
        return redis.Redis(unix_socket_path=self._socket, decode_responses=True, socket_timeout=5)

    def _command(self) -> list[str]:
        network = self._place.network
        return [*(network.within(self.name) if network else ()), *super()._command()]

    def _environment(self) -> dict[str, str] | None:
        if self._place.shim is None:
            return None
        shim = {"LD_PRELOAD": str(self._place.shim), "CLOCK_SHIM": str(self._clock)}
        return dict(os.environ) | shim

    def flush(self) -> None:
        """Delete all keys."""
        with contextlib.closing(self.client()) as client:
            client.flushall()

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


def wait_for_copy(replica: Master, within: float = 20.0) -> None:
    """
    Wait until *replica* has the keys of its master.

    Raises:
        OSError: It does not get them in time.
    """
    ends = time.monotonic() + within
    with contextlib.closing(replica.client()) as client:
        while client.info("replication").get("master_link_status") != "up":
            if time.monotonic() > ends:
                raise OSError(f"{replica.name} gets no keys of its master")
            time.sleep(0.01)


class SentinelServer:
    """
    One Sentinel of three, as a process; its configuration outlives a kill.

    Args:
        config: The file for its configuration.

        url: Where it is asked.

        master: The host and port of the master that it watches.

        lines: What else is in its configuration, such as its port.

        within: The words before its command, see `Network.within`.
    """

    def __init__(
        self,
        binary: str,
        config: Path,
        url: str,
        master: tuple[str, int],
        lines: Sequence[str],
        within: Sequence[str] = (),
    ) -> None:
        self._url = url
        self._command = [*within, binary, str(config), "--sentinel"]
        whole = [
            f"dir {config.parent}",
            f"sentinel monitor {SERVICE} {master[0]} {master[1]} 2",
            f"sentinel failover-timeout {SERVICE} 4000",
            *lines,
        ]
        config.write_text("\n".join(whole) + "\n")
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it; may be repeated after a kill."""
        quiet = subprocess.DEVNULL
        self._process = start(self._command, stdout=quiet, stderr=quiet, start_new_session=True)

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
        client = redis.Redis.from_url(self._url, decode_responses=True, socket_timeout=2)
        with contextlib.closing(client), contextlib.suppress(redis.RedisError):
            return dict(cast("dict[str, object]", client.sentinel_master(SERVICE)))
        return {}
