"""
All interleavings of a few attempts to get fencing tokens of one resource and of two.

Runs the shipped code: `FencingCounter` over one and two keys, whose `acquire`, `raise_to`
and `extend` run their Lua scripts, and `fencing.agreed`.

Models itself: the clients, which decide by any majority of the replies and raise once (the
shipped one is `FencedAttempt`); messages, which are late or lost; and the end of a lock: each
of its two keys may end on a master at any moment. The tokens of each resource must rise as if
it were the only one.
"""

import functools
import itertools
from collections.abc import Callable, Iterator

from redlock_aio._protocol.primitives import FencingCounter
from redlock_aio._rules.quorum import OK, majority

from . import rules
from .masters import MasterKeys, words
from .rules import SHIPPED, Rules
from .search import Step, replaced

NEW, ASKING, RAISING, HELD, EXTENDING, OVER = range(6)
NAMES = (b"a", b"b")
NOBODY = -1
USED = -1
"""Marks a grant that came too late, or does not count any more."""
NOW = 10**15
LEAD, LATE, TTL = 3 * NOW, 3 * NOW, 1000

Attempt = tuple[int, int, tuple[int, ...], int]
"""Its status, token, the highest token of each resource before it began, its raise target."""

Side = tuple[int, int]
"""The counter that a master granted to an attempt, and its reply in the present round."""

Column = tuple[tuple[int, ...], tuple[int, ...], tuple[Side, ...]]
"""One master: the holder of each lock, the counters, its sides."""

Extend = Callable[[FencingCounter, bytes, int, int], bytes]

Reply = tuple[int, tuple[int, ...], tuple[int, ...]]
"""A master's reply, 0 for a refusal; the holders of the locks afterwards, and the counters."""

Served = tuple[str, Attempt, Reply, Side]
"""The label of a master's action, the attempt afterwards, the reply, and the side."""

View = tuple[Attempt, tuple[int, ...], tuple[int, ...]]
"""
What the actions of a master for an attempt depend on besides itself: the attempt, the highest
token of each resource that was reported, and the counters to which it may raise.
"""

State = tuple[tuple[Attempt, ...], tuple[Column, ...], tuple[tuple[int, ...], ...]]
"""The attempts, the masters, the tokens of each resource that were reported."""


