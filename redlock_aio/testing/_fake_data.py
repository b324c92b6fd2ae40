"""
What a fake master keeps: strings and sorted sets that end, and what the scripts do to them.

The scripts are translated from the files in `_rules/lua` call by call: a master
notices every single read and change of a script, and so do those it tells.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Protocol

from redlock_aio._rules.protocol import (
    ACQUIRE,
    ENQUEUE,
    EXTEND,
    EXTEND_FENCED,
    LEAVE,
    RAISE,
    RELEASE,
)

Value = bytes | dict[bytes, float]
"""A string, or the members of a sorted set with their scores."""

NEVER = float("inf")


class Error(Exception):
    """Answered as an error."""


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

    Attributes:
        keys: By name: the value, and the time of the running loop at which it ends.
    """

    def __init__(self, witness: Witness) -> None:
        self._witness = witness
        self.publish = witness.publish
        self.keys: dict[bytes, tuple[Value, float]] = {}

    def find(self, key: bytes) -> tuple[Value | None, float]:
        """Return the value of *key* and when it ends, without counting as a reader."""
        value, until = self.keys.get(key, (None, NEVER))
        if value is not None and until != NEVER and _now() >= until:
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
        value, _ = self._read(key)
        if isinstance(value, dict):
            raise _wrong_type()
        return value

    def set(self, key: bytes, value: bytes, ttl: int | None = None) -> None:
        """Set a string, to live *ttl* ms or for ever, in place of whatever was there."""
        self.keys[key] = (value, NEVER if ttl is None else _now() + ttl / 1000)
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
        return -1 if until == NEVER else round((until - _now()) * 1000)

    def pexpire(self, key: bytes, ttl: int) -> int:
        """Let a key end *ttl* ms from now; return how many were there."""
        value, _ = self.find(key)
        if value is None:
            return 0
        self.keys[key] = (value, _now() + ttl / 1000)
        self._witness.was_changed(key)
        return 1

    # Sorted sets: by score, and by the bytes of the members where scores are equal.

    def _members(self, found: tuple[Value | None, float]) -> dict[bytes, float]:
        value = found[0]
        if isinstance(value, bytes):
            raise _wrong_type()
        return value or {}

    def _sorted(self, key: bytes) -> list[tuple[float, bytes]]:
        members = self._members(self._read(key))
        return sorted((score, member) for member, score in members.items())

    def zadd(self, key: bytes, score: float, member: bytes) -> None:
        """Give a member a score; nothing changes if it has that score already."""
        _, until = found = self.find(key)
        members = self._members(found)
        if members.get(member) != score:
            self.keys[key] = ({**members, member: score}, until)
            self._witness.was_changed(key)

    def zrem(self, key: bytes, *members: bytes) -> None:
        """Take members out; a set without any is no key."""
        _, until = found = self.find(key)
        present = self._members(found)
        left = {member: score for member, score in present.items() if member not in members}
        if len(left) == len(present):
            return
        if left:
            self.keys[key] = (left, until)
        else:
            del self.keys[key]
        self._witness.was_changed(key)

    def zscore(self, key: bytes, member: bytes) -> float | None:
        """Return the score of a member, ``None`` if there is no such member."""
        return self._members(self._read(key)).get(member)

    def zcard(self, key: bytes) -> int:
        """Return how many members there are."""
        return len(self._members(self._read(key)))

    def zfirst(self, key: bytes) -> bytes | None:
        """Return the member with the lowest score."""
        return next((member for _, member in self._sorted(key)), None)

    def zbelow(self, key: bytes, score: float, limit: int) -> list[bytes]:
        """Return the first members whose scores are lower than *score*."""
        return [member for its, member in self._sorted(key) if its < score][:limit]


def _now() -> float:
    return asyncio.get_running_loop().time()


def _wrong_type() -> Error:
    return Error("WRONGTYPE Operation against a key holding the wrong kind of value")


def _bury(data: Data, queue: bytes, live: bytes, ms: int) -> None:
    """Take those out who are not believed to live any more."""
    if dead := data.zbelow(live, ms, 100):
        data.zrem(live, *dead)
        data.zrem(queue, *dead)


def _release(data: Data, _now: int, keys: Sequence[bytes], arguments: Sequence[bytes]) -> object:
    holder = data.get(keys[0])
    if holder == arguments[0]:
        data.delete(keys[0])
        return True
    return 0 if holder is None else [holder, data.pttl(keys[0])]


def _extend(data: Data, _now: int, keys: Sequence[bytes], arguments: Sequence[bytes]) -> object:
    if data.get(keys[0]) != arguments[0]:
        return 0
    data.pexpire(keys[0], int(arguments[1]))
    data.get(keys[0])
    return True


