"""Extensions of many leases in one command for each master."""

import asyncio
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from redlock_aio import Lease, Redlock
from redlock_aio._engine.hold import watchdog
from redlock_aio._engine.hold.renewal import MOST_KEYS
from redlock_aio._protocol.request import pack
from redlock_aio._protocol.scripts import EXTEND, Script
from redlock_aio.testing import FakeMaster
from redlock_aio.testing._fake_lua import Error
from redlock_aio.testing._fake_pushes import PushReceiver

from .kit import (
    KIND,
    Kind,
    Masters,
    before,
    check_freed,
    count_up,
    delete,
    execute,
    fail,
    fence,
    guarded,
    hang,
    locks_of_each,
    occupy,
    ran,
    restart,
    resume,
    runs_of,
)

pytestmark = pytest.mark.promise("S4")

TTL = 9_000
DUE = 3.5
"""Seconds after which the extensions of leases that were just acquired have been answered."""


@pytest.fixture(autouse=True)
def in_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make leases that are acquired together due together."""
    monkeypatch.setattr(watchdog, "random", SimpleNamespace(random=lambda: 0.0))


@pytest.fixture(autouse=True)
def until_closed() -> Iterator[None]:
    """Keep the leases until their manager is closed."""
    yield
    _kept.clear()


_kept: list[Lease] = []


async def hold(redlock: Redlock, number: int, **options: Any) -> list[Lease]:
    """Return so many leases, on `r0`, `r1` and so on, that are due together."""
    chosen: Kind = {"ttl": TTL, "on_lost": "flag"} | options
    locks = [redlock.lock(f"r{i}", **chosen) for i in range(number)]
    leases = await asyncio.gather(*[lock.acquire() for lock in locks])
    _kept.extend(leases)
    return leases


def sizes(master: FakeMaster) -> list[int]:
    """Return how many keys each command had that has extended leases on *master*."""
    return [int(command[2]) for command in runs_of(master, EXTEND)]


def lost(leases: list[Lease]) -> list[int]:
    """Return the numbers of the leases that are lost; the others were extended by now."""
    for lease in leases:
        assert not lease.valid or lease.remaining > TTL - 1000
    return [number for number, lease in enumerate(leases) if not lease.valid]


async def test_leases_that_are_due_together_share_a_command(
    redlock: Redlock, masters: Masters
) -> None:
    leases = await hold(redlock, 20)
    await asyncio.sleep(DUE)
    assert [sizes(master) for master in masters] == [[20]] * 5
    assert not lost(leases)
    assert all(master.pttl(f"r{i}") > TTL - 1000 for master in masters for i in range(20))


@pytest.mark.parametrize(
    ("options", "keys"), [({}, 1), ({"fencing": True}, 2)], ids=["plain", "fenced"]
)
async def test_no_command_has_too_many_keys(
    redlock: Redlock, masters: Masters, options: Kind, keys: int
) -> None:
    leases = await hold(redlock, 150, **options)
    await asyncio.sleep(DUE)
    assert sum(sizes(masters[0])) == 150 * keys
    assert max(sizes(masters[0])) == MOST_KEYS
    assert len(sizes(masters[0])) == -(-150 * keys // MOST_KEYS)
    assert not lost(leases)


async def test_locks_of_all_kinds_share_a_command(redlock: Redlock, masters: Masters) -> None:
    kinds: list[tuple[tuple[str, ...], Kind]] = [
        (("a",), {}),
        (("b", "c"), {}),
        (("d",), {"fencing": True}),
        (("e", "f"), {"fencing": True}),
        (("g",), {"fair": True, "fencing": True}),
    ]
    leases = [await redlock.lock(*names, ttl=TTL, **kind).acquire() for names, kind in kinds]
    _kept.extend(leases)
    await asyncio.sleep(DUE)
    assert sizes(masters[0]) == [1 + 2 + 2 + 4 + 2]
    assert not lost(leases)


async def sent_to_hung(masters: Masters) -> None:
    """Hang all masters just before the extensions are sent to them; return soon after that."""
    await asyncio.sleep(2.95)
    hang(masters)
    await asyncio.sleep(0.07)


# One lease does not touch the others.


def others_have(masters: Masters) -> None:
    occupy(masters[:3], "r3")


def is_gone(masters: Masters) -> None:
    delete(masters[:3], "r3")


def has_another_type(masters: Masters) -> None:
    delete(masters, "r3")
    for master in masters:
        master._data.zadd(b"r3", 1.0, b"member")


@KIND
@pytest.mark.parametrize("happens", [others_have, is_gone, has_another_type])
async def test_a_lease_that_is_lost_leaves_the_others(
    redlock: Redlock, masters: Masters, kind: Kind, happens: Callable[[Masters], None]
) -> None:
    leases = await hold(redlock, 8, **kind)
    before(masters[0], EXTEND, lambda: happens(masters))  # the first to execute it
    await asyncio.sleep(DUE)
    assert lost(leases) == [3]
    assert len(sizes(masters[0])) == 1
    held = locks_of_each(masters)
    assert all(f"r{i}" in locks for locks in held for i in range(8) if i != 3)


async def test_a_counter_that_is_too_high_concerns_one_lease(
    redlock: Redlock, masters: Masters
) -> None:
    leases = await hold(redlock, 8, fencing=True)
    for master in masters[:3]:
        before(master, EXTEND, lambda master=master: count_up(master, name="r3"))  # type: ignore[misc]
    await asyncio.sleep(DUE)
    assert lost(leases) == [3]
    with pytest.raises(Exception, match="another client has acquired the lock"):
        leases[3].ensure_valid()


async def test_a_counter_that_others_have_spoilt_concerns_one_lease(
    redlock: Redlock, masters: Masters
) -> None:
    leases = await hold(redlock, 8, fencing=True)
    for master in masters:
        master.set(fence("r3"), "junk")
    await asyncio.sleep(DUE)
    assert leases[3].remaining < TTL - 3000
    assert all(lease.remaining > TTL - 1000 for lease in leases if lease is not leases[3])


@pytest.mark.promise("S3")
async def test_a_release_follows_the_extension_that_is_underway(
    redlock: Redlock, masters: Masters
) -> None:
    leases = await hold(redlock, 8)
    await sent_to_hung(masters)
    releasing = asyncio.create_task(leases[3].release())
    await asyncio.sleep(0.01)
    resume(masters)
    await releasing
    await asyncio.sleep(0.1)
    assert len(sizes(masters[0])) == 1
    assert all("r3" not in locks and len(locks) == 7 for locks in locks_of_each(masters))
    assert not [
        lease for lease in leases if lease.remaining < TTL - 1000 and lease is not leases[3]
    ]


async def test_a_lease_is_not_revived_by_an_extension_that_is_executed_too_late(
    redlock: Redlock, masters: Masters
) -> None:
    leases = await hold(redlock, 8)
    hang(masters[:3])
    await asyncio.sleep(TTL / 1000 + 1)
    assert not any(lease.valid for lease in leases)
    resume(masters)
    await check_freed(masters)
    assert not any(lease.valid for lease in leases)


# Commands that fail as a whole


async def test_extensions_whose_replies_are_lost_are_repeated(
    redlock: Redlock, masters: Masters
) -> None:
    leases = await hold(redlock, 8)
    await sent_to_hung(masters)
    for master in masters:
        master.cut()
    resume(masters)
    await asyncio.sleep(1)
    assert all(lease.remaining > TTL - 2000 for lease in leases)
    assert {size for master in masters for size in sizes(master)} == {8}


async def test_scripts_that_were_forgotten_are_loaded_again(
    redlock: Redlock, masters: Masters
) -> None:
    leases = await hold(redlock, 8)
    await asyncio.sleep(2.95)
    for master in masters:
        execute(master, pack(b"SCRIPT", b"FLUSH"))
    await asyncio.sleep(1)
    assert not lost(leases)


def refuse_one(master: FakeMaster) -> None:
    """Make *master* refuse each command that names the key `r3`, as a changed access list does."""
    execute = master.execute

    def refusing(command: list[bytes], listener: PushReceiver | None = None) -> object:
        if b"r3" in command:
            return Error("NOPERM No permissions to access a key")
        return execute(command, listener)

    vars(master)["execute"] = refusing


async def test_a_key_that_is_not_permitted_any_more_holds_up_no_other_lease(
    redlock: Redlock, masters: Masters
) -> None:
    leases = await hold(redlock, 8)
    for master in masters:
        refuse_one(master)
    await asyncio.sleep(DUE)
    assert all(lease.remaining < TTL - 3000 for lease in leases)  # all failed, by one error
    await asyncio.sleep(1)
    assert all(lease.remaining > TTL - 1000 for lease in leases if lease is not leases[3])
    await asyncio.sleep(15)
    assert [lease.valid for lease in leases] == [True] * 3 + [False] + [True] * 4
    assert sizes(masters[0])[-1] == 7  # together again


@pytest.mark.parametrize("reply", [0, -1, None, [0] * 7, [0] * 9, 10**15], ids=str)
async def test_a_malformed_reply_refuses_no_lease(
    redlock: Redlock, masters: Masters, reply: object
) -> None:
    leases = await hold(redlock, 8)
    for master in masters:
        answer(master, EXTEND, reply)
    await asyncio.sleep(DUE)
    assert all(lease.valid and lease.remaining < TTL - 3000 for lease in leases)


def answer(master: FakeMaster, script: Script, reply: object) -> None:
    """Make *master* answer each command that runs *script* with *reply*."""
    execute = master.execute

    def answering(command: list[bytes], listener: PushReceiver | None = None) -> object:
        return reply if script.sha in command else execute(command, listener)

    vars(master)["execute"] = answering


async def test_a_minority_that_answers_errors_does_not_part_the_leases(
    redlock: Redlock, masters: Masters
) -> None:
    leases = await hold(redlock, 8)
    fail(masters[:2])
    await asyncio.sleep(20)
    assert all(lease.valid for lease in leases)
    assert set(sizes(masters[4])) == {8}


# Masters without a vote


async def test_of_a_quarantined_master_only_refusals_count() -> None:
    masters = [FakeMaster(f"m{i}") for i in range(3)]
    async with guarded(masters) as redlock:
        leases = await hold(redlock, 8, fencing=True)
        restart(masters[:1])
        await asyncio.sleep(0.5)
        beyond = (leases[3].fencing_token or 0) + 1
        for master in masters[:2]:  # a majority only with the quarantined one
            master.set(fence("r3"), f"{beyond:016}")
        await asyncio.sleep(DUE - 0.5)
        assert lost(leases) == [3]
        assert sizes(masters[1]) == [16]


async def test_of_a_quarantined_master_no_grant_counts() -> None:
    masters = [FakeMaster(f"m{i}") for i in range(3)]
    async with guarded(masters) as redlock:
        leases = await hold(redlock, 8, ttl=3000)
        restart(masters[:1])
        await asyncio.sleep(1.5)  # its keys are set again
        assert len(masters[0].keys) == 8
        masters[2].kill()
        await asyncio.sleep(3)
        assert sum(sizes(masters[0])) > 8
        assert not any(lease.valid for lease in leases)


# Client tracking


async def test_a_holder_is_told_of_a_change_after_a_shared_extension(
    redlock: Redlock, masters: Masters
) -> None:
    leases = await hold(redlock, 8)
    await asyncio.sleep(DUE)
    delete(masters[:3], "r3")
    await asyncio.sleep(0.01)
    assert lost(leases) == [3]
    assert ran(masters[0], EXTEND) == 1
