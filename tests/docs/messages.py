"""
The messages of the library, from its source, and those of the page that explains them.

A message is more than the argument of a `raise`: reasons of votes and losses are returned from
functions, kept in constants, and joined to longer texts. Therefore every text in the package
with a word and a space counts; in `FOR_USERS` one word is enough. Not counted are docstrings,
annotations, reprs, texts that are compared with others or name a type (`COMPARED`), and
`NO_MESSAGES`.

``f"{name} lost: {reason}"`` is the text ``... lost: ...``. The pages write messages in the same
way. There a hole may also be filled with another text. Each entry is a heading with an anchor. Its
title is the message, or the words by which it is found; then a list has the messages.
"""

import ast
import functools
import re
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import NamedTuple, get_args

from redlock_aio.errors import ErrorCode

CODES = get_args(ErrorCode)

HOLE = "..."
"""Stands for a value that differs from one message to the next."""

PROGRAMS = "demo/"
"""A program, whose output explains itself."""

RAISED_ONLY = ("testing/", "cli/")
"""
Packages in which only the arguments of `raise` and of `OUTPUT` count.

Other texts in them imitate a server, or are the help and the output of a program.
"""

NOT_OURS = {"Error", "ConnectionRefusedError", "AssertionError"}
"""Errors in `testing/` that imitate a server or the system, or never occur."""

OUTPUT = {"note", "Failure", "write"}
"""Calls in `cli/` whose arguments are messages, as if they were raised."""

FOR_USERS = {"Bar", "NoReply", "Vote", "condemn", "_end", "Answer"}
"""Calls and classes in which a single word counts as a text."""

ENUMS = {"MasterStatus", "Move", "QuarantineRule", "Position"}
"""Enumerations whose values are descriptions for readers of the source, and never shown."""

COMPARED = {
    "cast", "compile", "fullmatch", "search", "sub", "startswith", "removeprefix", "partition",
}  # fmt: skip
"""Functions whose arguments are compared with other texts or name a type, and are never shown."""

LISTED_ELSEWHERE = {"Instrument"}
"""Calls whose texts are on another page, which a test of its own compares with them."""

FORMATS = re.compile(r"%(?:s|d|\.[01]f)|\{(?:ago|permits)\}")
"""The fields that `logging` or `str.format` fills."""

NO_MESSAGES = {
    "redlock_aio ...": "the name of a task",
    "utf-8": "an encoding",
    "redlock_aio looks up ...": "the name of a thread",
    "redlock_aio on_lost": "the name of a thread",
    "... (by Sentinel ...)": "the name of a master",
    "... (by Cluster ...)": "the name of a master",
    "cluster support disabled": "a part of a server's error, which is compared",
    "its clock is": "the begin of a vote, which is compared",
    "ACL failure": "a part of a server's error, which is compared",
    "executing the script can't": "a part of a server's error, which is compared",
    "others of the same owner have it": "ends a wait inside `acquire`, which catches it",
    "a share has no fencing token": "can't happen: `shared` and `fencing` exclude each other",
    "no server was dialled": "can't happen: `ConfirmedRoute.dial` comes first",
    "a streaming protocol is wanted": "can't happen: fake masters are used by this library only",
    "no script runs": "can't happen: a fake master runs each script with its own commands",
}
"""Texts that no user sees as a message, each with its purpose."""


OF_OTHERS = {
    "Connection refused", "Name or service not known", "No such file or directory",
    "CERTIFICATE_REQUIRED", "CERTIFICATE_VERIFY_FAILED", "TimeoutError",
    "NOPERM", "NOAUTH", "WRONGPASS", "MOVED", "CLUSTERDOWN", "ASK", "TRYAGAIN", "OOM", "MISCONF",
    "READONLY", "NOREPLICAS", "LOADING", "BUSY", "DENIED", "max number of clients reached",
    "DB index is out of range", "Connection reset by peer", "Connection closed by server",
    "coroutine ... was never awaited",
    "... object does not support the context manager protocol",
    "... object does not support the asynchronous context manager protocol",
    "object ... can't be used in 'await' expression",
    "Duplicated timeseries in CollectorRegistry",
}  # fmt: skip
"""Messages of the system, of servers, of Python and of prometheus_client that have an entry."""


