"""
Who holds a lock: what a holder says of itself in the value, for others to read.

    value = token + stamp      e.g.  3f0c…9a{"name":"web-1:4242","metadata":{"job":"nightly"}}

The masters compare the value as a whole, so nothing here decides who has the lock.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from hashlib import sha256

TOKEN_DIGITS = 40
"""How many hex digits a token has."""

MOST_METADATA = 1_024
"""How many bytes metadata may have as JSON."""

LONGEST_STAMP = MOST_METADATA + 4_096
"""What follows a token and is longer is not ours."""


@dataclass(frozen=True, slots=True)
class Holder:
    """
    Who holds a lock, as others can see it.

    Attributes:
        fingerprint: What tells this lease from all others, as `Lease.fingerprint`
            has it; it tells nothing of the token.

        name: The *name* of its manager, host and pid by default; ``None`` if it
            is another library's, which does not say.

        metadata: What its lock was given as *metadata*.
    """

    fingerprint: str
    name: str | None = None
    metadata: Mapping[str, object] = field(default_factory=dict[str, object], hash=False)

    def __str__(self) -> str:
        return self.fingerprint if self.name is None else f"{self.name} ({self.fingerprint})"


def packed(metadata: object) -> bytes:
    """Return *metadata* as it is written, or say what is wrong with it."""
    if not isinstance(metadata, Mapping):
        raise TypeError(f"metadata must be a mapping, not a {type(metadata).__name__}")
    if wrong := [type(key).__name__ for key in metadata if not isinstance(key, str)]:
        raise TypeError(f"metadata must have str keys, not a {wrong[0]}")
    try:
        said = json.dumps(
            dict(metadata), allow_nan=False, ensure_ascii=False, separators=(",", ":")
        ).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"metadata must be what JSON can say: {error}") from None
    if len(said) > MOST_METADATA:
        raise ValueError(f"metadata must have at most {MOST_METADATA} bytes, not {len(said)}")
    return said


def stamp(name: str, metadata: bytes = b"") -> bytes:
    """Return what follows a token: the manager's *name*, and *metadata* as `packed` returns it."""
    said = b'{"name":%b' % json.dumps(name, ensure_ascii=False).encode()
    return b'%b,"metadata":%b}' % (said, metadata) if metadata else said + b"}"


def fingerprint(value: bytes) -> str:
    """Return by what the holder of a lock can be told from others, without its token."""
    return sha256(value).hexdigest()[:8]


def holder(value: bytes) -> Holder:
    """Return who has written *value*; of what is not ours, only the fingerprint."""
    who = fingerprint(value)
    said = value[TOKEN_DIGITS:]
    if not said.startswith(b"{") or len(said) > LONGEST_STAMP:
        return Holder(who)
    try:
        stamped = json.loads(said)
    except (ValueError, RecursionError):
        return Holder(who)
    name, metadata = stamped.get("name"), stamped.get("metadata", {})
    if not (isinstance(name, str) and isinstance(metadata, dict)):
        return Holder(who)
    return Holder(who, name, metadata)
