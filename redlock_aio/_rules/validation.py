"""Checks of arguments: type, range and form."""

import inspect
import unicodedata
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

LONGEST_RESOURCE = 512

MOST_RESOURCES = 100
"""The most resources that are locked together: a master is blocked while it locks them."""

MOST_PERMITS = 1_000
"""The most permits of a semaphore: a master looks at all of them where few are free."""

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., object])


def article(noun: str) -> str:
    return f"{'an' if noun[0] in 'aeiouAEIOU' else 'a'} {noun}"


def described(value: object) -> str:
    """Return what *value* is, for a message: ``an int``, ``a redis.client.Redis``, ``None``."""
    if value is None:
        return "None"
    kind = type(value)
    return article(
        kind.__name__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
    )


def quoted(names: Iterable[object]) -> str:
    """Return the names of resources, or keys, as messages have them."""
    return ", ".join(map(repr, names))


def of_type(value: T, kind: type[T], *, name: str) -> T:
    if not isinstance(value, kind):
        raise TypeError(f"{name} must be {article(kind.__name__)}, not {described(value)}")
    return value


def one_of(value: T, values: Sequence[T], *, name: str) -> T:
    if value not in values:
        *most, last = map(repr, values)
        raise ValueError(f"{name} must be {', '.join(most)} or {last}, not {value!r}")
    return value


def positive(value: int, *, name: str) -> int:
    if isinstance(of_type(value, int, name=name), bool) or value < 1:
        raise ValueError(f"{name} must be positive, not {value}")
    return value


def from_to(value: int, least: int, most: int, *, name: str) -> int:
    if isinstance(of_type(value, int, name=name), bool) or not least <= value <= most:
        raise ValueError(f"{name} must be from {least} to {most}, not {value}")
    return value


def plain_function(value: F, *, name: str) -> F:
    if not callable(value):
        raise TypeError(f"{name} must be a plain function, not {described(value)}")
    if not runs_when_called(value):
        raise TypeError(f"{name} must be a plain function, not a coroutine function")
    return value


def runs_when_called(function: Callable[..., object]) -> bool:
    """Return whether a call of *function* runs it, and does not only make a coroutine."""
    return not any(
        inspect.iscoroutinefunction(called) or inspect.isasyncgenfunction(called)
        for called in (function, type(function).__call__)
    )


def text(value: str, *, name: str) -> bytes:
    """Return *value* as bytes of a key, if its length and characters are allowed."""
    if not isinstance(value, str):
        raise TypeError(f"{name} must be a str, not {described(value)}")
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
