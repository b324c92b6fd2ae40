"""
The value of a lock: its token, and the holder's name and metadata for others to read.

    value = token @ name metadata   e.g.  q83vASNFZ4mrze8BI0VniavN7wEj@web-1:4242{"job":"nightly"}

The masters compare the value as a whole, so nothing here decides which holder has the
lock. The value is short because every command about the lock repeats it.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from hashlib import sha256

from redlock_aio._rules.validation import described, text

TOKEN = re.compile(rb"[A-Za-z0-9+/]{28}@")
"""The begin of this library's values: 168 random bits, in base 64."""

MOST_METADATA = 1_024
"""The most bytes of metadata as JSON."""

LONGEST = MOST_METADATA + 1_024
"""The most bytes of a value of this library."""

SHOWN = LONGEST + 1
"""
The most bytes of a value that a master returns; the scripts have the same number.

It is one byte more than `LONGEST`, so a value that was cut is longer than any value of this
library, and never equal to one. The masters compare the whole value.
"""


_DIGEST = sha256()  # a copy takes half the time of a new one, which looks for the algorithm


@dataclass(frozen=True, slots=True)
class Holder:
    """
    The holder of a lock, as others can see it.

    Attributes:
        fingerprint: Identifies this lease, as `Lease.fingerprint` does; it reveals
            nothing of the token. If the value is too long for a lock, it identifies the
            first 2 KiB. It is "readers" if readers share the lock.

        name: The *name* of its manager, host and pid by default; ``None`` if the lock
            was written by another library.

        metadata: The *metadata* of its lock.
    """

    fingerprint: str
    name: str | None = None
    metadata: Mapping[str, object] = field(default_factory=dict[str, object], hash=False)

    def __str__(self) -> str:
        return self.fingerprint if self.name is None else f"{self.name} ({self.fingerprint})"


SHARED = b"redlock_aio:shared"
"""The value of a lock that readers share; the scripts have the same, see `lua/shared.lua`."""

READERS = Holder("readers")
"""Those who share a lock, as its holder; `Redlock.inspect` tells who they are."""


def packed(metadata: object) -> bytes:
    if not isinstance(metadata, Mapping):
        raise TypeError(f"metadata must be a mapping, not {described(metadata)}")
    for key in metadata:
        if not isinstance(key, str):
            raise TypeError(f"metadata must have str keys, not {described(key)}")
    try:
        data = json.dumps(
            dict(metadata), allow_nan=False, ensure_ascii=False, separators=(",", ":")
        ).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"metadata must be representable as JSON: {error}") from None
    if len(data) > MOST_METADATA:
        raise ValueError(f"metadata must have at most {MOST_METADATA} bytes, not {len(data)}")
    return data


def unpacked(metadata: bytes) -> dict[str, object]:
    data: dict[str, object] = json.loads(metadata)
    return data


def named(name: str) -> bytes:
    data = text(name, name="name")
    if "{" in name or not name.isprintable():
        raise ValueError("name must have printable characters, and no '{'")
    return b"@" + data


def fingerprint(value: bytes) -> str:
    """
    Return an identity of the holder of a lock that does not reveal its token.

    Of a value that is too long for a lock only the first `SHOWN` bytes are known: two such
    values that begin with the same bytes have the same fingerprint.
    """
    digest = _DIGEST.copy()
    digest.update(value)
    return digest.hexdigest()[:8]


def process(value: bytes) -> bytes:
    """Return the part of *value* that names its manager; nothing for another library's value."""
    ours = TOKEN.match(value)
    return b"" if ours is None else value[ours.end() :].partition(b"{")[0]


def holder(value: bytes) -> Holder:
    """Return the holder that has written *value*; only the fingerprint if it is foreign."""
    if value == SHARED:
        return READERS
    who = fingerprint(value)
    ours = TOKEN.match(value)
    if ours is None or len(value) > LONGEST:
        return Holder(who)
    name, brace, rest = value[ours.end() :].partition(b"{")
    try:
        metadata = json.loads(brace + rest) if brace else {}
        text = name.decode()
    except (ValueError, RecursionError):
        return Holder(who)
    # The name is shown in logs and on terminals, and any program may have written it.
    return Holder(who, text, metadata) if text.isprintable() else Holder(who)
