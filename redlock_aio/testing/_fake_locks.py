"""
What the scripts of locks without a queue do to the keys of a fake master.

They are translated from the files in `_rules/lua` call by call: a master notices
every single read and change of a script, and so do those it tells.
"""

from collections.abc import Callable, Sequence

from redlock_aio._rules.holders import SHOWN
from redlock_aio._rules.scripts import (
    ACQUIRE,
    ACQUIRE_ALL,
    ADOPT,
    EXTEND,
    EXTEND_ALL,
    EXTEND_FENCED,
    LIFT,
    RAISE,
    RAISE_ALL,
    RELEASE,
    RELEASE_ALL,
    RESTORE_FENCED,
)
from redlock_aio.testing._fake_data import Data, Error, wrong_type


def get(data: Data, key: bytes) -> bytes | None:
    """Return the value of a lock; of a key of another type raise the error that names it."""
    try:
        return data.get(key)
    except Error:
        raise Error("WRONGTYPE the key holds a zset, not a lock") from None


def _release(data: Data, _now: int, keys: Sequence[bytes], arguments: Sequence[bytes]) -> object:
    holder = get(data, keys[0])
    if holder == arguments[0]:
        data.delete(keys[0])
        return True
    return 0 if holder is None else [holder[:SHOWN], data.pttl(keys[0])]


def _extend(data: Data, _now: int, keys: Sequence[bytes], arguments: Sequence[bytes]) -> object:
    holder = data.get(keys[0])
    if holder != arguments[0]:
        return 0 if holder is None else -1
    data.pexpire(keys[0], int(arguments[1]))
    data.get(keys[0])
    return True


def _number(text: bytes) -> int:
    """Read a counter as a script does, which counts in doubles."""
    try:
        return int(float(text))
    except ValueError:
        raise Error("ERR user_script: a number is wanted") from None


def count(data: Data, counter: bytes) -> int:
    """Return what a counter says."""
    value = data.get(counter)
    return 0 if value is None else _number(value)


def beyond(value: int) -> int:
    """Return the next number, as a script counts, in doubles."""
    return int(float(value) + 1)


def _acquire(data: Data, now: int, keys: Sequence[bytes], arguments: Sequence[bytes]) -> object:
    lock, counter = keys
    token, ttl, proposed, earliest, latest, kept = arguments
    time = _time(now)
    if time[0] < earliest or time[0] > latest:
        return time
    if data.find(lock)[0] is not None:
        if get(data, lock) != token:
            return 0
        said = data.get(counter)
        digits = (said or b"").partition(b".")[0]  # a fraction is the mark of a holder
        return _number(digits) if digits.isdigit() else 0
    data.set(lock, token, int(ttl))
    last, _ = data.find(counter)
    if isinstance(last, dict):
        raise wrong_type()
    data.set(counter, proposed, int(kept))
    if last is None or (len(last) == 16 and last < proposed):
        return 1
    value = max(beyond(_number(last)), int(proposed))
    data.set(counter, b"%016d" % value, int(kept))
    return value


def _raise(data: Data, _now: int, keys: Sequence[bytes], arguments: Sequence[bytes]) -> object:
    lock, counter = keys
    token, least, kept = arguments
    if data.get(lock) != token:
        return 0
    value = count(data, counter)
    if value < int(least):
        value = int(least)
        data.set(counter, least, int(kept))
    return value


def _counted(data: Data, counter: bytes, fence: bytes) -> tuple[int, bool]:
    """Return a counter's value, and whether its master counts for the holder of *fence*."""
    said = data.get(counter)
    value = 0 if said is None else _number(said)
    return value, value <= int(fence) or (said or b"").endswith(b".0000" + fence)


def _beyond(data: Data, counters: Sequence[bytes], fence: bytes) -> tuple[int, bool]:
    """Return the highest of the *counters* beyond *fence*, 0 if none is; whether one is lower."""
    every = [_counted(data, counter, fence) for counter in counters]
    beyond = max([value for value, counts in every if not counts], default=0)
    return beyond, any(value < int(fence) for value, _ in every)


