"""The scripts of locks on one master, in cases that tests of clients do not reach."""

import pytest

from redlock_aio._protocol import request, scripts
from redlock_aio._protocol.primitives import FencingCounter, JointMutex, Mutex
from redlock_aio.testing import FakeMaster
from redlock_aio.testing._fake_commands import EPOCH
from redlock_aio.testing._fake_lua import Error

from .kit import execute

OURS, THEIRS = b"our token", b"their token"
TTL = 10_000
NOW = EPOCH * 1_000_000
"""The clock of a new fake master, in us."""


class Redis60(FakeMaster):
    """A master whose SET has no option GET, as that of Redis 6.0."""

    def _do_set(self, key: bytes, value: bytes, *options: bytes) -> object:
        if b"GET" in options:
            raise Error("ERR syntax error")
        return super()._do_set(key, value, *options)


class Client:
    """A client of one master that has loaded the scripts."""

    def __init__(self, master: FakeMaster | None = None) -> None:
        self.master = master or FakeMaster()
        for script in scripts.SCRIPTS:
            self.send(script.load)

    def send(self, request: bytes) -> object:
        return execute(self.master, request)


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


@pytest.mark.promise("S7")
@pytest.mark.parametrize(
    "counter",
    [None, NOW - 1, NOW, NOW + 5, f"{NOW + 5}.0000{NOW - 9:016d}", 7, 10**15 - 1, "no number", []],
)
async def test_redis_6_0_grants_the_same_fencing_tokens(counter: object) -> None:
    """Its SET can't return the old counter, so the script reads it first."""
    replies, counters = [], []
    for master in (FakeMaster(), Redis60()):
        client = Client(master)
        if isinstance(counter, list):
            client.send(request.pack(b"ZADD", b"redlock_aio:fence:{r}", b"1", b"member"))
        elif counter is not None:
            master.set("redlock_aio:fence:{r}", str(counter))
        acquire = FencingCounter((b"r",), lead=8_000_000).acquire(OURS, TTL, NOW, 1_000_000)
        reply = client.send(acquire)
        replies.append(str(reply) if isinstance(reply, Exception) else reply)
        counters.append((master.keys.get("redlock_aio:fence:{r}"), master.pttl("r")))
    assert replies[0] == replies[1]
    if not isinstance(replies[0], str):
        assert counters[0] == counters[1]
        least = int(float(str(counter or 0))) + 1
        assert counters[0] == (f"{max(NOW, least):016d}", TTL)
        assert replies[0] == (1 if least <= NOW else least)
