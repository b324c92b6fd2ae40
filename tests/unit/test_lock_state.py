"""The state of a lock, computed from the masters' replies: tables and properties."""

from collections import Counter as Count
from hashlib import sha256

import pytest
from hypothesis import given, strategies as st

from redlock_aio import Answer, Holder, LockState, MasterView
from redlock_aio._protocol import request
from redlock_aio._protocol.lock_state import (
    MasterReply,
    is_kept,
    key_state,
    lock_state,
    objection,
    remaining,
    view,
)
from redlock_aio._protocol.request import NoReply
from redlock_aio._rules import lock_value
from redlock_aio._rules.lock_value import named
from redlock_aio._rules.quorum import NOT_YET, majority

MINE = b"a" * 28 + named("web-1:42") + b'{"job":"nightly"}'
THEIRS = b"b" * 40
FOREIGN = b"just a value"
DOWN = NoReply(Answer.UNREACHABLE, "connection refused")
OF_ANOTHER_TYPE = "WRONGTYPE a key of another type is where the lock, its counter or its queue is"
WRONG = Exception("WRONGTYPE Operation against a key holding the wrong kind of value")
QUARANTINE = "it started 3 s ago; it votes again in 60 s"


def reply(
    value: bytes | None, left: int = 5_000, counter: object = None, waiters: int = 0
) -> list[object]:
    return [value, -2 if value is None else left, counter, waiters, waiters]


FREE = reply(None)


def state(*replies: object, out: tuple[int, ...] = (), age: int = 0) -> LockState:
    """Return the state from the *replies* of all masters; masters in *out* are quarantined."""
    given = [
        MasterReply(f"m{i}", reply, age, QUARANTINE if i in out else "")
        for i, reply in enumerate(replies)
    ]
    return lock_state("r", given)


def fingerprint(value: bytes) -> str:
    return sha256(value).hexdigest()[:8]


def test_a_majority_keeps_it() -> None:
    found = state(reply(MINE, 4_000), reply(MINE, 3_000), reply(MINE, 5_000), FREE, reply(THEIRS))

    assert found.locked
    assert found.holder == Holder(fingerprint(MINE), "web-1:42", {"job": "nightly"})
    assert found.remaining == 3_000
    assert [its.master for its in found.orphaned] == ["m4"]
    assert [its.answer for its in found.views] == [Answer.HELD] * 3 + [Answer.FREE, Answer.HELD]
    assert [its.remaining for its in found.views] == [4_000, 3_000, 5_000, None, 5_000]


@pytest.mark.parametrize(
    ("replies", "verdict"),
    [
        # locked, certain, split, orphaned
        ([reply(MINE), reply(THEIRS), FREE], (False, True, True, 2)),
        ([reply(MINE), reply(MINE), reply(THEIRS)], (True, True, False, 1)),
        ([reply(MINE), reply(MINE), DOWN], (True, True, False, 0)),
        ([reply(MINE), FREE, DOWN], (False, False, False, 1)),
        ([FREE, FREE, DOWN], (False, True, False, 0)),
        ([reply(MINE), reply(THEIRS), NOT_YET], (False, False, True, 2)),
        ([reply(MINE), reply(THEIRS), WRONG], (False, False, True, 2)),
        # Half of four is no majority.
        ([reply(MINE), reply(MINE), FREE, FREE], (False, True, False, 2)),
        ([reply(MINE), reply(MINE), FREE, DOWN], (False, False, False, 2)),
    ],
)
def test_the_verdict(replies: list[object], verdict: tuple[bool, bool, bool, int]) -> None:
    found = state(*replies)

    assert (found.locked, found.certain, found.split, len(found.orphaned)) == verdict


def test_a_quarantined_master_is_shown_and_does_not_count() -> None:
    found = state(reply(MINE), reply(MINE), reply(MINE), FREE, FREE, out=(2,))

    assert not found.locked
    assert not found.certain, "it may have lost the value of another"
    assert found.views[2].answer is Answer.QUARANTINED
    assert found.views[2].detail == QUARANTINE
    assert found.views[2].holder == found.views[0].holder
    assert str(found.views[2]) == (
        f"m2: quarantined, {QUARANTINE};"
        f" keeps it for web-1:42 ({fingerprint(MINE)}), which does not count"
    )
    assert state(reply(MINE), reply(MINE), FREE, out=(2,)).certain
    assert state(FREE, FREE, reply(MINE), out=(2,)).certain
    found = state(reply(MINE), reply(MINE), reply(THEIRS), out=(2,))
    assert [its.master for its in found.orphaned] == ["m2"]
    assert state(reply(MINE), reply(MINE), reply(MINE), out=(2,)).orphaned == ()


