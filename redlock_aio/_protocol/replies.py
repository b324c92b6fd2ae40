"""The meaning of a master's replies and pushes."""

import math
import re
from collections.abc import Callable, Sequence
from typing import NamedTuple

from redlock_aio._protocol import tags
from redlock_aio._protocol.commands import NEVER
from redlock_aio._protocol.request import GOT_LATE, NoReply
from redlock_aio._rules import quorum
from redlock_aio._rules.fair_ticket import Position
from redlock_aio._rules.membership import LIVES, Line, parse
from redlock_aio._rules.quorum import NOT_YET, OK, Answer, Vote, is_permanent

OLDEST_SERVER = 6
"""The first Redis whose connections speak RESP3; every Valkey does."""


def harmless(text: str, secrets: tuple[str, ...] = ()) -> str:
    """
    Return *text* without secrets, on one line, cut after 400 characters.

    A server's error may repeat the arguments of a command, cut and with some characters
    replaced. These arguments are removed, and everything that could be a token, and all
    of *secrets*.
    """
    text = re.sub(r"[,;]?\s*(with )?args beginning with.*", "", text, flags=re.DOTALL)
    for secret in secrets:
        text = text.replace(secret, "***")
    text = re.sub(r"[A-Za-z0-9+/]{28}", "***", text)
    return "".join(c if c.isprintable() else " " for c in text)[:400]


def looked(reply: object, keys: int = 1) -> list[bytes | None] | None:
    """Return the values in the reply to `look` for *keys* keys; ``None`` if it is malformed."""
    if not isinstance(reply, list) or len(reply) != keys:
        return None
    return reply if all(isinstance(value, bytes | None) for value in reply) else None


_CONFIRMATIONS = (b"subscribe", b"unsubscribe", b"ssubscribe", b"sunsubscribe")


def confirmation(push: object) -> bytes:
    """Return the kind of a *push* that says that a subscription began or ended, or nothing."""
    if isinstance(push, list) and len(push) == 3 and push[0] in _CONFIRMATIONS:
        return bytes(push[0])
    return b""


EVERYTHING_CHANGED = [b"invalidate", None]
"""The push after a flush, or when a master drops its tracked keys: any key may have changed."""

GONE = [b"gone"]
"""A push that the library creates when a connection ends."""

OTHERS = -1
"""The reply to an extension if another holder has the lock; it is 0 if the lock is free."""


def for_each(reply: object, leases: int) -> Sequence[object]:
    """Return the reply for each of several *leases* in the *reply* to `extend`."""
    if isinstance(reply, list) and len(reply) == leases:
        return reply
    if not isinstance(reply, Exception | NoReply):
        reply = NoReply(Answer.ERROR, f"a malformed reply: a {type(reply).__name__}")
    return [reply] * leases


def is_settled(reply: object) -> bool:
    """
    Return whether the *reply* to a release proves that this client's value is not on the master.

    The value was deleted, was already gone, or another one is in its place.
    """
    if is_of_another_type(reply):  # this library never locks with a list or a set
        return True
    # A list is the value and the ttl of another holder's lock.
    return reply == OK or reply == 0 or isinstance(reply, list)  # noqa: PLR1714


def is_unsettled(reply: object) -> bool:
    """Return whether a release has to be repeated after this *reply*."""
    if reply.__class__ is NoReply:
        # No reply arrives on a connection that has ended. After a timeout it may still arrive.
        return reply.answer is Answer.UNREACHABLE
    return isinstance(reply, Exception) and not is_settled(reply)


def is_of_another_type(reply: object) -> bool:
    """Return whether the key of a lock holds another type than a string, so it is no lock."""
    return isinstance(reply, Exception) and str(reply).startswith("WRONGTYPE")


def is_forbidden(reply: object) -> bool:
    """Return whether the access list (ACL) of a master forbids a command or a script's calls."""
    return isinstance(reply, Exception) and quorum.is_forbidden(str(reply))


def lacks_command(reply: object) -> bool:
    """Return whether a master does not know the command, or forbids it to this user."""
    text = str(reply) if isinstance(reply, Exception) else ""
    return text.startswith(("NOPERM", "ERR unknown")) and "command" in text


def has_no_script(reply: object) -> bool:
    """Return whether a master lacks the script; its connection loads the scripts again."""
    return isinstance(reply, Exception) and str(reply).startswith("NOSCRIPT")


