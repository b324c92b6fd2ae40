"""
A machine that draws calls of the public API and faults, in virtual time, beside a model.

`Model` says who holds what, from when until when. Every grant, and the state after every step,
is compared with it. Hypothesis shortens a failing run to the few calls that are needed.
`tests/evidence/test_simulation.py` draws longer programs, in loops of their own.
"""

import asyncio
import math
import os
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import settings, strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    rule,
)

from redlock_aio import (
    Lease,
    LockLostError,
    LockNotAcquiredError,
    LockNotHeldError,
    Redlock,
    RedlockError,
)
from redlock_aio._rules.clock_offsets import Clocks
from redlock_aio._rules.timing import DRIFT_FACTOR, drift, forgetting, validity
from redlock_aio.testing import FakeMaster, VirtualTimeLoop, cancelled_at

from . import kit

# It takes 20 s alone in full, and many times that on a busy machine.
pytestmark = [pytest.mark.promise(f"S{number}") for number in (1, 2, 3, 4, 7)]
pytestmark.append(pytest.mark.timeout(1_800))

EXAMPLES = 100 if "REDLOCK_AIO_FULL" in os.environ else 10
LATENCY = kit.LATENCY
SLOW = 0.2
TTLS = (100, 1_000, 10_000)
MAX_TTL = max(TTLS)
QUARANTINE = forgetting(MAX_TTL, factor=DRIFT_FACTOR)
RECOVERS = 1.0
"""Seconds in which a master that answers again is connected, and clean."""

MARGIN = 0.005
"""Seconds before its deadline at which a lease may be lost: timers are late, never early."""

HEARS_SOON = 0.2
"""Seconds in which a holder that runs hears of a forced release."""

CLOCK_STEP = 0.001
"""Seconds: the deadlines of readers are milliseconds of a master's clock."""

INSTANTS = st.sampled_from([0.0, LATENCY / 2, LATENCY, 1.5 * LATENCY, 2 * LATENCY, 0.01])
"""How much time passes after a call: the next one comes before, between or after its replies."""


class BodyError(Exception):
    """An error that a body raises."""


@dataclass(eq=False)
class Call:
    """One acquisition with its body, or one other call."""

    way: str
    """What was called: "with", "acquire" or "try" for an acquisition."""
    text: str
    leave: asyncio.Future[None]
    client: Redlock
    names: tuple[str, ...] = ()
    options: dict[str, Any] = field(default_factory=dict)
    began: float = 0.0
    alone: bool = False
    """Whether nothing is in the way of this acquisition."""
    lease: Lease | None = None
    ending: bool = False
    """Whether it was told to end: cancelled, or the body or the lease is over."""
    over: bool = False
    """Whether its lease was seen not to be valid."""
    forced: bool = False
    """Whether its lock was released by force."""
    unaware_until: float = -math.inf
    """
    When it must have heard of that. Its program stood still until then: a forced release waits
    for holders that run only, see `docs/how-to/who-holds-it.md`.
    """
    task: asyncio.Task[Any] = field(init=False)

    def __repr__(self) -> str:
        return self.text

    @property
    def valid(self) -> bool:
        return self.lease is not None and self.lease.valid


@dataclass
class Span:
    """A lock that was granted: it is valid until *least* at least, and until *most* at most."""

    least: float
    most: float


def is_reader(call: Call) -> bool:
    return call.lease is not None and call.lease.shared


class Model:
    """Who holds what until when, and the highest fencing token of each resource."""

    def __init__(self) -> None:
        self.spans: dict[str, Span] = {}
        self.fences: dict[str, int] = {}

    def granted(self, call: Call, lease: Lease, now: float) -> None:
        own = validity(lease.ttl, factor=DRIFT_FACTOR)
        extended, ends = call.options["auto_extend"], (call.options["max_hold"] or math.inf) / 1000
        least = min(math.inf if extended else call.began + own, call.began + ends)
        most = min(math.inf if extended else now - LATENCY + own, now + ends)
        self.spans[lease.token] = Span(least, most)

    def extending(self, lease: Lease, ttl: int, now: float) -> None:
        span = self.spans[lease.token]
        span.least = min(span.least, now + validity(ttl, factor=DRIFT_FACTOR))
        span.most = math.inf

    def excuse(self, lease: Lease) -> None:
        """Promise nothing more about how long *lease* is valid at least."""
        self.spans[lease.token].least = -math.inf


