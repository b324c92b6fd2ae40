"""
One client process of a run: its tasks acquire locks, write to a store, and record all of it.

It is a program of its own, so that it can be killed and stopped like any other:
`python -m benchmarks.evidence.worker JOB NAME`, where JOB is a file with a `Job` as JSON. It
opens its client, makes the file NAME.ready, and works from when the file `until` exists to the
instant in it. What it does follows from the job's seed and its name, except for the times.

SIGUSR1 blocks its event loop for `Job.stall` seconds. SIGUSR2 makes it fork while it holds a
lock; the child tries what it must not do with the lease that it has inherited, and then works
as a client of its own.
"""

import asyncio
import contextlib
import gc
import importlib.util
import itertools
import json
import logging
import os
import random
import signal
import sys
import time
import warnings
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import FrameType
from typing import Any

import anyio

from .contestants import contestants
from .history import numbered
from .job import Job
from .locks import MS, Held, Locks, NotAcquired, NotHeld, Setting, unique
from .recorder import Client, Pending, Recorder, now
from .store import Store

LEAST_LEFT = 0.2
"""Seconds before the end after which no task begins to wait for a lock."""

TICK = 0.01
"""Seconds between two measurements of the event loop's delay."""

DELAY = 0.005
"""The shortest delay of the event loop in seconds that is written down."""

WRITES_EVERY = 0.003
"""Seconds between two writes of a body that writes until it is cancelled."""

INSIDE = 0.01
"""The longest time in seconds that an inner block works by itself."""

LOOK_FOR_LEASES = 0.03
"""Seconds between two looks for leases that others hand over; far shorter than any ttl."""

LONGEST_MOMENT = 0.003
"""Seconds within which a turn that is cancelled is cancelled: about as long as it would take."""

CLEAN_WITHIN = 2.0
"""Seconds after the last turn by which nothing of the cancelled ones is left in this process."""


