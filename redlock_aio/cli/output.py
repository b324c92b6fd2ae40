"""
What ``redlock`` writes: results to stdout, messages to stderr, with ``--json`` as JSON.

A terminal that is gone must never touch a lock, so a message that can't be written is dropped.
"""

import contextlib
import json
import logging
import sys
from collections.abc import Mapping, Sequence
from typing import TextIO

from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

from redlock_aio.cli.exits import Failure
from redlock_aio.cli.redaction import Redaction

Row = Sequence[str]


class Output:
    """
    The two streams of one run.

    Args:
        hide: Keeps passwords out of every text.

        as_json: Whether results and messages are JSON, one object in each line.
    """

    def __init__(self, hide: Redaction, *, as_json: bool = False) -> None:
        self.hide: Redaction = hide
        self.as_json: bool = as_json

    def __repr__(self) -> str:
        return f"<Output, {'JSON' if self.as_json else 'text'}>"

    def result(self, facts: Mapping[str, object], text: str) -> None:
        """Write a result to stdout: *facts* as one line of JSON, or *text*."""
        _write(sys.stdout, self.hide(_line(facts) if self.as_json else text))

    def table(self, columns: Row, rows: Sequence[Row]) -> None:
        """Write a table to stdout: for a terminal with borders, else with tabs between columns."""
        clean = [[self.printable(cell) for cell in row] for row in rows]
        if sys.stdout is None or not sys.stdout.isatty():
            _write(sys.stdout, "\n".join("\t".join(row) for row in (columns, *clean)))
            return
        table = Table(
            *(Column(name, overflow="fold") for name in columns),
            box=None,
            pad_edge=False,
            header_style="bold",
        )
        for row in clean:
            table.add_row(*map(Text, row))  # a `Text`, because a name may look like markup
        Console().print(table)

    def note(self, text: str, **facts: object) -> None:
        """Write a message to stderr; *facts* are added with ``--json``."""
        text = self.hide(text)
        shown = _line({"message": text, **facts}) if self.as_json else f"redlock: {text}"
        with contextlib.suppress(OSError, ValueError):  # stderr is closed, or its terminal is gone
            _write(sys.stderr, self.hide(shown))

    def fail(self, failure: Failure) -> int:
        """Write the message of *failure*; return its exit code."""
        self.note(str(failure), exit_code=int(failure.code), **failure.facts)
        return failure.code

    def printable(self, text: str) -> str:
        """Return *text* on one line and without passwords; other programs write names."""
        return "".join(c if c.isprintable() else "?" for c in self.hide(text))


class NotesHandler(logging.Handler):
    """Writes the log of the library as messages."""

    def __init__(self, out: Output) -> None:
        super().__init__(logging.WARNING)
        self._out = out

    def emit(self, record: logging.LogRecord) -> None:
        """Write one record; a traceback goes with it."""
        self._out.note(self.format(record), level=record.levelname.lower())


def _line(facts: Mapping[str, object]) -> str:
    return json.dumps(facts, ensure_ascii=False)


def _write(stream: TextIO | None, text: str) -> None:
    """Write *text*, unless the stream is closed; what its encoding does not have is escaped."""
    if stream is not None:
        encoding = stream.encoding or "utf-8"
        stream.write(text.encode(encoding, "backslashreplace").decode(encoding) + "\n")
        stream.flush()
