"""
All interleavings of two waiters in the fair queues of a lock.

Runs the shipped code: `Ticket`, `commands.enqueue` and `commands.leave` with their Lua
scripts, and `replies.queued`.

Models itself: the waiter, which sends requests, gives up on a reply, yields, releases grants
that are too old, and leaves the queues and enters them again at a new place (the shipped one
is `FairWaiter`); connections, which keep the order of messages and may delay them for ever;
and time, which does not run: each of its effects may happen at any moment. A lock ends only by
a release, so the two waiters must never hold it at once.
"""

import functools
import math
from collections.abc import Iterator

from redlock_aio._protocol import commands, replies
from redlock_aio._rules.fair_ticket import ASKED, FAILED, GRANTED, SILENT, Move, Position, Ticket

from .masters import MasterKeys, words
from .rules import SHIPPED, Rules
from .search import Step, replaced

WAITING, HELD, DONE = range(3)

WaiterState = tuple[int, int]
"""Whether the waiter waits, holds the lock or is done, and its claim: see `_name`."""

Message = tuple[int, int, int]
"""
A request: its number, the claim, 0 or `FIRST`. Or a leave: 0, the claim, `LEAVES` or `STAYS`. Or
0, the claim, `ENTERS`: a request whose reply is void already.
"""

Side = tuple[int, int, int, tuple[Message, ...], tuple[tuple[int, int], ...]]
"""
One master and one waiter: the waiter's standing, the number of its last request, how many
more requests it may send, the messages underway to the master, and the replies underway.
"""

Column = tuple[int, tuple[int, ...], tuple[Side, ...]]
"""One master: the holder and its claim, the members of its queue, and its sides."""

Waiters = tuple[WaiterState, ...]

State = tuple[Waiters, tuple[Column, ...]]

Sides = tuple[Side, ...]
"""The sides of one waiter, in the order of the masters."""

Turn = tuple[str, Waiters, Sides, str]
"""What a waiter does: the label, the waiters and its sides then, and the broken property."""

STANDINGS = tuple(Position)
NUMBER = {standing: number for number, standing in enumerate(STANDINGS)}
NOBODY = -1
LEAVES, STAYS, FIRST, ENTERS = 1, 2, 3, 4
OUTSIDE = len(STANDINGS)
"""The standing of a waiter that was granted the lock without an entry in the queue."""
RENAMED = 4
"""Added to the claims of a waiter that has left the queues and enters again."""
KEYS = (b"r", *commands.queue_keys(b"r"))
TTL = LIVES = 1000
NEVER = 10**9


