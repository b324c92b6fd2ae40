"""
The scripts that the masters run, and how a command is written.

Names and tokens are arguments, never text of a script; the scripts are files of their
own, in `lua/`, so that an editor and a reviewer see them as Lua.
"""

from hashlib import sha1
from importlib import resources


class Script:
    """
    One script that the masters run, by the name of its file.

    Args:
        after: The names of files with functions that it uses, which are put before it.
    """

    __slots__ = ("load", "name", "sha", "text")

    def __init__(self, name: str, *after: str) -> None:
        self.name = name
        files = resources.files("redlock_aio._protocol").joinpath("lua")
        self.text = b"".join([files.joinpath(f"{f}.lua").read_bytes() for f in (*after, name)])
        self.sha = sha1(self.text, usedforsecurity=False).hexdigest().encode()
        self.load = pack(b"SCRIPT", b"LOAD", self.text)

    def __repr__(self) -> str:
        return f"<Script {self.name}>"


def bulk(*arguments: bytes) -> bytes:
    """Return parts of a command as a master wants to read them."""
    return b"".join([b"$%d\r\n%b\r\n" % (len(argument), argument) for argument in arguments])


def pack(*arguments: bytes) -> bytes:
    """Return a command as a master wants to read it."""
    return b"*%d\r\n%b" % (len(arguments), bulk(*arguments))


ACQUIRE = Script("acquire", "get")
ACQUIRE_ALL = Script("acquire_all", "get")
ADOPT = Script("adopt")
DECLARE = Script("declare")
ENQUEUE = Script("enqueue", "get")
EXTEND = Script("extend")
INSPECT = Script("inspect", "get")
LEAVE = Script("leave", "get")
LIFT = Script("lift")
LOOK = Script("look", "get")
RAISE = Script("raise")
RELEASE = Script("release", "get")
RESTORE_FENCED = Script("restore_fenced")
REVOKE = Script("revoke", "get")
SCRIPTS = (
    ACQUIRE, ACQUIRE_ALL, ADOPT, DECLARE, ENQUEUE, EXTEND, INSPECT, LEAVE, LIFT, LOOK, RAISE,
    RELEASE, RESTORE_FENCED, REVOKE,
)  # fmt: skip
