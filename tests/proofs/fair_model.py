"""
All interleavings of two waiters in the fair queues of a lock.

Runs what is shipped: `Ticket`, `commands.enqueue` and `commands.leave` with their Lua
scripts, and `replies.queued`.

Models itself: the waiter, which asks, gives up on a reply, yields, releases what is too
old, and leaves the queues and enters them again at a new place (the shipped one is
`FairWaiter`); connections, which keep the order of messages and may take for ever; and
time, of which there is none: whatever time can do may happen at any moment. A lock ends only
by a release, so the two waiters must never hold it at once.
"""

import functools
from collections.abc import Iterator

from redlock_aio._protocol import commands, replies
from redlock_aio._rules.fair_ticket import ASKED, FAILED, SILENT, Standing, Ticket

from .masters import Keys, words
from .rules import SHIPPED, Rules
from .search import Step, replaced

WAITING, HELD, DONE = range(3)

Waiter = tuple[int, int]
"""Whether it waits, holds or is done, and its claim: see `_name`."""

Message = tuple[int, int, int]
"""A request: its number, the claim, and 0. Or a leave: 0, the claim, and whether it stays."""

Side = tuple[int, int, int, tuple[Message, ...], tuple[tuple[int, int], ...]]
"""
One master and one waiter: the standing there, the number of the last request, how many
requests are left, the messages to the master, and the replies underway.
"""

Column = tuple[int, tuple[int, ...], tuple[Side, ...]]
"""One master: the holder and its claim, the members of its queue, and its sides."""

State = tuple[tuple[Waiter, ...], tuple[Column, ...]]

STANDINGS = tuple(Standing)
NUMBER = {standing: number for number, standing in enumerate(STANDINGS)}
NOBODY = -1
LEAVES, STAYS = 1, 2
RENAMED = 4
"""Added to the claims of a waiter that has left the queues and enters again."""
KEYS = (b"r", *commands.queue_keys(b"r"))
TTL = LIVES = 1000
NEVER = 10**9


class Waiting:
    """
    Two waiters; the second was first in the queue.

    Args:
        masters: How many there are.

        questions: How often each waiter may ask one of them.

        yields: How often a waiter may release its grants and keep its place.

        ages: Whether grants, and requests without a reply, may be too old at any moment.

        leaves: Whether the first in the queue may leave once, and enter again.
    """

    def __init__(
        self,
        masters: int,
        rules: Rules = SHIPPED,
        *,
        questions: tuple[int, int] = (1, 1),
        yields: int = 1,
        ages: bool = False,
        leaves: bool = False,
    ) -> None:
        self._masters = masters
        self._rules = rules
        self._questions = questions
        self._yields = yields
        self._ages = ages
        self._leaves = leaves

    def first(self) -> State:
        """Return the state in which nobody has asked."""
        sides: tuple[Side, ...] = tuple([(0, 0, most, (), ()) for most in self._questions])
        return ((WAITING, 0),) * 2, ((NOBODY, (), sides),) * self._masters

    def steps(self, state: State) -> Iterator[Step[State]]:
        """Return all that can happen next."""
        waiters, columns = state
        if all(phase != WAITING for phase, _ in waiters):
            return
        for w, (phase, claim) in enumerate(waiters):
            if phase == HELD:
                after = _sent(columns, w, (0, claim, LEAVES))
                yield f"{w} releases", (replaced(waiters, w, (DONE, claim)), after), ""
            elif phase == WAITING:
                yield from self._goes(state, w)
        for i, column in enumerate(columns):
            if i and column == columns[i - 1]:
                continue
            for w, (phase, _) in enumerate(waiters):
                if column[2][w][3]:
                    label, served = _served(column, w, listens=phase == WAITING)
                    yield label, (waiters, tuple(sorted(replaced(columns, i, served)))), ""
                if phase == WAITING:
                    yield from self._receives(state, i, w)

    def _goes(self, state: State, w: int) -> Iterator[Step[State]]:
        """Return the steps of a waiter that time may cause."""
        waiters, columns = state
        claim = waiters[w][1]
        ticket = self._ticket(columns, w)
        if self._ages and ticket.stale_at(0.0) <= 0.0 and claim % RENAMED < self._yields:
            ticket.give_back()
            after = _sent(_stands(columns, w, ticket), w, (0, claim, STAYS))
            label = f"{w} gives back what is too old"
            yield label, (replaced(waiters, w, (WAITING, claim + 1)), tuple(sorted(after))), ""
        if self._leaves and w and claim < RENAMED:
            ticket = self._ticket(columns, w)
            ticket.start_over()
            after = _sent(_stands(columns, w, ticket), w, (0, claim, LEAVES))
            label = f"{w} leaves the queues, and will enter them again"
            yield label, (replaced(waiters, w, (WAITING, RENAMED)), tuple(sorted(after))), ""

    def _receives(self, state: State, i: int, w: int) -> Iterator[Step[State]]:
        waiters, columns = state
        standing, _, left, sent, replies = columns[i][2][w]
        if left and STANDINGS[standing] is not ASKED:
            ticket = self._ticket(columns, w)
            number = ticket.ask(i, 0.0)
            changed = (left - 1, (*sent, (number, waiters[w][1], 0)), replies)
            after = _written(columns, w, ticket, i, changed)
            yield f"{w} asks a master", (waiters, tuple(sorted(after))), ""
        if STANDINGS[standing] is ASKED:
            ticket = self._ticket(columns, w)
            # As a waiter does after the master timeout, or when the connection ends.
            ticket.standings[i] = SILENT if self._ages else FAILED
            yield from self._considers(state, i, w, ticket, replies, "gives up on an answer")
        if replies:
            ticket = self._ticket(columns, w)
            number, said = replies[0]
            ticket.on_reply(i, number, STANDINGS[said])
            label = f"gets {STANDINGS[said].name} to request {number}"
            yield from self._considers(state, i, w, ticket, replies[1:], label)

    def _considers(
        self,
        state: State,
        i: int,
        w: int,
        ticket: Ticket,
        replies: tuple[tuple[int, int], ...],
        label: str,
    ) -> Iterator[Step[State]]:
        """Do what a waiter does after each reply."""
        waiters, columns = state
        claim = waiters[w][1]
        broken = ""
        left, sent = columns[i][2][w][2:4]
        if ticket.until(TTL, factor=0.0) > 0:
            label += ", and has the lock"
            if waiters[1 - w][0] == HELD:
                broken = "P3: both waiters have the lock at once"
            # A holder handles no more replies.
            won = _written(columns, w, ticket, i, (0, sent, ()))
            after = tuple([_deaf(column, w) for column in won])
            waiters = replaced(waiters, w, (HELD, claim))
        elif ticket.must_yield:
            if claim % RENAMED == self._yields:
                return
            label += ", and gives back what it has"
            ticket.give_back()
            after = _written(columns, w, ticket, i, (left, sent, replies))
            after = _sent(after, w, (0, claim, STAYS))
            waiters = replaced(waiters, w, (WAITING, claim + 1))
        else:
            after = _written(columns, w, ticket, i, (left, sent, replies))
        yield f"{w} {label}", (waiters, tuple(sorted(after))), broken

    def _ticket(self, columns: tuple[Column, ...], w: int) -> Ticket:
        ticket = self._rules.ticket(len(columns))
        ticket.standings = [STANDINGS[column[2][w][0]] for column in columns]
        ticket._numbers = [column[2][w][1] for column in columns]
        return ticket


