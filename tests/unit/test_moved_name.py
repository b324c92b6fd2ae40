"""A host name that leads to another server while the connection to the old one lives."""

import asyncio
import logging
import socket
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from redis.asyncio import Sentinel
from redis.asyncio.connection import ConnectionPool
from redis.exceptions import AuthenticationError

from redlock_aio import LockNotAcquiredError, NoVoteCause, Redlock
from redlock_aio._transport import resolver
from redlock_aio._transport.address import Address, address, addresses
from redlock_aio._transport.moved_name import (
    SHORTEST_INTERVAL,
    UNGUARDED_INTERVAL,
    interval,
)
from redlock_aio.events import MasterLost
from redlock_aio.testing import FakeMaster, cancelled_at

from .diary import Diary
from .kit import MAX_TTL, QUARANTINE, in_coroutine, loop, now, votes

OLD, NEW = "10.0.0.5", "10.0.0.7"
FOLLOWS = "redlock_aio m.test"
"""The name of the task that looks up the name."""

MOVED = f"its name leads to {NEW} now, no longer to {OLD}"
EVERY = interval(QUARANTINE)


class Net:
    """
    A name server, and the servers at the addresses that it names.

    Attributes:
        names: The addresses of each host.

        servers: The server at each address.

        takes: The seconds that a look-up takes; infinite if it never ends.

        error: If set, each second look-up fails with it.

        asked: The instants of all look-ups.

        underway: The look-ups that have not ended.

        tried: The address of each connection.

        refuses: Whether servers refuse the login.
    """

    def __init__(self, masters: Sequence[FakeMaster]) -> None:
        self.servers = dict(zip((OLD, NEW), masters, strict=False))
        self.names = {"m.test": [OLD]}
        self.takes = 0.0
        self.error: Exception | None = None
        self.asked: list[float] = []
        self.underway = 0
        self.tried: list[str] = []
        self.refuses = False

    def getaddrinfo(self, host: str, port: int, **_: Any) -> list[Any]:
        self._fail(OSError, UnicodeError)
        self.asked.append(now())
        return [(0, 0, 0, "", (found, port)) for found in self.names[host]]

    def _fail(self, *kinds: type[Exception]) -> None:
        if isinstance(self.error, kinds) and len(self.asked) % 2:
            self.asked.append(now())
            raise self.error

    def thread(self, *, target: Callable[[], None], **_: Any) -> Any:
        """Return a thread that runs *target* after `takes` seconds, in the event loop."""

        def end() -> None:
            self.underway -= 1
            target()

        def start() -> None:
            self._fail(RuntimeError)
            self.underway += 1
            if self.takes < float("inf"):
                loop().call_later(self.takes, end)

        return SimpleNamespace(start=start)


class Named(Address):
    """A master with a host name, whose connections lead to the servers of a `Net`."""

    def __init__(self, net: Net, host: str = "m.test") -> None:
        super().__init__(ConnectionPool.from_url(f"redis://{host}:6379"), None)
        self._net = net

    async def dial(self) -> tuple[asyncio.Transport, object]:
        """Connect to the first address of the name that can be reached."""
        assert self.looks_up is not None
        return await self.dial_any(await resolver.look_up(*self.looks_up))

    async def dial_any(self, addresses: Sequence[str]) -> tuple[asyncio.Transport, object]:
        """Connect to the first of *addresses* that can be reached."""
        failed = OSError("no address")
        for found in addresses:
            self._net.tried.append(found)
            if self._net.refuses:
                raise AuthenticationError("WRONGPASS invalid username-password pair")
            try:
                transport, keep = await self._net.servers[found].dial()
            except OSError as error:
                failed = error
            else:
                transport._extra["peername"] = found, 6379  # type: ignore[attr-defined]
                return transport, keep
        raise failed


@pytest.fixture
async def net(masters: list[FakeMaster], monkeypatch: pytest.MonkeyPatch) -> Net:
    net = Net(masters)
    monkeypatch.setattr(socket, "getaddrinfo", net.getaddrinfo)
    monkeypatch.setattr(resolver, "threading", SimpleNamespace(Thread=net.thread))
    monkeypatch.setattr(resolver, "time", SimpleNamespace(monotonic=loop().time))
    monkeypatch.setattr(resolver, "_look_ups", {})
    return net


def managed(net: Net, **options: Any) -> Redlock:
    """Return a manager with one master, which has a name."""
    return Redlock([Named(net)], **{"max_ttl": MAX_TTL} | options)


