"""
The table of mutants: the changes and their places.

A mutant is a replacement of text inside one function. It is found by the function's name
and the text, not by a line number, so the same mutants can be applied after other lines,
and the tests, have changed.
"""

import ast
import functools
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import sha1
from pathlib import Path
from typing import TypeAlias

ROOT = Path(__file__).parents[2]
PACKAGE = "redlock_aio"
CHECKER = "benchmarks/evidence"
"""The package of the checker of histories, which `tests/evidence` imports as `evidence`."""

HERE = Path(__file__).parent
PLANTED, CHECKED, EQUIVALENT = (HERE / f"{x}.toml" for x in ("planted", "checker", "equivalent"))

Function: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef


class StaleError(Exception):
    """The text that a mutant replaces is missing."""


@dataclass(frozen=True, kw_only=True)
class Mutant:
    """
    One defect to put into the package.

    Attributes:
        id: Its name.

        file: The file, from the root of the repository.

        inside: The qualified name of the function or class; empty for the whole file.

        old: The text that is replaced.

        new: The text in its place.

        nth: Which occurrence of *old* is replaced, counted from 0.

        defect: The defect in words; only planted mutants have it.

        promise: The promise that it breaks, S1 to S10, if it is one of these.

        equivalent: Why no test can fail by it; empty if one should.

        test: The begin of the node ids of tests to run first: for code that runs where lines
            are not measured, in a child process or at import, and for what only broad tests find.
            The whole node id of one that the map does not have.
    """

    id: str
    file: str
    inside: str = ""
    old: str
    new: str
    nth: int = 0
    defect: str = ""
    promise: str = ""
    equivalent: str = ""
    test: str = ""

    @property
    def digest(self) -> str:
        """A short hash that changes with the replacement."""
        what = repr((self.file, self.inside, self.old, self.new, self.nth))
        return sha1(what.encode(), usedforsecurity=False).hexdigest()[:10]

    def span(self, text: str) -> tuple[int, int]:
        """
        Return the begin and end of the replaced part in the *text* of the file.

        Raises:
            StaleError: The text to replace is missing.
        """
        begin, end = _spans(text).get(self.inside, (0, 0)) if self.inside else (0, len(text))
        begin -= 1
        for _ in range(self.nth + 1):
            begin = text.find(self.old, begin + 1, end)
            if begin < 0:
                raise StaleError(f"{self.id}: {self.old!r} is not in {self.inside or self.file}")
        return begin, begin + len(self.old)

    def apply(self, text: str) -> str:
        """Return the *text* of the file with the defect."""
        begin, end = self.span(text)
        return text[:begin] + self.new + text[end:]

    def lines(self, text: str) -> range:
        """Return the numbers of the lines that are replaced."""
        begin, end = self.span(text)
        return range(text.count("\n", 0, begin) + 1, text.count("\n", 0, end) + 2)


def functions(
    node: ast.AST, path: tuple[str, ...] = ()
) -> Iterator[tuple[str, Function | ast.ClassDef]]:
    """Yield the qualified name and the node of each function and class below *node*."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, Function | ast.ClassDef):
            name = (*path, child.name)
            yield ".".join(name), child
            yield from functions(child, name)
        else:
            yield from functions(child, path)


def offsets(text: str) -> list[int]:
    """Return the character at which each line of *text* begins."""
    begins = [0]
    for line in text.splitlines(keepends=True):
        begins.append(begins[-1] + len(line))
    return begins


@functools.cache
def _spans(text: str) -> dict[str, tuple[int, int]]:
    """Return the begin and end in *text* of the functions and classes of each name."""
    begins = offsets(text)
    spans: dict[str, tuple[int, int]] = {}
    for name, node in functions(ast.parse(text)):
        first = spans.get(name, (begins[node.lineno - 1], 0))[0]  # of a property's functions, say
        spans[name] = first, begins[node.end_lineno or 0]
    return spans


def read(path: Path) -> list[Mutant]:
    """Return the mutants of one table."""
    return [Mutant(**row) for row in tomllib.loads(path.read_text())["mutant"]]
