"""What a holder says of itself, and where others see it: in every kind of lock, and no token."""

import asyncio
import logging
import multiprocessing
import os
import pickle
import re
import traceback
from typing import Any

import pytest

from redlock_aio import Holder, Lease, LockNotHeldError, Redlock, Retry
from redlock_aio._engine.session import this_process
from redlock_aio.testing import FakeMaster

from .kit import KINDS, refused, values

NAME = "web-1.example:4242"
METADATA: dict[str, object] = {"job": "nightly", "töken": [1, None, {"a": True}], "n": 1.5}
OPTIONS = [*KINDS, {"reentrant": True}]


@pytest.mark.spread(2)
@pytest.mark.parametrize("names", [("r",), ("r", "s")])
@pytest.mark.parametrize("mine", OPTIONS, ids=str)
@pytest.mark.parametrize("theirs", [{}, {"fair": True}, {"wait": 100}], ids=str)
async def test_others_see_who_has_it(
    masters: list[FakeMaster], names: tuple[str, ...], mine: dict[str, Any], theirs: dict[str, Any]
) -> None:
    async with (
        Redlock(masters, name=NAME) as redlock,
        Redlock(masters) as other,
        redlock.lock(*names, metadata=METADATA, **mine) as lease,
    ):
        for wanted in ({"r"}, {"r", "q"}):
            error = await refused(other, *wanted, **theirs)
            holder = error.holder
            assert holder == Holder(lease.fingerprint, NAME, METADATA)
            assert f"now by {NAME} ({lease.fingerprint}) (" in str(error)
            assert lease.token not in f"{error} {error!r} {error.args} {holder!r}"
            assert pickle.loads(pickle.dumps(error)).holder == holder
        assert lease.token[29:].startswith(NAME + "{")


@pytest.mark.parametrize("options", OPTIONS, ids=str)
async def test_it_is_still_there_after_an_extension_and_a_loss_of_keys(
    masters: list[FakeMaster], options: dict[str, Any]
) -> None:
    async with (
        Redlock(masters, name=NAME, restart_guard="off") as redlock,
        Redlock(masters) as other,
        redlock.lock("r", metadata=METADATA, **options) as lease,
    ):
        masters[0].restart()
        masters[1].delete("r")
        await asyncio.sleep(0.5)
        await lease.extend()
        await asyncio.sleep(0.01)
        assert values(masters) == [lease.token] * 5
        assert (await refused(other, "r")).holder == Holder(lease.fingerprint, NAME, METADATA)


async def test_it_is_kept_with_the_key_after_the_release(masters: list[FakeMaster]) -> None:
    async with Redlock(masters, name=NAME) as redlock:
        async with redlock.lock("r", metadata=METADATA, hold_at_least=5_000) as lease:
            pass
        assert (await refused(redlock, "r")).holder == Holder(lease.fingerprint, NAME, METADATA)


async def test_another_library_excludes_us_and_we_it(masters: list[FakeMaster]) -> None:
    """A plain SET NX PX, and a release that compares the value as a whole."""
    async with Redlock(masters, name=NAME) as redlock:
        async with redlock.lock("r", metadata=METADATA) as lease:
            for master in masters:
                assert master.execute([b"SET", b"r", b"theirs", b"NX", b"PX", b"100"]) is None
                assert master.execute([b"DELIFEQ", b"r", lease.token[:28].encode()]) == 0
        for master in masters:
            assert master.execute([b"SET", b"r", b"theirs", b"NX", b"PX", b"100"]) == b"OK"
        error = await refused(redlock, "r")
        assert error.holder is not None
        assert (error.holder.name, error.holder.metadata) == (None, {})
        assert f"now by {error.holder.fingerprint} (" in str(error)
        assert "theirs" not in str(error)
        lease = await redlock.lock("r", metadata=METADATA).acquire()
        for master in masters:  # whoever knows all of the value can release it
            assert master.execute([b"DELIFEQ", b"r", lease.token.encode()]) == 1
        with pytest.raises(LockNotHeldError):
            await lease.release()


async def test_two_who_have_half_each_are_nobody(masters: list[FakeMaster]) -> None:
    for master in masters[:2]:
        master.set("r", "0" * 28 + "@a")
    for master in masters[2:4]:
        master.set("r", "1" * 28 + "@b")
    async with Redlock(masters) as redlock:
        assert (await refused(redlock, "r")).holder is None


@pytest.mark.parametrize(
    ("name", "kind", "says"),
    [
        ("", ValueError, "name must have 1 to 512 bytes"),
        ("x" * 513, ValueError, "name must have 1 to 512 bytes"),
        ("a{", ValueError, "name must have printable characters"),
        ("a\x00", ValueError, "name must not have control characters"),
        ("\ud800", ValueError, "name must be valid Unicode"),
        (b"x", TypeError, "name must be a str, not a bytes"),
        (0, TypeError, "name must be a str, not a int"),
        (False, TypeError, "name must be a str, not a bool"),
    ],
)
def test_a_bad_name_is_refused_at_once(name: Any, kind: type[Exception], says: str) -> None:
    with pytest.raises(kind, match=says):
        Redlock(["redis://a"], name=name)


