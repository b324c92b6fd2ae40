import random
from collections import deque
from dataclasses import dataclass, field

import pytest
from hypothesis import settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

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

TTL = 1_000
DRIFT = 0.012


def ticket(*answers: Standing, at: float = 0.0) -> Ticket:
    new = Ticket(len(answers))
    for master, standing in enumerate(answers):
        number = new.ask(master, at)
        if standing is not ASKED:
            new.on_reply(master, number, standing)
    return new


def test_a_majority_of_grants_wins_for_as_long_as_the_oldest_of_it_lasts() -> None:
    waiter = Ticket(5)
    for master, sent in enumerate((3.0, 1.0, 2.0)):
        assert waiter.until(TTL, factor=0.01) == 0.0
        waiter.on_reply(master, waiter.ask(master, sent), GRANTED)
    assert waiter.until(TTL, factor=0.01) == pytest.approx(1.0 + 1 - DRIFT)
    waiter.on_reply(3, waiter.ask(3, 2.5), GRANTED)  # now a later majority has it
    assert waiter.until(TTL, factor=0.01) == pytest.approx(2.0 + 1 - DRIFT)


@pytest.mark.promise("S1")
def test_a_grant_counts_from_the_question_that_was_answered_not_from_the_last_one() -> None:
    waiter = Ticket(1)
    first = waiter.ask(0, 1.0)
    waiter.on_reply(0, first, GRANTED)
    waiter.ask(0, 1.9)  # a renewal, whose answer is still away

    assert waiter.until(TTL, factor=0.01) == pytest.approx(1.0 + 1 - DRIFT)
    assert waiter.standings == [GRANTED]


@pytest.mark.promise("S1")
def test_what_was_asked_before_giving_back_does_not_count_after_it() -> None:
    waiter = ticket(GRANTED, GRANTED, BEHIND, BEHIND, ASKED)
    late = waiter.ask(4, 0.0)
    waiter.on_reply(3, waiter.ask(3, 0.0), BEHIND)
    assert not waiter.must_yield
    waiter.on_reply(4, late, BEHIND)
    assert waiter.must_yield
    renewal = waiter.ask(0, 0.1)
    waiter.give_back()

    assert not waiter.on_reply(0, renewal, GRANTED)
    assert waiter.until(TTL, factor=0.01) == 0.0
    assert waiter.standings == [UNASKED, UNASKED, BEHIND, BEHIND, BEHIND]
    assert not waiter.must_yield


def test_an_answer_to_an_older_question_does_not_count() -> None:
    waiter = Ticket(3)
    old = waiter.ask(0, 0.0)
    new = waiter.ask(0, 0.1)
    assert not waiter.on_reply(0, old, GRANTED)
    assert waiter.on_reply(0, new, BEHIND)
    assert waiter.standings[0] is BEHIND


@pytest.mark.parametrize(
    ("answers", "yields"),
    [
        ((GRANTED, GRANTED, BEHIND, BEHIND, BEHIND), True),
        ((GRANTED, GRANTED, BEHIND, BEHIND, FAILED), True),
        ((GRANTED, GRANTED, FULL, BEHIND, FAILED), True),
        ((GRANTED, GRANTED, BEHIND, BEHIND, NEXT), False),  # it may have that one
        ((GRANTED, GRANTED, BEHIND, BEHIND, ASKED), False),
        ((GRANTED, GRANTED, NEXT, NEXT, NEXT), False),  # nobody waits for what it has
        ((BEHIND, BEHIND, BEHIND, BEHIND, BEHIND), False),  # it has nothing
        ((GRANTED, BEHIND), True),
        ((GRANTED, GRANTED, BEHIND, BEHIND), True),
    ],
)
def test_it_gives_back_what_it_cannot_use(answers: tuple[Standing, ...], yields: bool) -> None:
    assert ticket(*answers).must_yield is yields


def test_it_knows_when_there_is_no_sense_in_waiting() -> None:
    assert ticket(FULL, FULL, FULL, GRANTED, ASKED).refused
    assert not ticket(FULL, FULL, BEHIND, BEHIND, BEHIND).refused
    assert ticket(NEXT, NEXT, BEHIND, ASKED, ASKED).lost
    assert not ticket(NEXT, BEHIND, GRANTED, ASKED, ASKED).lost


def test_a_master_that_may_have_forgotten_has_granted_nothing() -> None:
    waiter = ticket(GRANTED, GRANTED, GRANTED)
    renewal = waiter.ask(0, 1.0)
    waiter.forget(0)
    waiter.forget(1)
    assert waiter.until(TTL, factor=0.01) == 0.0
    assert not waiter.on_reply(0, renewal, GRANTED)


