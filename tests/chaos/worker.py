"""
One worker process: tasks that add 1 to counters which only the lock protects.

Run by path, with what it needs as arguments, so that it can be killed and
stopped like any other program. What it did it writes to a diary, one line at a
time and unbuffered: whatever kills it, what it had written is there.

    waits 7 main 81234500000 3 fair       section, resource, instant, number of the task, how
    acquired 7 main 81234567890 1977 0    section, resource, instant, validity, fencing token if any
    valid 7 81234667890 1877              it still is, and for how many ms
    checks 7                              it is about to ask whether the lease is valid
    writes 7 42                           it is, and 42 is about to be written
    wrote 7
    ended 7 released 81237567890 81237570001      last instant proven valid, instant of the line
    missed 8 main 81236500000 LockNotAcquiredError      instead of acquired
    late 1234567       at the end: ns by which the loop was late at most

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
"""The remaining validity in ms; a check that raises if it is over; the fencing token or 0."""

DIGITS = 12
LONG_TTL = 500
"""The ttl of the lock that is held for several of them, in ms; it lives by its extensions."""
LONG_SHORTEST, LONG_LONGEST = 0.3, 1.2
TICK = 0.01
"""Seconds between two measurements of how late the loop is."""
SLICE = 0.1
"""Seconds between two records that the lease is valid, in a longer body."""


def instant() -> int:
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)


class Diary:
    """The record of this worker."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        self._sections = 0

    def note(self, *words: object) -> None:
        os.write(self._file, (" ".join(map(str, words)) + "\n").encode())

    def next_section(self) -> int:
        self._sections += 1
        return self._sections


class Counter:
    """A number in a file. Nothing protects it between a read and a write."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_RDWR | os.O_CREAT)

    def read(self) -> int:
        return int(os.pread(self._file, DIGITS, 0) or b"0")

    def write(self, value: int) -> None:
        # It always has the same length, so a reader never gets half of it.
        os.pwrite(self._file, b"%0*d" % (DIGITS, value), 0)


class Worker:
    """Tasks that go through critical sections until the time is up."""

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
        """Wait for the file with the end of the run."""
        until: Path = self.options.until
        while not until.exists():  # noqa: ASYNC110, ASYNC240 - another process makes it
            await asyncio.sleep(0.005)
        self.until = int(until.read_text())  # noqa: ASYNC240 - a few bytes

    def is_fair(self, task: int, resource: str) -> bool:
        """Return whether a task is a fair waiter; half of them are if it is mixed."""
        how: str = self.options.waiting
        named = how == "named" and "fair" in resource
        return how == "fair" or named or (how == "mixed" and task % 2 == 0)

    async def short_sections(self, task: int) -> None:
        """Lock the first resource mostly, or another one, and hold it for a moment."""
        resources: list[str] = self.options.resources
        weights = [self.options.first_share, *[1] * (len(resources) - 1)]
        if self.options.waiting == "named":  # so that no task misses one by waiting for another
            weights = [int(number == task % len(resources)) for number in range(len(resources))]
        while self.time_left() > 0:
            resource = self.random.choices(resources, weights)[0]
            body = self.random.uniform(self.options.shortest, self.options.longest)
            await self.section(task, resource, body, self.options.ttl)

    async def measure(self) -> None:
        """Record by how much this loop is late at most."""
        late = 0
        while self.time_left() > 0:
            due = instant() + int(TICK * 1e9)
            await asyncio.sleep(TICK)
            late = max(late, instant() - due)
        self.diary.note("late", late)

    async def long_sections(self, task: int) -> None:
        """Hold one resource for longer than its ttl, so that extensions carry the lock."""
        while self.time_left() > 0:
            body = self.random.uniform(LONG_SHORTEST, LONG_LONGEST)
            await self.section(task, "long", body, LONG_TTL)

    async def section(self, task: int, resource: str, body: float, ttl: int) -> None:
        """Go through one critical section: read, wait, write one more."""
        number = self.diary.next_section()
        fair = self.is_fair(task, resource)
        proved = 0
        guard = {"lock": self.locked, "none": self.not_locked, "short": self.locked_too_short}

        def prove() -> None:
            # The clock is read first: a lease that is valid later was valid then.
            nonlocal proved
            now = instant()
            self.diary.note("checks", number)
            still_valid()
            proved = now

        try:
            self.diary.note("waits", number, resource, instant(), task, "fair" if fair else "plain")
            async with guard[self.options.guard](resource, ttl, fair) as proof:
                validity, still_valid, token = proof
                proved = instant()
                self.diary.note("acquired", number, resource, proved, validity(), token)
                value = self.counters[resource].read() + 1
                ends = proved + int(body * 1e9)
                while (left := (ends - instant()) / 1e9) > SLICE:
                    await asyncio.sleep(SLICE)
                    # The clock is read first: the rest counts at least from then.
                    now = instant()
                    self.diary.note("valid", number, now, validity())
                await asyncio.sleep(max(left, 0.0))
                prove()
                self.diary.note("writes", number, value)
                self.counters[resource].write(value)
                self.diary.note("wrote", number)
                prove()
                # Before the release is sent: the next holder acquires later.
                self.diary.note("ended", number, "released", proved, instant())
        except LockLostError as error:
            self.diary.note("ended", number, "lost", proved, instant(), error.reason)
        except LockNotAcquiredError as error:
            self.diary.note("missed", number, resource, instant(), type(error).__name__)

    @asynccontextmanager
    async def locked(self, resource: str, ttl: int, fair: bool) -> AsyncIterator[Proof]:
        # Waits end with the run, so that the run ends.
        wait = max(200, min(self.options.patience, int(self.time_left() * 1000)))
        fenced = self.options.waiting == "named" and "fenced" in resource
        lock = self.redlock.lock(resource, ttl=ttl, wait=wait, fair=fair, fencing=fenced)
        async with lock as lease:
            token = lease.fencing_token if fenced else 0
            yield lambda: lease.remaining, lease.ensure_valid, token

    @asynccontextmanager
    async def locked_too_short(self, resource: str, ttl: int, fair: bool) -> AsyncIterator[Proof]:
        """Make each mistake of a holder: a short ttl, no extension, no `ensure_valid`."""
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
    """Run the tasks; anything that the loop reports is an error at the end."""
    complaints: list[str] = []
    asyncio.get_running_loop().set_exception_handler(
        lambda _loop, context: complaints.append(str(context))
    )
    # Masters come and go here all the time; only asyncio's own messages matter.
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
    if complaints:
        raise SystemExit("\n".join(complaints))


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
    """Work until the time is up."""
    options = parse()
    if options.uvloop:
        import uvloop

        uvloop.run(work(options))
    else:
        asyncio.run(work(options))


if __name__ == "__main__":
    main()
