"""The text in which a lease travels: what it says, to whom, and what is refused."""

import asyncio
import base64
import copy
import json
import logging
import pickle
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
from redlock_aio._rules.validation import LONGEST_RESOURCE, MOST_RESOURCES
from redlock_aio.testing import FakeMaster

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
    member=st.just(b"") | st.just(b"0123456789abcdef/12"),
    max_hold=st.none() | times,
    keep=times,
)


def written(said: object) -> str:
    """Return *said* as a text, whatever it is."""
    return base64.urlsafe_b64encode(json.dumps(said).encode()).decode().rstrip("=")


def fields() -> dict[str, Any]:
    text = exported(HANDED)
    said = json.loads(base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)))
    assert isinstance(said, dict)
    return said


@given(handed=any_lease)
def test_what_is_read_is_what_was_written(handed: ExportedLease) -> None:
    text = exported(handed)
    assert imported(text) == handed
    assert imported(str(text)) == handed


def test_the_longest_that_can_be_is_read() -> None:
    names = tuple(f"{number:03}" + '"' * (LONGEST_RESOURCE - 3) for number in range(MOST_RESOURCES))
    metadata = lock_value.packed({"a": '"' * ((lock_value.MOST_METADATA - 8) // 2)})
    value = TOKEN + b"@" + b'"' * LONGEST_RESOURCE + metadata
    handed = ExportedLease(
        names, value, LONGEST_TIME, LAST / 3, LONGEST_TIME, "f" * 16, NEVER - 1,
        b"f" * 32 + b"/" + b"9" * 16, LONGEST_TIME, LONGEST_TIME,
    )  # fmt: skip
    assert len(exported(handed)) <= LONGEST
    assert imported(exported(handed)) == handed


def test_it_is_not_shown_by_accident_and_travels_as_a_text() -> None:
    text = exported(HANDED)
    plain = str(text)
    assert type(plain) is str
    assert repr(text) == "<exported lease of 'r'>"
    for shown in (f"{text!r}", f"{[text]}", str({"a": text}), str((text,)), repr(HANDED)):
        assert plain not in shown
        assert TOKEN.decode() not in shown
    assert repr(exported(ExportedLease(("r", "it's"), VALUE, 1, 0.0, 1, ""))) == (
        "<exported lease of 'r', \"it's\">"
    )
    assert f"{text}" == "".join(text) == plain
    assert json.loads(json.dumps(text)) == plain
    for other in (pickle.loads(pickle.dumps(text)), copy.copy(text), copy.deepcopy(text)):
        assert type(other) is str
        assert other == plain
    assert set(plain) <= set("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_")
    assert "web-1" not in plain
    assert text.isascii()


def refusal(text: Any) -> str:
    """Return what is said of a text that is refused, after a look at what it tells."""
    with pytest.raises(ValueError, match=r"^exported ") as caught:
        imported(text)
    error: BaseException = caught.value
    assert (error.__cause__, error.__context__) == (None, None)
    assert len(text) < 10 or str(text) not in str(error)
    return str(error)


def test_what_is_cut_or_has_something_added_is_refused() -> None:
    text = str(exported(HANDED))
    for end in range(len(text)):
        assert refusal(text[:end]) == DAMAGED
        assert refusal(text[end + 1 :]) == DAMAGED
    for more in ("=", " ", "\n", "A", "AAAA", "é", text):
        assert refusal(text + more) == DAMAGED


WRONG: dict[str, list[object]] = {
    "v": [None, 0, "1", 1.5, [], {}],
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
}  # fmt: skip


@pytest.mark.parametrize(
    ("field", "wrong"), [(field, wrong) for field, wrongs in WRONG.items() for wrong in wrongs]
)
def test_what_makes_no_sense_is_refused(field: str, wrong: object) -> None:
    assert imported(written(fields())) == HANDED
    assert refusal(written({**fields(), field: wrong})) in (DAMAGED, OTHER_VERSION)


@pytest.mark.parametrize("field", sorted(WRONG))
def test_what_is_not_all_there_is_refused(field: str) -> None:
    said = fields()
    del said[field]
    if field == "h":  # no max_hold
        assert imported(written(said)).max_hold is None
    else:
        assert refusal(written(said)) == DAMAGED


@pytest.mark.parametrize(
    "said",
    [None, 7, "x", [], [1], {}, "9" * 5000, "[" * 50_000, '{"v":' * 20_000, "x" * 200_000],
)
def test_what_is_something_else_is_refused(said: object) -> None:
    assert refusal(written(said)) == DAMAGED
    raw = base64.urlsafe_b64encode(str(said).encode()).decode().rstrip("=")
    assert refusal(raw) == DAMAGED


@given(said=st.binary(max_size=60))
def test_noise_is_refused(said: bytes) -> None:
    assert refusal(base64.urlsafe_b64encode(said).decode().rstrip("=")) == DAMAGED


def test_what_is_longer_than_any_can_be_is_not_even_looked_at() -> None:
    plain = json.dumps(fields()).encode()
    for more, fits in ((1_000, True), (LONGEST, False)):
        text = base64.urlsafe_b64encode(plain + b" " * more).decode().rstrip("=")
        assert (refusal(text) == DAMAGED) if not fits else imported(text) == HANDED


def test_another_version_is_called_so() -> None:
    assert refusal(written({"v": 2, "whatever": 1})) == OTHER_VERSION


@pytest.mark.parametrize("wrong", [None, 7, b"x", ["x"], HANDED])
def test_another_type_is_refused(wrong: Any) -> None:
    with pytest.raises(TypeError, match=r"^exported must be a str, not a "):
        imported(wrong)


async def test_a_mistake_in_the_call_costs_nothing(
    redlock: Redlock, masters: list[FakeMaster]
) -> None:
    """Nothing is sent, and the lease can still be adopted."""
    text = (await redlock.lock("r", ttl=10_000).acquire()).export()
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
    async with Redlock(masters, max_ttl=9_999) as other:
        with pytest.raises(ValueError, match="ttl must be at most max_ttl, which is 9999 ms"):
            await other.adopt(text)
    async with Redlock(masters, key_prefix="redlock_aio:") as other:
        with pytest.raises(ValueError, match="exported names a resource that can't be locked here"):
            await other.adopt(text)
    async with Redlock(masters) as other:
        with pytest.raises(ValueError, match="ttl must be at least 50 ms"):
            await other.adopt(exported(ExportedLease(("s",), VALUE, 4, 0.0, 4, "")))
    with pytest.raises(RedlockError, match="is closed"):
        await other.adopt(text)
    assert not any(ran(master, ADOPT) for master in masters)
    async with await redlock.adopt(text):
        pass


@pytest.mark.promise("S10")
async def test_the_secret_is_in_no_text_but_its_own(
    redlock: Redlock, masters: list[FakeMaster], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    async with Redlock(masters, restart_guard="off") as there:
        lease = await redlock.lock("r", ttl=1_000, fair=True, fencing=True).acquire()
        old = lease.token
        text = lease.export()
        said: list[object] = [repr(text), repr(lease), repr(lease._hold), repr(lease._hold.attempt)]
        adopted = await there.adopt(text)
        said += [repr(adopted), repr(adopted._hold), repr(adopted._hold.attempt), adopted.votes]
        said += [
            there,
            redlock,
            there._opener.session().watchdog,
            there._opener.session().masters,
            there._opener.session().links,
        ]
        for wrong in (text, text[:-3], text + "x"):
            with pytest.raises((LockLostError, ValueError)) as caught:
                await there.adopt(wrong)
            said += [str(caught.value), repr(caught.value), caught.value.args]
        last = adopted.export()
        for master in masters:
            master.error = f"ERR what is {adopted.token}"
        with pytest.raises(LockLostError, match=r"what is \*\*\*") as caught:
            await there.adopt(last)
        said += [str(caught.value), repr(caught.value)]
    shown = " ".join(map(str, said)) + " ".join(map(repr, said)) + caplog.text
    for secret in (text, last, old[:28], adopted.token[:28], text[20:60]):
        assert str(secret) not in shown
    assert ran(masters[0], ADOPT) > 2


def test_whose_clock_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """One of a run of a machine, one of each loop that makes its own time, or none."""
    loop = asyncio.SelectorEventLoop()
    loop.close()
    clock._boot.cache_clear()
    here = clock.boot_of(loop)
    assert here == clock.boot_of(loop)
    assert len(here) == 16
    assert here not in Path("/proc/sys/kernel/random/boot_id").read_text()

    def read(path: Path, *_: object, **__: object) -> str:
        raise OSError(path)

    with monkeypatch.context() as patched:
        patched.setattr(Path, "readlink", read)
        clock._boot.cache_clear()
        assert clock.boot_of(loop) not in ("", here)
        patched.setattr(Path, "read_text", read)
        clock._boot.cache_clear()
        assert clock.boot_of(loop) == ""
    with monkeypatch.context() as patched:
        patched.delattr("time.CLOCK_BOOTTIME")
        clock._boot.cache_clear()
        assert clock.boot_of(loop) == ""
    clock._boot.cache_clear()
    assert clock.boot_of(loop) == here
    unknown = ExportedLease(("r",), VALUE, 1, 0.0, 1, "")
    assert not unknown.on("")
    assert HANDED.on(HANDED.boot)
    assert not HANDED.on("fedcba9876543210")


async def test_each_loop_of_virtual_time_has_a_clock_of_its_own() -> None:
    here = clock.boot_of(asyncio.get_running_loop())
    other = type(asyncio.get_running_loop())()
    try:
        assert clock.boot_of(other) not in ("", here)
    finally:
        other.close()
    assert here != clock._boot()
