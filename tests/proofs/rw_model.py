"""
All interleavings of a few readers and writers of one lock.

Runs the shipped code: the commands of `Share` and `Mutex` with their Lua scripts, `revoke.lua`,
and `replies.queued`.

Models itself: the clients, which ask, hold, extend, release, give up or die (the shipped
ones are `FairWaiter` and the watchdog); the quarantine, as the leases that a master may have
forgotten; messages; and time, which does not run.

- The messages from a client to a master keep their order. Each may come late or never; with
  *losses* it may be lost while later ones arrive. A late or lost reply is a client that decides
  by some of the replies that there are.
- What a client has on a master may end when its lease is over, and never before: a lease that is
  held has not ended yet, and one that was extended ends later. Deadlines pass in a fixed order:
  at first that of the clients, then the same for what was extended.
- A forced release comes on all masters at once, and while no client asks: it outlasts attempts.
- A quarantine ends as soon as every lease is over that the master may have forgotten. The real
  one lasts longer, and lets a writer enter the queue of that master again.

Three reductions lose nothing. Masters are alike, so their columns are sorted. An attempt, and an
extension, begins with the first request that a master executes: an earlier begin would promise
less. And a client that was refused asks again only where it is granted the lock: another refusal
changes nothing.

Writers have no fencing token here: shares touch no counter, so `model` shows that tokens rise.
"""

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from redlock_aio._protocol import commands, replies
from redlock_aio._protocol.commands import QueueEntry
from redlock_aio._protocol.primitives import Mutex, Share, with_queues
from redlock_aio._protocol.scripts import Script
from redlock_aio._rules.fair_ticket import GRANTED, NEXT
from redlock_aio._rules.quorum import OK, majority

from .masters import MasterKeys, changed, words
from .search import Step, replaced

NEW, ASKING, HELD, EXTENDING, OVER = range(5)

LOOK, FIRST, AGAIN, EXTENSION, RESTORE, RELEASE, YIELD = range(7)
"""The requests; `LOOK` belongs to a naive design."""

ROUND = 10
"""Multiplied by the generation of the lease, and added to the requests that extend it."""

VERBS = ("looks for", "answers", "answers again", "extends", "restores", "releases", "takes back")

NOBODY, SHARED = -1, -2
"""What a lock holds, if it is not the number of a writer."""

DEAD = -1
"""The share of a reader whose deadline is over, and which is still in the set."""

YES, HELD_BY_OTHERS, BEHIND = 1, -1, -2
"""The replies to a request; 0 is none yet."""

NOW = 1_000
"""The time of every master's clock, in seconds."""

NEVER, LIVES, MOST = 10**15, 60_000, 9
STEP = 1_000
"""The ms from one deadline to the next one."""

READ, WRITE = Share(Mutex(b"r")), Mutex(b"r")
LOCK, QUEUE, SHARES = with_queues(READ)
SHARED_VALUE, REVOKED = b"redlock_aio:shared", commands.revocation(b"forced")

Entry = tuple[int, int, bool]
"""A member of the queue: its place, its client, and whether it was granted the lock."""

Keys = tuple[int, int, tuple[int, ...], tuple[Entry, ...]]
"""
The lock, the last deadline that its end covers, the generation of each client's share, the queue.

A deadline is a number: 1 is the first one to pass, and 0 is before all of them. A share has
generation 1, and one more after each extension.
"""

Side = tuple[tuple[int, ...], int]
"""One master and one client: the requests underway, and the reply in the present round."""

Column = tuple[Keys, tuple[int, ...], tuple[Side, ...]]
"""
One master: its keys, its quarantine, and its sides.

The quarantine has for each client 1 if the master may have forgotten its lease, 2 if that client
has begun an extension since, else 0.
"""

Client = tuple[int, int, int, int, int]
"""
Its phase, the generation that is confirmed, how many holders had been reported when it became one
(`STALE` during an extension that began after another), the writers which it must not overtake as
bits, and its place.
"""

State = tuple[tuple[Client, ...], tuple[Column, ...], tuple[int, int], bool]
"""The clients, the masters, how many writers and holders were reported, whether the fault was."""

STALE = -1

PROPERTIES = ("X1", "X3", "X4", "X5")
"""
What must hold.

X1: nobody holds the lock beside a writer.
X3: no lease is extended that another one has followed: for a writer any, for a reader a writer's.
X4: after all releases nothing is left behind.
X5: no reader that begins when a writer waits on a majority gets in before that writer.
"""

