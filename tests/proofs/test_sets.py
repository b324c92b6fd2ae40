"""
All interleavings of programs with different sets of masters; see `sets_model`.

    A  two leases of one key are never valid together if the programs had met when each was granted
    B  a program that came first, and reaches a majority, gets grants
    C  programs whose sets differ by one master are not restricted
    D  programs with the same servers under other names are not refused
    E  a program that never reaches a majority of its masters takes no vote from another

Each variant of the rules that was tried, or was shipped before, breaks one of them.
"""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from redlock_aio._rules import membership
from redlock_aio._rules.membership import Addresses, Known, Line, Place, Restriction
from redlock_aio._rules.quorum import majority

from .search import Searched, search
from .sets_model import ALWAYS, SHIPPED, SetRules, Sets, hopeless, settle

MOST = 120_000
"""The limit of searched states."""

LONG = 2_500
"""Settings with more states belong to the full run."""

pytestmark = [pytest.mark.promise("S1"), pytest.mark.timeout(600)]

MOVES = {"c": "cC"}
"""A name that leads to an old server, which lives on, or to a new one."""

ALIASES = {"A": "a", "B": "b", "C": "c"}

SETTLED: dict[tuple[str, ...], tuple[bool, bool]] = {
    # the sets, whether one program must be refused, and whether both may be
    ("abc", "abd"): (False, False),
    ("abcd", "abef"): (False, False),
    ("abc", "abcd"): (False, False),
    ("abc", "abcde"): (True, False),
    ("abc", "a"): (True, False),
    ("abcde", "abfgh"): (True, True),
}

SETTINGS: dict[str, tuple[Sets, int]] = {
    "abc, abd": (Sets(("abc", "abd")), 1_500),
    "abc, abd, lost votes": (Sets(("abc", "abd"), votes=True), 10_000),
    "abc, abd, a restart": (Sets(("abc", "abd"), restarts=1), 45_000),
    "abc, abd, a cut": (Sets(("abc", "abd"), cuts=1), 8_000),
    "abc, a, lost votes": (
        Sets(("abc", "a"), votes=True, cuts=1, restarts=1),
        4_000,
    ),
    "abcd, abef": (Sets(("abcd", "abef")), 1_500),
    "abc, abcde": (Sets(("abc", "abcde")), 20_000),
    "a cycle": (Sets(("xyp", "yzq", "zxw")), 110_000),
    "abc, abc and abd": (Sets(("abc", "abc", "abd"), senior=0), 8),
    "abc, abc and abd, a cut": (Sets(("abc", "abc", "abd"), senior=0, cuts=1), 350),
    "a name that moves": (Sets(("abc", "abc"), leads=MOVES, senior=0), 5),
    "a name that moves, lost votes": (
        Sets(("abc", "abc"), leads=MOVES, senior=0, votes=True),
        70,
    ),
    "a name that moves, a cut": (Sets(("abc", "abc"), leads=MOVES, senior=0, cuts=1), 12_000),
    "a name that moves, a restart": (
        Sets(("abc", "abc"), leads=MOVES, senior=0, away=((0, "b"),), restarts=1),
        100_000,
    ),
    "a name that moves, from the start": (Sets(("abc", "abc"), leads=MOVES), 100_000),
    "a name that moves for abc and acd": (
        Sets(("abc", "acd"), leads=MOVES, senior=0, cuts=1),
        20_000,
    ),
    "a name that moves, two cuts": (
        Sets(("abc", "abc"), leads=MOVES, senior=0, away=((0, "b"),), cuts=2),
        100_000,
    ),
    "a name that moves, and another name": (
        Sets(("abc", "aXd"), leads={"X": "c", **MOVES}, senior=0, cuts=1),
        1_000,
    ),
    "a name that moves, and another name, no cut": (
        Sets(("abc", "aXd"), leads={"X": "c", **MOVES}),
        10_000,
    ),
    "B: abc, then abd": (
        Sets(("abc", "abd"), senior=0, restarts=1, leases=False, checks="B"),
        60,
    ),
    "B: abc, then abcde": (
        Sets(("abc", "abcde"), senior=0, restarts=1, leases=False, checks="B"),
        80,
    ),
    "B: a name moves": (
        Sets(("abc", "abc"), senior=0, leads=MOVES, restarts=1, leases=False, checks="B"),
        3_000,
    ),
    "C: abc, abcd": (Sets(("abc", "abcd"), cuts=1, leases=False, checks="C"), 40_000),
    "C: ab, abc": (
        Sets(("ab", "abc"), cuts=1, restarts=1, told=True, leases=False, checks="C"),
        20_000,
    ),
    "E: axy, abc; x and y lead nowhere": (
        Sets(("axy", "abc"), dead="xy", cuts=1, restarts=1, checks="AE"),
        350,
    ),
    "E: abxyz, abc; x, y and z lead nowhere": (
        Sets(("abxyz", "abc"), dead="xyz", cuts=1, restarts=1, leases=False, checks="E"),
        1_100,
    ),
    "D: ab, AB": (Sets(("ab", "AB"), leads=ALIASES, leases=False, checks="CD"), 500),
}
"""The programs, and the least number of states."""


