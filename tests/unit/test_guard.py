"""Masters that restart or are flushed, end to end: nobody gets in while a lease may be believed."""

import asyncio
import itertools
import logging
from collections.abc import AsyncIterator
from typing import Any, Literal

import pytest

from redlock_aio import (
    Answer,
    QuorumUnavailableError,
    Redlock,
    Vote,
)
from redlock_aio._rules import timing
from redlock_aio.testing import FakeMaster, VirtualTimeLoop, cancelled_at

from .kit import answers, gets_lock, hang, in_coroutine, now, restart, resume, votes

MAX_TTL = 10_000
LASTS = timing.forgetting(MAX_TTL, factor=timing.DRIFT_FACTOR)

RESTARTED = "it restarted 0 s ago and may have forgotten locks"

pytestmark = [pytest.mark.promise("S1")]


def guarded(masters: list[FakeMaster], **options: Any) -> Redlock:
    return Redlock(masters, max_ttl=MAX_TTL, **options)


@pytest.fixture
async def redlock(masters: list[FakeMaster]) -> AsyncIterator[Redlock]:
    async with guarded(masters) as redlock:
        yield redlock


@pytest.fixture
async def young() -> list[FakeMaster]:
    """Five masters that have just been started for the first time."""
    masters = [FakeMaster(f"m{i}") for i in range(5)]
    for master in masters:
        master.uptime = 0
    return masters


def states(masters: list[FakeMaster]) -> list[str]:
    return [(master.marker or "- none").split()[1] for master in masters]


async def newcomer_gets_lock(masters: list[FakeMaster], name: str = "r") -> bool:
    """Return whether a program that has just started gets the lock at once."""
    async with guarded(masters) as newcomer:
        return await gets_lock(newcomer, name)


# A new set of masters.


@pytest.mark.spread(2)
@pytest.mark.parametrize("managers", [1, 2, 3])
@pytest.mark.parametrize("slower", [0, 0.002])
@pytest.mark.parametrize("apart", [0, 0.0005, 0.001, 0.0015, 0.002, 0.003, 0.01, 0.02, 0.04])
async def test_a_new_set_is_usable_at_once(
    young: list[FakeMaster], managers: int, apart: float, slower: float
) -> None:
    """Also if somebody else is just marking it."""
    for number, master in enumerate(young):
        master.latency += number * slower

    async def first_use(number: int) -> None:
        await asyncio.sleep(number * apart)
        redlock = guarded(young, master_timeout=15)
        async with redlock, redlock.lock(f"r{number}", wait=0):
            pass

    await asyncio.gather(*(first_use(number) for number in range(managers)))
    assert now() < 0.3
    assert states(young) == ["member"] * 5


async def test_a_strict_guard_makes_no_exception_for_a_new_set(young: list[FakeMaster]) -> None:
    async with guarded(young, restart_guard="strict") as redlock:
        assert await answers(redlock) == "Q" * 5
        assert states(young) == ["rejoining"] * 5
        await asyncio.sleep(LASTS + 0.01)
        assert await answers(redlock) == "G" * 5


async def test_a_new_set_waits_for_a_master_that_is_not_there_yet(young: list[FakeMaster]) -> None:
    young[4].kill()
    async with guarded(young) as redlock:
        assert await answers(redlock) == "QQQQU"
        await asyncio.sleep(1)
        assert states(young[:4]) == ["none"] * 4
        young[4].restart()
        await asyncio.sleep(1)
        assert await answers(redlock) == "G" * 5


async def test_what_is_not_proven_to_be_new_votes_when_it_is_old_enough(
    young: list[FakeMaster],
) -> None:
    young[4].kill()
    async with guarded(young) as redlock:
        await asyncio.sleep(LASTS - 1)
        assert await answers(redlock) == "QQQQU"
        await asyncio.sleep(2)
        assert await answers(redlock) == "GGGGU"


