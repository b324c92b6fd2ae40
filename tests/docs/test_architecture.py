"""The page about the architecture names the layers, modules, classes and members of the code."""

import ast
import functools
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.test_floors import FLOORS

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "redlock_aio"
PAGE = (ROOT / "docs" / "architecture.md").read_text()
OTHERS = {"DELIFEQ", "None", "pytest_redlock_aio", "redlock", "redlock_aio"}
"""Words in backticks that are no names of the package."""


@functools.cache
def trees() -> dict[Path, ast.Module]:
    return {path: ast.parse(path.read_text()) for path in sorted(PACKAGE.rglob("*.py"))}


@functools.cache
def classes() -> dict[str, ast.ClassDef]:
    return {
        node.name: node
        for path, tree in trees().items()
        if path.parent.name != "sync"  # its `Lock` has the name, but not the inside, of the other
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
    }


@functools.cache
def modules() -> dict[str, ast.Module]:
    return {path.stem: tree for path, tree in trees().items()}


@functools.cache
def functions() -> set[str]:
    return {
        node.name
        for tree in trees().values()
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }


def rows(title: str) -> list[list[str]]:
    """Return the cells of the table below the heading *title*, without its head."""
    section = PAGE.partition(f"## {title}\n")[2].partition("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("| ")]
    assert len(lines) > 5, title
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[1:]]


def bases(name: str) -> list[str]:
    return [ast.unparse(base).partition("[")[0] for base in classes()[name].bases]


def targets(node: ast.AST) -> list[ast.expr]:
    """Return what an assignment sets, a tuple item by item; nothing for other nodes."""
    if isinstance(node, ast.AnnAssign):
        return [node.target]
    if not isinstance(node, ast.Assign):
        return []
    return [
        each
        for target in node.targets
        for each in (target.elts if isinstance(target, ast.Tuple) else [target])
    ]


def members(name: str) -> Iterator[str]:
    """Yield the names of the methods, constants and attributes of a class."""
    for node in ast.walk(classes()[name]):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.name
        for target in targets(node):
            if isinstance(target, ast.Attribute):
                yield target.attr
            elif isinstance(target, ast.Name):
                yield target.id
    for base in bases(name):
        if base in classes():
            yield from members(base)


def is_in_a_module(module: str, member: str) -> bool:
    body = modules()[module].body
    names = {node.name for node in body if isinstance(node, ast.ClassDef | ast.FunctionDef)}
    names |= {node.name for node in body if isinstance(node, ast.AsyncFunctionDef)}
    return member in names


def exists(name: str) -> bool:
    """Return whether the package has a file, folder, module, class, function or member *name*."""
    if name in OTHERS:
        return True
    if "/" in name or name.endswith(".py"):
        folder = PACKAGE.parent if name.startswith(("redlock_aio/", "tests/")) else PACKAGE
        return (folder / name).exists()
    owner, _, member = name.removesuffix("()").rpartition(".")
    if not owner:
        return (
            member in classes() or member in functions() or member in modules() or is_folder(member)
        )
    if owner in classes():
        return member in members(owner)
    return owner in modules() and is_in_a_module(owner, member)


def is_folder(name: str) -> bool:
    return (PACKAGE / name).is_dir()


PROSE = re.sub(r"^```\n.*?^```$", "", PAGE, flags=re.MULTILINE | re.DOTALL)
PICTURES = "\n".join(re.findall(r"^```\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL))
NAMED = sorted(set(re.findall(r"`([^`]+)`", PROSE)))
DRAWN = sorted(
    set(re.findall(r"\b(?:[A-Z]\w*|fair_waiter|quarantine)\.[A-Za-z_]\w*", PICTURES))
    | set(re.findall(r"\b(?:[A-Z][a-z]+){2,}\b", PICTURES))
)


@pytest.mark.parametrize("name", NAMED)
def test_each_name_in_the_text_exists(name: str) -> None:
    assert exists(name)


@pytest.mark.parametrize("name", DRAWN)
def test_each_name_in_a_picture_exists(name: str) -> None:
    assert exists(name)


def test_the_page_has_names_to_check() -> None:
    assert len(NAMED) > 60
    assert len(DRAWN) > 30
    assert not exists("Round.is_gone")
    assert not exists("_engine/round.py")
    assert not exists("quarantine.is_gone")


def test_the_layers_are_those_of_the_imports_with_the_highest_first() -> None:
    floor_of = {room: number for number, floor in enumerate(FLOORS) for room in floor}
    floors = []
    for folder, names, _ in rows("Layers"):
        where = PACKAGE.parent / folder.strip("`") if "redlock_aio" in folder else None
        where = where or PACKAGE / folder.strip("`")
        listed = names.split(", ")
        for name in listed:
            assert (where / f"{name}.py").is_file() or (where / name).is_dir(), name
        package = ".".join(where.relative_to(PACKAGE).parts)
        entries = {f"{package}.{name}".strip(".") for name in listed}
        floors.append(max(floor_of.get(entry, floor_of[package]) for entry in entries))
    assert floors == sorted(floors, reverse=True)
    assert len(set(floors)) > 8


def test_each_folder_has_a_layer() -> None:
    listed = {folder.strip("`/") for folder, *_ in rows("Layers")}
    listed |= {name for _, names, _ in rows("Layers") for name in names.split(", ")}
    folders = {path.parent.relative_to(PACKAGE).as_posix() for path in trees()} - {"."}
    assert {folder for folder in folders if folder not in listed} == {"cli/doctor"}


def test_the_kinds_of_round_are_all_in_the_table() -> None:
    """Whoever adds a subclass says on the page why a `Query` is not enough."""
    kinds = {"Round"}
    while more := {name for name in classes() if kinds & set(bases(name))} - kinds:
        kinds |= more
    assert {row[0].strip("`") for row in rows("The kinds of round")} == kinds - {"Round", "Query"}


def test_the_sources_of_a_standing_and_the_moves_of_a_waiter_are_all_on_the_page() -> None:
    sources = {ast.unparse(each) for node in classes()["Standing"].body for each in targets(node)}
    assert {name for name in NAMED if name.startswith("Standing.")} == {
        f"Standing.{source}" for source in sources
    }
    moves = {ast.unparse(each) for node in classes()["Move"].body for each in targets(node)}
    assert {move for move in moves if not re.search(rf"\b{move}\b", PICTURES)} == set()
