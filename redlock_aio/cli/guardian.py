"""
A small process that ends the command if ``redlock`` is killed by SIGKILL.

Then nobody extends the lock any more: others get it when its ttl is over, and the command must
not go on by then. The guardian, a shell, reads from a pipe that only ``redlock`` writes to. If
the pipe ends without a last word, ``redlock`` is gone, and the guardian ends the whole process
group: SIGTERM, and SIGKILL after the grace.

PR_SET_PDEATHSIG of Linux would not do. It reaches only the command itself: if that is a shell
script, the program that it has just started goes on. And the system sends it also when the
thread ends that has started the command.
"""

import contextlib
import math
import os
import signal
import subprocess

SHELL = "/bin/sh"

WATCH = """\
read -r group || exit
read -r _ && exit
kill -TERM "-$group" && kill -CONT "-$group"
while [ "$1" -gt 0 ] && kill -0 "-$group"; do set -- $(($1 - 1)); sleep 1; done
kill -KILL "-$group"
"""
"""$1 is the grace in seconds."""

DISMISSED = 2.0
"""The most seconds for which the end of the guardian is awaited."""


class Guardian:
    """
    The guardian of one process group; it begins before the command.

    Args:
        grace: How many ms after SIGTERM the group gets SIGKILL.

    Raises:
        OSError: It can't be started.
    """

    def __init__(self, grace: int) -> None:
        # A session of its own: signals for the group of `redlock`, also those of a terminal,
        # do not reach it. No other file stays open in it.
        self._process = subprocess.Popen(  # noqa: S603 - the text above
            [SHELL, "-c", WATCH, "redlock-guardian", str(math.ceil(grace / 1000))],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            cwd="/",
        )

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
        self._write(b"%d\n" % os.getpid())
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)

    def dismiss(self) -> None:
        """End the guardian: the command has ended, or has not begun."""
        self._write(b"done\n")
        if self._process.stdin is not None:
            with contextlib.suppress(OSError):
                self._process.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(DISMISSED)

    def _write(self, line: bytes) -> None:
        if self._process.stdin is not None:
            with contextlib.suppress(OSError):  # somebody has killed the guardian
                os.write(self._process.stdin.fileno(), line)
