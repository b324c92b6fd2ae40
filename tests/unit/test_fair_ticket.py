"""What the replies of all masters to one fair waiter amount to."""

import random
from collections import defaultdict, deque
from dataclasses import dataclass, field
from typing import TypeVar

import pytest

from redlock_aio._rules.fair_ticket import (
    ASKED,
    BEHIND,
    FAILED,
    FULL,
    GRANTED,
    NEXT,
    UNASKED,
    Standing,
    Ticket,
)

T = TypeVar("T")
TTL = 1_000
DRIFT = 0.012
FACTOR = 0.01


def ticket(*standings: Standing) -> Ticket:
    """Return the ticket of a waiter that has got these replies."""
    new = Ticket(len(standings))
    for master, standing in enumerate(standings):
        number = new.ask(master, 0.0)
        if standing is not ASKED:
            new.on_reply(master, number, standing)
    return new


def until(ticket: Ticket) -> float:
    return ticket.until(TTL, factor=FACTOR)


def test_a_majority_of_grants_is_valid_for_as_long_as_its_oldest() -> None:
    waiter = Ticket(5)
    for master, sent in enumerate((3.0, 1.0, 2.0)):
        assert until(waiter) == 0.0
        waiter.on_reply(master, waiter.ask(master, sent), GRANTED)
    assert until(waiter) == pytest.approx(1.0 + 1 - DRIFT)
    waiter.on_reply(3, waiter.ask(3, 2.5), GRANTED)  # completes a majority of later grants
    assert until(waiter) == pytest.approx(2.0 + 1 - DRIFT)


@pytest.mark.promise("S1")
def test_grants_make_a_majority_only_if_they_were_given_within_a_short_time() -> None:
    """Between an early and a late one the lock may have been released by force."""
    waiter = Ticket(3)
    for master, sent in ((0, 1.0), (1, 5.0)):
        number = waiter.ask(master, sent)
        waiter.on_reply(master, number, GRANTED, done=sent + 0.01)
    assert waiter.until(10_000, factor=FACTOR, within=1.0) == 0.0
    waiter.on_reply(2, waiter.ask(2, 5.1), GRANTED, done=5.11)
    assert waiter.until(10_000, factor=FACTOR, within=1.0) == pytest.approx(5.0 + 10 - 0.102)


@pytest.mark.promise("S1")
def test_a_grant_counts_from_the_request_that_was_answered() -> None:
    waiter = Ticket(1)
    waiter.on_reply(0, waiter.ask(0, 1.0), GRANTED)
    waiter.ask(0, 1.9)  # a renewal, not answered yet
    assert until(waiter) == pytest.approx(1.0 + 1 - DRIFT)
    assert waiter.standings == [GRANTED]


@pytest.mark.promise("S1")
def test_replies_to_requests_before_a_give_back_are_void() -> None:
    waiter = ticket(GRANTED, GRANTED, BEHIND, BEHIND, ASKED)
    assert not waiter.must_yield
    waiter.on_reply(4, waiter.ask(4, 0.0), BEHIND)
    assert waiter.must_yield
    renewal = waiter.ask(0, 0.1)
    waiter.give_back()
    assert not waiter.on_reply(0, renewal, GRANTED)
    assert until(waiter) == 0.0
    assert waiter.standings == [UNASKED, UNASKED, BEHIND, BEHIND, BEHIND]
    assert not waiter.must_yield


def test_a_reply_to_an_older_request_is_void() -> None:
    waiter = Ticket(3)
    old, new = waiter.ask(0, 0.0), waiter.ask(0, 0.1)
    assert not waiter.on_reply(0, old, GRANTED)
    assert waiter.on_reply(0, new, BEHIND)
    assert waiter.standings[0] is BEHIND


def test_grants_of_a_master_that_may_have_lost_its_memory_are_void() -> None:
    waiter = ticket(GRANTED, GRANTED, GRANTED)
    renewal = waiter.ask(0, 1.0)
    waiter.forget(0)
    waiter.forget(1)
    assert until(waiter) == 0.0
    assert not waiter.on_reply(0, renewal, GRANTED)