def _marks(least: int) -> list[pytest.MarkDecorator]:
    return [pytest.mark.full] if least > LONG else []


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=_marks(least)) for name, (_, least) in SETTINGS.items()],
)
def test_no_property_is_broken(searched: Searched, name: str) -> None:
    model, least = SETTINGS[name]
    found = searched(model, MOST)
    assert not found.broken, str(found)
    assert found.states >= least
    assert found.complete or found.states >= MOST


@pytest.mark.parametrize(
    "sets",
    [pytest.param(s, marks=[pytest.mark.full] if s == ("abc", "abcd") else []) for s in SETTLED],
)
def test_programs_that_come_to_rest_get_grants(sets: tuple[str, ...]) -> None:
    """Only sets that share too few masters are refused, and then a grant comes after a while."""
    refuses, refuses_both = SETTLED[sets]
    model = Sets(sets, told=True, leases=False)
    ends = settle(model)
    assert ends
    for winners, refused in ends:
        assert winners or (refuses_both and len(refused) == len(sets)), ends
        assert set(winners) | set(refused) == {0, 1}, "who reaches all masters votes, or is refused"
        assert refuses or not refused, ends
    if refuses_both:
        assert hopeless(model) == 0


# Variants of the rules.


def _sure(ours: Sequence[Place], theirs: Addresses, known: Known) -> list[bool]:
    return [membership.is_surely_in(place, theirs, known, until=ALWAYS) for place in ours]


def _unknown_is_same(ours: Sequence[Place], known: Known) -> Restriction:
    """The former rule: who conflicts is refused, and a server that is not known may be any."""
    names = {place.address for place in ours}
    for theirs in sorted(known.older):
        sure = _sure(ours, theirs, known)
        same = sure.count(True)
        unknown = sum(
            not is_sure and not place.run_id for is_sure, place in zip(sure, ours, strict=True)
        ) + sum(
            name not in names and all(place.address != name for place in known.servers)
            for name in theirs
        )
        pairs = same + min(len(ours) - same, len(theirs) - same, unknown)
        if len(ours) + len(theirs) - 2 * pairs > 1:
            return Restriction(refused_by=theirs)
    return Restriction()


def _all_sets(known: Known, ours: Addresses, lines: Sequence[Line], now: float) -> Known:
    """Learn of all other sets, also of those that came later."""
    after = membership.learn(known, ours, lines, now)
    others = {x.names: x.until for x in lines if not x.run_id and x.names != ours}
    return after._replace(older={**after.older, **others})


def _only_matched(ours: Sequence[Place], known: Known) -> Restriction:
    """Both programs count only the masters that both have, if these are enough for each."""
    strangers: dict[int, Addresses] = {}
    for theirs in sorted(known.older):
        sure = _sure(ours, theirs, known)
        if len(ours) + len(theirs) - 2 * sum(sure) <= 1:
            continue
        if max(majority(len(ours)), majority(len(theirs))) > sum(sure):
            return Restriction(refused_by=theirs)
        strangers |= {number: theirs for number, is_sure in enumerate(sure) if not is_sure}
    return Restriction(strangers=strangers)


def _unknown_refuses(ours: Sequence[Place], known: Known) -> Restriction:
    for theirs in sorted(known.older):
        sure = _sure(ours, theirs, known)
        needed = membership.meeting(len(theirs))
        if sure.count(True) < needed and majority(len(ours)) - sure.count(False) < needed:
            return Restriction(refused_by=theirs)
    return membership.restriction(ours, known, until=ALWAYS)


def _address_is_proof(ours: Sequence[Place], known: Known) -> Restriction:
    return membership.restriction(ours, known._replace(first={}, before={}), until=ALWAYS)


def _first_only(known: Known, ours: Addresses, lines: Sequence[Line], now: float) -> Known:
    """Learn which server stood first at an address, and not which stood before which."""
    return membership.learn(known, ours, lines, now)._replace(before={})