class Text(NamedTuple):
    """A message or a part of one, with its place in the source."""

    text: str
    where: str


def normal(text: str) -> str:
    """Return *text* without quotes around holes and without separators at its ends."""
    return re.sub(r"(['\"])\.\.\.\1", HOLE, text).strip(" ,;:\n")


def of_library(package: Path, unseen: Collection[str] = NO_MESSAGES) -> list[Text]:
    """
    Return the texts of all modules and scripts of *package*.

    Args:
        unseen: The texts to leave out.
    """
    found: list[Text] = []
    for path in sorted(package.rglob("*.py")):
        where = path.relative_to(package).as_posix()
        if not where.startswith(PROGRAMS):
            collector = _Collector(where)
            collector.visit(ast.parse(path.read_text()))
            found += collector.found
    for path in sorted(package.rglob("*.lua")):
        where = path.relative_to(package).as_posix()
        if where.startswith(RAISED_ONLY):
            continue
        for number, line in enumerate(path.read_text().splitlines(), 1):
            found += [Text(normal(text), f"{where}:{number}") for text in _of_lua(line)]
    return [text for text in found if text.text not in unseen]


def _of_lua(line: str) -> Iterator[str]:
    """Yield the error in a line of a script, and the texts that may fill it."""
    if error := re.search(r'\{err = ("[A-Z]+ .*)\}', line):
        for inner in re.findall(r"\(.*\)", error[1]):
            yield from re.findall(r'"(\w+ \w[^"]*)"', inner)
        parts = re.sub(r"\(.*\)", "value", error[1]).split(" .. ")
        yield "".join(part.strip('"') if part.startswith('"') else HOLE for part in parts)


class _Collector(ast.NodeVisitor):
    """Collects the texts of one module."""

    def __init__(self, where: str) -> None:
        self.found: list[Text] = []
        self._where = where
        self._raised = self._for_users = False

    def _add(self, node: ast.expr, text: str) -> None:
        text, short = normal(text), self._raised or self._for_users
        if self._where.startswith(RAISED_ONLY) and not self._raised:
            return
        if self._raised and text in CODES:  # it is an argument of its own, not a message
            return
        if re.search("[A-Za-z]{2}", text) and (short or " " in text):
            self.found.append(Text(text, f"{self._where}:{node.lineno}"))

    def visit_Constant(self, node: ast.Constant) -> None:
        if isinstance(node.value, str):
            self._add(node, FORMATS.sub(HOLE, node.value))

    def visit_JoinedStr(self, node: ast.JoinedStr) -> None:
        parts = []
        for part in node.values:
            parts.append(str(part.value) if isinstance(part, ast.Constant) else HOLE)
            if isinstance(part, ast.FormattedValue):
                self.visit(part.value)
        self._add(node, "".join(parts))

    def visit_Raise(self, node: ast.Raise) -> None:
        if not (isinstance(node.exc, ast.Call) and _name(node.exc.func) in NOT_OURS):
            for part in ast.iter_child_nodes(node):
                self._visit_raised(part)

    def _visit_raised(self, node: ast.AST) -> None:
        before, self._raised = self._raised, True
        self.visit(node)
        self._raised = before

    def visit_IfExp(self, node: ast.IfExp) -> None:
        """Count a single word if the other case is a text of more words."""
        cases = [node.body, node.orelse]
        texts = [str(case.value) for case in cases if isinstance(case, ast.Constant)]
        before = self._for_users
        self._for_users = before or any(" " in normal(text) for text in texts)
        for case in cases:
            self.visit(case)
        self._for_users = before

    def visit_Call(self, node: ast.Call) -> None:
        if _name(node.func) in OUTPUT:
            for part in node.args:
                self._visit_raised(part)
            return
        if _name(node.func) not in COMPARED | LISTED_ELSEWHERE:
            self._visit_inside(node, _name(node.func))

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        if node.name not in ENUMS:
            self._visit_inside(node, node.name)

    def _visit_inside(self, node: ast.AST, name: str) -> None:
        before, self._for_users = self._for_users, name in FOR_USERS
        self.generic_visit(node)
        self._for_users = before

    def visit_Expr(self, node: ast.Expr) -> None:
        if not isinstance(node.value, ast.Constant):  # a docstring
            self.generic_visit(node)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        if node.name != "__repr__":
            for part in (*node.decorator_list, *node.args.defaults, *node.body):
                self.visit(part)

    visit_AsyncFunctionDef = visit_FunctionDef  # type: ignore[assignment]  # noqa: N815

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value is not None and ast.unparse(node.annotation) != "TypeAlias":
            self.visit(node.value)

    def visit_Compare(self, node: ast.Compare) -> None:
        """Skip texts that are compared."""


