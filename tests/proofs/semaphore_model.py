"""
All interleavings of a few clients that want permits of one semaphore.

Runs the shipped code: the commands of `Permits` and `Permit` with their Lua scripts,
`replies.taken`, `replies.queued` and `fencing.agreed`.

Models itself: the clients (the shipped ones are `AnyPermit`, `FairWaiter` and the watchdog), the
quarantine, messages, and time, which does not run. There are two models:

- `Acquiring`: three masters, with requests and replies that are late or lost, death, expiry and a
  master that forgets. It shows that at most so many hold a permit (X1), that tokens rise (X2),
  that no lease is revived (X3), and that nobody leaves a permit behind (X4). The pushes of masters
  are left out: a client that waits may follow to any permit at any moment.
- `Serving`: one master, with pushes. It shows that nothing is left behind (X4), that no free permit
  is forgotten (X5), and that nobody is overtaken by one that has just come (X6).

As in `rw_model`, the messages from a client to a master keep their order, masters are sorted, a
request that changes nothing is not sent again, and an attempt begins with the first request that
a master executes. A release that is lost is repeated, and may come behind later requests then.

No time is added to a state. So the ages of waiters, on which `hand_over` depends, are those of
their places: the first client has waited for longest. `test_semaphore` compares `hand_over` with
its rule for all ages.
"""

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from redlock_aio._protocol import commands, replies
from redlock_aio._protocol.commands import QueueEntry
from redlock_aio._protocol.primitives import Mutex, Permit, Permits
from redlock_aio._protocol.request import NoReply
from redlock_aio._protocol.scripts import Script
from redlock_aio._rules import fencing
from redlock_aio._rules.fair_ticket import GRANTED
from redlock_aio._rules.quorum import OK, majority

from .masters import MasterKeys, changed, words
from .search import Step, replaced

NEW, TAKING, WAITING, HELD, EXTENDING, OVER = range(6)

TAKE, DROP, ENTER, AGAIN, LEAVE, YIELD, DECLINE, EXTEND, RESTORE = range(9)
"""The requests."""

VERBS = (
    "takes a permit", "drops others than", "enters", "asks again for", "leaves", "gives back",
    "declines", "extends", "restores",
)  # fmt: skip

NOBODY, NONE = -1, -1
"""What a free permit holds; the number of no permit."""

REFUSED, MOVED = -1, -10
"""Replies; `MOVED` minus a number is a move to that permit, and 0 is no reply yet."""

GRANT = 100
"""A grant is the permit's number and one, times this, and its counter."""

CLAIMS, GENERATIONS = 8, 4
"""The claims of a client, each with a token of its own; how often a claim may be extended."""

NOW, STEP, LIVES, MOST = 1_000, 10_000, 60_000, 9
"""The time of every master's clock in seconds; the ttl of a lease, and that of an entry, in ms."""

TIME, NEVER = NOW * 1_000_000, 2**50

Entry = tuple[int, int, bool, bool]
"""A member of a queue: its place, its client, whether it was granted its permit, and is dead."""

Keys = tuple[
    tuple[int, ...], tuple[tuple[Entry, ...], ...], tuple[tuple[int, int], ...], tuple[int, ...]
]
"""The holders of the permits, their queues, the index (place, permit), the counters."""

Request = tuple[int, int, int]
"""What is asked, for which claim of the client, and the permit."""

Side = tuple[tuple[Request, ...], int]
"""One master and one client: the requests underway, and the reply in the present round."""

Column = tuple[Keys, tuple[int, ...], tuple[Side, ...]]
"""
One master: its keys, its quarantine, and its sides.

The quarantine has a 1 for each client whose lease the master may have forgotten.
"""

Client = tuple[int, int, int, int, int, int]
"""
Its phase, its claim, its permit, how often it was extended, how many holders of its permit had been
reported when it became one (`STALE` in an extension that began after another), and its place.
"""

State = tuple[tuple[Client, ...], tuple[Column, ...], tuple[tuple[int, int], ...], bool]
"""The clients, the masters, for each permit its holders and the last token, whether a fault was."""

STALE = -1

Calls = tuple[tuple[int, int], ...]
"""The clients that a script calls, and the permits for which it does."""

Naive = Callable[[Request, int, int, Keys], tuple[int, Keys] | None]
"""Execute a request of another design; None for those of this one."""


@dataclass(frozen=True)
class Design:
    """
    The rules of clients and masters.

    Attributes:
        planted: The hashes of shipped scripts, each with that of the one that runs in its place.

        naive: Executes the requests of another protocol; returns None for those of this one.

        adds_up: Whether grants of any permits are added up.

        drops: Whether a client that has won releases its grants of other permits.

        counts_old: Whether a client that follows still counts the grants of its old permit.

        new_tokens: Whether each claim has a token of its own.

        quarantines: Whether a master that has lost its keys grants nothing.

        declines: Whether a client says that it does not want a permit that it is called for.

        declines_replies: The same, if the master told it of the permit in a reply.
    """

    planted: tuple[tuple[bytes, bytes], ...] = ()
    naive: Naive | None = None
    adds_up: bool = False
    drops: bool = True
    counts_old: bool = False
    new_tokens: bool = True
    quarantines: bool = True
    declines: bool = True
    declines_replies: bool = True


