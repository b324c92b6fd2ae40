"""
Runs a plan: the whole library in virtual time, and what came of it.

Programs record what they ask for and what they get, as the clients of the fault matrix do, in a
history in memory. The checker judges that. What only a look inside shows is judged here: whether
a valid lease has a majority of the masters, whether a body runs on after its lease, whether a lock
stays locked for as long as it is kept, whether an inner block shares the lease, whether a cancelled
task ends, whether every program gets its turn in the end, and whether a key, a lease or a task is
left.
"""

import asyncio
import contextlib
import itertools
import logging
import math
import random
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final, Literal
from unittest import mock

from redlock_aio import Lease, Lock, LockLostError, Redlock, RedlockError
from redlock_aio._engine.hold.held_lease import HeldLease
from redlock_aio._engine.hold.watchdog import LONGEST_SLEEP
from redlock_aio._protocol import commands
from redlock_aio._protocol.primitives import Mutex, Permits
from redlock_aio._rules.clock_offsets import Clocks
from redlock_aio._rules.fair_ticket import LIVES
from redlock_aio._rules.lease_state import RELEASED
from redlock_aio._rules.lock_value import SHARED
from redlock_aio._rules.quorum import WON
from redlock_aio._rules.timing import DRIFT_FACTOR, forgetting
from redlock_aio.events import Event, Extended
from redlock_aio.testing import cancelled_at
from redlock_aio.testing._fake_commands import EPOCH

from ..checker import NEEDLESS, verdict
from ..history import NEVER, Fault as Disturbance, History, Operation, numbered
from .network import Clock, Endpoint, Link, Loop, Master
from .plan import CANCELLED, KEPT, KINDS, MAX_TTL, PERMITS, Action, Fault, Plan

QUARANTINE: Final = forgetting(MAX_TTL, factor=DRIFT_FACTOR)
PATIENCE: Final = 90.0
"""Virtual seconds after the last fault in which all actions have ended."""

TURN: Final = QUARANTINE + 15.0
"""Virtual seconds in which each program gets all locks once more when everything works."""

PROMPT: Final = 1.0
"""
Virtual seconds in which a manager has closed, a cancelled task has ended, and healthy masters have
no key left.
"""

LATE: Final = 0.005
"""Seconds by which a timer may be late: the longest turn of a loop here takes no time at all."""

ROUNDING: Final = 1e-6
"""Seconds by which the sum of an instant and a time may differ from the instant that comes."""

FINAL: Final = 1_000
"""The number of the client that takes the last turn of each program."""

CUT: Final = ("hangs", "is mute", "loses replies", "resets")
"""The faults in which a master lives on, and replies are lost or come too late."""

FORGETS: Final = ("restarts", "is flushed")
"""The faults in which a master forgets its keys."""

HARMLESS: Final = {CANCELLED, "forgets scripts", "stands still", "sleeps", "reopens"}
"""The faults of which nothing is left when all actions have ended."""

PERMANENT: Final = (commands.MARKER, commands.DECLARED_SETS, b"redlock_aio:fence:")
"""The keys that stay."""

LIBRARY: Final = logging.getLogger("redlock_aio")


class BodyError(Exception):
    """An error that a body raises."""


@dataclass
class Outcome:
    """What a run has shown."""

    plan: Plan
    broken: list[tuple[str, str]] = field(default_factory=list)
    """The promises that were broken, and how; the earliest look at each comes first."""
    lines: list[tuple[float, str, str]] = field(default_factory=list)
    """The story: when, who, and what."""
    seconds: float = 0.0
    """How much virtual time has passed."""
    sections: int = 0
    """How many leases were granted."""
    faults: Counter[str] = field(default_factory=Counter)
    """How often each fault happened."""

    @property
    def promises(self) -> tuple[str, ...]:
        """The names of the promises that were broken."""
        return tuple(dict.fromkeys(name for name, _ in self.broken))

    def story(self) -> str:
        """Return the plan, all that happened, and what it broke, as text."""
        plan = self.plan
        masters = ", ".join(f"m{n} {ms:g} ms" for n, ms in enumerate(plan.latencies))
        text = [f"seed {plan.seed}: {plan.programs} programs; round trips: {masters}"]
        text += [f"{at:10.6f}  {who:<7} {what}" for at, who, what in self.lines]
        text += [f"BROKEN: {name}: {what}" for name, what in self.broken]
        text.append(
            f"{self.seconds:.1f} s of virtual time, {self.sections} leases, "
            f"{sum(self.faults.values())} faults: "
            + (", ".join(self.promises) if self.broken else "no promise was broken")
        )
        return "\n".join(text)