@pytest.mark.parametrize(
    ("left", "needed", "expected"),
    [
        ([3, 1, 2], 2, 2),
        ([3, 1, 2], 3, 1),
        ([3, None, None], 2, None),
        ([3, 2, None], 2, 3),
        ([5, 4, None, 2, 1], 3, 4),
    ],
)
def test_the_remaining_time_ends_with_the_keys_of_a_majority(
    left: list[int | None], needed: int, expected: int | None
) -> None:
    assert remaining(left, needed) == expected


def test_the_age_of_a_reply_is_subtracted_from_the_remaining_time() -> None:
    found = state(reply(MINE, 100), reply(MINE, 60), reply(MINE, 10), age=40)

    assert [its.remaining for its in found.views] == [60, 20, 0]
    assert found.remaining == 20
    found = state(reply(FOREIGN, -1), reply(FOREIGN, -1), reply(FOREIGN, 7), age=3)

    assert found.remaining is None
    assert [its.remaining for its in found.views] == [None, None, 4]
    assert "without an end" in str(found)


@pytest.mark.parametrize(
    ("counter", "expected"),
    [
        (b"1700000000000001", 1_700_000_000_000_001),
        (b"%d" % 2**53, 2**53),
        (b"%d" % (2**53 + 1), None),
        (b"0000000000000007", 7),
        (b"0", None),
        (b"-7", None),
        (b"1.5", None),
        (b"", None),
        (b"\xff", None),
        ("²".encode(), None),
        (b"9" * 30, None),
        (7, None),
    ],
)
def test_a_counter_is_a_positive_number(counter: object, expected: int | None) -> None:
    assert state(reply(MINE, counter=counter)).fencing_counter == expected


def test_the_highest_counter_and_the_longest_queue_count() -> None:
    found = state(
        reply(MINE, counter=b"7", waiters=1),
        reply(MINE, counter=b"9", waiters=0),
        reply(None, counter=b"8", waiters=2),
    )

    assert found.fencing_counter == 9
    assert found.waiters == 2
    assert [its.fencing_counter for its in found.views] == [7, 9, 8]
    assert [its.waiters for its in found.views] == [1, 0, 2]


@pytest.mark.parametrize(
    "malformed",
    [
        [],
        [MINE, 1, None],
        [MINE, 1, None, 0],
        [MINE, b"1", None, 0, 0],
        [MINE, 1, None, None, 0],
        [MINE, 1, None, 0, None],
        ["text", 1, None, 0, 0],
        0,
        None,
        MINE,
        {b"a": 1},
    ],
)
def test_a_malformed_reply_is_an_error_that_holds_no_token(malformed: object) -> None:
    found = state(malformed, FREE, FREE)

    assert key_state(malformed) is None
    assert found.views[0].answer is Answer.ERROR
    assert "malformed" in found.views[0].detail
    assert "aaaa" not in repr(found)


@pytest.mark.parametrize(
    ("answer", "line"),
    [
        (DOWN, "m0: unreachable, connection refused"),
        (request.TIMED_OUT, "m0: timed out"),
        (WRONG, f"m0: error, {OF_ANOTHER_TYPE}"),
        (FREE, "m0: held by nobody"),
        (reply(THEIRS, 12), f"m0: held by {fingerprint(THEIRS)}, 12 ms left"),
        (reply(MINE, -1), f"m0: held by web-1:42 ({fingerprint(MINE)}), without an end"),
    ],
)
def test_a_view_is_one_line(answer: object, line: str) -> None:
    assert str(view(MasterReply("m0", answer))) == line


@pytest.mark.parametrize(
    ("found", "line"),
    [
        (state(FREE, FREE, DOWN), "'r' is held by nobody"),
        (state(FREE, DOWN, DOWN), "'r' may be held: too few masters have answered to tell"),
        (state(reply(MINE), FREE, FREE), "'r' is held by a minority only"),
        (
            state(reply(MINE), reply(THEIRS), reply(None, waiters=3)),
            "'r' is held by nobody: the votes are split, 3 wait",
        ),
        (
            state(reply(THEIRS, 7), reply(THEIRS, 9), FREE),
            f"'r' is held by {fingerprint(THEIRS)} on 2 of 3 masters, 7 ms left",
        ),
        (
            state(reply(MINE, 7, b"5"), reply(MINE, 9, waiters=2), FREE),
            (
                f"'r' is held by web-1:42 ({fingerprint(MINE)}) on 2 of 3 masters, 7 ms left,"
                ' 2 wait, fencing counter 5, {"job": "nightly"}'
            ),
        ),
    ],
)
def test_the_first_line_is_the_verdict_and_the_others_the_views(
    found: LockState, line: str
) -> None:
    first, *others = str(found).splitlines()

    assert first == line
    assert others == [f"  {its}" for its in found.views]


