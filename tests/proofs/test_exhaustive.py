"""
All interleavings of a few acquisitions: no property is broken, and each defect is found.

`model` and `fair_model` name what they run and what they model. These tests set how far the
search goes: far enough to find each defect that the rules prevent.
"""

from collections.abc import Callable
from typing import Any

import pytest

from . import rules
from .fair_model import Waiting
from .model import PROPERTIES, Fencing
from .rules import SHIPPED, Rules
from .search import Searched, search

MOST = 200_000
"""The limit of searched states, which take some seconds; most settings have fewer."""

pytestmark = [pytest.mark.promise("S7"), pytest.mark.timeout(600)]

# The masters' counters and the attempts' proposals, and the least number of states.
SETTINGS: dict[str, tuple[Fencing, int]] = {
    "equal counters": (Fencing((1, 1, 1), (1, 1)), 400),
    "counters that differ": (Fencing((1, 2, 3), (2, 2)), 3_000),
    "clocks that differ": (Fencing((1, 2, 3), (4, 2)), 1_500),
    "three attempts": (Fencing((1, 1, 1), (1, 1, 1)), 180_000),
    "three attempts, clocks that differ": (Fencing((1, 1, 1), (4, 4, 3)), 190_000),
    "duplicates": (Fencing((1, 1, 1), (1, 1), copies=(2, 1)), 35_000),
    "other clients": (Fencing((1, 1, 1), (1, 1), others=2), 20_000),
    "two extensions": (Fencing((1, 1, 1), (1, 1), extensions=2), 12_000),
    "extensions, duplicates": (Fencing((1, 1, 1), (1, 1), copies=(2, 1), extensions=1), 170_000),
    "a master loses its keys": (Fencing((5, 5, 5), (1, 1), forgetful=1), 1_500),
    "checks": (Fencing((1, 1, 1), (1, 1), extensions=1, checks=True), 30_000),
    "checks, counters that differ": (
        Fencing((1, 2, 3), (2, 2), extensions=1, checks=True),
        90_000,
    ),
    "checks, other clients": (
        Fencing((1, 1, 1), (1, 1), extensions=1, checks=True, others=1),
        MOST,
    ),
    "checks, a master loses its keys": (
        Fencing((5, 5, 5), (1, 1), extensions=1, checks=True, forgetful=1),
        150_000,
    ),
    "checks, duplicates": (
        Fencing((1, 1, 1), (1, 1), extensions=1, checks=True, copies=(2, 1)),
        MOST,
    ),
    "checks, lifts": (Fencing((1, 1, 1), (1, 1), extensions=1, checks=True, lifts=1), MOST),
    "lifts": (Fencing((1, 1, 1), (1, 1), extensions=1, lifts=2), 15_000),
    "lifts, and an extension more": (Fencing((1, 1, 1), (1, 1), extensions=2, lifts=1), MOST),
    "lifts, other clients": (Fencing((1, 1, 1), (1, 1), extensions=1, lifts=1, others=1), 100_000),
    "lifts, duplicates": (
        Fencing((1, 1, 1), (1, 1), extensions=1, lifts=1, copies=(2, 1)),
        MOST,
    ),
    "lifts, counters that differ": (Fencing((1, 2, 3), (2, 2), extensions=1, lifts=1), 40_000),
    "lifts, clocks that differ": (Fencing((1, 2, 3), (4, 2), extensions=1, lifts=1), 30_000),
    "lifts, a master loses its keys": (
        Fencing((5, 5, 5), (1, 1), forgetful=1, extensions=1, lifts=1),
        40_000,
    ),
    "lifts, five masters": (Fencing((1, 1, 1, 1, 1), (1, 1), extensions=1, lifts=1), MOST),
    "five masters": (Fencing((1, 1, 1, 2, 2), (1, 1)), 80_000),
    "five masters, clocks that differ": (Fencing((1, 1, 2, 2, 3), (4, 2)), 50_000),
    "five masters, extensions": (Fencing((1, 1, 1, 1, 1), (1, 1), extensions=1), 50_000),
    "one of five masters loses its keys": (Fencing((5, 5, 5, 5, 1), (1, 1), forgetful=1), MOST),
    "two of five masters lose their keys": (Fencing((5, 5, 5, 5, 5), (1, 1), forgetful=2), 40_000),
}


LONG = 8_000
"""Settings with more states belong to the full run."""


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.full] if least > LONG else [])
        for name, (_, least) in SETTINGS.items()
    ],
)
def test_tokens_rise_in_all_interleavings(searched: Searched, name: str) -> None:
    """Search models in which locks may end at any moment, so that several leases are held."""
    model, least = SETTINGS[name]
    found = searched(model, MOST)
    assert not found.broken, str(found)
    assert found.states >= least
    assert found.complete or found.states >= MOST


EXCLUDING = {
    "three masters": ((1, 1, 1), (1, 1, 1), 1, 40_000),
    "three masters, counters that differ": ((1, 2, 3), (1, 1), 1, 1_000),
    "five masters": ((1, 1, 1, 1, 1), (1, 1), 2, 10_000),
}


