"""
Clients and masters in time: ttls and validity, slow and lost messages, wrong clocks.

Runs the shipped code: `FencedAttempt`, `Round`, `LeaseState`, `Clocks`, `Retry`
and `timing`; and the Lua scripts, on masters with clocks of their own.

Models itself: the set of masters (`Client` takes the place of `MasterSet`); the loop of an
acquisition; the extension, the lift and the restoration of a lease (the shipped ones are
the watchdog's); the quarantine, as a time without grants; and the network. The same seed
gives the same run. `model.PROPERTIES` are checked at each lease and extension.
"""

import functools
import heapq
import itertools
import math
import random
from collections import Counter as Tallies
from collections.abc import Callable, Coroutine, Generator, Sequence
from dataclasses import dataclass
from typing import Any, cast

from redlock_aio._engine.claim import Claim
from redlock_aio._engine.fenced import FencedAttempt
from redlock_aio._engine.masters import MasterSet, Query, Round
from redlock_aio._protocol import scripts
from redlock_aio._protocol.primitives import FencingCounter, Mutex
from redlock_aio._protocol.request import TIMED_OUT, NoReply
from redlock_aio._rules import retry, timing
from redlock_aio._rules.clock_offsets import Clocks
from redlock_aio._rules.fencing import LEAD_SHARE
from redlock_aio._rules.lease_state import HELD, LeaseState
from redlock_aio._rules.quorum import SPLIT, WON, Tally

from .conditions import FACTOR, Conditions
from .masters import MasterKeys, words
from .rules import SHIPPED, Rules

EPOCH = 1_700_000_000
MASTER_TIMEOUT = 50
KEY = Mutex(b"r")


class Completion:
    """A future without an event loop."""

    __slots__ = ("_coroutine", "_done", "_world")

    def __init__(self, world: "World") -> None:
        self._world = world
        self._done = False
        self._coroutine: Coroutine[Any, Any, None] | None = None

    def __await__(self) -> Generator["Completion", None, None]:
        if not self._done:
            yield self

    def done(self) -> bool:
        return self._done

    def set_result(self, _result: None) -> None:
        self._done = True
        if self._coroutine is not None:
            self._world.at(0.0, self._world.resume, self._coroutine)

    def resumes(self, coroutine: Coroutine[Any, Any, None]) -> None:
        """Resume *coroutine* when the result is set."""
        self._coroutine = coroutine


class Master:
    """One master: its keys, and a clock that may be wrong."""

    def __init__(self, world: "World", number: int) -> None:
        conditions, chance = world.conditions, world.chance
        self.number = number
        self.keys = MasterKeys()
        self.quarantined_until = -math.inf
        self._world = world
        self._ahead = chance.uniform(-1, 1) * conditions.skew
        self._rate = 1 + chance.uniform(-1, 1) * 1e-4
        if conditions.ahead:
            counter = b"%d" % ((EPOCH + conditions.ahead) * 1_000_000)
            self.keys.data.set(FencingCounter((KEY,), 0).keys[0], counter)

    def clock(self) -> float:
        """Return the time of its clock, in seconds since 1970."""
        return EPOCH + self._ahead + self._world.now * self._rate

    def overdue(self) -> NoReply:
        """Return the reply that stands for a missing one when a round ends."""
        return TIMED_OUT

    def receive(self, command: Sequence[bytes], answer: Callable[[int, object], None]) -> None:
        """Execute *command*, except an acquisition in quarantine, which gets no reply."""
        world = self._world
        quarantined = world.now < self.quarantined_until
        if quarantined and command[1] in {scripts.ACQUIRE.sha, scripts.ENQUEUE.sha}:
            return
        self.keys.time = self.clock()
        reply = self.keys.run(command)
        if not quarantined:
            world.deliver(answer, self.number, reply)

    def forget(self) -> None:
        """Lose all keys."""
        world = self._world
        self.keys.data.keys.clear()
        if world.rules.quarantines:
            self.quarantined_until = world.now + world.conditions.quarantine
        world.at(world.exponential(world.conditions.crash), self.forget)

    def end(self) -> None:
        """End the lock on this master before its ttl is over."""
        self.keys.data.keys.pop(KEY, None)
        self._world.at(self._world.exponential(self._world.conditions.ends), self.end)


