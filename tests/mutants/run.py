"""
Runs the tests against one mutant after the other.

The parent process imports the other packages that the tests need, but neither this one nor the
checker. It forks a child for each mutant, which finds both in a folder of its own: links to all
files except the changed one. There the child runs the tests in turn, until one fails, or all.
"""

import gc
import importlib
import json
import os
import resource
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from multiprocessing import connection, get_context
from multiprocessing.context import ForkProcess
from pathlib import Path
from unittest import mock

import pytest

from .reach import OPTIONS, Reach
from .table import CHECKER, PACKAGE, ROOT, Mutant, StaleError

WARM = (
    "_hypothesis_pytestplugin", "anyio.pytest_plugin", "anyio._backends._asyncio", "asyncio",
    "coverage", "hiredis", "hypothesis.strategies", "lupa.lua51", "pytest_asyncio.plugin",
    "pytest_timeout", "redis.asyncio", "unittest.mock", "xdist.plugin",
)  # fmt: skip
"""Modules that the parent imports once for all children."""

STALL, STALL_FACTOR = 30.0, 5
"""A test hangs after this many seconds, plus this many times its usual duration."""

FIRST_FILES, FIRST_TESTS = 6, 100
"""The limits of files and tests for a first child; a second child runs the others."""

IMPORTS = 60.0
"""The seconds that the imports of all tests may take before the first one, on a busy machine."""

STALLS = 3
"""After so many tests that hang or end the process, a mutant's other tests are left out."""

MEMORY = 4 * 2**30
"""The bytes of address space that a child may use."""

KILLED, SURVIVES = "killed", "survives"
HANGS = "hangs"
"""A test did not end, and none failed before it."""
DIES = "dies"
"""The process ended before its tests, and none had failed."""
UNREACHED = "unreached"
"""No test runs the changed line."""
STALE = "stale"
"""The text to replace is not there any more."""

CAUGHT = {KILLED, HANGS, DIES}

IMPORT = "(import)"
"""The killer of a mutant with which no test can begin."""


@dataclass(frozen=True)
class Result:
    """
    The result of the tests with one mutant.

    Attributes:
        id: The mutant.

        digest: Its digest, by which it is known in another run.

        change: What it changes, in words.

        status: One of the words above.

        killers: The tests that failed, hung, or ended the process: the first one, or all.

        seconds: The duration of the trial.

        tests: The number of tests that were run.

        untried: The number of tests that reach the mutant, but were left out for lack of time.
    """

    id: str
    digest: str
    change: str = ""
    status: str = ""
    killers: list[str] = field(default_factory=list)
    seconds: float = 0.0
    tests: int = 0
    untried: int = 0


class _Child:
    """The plugin of pytest in a child: selects and sorts the tests, and reports to the parent."""

    def __init__(self, tests: Sequence[str], log: Path) -> None:
        self._place = {name: place for place, name in enumerate(tests)}
        self._log = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def report(self, word: str, name: str = "") -> None:
        """Append a line to the log that the parent reads."""
        os.write(self._log, f"{word} {name}\n".encode())

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items[:] = sorted(
            (item for item in items if item.nodeid in self._place),
            key=lambda item: self._place[item.nodeid],
        )

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:  # the file cannot be imported
            for test in self._place:
                if test.startswith(f"{report.nodeid}::"):
                    self.report("failed", test)

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self.report("began", nodeid)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.report("failed", report.nodeid)