def changed(push: object) -> Sequence[bytes] | None:
    """Return the keys that a *push* reports as changed; ``None`` if any key may have changed."""
    if not isinstance(push, list) or len(push) != 2 or push[0] != b"invalidate":
        return ()
    if push[1] is None:
        return None
    return [key for key in push[1] if isinstance(key, bytes)] if isinstance(push[1], list) else ()


def called(push: object) -> tuple[bytes, bytes]:
    """
    Return the member of a queue that a *push* wakes, and the permit for which it waits now.

    The first is empty if the push wakes nobody, the second if the lock has no permits.
    """
    if isinstance(push, list) and len(push) == 3 and push[0] == b"message":
        member, _, permit = push[2].partition(b" ") if isinstance(push[2], bytes) else (b"", 0, b"")
        return member, permit
    return b"", b""


def held(reply: object) -> tuple[bytes, float] | None:
    """
    Return the value and the remaining seconds of another lock in the *reply* to a release.

    The seconds are infinite if the lock does not end; ``None`` if the reply names no lock.
    """
    if not isinstance(reply, list) or len(reply) != 2:
        return None
    value, left = reply
    if not isinstance(value, bytes) or not isinstance(left, int) or left > NEVER:
        return None
    return value, left / 1000 if left >= 0 else math.inf


def time(reply: object) -> int | None:
    """Return the reply to `TIME` in microseconds; ``None`` if it is malformed."""
    if not isinstance(reply, list) or len(reply) != 2:
        return None
    seconds, rest = reply
    if not (isinstance(seconds, bytes) and isinstance(rest, bytes)):
        return None
    if not (seconds.isdigit() and rest.isdigit() and len(seconds + rest) < 20):
        return None
    now = int(seconds) * 1_000_000 + int(rest)
    return now if now < NEVER else None


def restored(push: object, tag: bytes) -> object:
    """Return a *push* of a master of a Cluster with the keys in it as the engine knows them."""
    match push:
        case [b"invalidate", list(keys)]:
            return [push[0], [_restored(key, tag) for key in keys]]
        case [b"message" | b"smessage", channel, bytes(data)]:
            # A member of a queue, which has no braces, and behind it the key of a permit.
            return [b"message", channel, _restored(data, tag)]
    return push


def _restored(key: object, tag: bytes) -> object:
    return tags.restored(key, tag) if isinstance(key, bytes) else key


class Queued(NamedTuple):
    """
    The reply to `enqueue`.

    Attributes:
        standing: The standing of the member at this master.

        left: The remaining seconds of the lock there, infinite if it does not end.

        now: The master's clock, in microseconds.

        holder: The value of the lock, if there is one.

        counter: The value of the counter, if the lock was granted with one; else 0.

        in_queue: Whether the member is in the queue, if it is granted the lock.

        moved: The number of the permit to whose queue the master has moved the member.
    """

    standing: Position
    left: float
    now: int
    holder: bytes | None
    counter: int
    in_queue: bool = True
    moved: int | None = None


_SAID = (
    Position.GRANTED,
    Position.NEXT,
    Position.BEHIND,
    Position.FULL,
    Position.FAILED,
    Position.BEHIND,
)
_MOVED = 5


def granted_outside_queue(reply: object) -> int | None:
    """Return the counter of a grant without a queue entry; ``None`` for another *reply*."""
    if not isinstance(reply, list) or len(reply) != 2:
        return None
    now, counter = reply
    if now.__class__ is not int or counter.__class__ is not int:
        return None
    return counter if 0 <= now < NEVER and 0 <= counter < NEVER else None


def queued(reply: object) -> Queued | None:
    """Parse the reply to `enqueue`; ``None`` if it is malformed."""
    counter = granted_outside_queue(reply)
    if counter is not None and isinstance(reply, list):
        return Queued(Position.GRANTED, 0.0, reply[0], None, counter, in_queue=False)
    if not isinstance(reply, list) or len(reply) != 5:
        return None
    what, left, now, holder, counter = reply
    if {type(number) for number in (what, left, now, counter)} != {int}:
        return None
    least = 0 if what == _MOVED else -2
    known = 0 <= what < len(_SAID) and least <= left <= NEVER
    if not (known and 0 <= now < NEVER and 0 <= counter < NEVER):
        return None
    value = holder if isinstance(holder, bytes) else None
    if what == _MOVED:
        return Queued(_SAID[what], math.inf, now, None, 0, moved=left)
    return Queued(_SAID[what], left / 1000 if left >= 0 else math.inf, now, value, counter)


