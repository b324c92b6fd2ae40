"""
The whole library in virtual time: random programs, random faults, and what must hold all along.

One number makes a run, and makes the same run again. A failure names it; more
of them are run by, for instance,
``REDLOCK_AIO_SEEDS=0:3000 pytest tests/unit/test_simulation.py``.
"""

import asyncio
import gc
import inspect
import math
import os
import random
import warnings
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from typing import Any

import pytest

from redlock_aio import Lease, Lock, LockNotHeldError, Redlock, RedlockError
from redlock_aio._engine.watchdog import LONGEST_SLEEP
from redlock_aio.testing import FakeMaster, VirtualTimeLoop

SEEDS, AT_ONCE = "0:150", 15
WORKERS = 5
TTLS = (40, 100, 300, 1000, 3000)
LONGEST_TTL = max(TTLS) / 1000
PROMPT = 1.0
"""Seconds in which a cancelled worker has ended, and masters that are well again are clean."""

pytestmark = [pytest.mark.promise("S1"), pytest.mark.promise("S2"), pytest.mark.promise("S3")]


class BodyError(Exception):
    """What a body raises of its own."""


@dataclass(eq=False)
class Held:
    """One lease with a body, as the simulation sees it."""

    lease: Lease
    guarded: bool
    ends: float
    over: bool = False


