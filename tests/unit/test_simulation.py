"""
The whole library in virtual time: random programs and faults; promises are checked all the time.

A failure names the seed that repeats its run. Run more seeds with, for instance,
``REDLOCK_AIO_SEEDS=0:3000 pytest tests/unit/test_simulation.py``.
"""

import asyncio
import gc
import inspect
import math
import os
import random
import re
import warnings
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field
from typing import Any

import pytest

from redlock_aio import Lease, Lock, LockNotHeldError, Redlock, RedlockError
from redlock_aio._engine.hold.held_lease import HeldLease
from redlock_aio._engine.hold.watchdog import LONGEST_SLEEP
from redlock_aio._engine.wait.fair_queue import IDLE
from redlock_aio._protocol.commands import MARKER
from redlock_aio._rules.fair_ticket import LIVES
from redlock_aio._rules.lease_state import RELEASED
from redlock_aio._rules.quorum import WON
from redlock_aio._rules.timing import DRIFT_FACTOR, forgetting
from redlock_aio.testing import FakeMaster, VirtualTimeLoop

from . import kit

SEEDS = "0:100" if "REDLOCK_AIO_FULL" in os.environ else "0:5"
AT_ONCE, WORKERS = 5, 5
TTLS = (50, 100, 300, 1000, 3000)
LONGEST_TTL = max(TTLS) / 1000
KEPT = (30, 300, 2000)
PROMPT = 1.0
"""Seconds in which a cancelled worker ends, and in which healthy masters have no key left."""

pytestmark = [pytest.mark.promise("S1"), pytest.mark.promise("S2"), pytest.mark.promise("S3")]


class BodyError(Exception):
    """An error that a body raises."""


@dataclass(eq=False)
class Held:
    """One lease with a body."""

    lease: Lease
    guarded: bool
    ends: float
    owner: object
    task: object = field(default_factory=asyncio.current_task)
    over: bool = False


