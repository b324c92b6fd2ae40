"""Several resources that are locked together, on masters in memory, in virtual time."""

import asyncio
import itertools
from typing import Any

import pytest

from redlock_aio import (
    Answer,
    LockLostError,
    LockNotAcquiredError,
    Redlock,
    RedlockError,
)
from redlock_aio._protocol.scripts import ACQUIRE_ALL
from redlock_aio.testing import FakeMaster

from . import kit
from .kit import (
    KIND,
    KINDS,
    LATENCY,
    Kind,
    delete,
    fence,
    locks,
    now,
    ran,
)

pytestmark = pytest.mark.usefixtures("nothing_stays")

# All or none


@KIND
@pytest.mark.promise("S1")
async def test_all_masters_get_all_keys_in_one_round(
    redlock: Redlock, masters: list[FakeMaster], kind: Kind
) -> None:
    async with redlock.lock("x", **kind):
        pass  # the masters' time is known now, if the kind needs it
    began = now()
    async with redlock.lock("c", "a", "b", ttl=10_000, **kind) as lease:
        assert now() - began == pytest.approx(LATENCY)
        assert lease.resources == ("c", "a", "b")
        assert [vote.answer for vote in lease.votes[:3]] == [Answer.GRANTED] * 3
        await asyncio.sleep(LATENCY)
        for master in masters:
            assert locks([master]) == dict.fromkeys("abc", lease.token)
            assert all(9_990 < master.pttl(name) <= 10_000 for name in "abc")
    assert now() - began == pytest.approx(3 * LATENCY)


@KIND
@pytest.mark.promise("S1")
async def test_on_each_master_all_or_none(kind: Kind) -> None:
    """Other clients may hold any of the keys on any masters."""
    for held in itertools.combinations_with_replacement(["", "a", "b", "ab"], 3):
        masters = [FakeMaster(f"m{i}") for i in range(3)]
        for master, names in zip(masters, held, strict=True):
            for name in names:
                master.set(name, "theirs")
        foreign = [dict.fromkeys(names, "theirs") for names in held]
        async with Redlock(masters, restart_guard="off") as redlock:
            lease = await redlock.lock("a", "b", **kind).try_acquire()
            await asyncio.sleep(0.01)
            assert (lease is not None) == (held.count("") >= 2), held
            for master, theirs in zip(masters, foreign, strict=True):
                ours = dict.fromkeys("ab", lease.token) if lease and not theirs else {}
                assert locks([master]) == theirs | ours
            if lease is not None:
                await lease.release()
            await asyncio.sleep(0.01)
            assert [locks([master]) for master in masters] == foreign


@KIND
async def test_one_resource_that_is_held_refuses_all(
    redlock: Redlock, other: Redlock, kind: Kind
) -> None:
    async with other.lock("b", ttl=10_000, **kind) as lease:
        with pytest.raises(LockNotAcquiredError) as caught:
            await redlock.lock("a", "b", wait=0, **kind).acquire()
        error = caught.value
        assert error.resources == ("a", "b")
        assert error.holder is not None
        assert error.holder.fingerprint == lease.fingerprint
        assert error.retry_after is not None
        assert 9_900 < error.retry_after <= 10_000
        assert str(error).startswith("'a', 'b' not acquired in 1 ")
        async with redlock.lock("a", wait=0):
            pass  # no key is left


@KIND
async def test_the_error_names_the_holder_of_the_longest_ttl(
    redlock: Redlock, masters: list[FakeMaster], kind: Kind
) -> None:
    for master in masters:
        master.set("a", "theirs", ttl=200)
        master.set("b", "also theirs", ttl=700)
        master.set("c", "theirs again", ttl=500)
    with pytest.raises(LockNotAcquiredError) as caught:
        await redlock.lock("a", "b", "c", wait=0, **kind).acquire()
    assert caught.value.retry_after == pytest.approx(700, abs=5)
    for master in masters:
        master.set("c", "theirs for ever")
    with pytest.raises(LockNotAcquiredError) as caught:
        await redlock.lock("a", "b", "c", wait=0, **kind).acquire()
    assert caught.value.retry_after is None
    delete(masters, "c")
    await asyncio.sleep(0.8)


async def test_one_to_a_hundred_different_names_are_locked_together(
    redlock: Redlock, masters: list[FakeMaster]
) -> None:
    for kind in KINDS:
        async with redlock.lock(*(f"r{i}" for i in range(100)), **kind):
            await asyncio.sleep(LATENCY)
            assert all(len(locks([master])) == 100 for master in masters)
    for number in (0, 101):
        with pytest.raises(TypeError, match=rf"resources?, not {number}"):
            redlock.lock(*(f"r{i}" for i in range(number)))
    with pytest.raises(ValueError, match="'b' is named twice"):
        redlock.lock("a", "b", "c", "b")
    wrongs: list[Any] = [("a", ""), ("a", 7), ("redlock_aio:x", "a"), (["a"], "b")]
    for wrong in wrongs:
        with pytest.raises((TypeError, ValueError), match="resource"):
            redlock.lock(*wrong)


# Exclusion


