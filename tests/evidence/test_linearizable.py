"""The search for an order finds one where there is one, and says where there is none."""

import itertools
from dataclasses import dataclass, replace

import pytest
from evidence.history import NEVER, Operation
from evidence.linearizable import (
    FencedRegister,
    NotLinearizable,
    RegisterState,
    check,
    check_register,
)
from hypothesis import given, strategies as st

from .kit import Script

MODEL = FencedRegister()


def call(
    began: int,
    ended: int,
    what: str = "write",
    *,
    value: int | None = None,
    token: int | None = None,
    end: str = "ok",
) -> Operation:
    kind = {"ok": "ok", "fail": "fail"}.get(end, "info")
    return Operation("w", 0, what, began, ended, kind, ("k",), token=token, value=value)  # type: ignore[arg-type]


def read(began: int, ended: int, value: int | None, token: int | None) -> Operation:
    return call(began, ended, "read", value=value, token=token)


def write(began: int, ended: int, value: int, token: int | None, end: str = "ok") -> Operation:
    return call(began, ended, value=value, token=token, end=end)


def holds(*calls: Operation) -> bool:
    return check(MODEL, calls) is None


# --------------------------------------------------------------------- by permutations


def replay(calls: tuple[Operation, ...]) -> bool:
    """Return whether *calls*, one after the other, have their results. Not the checked model."""
    value, highest = None, 0
    for one in calls:
        token = one.token or 0
        match one.what, one.end:
            case "read", _:
                if one.value != value or (one.token or 0) != highest:
                    return False
            case "write", "fail":
                if token >= highest:
                    return False
            case "write", _:
                if token < highest:
                    return False
                value, highest = one.value, token
    return True


def has_order(calls: list[Operation]) -> bool:
    """Try all orders of all subsets that leave out pending operations only."""
    ended = [one for one in calls if one.effect_by != NEVER]
    pending = [one for one in calls if one.effect_by == NEVER]
    for count in range(len(pending) + 1):
        for chosen in itertools.combinations(pending, count):
            for order in itertools.permutations([*ended, *chosen]):
                in_time = all(
                    not later.effect_by < earlier.invoked_at
                    for earlier, later in itertools.combinations(order, 2)
                )
                if in_time and replay(order):
                    return True
    return False


@st.composite
def small_histories(draw: st.DrawFn) -> list[Operation]:
    """Draw a history that some order has made, and change some of its results and times."""
    state = RegisterState()
    calls = []
    for number in range(draw(st.integers(1, 6))):
        began = 4 * number - draw(st.integers(0, 10))
        ended = 4 * number + draw(st.integers(0, 10))
        token = draw(st.integers(1, 3))
        if draw(st.booleans()):
            calls.append(read(began, ended, state.value, state.token))
        elif draw(st.integers(0, 3)) == 0:
            calls.append(write(began, ended, number, token, "info"))
            if token >= state.token and draw(st.booleans()):
                state = RegisterState(number, token)
        elif token >= state.token:
            state = RegisterState(number, token)
            calls.append(write(began, ended, number, token))
        else:
            calls.append(write(began, ended, number, token, "fail"))
    for _ in range(draw(st.integers(0, 2))):
        place = draw(st.integers(0, len(calls) - 1))
        change = draw(st.sampled_from(["token", "value", "shift"]))
        one = calls[place]
        if change == "shift":
            shift = draw(st.integers(-8, 8))
            times = one.invoked_at + shift, one.ended_at + shift
            calls[place] = replace(one, invoked_at=times[0], ended_at=times[1])
        elif change == "token":
            calls[place] = replace(one, token=draw(st.integers(1, 3)))
        elif one.what == "read":
            calls[place] = replace(one, value=draw(st.integers(0, 5)))
    return calls


@given(small_histories())
def test_the_search_agrees_with_all_permutations(calls: list[Operation]) -> None:
    found = check(MODEL, calls)
    assert (found is None) == has_order(calls)
    assert (check_register(calls)["k"] is None) == (found is None)
    assert found is None or found.blocked in found.window


