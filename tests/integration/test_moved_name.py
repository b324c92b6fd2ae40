"""A host name that leads to another server, on real servers at two loopback addresses."""

import contextlib
import socket
from collections.abc import Iterator
from typing import Any

import pytest

from redlock_aio import NoVoteCause, Redlock
from redlock_aio.events import MasterLost
from redlock_aio.testing import EmbeddedMaster

from .helpers import until
from .servers import process

pytestmark = pytest.mark.integration

MAX_TTL = 1_000
"""With it the quarantine is 2 s, and names are looked up once a second."""


@pytest.fixture
def servers(kind: str) -> Iterator[list[EmbeddedMaster]]:
    """Two servers with one port, at 127.0.0.1 and 127.0.0.2."""
    with contextlib.ExitStack() as stack:
        old, new = process(kind), process(kind, "--bind", "127.0.0.2")
        new.port = old.port
        yield [stack.enter_context(server) for server in (old, new)]


class Names:
    """Replaces `socket.getaddrinfo` in a test for one name, which the test moves."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._real = socket.getaddrinfo
        self.leads_to = "127.0.0.1"
        self.asked = 0
        monkeypatch.setattr(socket, "getaddrinfo", self._look_up)

    def _look_up(self, host: Any, *arguments: Any, **options: Any) -> Any:
        if host == "moves.test":
            self.asked += 1
            host = self.leads_to
        return self._real(host, *arguments, **options)


def clients(server: EmbeddedMaster) -> int:
    """Return how many clients *server* has, beside the one that asks it."""
    with socket.socket(socket.AF_UNIX) as asking:  # the port may be that of the other server
        asking.settimeout(10)
        asking.connect(server._socket)
        asking.sendall(b"CLIENT LIST\r\n")
        return asking.recv(65536).count(b"id=") - 1


@pytest.mark.promise("S1")
async def test_a_name_that_moves_is_followed_to_a_server_that_answers(
    servers: list[EmbeddedMaster], monkeypatch: pytest.MonkeyPatch
) -> None:
    old, new = servers
    names = Names(monkeypatch)
    events: list[Any] = []
    redlock = Redlock([f"redis://moves.test:{old.port}"], max_ttl=MAX_TTL, listener=events.append)
    async with redlock:
        async with redlock.lock("r", ttl=500, wait=30_000):
            assert clients(old) == 1
        # First to a proxy that accepts connections for a server that is down, as the kernel does.
        with socket.create_server(("127.0.0.3", old.port)) as proxy:
            asked, names.leads_to = names.asked, "127.0.0.3"
            await until(lambda: names.asked >= asked + 5, within=60)
            proxy.settimeout(10)
            proxy.accept()[0].close()  # it was tried
            assert not [event for event in events if isinstance(event, MasterLost)]
            assert clients(old) == 1

        names.leads_to = "127.0.0.2"
        await until(lambda: any(isinstance(event, MasterLost) for event in events), within=60)
        lost = next(event for event in events if isinstance(event, MasterLost))
        assert lost.cause is NoVoteCause.FAILOVER
        text = "its name leads to 127.0.0.2 now, no longer to 127.0.0.1"
        assert [vote.detail for vote in lost.votes] == [text]
        await until(lambda: redlock.statistics().masters[0].up, within=60)
        async with redlock.lock("r", ttl=500, wait=60_000):
            assert (clients(old), clients(new)) == (0, 1)
        # A name that stays is not dialled again.
        asked = names.asked
        await until(lambda: names.asked >= asked + 3, within=60)
        assert (clients(old), clients(new)) == (0, 1)