def _number(text: bytes) -> int:
    """Read a counter as a script does, which counts in doubles."""
    try:
        return int(float(text))
    except ValueError:
        raise Error("ERR user_script: a number is wanted") from None


def _count(data: Data, counter: bytes) -> int:
    value = data.get(counter)
    return 0 if value is None else _number(value)


def _next(value: int) -> int:
    return int(float(value) + 1)


def _acquire(data: Data, now: int, keys: Sequence[bytes], arguments: Sequence[bytes]) -> object:
    lock, counter = keys
    token, ttl, proposed, earliest, latest, kept = arguments
    time = [b"%d" % part for part in divmod(now, 1_000_000)]
    if time[0] < earliest or time[0] > latest:
        return time
    if data.find(lock)[0] is not None:
        if data.get(lock) != token:
            return 0
        said = data.get(counter)
        return _number(said) if said is not None and said.isdigit() else 0
    data.set(lock, token, int(ttl))
    last, _ = data.find(counter)
    if isinstance(last, dict):
        raise _wrong_type()
    data.set(counter, proposed, int(kept))
    if last is None or (len(last) == 16 and last < proposed):
        return 1
    value = max(_next(_number(last)), int(proposed))
    data.set(counter, b"%016d" % value, int(kept))
    return value


def _raise(data: Data, _now: int, keys: Sequence[bytes], arguments: Sequence[bytes]) -> object:
    lock, counter = keys
    token, least, kept = arguments
    if data.get(lock) != token:
        return 0
    value = _count(data, counter)
    if value < int(least):
        value = int(least)
        data.set(counter, least, int(kept))
    return value


def _extend_fenced(
    data: Data, _now: int, keys: Sequence[bytes], arguments: Sequence[bytes]
) -> object:
    lock, counter = keys
    token, ttl, fence, kept, again = arguments
    value = _count(data, counter)
    if value > int(fence):
        return value
    holder = data.get(lock)
    if holder == token:
        data.pexpire(lock, int(ttl))
    elif holder is not None or again != b"1":
        return 0
    else:
        data.set(lock, token, int(ttl))
    if value < int(fence):
        data.set(counter, fence, int(kept))
    else:
        data.pexpire(counter, int(kept))
    data.get(lock)
    return True


def _enqueue(data: Data, now: int, keys: Sequence[bytes], arguments: Sequence[bytes]) -> object:
    lock, queue, live, *counter = keys
    token, _, member = arguments[:3]
    ttl, priority, lives, most, not_after = (int(arguments[i]) for i in (1, 3, 4, 5, 6))
    asked, lead, kept = (int(n) for n in arguments[7:]) if counter else (now, 0, 0)
    if now > not_after or abs(asked - now) > lead:
        return [4, -2, now, None, 0]
    ms = now // 1000
    _bury(data, queue, live, ms)
    holder = data.get(lock)
    mine = holder == token
    if not mine and data.zscore(queue, member) is None:
        if data.zcard(queue) >= most:
            return [3, data.pttl(lock), now, holder, 0]
        data.zadd(queue, priority, member)
    first = data.zfirst(queue) == member
    granted = mine or (first and holder is None)
    data.pexpire(queue, lives + 100)
    data.zadd(live, ms + (min(lives, ttl) if granted else lives), member)
    data.pexpire(live, lives + 100)
    if granted:
        data.set(lock, token, ttl)
        value = _count(data, counter[0]) if counter else 0
        if counter:
            value = value if mine and value else max(_next(value), asked)
            data.set(counter[0], b"%016d" % value, kept)
        return [0, ttl, now, token, value]
    return [1 if first else 2, data.pttl(lock), now, holder, 0]


def _leave(data: Data, now: int, keys: Sequence[bytes], arguments: Sequence[bytes]) -> object:
    lock, queue, live = keys
    token, member, how, channel = arguments
    holder = data.get(lock)
    mine = holder == token
    news = mine or holder is None
    if mine:
        data.delete(lock)
    if how != b"stay":
        news = news or data.zfirst(queue) == member
        data.zrem(queue, member)
        data.zrem(live, member)
    if news:
        _bury(data, queue, live, now // 1000)
        first = data.zfirst(queue)
        if first is not None and first != member:
            data.publish(channel + first.partition(b"/")[0], first)
    if holder is not None and not mine:
        return [holder, data.pttl(lock)]
    return True if mine else 0


Run = Callable[[Data, int, Sequence[bytes], Sequence[bytes]], object]

SCRIPTS: dict[bytes, Run] = {
    ACQUIRE.sha: _acquire,
    ENQUEUE.sha: _enqueue,
    EXTEND.sha: _extend,
    EXTEND_FENCED.sha: _extend_fenced,
    LEAVE.sha: _leave,
    RAISE.sha: _raise,
    RELEASE.sha: _release,
}
"""What the scripts do, by their hash: with the time in us, the keys and the arguments."""