class Simulation:
    """
    One run: workers that take locks in every way, among faults of every kind.

    What must hold is checked at each acquisition, at each step of each body and
    after each fault; what does not is told in *broken*, with its time.
    """

    def __init__(self, loop: VirtualTimeLoop, seed: int) -> None:
        self.loop = loop
        self.clock = loop.boottime
        self.chance = random.Random(seed)
        self.pick = self.chance.choice
        random.seed(seed)  # the library draws its delays there
        self.broken: list[str] = []
        self.holders: dict[str, list[Held]] = {"a": [], "b": []}
        self.away: set[FakeMaster] = set()
        self.late_until = -math.inf
        self.closed_once = False
        self.uses = (self.with_lock, self.with_lease, self.with_finally)
        self.faults: tuple[Callable[[], Awaitable[None] | object], ...] = (
            *(self.cancel_a_worker,) * 9,
            *(lambda: self.pick(self.faulty).hang(), lambda: self.pick(self.faulty).resume()) * 4,
            *(lambda: self.pick(self.masters).cut(), self.stall) * 2,
            lambda: self.pick(self.masters).execute([b"SCRIPT", b"FLUSH"]),
            *(self.suspend, self.kill, self.reopen),
        )

    # The run.

    async def run(self) -> None:
        self.loop.set_exception_handler(lambda _, context: self.breaks(f"reported: {context}"))
        number = self.chance.randint(1, 5)
        latencies = self.chance.choices((0.001, 0.004, 0.03), k=number)
        self.masters = [FakeMaster(f"m{i}", latency=s) for i, s in enumerate(latencies)]
        some = self.masters[: (number - 1) // 2]
        self.faulty = some if some and self.chance.random() < 0.6 else self.masters
        self.redlocks = [Redlock(self.masters) for _ in range(self.chance.randint(1, 2))]
        async with AsyncExitStack() as self.stack:
            for redlock in self.redlocks:
                await self.stack.enter_async_context(redlock)
            self.workers = [asyncio.create_task(self.work()) for _ in range(WORKERS)]
            await self.go_wrong()
            for worker in self.workers:
                await self.cancel(worker)
            await self.recover()
            self.check_nothing_is_left()
        if asyncio.all_tasks() != {asyncio.current_task()}:
            self.breaks(f"tasks are left: {asyncio.all_tasks()}")

    async def go_wrong(self) -> None:
        for _ in range(self.chance.randrange(35)):
            await asyncio.sleep(self.chance.random() * self.pick((0.01, 0.1, 0.7)))
            done = self.pick(self.faults)()
            if inspect.isawaitable(done):
                await done
            self.check()

    async def recover(self) -> None:
        await asyncio.sleep(self.pick((0, 0, 0.1, 1)))
        for master in self.masters:
            master.resume()
            self.bring_back(master)
        # Who is closed leaves what a master has not heard to its ttl.
        await asyncio.sleep(PROMPT + (LONGEST_TTL if self.closed_once else 0))

    # What goes wrong.

    async def cancel_a_worker(self) -> None:
        number = self.chance.randrange(WORKERS)
        await self.cancel(self.workers[number])
        self.workers[number] = asyncio.create_task(self.work())

    async def cancel(self, worker: asyncio.Task[None]) -> None:
        worker.cancel()
        await asyncio.wait([worker], timeout=PROMPT)
        if not worker.done():
            self.breaks(f"runs on after its cancellation: {worker!r}")
        elif not worker.cancelled():
            self.breaks(f"a worker died of {worker.exception()!r}")

    def stall(self) -> None:
        self.loop.stall(self.chance.random())
        # What was due meanwhile comes in one turn: a body may take one step
        # before it meets its cancellation.
        self.late_until = max(self.late_until, self.loop.time())

    def suspend(self) -> None:
        """Suspend the machine that we run on; the masters' time goes on."""
        seconds = self.chance.random() * self.pick((0.1, 3))
        self.loop.suspend(seconds)
        for master in self.masters:
            for key, (value, until) in master._keys.items():
                master._keys[key] = (value, until - seconds)
        self.late_until = max(self.late_until, self.loop.time() + LONGEST_SLEEP)

    def kill(self) -> None:
        # It stays away until no lease can live by what it has forgotten.
        master = self.pick(self.faulty)
        if master not in self.away:
            master.kill()
            self.away.add(master)
            self.loop.call_later(LONGEST_TTL + 0.001, self.bring_back, master)

    def bring_back(self, master: FakeMaster) -> None:
        if master in self.away:
            self.away.remove(master)
            master.restart()

    async def reopen(self) -> None:
        redlock = self.pick(self.redlocks)
        self.closed_once = True
        with suppress(TimeoutError):
            async with asyncio.timeout(self.pick((None, 0, 0.002))):
                await redlock.aclose()
        await asyncio.sleep(self.pick((0, 0.02)))
        await self.stack.enter_async_context(redlock)

    # What is done meanwhile.

    async def work(self) -> None:
        while True:
            use = self.pick(self.uses)
            patience = self.pick((None, None, 0.05, 0.5))
            with suppress(RedlockError, BodyError, TimeoutError):
                async with asyncio.timeout(patience):
                    await use()
            await asyncio.sleep(self.chance.random() * 0.05)

    def lock(self) -> tuple[Lock, dict[str, Any]]:
        options: dict[str, Any] = {
            "ttl": self.pick(TTLS),
            "wait": self.pick((0, 20, 100, 500, None)),
            "auto_extend": self.chance.random() < 0.7,
            "max_hold": self.pick((None, None, 200)),
            "on_lost": self.pick(("cancel", "cancel", "flag")),
        }
        resource = self.pick(list(self.holders))
        return self.pick(self.redlocks).lock(resource, **options), options

    async def with_lock(self) -> None:
        lock, options = self.lock()
        async with lock as lease:
            await self.hold(lease, options)

    async def with_lease(self) -> None:
        lock, options = self.lock()
        lease = await lock.acquire()
        async with lease:
            await self.hold(lease, options)

    async def with_finally(self) -> None:
        lock, options = self.lock()
        lease = await lock.try_acquire()
        if lease is None:
            return
        try:
            await self.hold(lease, options | {"on_lost": "flag"})  # nothing guards it here
        finally:
            with suppress(LockNotHeldError):
                await lease.release()

    async def hold(self, lease: Lease, options: dict[str, Any]) -> None:
        ends = self.clock() + (options["max_hold"] or math.inf) / 1000
        held = Held(lease, options["on_lost"] == "cancel", ends)
        holders = self.holders[lease.resources[0]]
        holders.append(held)
        self.check()
        try:
            await self.body(held)
        finally:
            self.check()
            holders.remove(held)

    async def body(self, held: Held) -> None:
        lease = held.lease
        for _ in range(self.chance.randrange(4)):
            await self.step(held)
            what = self.chance.random()
            if what < 0.3:
                await lease.extend(self.pick((None, 50, max(TTLS))))
                if not lease.valid:
                    self.breaks(f"extended and not valid: {lease!r}")
            elif what < 0.4:
                raise BodyError
            elif what < 0.45:
                await lease.release()
                return

    async def step(self, held: Held) -> None:
        """Wait, really: whoever is past the end of the lease after that has been told."""
        lease, believed = held.lease, held.lease.valid
        await asyncio.sleep(self.chance.random() * 0.2)
        self.check()
        passed = not believed or self.clock() >= lease._hold.deadline
        if passed and self.loop.time() > self.late_until:
            if held.guarded:
                self.breaks(f"the body runs on: {lease!r}")
            if not lease.lost.is_set():
                self.breaks(f"nobody has told the loss: {lease!r}")

    # What must hold.

    def breaks(self, what: str) -> None:
        self.broken.append(f"{self.loop.time():.4f}: {what}")

    def check(self) -> None:
        for resource, holders in self.holders.items():
            valid = [held for held in holders if held.lease.valid]
            if len(valid) > 1:
                self.breaks(f"{len(valid)} holders of {resource!r}")
            for held in valid:
                self.check_valid(resource, held)
            for held in holders:
                held.over = held not in valid

    def check_valid(self, resource: str, held: Held) -> None:
        """Nobody believes for longer than a majority of the masters does; nothing is revived."""
        token, lease = held.lease.token, held.lease
        keep = [m for m in self.masters if m in self.away or m.keys.get(resource) == token]
        if 2 * len(keep) <= len(self.masters):
            self.breaks(f"{lease!r} is only on {keep} of {self.masters}")
        if self.clock() >= held.ends:
            self.breaks(f"{lease!r} is held for longer than max_hold")
        if held.over:
            self.breaks(f"{lease!r} was over before")

    def check_nothing_is_left(self) -> None:
        for fake in self.masters:
            if fake.keys:
                self.breaks(f"keys are left: {fake!r}")
        up = len(self.masters)
        for redlock in self.redlocks:
            says = [repr(redlock), repr(redlock._fleet), *map(repr, redlock._masters)]
            wanted = [f"<Redlock {up} masters, {up} up, 0 leases>"]
            wanted += [f"<Fleet of {up}, 0 rounds underway>"]
            wanted += [f"<Master {fake}, up, 0 debts>" for fake in self.masters]
            pending = [master.pending for master in redlock._masters]
            if says != wanted or any(pending):
                self.breaks(f"is left: {says}, pending {pending}")


def simulate(seed: int) -> list[str]:
    """Return what went wrong in the run that *seed* makes."""
    loop = VirtualTimeLoop()
    simulation = Simulation(loop, seed)
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        with asyncio.Runner(loop_factory=lambda: loop) as runner:
            runner.run(simulation.run())
        gc.collect()
    return simulation.broken + [str(warning.message) for warning in warned]


def groups() -> list[range]:
    first, last = map(int, os.environ.get("REDLOCK_AIO_SEEDS", SEEDS).split(":"))
    return [range(n, min(n + AT_ONCE, last)) for n in range(first, last, AT_ONCE)]


@pytest.fixture
def only_new_garbage() -> Iterator[None]:
    """Spare the collector all that was there before: it is called after each run."""
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.mark.usefixtures("only_new_garbage")
@pytest.mark.parametrize("seeds", groups(), ids=lambda seeds: f"{seeds.start}:{seeds.stop}")
def test_the_promises_hold_whatever_happens(seeds: range, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("CRITICAL", logger="redlock_aio")
    for seed in seeds:
        alone = f"seed {seed} alone: REDLOCK_AIO_SEEDS={seed}:{seed + 1} pytest {__file__}"
        try:
            broken = simulate(seed)
        except Exception as error:
            error.add_note(alone)
            raise
        assert not broken, "\n".join([alone, *broken[:10]])