# A few masters and waiters, with messages that travel in order on each way; the
# model that they are compared with is a list.


@dataclass
class Waiter:
    place: int
    ticket: Ticket
    tenure: int = 0


@dataclass
class Master:
    """What the scripts do, without time: nobody dies, nothing expires."""

    number: int
    queue: list[int] = field(default_factory=list)
    lock: tuple[int, int] | None = None


class Queues(RuleBasedStateMachine):
    @initialize(masters=st.sampled_from([1, 2, 3, 4, 5]))
    def begin(self, masters: int) -> None:
        self.masters = [Master(number) for number in range(masters)]
        self.waiting: dict[int, Waiter] = {}  # by place: the list that all is compared with
        self.holder: Waiter | None = None
        # Master and place are a way: what travels on it stays in order.
        self.sent: dict[tuple[int, int], deque[tuple[str, int, int]]] = {}
        self.answers: dict[tuple[int, int], deque[tuple[int, Standing]]] = {}
        self.last = 0

    # What waiters do.

    def ask(self, waiter: Waiter, master: Master) -> None:
        number = waiter.ticket.ask(master.number, 0.0)
        self.send(waiter, master, "ask", number)

    def send(self, waiter: Waiter, master: Master, verb: str, number: int = 0) -> None:
        way = self.sent.setdefault((master.number, waiter.place), deque())
        way.append((verb, waiter.tenure, number))

    def consider(self, waiter: Waiter) -> None:
        if waiter.ticket.until(TTL, factor=0.01):
            assert self.holder is None, "two have the lock"
            self.holder = waiter
            del self.waiting[waiter.place]
        elif waiter.ticket.must_yield:
            waiter.ticket.give_back()
            for master in self.masters:
                self.send(waiter, master, "stay")
            waiter.tenure += 1

    @precondition(lambda self: len(self.waiting) < 6)
    @rule(skipped=st.integers(0, 3))
    def come(self, skipped: int) -> None:
        self.last += 1 + skipped
        waiter = Waiter(self.last, Ticket(len(self.masters)))
        self.waiting[waiter.place] = waiter
        for master in self.masters:
            self.ask(waiter, master)

    @precondition(lambda self: self.waiting)
    @rule(chance=st.randoms(use_true_random=False))
    def go(self, chance: random.Random) -> None:
        place = chance.choice(sorted(self.waiting))
        waiter = self.waiting.pop(place)
        for master in self.masters:
            self.send(waiter, master, "go")

    @precondition(lambda self: self.holder)
    @rule()
    def release(self) -> None:
        assert self.holder is not None
        for master in self.masters:
            self.send(self.holder, master, "go")
        self.holder = None

    @precondition(lambda self: self.waiting)
    @rule(chance=st.randoms(use_true_random=False))
    def beat(self, chance: random.Random) -> None:
        waiter = self.waiting[chance.choice(sorted(self.waiting))]
        for master in self.masters:
            self.ask(waiter, master)

    # What masters do.

    def serve(self, number_of_master: int, place: int) -> None:
        master = self.masters[number_of_master]
        verb, tenure, number = self.sent[number_of_master, place].popleft()
        if verb == "ask":
            if place not in master.queue:
                master.queue.append(place)
                master.queue.sort()
            first = master.queue[0] == place
            if master.lock == (place, tenure) or (first and master.lock is None):
                master.lock = (place, tenure)
                said = GRANTED
            else:
                said = NEXT if first else BEHIND
            self.answers.setdefault((master.number, place), deque()).append((number, said))
            return
        if master.lock == (place, tenure):
            master.lock = None
        if verb == "go":
            master.queue.remove(place)
        if master.lock is None and master.queue and master.queue[0] != place:
            self.wake(master.queue[0], master)

    def wake(self, place: int, master: Master) -> None:
        if place in self.waiting:
            self.ask(self.waiting[place], master)

    def hear(self, master: int, place: int) -> None:
        number, said = self.answers[master, place].popleft()
        waiter = self.waiting.get(place)
        if waiter is not None and waiter.ticket.on_reply(master, number, said):
            self.consider(waiter)

    @rule(chance=st.randoms(use_true_random=False), steps=st.integers(1, 30))
    def travel(self, chance: random.Random, steps: int) -> None:
        """Let some messages arrive, each way in order, all ways in any."""
        for _ in range(steps):
            sent = sorted(key for key, said in self.sent.items() if said)
            answers = sorted(key for key, said in self.answers.items() if said)
            if not sent + answers:
                return
            way = chance.randrange(len(sent) + len(answers))
            if way < len(sent):
                self.serve(*sent[way])
            else:
                self.hear(*answers[way - len(sent)])

    def drain(self) -> None:
        while any(self.sent.values()) or any(self.answers.values()):
            for key in sorted(self.sent):
                while self.sent[key]:
                    self.serve(*key)
            for key in sorted(self.answers):
                while self.answers[key]:
                    self.hear(*key)

    @rule(often=st.integers(0, 5))
    def sometimes_settle(self, often: int) -> None:
        if not often:
            self.settle()

    def settle(self) -> None:
        """When all is said, and everybody has been heard again, somebody has the lock."""
        expected = self.holder
        wanted = bool(self.waiting)
        for _ in range(3):
            self.drain()
            for waiter in list(self.waiting.values()):
                for master in self.masters:
                    self.ask(waiter, master)
        self.drain()
        if expected is not None:
            assert self.holder is expected
        else:
            assert self.holder is not None or not wanted, "nobody gets on"

    @invariant()
    def the_holder_has_a_majority(self) -> None:
        held = [m.lock for m in getattr(self, "masters", [])]
        if held and self.holder is not None:
            own = (self.holder.place, self.holder.tenure)
            assert held.count(own) > len(self.masters) / 2


