"""
Waiters in time, on the shipped ticket and the masters' queues.

They ask again every now and then instead of being called. Each has the lock without
a fencing token; that no two have it at once is what is looked at.
"""

from collections.abc import Callable, Sequence

from redlock_aio._protocol import commands, replies
from redlock_aio._rules.fair_ticket import ASKED, FAILED, FRESH, GRANTED, SILENT
from redlock_aio._rules.lease_state import LeaseState

from .masters import words
from .simulation import KEY, MASTER_TIMEOUT, Bell, Client, Lease
from .weather import FACTOR

KEYS = (KEY, *commands.queue_keys(KEY))
LIVES = 3000
BEAT = 0.01
"""Seconds between two questions to the same master."""


class Waiter:
    """One place in the queues of all masters."""

    def __init__(self, client: "FairClient") -> None:
        self.client = client
        self.world = client.world
        self.ticket = client.world.rules.ticket(len(client.links))
        self.member = client.token()
        self.place = client.clocks.new_time(client.clock())
        self.token = client.token()
        self.won = Bell(self.world)
        self.over = False
        self._due = [0.0] * len(client.links)
        self.yields = 0
        self.beat()

    def beat(self) -> None:
        """Ask those that may say something new."""
        if not self.over:
            for master, standing in enumerate(self.ticket.standings):
                if standing is not ASKED and (standing is not GRANTED or self._grows_old()):
                    self._ask(master)
            self.world.at(BEAT * self.world.chance.uniform(0.5, 1), self.beat)

    def _grows_old(self) -> bool:
        return self.world.chance.random() < 3000 * BEAT / self.world.weather.ttl

    def _ask(self, master: int) -> None:
        client, now = self.client, self.client.clock()
        number = self.ticket.ask(master, now)
        payload = commands.enqueue(
            KEYS,
            self.token,
            self.world.weather.ttl,
            commands.QueueEntry(
                member=self.member,
                priority=self.place,
                lives=LIVES,
                most=1000,
                not_after=client.clocks.new_time(now) + 1_000_000,
            ),
        )

        def answer(_master: int, reply: object) -> None:
            said = replies.queued(reply)
            standing = FAILED if said is None else said.standing
            if not self.over and self.ticket.on_reply(master, number, standing):
                self._consider()

        client.send_to(master, words(payload), answer)
        self._due[master] = due = self.world.now + MASTER_TIMEOUT / 1000
        self.world.at(MASTER_TIMEOUT / 1000, self._give_up, master, due)

    def _give_up(self, master: int, due: float) -> None:
        """Count a master as silent, as the waiter does when its answer is due."""
        asked = self.ticket.standings[master] is ASKED and self._due[master] == due
        if not self.over and asked:
            self.ticket.standings[master] = SILENT
            self._consider()

    def until(self) -> float:
        """Return until when a majority grants the lock."""
        return self.ticket.until(self.world.weather.ttl, factor=FACTOR)

    def _consider(self) -> None:
        if self.until() > self.client.clock():
            if not self.won.done():
                self.won.set_result(None)
        elif self.ticket.must_yield or self._is_stale():
            self.give_back(keep_place=True)
            self.ticket.give_back()
            self.token = self.client.token()
            self.yields += 1

    def _is_stale(self) -> bool:
        return self.ticket.stale_at(FRESH + MASTER_TIMEOUT / 1000) <= self.client.clock()

    def give_back(self, *, keep_place: bool) -> None:
        """Let others have the lock."""
        payload = commands.leave(KEYS, self.token, self.member, keep_place=keep_place)
        for master in range(len(self.client.links)):
            self.client.send_to(master, words(payload), lambda _master, _reply: None)


class FairClient(Client):
    """A process that waits in line, with one connection to each master."""

    yields = 0

    def send_to(
        self, master: int, command: Sequence[bytes], answer: Callable[[int, object], None]
    ) -> None:
        """Send to one master, behind all that was sent before."""
        world = self.world
        self._arrives[master] = at = max(world.now + world.delay(), self._arrives[master])
        world.at(at - world.now, self.links[master].receive, command, answer)

    async def work(self) -> None:
        world, weather = self.world, self.world.weather
        self._arrives = [0.0] * len(self.links)
        while True:
            floor, waiter = world.highest, Waiter(self)
            while waiter.until() <= self.clock():
                waiter.won = Bell(world)
                await waiter.won
            waiter.over = True
            self.yields += waiter.yields
            until = waiter.until()
            life = LeaseState(self.clock(), until, weather.ttl, FACTOR, renewed=False)
            world.report(Lease(self, world.highest + 1, floor, life))
            await self.sleep(min(world.often(weather.work), until - self.clock()))
            life.release(self.clock())
            waiter.give_back(keep_place=False)
            await self.sleep(world.often(weather.think))
