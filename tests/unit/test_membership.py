"""Which masters have a vote beside programs with other masters: what is learned, and the rule."""

import itertools

import pytest
from hypothesis import assume, given, strategies as st

from redlock_aio._protocol import replies
from redlock_aio._rules import membership
from redlock_aio._rules.membership import (
    LIVES,
    MOST_NAMED,
    Addresses,
    Known,
    Line,
    Place,
    Restriction,
    has_moved,
    is_refusal,
    is_surely_in,
    learn,
    meeting,
    names_of,
    other_names,
    parse,
    restriction,
    strangers_of,
    write,
    write_set,
)
from redlock_aio._rules.quorum import majority

pytestmark = [pytest.mark.promise("S1")]

ABC: Addresses = ("a", "b", "c")
ABD: Addresses = ("a", "b", "d")
UNTIL = 100.0


def lines(*texts: Addresses | Place, until: float = UNTIL) -> list[Line]:
    """Return lines in the order in which they came: sets and servers."""
    return [
        Line((text.address,), text.run_id, since, until)
        if isinstance(text, Place)
        else Line(text, "", since, until)
        for since, text in enumerate(texts)
    ]


def places(letters: str, *, named: str = "") -> list[Place]:
    """Return masters that a program is connected to: the server of *a* is ``run-a``."""
    return [Place(named + letter, f"run-{letter}") for letter in letters]


def older(*sets: Addresses, servers: str = "") -> Known:
    """Return the knowledge of sets that came first, and of the servers at these addresses."""
    known = dict.fromkeys(places(servers), UNTIL)
    return Known(dict.fromkeys(sets, UNTIL), first=known, servers=known)


# What is learned from lines.


@pytest.mark.parametrize(
    ("shown", "expected"),
    [
        ((ABC, ABD), set()),
        ((ABD, ABC), {ABD}),
        ((ABD,), {ABD}),
        ((ABD, ("x",), ABC, ("y",)), {ABD, ("x",)}),
        ((ABC,), set()),
        ((), set()),
    ],
)
def test_a_set_is_older_if_it_stands_before_this_programs_or_that_is_missing(
    shown: tuple[Addresses, ...], expected: set[Addresses]
) -> None:
    assert set(learn(Known(), ABC, lines(*shown), 0.0).older) == expected
    mixed = lines(*shown)[::-1]
    assert set(learn(Known(), ABC, mixed, 0.0).older) == expected, "the order is that of since"


@pytest.mark.parametrize("later", [(), (ABC,), (ABC, ABD)])
def test_an_older_set_remains_older_until_it_has_run_out(later: tuple[Addresses, ...]) -> None:
    """A master that forgets its lines, or has them in another order later, does not end that."""
    known = learn(Known(), ABC, lines(ABD, ABC), 0.0)
    known = learn(known, ABC, lines(*later, until=150.0), 50.0)
    until = 150.0 if ABD in later else 100.0
    assert known.older == {ABD: until}
    assert learn(known, ABC, (), until - 0.001).older == {ABD: until}
    assert learn(known, ABC, (), until) == Known()
    assert restriction(places("abc"), learn(known, ABC, (), until), until=until) == Restriction()


def test_an_earlier_report_does_not_shorten_the_time_of_a_line() -> None:
    both = (ABD, Place("c", "one"))
    known = learn(Known(), ABC, lines(*both), 0.0)
    assert learn(known, ABC, lines(*both, until=50.0), 1.0) == known


def test_the_first_server_of_an_address_is_remembered_until_its_line_has_run_out() -> None:
    one, two = Place("c", "one"), Place("c", "two")
    known = learn(Known(), ABC, lines(ABC, one, two, Place("d", "x")), 0.0)
    assert set(known.servers) == {one, two, Place("d", "x")}
    assert set(known.first) == {one, Place("d", "x")}
    assert has_moved(two, known)
    assert not has_moved(one, known)
    known = learn(known, ABC, lines(ABC, two, until=150.0), 99.9)
    assert has_moved(two, known), "the master was flushed; the line of the first counts on"
    known = learn(known, ABC, lines(ABC, two, until=150.0), 100.0)
    assert not has_moved(two, known)


