"""Public names: they are listed once, documented, and used in a file for the type checkers."""

import ast
import inspect
import pickle
import traceback
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Literal, get_origin

import pytest

import redlock_aio
import redlock_aio.contrib.aiohttp
import redlock_aio.contrib.fastapi
import redlock_aio.contrib.opentelemetry
import redlock_aio.contrib.prometheus
import redlock_aio.errors
import redlock_aio.events
import redlock_aio.fencing
import redlock_aio.requirements
import redlock_aio.sync
import redlock_aio.testing
from redlock_aio import Answer, LockLostError, LossCause, Vote

TYPING = Path(__file__).parent / "typing"
PUBLIC: list[ModuleType] = [
    redlock_aio,
    redlock_aio.contrib.aiohttp,
    redlock_aio.contrib.fastapi,
    redlock_aio.contrib.opentelemetry,
    redlock_aio.contrib.prometheus,
    redlock_aio.errors,
    redlock_aio.events,
    redlock_aio.fencing,
    redlock_aio.requirements,
    redlock_aio.sync,
    redlock_aio.testing,
]


def things() -> Iterator[tuple[str, object]]:
    for module in PUBLIC:
        for name in module.__all__:
            yield f"{module.__name__}.{name}", getattr(module, name)


@pytest.mark.parametrize("module", PUBLIC)
def test_the_list_of_public_names_is_a_sorted_tuple(module: ModuleType) -> None:
    def place(name: str) -> tuple[bool, bool, str]:  # constants, classes, functions
        return not name.isupper(), not name[0].isupper(), name

    assert module.__all__ == tuple(sorted(module.__all__, key=place))


@pytest.mark.parametrize(
    ("file", "module"), [("api.py", redlock_aio), ("threads.py", redlock_aio.sync)]
)
def test_the_type_checkers_see_every_public_name_used(file: str, module: ModuleType) -> None:
    used = {
        alias.name
        for node in ast.walk(ast.parse((TYPING / file).read_text()))
        if isinstance(node, ast.ImportFrom) and node.module == module.__name__
        for alias in node.names
    }
    assert used == set(module.__all__)


@pytest.mark.parametrize(("name", "thing"), list(things()))
def test_every_public_name_is_documented(name: str, thing: object) -> None:
    # An alias of literals has no docstring at run time; the site shows the text below it.
    assert inspect.getdoc(thing) or get_origin(thing) is Literal, name
    members = vars(thing) if inspect.isclass(thing) else {"": thing}
    for attribute, value in members.items():
        if attribute.startswith("_") and attribute not in ("__aenter__", "__aexit__"):
            continue
        function = value.fget if isinstance(value, property) else value
        if inspect.isfunction(function):
            assert inspect.getdoc(function), f"{name}.{attribute}"
        if inspect.iscoroutinefunction(function):
            text = inspect.getdoc(function) or ""
            assert "Cancellation:" in text, f"{name}.{attribute}"


@pytest.mark.parametrize(("name", "thing"), list(things()))
def test_public_classes_are_called_as_users_import_them(name: str, thing: object) -> None:
    if inspect.isclass(thing) and not get_origin(thing):
        module, _, own = name.rpartition(".")
        public = "redlock_aio" if getattr(redlock_aio, own, None) is thing else module
        assert f"{thing.__module__}.{thing.__qualname__}" == f"{public}.{own}"
        assert pickle.loads(pickle.dumps(thing)) is thing


def test_values_and_errors_are_pickled_under_public_names() -> None:
    vote = Vote("a", Answer.HELD, "by b")
    lost = LockLostError(("r",), LossCause.KEY_GONE, "it expired", (vote,))
    for value in (vote, lost):
        packed = pickle.dumps(value, protocol=0)
        assert b"redlock_aio._" not in packed
        assert repr(pickle.loads(packed)) == repr(value)
    (line,) = traceback.format_exception_only(lost)
    assert line == f"redlock_aio.LockLostError: {lost}\n"


def test_the_version_is_the_distribution_s() -> None:
    assert redlock_aio.__version__.count(".") == 2
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = redlock_aio.nonsense


def test_every_promise_has_tests(request: pytest.FixtureRequest) -> None:
    tests = Path(__file__).parent
    text = "".join(path.read_text() for path in tests.rglob("test_*.py"))
    for number in range(1, 11):
        assert f'promise("S{number}")' in text, f"no test shows S{number}"
    assert request.config.getini("markers")
