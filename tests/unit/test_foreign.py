"""A key under a lock's name that can't be a lock, and masters that contradict themselves."""

import asyncio
import contextlib
from collections.abc import Callable

import pytest

from redlock_aio import Answer, Redlock, RedlockError
from redlock_aio._protocol.scripts import ENQUEUE
from redlock_aio.testing import FakeMaster

from .kit import refused

NOT_A_LOCK = "WRONGTYPE the key holds a zset, not a lock"

WAYS = pytest.mark.parametrize(
    ("names", "options"),
    [
        (("r",), {}),
        (("r",), {"fencing": True}),
        (("r",), {"fair": True}),
        (("r",), {"fair": True, "fencing": True}),
        (("q", "r"), {}),
        (("q", "r"), {"fencing": True}),
        (("q", "r"), {"fair": True}),
    ],
    ids=lambda value: "+".join(value) or "plain",
)


def spoil(masters: list[FakeMaster], name: str = "r") -> None:
    """Let an application have a sorted set under *name*."""
    for master in masters:
        master._data.zadd(name.encode(), 1, b"theirs")


def attempts(master: FakeMaster) -> int:
    """Return how often *master* was asked for a lock."""
    grants = ([b"SET"], [b"EVALSHA", ENQUEUE.sha])
    return sum(command[:1] == [b"SET"] or command[:2] in grants for command in master.commands)


@WAYS
async def test_the_vote_names_the_type_of_the_key(
    redlock: Redlock, masters: list[FakeMaster], names: tuple[str, ...], options: dict[str, bool]
) -> None:
    spoil(masters)
    error = await refused(redlock, *names, wait=0, **options)
    assert [(vote.answer, vote.detail) for vote in error.votes] == [(Answer.ERROR, NOT_A_LOCK)] * 5
    assert error.holder is None
    assert error.retry_after is None
    await asyncio.sleep(1)
    assert all(master._keys.keys() <= {b"r", b"redlock_aio:marker"} for master in masters)


@WAYS
async def test_a_key_of_another_type_is_not_asked_for_again_and_again(
    redlock: Redlock, masters: list[FakeMaster], names: tuple[str, ...], options: dict[str, bool]
) -> None:
    """On two masters of five, of which one more is away: nobody can have it, and it may change."""
    spoil(masters[:2])
    masters[2].kill()
    await asyncio.sleep(0.1)
    before = attempts(masters[4])
    error = await refused(redlock, *names, wait=10_000, **options)
    assert [vote.detail for vote in error.votes[:2]] == [NOT_A_LOCK] * 2
    assert attempts(masters[4]) - before <= 150  # the mean delay is about 100 ms


@pytest.mark.promise("S9")
async def test_who_waits_for_a_key_of_another_type_has_it_when_that_is_gone(
    redlock: Redlock, masters: list[FakeMaster]
) -> None:
    spoil(masters[:2])
    masters[2].kill()
    waiter = asyncio.create_task(redlock.lock("r", wait=60_000).acquire())
    await asyncio.sleep(5)
    for master in masters[:2]:
        master._data.delete(b"r")
    await asyncio.sleep(0.01)
    assert waiter.done()
    await (await waiter).release()


async def test_a_key_of_another_type_that_changes_all_the_time_is_asked_for_at_a_bounded_rate(
    redlock: Redlock, masters: list[FakeMaster]
) -> None:
    """Each change wakes the waiter, for it may have been the end of the key."""
    spoil(masters[:2])
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


async def test_masters_that_contradict_themselves_are_asked_at_a_bounded_rate(
    redlock: Redlock, masters: list[FakeMaster], monkeypatch: pytest.MonkeyPatch
) -> None:
    """They refuse the lock, and say to the release that nobody has it."""
    monkeypatch.setattr(FakeMaster, "_do_set", lambda *_: None)
    await refused(redlock, "r", wait=10_000)
    assert 100 < attempts(masters[0]) < 1_100


