"""
All interleavings of programs that name different masters, or different servers by one name.

Runs the shipped rules: `membership.learn`, `membership.restriction`, `membership.has_moved`,
`membership.is_surely_in` and `membership.other_names`.

Models itself: connections, the lines on each master, replies on their way, cuts, restarts,
quarantines, grants whose votes come one by one, and what `DeclaredSets` decides to write. Time
does not run: a line may run out at any moment, except while programs write it, or while the
life of the line forbids it because a lease is valid that was granted before.

A program's masters are letters. One that only a single program names always votes for it. The
lines with servers are modelled only for names that may lead to several servers, and for servers
with several names; the others are constant.
"""

import functools
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set as AbstractSet
from dataclasses import dataclass, field
from typing import NamedTuple

from redlock_aio._rules import membership
from redlock_aio._rules.membership import Addresses, Known, Line, Place, Restriction
from redlock_aio._rules.quorum import majority

from .search import Step, replaced

NOBODY = -1
AWAY, READING, ASKED, DECLARED = range(4)
"""Not connected; only reads; the reply to the write is on its way; the lines are written."""

ALWAYS = 1.0


class Link(NamedTuple):
    """A program's connection to a master: its server, its phase, and the reply on its way."""

    server: int = NOBODY
    phase: int = AWAY
    reply: tuple[int, ...] = ()


class Facts(NamedTuple):
    """
    What a program has learned from one server, as sets of bits: the lines by their numbers.

    In *before* are pairs of lines of one address, by the numbers of `Sets._pairs`.
    """

    older: int = 0
    first: int = 0
    servers: int = 0
    before: int = 0


NOTHING = Facts()


class Round(NamedTuple):
    """
    A round that a program has begun, and the lease that it became.

    Attributes:
        votes: The links whose votes have arrived, and the servers of these.

        present: Which programs were connected to which servers when it began: their lines
            there, and what they have learned there, outlive the lease.

        lasting: Lines with servers that outlive the lease, and where.

        met: The programs that had met this one when the lease was granted, and where; ``None``
            if it is not granted.
    """

    votes: tuple[tuple[int, int], ...] = ()
    present: frozenset[tuple[int, int]] = frozenset()
    lasting: frozenset[tuple[int, int]] = frozenset()
    met: frozenset[tuple[int, int]] | None = None


class Program(NamedTuple):
    """
    A program.

    Attributes:
        facts: What it has learned from each server.

        left: The lines with the servers that it left less than a quarantine ago.

        begun: Whether it may write: it has been connected to a majority.
    """

    links: tuple[Link, ...]
    facts: tuple[Facts, ...]
    round: Round | None = None
    left: tuple[int, ...] = ()
    begun: bool = False


class Server(NamedTuple):
    """A server: its lives so far, whether it is quarantined, its lines in order, the holder."""

    life: int = 0
    quarantined: bool = False
    lines: tuple[int, ...] = ()
    holder: int = NOBODY


class Standing(NamedTuple):
    """
    What follows for a program from its links, its facts and the lives of the servers.

    Many states have the same, so it is computed once.

    Attributes:
        restriction: Which masters have no vote.

        own: How many votes its own masters give.

        barred: The links to masters that have no vote.

        connected: For each link the line with its server; none if servers of its name have none.

        others: The lines with its servers by the addresses of older sets.

        voting: Those lines in *connected* whose servers may vote and are not the only ones of
            their names, as bits.

        writes: All lines that it writes, as bits; of servers that it left it writes more.
    """

    restriction: Restriction
    own: int
    barred: frozenset[int]
    connected: tuple[int | None, ...]
    others: tuple[int, ...]
    voting: int
    writes: int


class State(NamedTuple):
    """All of it; *met* are servers and pairs of programs; cuts and restarts are still to come."""

    servers: tuple[Server, ...]
    programs: tuple[Program, ...]
    met: frozenset[tuple[int, int, int]]
    cuts: int
    restarts: int


Learn = Callable[[Known, Addresses, Sequence[Line], float], Known]
Restrict = Callable[[Sequence[Place], Known], Restriction]
Others = Callable[[Sequence[Place], Known], set[Place]]


def _restriction(ours: Sequence[Place], known: Known) -> Restriction:
    return membership.restriction(ours, known, until=ALWAYS)


@dataclass(frozen=True)
class SetRules:
    """
    The rules for sets of masters, and what `DeclaredSets` does by them.

    Attributes:
        learn: Returns what is known after a master has shown its lines.

        restrict: Returns which masters have no vote.

        others: Returns which servers a program writes under other addresses too.

        remembers_older: Whether an older set counts though its master does not show it any more.

        remembers_first: The same for the server that stood first at an address.

        waits: Whether a restricted program lets others write first on a quarantined master.

        tells: Whether a server's line is written once more when its connection has ended.

        again: Whether it is also written on masters that are reached only later.

        behind: Whether the line of a server that has moved is written only behind another.

        begins: Whether a program writes nothing before it has been connected to a majority.
    """

    learn: Learn = membership.learn
    restrict: Restrict = _restriction
    others: Others = membership.other_names
    remembers_older: bool = True
    remembers_first: bool = True
    waits: bool = True
    tells: bool = True
    again: bool = True
    behind: bool = True
    begins: bool = True


SHIPPED = SetRules()


