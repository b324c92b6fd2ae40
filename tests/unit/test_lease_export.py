"""The text of an exported lease: its fields, its repr, and texts that are refused."""

import asyncio
import base64
import copy
import json
import logging
import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st

from redlock_aio import LockLostError, Redlock, RedlockError
from redlock_aio._engine import clock
from redlock_aio._protocol.commands import NEVER
from redlock_aio._protocol.lease_export import (
    DAMAGED,
    LAST,
    LONGEST,
    OTHER_VERSION,
    ExportedLease,
    exported,
    imported,
)
from redlock_aio._protocol.scripts import ADOPT
from redlock_aio._rules import lock_value
from redlock_aio._rules.timing import LONGEST as LONGEST_TIME
from redlock_aio._rules.validation import LONGEST_RESOURCE, MOST_PERMITS, MOST_RESOURCES
from redlock_aio.testing import FakeMaster, VirtualTimeLoop

from . import kit
from .kit import ran

TOKEN = b"q83vASNFZ4mrze8BI0VniavN7wEj"
VALUE = TOKEN + b'@web-1:4242{"job":"x"}'
HANDED = ExportedLease(
    ("r",), VALUE, 10_000, 12.5, 9_000, "0123456789abcdef", 7, b"ab/1", 5_000, 300
)

names = st.text(min_size=1, max_size=100).filter(
    lambda name: (
        len(name.encode("utf-8", "replace")) <= LONGEST_RESOURCE
        and name.encode("utf-8", "ignore").decode() == name
        and not any(ord(c) < 32 or 127 <= ord(c) < 160 for c in name)
    )
)
times = st.integers(min_value=0, max_value=LONGEST_TIME)
any_lease = st.builds(
    ExportedLease,
    resources=st.lists(names, min_size=1, max_size=3, unique=True).map(tuple),
    value=names.map(lambda name: TOKEN + b"@" + name.replace("{", "(").encode()) | st.just(VALUE),
    ttl=st.integers(min_value=1, max_value=LONGEST_TIME),
    at=st.floats(min_value=0, max_value=1e9),
    left=times,
    boot=st.just("") | st.just(HANDED.boot),
    fence=st.integers(min_value=0, max_value=NEVER - 1),
    member=st.sampled_from([b"", b"0123456789abcdef/12", b"0123456789abcdef/12p1000"]),
    max_hold=st.none() | times,
    keep=times,
)
any_permit = st.builds(
    lambda lease, number, more: replace(
        lease, resources=lease.resources[:1], permit=number, permits=number + more
    ),
    any_lease,
    st.integers(min_value=0, max_value=MOST_PERMITS - 3),
    st.integers(min_value=1, max_value=3),
)


def encoded(text: str) -> str:
    return base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")


def fields() -> dict[str, Any]:
    """Return the fields in the text of `HANDED`."""
    text = exported(HANDED)
    decoded = json.loads(base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)))
    assert isinstance(decoded, dict)
    return decoded


def refusal(text: Any) -> str:
    """Return the error for a text that is refused; check that the error quotes no part of it."""
    with pytest.raises(ValueError, match=r"^exported ") as caught:
        imported(text)
    error: BaseException = caught.value
    assert (error.__cause__, error.__context__) == (None, None)
    assert len(text) < 10 or str(text) not in str(error)
    return str(error)


@given(handed=any_lease | any_permit)
def test_an_import_returns_what_was_exported(handed: ExportedLease) -> None:
    text = exported(handed)
    assert imported(text) == imported(str(text)) == handed


