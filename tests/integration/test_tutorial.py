"""The commands of the tutorial that start masters in containers work as the page says."""

import fcntl
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from .containers import need_docker

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "tutorial" / "first-lock.md"

pytestmark = [pytest.mark.integration, pytest.mark.containers, pytest.mark.full]


@pytest.fixture
def nobody_else_follows_the_page() -> Iterator[None]:
    """Wait for another run of the suite here: the page's containers have fixed names."""
    with Path(tempfile.gettempdir(), "redlock_aio_tutorial.lock").open("w") as turn:
        fcntl.flock(turn, fcntl.LOCK_EX)
        yield


@pytest.mark.usefixtures("nobody_else_follows_the_page")
def test_a_lock_on_five_masters_survives_two_of_them(tmp_path: Path) -> None:
    need_docker()
    chapter = PAGE.read_text().partition("## Five masters in containers")[2]
    start, stop = re.findall(r"^```sh\n(.*?)^```$", chapter, re.MULTILINE | re.DOTALL)
    shutil.copy(ROOT / "examples" / "first_lock.py", tmp_path)
    # `kill` would leave the removal to the engine, and the names taken for a moment.
    end = "docker rm --force lock-6391 lock-6392 lock-6393 lock-6394 lock-6395 >&2"
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-ec", f"trap '{end} || true' EXIT\n{start}\n{stop}"],
        cwd=tmp_path,
        env={**os.environ, "PATH": path, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("invoice 42: nobody else works on it") == 4, done.stdout
