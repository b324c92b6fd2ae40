"""
Breadth-first search of all states of a model, until a property is broken.

A model lists the steps from each state. States are hashable, and equal ones are searched
once. The path to a violation is recorded, and is the shortest.
"""

import gc
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeAlias, TypeVar

S = TypeVar("S", bound=Hashable)
T = TypeVar("T")

Step = tuple[str, S, str]
"""The label of the step, the state afterwards, and the broken property; empty if none is."""


class Model(Protocol[S]):
    """The states and steps that are searched."""

    def first(self) -> S:
        """Return the first state."""

    def steps(self, state: S) -> Iterator[Step[S]]:
        """Return all steps from *state*."""


@dataclass(frozen=True)
class Found(Generic[S]):
    """
    The result of a search.

    Attributes:
        states: The number of states that were searched.

        broken: The property that is broken; empty if none is in the searched states.

        path: The steps to the violation.

        complete: Whether all states were searched.
    """

    states: int
    broken: str
    path: tuple[str, ...]
    complete: bool

    def __str__(self) -> str:
        if not self.broken:
            return f"nothing in {self.states} states"
        return "\n  ".join((f"{self.broken}, after", *self.path))


Searched: TypeAlias = Callable[[Model[Any], int], Found[Any]]
"""`search` for a test whose search is recorded: the fixture `searched`."""


def search(model: Model[S], limit: int) -> Found[S]:
    """
    Search every state of *model*, or at least *limit* of them.
    """
    gc.disable()  # there are no cycles among a million tuples
    try:
        return _search(model, limit)
    finally:
        gc.enable()


def _search(model: Model[S], limit: int) -> Found[S]:
    first = model.first()
    came_from: dict[S, tuple[S, str] | None] = {first: None}
    states = 0
    layer = [first]
    while layer:
        following = []
        for state in layer:
            states += 1
            for label, after, broken in model.steps(state):
                if broken:
                    return Found(states, broken, (*_path(came_from, state), label), complete=False)
                link = (state, label)
                if came_from.setdefault(after, link) is link:  # hashes the state once
                    following.append(after)
            if states >= limit:
                return Found(states, "", (), complete=False)
        layer = following
    return Found(states, "", (), complete=True)


def _path(came_from: dict[S, tuple[S, str] | None], state: S) -> list[str]:
    path = []
    while (link := came_from[state]) is not None:
        state, label = link
        path.append(label)
    return path[::-1]


def replaced(those: tuple[T, ...], at: int, by: T) -> tuple[T, ...]:
    """Return a tuple with *by* in place of the item at index *at*."""
    return (*those[:at], by, *those[at + 1 :])
