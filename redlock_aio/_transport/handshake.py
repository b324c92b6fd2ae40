"""Interprets the replies of a server during its examination: INFO, its marker, its errors."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple, TypeVar

from redis.exceptions import (
    AuthenticationError,
    AuthorizationError,
    NoPermissionError,
    ResponseError,
)

from redlock_aio._protocol import commands, replies
from redlock_aio._protocol.request import NoReply, QuarantineRule, Request, Sender
from redlock_aio._rules import display
from redlock_aio._rules.causes import NoVoteCause
from redlock_aio._rules.marker import Marker, milliseconds
from redlock_aio._rules.quorum import Answer
from redlock_aio._rules.server_info import ServerInfo
from redlock_aio._transport.connection import Connection, Question

M = TypeVar("M", Marker, Marker | None)


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
    """A server was reached that is a replica."""

    def __init__(self, info: ServerInfo, cause: NoVoteCause, text: str) -> None:
        super().__init__(cause, text)
        self.info = info


class UnconfirmedError(ConnectionError):
    """No server was dialled, because too few Sentinels confirm one."""


FROM_SERVER = (MasterError, ResponseError, AuthenticationError, AuthorizationError)
"""The errors of a connection attempt that a server has caused by its replies."""


class FailedConnection(NamedTuple):
    """The vote of a master to which no connection was made, and its cause."""

    no_reply: NoReply
    cause: NoVoteCause


def info_of(reply: object) -> ServerInfo:
    """
    Parse the reply to ``INFO``.

    Raises:
        ConnectionError: There is no reply.

        MasterError: The reply is an error or malformed, or the server must not vote.
    """
    if isinstance(reply, NoReply):
        raise ConnectionError(reply.detail)
    if isinstance(reply, Exception):
        raise MasterError(NoVoteCause.SERVER_ERROR, str(reply))
    if not isinstance(reply, bytes):
        text = f"INFO is answered with a {type(reply).__name__}"
        raise MasterError(NoVoteCause.UNSUPPORTED, text)
    info = ServerInfo.parse(reply)
    if info.objection is not None:
        if info.objection[0] is NoVoteCause.NOT_A_MASTER:
            raise ReplicaError(info, *info.objection)
        raise MasterError(*info.objection, permanent=info.clustered)
    return info


async def examined(reply: object, connection: Connection) -> ServerInfo:
    """
    Parse the reply to ``INFO``, and ask for the time if that is not in it, as on Redis 6.0.

    The time is later than the rest then, by a round trip. So no quarantine becomes shorter.

    Raises:
        ConnectionError, MasterError: As `info_of`.

    Cancellation:
        The reply to the second question is ignored.
    """
    info = info_of(reply)
    if info.time is not None:
        return info
    asked = Question(commands.TIME, asyncio.get_running_loop())
    if connection.send(asked.payload, [asked]) is not None:
        return info  # the connection has ended, which the caller will notice
    connection.overdue()
    return replace(info, time=replies.time(await asked.reply))


def marker_of(reply: object) -> Marker | None:
    """
    Return the marker in the reply to `commands.LOOK`, ``None`` if the master has none.

    Raises:
        ConnectionError: There is no reply.

        MasterError: The reply is an error.
    """
    if isinstance(reply, NoReply):
        raise ConnectionError(reply.detail)
    if isinstance(reply, Exception):
        if str(reply).startswith("NOPERM"):
            raise forbidden(reply)
        raise MasterError(NoVoteCause.SERVER_ERROR, str(reply))
    return read_marker(reply)


def read_marker(reply: object) -> Marker | None:
    """Return the marker in a reply; ``None`` for any other reply."""
    # The reply of GETRANGE for a missing key is an empty string.
    return Marker.parse(reply if isinstance(reply, bytes) and reply else None)


def carried(marker: M, outlives: float) -> M:
    """Return *marker* with *outlives* seconds added to the quarantine in it."""
    if marker is None or not marker.lasts or not outlives:
        return marker
    return replace(marker, lasts=marker.lasts + round(outlives * 1000))


def must_carry(marker: Marker | None, lasts: float, error: Exception) -> None:
    """
    Raise unless *marker* carries a quarantine of *lasts* seconds or more.

    Called when the master refused a new marker. After its restart, programs with a shorter
    *max_ttl* would otherwise not wait until the leases of this program are over.
    """
    if marker is None or marker.lasts < milliseconds(lasts):
        text = f"its marker can't be written: {error}"
        raise MasterError(NoVoteCause.SERVER_ERROR, text)


def is_forbidden(reply: object) -> bool:
    """Return whether the access list (ACL) of a master forbids a command or a script's calls."""
    text = str(reply) if isinstance(reply, Exception) else ""
    return any(words in text for words in ("NOPERM", "ACL failure", "executing the script can't"))


