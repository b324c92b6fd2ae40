"""Three real Sentinels with a master and a replica, and a network between them that can be cut."""

import asyncio
import contextlib
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterable
from pathlib import Path
from typing import Any, cast

import pytest
import redis.asyncio
from redis.asyncio import Sentinel
from redis.asyncio.sentinel import SentinelManagedConnection

from redlock_aio.testing import EmbeddedMaster

from .helpers import until
from .proxy import Proxy
from .servers import binary_of, process, quiet_port

SERVICE = "mine"
CLIENTS = {"127.0.3.1", "127.0.3.2"}
DOWN_AFTER = 600
"""After how many ms without an answer a Sentinel takes the master for dead."""


class Gate(Proxy):
    """
    The public address of one server. It knows who calls by the address that they call from.

    Attributes:
        refused: From which addresses nobody is let in.
    """

    def __init__(self, port: int) -> None:
        super().__init__(f"redis://127.0.0.1:{port}")
        self.refused: set[str] = set()

    def refuse(self, callers: Iterable[str]) -> None:
        """End the connections of *callers*, and let no new ones in."""
        self.refused.update(callers)
        for writer in list(self._writers):
            if self._caller(writer) in self.refused:
                writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._caller(writer) in self.refused:
            writer.transport.abort()
        else:
            await super()._serve(reader, writer)

    @staticmethod
    def _caller(writer: asyncio.StreamWriter) -> str:
        peer = writer.get_extra_info("peername")
        return str(peer[0]) if peer else ""


