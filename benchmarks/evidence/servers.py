"""
The servers of a run: processes that are paused, killed and restored.

They may have clocks of their own, and small disks that get full.
"""

import contextlib
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, cast

import redis

from redlock_aio.testing import EmbeddedMaster
from redlock_aio.testing._processes import start

from .clocks import Clock
from .networks import PORT, Network

BLOCK = 4096
DISK = 8 * 2**20
"""The bytes of a small disk: far more than a run writes, and soon full."""

DEBUGGED = "--enable-debug-command", "local"
"""The options of a server that can go back to an earlier state; Redis has them from 7.0 on."""

NOTICED = 12.0
"""Seconds within which a server finds that its disk is full, or not full any more."""

SERVICE = "mine"
"""The name of the master that the Sentinels watch."""


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
    def forget(self) -> None: ...
    def go_back(self) -> None: ...
    def fill_disk(self) -> None: ...
    def free_disk(self) -> None: ...
    def set_clock(self, ahead: float) -> None: ...
    def run_at(self, rate: float) -> None: ...


def why_no_disks() -> str:
    """Return why servers have no small disks of their own here; empty if they can."""
    if sys.platform != "linux":
        return "only Linux has mount namespaces"
    unshare = shutil.which("unshare")
    if unshare is None:
        return "there is no unshare in the PATH"
    with tempfile.TemporaryDirectory(prefix="evidence-") as folder:
        done = subprocess.run(  # noqa: S603 - a mount that ends with its process
            [*on_disk(folder), "true"], capture_output=True, text=True, check=False
        )
    return done.stderr.strip() if done.returncode else ""


def on_disk(folder: str) -> tuple[str, ...]:
    """
    Return the words before a command for which *folder* is a disk of `DISK` bytes.

    Nobody else sees the disk, and it ends with the last process that does.
    """
    mount = f'mount -t tmpfs -o size={DISK} none "$0" && exec "$@"'
    return "unshare", "--mount", "sh", "-c", mount, folder


class Server(EmbeddedMaster):
    """
    An embedded master that may be a node of a network, and may have clocks of its own.

    Without persistence, unless it is asked to save. `stop` removes its files.

    Args:
        options: More options of the server.

        disk: Whether its files are on a small disk of its own, which can get full.
    """

    def __init__(self, place: Place, name: str, *options: str, disk: bool = False) -> None:
        self._disk = disk
        node = ("--bind", "0.0.0.0") if place.network else ()  # noqa: S104 - no other network
        super().__init__(place.binary, options=("--protected-mode", "no", *node, *options))
        self.name = name
        self._place = place
        self.clock = Clock(Path(self._folder) / "clock")
        if disk:
            Path(self._folder, "disk").mkdir()
            self._options += "--dir", f"{self._folder}/disk"
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
        disk = on_disk(f"{self._folder}/disk") if self._disk else ()
        return [*(network.within(self.name) if network else ()), *disk, *super()._command()]

    def _environment(self) -> dict[str, str] | None:
        shim = self._place.shim
        return None if shim is None else self.clock.environment(shim)

    def flush(self) -> None:
        """Delete all keys."""
        with contextlib.closing(self.client()) as client:
            client.flushall()

    def save(self) -> None:
        """Write all keys to a file, from which the server starts next time."""
        with contextlib.closing(self.client()) as client:
            client.save()

    def go_back(self) -> None:
        """
        Have the keys again that `save` wrote, as a restored snapshot of a virtual machine has.

        It is the same run of the server, and no client is told of it: all connections end first.
        Only for a server with `DEBUGGED`.
        """
        with contextlib.closing(self.client()) as client, client.pipeline(transaction=True) as both:
            both.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
            both.execute_command("DEBUG", "RELOAD", "NOSAVE")
            both.execute()

    def fill_disk(self) -> None:
        """
        Write a file until the disk is full, and wait until the server refuses writes for it.

        Raises:
            OSError: It goes on to accept them.
        """
        with self._filler.open("wb", buffering=0) as file, contextlib.suppress(OSError):
            while True:
                file.write(bytes(BLOCK))
        self._wait_for(refuses=True)

    def free_disk(self) -> None:
        """
        Remove that file, and wait until the server accepts writes again.

        Raises:
            OSError: It goes on to refuse them.
        """
        self._filler.unlink()
        self._wait_for(refuses=False)

    @property
    def _filler(self) -> Path:
        """The file that takes the space, where this process sees the server's disk."""
        return Path(f"/proc/{self.pid}/root{self._folder}/disk/filler")

    def _wait_for(self, *, refuses: bool) -> None:
        ends = time.monotonic() + NOTICED
        with contextlib.closing(self.client()) as client:
            while self._refuses(client) != refuses:
                if time.monotonic() > ends:
                    goes_on = "accepts" if refuses else "refuses"
                    raise OSError(f"{self.name} {goes_on} writes after {NOTICED:g} s")
                time.sleep(0.02)

    @staticmethod
    def _refuses(client: redis.Redis) -> bool:
        """Return whether it refuses writes because it can't keep them."""
        try:
            client.set("disk", "x", px=1)
        except redis.ResponseError as error:
            if not str(error).startswith("MISCONF"):
                raise
            return True
        return False

    def forget(self) -> None:
        """Remove the file of `save`: the server starts empty next time."""
        Path(self._folder, "dump.rdb").unlink(missing_ok=True)

    def set_clock(self, ahead: float) -> None:
        """Set the server's clock to *ahead* seconds after the machine's."""
        self.clock.set(ahead)

    def run_at(self, rate: float) -> None:
        """Let the server's clocks run at another rate, see `Clock.run_at`."""
        self.clock.run_at(rate)


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
