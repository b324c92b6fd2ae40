"""
What the fixtures of the pytest plugin do.

The plugin itself, `pytest_redlock_aio`, imports this module when a fixture is used.
"""

import contextlib
import inspect
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
import redis

from pytest_redlock_aio import ASYNCIO_FIXTURES, has_pytest_asyncio
from redlock_aio.requirements import MARKER_KEY
from redlock_aio.testing._embedded import EmbeddedMaster, embedded_masters
from redlock_aio.testing._virtual import VirtualTime, VirtualTimeLoop

PROBE = f"{MARKER_KEY}:none"
"""A key for one write."""

PATIENCE = 2.0
"""How many seconds a master may take for an answer, such as after CLIENT PAUSE."""


class _VirtualLoops:
    """A plugin of pytest-asyncio, with the event loops of one test."""

    @pytest.hookimpl(optionalhook=True)
    def pytest_asyncio_loop_factories(self) -> Mapping[str, Any]:
        """Return the loop factory; a hook of pytest-asyncio 1.4."""
        return {"virtual": VirtualTimeLoop}


@contextlib.contextmanager
def virtual_loop(metafunc: pytest.Metafunc) -> Iterator[None]:
    """Make an async test run in virtual time; its parameters are generated in the body."""
    if "anyio_backend" in metafunc.fixturenames:
        backend = ("asyncio", {"loop_factory": VirtualTimeLoop})
        # A mark, not a call: it replaces the parameters of the fixture itself.
        virtual = pytest.mark.parametrize("anyio_backend", [backend], ids=["virtual"])
        metafunc.definition.add_marker(virtual)
    config = metafunc.config
    if not _makes_loops(config):  # `check_version` tells the tests that need it
        yield
        return
    # Only for this test: with such a plugin, pytest-asyncio makes the loops of all tests by it.
    loops = _VirtualLoops()
    config.pluginmanager.register(loops)
    try:
        yield
    finally:
        config.pluginmanager.unregister(loops)


def _makes_loops(config: pytest.Config) -> bool:
    """Return whether pytest-asyncio is active, in a version that asks plugins for event loops."""
    return has_pytest_asyncio(config) and hasattr(config.hook, "pytest_asyncio_loop_factories")


def check_version(request: pytest.FixtureRequest) -> None:
    """Let a test fail that a version of pytest-asyncio would run in real time."""
    is_async = inspect.iscoroutinefunction(request.function)
    if is_async and _runs_in_asyncio(request) and not _makes_loops(request.config):
        raise pytest.fail.Exception(
            "the fixture virtual_time needs pytest-asyncio 1.4 or newer", pytrace=False
        )


@contextlib.contextmanager
def servers(config: pytest.Config) -> Iterator[dict[EmbeddedMaster, object]]:
    """
    Run as many servers as the option ``redlock_masters`` says, for the body.

    With each of them come the settings that it has when it is new.

    Raises:
        pytest.UsageError: The option is not a positive number.
    """
    try:
        number = int(config.getini("redlock_masters"))
    except (TypeError, ValueError, pytest.UsageError) as error:
        raise pytest.UsageError(f"redlock_masters must be a positive number: {error}") from None
    if number < 1:
        raise pytest.UsageError(f"redlock_masters must be a positive number: {number}")
    with embedded_masters(number) as running:
        yield {master: _settings_of(master) for master in running}


def _settings_of(master: EmbeddedMaster) -> object:
    """
    Return what a test can change in a server, except its keys.

    Raises:
        redis.RedisError: It does not tell.
    """
    with contextlib.closing(_client(master)) as client:
        functions: object = []
        with contextlib.suppress(redis.ResponseError):  # Redis 6 has none
            functions = client.function_list()
        return client.config_get("*"), client.acl_list(), functions


def repair(masters: Mapping[EmbeddedMaster, object]) -> None:
    """
    Resume, start and empty *masters*, whatever the last test has done to them.

    The markers of the restart guard stay if all masters have one. A program that was started
    for several tests, with a restart guard, would count a missing marker as a flush, and get no
    votes for a minute. If a test has restarted a master, all are empty, as a new set is. So they
    are if a test has changed the settings of a master, or made it refuse commands, as by a
    password, or hold them back, as by CLIENT PAUSE: all are restarted then.
    """
    for master in masters:
        master.resume()
        master.start()
    try:
        if all(_settings_of(master) == settings for master, settings in masters.items()):
            _empty(list(masters))
            return
    except redis.RedisError:
        pass
    for master in masters:
        master.restart()


