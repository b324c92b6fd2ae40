"""The commands for masters, packed once into the bytes that all masters get."""

import functools
import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from redlock_aio._protocol.request import bulk, pack
from redlock_aio._protocol.scripts import (
    DECLARE,
    ENQUEUE,
    EXTEND,
    LEAVE,
    LEAVE_PERMIT,
    LOOK,
    LOOK_SHARED,
    MARK,
    RELEASE,
    REVOKE,
    Script,
)
from redlock_aio._protocol.tags import PLACEHOLDER
from redlock_aio._rules.fencing import KEPT

INFO = pack(b"INFO")


PING = pack(b"PING")

TIME = pack(b"TIME")

# The master pushes an invalidation for a key that this connection has read, but only
# if CACHING came directly before the read (OPTIN), and not if the connection changed
# the key itself (NOLOOP).
TRACKING = pack(b"CLIENT", b"TRACKING", b"ON", b"OPTIN", b"NOLOOP")

CACHING = pack(b"CLIENT", b"CACHING", b"YES")


def set_name(name: str) -> bytes:
    """Return the command that names the connection; ``?`` replaces what no name may have."""
    allowed = "".join(c if "!" <= c <= "~" else "?" for c in name)
    return pack(b"CLIENT", b"SETNAME", allowed.encode())


MARKER = b"redlock_aio:marker"
"""The key of the restart guard's marker; see `quarantine`. That of a slot has a tag behind it."""

NEVER = 2**53
"""An instant on a master's clock, in microseconds, that is later than all others."""

CHANNEL = b"redlock_aio:wake:"
"""
The prefix of the channels on which the next member of a fair queue is woken.

A Cluster passes a message of PUBLISH to all of its nodes. So the channels of its masters have a
tag behind this, and each is subscribed to at the node of this master alone. Where SPUBLISH is
known, the message stays there too (`publish.lua`).
"""

_BULK = b"$%d\r\n%b\r\n"

_SET = b"*6\r\n$3\r\nSET\r\n" + 2 * _BULK + b"$2\r\nNX\r\n$2\r\nPX\r\n" + _BULK

_EXTEND = b"*%d\r\n" + bulk(b"EVALSHA", EXTEND.sha) + b"$%d\r\n%b\r\n"

_LEASE = 4 * _BULK

_ONLY_KEPT, _SET_AGAIN = bulk(b"", b"%d" % KEPT), bulk(b"again", b"%d" % KEPT)

_RELEASE = b"*5\r\n$7\r\nEVALSHA\r\n$40\r\n" + RELEASE.sha + b"\r\n$1\r\n1\r\n" + 2 * _BULK

_FREE = b"*3\r\n$7\r\nDELIFEQ\r\n" + 2 * _BULK


def scan(cursor: bytes, prefix: bytes, number: int) -> bytes:
    """Return the command for the next strings with this *prefix*, among *number* keys or so."""
    pattern = re.sub(rb"([*?\[\]\\^])", rb"\\\1", prefix) + b"*"
    options = b"MATCH", pattern, b"COUNT", b"%d" % number, b"TYPE", b"string"
    return pack(b"SCAN", cursor, *options)


def acquire(key: bytes, token: bytes, ttl: int) -> bytes:
    digits = b"%d" % ttl
    return _SET % (len(key), key, len(token), token, len(digits), digits)


class Extension(NamedTuple):
    """The part of one lease in the command `extend`."""

    keys: int
    """How many keys it has."""
    names: bytes
    arguments: bytes


def extension(
    keys: Sequence[bytes], locks: int, token: bytes, ttl: int, fence: bytes = b""
) -> Extension:
    """
    Return the part of one lease in the command `extend`.

    Args:
        keys: Its locks, and with *fence* their counters; for a share its lock, and the set of its
            shares.

        locks: The number of its locks; 0 for a share.

        fence: The fencing token in 16 digits, if there is one.
    """
    number, digits = b"%d" % locks, b"%d" % ttl
    arguments = _LEASE % (
        len(number), number, len(token), token, len(digits), digits, len(fence), fence,
    )  # fmt: skip
    return Extension(len(keys), bulk(*keys), arguments)


def extend(*leases: Extension, again: bool = False) -> bytes:
    """
    Return the command that sets the ttl of each lease on a master where its keys have its token.

    Args:
        again: Whether keys that are gone are set again.
    """
    keys = sum([lease.keys for lease in leases])
    digits = b"%d" % keys
    head = _EXTEND % (5 + keys + 4 * len(leases), len(digits), digits)
    names = [lease.names for lease in leases]
    how = _SET_AGAIN if again else _ONLY_KEPT
    return b"".join([head, *names, how, *[lease.arguments for lease in leases]])


