"""The client processes of a run: they are started, stopped and killed, as the runner likes."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from redlock_aio.testing._processes import start

from .clocks import Clock
from .history import NEVER
from .job import Job
from .recorder import FAULTS, now

ROOT = Path(__file__).parents[2]
LONGEST_START = 120.0
TAIL = 50_000
"""The bytes at the end of a history that tell which leases are held."""


class Crew:
    """
    The client processes that do one job.

    Args:
        job: The work of each.

        within: Returns the words before the command of the process with this name.

        command: The words before the job's file; empty for `worker.py`. Its environment's
            BOOTTIME_OFFSET is CLOCK_BOOTTIME minus CLOCK_MONOTONIC, in ns.

        shim: The library that gives each process clocks of its own, see `clocks`; None for the
            machine's clocks.

    Attributes:
        names: All processes that were started, in their order.

        dead: Those that were killed.
    """

    def __init__(
        self,
        job: Job,
        within: Callable[[str], Sequence[str]] = lambda _: (),
        command: Sequence[str] = (),
        shim: Path | None = None,
    ) -> None:
        self.job = job
        self._command = command
        self.names: list[str] = []
        self.dead: set[str] = set()
        self.until = 0
        self._within = within
        self._folder = Path(job.folder)
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._shim = shim
        self._clocks: dict[str, Clock] = {}

    def start_one(self) -> str:
        """Start one more process, and return its name."""
        name = f"w{len(self.names)}"
        command = self._command or (sys.executable, "-m", "benchmarks.evidence.worker")
        environment = dict(os.environ)
        if self._shim is not None:
            self._clocks[name] = Clock(self._folder / f"{name}.clock")
            environment = self._clocks[name].environment(self._shim)
        with (self._folder / f"{name}.err").open("wb") as errors:
            self._processes[name] = start(
                [*self._within(name), *command, str(self._folder / "job.json"), name],
                cwd=ROOT,
                env=environment | {"BOOTTIME_OFFSET": str(now() - time.monotonic_ns())},
                stdout=subprocess.DEVNULL,
                stderr=errors,
                start_new_session=True,  # so that its forks end with it
            )
        self.names.append(name)
        return name

    def wait_until_ready(self, name: str) -> None:
        """
        Wait until a process has opened its client.

        Raises:
            RuntimeError: It did not.
        """
        ends = time.monotonic() + LONGEST_START
        while not (self._folder / f"{name}.ready").exists():
            if self._processes[name].poll() is not None or time.monotonic() > ends:
                raise RuntimeError(f"{name} did not start: {self.errors(name)}")
            time.sleep(0.01)

    def start(self, number: int, seconds: float) -> None:
        """Start *number* processes, which all begin to work at once and end after *seconds*."""
        (self._folder / "handover").mkdir()
        self.job.write(self._folder / "job.json")
        for name in [self.start_one() for _ in range(number)]:
            self.wait_until_ready(name)
        self.until = now() + int(seconds * 1e9)
        unfinished = self._folder / "until.new"
        unfinished.write_text(str(self.until))
        unfinished.rename(self._folder / "until")

    def time_left(self) -> float:
        """Return the seconds until the processes end."""
        return (self.until - now()) / 1e9

    def living(self) -> list[str]:
        """Return the processes that were not killed."""
        return [name for name in self.names if name not in self.dead]

    def runs(self, name: str) -> bool:
        """Return whether a process has not ended."""
        return self._processes[name].poll() is None

    def held_by(self, name: str) -> int:
        """Return how many leases a process holds now, as the end of its history says."""
        path = self._folder / f"{name}.jsonl"
        if not path.exists():
            return 0
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - TAIL))
            lines = file.read().split(b"\n")[1:-1]  # the first and the last may be parts
        # By clients, each of which does one thing after another: no event tells that a lease was
        # exported.
        holders = set()
        for event in map(json.loads, lines):
            match event["what"], event["how"]:
                case "acquire" | "adopt", "ok":
                    holders.add(event["client"])
                case ("release" | "acquire" | "adopt", "invoke") | ("lost", _):
                    holders.discard(event["client"])
        return len(holders)

    def holder(self, among: Sequence[str]) -> str:
        """Return the process that holds most leases, of those *among* which one has to choose."""
        ends = time.monotonic() + 1
        while True:
            held = {name: self.held_by(name) for name in among}
            name = max(among, key=lambda each: held[each])
            if held[name] or time.monotonic() > ends:
                return name
            time.sleep(0.01)

    def clock(self, name: str) -> Clock:
        """
        Return the clocks of a process.

        Raises:
            RuntimeError: It has those of the machine.
        """
        if name not in self._clocks:
            raise RuntimeError(f"{name} has the machine's clocks: its row does not need others")
        return self._clocks[name]

    def signal(self, name: str, number: signal.Signals) -> None:
        """Send a signal to one process; one that stops it, or lets it go on, also to its group."""
        process = self._processes[name]
        if process.poll() is not None:
            return
        if number in {signal.SIGSTOP, signal.SIGCONT}:
            # With the programs that it has started, such as `redlock run`.
            os.killpg(process.pid, number)
        else:
            process.send_signal(number)

    def kill(self, name: str) -> None:
        """Kill one process, at any point of its work."""
        self.dead.add(name)
        self._end(name)

    def _end(self, name: str) -> None:
        process = self._processes[name]
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()

    def late(self) -> float:
        """
        Return by how many seconds an event loop was late at most, of those that measured it.

        What the run itself did to a process, by a stop or by a blocked event loop, is left out.
        """
        stalls = self._stalls()
        most = 0
        for path in self._folder.glob("*.late"):
            for line in path.read_text().splitlines():
                due, late = map(int, line.split())
                if not any(
                    began < due + late and due < ended for began, ended in stalls[path.stem]
                ):
                    most = max(most, late)
        return most / 1e9

    def _stalls(self) -> dict[str, list[tuple[int, int]]]:
        """Return when each process stood still, as the record of the faults says."""
        result: dict[str, list[tuple[int, int]]] = defaultdict(list)
        path = self._folder / f"{FAULTS}.jsonl"
        began: dict[str, int] = {}
        for event in map(json.loads, path.read_text().splitlines() if path.exists() else ()):
            if event.get("name") == "stall":
                if event["how"] == "begin":
                    began[event["client"]] = event["at"]
                else:
                    result[event["client"]].append((began.pop(event["client"]), event["at"]))
        for name, at in began.items():
            result[name].append((at, NEVER))
        return result

    def errors(self, name: str) -> str:
        """Return what a process has written to its standard error."""
        return (self._folder / f"{name}.err").read_text(errors="replace")

    def wait(self) -> list[str]:
        """Wait until all processes have ended; return what went wrong in them."""
        wrong = []
        ends = time.monotonic() + 60 + max(0.0, self.time_left())
        for name, process in self._processes.items():
            try:
                code = process.wait(max(0.1, ends - time.monotonic()))
            except subprocess.TimeoutExpired:
                wrong.append(f"{name} did not end")
                continue
            # One that had ended by an error before it was killed has that error's code.
            if code != (-signal.SIGKILL if name in self.dead else 0) or self.errors(name):
                wrong.append(f"{name} ended with {code}: {self.errors(name)}")
        return wrong

    def stop(self) -> None:
        """Kill what is left, also the forks of processes that have ended."""
        for name in self._processes:
            self._end(name)

    @contextlib.contextmanager
    def working(self, number: int, seconds: float) -> Iterator[None]:
        """Run the processes for the body."""
        try:
            self.start(number, seconds)
            yield
        finally:
            self.stop()