class Waiting:
    """
    Two waiters; the second came first in the queue.

    Args:
        masters: The number of masters.

        requests: How many requests each waiter may send to one master.

        yields: How often a waiter may release its grants and keep its place.

        ages: Whether grants, and requests without a reply, may become too old at any moment.

        leaves: Whether the first in the queue may leave once and enter again.
    """

    def __init__(
        self,
        masters: int,
        rules: Rules = SHIPPED,
        *,
        requests: tuple[int, int] = (1, 1),
        yields: int = 1,
        ages: bool = False,
        leaves: bool = False,
    ) -> None:
        self._masters = masters
        self._rules = rules
        self._requests = requests
        self._yields = yields
        self._ages = ages
        self._leaves = leaves
        # A waiter knows its own sides only, and a hundred states have the same.
        self._turns = functools.cache(self._all_turns)

    def first(self) -> State:
        """Return the state before the first request."""
        sides: tuple[Side, ...] = tuple([(0, 0, most, (), ()) for most in self._requests])
        return ((WAITING, 0),) * 2, ((NOBODY, (), sides),) * self._masters

    def steps(self, state: State) -> Iterator[Step[State]]:
        """Return all that can happen next."""
        waiters, columns = state
        if all(phase != WAITING for phase, _ in waiters):
            return
        turns = []
        for w in range(len(waiters)):
            by_time, at = self._turns(waiters, tuple([sides[w] for _, _, sides in columns]), w)
            for turn in by_time:
                yield _taken(columns, w, turn)
            turns.append(at)
        for i, column in enumerate(columns):
            if i and column == columns[i - 1]:
                continue
            for w, (phase, _) in enumerate(waiters):
                if column[2][w][3]:
                    label, served = _served(column, w, listens=phase == WAITING)
                    yield label, (waiters, tuple(sorted(replaced(columns, i, served)))), ""
                for turn in turns[w][i]:
                    yield _taken(columns, w, turn)

    def _all_turns(
        self, waiters: Waiters, sides: Sides, w: int
    ) -> tuple[list[Turn], list[list[Turn]]]:
        """Return what a waiter does by itself, and what it may do at each master."""
        phase, claim = waiters[w]
        if phase == WAITING:
            at = [list(self._turns_at(waiters, sides, i, w)) for i in range(len(sides))]
            return list(self._timed_turns(waiters, sides, w)), at
        by_itself: list[Turn] = []
        if phase == HELD:
            after = _with_message(sides, (0, claim, LEAVES))
            by_itself = [(f"{w} releases", replaced(waiters, w, (DONE, claim)), after, "")]
        return by_itself, [[]] * len(sides)

    def _timed_turns(self, waiters: Waiters, sides: Sides, w: int) -> Iterator[Turn]:
        """Return the turns of a waiter that time may cause."""
        claim = waiters[w][1]
        ticket = self._ticket(sides)
        if self._ages and ticket.stale_at(0.0) <= 0.0 and claim % RENAMED < self._yields:
            sides = _with_entries(sides, claim)
            ticket.give_back()
            after = _with_message(_with_ticket(sides, ticket), (0, claim, STAYS))
            label = f"{w} gives back grants that are too old"
            yield label, replaced(waiters, w, (WAITING, claim + 1)), after, ""
        if self._leaves and w and claim < RENAMED:
            ticket = self._ticket(sides)
            ticket.start_over(0.0)
            after = _with_message(_with_ticket(sides, ticket), (0, claim, LEAVES))
            label = f"{w} leaves the queues, and will enter them again"
            yield label, replaced(waiters, w, (WAITING, RENAMED)), after, ""

    def _turns_at(self, waiters: Waiters, sides: Sides, i: int, w: int) -> Iterator[Turn]:
        standing, _, left, sent, replies = sides[i]
        if left and _standing(standing) is not ASKED:
            ticket = self._ticket(sides)
            number = ticket.ask(i, 0.0)
            claim = waiters[w][1]
            kind = FIRST if number == 1 and not claim else 0
            changed = (left - 1, (*sent, (number, claim, kind)), replies)
            yield f"{w} sends a request", waiters, _with_changes(sides, ticket, i, changed), ""
        if _standing(standing) is ASKED:
            ticket = self._ticket(sides)
            # As the shipped waiter does after the master timeout, or when a connection ends.
            ticket.standings[i] = SILENT if self._ages else FAILED
            label = f"{w} gives up on a reply"
            yield from self._after_reply(waiters, sides, i, w, ticket, replies, label)
        if replies:
            ticket = self._ticket(sides)
            number, standing_now = replies[0]
            counts = ticket.on_reply(i, number, _standing(standing_now))
            if counts:  # a reply that is void does not change where the waiter has an entry
                sides = replaced(sides, i, (standing_now, *sides[i][1:]))
            label = f"{w} gets {_name_of(standing_now)} to request {number}"
            yield from self._after_reply(waiters, sides, i, w, ticket, replies[1:], label)

    def _after_reply(
        self,
        waiters: Waiters,
        sides: Sides,
        i: int,
        w: int,
        ticket: Ticket,
        replies: tuple[tuple[int, int], ...],
        label: str,
    ) -> Iterator[Turn]:
        """Return the turn of a waiter after a reply: it holds the lock, yields or waits on."""
        claim = waiters[w][1]
        broken = ""
        left, sent = sides[i][2:4]
        ticket.outside = sum(1 << j for j, side in enumerate(sides) if side[0] == OUTSIDE)
        move = ticket.move(0.0, patient=True, within=math.inf)
        if move is Move.WIN:
            label += ", and holds the lock"
            if waiters[1 - w][0] == HELD:
                broken = "P3: both waiters hold the lock at once"
            # A holder handles no more replies.
            won = _with_changes(sides, ticket, i, (0, sent, ()))
            after: Sides = tuple([(0, 0, 0, side[3], ()) for side in won])
            waiters = replaced(waiters, w, (HELD, claim))
        elif move in (Move.YIELD, Move.YIELD_AND_ENTER):
            if claim % RENAMED == self._yields:
                return
            label += ", and gives back its grants"
            sides = _with_entries(sides, claim)
            left, sent = sides[i][2:4]
            ticket.give_back()
            after = _with_changes(sides, ticket, i, (left, sent, replies))
            after = _with_message(after, (0, claim, STAYS))
            waiters = replaced(waiters, w, (WAITING, claim + 1))
        else:
            after = _with_changes(sides, ticket, i, (left, sent, replies))
        yield label, waiters, after, broken

    def _ticket(self, sides: Sides) -> Ticket:
        ticket = self._rules.ticket(len(sides), TTL / 1000)
        ticket.standings = [_standing(side[0]) for side in sides]
        ticket._numbers = [side[1] for side in sides]
        return ticket