class InOrder(RuleBasedStateMachine):
    """Everybody is heard by all masters before the next comes: then the order is the list's."""

    @initialize(masters=st.sampled_from([1, 2, 3, 5]))
    def begin(self, masters: int) -> None:
        self.queues = Queues()
        self.queues.begin(masters)
        self.model: list[int] = []

    @precondition(lambda self: len(self.model) < 6)
    @rule()
    def come(self) -> None:
        self.queues.come(0)
        self.queues.settle()
        self.model.append(self.queues.last)
        self.check()

    @precondition(lambda self: len(self.model) > 1)
    @rule(chance=st.randoms(use_true_random=False))
    def go(self, chance: random.Random) -> None:
        before = set(self.queues.waiting)
        self.queues.go(chance)
        (gone,) = before - set(self.queues.waiting)
        self.model.remove(gone)
        self.queues.settle()
        self.check()

    @precondition(lambda self: self.model)
    @rule()
    def release(self) -> None:
        self.queues.release()
        self.queues.settle()
        del self.model[0]
        self.check()

    def check(self) -> None:
        holder = self.queues.holder
        assert (holder.place if holder else None) == (self.model[0] if self.model else None)
        assert sorted(self.queues.waiting) == self.model[1:]


TestQueues = Queues.TestCase
TestQueues.settings = settings(stateful_step_count=60, deadline=None)
TestInOrder = InOrder.TestCase
TestInOrder.settings = settings(stateful_step_count=30, deadline=None)


@pytest.mark.seeds(20, full=40)
def test_two_never_have_it_and_somebody_always_gets_on(seed: int) -> None:
    """The same machine, in long runs with more going on than hypothesis finds."""
    chance = random.Random(seed)
    queues = Queues()
    queues.begin(chance.choice([3, 4, 5]))
    for _ in range(300):
        what = chance.random()
        if what < 0.3 and len(queues.waiting) < 6:
            queues.come(0)
        elif what < 0.35 and queues.waiting:
            queues.go(chance)
        elif what < 0.5 and queues.holder is not None:
            queues.release()
        elif what < 0.6 and queues.waiting:
            queues.beat(chance)
        elif what < 0.62:
            queues.settle()
        else:
            queues.travel(chance, chance.randint(1, 12))
        queues.the_holder_has_a_majority()


@pytest.mark.promise("S7")
def test_a_counter_is_what_the_last_grant_said_while_it_lasts() -> None:
    """A master that has lost its memory says less; only those count that have granted."""
    ticket = Ticket(3)

    def counters(now: float = 1.5) -> list[int]:
        return ticket.counters(now, TTL, factor=0.01)

    for master, counter in ((0, 9), (1, 7)):
        assert ticket.on_reply(master, ticket.ask(master, 1.0), GRANTED, counter)
    assert counters() == [9, 7]
    assert counters(1.0 + 1 - DRIFT) == []
    ticket.forget(0)
    assert counters() == [7]
    assert ticket.on_reply(0, ticket.ask(0, 1.2), GRANTED, 5)
    assert counters() == [5, 7]
    assert counters(2.1) == [5]
    ticket.give_back()
    assert counters() == []
