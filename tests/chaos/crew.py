"""The worker processes of one test: they are started and killed, and their diaries are read."""

import contextlib
import importlib.util
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from redlock_aio.testing._processes import start

from .history import Diary, Section, Wait, by_resource, longest_gap
from .keys import Server

WORKER = Path(__file__).with_name("worker.py")
LONGEST_START = 120.0


def instant() -> int:
    """Return now, in nanoseconds on the clock of the workers' diaries."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)


@dataclass(frozen=True, slots=True)
class Job:
    """The work of all workers of a run."""

    seconds: float
    ttl: int = 2_000
    tasks: int = 8
    resources: tuple[str, ...] = ("main", "left", "right")
    first_share: float = 8.0
    body: tuple[float, float] = (0.0, 0.003)
    guard: str = "lock"
    waiting: str = "plain"
    """
    "plain"; "fair"; "mixed": half of the tasks are fair; or "named": a lock is fair or fenced
    if its resource's name contains that word, and each task has one resource.
    """
    patience: int = 2_000
    """Milliseconds for which a task waits before it gives up and tries again."""
    long: bool = False


@dataclass(slots=True)
class Crew:
    """The worker processes that do one job."""

    job: Job
    masters: Sequence[Server]
    folder: Path
    chance: random.Random
    until: int = 0
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    killed_at: dict[str, int] = field(default_factory=dict)

    @property
    def counters(self) -> Path:
        """The folder with the counter of each resource, a file."""
        return self.folder / "counters"

    def start_worker(self, *within: str) -> str:
        """
        Start one more worker; return its name.

        Args:
            within: A command that runs the worker's, such as one that enters a network namespace.
        """
        job, name = self.job, f"worker{len(self.processes)}"
        command = [
            *(*within, sys.executable, "-W", "error", str(WORKER)),
            *("--masters", *(master.url for master in self.masters)),
            *("--diary", str(self.path(name)), "--counters", str(self.counters)),
            *("--resources", *job.resources, "--first-share", str(job.first_share)),
            *(
                "--until",
                str(self.folder / "until"),
                "--tasks",
                str(job.tasks),
                "--ttl",
                str(job.ttl),
            ),
            *("--shortest", str(job.body[0]), "--longest", str(job.body[1])),
            *("--guard", job.guard, "--seed", str(self.chance.getrandbits(32))),
            *("--waiting", job.waiting, "--patience", str(job.patience)),
            *(["--long"] if job.long else []),
        ]
        # Every second worker runs on uvloop, where it is installed.
        if len(self.processes) % 2 and importlib.util.find_spec("uvloop") is not None:
            command.append("--uvloop")
        with (self.folder / f"{name}.err").open("wb") as errors:
            self.processes[name] = start(command, stderr=errors)
        return name

    def start(self) -> None:
        """Start the work in all processes at once, when the last interpreter is ready."""
        ends = time.monotonic() + LONGEST_START
        while not all(self.path(name).exists() for name in self.processes):
            assert time.monotonic() < ends, "the workers do not start"
            time.sleep(0.005)
        self.until = instant() + int(self.job.seconds * 1e9)
        unfinished = self.folder / "until.new"
        unfinished.write_text(str(self.until))
        unfinished.rename(self.folder / "until")

    def running(self) -> list[str]:
        """Return the names of the workers that are running."""
        return [name for name, process in self.processes.items() if process.poll() is None]

    def kill(self, name: str) -> None:
        """Kill a worker, at any point of its work, and record when it was dead."""
        process = self.processes[name]
        process.kill()
        process.wait()
        self.killed_at[name] = instant()

    def path(self, name: str) -> Path:
        """Return the path of a worker's diary."""
        return self.folder / f"{name}.diary"

    def diary(self, name: str) -> Diary:
        """Read the diary of a worker so far."""
        return Diary.read(self.path(name))

    def sections(self) -> list[Section]:
        """Return the sections of all workers, in the order in which they were acquired."""
        found = [section for name in self.processes for section in self.diary(name).sections]
        return sorted(found, key=lambda section: section.acquired_at)

    def waits(self) -> list[Wait]:
        """Return the acquisitions of all workers."""
        return [wait for name in self.processes for wait in self.diary(name).waits]

    def late(self) -> float:
        """Return the longest delay of a worker's event loop in seconds; see `Diary.late`."""
        return max(self.diary(name).late for name in self.processes) / 1e9

    def missed(self) -> list[str]:
        """Return the errors of the acquisitions that failed."""
        return [wait.missed for wait in self.waits() if wait.missed]

    def wait(self) -> None:
        """Wait until all workers have ended; fail if one of them reported an error."""
        late = 60 + max(0.0, (self.until - instant()) / 1e9)
        ends = time.monotonic() + late
        for name, process in self.processes.items():
            code = process.wait(max(0.1, ends - time.monotonic()))
            errors = (self.folder / f"{name}.err").read_text()
            assert name in self.killed_at or (code == 0 and not errors), (
                f"{name} ended with {code}: {errors}"
            )


def report(crew: Crew, faults: Mapping[str, int]) -> None:
    """Print a summary of the run."""
    sections = crew.sections()
    lost = Counter(section.reason for section in sections if section.ended == "lost")
    for resource, group in by_resource(sections).items():
        wrote = sum(section.wrote for section in group)
        sys.stdout.write(
            f"{resource}: {wrote} increments in {crew.job.seconds:g} s,"
            f" longest gap {longest_gap(group):.2f} s\n"
        )
    missed = dict(Counter(crew.missed()))
    sys.stdout.write(f"masters: {faults}; leases lost: {dict(lost)}; gave up: {missed}\n")
    kinds_of_waits = Counter(
        "fair" if wait.fair else "plain" for wait in crew.waits() if wait.acquired_at
    )
    sys.stdout.write(f"acquired: {dict(kinds_of_waits)}; killed: {len(crew.killed_at)} workers\n")


@contextlib.contextmanager
def at_work(
    job: Job,
    masters: Sequence[Server],
    chance: random.Random,
    workers: int = 4,
    within: Sequence[Sequence[str]] = (),
) -> Iterator[Crew]:
    """
    Run workers while the body runs, and kill those that are left at its end.

    Args:
        workers: The number of workers.

        within: For each worker a command that runs it, as in `Crew.start_worker`; then
            *workers* is not used.
    """
    with tempfile.TemporaryDirectory(prefix="redlock_aio-chaos-") as folder:
        crew = Crew(job, masters, Path(folder), chance)
        crew.counters.mkdir()
        try:
            for prefix in within or [()] * workers:
                crew.start_worker(*prefix)
            crew.start()
            yield crew
        finally:
            for process in crew.processes.values():
                process.kill()  # has no effect on a process that has ended
                process.wait()
