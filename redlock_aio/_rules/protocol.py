"""
What is said to a master, and what its reply means.

Commands are packed here into the bytes that all masters get, and replies are
read into votes. How the bytes travel is the transport's business.
"""

import enum
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from redlock_aio._rules.fairness import Standing
from redlock_aio._rules.quorum import GRANTED, NOT_YET, Answer, is_permanent
from redlock_aio._rules.scripts import ENQUEUE, EXTEND, LEAVE, LOOK as LOOK_AT, RELEASE, pack

OLDEST_SERVER = 6
"""The first Redis whose connections speak RESP3; every Valkey does."""


@dataclass(frozen=True, slots=True)
class Silence:
    """Stands in a tally where a master gave no reply, and says why."""

    answer: Answer
    detail: str = ""
    permanent: bool = False


class Trust(enum.Enum):
    """What becomes of a command at a master that may have forgotten locks."""

    FULL = "it is executed and answered as ever"
    IF_FOUND = "it is executed; that nothing was there to be freed means nothing"
    MUTED = "it is executed, but of the answers only a refusal by others counts"
    NONE = "it is not sent"


class Asker(Protocol):
    """Whoever sends a command and is to be told the reply."""

    trust: Trust
    payload: bytes
    debt_ttl: int
    """For a release: how many ms its key may live, so that it is not forgotten; 0 otherwise."""

    @property
    def needless(self) -> int:
        """For a release: a bit for each master that never got what it takes back; 0 otherwise."""

    def answered(self, master: int, reply: object, /) -> None:
        """Take the reply of the master with this number; a `Silence` if there will be none."""


TIMED_OUT = Silence(Answer.TIMED_OUT)
OVERRUN = Silence(Answer.ERROR, "too many requests are unanswered")


INFO = pack(b"INFO")
# Answered without an error by a server that has the command and lets us use it.
CAN_FREE = pack(b"DELIFEQ", b"redlock_aio:marker", b"")
PING = pack(b"PING")
TIME = pack(b"TIME")
# A connection is told of changes of what it has read, but only of what it has
# asked for with CACHING just before, and not of what it has changed itself.
TRACKING = pack(b"CLIENT", b"TRACKING", b"ON", b"OPTIN", b"NOLOOP")
CACHING = pack(b"CLIENT", b"CACHING", b"YES")

MARKER = b"redlock_aio:marker"
"""The key by which it is seen that a master may have forgotten locks; see `restarts`."""

NEVER = 2**53
"""An instant on a master's clock, in microseconds, that lies after all others."""

CHANNEL = b"redlock_aio:wake:"
"""What the channels begin with on which the next in a queue is woken."""

_SET_HEAD = b"*6\r\n$3\r\nSET\r\n$%d\r\n%b\r\n"
_SET_TAIL = b"$2\r\nNX\r\n$2\r\nPX\r\n$%d\r\n%b\r\n"
_BULK = b"$%d\r\n%b\r\n"
_EXTEND = b"*6\r\n$7\r\nEVALSHA\r\n$40\r\n" + EXTEND.sha + b"\r\n$1\r\n1\r\n$%d\r\n%b\r\n"
_RELEASE = b"*5\r\n$7\r\nEVALSHA\r\n$40\r\n" + RELEASE.sha + b"\r\n$1\r\n1\r\n$%d\r\n%b\r\n"


def acquire(key: bytes, token: bytes, ttl: int) -> bytes:
    """Return the command that takes *key* for *token*, if nobody has it."""
    digits = b"%d" % ttl
    return (_SET_HEAD + _BULK + _SET_TAIL) % (
        len(key), key, len(token), token, len(digits), digits,
    )  # fmt: skip


def extend(key: bytes, token: bytes, ttl: int) -> bytes:
    """Return the command that lets *key* live for *ttl* more, if it is *token*'s."""
    digits = b"%d" % ttl
    return (_EXTEND + _BULK + _BULK) % (
        len(key), key, len(token), token, len(digits), digits,
    )  # fmt: skip


def release(key: bytes, token: bytes) -> bytes:
    """Return the command that frees *key*, if it is *token*'s."""
    return (_RELEASE + _BULK) % (len(key), key, len(token), token)


def free(key: bytes, token: bytes) -> bytes:
    """Do as `release`, on a server that has a command for it; answers 1 or 0."""
    return b"*3\r\n$7\r\nDELIFEQ\r\n$%d\r\n%b\r\n$%d\r\n%b\r\n" % (
        len(key), key, len(token), token,
    )  # fmt: skip


def look(*keys: bytes) -> bytes:
    """Return the command that reads the values of *keys*, each cut: see `holders.SHOWN`."""
    return pack(b"EVALSHA", LOOK_AT.sha, b"%d" % len(keys), *keys)


