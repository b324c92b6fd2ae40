"""
The fake master: the times of its pushes, hangs, and the separation of scripts.

Its pushes themselves are compared with those of real servers in tests/integration.
"""

import asyncio
import contextlib
import gc
import subprocess
import sys
import weakref
from concurrent.futures import Future, ThreadPoolExecutor, wait

import hiredis
import pytest

from redlock_aio._protocol import commands, scripts
from redlock_aio._protocol.commands import CACHING, TRACKING
from redlock_aio._protocol.request import pack
from redlock_aio._rules.server_info import ServerInfo
from redlock_aio.testing import FakeMaster, VirtualTimeLoop, _fake_commands
from redlock_aio.testing._fake_lua import Error

from .kit import execute, now

LATENCY = 0.5
GET = pack(b"GET", b"k")
LOOK = CACHING + GET
INVALIDATION = [b"invalidate", [b"k"]]
CHANNEL = commands.CHANNEL + b"me"
SUBSCRIBE = commands.subscription(b"me", begins=True)


class Connection(asyncio.Protocol):
    """One connection, which records what it receives and when."""

    def __init__(self) -> None:
        self.timed: list[tuple[float, object]] = []
        self.replies: list[object] = []
        self.received: list[object] = []
        self._reader = hiredis.Reader()

    async def dial(self, master: FakeMaster) -> asyncio.Transport:
        self.transport, _ = await master.dial()
        self.transport.set_protocol(self)
        return self.transport

    def data_received(self, data: bytes) -> None:
        self._reader.feed(data)
        while (message := self._reader.gets()) is not False:
            if isinstance(message, hiredis.PushNotification):
                self.timed.append((now(), list(message)))
            else:
                self.replies.append(message)
            self.received.append(message)

    @property
    def pushes(self) -> list[object]:
        return [push for _, push in self.timed]

    async def look(self) -> None:
        """Read the key with tracking, and wait for the reply."""
        self.transport.write(LOOK)
        await asyncio.sleep(LATENCY)


@pytest.fixture
async def master() -> FakeMaster:
    return FakeMaster(latency=LATENCY)


@pytest.fixture
async def connection(master: FakeMaster) -> Connection:
    """Open a connection with client tracking."""
    connection = Connection()
    (await connection.dial(master)).write(TRACKING)
    await asyncio.sleep(LATENCY)
    return connection


def timers() -> int:
    """Count the timers of the loop."""
    scheduled: list[asyncio.TimerHandle] = asyncio.get_running_loop()._scheduled  # type: ignore[attr-defined]
    return sum(not timer.cancelled() for timer in scheduled)


# Pushes


async def test_no_request_overtakes_another_one_when_the_latency_falls(
    master: FakeMaster, connection: Connection
) -> None:
    connection.replies.clear()
    master.commands.clear()
    began = now()
    connection.transport.write(pack(b"SET", b"k", b"1"))
    await asyncio.sleep(0.01)
    master.latency = 0.01
    connection.transport.write(GET)
    await asyncio.sleep(LATENCY / 2 - 0.02)
    assert not connection.replies
    assert not master.commands
    await asyncio.sleep(0.02)
    assert connection.replies == [b"OK", b"1"]
    assert now() - began == pytest.approx(LATENCY / 2 + 0.01)


async def test_a_push_takes_half_the_latency(master: FakeMaster, connection: Connection) -> None:
    await connection.look()
    changed = now()
    master.set("k", "v")
    await asyncio.sleep(LATENCY)
    assert connection.timed == [(changed + LATENCY / 2, INVALIDATION)]


