"""The record of searches: what makes a search run again, and what writes the record."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from .record import PACKAGE, PROOFS, Sources

ROOT = PROOFS.parents[1]

MODULES = (
    "test_cluster", "test_exhaustive", "test_joint", "test_markers", "test_rw", "test_semaphore",
    "test_sets", "test_simulation",
)  # fmt: skip
"""Those with searches that are recorded."""

WATCHED = '''
"""Print which files' code the searches of a module run: the first states of each model."""
import sys
from functools import partial
from importlib import import_module
from tests.proofs.search import search

module = import_module(sys.argv[1])
tables = [value.values() for value in vars(module).values() if isinstance(value, dict)]
rows = [row if isinstance(row, tuple) else (row,) for table in tables for row in table]
rows += [(value,) for value in vars(module).values() if not isinstance(value, type)]
models = [value for row in rows for value in row if hasattr(value, "steps")]
models += [getattr(module, name)(given) for name, given in (("Waiting", 3), ("Waking", "rwr"))
           if hasattr(module, name)]
runs = [partial(search, model, 40) for model in models]
if hasattr(module, "simulate"):
    runs = [partial(module.simulate, 1, row[0], 20) for row in module.CONDITIONS.values()]
ran = set()
sys.setprofile(lambda frame, *_: ran.add(frame.f_code.co_filename))
for run in runs:
    run()
sys.setprofile(None)
print(len(runs), *ran, sep="\\n")
'''


@pytest.mark.full
@pytest.mark.parametrize("module", MODULES)
def test_a_search_runs_no_code_that_is_not_among_its_inputs(module: str) -> None:
    """In a process of its own: what another search has cached would not run."""
    done = subprocess.run(
        [sys.executable, "-c", WATCHED, f"tests.proofs.{module}"],
        check=True, capture_output=True, text=True, cwd=ROOT,
    )  # fmt: skip
    runs, *ran = done.stdout.splitlines()
    assert int(runs) >= 5
    inputs = {str(path) for path in Sources().files(module).values()}
    ours = {path for path in ran if path.startswith((str(PACKAGE), str(PROOFS)))}
    assert len(ours) >= 3
    assert ours & {str(PROOFS / "search.py"), str(PROOFS / "simulation.py")}
    assert ours <= inputs


@pytest.fixture
def copied(tmp_path: Path) -> Sources:
    """Return the sources of a copy, whose files can be changed."""
    for folder in (PROOFS, PACKAGE):
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(folder, tmp_path / folder.name, ignore=ignored)
    return Sources(tmp_path / "proofs", tmp_path / "redlock_aio")


def test_the_inputs_are_the_same_in_another_folder(copied: Sources) -> None:
    for module in MODULES:
        assert copied.inputs(module) == Sources().inputs(module)


def test_a_change_of_any_input_is_noticed(copied: Sources) -> None:
    seen = {copied.inputs("test_semaphore")}
    files = copied.files("test_semaphore").values()
    names = {path.name for path in files}
    assert names > {"test_semaphore.py", "semaphore_model.py", "search.py", "masters.py"}
    assert names > {"take_permit.lua", "clean.lua", "sandbox.lua"}
    assert names > {"primitives.py", "commands.py", "fair_ticket.py", "_fake_lua.py"}
    for path in files:
        path.write_bytes(path.read_bytes() + b"\n")
        seen.add(copied.inputs("test_semaphore"))
    assert len(seen) == 1 + len(files)


def test_an_import_or_a_script_more_is_noticed(tmp_path: Path, copied: Sources) -> None:
    seen = {copied.inputs("test_sets")}
    model = tmp_path / "proofs" / "sets_model.py"
    model.write_text("from redlock_aio._rules import timing\n" + model.read_text())
    assert tmp_path / "redlock_aio/_rules/timing.py" in copied.files("test_sets").values()
    seen.add(copied.inputs("test_sets"))
    (tmp_path / "redlock_aio/_rules/table.txt").touch()
    seen.add(copied.inputs("test_sets"))
    assert len(seen) == 3


def test_what_a_search_does_not_import_is_no_input(tmp_path: Path, copied: Sources) -> None:
    before = copied.inputs("test_rw")
    for name in ("redlock_aio/_api/lock.py", "redlock_aio/__init__.py", "proofs/sets_model.py"):
        (tmp_path / name).write_text("changed")
    assert copied.inputs("test_rw") == before


SMALL = """
import pytest

from redlock_aio._protocol.scripts import LIFT

from .search import Searched


class Counting:
    def first(self):
        return 0

    def steps(self, state):
        if state < 5:
            yield "one more", state + 1, "too many" if b"defect" in LIFT.text else ""


@pytest.mark.full
def test_it_counts(searched: Searched) -> None:
    assert not searched(Counting(), 100).broken
"""


@pytest.mark.full
def test_a_search_is_left_out_only_while_its_inputs_are_those_with_which_it_passed(
    tmp_path: Path,
) -> None:
    ignored = shutil.ignore_patterns("__pycache__", "test_*.py", "record.json")
    for name in ("redlock_aio", "pytest_redlock_aio", "tests/proofs"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=ignored)
    for name in ("pyproject.toml", "tests/__init__.py", "tests/conftest.py"):
        shutil.copy(ROOT / name, tmp_path / name)
    test = tmp_path / "tests/proofs/test_small.py"
    test.write_text(SMALL)
    record = tmp_path / "tests/proofs/record.json"
    environment = {name: value for name, value in os.environ.items() if "PYTEST" not in name}
    environment |= {"PYTHONPATH": str(tmp_path)}

    def ends(*arguments: str) -> str:
        """Return how a run of the test ends."""
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments],
            check=False, capture_output=True, text=True, cwd=tmp_path, env=environment,
        )  # fmt: skip
        return " ".join(done.stdout.splitlines()[-1].split()[:2])

    def said() -> str:
        """Return why the record is said to be out of date; nothing if it is not."""
        done = subprocess.run(
            [sys.executable, "-m", "tests.proofs.record"],
            check=False, capture_output=True, text=True, cwd=tmp_path, env=environment,
        )  # fmt: skip
        assert done.returncode == bool(done.stderr), done.stderr
        return done.stderr

    assert ends("--full", "-n0") == "1 passed"
    assert not record.exists()
    assert ends("--prove", "-n1") == "1 passed", "a worker's search is recorded, too"
    assert '"test_it_counts": 6' in record.read_text()
    assert not said()
    assert ends("--full", "-n0") == "1 skipped"
    assert ends("--full", "-n0", f"{test}::test_it_counts") == "1 passed"

    script = tmp_path / "redlock_aio/_protocol/lua/lift.lua"
    shipped = script.read_text()
    script.write_text(shipped + "-- a defect\n")
    assert ends("--full", "-n0") == "1 failed"
    assert "test_it_counts" in record.read_text()
    assert "of test_small have" in said()
    assert ends("--prove", "-n0") == "1 failed"
    assert "test_it_counts" not in record.read_text()
    script.write_text(shipped)
    assert ends("--full", "-n0") == "1 passed"

    other = test.with_name("test_other.py")
    other.write_text(SMALL)
    assert ends("--prove", "-n0") == "2 passed"
    script.write_text(shipped + "-- no defe\n")
    assert ends("--prove", "-n0", str(other)) == "1 passed"
    assert "of test_small have" in said(), "it is not forgotten, though it did not run"
    test.unlink()
    assert ends("--prove", "-n0", str(other)) == "1 passed"
    assert not said()
