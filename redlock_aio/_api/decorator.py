"""
Functions that run under a lock, whose name is filled from the call's arguments.

All that can be known of a template, of the options and of the function is
checked when the function is decorated, so that a slip of the pen ends the start
of a program and not its first call. A call binds its arguments, fills the
templates and is a body of ``async with redlock.lock(...)``: how a lock is taken,
lost and given back is none of this file's business.
"""

import asyncio
import functools
import inspect
import random
import re
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from datetime import timedelta
from string import Formatter
from typing import Any, Literal, ParamSpec, Protocol, Self, TypedDict, TypeVar, Unpack, overload

from redlock_aio._api.lock import Lock
from redlock_aio._engine.options import OnLost
from redlock_aio._rules.retry import Retry
from redlock_aio._rules.validation import of_type
from redlock_aio.errors import LockNotAcquiredError, QuorumUnavailableError

MOST_SPLITS = 10
"""How often a call that would skip a held lock tries to get one that nobody holds yet."""

P = ParamSpec("P")
T = TypeVar("T")


class LockArguments(TypedDict, total=False):
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
    on_lost: OnLost


class Locks(Protocol):
    """What the decorator needs of a manager."""

    @property
    def lock(self) -> Callable[..., Lock]:
        """Return a lock on some resources."""


class Decorating:
    """What a manager does for functions that run under a lock."""

    __slots__ = ()

    @overload
    def locked(
        self: Locks,
        /,
        *templates: str,
        skip_if_locked: Literal[False] = False,
        **options: Unpack[LockArguments],
    ) -> Callable[[Callable[P, Coroutine[Any, Any, T]]], Callable[P, Coroutine[Any, Any, T]]]: ...

    @overload
    def locked(
        self: Locks,
        /,
        *templates: str,
        skip_if_locked: bool,
        **options: Unpack[LockArguments],
    ) -> Callable[
        [Callable[P, Coroutine[Any, Any, T]]], Callable[P, Coroutine[Any, Any, T | None]]
    ]: ...

    def locked(
        self: Locks,
        /,
        *templates: str,
        skip_if_locked: bool = False,
        **options: Unpack[LockArguments],
    ) -> Callable[
        [Callable[P, Coroutine[Any, Any, T]]], Callable[P, Coroutine[Any, Any, T | None]]
    ]:
        """
        Return a decorator: each call of an async function or method runs under a lock.

        ``@redlock.locked("invoice:{invoice_id}", ttl=10_000)`` above ``async def
        send(invoice_id)`` makes each call what ``async with
        redlock.lock(f"invoice:{invoice_id}", ttl=10_000)`` around its body would
        be: it acquires a lease of its own, and releases it when the function is
        done. The function keeps its name, docstring and signature. On a class or
        static method it stands below ``@classmethod`` or ``@staticmethod``. A body
        that needs its `Lease` uses ``async with``.

        Args:
            templates: The names that are locked, one or several, as for
                `str.format`: a field begins with the name of a parameter, and may
                go on to attributes and items: ``{order.id}``, ``{items[0]}``,
                ``{self.name}``, ``{kwargs[name]}``, ``{number:04d}``. Defaults count
                as arguments. A name without any field is the same for all calls.

            skip_if_locked: Whether a call does nothing and returns ``None`` if others
                hold the lock (default no). It is for jobs of which one at a time is
                enough. Nobody waits for a holder; of several that begin in the same
                moment one runs, if need be after a few attempts, which follow *retry*
                (10 at most). Too few masters that answer are an error, and no reason
                to skip.

            options: Those of `Redlock.lock`. With *skip_if_locked* there is no
                *wait* but 0.

        Raises:
            TypeError: There is no template, or it is not a str; what is decorated is
                not an ``async def`` function; an option is unknown or of another
                type. A call raises it when its arguments do not fit the function,
                before anything is sent.

            ValueError: A template is broken, has a field that is no parameter of the
                function, or one within another; an option has no sense. A call
                raises it, before anything is sent, when a template is filled to
                something that can't be a name, such as nothing at all.

            LockNotAcquiredError: By a call: others held the lock for all of *wait*.

            QuorumUnavailableError: By a call: too few masters answered to tell.

            LockLostError: By a call: the lease was lost, and the function has no
                exception of its own; with *on_lost* "cancel" it was cancelled.

        What filling a template raises, for want of an attribute or an item, comes out
        of the call with a note that names the template.

        Cancellation:
            Of a call, as for ``async with``: if it still waits for the lock, it did
            not happen; otherwise the function is cancelled and the lock released.
        """
        if len(templates) == 1 and callable(templates[0]):
            raise TypeError("locked() needs a name: write @redlock.locked('invoice:{invoice_id}')")
        parsed = [Template(template) for template in templates]
        if not parsed:
            raise TypeError("locked() needs at least one template, such as 'invoice:{invoice_id}'")
        of_type(skip_if_locked, bool, name="skip_if_locked")
        return _Decorator(
            self, parsed, _checked(self, parsed, options, skip_if_locked), skip_if_locked
        )