def looked(reply: object, keys: int = 1) -> list[bytes | None] | None:
    """Return the values in the reply to `look` for so many *keys*; ``None`` if it has none."""
    if not isinstance(reply, list) or len(reply) != keys:
        return None
    return reply if all(isinstance(value, bytes | None) for value in reply) else None


LONGEST_MARKER = 4_096
"""How many bytes of a marker are read: ours are shorter, and a stranger may write any number."""

# Not a script: a master that has forgotten those is asked for its marker all the same.
LOOK = pack(b"GETRANGE", MARKER, b"0", b"%d" % (LONGEST_MARKER - 1))


def mark(value: bytes, *, careful: bool) -> bytes:
    """Return the command that sets a master's marker, if *careful* only where there is none."""
    return pack(b"SET", MARKER, value, *([b"NX"] if careful else []))


def subscription(client: bytes, *, begins: bool) -> bytes:
    """Return the command that subscribes to the wake-up channel of *client*, or ends that."""
    return pack(b"SUBSCRIBE" if begins else b"UNSUBSCRIBE", CHANNEL + client)


def is_confirmation(push: object) -> bool:
    """Return whether a *push* is the reply to a subscription."""
    kinds = (b"subscribe", b"unsubscribe")
    return isinstance(push, list) and len(push) == 3 and push[0] in kinds


def hash_tagged(key: bytes) -> bytes:
    """
    Return how the names end of what belongs to *key*.

    The braces keep them in the slot of *key* in a Redis Cluster; a key that has
    such a part keeps its own.
    """
    return b"=" + key if hash_tag(key) != key else b"{%b}" % key


def hash_tag(key: bytes) -> bytes:
    """Return the part of *key* that says in which slot of a Redis Cluster it is."""
    _, brace, rest = key.partition(b"{")
    tag, closed, _ = rest.partition(b"}")
    return tag if brace and closed and tag else key


def queue_keys(*keys: bytes) -> tuple[bytes, ...]:
    """Return the names of the queues for *keys*, and of what says who in them lives."""
    names = [hash_tagged(key) for key in keys]
    queues = [b"redlock_aio:queue:" + name for name in names]
    return *queues, *[b"redlock_aio:live:" + name for name in names]


def enqueue(
    keys: tuple[bytes, ...],
    token: bytes,
    ttl: int,
    *,
    member: bytes,
    priority: int,
    lives: int,
    most: int,
    not_after: int,
    fence: tuple[bytes, ...] = (),
) -> bytes:
    """
    Return the command that takes the lock for *token* if it is *member*'s turn, or waits in line.

    Args:
        keys: The locks', those of `queue_keys`, and with *fence* those of the counters.

        priority: The member's place, in microseconds: the lowest is the first.

        lives: For how many ms the member is believed to live without another word.

        most: How many may wait.

        not_after: When it comes too late, in microseconds of the master's clock.

        fence: What the fencing token needs, see `fencing.Counter.proposed`.
    """
    place, *rest = (b"%d" % number for number in (priority, lives, most, not_after))
    names = (b"%d" % len(keys), *keys)
    return pack(b"EVALSHA", ENQUEUE.sha, *names, token, b"%d" % ttl, member, place, *rest, *fence)


def leave(
    keys: tuple[bytes, ...], token: bytes, member: bytes, *, stay: bool, keep: bool = False
) -> bytes:
    """
    Return the command that gives back the lock if it is *token*'s, and wakes who is next.

    Args:
        keys: The locks', and those of `queue_keys`.

        stay: Whether *member* keeps its place in the queue; *keep* the lock, until its ttl ends.
    """
    how = b"kept" if keep else b"stay" if stay else b"go"
    return pack(b"EVALSHA", LEAVE.sha, b"%d" % len(keys), *keys, token, member, how, CHANNEL)


EVERYTHING_CHANGED = [b"invalidate", None]
"""What a master says when it has forgotten all keys, or what it was to tell of."""

GONE = [b"gone"]
"""What is said for a master that can't say it: its connection has ended."""


OTHERS = -1
"""What an extension is answered where somebody else has the lock; 0 is where nobody has."""


def is_settled(reply: object) -> bool:
    """Return whether a release has freed what was ours, or there was nothing of ours."""
    if is_of_another_type(reply):  # no key of ours is a list or a set
        return True
    # A list is the value and the ttl of somebody else's key.
    return reply == GRANTED or reply == 0 or isinstance(reply, list)  # noqa: PLR1714


def is_unsettled(reply: object) -> bool:
    """Return whether a release has to be repeated after this *reply*."""
    if reply.__class__ is Silence:
        # A connection that has ended says no more. After a time-out the reply may still come.
        return reply.answer is Answer.UNREACHABLE
    return isinstance(reply, Exception) and not is_settled(reply)