class World:
    """
    One run.

    Attributes:
        reported: The number of leases.

        one_round: The number of leases that needed no second round.

        broken: The number of violations of each property.
    """

    def __init__(self, seed: int, conditions: Conditions, rules: Rules = SHIPPED) -> None:
        self.chance = random.Random(seed)
        self.conditions = conditions
        self.rules = rules
        self.now = 0.0
        self.reported = self.one_round = self.extensions = 0
        self.broken: Tallies[str] = Tallies()
        self.first = ""
        self.highest = 0
        self._heap: list[tuple[float, int, Callable[..., object], tuple[object, ...]]] = []
        self._order = itertools.count()
        self._tokens: set[int] = set()
        self._leases: list[Lease] = []
        self.masters = [Master(self, number) for number in range(conditions.masters)]
        for master in self.masters:
            if conditions.crash < math.inf:
                self.at(self.exponential(conditions.crash), master.forget)
            if conditions.ends < math.inf:
                self.at(self.exponential(conditions.ends), master.end)

    # Time and chance.

    def at(self, delay: float, what: Callable[..., object], *arguments: object) -> None:
        """Call *what* in *delay* seconds."""
        heapq.heappush(self._heap, (self.now + delay, next(self._order), what, arguments))

    def exponential(self, mean: float) -> float:
        """Return a random interval between events, in seconds, exponential with this *mean*."""
        return -mean * math.log(1 - self.chance.random())

    def deliver(self, what: Callable[..., object], *arguments: object) -> None:
        """Deliver a message: once, late, twice or never, as the conditions have it."""
        conditions, chance = self.conditions, self.chance.random
        if chance() < conditions.loss:
            return
        for _ in range(1 + (chance() < conditions.duplicates)):
            # Most of all events are messages, so this is without `exponential` and `at`.
            delay = 0.0001 - 0.0002 * math.log(1 - chance())
            if chance() < conditions.slow:
                delay += self.exponential(conditions.late)
            event = (self.now + delay, next(self._order), what, arguments)
            heapq.heappush(self._heap, event)

    def resume(self, coroutine: Coroutine[Any, Any, None]) -> None:
        """Run *coroutine* until it waits again."""
        try:
            completion = coroutine.send(None)
        except StopIteration:
            return
        completion.resumes(coroutine)

    def run(self, leases: int) -> "World":
        """Run until *leases* more leases were reported, or a property is broken."""
        heap, target = self._heap, self.reported + leases
        while self.reported < target and not self.broken:
            self.now, _, what, arguments = heapq.heappop(heap)
            what(*arguments)
        return self

    # The properties.

    def must_not(self, broken: bool, what: str, *seen: object) -> None:
        """Record that a property is broken."""
        if broken:
            self.first = self.first or f"{what}, {seen}, at {self.now:.4f} s"
            self.broken[what] += 1

    def report(self, lease: "Lease") -> None:
        """Check the properties at a new lease."""
        fence, exact = lease.fence, self.conditions.ends == math.inf
        self._leases = [held for held in self._leases if held.lease_state.state is HELD]
        others = [held for held in self._leases if held.lease_state.valid(held.client.clock())]
        self.must_not(fence <= lease.floor, "P1", fence, lease.floor)
        self.must_not(fence in self._tokens, "P2", fence)
        # Where locks end early, leases do not exclude each other.
        self.must_not(exact and bool(others), "P3", fence, [other.fence for other in others])
        self.must_not(exact and fence <= self.highest, "P5", fence, self.highest)
        self.reported += 1
        self.highest = max(fence, self.highest)
        self._tokens.add(fence)
        self._leases.append(lease)


@dataclass(eq=False)
class Lease:
    """A reported lease: its token, and the highest one reported before it began."""

    client: "Client"
    fence: int
    floor: int
    lease_state: LeaseState