class Joint:
    """
    Attempts to get a fencing token for one resource or for both.

    Args:
        counters: The two counters of each master at first.

        wanted: The numbers of the resources of each attempt.

        extended: Whether leases are extended once.
    """

    def __init__(
        self,
        counters: tuple[tuple[int, int], ...],
        wanted: tuple[tuple[int, ...], ...],
        rules: Rules = SHIPPED,
        *,
        extended: bool = False,
    ) -> None:
        self.needed = majority(len(counters))
        self._counters = counters
        self._wanted = wanted
        self._rules = rules
        self._extended = extended
        # Most states have a view and columns that others have, too.
        self._served = functools.cache(self._all_served)

    def first(self) -> State:
        """Return the state in which nobody has begun."""
        sides = ((0, 0),) * len(self._wanted)
        columns = sorted(((NOBODY, NOBODY), counters, sides) for counters in self._counters)
        return ((NEW, 0, (0, 0), 0),) * len(self._wanted), tuple(columns), ((), ())

    def steps(self, state: State) -> Iterator[Step[State]]:
        """Return all that can happen next."""
        attempts, columns, reported = state
        done = (OVER,) if self._extended else (OVER, HELD)
        if all(attempt[0] in done for attempt in attempts):
            return  # nothing more can be observed
        highest = tuple([max(tokens, default=0) for tokens in reported])
        for a, attempt in enumerate(attempts):
            yield from self._decided(state, a)
            view = attempt, highest, self._targets(attempt, columns, a)
            for i, column in enumerate(columns):
                if not i or column != columns[i - 1]:
                    rest = columns[:i] + columns[i + 1 :]
                    yield from self._delivered(state, a, view, column, rest)

    def _decided(self, state: State, a: int) -> Iterator[Step[State]]:
        attempts, columns, reported = state
        status, token, floor, target = attempts[a]
        answers = [c[2][a][status != ASKING] for c in columns if c[2][a][status != ASKING] > 0]
        if status == EXTENDING and len(answers) >= self.needed:
            late = [f for n, f in enumerate(floor) if n in self._wanted[a] and f > token]
            broken = f"P4: {token} is extended after {late} was reported" if late else ""
            after = replaced(attempts, a, (OVER, 0, (0, 0), 0))
            yield f"attempt {a} is extended", (after, _cleared(columns, a), reported), broken
        if status not in (ASKING, RAISING):
            return
        for counted in set(itertools.combinations(sorted(answers), self.needed)):
            acknowledged = [
                self._rules.acknowledged(answer, target) if target else answer for answer in counted
            ]
            fence = self._rules.agreed(acknowledged, self.needed)
            if fence:
                held = (HELD, fence, (0, 0), target) if self._extended else (OVER, 0, (0, 0), 0)
                known = tuple(
                    tuple(sorted((*tokens, fence))) if n in self._wanted[a] else tokens
                    for n, tokens in enumerate(reported)
                )
                after = replaced(attempts, a, held)
                broken = self._broken(state, a, fence)
                yield f"attempt {a} reports {fence}", (after, _cleared(columns, a), known), broken

    def _broken(self, state: State, a: int, fence: int) -> str:
        for n in self._wanted[a]:
            if fence <= state[0][a][2][n]:
                return f"P1: {fence} is reported after {state[0][a][2][n]} of {NAMES[n]!r}"
            if fence in state[2][n]:
                return f"P2: {fence} of {NAMES[n]!r} is reported twice"
        return ""

    def _delivered(
        self, state: State, a: int, view: View, column: Column, rest: tuple[Column, ...]
    ) -> Iterator[Step[State]]:
        attempts, _, reported = state
        counters, sides = column[1:]
        for command, new, reply, side in self._served(a, view, column):
            begins = new[0] == EXTENDING != attempts[a][0]
            after = (*reply[1:], replaced(sides, a, side))
            others = _cleared(rest, a) if begins else rest
            label = f"attempt {a}: a master with counters {counters} {command}"
            yield label, (replaced(attempts, a, new), _among(others, after), reported), ""

    def _all_served(self, a: int, view: View, column: Column) -> list[Served]:
        return list(self._serving(a, view, column))

    def _serving(self, a: int, view: View, column: Column) -> Iterator[Served]:
        attempt, highest, _ = view
        status, token, floor, _ = attempt
        holders, counters, sides = column
        got, answer = sides[a]
        if not got:  # also late, when its round is over
            free = tuple(NOBODY if n in self._wanted[a] else h for n, h in enumerate(holders))
            reply = _reply("acquire", self._wanted[a], free, counters, a, 1)
            new = (ASKING, 0, highest, 0) if status == NEW else attempt
            acknowledged = _known(reply, 1) if new[0] == ASKING else USED
            yield "grants", new, reply, (acknowledged, answer)
        yield from self._raises(a, view, column)
        if status in (HELD, EXTENDING) and self._extended and not answer:
            rule = self._rules.extend
            reply = _reply("extend", self._wanted[a], holders, counters, a, token, rule)
            if reply[0]:
                new = (EXTENDING, token, highest if status == HELD else floor, attempt[3])
                yield "extends", new, reply, (got, 1)

    def _targets(self, attempt: Attempt, columns: tuple[Column, ...], a: int) -> tuple[int, ...]:
        """Return the counters to which an attempt may raise the others."""
        status, _, _, target = attempt
        if status != ASKING:
            return (target,) if target else ()
        answers = sorted([c[2][a][0] for c in columns if c[2][a][0] > 0])
        counted = set(itertools.combinations(answers, self.needed))
        return tuple(
            {max(those) for those in counted if not self._rules.agreed(those, self.needed)}
        )

    def _raises(self, a: int, view: View, column: Column) -> Iterator[Served]:
        attempt, _, targets = view
        status, _, floor, _ = attempt
        holders, counters, sides = column
        got, answer = sides[a]
        for value in targets:
            reply = _reply("raise", self._wanted[a], holders, counters, a, value)
            counts = status in (ASKING, RAISING) and not answer
            if reply[0] and (counts or reply[2] != counters):  # also late
                new = (RAISING, 0, floor, value) if status == ASKING else attempt
                yield f"is raised to {value}", new, reply, (got, reply[0] if counts else answer)


def _known(reply: Reply, proposal: int) -> int:
    return proposal if reply[0] == 1 else reply[0]


@functools.cache
def _reply(
    command: str,
    wanted: tuple[int, ...],
    holders: tuple[int, ...],
    counters: tuple[int, ...],
    a: int,
    number: int,
    extend: Extend = rules.extend,
) -> Reply:
    """Run a shipped script on one master."""
    master = MasterKeys(NOW / 1_000_000)
    data = master.data
    every = [FencingCounter((name,), LEAD).keys[0] for name in NAMES]
    for name, key, holder, value in zip(NAMES, every, holders, counters, strict=True):
        if holder != NOBODY:
            data.set(name, b"%d" % holder, TTL)
        if value:
            data.set(key, b"%016d" % value)
    counter, token = FencingCounter([NAMES[n] for n in wanted], LEAD), b"%d" % a
    payload = {
        "acquire": lambda: counter.acquire(token, TTL, number, LATE),
        "raise": lambda: counter.raise_to(number, token),
        "extend": lambda: extend(counter, token, TTL, number),
    }[command]()
    reply = master.run(words(payload))
    yes = int(reply == OK) if command == "extend" else reply
    assert isinstance(yes, int)
    held = tuple(int(data.get(name) or NOBODY) for name in NAMES)
    return yes, held, tuple(int(data.get(key) or 0) for key in every)


def _cleared(columns: tuple[Column, ...], a: int) -> tuple[Column, ...]:
    """Clear what has no effect any more, so that fewer states differ."""
    used = [USED if sides[a][0] else 0 for _, _, sides in columns]
    cleared = [
        (h, c, replaced(sides, a, (got, 0)))
        for (h, c, sides), got in zip(columns, used, strict=True)
    ]
    return tuple(sorted(cleared))


def _among(columns: tuple[Column, ...], one: Column) -> tuple[Column, ...]:
    return tuple(sorted((*columns, one)))
