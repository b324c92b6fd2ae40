"""
Draws mutants at random: small changes of operators, constants and statements.

Each line that can be changed has the same chance, so a module gets as many mutants as follows
from its lines. No line is changed twice, and the kinds of changes take turns.
"""

import ast
import random
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeAlias

from lupa import lua51

from .table import EQUIVALENT, PACKAGE, Function, Mutant, functions, offsets, read

LEFT_OUT = ("cli/", "demo/", "testing/")
"""
What is drawn only if it is named: most of it runs in processes of its own, in tests/cli.

The masters in memory are compared with real servers, in tests/integration.
"""

SKIPPED = (Function, ast.ClassDef, ast.JoinedStr, ast.Raise, ast.Assert)
"""Nodes that are not changed: messages, and functions that are changed under their own name."""

SILENT = {"__repr__", "__str__"}
"""Functions that are not changed, because their results are for people only."""

COMPARISONS: dict[type[ast.cmpop], tuple[str, str]] = {
    ast.Lt: ("<", "<="),
    ast.LtE: ("<=", "<"),
    ast.Gt: (">", ">="),
    ast.GtE: (">=", ">"),
    ast.Eq: ("==", "!="),
    ast.NotEq: ("!=", "=="),
    ast.Is: ("is", "is not"),
    ast.IsNot: ("is not", "is"),
    ast.In: ("in", "not in"),
    ast.NotIn: ("not in", "in"),
}


@dataclass(frozen=True)
class Change:
    """One possible change: *new* takes the place of the characters from *begin* to *end*."""

    kind: str
    begin: int
    end: int
    new: str
    inside: str = ""


class Finder(ast.NodeVisitor):
    """
    Finds the changes that are possible in one function.

    Args:
        text: The text of the file.

        inside: The qualified name of the function.
    """

    def __init__(self, text: str, inside: str) -> None:
        self.found: list[Change] = []
        self._text = text
        self._inside = inside
        self._begins = offsets(text)
        self._lines = text.splitlines()

    def _at(self, line: int, column: int) -> int:
        before = self._lines[line - 1].encode()[:column]  # columns are counted in bytes
        return self._begins[line - 1] + len(before.decode())

    def _span(self, node: ast.expr | ast.stmt) -> tuple[int, int]:
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        begin = self._at(node.lineno, node.col_offset)
        return begin, self._at(node.end_lineno, node.end_col_offset)

    def _add(self, kind: str, node: ast.expr | ast.stmt, new: str) -> None:
        self.found.append(Change(kind, *self._span(node), new, self._inside))

    def _between(self, kind: str, left: ast.expr, right: ast.expr, swap: tuple[str, str]) -> None:
        """Swap the operator that stands between two operands."""
        begin, end = self._span(left)[1], self._span(right)[0]
        found = re.search(rf"(?<!\w){re.escape(swap[0])}(?!\w)", self._text[begin:end])
        if found is not None and "#" not in self._text[begin:end]:
            at = begin + found.start()
            self.found.append(Change(kind, at, at + len(swap[0]), swap[1], self._inside))

    def visit(self, node: ast.AST) -> None:
        """Find the changes of *node*, unless it is one of `SKIPPED`."""
        if not isinstance(node, SKIPPED):
            super().visit(node)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        """Change the value, not the type."""
        if node.value is not None:
            self.visit(node.value)

    def visit_Compare(self, node: ast.Compare) -> None:
        """Swap the operator."""
        operands = (node.left, *node.comparators)
        for left, operator, right in zip(operands[:-1], node.ops, node.comparators, strict=True):
            self._between("comparison", left, right, COMPARISONS[type(operator)])
        self.generic_visit(node)

    def visit_BoolOp(self, node: ast.BoolOp) -> None:
        """Swap `and` and `or`."""
        swap = ("and", "or") if isinstance(node.op, ast.And) else ("or", "and")
        for left, right in zip(node.values[:-1], node.values[1:], strict=True):
            self._between("and/or", left, right, swap)
        self.generic_visit(node)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> None:
        """Drop `not`."""
        if isinstance(node.op, ast.Not):
            begin, _ = self._span(node)
            operand, _ = self._span(node.operand)
            text = self._text[begin:operand].removeprefix("not ")
            self.found.append(Change("not", begin, operand, text, self._inside))
        self.generic_visit(node)

    def visit_BinOp(self, node: ast.BinOp) -> None:
        """Swap + and -."""
        if isinstance(node.op, ast.Add | ast.Sub):
            swap = ("+", "-") if isinstance(node.op, ast.Add) else ("-", "+")
            if not any(isinstance(n, ast.JoinedStr | ast.List | ast.Tuple) for n in ast.walk(node)):
                self._between("+/-", node.left, node.right, swap)
        self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        """Swap min and max."""
        if isinstance(node.func, ast.Name) and node.func.id in {"min", "max"}:
            self._add("min/max", node.func, "max" if node.func.id == "min" else "min")
        self.generic_visit(node)

    def visit_keyword(self, node: ast.keyword) -> None:
        """Leave out `strict` of `zip`, which is an assertion."""
        if node.arg != "strict":
            self.visit(node.value)

    def visit_Constant(self, node: ast.Constant) -> None:
        """Change an integer, and a truth value."""
        if type(node.value) is int:
            self._add("constant", node, f"{_other(node.value)}")
        elif type(node.value) is bool:
            self._add("true/false", node, f"{not node.value}")

    def visit_Assign(self, node: ast.Assign) -> None:
        """Drop what is kept in an attribute."""
        if isinstance(node.targets[0], ast.Attribute):
            self._add("assignment", node, "pass")
        self.visit(node.value)

    def visit_Return(self, node: ast.Return) -> None:
        """Return nothing."""
        value = node.value
        if value is not None and not (isinstance(value, ast.Constant) and value.value is None):
            self._add("return", value, "None")
            self.generic_visit(node)

    def visit_Expr(self, node: ast.Expr) -> None:
        """Replace a call whose result is not used by `pass`."""
        call = node.value.value if isinstance(node.value, ast.Await) else node.value
        if isinstance(call, ast.Call):
            self._add("call", node, "pass")
        self.generic_visit(node)

    def visit_If(self, node: ast.If) -> None:
        """Replace the condition by True, and by False."""
        self._add("if", node.test, "True")
        self._add("if", node.test, "False")
        self.generic_visit(node)