class Worker:
    """The tasks of one process."""

    def __init__(self, job: Job, name: str) -> None:
        self.job = job
        self.name = name
        self.folder = Path(job.folder)
        self.contestant = contestants()[job.contestant]
        self.recorder = Recorder(self.folder, name)
        self.random = random.Random(f"{job.seed} {name}")
        self.store = Store(job.store)
        self.until = 0
        self.forks = 0
        self.must_fork = False
        # Values that no other process writes.
        self._values = itertools.count(os.getpid() << 24)

    async def run(self) -> None:
        """Open the client and run the tasks until the run ends."""
        job, able = self.job, self.contestant.abilities
        # An event loop may open a file of its own with its first connection, and keep it.
        async with Store(job.store) as store:
            await store.count("nobody")
        files = open_files()
        setting = Setting(
            max_ttl=job.ttl,
            guard=job.guard,
            name=self.name,
            varied=bool(job.cancel),
            misuse=job.misuse,
        )
        async with self.store, self.contestant.open(job.urls, setting) as locks:
            await self._get_ready(locks)
            idle = other_tasks()
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._measure())
                start = self._in_thread if self.contestant.threads else Worker._in_this_thread
                works: list[Callable[[Task], Work]] = [Task.run] * job.tasks
                # A client does one thing at a time, so these have numbers of their own.
                if job.handover and "adopt" in able:
                    works.append(Task.adopt)
                if job.force and "force_release" in able:
                    works.append(Task.force)
                for number, work in enumerate(works):
                    task = Task(self, locks, self.recorder.client(number), number)
                    tasks.create_task(start(task, work))
            if job.cancel:
                await self._settle(locks, idle)
        if job.cancel:
            await asyncio.sleep(0.01)  # transports are closed in a later turn of the loop
            gc.collect()
            if (left := other_tasks()) or open_files() > files:
                raise RuntimeError(
                    f"tasks outlive the client: {left}; or files: {open_files()}, before {files}"
                )

    @staticmethod
    async def _in_this_thread(task: "Task", work: "Callable[[Task], Work]") -> None:
        await work(task)

    async def _in_thread(self, task: "Task", work: "Callable[[Task], Work]") -> None:
        """Let *task* work in a thread of its own, which its calls may block."""

        async def main() -> None:
            async with Store(self.job.store) as task.store:
                await work(task)

        with ThreadPoolExecutor(1) as thread:
            await asyncio.get_running_loop().run_in_executor(thread, asyncio.run, main())

    async def _settle(self, locks: Locks, idle: list[str]) -> None:
        """
        Wait until nothing of the turns is left in this process.

        Raises:
            RuntimeError: A lease, or a task, is left.
        """
        ends = time.monotonic() + CLEAN_WITHIN
        while (left := other_tasks()) != idle or locks.leases():
            if time.monotonic() > ends:
                raise RuntimeError(f"{locks.leases()} leases are left; tasks: {left}, not {idle}")
            await asyncio.sleep(0.01)

    async def _measure(self) -> None:
        """Write when a turn of this event loop was due that came late, and by how much, in ns."""
        with (self.folder / f"{self.name}.late").open("w", buffering=1) as file:
            while self.time_left() > 0:
                due = now() + int(TICK * 1e9)
                await asyncio.sleep(TICK)
                if (late := now() - due) > DELAY * 1e9:
                    print(due, late, file=file)

    async def _get_ready(self, locks: Locks) -> None:
        """Acquire a lock of its own, say that this process is ready, and wait for the start."""
        ends = time.monotonic() + 60
        while True:
            try:
                keys = [f"ready:{self.name}:{number}" for number in range(self.contestant.several)]
                held = await locks.acquire(keys, self.job.ttl, 30_000, auto_extend=False)
                await held.release()
                break
            except (NotAcquired, NotHeld):
                if time.monotonic() > ends:
                    raise
        (self.folder / f"{self.name}.ready").touch()
        start = self.folder / "until"
        while not start.exists():  # noqa: ASYNC110 - another process makes it
            await asyncio.sleep(0.005)
        self.until = int(start.read_text())

    def time_left(self) -> float:
        """Return the seconds to the end of the run."""
        return (self.until - now()) / 1e9

    def next_value(self) -> int:
        """Return a value that nobody has written."""
        return next(self._values)

    def stall(self, _signal: int, _frame: FrameType | None) -> None:
        """Block the event loop."""
        time.sleep(self.job.stall)

    def fork(self, _signal: int, _frame: FrameType | None) -> None:
        """Fork in the next body."""
        self.must_fork = True


def other_tasks() -> list[str]:
    """Return the names of all tasks but the running one, without numbers."""
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    return sorted(task.get_name().rstrip("0123456789") for task in tasks)


def open_files() -> int:
    """Return how many files this process has open."""
    return len(os.listdir("/proc/self/fd"))  # noqa: PTH208 - counted, not used as paths


Work = Coroutine[Any, Any, None]