@dataclass(frozen=True)
class Sets:
    """
    Programs with these sets of masters, a letter each, in the order in which they name them.

    Attributes:
        leads: The servers to which a name may lead, if it is not the one of that name.

        follows: Whether all names have lines with their servers.

        senior: The program that came first; the others came second on all masters. Without
            one, all start together.

        away: Programs and names: those are not connected at first.

        dead: The names that lead to no server, such as misspelt ones; of one program each.

        votes: Whether votes arrive or are lost one by one; else those of a grant come at once.

        told: Whether others know the servers of names that always lead to the same one.

        leases: Whether programs ask for the lock.

        checks: The properties that are checked.
    """

    sets: tuple[str, ...]
    rules: SetRules = SHIPPED
    leads: Mapping[str, str] = field(default_factory=dict)
    follows: bool = False
    senior: int = NOBODY
    away: tuple[tuple[int, str], ...] = ()
    dead: str = ""
    cuts: int = 0
    restarts: int = 0
    votes: bool = False
    told: bool = False
    leases: bool = True
    checks: str = "A"

    # What never changes

    def __post_init__(self) -> None:
        # These depend on small parts of a state, which are the same in many states.
        for name in (
            "_learned", "_restriction_by", "_other_lines_by", "_has_moved", "_line_of", "_stands",
            "_about", "_of_these_names", "_reads_and_writes", "_writes_and_reads",
            "_program_without",
        ):  # fmt: skip
            object.__setattr__(self, name, functools.cache(getattr(self, name)))

    def _leads(self, name: str) -> str:
        return self.leads.get(name, name)

    @functools.cached_property
    def _server_names(self) -> list[str]:
        """The servers that matter: all but those of names that a single program uses."""
        users: dict[str, set[int]] = {}
        moving = set[str]()
        for p, names in enumerate(self.sets):
            for name in names:
                for server in self._leads(name):
                    users.setdefault(server, set()).add(p)
                if self._leads(name) != name:
                    moving.update(self._leads(name))
        return sorted(s for s, those in users.items() if len(those) > 1 or s in moving)

    @functools.cached_property
    def _followed(self) -> frozenset[str]:
        """The names whose servers have lines: those that move, and other names of a server."""
        if self.follows:
            return frozenset("".join(self.sets))
        moving = {n for n in "".join(self.sets) if self._leads(n) != n}
        servers = {s for n in moving for s in self._leads(n)}
        return frozenset(n for n in "".join(self.sets) if servers & set(self._leads(n)))

    @functools.cached_property
    def _at(self) -> list[list[int]]:
        """For each program the positions of the masters that are modelled."""
        known = self._server_names
        return [
            [i for i, name in enumerate(names) if set(self._leads(name)) <= set(known)]
            for names in self.sets
        ]

    def _own(self, p: int) -> set[int]:
        """Return the positions of the masters that are not modelled, and always vote."""
        alive = {i for i, name in enumerate(self.sets[p]) if name not in self.dead}
        return alive.difference(self._at[p])

    @functools.cached_property
    def _called(self) -> list[list[str]]:
        """For each program the names of its links."""
        return [[self.sets[p][i] for i in at] for p, at in enumerate(self._at)]

    @functools.cached_property
    def _who(self) -> list[str]:
        return [f"{p} ({names})" for p, names in enumerate(self.sets)]

    @functools.cached_property
    def _names(self) -> list[Addresses]:
        return [tuple(sorted(names)) for names in self.sets]

    @functools.cached_property
    def _lines(self) -> list[tuple[Addresses, str]]:
        """All lines there may be; a state has their numbers."""
        lines: list[tuple[Addresses, str]] = [(names, "") for names in dict.fromkeys(self._names)]
        for name in sorted(self._followed):
            for server in self._leads(name):
                lives = self.restarts + 1 if server in self._server_names else 1
                lines += [((name,), f"{server}{life}") for life in range(lives)]
        return lines

    @functools.cached_property
    def _number(self) -> dict[tuple[Addresses, str], int]:
        return {line: number for number, line in enumerate(self._lines)}

    @functools.cached_property
    def _pairs(self) -> list[tuple[int, int]]:
        """All pairs of servers that may stand before each other at one address."""
        return [
            (n, m)
            for n, m in itertools.permutations(range(len(self._lines)), 2)
            if self._lines[n][0] == self._lines[m][0]
        ]

    @functools.cached_property
    def _pair_number(self) -> dict[tuple[int, int], int]:
        return {pair: number for number, pair in enumerate(self._pairs)}

    @functools.cached_property
    def _pairs_behind(self) -> list[int]:
        """For each line the pairs in which it is the earlier one."""
        return [
            _mask(k for k, (earlier, _) in enumerate(self._pairs) if earlier == n)
            for n in range(len(self._lines))
        ]

    def _place(self, n: int) -> Place:
        return Place(self._lines[n][0][0], self._lines[n][1])

    @functools.cached_property
    def _set_lines(self) -> list[int]:
        return [self._number[names, ""] for names in self._names]

    @functools.cached_property
    def _own_lines(self) -> list[list[int]]:
        """The lines with servers that only one program reaches."""
        return [
            [
                self._number[(name,), f"{name}0"]
                for i, name in enumerate(names)
                if self.follows and i not in self._at[p]
            ]
            for p, names in enumerate(self.sets)
        ]

    # The rules, on frozen states

    def _known(self, union: Facts) -> Known:
        lines = self._lines
        servers = {self._place(n): ALWAYS for n in _bits(union.servers)}
        if self.told:
            for n in _bits(union.older):
                for name in lines[n][0]:
                    if name not in self._followed:
                        servers[Place(name, f"{self._leads(name)}0")] = ALWAYS
        return Known(
            {lines[n][0]: ALWAYS for n in _bits(union.older)},
            first={self._place(n): ALWAYS for n in _bits(union.first)},
            before={
                (self._place(n), self._place(m)): ALWAYS
                for n, m in (self._pairs[k] for k in _bits(union.before))
            },
            servers=servers,
        )

    def _learned(
        self, p: int, before: tuple[Facts, ...], s: int, shown: tuple[int, ...]
    ) -> tuple[Facts, ...]:
        """Return the facts of a program after a server has shown its lines."""
        facts = list(before)
        if not self.rules.remembers_older:
            facts[s] = facts[s]._replace(older=0)
        if not self.rules.remembers_first:
            facts[s] = facts[s]._replace(first=0, before=0)
        lines = [Line(*self._lines[n], since, ALWAYS) for since, n in enumerate(shown)]
        known = self.rules.learn(self._known(_union(facts)), self._names[p], lines, 0.0)
        older = _mask(self._number[names, ""] for names in known.older)
        first = _mask(self._number[(place.address,), place.run_id] for place in known.first)
        servers = _mask(
            self._number[(place.address,), place.run_id]
            for place in known.servers
            if place.address in self._followed
        )
        before_now = _mask(
            self._pair_number[
                self._number[(one.address,), one.run_id], self._number[(two.address,), two.run_id]
            ]
            for one, two in known.before
        )
        # What this server has shown now, and of the rest what the rules still keep.
        leading: dict[Addresses, int] = {}
        for n in shown:
            if self._lines[n][1]:
                leading.setdefault(self._lines[n][0], n)
        pairs = _mask(
            self._pair_number[pair]
            for pair in itertools.combinations(shown, 2)
            if pair in self._pair_number
        )
        facts = [
            Facts(x.older & older, x.first & first, x.servers & servers, x.before & before_now)
            for x in facts
        ]
        facts[s] = Facts(
            facts[s].older | older & _mask(shown),
            facts[s].first | first & _mask(leading.values()),
            facts[s].servers | servers & _mask(shown),
            facts[s].before | before_now & pairs,
        )
        return tuple(facts)

    def _places(self, p: int, runs: tuple[str, ...]) -> list[Place]:
        at = dict(zip(self._at[p], runs, strict=True))
        return [
            Place(name, "" if name in self.dead else at.get(i, f"{self._leads(name)}0"))
            for i, name in enumerate(self.sets[p])
        ]

    def _restriction_by(
        self, p: int, facts: tuple[Facts, ...], runs: tuple[str, ...]
    ) -> Restriction:
        return self.rules.restrict(self._places(p, runs), self._known(_union(facts)))

    def _other_lines_by(
        self, p: int, facts: tuple[Facts, ...], runs: tuple[str, ...]
    ) -> tuple[int, ...]:
        others = self.rules.others(self._places(p, runs), self._known(_union(facts)))
        numbers = [self._number.get(((place.address,), place.run_id)) for place in others]
        return tuple(sorted([n for n in numbers if n is not None]))

    def _has_moved(self, facts: tuple[Facts, ...], n: int) -> bool:
        return membership.has_moved(self._place(n), self._known(_union(facts)))

    def _run_id(self, p: int, i: int, server: int, life: int) -> str:
        is_followed = self._called[p][i] in self._followed
        return f"{self._server_names[server]}{life if is_followed else 0}"

    def _line_of(self, p: int, i: int, server: int, life: int) -> int | None:
        """Return the line with the server of a link; none if servers of its name have none."""
        name = self._called[p][i]
        if name not in self._followed:
            return None
        return self._number[(name,), self._run_id(p, i, server, life)]

    def _stands(
        self, p: int, links: tuple[Link, ...], facts: tuple[Facts, ...], lives: tuple[int, ...]
    ) -> Standing:
        at = self._at[p]
        reached = [(i, x.server, lives[x.server]) if x.phase else None for i, x in enumerate(links)]
        runs = tuple([self._run_id(p, *x) if x else "" for x in reached])
        connected = [self._line_of(p, *x) if x else None for x in reached]
        others = self._other_lines_by(p, facts, runs)
        restriction = self._restriction_by(p, facts, runs)
        barred = {*restriction.moved, *restriction.strangers}
        own = self._own(p).difference(barred)
        voting = [
            n
            for i, n in enumerate(connected)
            if at[i] not in restriction.moved and len(self._leads(self._called[p][i])) > 1
        ]
        writes = (self._set_lines[p], *others, *self._own_lines[p], *connected)
        return Standing(
            restriction,
            own=0 if restriction.refused_by is not None else len(own),
            barred=frozenset(i for i, number in enumerate(at) if number in barred),
            connected=tuple(connected),
            others=others,
            voting=_mask(n for n in voting if n is not None),
            writes=_mask(n for n in writes if n is not None),
        )

    @functools.cached_property
    def _first_lives(self) -> tuple[int, ...]:
        return (0,) * len(self._server_names)

    def _standing(self, state: State, p: int) -> Standing:
        program = state.programs[p]
        return self._stands(p, program.links, program.facts, self._lives(state))

    def _lives(self, state: State) -> tuple[int, ...]:
        return tuple([x.life for x in state.servers]) if self.restarts else self._first_lives

    def restriction(self, state: State, p: int) -> Restriction:
        """Return which masters have no vote for a program."""
        return self._standing(state, p).restriction

    def _votes(self, state: State, p: int, given: Sequence[int]) -> int:
        """Return how many votes count: those of links in *given*, and of its own masters."""
        standing = self._standing(state, p)
        if standing.restriction.refused_by is not None:
            return 0
        return standing.own + sum([i not in standing.barred for i in given])

    def may_vote(self, state: State, p: int) -> list[int]:
        """Return the links of a program to masters that may vote, whoever has the lock."""
        return [
            i
            for i, link in enumerate(state.programs[p].links)
            if link.phase == DECLARED and not state.servers[link.server].quarantined
        ]

    def may_win(self, state: State, p: int) -> bool:
        """Return whether a program gets a grant if the lock is free."""
        needed = majority(len(self.sets[p]))
        return self._votes(state, p, self.may_vote(state, p)) >= needed

    # Steps

    def first(self) -> State:
        """Return the state before the first step."""
        names = self._server_names
        programs = [
            Program((Link(),) * len(self._at[p]), (Facts(),) * len(names))
            for p in range(len(self.sets))
        ]
        state = State((Server(),) * len(names), tuple(programs), frozenset(), self.cuts,
                      self.restarts)  # fmt: skip
        if self.senior != NOBODY:
            for p in sorted(range(len(self.sets)), key=lambda p: p != self.senior):
                state = self._joined(state, p)
            for _ in range(2):
                for p in range(len(self.sets)):
                    for i, link in enumerate(state.programs[p].links):
                        if link.phase == DECLARED:
                            state = self._renewed(state, p, i)
        return state

    def _joined(self, state: State, p: int) -> State:
        """Return the state after a program has begun while nobody else did anything."""
        for i, at in enumerate(self._at[p]):
            if (p, self.sets[p][at]) not in self.away:
                # The senior has the first server of a name, the others have the last.
                connected = [after for _, after in self._connect(state, p, i)]
                state = connected[0 if p == self.senior else -1]
        for i in range(len(self._at[p])):
            if state.programs[p].links[i].phase == READING:
                _, state = self._write_after_read(state, p, i, "looks at")
            if state.programs[p].links[i].phase == ASKED:
                _, state = self._on_reply(state, p, i)
        return state

    def steps(self, state: State) -> Iterator[Step[State]]:
        """Return all that can happen next."""
        for label, after in self._events(state):
            if after != state:
                yield label, after, self.broken(after)

    def _events(self, state: State) -> Iterator[tuple[str, State]]:
        for p in range(len(self.sets)):
            for i, link in enumerate(state.programs[p].links):
                if link.phase == AWAY:
                    yield from self._connect(state, p, i)
                    continue
                if link.phase == READING:
                    yield self._write_after_read(state, p, i, "looks at")
                elif link.phase == ASKED:
                    yield self._on_reply(state, p, i)
                else:
                    yield f"{self._link_name(p, i)} writes again", self._renewed(state, p, i)
                if state.cuts:
                    yield (
                        f"{self._link_name(p, i)} is cut off",
                        self._cut(state._replace(cuts=state.cuts - 1), p, i),
                    )
            yield from self._forgetting(state, p)
            if self.leases:
                yield from self._locking(state, p)
        kept = self._kept(state)
        for s in range(len(state.servers)):
            yield from self._run_outs(state, s, kept[s])
            yield from self._changes_of_server(state, s)

    def _link_name(self, p: int, i: int) -> str:
        return f"{self._who[p]}: {self._called[p][i]}"

    def _connect(self, state: State, p: int, i: int) -> Iterator[tuple[str, State]]:
        servers = self._leads(self._called[p][i])
        for name in servers:
            s = self._server_names.index(name)
            after = _with_link(state, p, i, Link(s, READING))
            number = self._line_of(p, i, s, state.servers[s].life)
            if number is not None and len(servers) > 1:
                # Others have met this program again when they have read its new server.
                after = after._replace(
                    met=frozenset(
                        (x, a, b)
                        for x, a, b in after.met
                        if p not in (a, b)
                        or after.programs[a if b == p else b].facts[x].servers >> number & 1
                    )
                )
            yield self._write_after_read(after, p, i, f"connects to {name} by")

    def _write_after_read(self, state: State, p: int, i: int, verb: str) -> tuple[str, State]:
        """
        Read the lines, and write if that is allowed.

        Both are one step. What others write between them is in the reply to the write.
        """
        s = state.programs[p].links[i].server
        does, program, server = self._reads_and_writes(
            p, i, state.programs[p], state.servers[s], self._lives(state)
        )
        after = _with_both(state, p, program, s, server)
        return f"{self._who[p]} {verb} {self._called[p][i]}, {does}", after

    def _reads_and_writes(
        self, p: int, i: int, program: Program, server: Server, lives: tuple[int, ...]
    ) -> tuple[str, Program, Server]:
        s = program.links[i].server
        begins = self._begins(program, p)
        if begins and not program.begun:
            program = program._replace(begun=True)
        read = self._learning(_alone(p, s, program, server, lives), p, s, server.lines)
        refused = self.restriction(read, p).refused_by is not None
        if refused or not begins or self._waits(read, p, i):
            return "reads", read.programs[p], server
        written = self._written(read, p, s)
        link = Link(s, ASKED, written.servers[s].lines)
        return "writes", _with_link(written, p, i, link).programs[p], written.servers[s]

    def _on_reply(self, state: State, p: int, i: int) -> tuple[str, State]:
        link = state.programs[p].links[i]
        after = _with_link(state, p, i, Link(link.server, DECLARED))
        after = self._learning(after, p, link.server, link.reply)
        return f"{self._link_name(p, i)} gets the reply", self._meeting(after, p, link.server)

    def _renewed(self, state: State, p: int, i: int) -> State:
        """Return the state after a program has written its lines again, and got the reply."""
        s = state.programs[p].links[i].server
        changed = self._writes_and_reads(
            p, i, state.programs[p], state.servers[s], self._lives(state)
        )
        after = _with_both(state, p, changed[0], s, changed[1]) if changed else state
        return self._meeting(after, p, s)

    def _writes_and_reads(
        self, p: int, i: int, program: Program, server: Server, lives: tuple[int, ...]
    ) -> tuple[Program, Server] | None:
        """Return a program and a server after a write and its reply; none if both are as before."""
        s = program.links[i].server
        after = self._written(_alone(p, s, program, server, lives), p, s)
        after = self._learning(after, p, s, after.servers[s].lines)
        changed = after.programs[p], after.servers[s]
        return None if changed == (program, server) else changed

    def _learning(self, state: State, p: int, s: int, shown: tuple[int, ...]) -> State:
        """Return the state after a program has read what a master shows."""
        program = state.programs[p]
        facts = self._learned(p, program.facts, s, shown)
        if facts != program.facts:
            program = Program(program.links, facts, program.round, program.left, program.begun)
            state = _with_program(state, p, program)
        if self.restriction(state, p).refused_by is not None:
            links = [Link(x.server, READING) if x.phase else x for x in program.links]
            state = _with_program(state, p, program._replace(links=tuple(links)))
        return state

    def _begins(self, program: Program, p: int) -> bool:
        """Return whether a program may write: it is, or has been, connected to a majority."""
        if program.begun or not self.rules.begins:
            return True
        reached = len(self._own(p)) + sum(x.phase != AWAY for x in program.links)
        return reached >= majority(len(self.sets[p]))

    def _waits(self, state: State, p: int, i: int) -> bool:
        """Return whether a program lets those with an older set write first, as the shipped one."""
        s = state.programs[p].links[i].server
        server = state.servers[s]
        if not self.rules.waits or not server.quarantined:
            return False
        older = set(self.restriction(state, p).strangers.values())
        if not older:
            return False
        there = {self._lines[n][0] for n in server.lines if not self._lines[n][1]}
        place = Place(self._called[p][i], self._run_id(p, i, s, server.life))
        known = self._known(_union(state.programs[p].facts))
        return self._names[p] not in there and any(
            theirs not in there and membership.is_surely_in(place, theirs, known, until=ALWAYS)
            for theirs in older
        )

    def _written(self, state: State, p: int, s: int) -> State:
        """
        Return the state after a program has written its lines on a master.

        Those of servers that it left come first, as in the shipped one.
        """
        server, program, standing = state.servers[s], state.programs[p], self._standing(state, p)
        lines = server.lines
        if (standing.writes | _bits_of(program.left)) & ~_bits_of(lines):
            if self._set_lines[p] not in lines:
                lines = (*lines, self._set_lines[p])
            for n in (*program.left, *standing.others, *standing.connected):
                if n is None or n in lines:
                    continue
                is_behind = any(self._lines[x][0] == self._lines[n][0] for x in server.lines)
                if self.rules.behind and not is_behind and self._has_moved(program.facts, n):
                    continue
                lines = (*lines, n)
            lines += tuple([n for n in self._own_lines[p] if n not in lines])
            if lines != server.lines:
                state = _with_server(state, s, server._replace(lines=lines))
        if not program.left or program.round is None:
            return state
        # The line of a server that was left ends after the leases that it has granted.
        granted = {(s, n) for n in program.left if n in lines and self._is_voter(program, n)}
        return _outliving(state, p, granted)

    def _is_voter(self, program: Program, n: int) -> bool:
        """Return whether the server of a line has voted in the round of a program."""
        server = self._lines[n][1][:-1]
        return program.round is not None and any(
            self._server_names[s] == server for _, s in program.round.votes
        )

    def _meeting(self, state: State, p: int, s: int) -> State:
        """Return the state with the programs that have met: both have read of the other on *s*."""
        left = [(r, pair) for r, pair in self._pairs_with[p][s] if pair not in state.met]
        if not left:
            return state
        here, declared, met = state.servers[s].lines, self._declared(state, s), []
        for r, pair in left:
            if p not in declared or r not in declared:
                continue
            if self._set_lines[p] not in here or self._set_lines[r] not in here:
                continue
            a, b = state.programs[p].facts[s].servers, state.programs[r].facts[s].servers
            ours, theirs = self._standing(state, p).voting, self._standing(state, r).voting
            if theirs & ~a == 0 and ours & ~b == 0:
                met.append(pair)
        return state._replace(met=state.met.union(met)) if met else state

    @functools.cached_property
    def _pairs_with(self) -> list[list[list[tuple[int, tuple[int, int, int]]]]]:
        """For each program and server the others, and how *met* names them together."""
        return [
            [
                [(r, (s, min(p, r), max(p, r))) for r in range(len(self.sets)) if r != p]
                for s in range(len(self._server_names))
            ]
            for p in range(len(self.sets))
        ]

    def _declared(self, state: State, s: int) -> set[int]:
        """Return the programs that have written their lines on a server."""
        return {
            p
            for p, program in enumerate(state.programs)
            for x in program.links
            if x.server == s and x.phase == DECLARED
        }

    def _cut(self, state: State, p: int, i: int) -> State:
        """Return the state after a connection has ended."""
        link, line = state.programs[p].links[i], self._standing(state, p).connected[i]
        if self.rules.tells and line is not None:
            others = {
                x.server
                for j, x in enumerate(state.programs[p].links)
                if j != i and x.phase in (ASKED, DECLARED)
            }
            for s in others:
                state = self._written(state, p, s)
            now = state.programs[p]
            if now.round is not None and (i, link.server) in now.round.votes:
                run = self._lines[line][1]
                others_of = self._standing(state, p).others
                names = [n for n in others_of if self._lines[n][1] == run]
                state = _outliving(state, p, set(itertools.product(others, (line, *names))))
        if self.rules.again and line is not None:
            now = state.programs[p]
            state = _with_program(state, p, now._replace(left=tuple(sorted({*now.left, line}))))
        return _with_link(state, p, i, Link())

    # What runs out

    def _forgetting(self, state: State, p: int) -> Iterator[tuple[str, State]]:
        """
        Let a program forget what it has read on a server that it does not reach.

        And which server it has left, when the leases are over that this one has granted.
        """
        program = state.programs[p]
        for n in program.left:
            if not self._is_voter(program, n):
                left = tuple([x for x in program.left if x != n])
                after = Program(program.links, program.facts, program.round, left, program.begun)
                label = f"{self._who[p]} left {self._lines[n][1]} long ago"
                yield label, _with_program(state, p, after)
        for s, facts in enumerate(program.facts):
            if facts == NOTHING or any(x.server == s and x.phase for x in program.links):
                continue
            if any(x.round is not None and (s, p) in x.round.present for x in state.programs):
                continue
            kept = replaced(program.facts, s, NOTHING)
            after = Program(program.links, kept, program.round, program.left, program.begun)
            label = f"{self._who[p]} forgets what it read on {self._server_names[s]}"
            yield label, self._parted(_with_program(state, p, after), s, {p})

    def _kept(self, state: State) -> list[int]:
        """Return for each server the lines with servers that programs keep there, as bits."""
        if self._followed and self._is_told_late(state):
            return [-1] * len(state.servers)
        kept = [0] * len(state.servers)
        if not self._followed:
            return kept
        for p, program in enumerate(state.programs):
            writes = self._standing(state, p).writes
            for link in program.links:
                if link.phase in (ASKED, DECLARED):
                    kept[link.server] |= writes
        return kept

    def _run_outs(self, state: State, s: int, kept: int) -> Iterator[tuple[str, State]]:
        """Let a line on a server run out, there and for all who have read it there."""
        shown = _bits_of(state.servers[s].lines)
        for program in state.programs:
            shown |= self._about(program.facts[s])
        linked = self._linked(state, s)
        rounds = [x.round for x in state.programs if x.round is not None]
        for n in _bits(shown):
            names, run = self._lines[n]
            if run:
                if kept >> n & 1 or any((s, n) in x.lasting for x in rounds):
                    continue
                parted = self._everyone - linked
            else:
                parted = self._of_set[n]
                if "B" in self.checks and self.senior in parted:
                    continue  # it reconnects before
                if parted & linked or any((s, p) in x.present for x in rounds for p in parted):
                    continue
            label = f"the line {''.join(names)} {run} runs out on {self._server_names[s]}"
            yield label, self._parted(self._without(state, s, n), s, parted)

    @functools.cached_property
    def _everyone(self) -> frozenset[int]:
        return frozenset(range(len(self.sets)))

    @functools.cached_property
    def _of_set(self) -> list[frozenset[int]]:
        """For each line the programs whose set it is."""
        return [
            frozenset(p for p in self._everyone if self._set_lines[p] == n)
            for n in range(len(self._lines))
        ]

    def _about(self, facts: Facts) -> int:
        """Return the lines that are in facts, as bits."""
        earlier = _mask(self._pairs[k][0] for k in _bits(facts.before))
        return facts.older | facts.first | facts.servers | earlier

    def _linked(self, state: State, s: int) -> set[int]:
        """Return the programs that write their lines on a server again and again."""
        return {
            p
            for p, program in enumerate(state.programs)
            for x in program.links
            if x.server == s and x.phase in (ASKED, DECLARED)
        }

    def _is_told_late(self, state: State) -> bool:
        """
        Return whether a program has not written behind another server that it is connected.

        It sends that to its other masters at once, so lines run out before or afterwards. A
        master that hangs meanwhile, until its connection ends, is not modelled.
        """
        for p, program in enumerate(state.programs):
            connected = self._standing(state, p).connected
            for i, link in enumerate(program.links):
                if link.phase != DECLARED:
                    continue
                lines = state.servers[link.server].lines
                missing = self._of_these_names(lines) & ~_bits_of(lines)
                for j, n in enumerate(connected):
                    if j != i and n is not None and missing >> n & 1:
                        return True
        return False

    def _of_these_names(self, lines: tuple[int, ...]) -> int:
        """Return all lines of the names that *lines* have, as bits."""
        names = {self._lines[n][0] for n in lines}
        return _mask(n for n, (these, _) in enumerate(self._lines) if these in names)

    def _without(self, state: State, s: int, n: int) -> State:
        servers, programs, met, cuts, restarts = state
        if n in servers[s].lines:
            lines = tuple([x for x in servers[s].lines if x != n])
            servers = replaced(servers, s, servers[s]._replace(lines=lines))
        programs = tuple([self._program_without(x, s, n) for x in programs])
        return State(servers, programs, met, cuts, restarts)

    def _program_without(self, program: Program, s: int, n: int) -> Program:
        links, facts, round, left, begun = program
        older, first, servers, before = facts[s]
        gone = ~(1 << n)
        here = Facts(older & gone, first & gone, servers & gone, before & ~self._pairs_behind[n])
        kept = [
            x._replace(reply=tuple([y for y in x.reply if y != n])) if x.server == s else x
            for x in links
        ]
        return Program(tuple(kept), replaced(facts, s, here), round, left, begun)

    def _parted(self, state: State, s: int, parted: AbstractSet[int]) -> State:
        """Return the state after programs have been away from a server for the life of a line."""
        met = state.met
        if met:
            met = frozenset([x for x in met if x[0] != s or not parted & {x[1], x[2]}])
        programs = list(state.programs)
        for p, program in enumerate(programs):
            round = program.round
            if round is not None and round.met:
                kept = frozenset([(x, r) for x, r in round.met if x != s or not parted & {p, r}])
                programs[p] = program._replace(round=round._replace(met=kept))
        return State(state.servers, tuple(programs), met, state.cuts, state.restarts)

    # The lock

    def _locking(self, state: State, p: int) -> Iterator[tuple[str, State]]:
        program = state.programs[p]
        who = self._who[p]
        if program.round is not None:
            word = "gives up" if program.round.met is None else "releases"
            servers = tuple(
                [x._replace(holder=NOBODY) if x.holder == p else x for x in state.servers]
            )
            links, facts, _, left, begun = program
            after = _with_program(state, p, Program(links, facts, None, left, begun))
            yield f"{who} {word}", after._replace(servers=servers)
            if program.round.met is not None:
                return
        standing = self._standing(state, p)
        if standing.restriction.refused_by is not None:
            return
        able = [
            i for i in self.may_vote(state, p)
            if i not in standing.barred and state.servers[program.links[i].server].holder == NOBODY
        ]  # fmt: skip
        needed = majority(len(self.sets[p]))
        round = program.round or Round(present=_present(tuple([x.links for x in state.programs])))
        if self.votes:
            for i in able:
                s = program.links[i].server
                taken = _with_server(state, s, state.servers[s]._replace(holder=p))
                name = self._server_names[s]
                yield (
                    f"{who} sets the key on {name}, the reply is lost",
                    self._in_round(taken, p, round),
                )
                more = round._replace(votes=(*round.votes, (i, s)))
                if self._votes(state, p, [i for i, _ in more.votes]) >= needed:
                    yield (
                        f"{who} gets the vote of {name} and a GRANT",
                        self._granted(taken, p, more),
                    )
                else:
                    yield f"{who} gets the vote of {name}", self._in_round(taken, p, more)
            if program.round is None and self._votes(state, p, ()) >= needed:
                yield f"{who} gets a GRANT of its own masters", self._granted(state, p, round)
            return
        enough = max(needed - self._votes(state, p, ()), 0)
        for given in _choices(able, enough):
            taken = state
            for i in given:
                s = program.links[i].server
                taken = _with_server(taken, s, taken.servers[s]._replace(holder=p))
            votes = tuple([(i, program.links[i].server) for i in given])
            names = "".join(self._server_names[s] for _, s in votes)
            yield (
                f"{who} gets a GRANT by {names or 'its own masters'}",
                self._granted(taken, p, round._replace(votes=votes)),
            )

    def _in_round(self, state: State, p: int, round: Round) -> State:
        program = state.programs[p]._replace(round=round._replace(votes=tuple(sorted(round.votes))))
        return _with_program(state, p, program)

    def _granted(self, state: State, p: int, round: Round) -> State:
        met = frozenset((s, a if b == p else b) for s, a, b in state.met if p in (a, b))
        return self._in_round(state, p, round._replace(met=met))

    # Servers

    def _changes_of_server(self, state: State, s: int) -> Iterator[tuple[str, State]]:
        server, name = state.servers[s], self._server_names[s]
        if state.restarts:
            after = state._replace(restarts=state.restarts - 1)
            for p, program in enumerate(state.programs):
                for i, link in enumerate(program.links):
                    if link.server == s:
                        after = self._cut(after, p, i)
            follows = any(name in self._leads(n) for n in self._followed)
            new = Server(server.life + follows, quarantined=True)
            yield f"{name} restarts empty", _with_server(after, s, new)
        if "B" in self.checks and self.senior not in self._linked(state, s):
            return  # it reconnects within the quarantine
        if server.quarantined and not any(
            x.round is not None and server.holder != p and any(s == v for _, v in x.round.votes)
            for p, x in enumerate(state.programs)
        ):
            label = f"the quarantine of {name} is over"
            yield label, _with_server(state, s, server._replace(quarantined=False))

    # Properties

    def broken(self, state: State) -> str:
        """Return the property that is broken; empty if none is."""
        for check in self._checked:
            if why := check(state):
                return why
        return ""

    @functools.cached_property
    def _checked(self) -> list[Callable[[State], str]]:
        checks = {"A": self._overlap, "B": self._hurt, "C": self._limited, "D": self._refused,
                  "E": self._hindered}  # fmt: skip
        return [checks[x] for x in self.checks]

    def _overlap(self, state: State) -> str:
        if len([x for x in state.programs if x.round is not None]) < 2:
            return ""
        leases = [
            (p, x.round.met)
            for p, x in enumerate(state.programs)
            if x.round is not None and x.round.met is not None
        ]
        for (p, met), (r, other) in itertools.combinations(leases, 2):
            if {s for s, x in met if x == r} & {s for s, x in other if x == p}:
                return f"A: {p} and {r} hold the lock, and had met"
        return ""

    def _hurt(self, state: State) -> str:
        p = self.senior
        reached = len(self._own(p)) + len(self.may_vote(state, p))
        if reached < majority(len(self.sets[p])) or self.may_win(state, p):
            return ""
        return f"B: {p} came first, reaches a majority, and gets no grant"

    def _limited(self, state: State) -> str:
        for p in range(len(self.sets)):
            if (restriction := self.restriction(state, p)) != Restriction():
                return f"C: {p} has a neighbour and is restricted: {restriction}"
        return ""

    def _refused(self, state: State) -> str:
        for p in range(len(self.sets)):
            if self.restriction(state, p).refused_by is not None:
                return f"D: {p} is refused though both sets are the same servers"
        return ""

    def _hindered(self, state: State) -> str:
        hopeless = {
            self._names[p]
            for p, names in enumerate(self.sets)
            if len(set(names).difference(self.dead)) < majority(len(names))
        }
        for p in range(len(self.sets)):
            restriction = self.restriction(state, p)
            if hopeless & {restriction.refused_by, *restriction.strangers.values()}:
                return f"E: {p} is restricted by a program that can get no lock"
        return ""