def _extend_fenced(
    data: Data, _now: int, keys: Sequence[bytes], arguments: Sequence[bytes]
) -> object:
    lock, counter = keys
    token, ttl, fence, kept = arguments
    value, counts = _counted(data, counter, fence)
    if not counts:
        return value
    holder = data.get(lock)
    if holder != token:
        return 0 if holder is None else -1
    data.pexpire(lock, int(ttl))
    if value < int(fence):
        data.set(counter, fence, int(kept))
    else:
        data.pexpire(counter, int(kept))
    data.get(lock)
    return True


def _lift(data: Data, _now: int, keys: Sequence[bytes], arguments: Sequence[bytes]) -> object:
    token, fence, ceiling, kept = arguments
    locks, counters = _halves(keys)
    beyond, low = 0, []
    for lock, counter in zip(locks, counters, strict=True):
        if data.get(lock) != token:
            return 0
        value, counts = _counted(data, counter, fence)
        beyond = beyond if counts else max(beyond, value)
        if value < int(ceiling):
            low.append(counter)
    if beyond:
        return beyond
    for counter in low:
        data.set(counter, ceiling + b".0000" + fence, int(kept))
    return True


def _restore_fenced(
    data: Data, _now: int, keys: Sequence[bytes], arguments: Sequence[bytes]
) -> object:
    token, ttl, fence, ceiling, kept = arguments
    locks, counters = _halves(keys)
    every = []
    for lock, counter in zip(locks, counters, strict=True):
        if data.get(lock) not in (token, None):
            return 0
        every.append(_counted(data, counter, fence))
    beyond = max([v for v, counts in every if not counts and v > int(ceiling)], default=0)
    for lock, counter, (value, counts) in zip(locks, counters, every, strict=True):
        data.set(lock, token, int(ttl))
        if not beyond and not counts:
            data.set(counter, ceiling + b".0000" + fence, int(kept))
        elif not beyond and value < int(fence):
            data.set(counter, fence, int(kept))
        elif not beyond:
            data.pexpire(counter, int(kept))
        data.get(lock)
    return beyond or True


def _time(now: int) -> list[bytes]:
    return [b"%d" % part for part in divmod(now, 1_000_000)]


def _acquire_all(data: Data, now: int, keys: Sequence[bytes], arguments: Sequence[bytes]) -> object:
    token, ttl, *fence = arguments
    locks, counters = _halves(keys) if fence else (keys, ())
    if fence and not fence[1] <= _time(now)[0] <= fence[2]:
        return _time(now)
    ours = 0
    for lock in locks:
        holder = get(data, lock)
        if holder not in (token, None):
            return 0
        ours += holder == token
    value = 0 if ours or not fence else int(fence[0])
    for counter in counters:
        if (last := data.get(counter)) is not None:
            value = max(value, _number(last) if ours else beyond(_number(last)))
    if 0 < ours < len(locks):
        return 0
    if not ours:
        for lock in locks:
            data.set(lock, token, int(ttl))
        for counter in counters:
            data.set(counter, b"%016d" % value, int(fence[3]))
    return value if fence else True


def _extend_all(data: Data, _now: int, keys: Sequence[bytes], arguments: Sequence[bytes]) -> object:
    token, ttl, again, *fence = arguments
    locks, counters = _halves(keys) if fence else (keys, ())
    if fence and (beyond := _beyond(data, counters, fence[0])[0]):
        return beyond
    gone = set()
    for lock in locks:
        holder = data.get(lock)
        if holder is None:
            gone.add(lock)
        elif holder != token:
            return -1
    if gone and again != b"1":
        return 0
    for i, lock in enumerate(locks):
        if lock in gone:
            data.set(lock, token, int(ttl))
        else:
            data.pexpire(lock, int(ttl))
        if fence:
            _keep(data, counters[i], fence[0], int(fence[1]))
        data.get(lock)
    return True


