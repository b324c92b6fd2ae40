"""
What the scripts do to the keys of a fake master: those that know of queues, and all.

They are translated from the files in `_rules/lua` call by call: a master notices
every single read and change of a script, and so do those it tells.
"""

import contextlib
import re
from collections.abc import Sequence

from redlock_aio._rules.holders import SHOWN
from redlock_aio._rules.scripts import DECLARE, ENQUEUE, INSPECT, LEAVE, LOOK, REVOKE
from redlock_aio.testing._fake_data import Data, Error
from redlock_aio.testing._fake_locks import LOCKS, Others, Run, beyond, count, get

LONGEST_COUNTER = 40


def _bury(data: Data, queue: bytes, live: bytes, ms: int) -> None:
    """Take those out who are not believed to live any more."""
    if dead := data.zbelow(live, ms, 100):
        data.zrem(live, *dead)
        data.zrem(queue, *dead)


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
        holder = get(data, lock)
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
        value = max(beyond(value), asked)
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
    value = max([0, *(count(data, counter) for counter in counters)])
    for lock in locks:
        data.set(lock, token, ttl)
    return value


def _leave(data: Data, now: int, keys: Sequence[bytes], arguments: Sequence[bytes]) -> object:
    token, member, how, channel = arguments
    size = len(keys) // 3
    others, called = Others(), {member}
    for lock, queue, live in zip(keys[:size], keys[size:], keys[2 * size :], strict=False):
        kept = how == b"kept"
        news = others.free(data, lock, token, keeps=kept) or kept
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
    value = get(data, lock)
    counter = _counter(data, fence)
    lives = {member: at for member, at in _all(data, live).items() if at >= now // 1000}
    waiting = [lives[member] for member in _all(data, queue) if member in lives]
    granted = value is not None and any(at % 1 for at in waiting)
    shown = None if value is None else value[:SHOWN]
    return [shown, data.pttl(lock), counter, len(waiting) - granted]


def _look(data: Data, _now: int, keys: Sequence[bytes], _: Sequence[bytes]) -> object:
    values: list[object] = []
    failed = None
    for lock in keys:
        try:
            value = get(data, lock)
        except Error as error:
            failed = error
        else:
            values.append(None if value is None else value[:SHOWN])
    if failed is not None:
        raise failed
    return values


def _revoke(data: Data, _now: int, keys: Sequence[bytes], arguments: Sequence[bytes]) -> object:
    lock, queue, live = keys
    value, instead, ttl, channel = arguments
    holder = get(data, lock)
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


def _declare(data: Data, now: int, keys: Sequence[bytes], arguments: Sequence[bytes]) -> object:
    how, ours, age, lasts, former = arguments
    now //= 1000
    try:
        kept = data.get(keys[0]) or b""
    except Error:
        kept = b""
    kept = kept if len(kept) <= 262_144 else b""
    since, sets, taken = now - int(age), [], set()
    for *numbers, text in re.findall(rb"(\d+) (\d+) (\d+) ([^\n]+)\n", kept):
        begun, at, lives = (int(number) for number in numbers)
        if abs(now - at) >= lives or lives >= 10**12 or begun >= now + 1000:
            continue
        if how == b"write" and text == ours:
            since = min(since, begun)
        elif (how, text) != (b"write", former) and (
            (how, text) != (b"withdraw", ours) or begun < at
        ):
            sets.append((begun, at, lives, text))
            taken.add(begun)
    if how == b"write":
        while since in taken:
            since += 1
        sets.append((since, now, int(lasts), ours))
    sets = sets[-64:]
    if how != b"read":
        longest = max([1, *(at + lives - now for _, at, lives, _ in sets)])
        data.set(keys[0], b"".join(b"%d %d %d %b\n" % each for each in sets), longest)
    return [part for begun, _, _, text in sets for part in (text, max(now - begun, -1000))]


SCRIPTS: dict[bytes, Run] = {
    **LOCKS,
    DECLARE.sha: _declare,
    ENQUEUE.sha: _enqueue,
    INSPECT.sha: _inspect,
    LEAVE.sha: _leave,
    LOOK.sha: _look,
    REVOKE.sha: _revoke,
}
"""What the scripts do, by their hash: with the time in us, the keys and the arguments."""