def _mask(numbers: Iterable[int]) -> int:
    return functools.reduce(int.__or__, [1 << n for n in numbers], 0)


@functools.cache
def _bits_of(lines: tuple[int, ...]) -> int:
    return _mask(lines)


def _bits(mask: int) -> list[int]:
    return [n for n in range(mask.bit_length()) if mask >> n & 1]


def _union(facts: Sequence[Facts]) -> Facts:
    older = first = servers = before = 0
    for one in facts:
        older, first, servers = older | one.older, first | one.first, servers | one.servers
        before |= one.before
    return Facts(older, first, servers, before)


def _choices(those: list[int], number: int) -> Iterator[tuple[int, ...]]:
    return itertools.combinations(those, number)


def _outliving(state: State, p: int, lines: set[tuple[int, int]]) -> State:
    """Return the state in which lines on servers outlive the round of a program."""
    program = state.programs[p]
    if program.round is None or not lines:
        return state
    round = program.round._replace(lasting=program.round.lasting | lines)
    return _with_program(state, p, program._replace(round=round))


@functools.cache
def _present(links: tuple[tuple[Link, ...], ...]) -> frozenset[tuple[int, int]]:
    """Return which programs are connected to which servers, from the links of all programs."""
    return frozenset((x.server, p) for p, those in enumerate(links) for x in those if x.phase)


