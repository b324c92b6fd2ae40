"""
One pipelined connection to one master.

All commands of a process to a master use one connection, in order, and
replies are matched to them in that order. The laws of this file:

- A task that stops waiting abandons its reply, never the connection: the reply
  is still read, and matched to its command.
- Hence each command is executed after the ones that were sent before it. A
  release that follows an unanswered acquisition is safe only for this reason.
- No command is sent again, except one that did not run because the master has
  forgotten its script or lacks its command; and only if it may run late.

      send(a)  send(b)  send(c)
         │        │        │
         └────────┴────────┴───►  a b c  ──►  master
                                                │
      c.reply  b.reply  a.reply ◄── in order ───┘        pushes come between replies
"""

import asyncio
import contextlib
import os
import socket
import struct
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, cast

import hiredis

from redlock_aio._protocol import commands, replies, request, scripts
from redlock_aio._protocol.request import NoReply, QuarantineRule, Request, Sender, Subscription
from redlock_aio._protocol.tags import PLACEHOLDER
from redlock_aio._rules.causes import NoVoteCause
from redlock_aio._rules.quorum import Answer
from redlock_aio._rules.server_info import ServerInfo
from redlock_aio._transport.proof import Proof

MAX_PENDING = 10_000
"""
The most unanswered commands. Beyond this limit only questions of the transport, and
releases of commands that were sent before, are accepted.
"""

MAX_UNPARSED = 16 << 20
"""
The largest size in bytes of an unfinished reply; beyond it the connection is ended.

Genuine replies are far smaller: values of keys, which other programs may write, are cut by
the masters (`lock_value.SHOWN`), and the rest is written by this library. The limit bounds
the memory that a false server, or a foreign message to this client's channel, can use.
"""

_NOT_ENOUGH = object()
# TypeError and ValueError: Python has no form for the reply, such as a map with lists for keys.
# MemoryError: a list or a text is announced that would not fit.
_NONSENSE = (hiredis.ProtocolError, TypeError, ValueError, MemoryError)
_RARE = frozenset((_Error := hiredis.ReplyError, _Push := hiredis.PushNotification))
# SO_LINGER with a time of 0: close() drops unacknowledged data and sends a reset.
# Otherwise the kernel would go on retransmitting abandoned commands.
_NO_LINGER = struct.pack("ii", 1, 0)


class Question(Sender):
    """
    One command of the transport itself, such as ``INFO``, or several; await the *reply*.

    Args:
        number: The number of commands in *payload*. Their reply is the first one that failed,
            else the last one; it comes with the last one.
    """

    __slots__ = ("_failed", "_missing", "number", "payload", "reply")

    def __init__(self, payload: bytes, loop: asyncio.AbstractEventLoop, number: int = 1) -> None:
        self.payload = payload
        self.number = self._missing = number
        self.reply: asyncio.Future[object] = loop.create_future()
        self._failed: object = None

    def on_reply(self, _master: int, reply: object, /) -> None:
        self._missing -= 1
        if self._missing > 0:
            if self._failed is None and isinstance(reply, Exception | NoReply):
                self._failed = reply
        elif not self.reply.done():
            self.reply.set_result(reply if self._failed is None else self._failed)


LOADS = b"".join([script.load for script in scripts.SCRIPTS])
"""The commands that load all scripts."""


class MasterError(Exception):
    """
    A server was reached and must not vote; the text has the reason.

    Args:
        permanent: Whether it can't vote until a person changes something.
    """

    def __init__(self, cause: NoVoteCause, text: str, *, permanent: bool = False) -> None:
        super().__init__(text)
        self.cause: NoVoteCause = cause
        self.permanent: bool = permanent


class ReplicaError(MasterError):
    def __init__(self, info: ServerInfo, cause: NoVoteCause, text: str) -> None:
        super().__init__(cause, text)
        self.info = info


def _as_it_is(info: ServerInfo) -> ServerInfo:
    return info


