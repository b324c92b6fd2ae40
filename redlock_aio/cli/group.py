"""The processes of a process group: which of them still work."""

import errno
import os
from pathlib import Path

PROC = Path("/proc")

ENDED = frozenset("ZXx")
"""The states in ``/proc/PID/stat`` of a process that only waits to be reaped."""


class ProcessGroup:
    """
    A process group whose leader was started here.

    `killpg` succeeds also if all processes of a group are zombies, and in a container there may
    be nobody who reaps them. So where ``/proc`` tells the states, they are looked at.
    """

    def __init__(self, number: int) -> None:
        self.number: int = number
        self.tells_states: bool = (PROC / "self/stat").exists()
        """Whether zombies can be told from processes that work."""
        self._witness: int | None = None  # one that worked at the last look
        self._was_idle = False

    def __repr__(self) -> str:
        return f"<ProcessGroup {self.number}>"

    def is_empty(self) -> bool:
        """Return whether none of its processes works; meant to be called again and again."""
        try:
            os.killpg(self.number, 0)
        except OSError as error:
            # EPERM: there are only processes of other users, or on macOS only zombies.
            if error.errno == errno.ESRCH or not self.tells_states:
                return True
        if not self.tells_states or self._works(self._witness):
            return False
        self._witness = next(filter(self._works, _processes()), None)
        # A process may have been born behind the reader's back, whose parent had ended when the
        # reader came to it. It is there at the next look.
        was_idle, self._was_idle = self._was_idle, self._witness is None
        return was_idle and self._was_idle

    def _works(self, pid: int | None) -> bool:
        """Return whether *pid* belongs to the group, and has not ended."""
        if pid is None:
            return False
        try:
            fields = (PROC / str(pid) / "stat").read_bytes().rpartition(b") ")[2].split()
        except OSError:
            return False
        # The first thread of a process may have ended, and be a zombie, while others work.
        works = fields[0].decode() not in ENDED or int(fields[17]) > 1
        return works and int(fields[2]) == self.number


def _processes() -> list[int]:
    return [int(path.name) for path in PROC.glob("[0-9]*")]
