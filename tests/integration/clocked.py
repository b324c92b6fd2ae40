"""Servers whose clock a test can set, by a library that is preloaded into their processes."""

import os
import shutil
import struct
import subprocess
import sys
import time
from pathlib import Path
from shlex import quote

import pytest

from redlock_aio.testing import EmbeddedMaster

from .helpers import call
from .servers import binary_of

SOURCE = Path(__file__).parents[2] / "benchmarks" / "evidence" / "clock_shim.c"
PRECISION = 0.5
"""Seconds that a request for the time may take on a busy machine."""


def compiled(folder: Path) -> Path:
    """Compile the library, or skip the test where there is no compiler."""
    if sys.platform != "linux":
        pytest.skip("only on Linux a library can be preloaded like this")
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("no C compiler in the PATH")
    library = folder / "clock_shim.so"
    command = [
        compiler,
        "-shared",
        "-fPIC",
        "-O2",
        "-Wall",
        "-Werror",
        "-o",
        str(library),
        str(SOURCE),
    ]
    subprocess.run(command, check=True)
    return library


class ClockedMaster(EmbeddedMaster):
    """
    One real server, and its clock.

    Args:
        library: The path of the library to preload.

        folder: The folder for its files; the caller removes it.
    """

    def __init__(self, kind: str, library: Path, folder: Path) -> None:
        folder.mkdir()
        self._offset = folder / "offset"
        self._offset.write_bytes(bytes(8))
        binary = folder / "server"
        binary.write_text(
            "#!/bin/sh\n"
            f"export CLOCK_SHIM={quote(str(self._offset))} LD_PRELOAD={quote(str(library))}\n"
            f'exec {quote(binary_of(kind))} "$@"\n'
        )
        binary.chmod(0o755)
        super().__init__(str(binary))

    def set_clock(self, ahead: float) -> None:
        """Set its clock to *ahead* seconds after this process's; return when it has that time."""
        self._write(ahead)
        ends = time.monotonic() + 5
        while abs(self.ahead - ahead) > PRECISION:
            assert time.monotonic() < ends, "its clock can't be set"

    def _write(self, ahead: float) -> None:
        # Written in place: a server must not find the file empty.
        file = os.open(self._offset, os.O_WRONLY)
        try:
            os.pwrite(file, struct.pack("=q", round(ahead * 1_000_000)), 0)
        finally:
            os.close(file)

    @property
    def ahead(self) -> float:
        """The seconds by which its clock is ahead of this process's."""
        before = time.time()
        seconds, rest = call(self, "TIME")
        return int(seconds) + int(rest) / 1_000_000 - (before + time.time()) / 2
