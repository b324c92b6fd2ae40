"""A name server that hangs costs the masters that have a name, and nothing else."""

import asyncio
import contextlib
import importlib.util
import socket
import sys
import threading
from typing import Any

import pytest

from redlock_aio import QuorumUnavailableError, Redlock
from redlock_aio._transport import resolver
from redlock_aio._transport.address import Address, address
from redlock_aio._transport.resolver import look_up

from .helpers import RealMaster, Stopwatch, until, up, urls

pytestmark = pytest.mark.integration


class Resolver:
    """Replaces `socket.getaddrinfo` in a test: look-ups of names hang until `answer` is called."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._real = socket.getaddrinfo
        self._answers = threading.Event()
        self.calls: list[str] = []
        self.underway = 0
        monkeypatch.setattr(socket, "getaddrinfo", self._look_up)

    def _look_up(self, host: Any, *arguments: Any, **options: Any) -> Any:
        if not str(host).endswith(".test"):
            return self._real(host, *arguments, **options)
        self.calls.append(host)
        self.underway += 1
        try:
            self._answers.wait(60)
            if host.startswith("gone"):
                raise socket.gaierror("Name or service not known")
            return self._real("127.0.0.1", *arguments, **options)
        finally:
            self.underway -= 1

    def answer(self) -> None:
        self._answers.set()


@pytest.fixture
def hanging(monkeypatch: pytest.MonkeyPatch) -> Any:
    made = Resolver(monkeypatch)
    yield made
    made.answer()
    for thread in threading.enumerate():
        if thread.name.startswith("redlock_aio looks up"):
            thread.join(10)
    resolver._look_ups.clear()


def named(masters: list[RealMaster]) -> list[str]:
    """Return URLs with names."""
    return [url.replace("127.0.0.1", f"m{i}.test") for i, url in enumerate(urls(masters))]


@pytest.mark.full
async def test_a_hanging_resolver_takes_one_thread_of_its_own_for_each_master(
    hanging: Resolver, masters: list[RealMaster]
) -> None:
    """Repeated dialling takes no more threads, and none of the program's executor."""
    wanted = named(masters[:3])
    async with Redlock(wanted, master_timeout=100, restart_guard="off") as redlock:
        with pytest.raises(QuorumUnavailableError):
            await redlock.lock("r", wait=4_000).acquire()
        assert len(hanging.calls) == hanging.underway == 3
        async with asyncio.timeout(5):
            await asyncio.gather(*(asyncio.to_thread(lambda: None) for _ in range(50)))
            await asyncio.get_running_loop().getaddrinfo("localhost", 80)
        hanging.answer()
        await until(lambda: up(redlock) == 3)
        async with redlock.lock("r", wait=5_000):
            pass


async def test_a_late_result_is_used_by_the_next_look_up(hanging: Resolver) -> None:
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.1):
            await look_up("late.test", 6379)
    hanging.answer()
    await until(lambda: not hanging.underway)
    assert await look_up("late.test", 6379) == ("127.0.0.1",)
    assert hanging.calls == ["late.test"]
    assert await look_up("late.test", 6379) == ("127.0.0.1",)
    assert hanging.calls == ["late.test"] * 2  # a result that was used is looked up again


async def test_concurrent_look_ups_share_one_result(hanging: Resolver) -> None:
    asking = [asyncio.create_task(look_up("gone.test", 1)) for _ in range(3)]
    await asyncio.sleep(0.05)
    asking[0].cancel()
    hanging.answer()
    await asyncio.wait(asking)
    assert asking[0].cancelled()
    for task in asking[1:]:
        with pytest.raises(socket.gaierror):
            task.result()
    assert hanging.calls == ["gone.test"]


async def test_an_unknown_name_is_the_vote_of_its_master(
    hanging: Resolver, masters: list[RealMaster]
) -> None:
    hanging.answer()
    wanted = [*urls(masters[:2]), "redis://gone.test:6379"]
    redlock = Redlock(wanted, master_timeout=1_000, restart_guard="off")
    async with redlock, redlock.lock("r", wait=5_000) as lease:
        await until(lambda: "not known" in lease.votes[2].detail)


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "fe80::1%lo", "10.0.0.7"])
async def test_an_address_needs_no_look_up(hanging: Resolver, host: str) -> None:
    before = threading.active_count()
    assert await look_up(host, 6379) == (host,)
    assert threading.active_count() == before
    assert hanging.calls == []


async def test_each_address_of_a_name_is_tried(
    monkeypatch: pytest.MonkeyPatch, masters: list[RealMaster]
) -> None:
    """`localhost`, for example, has two addresses, and a server may listen on one of them."""
    stream = (socket.AF_INET, socket.SOCK_STREAM, 6, "")
    found = [(*stream, (host, 0)) for host in ("127.77.77.77", "127.0.0.1")]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: found)
    dialler = address(named(masters)[0], name="master")
    assert isinstance(dialler, Address)
    transport, _ = await dialler.dial()
    assert transport.get_extra_info("peername")[0] == "127.0.0.1"
    transport.abort()
    await asyncio.sleep(0)


