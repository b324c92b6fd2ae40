"""
One worker process: its tasks add 1 to counters that only the lock protects.

It is run by its path, with all settings as arguments, so that it can be killed and
stopped like any other program. It writes each operation to its diary, one line at a
time and unbuffered, so that the lines survive a kill.

    waits 7 main 81234500000 3 fair       section, resource, instant, task, fair or plain
    acquired 7 main 81234567890 1977 0    section, resource, instant, validity, fencing token or 0
    valid 7 81234667890 1877              section, instant, remaining validity in ms
    checks 7                              the worker is about to call `ensure_valid`
    writes 7 42                           the lease was valid; 42 is about to be written
    wrote 7                               42 was written
    ended 7 released 81237567890 81237570001      last instant proven valid, instant of the line
    missed 8 main 81236500000 LockNotAcquiredError      instead of "acquired"
    late 1234567                          at the end: the longest delay of the event loop, in ns

Instants are nanoseconds on CLOCK_BOOTTIME, which all processes share.
"""

import argparse
import asyncio
import logging
import os
import random
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from redlock_aio import Lease, LockLostError, LockNotAcquiredError, Redlock

Proof = tuple[Callable[[], int], Callable[[], None], int]
"""Returns the remaining validity in ms; raises if the lease is lost; the fencing token or 0."""

DIGITS = 12
LONG_TTL = 500
"""The ttl in ms of the lock that is held for several ttls, by extensions."""
LONG_SHORTEST, LONG_LONGEST = 0.3, 1.2
TICK = 0.01
"""Seconds between two measurements of the event loop's delay."""
SLICE = 0.1
"""Seconds between two "valid" lines of a longer body."""


def instant() -> int:
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)


class Diary:
    """Writes the diary of this worker."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        self._sections = 0

    def record(self, *words: object) -> None:
        os.write(self._file, (" ".join(map(str, words)) + "\n").encode())

    def next_section(self) -> int:
        self._sections += 1
        return self._sections


class Counter:
    """A number in a file, which is not protected between a read and a write."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_RDWR | os.O_CREAT)

    def read(self) -> int:
        return int(os.pread(self._file, DIGITS, 0) or b"0")

    def write(self, value: int) -> None:
        # The number always has the same length, so a reader never gets a part of it.
        os.pwrite(self._file, b"%0*d" % (DIGITS, value), 0)