def _alone(p: int, s: int, program: Program, server: Server, lives: tuple[int, ...]) -> State:
    """Return a state that has only this program and server, and the lives of the others."""
    servers = [server if i == s else Server(life) for i, life in enumerate(lives)]
    return State(tuple(servers), (program,) * (p + 1), frozenset(), 0, 0)


# Without `_replace`, which takes three times as long.


def _with_link(state: State, p: int, i: int, link: Link) -> State:
    links, facts, round, left, begun = state.programs[p]
    return _with_program(state, p, Program(replaced(links, i, link), facts, round, left, begun))


def _with_program(state: State, p: int, program: Program) -> State:
    servers, programs, met, cuts, restarts = state
    return State(servers, replaced(programs, p, program), met, cuts, restarts)


def _with_both(state: State, p: int, program: Program, s: int, server: Server) -> State:
    servers, programs, met, cuts, restarts = state
    servers, programs = replaced(servers, s, server), replaced(programs, p, program)
    return State(servers, programs, met, cuts, restarts)


def _with_server(state: State, s: int, server: Server) -> State:
    servers, programs, met, cuts, restarts = state
    return State(replaced(servers, s, server), programs, met, cuts, restarts)


End = tuple[tuple[int, ...], tuple[int, ...]]
"""The programs that get a grant, and those that are refused."""


