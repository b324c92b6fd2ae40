"""
Linearizability: whether each operation can have taken effect at one instant of its own time.

The search is that of Wing and Gong ("Testing and Verifying Concurrent Objects", 1993), with
Lowe's memory of configurations ("Testing for Linearizability", 2017). It goes through the
history in the order of time. Of the operations that have begun, it picks one that is legal in
the model's state, and goes on from the new state. It has to pick each operation before the
first end in the history that is not passed yet is passed; where none can be picked, it goes back.
A configuration is the state and the set of picked operations; none is searched twice.

Three things make this fast for long histories:

- The set is relative to the first end that is not passed: all earlier ones are in it. Where no
  operation is pending, the configuration is the state alone. So the history is split there
  without a second search, also if several states are possible.
- An operation that is legal now, and changes no state from here on, is picked at once and
  never given back: any order in which it comes later is as good with it here. These are
  reads, refused writes, and pending writes with a token that is too low by now.
- A pending operation ("info") may have taken effect at any time after its beginning, or never.
  It has no end in the history, and is picked only where nothing else leads on.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Final, Generic, NamedTuple, Protocol, TypeVar

from .history import NEVER, Operation

MOST_CONFIGURATIONS: Final = 2_000_000
"""After so many the search gives up. A history of the fenced register needs one an operation."""


class Timed(Protocol):
    """An operation with its time. `effect_by` is `NEVER` if it may be without effect."""

    @property
    def invoked_at(self) -> int: ...
    @property
    def effect_by(self) -> int: ...


State = TypeVar("State")
Call = TypeVar("Call", bound=Timed)
StateOf = TypeVar("StateOf")
CallOf_contra = TypeVar("CallOf_contra", bound=Timed, contravariant=True)


class Model(Protocol[StateOf, CallOf_contra]):
    """What an object does if its operations come one after the other."""

    @property
    def initial(self) -> StateOf:
        """The state before the first operation. States are hashable."""

    def step(self, state: StateOf, operation: CallOf_contra) -> tuple[bool, StateOf]:
        """Return whether *operation* can have had its result in *state*, and the next state."""

    def is_inert(self, state: StateOf, operation: CallOf_contra) -> bool:
        """Return whether *operation* changes neither *state* nor any state that can follow."""


class RegisterState(NamedTuple):
    """The value of a register, and the highest token that its fence has seen (0: none)."""

    value: int | None = None
    token: int = 0


class FencedRegister:
    """A register whose fence refuses each write with a lower token than the highest so far."""

    initial = RegisterState()

    def step(self, state: RegisterState, operation: Operation) -> tuple[bool, RegisterState]:
        """Accept, refuse or read. A write without a token has the lowest one, as in the store."""
        token = operation.token or 0
        if operation.what == "read":
            return (operation.value, token) == state, state
        passes = token >= state.token
        if operation.end == "fail":
            return not passes, state
        if passes:
            return True, RegisterState(operation.value, token)
        return operation.end == "info", state  # it may be refused yet, and nobody learns it

    def is_inert(self, state: RegisterState, operation: Operation) -> bool:
        """Return True for reads and refused writes: the highest token never falls."""
        if operation.what == "read" or operation.end == "fail":
            return True
        return (operation.token or 0) < state.token


@dataclass(frozen=True, slots=True)
class NotLinearizable(Generic[Call, State]):
    """Where the search for an order has ended."""

    blocked: Call
    """All operations that ended before this one have an order. With this one there is none."""
    states: tuple[State, ...]
    """States that the object can have had then."""
    window: tuple[Call, ...]
    """The operations around it, in the order of their beginnings."""
    gave_up: bool = False
    """The search was too long: there may be an order, but none was found."""


def check(
    model: Model[State, Call], calls: Iterable[Call], most: int = MOST_CONFIGURATIONS
) -> NotLinearizable[Call, State] | None:
    """
    Return None if an order explains all *calls*, else where none does.

    Operations that touch at one instant count as concurrent.

    Args:
        calls: The operations of one object. Those that surely had no effect, and tell nothing of
            the state, are left out.

        most: The number of configurations after which the search gives up.
    """
    return _Search(model, sorted(calls, key=lambda call: call.invoked_at)).run(most)


def check_register(
    operations: Iterable[Operation], most: int = MOST_CONFIGURATIONS
) -> dict[str, NotLinearizable[Operation, RegisterState] | None]:
    """Return what `check` finds for each key that is written or read as a fenced register."""
    keys: dict[str, list[Operation]] = {}
    for one in operations:
        if one.what == "write" or (one.what == "read" and one.end == "ok"):
            keys.setdefault(one.keys[0], []).append(one)
    return {
        key: check(FencedRegister(), _without_idle(group), most)
        for key, group in sorted(keys.items())
    }


def _without_idle(calls: list[Operation]) -> list[Operation]:
    """
    Return *calls* but for pending writes that explain nothing: each doubles a search in vain.

    A pending write can only explain that its value was read, or that a lower token was refused:
    its own token is read with its own value only.
    """
    read = {one.value for one in calls if one.what == "read"}
    refused = [one.token or 0 for one in calls if one.what == "write" and one.end == "fail"]
    lowest = min(refused, default=NEVER)
    return [
        one for one in calls if one.end != "info" or one.value in read or (one.token or 0) > lowest
    ]


class _Picked(NamedTuple):
    """The set of picked operations."""

    passed: int = 0
    """All of the first so many ends are passed, in the order of the ends."""
    others: int = 0
    """The operations with later ends: bit 0 is that of the first end that is not passed."""
    pending: int = 0
    """The operations without an end, in the order of their beginnings."""


class _Frame(Generic[State]):
    """A configuration on the way, how it was entered, and where it may go on."""

    __slots__ = ("choices", "picked", "removed", "state")

    def __init__(self, state: State, picked: _Picked, removed: list[int]) -> None:
        self.state = state
        self.picked = picked
        self.removed = removed
        self.choices: Iterator[tuple[int, State]] = iter(())


class _Search(Generic[State, Call]):
    """
    The search for one object.

    The beginnings and ends that are not picked form a linked list in the order of time. An entry
    is the number of the operation for its beginning, and that plus `len(calls)` for its end.
    """

    def __init__(self, model: Model[State, Call], calls: Sequence[Call]) -> None:
        self._model = model
        self._calls = calls
        count = self._count = len(calls)
        self._head = 2 * count
        ended = [number for number in range(count) if calls[number].effect_by < NEVER]
        self._by_end = sorted(ended, key=lambda number: calls[number].effect_by)
        self._rank = [-1] * count
        for rank, number in enumerate(self._by_end):
            self._rank[number] = rank
        self._pending_bit = [0] * count
        pending = (number for number in range(count) if self._rank[number] < 0)
        for bit, number in enumerate(pending):
            self._pending_bit[number] = 1 << bit
        # At one instant beginnings come first: operations that touch are concurrent.
        begins = [(calls[number].invoked_at, 0, number) for number in range(count)]
        ends = [(calls[number].effect_by, 1, number + count) for number in self._by_end]
        order = [entry for _, _, entry in sorted(begins + ends)]
        self._next = [self._head] * (2 * count + 1)
        self._before = [self._head] * (2 * count + 1)
        for left, right in zip([self._head, *order], [*order, self._head], strict=True):
            self._next[left] = right
            self._before[right] = left

    def run(self, most: int) -> NotLinearizable[Call, State] | None:
        """Search until all ends are passed, nothing is left to try, or it takes too long."""
        state = self._model.initial
        furthest, states = -1, set[State]()
        seen = set[tuple[State, _Picked]]()
        path: list[_Frame[State]] = []
        removed: list[int] = []
        picked = self._pick_inert(state, _Picked(), removed)
        while True:
            if picked.passed == len(self._by_end):
                return None
            if (state, picked) in seen:
                self._restore(removed)
            else:
                seen.add((state, picked))
                if picked.passed > furthest:
                    furthest, states = picked.passed, set()
                if picked.passed == furthest and len(states) < 4:
                    states.add(state)
                frame = _Frame(state, picked, removed)
                frame.choices = iter(self._choices(state))
                path.append(frame)
            while (choice := next(path[-1].choices, None)) is None:
                self._restore(path.pop().removed)
                if not path:
                    return self._report(furthest, states)
            if len(seen) > most:
                return self._report(furthest, states, gave_up=True)
            number, state = choice
            removed = [number]
            self._remove(number)
            picked = self._pick_inert(state, self._with(path[-1].picked, number), removed)

    def _choices(self, state: State) -> list[tuple[int, State]]:
        """Return the operations that can be next, and the states after them."""
        choices = []
        entry = self._next[self._head]
        while entry < self._count:
            legal, after = self._model.step(state, self._calls[entry])
            if legal:
                choices.append((entry, after))
            entry = self._next[entry]
        choices.sort(key=lambda choice: self._calls[choice[0]].effect_by)  # pending ones last
        return choices

    def _pick_inert(self, state: State, picked: _Picked, removed: list[int]) -> _Picked:
        """Pick all operations that are legal and change nothing any more."""
        entry = self._next[self._head]
        while entry < self._count:
            following = self._next[entry]
            call = self._calls[entry]
            if self._model.is_inert(state, call) and self._model.step(state, call)[0]:
                self._remove(entry)
                removed.append(entry)
                picked = self._with(picked, entry)
                if following == entry + self._count:  # its own end, which is removed too
                    following = self._next[following]
            entry = following
        return picked

    def _with(self, picked: _Picked, number: int) -> _Picked:
        """Return *picked* with one operation more."""
        passed, others, pending = picked
        if self._rank[number] < 0:
            return _Picked(passed, others, pending | self._pending_bit[number])
        others |= 1 << (self._rank[number] - passed)
        while others & 1:
            others >>= 1
            passed += 1
        return _Picked(passed, others, pending)

    def _remove(self, number: int) -> None:
        """Remove the beginning and the end of an operation from the list."""
        for entry in (number, number + self._count) if self._rank[number] >= 0 else (number,):
            before, after = self._before[entry], self._next[entry]
            self._next[before], self._before[after] = after, before

    def _restore(self, removed: list[int]) -> None:
        """Put operations back, the last removed one first."""
        for number in reversed(removed):
            for entry in (number + self._count, number) if self._rank[number] >= 0 else (number,):
                self._next[self._before[entry]] = self._before[self._next[entry]] = entry

    def _report(
        self, furthest: int, states: set[State], *, gave_up: bool = False
    ) -> NotLinearizable[Call, State]:
        blocked = self._calls[self._by_end[furthest]]
        ended = [self._calls[number] for number in self._by_end]
        before = [one for one in ended[:furthest] if one.effect_by < blocked.invoked_at][-4:]
        pending = [one for one in self._calls if one.effect_by == NEVER]
        around = [
            one
            for one in chain(ended, pending[-4:])
            if one.invoked_at <= blocked.effect_by and one.effect_by >= blocked.invoked_at
        ]
        around.sort(key=lambda one: abs(one.invoked_at - blocked.invoked_at))
        shown = sorted([*before, *around[:12]], key=lambda one: one.invoked_at)
        return NotLinearizable(blocked, tuple(states), tuple(shown), gave_up)