@pytest.mark.spread(1)
@pytest.mark.promise("S1")
@pytest.mark.parametrize("first", KINDS)
@pytest.mark.parametrize("second", KINDS)
@pytest.mark.parametrize("same", [True, False])
async def test_overlapping_sets_exclude_each_other(
    redlock: Redlock, other: Redlock, first: dict[str, Any], second: dict[str, Any], *, same: bool
) -> None:
    """Tried in one process and in two, with each kind; also a set against one resource of it."""
    taken = [("a", "b"), ("b", "c"), ("b",), ("c", "b", "a")]
    second_manager = redlock if same else other

    async def wanted(*names: str) -> bool:
        # In another task: a task that holds a part would get an error for waiting for itself.
        lease = await second_manager.lock(*names, **second).try_acquire()
        if lease is not None:
            await lease.release()
        return lease is not None

    for held in taken:
        async with redlock.lock(*held, **first):
            for names in [*taken, ("x",), ("x", "y")]:
                free = await asyncio.create_task(wanted(*names))
                assert free == set(held).isdisjoint(names), (held, names)


@pytest.mark.spread(0)
@KIND
async def test_opposite_orders_cause_no_deadlock(
    redlock: Redlock, other: Redlock, kind: Kind
) -> None:
    turns = {"ab": 0, "ba": 0}
    inside: list[str] = []

    async def work(manager: Redlock, names: str) -> None:
        for _ in range(20):
            async with manager.lock(*names, **kind):
                inside.append(names)
                assert len(inside) == 1
                await asyncio.sleep(0.002)
                inside.remove(names)
                turns[names] += 1

    async with asyncio.timeout(30):
        await asyncio.gather(*(work(m, n) for m in (redlock, other) for n in ("ab", "ba")))
    assert turns == {"ab": 40, "ba": 40}
    assert all(len(kit.session(manager).local_queues.by_key) == 3 for manager in (redlock, other))


# Masters that have forgotten scripts, or hold other data


@KIND
@pytest.mark.parametrize("forgetful", [2, 3])
async def test_scripts_that_masters_have_lost_cost_a_round(
    redlock: Redlock, masters: list[FakeMaster], kind: Kind, forgetful: int
) -> None:
    for master in masters[:forgetful]:
        master.execute([b"SCRIPT", b"FLUSH"])
    lease = await redlock.lock("a", "b", **kind).try_acquire()
    assert lease is not None
    if not kind:
        assert ran(masters[0], ACQUIRE_ALL) == (2 if forgetful > 2 else 1)
    for master in masters[:forgetful]:
        master.execute([b"SCRIPT", b"FLUSH"])
    await lease.extend()
    await lease.release()


@KIND
@pytest.mark.promise("S3")
async def test_a_key_of_another_type_does_not_prevent_the_release_of_the_others(
    redlock: Redlock, masters: list[FakeMaster], kind: Kind
) -> None:
    lease = await redlock.lock("a", "b", "c", ttl=60_000, **kind).acquire()
    for master in masters:
        master._data.delete(b"b")
        master._data.zadd(b"b", 1, b"theirs")
    assert lease.valid
    with pytest.raises(RedlockError):
        async with lease:
            await asyncio.sleep(1)
    await asyncio.sleep(0.01)
    assert not locks(masters)
    assert all("0 debts" in repr(master) for master in kit.session(redlock).links)


# Leases


@pytest.mark.spread(1)
@KIND
@pytest.mark.promise("S2")
@pytest.mark.parametrize("name", "abc")
@pytest.mark.parametrize("how", ["delete", "overwrite"])
async def test_one_key_that_a_majority_loses_is_the_loss_of_all(
    redlock: Redlock, masters: list[FakeMaster], kind: Kind, name: str, how: str
) -> None:
    gone = 0.0
    with pytest.raises(LockLostError, match=r"'a', 'b', 'c' lost: .* no longer has its key"):
        async with redlock.lock("a", "b", "c", ttl=60_000, **kind):
            await asyncio.sleep(45)  # the lease is extended twice meanwhile
            for master in masters[1:4]:
                master.delete(name)
                if how == "overwrite":
                    master.set(name, "theirs", ttl=100)
            gone = now()
            await asyncio.sleep(30)
    assert now() - gone < 0.05


@KIND
@pytest.mark.promise("S4")
async def test_keys_that_a_minority_has_lost_are_restored(
    redlock: Redlock, masters: list[FakeMaster], kind: Kind
) -> None:
    async with redlock.lock("a", "b", ttl=3000, **kind) as lease:
        masters[0].delete("b")
        masters[1].restart()
        await asyncio.sleep(2.1)
        for master in masters:
            assert locks([master]) == dict.fromkeys("ab", lease.token)
            assert all(1900 < master.pttl(name) <= 3000 for name in "ab")
            if kind.get("fencing"):
                own = str(lease.fencing_token)
                assert [master.keys[fence(name)] for name in "ab"] == [own] * 2


@KIND
@pytest.mark.promise("S4")
async def test_a_master_grants_an_extension_only_if_it_has_all_keys(
    redlock: Redlock, masters: list[FakeMaster], kind: Kind
) -> None:
    """Different keys are gone on different masters, which together are a majority."""
    with pytest.raises(LockLostError):
        async with redlock.lock("a", "b", ttl=900, **kind):
            await asyncio.sleep(0.01)
            masters[0].set("a", "theirs", ttl=2000)
            masters[1].set("b", "theirs", ttl=2000)
            masters[2].delete("b")
            await asyncio.sleep(2)
    await asyncio.sleep(0.01)
    assert locks(masters) == {"a": "theirs", "b": "theirs"}
    assert locks(masters[2:]) == {}
    await asyncio.sleep(2)
