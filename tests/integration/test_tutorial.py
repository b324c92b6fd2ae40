"""The commands of the tutorial that start masters in containers work as the page says."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from .servers import need_docker

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "tutorial" / "first-lock.md"

pytestmark = [pytest.mark.integration, pytest.mark.containers, pytest.mark.full]


def test_a_lock_on_five_masters_survives_two_of_them(tmp_path: Path) -> None:
    need_docker()
    chapter = PAGE.read_text().partition("## Five masters in containers")[2]
    start, stop = re.findall(r"^```sh\n(.*?)^```$", chapter, re.MULTILINE | re.DOTALL)
    shutil.copy(ROOT / "examples" / "quickstart.py", tmp_path)
    # The last two are gone already; `--rm` removes all.
    end = "docker kill lock-6391 lock-6392 lock-6393 lock-6394 lock-6395 >&2"
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
    assert done.stdout.count("invoice 42 is sent, by nobody else") == 4, done.stdout
