"""
What is said to a master, and what its reply means.

Commands are packed here into the bytes that all masters get, and replies are
read into votes. How the bytes travel is the transport's business. Names and
tokens are arguments, never text of a script; the scripts are files of their
own, in `lua/`, so that an editor and a reviewer see them as Lua.
"""

import re
from dataclasses import dataclass
from hashlib import sha1
from importlib import resources
from typing import Protocol

from redlock_aio._rules.quorum import GRANTED, NOT_YET, Answer

OLDEST_SERVER = 6
"""The first Redis whose connections speak RESP3; every Valkey does."""


class Script:
    """One script that the masters run, by the name of its file."""

    __slots__ = ("load", "name", "sha", "text")

    def __init__(self, name: str) -> None:
        self.name = name
        lua = resources.files("redlock_aio._rules").joinpath("lua", f"{name}.lua")
        self.text = lua.read_bytes()
        self.sha = sha1(self.text, usedforsecurity=False).hexdigest().encode()
        self.load = pack(b"SCRIPT", b"LOAD", self.text)

    def __repr__(self) -> str:
        return f"<Script {self.name}>"


@dataclass(frozen=True, slots=True)
class Silence:
    """Stands in a tally where a master gave no reply, and says why."""

    answer: Answer
    detail: str = ""


class Asker(Protocol):
    """Whoever sends a command and is to be told the reply."""

    payload: bytes
    debt_ttl: int
    """For a release: how many ms its key may live, so that it is not forgotten; 0 otherwise."""

    def answered(self, master: int, reply: object, /) -> None:
        """Take the reply of the master with this number; a `Silence` if there will be none."""


TIMED_OUT = Silence(Answer.TIMED_OUT)
OVERRUN = Silence(Answer.ERROR, "too many requests are unanswered")


def pack(*arguments: bytes) -> bytes:
    """Return a command as a master wants to read it."""
    parts = [b"*%d\r\n" % len(arguments)]
    parts += [b"$%d\r\n%b\r\n" % (len(argument), argument) for argument in arguments]
    return b"".join(parts)


EXTEND = Script("extend")
RELEASE = Script("release")
SCRIPTS = (EXTEND, RELEASE)

INFO = pack(b"INFO")
PING = pack(b"PING")

_SET_HEAD = b"*6\r\n$3\r\nSET\r\n$%d\r\n%b\r\n"
_SET_TAIL = b"$2\r\nNX\r\n$2\r\nPX\r\n$%d\r\n%b\r\n"
_BULK = b"$%d\r\n%b\r\n"
_EXTEND = b"*6\r\n$7\r\nEVALSHA\r\n$40\r\n" + EXTEND.sha + b"\r\n$1\r\n1\r\n$%d\r\n%b\r\n"
_RELEASE = b"*5\r\n$7\r\nEVALSHA\r\n$40\r\n" + RELEASE.sha + b"\r\n$1\r\n1\r\n$%d\r\n%b\r\n"


def acquire(key: bytes, token: bytes, ttl: int) -> bytes:
    """Return the command that takes *key* for *token*, if nobody has it."""
    digits = b"%d" % ttl
    return (_SET_HEAD + _BULK + _SET_TAIL) % (
        len(key), key, len(token), token, len(digits), digits,
    )  # fmt: skip


def extend(key: bytes, token: bytes, ttl: int) -> bytes:
    """Return the command that lets *key* live for *ttl* more, if it is *token*'s."""
    digits = b"%d" % ttl
    return (_EXTEND + _BULK + _BULK) % (
        len(key), key, len(token), token, len(digits), digits,
    )  # fmt: skip


def release(key: bytes, token: bytes) -> bytes:
    """Return the command that frees *key*, if it is *token*'s."""
    return (_RELEASE + _BULK) % (len(key), key, len(token), token)


def read(reply: object) -> Silence:
    """Return what a *reply* stands for, in words that hold no secret."""
    if isinstance(reply, Silence):
        return reply
    if reply is NOT_YET:
        return Silence(Answer.TIMED_OUT, "not answered when the round was decided")
    if isinstance(reply, Exception):
        return Silence(Answer.ERROR, harmless(str(reply)))
    if reply == GRANTED:
        return Silence(Answer.GRANTED)
    if reply is None or (reply == 0 and reply.__class__ is int):
        return Silence(Answer.HELD)
    return Silence(Answer.ERROR, f"an answer that makes no sense: a {type(reply).__name__}")


def harmless(text: str, secrets: tuple[str, ...] = ()) -> str:
    """
    Return *text* without what must not be seen, on one line and not too long.

    A server's error may repeat the arguments of a command, cut and with other
    signs for some; so they go, and with them everything that could be a token,
    and all of *secrets*.
    """
    text = re.sub(r"[,;]?\s*(with )?args beginning with.*", "", text, flags=re.DOTALL)
    for secret in secrets:
        text = text.replace(secret, "***")
    text = re.sub(r"[0-9a-f]{40}", "***", text)
    return "".join(c if c.isprintable() else " " for c in text)[:200]


@dataclass(frozen=True, slots=True)
class ServerInfo:
    """What a server says of itself, as far as it matters to a lock."""

    version: str
    run_id: str
    role: str
    evicts: str

    @classmethod
    def parse(cls, text: bytes) -> "ServerInfo":
        """Read the reply to ``INFO``."""
        lines = text.decode("utf-8", "replace").splitlines()
        said = dict(line.split(":", 1) for line in lines if ":" in line)
        policy = said.get("maxmemory_policy", "noeviction")
        limited = said.get("maxmemory", "0") != "0"
        return cls(
            version=said.get("redis_version", "unknown"),
            run_id=said.get("run_id", ""),
            role=said.get("role", "unknown"),
            evicts=policy if limited and policy != "noeviction" else "",
        )

    @property
    def objection(self) -> str:
        """Why this server can't vote, empty if it can."""
        if self.role != "master":
            return f"not a master but a {self.role}"
        if not self.run_id:
            return "INFO names no run_id, so it can't be told from the other masters"
        return ""

    @property
    def caution(self) -> str:
        """What may make locks vanish there, empty if nothing is known."""
        if not self.evicts:
            return ""
        return (
            f"its maxmemory-policy {self.evicts} may drop locks when memory runs out;"
            " only noeviction is safe"
        )
