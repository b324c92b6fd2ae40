"""Hints for options and methods of other lock libraries: their replacements here."""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Never

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
"""Options of other libraries, and their replacements here."""

OF_A_LEASE = frozenset({
    "do_release", "ensure_valid", "export", "extend", "fencing_token", "lost", "owned",
    "reacquire", "release", "remaining", "token", "valid", "validity",
})  # fmt: skip
"""Attributes of a lease here, or of the locks of other libraries."""


def unknown_options(unknown: Iterable[str], *, called: str) -> TypeError:
    """Return the error for options that *called* does not have."""
    name = next(iter(unknown))
    instead = OPTIONS.get(name)
    return TypeError(f"{called} has no option {name!r}" + (f"; use {instead}" if instead else ""))


class NotALease:
    """Raises an `AttributeError` with advice if a lock is used like a lease."""

    __slots__ = ()

    if not TYPE_CHECKING:  # with this method, type checkers would accept every attribute

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