async def test_pushes_and_replies_keep_their_order(
    master: FakeMaster, connection: Connection
) -> None:
    await connection.look()
    connection.received.clear()
    connection.transport.write(commands.PING)
    await asyncio.sleep(LATENCY / 4)
    master.set("k", "v")  # the GET is executed later
    connection.transport.write(GET)
    await asyncio.sleep(LATENCY)
    assert connection.received == [INVALIDATION, b"PONG", b"v"]
    connection.received.clear()
    connection.transport.write(SUBSCRIBE + pack(b"PUBLISH", CHANNEL, b"x") + commands.PING)
    await asyncio.sleep(LATENCY)
    own = [[b"subscribe", CHANNEL, 1], 1, [b"message", CHANNEL, b"x"], b"PONG"]
    assert connection.received == own


async def test_a_hung_master_pushes_after_it_resumes(
    master: FakeMaster, connection: Connection
) -> None:
    for ttl in (None, 1000):  # changed by another client, and expired
        connection.timed.clear()
        master.set("k", "v", ttl)
        await connection.look()
        master.hang()
        if ttl is None:
            master.set("k", "w")
        await asyncio.sleep(10)
        assert not connection.pushes
        resumed = now()
        master.resume()
        await asyncio.sleep(LATENCY)
        assert connection.pushes == [INVALIDATION]
        assert connection.timed[0][0] >= resumed + LATENCY / 2


async def test_a_reader_that_finds_a_key_expired_gets_no_push(
    master: FakeMaster, connection: Connection
) -> None:
    master.set("k", "v", 1000)
    await connection.look()
    master.hang()
    connection.transport.write(LOOK)
    await asyncio.sleep(10)
    master.resume()
    await asyncio.sleep(LATENCY)
    assert connection.replies[-1] is None
    assert not connection.pushes


async def test_an_expiry_is_pushed_a_tenth_of_a_second_late_or_at_an_access(
    master: FakeMaster, connection: Connection
) -> None:
    expires = now() + 3
    master.set("k", "v", 3000)
    await connection.look()
    master.hang()
    master.resume()  # the key is tracked as before
    await asyncio.sleep(4)
    [(at, push)] = connection.timed
    assert push == INVALIDATION
    assert at == pytest.approx(expires + 0.1 + LATENCY / 2)
    connection.timed.clear()
    master.set("k", "v", 3000)
    await connection.look()
    await asyncio.sleep(2.55)
    accessed = now()
    master.execute([b"GET", b"k"])
    await asyncio.sleep(LATENCY)
    assert connection.timed == [(accessed + LATENCY / 2, INVALIDATION)]


async def test_a_new_expiry_is_pushed_when_it_comes(
    master: FakeMaster, connection: Connection
) -> None:
    master.set("k", "v", 3000)
    await connection.look()
    master._keys[b"k"] = (b"v", now() + 60)
    await asyncio.sleep(59)
    assert not connection.pushes
    await asyncio.sleep(2)
    assert connection.pushes == [INVALIDATION]


async def test_only_a_tracked_key_that_expires_has_a_timer(
    master: FakeMaster, connection: Connection
) -> None:
    await asyncio.sleep(1)
    before = timers()
    master.set("k", "v", 60_000)
    master.set("endless", "v")
    connection.transport.write(GET + CACHING + pack(b"GET", b"endless"))
    await asyncio.sleep(LATENCY)
    assert timers() == before
    for _ in range(3):
        await connection.look()
    assert timers() == before + 1
    master.delete("k")
    await asyncio.sleep(LATENCY)
    assert timers() == before


@pytest.mark.parametrize("how", ["close", "cut", "kill"])
async def test_a_master_forgets_a_connection_that_has_ended(
    master: FakeMaster, connection: Connection, how: str
) -> None:
    before = timers()
    master.set("k", "v", 60_000)
    connection.transport.write(SUBSCRIBE)
    await connection.look()
    if how == "close":
        connection.transport.write(TRACKING + LOOK + SUBSCRIBE)  # still executed
        connection.transport.close()
    else:
        getattr(master, how)()
    await asyncio.sleep(LATENCY)
    assert timers() == before
    assert master.execute([b"PUBLISH", CHANNEL, b"x"]) == 0
    assert not master._pushes.remembered
    master.delete("k")
    master.flush()
    assert timers() == before, "no push is sent to it"
    await asyncio.sleep(LATENCY)
    assert connection.pushes == [[b"subscribe", CHANNEL, 1]]


