"""
All interleavings of a few acquisitions with fencing tokens.

Runs the shipped code: `FencingCounter`, whose `acquire`, `raise_to`, `extend`, `lift` and
`restore` run their Lua scripts on the keys of a master, `fencing.agreed`, `MOST_RAISES` and
`majority`.

Models itself: the clients, with their decisions to raise, to extend, to lift and to set
again (the shipped ones are `FencedAttempt` and the watchdog); the quarantine, as a bit of
each master; messages; and time, which does not run: each of its effects may happen at
any moment.

- A lock may end on a master at any moment. That is a ttl, a clock that jumps, a
  holder that was suspended for an hour, and a release, all at once. So a master may
  always grant, and no releases are needed. With *until_released* a lock ends only by
  its release instead: then leases exclude each other.
- A late message is delivered later, a lost one never. A late or lost reply is a
  client that decides by some of the replies that there are. An acquire may be
  delivered more than once, at any time, and a raise after its round is over.
- A refusal is the same as a lost message: it can only keep a client from deciding.
- Other clients get the lock on single masters, never on a majority (*others* times).
- A holder lifts the counters to one that it has seen (*lifts* times), and restores the
  lock. A lift may come after its round is over, as a raise may; the lock is restored at
  any time after an extension, with *checks* also before it, up to the ceiling of the last
  majority.

Three reductions of the states lose nothing. Masters are alike, so their columns are
sorted. An attempt, and a round, begins with its first reply: an earlier begin would
promise less, and cannot be observed. And a client with more than a majority decides by
exactly a majority of replies: if more do not agree, some majority among them does not
either, and has the same highest counter.
"""

import functools
import itertools
from collections.abc import Callable, Iterator

from redlock_aio._protocol.primitives import FencingCounter
from redlock_aio._rules import fencing
from redlock_aio._rules.quorum import OK, majority

from .masters import MasterKeys, words
from .rules import SHIPPED, Rules
from .search import Step, replaced

NEW, ASKING, RAISING, HELD, EXTENDING, LIFTING, OVER = range(7)

Lifts = tuple[int, ...]
"""The ceiling to which a majority has lifted its counters, and the requested ones."""

Attempt = tuple[int, int, int, tuple[int, ...], int, Lifts]
"""Its status, token, the highest token reported before it began, raises, extensions, lifts."""

Side = tuple[int, int, int, int]
"""
One master and one attempt: how many acquires may still arrive, the counter that was
granted, the reply in the present round, whether a release may arrive.
"""

Column = tuple[int, int, int, tuple[Side, ...]]
"""One master: whether it votes, the holder, the counter with its mark, and its sides."""

State = tuple[tuple[Attempt, ...], tuple[Column, ...], tuple[int, int], int]
"""The attempts, the masters, the faults that are left, the highest token reported."""

View = tuple[tuple[Attempt, ...], int, tuple[tuple[int, ...], ...]]
"""
What the actions of a master depend on besides itself: the attempts, the highest token reported,
and for each attempt the counters to which it may raise or lift others.
"""

Delivery = tuple[str, Column, Callable[[Side], Side] | None, Attempt]
"""What a master does, its column then, the change of the other sides, and the attempt then."""

Action = tuple[str, Column, int, Callable[[Side], Side] | None, tuple[Attempt, ...]]
"""The label of a delivery, the column then, the attempt, the same change, all attempts then."""

PROPERTIES = ("P1", "P2", "P3", "P4", "P5")
"""
What must hold.

P1: an attempt that begins after a token was reported gets a higher one.
P2: no token is reported twice.
P3: no two leases are held at once, where locks end only when they are released.
P4: if a lease is extended, no higher token was reported before the extension began.
P5: where leases exclude each other, tokens rise from holder to holder.
"""

NOBODY = -1
MARK = 1_000
"""A counter is counted in ones; a mark, the token of the holder that lifted it, in these."""
TTL = 1000
NOW = 10**15
"""The time of every master's clock: no request is early or late here."""

COUNTER = FencingCounter((b"r",), lead=3 * NOW)
LATE = 3 * NOW