class World:
    """One run of a plan."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.outcome = Outcome(plan)
        self.clock = Clock()
        self.net = Loop(self.clock)
        self.net.set_exception_handler(self._reported)
        self.history = History(meta={"masters": len(plan.latencies), "began": 0})
        self.fences: dict[str, tuple[int | None, int]] = {}
        """The value and the highest token of each register, as its storage has it."""
        self.counters: Counter[str] = Counter()
        self.values = itertools.count(1)
        self.kept: list[HeldLease] = []
        """The leases whose locks stay locked for a while after their release."""
        self.masters = [Master(f"m{n}", n, self.net) for n in range(len(plan.latencies))]
        for master, offset in zip(self.masters, plan.offsets, strict=True):
            master.clock_offset = offset
        self.out_until = [0.0] * len(self.masters)
        """Until when the keys that each master has lost may be those of valid leases."""
        self.hung_until = [0.0] * len(self.masters)
        self.refuses_until = [0.0] * len(self.masters)
        self.down: set[int] = set()
        self.programs = [Program(self, n) for n in range(plan.programs)]

    # What is recorded.

    def tell(self, who: str, what: str) -> None:
        """Add a line to the story."""
        self.outcome.lines.append((self.clock.now, who, what))

    def must(self, holds: bool, promise: str, what: Callable[[], str] | object) -> None:
        """Record that *promise* is broken unless it *holds*; *what* may be made only then."""
        if not holds:
            text = what() if callable(what) else what
            self.outcome.broken.append((promise, f"at {self.clock.now:.6f}: {text}"))

    def now(self) -> int:
        """Return the time of the history, in ns."""
        return int(self.clock.now * 1e9)

    def _reported(self, _loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        self.must(False, "errors", lambda: str(context))

    # The run.

    def run(self) -> Outcome:
        """Run the plan, and judge it."""
        plan, clock, outcome = self.plan, self.clock, self.outcome
        for fault in plan.faults:
            self.net.call_at(fault.at / 1000, self.begin, fault)
        last = max((fault.at + fault.lasts for fault in plan.faults), default=0) / 1000
        self._all(Program.work, last + PATIENCE, "progress", "not all actions have ended")
        clock.run(lambda: False, max(clock.now, last) + 0.1)
        outcome.seconds = clock.now
        if outcome.faults.keys() <= HARMLESS:  # later even a key that is left has expired
            left = self._left()
            self.must(not left, "keys_left", f"nobody wants a lock, and {left} is there")
        if not outcome.broken:
            self._all(Program.last_turn, clock.now + TURN, "progress", "a lock is not free again")
        self._all(Program.close, clock.now + PROMPT, "progress", "a manager does not close")
        clock.run(lambda: False, clock.now + PROMPT)
        self._judge()
        for program in self.programs:
            program.end()
        for loop in clock.loops:
            loop.close()
        return outcome

    def alive(self) -> list["Program"]:
        """Return the programs that have not died."""
        return [each for each in self.programs if not each.dead]

    def _all(
        self, what: Callable[["Program"], Any], latest: float, promise: str, else_: str
    ) -> None:
        """Run a coroutine in each program that lives, until all have ended."""
        tasks = [(each, each.loop.create_task(what(each))) for each in self.alive()]
        done = self.clock.run(lambda: all(task.done() or each.dead for each, task in tasks), latest)
        self.must(done, promise, lambda: f"{else_}: {[each.name for each in self.alive()]}")
        for each, task in tasks:
            if not each.dead and task.done():
                error = task.exception()
                self.must(error is None, "errors", repr(error))

    def _judge(self) -> None:
        history, outcome = self.history, self.outcome
        history.meta |= {"ended": self.now(), "keys_left": self._left()}
        outcome.sections = sum(
            1 for one in history.operations if one.what == "acquire" and one.end == "ok"
        )
        for each in self.alive():
            left = asyncio.all_tasks(each.loop)
            names = sorted(task.get_name() for task in left)
            self.must(not left, "leaks", f"tasks are left: {names}")
        if history.operations:
            found = verdict(history)
            for name, check in found.checks.items():
                if name != NEEDLESS:
                    outcome.broken += [(name, text) for text in check.broken]

    def _left(self) -> dict[str, list[str]]:
        """
        Return the keys that are left, with their masters, though nothing excuses them.

        The place of a waiter that missed a reply may stay in a queue until it expires: it does not
        know that it was moved there. That delays others as a dead waiter does, and is told in the
        story, but it breaks nothing.
        """
        lost = any(self.outcome.faults[name] for name in CUT)
        left: dict[str, list[str]] = {}
        for master in self.masters:
            for key, (_, until) in master._keys.items():
                permanent = key.startswith(PERMANENT)
                if until <= self._excused() or permanent:
                    continue
                soon = until <= self.clock.now + 2 * LIVES / 1000
                if lost and soon and key.startswith(b"redlock_aio:queue:"):
                    self.tell(master.name, f"a place is left until {until:.6f}: {key.decode()!r}")
                else:
                    left.setdefault(key.decode(), []).append(master.name)
        return left

    def _excused(self) -> float:
        """Return until when keys may be left: those of the dead, and what is kept on purpose."""
        now, faults = self.clock.now, self.outcome.faults
        kept = any(KINDS[each.kind].get("hold_at_least") for each in self.plan.actions)
        # A manager that closes leaves what it has on masters that it can't reach.
        gone = faults["dies"] or faults["reopens"]
        return max(
            now + max(MAX_TTL, 2 * LIVES) / 1000 if gone else now,
            now + KEPT / 1000 if kept else now,
        )

    # The faults, in the loop of the masters.

    def begin(self, fault: Fault) -> None:
        """Begin *fault*."""
        if fault.of_program:
            happened = self._disturb(self.programs[fault.targets[0]], fault)
            who = f"p{fault.targets[0]}"
        else:
            for number in fault.targets:
                self._break(self.masters[number], number, fault)
            happened, who = True, ",".join(f"m{number}" for number in fault.targets)
        if happened:
            self.outcome.faults[fault.name] += 1
            those = (
                "".join(f" m{number}" for number in fault.targets[1:]) if fault.of_program else ""
            )
            cut = f" from{those}" if those else ""
            lasts = f" for {fault.lasts} ms" if fault.name not in MOMENTS else ""
            self.tell(who, f"-- {fault.name}{cut}{lasts}")

    def _break(self, master: Master, number: int, fault: Fault) -> None:
        net, lasts = self.net, fault.lasts / 1000
        until = self.clock.now + lasts
        links = [program.links[number] for program in self.programs]
        match fault.name:
            case "hangs":
                self.hung_until[number] = max(self.hung_until[number], until)
                master.hang()
                net.call_at(until, self._resume, master, number)
            case "is mute" | "loses replies":
                for link in links:
                    link.replies_from = max(link.replies_from, until)
                if fault.name == "loses replies":
                    net.call_at(until, master.cut)
            case "resets":
                master.cut()
            case "restarts":
                if number not in self.down:
                    self.down.add(number)
                    self.out_until[number] = math.inf
                    self.hung_until[number] = 0.0
                    master.kill()
                    net.call_at(until, self._restart, master, number)
            case "is flushed":
                self.out_until[number] = max(self.out_until[number], self.clock.now + QUARANTINE)
                master.flush()
            case "refuses":
                self.refuses_until[number] = max(self.refuses_until[number], until)
                master.error = "OOM command not allowed when used memory > 'maxmemory'."
                net.call_at(until, self._accept, master, number)
            case "forgets scripts":
                master.execute([b"SCRIPT", b"FLUSH"])
            case name:
                raise ValueError(f"there is no fault {name!r}")

    def _resume(self, master: Master, number: int) -> None:
        if self.clock.now + ROUNDING >= self.hung_until[number] and master._alive:
            master.resume()

    def _restart(self, master: Master, number: int) -> None:
        self.down.discard(number)
        self.out_until[number] = self.clock.now + QUARANTINE
        master.restart()

    def _accept(self, master: Master, number: int) -> None:
        if self.clock.now + ROUNDING >= self.refuses_until[number]:
            master.error = ""

    def _disturb(self, program: "Program", fault: Fault) -> bool:
        """Let *fault* happen to a program; return whether it lives."""
        if program.dead:
            return False
        loop, lasts = program.loop, fault.lasts / 1000
        until = self.clock.now + lasts
        match fault.name:
            case "stands still" | "sleeps":
                if loop.still_until > self.clock.now:
                    return False
                loop.still_until = until
                late_until = until + LATE
                if fault.name == "sleeps":
                    loop.asleep += lasts
                    late_until += LONGEST_SLEEP
                program.late_until = max(program.late_until, late_until)  # of an earlier sleep
                # A loop that goes on finds its timers late: it may be told so in that turn.
                self.history.faults.append(
                    Disturbance(
                        "stall", fault.name, program.name, self.now(), int(program.late_until * 1e9)
                    )
                )
            case "is cut off":
                for number in fault.targets[1:] or range(len(self.masters)):
                    link = program.links[number]
                    link.requests_from = max(link.requests_from, until)
                    link.replies_from = max(link.replies_from, until)
            case "dies":
                if len(self.alive()) == 1:
                    return False
                program.die()
            case "reopens":
                if not program.opened:
                    return False
                loop.create_task(program.reopen())
            case name:
                raise ValueError(f"there is no fault {name!r}")
        return True


MOMENTS: Final = {"resets", "is flushed", "forgets scripts", "dies", "reopens"}
"""The faults that take no time."""


class Program:
    """One process, with its manager and its tasks."""

    def __init__(self, world: World, number: int) -> None:
        self.world = world
        self.name = f"p{number}"
        self.loop = Loop(world.clock)
        self.loop.set_exception_handler(self._reported)
        plan = world.plan
        self.links = [
            Link(self.loop, ms / 1000,
                 random.Random(plan.seed * 100 + number * 10 + m) if plan.jitter else None)
            for m, ms in enumerate(plan.latencies)
        ]  # fmt: skip
        masters = [Endpoint(m, link) for m, link in zip(world.masters, self.links, strict=True)]
        self.redlock = Redlock(masters, max_ttl=MAX_TTL, name=self.name, listener=self._on_event)
        self.dead = False
        self.opened = False
        self.late_until = 0.0
        """Until when its timers may be late, because it stood still."""
        self.held: dict[str, Section] = {}
        """Its leases, by their fingerprint."""
        self.numbers: Counter[int] = Counter()
        self.actions: dict[int, list[Action]] = {}
        for action in plan.actions:
            if action.program == number:
                self.actions.setdefault(action.task, []).append(action)

    def _reported(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        if not self.dead:
            self.world._reported(loop, context)

    def _on_event(self, event: Event) -> None:
        if isinstance(event, Extended) and (section := self.held.get(event.fingerprint)):
            section.extended()

    async def work(self) -> None:
        """Do all actions."""
        await self._open()
        tasks = [self.loop.create_task(self._task(n, each)) for n, each in self.actions.items()]
        if tasks:
            await asyncio.gather(*tasks)

    async def _open(self) -> None:
        await self.redlock.__aenter__()
        self.opened = True

    async def _task(self, number: int, actions: list[Action]) -> None:
        for action in actions:
            await asyncio.sleep(action.rest / 1000)
            doing = Section(self, number, action).run()
            if action.cancelled is not None:
                self.world.outcome.faults[CANCELLED] += 1
                doing = cancelled_at(action.cancelled, doing, when=CANCELS[action.block])
            task = self.loop.create_task(doing)
            if action.stopped is not None:
                await self._stop(task, action)
            await asyncio.wait([task])
            if not task.cancelled() and (error := task.exception()) is not None:
                self.world.must(False, "errors", repr(error))

    async def _stop(self, task: asyncio.Task[None], action: Action) -> None:
        """Cancel *task* when its *action* says so, unless it has ended."""
        await asyncio.wait([task], timeout=(action.stopped or 0) / 1000)
        if task.done():
            return
        world, began = self.world, self.world.clock.now
        world.outcome.faults[CANCELLED] += 1
        task.cancel()
        await asyncio.wait([task], timeout=PROMPT)
        late = began <= self.late_until
        world.must(task.done() or late, "progress", "a cancelled task does not end")
        # The error of a release takes the place of the cancellation, and a block raises none.
        cancelled = task.cancelled() or not (task.done() and action.block)
        world.must(cancelled, "errors", "a cancelled task did not end as cancelled")

    async def last_turn(self) -> None:
        """Get all locks of the run together, and a permit: nothing may be left in the way."""
        kinds = {each.kind for each in self.world.plan.actions}
        names = sorted({n for each in self.world.plan.actions for n in each.names} - {"s"})
        if names:
            await self._last("several, fenced", tuple(names))
        if "permit" in kinds:
            await self._last("permit", ("s",))

    async def _last(self, kind: str, names: tuple[str, ...]) -> None:
        action = Action(0, FINAL, kind, names, rest=0, ttl=MAX_TTL, wait=None, hold=1)
        await Section(self, FINAL, action).run()

    async def close(self) -> None:
        """Close the manager, which has nothing to do any more."""
        left = self.redlock.statistics()
        self.world.must(not left.leases and not left.waiters, "leaks", lambda: f"{left}")
        await self.redlock.aclose()

    async def reopen(self) -> None:
        """Close the manager, and open it again."""
        self.opened = False
        for section in self.held.values():  # it ends them all
            section.ended(section.invoke("release", lease=section.id), "info", "closed")
        await self.redlock.aclose()
        # Of several that have waited in a program that stood still, the last one opens it.
        with contextlib.suppress(RedlockError):
            await self._open()

    def die(self) -> None:
        """End without any warning."""
        self.dead = True
        self.loop.still_until = math.inf
        for master, link in zip(self.world.masters, self.links, strict=True):
            master.leave(link)

    def end(self) -> None:
        """Let the tasks of a process that has died end, so that Python does not complain."""
        if (left := asyncio.all_tasks(self.loop)) or self.dead:
            if not self.dead:
                self.die()
            self.loop.still_until = 0.0
            for _ in range(10):
                for task in left:
                    task.cancel()
                for _ in range(20):
                    self.loop.step()
                if not (left := asyncio.all_tasks(self.loop)):
                    return


CANCELS: Final[dict[bool, Literal["waiting", "answered"]]] = {True: "waiting", False: "answered"}


class Section:
    """One action: an acquisition, and what is done under its lease."""

    def __init__(self, program: Program, task: int, action: Action) -> None:
        self.program = program
        self.world = program.world
        self.action = action
        self.client = f"{program.name}/{task}"
        self.task = task
        self.options = KINDS[action.kind]
        self.shared = bool(self.options.get("shared"))
        self.lease: Lease | None = None
        self.id = ""
        self.registers: tuple[str, ...] = action.names
        self.known = 0
        """Until when the last promise reaches, in ns."""
        self.ends = math.inf
        """When *max_hold* ends the lease."""

    # What is recorded.

    def invoke(self, what: str, **facts: Any) -> Operation:
        """Record the begin of an operation."""
        number = self.program.numbers[self.task]
        self.program.numbers[self.task] += 1
        one = Operation(self.client, number, what, self.world.now(), **facts)
        self.world.history.operations.append(one)
        return one

    def ended(self, one: Operation, end: Any, why: str = "") -> None:
        """Record the end of an operation."""
        one.ended_at, one.end, one.why = self.world.now(), end, why

    def left(self, release: Operation | None, end: Any, why: str = "") -> None:
        """Record the end of the release, if there was one."""
        if release is not None:
            self.ended(release, end, why)

    def tell(self, what: str) -> None:
        """Add a line to the story."""
        self.world.tell(self.client, what)

    @property
    def until(self) -> int:
        """The instant up to which the library promises the lease, in ns."""
        return int(self.lease._hold.deadline * 1e9) if self.lease is not None else 0

    def extended(self) -> None:
        """Record an extension."""
        if self.lease is not None and self.lease.valid:
            self.promise()

    def promise(self) -> None:
        """Record that the lease was found valid."""
        in_time = self.world.clock.now < self.ends
        self.world.must(in_time, "expiry", lambda: f"{self.id} is held for longer than max_hold")
        one = self.invoke("held", lease=self.id, until=self.until)
        self.ended(one, "ok")
        self.known = one.until

    # What is done.

    def lock(self, ttl: int) -> Lock:
        """Return the lock."""
        action, options = self.action, dict[str, Any](self.options)
        if action.again:
            options["reentrant"] = True
        return self.program.redlock.lock(
            *action.names, ttl=ttl, wait=action.wait, auto_extend=action.auto_extend,
            max_hold=action.max_hold, on_lost="cancel" if action.block else "flag", **options
        )  # fmt: skip

    async def run(self) -> None:
        """Acquire the lock, hold it, and release it."""
        action, world = self.action, self.world
        release: Operation | None = None
        self.tell(f"{action}")
        options, lock = self.options, self.lock(action.ttl)
        one = self.invoke(
            "acquire", keys=action.names, shared=self.shared, ttl=action.ttl,
            fencing=bool(options.get("fencing")), permits=options.get("permits", 0),
            observed=True,
        )  # fmt: skip
        try:
            if action.block:
                async with await lock.acquire() if action.apart else lock as lease:
                    try:
                        self.granted(one, lease)
                        await self.hold()
                    finally:
                        release = self.leaves()
            else:
                lease = await lock.acquire()
                try:
                    self.granted(one, lease)
                    await self.hold()
                finally:
                    release = self.leaves()
                    await lease.release()
        except BodyError:
            self.left(release, "ok")
            self.tell("left with its error")
        except RedlockError as error:
            if self.lease is None:
                self.ended(one, "fail", type(error).__name__)
            self.left(release, "fail", type(error).__name__)
            self.tell(f"{type(error).__name__}: {brief(error)}")
            world.must(
                self.lease is None or isinstance(error, LockLostError) or not self.lease.valid,
                "errors", f"{self.client}: {error!r}",
            )  # fmt: skip
        except asyncio.CancelledError:
            if one.ended_at == NEVER:
                self.ended(one, "info", "cancelled")
            self.left(release, "info", "cancelled")
            self.tell("was cancelled")
            raise
        else:
            self.left(release, "ok")
            self.tell("released")

    def granted(self, one: Operation, lease: Lease) -> None:
        """Record the lease."""
        self.lease = lease
        world = self.world
        self.id = f"{self.client}.{one.number}"
        one.lease, one.until, one.permit = self.id, self.until, lease.permit
        one.token = getattr(lease, "fencing_token", None)
        self.known = one.until
        self.ended(one, "ok")
        if lease.permit is not None:
            self.registers = (numbered("s", lease.permit),)
        self.program.held[lease.fingerprint] = self
        token = f", token {one.token}" if one.token else ""
        permit = "" if lease.permit is None else f", permit {lease.permit}"
        self.tell(f"HOLDS until {lease._hold.deadline:.6f}{token}{permit}")
        world.must(lease.valid, "expiry", lambda: f"{self.id} was acquired and is not valid")
        self.ends = world.clock.now + (self.action.max_hold or math.inf) / 1000
        self.check_kept()
        self.check()

    async def hold(self) -> None:
        """Do something under the lease, and look at it now and then."""
        action, lease = self.action, self.lease
        assert lease is not None
        counters = self.look()
        parts = 3 if action.hold > 20 else 1
        for part in range(parts):
            await asyncio.sleep(action.hold / parts / 1000)
            if not self.goes_on():
                return
            if action.extends and part == parts - 1:
                await self.extend(action.extends)
                if not self.goes_on():
                    return
        if action.again:
            await self.again(2)
            if not self.goes_on():
                return
        self.act(counters)
        if action.fails:
            raise BodyError

    async def again(self, count: int) -> None:
        """Acquire the lock again, so that it has *count* holders, and more in the body of that."""
        lease, world = self.lease, self.world
        assert lease is not None
        one = self.invoke("extend", lease=self.id, ttl=MAX_TTL)
        async with self.lock(MAX_TTL) as inner:
            if inner._hold is not lease._hold:  # a new one, which nobody has recorded
                world.must(not lease.valid, "exclusion", f"{self.id} is valid beside {inner}")
                return
            one.until = self.until
            self.ended(one, "ok")
            same = inner.valid and inner.hold_count == count
            world.must(same, "expiry", f"{inner} is number {count} of {self.id}")
            self.tell(f"HOLDS it again until {lease._hold.deadline:.6f}")
            await asyncio.sleep(self.action.hold / 3000)
            if count <= self.action.again:
                await self.again(count + 1)

    def goes_on(self) -> bool:
        """Look at the lease; return whether it is valid."""
        lease, world = self.lease, self.world
        assert lease is not None
        now, late = world.clock.now, world.clock.now <= self.program.late_until
        if now > lease._hold.deadline + LATE and not late:
            told = lease.lost.is_set() and not self.action.block
            world.must(told, "notices", lambda: f"{self.id}: its body runs on after its end")
        try:
            lease.ensure_valid()
        except RedlockError as error:
            self.tell(f"is told: {type(error).__name__}: {brief(error)}")
            if isinstance(error, LockLostError):
                self.ended(self.invoke("lost", lease=self.id, why=type(error).__name__), "ok")
            return False
        self.promise()
        self.check()
        return True

    async def extend(self, ttl: int) -> None:
        """Extend the lease."""
        assert self.lease is not None
        one = self.invoke("extend", lease=self.id, ttl=ttl)
        try:
            await self.lease.extend(ttl)
        except asyncio.CancelledError:
            self.ended(one, "info", "cancelled")
            raise
        except RedlockError as error:
            self.ended(one, "fail", type(error).__name__)
            self.tell(f"extend({ttl}): {type(error).__name__}")
            return
        world = self.world
        valid = self.lease.valid or world.clock.now <= self.program.late_until
        world.must(valid, "expiry", lambda: f"{self.id} was extended and is not valid")
        one.until = self.until
        self.ended(one, "ok")
        self.tell(f"extended to {self.lease._hold.deadline:.6f}")

    def leaves(self) -> Operation:
        """Record that the lease is released."""
        lease = self.lease
        if lease is not None:
            self.program.held.pop(lease.fingerprint, None)
            if lease.lost.is_set():
                self.ended(self.invoke("lost", lease=self.id, why="lost"), "ok")
        return self.invoke("release", lease=self.id)

    def look(self) -> dict[str, int]:
        """Read the counters, or, as a reader, the registers."""
        if self.shared:
            self.read()
        if self.shared or self.options.get("fencing") or self.options.get("permits"):
            return {}
        return {key: self.world.counters[key] for key in self.registers}

    def read(self) -> None:
        """Read the registers."""
        for key in self.registers:
            value, token = self.world.fences.get(key, (None, 0))
            one = self.invoke("read", keys=(key,), lease=self.id, value=value, token=token)
            self.ended(one, "ok")

    def act(self, counters: dict[str, int]) -> None:
        """Write with the token, add to counters, or read again."""
        assert self.lease is not None
        world = self.world
        if self.shared:
            self.read()
        for key, seen in counters.items():
            one = self.invoke("add", keys=(key,), value=seen + 1)
            world.counters[key] = seen + 1
            self.ended(one, "ok")
        for key in self.registers if self.options.get("fencing") else ():
            token, value = self.lease.fencing_token, next(world.values)
            one = self.invoke("write", keys=(key,), value=value, token=token, lease=self.id)
            if token >= world.fences.get(key, (None, 0))[1]:
                world.fences[key] = value, token
                self.ended(one, "ok")
            else:
                self.ended(one, "fail", "stale")

    # What only a look inside shows.

    def check_kept(self) -> None:
        """Check that no lock that a majority keeps was granted, while masters forget none."""
        world, lease = self.world, self.lease
        assert lease is not None
        forgot = any(world.outcome.faults[name] for name in FORGETS)
        for hold in world.kept:
            keeps = hold.state is RELEASED and hold.released and hold.released.verdict is WON
            if keeps and not forgot and {*hold.resources} & {*lease.resources}:
                world.must(
                    world.clock.now > hold.keep_until, "keeping",
                    f"{self.id}: {hold} is kept until {hold.keep_until:.6f}",
                )  # fmt: skip
        if "hold_at_least" in self.options:
            world.kept.append(lease._hold)

    def check(self) -> None:
        """Check all leases: what this one has asked for must not end others."""
        for program in self.world.programs:
            for section in program.held.values():
                if section.lease is not None and section.lease.valid:
                    section.check_majority(section.lease)

    def check_majority(self, lease: Lease) -> None:
        """Check that a majority, with those that forgot it, keeps the lock for all it is valid."""
        world = self.world
        until = lease._hold.deadline
        for name in self.action.names:
            keep = [
                number
                for number, master in enumerate(world.masters)
                if world.clock.now < world.out_until[number]
                or kept_until(master, name.encode(), lease) > until
            ]
            world.must(
                2 * len(keep) > len(world.masters), "exclusion",
                f"{self.id} is valid until {until:.6f}, and only {keep} keep it",
            )  # fmt: skip


def kept_until(master: Master, name: bytes, lease: Lease) -> float:
    """Return when *master* ends the lock of *lease*; minus infinity if it has none."""
    key = name if lease.permit is None else Permits(Mutex(name), PERMITS).permit(lease.permit)
    value, until = master._keys.get(key, (b"", -math.inf))
    token = lease.token.encode()
    if not lease.shared:
        return until if value == token else -math.inf
    shares, _ = master._keys.get(commands.shares_key(name), ({}, 0.0))
    if value != SHARED or not isinstance(shares, dict) or token not in shares:
        return -math.inf
    return min(until, shares[token] / 1000 - EPOCH - master.clock_offset)


def brief(error: BaseException) -> str:
    """Return the text of an error in one line."""
    text = str(error).partition("\n")[0]
    return text if len(text) < 160 else text[:157] + "..."


@contextlib.contextmanager
def determined(plan: Plan) -> Iterator[None]:
    """Let the library draw all random numbers, also those of tokens, from the seed of *plan*."""
    chance, tick, new_time = random.Random(plan.seed), plan.tick, Clocks.new_time
    random.seed(plan.seed)
    level = LIBRARY.level
    LIBRARY.setLevel(logging.CRITICAL)
    patches = (
        mock.patch.object(Clocks, "new_time", lambda *of: new_time(*of) // tick * tick),
        mock.patch("redlock_aio._engine.masters.urandom", chance.randbytes),
        mock.patch("redlock_aio._protocol.tags.urandom", chance.randbytes),
        mock.patch(
            "redlock_aio._engine.wait.fair_queue.token_hex", lambda n: chance.randbytes(n).hex()
        ),
    )
    with contextlib.ExitStack() as stack:
        for patch in patches:
            stack.enter_context(patch)
        try:
            yield
        finally:
            LIBRARY.setLevel(level)


def run(plan: Plan) -> Outcome:
    """Run *plan*. The same plan has the same outcome in every process."""
    with determined(plan):
        return World(plan).run()
