"""The conflicts between sets of masters, and the refusal of one of two such sets."""

import itertools
import math
from collections.abc import Iterator

import pytest
from hypothesis import given, strategies as st

from redlock_aio._protocol.declaration import read
from redlock_aio._rules import membership
from redlock_aio._rules.membership import (
    MOST_SERVERS,
    Declared,
    Masters,
    Place,
    age_of,
    conflicts,
    is_equal,
    older,
    parse,
    write,
)
from redlock_aio._rules.quorum import majority

pytestmark = [pytest.mark.promise("S1")]


def known(letters: str, *, named: str = "") -> Masters:
    """Return masters with these run_ids, whose addresses begin with *named*."""
    return tuple(Place(named + letter, (f"run-{letter}",)) for letter in letters)


def unknown(letters: str) -> Masters:
    return tuple(Place(letter) for letter in letters)


def declared(masters: Masters, age: int) -> Declared:
    return Declared(write(masters), masters, age)


ABC, ABD, IP_ABC = known("abc"), known("abd"), known("abc", named="ip-")


# Conflicts.


@pytest.mark.parametrize(
    ("theirs", "expected"),
    [
        (known("abc"), False),
        (known("ab"), False),
        (known("abcd"), False),
        (IP_ABC, False),
        (known("ab") + unknown("x"), False),
        (known("a") + unknown("xy"), False),
        (unknown("xyz"), False),
        (unknown("wxyz"), False),
        ((Place("a", ("another",)), *known("bc")), False),
        ((Place("x", ("run-a", "run-a2")), *known("bc", named="ip-")), False),
        (known("abd"), True),
        (known("a"), True),
        (known("abcde"), True),
        (known("ade"), True),
        (known("def"), True),
        (known("ad") + unknown("x"), True),
        (known("ab") + unknown("xyz"), True),
        ((Place("x", ("another",)), *known("bc")), True),
    ],
)
def test_sets_whose_majorities_may_miss_each_other_conflict(
    theirs: Masters, *, expected: bool
) -> None:
    assert conflicts(ABC, theirs) is expected
    assert conflicts(theirs, ABC) is expected


def settings_of(size: int) -> Iterator[tuple[Masters, Masters]]:
    """
    Yield two sets of up to *size* masters each, in every way that differs.

    Each master is in one of the sets or in both, and each program knows its server or does
    not; two programs name a common master by the same address or by different ones.
    """
    ways = [way for way in itertools.product(["", "known", "unknown"], repeat=2) if any(way)]
    for total in range(1, 2 * size + 1):
        for kinds in itertools.combinations_with_replacement(ways, total):
            sizes = [sum(bool(kind[side]) for kind in kinds) for side in (0, 1)]
            if min(sizes) >= 1 and max(sizes) <= size:
                for named in ("", "ip-"):
                    yield _places(kinds, 0, ""), _places(kinds, 1, named)


def _places(kinds: tuple[tuple[str, ...], ...], side: int, named: str) -> Masters:
    return tuple(
        Place(f"{named}{number}", (f"run-{number}",) if kind[side] == "known" else ())
        for number, kind in enumerate(kinds)
        if kind[side]
    )


def may_miss(ours: Masters, theirs: Masters) -> bool:
    """Return whether there are two majorities of known servers without a common server."""
    x, y = ({place.run_ids[0] for place in masters if place.run_ids} for masters in (ours, theirs))
    needed = majority(len(theirs))
    return any(
        len(y.difference(one)) >= needed for one in itertools.combinations(x, majority(len(ours)))
    )


def test_majorities_overlap_without_a_conflict() -> None:
    """Tried are sets of up to five masters, with servers that a program has not reached."""
    missed = checked = 0
    for ours, theirs in settings_of(5):
        checked += 1
        if conflicts(ours, theirs):
            missed += may_miss(ours, theirs)
        else:
            assert not may_miss(ours, theirs), (ours, theirs)
    assert checked > 6_000
    assert missed > 300, "and these would have been two holders"


def test_a_set_never_conflicts_with_its_own_past_and_future() -> None:
    """Servers may be found, lost and found again at the same addresses."""
    for before, after in itertools.product(itertools.product(["", "1", "2"], repeat=3), repeat=2):
        one, other = (
            tuple(
                Place(letter, (letter + run,) if run else ())
                for letter, run in zip("abc", runs, strict=True)
            )
            for runs in (before, after)
        )
        assert not conflicts(one, other)


def test_a_few_servers_are_remembered_at_each_place() -> None:
    place = Place("a")
    for number in range(9):
        place = place.found(str(number)).found(str(number))
    assert place.run_ids == tuple("5678")
    assert place.found("6").run_ids == tuple("5786")
    assert len(place.run_ids) == MOST_SERVERS


def test_only_sets_of_known_servers_are_equal() -> None:
    assert is_equal(ABC, known("cab", named="ip-"))
    for other in (known("ab") + unknown("c"), known("abcd"), ABD):
        assert not is_equal(ABC, other)
        assert not is_equal(other, ABC)


# Ages.


def test_a_set_has_the_age_of_its_equals_on_any_master() -> None:
    found = [[declared(ABC, 5), declared(IP_ABC, 7)], [declared(ABD, 9)]]
    assert age_of(ABC, found, 4) == age_of(ABC, found, 7) == 7
    assert age_of(ABC, found, 8) == 0, "it is younger than what counts"
    assert age_of(known("ab") + unknown("c"), found, 4) == 0
    assert age_of(known("ab"), found, 4) == 0


