"""
A map from the lines and scripts of the packages to the tests that run them.

The map is made by one run of the tests. It chooses the tests for each mutant: only a test
that runs a changed line can fail by it.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from hashlib import sha1
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

import pytest

from .table import CHECKER, HERE, PACKAGE, ROOT, Mutant

if TYPE_CHECKING:  # of the extra `mutants`; other commands and the tests of the table need none
    from coverage import Coverage

OPTIONS = (
    "-n0", "-q", "-p", "no:cacheprovider", "--timeout=0", "--hypothesis-seed=0",
    "-W", "ignore::pytest.PytestAssertRewriteWarning",
)  # fmt: skip
"""
Options of pytest for every run here: one process, and the same examples each time.

The plugins are imported before pytest can rewrite their assertions, which does not matter.
"""


def state() -> str:
    """Return a hash of the packages and the tests."""
    digest = sha1(usedforsecurity=False)
    for path in chain(*(sorted((ROOT / each).rglob("*")) for each in (PACKAGE, CHECKER, "tests"))):
        if path.suffix in {".py", ".lua"} and HERE not in path.parents:
            digest.update(f"{path.relative_to(ROOT)} {path.stat().st_size}\n".encode())
            digest.update(path.read_bytes())
    return digest.hexdigest()


@dataclass
class Reach:
    """
    The lines and scripts that each test runs.

    Attributes:
        state: The `state` of package and tests for which it was made.

        seconds: The duration of each test, by its node id.

        breadth: The number of lines of the package that each test runs.

        lines: The numbers of the tests that run a line, by file and line.

        scripts: The numbers of the tests that run a script, by file.
    """

    state: str
    seconds: dict[str, float] = field(default_factory=dict)
    breadth: dict[str, int] = field(default_factory=dict)
    lines: dict[str, dict[str, list[int]]] = field(default_factory=dict)
    scripts: dict[str, list[int]] = field(default_factory=dict)

    @classmethod
    def load(cls, path: Path, *, any_state: bool = False) -> "Reach":
        """
        Return the map that `save` has written.

        Raises:
            SystemExit: The package or the tests have changed since, unless with *any_state*.
        """
        reach = cls(**json.loads(path.read_text()))
        if reach.state != state() and not any_state:
            raise SystemExit(f"the package or the tests have changed: make {path} anew")
        return reach

    def save(self, path: Path) -> None:
        """Write the map to a file."""
        path.write_text(json.dumps(asdict(self)))

    def tests(self, mutant: Mutant, budget: float) -> tuple[list[str], int]:
        """
        Return the tests for *mutant*, the most promising first, and how many are left out.

        Args:
            budget: The most seconds that the tests may have taken altogether.
        """
        names = list(self.seconds)
        if mutant.file in self.scripts:
            found = set(self.scripts[mutant.file])
        else:
            lines = self.lines.get(mutant.file, {})
            changed = mutant.lines((ROOT / mutant.file).read_text())
            found = {number for line in changed for number in lines.get(str(line), ())}
        chosen = [name for name in names if mutant.test and name.startswith(mutant.test)]
        found -= {names.index(name) for name in chosen}
        if mutant.test and not chosen:
            chosen = [mutant.test]  # such as of tests/integration, which the map does not have
        count = len(chosen) + len(found)
        for name in self.ranked([names[number] for number in sorted(found)]):
            budget -= self.seconds[name]
            if budget >= 0 or not chosen:
                chosen.append(name)
        return chosen, count - len(chosen)

    def ranked(self, names: Sequence[str]) -> list[str]:
        """
        Sort tests: those that run the fewest lines first.

        One case of each test function comes before the second case of any.
        """
        cases: dict[str, int] = {}
        ranks = {}
        for name in sorted(names, key=lambda name: (self.breadth[name], self.seconds[name])):
            function = name.partition("[")[0]
            cases[function] = cases.get(function, -1) + 1
            ranks[name] = cases[function]
        return sorted(ranks, key=lambda name: ranks[name])


class _Recorder:
    """The plugin of pytest that fills a `Reach`."""

    def __init__(self, coverage: "Coverage", scripts: dict[str, str]) -> None:
        self.reach = Reach(state())
        self.failed: list[str] = []
        self._coverage = coverage
        self._scripts = scripts
        self._of_sha: dict[bytes, list[str]] = {}
        self._ran: set[str] = set()

    def loaded(self, sha: bytes, text: bytes) -> None:
        """Find the files that a script was composed of."""
        source = text.decode()
        self._of_sha[sha] = [name for name, part in self._scripts.items() if part in source]

    def ran(self, sha: bytes) -> None:
        """Record that the current test runs a script."""
        self._ran.update(self._of_sha.get(sha, ()))

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        self._coverage.switch_context(item.nodeid)
        self._ran.clear()
        number = len(self.reach.seconds)
        self.reach.seconds[item.nodeid] = 0.0
        result = yield
        self._coverage.switch_context("")
        for name in sorted(self._ran):
            self.reach.scripts.setdefault(name, []).append(number)
        return result

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.reach.seconds[report.nodeid] += report.duration
        if report.failed:
            self.failed.append(report.nodeid)

    def finish(self) -> None:
        """Add the lines that the coverage has measured."""
        data = self._coverage.get_data()
        number = {name: i for i, name in enumerate(self.reach.seconds)}
        breadth = dict.fromkeys(number, 0)
        for path in sorted(data.measured_files()):
            found = {}
            for line, contexts in sorted(data.contexts_by_lineno(path).items()):
                names = [name for name in contexts if name in number]
                for name in names:
                    breadth[name] += 1
                if names:
                    found[str(line)] = sorted(number[name] for name in names)
            self.reach.lines[Path(path).relative_to(ROOT).as_posix()] = found
        self.reach.breadth = breadth


def make(tests: Sequence[str]) -> Reach:
    """
    Run *tests* once, and return their map.

    Raises:
        SystemExit: A test failed.
    """
    from coverage import Coverage

    coverage = Coverage(
        data_file=None,
        config_file=False,
        include=[f"{ROOT / each}/*" for each in (PACKAGE, CHECKER)],
    )
    scripts = {
        path.relative_to(ROOT).as_posix(): path.read_text()
        for path in (ROOT / PACKAGE).rglob("*.lua")
    }
    recorder = _Recorder(coverage, scripts)
    coverage.start()
    with _scripts_recorded(recorder):
        code = pytest.main([*OPTIONS, "-x", *tests], plugins=[recorder])
    coverage.stop()
    if code or recorder.failed:
        raise SystemExit(f"the tests fail without a mutant: {recorder.failed}")
    recorder.finish()
    return recorder.reach


def _scripts_recorded(recorder: _Recorder) -> Any:
    """Return a context in which the fake masters report the scripts that they run."""
    from redlock_aio.testing._fake_lua import Lua

    load, run = Lua.load, Lua.run

    def loading(lua: Lua, text: bytes) -> bytes:
        sha = load(lua, text)
        recorder.loaded(sha, text)
        return sha

    def running(lua: Lua, sha: bytes, *arguments: Any) -> object:
        recorder.ran(sha)
        return run(lua, sha, *arguments)

    return mock.patch.multiple(Lua, load=loading, run=running)
