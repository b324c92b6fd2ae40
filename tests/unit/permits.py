"""Requests to the scripts of semaphores, what they leave on a master, and a random walk of them."""

import random
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import cast

from redlock_aio._protocol import commands
from redlock_aio._protocol.commands import NEVER, NO_MEMBER, QueueEntry, decline
from redlock_aio._protocol.primitives import Mutex, Permit, Permits
from redlock_aio._protocol.request import pack

TTL = 10_000
LIVES = 3_000
API = Mutex(b"api")
FIVE = Permits(API, 5)

Ask = Callable[[bytes], object]


def permit(number: int, permits: Permits = FIVE) -> Permit:
    return permits.permit(number)


def queue_of(number: int, permits: Permits = FIVE) -> bytes:
    return commands.permit_keys(permit(number, permits))[1]


INDEX = commands.permit_keys(permit(0))[2]


def take(
    token: bytes, first: int = 0, step: int = 1, *, ttl: int = TTL, permits: Permits = FIVE
) -> bytes:
    """Return the request for any permit."""
    return permits.take(token, ttl, (first, step), NEVER)


def enter(
    member: bytes,
    place: int,
    number: int,
    *,
    first: bool = False,
    most: int = 1_000,
    ttl: int = TTL,
    permits: Permits = FIVE,
) -> bytes:
    """Return the request of *member*, whose token is its name, for one permit."""
    entry = QueueEntry(member, place, LIVES, most, NEVER, first)
    return permit(number, permits).enqueue(member, ttl, entry)


def leave(member: bytes, number: int, *, stay: bool = False, kept: bool = False) -> bytes:
    """Return the release of *member*, whose token is its name."""
    return permit(number).leave(member, member, keep_place=stay, keep_key=kept)


def free(token: bytes, number: int) -> bytes:
    """Return the release of a holder that is in no queue."""
    return permit(number).leave(token, NO_MEMBER)


def drop(token: bytes, keep: int | None = None, *, permits: Permits = FIVE) -> bytes:
    return permits.drop(token, keep)


class View:
    """What one master has of a semaphore, fake or real."""

    def __init__(self, ask: Ask, permits: Permits = FIVE) -> None:
        self._ask = ask
        self._permits = permits

    def _scores(self, key: bytes) -> dict[bytes, float]:
        reply = self._ask(pack(b"ZRANGE", key, b"0", b"-1", b"WITHSCORES"))
        flat: list[object] = []
        for item in cast("list[object]", reply):
            flat += item if isinstance(item, list) else [item]
        return {
            cast("bytes", name): float(cast("bytes", score))
            for name, score in zip(flat[::2], flat[1::2], strict=True)
        }

    @property
    def holders(self) -> dict[int, bytes]:
        keys = [permit(number, self._permits) for number in range(self._permits.number)]
        found = {number: self._ask(pack(b"GET", key)) for number, key in enumerate(keys)}
        return {number: value for number, value in found.items() if isinstance(value, bytes)}

    @property
    def queues(self) -> dict[int, list[bytes]]:
        """The members of each queue that has any, in their order."""
        found = {}
        for number in range(self._permits.number):
            scores = self._scores(queue_of(number, self._permits))
            members = [name for name in scores if not name.startswith(b"~")]
            assert scores.keys() == {*members, *(b"~" + name for name in members)}
            if members:
                found[number] = members
        return found

    def waiting(self, number: int) -> dict[bytes, float]:
        """The places of the members of a queue that were not granted the permit."""
        scores = self._scores(queue_of(number, self._permits))
        return {
            name: place
            for name, place in scores.items()
            if not name.startswith(b"~") and scores[b"~" + name] % 1 == 0
        }

    @property
    def index(self) -> dict[int, float]:
        index = commands.permit_keys(permit(0, self._permits))[2]
        return {int(number): place for number, place in self._scores(index).items()}

    def check(self) -> None:
        """Check that a member is in one queue, and that the index agrees with the queues."""
        queues, holders = self.queues, self.holders
        members = [member for queue in queues.values() for member in queue]
        assert len(members) == len(set(members)), queues
        assert len(holders) == len(set(holders.values())), holders
        waiting = {n: self.waiting(n) for n in range(self._permits.number)}
        held = {n: min(waits.values()) for n, waits in waiting.items() if waits and n in holders}
        assert held.items() <= self.index.items(), "who waits for a held permit is in the index"

    @property
    def all(self) -> tuple[object, ...]:
        return self.holders, self.queues, self.index


@dataclass
class Walk:
    """
    A random story of clients that follow the protocol, on one master.

    Args:
        ask: Returns the reply to a request.

        woken: Returns what has been pushed since the last call.

        check: Checks the master, after each request.

        begins: The us of its clock.
    """

    ask: Ask
    woken: Callable[[], Sequence[bytes]]
    check: Callable[[], None]
    begins: int
    rng: random.Random
    granted: int = 0
    moved: int = 0
    _places: dict[bytes, int] = field(default_factory=dict)
    _where: dict[bytes, int] = field(default_factory=dict)
    """The permits for which members wait."""
    _has: dict[bytes, int] = field(default_factory=dict)

    async def run(self, steps: int, sleep: Callable[[float], Awaitable[object]]) -> None:
        """Send so many requests, and what follows from them; *sleep* lets time pass."""
        kinds = [self._take, self._arrive, self._leave, self._leave, self._beat]
        for step in range(steps):
            self.rng.choice(kinds)(b"c/%dp5" % step)
            self.check()
            while pushes := self.woken():
                for push in pushes:
                    self._called(push)
                    self.check()
            if not step % 10:
                await sleep(0.002)

    def _take(self, name: bytes) -> None:
        reply = self.ask(take(name, self.rng.randrange(5), self.rng.choice([1, 2, 3, 4])))
        code, number = cast("list[int]", reply)[:2]
        if code == 0:
            assert not self._where, "nobody waits"
            self._has[name] = number

    def _arrive(self, name: bytes) -> None:
        # Nobody has waited about twice as long as another: a moment later it would decide
        # otherwise.
        waited = 100_000_000 * 5 ** self.rng.randrange(4)
        self._places[name] = self.begins - waited + len(self._places)
        self._where[name] = self.rng.randrange(5)
        self._enter(name, first=True)

    def _beat(self, _name: bytes) -> None:
        if self._where:
            self._enter(self.rng.choice([*self._where]))

    def _leave(self, _name: bytes) -> None:
        if self._has or self._where:
            name = self.rng.choice([*self._has, *self._has, *self._where])
            number = self._has.pop(name) if name in self._has else self._where.pop(name)
            self.ask(leave(name, number))

    def _called(self, push: bytes) -> None:
        name, _, key = push.partition(b" ")
        number = int(key.rpartition(b"#")[2])
        if name not in self._where or self.rng.random() < 0.2:
            self._where.pop(name, None)
            self.ask(decline(key, name))
        else:
            self.moved += self._where[name] != number
            self._where[name] = number
            self._enter(name)

    def _enter(self, name: bytes, *, first: bool = False) -> None:
        request = enter(name, self._places[name], self._where[name], first=first)
        reply = cast("list[int]", self.ask(request))
        if len(reply) == 2 or reply[0] == 0:
            self.granted += 1
            self._has[name] = self._where.pop(name)
        elif reply[0] == 5:
            self._where[name] = reply[1]
            self.moved += 1
            self._enter(name)
