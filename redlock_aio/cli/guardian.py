"""
A small process that ends the command if ``redlock`` is killed, stopped or hung.

Then nobody extends the lock any more: others get it when its ttl is over, and the command must
not go on by then. The guardian reads from a pipe that only ``redlock`` writes to, and knows from
it when the validity of the lock is over.

- The pipe ends without a last word: ``redlock`` is gone. The guardian ends the whole process
  group at once: SIGTERM, and SIGKILL after the grace. If ``redlock`` got SIGTERM before, and has
  passed it on, there is no grace any more: see `allow`.
- The pipe is silent: ``redlock`` does not run. The guardian ends the group a moment after
  ``redlock`` should have done so, and before the validity is over.

PR_SET_PDEATHSIG of Linux would not do. It reaches only the command itself: if that is a shell
script, the program that it has just started goes on. And the system sends it also when the
thread ends that has started the command.
"""

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import IO, cast

from redlock_aio.cli import guardian_process
from redlock_aio.cli.guardian_process import clock

DISMISSED = 2.0
"""The most seconds for which the end of the guardian is awaited."""


class Guardian:
    """
    The guardian of one process group; it begins before the command.

    Args:
        grace: How many ms after SIGTERM the group gets SIGKILL.

        group: The process group, if the command has begun already.

    Raises:
        OSError: It can't be started.

    Attributes:
        began: When it was started, by `time.monotonic`.

        has_acted: Whether it has sent SIGTERM or SIGKILL to the group; see `look`.
    """

    def __init__(self, grace: int, group: int | None = None) -> None:
        program = Path(guardian_process.__file__)
        if not program.is_file():
            # In a zip file Python would not find it. In a program of PyInstaller, which is its own
            # `sys.executable`, each guardian would end at once.
            raise FileNotFoundError("its program is packed into a single file")
        # A session of its own: signals for the group of `redlock`, also those of a terminal,
        # do not reach it. No other file stays open in it.
        self._process = subprocess.Popen(  # noqa: S603 - the program beside this module
            [
                sys.executable or "python3",
                "-I",
                "-S",
                str(program),
                "redlock-guardian",
                str(grace),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            cwd="/",
        )
        self.began: float = time.monotonic()
        self.has_acted: bool = False
        self._to, self._from = (
            cast("IO[bytes]", self._process.stdin),
            cast("IO[bytes]", self._process.stdout),
        )
        # If somebody has stopped the guardian, nobody reads, and `redlock` must not wait.
        os.set_blocking(self._to.fileno(), False)
        os.set_blocking(self._from.fileno(), False)
        if group is not None:
            self._write(b"group %d\n" % group)

    def __repr__(self) -> str:
        return f"<Guardian {self._process.pid}>"

    def watch(self) -> None:
        """
        Watch the process group of the calling process from now on.

        Called in the command's process before the command itself begins. If ``redlock`` called
        it afterwards, a SIGKILL between the two would leave a command without a guardian.
        """
        # `Popen` has restored the default action of SIGPIPE in this process: if somebody has
        # killed the guardian, the command would end before it begins.
        signal.signal(signal.SIGPIPE, signal.SIG_IGN)
        self._write(b"group %d\n" % os.getpid())
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)

    def tell(self, term: float, last: float, number: int = signal.SIGKILL) -> None:
        """
        Say what to send if no other word comes in time.

        Args:
            term: In how many seconds SIGTERM is due; infinite if it is not.

            last: In how many seconds the last signal is due.

            number: The last signal: SIGSTOP while the command is stopped by its user.
        """
        now = clock()
        self._write(b"until %f %f %d\n" % (now + term, now + last, number))

    def allow(self, grace: int) -> None:
        """Say how many ms after SIGTERM the group gets SIGKILL if ``redlock`` is killed."""
        self._write(b"grace %f\n" % (grace / 1000))

    def look(self) -> bool:
        """Read what it has said; return whether it still runs."""
        try:
            said = os.read(self._from.fileno(), 4096)
        except BlockingIOError:
            return True
        self.has_acted = self.has_acted or bool(said)
        return bool(said)

    def dismiss(self) -> None:
        """End the guardian: the command has ended, or has not begun."""
        self.look()
        self._write(b"done\n")
        for pipe in (self._to, self._from):
            with contextlib.suppress(OSError):
                pipe.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(DISMISSED)

    def _write(self, line: bytes) -> None:
        with contextlib.suppress(OSError):  # somebody has killed or stopped the guardian
            os.write(self._to.fileno(), line)
