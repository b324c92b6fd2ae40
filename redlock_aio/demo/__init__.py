"""
A demonstration of a lock under faults: ``python -m redlock_aio.demo``.

Five masters are started on this machine. The tasks of several processes increment a
counter that only the lock protects, while one master is killed and restarts without its
data, and another one is paused and resumed. In the end the counter must equal the number
of increments. As many tasks do the same without the lock on another counter, which shows
what the lock is for. The modules use public names of redlock_aio only.
"""

import argparse
import signal
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from redlock_aio.demo.lines import Lines, summary
from redlock_aio.demo.stage import Scene, Stage
from redlock_aio.demo.workers import STOPS

if TYPE_CHECKING:
    from redlock_aio.demo.picture import LiveScreen  # it needs rich

FEWEST_SECONDS = 3.0


def _stopped(number: int, _frame: object) -> None:
    """End the demonstration by an exception, so that everything is cleaned up."""
    for each in (signal.SIGINT, *STOPS):  # a second one would interrupt that
        signal.signal(each, signal.SIG_IGN)
    if number == signal.SIGINT:
        raise KeyboardInterrupt
    sys.exit(128 + number)


def _picture() -> "LiveScreen | None":
    """Return a picture, if stdout is a terminal that can show it."""
    if not sys.stdout.isatty():
        return None
    try:
        from rich.console import Console

        from redlock_aio.demo.picture import LiveScreen
    except ModuleNotFoundError:
        return None
    console = Console()
    return LiveScreen(console) if LiveScreen.fits(console) else None


def play(seconds: float, *, plain: bool) -> Scene:
    """
    Run the demonstration, as a picture if there is a terminal for it; return the last scene.

    Args:
        seconds: About how long it takes.

        plain: Whether it is shown as lines in a terminal, too.
    """
    picture = None if plain else _picture()
    if picture is None:
        last = Stage(seconds, Lines()).play()
        summary(last)
    else:
        with picture:
            last = Stage(seconds, picture).play()
        picture.keep(last)
    return last


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the demonstration by the command line; return the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m redlock_aio.demo",
        description=(
            "Start five masters on this machine, let workers contend for one lock, kill and pause"
            " masters, and count the updates that were lost, with the lock and without."
        ),
        epilog=(
            "Exit status: 0 if no update was lost under the lock, 1 if one was, 2 if it could not"
            " run."
        ),
    )
    parser.add_argument(
        "--seconds", type=float, default=10.0, help="about how long it takes (default 10)"
    )
    parser.add_argument(
        "--plain", action="store_true", help="print lines of text also in a terminal"
    )
    chosen = parser.parse_args(arguments)
    if not FEWEST_SECONDS <= chosen.seconds <= 3600:
        parser.error(f"--seconds must be from {FEWEST_SECONDS:g} to 3600")
    for number in (signal.SIGINT, *STOPS):
        if signal.getsignal(number) is not signal.SIG_IGN:  # as below nohup
            signal.signal(number, _stopped)
    try:
        return int(play(chosen.seconds, plain=chosen.plain).locked.lost != 0)
    except KeyboardInterrupt:
        print("interrupted; all servers are stopped", file=sys.stderr)
        return 130
    except (OSError, RuntimeError) as error:
        print(f"the demo can't run: {error}", file=sys.stderr)
        return 2
