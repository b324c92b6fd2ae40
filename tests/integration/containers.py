"""Masters in containers, and why there are none where a test is skipped."""

import contextlib
import gc
import os
import warnings
from functools import cache
from typing import Self

import pytest
from evidence.containers import IMAGE, ContainerServer


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


class ContainerMaster(ContainerServer):
    """One Redis in a container, at a port that stays the same when it is restarted."""

    @property
    def state(self) -> str:
        """One of "stopped", "paused" and "running"."""
        if not self.runs:
            return "stopped"
        return "paused" if self.paused else "running"

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()

    def restart(self) -> None:
        """Kill it and start it again, empty, at the same address."""
        self.kill()
        self.start()

    def cut(self) -> None:
        """Close all its clients' connections."""
        with contextlib.closing(self.client()) as client:
            client.client_kill_filter(_type="normal", skipme=True)