def _empty(masters: list[EmbeddedMaster]) -> None:
    clients = [_client(master) for master in masters]
    with contextlib.ExitStack() as stack:
        for client in clients:
            stack.callback(client.close)
        keep = all(" member " in str(client.get(MARKER_KEY)) for client in clients)
        for master, client in zip(masters, clients, strict=True):
            if keep:
                keyspace: Any = client.info("keyspace")
                for database in keyspace:
                    _empty_database(master, int(database.removeprefix("db")))
            else:
                client.flushall()
            # A replica refuses any write, and a master without memory those that need some.
            client.set(PROBE, "", px=1)
            client.delete(PROBE)


def _empty_database(master: EmbeddedMaster, number: int) -> None:
    """Delete all keys of a database but the marker."""
    with contextlib.closing(_client(master, number)) as client:
        keys = [key for key in client.scan_iter() if key != MARKER_KEY]
        if keys:
            client.delete(*keys)


def _client(master: EmbeddedMaster, database: int = 0) -> redis.Redis:
    """Return a client that raises an error soon if *master* does not answer."""
    return redis.Redis.from_url(
        master.url, db=database, decode_responses=True, socket_timeout=PATIENCE
    )


def check_loop(request: pytest.FixtureRequest) -> None:
    """
    Let a test fail that would wait in real time, though it asks for virtual time.

    An async fixture of a wider scope keeps the loop in which anyio's plugin runs all tests.
    """
    if "virtual_time" in request.fixturenames:
        time = request.getfixturevalue("virtual_time")
        if isinstance(time, VirtualTime):  # and not a fixture of another project
            time.stall(0)


def arguments(request: pytest.FixtureRequest) -> tuple[list[Any], dict[str, Any]]:
    """Return the masters and the options of a manager for the test of *request*."""
    options = {"restart_guard": "off", **request.getfixturevalue("redlock_options")}
    names = request.fixturenames
    if "virtual_time" in names or ("fake_masters" in names and "redlock_masters" not in names):
        return request.getfixturevalue("fake_masters"), options
    return [master.url for master in request.getfixturevalue("redlock_masters")], options


def _runs_in_asyncio(request: pytest.FixtureRequest) -> bool:
    marked = request.node.get_closest_marker("asyncio") is not None
    return marked and has_pytest_asyncio(request.config)


def runner_of(request: pytest.FixtureRequest, *, asyncio: str, anyio: str) -> str:
    """
    Return the name of the fixture that the plugin of an async test runs.

    Args:
        asyncio: The beginning of its name with pytest-asyncio; the rest is the loop's scope.

        anyio: Its name with anyio's plugin.
    """
    marker, in_asyncio = request.node.get_closest_marker("asyncio"), _runs_in_asyncio(request)
    if "anyio_backend" in request.fixturenames:
        if in_asyncio:  # its fixtures and the test would run in different loops
            raise pytest.fail.Exception(
                "pytest-asyncio in auto mode runs this test of anyio's plugin: use its strict mode",
                pytrace=False,
            )
        backend = request.getfixturevalue("anyio_backend_name")
        if backend != "asyncio":
            pytest.skip(f"redlock_aio needs asyncio; this test runs on {backend}")
        return anyio
    if marker is None or not in_asyncio:
        raise pytest.fail.Exception(
            "the fixture redlock is for async tests that pytest-asyncio or anyio's plugin runs;"
            " others use sync_redlock",
            pytrace=False,
        )
    if not request.config.pluginmanager.has_plugin(ASYNCIO_FIXTURES):
        raise pytest.fail.Exception(
            "the fixture redlock needs pytest-asyncio 0.24 or newer", pytrace=False
        )
    return asyncio + _loop_scope(request, marker)


def _loop_scope(request: pytest.FixtureRequest, marker: pytest.Mark) -> str:
    """Return the scope of the event loop of a test that pytest-asyncio runs."""
    if chosen := marker.kwargs.get("loop_scope") or marker.kwargs.get("scope"):
        return str(chosen)
    try:
        return str(request.config.getini("asyncio_default_test_loop_scope"))
    except ValueError:  # before pytest-asyncio 0.26 there is no such option
        return "function"
