"""The scripts of locks on one master, in cases that tests of clients do not reach."""

import hiredis
import pytest

from redlock_aio._protocol import scripts
from redlock_aio._protocol.primitives import FencingCounter, JointMutex, Mutex
from redlock_aio.testing import FakeMaster
from redlock_aio.testing._fake_commands import EPOCH

OURS, THEIRS = b"our token", b"their token"
TTL = 10_000
NOW = EPOCH * 1_000_000
"""The clock of a new fake master, in us."""


class Client:
    """A client of one master that has loaded the scripts."""

    def __init__(self) -> None:
        self.master = FakeMaster()
        for script in scripts.SCRIPTS:
            self.send(script.load)

    def send(self, request: bytes) -> object:
        reader = hiredis.Reader()
        reader.feed(request)
        return self.master.execute(reader.gets())


@pytest.fixture
async def client() -> Client:
    return Client()


@pytest.mark.promise("S5")
async def test_an_own_token_is_granted_again_with_the_value_of_its_counter(client: Client) -> None:
    """If the reply was lost, the repeated request gets the same fencing token."""
    counter = FencingCounter((b"r",), lead=8_000_000)
    acquire = counter.acquire(OURS, TTL, NOW, 1_000_000)
    assert client.send(acquire) == 1
    assert client.send(acquire) == NOW
    assert client.send(counter.acquire(THEIRS, TTL, NOW, 1_000_000)) == 0


@pytest.mark.promise("S1")
async def test_a_restoration_leaves_the_lock_of_another_holder(client: Client) -> None:
    """This holds also if one of several keys is missing and could be restored."""
    several = JointMutex([Mutex(b"r"), Mutex(b"s")])
    assert client.send(Mutex(b"r").acquire(THEIRS, TTL)) == b"OK"
    assert client.send(several.restore(OURS, TTL)) == -1
    assert client.master.keys == {"r": THEIRS.decode()}