Naive = Callable[[str, int, int, Keys], tuple[int, Keys] | None]
"""Execute a request of a design that is no change of the scripts: kinds, request, client, keys."""


@dataclass(frozen=True)
class Design:
    """
    The rules of clients and masters.

    Attributes:
        planted: The hashes of shipped scripts, each with that of the one that runs in its place.

        naive: Executes the requests of another protocol; returns None for those of this one.

        looks_first: Whether a client first looks at a majority, and then registers.

        quarantines: Whether a master that has lost its keys grants nothing.
    """

    planted: tuple[tuple[bytes, bytes], ...] = ()
    naive: Naive | None = None
    looks_first: bool = False
    quarantines: bool = True


SHIPPED = Design()


def planted(changes: dict[bytes, bytes], *scripts: Script) -> Design:
    """Return the design in which each script has all *changes*, from a text that it has once."""
    return Design(changed(changes, *scripts))


class Sharing:
    """
    Readers and writers of one lock on three masters.

    Args:
        kinds: The kind of each client: "r" or "w".

        extends: The clients that extend their leases, each as often as it is named.

        forgets: Whether one master may lose its keys.

        forced: Whether the lock may be released by force, once. Then leases may overlap, and
            only extensions are checked.

        losses: Whether requests may be lost.

        clean: Whether all clients release, and nothing may be left behind at the end. Nothing
            expires then.

        calm: Whether nobody gives up, dies or expires.

        masters: The number of masters.

        looked_for: The properties that are checked.
    """

    def __init__(
        self,
        kinds: str,
        design: Design = SHIPPED,
        *,
        extends: tuple[int, ...] = (),
        forgets: bool = False,
        forced: bool = False,
        losses: bool = False,
        clean: bool = False,
        calm: bool = False,
        masters: int = 3,
        looked_for: tuple[str, ...] = PROPERTIES,
    ) -> None:
        self.needed = majority(masters)
        self._masters = masters
        self._looked_for = looked_for
        self._kinds = kinds
        self._design = design
        self._extends = extends
        self._forgets = forgets
        self._forced = forced
        self._losses = losses
        self._clean = clean
        self._calm = calm

    def first(self) -> State:
        """Return the state in which nobody has begun."""
        count = len(self._kinds)
        column = (NOBODY, 0, (0,) * count, ()), (0,) * count, (((), 0),) * count
        return ((NEW, 0, 0, 0, 0),) * count, (column,) * self._masters, (0, 0), False

    def steps(self, state: State) -> Iterator[Step[State]]:
        """Return all that can happen next."""
        clients, columns, _, spent = state
        phases = [client[0] for client in clients]
        if not self._clean and not self._may_break(clients):
            return
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
                    _made(clients, columns, i, lost, state[2], True),
                    "",
                )
        if self._forced and not spent and ASKING not in phases:
            planted = self._design.planted
            forced = tuple(
                [(_forced(planted, self._kinds, column[0]), *column[1:]) for column in columns]
            )
            after = (clients, tuple(sorted(forced)), state[2], True)
            yield "the lock is released by force", after, ""
        if (
            self._clean
            and phases.count(OVER) == len(phases)
            and not any(side[0] for _, _, sides in columns for side in sides)
        ):
            nothing = self.first()[1][0][0]
            if any(keys != nothing for keys, _, _ in columns):
                yield "all is over", state, "X4: something is left behind"

    def _may_break(self, clients: tuple[Client, ...]) -> bool:
        """Return whether a lease may still be reported or extended."""
        return any(
            phase in (NEW, ASKING, EXTENDING) or (phase == HELD and gen <= self._extends.count(c))
            for c, (phase, gen, *_) in enumerate(clients)
        )

    # The decisions of clients.

    def _decided(self, state: State, c: int) -> Iterator[Step[State]]:
        clients, columns, reported, spent = state
        phase, gen, seen, barred, place = clients[c]
        name = f"{self._kinds[c]}{c}"
        cleared = _cleared(columns, c)
        if sum(sides[c][1] > 0 for _, _, sides in columns) < self.needed:
            pass
        elif phase == ASKING and self._design.looks_first and not seen:
            sent = _sent(cleared, c, FIRST)
            client = (ASKING, 0, 1, barred, place)
            yield f"{name} registers", _settled(clients, sent, c, client, reported, spent), ""
        elif phase == ASKING:
            writes = self._kinds[c] == "w"
            now = (reported[0] + writes, reported[1] + 1)
            client = (HELD, 1, now[writes], 0, place)
            after = _settled(clients, cleared, c, client, now, spent)
            yield f"{name} holds the lock", after, self._broken(state, c)
        elif phase == EXTENDING:
            restored = _restored(_confirmed(columns, c), c, RESTORE + ROUND * (gen + 1))
            client = (HELD, gen + 1, max(seen, 0), 0, place)
            after = _settled(clients, restored, c, client, reported, spent)
            stale = seen == STALE and "X3" in self._looked_for
            broken = "X3: a lease is extended after another one was reported" if stale else ""
            yield f"{name} is extended", after, broken
        if phase in (HELD, EXTENDING) or (phase == ASKING and not self._calm):
            client = (OVER, 0, 0, 0, place)
            sent = _sent(cleared, c, RELEASE)
            label = f"{name} {'gives up' if phase == ASKING else 'releases'}"
            yield label, _settled(clients, sent, c, client, reported, spent), ""
            if phase != ASKING and not self._calm and not self._clean:
                silent = tuple([_with_side(column, c, ((), 0)) for column in columns])
                yield f"{name} dies", _settled(clients, silent, c, client, reported, spent), ""

    def _broken(self, state: State, c: int) -> str:
        """Return the property that is broken if a client holds the lock now."""
        clients, columns = state[:2]
        held = [d for d, client in enumerate(clients) if client[0] in (HELD, EXTENDING)]
        kinds = [self._kinds[d] for d in (c, *held)]
        broken = {
            "X1": bool(held)
            and "w" in kinds
            and not self._forced
            and "a writer holds beside others",
            "X5": clients[c][3] & self._registered(clients, columns)
            and "a reader overtakes a writer",
        }
        return next((f"{p}: {what}" for p in self._looked_for if (what := broken.get(p))), "")

    def _registered(self, clients: tuple[Client, ...], columns: tuple[Column, ...]) -> int:
        """Return a bit for each writer that waits, and is known on a majority."""
        bits = 0
        for c, client in enumerate(clients):
            if self._kinds[c] == "w" and client[0] == ASKING:
                known = [
                    keys[0] == c or any(entry[1] == c for entry in keys[3])
                    for keys, _, _ in columns
                ]
                bits |= (sum(known) >= self.needed) << c
        return bits

    # Requests.

    def _asked(self, state: State, i: int, c: int) -> Iterator[Step[State]]:
        """Return the steps in which a client sends a request that is executed at once."""
        clients, columns, reported, spent = state
        phase, gen, seen, _, place = clients[c]
        keys, quarantine, sides = columns[i]
        if phase == NEW and not any(quarantine):
            place = sum(client[0] != NEW for client in clients)
            barred = self._registered(clients, columns) if self._kinds[c] == "r" else 0
            begun = replaced(clients, c, (ASKING, 0, 0, barred, place))
            request = LOOK if self._design.looks_first else FIRST
            sent = _sent(columns, c, request, asks=True)
            yield from self._delivered((begun, sent, reported, spent), i, c, begins=True)
        elif phase == HELD and gen <= self._extends.count(c) and not sides[c][0]:
            followed = reported[self._kinds[c] == "w"] > seen
            begun = replaced(clients, c, (EXTENDING, gen, STALE if followed else seen, 0, place))
            sent = _sent(_extending(columns, c), c, EXTENSION + ROUND * (gen + 1))
            yield from self._delivered((begun, sent, reported, spent), i, c, begins=True)
        elif phase == ASKING and not sides[c][0] and sides[c][1] < 0 and not any(quarantine):
            reply, then = self._ran(AGAIN, c, place, keys)
            if reply > 0 and not self._design.looks_first:
                column = (then, quarantine, replaced(sides, c, ((), reply)))
                label = f"{self._kinds[c]}{c} asks a master again, and is granted the lock"
                yield label, _made(clients, columns, i, column, reported, spent), ""

    def _delivered(
        self, state: State, i: int, c: int, *, begins: bool = False
    ) -> Iterator[Step[State]]:
        clients, columns, reported, spent = state
        keys, quarantine, sides = columns[i]
        underway, reply = sides[c]
        if not underway:
            return
        request, rest = underway[0], underway[1:]
        phase, gen, registers, _, place = clients[c]
        answer, then = self._ran(request, c, place, keys)
        extension = EXTENSION + ROUND * (gen + 1)
        counts = (request == extension and phase == EXTENDING) or (
            request == (FIRST if registers or not self._design.looks_first else LOOK)
            and phase == ASKING
        )
        if counts:
            # A master in quarantine is asked as before, and does not count.
            reply = HELD_BY_OTHERS if any(quarantine) else answer
        name = f"{self._kinds[c]}{c}"
        column = (then, quarantine, replaced(sides, c, (rest, reply)))
        label = f"a master {VERBS[request % ROUND]} {name}: {answer}"
        yield label, _made(clients, columns, i, column, reported, spent), ""
        # A release is repeated until it is confirmed.
        if self._losses and request != RELEASE and not begins:
            column = (keys, quarantine, replaced(sides, c, (rest, sides[c][1])))
            label = f"a request of {name} is lost: {VERBS[request % ROUND]}"
            yield label, _made(clients, columns, i, column, reported, spent), ""

    # Time, and faults.

    def _expired(self, state: State, i: int) -> Iterator[Step[State]]:
        clients, columns, reported, spent = state
        (lock, end, shares, queue), quarantine, sides = columns[i]
        if self._clean or self._calm:
            return
        count = len(clients)
        living = {_deadline(count, c, gen): (c, gen) for c, gen in enumerate(shares) if gen > 0}
        earliest = min(living, default=0)
        if living and (lock != SHARED or earliest <= end) and _passed(clients, *living[earliest]):
            c = living[earliest][0]
            gone = DEAD if lock == SHARED else 0
            keys = (lock, end, replaced(shares, c, gone), queue)
            after = _made(clients, columns, i, (keys, quarantine, sides), reported, spent)
            yield f"the share of r{c} expires", after, ""
        for entry in queue:
            side = sides[entry[1]]
            if clients[entry[1]][0] == OVER and not side[0]:
                left = tuple([other for other in queue if other != entry])
                column = ((lock, end, shares, left), quarantine, sides)
                label = f"the entry of {self._kinds[entry[1]]}{entry[1]} expires"
                yield label, _made(clients, columns, i, column, reported, spent), ""
        covered = not end or _passed(clients, (end - 1) % count, (end - 1) // count + 1)
        if lock != NOBODY and covered and (lock != SHARED or not living or earliest > end):
            keys = (NOBODY, 0, (0,) * count if lock == SHARED else shares, queue)
            after = _made(clients, columns, i, (keys, quarantine, sides), reported, spent)
            yield "the lock expires", after, ""

    def _forgotten(self, clients: tuple[Client, ...], column: Column) -> Column:
        count, quarantine = len(clients), column[1]
        if self._design.quarantines:
            quarantine = tuple(
                [
                    int(client[0] in (HELD, EXTENDING) or (client[0] == ASKING and side[1] > 0))
                    for client, side in zip(clients, column[2], strict=True)
                ]
            )
        return (NOBODY, 0, (0,) * count, ()), quarantine, column[2]

    def _ran(self, request: int, c: int, place: int, keys: Keys) -> tuple[int, Keys]:
        if self._design.naive is not None:
            done = self._design.naive(self._kinds, request, c, keys)
            if done is not None:
                return done
        reply, then, _ = ran(self._design.planted, self._kinds, request, c, place, keys)
        return reply, then


# Wake-ups.

Member = tuple[int, bool]
"""A client of one master: its phase, and whether it has given back a grant."""

Members = tuple[tuple[Member, ...], Keys]
"""The state of a model of wake-ups."""

UNASKED, WAITS, IS_NEXT, GAVE_BACK, CALLED, GRANT, LEFT = range(7)
"""
What a client knows of its turn.

A client that waits hears only of wake-ups. One that is next knows when the lock ends, and hears of
each change of it as well. One that has been called will ask.
"""


class Waking:
    """
    The wake-ups of one master, whose requests are executed at once.

    Heartbeats are left out: they find what no wake-up tells, up to 1 s later. Nobody dies, and
    nothing expires. Each client may give back what it was granted once, and leaves at any moment.

    - W1: nobody who only hears of wake-ups can get the lock. Who has given it back lacks other
      masters, because of a writer, and is woken when a writer leaves.
    - W2: nobody is woken who has a share, because it would give that back; or who leaves.
    - W3: nobody who only hears of wake-ups is next. It would not hear of the end of a lock whose
      holder uses no queue, or has died.

    Args:
        kinds: The kind of each client, in the order of their places: "r", "w", or "p" for a
            holder of the same key that uses no queue.

        looked_for: The properties that are checked.
    """

    def __init__(
        self,
        kinds: str,
        design: Design = SHIPPED,
        *,
        looked_for: tuple[str, ...] = ("W1", "W2"),
    ) -> None:
        self._kinds = kinds
        self._planted = design.planted
        self._looked_for = looked_for

    def first(self) -> Members:
        """Return the state in which nobody has asked."""
        count = len(self._kinds)
        return ((UNASKED, False),) * count, (NOBODY, 0, (0,) * count, ())

    def steps(self, state: Members) -> Iterator[Step[Members]]:
        """Return all that can happen next."""
        members, keys = state
        for c, (phase, gave_back) in enumerate(members):
            name = f"{self._kinds[c]}{c}"
            if phase in (UNASKED, CALLED):
                request = FIRST if phase == UNASKED else AGAIN
                answer, then, _ = self._ran(request, c, keys)
                now = {YES: GRANT, HELD_BY_OTHERS: IS_NEXT}.get(answer, WAITS)
                after = _told(replaced(members, c, (now, gave_back)), keys, then)
                yield f"{name} asks: {answer}", (after, then), self._broken(after, then)
            if phase not in (UNASKED, LEFT):
                yield self._left(state, c, RELEASE)
            if phase not in (UNASKED, LEFT) and not gave_back and self._kinds[c] != "p":
                yield self._left(state, c, YIELD)

    def _left(self, state: Members, c: int, request: int) -> Step[Members]:
        members, keys = state
        phase, gave_back = members[c]
        entered = any(entry[1] == c for entry in keys[3])
        before = keys
        if request == YIELD and phase == GRANT and not entered:
            before = self._ran(AGAIN, c, keys)[1]  # it enters the queue before it gives back
        _, then, woken = self._ran(request, c, before)
        now = LEFT
        if request == YIELD:
            now = phase if phase != GRANT else GAVE_BACK if entered else CALLED
        after = _told(replaced(members, c, (now, gave_back or request == YIELD)), before, then)
        for d in woken:
            if after[d][0] in (WAITS, IS_NEXT, GAVE_BACK):
                after = replaced(after, d, (CALLED, after[d][1]))
        writer = self._kinds[c] == "w" and request == RELEASE
        broken = self._broken(after, then, writer_left=writer)
        if "W2" in self._looked_for and (c in woken or any(then[2][d] for d in woken)):
            broken = f"W2: {woken} are woken"
        label = f"{self._kinds[c]}{c} {'leaves' if request == RELEASE else 'gives back'}"
        return f"{label}, and wakes {woken}", (after, then), broken

    def _broken(self, members: tuple[Member, ...], keys: Keys, *, writer_left: bool = False) -> str:
        for c, (phase, _) in enumerate(members):
            if phase == WAITS or (phase == GAVE_BACK and writer_left):
                answer = self._ran(AGAIN, c, keys)[0]
                name = f"{self._kinds[c]}{c}"
                if answer == YES and "W1" in self._looked_for:
                    return f"W1: {name} can get the lock now, and is not woken"
                if answer == HELD_BY_OTHERS and "W3" in self._looked_for:
                    return f"W3: {name} is next, and is not woken"
        return ""

    def _ran(self, request: int, c: int, keys: Keys) -> tuple[int, Keys, tuple[int, ...]]:
        return ran(self._planted, self._kinds, request, c, c, keys)


def _told(members: tuple[Member, ...], before: Keys, then: Keys) -> tuple[Member, ...]:
    """Return the members after a push of the key to those that are next."""
    if before[0] == then[0]:
        return members
    return tuple([(CALLED if p == IS_NEXT else p, gave_back) for p, gave_back in members])


# Naive designs, as far as they are no change of the shipped scripts.


def checks_first(kinds: str, request: int, c: int, keys: Keys) -> tuple[int, Keys] | None:
    """Look for the other side, and register by a second request, which looks no more."""
    lock, _, shares, queue = keys
    reads = kinds[c] == "r"
    end = _deadline(len(kinds), c, 1)
    if request == LOOK:
        return (YES if lock in ((NOBODY, SHARED) if reads else (NOBODY,)) else HELD_BY_OTHERS), keys
    if request == FIRST and reads:
        now = SHARED if lock == NOBODY else lock
        return YES, (now, max(keys[1], end), replaced(shares, c, 1), queue)
    if request == FIRST:
        return (YES, (c, end, shares, queue)) if lock < 0 else (HELD_BY_OTHERS, keys)
    return None


def looks_only(kinds: str, request: int, c: int, keys: Keys) -> tuple[int, Keys] | None:
    """Let a reader look for a writer, and register nothing."""
    if request == FIRST and kinds[c] == "r":
        return (YES if keys[0] < 0 else HELD_BY_OTHERS), keys
    return None


def counts(kinds: str, request: int, c: int, keys: Keys) -> tuple[int, Keys] | None:
    """Count the readers by INCR and DECR; the first number of the shares is the count."""
    lock, end, shares, queue = keys
    if kinds[c] == "w":
        return None
    if request in (FIRST, AGAIN):
        if lock >= 0:
            return HELD_BY_OTHERS, keys
        return YES, (SHARED, end, replaced(shares, 0, shares[0] + 1), queue)
    if lock != SHARED:
        return 0, keys
    left = shares[0] - 1
    return 0, (SHARED if left else NOBODY, end if left else 0, replaced(shares, 0, left), queue)


# Deadlines.


def _deadline(count: int, c: int, gen: int) -> int:
    number = (gen - 1) * count + c + 1
    assert number < 9, "the slack of an end would cover the next deadline"
    return number


def _passed(clients: tuple[Client, ...], c: int, gen: int) -> bool:
    """Return whether the deadline of a client's lease may be over: it does not rely on it."""
    return clients[c][0] == OVER or clients[c][1] > gen


# Changed columns.


def _made(
    clients: tuple[Client, ...],
    columns: tuple[Column, ...],
    i: int,
    column: Column,
    reported: tuple[int, int],
    spent: bool,
) -> State:
    return clients, tuple(sorted(replaced(columns, i, column))), reported, spent


def _settled(
    clients: tuple[Client, ...],
    columns: tuple[Column, ...],
    c: int,
    client: Client,
    reported: tuple[int, int],
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
    columns: tuple[Column, ...], c: int, request: int, *, asks: bool = False
) -> tuple[Column, ...]:
    """Return the columns with a request underway; masters in quarantine are not asked."""
    return tuple(
        [
            column
            if asks and any(column[1])
            else _with_side(column, c, ((*column[2][c][0], request), 0))
            for column in columns
        ]
    )


def _extending(columns: tuple[Column, ...], c: int) -> tuple[Column, ...]:
    """Return the columns with an extension that begins after the keys of a master were lost."""
    return tuple([(k, replaced(q, c, 2) if q[c] else q, sides) for k, q, sides in columns])


def _restored(columns: tuple[Column, ...], c: int, request: int) -> tuple[Column, ...]:
    """Return the columns with a request to set again what an extension has not found."""
    return tuple(
        [
            _with_side(
                column, c, ((request,), 0) if column[2][c] == ((), -1) else (column[2][c][0], 0)
            )
            for column in columns
        ]
    )


def _confirmed(columns: tuple[Column, ...], c: int) -> tuple[Column, ...]:
    """Return the columns with an extension that is confirmed without masters in quarantine."""
    return tuple([(k, replaced(q, c, 0) if q[c] == 2 else q, sides) for k, q, sides in columns])


# The scripts.


@functools.cache
def ran(
    planted: tuple[tuple[bytes, bytes], ...],
    kinds: str,
    request: int,
    c: int,
    place: int,
    keys: Keys,
) -> tuple[int, Keys, tuple[int, ...]]:
    """Run a shipped script on one master; return the reply, the keys, and who is woken."""
    master, woken = _master(kinds, keys), list[int]()
    master.data.publish = lambda _, member: woken.append(_client(member)) or 1  # type: ignore[func-returns-value]
    packed = words(_packed(kinds, request, c, place))
    packed[1] = dict(planted).get(packed[1], packed[1])
    # Only a writer's lock is set again without a script.
    reply = master._called(*packed) if packed[0] == b"SET" else master.run(packed)
    answer = 0
    if kinds[c] == "p":
        answer = YES if reply == OK else HELD_BY_OTHERS
    elif request in (FIRST, AGAIN):
        queued = replies.queued(reply)
        assert queued is not None
        answer = {GRANTED: YES, NEXT: HELD_BY_OTHERS}.get(queued.standing, BEHIND)
    elif request > ROUND:
        answer = YES if reply == OK else HELD_BY_OTHERS
    return answer, _contents(master, kinds), tuple(woken)


def _packed(kinds: str, request: int, c: int, place: int) -> bytes:
    lock: Share | Mutex = READ if kinds[c] == "r" else WRITE
    token, member = b"%d" % c, _member(kinds, c)
    gen, request = max(request // ROUND, 1), request % ROUND
    ttl = STEP * _deadline(len(kinds), c, gen)
    if kinds[c] == "p":
        return WRITE.release(token) if request == RELEASE else WRITE.acquire(token, ttl)
    if request == EXTENSION:
        return commands.extend(lock.extension(token, ttl))
    if request == RESTORE:
        return lock.restore(token, ttl)
    if request in (RELEASE, YIELD):
        return lock.leave(token, member, keep_place=request == YIELD)
    entry = QueueEntry(member, place, LIVES, MOST, NEVER, first=request == FIRST)
    return lock.enqueue(token, ttl, entry)


def _member(kinds: str, c: int) -> bytes:
    return b"client/%d%b" % (c, READ.member_mark if kinds[c] == "r" else WRITE.member_mark)


def _client(member: bytes) -> int:
    return int(member.partition(b"/")[2].rstrip(READ.member_mark))


def _master(kinds: str, keys: Keys) -> MasterKeys:
    lock, end, shares, queue = keys
    master = MasterKeys(NOW)
    data, ms = master.data, NOW * 1_000
    if lock != NOBODY:
        value = SHARED_VALUE if lock == SHARED else b"%d" % lock
        data.set(LOCK, value, STEP * end or 1)
    for c, gen in enumerate(shares):
        if gen:
            ends = -1 if gen == DEAD else STEP * _deadline(len(kinds), c, gen)
            data.zadd(SHARES, ms + ends, b"%d" % c)
    for place, c, marked in queue:
        data.zadd(QUEUE, place, _member(kinds, c))
        data.zadd(QUEUE, 4e15 - ms - LIVES - marked / 2, b"~" + _member(kinds, c))
    return master


def _contents(master: MasterKeys, kinds: str) -> Keys:
    data, ms, count = master.data, NOW * 1_000, len(kinds)
    value, until = data.find(LOCK)
    lock = NOBODY
    if isinstance(value, bytes):
        lock = SHARED if value == SHARED_VALUE else int(value)
    end = 0 if value is None else round((until - NOW) * 1_000) // STEP
    shares = [0] * count
    for token, score in data.zall(SHARES).items():
        shares[int(token)] = DEAD if score < ms else (int(score - ms) // STEP - 1) // count + 1
    members = data.zall(QUEUE)
    queue = [
        (int(score), _client(member), members[b"~" + member] % 1 > 0)
        for member, score in members.items()
        if not member.startswith(b"~")
    ]
    return lock, end, tuple(shares), tuple(queue)


@functools.cache
def _forced(planted: tuple[tuple[bytes, bytes], ...], kinds: str, keys: Keys) -> Keys:
    """Revoke what a master has, and release the revocation when its time is over."""
    if keys[0] == NOBODY:
        return keys
    master = _master(kinds, keys)
    value = SHARED_VALUE if keys[0] == SHARED else b"%d" % keys[0]
    readers = [b"%d" % c for c, gen in enumerate(keys[2]) if gen]
    revoke = words(commands.revoke(LOCK, value, REVOKED, STEP, readers))
    revoke[1] = dict(planted).get(revoke[1], revoke[1])
    assert master.run(revoke) == OK
    free = commands.leave((LOCK, QUEUE), REVOKED, commands.NO_MEMBER, keep_place=True)
    assert master.run(words(free)) == OK
    return _contents(master, kinds)
