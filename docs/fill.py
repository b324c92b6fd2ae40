"""
Fills what the pages of docs/ show of other files: `python docs/fill.py` writes it into them.

So the pages can be read as they are, on a repository host or in an editor. Each generated part
stands between two comments, the first of which says what it is:

- ``<!-- file: examples/first_lock.py -->``: that file as a block of code; with
  ``examples/first_lock.py:name`` the part between its comments ``[start:name]`` and ``[end:name]``.
- ``<!-- options: redlock_aio.Redlock.lock -->``: a table of the keyword options of that function:
  name, type and default from its signature, meaning from the first sentence of its docstring's
  ``Args:``.
- ``<!-- api: redlock_aio.Lock -->``: a summary of a class or a module. Lines below the name are
  options for mkdocstrings, because the site has its whole reference in that place (docs/hooks.py).

The second comment is ``<!-- end -->``. A test fails if a page has anything else between the two.
"""

import ast
import enum
import importlib
import inspect
import itertools
import re
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import redlock_aio

DOCS = Path(__file__).parent
ROOT = DOCS.parent
GENERATED = re.compile(
    r"^(?P<indent> *)<!-- (?P<kind>file|options|api): (?P<what>\S+)(?P<more>.*?)\s*-->\n"
    r"(?P<inside>.*?)^(?P=indent)<!-- end -->$",
    re.MULTILINE | re.DOTALL,
)
LANGUAGES = {".py": "python", ".yaml": "yaml", "": "text"}
"""What a file of each suffix is, for the colours of its code."""

NOT_FOR_USERS = {"self", "unknown"}
DEFAULT = re.compile(r" \(default:? ([^)]*)\)| \(the default\)")
"""Where the meaning of an option names its default, which has a column of its own."""

REQUIRED = {"masters", "resources"}
"""Parameters that the text around a table of options describes."""


def filled(page: str) -> str:
    """Return the text of a *page* with what belongs between its comments."""

    def fill(found: re.Match[str]) -> str:
        more = dict(re.findall(r"^\s*(\w+): (.*)$", found["more"], re.MULTILINE))
        text = {"file": code, "options": options_table, "api": summary}[found["kind"]](
            found["what"], **more
        )
        begin = found[0].partition("-->")[0]
        lines = textwrap.indent(f"\n{text}\n\n<!-- end -->", found["indent"])
        return f"{begin}-->\n{lines}"

    return GENERATED.sub(fill, page)


def code(name: str) -> str:
    """Return a file, or a part of it, as a block of code."""
    path, _, part = name.partition(":")
    text = (ROOT / path).read_text(encoding="utf-8")
    if part:
        found = re.search(
            rf"^[^\n]*\[start:{part}\]\n(.*?)^[^\n]*\[end:{part}\]$", text, re.MULTILINE | re.DOTALL
        )
        if not found:
            raise ValueError(f"{path} has no part {part!r}")
        text = found[1]
    text = re.sub(r"^.*\[(?:start|end):\w+\]\n", "", text, flags=re.MULTILINE)
    return f"```{LANGUAGES[Path(path).suffix]}\n{text.strip()}\n```"


def resolved(name: str) -> Any:
    """Return the object with a dotted *name*."""
    module, _, attribute = name.rpartition(".")
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError:
        return getattr(resolved(module), attribute)


def options_table(name: str) -> str:
    """Return the table of the options of the function or class *name*, in Markdown."""
    thing = resolved(name)
    meanings = entries(inspect.getdoc(thing) or "", "Args")
    lines = ["| option | type | default | meaning |", "| --- | --- | --- | --- |"]
    for option in inspect.signature(thing).parameters.values():
        if option.name not in NOT_FOR_USERS | REQUIRED:
            meaning = first_sentence(meanings[option.name])
            default = f"`{shown(option)}`"
            if option.default is None:
                default = in_words(meaning)
            meaning = cell(DEFAULT.sub("", meaning))
            lines.append(f"| `{option.name}` | {kind(option)} | {default} | {meaning} |")
    return "\n".join(lines)


