"""The keys of a fake master: strings and sorted sets that expire."""

from collections.abc import Callable
from typing import Protocol

from redlock_aio.testing._fake_lua import Error

Value = bytes | dict[bytes, float]
"""A string, or the members of a sorted set with their scores, in order; it is never changed."""

NEVER = float("inf")


class Witness(Protocol):
    """An observer of reads and changes of keys: `Pushes`, or one that ignores all (proofs)."""

    def was_read(self, key: bytes, until: float) -> None:
        """Called when *key*, which ends at *until*, was read; a missing key never ends."""

    def was_changed(self, key: bytes) -> None:
        """Called when *key* was set, deleted, given a new end, or found to have ended."""

    def publish(self, channel: bytes, message: bytes) -> int:
        """Push *message* to all subscribers of *channel*; return their number."""


class Data:
    """
    The keys of one master; a key that has ended is deleted when it is accessed.

    Args:
        now: Returns the time, in seconds.

    Attributes:
        keys: By name: the value, and the time at which it ends.
    """

    def __init__(self, witness: Witness, now: Callable[[], float]) -> None:
        self._witness = witness
        self._now = now
        self.publish: Callable[[bytes, bytes], int] = witness.publish
        self.keys: dict[bytes, tuple[Value, float]] = {}

    def find(self, key: bytes) -> tuple[Value | None, float]:
        """Return the value of *key* and its end, without counting as a read."""
        value, until = self.keys.get(key, (None, NEVER))
        if value is not None and until != NEVER and self._now() >= until:
            del self.keys[key]
            self._witness.was_changed(key)
            return None, NEVER
        return value, until

    def read(self, key: bytes) -> tuple[Value | None, float]:
        """Return the value of *key* and its end."""
        found = self.find(key)
        self._witness.was_read(key, found[1])
        return found

    # Strings, and keys of any type.

    def get(self, key: bytes) -> bytes | None:
        """Return the string at *key*, ``None`` if there is none."""
        return _string(self.read(key))

    def string(self, key: bytes) -> bytes | None:
        """Return the string at *key* without counting as a read, ``None`` if there is none."""
        return _string(self.find(key))

    def set(self, key: bytes, value: bytes, ttl: int | None = None) -> None:
        """Set a string for *ttl* ms or for ever; it replaces a value of any type."""
        self.keys[key] = (value, NEVER if ttl is None else self._now() + ttl / 1000)
        self._witness.was_changed(key)

    def delete(self, key: bytes) -> int:
        """Delete a key; return 1 if it existed, else 0."""
        if self.find(key)[0] is None:
            return 0
        del self.keys[key]
        self._witness.was_changed(key)
        return 1

    def pttl(self, key: bytes) -> int:
        """Return the remaining ms of *key*, -1 if it does not end, -2 if it does not exist."""
        value, until = self.read(key)
        if value is None:
            return -2
        return -1 if until == NEVER else round((until - self._now()) * 1000)

    def pexpire(self, key: bytes, ttl: int) -> int:
        """Set the end of a key to *ttl* ms from now; return 1 if it exists, else 0."""
        value, _ = self.find(key)
        if value is None:
            return 0
        self.keys[key] = (value, self._now() + ttl / 1000)
        self._witness.was_changed(key)
        return 1

    # Sorted sets: by score, and by the bytes of the members where scores are equal.

    def _members(self, found: tuple[Value | None, float]) -> dict[bytes, float]:
        value = found[0]
        if isinstance(value, bytes):
            raise wrong_type()
        return value or {}

    def zadd(self, key: bytes, score: float, member: bytes) -> int:
        """Set the score of a member; return 1 if the member is new, else 0."""
        _, until = found = self.find(key)
        members = self._members(found)
        if members.get(member) != score:
            # Sorted here and not where it is read, which happens ten times as often.
            pairs = sorted((s, m) for m, s in {**members, member: score}.items())
            self.keys[key] = ({m: s for s, m in pairs}, until)
            self._witness.was_changed(key)
        return int(member not in members)

    def zrem(self, key: bytes, *members: bytes) -> int:
        """Remove members, and the key with its last member; return the number removed."""
        _, until = found = self.find(key)
        present = self._members(found)
        left = {member: score for member, score in present.items() if member not in members}
        removed = len(present) - len(left)
        if removed:
            if left:
                self.keys[key] = (left, until)
            else:
                del self.keys[key]
            self._witness.was_changed(key)
        return removed

    def zcard(self, key: bytes) -> int:
        """Return the number of members."""
        return len(self._members(self.read(key)))

    def zall(self, key: bytes) -> dict[bytes, float]:
        """Return all members with their scores, in order."""
        return self._members(self.read(key))


def _string(found: tuple[Value | None, float]) -> bytes | None:
    value = found[0]
    if isinstance(value, dict):
        raise wrong_type()
    return value


def wrong_type() -> Error:
    """Return the error for a key of another type."""
    return Error("WRONGTYPE Operation against a key holding the wrong kind of value")