class _Decorator:
    """What `locked` returns. It is no answer to the question whether something is locked."""

    __slots__ = ("_options", "_redlock", "_skip", "_templates")

    def __init__(
        self,
        redlock: Locks,
        templates: Sequence["Template"],
        options: Mapping[str, object],
        skip: bool,
    ) -> None:
        self._redlock = redlock
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
        return under_a_lock(self._redlock, names, self._options, function)

    def __bool__(self) -> bool:
        raise TypeError(
            "locked() makes a decorator, which is no answer; use 'await redlock.is_locked(name)'"
        )


class Template:
    """A name with fields, as for `str.format`."""

    __slots__ = ("_roots", "_text")

    def __init__(self, text: str) -> None:
        self._text = of_type(text, str, name="template")
        try:
            self._roots = _roots(text)
        except ValueError as error:
            raise self._broken(error) from None

    def __repr__(self) -> str:
        return repr(self._text)

    def _broken(self, error: ValueError) -> ValueError:
        return ValueError(f"template {self!r} is broken: {error}")

    @property
    def fixed(self) -> bool:
        """Whether it is the same name for all calls."""
        return not self._roots

    def check(self, parameters: Iterable[str], called: str) -> None:
        """Raise a `ValueError` if a function with these parameters can't fill it."""
        for root in self._roots:
            if root not in parameters:
                raise ValueError(
                    f"template {self!r} has a field {root!r}, which is no parameter of"
                    f" {called}({', '.join(parameters)})"
                )
        try:
            # What is wrong behind the roots, formatting itself tells: once now, with
            # arguments that have everything, instead of at the first call.
            self.filled(dict.fromkeys(self._roots, _Anything()))
        except ValueError as error:
            raise self._broken(error) from None

    def filled(self, arguments: Mapping[str, object]) -> str:
        return self._text.format_map(arguments)


def _roots(text: str) -> list[str]:
    """Return what the fields of a template begin with, each to be a parameter's name."""
    roots = []
    for _, field, spec, _ in Formatter().parse(text):
        if field is not None:
            if "{" in (spec or ""):
                raise ValueError(f"the field {field!r} has another one within")
            roots.append(re.split(r"[.\[]", field, maxsplit=1)[0])
    return roots


class _Anything:
    """An argument that has every attribute and item, and takes any format."""

    def __getattribute__(self, name: str) -> Self:
        return self

    def __getitem__(self, key: object) -> Self:
        return self

    def __format__(self, spec: str) -> str:
        return ""


class Names:
    """The names that a function's calls lock: templates, filled from the arguments."""

    __slots__ = (
        "_by_name", "_called", "_defaults", "_positional", "_required", "_signature", "_templates",
    )  # fmt: skip

    def __init__(self, function: Callable[..., object], templates: Sequence[Template]) -> None:
        self._called = getattr(function, "__qualname__", repr(function))
        self._signature = inspect.signature(function)
        self._templates = templates
        parameters = self._signature.parameters
        for template in templates:
            template.check(parameters, self._called)
        kinds = {name: parameter.kind for name, parameter in parameters.items()}
        self._positional = [name for name, kind in kinds.items() if kind <= _EITHER]
        self._by_name = {name for name, kind in kinds.items() if kind in (_EITHER, _KEYWORD)}
        # What a call leaves out.
        self._defaults: dict[str, object] = {
            name: _LEFT_OUT.get(parameter.kind, parameter.default)
            for name, parameter in parameters.items()
        }
        self._required = {
            name for name, left_out in self._defaults.items() if left_out is inspect.Parameter.empty
        }

    def of(self, args: tuple[object, ...], kwargs: dict[str, object]) -> list[str]:
        """Return the names that a call with these arguments locks."""
        arguments = self._arguments(args, kwargs)
        names = []
        for template in self._templates:
            try:
                names.append(template.filled(arguments))
            except Exception as error:
                error.add_note(f"while the template {template!r} of {self._called}() was filled")
                raise
        return names

    def _arguments(self, args: tuple[object, ...], kwargs: dict[str, object]) -> dict[str, object]:
        """Return all arguments of a call by their parameters' names."""
        # Binding costs a tenth of what a lock does. It is spared for calls of which
        # it is plain that they fit; of all others it judges itself.
        given = dict(zip(self._positional, args))  # noqa: B905 - counted below, at half the price
        if kwargs:
            given |= kwargs
        if (
            len(given) < len(args) + len(kwargs)  # too many, or one twice
            or not self._required.issubset(given)
            or not self._by_name.issuperset(kwargs)
        ):
            try:
                given = self._signature.bind(*args, **kwargs).arguments
            except TypeError as error:
                raise TypeError(f"{self._called}(): {error}") from None
        return self._defaults | given


