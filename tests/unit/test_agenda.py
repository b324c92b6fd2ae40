"""When leases need attention: never late, in batches, and nothing stays of those that ended."""

import asyncio
import math
import random
from typing import cast

import pytest

from redlock_aio._engine.hold.held_lease import HeldLease
from redlock_aio._engine.hold.watchdog import BATCH, CHECK_AFTER, HORIZON, SURELY_LATER, Agenda
from redlock_aio._rules.lease_state import STEP, LeaseState

from .kit import loop, now

FACTOR = 0.01
LATE = 0.002
"""The seconds by which a timer may be late, in virtual time."""


class Plan(LeaseState):
    """The part of a lease that the agenda uses."""

    __slots__ = ("check_at", "held_since", "page")

    def __init__(self, ttl: int) -> None:
        super().__init__(now() + ttl * (1 - FACTOR) / 1000, ttl, FACTOR, renewed=True)
        self.held_since = now()
        self.check_at = math.inf


class Attended:
    """An agenda that records which leases it hands over, and when."""

    def __init__(self) -> None:
        self.calls: list[tuple[float, list[Plan]]] = []
        self.agenda = Agenda(asyncio.get_running_loop(), now, self._attend)

    def _attend(self, due: list[HeldLease], at: float) -> None:
        self.calls.append((at, cast("list[Plan]", due)))

    @property
    def times(self) -> dict[Plan, float]:
        """When each lease was handed over."""
        handed = [(plan, at) for at, due in self.calls for plan in due]
        assert len(dict(handed)) == len(handed)  # each of them once
        return dict(handed)

    def add(self, plan: Plan) -> None:
        self.agenda.add(cast("HeldLease", plan), now())

    def put(self, plan: Plan, due: float) -> None:
        plan.due = due
        plan.check_at = math.inf
        self.agenda.put(cast("HeldLease", plan), now())

    def remove(self, plan: Plan) -> None:
        self.agenda.remove(cast("HeldLease", plan))

    @property
    def pages(self) -> int:
        return len(self.agenda._pages)


@pytest.fixture
async def attended() -> Attended:
    return Attended()


async def test_attention_comes_when_it_is_due(attended: Attended) -> None:
    """Whether that is at once, within a step, later, or beyond the horizon."""
    await asyncio.sleep(0.001)
    dues: dict[Plan, float] = {}
    for within in (0.0, STEP, 1.0, HORIZON, 5 * HORIZON):
        for _ in range(100):
            plan = Plan(600_000)
            attended.add(plan)
            dues[plan] = now() + random.uniform(0, within)
            attended.put(plan, dues[plan])
    await asyncio.sleep(5 * HORIZON + 1)
    times = attended.times
    assert times.keys() == dues.keys()
    assert all(due <= times[plan] <= due + LATE for plan, due in dues.items())
    assert not attended.pages


@pytest.mark.parametrize("earlier", [True, False])
async def test_a_lease_that_is_moved_gets_attention_only_then(
    attended: Attended, earlier: bool
) -> None:
    plan = Plan(60_000)
    attended.add(plan)
    first, second = (3.0, 2.0) if earlier else (2.0, 3.0)
    attended.put(plan, first)
    attended.put(plan, second)
    await asyncio.sleep(5)
    assert attended.times == {plan: pytest.approx(second, abs=LATE)}


@pytest.mark.parametrize("ttl", [50, 399, 1000, 60_000])
async def test_a_new_lease_gets_attention_in_time(attended: Attended, ttl: int) -> None:
    """That is for its check, or for its extension if that is due before."""
    await asyncio.sleep(random.random())
    plan = Plan(ttl)
    began = now()
    attended.add(plan)
    await asyncio.sleep(1)
    waited = attended.times[plan] - began
    assert waited <= CHECK_AFTER + LATE
    if ttl / 1000 < CHECK_AFTER:
        assert waited <= ttl / 2000 + LATE
    else:
        assert waited >= CHECK_AFTER - STEP
        assert plan.check_at <= began + waited


