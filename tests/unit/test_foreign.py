"""Keys under a lock's name that are no locks, and masters with contradictory replies."""

import asyncio
import contextlib
from collections.abc import Callable

import pytest

from redlock_aio import Answer, Redlock, RedlockError
from redlock_aio._protocol.scripts import ENQUEUE
from redlock_aio.testing import FakeMaster

from .kit import refused

NOT_A_LOCK = "WRONGTYPE the key holds a zset, not a lock"

Names = tuple[str, ...]
WAYS = pytest.mark.parametrize(
    ("names", "options"),
    [
        (("r",), {}),
        (("r",), {"fencing": True}),
        (("r",), {"fair": True, "fencing": True}),
        (("q", "r"), {}),
        (("q", "r"), {"fencing": True}),
        (("q", "r"), {"fair": True}),
    ],
    ids=lambda value: "+".join(value) or "plain",
)


def occupy_by_data(masters: list[FakeMaster], name: str = "r") -> None:
    """Set *name* to the sorted set of an application."""
    for master in masters:
        master._data.zadd(name.encode(), 1, b"theirs")


def attempts(master: FakeMaster) -> int:
    """Return the number of attempts that *master* has received."""
    grants = ([b"SET"], [b"EVALSHA", ENQUEUE.sha])
    return sum(command[:1] == [b"SET"] or command[:2] in grants for command in master.commands)


@WAYS
async def test_the_vote_names_the_type_of_the_key(
    redlock: Redlock, masters: list[FakeMaster], names: Names, options: dict[str, bool]
) -> None:
    occupy_by_data(masters)
    error = await refused(redlock, *names, wait=0, **options)
    assert [(vote.answer, vote.detail) for vote in error.votes] == [(Answer.ERROR, NOT_A_LOCK)] * 5
    assert error.holder is None
    assert error.retry_after is None
    await asyncio.sleep(1)
    assert all(master._keys.keys() <= {b"r", b"redlock_aio:marker"} for master in masters)


@pytest.mark.spread(0)
@pytest.mark.parametrize("options", [{}, {"fencing": True}, {"fair": True}], ids=str)
async def test_attempts_on_a_key_of_another_type_are_rare(
    redlock: Redlock, masters: list[FakeMaster], options: dict[str, bool]
) -> None:
    """Two of five masters have such a key and one is down: there is no quorum."""
    occupy_by_data(masters[:2])
    masters[2].kill()
    await asyncio.sleep(0.1)
    before = attempts(masters[4])
    error = await refused(redlock, "q", "r", wait=10_000, **options)
    assert [vote.detail for vote in error.votes[:2]] == [NOT_A_LOCK] * 2
    assert attempts(masters[4]) - before <= 150  # the mean delay is about 100 ms


@pytest.mark.promise("S9")
async def test_a_waiter_acquires_when_a_key_of_another_type_is_deleted(
    redlock: Redlock, masters: list[FakeMaster]
) -> None:
    occupy_by_data(masters[:2])
    masters[2].kill()
    waiter = asyncio.create_task(redlock.lock("r", wait=60_000).acquire())
    await asyncio.sleep(5)
    for master in masters[:2]:
        master._data.delete(b"r")
    await asyncio.sleep(0.01)
    assert waiter.done()
    await (await waiter).release()


@pytest.mark.full
async def test_the_rate_of_attempts_is_bounded_while_the_key_changes(
    redlock: Redlock, masters: list[FakeMaster]
) -> None:
    """Each change wakes the waiter, because the key may have ended."""
    occupy_by_data(masters[:2])
    masters[2].kill()
    await asyncio.sleep(0.1)
    waiter = asyncio.create_task(redlock.lock("r", wait=10_000).acquire())
    before = attempts(masters[4])
    for number in range(8_000):
        await asyncio.sleep(0.001)
        for master in masters[:2]:
            master._data.zadd(b"r", number, b"theirs")
    assert 100 < attempts(masters[4]) - before < 1_000
    waiter.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await waiter


@pytest.mark.full
async def test_the_rate_of_attempts_at_masters_that_contradict_themselves_is_bounded(
    redlock: Redlock, masters: list[FakeMaster], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The masters refuse the lock, but their replies to the release show no holder."""
    monkeypatch.setattr(FakeMaster, "_do_set", lambda *_: None)
    await refused(redlock, "r", wait=10_000)
    assert 100 < attempts(masters[0]) < 1_100


@pytest.mark.parametrize("fair", [False, True])
@pytest.mark.parametrize("names", [("r",), ("q", "r")], ids=["one", "several"])
async def test_a_counter_of_another_type_leaves_no_lock_behind(
    redlock: Redlock, masters: list[FakeMaster], names: Names, *, fair: bool
) -> None:
    occupy_by_data(masters, "redlock_aio:fence:{r}")
    error = await refused(redlock, *names, fencing=True, fair=fair, wait=200)
    assert {vote.answer for vote in error.votes} == {Answer.ERROR}
    assert all("WRONGTYPE a key of another type is where" in vote.detail for vote in error.votes)
    await asyncio.sleep(0.1)
    assert not any(set(master.keys) - {"redlock_aio:fence:{q}"} for master in masters)


# Releasing by force


DATA: dict[str, tuple[str, Callable[[FakeMaster], object]]] = {
    "a sorted set": ("the key holds a zset, not a lock", lambda master: occupy_by_data([master])),
    "no ttl": (
        "the key has no ttl, and every lock has one",
        lambda master: master.set("r", "data"),
    ),
    "too long": (
        "the key holds more than 2,048 bytes, so it is no lock",
        lambda master: master.set("r", "x" * 2_049, 60_000),
    ),
}
"""Data of an application under the name of a lock: the objection, and a function that sets it."""


def kept(master: FakeMaster) -> object:
    """Return the value of the key on the master, and its end."""
    return master._keys.get(b"r")


@pytest.mark.parametrize("kind", DATA)
async def test_a_key_that_is_no_lock_is_not_released(
    redlock: Redlock, masters: list[FakeMaster], kind: str
) -> None:
    """This holds for any number of masters; a lock on the others is released."""
    objection, put = DATA[kind]
    before: list[object] = []
    for on, more in enumerate(masters, 1):
        put(more)
        before = [kept(master) for master in masters]
        with pytest.raises(RedlockError, match=rf"'r' is not a lock.*m0: {objection}") as caught:
            await redlock.force_release("r")
        assert type(caught.value) is RedlockError
        assert str(caught.value).count(objection) == on
        await asyncio.sleep(2)
        assert [kept(master) for master in masters] == before
    for master in masters[2:]:
        master.delete("r")
        master.set("r", "another library's", 60_000)
    assert await redlock.force_release("r")
    assert [kept(master) for master in masters] == before[:2] + [None] * 3


async def test_a_leftover_lock_is_not_released_beside_a_majority_of_data(
    redlock: Redlock, masters: list[FakeMaster]
) -> None:
    occupy_by_data(masters[:3])
    masters[4].set("r", "another library's", 60_000)
    with pytest.raises(RedlockError, match="is not a lock"):
        await redlock.force_release("r")
    assert kept(masters[4]) is not None


async def test_a_lock_of_this_library_without_a_ttl_is_released(
    redlock: Redlock, masters: list[FakeMaster]
) -> None:
    """Another client has removed its ttl; otherwise the lock would never end."""
    lease = await redlock.lock("r", auto_extend=False).acquire()
    for master in masters:
        master.set("r", lease.token)
    assert await redlock.force_release("r")
    assert not any(kept(master) for master in masters)
