"""
A demonstration of a lock under faults: ``python -m redlock_aio.demo``.

Five masters are started on this machine. The tasks of several processes increment a
counter that only the lock protects, while one master is killed and restarts without its
data, and another one is paused and resumed. In the end the counter must equal the number
of increments. The module uses public names of redlock_aio only.
"""

import argparse
import asyncio
import contextlib
import logging
import multiprocessing
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing import resource_tracker
from multiprocessing.context import SpawnContext, SpawnProcess
from pathlib import Path
from typing import Any

from redlock_aio import LockLostError, LockNotAcquiredError, Redlock
from redlock_aio.testing import EmbeddedMaster, embedded_masters

PROCESSES = 3
TASKS = 4
WORKERS = PROCESSES * TASKS

WORK = 0.003
"""Seconds between a worker's read of the counter and its write."""

REST = 0.05
"""The least seconds between two turns of a worker."""

DIGITS = 20
"""The digits of the counter: always the same number, so that one system call writes it."""

STOPS = (signal.SIGTERM, signal.SIGHUP)
"""The signals that stop the demonstration, besides an interrupt from the keyboard."""

FEWEST_SECONDS = 3.0
LONGEST_START = 30.0

Step = tuple[float, Callable[[], None], str]


@dataclass(frozen=True)
class Plan:
    """The settings of the worker processes, equal for all of them."""

    masters: tuple[str, ...]
    counter: Path
    ttl: int
    locked: bool


class Record:
    """Memory that all processes share: each worker writes its own place, the parent reads."""

    def __init__(self, context: SpawnContext) -> None:
        self.turns: Any = context.RawArray("q", WORKERS)
        self.losses: Any = context.RawArray("q", WORKERS)
        self.longest: Any = context.RawArray("d", WORKERS)
        self.ready: Any = context.RawArray("b", PROCESSES)
        self.over: Any = context.RawValue("b", 0)


class Worker:
    """A task that increments the counter under the lock."""

    def __init__(self, number: int, plan: Plan, record: Record, file: int) -> None:
        self._number = number
        self._plan = plan
        self._record = record
        self._file = file

    async def take_turns(self, redlock: Redlock) -> None:
        """
        Lock and increment the counter again and again, until the end of the run.

        Cancellation:
            The turn that is underway does not count.
        """
        lock = redlock.lock("demo:counter", ttl=self._plan.ttl, wait=5 * self._plan.ttl)
        wants_since = time.monotonic()
        while not self._record.over.value:
            try:
                if self._plan.locked:
                    async with lock as lease:
                        self._record_wait(time.monotonic() - wants_since)
                        await self._increment(lease.ensure_valid)
                else:
                    await self._increment(lambda: None)
            except LockLostError:
                self._record.losses[self._number] += 1
            except LockNotAcquiredError:
                self._record_wait(time.monotonic() - wants_since)
                continue  # the same turn continues to wait
            await asyncio.sleep(REST * (1 + self._number / WORKERS))
            wants_since = time.monotonic()

    def _record_wait(self, seconds: float) -> None:
        longest = self._record.longest
        longest[self._number] = max(seconds, longest[self._number])

    async def _increment(self, ensure_valid: Callable[[], None]) -> None:
        """Read the counter, wait, and write it: never safe for two workers at once."""
        number = int(os.pread(self._file, DIGITS, 0))
        await asyncio.sleep(WORK)
        ensure_valid()
        os.pwrite(self._file, b"%0*d" % (DIGITS, number + 1), 0)
        self._record.turns[self._number] += 1


async def _work(process: int, plan: Plan, record: Record) -> None:
    file = os.open(plan.counter, os.O_RDWR)
    try:
        redlock = Redlock(plan.masters, max_ttl=plan.ttl)
        async with redlock, asyncio.TaskGroup() as group:
            record.ready[process] = 1
            for number in range(process * TASKS, (process + 1) * TASKS):
                group.create_task(Worker(number, plan, record, file).take_turns(redlock))
            group.create_task(_end_with_parent(record))
    finally:
        os.close(file)


async def _end_with_parent(record: Record) -> None:
    """End the run of this process if the parent was killed."""
    parent = multiprocessing.parent_process()
    while not record.over.value:
        await asyncio.sleep(0.05)
        if parent is not None and not parent.is_alive():
            record.over.value = 1


