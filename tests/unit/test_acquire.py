"""Acquisition and release on five masters in memory, in virtual time."""

import asyncio
import re
from typing import Any

import pytest

from redlock_aio import (
    Answer,
    Lease,
    LockNotAcquiredError,
    LockNotHeldError,
    QuorumUnavailableError,
    Redlock,
    RedlockError,
    Retry,
)
from redlock_aio._engine.claim import EXPIRY_SLACK
from redlock_aio._engine.wait.wakeup import WaitBudget
from redlock_aio._protocol.scripts import RELEASE
from redlock_aio._transport import connection
from redlock_aio.testing import FakeMaster

from .kit import (
    KINDS,
    LATENCY,
    Kind,
    check_no_keys,
    delete,
    hang,
    keys,
    kill,
    locks,
    loop,
    now,
    occupy,
    refused,
    resume,
    slow,
    values,
)


async def test_one_round_sets_one_token_on_all_masters(
    redlock: Redlock, masters: list[FakeMaster]
) -> None:
    began = now()
    lease = await redlock.lock("r", ttl=10_000).acquire()
    assert now() - began == pytest.approx(LATENCY)
    assert keys(masters) == [{"r": lease.token}] * 5
    assert all(9_990 < master.pttl("r") <= 10_000 for master in masters)
    assert re.fullmatch(r"[A-Za-z0-9+/]{28}@.+:\d+", lease.token)
    assert (
        lease.validity == lease.remaining == 10_000 - 1 - 102
    )  # less the round trip and the drift
    await asyncio.sleep(1)
    assert lease.remaining == lease.validity - 1000
    await lease.release()
    assert now() - began == pytest.approx(1 + 2 * LATENCY)
    await check_no_keys(masters)


async def test_an_uncontended_acquisition_makes_no_budget(
    redlock: Redlock, monkeypatch: pytest.MonkeyPatch
) -> None:
    budgets: list[WaitBudget] = []

    def counted(*args: Any) -> WaitBudget:
        budgets.append(WaitBudget(*args))
        return budgets[-1]

    async with redlock.lock(
        "r", fencing=True
    ):  # the first acquisition asks the masters for their time
        pass
    monkeypatch.setattr("redlock_aio._engine.acquire.acquisition.WaitBudget", counted)
    for fencing in (False, True):
        async with redlock.lock("r", ttl=10_000, fencing=fencing):
            assert await redlock.lock("r").try_acquire() is None
    assert not budgets
    async with redlock.lock("r", ttl=10_000):
        await refused(redlock, wait=100)
    assert len(budgets) == 1


@pytest.mark.promise("S6")
async def test_a_hung_minority_costs_nothing(redlock: Redlock, masters: list[FakeMaster]) -> None:
    hang(masters[:2])
    began = now()
    async with redlock.lock("r"):
        pass
    assert now() - began == pytest.approx(2 * LATENCY)
    await check_no_keys(masters)


async def test_a_hung_majority_costs_the_master_timeout(
    redlock: Redlock, masters: list[FakeMaster]
) -> None:
    lease = await redlock.lock("q").acquire()
    hang(masters[:3])
    began = now()
    error = await refused(redlock)
    assert type(error) is QuorumUnavailableError
    assert [vote.answer for vote in error.votes[:3]] == [Answer.TIMED_OUT] * 3
    assert now() - began == pytest.approx(0.05)
    await lease.release()
    assert now() - began == pytest.approx(0.1)
    await check_no_keys(masters)


@pytest.mark.promise("S1")
@pytest.mark.parametrize("occupied", range(2**5))
async def test_any_majority_wins_and_no_minority_does(
    redlock: Redlock, masters: list[FakeMaster], occupied: int
) -> None:
    foreign = [master for number, master in enumerate(masters) if occupied & 1 << number]
    occupy(foreign)
    lease = await redlock.lock("r").try_acquire()
    await asyncio.sleep(0.1)
    assert (lease is not None) == (len(foreign) <= 2)
    if lease is not None:
        assert [vote.answer for vote in lease.votes] == [
            Answer.HELD if master in foreign else Answer.GRANTED for master in masters
        ]
        await lease.release()
        await asyncio.sleep(0.1)
    assert keys(masters) == [{"r": "theirs"} if m in foreign else {} for m in masters]
    assert all(master.pttl("r") == -1 for master in foreign)