async def test_a_young_master_among_old_ones_has_restarted(masters: list[FakeMaster]) -> None:
    assert await newcomer_gets_lock(masters)
    masters[2].restart(uptime=3)
    async with guarded(masters) as newcomer:
        await asyncio.sleep(0.6)
        assert await answers(newcomer) == "GGQGG"
        assert states(masters)[2] == "rejoining"
        await asyncio.sleep(LASTS - 3 - 2)
        assert await answers(newcomer) == "GGQGG"
        await asyncio.sleep(2)
        assert await answers(newcomer) == "G" * 5
    assert states(masters) == ["member"] * 5


async def test_a_set_is_not_new_if_one_is_known_from_before(
    young: list[FakeMaster], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody marks one as rejoining while the others are being marked as members."""
    do_set = FakeMaster._do_set
    said = f"{young[3].run_id} rejoining {10**18}".encode()

    def quicker(master: FakeMaster, key: bytes, value: bytes, *options: bytes) -> object:
        if master is young[3] and value.split()[1] == b"member":
            do_set(master, key, said)
        return do_set(master, key, value, *options)

    monkeypatch.setattr(FakeMaster, "_do_set", quicker)
    async with guarded(young) as redlock:
        assert await answers(redlock) == "Q" * 5
        assert states(young) == ["rejoining"] * 5


# Restarts.


@pytest.mark.promise("S4")
@pytest.mark.parametrize("newcomers", [False, True])
async def test_a_majority_that_restarted_empty_lets_nobody_in_before_the_deadline(
    redlock: Redlock, masters: list[FakeMaster], newcomers: bool
) -> None:
    """The lease is neither ended nor extended by masters that have forgotten it."""
    lease = await redlock.lock("r", ttl=MAX_TTL).acquire()
    deadline = now() + lease.remaining / 1000
    restart(masters[:3])
    restarted = now()
    while now() < deadline - 0.5:
        await asyncio.sleep(0.5)
        if newcomers:
            assert not await newcomer_gets_lock(masters)
        assert lease.valid
        assert not lease.lost.is_set()
    await asyncio.sleep(1)
    assert lease.lost.is_set()
    async with guarded(masters) as newcomer:
        assert (await votes(newcomer))[0].answer is Answer.QUARANTINED
        await asyncio.sleep(restarted + LASTS + 1.1 - now())
        assert await answers(newcomer, "r") == "G" * 5
        assert await answers(redlock, "r") == "G" * 5


@pytest.mark.usefixtures("redlock")
async def test_a_newcomer_after_a_quick_restart_of_all_waits(masters: list[FakeMaster]) -> None:
    """One after the other, each seen by somebody: a newcomer must not take them for a new set."""
    for master in masters:
        master.restart()
        await asyncio.sleep(0.6)
    assert states(masters) == ["rejoining"] * 5
    assert not await newcomer_gets_lock(masters)
    await asyncio.sleep(LASTS - 3.5)
    assert not await newcomer_gets_lock(masters)
    await asyncio.sleep(4.5)
    assert await newcomer_gets_lock(masters)


async def test_whatthis_process_saw_counts_whatever_the_uptime_says(
    redlock: Redlock, masters: list[FakeMaster]
) -> None:
    masters[0].restart(uptime=10**6)
    await asyncio.sleep(0.6)
    assert await answers(redlock) == "QGGGG"
    async with guarded(masters) as newcomer:
        assert await answers(newcomer) == "QGGGG"
    await asyncio.sleep(LASTS)
    assert await answers(redlock) == "G" * 5


async def test_it_is_remembered_while_the_manager_is_closed(
    redlock: Redlock, masters: list[FakeMaster]
) -> None:
    await asyncio.sleep(LASTS / 4 - 0.2)
    await redlock.aclose()
    await asyncio.sleep(LASTS - 1)
    masters[0].restart(uptime=10**6)
    masters[1].flush()
    await redlock.__aenter__()
    assert await answers(redlock) == "QQGGG"


async def test_a_master_that_restarts_again_waits_again(
    redlock: Redlock, masters: list[FakeMaster]
) -> None:
    masters[0].restart()
    await asyncio.sleep(LASTS - 1)
    masters[0].restart()
    await asyncio.sleep(LASTS - 1)
    assert await answers(redlock) == "QGGGG"
    await asyncio.sleep(2)
    assert await answers(redlock) == "G" * 5


async def test_a_cut_neither_begins_nor_ends_a_quarantine(
    redlock: Redlock, masters: list[FakeMaster]
) -> None:
    masters[0].restart()
    await asyncio.sleep(LASTS - 1)
    masters[0].cut()
    masters[1].cut()
    await asyncio.sleep(0.6)
    assert await answers(redlock) == "QGGGG"
    await asyncio.sleep(1)
    assert await answers(redlock) == "G" * 5


@pytest.mark.parametrize("before", [False, True])
async def test_a_marker_of_another_server_means_a_restart_from_disk_or_a_promotion(
    masters: list[FakeMaster], before: bool
) -> None:
    for master in masters:
        master.set("redlock_aio:marker", f"{'f' * 40} member 1")
    masters[0].uptime = 4
    masters[1].replica_before = before
    async with guarded(masters) as redlock:
        assert await answers(redlock) == ("QQGGG" if before else "QGGGG")
        await asyncio.sleep(LASTS)
        assert await answers(redlock) == "G" * 5
    assert states(masters) == ["member"] * 5


@pytest.mark.parametrize("uptime", [3, 10 * LASTS])
async def test_a_replica_that_was_promoted_without_a_marker_waits_whatever_its_uptime(
    masters: list[FakeMaster], uptime: float
) -> None:
    """It may have been promoted a moment ago, out of step: without marker and locks."""
    assert await newcomer_gets_lock(masters)
    masters[1].restart(uptime=uptime)
    masters[1].replica_before = True
    async with guarded(masters) as redlock:
        assert await answers(redlock) == "GQGGG"
        assert states(masters)[1] == "rejoining"
        await asyncio.sleep(LASTS)
        assert await answers(redlock) == "G" * 5
    async with guarded(masters) as redlock:
        assert await answers(redlock) == "G" * 5, "once is enough"


async def test_an_uptime_that_makes_no_sense_is_a_restart(masters: list[FakeMaster]) -> None:
    masters[0].uptime = -3598
    async with guarded(masters) as redlock:
        said = (await votes(redlock))[0]
        assert str(said) == (
            "m0: quarantined, its uptime makes no sense: it may have restarted and forgotten"
            " locks; it votes again in 12 s"
        )


# Flushes.


@pytest.mark.parametrize("flushed", range(1, 6))
async def test_a_flush_takes_the_vote_away_and_no_lease(
    redlock: Redlock, masters: list[FakeMaster], flushed: int
) -> None:
    lease = await redlock.lock("r", ttl=MAX_TTL, auto_extend=False).acquire()
    await asyncio.sleep(0.5)  # it watches its key
    for master in masters[:flushed]:
        master.flush()
    await asyncio.sleep(0.05)
    assert states(masters) == ["rejoining"] * flushed + ["member"] * (5 - flushed)
    for _ in range(8):
        assert lease.valid
        assert not await newcomer_gets_lock(masters)
        await asyncio.sleep(1)
    await lease.release()
    await asyncio.sleep(LASTS)
    assert await answers(redlock, "r") == "G" * 5


async def test_a_flush_of_another_database_costs_a_moment(
    redlock: Redlock, masters: list[FakeMaster]
) -> None:
    lease = await redlock.lock("r").acquire()
    for master in masters:
        master._pushes.flushed()
    await asyncio.sleep(0.01)
    assert await answers(redlock) == "G" * 5
    assert lease.valid
    await lease.release()


async def test_nothing_counts_that_was_underway_when_it_was_flushed(
    masters: list[FakeMaster],
) -> None:
    async with guarded(masters[:1]) as redlock:
        task = asyncio.create_task(redlock.lock("r", wait=0).acquire())
        await asyncio.sleep(0)
        masters[0].flush()  # told before the answer: the lock may be among what is forgotten
        with pytest.raises(QuorumUnavailableError) as caught:
            await task
        assert str(caught.value.votes[0]) == "m0: unreachable, its keys were flushed"


async def test_who_marks_a_flushed_master_anew_is_put_right(
    redlock: Redlock, masters: list[FakeMaster]
) -> None:
    """A newcomer that never saw the marker may be quicker; who has seen it knows better."""
    masters[0].flush()
    masters[0].set("redlock_aio:marker", f"{masters[0].run_id} member {masters[0]._clock()}")
    await asyncio.sleep(0.05)
    assert await answers(redlock) == "QGGGG"
    assert states(masters)[0] == "rejoining"


@pytest.mark.parametrize("ago", [1.0, LASTS / 2, LASTS + 0.1, 9 * LASTS])
async def test_a_flush_while_a_program_was_away_costs_it_no_more_than_its_quarantine(
    masters: list[FakeMaster], ago: float
) -> None:
    """A manager that comes back must not keep everybody from locks for a flush of long ago."""
    async with guarded(masters) as away:
        assert await answers(away) == "G" * 5
    await asyncio.sleep(9 * LASTS)
    for master in masters:
        master.flush()
    flushed = now()
    async with guarded(masters):
        pass  # it has not seen the old markers, and writes new ones
    await asyncio.sleep(flushed + ago - now())
    async with away:
        over = flushed + LASTS - now()
        assert await answers(away) == ("Q" if over > 0 else "G") * 5
        await asyncio.sleep(max(over, 0) + 0.1)
        assert await answers(away) == "G" * 5
    assert states(masters) == ["member"] * 5


@pytest.mark.parametrize("how", ["gone", "restarted"])
async def test_where_nothing_is_told_it_is_looked_at_now_and_then(
    masters: list[FakeMaster], how: str
) -> None:
    """A master that may not tell, or a proxy that hides a restart."""
    for master in masters:
        master.forbid.add("CLIENT")
    async with guarded(masters) as redlock:
        if how == "gone":
            masters[0]._keys.clear()
        else:
            masters[0].run_id = "9" * 40
        await asyncio.sleep(LASTS / 4 + 0.1)
        assert await answers(redlock) == "QGGGG"


async def test_who_is_told_of_the_marker_looks_at_once(
    redlock: Redlock, masters: list[FakeMaster]
) -> None:
    """Another program knows that the master has forgotten locks."""
    masters[0].set("redlock_aio:marker", f"{masters[0].run_id} rejoining {masters[0]._clock()}0")
    await asyncio.sleep(0.01)
    assert await answers(redlock) == "QGGGG"


# What is told.


async def test_the_error_and_the_log_say_why_and_for_how_long(
    redlock: Redlock, masters: list[FakeMaster], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "redlock_aio")
    restart(masters[:3])
    await asyncio.sleep(1.1)
    assert repr(redlock) == "<Redlock 5 masters, 5 up, 3 quarantined, 0 leases>"
    with pytest.raises(QuorumUnavailableError) as caught:
        await redlock.lock("r", wait=0).acquire()
    assert caught.value.votes[0] == Vote(
        "m0",
        Answer.QUARANTINED,
        "it restarted 1 s ago and may have forgotten locks; it votes again in 11 s",
    )
    assert str(caught.value.votes[0]) in str(caught.value)
    await asyncio.sleep(LASTS)
    told = [record.getMessage() for record in caplog.records if "m0" in record.getMessage()]
    assert told[1:] == [
        "m0: connected again",
        f"m0: quarantined, {RESTARTED}; it votes again in 12 s",
        "m0: votes again",
    ]
    assert repr(redlock) == "<Redlock 5 masters, 5 up, 0 leases>"


@pytest.mark.parametrize("guard", ["off", "fsync-always"])
async def test_without_a_guard_no_marker_is_read_or_written(
    masters: list[FakeMaster], guard: Literal["off", "fsync-always"]
) -> None:
    async with Redlock(masters, restart_guard=guard) as redlock:
        masters[0].restart()
        await asyncio.sleep(0.6)
        assert await answers(redlock) == "G" * 5
    # Whether they have DELIFEQ is tried with a value that nothing has.
    commands = [c for master in masters for c in master.commands if c[0] != b"DELIFEQ"]
    assert b"marker" not in b" ".join(b" ".join(command) for command in commands)


async def test_who_vouches_for_masters_that_keep_nothing_is_cautioned(
    masters: list[FakeMaster], caplog: pytest.LogCaptureFixture
) -> None:
    async with Redlock(masters[:1], restart_guard="fsync-always"):
        masters[0].cut()
        await asyncio.sleep(1)
    told = [record.getMessage() for record in caplog.records if "aof" in record.getMessage()]
    assert len(told) == 1
    assert told[0].startswith("m0: restart_guard is 'fsync-always', but it keeps nothing")


@pytest.mark.parametrize("guard", ["auto", "strict", "fsync-always", "off"])
async def test_a_ttl_beyond_the_longest_is_refused(
    masters: list[FakeMaster], guard: Literal["auto", "strict", "fsync-always", "off"]
) -> None:
    async with guarded(masters, restart_guard=guard) as redlock:
        with pytest.raises(ValueError, match="ttl must be at most max_ttl, which is 10000 ms"):
            redlock.lock("r", ttl=MAX_TTL + 1)
        async with redlock.lock("r", ttl=MAX_TTL) as lease:
            with pytest.raises(ValueError, match="not 10001 ms"):
                await lease.extend(MAX_TTL + 1)


def test_what_a_guard_can_be() -> None:
    with pytest.raises(
        ValueError,
        match=r"^restart_guard must be 'auto', 'strict', 'fsync-always' or 'off', not 'on'$",
    ):
        Redlock(["redis://a"], restart_guard="on")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="max_ttl must be positive"):
        Redlock(["redis://a"], max_ttl=0)
    with pytest.raises(TypeError, match="max_ttl must be an int"):
        Redlock(["redis://a"], max_ttl=1.0)  # type: ignore[arg-type]


async def test_a_marker_that_is_not_allowed_is_told(masters: list[FakeMaster]) -> None:
    masters[0].forbid.add("GETRANGE")
    async with guarded(masters) as redlock:
        vote = (await votes(redlock))[0]
    assert vote.answer is Answer.ERROR
    assert vote.detail.startswith(
        "the restart guard must GETRANGE and SET the key redlock_aio:marker, or be off"
        ' (restart_guard="off"): NOPERM'
    )


# Whoever waits, and what is on its way.


@pytest.mark.promise("S9")
@pytest.mark.parametrize("fair", [False, True])
async def test_who_waits_gets_the_lock_when_the_quarantine_ends(
    redlock: Redlock, masters: list[FakeMaster], fair: bool
) -> None:
    restart(masters[:3])
    restarted = now()
    lease = await redlock.lock("r", fair=fair).acquire()
    assert LASTS <= now() - restarted < LASTS + 0.1
    await lease.release()


async def test_who_waits_does_not_ask_again_and_again(
    redlock: Redlock, masters: list[FakeMaster]
) -> None:
    restart(masters[:3])
    await asyncio.sleep(1)
    for master in masters:
        master.commands.clear()
    with pytest.raises(QuorumUnavailableError):
        await redlock.lock("r", wait=2000).acquire()
    assert sum(command[0] == b"SET" for command in masters[4].commands) < 60
    assert not any(command[0] == b"SET" for command in masters[0].commands)


@pytest.mark.promise("S3")
async def test_a_quarantined_master_gets_releases(
    redlock: Redlock, masters: list[FakeMaster]
) -> None:
    lease = await redlock.lock("r").acquire()
    masters[0].restart()
    await asyncio.sleep(0.6)
    masters[0].set("r", lease.token)  # as an extension would have healed it
    await lease.release()
    await asyncio.sleep(0.01)
    assert not masters[0].keys


@pytest.mark.promise("S3")
async def test_a_release_does_not_wait_for_an_acquisition_that_leaves_with_it(
    redlock: Redlock, masters: list[FakeMaster]
) -> None:
    lease = await redlock.lock("r").acquire()
    masters[0].restart()
    await asyncio.sleep(0.6)
    masters[0].set("r", lease.token)
    other, _ = await asyncio.gather(redlock.lock("other").acquire(), lease.release())
    assert "r" not in masters[0].keys
    assert [bool(master.keys) for master in masters] == [False, *[True] * 4]
    await other.release()


async def test_a_lease_released_among_masters_that_forgot_it_was_not_lost(
    redlock: Redlock, masters: list[FakeMaster]
) -> None:
    async with redlock.lock("r"):
        restart(masters[:3])
        await asyncio.sleep(1)


@pytest.mark.promise("S6")
@pytest.mark.parametrize("hung", [1, 2])
async def test_a_minority_that_hangs_does_not_hold_up_the_first_lock(
    masters: list[FakeMaster], hung: int
) -> None:
    hang(masters[:hung])
    async with guarded(masters) as redlock, redlock.lock("r", wait=0):
        assert now() < 0.06


async def test_a_master_that_hangs_while_it_is_examined_is_given_up(
    masters: list[FakeMaster], monkeypatch: pytest.MonkeyPatch
) -> None:
    do_getrange = FakeMaster._do_getrange

    def hangs(master: FakeMaster, key: bytes, *part: bytes) -> object:
        if master is masters[0] and b"marker" in key:
            master.hang()
        return do_getrange(master, key, *part)

    monkeypatch.setattr(FakeMaster, "_do_getrange", hangs)
    async with guarded(masters) as redlock:
        assert [a for a in await answers(redlock) if a != "G"] == ["U"]
        await asyncio.sleep(3)
        monkeypatch.undo()
        masters[0].resume()
        await asyncio.sleep(2)
        assert await answers(redlock) == "G" * 5


@pytest.mark.promise("S6")
async def test_a_new_set_with_a_master_that_hangs_while_it_is_marked(
    young: list[FakeMaster], monkeypatch: pytest.MonkeyPatch
) -> None:
    do_set = FakeMaster._do_set

    def hangs(master: FakeMaster, key: bytes, *rest: bytes) -> object:
        if master is young[0]:
            master.hang()
        return do_set(master, key, *rest)

    monkeypatch.setattr(FakeMaster, "_do_set", hangs)
    async with guarded(young) as redlock:
        assert now() < 3
        monkeypatch.undo()
        young[0].resume()
        await asyncio.sleep(LASTS + 1)
        assert await answers(redlock) == "G" * 5


@pytest.mark.promise("S3")
@pytest.mark.parametrize("when", ["waiting", "answered"])
@pytest.mark.parametrize("hung", [0, 1, 3])
async def test_a_cancelled_first_use_of_a_new_set_leaves_nothing(
    young: list[FakeMaster], hung: int, when: Literal["waiting", "answered"]
) -> None:
    async def first_use() -> None:
        async with guarded(young) as redlock, redlock.lock("r", wait=100):
            pass

    for place in itertools.count(1):
        restart(young)
        hang(young[:hung])
        task = asyncio.create_task(in_coroutine(cancelled_at(place, first_use(), when=when)))
        await asyncio.wait([task])
        resume(young)
        await asyncio.sleep(2)
        assert not [master.keys for master in young if master.keys], f"suspension {place}"
        if not task.cancelled():
            failed = task.exception()
            assert failed is None or (hung and isinstance(failed, QuorumUnavailableError))
            assert place > 1
            return


@pytest.mark.parametrize("place", range(1, 40))
def test_a_program_that_ends_at_any_moment_ends(place: int) -> None:
    """Cancelled in the middle of examining, marking, looking and waiting for the end."""
    masters = [FakeMaster(f"m{i}") for i in range(3)]

    async def main() -> None:
        for master in masters:
            master.uptime = 0
        redlock = guarded(masters)
        redlock._opener.session()
        await asyncio.sleep(place * 0.0005)
        await redlock.aclose()
        assert len(asyncio.all_tasks()) == 1

    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        runner.run(main())