def release(key: bytes, token: bytes) -> bytes:
    return _RELEASE % (len(key), key, len(token), token)


def free(key: bytes, token: bytes) -> bytes:
    """Return DELIFEQ, which has the effect of `release` without a script; its reply is 1 or 0."""
    return _FREE % (len(key), key, len(token), token)


def look(*keys: bytes) -> bytes:
    """Return the command that reads the values of *keys*, each cut to `lock_value.SHOWN` bytes."""
    return pack(b"EVALSHA", LOOK.sha, b"%d" % len(keys), *keys)


def look_shared(key: bytes, shares: bytes, token: bytes) -> bytes:
    """Return the command that reads *token*, if its share lasts, or another holder's value."""
    return pack(b"EVALSHA", LOOK_SHARED.sha, b"2", key, shares, token)


LONGEST_MARKER = 4_096
"""
The bytes of a marker that are read. This library writes shorter ones, but others may write
a value of any length.
"""


def can_free(marker: bytes = MARKER) -> bytes:
    """Return a probe: a server that has DELIFEQ, and permits it to this user, gives no error."""
    return pack(b"DELIFEQ", marker, b"")


def read_marker(marker: bytes = MARKER) -> bytes:
    """Return the command that reads a marker."""
    # Not a script: a master without the scripts must still return its marker.
    return pack(b"GETRANGE", marker, b"0", b"%d" % (LONGEST_MARKER - 1))


def mark(value: bytes, *, over: bytes, marker: bytes = MARKER) -> bytes:
    """
    Return the command that sets a master's marker, if it has not changed since it was read.

    Args:
        over: The value that `read_marker` has returned; empty for none.
    """
    last = b"%d" % (LONGEST_MARKER - 1)
    return pack(b"EVALSHA", MARK.sha, b"1", marker, value, over, last)


def is_sharded(key: bytes) -> bool:
    """Return whether *key* belongs to a slot of a Cluster, and so do its channels."""
    return PLACEHOLDER in key


def channels(key: bytes) -> bytes:
    """Return the prefix of the channels for waiters for *key*."""
    return CHANNEL + PLACEHOLDER if is_sharded(key) else CHANNEL


def subscription(client: bytes, *, begins: bool, key: bytes = b"", sharded: bool = False) -> bytes:
    """
    Return the command for the channel of *client*, for locks whose keys begin with *key*.

    Args:
        sharded: Whether messages come by SPUBLISH; otherwise by PUBLISH.
    """
    verb = b"SUBSCRIBE" if begins else b"UNSUBSCRIBE"
    return pack(b"S" + verb if sharded else verb, channels(key) + client)


PERMIT = b"redlock_aio:permit:"
"""The prefix of the keys of permits, which have a number at their end."""


def hash_tagged(key: bytes) -> bytes:
    """
    Return the end of the names of all keys that belong to *key*.

    The braces put these keys into the slot of *key* in a Redis Cluster. A key that
    has a hash tag keeps it, and so does a permit: its number stays at the end.
    """
    keeps = hash_tag(key) != key or key.startswith(PERMIT)
    return b"=" + key if keeps else b"{%b}" % key


def hash_tag(key: bytes) -> bytes:
    """Return the part of *key* that determines its slot in a Redis Cluster."""
    _, brace, rest = key.partition(b"{")
    tag, closed, _ = rest.partition(b"}")
    return tag if brace and closed and tag else key


def queue_keys(*keys: bytes) -> tuple[bytes, ...]:
    return tuple([b"redlock_aio:queue:" + hash_tagged(key) for key in keys])


READS = b"r"
"""The end of the names of members that want a share."""


def shares_key(key: bytes) -> bytes:
    return b"redlock_aio:shares:" + hash_tagged(key)


@functools.lru_cache(1_000)
def permit_keys(key: bytes) -> tuple[bytes, ...]:
    """Return the *key* of a permit, that of its queue, and that of its semaphore's index."""
    semaphore, _, _ = key.removeprefix(PERMIT).rpartition(b"#")
    return (key, *queue_keys(key), b"redlock_aio:waiting:" + semaphore)


def semaphore_of(key: bytes) -> bytes | None:
    """Return the name of the semaphore with a permit of this *key*; ``None`` if there is none."""
    head, _, number = key.removeprefix(PERMIT).rpartition(b"#")
    name = head[1:] if head.startswith(b"=") else head[1:-1]
    is_permit = key.startswith(PERMIT) and number.isdigit() and name != b""
    return name if is_permit and hash_tagged(name) == head else None


