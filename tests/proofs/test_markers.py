"""
All interleavings of programs that find masters without markers; see `marker_model`.

    A  if a program that knows the masters from before was the first on one of them, no majority
       votes for a newcomer
    B  no master votes that has restarted while the set was in use
    L  from each state of a new set, a majority votes for each newcomer that lives in the end

With the present rules, by which one round trip founds a set, A is broken, and L if a program dies.
The page `how-to/restart-masters` says so. With two round trips both hold, as long as no connection
ends in the first one, and each part of those rules is needed for that. To be safe then, too, all
masters would have to answer: one that hangs would keep a new set from voting.
"""

from collections.abc import Callable
from dataclasses import replace

import pytest

from .marker_model import ONE_ROUND, RULES, MarkerRules, Markers, stuck
from .search import Searched, search

MOST = 100_000
"""The limit of searched states."""

pytestmark = [pytest.mark.promise("S1"), pytest.mark.timeout(600)]

WITNESSED = Markers(witnesses=1)
NEW = Markers(masters=2)


def test_one_round_trip_founds_a_set_that_another_program_knows() -> None:
    """A newcomer believes markers whose writer learns a moment later that the set is old."""
    found = search(replace(WITNESSED, rules=ONE_ROUND), MOST)
    assert found.broken.startswith("A"), str(found)
    assert found.path[-1] == "2 examines c", str(found)


def test_markers_of_a_program_that_has_died_are_believed_by_one_that_knows_better() -> None:
    """Its own markers were refused because of these, and it has seen that the set is old."""
    path = (
        *(f"{number} examines {x}" for number in "01" for x in "abc"),
        "0 begins to mark",
        "a executes the write of 0",
        "b executes the write of 0",
        "2 examines c",
        "1 begins to mark",
        *(f"{x} executes the write of 1" for x in "abc"),
        "0 dies",
        "a write that nobody waits for is lost",
        "1 has all replies",
        "1 looks at a",
    )
    for rules in (ONE_ROUND, RULES):
        model = replace(WITNESSED, deaths=1, rules=rules)
        state = model.first()
        for label in path:
            state = {x: after for x, after, _ in model.steps(state)}[label]
        broken = [why for x, _, why in model.steps(state) if x == "1 looks at b"]
        assert [why[:1] for why in broken] == (["A"] if rules is ONE_ROUND else [""])


@pytest.mark.full
def test_two_round_trips_do_not() -> None:
    found = search(replace(WITNESSED, newcomers=1, deaths=1, reached=3), MOST)
    assert not found.broken, str(found)
    assert found.complete
    assert found.states > 3_000


@pytest.mark.full
def test_two_round_trips_do_not_with_two_newcomers(searched: Searched) -> None:
    found = searched(WITNESSED, MOST)
    assert not found.broken, str(found)
    assert found.states > 10_000


WITHOUT_A_PART = {
    "founding markers are trusted": replace(WITNESSED, rules=replace(RULES, trusts=True)),
    "not all answers are awaited": replace(WITNESSED, rules=replace(RULES, waits=False)),
    "old masters are ignored": replace(WITNESSED, rules=replace(RULES, heeds=False)),
}


@pytest.mark.parametrize("name", WITHOUT_A_PART)
def test_a_part_without_which_a_set_is_founded_that_is_known(name: str) -> None:
    found = search(WITHOUT_A_PART[name], MOST)
    assert found.broken.startswith("A"), str(found)


@pytest.mark.parametrize(
    "rules",
    [
        pytest.param(ONE_ROUND, id="one round trip"),
        pytest.param(RULES, id="two", marks=pytest.mark.full),
    ],
)
def test_a_master_that_is_reached_after_its_restart_is_not_new(
    rules: MarkerRules, searched: Searched
) -> None:
    model = replace(NEW, restarts=1, checks="B", rules=rules)
    found = searched(model, MOST)
    assert not found.broken, str(found)
    assert found.complete
    former = search(replace(model, rules=replace(rules, forgives=True)), MOST)
    assert former.broken.startswith("B"), str(former)


@pytest.mark.full
@pytest.mark.parametrize("deaths", [0, pytest.param(1, marks=pytest.mark.full)])
def test_a_new_set_gets_votes(deaths: int, recorded: Callable[[int], None]) -> None:
    """Also if a program dies at any moment, with its writes underway."""
    states, state = stuck(replace(NEW, deaths=deaths), MOST)
    assert state is None
    assert states > 3_000
    recorded(states)


@pytest.mark.spread(0)
@pytest.mark.parametrize(
    "rules",
    [ONE_ROUND, replace(RULES, completes=False)],
    ids=["one round trip", "nobody goes on for another"],
)
def test_a_program_that_dies_keeps_a_new_set_from_votes(rules: MarkerRules) -> None:
    _, state = stuck(replace(NEW, deaths=1, rules=rules), MOST)
    assert state is not None


def test_programs_that_count_only_their_own_markers_wait_for_each_other() -> None:
    rules = replace(RULES, shares=False, completes=False)
    _, state = stuck(replace(NEW, rules=rules), MOST)
    assert state is not None