class SentinelProcess:
    """One Sentinel, which calls others from an address of its own."""

    def __init__(self, kind: str, folder: Path, number: int) -> None:
        self.caller = f"127.0.1.{number + 1}"
        self.port = quiet_port()
        self.gate = Gate(self.port)
        self._binary = binary_of(kind)
        self._config = folder / f"sentinel-{number}.conf"
        self._process: subprocess.Popen[bytes] | None = None

    def configure(self, master: int) -> None:
        """Let it watch the master at this port."""
        lines = [
            f"port {self.port}",
            "bind 127.0.0.1",
            f"bind-source-addr {self.caller}",
            f"dir {self._config.parent}",
            f"sentinel monitor {SERVICE} 127.0.0.1 {master} 2",
            f"sentinel down-after-milliseconds {SERVICE} {DOWN_AFTER}",
            f"sentinel failover-timeout {SERVICE} 4000",
            "sentinel announce-ip 127.0.0.1",
            f"sentinel announce-port {self.gate.port}",
        ]
        self._config.write_text("\n".join(lines) + "\n")

    def start(self) -> None:
        """Start it, also again; its configuration is in a file."""
        command = [self._binary, str(self._config), "--sentinel"]
        self._process = subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
        )

    def kill(self) -> None:
        """Kill it."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def ask(self) -> dict[str, Any]:
        """Return what it knows of the master; nothing if it does not answer."""
        client = redis.Redis(port=self.port, decode_responses=True, socket_timeout=1)
        with contextlib.closing(client), contextlib.suppress(redis.RedisError):
            return cast(dict[str, Any], client.sentinel_master(SERVICE))
        return {}


class Site:
    """
    A master, its replica and three Sentinels, each behind its `Gate`.

    Attributes:
        old: The first master.

        new: Its replica.
    """

    def __init__(self, kind: str, folder: Path) -> None:
        self.sentinels = [SentinelProcess(kind, folder, number) for number in range(3)]
        self.callers = {"old": "127.0.2.1", "new": "127.0.2.2"}
        self.servers: dict[str, EmbeddedMaster] = {}
        self.gates: dict[str, Gate] = {}
        self._kind = kind

    async def start(self, stack: contextlib.AsyncExitStack) -> None:
        """Start all of it, and wait until all know each other."""
        for name, caller in self.callers.items():
            port = quiet_port()
            gate = self.gates[name] = await stack.enter_async_context(Gate(port))
            options = ["--bind-source-addr", caller, "--replica-announce-ip", "127.0.0.1"]
            options += [
                "--replica-announce-port",
                str(gate.port),
                "--repl-diskless-sync-delay",
                "0",
            ]
            if name == "new":
                options += ["--replicaof", f"127.0.0.1 {self.gates['old'].port}"]
            server = process(self._kind, *options)
            server.port = port
            self.servers[name] = stack.enter_context(server)
        for sentinel in self.sentinels:
            await stack.enter_async_context(sentinel.gate)
            sentinel.configure(self.gates["old"].port)
            stack.callback(sentinel.kill)
            sentinel.start()
        await until(self._is_complete, within=30)

    async def _is_complete(self) -> bool:
        said = [await asyncio.to_thread(sentinel.ask) for sentinel in self.sentinels]
        return all(
            (each.get("num-slaves"), each.get("num-other-sentinels")) == (1, 2) for each in said
        )

    def named_by(self, number: int) -> str:
        """Return which server a Sentinel names."""
        port = self.sentinels[number].ask().get("port")
        return next((name for name, gate in self.gates.items() if gate.port == port), "")

    async def switched(self, *numbers: int) -> None:
        """Wait until these Sentinels name the new master."""

        async def all_do() -> bool:
            named = [await asyncio.to_thread(self.named_by, number) for number in numbers]
            return named == ["new"] * len(numbers)

        await until(all_do, within=30)

    def cut_off_old(
        self,
        *,
        with_sentinels: Iterable[int] = (),
        with_clients: Iterable["View"] = (),
        between: Iterable["View"] = (),
    ) -> None:
        """
        Part the old master, and these Sentinels and clients, from all others.

        How clients reach Sentinels stays as it is; see `View.proxies`.

        Args:
            between: Clients that reach both sides.
        """
        inside = {self.callers["old"], *(client.caller for client in with_clients)}
        inside |= {self.sentinels[i].caller for i in with_sentinels}
        callers = {*self.callers.values(), *(sentinel.caller for sentinel in self.sentinels)}
        callers |= CLIENTS - {client.caller for client in between}
        places = [(self.callers[name], gate) for name, gate in self.gates.items()]
        places += [(sentinel.caller, sentinel.gate) for sentinel in self.sentinels]
        for place, gate in places:
            gate.refuse(callers - inside if place in inside else inside)


class View:
    """
    How one client reaches the Sentinels and the masters.

    Args:
        proxies: One for each Sentinel.

        caller: From which address it calls the masters, one of `CLIENTS`.
    """

    def __init__(self, proxies: list[Proxy], caller: str) -> None:
        class Calling(SentinelManagedConnection):
            def _connection_arguments(self) -> dict[str, Any]:
                return {**super()._connection_arguments(), "local_addr": (caller, 0)}

        self.proxies = proxies
        self.caller = caller
        self.manager = Sentinel([("127.0.0.1", proxy.port) for proxy in proxies])
        self.client = self.manager.master_for(SERVICE, connection_class=Calling)

    async def aclose(self) -> None:
        """Close what redis-py has opened."""
        for client in (self.client, *self.manager.sentinels):
            await client.aclose()


@contextlib.asynccontextmanager
async def view(site: Site, caller: str) -> AsyncIterator[View]:
    """Have a client that names all Sentinels, over proxies of its own; see `View`."""
    async with contextlib.AsyncExitStack() as stack:
        proxies = [Proxy(f"redis://127.0.0.1:{sentinel.port}") for sentinel in site.sentinels]
        for proxy in proxies:
            await stack.enter_async_context(proxy)
        seen = View(proxies, caller)
        stack.push_async_callback(seen.aclose)
        yield seen


def need_addresses() -> None:
    """Skip the test where a machine has no more loopback addresses than one."""
    try:
        with socket.socket() as probe:
            probe.bind(("127.0.1.1", 0))
    except OSError as error:
        pytest.skip(f"127.0.1.1 is no address of this machine ({sys.platform}): {error}")


def now() -> float:
    """Return the seconds of a clock that all in this process share."""
    return time.monotonic()