def work(process: int, plan: Plan, record: Record) -> None:
    """Run the workers of one process; called in that process."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPS)
    # The parent prints the faults of masters, once for all processes.
    logging.getLogger("redlock_aio").setLevel(logging.ERROR)
    asyncio.run(_work(process, plan, record))


class Screen:
    """Prints the progress, with the seconds since the begin."""

    def __init__(self, record: Record) -> None:
        self._began = time.monotonic()
        self._record = record

    def show(self, text: str) -> None:
        """Print one line."""
        print(f"{time.monotonic() - self._began:6.2f} s  {text}", flush=True)

    def wait_for_all(self, processes: Sequence[SpawnProcess]) -> None:
        """
        Wait until the workers of all processes have begun; the faults begin only then.

        Raises:
            RuntimeError: A process has failed, or has not begun after `LONGEST_START`.
        """
        ends = time.monotonic() + LONGEST_START
        while not all(self._record.ready):
            if any(process.exitcode for process in processes):
                raise RuntimeError("a worker process has failed")
            if time.monotonic() > ends:
                raise RuntimeError(f"the worker processes have not begun in {LONGEST_START:g} s")
            time.sleep(0.01)

    def watch(self, seconds: float, processes: Sequence[SpawnProcess]) -> None:
        """Wait for *seconds*, and print the turns of the workers every second."""
        ends = time.monotonic() + seconds
        while (left := ends - time.monotonic()) > 0:
            time.sleep(min(1.0, left))
            if any(process.exitcode for process in processes):
                raise RuntimeError("a worker process has failed")
            if left < 1.0:
                continue
            longest = max(self._record.longest)
            self.show(f"         {sum(self._record.turns)} turns, longest wait {longest:.2f} s")


def faults(masters: Sequence[EmbeddedMaster], seconds: float, ttl: int) -> Iterator[Step]:
    """Yield the faults of the masters: the delay, the action, and the text to print."""
    second, fourth = masters[1], masters[3]
    out = 1.01 * ttl / 1000 + 1
    yield 0.15 * seconds, second.kill, "master 2 is KILLED: four of five are still a majority"
    yield (
        0.05 * seconds,
        second.start,
        (
            f"master 2 is BACK without its keys: QUARANTINED for {out:.1f} s, the longest ttl"
            " and 1 s,\n          so that it grants no lock whose lease may still be valid"
        ),
    )
    yield max(0.3 * seconds, out + 0.1), lambda: None, "master 2 VOTES AGAIN"
    yield 0.05 * seconds, fourth.pause, "master 4 is PAUSED: it receives requests and answers none"
    yield (
        0.25 * seconds,
        fourth.resume,
        "master 4 is RESUMED, and executes late what it received: every request and its release",
    )
    yield 0.25 * seconds, lambda: None, "no more faults"


@contextlib.contextmanager
def workers(plan: Plan, record: Record, context: SpawnContext) -> Iterator[list[SpawnProcess]]:
    """Run the worker processes during the body, and wait for their end after it."""
    processes = [
        context.Process(target=work, args=(number, plan, record), daemon=True)
        for number in range(PROCESSES)
    ]
    # An interrupt from the keyboard goes to all processes, but only the parent handles it.
    # Signals that are blocked here stay blocked in the processes that begin now; the parent
    # gets them afterwards. The resource tracker would unblock them, so it begins earlier. A
    # process that has not begun completely when the parent ends would print an error.
    resource_tracker.ensure_running()
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT, *STOPS])
    try:
        for process in processes:
            process.start()
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT, *STOPS])
        yield processes
    finally:
        record.over.value = 1
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT, *STOPS])
        for process in processes:
            if process.pid is not None:
                process.join(10)
                process.kill()


def play(seconds: float, *, locked: bool) -> int:
    """Run the demonstration; return the number of lost updates."""
    context = multiprocessing.get_context("spawn")
    record = Record(context)
    ttl = int(100 * seconds)
    with (
        tempfile.TemporaryDirectory(prefix="redlock_aio-demo-") as folder,
        embedded_masters(5, unix=True) as masters,
    ):
        counter = Path(folder, "counter")
        counter.write_bytes(b"%0*d" % (DIGITS, 0))
        plan = Plan(tuple(master.url for master in masters), counter, ttl, locked)
        screen = Screen(record)
        screen.show("five masters run on this machine")
        screen.show(
            f"{PROCESSES} processes with {TASKS} tasks each increment one counter:"
            f" {'only under the lock' if locked else 'WITHOUT A LOCK'}"
        )
        with workers(plan, record, context) as processes:
            screen.wait_for_all(processes)
            for pause, act, text in faults(masters, seconds, ttl):
                screen.watch(pause, processes)
                act()
                screen.show(text)
        if any(process.exitcode for process in processes):
            raise RuntimeError("a worker process has failed")
        return summary(record, int(counter.read_bytes()))


def summary(record: Record, counted: int) -> int:
    """Print the result; return the number of lost updates."""
    turns: int = sum(record.turns)
    lost = turns - counted
    busy = sum(bool(number) for number in record.turns)
    print()
    print(f"turns taken:    {turns}, by {busy} of {WORKERS} workers in {PROCESSES} processes")
    print(f"longest wait:   {max(record.longest):.2f} s")
    print(f"leases lost:    {sum(record.losses)} (a holder that lost its lease has not written)")
    print(f"counter:        {counted}")
    print(f"updates lost:   {lost}")
    return lost


def _stopped(number: int, _frame: object) -> None:
    sys.exit(128 + number)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the demonstration by the command line; return the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m redlock_aio.demo",
        description=(
            "Start five masters on this machine, let workers contend for one lock, kill and pause"
            " masters, and count the updates that were lost."
        ),
        epilog="Exit status: 0 if no update was lost, 1 if one was, 2 if it could not run.",
    )
    parser.add_argument(
        "--seconds", type=float, default=10.0, help="how long it takes (default 10, at least 3)"
    )
    parser.add_argument(
        "--no-lock", action="store_true", help="do the same without the lock, to see updates lost"
    )
    chosen = parser.parse_args(arguments)
    if not FEWEST_SECONDS <= chosen.seconds <= 3600:
        parser.error(f"--seconds must be from {FEWEST_SECONDS:g} to 3600")
    for number in STOPS:
        signal.signal(number, _stopped)  # raises an exception, so that everything is cleaned up
    try:
        return int(play(chosen.seconds, locked=not chosen.no_lock) != 0)
    except KeyboardInterrupt:
        print("interrupted; all servers are stopped", file=sys.stderr)
        return 130
    except (OSError, RuntimeError) as error:
        print(f"the demo can't run: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
