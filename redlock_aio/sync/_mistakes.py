"""Mistakes in the use of the lock for threads, and the types that make checkers see them."""

import threading
from typing import TYPE_CHECKING, Never, TypedDict

from redlock_aio._rules.validation import article


class NoSyncOptions(TypedDict):
    """No further options: type checkers say that there is no such parameter."""


class OnlyForThreads:
    """Raises a `TypeError` with advice if ``async with`` enters it, or if it is copied."""

    __slots__ = ()

    def __reduce__(self) -> Never:
        raise TypeError(
            f"{article(type(self).__name__)} can't be pickled or copied: make a Redlock in each"
            " process; lease.export() and redlock.adopt() hand a lease over"
        )

    if not TYPE_CHECKING:  # type checkers must go on to refuse this use

        def __aenter__(self) -> Never:
            raise TypeError(
                f"'async with' can't enter {article(type(self).__name__)} of redlock_aio.sync: use"
                " 'with' in a thread, or redlock_aio.Redlock for asyncio"
            )

        __aexit__ = __aenter__  # `async with` looks for both before it calls the first


class SyncLossEvent(threading.Event):
    """The event of a lost lease; its truth value is an error, because it would always be true."""

    def __bool__(self) -> Never:
        raise TypeError(
            "lease.lost is an event, which is neither true nor false; use 'lease.lost.is_set()',"
            " or 'lease.valid'"
        )
