"""Mistakes in the use of the lock for threads, and the types that make checkers see them."""

import threading
from typing import TYPE_CHECKING, Never

from redlock_aio._rules.mistakes import EventIsNoBool, OnlyForAsyncio
from redlock_aio._rules.validation import article


class OnlyForThreads:
    """Raises a `TypeError` with advice if ``async with`` enters it, or if it is copied."""

    __slots__ = ()

    if not TYPE_CHECKING:  # type checkers must go on to refuse these uses
        __reduce__ = OnlyForAsyncio.__reduce__

        def __aenter__(self) -> Never:
            raise TypeError(
                f"'async with' can't enter {article(type(self).__name__)} of redlock_aio.sync: use"
                " 'with' in a thread, or redlock_aio.Redlock for asyncio"
            )

        __aexit__ = __aenter__  # `async with` looks for both before it calls the first


class SyncLossEvent(EventIsNoBool, threading.Event):
    """The event of a lost lease; its truth value is an error, because it would always be true."""