class Task:
    """One client: it does one operation at a time."""

    def __init__(self, worker: Worker, locks: Locks, client: Client, number: int) -> None:
        self.worker = worker
        self.job = worker.job
        self.contestant = worker.contestant
        self.locks = locks
        self.client = client
        self.store = worker.store
        self.random = random.Random(f"{self.job.seed} {client.name}")
        keys, several = self.job.keys, self.contestant.several
        # A task that waits for one key would not be there for another, so each has its own.
        self.keys = [keys[(number + i) % len(keys)] for i in range(several)]

    async def run(self) -> None:
        """Acquire, work and release until the run ends; cancel some of these turns."""
        job = self.job
        while (left := self.worker.time_left()) > LEAST_LEFT:
            began = time.monotonic()
            wait = min(job.wait, int(left * 1000))
            if job.cancel and self.random.random() < job.cancel:
                await self._cancelled_turn(self.random.choice((0, wait, wait)))
            else:
                await self._turn(wait)
            if job.rest:
                await asyncio.sleep(self.random.uniform(0, job.rest))
            if job.pace:
                again_at = began + self.random.uniform(0, job.pace)
                await asyncio.sleep(max(0.0, again_at - time.monotonic()))

    async def _turn(self, wait: int) -> None:
        """Acquire, work and release."""
        job, kind = self.job, self.contestant
        others: dict[str, object] = {"permits": kind.permits} if kind.permits else {}
        if "guard" in kind.abilities:
            others["guarded"] = True
        if kind.keeps:
            others["keeps"] = kind.keeps
        shared = kind.reads > 0 and self.random.random() < kind.reads
        acquire = self.locks.acquire_shared if shared else self.locks.acquire
        pending = self.client.invoke(
            "acquire",
            keys=self.keys,
            fair=kind.fair,
            shared=shared,
            fencing=kind.fencing and not shared,
            observed="report" in kind.abilities,
            ttl=job.ttl,
            wait=wait,
            **others,
        )
        try:
            held = await acquire(self.keys, job.ttl, wait, auto_extend=job.auto_extend)
        except asyncio.CancelledError:
            pending.info("cancelled")
            raise
        except NotAcquired as error:
            pending.fail(str(error))
            await asyncio.sleep(0.02)
            return
        pending.ok(lease=held.id, until=held.until or now(), token=held.token, **permit_of(held))
        await Section(self, held, self.keys, shared=shared).run()

    async def _cancelled_turn(self, wait: int) -> None:
        """Take a turn in a task that is cancelled once or twice, perhaps before it has begun."""
        turn = asyncio.create_task(self._limited_turn(wait))
        for _ in range(self.random.choice((1, 1, 1, 2))):
            match self.random.randrange(6):
                case 0:
                    pass  # in the same turn of the loop
                case 1:
                    await asyncio.sleep(0)
                case _:
                    await asyncio.sleep(self._moment())
            turn.cancel()
        (outcome,) = await asyncio.gather(turn, return_exceptions=True)
        if outcome is not None and not isinstance(outcome, asyncio.CancelledError | TimeoutError):
            raise outcome

    async def _limited_turn(self, wait: int) -> None:
        """Take a turn under one of the usual kinds of time limit, or without one."""
        match self.random.randrange(4):
            case 0:
                async with asyncio.timeout(self._moment()):
                    await self._turn(wait)
            case 1:
                # It cancels again at each await after its time is over.
                with anyio.move_on_after(self._moment()):
                    await self._turn(wait)
            case 2:
                await asyncio.wait_for(self._turn(wait), self._moment())
            case _:
                await self._turn(wait)

    def _moment(self) -> float:
        return self.random.uniform(0, LONGEST_MOMENT)

    async def adopt(self) -> None:
        """Adopt leases that other processes hand over, one after another."""
        worker = self.worker
        while (left := worker.time_left()) > 0:
            await asyncio.sleep(min(LOOK_FOR_LEASES, left))
            for path in (worker.folder / "handover").glob("*.lease"):
                taken = path.with_suffix(f".{worker.name}")
                with contextlib.suppress(FileNotFoundError):
                    if not path.name.startswith(f"{worker.name}-"):
                        path.rename(taken)
                        await self._adopt(json.loads(taken.read_text()))

    async def _adopt(self, handed: dict[str, Any]) -> None:
        exporter, keys = handed["from"], handed["keys"].split()
        observed = "report" in self.contestant.abilities
        facts = {"from": exporter, "keys": keys, "observed": observed, "ttl": self.job.ttl}
        if self.contestant.permits:
            facts |= {"permits": self.contestant.permits, "permit": handed["permit"]}
        pending = self.client.invoke("adopt", **facts)
        try:
            held = await self.locks.adopt(handed["text"])
        except NotAcquired as error:
            pending.fail(str(error))
            return
        until = held.until or now()
        facts = {"from": exporter, "lease": held.id, "until": until, "token": held.token}
        pending.ok(**facts, **permit_of(held))
        await Section(self, held, keys, adopted=True).run()

    async def force(self) -> None:
        """Release keys by force, also those that others hold."""
        while (left := self.worker.time_left()) > 1:
            await asyncio.sleep(min(left, self.random.expovariate(self.job.force)))
            key, permits = self.random.choice(self.job.keys), self.contestant.permits
            permit = self.random.randrange(permits) if permits else None
            which = {"permits": permits, "permit": permit} if permits else {}
            pending = self.client.invoke("force_release", keys=[key], **which)
            try:
                await self.locks.force_release(key, permit)
            except NotAcquired as error:
                pending.info(str(error))
            else:
                pending.ok(keys=[key])


