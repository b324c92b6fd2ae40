"""The event loop, thread and process to which an object belongs."""

import asyncio
import os
from threading import get_ident

from redlock_aio.errors import RedlockError

_forks = 0


def _count_fork() -> None:
    global _forks  # noqa: PLW0603 - the count belongs to the process
    _forks += 1


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_count_fork)


def running_loop() -> asyncio.AbstractEventLoop:
    """
    Return the running event loop.

    Raises:
        RedlockError: There is none, as under trio.
    """
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        raise RedlockError(
            "no event loop of asyncio runs here: redlock_aio needs one, also under anyio; trio has"
            " none, and other programs use redlock_aio.sync"
        ) from None


class Origin:
    """The loop, thread and process in which an object was made; it can be used only there."""

    __slots__ = ("_forks", "_loop", "_thread")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._thread = get_ident()
        self._forks = _forks

    def is_here(self) -> bool:
        """Return whether the caller runs in this loop; needs no system call."""
        return self._thread == get_ident() and self._forks == _forks and self._loop.is_running()

    def is_of_this_process(self) -> bool:
        """Return whether this process is the original one, and not a forked child of it."""
        return self._forks == _forks

    def whose(self) -> str:
        """Return the name of the loop, thread or process, for errors of calls from another one."""
        if self._forks != _forks:
            return "the parent process; export() it there, and adopt() it here"
        if self._loop.is_closed():
            return "an event loop that is closed"
        if self._thread != get_ident():
            return "another thread's event loop: use asyncio.run_coroutine_threadsafe()"
        return "another event loop"