def _served(column: Column, w: int, *, listens: bool) -> tuple[str, Column]:
    """Return what a master does with the first message underway from a waiter."""
    holder, queue, sides = column
    standing, number, left, sent, replies = sides[w]
    asked, claim, leaves = sent[0]
    if leaves:
        label = f"a master gets the leave of {w}"
        holder, queue = _left(holder, queue, w, claim, leaves == STAYS)
    else:
        said, holder, queue = _enqueued(holder, queue, w, claim)
        label = f"a master answers {w}: {STANDINGS[said].name}"
        if listens:
            replies = (*replies, (asked, said))
    side = (standing, number, left, sent[1:], replies)
    return label, (holder, queue, replaced(sides, w, side))


def _master(holder: int, queue: tuple[int, ...]) -> Keys:
    master = Keys()
    data = master.data
    if holder != NOBODY:
        data.set(KEYS[0], b"%d" % holder)
    for name in queue:
        data.zadd(KEYS[1], _place(name), b"%d" % name)
        data.zadd(KEYS[2], LIVES, b"%d" % name)
    return master


def _name(w: int, claim: int) -> int:
    """Return the member of the queues for a claim."""
    return w + 2 * (claim // RENAMED)


def _place(name: int) -> int:
    # The second waiter has come first, the first may ask before it is known; one that
    # enters again comes after both.
    return 10 * (name // 2) + 10 - name % 2


def _claim(w: int, claim: int) -> bytes:
    return b"%d" % (10 * w + claim)


def _kept(master: Keys) -> tuple[int, tuple[int, ...]]:
    data = master.data
    holder = data.get(KEYS[0])
    names = range(4)
    queue = tuple([name for name in names if data.zscore(KEYS[1], b"%d" % name) is not None])
    return NOBODY if holder is None else int(holder), queue


@functools.cache
def _enqueued(
    holder: int, queue: tuple[int, ...], w: int, claim: int
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
        ),
    )
    said = replies.queued(master.run(words(payload)))
    assert said is not None
    return NUMBER[said.standing], *_kept(master)


@functools.cache
def _left(
    holder: int, queue: tuple[int, ...], w: int, claim: int, stays: bool
) -> tuple[int, tuple[int, ...]]:
    master = _master(holder, queue)
    member = b"%d" % _name(w, claim)
    master.run(words(commands.leave(KEYS, _claim(w, claim), member, keep_place=stays)))
    return _kept(master)


# Changed columns


def _written(
    columns: tuple[Column, ...],
    w: int,
    ticket: Ticket,
    i: int,
    changed: tuple[int, tuple[Message, ...], tuple[tuple[int, int], ...]],
) -> tuple[Column, ...]:
    """Return the columns with what is in *ticket*, and *changed* with master *i*."""
    after = []
    for j, (holder, queue, sides) in enumerate(columns):
        side = (
            NUMBER[ticket.standings[j]],
            ticket._numbers[j],
            *(changed if j == i else sides[w][2:]),
        )
        after.append((holder, queue, replaced(sides, w, side)))
    return tuple(after)


def _stands(columns: tuple[Column, ...], w: int, ticket: Ticket) -> tuple[Column, ...]:
    """Return the columns with what is in *ticket*."""
    return _written(columns, w, ticket, 0, columns[0][2][w][2:])


def _sent(columns: tuple[Column, ...], w: int, message: Message) -> tuple[Column, ...]:
    after = []
    for holder, queue, sides in columns:
        standing, number, left, sent, replies = sides[w]
        side = (standing, number, left, (*sent, message), replies)
        after.append((holder, queue, replaced(sides, w, side)))
    return tuple(sorted(after))


def _deaf(column: Column, w: int) -> Column:
    holder, queue, sides = column
    return holder, queue, replaced(sides, w, (0, 0, 0, sides[w][3], ()))