async def test_a_flush_is_pushed_to_connections_that_track(
    master: FakeMaster, connection: Connection
) -> None:
    new = Connection()
    await new.dial(master)
    await new.look()
    assert "CACHING" in str(new.replies[0])
    master.set("k", "v")
    await connection.look()
    master.flush()
    master.set("k", "w")
    await asyncio.sleep(LATENCY)
    assert connection.pushes == [[b"invalidate", None]]
    assert not new.pushes
    assert master.keys == {"k": "w"}


# Commands


@pytest.mark.parametrize("command", ["CLIENT TRACKING ON OPTIN NOLOOP", "SUBSCRIBE x", "GET k"])
async def test_a_forbidden_command_is_refused(
    master: FakeMaster, connection: Connection, command: str
) -> None:
    words = command.encode().split()
    master.forbid = {command.split(maxsplit=1)[0]}
    connection.replies.clear()
    connection.transport.write(pack(*words) + commands.PING)
    await asyncio.sleep(LATENCY)
    assert str(connection.replies[0]).startswith("NOPERM ")
    assert connection.replies[1:] == [b"PONG"]
    master.forbid.clear()
    assert "NOPERM" not in str(master.execute(words))


async def test_the_clock_can_be_set_and_no_key_expires_earlier(master: FakeMaster) -> None:
    def clock() -> float:
        reply = master.execute([b"TIME"])
        assert isinstance(reply, list)
        seconds, us = reply
        assert len(us) <= 6
        return int(seconds) + int(us) / 1_000_000

    began = clock()
    await asyncio.sleep(1.25)
    assert clock() - began == pytest.approx(1.25, abs=1e-5)
    master.set("k", "v", 1000)
    master.clock_offset = -3600
    assert clock() - began == pytest.approx(1.25 - 3600, abs=1e-5)
    assert master.pttl("k") == 1000


@pytest.mark.parametrize("ttl", [0, -1])
async def test_a_key_needs_a_positive_ttl(master: FakeMaster, ttl: int) -> None:
    reply = execute(master, pack(b"SET", b"r", b"x", b"PX", b"%d" % ttl))
    assert isinstance(reply, Error)
    assert str(reply) == "ERR invalid expire time in 'set' command"
    assert master.keys == {}


async def test_queues_are_not_among_the_keys(master: FakeMaster) -> None:
    master.execute([b"SCRIPT", b"LOAD", scripts.ENQUEUE.text])
    entry = commands.QueueEntry(member=b"me/1", priority=1, lives=500, most=3, not_after=2**52)
    keys = (b"k", *commands.queue_keys(b"k"))
    granted = execute(master, commands.enqueue(keys, b"t", 1000, entry))
    assert isinstance(granted, list)
    assert granted[:2] == [0, 1000]
    assert master.keys == {"k": "t"}


async def test_a_restarted_master_has_forgotten_that_it_was_a_replica(master: FakeMaster) -> None:
    """As a server without persistence, whose replication id is a new one."""

    def info() -> ServerInfo:
        reply = master.execute([b"INFO"])
        assert isinstance(reply, bytes)
        return ServerInfo.parse(reply)

    master.replica_before, master.replid, master.fed = True, "7" * 40, 1_000
    before = info()
    assert (before.promoted, before.replid, before.fed) == (True, "7" * 8, 1_000)
    master.restart(uptime=5)
    after = info()
    assert (after.promoted, after.fed, after.uptime) == (False, 0, 5)
    assert after.run_id not in ("", before.run_id)
    assert master.replid != "7" * 40


SET = pack(b"SET", b"k", b"v")


