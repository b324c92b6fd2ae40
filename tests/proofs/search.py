"""
Every state that can be reached, the nearest first, until something does not hold.

A model says what can happen next; this file goes there. States are hashable, and
equal ones are looked at once. The way to a violation is kept, and is the shortest.
"""

import gc
from collections.abc import Hashable, Iterator
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

S = TypeVar("S", bound=Hashable)

Step = tuple[str, S, str]
"""What happens, the state after it, and what does not hold then; empty if all does."""


class Model(Protocol[S]):
    """What can happen."""

    def first(self) -> S:
        """Return the state at the beginning."""

    def steps(self, state: S) -> Iterator[Step[S]]:
        """Return all that can happen next."""


@dataclass(frozen=True)
class Found(Generic[S]):
    """
    What a search has come to.

    Attributes:
        states: How many were looked at.

        broken: What does not hold; empty if all does, in every state there is.

        path: What happened until then.

        complete: Whether there was nothing left to look at.
    """

    states: int
    broken: str
    path: tuple[str, ...]
    complete: bool

    def __str__(self) -> str:
        if not self.broken:
            return f"nothing in {self.states} states"
        return "\n  ".join((f"{self.broken}, after", *self.path))


def search(model: Model[S], limit: int) -> Found[S]:
    """
    Look at every state of *model*.

    Args:
        limit: After how many states to give up.
    """
    gc.disable()  # there are no cycles, and a million tuples to look for them in
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
                if after not in came_from:
                    came_from[after] = (state, label)
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
