"""
All interleavings of two programs that lock at the owner of one slot of a Redis Cluster.

Runs the shipped rules: `Confirmation`, by which an owner is confirmed, and `cluster_nodes.members`,
by which nodes count.

Models itself: the nodes and their views of the slot, which only go to higher epochs; the list of
nodes that each of them has; owners that take the slot with the keys of some moment, seen by
nobody else; owners that were replaced and do not know it; nodes that join and leave; the marker,
which is a key like others; and that a program reaches other nodes each time.

Time goes in steps of `CONFIRMED_FOR`. A lease lives for one step, so two of them overlap if they
were granted in the same step. A quarantine lasts for the life of a lease and a confirmation, two
steps. An owner that is paused is one that hears nothing: what it grants when it wakes counts from
the request, which is where it stands here.
"""

import functools
import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from redlock_aio._protocol import cluster_nodes
from redlock_aio._protocol.cluster_nodes import NodeList, Owner
from redlock_aio._protocol.confirmation import CONFIRMED_FOR, Confirmation, Statement

from .search import Step, replaced

NOBODY = -1


class View(NamedTuple):
    """The owner of the slot by the word of a node; the name is empty if it has heard of none."""

    owner: str = ""
    epoch: int = 0


class Marker(NamedTuple):
    """The server that the marker calls a member: the owner that was confirmed, and its life."""

    owner: View
    life: int


class Node(NamedTuple):
    """
    A node.

    Attributes:
        listed: The nodes that it knows, itself too; empty if it is none yet, or was killed.

        life: How often it was promoted, which its INFO shows.

        lock: The program to which it has granted the lock in this step.
    """

    view: View
    listed: str
    marker: Marker
    life: int = 0
    lock: int = NOBODY


class Answer(NamedTuple):
    """What a node has said to a program, and how many steps ago."""

    by: str
    view: View
    listed: str
    age: int = 0


class Program(NamedTuple):
    """
    A program.

    Attributes:
        answers: The newest answers of the nodes, as long as they may count.

        owner: The confirmed owner that it is connected to.

        waits: The steps for which that owner has no vote here yet.

        has_asked: Whether it has asked nodes in this step.

        holds: Whether it has a lease in this step, by the vote of this master.
    """

    answers: tuple[Answer, ...]
    owner: View | None = None
    waits: int = 0
    has_asked: bool = False
    holds: bool = False


class State(NamedTuple):
    """All of it. *quiet* is how long the last change of the nodes must be known to all."""

    nodes: tuple[Node, ...]
    programs: tuple[Program, ...]
    promotions: int
    joins: str = ""
    leaves: str = ""
    quiet: int = 0


def all_members(answers: tuple[Answer, ...]) -> set[str]:
    """Return the nodes that are voters by the shipped rule."""
    lists = [
        NodeList(
            answer.by,
            tuple(
                cluster_nodes.Node(
                    id=name,
                    host=name,
                    port=0,
                    hostname="",
                    is_primary=True,
                    epoch=0,
                    slots=(),
                    is_asked=name == answer.by,
                )
                for name in answer.listed
            ),
            0.0,
        )
        for answer in answers
    ]
    return set(cluster_nodes.members(lists))


@dataclass(frozen=True)
class ClusterRules:
    """
    The rules by which a program trusts an owner.

    Attributes:
        confirmation: What counts the answers.

        voters: Returns the nodes of which a majority must agree.

        epochs: Whether an owner with another epoch is another owner.

        lives: Whether the marker says which life of the server it belongs to.

        forgets: Whether an answer that is too old is gone.

        quarantine: For how many steps an owner that the marker does not name has no vote.

        notices: Whether a program learns that a connected server has lost its keys.
    """

    confirmation: Callable[[], Confirmation] = Confirmation
    voters: Callable[[tuple[Answer, ...]], set[str]] = all_members
    epochs: bool = True
    lives: bool = True
    forgets: bool = True
    quarantine: int = 2
    notices: bool = True

    @staticmethod
    def known(answers: tuple[Answer, ...]) -> set[str]:
        """Return the nodes that a program can ask."""
        return {name for answer in answers for name in answer.listed}

    def owner(self, view: View) -> View:
        """Return the owner as a program tells it from others."""
        return view if self.epochs else view._replace(epoch=0)


@functools.cache
def confirmed(rules: ClusterRules, answers: tuple[Answer, ...]) -> View | None:
    """Return the owner that is confirmed now."""
    counting = rules.confirmation()
    voters = rules.voters(answers)
    counting.set_voters({name: name for name in sorted(voters)})
    for answer in answers:
        if answer.by in voters and answer.view.owner:
            owner = rules.owner(answer.view)
            named = Owner(owner.owner, owner.epoch, owner.owner, 0)
            at = -answer.age * CONFIRMED_FOR
            counting.on_answer(answer.by, Statement(named, "", "", 0, at))
    found = counting.current(0.0)
    return View(found.node, found.epoch) if isinstance(found, Owner) else None