async def test_requests_underway_are_lost_where_connections_are_cut(
    master: FakeMaster, connection: Connection
) -> None:
    connection.transport.write(SET)
    await asyncio.sleep(LATENCY / 4)
    master.cut()
    await asyncio.sleep(LATENCY)
    assert master.keys == {}
    await connection.dial(master)
    master.hang()
    connection.transport.write(SET)
    await asyncio.sleep(LATENCY)  # it has arrived, and is not served
    master.cut()
    master.resume()
    await asyncio.sleep(LATENCY)
    assert master.keys == {}
    await connection.dial(master)
    connection.transport.close()
    connection.transport.write(SET)
    await asyncio.sleep(LATENCY)
    assert master.keys == {}


async def test_requests_underway_of_a_connection_that_is_closed_are_served(
    master: FakeMaster, connection: Connection
) -> None:
    connection.transport.write(SET)
    connection.transport.close()
    await asyncio.sleep(LATENCY)
    assert master.keys == {"k": "v"}


@pytest.mark.parametrize("then", ["resume", "kill", "restart"])
async def test_a_client_that_connects_to_a_hung_master_waits_until_it_is_over(
    master: FakeMaster, then: str
) -> None:
    master.hang()
    dialling = asyncio.create_task(master.dial())
    await asyncio.sleep(60)
    assert not dialling.done()
    getattr(master, then)()
    if then == "kill":
        with pytest.raises(ConnectionRefusedError):
            await dialling
    else:
        await dialling
    assert now() == pytest.approx(60)


async def test_a_master_that_is_killed_while_it_hangs_says_nothing_of_before(
    master: FakeMaster, connection: Connection
) -> None:
    await connection.look()
    master.hang()
    master.set("k", "v")  # its push waits for `resume`
    assert len(master._held) == 1
    master.restart()
    assert not master._held
    assert master.keys == {}


async def test_a_restarted_master_has_no_scripts(master: FakeMaster) -> None:
    sha = master.execute([b"SCRIPT", b"LOAD", b"return 1"])
    assert isinstance(sha, bytes)
    assert master.execute([b"EVALSHA", sha, b"0"]) == 1
    master.restart()
    assert str(master.execute([b"EVALSHA", sha, b"0"])).startswith("NOSCRIPT")


async def test_an_error_is_the_answer_to_commands_about_locks_and_to_no_others(
    master: FakeMaster,
) -> None:
    sha = master.execute([b"SCRIPT", b"LOAD", b"return 1"])
    assert isinstance(sha, bytes)
    master.error = "OOM not today"
    for words in ([b"SET", b"k", b"v"], [b"EVALSHA", sha, b"0"], [b"delifeq", b"k", b"v"]):
        assert str(master.execute(words)) == "OOM not today"
    assert master.execute([b"PING"]) == b"PONG"
    assert isinstance(master.execute([b"INFO"]), bytes)
    master.error = ""
    assert master.execute([b"SET", b"k", b"v"]) == b"OK"


async def test_the_keys_are_those_of_locks_and_of_other_clients(master: FakeMaster) -> None:
    for key in (commands.MARKER, commands.DECLARED_SETS + b"x"):
        master.execute([b"SET", key, b"v"])
    master.set("k", "v")
    assert master.keys == {"k": "v"}
    assert master.marker == "v"


async def test_it_says_how_long_it_runs_and_how_many_replicas_it_has(master: FakeMaster) -> None:
    master.replicas = 1
    master.uptime = 5
    await asyncio.sleep(60)
    assert master.uptime == pytest.approx(65)
    reply = master.execute([b"INFO"])
    assert isinstance(reply, bytes)
    info = ServerInfo.parse(reply)
    assert (info.uptime, info.replicated) == (65, True)


