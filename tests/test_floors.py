"""The floors of the house: a module imports from below, never from above or beside."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

HOUSE = Path(__file__).parents[1] / "redlock_aio"

FLOORS = [
    [
        "_rules.arguments",
        "_rules.clocks",
        "_rules.scripts",
        "_rules.statistics",
        "_rules.timing",
        "_rules.quorum",
    ],
    ["_rules.marker", "_rules.membership"],
    [
        "_rules.fairness",
        "_rules.holders",
        "_rules.lifetime",
        "_rules.roundtrips",
        "_rules.server",
        "_rules.view",
    ],
    ["_rules.protocol", "_rules.restarts"],
    [
        "_rules.confirmation",
        "_rules.fencing",
        "_rules.mistakes",
        "_rules.request",
        "_rules.revocation",
        "_rules.urls",
    ],
    ["_rules.inspection", "_rules.keys"],
    ["_rules.handing", "_rules.resources"],
    ["errors"],
    ["events"],
    ["_transport.resolver"],
    ["_transport.address", "_transport.connection", "_transport.debts", "_transport.replies"],
    ["_transport.declarations", "_transport.sentinels"],
    ["_transport.guard"],
    ["_transport.master", "_transport.set_guard"],
    [
        "_engine.boots",
        "_engine.budget",
        "_engine.line",
        "_engine.links",
        "_engine.options",
        "_engine.origin",
        "_engine.readiness",
    ],
    ["_engine.emitter", "_engine.outages"],
    ["_engine.rounds"],
    ["_engine.masters"],
    ["_engine.attempts", "_engine.clocks", "_engine.inspecting", "_engine.queues"],
    ["_engine.claim", "_engine.refusals"],
    ["_engine.waiting"],
    ["_engine.inquiry"],
    ["_engine.waiter"],
    ["_engine.hold"],
    ["_engine.restoring"],
    ["_engine.renewal"],
    ["_engine.watchdog"],
    ["_engine.adoption", "_engine.belonging", "_engine.forcing", "_engine.reentrance"],
    ["_engine.lease"],
    ["_engine.reporting", "_engine.session"],
    ["_engine.opening", "_engine.queueing"],
    ["_engine.acquisition"],
    ["_engine.lock"],
    ["_engine.decorator", "_engine.handing"],
    ["_engine.manager"],
    [""],  # the package itself: the public names
    ["fencing"],
    ["testing._fake_lua", "testing._fake_pushes"],
    ["testing._fake_data"],
    ["testing._fake_keys"],
    ["testing._fake_commands"],
    ["testing._embedded", "testing._fake", "testing._virtual"],
    ["testing"],
    ["demo"],
]
FLOOR_OF = {module: floor for floor, modules in enumerate(FLOORS) for module in modules}
NO_IO = {"asyncio", "anyio", "hiredis", "logging", "random", "redis", "secrets", "socket", "time"}
# Rounds, waiting, the watchdog and leases see masters only as links, so that a
# fake is as good as a socket.
NO_TRANSPORT = {
    f"_engine.{name}"
    for name in [
        "boots",
        "origin",
        "line",
        "links",
        "options",
        "outages",
        "emitter",
        "rounds",
        "masters",
        "attempts",
        "clocks",
        "refusals",
        "waiting",
        "queues",
        "claim",
        "inquiry",
        "waiter",
        "acquisition",
        "budget",
        "queueing",
        "hold",
        "restoring",
        "renewal",
        "watchdog",
        "adoption",
        "reentrance",
        "belonging",
        "lease",
        "handing",
        "decorator",
        "reporting",
        "inspecting",
        "forcing",
    ]
}
# What users could have written themselves uses what users see.
ONLY_PUBLIC = {"demo", "fencing", "testing._embedded"}


def modules() -> Iterator[tuple[str, Path]]:
    for path in sorted(HOUSE.rglob("*.py")):
        name = ".".join(path.relative_to(HOUSE).with_suffix("").parts)
        name = name.removesuffix("__init__").removesuffix(".")
        if path.read_text() or not name:
            yield name, path


def imported(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: import by the full name"
            assert node.module is not None
            for alias in node.names:
                whole = f"{node.module}.{alias.name}"
                known = whole.removeprefix("redlock_aio.") in FLOOR_OF
                yield whole if known else node.module


def of_the_house(path: Path) -> Iterator[str]:
    for module in imported(path):
        if module.partition(".")[0] == "redlock_aio":
            yield module.removeprefix("redlock_aio").removeprefix(".")


@pytest.mark.parametrize(("name", "path"), list(modules()))
def test_imports_go_down(name: str, path: Path) -> None:
    assert name in FLOOR_OF, f"{name} lives on no floor yet: give it one in FLOORS"
    for below in of_the_house(path):
        assert FLOOR_OF[below] < FLOOR_OF[name], f"{name} may not import {below}"


@pytest.mark.parametrize(
    ("name", "path"), [pair for pair in modules() if pair[0].startswith("_rules.")]
)
def test_the_rules_do_no_io(name: str, path: Path) -> None:
    assert not NO_IO & {module.partition(".")[0] for module in imported(path)}, name


@pytest.mark.parametrize(("name", "path"), [pair for pair in modules() if pair[0] in NO_TRANSPORT])
def test_the_engine_knows_no_transport(name: str, path: Path) -> None:
    assert not [module for module in of_the_house(path) if module.startswith("_transport")], name


@pytest.mark.parametrize(("name", "path"), [pair for pair in modules() if pair[0] in ONLY_PUBLIC])
def test_what_users_could_have_written_uses_what_users_see(name: str, path: Path) -> None:
    assert not [module for module in of_the_house(path) if module.startswith("_")], name


@pytest.mark.parametrize(("name", "path"), list(modules()))
def test_no_file_and_no_function_has_two_subjects(name: str, path: Path) -> None:
    text = path.read_text()
    assert len(text.splitlines()) <= 400, name
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            first = node.body[1] if ast.get_docstring(node) and len(node.body) > 1 else node.body[0]
            assert (node.end_lineno or 0) - first.lineno < 40, f"{name}: {node.name}"