SHIPPED = Design()


def planted(changes: dict[bytes, bytes], *scripts: Script) -> Design:
    """Return the design in which each script has all *changes*, from a text that it has once."""
    return Design(changed(changes, *scripts))


class Acquiring:
    """
    Clients that want permits of one semaphore, on three masters.

    Args:
        permits: For each client the number of permits that it knows.

        claims: How many claims each client may make: the first request, one more for the permit
            that it waits for, and one for each time that it gives back its grants or follows.

        extends: The clients that extend their leases, each as often as it is named.

        fenced: Whether holders have fencing tokens.

        forgets: Whether one master may lose its keys.

        losses: Whether requests may be lost.

        clean: Whether all clients release, and nothing may be left behind at the end. Nothing
            expires then.

        calm: Whether nobody gives up, dies or expires.

        masters: The number of masters.

        looked_for: The properties that are checked.
    """

    def __init__(
        self,
        permits: tuple[int, ...],
        design: Design = SHIPPED,
        *,
        claims: int = 1,
        extends: tuple[int, ...] = (),
        fenced: bool = False,
        forgets: bool = False,
        losses: bool = False,
        clean: bool = False,
        calm: bool = False,
        masters: int = 3,
        looked_for: tuple[str, ...] = ("X1", "X2", "X3", "X4"),
    ) -> None:
        self.needed = majority(masters)
        self._masters = masters
        self._looked_for = looked_for
        self._permits = permits
        self._most = max(permits)
        self._design = design
        self._claims = claims
        self._extends = extends
        self._fenced = fenced
        self._forgets = forgets
        self._losses = losses
        self._clean = clean
        self._calm = calm

    def first(self) -> State:
        """Return the state in which nobody has begun."""
        count = len(self._permits)
        column = nothing(self._most), (0,) * count, (((), 0),) * count
        clients = ((NEW, 0, NONE, 0, 0, 0),) * count
        return clients, (column,) * self._masters, ((0, 0),) * self._most, False

    def steps(self, state: State) -> Iterator[Step[State]]:
        """Return all that can happen next."""
        clients, columns, reported, spent = state
        if not self._clean and all(
            phase == OVER or (phase == HELD and gen >= self._extends.count(c))
            for c, (phase, _, _, gen, _, _) in enumerate(clients)
        ):
            return  # no lease will be reported or extended any more
        for c in range(len(clients)):
            yield from self._decided(state, c)
        for i, column in enumerate(columns):
            if i and column == columns[i - 1]:
                continue
            for c in range(len(clients)):
                yield from self._asked(state, i, c)
                yield from self._delivered(state, i, c)
            yield from self._expired(state, i)
            if self._forgets and not spent:
                lost = self._forgotten(clients, column)
                yield (
                    "a master loses its keys",
                    _made(clients, columns, i, lost, reported, True),
                    "",
                )
        if (
            self._clean
            and all(client[0] == OVER for client in clients)
            and not any(side[0] for _, _, sides in columns for side in sides)
        ):
            for locks, _, index, _ in (column[0] for column in columns):
                if index or any(holder != NOBODY for holder in locks):
                    yield "all is over", state, "X4: something is left behind"

    # The decisions of clients.

    def _decided(self, state: State, c: int) -> Iterator[Step[State]]:
        clients, columns, reported, spent = state
        phase, claim, permit, gen, _, place = clients[c]
        cleared = _cleared(columns, c)
        over = (OVER, claim, permit, gen, 0, place)
        if phase == EXTENDING:
            yield from self._extended(state, c)
        if phase in (TAKING, WAITING):
            yield from self._won(state, c)
            yield from self._waits(state, c)
            if not self._calm:
                asked = (LEAVE, claim, permit) if phase == WAITING else (DROP, claim, NONE)
                after = _settled(clients, _sent(cleared, c, asked), c, over, reported, spent)
                yield f"{c} gives up", after, ""
        if phase in (HELD, EXTENDING):
            sent = _sent(cleared, c, (LEAVE, claim, permit))
            yield f"{c} releases", _settled(clients, sent, c, over, reported, spent), ""
            if not self._calm and not self._clean:
                silent = tuple([_with_side(column, c, ((), 0)) for column in columns])
                yield f"{c} dies", _settled(clients, silent, c, over, reported, spent), ""

    def _won(self, state: State, c: int) -> Iterator[Step[State]]:
        """Return the step in which a client becomes a holder."""
        clients, columns, reported, spent = state
        phase, claim, permit, _, _, place = clients[c]
        granted = [sides[c][1] for _, _, sides in columns if sides[c][1] > 0]
        adds_up = self._design.adds_up or (self._design.counts_old and phase == WAITING)
        for won in {reply // GRANT - 1 for reply in granted}:
            counters = [reply % GRANT for reply in granted if reply // GRANT - 1 == won]
            votes = len(granted) if adds_up else len(counters)
            if phase == WAITING and won != permit and not adds_up:
                continue
            token = fencing.agreed(counters, self.needed) if self._fenced else 1
            if votes < self.needed or not token:
                continue
            number = permit if phase == WAITING else won
            holders, last = reported[number]
            broken = ""
            held = [client for client in clients if client[0] in (HELD, EXTENDING)]
            if len(held) >= self._most:
                broken = f"X1: {len(held) + 1} hold permits, and there are {self._most}"
            elif any(client[2] == number for client in held) and not self._design.naive:
                broken = f"X1: two hold permit {number}"
            elif self._fenced and token <= last:
                broken = f"X2: permit {number} has the token {token} after {last}"
            if broken[:2] not in self._looked_for:
                broken = ""
            client = (HELD, claim, number, 0, holders + 1, place)
            now = replaced(reported, number, (holders + 1, token if self._fenced else 0))
            after = _cleared(columns, c)
            if phase == TAKING and self._design.drops:
                after = tuple(
                    [
                        column
                        if sides[c][1] <= 0 or sides[c][1] // GRANT - 1 == number
                        else _with_side(column, c, ((*sides[c][0], (DROP, claim, number)), 0))
                        for column, (_, _, sides) in zip(after, columns, strict=True)
                    ]
                )
            label = f"{c} holds permit {number}"
            yield label, _settled(clients, after, c, client, now, spent), broken

    def _waits(self, state: State, c: int) -> Iterator[Step[State]]:
        """Return the steps in which a client waits for a permit, follows, or gives back."""
        clients, columns, reported, spent = state
        phase, claim, permit, _, _, place = clients[c]
        if claim + 1 >= self._claims:
            return
        for number in range(self._permits[c]):
            client = (WAITING, claim + 1, number, 0, 0, place)
            if phase == TAKING:
                label = f"{c} waits for permit {number}"
                after = _sent(_cleared(columns, c), c, (DROP, claim, NONE))
            elif number != permit:
                label = f"{c} follows to permit {number}"
                kept = columns if self._design.counts_old else _cleared(columns, c)
                after = _sent(kept, c, (LEAVE, claim, permit), keeps=self._design.counts_old)
            else:
                label = f"{c} gives back"
                after = _sent(_cleared(columns, c), c, (YIELD, claim, permit))
            if phase == TAKING or number != permit:
                keeps = self._design.counts_old and phase == WAITING
                after = _sent(after, c, (ENTER, claim + 1, number), asks=True, keeps=keeps)
            yield label, _settled(clients, after, c, client, reported, spent), ""

    def _extended(self, state: State, c: int) -> Iterator[Step[State]]:
        clients, columns, reported, spent = state
        _, claim, permit, gen, seen, place = clients[c]
        if sum(sides[c][1] > 0 for _, _, sides in columns) < self.needed:
            return
        client = (HELD, claim, permit, gen + 1, max(seen, 0), place)
        restored = tuple(
            [
                _with_side(
                    column,
                    c,
                    (((RESTORE, claim, permit),), 0)
                    if column[2][c] == ((), REFUSED)
                    else (column[2][c][0], 0),
                )
                for column in columns
            ]
        )
        broken = "X3: a lease is extended after another one was reported" if seen == STALE else ""
        after = _settled(clients, restored, c, client, reported, spent)
        yield f"{c} is extended", after, broken

    # Requests.

    def _asked(self, state: State, i: int, c: int) -> Iterator[Step[State]]:
        """Return the steps in which a client sends a request that is executed at once."""
        clients, columns, reported, spent = state
        phase, claim, permit, gen, seen, place = clients[c]
        keys, quarantine, sides = columns[i]
        if phase == NEW and not any(quarantine):
            place = sum(client[0] != NEW for client in clients)
            begun = replaced(clients, c, (TAKING, 0, NONE, 0, 0, place))
            sent = _sent(columns, c, (TAKE, 0, NONE), asks=True)
            yield from self._delivered((begun, sent, reported, spent), i, c, begins=True)
        elif phase == HELD and gen < self._extends.count(c) and not sides[c][0]:
            followed = reported[permit][0] > seen
            client = (EXTENDING, claim, permit, gen, STALE if followed else seen, place)
            sent = _sent(columns, c, (EXTEND, claim, permit))
            begun = replaced(clients, c, client)
            yield from self._delivered((begun, sent, reported, spent), i, c, begins=True)
        elif phase == WAITING and not sides[c][0] and sides[c][1] <= 0 and not any(quarantine):
            reply, then = self._ran((AGAIN, claim, permit), clients, c, keys)
            if reply > 0:
                column = (then, quarantine, replaced(sides, c, ((), reply)))
                label = f"a master answers {c} again: {reply}"
                yield label, _made(clients, columns, i, column, reported, spent), ""

    def _delivered(
        self, state: State, i: int, c: int, *, begins: bool = False
    ) -> Iterator[Step[State]]:
        """Return the steps in which a master executes the next request of a client."""
        clients, columns, reported, spent = state
        keys, quarantine, sides = columns[i]
        underway, reply = sides[c]
        if not underway:
            return
        request, rest = underway[0], underway[1:]
        verb, claim, permit = request
        answer, then = self._ran(request, clients, c, keys)
        phase, present = clients[c][:2]
        if claim == present and phase == {TAKE: TAKING, ENTER: WAITING, EXTEND: EXTENDING}.get(
            verb
        ):
            # A master in quarantine is asked as before, and does not count.
            reply = REFUSED if any(quarantine) else answer
        what = f"{VERBS[verb]} {permit}" if permit != NONE else VERBS[verb]
        # Who has won drops what a late or lost reply may have granted.
        late = verb == TAKE and clients[c][1] == 0 and clients[c][2] != NONE and self._design.drops
        drop = ((DROP, 0, clients[c][2]),) if late else ()
        if answer > 0 and answer // GRANT - 1 != clients[c][2]:
            rest = (*rest, *drop)
        column = (then, quarantine, replaced(sides, c, (rest, reply)))
        label = f"at a master {c} {what}: {answer}"
        yield label, _made(clients, columns, i, column, reported, spent), ""
        if self._losses and not begins:
            # What releases something is repeated until it is confirmed.
            lost = underway[1:]
            lost = (*lost, *(drop if verb in (TAKE, ENTER, EXTEND, RESTORE) else (request,)))
            if lost != underway:
                column = (keys, quarantine, replaced(sides, c, (lost, sides[c][1])))
                label = f"a request is lost: {c} {what}"
                yield label, _made(clients, columns, i, column, reported, spent), ""

    # Time, and faults.

    def _expired(self, state: State, i: int) -> Iterator[Step[State]]:
        clients, columns, reported, spent = state
        if self._clean or self._calm:
            return
        (locks, queues, index, counters), quarantine, sides = columns[i]
        for number, holder in enumerate(locks):
            if holder == NOBODY:
                continue
            token, gen = divmod(holder, GENERATIONS)
            c, claim = divmod(token, CLAIMS)
            phase, present, _, extended = clients[c][:4]
            over = phase == OVER or claim < present or gen < extended
            if over and (self._design.new_tokens or phase == OVER):
                keys = (replaced(locks, number, NOBODY), queues, index, counters)
                column = (keys, quarantine, sides)
                label = f"permit {number} of {c} expires"
                yield label, _made(clients, columns, i, column, reported, spent), ""
        for number, queue in enumerate(queues):
            for entry in queue:
                phase, _, waits_for = clients[entry[1]][:3]
                if (phase != WAITING or waits_for != number) and not sides[entry[1]][0]:
                    left = tuple([other for other in queue if other != entry])
                    keys = (locks, replaced(queues, number, left), index, counters)
                    label = f"the entry of {entry[1]} for permit {number} expires"
                    column = (keys, quarantine, sides)
                    yield label, _made(clients, columns, i, column, reported, spent), ""

    def _forgotten(self, clients: tuple[Client, ...], column: Column) -> Column:
        quarantine = column[1]
        if self._design.quarantines:
            quarantine = tuple(
                [
                    int(client[0] in (HELD, EXTENDING) or (client[0] != OVER and side[1] > 0))
                    for client, side in zip(clients, column[2], strict=True)
                ]
            )
        return nothing(self._most), quarantine, column[2]

    def _ran(
        self, request: Request, clients: tuple[Client, ...], c: int, keys: Keys
    ) -> tuple[int, Keys]:
        if self._design.naive is not None:
            done = self._design.naive(request, c, self._permits[c], keys)
            if done is not None:
                return done
        place = clients[c][5]
        gen = clients[c][3] + 1 if request[0] in (EXTEND, RESTORE) else 0
        if not self._design.new_tokens:
            request = (request[0], 0, request[2])
        asks = Asks(c, place, self._permits, gen, fenced=self._fenced)
        reply, then, _ = ran(self._design.planted, request, asks, keys)
        return reply, then


def zset(request: Request, c: int, permits: int, keys: Keys) -> tuple[int, Keys] | None:
    """Keep a set of holders, as large as there are permits."""
    verb, claim, _ = request
    locks, *rest = keys
    holder = (c * CLAIMS + claim) * GENERATIONS
    if verb == TAKE:
        taken = [lock for lock in locks if lock != NOBODY]
        if holder not in taken and len(taken) >= permits:
            return REFUSED, keys
        taken = sorted({*taken, holder})
        return GRANT, ((*taken, *[NOBODY] * (len(locks) - len(taken))), *rest)  # type: ignore[return-value]
    left = [lock for lock in locks if lock not in (holder, NOBODY)]
    return 0, ((*left, *[NOBODY] * (len(locks) - len(left))), *rest)  # type: ignore[return-value]


# Pushes, on one master.

CHOSE, DEAF, LISTENS, HOLDS, ELSEWHERE, LEFT, DEAD = range(1, 8)
"""
What a client has done at the master.

`CHOSE`: it has found no permit to take, and will wait for one. `DEAF`: it is in the queue, and
the master does not know yet that it wants pushes. `ELSEWHERE`: it has got its permit from other
masters.
"""

Member = tuple[int, int]
"""The phase of a client, and its permit."""

Pending = tuple[int, int, bool]
"""A client that was told of a permit, the permit, and whether that was a reply."""

Served = tuple[tuple[Member, ...], Keys, tuple[Pending, ...]]
"""The state of a model of pushes."""


class Serving:
    """
    The clients of one master, whose requests are executed at once.

    Pushes and the replies that move a client come late; the client then asks at once. A client
    sends heartbeats at any moment, as far as they change something.

    - X4: when all have released, and all pushes have come, nothing is left.
    - X5: when all pushes have come, and what the dead have had has expired, no permit is free while
      somebody waits; unless one of the next heartbeats leads to a permit: its client gets one, or
      is told of one.
    - W1: no permit is free then, without heartbeats.
    - X6: nobody who has just come gets a permit while another one waits that has come before, and
      knows this permit.
    - X7: nobody is called for a free permit while another one waits, and is told of none, that has
      waited for more than twice as long, and knows this permit. Not of clients that give back:
      one that has done so stays the first for its permit, and lacks other masters.

    Args:
        permits: For each client the number of permits that it knows. The first has waited for
            longest, more than twice as long as the next, and so on.

        elsewhere: The clients that may get their permits from other masters.

        dies: The clients that may die.

        yields: The clients that may give back a grant and wait on, because they lack others.

        deaf: Whether a client that has come does not listen until it has asked twice.

        looked_for: The properties that are checked.
    """

    def __init__(
        self,
        permits: tuple[int, ...],
        design: Design = SHIPPED,
        *,
        elsewhere: tuple[int, ...] = (),
        dies: tuple[int, ...] = (),
        yields: tuple[int, ...] = (),
        deaf: bool = True,
        looked_for: tuple[str, ...] = ("X4", "X5"),
    ) -> None:
        self._permits = permits
        self._design = design
        self._elsewhere = elsewhere
        self._dies = dies
        self._yields = yields
        self._waits = DEAF if deaf else LISTENS
        self._looked_for = looked_for

    def first(self) -> Served:
        """Return the state in which nobody has asked."""
        return ((NEW, NONE),) * len(self._permits), nothing(max(self._permits)), ()

    def steps(self, state: Served) -> Iterator[Step[Served]]:
        """Return all that can happen next."""
        members, keys, pending = state
        broken = self._left_behind(state)
        if {"W1", "X5"} & {*self._looked_for}:
            broken = broken or self._forgotten(state)
        if broken:
            yield "nothing more comes", state, broken
        for c, (phase, number) in enumerate(members):
            if phase == NEW:
                yield self._takes(state, c)
            elif phase == CHOSE:
                for chosen in range(self._permits[c]):
                    chose = replaced(members, c, (CHOSE, chosen)), keys, pending
                    yield self._enters(chose, c, self._waits, f"{c} waits for")
            elif phase == DEAD:
                yield from self._expired(state, c)
            elif phase != LEFT:
                yield from self._goes_on(state, c)
                gone = replaced(members, c, (LEFT, number))
                yield self._does(f"{c} leaves", (gone, keys, pending), c, LEAVE, number)
        for told in dict.fromkeys(pending):
            yield self._told(state, told)

    # What clients do.

    def _goes_on(self, state: Served, c: int) -> Iterator[Step[Served]]:
        """Return what a client does that waits or holds a permit."""
        members, keys, pending = state
        phase, number = members[c]
        if phase == DEAF:
            yield self._asks(state, c, LISTENS)
        if phase == LISTENS:
            asked = self._asks(state, c, LISTENS)
            if asked[1][1] != keys:
                yield asked
            if c in self._elsewhere:
                got = (replaced(members, c, (ELSEWHERE, number)), keys, pending)
                yield f"{c} gets permit {number} elsewhere", got, ""
        if phase == HOLDS and c in self._yields:
            given = replaced(members, c, (LISTENS, number))
            yield self._does(f"{c} gives back", (given, keys, pending), c, YIELD, number)
        if c in self._dies:
            dead = replaced(members, c, (DEAD, number))
            mine = tuple([told for told in pending if told[0] != c])
            yield f"{c} dies", (dead, keys, mine), ""

    def _takes(self, state: Served, c: int) -> Step[Served]:
        members, _, pending = state
        answer, then, _ = self._ran(TAKE, NONE, c, state)
        if answer <= 0:  # which permit it waits for, other masters decide
            return f"{c} is refused", (replaced(members, c, (CHOSE, NONE)), then, pending), ""
        number = answer // GRANT - 1
        after = replaced(members, c, (HOLDS, number))
        return f"{c} takes {number}", (after, then, pending), self._overtaken(state, c, number)

    def _enters(self, state: Served, c: int, waits: int, label: str) -> Step[Served]:
        answer, after = self._entered(state, c, waits, ENTER)
        fresh = state[0][c][0] == CHOSE and answer > 0
        # It has come before one that was called for this permit, and is on its way.
        comes_before = state[1][1][state[0][c][1]]
        broken = self._overtaken(state, c, state[0][c][1]) if fresh and not comes_before else ""
        return f"{label} {state[0][c][1]}: {answer}", after, broken

    def _asks(self, state: Served, c: int, waits: int) -> Step[Served]:
        answer, after = self._entered(state, c, waits, AGAIN)
        return f"{c} asks again for {state[0][c][1]}: {answer}", after, ""

    def _entered(self, state: Served, c: int, waits: int, verb: int) -> tuple[int, Served]:
        members, _, pending = state
        number = members[c][1]
        answer, then, calls = self._ran(verb, number, c, state)
        told = _told_of(pending, calls)
        if answer <= MOVED:
            told = tuple(sorted({*told, (c, MOVED - answer, True)}))
        return answer, (replaced(members, c, (HOLDS if answer > 0 else waits, number)), then, told)

    def _does(self, label: str, state: Served, c: int, verb: int, number: int) -> Step[Served]:
        members, _, pending = state
        _, then, calls = self._ran(verb, number, c, state)
        after = members, then, _told_of(pending, calls)
        return f"{label}, which calls {calls}", after, self._passed_by(calls, after)

    def _told(self, state: Served, told: Pending) -> Step[Served]:
        """Return what a client does that is told of a permit."""
        members, keys, pending = state
        c, number, replied = told
        phase, present = members[c]
        rest = list(pending)
        rest.remove(told)
        state = (members, keys, tuple(rest))
        label = f"{c} is told of {number}"
        if phase in (DEAF, LISTENS) and number == present:
            return self._asks(state, c, phase)
        if phase in (DEAF, LISTENS) and number < self._permits[c]:
            _, then, calls = self._ran(LEAVE, present, c, state)
            state = (replaced(members, c, (phase, number)), then, _told_of(state[2], calls))
            return self._enters(state, c, phase, f"{c} follows to")
        declines = self._design.declines_replies if replied else self._design.declines
        if not declines or (phase in (HOLDS, ELSEWHERE) and number == present):
            return label, state, ""
        return self._does(f"{c} declines {number}", state, c, DECLINE, number)

    def _expired(self, state: Served, c: int) -> Iterator[Step[Served]]:
        members, (locks, queues, index, counters), pending = state
        late = [
            tuple([(*e[:3], e[3] or e[1] == c) for e in queue])  # it is removed by `clean`
            for queue in queues
        ]
        free = tuple([NOBODY if _owner(lock) == c else lock for lock in locks])
        if tuple(late) != queues or free != locks:
            yield (
                f"all of {c} expires",
                (members, (free, tuple(late), index, counters), pending),
                "",
            )

    # The properties.

    def _left_behind(self, state: Served) -> str:
        members, keys, pending = state
        over = all(phase == LEFT for phase, _ in members) and not pending
        if "X4" in self._looked_for and over and keys != nothing(len(keys[0])):
            return "X4: something is left behind"
        return ""

    def _forgotten(self, state: Served) -> str:
        """Return whether somebody waits in vain while a permit is free."""
        members, keys, _ = state
        waiting = [c for c, (phase, _) in enumerate(members) if phase == LISTENS]
        if not waiting or not self._is_quiet(state):
            return ""
        elsewhere = [number for phase, number in members if phase == ELSEWHERE]
        known = max(self._permits[c] for c in waiting)
        free = [number for number, lock in enumerate(keys[0][:known]) if lock == NOBODY]
        if all(number in elsewhere for number in free):
            return ""
        if "W1" in self._looked_for:
            return "W1: a permit is free, somebody waits, and nobody is called"
        for c in waiting:
            answer, keys, calls = self._ran(AGAIN, members[c][1], c, state)
            if answer > 0 or answer <= MOVED or calls:
                return ""
            state = (members, keys, ())
        return "X5: a permit is free, somebody waits, and nobody will get it"

    def _is_quiet(self, state: Served) -> bool:
        """Return whether nothing is underway, and what the dead have had has expired."""
        members, (locks, queues, *_), pending = state
        phases = [phase for phase, _ in members]
        dead = [c for c, phase in enumerate(phases) if phase == DEAD]
        entries = [entry[1] for queue in queues for entry in queue if not entry[3]]
        left = any(c in dead for c in (*map(_owner, locks), *entries))
        return not (pending or left or CHOSE in phases or DEAF in phases)

    def _overtaken(self, state: Served, c: int, number: int) -> str:
        members, _, pending = state
        for other in [other for other in range(c) if number < self._permits[other]]:
            told = any(pend[0] == other for pend in pending)
            if "X6" in self._looked_for and members[other][0] == LISTENS and not told:
                return f"X6: {c} has just come, and overtakes {other}"
        return ""

    def _passed_by(self, calls: Calls, after: Served) -> str:
        """Return whether one of those that were called has passed a client that waits."""
        members, (locks, queues, *_), pending = after
        alive = {entry[1] for queue in queues for entry in queue if not entry[3]}
        told = {pend[0] for pend in pending}
        for c, number in calls if "X7" in self._looked_for else ():
            for other in alive.intersection(range(c)) - told:
                waits = members[other][0] == LISTENS and number < self._permits[other]
                if waits and locks[number] == NOBODY:
                    return f"X7: {c} is called for {number}, and passes {other}"
        return ""

    def _ran(self, verb: int, number: int, c: int, state: Served) -> tuple[int, Keys, Calls]:
        members, keys, _ = state
        listening = tuple([phase not in (DEAF, DEAD) for phase, _ in members])
        asks = Asks(c, c, self._permits, 0, listening=listening)
        return ran(self._design.planted, (verb, 0, number), asks, keys)


def _told_of(pending: tuple[Pending, ...], calls: Calls) -> tuple[Pending, ...]:
    return tuple(sorted({*pending, *[(c, number, False) for c, number in calls]}))


def _owner(lock: int) -> int:
    return NOBODY if lock == NOBODY else lock // GENERATIONS // CLAIMS


# Changed columns.


def _made(
    clients: tuple[Client, ...],
    columns: tuple[Column, ...],
    i: int,
    column: Column,
    reported: tuple[tuple[int, int], ...],
    spent: bool,
) -> State:
    return clients, tuple(sorted(replaced(columns, i, column))), reported, spent


def _settled(
    clients: tuple[Client, ...],
    columns: tuple[Column, ...],
    c: int,
    client: Client,
    reported: tuple[tuple[int, int], ...],
    spent: bool,
) -> State:
    """Return the state with a changed client; what it has left is in no quarantine any more."""
    if client[0] == OVER:
        columns = tuple([(keys, replaced(q, c, 0), sides) for keys, q, sides in columns])
    return replaced(clients, c, client), tuple(sorted(columns)), reported, spent


def _with_side(column: Column, c: int, side: Side) -> Column:
    return (*column[:2], replaced(column[2], c, side))


def _cleared(columns: tuple[Column, ...], c: int) -> tuple[Column, ...]:
    """Return the columns without the replies to a client, whose round is over."""
    return tuple([_with_side(column, c, (column[2][c][0], 0)) for column in columns])


def _sent(
    columns: tuple[Column, ...],
    c: int,
    request: Request,
    *,
    asks: bool = False,
    keeps: bool = False,
) -> tuple[Column, ...]:
    """Return the columns with a request underway; masters in quarantine are not asked."""
    return tuple(
        [
            column
            if asks and any(column[1])
            else _with_side(
                column, c, ((*column[2][c][0], request), column[2][c][1] if keeps else 0)
            )
            for column in columns
        ]
    )


# The scripts.


@dataclass(frozen=True)
class Asks:
    """Who sends a request: its place, the permits all know, the lease's age, who listens."""

    c: int
    place: int
    known: tuple[int, ...]
    gen: int
    fenced: bool = False
    listening: tuple[bool, ...] = ()

    @property
    def permits(self) -> int:
        """How many it knows itself."""
        return self.known[self.c]


def nothing(permits: int) -> Keys:
    """Return the keys of an empty master."""
    return (NOBODY,) * permits, ((),) * permits, (), (0,) * permits


@functools.cache
def ran(
    planted: tuple[tuple[bytes, bytes], ...], request: Request, asks: Asks, keys: Keys
) -> tuple[int, Keys, Calls]:
    """Run a shipped script on one master; return the reply, the keys, and who is called."""
    master, calls = _master(keys, asks.known), list[tuple[int, int]]()

    def publish(_: bytes, message: bytes) -> int:
        member, _, lock = message.partition(b" ")
        c = _client(member)
        if asks.listening and not asks.listening[c]:
            return 0
        calls.append((c, int(lock.rpartition(b"#")[2])))
        return 1

    master.data.publish = publish
    packed = words(_packed(request, asks))
    packed[1] = dict(planted).get(packed[1], packed[1])
    # Only a permit is set again without a script.
    reply = master._called(*packed) if packed[0] == b"SET" else master.run(packed)
    then = _contents(master, len(keys[0]))
    return _answer(request, reply), then, tuple(calls)


def _answer(request: Request, reply: object) -> int:
    verb, _, number = request
    if verb == TAKE:
        taken = replies.taken(reply)
        assert not isinstance(taken, NoReply), reply
        if not taken.granted:
            return REFUSED - taken.number
        return GRANT * (taken.number + 1) + _counter(taken.counter)
    if verb in (ENTER, AGAIN):
        queued = replies.queued(reply)
        assert queued is not None, reply
        if queued.standing is GRANTED:
            return GRANT * (number + 1) + _counter(queued.counter)
        return REFUSED if queued.moved is None else MOVED - queued.moved
    if verb == EXTEND:
        return 1 if reply == OK else REFUSED
    return 0


def _counter(value: int) -> int:
    """Return how much a counter is beyond the proposals, which are all equal."""
    return value - TIME + 1 if value else 0


def _permit(permits: int, number: int) -> Permit:
    return Permits(Mutex(b"s"), permits).permit(number)


def _packed(request: Request, asks: Asks) -> bytes:
    verb, claim, number = request
    all_permits = Permits(Mutex(b"s"), asks.permits)
    token, ttl = b"%d" % (asks.c * CLAIMS + claim), STEP * (asks.gen + 1)
    if verb == TAKE:
        lead = 10_000_000 if asks.fenced else None
        return all_permits.take(token, ttl, (0, 1), NEVER, lead, TIME)
    if verb == DROP:
        return all_permits.drop(token, None if number == NONE else number)
    return _packed_for(_permit(max(asks.permits, number + 1), number), verb, token, ttl, asks)


def _packed_for(permit: Permit, verb: int, token: bytes, ttl: int, asks: Asks) -> bytes:
    """Return a request about one permit."""
    member = _member(asks.c, asks.known)
    if verb in (ENTER, AGAIN):
        entry = QueueEntry(member, _place(asks.place), LIVES, MOST, NEVER, first=verb == ENTER)
        counter = permit.counter(10_000_000) if asks.fenced else None
        return permit.enqueue(token, ttl, entry, counter, TIME)
    if verb in (LEAVE, YIELD):
        # Who has taken a permit has no place in a queue; it has no other claim either.
        return permit.leave(token, member, keep_place=verb == YIELD)
    if verb == DECLINE:
        return commands.decline(permit, member)
    if verb == EXTEND:
        return commands.extend(permit.extension(token, ttl))
    return permit.restore(token, ttl)


def _place(rank: int) -> int:
    """Return a place; one that came before has waited for three times as long."""
    return TIME - 100_000_000 // (1, 3, 9, 27, 81, 243)[rank]


RANKS = {_place(rank): rank for rank in range(6)}


def _client(member: bytes) -> int:
    return int(member.partition(b"/")[2].partition(b"p")[0])


def _member(c: int, known: tuple[int, ...]) -> bytes:
    return b"client/%dp%d" % (c, known[c])


@functools.cache
def _names(permits: int) -> list[tuple[bytes, bytes, bytes, bytes]]:
    """Return the names of each permit, its queue and its counter, and that of the index."""
    names = []
    for number in range(permits):
        permit = _permit(permits, number)
        lock, queue, index = commands.permit_keys(permit)
        names.append((lock, queue, permit.counter(0).keys[0], index))
    return names


def _master(keys: Keys, known: tuple[int, ...]) -> MasterKeys:
    locks, queues, index, counters = keys
    master = MasterKeys(NOW)
    data, ms = master.data, NOW * 1_000
    for number, (lock, queue, counter, name) in enumerate(_names(len(locks))):
        if locks[number] != NOBODY:
            token, gen = divmod(locks[number], GENERATIONS)
            data.set(lock, b"%d" % token, STEP * (gen + 1))
        for place, c, marked, dead in queues[number]:
            ends = ms - 1 if dead else ms + LIVES
            member = _member(c, known)
            data.zadd(queue, _place(place), member)
            data.zadd(queue, 4e15 - ends - marked / 2, b"~" + member)
        if counters[number]:
            data.set(counter, b"%016d" % (TIME + counters[number] - 1))
        for place, waited_for in index:
            if waited_for == number:
                data.zadd(name, _place(place), b"%d" % number)
    return master


def _contents(master: MasterKeys, permits: int) -> Keys:
    data, ms = master.data, NOW * 1_000
    locks, queues, index, counters = [], [], list[tuple[int, int]](), []
    for number, (lock, queue, counter, name) in enumerate(_names(permits)):
        value, until = data.find(lock)
        gen = round((until - NOW) * 1_000) // STEP - 1 if value is not None else 0
        holder = int(value) if isinstance(value, bytes) else NOBODY
        locks.append(NOBODY if holder == NOBODY else holder * GENERATIONS + gen)
        members = data.zall(queue)
        queues.append(
            tuple(
                [
                    (
                        RANKS[int(score)],
                        _client(member),
                        members[b"~" + member] % 1 > 0,
                        members[b"~" + member] > 4e15 - ms,
                    )
                    for member, score in members.items()
                    if not member.startswith(b"~")
                ]
            )
        )
        value = data.string(counter)
        counters.append(_counter(int(value or 0)))
        if not number:
            index = [(RANKS[int(score)], int(m)) for m, score in data.zall(name).items()]
    return tuple(locks), tuple(queues), tuple(index), tuple(counters)