_EITHER = inspect.Parameter.POSITIONAL_OR_KEYWORD
_KEYWORD = inspect.Parameter.KEYWORD_ONLY
_LEFT_OUT: dict[object, object] = {
    inspect.Parameter.VAR_POSITIONAL: (),
    inspect.Parameter.VAR_KEYWORD: {},
}


def _checked(
    redlock: Locks, templates: Sequence[Template], options: LockArguments, skip_if_locked: bool
) -> dict[str, object]:
    """Return the options for the lock of each call, if they make one."""
    # Names with fields are not known yet. Those that stand for them differ, as a
    # lock on several resources may ask for that.
    names = [t.filled({}) if t.fixed else f"stand-in:{n}" for n, t in enumerate(templates)]
    redlock.lock(*names, **options)
    if not skip_if_locked:
        return {**options}
    wait = options.get("wait", 0)
    if wait not in (0, timedelta(0)):
        raise ValueError(f"wait must be 0 with skip_if_locked=True, not {wait!r}")
    return {**options, "wait": 0}


def _kind(thing: object) -> str:
    """Return what somebody has decorated who should not have."""
    if isinstance(thing, staticmethod | classmethod):
        name = type(thing).__name__
        return f"a {name}: put @redlock.locked(...) below @{name}"
    name = getattr(thing, "__qualname__", "")
    if inspect.isclass(thing):
        return f"the class {name!r}"
    if inspect.isasyncgenfunction(thing):
        return f"the async generator {name!r}"
    if inspect.isroutine(thing):
        return f"the plain function {name!r}"
    return f"a {type(thing).__name__}"


def _waiting(
    redlock: Locks,
    names: Names,
    options: Mapping[str, object],
    function: Callable[P, Coroutine[Any, Any, T]],
) -> Callable[P, Coroutine[Any, Any, T]]:
    """Return the function whose calls wait for their lock."""

    @functools.wraps(function)
    async def under_a_lock(*args: P.args, **kwargs: P.kwargs) -> T:
        async with redlock.lock(*names.of(args, kwargs), **options):
            return await function(*args, **kwargs)

    return under_a_lock


def _skipping(
    redlock: Locks,
    names: Names,
    options: Mapping[str, object],
    function: Callable[P, Coroutine[Any, Any, T]],
) -> Callable[P, Coroutine[Any, Any, T | None]]:
    """Return the function whose calls do nothing if others hold their lock."""

    @functools.wraps(function)
    async def under_a_lock(*args: P.args, **kwargs: P.kwargs) -> T | None:
        lock = redlock.lock(*names.of(args, kwargs), **options)
        retry = lock.options.retry
        most = min(retry.attempts or MOST_SPLITS, MOST_SPLITS)
        entered = False
        for attempt in range(1, most + 1):
            try:
                async with lock:
                    entered = True
                    return await function(*args, **kwargs)
            except LockNotAcquiredError as error:
                # The function may have failed to get another lock, which is its own
                # affair, and without a majority nobody knows whether others hold this one.
                if entered or isinstance(error, QuorumUnavailableError):
                    raise
                if error.holder is not None:
                    return None
            # Those who began in the same moment have split the votes. If all of them
            # skipped now, nobody would do what one of them is to do.
            if attempt < most:
                await asyncio.sleep(retry.delay(attempt, random.random()) / 1000)  # noqa: S311
        return None

    return under_a_lock