def _other(number: int) -> int:
    """Return the next integer, or the double of a large one, where 1 makes little difference."""
    return number + 1 if number < 100 else 2 * number


def python_changes(text: str) -> Iterator[Change]:
    """Yield the changes that are possible in the functions of a module."""
    for name, node in functions(ast.parse(text)):
        if isinstance(node, Function) and node.name not in SILENT:
            finder = Finder(text, name)
            for statement in node.body:
                finder.visit(statement)
            yield from finder.found


LUA_TOKENS = [
    ("comparison", r"(?<= )(<=|<|>=|>|==|~=)(?= )", {
        "<": "<=", "<=": "<", ">": ">=", ">=": ">", "==": "~=", "~=": "==",
    }),
    ("and/or", r"\b(and|or)\b", {"and": "or", "or": "and"}),
    ("not", r"\b(not )", {"not ": ""}),
    ("+/-", r"(?<= )([+-])(?= )", {"+": "-", "-": "+"}),
    ("min/max", r"(?<=math\.)(min|max)\b", {"min": "max", "max": "min"}),
    ("call", r"^ *(redis\.p?call\(.*\))$", None),
    ("return", r"^ *return (.+?)(?: --.*)?$", "nil"),
    ("if", r"\bif (.+) then$", "true"),
    ("if", r"\bif (.+) then$", "false"),
]  # fmt: skip
"""The kind, the pattern, and the replacement of its group: a table, or one text."""

NUMBER = re.compile(r"(?<![\w.\"%\[])(\d+)(?![\w.\"\]])")