def clients(server: FakeMaster) -> int:
    """Return the number of connections that *server* has."""
    return len(server._connections)


async def until(condition: Callable[[], bool]) -> None:
    """Wait until *condition* holds; the virtual hour is longer than any test needs."""
    async with asyncio.timeout(3600):
        while not condition():  # noqa: ASYNC110 - the masters and the name server have no events
            await asyncio.sleep(0.05)


async def passing(look_ups: int) -> None:
    """Wait until so many look-ups are done, at the latest."""
    await asyncio.sleep(look_ups * EVERY + 0.1)


@pytest.mark.promise("S1")
@pytest.mark.parametrize("guard", ["auto", "off"])
async def test_a_name_that_moves_ends_the_connection_and_the_new_server_is_examined(
    net: Net,
    masters: list[FakeMaster],
    diary: Diary,
    caplog: pytest.LogCaptureFixture,
    guard: str,
) -> None:
    caplog.set_level(logging.INFO)
    every = EVERY if guard == "auto" else UNGUARDED_INTERVAL
    async with managed(net, restart_guard=guard, listener=diary) as redlock:
        await asyncio.sleep(2 * every)
        masters[1].uptime = 0
        net.names["m.test"] = [NEW]
        moved = now()
        await asyncio.sleep(2 * every + 0.1)
        assert (clients(masters[0]), clients(masters[1])) == (0, 1)
        (lost, *later) = diary.of(MasterLost)
        assert isinstance(lost, MasterLost)
        assert lost.cause is NoVoteCause.FAILOVER
        assert [vote.detail for vote in lost.votes] == [MOVED]
        assert diary.times[diary.events.index(lost)] <= moved + 2 * every
        causes = [event.cause for event in later if isinstance(event, MasterLost)]
        assert causes == ([NoVoteCause.RESTARTED] if guard == "auto" else [])
        (vote,) = await votes(redlock)
        assert ("restarted" in vote.detail) is (guard == "auto")
        await asyncio.sleep(10 * every)
    assert caplog.text.count(MOVED) == 1
    assert f"m.test:6379: unreachable, {MOVED}" in caplog.text
    assert caplog.text.count("m.test:6379: connected again") == 1


@pytest.mark.promise("S1")
async def test_a_lease_from_old_servers_is_over_before_new_ones_vote(
    net: Net, masters: list[FakeMaster]
) -> None:
    """Two of three names move to empty servers; the old ones and their connections live on."""
    net.servers = {f"10.0.0.{number}": master for number, master in enumerate(masters)}
    net.names = {f"m{number}.test": [f"10.0.0.{number}"] for number in range(3)}
    names: Any = [[Named(net, host) for host in net.names] for _ in range(2)]
    async with Redlock(names[0], max_ttl=MAX_TTL) as first:
        lease = await first.lock("r", ttl=MAX_TTL).acquire()
        await asyncio.sleep(60)
        for number in (0, 1):
            masters[3 + number].uptime = 0
            net.names[f"m{number}.test"] = [f"10.0.0.{3 + number}"]
        async with Redlock(names[1], max_ttl=MAX_TTL) as second:
            # The lease may also live on: it is extended by the new servers, when they vote.
            try:
                async with second.lock("r", wait=60_000):
                    assert not lease.valid
            except LockNotAcquiredError:
                assert lease.valid
        assert [clients(master) for master in masters] == [0, 0, 1, 1, 1]


async def test_one_look_up_that_lacks_the_address_is_not_enough(
    net: Net, masters: list[FakeMaster]
) -> None:
    """A name server may return a part of the addresses each time."""
    answers = iter([OLD] + [NEW, OLD] * 100)

    def rotate(*_: Any, **__: Any) -> list[Any]:
        net.asked.append(now())
        return [(0, 0, 0, "", (next(answers), 6379))]

    socket.getaddrinfo = rotate  # the fixture restores it
    async with managed(net):
        await passing(100)
        assert len(net.asked) >= 100
        assert net.tried == [OLD]
        assert clients(masters[0]) == 1


async def test_a_round_robin_of_several_addresses_ends_nothing(net: Net) -> None:
    async with managed(net):
        net.names["m.test"] = [NEW, OLD]
        await passing(50)
        assert net.tried == [OLD]


