"""
The record of the searches that have passed, so that a run need not repeat the long ones.

A search has no chance in it: what it finds follows from its inputs. They are the module of its
test, all that this module imports from the package and from `tests/proofs`, and the files beside
the package's modules that are no Python, such as the Lua scripts. `record.json` has a hash of these
for each module, and the number of states of each search that passed with them.

A run leaves a long search out if the record has it with the inputs of today (`conftest.py`). The
interpreters of Python and Lua are no inputs: a short search, which is never left out, fails if it
searches another number of states than is recorded for the same inputs.

    python -m pytest tests/proofs --prove        runs all searches, and writes the record
    python -m tests.proofs.record                fails if a module's inputs have changed since
"""

import ast
import functools
import hashlib
import json
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest

import redlock_aio

PROOFS = Path(__file__).parent
PACKAGE = Path(redlock_aio.__file__).parent
"""That of the package that is imported: a mutant's is a copy elsewhere."""

RECORD = PROOFS / "record.json"
SEARCHED = "searched"
"""The property of a test's report with the hash of its inputs and the number of states."""


@dataclass(frozen=True)
class Searches:
    """
    The searches of one module of tests.

    Attributes:
        inputs: The hash of what they follow from.

        states: The number of states of each that has passed, by the name of its test.
    """

    inputs: str
    states: Mapping[str, int] = field(default_factory=dict)


class Sources:
    """
    The files that a module follows from.

    Args:
        proofs: The folder of the models and their tests.

        package: The folder of the package.
    """

    def __init__(self, proofs: Path = PROOFS, package: Path = PACKAGE) -> None:
        self._proofs = proofs
        self._places = {"redlock_aio": package, "tests.proofs": proofs}

    def files(self, module: str) -> dict[str, Path]:
        """Return the files of a module of `tests/proofs`, by names that do not name a machine."""
        found: dict[str, Path] = {}
        coming = [f"tests.proofs.{module}"]
        while coming:
            name = coming.pop()
            if name in found or (path := self._path(name)) is None:
                continue
            found[name] = path
            coming += self._imported(name, path)
        for folder in {path.parent for path in found.values()} - {self._proofs}:
            found |= {str(each.relative_to(folder.parent)): each for each in _data(folder)}
        return found

    def inputs(self, module: str) -> str:
        """Return the hash of the files, in which each has its name and its length."""
        hashed = hashlib.sha256()
        for name, path in sorted(self.files(module).items()):
            text = path.read_bytes()
            hashed.update(b"%b %d\n%b" % (name.encode(), len(text), text))
        return hashed.hexdigest()

    def _path(self, name: str) -> Path | None:
        """Return the file of a module, if it is one of those that count."""
        for prefix, folder in self._places.items():
            if name == prefix or name.startswith(f"{prefix}."):
                path = folder.joinpath(*name.removeprefix(prefix).strip(".").split("."))
                candidates = (path.with_suffix(".py"), path / "__init__.py")
                return next((each for each in candidates if each.exists()), None)
        return None

    def _imported(self, name: str, path: Path) -> Iterator[str]:
        """Yield what a module imports; of `from a import b` both, as `b` may be a module."""
        inside = name.split(".") if path.name == "__init__.py" else name.split(".")[:-1]
        for level, module, names in _imports(path.read_bytes()):
            above = inside[: len(inside) + 1 - level] if level else []
            base = ".".join([*above, *module])
            submodules = [f"{base}.{each}" for each in names]
            yield from submodules
            # A package is an input if something is taken from itself, and not only modules.
            if not names or not all(self._path(each) for each in submodules):
                yield base


@functools.cache
def _imports(text: bytes) -> list[tuple[int, list[str], list[str]]]:
    """Return the imports of a module: the dots before a name, the name, and what is taken of it."""
    found = []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            found += [(0, each.name.split("."), list[str]()) for each in node.names]
        elif isinstance(node, ast.ImportFrom):
            module = node.module.split(".") if node.module else []
            found.append((node.level, module, [each.name for each in node.names]))
    return found


def _data(folder: Path) -> Iterator[Path]:
    """Yield the files below the folder of a module that are no Python."""
    for path in folder.rglob("*"):
        if path.is_file() and path.suffix != ".py" and path.parent.name != "__pycache__":
            yield path


def load(path: Path = RECORD) -> dict[str, Searches]:
    """Return the recorded searches, by module; none if there is no record."""
    text = path.read_text() if path.exists() else "{}"
    return {module: Searches(**searches) for module, searches in json.loads(text).items()}


def save(record: Mapping[str, Searches], path: Path = RECORD) -> None:
    """Write the record, one line for a search."""
    plain = {
        module: {"inputs": searches.inputs, "states": dict(sorted(searches.states.items()))}
        for module, searches in sorted(record.items())
        if searches.states
    }
    path.write_text(json.dumps(plain, indent=1) + "\n")


def outdated(record: Mapping[str, Searches], sources: Sources) -> list[str]:
    """Return the modules whose inputs are not the recorded ones: their long searches run again."""
    return [name for name, known in record.items() if known.inputs != sources.inputs(name)]


class Writer:
    """
    The plugin that writes the record at the end of a run, from the searches that have passed.

    Nothing else writes it, so a search that has not run, or not passed, is never recorded.
    """

    def __init__(self, sources: Sources | None = None, path: Path = RECORD) -> None:
        self._sources = sources or Sources()
        self._path = path
        self._passed: dict[str, dict[str, tuple[str, int]]] = {}
        self._failed: set[tuple[str, str]] = set()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note what a test has searched, or that it has failed."""
        module, name = Path(report.nodeid.partition("::")[0]).stem, report.nodeid.partition("::")[2]
        searched = dict(report.user_properties).get(SEARCHED)
        if not report.passed:
            self._failed.add((module, name))
        elif report.when == "call" and searched is not None:
            inputs, states = str(searched).split()
            self._passed.setdefault(module, {})[name] = inputs, int(states)

    def pytest_sessionfinish(self) -> None:
        """Write the record; without what was searched while a file was changed."""
        # What did not run keeps its old hash, by which `outdated` finds it.
        record = {
            name: known for name, known in load(self._path).items() if self._sources.files(name)
        }
        for module in {*self._passed, *(module for module, _ in self._failed)}:
            now = self._sources.inputs(module)
            before = record.get(module)
            states = dict(before.states) if before is not None and before.inputs == now else {}
            passed = self._passed.get(module, {})
            states |= {name: states for name, (inputs, states) in passed.items() if inputs == now}
            for failed, name in self._failed:
                if failed == module:
                    states.pop(name, None)
            record[module] = Searches(now, states)
        save(record, self._path)


def main() -> str | None:
    """Return what is to be said if a run would repeat long searches."""
    changed = outdated(load(), Sources())
    if not changed:
        return None
    return (
        f"The inputs of {', '.join(changed)} have changed since they were recorded, so each full"
        " run repeats their long searches: python -m pytest tests/proofs --prove"
    )


if __name__ == "__main__":
    sys.exit(main())
