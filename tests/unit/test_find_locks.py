"""Which locks are held, found on five masters in memory, in virtual time."""

import asyncio
from typing import Literal

import pytest

from redlock_aio import Answer, FoundLocks, Redlock, RedlockError
from redlock_aio._engine.admin import scan
from redlock_aio._protocol import commands
from redlock_aio._protocol.scripts import INSPECT, INSPECT_PERMITS, Script
from redlock_aio.testing import FakeMaster, cancelled_at
from redlock_aio.testing._fake_lua import Error
from redlock_aio.testing._fake_pushes import PushReceiver

from .kit import hang, in_coroutine, keys, kill, now, occupy, restart, resume

TIMEOUT = 0.05


def names(found: FoundLocks) -> list[str]:
    return [state.resource for state in found.states]


async def test_nothing_is_locked(redlock: Redlock) -> None:
    found = await redlock.find_locks()
    assert (found.states, found.complete) == ((), True)
    assert [vote.answer for vote in found.votes] == [Answer.FREE] * 5


async def test_locks_are_found_with_their_states(redlock: Redlock) -> None:
    async with redlock.lock("b", ttl=10_000) as lease, redlock.lock("a:1", "a:2", fair=True):
        found = await redlock.find_locks()
        assert names(found) == ["a:1", "a:2", "b"]  # not their queues and counters
        assert found.complete
        holder = found.states[2].holder
        assert holder is not None
        assert holder.fingerprint == lease.fingerprint
        assert names(await redlock.find_locks("a:")) == ["a:1", "a:2"]
        assert names(await redlock.find_locks("b")) == ["b"]
        assert lease.token not in repr(found)
    assert names(await redlock.find_locks()) == []


async def test_a_lock_on_one_master_is_found(redlock: Redlock, masters: list[FakeMaster]) -> None:
    occupy(masters[:1], "left over")
    (state,) = (await redlock.find_locks()).states
    assert not state.locked
    assert len(state.orphaned) == 1


async def test_only_names_with_the_key_prefix(masters: list[FakeMaster]) -> None:
    occupy(masters, "other:x")
    occupy(masters, "app:")  # no name is left
    async with Redlock(masters, key_prefix="app:") as redlock, redlock.lock("x"):
        assert names(await redlock.find_locks()) == ["x"]
        assert names(await redlock.find_locks("o")) == []


@pytest.mark.full
async def test_semaphores_are_found_with_the_number_of_their_permits(redlock: Redlock) -> None:
    lock, other = redlock.lock("api:1"), redlock.semaphore("other", permits=1)
    semaphore, braces = (redlock.semaphore(name, permits=5) for name in ("api", "api:{b}#1"))
    async with semaphore as lease, semaphore, braces, lock, other:
        found = await redlock.find_locks()
        assert (names(found), found.complete) == (["api:1"], True)
        assert dict(found.semaphores) == {"api": 2, "api:{b}#1": 1, "other": 1}
        found = await redlock.find_locks("api:")
        assert (names(found), dict(found.semaphores)) == (["api:1"], {"api:{b}#1": 1})
        found = await redlock.find_locks("api")
        assert [*found.semaphores] == ["api", "api:{b}#1"]
        assert lease.token not in repr(found)
        found = await redlock.find_locks("a", limit=1)
        assert (len(found.semaphores), found.complete) == (1, False)
        assert (await redlock.find_locks("redlock_aio:")).semaphores == {}
    found = await redlock.find_locks()
    assert (found.states, found.semaphores, found.complete) == ((), {}, True)


async def test_only_semaphores_with_the_key_prefix(
    redlock: Redlock, masters: list[FakeMaster]
) -> None:
    async with (
        Redlock(masters, restart_guard="off", key_prefix="app:") as app,
        app.semaphore("x", permits=2),
        redlock.semaphore("y", permits=2),
    ):
        assert dict((await app.find_locks()).semaphores) == {"x": 1}
        assert dict((await redlock.find_locks()).semaphores) == {"app:x": 1, "y": 1}