@pytest.mark.parametrize("ttl", [None, 100])
async def test_a_scan_names_a_key_that_stays_whatever_ends_meanwhile(
    master: FakeMaster, ttl: int | None
) -> None:
    for number in range(100):
        master.set(f"ends{number}", "v", ttl)
    stay = {f"stays{number}" for number in range(100)}
    for key in stay:
        master.set(key, "v")
    scan = [b"MATCH", b"*", b"COUNT", b"60", b"TYPE", b"string"]
    named, steps, cursor = set[bytes](), 0, b""
    while cursor != b"0":
        reply = master.execute([b"SCAN", cursor or b"0", *scan])
        assert isinstance(reply, list)
        cursor, keys = reply
        named.update(keys)
        steps += 1
        await asyncio.sleep(1)
        if ttl is None:
            for number in range(100):
                master.delete(f"ends{number}")
    assert {key.encode() for key in stay} <= named
    assert steps >= 2


async def test_a_dead_master_can_not_hang(master: FakeMaster) -> None:
    """As a process that has ended can't be stopped: its port refuses connections."""
    master.kill()
    master.hang()
    with pytest.raises(ConnectionRefusedError):
        await master.dial()
    master.restart()
    await master.dial()


# Scripts

WITHOUT_LUPA = """
import sys
sys.modules["lupa"] = None
from redlock_aio.testing import EmbeddedMaster, FakeMaster, VirtualTimeLoop
VirtualTimeLoop().close()
try:
    FakeMaster()
except ImportError as error:
    print(error)
"""


def run(master: FakeMaster, text: str, *words: bytes, keys: int = 0) -> object:
    """Load a script and run it; return the reply."""
    sha = master.execute([b"SCRIPT", b"LOAD", text.encode()])
    assert isinstance(sha, bytes), sha
    return master.execute([b"EVALSHA", sha, b"%d" % keys, *words])


@pytest.mark.full
def test_only_the_fake_master_needs_lupa() -> None:
    shown = subprocess.run(
        [sys.executable, "-c", WITHOUT_LUPA], capture_output=True, text=True, check=True
    )
    assert "pip install '.[testing]' in the clone" in shown.stdout


async def test_a_script_has_the_keys_of_its_own_master() -> None:
    one, other = FakeMaster(), FakeMaster()
    text = "redis.call('SET', KEYS[1], ARGV[1]) return {#KEYS, #ARGV}"
    assert run(one, text, b"k", b"1", b"2", keys=1) == [1, 2]
    assert run(other, text, b"k", b"2", keys=1) == [1, 1]
    assert (one.keys, other.keys) == ({"k": "1"}, {"k": "2"})
    assert run(one, "return {#KEYS, #ARGV}") == [0, 0]


async def test_a_master_has_only_the_scripts_that_it_loaded() -> None:
    one, other = FakeMaster(), FakeMaster()
    sha = one.execute([b"SCRIPT", b"LOAD", b"return 'x'"])
    assert isinstance(sha, bytes)
    assert one.execute([b"EVALSHA", sha, b"0"]) == b"x"
    assert str(other.execute([b"EVALSHA", sha, b"0"])).startswith("NOSCRIPT")
    one.execute([b"SCRIPT", b"FLUSH"])
    assert str(one.execute([b"EVALSHA", sha, b"0"])).startswith("NOSCRIPT")


@pytest.mark.parametrize("last", ["return 1", "error('x')", "return {err = 'NO'}", "nonsense()"])
async def test_a_script_keeps_no_master_alive(last: str) -> None:
    master = FakeMaster()
    run(master, "redis.call('SET', 'k', 'v') " + last)
    assert master.keys == {"k": "v"}
    ended = weakref.ref(master)
    del master
    gc.collect()
    assert ended() is None


async def test_a_script_with_a_global_variable_fails() -> None:
    assert "global variable 'x'" in str(run(FakeMaster(), "x = 1"))
    assert "global variable 'x'" in str(run(FakeMaster(), "return x"))


async def test_a_defect_of_the_fake_is_no_reply(monkeypatch: pytest.MonkeyPatch) -> None:
    """A test must not pass because a command of the fake is broken."""

    def broken(*_: object) -> object:
        raise ZeroDivisionError

    monkeypatch.setattr(FakeMaster, "_do_get", broken)
    with pytest.raises(ZeroDivisionError):
        run(FakeMaster(), "return redis.pcall('GET', 'k')")
    monkeypatch.undo()
    assert run(FakeMaster(), "return redis.pcall('GET', 'k')") is None