@pytest.mark.parametrize(
    ("standings", "yields"),
    [
        ((GRANTED, GRANTED, BEHIND, BEHIND, BEHIND), True),
        ((GRANTED, GRANTED, FULL, BEHIND, FAILED), True),
        ((GRANTED, GRANTED, BEHIND, BEHIND, NEXT), False),  # the lock may come free there
        ((GRANTED, GRANTED, BEHIND, BEHIND, ASKED), False),
        ((GRANTED, GRANTED, NEXT, NEXT, NEXT), False),  # no other waiter needs its grants
        ((BEHIND, BEHIND, BEHIND, BEHIND, BEHIND), False),  # there is nothing to give back
        ((GRANTED, BEHIND), True),
        ((GRANTED, GRANTED, BEHIND, BEHIND), True),
    ],
)
def test_grants_that_cannot_become_a_majority_are_given_back(
    standings: tuple[Standing, ...], yields: bool
) -> None:
    assert ticket(*standings).must_yield is yields


def test_it_is_known_when_no_wait_can_help() -> None:
    assert ticket(FULL, FULL, FULL, GRANTED, ASKED).refused
    assert not ticket(FULL, FULL, BEHIND, BEHIND, BEHIND).refused
    assert ticket(NEXT, NEXT, BEHIND, ASKED, ASKED).lost
    assert not ticket(NEXT, BEHIND, GRANTED, ASKED, ASKED).lost


@pytest.mark.promise("S7")
def test_only_counters_of_valid_grants_are_used() -> None:
    """A master that has lost its memory has a lower counter."""
    waiter = Ticket(3)

    def counters(now: float = 1.5) -> list[int]:
        return waiter.counters(now, TTL, factor=FACTOR)

    for master, counter in ((0, 9), (1, 7)):
        assert waiter.on_reply(master, waiter.ask(master, 1.0), GRANTED, counter)
    assert counters() == [9, 7]
    assert counters(1.0 + 1 - DRIFT) == []
    waiter.forget(0)
    assert counters() == [7]
    assert waiter.on_reply(0, waiter.ask(0, 1.2), GRANTED, 5)
    assert counters() == [5, 7]
    assert counters(2.1) == [5]
    waiter.give_back()
    assert counters() == []


# A model: masters and waiters whose messages stay in order on each way, and in no other order.


@dataclass
class Waiter:
    """A waiter; with each new *tenure* its token changes."""

    place: int
    ticket: Ticket
    tenure: int = 0


@dataclass
class Master:
    """What the scripts do, without time: no waiter dies, and nothing expires."""

    number: int
    queue: list[int] = field(default_factory=list)
    lock: tuple[int, int] | None = None
    """The place and the tenure of the holder."""


def next_of(messages: dict[tuple[int, int], deque[T]], way: tuple[int, int]) -> T:
    """Remove the next message of one way, and return it."""
    message = messages[way].popleft()
    if not messages[way]:
        del messages[way]
    return message


