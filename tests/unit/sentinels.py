"""Fake Sentinels, a master that they name, and links to all of them that a test can cut."""

import asyncio
import math
from collections.abc import Sequence

from redlock_aio.testing import FakeMaster
from redlock_aio.testing._fake_lua import Error

SERVICE = "mine"


class FakeSentinel(FakeMaster):
    """
    One Sentinel in memory.

    Attributes:
        names: The host, the port and the configuration epoch of the master that it names.

        known: The number of Sentinels that it knows, including itself.

        asked_at: When it received the last request.
    """

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.names: tuple[str, int, int] | None = ("old", 6379, 0)
        self.known = 3
        self.asked_at = -math.inf

    def switch(self, host: str, epoch: int) -> None:
        """Name another master after a failover, and publish that to its subscribers."""
        self.names = (host, 6379, epoch)
        self._pushes.publish(b"+switch-master", f"{SERVICE} x 6379 {host} 6379".encode())

    def _do_sentinel(self, verb: bytes, name: bytes = b"") -> object:
        if verb == b"MYID":
            return self.run_id.encode()
        assert name.decode() == SERVICE
        self.asked_at = asyncio.get_running_loop().time()
        if verb == b"GET-MASTER-ADDR-BY-NAME":
            if self.names is None:
                return None
            host, port, _ = self.names
            return [host.encode(), b"%d" % port]
        assert verb == b"MASTER"
        if self.names is None:
            raise Error("ERR No such master with that name")
        others = b"%d" % (self.known - 1)
        return [b"config-epoch", b"%d" % self.names[2], b"num-other-sentinels", others]


class CutLink:
    """A link between one client and one server, which can be cut without effect on other links."""

    secrets = ("s3cret",)

    def __init__(self, server: FakeMaster) -> None:
        self.server = server
        self.is_cut = False
        self._transports: list[asyncio.Transport] = []

    def __str__(self) -> str:
        return str(self.server)

    async def dial(self) -> tuple[asyncio.Transport, object]:
        """Connect, or wait for ever if the link is cut."""
        if self.is_cut:
            await asyncio.get_running_loop().create_future()
        transport, keep = await self.server.dial()
        self._transports.append(transport)
        return transport, keep

    def cut(self) -> None:
        """Abort the connections, and let new ones wait."""
        self.is_cut = True
        for transport in self._transports:
            transport.abort()
        self._transports.clear()

    def mend(self) -> None:
        """Make new connections possible again."""
        self.is_cut = False


class FakeService:
    """
    A master that Sentinels name, with the links of one client to it.

    Args:
        sentinels: The Sentinels that the client names.

        servers: The servers that may become the master, by host.
    """

    secrets = ("s3cret",)
    service = SERVICE

    def __init__(self, sentinels: Sequence[FakeMaster], servers: dict[str, FakeMaster]) -> None:
        self.sentinels = [CutLink(sentinel) for sentinel in sentinels]
        self.servers = {host: CutLink(server) for host, server in servers.items()}

    def __str__(self) -> str:
        return f"{SERVICE} (by Sentinel {self.sentinels[0]})"

    async def dial_to(self, host: str, port: int) -> tuple[asyncio.Transport, object]:
        """Connect to the server with this address."""
        assert port == 6379
        return await self.servers[host].dial()


def replicate(source: FakeMaster, replica: FakeMaster) -> None:
    """Make *replica* a master with the marker of *source*, but without its locks."""
    replica.replica_before = True
    if source.marker is not None:
        replica.set("redlock_aio:marker", source.marker)
