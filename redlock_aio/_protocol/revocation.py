"""
Forced releases: the holder is notified before another client can acquire the lock.

The value on the masters is replaced by a revocation, which belongs to no holder and
expires by itself. While it exists, no client can acquire the lock, an extension of the old
value is refused, and a holder with client tracking reads the key and sees the revocation.

Nothing here waits, reads a clock or opens a socket.
"""

from redlock_aio._protocol.commands import CHANNEL, queue_keys
from redlock_aio._protocol.scripts import REVOKE, pack

STAMP = b'@released by force{"revoked":true}'
"""The text after the token of a revocation; no other value has it, see `lock_value`."""

NO_MEMBER = b"-"
"""A placeholder for the member of a queue; no member has this name."""


def revocation(token: bytes) -> bytes:
    """Return the revocation with this *token*."""
    return token + STAMP


def is_revocation(value: bytes) -> bool:
    """Return whether *value* is a revocation."""
    return value.endswith(STAMP)


def grace(look_after: float, look_interval: float, master_timeout: int) -> int:
    """
    Return the ms for which no client can acquire a lock after a forced release.

    A holder with client tracking knows of the revocation by then. Its acquisition may
    be answered late, its first look comes *look_after* seconds later, two looks are
    *look_interval* seconds apart, and a look may be answered late. That holds for
    holders whose own timeout is not longer than *master_timeout*.
    """
    return round((look_after + look_interval) * 1000) + 2 * master_timeout


def revoke(key: bytes, value: bytes, instead: bytes, ttl: int) -> bytes:
    """Return the command that sets *key* to *instead* for *ttl* ms, if it has *value* or none."""
    keys = (key, *queue_keys(key))
    return pack(b"EVALSHA", REVOKE.sha, b"2", *keys, value, instead, b"%d" % ttl, CHANNEL)