@pytest.mark.parametrize("number", range(1, 7))
async def test_an_attempt_is_decided_by_the_first_votes_that_exclude_a_majority(
    number: int,
) -> None:
    masters = [FakeMaster() for _ in range(number)]
    occupy(masters[: (number + 1) // 2])
    async with Redlock(masters) as redlock:
        began = now()
        await refused(redlock)
        # One round, and one for its release, whose replies name the holder.
        assert now() - began == pytest.approx(2 * LATENCY)


async def test_the_error_has_the_votes_of_masters_that_are_a_little_later(
    masters: list[FakeMaster],
) -> None:
    occupy(masters)
    masters[4].latency *= 1.9
    async with Redlock(masters) as redlock:
        assert [vote.answer for vote in (await refused(redlock)).votes] == [Answer.HELD] * 5


@pytest.mark.parametrize("kind", [*KINDS, {"shared": True}, {"permits": 1}], ids=str)
@pytest.mark.parametrize(
    ("latencies", "dead"), [([1, 1, 20], 1), ([1, 1, 1, 5, 20], 1), ([1, 5], 0)], ids=str
)
@pytest.mark.spread(1)
async def test_a_master_that_is_farther_away_is_not_blamed(
    kind: Kind, latencies: list[int], dead: int
) -> None:
    """The others decide the attempt: without them there is no majority that could grant it."""
    masters = [FakeMaster(f"m{i}", latency=ms / 1000) for i, ms in enumerate(latencies)]
    async with Redlock(masters) as redlock, Redlock(masters, name="theirs") as other:
        its = kind if "permits" in kind else {}  # a writer, where readers are refused
        async with other.lock("r", **its):
            await asyncio.sleep(1)  # until all masters have it
            kill(masters[:dead])
            await asyncio.sleep(0.1)
            began = now()
            error = await refused(redlock, **kind)
            assert type(error) is LockNotAcquiredError, str(error)
            assert error.holder is not None
            assert error.holder.name == "theirs"
            assert now() - began < 0.07


@pytest.mark.promise("S3")
@pytest.mark.parametrize("closed", [False, True])
@pytest.mark.parametrize("kind", [*KINDS, {"shared": True}, {"permits": 1}], ids=str)
@pytest.mark.spread(1)
async def test_nothing_stays_if_it_ends_while_such_a_master_is_heard(
    kind: Kind, *, closed: bool
) -> None:
    """Two masters are dead, one refuses, one has granted, and the farthest would decide."""
    masters = [FakeMaster(f"m{i}", latency=ms / 1000) for i, ms in enumerate([1, 1, 1, 1, 20])]
    async with Redlock(masters) as redlock:
        async with redlock.lock("other", **kind):
            pass  # it knows the masters' clocks then
        kill(masters[:2])
        occupy(masters[2:3], "redlock_aio:permit:{r}#0" if "permits" in kind else "r")
        await asyncio.sleep(0.1)
        acquiring = asyncio.create_task(redlock.lock("r", wait=0, **kind).acquire())
        await asyncio.sleep(0.01)
        assert not acquiring.done()
        if closed:
            await redlock.aclose()
            with pytest.raises(RedlockError, match="closed"):
                await acquiring
        else:
            acquiring.cancel()
            with pytest.raises(asyncio.CancelledError):
                await acquiring
        await asyncio.sleep(0.1)
        assert [*locks(masters).values()] == ["theirs"]


@pytest.mark.parametrize("kind", [*KINDS, {"permits": 1}], ids=str)
@pytest.mark.parametrize("fixed", [None, 5_000])
async def test_a_master_that_hangs_is_awaited_where_its_answer_decides(
    kind: Kind, fixed: int | None
) -> None:
    """As long as any wait promises it: for the learned timeout, or 50 ms of a fixed one."""
    masters = [FakeMaster(f"m{i}") for i in range(3)]
    async with (
        Redlock(masters, master_timeout=fixed) as redlock,
        redlock.lock("r", **kind),
    ):
        await asyncio.sleep(0.2)
        kill(masters[:1])
        hang(masters[2:])
        await asyncio.sleep(0.01)
        began = now()
        error = await asyncio.create_task(refused(redlock, **kind))
        assert type(error) is QuorumUnavailableError
        assert error.votes[2].answer is Answer.TIMED_OUT
        assert 0.049 < now() - began < 0.052
        resume(masters)


@pytest.mark.parametrize("kind", [*KINDS, {"shared": True}, {"permits": 1}], ids=str)
async def test_with_a_long_fixed_timeout_far_masters_name_the_holder_too(kind: Kind) -> None:
    """Their answers take longer than the 50 ms, and those to the release longer than the first."""
    masters = [FakeMaster(f"m{i}", latency=ms / 1000) for i, ms in enumerate([200, 200, 205])]
    its = kind if "permits" in kind else {}
    async with (
        Redlock(masters, master_timeout=1_000) as redlock,
        Redlock(masters, name="theirs") as other,
        redlock.lock("other", fencing=True),
        other.lock("r", **its),
    ):
        await asyncio.sleep(1)
        loop().call_later(0.1, slow, masters, 0.25)
        error = await refused(redlock, **kind)
        assert error.holder is not None
        kill(masters[:1])
        await asyncio.sleep(0.1)
        slow(masters, 0.2)
        slow(masters[2:], 0.205)
        assert (await refused(redlock, **kind)).holder is not None
        slow(masters, LATENCY)


@pytest.mark.parametrize("kind", KINDS)
async def test_a_master_that_hangs_makes_no_wait_longer(kind: Kind) -> None:
    masters = [FakeMaster(f"m{i}") for i in range(3)]
    async with (
        Redlock(masters, master_timeout=5_000) as redlock,
        Redlock(masters, name="theirs") as other,
        other.lock("r"),
    ):
        async with redlock.lock("other", fencing=True):
            pass
        hang(masters[2:])
        began = now()
        error = await refused(redlock, wait=2_000, **kind)
        assert error.holder is not None
        assert now() - began == pytest.approx(2, abs=0.002)
        resume(masters)


async def test_the_error_names_every_master_and_its_vote(
    redlock: Redlock, masters: list[FakeMaster]
) -> None:
    masters[0].set("r", "theirs")
    masters[2].kill()
    masters[3].error = "OOM command not allowed"
    masters[4].hang()
    await asyncio.sleep(0.1)
    error = await refused(redlock)
    assert type(error) is QuorumUnavailableError
    assert error.resources == ("r",)
    assert (error.attempts, error.elapsed) == (1, 50)  # m4 would have made a majority
    assert str(error) == (
        "'r' not acquired in 1 round, 50 ms: too few masters answered (m0: held by another;"
        " m1: granted; m2: unreachable, connection refused; m3: error, OOM command not allowed;"
        " m4: timed out) [too-few-masters]"
    )
    masters[1].error = masters[3].error
    error = await refused(redlock)
    assert error.elapsed == 2, "no answer of m4 would help"
    assert str(error.votes[4]) == "m4: timed out, not answered when the round was decided"


@pytest.mark.promise("S1")
@pytest.mark.promise("S3")
async def test_an_answer_that_comes_too_late_for_the_ttl_is_no_lock(
    redlock: Redlock, masters: list[FakeMaster]
) -> None:
    loop().call_later(LATENCY * 0.75, loop().stall, 0.3)
    assert "too late for the ttl" in str(await refused(redlock, ttl=300))
    await check_no_keys(masters)


async def test_a_failed_attempt_is_released_before_the_next(
    redlock: Redlock, masters: list[FakeMaster]
) -> None:
    occupy(masters[:3], ttl=25)
    async with redlock.lock("r", retry=Retry(min_delay=20, max_delay=20)) as lease:
        # Not after the delay: the masters would report an earlier end. When the key has expired.
        assert now() == pytest.approx(0.025 + EXPIRY_SLACK + 2 * LATENCY, abs=0.003)
        assert keys(masters) == [{"r": lease.token}] * 5
    commands = masters[4].commands
    assert len({command[2] for command in commands if command[0] == b"SET"}) == 2
    assert [command[0] for command in commands[-5:]] == [
        *[b"SET", b"CLIENT", b"EVALSHA"],
        *[b"SET", b"DELIFEQ"],
    ]


@pytest.mark.promise("S5")
async def test_clients_in_lockstep_with_equal_delays_all_get_the_lock(
    masters: list[FakeMaster],
) -> None:
    retry = Retry(min_delay=10, max_delay=10)
    async with Redlock(masters, retry=retry) as one, Redlock(masters, retry=retry) as two:

        async def work(redlock: Redlock) -> None:
            for _ in range(10):
                async with redlock.lock("r"):
                    await asyncio.sleep(0.002)

        async with asyncio.timeout(60):
            await asyncio.gather(work(one), work(two))


# Locks and leases


async def test_one_lock_object_serves_many_tasks(redlock: Redlock) -> None:
    lock = redlock.lock("r", retry=Retry(min_delay=1, max_delay=5))
    tokens: set[str] = set()

    async def use() -> None:
        async with lock as lease:
            assert await lock.try_acquire() is None
            lease.ensure_valid()
            tokens.add(lease.token)

    await asyncio.gather(*(use() for _ in range(5)))
    assert len(tokens) == 5
    assert repr(lock) == "<Lock 'r', ttl 10000 ms>"


async def test_a_lease_is_released_once(redlock: Redlock) -> None:
    lease = await redlock.lock("r").acquire()
    await lease.release()
    with pytest.raises(LockNotHeldError, match="released before"):
        await lease.release()
    with pytest.raises(LockNotHeldError, match="released"):
        lease.ensure_valid()
    with pytest.raises(LockNotHeldError, match="released"):
        await lease.extend()
    assert not lease.valid
    assert lease.remaining == 0
    assert repr(lease) == "<Lease 'r', released>"


@pytest.mark.promise("S1")
async def test_a_lease_that_expired_is_free_for_others_and_releases_nothing(
    redlock: Redlock, masters: list[FakeMaster]
) -> None:
    first = await redlock.lock("r", ttl=1000, auto_extend=False).acquire()
    began = now()
    async with redlock.lock("r") as second:
        assert 0.98 < now() - began < 1.25  # the first holder lost it at its deadline
        assert not first.valid
        with pytest.raises(LockNotHeldError, match="'r' not held: it was not extended"):
            await first.release()
        await asyncio.sleep(0.1)
        assert values(masters) == [second.token] * 5


# A release is one command on servers that have it, and a script on all others.

COMMAND = "DELIFEQ"


def releases(master: FakeMaster, name: str = "r") -> list[str]:
    """Return the commands by which *master* was asked to release a lock."""
    kinds = {COMMAND.encode(): "command", RELEASE.sha: "script"}
    asked = [command for command in master.commands if name.encode() in command]
    return [kinds[word] for command in asked for word in command[:2] if word in kinds]


@pytest.mark.promise("S3")
async def test_a_release_is_a_command_where_all_masters_have_it(
    redlock: Redlock, masters: list[FakeMaster]
) -> None:
    for fencing in (False, True):
        async with redlock.lock("r", fencing=fencing):
            pass
    assert [releases(master) for master in masters] == [["command"] * 2] * 5
    assert values(masters) == [None] * 5


@pytest.mark.promise("S3")
@pytest.mark.parametrize("without", [1, 5])
async def test_a_release_is_a_script_if_one_master_lacks_the_command(
    masters: list[FakeMaster], without: int
) -> None:
    for master in masters[:without]:
        master.forbid.add(COMMAND)
    async with Redlock(masters) as redlock:
        async with redlock.lock("r"):
            pass
        assert [releases(master) for master in masters] == [["script"]] * 5
        assert keys(masters) == [{}] * 5


async def test_a_master_that_comes_back_without_the_command_is_noticed(
    redlock: Redlock, masters: list[FakeMaster]
) -> None:
    masters[0].kill()
    await asyncio.sleep(0.1)
    async with redlock.lock("r"):
        pass
    assert [releases(master) for master in masters] == [[], *[["command"]] * 4]
    masters[0].forbid.add(COMMAND)
    masters[0].restart()
    await asyncio.sleep(2)
    async with redlock.lock("r"):
        pass
    assert [releases(master)[-1] for master in masters] == ["script"] * 5


@pytest.mark.promise("S3")
async def test_a_command_that_is_withdrawn_costs_one_round_trip(
    redlock: Redlock, masters: list[FakeMaster]
) -> None:
    """The script follows at once, and the release waits for its reply instead."""
    leases = [await redlock.lock(name, ttl=60_000).acquire() for name in ("r", "s")]
    for master in masters[:3]:
        master.forbid.add(COMMAND)
    began = now()
    await leases[0].release()
    assert keys(masters[:3]) == [{"s": leases[1].token}] * 3
    assert now() - began == pytest.approx(0.002, abs=0.0005)  # two round trips
    await leases[1].release()
    assert now() - began == pytest.approx(0.003, abs=0.0005)
    await asyncio.sleep(0.01)
    assert [releases(master) for master in masters[:3]] == [["command", "script"]] * 3
    assert [releases(master, "s") for master in masters[:3]] == [["script"]] * 3
    assert keys(masters) == [{}] * 5
    assert redlock.statistics().debts == 0


@pytest.mark.promise("S3")
@pytest.mark.parametrize("fault", ["refuse", "hang"])
async def test_a_command_that_is_not_confirmed_is_repeated_as_a_script(
    redlock: Redlock, masters: list[FakeMaster], fault: str
) -> None:
    """The server at that address may by then lack the command."""
    lease = await redlock.lock("r", ttl=60_000).acquire()
    if fault == "refuse":
        masters[0].forbid.add(COMMAND)
    else:  # until another connection has been made
        masters[0].hang()
        loop().call_later(3, masters[0].resume)
    await lease.release()
    await asyncio.sleep(5)
    assert releases(masters[0])[-1] == "script"
    assert keys(masters) == [{}] * 5
    assert redlock.statistics().debts == 0


@pytest.mark.parametrize("lost", [2, 3])
@pytest.mark.parametrize("script", [False, True])
@pytest.mark.parametrize("value", [None, "theirs"])
async def test_a_release_tells_that_a_majority_had_lost_the_key(
    redlock: Redlock, masters: list[FakeMaster], value: str | None, script: bool, lost: int
) -> None:
    lease = await redlock.lock("r", auto_extend=False).acquire()
    event = lease.lost  # another task may wait for it
    for master in masters if script else ():
        master.forbid.add(COMMAND)
    delete(masters[:lost]) if value is None else occupy(masters[:lost])
    if lost < 3:
        await lease.release()
        assert not event.is_set()
    else:
        with pytest.raises(LockNotHeldError, match="no longer has its key"):
            await lease.release()
        assert event.is_set()
    await asyncio.sleep(0.1)
    assert values(masters) == [value] * lost + [None] * (5 - lost)


async def test_silent_masters_do_not_tell_that_the_key_was_lost(
    redlock: Redlock, masters: list[FakeMaster]
) -> None:
    """Two have released the key, one had lost it: no majority had lost it."""
    lease = await redlock.lock("r", auto_extend=False).acquire()
    masters[0].delete("r")
    hang(masters[3:])
    await lease.release()


# Too many requests at once


@pytest.mark.parametrize("observed", [False, True])
@pytest.mark.parametrize("fair", [False, True])
async def test_a_free_lock_is_not_taken_for_held_because_of_overload(
    masters: list[FakeMaster], monkeypatch: pytest.MonkeyPatch, *, observed: bool, fair: bool
) -> None:
    """An attempt that can't be sent raises an error; it does not return ``None``."""
    listener = (lambda _: None) if observed else None
    async with Redlock(masters, restart_guard="off", listener=listener) as redlock:
        async with redlock.lock("warm", fair=fair):
            pass
        await asyncio.sleep(0.1)
        monkeypatch.setattr(connection, "MAX_PENDING", 20)
        locks = [redlock.lock(f"r{number}", fair=fair, ttl=60_000) for number in range(30)]
        attempts = (lock.try_acquire() for lock in locks)
        results = await asyncio.gather(*attempts, return_exceptions=True)
        won = [lease for lease in results if isinstance(lease, Lease)]
        errors = [error for error in results if isinstance(error, QuorumUnavailableError)]
        assert won
        assert errors
        assert len(won) + len(errors) == 30
        assert "too many requests are unanswered" in str(errors[0])
        # Acquisitions with a wait retry.
        waits = (redlock.lock(f"w{number}", wait=5_000).acquire() for number in range(30))
        waited = await asyncio.gather(*waits)
        occupy(masters[:3], "held")
        assert await redlock.lock("held", fair=fair).try_acquire() is None
        monkeypatch.setattr(connection, "MAX_PENDING", 10_000)
        await asyncio.gather(*(lease.release() for lease in (*won, *waited)))