def in_words(meaning: str) -> str:
    """
    Return what happens without an option whose default is ``None``, from its *meaning*.

    Raises:
        ValueError: It does not say.
    """
    if found := DEFAULT.search(meaning):
        return found[1]
    raise ValueError(f"no (default: ...) in {meaning!r}")


def kind(option: inspect.Parameter) -> str:
    """Return the type of an option as a reader writes it."""
    text = inspect.formatannotation(option.annotation)
    text = re.sub(r"\b(?:\w+\.)+(\w+)", r"\1", text).replace("'", '"')
    literal = re.fullmatch(r"Literal\[(.*)\]", text)
    words = literal[1].split(", ") if literal else text.split(" | ")
    return " or ".join(f"`{word}`" for word in words)


def shown(option: inspect.Parameter) -> str:
    """Return the default of an option; long numbers with a separator, ``...`` for an object."""
    default = option.default
    if isinstance(default, int) and not isinstance(default, bool | enum.Enum):
        return f"{default:_}"
    if isinstance(default, str):
        return f'"{default}"'
    return re.sub(r"\(.*\)$|^<.*>$", lambda it: "()" if it[0][0] == "(" else "...", str(default))


def summary(name: str, *, members: str = "", heading_level: str = "2", **_: str) -> str:
    """Return what a class or a module is and has, in Markdown."""
    thing = resolved(name)
    chosen = members.strip("[]").split(", ") if members else []
    if not inspect.ismodule(thing):
        parts = [described(name, thing, int(heading_level), chosen)]
    else:
        parts = [prose(inspect.getdoc(thing) or "")]
        for member in chosen or thing.__all__:
            there = getattr(thing, member)
            parts.append(described(f"{name}.{member}", there, int(heading_level), []))
    return "\n\n".join([*parts, f"This is a summary. `python -m pydoc {name}` prints all of it."])


def described(name: str, thing: Any, level: int, chosen: list[str]) -> str:
    """Return the heading, the signature, the first paragraph and the members of *thing*."""
    parts = [f"{'#' * level} {anchor(name)}`{name}`"]
    documented = inspect.getdoc(thing) if callable(thing) else None
    if inspect.isroutine(thing) or (inspect.isclass(thing) and entries(documented or "", "Args")):
        parts.append(f"```python\n{call(name.rpartition('.')[2], thing, wide=76)}\n```")
    parts.append(prose(documented or value_docstring(name)))
    if rows := [*member_rows(name, thing, chosen)]:
        parts.append("\n".join(["| member | what it is or does |", "| --- | --- |", *rows]))
    return "\n\n".join(parts)


def member_rows(name: str, thing: Any, chosen: list[str]) -> Iterator[str]:
    """Yield a row for each member of a class, or for each of those that are *chosen*."""
    if not inspect.isclass(thing):
        return
    attributes = entries(inspect.getdoc(thing) or "", "Attributes")
    for attribute, meaning in attributes.items():
        yield row(f"{name}.{attribute}", attribute, meaning)
    for member in chosen or public_members(thing):
        if member in attributes:
            continue
        there = inspect.getattr_static(thing, member)
        text = prose(inspect.getdoc(there) or "")
        yield row(f"{name}.{member}", call(member, getattr(thing, member)), text)


def row(name: str, written: str, text: str) -> str:
    """Return the row of a member, as *written* in code, with the first sentence of its *text*."""
    return f"| {anchor(name)}`{cell(written)}` | {cell(first_sentence(text))} |"


def anchor(name: str) -> str:
    """Return the place that links to *name* lead to."""
    return f'<a id="{name}"></a>'


def public_members(thing: type) -> list[str]:
    """Return the names of the public methods and properties of a class, in their order."""
    found = [
        name
        for kind in reversed(thing.__mro__)
        if kind.__module__.startswith("redlock_aio")
        for name, value in vars(kind).items()
        if not name.startswith("_")
        and (inspect.isfunction(value) or isinstance(value, property | classmethod | staticmethod))
        and inspect.getdoc(value)
    ]
    return list(dict.fromkeys(found))


