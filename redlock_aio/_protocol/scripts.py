"""
The scripts that the masters run.

Names and tokens are arguments, never text of a script. Each script is a file in `lua/`,
so that editors and reviewers see it as Lua.
"""

from hashlib import sha1
from importlib import resources

from redlock_aio._protocol.request import pack


class Script:
    """
    One script that the masters run.

    Args:
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


ACQUIRE = Script("acquire", "get")
ACQUIRE_ALL = Script("acquire_all", "get")
ADOPT = Script("adopt")
DECLARE = Script("declare")
DROP_PERMITS = Script("drop_permits", "get", "clean", "publish", "permits")
ENQUEUE = Script("enqueue", "get", "clean")
ENQUEUE_PERMIT = Script("enqueue_permit", "get", "clean", "publish", "permits")
ENQUEUE_SHARED = Script("enqueue_shared", "get", "clean", "shared", "shares")
EXTEND = Script("extend", "shared", "shares")
INSPECT = Script("inspect", "get", "shared")
INSPECT_PERMITS = Script("inspect_permits", "get")
LEAVE = Script("leave", "get", "publish", "wake")
LEAVE_PERMIT = Script("leave_permit", "get", "clean", "publish", "permits")
LEAVE_SHARED = Script("leave_shared", "get", "shared", "shares", "publish", "wake")
LIFT = Script("lift")
LOOK = Script("look", "get")
LOOK_SHARED = Script("look_shared", "get", "shared")
MARK = Script("mark")
RAISE = Script("raise")
RELEASE = Script("release", "get")
RESTORE_FENCED = Script("restore_fenced")
REVOKE = Script("revoke", "get", "shared", "publish")
TAKE_PERMIT = Script("take_permit", "get", "clean", "publish", "permits")
SCRIPTS = (
    ACQUIRE, ACQUIRE_ALL, ADOPT, DECLARE, DROP_PERMITS, ENQUEUE, ENQUEUE_PERMIT, ENQUEUE_SHARED,
    EXTEND, INSPECT, INSPECT_PERMITS, LEAVE, LEAVE_PERMIT, LEAVE_SHARED, LIFT, LOOK, LOOK_SHARED,
    MARK, RAISE, RELEASE, RESTORE_FENCED, REVOKE, TAKE_PERMIT,
)  # fmt: skip
