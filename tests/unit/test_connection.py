"""One connection, the order of its replies and its end, against a transport in memory."""

import asyncio
import errno
import functools
import gc
import itertools
import os
import socket
from collections.abc import Callable, Iterator

import pytest

from redlock_aio import Answer, NoVoteCause
from redlock_aio._protocol import commands, request
from redlock_aio._protocol.primitives import Mutex
from redlock_aio._protocol.request import NoReply, Subscription
from redlock_aio._protocol.scripts import RELEASE, SCRIPTS
from redlock_aio._transport import connection as module
from redlock_aio._transport.connection import MAX_UNPARSED, Connection, Question
from redlock_aio._transport.proof import Proof

from .kit import interrupted

NUMBER = 3
"""The number of the master."""

NOSCRIPT = b"-NOSCRIPT No matching script.\r\n"
LOADS = b"".join(script.load for script in SCRIPTS)
LOADED = b"$1\r\nx\r\n" * len(SCRIPTS)


class Transport(asyncio.Transport):
    """Records the data that is written."""

    def __init__(self) -> None:
        super().__init__()
        self.writes: list[bytes] = []
        self.ended = ""
        self.buffered = 0
        self.socket: socket.socket | None = None

    def get_extra_info(self, name: str, default: object = None) -> object:
        return self.socket if name == "socket" else default

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self.protocol = protocol

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.writes.append(bytes(data))

    def get_write_buffer_size(self) -> int:
        return self.buffered

    def is_closing(self) -> bool:
        return bool(self.ended)

    def close(self) -> None:
        self.ended = "closed"

    def abort(self) -> None:
        self.ended = "aborted"


class Request(request.Sender):
    """A sender that records its replies."""

    needless = 0
    in_quarantine = request.QuarantineRule.COUNT

    def __init__(
        self, payload: bytes = commands.PING, debt_ttl: int = 0, needless: int = 0
    ) -> None:
        self.payload = payload
        self.needless = needless
        self.debt_ttl = debt_ttl
        self.replies: list[object] = []

    def on_reply(self, master: int, reply: object, /) -> None:
        assert master == NUMBER
        self.replies.append(reply)


@pytest.fixture
async def transport() -> Transport:
    return Transport()


@pytest.fixture
async def lost() -> list[str]:
    return []


def connected(transport: Transport, lost: list[str]) -> Connection:
    made = Connection(
        NUMBER,
        asyncio.get_running_loop(),
        condemn_after=1.0,
        on_push=lambda *_: None,
        on_lost=lambda _cause, reason: lost.append(reason),
    )
    made.use(transport, None)
    return made


@pytest.fixture
async def connection(transport: Transport, lost: list[str]) -> Connection:
    return connected(transport, lost)


def send(connection: Connection, senders: int) -> list[Request]:
    made = [Request() for _ in range(senders)]
    for sender in made:
        assert connection.send(sender.payload, [sender]) is None
    return made


# Replies.


async def test_replies_reach_their_senders_in_order(connection: Connection) -> None:
    """Replies may arrive in any pieces, and with pushes in between."""
    senders = send(connection, 4)
    data = b"+OK\r\n_\r\n>2\r\n+invalidate\r\n_\r\n:1\r\n-ERR no\r\n"
    for i in range(len(data)):
        connection.data_received(data[i : i + 1])
    assert [sender.replies[0] for sender in senders[:3]] == [b"OK", None, 1]
    assert str(senders[3].replies[0]) == "ERR no"
    assert connection.pending == 0


@pytest.fixture
def without_garbage_collection() -> Iterator[None]:
    """Else code that runs when objects of before end could be interrupted instead."""
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("without_garbage_collection")
@pytest.mark.parametrize("sending", [False, True], ids=["receiving", "sending"])
async def test_an_interrupt_leaves_no_command_with_the_reply_to_another(*, sending: bool) -> None:
    """A signal handler may raise at any line, and the loop be run again, as by IPython."""

    def interrupt() -> None:
        raise KeyboardInterrupt

    for place in itertools.count():
        transport, lost = Transport(), list[str]()
        connection = connected(transport, lost)
        senders = [Request(b"%d" % number) for number in range(3)]
        use: Callable[[], object] = functools.partial(connection.send, b"012", senders)
        if not sending:
            connection.send(b"012", senders)
            use = functools.partial(connection.data_received, b"+0\r\n+1\r\n+2\r\n")
        try:
            if not interrupted(use, place, interrupt):
                break
        except KeyboardInterrupt:
            pass
        senders.append(Request(b"3"))
        connection.send(b"3", senders[3:])
        sent = b"".join(transport.writes)[3 * connection.received :]
        connection.data_received(b"".join(b"+%c\r\n" % number for number in sent))
        for sender in senders:
            assert sender.replies in ([], [sender.payload]) or lost, place
    assert place > 10


