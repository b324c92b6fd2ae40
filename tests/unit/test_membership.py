"""Which sets of masters exclude each other, and which of two in conflict is refused."""

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
    """Return the masters with these run_ids, where the address begins with *named*."""
    return tuple(Place(named + letter, (f"run-{letter}",)) for letter in letters)


def unknown(letters: str) -> Masters:
    return tuple(Place(letter) for letter in letters)


def declared(masters: Masters, age: int) -> Declared:
    return Declared(write(masters), masters, age)


ABC, ABD = known("abc"), known("abd")


@pytest.mark.parametrize(
    "theirs",
    [
        known("abc"),
        known("ab"),
        known("abcd"),
        known("abc", named="10.0.0."),
        known("ab") + unknown("x"),
        known("a") + unknown("xy"),
        unknown("xyz"),
        unknown("wxyz"),
        (Place("a", ("another",)), *known("bc")),
        (Place("x", ("run-a", "run-a2")), *known("bc", named="ip-")),
    ],
)
def test_these_exclude_each_other(theirs: Masters) -> None:
    assert not conflicts(ABC, theirs)
    assert not conflicts(theirs, ABC)


@pytest.mark.parametrize(
    "theirs",
    [
        known("abd"),
        known("a"),
        known("abcde"),
        known("ade"),
        known("def"),
        known("ad") + unknown("x"),
        known("ab") + unknown("xyz"),
        (Place("x", ("another",)), *known("bc")),
    ],
)
def test_these_do_not(theirs: Masters) -> None:
    assert conflicts(ABC, theirs)
    assert conflicts(theirs, ABC)


def settings_of(size: int) -> Iterator[tuple[Masters, Masters]]:
    """
    Yield two sets of up to *size* masters each, in every way that differs.

    Each of the masters is in one of the sets or in both, and each program knows its server
    or does not; where both name a master, they do it by one address or by two.
    """
    ways = [way for way in itertools.product(["", "known", "unknown"], repeat=2) if any(way)]
    for total in range(1, 2 * size + 1):
        for kinds in itertools.combinations_with_replacement(ways, total):
            if max(sum(bool(kind[i]) for kind in kinds) for i in (0, 1)) > size:
                continue
            if min(sum(bool(kind[i]) for kind in kinds) for i in (0, 1)) < 1:
                continue
            for named in ("", "ip-"):
                yield (
                    _places(kinds, 0, ""),
                    _places(kinds, 1, named),
                )


def _places(kinds: tuple[tuple[str, ...], ...], side: int, named: str) -> Masters:
    return tuple(
        Place(f"{named}{number}", (f"run-{number}",) if kind[side] == "known" else ())
        for number, kind in enumerate(kinds)
        if kind[side]
    )


def may_miss(ours: Masters, theirs: Masters) -> bool:
    """Return whether two majorities of servers that are known share none."""
    x, y = ({place.run_ids[0] for place in masters if place.run_ids} for masters in (ours, theirs))
    needs, their_needs = majority(len(ours)), majority(len(theirs))
    # The one takes first what the other can't use.
    for shared in range(len(x & y) + 1):
        if len(x - y) + shared >= needs and len(y - x) + len(x & y) - shared >= their_needs:
            return True
    return False


def test_majorities_overlap_without_a_conflict() -> None:
    """Up to five masters against five, with servers that one or the other has not reached."""
    missed = checked = 0
    for ours, theirs in settings_of(5):
        checked += 1
        if conflicts(ours, theirs):
            missed += may_miss(ours, theirs)
        else:
            assert not may_miss(ours, theirs), (ours, theirs)
    assert checked > 6_000
    assert missed > 300, "and these would have been two holders"


def test_the_enumeration_itself_sees_majorities_that_miss_each_other() -> None:
    for ours, theirs in settings_of(3):
        x, y = ([p.run_ids[0] for p in masters if p.run_ids] for masters in (ours, theirs))
        slowly = any(
            set(one).isdisjoint(other)
            for one in itertools.combinations(x, majority(len(ours)))
            for other in itertools.combinations(y, majority(len(theirs)))
        )
        assert slowly == may_miss(ours, theirs), (ours, theirs)


def test_a_set_is_never_in_conflict_with_what_it_was_or_becomes() -> None:
    """Servers that are found, lost and found again at the same addresses change nothing."""
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
    assert not is_equal(ABC, known("ab") + unknown("c"))
    assert not is_equal(known("ab") + unknown("c"), ABC)
    assert not is_equal(ABC, known("abcd"))
    assert not is_equal(ABC, ABD)


def test_a_set_has_the_age_of_its_equals_anywhere() -> None:
    found = [[declared(ABC, 5), declared(known("abc", named="ip-"), 7)], [declared(ABD, 9)]]
    assert age_of(ABC, found, 4) == age_of(ABC, found, 7) == 7
    assert age_of(ABC, found, 8) == 0, "it is younger than what counts"
    assert age_of(known("ab") + unknown("c"), found, 4) == 0
    assert age_of(known("ab"), found, 4) == 0


def test_the_younger_of_two_sets_is_refused() -> None:
    assert older(ABC, [[declared(ABC, 5), declared(ABD, 4)]], 9) is None
    assert older(ABD, [[declared(ABC, 5), declared(ABD, 4)]], 9) == declared(ABC, 5)
    assert older(ABC, [[declared(known("abcd"), 9)], [declared(known("ab"), 9)]], 9) is None