class Client:
    """A process that acquires the lock again and again; also stands in for its `MasterSet`."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.links: Sequence[Master] = world.masters
        self.loop = self
        self.master_timeout = MASTER_TIMEOUT
        self.closed = False
        self.counter = FencingCounter(
            (KEY,), int(world.conditions.quarantine * LEAD_SHARE * 1_000_000)
        )
        self.clocks = Clocks(len(self.links), float(EPOCH))
        self._rate = 1 + world.chance.uniform(-1, 1) * 1e-4
        self._error = world.chance.uniform(-1, 1) * world.conditions.error
        self._token = self._new_token()
        self.sync_clocks()
        world.at(world.exponential(world.conditions.think), world.resume, self.work())

    # The part of `MasterSet` that an attempt uses.

    def clock(self) -> float:
        return self.world.now * self._rate

    def token(self) -> bytes:
        return self._new_token() if self.world.rules.new_tokens else self._token

    def _new_token(self) -> bytes:
        return b"%040x" % self.world.chance.getrandbits(160)

    def create_future(self) -> Completion:
        return Completion(self.world)

    def ask(self, round: Round, at_most: float | None = None) -> Completion:
        """Send *round* to all masters; return a completion that is set when it is settled."""
        self.send(round, at_most)
        completion = Completion(self.world)
        round.waiter = cast(Any, completion)
        return completion

    def send(self, round: Round, at_most: float | None = None) -> None:
        """Send *round* to all masters."""
        command = words(round.payload)
        answer: Callable[[int, object], None] = round.on_reply
        if scripts.RAISE.sha in command[:2]:
            asked, acknowledged = int(command[6]), self.world.rules.acknowledged
            counted = answer

            def answer(master: int, reply: object) -> None:
                counted(master, acknowledged(cast(int, reply), asked))

        self.broadcast(command, answer)
        self.world.at(min(at_most or MASTER_TIMEOUT, MASTER_TIMEOUT) / 1000, round.expire)

    def broadcast(self, command: Sequence[bytes], answer: Callable[[int, object], None]) -> None:
        """Send *command* to all masters."""
        for master in self.links:
            self.world.deliver(master.receive, command, answer)

    def sync_clocks(self) -> None:
        """Ask the masters for their time, and again in 30 s."""
        now, exponential = self.clock(), self.world.exponential
        for number, master in enumerate(self.links):
            there, back = exponential(0.0003), exponential(0.0003)
            time = int((master.clock() - back + self._error) * 1_000_000)
            self.clocks.learn(number, time, now - there - back, now)
        self.world.at(30.0, self.sync_clocks)

    # The work of a process.

    async def sleep(self, seconds: float) -> None:
        completion = Completion(self.world)
        self.world.at(seconds, completion.set_result, None)
        await completion

    async def work(self) -> None:
        """Acquire the lock as `Acquisition` does, hold it, and release it, for ever."""
        world, ttl = self.world, self.world.conditions.ttl
        failures = 0
        while True:
            floor = world.highest
            master_set = cast(MasterSet, self)
            claim = Claim(KEY, self.token(), ttl, self.counter)
            attempt = FencedAttempt(master_set, claim, self.counter)
            await self.ask(attempt)
            if split := attempt.verdict is SPLIT:
                await attempt.agree(None)
            until = timing.deadline(claim.began, ttl, factor=FACTOR)
            if attempt.verdict is WON and self.clock() < until:
                failures = 0
                world.one_round += not split
                await self.hold(claim, until, floor)
                rest = world.exponential(world.conditions.think)
            else:
                failures += 1
                rest = retry.Retry(5, 40).delay(failures, world.chance.random()) / 1000
            self.broadcast(words(claim.release()), lambda _master, _reply: None)
            await self.sleep(rest)

    async def hold(self, claim: Claim, until: float, floor: int) -> None:
        """Hold a lease for a random time, and extend it meanwhile."""
        world, conditions = self.world, self.world.conditions
        lease_state = LeaseState(until, conditions.ttl, FACTOR, renewed=True)
        world.report(Lease(self, claim.fence, floor, lease_state))
        work = world.exponential(conditions.work)
        if world.chance.random() < conditions.pause:
            await self.sleep(world.exponential(2 * conditions.ttl / 1000))  # the holder stalls
        ready = self.clock() + work
        lease_state.schedule_renewal(self.clock(), world.chance.random())
        while lease_state.state is HELD:
            now = self.clock()
            if lease_state.expired(now):
                lease_state.lose(lease_state.why_expired())
            elif now >= ready:
                lease_state.release(now)
            elif now >= lease_state.due:
                await self.extend(claim, lease_state)
            else:
                await self.sleep(min(ready, lease_state.due) - now + 1e-9)

    async def extend(self, claim: Claim, lease_state: LeaseState) -> None:
        """Extend a lease as the watchdog does."""
        world, began, ttl = self.world, self.clock(), lease_state.ttl
        floor, epoch = world.highest, lease_state.begin_extension(began, ttl)
        payload = world.rules.extend(self.counter, claim.token, ttl, claim.fence)
        renewal = Renewal(cast(MasterSet, self), payload)
        await self.ask(renewal, max((lease_state.deadline - began) * 1000, 1.0))
        now = self.clock()
        if renewal.verdict is not WON or not lease_state.extended(epoch, began, ttl, now):
            lease_state.schedule_retry(now)
            return
        world.extensions += 1
        world.must_not(floor > claim.fence, "P4", claim.fence, floor)
        for number, reply in enumerate(renewal.replies):
            if isinstance(reply, int):
                self.restore(claim, number, ttl)
        lease_state.schedule_renewal(now, world.chance.random())

    def restore(self, claim: Claim, master: int, ttl: int, ceiling: int = 0) -> None:
        """Restore a lock on one master; lift the counters if that fails."""

        def on_reply(_master: int, reply: object) -> None:
            if isinstance(reply, int) and reply > 0 and not ceiling:
                payload = self.world.rules.lift(self.counter, claim.token, claim.fence, reply)
                then = functools.partial(self.restore, claim, master, ttl, reply)
                lifting = Query(
                    cast(MasterSet, self),
                    payload,
                    then=lambda verdict: then() if verdict is WON else None,
                )
                self.send(lifting)

        restoration = words(claim.restoration(ttl, ceiling))
        self.world.deliver(self.links[master].receive, restoration, on_reply)


class Renewal(Round):
    """One extension; its replies are counted as in any round."""

    __slots__ = ()

    on_reply = Tally.on_reply