class Worker:
    """Runs tasks that enter critical sections until the run ends."""

    def __init__(self, options: argparse.Namespace, redlock: Redlock) -> None:
        self.until = 0
        self.options = options
        self.redlock = redlock
        self.diary = Diary(options.diary)
        self.random = random.Random(options.seed)
        self.counters = {
            resource: Counter(options.counters / resource)
            for resource in (*options.resources, "long")
        }

    def time_left(self) -> float:
        return (self.until - instant()) / 1e9

    async def wait_for_the_start(self) -> None:
        """Wait for the file that holds the end of the run."""
        until: Path = self.options.until
        while not until.exists():  # noqa: ASYNC110, ASYNC240 - another process makes it
            await asyncio.sleep(0.005)
        self.until = int(until.read_text())  # noqa: ASYNC240 - a few bytes

    def is_fair(self, task: int, resource: str) -> bool:
        """Return whether a task waits fairly for *resource*; see `Job.waiting`."""
        waiting: str = self.options.waiting
        named = waiting == "named" and "fair" in resource
        return waiting == "fair" or named or (waiting == "mixed" and task % 2 == 0)

    async def short_sections(self, task: int) -> None:
        """Hold the first resource most often, or another one, each time for a moment."""
        resources: list[str] = self.options.resources
        weights = [self.options.first_share, *[1] * (len(resources) - 1)]
        # A task that waits for one resource would not be there for another one.
        if self.options.waiting == "named":
            weights = [int(number == task % len(resources)) for number in range(len(resources))]
        while self.time_left() > 0:
            resource = self.random.choices(resources, weights)[0]
            body = self.random.uniform(self.options.shortest, self.options.longest)
            await self.section(task, resource, body, self.options.ttl)

    async def measure(self) -> None:
        """Record the longest delay of this event loop."""
        late = 0
        while self.time_left() > 0:
            due = instant() + int(TICK * 1e9)
            await asyncio.sleep(TICK)
            late = max(late, instant() - due)
        self.diary.record("late", late)

    async def long_sections(self, task: int) -> None:
        """Hold one resource for longer than its ttl, which needs extensions."""
        while self.time_left() > 0:
            body = self.random.uniform(LONG_SHORTEST, LONG_LONGEST)
            await self.section(task, "long", body, LONG_TTL)

    async def section(self, task: int, resource: str, body: float, ttl: int) -> None:
        """Run one critical section: read the counter, wait, and write the next number."""
        number = self.diary.next_section()
        fair = self.is_fair(task, resource)
        proved = 0
        guard = {"lock": self.locked, "none": self.not_locked, "short": self.locked_too_short}

        def prove() -> None:
            # The clock is read first: a lease that is valid after that was valid at *now*.
            nonlocal proved
            now = instant()
            self.diary.record("checks", number)
            still_valid()
            proved = now

        try:
            self.diary.record(
                "waits", number, resource, instant(), task, "fair" if fair else "plain"
            )
            async with guard[self.options.guard](resource, ttl, fair) as proof:
                validity, still_valid, token = proof
                proved = instant()
                self.diary.record("acquired", number, resource, proved, validity(), token)
                value = self.counters[resource].read() + 1
                ends = proved + int(body * 1e9)
                while (left := (ends - instant()) / 1e9) > SLICE:
                    await asyncio.sleep(SLICE)
                    # The clock is read first: the remaining validity counts from *now* or later.
                    now = instant()
                    self.diary.record("valid", number, now, validity())
                await asyncio.sleep(max(left, 0.0))
                prove()
                self.diary.record("writes", number, value)
                self.counters[resource].write(value)
                self.diary.record("wrote", number)
                prove()
                # Written before the release is sent, so the next holder acquires after it.
                self.diary.record("ended", number, "released", proved, instant())
        except LockLostError as error:
            self.diary.record("ended", number, "lost", proved, instant(), error.reason)
        except LockNotAcquiredError as error:
            self.diary.record("missed", number, resource, instant(), type(error).__name__)

    @asynccontextmanager
    async def locked(self, resource: str, ttl: int, fair: bool) -> AsyncIterator[Proof]:
        # A wait ends with the run at the latest; else the run would not end.
        wait = max(200, min(self.options.patience, int(self.time_left() * 1000)))
        fenced = self.options.waiting == "named" and "fenced" in resource
        lock = self.redlock.lock(resource, ttl=ttl, wait=wait, fair=fair, fencing=fenced)
        async with lock as lease:
            token = lease.fencing_token if fenced else 0
            yield lambda: lease.remaining, lease.ensure_valid, token

    @asynccontextmanager
    async def locked_too_short(self, resource: str, ttl: int, fair: bool) -> AsyncIterator[Proof]:
        """Lock with each mistake of a holder: a short ttl, no extension, no `ensure_valid`."""
        lock = self.redlock.lock(
            resource,
            ttl=ttl,
            wait=self.options.patience,
            auto_extend=False,
            on_lost="flag",
            fair=fair,
        )
        async with lock as lease:
            yield _blind(lease)

    @asynccontextmanager
    async def not_locked(self, _resource: str, _ttl: int, _fair: bool) -> AsyncIterator[Proof]:
        yield lambda: 0, lambda: None, 0


def _blind(lease: Lease) -> Proof:
    return lambda: lease.remaining, lambda: None, 0


async def work(options: argparse.Namespace) -> None:
    """Run the tasks; exit with an error if the event loop reported one."""
    reported: list[str] = []
    asyncio.get_running_loop().set_exception_handler(
        lambda _loop, context: reported.append(str(context))
    )
    # The library logs each master that comes or goes. Only asyncio's messages are errors here.
    logging.getLogger("redlock_aio").addHandler(logging.NullHandler())
    async with Redlock(options.masters, max_ttl=max(options.ttl, LONG_TTL)) as redlock:
        worker = Worker(options, redlock)
        await worker.wait_for_the_start()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(worker.measure())
            for task in range(options.tasks):
                tasks.create_task(worker.short_sections(task))
            if options.long:
                tasks.create_task(worker.long_sections(options.tasks))
    if reported:
        raise SystemExit("\n".join(reported))


def parse() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--masters", nargs="+", required=True)
    parser.add_argument("--diary", type=Path, required=True)
    parser.add_argument("--counters", type=Path, required=True)
    parser.add_argument("--resources", nargs="+", required=True)
    parser.add_argument("--first-share", type=float, required=True)
    parser.add_argument("--until", type=Path, required=True)
    parser.add_argument("--tasks", type=int, required=True)
    parser.add_argument("--ttl", type=int, required=True)
    parser.add_argument("--shortest", type=float, required=True)
    parser.add_argument("--longest", type=float, required=True)
    parser.add_argument("--guard", choices=("lock", "none", "short"), required=True)
    parser.add_argument("--waiting", choices=("plain", "fair", "mixed", "named"), required=True)
    parser.add_argument("--patience", type=int, required=True)
    parser.add_argument("--long", action="store_true")
    parser.add_argument("--uvloop", action="store_true")
    parser.add_argument("--seed", type=int, required=True)
    return parser.parse_args()


def main() -> None:
    """Run the worker on asyncio's event loop, or on uvloop."""
    options = parse()
    if options.uvloop:
        import uvloop

        uvloop.run(work(options))
    else:
        asyncio.run(work(options))


if __name__ == "__main__":
    main()
