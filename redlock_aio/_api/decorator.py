"""
Functions that run under a lock, whose name is filled from the call's arguments.

Templates, options and functions are checked as far as possible when a function is
decorated, so that a mistake fails at the start of a program and not at the first
call. A call binds its arguments, fills the templates, and runs the function in
``async with redlock.lock(...)``. How a lock is acquired, lost and released is not
the subject of this file.
"""

import functools
import inspect
from collections.abc import Callable, Coroutine, Mapping, Sequence
from datetime import timedelta
from typing import Any, ParamSpec, TypeVar

from redlock_aio._api.faces import CommonLockArguments, acquire_or_skip
from redlock_aio._api.lock import Lock
from redlock_aio._api.templates import Names, Template
from redlock_aio._engine.options import OnLost
from redlock_aio._rules.validation import of_type
from redlock_aio.errors import LockNotAcquiredError, QuorumUnavailableError

P = ParamSpec("P")
T = TypeVar("T")


class LockArguments(CommonLockArguments, total=False):
    """The keyword arguments of `Redlock.lock`, for type checkers; a test compares the two."""

    on_lost: OnLost


def locked(
    lock: Callable[..., Lock],
    templates: Sequence[str],
    options: LockArguments,
    skip_if_locked: bool,
) -> "Decorator":
    """Return the decorator; see `Redlock.locked`."""
    if len(templates) == 1 and callable(templates[0]):
        raise TypeError("locked() needs a name: write @redlock.locked('invoice:{invoice_id}')")
    parsed = [Template(template) for template in templates]
    if not parsed:
        raise TypeError("locked() needs at least one template, such as 'invoice:{invoice_id}'")
    of_type(skip_if_locked, bool, name="skip_if_locked")
    return Decorator(lock, parsed, _checked(lock, parsed, options, skip_if_locked), skip_if_locked)


class Decorator:
    """The decorator that `locked` returns. It has no truth value: `is_locked` is another method."""

    __slots__ = ("_lock", "_options", "_skip", "_templates")

    def __init__(
        self,
        lock: Callable[..., Lock],
        templates: Sequence[Template],
        options: Mapping[str, object],
        skip: bool,
    ) -> None:
        self._lock = lock
        self._templates = templates
        self._options = options
        self._skip = skip

    def __call__(
        self, function: Callable[P, Coroutine[Any, Any, T]]
    ) -> Callable[P, Coroutine[Any, Any, T | None]]:
        if not inspect.iscoroutinefunction(function):
            raise TypeError(f"locked() decorates an 'async def' function, not {_kind(function)}")
        names = Names(function, self._templates)
        under_a_lock = _skipping if self._skip else _waiting
        return under_a_lock(self._lock, names, self._options, function)

    def __bool__(self) -> bool:
        raise TypeError(
            "locked() returns a decorator, which is neither true nor false;"
            " use 'await redlock.is_locked(name)'"
        )


def _checked(
    lock: Callable[..., Lock],
    templates: Sequence[Template],
    options: LockArguments,
    skip_if_locked: bool,
) -> dict[str, object]:
    """Return the options for the lock of each call, checked as by `Redlock.lock`."""
    # Names with fields are not known yet. Their placeholders differ from each other, because
    # the names of one lock must.
    names = [t.filled({}) if t.fixed else f"stand-in:{n}" for n, t in enumerate(templates)]
    lock(*names, **options)
    if not skip_if_locked:
        return {**options}
    wait = options.get("wait", 0)
    if wait not in (0, timedelta(0)):
        raise ValueError(f"wait must be 0 with skip_if_locked=True, not {wait!r}")
    return {**options, "wait": 0}


def _kind(thing: object) -> str:
    if isinstance(thing, staticmethod | classmethod):
        name = type(thing).__name__
        return f"a {name}: put @redlock.locked(...) below @{name}"
    name = getattr(thing, "__qualname__", "")
    if inspect.isclass(thing):
        return f"the class {name!r}"
    if inspect.isasyncgenfunction(thing):
        return f"the async generator {name!r}"
    if name and inspect.isroutine(thing):  # from Python 3.14 on a `partial` is one, without a name
        return f"the plain function {name!r}"
    return f"a {type(thing).__name__}"


def _waiting(
    lock: Callable[..., Lock],
    names: Names,
    options: Mapping[str, object],
    function: Callable[P, Coroutine[Any, Any, T]],
) -> Callable[P, Coroutine[Any, Any, T]]:

    @functools.wraps(function)
    async def under_a_lock(*args: P.args, **kwargs: P.kwargs) -> T:
        async with lock(*names.of(args, kwargs), **options):
            return await function(*args, **kwargs)

    return under_a_lock


def _skipping(
    lock: Callable[..., Lock],
    names: Names,
    options: Mapping[str, object],
    function: Callable[P, Coroutine[Any, Any, T]],
) -> Callable[P, Coroutine[Any, Any, T | None]]:
    """Return a function whose calls return ``None`` if others hold their lock."""

    @functools.wraps(function)
    async def under_a_lock(*args: P.args, **kwargs: P.kwargs) -> T | None:
        wanted = lock(*names.of(args, kwargs), **options)
        try:
            lease = await acquire_or_skip(wanted)
        except QuorumUnavailableError:
            raise
        except LockNotAcquiredError:
            return None
        # Nothing was awaited since the acquisition: a cancellation arrives in the body.
        async with lease:
            return await function(*args, **kwargs)

    return under_a_lock