def read_by(*tokens: bytes) -> list[object]:
    """Return the reply of a master that keeps the lock for these readers, for 1, 2, ... ms."""
    shares = [part for left, token in enumerate(tokens, 1) for part in (token, left)]
    return [lock_value.SHARED, 5_000, None, 0, 0, *shares]


@pytest.mark.parametrize(
    ("count", "named", "end"), [(0, 0, ""), (10, 10, ""), (12, 10, "; 2 more")]
)
def test_ten_readers_are_named_and_the_others_counted(count: int, named: int, end: str) -> None:
    tokens = [b"%d" % (10**39 + number) for number in range(count)]
    found = state(*[read_by(*tokens)] * 3)

    assert objection(read_by(*tokens)) == ""
    names = "; ".join(str(reader) for reader in found.readers[:named])
    number = count or "nobody any more"
    expected = f"'r' is read by {number} on 3 of 3 masters{', ' * (count > 0)}{names}{end}"
    assert str(found).splitlines()[0] == expected


def test_names_and_metadata_of_others_stay_on_one_line() -> None:
    evil = b"a" * 28 + b"@x\n  m9: held by nobody\x1b[2J" + b'{"k\\n":"\\u001b"}'
    found = state(reply(evil), reply(evil), reply(evil))

    assert len(str(found).splitlines()) == 4
    assert "\x1b" not in str(found)


ANY_VALUE = st.one_of(
    st.sampled_from([MINE, THEIRS, FOREIGN, b""]), st.binary(min_size=41, max_size=60)
)
ANY_REPLY = st.one_of(
    st.just(FREE),
    st.just(FREE),
    st.builds(
        reply,
        st.sampled_from([MINE, THEIRS]),
        st.integers(-1, 9_999),
        st.sampled_from([None, b"5", b"7", b"junk"]),
        st.integers(0, 3),
    ),
    st.builds(reply, ANY_VALUE, st.integers(-1, 9_999)),
    st.sampled_from([DOWN, WRONG, NOT_YET, None, 7, b"x"]),
)


@given(st.lists(ANY_REPLY, min_size=1, max_size=7), st.sets(st.integers(0, 6)))
def test_properties_of_all_states(replies: list[object], out: set[int]) -> None:
    found = state(*replies, out=tuple(out))
    counted = [
        parsed.value
        for i, parsed in enumerate(map(key_state, replies))
        if parsed is not None and parsed.value is not None and i not in out
    ]
    needed = majority(len(replies))
    winners = [value for value, times in Count(counted).items() if times >= needed]

    assert found.locked == bool(winners)
    assert found.holder == (lock_value.holder(winners[0]) if winners else None)
    assert found.split == (not winners and len(set(counted)) > 1)
    assert found.certain or not found.locked
    assert len(found.views) == len(replies)
    keepers = [its for its in found.views if its.holder is not None]
    assert set(found.orphaned) <= set(keepers)
    if not found.locked:
        assert found.orphaned == tuple(keepers)
    for text in (repr(found), str(found), *map(str, found.views)):
        assert "a" * 40 not in text
        assert "b" * 40 not in text
    assert len(str(found).splitlines()) == 1 + len(replies)
    assert hash(found) == hash(state(*replies, out=tuple(out)))


@given(st.lists(st.sampled_from(["a", "b", None]), min_size=1, max_size=7), st.integers(0, 7))
def test_it_is_certain_exactly_if_no_further_reply_could_change_it(
    replies: list[str | None], unknown: int
) -> None:
    """The missing masters may all have the same value, or none."""
    masters = len(replies) + unknown
    kept = [value for value in replies if value is not None]
    ends = {
        max(Count(kept + [value] * unknown).values(), default=0) >= majority(masters)
        for value in ("a", "b", "c")
    }
    ends.add(max(Count(kept).values(), default=0) >= majority(masters))
    assert is_kept(kept, unknown, masters) == (ends.pop() if len(ends) == 1 else None)


def test_a_view_is_a_value() -> None:
    assert MasterView("m", Answer.FREE) == MasterView("m", Answer.FREE, "", None, None, None, 0)
    assert MasterView("m", Answer.FREE).counts
    assert not MasterView("m", Answer.QUARANTINED).counts