def permit_of(held: Held) -> dict[str, int]:
    """Return the permit of a lease as a fact for its history, if it has one."""
    return {} if held.permit is None else {"permit": held.permit}


class Section:
    """What one client does with one lease."""

    def __init__(
        self,
        task: Task,
        held: Held,
        keys: Sequence[str],
        *,
        shared: bool = False,
        adopted: bool = False,
    ) -> None:
        self.shared = shared
        self.adopted = adopted
        self.task = task
        self.job = task.job
        self.client = task.client
        self.held = held
        self.keys = keys
        # Each permit has its own tokens, so the holders of one share a register.
        self.registers = [
            key if held.permit is None else numbered(key, held.permit) for key in keys
        ]
        self.random = task.random
        self.able = task.contestant.abilities
        self.over = False
        """Whether the holder knows that the lease is over."""
        self._released = False
        held.on_extended = self._extended

    async def run(self) -> None:
        """
        Read, work, write, and release or hand over; if cancelled, release.

        A reader reads a second time instead of writing, and hands nothing over.
        """
        if self.task.worker.must_fork:
            self._fork()
        try:
            await (self._guarded() if "guard" in self.able else self._run())
        except asyncio.CancelledError:
            # A release that was cancelled is not repeated: the library completes it.
            if not self._released:
                await self._release()
            raise

    def _seconds(self) -> float:
        """Return how long this body is."""
        chance, job = self.random, self.job
        extended = job.auto_extend and "auto_extend" in self.able
        if chance.random() < job.long:
            # Without extensions the holder has to be done well within the ttl.
            return chance.uniform(*((1.2, 2.2) if extended else (0.3, 0.7))) * job.ttl / 1000
        return chance.uniform(*job.body)

    async def _run(self) -> None:
        chance, job = self.random, self.job
        seconds = self._seconds()
        extends = "extend" in self.able and chance.random() < job.extend
        leaves = not self.shared and "adopt" in self.able and chance.random() < job.handover
        counters = await self._look()
        works = await self._works(seconds) and (not extends or await self._extends(self.held))
        if works and (self.adopted or "again" not in self.able or await self._goes_in()):
            await self._act(counters)
        if leaves and self._is_valid() and not self.over:
            self._hand_over()
        elif not self.over or "notify" not in self.able:
            await self._release()
        if job.checks and "notify" in self.able:
            self._asks_again()

    async def _guarded(self) -> None:
        """Write again and again, without a look at the lease, until the library cancels that."""
        release: Pending | None = None
        try:
            async with self.held.guard():
                with anyio.CancelScope(shield=self.job.misuse):
                    await self._write_on(self._seconds())
                self._released = True
                release = self.client.invoke("release", lease=self.held.id)
        except NotHeld as error:
            if release is None:
                self._lost(str(error))
            else:
                release.fail(str(error), lease=self.held.id)
        else:
            if release is not None:
                release.ok(lease=self.held.id)

    async def _write_on(self, seconds: float) -> None:
        ends = now() + int(seconds * 1e9)
        counters = await self._look()
        while (left := (ends - now()) / 1e9) > 0:
            for key in self.registers:
                if key in counters:
                    counters[key] += 1
                    await self._add(key, counters[key])
                else:
                    await self._write(key)
            await asyncio.sleep(min(left, WRITES_EVERY))

    async def _goes_in(self, depth: int = 2) -> bool:
        """
        Acquire the lock again in inner blocks, and leave them in order.

        Return whether the lease is valid then.
        """
        chance = self.random
        try:
            async with self.held.again() as inner:
                await asyncio.sleep(chance.uniform(0, INSIDE))
                if chance.random() < self.job.extend:
                    await self._extends(inner)
                if depth > 1 and chance.random() < 0.5:
                    await self._goes_in(depth - 1)
                if self.job.misuse:
                    await self.held.release()
        except NotHeld as error:
            if not self.over:
                self._lost(str(error))
        if self.job.misuse:
            await asyncio.sleep(INSIDE)
        return self._is_valid()

    async def _look(self) -> dict[str, int]:
        """Return the counters, where there are some; a reader reads the registers."""
        for key in self.registers if self.shared else ():
            await self._read(key)
        kind = self.task.contestant
        # What readers saw of a counter would show nothing, and several with a permit may change it:
        # so without a fence a register takes all.
        if kind.fencing or kind.reads or kind.permits:
            return {}
        return {key: await self.task.store.count(key) for key in self.registers}

    async def _act(self, counters: dict[str, int]) -> None:
        """Read again, write, or add, while the lease is valid."""
        for key in self.registers:
            if not self._is_valid():
                break
            if self.shared:
                await self._read(key)
            elif key in counters:
                await self._add(key, counters[key] + 1)
            else:
                await self._write(key)

    async def _works(self, seconds: float) -> bool:
        """Wait, and look at the lease now and then; return whether it is valid in the end."""
        if not self.job.checks:
            await asyncio.sleep(seconds)
            return True
        ends, most = now() + int(seconds * 1e9), self.job.ttl / 5000
        lost = asyncio.ensure_future(self.held.wait_lost()) if "notify" in self.able else None
        try:
            while (left := (ends - now()) / 1e9) > 0 and not self.over:
                if lost is None:
                    await asyncio.sleep(min(left, most))
                else:
                    await asyncio.wait([lost], timeout=min(left, most))
                    if lost.done():
                        self._lost(lost.result())
                if not self.over and left > most:
                    self._is_valid()
        finally:
            if lost is not None:
                lost.cancel()
        return self._is_valid()

    def _is_valid(self) -> bool:
        """Return whether the library calls the lease valid, and record what it promises."""
        if self.over or not self.job.checks:
            return not self.over
        at = now()
        try:
            self.held.ensure_valid()
        except NotHeld as error:
            self._lost(str(error))
            return False
        until = self.held.until or at
        # A library that can't be asked says nothing of a lease that has expired.
        if until >= at:
            self.client.held(self.held.id, until, at=at)
        return True

    def _asks_again(self) -> None:
        """Record what the library promises of a lease that it has ended: nothing is right."""
        at = now()
        with contextlib.suppress(NotHeld):
            self.held.ensure_valid()
            self.client.held(self.held.id, self.held.until or at, at=at)

    def _extended(self) -> None:
        """Record the promise of an extension, also of one that the library made by itself."""
        at = now()
        # In another thread the release may have begun: then what is known from here on is nothing.
        if not (self.over or self._released) and (until := self.held.until):
            self.client.held(self.held.id, until, at=at)

    def _lost(self, why: str) -> None:
        self.over = True
        self.client.lost(self.held.id, why)

    async def _extends(self, held: Held) -> bool:
        """Extend the lease by *held*, which is the outer one or an inner one."""
        lease, ttl = self.held.id, self.job.ttl
        pending = self.client.invoke("extend", lease=lease, ttl=ttl)
        try:
            await held.extend(ttl)
        except NotHeld as error:
            pending.fail(str(error), lease=lease)
            # The error ends the body of a holder that can't ask whether its lease is valid yet.
            return "check" in self.able and self._is_valid()
        pending.ok(lease=lease, until=self.held.until or now())
        return True

    async def _write(self, key: str) -> None:
        store, token, value = self.task.store, self.held.token, self.task.worker.next_value()
        if self.random.random() < 0.3:
            await self._read(key)
        lease = self.held.id
        pending = self.client.invoke("write", key=key, value=value, token=token, lease=lease)
        if await store.write(key, value, token or 0):
            pending.ok()
        else:
            pending.fail("stale")

    async def _read(self, key: str) -> None:
        reading = self.client.invoke("read", key=key, lease=self.held.id)
        found, highest = await self.task.store.read(key)
        reading.ok(key=key, value=found, token=highest)

    async def _add(self, key: str, value: int) -> None:
        pending = self.client.invoke("add", key=key, lease=self.held.id)
        await self.task.store.set(key, value)
        pending.ok(key=key, value=value)

    async def _release(self) -> None:
        self._released = True
        pending = self.client.invoke("release", lease=self.held.id)
        try:
            await self.held.release()
        except NotHeld as error:
            pending.fail(str(error), lease=self.held.id)
        else:
            pending.ok(lease=self.held.id)

    def _hand_over(self) -> None:
        worker, lease = self.task.worker, self.held.id
        try:
            text = self.held.export()
        except NotHeld as error:
            self._lost(str(error))
            return
        handed: dict[str, Any] = {"from": lease, "keys": " ".join(self.keys), "text": text}
        handed |= permit_of(self.held)
        path = worker.folder / "handover" / f"{worker.name}-{unique()}"
        path.write_text(json.dumps(handed))
        path.rename(path.with_suffix(".lease"))

    def _fork(self) -> None:
        """Fork; the child never returns."""
        worker = self.task.worker
        worker.must_fork = False
        worker.forks += 1
        if os.fork() == 0:
            code = 1
            try:
                self._be_child(f"{worker.name}f{worker.forks}")
                code = 0
            except BaseException:
                logging.getLogger(__name__).exception("in a forked child")
                raise
            finally:
                os._exit(code)

    def _be_child(self, name: str) -> None:
        """Try to use the inherited lease, then work as a client of its own."""
        child = Worker(self.job, name)
        # Client 9 is no task: its only operation is the lease that the child may believe in. It
        # does not count as shared, so that it is found beside that of a parent that reads, too.
        kind, job = self.task.contestant, self.job
        facts: dict[str, Any] = {"fair": kind.fair, "fencing": kind.fencing, "ttl": job.ttl}
        if kind.permits:
            facts["permits"] = kind.permits
        pending = child.recorder.client(9).invoke("acquire", keys=self.keys, wait=0, **facts)
        try:
            self.held.ensure_valid()
        except NotHeld as error:
            pending.fail(str(error))
        else:
            until = now() + job.ttl * MS
            facts = {"lease": unique("forked-"), "until": until, "token": self.held.token}
            pending.ok(**facts, **permit_of(self.held))

        async def work() -> None:
            with contextlib.suppress(NotHeld):
                await self.held.release()  # must not release the lock of the parent
            await child.run()

        asyncio.run(work())


