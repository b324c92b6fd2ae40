"""Hints for options and methods of other lock libraries: their replacements here."""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Never, TypedDict

from redlock_aio._rules.validation import article

_HOLDING = "ttl= (after how long without an extension the lock ends), in ms"
_WAITING = "wait= (for how long to wait for the lock), in ms"
_RETRYING = "retry=Retry(...)"
OPTIONS = {
    "timeout": f"{_HOLDING}, or {_WAITING}",
    **dict.fromkeys(("auto_release_time", "ex", "expire", "lease_time", "lock_timeout"), _HOLDING),
    **dict.fromkeys(("acquire_timeout", "blocking_timeout", "wait_timeout"), _WAITING),
    **dict.fromkeys(("retry_count", "retry_delay", "retry_times", "sleep"), _RETRYING),
    "auto_renewal": "auto_extend=",
    "blocking": "wait=0, or try_acquire(), which tries once",
    "thread_local": "reentrant=True and owner=",
}

OF_A_LEASE = frozenset({
    "do_release", "ensure_valid", "export", "extend", "fencing_token", "lost", "owned",
    "reacquire", "release", "remaining", "token", "valid", "validity",
})  # fmt: skip
"""Attributes of a lease here, or of the locks of other libraries."""


class NoOptions(TypedDict):
    """
    No further options: the type of ``**unknown``, which collects options that do not exist.

    As ``**unknown: Unpack[NoOptions]`` it makes type checkers say that there is no such
    parameter. With ``**unknown: Never`` they accept each name, and complain of its type.
    """


def unknown_options(unknown: Iterable[str], *, called: str) -> TypeError:
    name = next(iter(unknown))
    instead = OPTIONS.get(name)
    return TypeError(f"{called} has no option {name!r}" + (f"; use {instead}" if instead else ""))


class OnlyForAsyncio:
    """Raises a `TypeError` with advice if a plain ``with`` enters it, or if it is copied."""

    __slots__ = ()

    def __reduce__(self) -> Never:
        raise TypeError(
            f"{article(type(self).__name__)} can't be pickled or copied: make a Redlock in each"
            " process; lease.export() and redlock.adopt() hand a lease over"
        )

    if not TYPE_CHECKING:  # type checkers must go on to refuse this use

        def __enter__(self) -> Never:
            raise TypeError(
                f"'with' can't enter {article(type(self).__name__)}: use 'async with', or"
                " redlock_aio.sync.Redlock for threads"
            )

        __exit__ = __enter__  # `with` looks for both before it calls the first


class EventIsNoBool:
    """Raises a `TypeError` with advice if the event of a lost lease is used as a bool."""

    __slots__ = ()

    def __bool__(self) -> Never:
        raise TypeError(
            "lease.lost is an event, which is neither true nor false; use 'lease.lost.is_set()',"
            " or 'lease.valid'"
        )


class NotALease:
    """Raises an error with advice if a lock is used like a lease, or is awaited."""

    __slots__ = ()

    if not TYPE_CHECKING:  # with these methods, type checkers would accept their uses

        def __await__(self) -> Never:
            raise TypeError(
                "a Lock can't be awaited: use 'async with lock as lease', or 'await lock.acquire()'"
            )

        def __getattr__(self, name: str) -> Never:
            what = f"{type(self).__name__!r} object has no attribute {name!r}"
            if name in OF_A_LEASE:
                what += (
                    ": a Lock holds nothing; use the lease, which acquire() returns and"
                    " 'async with lock as lease' names, as in 'await lease.release()'"
                )
            elif name in {"locked", "is_locked"}:
                what += ": use 'await redlock.is_locked(name)'"
            raise AttributeError(what, name=name, obj=self)