def settle(model: Sets) -> set[End]:
    """Return how programs that start together come to rest, while nothing runs out."""
    ends = set()
    for state, following in _graph(model, run_outs=False).items():
        if not following:
            programs = range(len(model.sets))
            refused = [p for p in programs if model.restriction(state, p).refused_by is not None]
            winners = [p for p in programs if model.may_win(state, p)]
            ends.add((tuple(winners), tuple(refused)))
    return ends


def hopeless(model: Sets) -> int:
    """Return the number of states from which no state with a grant can be reached."""
    graph = _graph(model, run_outs=True)
    before: dict[State, list[State]] = {}
    for state, following in graph.items():
        for after in following:
            before.setdefault(after, []).append(state)
    todo = [s for s in graph if any(model.may_win(s, p) for p in range(len(model.sets)))]
    hopeful = set(todo)
    while todo:
        for state in before.get(todo.pop(), ()):
            if state not in hopeful:
                hopeful.add(state)
                todo.append(state)
    return len(graph) - len(hopeful)


def _graph(model: Sets, *, run_outs: bool) -> dict[State, list[State]]:
    graph: dict[State, list[State]] = {}
    todo = [model.first()]
    while todo:
        state = todo.pop()
        if state in graph:
            continue
        graph[state] = [
            after
            for label, after, _ in model.steps(state)
            if run_outs or ("runs out" not in label and "forgets" not in label)
        ]
        todo += graph[state]
    return graph