def test_a_server_stays_behind_each_one_that_stood_before_it() -> None:
    """The name moved and the first server has restarted; the other one is still in use."""
    first, moved, restarted = (Place("c", run_id) for run_id in ("one", "two", "three"))
    shown = [
        Line(("c",), "one", 1, UNTIL, 10.0),
        Line(("c",), "two", 2, UNTIL),
        Line(("c",), "three", 3, UNTIL),
    ]
    known = learn(Known(), ABC, shown, 0.0)
    assert not has_moved(first, known)
    assert has_moved(moved, known)
    assert has_moved(restarted, known)
    known = learn(known, ABC, [], 10.0)
    assert not has_moved(moved, known)
    assert has_moved(restarted, known), "that the first one was left does not help the third one"
    assert not has_moved(restarted, learn(known, ABC, [], UNTIL))


# Sure members.


@pytest.mark.parametrize(
    ("place", "expected"),
    [
        (Place("a"), True),
        (Place("a", "other"), True),
        (Place("x", "run-c"), True),
        (Place("x"), False),
        (Place("x", "run-z"), False),
        (Place("x", "run-d"), False),
    ],
)
def test_a_master_is_surely_in_a_set_by_its_address_or_its_server(
    place: Place, *, expected: bool
) -> None:
    assert is_surely_in(place, ABC, older(ABC, servers="acd"), until=UNTIL) is expected


def test_a_server_is_in_no_set_for_certain_when_its_line_is_old_or_it_has_moved() -> None:
    known = older(ABC, servers="c")
    place = Place("x", "run-c")
    assert not is_surely_in(place, ABC, known, until=UNTIL + 0.001)
    elsewhere = known._replace(first={Place("c", "before"): UNTIL})
    assert not is_surely_in(place, ABC, elsewhere, until=UNTIL)
    moved = known._replace(first={**known.first, **elsewhere.first})
    assert not is_surely_in(place, ABC, moved, until=UNTIL)
    assert is_surely_in(Place("c", "run-c"), ABC, elsewhere, until=UNTIL), "by its address"


def test_a_program_keeps_the_lines_of_masters_that_older_sets_name_otherwise() -> None:
    known = older(ABC, servers="abcd")
    ours = [Place("x", "run-a"), Place("b", "run-b"), Place("y", "run-d"), Place("z")]
    assert other_names(ours, known) == {Place("a", "run-a")}
    assert not other_names(ours, known._replace(older={}))
    moved = known._replace(first={Place("a", "before"): UNTIL})
    assert not other_names(ours, moved)


# The restriction.


@pytest.mark.parametrize(
    ("ours", "theirs", "strangers", "refused"),
    [
        ("abc", "abc", set(), False),
        ("abc", "abcd", set(), False),
        ("abcd", "abc", set(), False),
        ("abcd", "ab", set(), False),
        ("abc", "abd", {2}, False),
        ("abcd", "abef", {3}, False),
        ("ab", "abcd", set(), False),
        ("abcde", "abc", {4}, False),
        ("abcde", "a", {3, 4}, False),
        ("abc", "abcde", set(), True),
        ("abc", "a", {2}, False),
        ("a", "abc", set(), True),
        ("abcde", "abfgh", set(), True),
        ("abc", "def", set(), True),
    ],
)
def test_the_masters_without_a_vote(
    ours: str, theirs: str, strangers: set[int], *, refused: bool
) -> None:
    known = older(tuple(theirs), servers=theirs)
    found = restriction(places(ours), known, until=0.0)
    assert (found.refused_by is not None) is refused
    assert set(found.strangers) == strangers
    assert not found.moved
    renamed = restriction(places(ours, named="ip-"), known, until=0.0)
    assert renamed._replace(shared=()) == found._replace(shared=()), "the servers are the same"
    if refused:
        assert set(found.shared) == set(ours) & set(theirs)