@dataclass(frozen=True)
class Popped:
    """A call of a queue: a number is pushed, or popped."""

    invoked_at: int
    effect_by: int
    pushed: int | None = None
    popped: int | None = None


class Queue:
    """A model without inert operations, and with large states."""

    initial: tuple[int, ...] = ()

    def step(self, state: tuple[int, ...], operation: Popped) -> tuple[bool, tuple[int, ...]]:
        if operation.pushed is not None:
            return True, (*state, operation.pushed)
        return bool(state) and state[0] == operation.popped, state[1:]

    def is_inert(self, _state: tuple[int, ...], _operation: Popped) -> bool:
        return False


def test_the_search_takes_other_models() -> None:
    one, two = Popped(0, 10, pushed=1), Popped(0, 10, pushed=2)
    assert check(Queue(), [one, two, Popped(11, 12, popped=2), Popped(13, 14, popped=1)]) is None
    third = Popped(11, 20, pushed=3)
    found = check(Queue(), [one, two, third, Popped(11, 12, popped=3)])
    assert found is not None
    assert found.blocked.popped == 3
    assert set(found.states) == {(1, 2), (2, 1), (1, 2, 3), (2, 1, 3)}


# ------------------------------------------------------------------------- by hand


def test_a_stale_write_that_was_accepted_is_found() -> None:
    assert holds(write(0, 1, 1, 5), write(2, 3, 2, 5), write(4, 5, 3, 6))
    found = check(MODEL, [write(0, 1, 1, 6), write(2, 3, 2, 5), read(4, 5, 2, 5)])
    assert found is not None
    assert found.blocked.value == 2
    assert found.states == ((1, 6),)


def test_a_refused_write_that_was_not_stale_is_found() -> None:
    assert holds(write(0, 1, 1, 6), write(2, 3, 2, 5, "fail"))
    assert not holds(write(0, 1, 1, 6), write(2, 3, 2, 6, "fail"))
    assert not holds(write(2, 3, 2, 5, "fail"), write(4, 5, 1, 6))


def test_a_read_that_goes_back_in_time_is_found() -> None:
    writes = [write(0, 1, 1, 1), write(2, 9, 2, 2)]
    assert holds(*writes, read(3, 4, 1, 1), read(5, 6, 2, 2))
    found = check(MODEL, [*writes, read(3, 4, 2, 2), read(5, 6, 1, 1)])
    assert found is not None
    assert found.blocked.value == 1


def test_a_read_of_the_empty_register_is_legal_before_each_write_only() -> None:
    assert holds(read(0, 1, None, None), write(2, 3, 1, 1))
    assert not holds(write(0, 1, 1, 1), read(2, 3, None, None))


def test_a_read_of_the_right_value_with_a_wrong_token_is_found() -> None:
    assert holds(write(0, 1, 1, 5), read(2, 3, 1, 5))
    assert not holds(write(0, 1, 1, 5), read(2, 3, 1, 4))


def test_operations_that_touch_are_concurrent() -> None:
    assert holds(write(0, 2, 1, 1), read(2, 3, None, None))
    assert not holds(write(0, 1, 1, 1), read(2, 3, None, None))


def test_a_write_that_nobody_knows_of_may_come_late_or_never() -> None:
    pending = write(0, 1, 7, 3, "info")
    early = write(2, 3, 1, 2)
    assert holds(pending, early, read(4, 5, 1, 2)), "never"
    assert holds(pending, early, read(4, 5, 1, 2), read(6, 7, 7, 3)), "after its recorded end"
    assert holds(pending, read(2, 3, 7, 3))
    assert not holds(pending, read(2, 3, 7, 3), read(4, 5, None, None)), "but once"
    assert not holds(read(0, 1, 7, 3), replace(pending, invoked_at=2)), "and not too early"


