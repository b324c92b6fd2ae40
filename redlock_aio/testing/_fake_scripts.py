"""
What the scripts do to the keys of a fake master.

They are translated from the files in `_rules/lua` call by call: a master notices
every single read and change of a script, and so do those it tells.
"""

import contextlib
from collections.abc import Callable, Sequence

from redlock_aio._rules.scripts import (
    ACQUIRE,
    ACQUIRE_ALL,
    ENQUEUE,
    EXTEND,
    EXTEND_ALL,
    EXTEND_FENCED,
    INSPECT,
    LEAVE,
    RAISE,
    RAISE_ALL,
    RELEASE,
    RELEASE_ALL,
    REVOKE,
)
from redlock_aio.testing._fake_data import Data, Error, wrong_type

LONGEST_COUNTER = 20


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
    time = _time(now)
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
        raise wrong_type()
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


def _time(now: int) -> list[bytes]:
    return [b"%d" % part for part in divmod(now, 1_000_000)]


def _highest(data: Data, counters: Sequence[bytes], least: int) -> int:
    return max([least, *(_count(data, counter) for counter in counters)])


def _acquire_all(data: Data, now: int, keys: Sequence[bytes], arguments: Sequence[bytes]) -> object:
    token, ttl, *fence = arguments
    locks, counters = _halves(keys) if fence else (keys, ())
    if fence and not fence[1] <= _time(now)[0] <= fence[2]:
        return _time(now)
    ours = 0
    for lock in locks:
        holder = data.get(lock)
        if holder not in (token, None):
            return 0
        ours += holder == token
    value = 0 if ours or not fence else int(fence[0])
    for counter in counters:
        if (last := data.get(counter)) is not None:
            value = max(value, _number(last) if ours else _next(_number(last)))
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
    own = int(fence[0]) if fence else 0
    beyond = _highest(data, counters, 0)
    if beyond > own:
        return beyond
    gone = set()
    for lock in locks:
        holder = data.get(lock)
        if holder is None and again == b"1":
            gone.add(lock)
        elif holder != token:
            return 0
    for i, lock in enumerate(locks):
        if lock in gone:
            data.set(lock, token, int(ttl))
        else:
            data.pexpire(lock, int(ttl))
        if fence and _count(data, counters[i]) < own:
            data.set(counters[i], fence[0], int(fence[1]))
        elif fence:
            data.pexpire(counters[i], int(fence[1]))
        data.get(lock)
    return True


def _raise_all(data: Data, _now: int, keys: Sequence[bytes], arguments: Sequence[bytes]) -> object:
    token, least, kept = arguments
    locks, counters = _halves(keys)
    value = int(least)
    for lock, counter in zip(locks, counters, strict=True):
        if data.get(lock) != token:
            return 0
        value = max(value, _count(data, counter))
    for counter in counters:
        if _count(data, counter) < value:
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

    def free(self, data: Data, lock: bytes, token: bytes) -> bool:
        """Free *lock* if it is *token*'s, or note who has it; return whether it is free then."""
        try:
            holder = data.get(lock)
        except Error as error:
            self.failed = error
            return False
        if holder == token:
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
            self.holder, self.left = holder, left

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


