"""
What users pass, checked.

Each error names the argument, what is wanted and what came.
"""

import unicodedata
from collections.abc import Iterable
from typing import TypeVar

from redis.asyncio import Redis

from redlock_aio._transport.address import Dialler, address

LONGEST_RESOURCE = 512

T = TypeVar("T")


def diallers(masters: Iterable[str | Redis | Dialler]) -> list[Dialler]:
    """Return how each of *masters* is reached."""
    if isinstance(masters, str | bytes | Redis) or not isinstance(masters, Iterable):
        raise TypeError(f"masters must be a list of masters, not a single {type(masters).__name__}")
    found = [address(master, name=f"masters[{i}]") for i, master in enumerate(masters)]
    if not found:
        raise ValueError("masters must name at least one master")
    names = [str(dialler) for dialler in found]
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"masters must be different servers, but {name} is there twice")
    return found


def of_type(value: T, kind: type[T], *, name: str) -> T:
    """Return *value* if it is of that *kind*."""
    if not isinstance(value, kind):
        raise TypeError(f"{name} must be a {kind.__name__}, not a {type(value).__name__}")
    return value


def text(value: str, *, name: str) -> bytes:
    """Return a part of a key as the masters see it."""
    if not isinstance(value, str):
        raise TypeError(f"{name} must be a str, not a {type(value).__name__}")
    try:
        key = value.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"{name} must be valid Unicode: {error.reason}") from None
    if not 1 <= len(key) <= LONGEST_RESOURCE:
        raise ValueError(f"{name} must have 1 to {LONGEST_RESOURCE} bytes, not {len(key)}")
    if not value.isprintable():
        bad = next((c for c in value if unicodedata.category(c) == "Cc"), None)
        if bad is not None:
            raise ValueError(f"{name} must not have control characters, such as {bad!r}")
    return key