def _served(column: Column, w: int, *, listens: bool) -> tuple[str, Column]:
    """Return a master's action on the first message underway from a waiter: label and column."""
    holder, queue, sides = column
    standing, number, left, sent, replies = sides[w]
    asked, claim, leaves = sent[0]
    if leaves in (LEAVES, STAYS):
        label = f"a master gets the leave of {w}"
        holder, queue = _left(holder, queue, w, claim, leaves == STAYS)
    else:
        standing_now, holder, queue = _enqueued(holder, queue, w, claim, leaves == FIRST)
        label = f"a master answers {w}: {_name_of(standing_now)}"
        if listens and leaves != ENTERS:
            replies = (*replies, (asked, standing_now))
    side = (standing, number, left, sent[1:], replies)
    return label, (holder, queue, replaced(sides, w, side))


def _standing(number: int) -> Position:
    """Return the standing as a ticket has it."""
    return GRANTED if number == OUTSIDE else STANDINGS[number]


def _name_of(number: int) -> str:
    return "GRANTED outside of the queue" if number == OUTSIDE else STANDINGS[number].name


def _master(holder: int, queue: tuple[int, ...]) -> MasterKeys:
    master = MasterKeys()
    data = master.data
    if holder != NOBODY:
        data.set(KEYS[0], b"%d" % holder)
    for name in queue:
        data.zadd(KEYS[1], _place(name), b"%d" % name)
        data.zadd(KEYS[1], 4e15 - LIVES, b"~%d" % name)
    return master


def _name(w: int, claim: int) -> int:
    """Return the member of the queues for a claim."""
    return w + 2 * (claim // RENAMED)


def _place(name: int) -> int:
    # The second waiter came first, but the first may send its request earlier. A waiter that
    # enters again comes after both.
    return 10 * (name // 2) + 10 - name % 2


def _claim(w: int, claim: int) -> bytes:
    return b"%d" % (10 * w + claim)


def _contents(master: MasterKeys) -> tuple[int, tuple[int, ...]]:
    data = master.data
    holder = data.get(KEYS[0])
    members = data.zall(KEYS[1])
    queue = tuple([name for name in range(4) if b"%d" % name in members])
    return NOBODY if holder is None else int(holder), queue


@functools.cache
def _enqueued(
    holder: int, queue: tuple[int, ...], w: int, claim: int, first: bool
) -> tuple[int, int, tuple[int, ...]]:
    master = _master(holder, queue)
    payload = commands.enqueue(
        KEYS,
        _claim(w, claim),
        TTL,
        commands.QueueEntry(
            member=b"%d" % _name(w, claim),
            priority=_place(_name(w, claim)),
            lives=LIVES,
            most=9,
            not_after=NEVER,
            first=first,
        ),
    )
    standing_now = replies.queued(master.run(words(payload)))
    assert standing_now is not None
    number = NUMBER[standing_now.standing] if standing_now.in_queue else OUTSIDE
    return number, *_contents(master)


@functools.cache
def _left(
    holder: int, queue: tuple[int, ...], w: int, claim: int, stays: bool
) -> tuple[int, tuple[int, ...]]:
    master = _master(holder, queue)
    member = b"%d" % _name(w, claim)
    master.run(words(commands.leave(KEYS, _claim(w, claim), member, keep_place=stays)))
    return _contents(master)


# Changed sides and columns


def _with_changes(
    sides: Sides,
    ticket: Ticket,
    i: int,
    changed: tuple[int, tuple[Message, ...], tuple[tuple[int, int], ...]],
) -> Sides:
    """Return the sides with the contents of *ticket*, and *changed* at master *i*."""
    after: list[Side] = []
    for j, side in enumerate(sides):
        outside = side[0] == OUTSIDE and ticket.standings[j] is GRANTED
        standing = OUTSIDE if outside else NUMBER[ticket.standings[j]]
        after.append((standing, ticket._numbers[j], *(changed if j == i else side[2:])))
    return tuple(after)


def _with_ticket(sides: Sides, ticket: Ticket) -> Sides:
    """Return the sides with the contents of *ticket*."""
    return _with_changes(sides, ticket, 0, sides[0][2:])


def _with_entries(sides: Sides, claim: int) -> Sides:
    """Return the sides with what a waiter sends before it gives back grants without entries."""
    after = []
    for standing, number, left, sent, underway in sides:
        asked = not claim and number == 1 and _standing(standing) in (ASKED, SILENT)
        enters = standing == OUTSIDE or asked
        messages = (*sent, (0, claim, ENTERS)) if enters else sent
        after.append((standing, number, left, messages, underway))
    return tuple(after)


def _with_message(sides: Sides, message: Message) -> Sides:
    return tuple([
        (standing, number, left, (*sent, message), underway)
        for standing, number, left, sent, underway in sides
    ])  # fmt: skip


def _taken(columns: tuple[Column, ...], w: int, turn: Turn) -> Step[State]:
    """Return the step of a waiter that takes a turn."""
    label, waiters, own, broken = turn
    after = [
        (holder, queue, replaced(sides, w, side))
        for (holder, queue, sides), side in zip(columns, own, strict=True)
    ]
    return label, (waiters, tuple(sorted(after))), broken