def test_the_least_and_the_greatest_values_can_be_imported() -> None:
    least = ExportedLease(("r",), TOKEN + b"@x", 1, -LAST, 0, "", 0, b"", 0, 0)
    assert imported(exported(least)) == least
    names = tuple(f"{number:03}" + '"' * (LONGEST_RESOURCE - 3) for number in range(MOST_RESOURCES))
    metadata = lock_value.packed({"a": '"' * ((lock_value.MOST_METADATA - 8) // 2)})
    value = TOKEN + b"@" + b'"' * LONGEST_RESOURCE + metadata
    handed = ExportedLease(
        names, value, LONGEST_TIME, LAST, LONGEST_TIME, "f" * 16, NEVER - 1,
        b"f" * 32 + b"/" + b"9" * 16, LONGEST_TIME, LONGEST_TIME,
    )  # fmt: skip
    assert len(exported(handed)) <= LONGEST
    assert imported(exported(handed)) == handed


def test_the_repr_hides_the_text_and_copies_are_plain_strings() -> None:
    text = exported(HANDED)
    plain = str(text)
    assert type(plain) is str
    assert repr(text) == "<exported lease of 'r'>"
    for shown in (f"{text!r}", f"{[text]}", repr(HANDED)):
        assert plain not in shown
        assert TOKEN.decode() not in shown
    assert repr(exported(ExportedLease(("r", "it's"), VALUE, 1, 0.0, 1, ""))) == (
        "<exported lease of 'r', \"it's\">"
    )
    assert f"{text}" == "".join(text) == json.loads(json.dumps(text)) == plain
    for other in (pickle.loads(pickle.dumps(text)), copy.copy(text), copy.deepcopy(text)):
        assert type(other) is str
        assert other == plain
    assert set(plain) <= set("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_")
    assert "web-1" not in plain


def test_a_text_that_is_cut_or_continued_is_refused() -> None:
    text = str(exported(HANDED))
    for end in range(len(text)):
        assert refusal(text[:end]) == refusal(text[end + 1 :]) == DAMAGED
    for more in ("=", " ", "\n", "A", "AAAA", "é", text):
        assert refusal(text + more) == DAMAGED


WRONG: dict[str, list[object]] = {
    "v": [None, 0, 2, "1", 1.5, [], {}],
    "r": [
        None, [], "r", {}, 7, [7], [None], [["r"]], [""], ["x" * 513], ["a\nb"], ["\ud800"],
        ["r", "r"], [str(number) for number in range(101)],
    ],
    "t": [
        None, 7, "", "x", TOKEN.decode(), TOKEN.decode() + "@", TOKEN.decode()[1:] + "@x",
        TOKEN.decode() + "@x\n", TOKEN.decode() + "@x{", TOKEN.decode() + "@x{}{",
        TOKEN.decode() + '@x{"a":NaN}', TOKEN.decode() + "@\ud800", TOKEN.decode() + "@{}",
        TOKEN.decode() + '@x{"a":' + "[" * 400 + "]" * 400 + "}" + "x" * 2000,
        TOKEN.decode() + '@x{"a":"' + "x" * 1100 + '"}',
    ],
    "l": [None, 0, -1, 1.0, True, "1", LONGEST_TIME + 1],
    "a": [None, "1", True, float("nan"), float("inf"), 1e308, -2 * LAST, []],
    "n": [None, -1, 1.0, False, LONGEST_TIME + 1],
    "b": [None, 7, "x", "0123456789abcde", "0123456789ABCDEF", "0123456789abcdef\n"],
    "f": [None, -1, 1.0, True, NEVER],
    "m": [None, 7, "x", "/1", "ab/", "ab/1/", "ab/x", "AB/1", "ab/1\n", "a" * 33 + "/1"],
    "h": [-1, 1.0, True, "", LONGEST_TIME + 1],
    "k": [None, -1, 1.0, True, LONGEST_TIME + 1],
    "p": [
        None, 7, "ab", {}, [], [0], [0, 1, 1], [-1, 5], [5, 5], [0, 0], [True, 5], [0, True],
        [0, 1.0], ["0", 5], [0, None], [0, MOST_PERMITS + 1],
    ],
}  # fmt: skip
"""For each field of a text, values that it can't have."""


@pytest.mark.parametrize("field", WRONG)
def test_a_text_with_an_impossible_field_or_without_it_is_refused(field: str) -> None:
    whole = fields()
    assert imported(encoded(json.dumps(whole))) == HANDED
    for wrong in WRONG[field]:
        text = encoded(json.dumps({**whole, field: wrong}))
        other_version = field == "v" and wrong in (0, 2)
        assert refusal(text) == (OTHER_VERSION if other_version else DAMAGED), wrong
    whole.pop(field, None)  # that of a lock has no permit
    if field == "h":  # a lease without max_hold
        assert imported(encoded(json.dumps(whole))).max_hold is None
    elif field == "p":  # a lock
        assert imported(encoded(json.dumps(whole))).permit is None
    else:
        assert refusal(encoded(json.dumps(whole))) == DAMAGED


def test_the_permit_of_several_resources_is_refused() -> None:
    several = {**fields(), "r": ["a", "b"]}
    assert imported(encoded(json.dumps(several))).resources == ("a", "b")
    assert refusal(encoded(json.dumps({**several, "p": [0, 1]}))) == DAMAGED


def test_a_text_that_is_no_lease_is_refused() -> None:
    nested: list[object] = ["9" * 5000, "[" * 50_000, '{"v":' * 20_000, "x" * 200_000]
    for other in [None, 7, "x", [], [1], {}, *nested]:
        assert refusal(encoded(json.dumps(other))) == refusal(encoded(str(other))) == DAMAGED
    for wrong in (None, 7, b"x", ["x"], HANDED):
        with pytest.raises(TypeError, match=r"^exported must be a str, not "):
            imported(wrong)  # type: ignore[arg-type]


@given(noise=st.binary(max_size=60))
def test_noise_is_refused(noise: bytes) -> None:
    assert refusal(base64.urlsafe_b64encode(noise).decode().rstrip("=")) == DAMAGED


def test_a_text_that_is_too_long_is_not_parsed() -> None:
    plain = json.dumps(fields())
    assert imported(encoded(plain + " " * 1_000)) == HANDED
    assert refusal(encoded(plain + " " * LONGEST)) == DAMAGED


async def test_a_wrong_argument_of_adopt_sends_nothing(
    redlock: Redlock, masters: list[FakeMaster]
) -> None:
    """The lease can still be adopted after such a call."""
    text = (await redlock.lock("aio:r", ttl=10_000).acquire()).export()
    wrongs: list[tuple[str, dict[str, Any]]] = [
        ("auto_extend must be a bool", {"auto_extend": 1}),
        ("max_hold must be positive", {"max_hold": 0}),
        ("max_hold must be an int", {"max_hold": 1.5}),
        ("on_lost must be 'cancel' or 'flag'", {"on_lost": "x"}),
        ("metadata must be a mapping", {"metadata": 7}),
    ]
    for match, options in wrongs:
        with pytest.raises((TypeError, ValueError), match=match):
            await redlock.adopt(text, **options)
    for match, settings in (
        ("ttl must be at most max_ttl, which is 9999 ms", {"max_ttl": 9_999}),
        ("names a resource that can't be locked here", {"key_prefix": "redlock_"}),
    ):
        async with Redlock(masters, **settings) as other:
            with pytest.raises(ValueError, match=match):
                await other.adopt(text)
    async with Redlock(masters) as closed:
        with pytest.raises(ValueError, match="ttl must be at least 50 ms"):
            await closed.adopt(exported(ExportedLease(("s",), VALUE, 4, 0.0, 4, "")))
    with pytest.raises(RedlockError, match="is closed"):
        await closed.adopt(text)
    assert not any(ran(master, ADOPT) for master in masters)
    async with await redlock.adopt(text):
        pass


@pytest.mark.promise("S10")
async def test_tokens_and_texts_are_in_no_repr_error_or_log(
    redlock: Redlock, there: Redlock, masters: list[FakeMaster], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    lease = await redlock.lock("r", ttl=1_000, fair=True, fencing=True).acquire()
    old = lease.token
    text = lease.export()
    adopted = await there.adopt(text)
    shown: list[object] = [repr(text), adopted.votes, redlock, there]
    for each in (lease, adopted):
        shown += [each, each._hold, each._hold.claim]
    session = kit.session(there)
    shown += [session.watchdog, session.masters, session.links]
    for wrong in (text, text[:-3], text + "x"):
        with pytest.raises((LockLostError, ValueError)) as caught:
            await there.adopt(wrong)
        shown += [caught.value, caught.value.args]
    last = adopted.export()
    for master in masters:
        master.error = f"ERR what is {adopted.token}"
    with pytest.raises(LockLostError, match=r"what is \*\*\*") as caught:
        await there.adopt(last)
    shown.append(caught.value)
    everything = " ".join(map(str, shown)) + " ".join(map(repr, shown)) + caplog.text
    for secret in (text, last, old[:28], adopted.token[:28], text[20:60]):
        assert str(secret) not in everything
    assert ran(masters[0], ADOPT) > 2


def test_each_boot_of_a_machine_and_each_virtual_loop_has_its_own_clock(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    real = asyncio.SelectorEventLoop()
    real.close()
    clock._boot.cache_clear()
    here = clock.boot_of(real)
    assert here == clock.boot_of(real) == clock._boot()
    assert len(here) == 16
    assert here not in Path("/proc/sys/kernel/random/boot_id").read_text()

    def read(path: Path, *_: object, **__: object) -> str:
        raise OSError(path)

    with monkeypatch.context() as patched:
        patched.setattr(Path, "readlink", read)
        clock._boot.cache_clear()
        assert clock.boot_of(real) not in ("", here)
        patched.setattr(Path, "read_text", read)
        clock._boot.cache_clear()
        assert clock.boot_of(real) == ""
    with monkeypatch.context() as patched:
        patched.delattr("time.CLOCK_BOOTTIME")
        clock._boot.cache_clear()
        assert clock.boot_of(real) == ""
    clock._boot.cache_clear()
    assert clock.boot_of(real) == here
    virtual, other = VirtualTimeLoop(), VirtualTimeLoop()
    assert len({here, clock.boot_of(virtual), clock.boot_of(other), ""}) == 4
    virtual.close()
    other.close()
    assert not ExportedLease(("r",), VALUE, 1, 0.0, 1, "").on("")
    assert HANDED.on(HANDED.boot)
    assert not HANDED.on("fedcba9876543210")