def main(job: Job, name: str) -> None:
    """Work until the run ends."""
    log = logging.getLogger("redlock_aio")
    log.addHandler(logging.FileHandler(Path(job.folder) / f"{name}.log"))
    log.handlers[0].setFormatter(logging.Formatter("%(asctime)s %(message)s"))
    if job.cancel:
        warnings.simplefilter("always")  # also of coroutines never awaited, and sockets not closed
    worker = Worker(job, name)
    signal.signal(signal.SIGUSR1, worker.stall)
    signal.signal(signal.SIGUSR2, worker.fork)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    factory = None
    # Every second process runs on uvloop, where it is installed.
    if sum(map(ord, name)) % 2 and importlib.util.find_spec("uvloop") is not None:
        import uvloop

        factory = uvloop.new_event_loop
    with asyncio.Runner(loop_factory=factory) as runner:
        runner.run(worker.run())
    wait_for_forks()


def wait_for_forks() -> None:
    """
    Wait until the forked children of this process have ended.

    The end of all processes is the end of the run, when what is left is killed: a child in a long
    body would leave its lock, and its place in the queue, as nobody does whom no fault has met.
    """
    with contextlib.suppress(ChildProcessError):
        os.wait()  # for all of them, as SIGCHLD is ignored, and then it fails


if __name__ == "__main__":
    gc.freeze()  # what was imported stays to the end, and the end takes less time
    main(Job.read(Path(sys.argv[1])), sys.argv[2])
