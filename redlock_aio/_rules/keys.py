"""
What is locked: one key on the masters, or several at once.

Both say the same things to the masters in their own words: one key as a command
that other libraries say too, several by scripts that do it to all of them or none.
"""

from collections.abc import Callable
from typing import ClassVar, TypeAlias

from redlock_aio._rules import protocol, scripts
from redlock_aio._rules.fencing import Counter
from redlock_aio._rules.scripts import ACQUIRE_ALL, EXTEND_ALL, RELEASE_ALL, pack

Setting: TypeAlias = "Callable[[Key, bytes, int], bytes]"
"""A command that sets a key to a token, for so many ms."""

Freeing: TypeAlias = "Callable[[Key, bytes], bytes]"
"""A command that deletes a key if it has a token."""


class Key(bytes):
    """One key; what is said about it is said in `protocol`."""

    __slots__ = ()
    can_free: ClassVar[bool] = True
    """Whether some servers have a command of their own to free it."""

    acquire: ClassVar[Setting] = protocol.acquire
    extend: ClassVar[Setting] = protocol.extend
    free: ClassVar[Freeing] = protocol.free
    release: ClassVar[Freeing] = protocol.release
    restore: ClassVar[Setting] = protocol.acquire

    @property
    def each(self) -> tuple["Key", ...]:
        """Every single key of it."""
        return (self,)

    def look(self) -> bytes:
        """Return the command that reads its value."""
        return protocol.look(self)

    def is_kept(self, reply: object, token: bytes) -> bool:
        """Return whether the *reply* to `look` says that it is *token*'s."""
        return reply == [token]

    def is_free(self, reply: object) -> bool:
        """Return whether the *reply* to `look` says that nobody has it."""
        return reply == [None]

    def counter(self, lead: int) -> Counter:
        """Return what gives its fencing tokens; *lead* as in `Counter`."""
        return Counter((self,), lead)


class Keys(tuple[Key, ...]):
    """Several keys that are locked together, in an order that does not depend on who names them."""

    __slots__ = ()
    can_free: ClassVar[bool] = False

    @property
    def each(self) -> tuple[Key, ...]:
        """Every single key of it."""
        return self

    def acquire(self, token: bytes, ttl: int) -> bytes:
        """Return the command that takes all for *token*, if nobody has any of them."""
        return self._said(ACQUIRE_ALL, token, b"%d" % ttl)

    def extend(self, token: bytes, ttl: int) -> bytes:
        """Return the command that lets all live for *ttl* more, if they are *token*'s."""
        return self._said(EXTEND_ALL, token, b"%d" % ttl, b"0")

    def restore(self, token: bytes, ttl: int) -> bytes:
        """Return the command that does the same, and takes those again that nobody has."""
        return self._said(EXTEND_ALL, token, b"%d" % ttl, b"1")

    def release(self, token: bytes) -> bytes:
        """Return the command that frees those that are *token*'s."""
        return self._said(RELEASE_ALL, token)

    def free(self, token: bytes) -> bytes:
        """Do as `release`; there is no command for it."""
        return self.release(token)

    def look(self) -> bytes:
        """Return the command that reads their values."""
        return protocol.look(*self)

    def is_kept(self, reply: object, token: bytes) -> bool:
        """Return whether the *reply* to `look` says that all are *token*'s."""
        return reply == [token] * len(self)

    def is_free(self, reply: object) -> bool:
        """Return whether the *reply* to `look` says that nobody has any of them."""
        return reply == [None] * len(self)

    def counter(self, lead: int) -> Counter:
        """Return what gives their fencing tokens; *lead* as in `Counter`."""
        return Counter(self, lead)

    def _said(self, script: scripts.Script, *arguments: bytes) -> bytes:
        return pack(b"EVALSHA", script.sha, b"%d" % len(self), *self, *arguments)
