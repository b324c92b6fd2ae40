"""
The workers of the demonstration: several processes, whose tasks increment two counters.

One counter is incremented under the lock, the other one by as many tasks without a lock. So
both see the same machine and the same faults.
"""

import asyncio
import contextlib
import logging
import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing import resource_tracker
from multiprocessing.context import SpawnContext, SpawnProcess
from pathlib import Path
from typing import Any

from redlock_aio import LockLostError, LockNotAcquiredError, Redlock

PROCESSES = 3
TASKS = 4
WORKERS = PROCESSES * TASKS

WORK = 0.003
"""Seconds between a worker's read of the counter and its write."""

REST = 0.05
"""The least seconds between two turns of a worker."""

LOOK = 0.05
"""Seconds between two looks of a process at its masters, and at the end of the run."""

DIGITS = 20
"""The digits of a counter: always the same number, so that one system call writes it."""

STOPS = tuple(getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name))
"""The signals that stop the demonstration, besides an interrupt from the keyboard."""

AWAY, QUARANTINED, VOTES = range(3)
"""What a process says about a master."""

LATEST = 64
"""So many turns are remembered with the worker that took them."""


@dataclass(frozen=True)
class Plan:
    """The settings of the worker processes, equal for all of them."""

    masters: tuple[str, ...]
    locked: Path
    """The counter that is incremented under the lock."""
    bare: Path
    """The counter that is incremented without a lock."""
    ttl: int


class Record:
    """Memory that all processes share: each worker writes its own place, the parent reads."""

    def __init__(self, context: SpawnContext, masters: int) -> None:
        self.turns: Any = context.RawArray("q", WORKERS)
        self.bare_turns: Any = context.RawArray("q", WORKERS)
        self.losses: Any = context.RawArray("q", WORKERS)
        self.longest: Any = context.RawArray("d", WORKERS)
        self.seen: Any = [context.RawArray("b", masters) for _ in range(PROCESSES)]
        """What each process says about each master."""
        self.ready: Any = context.RawArray("b", PROCESSES)
        self.over: Any = context.RawValue("b", 0)
        # The lock protects these two, as it protects the counter.
        self.holder: Any = context.RawValue("b", 0)
        """The number of the worker that holds the lock, from 1 on; 0 if nobody holds it."""
        self.latest: Any = context.RawArray("b", LATEST)
        """Who took each of the latest turns, from 1 on; turn ``n`` is at ``n % LATEST``."""


class Worker:
    """A task that increments a counter."""

    def __init__(self, number: int, plan: Plan, record: Record) -> None:
        self._number = number
        self._plan = plan
        self._record = record
        self._rest = REST * (1 + number / WORKERS)

    async def take_turns(self, redlock: Redlock, file: int) -> None:
        """
        Lock and increment the counter in *file* again and again, until the end of the run.

        Cancellation:
            The turn that is underway does not count.
        """
        lock = redlock.lock("demo:counter", ttl=self._plan.ttl, wait=5 * self._plan.ttl)
        wants_since = time.monotonic()
        while not self._record.over.value:
            try:
                async with lock as lease:
                    self._record_wait(time.monotonic() - wants_since)
                    await self._increment_alone(file, lease.ensure_valid)
            except LockLostError:
                self._record.losses[self._number] += 1
            except LockNotAcquiredError:
                self._record_wait(time.monotonic() - wants_since)
                continue  # the same turn continues to wait
            await asyncio.sleep(self._rest)
            wants_since = time.monotonic()

    async def take_turns_without(self, file: int) -> None:
        """
        Do the same without the lock.

        Cancellation:
            The turn that is underway does not count.
        """
        while not self._record.over.value:
            await _increment(file, lambda: None)
            self._record.bare_turns[self._number] += 1
            await asyncio.sleep(self._rest)

    async def _increment_alone(self, file: int, ensure_valid: Callable[[], None]) -> None:
        self._record.holder.value = self._number + 1
        try:
            turn = await _increment(file, ensure_valid)
            self._record.turns[self._number] += 1
            self._record.latest[turn % LATEST] = self._number + 1
        finally:
            if self._record.holder.value == self._number + 1:  # not if the lease was lost
                self._record.holder.value = 0

    def _record_wait(self, seconds: float) -> None:
        longest = self._record.longest
        longest[self._number] = max(seconds, longest[self._number])


async def _increment(file: int, ensure_valid: Callable[[], None]) -> int:
    """Read the counter, wait, and write it: never safe for two workers at once."""
    number = int(os.pread(file, DIGITS, 0)) + 1
    await asyncio.sleep(WORK)
    ensure_valid()
    os.pwrite(file, written(number), 0)
    return number


def written(number: int) -> bytes:
    """Return the content of a counter's file."""
    return b"%0*d" % (DIGITS, number)


async def _work(process: int, plan: Plan, record: Record) -> None:
    locked, bare = (os.open(path, os.O_RDWR) for path in (plan.locked, plan.bare))
    try:
        redlock = Redlock(plan.masters, max_ttl=plan.ttl)
        async with redlock, asyncio.TaskGroup() as group:
            record.ready[process] = 1
            for number in range(process * TASKS, (process + 1) * TASKS):
                worker = Worker(number, plan, record)
                group.create_task(worker.take_turns(redlock, locked))
                group.create_task(worker.take_turns_without(bare))
            group.create_task(_report_and_end_with_parent(redlock, record, process))
    finally:
        os.close(locked)
        os.close(bare)


async def _report_and_end_with_parent(redlock: Redlock, record: Record, process: int) -> None:
    """Report which masters vote, and end the run of this process if the parent was killed."""
    parent = multiprocessing.parent_process()
    while not record.over.value:
        for number, master in enumerate(redlock.statistics().masters):
            vote = VOTES if master.votes else QUARANTINED if master.up else AWAY
            record.seen[process][number] = vote
        await asyncio.sleep(LOOK)
        if parent is not None and not parent.is_alive():
            record.over.value = 1


def work(process: int, plan: Plan, record: Record) -> None:
    """Run the workers of one process; called in that process."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPS)
    # The parent shows the faults of masters, once for all processes.
    logging.getLogger("redlock_aio").setLevel(logging.ERROR)
    asyncio.run(_work(process, plan, record))


@contextlib.contextmanager
def undisturbed() -> Iterator[None]:
    """Let the signals that end the demonstration wait until the end of the body."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT, *STOPS])
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextlib.contextmanager
def postponed() -> Iterator[None]:
    """
    Handle the signals that end the demonstration after the body.

    Unlike with `undisturbed`, processes that the body starts do not block them. A server whose
    start is interrupted could be one that nobody stops, and its folder one that nobody removes.
    """
    caught: list[int] = []

    def handle(number: int, _frame: object) -> None:
        caught.append(number)

    before = {number: signal.signal(number, handle) for number in (signal.SIGINT, *STOPS)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
        if caught:
            signal.raise_signal(caught[0])


@contextlib.contextmanager
def running(plan: Plan, record: Record, context: SpawnContext) -> Iterator[Sequence[SpawnProcess]]:
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
    try:
        with undisturbed():
            for process in processes:
                process.start()
        yield processes
    finally:
        record.over.value = 1
        for process in processes:
            if process.pid is not None:
                process.join(10)
                process.kill()