def info_of(
    reply: object, identified: Callable[[ServerInfo], ServerInfo] = _as_it_is
) -> ServerInfo:
    """
    Parse the reply to ``INFO``; raise an error if the server can't vote.

    Args:
        identified: `Route.identified`.
    """
    if isinstance(reply, NoReply):
        raise ConnectionError(reply.detail)
    if isinstance(reply, Exception):
        raise MasterError(NoVoteCause.SERVER_ERROR, str(reply))
    if not isinstance(reply, bytes):
        text = f"INFO is answered with a {type(reply).__name__}"
        raise MasterError(NoVoteCause.UNSUPPORTED, text)
    info = identified(ServerInfo.parse(reply))
    if info.objection is not None:
        if info.objection[0] is NoVoteCause.NOT_A_MASTER:
            raise ReplicaError(info, *info.objection)
        raise MasterError(*info.objection, permanent=info.clustered or info.of_slot)
    return info


async def examined(
    reply: object,
    connection: "Connection",
    identified: Callable[[ServerInfo], ServerInfo] = _as_it_is,
) -> ServerInfo:
    """
    Parse the reply to ``INFO``, and ask for the time if that is not in it, as on Redis 6.0.

    The time is later than the rest then, by a round trip. So no quarantine becomes shorter.
    """
    info = info_of(reply, identified)
    if info.time is not None:
        return info
    (asked,) = connection.ask(commands.TIME)
    return replace(info, time=replies.time(await asked.reply))


_open: "weakref.WeakSet[Connection]" = weakref.WeakSet()
_of_the_parent: list[object] = []


def _detach() -> None:
    """
    Detach all connections in a forked child; nothing is sent to the masters.

    Otherwise a child that unwinds the parent's blocks would release the parent's
    locks. The transports are kept alive: to close them would remove the sockets
    from the epoll that the child shares with its parent.
    """
    _of_the_parent.extend(connection.detach() for connection in _open)
    _open.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_detach)


