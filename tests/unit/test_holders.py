"""The name and metadata of a holder, in the value and where other programs see them."""

import asyncio
import logging
import multiprocessing
import os
import pickle
import re
import traceback
from typing import Any

import pytest
from hypothesis import example, given, strategies as st

from redlock_aio import Holder, Lease, LockNotHeldError, Redlock, Retry
from redlock_aio._engine.session import this_process
from redlock_aio._rules import lock_value
from redlock_aio.testing import FakeMaster

from . import kit
from .kit import KINDS, Masters, refused, values

NAME = "web-1.example:4242"
METADATA: dict[str, object] = {"job": "nightly", "töken": [1, None, {"a": True}], "n": 1.5}
OPTIONS = pytest.mark.parametrize("options", [*KINDS, {"reentrant": True}], ids=str)
TOKEN = b"0f+/" * 7

# The value


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=8,
)
NAMES = st.text(min_size=1, max_size=50).filter(lambda name: name.isprintable() and "{" not in name)


@given(NAMES, st.dictionaries(st.text(max_size=9), JSON, max_size=3))
def test_the_holder_is_read_as_it_was_written(name: str, metadata: dict[str, object]) -> None:
    value = TOKEN + lock_value.named(name) + lock_value.packed(metadata)
    assert lock_value.holder(value) == Holder(lock_value.fingerprint(value), name, metadata)


def test_metadata_may_be_missing() -> None:
    value = TOKEN + lock_value.named("web-1:7")
    assert value == TOKEN + b"@web-1:7"
    assert lock_value.holder(value) == Holder(lock_value.fingerprint(value), "web-1:7")


@given(st.one_of(st.binary(max_size=80), st.binary(max_size=80).map(TOKEN.__add__)))
@example(lock_value.SHARED)
def test_any_value_has_a_holder(value: bytes) -> None:
    if value == lock_value.SHARED:  # Hypothesis takes constants of the code for values
        assert lock_value.holder(value) is lock_value.READERS
    else:
        assert lock_value.holder(value).fingerprint == lock_value.fingerprint(value)


@pytest.mark.parametrize(
    "written",
    [
        b"", b"x", b"{", b"@x{", b"@x{7", b'@x{"a":1} {', b"@\xff", b"@x" + b" " * 10_000,
        b"@x" + b'{"a":' * 300 + b"1", b'@x{"a":"\xff"}',
        b"@x\n", b"@\x1b[2J", b"@" + "\u202e".encode(),
    ],
)  # fmt: skip
def test_a_foreign_value_has_only_a_fingerprint(written: bytes) -> None:
    assert lock_value.holder(TOKEN + written) == Holder(lock_value.fingerprint(TOKEN + written))


@pytest.mark.promise("S10")
def test_the_fingerprint_depends_on_all_of_the_token() -> None:
    """A fingerprint must not be a part of the token in another notation."""
    every = [TOKEN[:i] + b"x" + TOKEN[i + 1 :] for i in range(len(TOKEN))]
    assert len({*map(lock_value.fingerprint, every)}) == len(every)


def test_a_holder_reads_as_its_name() -> None:
    assert str(Holder("1a2b3c4d", "web-1:7")) == "web-1:7 (1a2b3c4d)"
    assert str(Holder("1a2b3c4d")) == "1a2b3c4d"
    assert hash(Holder("x", "y", {"a": 1})) == hash(Holder("x", "y"))


@pytest.mark.parametrize(
    ("name", "kind", "match"),
    [
        ("", ValueError, "name must have 1 to 512 bytes, not 0"),
        ("x" * 513, ValueError, "name must have 1 to 512 bytes"),
        ("a{", ValueError, "name must have printable characters, and no '{'"),
        ("a\u202eb", ValueError, "name must have printable characters, and no '{'"),
        ("a\x00", ValueError, "name must not have control characters"),
        ("a\nb", ValueError, "name must not have control characters"),
        ("\ud800", ValueError, "name must be valid Unicode"),
        (b"x", TypeError, "name must be a str, not a bytes"),
        (0, TypeError, "name must be a str, not an int"),
        (False, TypeError, "name must be a str, not a bool"),
    ],
)
def test_a_name_is_a_short_text(name: Any, kind: type[Exception], match: str) -> None:
    with pytest.raises(kind, match=match):
        Redlock(["redis://a"], name=name)


