"""
A pytest plugin: masters, managers and virtual time as fixtures, for tests of programs with locks.

pytest loads this module in every run of an environment with redlock_aio, whether its tests use
locks or not. So it imports nothing but pytest, which is loaded anyway: it is no part of the
package `redlock_aio`, and each fixture imports what it needs. ``pip install '.[testing]'`` in the
clone installs what the fixtures need.

Async fixtures are run by the plugin that runs the test: pytest-asyncio (in strict and in auto
mode, with each `loop_scope`) or anyio's. `redlock` finds out which one it is.
"""

from __future__ import annotations

import contextlib
import types
from collections.abc import AsyncIterator, Callable, Generator, Iterator
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, get_args

import pytest

if TYPE_CHECKING:
    import redlock_aio
    import redlock_aio.sync
    from redlock_aio.testing import EmbeddedMaster, FakeMaster, VirtualTime

LoopScope: TypeAlias = Literal["function", "class", "module", "package", "session"]
LOOP_SCOPES: tuple[LoopScope, ...] = get_args(LoopScope)
"""The scopes of event loops in pytest-asyncio."""

IN_ASYNCIO, IN_ANYIO = "_redlock_in_asyncio_", "_redlock_in_anyio"
ASYNCIO_FIXTURES = "pytest_redlock_aio.asyncio"
"""The plugin with the fixtures of pytest-asyncio."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option of the fixtures to the configuration file."""
    # A number in a TOML file is no string, and older versions of pytest do not know the type.
    kind: Any = "int" if pytest.version_tuple >= (8, 4) else "string"
    parser.addini(
        "redlock_masters", "how many servers the fixture redlock_masters starts", kind, default=3
    )


def pytest_configure(config: pytest.Config) -> None:
    """Register the async fixtures of pytest-asyncio if that plugin is active."""
    if not has_pytest_asyncio(config):
        return
    # A version without `loop_scope` must not fail the tests that do not use these fixtures.
    with contextlib.suppress(ImportError, TypeError):
        import pytest_asyncio

        plugin = types.ModuleType(ASYNCIO_FIXTURES)
        for scope in LOOP_SCOPES:
            fixture = pytest_asyncio.fixture(name=IN_ASYNCIO + scope, loop_scope=scope)
            setattr(plugin, IN_ASYNCIO + scope, fixture(_opening()))
        config.pluginmanager.register(plugin, plugin.__name__)


def has_pytest_asyncio(config: pytest.Config) -> bool:
    """Return whether pytest-asyncio is active, by its entry point or by the name of its module."""
    return any(map(config.pluginmanager.has_plugin, ("asyncio", "pytest_asyncio.plugin")))


@pytest.hookimpl(hookwrapper=True)
def pytest_generate_tests(metafunc: pytest.Metafunc) -> Generator[None]:
    """Give an async test that asks for `virtual_time` a loop in virtual time."""
    if "virtual_time" not in metafunc.fixturenames or not _is_virtual(metafunc):
        yield
        return
    from redlock_aio.testing._fixtures import virtual_loop

    with virtual_loop(metafunc):
        yield


def _is_virtual(metafunc: pytest.Metafunc) -> bool:
    """
    Return whether `virtual_time` is the fixture of this module.

    Another project may have a fixture or a parameter of this name, for something else. A fixture
    that overrides ours, and asks for it, counts as ours.
    """
    # pytest has no public way to ask for the fixture behind a name.
    known = metafunc._arg2fixturedefs.get("virtual_time", ())  # noqa: SLF001
    for fixture in reversed(known):
        if getattr(fixture.func, "__module__", None) == __name__:
            return True
        if "virtual_time" not in fixture.argnames:
            return False
    return False


def _opening() -> Callable[..., AsyncIterator[redlock_aio.Redlock]]:
    """Return an async fixture that opens a manager and closes it; a new function for each call."""

    async def opened(request: pytest.FixtureRequest) -> AsyncIterator[redlock_aio.Redlock]:
        from redlock_aio import Redlock
        from redlock_aio.testing._fixtures import arguments, check_loop

        check_loop(request)
        masters, options = arguments(request)
        async with Redlock(masters, **options) as manager:
            yield manager

    return opened


_in_anyio = pytest.fixture(name=IN_ANYIO)(_opening())


@pytest.fixture
def redlock(request: pytest.FixtureRequest) -> redlock_aio.Redlock:
    """
    A manager on empty masters, open in the event loop of the test: a `redlock_aio.Redlock`.

    Its masters are those of `redlock_masters`; in a test with `virtual_time`, and in one with
    `fake_masters`, they are those of `fake_masters`.
    """
    from redlock_aio.testing._fixtures import runner_of

    manager: redlock_aio.Redlock = request.getfixturevalue(
        runner_of(request, asyncio=IN_ASYNCIO, anyio=IN_ANYIO)
    )
    return manager


@pytest.fixture
def sync_redlock(request: pytest.FixtureRequest) -> Iterator[redlock_aio.sync.Redlock]:
    """A manager for threads on empty masters: a `redlock_aio.sync.Redlock`."""
    from redlock_aio.sync import Redlock
    from redlock_aio.testing._fixtures import arguments

    masters, options = arguments(request)
    with Redlock(masters, **options) as manager:
        yield manager


@pytest.fixture
def redlock_options() -> dict[str, Any]:
    """
    Options of the managers `redlock` and `sync_redlock`; override it to choose them.

    Without the option *restart_guard* they have ``"off"``, so that a flush of the masters does
    not cost the votes for a minute.
    """
    return {}


@pytest.fixture(scope="session")
def _redlock_servers(pytestconfig: pytest.Config) -> Iterator[dict[EmbeddedMaster, object]]:
    from redlock_aio.testing._fixtures import servers

    with servers(pytestconfig) as running:
        yield running


@pytest.fixture
def redlock_masters(_redlock_servers: dict[EmbeddedMaster, object]) -> list[EmbeddedMaster]:
    """
    Real servers on this machine, one set for the session: `redlock_aio.testing.EmbeddedMaster`.

    They run and are empty when the test begins, whatever the last one has done to them. How
    many they are says ``redlock_masters`` in the configuration file of pytest (default: 3).
    """
    from redlock_aio.testing._fixtures import repair

    repair(_redlock_servers)
    return list(_redlock_servers)  # a test may change its own


@pytest.fixture
def fake_masters() -> list[FakeMaster]:
    """Three masters in memory, for this test only: `redlock_aio.testing.FakeMaster`."""
    from redlock_aio.testing import FakeMaster

    return [FakeMaster(f"fake-{number}") for number in range(1, 4)]


@pytest.fixture
def virtual_time(request: pytest.FixtureRequest) -> VirtualTime:
    """
    Virtual time: the loop of an async test is a `redlock_aio.testing.VirtualTimeLoop`.

    A test that is no coroutine runs one by ``virtual_time.run(coroutine)``.
    """
    from redlock_aio.testing import VirtualTime
    from redlock_aio.testing._fixtures import check_version

    check_version(request)
    return VirtualTime()
