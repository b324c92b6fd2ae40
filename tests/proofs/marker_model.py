"""
All interleavings of programs that mark masters whose markers are missing.

Runs the model's own copy of the rules, in `MarkerRules`: those of `Guard.found` and
`Sentry._judge` are spread over the awaits of two classes.

Models itself: the marker of each master; writes that take effect only over the value that was
read, and reads behind them, each executed at any moment; programs that know a master from before
its restart, or do not; connections that are cut, masters that restart or refuse writes, and
programs that die, with their writes underway.

Time does not run: no quarantine ends, and a master that has forgotten locks had better not vote.
Only a program that waits for others to finish marking waits until they have, and a master restarts
only when each program knows the markers of those that it is connected to: a start takes longer.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from redlock_aio._rules.quorum import majority

from .search import Step, replaced

NONE, FOUNDING, IN, REJOINING = "none", "founding", "member", "rejoining"
"""What the marker says."""

AWAY, UNDECIDED, MARKED, MEMBER, OUT = "away", "undecided", "marked", "votes", "quarantined"
"""What a program holds of a master; `MARKED` is undecided, with a founding marker."""

NOBODY, NEWCOMER, WITNESS = "", "a program that knows nothing", "a program that knows"
"""Who tried first to mark a life of a master."""

UNSEEN, BEFORE = -1, -2
"""No life of a master was seen; one was seen that is over."""


class Ask(NamedTuple):
    """A write over what was read, and a read behind it; *done* of both are executed."""

    over: str
    write: str
    done: int = 0
    took: bool = False
    refused: bool = False
    found: str = NONE


class Link(NamedTuple):
    """
    What a program has of a master.

    Attributes:
        life: Which life of it was seen last.

        unmarked: Whether it gave no proof that the set is in use when it was examined.

        asked: Whether the marking that is underway has begun with it.
    """

    state: str = AWAY
    life: int = UNSEEN
    unmarked: bool = False
    asked: bool = False
    ask: Ask | None = None


class Program(NamedTuple):
    """A program; *stage* is the round trip of its marking, 0 if there is none."""

    links: tuple[Link, ...]
    stage: int = 0
    alive: bool = True


class Server(NamedTuple):
    """
    A master.

    Attributes:
        first: Who tried first to mark this life of it.

        voted: Whether it may have granted a lock.

        lost: Whether it may have forgotten one.
    """

    marker: str = NONE
    life: int = 0
    first: str = NOBODY
    voted: bool = False
    lost: bool = False
    refuses: bool = False


class State(NamedTuple):
    """All of it, and the faults that are still to come."""

    servers: tuple[Server, ...]
    programs: tuple[Program, ...]
    deaths: int
    cuts: int
    restarts: int
    orphans: tuple[tuple[int, Ask], ...] = ()
    """Writes whose connection or program has ended, and the masters that may execute them."""


@dataclass(frozen=True)
class MarkerRules:
    """
    The rules by which the masters of a new set are marked.

    Attributes:
        founds: Whether a marker that gives no vote is written first, on all masters.

        trusts: Whether a newcomer takes such a marker for that of a member.

        shares: Whether such a marker counts, whoever has written it.

        completes: Whether a program goes on beside a member, where another one has ended.

        waits: Whether nothing follows from the first round trip before all have answered, or
            their connections have ended.

        heeds: Whether a rejoining master shows that the set is not new.

        compares: Whether the second round trip writes only over what was read.

        needs: How many masters must have answered; 0 stands for a majority.

        forgives: Whether a member that had no marker when it was examined is no sign that the
            set is in use, however often it was looked at since.
    """

    founds: bool = True
    trusts: bool = False
    shares: bool = True
    completes: bool = True
    waits: bool = True
    heeds: bool = True
    compares: bool = True
    needs: int = 0
    forgives: bool = False


RULES = MarkerRules()

ONE_ROUND = MarkerRules(founds=False, completes=False, needs=1)
"""The rules of the package."""


@dataclass(frozen=True)
class Markers:
    """
    Masters without markers, and programs that begin.

    Attributes:
        newcomers: How many programs have never seen the masters.

        witnesses: How many have seen them before they restarted, all of them; if there are none,
            the set is new.

        reached: How many masters the witnesses reach, the last ones.

        refusing: How many masters refuse writes.

        apart: Whether commands of others come between a write and the read behind it.

        checks: The properties that are checked, by their letters:
            A  no majority votes for a newcomer if a witness was the first on a master
            B  no master that has restarted votes
    """

    masters: int = 3
    newcomers: int = 2
    witnesses: int = 0
    reached: int = 1
    refusing: int = 0
    apart: bool = False
    deaths: int = 0
    cuts: int = 0
    restarts: int = 0
    rules: MarkerRules = RULES
    checks: str = "A"

    def first(self) -> State:
        lost = self.witnesses > 0
        servers = tuple(Server(lost=lost, refuses=at < self.refusing) for at in range(self.masters))
        new, old = (Program((Link(life=life),) * self.masters) for life in (UNSEEN, BEFORE))
        programs = (new,) * self.newcomers + (old,) * self.witnesses
        return State(servers, programs, self.deaths, self.cuts, self.restarts)

    def steps(self, state: State) -> Iterator[Step[State]]:
        yield from ((label, after, self._broken(after)) for label, after in self.moves(state))
        yield from ((label, after, "") for label, after in self._faults(state))

    def moves(self, state: State) -> Iterator[tuple[str, State]]:
        """List the steps that are no faults."""
        for label, after in self._moves(state):
            servers = after.servers
            for program in after.programs:
                if self._votes(program) >= majority(self.masters):
                    servers = tuple(
                        server._replace(voted=True) if link.state == MEMBER else server
                        for server, link in zip(servers, program.links, strict=True)
                    )
            yield label, after._replace(servers=servers)

    def all_get_votes(self, state: State) -> bool:
        """Return whether a majority votes for each newcomer that lives."""
        return all(
            self._votes(program) >= majority(self.masters)
            for program in state.programs[: self.newcomers]
            if program.alive
        )

    @staticmethod
    def _votes(program: Program) -> int:
        return sum(link.state == MEMBER for link in program.links) if program.alive else 0

    def _broken(self, state: State) -> str:
        for number, program in enumerate(state.programs):
            if not program.alive:
                continue
            voting = [
                server
                for server, link in zip(state.servers, program.links, strict=True)
                if link.state == MEMBER and link.life == server.life and server.lost
            ]
            witnessed = any(server.first == WITNESS for server in state.servers)
            if "A" in self.checks and witnessed and len(voting) >= majority(self.masters):
                return f"A: a majority votes for {number}, and has forgotten locks"
            if "B" in self.checks and voting:
                return f"B: a master that has forgotten locks votes for {number}"
        return ""

    # What programs do

    def _moves(self, state: State) -> Iterator[tuple[str, State]]:
        for number, program in enumerate(state.programs):
            if not program.alive:
                continue
            witness = number >= self.newcomers
            for at in range(self.masters - self.reached if witness else 0, self.masters):
                yield from self._moves_at(state, number, at)
            if self._may_begin(program):
                yield f"{number} begins to mark", self._begun(state, number)
            done = [link.ask is None or link.ask.done == 2 for link in program.links]
            first = program.stage == 1 and not self.rules.waits
            if program.stage and (all(done) or (first and any(done))):
                yield f"{number} has all replies", self._concluded(state, number)
        for each, (at, ask) in enumerate(state.orphans):
            rest = state._replace(orphans=state.orphans[:each] + state.orphans[each + 1 :])
            server, _ = self._written(state.servers[at], ask)
            after = rest._replace(servers=replaced(state.servers, at, server))
            yield f"{'abcde'[at]} executes a write that nobody waits for", after
            yield "a write that nobody waits for is lost", rest

    def _moves_at(self, state: State, number: int, at: int) -> Iterator[tuple[str, State]]:
        link, x = state.programs[number].links[at], "abcde"[at]
        if link.state == AWAY:
            yield f"{number} examines {x}", self._examined(state, number, at)
        elif (looked := self._looked(state, number, at)) is not None:
            yield f"{number} looks at {x}", looked
        if link.ask is not None and link.ask.done < 2:
            step = "reads" if link.ask.done else "executes the write of"
            yield f"{x} {step} {number}", self._executed(state, number, at)
        if self._gives_up(state, number, at):
            after = self._marked(state, at, NEWCOMER)
            yield f"{number} gives {x} up", _linked(after, number, at, link._replace(state=OUT))

    def _examined(self, state: State, number: int, at: int) -> State:
        link, server = state.programs[number].links[at], state.servers[at]
        if link.life not in (UNSEEN, server.life):
            out = link._replace(state=OUT)
            if server.refuses:
                return _linked(state, number, at, out)
            return _linked(self._marked(state, at, WITNESS), number, at, out)
        seen = link._replace(
            state=self._standing(state.programs[number], server),
            life=server.life,
            unmarked=self.rules.forgives and server.marker == NONE,
        )
        return _linked(state, number, at, seen)

    def _standing(self, program: Program, server: Server) -> str:
        if server.marker == REJOINING:
            return OUT
        if server.marker == IN:
            # Without `founds` it may be the program's own, which proves nothing yet.
            return UNDECIDED if program.stage == 1 and not self.rules.founds else MEMBER
        if server.marker == FOUNDING:
            return MEMBER if self.rules.trusts else MARKED
        return UNDECIDED

    def _looked(self, state: State, number: int, at: int) -> State | None:
        program, server = state.programs[number], state.servers[at]
        link = program.links[at]
        if link.state == OUT:
            again = link.life != server.life and server.marker != REJOINING
            return self._marked(state, at, WITNESS) if again and not server.refuses else None
        if program.stage == 1 and not self.rules.founds:
            return None
        if self._may_complete(program, server, at):
            marked = replaced(state.servers, at, server._replace(marker=IN))
            member = link._replace(state=MEMBER)
            return _linked(state._replace(servers=marked), number, at, member)
        now = self._standing(program, server)
        if link.state == MEMBER and now in (UNDECIDED, MARKED):
            return None
        return None if now == link.state else _linked(state, number, at, link._replace(state=now))

    def _may_complete(self, program: Program, server: Server, at: int) -> bool:
        others = program.links[:at] + program.links[at + 1 :]
        return (
            self.rules.completes
            and program.links[at].state in (UNDECIDED, MARKED)
            and all(link.state in (MARKED, MEMBER) for link in others)
            and server.marker == FOUNDING
            and not server.refuses
        )

    def _is_old(self, program: Program) -> bool:
        return any(
            link.state == OUT
            or (link.state == MEMBER and not (link.unmarked and self.rules.forgives))
            for link in program.links
        )

    def _gives_up(self, state: State, number: int, at: int) -> bool:
        """Return whether a program takes a master for a restarted one after a while."""
        program, server = state.programs[number], state.servers[at]
        underway = any(other.links[at].ask is not None and other.alive for other in state.programs)
        return (
            program.links[at].state in (UNDECIDED, MARKED)
            and not program.stage
            and server.marker in (NONE, FOUNDING)
            and not self._may_complete(program, server, at)
            and not server.refuses
            and not underway
            and not any(at == where for where, _ in state.orphans)
            and self._is_old(program)
        )

    def _may_begin(self, program: Program) -> bool:
        states = [link.state for link in program.links]
        return (
            not program.stage
            and AWAY not in states
            and (UNDECIDED in states or MARKED in states)
            and not self._is_old(program)
        )

    def _begun(self, state: State, number: int) -> State:
        program = state.programs[number]
        ask = Ask(NONE, FOUNDING if self.rules.founds else IN)
        links = tuple(
            link._replace(asked=True, ask=ask) if link.state in (UNDECIDED, MARKED) else link
            for link in program.links
        )
        return _programmed(state, number, program._replace(links=links, stage=1))

    def _written(self, server: Server, ask: Ask) -> tuple[Server, bool]:
        """Return a master after a write, and whether that took effect."""
        server = server._replace(first=server.first or NEWCOMER)
        if server.refuses:
            return server, False
        if server.marker != ask.over and (self.rules.compares or ask.over == NONE):
            return server, False
        return server._replace(marker=ask.write), True

    def _executed(self, state: State, number: int, at: int) -> State:
        link, server = state.programs[number].links[at], state.servers[at]
        ask = link.ask
        assert ask is not None
        if ask.done:
            ask = ask._replace(done=2, found=server.marker)
        else:
            refused = server.refuses
            server, took = self._written(server, ask)
            done = 1 if self.apart else 2
            ask = ask._replace(done=done, took=took, refused=refused, found=server.marker)
        after = state._replace(servers=replaced(state.servers, at, server))
        return _linked(after, number, at, link._replace(ask=ask))

    def _concluded(self, state: State, number: int) -> State:
        program, rules = state.programs[number], self.rules
        asks = [link.ask for link in program.links if link.asked]
        answers = [ask for ask in asks if ask is not None and ask.done == 2]
        marked = [ask.found for ask in answers if ask.found != NONE and (rules.shares or ask.took)]
        voting = sum(link.state == MEMBER for link in program.links)
        new = len(marked) + voting >= (rules.needs or majority(self.masters))
        new = new and not (rules.heeds and REJOINING in marked)
        goes_on = rules.founds and program.stage == 1 and new
        links = list(program.links)
        for at, link in enumerate(program.links):
            ask = link.ask
            after = link._replace(ask=None, asked=False)
            if ask is None:
                # The next examination has to know.
                known = link.asked and not new and not rules.founds
                links[at] = after._replace(life=BEFORE) if known else after
            elif link.state in (UNDECIDED, MARKED):
                if ask.found == REJOINING or (ask.refused and ask.found == NONE):
                    after = after._replace(state=OUT)
                elif ask.found == IN and (new or rules.founds):
                    after = after._replace(state=MEMBER)
                elif ask.found == IN and ask.took:
                    state = self._marked(state, at, WITNESS)
                    after = after._replace(state=OUT)
                elif goes_on and ask.found == FOUNDING and ask.done == 2:
                    after = after._replace(asked=True, ask=Ask(FOUNDING, IN))
                links[at] = after
            else:
                links[at] = after
        stage = 2 if any(link.asked for link in links) else 0
        return _programmed(state, number, program._replace(links=tuple(links), stage=stage))

    @staticmethod
    def _marked(state: State, at: int, who: str) -> State:
        server = state.servers[at]
        server = server._replace(marker=REJOINING, first=server.first or who)
        return state._replace(servers=replaced(state.servers, at, server))

    # Faults

    def _faults(self, state: State) -> Iterator[tuple[str, State]]:
        quiet = state.restarts and all("examines" in label for label, _ in self._moves(state))
        for at, server in enumerate(state.servers):
            if server.refuses:
                accepting = replaced(state.servers, at, server._replace(refuses=False))
                yield f"{'abcde'[at]} accepts writes", state._replace(servers=accepting)
            if quiet:
                yield f"{'abcde'[at]} restarts empty", self._restarted(state, at)
        for number, program in enumerate(state.programs):
            if state.deaths and program.alive:
                fewer = state._replace(deaths=state.deaths - 1)
                for at in range(self.masters):
                    fewer = self._ended(fewer, number, at)
                dead = fewer.programs[number]._replace(alive=False, stage=0)
                yield f"{number} dies", _programmed(fewer, number, dead)
            for at, link in enumerate(program.links):
                if state.cuts and program.alive and link.state != AWAY:
                    cut = self._ended(state._replace(cuts=state.cuts - 1), number, at)
                    yield f"{number} is cut off from {'abcde'[at]}", cut

    @staticmethod
    def _ended(state: State, number: int, at: int) -> State:
        """End the connection of a program to a master."""
        link = state.programs[number].links[at]
        if link.ask is not None and not link.ask.done:
            orphans = tuple(sorted((*state.orphans, (at, link.ask))))
            state = state._replace(orphans=orphans)
        ended = link._replace(state=AWAY, ask=None, unmarked=False)
        return _linked(state, number, at, ended)

    def _restarted(self, state: State, at: int) -> State:
        for number in range(len(state.programs)):
            state = self._ended(state, number, at)
        old = state.servers[at]
        new = Server(life=old.life + 1, lost=old.lost or old.voted, refuses=old.refuses)
        orphans = tuple(each for each in state.orphans if each[0] != at)
        return state._replace(
            servers=replaced(state.servers, at, new),
            orphans=orphans,
            restarts=state.restarts - 1,
        )


def _programmed(state: State, number: int, program: Program) -> State:
    return state._replace(programs=replaced(state.programs, number, program))


def _linked(state: State, number: int, at: int, link: Link) -> State:
    program = state.programs[number]
    links = replaced(program.links, at, link)
    return _programmed(state, number, program._replace(links=links))


def stuck(model: Markers, limit: int) -> tuple[int, State | None]:
    """
    Return how many states there are, and one from which a living newcomer never gets a majority.

    No fault comes after the last one, and from there on every program goes on.
    """
    before: dict[State, set[State]] = {}
    first = model.first()
    seen, layer = {first}, [first]
    while layer:
        following = []
        for state in layer:
            faultless = {after for _, after in model.moves(state)}
            for after in faultless:
                before.setdefault(after, set()).add(state)
            for after in faultless | {after for _, after, _ in model.steps(state)}:
                if after not in seen:
                    seen.add(after)
                    following.append(after)
        assert len(seen) <= limit, "too many states"
        layer = following
    good = [state for state in seen if model.all_get_votes(state)]
    useful = set(good)
    while good:
        for state in before.get(good.pop(), ()):
            if state not in useful:
                useful.add(state)
                good.append(state)
    return len(seen), next((state for state in seen if state not in useful), None)