@pytest.mark.parametrize("later", [0, 600])
def test_a_second_loop_goes_on_where_a_closed_one_has_ended(later: int) -> None:
    """As when one program crashes, with requests underway, and the next one begins."""
    master = FakeMaster(latency=LATENCY)

    async def crashed() -> None:
        await asyncio.sleep(later)
        master.set("old", "v", ttl=5_000)
        (await Connection().dial(master)).write(pack(b"SET", b"k", b"v"))

    async def next_one() -> None:
        connection = Connection()
        (await connection.dial(master)).write(GET)
        await asyncio.sleep(LATENCY)
        assert connection.replies == [b"v"]
        assert master.keys == {"old": "v", "k": "v"}
        await asyncio.sleep(5)
        assert master.keys == {"k": "v"}

    for work in (crashed, next_one):
        with contextlib.closing(VirtualTimeLoop()) as loop:
            loop.run_until_complete(work())
    assert master.keys == {"k": "v"}  # in no loop
    master.kill()
    assert master.keys == {}


def test_a_loop_that_goes_on_gets_its_replies_after_the_end_of_another_one() -> None:
    """As that of a manager for threads, while another one on the same master is closed."""
    master, connection = FakeMaster(latency=LATENCY), Connection()

    async def ask() -> None:
        (await connection.dial(master)).write(GET)
        await asyncio.sleep(LATENCY * 0.75)

    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        runner.run(ask())
        for _ in range(2):  # the second one finds that the loop of the first one is closed
            with contextlib.closing(VirtualTimeLoop()) as loop:
                loop.run_until_complete(Connection().dial(master))
        runner.run(asyncio.sleep(LATENCY))
    assert connection.replies == [None]


def test_a_loop_that_goes_on_is_not_kept_waiting_by_what_a_closed_one_has_sent() -> None:
    """The timers of that are gone with it, and there is no new connection."""
    master, connection = FakeMaster(latency=LATENCY), Connection()

    async def crash() -> None:
        transport = await Connection().dial(master)
        transport.write(GET)
        await asyncio.sleep(LATENCY * 0.75)  # the reply is underway
        transport.write(pack(b"SET", b"k", b"v"))

    async def ask() -> None:
        connection.transport.write(GET)
        await asyncio.sleep(LATENCY * 4)

    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        runner.run(connection.dial(master))
        with contextlib.closing(VirtualTimeLoop()) as loop:
            loop.run_until_complete(crash())
        runner.run(ask())
    assert connection.replies == [b"v"]


def test_what_is_underway_to_a_loop_does_not_wait_for_the_clock_of_another_one() -> None:
    """As beside a thread with a real loop, whose clock began when the machine did."""
    master, later, connection = FakeMaster(latency=LATENCY), Connection(), Connection()

    async def ask_later() -> None:
        transport = await later.dial(master)
        await asyncio.sleep(1_000)
        transport.write(GET)
        await asyncio.sleep(LATENCY / 4)

    async def ask() -> None:
        (await connection.dial(master)).write(GET)
        await asyncio.sleep(LATENCY)

    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        runner.run(ask_later())
        with contextlib.closing(VirtualTimeLoop()) as loop:
            loop.run_until_complete(ask())
        assert connection.replies == [None]
        runner.run(asyncio.sleep(LATENCY))
    assert later.replies == [None]


def test_what_is_set_before_a_loop_runs_has_all_of_its_time_in_the_first_one() -> None:
    """As in a test that is not async; the time of a real loop began with the machine."""
    master = FakeMaster()
    master.set("k", "v", ttl=60_000)
    master.uptime = 5
    assert (master.pttl("k"), master.uptime) == (60_000, 5)

    async def look() -> None:
        await Connection().dial(master)
        assert 0 < master.pttl("k") <= 60_000
        assert 5 <= master.uptime < 65

    asyncio.run(look())


