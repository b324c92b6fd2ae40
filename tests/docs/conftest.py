"""Real servers, and Python as a user runs it, for the tests of the documentation."""

import importlib.util
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

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
    urls = ",".join(master.url for master in masters)
    return {**os.environ, "REDLOCK_MASTERS": urls, "KEEP_MS": "100"}


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
