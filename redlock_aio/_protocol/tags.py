"""
The tags that put all keys of one master into one slot of a Redis Cluster.

    engine ── {placeholder}invoice:42 ──┬─ connection of master 0 ──► {0001}invoice:42
                                        ├─ connection of master 1 ──► {8209}invoice:42
                                        └─ connection of master 2 ──► {8239}invoice:42

A master of a Cluster is the primary that owns the slot of its tag. Each key of this library
there has the tag as its first braces, so braces in the name of a resource change nothing. A
request is packed once for all masters, with `PLACEHOLDER` in the place of the tag. The
connection of a master writes its tag over it, which has the same length.

The placeholder is no UTF-8, so that no name, metadata or option of a user can hold it, and it
is new in each process: values that others have written on the masters do not hold it either.
"""

import functools
from binascii import crc_hqx
from collections.abc import Sequence
from os import urandom

from redlock_aio._rules.validation import described

SLOTS = 16_384
"""The number of slots of a Cluster."""

_DIGITS = 4

PLACEHOLDER = (
    b"{" + bytes([urandom(1)[0] | 0xF8, *(byte | 0x80 for byte in urandom(_DIGITS - 1))]) + b"}"
)
"""Stands for the tag in a key. Its bytes are no ASCII: none is special in a pattern of SCAN."""


def slot(tag: bytes) -> int:
    """Return the slot of the keys that have this *tag*."""
    return crc_hqx(tag.strip(b"{}"), 0) % SLOTS


@functools.cache
def _by_slot() -> dict[int, bytes]:
    """Return a tag of four digits for each slot that has one; of several the lowest."""
    found: dict[int, bytes] = {}
    for number in range(10**_DIGITS):
        found.setdefault(slot(tag := b"{%04d}" % number), tag)
    return found


@functools.cache
def default_tags(masters: int) -> tuple[bytes, ...]:
    """
    Return the tags of so many masters.

    The tag of the k-th master is the one whose slot is nearest to the middle of the k-th part
    of all slots, so that each is on a primary of its own if the slots are shared out evenly.
    The rule is fixed: all programs find the same tags without asking anybody.
    """
    by_slot = _by_slot()
    middles = [SLOTS * (2 * number + 1) // (2 * masters) for number in range(masters)]
    return tuple(
        [
            by_slot[min(by_slot, key=lambda slot, middle=middle: (abs(slot - middle), slot))]  # type: ignore[misc]
            for middle in middles
        ]
    )


def chosen_tags(tags: Sequence[str], masters: int) -> tuple[bytes, ...]:
    """
    Return *tags* with braces.

    Raises:
        TypeError, ValueError: They are no *masters* tags of four characters, each with a slot of
            its own.
    """
    if isinstance(tags, str) or not isinstance(tags, Sequence):
        raise TypeError(f"tags must be a list of str, not {described(tags)}")
    for tag in tags:
        if not isinstance(tag, str):
            raise TypeError(f"tags must be a list of str, not with {described(tag)}")
        if len(tag) != _DIGITS or not (tag.isascii() and tag.isalnum()):
            raise ValueError(f"tags must have {_DIGITS} letters or digits each, such as '0001'")
    if len(tags) != masters:
        raise ValueError(f"tags must be one for each of the {masters} masters, not {len(tags)}")
    made = tuple([b"{%b}" % tag.encode() for tag in tags])
    if len({slot(tag) for tag in made}) < len(made):
        raise ValueError("tags must have different slots: each master needs a primary of its own")
    return made


def restored(key: bytes, tag: bytes) -> bytes:
    """Return a *key* that a master has named, as the engine knows it."""
    return key.replace(tag, PLACEHOLDER, 1)


def shown(key: bytes) -> str:
    """Return a *key* of the engine for a message: without the placeholder."""
    return key.replace(PLACEHOLDER, b"").decode(errors="replace")
