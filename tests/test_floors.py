"""The layers of the package: imports run downward, and no two modules import each other."""

import ast
import graphlib
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

HOUSE = Path(__file__).parents[1] / "redlock_aio"

FLOORS = [
    ["_rules"],
    ["_protocol"],
    ["_log"],
    ["errors"],
    ["events"],
    ["_transport"],
    ["_engine"],  # the files beside the wings
    ["_engine.wait"],
    ["_engine.hold"],
    ["_engine.session"],
    ["_engine.acquire", "_engine.admin"],
    ["_api"],
    [""],  # the package itself: the public names
    ["fencing"],
    ["requirements"],
    ["testing"],
    ["demo"],
    ["sync"],
    ["contrib"],
    ["cli"],
    ["__main__"],
]
"""
The layers from the lowest up. A module belongs to the longest entry that its name begins with.

It imports from its own package and from the floors below.
"""

FLOOR_OF = {room: floor for floor, rooms in enumerate(FLOORS) for room in rooms}
NO_IO = {"asyncio", "anyio", "hiredis", "logging", "random", "redis", "secrets", "socket", "time"}
PURE = ("_rules", "_protocol")
# The engine uses masters only as links, so a fake can replace a socket. The module that
# opens a session is the exception: it makes the links, and waits for them.
MAKES_LINKS = {"_engine.session"}
# Code that users could have written imports public names only.
ONLY_PUBLIC = ("contrib", "demo", "fencing", "sync", "testing._embedded", "cli", "__main__")
SHARED = {
    "_api.decorator": {"contrib"},
    "_api.lock": {"sync"},
    "_api.faces": {"sync", "cli"},
    "_rules.mistakes": {"sync"},
    "_rules.validation": {"sync"},
    "_transport.address": {"cli"},
    "_transport.resolver": {"cli"},
}
"""Private modules that parts of `ONLY_PUBLIC` import: what they share is no feature for users."""
LEAVES: dict[str | tuple[str, ...], set[str]] = {
    "cli": {"typer"},
    ("cli", "demo"): {"rich"},
    "contrib": {"aiohttp", "fastapi", "opentelemetry", "prometheus_client", "starlette"},
}
"""The packages of an extra, and the parts of this package that alone may import them."""
NOT_LOADED = (
    "aiohttp", "fastapi", "lupa", "prometheus_client", "pytest", "rich", "typer",
    "redlock_aio.cli", "redlock_aio.contrib", "redlock_aio.sync", "redlock_aio.testing",
)  # fmt: skip
IMPLEMENTED_BY = {
    "ClusterDialler": ["ClusterAddress", "FakeCluster"],
    "Dialler": ["Address", "FakeMaster"],
    "HasStatistics": ["Redlock", "Manager"],  # the second one is in the tests
    "Link": ["Master", "Link"],  # the second one is in the tests
    "Listener": [],  # users write them
    "Screen": ["LiveScreen", "Lines"],
    "Party": ["HeldLease", "Watch", "FairWaiter", "Pause"],
    "ServiceDialler": ["SentinelAddress", "FakeService"],
    "Waiter": ["FairWaiter", "NotedWaiter"],  # the second one is in the tests
    "Witness": ["Pushes", "Nobody"],
}
"""The implementations of each `Protocol`: there are several, in the package or in its tests."""


def modules() -> Iterator[tuple[str, Path]]:
    for path in sorted(HOUSE.rglob("*.py")):
        name = ".".join(path.relative_to(HOUSE).with_suffix("").parts)
        name = name.removesuffix("__init__").removesuffix(".")
        if path.read_text() or not name:
            yield name, path


NAMES = {name for name, _ in modules()}


def room(name: str) -> str:
    """Return the entry of `FLOORS` to which a module belongs."""
    while name not in FLOOR_OF:
        assert "." in name, f"{name} lives on no floor yet: give it one in FLOORS"
        name = name.rpartition(".")[0]
    return name


def imported(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: import by the full name"
            assert node.module is not None
            for alias in node.names:
                whole = f"{node.module}.{alias.name}"
                yield whole if whole.removeprefix("redlock_aio.") in NAMES else node.module


def of_the_house(path: Path) -> Iterator[str]:
    for module in imported(path):
        if module.partition(".")[0] == "redlock_aio":
            yield module.removeprefix("redlock_aio").removeprefix(".")


@pytest.mark.parametrize(("name", "path"), list(modules()))
def test_imports_run_downward(name: str, path: Path) -> None:
    here = room(name)
    for other in of_the_house(path):
        there = room(other)
        assert there == here or FLOOR_OF[there] < FLOOR_OF[here], f"{name} may not import {other}"


def test_no_modules_import_each_other() -> None:
    imports = {name: set(of_the_house(path)) - {name} for name, path in modules() if name}
    assert list(graphlib.TopologicalSorter(imports).static_order())


@pytest.mark.parametrize(("name", "path"), [pair for pair in modules() if pair[0].startswith(PURE)])
def test_rules_and_protocol_do_no_io(name: str, path: Path) -> None:
    assert not NO_IO & {module.partition(".")[0] for module in imported(path)}, name


@pytest.mark.parametrize(
    ("name", "path"), [pair for pair in modules() if pair[0].startswith("_engine")]
)
def test_the_engine_imports_no_transport(name: str, path: Path) -> None:
    if name not in MAKES_LINKS:
        assert not [other for other in of_the_house(path) if other.startswith("_transport")], name


@pytest.mark.parametrize(
    ("name", "path"), [pair for pair in modules() if pair[0].startswith(ONLY_PUBLIC)]
)
def test_code_that_users_could_have_written_uses_public_names(name: str, path: Path) -> None:
    private = {other for other in of_the_house(path) if other.startswith("_")}
    part = name.partition(".")[0]
    assert not {other for other in private if part not in SHARED.get(other, ())}, name


def test_what_is_shared_is_used_by_all_that_may() -> None:
    users = {(other, room(name)) for name, path in modules() for other in of_the_house(path)}
    for shared, parts in SHARED.items():
        assert {(shared, part) for part in parts} <= users, shared


def test_importing_the_package_loads_no_leaf() -> None:
    """What not every program needs is imported by those that use it."""
    program = f"import sys, redlock_aio; print([m for m in {NOT_LOADED} if m in sys.modules])"
    command = [sys.executable, "-c", program]
    loaded = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    assert loaded == "[]\n"


@pytest.mark.parametrize(("name", "path"), list(modules()))
def test_a_leaf_alone_imports_the_packages_of_its_extra(name: str, path: Path) -> None:
    packages = {module.partition(".")[0] for module in imported(path)}
    for leaf, its_packages in LEAVES.items():
        assert name.startswith(leaf) or not packages & its_packages, name


def test_protocols_have_several_implementations() -> None:
    files = [*HOUSE.rglob("*.py"), *Path(__file__).parent.rglob("*.py")]
    text = "\n".join(path.read_text() for path in files)
    classes = set(re.findall(r"^ *class (\w+)", text, re.MULTILINE))
    protocols = [
        node.name
        for _, path in modules()
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ClassDef) and "Protocol" in map(ast.unparse, node.bases)
    ]
    assert sorted(protocols) == sorted(IMPLEMENTED_BY), "take the class itself, or a callback"
    for protocol, names in IMPLEMENTED_BY.items():
        assert set(names) <= classes, protocol
        assert len(names) != 1, f"{protocol} has one implementation: take the class itself"
