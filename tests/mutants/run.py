"""
Runs the tests against one mutant after the other.

The parent process imports the other packages that the tests need, but neither this one nor the
checker. It forks a child for each mutant, which finds both in a folder of its own: links to all
files except the changed one. There the child runs the tests in turn until one fails.
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
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
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

MEMORY = 4 * 2**30
"""The bytes of address space that a child may use."""

KILLED, SURVIVES = "killed", "survives"
HANGS = "hangs"
"""A test did not end."""
DIES = "dies"
"""The process ended before its tests."""
UNREACHED = "unreached"
"""No test runs the changed line."""
STALE = "stale"
"""The text to replace is not there any more."""

CAUGHT = {KILLED, HANGS, DIES}


@dataclass(frozen=True)
class Result:
    """
    The result of the tests with one mutant.

    Attributes:
        id: The mutant.

        digest: Its digest, so that no result counts for another mutant of that name.

        status: One of the words above.

        killer: The test that failed, or hung.

        seconds: The duration of the trial.

        tests: The number of tests that were run.
    """

    id: str
    digest: str
    status: str
    killer: str = ""
    seconds: float = 0.0
    tests: int = 0


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
        if report.failed:
            self.report("failed", f"{report.nodeid} (import)")

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self.report("began", nodeid)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.report("failed", report.nodeid)


def _child(folder: Path, file: str, text: str, tests: Sequence[str]) -> None:
    """Run *tests* with *text* in the place of one file of the package."""
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
    os.environ["HYPOTHESIS_STORAGE_DIRECTORY"] = str(folder / "hypothesis")
    child = _Child(tests, folder / "log")
    files = dict.fromkeys(name.partition("::")[0] for name in tests)
    # The suite freezes all objects before each module, and unfreezes them after it. Here the
    # modules take turns, and each turn would look at all objects of the parent.
    with mock.patch.object(gc, "unfreeze"):
        code = pytest.main([*OPTIONS, "-o", checker, "-x", *files], plugins=[child])
    child.report("ended", f"{int(code)}")
    sys.stdout.flush()
    os._exit(0)  # the child must not run the parent's exit handlers


class _Trial:
    """
    One child that runs, for one mutant.

    Args:
        before: The result of the first tests, if they have passed already.
    """

    def __init__(
        self, mutant: Mutant | None, tests: Sequence[str], reach: Reach, before: Result | None
    ) -> None:
        self.mutant = mutant
        self.rest: Sequence[str] = []
        """The tests to run if these do not fail."""
        if mutant is not None and before is None:
            tests, self.rest = _first(tests)
        self._before = before
        self._seconds = reach.seconds
        self._folder = Path(tempfile.mkdtemp(prefix="mutant-"))
        self._began = self._stirred = time.monotonic()
        self._size = 0
        file = mutant.file if mutant else ""
        text = mutant.apply((ROOT / file).read_text()) if mutant else ""
        self.process: ForkProcess = get_context("fork").Process(
            target=_child, args=(self._folder, file, text, tests)
        )
        self.process.start()

    def _log(self) -> list[list[str]]:
        log = self._folder / "log"
        lines = log.read_text().splitlines() if log.exists() else []
        return [line.split(" ", 1) for line in lines]

    def hangs(self) -> bool:
        """Return whether the current test takes so long that it counts as hanging."""
        log = self._log()
        now = time.monotonic()
        if len(log) > self._size:
            self._size, self._stirred = len(log), now
        usual = self._seconds.get(log[-1][1], 0.0) if log else 0.0
        return now > self._stirred + STALL + STALL_FACTOR * usual

    def end(self, *, hangs: bool) -> Result:
        """Kill the child if it has not ended; return the result."""
        if hangs:
            assert self.process.pid is not None
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.join()
        log = self._log()
        last = dict(log)  # the last line of each word
        status, killer = SURVIVES, ""
        if "failed" in last:
            status, killer = KILLED, next(name for word, name in log if word == "failed")
        elif hangs or "ended" not in last:
            status, killer = HANGS if hangs else DIES, last.get("began", "(import)")
        elif last["ended"] != "0":
            output = (self._folder / "output").read_text(errors="replace")
            raise SystemExit(f"{self.mutant}: pytest did not run the tests\n{output}")
        seconds = round(time.monotonic() - self._began, 1)
        shutil.rmtree(self._folder, ignore_errors=True)
        name, digest = (self.mutant.id, self.mutant.digest) if self.mutant else ("", "")
        count = sum(word == "began" for word, _ in log)
        if self._before is not None:
            seconds = round(seconds + self._before.seconds, 1)
            count += self._before.tests
        return Result(name, digest, status, killer, seconds, count)


def _first(tests: Sequence[str]) -> tuple[list[str], list[str]]:
    """
    Split *tests*: those from a few files, which most often are enough, come before the others.

    To collect all files takes longer than to kill most mutants.
    """
    files: dict[str, None] = {}
    first: list[str] = []
    rest: list[str] = []
    for test in tests:
        file = test.partition("::")[0]
        if len(files) < FIRST_FILES:
            files[file] = None
        (first if file in files and len(first) < FIRST_TESTS else rest).append(test)
    return first, rest


def trials(
    mutants: Iterable[Mutant | None], reach: Reach, *, jobs: int, budget: float
) -> Iterator[Result]:
    """
    Yield the result of each mutant as it comes; ``None`` is the unchanged package.

    Args:
        jobs: How many children run at once.

        budget: How many seconds of tests a mutant may take.
    """
    for module in WARM:
        importlib.import_module(module)
    changed = {PACKAGE, Path(CHECKER).name}
    assert changed.isdisjoint(name.partition(".")[0] for name in sys.modules)
    gc.freeze()
    queue = deque(mutants)
    running: dict[int, _Trial] = {}
    try:
        while queue or running:
            while queue and len(running) < jobs:
                found = _begin(queue.popleft(), reach, budget)
                if isinstance(found, Result):
                    yield found
                else:
                    running[found.process.sentinel] = found
            ended = connection.wait(running, timeout=1)
            for sentinel, trial in list(running.items()):
                if (hangs := sentinel not in ended and trial.hangs()) or sentinel in ended:
                    del running[sentinel]
                    result = trial.end(hangs=hangs)
                    if result.status == SURVIVES and trial.rest:
                        more = _Trial(trial.mutant, trial.rest, reach, result)
                        running[more.process.sentinel] = more
                    else:
                        yield result
    finally:
        for trial in running.values():
            trial.end(
                hangs=True
            )  # the children have sessions of their own, which Ctrl-C does not reach


def _begin(mutant: Mutant | None, reach: Reach, budget: float) -> _Trial | Result:
    """Start a child for *mutant*, or return the result if there is nothing to run."""
    if mutant is None:
        return _Trial(None, reach.ranked(list(reach.seconds)), reach, None)
    try:
        tests = reach.tests(mutant, budget)
    except (StaleError, FileNotFoundError):
        return Result(mutant.id, mutant.digest, STALE)
    if not tests:
        return Result(mutant.id, mutant.digest, UNREACHED)
    return _Trial(mutant, tests, reach, None)


def load(path: Path) -> dict[str, Result]:
    """Return the last result of each mutant in a file of results."""
    lines = path.read_text().splitlines() if path.exists() else []
    results = (Result(**json.loads(line)) for line in lines)
    return {result.id: result for result in results}


def append(path: Path, result: Result) -> None:
    """Append one result to a file of results."""
    with path.open("a") as file:
        file.write(json.dumps(asdict(result)) + "\n")
