"""
Messages of ``redlock run`` while its command runs: written without waiting for a reader.

A write to stderr waits if nobody reads from the pipe, or if Ctrl-S has stopped the terminal.
Meanwhile nobody would extend the lock, and after a loss nobody would end the command. So a
thread writes the messages, in their order, and the caller waits for it only a moment.
"""

import threading
import time
from collections import deque

from redlock_aio.cli.output import complain
from redlock_aio.cli.terminal import no_stop

PATIENCE = 0.1
"""Seconds for which a write is awaited while the command runs."""

LAST_PATIENCE = 1.0
"""Seconds for all writes after the command: somebody who reads slowly gets the last message."""

KEPT = 100
"""So many messages are kept while nobody reads; the oldest of them is dropped for another one."""


class Impatience:
    """Writes messages to stderr; while one of them can't be written, others are kept."""

    def __init__(self) -> None:
        self._writer: threading.Thread | None = None
        self._lines: deque[str] = deque(maxlen=KEPT)
        self._lock = threading.Lock()  # a writer ends only while no line is added
        self._ends: float | None = None

    def __repr__(self) -> str:
        return f"<Impatience, {'stuck' if self.is_stuck else 'ready'}>"

    @property
    def is_stuck(self) -> bool:
        """Whether a message is still not written."""
        return self._writer is not None

    def command_has_ended(self) -> None:
        """Wait longer from now on, but no longer than `LAST_PATIENCE` for all that follows."""
        self._ends = time.monotonic() + LAST_PATIENCE

    def write(self, line: str) -> None:
        """Write a line, or let the thread do so when somebody reads."""
        with self._lock:
            self._lines.append(line)
            writer = self._writer
            is_late = writer is not None and self._ends is None  # it was awaited before
            if writer is None:
                writer = threading.Thread(target=self._write, daemon=True)
                try:
                    writer.start()
                except RuntimeError:  # no thread can be started: the line waits for the next one
                    return
                self._writer = writer
        if not is_late:
            patience = PATIENCE if self._ends is None else self._ends - time.monotonic()
            writer.join(max(patience, 0))

    def _write(self) -> None:
        """Write all lines; the writer's thread."""
        while True:
            with self._lock:
                if not self._lines:
                    self._writer = None
                    return
                line = self._lines.popleft()
            # While the command has the terminal, one with ``stty tostop`` would stop this process.
            with no_stop():
                complain(line)