def _name(function: ast.expr) -> str:
    return ast.unparse(function).rpartition(".")[2]


class Entry(NamedTuple):
    """An entry of a page: its anchor, its title, its messages, and what they mean."""

    page: str
    word: str
    title: str
    messages: tuple[str, ...]
    meaning: str


ENTRY = re.compile(
    r'^### <a id="([\w-]+)"></a>`([^`]+)`\n\n'
    r"((?:- `[^`]+`\n)+\n|`[^`]+`\n\n)?"
    r"(.+?)\n(?=\n#|\Z)",
    re.MULTILINE | re.DOTALL,
)


def of_pages(folder: Path) -> list[Entry]:
    """Return the entries of all pages in *folder*."""
    return [
        Entry(path.stem, word, title, tuple(re.findall("`([^`]+)`", listed)) or (title,), meaning)
        for path in sorted(folder.glob("*.md"))
        for word, title, listed, meaning in ENTRY.findall(path.read_text())
    ]


class Grammar:
    """The messages that can be composed of *texts*."""

    def __init__(self, texts: list[Text]) -> None:
        self._texts = {text: tuple(text.split(HOLE)) for text, _ in texts}
        self.parts = functools.cache(self._parts)

    def _parts(self, message: str) -> frozenset[str] | None:
        """Return the texts of which *message* is composed; ``None`` if a part of it is no text."""
        message = normal(message)
        if message in ("", HOLE):
            return frozenset()
        if message in self._texts:
            return frozenset([message])
        for text, between in self._texts.items():
            if (filled := self._filled(message, between)) is not None:
                return filled | {text}
        # Code without words of its own joins texts, such as "; ".join(...).
        for join in re.finditer(r"[,;:] | (?=\()|(?<=^\.\.\.) |(?<=^\.\.\. \(\.\.\.\)) ", message):
            left, right = self.parts(message[: join.start()]), self.parts(message[join.end() :])
            if left is not None and right is not None:
                return left | right
        return self.parts(message[1:-1]) if message[0] + message[-1] == "()" else None

    def _filled(self, message: str, between: tuple[str, ...]) -> frozenset[str] | None:
        """Return the texts in the holes of a text, if what is *between* them is in *message*."""
        first, *rest = between
        if not message.startswith(first):
            return None
        message = message.removeprefix(first)
        if not rest:
            return None if message else frozenset()
        end = -1
        while (end := message.find(rest[0], end + 1)) != -1:
            if len(rest) > 1 or rest[0] or end == len(message):
                inner = self.parts(message[:end])
                outer = None if inner is None else self._filled(message[end:], tuple(rest))
                if inner is not None and outer is not None:
                    return inner | outer
        return None
