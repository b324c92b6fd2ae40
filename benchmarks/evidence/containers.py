"""A master in a container, which the Docker engine pauses and kills; see `servers.Master`."""

import contextlib
import time
from typing import Self

import redis

from redlock_aio.testing._embedded import START_TIMEOUT, free_port

IMAGE = "redis:8-alpine"


def why_not() -> str:
    """Return why no container can be started here; empty if one can."""
    import docker
    from docker.errors import DockerException, ImageNotFound

    try:
        with contextlib.closing(docker.from_env(timeout=10)) as client:
            client.images.get(IMAGE)
    except ImageNotFound:
        return f"the Docker engine has no image {IMAGE}: docker pull {IMAGE}"
    except (DockerException, OSError) as error:
        return f"no Docker engine answers: {error}"
    return ""


class ContainerServer:
    """One server in a container, at a port that stays the same when it is restarted."""

    def __init__(self, name: str) -> None:
        from testcontainers.core.container import DockerContainer

        self.name = name
        self.port = free_port()
        self._container = DockerContainer(IMAGE).with_bind_ports(6379, self.port)
        self._exists = False
        self.state = "stopped"
        """One of "stopped", "paused" and "running"."""

    def __repr__(self) -> str:
        return f"<ContainerServer {self.url}>"

    @property
    def url(self) -> str:
        """The URL for clients."""
        return f"redis://127.0.0.1:{self.port}"

    def client(self) -> redis.Redis:
        """Return a client."""
        return redis.Redis(port=self.port, decode_responses=True, socket_timeout=5)

    def start(self) -> None:
        """Start the container unless it runs, and wait until the server answers."""
        if self.state != "stopped":
            return
        if self._exists:
            self._container.get_wrapped_container().start()
        else:
            self._container.start()
        self._exists = True
        ends = time.monotonic() + START_TIMEOUT
        while not self._answers():
            if time.monotonic() > ends:
                raise OSError(f"{self.url} does not start")
            time.sleep(0.01)
        self.state = "running"

    def _answers(self) -> bool:
        with contextlib.closing(self.client()) as client, contextlib.suppress(redis.RedisError):
            return bool(client.ping())
        return False

    def pause(self) -> None:
        """Freeze its processes."""
        self._container.get_wrapped_container().pause()
        self.state = "paused"

    def resume(self) -> None:
        """Continue its processes."""
        if self.state == "paused":
            self._container.get_wrapped_container().unpause()
            self.state = "running"

    def kill(self) -> None:
        """Kill it; its keys are lost."""
        if self.state != "stopped":
            self.resume()
            self._container.get_wrapped_container().kill()
            self._container.get_wrapped_container().wait()
        self.state = "stopped"

    def restart(self) -> None:
        """Kill it and start it again, empty, at the same address."""
        self.kill()
        self.start()

    def flush(self) -> None:
        """Delete all keys."""
        with contextlib.closing(self.client()) as client:
            client.flushall()

    def cut(self) -> None:
        """Close the connections of all its clients."""
        with contextlib.closing(self.client()) as client:
            client.client_kill_filter(_type="normal", skipme=True)

    def save(self) -> None:
        """Fail: a container that is killed has nothing to start from."""
        raise NotImplementedError

    def forget(self) -> None:
        """Do nothing: nothing was saved."""

    def go_back(self) -> None:
        """Fail: nothing was saved."""
        raise NotImplementedError

    def fill_disk(self) -> None:
        """Fail: a container has the machine's disk."""
        raise NotImplementedError

    def free_disk(self) -> None:
        """Fail likewise."""
        raise NotImplementedError

    def set_clock(self, ahead: float) -> None:
        """Fail: a container has the machine's clock."""
        raise NotImplementedError

    def run_at(self, rate: float) -> None:
        """Fail likewise."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        """Remove the container."""
        if self._exists:
            self.resume()
            self._container.stop()