VARIANTS: dict[str, tuple[SetRules, Sets, str]] = {
    "unknown counts as the same": (
        replace(SHIPPED, restrict=_unknown_is_same, waits=False),
        Sets(
            ("xyp", "yzq", "zxw"),
            follows=True,
            senior=0,
            away=((0, "y"), (1, "y"), (1, "z"), (2, "z")),
        ),
        "A",
    ),
    "both count common masters only": (  # without `begins` in a third of the states
        replace(SHIPPED, learn=_all_sets, restrict=_only_matched, begins=False),
        Sets(("abcde", "abc")),
        "A",
    ),
    "the newest report replaces the older": (
        replace(SHIPPED, remembers_older=False),
        Sets(("abc", "abd"), restarts=1),
        "A",
    ),
    "nobody waits for those that came first": (
        replace(SHIPPED, waits=False),
        Sets(("abc", "abd"), senior=0, restarts=1, leases=False, checks="B"),
        "B",
    ),
    "unknown servers refuse": (
        replace(SHIPPED, restrict=_unknown_refuses),
        Sets(("abc", "ABC"), leads=ALIASES, leases=False, checks="D"),
        "D",
    ),
    "an equal address is proof": (
        replace(SHIPPED, restrict=_address_is_proof),
        Sets(("abc", "abc"), leads=MOVES, senior=0),
        "A",
    ),
    "an equal address is proof, from the start": (
        replace(SHIPPED, restrict=_address_is_proof),
        Sets(("abc", "abc"), leads=MOVES, senior=0, away=((0, "b"), (1, "c"))),
        "A",
    ),
    "the first server of an address is forgotten": (
        replace(SHIPPED, remembers_first=False),
        Sets(("abc", "abc"), leads=MOVES, senior=0, away=((0, "b"),), restarts=1),
        "A",
    ),
    "nobody tells that a connection has ended": (
        replace(SHIPPED, tells=False),
        Sets(("abc", "abc"), leads=MOVES, senior=0, cuts=1),
        "A",
    ),
    "a server that was left is not written where it is reached later": (  # as above
        replace(SHIPPED, again=False, begins=False),
        Sets(("abc", "abc"), leads=MOVES, senior=0, away=((0, "b"),), cuts=2),
        "A",
    ),
    "only programs of the older set write its servers": (
        replace(SHIPPED, others=lambda *_: set()),
        Sets(("abc", "aXd"), leads={"X": "c", **MOVES}, senior=0, cuts=1),
        "A",
    ),
    "a server that moved is written first": (
        replace(SHIPPED, behind=False),
        Sets(("abc", "abc"), senior=0, leads=MOVES, restarts=1, leases=False, checks="B"),
        "B",
    ),
    "a program writes on the first master that it reaches": (
        replace(SHIPPED, begins=False),
        Sets(("axy", "abc"), dead="xy", leases=False, checks="E"),
        "E",
    ),
    "a program with the wrong names begins first, and votes with one master": (
        replace(SHIPPED, begins=False),
        Sets(("abxyz", "abc"), dead="xyz", leases=False, checks="E"),
        "E",
    ),
}
"""The rules, programs that show the defect, and the property that is broken."""


@pytest.mark.spread(0)
@pytest.mark.parametrize("name", VARIANTS)
def test_a_variant_that_breaks_a_property_is_found(name: str) -> None:
    rules, model, breaks = VARIANTS[name]
    found = search(replace(model, rules=rules), 20_000)
    assert found.broken.startswith(breaks), f"{name}: {found}"
    shipped = search(model, min(2 * found.states, 2_000))
    assert not shipped.broken, str(shipped)


def test_a_restarted_server_stays_behind_one_that_was_second() -> None:
    """The search finds this path too, among more states than a variant is given."""
    path = (
        "c restarts empty",
        "0 (abc) connects to c by c, writes",
        "0 (abc): a writes again",
        "0 (abc): c gets the reply",
        "the line c c0 runs out on a",
        "1 (abc) gets a GRANT by bC",
        "the line c c0 runs out on c",
        "the quarantine of c is over",
    )
    last = "0 (abc) gets a GRANT by ac"
    shipped, _ = SETTINGS["a name that moves, a restart"]
    for rules, is_granted in ((SHIPPED, False), (replace(SHIPPED, learn=_first_only), True)):
        model = replace(shipped, rules=rules)
        state = model.first()
        for label in path:
            state = {x: after for x, after, _ in model.steps(state)}[label]
        broken = {x: why for x, _, why in model.steps(state)}
        assert (last in broken) is is_granted
        assert not is_granted or broken[last].startswith("A")