class Model:
    """Some masters, their waiters and the messages underway; *chance* decides what happens."""

    def __init__(self, masters: int, chance: random.Random) -> None:
        self.chance = chance
        self.masters = [Master(number) for number in range(masters)]
        self.waiting: dict[int, Waiter] = {}
        self.holder: Waiter | None = None
        # By the number of the master and the place of the waiter.
        self.requests: dict[tuple[int, int], deque[tuple[str, int, int]]] = defaultdict(deque)
        self.answers: dict[tuple[int, int], deque[tuple[int, Standing]]] = defaultdict(deque)
        self.last = 0

    # Waiters.

    def send(self, waiter: Waiter, verb: str) -> None:
        for master in self.masters:
            self.send_to(master, waiter, verb)

    def send_to(self, master: Master, waiter: Waiter, verb: str) -> None:
        number = waiter.ticket.ask(master.number, 0.0) if verb == "ask" else 0
        self.requests[master.number, waiter.place].append((verb, waiter.tenure, number))

    def come(self) -> None:
        self.last += 1
        waiter = self.waiting[self.last] = Waiter(self.last, Ticket(len(self.masters)))
        self.send(waiter, "ask")

    def go(self) -> None:
        self.send(self.waiting.pop(self.chance.choice(sorted(self.waiting))), "go")

    def release(self) -> None:
        assert self.holder is not None
        self.send(self.holder, "go")
        self.holder = None

    def receive(self, master: int, place: int) -> None:
        number, standing = next_of(self.answers, (master, place))
        waiter = self.waiting.get(place)
        if waiter is None or not waiter.ticket.on_reply(master, number, standing):
            return
        if until(waiter.ticket):
            assert self.holder is None, "two have the lock"
            self.holder = self.waiting.pop(place)
        elif waiter.ticket.must_yield:
            waiter.ticket.give_back()
            self.send(waiter, "stay")
            waiter.tenure += 1

    # Masters.

    def execute(self, master: int, place: int) -> None:
        verb, tenure, number = next_of(self.requests, (master, place))
        at = self.masters[master]
        if verb == "ask":
            at.queue = sorted({*at.queue, place})
            is_first = at.queue[0] == place
            if is_first and at.lock is None:
                at.lock = (place, tenure)
            is_ours = at.lock == (place, tenure)
            standing = GRANTED if is_ours else NEXT if is_first else BEHIND
            self.answers[master, place].append((number, standing))
            return
        if at.lock == (place, tenure):
            at.lock = None
        if verb == "go":
            at.queue.remove(place)
        if at.lock is None and at.queue and at.queue[0] != place and at.queue[0] in self.waiting:
            self.send_to(at, self.waiting[at.queue[0]], "ask")

    # Messages.

    def travel(self, steps: int | None = None) -> None:
        """Let *steps* messages arrive, each way in order; all of them without a number."""
        while steps != 0:
            ways = [(self.execute, way) for way in self.requests]
            ways += [(self.receive, way) for way in self.answers]
            if not ways:
                return
            arrive, way = self.chance.choice(ways)
            arrive(*way)
            steps = None if steps is None else steps - 1

    def settle(self) -> None:
        """Let all messages arrive and all waiters ask again; then somebody has the lock."""
        expected, is_wanted = self.holder, bool(self.waiting)
        for _ in range(3):
            self.travel()
            for waiter in list(self.waiting.values()):
                self.send(waiter, "ask")
        self.travel()
        assert self.holder is expected or expected is None
        assert self.holder is not None or not is_wanted, "nobody gets the lock"

    def check(self) -> None:
        if self.holder is not None:
            own = (self.holder.place, self.holder.tenure)
            assert [master.lock for master in self.masters].count(own) > len(self.masters) / 2


@pytest.mark.seeds(20, full=60)
def test_one_waiter_at_a_time_has_a_majority_and_one_always_gets_it(seed: int) -> None:
    chance = random.Random(seed)
    model = Model(chance.choice([1, 2, 3, 4, 5]), chance)
    for _ in range(300):
        draw = chance.random()
        if draw < 0.3 and len(model.waiting) < 6:
            model.come()
        elif draw < 0.35 and model.waiting:
            model.go()
        elif draw < 0.5 and model.holder is not None:
            model.release()
        elif draw < 0.6 and model.waiting:
            model.send(chance.choice(list(model.waiting.values())), "ask")
        elif draw < 0.62:
            model.settle()
        else:
            model.travel(chance.randint(1, 12))
        model.check()


@pytest.mark.seeds(5, full=20)
def test_waiters_that_all_masters_know_are_served_in_order(seed: int) -> None:
    chance = random.Random(seed)
    model = Model(chance.choice([1, 2, 3, 5]), chance)
    places: list[int] = []
    for _ in range(40):
        draw = chance.random()
        if draw < 0.5 and len(places) < 6:
            model.come()
            places.append(model.last)
        elif draw < 0.7 and len(places) > 1:
            before = set(model.waiting)
            model.go()
            places.remove(*before - set(model.waiting))
        elif places:
            model.release()
            del places[0]
        model.settle()
        assert [model.holder.place] == places[:1] if model.holder else not places
        assert sorted(model.waiting) == places[1:]