class Simulation:
    """One run: workers that acquire locks in every way, with faults of every kind."""

    def __init__(self, loop: VirtualTimeLoop, seed: int) -> None:
        self.loop = loop
        self.clock = loop.boottime
        self.chance = random.Random(seed)
        self.pick = self.chance.choice
        random.seed(seed)  # the library draws its delays from this generator
        self.broken: list[str] = []
        """The broken promises, each with its time."""
        self.sets: tuple[tuple[str, ...], ...] = (("a",), ("b",))
        if seed % 3 == 2:  # in a third of all runs some locks have several keys
            self.sets = (("a",), ("b",), ("a", "b"), ("c", "b"), ("b", "a", "c"))
        self.holders: dict[str, list[Held]] = {name: [] for name in "abc"}
        self.tokens: dict[str, list[int]] = {name: [0] for name in "abc"}
        """The fencing tokens of each resource, in the order of the leases."""
        self.hung: set[FakeMaster] = set()
        self.away: set[FakeMaster] = set()
        self.late_until = -math.inf
        self.closed_once = self.restarted = False
        self.fair = self.pick((0, 0.5, 1))
        self.fenced = self.pick((0, 0.5, 1))
        self.uses = (self.with_lock, self.with_lease, self.with_finally)
        self.reentrant = self.pick((0, 0.5, 1))
        self.kept = self.pick((0, 0, 0.5))
        self.shared = self.pick((0, 0, 0.5, 0.9))
        self.past: dict[str, set[HeldLease]] = {"a": set(), "b": set(), "c": set()}
        self.faults: tuple[Callable[[], Awaitable[None] | object], ...] = (
            *(self.cancel_a_worker,) * 9,
            *(self.hang, lambda: self.pick(self.faulty).resume()) * 4,
            *(lambda: self.pick(self.masters).cut(), self.stall) * 2,
            lambda: self.pick(self.masters).execute([b"SCRIPT", b"FLUSH"]),
            *(self.suspend, self.suspend, self.kill, self.reopen),
        )

    def must(self, holds: bool, what: str, *seen: object) -> None:
        if not holds:
            self.broken.append(f"{self.loop.time():.4f}: {what}: {seen}")

    async def run(self) -> None:
        self.loop.set_exception_handler(lambda _, context: self.must(False, "reported", context))
        number = self.chance.randint(1, 5)
        latencies = self.chance.choices((0.001, 0.004, 0.03), k=number)
        self.masters = [FakeMaster(f"m{i}", latency=s) for i, s in enumerate(latencies)]
        for master in self.masters:
            master.clock_offset = self.chance.random() * 0.1
        some = self.masters[: (number - 1) // 2]
        self.faulty = some if some and self.chance.random() < 0.6 else self.masters
        # Two programs; one of them closes and opens again.
        longest = max(TTLS)
        self.redlock = Redlock(self.masters, max_ttl=longest)
        self.other = Redlock(self.masters, max_ttl=longest)
        async with AsyncExitStack() as self.stack:
            await self.stack.enter_async_context(self.redlock)
            await self.stack.enter_async_context(self.other)
            self.workers = [asyncio.create_task(self.work()) for _ in range(WORKERS)]
            await self.inject_faults()
            for worker in self.workers:
                await self.cancel(worker)
            await self.recover()
            self.check_nothing_is_left()
        tasks = asyncio.all_tasks()
        self.must(len(tasks) == 1, "tasks are left", tasks)

    async def inject_faults(self) -> None:
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
        # A closed manager leaves keys on masters that it cannot reach, until their ttl ends,
        # and places in queues until they expire.
        await asyncio.sleep(
            PROMPT + IDLE / 2 + (max(LONGEST_TTL, 2 * LIVES / 1000) if self.closed_once else 0)
        )
        if self.kept:
            await asyncio.sleep(max(KEPT) / 1000)
        if self.restarted:  # they vote again
            await asyncio.sleep(forgetting(max(TTLS), factor=DRIFT_FACTOR) + PROMPT)

    async def cancel_a_worker(self) -> None:
        number = self.chance.randrange(WORKERS)
        await self.cancel(self.workers[number])
        self.workers[number] = asyncio.create_task(self.work())

    async def cancel(self, worker: asyncio.Task[None]) -> None:
        worker.cancel()
        await asyncio.wait([worker], timeout=PROMPT)
        self.must(worker.cancelled(), "did not end as cancelled", worker)

    def hang(self) -> None:
        master = self.pick(self.faulty)
        master.hang()
        self.hung.add(master)

    def stall(self) -> None:
        self.loop.stall(self.chance.random())
        # All timers that are due run in one turn: a body may run one step before its
        # cancellation.
        self.late_until = max(self.late_until, self.loop.time())

    def suspend(self) -> None:
        """Suspend the machine of the programs; the masters' time continues."""
        seconds = self.chance.random() * self.pick((0.1, 3))
        self.loop.suspend(seconds)
        for master in self.masters:
            master.clock_offset += seconds
            for key, (value, until) in master._keys.items():
                master._keys[key] = (value, until - seconds)
        self.late_until = max(self.late_until, self.loop.time() + LONGEST_SLEEP)

    def kill(self) -> None:
        # The master may restart at once: the restart guard keeps it from voting.
        master = self.pick(self.faulty)
        if master not in self.away:
            master.kill()
            self.away.add(master)
            self.loop.call_later(self.pick((0, 0.1, LONGEST_TTL)), self.bring_back, master)

    def bring_back(self, master: FakeMaster) -> None:
        if master in self.away:
            self.away.remove(master)
            master.restart()
            self.restarted = True

    async def reopen(self) -> None:
        self.closed_once = True
        with suppress(TimeoutError):
            async with asyncio.timeout(self.pick((None, 0, 0.002))):
                await self.redlock.aclose()
        await asyncio.sleep(self.pick((0, 0.02)))
        await self.stack.enter_async_context(self.redlock)

    async def work(self) -> None:
        while True:
            with suppress(RedlockError, BodyError, TimeoutError):
                async with asyncio.timeout(self.pick((None, None, 0.05, 0.5))):
                    await self.pick(self.uses)()
            await asyncio.sleep(self.chance.random() * 0.05)

    def lock(self, outer: dict[str, Any] | None) -> tuple[Lock, dict[str, Any]]:
        options: dict[str, Any] = {
            "ttl": self.pick(TTLS),
            "wait": self.pick((0, 20, 100, 500, None)),
            "auto_extend": self.chance.random() < 0.7,
            "max_hold": self.pick((None, None, 200)),
            "on_lost": self.pick(("cancel", "cancel", "flag")),
            "fair": self.chance.random() < self.fair,
            "fencing": self.chance.random() < self.fenced,
            "hold_at_least": self.pick(KEPT) if self.chance.random() < self.kept else 0,
        }
        options |= self.pick(
            (
                {},
                {"reentrant": self.chance.random() < self.reentrant},
                {"reentrant": True, "owner": self.pick("xy")} if self.reentrant else {},
            )
        )
        if outer is None:
            names, redlock = self.pick(self.sets), self.pick((self.redlock, self.other))
        else:
            names, redlock = outer["names"], outer["redlock"]
        if len(names) == 1 and self.chance.random() < self.shared:
            options |= {"shared": True, "fair": True, "fencing": False, "hold_at_least": 0}
        lock = redlock.lock(*names, **options)
        above = max(max(self.tokens[name]) for name in names)
        options |= {"above": above, "names": names, "redlock": redlock}
        return lock, options

    async def with_lock(self, outer: dict[str, Any] | None = None) -> None:
        lock, options = self.lock(outer)
        async with lock as lease:
            await self.hold(lease, options)

    async def with_lease(self, outer: dict[str, Any] | None = None) -> None:
        lock, options = self.lock(outer)
        async with await lock.acquire() as lease:
            await self.hold(lease, options)

    async def with_finally(self, outer: dict[str, Any] | None = None) -> None:
        lock, options = self.lock(outer)
        lease = await lock.try_acquire()
        if lease is None:
            return
        try:
            await self.hold(lease, options | {"on_lost": "flag"})  # the lease is not guarded here
        finally:
            with suppress(LockNotHeldError):
                await lease.release()

    async def hold(self, lease: Lease, options: dict[str, Any]) -> None:
        ends = self.clock() + (options["max_hold"] or math.inf) / 1000
        holders = self.holders[lease.resources[0]]
        sharers = [held for held in holders if held.lease._hold is lease._hold]
        ends = sharers[0].ends if sharers else ends
        held = Held(lease, options["on_lost"] == "cancel", ends, options.get("owner"))
        for name in lease.resources:
            self.holders[name].append(held)
        self.must(lease.valid, "acquired and not valid", lease)
        if sharers:
            self.check_shared(held, sharers, options)
        else:
            self.check_new(lease, options)
        self.check()
        try:
            await self.body(held, options)
        finally:
            self.check()
            for name in lease.resources:
                self.holders[name].remove(held)

    def check_shared(self, held: Held, sharers: list[Held], options: dict[str, Any]) -> None:
        """Check that all sharers are one task or one owner."""
        self.must(options.get("reentrant", False), "shared and not reentrant", held)
        self.must(held.lease.hold_count == len(sharers) + 1, "not counted", held, sharers)
        ours = [
            other
            for other in sharers
            if other.task is held.task or (held.owner is not None and held.owner == other.owner)
        ]
        self.must(bool(ours), "shared with a stranger", held, sharers)

    def check_new(self, lease: Lease, options: dict[str, Any]) -> None:
        """Check that a lease is new, and that its lock was not kept by *hold_at_least*."""
        if options["fencing"]:
            self.check_token(lease, options["above"])
        past = set().union(*(self.past[name] for name in lease.resources))
        self.must(lease._hold not in past, "had before", lease)
        for hold in past:
            confirmed = hold.released is not None and hold.released.verdict is WON
            if hold.state is RELEASED and confirmed and not self.restarted:
                self.must(self.clock() > hold.keep_until, "kept for another", lease, hold)
        for name in lease.resources:
            self.past[name].add(lease._hold)

    async def body(self, held: Held, options: dict[str, Any]) -> None:
        lease = held.lease
        for _ in range(self.chance.randrange(4)):
            await self.step(held)
            what = self.chance.random()
            if what < 0.3:
                await lease.extend(self.pick((None, 50, max(TTLS))))
                self.must(lease.valid, "extended and not valid", lease)
            elif what < 0.4:
                raise BodyError
            elif what < 0.45:
                await lease.release()
                return
            elif what < 0.45 + self.reentrant / 4:
                with suppress(RedlockError):
                    await self.pick(self.uses)(options)

    async def step(self, held: Held) -> None:
        """Sleep; check that the body does not run on after its lease without the loss."""
        lease, believed = held.lease, held.lease.valid
        await asyncio.sleep(self.chance.random() * 0.2)
        self.check()
        passed = not believed or self.clock() >= lease._hold.deadline
        if passed and self.loop.time() > self.late_until:
            self.must(not held.guarded, "the body runs on", lease)
            self.must(lease.lost.is_set(), "the loss is not set", lease)

    def check(self) -> None:
        for resource, holders in self.holders.items():
            valid = [held for held in holders if held.lease.valid]
            different = {held.lease._hold for held in valid}
            all_read = all(held.lease.shared for held in valid)
            self.must(all_read or len(different) < 2, "two holders", resource, valid)
            for held in valid:
                self.check_valid(resource, held)
        for held in {held for holders in self.holders.values() for held in holders}:
            held.over = not held.lease.valid

    def check_token(self, lease: Lease, above: int) -> None:
        """Check that the token is unique, and higher than all tokens before its request."""
        token = lease.fencing_token
        self.must(token > above, "a lower token than before", lease, token, above)
        for name in lease.resources:
            self.must(token not in self.tokens[name], "the token of another", lease, token)
            self.tokens[name].append(token)

    def check_valid(self, resource: str, held: Held) -> None:
        """Check that a valid lease has a majority, and that no lease becomes valid again."""
        lease, masters = held.lease, self.masters
        # A restarted master must not vote before the lease is over.
        out = {m for m in masters if m in self.away or m.uptime < LONGEST_TTL}
        now = self.loop.time()
        keep = [m for m in masters if m in out or kit.kept_until(m, resource, lease) > now]
        self.must(2 * len(keep) > len(masters), "not with a majority", lease, keep, masters)
        self.must(self.clock() < held.ends, "held for longer than max_hold", lease)
        self.must(not held.over, "was over before", lease)

    def check_nothing_is_left(self) -> None:
        left = [
            key
            for fake in self.masters
            for key, (_, until) in fake._keys.items()
            if self.loop.time() < until
            and key != MARKER
            and not key.startswith((b"redlock_aio:fence:", b"redlock_aio:masters:"))
        ]
        self.must(not left, "keys are left", left)
        for redlock in (self.redlock, self.other):
            self.check_nothing_is_left_of(redlock)

    def check_nothing_is_left_of(self, redlock: Redlock) -> None:
        up, lines = len(self.masters), kit.session(redlock).local_queues.by_key
        self.must(all(line.idle for line in lines.values()), "a task is in a local queue", lines)
        states = [
            re.sub(", master_timeout .* ms", "", repr(redlock)),
            repr(kit.session(redlock).masters),
            *map(repr, kit.session(redlock).links),
        ]
        wanted = [f"<Redlock {up} masters, {up} up, 0 leases>"]
        wanted += [f"<MasterSet of {up}, 0 rounds underway>"]
        wanted += [f"<Master {fake}, up, 0 debts>" for fake in self.masters]
        self.must(states == wanted, "something is left", states)
        pending = [master.pending for master in kit.session(redlock).links]
        # Requests of the guard may be underway: the set of masters, or INFO, CACHING and GETRANGE.
        self.must({0, 1, 3} >= {*pending}, "commands are pending", pending)


def simulate(seed: int) -> list[str]:
    """Return the broken promises of the run with this *seed*."""
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


@pytest.mark.parametrize("seeds", groups(), ids=lambda seeds: f"{seeds.start}:{seeds.stop}")
def test_the_promises_hold_among_all_faults(seeds: range, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("CRITICAL", logger="redlock_aio")
    seed = seeds.start
    try:
        for seed in seeds:
            broken = simulate(seed)
            assert not broken, "\n".join(broken[:10])
    except Exception as error:
        error.add_note(f"alone: REDLOCK_AIO_SEEDS={seed}:{seed + 1} pytest {__file__}")
        raise
