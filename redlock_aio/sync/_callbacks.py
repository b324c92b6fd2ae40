"""The functions that users give to the lock for threads: checked, and contained."""

import functools
import logging
from collections.abc import Callable
from typing import TypeAlias

from redlock_aio import LockLostError
from redlock_aio._rules.validation import runs_when_called
from redlock_aio.events import Event, Listener

OnLostCall: TypeAlias = Callable[[LockLostError], object]

_log = logging.getLogger("redlock_aio")


def checked_on_lost(on_lost: OnLostCall | None) -> OnLostCall | None:
    """Return *on_lost* if it can be called with an error; else raise a `TypeError`."""
    if on_lost is None:
        return None
    if not callable(on_lost):
        raise TypeError(f"on_lost must be a plain function or None, not {on_lost!r}")
    if not runs_when_called(on_lost):
        raise TypeError("on_lost must be a plain function or None, not a coroutine function")
    return on_lost


def contained(listener: Listener | None) -> Listener | None:
    """
    Return a listener that can't end the event loop.

    A KeyboardInterrupt or SystemExit of a listener ends a program with asyncio. Here it would
    end the thread only, and with it all leases, while the program goes on.
    """
    if listener is None or not callable(listener) or not runs_when_called(listener):
        return listener  # `redlock_aio.Redlock` has the error

    @functools.wraps(listener)
    def contained(event: Event, /) -> None:
        try:
            listener(event)
        except (KeyboardInterrupt, SystemExit):
            _log.exception("the listener raised an error at %s", type(event).__name__)

    return contained
