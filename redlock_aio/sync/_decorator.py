"""
Functions that run under a lock, whose name is filled from the call's arguments.

Templates, options and functions are checked by the decorator of `redlock_aio.Redlock`, which
gets a coroutine function with the same signature.
"""

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any, ParamSpec, TypedDict, TypeVar

from redlock_aio import LockNotAcquiredError, QuorumUnavailableError, Retry
from redlock_aio.sync._callbacks import OnLostCall
from redlock_aio.sync._lock import Lock

P = ParamSpec("P")
T = TypeVar("T")


class SyncLockArguments(TypedDict, total=False):
    """The keyword arguments of `Redlock.lock`, for type checkers; a test compares the two."""

    ttl: int | timedelta | None
    wait: int | timedelta | None
    auto_extend: bool
    max_hold: int | timedelta | None
    hold_at_least: int | timedelta
    fair: bool
    fencing: bool | None
    reentrant: bool
    owner: object
    metadata: Mapping[str, object] | None
    retry: Retry | None
    on_lost: OnLostCall | None


class FunctionDecorator:
    """
    The decorator that `Redlock.locked` returns.

    It has no truth value, because `is_locked` is another method.

    Args:
        lock: Makes the lock of a call, with its names and options.

        check: The decorator of `redlock_aio.Redlock`, which checks functions.

        templates: The names, with fields.

        options: Those of the lock.

        skips: Whether a call returns ``None`` if others hold the lock.
    """

    def __init__(
        self,
        lock: Callable[..., Lock],
        check: Callable[[Callable[..., Any]], object],
        templates: Sequence[str],
        options: Mapping[str, Any],
        skips: bool,
    ) -> None:
        self._lock = lock
        self._check = check
        self._templates = templates
        self._options = dict(options)
        self._skips = skips
        if skips:
            self._options["wait"] = 0

    def __call__(self, function: Callable[P, T]) -> Callable[P, T | None]:
        _check_plain(function)

        @functools.wraps(function)
        async def same_signature(*_args: object, **_kwargs: object) -> None: ...

        self._check(same_signature)
        signature, called = inspect.signature(function), function.__qualname__

        @functools.wraps(function)
        def under_a_lock(*args: P.args, **kwargs: P.kwargs) -> T | None:
            lock = self._lock(*self._names(signature, called, args, kwargs), **self._options)
            if self._skips:
                return _skipping(lock, lambda: function(*args, **kwargs))
            with lock:
                return function(*args, **kwargs)

        return under_a_lock

    def __bool__(self) -> bool:
        raise TypeError(
            "locked() returns a decorator, which is neither true nor false;"
            " use 'redlock.is_locked(name)'"
        )

    def _names(
        self, signature: inspect.Signature, called: str, args: Any, kwargs: Any
    ) -> list[str]:
        """Return the names that a call with these arguments locks."""
        try:
            bound = signature.bind(*args, **kwargs)
        except TypeError as error:
            raise TypeError(f"{called}(): {error}") from None
        bound.apply_defaults()
        names = []
        for template in self._templates:
            try:
                names.append(template.format_map(bound.arguments))
            except Exception as error:
                error.add_note(f"while the template {template!r} of {called}() was filled")
                raise
        return names


def _skipping(lock: Lock, call: Callable[[], T]) -> T | None:
    """Return the result of *call* under *lock*; ``None`` if others hold the lock."""
    entered = False
    try:
        with lock._skips():  # noqa: SLF001 - not for users
            entered = True
            return call()
    except LockNotAcquiredError as error:
        # If *entered*, the error is that of another lock in the function. Without a quorum it is
        # unknown whether others hold this one.
        if entered or isinstance(error, QuorumUnavailableError):
            raise
        return None


def _check_plain(function: object) -> None:
    """Raise a `TypeError` unless *function* has done its work when it returns."""
    what = ""
    if isinstance(function, staticmethod | classmethod):
        name = type(function).__name__
        what = f"a {name}: put @redlock.locked(...) below @{name}"
    elif inspect.isclass(function):
        what = f"the class {function.__qualname__!r}"
    elif not inspect.isroutine(function):
        what = f"a {type(function).__name__}"
    elif inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function):
        what = f"the async function {function.__qualname__!r}: use redlock_aio.Redlock for that"
    elif inspect.isgeneratorfunction(function):
        what = f"the generator {function.__qualname__!r}"
    if what:
        raise TypeError(f"locked() of redlock_aio.sync decorates a plain function, not {what}")
