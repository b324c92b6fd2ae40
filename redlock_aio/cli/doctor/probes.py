"""
Which permissions a user lacks, found by commands that change nothing.

A server checks the access list (ACL) before it looks at the arguments of a command. So a
command with a wrong argument tells whether it is allowed, and is not executed. The minimal
user of the locks may not ask for the list itself (``ACL DRYRUN``, ``ACL GETUSER``).
"""

from collections.abc import Awaitable, Callable, Iterator
from typing import NamedTuple

from redis.exceptions import (
    BusyLoadingError,
    ClusterDownError,
    MasterDownError,
    MovedError,
    NoPermissionError,
    OutOfMemoryError,
    ReadOnlyError,
    ResponseError,
)

from redlock_aio import requirements
from redlock_aio.requirements import Permissions

Ask = Callable[..., Awaitable[object]]
"""Send a command; return its reply, or the error with which the server has replied."""

WRONG = "?"
"""An argument that no command takes in its place."""

UNKNOWN = ("unknown command", "unknown subcommand", "noproto")
"""The begins of the errors of a server that has no such command, or not this form of it."""

REFUSALS = {
    BusyLoadingError: "LOADING", ClusterDownError: "CLUSTERDOWN", MasterDownError: "MASTERDOWN",
    MovedError: "MOVED", OutOfMemoryError: "OOM", ReadOnlyError: "READONLY",
}  # fmt: skip
"""Errors of redis-py for a server that does not write now, which lack the first word."""

ERRORS: tuple[type[Exception], ...] = (ResponseError, *REFUSALS)
"""The errors with which a server replies."""

REFUSING = (*REFUSALS.values(), "BUSY", "MISCONF", "NOREPLICAS")
"""The first words of the errors of such a server."""


class PermissionProbe(NamedTuple):
    """
    A command that shows whether something is permitted.

    Attributes:
        permission: As ``ACL SETUSER`` takes it, such as ``+get`` or ``~lock:*``.

        words: The command.
    """

    permission: str
    words: tuple[str, ...]

    def is_denied(self, reply: object) -> bool:
        """Return whether *reply* means that just this permission is missing."""
        if not isinstance(reply, ResponseError):
            return False
        text = str(reply)
        if isinstance(reply, NoPermissionError) or text.startswith("NOPERM"):
            # The server checks the command first, and then the keys and channels.
            return (" access " in text) is (self.permission[0] in "~&")
        return False

    def is_unknown(self, reply: object) -> bool:
        """Return whether *reply* means that the server has no such command."""
        if not isinstance(reply, ResponseError) or self.permission[0] != "+":
            return False
        return str(reply).lower().removeprefix("err ").startswith(UNKNOWN)


HELLO = PermissionProbe("+hello|3", ("HELLO", "3", WRONG))
"""
The command by which programs begin RESP3. No user lacks the permission for it.

A server looks at the version before the option, which is wrong: so the connection stays at RESP2.
"""


def probes(
    permissions: Permissions, key_prefix: str, name: str, *, tag: str = ""
) -> Iterator[PermissionProbe]:
    """
    Yield the commands by which the *permissions* are examined.

    The last ones put a connection of RESP2 into the mode in which it only subscribes.

    Args:
        key_prefix: That of the locks.

        name: A name that no lock has.

        tag: That of the master in a Redis Cluster; *key_prefix* begins with it.
    """
    key, channel = f"{key_prefix}{name}", f"redlock_aio:wake:{tag}{name}"
    arguments = {
        "evalsha": ("0" * 40, "1", key),
        "script|load": ("(",),  # no Lua: it is not loaded
        "get": (key,),
        "getrange": (key, "0", "0"),
        "set": (key, "", WRONG),
        "del": (key,),
        "pexpire": (key, WRONG),
        "pttl": (key,),
        "time": (),
        "info": ("server",),
        "ping": (),
        "cluster|nodes": (),
        "client|tracking": (WRONG,),
        "client|caching": (WRONG,),
        "publish": (channel, ""),
        "zadd": (key, WRONG, WRONG),
        "zrem": (key, WRONG),
        "zrank": (key, WRONG),
        "zrange": (key, "0", "0"),
        "zrangebyscore": (key, "0", "0"),
        "zscore": (key, WRONG),
        "zcard": (key,),
        "unsubscribe": (channel,),
        "subscribe": (channel,),
    }
    last = ("unsubscribe", "subscribe")
    for command in sorted(permissions.commands, key=last.__contains__):
        words = (*command.upper().split("|"), *arguments[command])
        if command == "subscribe":
            continue
        yield PermissionProbe(f"+{command}", words)
    yield from _of_keys(permissions, key_prefix, key, tag)
    for pattern in permissions.channels:
        yield PermissionProbe(f"&{pattern}", ("PUBLISH", channel, ""))
    if "subscribe" in permissions.commands:
        yield PermissionProbe("+subscribe", ("SUBSCRIBE", channel))


def _of_keys(
    permissions: Permissions, key_prefix: str, key: str, tag: str
) -> Iterator[PermissionProbe]:
    of_key = f"={key}" if tag else f"{{{key}}}"
    own = [
        f"{requirements.MARKER_KEY}{tag}",
        f"{requirements.DECLARED_KEY}{key_prefix}",
        f"redlock_aio:fence:{of_key}",
        f"redlock_aio:queue:{of_key}",
        f"redlock_aio:shares:{of_key}",
        f"redlock_aio:permit:{of_key}#0",
        f"redlock_aio:waiting:{of_key}",
    ]
    for pattern in (f"{key_prefix}*", *permissions.keys):
        start = pattern.removesuffix("*")
        for example in (key, *own):
            if example.startswith(start) and (example in own) is (pattern in permissions.keys):
                # A user may have the right to read a key, and not to write it.
                yield PermissionProbe(f"~{pattern}", ("GETRANGE", example, "0", "0"))
                yield PermissionProbe(f"~{pattern}", ("SET", example, "", WRONG))


class Lacking(NamedTuple):
    """
    What is missing on a master, in the order of `probes`.

    Attributes:
        permissions: The permissions that the user lacks.

        commands: The commands that the server does not know, named as permissions.
    """

    permissions: list[str]
    commands: list[str]


async def missing(
    ask: Ask, permissions: Permissions, key_prefix: str, name: str, *, tag: str = ""
) -> Lacking:
    """
    Return what the user lacks, and what the server does.

    Args:
        tag: That of the master in a Redis Cluster; *key_prefix* begins with it.

    Cancellation:
        Nothing was changed on the master.
    """
    found = Lacking([], [])
    for probe in (HELLO, *probes(permissions, key_prefix, name, tag=tag)):
        reply = await ask(*probe.words)
        if probe.is_unknown(reply):
            found.commands.append(probe.permission)
        elif probe.is_denied(reply) and probe.permission not in found.permissions:
            found.permissions.append(probe.permission)
    return found


def refusal(reply: object) -> str:
    """Return the error with which a server refuses to write now; empty if *reply* is none."""
    if not isinstance(reply, ERRORS):
        return ""
    text, word = str(reply), REFUSALS.get(type(reply))
    if word is not None and not text.startswith(word):
        return f"{word} {text}"
    return text if text.startswith(REFUSING) else ""
