"""
The scripts that the masters run, and the encoding of commands.

Names and tokens are arguments, never text of a script. Each script is a file in `lua/`,
so that editors and reviewers see it as Lua.
"""

from hashlib import sha1
from importlib import resources


class Script:
    """
    One script that the masters run.

    Args:
        name: The name of the script's file.

        after: The names of files whose functions the script uses; they are put before it.
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
    """Return *arguments* as bulk strings of RESP."""
    return b"".join([b"$%d\r\n%b\r\n" % (len(argument), argument) for argument in arguments])


def pack(*arguments: bytes) -> bytes:
    """Return a command as an array of RESP."""
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
MARK = Script("mark")
RAISE = Script("raise")
RELEASE = Script("release", "get")
RESTORE_FENCED = Script("restore_fenced")
REVOKE = Script("revoke", "get")
SCRIPTS = (
    ACQUIRE, ACQUIRE_ALL, ADOPT, DECLARE, ENQUEUE, EXTEND, INSPECT, LEAVE, LIFT, LOOK, MARK,
    RAISE, RELEASE, RESTORE_FENCED, REVOKE,
)  # fmt: skip