LOOP: dict[str, object] = {}
LOOP["loop"] = LOOP


@pytest.mark.parametrize(
    ("metadata", "kind", "match"),
    [
        ("x", TypeError, "a mapping, not a str"),
        (0, TypeError, "a mapping, not an int"),
        ([("a", 1)], TypeError, "a mapping, not a list"),
        ({1: 2}, TypeError, "str keys, not an int"),
        ({0: 2}, TypeError, "str keys, not an int"),
        ({"a": {1, 2}}, ValueError, "representable as JSON: .* set is not"),
        ({"a": b"x"}, ValueError, "representable as JSON"),
        ({"a": float("inf")}, ValueError, "representable as JSON"),
        ({"a": "\ud800"}, ValueError, "representable as JSON"),
        (LOOP, ValueError, "representable as JSON"),
        ({"a": "x" * 1_017}, ValueError, "at most 1024 bytes, not 1025"),
        ({"a": "é" * 509}, ValueError, "at most 1024 bytes, not 1026"),
    ],
)
def test_metadata_is_a_small_json_object(metadata: Any, kind: type[Exception], match: str) -> None:
    for method in (Redlock(["redis://a"]).lock, Redlock(["redis://a"]).locked):
        with pytest.raises(kind, match=f"metadata must (have|be) {match}"):
            method("r", metadata=metadata)


# Where other programs see it


@pytest.mark.spread(1)
@pytest.mark.parametrize("names", [("r",), ("r", "s")])
@OPTIONS
@pytest.mark.parametrize("theirs", [{}, {"fair": True}, {"wait": 100}], ids=str)
async def test_others_see_the_holder(
    masters: Masters, names: tuple[str, ...], options: dict[str, Any], theirs: dict[str, Any]
) -> None:
    async with (
        Redlock(masters, name=NAME) as redlock,
        Redlock(masters) as other,
        redlock.lock(*names, metadata=METADATA, **options) as lease,
    ):
        for wanted in ({"r"}, {"r", "q"}):
            error = await refused(other, *wanted, **theirs)
            holder = error.holder
            assert holder == Holder(lease.fingerprint, NAME, METADATA)
            assert f"now by {NAME} ({lease.fingerprint}) (" in str(error)
            assert lease.token not in f"{error} {error!r} {error.args} {holder!r} {holder}"
            assert pickle.loads(pickle.dumps(error)).holder == holder
        assert lease.token[29:].startswith(NAME + "{")


@OPTIONS
async def test_the_holder_is_seen_after_extensions_and_restorations(
    masters: Masters, options: dict[str, Any]
) -> None:
    async with (
        Redlock(masters, name=NAME, restart_guard="off") as redlock,
        redlock.lock("r", metadata=METADATA, **options) as lease,
    ):
        masters[0].restart()
        masters[1].delete("r")
        await asyncio.sleep(0.5)
        await lease.extend()
        await asyncio.sleep(0.01)
        assert values(masters) == [lease.token] * 5


async def test_the_holder_is_seen_while_the_key_is_kept(masters: Masters) -> None:
    async with Redlock(masters, name=NAME) as redlock:
        async with redlock.lock("r", metadata=METADATA, hold_at_least=5_000) as lease:
            pass
        assert (await refused(redlock)).holder == Holder(lease.fingerprint, NAME, METADATA)


async def test_the_longest_name_and_metadata_are_read(masters: Masters) -> None:
    name, metadata = "é" * 256, {"a": "x" * 1_016}
    async with Redlock(masters, name=name) as redlock, redlock.lock("r", metadata=metadata) as has:
        assert (await refused(redlock)).holder == Holder(has.fingerprint, name, metadata)


