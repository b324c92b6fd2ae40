"""The commands that are sent to masters, packed into the bytes that all of them get."""

from redlock_aio._protocol.scripts import ENQUEUE, EXTEND, LEAVE, LOOK as LOOK_AT, RELEASE, pack

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
"""The key by which it is seen that a master may have forgotten locks; see `quarantine`."""

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
    """Return the command that reads the values of *keys*, each cut: see `lock_value.SHOWN`."""
    return pack(b"EVALSHA", LOOK_AT.sha, b"%d" % len(keys), *keys)


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
