"""
Taking a lock from whoever has it, so that it learns of it before others can have it.

The value on the masters is replaced by a revocation, which nobody holds and which
ends by itself. While it is there nobody gets in, an extension of the old value is
refused, and a holder that the masters may tell of changes looks and finds out.

Nothing here waits, reads a clock or opens a socket.
"""

from redlock_aio._protocol.commands import CHANNEL, queue_keys
from redlock_aio._protocol.scripts import REVOKE, pack

STAMP = b'@released by force{"revoked":true}'
"""What follows the token of a revocation, and of nothing else: see `lock_value`."""

BY_FORCE = "it was released by force"
"""How a lease was lost that finds a revocation in its place."""

NO_MEMBER = b"-"
"""Stands for a member of a queue; those are called otherwise."""


def revocation(token: bytes) -> bytes:
    """Return the value with this *token* that nobody holds."""
    return token + STAMP


def is_revocation(value: bytes) -> bool:
    """Return whether *value* stands where a lock was released by force."""
    return value.endswith(STAMP)


def grace(look_after: float, look_interval: float, master_timeout: int) -> int:
    """
    Return for how many ms nobody gets a lock that was released by force.

    A holder that the masters may tell of changes knows by then: its acquisition
    may be answered late, it looks after so many seconds for the first time, with
    a pause between two looks, and the look may be answered late. That holds for
    holders whose own time-out is not longer than *master_timeout*.
    """
    return round((look_after + look_interval) * 1000) + 2 * master_timeout


def revoke(key: bytes, value: bytes, instead: bytes, ttl: int) -> bytes:
    """Return the command that replaces *value*, if *key* has it or nothing, for *ttl* ms."""
    keys = (key, *queue_keys(key))
    return pack(b"EVALSHA", REVOKE.sha, b"3", *keys, value, instead, b"%d" % ttl, CHANNEL)