@pytest.mark.parametrize(
    ("metadata", "kind", "says"),
    [
        ("x", TypeError, "metadata must be a mapping, not a str"),
        (0, TypeError, "metadata must be a mapping, not a int"),
        ({1: 2}, TypeError, "metadata must have str keys, not a int"),
        ({"a": {1, 2}}, ValueError, "metadata must be what JSON can say: .* set is not"),
        ({"a": b"x"}, ValueError, "metadata must be what JSON can say"),
        ({"a": float("inf")}, ValueError, "metadata must be what JSON can say"),
        ({"a": "x" * 2_000}, ValueError, "metadata must have at most 1024 bytes, not 2008"),
    ],
)
def test_bad_metadata_is_refused_at_once(metadata: Any, kind: type[Exception], says: str) -> None:
    with pytest.raises(kind, match=says):
        Redlock(["redis://a"]).lock("r", metadata=metadata)
    with pytest.raises(kind, match=says):
        Redlock(["redis://a"]).locked("r", metadata=metadata)


async def test_metadata_is_as_it_was_when_the_lock_was_made(redlock: Redlock) -> None:
    metadata = {"job": "a"}
    lock = redlock.lock("r", metadata=metadata)
    metadata["job"] = "b"
    async with lock as lease:
        assert lease.token.endswith('{"job":"a"}')
    async with redlock.lock("r", metadata={}) as lease:
        assert lease.token.endswith("{}")
        holder = (await refused(redlock, "r")).holder
        assert holder is not None
        assert holder.metadata == {}


async def test_the_longest_that_may_be_said_is_read_by_others(masters: list[FakeMaster]) -> None:
    name, metadata = "é" * 256, {"a": "x" * 1_016}
    async with Redlock(masters, name=name) as redlock, redlock.lock("r", metadata=metadata) as has:
        assert (await refused(redlock, "r")).holder == Holder(has.fingerprint, name, metadata)


async def test_by_default_it_is_host_and_process(
    redlock: Redlock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with redlock.lock("r"):
        holder = (await refused(redlock, "r")).holder
    assert holder is not None
    assert holder.name is not None
    assert holder.name.endswith(f":{os.getpid()}")
    monkeypatch.setattr("socket.gethostname", lambda: "a{b")
    assert this_process() == b"@a?b:%d" % os.getpid()


async def name_in_use(redlock: Redlock) -> str:
    async with redlock.lock("r"):
        holder = (await refused(redlock, "r")).holder
    await redlock.aclose()
    assert holder is not None
    return holder.name or ""


def say_name(redlock: Redlock, answers: Any) -> None:
    answers.put((os.getpid(), asyncio.run(name_in_use(redlock))))


@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")
def test_a_manager_that_was_made_before_a_fork_has_the_name_of_who_uses_it() -> None:
    redlock = Redlock([FakeMaster(latency=0) for _ in range(3)])
    forks = multiprocessing.get_context("fork")
    answers = forks.Queue()
    children = [forks.Process(target=say_name, args=(redlock, answers)) for _ in range(2)]
    for child in children:
        child.start()
    said = [answers.get(timeout=20) for _ in children]
    for child in children:
        child.join()
    assert all(name.endswith(f":{pid}") for pid, name in said)
    assert len({name for _, name in said}) == 2


@pytest.mark.promise("S10")
@pytest.mark.parametrize("options", OPTIONS, ids=str)
async def test_the_token_is_in_no_text(
    redlock: Redlock, options: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    told: list[BaseException] = []

    async def fail(*names: str, **other: Any) -> None:
        try:
            await redlock.lock(*names, **other).acquire()
        except Exception as error:  # noqa: BLE001 - whatever it is
            told.append(error)

    def everything(*leases: Lease) -> str:
        line = redlock._opener.session().local_queues.by_key
        engine = (
            redlock,
            redlock._opener.session().masters,
            redlock._opener.session().watchdog,
            *redlock._opener.session().links,
            *line.values(),
        )
        return " ".join(
            [repr(thing) for lease in leases for thing in (lease, lease._hold, lease.lost)]
            + [repr(lease._hold.attempt) + repr(lease._hold.released) for lease in leases]
            + [repr(thing) for thing in engine]
        )

    lock = redlock.lock("r", metadata={"job": "x"}, hold_at_least=100, **options)
    async with lock as outer:
        async with redlock.lock("r", reentrant=True, ttl=20_000) as inner:
            await fail("r")
            await fail("r", "s")
            await fail("r", wait=0)
            await fail("r", retry=Retry(attempts=2, min_delay=1, max_delay=1))
            said = everything(outer, inner)
        said += everything(outer, inner)
    said += everything(outer, inner)
    for error in told:
        said += "".join(traceback.format_exception(error)) + repr(error)
    assert len(told) == 4
    said += caplog.text
    for token in (outer.token, outer.token[:28], outer.token[:10]):
        assert token not in said
    assert not re.search(r"[A-Za-z0-9+/]{28}@", said)
