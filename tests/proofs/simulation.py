"""
Clients and masters in time: ttls and validity, slow and lost messages, wrong clocks.

Runs what is shipped: `FencedAttempt` with `Raising`, `Round`, `LeaseState`, `Clocks`, `Retry`
and `timing`; and the Lua scripts, on masters with clocks of their own.

Models itself: the set of masters (`Client` takes the place of `MasterSet`); the loop of an
acquisition; the extension, the lift and the restoration of a lease (the shipped ones are
the watchdog's); the quarantine, as a time without grants; and the network. A seed makes a
run, and makes it again. `model.PROPERTIES` are checked at each lease and extension.
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

from redlock_aio._engine.attempt import FencedAttempt, Raising
from redlock_aio._engine.links import Link
from redlock_aio._engine.masters import MasterSet
from redlock_aio._engine.round import Round
from redlock_aio._protocol import scripts
from redlock_aio._protocol.primitives import FencingCounter, Mutex
from redlock_aio._protocol.request import TIMED_OUT, NoReply
from redlock_aio._rules import retry, timing
from redlock_aio._rules.clock_offsets import Clocks
from redlock_aio._rules.fencing import LEAD_SHARE
from redlock_aio._rules.lease_state import HELD, LeaseState
from redlock_aio._rules.quorum import SPLIT, WON, Tally

from .masters import Keys, words
from .rules import SHIPPED, Rules
from .weather import FACTOR, Weather

EPOCH = 1_700_000_000
MASTER_TIMEOUT = 50
KEY = Mutex(b"r")


class Bell:
    """A future without an event loop."""

    __slots__ = ("_coroutine", "_rung", "_world")

    def __init__(self, world: "World") -> None:
        self._world = world
        self._rung = False
        self._coroutine: Coroutine[Any, Any, None] | None = None

    def __await__(self) -> Generator["Bell", None, None]:
        if not self._rung:
            yield self

    def done(self) -> bool:
        return self._rung

    def set_result(self, _result: None) -> None:
        self._rung = True
        if self._coroutine is not None:
            self._world.at(0.0, self._world.step, self._coroutine)

    def wakes(self, coroutine: Coroutine[Any, Any, None]) -> None:
        """Resume *coroutine* when the result is set."""
        self._coroutine = coroutine


class Master:
    """One master: its keys, and a clock that may be wrong."""

    def __init__(self, world: "World", number: int) -> None:
        weather, chance = world.weather, world.chance
        self.number = number
        self.keys = Keys()
        self.away_until = -math.inf
        self._world = world
        self._ahead = chance.uniform(-1, 1) * weather.skew
        self._rate = 1 + chance.uniform(-1, 1) * 1e-4
        if weather.ahead:
            counter = b"%d" % ((EPOCH + weather.ahead) * 1_000_000)
            self.keys.data.set(FencingCounter((KEY,), 0).keys[0], counter)

    def clock(self) -> float:
        """Return the time of its clock, in seconds since some day."""
        return EPOCH + self._ahead + self._world.now * self._rate

    def overdue(self) -> NoReply:
        """Return the reply that counts when none has come."""
        return TIMED_OUT

    def receive(self, command: Sequence[bytes], answer: Callable[[int, object], None]) -> None:
        """Execute *command*, except an acquisition in quarantine, which gets no reply."""
        world = self._world
        acquires = command[1] in {scripts.ACQUIRE.sha, scripts.ENQUEUE.sha}
        away = world.now < self.away_until
        if acquires and away:
            return
        self.keys.time = self.clock()
        reply = self.keys.run(command)
        if not away:
            world.later(answer, self.number, reply)

    def forget(self) -> None:
        """Lose all keys."""
        world = self._world
        self.keys.data.keys.clear()
        if world.rules.stays_away:
            self.away_until = world.now + world.weather.absence
        world.at(world.often(world.weather.crash), self.forget)

    def end(self) -> None:
        """Let a lock end before its time."""
        self.keys.data.keys.pop(KEY, None)
        self._world.at(self._world.often(self._world.weather.ends), self.end)


class World:
    """
    One run.

    Attributes:
        reported: How many leases there were.

        at_once: How many of them needed no second round.

        broken: How often each property was broken.
    """

    def __init__(self, seed: int, weather: Weather, rules: Rules = SHIPPED) -> None:
        self.chance = random.Random(seed)
        self.weather = weather
        self.rules = rules
        self.now = 0.0
        self.reported = self.at_once = self.extensions = 0
        self.broken: Tallies[str] = Tallies()
        self.first = ""
        self.highest = 0
        self._heap: list[tuple[float, int, Callable[..., object], tuple[object, ...]]] = []
        self._order = itertools.count()
        self._tokens: set[int] = set()
        self._leases: list[Lease] = []
        self.masters = [Master(self, number) for number in range(weather.masters)]
        for master in self.masters:
            if weather.crash < math.inf:
                self.at(self.often(weather.crash), master.forget)
            if weather.ends < math.inf:
                self.at(self.often(weather.ends), master.end)

    # What happens when.

    def at(self, delay: float, what: Callable[..., object], *arguments: object) -> None:
        """Call *what* in *delay* seconds."""
        heapq.heappush(self._heap, (self.now + delay, next(self._order), what, arguments))

    def often(self, mean: float) -> float:
        """Return a random interval between events, in seconds, exponential with this *mean*."""
        return -mean * math.log(1 - self.chance.random())

    def later(self, what: Callable[..., object], *arguments: object) -> None:
        """Deliver a message late, twice or never, by the weather."""
        weather, chance = self.weather, self.chance.random
        if chance() < weather.loss:
            return
        for _ in range(1 + (chance() < weather.duplicates)):
            self.at(self.delay(), what, *arguments)

    def delay(self) -> float:
        """Return how long a message takes."""
        delay = 0.0001 + self.often(0.0002)
        if self.chance.random() < self.weather.slow:
            delay += self.often(self.weather.late)
        return delay

    def step(self, coroutine: Coroutine[Any, Any, None]) -> None:
        """Let *coroutine* go on until it waits again."""
        try:
            bell = coroutine.send(None)
        except StopIteration:
            return
        bell.wakes(coroutine)

    def run(self, leases: int) -> "World":
        """Run until so many *leases* were reported, or a property is broken."""
        heap, target = self._heap, self.reported + leases
        while self.reported < target and not self.broken:
            self.now, _, what, arguments = heapq.heappop(heap)
            what(*arguments)
        return self

    # What must hold.

    def must_not(self, broken: bool, what: str, *seen: object) -> None:
        """Record that a property is broken."""
        if broken:
            self.first = self.first or f"{what}, {seen}, at {self.now:.4f} s"
            self.broken[what] += 1

    def report(self, lease: "Lease") -> None:
        """Check the properties at a new lease."""
        fence, exact = lease.fence, self.weather.ends == math.inf
        self._leases = [held for held in self._leases if held.life.state is HELD]
        others = [held for held in self._leases if held.life.valid(held.client.clock())]
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
    life: LeaseState


class Client:
    """A process that acquires the lock again and again, and takes the place of its `MasterSet`."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.links: Sequence[Master] = world.masters
        self.loop = self
        self.master_timeout = MASTER_TIMEOUT
        self.counter = FencingCounter((KEY,), int(world.weather.absence * LEAD_SHARE * 1_000_000))
        self.clocks = Clocks(len(self.links), float(EPOCH))
        self._rate = 1 + world.chance.uniform(-1, 1) * 1e-4
        self._error = world.chance.uniform(-1, 1) * world.weather.error
        self._token = self._new_token()
        self.learn()
        world.at(world.often(world.weather.think), world.step, self.work())

    # What an attempt needs of a `MasterSet`

    def clock(self) -> float:
        return self.world.now * self._rate

    def token(self) -> bytes:
        return self._new_token() if self.world.rules.fresh else self._token

    def _new_token(self) -> bytes:
        return b"%040x" % self.world.chance.getrandbits(160)

    def create_future(self) -> Bell:
        return Bell(self.world)

    def ask(self, round: Round, at_most: float | None = None) -> Bell:
        """Send *round* to all masters; return what is done when it is settled."""
        self.send(round, at_most)
        bell = Bell(self.world)
        round.waiter = cast(Any, bell)
        return bell

    def send(self, round: Round, at_most: float | None = None) -> None:
        """Send *round* to all masters."""
        command = words(round.payload)
        answer: Callable[[int, object], None] = round.on_reply
        if isinstance(round, Raising):
            asked, heard = int(command[6]), self.world.rules.heard
            counted = answer

            def answer(master: int, reply: object) -> None:
                counted(master, heard(cast(int, reply), asked))

        self.tell(command, answer)
        self.world.at(min(at_most or MASTER_TIMEOUT, MASTER_TIMEOUT) / 1000, round.expire)

    def tell(self, command: Sequence[bytes], answer: Callable[[int, object], None]) -> None:
        """Send *command* to all masters."""
        for master in self.links:
            self.world.later(master.receive, command, answer)

    def learn(self) -> None:
        """Learn the time of the masters, every 30 s."""
        now, often = self.clock(), self.world.often
        for number, master in enumerate(self.links):
            there, back = often(0.0003), often(0.0003)
            time = int((master.clock() - back + self._error) * 1_000_000)
            self.clocks.learn(number, time, now - there - back, now)
        self.world.at(30.0, self.learn)

    # What it does.

    async def sleep(self, seconds: float) -> None:
        bell = Bell(self.world)
        self.world.at(seconds, bell.set_result, None)
        await bell

    async def work(self) -> None:
        """Take the lock as `_engine.waiting` does, hold it, and release it."""
        world, ttl = self.world, self.world.weather.ttl
        misses = 0
        while True:
            floor = world.highest
            master_set = cast(MasterSet, self)
            attempt = FencedAttempt(master_set, self.counter, KEY, ttl)
            await self.ask(attempt)
            if split := attempt.verdict is SPLIT:
                await attempt.agree(master_set, None)
            until = timing.deadline(attempt.began, ttl, factor=FACTOR)
            if attempt.verdict is WON and self.clock() < until:
                misses = 0
                world.at_once += not split
                await self.hold(attempt, until, floor)
                rest = world.often(world.weather.think)
            else:
                misses += 1
                rest = retry.Retry(5, 40).delay(misses, world.chance.random()) / 1000
            self.tell(words(attempt.release()), lambda _master, _reply: None)
            await self.sleep(rest)

    async def hold(self, attempt: FencedAttempt, until: float, floor: int) -> None:
        """Hold a lease for as long as there is work, and extend it."""
        world, weather = self.world, self.world.weather
        life = LeaseState(self.clock(), until, weather.ttl, FACTOR, renewed=True)
        world.report(Lease(self, attempt.fence, floor, life))
        work = world.often(weather.work)
        if world.chance.random() < weather.pause:
            await self.sleep(world.often(2 * weather.ttl / 1000))  # the holder stalls
        ready = self.clock() + work
        life.schedule_renewal(self.clock(), world.chance.random())
        while life.state is HELD:
            now = self.clock()
            if life.expired(now):
                life.lose("it is over")
            elif now >= ready:
                life.release(now)
            elif now >= life.due:
                await self.extend(attempt, life)
            else:
                await self.sleep(min(ready, life.due) - now + 1e-9)

    async def extend(self, attempt: FencedAttempt, life: LeaseState) -> None:
        """Extend a lease as `_engine.watchdog` does."""
        world, began, ttl = self.world, self.clock(), life.ttl
        floor, epoch = world.highest, life.begin_extension(began, ttl)
        payload = world.rules.extend(self.counter, attempt.token, ttl, attempt.fence)
        renewal = Renewal(cast(Sequence[Link], self.links), payload)
        await self.ask(renewal, max((life.deadline - began) * 1000, 1.0))
        now = self.clock()
        if renewal.verdict is not WON or not life.extended(epoch, began, ttl, now):
            life.schedule_retry(now)
            return
        world.extensions += 1
        world.must_not(floor > attempt.fence, "P4", attempt.fence, floor)
        for number, reply in enumerate(renewal.replies):
            if isinstance(reply, int):
                self.restore(attempt, number, ttl)
        life.schedule_renewal(now, world.chance.random())

    def restore(self, attempt: FencedAttempt, master: int, ttl: int, ceiling: int = 0) -> None:
        """Restore a lock on one master; lift the counters if that fails."""

        def on_reply(_master: int, reply: object) -> None:
            if isinstance(reply, int) and reply > 0 and not ceiling:
                payload = self.world.rules.lift(self.counter, attempt.token, attempt.fence, reply)
                then = functools.partial(self.restore, attempt, master, ttl, reply)
                self.send(Lifting(cast(Sequence[Link], self.links), payload, then))

        again = words(attempt.restoration(ttl, ceiling))
        self.world.later(self.links[master].receive, again, on_reply)


class Lifting(Round):
    """Lift the counters of one lease; call *then* when a majority has done so."""

    __slots__ = ("_then",)

    def __init__(self, links: Sequence[Link], payload: bytes, then: Callable[[], None]) -> None:
        super().__init__(links, payload)
        self._then = then

    def settled(self) -> None:
        """Call *then*."""
        if self.verdict is WON:
            self._then()


class Renewal(Round):
    """One extension; its replies are counted as in any round."""

    __slots__ = ()

    on_reply = Tally.on_reply
