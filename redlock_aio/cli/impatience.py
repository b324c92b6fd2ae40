"""
Messages of ``redlock run`` while its command runs: written without waiting for a reader.

A write to stderr waits if nobody reads from the pipe, or if Ctrl-S has stopped the terminal.
Meanwhile nobody would extend the lock, and after a loss nobody would end the command. So each
message is written by a thread, for which the caller waits only a moment.
"""

import contextlib
import threading
import time

from redlock_aio.cli.output import complain
from redlock_aio.cli.terminal import no_stop

PATIENCE = 0.1
"""Seconds for which a write is awaited while the command runs."""

LAST_PATIENCE = 1.0
"""Seconds for all writes after the command: somebody who reads slowly gets the last message."""


class Impatience:
    """Writes messages to stderr; while one of them can't be written, others are dropped."""

    def __init__(self) -> None:
        self._writer: threading.Thread | None = None
        self._ends: float | None = None

    def __repr__(self) -> str:
        return f"<Impatience, {'stuck' if self.is_stuck else 'ready'}>"

    @property
    def is_stuck(self) -> bool:
        """Whether a message is still not written."""
        return self._writer is not None and self._writer.is_alive()

    def command_has_ended(self) -> None:
        """Wait longer from now on, but no longer than `LAST_PATIENCE` for all that follows."""
        self._ends = time.monotonic() + LAST_PATIENCE

    def write(self, line: str) -> None:
        """Write a line, or let the thread do so when somebody reads."""
        if self.is_stuck and self._ends is not None:
            self._wait()
        if self.is_stuck:
            return
        self._writer = threading.Thread(target=_write, args=(line,), daemon=True)
        with contextlib.suppress(RuntimeError):  # no thread can be started: it is dropped
            self._writer.start()
            self._wait()

    def _wait(self) -> None:
        if self._writer is not None:
            patience = PATIENCE if self._ends is None else self._ends - time.monotonic()
            self._writer.join(max(patience, 0))


def _write(line: str) -> None:
    # While the command has the terminal, one with ``stty tostop`` would stop this process.
    with no_stop():
        complain(line)
