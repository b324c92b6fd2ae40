"""The demonstration as lines of text, for pipes and for terminals that can't show a picture."""

import shutil
import textwrap

from redlock_aio.demo.stage import Scene
from redlock_aio.demo.workers import PROCESSES, WORKERS

SECOND = 1.0
"""Seconds between two lines about the turns."""


class Lines:
    """Prints a line for each event, and the turns of the workers every second."""

    def __init__(self) -> None:
        self._last = 0.0

    def tell(self, scene: Scene) -> None:
        """Print the event."""
        self._print(scene, scene.news)

    def show(self, scene: Scene) -> None:
        """Print the turns, if there are some and the last line is a second old."""
        if scene.bare.turns and scene.seconds - self._last >= SECOND:
            self._print(
                scene,
                f"         {scene.locked.turns} turns with the lock, {scene.locked.lost} updates"
                f" lost; {scene.bare.turns} without, {scene.bare.lost} lost",
            )

    def _print(self, scene: Scene, text: str) -> None:
        self._last = scene.seconds
        indent = " " * (10 + len(text) - len(text.lstrip()))
        _wrapped(f"{scene.seconds:6.2f} s  {text}", indent)


def summary(scene: Scene) -> None:
    """Print the result."""
    busy = sum(bool(number) for number in scene.turns)
    by = f"by {busy} of {WORKERS} workers in {PROCESSES} processes"
    bare = scene.bare
    print()
    for name, text in (
        ("turns taken", f"{scene.locked.turns}, {by}"),
        ("longest wait", f"{scene.longest:.2f} s"),
        ("leases lost", f"{scene.losses} (a holder that lost its lease has not written)"),
        ("counter", f"{scene.locked.counted}"),
        ("updates lost", f"{scene.locked.lost}"),
        ("without the lock", f"{bare.turns} turns, counter {bare.counted}, {bare.lost} lost"),
    ):
        _wrapped(f"{name + ':':<18}{text}", " " * 18)
    print()
    _wrapped(verdict(scene), "")


def verdict(scene: Scene) -> str:
    """Return the result in one sentence."""
    lost, without = scene.locked.lost, scene.bare.lost
    if lost:
        return f"{_updates(lost)} LOST UNDER THE LOCK. That must not happen: please report it."
    return f"No update was lost under the lock; {_updates(without)} lost without it."


def _updates(number: int) -> str:
    return f"{number} {'update was' if number == 1 else 'updates were'}"


def _wrapped(text: str, indent: str) -> None:
    """Print *text*, broken between words at the width of the terminal."""
    width = max(shutil.get_terminal_size().columns, 40)
    lines = textwrap.wrap(
        text, width, subsequent_indent=indent, break_long_words=False, drop_whitespace=True
    )
    print("\n".join(lines), flush=True)
