"""
The commands about keys, as clients and scripts send them to a fake master.

Implemented are the commands that the library and its scripts use. An unknown option is an error,
and never ignored.
"""

import functools
import re
from collections.abc import Callable, Iterator, Sequence
from hashlib import sha1

from redlock_aio.testing._fake_data import Data, Value
from redlock_aio.testing._fake_lua import OK, Error, Status, lua

Command = Callable[..., object]
"""Execute one command; the arguments are bytes."""


class KeyCommands:
    """
    The part of a master that executes commands about keys and scripts.

    Args:
        data: The keys of the master.
    """

    def __init__(self, data: Data) -> None:
        self._data = data
        self._lua = lua()
        self._scripts: set[bytes] = set()

    def _handler(self, name: bytes) -> Command:
        """
        Return the method that executes the command *name*.

        Raises:
            Error: The command does not exist.
        """
        command: Command | None = getattr(self, _method(name), None)
        if command is None:
            raise Error(f"ERR unknown command '{name.decode()}'")
        return command

    def _clock(self) -> int:
        """Return the time on its clock, in microseconds."""
        raise NotImplementedError

    def _do_time(self) -> object:
        return [b"%d" % part for part in divmod(self._clock(), 1_000_000)]

    # Scripts.

    def _do_script(self, verb: bytes, text: bytes = b"") -> object:
        if verb.lower() == b"flush":
            self._scripts.clear()
            return OK
        if verb.lower() != b"load":
            raise _syntax_error()
        sha = self._lua.load(text)
        self._scripts.add(sha)
        return sha

    def _do_evalsha(self, sha: bytes, number: bytes, *words: bytes) -> object:
        if sha not in self._scripts:
            raise Error("NOSCRIPT No matching script.")
        return self._lua.run(sha, self._called, int(number), words)

    def _called(self, name: bytes, *arguments: bytes) -> object:
        """Execute a command of a script; the access list does not apply."""
        return self._handler(name)(*arguments)

    # Keys of any type.

    def _do_del(self, *keys: bytes) -> object:
        return sum(map(self._data.delete, keys))

    def _do_pttl(self, key: bytes) -> object:
        return self._data.pttl(key)

    def _do_scan(self, cursor: bytes, *options: bytes) -> object:
        """
        Look at the next keys, in an order that depends on their names alone.

        So a key that stays is found, whatever is set, deleted or ends between two steps.
        """
        if [option.upper() for option in options[::2]] != [b"MATCH", b"COUNT", b"TYPE"]:
            raise _syntax_error()
        prefix, count, kind = _prefix(options[1]), _integer(options[3]), options[5]
        begin = _integer(cursor)
        rest = sorted((place, name) for name in self._data.keys if (place := _place(name)) >= begin)
        found = [
            name
            for _, name in rest[:count]
            if name.startswith(prefix) and _type(self._data.find(name)[0]) == kind
        ]
        return [b"%d" % (rest[count][0] if len(rest) > count else 0), found]

    def _do_pexpire(self, key: bytes, ttl: bytes) -> object:
        return self._data.pexpire(key, _integer(ttl))

    def _do_type(self, key: bytes) -> object:
        return _type(self._data.read(key)[0])

    def _do_publish(self, channel: bytes, message: bytes) -> object:
        return self._data.publish(channel, message)

    # Strings.

    def _do_get(self, key: bytes) -> object:
        return self._data.get(key)

    def _do_getrange(self, key: bytes, first: bytes, last: bytes) -> object:
        return (self._data.get(key) or b"")[_integer(first) : _integer(last) + 1]

    def _do_set(self, key: bytes, value: bytes, *options: bytes) -> object:
        ttl, new, old = None, False, None
        words = iter(options)
        for option in words:
            match option.upper():
                case b"NX":
                    new = True
                case b"GET":
                    old = self._data.string(key)
                case b"PX":
                    ttl = _integer(_next(words))
                case _:
                    raise _syntax_error()
        if ttl is not None and ttl <= 0:
            raise Error("ERR invalid expire time in 'set' command")
        if new and self._data.find(key)[0] is not None:
            return None
        self._data.set(key, value, ttl)
        return old if b"GET" in options else OK

    def _do_delifeq(self, key: bytes, value: bytes) -> object:
        return self._data.delete(key) if self._data.string(key) == value else 0

    # Sorted sets.

    def _do_zadd(self, key: bytes, *words: bytes) -> object:
        if not words or len(words) % 2:
            raise _syntax_error()
        try:
            scores = [float(score) for score in words[::2]]
        except ValueError:
            raise Error("ERR value is not a valid float") from None
        pairs = zip(scores, words[1::2], strict=True)
        return sum([self._data.zadd(key, score, member) for score, member in pairs])

    def _do_zrem(self, key: bytes, *members: bytes) -> object:
        return self._data.zrem(key, *members)

    def _do_zscore(self, key: bytes, member: bytes) -> object:
        score = self._data.zall(key).get(member)
        return None if score is None else b"%.17g" % score

    def _do_zrank(self, key: bytes, member: bytes) -> object:
        members = list(self._data.zall(key))
        return members.index(member) if member in members else None

    def _do_zcard(self, key: bytes) -> object:
        return self._data.zcard(key)

    def _do_zrange(self, key: bytes, first: bytes, last: bytes, *options: bytes) -> object:
        if [option.upper() for option in options] not in ([], [b"WITHSCORES"]):
            raise _syntax_error()
        begin, end = _integer(first), _integer(last)
        found = list(self._data.zall(key).items())
        begin, end = (place + len(found) if place < 0 else place for place in (begin, end))
        return _elements(found[max(begin, 0) : max(end + 1, 0)], scores=bool(options))

    def _do_zrangebyscore(self, key: bytes, low: bytes, high: bytes, *options: bytes) -> object:
        offset, count, scores = 0, -1, False
        words = iter(options)
        for option in words:
            match option.upper():
                case b"WITHSCORES":
                    scores = True
                case b"LIMIT":
                    offset, count = _integer(_next(words)), _integer(_next(words))
                case _:
                    raise _syntax_error()
        above, below = _bound(low, above=True), _bound(high, above=False)
        found = [(m, s) for m, s in self._data.zall(key).items() if above(s) and below(s)]
        found = found[offset : offset + count if count >= 0 else None] if offset >= 0 else []
        return _elements(found, scores=scores)