def _child(folder: Path, file: str, text: str, tests: Sequence[str], until: Sequence[str]) -> None:
    """
    Run *tests* with *text* in the place of one file of the package.

    Args:
        until: The option of pytest that says when to end early.
    """
    os.setsid()
    output = os.open(folder / "output", os.O_WRONLY | os.O_CREAT)
    os.dup2(output, 1)
    os.dup2(output, 2)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    without = shutil.ignore_patterns("node_modules")
    for package in (PACKAGE, CHECKER):
        shutil.copytree(ROOT / package, folder / package, copy_function=os.symlink, ignore=without)
    if file:
        (folder / file).unlink()
        (folder / file).write_text(text)
    sys.path.insert(0, str(folder))
    checker = f"pythonpath={(folder / CHECKER).parent}"
    sys.dont_write_bytecode = True
    os.environ["PYTHONPATH"] = str(folder)  # for the processes that tests start
    os.environ["PYTHONSAFEPATH"] = "1"  # those of `python -c` would take what is in ROOT instead
    os.environ["HYPOTHESIS_STORAGE_DIRECTORY"] = str(folder / "hypothesis")
    child = _Child(tests, folder / "log")
    files = dict.fromkeys(name.partition("::")[0] for name in tests)
    # The suite freezes all objects before each module, and unfreezes them after it. Here the
    # modules take turns, and each turn would look at all objects of the parent.
    with mock.patch.object(gc, "unfreeze"):
        code = pytest.main([*OPTIONS, "-o", checker, *until, *files], plugins=[child])
    child.report("ended", f"{int(code)}")
    sys.stdout.flush()
    os._exit(0)  # the child must not run the parent's exit handlers


class _Trial:
    """
    The tests of one mutant: one child after the other.

    Args:
        mutant: What to change; ``None`` leaves the package as it is.

        tests: The tests, and how many more there would be with more time.

        every: Run all tests, also after one has failed.
    """

    def __init__(
        self, mutant: Mutant | None, tests: Sequence[str], untried: int, reach: Reach, every: bool
    ) -> None:
        self._mutant = mutant
        self._every = every
        self._seconds = reach.seconds
        self._result = Result("", "", untried=untried)
        if mutant is not None:
            self._result = result(mutant, "", untried=untried)
        self._left = tests
        self._stalls = 0
        if mutant is None or every:
            self._start(len(tests))
        else:
            # To collect all files takes longer than to kill most mutants: first a few files.
            files = dict.fromkeys(test.partition("::")[0] for test in tests)
            few = tuple(f"{file}::" for file in list(files)[:FIRST_FILES])
            first = dict.fromkeys([test for test in tests if test.startswith(few)][:FIRST_TESTS])
            self._left = [*first, *(test for test in tests if test not in first)]
            self._start(len(first))

    def _start(self, count: int) -> None:
        """Begin a child for the first *count* of the tests that are left."""
        self._given, self._left = self._left[:count], self._left[count:]
        self._folder = Path(tempfile.mkdtemp(prefix="mutant-"))
        self._began = self._stirred = time.monotonic()
        self._size = 0
        file = self._mutant.file if self._mutant else ""
        text = self._mutant.apply((ROOT / file).read_text()) if self._mutant else ""
        until = ["--continue-on-collection-errors"] if self._every else ["-x"]
        self.process: ForkProcess = get_context("fork").Process(
            target=_child, args=(self._folder, file, text, self._given, until)
        )
        self.process.start()

    def _log(self) -> list[list[str]]:
        log = self._folder / "log"
        lines = log.read_text().splitlines() if log.exists() else []
        return [line.split(" ", 1) for line in lines]

    def _hangs(self) -> bool:
        """Return whether the current test takes so long that it counts as hanging."""
        log = self._log()
        now = time.monotonic()
        if len(log) > self._size:
            self._size, self._stirred = len(log), now
        usual = self._seconds.get(log[-1][1], 0.0) if log else IMPORTS
        return now > self._stirred + STALL + STALL_FACTOR * usual

    def kill(self) -> None:
        """End the child, and the processes that its tests have started."""
        assert self.process.pid is not None
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.kill()

    def proceed(self) -> Result | None:
        """Take in what an ended child has found; begin the next, or return the result."""
        if hangs := self.process.is_alive() and self._hangs():
            self.kill()
        elif self.process.is_alive():
            return None
        self.process.join()
        log = self._log()
        output = (self._folder / "output").read_text(errors="replace")
        shutil.rmtree(self._folder, ignore_errors=True)
        last = dict(log)  # the last line of each word
        failed = [name for word, name in log if word == "failed"]
        status = KILLED if failed else SURVIVES
        if "ended" not in last or "while loading conftest" in output:
            stopped = last.get("began", IMPORT)
            failed.append(stopped)
            self._stalls += 1
            if status is SURVIVES:
                status = HANGS if hangs else DIES
            if stopped in self._given:
                self._left = [*self._given[self._given.index(stopped) + 1 :], *self._left]
        elif last["ended"] != "0" and not failed:
            raise SystemExit(f"{self._result.id}: pytest did not run the tests\n{output}")
        before = self._result
        self._result = replace(
            before,
            status=before.status if before.status in CAUGHT else status,
            killers=list(dict.fromkeys([*before.killers, *failed])),
            seconds=round(before.seconds + time.monotonic() - self._began, 1),
            tests=before.tests + sum(word == "began" for word, _ in log),
        )
        caught = self._result.status in CAUGHT and not self._every
        if self._left and not caught and IMPORT not in failed and self._stalls < STALLS:
            self._start(len(self._left))
            return None
        if caught:
            return replace(self._result, killers=self._result.killers[:1])
        return replace(self._result, untried=before.untried + len(self._left))