class Machine(RuleBasedStateMachine):
    """Programs that acquire locks on the same masters, of which a minority fails at a time."""

    calls: Bundle[Call] = Bundle("calls")

    @initialize(
        masters=st.sampled_from([3, 5]),
        clients=st.integers(1, 3),
        drains=st.booleans(),
        tick=st.sampled_from([1, 100_000]),
    )
    def start(self, masters: int, clients: int, drains: bool, tick: int) -> None:
        """Begin; fencing tokens and places in queues come in steps of *tick* microseconds."""
        new_time = Clocks.new_time
        self.patch = pytest.MonkeyPatch()
        # With long steps, several clients propose the same token one after the other.
        self.patch.setattr(Clocks, "new_time", lambda *args: new_time(*args) // tick * tick)
        self.loop = VirtualTimeLoop()
        self.broken: list[str] = []
        self.loop.set_exception_handler(lambda _, seen: self.must(False, f"reported: {seen}"))
        self.masters = [FakeMaster(f"m{number}", latency=LATENCY) for number in range(masters)]
        self.clients = [self.new_client(f"client{number}") for number in range(clients)]
        self.open = set(self.clients)
        self.tick = tick / 1_000_000
        self.drains = drains
        """Whether at the end each waiter gets its turn; else all are cancelled."""
        self.draining = False
        self.model = Model()
        self.all: list[Call] = []
        self.away: dict[FakeMaster, float] = dict.fromkeys(self.masters, -math.inf)
        """When each master has recovered from its last fault; infinity while it lasts."""
        self.cut_off: set[FakeMaster] = set()
        self.young: dict[FakeMaster, float] = dict.fromkeys(self.masters, -math.inf)
        """When the quarantine of each master is over."""
        self.busy: dict[str, float] = dict.fromkeys("ab", -math.inf)
        """When the last call about each resource has left nothing in the way of others."""
        self.unsteady = -math.inf
        """When something happened last that may change the order of waiters."""
        self.closed_at = -math.inf
        for client in self.clients:
            self.run(client.__aenter__())

    # Time and checks.

    @property
    def now(self) -> float:
        return self.loop.time()

    def run(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        return self.loop.run_until_complete(coroutine)

    def pass_time(self, seconds: float) -> None:
        self.run(asyncio.sleep(seconds))

    def act(self, act: Callable[[], object]) -> None:
        """Call *act* in the loop."""

        async def acting() -> None:
            act()

        self.run(acting())

    def must(self, holds: bool, what: str) -> None:
        if not holds:
            self.broken.append(f"at {self.now:.4f} s: {what}")

    def new_client(self, name: str) -> Redlock:
        return Redlock(self.masters, max_ttl=MAX_TTL, name=name)

    def are_shaky(self) -> bool:
        """Return whether a majority of the masters is away or may not vote."""
        out = [m for m in self.masters if self.now < max(self.away[m], self.young[m])]
        return 2 * len(out) >= len(self.masters)

    def holders(self) -> list[Call]:
        return [call for call in self.all if call.valid]

    def shake(self) -> None:
        """Record that something happened which may end leases or change the order of waiters."""
        self.unsteady = self.now
        if self.are_shaky():
            self.excuse_all()

    def excuse_all(self) -> None:
        for call in self.holders():
            if call.lease is not None:
                self.model.excuse(call.lease)

    # Calls.

    def call(
        self,
        way: str,
        what: str,
        client: Redlock,
        names: str = "",
        options: dict[str, Any] | None = None,
    ) -> Call:
        text = f"<#{len(self.all)} {way} {what} by client{self.clients.index(client)}>"
        return Call(way, text, self.loop.create_future(), client, (*names,), options or {})

    def begin(self, call: Call, running: Coroutine[Any, Any, Any]) -> Call:
        self.all.append(call)
        call.began = self.now
        call.task = self.loop.create_task(self.watch(call, running))
        return call

    async def watch(self, call: Call, running: Coroutine[Any, Any, Any]) -> None:
        """Run a call; check how it ends."""
        held_up = [name for name in call.names if self.now < self.busy[name]]
        call.alone = not held_up and not self.are_shaky() and call.client in self.open
        for name in call.names:
            self.busy[name] = math.inf
        try:
            await running
        except BaseException as error:
            self.must(self.is_expected(call, error), f"{call} ended with {error!r}")
            if not isinstance(error, Exception):
                raise
        else:
            self.must(call.lease is not None or not self.is_owed(call), f"{call} got no lock")
        finally:
            for name in call.names:
                others = [c for c in self.all if name in c.names and c is not call]
                done = all(other.task.done() for other in others)
                self.busy[name] = self.now + RECOVERS if done else math.inf

    def is_owed(self, call: Call) -> bool:
        """Return whether an acquisition can't fail: nobody is in its way."""
        here = self.unsteady < call.began and call.client in self.open and not call.ending
        alone = all(
            other is call or other.began < call.began
            for other in self.all
            if {*other.names} & {*call.names}
        )
        return call.alone and here and alone and not self.are_shaky()

    def is_expected(self, call: Call, error: BaseException) -> bool:
        match error:
            case asyncio.CancelledError() | BodyError():
                return call.ending
            case LockNotAcquiredError():
                waited = call.options.get("wait") is not None
                return call.lease is None and waited and not self.is_owed(call)
            case LockLostError() | LockNotHeldError():
                least = -math.inf
                if call.lease is not None:
                    least = self.model.spans[call.lease.token].least
                return call.ending or self.now >= least - MARGIN or self.are_shaky()
            case RedlockError():
                own = call.options.get("owner") is not None
                return self.closed_at >= call.began or call.client not in self.open or own
        return False

    async def body(self, call: Call, way: str) -> None:
        """Acquire a lock in one of three ways, hold it until the call is told to leave."""
        lock = call.client.lock(*call.names, **call.options)
        if way == "with":
            async with lock as lease:
                self.granted(call, lease)
                await call.leave
            return
        got = await (lock.acquire() if way == "acquire" else lock.try_acquire())
        if got is None:
            return
        self.granted(call, got)
        try:
            await call.leave
        finally:
            call.ending = True
            await got.release()

    def granted(self, call: Call, lease: Lease) -> None:
        others = [
            other
            for other in self.holders()
            if {*other.names} & {*call.names}
            and not (lease.shared and is_reader(other))
            and self.now >= other.unaware_until
        ]
        shared = [other for other in others if other.lease and other.lease.token == lease.token]
        call.lease = lease
        self.must(lease.valid, f"{call} has got a lease that is not valid")
        self.must(others == shared, f"{call} and {others} hold the lock")
        for other in shared:
            same = (call.client, call.options["owner"]) == (other.client, other.options["owner"])
            is_own = same and {*call.names} <= {*lease.resources}
            self.must(is_own and call.options["reentrant"], f"{call} shares the lock of {other}")
        if not shared:
            self.model.granted(call, lease, self.now)
            self.check_order(call)
            if call.options["fencing"]:
                self.check_fence(call, lease)
        else:
            self.model.spans[lease.token].most = math.inf
        forced = any(c.way == "force_release" and not c.task.done() for c in self.all)
        if self.are_shaky() or forced or call.client not in self.open:
            self.model.excuse(lease)
        self.check_keys(call, lease)
        if self.draining and not call.leave.done():
            call.ending = True
            call.leave.set_result(None)

    def check_fence(self, call: Call, lease: Lease) -> None:
        for name in call.names:
            before, token = self.model.fences.get(name, 0), lease.fencing_token
            self.must(token > before, f"{call} has fencing token {token}, after {before}")
            self.model.fences[name] = token

    def check_order(self, call: Call) -> None:
        """
        Check that no fair waiter came earlier, with a margin for a few round trips.

        Waiters whose places are equal come in any order.
        """
        margin = 10 * LATENCY + self.tick
        for other in self.all:
            waits = other.lease is None and not other.ending and other.options.get("fair")
            if (
                waits
                and call.options["fair"]
                and other.names == call.names
                and not other.task.done()
            ):
                earlier = self.unsteady < other.began < call.began - margin
                self.must(not earlier, f"{call} has overtaken {other}")

    # What is drawn: acquisitions, and what their holders do.

    @rule(
        target=calls,
        client=st.integers(0, 2),
        names=st.sampled_from(["a", "b", "ab"]),
        way=st.sampled_from(["with", "acquire", "try"]),
        ttl=st.sampled_from(TTLS),
        wait=st.sampled_from([None, 0, 300]),
        kind=st.sampled_from(
            [{}, {"fair": True}, {"reentrant": True, "owner": "x"}, {"shared": True}]
        ),
        fencing=st.booleans(),
        auto_extend=st.booleans(),
        max_hold=st.sampled_from([None, 500]),
        on_lost=st.sampled_from(["cancel", "flag"]),
        then=INSTANTS,
    )
    def acquire(
        self, client: int, names: str, way: str, kind: dict[str, Any], then: float, **options: Any
    ) -> Call:
        number = client % len(self.clients)
        options |= {"fair": None, "reentrant": False, "owner": None} | kind
        if "shared" in kind:
            names, options["fencing"] = names[:1], False
        if way == "try":
            options["wait"] = 0
        call = self.call(way, f"{names} {kind or ''}", self.clients[number], names, options)
        self.begin(call, self.body(call, way))
        self.pass_time(then)
        return call

    @rule(
        client=st.integers(0, 2),
        names=st.sampled_from(["a", "b", "ab"]),
        kind=st.sampled_from([{}, {"fair": True}]),
        ttl=st.sampled_from([1_000, MAX_TTL]),
        lost=st.sampled_from([None, 0, 1, 2]),
        then=INSTANTS,
    )
    def hand_over(
        self, client: int, names: str, kind: dict[str, Any], ttl: int, lost: int | None, then: float
    ) -> None:
        """Let two clients acquire a lock at one instant; each leaves it soon."""
        options: dict[str, Any] = {"wait": 300, "auto_extend": True, "max_hold": None}
        options |= {
            "on_lost": "cancel",
            "kind": kind,
            "ttl": ttl,
            "fencing": True,
            "way": "with",
            "then": 0.0,
        }
        both = [self.acquire(number, names, **options) for number in (client, client + 1)]
        for call in both:
            self.pass_time(0.01)
            self.leave(call, error=False, lost=lost, then=then)

    @rule(
        client=st.integers(0, 2),
        names=st.sampled_from(["a", "ab"]),
        kind=st.sampled_from([{}, {"fair": True}, {"fencing": True}]),
        nth=st.integers(1, 6),
        when=st.sampled_from(["waiting", "answered"]),
    )
    def cancel_an_acquisition(
        self, client: int, names: str, kind: dict[str, Any], nth: int, when: Any
    ) -> None:
        """Acquire, cancelled at an await; one that awaits less often is released."""
        number = client % len(self.clients)
        options = {"ttl": MAX_TTL, "wait": 300, "fair": False, "fencing": False, "owner": None}
        options |= {"reentrant": False, "auto_extend": True, "max_hold": None} | kind
        call = self.call("cancelled", f"{names} {kind or ''}", self.clients[number], names, options)
        call.ending = True
        call.leave.set_result(None)
        self.begin(call, kit.in_coroutine(cancelled_at(nth, self.body(call, "with"), when=when)))
        # A slow master may give the last vote at the end of the wait; the release awaits it again.
        self.pass_time(0.3 + SLOW + 0.1)
        self.must(call.task.done(), f"{call} goes on")

    @rule(
        call=consumes(calls),
        error=st.booleans(),
        lost=st.sampled_from([None, None, 0, 1, 2]),
        then=INSTANTS,
    )
    def leave(self, call: Call, error: bool, lost: int | None, then: float) -> None:
        """End a body; its release may be lost on the way to one master."""
        if call.lease is not None and not call.leave.done():
            call.ending = True
            self.act(
                lambda: (
                    call.leave.set_exception(BodyError()) if error else call.leave.set_result(None)
                )
            )
        if lost is not None and self.can_fail(self.masters[lost]):
            self.pass_time(LATENCY / 4)
            self.begin_fault(self.masters[lost], "cut")
        self.pass_time(then)

    @rule(call=consumes(calls), then=INSTANTS)
    def cancel(self, call: Call, then: float) -> None:
        call.ending = True
        self.act(call.task.cancel)
        self.pass_time(then)

    @rule(target=calls, call=calls, ttl=st.sampled_from([None, *TTLS]), then=INSTANTS)
    def extend(self, call: Call, ttl: int | None, then: float) -> Call:
        extension = self.call("extend", repr(call), call.client)
        extension.ending = True
        self.begin(extension, self.extending(call, ttl))
        self.pass_time(then)
        return extension

    async def extending(self, call: Call, ttl: int | None) -> None:
        if call.lease is None:
            return
        if call.valid:
            self.model.extending(call.lease, ttl or min(TTLS), self.now)
        await call.lease.extend(ttl)
        self.must(call.valid or call.ending, f"{call} was extended and is not valid")

    @rule(target=calls, call=calls, then=INSTANTS)
    def release(self, call: Call, then: float) -> Call:
        """Release a lease before its body ends."""
        release = self.call("release", repr(call), call.client)
        release.ending = True
        self.begin(release, self.releasing(call))
        self.pass_time(then)
        return release

    async def releasing(self, call: Call) -> None:
        if call.lease is not None:
            call.ending = True
            await call.lease.release()
            self.must(not call.valid, f"{call} was released and is valid")

    @rule(client=st.integers(0, 2), name=st.sampled_from("ab"), then=st.sampled_from([0.01, 1.0]))
    def force_release(self, client: int, name: str, then: float) -> None:
        manager = self.clients[client % len(self.clients)]
        before = [call for call in self.holders() if name in call.names]
        for call in before:
            if call.lease is not None:
                self.model.excuse(call.lease)
                call.forced = True
        self.unsteady = self.now
        call = self.call("force_release", name, manager, name, {"wait": 0})
        call.ending = True
        self.begin(call, self.forcing(manager, name, before))
        self.pass_time(then)

    async def forcing(self, manager: Redlock, name: str, before: list[Call]) -> None:
        await manager.force_release(name)
        while any(call.valid and self.now < call.unaware_until for call in before):  # noqa: ASYNC110 - an instant
            await asyncio.sleep(HEARS_SOON)
        left = [call for call in before if call.valid]
        self.must(not left, f"{left} are valid after a forced release")

    @rule(client=st.integers(0, 2), within=st.sampled_from([None, 0, 0.002]), then=INSTANTS)
    def reopen(self, client: int, within: float | None, then: float) -> None:
        manager = self.clients[client % len(self.clients)]
        before = [call for call in self.all if call.client is manager]
        for call in before:
            if call.valid and call.lease is not None:
                self.model.excuse(call.lease)
        self.open.discard(manager)
        self.unsteady = self.closed_at = self.now
        self.run(self.closing(manager, within))
        left = [call for call in before if call.valid]
        self.must(not left, f"{left} are valid after aclose()")
        self.pass_time(then)
        self.run(manager.__aenter__())
        self.open.add(manager)

    async def closing(self, manager: Redlock, within: float | None) -> None:
        try:
            async with asyncio.timeout(within):
                await manager.aclose()
        except TimeoutError:
            pass

    # What is drawn: time and faults.

    @rule(seconds=st.sampled_from([0.05, 0.15, 1.0, 4.0, QUARANTINE + RECOVERS]))
    def wait(self, seconds: float) -> None:
        self.pass_time(seconds)

    @rule(seconds=st.sampled_from([0.05, 0.5, 5.0]))
    def stall(self, seconds: float) -> None:
        """Block the loop: all timers that are due run in one turn."""
        self.excuse_all()
        self.loop.stall(seconds)
        self.unsteady = self.now
        for call in self.holders():
            if call.forced:
                call.unaware_until = self.now + HEARS_SOON
        self.pass_time(0.01)

    @rule(
        master=st.integers(0, 4),
        fault=st.sampled_from(["hang", "cut off", "kill", "restart", "cut", "slow"]),
        then=INSTANTS,
    )
    def fail(self, master: int, fault: str, then: float) -> None:
        """Let a master fail, or let it recover, if only a minority fails with it."""
        failing = self.masters[master % len(self.masters)]
        if self.away[failing] == math.inf:
            self.recover(failing)
        elif self.can_fail(failing):
            self.begin_fault(failing, fault)
        self.pass_time(then)

    def can_fail(self, master: FakeMaster) -> bool:
        """Return whether *master* works, and only a minority is away if it fails too."""
        others = [m for m in self.masters if m is not master and self.now < self.away[m]]
        return self.away[master] < math.inf and 2 * (len(others) + 1) < len(self.masters)

    def begin_fault(self, master: FakeMaster, fault: str) -> None:
        self.away[master] = math.inf
        if fault == "slow":
            master.latency = SLOW
        elif fault == "cut off":  # what is sent until it recovers is lost
            self.cut_off.add(master)
            master.hang()
        else:
            self.act(getattr(master, fault))
        if fault in {"cut", "restart"}:
            self.recover(master)
        self.shake()

    def recover(self, master: FakeMaster) -> None:
        self.away[master] = self.now + RECOVERS
        self.act(lambda: self.mend(master))
        self.shake()

    def mend(self, master: FakeMaster) -> None:
        master.latency = LATENCY
        if master in self.cut_off:
            self.cut_off.remove(master)
            master.cut()
        if not master._alive:
            master.restart()
        if master.uptime < RECOVERS:
            self.young[master] = self.now + QUARANTINE + RECOVERS
        master.resume()

    # What always holds.

    @invariant()
    def all_is_well(self) -> None:
        if not self.broken:
            self.act(self.check)
        assert not self.broken, "\n".join(self.broken)

    def check(self) -> None:
        """Compare all leases with the model and with the keys of the masters."""
        for call in self.all:
            lease = call.lease
            if lease is None:
                continue
            valid, span = lease.valid, self.model.spans[lease.token]
            self.must(not (valid and call.over), f"{call} is valid again")
            call.over = not valid
            if valid:
                self.must(self.now < span.most, f"{call} is valid after its ttl")
                self.check_keys(call, lease)
            elif not call.ending:
                self.must(self.now >= span.least - MARGIN, f"{call} is over too early")
                on_lost = call.options["on_lost"]
                running = call.way == "with" and on_lost == "cancel" and not call.task.done()
                self.must(not running, f"the body of {call} runs on")
        for name in "ab":
            holders = [
                call
                for call in self.holders()
                if name in call.names and self.now >= call.unaware_until
            ]
            tokens = {call.lease.token for call in holders if call.lease}
            all_read = all(map(is_reader, holders))
            self.must(all_read or len(tokens) < 2, f"{len(tokens)} hold {name}: {holders}")
        for client in self.open:
            tokens = {c.lease.token for c in self.holders() if c.lease and c.client is client}
            counted = client.statistics().leases
            self.must(counted == len(tokens), f"{counted} leases are counted, not {len(tokens)}")

    def check_keys(self, call: Call, lease: Lease) -> None:
        """Check that a majority keeps the key for longer than the lease is valid."""
        if self.model.spans[lease.token].least == -math.inf:
            return
        until = self.now + (lease.remaining + drift(min(TTLS), factor=DRIFT_FACTOR)) / 1000
        for name in lease.resources:
            keep = [
                master
                for master in self.masters
                if not master._alive
                or self.now < self.young[master]
                or kit.kept_until(master, name, lease) >= until - CLOCK_STEP
            ]
            self.must(2 * len(keep) > len(self.masters), f"only {keep} keep the lock of {call}")

    # The end of each run.

    def teardown(self) -> None:
        if not hasattr(self, "loop"):
            return
        try:
            if not self.broken:
                self.run(self.end())
                self.all_is_well()
        finally:
            self.patch.undo()
            self.run(self.close_all())
            self.loop.close()

    async def end(self) -> None:
        """End all calls; check that nothing is left, and that all locks can be acquired."""
        for master in self.masters:
            self.mend(master)
        restarted = max(self.young.values()) > self.now
        self.excuse_all()
        self.unsteady = self.now
        patience = 2 * RECOVERS + (QUARANTINE if restarted else 0)
        self.draining = self.drains
        for call in self.all:
            if not self.drains:
                call.ending = True
                call.task.cancel()
            elif call.lease is not None and not call.leave.done():
                call.ending = True
                call.leave.set_result(None)
        if self.all:
            _, running = await asyncio.wait([call.task for call in self.all], timeout=patience)
            left = [call for call in self.all if call.task in running]
            self.must(not left, f"{left} go on")
        closed = self.closed_at > self.now - MAX_TTL / 1000
        await asyncio.sleep(1.5 + (MAX_TTL / 1000 if closed else 0))
        keys = kit.remaining_keys(self.masters, counters=False)
        self.must(not keys, f"keys are left: {keys}")
        for client in self.clients:
            seen = client.statistics()
            counts = (seen.rounds, seen.leases, seen.waiters, seen.debts)
            self.must(counts == (0, 0, 0, 0), f"not all is over: {seen}")
        if restarted:
            await asyncio.sleep(QUARANTINE + RECOVERS)
        async with self.new_client("fresh") as fresh:
            for fair in (False, True):
                lock = fresh.lock("a", "b", wait=300, fair=fair, fencing=True)
                async with lock as lease:
                    highest = max([0, *self.model.fences.values()])
                    self.must(lease.fencing_token > highest, f"{lease} is not above {highest}")

    async def close_all(self) -> None:
        for client in self.clients:
            await client.aclose()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        if others:
            await asyncio.wait(others)


Machine.TestCase.settings = settings(stateful_step_count=30, max_examples=EXAMPLES, deadline=None)
test_the_promises_hold_for_drawn_calls_and_faults = Machine.TestCase
