"""The event loop, thread and process that something belongs to."""

import asyncio
import os
from threading import get_ident

_forks = 0


def _count_fork() -> None:
    global _forks  # noqa: PLW0603 - it is a fact of the process
    _forks += 1


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_count_fork)


class Origin:
    """Where something was made that is of use only there."""

    __slots__ = ("_forks", "_loop", "_thread")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._thread = get_ident()
        self._forks = _forks

    def is_here(self) -> bool:
        """Return whether this is its loop. Costs no system call, as the running loop would."""
        return self._thread == get_ident() and self._forks == _forks and self._loop.is_running()

    def is_of_this_process(self) -> bool:
        """Return whether this process is not a forked child of it."""
        return self._forks == _forks

    def whose(self) -> str:
        """Return which loop, thread or process it belongs to, for the error of another one."""
        if self._forks != _forks:
            return "the parent process; export() it there, and adopt() it here"
        if self._loop.is_closed():
            return "an event loop that is closed"
        if self._thread != get_ident():
            return "another thread's event loop; asyncio.run_coroutine_threadsafe() does it there"
        return "another event loop"