def is_of_another_type(reply: object) -> bool:
    """Return whether a master has something under a lock's name that can't be one."""
    return isinstance(reply, Exception) and str(reply).startswith("WRONGTYPE")


def lacks_command(reply: object) -> bool:
    """Return whether a master does not know the command, or does not let us use it."""
    text = str(reply) if isinstance(reply, Exception) else ""
    return text.startswith(("NOPERM", "ERR unknown")) and "command" in text


def has_no_script(reply: object) -> bool:
    """Return whether a master has forgotten the scripts, which it is being given again."""
    return isinstance(reply, Exception) and str(reply).startswith("NOSCRIPT")


def changed(push: object) -> Sequence[bytes] | None:
    """Return the keys that a *push* says were changed; ``None`` if all may have been."""
    if not isinstance(push, list) or len(push) != 2 or push[0] != b"invalidate":
        return ()
    if push[1] is None:
        return None
    return [key for key in push[1] if isinstance(key, bytes)] if isinstance(push[1], list) else ()


def called(push: object) -> bytes:
    """Return which member of a queue a *push* calls; nobody's name if it does not."""
    if isinstance(push, list) and len(push) == 3 and push[0] == b"message":
        return push[2] if isinstance(push[2], bytes) else b""
    return b""


def held(reply: object) -> tuple[bytes, float] | None:
    """Return the value and the seconds that are left of a lock that a release met instead."""
    if not isinstance(reply, list) or len(reply) != 2:
        return None
    value, left = reply
    if not isinstance(value, bytes) or not isinstance(left, int) or left > NEVER:
        return None
    return value, left / 1000 if left >= 0 else math.inf


def time(reply: object) -> int | None:
    """Return the microseconds that the reply to `TIME` says."""
    if not isinstance(reply, list) or len(reply) != 2:
        return None
    seconds, rest = reply
    if not (isinstance(seconds, bytes) and isinstance(rest, bytes)):
        return None
    if not (seconds.isdigit() and rest.isdigit() and len(seconds + rest) < 20):
        return None
    now = int(seconds) * 1_000_000 + int(rest)
    return now if now < NEVER else None


class Queued(NamedTuple):
    """
    The reply to `enqueue`.

    Attributes:
        standing: What was said.

        left: How many seconds the lock has there, infinite if it does not end.

        now: The microseconds of the master's clock.

        holder: The value of the lock, if there is one.

        counter: What the counter says, if the lock was granted with one; else 0.
    """

    standing: Standing
    left: float
    now: int
    holder: bytes | None
    counter: int


_SAID = (
    Standing.GRANTED,
    Standing.NEXT,
    Standing.BEHIND,
    Standing.FULL,
    Standing.FAILED,
)


def queued(reply: object) -> Queued | None:
    """Read the reply to `enqueue`; ``None`` if it makes no sense."""
    if not isinstance(reply, list) or len(reply) != 5:
        return None
    what, left, now, holder, counter = reply
    if {type(number) for number in (what, left, now, counter)} != {int}:
        return None
    if not (0 <= what < len(_SAID) and -3 < left <= NEVER):
        return None
    if not (0 <= now < NEVER and 0 <= counter < NEVER):
        return None
    return Queued(
        _SAID[what],
        left / 1000 if left >= 0 else math.inf,
        now,
        holder if isinstance(holder, bytes) else None,
        counter,
    )


def read(reply: object) -> Silence:
    """Return what a *reply* stands for, in words that hold no secret."""
    if isinstance(reply, Silence):
        return reply
    if reply is NOT_YET:
        return Silence(Answer.TIMED_OUT, "not answered when the round was decided")
    if isinstance(reply, Exception):
        text = harmless(str(reply))
        if text.startswith("WRONGTYPE Operation"):  # the server's words, which name nothing
            text = "WRONGTYPE a key of another type is where the lock, its counter or its queue is"
        return Silence(Answer.ERROR, text, is_permanent(text))
    if reply == GRANTED:
        return Silence(Answer.GRANTED)
    if reply is None or (type(reply) is int and reply in {0, OTHERS}):
        return Silence(Answer.HELD)
    return Silence(Answer.ERROR, f"an answer that makes no sense: a {type(reply).__name__}")


def harmless(text: str, secrets: tuple[str, ...] = ()) -> str:
    """
    Return *text* without what must not be seen, on one line and not too long.

    A server's error may repeat the arguments of a command, cut and with other
    signs for some; so they go, and with them everything that could be a token,
    and all of *secrets*.
    """
    text = re.sub(r"[,;]?\s*(with )?args beginning with.*", "", text, flags=re.DOTALL)
    for secret in secrets:
        text = text.replace(secret, "***")
    text = re.sub(r"[A-Za-z0-9+/]{28}", "***", text)
    return "".join(c if c.isprintable() else " " for c in text)[:200]
