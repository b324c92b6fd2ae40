"""Real masters, as processes or in containers, with one interface: `helpers.RealMaster`."""

import contextlib
import gc
import os
import secrets
import shutil
import socket
import time
import warnings
from collections.abc import Iterator
from functools import cache
from typing import Self

import pytest
import redis

from redlock_aio.testing import EmbeddedMaster, server_binary

from .helpers import RealMaster

IMAGE = "redis:8-alpine"
EPHEMERAL = 32_768
START_TIMEOUT = 20.0


def quiet_port() -> int:
    """
    Return a port below the range from which the system chooses ports.

    While a master is dead, the system could give a port of that range to a client or to
    another test, and the master could not bind it again.
    """
    while True:
        port = 15_000 + secrets.randbelow(EPHEMERAL - 15_000)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


def binary_of(kind: str) -> str:
    """Return the server of this kind, or skip the test if there is none."""
    if kind == "valkey":
        return server_binary()
    found = shutil.which("redis-server")
    if found is None:
        pytest.skip("no redis-server in the PATH")
    return found


def process(kind: str, *options: str) -> EmbeddedMaster:
    """Return a master that runs as a process, not started yet."""
    master = EmbeddedMaster(binary_of(kind), options=options)
    master.port = quiet_port()
    return master


@cache
def docker_refuses() -> str:
    """Return why there is no Docker engine; empty if there is one."""
    import docker
    from docker.errors import DockerException

    why = ""
    try:
        with contextlib.closing(docker.from_env(timeout=10)) as client:
            client.ping()
    except (DockerException, OSError) as error:
        why = f"no Docker engine answers: {error}"
    if why:
        # A client that finds no engine leaves its socket to the garbage collector, which
        # would report it in the middle of a later test.
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ResourceWarning)
            gc.collect()
    return why


@cache
def image_is_missing() -> str:
    """Return the image that the Docker engine lacks; empty if it has all that are needed."""
    import docker
    from docker.errors import ImageNotFound
    from testcontainers.core.config import testcontainers_config as config

    images = [IMAGE] if config.ryuk_disabled else [IMAGE, config.ryuk_image]
    with contextlib.closing(docker.from_env(timeout=10)) as client:
        for image in images:
            try:
                client.images.get(image)
            except ImageNotFound:
                return f"the Docker engine has no image {image}: docker pull {image}"
    return ""


def need_docker() -> None:
    """
    Skip the test where no Docker engine answers, or where it would have to pull an image.

    Where containers are required, a missing engine is a failure and a missing image is pulled.
    """
    required = os.environ.get("REDLOCK_AIO_CONTAINERS") == "required"
    why = docker_refuses()
    if required and why:
        pytest.fail(f"containers are required, but {why}")
    if why := why or ("" if required else image_is_missing()):
        pytest.skip(why)


class ContainerMaster:
    """One Redis in a container, at a port that stays the same when it is restarted."""

    def __init__(self) -> None:
        from testcontainers.core.container import DockerContainer

        self.port = quiet_port()
        self._container = DockerContainer(IMAGE).with_bind_ports(6379, self.port)
        self._paused = False
        self._running = False

    def __repr__(self) -> str:
        return f"<ContainerMaster {self.url}, {self.state}>"

    @property
    def url(self) -> str:
        """The URL of the server."""
        return f"redis://127.0.0.1:{self.port}"

    @property
    def state(self) -> str:
        """One of "stopped", "paused" and "running"."""
        if not self._running:
            return "stopped"
        return "paused" if self._paused else "running"

    def __enter__(self) -> Self:
        self._container.start()
        self._wait_for_an_answer()
        return self

    def __exit__(self, *_: object) -> None:
        # The engine does not remove a paused container.
        self.resume()
        self._container.stop()

    def client(self) -> redis.Redis:
        """Return a plain client."""
        return redis.Redis.from_url(self.url, decode_responses=True)

    def _wait_for_an_answer(self) -> None:
        ends = time.monotonic() + START_TIMEOUT
        while True:
            with contextlib.closing(self.client()) as client:
                try:
                    client.ping()
                except redis.RedisError:
                    assert time.monotonic() < ends, f"{self.url} does not start"
                else:
                    self._running = True
                    return
            time.sleep(0.01)

    def pause(self) -> None:
        """Freeze its processes."""
        self._container.get_wrapped_container().pause()
        self._paused = True

    def resume(self) -> None:
        """Resume its processes."""
        if self._paused:
            self._container.get_wrapped_container().unpause()
        self._paused = False

    def kill(self) -> None:
        """Kill it; its data is lost."""
        if self._running:
            self.resume()
            self._container.get_wrapped_container().kill()
            self._container.get_wrapped_container().wait()
        self._running = False

    def start(self) -> None:
        """Start it again, and wait until it replies."""
        if not self._running:
            self._container.get_wrapped_container().start()
            self._wait_for_an_answer()

    def restart(self) -> None:
        """Kill it and start it again, empty, at the same address."""
        self.kill()
        self.start()

    def cut(self) -> None:
        """Close all its clients' connections."""
        with contextlib.closing(self.client()) as client:
            client.client_kill_filter(_type="normal", skipme=True)


class Sets:
    """Five masters of each kind, started when a test first asks for them."""

    def __init__(self, stack: contextlib.ExitStack) -> None:
        self._stack = stack
        self._made: dict[str, list[RealMaster]] = {}

    def __getitem__(self, kind: str) -> list[RealMaster]:
        if kind not in self._made:
            # Stored only when all five have started: where there is no such server, each
            # test that asks for one is skipped, not only the first.
            made: list[RealMaster] = [self._stack.enter_context(self._new(kind)) for _ in range(5)]
            self._made[kind] = made
        return self._made[kind]

    @staticmethod
    def _new(kind: str) -> contextlib.AbstractContextManager[RealMaster]:
        if kind != "containers":
            return process(kind)
        need_docker()
        return ContainerMaster()


@contextlib.contextmanager
def repaired(masters: list[RealMaster]) -> Iterator[list[RealMaster]]:
    """Yield *masters*, running and empty; start those again that the test stopped."""

    def repair() -> None:
        for master in masters:
            master.resume()
            master.start()

    repair()
    for master in masters:
        with contextlib.closing(master.client()) as client:
            client.flushall()
            client.script_flush()
            client.config_resetstat()
    try:
        yield masters
    finally:
        repair()