@dataclass(frozen=True)
class ClusterModel:
    """
    A cluster whose first node owns the slot, and two programs that know it.

    Attributes:
        nodes: Its nodes, a letter each.

        takers: The nodes that may become the owner.

        promotions: How often the owner changes.

        joins: The nodes that join, in this order. The next one waits until all know of the last,
            and until no answer from before counts, and no lease by one.

        leaves: The nodes that are killed and forgotten, in this order, likewise.

        reaches: The nodes that each program reaches, all of which it asks; if it is empty, any
            of them, others each time.

        unaware: The nodes that do not know of the last change yet, which were joined by *newest*
            and shall forget *forgotten*.

        progress: Whether a program that asks must find an owner that is confirmed.
    """

    nodes: str = "ARB"
    takers: str = "AR"
    promotions: int = 1
    joins: str = ""
    leaves: str = ""
    reaches: tuple[str, ...] = ()
    unaware: str = ""
    newest: str = ""
    forgotten: str = ""
    progress: bool = False
    rules: ClusterRules = ClusterRules()

    @property
    def names(self) -> str:
        return self.nodes + self.joins

    def first(self) -> State:
        view = View(self.nodes[0], 1)
        owner = self.rules.owner(view)
        marker = Marker(owner, 0)
        members = tuple(Node(view, self._listed_by(name), marker) for name in self.nodes)
        later = tuple(Node(View(), "", Marker(View(), 0)) for _ in self.joins)
        programs = []
        for reached in self.reaches or (self.nodes, self.nodes):
            asked = sorted(reached if self.unaware else self.nodes)
            answers = tuple(Answer(name, view, self._listed_by(name)) for name in asked)
            programs.append(Program(answers, owner))
        return State(members + later, tuple(programs), self.promotions, self.joins, self.leaves)

    def _listed_by(self, name: str) -> str:
        missing = self.newest if name in self.unaware else self.forgotten
        return _sorted({*self.nodes} - {*missing})

    def steps(self, state: State) -> Iterator[Step[State]]:
        yield "time passes", self._later(state), ""
        yield from self._hearing(state)
        yield from self._taking(state)
        yield from self._joining(state)
        yield from self._leaving(state)
        for number in range(len(state.programs)):
            yield from self._asking(state, number)
            yield from self._granting(state, number)

    # ----------------------------------------------------------------------- time

    def _later(self, state: State) -> State:
        nodes = [node._replace(lock=NOBODY) for node in state.nodes]
        programs = []
        for program in state.programs:
            answers = tuple(
                answer._replace(age=1)
                for answer in program.answers
                if answer.age == 0 or not self.rules.forgets
            )
            if program.owner is not None and program.waits == 1:
                at = self._at(program.owner.owner)
                if nodes[at].view.owner == self.names[at]:  # else it refuses the write
                    nodes[at] = nodes[at]._replace(marker=self._marker(program.owner, nodes[at]))
            programs.append(
                program._replace(
                    answers=answers,
                    waits=max(0, program.waits - 1),
                    has_asked=False,
                    holds=False,
                )
            )
        quiet = max(0, state.quiet - 1) if self._all_agree(state) else state.quiet
        return state._replace(nodes=tuple(nodes), programs=tuple(programs), quiet=quiet)

    # ---------------------------------------------------------------------- nodes

    def _hearing(self, state: State) -> Iterator[Step[State]]:
        """A node hears of a higher epoch, and of nodes, from one that it knows."""
        for one, other in itertools.permutations(range(len(state.nodes)), 2):
            node, teller = state.nodes[one], state.nodes[other]
            if self.names[other] not in node.listed or not teller.listed:
                continue
            view = max(node.view, teller.view, key=lambda view: view.epoch)
            # Whoever forgets a node does not hear of it again for a minute.
            listed = node.listed if self.leaves else _sorted({*node.listed, *teller.listed})
            if (view, listed) == (node.view, node.listed):
                continue
            after = _with(state, one, node._replace(view=view, listed=listed))
            if node.lock != NOBODY and view != node.view:
                # It follows the new owner, and has a key that this one lacks: it gets all keys
                # anew, and its clients are told.
                after = _with(after, one, after.nodes[one]._replace(lock=NOBODY))
                after = self._disconnected(after, one) if self.rules.notices else after
            yield f"{self.names[one]} hears from {self.names[other]}", after, ""

    def _disconnected(self, state: State, at: int) -> State:
        programs = tuple(
            program._replace(owner=None, waits=0)
            if program.owner is not None and program.owner.owner == self.names[at]
            else program
            for program in state.programs
        )
        return state._replace(programs=programs)

    def _taking(self, state: State) -> Iterator[Step[State]]:
        """A node becomes the owner by its own will, with the marker that it happens to have."""
        for taker in self.takers if state.promotions else "":
            at = self._at(taker)
            node = state.nodes[at]
            if node.view.owner == taker or not node.listed:
                continue
            view = View(taker, node.view.epoch + 1)
            fewer = state._replace(promotions=state.promotions - 1)
            for marker in sorted({each.marker for each in state.nodes if each.listed}):
                after = node._replace(view=view, marker=marker, life=node.life + 1)
                label = f"{taker} takes the slot, with the marker of {marker}"
                yield label, _with(fewer, at, after), ""

    def _all_agree(self, state: State) -> bool:
        present = _sorted(
            name for name, node in zip(self.names, state.nodes, strict=True) if node.listed
        )
        return all(node.listed in {"", present} for node in state.nodes)

    def _may_change(self, state: State) -> bool:
        return not state.quiet and self._all_agree(state)

    def _joining(self, state: State) -> Iterator[Step[State]]:
        """A node meets one of the others, and knows only that one at first."""
        if not state.joins or not self._may_change(state):
            return
        name = state.joins[0]
        for other, node in enumerate(state.nodes):
            if node.listed:
                after = state._replace(joins=state.joins[1:], quiet=2)
                after = _with(after, other, node._replace(listed=_sorted({*node.listed, name})))
                pair = _sorted(name + self.names[other])
                joined = state.nodes[self._at(name)]._replace(listed=pair)
                yield (
                    f"{name} meets {self.names[other]}",
                    _with(after, self._at(name), joined),
                    "",
                )

    def _leaving(self, state: State) -> Iterator[Step[State]]:
        """A node is killed; then each of the others forgets it by itself."""
        if state.leaves and self._may_change(state):
            name = state.leaves[0]
            at = self._at(name)
            after = state._replace(leaves=state.leaves[1:], quiet=2)
            yield f"{name} is killed", _with(after, at, state.nodes[at]._replace(listed="")), ""
        gone = self.leaves[: len(self.leaves) - len(state.leaves)]
        for at, node in enumerate(state.nodes):
            for name in sorted({*node.listed}.intersection(gone) - {self.names[at]}):
                forgets = node._replace(listed=_sorted({*node.listed} - {name}))
                yield f"{self.names[at]} forgets {name}", _with(state, at, forgets), ""

    # ------------------------------------------------------------------- programs

    def _asking(self, state: State, number: int) -> Iterator[Step[State]]:
        """A program asks those nodes that it reaches, and acts on what it knows then."""
        program = state.programs[number]
        if program.has_asked:
            return
        known = self.rules.known(program.answers) or set(self.nodes)
        if self.reaches:
            known &= set(self.reaches[number])
        living = [name for name in sorted(known) if state.nodes[self._at(name)].listed]
        kept = {answer.by: answer for answer in program.answers}
        for size in range(len(living) if self.reaches else 1, len(living) + 1):
            for asked in itertools.combinations(living, size):
                nodes = {name: state.nodes[self._at(name)] for name in asked}
                fresh = {name: Answer(name, each.view, each.listed) for name, each in nodes.items()}
                answers = tuple(sorted({**kept, **fresh}.values()))
                after = self._concluded(state, program._replace(answers=answers, has_asked=True))
                programs = replaced(state.programs, number, after)
                label = f"program {number} asks {''.join(asked)}"
                lost = self.progress and confirmed(self.rules, answers) is None
                broken = "S6: a change of the nodes costs the confirmation" if lost else ""
                yield label, state._replace(programs=programs), broken

    def _concluded(self, state: State, program: Program) -> Program:
        """Leave an owner that was replaced; connect to a new one, and look at its marker."""
        found = confirmed(self.rules, program.answers)
        if found in {None, program.owner}:
            return program
        at = self._at(found.owner) if found is not None else 0
        node = state.nodes[at]
        if found is None or node.view.owner != self.names[at]:
            return program._replace(owner=None, waits=0)  # it says that another is the owner
        is_member = node.marker == self._marker(found, node)
        return program._replace(owner=found, waits=0 if is_member else self.rules.quarantine)

    def _marker(self, owner: View, node: Node) -> Marker:
        return Marker(owner, node.life if self.rules.lives else 0)

    def _granting(self, state: State, number: int) -> Iterator[Step[State]]:
        """The owner votes for a program, while it is confirmed there and takes itself for it."""
        program = state.programs[number]
        if program.owner is None or program.waits or program.holds:
            return
        if confirmed(self.rules, program.answers) != program.owner:
            return
        at = self._at(program.owner.owner)
        node = state.nodes[at]
        if node.view.owner != self.names[at] or node.lock != NOBODY or not node.listed:
            return
        broken = (
            "S1: the vote of one master counts twice" if state.programs[1 - number].holds else ""
        )
        programs = replaced(state.programs, number, program._replace(holds=True))
        after = _with(state._replace(programs=programs), at, node._replace(lock=number))
        yield f"{self.names[at]} grants it to program {number}", after, broken

    def _at(self, name: str) -> int:
        return self.names.index(name)


def _sorted(names: "str | set[str] | Iterator[str]") -> str:
    return "".join(sorted(names))


def _with(state: State, at: int, node: Node) -> State:
    return state._replace(nodes=replaced(state.nodes, at, node))
