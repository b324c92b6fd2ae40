"""
Clocks of one process that differ from those of its machine, by a library that it preloads.

The library is `clock_shim.c`. It asks a file what to show, and a `Clock` writes it. A program on
another machine has a time of day that somebody may set, clocks that run a little faster or slower,
and stands still while its machine is suspended: CLOCK_MONOTONIC does not count that time, and
CLOCK_BOOTTIME does. The library of locks measures leases on CLOCK_BOOTTIME, its event loop waits on
CLOCK_MONOTONIC, and a server measures the life of a key by its time of day.
"""

import os
import shutil
import struct
import subprocess
import sys
import time
from pathlib import Path
from typing import Final, Literal

SHIM: Final = Path(__file__).with_name("clock_shim.c")

UNCHANGED: Final = 107
"""The clock of the library that stays as it is: the CLOCK_BOOTTIME of the machine."""

Name = Literal["time of day", "monotonic", "boottime"]

IDS: Final[dict[Name, int]] = {
    "time of day": 0, "monotonic": 1, "boottime": 7,
}  # fmt: skip
"""What Linux calls each clock, in the order of the file. Python has these names only on Linux."""

_NUMBER, _CLOCK = struct.Struct("=q"), struct.Struct("=qqd")


def why_no_clocks() -> str:
    """Return why processes have no clocks of their own here; empty if they can."""
    if sys.platform != "linux":
        return "only on Linux a library can be preloaded like this"
    if not (shutil.which("cc") or shutil.which("gcc")):
        return "there is no C compiler in the PATH"
    return ""


def compiled(folder: Path) -> Path:
    """
    Compile the library that gives a process clocks of its own.

    Raises:
        OSError: There is no C compiler.
    """
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        raise OSError("there is no C compiler in the PATH")
    library = folder / "clock_shim.so"
    options = ("-shared", "-fPIC", "-O2", "-Wall", "-Werror")
    command = [compiler, *options, "-o", str(library), str(SHIM)]
    subprocess.run(command, check=True)  # noqa: S603 - the compiler of this machine
    return library


def own_rate() -> float:
    """Return by how much the clocks of this process run too fast: 0.01 for 1 %."""
    path = os.environ.get("CLOCK_SHIM")
    if not path:
        return 0.0
    content = Path(path).read_bytes()
    (current,) = _NUMBER.unpack_from(content)
    place = current * len(IDS) + list(IDS).index("boottime")
    rate: float = _CLOCK.unpack_from(content, _NUMBER.size + place * _CLOCK.size)[2]
    return rate


class Clock:
    """
    The clocks of one process, which show the machine's time until they are changed.

    Args:
        path: The file that the process reads; it is written here.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._current = 0
        self._shows: dict[Name, tuple[int, int, float]] = dict.fromkeys(IDS, (0, 0, 0.0))
        table = b"".join(_CLOCK.pack(*shows) for shows in self._shows.values())
        path.write_bytes(_NUMBER.pack(0) + 2 * table)

    def environment(self, library: Path) -> dict[str, str]:
        """Return the environment of a process with these clocks, which records true times."""
        mine = {
            "LD_PRELOAD": str(library),
            "CLOCK_SHIM": str(self._path),
            "HISTORY_CLOCK": str(UNCHANGED),
        }
        return dict(os.environ) | mine

    def set(self, ahead: float) -> None:
        """Set the time of day to *ahead* seconds after the machine's."""
        _, since, rate = self._shows["time of day"]
        own = time.clock_gettime_ns(IDS["time of day"])
        self._write({"time of day": (round(ahead * 1e9 - rate * (own - since)), since, rate)})

    def run_at(self, rate: float) -> None:
        """
        Let all clocks run at another rate from now on; none of them jumps.

        Args:
            rate: 0.01 for clocks that run 1 % too fast, -0.01 for ones that run 1 % too slow.
        """
        changed: dict[Name, tuple[int, int, float]] = {}
        for name, number in IDS.items():
            ahead, since, before = self._shows[name]
            own = time.clock_gettime_ns(number)
            changed[name] = ahead + round(before * (own - since)), own, rate
        self._write(changed)

    def stand_still(self, seconds: float, *clocks: Name) -> None:
        """Let *clocks* not count *seconds* that are over, as if the machine had been suspended."""
        changed: dict[Name, tuple[int, int, float]] = {}
        for name in clocks:
            ahead, since, rate = self._shows[name]
            changed[name] = ahead - round(seconds * 1e9), since, rate
        self._write(changed)

    def _write(self, changed: dict[Name, tuple[int, int, float]]) -> None:
        self._shows |= changed
        table = b"".join(_CLOCK.pack(*shows) for shows in self._shows.values())
        self._current ^= 1
        # In place: the process has the file mapped. It reads the other table until it is told of
        # this one.
        file = os.open(self._path, os.O_WRONLY)
        try:
            os.pwrite(file, table, _NUMBER.size + self._current * len(table))
            os.pwrite(file, _NUMBER.pack(self._current), 0)
        finally:
            os.close(file)
