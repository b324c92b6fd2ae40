"""
What is locked: one key on the masters, or several at once.

One key is set and restored by a command that other libraries use too, several by scripts
that do it to all of them or none. Extending, releasing and looking are the same scripts
for both.
"""

from collections.abc import Callable
from typing import ClassVar, TypeAlias

from redlock_aio._rules import protocol, scripts
from redlock_aio._rules.fencing import Counter
from redlock_aio._rules.scripts import ACQUIRE_ALL, EXTEND, RELEASE, pack

Setting: TypeAlias = "Callable[[Key, bytes, int], bytes]"
"""A command that sets a key to a token, for so many ms."""

Freeing: TypeAlias = "Callable[[Key, bytes], bytes]"
"""A command that deletes a key if it has a token."""


class _Locked:
    """What one key and several have in common."""

    __slots__ = ()

    @property
    def each(self) -> tuple["Key", ...]:
        """Every single key of it."""
        raise NotImplementedError

    def look(self) -> bytes:
        """Return the command that reads the values."""
        return protocol.look(*self.each)

    def is_kept(self, reply: object, token: bytes) -> bool:
        """Return whether the *reply* to `look` proves that every key has *token*."""
        return reply == [token] * len(self.each)

    def is_free(self, reply: object) -> bool:
        """Return whether the *reply* to `look` proves that no key exists."""
        return reply == [None] * len(self.each)

    def counter(self, lead: int) -> Counter:
        """Return what gives the fencing tokens; *lead* as in `Counter`."""
        return Counter(self.each, lead)


class Key(bytes, _Locked):
    """One key; its commands are packed in `protocol`."""

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


class Keys(tuple[Key, ...], _Locked):
    """Several keys that are locked together, in an order that does not depend on who names them."""

    __slots__ = ()
    can_free: ClassVar[bool] = False

    @property
    def each(self) -> tuple[Key, ...]:
        """Every single key of it."""
        return self

    def acquire(self, token: bytes, ttl: int) -> bytes:
        """Return the command that sets all to *token* for *ttl* ms, if none of them exists."""
        return self._packed(ACQUIRE_ALL, token, b"%d" % ttl)

    def extend(self, token: bytes, ttl: int) -> bytes:
        """Return the command that extends all to *ttl* ms from now, if all have *token*."""
        return self._packed(EXTEND, token, b"%d" % ttl)

    def restore(self, token: bytes, ttl: int) -> bytes:
        """Return the command that extends all, and sets those again that are gone."""
        return self._packed(EXTEND, token, b"%d" % ttl, b"again")

    def release(self, token: bytes) -> bytes:
        """Return the command that deletes those that have *token*."""
        return self._packed(RELEASE, token)

    def free(self, token: bytes) -> bytes:
        """Do as `release`; there is no command for it."""
        return self.release(token)

    def _packed(self, script: scripts.Script, *arguments: bytes) -> bytes:
        return pack(b"EVALSHA", script.sha, b"%d" % len(self), *self, *arguments)
