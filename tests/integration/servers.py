"""Real masters, as processes or in containers, with one interface: `helpers.RealMaster`."""

import contextlib
import shutil
from collections.abc import Iterator

import pytest

from redlock_aio.testing import EmbeddedMaster, server_binary

from .helpers import RealMaster


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
    return EmbeddedMaster(binary_of(kind), options=options)


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
        from evidence.containers import ContainerServer  # only pytest finds what it imports

        from .containers import need_docker

        need_docker()
        return ContainerServer("master")


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
            commands = client.pipeline(transaction=False)
            commands.flushall()
            commands.script_flush()
            commands.config_resetstat()
            commands.execute()
    try:
        yield masters
    finally:
        repair()