async def test_a_permit_on_one_master_is_found(redlock: Redlock, masters: list[FakeMaster]) -> None:
    occupy(masters[:1], "redlock_aio:permit:{left over}#3")
    occupy(masters[:1], "redlock_aio:permit:{no number}#x")
    assert (await redlock.find_locks()).semaphores == {"left over": 0}


async def test_semaphores_that_can_not_be_inspected_make_it_incomplete(
    redlock: Redlock, masters: list[FakeMaster]
) -> None:
    occupy(masters, "redlock_aio:permit:{api}#3")
    for master in masters[:3]:
        refuse(master, INSPECT_PERMITS)
    found = await redlock.find_locks("api")
    assert dict(found.semaphores) == {"api": 0}
    for master in masters[3:]:
        refuse(master, INSPECT_PERMITS)
    found = await redlock.find_locks("api")
    assert (found.semaphores, found.complete) == ({}, False)
    assert "NOPERM" in found.votes[0].detail


@pytest.mark.parametrize("prefix", ["*", "?", "[a]", "\\", "^", "a*", "[", "]", "\\*", "a b"])
async def test_special_characters_have_no_meaning(
    redlock: Redlock, masters: list[FakeMaster], prefix: str
) -> None:
    for name in (prefix, prefix + "more", "a", "b", "aa"):
        occupy(masters, name)
    found = set(names(await redlock.find_locks(prefix)))
    assert found == {name for name in found | {prefix, prefix + "more"} if name.startswith(prefix)}


async def test_keys_that_no_lock_can_have_are_left_out(
    redlock: Redlock, masters: list[FakeMaster]
) -> None:
    for name in ("control\n", "x" * 513, "redlock_aio:own"):
        occupy(masters, name)
    for master in masters:
        master._data.set(b"\xff", b"x", None)
    assert names(await redlock.find_locks()) == []


async def test_the_limit(redlock: Redlock, masters: list[FakeMaster]) -> None:
    for number in range(250):
        occupy(masters, f"{number:03}")
    found = await redlock.find_locks(limit=120)
    assert names(found) == [f"{number:03}" for number in range(120)]
    assert not found.complete
    assert (await redlock.find_locks(limit=250)).complete


async def test_many_other_keys_take_several_steps(
    redlock: Redlock, masters: list[FakeMaster], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scan, "PER_STEP", 10)
    for number in range(95):
        occupy(masters, f"other:{number}")
    occupy(masters, "lock")
    masters[0].commands.clear()
    found = await redlock.find_locks("lo")
    assert (names(found), found.complete) == (["lock"], True)
    steps = [command for command in masters[0].commands if command[0] == b"SCAN"]
    assert len(steps) >= 10
    monkeypatch.setattr(scan, "MOST_STEPS", 2)
    assert (await redlock.find_locks("lo")).complete is False


@pytest.mark.parametrize("fault", [hang, kill])
async def test_a_minority_that_does_not_answer(
    redlock: Redlock, masters: list[FakeMaster], fault: object
) -> None:
    occupy(masters, "r")
    assert callable(fault)
    fault(masters[:2])
    began = now()
    found = await redlock.find_locks()
    assert now() - began < 5 * TIMEOUT
    assert (names(found), found.complete) == (["r"], True)
    assert sum(vote.answer is Answer.HELD for vote in found.votes) == 3
    fault(masters[2:3])
    assert not (await redlock.find_locks()).complete
    resume(masters)


async def test_a_quarantined_master_may_have_forgotten_locks(masters: list[FakeMaster]) -> None:
    async with Redlock(masters):
        occupy(masters[2:])
    restart(masters[2:4])
    kill(masters[4:])
    async with Redlock(masters) as redlock:
        await asyncio.sleep(2)
        found = await redlock.find_locks()
        answers = [Answer.FREE] * 2 + [Answer.QUARANTINED] * 2 + [Answer.UNREACHABLE]
        assert [vote.answer for vote in found.votes] == answers
        assert (names(found), found.complete) == ([], False)


