"""
How docstrings and signatures appear in the API pages: an extension of griffe.

- `Lease.extend` in a docstring becomes a link, if it is a public name.
- A default that is a name, as ``timing.MAX_TTL``, is shown as its value.
- Parameters that only produce better errors or serve tests are left out.
"""

import importlib
import inspect
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any, get_args

from griffe import Attribute, Docstring, Extension, Function, Object, Parameter
from markdown.extensions.toc import slugify

sys.path.insert(0, str(Path(__file__).parent))  # griffe loads this file by its path
from fill import effective

MODULES = (
    "",
    ".errors",
    ".events",
    ".fencing",
    ".requirements",
    ".testing",
    ".sync",
    ".contrib.fastapi",
    ".contrib.aiohttp",
    ".contrib.opentelemetry",
    ".contrib.prometheus",
)
LEAVES = ("redlock_aio.cli",)
"""Packages without a page of the API: they need packages of an extra, and are not imported."""

NOT_FOR_USERS = {"unknown"}
LITERALS = {"OnLost", "RestartGuard"}
FOR_TESTS = " | AnyDialler"
REFERENCE = re.compile(r"(?<!`)`([A-Za-z_][\w./-]*)`(?![`\]])")


def public_names() -> dict[str, str]:
    """Return each public name, as docstrings write it, with its full name."""
    names: dict[str, str] = {}
    for suffix in MODULES:
        module = importlib.import_module(f"redlock_aio{suffix}")
        for name in module.__all__:
            here = f"{module.__name__}.{name}"
            names.setdefault(name, here)
            names.setdefault(here, here)
            thing = getattr(module, name)
            for member in members(thing):
                names.setdefault(f"{name}.{member}", f"{names[name]}.{member}")
                names.setdefault(f"{here}.{member}", f"{here}.{member}")
        if suffix:
            names[module.__name__] = module.__name__
    return names


def members(thing: object) -> list[str]:
    """Return the names of the public methods and properties of a class."""
    if not inspect.isclass(thing):
        return []
    return [
        name
        for name, value in inspect.getmembers(thing)
        if not name.startswith("_")
        and (inspect.isfunction(value) or isinstance(value, property))
        and (value.__doc__ or "").strip()
        and (getattr(value, "fget", None) or value).__module__.startswith("redlock_aio")
    ]


class PublicNames(Extension):  # type: ignore[misc]  # griffe is not there for mypy
    """The extension, as `mkdocs.yml` names it."""

    def __init__(self) -> None:
        self.names = public_names()

    def on_object(self, *, obj: Object, **_: Any) -> None:
        """Put links into the docstring of *obj*."""
        if obj.docstring is not None and not obj.is_alias:
            obj.docstring.value = self.linked(obj.docstring, obj)

    def linked(self, docstring: Docstring, owner: Object) -> str:
        """Return the text of *docstring* with links to public names."""
        of_class = owner.parent.name if owner.is_function or owner.is_attribute else owner.name
        # The classes for threads have the names of those with asyncio.
        own = "redlock_aio.sync." if owner.path.startswith("redlock_aio.sync.") else ""

        def link(found: re.Match[str]) -> str:
            name = found[1]
            wanted = (f"{own}{of_class}.{name}", f"{own}{name}", f"{of_class}.{name}", name)
            full = next(filter(None, map(self.names.get, wanted)), None)
            if name.endswith(".md"):
                full = first_heading(name)
            elif full is None and "." in name:  # a field is described with its class
                full = self.names.get(name.rpartition(".")[0])
            return f"[`{name}`][{full}]" if full else found[0]

        return REFERENCE.sub(link, docstring.value)

    def on_function(self, *, func: Function, **_: Any) -> None:
        """Show values of defaults, and remove parameters that users do not pass."""
        if func.module.path.startswith(LEAVES):
            return
        for parameter in list(func.parameters):
            if parameter.name in NOT_FOR_USERS:
                del func.parameters[parameter.name]
                continue
            self.spell_out(func, parameter)
            if str(parameter.default) == "None":
                parameter.default = self.effective(func).get(parameter.name, "None")
                continue
            default = str(parameter.default)
            if parameter.default is None or not re.fullmatch(r"[A-Za-z_]\w*(\.\w+)*", default):
                continue
            if default not in {"None", "True", "False"}:
                value = repr(value_of(func, default))
                if not value.startswith("<"):  # such a repr names an address in memory
                    parameter.default = value

    def effective(self, func: Function) -> dict[str, str]:
        """Return the defaults that are named in the docstring of *func*, or of its class."""
        described = func.parent if func.name == "__init__" else func
        if described is None or described.docstring is None:
            return {}
        return effective(inspect.cleandoc(described.docstring.value).replace("``", "`"))

    def on_attribute(self, *, attr: Attribute, **_: Any) -> None:
        """Remove values that are private."""
        if re.search(r"\b_[a-z]", str(attr.value)):
            attr.value = None

    def spell_out(self, func: Function, parameter: Parameter) -> None:
        """Show the values of an annotation that only has a private name."""
        text = str(parameter.annotation)
        if text in LITERALS:
            values = get_args(value_of(func, text))
            parameter.annotation = f"Literal[{', '.join(map(repr, values))}]"
        elif FOR_TESTS in text:
            parameter.annotation = text.replace(FOR_TESTS, "")


def first_heading(page: str) -> str:
    """Return the anchor of the first heading of a page."""
    with open(page, encoding="utf-8") as text:  # noqa: PTH123 - relative to mkdocs.yml
        heading = next(line for line in text if line.startswith("# "))
        title = re.sub(r'<a id="[^"]*"></a>', "", heading)
        return str(slugify(title.lstrip("# ").strip(), "-"))


def value_of(func: Function, expression: str) -> object:
    """Return the value of a dotted name in the module of *func*."""
    value: ModuleType | object = importlib.import_module(func.module.path)
    for name in expression.split("."):
        value = getattr(value, name)
    return value
