"""Makes a plan that fails smaller, for as long as it still breaks the same promise."""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TypeVar

from .plan import Action, Fault, Plan

T = TypeVar("T")


def shrink(plan: Plan, fails: Callable[[Plan], bool], *, seconds: float = 120.0) -> Plan:
    """
    Return the smallest plan found that still *fails*: fewer programs, actions, faults, and less.

    Args:
        seconds: The search ends after so many, with what it has.
    """
    ends = time.monotonic() + seconds
    improved = True
    while improved:
        improved = False
        for smaller in _smaller(plan):
            if time.monotonic() > ends:
                return plan
            if smaller != plan and fails(smaller):
                plan, improved = smaller, True
                break
    return plan


def _smaller(plan: Plan) -> Iterator[Plan]:
    """Yield plans that are smaller in one way, those that leave out most first."""
    for program in range(plan.programs):
        yield plan.without_program(program)
    yield _without_idle(plan)
    for faults in _less(plan.faults):
        yield replace(plan, faults=faults)
    for actions in _less(plan.actions):
        yield replace(plan, actions=actions)
    for number in range(len(plan.latencies) - 1, 0, -1):
        yield _without_master(plan, number)
    for place, action in enumerate(plan.actions):
        for simpler in _simpler_actions(action):
            yield replace(plan, actions=_put(plan.actions, place, simpler))
    for place, fault in enumerate(plan.faults):
        for milder in _milder(fault):
            yield replace(plan, faults=_put(plan.faults, place, milder))
    yield replace(plan, jitter=False)
    yield replace(plan, offsets=(0.0,) * len(plan.offsets))
    yield replace(plan, latencies=(1.0,) * len(plan.latencies))


def _less(things: Sequence[T]) -> Iterator[tuple[T, ...]]:
    """Yield *things* without the one half, the other, a quarter..., and without each."""
    size = len(things) // 2
    while size:
        for begin in range(0, len(things), size):
            yield (*things[:begin], *things[begin + size :])
        size //= 2
    if len(things) == 1:
        yield ()


def _put(things: tuple[T, ...], place: int, thing: T) -> tuple[T, ...]:
    return (*things[:place], thing, *things[place + 1 :])


def _without_idle(plan: Plan) -> Plan:
    """Return the plan without programs that do nothing; the others are numbered anew."""
    busy = sorted({each.program for each in plan.actions})
    number = {program: place for place, program in enumerate(busy)}
    if not busy or len(busy) == plan.programs:
        return plan
    faults = tuple(
        replace(each, targets=(number[each.targets[0]], *each.targets[1:]))
        if each.of_program
        else each
        for each in plan.faults
        if not each.of_program or each.targets[0] in number
    )
    actions = tuple(replace(each, program=number[each.program]) for each in plan.actions)
    return replace(plan, programs=len(busy), actions=actions, faults=faults)


def _without_master(plan: Plan, number: int) -> Plan:
    """Return the plan without the last masters, from *number* on."""
    faults = []
    for each in plan.faults:
        head = each.targets[:1] if each.of_program else ()
        masters = tuple(m for m in each.targets[len(head) :] if m < number)
        if masters or (each.of_program and (len(each.targets) == 1)):
            faults.append(replace(each, targets=head + masters))
    return replace(
        plan, latencies=plan.latencies[:number], offsets=plan.offsets[:number],
        faults=tuple(faults),
    )  # fmt: skip


def _simpler_actions(action: Action) -> Iterator[Action]:
    if action.cancelled:
        yield replace(action, cancelled=None)
    if action.stopped is not None:
        yield replace(action, stopped=None)
    if action.again:
        yield replace(action, again=action.again - 1)
    if action.apart:
        yield replace(action, apart=False)
    if action.extends:
        yield replace(action, extends=None)
    if action.fails:
        yield replace(action, fails=False)
    if action.max_hold:
        yield replace(action, max_hold=None)
    if not action.auto_extend:
        yield replace(action, auto_extend=True)
    if action.task:
        yield replace(action, task=0)
    if action.rest:
        yield replace(action, rest=0)
    if action.hold > 10:
        yield replace(action, hold=10)
        yield replace(action, hold=action.hold // 2)
    if action.wait is not None:
        yield replace(action, wait=None)


def _milder(fault: Fault) -> Iterator[Fault]:
    if fault.lasts > 10:
        yield replace(fault, lasts=fault.lasts // 2)
    # Those of a program are its number, and then masters.
    fixed = 1 if fault.of_program else 0
    if len(fault.targets) > fixed + 1:
        for place in range(fixed, len(fault.targets)):
            yield replace(fault, targets=fault.targets[:place] + fault.targets[place + 1 :])