@functools.cache
def _prefix(pattern: bytes) -> bytes:
    """Return the prefix for which *pattern* stands, the only kind of pattern that is known."""
    if not re.fullmatch(rb"(?:\\.|[^*?\[\]^\\])*\*", pattern, re.DOTALL):
        raise _syntax_error()
    return re.sub(rb"\\(.)", rb"\1", pattern[:-1], flags=re.DOTALL)


def _type(value: Value | None) -> Status:
    if value is None:
        return Status(b"none")
    return Status(b"zset" if isinstance(value, dict) else b"string")


def _place(key: bytes) -> int:
    """Return the place of a key in a scan."""
    return int.from_bytes(sha1(key, usedforsecurity=False).digest()[:6])


@functools.lru_cache(1_000)  # looked up for each command of a script
def _method(command: bytes) -> str:
    return f"_do_{command.decode().lower()}"


def _next(words: Iterator[bytes]) -> bytes:
    """Return the argument of an option."""
    word = next(words, None)
    if word is None:
        raise _syntax_error()
    return word


def _integer(text: bytes) -> int:
    try:
        return int(text)
    except ValueError:
        raise Error("ERR value is not an integer or out of range") from None


def _bound(text: bytes, *, above: bool) -> Callable[[float], bool]:
    """Return a predicate for one end of a range of scores; "(" excludes the end itself."""
    strict = text.startswith(b"(")
    try:
        bound = float(text.removeprefix(b"("))
    except ValueError:
        raise Error("ERR min or max is not a float") from None
    if above:
        return bound.__lt__ if strict else bound.__le__
    return bound.__gt__ if strict else bound.__ge__


def _elements(found: Sequence[tuple[bytes, float]], *, scores: bool) -> list[bytes]:
    """Return members of a sorted set as a reply lists them."""
    if scores:
        return [word for member, score in found for word in (member, b"%.17g" % score)]
    return [member for member, _ in found]


def _syntax_error() -> Error:
    return Error("ERR syntax error")