def test_a_moved_server_has_no_vote() -> None:
    known = Known({}, {Place("b", "before"): UNTIL, Place("c", "run-c"): UNTIL}, {})
    assert restriction(places("abc"), known, until=0.0) == Restriction(frozenset({1}))
    assert restriction([Place("b")], known, until=0.0) == Restriction(), "there is none to vote"


SERVERS = "abcdefg"
subsets = st.sets(st.sampled_from(SERVERS), min_size=1, max_size=5)


@st.composite
def situations(draw: st.DrawFn) -> tuple[list[Place], list[Addresses], Known]:
    """
    Return masters, older sets, and what is known: letters are the servers that there are.

    Programs name one server differently, do not know some of their servers, and not all lines
    with servers have been read.
    """
    ours = [
        Place(draw(st.sampled_from([x, f"our-{x}"])), draw(st.sampled_from(["", f"run-{x}"])))
        for x in sorted(draw(subsets))
    ]
    sets = [
        tuple(sorted(draw(st.sampled_from([x, f"their-{x}"])) for x in draw(subsets)))
        for _ in range(draw(st.integers(1, 3)))
    ]
    named = sorted({name for names in sets for name in names})
    read = draw(st.sets(st.sampled_from(named)))
    servers = {Place(name, f"run-{name[-1]}"): UNTIL for name in read}
    return ours, sets, Known(dict.fromkeys(sets, UNTIL), first=servers, servers=servers)


@given(situations())
def test_each_majority_that_may_vote_meets_each_majority_of_an_older_set(
    situation: tuple[list[Place], list[Addresses], Known],
) -> None:
    ours, sets, known = situation
    found = restriction(ours, known, until=0.0)
    if found.refused_by is not None:
        return
    voting = [number for number in range(len(ours)) if number not in found.strangers]
    for grant in itertools.combinations(voting, majority(len(ours))):
        for theirs in sets:
            common = {ours[n].address[-1] for n in grant} & {name[-1] for name in theirs}
            sure = [n for n in grant if is_surely_in(ours[n], theirs, known, until=0.0)]
            assert meeting(len(theirs)) <= len(sure) <= len(common)


@given(situations())
def test_who_is_refused_could_not_have_enough_common_masters(
    situation: tuple[list[Place], list[Addresses], Known],
) -> None:
    """So nothing refuses that is not known: it is tried with all ways to complete it."""
    ours, sets, known = situation
    found = restriction(ours, known, until=0.0)
    assume(found.refused_by is not None)
    theirs = found.refused_by
    assert theirs in sets
    here = [place.run_id or f"new-{number}" for number, place in enumerate(ours)]
    missing = [name for name in theirs if all(x.address != name for x in known.servers)]
    unused = [*here, *("nowhere" for _ in missing)]
    for servers in itertools.islice(itertools.permutations(unused, len(missing)), 400):
        more = {Place(x, run): UNTIL for x, run in zip(missing, servers, strict=True)}
        every = {**known.servers, **more}
        complete = known._replace(first=every, servers=every)
        all_ours = [Place(x.address, run) for x, run in zip(ours, here, strict=True)]
        sure = sum(is_surely_in(place, theirs, complete, until=0.0) for place in all_ours)
        assert min(sure, len(theirs), majority(len(ours))) < meeting(len(theirs))


@given(
    letters=subsets,
    more=st.sampled_from(SERVERS),
    known_servers=st.booleans(),
    renamed=st.booleans(),
)
def test_neighbours_are_never_restricted(
    letters: set[str], more: str, *, known_servers: bool, renamed: bool
) -> None:
    larger, smaller = "".join(sorted({*letters, more})), "".join(sorted(letters - {more}))
    assume(smaller)
    for ours, theirs in ((larger, smaller), (smaller, larger), (larger, larger)):
        assume(known_servers or not renamed)
        masters = places(ours, named="ip-" if renamed else "")
        if not known_servers:
            masters = [place._replace(run_id="") for place in masters]
        known = older(tuple(theirs), servers=theirs if known_servers else "")
        assert restriction(masters, known, until=0.0) == Restriction()