def _adopt(data: Data, now: int, keys: Sequence[bytes], arguments: Sequence[bytes]) -> object:
    old, new, ttl, *fence = arguments
    locks, counters = _halves(keys) if fence else (keys, ())
    beyond, low = _beyond(data, counters, fence[0]) if fence else (0, False)
    if beyond:
        return beyond
    if any(data.get(lock) not in (old, new) for lock in locks):
        return 0
    if low and int(fence[0]) > now + int(fence[2]):
        return _time(now)
    for i, lock in enumerate(locks):
        data.set(lock, new, int(ttl))
        if fence:
            _keep(data, counters[i], fence[0], int(fence[1]))
    return True


def _keep(data: Data, counter: bytes, fence: bytes, kept: int) -> None:
    """Let a counter live for *kept* ms, at the fencing token if it is not there yet."""
    if count(data, counter) < int(fence):
        data.set(counter, fence, kept)
    else:
        data.pexpire(counter, kept)


def _raise_all(data: Data, _now: int, keys: Sequence[bytes], arguments: Sequence[bytes]) -> object:
    token, least, kept = arguments
    locks, counters = _halves(keys)
    value = int(least)
    for lock, counter in zip(locks, counters, strict=True):
        if data.get(lock) != token:
            return 0
        value = max(value, count(data, counter))
    for counter in counters:
        if count(data, counter) < value:
            data.set(counter, b"%016d" % value, int(kept))
    return value


def _release_all(
    data: Data, _now: int, keys: Sequence[bytes], arguments: Sequence[bytes]
) -> object:
    others = Others()
    for lock in keys:
        others.free(data, lock, arguments[0])
    return others.answer


class Others:
    """Whose locks a script has met that are not ours."""

    def __init__(self) -> None:
        self.failed: Error | None = None
        self.gone = False
        self.holder: bytes | None = None
        self.left = -2

    def free(self, data: Data, lock: bytes, token: bytes, *, keeps: bool = False) -> bool:
        """
        Free *lock* if it is *token*'s, or note who has it; return whether it is free then.

        Args:
            keeps: Whether to note *token* as well instead.
        """
        try:
            holder = get(data, lock)
        except Error as error:
            self.failed = error
            return False
        if holder == token and not keeps:
            data.delete(lock)
        else:
            self.met(data, lock, holder)
        return holder in (token, None)

    def met(self, data: Data, lock: bytes, holder: bytes | None) -> None:
        """Note who has *lock*, and for how long if that is longer than the others."""
        if holder is None:
            self.gone = True
            return
        left = data.pttl(lock)
        if self.holder is None or (self.left >= 0 and (left < 0 or left > self.left)):
            self.holder, self.left = holder[:SHOWN], left

    @property
    def answer(self) -> object:
        """What a release says."""
        if self.failed is not None:
            raise self.failed
        if self.holder is not None:
            return [self.holder, self.left]
        return 0 if self.gone else True


def _halves(keys: Sequence[bytes]) -> tuple[Sequence[bytes], Sequence[bytes]]:
    middle = len(keys) // 2
    return keys[:middle], keys[middle:]


Run = Callable[[Data, int, Sequence[bytes], Sequence[bytes]], object]

LOCKS: dict[bytes, Run] = {
    ACQUIRE.sha: _acquire,
    ACQUIRE_ALL.sha: _acquire_all,
    ADOPT.sha: _adopt,
    EXTEND.sha: _extend,
    EXTEND_ALL.sha: _extend_all,
    EXTEND_FENCED.sha: _extend_fenced,
    LIFT.sha: _lift,
    RAISE.sha: _raise,
    RAISE_ALL.sha: _raise_all,
    RELEASE.sha: _release,
    RELEASE_ALL.sha: _release_all,
    RESTORE_FENCED.sha: _restore_fenced,
}
"""What they do, by their hash: with the time in us, the keys and the arguments."""