def decline(key: bytes, member: bytes) -> bytes:
    """Return the command by which *member* leaves the queue of the permit with this *key*."""
    keys = permit_keys(key)
    return leave(keys, NO_MEMBER, member, keep_place=False, script=LEAVE_PERMIT)


class QueueEntry(NamedTuple):
    """The entry of a member in the queue of a lock; the fields are the script's arguments."""

    member: bytes
    priority: int
    """The member's place, in microseconds: the lowest is the first."""
    lives: int
    """The ms for which the member counts as alive without another request."""
    most: int
    """The limit of members in a queue; a further one is refused."""
    not_after: int
    """The instant, in microseconds of the master's clock, after which the command is too late."""
    first: bool = False
    """Whether the lock may be granted without an entry, where the queues are empty."""


def enqueue(
    keys: tuple[bytes, ...],
    token: bytes,
    ttl: int,
    entry: QueueEntry,
    fence: tuple[bytes, ...] = (),
    *,
    script: Script = ENQUEUE,
) -> bytes:
    """
    Return the command that grants the lock to *token* if it is *entry*'s turn, else enqueues it.

    Args:
        keys: The keys of the locks, those of `queue_keys`, and with *fence* those of
            the counters; for a share or a permit see its script.

        fence: The arguments for a fencing token, see `primitives.FencingCounter.proposed`.

        script: The one for this kind of lock.
    """
    member, *numbers, first = entry
    head = (b"EVALSHA", script.sha, b"%d" % len(keys), *keys, token, b"%d" % ttl, member)
    return pack(*head, *[b"%d" % number for number in numbers], b"first" if first else b"", *fence)


def leave(
    keys: tuple[bytes, ...],
    token: bytes,
    member: bytes,
    *,
    keep_place: bool,
    keep_key: bool = False,
    script: Script = LEAVE,
) -> bytes:
    """
    Return the command that releases the lock if it is *token*'s, and wakes the next members.

    Args:
        keys: The keys of the locks, and those of `queue_keys`; for a share or a permit see its
            script.

        keep_place: Whether *member* keeps its place in the queue.

        keep_key: Whether the member leaves the queue, but the lock stays until its ttl ends.

        script: The one for this kind of lock.
    """
    how = b"kept" if keep_key else b"stay" if keep_place else b"go"
    return pack(
        b"EVALSHA", script.sha, b"%d" % len(keys), *keys, token, member, how, channels(keys[0])
    )


DECLARED_SETS = b"redlock_aio:masters:"
"""The prefix of the key with the lines about masters; a *key_prefix* follows."""


class SetLine(NamedTuple):
    """
    A line to write with `declare`.

    Attributes:
        lives: The ms for which it counts if it is not written again.

        ago: The ms since it was true last.

        since: The instant at which it came, if it was deleted meanwhile, in ms of the master's
            clock; 0 if it was not.
    """

    text: bytes
    lives: int
    ago: int = 0
    since: int = 0


def declare(key: bytes, texts: Iterable[SetLine] = ()) -> bytes:
    """Return the command that writes *texts*, if any, and reads all lines."""
    packed: list[bytes] = []
    for text in texts:
        packed += [text.text, *(b"%d" % number for number in text[1:])]
    return pack(b"EVALSHA", DECLARE.sha, b"1", key, *packed)


# Forced releases. The value on the masters is replaced by a revocation, which belongs to no
# holder and expires by itself. While it exists, no client can acquire the lock, an extension of
# the old value is refused, and a holder with client tracking reads the key and sees it.

REVOKED = b'@released by force{"revoked":true}'
"""The text after the token of a revocation; no other value has it, see `lock_value`."""

NO_MEMBER = b"-"
"""A placeholder for the member of a queue; no member has this name."""


def revocation(token: bytes) -> bytes:
    return token + REVOKED


def is_revocation(value: bytes) -> bool:
    return value.endswith(REVOKED)


def revoke(
    key: bytes, value: bytes, instead: bytes, ttl: int, readers: Iterable[bytes] = ()
) -> bytes:
    """
    Return the command that sets *key* to *instead* for *ttl* ms, if it has *value* or none.

    Args:
        readers: The values of those who share the lock; one of them must still have its share.
    """
    keys = (key, *queue_keys(key), shares_key(key))
    how = (value, instead, b"%d" % ttl, channels(key))
    return pack(b"EVALSHA", REVOKE.sha, b"3", *keys, *how, *readers)
