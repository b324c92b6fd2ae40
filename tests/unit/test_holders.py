"""What a holder says of itself in the value, and what others read there."""

import pytest
from hypothesis import given, strategies as st

from redlock_aio import Holder
from redlock_aio._rules import lock_value

TOKEN = b"0f+/" * 7
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=8,
)


NAMES = st.text(min_size=1, max_size=50).filter(lambda name: name.isprintable() and "{" not in name)


@given(NAMES, st.dictionaries(st.text(max_size=9), JSON, max_size=3))
def test_what_a_holder_says_is_read_as_it_was_said(name: str, metadata: dict[str, object]) -> None:
    value = TOKEN + lock_value.named(name) + lock_value.packed(metadata)
    assert lock_value.holder(value) == Holder(lock_value.fingerprint(value), name, metadata)


def test_a_holder_may_say_no_more_than_its_name() -> None:
    value = TOKEN + lock_value.named("web-1:7")
    assert value == TOKEN + b"@web-1:7"
    assert lock_value.holder(value) == Holder(lock_value.fingerprint(value), "web-1:7")


@pytest.mark.parametrize(
    ("name", "kind", "says"),
    [
        ("", ValueError, "name must have 1 to 512 bytes, not 0"),
        ("a\nb", ValueError, "name must not have control characters"),
        ("a{b", ValueError, "name must have printable characters, and no '{'"),
        ("a\u202eb", ValueError, "name must have printable characters, and no '{'"),
        (7, TypeError, "name must be a str, not a int"),
    ],
)
def test_a_name_is_a_short_text(name: str, kind: type[Exception], says: str) -> None:
    with pytest.raises(kind, match=says):
        lock_value.named(name)


@given(st.one_of(st.binary(max_size=80), st.binary(max_size=80).map(TOKEN.__add__)))
def test_any_value_has_a_holder(value: bytes) -> None:
    assert lock_value.holder(value).fingerprint == lock_value.fingerprint(value)


@pytest.mark.parametrize(
    "said",
    [
        b"", b"x", b"{", b"@x{", b"@x{7", b'@x{"a":1} {', b"@\xff", b"@x" + b" " * 10_000,
        b"@x" + b'{"a":' * 300 + b"1", b'@x{"a":"\xff"}',
        b"@x\n", b"@\x1b[2J", b"@" + "\u202e".encode(),
    ],
)  # fmt: skip
def test_of_what_others_write_only_the_fingerprint_is_told(said: bytes) -> None:
    assert lock_value.holder(TOKEN + said) == Holder(lock_value.fingerprint(TOKEN + said))


@pytest.mark.promise("S10")
def test_a_fingerprint_tells_nothing_of_the_token() -> None:
    """It depends on all of the value, so that it is no part of it in other signs."""
    values = [TOKEN[:i] + b"x" + TOKEN[i + 1 :] for i in range(len(TOKEN))]
    assert len({*map(lock_value.fingerprint, values)}) == len(values)


@pytest.mark.promise("S10")
def test_a_holder_never_shows_the_token() -> None:
    value = TOKEN + lock_value.named("web-1:7") + lock_value.packed({"job": 1})
    assert TOKEN.decode() not in f"{lock_value.holder(value)!r} {lock_value.holder(value)}"


def test_a_holder_reads_as_its_name() -> None:
    assert str(Holder("1a2b3c4d", "web-1:7")) == "web-1:7 (1a2b3c4d)"
    assert str(Holder("1a2b3c4d")) == "1a2b3c4d"
    assert hash(Holder("x", "y", {"a": 1})) == hash(Holder("x", "y"))


LOOP: dict[str, object] = {}
LOOP["loop"] = LOOP


@pytest.mark.parametrize(
    ("metadata", "kind", "says"),
    [
        ("x", TypeError, "metadata must be a mapping, not a str"),
        ([("a", 1)], TypeError, "metadata must be a mapping, not a list"),
        ({1: 2}, TypeError, "metadata must have str keys, not a int"),
        ({0: 2}, TypeError, "metadata must have str keys, not a int"),
        ({"a": object()}, ValueError, "metadata must be what JSON can say: .* object is not"),
        ({"a": float("nan")}, ValueError, "metadata must be what JSON can say"),
        ({"a": "\ud800"}, ValueError, "metadata must be what JSON can say"),
        (LOOP, ValueError, "metadata must be what JSON can say"),
        ({"a": "x" * 1_017}, ValueError, "metadata must have at most 1024 bytes, not 1025"),
        ({"a": "é" * 509}, ValueError, "metadata must have at most 1024 bytes, not 1026"),
    ],
)
def test_metadata_is_a_small_json_object(
    metadata: object, kind: type[Exception], says: str
) -> None:
    with pytest.raises(kind, match=says):
        lock_value.packed(metadata)


def test_metadata_may_have_1024_bytes() -> None:
    assert len(lock_value.packed({"a": "x" * 1_016})) == 1_024
