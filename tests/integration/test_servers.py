"""The masters of the tests: skipped tests where a kind of server is missing."""

import contextlib
import gc
import shutil

import docker
import pytest
from docker.errors import ImageNotFound

from . import containers
from .servers import Sets


@pytest.mark.parametrize("kind", ["redis", "containers"])
def test_each_test_is_skipped_where_there_is_no_such_server(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # If an empty list of masters were stored, the first test would be skipped and the rest fail.
    monkeypatch.setattr(shutil, "which", lambda _name: None)
    monkeypatch.setattr(containers, "docker_refuses", lambda: "no Docker engine answers")
    monkeypatch.delenv("REDLOCK_AIO_CONTAINERS", raising=False)
    with contextlib.ExitStack() as stack:
        sets = Sets(stack)
        for _ in range(2):
            with pytest.raises(pytest.skip.Exception, match=r"no redis-server|no Docker engine"):
                _ = sets[kind]


class NoImages:
    """A Docker engine that has no images."""

    def __init__(self, **_: object) -> None:
        self.images = self

    def ping(self) -> None:
        pass

    def get(self, name: str) -> None:
        raise ImageNotFound(name)

    def close(self) -> None:
        pass


def test_an_engine_without_the_images_is_skipped_unless_containers_are_required(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(docker, "from_env", NoImages)
    for cached in (containers.docker_refuses, containers.image_is_missing):
        monkeypatch.setattr(containers, cached.__name__, cached.__wrapped__)
    monkeypatch.delenv("REDLOCK_AIO_CONTAINERS", raising=False)
    with pytest.raises(pytest.skip.Exception, match=r"has no image \S+: docker pull \S+"):
        containers.need_docker()
    monkeypatch.setenv("REDLOCK_AIO_CONTAINERS", "required")
    containers.need_docker()  # testcontainers pulls them


def test_an_engine_that_refuses_leaves_no_socket(monkeypatch: pytest.MonkeyPatch) -> None:
    """A socket collected during another test would be a warning there, which is an error."""
    monkeypatch.setenv("DOCKER_HOST", "unix:///dev/null")
    assert "no Docker engine answers" in containers.docker_refuses.__wrapped__()
    gc.collect()