async def test_large_replies_end_nothing_below_the_bound_for_one(
    connection: Connection, transport: Transport, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No command of this library has such a reply, but a large reply must not end leases."""
    value = b"x" * (2 << 20)
    monkeypatch.setattr(module, "MAX_UNPARSED", len(value) + 100)
    senders = send(connection, 3)
    data = b"$%d\r\n%b\r\n" % (len(value), value) * 2 + b"+OK\r\n"
    for start in range(0, len(data), 1 << 16):
        connection.data_received(data[start : start + (1 << 16)])
    assert [sender.replies for sender in senders] == [[value], [value], [b"OK"]]
    assert not transport.ended


async def test_a_reply_without_an_end_is_ended_whatever_pieces_it_comes_in(
    connection: Connection, transport: Transport, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_UNPARSED", 1_000)
    send(connection, 2)
    connection.data_received(b"+OK\r\n$99999999\r\n" + b"x" * 900)
    ended = []
    for _ in range(11):
        connection.data_received(b"x" * 100)
        ended.append(transport.ended)
    assert ended == [*[""] * 10, "aborted"], "what came with a whole reply is not counted"


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"!garbage\r\n", "does not speak the protocol"),
        (b"%1\r\n*1\r\n:1\r\n:1\r\n", "does not speak the protocol"),
        (b"+OK\r\n%1\r\n*1\r\n:1\r\n:1\r\n", "does not speak the protocol"),
        (b"+OK\r\n+OK\r\n", "to no command"),
        (b"$99999999\r\n" + b"x" * (MAX_UNPARSED + 1), f"more than {MAX_UNPARSED} bytes"),
        (b"-READONLY You can't write\r\n", "READONLY You can't write"),
        (b"-NOAUTH Authentication required.\r\n", "NOAUTH Authentication required."),
    ],
    ids=lambda value: value.decode("ascii")[:20] if isinstance(value, bytes) else "",
)
async def test_a_server_that_must_not_be_used_is_condemned(
    connection: Connection, transport: Transport, lost: list[str], data: bytes, reason: str
) -> None:
    (sender,) = send(connection, 1)
    connection.data_received(data)
    assert transport.ended == "aborted"
    assert reason in lost[0]
    (reply,) = sender.replies
    assert isinstance(reply, NoReply | bytes) or str(reply) == reason


async def test_a_reply_that_is_announced_as_larger_than_the_memory_ends_the_connection(
    connection: Connection, transport: Transport, lost: list[str]
) -> None:
    """A list of four billion elements, by a broken server: asyncio would log a traceback."""

    class Announced:
        def feed(self, data: bytes) -> None:
            pass

        def gets(self) -> object:
            raise MemoryError

    connection._reader = Announced()  # type: ignore[assignment]
    (sender,) = send(connection, 1)
    connection.data_received(b"*4294967290\r\n")
    assert transport.ended == "aborted"
    assert lost == ["it does not speak the protocol: MemoryError"]
    assert sender.replies == [NoReply(Answer.UNREACHABLE, lost[0])]


async def test_replies_before_nonsense_reach_their_senders(
    connection: Connection, transport: Transport, lost: list[str]
) -> None:
    """They are granted votes: a lock that was won by them must not be taken for a lost one."""
    first, second, third = send(connection, 3)
    connection.data_received(b"+OK\r\n:1\r\n%1\r\n*1\r\n:1\r\n:1\r\n+OK\r\n")
    assert transport.ended == "aborted"
    assert "does not speak the protocol" in lost[0]
    assert [first.replies, second.replies] == [[b"OK"], [1]]
    assert third.replies == [NoReply(Answer.UNREACHABLE, lost[0])]


async def test_the_confirmation_of_a_subscription_takes_the_place_of_its_reply(
    connection: Connection,
) -> None:
    """An error may take it as well; either way the later replies reach their own senders."""
    before, behind, last = (Request(commands.look(b"k%d" % i)) for i in range(3))
    begins = Subscription(commands.subscription(b"c", begins=True))
    ends = Subscription(commands.subscription(b"c", begins=False))
    asked: list[request.Sender] = [before, begins, behind, ends, last]
    connection.send(b"".join(sender.payload for sender in asked), asked)
    subscribed = b">3\r\n$9\r\nsubscribe\r\n$1\r\nc\r\n:1\r\n"
    connection.data_received(subscribed)  # its position has not come yet
    connection.data_received(b":1\r\n" + subscribed + b":2\r\n-NOPERM no\r\n:3\r\n")
    assert [sender.replies for sender in (before, behind, last)] == [[1], [2], [3]]
    assert connection.pending == 0
    connection.data_received(subscribed)
    assert not connection.reason


async def test_the_end_of_a_subscription_is_no_confirmation_of_a_new_one(
    connection: Connection,
) -> None:
    """A node of a Cluster says it by itself when a slot moves away; the error is the reply."""
    key = b"{0001}r"
    sharded = [
        commands.subscription(b"c", begins=begins, key=key, sharded=True)
        for begins in (True, False)
    ]
    last = Request(commands.look(b"k"))
    asked: list[request.Sender] = [*map(Subscription, sharded), last]
    connection.send(b"".join(sender.payload for sender in asked), asked)
    ended = b">3\r\n$12\r\nsunsubscribe\r\n$1\r\nc\r\n:0\r\n"
    connection.data_received(ended)
    assert connection.pending == 3
    connection.data_received(b">3\r\n$10\r\nssubscribe\r\n$1\r\nc\r\n:1\r\n" + ended + b":3\r\n")
    assert last.replies == [3]
    assert connection.pending == 0
    assert not connection.reason


# Scripts that a server does not have.


async def test_releases_after_noscript_are_sent_again_behind_the_scripts(
    connection: Connection, transport: Transport
) -> None:
    senders = [Request(commands.release(b"r", b"t%d" % i), debt_ttl=9) for i in range(3)]
    for sender in senders:
        connection.send(sender.payload, [sender])
    connection.data_received(NOSCRIPT * 3)
    # Without the command before it a waiter would not be notified of a change.
    again = b"".join(commands.CACHING + sender.payload for sender in senders)
    assert b"".join(transport.writes[3:]) == LOADS + again
    connection.data_received(LOADED + b"+OK\r\n:1\r\n+OK\r\n:0\r\n+OK\r\n:1\r\n")
    assert [sender.replies for sender in senders] == [[1], [0], [1]]


async def test_repeated_noscript_is_an_error(
    connection: Connection,
) -> None:
    sender = Request(commands.release(b"r", b"t"), debt_ttl=9)
    connection.send(sender.payload, [sender])
    connection.data_received(NOSCRIPT)
    connection.data_received(LOADED + b"+OK\r\n" + NOSCRIPT)
    assert [str(reply) for reply in sender.replies] == ["NOSCRIPT No matching script."]
    assert RELEASE.sha in sender.payload


async def test_an_extension_after_noscript_is_not_sent_again(
    connection: Connection, transport: Transport
) -> None:
    sender = Request(commands.extend(Mutex(b"r").extension(b"t", 5)))
    connection.send(sender.payload, [sender])
    connection.data_received(NOSCRIPT)
    assert [str(reply) for reply in sender.replies] == ["NOSCRIPT No matching script."]
    assert transport.writes[1] == LOADS


async def test_a_repeated_release_whose_reply_is_held_back_is_not_sent_a_third_time(
    connection: Connection, transport: Transport
) -> None:
    sender = Request(commands.release(b"r", b"t"), debt_ttl=9)
    sender.in_quarantine = request.QuarantineRule.COUNT_IF_FOUND
    connection.send(sender.payload, [sender])
    connection.data_received(NOSCRIPT)
    connection.prove(Proof([commands.PING], lambda _replies: None))
    connection.data_received(LOADED + b"+OK\r\n" + NOSCRIPT)
    assert sender.replies == []
    assert b"".join(transport.writes).count(RELEASE.sha) == 2
    connection.data_received(LOADED + b"+PONG\r\n")
    assert [str(reply) for reply in sender.replies] == ["NOSCRIPT No matching script."]


async def test_what_is_sent_instead_of_a_command_has_its_replies_altered_too(
    connection: Connection, transport: Transport
) -> None:
    """So a quarantined master without ``DELIFEQ`` gets the script, and a missing key is no loss."""
    unknown, lacking = b"-ERR unknown command 'DELIFEQ'\r\n", NoReply(Answer.QUARANTINED)

    class Freeing(Request):
        in_quarantine = request.QuarantineRule.COUNT_IF_FOUND

        def instead(self, _master: int) -> request.Sender:
            return request.Request(
                commands.release(b"r", b"t"), self.on_reply, in_quarantine=self.in_quarantine
            )

    def alter(original: request.Sender, master: int, reply: object) -> None:
        original.on_reply(master, original.counted(reply, lacking))

    senders = [Freeing(commands.PING, debt_ttl=9) for _ in range(2)]
    connection.send(commands.PING * 2, [request.Altered(sender, alter) for sender in senders])
    connection.data_received(unknown * 2)
    assert b"".join(transport.writes[1:]) == commands.release(b"r", b"t") * 2
    connection.data_received(b":0\r\n:1\r\n")
    assert [sender.replies for sender in senders] == [[lacking], [1]]


# The end.


async def test_nothing_is_written_after_a_write_has_failed(
    connection: Connection, transport: Transport
) -> None:
    """asyncio would log a warning for each, and tells of the end in a later turn of the loop."""
    sent = send(connection, 1)
    transport.abort()
    sent += send(connection, 20)
    assert len(transport.writes) == 1
    connection.connection_lost(BrokenPipeError("Broken pipe"))
    assert [one.replies for one in sent] == [[NoReply(Answer.UNREACHABLE, "Broken pipe")]] * 21


@pytest.mark.promise("S3")
async def test_the_end_reaches_all_senders_without_a_reply(
    connection: Connection, lost: list[str]
) -> None:
    first, second = send(connection, 2)
    connection.data_received(b"+PONG\r\n")
    connection.connection_lost(ConnectionResetError("reset by peer"))
    connection.connection_lost(None)
    assert lost == ["reset by peer"]
    assert first.replies == [b"PONG"]
    unreachable = NoReply(Answer.UNREACHABLE, "reset by peer")
    assert second.replies == [unreachable]
    assert connection.send(commands.PING, [Request()]) == unreachable
    assert repr(connection) == "<Connection 3, 0 pending, ended: reset by peer>"


async def test_a_connection_is_condemned_when_it_is_silent_after_the_last_data(
    connection: Connection, transport: Transport, lost: list[str]
) -> None:
    send(connection, 2)
    connection.overdue()
    connection.overdue()
    await asyncio.sleep(0.5)
    connection.data_received(b"+PONG\r\n")
    await asyncio.sleep(1.4)
    assert not lost
    await asyncio.sleep(0.2)
    assert transport.ended == "aborted"
    assert lost == ["silent for 1000 ms"]


async def test_a_slow_or_idle_connection_is_not_condemned(
    connection: Connection, lost: list[str]
) -> None:
    send(connection, 9)
    for _ in range(9):
        connection.overdue()
        await asyncio.sleep(0.9)
        connection.data_received(b"+PONG\r\n")
    await asyncio.sleep(5)
    assert not lost


@pytest.mark.promise("S3")
async def test_more_than_can_be_answered_is_refused_except_releases(
    connection: Connection, transport: Transport, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_PENDING", 5)
    send(connection, 5)
    assert connection.send(commands.PING, [Request()]) is request.OVERRUN
    release, needless = Request(debt_ttl=5), Request(debt_ttl=5, needless=1 << NUMBER)
    assert connection.send(commands.PING, [needless]) is request.OVERRUN
    assert connection.send(commands.PING * 2, [release, needless]) is request.OVERRUN
    assert connection.send(commands.PING, [release]) is None
    loop = asyncio.get_running_loop()
    assert connection.send(commands.PING, [Question(commands.PING, loop)]) is None
    await asyncio.sleep(1.1)
    assert transport.ended == "aborted"  # it did not reply for long, too


async def test_a_connection_that_has_ended_can_be_abandoned(
    connection: Connection, transport: Transport, lost: list[str]
) -> None:
    """A Sentinel's may end shortly before its event loop is closed."""
    connection.condemn(NoVoteCause.SILENT, "silent")
    connection.abandon()
    assert (transport.ended, lost) == ("aborted", ["silent"])


async def test_an_abandoned_connection_ends_where_sockets_are_no_file_descriptors(
    connection: Connection, transport: Transport, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on Windows; the transport can't close its socket any more when its loop is closed."""

    def dup(_file: int, /) -> int:
        raise OSError(errno.EBADF, "bad file descriptor")

    transport.socket, master = socket.socketpair()
    with transport.socket, master:
        monkeypatch.setattr(os, "dup", dup)
        connection.abandon()
        master.setblocking(False)
        assert master.recv(1) == b""


@pytest.mark.promise("S1")
async def test_a_forked_child_sends_nothing_to_its_parents_masters(
    connection: Connection, transport: Transport, lost: list[str]
) -> None:
    send(connection, 1)
    child = os.fork()
    if not child:
        code = 1
        try:
            refused = connection.send(commands.PING, [Request()])
            connection.close()
            connection.condemn(NoVoteCause.CLOSED, "")
            connection.abandon()
            done = (len(transport.writes), transport.ended, len(lost))
            code = 0 if refused is not None and done == (1, "", 0) else 2
        finally:
            os._exit(code)
    _, status = os.waitpid(child, 0)  # noqa: ASYNC222 - it ends at once
    assert os.waitstatus_to_exitcode(status) == 0
    assert connection.send(commands.PING, [Request()]) is None


@pytest.mark.parametrize(("buffered", "ended"), [(0, "closed"), (9, "aborted")])
async def test_closing_does_not_wait_for_a_server_that_reads_nothing(
    connection: Connection, transport: Transport, buffered: int, ended: str
) -> None:
    send(connection, 1)
    transport.buffered = buffered
    connection.close()
    connection.close()
    assert transport.ended == ended
    assert transport.writes == [commands.PING]
