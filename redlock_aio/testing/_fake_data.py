"""What a fake master keeps: strings and sorted sets that end."""

from collections.abc import Callable
from typing import Protocol

from redlock_aio.testing._fake_lua import Error

Value = bytes | dict[bytes, float]
"""A string, or the members of a sorted set with their scores."""

NEVER = float("inf")


class Witness(Protocol):
    """Whoever notices what is done with the keys."""

    def was_read(self, key: bytes, until: float) -> None:
        """Hear that *key* was read, which ends at *until*; a missing one counts, and never ends."""

    def was_changed(self, key: bytes) -> None:
        """Hear that *key* was set, deleted, given a new end, or found to have ended."""

    def publish(self, channel: bytes, message: bytes) -> int:
        """Tell all who listen to *channel*; return how many that are."""


class Data:
    """
    The keys of one master; an ended key is gone for everybody, and noticed when it is accessed.

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
        """Return the value of *key* and when it ends, without counting as a reader."""
        value, until = self.keys.get(key, (None, NEVER))
        if value is not None and until != NEVER and self._now() >= until:
            del self.keys[key]
            self._witness.was_changed(key)
            return None, NEVER
        return value, until

    def _read(self, key: bytes) -> tuple[Value | None, float]:
        found = self.find(key)
        self._witness.was_read(key, found[1])
        return found

    # Strings, and what all keys have in common.

    def get(self, key: bytes) -> bytes | None:
        """Return the string, ``None`` if there is none."""
        return _string(self._read(key))

    def string(self, key: bytes) -> bytes | None:
        """Do as `get`, without counting as a reader."""
        return _string(self.find(key))

    def set(self, key: bytes, value: bytes, ttl: int | None = None) -> None:
        """Set a string, to live *ttl* ms or for ever, in place of whatever was there."""
        self.keys[key] = (value, NEVER if ttl is None else self._now() + ttl / 1000)
        self._witness.was_changed(key)

    def delete(self, key: bytes) -> int:
        """Delete a key; return how many were there."""
        if self.find(key)[0] is None:
            return 0
        del self.keys[key]
        self._witness.was_changed(key)
        return 1

    def pttl(self, key: bytes) -> int:
        """Return the ms that it has left, -1 if it does not end, -2 if there is none."""
        value, until = self._read(key)
        if value is None:
            return -2
        return -1 if until == NEVER else round((until - self._now()) * 1000)

    def pexpire(self, key: bytes, ttl: int) -> int:
        """Let a key end *ttl* ms from now; return how many were there."""
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
        """Give a member a score; nothing changes if it has that score. Return how many are new."""
        _, until = found = self.find(key)
        members = self._members(found)
        if members.get(member) != score:
            self.keys[key] = ({**members, member: score}, until)
            self._witness.was_changed(key)
        return int(member not in members)

    def zrem(self, key: bytes, *members: bytes) -> int:
        """Remove members; a set without any is no key. Return how many were there."""
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

    def zscore(self, key: bytes, member: bytes) -> float | None:
        """Return the score of a member, ``None`` if there is no such member."""
        return self._members(self._read(key)).get(member)

    def zcard(self, key: bytes) -> int:
        """Return how many members there are."""
        return len(self._members(self._read(key)))

    def zall(self, key: bytes) -> dict[bytes, float]:
        """Return all members with their scores, in order."""
        members = self._members(self._read(key))
        return {m: score for score, m in sorted((score, m) for m, score in members.items())}


def _string(found: tuple[Value | None, float]) -> bytes | None:
    value = found[0]
    if isinstance(value, dict):
        raise wrong_type()
    return value


def wrong_type() -> Error:
    """Return what is answered about a key that is something else."""
    return Error("WRONGTYPE Operation against a key holding the wrong kind of value")