def result(mutant: Mutant, status: str, *, untried: int = 0) -> Result:
    """Return the result of a mutant without tests."""
    words = f"{' '.join(mutant.old.split())} -> {' '.join(mutant.new.split()) or '(nothing)'}"
    return Result(mutant.id, mutant.digest, words, status, untried=untried)


def trials(
    mutants: Iterable[Mutant | None], reach: Reach, *, jobs: int, budget: float, every: bool = False
) -> Iterator[Result]:
    """
    Yield the result of each mutant as it comes; ``None`` is the unchanged package.

    Args:
        jobs: How many children run at once.

        budget: How many seconds of tests a mutant may take.

        every: Run all tests, also after one has failed.
    """
    for module in WARM:
        importlib.import_module(module)
    changed = {PACKAGE, Path(CHECKER).name}
    assert changed.isdisjoint(name.partition(".")[0] for name in sys.modules)
    gc.freeze()
    running: list[_Trial] = []
    coming = (_begin(mutant, reach, budget, every) for mutant in mutants)
    try:
        while True:
            while len(running) < jobs and (begun := next(coming, None)) is not None:
                if isinstance(begun, Result):
                    yield begun
                else:
                    running.append(begun)
            if not running:
                return
            connection.wait([trial.process.sentinel for trial in running], timeout=1)
            for trial in list(running):
                if (found := trial.proceed()) is not None:
                    running.remove(trial)
                    yield found
    finally:
        for trial in running:
            trial.kill()  # they have sessions of their own, which Ctrl-C does not reach


def _begin(mutant: Mutant | None, reach: Reach, budget: float, every: bool) -> _Trial | Result:
    """Start the tests of *mutant*, or return the result if there is nothing to run."""
    if mutant is None:
        return _Trial(None, reach.ranked(list(reach.seconds)), 0, reach, every)
    try:
        tests, untried = reach.tests(mutant, budget)
    except (StaleError, FileNotFoundError):
        return result(mutant, STALE)
    if not tests:
        return result(mutant, UNREACHED)
    return _Trial(mutant, tests, untried, reach, every)


def load(path: Path) -> dict[str, Result]:
    """Return the last result of each mutant in a file of results, by its digest."""
    lines = path.read_text().splitlines() if path.exists() else []
    results = (Result(**json.loads(line)) for line in lines)
    return {result.digest: result for result in results}


def append(path: Path, result: Result) -> None:
    """Append one result to a file of results."""
    with path.open("a") as file:
        file.write(json.dumps(asdict(result)) + "\n")