class Connection(asyncio.Protocol):
    """
    One connection, after redis-py has authenticated it.

    Args:
        number: That of the master, for *on_push*.

        condemn_after: The seconds without data after which the connection is ended
            while a reply is overdue.

        on_push: Called with that number and each push of the server.

        on_lost: Called once with cause and reason when the connection has ended, before the
            unanswered senders get their `NoReply`, oldest first.
    """

    __slots__ = (
        "__weakref__", "_condemn_after", "_keep", "_loaded", "_loop", "_number", "_on_lost",
        "_on_push", "_pending", "_reader", "_received", "_transport", "_unparsed", "_watch",
        "reason",
    )  # fmt: skip

    def __init__(
        self,
        number: int,
        loop: asyncio.AbstractEventLoop,
        *,
        condemn_after: float,
        on_push: Callable[[int, object], None],
        on_lost: Callable[[NoVoteCause, str], None],
    ) -> None:
        self._number = number
        self._loop = loop
        self._condemn_after = condemn_after
        self._on_push = on_push
        self._on_lost = on_lost
        self._transport: asyncio.Transport | None = None
        self._keep: object = None
        self._reader = hiredis.Reader(notEnoughData=_NOT_ENOUGH)
        self._pending: deque[Sender] = deque()
        self._received = 0
        self._unparsed = 0
        self._watch: asyncio.TimerHandle | None = None
        self._loaded: asyncio.Future[object] | None = None
        self.reason = ""

    def __repr__(self) -> str:
        state = f"ended: {self.reason}" if self._transport is None else "open"
        return f"<Connection {self._number}, {len(self._pending)} pending, {state}>"

    @property
    def pending(self) -> int:
        return len(self._pending)

    @property
    def received(self) -> int:
        return self._received

    @property
    def peer(self) -> str:
        """The IP address of the server; empty if it has none, or the connection has ended."""
        transport = self._transport
        name = None if transport is None else transport.get_extra_info("peername")
        return str(name[0]) if isinstance(name, tuple) else ""  # a Unix socket has a path

    def use(self, transport: asyncio.Transport, keep: object) -> None:
        """
        Use *transport* from now on; this connection becomes its protocol.

        Args:
            transport: Connected, with no data underway in either direction.

            keep: Kept alive as long as the connection: an owner of the transport
                that would close it when it is garbage-collected.
        """
        self._transport = transport
        self._keep = keep
        transport.set_protocol(self)
        _open.add(self)

    def send(self, payload: bytes, senders: Sequence[Sender], /) -> NoReply | None:
        """Send commands behind all earlier ones; return a `NoReply` if they were not sent."""
        transport = self._transport
        if transport is None:
            return NoReply(Answer.UNREACHABLE, self.reason)
        pending = self._pending
        if len(pending) + len(senders) > MAX_PENDING and not all(map(self._must_be_sent, senders)):
            self.overdue()
            return request.OVERRUN
        try:
            # One step, without an await between: the order of `_pending` is the order on the wire.
            pending.extend(senders)
            # A write has failed in this turn of the loop: `connection_lost` follows, and answers
            # all. asyncio logs a warning for each write from the sixth on.
            if not transport.is_closing():
                transport.write(payload)
        except BaseException:
            self._interrupted()
            raise
        return None

    def ask(self, *asked: bytes) -> tuple[Question, ...]:
        """Send commands of the transport in one write; on an ended connection they are answered."""
        questions = tuple([Question(command, self._loop) for command in asked])
        refused = self.send(b"".join(asked), questions)
        if refused is not None:
            # Otherwise a task that awaits the reply would wait for ever.
            for question in questions:
                question.on_reply(self._number, refused)
        self.overdue()
        return questions

    def load(self) -> asyncio.Future[object]:
        """
        Load the scripts, behind all earlier commands, unless that is underway.

        Returns:
            The reply; it is there already if the connection has ended.
        """
        if self._loaded is None or self._loaded.done():
            loads = Question(LOADS, self._loop, len(scripts.SCRIPTS))
            self._loaded = loads.reply
            refused = self.send(LOADS, [loads] * loads.number)
            if refused is not None:
                loads.reply.set_result(refused)  # as in `ask`
        return self._loaded

    def prove(self, proof: Proof) -> None:
        """
        Send *proof*; the replies to all commands that were sent before wait for it.

        Later commands need not wait: they are executed, and answered, behind it.
        """
        pending = self._pending
        # In place: `data_received`, which may be the caller, goes on with the same deque.
        for _ in range(len(pending)):
            sender = pending.popleft()
            counts = sender.in_quarantine is QuarantineRule.COUNT
            pending.append(sender if counts else proof.hold(sender))
        refused = self.send(proof.payload, proof.senders)
        if refused is not None:
            proof.on_reply(self._number, refused)
        self.overdue()

    def _must_be_sent(self, sender: Sender) -> bool:
        # Questions are few, and such releases no more than the commands that were sent
        # before. A release of a command that was not sent (*needless*) would add one for
        # each lock that the other masters grant while this master hangs.
        if sender.debt_ttl:
            return not sender.needless >> self._number & 1
        return isinstance(sender, Question | Proof)

    def data_received(self, data: bytes) -> None:
        received: list[object] = []
        nonsense: Exception | None = None
        try:
            try:
                self._received += 1
                self._reader.feed(data)
                # Not a comprehension: the replies before the nonsense are genuine, and stay here.
                received.extend(iter(self._reader.gets, _NOT_ENOUGH))
            except _NONSENSE as error:
                nonsense = error
            self._unparsed = 0 if received else self._unparsed + len(data)
            pending = self._pending
            number = self._number
            plain = _RARE.isdisjoint(map(type, received))
            for reply in received:
                if pending and (plain or type(reply) not in _RARE):
                    # This may run code of a lock, which may send more, or end this connection:
                    # `pending` is empty then, and the next reply ends the loop.
                    pending.popleft().on_reply(number, reply)
                elif type(reply) is _Push:
                    self._take_push(reply)
                elif pending:
                    self._take_error(cast("Exception", reply))
                else:  # also when a sender has ended this connection meanwhile
                    self.condemn(NoVoteCause.BAD_REPLY, "it sent a reply to no command")
                    return
        except BaseException:
            self._interrupted()
            raise
        if nonsense is not None:
            why = replies.harmless(str(nonsense)) or type(nonsense).__name__
            text = f"it does not speak the protocol: {why}"
            self.condemn(NoVoteCause.BAD_REPLY, text)
        elif self._unparsed > MAX_UNPARSED:
            text = f"it sent a reply of more than {MAX_UNPARSED} bytes"
            self.condemn(NoVoteCause.BAD_REPLY, text)

    def _interrupted(self) -> None:
        """
        End the connection: a Ctrl-C, or another signal handler that raises, has come between.

        The loop may be run again, as IPython does for the next input. Without this each command
        would then get the reply to another one: a refusal could count as a grant.
        """
        self.condemn(NoVoteCause.CLOSED, "the program was interrupted")

    def _take_push(self, push: object) -> None:
        # SUBSCRIBE has no reply of its own: the server confirms it by a push, at the place of
        # the reply. Any other push may come before the reply to any command.
        pending = self._pending
        kind = replies.confirmation(push)
        if not kind:
            self._on_push(self._number, push)
        elif (
            pending
            and isinstance(first := pending[0], Subscription)
            and first.is_confirmed_by(kind)
        ):
            pending.popleft().on_reply(self._number, push)

    def _take_error(self, reply: Exception) -> None:
        sender = self._pending.popleft()
        code = str(reply).partition(" ")[0]
        if code == "NOSCRIPT" and self._try_again(sender):
            return
        if replies.lacks_command(reply) and self._send_instead(sender):
            return
        sender.on_reply(self._number, reply)
        if code in ("READONLY", "NOAUTH"):
            # The server is a replica now, or has lost the login: connect and examine it again.
            cause = NoVoteCause.LOGIN_REFUSED if code == "NOAUTH" else NoVoteCause.NOT_A_MASTER
            self.condemn(cause, replies.harmless(str(reply)))
        elif code == "NOPERM" and sender.payload is LOADS:
            # Each command would send the scripts again, in vain.
            self.condemn(NoVoteCause.FORBIDDEN, replies.harmless(str(reply)))

    def _try_again(self, sender: Sender) -> bool:
        """
        Load the scripts after NOSCRIPT; return True if *sender* will still be answered.

        A release has not run, and is sent again behind the scripts, but only once: the
        server may forget them again. An extension is not sent again: it would run after
        a later extension, and could undo its effect.
        """
        # After SCRIPT FLUSH or a failover every command underway gets NOSCRIPT. The first of
        # them sends the scripts; the others find that load underway and wait behind it.
        self.load()
        if not sender.debt_ttl or sender.is_repeated:
            return False
        # The repetition runs later than the release was sent. That is safe: it deletes only
        # the value of its own token, and no acquisition uses a token twice.
        # A release also reads the holder's key; a waiter needs that read to be tracked.
        caching = Question(commands.CACHING, self._loop)
        again = Request(
            sender.payload,
            sender.on_reply,
            debt_ttl=sender.debt_ttl,
            needless=sender.needless,
            in_quarantine=sender.in_quarantine,
        )
        again.is_repeated = True
        return self.send(caching.payload + again.payload, [caching, again]) is None

    def _send_instead(self, sender: Sender) -> bool:
        """Send the alternative of *sender*'s command; return True if *sender* will be answered."""
        # It is executed behind all that was sent since. For a release that is safe, as above.
        other = sender.instead(self._number)
        return other is not None and self.send(other.payload, [other]) is None

    def detach(self) -> tuple[object, object]:
        """Detach from the parent's transport; return the objects that must be kept alive."""
        left = self._transport, self._keep
        self._transport = self._keep = None
        self.reason = "it belongs to the parent process"
        return left

    def overdue(self) -> None:
        """Called when a reply is overdue: end the connection if no data follows."""
        if self._watch is None and self._transport is not None:
            self._watch = self._loop.call_later(self._condemn_after, self._judge, self._received)

    def _judge(self, received: int) -> None:
        # A slow master is not a dead one: any data since the timer was set, even the reply to
        # another command, proves that it answers. Ending its connection would lose the replies
        # to all commands behind the overdue one.
        self._watch = None
        if not self._pending:
            return
        if self._received == received:
            self.condemn(NoVoteCause.SILENT, f"silent for {self._condemn_after * 1000:.0f} ms")
        else:
            self.overdue()

    def condemn(self, cause: NoVoteCause, reason: str) -> None:
        """End the connection now with a reset; data that was not sent is dropped."""
        transport = self._transport
        if transport is None:
            return
        if self._loop.is_closed():
            self.abandon()
            return
        raw = transport.get_extra_info("socket")
        if raw is not None:
            # An error means that the socket is closed already.
            with contextlib.suppress(OSError):
                raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _NO_LINGER)
        # `abort` calls `connection_lost` in the next turn. Until then commands would be written to
        # a connection that drops them, and the master would count as up. So the connection ends
        # here, and `connection_lost` finds nothing to do.
        transport.abort()
        self._end(cause, reason)

    def close(self) -> None:
        """End the connection; unlike `condemn`, data in the kernel's buffer is still delivered."""
        transport = self._transport
        if transport is None:
            return
        if self._loop.is_closed():
            self.abandon()
            return
        if transport.get_write_buffer_size():
            self.condemn(NoVoteCause.CLOSED, "closed")
            return
        if transport.get_extra_info("sslcontext") is None:
            transport.close()
        else:  # the kernel has all data; a TLS close would wait for the server's reply
            transport.abort()
        self._end(NoVoteCause.CLOSED, "closed")

    def abandon(self) -> None:
        """End the connection of a closed event loop; no callback is called."""
        transport, self._transport = self._transport, None
        self._keep = None
        self.reason = "its event loop was closed"
        _open.discard(self)
        if transport is None:
            return
        with contextlib.suppress(RuntimeError):  # abort() needs a callback of the closed loop
            transport.abort()
        # The transport would close its socket in a turn of that loop, which never comes.
        # shutdown() on a duplicate ends the connection for both sides, and the transport's
        # own socket stays open until the transport closes it.
        raw = transport.get_extra_info("socket")
        with contextlib.suppress(OSError):
            if raw is not None and raw.fileno() >= 0:
                # Not by `os.dup`: on Windows the number of a socket is no file descriptor.
                with socket.fromfd(raw.fileno(), raw.family, raw.type) as copy:
                    copy.shutdown(socket.SHUT_RDWR)

    def connection_lost(self, exc: Exception | None) -> None:
        reason = replies.harmless(str(exc)) if exc else "it closed the connection"
        self._end(NoVoteCause.DISCONNECTED, reason)

    def _end(self, cause: NoVoteCause, reason: str) -> None:
        if self._transport is None:
            return
        self._transport = None
        self._keep = None
        _open.discard(self)
        self.reason = reason
        if self._watch is not None:
            self._watch.cancel()
            self._watch = None
        # First the master goes down, then its senders get their replies. Otherwise a task that
        # tries again at once would send on this connection, or count on this master's vote.
        unanswered = list(self._pending)
        self._pending.clear()
        self._on_lost(cause, reason)
        no_reply = NoReply(Answer.UNREACHABLE, reason)
        for sender in unanswered:
            sender.on_reply(self._number, no_reply)


class TaggedConnection(Connection):
    """
    A connection to a master of a Redis Cluster, whose keys have a tag.

    Args:
        tag: Replaces the placeholder in all that is sent, and is replaced by it in pushes.
    """

    __slots__ = ("_tag",)

    def __init__(self, *args: Any, tag: bytes, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._tag = tag

    def send(self, payload: bytes, senders: Sequence[Sender], /) -> NoReply | None:
        return Connection.send(self, payload.replace(PLACEHOLDER, self._tag), senders)

    def _take_push(self, push: object) -> None:
        super()._take_push(replies.restored(push, self._tag))

    def _take_error(self, reply: Exception) -> None:
        # Another node owns the slot. All senders underway get a `NoReply`: an error would say
        # that the refusal is for good. ASK and TRYAGAIN, while the slot moves, and CLUSTERDOWN
        # are errors like others. The node to which ASK points is not asked.
        if str(reply).startswith("MOVED "):
            self.condemn(NoVoteCause.FAILOVER, replies.harmless(str(reply)))
        else:
            super()._take_error(reply)
