"""
Functions that run under a lock, whose name is filled from the call's arguments.

Templates and options are checked by `redlock_aio.Redlock.locked`, and the names of a call are
made by its code.
"""

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ParamSpec, TypeVar

import redlock_aio
from redlock_aio import LockNotAcquiredError, QuorumUnavailableError
from redlock_aio._api.faces import CommonLockArguments, acquire_or_skip, names_of
from redlock_aio.sync._callbacks import OnLostCall
from redlock_aio.sync._lock import Lock
from redlock_aio.sync._portal import PortalOpener

P = ParamSpec("P")
T = TypeVar("T")


class SyncLockArguments(CommonLockArguments, total=False):
    """The keyword arguments of `Redlock.lock`, for type checkers; a test compares the two."""

    on_lost: OnLostCall | None


class FunctionDecorator:
    """
    The decorator that `Redlock.locked` returns.

    It has no truth value, because `is_locked` is another method.

    Args:
        opener: Starts the portal of the manager.

        templates: The names, with fields, checked as by `redlock_aio.Redlock.locked`.

        options: Those of the lock, but *on_lost*, checked in the same way.

        on_lost: As for `Redlock.lock`.

        skips: Whether a call returns ``None`` if others hold the lock.
    """

    def __init__(
        self,
        opener: PortalOpener,
        templates: Sequence[str],
        options: Mapping[str, Any],
        on_lost: OnLostCall | None,
        skips: bool,
    ) -> None:
        self._opener = opener
        self._templates = templates
        self._options = {**options, "wait": 0} if skips else options
        self._on_lost = on_lost
        self._skips = skips

    def __call__(self, function: Callable[P, T]) -> Callable[P, T | None]:
        _check_plain(function)
        names = names_of(function, self._templates)

        @functools.wraps(function)
        def under_a_lock(*args: P.args, **kwargs: P.kwargs) -> T | None:
            lock = self._lock(names(args, kwargs))
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

    def _lock(self, names: Sequence[str]) -> Lock:
        acquire = acquire_or_skip if self._skips else redlock_aio.Lock.acquire
        return Lock(self._opener, tuple(names), self._options, self._on_lost, acquire)


def _skipping(lock: Lock, call: Callable[[], T]) -> T | None:
    """Return the result of *call* under *lock*; ``None`` if others hold the lock."""
    entered = False
    try:
        with lock:
            entered = True
            return call()
    except LockNotAcquiredError as error:
        # If *entered*, the error is that of another lock in the function, and with other names that
        # of a signal handler. Without a quorum it is unknown whether others hold this one.
        others = entered or error.resources != lock.resources
        if others or isinstance(error, QuorumUnavailableError):
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
