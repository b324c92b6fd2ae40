"""Every benchmark runs to its end, in its quick form; its figures are not judged here."""

import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parents[2] / "benchmarks"
BENCHMARKS = sorted(path for path in HERE.glob("*.py") if "measuring.arguments" in path.read_text())


@pytest.mark.full
@pytest.mark.long
@pytest.mark.parametrize("path", BENCHMARKS, ids=lambda path: path.name)
def test_a_benchmark_runs_to_its_end(path: Path) -> None:
    pytest.importorskip("pottery", reason="the extra `bench` is not installed")
    pytest.importorskip("matplotlib", reason="the extra `bench` is not installed")
    if path.name == "check.py" and not (HERE.parent / ".git").exists():
        pytest.skip("check.py compares with a commit, and this is no clone")
    done = subprocess.run(
        [sys.executable, str(path), "--quick"],
        check=False,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("\n|") > 3, done.stdout