YOUNGER = [[declared(ABC, 5), declared(ABD, 4)]]
MIXED = [[declared(ABC, 4), declared(ABD, 5)], [declared(ABC, 5), declared(ABD, 4)]]
FORGOTTEN = [[declared(ABD, 3)], [declared(ABC, 50)]]
BEFORE = known("ab") + unknown("d")
"""A set that gets into conflict when its last server becomes known."""


@pytest.mark.parametrize(
    ("ours", "found", "expected"),
    [
        (ABC, YOUNGER, None),
        (ABD, YOUNGER, declared(ABC, 5)),
        (ABC, [[declared(known("abcd"), 9)], [declared(known("ab"), 9)]], None),
        # Ages on one master decide: those on two masters are not comparable.
        (ABC, MIXED, declared(ABD, 5)),
        (ABD, MIXED, declared(ABC, 5)),
        # A set that is not declared yet is younger than all others.
        (ABC, [[declared(ABD, 0)]], declared(ABD, 0)),
        # An old set stays the older one on masters that have lost it.
        (ABC, FORGOTTEN, None),
        (IP_ABC, FORGOTTEN, None),
        (ABD, FORGOTTEN, declared(ABC, 50)),
        # The set was in use for longer, but other programs do not know its server yet.
        (BEFORE, [[declared(BEFORE, 9_000), declared(ABC, 10)]], None),
        (ABD, [[declared(BEFORE, 9_000), declared(ABC, 10)]], declared(ABC, 10)),
    ],
)
def test_the_younger_of_two_sets_in_conflict_is_refused(
    ours: Masters, found: list[list[Declared]], expected: Declared | None
) -> None:
    assert older(ours, found, 9) == expected


def test_a_third_programs_set_proves_that_two_servers_were_one_master() -> None:
    """The third program saw the master before and after a restart; others know one address each."""
    new = (*known("ab"), Place("c", ("c2",)))
    third = declared((*known("ab"), Place("c", ("run-c", "c2"))), 50)
    late = declared(IP_ABC, 50)
    assert conflicts(new, IP_ABC)
    assert older(new, [[late]], 9) is not None
    assert older(new, [[late, third]], 9) is None
    assert older(new, [[late], [third]], 9) is None
    assert older(ABD, [[late, third]], 9) is not None


@pytest.mark.parametrize(
    ("started", "conflict"),
    [(math.inf, False), (100.5, False), (99.5, False), (98.9, True), (-math.inf, True)],
)
def test_a_server_that_started_after_a_declaration_may_be_any_master_of_it(
    started: float, *, conflict: bool
) -> None:
    """The server may have restarted under another address after those programs had ended."""
    new = (*known("ab"), Place("c", ("c2",), started))
    assert conflicts(new, IP_ABC, 100.0) is conflict
    assert (older(new, [[declared(IP_ABC, 50)._replace(at=100.0)]], 9) is not None) is conflict
    assert conflicts((Place("x", ("1",), 101.0), Place("y", ("2",))), known("abc"), 100.0)


# The text of a set.


places = st.builds(
    Place,
    st.text(min_size=1, max_size=10),
    st.lists(st.text("0123456789abcdef"), max_size=4).map(tuple),
    started=st.just(-math.inf),
)
sets = st.lists(places, min_size=1, max_size=5).map(tuple)


@given(ours=sets, theirs=sets)
def test_any_sets_are_parsed_as_written_and_compared_alike_from_both_sides(
    ours: Masters, theirs: Masters
) -> None:
    text = write(ours)
    assert b"\n" not in text
    back = parse(text)
    assert back is not None
    assert sorted(back) == sorted(ours)
    assert write(back) == text
    assert write(tuple(reversed(ours))) == text
    assert conflicts(ours, theirs) == conflicts(theirs, ours)
    assert is_equal(ours, theirs) == is_equal(theirs, ours)
    assert not (is_equal(ours, theirs) and conflicts(ours, theirs))
    assert not conflicts(ours, ours)


@pytest.mark.parametrize(
    "text",
    [b"", b"{}", b"[]", b"[[]]", b"[[1]]", b'["a"]', b'[["a",null]]', b"\xff", b"[" * 99_999, 5],
    ids=range(10),
)
def test_a_malformed_set_is_ignored(text: object) -> None:
    assert parse(text) is None
    assert read([text, [5, 0], write(ABC), [6, 500]], 2.0) == [declared(ABC, 6)._replace(at=1.5)]


@pytest.mark.parametrize("reply", [None, 5, b"OK", [b"a"], Exception("NOSCRIPT")])
def test_a_malformed_reply_is_none(reply: object) -> None:
    assert read(reply, 0.0) is None


@pytest.mark.parametrize("times", [b"5", True, [5], [5, 5, 5], [5, b"5"], [True, 5]])
def test_a_set_with_a_malformed_age_is_ignored(times: object) -> None:
    assert read([write(ABC), times], 0.0) == []


def test_a_refusal_names_both_sets_on_one_line() -> None:
    text = membership.describe(ABC, known("ab\n"), lasts=61.6)
    assert text == (
        "programs with the masters ?, a, b use these locks; this program names a, b, c, and gets no"
        " votes until 62 s after the last of them ended"
    )
    assert membership.is_refusal(text)
    assert len(membership.describe(ABC, known("x" * 50, named="y" * 60), lasts=1)) < 500