async def test_a_thread_changes_it_without_the_loop_that_has_made_it(
    master: FakeMaster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That one has no clients, and may wait for the thread."""
    monkeypatch.setattr(_fake_commands, "PATIENCE", 0.1)
    master.set("k", "v")
    with ThreadPoolExecutor(1) as pool:
        pool.submit(master.set, "k", "w").result(10)
    assert master.keys == {"k": "w"}


@pytest.mark.parametrize("how", ["look at the keys", "execute", "serve", "notice", "flush"])
def test_a_master_is_used_by_one_thread_at_a_time(
    how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As by the managers of two programs for threads, each with a loop, and a test beside them."""
    master, connection = FakeMaster(latency=0), Connection()
    pool = ThreadPoolExecutor(1)
    others: list[Future[object]] = []

    def used(*_: object) -> tuple[None, float]:
        others.append(pool.submit(master.execute, [b"SET", b"other", b"v"]))
        assert not wait(others, timeout=0.05).done
        return None, float("inf")

    async def ask() -> None:
        (await connection.dial(master)).write(GET)
        await asyncio.sleep(0.01)

    class Read(bytes):
        def decode(self, *_: str) -> str:
            used()
            return "v"

    with pool:
        if how == "look at the keys":
            master.execute([b"SET", b"k", Read()])
            assert master.keys == {"k": "v"}
            master.delete("k")
        elif how == "flush":
            monkeypatch.setattr(master._pushes, "flushed", used)
            master.flush()
        else:
            monkeypatch.setattr(master._data, "find", used)
            if how == "execute":
                master.execute([b"GET", b"k"])
            elif how == "notice":
                master._notice(b"k")
            else:
                asyncio.run(ask())
                assert connection.replies == [None]
            monkeypatch.undo()
    assert [other.result() for other in others] == [b"OK"]
    assert master.keys == {"other": "v"}


async def test_a_client_in_another_loop_flushes_it_at_once(
    master: FakeMaster, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And does not wait for the loop of the last client, which may be busy."""
    monkeypatch.setattr(_fake_commands, "PATIENCE", 0.1)
    master.set("k", "v")

    async def flush() -> object:
        return master.execute([b"FLUSHALL"])

    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(asyncio.run, flush()).result(10) == b"OK"
    assert master.keys == {}
    await asyncio.sleep(LATENCY)
    assert connection.pushes == [[b"invalidate", None]]


async def test_a_thread_that_resumes_it_as_a_client_begins_to_wait_lets_that_connect(
    master: FakeMaster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client has seen that the master hangs, and does not wait yet."""
    master.hang()
    loop = asyncio.get_running_loop()
    make = loop.create_future

    def resumes() -> "asyncio.Future[object]":
        if now() >= LATENCY:  # not the one of the sleep before
            monkeypatch.undo()
            master.resume()
        return make()

    monkeypatch.setattr(loop, "create_future", resumes)
    async with asyncio.timeout(10):
        await master.dial()
    assert now() == pytest.approx(LATENCY)


def test_faults_and_changes_between_two_runs_of_a_loop_are_noticed_in_the_next() -> None:
    """As in a state machine of Hypothesis, which has a loop for all its steps."""
    master, connection = FakeMaster(latency=LATENCY), Connection()

    async def look() -> None:
        (await connection.dial(master)).write(TRACKING)
        master.set("k", "v", ttl=5_000)
        await connection.look()
        await asyncio.sleep(1)

    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        runner.run(look())
        master.hang()
        master.resume()
        assert connection.pushes == []
        runner.run(asyncio.sleep(6))
        assert connection.pushes == [INVALIDATION]
        runner.run(look())
    master.resume()  # nobody is left to hear of the key
    assert master.keys == {"k": "v"}
