"""Servers whose clock a test can set, by a library that is preloaded into their processes."""

import time
from pathlib import Path

import pytest
from evidence import clocks, servers
from evidence.clocks import why_no_clocks

from .helpers import call
from .servers import binary_of

PRECISION = 0.5
"""Seconds that a request for the time may take on a busy machine."""


def compiled(folder: Path) -> Path:
    """Compile the library, or skip the test where that is impossible."""
    if why := why_no_clocks():
        pytest.skip(why)
    return clocks.compiled(folder)


class ClockedMaster(servers.Server):
    """
    One real server, and its clock.

    Args:
        library: The path of the library to preload.
    """

    def __init__(self, kind: str, library: Path) -> None:
        super().__init__(servers.Place(binary_of(kind), library.parent, shim=library), "master")

    def set_clock(self, ahead: float) -> None:
        """Set its clock to *ahead* seconds after this process's; return when it has that time."""
        super().set_clock(ahead)
        ends = time.monotonic() + 5
        while abs(self.ahead - ahead) > PRECISION:
            assert time.monotonic() < ends, "its clock can't be set"

    @property
    def ahead(self) -> float:
        """The seconds by which its clock is ahead of this process's."""
        before = time.time()
        seconds, rest = call(self, "TIME")
        return int(seconds) + int(rest) / 1_000_000 - (before + time.time()) / 2