def test_a_write_that_nobody_knows_of_is_refused_after_a_higher_token() -> None:
    pending = write(0, NEVER, 7, 3, "info")
    assert not holds(pending, write(2, 3, 1, 4), read(4, 5, 7, 3))
    assert holds(pending, write(2, 9, 1, 4), read(4, 5, 7, 3), read(10, 11, 1, 4))
    assert holds(pending, write(2, 3, 1, 3), read(4, 5, 7, 3)), "not after an equal one"


def test_a_write_without_a_token_is_refused_after_one_with_a_token() -> None:
    assert holds(write(0, 1, 1, None), write(2, 3, 2, None), read(4, 5, 2, None))
    assert not holds(write(0, 1, 1, None), write(2, 3, 2, None), read(4, 5, 1, None))
    assert not holds(write(0, 1, 1, 5), write(2, 3, 2, None))
    assert holds(write(0, 1, 1, 5), write(2, 3, 2, None, "fail"))


def test_a_write_that_nobody_knows_of_explains_a_refusal() -> None:
    refused = write(2, 3, 2, 4, "fail")
    assert check_register([write(0, 1, 1, 5, "info"), refused]) == {"k": None}
    assert check_register([write(0, 1, 1, 4, "info"), refused])["k"] is not None


# ------------------------------------------------------------------------------ long


@pytest.fixture(scope="module")
def long_history() -> list[Operation]:
    """Return 20,000 operations of 30 clients: many concurrent reads, and 200 writes in doubt."""
    calls = []
    for turn in range(1_000):
        at, value = 1_000 * turn, 10 * turn
        calls.append(write(at, at + 100, value, turn + 1))
        calls.append(write(at + 50, at + 400, value + 1, turn, "fail" if turn else "info"))
        calls += [read(at + 110, at + 900 + n, value, turn + 1) for n in range(16)]
        if turn % 5 == 0:
            calls.append(write(at + 200, NEVER, value + 2, turn + 1, "info"))
            calls.append(write(at + 300, NEVER, value + 3, None, "info"))
        else:
            calls += [write(at + 120 + n, at + 1000 + n, value + 4 + n, turn + 1) for n in (0, 1)]
    return calls


def test_a_long_history_needs_few_configurations(long_history: list[Operation]) -> None:
    assert len(long_history) == 20_000
    assert check_register(long_history, most=len(long_history)) == {"k": None}


def test_a_fault_late_in_a_long_history_is_found(long_history: list[Operation]) -> None:
    wrong = read(900_901, 900_902, 8_990, 900)
    found = check_register([*long_history, wrong], most=5 * len(long_history))["k"]
    assert found is not None
    assert found.blocked is wrong
    assert not found.gave_up
    assert len(found.window) < 20


def test_a_search_that_takes_too_long_says_so(long_history: list[Operation]) -> None:
    found = check(MODEL, long_history, most=100)
    assert isinstance(found, NotLinearizable)
    assert found.gave_up


# ------------------------------------------------------------------------- in histories


def test_each_register_is_searched(script: Script) -> None:
    for key in ("a", "b", "c"):
        script.write("w0/0", 1, 2, value=1, token=5, key=key)
        script.read("w0/0", 3, 4, value=1, token=5, key=key)
    assert script.check().holds
    script.write("w1/0", 5, 6, value=2, token=4, key="b")
    verdict = script.check()
    assert verdict.broken == ("register",)
    (text,) = verdict.checks["register"].broken
    assert text.startswith("'b': no order has [")
    assert "the register had value 1 token 5" in text
    assert "\n> [" in text


def test_a_read_that_failed_tells_nothing(script: Script) -> None:
    script.write("w0/0", 1, 2, value=1, token=5)
    script.add("w0/0", "read", 3, 4, end="fail", asked={"key": "k"}, result={"why": "timeout"})
    script.add("w0/0", "read", 5, None, asked={"key": "k"})
    assert script.check().holds


def test_a_late_effect_of_a_killed_writer_is_legal_through_files(script: Script) -> None:
    script.write("w0/0", 1, None, value=1, token=5)
    script.read("w1/0", 2, 3, value=None, token=None)
    script.read("w1/0", 4, 5, value=1, token=5)
    assert script.check().holds