async def test_another_library_is_excluded(redlock: Redlock, masters: Masters) -> None:
    """Its lock is a plain SET NX PX, and its release compares the whole value."""
    foreign = [b"SET", b"r", b"theirs", b"NX", b"PX", b"100"]
    async with redlock.lock("r", metadata=METADATA) as lease:
        for master in masters:
            assert master.execute(foreign) is None
            assert master.execute([b"DELIFEQ", b"r", lease.token[:28].encode()]) == 0
    assert [master.execute(foreign) for master in masters] == [b"OK"] * 5
    error = await refused(redlock)
    assert error.holder is not None
    assert (error.holder.name, error.holder.metadata) == (None, {})
    assert f"now by {error.holder.fingerprint} (" in str(error)
    assert "theirs" not in str(error)
    lease = await redlock.lock("r", metadata=METADATA).acquire()
    for master in masters:  # a client that knows the whole value can release it
        assert master.execute([b"DELIFEQ", b"r", lease.token.encode()]) == 1
    with pytest.raises(LockNotHeldError):
        await lease.release()


async def test_two_clients_with_two_masters_each_are_no_holder(
    redlock: Redlock, masters: Masters
) -> None:
    for number, master in enumerate(masters[:4]):
        master.set("r", str(number // 2) * 28 + "@a")
    assert (await refused(redlock)).holder is None


async def test_metadata_is_that_of_the_moment_of_lock(redlock: Redlock) -> None:
    metadata = {"job": "a"}
    lock = redlock.lock("r", metadata=metadata)
    metadata["job"] = "b"
    async with lock as lease:
        assert lease.token.endswith('{"job":"a"}')
    async with redlock.lock("r", metadata={}) as lease:
        assert lease.token.endswith("{}")
        holder = (await refused(redlock)).holder
        assert holder is not None
        assert holder.metadata == {}


async def default_name(redlock: Redlock) -> str:
    """Return the name that other programs see, and close the manager."""
    async with redlock.lock("r"):
        holder = (await refused(redlock)).holder
    await redlock.aclose()
    assert holder is not None
    return holder.name or ""


async def test_the_default_name_is_host_and_process(
    redlock: Redlock, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert (await default_name(redlock)).endswith(f":{os.getpid()}")
    monkeypatch.setattr("socket.gethostname", lambda: "a{b")
    assert this_process() == b"@a?b:%d" % os.getpid()


def put_default_name(redlock: Redlock, names: Any) -> None:
    names.put((os.getpid(), asyncio.run(default_name(redlock))))


@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")
def test_a_manager_made_before_a_fork_has_the_name_of_its_process() -> None:
    redlock = Redlock([FakeMaster(latency=0) for _ in range(3)])
    forks = multiprocessing.get_context("fork")
    names = forks.Queue()
    children = [forks.Process(target=put_default_name, args=(redlock, names)) for _ in range(2)]
    for child in children:
        child.start()
    found = [names.get(timeout=20) for _ in children]
    for child in children:
        child.join()
    assert all(name.endswith(f":{pid}") for pid, name in found)
    assert len({name for _, name in found}) == 2


@pytest.mark.promise("S10")
@OPTIONS
async def test_no_text_shows_the_token(
    redlock: Redlock, options: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    errors: list[Exception] = []

    def texts(*leases: Lease) -> str:
        session = kit.session(redlock)
        things: list[object] = [redlock, session.masters, session.watchdog, *session.links]
        things += session.local_queues.by_key.values()
        for lease in leases:
            hold = lease._hold
            things += [lease, hold, lease.lost, hold.claim, hold.released]
        return " ".join(map(repr, things))

    async with redlock.lock("r", metadata={"job": "x"}, hold_at_least=100, **options) as outer:
        async with redlock.lock("r", reentrant=True, ttl=20_000) as inner:
            for names, how in [
                ("r", {}),
                ("rs", {}),
                ("r", {"wait": 0}),
                ("r", {"retry": Retry(attempts=2, min_delay=1, max_delay=1)}),
            ]:
                try:
                    await redlock.lock(*names, **how).acquire()  # type: ignore[arg-type]
                except Exception as error:  # noqa: BLE001 - each of them has a text
                    errors.append(error)
            written = texts(outer, inner)
        written += texts(outer, inner)
    written += texts(outer, inner) + caplog.text
    for raised in errors:
        written += "".join(traceback.format_exception(raised)) + repr(raised)
    assert len(errors) == 4
    for token in (outer.token, outer.token[:28], outer.token[:10]):
        assert token not in written
    assert not re.search(r"[A-Za-z0-9+/]{28}@", written)