async def test_an_address_that_swallows_packets_costs_one_attempt(
    monkeypatch: pytest.MonkeyPatch, masters: list[RealMaster]
) -> None:
    """Otherwise each attempt would wait for that address, and none reach the other one."""
    stream = (socket.AF_INET, socket.SOCK_STREAM, 6, "")
    hosts = "127.77.77.77", "127.77.77.78", "127.0.0.1"
    found = [(*stream, (host, 0)) for host in hosts]
    port = int(masters[0].url.rpartition(":")[2])
    with contextlib.ExitStack() as stack:
        for host in hosts[:2]:
            silent = stack.enter_context(socket.socket())
            silent.bind((host, port))
            silent.listen()  # the system accepts connections, and nothing answers
        monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: found)
        dialler = address(named(masters)[0], name="master")
        assert isinstance(dialler, Address)
        with pytest.raises(TimeoutError):  # and not the error of a login that others cancel
            async with asyncio.timeout(0.1):
                await dialler.dial()
        redlock = Redlock(named(masters)[0], restart_guard="off")
        async with redlock, redlock.lock("r", wait=20_000):
            pass


async def test_an_address_that_answers_is_dialled_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """It may be that of the only master that works, and be busy with its start."""
    hosts, reached = ["127.77.77.77", "127.0.0.1"], list[str]()

    async def refuse(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        reached.append(writer.get_extra_info("sockname")[0])
        writer.write(b"-LOADING Redis is loading the dataset in memory\r\n")
        writer.close()

    first = await asyncio.start_server(refuse, hosts[0], 0)
    port = first.sockets[0].getsockname()[1]
    stream = (socket.AF_INET, socket.SOCK_STREAM, 6, "")
    async with first, await asyncio.start_server(refuse, hosts[1], port):
        monkeypatch.setattr(
            socket, "getaddrinfo", lambda *_, **__: [(*stream, (h, 0)) for h in hosts]
        )
        dialler = address(f"redis://m.test:{port}", name="master")
        assert isinstance(dialler, Address)
        for _ in range(2):
            with pytest.raises(Exception, match="loading"):
                await dialler.dial()
    assert reached == [hosts[0]] * 2


def test_tls_asks_for_the_name() -> None:
    dialler = address("rediss://master.test:6380", name="master")
    assert isinstance(dialler, Address)
    connection = dialler._make()
    assert connection._connection_arguments()["host"] == "master.test"
    connection.address = "10.0.0.7"
    arguments = connection._connection_arguments()
    assert (arguments["host"], arguments["server_hostname"]) == ("10.0.0.7", "master.test")
    plain = address("redis://master.test", name="master")
    assert isinstance(plain, Address)
    connection = plain._make()
    connection.address = "10.0.0.7"
    assert connection._connection_arguments() == {"host": "10.0.0.7", "port": 6379}


ENDS = """
import asyncio, socket, sys, time
from redlock_aio import Redlock, RedlockError

def hang(*_, **__):
    time.sleep(60)

socket.getaddrinfo = hang

async def main():
    asyncio.get_running_loop().call_later(0.05, time.sleep, float(sys.argv[2]))
    redlock = Redlock(["redis://m1.test", "redis://m2.test", "redis://m3.test"], master_timeout=100)
    try:
        await redlock.lock("r", wait=500).acquire()
    except RedlockError as error:
        print(*error.votes, sep="\\n", flush=True)

if sys.argv[1] == "uvloop":
    import uvloop
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main())
else:
    asyncio.run(main())
"""
no_uvloop = importlib.util.find_spec("uvloop") is None


@pytest.mark.parametrize(
    "how", ["run", pytest.param("uvloop", marks=pytest.mark.skipif(no_uvloop, reason="none"))]
)
@pytest.mark.parametrize("stall", ["0", "0.6"])
@pytest.mark.full
async def test_a_program_ends_though_the_resolver_hangs(how: str, stall: str) -> None:
    """
    It also names the reason, if the event loop stands still until after the wait.

    uvloop runs a timer that is due before what was to run in the next turn: an attempt that
    got no time would time out before its request is sent.
    """
    watch = Stopwatch()
    command = (sys.executable, "-P", "-W", "error", "-c", ENDS, how, stall)
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(*command, stdout=pipe, stderr=pipe)
    output, errors = await asyncio.wait_for(process.communicate(), 50)
    votes = "".join(f"m{number}.test:6379: unreachable, connecting\n" for number in (1, 2, 3))
    assert (process.returncode, output.decode(), errors.decode()) == (0, votes, "")
    assert watch.ms < 30_000  # the look-ups take 60 s
