"""Masters in containers, and why there are none where a test is skipped."""

import contextlib
import gc
import os
import warnings
from functools import cache

import pytest
from evidence.containers import IMAGE


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
