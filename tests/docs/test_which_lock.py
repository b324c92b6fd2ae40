"""The lines of code of the page "Which lock do I need?" are accepted by the library."""

import inspect
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

import redlock_aio.sync
from redlock_aio import Redlock
from redlock_aio.cli import app

PAGE = Path(__file__).parents[2] / "docs" / "which-lock.md"
LINES = re.findall(r"\| `([^|]+)` \|$", PAGE.read_text(), re.MULTILINE)
OTHERS = ("async with asyncio.", "flock ", "SELECT ", "INSERT ", "async with redis.")
"""How the lines that need no library begin."""


def test_every_case_has_a_line_and_those_of_others_come_first() -> None:
    rows = [line for line in PAGE.read_text().splitlines() if line.startswith("| ")]
    cases = [row for row in rows if not row.startswith(("| your case", "| ---"))]
    assert len(LINES) == len(cases) > 20
    assert all(line.startswith(OTHERS) for line in LINES[: len(OTHERS)])
    assert not any(line.startswith(OTHERS) for line in LINES[len(OTHERS) :])


@pytest.mark.parametrize("line", LINES[len(OTHERS) :])
def test_the_line_is_accepted(line: str) -> None:
    if line.startswith("redlock run "):
        commands: Any = get_command(app.app)
        commands.commands["run"].make_context("run", shlex.split(line)[2:])
        return
    found = re.fullmatch(
        r"(?:(?:async )?with |async for term in |lease = await |@)?(.+?)(?: as lease)?:?", line
    )
    assert found
    kind = redlock_aio.sync.Redlock if line.startswith("with ") else Redlock
    redlock: Any = kind("redis://localhost")
    made: Any = eval(found[1], {"redlock": redlock, "Redlock": kind, "job": 1})
    if inspect.iscoroutine(made):  # `try_acquire()` would connect
        made.close()
    elif line.startswith("@"):

        async def report(invoice_id: int = 1) -> int:
            return invoice_id

        assert inspect.iscoroutinefunction(made(report))
    elif line.startswith(("with", "async with")):
        assert hasattr(made, "__enter__" if line.startswith("with") else "__aenter__")
    else:
        assert "async for" not in line or hasattr(made, "__aiter__")