@pytest.mark.parametrize(
    "fault", ["dead", "hangs", "mute", "replica", "refuses the login", "the same server"]
)
async def test_a_master_stays_connected_while_no_other_master_answers_at_the_new_address(
    net: Net,
    masters: list[FakeMaster],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    fault: str,
) -> None:
    async with managed(net) as redlock:
        with monkeypatch.context() as patch:
            match fault:
                case "dead":
                    masters[1].kill()
                case "hangs":
                    masters[1].hang()
                case "mute":  # as a proxy that accepts connections for a server that is down
                    patch.setattr(masters[1], "receive", lambda *_: None)
                case "replica":
                    patch.setattr(masters[1], "role", "slave")
                case "refuses the login":
                    patch.setattr(net, "refuses", True)
                case _:
                    patch.setattr(masters[1], "run_id", masters[0].run_id)
            net.names["m.test"] = [NEW]
            await passing(20)
            assert net.tried.count(NEW) >= 10
            assert [vote.answer.name for vote in await votes(redlock)] == ["GRANTED"]
            assert (clients(masters[0]), clients(masters[1])) == (1, 0)
            assert not caplog.text
        if fault == "dead":
            masters[1].restart()
        masters[1].resume()
        await passing(2)
        assert (clients(masters[0]), clients(masters[1])) == (0, 1)
        assert caplog.text.count(MOVED) == 1


async def test_the_first_address_at_which_a_server_answers_counts(
    net: Net, masters: list[FakeMaster], caplog: pytest.LogCaptureFixture
) -> None:
    net.servers["10.0.0.6"] = masters[2]
    masters[2].kill()
    async with managed(net):
        net.names["m.test"] = ["10.0.0.6", NEW]
        await passing(3)
        assert clients(masters[1]) == 1
    assert MOVED in caplog.text


@pytest.mark.parametrize(
    "error", [socket.gaierror("not known"), UnicodeError("no name"), RuntimeError("no thread")]
)
async def test_a_look_up_that_fails_proves_nothing(
    net: Net, masters: list[FakeMaster], error: Exception
) -> None:
    """Neither for the new address nor against it: two have to succeed in a row."""
    async with managed(net):
        net.names["m.test"] = [NEW]
        net.error = error
        asked = len(net.asked)
        await passing(20)
        assert len(net.asked) >= asked + 20
        assert net.tried == [OLD]
        net.error = None
        asked = len(net.asked)
        await until(lambda: not clients(masters[0]))
        assert len(net.asked) >= asked + 1


async def test_a_look_up_that_hangs_delays_nothing(net: Net, masters: list[FakeMaster]) -> None:
    async with managed(net) as redlock:
        net.takes = float("inf")
        await passing(2)
        assert net.underway == 1
        began = now()
        for _ in range(100):
            async with redlock.lock("r", ttl=500):
                pass
        assert now() < began + 1
        await passing(50)
        assert net.underway == 1
        assert clients(masters[0]) == 1
        began = now()
    assert now() < began + 0.1


async def test_a_new_server_that_hangs_does_not_delay_the_close(
    net: Net, masters: list[FakeMaster]
) -> None:
    masters[1].latency = 3600
    async with managed(net):
        net.names["m.test"] = [NEW]
        await until(lambda: NEW in net.tried)
        began = now()
    assert now() < began + 0.1


async def test_a_connection_that_ends_during_a_look_up_is_dialled_at_once(
    net: Net, masters: list[FakeMaster]
) -> None:
    async with managed(net):
        net.takes = 5.0
        await until(lambda: net.underway == 1)
        masters[0].cut()
        began = now()
        await until(lambda: net.tried == [OLD, OLD])
        assert now() <= began + net.takes  # the dial uses the look-up that was underway


@pytest.mark.parametrize(
    ("peer", "found"),
    [
        ("::ffff:10.0.0.5", "10.0.0.5"),
        ("10.0.0.5", "::ffff:a00:5"),
        ("fe80::1%eth0", "fe80::1"),
        ("fe80::1", "FE80:0::1%2"),
        ("3", "3"),
    ],
)
async def test_an_address_has_many_forms(
    net: Net, masters: list[FakeMaster], peer: str, found: str
) -> None:
    net.servers = {peer: masters[0], found: masters[0]}
    net.names["m.test"] = [peer]
    async with managed(net):
        net.names["m.test"] = [found]
        await passing(20)
        assert net.tried == [peer]