def test_one_master_is_enough_to_be_refused() -> None:
    """Ages on two masters are not comparable: each of the two was the first somewhere."""
    found = [[declared(ABC, 4), declared(ABD, 5)], [declared(ABC, 5), declared(ABD, 4)]]
    assert older(ABC, found, 9) == declared(ABD, 5)
    assert older(ABD, found, 9) == declared(ABC, 5)


def test_who_has_not_declared_its_set_is_younger_than_everybody() -> None:
    assert older(ABC, [[declared(ABD, 0)]], 9) == declared(ABD, 0)


def test_an_old_set_wins_where_it_was_forgotten() -> None:
    found = [[declared(ABD, 3)], [declared(ABC, 50)]]
    assert older(ABC, found, 9) is None
    assert older(known("abc", named="ip-"), found, 9) is None
    assert older(ABD, found, 9) == declared(ABC, 50)


def test_a_third_program_tells_that_two_servers_were_one_master() -> None:
    """It has seen the master before and after a restart; the others know one address each."""
    new, late = (*known("ab"), Place("c", ("c2",))), known("abc", named="ip-")
    third = (*known("ab"), Place("c", ("run-c", "c2")))
    assert conflicts(new, late)
    assert older(new, [[declared(late, 50)]], 9) is not None
    assert older(new, [[declared(late, 50), declared(third, 50)]], 9) is None
    assert older(new, [[declared(late, 50)], [declared(third, 50)]], 9) is None
    other = (*known("ab"), Place("d", ("run-d",)))
    assert older(other, [[declared(late, 50), declared(third, 50)]], 9) is not None


def test_a_server_that_started_after_a_set_was_declared_may_be_any_master_of_it() -> None:
    """It may have restarted under another address when nobody was there to say so."""
    late = known("abc", named="ip-")
    for started, conflict in (
        (math.inf, False),
        (100.5, False),
        (99.5, False),
        (98.9, True),
        (-math.inf, True),
    ):
        new = (*known("ab"), Place("c", ("c2",), started))
        assert conflicts(new, late, 100.0) is conflict
        found = [[declared(late, 50)._replace(at=100.0)]]
        assert (older(new, found, 9) is not None) is conflict
    assert conflicts((Place("x", ("1",), 101.0), Place("y", ("2",))), known("abc"), 100.0)


def test_the_set_that_is_changed_into_a_conflict_gives_way() -> None:
    """It was in use for longer, but the others do not know yet which server that is."""
    before = known("ab") + unknown("d")
    found = [[declared(before, 9_000), declared(ABC, 10)]]
    assert older(before, found, 9) is None
    assert older(ABD, found, 9) == declared(ABC, 10)


addresses = st.text(min_size=1, max_size=10)
places = st.builds(
    Place,
    addresses,
    st.lists(st.text("0123456789abcdef"), max_size=4).map(tuple),
    started=st.just(-math.inf),
)
sets = st.lists(places, min_size=1, max_size=5).map(tuple)


@given(masters=sets)
def test_a_set_is_read_as_it_was_written(masters: Masters) -> None:
    text = write(masters)
    assert b"\n" not in text
    back = parse(text)
    assert back is not None
    assert sorted(back) == sorted(masters)
    assert write(back) == text
    assert write(tuple(reversed(masters))) == text


@given(ours=sets, theirs=sets)
def test_both_sides_come_to_the_same(ours: Masters, theirs: Masters) -> None:
    assert conflicts(ours, theirs) == conflicts(theirs, ours)
    assert is_equal(ours, theirs) == is_equal(theirs, ours)
    assert not (is_equal(ours, theirs) and conflicts(ours, theirs))
    assert not conflicts(ours, ours)


@pytest.mark.parametrize(
    "text",
    [b"", b"{}", b"[]", b"[[]]", b"[[1]]", b'["a"]', b'[["a",null]]', b"\xff", b"[" * 99_999, 5],
)
def test_what_is_no_set_is_ignored(text: object) -> None:
    assert parse(text) is None
    assert read([text, [5, 0], write(ABC), [6, 500]], 2.0) == [declared(ABC, 6)._replace(at=1.5)]


@pytest.mark.parametrize("reply", [None, 5, b"OK", [b"a"], Exception("NOSCRIPT")])
def test_a_reply_that_makes_no_sense_says_nothing(reply: object) -> None:
    assert read(reply, 0.0) is None


def test_an_age_that_makes_no_sense_is_ignored() -> None:
    nonsense = [b"5", True, [5], [5, 5, 5], [5, b"5"], [True, 5]]
    assert read([part for times in nonsense for part in (write(ABC), times)], 0.0) == []


def test_a_refusal_names_both_sets_on_one_line() -> None:
    said = membership.describe(ABC, known("ab\n"), lasts=61.6)
    assert said == (
        "programs with the masters ?, a, b use these locks, this one names a, b, c, and has no"
        " vote until 62 s after the last of them ended"
    )
    assert membership.is_refusal(said)
    long = membership.describe(ABC, known("x" * 50, named="y" * 60), lasts=1)
    assert len(long) < 500