def call(name: str, thing: Any, *, wide: int = 0) -> str:
    """Return how *thing* is called; without types, in several lines if it is wider than *wide*."""
    if not callable(thing) or isinstance(thing, property):
        return name
    # The classes of `redlock_aio.sync` have the parameters and defaults of those that they run.
    told_by = getattr(redlock_aio, name, thing) if inspect.isclass(thing) else thing
    defaults = effective(inspect.getdoc(told_by) or "")
    parameters = [
        it.replace(annotation=it.empty, default=Shown(defaults.get(it.name) or shown(it)))
        if it.default is not it.empty
        else it.replace(annotation=it.empty)
        for it in inspect.signature(thing).parameters.values()
        if it.name not in NOT_FOR_USERS
    ]
    signature = inspect.Signature(parameters)
    before = "await " if inspect.iscoroutinefunction(thing) else ""
    one_line = f"{before}{name}{signature}"
    if not wide or len(one_line) <= wide:
        return one_line
    inside = str(signature)[1:-1]
    parts = re.split(r", (?=[*\w/]+(?:[=,]|$))", inside)
    return "\n".join([f"{before}{name}(", *(f"    {part}," for part in parts), ")"])


def effective(docstring: str) -> dict[str, str]:
    """
    Return the defaults that a *docstring* names by a number or a word, though they are ``None``.

    "As for `lock`" is what that method says.
    """
    lock = entries(inspect.getdoc(resolved("redlock_aio.Redlock.lock")) or "", "Args")
    found = {}
    for name, text in entries(docstring, "Args").items():
        as_lock = re.search(r"\b[Aa]s for `(?:Redlock\.)?lock`", text) and "(default" not in text
        whole = lock.get(name, "") if as_lock or "(default: as for `lock`)" in text else text
        if default := re.search(r"\(default: (?:`(\d[\d_]*)`|(learned)\b)", whole):
            found[name] = default[1] or default[2]
    return found


class Shown(str):
    """A default that is shown as it is written here, without quotes."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


def value_docstring(name: str) -> str:
    """Return the text below the assignment of a value or a type in its module's source."""
    module, _, wanted = name.rpartition(".")
    body = ast.parse(inspect.getsource(importlib.import_module(module))).body
    for here, below in itertools.pairwise(body):
        targets = here.targets if isinstance(here, ast.Assign) else [getattr(here, "target", None)]
        named = any(isinstance(it, ast.Name) and it.id == wanted for it in targets)
        if named and isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant):
            return inspect.cleandoc(str(below.value.value))
    raise ValueError(f"{name} has no docstring")


def entries(docstring: str, section: str) -> dict[str, str]:
    """Return the text about each name in a section of a docstring, such as ``Args:``."""
    found = re.search(rf"^{section}:\n(.*?)(?=^\S|\Z)", docstring, re.MULTILINE | re.DOTALL)
    if not found:
        return {}
    texts = re.findall(r"^    (\w+): (.*?)(?=^    \w|\Z)", found[1], re.MULTILINE | re.DOTALL)
    return {name: " ".join(text.split()).replace("``", "`") for name, text in texts}


def prose(docstring: str) -> str:
    """Return the first paragraph of a *docstring*, as Markdown."""
    return " ".join(docstring.split("\n\n", maxsplit=1)[0].split()).replace("``", "`")


def first_sentence(text: str) -> str:
    """Return the first sentence of *text* without its full stop."""
    return re.split(r"(?<=\.)\s", text, maxsplit=1)[0].rstrip(".")


def cell(text: str) -> str:
    """Return *text* as it is written in a cell of a table."""
    return text.replace("|", r"\|")


def main() -> None:
    """Write all pages that are not up to date, and print their names."""
    for path in sorted(DOCS.rglob("*.md")):
        before = path.read_text(encoding="utf-8")
        if (after := filled(before)) != before:
            path.write_text(after, encoding="utf-8")
            print(path.relative_to(ROOT))  # noqa: T201 - what it has changed


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))  # the package of this clone
    main()