def forbidden(error: Exception) -> MasterError:
    """Return the error that names the rights that a server with the reply *error* must grant."""
    return MasterError(
        NoVoteCause.FORBIDDEN,
        f"the restart guard must GETRANGE and SET the key {commands.MARKER.decode()}, or be off"
        f' (restart_guard="off"): {error}',
    )


def muted(sender: Sender, no_reply: NoReply) -> Request:
    """Wrap the request of *sender* for a quarantined master: most replies count as *no_reply*."""
    return Request(
        sender.payload,
        lambda master, reply: sender.on_reply(master, sender.counted(reply, no_reply)),
        debt_ttl=sender.debt_ttl,
        needless=sender.needless,
        in_quarantine=sender.in_quarantine,
    )


def mute(
    send: Callable[[bytes, Sequence[Sender]], NoReply | None],
    payload: bytes,
    senders: Sequence[Sender],
    no_reply: NoReply,
) -> NoReply | None:
    """
    Send commands to a master without a vote; return *no_reply* if one must not be sent there.

    Args:
        no_reply: The vote of the master, with the reason.
    """
    if any(sender.in_quarantine is QuarantineRule.REFUSE for sender in senders):
        return no_reply
    count = QuarantineRule.COUNT
    wrapped = [s if s.in_quarantine is count else muted(s, no_reply) for s in senders]
    return send(payload, wrapped)


def why(error: Exception, secrets: tuple[str, ...], patience: float) -> FailedConnection:
    """
    Return the vote of a master after a failed connection, and why; the text holds no secret.

    Args:
        patience: The timeout of the connection attempt in seconds.
    """
    text = display.harmless(str(error), secrets)
    cause = _cause(error, text)
    late = isinstance(error, TimeoutError) and not text
    hint = "; ".join(["", *getattr(error.__cause__ if late else error, "__notes__", ())])
    if late:
        text = f"no connection in {patience:g} s"
    elif _is_too_old(text):
        text = f"the server must be Redis {replies.OLDEST_SERVER} or newer, or any Valkey: {text}"
    elif isinstance(error, AuthenticationError):
        text = f"authentication failed: {text}"
    if not isinstance(error, FROM_SERVER):
        return FailedConnection(NoReply(Answer.UNREACHABLE, text + hint), cause)
    if isinstance(error, AuthenticationError):
        # A password that was given stays wrong. Without one it is missing, or comes from a
        # credential provider, which may return another one the next time.
        permanent = bool(secrets) or "invalid" not in text
    else:
        known = isinstance(error, MasterError) and error.permanent
        permanent = known or cause is NoVoteCause.FORBIDDEN
    return FailedConnection(NoReply(Answer.ERROR, text + hint, permanent), cause)


def _cause(error: Exception, text: str) -> NoVoteCause:
    """Return why there is no connection, by the *error* and its *text*."""
    if isinstance(error, UnconfirmedError):
        return NoVoteCause.UNCONFIRMED
    if not isinstance(error, FROM_SERVER):
        return NoVoteCause.NO_CONNECTION
    if _is_too_old(text):
        return NoVoteCause.UNSUPPORTED
    if isinstance(error, AuthenticationError) or text.startswith("NOAUTH"):
        return NoVoteCause.LOGIN_REFUSED
    if isinstance(error, NoPermissionError) or "NOPERM" in text:
        return NoVoteCause.FORBIDDEN
    return error.cause if isinstance(error, MasterError) else NoVoteCause.SERVER_ERROR


def _is_too_old(text: str) -> bool:
    """Return whether *text* is the error of a server that does not know RESP3 or a command."""
    return "unknown command" in text.lower() or text.startswith("NOPROTO")