@pytest.mark.promise("S1")
def test_leases_exclude_each_other_where_locks_are_restored(searched: Searched) -> None:
    """Search a model in which failed attempts release masters whose counters they raised."""
    model = Fencing((1, 1, 1), (1, 1, 1), extensions=1, lifts=1, checks=True, until_released=True)
    found = searched(model, MOST)
    assert not found.broken, str(found)
    assert found.complete
    assert found.states >= 20_000


@pytest.mark.promise("S1")
@pytest.mark.parametrize("name", EXCLUDING)
def test_leases_exclude_each_other_where_locks_end_by_release(
    searched: Searched, name: str
) -> None:
    """Search models in which locks end only by release; the tokens must rise as well."""
    counters, proposals, forgetful, least = EXCLUDING[name]
    model = Fencing(counters, proposals, forgetful=forgetful, until_released=True)
    found = searched(model, MOST)
    assert not found.broken, str(found)
    assert found.complete
    assert found.states >= least


Counters = tuple[int, ...]
Setting = Callable[[Rules, tuple[str, ...]], Fencing]


def setting(counters: Counters, proposals: Counters, **options: Any) -> Setting:
    """Return a function that makes a model from the rules and the properties to check."""
    return lambda rules, looked_for: Fencing(
        counters, proposals, rules, looked_for=looked_for, **options
    )


THREE = setting((1, 1, 1), (1, 1))
EXTENDED = setting((1, 1, 1), (1, 1), extensions=1)
FORGOTTEN = setting((5, 5, 5), (1, 1), forgetful=1)
LIFTED = setting((1, 1, 1), (1, 1), extensions=1, lifts=1)
RESTORED = setting((5, 5, 5), (1, 1), forgetful=1, extensions=1, checks=True)
RELEASED = setting((1, 1, 1), (1, 1, 1), until_released=True)
BOTH = setting((1, 1, 1), (1, 1), forgetful=1, until_released=True)

DEFECTS = {
    "inexact acks": (rules.INEXACT_ACKS, THREE, "P2"),
    "at least": (rules.AT_LEAST, THREE, "P1"),
    "value-only extension": (rules.VALUE_ONLY, EXTENDED, "P4"),
    "lifts any counter": (rules.LIFTS_ANY, LIFTED, "P4"),
    "lifts one master": (rules.LIFTS_ONE, LIFTED, "P4"),
    "no quarantine, tokens": (rules.NO_QUARANTINE, FORGOTTEN, "P1"),
    "no quarantine, the same token": (rules.NO_QUARANTINE, FORGOTTEN, "P2"),
    "no quarantine, leases": (rules.NO_QUARANTINE, BOTH, "P3"),
    "a quarantined master extends": (rules.COUNTS_QUARANTINED, RESTORED, "P4"),
    "reused token, tokens": (rules.REUSED_TOKEN, THREE, "P1"),
    "reused token, leases": (rules.REUSED_TOKEN, RELEASED, "P3"),
}
"""The defect, a setting that shows it, and the property that is broken."""


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(
            name, marks=[pytest.mark.full] if name == "a quarantined master extends" else []
        )
        for name in DEFECTS
    ],
)
def test_a_defect_is_found_and_nothing_without_it(
    name: str, record_property: Callable[[str, object], None]
) -> None:
    wrong, make, breaks = DEFECTS[name]
    found = search(make(wrong, (breaks,)), MOST)
    record_property("path", str(found))
    assert found.broken.startswith(breaks), f"{name}: {found}"
    assert found.path
    # The largest of these settings has a few more than `MOST` states.
    without = search(make(SHIPPED, PROPERTIES), 2 * MOST)
    assert without.complete
    assert not without.broken, str(without)


@pytest.mark.promise("S1")
@pytest.mark.parametrize(("requests", "most"), [((1, 1), MOST), ((2, 1), 80_000)])
@pytest.mark.full
def test_one_of_two_waiters_holds_the_lock_at_a_time(
    searched: Searched, requests: tuple[int, int], most: int
) -> None:
    found = searched(Waiting(3, requests=requests), most)
    assert not found.broken, str(found)
    assert found.states >= 50_000


@pytest.mark.promise("S1")
@pytest.mark.full
def test_a_reply_that_is_counted_after_a_yield_is_found() -> None:
    found = search(Waiting(3, rules.COUNTED_AFTER_YIELD), MOST)
    assert found.broken.startswith("P3"), str(found)
    assert any("gives back its grants" in step for step in found.path)


@pytest.mark.promise("S1")
@pytest.mark.parametrize("leaves", [False, True])
@pytest.mark.full
def test_one_waiter_holds_the_lock_though_grants_age_or_one_enters_again(
    searched: Searched, *, leaves: bool
) -> None:
    found = searched(Waiting(3, ages=not leaves, leaves=leaves), 80_000)
    assert not found.broken, str(found)
    assert found.states >= 50_000


@pytest.mark.promise("S1")
@pytest.mark.full
def test_a_reply_that_is_counted_after_leaving_is_found() -> None:
    found = search(Waiting(3, rules.COUNTED_AFTER_LEAVING, leaves=True, yields=0), MOST)
    assert found.broken.startswith("P3"), str(found)
    assert any("leaves the queues" in step for step in found.path)