async def test_a_young_lease_is_extended_as_if_it_had_never_been_young(attended: Attended) -> None:
    """A third of its ttl counts from its acquisition, not from its check."""
    plan = Plan(1000)
    assert plan.deadline - now() > SURELY_LATER
    attended.add(plan)
    await asyncio.sleep(CHECK_AFTER + LATE)
    attended.calls.clear()
    plan.check_at = math.inf
    attended.agenda.put(cast("HeldLease", plan), now())
    assert 0.27 <= plan.due <= 1 / 3
    await asyncio.sleep(1)
    assert attended.times == {plan: pytest.approx(plan.due, abs=LATE)}


@pytest.mark.parametrize("spread", [0.0, 0.2], ids=["one page", "many pages"])
async def test_one_turn_of_the_loop_handles_a_limited_number(
    attended: Attended, spread: float
) -> None:
    plans = [Plan(60_000) for _ in range(3 * BATCH)]
    for plan in plans:
        attended.add(plan)
        attended.put(plan, 1 + random.uniform(0, spread))
    loop().stall(2)
    await asyncio.sleep(0.1)
    assert attended.times.keys() == set(plans)
    assert [len(due) for _, due in attended.calls] == [BATCH] * 3


async def test_leases_that_only_move_on_are_handled_in_the_same_numbers(
    attended: Attended, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(3 * BATCH):
        attended.add(plan := Plan(600_000))
        attended.put(plan, 2 * HORIZON)
    moved: list[int] = []
    put, take_due = Agenda.put, Agenda._take_due

    def putting(agenda: Agenda, hold: HeldLease, at: float) -> None:
        moved[-1] += 1
        put(agenda, hold, at)

    def taking(agenda: Agenda, at: float) -> list[HeldLease]:
        moved.append(0)
        return take_due(agenda, at)

    monkeypatch.setattr(Agenda, "put", putting)
    monkeypatch.setattr(Agenda, "_take_due", taking)
    await asyncio.sleep(HORIZON + 1)
    assert [number for number in moved if number] == [BATCH] * 3
    assert not attended.calls


async def test_later_pages_wait_for_earlier_ones(attended: Attended) -> None:
    """After a stall the leases whose deadlines passed first are handled first."""
    plans = [Plan(60_000) for _ in range(2 * BATCH)]
    for number, plan in enumerate(plans):
        attended.add(plan)
        attended.put(plan, 1 + (number * 7 % len(plans)) * STEP)
    loop().stall(60)
    await asyncio.sleep(1)
    handled = [math.floor(plan.due / STEP) for _, due in attended.calls for plan in due]
    assert handled == sorted(handled)
    assert len(handled) == len(plans)


@pytest.mark.full
async def test_nothing_stays_of_leases_that_ended(attended: Attended) -> None:
    """The memory does not grow with the leases, whatever their ttl."""
    for number in range(10_000):
        plan = Plan(3_600_000)
        attended.add(plan)
        if number % 2:
            attended.put(plan, now() + random.uniform(0, 3600))
        await asyncio.sleep(0.003)
        attended.remove(plan)
        assert not attended.agenda.leases()
        assert attended.pages <= HORIZON / STEP + 2
    await asyncio.sleep(HORIZON + 1)
    assert not attended.calls
    assert not attended.pages
    assert attended.agenda._timer is None


async def test_a_cleared_agenda_has_no_timer(attended: Attended) -> None:
    attended.add(Plan(1000))
    attended.agenda.clear()
    assert not attended.agenda.leases()
    await asyncio.sleep(2)
    assert not attended.calls
    attended.add(plan := Plan(1000))  # by an acquisition that was underway
    await asyncio.sleep(1)
    assert plan in attended.times


async def test_an_interrupt_ends_the_attention_to_no_lease(
    attended: Attended, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A signal handler may raise meanwhile, and the loop be run again."""
    plans = [Plan(600_000) for _ in range(3)]
    for plan, within in zip(plans, (1.0, 1.0, 2.0), strict=True):
        attended.add(plan)
        attended.put(plan, now() + within)
    await asyncio.sleep(0.9)

    def interrupted(due: list[HeldLease], _now: float) -> None:
        assert len(due) == 2
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(attended.agenda, "_attend", interrupted)
        loop().stall(0.2)
        with pytest.raises(KeyboardInterrupt):
            attended.agenda._tick()
    await asyncio.sleep(1)
    assert attended.times.keys() == {*plans}