def test_the_first_program_names_the_masters_that_a_later_one_does_not_count() -> None:
    ours = places("abc")
    assert strangers_of(ABD, ours, older(servers="d")) == ("d",)
    assert strangers_of(ABD, ours, older()) == (), "their server of d is not known yet"
    assert strangers_of(("a", "b", "ip-c"), ours, older()) == ()
    same = Known(servers={Place("ip-c", "run-c"): UNTIL})
    assert strangers_of(("a", "b", "ip-c"), ours, same) == ()
    assert strangers_of(("a", "b", "c", "d"), ours, older(servers="d")) == (), "a neighbour"


@pytest.mark.parametrize("number", range(1, 10))
def test_the_fewest_masters_that_meet_each_majority(number: int) -> None:
    masters = range(number)
    majorities = [set(x) for x in itertools.combinations(masters, majority(number))]
    least = meeting(number)
    assert all(x & set(range(least)) for x in majorities)
    assert not all(x & set(range(least - 1)) for x in majorities)


# Texts.


@given(st.lists(st.text(min_size=1), min_size=1, max_size=5), st.text(min_size=1))
def test_any_line_is_parsed_as_written(addresses: list[str], run_id: str) -> None:
    names = names_of([Place(address) for address in addresses])
    for text, expected in (
        (write_set(names), (names, "")),
        (write(Place(addresses[0], run_id)), ((addresses[0],), run_id)),
    ):
        assert b"\n" not in text
        assert parse(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        b"", b"{}", b"[]", b'[["a"]]', b"[1]", b'["a",null]', b'{"a":""}', b'{"a":1}',
        b'{"a":"1","b":"2"}', b'"a"', b"\xff", b"[" * 99_999, 5,
    ],
    ids=range(13),
)  # fmt: skip
def test_a_malformed_line_is_ignored(text: object) -> None:
    assert parse(text) is None
    reply = replies.declared([1, text, [5, 500, 700], write_set(ABC), [6, 500, 700]], 2.0)
    assert reply == replies.Declared(1, [Line(ABC, "", 6, 2.5, 2.5 - 0.7 * (1 - 1 / LIVES))])


@pytest.mark.parametrize(
    "reply", [None, 5, b"OK", [], [b"a"], [True], [0, b"a"], Exception("NOSCRIPT")], ids=range(8)
)
def test_a_malformed_reply_is_none(reply: object) -> None:
    assert replies.declared(reply, 0.0) is None


@pytest.mark.parametrize("times", [b"5", True, [5], [5, 5], [5, b"5", 5], [True, 5, 5]])
def test_a_line_with_malformed_times_is_ignored(times: object) -> None:
    assert replies.declared([0, write_set(ABC), times], 0.0) == replies.Declared(0, [])


def test_messages_name_the_masters_on_one_line() -> None:
    refused = Restriction(frozenset(), {}, ("a\n", "x", "y"), ("a",))
    text = membership.describe_refusal(ABC, refused, lives=61.6)
    assert text == (
        "programs with the masters a?, x, y were here first; of a, b, c they have a, and 2 are"
        " needed: no votes until 62 s after the last of them ended"
    )
    assert is_refusal(text)
    assert is_refusal(membership.describe_stranger(ABC, ABD))
    assert not is_refusal(membership.describe_moved(lives=1.0))
    long = tuple(f"{letter}{'x' * 90}" for letter in "abc")
    assert f"{'x' * 90}..." not in membership.describe_stranger(ABC, long)
    assert len(membership.describe_stranger(ABC, long)) < MOST_NAMED + 200
    assert " d, which " in membership.describe_later(ABD, ("d",))
    assert membership.describe_deleted("a").startswith("a: ")
