"""
What the fixtures of the pytest plugin do.

The plugin itself, `pytest_redlock_aio`, imports this module when a fixture is used.
"""

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
import redis

from redlock_aio.requirements import MARKER_KEY
from redlock_aio.testing._embedded import EmbeddedMaster, embedded_masters
from redlock_aio.testing._virtual import VirtualTimeLoop

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
    if not config.pluginmanager.has_plugin("asyncio"):
        yield
        return
    if not hasattr(config.hook, "pytest_asyncio_loop_factories"):
        raise pytest.UsageError("the fixture virtual_time needs pytest-asyncio 1.4 or newer")
    # Only for this test: with such a plugin, pytest-asyncio makes the loops of all tests by it.
    loops = _VirtualLoops()
    config.pluginmanager.register(loops)
    try:
        yield
    finally:
        config.pluginmanager.unregister(loops)


@contextlib.contextmanager
def servers(number: str) -> Iterator[list[EmbeddedMaster]]:
    """
    Run as many servers as the option ``redlock_masters`` says, for the body.

    Raises:
        pytest.UsageError: It is not a positive number.
    """
    if not number.isdecimal() or not int(number):
        raise pytest.UsageError(f"redlock_masters must be a positive number, not {number!r}")
    with embedded_masters(int(number)) as running:
        yield running


def repair(masters: list[EmbeddedMaster]) -> None:
    """
    Resume, start and empty *masters*, whatever the last test has done to them.

    The markers of the restart guard stay if all masters have one. A program that was started
    for several tests, with a restart guard, would count a missing marker as a flush, and get no
    votes for a minute. If a test has restarted a master, all are empty, as a new set is. So they
    are if a test has made a master refuse commands, as by a password, or hold them back, as by
    CLIENT PAUSE: all are restarted then.
    """
    for master in masters:
        master.resume()
        master.start()
    try:
        _empty(masters)
    except redis.RedisError:
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


def arguments(request: pytest.FixtureRequest) -> tuple[list[Any], dict[str, Any]]:
    """Return the masters and the options of a manager for the test of *request*."""
    options = {"restart_guard": "off", **request.getfixturevalue("redlock_options")}
    names = request.fixturenames
    if "virtual_time" in names or ("fake_masters" in names and "redlock_masters" not in names):
        return request.getfixturevalue("fake_masters"), options
    return [master.url for master in request.getfixturevalue("redlock_masters")], options


def runner_of(request: pytest.FixtureRequest, *, asyncio: str, anyio: str) -> str:
    """
    Return the name of the fixture that the plugin of an async test runs.

    Args:
        asyncio: The beginning of its name with pytest-asyncio; the rest is the loop's scope.

        anyio: Its name with anyio's plugin.
    """
    marker = request.node.get_closest_marker("asyncio")
    in_asyncio = marker is not None and request.config.pluginmanager.has_plugin("asyncio")
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
    chosen = marker.kwargs.get("loop_scope") or marker.kwargs.get("scope")
    return asyncio + str(chosen or request.config.getini("asyncio_default_test_loop_scope"))