def _enqueue(data: Data, now: int, keys: Sequence[bytes], arguments: Sequence[bytes]) -> object:
    token, _, member = arguments[:3]
    ttl, priority, lives, most, not_after = (int(arguments[i]) for i in (1, 3, 4, 5, 6))
    asked, lead, kept = (int(n) for n in arguments[7:]) if arguments[7:] else (now, 0, 0)
    if now > not_after or abs(asked - now) > lead:
        return [4, -2, now, None, 0]
    size = len(keys) // (4 if arguments[7:] else 3)
    locks, queues, lives_in, counters = (keys[i : i + size] for i in range(0, 4 * size, size))
    mine, full, others, new = True, False, Others(), []
    for lock, queue, live in zip(locks, queues, lives_in, strict=True):
        _bury(data, queue, live, now // 1000)
        holder = data.get(lock)
        mine = mine and holder == token
        if holder != token and holder is not None:
            others.met(data, lock, holder)
        new.append(data.zscore(queue, member) is None)
        full = full or (new[-1] and data.zcard(queue) >= most)
    if full and not mine:
        return [3, others.left, now, others.holder, 0]
    place = None if mine else priority
    first = _stand(data, queues, member, place, [lives + 100, *new])
    granted = mine or (first and others.holder is None)
    for live in lives_in:
        data.zadd(live, now // 1000 + (min(lives, ttl) + 0.5 if granted else lives), member)
        data.pexpire(live, lives + 100)
    if not granted:
        return [1 if first else 2, others.left, now, others.holder, 0]
    value = _grant(data, locks, counters, token, ttl)
    if counters and (not mine or value == 0):
        value = max(_next(value), asked)
    for counter in counters:
        data.set(counter, b"%016d" % value, kept)
    return [0, ttl, now, token, value]


def _stand(
    data: Data, queues: Sequence[bytes], member: bytes, place: int | None, how: Sequence[int]
) -> bool:
    """Enter the queues that are new, if there is a place for it; return whether it is the first."""
    first = True
    lives, *new = how
    for queue, is_new in zip(queues, new, strict=True):
        if is_new and place is not None:
            data.zadd(queue, place, member)
        first = data.zfirst(queue) == member and first
        data.pexpire(queue, lives)
    return first


def _grant(
    data: Data, locks: Sequence[bytes], counters: Sequence[bytes], token: bytes, ttl: int
) -> int:
    """Set the locks; return the highest of their counters."""
    value = 0
    for i, lock in enumerate(locks):
        data.set(lock, token, ttl)
        if counters:
            value = max(value, _count(data, counters[i]))
    return value


def _leave(data: Data, now: int, keys: Sequence[bytes], arguments: Sequence[bytes]) -> object:
    token, member, how, channel = arguments
    size = len(keys) // 3
    others, called = Others(), {member}
    for lock, queue, live in zip(keys[:size], keys[size:], keys[2 * size :], strict=False):
        news = others.free(data, lock, token)
        if how != b"stay":
            news = news or data.zfirst(queue) == member
            data.zrem(queue, member)
            data.zrem(live, member)
        if news:
            _bury(data, queue, live, now // 1000)
            first = data.zfirst(queue)
            if first is not None and first not in called:
                called.add(first)
                data.publish(channel + first.partition(b"/")[0], first)
    return others.answer


def _all(data: Data, key: bytes) -> dict[bytes, float]:
    """Return the members of a set; of anything else, none."""
    try:
        return data.zall(key)
    except Error:
        return {}


def _counter(data: Data, key: bytes) -> bytes | None:
    try:
        said = data.get(key)
    except Error:
        return None
    return said if said is None or len(said) <= LONGEST_COUNTER else None


def _inspect(data: Data, now: int, keys: Sequence[bytes], _: Sequence[bytes]) -> object:
    lock, fence, queue, live = keys
    value = data.get(lock)
    counter = _counter(data, fence)
    lives = {member: at for member, at in _all(data, live).items() if at >= now // 1000}
    waiting = [lives[member] for member in _all(data, queue) if member in lives]
    granted = value is not None and any(at % 1 for at in waiting)
    return [value, data.pttl(lock), counter, len(waiting) - granted]


def _revoke(data: Data, _now: int, keys: Sequence[bytes], arguments: Sequence[bytes]) -> object:
    lock, queue, live = keys
    value, instead, ttl, channel = arguments
    holder = data.get(lock)
    if holder is not None and holder != value:
        return 0
    data.set(lock, instead, int(ttl))
    if holder is None:
        return 0
    for member, until in _all(data, live).items():
        if until % 1:
            data.zrem(live, member)
            with contextlib.suppress(Error):
                data.zrem(queue, member)
            data.publish(channel + member.partition(b"/")[0], member)
    return True


Run = Callable[[Data, int, Sequence[bytes], Sequence[bytes]], object]

SCRIPTS: dict[bytes, Run] = {
    ACQUIRE.sha: _acquire,
    ACQUIRE_ALL.sha: _acquire_all,
    ENQUEUE.sha: _enqueue,
    EXTEND.sha: _extend,
    EXTEND_ALL.sha: _extend_all,
    EXTEND_FENCED.sha: _extend_fenced,
    INSPECT.sha: _inspect,
    LEAVE.sha: _leave,
    RAISE.sha: _raise,
    RAISE_ALL.sha: _raise_all,
    RELEASE.sha: _release,
    RELEASE_ALL.sha: _release_all,
    REVOKE.sha: _revoke,
}
"""What the scripts do, by their hash: with the time in us, the keys and the arguments."""
