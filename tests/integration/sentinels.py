"""Three real Sentinels, a master and a replica, with a network between them that can be cut."""

import asyncio
import contextlib
import socket
import sys
from collections.abc import AsyncIterator, Iterable
from pathlib import Path
from typing import Any

import pytest
from evidence.servers import SERVICE, SentinelServer
from redis.asyncio import Sentinel
from redis.asyncio.sentinel import SentinelManagedConnection

from redlock_aio.testing import EmbeddedMaster
from redlock_aio.testing._embedded import free_port

from .helpers import until
from .proxy import Proxy
from .servers import binary_of, process

CLIENTS = {"127.0.3.1", "127.0.3.2"}
DOWN_AFTER = 600
"""Milliseconds without a reply after which a Sentinel regards the master as dead."""


class Gate(Proxy):
    """
    The public address of one server, which tells callers apart by their source address.

    Attributes:
        refused: The source addresses whose connections are refused.
    """

    def __init__(self, port: int) -> None:
        super().__init__(f"redis://127.0.0.1:{port}")
        self.refused: set[str] = set()

    def refuse(self, callers: Iterable[str]) -> None:
        """Close the connections of *callers* and refuse new ones; accept all others again."""
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


class GatedSentinel:
    """
    One Sentinel, which connects to others from an address of its own.

    Attributes:
        server: Its process, from `start` on.
    """

    server: SentinelServer

    def __init__(self, kind: str, folder: Path, number: int) -> None:
        self.caller = f"127.0.1.{number + 1}"
        self.port = free_port()
        self.gate = Gate(self.port)
        self._binary = binary_of(kind)
        self._config = folder / f"sentinel-{number}.conf"

    def start(self, master: int) -> None:
        """Start it: it monitors the master at this port."""
        lines = [
            *(f"port {self.port}", "bind 127.0.0.1", f"bind-source-addr {self.caller}"),
            f"sentinel down-after-milliseconds {SERVICE} {DOWN_AFTER}",
            "sentinel announce-ip 127.0.0.1",
            f"sentinel announce-port {self.gate.port}",
        ]
        url = f"redis://127.0.0.1:{self.port}"
        watched = "127.0.0.1", master
        self.server = SentinelServer(self._binary, self._config, url, watched, lines)
        self.server.start()


class Site:
    """
    A master, its replica and three Sentinels, each behind its `Gate`.

    Attributes:
        old: The first master.

        new: Its replica.
    """

    def __init__(self, kind: str, folder: Path) -> None:
        self.sentinels = [GatedSentinel(kind, folder, number) for number in range(3)]
        self.callers = {"old": "127.0.2.1", "new": "127.0.2.2"}
        self.servers: dict[str, EmbeddedMaster] = {}
        self.gates: dict[str, Gate] = {}
        self._kind = kind

    async def start(self, stack: contextlib.AsyncExitStack) -> None:
        """Start all servers, and wait until the Sentinels know each other and both masters."""
        for name, caller in self.callers.items():
            port = free_port()
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
            sentinel.start(self.gates["old"].port)
            stack.callback(sentinel.server.kill)
        await until(self._is_complete, within=30)

    async def _is_complete(self) -> bool:
        known = [await asyncio.to_thread(each.server.knows_all) for each in self.sentinels]
        return all(known)

    def named_by(self, number: int) -> str:
        """Return the server that a Sentinel names as the master."""
        port = self.sentinels[number].server.state().get("port")
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
        with_clients: Iterable["ClientView"] = (),
        between: Iterable["ClientView"] = (),
    ) -> None:
        """
        Cut off the old master, with these Sentinels and clients, from all others.

        Connections between clients and Sentinels stay as they are; see `ClientView.proxies`.

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


class ClientView:
    """
    The connections of one client to the Sentinels and the masters.

    Args:
        proxies: One for each Sentinel.

        caller: The source address of its connections to masters, one of `CLIENTS`.
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
        """Close the connections of redis-py."""
        for client in (self.client, *self.manager.sentinels):
            await client.aclose()


@contextlib.asynccontextmanager
async def view(site: Site, caller: str) -> AsyncIterator[ClientView]:
    """Make a client that names all Sentinels, over proxies of its own; see `ClientView`."""
    async with contextlib.AsyncExitStack() as stack:
        proxies = [Proxy(f"redis://127.0.0.1:{sentinel.port}") for sentinel in site.sentinels]
        for proxy in proxies:
            await stack.enter_async_context(proxy)
        client_view = ClientView(proxies, caller)
        stack.push_async_callback(client_view.aclose)
        yield client_view


def need_addresses() -> None:
    """Skip the test where the machine has only one loopback address."""
    try:
        with socket.socket() as probe:
            probe.bind(("127.0.1.1", 0))
    except OSError as error:
        pytest.skip(f"127.0.1.1 is no address of this machine ({sys.platform}): {error}")
