"""What the replies of a server come to that is asked about itself."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeVar

from redis.exceptions import (
    AuthenticationError,
    AuthorizationError,
    NoPermissionError,
    ResponseError,
)

from redlock_aio._protocol import commands, replies
from redlock_aio._protocol.request import Asker, Request, Silence, Trust
from redlock_aio._rules import display
from redlock_aio._rules.marker import Marker, milliseconds
from redlock_aio._rules.quorum import Answer
from redlock_aio._rules.server_info import ServerInfo

M = TypeVar("M", Marker, Marker | None)


class MasterError(Exception):
    """A server that was reached and must not vote; its text says why."""


def info_of(said: object) -> ServerInfo:
    """Return what a server says of itself; raise why it says nothing, or must not vote."""
    if isinstance(said, Silence):
        raise ConnectionError(said.detail)
    if isinstance(said, Exception):
        raise MasterError(str(said))
    if not isinstance(said, bytes):
        raise MasterError(f"INFO is answered with a {type(said).__name__}")
    info = ServerInfo.parse(said)
    if info.objection:
        raise MasterError(info.objection)
    return info


def marker_of(said: object) -> Marker | None:
    """Return the marker that a server has told; raise why it has not."""
    if isinstance(said, Silence):
        raise ConnectionError(said.detail)
    if isinstance(said, Exception):
        if str(said).startswith("NOPERM"):
            raise forbidden(said)
        raise MasterError(str(said))
    return read_marker(said)


def read_marker(said: object) -> Marker | None:
    """Return the marker in a reply; ``None`` if there is none, or no reply."""
    # GETRANGE answers a key that is not there with an empty string.
    return Marker.parse(said if isinstance(said, bytes) and said else None)


def carried(marker: M, outlives: float) -> M:
    """Return *marker* with *outlives* seconds added to the quarantine in it."""
    if marker is None or not marker.lasts or not outlives:
        return marker
    return replace(marker, lasts=marker.lasts + round(outlives * 1000))


def must_carry(marker: Marker | None, lasts: float, error: Exception) -> None:
    """
    Raise if a master that refuses a new marker would vote without our quarantine in it.

    Programs with a shorter one might not wait for our leases when it restarts.
    """
    if marker is None or marker.lasts < milliseconds(lasts):
        raise MasterError(f"its marker can't be written: {error}")


def is_forbidden(reply: object) -> bool:
    """Return whether a master's access list forbids a command, or what a script does."""
    text = str(reply) if isinstance(reply, Exception) else ""
    return any(words in text for words in ("NOPERM", "ACL failure", "executing the script can't"))


def forbidden(error: Exception) -> MasterError:
    """Return the error that says what a server must allow that has answered *error*."""
    return MasterError(
        f"the restart guard must GETRANGE and SET the key {commands.MARKER.decode()}, or be off"
        f' (restart_guard="off"): {error}'
    )


def muted(asker: Asker, silence: Silence) -> Request:
    """
    Return the request of *asker* for a quarantined master: most replies count as *silence*.

    A grant of such a master, and a key that is missing there, prove nothing: it may have
    forgotten locks. A reply that somebody else has the lock counts all the same: a refusal
    can only end a lease, or refuse one. An asker that recognises such a reply has a
    method ``is_refusal(reply)``.
    """
    trust = asker.trust
    is_refusal: Callable[[object], bool] = getattr(asker, "is_refusal", _never)

    def on_reply(master: int, reply: object) -> None:
        counts = reply != 0 if trust is Trust.IF_FOUND else is_refusal(reply)
        asker.answered(master, reply if counts else silence)

    return Request(
        asker.payload, on_reply, debt_ttl=asker.debt_ttl, needless=asker.needless, trust=trust
    )


def _never(_reply: object) -> bool:
    return False


def mute(
    send: Callable[[bytes, Sequence[Asker]], Silence | None],
    payload: bytes,
    askers: Sequence[Asker],
    silence: Silence,
) -> Silence | None:
    """
    Send what a master without a vote may get; a `Silence` if there is anything else.

    Args:
        silence: What stands for its vote.
    """
    if any(asker.trust is Trust.NONE for asker in askers):
        return silence
    return send(payload, [a if a.trust is Trust.FULL else muted(a, silence) for a in askers])


def why(error: Exception, secrets: tuple[str, ...], patience: float) -> Silence:
    """
    Return why a master can't be used, in words that hold no secret.

    Args:
        patience: How many seconds a connection attempt may last.
    """
    text = display.harmless(str(error), secrets)
    late = isinstance(error, TimeoutError) and not text
    hint = "; ".join(["", *getattr(error.__cause__ if late else error, "__notes__", ())])
    if late:
        return Silence(Answer.UNREACHABLE, f"no connection in {patience:g} s{hint}")
    if "unknown command" in text.lower() or text.startswith("NOPROTO"):
        text = f"it must be Redis {replies.OLDEST_SERVER} or newer, or any Valkey: {text}"
    elif isinstance(error, AuthenticationError):
        text = f"authentication failed: {text}"
    said = isinstance(error, MasterError | ResponseError | AuthenticationError | AuthorizationError)
    if not said:
        return Silence(Answer.UNREACHABLE, text + hint)
    if isinstance(error, AuthenticationError):
        # A password that was given stays wrong. Without one it is missing, or comes from a
        # credential provider, which may return another one the next time.
        permanent = bool(secrets) or "invalid" not in text
    else:
        permanent = "NOPERM" in text or isinstance(error, NoPermissionError)
    return Silence(Answer.ERROR, text + hint, permanent)
