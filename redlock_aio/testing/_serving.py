"""
Masters to try locks with, from the command line: they run until the command is ended.

``python -m redlock_aio.testing`` and ``redlock masters`` are both this.
"""

import argparse
import contextlib
import os
import select
import shlex
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Self

from redlock_aio.testing._embedded import EmbeddedMaster, check_system

MOST = 25
"""The most masters: each is a process of about 10 MB."""

LONGEST_RESTART = 3_600.0
TICK = 0.2
"""How many seconds pass until it is noticed that a master has ended."""

ENDS = ("SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT")
"""The signals that end the command."""

HELP = {
    "number": f"How many masters, 1 to {MOST} (default 5).",
    "port": "The port of the first one; the others have the next ones (default: free ports).",
    "restart": "Start a master that has ended again after so many seconds (default: never).",
}
"""The descriptions of the options."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command by its command line; return the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m redlock_aio.testing",
        description="Start masters on this machine, to try locks with, until Ctrl-C. The line that"
        " it prints tells programs in a shell where they are.",
        epilog="Exit status: 128 and the number of the signal that ended it, 2 if it can't run.",
    )
    parser.add_argument("number", nargs="?", type=int, default=5, help=HELP["number"])
    parser.add_argument("--port", type=int, help=HELP["port"])
    parser.add_argument("--restart", type=float, metavar="SECONDS", help=HELP["restart"])
    chosen = parser.parse_args(arguments)
    try:
        return serve(chosen.number, port=chosen.port, restart=chosen.restart)
    except ValueError as error:
        parser.error(str(error))
    except (OSError, RuntimeError) as error:
        _say(f"the masters can't run: {error}")
        return 2


def serve(
    number: int,
    *,
    port: int | None = None,
    restart: float | None = None,
    announce: Callable[[list[str]], None] | None = None,
) -> int:
    """
    Run masters until a signal ends this program; return 128 and its number.

    Args:
        announce: Called with the URLs of the masters when all of them answer, instead of writing
            a line for a shell to stdout. All else goes to stderr.

    Raises:
        ValueError: There can't be so many masters, or not at these ports or times.

        OSError: There is no server to run, a port is taken, or the system is Windows.

        RuntimeError: A server did not start.
    """
    if not 1 <= number <= MOST:
        raise ValueError(f"the number of masters must be from 1 to {MOST}, not {number}")
    last = 65_536 - number
    if port is not None and not 1 <= port <= last:
        raise ValueError(f"port must be from 1 to {last}, for {number} masters, not {port}")
    if restart is not None and not 0 <= restart <= LONGEST_RESTART:
        raise ValueError(f"restart must be from 0 to {LONGEST_RESTART:g} seconds, not {restart:g}")
    check_system()  # before signals wake a `select`, which Windows has for sockets only
    # A signal sets a flag and no more. An exception in any line could leave a folder behind.
    with _signals() as (came, wake), contextlib.ExitStack() as stack:
        masters: list[EmbeddedMaster] = []
        for place in range(number):
            if came:
                break
            own = None if port is None else _free(port + place)
            masters.append(stack.enter_context(EmbeddedMaster(port=own)))
        if not came:
            with _Keys() as keys:
                _introduce(masters, keys)
                (announce or _export)([master.url for master in masters])
                _attend(masters, restart, keys, came, wake)
    if came[0] == signal.SIGINT:
        _say("all masters are stopped")
    return 128 + came[0]


def _free(port: int) -> int:
    """
    Return *port*, unless a server listens there.

    Raises:
        OSError: One does.
    """
    with socket.socket() as probe:
        # As servers do: connections that have ended a moment ago are no obstacle.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as error:
            raise OSError(f"port {port} can't be used ({error.strerror})") from None
    return port


def _export(urls: list[str]) -> None:
    print("export REDLOCK_MASTERS=" + shlex.quote(",".join(urls)), flush=True)  # noqa: T201


def _introduce(masters: Sequence[EmbeddedMaster], keys: "_Keys") -> None:
    lines = [f"{len(masters)} masters run until Ctrl-C; they keep nothing."]
    lines += [f"  {place}  {it.url}  process {it.pid}" for place, it in enumerate(masters, 1)]
    if keys.are_read:
        most = min(len(masters), 9)
        lines.append(f"Press {'1' if most == 1 else f'1 to {most}'} to kill one or to restart it.")
    if sys.stdout is not None and sys.stdout.isatty():
        lines.append("Paste this into the terminal of your program:")
    _say("\n".join(lines))


def _say(text: str) -> None:
    """Write a message; a terminal that is gone must not end the masters."""
    if sys.stderr is not None:
        with contextlib.suppress(OSError, ValueError):
            print(text, file=sys.stderr, flush=True)  # noqa: T201


def _attend(
    masters: Sequence[EmbeddedMaster],
    restart: float | None,
    keys: "_Keys",
    came: Sequence[int],
    wake: int,
) -> None:
    """Kill and start masters until a signal comes."""
    ended: dict[int, float] = {}  # since when a master has ended, by its place
    while not came:
        for key in keys.pressed(wake, TICK):
            place = int(key) - 1 if key in "123456789" else len(masters)
            if place < len(masters):
                if masters[place].state == "stopped":
                    _start(masters[place], place)
                else:
                    masters[place].kill()
        now = time.monotonic()
        for place, master in enumerate(masters):
            if master.state != "stopped":
                ended.pop(place, None)
            elif place not in ended:
                ended[place] = now
                _say(f"master {place + 1} has ended, {master.url}")
            elif restart is not None and now - ended[place] >= restart and not came:
                _start(master, place)
                ended[place] = time.monotonic()  # if it did not start, the next try


def _start(master: EmbeddedMaster, place: int) -> None:
    try:
        master.start()
    except (OSError, RuntimeError) as error:
        _say(f"master {place + 1}: {error}")
    else:
        _say(f"master {place + 1} is back, empty: it has no vote for about a minute")


@contextlib.contextmanager
def _signals() -> Iterator[tuple[list[int], int]]:
    """
    Collect the signals that end programs, in a list, instead of ending this one.

    The file descriptor can be read from as soon as there is one. A signal that is ignored, as in
    the background of a script, stays ignored.
    """
    came: list[int] = []
    reading, writing = os.pipe()
    os.set_blocking(writing, False)  # nobody reads: enough signals would fill the pipe

    def on_signal(number: int, _frame: object) -> None:
        came.append(number)
        with contextlib.suppress(BlockingIOError):
            os.write(writing, b".")

    before = {}
    try:
        for name in ENDS:
            number = getattr(signal, name, None)
            if number is not None and signal.getsignal(number) is not signal.SIG_IGN:
                before[number] = signal.signal(number, on_signal)
        yield came, reading
    finally:
        for number, action in before.items():
            signal.signal(number, action)
        os.close(reading)
        os.close(writing)


class _Keys:
    """
    The keys that are pressed in the terminal of stdin, without Enter.

    In the background of a shell none are read: the system would stop the program for it.
    """

    def __init__(self) -> None:
        self._file: int | None = None
        self._before: list[Any] = []
        with contextlib.suppress(ImportError, OSError, ValueError, AttributeError):
            import termios
            import tty

            self._termios, self._tty = termios, tty
            if os.isatty(sys.stdin.fileno()):
                self._file = sys.stdin.fileno()

    def __enter__(self) -> Self:
        # Before any is asked for: what was typed until then, for other programs, is dropped.
        if self._file is not None and self.are_read:
            self._one_by_one(self._file)
        return self

    def __exit__(self, *_: object) -> None:
        if self._before and self._file is not None and self.are_read:
            with contextlib.suppress(self._termios.error):
                self._termios.tcsetattr(self._file, self._termios.TCSADRAIN, self._before)

    @property
    def are_read(self) -> bool:
        """Whether there is a terminal, and this program is in its foreground."""
        with contextlib.suppress(OSError):
            return self._file is not None and os.tcgetpgrp(self._file) == os.getpgrp()
        return False

    def pressed(self, wake: int, seconds: float) -> str:
        """Wait until *wake* can be read, keys are pressed or *seconds* are over; return keys."""
        files = [wake]
        if self._file is not None and self.are_read:
            self._one_by_one(self._file)
            files.append(self._file)
        ready, _, _ = select.select(files, [], [], seconds)
        if self._file not in ready or not self.are_read:
            return ""
        with contextlib.suppress(OSError):
            if read := os.read(self._file, 64):
                return read.decode(errors="replace")
        self._file = None  # the terminal is gone
        return ""

    def _one_by_one(self, file: int) -> None:
        """Have keys without Enter, also after the shell has changed that: Ctrl-Z, then `fg`."""
        with contextlib.suppress(self._termios.error):
            now = self._termios.tcgetattr(file)
            self._before = self._before or now
            if now[3] & self._termios.ICANON:
                self._tty.setcbreak(file)