@pytest.mark.parametrize("fair", [False, True])
@pytest.mark.parametrize("names", [("r",), ("q", "r")], ids=["one", "several"])
async def test_a_counter_of_another_type_leaves_no_lock_behind(
    redlock: Redlock, masters: list[FakeMaster], names: tuple[str, ...], *, fair: bool
) -> None:
    spoil(masters, "redlock_aio:fence:{r}")
    error = await refused(redlock, *names, fencing=True, fair=fair, wait=200)
    assert {vote.answer for vote in error.votes} == {Answer.ERROR}
    assert all("WRONGTYPE a key of another type is where" in vote.detail for vote in error.votes)
    await asyncio.sleep(0.1)
    assert not any(set(master.keys) - {"redlock_aio:fence:{q}"} for master in masters)


async def test_what_is_seen_of_a_key_of_another_type(
    redlock: Redlock, masters: list[FakeMaster]
) -> None:
    spoil(masters[:1])
    state = await redlock.inspect("r")
    assert (state.views[0].answer, state.views[0].detail) == (Answer.ERROR, NOT_A_LOCK)
    assert f"m0: error, {NOT_A_LOCK}" in str(state)


# Releasing by force.


DATA: dict[str, Callable[[FakeMaster], object]] = {
    "a sorted set": lambda master: spoil([master]),
    "no ttl": lambda master: master.set("r", "data"),
    "too long": lambda master: master.set("r", "x" * 2_049, 60_000),
}
"""What an application keeps under a lock's name."""

SAID = {
    "a sorted set": "the key holds a zset, not a lock",
    "no ttl": "the key has no ttl, and every lock has one",
    "too long": "the key holds more than 2,048 bytes, which no lock does",
}


def kept(master: FakeMaster) -> object:
    """Return what the master keeps under the name, with its end."""
    return master._keys.get(b"r")


@pytest.mark.parametrize("kind", DATA)
@pytest.mark.parametrize("on", [1, 2, 3, 5])
async def test_what_is_no_lock_is_not_released(
    redlock: Redlock, masters: list[FakeMaster], kind: str, on: int
) -> None:
    for master in masters[:on]:
        DATA[kind](master)
    before = [kept(master) for master in masters]
    with pytest.raises(RedlockError, match=rf"'r' is not a lock.*m0: {SAID[kind]}") as refused:
        await redlock.force_release("r")
    assert type(refused.value) is RedlockError
    assert str(refused.value).count(SAID[kind]) == on
    await asyncio.sleep(2)
    assert [kept(master) for master in masters] == before


@pytest.mark.parametrize("kind", DATA)
@pytest.mark.parametrize("on", [1, 2])
async def test_a_lock_is_released_beside_a_minority_that_keeps_something_else(
    redlock: Redlock, masters: list[FakeMaster], kind: str, on: int
) -> None:
    for master in masters[:on]:
        DATA[kind](master)
    before = [kept(master) for master in masters[:on]]
    for master in masters[on:]:
        master.set("r", "another library's", 60_000)
    assert await redlock.force_release("r")
    assert [kept(master) for master in masters] == before + [None] * (5 - on)


async def test_a_leftover_on_a_minority_is_not_released_beside_a_majority_of_data(
    redlock: Redlock, masters: list[FakeMaster]
) -> None:
    spoil(masters[:3])
    masters[4].set("r", "another library's", 60_000)
    with pytest.raises(RedlockError, match="is not a lock"):
        await redlock.force_release("r")
    assert kept(masters[4]) is not None


async def test_a_lock_of_ours_without_a_ttl_is_released(
    redlock: Redlock, masters: list[FakeMaster]
) -> None:
    """Somebody has taken its ttl away; nothing else would ever end it."""
    lease = await redlock.lock("r", auto_extend=False).acquire()
    for master in masters:
        master.set("r", lease.token)
    assert await redlock.force_release("r")
    assert not any(kept(master) for master in masters)
