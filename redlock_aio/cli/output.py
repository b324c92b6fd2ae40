"""
What ``redlock`` writes: results to stdout, messages to stderr, with ``--json`` as JSON.

A terminal that is gone must never touch a lock, so a message that can't be written is dropped.
"""

import contextlib
import json
import logging
import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, TextIO

from redlock_aio.cli.exits import Failure
from redlock_aio.cli.redaction import Redaction

if TYPE_CHECKING:
    from rich.text import Text

Row = Sequence[str]

MOST_TOLD = 100
"""So many messages are remembered, so that others need not repeat them."""

_LITERAL = re.compile(r'"(?:[^"\\]|\\.)*"|-?Infinity|NaN')
"""A string in JSON, or what Python writes for a number that JSON does not have."""


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
        self.deliver: Callable[[str], None] = complain
        """Writes a message to stderr."""

    def __repr__(self) -> str:
        return f"<Output, {'JSON' if self.as_json else 'text'}>"

    @property
    def in_terminal(self) -> bool:
        """Whether stdout is a terminal; `rich` also takes a pipe for one, if FORCE_COLOR is set."""
        return sys.stdout is not None and sys.stdout.isatty()

    def result(self, facts: Mapping[str, object], text: "str | Text") -> None:
        """
        Write a result to stdout: *facts* as one line of JSON, or *text*.

        In a terminal *text* is wrapped between words, so that no address is broken in two.

        Args:
            facts: The result for programs.

            text: The result for people. A `Text` has colours, and may have no passwords.
        """
        if self.as_json:
            _write(sys.stdout, self._line(facts))
            return
        shown = self.hide(text) if isinstance(text, str) else text
        if self.in_terminal:
            from redlock_aio.cli import drawing

            _write(sys.stdout, drawing.wrapped(shown))
        else:
            _write(sys.stdout, shown if isinstance(shown, str) else shown.plain)

    def table(
        self, columns: Row, rows: Sequence[Row], styles: Mapping[str, str] | None = None
    ) -> None:
        """
        Write a table to stdout: for a terminal in columns, else with tabs between them.

        A terminal that is too narrow gets the first cell of a row, which is a name, on a line of
        its own, and the others below it.

        Args:
            columns: The titles.

            rows: The cells.

            styles: The style of each text in a cell that has one.
        """
        clean = [[self.printable(cell) for cell in row] for row in rows]
        if not self.in_terminal:
            _write(sys.stdout, "\n".join("\t".join(row) for row in (columns, *clean)))
            return
        from redlock_aio.cli import drawing

        _write(sys.stdout, drawing.table(columns, clean, styles or {}))

    def note(self, text: str, **facts: object) -> None:
        """Write a message to stderr; *facts* are added with ``--json``."""
        everything = {"message": text, **facts}
        self.deliver(self._line(everything) if self.as_json else f"redlock: {self.hide(text)}")

    def fail(self, failure: Failure) -> int:
        """Write the message of *failure*; return its exit code."""
        name = failure.code.name.lower()
        self.note(str(failure), error=name, exit_code=int(failure.code), **failure.facts)
        return failure.code

    def printable(self, text: str) -> str:
        """Return *text* on one line and without passwords; other programs write names."""
        return "".join(c if c.isprintable() else "?" for c in self.hide(text))

    def _line(self, facts: Mapping[str, object]) -> str:
        # Passwords are hidden inside of strings: one such as "null" or "1234" may be a part of the
        # JSON. The line is ASCII, because a character that stderr's encoding lacks would be
        # written as an escape that JSON does not have. Metadata of others may be nested as deep
        # as the parser allows, which a recursive function could not follow.
        def shown(found: re.Match[str]) -> str:
            literal = found[0]
            return json.dumps(self.hide(json.loads(literal))) if literal[0] == '"' else "null"

        return _LITERAL.sub(shown, json.dumps(facts))


class NotesHandler(logging.Handler):
    """Writes the log of the library as messages."""

    def __init__(self, out: Output) -> None:
        super().__init__(logging.WARNING)
        self._out = out
        self._told: dict[str, None] = {}

    def emit(self, record: logging.LogRecord) -> None:
        """Write one record; a traceback goes with it."""
        text = self.format(record)
        shown = text if self._out.as_json else self._without_told(text)
        self._out.note(shown, level=record.levelname.lower())

    def _without_told(self, text: str) -> str:
        """
        Return *text* without what was told about single masters, but with their names.

        While ``redlock run`` waits, first each master that is away has a message, and then the
        one about the wait would repeat all of them.
        """
        shown = text
        for told in self._told:
            if told != text:
                shown = shown.replace(told, told.partition(": ")[0])
        self._told[text] = None
        while len(self._told) > MOST_TOLD:
            del self._told[next(iter(self._told))]
        return shown


def complain(line: str) -> None:
    """Write a line to stderr, unless that is closed or its terminal is gone."""
    if sys.stderr is None:
        return
    with contextlib.suppress(OSError, ValueError):
        try:
            file = sys.stderr.fileno()
        except (OSError, ValueError):  # no file
            _write(sys.stderr, line)
        else:
            # Not by `sys.stderr`: a thread that nobody awaits may write this, and would keep the
            # lock of the stream. Python aborts at its end then.
            data = _encoded(sys.stderr, line)
            while data:
                data = data[os.write(file, data) :]


def _encoded(stream: TextIO, line: str) -> bytes:
    return f"{line}\n".encode(stream.encoding or "utf-8", "backslashreplace")


def _write(stream: TextIO | None, text: str) -> None:
    """Write *text*, unless the stream is closed; what its encoding does not have is escaped."""
    if stream is not None:
        stream.write(_encoded(stream, text).decode(stream.encoding or "utf-8"))
        stream.flush()
