"""
The process of a `redlock_aio.cli.guardian.Guardian`; a program of its own.

It imports no package, so that it begins within a few milliseconds and stays small. It reads
lines from stdin, and tells on stdout what it does:

    group PID               the process group that it watches
    until TERM LAST SIGNAL  SIGTERM at one instant, SIGNAL at a later one; the next line of this
                            kind calls off what has not been sent
    grace SECONDS           from SIGTERM to SIGKILL if ``redlock`` is killed
    done                    the group has ended

``redlock`` sends such a line whenever it has extended the lock. If it is stopped or hung, none
comes, and the instants do.
"""

import contextlib
import math
import os
import select
import signal
import sys
import time

LOOK = 0.5
"""The most seconds between two looks at the clock; timers do not count a suspension, it does."""

POLL = 0.02
"""Seconds between two looks whether the group has ended."""

TERMINATED, KILLED = b"terminated\n", b"killed\n"


def clock() -> float:
    """Return the seconds of a clock that also counts suspensions, where the system has one."""
    # As the clock of leases, which this program can't import.
    name = "CLOCK_MONOTONIC_RAW" if sys.platform == "darwin" else "CLOCK_BOOTTIME"
    return time.clock_gettime(getattr(time, name, time.CLOCK_MONOTONIC))


class GroupWatch:
    """The watch over one process group."""

    def __init__(self, grace: float) -> None:
        self.grace: float = grace
        self.group: int = 0
        self.term_at: float = math.inf
        self.last_at: float = math.inf
        self.over_at: float = math.inf
        self.last: int = signal.SIGKILL

    def handle(self, line: bytes) -> bool:
        """Do what a line says; return whether the watch goes on."""
        word, *values = line.split()
        if word == b"group":
            self.group = int(values[0])
        elif word == b"until":
            term_at, self.last_at = float(values[0]), float(values[1])
            self.term_at, self.over_at, self.last = term_at, self.last_at, int(values[2])
        elif word == b"grace":
            self.grace = float(values[0])
        return word != b"done"

    def act(self) -> float | None:
        """Send what is due; return the seconds until the next look, if there is to be one."""
        now = clock()
        if now >= self.last_at:
            if self.last == signal.SIGKILL:
                tell(KILLED)
            self.signal(self.last)
            self.term_at = self.last_at = math.inf
        elif now >= self.term_at:
            tell(TERMINATED)
            self.signal(signal.SIGTERM)
            self.signal(signal.SIGCONT)
            self.term_at = math.inf
        due = min(self.term_at, self.last_at)
        return None if due == math.inf else min(due - now, LOOK)

    def end(self) -> None:
        """End the group, because ``redlock`` is gone: nobody extends the lock any more."""
        kill_at = min(clock() + self.grace, self.over_at)
        if clock() < kill_at:
            self.signal(signal.SIGTERM)
            self.signal(signal.SIGCONT)
        while clock() < kill_at and self.signal(0):
            time.sleep(POLL)
        self.signal(signal.SIGKILL)

    def signal(self, number: int) -> bool:
        """Send a signal to the group; return whether it has processes."""
        if not self.group:
            return False
        try:
            os.killpg(self.group, number)
        except ProcessLookupError:
            return False
        except PermissionError:
            pass
        return True


def tell(word: bytes) -> None:
    """Tell ``redlock`` what this process does; it may be gone."""
    with contextlib.suppress(OSError):
        os.write(1, word)


def main() -> None:
    """Watch until ``redlock`` dismisses this process, or has ended."""
    # A service manager that stops all processes of a service sends them SIGTERM at once. The
    # watch is needed until the command has ended of that.
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGPIPE):
        signal.signal(number, signal.SIG_IGN)
    watch, rest = GroupWatch(float(sys.argv[-1]) / 1000), b""
    while True:
        if not select.select([0], [], [], watch.act())[0]:
            continue
        data = os.read(0, 4096)
        if not data:
            watch.end()
            return
        *lines, rest = (rest + data).split(b"\n")
        if not all(map(watch.handle, lines)):
            return


if __name__ == "__main__":
    main()
