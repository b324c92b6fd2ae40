"""The language of the code: one name for one thing, and docstrings that state effects."""

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "redlock_aio"
MODULES = {path.relative_to(PACKAGE).as_posix(): path for path in sorted(PACKAGE.rglob("*.py"))}
FILES = {
    path.relative_to(ROOT).as_posix(): path
    for folder in ("redlock_aio", "tests", "benchmarks", "examples", "docs")
    for path in sorted((ROOT / folder).rglob("*.py"))
}
"""All Python files of the repository; `MODULES` are those of the package."""

ATTITUDES = re.compile(r"\s*(Hear|Note|Take|Let|Tell|Learn|Leave|Have|Hand|Do as)\b")
"""Words that a docstring does not begin with: they describe an attitude, not an effect."""

FORMER = (
    "Asker", "Claim", "Clearing", "Counter", "Eviction", "Exported", "Fleet", "Freeing", "Handed",
    "Hold", "JointLine", "Key", "Keys", "Lifetime", "Line", "Queues", "Said", "Silence", "Told",
    "ToldWatchdog", "Trust", "View", "Waiter", "Wanted", "boots", "handing", "nudge", "oversight",
    "queueing", "telling", "told",
)  # fmt: skip
"""Names of classes and modules that had other names than the field gives them."""

FORMER_WORDS = (
    "answered", "asker", "courtesy", "doubt", "fleet", "hear", "hear_out", "heard", "kin", "meet",
    "met", "nudge", "owe", "paid", "ring", "said", "silence", "stand", "told", "trust",
)  # fmt: skip
"""Names of functions, parameters, attributes and variables that the field does not use so."""


def defined() -> Iterator[tuple[str, str, ast.AST]]:
    """Yield the module, the name and the node of each class, and of each constant of a module."""
    for module, path in MODULES.items():
        tree = ast.parse(path.read_text())
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                yield module, node.name, node
        for node in tree.body:
            targets = node.targets if isinstance(node, ast.Assign) else []
            if isinstance(node, ast.AnnAssign):
                targets = [node.target]
            for target in targets:
                if isinstance(target, ast.Name):
                    yield module, target.id, node


FOR_THREADS = ("sync/_lease.py", "sync/_lock.py", "sync/_redlock.py")
"""Modules whose public classes have the names of those with asyncio."""


def test_no_two_classes_and_no_class_and_constant_share_a_name() -> None:
    places = defaultdict(list)
    classes = set()
    for module, name, node in defined():
        if module in FOR_THREADS and name in {"Lease", "Lock", "Redlock"}:
            continue
        places[name].append(module)
        if isinstance(node, ast.ClassDef):
            classes.add(name)
    assert {name: where for name, where in places.items() if name in classes and where[1:]} == {}


def test_no_former_name_comes_back() -> None:
    names = {name for _, name, node in defined() if isinstance(node, ast.ClassDef)}
    names |= {path.stem for path in MODULES.values()}
    assert names.isdisjoint(FORMER)


@pytest.mark.parametrize("file", FILES)
def test_no_former_word_comes_back(file: str) -> None:
    names = set()
    for node in ast.walk(ast.parse(FILES[file].read_text())):
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                names.add(node.name)
            case ast.arg():
                names.add(node.arg)
            case ast.Attribute():
                names.add(node.attr)
            case ast.Name():
                names.add(node.id)
    assert {name.lstrip("_") for name in names}.isdisjoint(FORMER_WORDS)


@pytest.mark.parametrize("file", FILES)
def test_docstrings_state_an_effect(file: str) -> None:
    tree = ast.parse(FILES[file].read_text())
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Module):
            text = ast.get_docstring(node) or ""
            assert not ATTITUDES.match(text), text.splitlines()[0]
            assert re.search("whoever", text, re.IGNORECASE) is None, text