class Taken(NamedTuple):
    """
    The reply to `primitives.Permits.take`.

    Attributes:
        granted: Whether a permit was granted.

        number: That of the permit, or of one to wait for.

        counter: The value of its counter, if it was granted with one; else 0.

        holder: Its value, if it is held.

        left: Its remaining seconds then, infinite if it does not end.
    """

    granted: bool
    number: int
    counter: int
    holder: bytes | None
    left: float


def taken(reply: object) -> Taken | NoReply:
    """Parse the reply to `primitives.Permits.take`; a `NoReply` if it names no permit."""
    if not isinstance(reply, list) or len(reply) != 6:
        return classify(reply)
    code, number, _, counter, left, holder = reply
    if not (type(code) is type(number) is type(counter) is type(left) is int):
        return classify(reply)
    if code not in (0, 1) or not (0 <= number < NEVER and 0 <= counter < NEVER > left):
        return GOT_LATE
    value = holder if isinstance(holder, bytes) else None
    return Taken(code == 0, number, counter, value, left / 1000 if left >= 0 else math.inf)


def scanned(reply: object) -> tuple[bytes, list[bytes]] | None:
    match reply:
        case [bytes(cursor), list(keys)] if all(isinstance(key, bytes) for key in keys):
            return cursor, keys
    return None


def vote(master: str, reply: object, classify: Callable[[object], NoReply]) -> Vote:
    """
    Return the vote of *master* in its *reply*.

    Args:
        classify: What the reply means, which depends on the question: one of the functions below.
    """
    what = classify(reply)
    return Vote(master, what.answer, what.detail, permanent=what.permanent)


def classify(reply: object) -> NoReply:
    """Classify a *reply* to a request for a lock, with a detail that holds no secret."""
    if isinstance(reply, NoReply):
        return reply
    if reply is NOT_YET:
        return NoReply(Answer.TIMED_OUT, "not answered when the round was decided")
    if isinstance(reply, Exception):
        text = harmless(str(reply))
        if text.startswith("WRONGTYPE Operation"):  # the server's own words, which contain no names
            text = "WRONGTYPE a key of another type is where the lock, its counter or its queue is"
        return NoReply(Answer.ERROR, text, is_permanent(text))
    if reply == OK:
        return NoReply(Answer.GRANTED)
    if reply is None or (type(reply) is int and reply in {0, OTHERS}):
        return NoReply(Answer.HELD)
    return NoReply(Answer.ERROR, f"a malformed reply: a {type(reply).__name__}")


def classify_kept(reply: object) -> NoReply:
    """
    Classify a *reply* about a key that a lease had: to its extension, check or release.

    0 means that the key is gone, another integer or a list that another holder has it, or
    has had it since.
    """
    if isinstance(reply, list) or (isinstance(reply, int) and reply):
        return NoReply(Answer.HELD)
    return NoReply(Answer.FREE) if reply == 0 else classify(reply)


def classify_freed(reply: object) -> NoReply:
    """Classify the *reply* to `free`, as `classify_kept`; 0 may also mean another holder's key."""
    return NoReply(Answer.HELD, "or free") if reply == 0 else classify_kept(reply)


def classify_looked(reply: object) -> NoReply:
    """Classify the *reply* to `look` for one key: whether somebody has the lock there."""
    if (values := looked(reply)) is not None:
        return NoReply(Answer.FREE if values[0] is None else Answer.HELD)
    return classify(reply)


class Declared(NamedTuple):
    """
    The reply to `commands.declare`.

    Attributes:
        found: How many of the texts that were written were there before.
    """

    found: int
    lines: list[Line]


def declared(reply: object, now: float) -> Declared | None:
    """Parse the *reply* to `declare` that arrived *now*; ``None`` if it is malformed."""
    if not isinstance(reply, list) or len(reply) % 2 == 0 or type(reply[0]) is not int:
        return None
    found, *rest = reply
    lines = []
    for text, times in zip(rest[::2], rest[1::2], strict=True):
        line = parse(text)
        if line is None or not isinstance(times, list) or [type(ms) for ms in times] != [int] * 3:
            continue
        since, left, lives = times
        until = now + left / 1000
        held = until - lives / 1000 * (1 - 1 / LIVES)
        lines.append(Line(*line, since, until, held))
    return Declared(found, lines)