async def test_without_the_permission_the_votes_say_so(
    redlock: Redlock, masters: list[FakeMaster]
) -> None:
    for master in masters:
        master.forbid.add("SCAN")
    found = await redlock.find_locks()
    assert (found.states, found.complete) == ((), False)
    assert all("NOPERM" in vote.detail for vote in found.votes)


def refuse(master: FakeMaster, script: Script) -> None:
    """Make *master* forbid the keys of *script*, as the access list of plain locks does."""
    execute = master.execute

    def refusing(command: list[bytes], listener: PushReceiver | None = None) -> object:
        if script.sha in command:
            return Error("NOPERM No permissions to access a key")
        return execute(command, listener)

    vars(master)["execute"] = refusing


@pytest.mark.parametrize("has_it", [3, 5])
async def test_a_lock_whose_state_no_master_shows_is_missing(
    redlock: Redlock, masters: list[FakeMaster], has_it: int
) -> None:
    occupy(masters[:has_it], "r")
    for master in masters[:has_it]:
        refuse(master, INSPECT)
    found = await redlock.find_locks()
    assert (found.states, found.complete) == ((), False)
    assert all("NOPERM" in vote.detail for vote in found.votes[:has_it])
    assert [vote.answer for vote in found.votes[has_it:]] == [Answer.FREE] * (5 - has_it)


async def test_a_lock_that_only_a_minority_hides_is_not_missing(
    redlock: Redlock, masters: list[FakeMaster]
) -> None:
    occupy(masters[:2], "left over")
    occupy(masters, "r")
    for master in masters[:2]:
        refuse(master, INSPECT)
    found = await redlock.find_locks()
    assert (names(found), found.complete) == (["r"], True)
    assert [vote.answer for vote in found.votes] == [Answer.HELD] * 5


async def test_nothing_is_changed(redlock: Redlock, masters: list[FakeMaster]) -> None:
    occupy(masters, "r", 5_000)
    before = keys(masters)
    await redlock.find_locks()
    assert keys(masters) == before


@pytest.mark.parametrize("when", ["waiting", "answered"])
async def test_a_cancelled_call_leaves_nothing(
    redlock: Redlock, masters: list[FakeMaster], when: Literal["waiting", "answered"]
) -> None:
    occupy(masters, "r")
    cancelled = 0
    while True:
        step = cancelled_at(cancelled + 1, redlock.find_locks(), when=when)
        task = asyncio.create_task(in_coroutine(step))
        await asyncio.wait([task])
        if not task.cancelled():
            assert names(task.result()) == ["r"]
            break
        cancelled += 1
        await asyncio.sleep(1)
        assert redlock.statistics().rounds == 0
    assert cancelled >= 2


async def test_a_manager_that_is_closed_meanwhile_finds_nothing(masters: list[FakeMaster]) -> None:
    """It does not say that nothing is locked."""
    async with Redlock(masters, restart_guard="off") as redlock:
        hang(masters)
        task = asyncio.ensure_future(redlock.find_locks())
        await asyncio.sleep(0.01)
    with pytest.raises(RedlockError, match="closed"):
        await task


async def test_a_closed_manager_finds_nothing(redlock: Redlock) -> None:
    await redlock.aclose()
    with pytest.raises(RedlockError, match="closed"):
        await redlock.find_locks()


@pytest.mark.parametrize(
    ("arguments", "options", "error"),
    [((1,), {}, TypeError), (("\n",), {}, ValueError), (("x" * 513,), {}, ValueError),
     ((), {"limit": 0}, ValueError), ((), {"limit": "1"}, TypeError)],
)  # fmt: skip
async def test_wrong_arguments(
    redlock: Redlock, arguments: tuple[str], options: dict[str, int], error: type[Exception]
) -> None:
    with pytest.raises(error, match=r"^(prefix|limit) must"):
        await redlock.find_locks(*arguments, **options)


def test_the_command_escapes_patterns() -> None:
    assert b"\r\na\\*\\?\\[\\]\\\\\\^b*\r\n" in commands.scan(b"0", b"a*?[]\\^b", 10)