class Fencing:
    """
    Attempts to get a fencing token.

    Args:
        counters: The masters' counters at first; 0 is none.

        proposals: The proposal of each attempt: the time, as its client knows it.

        copies: How often an acquire of each attempt may be delivered; once by default.

        forgetful: How often a master may lose all keys.

        others: How often another client gets the lock on a master.

        extensions: How often a lease may be extended.

        lifts: How often the holder may lift the counters.

        checks: Whether a check of the key restores it, too, before the first extension.

        until_released: Whether a lock ends only by its release.

        looked_for: The properties that are checked.
    """

    def __init__(
        self,
        counters: tuple[int, ...],
        proposals: tuple[int, ...],
        rules: Rules = SHIPPED,
        *,
        copies: tuple[int, ...] | None = None,
        forgetful: int = 0,
        others: int = 0,
        extensions: int = 0,
        lifts: int = 0,
        checks: bool = False,
        until_released: bool = False,
        looked_for: tuple[str, ...] = PROPERTIES,
    ) -> None:
        self.needed = majority(len(counters))
        self._counters = counters
        self._proposals = proposals
        self._rules = rules
        self._copies = copies or (1,) * len(proposals)
        self._budget = (forgetful, others)
        self._extensions = extensions
        self._lifts = lifts
        self._checks = checks
        self._until_released = until_released
        self._looked_for = looked_for
        # The first client makes two attempts where the defect concerns both.
        self._owners = [a if rules.new_tokens else max(a - 1, 0) for a in range(len(proposals))]
        self._begun = [functools.partial(_begun, copies=copies) for copies in self._copies]
        # By the model and not by the rules, whose hash takes longer than what is looked up.
        self._extended = functools.cache(functools.partial(_extended, rules))
        self._lifted_by = functools.cache(functools.partial(_lifted, rules))
        self._outcomes = functools.cache(functools.partial(_outcomes, rules))
        # Most states have a view and columns that others have, too.
        self._actions_by = functools.cache(
            lambda view: functools.cache(functools.partial(self._actions, view))
        )

    def first(self) -> State:
        """Return the state in which nobody has begun."""
        sides: tuple[Side, ...] = ((0, 0, 0, 0),) * len(self._proposals)
        columns = sorted((1, NOBODY, counter, sides) for counter in self._counters)
        return ((NEW, 0, 0, (), 0, (0,)),) * len(self._proposals), tuple(columns), self._budget, 0

    def steps(self, state: State) -> Iterator[Step[State]]:
        """Return all that can happen next."""
        attempts, columns, budget, highest = state
        if all(map(self._final, attempts)):
            return  # nothing more can be observed
        targets = []
        for a, attempt in enumerate(attempts):
            if attempt[0] in (ASKING, RAISING):
                agreed, raises = self._outcome(attempt, columns, a)
                targets.append(raises)
            else:
                agreed = ()
                targets.append(self._lift_targets(attempt, columns))
            yield from self._decided(state, a, agreed)
        actions = self._actions_by((attempts, highest, tuple(targets)))
        for i, column in enumerate(columns):
            if i and column == columns[i - 1]:
                continue
            rest = columns[:i] + columns[i + 1 :]
            votes, _, counter, sides = column
            if budget[0] and votes:
                emptied = (int(not self._rules.quarantines), NOBODY, 0, sides)
                left = (budget[0] - 1, budget[1])
                label = f"a master with counter {_text(counter)} loses all keys"
                yield label, (attempts, _among(rest, emptied), left, highest), ""
            if budget[1] and votes and not self._until_released:
                locked = (1, NOBODY, counter % MARK + 1, sides)
                left = (budget[0], budget[1] - 1)
                label = f"another client gets a master with counter {_text(counter)}"
                yield label, (attempts, _among(rest, locked), left, highest), ""
            for label, after, a, everywhere, changed in actions(column):
                others = rest if everywhere is None else _each(rest, a, everywhere)
                yield label, (changed, _among(others, after), budget, highest), ""

    def _final(self, attempt: Attempt) -> bool:
        done = attempt[4] == self._extensions and not self._until_released
        return attempt[0] == OVER or (attempt[0] == HELD and done)

    # The decisions of clients.

    def _decided(self, state: State, a: int, agreed: tuple[int, ...]) -> Iterator[Step[State]]:
        attempts, columns, budget, highest = state
        status, token, floor, raises, extensions, lifts = attempts[a]
        if status in (ASKING, RAISING):
            for fence in agreed:
                held = (HELD, fence, 0, raises, 0, lifts)
                after = self._settled(replaced(attempts, a, held), columns, a)
                broken = self._broken(state, a, fence)
                yield f"attempt {a} reports {fence}", (*after, budget, max(highest, fence)), broken
        elif status == EXTENDING and sum(c[3][a][2] for c in columns) >= self.needed:
            held = (HELD, token, 0, raises, extensions + 1, lifts)
            after = self._settled(replaced(attempts, a, held), columns, a)
            broken = f"P4: {token} is extended, but {floor} was reported before that began"
            label = f"attempt {a} is extended"
            yield label, (*after, budget, highest), broken if floor > token else ""
        elif status == LIFTING and sum(c[3][a][2] for c in columns) >= self.needed:
            held = (HELD, token, 0, raises, extensions, (lifts[-1], *lifts[1:]))
            after = self._settled(replaced(attempts, a, held), columns, a)
            yield f"attempt {a} has lifted a majority to {lifts[-1]}", (*after, budget, highest), ""
        if self._until_released and status in (ASKING, RAISING, HELD):
            over = replaced(attempts, a, (OVER, 0, 0, raises, 0, lifts))
            gone = _each(columns, a, _given_up)
            label = f"attempt {a} is {'released' if status == HELD else 'given up'}"
            yield label, (over, tuple(sorted(gone)), budget, highest), ""

    def _outcome(
        self, attempt: Attempt, columns: tuple[Column, ...], a: int
    ) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Return the tokens that a majority may agree on by now, and else the raise targets."""
        raising = attempt[0] == RAISING
        answers = sorted([c[3][a][1 + raising] for c in columns if c[3][a][1 + raising]])
        if len(answers) < self.needed:
            return (), ()
        asked = attempt[3][-1] if raising else 0
        agreed, targets = self._outcomes(tuple(answers), self.needed, asked)
        return agreed, targets if len(attempt[3]) < fencing.MOST_RAISES else ()

    def _lift_targets(self, attempt: Attempt, columns: tuple[Column, ...]) -> tuple[int, ...]:
        """Return the counters to which a holder may lift the others for the first time."""
        status, fence, *_, lifts = attempt
        if len(lifts) > self._lifts or status not in (HELD, EXTENDING, LIFTING):
            return ()
        return tuple(sorted({c[2] % MARK for c in columns if c[2] % MARK > fence}))

    def _broken(self, state: State, a: int, token: int) -> str:
        """Return the first property that a report of *token* breaks."""
        attempts, _, _, highest = state
        held = [b for b, other in enumerate(attempts) if other[0] in (HELD, EXTENDING, LIFTING)]
        floor, alone = attempts[a][2], self._until_released
        broken = {
            "P1": token <= floor and f"{token} is reported, by an attempt begun after {floor} was",
            "P2": token in [attempts[b][1] for b in held] and f"{token} is reported twice",
            "P3": alone and bool(held) and f"attempts {held[0]} and {a} hold the lock at once",
            "P5": alone and token <= highest and f"{token} is reported after {highest}",
        }
        return next((f"{p}: {what}" for p in self._looked_for if (what := broken.get(p))), "")

    def _settled(
        self, attempts: tuple[Attempt, ...], columns: tuple[Column, ...], a: int
    ) -> tuple[tuple[Attempt, ...], tuple[Column, ...]]:
        """Clear what has no effect any more, so that fewer states differ."""
        sides = _each(columns, a, _without_replies)
        if not self._final(attempts[a]) or attempts[a][3]:
            return attempts, tuple(sorted(sides))
        owner = self._owners[a]
        if self._owners.count(owner) == 1:
            sides = tuple([(v, NOBODY if h == owner else h, c, s) for v, h, c, s in sides])
        return attempts, tuple(sorted(sides))

    # The actions of masters.

    def _actions(self, view: View, column: Column) -> list[Action]:
        attempts = view[0]
        who = f"a master with counter {_text(column[2])}"
        return [
            (f"attempt {a}: {who} {what}", after, a, everywhere, replaced(attempts, a, new))
            for a in range(len(attempts))
            for what, after, everywhere, new in self._delivered(view, column, a)
        ]

    def _delivered(self, view: View, column: Column, a: int) -> Iterator[Delivery]:
        votes, holder, counter, sides = column
        attempts, highest, _ = view
        attempt = attempts[a]
        status, _, _, raises, extensions, _ = attempt
        left, _, _, releasing = sides[a]
        if votes and status == NEW and self._may_begin(attempts, a):
            new: Attempt = (ASKING, 0, highest, (), 0, (0,))
            begun = (votes, holder, counter, replaced(sides, a, self._begun[a](sides[a])))
            for what, after, _, _ in self._granted(begun, a, new):
                yield what, after, self._begun[a], new
        elif votes and left:
            yield from self._granted(column, a, attempt)
        if holder == self._owners[a]:
            if releasing:
                yield "releases", _side(column, a, (left, 0, 0, 0), NOBODY), None, attempt
            if status in (ASKING, RAISING):
                yield from self._raises(view, column, a)
            for target in raises if status != RAISING else raises[:-1]:
                if (value := _raised(counter, target)[1]) != counter:
                    late = _side(column, a, sides[a], holder, value)
                    yield f"is raised to {target}, too late", late, None, attempt
        if status == EXTENDING or (status in (HELD, LIFTING) and extensions < self._extensions):
            yield from self._extends(view, column, a)
            yield from self._lifted(view, column, a)

    def _raises(self, view: View, column: Column, a: int) -> Iterator[Delivery]:
        _, holder, counter, sides = column
        attempt = view[0][a]
        status, _, floor, raises, _, lifts = attempt
        left, _, answer, releasing = sides[a]
        for target in view[2][a]:
            reply, now = _raised(counter, target)
            new: Attempt = (RAISING, 0, floor, (*raises, target), 0, lifts)
            after = _side(column, a, (left, 0, reply, releasing), holder, now)
            yield f"is raised to {target}", after, _without_replies, new
        if status == RAISING and not answer:
            reply, now = _raised(counter, raises[-1])
            after = _side(column, a, (left, 0, reply, releasing), holder, now)
            yield f"is raised to {raises[-1]}", after, None, attempt

    def _may_begin(self, attempts: tuple[Attempt, ...], a: int) -> bool:
        if not a:
            return True
        before = attempts[a - 1]
        if self._owners[a] == self._owners[a - 1]:
            return before[0] == OVER or self._final(before)
        # Attempts with the same proposal are alike: they begin in order.
        return before[0] != NEW or self._proposals[a - 1] != self._proposals[a]

    def _granted(self, column: Column, a: int, attempt: Attempt) -> Iterator[Delivery]:
        votes, holder, counter, sides = column
        left, got, answer, releasing = sides[a]
        owner, proposal = self._owners[a], self._proposals[a]
        before = {holder} if self._until_released else {holder, NOBODY}
        for previous in before:
            reply, new_holder, value = _acquired(previous, counter, owner, proposal)
            if not reply:
                continue
            if self._final(attempt) and not attempt[3] and self._owners.count(owner) == 1:
                new_holder = NOBODY if not self._until_released else new_holder
            # Of two replies either may arrive first.
            replies = {reply, got} if got else {reply}
            for known in replies if attempt[0] == ASKING else {0}:
                side = (left - 1, known, answer, releasing)
                after = (votes, new_holder, value, replaced(sides, a, side))
                yield f"grants, with counter {value}", after, None, attempt

    def _extends(self, view: View, column: Column, a: int) -> Iterator[Delivery]:
        votes, holder, counter, sides = column
        attempt = view[0][a]
        status, fence, _, raises, extensions, lifts = attempt
        left, got, answer, releasing = sides[a]
        owner = self._owners[a]
        # The shipped code restores the lock, where it is free, only when a majority has it: after a
        # check, an extension or a lift. Here it need not have it any more; that never counts.
        previous = holder if self._until_released else NOBODY
        confirmed = extensions or self._checks
        for ceiling in {0, lifts[0]} if confirmed else {lifts[0]} if lifts[0] else ():
            reply, now_holder, value = _restored(previous, counter, owner, fence, ceiling)
            if reply and (now_holder, value) != (holder, counter):
                after = _side(column, a, sides[a], now_holder, value)
                yield f"restores the lock, up to {ceiling}", after, None, attempt
        if answer and status != LIFTING:
            return
        reply, now_holder, value = self._extended(holder, counter, owner, fence)
        if reply:
            after = _side(column, a, (left, got, 1, releasing), now_holder, value)
            if not votes and not self._rules.counts_quarantined:
                away = _side(column, a, sides[a], now_holder, value)
                yield "extends, and does not count", away, None, attempt
            elif status == EXTENDING:
                yield "extends", after, None, attempt
            else:
                new = (EXTENDING, fence, view[1], raises, extensions, lifts)
                yield "extends", after, _with_its_grant, new

    def _lifted(self, view: View, column: Column, a: int) -> Iterator[Delivery]:
        votes, holder, counter, sides = column
        attempt = view[0][a]
        status, fence, _, raises, extensions, lifts = attempt
        left, got, answer, releasing = sides[a]
        asked = lifts[1:]
        for ceiling in {*view[2][a], *asked}:
            reply, _, value = self._lifted_by(holder, counter, self._owners[a], fence, ceiling)
            counts = reply and votes
            after = _side(column, a, (left, got, 1, releasing), holder, value)
            if status == LIFTING and ceiling == asked[-1] and counts and not answer:
                yield f"is lifted to {ceiling}", after, None, attempt
            elif ceiling in asked:
                if value != counter:
                    late = _side(column, a, sides[a], holder, value)
                    yield f"is lifted to {ceiling}, and does not count", late, None, attempt
            elif counts and status == HELD:
                known = lifts[0] if self._rules.lifts_a_majority else ceiling
                new = (LIFTING, fence, 0, raises, extensions, (known, *asked, ceiling))
                yield f"is lifted to {ceiling}", after, _with_its_grant, new


# The scripts, on a master of which only the holder and the counter matter.


def _text(counter: int) -> str:
    """Return a counter as text for a label."""
    mark, value = divmod(counter, MARK)
    return f"{value} by the holder of {mark}" if mark else str(value)


def _master(holder: int, counter: int) -> MasterKeys:
    master = MasterKeys(NOW / 1_000_000)
    mark, value = divmod(counter, MARK)
    if holder != NOBODY:
        master.data.set(b"r", b"%d" % holder)
    if value:
        master.data.set(COUNTER.keys[0], b"%016d" % value + (b".0000%016d" % mark if mark else b""))
    return master


def _ran(master: MasterKeys, payload: bytes) -> tuple[object, int, int]:
    """Return the reply, and the holder and the counter afterwards."""
    reply = master.run(words(payload))
    holder, counter = master.data.get(b"r"), master.data.get(COUNTER.keys[0])
    value, _, mark = (counter or b"0").partition(b".")
    packed = int(value) + MARK * int(mark or 0)
    return reply, NOBODY if holder is None else int(holder), packed


@functools.cache
def _acquired(holder: int, counter: int, owner: int, proposal: int) -> tuple[int, int, int]:
    payload = COUNTER.acquire(b"%d" % owner, TTL, proposal, LATE)
    reply, then, value = _ran(_master(holder, counter), payload)
    assert isinstance(reply, int)
    return (proposal if reply == 1 else reply), then, value


@functools.cache
def _raised(counter: int, target: int) -> tuple[int, int]:
    reply, _, value = _ran(_master(1, counter), COUNTER.raise_to(target, b"1"))
    assert isinstance(reply, int)
    return reply, value


def _extended(
    rules: Rules, holder: int, counter: int, owner: int, fence: int
) -> tuple[int, int, int]:
    payload = rules.extend(COUNTER, b"%d" % owner, TTL, fence)
    reply, then, value = _ran(_master(holder, counter), payload)
    return reply == OK, then, value


def _lifted(
    rules: Rules, holder: int, counter: int, owner: int, fence: int, ceiling: int
) -> tuple[int, int, int]:
    payload = rules.lift(COUNTER, b"%d" % owner, fence, ceiling)
    reply, then, value = _ran(_master(holder, counter), payload)
    return reply == OK, then, value


@functools.cache
def _restored(
    holder: int, counter: int, owner: int, fence: int, ceiling: int
) -> tuple[int, int, int]:
    payload = COUNTER.restore(b"%d" % owner, TTL, fence, ceiling)
    reply, then, value = _ran(_master(holder, counter), payload)
    return bool(reply), then, value


def _outcomes(
    rules: Rules, answers: tuple[int, ...], needed: int, asked: int
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the tokens that a client may agree on, and the counters that it may raise to."""
    tokens, targets = set(), set()
    for counted in set(itertools.combinations(answers, needed)):
        replies = [rules.acknowledged(answer, asked) if asked else answer for answer in counted]
        token = rules.agreed(replies, needed)
        if token:
            tokens.add(token)
        else:
            targets.add(max(replies))
    return tuple(sorted(tokens)), tuple(sorted(targets))


# Changed sides


def _begun(_: Side, copies: int) -> Side:
    return copies, 0, 0, 0


def _with_its_grant(side: Side) -> Side:
    return side[0], side[1], 0, side[3]


def _without_replies(side: Side) -> Side:
    return side[0], 0, 0, side[3]


def _given_up(side: Side) -> Side:
    return side[0], 0, 0, 1


# Changed columns


def _side(column: Column, a: int, side: Side, holder: int, counter: int | None = None) -> Column:
    votes, _, before, sides = column
    return votes, holder, before if counter is None else counter, replaced(sides, a, side)


def _each(
    columns: tuple[Column, ...], a: int, change: Callable[[Side], Side]
) -> tuple[Column, ...]:
    return tuple([_changed(column, a, change) for column in columns])


@functools.cache
def _changed(column: Column, a: int, change: Callable[[Side], Side]) -> Column:
    votes, holder, counter, sides = column
    return votes, holder, counter, replaced(sides, a, change(sides[a]))


def _among(columns: tuple[Column, ...], one: Column) -> tuple[Column, ...]:
    return tuple(sorted((*columns, one)))
