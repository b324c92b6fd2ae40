"""
The controlling terminal of ``redlock run``, and which process group may read from it.

A terminal has one foreground group: it reads the keys, and Ctrl-C and Ctrl-Z go to it. The
command has a group of its own, so it has to be given the terminal, as a shell does it.

- If stdin and stdout are the terminal, the command gets it at once: an editor, a shell.
- Otherwise the command may be a part of a pipeline, ``redlock run k -- ls | less``, of which
  another part reads the keys. It gets the terminal when it reads from it: the system stops it
  then with SIGTTIN or SIGTTOU.

In both cases only if ``redlock`` itself is in the foreground.
"""

import contextlib
import os
import signal
import sys
import termios
from collections.abc import Iterator
from typing import Any


class Terminal:
    """The controlling terminal, if there is one."""

    def __init__(self) -> None:
        self._own = os.getpgrp()
        self._modes: list[Any] | None = None  # those from before the command begins
        self._file: int | None = None
        with contextlib.suppress(OSError, termios.error):
            self._file = os.open("/dev/tty", os.O_RDWR)
            self._modes = termios.tcgetattr(self._file)

    def __repr__(self) -> str:
        return f"<Terminal {'none' if self._file is None else 'of this session'}>"

    @property
    def is_ours(self) -> bool:
        """Whether the group of this process is in the foreground."""
        return self._foreground() == self._own

    @property
    def at_both_ends(self) -> bool:
        """Whether stdin and stdout are a terminal."""
        return sys.stdin is not None and os.isatty(0) and os.isatty(1)

    def belongs_to(self, group: int) -> bool:
        """Return whether *group* is in the foreground."""
        return self._foreground() == group

    def give(self, group: int) -> None:
        """Put *group* into the foreground, unless it has ended, or the terminal is gone."""
        if self._file is not None:
            with contextlib.suppress(OSError), no_stop():
                os.tcsetpgrp(self._file, group)

    def take_back(self, group: int, *, restore: bool = False) -> None:
        """
        Put the group of this process into the foreground, if *group* is there.

        Args:
            restore: Whether the modes of the terminal are restored, because the command was
                killed, or a part of it, and could not do so.
        """
        if self._file is None or not self.belongs_to(group):
            return
        self.give(self._own)
        if restore and self._modes is not None:
            with contextlib.suppress(OSError, termios.error), no_stop():
                termios.tcsetattr(self._file, termios.TCSADRAIN, self._modes)

    def close(self) -> None:
        """Close the file of the terminal."""
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def _foreground(self) -> int:
        if self._file is not None:
            with contextlib.suppress(OSError):
                return os.tcgetpgrp(self._file)
        return -1


@contextlib.contextmanager
def no_stop() -> Iterator[None]:
    """Block SIGTTOU, by which the system stops a background process that changes the terminal."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTTOU])
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
