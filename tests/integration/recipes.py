"""How tests run the recipes of examples/: as processes, with the real packages."""

import asyncio
import contextlib
import importlib.util
import os
import re
import signal
import sys
from asyncio.subprocess import DEVNULL, PIPE, STDOUT, Process
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import NamedTuple

import pytest

from .helpers import Reachable, urls

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
PATIENCE = 150
"""Seconds within which a program says or does what it has to, on the slowest machine."""


def need(package: str, extra: str = "recipes") -> None:
    """
    Skip the test where *package* is not installed, which is one of the *extra*.

    If ``REDLOCK_AIO_RECIPES`` has the name of the extra, it fails there.
    """
    if importlib.util.find_spec(package) is not None:
        return
    why = f"{package} is not installed: pip install -e '.[{extra}]'"
    if os.environ.get("REDLOCK_AIO_RECIPES") == extra:
        pytest.fail(why)
    pytest.skip(why)


class Program:
    """A program that runs; what it writes is read when a test asks for it."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self.output: str = ""

    async def says(self, pattern: str, times: int = 1) -> None:
        """Wait until *pattern* occurs in the output so many times."""
        async with asyncio.timeout(PATIENCE):
            while len(re.findall(pattern, self.output)) < times:
                line = await self._read_line()
                assert line, f"it has ended without {pattern!r}:\n{self.output}"

    async def ends(self, by: signal.Signals | None = None) -> int:
        """Send the signal *by*, if there is one, and return the exit status."""
        if by is not None:
            self.send(by)
        async with asyncio.timeout(PATIENCE):
            while await self._read_line():
                pass
            return await self._process.wait()

    def send(self, number: signal.Signals) -> None:
        """Send the program a signal."""
        self._process.send_signal(number)

    async def _read_line(self) -> str:
        assert self._process.stdout is not None
        line = (await self._process.stdout.readline()).decode()
        self.output += line
        return line


class Place(NamedTuple):
    """The masters of a program, and the folder in which it runs."""

    masters: Sequence[Reachable]
    folder: Path


@contextlib.asynccontextmanager
async def running(*arguments: str, at: Place, **environment: str) -> AsyncIterator[Program]:
    """Run Python; at the end, kill what is left of the program and its children."""
    more = {"REDLOCK_MASTERS": ",".join(urls(at.masters)), "PYTHONPATH": f"{ROOT}:{EXAMPLES}"}
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-u", *arguments),
        cwd=at.folder,
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1", **more, **environment},
        stdin=DEVNULL,
        stdout=PIPE,
        stderr=STDOUT,
        start_new_session=True,
    )
    program = Program(process)
    try:
        yield program
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await program.ends()