def lua_changes(text: str) -> Iterator[Change]:
    """Yield the changes that are possible in a script."""
    begins = offsets(text)
    for begin, line in zip(begins, text.splitlines(), strict=False):
        code = line.partition("--")[0].rstrip()
        for kind, pattern, becomes in LUA_TOKENS:
            for match in re.finditer(pattern, code):
                old = match[1]
                new = becomes[old] if isinstance(becomes, dict) else becomes or ""
                yield Change(kind, begin + match.start(1), begin + match.end(1), new)
        for match in NUMBER.finditer(code):
            new = f"{_other(int(match[0]))}"
            yield Change("constant", begin + match.start(), begin + match.end(), new)


def is_valid_lua(text: str) -> bool:
    """Return whether *text* compiles."""
    try:
        lua51.LuaRuntime().compile(text)
    except lua51.LuaError:
        return False
    return True


def is_valid_python(text: str) -> bool:
    """Return whether *text* compiles."""
    try:
        compile(text, "", "exec")
    except SyntaxError:
        return False
    return True


Language: TypeAlias = tuple[Callable[[str], Iterator[Change]], Callable[[str], bool]]
LANGUAGES: dict[str, Language] = {
    ".py": (python_changes, is_valid_python),
    ".lua": (lua_changes, is_valid_lua),
}


def draw(
    root: Path, *, seed: int, count: int, per_function: int = 0, only: Sequence[str] = ()
) -> list[Mutant]:
    """
    Return mutants of the package under *root*, by file and line.

    Args:
        count: The most mutants.

        per_function: The most of one function, or of one script; 0 does not limit them.

        only: The begins of the files' paths in the package; all but `LEFT_OUT` if it is empty.
    """
    chance = random.Random(seed)
    texts = {}
    for path in sorted((root / PACKAGE).rglob("*.*")):
        file = path.relative_to(root).as_posix()
        inside = file.removeprefix(f"{PACKAGE}/")
        wanted = inside.startswith(tuple(only)) if only else not inside.startswith(LEFT_OUT)
        if path.suffix in LANGUAGES and wanted:
            texts[file] = path.read_text()
    places: dict[tuple[str, int], list[Change]] = defaultdict(list)
    for file, text in texts.items():
        for change in LANGUAGES[Path(file).suffix][0](text):
            places[file, text.count("\n", 0, change.begin) + 1].append(change)
    order = list(places)
    chance.shuffle(order)
    known = {mutant.digest for mutant in read(EQUIVALENT)}
    kinds, per = Counter[str](), Counter[tuple[str, str]]()
    drawn: dict[tuple[str, int], Mutant] = {}
    for file, line in order:
        changes = places[file, line]
        function = file, changes[0].inside
        if len(drawn) == count or (per_function and per[function] == per_function):
            continue
        chance.shuffle(changes)
        for change in sorted(changes, key=lambda change: kinds[change.kind]):
            mutant = _mutant(
                f"{file.removeprefix(PACKAGE + '/')}:{line}", file, texts[file], change
            )
            if mutant.digest not in known and _is_valid(mutant, texts[file]):
                drawn[file, line] = mutant
                kinds[change.kind] += 1
                per[function] += 1
                break
    return [drawn[place] for place in sorted(drawn)]


def _is_valid(mutant: Mutant, text: str) -> bool:
    """Return whether the mutant differs, and compiles."""
    return mutant.new != mutant.old and LANGUAGES[Path(mutant.file).suffix][1](mutant.apply(text))


def _mutant(name: str, file: str, text: str, change: Change) -> Mutant:
    """Return *change* as a mutant that replaces whole lines, which can be found by their text."""
    begin = text.rfind("\n", 0, change.begin) + 1
    begin += len(text[begin:]) - len(text[begin:].lstrip(" "))
    end = text.find("\n", change.end)
    old = text[begin:end].rstrip()
    new = text[begin : change.begin] + change.new + text[change.end : end].rstrip()
    mutant = Mutant(id=name, file=file, inside=change.inside, old=old, new=new.rstrip())
    while mutant.span(text)[0] < begin:
        mutant = replace(mutant, nth=mutant.nth + 1)
    return mutant
