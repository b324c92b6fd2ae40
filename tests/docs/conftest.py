"""Real servers, and Python as a user runs it, for the tests of the documentation."""

import asyncio
import importlib.util
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from redlock_aio import Redlock
from redlock_aio.requirements import DECLARED_KEY, MARKER_KEY
from redlock_aio.testing import EmbeddedMaster, embedded_masters

ROOT = Path(__file__).parents[2]

Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of the built site."""
    if importlib.util.find_spec("mkdocs") is None:
        pytest.skip("the extra docs is not installed")
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--site-dir", str(folder)]
    environ = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    subprocess.run(command, cwd=ROOT, env=environ, check=True, timeout=300)
    return folder


@pytest.fixture
def root() -> Path:
    return ROOT


@pytest.fixture
def readme() -> str:
    return (ROOT / "README.md").read_text()


@pytest.fixture
def masters() -> Iterator[list[EmbeddedMaster]]:
    with embedded_masters(3, unix=True) as running:
        yield running


@pytest.fixture
def environment(masters: list[EmbeddedMaster]) -> dict[str, str]:
    asyncio.run(used(masters))
    urls = ",".join(master.url for master in masters)
    return {**os.environ, "REDLOCK_MASTERS": urls, "KEEP_MS": "100"}


async def used(masters: list[EmbeddedMaster]) -> None:
    """
    Make the masters members of a set, as if they had been used before, in one that is forgotten.

    Else a program has to reach all of them before the first one votes. On a busy machine it may
    tell meanwhile that it waits for a majority.
    """
    clients = [master.client() for master in masters]
    async with Redlock([master.url for master in masters]):
        while not all(client.exists(MARKER_KEY) for client in clients):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    for client in clients:
        client.delete(DECLARED_KEY)
        client.close()


@pytest.fixture
def run(environment: dict[str, str]) -> Run:
    """Return a function that runs Python with warnings as errors, on embedded masters."""

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-W", "error", *arguments],
            env=environment,
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=200,
            check=False,
        )

    return run