async def test_a_connection_through_a_proxy_of_the_users_own_stays(
    net: Net, masters: list[FakeMaster], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The address of the proxy is none of the name's, but the proxy leads to the same server."""
    dial_any = Named.dial_any

    async def through(self: Named, addresses: Sequence[str]) -> Any:
        transport, keep = await dial_any(self, addresses)
        transport._extra["peername"] = "192.0.2.1", 1080  # type: ignore[attr-defined]
        return transport, keep

    monkeypatch.setattr(Named, "dial_any", through)
    async with managed(net) as redlock:
        received = redlock.statistics().masters[0]
        await passing(5)
        assert net.tried.count(OLD) >= 3
        assert redlock.statistics().masters[0] == received
        assert clients(masters[0]) == 1


@pytest.mark.parametrize("when", ["waiting", "answered"])
async def test_a_cancellation_leaves_no_connection(
    net: Net, masters: list[FakeMaster], when: Any
) -> None:
    from redlock_aio._transport.connection import Connection
    from redlock_aio._transport.moved_name import moved

    dialler = Named(net)
    transport, keep = await dialler.dial()
    connection = Connection(
        0, loop(), condemn_after=1, on_push=lambda *_: None, on_lost=lambda *_: None
    )
    connection.use(transport, keep)
    net.names["m.test"] = [NEW]
    for nth in range(1, 100):
        watching = moved(dialler, connection, masters[0].run_id, every=EVERY, within=1)
        task = asyncio.create_task(in_coroutine(cancelled_at(nth, watching, when=when)))
        await asyncio.wait([task])
        await asyncio.sleep(1)
        assert clients(masters[1]) == 0
        if not task.cancelled():
            assert task.result() == MOVED
            break
    assert nth > 5
    connection.close()


async def test_a_lost_cancellation_ends_the_task(
    net: Net, masters: list[FakeMaster], monkeypatch: pytest.MonkeyPatch
) -> None:
    """redis-py and other libraries have swallowed cancellations before."""
    dial_any = Named.dial_any

    async def swallowing(self: Named, addresses: Sequence[str]) -> Any:
        try:
            return await dial_any(self, addresses)
        except asyncio.CancelledError:
            for _ in range(10):  # it closes the socket
                await asyncio.sleep(0)
            raise OSError("cancelled") from None

    async with managed(net):
        monkeypatch.setattr(Named, "dial_any", swallowing)
        masters[1].latency = 3600
        net.names["m.test"] = [NEW]
        await until(lambda: NEW in net.tried)
        began = now()
    assert now() < began + 0.1
    assert not [task for task in asyncio.all_tasks() if task.get_name() == FOLLOWS]


@pytest.mark.parametrize(
    "url", ["redis://10.0.0.5:6379", "redis://[::1]", "rediss://[fe80::1]:1", "unix:///tmp/s"]
)
def test_an_ip_address_and_a_socket_are_never_looked_up(url: str) -> None:
    dialler = address(url, name="master")
    assert isinstance(dialler, Address)
    assert dialler.looks_up is None


async def test_a_master_behind_sentinel_is_confirmed_by_its_sentinels_only() -> None:
    (dialler,) = addresses([Sentinel([("s.test", 26379)]).master_for("mymaster")])
    assert not isinstance(dialler, Address)


async def test_a_master_without_a_name_has_no_task_for_it(net: Net) -> None:
    async with managed(net):
        named = [task for task in asyncio.all_tasks() if task.get_name() == FOLLOWS]
        assert len(named) == 1
    async with Redlock(list(net.servers.values())):  # fake masters
        assert not [task for task in asyncio.all_tasks() if task.get_name() == FOLLOWS]


@pytest.mark.parametrize(
    ("lasts", "every"),
    [(61.6, 15.4), (1.1, SHORTEST_INTERVAL), (None, UNGUARDED_INTERVAL)],
)
def test_the_interval(lasts: float | None, every: float) -> None:
    assert interval(lasts) == pytest.approx(every)


async def test_a_move_is_noticed_within_two_intervals(net: Net) -> None:
    """That is half of the quarantine. Look-ups of many programs are spread by chance."""
    async with managed(net):
        await passing(100)
        gaps = [later - former for former, later in zip(net.asked[1:], net.asked[2:], strict=False)]
        assert max(gaps) <= EVERY
        assert min(gaps) >= 0.7 * EVERY
        assert len({round(gap, 3) for gap in gaps}) > 10
